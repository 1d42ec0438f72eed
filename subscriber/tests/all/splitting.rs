//! Threads of the library: a worker that receives, readers of any speed, and the effects of panics.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::time::{Duration, Instant};

use crate::common::{PATIENCE, Publisher, Seen, core, ignore, joined, quote, wait_until};
use tickcast_subscriber::faults::FaultConfig;
use tickcast_subscriber::{
    ChannelBuilder, ChannelError, CommandError, Core, Event, Idle, InstrumentFilter, Item,
    JoinError, Monitor, Reader, ReceiverConfig, Running, SpawnError, Start, Subscriber,
    SubscriberBuilder, Wake,
};

const IDLE: Idle = Idle::Sleep { us: 20 };

fn split(builder: SubscriberBuilder) -> (Running, Reader) {
    let subscriber = builder.build().unwrap();
    let (running, reader) = subscriber.split(core(), IDLE, 1 << 20).unwrap();
    wait_until("the welcome", || running.monitor().is_joined());
    (running, reader)
}

/// Reads until the worker has left and everything is read.
fn read_out(reader: &mut Reader, seen: &mut Seen) {
    read_out_telling(reader, seen, |_| ());
}

/// Reads as [`read_out`] does, and calls `tell` after each poll.
fn read_out_telling(reader: &mut Reader, seen: &mut Seen, tell: impl Fn(&Seen)) {
    let began = Instant::now();
    while !reader.is_over() {
        reader.wait(Duration::from_millis(100));
        reader.poll(seen.taker());
        tell(seen);
        assert!(began.elapsed() < PATIENCE, "{:?}", reader.reports());
    }
}

fn overruns(seen: &Seen) -> Vec<tickcast_subscriber::Overrun> {
    let all = seen.events.iter().filter_map(|(_, event)| match event {
        Event::Overrun(overrun) => Some(*overrun),
        _ => None,
    });
    all.collect()
}

/// Asserts that the records and losses of a reader add up to the records that the worker delivered.
fn assert_balance(reader: &Reader, seen: &Seen, monitor: &Monitor) {
    let report = &reader.reports()[0];
    let channel = &monitor.channels()[0];
    let reported = overruns(seen);
    assert_eq!(
        report.overrun_records,
        reported.iter().map(|it| it.records).sum::<u64>()
    );
    assert_eq!(report.records, seen.records.len() as u64);
    let handed = channel.handed.handed_records.get();
    let sum = report.records + report.conflated_records + report.overrun_records;
    assert_eq!(sum, handed, "{report:?}");
    let events = channel.handed.handed_events.get();
    assert_eq!(report.events + report.overrun_events, events, "{report:?}");
    let lost: u64 = reported.iter().map(|it| it.lost_records).sum();
    assert_eq!(
        seen.lost_records() + lost,
        channel.counters.lost_records.get()
    );
}

#[test]
fn slow_reader_overrun_is_exact_and_delays_no_other() {
    let publisher = Publisher::start();
    let faults = FaultConfig {
        seed: 9,
        drop: 0.05,
        ..FaultConfig::default()
    };
    let (running, mut slow) = split(publisher.subscriber().channel("all").faults(faults));
    let monitor = running.monitor().clone();
    let mut fast = slow.clone();
    let read = Arc::new(AtomicU64::new(0));
    let reading = std::thread::spawn({
        let read = Arc::clone(&read);
        move || {
            let mut seen = Seen::default();
            read_out_telling(&mut fast, &mut seen, |seen| {
                read.store(seen.records.len() as u64, Ordering::SeqCst);
            });
            (fast, seen)
        }
    });
    // The slow reader reads a little, and then nothing for far more than the ring holds.
    publisher.quotes(7, 0..1_000);
    let mut seen = Seen::default();
    wait_until("the first records", || {
        slow.poll(seen.taker());
        seen.records.len() == 1_000
    });
    // Publish at most the ring's content at once, so that the fast reader keeps up on any machine.
    for start in (1_000..60_000).step_by(2_000) {
        let end = 60_000.min(start + 2_000);
        publisher.quotes(7, start..end);
        wait_until("the fast reader", || {
            read.load(Ordering::SeqCst) == u64::from(end)
        });
    }
    publisher.end();
    let summary = running.join().unwrap();
    assert!(
        summary.is_whole(),
        "the worker repaired everything: {summary}"
    );
    assert_eq!(summary.delivered_records(), 60_000);
    let (fast, all) = reading.join().unwrap();
    assert_eq!(all.numbers(), (0..60_000).collect::<Vec<_>>());
    assert!(fast.ended());
    assert_balance(&fast, &all, &monitor);
    read_out(&mut slow, &mut seen);
    assert_balance(&slow, &seen, &monitor);
    let reported = overruns(&seen);
    assert_eq!(reported.len(), 1, "{reported:?}");
    let gap = reported[0];
    assert_eq!(gap.from.record.0, 1_001);
    assert_eq!(gap.to.record.0, 1_001 + gap.records);
    let range = gap.sequences().unwrap();
    assert!(range.first < range.last);
    // Everything before and after the overrun is there, and the overrun stands at the hole.
    let numbers = seen.numbers();
    let expected = (0..1_000).chain(1_000 + gap.records as u32..60_000);
    assert_eq!(numbers, expected.collect::<Vec<_>>());
    assert!(seen.saw(|event| *event == Event::EndOfSession));
}

