//! The decoders of the feeds, over generated packets.

use tickcast_feeds::instruments::Instruments;
use tickcast_feeds::simulator::{Simulator, SimulatorConfig};
use tickcast_feeds::source::{Decoder, Incident, Packet, Sink};
use tickcast_feeds::venues::{Format, Settings};
use tickcast_reliability::record::RecordBatch;
use tickcast_reliability::types::SourcePosition;

use crate::pair::UTC;
use crate::{Opened, steps};

/// Messages of the simulated market, including the day's opening and closing.
const MESSAGES: u64 = 20_000;
const SYMBOLS: u16 = 16;
/// Messages of an IEX packet. A run has as many packets as [`IEX_PACKETS`].
const IEX_MESSAGES: u64 = 20;
const IEX_PACKETS: u64 = 50;
const TOPS: u16 = 0x8003;
const DEEP: u16 = 0x8004;

/// Reads the decoder's output, as a publisher would.
#[derive(Default)]
struct Reported {
    bytes: usize,
    incidents: u64,
}

impl Sink for Reported {
    #[inline]
    fn message(&mut self, _: SourcePosition, records: &RecordBatch) {
        self.bytes += records.bytes().len();
    }

    fn incident(&mut self, _: Incident) {
        self.incidents += 1;
    }
}

struct Decoding {
    decoder: Box<dyn Decoder>,
    format: Format,
    packets: Vec<Vec<u8>>,
    /// Packets that are decoded before a run.
    before: usize,
    reported: Reported,
}

impl Decoding {
    fn open(format: Format, packets: Vec<Vec<u8>>, before: usize) -> Opened {
        let decoding = Self {
            decoder: decoder(format),
            format,
            packets,
            before,
            reported: Reported::default(),
        };
        steps(decoding, Self::prepare, Self::run)
    }

    fn prepare(&mut self) {
        assert_eq!(
            self.reported.incidents, 0,
            "the packets are in order and whole"
        );
        self.decoder = decoder(self.format);
        self.decode(0..self.before);
    }

    fn run(&mut self) -> u64 {
        let before = self.decoder.counts().total();
        self.decode(self.before..self.packets.len());
        self.decoder.counts().total() - before
    }

    fn decode(&mut self, packets: std::ops::Range<usize>) {
        for payload in &self.packets[packets] {
            let packet = Packet {
                received_at: UTC,
                payload,
            };
            self.decoder.packet(packet, &mut self.reported);
        }
    }
}

fn decoder(format: Format) -> Box<dyn Decoder> {
    format.decoder(Settings {
        instruments: Instruments::new(1, Instruments::DEFAULT_LIMIT),
        ..Settings::default()
    })
}

/// ITCH 5.0 of a simulated market, the second half of its day.
pub(crate) fn itch() -> Opened {
    let config = SimulatorConfig {
        symbols: SYMBOLS,
        messages: MESSAGES,
        ..SimulatorConfig::default()
    };
    let mut simulator = Simulator::new(&config, 1).expect("a market");
    let mut packets = Vec::new();
    while let Some(packet) = simulator.next_packet() {
        packets.push(packet.payload.to_vec());
    }
    // The end of the session is no message.
    let whole = packets.len() - 3;
    packets.truncate(whole);
    Decoding::open(Format::MoldUdp64Itch50, packets, whole / 2)
}

/// TOPS 1.6: quotes, and occasional trades.
pub(crate) fn tops() -> Opened {
    iex(TOPS, |n| {
        let symbol = symbol(n);
        let (size, price) = ((n % 900) as u32, 1_000_000 + (n % 97) as i64 * 100);
        if n % 8 == 7 {
            let mut trade = head(b'T', 0, symbol);
            trade.extend(size.to_le_bytes());
            trade.extend(price.to_le_bytes());
            trade.extend((n as i64).to_le_bytes());
            return trade;
        }
        let mut quote = head(b'Q', 0, symbol);
        quote.extend(size.to_le_bytes());
        quote.extend(price.to_le_bytes());
        quote.extend((price + 100).to_le_bytes());
        quote.extend(size.to_le_bytes());
        quote
    })
}

/// DEEP 1.0: price levels of both sides.
pub(crate) fn deep() -> Opened {
    iex(DEEP, |n| {
        let kind = if n.is_multiple_of(2) { b'8' } else { b'5' };
        let mut level = head(kind, 1, symbol(n));
        level.extend(((n % 900) as u32).to_le_bytes());
        level.extend((1_000_000 + (n % 97) as i64 * 100).to_le_bytes());
        level
    })
}

/// Packets of IEX-TP with the messages that `message` makes from their numbers. The messages come twice,
/// because the first pass adds the symbols.
fn iex(protocol: u16, message: fn(u64) -> Vec<u8>) -> Opened {
    let packet = |index: u64| {
        let first = index * IEX_MESSAGES;
        let mut blocks = Vec::new();
        for number in first..first + IEX_MESSAGES {
            let message = message(number);
            blocks.extend((message.len() as u16).to_le_bytes());
            blocks.extend(message);
        }
        let mut bytes = vec![1, 0];
        bytes.extend(protocol.to_le_bytes());
        bytes.extend(1_u32.to_le_bytes());
        bytes.extend(1_u32.to_le_bytes());
        bytes.extend((blocks.len() as u16).to_le_bytes());
        bytes.extend((IEX_MESSAGES as u16).to_le_bytes());
        bytes.extend(0_u64.to_le_bytes());
        bytes.extend((first + 1).to_le_bytes());
        bytes.extend(UTC.0.to_le_bytes());
        bytes.extend(blocks);
        bytes
    };
    let packets = (0..2 * IEX_PACKETS).map(packet).collect();
    Decoding::open(Format::IexTp, packets, IEX_PACKETS as usize)
}

fn symbol(number: u64) -> [u8; 8] {
    let mut symbol = *b"TICKA   ";
    symbol[4] += (number % 16) as u8;
    symbol
}

fn head(kind: u8, flags: u8, symbol: [u8; 8]) -> Vec<u8> {
    let mut bytes = vec![kind, flags];
    bytes.extend(UTC.0.to_le_bytes());
    bytes.extend(symbol);
    bytes
}
