//! Real captures through the whole system: publisher process, subscriber processes behind a bad network,
//! equal digests. Without the captures, the tests say so and pass.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tickcast_test_support::{binary, number};

/// Returns a path in the folder of captures: `TICKCAST_DATA`, otherwise beside the repository.
fn data(path: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("TICKCAST_DATA").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data"),
        PathBuf::from,
    );
    let path = folder.join(path);
    if !path.exists() {
        eprintln!(
            "SKIPPED: {} is not there; set TICKCAST_DATA to run this test",
            path.display()
        );
        return None;
    }
    Some(path)
}

/// Runs a demo over a capture. Returns its exit code, which says whether it was whole, and its summary.
fn demo(capture: &Path, more: &[&str]) -> (Option<i32>, Value) {
    let folder = tempfile::tempdir().expect("a folder");
    let summary = folder.path().join("summary.json");
    let output = Command::new(binary("tickcast"))
        .args(["demo", "--capture"])
        .arg(capture)
        .args(["--subscribers", "2", "--summary"])
        .arg(&summary)
        .args(more)
        .output()
        .expect("the demo runs");
    let text = std::fs::read_to_string(&summary).unwrap_or_else(|error| {
        panic!(
            "no summary: {error}\n{}",
            String::from_utf8_lossy(&output.stderr)
        )
    });
    (
        output.status.code(),
        serde_json::from_str(&text).expect("JSON"),
    )
}

/// Five percent loss in bursts, and every other fault of a network.
const BAD: [&str; 10] = [
    "--drop",
    "0.05",
    "--burst",
    "3",
    "--duplicate",
    "0.02",
    "--reorder",
    "0.02",
    "--corrupt",
    "0.01",
];

fn assert_whole(code: Option<i32>, summary: &Value) {
    assert_eq!(code, Some(0), "{summary:#}");
    assert_all_delivered(summary);
}

/// Asserts that each subscriber has all records that were published.
fn assert_all_delivered(summary: &Value) {
    let published = number(summary, "published_records");
    let subscribers = summary["subscribers"].as_array().expect("subscribers");
    assert_eq!(subscribers.len(), 2);
    for subscriber in subscribers {
        assert_eq!(subscriber["digest_matches"], true, "{subscriber:#}");
        assert_eq!(number(subscriber, "delivered_records"), published);
        assert_eq!(number(subscriber, "lost_records"), 0);
        let (detected, recovered) = (
            number(subscriber, "missing_datagrams"),
            number(subscriber, "missing_recovered"),
        );
        assert_eq!(detected, recovered);
    }
}

#[test]
fn tops16_passes_whole_for_any_seed() {
    let Some(capture) = data("iex-tops/TOPS16.pcapng.gz") else {
        return;
    };
    for seed in ["1", "20261120"] {
        let (code, summary) = demo(&capture, &[&BAD[..], &["--seed", seed]].concat());
        assert_whole(code, &summary);
        assert_eq!(number(&summary["source"]["messages"], "Q"), 27_217);
        assert_eq!(number(&summary["source"]["messages"], "T"), 6_390);
        assert_eq!(number(&summary["source"], "gaps"), 0);
        let gaps = summary["subscribers"]
            .as_array()
            .expect("subscribers")
            .iter();
        assert!(
            gaps.map(|s| number(s, "missing_datagrams")).sum::<u64>() > 0,
            "loss was injected"
        );
    }
}

#[test]
fn deep10_is_delivered_to_its_cut_end_and_exits_1() {
    let Some(capture) = data("iex-deep/DEEP10.pcap.gz") else {
        return;
    };
    let (code, summary) = demo(&capture, &[&BAD[..], &["--seed", "5"]].concat());
    assert_eq!(code, Some(1), "the file ends within a packet: {summary:#}");
    assert_all_delivered(&summary);
    let source = &summary["source"];
    assert_eq!(number(source, "messages_total"), 391_999);
    assert_eq!(
        (number(source, "resets"), number(source, "truncated")),
        (11, 1)
    );
}

#[test]
fn unrepaired_tops16_run_names_ranges_and_balances() {
    let Some(capture) = data("iex-tops/TOPS16.pcapng.gz") else {
        return;
    };
    let (code, summary) = demo(&capture, &["--no-repair", "--drop", "0.02", "--seed", "9"]);
    assert_eq!(code, Some(1), "loss is exit code 1");
    let published = number(&summary, "published_records");
    for subscriber in summary["subscribers"].as_array().expect("subscribers") {
        let (delivered, lost) = (
            number(subscriber, "delivered_records"),
            number(subscriber, "lost_records"),
        );
        assert!(lost > 0);
        assert_eq!(delivered + lost, published);
        let ranges = subscriber["lost_ranges"].as_array().expect("the ranges");
        let named: u64 = ranges.iter().map(|range| number(range, "records")).sum();
        assert_eq!(named, lost, "every lost record lies in a named range");
    }
}

#[test]
fn itch_captures_arrive_whole_under_faults() {
    let Some(folder) = data("nasdaq-itch50-moldudp64") else {
        return;
    };
    let mut captures: Vec<_> = std::fs::read_dir(folder)
        .expect("the folder can be read")
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "pcap")
        })
        .collect();
    captures.extend(data("nasdaq-itch50-binaryfile/ex20101224.TEST_ITCH_50"));
    captures.extend(data("nasdaq-itch50-binaryfile/bbekele_sample.itch"));
    captures.sort();
    assert!(captures.len() > 20);
    for (seed, capture) in captures.iter().enumerate() {
        println!("{}", capture.display());
        let seed = seed.to_string();
        let (code, summary) = demo(capture, &[&BAD[..], &["--seed", &seed]].concat());
        assert_whole(code, &summary);
        assert!(number(&summary, "published_records") > 0);
    }
}
