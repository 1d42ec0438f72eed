//! Every payload of a recording is sent once and in order; payloads that can't be sent are reported.

use std::io::Write;
use std::net::UdpSocket;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::common::{Publisher, data, free_address, group, json_at, listener, run, start, text};
use serde_json::Value;
use tickcast_test_support::recorded::{
    PCAP_HEADER, block, logins_around_a_gap, system_event, udp_frame,
};

const LINE_A: [u8; 4] = [239, 1, 1, 1];
const LINE_B: [u8; 4] = [239, 1, 1, 2];
const PORT: u16 = 6_000;

/// Returns a capture of `count` packets, each sent on two lines, 50 us apart.
fn capture(count: u32) -> Vec<u8> {
    let mut bytes = PCAP_HEADER.to_vec();
    for n in 0..count {
        for (line, destination) in [LINE_A, LINE_B].into_iter().enumerate() {
            let payload = format!("packet {n} line {line}");
            let at_us = 1_000_000 + u64::from(n) * 50;
            bytes.extend(udp_frame(at_us, destination, PORT, payload.as_bytes()));
        }
    }
    bytes
}

fn file(folder: &tempfile::TempDir, bytes: &[u8]) -> PathBuf {
    let path = folder.path().join("recording");
    std::fs::File::create(&path)
        .unwrap()
        .write_all(bytes)
        .unwrap();
    path
}

/// Runs a replay to `socket` of a whole recording. Returns the packets received and the summary.
fn replay(
    path: &std::path::Path,
    socket: &UdpSocket,
    to: &str,
    options: &[&str],
) -> (Vec<Vec<u8>>, Value) {
    replay_with_code(0, path, socket, to, options)
}

/// Runs a replay that ends with an exit code.
fn replay_with_code(
    code: i32,
    path: &std::path::Path,
    socket: &UdpSocket,
    to: &str,
    options: &[&str],
) -> (Vec<Vec<u8>>, Value) {
    let path = path.display().to_string();
    let args = [&["replay", &path, "--to", to, "--json", "--quiet"], options].concat();
    let done = run(&args);
    assert_eq!(
        done.status.code(),
        Some(code),
        "{args:?}: {}",
        text(&done.stderr)
    );
    let mut came = Vec::new();
    let mut buffer = vec![0; 1 << 16];
    while let Ok(len) = socket.recv(&mut buffer) {
        came.push(buffer[..len].to_vec());
    }
    (came, serde_json::from_slice(&done.stdout).unwrap())
}

fn unicast() -> (UdpSocket, String) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket
        .set_read_timeout(Some(Duration::from_millis(200)))
        .unwrap();
    let to = socket.local_addr().unwrap().to_string();
    (socket, to)
}

#[test]
fn replay_sends_payloads_in_order_to_one_host() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(&folder, &capture(50));
    let (socket, to) = unicast();
    let (came, summary) = replay(&path, &socket, &to, &["--speed", "10"]);
    let sent: Vec<_> = (0..50)
        .flat_map(|n| [0, 1].map(|line| format!("packet {n} line {line}").into_bytes()))
        .collect();
    assert_eq!(came, sent);
    assert_eq!(summary["packets"], 100);
    assert_eq!(summary["whole"], true);
    assert_eq!(summary["recorded_seconds"], 49.0 * 50e-6);
}

#[test]
fn replay_filters_one_line_and_loops_as_requested() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(&folder, &capture(20));
    let group = group();
    let socket = listener(group);
    let options = [
        "--speed",
        "max",
        "--only",
        "239.1.1.2:6000",
        "--loop",
        "2",
        "--interface",
        "lo",
    ];
    let (came, summary) = replay(&path, &socket, &group.to_string(), &options);
    let round = (0..20).map(|n| format!("packet {n} line 1").into_bytes());
    assert_eq!(came, round.clone().chain(round).collect::<Vec<_>>());
    assert_eq!(summary["passed_over"]["other_destination"], 40);
}

