//! After the start, a tick allocates nothing on its way through `poll` (conflated or not), through
//! `poll_batches`, and through the reader of a split subscriber. Allocations are counted in this thread; the
//! publisher runs in another. The worker of a split subscriber uses the same poll, and its ring has a test
//! of its own.

use std::time::{Duration, Instant};

use crate::common::{PATIENCE, Publisher, Seen, core, ignore, joined, wait_until};
use allocation_counter::AllocationInfo;
use tickcast_subscriber::faults::FaultConfig;
use tickcast_subscriber::record::{Mbp1Msg, Records};
use tickcast_subscriber::{
    ChannelBuilder, Deliver, Delivery, Idle, InstrumentFilter, Item, Position, Subscriber,
    SubscriberBuilder,
};

/// The number of ticks that arrive while nothing may be allocated.
const TICKS: u32 = 20_000;

/// Asserts that at least one of fifty measurements counts no allocation. Others may fail, because a machine
/// that stalls causes gaps and silences: a repair buffer may grow, or an event may be emitted.
fn allocates_nothing(measure: impl Fn() -> AllocationInfo) {
    allocates_at_most(0, measure);
}

fn allocates_at_most(most: u64, measure: impl Fn() -> AllocationInfo) {
    let counted: Vec<_> = (0..50)
        .map(|_| measure())
        .take_while(|counted| counted.count_total > most)
        .collect();
    assert!(counted.len() < 50, "{counted:?}");
}

/// Counts the delivered records, as whole runs where the poll delivers runs.
#[derive(Default)]
struct Taken(u64);

impl Deliver for Taken {
    fn item(&mut self, item: Item<'_>) {
        if let Item::Record(position, _) = item {
            self.0 += 1 + u64::from(position.quality.conflated);
        }
    }

    fn records(&mut self, _: &Position, records: Records<'_>) {
        let run = records.all_of::<Mbp1Msg>().expect("quotes alone");
        self.0 += run.len() as u64;
    }
}

type Poll = fn(&mut Subscriber, &mut Taken);

fn by_record(subscriber: &mut Subscriber, taken: &mut Taken) {
    subscriber.poll(|item| taken.item(item));
}

fn by_run(subscriber: &mut Subscriber, taken: &mut Taken) {
    subscriber.poll_batches(taken);
}

fn polling(channel: &ChannelBuilder, poll: Poll) {
    allocates_nothing(|| polling_with(|builder| builder, channel.clone(), poll));
}

fn polling_with(
    change: impl FnOnce(SubscriberBuilder) -> SubscriberBuilder,
    channel: ChannelBuilder,
    poll: Poll,
) -> AllocationInfo {
    let publisher = Publisher::start();
    let mut seen = Seen::default();
    let mut subscriber = joined(change(publisher.subscriber().channel(channel)), &mut seen);
    let mut taken = Taken::default();
    let mut take = |until: u64| {
        let began = Instant::now();
        while taken.0 < until {
            poll(&mut subscriber, &mut taken);
            assert!(began.elapsed() < PATIENCE, "{} of {until}", taken.0);
        }
    };
    // Receive until everything has its final size: the directory of instruments, buffers, connections.
    publisher.quotes(20, 0..TICKS);
    take(TICKS.into());
    let (begin, begun) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        begun.recv().unwrap();
        publisher.quotes(20, 0..TICKS);
        publisher
    });
    begin.send(()).unwrap();
    let counted = allocation_counter::measure(|| take(2 * u64::from(TICKS)));
    drop(thread.join().unwrap());
    counted
}

#[test]
fn polled_tick_allocates_nothing() {
    polling(
        &ChannelBuilder::new("all")
            .filter(InstrumentFilter::ids(1..=20))
            .lag_alarm(1 << 40),
        by_record,
    );
}

#[test]
fn polled_record_run_allocates_nothing() {
    polling(&ChannelBuilder::new("all"), by_run);
}

#[test]
fn conflated_tick_allocates_nothing() {
    polling(
        &ChannelBuilder::new("all").delivery(Delivery::Latest),
        by_record,
    );
}

#[test]
fn repaired_tick_allocations_are_bounded() {
    let faults = FaultConfig {
        drop: 0.05,
        ..FaultConfig::default()
    };
    // Dozens of NACKs bring hundreds of repairs. A buffer may grow when a new maximum is missing.
    allocates_at_most(7, || {
        let channel = ChannelBuilder::new("all");
        polling_with(|builder| builder.faults(faults.clone()), channel, by_record)
    });
}

#[test]
fn ring_read_tick_allocates_nothing() {
    allocates_nothing(reading);
}

fn reading() -> AllocationInfo {
    let publisher = Publisher::start();
    let subscriber = publisher.subscriber().channel("all").build().unwrap();
    let (running, mut reader) = subscriber
        .split(core(), Idle::Sleep { us: 20 }, 16 << 20)
        .unwrap();
    wait_until("the welcome", || running.monitor().is_joined());
    while reader.wait(Duration::ZERO) == tickcast_subscriber::Wake::Ready {
        reader.poll(ignore);
    }
    publisher.quotes(20, 0..TICKS);
    let mut taken = 0;
    let began = Instant::now();
    let counted = allocation_counter::measure(|| {
        while taken < TICKS {
            reader.poll(|item| taken += u32::from(matches!(item, Item::Record(..))));
            assert!(began.elapsed() < PATIENCE, "{taken}");
        }
    });
    // Events between the records are parsed, which may allocate. A quiet machine causes none.
    running.stop();
    running.join().unwrap();
    counted
}
