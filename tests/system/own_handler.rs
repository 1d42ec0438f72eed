//! Custom feed handlers, from their records to a subscriber's callback. Their records, published in this
//! process or through a socket, arrive completely behind a network that loses 5%.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;
use sha2::{Digest, Sha256};
use tickcast_publisher::record::{BidAskPair, Mbp1Msg, RType, RecordHeader, TradeMsg};
use tickcast_publisher::{Config, Instrument, Publisher, SourceLoss, SourcePosition};
use tickcast_subscriber::faults::FaultConfig;
use tickcast_subscriber::{Event, Item, StreamEvent, Subscriber};
use tickcast_test_support::{
    Follower, PATIENCE, Publisher as Service, channel, drive, free_group, number,
};

fn loses(seed: u64) -> FaultConfig {
    FaultConfig {
        seed,
        drop: 0.05,
        ..FaultConfig::default()
    }
}

#[test]
fn handler_messages_reach_subscriber_at_five_percent() {
    const MESSAGES: u64 = 40_000;
    let mut config = tickcast_test_support::one_channel(&[free_group()], json!(null));
    config["inputs"] = json!([{ "source": 3, "kind": "own" }]);
    let config = Config::parse(&config.to_string()).expect("a config");
    let mut publisher = Publisher::open(config).expect("a publisher");
    let address = publisher.control_address().to_string();
    let builder = |seed| {
        Subscriber::builder(&*address)
            .name(format!("s{seed}"))
            .channel("all")
    };
    let mut followers: Vec<_> = (1..=2)
        .map(|seed| Follower::new(builder(seed).seed(seed).faults(loses(seed))))
        .collect();
    let monitor = publisher.monitor();
    drive(&mut followers, |_| {
        monitor.subscribers().iter().filter(|s| s.follows).count() == 2
    });
    let mut writer = publisher.channel("all").expect("the channel");
    let handler = std::thread::spawn(move || {
        let mut refused = 0;
        let symbol = |id: u32| Instrument {
            id,
            symbol: format!("S{id}"),
        };
        let all: Vec<_> = (1..=9).map(symbol).collect();
        writer.set_directory(&all).expect("there is room");
        for n in 1..=MESSAGES {
            let at = SourcePosition::new(0, n);
            let id = 1 + (n % 9) as u32;
            let trade = TradeMsg {
                hd: RecordHeader::new::<TradeMsg>(RType::Mbp0 as u8, 1, id, n),
                price: n as i64 * 10_000_000,
                size: n as u32,
                ..TradeMsg::default()
            };
            let quote = Mbp1Msg {
                hd: RecordHeader::new::<Mbp1Msg>(RType::Mbp1 as u8, 1, id, n),
                levels: [BidAskPair::default()],
                ..Mbp1Msg::default()
            };
            let published = match n % 4 {
                0 => writer.publish_all(&[trade.clone(), trade], at),
                1 => writer.publish(&quote, at),
                _ => writer.publish(&trade, at),
            };
            refused += u64::from(published.is_err());
            if n == MESSAGES / 2 {
                let loss = SourceLoss::gap(SourcePosition::new(0, n + 1), 7);
                writer.source_lost(loss).expect("the session goes on");
            }
            if n % 50 == 0 {
                writer.flush();
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        refused
    });
    drive(&mut followers, |_| handler.is_finished());
    assert_eq!(handler.join().expect("the handler"), 0, "there was room");
    let ended = std::thread::spawn(move || publisher.end_session(PATIENCE));
    // The publisher ends once it has all last reports, which a busy machine delays.
    drive(&mut followers, |all| {
        all.iter().all(|it| it.subscriber.ended()) && ended.is_finished()
    });
    let summary = ended.join().expect("no panic").expect("a whole session");
    let published = summary.published_records();
    assert_eq!(published, 9 + MESSAGES + MESSAGES / 4);
    for follower in &followers {
        follower.assert_balanced();
        assert_eq!(
            follower.digest(1),
            channel(summary.json())["digest"],
            "equal digests"
        );
        let c = follower.counters(0);
        assert!(c.missing_recovered.get() > 0, "5% loss makes gaps");
        assert_eq!(
            (c.missing_lost.get(), c.delivered_records.get()),
            (0, published)
        );
        assert!(follower.saw(|event| matches!(
            event,
            Event::Stream(StreamEvent::SourceLost { messages: 7, .. })
        )));
    }
    for status in monitor.subscribers() {
        assert_eq!((status.lag, status.lost_records), (0, 0), "{status:?}");
    }
}

#[test]
fn independent_handler_records_arrive_whole_under_loss() {
    const MESSAGES: u64 = 20_000;
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("records.sock");
    let input = json!({ "source": 3, "kind": "records", "socket": socket, "channel": "all" });
    let service = Service::start(&tickcast_test_support::one_channel(&[free_group()], input));
    let builder = service.subscriber().channel("all").faults(loses(5));
    let mut subscriber = builder.build().expect("a subscriber");
    let (mut received, mut events) = (Sha256::new(), Vec::new());
    let mut poll_until = |done: &dyn Fn(&[Event]) -> bool| {
        let began = Instant::now();
        while !done(&events) {
            let polled = subscriber.poll(|item| match item {
                Item::Record(_, record) => received.update(record.as_ref()),
                Item::Event(_, event) => events.push(event.clone()),
            });
            if !polled.worked() {
                std::thread::sleep(Duration::from_micros(50));
            }
            assert!(began.elapsed() < PATIENCE, "{events:?}");
        }
    };
    poll_until(&|events| events.iter().any(|e| matches!(e, Event::Joined { .. })));
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("protocol/stranger/records.py");
    let writer = Command::new("python3")
        .arg("-B")
        .arg(script)
        .arg(&socket)
        .args([MESSAGES.to_string(), "1".into()])
        .stdout(Stdio::piped())
        .spawn();
    let Ok(writer) = writer else {
        eprintln!("SKIPPED: python3 is not here, so docs/PROTOCOL.md is not checked by a stranger");
        return;
    };
    poll_until(&|events| events.contains(&Event::EndOfSession));
    let output = writer.wait_with_output().expect("the writer ends");
    assert!(output.status.success());
    let lost = events.iter().filter_map(|event| match event {
        Event::Stream(StreamEvent::SourceLost { messages, .. }) => Some(*messages),
        Event::Lost(loss) => panic!("{loss:?}"),
        _ => None,
    });
    let lost: Vec<_> = lost.collect();
    let c = subscriber.channels()[0].counters.clone();
    assert!(c.missing_recovered.get() > 0, "5% loss makes gaps");
    drop(subscriber);
    let (_, summary) = service.finish();
    // The handler loses the first message, and every 1,000th of the second half.
    let thousands = (1..)
        .map(|n| n * 1_000)
        .skip_while(|n| *n < 2 + MESSAGES / 2);
    let expected = 1 + thousands.take_while(|n| *n < 2 + MESSAGES).count();
    assert_eq!(lost, vec![1; expected], "each is told");
    let records = MESSAGES / 2 * 3;
    assert_eq!(number(&summary, "published_records"), records);
    assert_eq!(number(&summary["source"], "messages_total"), MESSAGES);
    let written = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let received = received
        .finalize()
        .into_iter()
        .map(|byte| format!("{byte:02x}"));
    assert_eq!(received.collect::<String>(), written, "equal digests");
}
