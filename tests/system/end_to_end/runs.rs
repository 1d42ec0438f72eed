//! Runs of records from end to end: an application gets from `poll_batches` exactly the records that a
//! handler publishes by `publish_run`, with their numbers and positions.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tickcast_publisher::{Config, InlinePublisher, SourcePosition, trade};
use tickcast_subscriber::faults::FaultConfig;
use tickcast_subscriber::record::{Records, TradeMsg};
use tickcast_subscriber::{Deliver, Event, Item, Position, Subscriber, SubscriberBuilder};
use tickcast_test_support::{PATIENCE, free_group};

/// Lengths of runs: empty, a part of a datagram, about one datagram, many datagrams.
const RUNS: [u64; 7] = [0, 1, 2, 28, 29, 30, 700];
const ROUNDS: u64 = 20;

/// Received records in order, each with its position, and the number of runs that arrived as runs.
#[derive(Default)]
struct Taken {
    records: Vec<(Position, TradeMsg)>,
    whole: u64,
    is_joined: bool,
}

impl Deliver for Taken {
    fn item(&mut self, item: Item<'_>) {
        match item {
            Item::Record(position, record) => {
                let trade = record.get::<TradeMsg>().expect("trades alone");
                self.records.push((*position, trade.clone()));
            }
            Item::Event(_, Event::Joined { .. }) => self.is_joined = true,
            Item::Event(_, Event::Lost(loss)) => panic!("{loss:?}"),
            Item::Event(..) => {}
        }
    }

    fn records(&mut self, first: &Position, records: Records<'_>) {
        self.whole += u64::from(
            records
                .all_of::<TradeMsg>()
                .is_some_and(|run| run.len() > 1),
        );
        self.one_by_one(first, records);
    }
}

fn arrives_whole(fan_out: &Value, change: impl FnOnce(SubscriberBuilder) -> SubscriberBuilder) {
    let config = json!({
        "name": "runs", "control": "127.0.0.1:0", "interface": "127.0.0.1", "inputs": [],
        "channels": [{ "id": 1, "name": "all", "slots": 4096, "fan_out": [fan_out] }],
    });
    let config = Config::parse(&config.to_string()).expect("a config");
    let mut publisher = InlinePublisher::open(config).expect("a publisher");
    let control = publisher.control_address().to_string();
    let builder = Subscriber::builder(control).channel("all").seed(1);
    let mut subscriber = change(builder).build().expect("a subscriber");
    let mut taken = Taken::default();
    let began = Instant::now();
    let mut continue_run = |publisher: &mut InlinePublisher,
                            done: &dyn Fn(&Subscriber, &Taken) -> bool| {
        while !done(&subscriber, &taken) {
            publisher.drive().expect("it sends");
            subscriber.poll_batches(&mut taken);
            assert!(began.elapsed() < PATIENCE, "{:?}", subscriber.channels());
        }
        taken.records.len() as u64
    };
    continue_run(&mut publisher, &|subscriber, taken| {
        taken.is_joined && subscriber.is_joined()
    });
    let (mut published, mut run) = (0, Vec::new());
    for length in (0..ROUNDS).flat_map(|_| RUNS) {
        let first = published + 1;
        published += length;
        run.clear();
        run.extend((first..=published).map(|n| trade(1 + n as u32 % 9, n as i64, n as u32)));
        let mut channel = publisher.channel(0).expect("nothing is looked through");
        channel.publish_run(&run, SourcePosition::new(0, first));
        // A single record separates the runs.
        published += 1;
        let alone = trade(1 + published as u32 % 9, published as i64, published as u32);
        channel.publish(&alone, SourcePosition::new(0, published));
        drop(channel);
        let so_far = published;
        continue_run(&mut publisher, &|_, taken| {
            taken.records.len() as u64 >= so_far
        });
    }
    assert!(taken.whole > 0, "runs came as such");
    assert_eq!(taken.records.len() as u64, published);
    let from = taken.records[0].0.record.0;
    for ((position, record), n) in taken.records.iter().zip(1..) {
        assert_eq!(*record, trade(1 + n as u32 % 9, n as i64, n as u32));
        assert_eq!(position.record.0, from + n - 1, "at {n}");
    }
    for pair in taken.records.windows(2) {
        let [(position, record), (next, _)] = pair else {
            unreachable!("two of them")
        };
        // A datagram's source position is that of the message of its last record.
        if position.sequence != next.sequence {
            assert!(position.sequence < next.sequence);
            assert_eq!(
                position.source_position,
                SourcePosition::new(0, record.size.into())
            );
        }
    }
    publisher.end_session(Duration::ZERO).expect("it was whole");
}

#[test]
fn runs_arrive_in_order_at_five_percent_loss() {
    let faults = FaultConfig {
        seed: 1,
        drop: 0.05,
        ..FaultConfig::default()
    };
    let udp = json!({ "transport": "udp", "lines": [{ "group": free_group() }] });
    arrives_whole(&udp, |builder| builder.faults(faults));
}

#[test]
fn and_so_they_do_over_shared_memory() {
    let folder = tempfile::tempdir_in("/dev/shm").expect("a folder");
    let shm = json!({ "transport": "shm", "path": folder.path().join("ring") });
    arrives_whole(&shm, |builder| builder);
}
