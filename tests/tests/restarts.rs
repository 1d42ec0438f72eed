//! A publisher that is killed and started again goes on in its epoch where its rings outlived it, and
//! nothing that was sealed is lost, given twice or in another order; where they did not, a new epoch
//! begins and everybody is told why. `make restarts ROUNDS=100` has more of it than a test run.

mod common;

use std::net::TcpListener;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use common::{Follower, Publisher, channel, drive, end, endless, free_group, number, one_channel};
use serde_json::{Value, json};
use tempfile::TempDir;
use tickcast_reliability::ring_layout::offset;
use tickcast_subscriber::faults::FaultConfig;
use tickcast_subscriber::{EpochReason, Event, StreamEvent};

/// A publisher's config that keeps its rings and its address.
struct Kept {
    config: Value,
    /// On tmpfs, with the ring of channel "all".
    rings: TempDir,
    _state: TempDir,
}

impl Kept {
    fn new(messages_per_s: u64, followers: u32) -> Self {
        let rings = tempfile::tempdir_in("/dev/shm").expect("a folder in memory");
        let state = tempfile::tempdir().expect("a folder");
        // Nobody else asks for it before the publisher does.
        let free = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
        let mut config = one_channel(&[free_group()], endless(messages_per_s, followers));
        config["control"] = json!(free.expect("a port"));
        config["ring_dir"] = json!(rings.path());
        config["state_dir"] = json!(state.path());
        Self {
            config,
            rings,
            _state: state,
        }
    }

    fn start(&self) -> Publisher {
        Publisher::start(&self.config)
    }

    fn ring(&self) -> PathBuf {
        self.rings.path().join("test.all.ring")
    }

    /// What the log of a publisher that starts now says, and the epoch that it publishes in.
    fn started(&self) -> (Publisher, String, u64) {
        let publisher = self.start();
        let log = publisher.log();
        let epoch = log.split("epoch=").nth(1).expect("the log names the epoch");
        let digits: String = epoch.chars().take_while(char::is_ascii_digit).collect();
        let epoch = digits.parse().expect("a number");
        (publisher, log, epoch)
    }
}

fn follower(publisher: &Publisher, dropped: f64) -> Follower {
    let faults = FaultConfig {
        seed: 3,
        drop: dropped,
        ..FaultConfig::default()
    };
    Follower::new(publisher.subscriber().channel("all").faults(faults))
}

fn records(follower: &Follower) -> u64 {
    follower.records.values().sum()
}

/// Until each has so many records more.
fn get_on(followers: &mut [Follower], more: u64) {
    let least: Vec<u64> = followers.iter().map(|it| records(it) + more).collect();
    drive(followers, |all| {
        all.iter()
            .zip(&least)
            .all(|(it, least)| records(it) >= *least)
    });
}

#[test]
fn a_publisher_that_is_killed_goes_on_in_its_epoch_and_nothing_is_lost_or_doubled() {
    let rounds: u64 =
        std::env::var("TICKCAST_RESTARTS").map_or(5, |n| n.parse().expect("a number"));
    let kept = Kept::new(4_000, 2);
    let mut publisher = kept.start();
    let mut followers = [follower(&publisher, 0.0), follower(&publisher, 0.01)];
    let mut longest = 0;
    for round in 0..rounds {
        // Not always at the same place: also before anything, and right after the last restart.
        get_on(&mut followers, round * 977 % 2_000);
        let began = Instant::now();
        publisher.kill();
        publisher = kept.start();
        let log = publisher.log();
        assert!(log.contains("goes on in the epoch of before"), "{log}");
        get_on(&mut followers, 1);
        longest = longest.max(began.elapsed().as_millis());
        if round % 10 == 9 {
            eprintln!("{} restarts, the longest black-out {longest} ms", round + 1);
        }
    }
    end(&publisher, &mut followers);
    let (status, summary) = publisher.finish();
    assert!(status.success());
    let published = channel(&summary);
    for follower in &followers {
        assert_eq!(published["digest"], json!(follower.digest(1)));
        assert!(follower.losses.is_empty(), "{:?}", follower.losses);
        assert!(!follower.saw(|event| matches!(event, Event::EpochChanged { .. })));
        follower.assert_balanced();
    }
    assert!(
        number(published, "published_records") < records(&followers[0]),
        "most was sealed before"
    );
    println!(
        "{rounds} restarts, {} records, the longest black-out {longest} ms",
        records(&followers[0])
    );
}

#[test]
fn a_new_epoch_begins_where_the_ring_is_not_whole_or_not_ours_and_subscribers_are_told() {
    let mut kept = Kept::new(2_000, 1);
    let (mut publisher, log, mut epoch) = kept.started();
    assert!(
        log.contains("the first epoch begins: no ring of channel all was kept"),
        "{log}"
    );
    let mut followers = [follower(&publisher, 0.0)];
    let write = |path: &Path, at: usize, bytes: &[u8]| {
        let file = std::fs::OpenOptions::new().write(true).open(path);
        file.and_then(|file| file.write_all_at(bytes, at as u64))
            .expect("the ring is written");
    };
    type Spoil<'a> = &'a dyn Fn(&mut Kept);
    let spoilt: [(Spoil<'_>, &str); 5] = [
        (
            &|kept| write(&kept.ring(), offset::BOOT_ID, &[0xab; 16]),
            "the host was started anew since",
        ),
        (
            &|kept| std::fs::remove_file(kept.ring()).expect("it is there"),
            "no ring of channel all was kept",
        ),
        (
            &|kept| write(&kept.ring(), 4096 + 1472 + 64, &[0xee; 8]),
            "channel all: the slot of sequence 1 does not verify",
        ),
        (
            &|kept| kept.config["inputs"][0]["seed"] = json!(8),
            "the inputs are configured otherwise than before",
        ),
        (
            &|kept| kept.config["channels"][0]["slots"] = json!(16_384),
            "no ring of channel all was kept",
        ),
    ];
    for (spoil, why) in spoilt {
        get_on(&mut followers, 500);
        publisher.kill();
        spoil(&mut kept);
        let before = epoch;
        let log;
        (publisher, log, epoch) = kept.started();
        assert!(log.contains(&format!("a new epoch begins: {why}")), "{log}");
        assert!(epoch > before, "{why}");
        drive(&mut followers, |all| {
            all[0].last(1).is_some_and(|at| at.epoch.0 == epoch)
        });
        let told = followers[0]
            .events
            .iter()
            .rev()
            .find_map(|event| match event {
                Event::Stream(StreamEvent::EpochOpened {
                    reason, previous, ..
                }) => Some((*reason, previous.0)),
                _ => None,
            });
        assert_eq!(told, Some((EpochReason::Restart, before)), "{why}");
    }
    // And of one that was ended nobody goes on either.
    end(&publisher, &mut followers);
    publisher.finish();
    let (_publisher, log, again) = kept.started();
    assert!(
        log.contains("the session of before was ended") && again > epoch,
        "{log}"
    );
}