#[test]
fn overwritten_losses_and_epoch_change_are_counted() {
    let publisher = Publisher::start();
    let config = ReceiverConfig {
        repair: false,
        unrepaired_wait_us: 500,
        ..ReceiverConfig::default()
    };
    let faults = FaultConfig {
        seed: 2,
        drop: 0.02,
        ..FaultConfig::default()
    };
    let channel = ChannelBuilder::new("all").config(config);
    let (running, mut reader) = split(publisher.subscriber().channel(channel).faults(faults));
    let monitor = running.monitor().clone();
    let reached = |epoch: u64, records: u64| {
        let monitor = monitor.clone();
        move || {
            let channel = &monitor.channels()[0];
            let counters = &channel.counters;
            let sum = counters.delivered_records.get() + counters.lost_records.get();
            channel.epoch.0 == epoch && sum >= records
        }
    };
    publisher.quotes(3, 0..30_000);
    wait_until("the first epoch", reached(1, 30_000 - 200));
    // Cause a silence and its end.
    publisher.with(|_| std::thread::sleep(Duration::from_millis(100)));
    publisher.new_epoch();
    wait_until("the second epoch", reached(2, 0));
    publisher.quotes(3, 0..30_000);
    publisher.end();
    running.join().unwrap();
    let mut seen = Seen::default();
    read_out(&mut reader, &mut seen);
    assert_balance(&reader, &seen, &monitor);
    let reported = overruns(&seen);
    assert_eq!(reported.len(), 1, "{reported:?}");
    assert!(
        reported[0].lost_records > 0 && reported[0].events > 0,
        "{reported:?}"
    );
    assert_eq!((reported[0].to.epoch.0, reported[0].sequences()), (2, None));
    // The overrun carries the state that the reader would have known without it.
    let state = reported[0].state;
    assert_eq!(reported[0].epoch_changes, 1);
    assert!(
        state.joined && state.live && state.repair_link_up,
        "{state}"
    );
    assert!(!state.stale && !state.ended, "the silence is over: {state}");
    assert!(reader.ended());
    assert!(!seen.saw(|event| matches!(event, Event::EpochChanged { .. })));
    // The last ones may be among those dropped.
    assert!(seen.numbers().last().is_some_and(|last| *last > 29_900));
}

#[test]
fn overrun_after_split_includes_earlier_state() {
    let publisher = Publisher::start();
    let mut seen = Seen::default();
    let mut subscriber = joined(publisher.subscriber().channel("all"), &mut seen);
    publisher.quotes(4, 0..100);
    crate::common::poll_until(&mut subscriber, &mut seen, |_, seen| {
        seen.records.len() == 100 && seen.saw(|event| *event == Event::Live)
    });
    let (running, mut reader) = subscriber.split(core(), IDLE, 1 << 20).unwrap();
    let monitor = running.monitor().clone();
    publisher.quotes(4, 100..30_000);
    wait_until("the rest", || {
        monitor.channels()[0].counters.delivered_records.get() == 30_000
    });
    running.stop();
    running.join().unwrap();
    let before = seen.records.len() as u64;
    read_out(&mut reader, &mut seen);
    let reported = overruns(&seen);
    let [gap] = &reported[..] else {
        panic!("{reported:?}");
    };
    assert_eq!((gap.from.epoch.0, gap.from.record.0), (1, before + 1));
    assert_eq!(gap.to.record.0, before + 1 + gap.records);
    let state = gap.state;
    assert!(state.joined && state.live && !state.ended, "{state}");
}

