//! Faults of some subscribers must not hurt the others, and are reported to those affected: a stopped
//! process, a forgotten membership, a cut line.

use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tickcast_subscriber::ChannelId;
use tickcast_subscriber::{ChannelBuilder, Event, LineId, LineOverride, Subscriber};
use tickcast_test_support::{
    Follower, Publisher, binary, channel, drive, drive_for, end, endless, free_group, number,
    one_channel, signal,
};

#[test]
fn forgotten_membership_is_found_and_rejoined() {
    let publisher = Publisher::start(&one_channel(&[free_group()], endless(5_000, 1)));
    let mut followers = [Follower::new(publisher.subscriber().channel("all"))];
    drive(&mut followers, |all| {
        all[0].records.values().sum::<u64>() > 5_000
    });
    let dropped = followers[0]
        .subscriber
        .drop_membership(ChannelId(1), LineId(0));
    assert!(dropped.is_ok());
    drive(&mut followers, |all| {
        all[0].saw(|e| *e == Event::MulticastLost)
    });
    drive(&mut followers, |all| {
        all[0].saw(|e| *e == Event::MulticastRestored)
    });
    end(&publisher, &mut followers);
    let (_, summary) = publisher.finish();
    followers[0].assert_balanced();
    assert!(followers[0].losses.is_empty(), "nothing lost");
    assert_eq!(followers[0].digest(1), channel(&summary)["digest"]);
    assert!(followers[0].counters(0).repairs_received.get() > 0);
}

/// Datagrams of a second publisher on the group are dropped, and the application gets an event.
#[test]
fn second_publisher_on_group_raises_an_event() {
    let config = one_channel(&[free_group()], endless(5_000, 1));
    let publisher = Publisher::start(&config);
    let mut other = config;
    other["inputs"][0]["wait_for_subscribers"] = 0.into();
    let other = Publisher::start_with(&other, &["--force"]);
    let mut followers = [Follower::new(publisher.subscriber().channel("all"))];
    drive(&mut followers, |all| {
        all[0].saw(|event| matches!(event, Event::OtherPublisher { datagrams } if *datagrams > 2))
    });
    drop(other);
    end(&publisher, &mut followers);
    let (_, summary) = publisher.finish();
    assert_eq!(followers[0].digest(1), channel(&summary)["digest"]);
}

#[test]
fn stopped_process_hurts_only_itself() {
    let publisher = Publisher::start(&one_channel(&[free_group()], endless(10_000, 2)));
    let folder = tempfile::tempdir().expect("a folder");
    let summary_path = folder.path().join("stopped.json");
    let mut stopped = Command::new(binary("tickcast"))
        .args([
            "listen",
            "--connect",
            &publisher.control.to_string(),
            "--channel",
            "all",
        ])
        .args(["--format", "count", "--digest", "--summary"])
        .arg(&summary_path)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the listener starts");
    let mut followers = [Follower::new(publisher.subscriber().channel("all"))];
    drive(&mut followers, |all| {
        all[0].records.values().sum::<u64>() > 5_000
    });
    signal(stopped.id(), "STOP");
    drive_for(&mut followers, Duration::from_secs(2));
    signal(stopped.id(), "CONT");
    end(&publisher, &mut followers);
    let status = stopped.wait().expect("the listener ends");
    let (_, summary) = publisher.finish();
    let others = followers[0].counters(0);
    assert_eq!(followers[0].digest(1), channel(&summary)["digest"]);
    assert_eq!(others.missing_lost.get(), 0, "the others see nothing");
    let text = std::fs::read_to_string(summary_path).expect("its summary");
    let own: Value = serde_json::from_str(&text).expect("JSON");
    let (delivered, lost) = (
        number(&own, "delivered_records"),
        number(&own, "lost_records"),
    );
    assert_eq!(
        delivered + lost,
        number(&summary, "published_records"),
        "{own}"
    );
    assert_eq!(status.success(), lost == 0, "the exit status tells loss");
}

/// Number of cuts of a relay: more than a test waits for.
const CUTS: u64 = 200;

