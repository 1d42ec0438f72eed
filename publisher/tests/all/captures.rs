//! Recorded files through the whole publisher: it publishes every message of the file, and reports and
//! counts what the file lacks. Tests of real captures are skipped, with a message, if the data is missing.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{Listener, Publisher, assert_messages, config, count, group, to_the_end};
use serde_json::{Value, json};
use tickcast_reliability::types::Sequence;
use tickcast_reliability::wire::{Datagram, Kind, SourceLossReason, StreamEvent};
use tickcast_test_support::recorded::{
    ARP, IPV4, PCAP_HEADER, block, frame, logins_around_a_gap, mold_packet, system_event, udp_frame,
};

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

/// One step of a source's stream: messages up to a sequence, or a loss from one on.
#[derive(Debug, PartialEq)]
enum Step {
    Messages(u64),
    Lost {
        from: u64,
        messages: u64,
        reason: SourceLossReason,
    },
}

const fn gap(from: u64, messages: u64) -> Step {
    let reason = SourceLossReason::Gap;
    Step::Lost {
        from,
        messages,
        reason,
    }
}

/// The loss of bytes that held an unknown number of messages.
const fn unreadable(from: u64) -> Step {
    Step::Lost {
        from,
        messages: u64::MAX,
        reason: SourceLossReason::Malformed,
    }
}

/// Publishes a file of these bytes. Returns the steps of the stream, exit code and summary.
fn stream_of(bytes: &[u8]) -> (Vec<Step>, Option<i32>, Value) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("day");
    std::fs::write(&path, bytes).unwrap();
    let group = group();
    let input = json!({
        "source": 9, "kind": "capture", "file": path, "pace": "max", "wait_for_subscribers": 1,
    });
    let publisher = Publisher::start(&config(group, input));
    let mut listener = Listener::new(group);
    let mut control = publisher.connect();
    let epoch = control.join("a").channels[0].epoch;
    // The input waits for a subscriber that follows, so send a first report.
    control.progress(epoch, Sequence(0), 0);
    to_the_end(&mut listener, &mut control, epoch);
    let mut steps = Vec::new();
    for bytes in listener.datagrams.values() {
        let datagram = Datagram::parse(bytes).unwrap();
        let header = datagram.header();
        match (header.kind, StreamEvent::parse(datagram.payload())) {
            (Kind::Data, _) => {
                steps.pop_if(|step| matches!(step, Step::Messages(_)));
                steps.push(Step::Messages(header.source_position.sequence()));
            }
            (
                Kind::Event,
                Some(StreamEvent::SourceLost {
                    from,
                    messages,
                    reason,
                    ..
                }),
            ) => steps.push(Step::Lost {
                from: from.sequence(),
                messages,
                reason,
            }),
            _ => {}
        }
    }
    let (code, summary) = publisher.finish();
    (steps, code, summary)
}

/// Asserts the frames of an input by class: used, harmless, foreign, damaged.
fn assert_frames(source: &Value, frames: [u64; 4]) {
    let names = ["used", "harmless", "foreign", "damaged"];
    let found = names.map(|name| count(source, &format!("{name}_frames")));
    assert_eq!(found, frames, "{source:#}");
}

#[test]
fn login_behind_a_gap_of_a_file_is_a_source_loss() {
    let (steps, code, summary) = stream_of(&logins_around_a_gap());
    assert_eq!(steps, [Step::Messages(8), gap(9, 3), Step::Messages(12)]);
    assert_eq!(code, Some(1), "a gap is a finding");
    let source = &summary["source"];
    assert_eq!(count(source, "gaps"), 1);
    assert_frames(source, [4, 0, 0, 0]);
    assert_messages(source, 4, 6);
}

#[test]
fn skipped_bytes_of_a_file_are_a_loss_in_their_place() {
    let message = |n: u64| block(&system_event(n));
    let mut bytes: Vec<u8> = (1..=8).flat_map(message).collect();
    let len = message(1).len();
    // Message 3 has a wrong length, and message 8 is cut off.
    bytes[2 * len + 1] += 1;
    bytes.pop();
    let (steps, code, summary) = stream_of(&bytes);
    let expected = [
        Step::Messages(2),
        unreadable(3),
        Step::Messages(7),
        unreadable(8),
    ];
    assert_eq!(steps, expected);
    assert_eq!(code, Some(1));
    let source = &summary["source"];
    assert_eq!(count(source, "malformed"), 2, "{source:#}");
    assert_eq!(count(source, "damaged_bytes"), 2 * len as u64 - 1);
    let channel = &summary["channels"][0];
    assert_eq!(count(channel, "source_messages_lost"), 2);
    assert_frames(source, [6, 0, 0, 0]);
    assert_messages(source, 6, 6);
}

