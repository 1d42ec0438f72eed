//! The interface of every feed: a decoder takes packets (UDP payloads, or messages of a file) and
//! passes each venue message's records and each incident of the source to a [`Sink`].
//!
//! A decoder does no I/O and reads no clock: the packet carries its receive time.

use std::net::Ipv4Addr;

use tickcast_reliability::record::RecordBatch;
use tickcast_reliability::types::{Nanos, SourcePosition};

use crate::instruments::Symbol;

/// Buckets of the skew histogram.
pub const SKEW_BUCKETS: usize = 24;

/// One packet of a feed: a UDP payload, or one message of a file.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// Receive (capture) time, UTC ns; 0 if unknown.
    pub received_at: Nanos,
    /// The bytes above UDP.
    pub payload: &'a [u8],
}

/// Origin of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketOrigin {
    /// Index of its line.
    pub line: u8,
    /// Its sender, if the decoder knows it.
    pub sender: Option<Ipv4Addr>,
}

/// Reasons why a source's stream did not simply continue. None is fatal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Incident {
    /// Venue messages are missing: the decoder expected `from`, and `missing` messages never came.
    Gap {
        /// Position of the first message that is missing.
        from: SourcePosition,
        /// Number of missing messages; `u64::MAX` if unknown.
        missing: u64,
    },
    /// The venue restarted its count within the session; the ordinal increases.
    SequenceReset {
        /// Position of the next message.
        next: SourcePosition,
    },
    /// The venue opened another session; the ordinal increases.
    SessionChange {
        /// Position of the next message.
        next: SourcePosition,
    },
    /// The venue ended its session.
    EndOfSession,
    /// Messages that were delivered before and are dropped (the other line, a resend).
    Duplicate {
        /// Number of messages.
        messages: u64,
    },
    /// Messages of one packet that differ from those which came before under their numbers: the lines are
    /// not of one feed, the count began anew, or one is damaged. They count as duplicates.
    Conflicting {
        /// Number of messages.
        messages: u64,
    },
    /// Messages that came after they were passed over; they are dropped.
    Late {
        /// Number of messages.
        messages: u64,
    },
    /// A packet of another feed; dropped.
    Foreign {
        /// The difference, in one phrase.
        reason: &'static str,
        /// The packet's origin, which is not that of the last packet if the decision took time.
        origin: PacketOrigin,
        /// Receive time of the packet.
        received_at: Nanos,
    },
    /// A line is silent while another is heard; it is not waited for.
    LineStopped {
        /// Its index.
        line: u8,
    },
    /// A line that had stopped is heard again.
    LineBack {
        /// Its index.
        line: u8,
    },
    /// Bytes of the input could not be read: they held an unknown number of messages, maybe none.
    Unreadable {
        /// Position of the first message that they may have held; sequence 0 if none came before.
        from: SourcePosition,
    },
    /// A message that could not be read, of a packet that could: the message is lost.
    UnreadableMessage {
        /// Its position.
        position: SourcePosition,
        /// The fault, in one phrase.
        reason: &'static str,
    },
    /// A packet that could not be read, or a message with a fault. Its whole part has been delivered.
    Malformed {
        /// The fault, in one phrase.
        reason: &'static str,
    },
    /// A well-formed message of a type this decoder does not know; skipped by its length.
    UnknownMessage {
        /// Its type byte.
        kind: u8,
    },
    /// A message that refers to an order the book does not hold.
    UnknownOrder,
    /// A quantity did not fit its 32-bit field and was saturated.
    Saturated,
}

impl Incident {
    /// Returns the incident of a foreign packet, before its origin is known.
    pub(crate) const fn foreign(reason: &'static str) -> Self {
        Self::Foreign {
            reason,
            origin: PacketOrigin {
                line: 0,
                sender: None,
            },
            received_at: Nanos::ZERO,
        }
    }
}

/// Receives a decoder's output in the order of the source.
pub trait Sink {
    /// Takes the records of one venue message, never empty. They belong in one datagram, and all
    /// concern the instrument of the first (instrument 0: the whole venue).
    fn message(&mut self, position: SourcePosition, records: &RecordBatch);

