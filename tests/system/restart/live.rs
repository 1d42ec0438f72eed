//! A publisher with a live input that is killed while its venue goes on: its epoch continues, and each
//! venue message is delivered once or reported as lost, by the venue's numbers.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use serde_json::json;
use tickcast_feeds::itch::{ItchDecoder, ItchSettings};
use tickcast_feeds::simulator::{Simulator, SimulatorConfig};
use tickcast_feeds::source::{Decoder, Incident, Packet, Sink};
use tickcast_reliability::types::{Nanos, SourcePosition};
use tickcast_subscriber::record::{InstrumentDefMsg, MboMsg, RecordBatch, SymbolMappingMsg};
use tickcast_subscriber::{Event, Item, StreamEvent};
use tickcast_test_support::{Follower, PATIENCE, Publisher, free_address, wait_for};

use super::kept::Kept;

/// Packets sent at once: a socket's default buffer holds them.
const UNREAD_MAX: usize = 16;

/// A part of the venue's stream, as a subscriber hears of it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Heard {
    /// A message was delivered.
    Message(SourcePosition),
    /// Messages were lost: the first, their number, and the instruments named.
    Lost(SourcePosition, u64, Vec<u32>),
}

/// A live venue and a subscriber of its publisher.
struct Run {
    kept: Kept,
    publisher: Publisher,
    epoch: u64,
    feed: UdpSocket,
    to: SocketAddr,
    /// Packets sent to this publisher.
    sent: u64,
    /// Messages that the killed publishers counted as decoded or missing.
    accounted: u64,
    follower: Follower,
    heard: Vec<Heard>,
    /// The number of items heard before each report that the source is heard again.
    backs: BTreeSet<usize>,
    /// The symbol of each id.
    names: BTreeMap<u32, String>,
    /// The ids of the messages' records.
    ids: Vec<u32>,
}

impl Run {
    fn new() -> Self {
        let to = free_address();
        let lines = json!([{ "listen": to }]);
        let kept = Kept::fed(json!({ "source": 9, "kind": "udp", "lines": lines }));
        let (publisher, _, epoch) = kept.started();
        let follower = Follower::new(publisher.subscriber().channel("all"));
        let mut run = Self {
            kept,
            publisher,
            epoch,
            feed: UdpSocket::bind("127.0.0.1:0").expect("a socket"),
            to,
            sent: 0,
            accounted: 0,
            follower,
            heard: Vec::new(),
            backs: BTreeSet::new(),
            names: BTreeMap::new(),
            ids: Vec::new(),
        };
        run.follow(&|run| run.publisher.joined() == 1);
        run
    }

    /// Sends packets, no faster than the publisher reads them.
    fn send(&mut self, packets: &[Vec<u8>]) {
        for some in packets.chunks(UNREAD_MAX) {
            for packet in some {
                self.feed.send_to(packet, self.to).expect("it is sent");
            }
            self.sent += some.len() as u64;
            self.follow(&|run| run.publisher.metric("source_received_packets_total") >= run.sent);
        }
    }

    /// Waits until the session is kept on disk.
    fn wait_until_kept(&self) {
        wait_for("the state of the source", || {
            let text = std::fs::read_to_string(self.kept.sources()).ok()?;
            text.contains("\"format\":\"").then_some(())
        });
    }

    /// Kills the publisher, and starts another one that continues its epoch.
    fn restart(&mut self) {
        self.accounted += self.accounted_now();
        self.publisher.kill();
        let (publisher, log, epoch) = self.kept.started();
        assert!(log.contains("continues the previous epoch"), "{log}");
        assert_eq!(epoch, self.epoch);
        self.publisher = publisher;
        self.sent = 0;
    }

    /// Polls the subscriber until `done` returns `true`.
    fn follow(&mut self, done: &dyn Fn(&Self) -> bool) {
        let began = Instant::now();
        loop {
            let worked = self.poll();
            if !worked && done(self) {
                return;
            }
            if !worked {
                std::thread::sleep(Duration::from_micros(50));
            }
            assert!(
                began.elapsed() < PATIENCE,
                "{:?} was the last",
                self.heard.last()
            );
        }
    }

