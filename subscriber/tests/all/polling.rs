//! One thread and one subscriber: polling, waiting, filters, names, rejoining, and the effects of a panic.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use crate::common::{
    CHANNEL, PATIENCE, Publisher, Seen, core, ignore, joined, mapping, order, poll_until, quote,
    trade,
};
use tickcast_hlog::read_intervals;
use tickcast_reliability::control::{FanOutOffer, VerbsLine};
use tickcast_reliability::types::{ChannelId, Epoch, Sequence, SequenceRange};
use tickcast_subscriber::{
    ChannelBuilder, ChannelError, Event, FilterError, Idle, InstrumentFilter, Item, LinkDownReason,
    LossCause, ReceiverConfig, SpawnError, Stage, Start, SubscribeError, Subscriber, Transport,
    Wake, faults::FaultConfig,
};

#[test]
fn waiting_wakes_for_datagrams_and_timers_and_never_spins() {
    let publisher = Publisher::start();
    let mut subscriber = publisher.subscriber().channel("all").build().unwrap();
    let fd = subscriber.as_raw_fd();
    let (mut seen, mut polls) = (Seen::default(), 0);
    let began = Instant::now();
    let mut published = false;
    while seen.records.len() < 2_000 {
        assert!(began.elapsed() < PATIENCE, "{} records", seen.records.len());
        subscriber.wait(Duration::from_secs(5)).unwrap();
        polls += 1;
        while subscriber.poll(seen.taker()).worked() {
            polls += 1;
        }
        if subscriber.is_joined() && !published {
            published = true;
            publisher.quotes(3, 0..2_000);
        }
    }
    assert_eq!(subscriber.as_raw_fd(), fd, "it is one descriptor for good");
    // Only heartbeats arrive now, at most every 10 ms, besides a few timers.
    let (began, idle_from) = (Instant::now(), polls);
    while began.elapsed() < Duration::from_millis(500) {
        subscriber.wait(Duration::from_millis(50)).unwrap();
        polls += 1;
        while subscriber.poll(seen.taker()).worked() {
            polls += 1;
        }
    }
    let idle = polls - idle_from;
    assert!(
        idle < 1_500,
        "{idle} polls in half a second of silence: that is a busy loop"
    );
    assert_eq!(seen.numbers(), (0..2_000).collect::<Vec<_>>());
}

#[test]
fn descriptor_becomes_readable_in_external_poll() {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let publisher = Publisher::start();
    let mut seen = Seen::default();
    let mut subscriber = joined(publisher.subscriber().channel("all"), &mut seen);
    publisher.quotes(1, 0..100);
    let began = Instant::now();
    while seen.records.len() < 100 {
        let fd = subscriber.as_fd().try_clone_to_owned().unwrap();
        let mut fds = [PollFd::new(&fd, PollFlags::IN)];
        let timeout = Timespec {
            tv_sec: 5,
            tv_nsec: 0,
        };
        assert_eq!(
            poll(&mut fds, Some(&timeout)).unwrap(),
            1,
            "it becomes readable"
        );
        while subscriber.poll(seen.taker()).worked() {}
        assert!(began.elapsed() < PATIENCE);
    }
}

