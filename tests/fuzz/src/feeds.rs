//! Any packets as a feed. Every message has a position of its own, in order, and gaps are reported to the
//! message. The target walks each packet a second time, by its lengths alone, and compares.

use std::collections::HashMap;

use tickcast_feeds::arbiter::{Arbiter, Holding, Lines, Listen};
use tickcast_feeds::iex::IexDecoder;
use tickcast_feeds::iex::transport::Segment;
use tickcast_feeds::itch::{ItchDecoder, ItchSettings};
use tickcast_feeds::moldudp64::MoldUdp64;
use tickcast_feeds::source::{Decoder, Incident, LineStats, Packet, Sink};
use tickcast_reliability::record::{RecordBatch, Records};
use tickcast_reliability::types::{Nanos, SourcePosition};

use crate::bytes::Bytes;
use crate::held::{Held, Tally};

/// Time of receipt of all packets.
const RECEIVED_AT: Nanos = Nanos(1_500_000_000_000_000_000);
/// Offset of the protocol field in an IEX-TP header.
const IEX_PROTOCOL_AT: usize = 2;

/// Runs MoldUDP64 packets on one to three lines. The first byte holds options. If they ask for several lines
/// or for holding, a byte before each packet states its line and the time since the previous one. Invariants:
/// - Each new message and each gap begins at the end of the previous one.
/// - A new session or a reset is reported before any of its messages.
/// - Each message is delivered as a packet brought it, and no more often than it arrived.
/// - On each line, each message that arrived was first, late, a duplicate or foreign.
pub fn moldudp64(bytes: &[u8]) {
    let mut input = Bytes(bytes);
    let options = input.byte();
    let expect_from_one = options & 1 == 1;
    let lines = usize::from(options >> 1 & 3).clamp(1, 3);
    let holding = match options >> 3 & 3 {
        0 => Holding::NONE,
        1 => Holding::live(2_000, 10_000),
        2 => Holding {
            packets_max: 4,
            bytes_max: 300,
            ..Holding::live(500, 1_000)
        },
        _ => Holding::RECORDED,
    };
    let is_listed = lines > 1 || holding != Holding::NONE;
    let count = lines;
    let protocol = MoldUdp64::new(|_| true);
    let mut mold = Arbiter::new(protocol, Lines { count, holding }, expect_from_one);
    let mut followed = Followed::default();
    let mut arrived = [0; 3];
    let mut now = RECEIVED_AT;
    while let Some(step) = if is_listed { input.next() } else { Some(0) }
        && let Some(payload) = input.packet()
    {
        let line = usize::from(step & 3).min(lines - 1);
        now = now.after(Nanos::from_us(100 * u64::from(step >> 2)));
        arrived[line] += followed.arrived.packet(payload);
        let packet = Packet {
            received_at: now,
            payload,
        };
        mold.packet(line, now, packet, &mut followed);
        followed.reached(&mold);
    }
    mold.finish(&mut followed);
    followed.reached(&mold);
    assert_eq!(mold.held_packets(), 0, "nothing waits beyond the end");
    let mut reported = Tally::default();
    for (line, arrived) in arrived.iter().take(lines).enumerate() {
        let stats = mold.line(line);
        assert_balance(&stats, *arrived);
        reported.read += stats.first;
        reported.old += stats.late + stats.duplicates;
    }
    assert_eq!(
        (reported.read, reported.old),
        (followed.reported.read, followed.reported.old)
    );
}

/// Asserts that a line's counts cover exactly the messages that arrived on it.
fn assert_balance(line: &LineStats, arrived: u64) {
    let sum = line.first + line.late + line.duplicates + line.foreign;
    assert_eq!(sum, arrived, "{line:?}");
}

/// The messages that arrived and were not delivered yet, each as often as it came.
#[derive(Default)]
struct Arrivals {
    /// By sequence.
    numbered: HashMap<(u64, Vec<u8>), u64>,
    /// Of packets with sequence 0, which are numbered on receipt.
    unnumbered: HashMap<Vec<u8>, u64>,
}

impl Arrivals {
    /// Adds the messages of a packet; returns their number, or 0 for a packet that can't be read.
    fn packet(&mut self, payload: &[u8]) -> u64 {
        let held = Held::in_mold(payload);
        let first = held.first;
        for (block, sequence) in held.readable().iter().zip(first..) {
            *self.numbered.entry((sequence, block.to_vec())).or_default() += 1;
            if first == 0 {
                *self.unnumbered.entry(block.to_vec()).or_default() += 1;
            }
        }
        held.readable().len() as u64
    }

