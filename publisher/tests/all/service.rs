//! The service as a process: it publishes everything, repairs what was missed, and withstands any data
//! sent to its ports.

use std::net::UdpSocket;
use std::os::unix::net::UnixDatagram;
use std::process::Command;

use crate::common::{
    Control, Listener, PATIENCE, Publisher, Said, assert_messages, config, count, group, wait_for,
};
use serde_json::json;
use tickcast_feeds::simulator::{Simulator, SimulatorConfig};
use tickcast_metrics::families::PUBLISHER;
use tickcast_reliability::control::{
    FanOutOffer, LatencyReport, Message, Mirroring, RemoteAccess, StageLatency, UdpLine,
};
use tickcast_reliability::types::{ChannelId, Epoch, Nanos, RecordNumber, Sequence};
use tickcast_reliability::wire::{Datagram, EpochReason, Kind, RELAY_OFFSET, StreamEvent};
use tickcast_test_support::check_by_promtool;
use tickcast_test_support::recorded::{mold_packet, system_event};
use xxhash_rust::xxh3::xxh3_128;

/// Receives until END, requests the missing datagrams, and returns the last sequence.
fn follow_to_the_end(listener: &mut Listener, control: &mut Control, epoch: Epoch) -> u64 {
    let last = wait_for("END", || {
        listener.poll();
        let (last, bytes) = listener.datagrams.last_key_value()?;
        let ended = Datagram::parse(bytes).unwrap().header().kind == Kind::End;
        ended.then_some(*last)
    });
    for sequence in listener.missing() {
        control.nack(epoch, &[(sequence, sequence)]);
        let Said::Datagram(bytes) = control.next("a repair") else {
            panic!("sequence {sequence} was not repaired")
        };
        listener.datagrams.insert(sequence, bytes);
    }
    last
}

fn simulator(messages: u64) -> serde_json::Value {
    json!({
        "source": 7, "kind": "simulator", "seed": 3, "symbols": 20, "messages": messages,
        "pace": { "messages_per_s": 20_000 }, "wait_for_subscribers": 1,
    })
}

fn a_simulated_day_arrives_whole(mode: &str) {
    let group = group();
    let mut config = config(group, simulator(5_000));
    config["threads"] = json!({ "mode": mode });
    let publisher = Publisher::start(&config);
    let mut listener = Listener::new(group);
    let mut control = publisher.connect();
    let welcome = control.join("bare socket");
    let offer = &welcome.channels[0];
    let sender = std::net::Ipv4Addr::LOCALHOST;
    let lines = vec![UdpLine { group, sender }];
    assert_eq!(offer.fan_outs, [FanOutOffer::Udp { lines }]);
    assert_eq!(
        (offer.newest, offer.next_record),
        (Sequence(1), RecordNumber(1))
    );

    // The simulator waits for a subscriber that follows, so send a first report.
    control.progress(offer.epoch, Sequence(0), 0);
    assert!(matches!(control.next("STATUS"), Said::Status { .. }));
    // The first datagram was sent before the join, and repair still holds it.
    control.nack(offer.epoch, &[(1, 1)]);
    let Said::Datagram(first) = control.next("the first datagram") else {
        panic!("it is held")
    };
    listener.datagrams.insert(1, first);
    let last = follow_to_the_end(&mut listener, &mut control, offer.epoch);

    let first = Datagram::parse(&listener.datagrams[&1]).unwrap();
    let opened = StreamEvent::parse(first.payload()).unwrap();
    let StreamEvent::EpochOpened {
        reason, previous, ..
    } = opened
    else {
        panic!("the first datagram opens the epoch, not {opened:?}")
    };
    assert_eq!((reason, previous), (EpochReason::Fresh, Epoch::NONE));
    let mut next_record = 1;
    for sequence in 1..=last {
        let header = listener.header(sequence);
        assert_eq!(header.sequence, Sequence(sequence));
        assert_eq!(header.epoch, offer.epoch);
        assert_eq!(header.first_record, RecordNumber(next_record));
        next_record += u64::from(header.count);
    }

    // A repaired datagram equals the original, except for the relay byte.
    let (from, to) = (last / 2, last / 2 + 9);
    control.nack(offer.epoch, &[(from, to)]);
    for sequence in from..=to {
        let Said::Datagram(mut bytes) = control.next("a repair") else {
            panic!("sequence {sequence} is held")
        };
        assert_ne!(bytes[RELAY_OFFSET], 0);
        bytes[RELAY_OFFSET] = 0;
        let mut sent = listener.datagrams[&sequence].clone();
        sent[RELAY_OFFSET] = 0;
        assert!(bytes == sent, "sequence {sequence} was altered");
    }
    control.nack(offer.epoch, &[(last + 1, last + 1)]);
    assert!(matches!(control.next("a refusal"), Said::Refused(_)));

    control.progress(offer.epoch, Sequence(last), 0);
    let (code, summary) = publisher.finish();
    let (bytes, records) = listener.records();
    assert_eq!(code, Some(0), "{summary:#}");
    assert_eq!(summary["published_records"], records);
    let channel = &summary["channels"][0];
    assert_eq!(channel["digest"], format!("{:032x}", xxh3_128(&bytes)));
    assert_eq!(channel["sealed_datagrams"], last);
    assert_eq!(
        channel["published_messages"],
        summary["source"]["messages_total"]
    );
    assert_eq!(summary["subscribers"][0]["sequence"], last);
    assert_eq!(summary["subscribers"][0]["name"], "bare socket");
    assert!(summary["source"]["messages"]["A"].as_u64().unwrap() > 100);
    let of = |name: &str| channel[name].as_u64().unwrap();
    assert_eq!(
        of("nacked"),
        of("answered") + of("answered_by_multicast") + of("refused_ahead")
    );
}

