//! Delivery `latest`: the final state of every instrument, and the count of replaced records.

use std::time::Duration;

use crate::common::{
    PATIENCE, Publisher, Seen, core, joined, order, poll_until, quote, status, trade, wait_until,
};
use tickcast_reliability::record::StatusAction;
use tickcast_reliability::types::ChannelId;
use tickcast_subscriber::faults::FaultConfig;
use tickcast_subscriber::{ChannelBuilder, Delivery, Event, Idle, Item, Position, StreamEvent};

fn latest() -> ChannelBuilder {
    ChannelBuilder::new("all").delivery(Delivery::Latest)
}

fn conflated(seen: &Seen) -> u64 {
    let all = seen
        .records
        .iter()
        .map(|(position, ..)| u64::from(position.quality.conflated));
    all.sum()
}

#[test]
fn poll_delivers_newest_in_stream_order() {
    let publisher = Publisher::start();
    let mut seen = Seen::default();
    let mut subscriber = joined(publisher.subscriber().channel(latest()), &mut seen);
    publisher.quotes(10, 0..1_000);
    publisher.publish((0..50).map(|n| trade(1 + n % 2, 5_000 + n)).collect());
    std::thread::sleep(Duration::from_millis(20));
    poll_until(&mut subscriber, &mut seen, |s, _| {
        s.channels()[0].counters.delivered_records.get() == 1_050
    });
    publisher.end();
    poll_until(&mut subscriber, &mut seen, |s, _| s.ended());
    assert_eq!(seen.records.len() as u64 + conflated(&seen), 1_050);
    assert!(
        seen.records.len() < 500,
        "{} of 1050 were handed over",
        seen.records.len()
    );
    let order: Vec<u64> = seen.records.iter().map(|(at, ..)| at.record.0).collect();
    assert!(order.is_sorted(), "{order:?}");
    let mut newest: Vec<u32> = seen.numbers();
    newest.sort_unstable();
    for number in (990..1_000).chain([5_048, 5_049]) {
        assert!(
            newest.contains(&number),
            "the last of its instrument and kind: {number}"
        );
    }
    let reported = seen.events.iter().filter_map(|(_, event)| match event {
        Event::Conflated { records } => Some(*records),
        _ => None,
    });
    let (handed, reported) = (
        subscriber.channels().remove(0).handed,
        reported.sum::<u64>(),
    );
    assert_eq!(handed.conflated_records.get(), conflated(&seen));
    assert_eq!(handed.handed_records.get(), seen.records.len() as u64);
    let mut rest = Seen::default();
    subscriber.leave_with(|item| rest.take(item));
    let last = rest.events.iter().find_map(|(_, event)| match event {
        Event::Conflated { records } => Some(*records),
        _ => None,
    });
    assert_eq!(
        reported + last.unwrap_or(0),
        conflated(&seen),
        "what was not told is told at the end"
    );
}

#[test]
fn orders_and_events_are_never_conflated() {
    let publisher = Publisher::start();
    let mut seen = Seen::default();
    let mut subscriber = joined(publisher.subscriber().channel(latest()), &mut seen);
    publisher.quotes(1, 0..100);
    publisher.publish(vec![
        status(1, StatusAction::Halt),
        status(1, StatusAction::SsrChange),
    ]);
    publisher.publish((0..40).map(|n| order(1, 1_000 + n)).collect());
    publisher.quotes(1, 100..200);
    publisher.lose_at_source(3);
    publisher.quotes(1, 200..300);
    publisher.end();
    // One poll receives all of it.
    std::thread::sleep(Duration::from_millis(20));
    poll_until(&mut subscriber, &mut seen, |s, _| s.ended());
    let control: Vec<u32> = seen.numbers().into_iter().filter(|n| *n >= 1_000).collect();
    assert_eq!(control, (1_000..1_040).collect::<Vec<_>>());
    let at = |number| seen.numbers().iter().position(|n| *n == number).unwrap();
    assert!(
        at(99) < at(1_000) && at(1_039) < at(199),
        "what came before stands before"
    );
    let place = |wanted: fn(&(Position, Event)) -> bool| seen.events.iter().position(wanted);
    assert!(place(|(_, event)| matches!(event, Event::Stream(_))).is_some());
    assert!(
        at(199) < at(299),
        "the state before an event is handed over before it"
    );
    assert!(place(|(_, event)| *event == Event::EndOfSession).is_some());
    assert_eq!(seen.records.len() as u64 + conflated(&seen), 342);
}

