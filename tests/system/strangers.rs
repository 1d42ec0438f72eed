//! Strangers that join: a thousand from eight addresses cost an honest subscriber nothing, and none stands
//! for a subscriber that an input waits for.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use tickcast_reliability::control::{Message, NackClass, Progress};
use tickcast_reliability::types::{ChannelId, Epoch, Nanos, Sequence, SequenceRange};
use tickcast_subscriber::faults::FaultConfig;
use tickcast_subscriber::{ChannelBuilder, Start};
use tickcast_test_support::{
    Follower, Publisher, channel, drive, end, endless, free_group, one_channel,
};

use crate::hostile::{Peer, join_frame};

const ADDRESSES: u8 = 8;
const OF_EACH: usize = 125;

/// Returns requests that cost much and say little: PROGRESS, replays of everything and single repairs.
fn flood(epoch: Epoch) -> Vec<u8> {
    let mut frames = Vec::new();
    for n in 0..16 {
        let progress = Message::Progress(Progress {
            epoch,
            sequence: Sequence(n),
            lost_records: 0,
            heard: Sequence(u64::MAX),
            sent_at: Nanos(n),
            read_bytes: 0,
        });
        progress.write(ChannelId(1), &mut frames);
        for (class, last) in [
            (NackClass::Replay, u64::MAX >> 1),
            (NackClass::Repair, 1 + n),
        ] {
            let range = SequenceRange::new(Sequence(1), Sequence(last)).expect("a range");
            let nack = Message::Nack {
                epoch,
                class,
                ranges: vec![range],
            };
            nack.write(ChannelId(1), &mut frames);
        }
    }
    frames
}

/// A connection that writes requests as fast as the publisher takes them. Every second one reads nothing.
struct Stranger {
    stream: TcpStream,
    reads: bool,
    /// Bytes of the current flood that are written.
    written: usize,
    is_open: bool,
}

impl Stranger {
    fn act(&mut self, flood: &[u8], scratch: &mut [u8]) {
        let failed = |error: &std::io::Error| error.kind() != ErrorKind::WouldBlock;
        match self.stream.write(&flood[self.written..]) {
            Ok(written) => self.written = (self.written + written) % flood.len(),
            Err(error) => self.is_open &= !failed(&error),
        }
        if self.reads {
            match self.stream.read(scratch) {
                Ok(0) => self.is_open = false,
                Ok(_) => {}
                Err(error) => self.is_open &= !failed(&error),
            }
        }
    }
}

/// Lets this number of strangers join, spread over the addresses.
fn joined_strangers(publisher: &Publisher, count: usize, honest: &mut [Follower]) -> Vec<Stranger> {
    let mut strangers = Vec::with_capacity(count);
    for n in 0..count {
        let address = Ipv4Addr::new(127, 0, 0, 2 + (n % usize::from(ADDRESSES)) as u8);
        let mut peer = Peer::connect_from(address, publisher);
        peer.0.write_all(&join_frame("stranger")).expect("written");
        peer.0.set_nonblocking(true).expect("it can be");
        strangers.push(Stranger {
            stream: peer.0,
            reads: n / usize::from(ADDRESSES) % 2 == 0,
            written: 0,
            is_open: true,
        });
        for follower in &mut *honest {
            follower.poll();
        }
    }
    strangers
}

/// Strangers that write the same requests in a thread of their own.
struct Attack {
    stop: Arc<AtomicBool>,
    open: Arc<AtomicUsize>,
    thread: thread::JoinHandle<()>,
}

impl Attack {
    fn begin(mut strangers: Vec<Stranger>, flood: Vec<u8>) -> Self {
        let (stop, open) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicUsize::new(strangers.len())),
        );
        let thread = thread::spawn({
            let (stop, open) = (Arc::clone(&stop), Arc::clone(&open));
            move || {
                let mut scratch = vec![0; 256 << 10];
                while !stop.load(Ordering::Relaxed) {
                    for stranger in strangers.iter_mut().filter(|it| it.is_open) {
                        stranger.act(&flood, &mut scratch);
                    }
                    let count = strangers.iter().filter(|it| it.is_open).count();
                    open.store(count, Ordering::Relaxed);
                }
            }
        });
        Self { stop, open, thread }
    }

    /// Returns the number of strangers whose connections are still open.
    fn still_open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("no panic");
    }
}

