//! What the application gets: records by reference with their position, and events in order
//! between them. Defined once; logs, metrics and tests read the same.

mod loss;
mod stream_state;

pub use self::loss::{Loss, LossCause};
pub use self::stream_state::StreamState;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::record::{RecordRef, Records};
use crate::types::{
    ChannelId, Epoch, MessageCount, Nanos, RecordNumber, Sequence, SequenceRange, SourceId,
    SourcePosition,
};
use crate::wire::StreamEvent;

/// In which order, and how long to wait (docs/PROTOCOL.md §7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Delivery {
    /// Strictly by sequence; a gap ends by repair or by the publisher's word.
    #[default]
    Ordered,
    /// Strictly by sequence; a gap that is not repaired within this span is declared lost.
    OrderedWithin(Nanos),
    /// At once, in the order of arrival; each datagram once.
    Arrival,
    /// As [`Delivery::Ordered`], and conflated on the way to the application: it is given the
    /// newest quote, trade and status of each instrument that changed, and how many records each
    /// of them stands for.
    Latest,
}

impl Delivery {
    /// Whether a gap is waited for until it is repaired or the publisher says that it is lost.
    #[must_use]
    pub const fn waits_for_repair(self) -> bool {
        matches!(self, Self::Ordered | Self::Latest)
    }
}

/// One of the networks that carry the same ring: 0 is line A, 1 is line B.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LineId(pub u8);

impl LineId {
    /// How many lines a channel can have.
    pub const MAX: usize = 2;
}

impl fmt::Display for LineId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", char::from(b'A'.saturating_add(self.0)))
    }
}

/// How a datagram reached us.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Via {
    /// By multicast, on this line.
    Line(LineId),
    /// Over the repair or replay connection.
    Repair,
}

/// What the application should know beside the record; the record itself is never altered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Quality {
    /// It was missing before it came.
    pub repaired: bool,
    /// An earlier sequence had not been delivered when this one was (`arrival` only).
    pub out_of_order: bool,
    /// Something of this channel was lost since the application last saw it whole.
    pub after_loss: bool,
    /// How many older records this one stands for as well (`latest` only).
    pub conflated: u32,
}

/// Where an item stands, and how it came here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Whose sequence space.
    pub channel: ChannelId,
    /// The publisher's incarnation.
    pub epoch: Epoch,
    /// The datagram. For an event that is no datagram: the last one delivered before it.
    pub sequence: Sequence,
    /// Number of the record; for an event, of the next one to come.
    pub record: RecordNumber,
    /// How it reached us.
    pub via: Via,
    /// What to know beside it.
    pub quality: Quality,
    /// Whose message it is.
    pub source: SourceId,
    /// Position of the last complete source message in its datagram.
    pub source_position: SourcePosition,
    /// When its datagram was sealed, UTC by the publisher's clock.
    pub sent_at: Nanos,
    /// When its datagram was received, protocol time (monotonic).
    pub received_at: Nanos,
    /// How long it had been missing; zero when it never was.
    pub missing_for: Nanos,
}

impl Position {
    /// The line it came on; `None` when it came over the repair or replay connection.
    #[must_use]
    pub const fn line(&self) -> Option<LineId> {
        match self.via {
            Via::Line(line) => Some(line),
            Via::Repair => None,
        }
    }

    /// The place in the stream that it stands at.
    #[must_use]
    pub const fn place(&self) -> Place {
        Place {
            epoch: self.epoch,
            sequence: self.sequence,
            record: self.record,
        }
    }

    /// Calls `on` with each of these records and its position; this is the first one's.
    #[inline]
    pub fn each<'r>(
        mut self,
        records: impl Iterator<Item = RecordRef<'r>>,
        mut on: impl FnMut(&Self, RecordRef<'r>),
    ) {
        for record in records {
            on(&self, record);
            self.record = self.record.plus(1);
        }
    }
}

/// A place in the stream of a channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Place {
    /// The publisher's incarnation.
    pub epoch: Epoch,
    /// The datagram.
    pub sequence: Sequence,
    /// The number of a record.
    pub record: RecordNumber,
}