#[test]
fn published_arrives_numbered_and_repaired_exactly() {
    a_simulated_day_arrives_whole("threaded");
}

#[test]
fn inline_mode_publishes_whole_simulated_day() {
    a_simulated_day_arrives_whole("inline");
}

#[test]
fn sigterm_ends_session_with_end_datagram() {
    let group = group();
    let mut input = simulator(1_000_000);
    input["wait_for_subscribers"] = json!(0);
    // The listener's buffer holds all of this, while it is not polled.
    input["pace"] = json!({ "messages_per_s": 500 });
    let publisher = Publisher::start(&config(group, input));
    let mut listener = Listener::new(group);
    let mut control = publisher.connect();
    let epoch = control.join("a").channels[0].epoch;
    wait_for("data", || {
        listener.poll();
        (listener.datagrams.len() > 10).then_some(())
    });
    // A late joiner receives the instruments that were announced before.
    let mut late = publisher.connect();
    let directory = &late.join("late").channels[0].directory;
    assert!(
        directory.iter().any(|i| i.id == 1 && i.symbol == "AAAA"),
        "{directory:?}"
    );
    late.send(0, &Message::Leave);
    publisher.terminate();
    let last = wait_for("END", || {
        listener.poll();
        let (last, bytes) = listener.datagrams.last_key_value()?;
        let kind = Datagram::parse(bytes).unwrap().header().kind;
        (kind == Kind::End).then_some(*last)
    });
    control.progress(epoch, Sequence(last), 0);
    let goodbye = wait_for("the last word", || match control.poll() {
        Some(Said::Rejected(text)) => Some(text),
        _ => None,
    });
    assert!(goodbye.contains("shutting down"), "{goodbye}");
    let (code, summary) = publisher.finish();
    assert_eq!(code, Some(0), "{summary:#}");
    assert_eq!(summary["ended"], true);
}

#[test]
fn unwritable_audit_file_is_logged_and_counted() {
    let mut input = simulator(1_000_000);
    input["wait_for_subscribers"] = json!(0);
    let mut publisher = Publisher::start_with(&config(group(), input), &["--audit", "/dev/full"]);
    for name in ["a", "b"] {
        let mut control = publisher.connect();
        control.join(name);
        control.send(0, &Message::Leave);
    }
    // Each subscriber joins and leaves.
    let lost = wait_for("the loss in the metrics", || {
        let metrics = publisher.get("/metrics");
        let line = metrics.lines().find_map(|line| {
            line.strip_prefix("tickcast_publisher_log_lost_entries_total{log=\"audit\"} ")
        });
        let lost: u64 = line.expect("the series").parse().expect("a number");
        (lost >= 4).then_some(lost)
    });
    let status = publisher.get("/status");
    assert!(
        status.contains(&format!("\"audit_lines_lost\":{lost}")),
        "{status}"
    );
    assert!(publisher.is_running(), "it goes on");
    let log = publisher.log();
    assert_eq!(log.matches("audit lines are lost").count(), 1, "{log}");
    publisher.terminate();
    let path = publisher.path("log");
    let end = wait_for("the end in the log", || {
        let log = std::fs::read_to_string(&path).ok()?;
        log.contains("audit lines could not be written")
            .then_some(log)
    });
    assert!(end.contains("are lost"), "{end}");
    let (_, summary) = publisher.finish();
    assert!(summary["audit_lines_lost"].as_u64() >= Some(lost));
}

#[test]
fn endless_write_requests_are_audited_few_and_closed() {
    let mut input = simulator(1_000_000);
    input["wait_for_subscribers"] = json!(0);
    let folder = tempfile::tempdir().unwrap();
    let audit = folder.path().join("audit");
    let arguments = ["--audit", audit.to_str().unwrap()];
    let publisher = Publisher::start_with(&config(group(), input), &arguments);
    let mut control = publisher.connect();
    let epoch = control.join("anybody").channels[0].epoch;
    let inbox = RemoteAccess {
        address: 0,
        len: 0,
        key: 0,
    };
    let wish = Message::Mirror(Mirroring {
        epoch,
        attempt: 1,
        inbox,
    });
    let mut bytes = Vec::new();
    for _ in 0..1_000 {
        wish.write(ChannelId(1), &mut bytes);
    }
    control.send_raw(&bytes);
    let audited = |what: &str| {
        let text = std::fs::read_to_string(&audit).unwrap();
        let is_it = |line: &&str| line.contains(&format!("\"what\":\"{what}\""));
        text.lines()
            .filter(is_it)
            .map(String::from)
            .collect::<Vec<_>>()
    };
    wait_for("its end", || {
        (!audited("turned_away").is_empty()).then_some(())
    });
    let refused = audited("mirror_refused");
    assert_eq!(refused.len(), 4, "{refused:?}");
    assert!(
        refused
            .iter()
            .all(|line| line.contains("\"subscriber\":\"anybody\""))
    );
    assert_eq!(audited("joined").len(), 1);
    publisher.terminate();
    publisher.finish();
}