    /// Takes an incident of the source.
    fn incident(&mut self, incident: Incident);
}

/// A venue's protocol: packets of a source's lines in, records and incidents out.
pub trait Decoder: Send {
    /// Takes one packet of a line, `now` by a clock that does not go back. Never panics and never
    /// loops: unreadable bytes become an [`Incident`].
    fn line_packet(&mut self, line: usize, now: Nanos, packet: Packet<'_>, sink: &mut dyn Sink);

    /// Takes one packet of the only line, at the time of receipt.
    fn packet(&mut self, packet: Packet<'_>, sink: &mut dyn Sink) {
        self.line_packet(0, packet.received_at, packet, sink);
    }

    /// Names the sender of a line's next packets, for [`Incident::Foreign`].
    fn set_sender(&mut self, line: usize, sender: Ipv4Addr);

    /// Lets time pass: packets that have waited long enough are decoded.
    fn poll(&mut self, now: Nanos, sink: &mut dyn Sink);

    /// Ends the input: packets that still wait are decoded, and missing messages reported.
    fn finish(&mut self, sink: &mut dyn Sink);

    /// Reports that the input lost bytes here, and that no number tells what they held.
    fn unreadable(&mut self, sink: &mut dyn Sink);

    /// Continues in place of an earlier decoder, without its orders. Call it before the first packet.
    /// Messages that passed meanwhile are reported as a gap.
    fn resume(&mut self, at: &ResumePoint);

    /// Returns the session that is followed; `None` before the first packet, and where the venue
    /// numbers nothing.
    fn session(&self) -> Option<FeedSession>;

    /// Returns where a decoder of another format continues this source, in a session of its own; `None` if
    /// nothing was followed yet.
    fn place(&self) -> Option<ResumePoint>;

    /// Returns the latest time at which the venue sent a packet of the session; 0 if it stamps none.
    fn newest_sent_at(&self) -> u64;

    /// Returns the number of packets of the source's sessions so far, on all lines. A heartbeat of another
    /// session counts while none is open.
    fn packets(&self) -> u64;

    /// Returns the counts of a line; zeros for a line that does not exist.
    fn line(&self, line: usize) -> LineStats;

    /// Returns the venue messages seen so far by type byte, without heartbeats.
    fn counts(&self) -> &MessageCounts;
}

/// A session of a venue, as a later decoder must know it to continue there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeedSession {
    /// The session, in the decoder's own coding.
    pub id: u128,
    /// Its ordinal in positions.
    pub ordinal: u16,
    /// The message before which it ends, once the venue has said so.
    pub end_at: Option<u64>,
}

/// The facts of an earlier decoder with which another one continues.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResumePoint {
    /// The id of the session; `None` where the source goes on in another one, of another format.
    pub session: Option<u128>,
    /// The next position: every message before it was delivered or reported.
    pub next: SourcePosition,
    /// The message before which the session ends, if the venue has said so.
    pub end_at: Option<u64>,
    /// The latest time at which the venue sent a packet of the session; 0 if unknown.
    pub sent_at: u64,
    /// The instruments named so far.
    pub instruments: Vec<(u32, Symbol)>,
    /// The lowest id that no instrument can have, where the decoder assigns ids.
    pub next_id: u32,
}

impl ResumePoint {
    /// Returns whether the venue has ended the session, and nothing of it is missing.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.end_at.is_some_and(|end| self.next.sequence() >= end)
    }
}

/// Counts of one line, in messages unless stated otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LineStats {
    /// Packets of the source's sessions.
    pub packets: u64,
    /// Messages that this line brought first.
    pub first: u64,
    /// Messages that came after they were declared lost.
    pub late: u64,
    /// Messages that had been delivered before.
    pub duplicates: u64,
    /// Messages of packets that are not of the source's sessions.
    pub foreign: u64,
    /// Messages that this line left out.
    pub missing: u64,
    /// The most packets that a message came after its place on this line.
    pub reorder_depth: u64,
    /// Duplicates by how long after the first copy they came: bucket n counts packets less than
    /// 2^n µs behind, the last one all others.
    pub skew: [u64; SKEW_BUCKETS],
    /// Whether the line is silent while another is heard.
    pub is_stopped: bool,
}