#[test]
fn replay_takes_its_times_from_the_stamps_asked_for() {
    let (folder, (socket, to)) = (tempfile::tempdir().unwrap(), unicast());
    let mut stamped = capture(0);
    for (at_us, seconds) in [(1_000_000, 1_u32), (1_000_050, 3)] {
        let mut record = udp_frame(at_us, LINE_A, PORT, b"x");
        // Metamako's trailer.
        record.extend([&[9; 4][..], &seconds.to_be_bytes(), &[0; 8]].concat());
        let len = (record.len() as u32 - 16).to_le_bytes();
        record[8..16].copy_from_slice(&[len, len].concat());
        stamped.extend(record);
    }
    let path = file(&folder, &stamped);
    let options = ["--speed", "1000", "--time", "metamako"];
    let (came, summary) = replay(&path, &socket, &to, &options);
    assert_eq!(came, [b"x", b"x"]);
    assert_eq!(summary["recorded_seconds"], 2.0);
    assert_eq!(summary["unstamped"], 0);
    let path = file(&folder, &capture(1));
    let (came, summary) = replay(
        &path,
        &socket,
        &to,
        &[&options[..], &["--loop", "2"]].concat(),
    );
    assert_eq!((came.len(), &summary["unstamped"]), (4, &4.into()));
}

#[test]
fn wait_beyond_gap_max_is_cut_and_reported() {
    const YEAR_US: u64 = 31_536_000_000_000;
    let folder = tempfile::tempdir().unwrap();
    let stamps = [0, 2_000, YEAR_US, 3_000, 4_000];
    let frames = stamps.map(|at_us| udp_frame(1_000_000 + at_us, LINE_A, PORT, &[at_us as u8]));
    let path = file(&folder, &[&PCAP_HEADER[..], &frames.concat()].concat());
    let (socket, to) = unicast();
    let (came, summary) = replay(&path, &socket, &to, &["--gap-max", "0.01"]);
    assert_eq!(came, stamps.map(|at_us| vec![at_us as u8]));
    assert_eq!(summary["capped_waits"], 1);
    // 2 ms, 10 ms in place of the year, and 1 ms after the stamp that steps back.
    assert_eq!(summary["recorded_seconds"], 0.013);
    let path = path.to_str().unwrap();
    let done = run(&["replay", path, "--to", &to, "--quiet", "--gap-max", "0.01"]);
    let said = text(&done.stdout);
    assert!(said.contains("1 waits were cut to --gap-max"), "{said}");
}

#[test]
fn replay_stops_after_packets_max() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(&folder, &capture(20));
    let (socket, to) = unicast();
    let (came, summary) = replay(
        &path,
        &socket,
        &to,
        &["--rate", "5000", "--packets-max", "7"],
    );
    assert_eq!((came.len(), &summary["packets"]), (7, &7.into()));
    assert_eq!(summary["whole"], false);
}

#[test]
fn truncated_recording_is_sent_to_the_cut_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let whole = capture(20);
    let path = file(&folder, &whole[..whole.len() - 3]);
    let (socket, to) = unicast();
    let path = path.display().to_string();
    let done = run(&[
        "replay", &path, "--to", &to, "--json", "--quiet", "--speed", "max",
    ]);
    assert_eq!(done.status.code(), Some(1), "{}", text(&done.stderr));
    let summary: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(summary["passed_over"]["truncated"], 1);
    let faults = summary["faults"].to_string();
    assert!(
        faults.contains("cut off within the record at byte"),
        "{faults}"
    );
    let mut buffer = [0; 64];
    let came = std::iter::from_fn(|| socket.recv(&mut buffer).ok()).count();
    assert_eq!(came, 39);
}

