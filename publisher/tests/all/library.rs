//! The library: the firm's own handlers publish and never block. Every loss or omission of theirs is
//! reported.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::{Control, Listener, Said, group, to_the_end, wait_for};
use serde_json::{Value, json};
use tickcast_publisher::record::{
    InstrumentDefMsg, Mbp1Msg, RType, RecordBatch, RecordError, RecordHeader, TradeMsg,
};
use tickcast_publisher::{
    ChannelClaimError, ChannelWriter, Config, Instrument, Publisher, PublisherError,
    PublisherMonitor, SourceId, SourceLoss, SourceLossReason, SourcePosition, WriteError,
};
use tickcast_reliability::types::{Epoch, Sequence};
use tickcast_reliability::wire::{Datagram, Kind, PublisherState, StreamEvent};

const DRAIN: Duration = Duration::from_secs(600);

fn config(group: std::net::SocketAddrV4) -> Value {
    let mut config = crate::common::config(group, Value::Null);
    config["inputs"] = json!([]);
    config
}

/// Returns [`config`] with a queue of at most 128 messages, and a publish thread that polls only at
/// this interval.
fn short_queue(group: std::net::SocketAddrV4, idle_us: u32) -> Value {
    let mut config = config(group);
    config["threads"] = json!({ "queue_batches": 2, "idle": { "sleep": { "us": idle_us } } });
    config
}

fn open(config: &Value) -> Publisher {
    Publisher::open(Config::parse(&config.to_string()).unwrap()).unwrap()
}

fn trade(id: u32, size: u32) -> TradeMsg {
    TradeMsg {
        hd: RecordHeader::new::<TradeMsg>(RType::Mbp0 as u8, 1, id, 0),
        size,
        ..TradeMsg::default()
    }
}

const fn at(sequence: u64) -> SourcePosition {
    SourcePosition::new(0, sequence)
}

fn events(listener: &Listener) -> Vec<StreamEvent> {
    let all = listener.datagrams.values().filter_map(|bytes| {
        let datagram = Datagram::parse(bytes).unwrap();
        (datagram.header().kind == Kind::Event)
            .then(|| StreamEvent::parse(datagram.payload()).unwrap())
    });
    all.collect()
}

fn follow(publisher: &Publisher) -> (Control, Epoch) {
    let mut control = Control::to(publisher.control_address());
    let epoch = control.join("bare").channels[0].epoch;
    control.progress(epoch, Sequence(0), 0);
    (control, epoch)
}

/// Returns the sizes of all trades, in order.
fn sizes(listener: &Listener) -> Vec<u32> {
    let (bytes, _) = listener.records();
    let of_trade = |record: &[u8]| u32::from_le_bytes(record[24..28].try_into().unwrap());
    bytes.chunks_exact(48).map(of_trade).collect()
}

