//! The whole system at a small scale: complete under every fault, or with exactly named losses.

use std::process::Output;

use crate::common::{data, json_at, publisher_bin, run, text};
use serde_json::Value;

/// Runs a demo with a few thousand records. Returns its output and summary.
fn demo(options: &[&str]) -> (Output, Value) {
    let folder = tempfile::tempdir().unwrap();
    let summary = folder.path().join("summary.json");
    let publisher = publisher_bin();
    let base = [
        "demo",
        "--quiet",
        "--rate",
        "20000",
        "--summary",
        summary.to_str().unwrap(),
    ];
    let program = ["--publisher-bin", publisher.to_str().unwrap()];
    let done = run(&[&base[..], &program, options].concat());
    assert!(summary.exists(), "{options:?}: {}", text(&done.stderr));
    (done, json_at(&summary))
}

fn count(value: &Value, name: &str) -> u64 {
    value[name]
        .as_u64()
        .unwrap_or_else(|| panic!("{name} in {value}"))
}

const FAULTS: [&str; 10] = [
    "--drop",
    "0.05",
    "--duplicate",
    "0.05",
    "--reorder",
    "0.05",
    "--corrupt",
    "0.05",
    "--truncate",
    "0.02",
];

#[test]
fn report_of_demo_has_latency_and_verdict_of_subscribers() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("report.html");
    let more = ["--records", "4000", "--subscribers", "2", "--report"];
    let (done, _) = demo(&[&more[..], &[page.to_str().unwrap()]].concat());
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    let page = std::fs::read_to_string(&page).unwrap();
    for part in [
        "A: s1,",
        "B: s2,",
        "/sealed_to_delivered</h2>",
        "Whole: every record reached every subscriber",
    ] {
        assert!(page.contains(part), "no {part} in {page}");
    }
}

