//! The application's view: records by reference with their position, and events in order
//! between them. Logs, metrics and tests use the same definitions.

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

/// Delivery order, and how long to wait for repair (docs/PROTOCOL.md §7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Delivery {
    /// By sequence. A gap ends when it is repaired or the publisher declares it lost.
    #[default]
    Ordered,
    /// By sequence. A gap that is not repaired within this span is declared lost.
    OrderedWithin(Nanos),
    /// Immediately, in the order of arrival, each datagram once.
    Arrival,
    /// Like [`Delivery::Ordered`], but conflated on the way to the application. The application gets the
    /// newest quote, trade and status of each changed instrument, and the number of records that each
    /// stands for.
    Latest,
}

impl Delivery {
    /// Returns whether delivery waits until a gap is repaired or the publisher declares it lost.
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
    /// Maximum number of lines of a channel.
    pub const MAX: usize = 2;
}

impl fmt::Display for LineId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", char::from(b'A'.saturating_add(self.0)))
    }
}

/// The path on which a datagram arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Via {
    /// By multicast, on this line.
    Line(LineId),
    /// Over the repair or replay connection.
    Repair,
}

/// Facts about a record that the application should know. The record itself is never altered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Quality {
    /// The datagram was missing before it arrived.
    pub repaired: bool,
    /// An earlier sequence had not been delivered when this one was (`arrival` only).
    pub out_of_order: bool,
    /// The channel had a loss since the application last saw it complete.
    pub after_loss: bool,
    /// Number of older records that this one replaces (`latest` only).
    pub conflated: u32,
}

/// Position of an item in the stream, and the path on which it arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The channel of the sequence space.
    pub channel: ChannelId,
    /// The publisher's incarnation.
    pub epoch: Epoch,
    /// Sequence of the datagram. For an event without a datagram: the last sequence delivered before it.
    pub sequence: Sequence,
    /// Number of the record; for an event, of the next record.
    pub record: RecordNumber,
    /// The path on which it arrived.
    pub via: Via,
    /// Facts about the record.
    pub quality: Quality,
    /// The source of the message.
    pub source: SourceId,
    /// Position of the last complete source message in its datagram.
    pub source_position: SourcePosition,
    /// When its datagram was sealed, UTC by the publisher's clock.
    pub sent_at: Nanos,
    /// When its datagram was received, protocol time (monotonic).
    pub received_at: Nanos,
    /// How long it had been missing; zero when it was not missing.
    pub missing_for: Nanos,
}

impl Position {
    /// Returns the line on which it arrived; `None` for the repair or replay connection.
    #[must_use]
    pub const fn line(&self) -> Option<LineId> {
        match self.via {
            Via::Line(line) => Some(line),
            Via::Repair => None,
        }
    }

    /// Returns the place in the stream of this position.
    #[must_use]
    pub const fn place(&self) -> Place {
        Place {
            epoch: self.epoch,
            sequence: self.sequence,
            record: self.record,
        }
    }

    /// Calls `on` with each record and its position. `self` is the position of the first.
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
    /// Sequence of the datagram.
    pub sequence: Sequence,
    /// Number of the record.
    pub record: RecordNumber,
}

/// Items that a slow reader never saw, exact to the record: they were delivered and overwritten before
/// the reader took them. The items read and all overruns together add up to the items delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overrun {
    /// Where the reader was: its last datagram, perhaps read in part, and the next record.
    pub from: Place,
    /// Where the reader continues: the last overwritten datagram, perhaps overwritten in part, and the
    /// next record.
    pub to: Place,
    /// Number of overwritten records.
    pub records: u64,
    /// Number of overwritten events.
    pub events: u64,
    /// Records declared lost by the [`Event::Lost`]s among those events.
    pub lost_records: u64,
    /// Number of those losses whose number of records is unknown.
    pub losses_of_unknown_size: u64,
    /// Number of overwritten events that changed the epoch. The current epoch is `to.epoch`.
    pub epoch_changes: u64,
    /// Number of overwritten events that reported a loss of a source at the publisher.
    pub source_losses: u64,
    /// Number of overwritten [`Event::FencingViolation`]s, [`Event::RolledBack`]s and
    /// [`Event::LossCorrected`]s.
    pub fencing_violations: u64,
    /// State of the channel at `to`. It includes every change in the overwritten events.
    pub state: StreamState,
}

impl Overrun {
    /// Returns the affected datagrams, the first and last perhaps only in part. Returns `None` when they
    /// belong to different epochs.
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
            write!(f, ", including losses of {} records", self.lost_records)?;
        }
        write!(f, "; now {}", self.state)
    }
}

/// An item delivered to the application.
#[derive(Clone, Copy, Debug)]
pub enum Item<'a> {
    /// A record, valid within the call.
    Record(&'a Position, RecordRef<'a>),
    /// An event of the stream, in order with the records.
    Event(&'a Position, &'a Event),
}

