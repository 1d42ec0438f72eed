//! The simulated market seen from outside: a book built from its decoded packets equals the
//! simulator's own book.

use std::collections::{HashMap, HashSet};

use jiff::civil::date;
use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tickcast_feeds::{
    itch::{ItchDecoder, ItchSettings, TradeDate},
    moldudp64::{END_OF_SESSION, MoldHeader},
    simulator::{
        Arrivals, Mix, Simulator, SimulatorConfig, SimulatorError,
        book::{Book, Side},
    },
    source::{Decoder, Incident, Packet, Sink},
};
use tickcast_reliability::record::{Action, InstrumentDefMsg, MboMsg, RecordBatch};
use tickcast_reliability::types::{Nanos, SourcePosition};

/// A subscriber's view: books built from A, C and M messages alone.
#[derive(Default)]
struct Books {
    /// Side, price in 1e-9 and size, by instrument and order.
    orders: HashMap<u32, HashMap<u64, (char, i64, u32)>>,
    incidents: Vec<Incident>,
    fills: u64,
    newest: u64,
}

impl Sink for Books {
    fn message(&mut self, position: SourcePosition, records: &RecordBatch) {
        assert_eq!(
            position.sequence(),
            self.newest + 1,
            "no message is left out"
        );
        self.newest += 1;
        let mut is_last = None;
        for record in records.records() {
            let Some(m) = record.get::<MboMsg>() else {
                continue;
            };
            assert_ne!(is_last, Some(true), "LAST comes last");
            is_last = Some(m.flags.is_last());
            let book = self.orders.entry(m.hd.instrument_id).or_default();
            let side = char::from(m.side as u8);
            match m.action().unwrap() {
                Action::Add => {
                    let known = book.insert(m.order_id, (side, m.price, m.size));
                    assert!(known.is_none(), "a reference is used once");
                }
                Action::Cancel => {
                    let order = book.get_mut(&m.order_id).unwrap();
                    assert_eq!((order.0, order.1), (side, m.price));
                    order.2 = order.2.checked_sub(m.size).unwrap();
                    if order.2 == 0 {
                        book.remove(&m.order_id);
                    }
                }
                Action::Fill => {
                    self.fills += 1;
                    let (side, price, size) = book[&m.order_id];
                    assert!(m.size <= size, "no more is executed than rests");
                    let is_better = |other: &(char, i64, u32)| match side {
                        'B' => other.1 > price,
                        _ => other.1 < price,
                    };
                    let better = book.values().any(|o| o.0 == side && is_better(o));
                    assert!(!better, "the best price is executed first");
                    let older = book
                        .iter()
                        .any(|(id, o)| o.0 == side && o.1 == price && *id < m.order_id);
                    assert!(!older, "at one price the oldest order is executed first");
                }
                _ => {}
            }
        }
        assert_ne!(is_last, Some(false), "an event ends");
    }

    fn incident(&mut self, incident: Incident) {
        self.incidents.push(incident);
    }
}

impl Books {
    fn assert_equal(&self, simulator: &Simulator, seed: u64) {
        for locate in 1..=simulator.symbols() {
            let book = simulator.book(locate).unwrap();
            let letter = |side| if side == Side::Bid { 'B' } else { 'A' };
            let expected: HashMap<_, _> = [Side::Bid, Side::Ask]
                .into_iter()
                .flat_map(|side| book.orders(side))
                .map(|o| {
                    (
                        o.reference,
                        (letter(o.side), i64::from(o.price) * 100_000, o.shares),
                    )
                })
                .collect();
            let ours = self
                .orders
                .get(&u32::from(locate))
                .cloned()
                .unwrap_or_default();
            assert_eq!(
                ours, expected,
                "seed {seed}, locate {locate}, message {}",
                self.newest
            );
            assert_uncrossed(book, seed);
        }
    }
}

fn assert_uncrossed(book: &Book, seed: u64) {
    if let (Some(bid), Some(ask)) = (book.best(Side::Bid), book.best(Side::Ask)) {
        assert!(bid < ask, "seed {seed}: {bid} meets {ask}");
    }
}

/// A sink that counts records, and keeps nothing.
struct Records(u64);

impl Sink for Records {
    fn message(&mut self, _: SourcePosition, records: &RecordBatch) {
        self.0 += records.len() as u64;
    }

    fn incident(&mut self, _: Incident) {}
}