#[test]
fn handler_messages_arrive_in_order_with_positions() {
    let group = group();
    let mut listener = Listener::new(group);
    let mut publisher = open(&config(group));
    let mut channel = publisher.channel("all").unwrap();
    assert_eq!((channel.source(), channel.name()), (SourceId(1), "all"));
    assert_eq!(channel.resume_from(), None, "the epoch continues nothing");
    let symbol = |id, symbol: &str| Instrument {
        id,
        symbol: symbol.into(),
    };
    channel
        .set_directory(&[symbol(7, "AAPL"), symbol(9, "MSFT")])
        .unwrap();
    let mut control = Control::to(publisher.control_address());
    let welcome = control.join("bare").channels.remove(0);
    assert_eq!(welcome.directory, [symbol(7, "AAPL"), symbol(9, "MSFT")]);
    let mut several = RecordBatch::default();
    several.push(&trade(7, 4)).unwrap();
    let quote = Mbp1Msg {
        hd: RecordHeader::new::<Mbp1Msg>(RType::Mbp1 as u8, 1, 7, 0),
        ..Mbp1Msg::default()
    };
    several.push(&quote).unwrap();
    channel.publish(&trade(7, 1), at(1)).unwrap();
    channel
        .publish_all(&[trade(7, 2), trade(7, 3)], at(2))
        .unwrap();
    channel.publish_batch(&several, at(3)).unwrap();
    channel.flush();
    channel
        .source_lost(SourceLoss {
            instruments: vec![7],
            ..SourceLoss::gap(at(4), 2)
        })
        .unwrap();
    let monitor = channel.monitor();
    let ended = std::thread::spawn(move || publisher.end_session(DRAIN).unwrap());
    to_the_end(&mut listener, &mut control, welcome.epoch);
    let summary = ended.join().unwrap();
    assert_eq!(channel.publish(&trade(7, 9), at(9)), Err(WriteError::Ended));
    assert_eq!(
        channel.source_lost(SourceLoss::gap(at(9), 1)),
        Err(WriteError::Ended)
    );

    let (bytes, records) = listener.records();
    assert_eq!(records, 2 + 1 + 2 + 2);
    assert_eq!(bytes.len(), 2 * 176 + 4 * 48 + 80);
    assert_eq!(summary.published_records(), records);
    assert!(summary.has_loss(), "the source had a gap");
    let lost = StreamEvent::SourceLost {
        source: SourceId(1),
        reason: SourceLossReason::Gap,
        from: at(4),
        messages: 2,
        instruments: vec![7],
    };
    assert_eq!(events(&listener).last(), Some(&lost));
    let data = listener.datagrams.values().rev().find_map(|bytes| {
        let header = *Datagram::parse(bytes).unwrap().header();
        (header.kind == Kind::Data).then_some(header.source_position)
    });
    assert_eq!(data, Some(at(3)));
    let source = &monitor.sources()[0].counters;
    assert_eq!(
        (source.source_messages.get(), source.source_records.get()),
        (4, 7),
        "the names are one message"
    );
    assert_eq!(source.source_missing_messages.get(), 2);
    let channels = monitor.channels();
    assert_eq!(channels[0].sender.published_records.get(), 7);
    let subscriber = &monitor.subscribers()[0];
    assert_eq!(Sequence(subscriber.sequence), channels[0].sealed);
    assert_eq!((subscriber.lag, subscriber.lost_records), (0, 0));
}

#[test]
fn idle_handler_record_is_sent_confirmed_and_repaired() {
    let group = group();
    let mut listener = Listener::new(group);
    let mut publisher = open(&config(group));
    let mut channel = publisher.channel("all").unwrap();
    channel.publish(&trade(1, 5), at(1)).unwrap();
    // No flush and no further message: the record is sent all the same, and heartbeats confirm it.
    wait_for("the record", || {
        listener.poll();
        (listener.records().1 == 1).then_some(())
    });
    let before = listener.heartbeats;
    wait_for("heartbeats", || {
        listener.poll();
        let last = listener.last_heartbeat?;
        (listener.heartbeats > before + 3 && last.sequence == Sequence(2)).then_some(())
    });
    let (mut control, epoch) = follow(&publisher);
    control.nack(epoch, &[(2, 2)]);
    let repaired = wait_for("a repair", || match control.poll() {
        Some(Said::Datagram(bytes)) => Some(bytes),
        _ => None,
    });
    assert_eq!(
        Datagram::parse(&repaired).unwrap().header().sequence,
        Sequence(2)
    );
    drop(channel);
}