#[test]
fn silence_before_split_is_in_later_overrun() {
    let publisher = Publisher::start();
    let mut seen = Seen::default();
    let mut subscriber = joined(publisher.subscriber().channel("all"), &mut seen);
    publisher.quotes(4, 0..100);
    crate::common::poll_until(&mut subscriber, &mut seen, |_, seen| {
        seen.records.len() == 100
    });
    publisher.with(|service| service.is_heard = false);
    crate::common::poll_until(&mut subscriber, &mut seen, |_, seen| {
        seen.saw(|event| *event == Event::Stale)
    });
    let (running, mut reader) = subscriber.split(core(), IDLE, 1 << 20).unwrap();
    let monitor = running.monitor().clone();
    // These come over the repair connection, because multicast is off.
    publisher.quotes(4, 100..30_000);
    wait_until("the rest", || {
        monitor.channels()[0].counters.delivered_records.get() == 30_000
    });
    running.stop();
    running.join().unwrap();
    let mut read = Seen::default();
    read_out(&mut reader, &mut read);
    let reported = overruns(&read);
    let [gap] = &reported[..] else {
        panic!("{reported:?}");
    };
    assert!(gap.state.stale && gap.state.live, "{}", gap.state);
    assert!(!read.saw(|event| *event == Event::Stale), "it was told");
}

#[test]
fn session_ended_before_split_is_over_for_readers() {
    let publisher = Publisher::start();
    let mut seen = Seen::default();
    let mut subscriber = joined(publisher.subscriber().channel("all"), &mut seen);
    publisher.quotes(1, 0..10);
    publisher.end();
    crate::common::poll_until(&mut subscriber, &mut seen, |_, seen| {
        seen.saw(|event| *event == Event::EndOfSession)
    });
    let (running, mut reader) = subscriber.split(core(), IDLE, 1 << 20).unwrap();
    assert!(reader.ended() && reader.clone().ended());
    running.join().unwrap();
    read_out(&mut reader, &mut seen);
    assert!(reader.ended());
    assert_eq!(seen.numbers(), (0..10).collect::<Vec<_>>());
}

#[test]
fn pinned_subscriber_delivers_all_and_ends() {
    let publisher = Publisher::start();
    let (tell, reported) = mpsc::channel();
    let subscriber = publisher.subscriber().channel("all").build().unwrap();
    let running = subscriber.run_pinned(core(), IDLE, move |item| {
        let mut seen = Seen::default();
        seen.take(item);
        tell.send(seen.numbers()).unwrap();
    });
    let running = running.unwrap();
    wait_until("the welcome", || running.monitor().is_joined());
    publisher.quotes(2, 0..5_000);
    publisher.end();
    let summary = running.join().unwrap();
    assert_eq!(
        reported.iter().flatten().collect::<Vec<_>>(),
        (0..5_000).collect::<Vec<_>>()
    );
    assert_eq!(summary.delivered_records(), 5_000);
    let text = summary.to_string();
    assert!(
        text.starts_with("all: 5000 records delivered, 0 lost, "),
        "{text}"
    );
}

#[test]
fn closure_panic_is_returned_by_thread_join() {
    let publisher = Publisher::start();
    let subscriber = publisher.subscriber().channel("all").build().unwrap();
    let running = subscriber.run_pinned(core(), IDLE, |item| {
        assert!(matches!(item, Item::Event(..)), "no records, please");
    });
    let running = running.unwrap();
    wait_until("the welcome", || running.monitor().is_joined());
    publisher.quotes(1, 0..10);
    let Err(JoinError::Panicked(panicked)) = running.join() else {
        panic!("it panicked");
    };
    assert_eq!(panicked.message, "no records, please");
}

