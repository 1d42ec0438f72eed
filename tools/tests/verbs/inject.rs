//! The relay injects the requested faults, and its report matches the missing datagrams to the
//! sequence.

use std::collections::BTreeSet;
use std::net::{SocketAddrV4, UdpSocket};

use crate::common::{group, json_at, listener, run, signal, speaker, start, text, wait_for};
use serde_json::{Value, json};
use tickcast_reliability::types::{
    ChannelId, Epoch, Nanos, RecordNumber, Sequence, SourceId, SourcePosition,
};
use tickcast_reliability::wire::{CrcVerdict, Datagram, HEADER_LEN, Header, Kind, crc_of};

const EPOCH: u64 = 77;

fn datagram(channel: u16, sequence: u64, kind: Kind) -> Vec<u8> {
    let payload = vec![sequence as u8; if kind == Kind::Data { 56 } else { 0 }];
    let header = Header {
        kind,
        channel: ChannelId(channel),
        count: 1,
        epoch: Epoch(EPOCH),
        sequence: Sequence(sequence),
        first_record: RecordNumber(sequence),
        source_position: SourcePosition(sequence),
        sent_at: Nanos(1),
        retained: 1,
        source: SourceId(1),
        payload_len: payload.len() as u16,
        flags: 0,
        header_len: HEADER_LEN as u16,
        relay: 0,
    };
    let crc = crc_of(&header.to_bytes(0), &payload);
    [header.to_bytes(crc).to_vec(), payload].concat()
}

/// Number of datagrams that are sent before all are read. Even a small kernel buffer holds them.
const UNREAD_MAX: u64 = 64;

/// Returns whether all sockets of a group are listed and have been read to the end. The kernel may leave a
/// socket out of the list while others open and close.
fn is_read(group: SocketAddrV4) -> bool {
    let sockets = std::fs::read_to_string("/proc/net/udp").unwrap();
    let address = u32::from_le_bytes(group.ip().octets());
    let address = format!("{address:08X}:{:04X}", group.port());
    // The columns: number, local address, remote address, state, bytes to send and to read.
    let sockets: Vec<Vec<_>> = (sockets.lines())
        .map(|line| line.split_whitespace().collect())
        .collect();
    let mut own = sockets
        .iter()
        .filter(|columns| columns[1] == address)
        .peekable();
    own.peek().is_some() && own.all(|columns| columns[4].ends_with(":00000000"))
}

/// Reads all waiting datagrams.
fn read(socket: &UdpSocket, all: &mut Vec<Vec<u8>>) {
    let mut buffer = [0; 2048];
    while let Ok(len) = socket.recv(&mut buffer) {
        all.push(buffer[..len].to_vec());
    }
}

/// Sends `count` datagrams per channel through the relay, and ends both sessions. Returns the
/// relayed datagrams and the report.
fn relay(options: &[&str], count: u64) -> (Vec<Vec<u8>>, Value) {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (ready, report) = (path("ready.json"), path("report.json"));
    let (from, to) = (group(), group());
    let (out, input) = (listener(to), speaker(from));
    out.set_nonblocking(true).unwrap();
    let (at, to) = (from.to_string(), to.to_string());
    let mut args = vec![
        "inject", "--from", &at, "--to", &to, "--report", &report, "--quiet",
    ];
    args.extend([
        "--ready-file",
        &ready,
        "--linger",
        "0.2",
        "--interface",
        "lo",
    ]);
    args.extend(options);
    let mut running = start(&args);
    json_at(ready.as_ref());
    let mut came = Vec::new();
    for sequence in 1..=count {
        for channel in [1, 2] {
            input
                .send(&datagram(channel, sequence, Kind::Data))
                .unwrap();
        }
        if sequence % (UNREAD_MAX / 2) == 0 {
            wait_for("the relay's reading", || {
                read(&out, &mut came);
                is_read(from).then_some(())
            });
        }
    }
    for channel in [1, 2] {
        input
            .send(&datagram(channel, count + 1, Kind::End))
            .unwrap();
    }
    wait_for("the end of the relay", || {
        let over = running.child().try_wait().unwrap();
        read(&out, &mut came);
        over
    });
    let done = running.output();
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    (came, json_at(report.as_ref()))
}