#[test]
fn loss_claimed_by_subscriber_leaves_exit_code_0() {
    let group = group();
    let publisher = Publisher::start(&config(group, simulator(200)));
    let mut listener = Listener::new(group);
    let mut control = publisher.connect();
    let epoch = control.join("a").channels[0].epoch;
    control.progress(epoch, Sequence(0), 0);
    let last = wait_for("END", || {
        listener.poll();
        let (last, bytes) = listener.datagrams.last_key_value()?;
        let kind = Datagram::parse(bytes).unwrap().header().kind;
        (kind == Kind::End).then_some(*last)
    });
    control.progress(epoch, Sequence(last), 3);
    let (code, summary) = publisher.finish();
    assert_eq!(code, Some(0), "a claim is no fact of the publisher");
    assert_eq!(summary["subscribers"][0]["lost_records"], 3);
    assert_eq!(summary["subscribers_report_loss"], true);
}

/// Returns the report of a subscriber whose longest sample took this long.
fn report(max_ns: u64) -> Message<'static> {
    let mut report = LatencyReport {
        interval: Nanos::from_secs(1),
        clock_limit: Some(Nanos(50)),
        ..LatencyReport::default()
    };
    report.stages[2] = StageLatency {
        samples: 9,
        p50: Nanos(100),
        p99: Nanos(31_000),
        p999: Nanos(32_000),
        max: Nanos(max_ns),
    };
    Message::Latency(Box::new(report))
}

#[test]
fn hostile_latency_is_refused_and_others_are_shown() {
    let publisher = Publisher::start(&config(group(), simulator(1_000)));
    let [mut honest, mut hostile] = [(); 2].map(|()| publisher.connect());
    assert!(honest.join("honest").latency);
    let epoch = hostile.join("hostile").channels[0].epoch;
    honest.send(1, &report(33_000));
    // A longest sample below p99, then bursts of reports that are possible.
    hostile.send(1, &report(7));
    for _ in 0..50 {
        hostile.send(1, &report(44_000));
    }
    hostile.send(1, &report(u64::MAX));
    // The answer shows that everything before was read, and that the connection stays.
    hostile.progress(epoch, Sequence(0), 0);
    assert!(matches!(hostile.next("STATUS"), Said::Status { .. }));
    let metrics = wait_for("the report", || {
        let metrics = publisher.get("/metrics");
        metrics.contains("{subscriber=\"honest\"").then_some(())?;
        metrics
            .contains("subscriber_latency_seconds{subscriber=\"honest\"")
            .then_some(metrics)
    });
    check_by_promtool(body(&metrics));
    let series = |name: &str, of: &str, percentile: &str| {
        let mut lines = metrics.lines().filter(|line| {
            line.starts_with(&format!(
                "tickcast_publisher_subscriber_{name}{{subscriber=\"{of}\""
            )) && line.contains(percentile)
        });
        let found = lines
            .next()
            .unwrap_or_else(|| panic!("{name} of {of} in {metrics}"));
        found.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };
    assert_eq!(
        series("latency_seconds", "honest", "percentile=\"99\""),
        31e-6
    );
    assert_eq!(
        series("latency_seconds", "honest", "percentile=\"100\""),
        33e-6
    );
    assert_eq!(
        series("latency_supported", "honest", "sealed_to_delivered"),
        1.0
    );
    // Only the first possible report counts, unless the reports took longer than half a second.
    let status: serde_json::Value = serde_json::from_str(body(&publisher.get("/status"))).unwrap();
    let refused = status["service"]["latency_reports_refused"]
        .as_u64()
        .unwrap();
    assert!((2..=101).contains(&refused), "{refused}");
    let all = status["subscribers"].as_array().unwrap();
    let of = all.iter().find(|it| it["name"] == "hostile").unwrap();
    let stages = of["latency"]["stages"].as_array().unwrap();
    assert_eq!((stages.len(), &stages[0]["max_ns"]), (1, &44_000.into()));
    // A channel that it did not join ends the connection.
    hostile.send(9, &report(44_000));
    let why = wait_for("the end of the connection", || match hostile.poll() {
        Some(Said::Rejected(why)) => Some(why),
        _ => None,
    });
    assert!(why.contains("did not join channel 9"), "{why}");
}

#[test]
fn garbage_on_the_control_port_closes_that_connection_only() {
    let group = group();
    let mut input = simulator(1_000_000);
    input["wait_for_subscribers"] = json!(0);
    let mut publisher = Publisher::start(&config(group, input));
    let mut good = publisher.connect();
    let welcome = good.join("good");
    let mut huge = vec![0xff; 8];
    huge[4] = 1;
    let mut bad_join = Vec::new();
    bad_join.extend(4u32.to_le_bytes());
    bad_join.extend([1, 0, 0, 0]);
    bad_join.extend(b"null");
    let mut nack_first = Vec::new();
    Message::Leave.write(ChannelId(0), &mut nack_first);
    for garbage in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        &huge,
        &bad_join,
        &nack_first,
        &[0; 64],
    ] {
        let mut bad = publisher.connect();
        bad.send_raw(garbage);
        wait_for("the connection's end", || {
            bad.poll();
            bad.closed.then_some(())
        });
    }
    // The publisher reports an unknown channel, then closes the connection.
    let mut lost = publisher.connect();
    let join = serde_json::json!({
        "name": "x", "wire_versions": [1], "purpose": "repair",
        "channels": [{ "channel": "no such" }],
    });
    lost.send(0, &Message::Join(serde_json::from_value(join).unwrap()));
    assert!(matches!(lost.next("REJECTED"), Said::Rejected(text) if text.contains("no such")));
    good.progress(welcome.channels[0].epoch, Sequence(1), 0);
    assert!(matches!(
        good.next("STATUS"),
        Said::Status { ended: false, .. }
    ));
    assert!(publisher.is_running());
    let metrics = publisher.get("/metrics");
    let errors = metrics
        .lines()
        .find_map(|line| line.strip_prefix(PROTOCOL_ERRORS));
    assert!(errors.unwrap().parse::<u64>().unwrap() >= 3, "{errors:?}");
}

