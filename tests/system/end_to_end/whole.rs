//! The whole system over UDP on loopback: a publisher process, subscribers behind injected faults, and
//! digests that must be equal.

use std::ops::RangeInclusive;
use std::time::Duration;

use serde_json::json;
use tickcast_publisher::record::{RType, RecordHeader, TradeMsg};
use tickcast_publisher::{Config, Publisher as Api, SourcePosition};
use tickcast_subscriber::ChannelId;
use tickcast_subscriber::faults::{Burst, FaultConfig, Reorder, Scripted};
use tickcast_subscriber::{
    ChannelBuilder, Delivery, Event, LossCause, ReceiverConfig, Start, Subscriber,
};
use tickcast_test_support::{
    Follower, PATIENCE, Publisher, channel, drive, drive_to_end, end, endless, free_address,
    free_group, number, one_channel, simulated,
};

/// Returns every fault of a bad network at once.
fn bad_network(seed: u64) -> FaultConfig {
    FaultConfig {
        seed,
        drop: 0.02,
        burst: Some(Burst {
            loss: 0.03,
            mean_len: 4.0,
        }),
        duplicate: 0.02,
        reorder: Some(Reorder {
            probability: 0.02,
            depth: 8,
            hold: tickcast_subscriber::Nanos::from_ms(1),
        }),
        corrupt: 0.01,
        truncate: 0.005,
        ..FaultConfig::default()
    }
}

#[test]
fn subscribers_on_bad_network_reach_digest() {
    let publisher = Publisher::start(&one_channel(&[free_group()], simulated(60_000, 30_000, 3)));
    let mut followers: Vec<_> = (1..=3)
        .map(|seed| {
            let builder = publisher
                .subscriber()
                .name(format!("s{seed}"))
                .channel("all");
            Follower::new(builder.faults(bad_network(seed)))
        })
        .collect();
    drive_to_end(&mut followers);
    let (status, summary) = publisher.finish();
    assert!(status.success(), "{summary}");
    let published = number(&summary, "published_records");
    for follower in &followers {
        follower.assert_balanced();
        let c = follower.counters(0);
        assert_eq!(
            follower.digest(1),
            channel(&summary)["digest"],
            "equal digests"
        );
        assert_eq!(c.delivered_records.get(), published);
        assert!(c.missing_recovered.get() > 0, "5% loss makes gaps");
        assert!(c.duplicates.get() > 0 && c.corrupt_dropped.get() > 0);
        assert!(
            c.malformed_dropped.get() > 0,
            "truncated datagrams are counted"
        );
        assert_eq!((c.missing_lost.get(), c.missing_open.get()), (0, 0));
    }
    assert_nacks_balance(&summary);
}

/// Asserts that NACKs received = answered + refused by reason, in sequences.
fn assert_nacks_balance(summary: &serde_json::Value) {
    let channel = channel(summary);
    let count = |key: &str| number(channel, key);
    let settled = [
        "answered",
        "answered_by_multicast",
        "refused_window",
        "refused_ahead",
        "refused_budget",
        "refused_too_slow",
        "refused_epoch",
        "refused_malformed",
        "repairs_cancelled",
        "pending",
    ];
    assert_eq!(
        count("nacked"),
        settled.iter().map(|key| count(key)).sum::<u64>(),
        "{channel}"
    );
    assert!(count("answered") + count("answered_by_multicast") > 0);
}

#[test]
fn unrepaired_losses_and_deliveries_sum_to_published() {
    // All of it fits into the socket's buffer.
    let publisher = Publisher::start(&one_channel(&[free_group()], simulated(5_000, 20_000, 1)));
    let config = ReceiverConfig {
        repair: false,
        ..ReceiverConfig::default()
    };
    let faults = FaultConfig {
        seed: 3,
        drop: 0.05,
        ..FaultConfig::default()
    };
    let builder = publisher
        .subscriber()
        .channel(ChannelBuilder::new("all").config(config))
        .faults(faults);
    let mut followers = [Follower::new(builder)];
    drive_to_end(&mut followers);
    let follower = &followers[0];
    follower.assert_balanced();
    let (_, summary) = publisher.finish();
    let c = follower.counters(0);
    assert!(!follower.losses.is_empty());
    assert!(
        follower
            .losses
            .iter()
            .all(|loss| loss.cause == LossCause::RepairOff)
    );
    assert_eq!(
        c.delivered_records.get() + c.lost_records.get(),
        number(&summary, "published_records"),
        "to the record"
    );
    let plan = follower
        .subscriber
        .faults(ChannelId(1))
        .expect("faults were asked for");
    let log = plan
        .injector(tickcast_subscriber::LineId(0))
        .expect("line A")
        .log();
    let epoch = follower.subscriber.channels()[0].epoch;
    let missed: Vec<_> = follower.losses.iter().map(|loss| loss.sequences).collect();
    assert_eq!(
        log.dropped(epoch, ChannelId(1)),
        missed,
        "what was dropped is what was missed"
    );
}

