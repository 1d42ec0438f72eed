//! Any packets as a feed. Every message has a position of its own, in order, and gaps are reported to the
//! message. The target walks each packet a second time, by its lengths alone, and compares.

use tickcast_feeds::arbiter::{Arbiter, Lines, Listen};
use tickcast_feeds::iex::IexDecoder;
use tickcast_feeds::itch::{ItchDecoder, ItchSettings};
use tickcast_feeds::moldudp64::MoldUdp64;
use tickcast_feeds::source::{Decoder, Incident, Packet, Sink};
use tickcast_reliability::record::{RecordBatch, Records};
use tickcast_reliability::types::{Nanos, SourcePosition};

use crate::bytes::Bytes;
use crate::held::{Held, Tally};

/// Time of receipt of all packets.
const RECEIVED_AT: Nanos = Nanos(1_500_000_000_000_000_000);
/// Offset of the protocol field in an IEX-TP header.
const IEX_PROTOCOL_AT: usize = 2;

/// Asserts these invariants of MoldUDP64 packets:
/// - Each new message and each gap begins at the end of the previous one.
/// - A new session or a reset is reported before any of its messages.
/// - Each message of a packet is delivered unchanged, or reported.
pub fn moldudp64(bytes: &[u8]) {
    let mut input = Bytes(bytes);
    let expect_from_one = input.byte() & 1 == 1;
    let protocol = MoldUdp64::new(|_| true);
    let mut mold = Arbiter::new(protocol, Lines::default(), expect_from_one);
    let mut next: Option<SourcePosition> = None;
    while let Some(payload) = input.packet() {
        let mut followed = Followed { next };
        let packet = Packet {
            received_at: RECEIVED_AT,
            payload,
        };
        mold.packet(0, RECEIVED_AT, packet, &mut followed);
        next = followed.next;
        match next {
            Some(next) => assert_eq!(mold.next_position(), next),
            None if mold.session().is_some() => next = Some(mold.next_position()),
            None => {}
        }
    }
}

/// The positions of what an arbiter returns.
struct Followed {
    /// Where the next message stands.
    next: Option<SourcePosition>,
}

impl Listen<MoldUdp64> for Followed {
    fn packet(&mut self, _: Nanos, (): &()) {}

    fn message(&mut self, position: SourcePosition, _: &[u8]) {
        assert_eq!(position, *self.next.get_or_insert(position), "a message");
        self.next = Some(beyond(position, 1));
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
            _ => {}
        }
    }
}

/// Runs [`Checks`] on packets of ITCH 5.0 over MoldUDP64, or on messages as in a file, with a small table
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
        // An empty message uses up a sequence but is not reported.
        checks.silent += held.empty_from(0);
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
        checks.packet_is_over(&held);
        assert!(decoder.orders().len() <= orders_max, "the table is bounded");
    }
    let told = checks.delivered + checks.unknown + checks.short;
    assert_eq!(decoder.counts().total(), told, "counted by type");
}

/// Runs [`Checks`] on segments of TOPS.
pub fn iex_tops(bytes: &[u8]) {
    iex(bytes, 0x8003);
}

/// Runs [`Checks`] on segments of DEEP.
pub fn iex_deep(bytes: &[u8]) {
    iex(bytes, 0x8004);
}

/// Decodes packets as `protocol`, which is written into every packet that is long enough.
fn iex(bytes: &[u8], protocol: u16) {
    let mut input = Bytes(bytes);
    let mut decoder = IexDecoder::default();
    let mut checks = Checks::default();
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
        checks.packet_is_over(&Held::in_segment(&payload));
    }
    let told = checks.delivered + checks.unknown;
    assert_eq!(decoder.counts().total(), told, "counted by type");
}

/// Invariants of every decoder:
/// - A message is at least one well-formed record, all of one instrument.
/// - Positions are contiguous, except for reported gaps and unreadable messages.
/// - A new session or a reset has another ordinal.
/// - No message of a packet is reported twice.
/// - The counters by type include every message with a known length.
#[derive(Default)]
struct Checks {
    /// Expected position of the next message.
    next: Option<SourcePosition>,
    /// Position of the last message.
    last: Option<SourcePosition>,
    /// Whether the last incident was a reset or another session.
    is_new: bool,
    /// Maximum number of sequences of unreported messages.
    silent: u64,
    /// Tally of all packets.
    packet: Tally,
    /// Number of messages that all packets announced.
    announced: u64,
    /// Totals of messages: delivered, of unknown type, and shorter than their type.
    delivered: u64,
    unknown: u64,
    short: u64,
}

impl Checks {
    fn packet_is_over(&mut self, held: &Held<'_>) {
        // A packet may wait for others, so only the sums can be compared.
        self.announced += held.announced.max(held.blocks.len() as u64);
        let told = self.packet.read + self.packet.old;
        assert!(
            told <= self.announced,
            "{:?} of {}",
            self.packet,
            self.announced
        );
    }

    /// Checks that the stream continues at `to`.
    fn reaches(&mut self, to: SourcePosition) {
        if let Some(next) = self.next {
            assert_eq!(to.ordinal(), next.ordinal(), "{to} after {next}");
            let passed_over = to.0.checked_sub(next.0);
            let left = passed_over.and_then(|it| self.silent.checked_sub(it));
            self.silent = left.unwrap_or_else(|| panic!("{to}, where {next} is next"));
        }
    }

    /// Counts a reported, unreadable message, which also has a position.
    fn could_not_be_read(&mut self) {
        self.packet.read += 1;
        self.next = self.next.map(|next| beyond(next, 1));
    }
}

impl Sink for Checks {
    fn message(&mut self, position: SourcePosition, batch: &RecordBatch) {
        self.reaches(position);
        let last = self.last.replace(position);
        assert!(last < Some(position), "{position} after {last:?}");
        (self.next, self.is_new) = (Some(beyond(position, 1)), false);
        self.packet.read += 1;
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
                self.packet.old += messages;
            }
            Incident::Late { messages } => self.packet.old += messages,
            Incident::UnknownMessage { .. } => {
                self.unknown += 1;
                self.could_not_be_read();
            }
            Incident::Malformed { reason } => {
                let begins = |with: &str| reason.starts_with(with);
                if begins("ITCH message shorter") || begins("an IEX message") {
                    self.short += 1;
                    self.could_not_be_read();
                }
            }
            _ => {}
        }
    }
}

/// Returns the position `messages` messages further on.
fn beyond(position: SourcePosition, messages: u64) -> SourcePosition {
    SourcePosition::new(position.ordinal(), position.sequence() + messages)
}