#[test]
fn binary_file_messages_become_one_ended_session() {
    let folder = tempfile::tempdir().unwrap();
    // System events (start of market hours) 40 us apart: three share a packet, because they lie within
    // 100 us.
    let message = |n: u64| block(&system_event(n * 40_000));
    let path = file(&folder, &(0..7).flat_map(message).collect::<Vec<_>>());
    let (socket, to) = unicast();
    let (came, _) = replay(&path, &socket, &to, &["--speed", "max", "--loop", "2"]);
    let packet = |session: &[u8], sequence: u64, messages: std::ops::Range<u64>, count: u16| {
        let header = [session, &sequence.to_be_bytes(), &count.to_be_bytes()].concat();
        [header, messages.flat_map(message).collect()].concat()
    };
    let session = |name: &[u8]| {
        vec![
            packet(name, 1, 0..3, 3),
            packet(name, 4, 3..6, 3),
            packet(name, 7, 6..7, 1),
            packet(name, 8, 0..0, 0xffff),
        ]
    };
    assert_eq!(
        came,
        [session(b"REPLAY0001"), session(b"REPLAY0002")].concat()
    );
}

#[test]
fn gap_before_a_login_is_a_gap_of_the_packets() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(&folder, &logins_around_a_gap());
    let (socket, to) = unicast();
    let (came, summary) = replay_with_code(1, &path, &socket, &to, &["--speed", "max"]);
    let heads = came.iter().map(|packet| {
        let (sequence, count) = (&packet[10..18], &packet[18..20]);
        (
            u64::from_be_bytes(sequence.try_into().unwrap()),
            u16::from_be_bytes(count.try_into().unwrap()),
        )
    });
    assert_eq!(heads.collect::<Vec<_>>(), [(7, 2), (12, 1), (13, 0xffff)]);
    assert_eq!(summary["whole"], false, "{summary:#}");
}

#[test]
fn replay_of_tops_capture_matches_packet_for_packet() {
    let Some(path) = data("iex-tops/TOPS16.pcapng.gz") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let summary = folder.path().join("summary.json");
    let group = group();
    let socket = listener(group);
    let options = [
        "--rate",
        "20000",
        "--packets-max",
        "500",
        "--summary",
        summary.to_str().unwrap(),
    ];
    let (came, _) = replay(&path, &socket, &group.to_string(), &options);
    let mut capture = tickcast_feeds::capture::Capture::open(&path).unwrap();
    for (n, payload) in came.iter().enumerate() {
        assert_eq!(
            capture.next().unwrap().unwrap().payload,
            payload,
            "packet {n}"
        );
    }
    assert_eq!(came.len(), 500);
    assert_eq!(json_at(&summary)["packets"], 500);
}

#[test]
fn replay_to_closed_port_reports_no_listener() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(&folder, &capture(20)).display().to_string();
    let to = free_address().to_string();
    let done = run(&["replay", &path, "--to", &to, "--quiet", "--rate", "5000"]);
    assert_eq!(done.status.code(), Some(3), "{}", text(&done.stdout));
    assert!(
        text(&done.stderr).contains("no process listens"),
        "{}",
        text(&done.stderr)
    );
}

#[test]
fn recording_without_a_packet_to_send_is_not_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(&folder, &PCAP_HEADER);
    let (socket, to) = unicast();
    let (came, summary) = replay_with_code(1, &path, &socket, &to, &[]);
    assert!(came.is_empty());
    let faults = summary["faults"].to_string();
    assert!(faults.contains("no packet of the recording"), "{faults}");
    assert!(faults.contains("holds no frames"), "{faults}");
    assert_eq!(summary["whole"], false);
}