fn decoder() -> ItchDecoder {
    ItchDecoder::new(ItchSettings {
        trade_date: TradeDate::Fixed(date(2025, 3, 7)),
        expect_from_one: true,
        ..ItchSettings::default()
    })
}

fn config() -> SimulatorConfig {
    SimulatorConfig {
        symbols: 20,
        messages: 150_000,
        pauses_per_million: 500.0,
        pause_ms: 20,
        ..SimulatorConfig::default()
    }
}

fn packets(config: &SimulatorConfig, seed: u64) -> Vec<(Nanos, Vec<u8>)> {
    let mut simulator = Simulator::new(config, seed).unwrap();
    let mut packets = Vec::new();
    while let Some(packet) = simulator.next_packet() {
        packets.push((packet.at, packet.payload.to_vec()));
    }
    packets
}

#[test]
fn subscriber_books_equal_simulator_books() {
    for seed in [1, 2] {
        let mut simulator = Simulator::new(&config(), seed).unwrap();
        let (mut decoder, mut books) = (decoder(), Books::default());
        let mut checkpoints = 0;
        while let Some(packet) = simulator.next_packet() {
            let packet = Packet {
                received_at: Nanos(1 + packet.at.0),
                payload: packet.payload,
            };
            decoder.packet(packet, &mut books);
            let given = decoder.counts().total();
            assert_eq!(simulator.is_settled(), given == simulator.messages());
            if simulator.is_settled() && books.newest >= checkpoints * 5_000 {
                checkpoints += 1;
                books.assert_equal(&simulator, seed);
            }
        }
        books.assert_equal(&simulator, seed);
        assert!(checkpoints > 25, "seed {seed}: {checkpoints} checkpoints");
        assert!(books.fills > 5_000, "seed {seed}: {} fills", books.fills);
        assert_eq!(books.incidents, [Incident::EndOfSession], "seed {seed}");
        assert_eq!(books.newest, simulator.messages());
        assert_eq!(decoder.counts().total(), simulator.messages());
        assert!(simulator.messages() >= 150_000);
        for kind in *b"SRHYLVhJAFECXDUPQBIN" {
            let n = decoder.counts().of(kind);
            assert!(n > 0, "seed {seed}: no {}", char::from(kind));
        }
        assert_eq!(decoder.counts().of(b'R'), 20);
        assert_eq!(decoder.counts().of(b'S'), 6);
    }
}

#[test]
fn same_seed_gives_same_bytes_other_seed_others() {
    let config = SimulatorConfig {
        messages: 20_000,
        ..config()
    };
    assert!(packets(&config, 3) == packets(&config, 3));
    assert!(packets(&config, 3) != packets(&config, 4));
}

/// FNV-1a over the time and bytes of all packets.
fn digest(config: &SimulatorConfig, seed: u64) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for (at, payload) in packets(config, seed) {
        for byte in at.0.to_be_bytes().into_iter().chain(payload) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    hash
}

/// Measurements are compared by their seed, so a change of the market must be a decision.
#[test]
fn seed_gives_the_same_day_in_every_build() {
    let few = SimulatorConfig {
        symbols: 3,
        messages: 3_000,
        depth: 4,
        attributed: 0.5,
        price_min_cents: 100,
        price_max_cents: 102,
        pauses_per_million: 20_000.0,
        pause_ms: 1,
        payload_max: 200,
        ..config()
    };
    let timed = SimulatorConfig {
        symbols: 101,
        messages: 0,
        duration_ms: 2_500,
        coalesce_us: 0,
        arrivals: Arrivals {
            base_per_s: 2.0,
            ..Arrivals::default()
        },
        ..config()
    };
    let usual = SimulatorConfig {
        messages: 30_000,
        ..config()
    };
    let digests = [(few, 1), (timed, 2), (usual, 3)].map(|(config, seed)| digest(&config, seed));
    let expected = [
        0xa9d6_254d_c6bc_f94a,
        0xd925_5d9f_1eec_2b62,
        0x256b_a434_a1b2_6cac,
    ];
    assert_eq!(digests, expected, "{digests:#018x?}");
}