/// What a reader that was too slow never saw, to the record: it was delivered, and overwritten
/// before this reader came to it. What it read and what its overruns say add up to what was
/// delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overrun {
    /// Where it was: its last datagram, which it may have read in part, and the next record.
    pub from: Place,
    /// Where it goes on: the last datagram that was overwritten, the last of it in part maybe, and
    /// the next record.
    pub to: Place,
    /// Records that were overwritten.
    pub records: u64,
    /// Events that were overwritten.
    pub events: u64,
    /// Records that [`Event::Lost`]s among those events declared lost.
    pub lost_records: u64,
    /// How many of those did not know their number of records.
    pub losses_of_unknown_size: u64,
    /// How many of those events changed the epoch; the one that holds now is `to.epoch`.
    pub epoch_changes: u64,
    /// How many of them told that the publisher lost messages of a source.
    pub source_losses: u64,
    /// How many of them were [`Event::FencingViolation`]s.
    pub fencing_violations: u64,
    /// How the channel stands at `to`: whatever of this the reader had not heard of is among those
    /// events.
    pub state: StreamState,
}

impl Overrun {
    /// The datagrams concerned, the first and the last in part maybe; `None` when they are of
    /// different epochs.
    #[must_use]
    pub fn sequences(&self) -> Option<SequenceRange> {
        let same = self.from.epoch == self.to.epoch;
        same.then(|| SequenceRange::new(self.from.sequence, self.to.sequence))
            .flatten()
    }
}

impl fmt::Display for Overrun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (from, to) = (self.from, self.to);
        write!(
            f,
            "{} records and {} events overwritten between sequences {} and {}",
            self.records, self.events, from.sequence, to.sequence
        )?;
        if from.epoch != to.epoch {
            write!(f, " (epochs {} to {})", from.epoch, to.epoch)?;
        }
        if self.lost_records > 0 || self.losses_of_unknown_size > 0 {
            write!(f, ", losses of {} records among them", self.lost_records)?;
        }
        write!(f, "; now {}", self.state)
    }
}

/// One thing handed to the application.
#[derive(Clone, Copy, Debug)]
pub enum Item<'a> {
    /// A record, valid within the call.
    Record(&'a Position, RecordRef<'a>),
    /// Something that happened to the stream, in order with the records.
    Event(&'a Position, &'a Event),
}

/// Takes what a receiver delivers: records by the run, so that what is the same for all records of a
/// datagram is looked at once. A closure takes the items one by one.
pub trait Deliver {
    /// Takes an item.
    fn item(&mut self, item: Item<'_>);

    /// Takes records that follow each other; `first` is the position of the first of them.
    #[inline]
    fn records(&mut self, first: &Position, records: Records<'_>) {
        self.one_by_one(first, records);
    }

    /// Takes these records as items, one after the other: for runs that [`records`](Self::records) makes
    /// nothing of.
    #[inline]
    fn one_by_one(&mut self, first: &Position, records: Records<'_>) {
        first.each(records, |position, record| {
            self.item(Item::Record(position, record));
        });
    }
}

impl<F: FnMut(Item<'_>)> Deliver for F {
    #[inline]
    fn item(&mut self, item: Item<'_>) {
        self(item);
    }
}

/// Why a connection to the publisher ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LinkDownReason {
    /// It could not be established.
    Unreachable,
    /// The other side closed it, or the network did.
    Closed,
    /// Our NACKs stayed unanswered.
    Unanswered,
    /// The publisher rejected our JOIN.
    Rejected,
    /// The other side broke the protocol.
    Protocol,
    /// The other side offers an epoch that is over.
    OldEpoch,
    /// We broke it off to begin a channel anew.
    Rejoining,
}

impl fmt::Display for LinkDownReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unreachable => "unreachable",
            Self::Closed => "closed",
            Self::Unanswered => "NACKs unanswered",
            Self::Rejected => "rejected",
            Self::Protocol => "protocol error",
            Self::OldEpoch => "old epoch",
            Self::Rejoining => "rejoining",
        })
    }
}