#[test]
fn damaged_recording_is_sent_but_for_its_damage() {
    let folder = tempfile::tempdir().unwrap();
    // A record with an impossible length, between sound ones.
    let (start, end) = (capture(10), capture(10));
    let bytes = [&start[..], &[0xff; 64], &end[24..]].concat();
    let path = file(&folder, &bytes).display().to_string();
    let (socket, to) = unicast();
    let done = run(&["replay", &path, "--to", &to, "--quiet", "--json"]);
    let said = text(&done.stderr);
    assert_eq!(done.status.code(), Some(1), "{said}");
    let summary: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(summary["packets"], 40);
    let (from, to) = (start.len(), start.len() + 64);
    let faults = summary["faults"].to_string();
    assert!(
        faults.contains(&format!("bytes {from} to {to} (64)")),
        "{faults}"
    );
    let mut buffer = [0; 64];
    let came = std::iter::from_fn(|| socket.recv(&mut buffer).ok()).count();
    assert_eq!(came, 40);
}

#[test]
fn summary_is_written_through_pipe_or_symlink() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(&folder, &capture(2)).display().to_string();
    let (_socket, to) = unicast();
    let name = |name: &str| folder.path().join(name);
    let replay_into = |summary: &std::path::Path| {
        let summary = summary.to_str().unwrap();
        run(&[
            "replay",
            &path,
            "--to",
            &to,
            "--quiet",
            "--summary",
            summary,
        ])
    };

    std::os::unix::fs::symlink(name("target"), name("link")).unwrap();
    assert_eq!(replay_into(&name("link")).status.code(), Some(0));
    assert!(name("link").is_symlink());
    assert_eq!(json_at(&name("target"))["packets"], 4);

    let pipe = name("pipe");
    let made = Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    let reader = std::thread::spawn({
        let pipe = pipe.clone();
        move || std::fs::read(pipe).unwrap()
    });
    assert_eq!(replay_into(&pipe).status.code(), Some(0));
    let read: Value = serde_json::from_slice(&reader.join().unwrap()).unwrap();
    assert_eq!(read["packets"], 4);

    // The error is detected before anything is sent, and no file is left behind.
    for nowhere in [name("no/folder/s.json"), folder.path().to_owned()] {
        let done = replay_into(&nowhere);
        let said = text(&done.stderr);
        assert_eq!(done.status.code(), Some(2), "{said}");
        assert!(
            said.contains("can't be written") && done.stdout.is_empty(),
            "{said}"
        );
    }
    let left = std::fs::read_dir(&folder).unwrap();
    let left = left.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert!(left.into_iter().all(|name| !name.starts_with(".tickcast-")));
}

#[test]
fn invalid_replay_input_is_refused_with_reason() {
    let folder = tempfile::tempdir().unwrap();
    let junk = file(&folder, b"no capture at all").display().to_string();
    let cases = [
        (
            ["/nonexistent.pcap", "--to", "127.0.0.1:1", "--speed", "1"],
            "there is no file",
        ),
        (
            [&junk, "--to", "127.0.0.1:1", "--speed", "1"],
            "neither pcap nor pcapng",
        ),
        (
            [&junk, "--to", "127.0.0.1:1", "--speed", "-1"],
            "not a number above 0",
        ),
    ];
    for (args, sentence) in cases {
        let done = run(&[&["replay"][..], &args].concat());
        let said = text(&done.stderr);
        assert_eq!(done.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.contains(sentence), "{args:?}: {said}");
    }
    let empty = run(&["replay", "/dev/null", "--to", "127.0.0.1:1"]);
    let said = text(&empty.stderr);
    assert_eq!(empty.status.code(), Some(1), "{said}");
    assert!(said.contains("is empty"), "{said}");
    let capture = file(&folder, &capture(1)).display().to_string();
    let done = run(&["replay", &capture, "--to", "127.0.0.1"]);
    assert_eq!(done.status.code(), Some(2));
    assert!(
        text(&done.stderr).contains("HOST:PORT or GROUP:PORT"),
        "{}",
        text(&done.stderr)
    );
}