#[test]
fn slow_reader_gets_final_state_of_each_instrument() {
    let publisher = Publisher::start();
    let faults = FaultConfig {
        seed: 4,
        drop: 0.05,
        ..FaultConfig::default()
    };
    let builder = publisher.subscriber().channel(latest()).faults(faults);
    let subscriber = builder.build().unwrap();
    let (running, mut reader) = subscriber
        .split(core(), Idle::Sleep { us: 20 }, 1 << 20)
        .unwrap();
    let monitor = running.monitor().clone();
    wait_until("the welcome", || monitor.is_joined());
    let mut often = reader.clone();
    let reading = std::thread::spawn(move || {
        let mut seen = Seen::default();
        while !often.is_over() {
            often.wait(Duration::from_millis(50));
            often.poll(seen.taker());
        }
        (often.reports().remove(0), seen)
    });
    // This quote comes once. Its ring entry is overwritten, but its cell keeps the state.
    publisher.publish(vec![quote(5_000, 400_000)]);
    // Write far more words than the ring holds: two for each quote, and some checkpoints.
    publisher.quotes(1_000, 0..100_000);
    publisher.publish((0..3).map(|n| trade(7, 200_000 + n)).collect());
    publisher.publish(vec![order(9, 300_000)]);
    publisher.end();
    let summary = running.join().unwrap();
    assert!(summary.is_whole(), "{summary}");
    let mut seen = Seen::default();
    while !reader.is_over() {
        reader.poll(seen.taker());
    }
    let (often, seen_often) = reading.join().unwrap();
    for (report, seen) in [(reader.reports().remove(0), &seen), (often, &seen_often)] {
        let handed = summary.channels[0].handed.handed_records.get();
        assert_eq!(handed, 100_005);
        let sum = report.records + report.conflated_records + report.overrun_records;
        assert_eq!(sum, handed, "{report:?}");
        assert_eq!(report.overrun_records, 0, "only words were overwritten");
        assert_eq!(report.conflated_records, conflated(seen));
        assert!(seen.numbers().contains(&300_000) && seen.numbers().contains(&400_000));
        let quotes = seen
            .records
            .iter()
            .filter(|(_, _, number)| *number < 200_000);
        let mut last = std::collections::BTreeMap::new();
        for (at, instrument, number) in quotes {
            assert_eq!(
                at.record.0,
                u64::from(*number) + 2,
                "a record at its own place"
            );
            let before = last.insert(*instrument, *number);
            assert!(before < Some(*number), "never an older one");
        }
        assert_eq!(last.len(), 1_000);
        for (instrument, number) in last {
            assert_eq!(number, 99_000 + instrument - 1, "the final state");
        }
        let trades: Vec<_> = seen
            .numbers()
            .into_iter()
            .filter(|n| (200_000..300_000).contains(n))
            .collect();
        assert_eq!(trades.last(), Some(&200_002));
    }
    assert!(seen.records.len() < 50_000, "it skipped to the present");
}

#[test]
fn conflation_continues_under_new_channel_number() {
    let publisher = Publisher::start();
    let subscriber = publisher.subscriber().channel(latest()).build().unwrap();
    let idle = Idle::Sleep { us: 20 };
    let (running, mut reader) = subscriber.split(core(), idle, 1 << 20).unwrap();
    let monitor = running.monitor().clone();
    wait_until("the welcome", || monitor.is_joined());
    let mut seen = Seen::default();
    publisher.quotes(2, 0..10);
    wait_until("the first number", || {
        reader.poll(seen.taker());
        seen.last().values().eq(&[8, 9])
    });
    publisher.with(|service| service.channel = ChannelId(7));
    publisher.new_epoch();
    let before = seen.events.len();
    publisher.quotes(2, 10..12);
    // Read nothing until all of it is there, because a newer record of the same cell replaces the older one.
    wait_until("the other number", || {
        monitor.channels()[0].counters.delivered_records.get() == 12
    });
    publisher.quotes(2, 12..20);
    publisher.end();
    running.join().unwrap();
    while !reader.is_over() {
        reader.poll(seen.taker());
    }
    assert!(seen.last().values().eq(&[18, 19]));
    assert_eq!(seen.records.len() as u64 + conflated(&seen), 20);
    let is_newer = |at: &Position| at.epoch.0 == 2;
    let mut all = seen.records.iter().map(|(at, ..)| at);
    assert!(all.all(|at| at.channel.0 == if is_newer(at) { 7 } else { 1 }));
    let reported = seen.events[before..].iter();
    let reported =
        reported.filter(|(at, event)| is_newer(at) || matches!(event, Event::Conflated { .. }));
    assert!(reported.clone().count() > 2 && reported.clone().all(|(at, _)| at.channel.0 == 7));
    assert_eq!(reader.reports()[0].channel, Some(ChannelId(7)));
}

