//! From a published record to a delivered one through the whole product, with its clocks: the publisher
//! with its repair service, and the subscriber library.

use std::time::Duration;

use serde_json::{Value, json};
use tickcast_publisher::{Config, InlinePublisher, SourcePosition};
use tickcast_reliability::record::MboMsg;
use tickcast_subscriber::{Event, Interface, Item, Subscriber, Transport};

use crate::pair::{Application, RECORDS, geometry, record};
use crate::paths::{group, has_runs};
use crate::{Opened, steps};

/// Datagrams that are published before they are sent, as in a busy feed.
const DATAGRAMS: u64 = 64;
const RECORDS_OF_STEP: u64 = DATAGRAMS * RECORDS as u64;
/// Records that a feed publishes at once, for feeds that publish by the packet.
const PACKET: usize = 32;
const SOCKET_BYTES: usize = 4 << 20;
const LOOKS_MAX: u32 = 1_000_000;
const CHANNEL: &str = "all";

/// The side that keeps a journal.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Publisher,
    Subscriber,
}

struct Product {
    // The order of drops.
    subscriber: Subscriber,
    publisher: InlinePublisher,
    application: Application,
    record: MboMsg,
    packet: [MboMsg; PACKET],
    _folder: tempfile::TempDir,
}

impl Product {
    fn open(transport: Transport, recorded: Option<Side>) -> Self {
        let folder = tempfile::tempdir_in("/dev/shm").expect("/dev/shm can be written");
        let fan_out = match transport {
            Transport::Shm => json!({ "transport": "shm", "path": folder.path().join("ring") }),
            _ => json!({
                "transport": "udp",
                "lines": [{ "group": group() }],
                "send_buffer_bytes": SOCKET_BYTES,
            }),
        };
        let journal = match recorded {
            Some(Side::Publisher) => json!({ "directory": folder.path() }),
            _ => Value::Null,
        };
        let publisher = publisher(&fan_out, &journal);
        let mut builder = Subscriber::builder(publisher.control_address().to_string())
            .name("stages")
            .channel(CHANNEL)
            .interface(Interface::Address("127.0.0.1".parse().expect("an address")))
            .transport(transport)
            .join_limit(Duration::from_secs(60));
        if recorded == Some(Side::Subscriber) {
            builder = builder.journal(folder.path().join("record"), 64 << 20);
        }
        let subscriber = builder.build().expect("it follows");
        let mut product = Self {
            subscriber,
            publisher,
            application: Application::default(),
            record: record(0),
            packet: std::array::from_fn(|_| record(0)),
            _folder: folder,
        };
        let mut has_joined = false;
        while !has_joined {
            product.drive();
            product.subscriber.poll(|item| {
                has_joined |= matches!(item, Item::Event(_, Event::Joined { .. }));
            });
            std::thread::yield_now();
        }
        product
    }

    fn drive(&mut self) {
        self.publisher.drive().expect("it is sent");
    }

    /// Publishes record by record, and delivers them one by one.
    fn run(&mut self) -> u64 {
        let mut channel = (self.publisher.channel(0)).expect("nothing is looked through");
        for _ in 0..RECORDS_OF_STEP {
            self.record.order_id += 1;
            let position = SourcePosition::new(0, self.record.order_id);
            channel.publish(&self.record, position);
        }
        drop(channel);
        self.deliver(|subscriber, application| {
            subscriber.poll(|item| application.take(item));
        })
    }

    /// Publishes as many records at once as a venue's packet has, and delivers them by runs.
    fn run_by_runs(&mut self) -> u64 {
        let mut channel = (self.publisher.channel(0)).expect("nothing is looked through");
        for _ in 0..RECORDS_OF_STEP / PACKET as u64 {
            let first = self.record.order_id + 1;
            for record in &mut self.packet {
                self.record.order_id += 1;
                record.order_id = self.record.order_id;
            }
            channel.publish_run(&self.packet, SourcePosition::new(0, first));
        }
        drop(channel);
        self.deliver(|subscriber, application| {
            subscriber.poll_batches(application);
        })
    }

    /// Sends the published records and polls until all are delivered. Returns their number.
    #[inline(always)]
    fn deliver(&mut self, mut poll: impl FnMut(&mut Subscriber, &mut Application)) -> u64 {
        let before = self.application.records;
        self.drive();
        let mut looks = 0;
        while self.application.records - before < RECORDS_OF_STEP {
            poll(&mut self.subscriber, &mut self.application);
            looks += 1;
            assert!(looks < LOOKS_MAX, "this host lost a datagram");
        }
        self.application.records - before
    }
}

fn publisher(fan_out: &Value, journal: &Value) -> InlinePublisher {
    let slots = geometry().slots();
    let config = json!({
        "name": "stages",
        "control": "127.0.0.1:0",
        "interface": "127.0.0.1",
        "journal": journal,
        "inputs": [],
        "channels": [{
            "id": 1, "name": CHANNEL, "slot_len": geometry().slot_len(), "slots": slots,
            "peak_datagrams_per_s": slots, "fan_out": [fan_out],
        }],
    });
    let config = Config::parse(&config.to_string()).expect("a config");
    InlinePublisher::open(config).expect("it opens")
}

/// Over UDP multicast.
pub(crate) fn udp() -> Opened {
    has_runs()?;
    steps(
        Product::open(Transport::Udp, None),
        Product::drive,
        Product::run,
    )
}

/// Over UDP multicast, by runs of records on both sides.
pub(crate) fn udp_runs() -> Opened {
    has_runs()?;
    steps(
        Product::open(Transport::Udp, None),
        Product::drive,
        Product::run_by_runs,
    )
}

/// Over UDP multicast, with a journal of the subscriber.
pub(crate) fn journaled() -> Opened {
    has_runs()?;
    steps(
        Product::open(Transport::Udp, Some(Side::Subscriber)),
        Product::drive,
        Product::run,
    )
}

/// Over UDP multicast, with the journals of a publisher: of its channel, and of repair.
pub(crate) fn journaled_publisher() -> Opened {
    has_runs()?;
    steps(
        Product::open(Transport::Udp, Some(Side::Publisher)),
        Product::drive,
        Product::run,
    )
}

/// Over shared memory.
pub(crate) fn shm() -> Opened {
    steps(
        Product::open(Transport::Shm, None),
        Product::drive,
        Product::run,
    )
}
