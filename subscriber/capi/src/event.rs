//! Events of the stream as a plain struct. Fields that a kind does not use are zero.

use std::ffi::c_char;
use std::ptr::null;

use tickcast_subscriber as rust;
use tickcast_subscriber::{Epoch, Nanos, RecordNumber, Sequence, SequenceRange};
use tickcast_subscriber::{LineId, Loss, Overrun, StreamEvent, StreamState};
use tickcast_subscriber::{SourceId, SourcePosition};

use crate::arguments::{range, write_text};
use crate::error::{Error, number};

/// The kind of an event. Events marked *in order* come exactly at their place in the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum EventKind {
    /// An event that this header does not know.
    Other = 0,
    /// The publisher welcomed us. Delivery begins after `last` (in order).
    Joined = 1,
    /// Everything older has been delivered, and the stream is followed live from here on (in order).
    Live = 2,
    /// The `sequences` from `first` to `last` were missing and arrived after all, within `took_ns`.
    GapRecovered = 3,
    /// The sequences from `first` to `last`, with this many `records`, will never be delivered.
    /// `cause` is a TickcastLossCause (in order).
    Lost = 4,
    /// The publisher itself missed `messages` of `source` from `source_position` on, of these
    /// `instruments` or of all. `cause` is a TickcastSourceLossReason (in order). If `messages` is 0, none is
    /// missing, but the publisher lost the orders that it knew: their books begin anew.
    SourceLost = 5,
    /// The publisher opened this epoch; `cause` is a TickcastEpochReason. The previous epoch is
    /// `from.epoch`, and it ended with `last` (in order).
    EpochOpened = 6,
    /// The epoch changed from `from.epoch` to `to.epoch` (in order).
    EpochChanged = 7,
    /// Nothing arrived from the publisher for three of its announced intervals.
    Stale = 8,
    /// Datagrams of the publisher arrive again.
    Recovered = 9,
    /// Nothing arrived from the publisher for so long that it counts as dead.
    PublisherDead = 10,
    /// `line` went silent while the stream continues elsewhere.
    LineDown = 11,
    /// Datagrams arrive on `line` again.
    LineUp = 12,
    /// The repair connection is established.
    RepairLinkUp = 13,
    /// The repair connection is down and is retried. `cause` is a TickcastLinkDownReason.
    RepairLinkDown = 14,
    /// Multicast does not reach us although the publisher continues to send.
    MulticastLost = 15,
    /// Multicast reaches us again.
    MulticastRestored = 16,
    /// The sequence `first` carried two different contents, or the next datagram does not follow it. See
    /// `wrong_one_delivered`.
    FencingViolation = 17,
    /// The publisher ended the session (in order).
    EndOfSession = 18,
    /// The application is `sequences` behind, which is more than its lag alarm.
    Lagging = 19,
    /// The application's lag is at most half of its lag alarm again.
    CaughtUp = 20,
    /// This reader was too slow: `records` and `events` between `from` and `to` are gone for it. Among them
    /// are losses of `lost_records` and `losses_of_unknown_size`, `epoch_changes`, `source_losses` and
    /// `fencing_violations`. `state` is the current state of the channel, in epoch `to.epoch` (in
    /// order).
    Overrun = 21,
    /// Newer records replaced this many `records` since the last such event (mode LATEST).
    Conflated = 22,
    /// Reserved: a snapshot follows (in order).
    SnapshotBegin = 23,
    /// Reserved: the snapshot is complete (in order).
    SnapshotEnd = 24,
    /// The epoch `to.epoch` continues `from.epoch` after the sequence `last`. This many `records` of the
    /// following ones were delivered before, and are not delivered again (in order).
    EpochContinued = 25,
    /// Another publisher sends to the channel's groups. This many of its datagrams (`sequences`) were
    /// dropped. The event repeats once a minute while they arrive.
    OtherPublisher = 26,
    /// Nothing has arrived of `source` since `since_ns` for several of its venue's heartbeat intervals: these
    /// `instruments` or all of it are old. The event repeats while the silence lasts (in order).
    SourceSilent = 27,
    /// `source`, with these `instruments` or all of it, is heard again. It was silent since `since_ns`; 0 if
    /// that is unknown (in order).
    SourceBack = 28,
    /// An impostor sent what was delivered, or declared lost, beyond the sequence `last`, or nobody confirmed
    /// it before another epoch continued there. All of it is void, `records` delivered ones among it, and
    /// the publisher's own records follow with the same numbers (in order).
    RolledBack = 29,
    /// The loss of the sequences from `first` to `last` cost this many `records`, not `lost_records` as
    /// reported before: a forged datagram beside it misstated them, or another epoch publishes them again.
    LossCorrected = 30,
}