/// Returns the resident memory of a process, in bytes.
fn resident(process: u32) -> usize {
    let statm = std::fs::read_to_string(format!("/proc/{process}/statm")).expect("it runs");
    let pages: usize = statm
        .split(' ')
        .nth(1)
        .expect("a field")
        .parse()
        .expect("a number");
    pages * 4096
}

#[test]
fn thousand_strangers_cost_a_lossy_subscriber_nothing() {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let wanted = 2 * OF_EACH as u64 * u64::from(ADDRESSES);
    if limit.maximum.is_some_and(|maximum| maximum < wanted) {
        eprintln!("SKIPPED: this host allows {limit:?} open files, and the test needs {wanted}");
        return;
    }
    let raised = rustix::process::Rlimit {
        current: limit.maximum,
        ..limit
    };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).expect("it may");

    let mut config = one_channel(&[free_group()], endless(2_000, 1));
    // No connection ends because the machine is slow.
    config["repair"] = serde_json::json!({
        "peers_max": 2_000, "peers_per_address_max": 1_000, "join_timeout_us": 600_000_000,
    });
    let publisher = Publisher::start(&config);
    let lossy = FaultConfig {
        seed: 7,
        drop: 0.01,
        ..FaultConfig::default()
    };
    let honest = publisher.subscriber().channel("all").faults(lossy);
    let mut followers = [Follower::new(honest)];
    let received = |all: &[Follower]| all[0].records.values().sum::<u64>();
    drive(&mut followers, |all| received(all) > 1_000);
    let epoch = followers[0].subscriber.channels()[0].epoch;
    let before = resident(publisher.id());

    let count = OF_EACH * usize::from(ADDRESSES);
    let strangers = joined_strangers(&publisher, count, &mut followers);
    drive(&mut followers, |_| {
        publisher.metric("connections_open{endpoint=\"control\"}") > 1_000
    });
    let attack = Attack::begin(strangers, flood(epoch));
    // The attack lasts until the honest subscriber has seen and repaired enough of the stream beside it.
    let (from, nacks) = (
        received(&followers),
        publisher.metric_now("nacks_received_total"),
    );
    let mut most = before;
    drive(&mut followers, |all| {
        most = most.max(resident(publisher.id()));
        received(all) > from + 8_000
            && all[0].counters(0).missing_datagrams.get() > 10
            && publisher.metric("nacks_received_total") > nacks + 50_000
    });
    let still_open = attack.still_open();
    let reader = Follower::new(publisher.subscriber().channel("all"));
    let [first] = followers;
    // A new subscriber joins beside the attack.
    let mut followers = [first, reader];
    drive(&mut followers, |all| {
        all[1].records.values().sum::<u64>() > 500
    });
    attack.end();
    end(&publisher, &mut followers);
    let (status, summary) = publisher.finish();
    assert!(status.success(), "{summary}");
    for follower in &followers {
        follower.assert_balanced();
        assert!(follower.losses.is_empty(), "{:?}", follower.losses);
    }
    assert_eq!(followers[0].digest(1), channel(&summary)["digest"]);
    assert!(still_open > 400, "{still_open} strangers were still open");
    // Each of the eight addresses may leave 64 MiB unread, in buffers of up to twice that. Without a bound
    // for an address, 500 connections would leave 4 MiB each.
    let grown = most - before;
    assert!(grown < 1 << 30, "{before} bytes grew by {grown}");
}

/// Returns requests for a replay of everything up to `newest`.
fn replays(epoch: Epoch, newest: Sequence) -> Vec<u8> {
    let mut frames = Vec::new();
    for _ in 0..16 {
        let nack = Message::Nack {
            epoch,
            class: NackClass::Replay,
            ranges: vec![SequenceRange::new(Sequence(1), newest).expect("a range")],
        };
        nack.write(ChannelId(1), &mut frames);
    }
    frames
}