/// A relay process for one line that cuts it for half a second, every three seconds.
struct Cut(std::process::Child);

impl Cut {
    /// Starts a relay whose first cut begins this long after its first datagram.
    fn start(from: std::net::SocketAddrV4, to: std::net::SocketAddrV4, first: Duration) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let (plan, ready) = (
            folder.path().join("plan.json"),
            folder.path().join("ready.json"),
        );
        let cut = |n| {
            let at = first.as_nanos() as u64 + n * 3_000_000_000;
            json!({ "partition": { "at": at, "lasts": 500_000_000u64 } })
        };
        let script: Vec<_> = (0..CUTS).map(cut).collect();
        std::fs::write(&plan, json!({ "script": script }).to_string()).expect("the plan");
        let child = Command::new(binary("tickcast"))
            .args([
                "inject",
                "--from",
                &from.to_string(),
                "--to",
                &to.to_string(),
                "--plan",
            ])
            .arg(&plan)
            .arg("--ready-file")
            .arg(&ready)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the relay starts");
        let began = std::time::Instant::now();
        while !ready.exists() {
            assert!(
                began.elapsed() < tickcast_test_support::PATIENCE,
                "the relay never became ready"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        Self(child)
    }
}

impl Drop for Cut {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn silent_welcoming_publisher_does_not_block_next() {
    let publisher = Publisher::start(&one_channel(&[free_group()], endless(5_000, 1)));
    // Like a process that hangs: the system accepts connections for it.
    let mute = TcpListener::bind("127.0.0.1:0").expect("an address");
    let at = mute.local_addr().expect("its address");
    let subscriber = Subscriber::builder([at.to_string(), publisher.control.to_string()])
        .join_timeout(Duration::from_millis(50))
        .channel("all");
    let mut followers = [Follower::new(subscriber)];
    drive(&mut followers, |all| {
        all[0].records.values().sum::<u64>() > 1_000
    });
    end(&publisher, &mut followers);
    let (_, summary) = publisher.finish();
    assert_eq!(followers[0].digest(1), channel(&summary)["digest"]);
}

#[test]
fn alternating_line_cuts_lose_nothing() {
    let (a, b) = (free_group(), free_group());
    let (a_relayed, b_relayed) = (free_group(), free_group());
    // The rate is low, so that a relay's socket holds all datagrams even if it is not scheduled for
    // seconds.
    let publisher = Publisher::start(&one_channel(&[a, b], endless(200, 1)));
    // Both clocks begin with the first datagram, so the cuts do not overlap.
    let _line_a = Cut::start(a, a_relayed, Duration::from_millis(1_000));
    let _line_b = Cut::start(b, b_relayed, Duration::from_millis(2_500));
    let sender = std::net::Ipv4Addr::LOCALHOST;
    // Relays are separate processes, so one may lag the other by a scheduler's turn.
    let config = tickcast_subscriber::ReceiverConfig {
        line_skew_us: 1_000_000,
        ..tickcast_subscriber::ReceiverConfig::default()
    };
    let lines = ChannelBuilder::new("all")
        .config(config)
        .line_override(LineOverride {
            group: a_relayed,
            sender,
        })
        .line_override(LineOverride {
            group: b_relayed,
            sender,
        });
    let mut followers = [Follower::new(publisher.subscriber().channel(lines))];
    // A line that is cut while the other's relay stalls is not reported as down, but the next cut may be.
    drive(&mut followers, |all| {
        [LineId(0), LineId(1)].into_iter().all(|line| {
            all[0].saw(|e| *e == Event::LineDown(line)) && all[0].saw(|e| *e == Event::LineUp(line))
        })
    });
    end(&publisher, &mut followers);
    let (_, summary) = publisher.finish();
    let follower = &followers[0];
    follower.assert_balanced();
    assert!(follower.losses.is_empty(), "{:?}", follower.losses);
    assert_eq!(follower.digest(1), channel(&summary)["digest"]);
    assert_eq!(follower.counters(0).missing_lost.get(), 0);
}