#[test]
fn overflow_is_reported_to_caller_and_stream_exactly() {
    let group = group();
    let mut listener = Listener::new(group);
    let mut publisher = open(&short_queue(group, 20_000));
    let (mut control, epoch) = follow(&publisher);
    let mut channel = publisher.channel("all").unwrap();
    let mut lost = Vec::new();
    for n in 1..=2_000 {
        match channel.publish(&trade(1 + n % 3, n), at(n.into())) {
            Ok(()) => {}
            Err(WriteError::Overflow) => lost.push(n),
            Err(error) => panic!("{error}"),
        }
    }
    assert!(
        lost.len() > 500,
        "a queue of 128 messages takes no 2,000 at once"
    );
    assert_eq!(channel.lost_messages(), lost.len() as u64);
    let monitor = publisher.monitor();
    // The handler sends nothing more, and the loss is reported all the same.
    let ended = std::thread::spawn(move || publisher.end_session(DRAIN).unwrap());
    to_the_end(&mut listener, &mut control, epoch);
    let summary = ended.join().unwrap();

    let mut reported = Vec::new();
    let mut expected = Vec::new();
    let mut aligned = tickcast_reliability::record::AlignedCopy::default();
    for bytes in listener.datagrams.values() {
        let datagram = Datagram::parse(aligned.of(bytes)).unwrap();
        match datagram.header().kind {
            Kind::Data => expected.extend(
                (datagram.records().unwrap()).map(|r| u64::from(r.get::<TradeMsg>().unwrap().size)),
            ),
            Kind::Event => {
                if let Some(StreamEvent::SourceLost {
                    reason,
                    from,
                    messages,
                    instruments,
                    ..
                }) = StreamEvent::parse(datagram.payload())
                {
                    assert_eq!(reason, SourceLossReason::Overflow);
                    assert!(instruments.iter().all(|id| (1..=3).contains(id)));
                    assert!(!instruments.is_empty());
                    let range = from.sequence()..from.sequence() + messages;
                    reported.extend(range.clone());
                    expected.extend(range);
                }
            }
            _ => {}
        }
    }
    assert_eq!(
        expected,
        (1..=2_000).collect::<Vec<_>>(),
        "all in order, each once"
    );
    assert_eq!(
        reported,
        lost.iter().map(|n| u64::from(*n)).collect::<Vec<_>>()
    );
    let counted = monitor.sources()[0].counters.source_overflow_messages.get();
    assert_eq!(counted, lost.len() as u64);
    assert_eq!(summary.published_records() + counted, 2_000);
    assert!(summary.has_loss());
}

#[test]
fn oversized_message_is_refused_and_reported_lost() {
    let group = group();
    let mut listener = Listener::new(group);
    let mut publisher = open(&config(group));
    let (mut control, epoch) = follow(&publisher);
    let mut channel = publisher.channel("all").unwrap();
    let many = vec![trade(3, 1); 30];
    let refused = channel.publish_all(&many, at(1));
    assert_eq!(
        refused,
        Err(WriteError::TooLarge {
            len: 1440,
            max: 1408
        })
    );
    channel.publish(&trade(3, 2), at(2)).unwrap();
    let ended = std::thread::spawn(move || publisher.end_session(DRAIN).unwrap());
    to_the_end(&mut listener, &mut control, epoch);
    assert!(ended.join().unwrap().has_loss());
    assert_eq!(sizes(&listener), [2]);
    let reported = events(&listener);
    let StreamEvent::SourceLost { from, messages, .. } = reported.last().unwrap() else {
        panic!("{reported:?}")
    };
    assert_eq!((*from, *messages), (at(1), 1));
}

#[test]
fn record_with_false_header_is_refused_alone() {
    let group = group();
    let mut listener = Listener::new(group);
    let mut publisher = open(&config(group));
    let (mut control, epoch) = follow(&publisher);
    let mut channel = publisher.channel("all").unwrap();
    let lie = |hd| TradeMsg { hd, ..trade(3, 9) };
    let lies = [
        lie(RecordHeader::new::<TradeMsg>(RType::Mbp1 as u8, 1, 3, 0)),
        lie(RecordHeader::new::<InstrumentDefMsg>(0, 1, 3, 0)),
    ];
    channel.publish(&trade(3, 1), at(1)).unwrap();
    for lie in &lies {
        let refused = [
            (channel.publish(lie, at(2)), 0),
            (channel.publish_all(&[trade(3, 8), lie.clone()], at(2)), 1),
        ];
        for (refused, place) in refused {
            let Err(WriteError::Record { source }) = refused else {
                panic!("{refused:?}")
            };
            assert!(matches!(source, RecordError::Header { index, .. } if index == place));
            let text = refused.unwrap_err().to_string();
            assert!(text.contains("nothing was published") && text.contains("RecordHeader::new"));
        }
    }
    channel.publish(&trade(3, 2), at(2)).unwrap();
    assert_eq!(channel.lost_messages(), 0);
    let ended = std::thread::spawn(move || publisher.end_session(DRAIN).unwrap());
    to_the_end(&mut listener, &mut control, epoch);
    assert!(!ended.join().unwrap().has_loss());
    assert_eq!(sizes(&listener), [1, 2]);
}

