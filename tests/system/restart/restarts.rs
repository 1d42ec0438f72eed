//! A publisher that is killed and restarted. If its rings survived, it continues its epoch: no sealed
//! record is lost, delivered twice or out of order. If they did not, a new epoch begins, and every
//! subscriber gets the reason. The decoder keeps its state across the kill: a subscriber's book ends
//! equal to the venue's. `make restarts ROUNDS=100` runs longer than a test run.

use std::collections::BTreeMap;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::time::{Duration, Instant};

use super::kept::{Kept, authenticated};
use serde_json::{Value, json};
use tickcast_feeds::simulator::{Simulator, SimulatorConfig};
use tickcast_reliability::ring::offset;
use tickcast_subscriber::faults::FaultConfig;
use tickcast_subscriber::record::{Action, MboMsg};
use tickcast_subscriber::{EpochReason, Event, Item, StreamEvent, Subscriber};
use tickcast_test_support::{
    Follower, PATIENCE, Publisher, channel, drive, drive_to_end, end, number,
};

/// Signal for an access to memory that no longer exists, on Linux.
const SIGBUS: i32 = 7;

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

/// Polls until each follower has `more` records more.
fn get_on(followers: &mut [Follower], more: u64) {
    let least: Vec<u64> = followers.iter().map(|it| records(it) + more).collect();
    drive(followers, |all| {
        all.iter()
            .zip(&least)
            .all(|(it, least)| records(it) >= *least)
    });
}

/// Returns the number of kills.
fn rounds() -> u64 {
    std::env::var("TICKCAST_RESTARTS").map_or(5, |n| n.parse().expect("a number"))
}

