//! The connections of the repair service: their purpose, their queued output, and their subscriber's
//! progress. Each holds a bounded amount of memory, whatever its peer does.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::control::{Grant, Join, NAME_LEN_MAX, Progress, Purpose, RejectCode, Rejected};
use crate::serve::in_flight::InFlight;
use crate::serve::lane::Lane;
use crate::serve::outbox::Outbox;
use crate::serve::request_queue::PendingRanges;
use crate::serve::standby_writes::MirrorWriter;
use crate::types::{ChannelId, Nanos, PeerOrigin};
use crate::wire::WireVersions;

/// Maximum number of channels in one JOIN.
pub(super) const JOIN_CHANNELS_MAX: usize = 256;

/// Number of a connection, assigned by the driver and never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PeerId(pub u64);

/// The transport of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// TCP, or any other plain byte stream.
    Tcp,
    /// A reliable connection of RDMA verbs, over which memory can be READ.
    Verbs,
}

/// The purpose and state of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// No JOIN was received yet.
    Connecting,
    /// The peer follows channels.
    Subscriber {
        session: u64,
        replay: Option<PeerId>,
        nack: Option<PeerId>,
        read: Option<PeerId>,
    },
    /// Replays history for this session.
    Replay { session: u64 },
    /// Repairs gaps for this session.
    Nack { session: u64 },
    /// READs rings for this session, in this attempt of the subscriber.
    Read { session: u64, attempt: u64 },
    /// The connection closes once this rejection is sent.
    Closing(Rejected),
}

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
    pub(crate) is_at_end: bool,
}

impl PeerChannel {
    pub(crate) fn of(channel: usize) -> Self {
        Self {
            channel,
            ..Self::default()
        }
    }
}

/// The channels of a connection with output of one kind, in the order of their turns. A channel whose output
/// was taken elsewhere may still be listed.
#[derive(Debug, Default)]
pub(crate) struct Due {
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
    pub(crate) fn push(&mut self, at: usize) {
        if let Some(is_listed) = self.is_listed.get_mut(at)
            && !std::mem::replace(is_listed, true)
        {
            self.order.push_back(at);
        }
    }