#[test]
fn monitor_of_ended_subscriber_reports_not_joined() {
    let publisher = Publisher::start();
    let build = || publisher.subscriber().channel("all").build().unwrap();
    let mut dropped = build();
    let monitor = dropped.monitor();
    wait_until("the welcome", || {
        dropped.poll(ignore);
        monitor.is_joined()
    });
    drop(dropped);
    assert!(!monitor.is_joined(), "dropped");
    let panics = |item: Item<'_>| assert!(matches!(item, Item::Event(..)), "planned");
    let running = build().run_pinned(core(), IDLE, panics).unwrap();
    let monitor = running.monitor().clone();
    wait_until("the welcome", || monitor.is_joined());
    publisher.quotes(1, 0..10);
    running.join().unwrap_err();
    assert!(!monitor.is_joined(), "ended by a panic");
}

#[test]
fn panicking_closure_poisons_only_its_reader() {
    let publisher = Publisher::start();
    let (running, mut reader) = split(publisher.subscriber().channel("all"));
    let mut other = reader.clone();
    let monitor = running.monitor().clone();
    publisher.quotes(4, 0..2_000);
    publisher.end();
    running.join().unwrap();
    let mut count = 0;
    let caught = catch_unwind(AssertUnwindSafe(|| {
        while reader
            .poll(|item| {
                count += u32::from(matches!(item, Item::Record(..)));
                assert!(count < 13, "planned");
            })
            .worked()
        {}
    }));
    assert!(caught.is_err());
    let mut both = [reader.clone(), reader];
    for reader in &mut both {
        let polled = reader.poll(|item| panic!("{item:?}"));
        assert!(polled.poisoned && polled.problem && !polled.worked());
        assert_eq!(reader.wait(Duration::MAX), Wake::Ready);
        assert!(reader.is_over() && !reader.ended());
    }
    let mut seen = Seen::default();
    read_out(&mut other, &mut seen);
    assert_eq!(seen.numbers(), (0..2_000).collect::<Vec<_>>());
    assert_balance(&other, &seen, &monitor);
}

#[test]
fn rejoin_before_split_is_reported_to_readers() {
    let publisher = Publisher::start();
    let mut seen = Seen::default();
    let mut subscriber = joined(publisher.subscriber().channel("all"), &mut seen);
    publisher.quotes(4, 0..200);
    wait_until("records", || {
        subscriber.poll(seen.taker());
        !seen.records.is_empty()
    });
    let rejoined = subscriber.channel_id("all").unwrap();
    subscriber.rejoin(rejoined, Start::Live).unwrap();
    let again = subscriber.rejoin(rejoined, Start::Live).unwrap_err();
    assert!(matches!(again, ChannelError::Rejoining { .. }), "{again}");
    let (running, mut reader) = subscriber.split(core(), IDLE, 1 << 20).unwrap();
    let monitor = running.monitor().clone();
    wait_until("all of the rest", || {
        reader.poll(seen.taker());
        let joins = seen.events.iter();
        let joins = joins.filter(|(_, event)| matches!(event, Event::Joined { .. }));
        joins.count() == 2
    });
    running.stop();
    running.join().unwrap();
    read_out(&mut reader, &mut seen);
    // The records before the rejoin come first, and no record after it comes twice.
    let numbers = seen.numbers();
    assert!(!numbers.is_empty());
    assert_eq!(numbers, (0..numbers.len() as u32).collect::<Vec<_>>());
    let handed = &monitor.channels()[0].handed;
    assert_eq!(handed.handed_records.get(), seen.records.len() as u64);
    assert_eq!(handed.handed_events.get(), seen.events.len() as u64);
}

#[test]
fn worker_problem_is_visible_to_reader() {
    let publisher = Publisher::start();
    let (running, mut reader) = split(publisher.subscriber().channel("all"));
    assert!(!reader.poll(ignore).problem);
    drop(running);
    let subscriber = publisher.subscriber().channel("nonesuch").build().unwrap();
    let (running, mut reader) = subscriber.split(core(), IDLE, 1 << 20).unwrap();
    wait_until("the rejection", || reader.poll(ignore).problem);
    wait_until("its text", || {
        let text = running.monitor().problem().unwrap_or_default();
        text.contains("nonesuch")
    });
}