#[test]
fn killed_publisher_continues_without_loss_or_double() {
    let rounds = rounds();
    let kept = Kept::new(4_000, 2);
    let mut publisher = kept.start();
    let mut followers = [follower(&publisher, 0.0), follower(&publisher, 0.01)];
    let mut longest = 0;
    for round in 0..rounds {
        // Kill at varying points, also before any record, and right after the last restart.
        get_on(&mut followers, round * 977 % 2_000);
        let began = Instant::now();
        publisher.kill();
        publisher = kept.start();
        let log = publisher.log();
        assert!(log.contains("continues the previous epoch"), "{log}");
        get_on(&mut followers, 1);
        longest = longest.max(began.elapsed().as_millis());
        if round % 10 == 9 {
            eprintln!("{} restarts, the longest black-out {longest} ms", round + 1);
        }
    }
    // An earlier end would stop the replay of what was sealed before, and leave no digest.
    drive(&mut followers, |_| {
        publisher.metric("published_records_total") > 0
    });
    end(&publisher, &mut followers);
    let (status, summary) = publisher.finish();
    assert!(status.success());
    let published = channel(&summary);
    for follower in &followers {
        assert!(follower.losses.is_empty(), "{:?}", follower.losses);
        assert!(!follower.saw(|event| matches!(event, Event::EpochChanged { .. })));
        assert_eq!(published["digest"], json!(follower.digest(1)));
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
fn killed_publisher_continues_with_other_keys() {
    let mut kept = Kept::new(4_000, 2);
    kept.config = authenticated(kept.config);
    let mut publisher = kept.start();
    let mut followers = [follower(&publisher, 0.0), follower(&publisher, 0.01)];
    for _ in 0..3 {
        get_on(&mut followers, 3_000);
        publisher.kill();
        publisher = kept.start();
        let log = publisher.log();
        assert!(log.contains("continues the previous epoch"), "{log}");
        get_on(&mut followers, 1);
    }
    // An earlier end would stop the replay of what was sealed before, and leave no digest.
    drive(&mut followers, |_| {
        publisher.metric("published_records_total") > 0
    });
    end(&publisher, &mut followers);
    let (status, summary) = publisher.finish();
    assert!(status.success());
    for follower in &followers {
        assert!(follower.losses.is_empty(), "{:?}", follower.losses);
        assert_eq!(channel(&summary)["digest"], json!(follower.digest(1)));
        follower.assert_balanced();
    }
}

/// An open order: whether it buys, its price in billionths, its shares.
type Order = (bool, i64, u32);

/// The venue of the book tests: number of messages, number of symbols, seed.
const VENUE: (u64, u16, u64) = (u32::MAX as u64, 20, 7);
const MESSAGES_PER_S: u64 = 4_000;

/// Calls `each` with the first messages of the venue.
fn venue(messages: u64, each: impl FnMut(&[u8])) {
    venue_of(VENUE.2, messages, each);
}

/// Calls `each` with the first messages of a market from this seed.
fn venue_of(seed: u64, messages: u64, mut each: impl FnMut(&[u8])) {
    let (all, symbols, _) = VENUE;
    let market = SimulatorConfig {
        symbols,
        messages: all,
        ..SimulatorConfig::default()
    };
    let mut simulator = Simulator::new(&market, seed).expect("a market");
    let mut left = messages;
    while let Some(packet) = simulator.next_packet() {
        // MoldUDP64: session, sequence and count, then each message after its length.
        let mut rest = packet.payload.get(20..).unwrap_or_default();
        while let [high, low, after @ ..] = rest {
            if left == 0 {
                return;
            }
            let (message, after) = after.split_at(u16::from_be_bytes([*high, *low]).into());
            each(message);
            (rest, left) = (after, left - 1);
        }
    }
}

/// Returns the venue's open orders after `messages` messages, computed from the ITCH 5.0 specification
/// alone.
fn open_at_the_venue(messages: u64) -> BTreeMap<u64, Order> {
    let mut open = BTreeMap::<u64, Order>::new();
    venue(messages, |m| {
        let word = |at: usize| u64::from_be_bytes(m[at..at + 8].try_into().expect("eight bytes"));
        let number = |at: usize| u32::from_be_bytes(m[at..at + 4].try_into().expect("four bytes"));
        let price = |at| i64::from(number(at)) * 100_000;
        match m[0] {
            b'A' | b'F' => drop(open.insert(word(11), (m[19] == b'B', price(32), number(20)))),
            b'E' | b'C' | b'X' => {
                let order = open.get_mut(&word(11)).expect("it is open");
                order.2 -= number(19);
                if order.2 == 0 {
                    open.remove(&word(11));
                }
            }
            b'D' => drop(open.remove(&word(11)).expect("it is open")),
            b'U' => {
                let (buys, ..) = open.remove(&word(11)).expect("it is open");
                open.insert(word(19), (buys, price(31), number(27)));
            }
            _ => {}
        }
    });
    open
}

/// A subscriber that keeps the open orders from its records.
struct Reader {
    subscriber: Subscriber,
    /// Each open order, with the life of the publisher that added it.
    open: BTreeMap<u64, (Order, u64)>,
    /// Number of kills of the publisher so far.
    life: u64,
    records: u64,
    /// Executions of orders that an earlier life added.
    of_before: u64,
    /// Sequence of the last venue message that gave a record.
    message: u64,
}

impl Reader {
    fn new(publisher: &Publisher) -> Self {
        let subscriber = publisher.subscriber().channel("all").build();
        Self {
            subscriber: subscriber.expect("the subscriber is built"),
            open: BTreeMap::new(),
            life: 0,
            records: 0,
            of_before: 0,
            message: 0,
        }
    }

    /// Polls until `done` returns `true`. Panics after [`PATIENCE`].
    fn follow(&mut self, done: &dyn Fn(&Self) -> bool) {
        let began = Instant::now();
        while !done(self) {
            let Self {
                subscriber,
                open,
                life,
                records,
                of_before,
                message,
            } = self;
            let polled = subscriber.poll(|item| match item {
                Item::Record(position, record) => {
                    *records += 1;
                    *message = position.source_position.sequence();
                    if let Some(record) = record.get::<MboMsg>() {
                        *of_before += u64::from(apply(open, record, *life));
                    }
                }
                Item::Event(_, event) => {
                    let is_bad = matches!(event, Event::Lost(_) | Event::EpochChanged { .. });
                    assert!(!is_bad, "{event}");
                }
            });
            if !polled.worked() {
                std::thread::sleep(Duration::from_micros(50));
            }
            assert!(
                began.elapsed() < PATIENCE,
                "record {} was the last",
                self.records
            );
        }
    }
}

/// Applies a record. Returns whether it executes an order that an earlier life of the publisher added.
fn apply(open: &mut BTreeMap<u64, (Order, u64)>, record: &MboMsg, life: u64) -> bool {
    let buys = record.side as u8 == b'B';
    match record.action().expect("an action") {
        Action::Add => {
            let order = (buys, record.price, record.size);
            let known = open.insert(record.order_id, (order, life));
            assert_eq!(known, None, "a reference is used once");
        }
        Action::Cancel => {
            let (order, _) = open.get_mut(&record.order_id).expect("it is open");
            assert_eq!(
                (order.0, order.1),
                (buys, record.price),
                "it knew the order"
            );
            order.2 = (order.2.checked_sub(record.size)).expect("no more than there is");
            if order.2 == 0 {
                open.remove(&record.order_id);
            }
        }
        Action::Fill => return open[&record.order_id].1 < life,
        _ => {}
    }
    false
}

/// Kills a publisher of this input repeatedly, and compares its subscriber's book with the venue's.
fn assert_its_book_is_the_venues(input: Value) {
    let kept = Kept::fed(input);
    let mut publisher = kept.start();
    let mut reader = Reader::new(&publisher);
    for round in 0..rounds() {
        let least = reader.records + 500 + round * 977 % 2_000;
        reader.follow(&|reader| reader.records >= least);
        publisher.kill();
        publisher = kept.start();
        let log = publisher.log();
        assert!(log.contains("continues the previous epoch"), "{log}");
        reader.life += 1;
    }
    let least = reader.records + 2_000;
    reader.follow(&|reader| reader.records >= least);
    publisher.terminate();
    reader.follow(&|reader| reader.subscriber.ended());
    let open = reader.open.iter().map(|(of, (order, _))| (*of, *order));
    let open: BTreeMap<u64, Order> = open.collect();
    assert!(
        open == open_at_the_venue(reader.message),
        "after {}",
        reader.message
    );
    assert!(reader.of_before > 100, "{} executions", reader.of_before);
    println!(
        "{} restarts, {} messages: {} orders are open, as at the venue; {} executions of orders from before a kill",
        rounds(),
        reader.message,
        open.len(),
        reader.of_before
    );
}

#[test]
fn simulated_book_matches_venue_after_kills() {
    let (messages, symbols, seed) = VENUE;
    assert_its_book_is_the_venues(json!({
        "source": 1,
        "kind": "simulator",
        "seed": seed,
        "symbols": symbols,
        "messages": messages,
        "pace": { "messages_per_s": MESSAGES_PER_S },
        "wait_for_subscribers": 1,
    }));
}

#[test]
fn recorded_day_book_matches_venue_after_kills() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("day");
    // More than even a slow machine reads by the end, because a file that ends early would fail the test.
    let day = recorded(VENUE.2, 200_000 + rounds() * 20_000);
    std::fs::write(&file, day).expect("the day is written");
    assert_its_book_is_the_venues(capture(&file));
}

/// Returns `messages` messages of a market from this seed, as a BinaryFILE.
fn recorded(seed: u64, messages: u64) -> Vec<u8> {
    let mut day = Vec::new();
    venue_of(seed, messages, |message| {
        day.extend((message.len() as u16).to_be_bytes());
        day.extend(message);
    });
    day
}

fn capture(file: &Path) -> Value {
    json!({
        "source": 1,
        "kind": "capture",
        "file": file,
        "format": "binary-file",
        "trade_date": "2019-01-30",
        "pace": { "messages_per_s": MESSAGES_PER_S },
        "wait_for_subscribers": 1,
    })
}

/// Returns whether the follower got an event for an unknown number of lost source messages.
fn was_told_of_a_loss(follower: &Follower) -> bool {
    follower.saw(|event| {
        matches!(
            event,
            Event::Stream(StreamEvent::SourceLost {
                messages: u64::MAX,
                ..
            })
        )
    })
}

#[test]
fn replaced_capture_opens_new_epoch_and_reports_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("day");
    let day = recorded(VENUE.2, 100_000);
    std::fs::write(&file, &day).expect("the day is written");
    let kept = Kept::fed(capture(&file));
    let (mut publisher, _, mut before) = kept.started();
    let mut followers = [follower(&publisher, 0.0)];
    // First a shortened file, then another file of the same length.
    for other in [day[..20_000].to_vec(), recorded(8, 100_000)] {
        get_on(&mut followers, 500);
        publisher.kill();
        std::fs::write(&file, other).expect("the day is written");
        let (again, log, epoch) = kept.started();
        publisher = again;
        let why = "a new epoch begins: the capture of source 1 was replaced";
        assert!(log.contains(why), "{log}");
        assert!(epoch > before);
        drive(&mut followers, |all| {
            all[0].last(1).is_some_and(|at| at.epoch.0 == epoch)
        });
        assert!(followers[0].saw(|event| matches!(
            event,
            Event::Stream(StreamEvent::EpochOpened { reason: EpochReason::SourceChanged, previous, .. })
                if previous.0 == before
        )));
        before = epoch;
    }
}

