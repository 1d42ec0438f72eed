//! In steady state the path of a tick allocates nothing: publish, pack and seal on one side; check, order
//! and deliver on the other. The test counts allocations and measures no time.

mod pair;

use pair::{CHANNEL, FAN_OUT};
use tickcast_journal::{JournalOrigin, JournalWriter, Journaled};
use tickcast_reliability::control::{Message, Status};
use tickcast_reliability::delivery::{Item, LineId};
use tickcast_reliability::publish::{PublisherCore, Transmit};
use tickcast_reliability::record::{MboMsg, RecordBatch};
use tickcast_reliability::ring::Geometry;
use tickcast_reliability::session::{Path, SubscriberCore, SubscriberInput};
use tickcast_reliability::types::{Nanos, Now, SourceId, SourcePosition};

/// Returns both sides, before the first datagram.
fn sides() -> (PublisherCore, Journaled<SubscriberCore>) {
    let geometry = Geometry::new(1472, 1024).unwrap();
    (pair::publisher(geometry), pair::subscriber(geometry, None))
}

/// Publishes one datagram of `messages` orders, carries it over, and returns the number of records
/// delivered.
fn round(
    publisher: &mut PublisherCore,
    subscriber: &mut Journaled<SubscriberCore>,
    batch: &RecordBatch,
    n: u64,
    messages: u64,
) -> u64 {
    let now = Now {
        monotonic: Nanos(1_000 * n),
        utc: Nanos(1_000 * n),
    };
    for message in 0..messages {
        let position = SourcePosition::new(0, n * messages + message);
        publisher
            .publish(batch, SourceId(1), position, now)
            .expect("it fits");
    }
    publisher.flush(now, true);
    let mut delivered = 0;
    while let Some(Transmit::Slots(range)) = publisher.poll_transmit(FAN_OUT) {
        for sequence in range.iter() {
            let bytes = publisher.slot(sequence).expect("it is sealed");
            subscriber.handle_bytes(
                now.monotonic,
                (CHANNEL, LineId(0)),
                bytes,
                false,
                &mut |item: Item<'_>| {
                    delivered += u64::from(matches!(item, Item::Record(..)));
                },
            );
        }
        publisher.handle_posted(FAN_OUT, range.last);
        publisher.handle_completed(FAN_OUT, range.last);
    }
    confirm(publisher, subscriber, now);
    delivered
}

/// Confirms how far the publisher is, as the repair path does.
fn confirm(publisher: &PublisherCore, subscriber: &mut Journaled<SubscriberCore>, now: Now) {
    let ring = publisher.ring();
    let status = Message::Status(Status {
        epoch: ring.identity().epoch,
        newest: ring.sealed(),
        oldest: ring.oldest(),
        next_record: ring.next_record(),
        echo: Nanos::ZERO,
        answered_at: now.utc,
        ended: false,
    });
    let input = SubscriberInput::message(Path::Repair, CHANNEL, &status);
    subscriber.handle(now.monotonic, input, &mut |_: Item<'_>| ());
}

#[test]
fn tick_is_published_and_delivered_without_allocation() {
    let (mut publisher, mut subscriber) = sides();
    let mut batch = RecordBatch::default();
    batch.put(&MboMsg::default());
    let warm_up: u64 = (1..=2_000)
        .map(|n| round(&mut publisher, &mut subscriber, &batch, n, 25))
        .sum();
    assert_eq!(warm_up, 50_000, "everything arrives");
    let mut delivered = 0;
    let counted = allocation_counter::measure(|| {
        for n in 2_001..=4_000 {
            delivered += round(&mut publisher, &mut subscriber, &batch, n, 25);
        }
    });
    assert_eq!(delivered, 50_000);
    assert_eq!(counted.count_total, 0, "{counted:?}");
}

#[test]
fn journal_allocates_only_at_segment_start() {
    let (mut publisher, mut subscriber) = sides();
    let area = Box::new(vec![0; 32 << 20]);
    subscriber.keep_journal(JournalWriter::new(area, &JournalOrigin::default()).unwrap());
    let mut batch = RecordBatch::default();
    batch.put(&MboMsg::default());
    let mut n = 0;
    let mut rounds = |subscriber: &mut Journaled<SubscriberCore>, count: u64| {
        let mut delivered = 0;
        for _ in 0..count {
            n += 1;
            delivered += round(&mut publisher, subscriber, &batch, n, 25);
        }
        delivered
    };
    rounds(&mut subscriber, 2_000);
    let counted = allocation_counter::measure(|| {
        assert_eq!(rounds(&mut subscriber, 2_000), 50_000);
    });
    assert_eq!(counted.count_total, 0, "{counted:?}");
    // All segments are used, and then reused.
    let before = subscriber.journal().unwrap().inputs();
    let counted = allocation_counter::measure(|| {
        rounds(&mut subscriber, 600_000);
    });
    let inputs = subscriber.journal().unwrap().inputs() - before;
    let segments = inputs * 72 / (4 << 20);
    assert!(segments >= 10, "{segments}");
    assert!(counted.count_total < 20 * segments, "{counted:?}");
}

#[test]
fn allocation_counter_counts_an_allocation() {
    let counted = allocation_counter::measure(|| drop(std::hint::black_box(vec![0u8; 64])));
    assert_eq!(counted.count_total, 1);
}
