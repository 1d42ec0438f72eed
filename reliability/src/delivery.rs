//! What the application gets: records by reference with their position, and events in order
//! between them. Defined once; logs, metrics and tests read the same.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::loss::Loss;
use crate::record::RecordRef;
use crate::units::{ChannelId, Epoch, Nanos, RecordNumber, Sequence, SourceId, SourcePosition};
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
}

/// Where in the stream a subscriber begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Start {
    /// With the first datagram sent after the publisher's welcome.
    #[default]
    Live,
    /// With the oldest datagram that the publisher's ring still holds.
    Oldest,
    /// With this datagram; what of it the ring no longer holds is declared lost.
    At(Epoch, Sequence),
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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

/// One thing handed to the application.
#[derive(Clone, Copy, Debug)]
pub enum Item<'a> {
    /// A record, valid within the call.
    Record(&'a Position, RecordRef<'a>),
    /// Something that happened to the stream, in order with the records.
    Event(&'a Position, &'a Event),
}

/// Why a connection to the publisher ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
}

/// Something that happened to the stream. Those marked *in order* stand exactly where it happened.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// Another epoch: sequences and records count anew unless it continues (in order).
    EpochChanged {
        /// The epoch followed until now.
        from: Epoch,
        /// The epoch followed from here on.
        to: Epoch,
    },
    /// Nothing was heard of the publisher for three of its announced intervals.
    Stale,
    /// It is heard again.
    Fresh,
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
                write!(f, "source {source} lost {messages} messages from {from}")
            }
            Self::Stream(StreamEvent::EpochOpened {
                reason, previous, ..
            }) => {
                write!(f, "epoch opened ({reason:?}), before it {previous}")
            }
            Self::EpochChanged { from, to } => write!(f, "epoch changed from {from} to {to}"),
            Self::Stale => f.write_str("stale"),
            Self::Fresh => f.write_str("fresh"),
            Self::PublisherDead => f.write_str("publisher dead"),
            Self::LineDown(line) => write!(f, "line {line} down"),
            Self::LineUp(line) => write!(f, "line {line} up"),
            Self::RepairLinkUp => f.write_str("repair link up"),
            Self::RepairLinkDown(reason) => write!(f, "repair link down ({reason:?})"),
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
            Self::EndOfSession => f.write_str("end of session"),
        }
    }
}