#[test]
fn packets_are_genuine_numbered_without_gap_and_within_the_mtu() {
    let config = SimulatorConfig {
        messages: 50_000,
        payload_max: 600,
        ..config()
    };
    let packets = packets(&config, 5);
    let (mut next, mut at, mut in_several) = (1, Nanos(0), 0);
    let mut ends = 0;
    for (sent_at, payload) in &packets {
        assert!(payload.len() <= 600);
        assert!(*sent_at >= at, "time never goes back");
        at = *sent_at;
        let (header, mut blocks) = MoldHeader::split(payload).unwrap();
        assert_eq!((header.session, header.sequence), (*b"TICKCAST  ", next));
        if header.count == END_OF_SESSION {
            ends += 1;
            continue;
        }
        assert_eq!(ends, 0, "nothing follows the end");
        in_several += u32::from(header.count > 1);
        for _ in 0..header.count {
            let len = usize::from(u16::from_be_bytes([blocks[0], blocks[1]]));
            blocks = &blocks[2 + len..];
        }
        assert!(blocks.is_empty());
        next += u64::from(header.count);
    }
    assert_eq!(ends, 3, "the end is said more than once");
    assert!(in_several > 100);
}

#[test]
fn lossy_line_drops_are_missing_to_the_message() {
    let (seed, mut rng) = (10, ChaCha8Rng::seed_from_u64(10));
    let config = SimulatorConfig {
        messages: 30_000,
        ..config()
    };
    let (mut decoder, mut reported) = (decoder(), crate::common::Counted::default());
    let (mut sent, mut dropped) = (0, 0);
    for (at, payload) in &packets(&config, seed) {
        let count = MoldHeader::split(payload).unwrap().0.count;
        let count = if count == END_OF_SESSION {
            0
        } else {
            u64::from(count)
        };
        sent += count;
        if count > 0 && rng.random_range(0..20_u32) == 0 {
            dropped += count;
            continue;
        }
        for _ in 0..rng.random_range(1..3_u32) {
            decoder.packet(
                Packet {
                    received_at: Nanos(1 + at.0),
                    payload,
                },
                &mut reported,
            );
        }
    }
    let missing = reported.incidents.iter().map(|incident| match incident {
        Incident::Gap { missing, .. } => *missing,
        _ => 0,
    });
    assert_eq!(missing.sum::<u64>(), dropped, "seed {seed}");
    assert_eq!(reported.messages + dropped, sent, "seed {seed}");
    assert_eq!(reported.out_of_order, 0, "seed {seed}");
    assert!(dropped > 500, "seed {seed}: {dropped}");
}

#[test]
fn quiet_line_carries_heartbeats() {
    let config = SimulatorConfig {
        symbols: 1,
        messages: 0,
        duration_ms: 60_000,
        arrivals: Arrivals {
            base_per_s: 0.1,
            branching: 0.0,
            ..Arrivals::default()
        },
        ..config()
    };
    let packets = packets(&config, 6);
    let heartbeats = packets
        .iter()
        .filter(|(_, p)| p.len() == 20 && p[18..] == [0, 0])
        .count();
    assert!(
        (40..=60).contains(&heartbeats),
        "{heartbeats} in a minute of few messages"
    );
    for pair in packets.windows(2) {
        assert!(pair[1].0.since(pair[0].0) <= Nanos::from_ms(1_001));
    }
    let mut reported = crate::common::Recorded::default();
    let mut decoder = decoder();
    for (at, payload) in &packets {
        decoder.packet(
            Packet {
                received_at: Nanos(1 + at.0),
                payload,
            },
            &mut reported,
        );
    }
    assert_eq!(reported.incidents, [Incident::EndOfSession]);
}

#[test]
fn simulated_day_starts_with_directory_and_ends_on_time() {
    let config = SimulatorConfig {
        names: vec!["ZVZZT".into()],
        messages: 0,
        duration_ms: 50,
        ..config()
    };
    let mut reported = crate::common::Recorded::default();
    let mut decoder = decoder();
    for (at, payload) in &packets(&config, 7) {
        decoder.packet(
            Packet {
                received_at: Nanos(1 + at.0),
                payload,
            },
            &mut reported,
        );
    }
    let definitions = reported.all::<InstrumentDefMsg>();
    let symbols: Vec<_> = definitions
        .iter()
        .map(|d| d.raw_symbol().unwrap())
        .collect();
    assert_eq!(symbols[..3], ["ZVZZT", "AAAA", "AAAB"]);
    assert_eq!(symbols.iter().collect::<HashSet<_>>().len(), 20);
    // 2025-03-07 09:30 in New York, at UTC-5.
    let begins = 1_741_357_800_000_000_000;
    assert_eq!(
        reported.messages[0]
            .1
            .records()
            .next()
            .unwrap()
            .header()
            .ts_event,
        begins
    );
    let last = reported
        .messages
        .last()
        .unwrap()
        .1
        .records()
        .next()
        .unwrap()
        .header()
        .ts_event;
    assert!(
        (50_000_000..60_000_000).contains(&(last - begins)),
        "trading lasted 50 ms"
    );
}