impl LineStats {
    /// Returns the skew in µs that this share of the duplicates does not exceed, rounded up to a
    /// power of two; 0 without duplicates.
    #[must_use]
    pub fn skew_us(&self, share: f64) -> u64 {
        let all: u64 = self.skew.iter().sum();
        let rank = (all as f64 * share).ceil() as u64;
        let mut below = 0;
        let bucket = self.skew.iter().position(|count| {
            below += count;
            below >= rank && below > 0
        });
        bucket.map_or(0, |bucket| 1 << bucket)
    }
}

/// Returns how much later `at` is than `than`, saturated to 32 bits.
#[inline]
pub(crate) const fn clamped_difference(at: u64, than: u64) -> i32 {
    let ahead = at.wrapping_sub(than) as i64;
    // Beyond 63 bits the sign is lost, so the comparison decides the direction.
    if ahead as i32 as i64 == ahead && (at >= than) == (ahead >= 0) {
        ahead as i32
    } else if at >= than {
        i32::MAX
    } else {
        i32::MIN
    }
}

/// Messages by type byte.
#[derive(Clone, Debug)]
pub struct MessageCounts([u64; 256]);

impl Default for MessageCounts {
    fn default() -> Self {
        Self([0; 256])
    }
}

impl MessageCounts {
    /// Counts one message.
    #[inline]
    pub fn add(&mut self, kind: u8) {
        self.0[usize::from(kind)] += 1;
    }

    /// Returns the number of messages of this type.
    #[must_use]
    pub const fn of(&self, kind: u8) -> u64 {
        self.0[kind as usize]
    }

    /// Returns the number of all messages.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Returns the types seen, with their counts.
    pub fn iter(&self) -> impl Iterator<Item = (u8, u64)> + '_ {
        (0..=u8::MAX).zip(self.0).filter(|&(_, n)| n > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clamped_difference_saturates_beyond_32_bits() {
        let edges = [0, 1, 1 << 31, (1 << 31) - 1, 1 << 32, 1 << 63, u64::MAX];
        for at in edges
            .into_iter()
            .flat_map(|e| [e, e.wrapping_sub(1), e.wrapping_add(1)])
        {
            for than in edges
                .into_iter()
                .flat_map(|e| [e, e.wrapping_sub(1), e.wrapping_add(1)])
            {
                let exact = i128::from(at) - i128::from(than);
                let clamped = exact.clamp(i128::from(i32::MIN), i128::from(i32::MAX));
                let got = clamped_difference(at, than);
                assert_eq!(i128::from(got), clamped, "{at} - {than}");
            }
        }
    }

    #[test]
    fn skew_is_the_bound_that_a_share_does_not_exceed() {
        let mut line = LineStats::default();
        assert_eq!(line.skew_us(0.99), 0, "without duplicates");
        line.skew[0] = 2;
        assert_eq!(line.skew_us(0.5), 1);
        line.skew[3] = 7;
        line.skew[5] = 1;
        for (share, us) in [
            (0.0, 1),
            (0.2, 1),
            (0.21, 8),
            (0.9, 8),
            (0.91, 32),
            (1.0, 32),
        ] {
            assert_eq!(line.skew_us(share), us, "{share}");
        }
    }

    #[test]
    fn messages_are_counted_by_type() {
        let mut counts = MessageCounts::default();
        assert_eq!((counts.total(), counts.iter().count()), (0, 0));
        for kind in [b'A', b'D', b'A', 0, u8::MAX] {
            counts.add(kind);
        }
        assert_eq!(counts.total(), 5);
        assert_eq!([counts.of(b'A'), counts.of(b'B')], [2, 0]);
        let seen: Vec<_> = counts.iter().collect();
        assert_eq!(seen, [(0, 1), (b'A', 2), (b'D', 1), (u8::MAX, 1)]);
    }
}