#[test]
fn replaying_strangers_cost_a_late_joiner_no_history() {
    let mut config = one_channel(&[free_group()], endless(500, 1));
    // Divided by connections, this budget is too slow for the whole history; divided by addresses, it is
    // many times fast enough.
    config["repair"] = serde_json::json!({
        "peers_max": 1_000, "peers_per_address_max": 500, "join_timeout_us": 600_000_000,
        "joiner_bytes_per_s": 1_000_000,
    });
    let publisher = Publisher::start(&config);
    let mut followers = vec![Follower::new(publisher.subscriber().channel("all"))];
    let received = |follower: &Follower| follower.records.values().sum::<u64>();
    drive(&mut followers, |all| received(&all[0]) > 2_000);
    let epoch = followers[0].subscriber.channels()[0].epoch;
    let strangers = joined_strangers(&publisher, 400, &mut followers);
    drive(&mut followers, |_| {
        publisher.metric("connections_open") > 400
    });
    let newest = followers[0].last(1).expect("records came").sequence;
    let attack = Attack::begin(strangers, replays(epoch, newest));
    drive(&mut followers, |_| {
        publisher.metric("nacks_received_total") > 10_000
    });
    let late = publisher
        .subscriber()
        .channel(ChannelBuilder::new("all").start(Start::Oldest));
    followers.push(Follower::new(late));
    // The joiner has caught up when it delivers the present as soon as the other.
    drive(&mut followers, |all| {
        received(&all[1]) + 100 > received(&all[0])
    });
    assert!(
        attack.still_open() > 200,
        "{} are open",
        attack.still_open()
    );
    attack.end();
    end(&publisher, &mut followers);
    let (status, summary) = publisher.finish();
    assert!(status.success(), "{summary}");
    for follower in &followers {
        follower.assert_balanced();
        assert!(follower.losses.is_empty(), "{:?}", follower.losses);
        assert_eq!(follower.digest(1), channel(&summary)["digest"]);
    }
}

#[test]
fn strangers_start_no_input_that_waits_for_names() {
    let mut input = endless(2_000, 0);
    input["wait_for_subscribers"] = serde_json::json!(["honest"]);
    let publisher = Publisher::start(&one_channel(&[free_group()], input));
    let mut strangers = Vec::new();
    for n in 0..20 {
        let address = Ipv4Addr::new(127, 0, 0, 2 + n % ADDRESSES);
        let mut peer = Peer::connect_from(address, &publisher);
        let frame = join_frame(&format!("stranger-{n}"));
        peer.0.write_all(&frame).expect("written");
        let epoch = peer.hear(|message| match message {
            Message::Welcome(welcome) => welcome.channels[0].epoch,
            other => panic!("{other:?}"),
        });
        let follows = Progress {
            epoch: epoch.expect("a WELCOME"),
            sequence: Sequence(0),
            lost_records: 0,
            heard: Sequence(0),
            sent_at: Nanos(1),
            read_bytes: 0,
        };
        peer.send(1, &Message::Progress(follows));
        let is_status = peer.hear(|message| matches!(message, Message::Status(_)));
        assert_eq!(is_status, Some(true), "it counts as a follower");
        strangers.push(peer);
    }
    // An input that had begun would have published by the last of these pages.
    for _ in 0..100 {
        assert_eq!(publisher.metric_now("published_records_total"), 0);
        thread::sleep(Duration::from_millis(1));
    }
    let honest = publisher.subscriber().name("honest").channel("all");
    let mut followers = [Follower::new(honest)];
    drive(&mut followers, |all| {
        all[0].records.values().sum::<u64>() > 1_000
    });
    for peer in &mut strangers {
        peer.send(0, &Message::Leave);
    }
    end(&publisher, &mut followers);
    let (status, summary) = publisher.finish();
    assert!(status.success(), "{summary}");
    followers[0].assert_balanced();
    assert_eq!(followers[0].digest(1), channel(&summary)["digest"]);
}