/// Receives the delivered items. Records come in runs, so that a receiver can process the fields common
/// to all records of a datagram once. A closure receives the items one by one.
pub trait Deliver {
    /// Receives an item.
    fn item(&mut self, item: Item<'_>);

    /// Receives consecutive records; `first` is the position of the first of them.
    #[inline]
    fn records(&mut self, first: &Position, records: Records<'_>) {
        self.one_by_one(first, records);
    }

    /// Passes the records to [`item`](Self::item) one by one: for implementations of
    /// [`records`](Self::records) without a special case for a run.
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

impl Deliver for &mut dyn Deliver {
    #[inline]
    fn item(&mut self, item: Item<'_>) {
        (**self).item(item);
    }

    #[inline]
    fn records(&mut self, first: &Position, records: Records<'_>) {
        (**self).records(first, records);
    }
}

/// Why a connection to the publisher ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LinkDownReason {
    /// The connection could not be established.
    Unreachable,
    /// The other side or the network closed it.
    Closed,
    /// The publisher did not answer our NACKs.
    Unanswered,
    /// The publisher rejected our JOIN.
    Rejected,
    /// The other side violated the protocol.
    Protocol,
    /// The other side offers an outdated epoch.
    OldEpoch,
    /// We closed it to rejoin a channel.
    Rejoining,
    /// The publisher authenticates a channel and gave us no key that we can use.
    NoKey,
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
            Self::NoKey => "no key of an authenticated channel",
        })
    }
}