/// The body of an answer over HTTP.
fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").expect("a head").1
}

#[test]
fn metrics_page_passes_promtool() {
    let publisher = Publisher::start(&config(group(), simulator(1_000_000)));
    let mut control = publisher.connect();
    control.join("a\"} 1\n\\\u{1b}[2J");
    let page = wait_for("the subscriber's metrics", || {
        let answer = publisher.get("/metrics");
        answer.contains("subscriber_sequence{").then_some(answer)
    });
    let own = r#"subscriber="a\"} 1\n\\\\u{1b}[2J",peer="#;
    assert!(page.contains(own), "{page}");
    assert!(page.contains("tickcast_build_info{version=\""), "{page}");
    let started = page
        .lines()
        .find_map(|line| line.strip_prefix("process_start_time_seconds "));
    assert!(started.is_some_and(|it| it.parse::<f64>().is_ok_and(|it| it > 1e9)));
    check_by_promtool(body(&page));
}

#[test]
fn metrics_are_open_metrics_where_the_request_accepts_it() {
    let publisher = Publisher::start(&config(group(), simulator(100)));
    let asked = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
                 Accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5\r\n\r\n";
    let open = publisher.admin(asked);
    let kind = "content-type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n";
    assert!(open.to_lowercase().contains(kind), "{open}");
    assert!(body(&open).ends_with("\n# EOF\n"), "{open}");
    for lines in [
        "\n# TYPE tickcast_publisher_sealed_bytes counter\n# UNIT tickcast_publisher_sealed_bytes bytes\n\
         tickcast_publisher_sealed_bytes_total{channel=\"all\"} ",
        "\n# TYPE tickcast_build info\ntickcast_build_info{version=",
    ] {
        assert!(open.contains(lines), "{lines}: {open}");
    }
    let plain = publisher.get("/metrics");
    assert!(plain.contains("\n# TYPE tickcast_publisher_sealed_bytes_total counter\n"));
    assert!(!plain.contains("# EOF"), "{plain}");
}

/// The series of connections that the publisher closed for their peer's violation.
const PROTOCOL_ERRORS: &str =
    "tickcast_publisher_connections_closed_total{endpoint=\"control\",reason=\"protocol_error\"} ";

#[test]
fn metrics_series_exist_from_start_unknown_path_is_404() {
    let group = group();
    let mut publisher = Publisher::start(&config(group, simulator(100)));
    let metrics = publisher.get("/metrics");
    assert!(metrics.starts_with("HTTP/1.1 200"), "{metrics}");
    assert!(metrics.contains("text/plain; version=0.0.4"));
    let mut expected = Vec::new();
    let mut expect = |counter: &str, place: &str| {
        let (at, own) = PUBLISHER.find(counter).expect("a family");
        let own = own
            .iter()
            .map(|(label, value)| format!("{label}=\"{value}\""));
        let labels: Vec<String> = [place.to_owned()].into_iter().chain(own).collect();
        let labels = labels.join(",").trim_start_matches(',').to_owned();
        let labels = (!labels.is_empty()).then(|| format!("{{{labels}}}"));
        let name = PUBLISHER.families[at].name;
        expected.push(format!("{name}{}", labels.unwrap_or_default()));
    };
    let sender = tickcast_reliability::types::SenderCounters::default();
    sender.each(|name, _, _| expect(name, "channel=\"all\""));
    let repair = tickcast_reliability::types::RepairCounters::default();
    repair.each(|name, _, _| expect(name, "channel=\"all\""));
    let service = tickcast_reliability::types::RepairServiceCounters::default();
    service.each(|name, _, _| expect(name, ""));
    let source = tickcast_publisher::SourceCounters::default();
    source.each(|name, _, _| expect(name, "source=\"7\""));
    for series in [
        "sealed_bytes_total{channel=\"all\"}",
        "repair_unanswered_sequences_total{channel=\"all\",reason=\"window\"}",
        "connections_closed_total{endpoint=\"control\",reason=\"protocol_error\"}",
    ] {
        assert!(expected.iter().any(|it| it == series), "{series}");
    }
    for series in expected {
        assert!(
            metrics.contains(&format!("\ntickcast_publisher_{series} ")),
            "{series}"
        );
    }
    assert!(publisher.get("/healthz").contains("ok"));
    assert!(publisher.get("/status").contains("\"published_records\""));
    for path in ["/page", "/metrics/", "/../etc/passwd", "/%00%ff?x=/metrics"] {
        assert!(publisher.get(path).starts_with("HTTP/1.1 404"), "{path}");
    }
    let post = "POST /metrics HTTP/1.1\r\nContent-Length: 2\r\nConnection: close\r\n\r\nxx";
    assert!(publisher.admin(post).starts_with("HTTP/1.1 405"));
    publisher.admin("\r\n\r\n\0\0nonsense\r\n\r\n");
    publisher.admin("GET /metrics HTTP/9.9\r\nConnection: close\r\n\r\n");
    assert!(publisher.get("/healthz").contains("ok"));
    assert!(publisher.is_running());
}

/// Maximum number of packets that a test sends before it waits until they are read.
const UNREAD_MAX: u64 = 20;