/// Declares an enum of C for one of Rust, with the conversions in both directions.
macro_rules! causes {
    ($(#[$doc:meta])* $name:ident, $other:ty { $($(#[$help:meta])* $variant:ident = $code:literal,)+ }) => {
        impl $name {
            fn code(value: $other) -> u32 {
                #[allow(unreachable_patterns, reason = "some of these may grow")]
                match value {
                    $(<$other>::$variant => Self::$variant as u32,)+
                    _ => 0,
                }
            }

            fn of(code: u32) -> Option<$other> {
                match code {
                    $($code => Some(<$other>::$variant),)+
                    _ => None,
                }
            }
        }
        $(const _: () = assert!($name::$variant as u32 == $code);)+
    };
}

/// The reason why sequences were lost, in `cause`.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub enum LossCause {
    /// The publisher's ring no longer holds them.
    Window = 1,
    /// The delivery deadline passed.
    Deadline = 2,
    /// The gap exceeded the burst limit, and catching up was disabled or not possible.
    Burst = 3,
    /// Their epoch has ended.
    Epoch = 4,
    /// The publisher finally refused to repair them, for another reason.
    Refused = 5,
    /// The publisher is gone, and its repair path with it.
    PublisherDead = 6,
    /// Two publishers sent different content under these sequences.
    Fenced = 7,
    /// Repair is switched off in this subscriber.
    RepairOff = 8,
    /// The application left before they arrived.
    Left = 9,
    /// The publisher sent content that no version of the protocol allows.
    Unreadable = 10,
}

causes! {
    LossCause, rust::LossCause {
        Window = 1, Deadline = 2, Burst = 3, Epoch = 4, Refused = 5, PublisherDead = 6,
        Fenced = 7, RepairOff = 8, Left = 9, Unreadable = 10,
    }
}

/// The reason why the publisher itself lost messages, in `cause`.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub enum SourceLossReason {
    /// The venue's stream had a gap.
    Gap = 1,
    /// The publisher could not keep up.
    Overflow = 2,
    /// Messages could not be read.
    Malformed = 3,
}

causes! {
    SourceLossReason, rust::SourceLossReason { Gap = 1, Overflow = 2, Malformed = 3, }
}

/// The reason why an epoch was opened, in `cause`.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub enum EpochReason {
    /// A first start.
    Fresh = 1,
    /// A restart that could not continue the ring. Either this version does not know the reason, or the
    /// publisher keeps no ring.
    Restart = 2,
    /// A standby took over.
    Promotion = 3,
    /// A restart that found no ring.
    RingGone = 4,
    /// The host was rebooted in the meantime.
    Rebooted = 5,
    /// A restart with another geometry of the ring, or other inputs.
    Reconfigured = 6,
    /// A restart with a live input, which does not repeat what it sent in the meantime.
    LiveInput = 7,
    /// A restart that found a damaged ring.
    RingDamaged = 8,
    /// The previous session had ended.
    SessionEnded = 9,
    /// A restart whose state does not contain the epoch of the ring.
    StateGone = 10,
    /// A restart whose capture file has changed.
    SourceChanged = 11,
}