#[test]
fn directory_larger_than_queue_is_sent_without_loss() {
    let group = group();
    let mut listener = Listener::new(group);
    let mut publisher = open(&short_queue(group, 1_000));
    let (mut control, epoch) = follow(&publisher);
    let mut channel = publisher.channel("all").unwrap();
    channel.set_directory(&names()).unwrap();
    assert_eq!(channel.lost_messages(), 0);
    let ended = std::thread::spawn(move || publisher.end_session(DRAIN).unwrap());
    to_the_end(&mut listener, &mut control, epoch);
    assert!(!ended.join().unwrap().has_loss());
    assert_eq!(named(&listener), (1..=3_001).collect::<Vec<_>>());
}

/// Returns more names than a short queue takes at once.
fn names() -> Vec<Instrument> {
    let name = |id| Instrument {
        id,
        symbol: format!("S{id}"),
    };
    (1..=3_001).map(name).collect()
}

/// Returns the ids of all symbol mappings; there are no other records.
fn named(listener: &Listener) -> Vec<u32> {
    let (bytes, _) = listener.records();
    let ids = bytes.chunks_exact(176);
    ids.map(|record| u32::from_le_bytes(record[4..8].try_into().unwrap()))
        .collect()
}

#[test]
fn late_names_are_in_welcome_and_counted() {
    let group = group();
    let mut listener = Listener::new(group);
    let mut publisher = open(&short_queue(group, 20_000));
    let (mut control, epoch) = follow(&publisher);
    let mut channel = publisher.channel("all").unwrap();
    let names = names();
    let Err(WriteError::DirectoryIncomplete { sent, all }) =
        channel.set_directory_within(&names, Duration::ZERO)
    else {
        panic!("a queue of 128 messages takes no 3,001 names at once");
    };
    assert!((8..3_001).contains(&sent) && all == 3_001, "{sent}");
    assert_eq!(channel.lost_messages(), 0, "nothing was lost");
    let mut late = Control::to(publisher.control_address());
    let welcome = late.join("late");
    assert_eq!(welcome.channels[0].directory.len(), 3_001);
    drop(late);
    // Setting the remaining names sends each of them once. The clock can't represent the end of this wait.
    let others = &names[sent..];
    channel.set_directory_within(others, Duration::MAX).unwrap();
    let ended = std::thread::spawn(move || publisher.end_session(DRAIN).unwrap());
    to_the_end(&mut listener, &mut control, epoch);
    ended.join().unwrap();
    assert_eq!(named(&listener), (1..=3_001).collect::<Vec<_>>());
}

#[test]
fn channel_has_one_writer_and_next_one_continues() {
    let group = group();
    let mut listener = Listener::new(group);
    let mut publisher = open(&config(group));
    let (mut control, epoch) = follow(&publisher);
    let first = publisher.channel("all").unwrap();
    let refused = publisher.channel("all").err().unwrap();
    assert!(matches!(refused, ChannelClaimError::Taken { .. }));
    assert!(refused.to_string().contains("drop it first"), "{refused}");
    let unknown = publisher.channel("al").err().unwrap().to_string();
    assert!(
        unknown.contains("\"al\"") && unknown.contains("all"),
        "{unknown}"
    );
    let mut next = 1;
    let mut writer = first;
    for _ in 0..20 {
        // Each writer is on another thread, and is gone before the next one.
        let handler = std::thread::spawn(move || {
            for n in next..next + 50 {
                writer.publish(&trade(1, n), at(n.into())).unwrap();
            }
        });
        handler.join().unwrap();
        next += 50;
        writer = publisher.channel("all").unwrap();
    }
    let ended = std::thread::spawn(move || publisher.end_session(DRAIN).unwrap());
    to_the_end(&mut listener, &mut control, epoch);
    assert!(!ended.join().unwrap().has_loss());
    assert_eq!(sizes(&listener), (1..next).collect::<Vec<_>>());
}