#[test]
fn filtered_records_do_not_count_as_reader_lag() {
    let publisher = Publisher::start();
    let channel = ChannelBuilder::new("all").lag_alarm(100);
    let channel = channel.filter(InstrumentFilter::ids([1]));
    let (running, mut reader) = split(publisher.subscriber().channel(channel));
    let monitor = running.monitor().clone();
    let mut seen = Seen::default();
    let publish = |instrument: u32| {
        let before = monitor.channels()[0].counters.delivered_records.get();
        for _ in 0..20 {
            publisher.publish((0..500).map(|n| quote(instrument, n)).collect());
        }
        wait_until("the worker", || {
            let channel = monitor.channels().remove(0);
            channel.counters.delivered_records.get() == before + 10_000 && channel.lag == 0
        });
    };
    let lagged = |seen: &Seen| seen.saw(|event| matches!(event, Event::Lagging { .. }));
    publisher.publish(vec![quote(1, 0)]);
    wait_until("the first record", || {
        reader.poll(seen.taker());
        seen.records.len() == 1
    });
    publish(2);
    // Allow events that a slow machine causes in the meantime: a silence, a gap.
    wait_until("there is nothing to read", || {
        reader.poll(seen.taker());
        reader.reports()[0].lag == 0
    });
    assert!(!lagged(&seen), "{:?}", seen.events);
    // A reader that was behind has caught up, although the filter excludes the following records.
    publish(1);
    publish(2);
    assert!(reader.reports()[0].lag > 100);
    wait_until("the end of it", || {
        reader.poll(seen.taker());
        seen.records.len() == 10_001
    });
    wait_until("it has caught up", || {
        reader.poll(seen.taker());
        reader.reports()[0].lag == 0
    });
    assert!(lagged(&seen) && seen.saw(|event| *event == Event::CaughtUp));
    running.stop();
    running.join().unwrap();
}

#[test]
fn worker_rejoins_and_sets_filters_on_command() {
    let publisher = Publisher::listing(&[(1, "AAPL"), (2, "MSFT")]);
    let (running, mut reader) = split(publisher.subscriber().channel("all"));
    let all = running.monitor().channel_id("all").unwrap();
    publisher.quotes(2, 0..100);
    let mut seen = Seen::default();
    let mut read_to = |seen: &mut Seen, number: u32| {
        wait_until("the records", || {
            reader.poll(seen.taker());
            seen.numbers().last() == Some(&number)
        });
    };
    read_to(&mut seen, 99);
    let only = InstrumentFilter::symbols(["MSFT"]);
    running.set_filter(all, only).unwrap();
    publisher.quotes(2, 100..200);
    read_to(&mut seen, 199);
    assert_eq!(
        seen.numbers()[100..],
        (100..200).filter(|n| n % 2 == 1).collect::<Vec<_>>()
    );
    // Rejoin from the oldest record, with all instruments.
    running.rejoin(all, Start::Oldest).unwrap();
    // Set the filter at once, before the publisher has answered.
    running.set_filter(all, InstrumentFilter::all()).unwrap();
    let before = seen.records.len();
    wait_until("all of it again", || {
        reader.poll(seen.taker());
        seen.records.len() == before + 200
    });
    assert_eq!(seen.numbers()[before..], (0..200).collect::<Vec<_>>());
    let joins = seen.events.iter();
    let joins = joins.filter(|(_, event)| matches!(event, Event::Joined { .. }));
    assert_eq!(joins.count(), 2);
    // A rejected command changes nothing, and its error names the remedy.
    let nobody = tickcast_subscriber::ChannelId(9);
    let error = running.rejoin(nobody, Start::Live).unwrap_err().to_string();
    assert!(
        error.contains("does not follow channel 9; it follows \"all\" (1)"),
        "{error}"
    );
    let wrong = InstrumentFilter::symbols(["AAPX"]);
    let error = running.set_filter(all, wrong).unwrap_err().to_string();
    assert!(
        error.contains("\"AAPX\": 2 are known, for example AAPL"),
        "{error}"
    );
    publisher.quotes(2, 200..202);
    wait_until("both instruments", || {
        reader.poll(seen.taker());
        seen.records.len() == before + 202
    });
    running.stop();
    wait_until("its end", || running.is_finished());
    let error = running.rejoin(all, Start::Live).unwrap_err();
    assert_eq!(error, CommandError::Ended);
}

