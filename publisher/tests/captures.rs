//! Real captures through the whole publisher: it publishes every message of the file, and counts the
//! gaps of the file itself. Skipped, with a message, if the data is missing.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Publisher, config, group};
use serde_json::{Value, json};

fn data(name: &str) -> Option<PathBuf> {
    let root = std::env::var_os("TICKCAST_DATA").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data"),
        PathBuf::from,
    );
    let path = root.join(name);
    if path.is_file() {
        return Some(path);
    }
    eprintln!("SKIPPED: there is no {}; set TICKCAST_DATA", path.display());
    None
}

fn publish(file: &Path, more: &[(&str, Value)]) -> (Option<i32>, Value) {
    let mut input = json!({ "source": 1, "kind": "capture", "file": file, "pace": "max" });
    for (key, value) in more {
        input[*key] = value.clone();
    }
    Publisher::start(&config(group(), input)).finish()
}

#[test]
fn tops_capture_quotes_and_trades_are_all_published() {
    let Some(file) = data("iex-tops/TOPS16.pcapng.gz") else {
        return;
    };
    let (code, summary) = publish(&file, &[]);
    let source = &summary["source"];
    assert_eq!(source["messages"]["Q"], 27_217, "{summary:#}");
    assert_eq!(source["messages"]["T"], 6_390);
    assert_eq!(summary["published_records"], source["records"]);
    let again = publish(&file, &[]).1;
    assert_eq!(
        again["channels"][0]["digest"], summary["channels"][0]["digest"],
        "the same file gives the same records"
    );
    let gaps = source["gaps"].as_u64().unwrap();
    assert_eq!(code, Some(i32::from(gaps > 0)), "{source:#}");
}

#[test]
fn resets_and_the_cut_end_of_a_deep_capture_are_counted() {
    let Some(file) = data("iex-deep/DEEP10.pcap.gz") else {
        return;
    };
    let (_, summary) = publish(&file, &[]);
    let source = &summary["source"];
    assert_eq!(source["messages_total"], 391_999, "{source:#}");
    assert_eq!(source["resets"], 11);
    assert_eq!(source["truncated"], 1);
    assert_eq!(summary["published_records"], source["records"]);
}

#[test]
fn records_max_ends_run_early() {
    let Some(file) = data("iex-tops/TOPS16.pcapng.gz") else {
        return;
    };
    let (_, summary) = publish(&file, &[("records_max", json!(1_000))]);
    let published = summary["published_records"].as_u64().unwrap();
    assert!((1_000..1_010).contains(&published), "{published}");
}

#[test]
fn lines_of_captures_complete_each_other() {
    const LINE_A: &str = "239.1.2.3:26400";
    let (Some(lines), Some(base)) = (
        data("intake/14_ab_lines_B_late_3_packets.pcap"),
        data("intake/01_eth_us.pcap"),
    ) else {
        return;
    };
    // Two lines in one file; and two files of line A, of which only the second is complete.
    let files = json!([lines, base]);
    let inputs = [vec![], vec![("file", files), ("only", json!([LINE_A]))]];
    for more in inputs {
        let (code, summary) = publish(&lines, &more);
        let source = &summary["source"];
        assert_eq!(code, Some(0), "{source:#}");
        assert_eq!(
            (&source["messages_total"], &source["gaps"]),
            (&json!(42), &json!(0))
        );
        let lines = &summary["sources"][0]["lines"];
        let missing = lines.as_array().unwrap().iter();
        let missing: Vec<_> = missing.map(|line| line["missing"].clone()).collect();
        assert_eq!(missing, [4, 0], "{source:#}");
        assert_eq!(source["duplicates"], 38);
    }
    // Line A alone lacks four messages, and the run says so.
    let (code, summary) = publish(&lines, &[("only", json!([LINE_A]))]);
    assert_eq!(
        (code, &summary["source"]["missing_messages"]),
        (Some(1), &json!(4))
    );
}

#[test]
fn file_with_several_feeds_is_refused_with_the_remedy() {
    let Some(file) = data("intake/13_two_groups_same_session_name.pcap") else {
        return;
    };
    let input = json!({ "source": 1, "kind": "capture", "file": file });
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("publisher.json");
    std::fs::write(&path, config(group(), input).to_string()).unwrap();
    let refused = Command::new(env!("CARGO_BIN_EXE_tickcast-publisher"))
        .arg("--config")
        .arg(&path)
        .output()
        .unwrap();
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    let error = String::from_utf8_lossy(&refused.stderr);
    for part in [
        "source 1",
        "holds 2 feeds",
        "an input of its own",
        "\"only\"",
        "\"all_feeds\"",
    ] {
        assert!(error.contains(part), "{part}: {error}");
    }
}

#[test]
fn all_feeds_of_a_file_are_inputs_of_their_own() {
    for (name, messages) in [
        ("intake/13_two_groups_same_session_name.pcap", [42, 42]),
        ("intake/53_iex_two_channel_ids.pcap", [40, 20]),
    ] {
        let Some(file) = data(name) else {
            return;
        };
        let (code, summary) = publish(&file, &[("all_feeds", json!(true))]);
        assert_eq!(code, Some(0), "{summary:#}");
        let sources = summary["sources"].as_array().unwrap().iter();
        let got: Vec<_> = sources
            .map(|source| (source["source"].clone(), source["messages_total"].clone()))
            .collect();
        let [first, second] = messages;
        let expected = [(json!(1), json!(first)), (json!(2), json!(second))];
        assert_eq!(got, expected, "{name}");
    }
}
