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
use tickcast_reliability::serve::{Destination, PeerId, RepairCore, RepairEvent, RepairInput};
use tickcast_reliability::types::State;
use tickcast_reliability::types::{ChannelId, Nanos, Now};
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

    /// Notes an input and gives it to [`RepairCore::handle`].
    #[inline]
    pub fn handle(&mut self, now: Now, input: RepairInput<'_>) -> usize {
        self.now = now.monotonic;
        if let Some(journal) = &mut self.journal {
            journal.repair_input(now.monotonic, &input);
        }
        self.core.handle(now, input)
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
        if let Some(journal) = &mut self.journal
            && let Some(served) = served(&event)
        {
            journal.served(self.now, &served);
        }
        Some(event)
    }
}

impl JournalWriter {
    /// Writes the entry of an input, if the input explains anything.
    #[inline]
    fn repair_input(&mut self, now: Nanos, input: &RepairInput<'_>) {
        match *input {
            RepairInput::Message(_, _, Message::Progress(_) | Message::Latency(_)) => {}
            RepairInput::Message(peer, channel, message) => {
                self.frame(EntryKind::Heard, now, peer, channel, message);
            }
            RepairInput::Connected(peer, ..) => self.served(now, &Served::Connected(peer)),
            RepairInput::Malformed(peer, text) => {
                self.served(now, &Served::Broken(peer, cut(text)));
            }
            RepairInput::Disconnected(peer) => self.served(now, &Served::Disconnected(peer)),
            RepairInput::Backlog(..)
            | RepairInput::InFlight(..)
            | RepairInput::Written(..)
            | RepairInput::Unwritable(_)
            | RepairInput::Timeout => {}
        }
    }

    fn served(&mut self, now: Nanos, served: &Served) {
        self.rare(&NoState, now, (EntryKind::Served, 0, 0), served);
    }

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
    use std::sync::Arc;

    use tickcast_reliability::control::{NackClass, Progress, RejectCode, Rejected};
    use tickcast_reliability::serve::{Carrier, RepairConfig};
    use tickcast_reliability::types::{Epoch, PeerOrigin, Sequence, SequenceRange};

    use super::*;
    use crate::layout::JOURNAL_LEN_MIN;
    use crate::{EntryBody, Journal, JournalOrigin, JournalSide};

    #[test]
    fn inputs_that_explain_are_noted_in_order() {
        let (peer, channel) = (PeerId(7), ChannelId(4));
        let nack = Message::Nack {
            epoch: Epoch(9),
            class: NackClass::Repair,
            ranges: vec![SequenceRange::one(Sequence(3))],
        };
        let progress = Message::Progress(Progress {
            epoch: Epoch(9),
            sequence: Sequence(3),
            lost_records: 0,
            heard: Sequence(3),
            sent_at: Nanos(1),
            read_bytes: 0,
        });
        let origin = PeerOrigin::V4([10, 0, 0, 1].into());
        let inputs = [
            RepairInput::Connected(peer, Carrier::Tcp, origin),
            RepairInput::InFlight(peer, 0),
            RepairInput::Message(peer, channel, &progress),
            RepairInput::Message(peer, channel, &nack),
            RepairInput::Malformed(peer, "no message"),
            RepairInput::Backlog(peer, 1),
            RepairInput::Written(peer, 1),
            RepairInput::Unwritable(peer),
            RepairInput::Timeout,
            RepairInput::Disconnected(peer),
        ];
        let at = |step: usize| Now {
            monotonic: Nanos(1_000 + step as u64),
            utc: Nanos(1),
        };
        let (config, none) = (RepairConfig::default(), (Vec::new(), Arc::default()));
        let core = RepairCore::new(config, "p".into(), none.0, none.1, [7; 32], at(0));
        let mut server = JournaledServer::new(core);
        let began = JournalOrigin {
            began: at(0).monotonic,
            side: JournalSide::Repair,
            ..JournalOrigin::default()
        };
        server
            .keep_journal(JournalWriter::new(Box::new(vec![0; JOURNAL_LEN_MIN]), &began).unwrap());
        for (step, input) in inputs.into_iter().enumerate() {
            server.handle(at(step), input);
        }
        let journal = Journal::read(server.take_journal().unwrap().into_bytes()).unwrap();
        let noted = journal.entries().map(|entry| {
            let entry = entry.unwrap();
            let text = match entry.what {
                EntryBody::Heard(of, on, message) => {
                    assert_eq!((of, on, &message), (peer, channel, &nack));
                    "NACK".to_owned()
                }
                EntryBody::Served(served) => format!("{served:?}"),
                body => panic!("{body:?}"),
            };
            (entry.at.0 - 1_000, text)
        });
        let expected = [
            (0, "Connected(PeerId(7))".to_owned()),
            (3, "NACK".to_owned()),
            (4, "Broken(PeerId(7), \"no message\")".to_owned()),
            (9, "Disconnected(PeerId(7))".to_owned()),
        ];
        assert_eq!(noted.collect::<Vec<_>>(), expected);
    }

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
