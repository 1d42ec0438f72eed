//! A standby whose input is in another session of its venue than the publisher's, as processes:
//!
//! - Equal messages relate the positions of both sessions.
//! - Different messages prevent a promotion.
//! - If nothing could be compared, every received message is published.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::Path;

use super::pair::{following, get_on, pair, promote, records, refusal, reported, until_it_mirrors};
use serde_json::{Value, json};
use tempfile::TempDir;
use tickcast_publisher::record::{RType, RecordHeader, TradeMsg};
use tickcast_subscriber::SourcePosition;
use tickcast_subscriber::{Event, StreamEvent};
use tickcast_test_support::{Follower, Publisher, channel, drive, end, number};
use xxhash_rust::xxh3::Xxh3;

/// Kinds of frames (docs/PROTOCOL.md §12).
const MESSAGE: u16 = 1;
const LOST: u16 = 2;
const SESSION: u16 = 4;

/// The venue's handler for the publisher or the standby.
struct Handler(UnixStream);

impl Handler {
    fn frame(&mut self, what: u16, sequence: u64) {
        let mut bytes = vec![6, 0xf0];
        for short in [1, what, 0] {
            bytes.extend(short.to_le_bytes());
        }
        bytes.extend(sequence.to_le_bytes());
        bytes.extend(1_u64.to_le_bytes());
        self.0.write_all(&bytes).expect("it is read");
    }

    /// Sends a message of a session. All handlers in the session send the same bytes.
    fn says(&mut self, session: u64, sequence: u64) {
        self.frame(MESSAGE, sequence);
        let bytes = trade(session, sequence);
        self.0.write_all(bytes.as_ref()).expect("it is read");
    }
}

fn trade(session: u64, sequence: u64) -> TradeMsg {
    TradeMsg {
        hd: RecordHeader::new::<TradeMsg>(RType::Mbp0 as u8, 1, 7, session << 40 | sequence),
        size: sequence as u32,
        ..TradeMsg::default()
    }
}

/// Returns the digest of a follower with these messages of these sessions.
fn digest(all: impl Iterator<Item = (u64, u64)>) -> String {
    let mut digest = Xxh3::new();
    for (session, sequence) in all {
        let bytes = trade(session, sequence);
        digest.update(bytes.as_ref());
    }
    format!("{:032x}", digest.digest128())
}

/// Publisher and standby with a handler each, and a follower of both.
struct Setting {
    a: Publisher,
    b: Publisher,
    of_a: Handler,
    of_b: Handler,
    followers: Vec<Follower>,
    _folder: TempDir,
}

impl Setting {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = |name: &str| folder.path().join(name);
        let input = |socket: &Path| json!([{ "source": 1, "kind": "records", "socket": socket, "channel": "all" }]);
        let (a, b) = pair(1, |first, second| {
            first["inputs"] = input(&socket("a"));
            second["inputs"] = input(&socket("b"));
        });
        let connect = |name| Handler(UnixStream::connect(socket(name)).expect("it listens"));
        let (of_a, of_b) = (connect("a"), connect("b"));
        let mut followers = following(&a, &b, &[None]);
        drive(&mut followers, |_| a.joined() == 2);
        Self {
            a,
            b,
            of_a,
            of_b,
            followers,
            _folder: folder,
        }
    }

    /// Sends messages from `from` on until `done` accepts the standby's status. The follower gets them
    /// one by one and the standby mirrors them. Returns the last sequence.
    fn say_until(
        &mut self,
        from: u64,
        mut say: impl FnMut(&mut Handler, &mut Handler, u64),
        mut done: impl FnMut(&Value) -> bool,
    ) -> u64 {
        let mut sequence = from;
        loop {
            say(&mut self.of_a, &mut self.of_b, sequence);
            get_on(&mut self.followers, 1);
            if done(&reported(&self.b)) {
                break;
            }
            sequence += 1;
        }
        drive(&mut self.followers, |all| {
            let delivered = all[0].subscriber.channels()[0].delivered;
            number(&reported(&self.b)["channels"][0], "last") >= delivered.0
        });
        sequence
    }

    fn agreement(reported: &Value) -> &Value {
        &reported["sources"][0]["publisher"]
    }

    /// Returns the source losses that the follower was notified of.
    fn lost(&self) -> Vec<(SourcePosition, u64)> {
        let events = self.followers[0].events.iter();
        let lost = events.filter_map(|event| match event {
            Event::Stream(StreamEvent::SourceLost { from, messages, .. }) => {
                Some((*from, *messages))
            }
            _ => None,
        });
        lost.collect()
    }
}

/// Returns how many messages a promoted standby counts as published again.
fn published_again(standby: &Publisher) -> u64 {
    let metrics = standby.metrics_now();
    let is_it =
        |line: &&str| line.contains("published_again_messages_total") && !line.starts_with('#');
    let line = metrics.lines().find(is_it);
    let value = line.and_then(|line| line.rsplit(' ').next()?.parse().ok());
    value.unwrap_or_else(|| panic!("{line:?}"))
}