#[test]
fn accepted_before_end_is_published_beside_threads() {
    let group = group();
    let mut listener = Listener::new(group);
    let mut publisher = open(&config(group));
    let (mut control, epoch) = follow(&publisher);
    let mut channel = publisher.channel("all").unwrap();
    let handler = std::thread::spawn(move || {
        let mut accepted = Vec::new();
        for n in 1.. {
            match channel.publish(&trade(1, n), at(n.into())) {
                Ok(()) => accepted.push(n),
                Err(WriteError::Ended) => break,
                Err(WriteError::Overflow) => {}
                Err(error) => panic!("{error}"),
            }
            if n % 16 == 0 {
                std::thread::sleep(Duration::from_micros(100));
            }
        }
        accepted
    });
    wait_for("data", || {
        listener.poll();
        (listener.datagrams.len() > 20).then_some(())
    });
    let ended = std::thread::spawn(move || publisher.end_session(DRAIN).unwrap());
    to_the_end(&mut listener, &mut control, epoch);
    ended.join().unwrap();
    assert_eq!(sizes(&listener), handler.join().unwrap());
}

#[test]
fn dropping_a_publisher_sends_what_was_published_and_no_end() {
    let group = group();
    let mut listener = Listener::new(group);
    // No other test listens on this address, so none can take over the port.
    let mut config = config(group);
    config["control"] = "127.88.1.1:0".into();
    let mut publisher = open(&config);
    let (mut control, _) = follow(&publisher);
    let address = publisher.control_address();
    let mut channel = publisher.channel("all").unwrap();
    for n in 1..=100 {
        channel.publish(&trade(1, n), at(n.into())).unwrap();
    }
    drop(publisher);
    assert_eq!(
        channel.publish(&trade(1, 1), at(101)),
        Err(WriteError::Ended)
    );
    listener.poll();
    assert_eq!(sizes(&listener), (1..=100).collect::<Vec<_>>());
    let last = listener.datagrams.values().next_back().unwrap();
    assert_eq!(Datagram::parse(last).unwrap().header().kind, Kind::Data);
    let goodbye = wait_for("the last word", || match control.poll() {
        Some(Said::Rejected(text)) => Some(text),
        _ => None,
    });
    assert!(goodbye.contains("shutting down"), "{goodbye}");
    assert!(
        std::net::TcpStream::connect(address).is_err(),
        "its threads are gone"
    );
}

#[test]
fn handler_panic_leaves_publisher_running() {
    let group = group();
    let mut listener = Listener::new(group);
    let mut publisher = open(&config(group));
    let (mut control, epoch) = follow(&publisher);
    let mut channel = publisher.channel("all").unwrap();
    let handler = std::thread::spawn(move || {
        channel.publish(&trade(1, 1), at(1)).unwrap();
        panic!("a handler's own mistake");
    });
    assert!(handler.join().is_err());
    let mut channel = publisher.channel("all").unwrap();
    channel.publish(&trade(1, 2), at(2)).unwrap();
    let ended = std::thread::spawn(move || publisher.end_session(DRAIN).unwrap());
    to_the_end(&mut listener, &mut control, epoch);
    assert!(!ended.join().unwrap().has_loss());
    assert_eq!(sizes(&listener), [1, 2]);
}