#[test]
fn arrivals_come_at_the_configured_rate_and_cluster() {
    let config = SimulatorConfig {
        symbols: 4,
        messages: 0,
        duration_ms: 200_000,
        arrivals: Arrivals {
            base_per_s: 100.0,
            branching: 0.6,
            decay_per_s: 500.0,
            skew: 0.0,
        },
        pauses_per_million: 0.0,
        coalesce_us: 0,
        ..config()
    };
    let seed = 8;
    let mut simulator = Simulator::new(&config, seed).unwrap();
    let (mut arrivals, mut in_window) = (0_u64, vec![0_u64; 2_000]);
    while let Some(packet) = simulator.next_packet() {
        let window = (packet.at.0 / 100_000_000) as usize;
        arrivals += 1;
        if let Some(n) = in_window.get_mut(window) {
            *n += 1;
        }
    }
    // One packet per arrival, except for arrivals in one nanosecond, and the opening.
    let rate = arrivals as f64 / 200.0;
    let expected = 4.0 * 100.0 / (1.0 - 0.6);
    assert!(
        (rate / expected - 1.0).abs() < 0.04,
        "seed {seed}: {rate} for {expected}"
    );
    let n = in_window.len() as f64;
    let mean = in_window.iter().sum::<u64>() as f64 / n;
    let variance = in_window
        .iter()
        .map(|&c| (c as f64 - mean).powi(2))
        .sum::<f64>()
        / n;
    assert!(
        variance / mean > 3.0,
        "seed {seed}: {} is 1 for Poisson",
        variance / mean
    );
}

#[test]
fn simulator_defines_all_symbols_at_maximum_count() {
    let config = SimulatorConfig {
        symbols: u16::MAX,
        messages: 1,
        ..SimulatorConfig::default()
    };
    let mut simulator = Simulator::new(&config, 9).unwrap();
    let (mut decoder, mut reported) = (decoder(), crate::common::Counted::default());
    while let Some(packet) = simulator.next_packet() {
        let packet = Packet {
            received_at: Nanos(1),
            payload: packet.payload,
        };
        decoder.packet(packet, &mut reported);
    }
    assert_eq!(decoder.counts().of(b'R'), 65_535);
    assert_eq!(reported.incidents, [Incident::EndOfSession]);
    assert!(simulator.book(0).is_none());
    assert!(!simulator.book(u16::MAX).unwrap().is_empty());
    assert_eq!(simulator.name(1), Some(*b"AAAA    "));
}

#[test]
fn market_without_bounds_trades_beyond_midnight() {
    let config = SimulatorConfig {
        symbols: 2,
        begins_at_s: 85_990,
        ..SimulatorConfig::default()
    };
    assert!(config.is_endless());
    let mut simulator = Simulator::new(&config, 1).unwrap();
    let beyond = Nanos::from_secs(60);
    let at = loop {
        let packet = simulator.next_packet().expect("it does not end");
        if packet.at > beyond {
            break packet.at;
        }
    };
    assert!(at > beyond);
    assert!(simulator.messages() > 1_000);
}