#[test]
fn pinned_closure_sees_requests_but_cannot_make_them() {
    let publisher = Publisher::start();
    let subscriber = publisher.subscriber().channel("all").build().unwrap();
    let own: Arc<OnceLock<Arc<Running>>> = Arc::default();
    let (tell, reported) = mpsc::channel();
    let itself = Arc::clone(&own);
    let running = subscriber.run_pinned(core(), IDLE, move |item| {
        let mut seen = Seen::default();
        seen.take(item);
        let asked = itself
            .get()
            .map(|own| own.rejoin(crate::common::CHANNEL, Start::Live));
        tell.send((seen, asked)).unwrap();
    });
    let running = Arc::new(running.unwrap());
    wait_until("the welcome", || running.monitor().is_joined());
    publisher.quotes(1, 0..10);
    let mut numbers = reported.iter().flat_map(|(seen, _)| seen.numbers());
    assert!(numbers.by_ref().take(10).eq(0..10));
    own.set(Arc::clone(&running)).unwrap();
    running
        .rejoin(crate::common::CHANNEL, Start::Oldest)
        .unwrap();
    let again = reported
        .iter()
        .take_while(|(seen, _)| seen.numbers().last() != Some(&9));
    let answers = again.map(|(_, asked)| asked);
    // An event may have come before the closure knew its subscriber.
    let answers: Vec<_> = answers.skip_while(Option::is_none).collect();
    assert!(answers.len() > 9, "the records, and that it joined");
    for asked in answers {
        assert_eq!(asked, Some(Err(CommandError::OwnThread)));
    }
    running.stop();
}

#[test]
fn closure_waiting_for_its_caller_is_refused() {
    let publisher = Publisher::start();
    let subscriber = publisher.subscriber().channel("all").build().unwrap();
    let lock = Arc::new(Mutex::new(()));
    let (tell, reported) = mpsc::channel();
    let wanted = Arc::clone(&lock);
    let running = subscriber.run_pinned(core(), IDLE, move |item| {
        if matches!(item, Item::Record(..)) {
            tell.send(()).unwrap();
            drop(wanted.lock().unwrap());
        }
        let mut seen = Seen::default();
        seen.take(item);
        assert!(!seen.saw(|event| matches!(event, Event::RepairLinkDown(_))));
    });
    let running = running.unwrap();
    wait_until("the welcome", || running.monitor().is_joined());
    let held = lock.lock().unwrap();
    publisher.quotes(1, 0..1);
    reported.recv_timeout(PATIENCE).unwrap();
    let late = running.rejoin(crate::common::CHANNEL, Start::Oldest);
    assert!(matches!(late, Err(CommandError::Late { .. })), "{late:?}");
    drop(held);
    // The thread executes this command. The late one before it was withdrawn.
    let all = InstrumentFilter::all();
    running.set_filter(crate::common::CHANNEL, all).unwrap();
    running.stop();
    running.join().expect("nothing was joined anew");
}

#[test]
fn join_of_own_thread_is_refused() {
    let publisher = Publisher::start();
    let subscriber = publisher.subscriber().channel("all").build().unwrap();
    let own: Arc<Mutex<Option<Running>>> = Arc::default();
    let (tell, reported) = mpsc::channel();
    let itself = Arc::clone(&own);
    let running = subscriber.run_pinned(core(), IDLE, move |_| {
        if let Some(running) = itself.lock().unwrap().take() {
            tell.send(running.join()).unwrap();
        }
    });
    *own.lock().unwrap() = Some(running.unwrap());
    publisher.quotes(1, 0..1);
    let joined = reported.recv_timeout(PATIENCE).unwrap();
    assert_eq!(joined.unwrap_err(), JoinError::OwnThread);
}

#[test]
fn unpinned_split_after_poll_leaves_without_panic() {
    // Count only panics with this text, because other tests panic on purpose.
    let panics = Arc::new(AtomicU64::new(0));
    let (counted, before) = (Arc::clone(&panics), std::panic::take_hook());
    std::panic::set_hook(Box::new(move |info| {
        let is_ours = info.to_string().contains("out of bounds");
        counted.fetch_add(is_ours.into(), Ordering::SeqCst);
        before(info);
    }));
    let publisher = Publisher::start();
    let config = ReceiverConfig {
        repair: false,
        unrepaired_wait_us: 60_000_000,
        ..ReceiverConfig::default()
    };
    let faults = FaultConfig {
        seed: 4,
        drop: 0.3,
        ..FaultConfig::default()
    };
    let channel = ChannelBuilder::new("all").config(config);
    let builder = publisher.subscriber().channel(channel).faults(faults);
    let mut seen = Seen::default();
    let mut subscriber = joined(builder, &mut seen);
    let counters = Arc::new(subscriber.monitor());
    publisher.quotes(1, 0..2_000);
    crate::common::poll_until(&mut subscriber, &mut seen, |subscriber, _| {
        subscriber.channels()[0].counters.missing_open.get() > 0
    });
    let error = subscriber.split(Core(1 << 20), IDLE, 1 << 20).err();
    assert!(matches!(error, Some(SpawnError::Pin(_))));
    // The subscriber has left, so open gaps are lost.
    let channel = &counters.channels()[0];
    assert_eq!(channel.counters.missing_open.get(), 0);
    assert!(channel.handed.handed_events.get() > seen.events.len() as u64);
    assert_eq!(panics.load(Ordering::SeqCst), 0);
}