causes! {
    EpochReason, rust::EpochReason {
        Fresh = 1,
        Restart = 2,
        Promotion = 3,
        RingGone = 4,
        Rebooted = 5,
        Reconfigured = 6,
        LiveInput = 7,
        RingDamaged = 8,
        SessionEnded = 9,
        StateGone = 10,
        SourceChanged = 11,
    }
}

/// The reason why the repair connection is down, in `cause`.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub enum LinkDownReason {
    /// The connection could not be established.
    Unreachable = 1,
    /// The other side or the network closed the connection.
    Closed = 2,
    /// The publisher did not answer our NACKs.
    Unanswered = 3,
    /// The publisher rejected our JOIN.
    Rejected = 4,
    /// The other side broke the protocol.
    Protocol = 5,
    /// The other side offers an epoch that has ended.
    OldEpoch = 6,
    /// This subscriber closed the connection to rejoin a channel.
    Rejoining = 7,
    /// The publisher authenticates a channel and gave no key that this subscriber can use.
    NoKey = 8,
}

causes! {
    LinkDownReason, rust::LinkDownReason {
        Unreachable = 1, Closed = 2, Unanswered = 3, Rejected = 4, Protocol = 5, OldEpoch = 6,
        Rejoining = 7, NoKey = 8,
    }
}

/// A position in the stream of a channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Place {
    /// The epoch of the publisher.
    pub epoch: u64,
    /// The sequence of the datagram.
    pub sequence: u64,
    /// The number of a record.
    pub record: u64,
}

impl From<rust::Place> for Place {
    fn from(place: rust::Place) -> Self {
        Self {
            epoch: place.epoch.0,
            sequence: place.sequence.0,
            record: place.record.0,
        }
    }
}

impl From<Place> for rust::Place {
    fn from(place: Place) -> Self {
        Self {
            epoch: Epoch(place.epoch),
            sequence: Sequence(place.sequence),
            record: RecordNumber(place.record),
        }
    }
}

/// The value of `records` and `messages` for a loss of unknown size.
pub const UNKNOWN: u64 = u64::MAX;

/// In `state`: a publisher has welcomed us.
pub const STATE_JOINED: u32 = 1 << 0;
/// In `state`: the stream is followed live.
pub const STATE_LIVE: u32 = 1 << 1;
/// In `state`: the session has ended, and nothing follows in this epoch.
pub const STATE_ENDED: u32 = 1 << 2;
/// In `state`: nothing arrives from the publisher by multicast.
pub const STATE_STALE: u32 = 1 << 3;
/// In `state`: the publisher counts as dead.
pub const STATE_PUBLISHER_DEAD: u32 = 1 << 4;
/// In `state`: the publisher continues to send, but multicast does not reach us.
pub const STATE_MULTICAST_LOST: u32 = 1 << 5;
/// In `state`: the repair connection is established.
pub const STATE_REPAIR_LINK_UP: u32 = 1 << 6;
/// In `state`: line A is silent while the stream continues elsewhere.
pub const STATE_LINE_A_DOWN: u32 = 1 << 7;
/// In `state`: line B is silent while the stream continues elsewhere.
pub const STATE_LINE_B_DOWN: u32 = 1 << 8;