#[test]
fn subscribers_reach_digest_on_any_network() {
    for seed in ["1", "2"] {
        let more = ["--records", "4000", "--seed", seed, "--subscribers", "2"];
        let (done, summary) = demo(&[&FAULTS[..], &more].concat());
        let table = text(&done.stdout);
        assert_eq!(
            done.status.code(),
            Some(0),
            "seed {seed}: {table}{}",
            text(&done.stderr)
        );
        assert!(
            table.contains("Whole: every record reached every subscriber"),
            "{table}"
        );
        for row in ["| datagrams sent ", "| of those dropped by the network "] {
            assert!(table.contains(row), "{table}");
        }
        let published = count(&summary, "published_records");
        assert!(published >= 4_000, "seed {seed}");
        assert_eq!(summary["seed"].to_string(), seed);
        assert!(
            summary["source"]["messages"]["A"].as_u64().unwrap() > 0,
            "orders were added"
        );
        let subscribers = summary["subscribers"].as_array().unwrap();
        assert_eq!(subscribers.len(), 2);
        for subscriber in subscribers {
            assert_eq!(subscriber["digest_matches"], true, "seed {seed}");
            assert_eq!(
                count(subscriber, "delivered_records"),
                published,
                "seed {seed}"
            );
            assert_eq!(count(subscriber, "lost_records"), 0, "seed {seed}");
            let (found, mended) = (
                count(subscriber, "missing_datagrams"),
                count(subscriber, "missing_recovered"),
            );
            assert!(
                found > 0 && found == mended,
                "seed {seed}: {found} {mended}"
            );
            assert!(count(subscriber, "duplicates") > 0, "seed {seed}");
            assert!(count(subscriber, "corrupt_dropped") > 0, "seed {seed}");
            for percentiles in ["latency_ns", "repair_ns"] {
                let of = &subscriber[percentiles];
                assert!(count(of, "p50") > 0 && count(of, "p50") <= count(of, "p99"));
            }
        }
        // Every requested sequence has exactly one outcome.
        let sum = |of: &Value, name: &str| -> u64 {
            let channels = of["channels"].as_array().unwrap().iter();
            channels.map(|channel| count(channel, name)).sum()
        };
        let ends = [
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
        let ended: u64 = ends.iter().map(|name| sum(&summary, name)).sum();
        assert!(ended > 0, "seed {seed}");
        assert_eq!(sum(&summary, "nacked"), ended, "seed {seed}");
        let seeds: Vec<_> = subscribers.iter().map(|s| count(s, "seed")).collect();
        assert_ne!(seeds[0], seeds[1], "each subscriber has faults of its own");
    }
}

#[test]
fn unrepaired_demo_lists_lost_ranges_and_balances() {
    let options = [
        "--no-repair",
        "--records",
        "4000",
        "--drop",
        "0.1",
        "--seed",
        "4",
    ];
    let (done, summary) = demo(&options);
    let table = text(&done.stdout);
    assert_eq!(
        done.status.code(),
        Some(1),
        "seed 4: {table}{}",
        text(&done.stderr)
    );
    assert!(table.contains("delivered + lost = published"), "{table}");
    let published = count(&summary, "published_records");
    for subscriber in summary["subscribers"].as_array().unwrap() {
        assert_eq!(subscriber["digest_matches"], false, "seed 4");
        let lost = count(subscriber, "lost_records");
        assert!(lost > 0, "seed 4");
        assert_eq!(
            count(subscriber, "delivered_records") + lost,
            published,
            "seed 4"
        );
        let ranges = subscriber["lost_ranges"].as_array().unwrap();
        let records: u64 = ranges.iter().map(|range| count(range, "records")).sum();
        assert_eq!(records, lost, "seed 4");
        for range in ranges {
            let (first, last) = (count(range, "first"), count(range, "last"));
            let named = if first == last {
                first.to_string()
            } else {
                format!("{first}-{last}")
            };
            assert!(
                table.contains(&format!(" {named}")),
                "seed 4: {named} in {table}"
            );
            assert_eq!(range["cause"], "repair_off");
        }
    }
}

#[test]
fn demo_of_tops_capture_delivers_all_under_faults() {
    let Some(capture) = data("iex-tops/TOPS16.pcapng.gz") else {
        return;
    };
    let base = [
        "--capture",
        capture.to_str().unwrap(),
        "--subscribers",
        "2",
        "--seed",
        "6",
    ];
    let (done, summary) = demo(&[&base[..], &FAULTS].concat());
    assert_eq!(
        done.status.code(),
        Some(0),
        "seed 6: {}{}",
        text(&done.stdout),
        text(&done.stderr)
    );
    assert_eq!(summary["source"]["messages"]["Q"], 27_217);
    assert_eq!(summary["source"]["messages"]["T"], 6_390);
}

#[test]
fn damaged_capture_is_not_whole() {
    let Some(capture) = data("iex-tops/TOPS16.pcapng.gz") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let damaged = folder.path().join("damaged.pcapng.gz");
    let mut bytes = std::fs::read(capture).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle..middle + 64].fill(0xff);
    std::fs::write(&damaged, bytes).unwrap();
    let (done, summary) = demo(&["--capture", damaged.to_str().unwrap(), "--subscribers", "1"]);
    let table = text(&done.stdout);
    assert_eq!(done.status.code(), Some(1), "{table}{}", text(&done.stderr));
    assert!(
        table.contains("errors that ended the source early"),
        "{table}"
    );
    assert!(table.contains("the source itself was not whole"), "{table}");
    assert!(!table.contains("Whole:"), "{table}");
    assert_eq!(summary["whole"], false);
    assert_eq!(summary["subscribers"][0]["digest_matches"], true);
}

#[test]
fn demo_that_cannot_run_is_refused_with_reason() {
    let publisher = publisher_bin();
    let publisher = publisher.to_str().unwrap();
    let cases = [
        (
            vec!["--publisher-bin", "/nonexistent"],
            2,
            "cargo build -p tickcast-publisher",
        ),
        (vec!["--subscribers", "0"], 2, "not in 1..=64"),
        (vec!["--rate", "0"], 2, "0 is not in"),
        (vec!["--drop", "0.9", "--burst", "1"], 2, "bursts"),
        (
            vec!["--drop", "1"],
            2,
            "--drop 1 is impossible in bursts of 3",
        ),
        (
            vec!["--summary", "/nonexistent/s"],
            2,
            "/nonexistent/s can't be written",
        ),
        (
            vec![
                "--publisher-bin",
                publisher,
                "--capture",
                "/nonexistent.pcap",
            ],
            2,
            "/nonexistent.pcap can't be used: there is no such file",
        ),
        (
            vec!["--publisher-bin", "/bin/false"],
            4,
            "before it was ready",
        ),
    ];
    for (options, code, sentence) in cases {
        let done = run(&[&["demo", "--quiet"][..], &options].concat());
        let said = text(&done.stderr);
        assert_eq!(done.status.code(), Some(code), "{options:?}: {said}");
        assert!(said.contains(sentence), "{options:?}: {said}");
    }
}