/// An event of the stream. Events marked *in order* stand exactly where they happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Event {
    /// The publisher accepted the JOIN: delivery begins after `after` (in order). Emitted again for a
    /// subscriber that begins with the oldest datagram, if the ring moved on before the first one arrived.
    Joined {
        /// The sequence before the first one to be delivered.
        after: Sequence,
    },
    /// All older datagrams are delivered; the stream is live from here on (in order).
    Live,
    /// A run of missing sequences arrived after all.
    GapRecovered {
        /// First sequence of the run.
        first: Sequence,
        /// Its length in sequences.
        sequences: u64,
        /// From detection to the arrival of the last sequence of the run.
        took: Nanos,
    },
    /// These sequences will never be delivered (in order).
    Lost(Loss),
    /// The publisher itself lost messages of a source, hears nothing of it or hears it again, or opened an
    /// epoch (in order).
    Stream(StreamEvent),
    /// The stream changed to another epoch, or the channel's name to another number (in order).
    /// Sequences and record numbers restart unless the epoch continues the old one. Instrument ids may have
    /// another meaning.
    EpochChanged {
        /// The epoch until now.
        from: Epoch,
        /// The epoch from here on.
        to: Epoch,
    },
    /// Another epoch continues the current one (in order, behind `last`). Sequences and record numbers
    /// continue behind `last`; datagrams of the old epoch beyond it are invalid.
    EpochContinued {
        /// The epoch until now.
        from: Epoch,
        /// The epoch from here on.
        to: Epoch,
        /// The last valid sequence of the old epoch.
        last: Sequence,
        /// Number of following records that were already delivered from the old epoch. They are not repeated.
        repeated: u64,
    },
    /// The publisher was silent for three of its announced intervals.
    Stale,
    /// The publisher is heard again. After [`Event::MulticastLost`], follows [`Event::MulticastRestored`].
    Recovered,
    /// The publisher was silent for so long that it counts as dead.
    PublisherDead,
    /// This line is silent while the stream arrives elsewhere.
    LineDown(LineId),
    /// This line is heard again.
    LineUp(LineId),
    /// The repair connection was established.
    RepairLinkUp,
    /// The repair connection ended; it is retried.
    RepairLinkDown(LinkDownReason),
    /// Multicast does not arrive although the publisher is alive. The receiver rejoins the group and follows
    /// the stream over the repair connection meanwhile.
    MulticastLost,
    /// Multicast arrives again.
    MulticastRestored,
    /// One sequence had two different contents, or the next datagram does not follow it: probably, another
    /// publisher uses our epoch. The publisher's copy decides, if it comes.
    FencingViolation {
        /// The sequence in question.
        sequence: Sequence,
        /// Whether the delivered content was contradicted by the repair path.
        wrong_one_delivered: bool,
    },
    /// The publisher never sent what was delivered, or declared lost, beyond a sequence: an impostor did. Or
    /// another epoch continues there, and nobody confirmed what came beyond. All of it is void, and the
    /// publisher's own records follow with the same numbers (in order).
    RolledBack {
        /// The last sequence that stands.
        after: Sequence,
        /// Number of delivered records that are void.
        records: u64,
    },
    /// The number of records of an [`Event::Lost`] was wrong: a forged datagram beside the loss misstated it,
    /// and the publisher's copy came. Or another epoch continues there and publishes its records again, in
    /// which case [`Event::EpochContinued`] follows.
    LossCorrected {
        /// The sequences of the loss, as they were reported.
        sequences: SequenceRange,
        /// The number of records reported until now.
        reported: u64,
        /// The right number of records.
        records: u64,
    },
    /// The publisher ended the session; nothing follows in this epoch (in order).
    EndOfSession,
    /// The application lags behind the publisher by more than its configured alarm.
    Lagging {
        /// Distance from the last sequence delivered to the newest one known.
        sequences: u64,
    },
    /// The lag fell to at most half of the alarm.
    CaughtUp,
    /// This reader was too slow: the items that it did not read in time are gone (in order).
    Overrun(Overrun),
    /// Records were replaced by newer ones of their instrument since the last such event (`latest` only,
    /// at most once a second).
    Conflated {
        /// Number of replaced records.
        records: u64,
    },
    /// Reserved: the start of a snapshot of the state before the stream (in order).
    SnapshotBegin,
    /// Reserved: the snapshot is complete, the stream follows (in order).
    SnapshotEnd,
    /// Datagrams of another publisher arrive on the channel's groups and are dropped: of an unknown
    /// sender, or of an epoch that the publisher does not confirm. Emitted once a minute while they
    /// arrive.
    OtherPublisher {
        /// Number of such datagrams since the first.
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
                messages: 0,
                ..
            }) => write!(f, "order books of source {source} begin anew"),
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
            Self::Stream(StreamEvent::SourceSilent { source, since, .. }) => {
                write!(
                    f,
                    "source {source} silent, last heard at {} ns UTC",
                    since.0
                )
            }
            Self::Stream(StreamEvent::SourceBack { source, since, .. })
                if *since == Nanos::ZERO =>
            {
                write!(
                    f,
                    "source {source} heard; the time of a silence before is unknown"
                )
            }
            Self::Stream(StreamEvent::SourceBack { source, since, .. }) => {
                write!(f, "source {source} back, silent since {} ns UTC", since.0)
            }
            Self::Stream(StreamEvent::EpochOpened {
                reason, previous, ..
            }) => {
                write!(f, "epoch opened ({reason}), previous epoch {previous}")
            }
            Self::EpochChanged { from, to } => write!(f, "epoch changed from {from} to {to}"),
            Self::EpochContinued {
                from,
                to,
                last,
                repeated,
            } => {
                write!(f, "epoch {from} continued by {to} after {last}")?;
                match repeated {
                    0 => Ok(()),
                    _ => write!(f, ", {repeated} of its records were already delivered"),
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
                    ", the wrong content was delivered"
                } else {
                    ""
                }
            ),
            Self::RolledBack { after, records } => {
                write!(
                    f,
                    "rolled back to {after}, {records} records were an impostor's"
                )
            }
            Self::LossCorrected {
                sequences,
                reported,
                records,
            } => write!(
                f,
                "the loss of {sequences} is {records} records, not {reported}"
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

    // Logs and tools show these texts; programs match on the variants.
    #[test]
    fn overrun_sequence_range_exists_within_one_epoch_only() {
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
        assert!(
            overrun
                .to_string()
                .contains(", including losses of 0 records")
        );
        overrun.to = place(2, 7, 70);
        overrun.lost_records = 3;
        overrun.state.follow(&Event::Joined { after: Sequence(1) });
        overrun.state.follow(&Event::Stale);
        let down = Event::RepairLinkDown(LinkDownReason::Closed);
        overrun.state.follow(&down);
        assert_eq!(overrun.sequences(), None);
        let text = "40 records and 1 events overwritten between sequences 5 and 7 (epochs 1 to \
                    2), including losses of 3 records; now joined, stale, no repair link";
        assert_eq!(overrun.to_string(), text);
        let json = serde_json::to_string(&Event::Overrun(overrun)).unwrap();
        let back: Event = serde_json::from_str(&json).unwrap();
        assert_eq!(back, Event::Overrun(overrun));
    }

    #[test]
    fn event_text_describes_its_content() {
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
        let silent = Event::Stream(StreamEvent::SourceSilent {
            source: SourceId(2),
            since: Nanos(9),
            instruments: vec![],
        });
        let back = |since| {
            Event::Stream(StreamEvent::SourceBack {
                source: SourceId(2),
                since: Nanos(since),
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
            (silent, "source 2 silent, last heard at 9 ns UTC"),
            (back(9), "source 2 back, silent since 9 ns UTC"),
            (
                back(0),
                "source 2 heard; the time of a silence before is unknown",
            ),
            (opened, "epoch opened (restart), previous epoch 4"),
            (changed, "epoch changed from 4 to 5"),
            (continued(0), "epoch 4 continued by 5 after 9"),
            (
                continued(3),
                "epoch 4 continued by 5 after 9, 3 of its records were already delivered",
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
                "fencing violation at 6, the wrong content was delivered",
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