#[test]
fn changed_or_short_capture_is_lost_and_exits_1() {
    const MESSAGES: u64 = 8_000;
    let day = recorded(VENUE.2, MESSAGES);
    // A file with the same length and date. The reader stops at a length of zero.
    let shorter = [&day[..40_000], &vec![0; day.len() - 40_000]].concat();
    let mut another = recorded(8, MESSAGES);
    another.resize(day.len(), 0);
    for mode in ["threaded", "inline"] {
        let mut cases = vec![(&day, true), (&shorter, false), (&another, false)];
        let mut repeats = 5;
        while let Some((replaced, is_whole)) = cases.pop() {
            let folder = tempfile::tempdir().expect("a folder");
            let file = folder.path().join("day");
            std::fs::write(&file, &day).expect("the day is written");
            let modified = std::fs::metadata(&file).and_then(|file| file.modified());
            let mut kept = Kept::fed(capture(&file));
            kept.config["threads"] = json!({ "mode": mode });
            let (mut publisher, _, before) = kept.started();
            let mut followers = [follower(&publisher, 0.0)];
            get_on(&mut followers, 3_000);
            publisher.kill();
            std::fs::write(&file, replaced).expect("the day is written");
            let written = std::fs::OpenOptions::new().write(true).open(&file);
            let dated = written.and_then(|file| file.set_modified(modified?));
            dated.expect("it is dated as before");
            let (mut publisher, log, epoch) = kept.started();
            if log.contains("the previous session has ended") && repeats > 0 {
                // This host was too slow to kill it before. The case runs again.
                repeats -= 1;
                cases.push((replaced, is_whole));
                publisher.kill();
                continue;
            }
            assert_eq!(epoch, before, "{log}");
            drive_to_end(&mut followers);
            assert_eq!(was_told_of_a_loss(&followers[0]), !is_whole, "{mode}");
            let (status, summary) = publisher.finish();
            assert_eq!(status.code(), Some(i32::from(!is_whole)), "{mode}");
            let lost = number(channel(&summary), "source_messages_lost");
            assert_eq!(lost, u64::from(!is_whole), "{mode}");
            assert_eq!(channel(&summary)["digest"].is_string(), is_whole, "{mode}");
            assert_eq!(kept.not_again().exists(), !is_whole, "{mode}");
        }
    }
}