/// An event of the stream. TickcastEventKind lists the fields of each kind; the other fields are 0.
/// `instruments` is valid during the callback. The other fields can be copied.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Event {
    /// A TickcastEventKind.
    pub kind: u32,
    /// The reason: a value of the enum that the kind names.
    pub cause: u32,
    /// The first sequence concerned.
    pub first: u64,
    /// The last sequence concerned.
    pub last: u64,
    /// The number of sequences.
    pub sequences: u64,
    /// The number of records, or TICKCAST_UNKNOWN.
    pub records: u64,
    /// The time from the detection of a gap to its last repair.
    pub took_ns: u64,
    /// When a silent source was heard last, in UTC nanoseconds.
    pub since_ns: u64,
    /// The start of the range, or the previous epoch.
    pub from: Place,
    /// The end of the range, or the new epoch.
    pub to: Place,
    /// The number of messages that the publisher lost, or TICKCAST_UNKNOWN.
    pub messages: u64,
    /// The position of the first lost message; that of the last message before, if `messages` is 0.
    pub source_position: u64,
    /// The number of overwritten events.
    pub events: u64,
    /// The number of records that losses among the overwritten events declared lost, or that a corrected
    /// loss had before.
    pub lost_records: u64,
    /// The number of those losses whose number of records is unknown.
    pub losses_of_unknown_size: u64,
    /// The number of epoch changes among the overwritten events.
    pub epoch_changes: u64,
    /// The number of source losses among the overwritten events.
    pub source_losses: u64,
    /// The number of fencing violations among the overwritten events.
    pub fencing_violations: u64,
    /// The instruments concerned; NULL for all instruments of the source.
    pub instruments: *const u32,
    /// The number of `instruments`.
    pub instrument_count: u32,
    /// The source of the lost messages, or the one that is silent or back.
    pub source: u16,
    /// The line: A is 0, B is 1.
    pub line: u8,
    /// 1 when the wrong content was already delivered.
    pub wrong_one_delivered: u8,
    /// Bits TICKCAST_STATE_...: the current state of the channel.
    pub state: u32,
    /// Zero.
    pub reserved: u32,
}

impl Place {
    /// Creates a place of an epoch without a position in it.
    fn of_epoch(epoch: Epoch) -> Self {
        Self {
            epoch: epoch.0,
            ..Self::default()
        }
    }
}

impl Event {
    const fn of(kind: EventKind) -> Self {
        const NOWHERE: Place = Place {
            epoch: 0,
            sequence: 0,
            record: 0,
        };
        Self {
            kind: kind as u32,
            cause: 0,
            first: 0,
            last: 0,
            sequences: 0,
            records: 0,
            took_ns: 0,
            since_ns: 0,
            from: NOWHERE,
            to: NOWHERE,
            messages: 0,
            source_position: 0,
            events: 0,
            lost_records: 0,
            losses_of_unknown_size: 0,
            instruments: null(),
            instrument_count: 0,
            source: 0,
            line: 0,
            wrong_one_delivered: 0,
            epoch_changes: 0,
            source_losses: 0,
            fencing_violations: 0,
            state: 0,
            reserved: 0,
        }
    }

    /// Lends it the names of instruments; none means all.
    const fn naming(self, instruments: &[u32]) -> Self {
        Self {
            instruments: if instruments.is_empty() {
                null()
            } else {
                instruments.as_ptr()
            },
            instrument_count: instruments.len() as u32,
            ..self
        }
    }

    const fn run(self, first: Sequence, last: Sequence) -> Self {
        let (first, last) = (first.0, last.0);
        Self {
            first,
            last,
            ..self
        }
    }
}