#[test]
fn invalid_handler_config_is_refused_with_remedy() {
    let fails = |change: &dyn Fn(&mut Value)| {
        let mut config = config(group());
        change(&mut config);
        let config = Config::parse(&config.to_string()).unwrap();
        Publisher::open(config)
            .err()
            .expect("it is wrong")
            .to_string()
    };
    let said = fails(&|c| c["threads"] = json!({ "mode": "inline" }));
    assert!(
        said.contains("threads.mode") && said.contains("\"threaded\""),
        "{said}"
    );
    let own = |channel: Value| json!({ "source": 3, "kind": "own", "channel": channel });
    let said = fails(&|c| c["inputs"] = json!([own(json!("no such"))]));
    assert!(said.contains("inputs[0].channel"), "{said}");
    let said = fails(&|c| {
        let mut other = own(Value::Null);
        other["source"] = json!(4);
        c["inputs"] = json!([own(Value::Null), other]);
    });
    assert!(said.contains("inputs[1].channel"), "{said}");

    let mut config = config(group());
    config["channels"][0]["name"] = json!("a");
    let mut second = config["channels"][0].clone();
    second["id"] = json!(2);
    second["name"] = json!("b");
    second["fan_out"][0]["lines"][0]["group"] = json!(group());
    config["channels"].as_array_mut().unwrap().push(second);
    config["inputs"] = json!([own(json!("a"))]);
    let mut publisher = open(&config);
    assert_eq!(publisher.channel("a").unwrap().source(), SourceId(3));
    let said = publisher.channel("b").err().unwrap().to_string();
    assert!(said.contains("\"kind\": \"own\""), "{said}");
    let taken = Publisher::open({
        let mut other = config.clone();
        other["control"] = json!(publisher.control_address());
        Config::parse(&other.to_string()).unwrap()
    });
    let taken = taken.err().unwrap();
    assert!(matches!(taken, PublisherError::Listen { .. }), "{taken}");
}

#[test]
fn missing_verbs_error_names_setting() {
    let refused = |verbs: Value| {
        let mut config = config(group());
        config["repair_verbs"] = verbs;
        let parsed = Config::parse(&config.to_string()).map_err(|e| e.to_string());
        parsed.and_then(|config| Publisher::open(config).map_err(|e| e.to_string()))
    };
    // Loopback belongs to no device on any host.
    let said = refused(json!({ "interfaces": ["127.0.0.1"], "port": 7410 })).err();
    let said = said.unwrap_or_default();
    assert!(
        said.contains("repair_verbs can't listen at 127.0.0.1:7410") && said.contains("RDMA"),
        "{said}"
    );
    let said = refused(json!({ "interfaces": ["no-such-0"] })).err();
    let said = said.unwrap_or_default();
    assert!(said.contains("repair_verbs.interfaces"), "{said}");
    let said = refused(json!({ "port": 7410, "cursors": 4_097 })).err();
    let said = said.unwrap_or_default();
    assert!(
        said.contains("repair_verbs.cursors") && said.contains("0 to 4096"),
        "{said}"
    );
    let said = refused(json!({ "ports": 1 })).err().unwrap_or_default();
    assert!(said.contains("repair_verbs"), "{said}");
    assert!(refused(Value::Null).is_ok());
}

#[test]
fn writer_is_send_and_monitor_is_sync() {
    fn is_send<T: Send>() {}
    fn is_shared<T: Clone + Send + Sync>() {}
    is_send::<ChannelWriter>();
    is_send::<Publisher>();
    is_shared::<PublisherMonitor>();
}

#[test]
fn heartbeats_go_on_after_end_until_the_subscriber_has_it() {
    let group = group();
    let mut listener = Listener::new(group);
    let mut publisher = open(&config(group));
    let (mut control, epoch) = follow(&publisher);
    let mut channel = publisher.channel("all").unwrap();
    channel.publish(&trade(1, 1), at(1)).unwrap();
    let ended = std::thread::spawn(move || publisher.end_session(DRAIN).unwrap());
    wait_for("heartbeats that say ended", || {
        listener.poll();
        (listener.state == Some(PublisherState::Ended)).then_some(())
    });
    assert!(!ended.is_finished(), "it waits for the subscriber");
    to_the_end(&mut listener, &mut control, epoch);
    let summary = ended.join().unwrap();
    assert_eq!(summary.json()["ended"], true);
    assert_eq!(summary.json()["subscribers"][0]["lag"], 0);
}