#[test]
fn incomplete_restart_gives_no_digest_in_any_life() {
    let kept = Kept::new(2_000, 1);
    let (mut publisher, _, epoch) = kept.started();
    let mut followers = [follower(&publisher, 0.0)];
    for (of, has_digest) in [(epoch - 1, true), (epoch, false)] {
        get_on(&mut followers, 500);
        publisher.kill();
        // The note of an earlier life that detected it. The ring has wrapped since.
        std::fs::write(kept.not_again(), format!("{of}\n")).expect("it is written");
        let (again, _, same) = kept.started();
        assert_eq!(same, epoch);
        publisher = again;
        get_on(&mut followers, 500);
        let (_, reported) = publisher.get("/status");
        let reported: Value = serde_json::from_str(&reported).expect("JSON");
        let missing = &channel(&reported)["digest_missing"];
        assert_eq!(missing.is_null(), has_digest, "{missing}");
    }
    end(&publisher, &mut followers);
    let (status, summary) = publisher.finish();
    assert!(status.success());
    assert_eq!(channel(&summary)["digest"], Value::Null);
    let why = &channel(&summary)["digest_missing"];
    assert_eq!(why, "a source did not replay its published messages");
}

#[test]
fn early_stop_after_restart_gives_no_partial_digest() {
    let mut kept = Kept::new(2_000, 1);
    kept.config["inputs"][0]["pace"] = json!("max");
    let mut publisher = kept.start();
    let mut followers = [follower(&publisher, 0.0)];
    get_on(&mut followers, 500_000);
    publisher.kill();
    let publisher = kept.start();
    publisher.terminate();
    let (status, summary) = publisher.finish();
    assert!(status.success());
    assert_eq!(channel(&summary)["digest"], Value::Null);
    let why = channel(&summary)["digest_missing"]
        .as_str()
        .expect("a reason");
    assert!(why.starts_with("the replay was stopped before"), "{why}");
}