impl From<&rust::Event> for Event {
    fn from(event: &rust::Event) -> Self {
        use EventKind as Kind;
        use rust::Event as E;
        match event {
            E::Joined { after } => Self::of(Kind::Joined).run(Sequence(0), *after),
            E::Live => Self::of(Kind::Live),
            E::GapRecovered {
                first,
                sequences,
                took,
            } => Self {
                sequences: *sequences,
                took_ns: took.0,
                ..Self::of(Kind::GapRecovered).run(*first, first.plus(sequences.saturating_sub(1)))
            },
            E::Lost(loss) => Self {
                cause: LossCause::code(loss.cause),
                sequences: loss.sequences.len(),
                records: loss.records.unwrap_or(UNKNOWN),
                ..Self::of(Kind::Lost).run(loss.sequences.first, loss.sequences.last)
            },
            E::Stream(StreamEvent::SourceLost {
                source,
                reason,
                from,
                messages,
                instruments,
            }) => Self {
                cause: SourceLossReason::code(*reason),
                source: source.0,
                source_position: from.0,
                messages: *messages,
                ..Self::of(Kind::SourceLost).naming(instruments)
            },
            E::Stream(StreamEvent::SourceSilent {
                source,
                since,
                instruments,
            }) => Self {
                source: source.0,
                since_ns: since.0,
                ..Self::of(Kind::SourceSilent).naming(instruments)
            },
            E::Stream(StreamEvent::SourceBack {
                source,
                since,
                instruments,
            }) => Self {
                source: source.0,
                since_ns: since.0,
                ..Self::of(Kind::SourceBack).naming(instruments)
            },
            E::Stream(StreamEvent::EpochOpened {
                reason,
                previous,
                previous_last,
            }) => Self {
                cause: EpochReason::code(*reason),
                from: Place::of_epoch(*previous),
                ..Self::of(Kind::EpochOpened).run(Sequence(0), *previous_last)
            },
            E::EpochChanged { from, to } => Self {
                from: Place::of_epoch(*from),
                to: Place::of_epoch(*to),
                ..Self::of(Kind::EpochChanged)
            },
            E::EpochContinued {
                from,
                to,
                last,
                repeated,
            } => Self {
                records: *repeated,
                from: Place::of_epoch(*from),
                to: Place::of_epoch(*to),
                ..Self::of(Kind::EpochContinued).run(Sequence(0), *last)
            },
            E::Stale => Self::of(Kind::Stale),
            E::Recovered => Self::of(Kind::Recovered),
            E::PublisherDead => Self::of(Kind::PublisherDead),
            E::LineDown(line) => Self {
                line: line.0,
                ..Self::of(Kind::LineDown)
            },
            E::LineUp(line) => Self {
                line: line.0,
                ..Self::of(Kind::LineUp)
            },
            E::RepairLinkUp => Self::of(Kind::RepairLinkUp),
            E::RepairLinkDown(reason) => Self {
                cause: LinkDownReason::code(*reason),
                ..Self::of(Kind::RepairLinkDown)
            },
            E::MulticastLost => Self::of(Kind::MulticastLost),
            E::MulticastRestored => Self::of(Kind::MulticastRestored),
            E::FencingViolation {
                sequence,
                wrong_one_delivered,
            } => Self {
                wrong_one_delivered: u8::from(*wrong_one_delivered),
                ..Self::of(Kind::FencingViolation).run(*sequence, *sequence)
            },
            E::RolledBack { after, records } => Self {
                last: after.0,
                records: *records,
                ..Self::of(Kind::RolledBack)
            },
            E::LossCorrected {
                sequences,
                reported,
                records,
            } => Self {
                sequences: sequences.len(),
                records: *records,
                lost_records: *reported,
                ..Self::of(Kind::LossCorrected).run(sequences.first, sequences.last)
            },
            E::OtherPublisher { datagrams } => Self {
                sequences: *datagrams,
                ..Self::of(Kind::OtherPublisher)
            },
            E::EndOfSession => Self::of(Kind::EndOfSession),
            E::Lagging { sequences } => Self {
                sequences: *sequences,
                ..Self::of(Kind::Lagging)
            },
            E::CaughtUp => Self::of(Kind::CaughtUp),
            E::Overrun(overrun) => Self {
                records: overrun.records,
                from: overrun.from.into(),
                to: overrun.to.into(),
                events: overrun.events,
                lost_records: overrun.lost_records,
                losses_of_unknown_size: overrun.losses_of_unknown_size,
                epoch_changes: overrun.epoch_changes,
                source_losses: overrun.source_losses,
                fencing_violations: overrun.fencing_violations,
                state: overrun.state.bits(),
                ..Self::of(Kind::Overrun)
            },
            E::Conflated { records } => Self {
                records: *records,
                ..Self::of(Kind::Conflated)
            },
            E::SnapshotBegin => Self::of(Kind::SnapshotBegin),
            E::SnapshotEnd => Self::of(Kind::SnapshotEnd),
            _ => Self::of(Kind::Other),
        }
    }
}