    /// Polls once. Returns whether there was anything to do.
    fn poll(&mut self) -> bool {
        let (heard, backs) = (&mut self.heard, &mut self.backs);
        let (names, ids) = (&mut self.names, &mut self.ids);
        let mut name = |id: u32, symbol: &str| {
            let known = names.entry(id).or_insert_with(|| symbol.to_owned());
            assert_eq!(known, symbol, "{id} has another symbol");
        };
        self.follower.poll_with(&mut |item| match item {
            Item::Record(position, record) => {
                let id = record.header().instrument_id;
                if let Some(named) = record.get::<SymbolMappingMsg>() {
                    name(id, named.stype_in_symbol().expect("text"));
                } else if let Some(named) = record.get::<InstrumentDefMsg>() {
                    name(id, named.raw_symbol().expect("text"));
                } else if let Some(record) = record.get::<MboMsg>() {
                    let ordinal = position.source_position.ordinal();
                    let at = SourcePosition::new(ordinal, record.sequence.into());
                    if heard.last() != Some(&Heard::Message(at)) {
                        heard.push(Heard::Message(at));
                        ids.push(id);
                    }
                }
            }
            Item::Event(_, Event::Stream(event)) => match event {
                StreamEvent::SourceLost {
                    from,
                    messages,
                    instruments,
                    ..
                } => heard.push(Heard::Lost(*from, *messages, instruments.clone())),
                StreamEvent::SourceBack { .. } => drop(backs.insert(heard.len())),
                _ => {}
            },
            Item::Event(_, event) => {
                let is_bad = matches!(event, Event::Lost(_) | Event::EpochChanged { .. });
                assert!(!is_bad, "{event}");
            }
        })
    }

    /// Returns the messages that this publisher counts as decoded or missing.
    fn accounted_now(&self) -> u64 {
        let messages = self.publisher.metric_now("source_messages_total");
        messages
            + self
                .publisher
                .metric_now("source_message_faults_total{reason=\"missing\"}")
    }

    fn end(&mut self) {
        self.accounted += self.accounted_now();
        self.publisher.terminate();
        self.follow(&|run| run.follower.subscriber.ended());
        self.follower.assert_balanced();
    }
}

/// Returns a segment of DEEP with one level of a symbol for each message from `first` on.
fn segment(session: u32, first: u64, symbols: &[&str]) -> Vec<u8> {
    let at: u64 = 1_500_000_000_000_000_000 + first;
    let mut payload = Vec::new();
    for symbol in symbols {
        payload.extend(30_u16.to_le_bytes());
        payload.extend([b'8', 1]);
        payload.extend(at.to_le_bytes());
        payload.extend(format!("{symbol:<8}").as_bytes());
        payload.extend(100_u32.to_le_bytes());
        payload.extend(1_000_000_i64.to_le_bytes());
    }
    let mut bytes = vec![1, 0];
    bytes.extend(0x8004_u16.to_le_bytes());
    bytes.extend(1_u32.to_le_bytes());
    bytes.extend(session.to_le_bytes());
    bytes.extend((payload.len() as u16).to_le_bytes());
    bytes.extend((symbols.len() as u16).to_le_bytes());
    bytes.extend(0_u64.to_le_bytes());
    bytes.extend(first.to_le_bytes());
    bytes.extend(at.to_le_bytes());
    bytes.extend(payload);
    bytes
}