#[test]
fn deadline_and_arrival_order_are_never_silent() {
    let publisher = Publisher::start(&one_channel(&[free_group()], simulated(20_000, 20_000, 1)));
    let within = Delivery::OrderedWithin(tickcast_subscriber::Nanos::from_ms(20));
    let builder = publisher
        .subscriber()
        .channel(ChannelBuilder::new("all").delivery(within));
    let mut followers = [Follower::new(builder.faults(bad_network(9)))];
    drive_to_end(&mut followers);
    followers[0].assert_balanced();
    let c = followers[0].counters(0);
    let (_, summary) = publisher.finish();
    let published = number(&summary, "published_records");
    assert_eq!(c.delivered_records.get() + c.lost_records.get(), published);
}

#[test]
fn lost_end_datagram_is_repaired() {
    let publisher = Publisher::start(&one_channel(&[free_group()], simulated(2_000, 20_000, 1)));
    let faults = FaultConfig {
        script: vec![Scripted::DropEnd { channel: None }],
        ..FaultConfig::default()
    };
    let builder = publisher.subscriber().channel("all").faults(faults);
    let mut followers = [Follower::new(builder)];
    drive_to_end(&mut followers);
    let (status, summary) = publisher.finish();
    assert!(status.success());
    let c = followers[0].counters(0);
    assert!(c.missing_recovered.get() >= 1, "END came by repair");
    assert!(followers[0].saw(|event| *event == Event::EndOfSession));
    assert_eq!(followers[0].digest(1), channel(&summary)["digest"]);
}

#[test]
fn late_join_from_oldest_splices_history_to_live() {
    let mut config = one_channel(&[free_group()], endless(10_000, 1));
    config["channels"][0]["slots"] = 131_072.into();
    let publisher = Publisher::start(&config);
    let mut followers = vec![Follower::new(
        publisher.subscriber().name("early").channel("all"),
    )];
    drive(&mut followers, |all| {
        all[0].records.values().sum::<u64>() > 10_000
    });
    let late = ChannelBuilder::new("all").start(Start::Oldest);
    let faults = FaultConfig {
        seed: 4,
        drop: 0.02,
        ..FaultConfig::default()
    };
    followers.push(Follower::new(
        publisher
            .subscriber()
            .name("late")
            .channel(late)
            .faults(faults),
    ));
    let live = ChannelBuilder::new("all");
    followers.push(Follower::new(
        publisher.subscriber().name("live").channel(live),
    ));
    drive(&mut followers, |all| {
        all[1].saw(|e| *e == Event::Live) && all[2].records.values().sum::<u64>() > 10_000
    });
    end(&publisher, &mut followers);
    let (_, summary) = publisher.finish();
    // The ring holds all of this run, so the late subscriber ends with the digest of the whole.
    for follower in &followers[..2] {
        follower.assert_balanced();
        assert_eq!(follower.digest(1), channel(&summary)["digest"]);
        assert!(follower.losses.is_empty());
    }
    let late = followers[1].counters(0);
    assert!(late.replay_received.get() > 0, "history came by replay");
    assert_eq!(
        followers[1]
            .events
            .iter()
            .filter(|e| **e == Event::Live)
            .count(),
        1
    );
    // The live subscriber began in the middle and has all records from there on.
    let began = followers[2].first.expect("it got records").record.0;
    let live = followers[2].counters(0).delivered_records.get();
    assert!(began > 1);
    assert_eq!(began - 1 + live, number(&summary, "published_records"));
}

