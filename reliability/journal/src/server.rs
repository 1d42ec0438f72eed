//! The core of a repair service with an optional journal of the messages from and to its peers.
//!
//! The journal explains, and cannot be replayed. The core answers from rings that another thread writes
//! meanwhile, and the state of the rings at each answer is not recorded
//! (docs/decisions/0012-a-publisher-has-a-record-for-each-core.md). So the journal omits PROGRESS and
//! STATUS, which come all the time and only keep a connection going, and the lengths of write queues.

use std::fmt;
use std::ops::{Deref, DerefMut};

use super::layout::{EntryKind, Note, Served};
use crate::writer::{FRAMES_LEN_MAX, JournalWriter};
use tickcast_reliability::control::{BODY_LEN_MAX_TO_SUBSCRIBER, Message};
use tickcast_reliability::serve::{Carrier, Destination, PeerId, RepairCore, RepairEvent};
use tickcast_reliability::types::State;
use tickcast_reliability::types::{ChannelId, Nanos, Now, PeerOrigin};
use tickcast_reliability::wire::HEADER_LEN;

/// The maximum recorded length of a text from or for a peer, in bytes.
const TEXT_LEN_MAX: usize = 512;

/// A repair core with an optional journal. Calls that the journal does not keep go to the core.
pub struct JournaledServer {
    core: RepairCore,
    journal: Option<Box<JournalWriter>>,
    /// The time of the last input.
    now: Nanos,
}

/// The empty state that a segment begins with.
struct NoState;

impl State for NoState {
    type Restored = Self;

    fn take_down(&self, _: &mut [u8]) -> Option<usize> {
        None
    }

    fn take_up(_: &[u8]) -> Option<Self> {
        None
    }
}

impl fmt::Debug for JournaledServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.core.fmt(f)
    }
}

impl Deref for JournaledServer {
    type Target = RepairCore;

    fn deref(&self) -> &RepairCore {
        &self.core
    }
}

impl DerefMut for JournaledServer {
    fn deref_mut(&mut self) -> &mut RepairCore {
        &mut self.core
    }
}

impl JournaledServer {
    /// Returns this core without a journal.
    #[must_use]
    pub const fn new(core: RepairCore) -> Self {
        Self {
            core,
            journal: None,
            now: Nanos::ZERO,
        }
    }

    /// Attaches a journal.
    pub fn keep_journal(&mut self, journal: JournalWriter) {
        self.now = journal.last;
        self.journal = Some(Box::new(journal));
    }

    /// Detaches the journal and returns it.
    pub const fn take_journal(&mut self) -> Option<Box<JournalWriter>> {
        self.journal.take()
    }

    /// Notes an event around the core.
    #[cold]
    pub fn note(&mut self, note: Note) {
        if let Some(journal) = &mut self.journal {
            journal.note(&NoState, self.now, &note);
        }
    }

    /// Returns whether a journal is attached.
    #[must_use]
    pub const fn is_journaled(&self) -> bool {
        self.journal.is_some()
    }

    /// Delegates to [`RepairCore::handle_connected`].
    pub fn handle_connected(
        &mut self,
        now: Now,
        peer: PeerId,
        carrier: Carrier,
        origin: PeerOrigin,
    ) {
        self.now = now.monotonic;
        self.served(|| Served::Connected(peer));
        self.core.handle_connected(now, peer, carrier, origin);
    }

    /// Delegates to [`RepairCore::handle_message`].
    pub fn handle_message(
        &mut self,
        now: Now,
        peer: PeerId,
        channel: ChannelId,
        message: Message<'_>,
    ) -> usize {
        self.now = now.monotonic;
        if let Some(journal) = &mut self.journal
            && !matches!(message, Message::Progress(_))
        {
            journal.frame(EntryKind::Heard, now.monotonic, peer, channel, &message);
        }
        self.core.handle_message(now, peer, channel, message)
    }

    /// Delegates to [`RepairCore::handle_protocol_error`].
    pub fn handle_protocol_error(&mut self, peer: PeerId, text: String) {
        self.served(|| Served::Broken(peer, cut(&text)));
        self.core.handle_protocol_error(peer, text);
    }

    /// Delegates to [`RepairCore::handle_disconnected`].
    pub fn handle_disconnected(&mut self, peer: PeerId) {
        self.served(|| Served::Disconnected(peer));
        self.core.handle_disconnected(peer);
    }

    /// Delegates to [`RepairCore::handle_timeout`].
    pub fn handle_timeout(&mut self, now: Now) {
        self.now = now.monotonic;
        self.core.handle_timeout(now);
    }

