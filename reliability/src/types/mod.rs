//! The numbers of the protocol. Each is a type of its own, so that an epoch cannot be passed where a
//! sequence is meant.
//!
//! All are plain `u64`/`u16` on the wire, little-endian (docs/PROTOCOL.md §2). Arithmetic saturates
//! explicitly: no operation here wraps.

mod counters;
mod lineage;
mod origin;
mod random;

pub use self::counters::{
    Counter, ReceiverCounters, RepairCounters, RepairServiceCounters, SenderCounters,
};
pub use self::lineage::{Continued, Lineage};
pub use self::origin::PeerOrigin;
pub use self::random::split_mix;

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

number! {
    /// One incarnation of a publisher's stream, strictly increasing: the fencing token.
    /// 0 means "none known yet" and is never published.
    Epoch(u64)
}
number! {
    /// Number of a datagram within (epoch, channel): no gaps, from 1. 0 means "before the first".
    Sequence(u64)
}
number! {
    /// Number of a record within (epoch, channel), from 1. It gives the exact number of records in a gap.
    RecordNumber(u64)
}
number! {
    /// One sequence space with one ring.
    ChannelId(u16)
}
number! {
    /// One input of the publisher: a line pair of an exchange, a simulator, or a custom handler.
    SourceId(u16)
}
number! {
    /// One output of a ring: a multicast socket or a queue pair. Numbered from 0 within a channel.
    FanOutId(u8)
}
number! {
    /// A hash of the parts of a channel's config that must be equal in all processes.
    ConfigHash(u64)
}
number! {
    /// Nanoseconds. As an instant: monotonic protocol time where a rule depends on it, or UTC
    /// since the Unix epoch in stamps that only measure. As a span: a duration.
    Nanos(u64)
}

impl Epoch {
    /// No epoch known yet.
    pub const NONE: Self = Self(0);
}

impl Sequence {
    /// Before the first datagram.
    pub const NONE: Self = Self(0);
    /// The first datagram of a fresh epoch.
    pub const FIRST: Self = Self(1);

    /// Returns the next sequence, saturating at `u64::MAX` (584,000 years at one million datagrams a
    /// second).
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// Returns the sequence before this one, or [`Sequence::NONE`].
    #[must_use]
    pub const fn previous(self) -> Self {
        Self(self.0.saturating_sub(1))
    }

    /// Returns this sequence plus `n`, saturating.
    #[must_use]
    pub const fn plus(self, n: u64) -> Self {
        Self(self.0.saturating_add(n))
    }

    /// Returns this sequence minus `n`, saturating at [`Sequence::NONE`].
    #[must_use]
    pub const fn minus(self, n: u64) -> Self {
        Self(self.0.saturating_sub(n))
    }

    /// Returns the distance from `earlier` to this sequence; 0 when `earlier` is not earlier.
    #[must_use]
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl RecordNumber {
    /// The first record of a fresh epoch.
    pub const FIRST: Self = Self(1);

    /// Returns this number plus `n`, saturating.
    #[must_use]
    pub const fn plus(self, n: u64) -> Self {
        Self(self.0.saturating_add(n))
    }

    /// Returns the number of records from `earlier` to this one; 0 when `earlier` is not earlier.
    #[must_use]
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl Nanos {
    /// Zero nanoseconds.
    pub const ZERO: Self = Self(0);
    /// Later than any timer.
    pub const MAX: Self = Self(u64::MAX);

    /// Returns a span of `us` microseconds.
    #[must_use]
    pub const fn from_us(us: u64) -> Self {
        Self(us.saturating_mul(1_000))
    }

    /// Returns a span of `ms` milliseconds.
    #[must_use]
    pub const fn from_ms(ms: u64) -> Self {
        Self(ms.saturating_mul(1_000_000))
    }

    /// Returns a span of `s` seconds.
    #[must_use]
    pub const fn from_secs(s: u64) -> Self {
        Self(s.saturating_mul(1_000_000_000))
    }

    /// Returns whole microseconds, rounded down.
    #[must_use]
    pub const fn as_us(self) -> u64 {
        self.0 / 1_000
    }

    /// Returns the instant `span` after this one, saturating.
    #[must_use]
    pub const fn after(self, span: Self) -> Self {
        Self(self.0.saturating_add(span.0))
    }

    /// Returns the span since `earlier`; zero when `earlier` is later, so a clock that steps back never
    /// yields a huge span.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }

    /// Returns this span times `n`, saturating.
    #[must_use]
    pub const fn times(self, n: u64) -> Self {
        Self(self.0.saturating_mul(n))
    }
}

/// The current time on the two clocks that the protocol keeps apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Protocol time: monotonic, without a date. Rules and timers depend on it alone.
    pub monotonic: Nanos,
    /// UTC since the Unix epoch: for stamps that only measure.
    pub utc: Nanos,
}

/// A run of sequences, both ends included and `first <= last`: it is never empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Ends")]
pub struct SequenceRange {
    /// First sequence of the run.
    pub first: Sequence,
    /// Last sequence of the run.
    pub last: Sequence,
}

/// A deserialized run before its check.
#[derive(Deserialize)]
struct Ends {
    first: Sequence,
    last: Sequence,
}

impl TryFrom<Ends> for SequenceRange {
    type Error = String;