/// Returns the record of a packet with these messages of one session, at a second.
fn packet(second: u64, line: u8, messages: std::ops::RangeInclusive<u64>) -> Vec<u8> {
    let first = *messages.start();
    let messages: Vec<_> = messages.map(system_event).collect();
    let payload = mold_packet(b"SESSION001", first, &messages);
    udp_frame(second * 1_000_000, [239, 1, 1, line], 5_000, &payload)
}

#[test]
fn damage_at_both_ends_of_a_capture_is_a_source_loss() {
    let damaged = frame(1, IPV4, &[0x45; 6]);
    let cut = packet(9, 1, 9..=9);
    let cut = &cut[..cut.len() - 1];
    let [one, three] = [packet(2, 1, 1..=2), packet(4, 1, 5..=6)];
    // A number tells that messages 3 and 4 are lost, so the damage in their place is no further loss.
    let bytes = [&PCAP_HEADER[..], &damaged, &one, &damaged, &three, cut].concat();
    let (steps, code, summary) = stream_of(&bytes);
    let expected = [
        unreadable(0),
        Step::Messages(2),
        gap(3, 2),
        Step::Messages(6),
        unreadable(7),
    ];
    assert_eq!(steps, expected);
    assert_eq!(code, Some(1));
    let source = &summary["source"];
    assert_frames(source, [2, 0, 0, 2]);
    assert_messages(source, 4, 6);
    assert_eq!(count(source, "malformed"), 2);
}

#[test]
fn short_message_of_a_sound_packet_is_a_loss_of_its_number() {
    let mut messages: Vec<_> = (1..=5).map(system_event).collect();
    messages[1].pop();
    messages[4].pop();
    let payload = mold_packet(b"SESSION001", 1, &messages);
    let first = udp_frame(1_000_000, [239, 1, 1, 1], 5_000, &payload);
    let bytes = [&PCAP_HEADER[..], &first, &packet(2, 1, 6..=7)].concat();
    let (steps, code, summary) = stream_of(&bytes);
    let lost = |from| Step::Lost {
        from,
        messages: 1,
        reason: SourceLossReason::Malformed,
    };
    let expected = [
        Step::Messages(1),
        lost(2),
        Step::Messages(4),
        lost(5),
        Step::Messages(7),
    ];
    assert_eq!(steps, expected);
    assert_eq!(code, Some(1));
    let source = &summary["source"];
    assert_eq!(count(source, "malformed"), 2, "{source:#}");
    assert_eq!(count(source, "gaps"), 0);
    assert_eq!(count(source, "messages_total"), 5);
    assert_eq!(count(&summary["channels"][0], "source_messages_lost"), 2);
}

#[test]
fn damage_that_another_line_covers_is_no_loss() {
    let damaged = frame(1, IPV4, &[0x45; 6]);
    let lines = [
        packet(2, 1, 1..=2),
        packet(3, 2, 1..=2),
        damaged,
        packet(4, 2, 3..=4),
    ];
    let bytes = [&PCAP_HEADER[..], &lines.concat()].concat();
    let (steps, _, summary) = stream_of(&bytes);
    assert_eq!(steps, [Step::Messages(4)]);
    let source = &summary["source"];
    assert_frames(source, [3, 0, 0, 1]);
    assert_messages(source, 6, 4);
}