impl Event {
    /// Converts to the event of Rust, without its instruments, which may be gone. Returns `None` for an
    /// invalid event.
    fn to_rust(self) -> Option<rust::Event> {
        use rust::Event as E;
        const SIMPLE: [(EventKind, rust::Event); 13] = [
            (EventKind::Live, E::Live),
            (EventKind::Stale, E::Stale),
            (EventKind::Recovered, E::Recovered),
            (EventKind::PublisherDead, E::PublisherDead),
            (EventKind::RepairLinkUp, E::RepairLinkUp),
            (EventKind::MulticastLost, E::MulticastLost),
            (EventKind::MulticastRestored, E::MulticastRestored),
            (EventKind::EndOfSession, E::EndOfSession),
            (EventKind::CaughtUp, E::CaughtUp),
            (EventKind::SnapshotBegin, E::SnapshotBegin),
            (EventKind::SnapshotEnd, E::SnapshotEnd),
            (EventKind::LineDown, E::LineDown(LineId(0))),
            (EventKind::LineUp, E::LineUp(LineId(0))),
        ];
        let is = |kind: EventKind| self.kind == kind as u32;
        let (first, last) = (Sequence(self.first), Sequence(self.last));
        let event = if is(EventKind::Joined) {
            E::Joined { after: last }
        } else if is(EventKind::GapRecovered) {
            E::GapRecovered {
                first,
                sequences: self.sequences,
                took: Nanos(self.took_ns),
            }
        } else if is(EventKind::Lost) {
            E::Lost(Loss {
                sequences: SequenceRange::new(first, last)?,
                records: Some(self.records).filter(|records| *records != UNKNOWN),
                cause: LossCause::of(self.cause)?,
            })
        } else if is(EventKind::SourceLost) {
            E::Stream(StreamEvent::SourceLost {
                source: SourceId(self.source),
                reason: SourceLossReason::of(self.cause)?,
                from: SourcePosition(self.source_position),
                messages: self.messages,
                instruments: Vec::new(),
            })
        } else if is(EventKind::SourceSilent) {
            E::Stream(StreamEvent::SourceSilent {
                source: SourceId(self.source),
                since: Nanos(self.since_ns),
                instruments: Vec::new(),
            })
        } else if is(EventKind::SourceBack) {
            E::Stream(StreamEvent::SourceBack {
                source: SourceId(self.source),
                since: Nanos(self.since_ns),
                instruments: Vec::new(),
            })
        } else if is(EventKind::EpochOpened) {
            E::Stream(StreamEvent::EpochOpened {
                reason: EpochReason::of(self.cause)?,
                previous: Epoch(self.from.epoch),
                previous_last: last,
            })
        } else if is(EventKind::EpochChanged) {
            E::EpochChanged {
                from: Epoch(self.from.epoch),
                to: Epoch(self.to.epoch),
            }
        } else if is(EventKind::EpochContinued) {
            E::EpochContinued {
                from: Epoch(self.from.epoch),
                to: Epoch(self.to.epoch),
                last,
                repeated: self.records,
            }
        } else if is(EventKind::LineDown) {
            E::LineDown(LineId(self.line))
        } else if is(EventKind::LineUp) {
            E::LineUp(LineId(self.line))
        } else if is(EventKind::RepairLinkDown) {
            E::RepairLinkDown(LinkDownReason::of(self.cause)?)
        } else if is(EventKind::FencingViolation) {
            E::FencingViolation {
                sequence: first,
                wrong_one_delivered: self.wrong_one_delivered != 0,
            }
        } else if is(EventKind::RolledBack) {
            E::RolledBack {
                after: last,
                records: self.records,
            }
        } else if is(EventKind::LossCorrected) {
            E::LossCorrected {
                sequences: SequenceRange::new(first, last)?,
                reported: self.lost_records,
                records: self.records,
            }
        } else if is(EventKind::OtherPublisher) {
            E::OtherPublisher {
                datagrams: self.sequences,
            }
        } else if is(EventKind::Lagging) {
            E::Lagging {
                sequences: self.sequences,
            }
        } else if is(EventKind::Overrun) {
            E::Overrun(Overrun {
                from: self.from.into(),
                to: self.to.into(),
                records: self.records,
                events: self.events,
                lost_records: self.lost_records,
                losses_of_unknown_size: self.losses_of_unknown_size,
                epoch_changes: self.epoch_changes,
                source_losses: self.source_losses,
                fencing_violations: self.fencing_violations,
                state: StreamState::from_bits(self.state),
            })
        } else if is(EventKind::Conflated) {
            E::Conflated {
                records: self.records,
            }
        } else {
            SIMPLE.into_iter().find(|(kind, _)| is(*kind))?.1
        };
        Some(event)
    }
}

