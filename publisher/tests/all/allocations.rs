//! After the start, a publisher on its handler's thread allocates nothing on that thread: not to publish
//! in any way, not to seal and send, and not while idle. Every publisher drives its channels the same
//! way. The queue in front of a publish thread has its own test.

use crate::common::group;
use allocation_counter::measure;
use serde_json::{Value, json};
use tickcast_publisher::record::{RType, RecordBatch, RecordHeader, TradeMsg};
use tickcast_publisher::{Config, InlinePublisher, SourcePosition};

/// Ticks published in each way while nothing may be allocated.
const TICKS: u64 = 10_000;

fn udp(gso: bool) -> Value {
    let lines = json!([{ "group": group() }, { "group": group() }]);
    json!({ "transport": "udp", "lines": lines, "gso": gso })
}

fn open(fan_outs: &[Value], journal: &Value, digest: bool) -> InlinePublisher {
    let config = json!({
        "name": "test", "control": "127.0.0.1:0", "interface": "lo", "inputs": [],
        "digest": digest, "journal": journal,
        "channels": [{ "id": 1, "name": "all", "slots": 4096, "fan_out": fan_outs }],
    });
    InlinePublisher::open(Config::parse(&config.to_string()).unwrap()).unwrap()
}

/// Returns a tick, and its position in the source.
fn tick(number: u64) -> (TradeMsg, SourcePosition) {
    let tick = TradeMsg {
        hd: RecordHeader::new::<TradeMsg>(RType::Mbp0 as u8, 1, 7, number),
        size: number as u32,
        ..TradeMsg::default()
    };
    (tick, SourcePosition::new(0, number))
}

/// A publisher, and its next ticks.
struct Ticks {
    publisher: InlinePublisher,
    next: u64,
    batch: RecordBatch,
    run: Vec<TradeMsg>,
}

impl Ticks {
    fn new(publisher: InlinePublisher) -> Self {
        Self {
            publisher,
            next: 1,
            batch: RecordBatch::with_capacity(1024),
            run: Vec::with_capacity(1000),
        }
    }

    /// Returns the numbers of the next ticks.
    fn next(&mut self, count: u64) -> std::ops::Range<u64> {
        let first = self.next;
        self.next += count;
        first..self.next
    }

    fn drive(&mut self) {
        while self.publisher.drive().unwrap() {}
    }

    fn one_by_one(&mut self) {
        for number in self.next(TICKS) {
            let (tick, at) = tick(number);
            self.publisher.publish(0, &tick, at);
            self.drive();
        }
    }

    /// Publishes many full datagrams before they are sent.
    fn in_bursts(&mut self) {
        for _ in 0..TICKS / 1000 {
            for number in self.next(1000) {
                let (tick, at) = tick(number);
                self.publisher.publish(0, &tick, at);
            }
            self.drive();
        }
    }

    fn by_messages(&mut self) {
        for _ in 0..TICKS / 10 {
            self.batch.clear();
            let numbers = self.next(10);
            let (_, at) = tick(numbers.end - 1);
            numbers.for_each(|number| self.batch.put(&tick(number).0));
            self.publisher.publish_batch(0, &self.batch, at);
            self.drive();
        }
    }

    /// Publishes through the channel's handle if it is available, in datagrams of one record and full ones.
    fn by_channel(&mut self) {
        for ticks in [1, 1000] {
            for _ in 0..TICKS / ticks {
                let numbers = self.next(ticks);
                let Some(mut channel) = self.publisher.channel(0) else {
                    return;
                };
                for number in numbers {
                    let (tick, at) = tick(number);
                    channel.publish(&tick, at);
                }
                drop(channel);
                self.drive();
            }
        }
    }

    /// Publishes runs through the channel's handle: parts of a datagram, and several datagrams.
    fn by_runs(&mut self) {
        for ticks in [10, 1000] {
            for _ in 0..TICKS / ticks {
                let numbers = self.next(ticks);
                let (_, at) = tick(numbers.start);
                self.run.clear();
                self.run.extend(numbers.map(|number| tick(number).0));
                let Some(mut channel) = self.publisher.channel(0) else {
                    return;
                };
                channel.publish_run(&self.run, at);
                drop(channel);
                self.drive();
            }
        }
    }

    fn idle(&mut self) {
        let worked = (0..TICKS).filter(|_| self.publisher.drive().unwrap());
        assert!((worked.count() as u64) < TICKS, "heartbeats, at most");
    }
}

type Way = (&'static str, fn(&mut Ticks));

const WAYS: [Way; 6] = [
    ("one by one", Ticks::one_by_one),
    ("in bursts", Ticks::in_bursts),
    ("by messages", Ticks::by_messages),
    ("by the channel's handle", Ticks::by_channel),
    ("by runs", Ticks::by_runs),
    ("idle", Ticks::idle),
];

fn allocates_nothing(publisher: InlinePublisher) {
    let mut ticks = Ticks::new(publisher);
    // Warm up until all buffers have their final size.
    WAYS.iter().for_each(|(_, way)| way(&mut ticks));
    for (name, way) in WAYS {
        let counted = measure(|| way(&mut ticks));
        assert_eq!(counted.count_total, 0, "{name}: {counted:?}");
    }
    let published = ticks.publisher.monitor().channels()[0]
        .sender
        .published_records
        .get();
    assert!(published >= 6 * TICKS, "{published}");
}

#[test]
fn published_tick_over_udp_allocates_nothing() {
    for gso in [true, false] {
        allocates_nothing(open(&[udp(gso)], &Value::Null, false));
    }
}

#[test]
fn nor_over_shared_memory_beside_udp() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let shm = json!({ "transport": "shm", "path": folder.path().join("ring") });
    allocates_nothing(open(&[udp(true), shm], &Value::Null, false));
}

#[test]
fn nor_where_a_digest_is_kept_or_a_journal() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    allocates_nothing(open(
        &[udp(true)],
        &json!({ "directory": folder.path() }),
        false,
    ));
    allocates_nothing(open(&[udp(true)], &Value::Null, true));
}