    fn try_from(Ends { first, last }: Ends) -> Result<Self, String> {
        let wrong = || {
            format!(
                "the range of sequences from {first} to {last} is empty; its last must not be below its first"
            )
        };
        Self::new(first, last).ok_or_else(wrong)
    }
}

impl SequenceRange {
    /// Returns the run from `first` to `last`; `None` when it would be empty.
    #[must_use]
    pub const fn new(first: Sequence, last: Sequence) -> Option<Self> {
        if first.0 <= last.0 {
            Some(Self { first, last })
        } else {
            None
        }
    }

    /// Returns the run of one sequence.
    #[must_use]
    pub const fn one(sequence: Sequence) -> Self {
        Self {
            first: sequence,
            last: sequence,
        }
    }

    /// Returns the number of sequences in the run, at least 1 (saturating for the run of all `u64`).
    #[expect(clippy::len_without_is_empty, reason = "a range is never empty")]
    #[must_use]
    pub const fn len(self) -> u64 {
        (self.last.0 - self.first.0).saturating_add(1)
    }

    /// Returns whether `sequence` lies in the run.
    #[must_use]
    pub const fn contains(self, sequence: Sequence) -> bool {
        self.first.0 <= sequence.0 && sequence.0 <= self.last.0
    }

    /// Returns the part of the run that also lies in `other`.
    #[must_use]
    pub fn intersection(self, other: Self) -> Option<Self> {
        Self::new(self.first.max(other.first), self.last.min(other.last))
    }

    /// Returns the sequences of the run, in order. Also ends correctly at `u64::MAX`.
    pub fn iter(self) -> impl Iterator<Item = Sequence> {
        (self.first.0..=self.last.0).map(Sequence)
    }

    /// Returns whether the run reaches to the end of its epoch, wherever that is: its `last` is `u64::MAX`,
    /// which no datagram has.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        self.last.0 == u64::MAX
    }
}

impl fmt::Display for SequenceRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_open() {
            write!(f, "{} to the end of the epoch", self.first)
        } else if self.first == self.last {
            write!(f, "{}", self.first)
        } else {
            write!(f, "{}-{}", self.first, self.last)
        }
    }
}

/// A number of venue messages on the wire, where `u64::MAX` means unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageCount(pub u64);

impl MessageCount {
    /// The wire value for an unknown number of messages.
    pub const UNKNOWN: Self = Self(u64::MAX);

    /// Returns the number; `None` when it is unknown.
    #[must_use]
    pub const fn known(self) -> Option<u64> {
        match self {
            Self::UNKNOWN => None,
            Self(count) => Some(count),
        }
    }
}

impl fmt::Display for MessageCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.known() {
            None => f.write_str("an unknown number of messages"),
            Some(1) => f.write_str("1 message"),
            Some(count) => write!(f, "{count} messages"),
        }
    }
}

/// Position of a message in a source's stream: the number of session changes or sequence resets before it
/// (16 bits), and the venue's own sequence (48 bits). Ordered as the source published. The positions of
/// one source never decrease (docs/PROTOCOL.md §3, `source_sequence`).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct SourcePosition(pub u64);

impl SourcePosition {
    const SEQUENCE_BITS: u32 = 48;
    /// Highest venue sequence that fits.
    pub const SEQUENCE_MAX: u64 = (1 << Self::SEQUENCE_BITS) - 1;

    /// Joins a session ordinal and a venue sequence. A sequence beyond 48 bits saturates, so that the order
    /// is kept.
    #[must_use]
    pub const fn new(ordinal: u16, sequence: u64) -> Self {
        let sequence = if sequence > Self::SEQUENCE_MAX {
            Self::SEQUENCE_MAX
        } else {
            sequence
        };
        Self(((ordinal as u64) << Self::SEQUENCE_BITS) | sequence)
    }

    /// Returns the position `messages` later in the same session, saturating at 48 bits.
    #[must_use]
    pub const fn plus(self, messages: u64) -> Self {
        Self::new(self.ordinal(), self.sequence().saturating_add(messages))
    }

    /// Returns the number of session changes and sequence resets before this message.
    #[must_use]
    pub const fn ordinal(self) -> u16 {
        (self.0 >> Self::SEQUENCE_BITS) as u16
    }

    /// Returns the venue's sequence of the message.
    #[must_use]
    pub const fn sequence(self) -> u64 {
        self.0 & Self::SEQUENCE_MAX
    }
}

impl fmt::Display for SourcePosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.ordinal(), self.sequence())
    }
}

/// The last sequence of a ring, reserved for END. Data and events stop one before it, so that
/// `sequence + 1` exists wherever the protocol needs it.
pub const SEQUENCE_LAST: Sequence = Sequence(u64::MAX - 1);

/// A core whose state can be serialized and restored elsewhere.
pub trait State: Sized {
    /// The core that is restored from the serialized state.
    type Restored;