#[test]
fn live_feed_gap_is_published_as_source_loss() {
    let group = group();
    let input = json!({ "source": 9, "kind": "udp", "lines": [{ "listen": "127.0.0.1:0" }] });
    let publisher = Publisher::start(&config(group, input));
    let listen = publisher.ready["inputs"][0]["listen"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(publisher.ready["inputs"][0]["source"], 9);
    let mut listener = Listener::new(group);
    let mut control = publisher.connect();
    let epoch = control.join("a").channels[0].epoch;
    let market = SimulatorConfig {
        symbols: 5,
        messages: 500,
        ..SimulatorConfig::default()
    };
    let mut simulator = Simulator::new(&market, 1).unwrap();
    let feed = UdpSocket::bind("127.0.0.1:0").unwrap();
    let (mut packets, mut sent, mut withheld) = (0, 0, 0);
    while let Some(packet) = simulator.next_packet() {
        packets += 1;
        if packets == 10 {
            withheld = u64::from(u16::from_be_bytes([packet.payload[18], packet.payload[19]]));
            continue;
        }
        feed.send_to(packet.payload, &listen).unwrap();
        sent += 1;
        if sent % UNREAD_MAX == 0 {
            publisher.wait_until_read(sent);
            listener.poll();
        }
    }
    assert!(withheld > 0);
    let lost = wait_for("the gap's event", || {
        listener.poll();
        listener.datagrams.values().find_map(|bytes| {
            let datagram = Datagram::parse(bytes).unwrap();
            let event = (datagram.header().kind == Kind::Event).then_some(datagram.payload())?;
            match StreamEvent::parse(event)? {
                StreamEvent::SourceLost {
                    source, messages, ..
                } => Some((source.0, messages)),
                _ => None,
            }
        })
    });
    assert_eq!(lost, (9, withheld));
    publisher.terminate();
    let last = follow_to_the_end_from(&mut listener);
    control.progress(epoch, Sequence(last), 0);
    let (code, summary) = publisher.finish();
    assert_eq!(code, Some(1), "a gap is a finding");
    assert_eq!(summary["source"]["gaps"], 1);
    assert_eq!(summary["source"]["missing_messages"], withheld);
    assert_eq!(summary["channels"][0]["source_messages_lost"], withheld);
}

#[test]
fn status_names_sender_of_foreign_packets() {
    let input = json!({ "source": 9, "kind": "udp", "lines": [{ "listen": "127.0.0.1:0" }] });
    let publisher = Publisher::start(&config(group(), input));
    let listen = publisher.ready["inputs"][0]["listen"]
        .as_str()
        .unwrap()
        .to_owned();
    let market = SimulatorConfig {
        symbols: 5,
        messages: 50,
        ..SimulatorConfig::default()
    };
    let mut simulator = Simulator::new(&market, 1).unwrap();
    let feed = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut send = || {
        let packet = simulator.next_packet().unwrap();
        feed.send_to(packet.payload, &listen).unwrap();
    };
    send();
    publisher.wait_until_read(1);
    // Another session's packet with bytes behind its only message.
    let stranger = UdpSocket::bind("127.0.0.2:0").unwrap();
    let mut foreign = b"OTHER-FEED".to_vec();
    foreign.extend(1_u64.to_be_bytes());
    foreign.extend([0, 1, 0, 1, b'S', 0]);
    // Text, and a packet that is too short for a header.
    for packet in [
        &foreign[..],
        b"hello world this is some junk data",
        b"short",
    ] {
        stranger.send_to(packet, &listen).unwrap();
    }
    send();
    publisher.wait_until_read(5);
    let row = json!({ "destination": listen, "sender": "127.0.0.2", "packets": 3 });
    wait_for("the foreign packets", || {
        let status = publisher.get("/status");
        let (_, body) = status.split_once("\r\n\r\n")?;
        let status: serde_json::Value = serde_json::from_str(body).ok()?;
        (status["sources"][0]["foreign_senders"] == json!([row])).then_some(())
    });
}

#[test]
fn silent_source_is_reported_and_returns_before_its_messages() {
    let group = group();
    let input = json!({ "source": 9, "kind": "udp", "lines": [{ "listen": "127.0.0.1:0" }] });
    let publisher = Publisher::start(&config(group, input));
    let listen = publisher.ready["inputs"][0]["listen"].as_str().unwrap();
    let mut listener = Listener::new(group);
    let sequences = |listener: &Listener, is_it: fn(&StreamEvent) -> bool| -> Vec<u64> {
        let found = listener.datagrams.iter().filter(|(_, bytes)| {
            let datagram = Datagram::parse(bytes).unwrap();
            let is_event = datagram.header().kind == Kind::Event;
            is_event && StreamEvent::parse(datagram.payload()).is_some_and(|it| is_it(&it))
        });
        found.map(|(sequence, _)| *sequence).collect()
    };
    let silent = wait_for("the silence", || {
        listener.poll();
        let is_silent = |event: &StreamEvent| match event {
            StreamEvent::SourceSilent { source, .. } => source.0 == 9,
            _ => false,
        };
        sequences(&listener, is_silent).first().copied()
    });
    let answer = publisher.get("/readyz");
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    assert!(answer.contains("source 9 has been silent for "), "{answer}");
    assert!(publisher.get("/healthz").starts_with("HTTP/1.1 200"));
    let metrics = publisher.get("/metrics");
    for series in [
        "source_silent{source=\"9\"} 1",
        "source_events_total{source=\"9\",event=\"silent\"} 1",
    ] {
        let series = format!("\ntickcast_publisher_{series}\n");
        assert!(metrics.contains(&series), "{series}");
    }
    let mut simulator = Simulator::new(&SimulatorConfig::default(), 1).unwrap();
    let feed = UdpSocket::bind("127.0.0.1:0").unwrap();
    wait_for("a publisher that is ready", || {
        let packet = simulator.next_packet().expect("many packets");
        feed.send_to(packet.payload, listen).unwrap();
        let answer = publisher.get("/readyz");
        answer.starts_with("HTTP/1.1 200").then_some(())
    });
    let is_back = |event: &StreamEvent| matches!(event, StreamEvent::SourceBack { .. });
    let first_data = wait_for("its messages", || {
        listener.poll();
        let mut all = listener.datagrams.iter();
        let is_data = |bytes: &[u8]| Datagram::parse(bytes).unwrap().header().kind == Kind::Data;
        all.find_map(|(sequence, bytes)| is_data(bytes).then_some(*sequence))
    });
    let back = sequences(&listener, is_back);
    assert!(
        silent < back[0] && back[0] < first_data,
        "{silent} {back:?} {first_data}"
    );
}

#[test]
fn lines_of_a_live_input_complete_each_other() {
    let group = group();
    let lines = json!([{ "listen": "127.0.0.1:0" }, { "listen": "127.0.0.1:0" }]);
    let input = json!({ "source": 9, "kind": "udp", "lines": lines, "line_skew_us": 1_000_000 });
    let publisher = Publisher::start(&config(group, input));
    let listen = |line: usize| {
        let address = &publisher.ready["inputs"][line]["listen"];
        address.as_str().unwrap().to_owned()
    };
    let lines = [listen(0), listen(1)];
    let mut listener = Listener::new(group);
    let mut control = publisher.connect();
    let epoch = control.join("a").channels[0].epoch;
    let market = SimulatorConfig {
        symbols: 5,
        messages: 500,
        ..SimulatorConfig::default()
    };
    let mut simulator = Simulator::new(&market, 1).unwrap();
    let feed = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut left_out = [0, 0];
    let (mut packets, mut sent) = (0, 0);
    while let Some(packet) = simulator.next_packet() {
        packets += 1;
        let messages = u64::from(u16::from_be_bytes([packet.payload[18], packet.payload[19]]));
        for (line, address) in lines.iter().enumerate() {
            // A lacks packets 5, 15 and so on, B 10, 20 and so on.
            if packets % 10 == 5 * (1 - line) && messages < 0xFFFF {
                left_out[line] += messages;
                continue;
            }
            feed.send_to(packet.payload, address).unwrap();
            sent += 1;
            if sent % UNREAD_MAX == 0 {
                publisher.wait_until_read(sent);
                listener.poll();
            }
        }
    }
    assert!(left_out[0] > 0 && left_out[1] > 0);
    wait_for("all messages", || {
        let status = publisher.get("/status");
        status.contains("\"session_ends\":1").then_some(())
    });
    publisher.terminate();
    let last = follow_to_the_end_from(&mut listener);
    control.progress(epoch, Sequence(last), 0);
    let (code, summary) = publisher.finish();
    assert_eq!(code, Some(0), "nothing is missing");
    let source = &summary["sources"][0];
    assert_eq!(source["gaps"], 0);
    for (line, left_out) in left_out.into_iter().enumerate() {
        assert_eq!(source["lines"][line]["missing"], left_out, "line {line}");
    }
    let first = |line: usize| source["lines"][line]["first"].as_u64().unwrap();
    assert_eq!(first(0) + first(1), source["messages_total"]);
}

#[test]
fn counts_of_a_live_input_balance() {
    let lines = json!([{ "listen": "127.0.0.1:0" }, { "listen": "127.0.0.1:0" }]);
    let input = json!({ "source": 9, "kind": "udp", "lines": lines });
    let publisher = Publisher::start(&config(group(), input));
    let feed = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut sent = 0;
    let mut send = |line: usize, packet: &[u8]| {
        let listen = publisher.ready["inputs"][line]["listen"].as_str().unwrap();
        feed.send_to(packet, listen).unwrap();
        sent += 1;
        publisher.wait_until_read(sent);
    };
    // Message 5 comes late, on line 0 only. Line 1 lacks 8.
    for (line, first, last) in [
        (0, 1, 2),
        (1, 1, 2),
        (0, 3, 4),
        (1, 3, 4),
        (0, 6, 7),
        (1, 6, 7),
        (0, 8, 8),
        (0, 5, 5),
        (0, 9, 9),
        (1, 9, 9),
    ] {
        let messages: Vec<_> = (first..=last).map(system_event).collect();
        send(line, &mold_packet(b"SESSION001", first, &messages));
    }
    // Another session's packet with bytes behind its only message.
    let mut foreign = mold_packet(b"OTHER-FEED", 1, &[b"S".to_vec()]);
    foreign.push(0);
    for line in [0, 1, 1] {
        send(line, &foreign);
    }
    // Shorter than any header.
    for line in [0, 1] {
        send(line, b"short");
    }
    publisher.terminate();
    let (_, summary) = publisher.finish();
    let source = &summary["sources"][0];
    let of_feed: u64 = [0, 1]
        .map(|line| count(&source["lines"][line], "packets"))
        .iter()
        .sum();
    let others = ["foreign", "malformed"].map(|name| count(source, name));
    assert_eq!((of_feed, others), (10, [5, 0]), "{source:#}");
    assert_eq!(count(source, "packets"), of_feed + 5);
    assert_messages(source, 16, 9);
    assert_eq!(count(source, "late"), 1);
}

fn follow_to_the_end_from(listener: &mut Listener) -> u64 {
    wait_for("END", || {
        listener.poll();
        let (last, bytes) = listener.datagrams.last_key_value()?;
        let kind = Datagram::parse(bytes).unwrap().header().kind;
        (kind == Kind::End).then_some(*last)
    })
}

#[test]
fn restart_opens_higher_epoch_and_names_last_end() {
    let state = tempfile::tempdir().unwrap();
    let mut before: Option<(u64, u64)> = None;
    for _ in 0..2 {
        let group = group();
        let mut input = simulator(100);
        input["pace"] = json!("max");
        let mut config = config(group, input);
        config["state_dir"] = json!(state.path());
        let publisher = Publisher::start(&config);
        let mut control = publisher.connect();
        let epoch = control.join("a").channels[0].epoch;
        control.nack(epoch, &[(1, 1)]);
        let Said::Datagram(first) = control.next("the first datagram") else {
            panic!("it is held")
        };
        let opened = StreamEvent::parse(Datagram::parse(&first).unwrap().payload()).unwrap();
        let StreamEvent::EpochOpened {
            previous,
            previous_last,
            ..
        } = opened
        else {
            panic!("the first datagram opens the epoch")
        };
        if let Some(before) = before {
            assert!(epoch.0 > before.0);
            assert_eq!((previous.0, previous_last.0), before);
        }
        let newest = wait_for("the end", || {
            control.progress(epoch, Sequence(0), 0);
            match control.next("STATUS") {
                Said::Status {
                    newest,
                    ended: true,
                } => Some(newest),
                _ => None,
            }
        });
        control.progress(epoch, newest, 0);
        let (code, summary) = publisher.finish();
        assert_eq!(code, Some(0), "{summary:#}");
        before = Some((epoch.0, newest.0));
    }
}

#[test]
fn unwritten_session_end_has_summary_and_exit_2() {
    let state = tempfile::tempdir().unwrap();
    let mut input = simulator(100);
    input["wait_for_subscribers"] = json!(0);
    let mut config = config(group(), input);
    config["state_dir"] = json!(state.path());
    config["linger_ms"] = json!(0);
    config["end_when_inputs_end"] = json!(false);
    let publisher = Publisher::start(&config);
    // No file can replace a directory.
    let kept = state.path().join("test.epoch.json");
    std::fs::remove_file(&kept).unwrap();
    std::fs::create_dir(&kept).unwrap();
    wait_for("all that is published", || {
        let answer = publisher.get("/status");
        let (_, body) = answer.split_once("\r\n\r\n")?;
        let status: serde_json::Value = serde_json::from_str(body).ok()?;
        (status["source"]["ended"] == 1).then_some(())
    });
    publisher.terminate();
    let log = publisher.path("log");
    let log = std::fs::File::open(log).unwrap();
    let (code, summary) = publisher.finish();
    let log = std::io::read_to_string(log).unwrap();
    assert_eq!(code, Some(2), "{log}");
    assert!(log.contains("state_dir: can't replace"), "{log}");
    assert_eq!(summary["ended"], true, "{log}");
    assert!(
        summary["source"]["messages_total"].as_u64() >= Some(100),
        "{log}"
    );
}

#[test]
fn unreadable_capture_is_refused_at_startup() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.json");
    for (file, expected) in [
        ("/nonexistent.pcap", "there is no such file"),
        ("/", "directory"),
    ] {
        let input = json!({ "source": 1, "kind": "capture", "file": file });
        std::fs::write(&path, config(group(), input).to_string()).unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_tickcast-publisher"))
            .arg("--config")
            .arg(&path)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            said.contains("inputs[0].file") && said.contains(expected),
            "{said}"
        );
    }
}

