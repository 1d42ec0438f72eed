//! Any packets as a feed: every message has a position of its own, in order, and what is missing is
//! told to the message. What a packet holds is walked here once more, by its lengths alone.

use tickcast_feeds::arbiter::{Arbiter, Lines, Listen};
use tickcast_feeds::iex::IexDecoder;
use tickcast_feeds::itch::{ItchDecoder, ItchSettings};
use tickcast_feeds::moldudp64::MoldUdp64;
use tickcast_feeds::source::{Decoder, Incident, Packet, Sink};
use tickcast_reliability::record::{RecordBatch, Records};
use tickcast_reliability::types::{Nanos, SourcePosition};

use crate::bytes::Bytes;
use crate::held::{Held, Tally};

/// When all packets were received.
const RECEIVED_AT: Nanos = Nanos(1_500_000_000_000_000_000);
/// Where an IEX-TP header says which feed it is of.
const IEX_PROTOCOL_AT: usize = 2;

/// Packets of MoldUDP64. Each new message stands where the one before says, each gap begins there
/// and ends where the next message stands; another session or a reset is told before anything of
/// it. All messages of a packet are given out, as they stand there, or told of.
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

/// Packets of ITCH 5.0 over MoldUDP64, or messages as in a file, with a small table of orders. See
/// [`Checks`].
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
        // An empty message uses up its sequence, and is none.
        checks.silent += held.empty_from(0);
        if is_file {
            sequence += 1;
            decoder.message(sequence, received_at, payload, &mut checks);
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

/// Segments of TOPS. See [`Checks`].
pub fn iex_tops(bytes: &[u8]) {
    iex(bytes, 0x8003);
}

/// Segments of DEEP. See [`Checks`].
pub fn iex_deep(bytes: &[u8]) {
    iex(bytes, 0x8004);
}

/// Every packet that is long enough says that it is of `protocol`.
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

/// What holds of every decoder: a message is at least one well-formed record, all of one
/// instrument; positions go on without a hole, but for gaps that were told and what could not be
/// read; a new session or a reset is another ordinal; no message is told of twice; and what was
/// counted by its type was too.
#[derive(Default)]
struct Checks {
    /// Where the next message stands.
    next: Option<SourcePosition>,
    /// Where the last one stood.
    last: Option<SourcePosition>,
    /// A reset or another session was told just now.
    is_new: bool,
    /// Sequences that messages of which nothing is told may have used up.
    silent: u64,
    /// Of all packets.
    packet: Tally,
    /// Messages that all packets announced.
    announced: u64,
    /// Messages in all: delivered, of no known type, and shorter than their type.
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

    /// The stream goes on at `to`.
    fn reaches(&mut self, to: SourcePosition) {
        if let Some(next) = self.next {
            assert_eq!(to.ordinal(), next.ordinal(), "{to} after {next}");
            let passed_over = to.0.checked_sub(next.0);
            let left = passed_over.and_then(|it| self.silent.checked_sub(it));
            self.silent = left.unwrap_or_else(|| panic!("{to}, where {next} is next"));
        }
    }

    /// A message that was told of has its position too.
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
                // IEX-TP tells where a session goes on, and then what of its beginning is missing.
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

/// So many messages further on.
fn beyond(position: SourcePosition, messages: u64) -> SourcePosition {
    SourcePosition::new(position.ordinal(), position.sequence() + messages)
}