/// Returns the sequences of a channel that arrived complete.
fn whole(came: &[Vec<u8>], channel: u16) -> Vec<u64> {
    let of_channel = |bytes: &Vec<u8>| {
        let datagram = Datagram::parse(bytes).ok()?;
        let header = datagram.header();
        let good = datagram.verdict() == CrcVerdict::Good && header.channel.0 == channel;
        good.then_some(header.sequence.0)
    };
    came.iter().filter_map(of_channel).collect()
}

/// Returns the sequences of one list of a channel in the report.
fn listed(report: &Value, channel: u16, list: &str) -> BTreeSet<u64> {
    let channels = report["channels"].as_array().unwrap();
    let of = channels.iter().find(|c| c["channel"] == channel).unwrap();
    let ranges = of[list].as_array().unwrap().iter();
    ranges
        .flat_map(|r| r["first"].as_u64().unwrap()..=r["last"].as_u64().unwrap())
        .collect()
}

fn missing(came: &[Vec<u8>], channel: u16, last: u64) -> BTreeSet<u64> {
    let came: BTreeSet<u64> = whole(came, channel).into_iter().collect();
    (1..=last)
        .filter(|sequence| !came.contains(sequence))
        .collect()
}

#[test]
fn relay_without_faults_keeps_bytes_and_order() {
    let (came, report) = relay(&[], 200);
    let sent: Vec<_> = (1..=200)
        .flat_map(|s| [1, 2].map(|channel| datagram(channel, s, Kind::Data)))
        .chain([1, 2].map(|channel| datagram(channel, 201, Kind::End)))
        .collect();
    assert_eq!(came, sent);
    assert_eq!(report["exact"], true);
    assert_eq!(report["ended_by"], "end_of_session");
    assert_eq!(report["counts"]["passed_in"], 402);
    assert!(listed(&report, 1, "missed").is_empty());
}

#[test]
fn reported_drops_equal_missing_sequences() {
    for seed in ["3", "4"] {
        let options = [
            "--seed",
            seed,
            "--drop",
            "0.05",
            "--burst",
            "3",
            "--reorder",
            "0.05",
        ];
        let more = [
            "--duplicate",
            "0.05",
            "--delay",
            "0.02",
            "--delay-us",
            "500",
        ];
        let (came, report) = relay(&[&options[..], &more[..]].concat(), 1_500);
        assert_eq!(report["exact"], true, "seed {seed}");
        for channel in [1, 2] {
            let dropped = listed(&report, channel, "dropped");
            assert!(!dropped.is_empty(), "seed {seed}");
            assert_eq!(dropped, missing(&came, channel, 1_501), "seed {seed}");
        }
        let duplicated = report["counts"]["duplicated"].as_u64().unwrap();
        let distinct: BTreeSet<_> = came.iter().collect();
        assert_eq!(
            came.len() - distinct.len(),
            duplicated as usize,
            "seed {seed}"
        );
    }
}

#[test]
fn damaged_or_cut_is_missed_but_not_dropped() {
    let options = ["--seed", "9", "--corrupt", "0.05", "--truncate", "0.05"];
    let (came, report) = relay(&options, 1_000);
    for channel in [1, 2] {
        assert!(listed(&report, channel, "dropped").is_empty(), "seed 9");
        let missed = listed(&report, channel, "missed");
        assert!(!missed.is_empty(), "seed 9");
        assert_eq!(missed, missing(&came, channel, 1_001), "seed 9");
    }
    assert_eq!(came.len(), 2_002, "nothing is dropped, seed 9");
}

#[test]
fn relay_with_same_seed_drops_same_datagrams() {
    let options = ["--seed", "5", "--drop", "0.1"];
    let lists = |(_, report): (_, Value)| [1, 2].map(|channel| listed(&report, channel, "dropped"));
    assert_eq!(lists(relay(&options, 500)), lists(relay(&options, 500)));
}