#[test]
fn unwritable_state_and_summary_are_both_reported() {
    let state = tempfile::tempdir().unwrap();
    let mut config = config(group(), simulator(5_000));
    config["state_dir"] = json!(state.path());
    let mut publisher = Publisher::start(&config);
    // No file can replace a directory.
    let kept = state.path().join("test.epoch.json");
    std::fs::remove_file(&kept).unwrap();
    for path in [kept, publisher.path("summary.json")] {
        std::fs::create_dir(path).unwrap();
    }
    publisher.terminate();
    wait_for("the publisher's end", || {
        (!publisher.is_running()).then_some(())
    });
    let log = publisher.log();
    for reported in ["test.epoch.json", "summary.json"] {
        let mut lines = log.lines().filter(|line| line.contains("ERROR"));
        assert!(
            lines.any(|line| line.contains(reported)),
            "{reported}: {log}"
        );
    }
    assert_eq!(publisher.finish().0, Some(2));
}

#[test]
fn second_publisher_on_a_group_is_refused_unless_forced() {
    let group = group();
    let mut input = simulator(1_000_000);
    input["wait_for_subscribers"] = json!(0);
    let mut config = config(group, input);
    // The longest listening there is: 2 s, so that a busy machine does not miss the first publisher.
    config["heartbeat"] = json!({ "idle_us": 700_000, "ambient_us": 700_000 });
    let first = Publisher::start(&config);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    std::fs::write(&path, config.to_string()).unwrap();
    let run = |argument: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_tickcast-publisher"))
            .args(["--config", path.to_str().unwrap()])
            .args(argument)
            .output()
            .unwrap()
    };
    let second = run(&[]);
    let said = String::from_utf8_lossy(&second.stderr);
    assert_eq!(second.status.code(), Some(2), "{said}");
    let wanted = format!("another publisher sends to {group} from 127.0.0.1");
    assert!(said.contains(&wanted) && said.contains("--force"), "{said}");
    assert!(said.contains(path.to_str().unwrap()), "{said}");
    let check = run(&["--check"]);
    let said = String::from_utf8_lossy(&check.stdout);
    assert_eq!(check.status.code(), Some(0));
    assert!(
        said.contains(&format!("warning: channel all: {wanted}")),
        "{said}"
    );
    let forced = Publisher::start_with(&config, &["--force"]);
    assert!(forced.log().contains(&wanted), "{}", forced.log());
    // A killed publisher does not prevent its own restart.
    drop((first, forced));
    Publisher::start(&config);
}