#[test]
fn standby_with_fewer_sessions_counts_as_publisher() {
    let mut it = Setting::new();
    for sequence in 1..=20 {
        it.of_a.says(1, sequence);
    }
    it.of_a.frame(SESSION, 1);
    get_on(&mut it.followers, 20);
    let agrees = json!({ "agrees": { "ordinals": 1 } });
    let both = |a: &mut Handler, b: &mut Handler, sequence| {
        a.says(2, sequence);
        b.says(2, sequence);
    };
    let last = it.say_until(1, both, |reported| *Setting::agreement(reported) == agrees);
    until_it_mirrors(&mut it.followers, &it.b);
    it.a.kill();
    let more = last + 50;
    (last + 1..=last + 20).for_each(|sequence| it.of_b.says(2, sequence));
    let (status, promoted) = promote(&mut it.followers, &it.b, false);
    assert_eq!(status, 200, "{promoted}\n{}", it.b.log());
    (last + 21..=more).for_each(|sequence| it.of_b.says(2, sequence));
    it.of_b.frame(LOST, more + 1);
    drive(&mut it.followers, |all| {
        records(&all[0]) >= 20 + more
            && all[0].saw(|event| matches!(event, Event::Stream(StreamEvent::SourceLost { .. })))
    });
    assert_eq!(
        it.lost(),
        [(SourcePosition::new(1, more + 1), 1)],
        "the session is its publisher's second"
    );
    end(&it.b, &mut it.followers);
    let follower = &it.followers[0];
    follower.assert_balanced();
    assert!(follower.losses.is_empty(), "{:?}", follower.losses);
    let first = (1..=20).map(|sequence| (1, sequence));
    let second = (1..=more).map(|sequence| (2, sequence));
    assert_eq!(follower.digest(1), digest(first.chain(second)));
}

#[test]
fn standby_of_other_session_needs_force() {
    let mut it = Setting::new();
    it.of_b.frame(SESSION, 1);
    let others = |a: &mut Handler, b: &mut Handler, sequence| {
        a.says(1, sequence);
        b.says(2, sequence);
    };
    let mut last = it.say_until(1, others, |reported| {
        *Setting::agreement(reported) == "differs"
    });
    let metrics = it.b.metrics_now();
    assert!(
        metrics.contains("tickcast_standby_differing_source 1"),
        "{metrics}"
    );
    let why = refusal(&mut it.followers, &it.b, false);
    assert!(
        why.contains("source 1 delivers other messages here than the publisher publishes"),
        "{why}"
    );
    // The publisher was not asked to pause, and goes on.
    for _ in 0..10 {
        last += 1;
        others(&mut it.of_a, &mut it.of_b, last);
    }
    get_on(&mut it.followers, 10);
    it.a.kill();
    let why = refusal(&mut it.followers, &it.b, false);
    assert!(why.contains("A forced promotion"), "{why}");
    assert_eq!(number(&reported(&it.b)["channels"][0], "holes"), 0);
    let (status, promoted) = promote(&mut it.followers, &it.b, true);
    assert_eq!(
        (status, &promoted["reason"]),
        (200, &json!("forced")),
        "{promoted}"
    );
    drive(&mut it.followers, |all| {
        all[0].saw(|event| matches!(event, Event::Stream(StreamEvent::SourceLost { .. })))
    });
    let lost: Vec<_> = it.lost().iter().map(|(_, messages)| *messages).collect();
    assert_eq!(lost, [u64::MAX], "nobody knows how many");
    assert_eq!(published_again(&it.b), 0);
    // From here on the standby publishes its input.
    (last + 1..=last + 10).for_each(|sequence| it.of_b.says(2, sequence));
    get_on(&mut it.followers, 10);
    end(&it.b, &mut it.followers);
    let (ended, summary) = it.b.finish();
    assert_eq!(ended.code(), Some(1), "a loss: {summary}");
    assert_eq!(number(channel(&summary), "published_messages"), 10);
    let first = (1..=last).map(|sequence| (1, sequence));
    let second = (last + 1..=last + 10).map(|sequence| (2, sequence));
    assert_eq!(it.followers[0].digest(1), digest(first.chain(second)));
}

#[test]
fn uncompared_session_is_published_whole() {
    let mut it = Setting::new();
    // Far behind the publisher's position, so no message is in both inputs.
    it.of_b.frame(SESSION, 1);
    (1..=30).for_each(|sequence| it.of_b.says(2, sequence + 1_000));
    let of_a = |a: &mut Handler, _: &mut Handler, sequence| a.says(1, sequence);
    let has_all = |reported: &Value| {
        number(reported, "kept_messages") == 30 && reported["state"] == "mirroring"
    };
    let last = it.say_until(1, of_a, has_all);
    assert_eq!(*Setting::agreement(&reported(&it.b)), "unknown");
    it.a.kill();
    let (status, promoted) = promote(&mut it.followers, &it.b, false);
    assert_eq!(status, 200, "{promoted}\n{}", it.b.log());
    drive(&mut it.followers, |all| records(&all[0]) >= last + 30);
    assert!(it.b.log().contains("could be compared"), "{}", it.b.log());
    // Messages from here on are published for the first time.
    (31..=40).for_each(|sequence| it.of_b.says(2, sequence + 1_000));
    drive(&mut it.followers, |all| records(&all[0]) >= last + 40);
    assert_eq!(published_again(&it.b), 30);
    end(&it.b, &mut it.followers);
    let follower = &it.followers[0];
    assert!(follower.losses.is_empty() && it.lost().is_empty());
    let first = (1..=last).map(|sequence| (1, sequence));
    let second = (1..=40).map(|sequence| (2, sequence + 1_000));
    assert_eq!(follower.digest(1), digest(first.chain(second)));
}