#[test]
fn simulator_with_zero_symbols_is_refused() {
    let config = SimulatorConfig {
        symbols: 0,
        ..SimulatorConfig::default()
    };
    assert!(matches!(
        Simulator::new(&config, 1).err(),
        Some(SimulatorError::Range {
            field: "symbols",
            ..
        })
    ));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn accepted_simulator_config_yields_day_that_ends(
        (symbols, depth, payload_max) in (1_u16..9, 2_u32..60, 128_u16..9_000),
        (messages, duration_ms) in (1_u64..3_000, 0_u64..2_000),
        (base_per_s, branching, skew) in (1e-3..1e6, 0.0..0.999, 0.0..4.0),
        (add, cancel, delete, replace) in (0.1..9.0, 0.0..9.0, 0.1..9.0, 0.0..9.0),
        (execute, hidden, attributed) in (0.0..50.0, 0.0..9.0, 0.0..=1.0),
        (price_min_cents, pauses_per_million) in (100_u32..300, 0.0..1e6),
        seed in any::<u64>(),
    ) {
        let config = SimulatorConfig {
            symbols, depth, payload_max, messages, duration_ms, attributed,
            arrivals: Arrivals { base_per_s, branching, skew, ..Arrivals::default() },
            mix: Mix { add, cancel, delete, replace, execute, hidden },
            price_min_cents, price_max_cents: 300, pauses_per_million,
            begins_at_s: 85_000,
            ..SimulatorConfig::default()
        };
        let mut simulator = Simulator::new(&config, seed).unwrap();
        let (mut decoder, mut books) = (decoder(), Books::default());
        while let Some(packet) = simulator.next_packet() {
            let packet = Packet { received_at: Nanos(1), payload: packet.payload };
            decoder.packet(packet, &mut books);
        }
        books.assert_equal(&simulator, seed);
        prop_assert_eq!(books.incidents, [Incident::EndOfSession]);
    }

    #[test]
    fn damaged_packets_of_a_market_never_make_the_decoder_panic(
        seed in 0_u64..20,
        damage in prop::collection::vec(
            (any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<u8>()), 1..200),
    ) {
        let config = SimulatorConfig { symbols: 2, messages: 400, ..SimulatorConfig::default() };
        let mut packets = packets(&config, seed);
        for (packet, at, value) in damage {
            let packet = packet.index(packets.len());
            let payload = &mut packets[packet].1;
            let at = at.index(payload.len());
            payload[at] = value;
        }
        let (mut decoder, mut reported) = (decoder(), crate::common::Counted::default());
        for (at, payload) in &packets {
            decoder.packet(Packet { received_at: *at, payload }, &mut reported);
        }
        prop_assert_eq!(reported.out_of_order, 0);
    }
}

/// The memory of the market and of its decoder does not grow: in the last hour of a day it is that of the
/// first minute.
#[test]
fn simulator_and_decoder_do_not_allocate() {
    let config = SimulatorConfig {
        symbols: 200,
        messages: 0,
        duration_ms: 3_600_000,
        ..SimulatorConfig::default()
    };
    for seed in [1, 7] {
        let mut simulator = Simulator::new(&config, seed).unwrap();
        let (mut decoder, mut seen) = (decoder(), Records(0));
        let mut until = |messages: u64| {
            while decoder.counts().total() < messages {
                let packet = simulator.next_packet().expect("an hour of trading");
                let packet = Packet {
                    received_at: Nanos(1 + packet.at.0),
                    payload: packet.payload,
                };
                decoder.packet(packet, &mut seen);
            }
        };
        // Run through the opening, which announces the instruments.
        until(10_000);
        let counted = allocation_counter::measure(|| until(3_000_000));
        assert_eq!(counted.count_total, 0, "seed {seed}: {counted:?}");
        assert!(seen.0 > 2_990_000, "seed {seed}: {} records", seen.0);
    }
}

/// No test, but a benchmark that prints the speed:
/// `cargo test --release -- --ignored --nocapture speed`.
#[test]
#[ignore = "measures"]
fn speed() {
    let config = SimulatorConfig {
        messages: 5_000_000,
        ..SimulatorConfig::default()
    };
    let mut simulator = Simulator::new(&config, 1).unwrap();
    let (mut bytes, mut lens) = (Vec::with_capacity(300 << 20), Vec::new());
    let start = std::time::Instant::now();
    while let Some(packet) = simulator.next_packet() {
        bytes.extend_from_slice(packet.payload);
        lens.push(packet.payload.len());
    }
    let made = start.elapsed().as_secs_f64();
    let (mut decoder, mut sink, mut at) = (decoder(), Records(0), 0);
    let start = std::time::Instant::now();
    for len in &lens {
        let payload = &bytes[at..at + len];
        at += len;
        decoder.packet(
            Packet {
                received_at: Nanos(1),
                payload,
            },
            &mut sink,
        );
    }
    let decoded = start.elapsed().as_secs_f64();
    let messages = simulator.messages() as f64 / 1e6;
    println!(
        "{} packets, {} records; made {:.1} M messages/s, decoded {:.1} M messages/s",
        lens.len(),
        sink.0,
        messages / made,
        messages / decoded
    );
}
