//! From an exchange's packets to subscribers: one thread decodes and publishes, as a feed handler does. The
//! packets are in memory before the clock starts.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;

use tickcast_feeds::capture::Capture;
use tickcast_feeds::instruments::Instruments;
use tickcast_feeds::simulator::{Simulator, SimulatorConfig};
use tickcast_feeds::source::{Decoder, Incident, Packet, Sink};
use tickcast_feeds::venues::{Format, Settings};
use tickcast_publisher::SourcePosition;
use tickcast_subscriber::record::RecordBatch;
use tickcast_transport::host::clock::{Clock, SystemClock};

use super::tickcast::Publisher;
use crate::bench::protocol::{Feed, Load, Outcome, Part, Word};
use crate::bench::results::Absent;
use crate::bench::side::{Carry, Desk, cpu_ns, memory_bytes};

/// Records that are published before they are sent.
const STEP: u64 = 800;
/// Packets with the same time of receipt: those of one system call.
const BURST: usize = 32;
/// The best real capture, below the folder of captures.
const CAPTURE: &str = "iex-tops/TOPS16.pcapng.gz";

/// A feed's packets, back to back.
struct Packets {
    bytes: Vec<u8>,
    /// Ends of the packets.
    ends: Vec<usize>,
    format: Format,
    /// How often the packets are repeated.
    passes: u64,
}

impl Packets {
    fn load(feed: Feed, symbols: u16, messages: u64) -> Outcome<Self> {
        let (mut bytes, mut ends) = (Vec::new(), Vec::new());
        let mut add = |payload: &[u8]| {
            bytes.extend_from_slice(payload);
            ends.push(bytes.len());
        };
        let format = match feed {
            Feed::Simulator => {
                let config = SimulatorConfig {
                    symbols,
                    messages,
                    ..SimulatorConfig::default()
                };
                let mut simulator = Simulator::new(&config, 1)?;
                while let Some(packet) = simulator.next_packet() {
                    add(packet.payload);
                }
                Format::MoldUdp64Itch50
            }
            Feed::Tops16 => {
                let mut capture = Capture::open(captures().join(CAPTURE))?;
                while let Some(datagram) = capture.next()? {
                    add(datagram.payload);
                }
                Format::IexTp
            }
        };
        let mut packets = Self {
            bytes,
            ends,
            format,
            passes: 1,
        };
        let once = packets.decode_alone().0.max(1);
        packets.passes = messages.div_ceil(once);
        if feed == Feed::Simulator {
            packets.passes = 1;
        }
        Ok(packets)
    }

    fn decoder(&self) -> Box<dyn Decoder> {
        self.format.decoder(Settings {
            instruments: Instruments::new(1, Instruments::DEFAULT_LIMIT),
            ..Settings::default()
        })
    }

    fn each(&self, mut on: impl FnMut(Packet<'_>) -> Outcome<()>) -> Outcome<()> {
        let mut begin = 0;
        for burst in self.ends.chunks(BURST) {
            let received_at = SystemClock.utc();
            for &end in burst {
                on(Packet {
                    received_at,
                    payload: &self.bytes[begin..end],
                })?;
                begin = end;
            }
        }
        Ok(())
    }

    /// Returns venue messages and records of one pass.
    fn decode_alone(&self) -> (u64, u64) {
        let mut decoder = self.decoder();
        let mut count = Count(0);
        let _ = self.each(|packet| {
            decoder.packet(packet, &mut count);
            Ok(())
        });
        (decoder.counts().total(), count.0)
    }
}

/// Returns the folder of captures: `TICKCAST_DATA`, or beside this repository.
fn captures() -> PathBuf {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data");
    std::env::var_os("TICKCAST_DATA").map_or(beside, PathBuf::from)
}

/// Returns whether the capture exists.
pub(crate) fn has_capture() -> bool {
    captures().join(CAPTURE).is_file()
}

/// Returns the entry of the report for a missing capture.
pub(crate) fn no_capture() -> Absent {
    Absent {
        contender: "the capture of TOPS 1.6",
        why: format!("there is no {CAPTURE} in the folder TICKCAST_DATA, or in ../shared/data"),
    }
}

/// Counts records.
struct Count(u64);

impl Sink for Count {
    #[inline]
    fn message(&mut self, _: SourcePosition, records: &RecordBatch) {
        self.0 += records.len() as u64;
    }

    fn incident(&mut self, _: Incident) {}
}

/// Publishes the output of a decoder.
struct Publishing<'a> {
    publisher: &'a mut Publisher,
    /// Number of this pass. It is part of the position, because positions never go back.
    pass: u16,
    records: u64,
}

impl Sink for Publishing<'_> {
    #[inline]
    fn message(&mut self, from: SourcePosition, records: &RecordBatch) {
        self.records += records.len() as u64;
        let from = SourcePosition::new(self.pass, from.sequence());
        self.publisher.publish_batch(records, from);
    }

    fn incident(&mut self, _: Incident) {}
}

/// Decodes and publishes, until all receivers have everything.
pub(super) fn publish(desk: &Desk, load: Load, publisher: &mut Publisher) -> Outcome<()> {
    let Load::Feed {
        feed,
        symbols,
        messages,
        window,
    } = load
    else {
        return Err("this is no feed".into());
    };
    let packets = Packets::load(feed, symbols, messages)?;
    let began = (desk.clock)();
    let (messages, _) = packets.decode_alone();
    let decoded = (desk.clock)() - began;
    desk.send(&Word::Ready(publisher.address()));
    while !desk.go.load(Relaxed) || !publisher.is_joined() {
        publisher.drive()?;
        std::thread::yield_now();
    }
    let (began, cpu) = ((desk.clock)(), cpu_ns());
    let (mut records, mut driven) = (0, 0);
    for pass in 0..packets.passes {
        let mut decoder = packets.decoder();
        packets.each(|packet| {
            let mut sink = Publishing {
                publisher: &mut *publisher,
                pass: pass as u16,
                records,
            };
            decoder.packet(packet, &mut sink);
            records = sink.records;
            if records - driven < STEP {
                return Ok(());
            }
            driven = records;
            publisher.drive()?;
            while records - publisher.received().unwrap_or(records).min(records) > window {
                publisher.drive()?;
            }
            Ok(())
        })?;
    }
    publisher.drive()?;
    while publisher.received().unwrap_or(records) < records {
        publisher.drive()?;
    }
    let (took, cpu) = ((desk.clock)() - began, cpu_ns() - cpu);
    desk.send(&Word::Sent(records));
    while !desk.finish.load(Relaxed) {
        publisher.drive()?;
        std::thread::yield_now();
    }
    let per_s = |messages: u64, ns: u64| messages as f64 * 1e9 / ns.max(1) as f64;
    let part = Part {
        ticks: records,
        rate_per_s: per_s(records, took),
        decoded_per_s: Some(per_s(messages, decoded)),
        messages_per_s: Some(per_s(messages * packets.passes, took)),
        cpu_ns: cpu,
        memory_bytes: memory_bytes(),
        ..Part::default()
    };
    desk.send(&Word::Done(Box::new(part)));
    Ok(())
}