#[test]
fn live_source_continues_with_venues_numbers_and_ids() {
    let at = SourcePosition::new;
    let is_at = |last| move |run: &Run| run.heard.last() == Some(&Heard::Message(last));
    let mut run = Run::new();
    run.send(&[segment(7, 1, &["A", "B"]), segment(7, 3, &["C", "A"])]);
    run.follow(&is_at(at(0, 4)));
    run.wait_until_kept();
    run.restart();
    // Messages 5 to 9 are missed, one of which names D. Message 4 was published before.
    run.send(&[segment(7, 4, &["A"]), segment(7, 10, &["E", "C", "D"])]);
    run.follow(&is_at(at(0, 12)));
    let surplus = "surplus_messages_total{reason=\"duplicate\"}";
    let counts = [
        "messages_total",
        "message_faults_total{reason=\"missing\"}",
        surplus,
        "events_total{event=\"gap\"}",
    ];
    let counts = counts.map(|name| run.publisher.metric_now(&format!("source_{name}")));
    assert_eq!(counts, [3, 5, 1, 1], "9 messages since message 3");
    // Nothing is missed.
    run.restart();
    run.send(&[segment(7, 13, &["D", "B"])]);
    run.follow(&is_at(at(0, 14)));
    // Two kills within one interval, in which messages 15 and 16 are missed.
    run.restart();
    run.restart();
    run.send(&[segment(7, 17, &["E"])]);
    run.follow(&is_at(at(0, 17)));
    // The venue opens another session meanwhile.
    run.restart();
    run.send(&[segment(8, 3, &["A"]), segment(8, 4, &["F"])]);
    run.follow(&is_at(at(1, 4)));
    run.end();
    let message = |ordinal| move |sequence| Heard::Message(at(ordinal, sequence));
    let lost = |ordinal, from, messages| Heard::Lost(at(ordinal, from), messages, Vec::new());
    let expected: Vec<Heard> = (1..=4)
        .map(message(0))
        .chain([lost(0, 5, 5)])
        .chain((10..=14).map(message(0)))
        .chain([lost(0, 15, 2)])
        .chain([17].map(message(0)))
        .chain([lost(0, 18, u64::MAX), lost(1, 1, 2)])
        .chain((3..=4).map(message(1)))
        .collect();
    assert_eq!(run.heard, expected);
    let unknown = 1;
    assert_eq!(
        run.accounted,
        17 + unknown + 4,
        "each message once in all lives"
    );
    // A silence that the killed publisher may have reported ends before anything else.
    let first_of_lives = [4, 8, 10, 12];
    let backs = &run.backs;
    assert!(
        first_of_lives.iter().all(|at| backs.contains(at)),
        "{backs:?}"
    );
    let symbols: Vec<&str> = run.ids.iter().map(|id| &*run.names[id]).collect();
    let sent = ["A", "B", "C", "A", "E", "C", "D", "D", "B", "E", "A", "F"];
    assert_eq!(symbols, sent, "an id is that of its symbol in every life");
    assert_eq!(run.names.len(), 6, "each symbol has one id");
}

#[test]
fn count_that_venue_restarted_meanwhile_is_another_run() {
    let at = SourcePosition::new;
    let is_at = |last| move |run: &Run| run.heard.last() == Some(&Heard::Message(last));
    let mut run = Run::new();
    run.send(&[segment(7, 1, &["A"]), segment(7, 200, &["B"])]);
    run.follow(&is_at(at(0, 200)));
    run.wait_until_kept();
    run.restart();
    // Message 5 may be of a slower line; message 6 comes too late for that.
    run.send(&[segment(7, 5, &["C"])]);
    std::thread::sleep(Duration::from_millis(110));
    run.send(&[segment(7, 6, &["C"]), segment(7, 7, &["A"])]);
    run.follow(&is_at(at(1, 7)));
    let counts = [
        "events_total{event=\"sequence_reset\"}",
        "surplus_messages_total{reason=\"duplicate\"}",
        "events_total{event=\"gap\"}",
    ];
    let counts = counts.map(|name| run.publisher.metric_now(&format!("source_{name}")));
    assert_eq!(counts, [1, 1, 2]);
    run.end();
    let lost = |ordinal, from, messages| Heard::Lost(at(ordinal, from), messages, Vec::new());
    let expected = [
        Heard::Message(at(0, 1)),
        lost(0, 2, 198),
        Heard::Message(at(0, 200)),
        lost(0, 201, u64::MAX),
        lost(1, 1, 5),
        Heard::Message(at(1, 6)),
        Heard::Message(at(1, 7)),
    ];
    assert_eq!(run.heard, expected);
    let unknown = 1;
    assert_eq!(
        run.accounted,
        200 + unknown + 7,
        "each message once in both lives"
    );
}

