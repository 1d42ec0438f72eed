//! Strangers who make others write log lines: the lines stay few, and none is forged.

use std::io::Write;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use serde_json::Value;
use tickcast_reliability::control::{Message, Progress};
use tickcast_reliability::record::{MboMsg, RecordBatch};
use tickcast_reliability::types::{Nanos, RecordNumber, Sequence};
use tickcast_reliability::wire::Kind;
use tickcast_test_support::{
    Follower, Publisher, channel, drive, endless, free_group, one_channel,
};

use crate::hostile::{Peer, join_frame, join_frame_of, send_from};
use crate::hostile_publisher::{Listener, assert_clean, assert_whole, honest};
use crate::impostor::forge;

/// A name that forges a line and clears the screen, where it is written as it is.
const NAME: &str = "a\nERROR forged\r\x1b[2J\u{202e}";

/// Returns the most lines of a log in this time: some bursts, and what call sites may add each second.
const fn lines_max(since: Duration) -> usize {
    1_500 + 20 * since.as_secs() as usize
}

#[test]
fn hostile_names_and_reconnects_leave_the_log_short_and_true() {
    const REFUSALS: usize = 2_000;
    let began = Instant::now();
    let (publisher, mut followers) = honest();
    let mut named = Peer::connect_from(Ipv4Addr::new(127, 0, 0, 2), &publisher);
    named.0.write_all(&join_frame(NAME)).expect("written");
    let welcome = named.hear(|message| match message {
        Message::Welcome(welcome) => welcome.channels[0].epoch,
        other => panic!("{other:?}"),
    });
    let epoch = welcome.expect("a name of any characters is welcome");
    let long = "\n".repeat(5_000);
    for n in 0..REFUSALS {
        // Each address has a place for its connection, and lines of its own.
        let address = Ipv4Addr::new(127, 0, 0, 3 + (n % 8) as u8);
        let mut peer = Peer::connect_from(address, &publisher);
        let name = if n % 2 == 0 { NAME } else { &*long };
        let refused = join_frame_of(name, NAME);
        peer.0.write_all(&refused).expect("written");
        assert!(peer.is_closed());
        // The joined one falls behind and catches up, and claims losses.
        named.send(
            1,
            &Message::Progress(Progress {
                epoch,
                sequence: Sequence(n as u64 % 2 * u64::MAX / 2),
                lost_records: n as u64,
                heard: Sequence(u64::MAX),
                sent_at: Nanos(n as u64),
                read_bytes: 0,
            }),
        );
        followers[0].poll();
    }
    drive(&mut followers, |_| {
        publisher.metric("joins_rejected_total") >= REFUSALS as u64
    });
    for page in ["/metrics", "/status"] {
        let (status, text) = publisher.get(page);
        assert_eq!(status, 200);
        assert!(text.contains("forged"), "{page} names the subscriber");
        let foreign = text.chars().find(|c| c.is_control() && *c != '\n');
        assert_eq!(foreign, None, "{page}");
        assert!(!text.contains("\nERROR forged"), "{page}");
    }
    let log = publisher.log();
    assert!(log.contains("forged"), "{log}");
    assert_clean(&log);
    let (lines, lines_max) = (log.lines().count(), lines_max(began.elapsed()));
    assert!(lines < lines_max, "{lines} lines, of {lines_max}");
    let is_own = |line: &str| line.starts_with("20");
    assert!(log.lines().all(is_own), "each line begins with its time");
    let longest = log.lines().map(str::len).max();
    assert!(longest < Some(8_192), "a line of {longest:?} bytes");
    named.send(0, &Message::Leave);
    assert_whole(publisher, &mut followers);
}

/// Returns the number of forged datagrams without a line of their own, by the sums in the log.
fn suppressed(log: &str) -> u64 {
    let sums = log.lines().filter_map(|line| {
        let number = line
            .strip_suffix(" more events of kind fencing_violation came too fast for a line each")?;
        number.parse::<u64>().ok()
    });
    sums.sum()
}

#[test]
fn forged_old_datagrams_flood_no_terminal_and_change_nothing() {
    const PART: u64 = 100;
    const EVENTS: u64 = 5_000;
    let began = Instant::now();
    let group = free_group();
    let publisher = Publisher::start(&one_channel(&[group], endless(5_000, 2)));
    let folder = tempfile::tempdir().expect("a folder");
    let summary_of = folder.path().join("summary.json");
    let path = summary_of.display().to_string();
    let arguments = ["--digest", "--summary", &path];
    let mut victim = Listener::start(folder.path(), publisher.control, &arguments);
    let mut followers = [Follower::new(publisher.subscriber().channel("all"))];
    // Both have delivered what the forged datagrams repeat, by their own reports.
    drive(&mut followers, |_| {
        let metrics = publisher.metrics();
        let reports = metrics
            .lines()
            .filter(|line| line.starts_with("tickcast_publisher_subscriber_sequence{"));
        let sequences = reports.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
        sequences.filter(|sequence| *sequence > 2 * PART).count() == 2
    });
    let epoch = followers[0].subscriber.channels()[0].epoch;
    let mut batch = RecordBatch::default();
    for round in 1.. {
        batch.clear();
        batch.put(&MboMsg {
            order_id: round,
            ..MboMsg::default()
        });
        let old = (1..=PART).map(|n| {
            let at = (epoch, Sequence(n), RecordNumber(n));
            forge(Kind::Data, at, 1, batch.bytes())
        });
        let received = followers[0].counters(0).received_datagrams.get();
        send_from(Ipv4Addr::LOCALHOST, group, &old.collect::<Vec<_>>());
        drive(&mut followers, |all| {
            all[0].counters(0).received_datagrams.get() >= received + PART
        });
        // The victim has seen so many: each has a line, or is in a sum.
        let log = victim.log();
        if log.lines().count() as u64 + suppressed(&log) > EVENTS {
            break;
        }
    }
    publisher.terminate();
    drive(&mut followers, |all| all[0].subscriber.ended());
    drive(&mut followers, |_| {
        victim.child.try_wait().expect("it can be asked").is_some()
    });
    let log = victim.log();
    let text = std::fs::read_to_string(summary_of).expect("its summary");
    let summary: Value = serde_json::from_str(&text).expect("JSON");
    let violations = summary["events"]["fencing_violation"].as_u64();
    assert!(violations > Some(EVENTS / 2), "{violations:?} of the flood");
    let (lines, lines_max) = (log.lines().count(), lines_max(began.elapsed()));
    assert!(lines < lines_max, "{lines} lines, of {lines_max}");
    assert!(suppressed(&log) > EVENTS / 2);
    let (status, of_publisher) = publisher.finish();
    assert!(status.success(), "{of_publisher}");
    let digest = &channel(&of_publisher)["digest"];
    assert_eq!(&followers[0].digest(1), digest);
    assert!(text.contains(digest.as_str().expect("a digest")), "{text}");
    followers[0].assert_balanced();
    assert!(followers[0].losses.is_empty());
}