#[test]
fn descriptor_is_readable_on_rejoin_and_after_panic() {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let publisher = Publisher::start();
    let mut seen = Seen::default();
    let mut subscriber = joined(publisher.subscriber().channel("all"), &mut seen);
    let fd = subscriber.as_fd().try_clone_to_owned().unwrap();
    let is_readable = || {
        let mut fds = [PollFd::new(&fd, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).unwrap() == 1
    };
    // One round would prove nothing, because heartbeats arrive too.
    for round in 0..5 {
        subscriber.rejoin(CHANNEL, Start::Live).unwrap();
        assert!(is_readable(), "{round}");
        poll_until(&mut subscriber, &mut seen, |subscriber, seen| {
            let joins = seen.events.iter();
            let joins = joins.filter(|(_, event)| matches!(event, Event::Joined { .. }));
            subscriber.is_joined() && joins.count() == round + 2
        });
    }
    publisher.quotes(1, 0..10);
    let began = Instant::now();
    let panics = |item: Item<'_>| panic!("planned: {item:?}");
    while catch_unwind(AssertUnwindSafe(|| subscriber.poll(panics))).is_ok() {
        assert!(began.elapsed() < PATIENCE);
    }
    assert!(subscriber.poll(ignore).poisoned);
    let _ = subscriber.as_fd();
    assert!(is_readable());
}

/// Returns a subscriber whose closure panicked at its 97th record.
fn poisoned(publisher: &Publisher) -> Subscriber {
    let mut seen = Seen::default();
    let mut subscriber = joined(publisher.subscriber().channel("all"), &mut seen);
    publisher.quotes(5, 0..300);
    let (began, mut count) = (Instant::now(), 0);
    let panic = loop {
        let caught = catch_unwind(AssertUnwindSafe(|| {
            subscriber.poll(|item| {
                count += u32::from(matches!(item, Item::Record(..)));
                assert!(count < 97, "planned");
            })
        }));
        if let Err(panic) = caught {
            break panic;
        }
        assert!(began.elapsed() < PATIENCE, "{count} records");
    };
    assert_eq!(panic.downcast_ref(), Some(&"planned"));
    assert_eq!(count, 97);
    subscriber
}

#[test]
fn panicking_closure_poisons_its_subscriber() {
    let publisher = Publisher::start();
    let mut subscriber = poisoned(&publisher);
    let monitor = subscriber.monitor();
    let polls = [
        subscriber.poll(|item| panic!("{item:?}")),
        subscriber.poll_batches(&mut |item: Item<'_>| panic!("{item:?}")),
    ];
    for polled in polls {
        assert!(polled.poisoned && polled.problem && !polled.worked());
    }
    assert!(matches!(
        subscriber.problem(),
        Some(SubscribeError::Poisoned)
    ));
    let text = subscriber.problem().map(ToString::to_string);
    assert_eq!(monitor.problem(), text);
    let waited = subscriber.wait(Duration::ZERO).unwrap_err();
    assert_eq!(Some(waited.to_string()), text);
    let rejoined = subscriber.rejoin(CHANNEL, Start::Live);
    assert_eq!(rejoined, Err(ChannelError::Poisoned));
    let filtered = subscriber.set_filter(CHANNEL, InstrumentFilter::all());
    assert_eq!(filtered, Err(ChannelError::Poisoned.into()));
    assert!(!subscriber.is_joined() && !monitor.is_joined());
    assert!(!subscriber.ended());
    let summary = subscriber.leave_with(|item| panic!("{item:?}"));
    assert!(summary.poisoned && !summary.is_whole(), "{summary}");
}

#[test]
fn poisoned_subscriber_spawn_is_refused() {
    let publisher = Publisher::start();
    let run = poisoned(&publisher).run_pinned(core(), Idle::Yield, |_| {});
    assert!(matches!(run, Err(SpawnError::Poisoned)));
    let split = poisoned(&publisher).split(core(), Idle::Yield, 1 << 20);
    assert!(matches!(split, Err(SpawnError::Poisoned)));
}

#[test]
fn filter_counts_others_and_passes_whole_venue() {
    let publisher = Publisher::listing(&[(1, "AAPL"), (2, "MSFT")]);
    let filter = InstrumentFilter::symbols(["MSFT", "LATE"]);
    let channel = ChannelBuilder::new("all").filter(filter);
    let mut seen = Seen::default();
    let mut subscriber = joined(publisher.subscriber().channel(channel), &mut seen);
    let text = subscriber.problem().expect("LATE is not known").to_string();
    assert!(
        text.contains("\"LATE\"") && text.contains("2 are known"),
        "{text}"
    );
    assert_eq!(subscriber.directory().id("AAPL"), Some(1));
    publisher.publish(vec![quote(1, 10), quote(2, 11), quote(0, 12), quote(7, 13)]);
    publisher.publish(vec![mapping(7, "LATE")]);
    publisher.publish(vec![quote(7, 14), quote(1, 15)]);
    publisher.end();
    poll_until(&mut subscriber, &mut seen, |s, _| s.ended());
    let given: Vec<_> = seen
        .records
        .iter()
        .map(|(_, id, number)| (*id, *number))
        .collect();
    assert_eq!(given, [(2, 11), (0, 12), (7, 0), (7, 14)]);
    assert!(subscriber.problem().is_none(), "it is known now");
    assert_eq!(subscriber.directory().symbol(7), Some("LATE"));
    assert_eq!(subscriber.monitor().directory().id("LATE"), Some(7));
    let report = subscriber.channels().remove(0);
    assert_eq!(report.handed.filtered_records.get(), 3);
    assert_eq!(report.handed.handed_records.get(), 4);
    assert_eq!(report.counters.delivered_records.get(), 7);
}

#[test]
fn filter_with_unknown_symbol_is_refused_with_hint() {
    let publisher = Publisher::listing(&[(1, "AAPL"), (2, "MSFT")]);
    let mut seen = Seen::default();
    let mut subscriber = joined(publisher.subscriber().channel("all"), &mut seen);
    assert_eq!(subscriber.channel_id("all"), Some(CHANNEL));
    assert_eq!(subscriber.channel_id("any"), None);
    let error = subscriber.set_filter(CHANNEL, InstrumentFilter::symbols(["MSF"]));
    let text = error.unwrap_err().to_string();
    assert_eq!(
        text,
        "channel 1 has no instrument \"MSF\": 2 are known, for example MSFT, AAPL"
    );
    let error = subscriber
        .set_filter(ChannelId(9), InstrumentFilter::all())
        .unwrap_err();
    assert!(matches!(
        error,
        FilterError::Channel(ChannelError::Unknown { .. })
    ));
    let text = error.to_string();
    assert!(
        text.contains("channel 9") && text.contains("\"all\" (1)"),
        "{text}"
    );
    subscriber
        .set_filter(CHANNEL, InstrumentFilter::symbols(["MSFT"]))
        .unwrap();
    publisher.publish(vec![quote(1, 1), quote(2, 2)]);
    publisher.end();
    poll_until(&mut subscriber, &mut seen, |s, _| s.ended());
    assert_eq!(seen.numbers(), [2]);
}

#[test]
fn new_epoch_replaces_directory_and_filter() {
    let publisher = Publisher::listing(&[(1, "AAPL"), (2, "MSFT")]);
    let channel = ChannelBuilder::new("all").filter(InstrumentFilter::symbols(["AAPL"]));
    let mut seen = Seen::default();
    let mut subscriber = joined(publisher.subscriber().channel(channel), &mut seen);
    publisher.publish(vec![quote(1, 1), quote(2, 2)]);
    poll_until(&mut subscriber, &mut seen, |_, seen| {
        seen.records.len() == 1
    });
    publisher.with(|service| service.list(&[(1, "MSFT"), (2, "AAPL")]));
    publisher.new_epoch();
    publisher.publish(vec![quote(1, 3), quote(2, 4)]);
    publisher.end();
    poll_until(&mut subscriber, &mut seen, |s, _| s.ended());
    assert_eq!(seen.numbers(), [1, 4]);
    assert!(seen.saw(|event| matches!(event, Event::EpochChanged { .. })));
    assert_eq!(subscriber.directory().id("AAPL"), Some(2));
}

/// Restarts the publisher with another number for the channel, and other ids for its symbols.
fn come_back_as(publisher: &Publisher, number: u16) {
    publisher.with(move |service| {
        service.channel = ChannelId(number);
        service.list(&[(1, "MSFT"), (2, "AAPL")]);
    });
    publisher.new_epoch();
}

#[test]
fn renumbered_channel_is_followed_by_name() {
    let publisher = Publisher::listing(&[(1, "AAPL"), (2, "MSFT")]);
    let only = || InstrumentFilter::symbols(["AAPL"]);
    let channel = ChannelBuilder::new("all").filter(only());
    let none = FaultConfig::default();
    let builder = publisher.subscriber().channel(channel).faults(none);
    let mut seen = Seen::default();
    let mut subscriber = joined(builder, &mut seen);
    publisher.publish(vec![quote(1, 1), quote(2, 2)]);
    poll_until(&mut subscriber, &mut seen, |_, seen| {
        seen.records.len() == 1
    });
    assert_eq!(subscriber.directory().id("AAPL"), Some(1));
    let reported = seen.events.len();
    come_back_as(&publisher, 7);
    publisher.publish(vec![quote(1, 3), quote(2, 4)]);
    poll_until(&mut subscriber, &mut seen, |_, seen| {
        seen.records.len() == 2
    });
    assert_eq!(seen.numbers(), [1, 4], "the filter is of the symbol");
    let (position, instrument, _) = seen.records[1];
    assert_eq!((position.channel, instrument), (ChannelId(7), 2));
    // An application that keeps names and books by epoch must learn of the change under the old number. It
    // must also learn that the missing part of the old epoch never comes.
    let (from, to) = (Epoch(1), Epoch(2));
    let reported: Vec<_> = seen.events[reported..]
        .iter()
        .filter(|(_, event)| {
            matches!(
                event,
                Event::Lost(_) | Event::EpochChanged { .. } | Event::Joined { .. }
            )
        })
        .map(|(at, event)| (at.channel, event.clone()))
        .collect();
    let [
        (CHANNEL, Event::Lost(tail)),
        (CHANNEL, changed),
        (ChannelId(7), Event::Joined { after }),
    ] = &reported[..]
    else {
        panic!("{reported:?}");
    };
    assert_eq!((tail.cause, tail.records), (LossCause::Epoch, None));
    assert_eq!(*changed, Event::EpochChanged { from, to });
    assert_eq!(after.0, 0, "all of it");
    // Everything else is available under the new number only.
    assert_eq!(subscriber.channel_id("all"), Some(ChannelId(7)));
    assert_eq!(subscriber.monitor().channel_id("all"), Some(ChannelId(7)));
    assert_eq!(subscriber.directory().id("AAPL"), Some(2));
    let sockets = [CHANNEL, ChannelId(7)].map(|it| subscriber.faults(it).is_some());
    assert_eq!(sockets, [false, true], "the old group is left");
    assert!(subscriber.set_filter(CHANNEL, only()).is_err());
    assert!(subscriber.rejoin(CHANNEL, Start::Live).is_err());
    let other = InstrumentFilter::symbols(["MSFT"]);
    subscriber.set_filter(ChannelId(7), other).unwrap();
    publisher.publish(vec![quote(1, 5), quote(2, 6)]);
    publisher.end();
    poll_until(&mut subscriber, &mut seen, |s, _| s.ended());
    assert_eq!(seen.numbers(), [1, 4, 5]);
}

#[test]
fn channel_id_change_after_session_end_is_no_loss() {
    let publisher = Publisher::start();
    let mut seen = Seen::default();
    let mut subscriber = joined(publisher.subscriber().channel("all"), &mut seen);
    publisher.quotes(1, 0..10);
    publisher.end();
    poll_until(&mut subscriber, &mut seen, |s, _| s.ended());
    come_back_as(&publisher, 7);
    poll_until(&mut subscriber, &mut seen, |_, seen| {
        seen.saw(|event| matches!(event, Event::EpochChanged { .. }))
    });
    assert!(!subscriber.ended() && !seen.saw(|event| matches!(event, Event::Lost(_))));
}

#[test]
fn rejoin_restarts_channel_at_requested_start() {
    let publisher = Publisher::start();
    let mut seen = Seen::default();
    let mut subscriber = joined(publisher.subscriber().channel("all"), &mut seen);
    publisher.quotes(1, 0..100);
    poll_until(&mut subscriber, &mut seen, |_, seen| {
        seen.records.len() == 100
    });
    let wrong = subscriber.rejoin(ChannelId(2), Start::Oldest).unwrap_err();
    assert!(
        wrong.to_string().contains("does not follow channel 2"),
        "{wrong}"
    );
    subscriber.rejoin(CHANNEL, Start::Oldest).unwrap();
    publisher.quotes(1, 100..150);
    publisher.end();
    poll_until(&mut subscriber, &mut seen, |s, _| s.ended());
    let expected: Vec<u32> = (0..100).chain(0..150).collect();
    assert_eq!(seen.numbers(), expected, "from the oldest again");
    let joins = seen
        .events
        .iter()
        .filter(|(_, event)| matches!(event, Event::Joined { .. }));
    assert_eq!(joins.count(), 2);
    // An application that waits for the join learns the reason if the publisher never welcomes it again.
    let links: Vec<_> = seen.events.iter().map(|(_, event)| event).collect();
    let links = links.split(|event| matches!(event, Event::Joined { .. }));
    let down = Event::RepairLinkDown(LinkDownReason::Rejoining);
    let of_each = links.map(|reported| {
        let count = |wanted: &Event| reported.iter().filter(|event| **event == wanted).count();
        (count(&down), count(&Event::RepairLinkUp))
    });
    assert!(of_each.eq([(0, 0), (1, 0), (0, 1)]), "{:?}", seen.events);
}

#[test]
fn rejoin_declares_open_gaps_lost() {
    let publisher = Publisher::start();
    let config = ReceiverConfig {
        repair: false,
        unrepaired_wait_us: 60_000_000,
        ..ReceiverConfig::default()
    };
    let faults = FaultConfig {
        seed: 5,
        drop: 0.2,
        ..FaultConfig::default()
    };
    let channel = ChannelBuilder::new("all").config(config);
    let mut seen = Seen::default();
    let mut subscriber = joined(
        publisher.subscriber().channel(channel).faults(faults),
        &mut seen,
    );
    publisher.quotes(1, 0..5_000);
    poll_until(&mut subscriber, &mut seen, |s, _| {
        s.channels()[0].counters.missing_open.get() > 0 && s.channels()[0].heard.0 > 250
    });
    subscriber.rejoin(CHANNEL, Start::Live).unwrap();
    assert_eq!(
        subscriber.wait(Duration::from_secs(5)).unwrap(),
        Wake::Ready
    );
    subscriber.poll(seen.taker());
    let lost =
        seen.saw(|event| matches!(event, Event::Lost(loss) if loss.cause == LossCause::Left));
    assert!(lost, "{:?}", seen.events);
    let handed = &subscriber.channels()[0].handed;
    assert_eq!(handed.handed_events.get(), seen.events.len() as u64);
    assert_eq!(handed.handed_records.get(), seen.records.len() as u64);
}

#[test]
fn rejection_ends_as_problem_after_welcome() {
    let publisher = Publisher::start();
    let mut seen = Seen::default();
    let mut subscriber = joined(publisher.subscriber().channel("all"), &mut seen);
    assert!(subscriber.problem().is_none());
    publisher.with(|service| service.name = "other");
    publisher.new_epoch();
    poll_until(&mut subscriber, &mut seen, |s, _| {
        matches!(s.problem(), Some(SubscribeError::Rejected { .. }))
    });
    publisher.with(|service| service.name = "all");
    publisher.new_epoch();
    poll_until(&mut subscriber, &mut seen, |s, _| s.is_joined());
    assert!(subscriber.problem().is_none(), "{:?}", subscriber.problem());
    publisher.quotes(1, 0..10);
    let polled = poll_until(&mut subscriber, &mut seen, |_, seen| {
        seen.records.len() == 10
    });
    assert!(!polled.problem);
}

#[test]
fn unknown_filter_symbol_is_reported_after_data() {
    let publisher = Publisher::start();
    let wanted = || InstrumentFilter::symbols(["AAPLE"]);
    let channel = || ChannelBuilder::new("all").filter(wanted());
    let (mut seen, mut seen_many) = (Seen::default(), Seen::default());
    let mut subscriber = joined(publisher.subscriber().channel(channel()), &mut seen);
    assert!(subscriber.problem().is_none(), "nothing was announced yet");
    let know = |subscriber: &mut Subscriber, seen: &mut Seen, count| {
        poll_until(subscriber, seen, |s, _| {
            s.directory().channel(CHANNEL).map_or(0, |it| it.len()) == count
        });
    };
    let text = |subscriber: &Subscriber| subscriber.problem().map(ToString::to_string);
    publisher.publish(vec![mapping(1, "AAPL")]);
    know(&mut subscriber, &mut seen, 1);
    assert!(subscriber.problem().is_none(), "it may still come");
    publisher.publish(vec![quote(1, 1)]);
    poll_until(&mut subscriber, &mut seen, |s, _| s.problem().is_some());
    let reported = text(&subscriber).unwrap();
    assert!(
        reported.contains("\"AAPLE\"") && reported.ends_with("1 are known, for example AAPL"),
        "{reported}"
    );
    for (id, symbol) in [(2, "MSFT"), (3, "ZVZZT")] {
        publisher.publish(vec![mapping(id, symbol)]);
        know(&mut subscriber, &mut seen, id as usize);
    }
    // The text is made again when the number of names has doubled, not for every name.
    let reported = text(&subscriber).unwrap();
    assert!(
        reported.ends_with("2 are known, for example AAPL, MSFT"),
        "{reported}"
    );
    // This subscriber receives only names.
    let mut many = joined(publisher.subscriber().channel(channel()), &mut seen_many);
    publisher.publish(
        (10..1_100)
            .map(|id| mapping(id, &format!("S{id}")))
            .collect(),
    );
    know(&mut many, &mut seen_many, 1_090);
    assert!(text(&many).is_some());
    publisher.publish(vec![mapping(4, "AAPLE")]);
    for (subscriber, seen) in [(&mut subscriber, &mut seen), (&mut many, &mut seen_many)] {
        poll_until(subscriber, seen, |s, _| {
            s.directory().id("AAPLE") == Some(4)
        });
        assert!(subscriber.problem().is_none());
    }
}

#[test]
fn filter_follows_symbol_remapped_to_other_instrument() {
    let publisher = Publisher::listing(&[(7, "FB")]);
    let channel = ChannelBuilder::new("all").filter(InstrumentFilter::symbols(["FB"]));
    let mut seen = Seen::default();
    let mut subscriber = joined(publisher.subscriber().channel(channel), &mut seen);
    publisher.publish(vec![quote(7, 1)]);
    publisher.publish(vec![mapping(8, "FB"), mapping(7, "META")]);
    publisher.publish(vec![quote(7, 2), quote(8, 3)]);
    publisher.end();
    poll_until(&mut subscriber, &mut seen, |s, _| s.ended());
    assert_eq!(seen.numbers(), [1, 0, 3], "with the announcement of 8");
    assert_eq!(subscriber.directory().id("FB"), Some(8));
    assert_eq!(subscriber.directory().id("META"), Some(7));
}

#[test]
fn lag_alarm_is_raised_and_cleared() {
    let publisher = Publisher::start();
    let faults = FaultConfig {
        seed: 1,
        script: vec![tickcast_subscriber::faults::Scripted::DropSequences {
            channel: None,
            ranges: vec![SequenceRange {
                first: Sequence(10),
                last: Sequence(14),
            }],
            retransmitted: false,
        }],
        ..FaultConfig::default()
    };
    let channel = ChannelBuilder::new("all").lag_alarm(20);
    let mut seen = Seen::default();
    let mut subscriber = joined(
        publisher.subscriber().channel(channel).faults(faults),
        &mut seen,
    );
    // Without repair, everything after the gap waits.
    publisher.with(|service| service.answers = false);
    publisher.quotes(1, 0..2_000);
    poll_until(&mut subscriber, &mut seen, |_, seen| {
        seen.saw(|event| matches!(event, Event::Lagging { sequences } if *sequences > 20))
    });
    assert!(subscriber.monitor().channels()[0].lag > 20);
    publisher.with(|service| service.answers = true);
    poll_until(&mut subscriber, &mut seen, |_, seen| {
        seen.saw(|e| *e == Event::CaughtUp)
    });
    poll_until(&mut subscriber, &mut seen, |_, seen| {
        seen.records.len() == 2_000
    });
}

#[test]
fn join_limit_expiry_is_reported_as_problem() {
    // No program listens on this port, and the kernel gives it to none.
    let nobody = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
    let builder = Subscriber::builder(nobody.to_string()).channel("all");
    let mut patient = builder.clone().join_limit(PATIENCE).build().unwrap();
    assert!(!patient.poll(ignore).problem, "not before the limit");
    let mut subscriber = builder
        .join_limit(Duration::from_millis(50))
        .build()
        .unwrap();
    let polled = poll_until(&mut subscriber, &mut Seen::default(), |s, _| {
        s.problem().is_some()
    });
    assert!(polled.problem);
    assert!(matches!(
        subscriber.problem(),
        Some(SubscribeError::NotJoined { .. })
    ));
    let text = subscriber.monitor().problem().unwrap_or_default();
    let reported = || subscriber.problem().unwrap().to_string();
    assert!(text.is_empty() || text == reported(), "{text}");
    // One of several publishers runs.
    let publisher = Publisher::start();
    let both = [nobody.to_string(), publisher.control.to_string()];
    let builder = Subscriber::builder(both)
        .channel("all")
        .join_limit(PATIENCE);
    let mut seen = Seen::default();
    let mut subscriber = joined(builder, &mut seen);
    publisher.publish(vec![trade(1, 7)]);
    publisher.publish(vec![order(1, 8)]);
    publisher.end();
    poll_until(&mut subscriber, &mut seen, |s, _| s.ended());
    assert_eq!(seen.numbers(), [7, 8]);
}

#[test]
fn replay_comes_only_from_welcoming_publisher() {
    let (first, other) = (Publisher::start(), Publisher::start());
    first.quotes(1, 0..500);
    other.quotes(1, 1_000..1_500);
    let both = [first.control.to_string(), other.control.to_string()];
    let channel = ChannelBuilder::new("all").start(Start::Oldest);
    let mut seen = Seen::default();
    // A slow first publisher is still the first one.
    let builder = Subscriber::builder(both)
        .channel(channel)
        .join_timeout(PATIENCE);
    let mut subscriber = joined(builder, &mut seen);
    first.end();
    poll_until(&mut subscriber, &mut seen, |s, _| s.ended());
    assert_eq!(seen.numbers(), (0..500).collect::<Vec<_>>());
    assert_eq!(seen.records[0].0.epoch, Epoch(1));
}

#[test]
fn dropped_subscriber_returns_its_connection() {
    let publisher = Publisher::start();
    let mut seen = Seen::default();
    let subscriber = joined(publisher.subscriber().channel("all"), &mut seen);
    publisher.with(|service| assert_eq!(service.connections(), 1));
    drop(subscriber);
    let began = Instant::now();
    loop {
        let (tell, reported) = std::sync::mpsc::channel();
        publisher.with(move |service| tell.send(service.connections()).unwrap());
        if reported.recv().unwrap() == 0 {
            return;
        }
        assert!(began.elapsed() < PATIENCE, "the connection stays");
    }
}

/// Returns an offer of verbs from a host for which this host has no device: loopback belongs to none.
fn verbs_offer() -> FanOutOffer {
    let sender = Ipv4Addr::LOCALHOST;
    FanOutOffer::Verbs {
        lines: vec![VerbsLine {
            group: "239.255.8.1".parse().unwrap(),
            sender,
            gid: sender.to_ipv6_mapped(),
        }],
        q_key: 7,
    }
}

#[test]
fn auto_without_device_takes_udp_verbs_is_problem() {
    let publisher = Publisher::offering(vec![verbs_offer()]);
    let mut seen = Seen::default();
    let mut auto = joined(publisher.subscriber().channel("all"), &mut seen);
    publisher.quotes(1, 0..10);
    poll_until(&mut auto, &mut seen, |_, seen| seen.records.len() == 10);
    // A subscriber without multicast would receive everything by repair, and have a problem.
    assert!(auto.problem().is_none(), "{:?}", auto.problem());
    let builder = publisher.subscriber().transport(Transport::Verbs);
    let mut verbs = builder.channel("all").build().unwrap();
    let began = Instant::now();
    while verbs.problem().is_none() {
        assert!(began.elapsed() < PATIENCE);
        verbs.poll(ignore);
    }
    let problem = verbs.problem().unwrap();
    assert!(matches!(problem, SubscribeError::Verbs { .. }), "{problem}");
    let said = problem.to_string();
    assert!(
        said.contains("all: ") && said.contains("use the transport udp"),
        "{said}"
    );
}

#[test]
fn unoffered_transport_is_reported_as_problem() {
    let publisher = Publisher::start();
    let builder = publisher.subscriber().transport(Transport::Verbs);
    let mut verbs = builder.channel("all").build().unwrap();
    let began = Instant::now();
    while verbs.problem().is_none() {
        assert!(began.elapsed() < PATIENCE);
        verbs.poll(ignore);
    }
    let said = verbs.problem().unwrap().to_string();
    assert!(
        said.contains("does not offer the requested transport"),
        "{said}"
    );
}

#[test]
fn interval_log_adds_up_to_the_histograms_when_left() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("risk-1.hlog");
    let publisher = Publisher::start();
    let mut seen = Seen::default();
    let builder = publisher.subscriber().channel("all");
    let builder = builder.interval_log(&path, Duration::from_millis(100));
    let mut subscriber = joined(builder, &mut seen);
    let intervals = || read_intervals(&std::fs::read(&path).unwrap()).unwrap();
    for (published, is_last) in [(500, false), (800, true)] {
        let before = u32::try_from(seen.records.len()).unwrap();
        publisher.quotes(3, before..published);
        poll_until(&mut subscriber, &mut seen, |_, seen| {
            let has_all = seen.records.len() == published as usize;
            // The thread writes without a poll. The last interval is written by leaving.
            has_all && (is_last || !intervals().is_empty())
        });
    }
    let expected = subscriber.latency(CHANNEL).unwrap();
    let monitor = subscriber.monitor();
    subscriber.leave();
    let mut count = 0;
    for stage in Stage::ALL {
        let tag = format!("all/{}", stage.name());
        let mut sum = expected.stage(stage).clone();
        sum.reset();
        for interval in intervals().iter().filter(|it| it.tag == tag) {
            sum.add(&interval.samples).unwrap();
        }
        assert_eq!(&sum, expected.stage(stage), "{tag}");
        count += sum.len();
    }
    assert!(count >= 800, "{count} samples");
    assert_eq!(monitor.interval_log_failures(), 0);
}

#[test]
fn interval_log_with_impossible_settings_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("risk-1.hlog");
    let second = Duration::from_secs(1);
    let builder = || Subscriber::builder("127.0.0.1:7400").channel("all");
    for (builder, expected) in [
        (
            builder().interval_log(&path, Duration::ZERO),
            "from 100 ms to a day",
        ),
        (
            builder().interval_log(&path, 86_401 * second),
            "from 100 ms to a day",
        ),
        (
            builder().interval_log(&path, second).latency(false),
            "leave `latency` on",
        ),
        (
            builder().interval_log(path.join("below"), second),
            "can't open the interval log",
        ),
        (
            builder().interval_log("/dev/full", second),
            "can't write to /dev/full",
        ),
    ] {
        let error = builder.build().unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    assert!(!path.exists(), "a refused subscriber leaves no file");
}