    /// Takes a delivered message out; returns whether it was there.
    fn take(&mut self, sequence: u64, message: &[u8]) -> bool {
        let numbered = self.numbered.get_mut(&(sequence, message.to_vec()));
        let left = match numbered.filter(|left| **left > 0) {
            Some(left) => left,
            None => match self.unnumbered.get_mut(message).filter(|left| **left > 0) {
                Some(left) => left,
                None => return false,
            },
        };
        *left -= 1;
        true
    }
}

/// The positions of what an arbiter returns.
#[derive(Default)]
struct Followed {
    /// Where the next message stands.
    next: Option<SourcePosition>,
    arrived: Arrivals,
    reported: Tally,
}

impl Followed {
    fn reached(&mut self, mold: &Arbiter<MoldUdp64>) {
        match self.next {
            Some(next) => assert_eq!(mold.next_position(), next),
            // Packets that wait decide where the stream begins.
            None if mold.session().is_some() && !mold.is_waiting() => {
                self.next = Some(mold.next_position());
            }
            None => {}
        }
    }
}

impl Listen<MoldUdp64> for Followed {
    fn packet(&mut self, _: Nanos, (): &()) {}

    fn message(&mut self, position: SourcePosition, message: &[u8]) {
        assert_eq!(position, *self.next.get_or_insert(position), "a message");
        self.next = Some(beyond(position, 1));
        self.reported.read += 1;
        assert!(
            self.arrived.take(position.sequence(), message),
            "{position} never arrived"
        );
    }

    fn incident(&mut self, incident: Incident) {
        match incident {
            Incident::Gap { from, missing } => {
                // A first packet may tell of a gap at once.
                assert_eq!(from, *self.next.get_or_insert(from), "a gap");
                assert!(missing > 0);
                self.next = Some(beyond(from, missing));
            }
            Incident::SessionChange { next } | Incident::SequenceReset { next } => {
                let before = self.next.replace(next);
                assert!(before.is_none_or(|it| next.ordinal() == it.ordinal() + 1));
            }
            Incident::Duplicate { messages } | Incident::Late { messages } => {
                assert!(messages > 0);
                self.reported.old += messages;
            }
            _ => {}
        }
    }
}

/// Runs `Checks` on packets of ITCH 5.0 over MoldUDP64, or on messages as in a file, with a small table
/// of orders.
pub fn itch(bytes: &[u8]) {
    let mut input = Bytes(bytes);
    let options = input.byte();
    let received_at = if options & 2 == 0 {
        RECEIVED_AT
    } else {
        Nanos::ZERO
    };
    let orders_max = 8;
    let mut decoder = ItchDecoder::new(ItchSettings {
        expect_from_one: options & 1 == 1,
        orders_max,
        ..ItchSettings::default()
    });
    let mut checks = Checks::default();
    let mut sequence = 0;
    while let Some(payload) = input.packet() {
        let is_file = options & 4 != 0;
        let held = match is_file {
            true => Held::message(payload),
            false => Held::in_mold(payload),
        };
        if is_file {
            sequence += 1;
            decoder.message(
                SourcePosition::new(0, sequence),
                received_at,
                payload,
                &mut checks,
            );
        } else {
            let packet = Packet {
                received_at,
                payload,
            };
            decoder.packet(packet, &mut checks);
        }
        match is_file {
            true => assert_eq!(checks.reported.read, sequence, "one message"),
            false => checks.packet_is_over(held.readable().len() as u64, &decoder),
        }
        assert!(decoder.orders().len() <= orders_max, "the table is bounded");
    }
    decoder.finish(&mut checks);
    if options & 4 == 0 {
        checks.is_over(&decoder);
    }
    let reported = checks.delivered + checks.unknown + checks.short;
    assert_eq!(decoder.counts().total(), reported, "counted by type");
}

/// Runs `Checks` on segments of TOPS.
pub fn iex_tops(bytes: &[u8]) {
    iex(bytes, 0x8003);
}

/// Runs `Checks` on segments of DEEP.
pub fn iex_deep(bytes: &[u8]) {
    iex(bytes, 0x8004);
}

/// Decodes packets as `protocol`, which is written into every packet that is long enough.
fn iex(bytes: &[u8], protocol: u16) {
    let mut input = Bytes(bytes);
    let mut decoder = IexDecoder::default();
    let mut checks = Checks::default();
    // The segment with which the source begins decides the channel.
    let mut channel = None;
    while let Some(payload) = input.packet() {
        let mut payload = payload.to_vec();
        if let Some(field) = payload.get_mut(IEX_PROTOCOL_AT..IEX_PROTOCOL_AT + 2) {
            field.copy_from_slice(&protocol.to_le_bytes());
        }
        let packet = Packet {
            received_at: RECEIVED_AT,
            payload: &payload,
        };
        decoder.packet(packet, &mut checks);
        let arrived = match Segment::read(&payload) {
            Ok(segment) if channel.is_none_or(|channel| channel == segment.channel) => {
                if decoder.line(0).packets > 0 {
                    channel = Some(segment.channel);
                }
                Held::in_segment(&payload).readable().len() as u64
            }
            _ => 0,
        };
        checks.packet_is_over(arrived, &decoder);
    }
    decoder.finish(&mut checks);
    checks.is_over(&decoder);
    let reported = checks.delivered + checks.unknown;
    assert_eq!(decoder.counts().total(), reported, "counted by type");
}