#[test]
fn steady_state_publishing_allocates_nothing() {
    let mut publisher = open(&config(group()));
    let monitor = publisher.monitor();
    let mut channel = publisher.channel("all").unwrap();
    let published = || monitor.channels()[0].sender.published_messages.get();
    let mut next = 1;
    let mut burst = |count: u64| {
        let until = next + count;
        let allocated = allocation_counter::measure(|| {
            for n in next..until {
                channel.publish(&trade(1, n as u32), at(n)).unwrap();
            }
            channel.flush();
        });
        next = until;
        wait_for("the publish thread", || {
            (published() == until - 1).then_some(())
        });
        allocated.count_total
    };
    // The first bursts create the batches that later ones reuse.
    for _ in 0..20 {
        burst(1_000);
    }
    assert_eq!((0..20).map(|_| burst(200)).sum::<u64>(), 0);
}

/// Returns the path of a built example.
fn example(name: &str) -> std::path::PathBuf {
    let publisher = Path::new(env!("CARGO_BIN_EXE_tickcast-publisher"));
    publisher.with_file_name("examples").join(name)
}

fn run_example(name: &str, input: &str, publish: impl FnOnce(&mut Listener)) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    let group = group();
    std::fs::write(&path, config(group).to_string()).unwrap();
    let mut listener = Listener::new(group);
    let mut child = Command::new(example(name))
        .arg(&path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(input.as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    listener.poll();
    publish(&mut listener);
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn first_trade_example_publishes_its_trade() {
    let summary = run_example("first_trade", "", |listener| {
        assert_eq!(sizes(listener), [200]);
    });
    assert_eq!(summary["published_records"], 1);
    assert_eq!(summary["ended"], true);
}

#[test]
fn own_handler_example_publishes_and_reports_malformed() {
    let packets = "T,1,10150,200\nQ,1,10149,300,10151,400\nrubbish\nT,1,10152,100\n";
    let summary = run_example("own_handler", packets, |listener| {
        let (bytes, records) = listener.records();
        assert_eq!(records, 1 + 3);
        let quote = &bytes[176 + 48..176 + 48 + 80];
        let number = |at: usize| i64::from_le_bytes(quote[at..at + 8].try_into().unwrap());
        assert_eq!((number(48), number(56)), (101_490_000_000, 101_510_000_000));
        let reported = events(listener);
        let lost = StreamEvent::SourceLost {
            source: SourceId(1),
            reason: SourceLossReason::Malformed,
            from: at(3),
            messages: 1,
            instruments: Vec::new(),
        };
        assert_eq!(reported.last(), Some(&lost), "{reported:?}");
    });
    assert_eq!(summary["source"]["malformed"], 1);
    assert_eq!(summary["source"]["records"], 4);
}

#[test]
fn reopened_publisher_resumes_its_epoch_and_position() {
    let rings = tempfile::tempdir_in("/dev/shm").unwrap();
    let state = tempfile::tempdir().unwrap();
    let group = group();
    let mut config = config(group);
    config["ring_dir"] = json!(rings.path());
    config["state_dir"] = json!(state.path());
    let mut listener = Listener::new(group);
    let mut first = None;
    for round in 0..3_u64 {
        let mut publisher = open(&config);
        let mut channel = publisher.channel("all").unwrap();
        let resumed = channel.resume_from();
        assert_eq!(resumed, (round > 0).then(|| at(2 * round)));
        let (_control, epoch) = follow(&publisher);
        assert_eq!(*first.get_or_insert(epoch), epoch);
        for n in 1..=2 {
            let sequence = 2 * round + n;
            channel
                .publish(&trade(7, sequence as u32), at(sequence))
                .unwrap();
        }
        let expected: Vec<u32> = (1..=2 * round as u32 + 2).collect();
        wait_for("what was published", || {
            listener.poll();
            (sizes(&listener) == expected).then_some(())
        });
    }
    let publisher = open(&config);
    publisher.end_session(Duration::from_millis(10)).unwrap();
    let (_control, epoch) = follow(&open(&config));
    assert!(Some(epoch) > first, "its session was ended");
}