/// Writes an event as one line of text. The event may be a copy.
///
/// # Safety
/// `text` is NULL or has `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tickcast_event_text(
    event: Option<&Event>,
    text: *mut c_char,
    size: usize,
) -> i64 {
    number(|| {
        let event = event.ok_or(Error::Null { what: "event" })?;
        let known = match event.to_rust() {
            Some(event) => event.to_string(),
            None if event.kind == EventKind::Other as u32 => {
                "an event that this library can't describe".into()
            }
            None => range("event", event.kind, "an event that a callback was given")?,
        };
        // SAFETY: as for `write_text`.
        Ok(unsafe { write_text(&known, text, size) })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tickcast_subscriber::Event as E;

    #[test]
    fn event_conversion_to_c_and_back_is_lossless() {
        let place = |n| rust::Place {
            epoch: Epoch(n),
            sequence: Sequence(n + 1),
            record: RecordNumber(n + 2),
        };
        let range = |first, last| SequenceRange::new(Sequence(first), Sequence(last)).unwrap();
        let lost = |cause, records| {
            E::Lost(Loss {
                sequences: range(3, 9),
                records,
                cause,
            })
        };
        let mut all = vec![
            E::Joined { after: Sequence(7) },
            E::Live,
            E::GapRecovered {
                first: Sequence(5),
                sequences: 4,
                took: Nanos(77_000),
            },
            E::EpochChanged {
                from: Epoch(1),
                to: Epoch(2),
            },
            E::EpochContinued {
                from: Epoch(1),
                to: Epoch(2),
                last: Sequence(8),
                repeated: 3,
            },
            E::Stale,
            E::Recovered,
            E::PublisherDead,
            E::LineDown(LineId(1)),
            E::LineUp(LineId(1)),
            E::RepairLinkUp,
            E::MulticastLost,
            E::MulticastRestored,
            E::FencingViolation {
                sequence: Sequence(8),
                wrong_one_delivered: true,
            },
            E::RolledBack {
                after: Sequence(8),
                records: 5,
            },
            E::LossCorrected {
                sequences: range(3, 9),
                reported: 5,
                records: 7,
            },
            E::EndOfSession,
            E::OtherPublisher { datagrams: 9 },
            E::Lagging { sequences: 12 },
            E::CaughtUp,
            E::Overrun(Overrun {
                from: place(10),
                to: place(20),
                records: 1,
                events: 2,
                lost_records: 3,
                losses_of_unknown_size: 4,
                epoch_changes: 5,
                source_losses: 6,
                fencing_violations: 7,
                state: StreamState::from_bits(0b1_0101_0101),
            }),
            E::Conflated { records: 6 },
            E::SnapshotBegin,
            E::SnapshotEnd,
            lost(rust::LossCause::Window, None),
        ];
        all.extend(rust::LossCause::ALL.map(|cause| lost(cause, Some(5))));
        for reason in [1, 2, 3] {
            all.push(E::Stream(StreamEvent::SourceLost {
                source: SourceId(2),
                reason: SourceLossReason::of(reason).unwrap(),
                from: SourcePosition::new(1, 9),
                messages: 11,
                instruments: Vec::new(),
            }));
        }
        let (source, since) = (SourceId(2), Nanos(77));
        for event in [
            StreamEvent::SourceSilent {
                source,
                since,
                instruments: Vec::new(),
            },
            StreamEvent::SourceBack {
                source,
                since,
                instruments: Vec::new(),
            },
        ] {
            all.push(E::Stream(event));
        }
        for reason in rust::EpochReason::ALL {
            all.push(E::Stream(StreamEvent::EpochOpened {
                reason,
                previous: Epoch(3),
                previous_last: Sequence(99),
            }));
        }
        all.extend((1..=7).map(|code| E::RepairLinkDown(LinkDownReason::of(code).unwrap())));
        let mut kinds = std::collections::BTreeSet::new();
        for event in all {
            let c = Event::from(&event);
            assert_eq!(c.to_rust().as_ref(), Some(&event));
            kinds.insert(c.kind);
        }
        assert!(kinds.into_iter().eq(1..=30), "every kind was among them");
        assert_eq!(Event::of(EventKind::Other).to_rust(), None);
        let wild = Event {
            kind: 4,
            cause: 99,
            ..Event::of(EventKind::Lost)
        };
        assert_eq!(wild.to_rust(), None);
    }

    #[test]
    fn state_bits_follow_their_events() {
        let mut state = StreamState::default();
        let mut expected = 0;
        for (bit, event) in [
            (
                // A joined subscriber was welcomed over the repair connection.
                STATE_JOINED | STATE_REPAIR_LINK_UP,
                E::Joined { after: Sequence(0) },
            ),
            (STATE_LIVE, E::Live),
            (STATE_ENDED, E::EndOfSession),
            (STATE_STALE, E::Stale),
            (STATE_MULTICAST_LOST, E::MulticastLost),
            (STATE_PUBLISHER_DEAD, E::PublisherDead),
            (STATE_LINE_A_DOWN, E::LineDown(LineId(0))),
            (STATE_LINE_B_DOWN, E::LineDown(LineId(1))),
        ] {
            state.follow(&event);
            expected |= bit;
            assert_eq!(state.bits(), expected, "{event}");
        }
        state.follow(&E::RepairLinkDown(rust::LinkDownReason::Closed));
        assert_eq!(state.bits(), expected & !STATE_REPAIR_LINK_UP);
        let dead = STATE_PUBLISHER_DEAD;
        state.follow(&E::RepairLinkUp);
        assert_eq!(state.bits(), expected & !dead, "who answers is not dead");
    }

    #[test]
    fn instruments_are_lent_where_some_are_named() {
        let lost = |instruments| {
            E::Stream(StreamEvent::SourceLost {
                source: SourceId(2),
                reason: rust::SourceLossReason::Gap,
                from: SourcePosition(0),
                messages: UNKNOWN,
                instruments,
            })
        };
        let some = lost(vec![4, 5]);
        let c = Event::from(&some);
        assert!(!c.instruments.is_null());
        assert_eq!((c.instrument_count, c.messages), (2, UNKNOWN));
        let c = Event::from(&lost(Vec::new()));
        assert!(c.instruments.is_null() && c.instrument_count == 0);
        let silent = E::Stream(StreamEvent::SourceSilent {
            source: SourceId(2),
            since: Nanos(7),
            instruments: vec![6],
        });
        let c = Event::from(&silent);
        assert_eq!((c.instrument_count, c.source, c.since_ns), (1, 2, 7));
    }
}