#[test]
fn restart_with_two_inputs_gives_reason_for_no_digest() {
    let mut kept = Kept::new(2_000, 1);
    let mut second = kept.config["inputs"][0].clone();
    second["source"] = json!(2);
    second["seed"] = json!(9);
    kept.config["inputs"] = json!([kept.config["inputs"][0], second]);
    let mut publisher = kept.start();
    assert!(
        publisher
            .log()
            .contains("channel all has no digest after a restart"),
        "it is said beforehand: {}",
        publisher.log()
    );
    let mut followers = [follower(&publisher, 0.0)];
    get_on(&mut followers, 2_000);
    publisher.kill();
    let publisher = kept.start();
    get_on(&mut followers, 2_000);
    end(&publisher, &mut followers);
    let (status, summary) = publisher.finish();
    assert!(status.success());
    let published = channel(&summary);
    assert_eq!(published["digest"], Value::Null);
    let why = published["digest_missing"].as_str().expect("a reason");
    assert!(why.contains("several inputs"), "{why}");
    let before = number(&published["before"], "published_records");
    assert!(before >= 2_000);
    assert_eq!(
        before + number(published, "published_records"),
        records(&followers[0]),
        "this life and the one before are the epoch"
    );
    assert!(number(&published["before"], "sealed") < number(published, "sealed"));
}

#[test]
fn new_epoch_opens_for_foreign_or_damaged_ring() {
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
    let spoilt: [(Spoil<'_>, &str, EpochReason); 7] = [
        (
            &|kept| write(&kept.ring(), offset::BOOT_ID, &[0xab; 16]),
            "the host was rebooted since",
            EpochReason::Rebooted,
        ),
        (
            &|kept| std::fs::remove_file(kept.ring()).expect("it is there"),
            "no ring of channel all was kept",
            EpochReason::RingGone,
        ),
        (
            &|kept| write(&kept.ring(), 4096 + 1472 + 64, &[0xee; 8]),
            "channel all: the slot of sequence 1 does not verify",
            EpochReason::RingDamaged,
        ),
        (
            &|kept| write(&kept.ring(), offset::CHECKPOINTS + 8, &[0xff; 8]),
            "channel all: the ring's control page is damaged: a checkpoint is 0",
            EpochReason::RingDamaged,
        ),
        (
            &|kept| write(&kept.ring(), offset::OLDEST, &[0xff; 8]),
            "channel all: the ring's control page is damaged: oldest is 18446744073709551615",
            EpochReason::RingDamaged,
        ),
        (
            &|kept| kept.config["inputs"][0]["seed"] = json!(8),
            "the configuration of the inputs has changed",
            EpochReason::Reconfigured,
        ),
        (
            &|kept| kept.config["channels"][0]["slots"] = json!(16_384),
            "the ring of channel all has ",
            EpochReason::Reconfigured,
        ),
    ];
    for (spoil, why, reason) in spoilt {
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
        let reported = followers[0]
            .events
            .iter()
            .rev()
            .find_map(|event| match event {
                Event::Stream(StreamEvent::EpochOpened {
                    reason, previous, ..
                }) => Some((*reason, previous.0)),
                _ => None,
            });
        assert_eq!(reported, Some((reason, before)), "{why}");
    }
    // An ended session is not continued either.
    end(&publisher, &mut followers);
    publisher.finish();
    let (_publisher, log, again) = kept.started();
    assert!(
        log.contains("the previous session has ended") && again > epoch,
        "{log}"
    );
}

#[test]
fn cut_ring_ends_publisher_and_next_start_is_new() {
    let kept = Kept::new(2_000, 1);
    let (mut publisher, _, before) = kept.started();
    let mut followers = [follower(&publisher, 0.0)];
    get_on(&mut followers, 500);
    // Only the file's owner or root can do that.
    let mode = std::fs::metadata(kept.ring()).expect("it is there").mode();
    assert_eq!(mode & 0o022, 0, "{mode:o}");
    let ring = std::fs::OpenOptions::new().write(true).open(kept.ring());
    ring.and_then(|ring| ring.set_len(0)).expect("it is cut");
    assert_eq!(publisher.ended().signal(), Some(SIGBUS));
    let (_publisher, log, epoch) = kept.started();
    assert!(log.contains("a new epoch begins: "), "{log}");
    assert!(epoch > before);
    drive(&mut followers, |all| {
        all[0].last(1).is_some_and(|at| at.epoch.0 == epoch)
    });
}