#[test]
fn publisher_accepts_replayed_capture_as_live_feed() {
    const PACKETS: u64 = 13_022;
    let Some(path) = data("iex-tops/TOPS16.pcapng.gz") else {
        return;
    };
    let mut publisher = Publisher::live();
    let folder = tempfile::tempdir().unwrap();
    let summary = folder.path().join("summary.json");
    let args = [
        "listen",
        "--connect",
        &publisher.control,
        "--channel",
        "all",
        "--digest",
    ];
    let to = [
        "--from",
        "oldest",
        "--format",
        "count",
        "--summary",
        summary.to_str().unwrap(),
    ];
    let listener = start(&[&args[..], &to].concat());
    let path = path.display().to_string();
    let done = run(&[
        "replay",
        &path,
        "--to",
        &publisher.input,
        "--rate",
        "4000",
        "--quiet",
    ]);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    // Wait for the packets in flight before the end: until all have arrived, or none did for a while.
    let (mut packets, mut looks) = (0, 0);
    while packets < PACKETS && looks < 100 {
        std::thread::sleep(Duration::from_millis(20));
        let now = publisher.status()["source"]["packets"].as_u64().unwrap();
        looks = if now == packets { looks + 1 } else { 0 };
        packets = now;
    }
    publisher.end();
    let heard = listener.output();
    let published = publisher.summary();
    let source = &published["source"];
    let counted = |name: &str| source[name].as_u64().unwrap();
    // A host too slow for a live feed loses some of it, and reports that.
    let (missing, overflow) = (counted("missing_messages"), counted("overflow_messages"));
    let (lost, reported) = (missing + overflow > 0, text(&heard.stderr));
    assert_eq!(heard.status.code(), Some(i32::from(lost)), "{reported}");
    assert_eq!(reported.contains("source 1 lost"), lost, "{reported}");
    if packets == PACKETS {
        let messages = &source["messages"];
        assert_eq!(
            (&messages["Q"], &messages["T"], missing),
            (&27_217.into(), &6_390.into(), 0)
        );
    } else {
        // Losses at the very end are unknown, because no later packet showed them.
        let known = counted("messages_total") + missing;
        assert!(known <= 57_674, "{source:#}");
    }
    let summary = json_at(&summary);
    assert_eq!(
        summary["channels"][0]["digest"],
        published["channels"][0]["digest"]
    );
    assert_eq!(summary["delivered_records"], published["published_records"]);
}

#[test]
fn simulated_capture_is_replayed_whole_and_repeatable() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    for (name, seed) in [("a", "7"), ("b", "7"), ("c", "8")] {
        let options = ["--messages", "500", "--symbols", "5", "--seed", seed];
        let done = run(&[&["simulate", &path(name)], &options[..]].concat());
        assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
        assert!(text(&done.stdout).contains(" messages of 5 symbols in "));
    }
    let [a, b, c] = ["a", "b", "c"].map(|name| std::fs::read(path(name)).unwrap());
    assert!(a == b && a != c);
    let (socket, to) = unicast();
    let only = ["--rate", "100000", "--only", "239.255.1.1:26400"];
    let (packets, summary) = replay(path("a").as_ref(), &socket, &to, &only);
    assert_eq!(summary["passed_over"]["other_destination"], 0);
    assert_eq!(summary["whole"], true);
    let late = ["late_p50_us", "late_p99_us", "late_max_us"].map(|it| summary[it].as_u64());
    assert!(late[0] <= late[1] && late[1] <= late[2] && late[0].is_some());
    assert!(
        packets
            .iter()
            .all(|packet| packet.starts_with(b"TICKCAST  "))
    );
}

#[test]
fn capture_above_limit_of_file_sizes_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("capture").display().to_string();
    let script = "ulimit -f 1; exec \"$0\" simulate \"$1\" --messages 500";
    let done = Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_tickcast"), &path])
        .output()
        .unwrap();
    let said = text(&done.stderr);
    assert_eq!(done.status.code(), Some(2), "{said}");
    assert!(said.contains(&path) && said.contains("too large"), "{said}");
    let left = std::fs::read_dir(folder.path()).unwrap();
    assert_eq!(left.count(), 0, "the unfinished file is removed");
}