/// Something that happened to the stream. Those marked *in order* stand exactly where it happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Event {
    /// The publisher welcomed us: delivery begins after `after` (in order). Told again if, for one who
    /// begins with the oldest, the ring moved on before the first datagram came.
    Joined {
        /// The sequence before the first one to be delivered.
        after: Sequence,
    },
    /// Everything older has been delivered; from here on the stream is followed live (in order).
    Live,
    /// A run of missing sequences came after all.
    GapRecovered {
        /// First sequence of the run.
        first: Sequence,
        /// Its length in sequences.
        sequences: u64,
        /// From detection to the last one of the run.
        took: Nanos,
    },
    /// These will never be delivered (in order).
    Lost(Loss),
    /// The publisher itself lost messages of a source, or opened an epoch (in order).
    Stream(StreamEvent),
    /// Another epoch, or another number for the channel, whose name is followed: sequences and
    /// records count anew unless it continues, and instrument ids may name others (in order).
    EpochChanged {
        /// The epoch followed until now.
        from: Epoch,
        /// The epoch followed from here on.
        to: Epoch,
    },
    /// The epoch followed was continued by another one: sequences and records go on behind `last`,
    /// and what came of the old epoch beyond it counts no more (in order, behind `last`).
    EpochContinued {
        /// The epoch until now.
        from: Epoch,
        /// The epoch from here on.
        to: Epoch,
        /// The last sequence of the old one.
        last: Sequence,
        /// How many of the records that follow had come of the old one: they do not come again.
        repeated: u64,
    },
    /// Nothing was heard of the publisher for three of its announced intervals.
    Stale,
    /// It is heard again. After [`Event::MulticastLost`] it follows [`Event::MulticastRestored`].
    Recovered,
    /// Nothing was heard of the publisher for so long that it counts as dead.
    PublisherDead,
    /// This line went silent while the stream goes on elsewhere.
    LineDown(LineId),
    /// This line is heard again.
    LineUp(LineId),
    /// The repair connection is established.
    RepairLinkUp,
    /// The repair connection is down; it is being tried again.
    RepairLinkDown(LinkDownReason),
    /// Multicast does not reach us although the publisher goes on: the group is joined anew, and
    /// the stream followed over the repair connection meanwhile.
    MulticastLost,
    /// Multicast reaches us again.
    MulticastRestored,
    /// One sequence carried two different contents: another publisher uses our epoch, or worse.
    FencingViolation {
        /// The sequence in question.
        sequence: Sequence,
        /// Whether a content had been delivered already that the repair path then contradicted.
        wrong_one_delivered: bool,
    },
    /// The publisher ended the session; nothing follows in this epoch (in order).
    EndOfSession,
    /// The application is this many sequences behind the publisher, more than it set its alarm to.
    Lagging {
        /// From the last one delivered to the newest one known.
        sequences: u64,
    },
    /// It is behind by no more than half of that again.
    CaughtUp,
    /// This reader was too slow: what it did not read in time is gone for it (in order).
    Overrun(Overrun),
    /// So many records were replaced by newer ones of their instrument since this was told last
    /// (`latest` only, once a second at most).
    Conflated {
        /// How many.
        records: u64,
    },
    /// Reserved: what follows is a snapshot of the state before the stream (in order).
    SnapshotBegin,
    /// Reserved: the snapshot is whole, the stream follows (in order).
    SnapshotEnd,
    /// Datagrams of another publisher keep coming on the channel's groups, which are dropped: an unknown
    /// sender's, or of an epoch that the publisher does not confirm. Told once a minute while they come.
    OtherPublisher {
        /// How many came since the first.
        datagrams: u64,
    },
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Joined { after } => write!(f, "joined after sequence {after}"),
            Self::Live => f.write_str("live"),
            Self::GapRecovered {
                first,
                sequences,
                took,
            } => {
                write!(
                    f,
                    "gap at {first} of {sequences} recovered in {} us",
                    took.as_us()
                )
            }
            Self::Lost(loss) => loss.fmt(f),
            Self::Stream(StreamEvent::SourceLost {
                source,
                messages,
                from,
                ..
            }) => {
                write!(
                    f,
                    "source {source} lost {} from {from}",
                    MessageCount(*messages)
                )
            }
            Self::Stream(StreamEvent::EpochOpened {
                reason, previous, ..
            }) => {
                write!(f, "epoch opened ({reason}), before it {previous}")
            }
            Self::EpochChanged { from, to } => write!(f, "epoch changed from {from} to {to}"),
            Self::EpochContinued {
                from,
                to,
                last,
                repeated,
            } => {
                write!(f, "epoch {from} continued by {to} behind {last}")?;
                match repeated {
                    0 => Ok(()),
                    _ => write!(f, ", {repeated} records of it had come already"),
                }
            }
            Self::Stale => f.write_str("stale"),
            Self::Recovered => f.write_str("recovered"),
            Self::PublisherDead => f.write_str("publisher dead"),
            Self::LineDown(line) => write!(f, "line {line} down"),
            Self::LineUp(line) => write!(f, "line {line} up"),
            Self::RepairLinkUp => f.write_str("repair link up"),
            Self::RepairLinkDown(reason) => write!(f, "repair link down ({reason})"),
            Self::MulticastLost => f.write_str("multicast lost"),
            Self::MulticastRestored => f.write_str("multicast restored"),
            Self::FencingViolation {
                sequence,
                wrong_one_delivered,
            } => write!(
                f,
                "fencing violation at {sequence}{}",
                if *wrong_one_delivered {
                    ", the wrong one had been delivered"
                } else {
                    ""
                }
            ),
            Self::OtherPublisher { datagrams } => write!(
                f,
                "another publisher sends on this channel's groups: {datagrams} datagrams dropped"
            ),
            Self::EndOfSession => f.write_str("end of session"),
            Self::Lagging { sequences } => write!(f, "lagging by {sequences} sequences"),
            Self::CaughtUp => f.write_str("caught up"),
            Self::Overrun(overrun) => overrun.fmt(f),
            Self::Conflated { records } => write!(f, "{records} records conflated"),
            Self::SnapshotBegin => f.write_str("snapshot begins"),
            Self::SnapshotEnd => f.write_str("snapshot ends"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delivery::loss::LossCause;
    use crate::wire::{EpochReason, SourceLossReason};

    /// Logs and tools show these words; a program matches on the variants.
    #[test]
    fn an_overrun_names_its_sequences_within_one_epoch_only() {
        let place = |epoch, sequence, record| Place {
            epoch: Epoch(epoch),
            sequence: Sequence(sequence),
            record: RecordNumber(record),
        };
        let mut overrun = Overrun {
            from: place(1, 5, 50),
            to: place(1, 9, 90),
            records: 40,
            events: 1,
            lost_records: 0,
            losses_of_unknown_size: 0,
            epoch_changes: 0,
            source_losses: 0,
            fencing_violations: 0,
            state: StreamState::default(),
        };
        let range = SequenceRange::new(Sequence(5), Sequence(9));
        assert_eq!(overrun.sequences(), range);
        let text = "40 records and 1 events overwritten between sequences 5 and 9; now not joined";
        assert_eq!(Event::Overrun(overrun).to_string(), text);
        overrun.losses_of_unknown_size = 1;
        assert!(overrun.to_string().contains(", losses of 0 records among"));
        overrun.to = place(2, 7, 70);
        overrun.lost_records = 3;
        overrun.state.follow(&Event::Joined { after: Sequence(1) });
        overrun.state.follow(&Event::Stale);
        let down = Event::RepairLinkDown(LinkDownReason::Closed);
        overrun.state.follow(&down);
        assert_eq!(overrun.sequences(), None);
        let text = "40 records and 1 events overwritten between sequences 5 and 7 (epochs 1 to \
                    2), losses of 3 records among them; now joined, stale, no repair link";
        assert_eq!(overrun.to_string(), text);
        let json = serde_json::to_string(&Event::Overrun(overrun)).unwrap();
        let back: Event = serde_json::from_str(&json).unwrap();
        assert_eq!(back, Event::Overrun(overrun));
    }

    #[test]
    fn every_event_says_in_words_what_happened() {
        let loss = |records| {
            Event::Lost(Loss {
                sequences: SequenceRange {
                    first: Sequence(3),
                    last: Sequence(4),
                },
                records,
                cause: LossCause::PublisherDead,
            })
        };
        let fenced = |wrong_one_delivered| Event::FencingViolation {
            sequence: Sequence(6),
            wrong_one_delivered,
        };
        let recovered = Event::GapRecovered {
            first: Sequence(3),
            sequences: 2,
            took: Nanos::from_us(40),
        };
        let source_lost = |messages| {
            Event::Stream(StreamEvent::SourceLost {
                source: SourceId(2),
                reason: SourceLossReason::Gap,
                from: SourcePosition::new(1, 9),
                messages,
                instruments: vec![],
            })
        };
        let opened = Event::Stream(StreamEvent::EpochOpened {
            reason: EpochReason::Restart,
            previous: Epoch(4),
            previous_last: Sequence(9),
        });
        let changed = Event::EpochChanged {
            from: Epoch(4),
            to: Epoch(5),
        };
        let continued = |repeated| Event::EpochContinued {
            from: Epoch(4),
            to: Epoch(5),
            last: Sequence(9),
            repeated,
        };
        for (event, text) in [
            (
                Event::Joined { after: Sequence(7) },
                "joined after sequence 7",
            ),
            (Event::Live, "live"),
            (recovered, "gap at 3 of 2 recovered in 40 us"),
            (
                loss(Some(8)),
                "sequences 3-4 lost (publisher dead), 8 records",
            ),
            (
                loss(None),
                "sequences 3-4 lost (publisher dead), number of records unknown",
            ),
            (source_lost(5), "source 2 lost 5 messages from 1:9"),
            (
                source_lost(u64::MAX),
                "source 2 lost an unknown number of messages from 1:9",
            ),
            (opened, "epoch opened (restart), before it 4"),
            (changed, "epoch changed from 4 to 5"),
            (continued(0), "epoch 4 continued by 5 behind 9"),
            (
                continued(3),
                "epoch 4 continued by 5 behind 9, 3 records of it had come already",
            ),
            (Event::Stale, "stale"),
            (Event::Recovered, "recovered"),
            (Event::PublisherDead, "publisher dead"),
            (Event::LineDown(LineId(1)), "line B down"),
            (Event::LineUp(LineId(0)), "line A up"),
            (Event::RepairLinkUp, "repair link up"),
            (
                Event::RepairLinkDown(LinkDownReason::Closed),
                "repair link down (closed)",
            ),
            (Event::MulticastLost, "multicast lost"),
            (Event::MulticastRestored, "multicast restored"),
            (fenced(false), "fencing violation at 6"),
            (
                fenced(true),
                "fencing violation at 6, the wrong one had been delivered",
            ),
            (Event::EndOfSession, "end of session"),
            (Event::Lagging { sequences: 9 }, "lagging by 9 sequences"),
            (Event::CaughtUp, "caught up"),
            (Event::Conflated { records: 3 }, "3 records conflated"),
            (
                Event::OtherPublisher { datagrams: 7 },
                "another publisher sends on this channel's groups: 7 datagrams dropped",
            ),
            (Event::SnapshotBegin, "snapshot begins"),
            (Event::SnapshotEnd, "snapshot ends"),
        ] {
            assert_eq!(event.to_string(), text);
        }
        let causes = LossCause::ALL.map(|cause| cause.to_string());
        assert_eq!(
            causes,
            [
                "window",
                "deadline",
                "burst",
                "epoch",
                "refused",
                "publisher dead",
                "fenced",
                "repair off",
                "left",
                "unreadable"
            ]
        );
    }
}