#[test]
fn worker_stops_on_request_or_handle_drop() {
    let publisher = Publisher::start();
    let (running, mut reader) = split(publisher.subscriber().channel("all"));
    assert!(!reader.is_over() && !running.is_finished());
    assert_eq!(
        reader.wait(Duration::from_millis(0)),
        Wake::Ready,
        "its events wait"
    );
    running.stop();
    let summary = running.join().unwrap();
    assert!(summary.is_whole(), "{summary}");
    read_out(&mut reader, &mut Seen::default());
    assert!(!reader.ended(), "the session goes on without us");
    let subscriber = publisher.subscriber().channel("all").build().unwrap();
    let (running, mut reader) = subscriber.split(core(), IDLE, 1 << 20).unwrap();
    drop(running);
    read_out(&mut reader, &mut Seen::default());
}

#[test]
fn split_with_bad_ring_size_or_core_is_refused() {
    let build = || {
        Subscriber::builder("127.0.0.1:1")
            .channel("all")
            .build()
            .unwrap()
    };
    let error = build().split(core(), IDLE, 1_000).err().unwrap();
    assert!(matches!(error, SpawnError::Size { size_bytes: 1_000 }));
    let error = build().split(Core(1 << 20), IDLE, 1 << 20).err().unwrap();
    assert!(error.to_string().contains("choose one of these"), "{error}");
}

#[test]
fn waiting_reader_is_woken_by_new_records() {
    let publisher = Publisher::start();
    let (running, mut reader) = split(publisher.subscriber().channel("all"));
    let waits = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&waits);
    let reading = std::thread::spawn(move || {
        let mut seen = Seen::default();
        while !reader.is_over() {
            // Only a notification can end this wait in time.
            reader.wait(PATIENCE);
            counted.fetch_add(1, Ordering::Relaxed);
            while reader.poll(seen.taker()).worked() {}
        }
        seen
    });
    for number in 0..200 {
        publisher.publish(vec![quote(1, number)]);
    }
    publisher.end();
    running.join().unwrap();
    assert_eq!(
        reading.join().unwrap().numbers(),
        (0..200).collect::<Vec<_>>()
    );
    assert!(waits.load(Ordering::Relaxed) < 2_000, "it does not spin");
}

#[test]
fn lagging_reader_gets_lag_and_caught_up_events() {
    let publisher = Publisher::start();
    let channel = ChannelBuilder::new("all").lag_alarm(50);
    let (running, mut reader) = split(publisher.subscriber().channel(channel));
    let monitor = running.monitor().clone();
    let mut seen = Seen::default();
    publisher.quotes(1, 0..10);
    wait_until("the first records", || {
        reader.poll(seen.taker());
        seen.numbers().contains(&9)
    });
    let before = monitor.channels()[0].delivered;
    publisher.quotes(5, 0..10_000);
    wait_until("far more", || {
        monitor.channels()[0].delivered.0 > before.0 + 550
    });
    assert!(reader.reports()[0].lag >= 550);
    let alarms = |seen: &Seen| {
        let all = seen.events.iter().map(|(_, event)| event);
        all.filter(|e| matches!(e, Event::Lagging { sequences } if *sequences > 50))
            .count()
    };
    assert_eq!(alarms(&seen), 0, "{:?}", seen.events);
    wait_until("the end of it", || {
        reader.poll(seen.taker());
        reader.reports()[0].lag == 0
    });
    assert_eq!(alarms(&seen), 1, "{:?}", seen.events);
    assert!(seen.saw(|event| *event == Event::CaughtUp));
    running.stop();
    running.join().unwrap();
}