#[test]
fn counts_of_a_capture_with_two_lines_balance() {
    let dns = udp_frame(10_500_000, [10, 0, 0, 9], 53, b"query");
    let frames = [
        packet(1, 1, 1..=2),
        packet(1, 2, 1..=2),
        frame(1, ARP, &[0; 28]),
        // Line 1 lacks 3 to 5, line 2 lacks 5 to 7.
        packet(2, 2, 3..=4),
        packet(3, 1, 6..=7),
        packet(4, 1, 8..=8),
        packet(4, 2, 8..=8),
        frame(5, IPV4, &[0x45; 6]),
        dns,
        packet(6, 1, 9..=9),
        packet(6, 2, 9..=9),
        // Message 5 comes late.
        packet(7, 1, 5..=5),
        packet(8, 1, 10..=10),
        packet(8, 2, 10..=10),
    ];
    let bytes = [&PCAP_HEADER[..], &frames.concat()].concat();
    let (_, code, summary) = stream_of(&bytes);
    assert_eq!(code, Some(1));
    let source = &summary["source"];
    assert_frames(source, [11, 1, 1, 1]);
    assert_messages(source, 15, 10);
    assert_eq!(count(source, "late"), 1);
}

#[test]
fn messages_that_differ_between_lines_are_counted() {
    let frames = |differing: &[usize]| {
        let mut messages: Vec<_> = (1..=4).map(system_event).collect();
        let lines = [1, 2].map(|line| {
            if line == 2 {
                for n in differing {
                    // The tracking number.
                    messages[*n][3] ^= 1;
                }
            }
            let payload = mold_packet(b"SESSION001", 3, &messages);
            udp_frame(2_000_000, [239, 1, 1, line], 5_000, &payload)
        });
        let lines = [packet(1, 1, 1..=2), packet(1, 2, 1..=2), lines.concat()];
        [&PCAP_HEADER[..], &lines.concat()].concat()
    };
    for (differing, conflicting) in [(&[][..], 0), (&[3], 1), (&[1, 2], 2)] {
        let (steps, code, summary) = stream_of(&frames(differing));
        assert_eq!(steps, [Step::Messages(6)]);
        assert_eq!(code, Some(i32::from(conflicting > 0)));
        let source = &summary["source"];
        assert_eq!(count(source, "conflicting"), conflicting, "{source:#}");
        assert_messages(source, 12, 6);
    }
}

#[test]
fn file_with_messages_left_out_is_not_whole() {
    let mut unknown = system_event(3);
    unknown[0] = b'z';
    let unknown = mold_packet(b"SESSION001", 3, &[unknown]);
    let odd = udp_frame(2_000_000, [239, 1, 1, 1], 5_000, &unknown);
    let (before, after) = (packet(1, 1, 1..=2), packet(3, 1, 4..=5));
    let (_, code, summary) = stream_of(&[&PCAP_HEADER[..], &before, &odd, &after].concat());
    let source = &summary["source"];
    assert_eq!(count(source, "unknown_messages"), 1, "{source:#}");
    assert_eq!((code, count(source, "faults")), (Some(1), 1));
}

#[test]
fn packets_of_no_feed_make_a_capture_not_whole() {
    let other = mold_packet(b"SESSION002", 1, &[system_event(1)]);
    let stray =
        |second: u64, payload: &[u8]| udp_frame(second * 1_000_000, [239, 1, 1, 1], 5_000, payload);
    let packets = [
        packet(1, 1, 1..=2),
        stray(2, &other),
        packet(3, 1, 3..=4),
        stray(4, b"junk"),
        packet(5, 1, 5..=6),
    ];
    let bytes = [&PCAP_HEADER[..], &packets.concat()].concat();
    let (steps, code, summary) = stream_of(&bytes);
    assert_eq!(steps, [Step::Messages(6)]);
    let source = &summary["source"];
    assert_frames(source, [3, 0, 2, 0]);
    let counts = ["foreign", "malformed", "faults"].map(|name| count(source, name));
    assert_eq!((code, counts), (Some(1), [2, 0, 1]), "{source:#}");
}

#[test]
fn rest_of_a_file_behind_an_error_is_a_source_loss() {
    let messages: Vec<u8> = (1..=100).flat_map(|n| block(&system_event(n))).collect();
    let len = messages.len() as u16;
    // A gzip member of one stored block, with a wrong checksum.
    let mut gzip = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff, 1];
    gzip.extend([len, !len].map(u16::to_le_bytes).concat());
    gzip.extend(messages);
    gzip.extend([0, u32::from(len)].map(u32::to_le_bytes).concat());
    let (steps, code, summary) = stream_of(&gzip);
    assert_eq!(code, Some(1));
    let source = &summary["source"];
    assert_eq!(count(source, "errors"), 1);
    let published = count(source, "messages_total");
    let expected = [Step::Messages(published), unreadable(published + 1)];
    assert_eq!(steps, expected);
}