/// Invariants of every decoder:
/// - A message is at least one well-formed record, all of one instrument.
/// - Positions are contiguous, except for reported gaps and unreadable messages.
/// - A new session or a reset has another ordinal.
/// - Each message that arrived was first, late, a duplicate or foreign, and is reported once.
/// - The counters by type include every message with a known length.
#[derive(Default)]
struct Checks {
    /// Expected position of the next message.
    next: Option<SourcePosition>,
    /// Position of the last message.
    last: Option<SourcePosition>,
    /// Whether the last incident was a reset or another session.
    is_new: bool,
    /// Messages that were reported.
    reported: Tally,
    /// Number of whole messages of all packets that can be read.
    arrived: u64,
    /// Totals of messages: delivered, of unknown type, and shorter than their type.
    delivered: u64,
    unknown: u64,
    short: u64,
}

impl Checks {
    /// Checks a packet with this number of messages.
    fn packet_is_over(&mut self, arrived: u64, decoder: &dyn Decoder) {
        self.arrived += arrived;
        let line = decoder.line(0);
        let counted = line.first + line.late + line.duplicates + line.foreign;
        // A candidate for another session waits.
        assert!(counted <= self.arrived, "{line:?} of {}", self.arrived);
        self.compare(&line);
    }

    /// Checks the whole input, of which nothing waits any more.
    fn is_over(&self, decoder: &dyn Decoder) {
        assert_balance(&decoder.line(0), self.arrived);
        self.compare(&decoder.line(0));
    }

    /// Compares a line's counts with what was reported.
    fn compare(&self, line: &LineStats) {
        assert_eq!(line.late + line.duplicates, self.reported.old, "{line:?}");
        assert_eq!(line.first, self.reported.read, "{line:?}");
    }

    /// Checks that the stream continues at `to`.
    fn reaches(&self, to: SourcePosition) {
        if let Some(next) = self.next {
            assert_eq!(to, next);
        }
    }

    /// Counts a reported, unreadable message, which also has a position.
    fn could_not_be_read(&mut self) {
        self.reported.read += 1;
        self.next = self.next.map(|next| beyond(next, 1));
    }
}

impl Sink for Checks {
    fn message(&mut self, position: SourcePosition, batch: &RecordBatch) {
        self.reaches(position);
        let last = self.last.replace(position);
        assert!(last < Some(position), "{position} after {last:?}");
        (self.next, self.is_new) = (Some(beyond(position, 1)), false);
        self.reported.read += 1;
        self.delivered += 1;
        assert!(!batch.is_empty(), "a message becomes at least one record");
        let mut records = Records::check(batch.bytes(), batch.len()).expect("records of the wire");
        let instrument = records.next().map(|record| record.header().instrument_id);
        for record in records {
            assert_eq!(
                Some(record.header().instrument_id),
                instrument,
                "one instrument"
            );
        }
    }

    fn incident(&mut self, incident: Incident) {
        match incident {
            Incident::Gap { from, missing } => {
                assert!(missing > 0);
                let to = beyond(from, missing);
                // IEX-TP reports where a session continues, and then which part of its beginning is
                // missing.
                if !(self.is_new && self.next == Some(to)) {
                    self.reaches(from);
                }
                (self.next, self.is_new) = (Some(to), false);
            }
            Incident::SequenceReset { next } | Incident::SessionChange { next } => {
                let before = self.next.map_or(0, SourcePosition::ordinal);
                assert!(next.ordinal() > before, "{next} in ordinal {before}");
                (self.next, self.is_new) = (Some(next), true);
            }
            Incident::Duplicate { messages } => {
                assert!(messages > 0);
                self.reported.old += messages;
            }
            Incident::Late { messages } => self.reported.old += messages,
            Incident::UnknownMessage { .. } => {
                self.unknown += 1;
                self.could_not_be_read();
            }
            Incident::UnreadableMessage { position, reason } => {
                self.reaches(position);
                (self.next, self.is_new) = (Some(beyond(position, 1)), false);
                self.reported.read += 1;
                // An empty message has no type by which it counts.
                self.short += u64::from(!reason.ends_with("is empty"));
            }
            _ => {}
        }
    }
}

/// Returns the position `messages` messages further on.
fn beyond(position: SourcePosition, messages: u64) -> SourcePosition {
    SourcePosition::new(position.ordinal(), position.sequence() + messages)
}