#[test]
fn scripted_plan_drops_exactly_its_datagrams() {
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("plan.json");
    let script = json!({"seed": 12, "script": [
        {"drop_sequences": {"channel": 1, "ranges": [{"first": 10, "last": 12}, {"first": 40, "last": 40}]}},
        {"drop_burst": {"from": 200, "count": 4}},
    ]});
    std::fs::write(&plan, script.to_string()).unwrap();
    let (came, report) = relay(&["--plan", plan.to_str().unwrap()], 200);
    // Datagrams 200 to 203 are sequences 101 and 102 of both channels.
    assert_eq!(
        missing(&came, 1, 201),
        BTreeSet::from([10, 11, 12, 40, 101, 102])
    );
    assert_eq!(missing(&came, 2, 201), BTreeSet::from([101, 102]));
    for channel in [1, 2] {
        assert_eq!(
            listed(&report, channel, "dropped"),
            missing(&came, channel, 201)
        );
    }
    assert_eq!(report["seed"], 12);
    assert_eq!(report["counts"]["scripted_dropped"], 8);
}

#[test]
fn sigterm_ends_relay_with_report_on_stdout() {
    let folder = tempfile::tempdir().unwrap();
    let ready = folder.path().join("ready.json");
    let (from, to) = (group(), group());
    let (out, input) = (listener(to), speaker(from));
    let (from, to) = (from.to_string(), to.to_string());
    let ready_text = ready.to_str().unwrap();
    let args = [
        "inject",
        "--from",
        &from,
        "--to",
        &to,
        "--ready-file",
        ready_text,
        "--seed",
        "1",
    ];
    let mut running = start(&args);
    json_at(&ready);
    let mut buffer = [0; 2048];
    wait_for("a relayed datagram", || {
        input.send(&datagram(7, 1, Kind::Data)).unwrap();
        out.recv(&mut buffer).ok()
    });
    signal(running.child().id(), "TERM");
    let done = running.output();
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    let report: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(report["ended_by"], "signal");
    assert_eq!(report["channels"][0]["epoch"], EPOCH);
}

#[test]
fn invalid_relay_options_are_refused_with_reason() {
    let folder = tempfile::tempdir().unwrap();
    let bad_plan = folder.path().join("plan.json");
    std::fs::write(&bad_plan, r#"{"drops": 0.1}"#).unwrap();
    let bad_plan = bad_plan.to_str().unwrap();
    let groups = [
        "inject",
        "--from",
        "239.255.1.1:7000",
        "--to",
        "239.255.1.2:7000",
    ];
    let with = |more: &[&'static str]| [&groups[..], more].concat();
    let cases = [
        (
            vec![
                "inject",
                "--from",
                "239.255.1.1:7000",
                "--to",
                "239.255.1.1:7000",
            ],
            "loops forever",
        ),
        (
            vec![
                "inject",
                "--from",
                "10.0.0.1:7000",
                "--to",
                "239.255.1.1:7000",
            ],
            "not a multicast group",
        ),
        (with(&["--drop", "1.5"]), "between 0 and 1"),
        (with(&["--burst", "3"]), "--drop"),
        (with(&["--drop", "0.9", "--burst", "1"]), "bursts"),
        (
            with(&["--reorder", "0.1", "--reorder-depth", "0"]),
            "reorder.depth",
        ),
        (
            with(&["--interface", "nosuch0"]),
            "no interface has the name or address nosuch0",
        ),
        (
            with(&["--plan", "/nonexistent/plan.json"]),
            "/nonexistent/plan.json can't be read",
        ),
        (
            [&groups[..], &["--plan", bad_plan]].concat(),
            "unknown field `drops`",
        ),
    ];
    for (args, sentence) in cases {
        let done = run(&args);
        let said = text(&done.stderr);
        assert_eq!(done.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.contains(sentence), "{args:?}: {said}");
    }
}
