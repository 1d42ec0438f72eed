//! The channels of a connection: its subscriber's progress on each, what it asked for, and the order in which
//! they have turns.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};

use crate::control::{Grant, Progress};
use crate::serve::lane::Lane;
use crate::serve::request_queue::PendingRanges;
use crate::types::{ChannelId, Nanos};

/// The state of a peer on one channel.
#[derive(Clone, Debug, Default)]
pub(crate) struct PeerChannel {
    /// Index of the channel in the core.
    pub(crate) channel: usize,
    /// The peer's last PROGRESS in the channel's epoch.
    pub(crate) progress: Option<Progress>,
    /// `sent_at` of the peer's last PROGRESS, while a STATUS is due.
    pub(crate) status_due: Option<Nanos>,
    /// Whether a STATUS has confirmed the end of the session. END alone does not end it.
    pub(crate) end_confirmed: bool,
    /// Whether the peer was reported as slow.
    pub(crate) slow: bool,
    /// Number of MIRRORs since the last READ connection of the session.
    pub(crate) mirrors: u8,
    /// The grant to READ the ring.
    pub(crate) granted: Option<Grant>,
    /// Number of the last report in the peer's cursor.
    pub(crate) reported: u64,
    pub(crate) repair: PendingRanges,
    /// Number of the channel's multicasts before the sequences in `repair` were requested.
    pub(crate) multicasts_seen: u64,
    pub(crate) replay: PendingRanges,
    /// Whether the peer has reached the end: END, and the STATUS that confirms it.
    is_at_end: bool,
}

/// The channels of a connection with output of one kind, in the order of their turns. A channel whose output
/// was taken elsewhere may still be listed.
#[derive(Debug, Default)]
struct Due {
    order: VecDeque<usize>,
    is_listed: Vec<bool>,
}

impl Due {
    fn of(channels: usize) -> Self {
        Self {
            order: VecDeque::with_capacity(channels),
            is_listed: vec![false; channels],
        }
    }

    /// Adds a channel of the connection at the end, unless it is listed.
    fn push(&mut self, at: usize) {
        if let Some(is_listed) = self.is_listed.get_mut(at)
            && !std::mem::replace(is_listed, true)
        {
            self.order.push_back(at);
        }
    }

    /// Removes and returns the channel whose turn it is.
    fn pop(&mut self) -> Option<usize> {
        let at = self.order.pop_front()?;
        self.is_listed[at] = false;
        Some(at)
    }

    fn is_empty(&self) -> bool {
        self.order.is_empty()
    }
}

/// The channels of a connection, in the order of its JOIN. The channels of all connections of a session have
/// the same order.
#[derive(Debug, Default)]
pub(crate) struct PeerChannels {
    all: Vec<PeerChannel>,
    /// The place of each channel in `all`, in ascending order of the channels.
    by_id: Vec<(ChannelId, usize)>,
    /// The channels with output, for each [`Lane`].
    due: [Due; 3],
    /// Number of channels that wait for replay.
    replays: usize,
    /// Number of channels on which the peer has reached the end.
    at_end: usize,
}

impl Deref for PeerChannels {
    type Target = [PeerChannel];

    fn deref(&self) -> &[PeerChannel] {
        &self.all
    }
}

impl DerefMut for PeerChannels {
    fn deref_mut(&mut self) -> &mut [PeerChannel] {
        &mut self.all
    }
}

impl PeerChannels {
    /// Returns the state of these channels at their beginning, each with its index in the core.
    pub(crate) fn new(channels: impl Iterator<Item = (ChannelId, usize)>) -> Self {
        let mut by_id = Vec::new();
        let of = |(at, (id, channel))| {
            by_id.push((id, at));
            PeerChannel {
                channel,
                ..PeerChannel::default()
            }
        };
        let all: Vec<PeerChannel> = channels.enumerate().map(of).collect();
        by_id.sort_unstable();
        Self {
            due: [(); 3].map(|()| Due::of(all.len())),
            all,
            by_id,
            replays: 0,
            at_end: 0,
        }
    }

    /// Returns the place of a channel.
    pub(crate) fn place_of(&self, channel: ChannelId) -> Option<usize> {
        let found = self.by_id.binary_search_by_key(&channel, |(id, _)| *id);
        found.ok().map(|at| self.by_id[at].1)
    }

    /// Adds a channel at the end of those with output of this kind, unless it is listed.
    pub(crate) fn push_due(&mut self, lane: Lane, at: usize) {
        self.due[lane as usize].push(at);
    }

    /// Removes and returns the channel whose turn it is.
    pub(crate) fn pop_due(&mut self, lane: Lane) -> Option<usize> {
        self.due[lane as usize].pop()
    }

    /// Returns whether any channel may have output of this kind.
    pub(crate) fn is_due(&self, lane: Lane) -> bool {
        !self.due[lane as usize].is_empty()
    }

    /// Records that a STATUS is due that answers a PROGRESS of this time.
    pub(crate) fn owe_status(&mut self, at: usize, requested_at: Nanos) {
        self.all[at].status_due = Some(requested_at);
        self.push_due(Lane::Answers, at);
    }

    /// Records that a channel has to wait for replay.
    pub(crate) const fn begin_replay(&mut self) {
        self.replays += 1;
    }

    /// Records that a channel waits for replay no more, and returns whether it was the last one.
    pub(crate) const fn end_replay(&mut self) -> bool {
        self.replays = self.replays.saturating_sub(1);
        self.replays == 0
    }

    /// Returns whether any channel waits for replay.
    pub(crate) const fn is_replaying(&self) -> bool {
        self.replays > 0
    }

    /// Records whether the peer has reached the end of a channel.
    pub(crate) fn set_at_end(&mut self, at: usize, is_at_end: bool) {
        let before = std::mem::replace(&mut self.all[at].is_at_end, is_at_end);
        self.at_end = self.at_end - usize::from(before) + usize::from(is_at_end);
    }

    /// Returns whether the peer has reached the end of all channels.
    pub(crate) fn have_ended(&self) -> bool {
        self.at_end == self.all.len()
    }

    /// Returns the state of each channel.
    pub(crate) fn into_all(self) -> Vec<PeerChannel> {
        self.all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channel_with_output_is_listed_once_in_its_lane() {
        let ids = [(ChannelId(9), 3), (ChannelId(7), 4)];
        let mut channels = PeerChannels::new(ids.into_iter());
        let due = |channels: &PeerChannels| Lane::ALL.map(|lane| channels.is_due(lane));
        assert_eq!(due(&channels), [false; 3]);
        let places = [7, 8, 9].map(|id| channels.place_of(ChannelId(id)));
        assert_eq!(places, [Some(1), None, Some(0)]);
        channels.owe_status(1, Nanos(5));
        channels.owe_status(1, Nanos(6));
        channels.push_due(Lane::Replay, 0);
        assert_eq!(due(&channels), [true, false, true]);
        assert_eq!(channels.pop_due(Lane::Answers), Some(1));
        assert_eq!(channels.pop_due(Lane::Answers), None);
        assert_eq!(channels[1].status_due, Some(Nanos(6)));
        assert_eq!(channels.into_all().len(), 2);
    }

    #[test]
    fn channels_have_ended_when_each_has() {
        let ids = [(ChannelId(1), 0), (ChannelId(2), 1)];
        let mut channels = PeerChannels::new(ids.into_iter());
        for (at, is_at_end, have_ended) in [
            (0, true, false),
            (0, true, false),
            (1, true, true),
            (0, false, false),
        ] {
            channels.set_at_end(at, is_at_end);
            assert_eq!(channels.have_ended(), have_ended);
        }
    }
}