    /// Removes and returns the channel whose turn it is.
    pub(crate) fn pop(&mut self) -> Option<usize> {
        let at = self.order.pop_front()?;
        self.is_listed[at] = false;
        Some(at)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Peer {
    /// The origin of its session; before it has one, its own.
    pub(crate) origin: PeerOrigin,
    /// The connection that owns its session; before it has one, and afterwards, itself.
    pub(crate) owner: PeerId,
    pub(crate) role: Role,
    pub(crate) carrier: Carrier,
    pub(crate) name: String,
    channels: Vec<PeerChannel>,
    /// The place of each channel in `channels`, in ascending order of the channels.
    by_id: Vec<(ChannelId, usize)>,
    /// The channels with output, for each [`Lane`].
    due: [Due; 3],
    /// Whether the connection waits for its turn, for each [`Lane`].
    pub(crate) waits: [bool; 3],
    /// Number of channels that wait for replay.
    pub(crate) replays: usize,
    /// Number of channels on which the peer has reached the end.
    at_end: usize,
    /// Answers that cost no budget: WELCOME, REFUSED, GRANT, REJECTED.
    pub(crate) outbox: Outbox,
    /// Bytes that the driver has not sent yet.
    pub(crate) backlog: usize,
    /// Whether it gets nothing until it or its origin has read more.
    pub(crate) is_paused: bool,
    /// Answers that have not arrived yet.
    pub(crate) in_flight: InFlight,
    pub(crate) heard_at: Nanos,
    /// Time before which the peer is not reported as slow.
    pub(crate) slow_at: Nanos,
    /// The WRITEs over the connection; for READ connections only.
    pub(crate) writes: MirrorWriter,
    /// Whether WRITEs over the connection are denied; for READ connections only.
    pub(crate) writes_denied: bool,
}

impl Peer {
    pub(crate) fn new(id: PeerId, now: Nanos, carrier: Carrier, origin: PeerOrigin) -> Self {
        Self {
            origin,
            owner: id,
            role: Role::Connecting,
            carrier,
            name: String::new(),
            channels: Vec::new(),
            by_id: Vec::new(),
            due: Default::default(),
            waits: [false; 3],
            replays: 0,
            at_end: 0,
            outbox: Outbox::default(),
            backlog: 0,
            is_paused: false,
            in_flight: InFlight::default(),
            heard_at: now,
            slow_at: Nanos::ZERO,
            writes: MirrorWriter::default(),
            writes_denied: false,
        }
    }

    /// Returns whether the connection joined for repair and so represents its subscriber.
    pub(crate) const fn is_subscriber(&self) -> bool {
        matches!(self.role, Role::Subscriber { .. })
    }

    /// Sets the channels that the connection follows, each with its index in the core.
    pub(crate) fn follow(&mut self, channels: impl Iterator<Item = (ChannelId, usize)>) {
        let channels: Vec<_> = channels.collect();
        self.by_id = (channels.iter().enumerate())
            .map(|(at, (id, _))| (*id, at))
            .collect();
        self.by_id.sort_unstable();
        self.due = [(); 3].map(|()| Due::of(channels.len()));
        self.channels = (channels.into_iter())
            .map(|(_, index)| PeerChannel::of(index))
            .collect();
    }

    /// Removes and returns the state of all channels.
    pub(crate) fn take_channels(&mut self) -> Vec<PeerChannel> {
        self.by_id.clear();
        self.at_end = 0;
        self.due = Default::default();
        std::mem::take(&mut self.channels)
    }

    /// Returns the place of a channel in [`Self::channels`].
    pub(crate) fn place_of(&self, channel: ChannelId) -> Option<usize> {
        let found = self.by_id.binary_search_by_key(&channel, |(id, _)| *id);
        found.ok().map(|at| self.by_id[at].1)
    }

    pub(crate) fn channels(&self) -> &[PeerChannel] {
        &self.channels
    }

    pub(crate) fn channels_mut(&mut self) -> &mut [PeerChannel] {
        &mut self.channels
    }

    /// Returns what an answer changes: the state of the channels, and the bytes in flight.
    pub(crate) fn sending(&mut self) -> (&mut [PeerChannel], &mut InFlight) {
        (&mut self.channels, &mut self.in_flight)
    }

    /// Returns what a PROGRESS changes: the state of a channel, and the time before which the peer is not
    /// reported as slow.
    pub(crate) fn progressing(&mut self, at: usize) -> (&mut PeerChannel, &mut Nanos) {
        (&mut self.channels[at], &mut self.slow_at)
    }

    /// Records whether the peer has reached the end of a channel.
    pub(crate) fn set_at_end(&mut self, at: usize, is_at_end: bool) {
        let before = std::mem::replace(&mut self.channels[at].is_at_end, is_at_end);
        self.at_end = self.at_end - usize::from(before) + usize::from(is_at_end);
    }

    /// Returns whether it is a subscriber that has reached the end of all its channels.
    pub(crate) fn has_reached_end(&self) -> bool {
        self.is_subscriber() && self.at_end == self.channels.len()
    }

    /// Returns the bytes that the peer has not read, as far as known: those in the core and in the driver.
    pub(crate) const fn unread(&self) -> usize {
        self.outbox.len().saturating_add(self.backlog)
    }

    pub(crate) const fn due_mut(&mut self, lane: Lane) -> &mut Due {
        &mut self.due[lane as usize]
    }

    /// Records that a STATUS is due that answers a PROGRESS of this time.
    pub(crate) fn owe_status(&mut self, at: usize, asked_at: Nanos) {
        self.channels[at].status_due = Some(asked_at);
        self.due_mut(Lane::Answers).push(at);
    }

    /// Returns whether output of this kind may wait to be sent.
    pub(crate) fn has_work(&self, lane: Lane) -> bool {
        lane == Lane::Answers && !self.outbox.is_empty() || !self.due[lane as usize].is_empty()
    }

    /// Returns the slot for a subscriber's further connection of this kind.
    pub(crate) const fn further(&mut self, of: &Role) -> Option<&mut Option<PeerId>> {
        match (&mut self.role, of) {
            (Role::Subscriber { replay, .. }, Role::Replay { .. }) => Some(replay),
            (Role::Subscriber { nack, .. }, Role::Nack { .. }) => Some(nack),
            (Role::Subscriber { read, .. }, Role::Read { .. }) => Some(read),
            _ => None,
        }
    }

    /// Returns the session, if the peer has joined.
    pub(crate) const fn session(&self) -> Option<u64> {
        match self.role {
            Role::Subscriber { session, .. }
            | Role::Replay { session }
            | Role::Nack { session }
            | Role::Read { session, .. } => Some(session),
            Role::Connecting | Role::Closing(_) => None,
        }
    }

    /// Returns the session and attempt of a READ connection.
    pub(crate) const fn reads(&self) -> Option<(u64, u64)> {
        match self.role {
            Role::Read { session, attempt } => Some((session, attempt)),
            _ => None,
        }
    }

    pub(crate) fn is_closing(&self) -> bool {
        matches!(self.role, Role::Closing(_))
    }
}

/// Returns a rejection that a retry cannot fix.
pub(crate) fn rejected(code: RejectCode, text: impl Into<String>) -> Rejected {
    Rejected {
        code,
        text: text.into(),
        retry_after_ms: 0,
    }
}

/// Checks every part of a JOIN that does not depend on the publisher's state, and returns the agreed
/// wire version.
pub(crate) fn check_join(join: &Join, spoken: WireVersions) -> Result<u8, Rejected> {
    let protocol = |text: String| Err(rejected(RejectCode::Protocol, text));
    let Some(agreed) = spoken.agreed(&join.wire_versions) else {
        let read = join.wire_versions.iter().take(16).map(ToString::to_string);
        let read = read.collect::<Vec<_>>().join(", ");
        let text = format!(
            "this publisher speaks wire version {spoken}, the subscriber reads [{read}]; upgrade the older side"
        );
        return Err(rejected(RejectCode::WireVersion, text));
    };
    if join.name.len() > NAME_LEN_MAX {
        return protocol(format!(
            "the subscriber's name has {} bytes, at most {NAME_LEN_MAX} are allowed",
            join.name.len()
        ));
    }
    match join.purpose {
        Purpose::Replay { .. } | Purpose::Nack { .. } | Purpose::Read { .. }
            if !join.channels.is_empty() =>
        {
            protocol(
                "a further connection must name no channels; it uses those of its session".into(),
            )
        }
        Purpose::Repair if join.channels.is_empty() => {
            protocol("the JOIN names no channel; name at least one".into())
        }
        _ if join.channels.len() > JOIN_CHANNELS_MAX => protocol(format!(
            "the JOIN names {} channels, at most {JOIN_CHANNELS_MAX} are allowed",
            join.channels.len()
        )),
        _ => Ok(agreed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{ChannelName, JoinChannel, Message, Start};
    use crate::types::{ChannelId, Epoch};
    use crate::wire::WIRE_VERSION;

    fn join(purpose: Purpose, channels: usize) -> Join {
        let channel = JoinChannel {
            channel: ChannelName::Id(ChannelId(1)),
            start: Start::Live,
            confirmed_epoch: Epoch::NONE,
        };
        Join {
            authentication: true,
            name: "x".repeat(NAME_LEN_MAX),
            wire_versions: vec![WIRE_VERSION],
            purpose,
            channels: vec![channel; channels],
        }
    }

    #[test]
    fn join_channel_count_is_checked_by_purpose() {
        let refused = |join: Join| {
            check_join(&join, WireVersions::default())
                .err()
                .map(|r| r.code)
        };
        let replay = Purpose::Replay { session: 1 };
        assert_eq!(refused(join(Purpose::Repair, 1)), None);
        assert_eq!(refused(join(Purpose::Repair, JOIN_CHANNELS_MAX)), None);
        assert_eq!(refused(join(replay, 0)), None);
        let nack = Purpose::Nack { session: 1 };
        assert_eq!(refused(join(nack, 0)), None);
        for wrong in [
            join(Purpose::Repair, 0),
            join(Purpose::Repair, JOIN_CHANNELS_MAX + 1),
            join(replay, 1),
            join(nack, 1),
            Join {
                authentication: true,
                name: "x".repeat(NAME_LEN_MAX + 1),
                ..join(replay, 0)
            },
        ] {
            assert_eq!(refused(wrong), Some(RejectCode::Protocol));
        }
        let old = Join {
            authentication: true,
            wire_versions: vec![WIRE_VERSION + 1],
            ..join(replay, 0)
        };
        assert_eq!(refused(old), Some(RejectCode::WireVersion));
    }

    #[test]
    fn peer_with_due_output_has_work_of_its_lane() {
        let origin = PeerOrigin::V4(std::net::Ipv4Addr::LOCALHOST);
        let mut peer = Peer::new(PeerId(1), Nanos::ZERO, Carrier::Tcp, origin);
        let work = |peer: &Peer| Lane::ALL.map(|lane| peer.has_work(lane));
        assert_eq!(work(&peer), [false; 3]);
        peer.outbox.push(ChannelId(9), &Message::Leave);
        assert_eq!(work(&peer), [true, false, false]);
        peer.outbox.take(0, &mut Vec::new());
        peer.follow([(ChannelId(9), 3), (ChannelId(7), 4)].into_iter());
        assert_eq!(work(&peer), [false; 3]);
        let places = [7, 8, 9].map(|id| peer.place_of(ChannelId(id)));
        assert_eq!(places, [Some(1), None, Some(0)]);
        peer.owe_status(1, Nanos(5));
        peer.owe_status(1, Nanos(6));
        peer.due_mut(Lane::Replay).push(0);
        assert_eq!(work(&peer), [true, false, true]);
        let status = peer.due_mut(Lane::Answers);
        assert_eq!([status.pop(), status.pop()], [Some(1), None]);
        assert_eq!(peer.channels()[1].status_due, Some(Nanos(6)));
        assert!(!peer.is_closing());
        assert_eq!(peer.take_channels().len(), 2);
        assert_eq!(
            (work(&peer), peer.place_of(ChannelId(7))),
            ([false; 3], None)
        );
        peer.role = Role::Closing(rejected(RejectCode::Overflow, "so"));
        assert!(peer.is_closing());
    }
}