    /// Delegates to [`RepairCore::poll_transmit`].
    pub fn poll_transmit(&mut self, now: Now, out: &mut Vec<u8>) -> Option<Destination> {
        let before = out.len();
        let to = self.core.poll_transmit(now, out)?;
        if let Some(journal) = &mut self.journal {
            journal.given(now.monotonic, to, &out[before..]);
        }
        Some(to)
    }

    /// Delegates to [`RepairCore::poll`].
    pub fn poll(&mut self) -> Option<RepairEvent> {
        let event = self.core.poll()?;
        if self.journal.is_some()
            && let Some(served) = served(&event)
        {
            self.served(|| served);
        }
        Some(event)
    }

    fn served(&mut self, what: impl FnOnce() -> Served) {
        if let Some(journal) = &mut self.journal {
            journal.rare(&NoState, self.now, (EntryKind::Served, 0, 0), &what());
        }
    }
}

impl JournalWriter {
    /// Records output: frames for a peer, or one datagram for all.
    fn given(&mut self, now: Nanos, to: Destination, mut out: &[u8]) {
        let peer = match to {
            Destination::Multicast(channel) => return self.repaired(now, None, channel, out),
            Destination::Peer(peer) => peer,
        };
        while let Ok(Some((channel, message, len))) = Message::read(out, BODY_LEN_MAX_TO_SUBSCRIBER)
        {
            match &message {
                Message::Datagram(bytes) => self.repaired(now, Some(peer), channel, bytes),
                Message::Status(_) => {}
                message => self.frame(EntryKind::Said, now, peer, channel, message),
            }
            out = &out[len..];
        }
    }

    fn repaired(&mut self, now: Nanos, peer: Option<PeerId>, channel: ChannelId, bytes: &[u8]) {
        let Some(header) = bytes.first_chunk::<HEADER_LEN>() else {
            return;
        };
        self.make_room_for_call(&NoState, now);
        let mut body = [0; 8 + HEADER_LEN];
        body[..8].copy_from_slice(&peer.map_or(0, |it| it.0).to_le_bytes());
        body[8..].copy_from_slice(header);
        let to_all = peer.is_none().into();
        self.fixed(now, (EntryKind::Repaired, to_all, channel.0), &body);
    }

    /// Records a frame of up to `FRAMES_LEN_MAX` bytes, without the parts for the application alone.
    fn frame(
        &mut self,
        kind: EntryKind,
        now: Nanos,
        peer: PeerId,
        channel: ChannelId,
        message: &Message<'_>,
    ) {
        let frame = self.frame_of(channel, message);
        if frame.len() <= FRAMES_LEN_MAX {
            let parts = [&peer.0.to_le_bytes()[..], &frame];
            self.long(&NoState, now, (kind, 0, channel.0), parts);
        }
        self.scratch = frame;
    }
}

/// Returns the explanatory part of an event, if any.
fn served(event: &RepairEvent) -> Option<Served> {
    Some(match event {
        RepairEvent::Joined {
            peer,
            name,
            channels,
        } => Served::Joined(*peer, name.clone(), channels.clone()),
        RepairEvent::Left {
            peer,
            name,
            on_purpose,
        } => Served::Left(*peer, name.clone(), *on_purpose),
        RepairEvent::Close {
            peer,
            reason: Some(reason),
        } if reason.is_end() => Served::Closed(*peer, cut(&reason.text)),
        RepairEvent::Close {
            peer,
            reason: Some(reason),
        } => Served::TurnedAway(*peer, cut(&reason.text)),
        RepairEvent::SlowSubscriber {
            peer,
            name,
            channel,
            behind,
        } => Served::Slow(*peer, name.clone(), *channel, *behind),
        _ => return None,
    })
}

fn cut(text: &str) -> String {
    text.chars().take(TEXT_LEN_MAX).collect()
}

#[cfg(test)]
mod tests {
    use tickcast_reliability::control::{RejectCode, Rejected};

    use super::*;

    #[test]
    fn close_at_publishers_end_is_not_a_rejection() {
        let noted = |code| {
            served(&RepairEvent::Close {
                peer: PeerId(7),
                reason: Some(Rejected {
                    code,
                    text: "the reason".into(),
                    retry_after_ms: 0,
                }),
            })
        };
        let reason = || "the reason".to_owned();
        let ended = noted(RejectCode::ShuttingDown);
        assert_eq!(ended, Some(Served::Closed(PeerId(7), reason())));
        let rejected = noted(RejectCode::TooMany);
        assert_eq!(rejected, Some(Served::TurnedAway(PeerId(7), reason())));
    }
}