#[test]
fn name_with_control_characters_forges_no_log_line() {
    let mut input = simulator(1_000_000);
    input["wait_for_subscribers"] = json!(0);
    let publisher = Publisher::start(&config(group(), input));
    let mut control = publisher.connect();
    control.join("a\nERROR forged\r\x1b[2J\u{202e}");
    let log = wait_for("the line of the join", || {
        let log = publisher.log();
        log.contains("forged").then_some(log)
    });
    let lines: Vec<_> = log.lines().filter(|line| line.contains("forged")).collect();
    for line in lines {
        assert!(line.starts_with("20"), "a line of its own: {line:?}");
        assert!(!line.contains(['\x1b', '\r', '\u{202e}']), "{line:?}");
    }
}

#[test]
fn flapping_peer_fills_audit_but_not_log() {
    const TIMES: usize = 300;
    let folder = tempfile::tempdir().unwrap();
    let audit = folder.path().join("audit");
    let mut input = simulator(1_000_000);
    input["wait_for_subscribers"] = json!(0);
    let arguments = ["--audit", audit.to_str().unwrap()];
    let publisher = Publisher::start_with(&config(group(), input), &arguments);
    let began = std::time::Instant::now();
    for _ in 0..TIMES {
        let mut control = publisher.connect();
        control.join("again");
        control.send(0, &Message::Leave);
    }
    wait_for("all of it in the audit", || {
        let said = std::fs::read_to_string(&audit).ok()?;
        let count = |what: &str| said.matches(&format!("\"what\":\"{what}\"")).count();
        (count("joined") == TIMES && count("left") == TIMES).then_some(())
    });
    // Without the limit, each time logs four lines. The limit allows ten lines for each second of
    // the test.
    let log = publisher.log();
    let lines_max = 3 * TIMES + 10 * began.elapsed().as_secs() as usize;
    assert!(log.lines().count() < lines_max, "{}", log.lines().count());
    assert!(
        log.contains("log lines about connections were suppressed"),
        "{log}"
    );
}

