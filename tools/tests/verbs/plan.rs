//! A plan has the peaks of its recording, and its config is one that a publisher accepts.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tickcast_feeds::capture::{Capture, RecordedFile};
use tickcast_publisher::Config;

use crate::common::{run, text};

/// Writes the capture of a small simulated market.
fn market(folder: &Path) -> PathBuf {
    let path = folder.join("market.pcap");
    let name = path.display().to_string();
    let done = run(&["simulate", &name, "--messages", "20000", "--symbols", "20"]);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    path
}

/// Returns exit code and result of a plan.
fn plan(path: &Path, options: &[&str]) -> (Option<i32>, Value) {
    let path = path.display().to_string();
    let done = run(&[&["plan", &path, "--json"], options].concat());
    let said = text(&done.stderr);
    let result = serde_json::from_slice(&done.stdout).expect(&said);
    (done.status.code(), result)
}

/// Returns times and lengths of all packets of a capture.
fn packets(path: &Path) -> Vec<(u64, u64)> {
    let Ok(RecordedFile::Capture(mut capture)) = RecordedFile::open(path) else {
        panic!("{} is a capture", path.display());
    };
    let capture: &mut Capture = &mut capture;
    let mut packets = Vec::new();
    while let Some(datagram) = capture.next().unwrap() {
        packets.push((datagram.received_at.0, datagram.payload.len() as u64));
    }
    packets
}

/// Returns the most packets in any window of this length, and the most bytes.
fn fullest(packets: &[(u64, u64)], length: u64) -> (u64, u64) {
    let windows = packets.iter().enumerate().map(|(n, (from, _))| {
        let inside = packets[n..].iter().take_while(|(at, _)| at - from < length);
        inside.fold((0, 0), |(count, bytes), (_, len)| (count + 1, bytes + len))
    });
    windows.fold((0, 0), |(count, bytes), (a, b)| {
        (count.max(a), bytes.max(b))
    })
}

#[test]
fn peaks_of_plan_equal_those_counted_packet_by_packet() {
    let folder = tempfile::tempdir().unwrap();
    let path = market(folder.path());
    let packets = packets(&path);
    for (options, rate) in [(&[][..], 1), (&["--rate", "x4"], 4)] {
        let (_, result) = plan(&path, options);
        for window in result["peaks"].as_array().unwrap() {
            let length = window["window_us"].as_u64().unwrap() * 1_000 * rate;
            let (count, bytes) = fullest(&packets, length);
            // A window is kept in 1,024 steps, and a faster replay rounds its times.
            for (of, exact) in [("packets", count), ("packet_bytes", bytes)] {
                let most = window["most"][of].as_u64().unwrap();
                let near = exact / 100 + 2 * bytes / count;
                assert!(
                    most.abs_diff(exact) <= near,
                    "{of} {rate} {window}: {exact}"
                );
            }
        }
        let all = packets.len() as u64;
        assert_eq!(result["total"]["packets"], all);
    }
}

#[test]
fn planned_config_is_accepted_and_listens_to_the_feed() {
    let folder = tempfile::tempdir().unwrap();
    let path = market(folder.path());
    let file = folder.path().join("planned.json");
    let options = [
        "--subscribers",
        "40",
        "--lines",
        "2",
        "--cores",
        "0,1,1",
        "--config",
    ];
    let (code, result) = plan(
        &path,
        &[&options[..], &[&file.display().to_string()]].concat(),
    );
    assert!(matches!(code, Some(0 | 1)), "{result:#}");
    let config = Config::read(&file).unwrap();
    let written: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(written, result["config"]);
    assert_eq!(
        written["inputs"][0]["lines"],
        json!([{ "listen": "239.255.1.1:26400" }])
    );
    assert_eq!(written["inputs"][0]["format"], "moldudp64-itch50");
    let channel = &config.channels[0];
    let stall = &result["peaks"][4]["most"]["datagrams"];
    assert!(channel.slots >= 2 * stall.as_u64().unwrap());
    assert!(channel.slots.is_power_of_two());
    assert_eq!(written["threads"]["idle"], "spin");
    let cores = ["feed_core", "publish_core", "repair_core"];
    assert_eq!(
        cores.map(|core| &written["threads"][core]),
        [0, 1, 1].map(|core| json!(core)).each_ref()
    );
    // Every size has its reason in the config.
    for size in result["sizes"].as_array().unwrap() {
        let setting = size["setting"].as_str().unwrap();
        let reason = &written["$comment"]["reasons"][setting];
        assert_eq!(reason, &size["reason"], "{setting}");
        assert!(!reason.as_str().unwrap().is_empty());
        if setting.starts_with("subscriber.") {
            continue;
        }
        let pointer = format!("/{}", setting.replace(['.', '['], "/").replace(']', ""));
        assert_eq!(written.pointer(&pointer), Some(&size["value"]), "{setting}");
    }
}

#[test]
fn faster_rate_and_longer_stall_never_shrink_sizes() {
    let folder = tempfile::tempdir().unwrap();
    let path = market(folder.path());
    let sizes = |options: &[&str]| -> Vec<u64> {
        let (_, result) = plan(&path, options);
        let sizes = result["sizes"].as_array().unwrap();
        sizes
            .iter()
            .map(|it| it["value"].as_u64().unwrap())
            .collect()
    };
    let plain = sizes(&[]);
    let larger = sizes(&[
        "--rate",
        "50",
        "--stall-ms",
        "5000",
        "--subscribers",
        "1000",
    ]);
    assert!(
        plain.iter().zip(&larger).all(|(a, b)| a <= b),
        "{plain:?} {larger:?}"
    );
    assert_ne!(plain, larger);
}

#[test]
fn load_above_the_link_is_a_finding_and_exit_1() {
    let folder = tempfile::tempdir().unwrap();
    let path = market(folder.path());
    let (code, result) = plan(&path, &["--link-gbit", "0.000001"]);
    assert_eq!(code, Some(1));
    let findings = result["findings"].to_string();
    assert!(
        findings.contains("more than half of the link's"),
        "{findings}"
    );
}

#[test]
fn recording_without_messages_is_refused_with_the_next_step() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("empty.pcap");
    // The head of a pcap file in microseconds, of Ethernet.
    let words = [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 1];
    std::fs::write(&path, words.map(u32::to_le_bytes).as_flattened()).unwrap();
    let done = run(&["plan", &path.display().to_string()]);
    assert_ne!(done.status.code(), Some(0));
    assert!(!text(&done.stderr).is_empty() && done.stdout.is_empty());
}