#[test]
fn join_from_oldest_of_full_ring_loses_nothing() {
    // This test is the source, so the ring moves on only once the late subscribers have all of it.
    const SLOTS: u64 = 1_024;
    const RECORDS: u64 = 20;
    let mut config = one_channel(&[free_group()], json!(null));
    config["inputs"] = json!([{ "source": 3, "kind": "own" }]);
    config["channels"][0]["slots"] = SLOTS.into();
    // A fast machine publishes all of this within one measurement of the live rate, and a joiner is judged
    // by that rate.
    config["repair"] = json!({ "joiner_bytes_per_s": 1_000_000_000_000_u64 });
    let config = Config::parse(&config.to_string()).expect("a config");
    let mut publisher = Api::open(config).expect("a publisher");
    let control = publisher.control_address().to_string();
    let mut writer = publisher.channel("all").expect("the channel");
    let mut publish = |numbers: RangeInclusive<u64>| {
        for n in numbers {
            let trade = TradeMsg {
                hd: RecordHeader::new::<TradeMsg>(RType::Mbp0 as u8, 1, 1, n),
                price: n as i64,
                ..TradeMsg::default()
            };
            let at = SourcePosition::new(0, n);
            let message = vec![trade; RECORDS as usize];
            writer.publish_all(&message, at).expect("there is room");
            writer.flush();
        }
    };
    let builder = || Subscriber::builder(&*control);
    let mut followers = vec![Follower::new(builder().name("early").channel("all"))];
    drive(&mut followers, |all| all[0].subscriber.is_joined());
    // A datagram holds fewer than eight messages, so the ring moves on.
    for n in 0..32 {
        publish(n * SLOTS / 4 + 1..=(n + 1) * SLOTS / 4);
        drive(&mut followers, |all| {
            let c = all[0].counters(0);
            let settled = c.delivered_records.get() + c.lost_records.get();
            settled >= (n + 1) * SLOTS / 4 * RECORDS
        });
    }
    for n in 1..=3 {
        let late = ChannelBuilder::new("all").start(Start::Oldest);
        followers.push(Follower::new(
            builder().name(format!("late-{n}")).channel(late),
        ));
    }
    drive(&mut followers, |all| {
        (all[1..].iter()).all(|late| late.saw(|event| *event == Event::Live))
    });
    publish(8 * SLOTS + 1..=8 * SLOTS + 250);
    let ended = std::thread::spawn(move || publisher.end_session(PATIENCE));
    // The publisher ends once it has all last reports, which a busy machine delays.
    drive(&mut followers, |all| {
        all.iter().all(|it| it.subscriber.ended()) && ended.is_finished()
    });
    let summary = ended.join().expect("no panic").expect("a whole session");
    for late in &followers[1..] {
        late.assert_balanced();
        assert!(late.losses.is_empty(), "{:?}", late.losses);
        let began = late.first.expect("it got records").record.0;
        assert!(began > 1, "the ring had moved on");
        assert!(began / RECORDS <= 7 * SLOTS + SLOTS / 16, "{began}");
        let delivered = late.counters(0).delivered_records.get();
        let published = summary.published_records();
        assert_eq!(began - 1 + delivered, published, "all from there on");
    }
}

#[test]
fn either_side_may_start_first_and_both_may_come_and_go() {
    // The subscriber starts first and retries until the publisher is there.
    let control = free_address();
    let builder = Subscriber::builder(control.to_string());
    let mut followers = vec![Follower::new(builder.channel("all"))];
    tickcast_test_support::drive_for(&mut followers, Duration::from_millis(100));
    assert!(!followers[0].subscriber.is_joined());
    let mut config = one_channel(&[free_group()], endless(20_000, 1));
    config["control"] = control.to_string().into();
    let mut publisher = Publisher::start(&config);
    drive(&mut followers, |all| {
        all[0].records.values().sum::<u64>() > 1_000
    });
    // The publisher is killed and restarted: the subscriber reports and follows another epoch.
    publisher.kill();
    let publisher = Publisher::start(&config);
    drive(&mut followers, |all| {
        all[0].saw(|e| matches!(e, Event::EpochChanged { .. }))
    });
    let before = followers[0].records.values().sum::<u64>();
    drive(&mut followers, |all| {
        all[0].records.values().sum::<u64>() > before + 1_000
    });
    assert!(
        followers[0]
            .losses
            .iter()
            .any(|loss| loss.cause == LossCause::Epoch)
    );
    assert_eq!(followers[0].counters(0).epochs.get(), 2);
    followers[0].assert_balanced();
    // A subscriber leaves and another joins, which does not disturb the publisher.
    let gone = followers.pop().expect("one follower");
    gone.subscriber.leave();
    followers.push(Follower::new(publisher.subscriber().channel("all")));
    drive(&mut followers, |all| {
        all[0].records.values().sum::<u64>() > 1_000
    });
    end(&publisher, &mut followers);
    let (status, _) = publisher.finish();
    assert!(status.success());
    assert!(followers[0].losses.is_empty());
}