#[test]
fn split_record_newer_than_event_shows_by_position() {
    let publisher = Publisher::start();
    let subscriber = publisher.subscriber().channel(latest()).build().unwrap();
    let idle = Idle::Sleep { us: 20 };
    let (running, mut reader) = subscriber.split(core(), idle, 1 << 20).unwrap();
    wait_until("the welcome", || running.monitor().is_joined());
    publisher.publish(vec![quote(1, 1), quote(2, 2)]);
    publisher.lose_at_source(3);
    publisher.publish(vec![quote(2, 3)]);
    publisher.end();
    running.join().unwrap();
    let (mut records, mut losses) = (Vec::new(), Vec::new());
    while !reader.is_over() {
        reader.poll(|item| match item {
            Item::Record(at, record) => {
                assert!(losses.is_empty(), "both come before the event, and once");
                records.push((record.header().instrument_id, at.place()));
            }
            Item::Event(at, Event::Stream(StreamEvent::SourceLost { .. })) => {
                losses.push(at.place());
            }
            Item::Event(..) => {}
        });
    }
    let [loss] = losses[..] else {
        panic!("{losses:?}");
    };
    let is_newer = |place: tickcast_subscriber::Place| {
        (place.epoch, place.record) >= (loss.epoch, loss.record)
    };
    let reported = records.iter().map(|(id, at)| (*id, is_newer(*at)));
    let reported: Vec<_> = reported.collect();
    assert_eq!(reported, [(1, false), (2, true)]);
}

#[test]
fn panic_on_conflated_record_poisons_subscriber() {
    let publisher = Publisher::start();
    let mut seen = Seen::default();
    let mut subscriber = joined(publisher.subscriber().channel(latest()), &mut seen);
    publisher.quotes(50, 0..500);
    let began = std::time::Instant::now();
    let mut count = 0_u32;
    loop {
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            subscriber.poll(|item: Item<'_>| {
                seen.take(item);
                count += 1;
                assert!(!count.is_multiple_of(5), "planned");
            })
        }));
        if caught.is_err() {
            break;
        }
        assert!(began.elapsed() < PATIENCE, "{:?}", seen.last());
    }
    assert_eq!(count, 5);
    assert!(subscriber.poll(|_| count += 1).poisoned);
    assert_eq!(count, 5);
    assert_eq!(quote(1, 2).levels[0].bid_sz, 2);
}

#[test]
fn conflated_quotes_are_delivered_before_later_event() {
    let publisher = Publisher::start();
    let subscriber = publisher.subscriber().channel(latest()).build().unwrap();
    let (running, mut reader) = subscriber
        .split(core(), Idle::Sleep { us: 20 }, 1 << 20)
        .unwrap();
    let monitor = running.monitor().clone();
    wait_until("the welcome", || monitor.is_joined());
    publisher.publish(vec![quote(1, 1), quote(2, 2)]);
    publisher.lose_at_source(3);
    publisher.publish(vec![quote(1, 3), quote(2, 4)]);
    publisher.publish((10..15).map(|n| order(1, n)).collect());
    publisher.publish(vec![quote(1, 5)]);
    publisher.end();
    running.join().unwrap();
    let mut seen = Seen::default();
    while !reader.is_over() {
        let waited = reader.wait(Duration::ZERO);
        assert_eq!(waited, tickcast_subscriber::Wake::Ready);
        reader.poll(seen.taker());
    }
    assert_eq!(seen.numbers(), [4, 5, 10, 11, 12, 13, 14]);
    assert!(seen.saw(|event| matches!(event, Event::Stream(_))));
    assert!(seen.saw(|event| *event == Event::EndOfSession) && reader.ended());
    let report = &reader.reports()[0];
    let handed = &monitor.channels()[0].handed;
    assert_eq!(report.events, handed.handed_events.get());
    let sum = report.records + report.conflated_records;
    assert_eq!(sum, handed.handed_records.get());
}