/// Peers that never join choose the name in each entry, and its number.
#[test]
fn flood_of_refused_joins_leaves_audit_file_short() {
    const TIMES: usize = 2_500;
    let folder = tempfile::tempdir().unwrap();
    let audit = folder.path().join("audit");
    let mut input = simulator(1_000_000);
    input["wait_for_subscribers"] = json!(0);
    let arguments = ["--audit", audit.to_str().unwrap()];
    let publisher = Publisher::start_with(&config(group(), input), &arguments);
    let name = "\u{1b}".repeat(5_000);
    for _ in 0..TIMES {
        let mut control = publisher.connect();
        control.send_join(&name);
        let said = control.next("REJECTED");
        assert!(matches!(said, Said::Rejected(_)), "{said:?}");
    }
    let entries = || {
        let said = std::fs::read_to_string(&audit).unwrap();
        let read = |line: &str| serde_json::from_str::<serde_json::Value>(line).ok();
        said.lines().filter_map(read).collect::<Vec<_>>()
    };
    wait_for("the sum of what was left out", || {
        entries()
            .iter()
            .any(|it| it["what"] == "omitted")
            .then_some(())
    });
    publisher.terminate();
    publisher.finish();
    let entries = entries();
    let refused = entries.iter().filter(|it| it["what"] == "turned_away");
    assert!((1_000..TIMES).contains(&refused.count()));
    let names = entries.iter().filter_map(|it| it["subscriber"].as_str());
    assert!(names.into_iter().all(|name| name.chars().count() <= 65));
    let omitted = |it: &serde_json::Value| {
        let why = it["why"].as_str().filter(|_| it["what"] == "omitted")?;
        let (count, of) = why.split_once(' ')?;
        assert!(of.starts_with("turned_away from 127.0.0.1"), "{why}");
        count.parse::<usize>().ok()
    };
    let omitted: usize = entries.iter().filter_map(omitted).sum();
    let refused = entries.iter().filter(|it| it["what"] == "turned_away");
    assert_eq!(
        refused.count() + omitted,
        TIMES,
        "each is written or counted"
    );
}

#[test]
fn service_manager_hears_of_start_life_and_stop() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let variables = [
        ("NOTIFY_SOCKET", path.to_str().unwrap()),
        ("WATCHDOG_USEC", "400000"),
    ];
    let mut config = config(group(), simulator(1_000_000));
    config["linger_ms"] = json!(0);
    let publisher = Publisher::start_in(&config, &[], &variables);
    let next = || {
        let mut bytes = [0; 256];
        let len = manager.recv(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..len]).into_owned()
    };
    assert_eq!(next(), "READY=1\nSTATUS=listening");
    assert_eq!(next(), "WATCHDOG=1");
    assert_eq!(next(), "WATCHDOG=1");
    publisher.terminate();
    let stopping = std::iter::repeat_with(next).find(|state| state != "WATCHDOG=1");
    assert_eq!(stopping.as_deref(), Some("STOPPING=1"));
}