    /// Serializes the state to the beginning of `into` and returns its length. Returns `None` when it does
    /// not fit, or when the core has parts that cannot be serialized.
    fn take_down(&self, into: &mut [u8]) -> Option<usize>;

    /// Returns the core that was written down, or `None` when these bytes are no state.
    fn take_up(bytes: &[u8]) -> Option<Self::Restored>;
}

/// Serializes a field as a JSON string, for messages to peers with optional fields.
pub(crate) mod as_json {
    use serde::de::DeserializeOwned;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(crate) fn serialize<T: Serialize, S: Serializer>(it: &T, to: S) -> Result<S::Ok, S::Error> {
        let text = serde_json::to_string(it).map_err(serde::ser::Error::custom)?;
        to.serialize_str(&text)
    }

    pub(crate) fn deserialize<'de, T: DeserializeOwned, D: Deserializer<'de>>(
        from: D,
    ) -> Result<T, D::Error> {
        let text = String::deserialize(from)?;
        serde_json::from_str(&text).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequence_range_is_never_empty_and_its_len_saturates() {
        assert_eq!(SequenceRange::new(Sequence(5), Sequence(4)), None);
        let range = SequenceRange::new(Sequence(u64::MAX - 1), Sequence(u64::MAX)).unwrap();
        assert_eq!(range.len(), 2);
        assert_eq!(range.iter().count(), 2);
        assert_eq!(
            SequenceRange {
                first: Sequence(0),
                last: Sequence(u64::MAX)
            }
            .len(),
            u64::MAX,
            "the run of all sequences saturates instead of wrapping to zero"
        );
    }

    #[test]
    fn sequences_saturate_at_both_ends() {
        assert_eq!(Sequence(u64::MAX).next(), Sequence(u64::MAX));
        assert_eq!(Sequence(0).previous(), Sequence(0));
        assert_eq!(Sequence(1 << 32).since(Sequence((1 << 32) - 1)), 1);
        assert_eq!(Nanos(5).since(Nanos(9)), Nanos::ZERO);
    }

    #[test]
    fn source_position_orders_by_session_before_sequence() {
        let before = SourcePosition::new(1, SourcePosition::SEQUENCE_MAX + 7);
        let after = SourcePosition::new(2, 1);
        assert!(before < after);
        assert_eq!(before.sequence(), SourcePosition::SEQUENCE_MAX);
        assert_eq!((after.ordinal(), after.sequence()), (2, 1));
        assert_eq!(after.to_string(), "2:1");
    }

    #[test]
    fn steps_and_spans_count_exactly() {
        let s = Sequence(10);
        assert_eq!((s.next(), s.previous()), (Sequence(11), Sequence(9)));
        assert_eq!((s.plus(5), s.minus(3)), (Sequence(15), Sequence(7)));
        assert_eq!((s.since(Sequence(4)), s.since(Sequence(11))), (6, 0));
        let r = RecordNumber(10);
        assert_eq!((r.plus(5), r.since(RecordNumber(4))), (RecordNumber(15), 6));
        assert_eq!(Nanos::from_us(3), Nanos(3_000));
        assert_eq!(Nanos::from_ms(3), Nanos(3_000_000));
        assert_eq!(Nanos::from_secs(3), Nanos(3_000_000_000));
        assert_eq!(Nanos(3_999).as_us(), 3);
        assert_eq!(Nanos(7).after(Nanos(5)), Nanos(12));
        assert_eq!(
            (Nanos(7).since(Nanos(5)), Nanos(7).times(3)),
            (Nanos(2), Nanos(21))
        );
        assert_eq!(Nanos::MAX.times(2), Nanos::MAX);
        assert_eq!(SourcePosition::SEQUENCE_MAX, 0xffff_ffff_ffff);
        let at_most = SourcePosition::new(7, SourcePosition::SEQUENCE_MAX);
        assert_eq!(at_most, SourcePosition(0x0007_ffff_ffff_ffff));
        assert_eq!(at_most, SourcePosition::new(7, 1 << 48), "it saturates");
    }

    #[test]
    fn ranges_meet_where_both_have_sequences() {
        let range = |first, last| SequenceRange::new(Sequence(first), Sequence(last)).unwrap();
        let r = range(5, 9);
        for (sequence, inside) in [(4, false), (5, true), (9, true), (10, false)] {
            assert_eq!(r.contains(Sequence(sequence)), inside);
        }
        assert_eq!(r.intersection(range(9, 12)), Some(range(9, 9)));
        assert_eq!(r.intersection(range(10, 12)), None);
        assert_eq!(r.intersection(range(1, 6)), Some(range(5, 6)));
        assert_eq!((r.len(), range(5, 5)), (5, SequenceRange::one(Sequence(5))));
        assert_eq!(
            (r.to_string(), range(5, 5).to_string()),
            ("5-9".into(), "5".into())
        );
        assert_eq!(r.iter().map(|s| s.0).collect::<Vec<_>>(), [5, 6, 7, 8, 9]);
    }
}