/// The sequences of messages that become order records, and the instruments.
#[derive(Default)]
struct Orders {
    sequences: BTreeSet<u64>,
    instruments: BTreeSet<u32>,
}

impl Sink for Orders {
    fn message(&mut self, position: SourcePosition, records: &RecordBatch) {
        for record in records.records() {
            self.instruments.insert(record.header().instrument_id);
            if record.get::<MboMsg>().is_some() {
                self.sequences.insert(position.sequence());
            }
        }
    }

    fn incident(&mut self, _: Incident) {}
}

#[test]
fn killed_live_publisher_delivers_or_reports_each_message() {
    let market = SimulatorConfig {
        symbols: 5,
        messages: 3_000,
        ..SimulatorConfig::default()
    };
    let mut simulator = Simulator::new(&market, 3).expect("a market");
    // Packets, each with the sequence of the last order up to its end.
    let (mut packets, mut orders) = (Vec::new(), Orders::default());
    let mut decoder = ItchDecoder::new(ItchSettings::default());
    while let Some(packet) = simulator.next_packet() {
        let payload = packet.payload;
        let received_at = Nanos(1);
        decoder.packet(
            Packet {
                received_at,
                payload,
            },
            &mut orders,
        );
        let last_order = orders.sequences.last().copied();
        packets.push((payload.to_vec(), last_order.unwrap_or_default()));
    }
    orders.instruments.remove(&0);
    let mut run = Run::new();
    let (lives, mut settled) = (5, BTreeSet::new());
    for (life, some) in packets.chunks(packets.len() / lives + 1).enumerate() {
        // The end of each part comes while nobody listens. In one part nothing is missed.
        let missed = if life == 2 { 0 } else { 3 + life };
        let last = life + 1 == lives;
        let heard = if last {
            some.len()
        } else {
            some.len() - missed
        };
        let sent: Vec<_> = some[..heard]
            .iter()
            .map(|(packet, _)| packet.clone())
            .collect();
        run.send(&sent);
        run.wait_until_kept();
        // Every other publisher is killed while messages may wait in it.
        if life % 2 == 0 {
            let (first, last) = (some[0].1, some[heard - 1].1);
            run.follow(&|run| {
                run.heard.last() == Some(&Heard::Message(SourcePosition::new(0, last)))
            });
            settled.extend(orders.sequences.range(first..=last).copied());
        }
        if !last {
            run.restart();
        }
    }
    assert!(
        run.publisher
            .metric_now("source_message_faults_total{reason=\"unknown_order\"}")
            > 0
    );
    run.end();
    let (mut delivered, mut lost, mut begun_anew) = (BTreeSet::new(), BTreeSet::new(), 0);
    for heard in &run.heard {
        match heard {
            Heard::Message(at) => assert!(delivered.insert(at.sequence()), "{at} is repeated"),
            Heard::Lost(_, 0, instruments) => {
                begun_anew += 1;
                let named: BTreeSet<u32> = instruments.iter().copied().collect();
                assert_eq!(named, orders.instruments);
            }
            Heard::Lost(from, messages, _) => {
                lost.extend(from.sequence()..from.sequence() + messages);
            }
        }
    }
    assert_eq!(begun_anew, lives - 1, "the books begin anew in each life");
    assert!(delivered.is_disjoint(&lost));
    let all: BTreeSet<u64> = delivered.union(&lost).copied().collect();
    let missing: Vec<_> = orders.sequences.difference(&all).collect();
    assert!(
        missing.is_empty(),
        "neither delivered nor reported: {missing:?}"
    );
    assert!(settled.is_subset(&delivered));
}
