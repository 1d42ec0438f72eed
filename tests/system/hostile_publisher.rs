//! A hostile publisher: it offers any file as its ring, writes any word into a ring that others map, and
//! answers with any text. Its subscribers report that in bounded memory, and others notice nothing.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;

use serde_json::json;
use tickcast_reliability::control::{
    BODY_LEN_MAX_TO_PUBLISHER, ChannelOffer, FanOutOffer, HeartbeatLimits, Message, RejectCode,
    Rejected, Welcome,
};
use tickcast_reliability::ring::Geometry;
use tickcast_reliability::types::{ChannelId, ConfigHash, Epoch, Lineage, RecordNumber, Sequence};
use tickcast_subscriber::{SubscribeError, Subscriber, Transport};
use tickcast_test_support::{
    Follower, Publisher, binary, channel, drive, end, endless, free_group, one_channel, wait_for,
};
use tickcast_transport::shm::{boot_id, tail_len};

use crate::shared_memory::Place;

/// A server that gives each JOIN the same answer.
struct Answerer {
    address: SocketAddr,
    answered: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Answerer {
    /// Starts a server that keeps its connections open, or closes each after the answer.
    fn start(answer: &Message<'_>, keeps_open: bool) -> Self {
        let mut bytes = Vec::new();
        answer.write(ChannelId(0), &mut bytes);
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address");
        let (answered, stop) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
        let thread = std::thread::spawn({
            let (answered, stop) = (answered.clone(), stop.clone());
            move || {
                let mut open = Vec::new();
                while let Ok((mut stream, _)) = listener.accept() {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    if joins(&mut stream) && stream.write_all(&bytes).is_ok() {
                        answered.fetch_add(1, Ordering::Relaxed);
                    }
                    if keeps_open {
                        open.push(stream);
                    }
                }
            }
        });
        Self {
            address,
            answered,
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for Answerer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // The thread wakes up by one more connection.
        drop(TcpStream::connect(self.address));
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

/// Reads until the other side has sent JOIN. Returns `false` if it closed the connection before.
fn joins(stream: &mut TcpStream) -> bool {
    let mut bytes = Vec::new();
    let mut part = [0; 4096];
    loop {
        match stream.read(&mut part) {
            Ok(0) | Err(_) => return false,
            Ok(len) => bytes.extend_from_slice(&part[..len]),
        }
        if let Ok(Some(_)) = Message::read(&bytes, BODY_LEN_MAX_TO_PUBLISHER) {
            return true;
        }
    }
}

/// Returns a WELCOME with a ring in this file and of this shape.
fn welcome(path: &Path, (slot_len, slots): (u32, u64)) -> Message<'static> {
    let boot_id = boot_id().expect("a host has one");
    let ring = FanOutOffer::Shm {
        path: path.display().to_string(),
        fan_out: 0,
        boot_id: boot_id.iter().map(|byte| format!("{byte:02x}")).collect(),
    };
    let offer = ChannelOffer {
        authentication: None,
        channel: ChannelId(1),
        name: "all".into(),
        epoch: Epoch(7),
        newest: Sequence(0),
        oldest: Sequence(1),
        oldest_record: RecordNumber(1),
        next_record: RecordNumber(1),
        slot_len,
        slots,
        config_hash: ConfigHash(0),
        ended: false,
        fan_outs: vec![ring],
        directory: Vec::new(),
        continues: Lineage::default(),
        history: None,
        heartbeats: HeartbeatLimits::default(),
    };
    Message::Welcome(Welcome {
        latency: false,
        wire_version: 1,
        publisher: "hostile".into(),
        session: 1,
        channels: vec![offer],
        repairs: Vec::new(),
    })
}

/// An honest publisher with a follower that has got a part of its stream.
pub(crate) fn honest() -> (Publisher, [Follower; 1]) {
    let publisher = Publisher::start(&one_channel(&[free_group()], endless(5_000, 1)));
    let mut followers = [Follower::new(publisher.subscriber().channel("all"))];
    get(&mut followers, 500);
    (publisher, followers)
}

/// Polls until each follower has got so many more records.
fn get(followers: &mut [Follower], more: u64) {
    let received = |it: &Follower| it.records.values().sum::<u64>();
    let before: Vec<u64> = followers.iter().map(received).collect();
    drive(followers, |all| {
        let mut all = all.iter().zip(&before);
        all.all(|(it, before)| received(it) >= before + more)
    });
}

/// Ends the session, and asserts that each follower has all of it.
pub(crate) fn assert_whole(publisher: Publisher, followers: &mut [Follower]) {
    end(&publisher, followers);
    let (status, summary) = publisher.finish();
    assert!(status.success(), "{summary}");
    for follower in followers {
        follower.assert_balanced();
        assert!(follower.losses.is_empty(), "{:?}", follower.losses);
        assert_eq!(follower.digest(1), channel(&summary)["digest"]);
    }
}

/// `tickcast listen` in a process of its own, whose standard error goes to a file.
pub(crate) struct Listener {
    pub(crate) child: Child,
    log: PathBuf,
}

impl Listener {
    pub(crate) fn start(folder: &Path, to: SocketAddr, arguments: &[&str]) -> Self {
        let log = folder.join("stderr");
        let stderr = std::fs::File::create(&log).expect("a file for its log");
        let child = Command::new(binary("tickcast"))
            .args(["listen", "--connect", &to.to_string(), "--format", "count"])
            .args(["--channel", "all"])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(stderr)
            .spawn()
            .expect("the listener starts");
        Self { child, log }
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Returns the greatest resident memory so far, in KiB.
    fn resident_max(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()));
        let status = status.expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let number = line.and_then(|line| line.split_whitespace().next());
        number.expect("a line").parse().expect("a number")
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn welcome_with_huge_or_impossible_ring_is_a_typed_error() {
    let place = Place::new("huge");
    let shape = (8_960, 1 << 20);
    let geometry = Geometry::new(shape.0, shape.1).expect("a possible one");
    let file = std::fs::File::create_new(&place.0).expect("a file");
    let own = std::fs::Permissions::from_mode(0o600);
    file.set_permissions(own).expect("it is ours");
    let len = geometry.bytes() + tail_len(geometry);
    file.set_len(len as u64).expect("holes need no room");
    let (publisher, mut followers) = honest();
    let refused = |victim: &Subscriber| {
        let counters = victim.channels().into_iter().map(|it| it.counters);
        counters.map(|it| it.welcomes_invalid.get()).sum::<u64>()
    };
    // The last two are no shapes of a ring: the connection ends, and the next attempt backs off.
    for shape in [shape, (8_960, u64::MAX), (u32::MAX, 1 << 20), (64, 0)] {
        let hostile = Answerer::start(&welcome(&place.0, shape), true);
        let builder = Subscriber::builder(hostile.address.to_string()).channel("all");
        let mut victim = builder
            .transport(Transport::Shm)
            .build()
            .expect("it is built");
        drive(&mut followers, |_| {
            victim.poll(|_| ());
            victim.problem().is_some() || refused(&victim) > 0
        });
        let is_typed = match victim.problem() {
            Some(SubscribeError::Shm { .. }) => shape == (8_960, 1 << 20),
            Some(SubscribeError::NoTransport { .. }) => shape == (8_960, u64::MAX),
            Some(_) => false,
            None => refused(&victim) > 0 && (shape.0 > 1 << 16 || shape.1 == 0),
        };
        assert!(is_typed, "{shape:?}: {:?}", victim.problem());
    }
    // A process of its own shows the memory of the same subscriber.
    let hostile = Answerer::start(&welcome(&place.0, shape), true);
    let folder = tempfile::tempdir().expect("a folder");
    let victim = Listener::start(folder.path(), hostile.address, &["--transport", "shm"]);
    drive(&mut followers, |_| {
        victim.log().contains("can't receive the channel")
    });
    // A subscriber holds about 15 MiB, and this ring claims 9 GiB.
    let resident = victim.resident_max();
    assert!(resident < 256 << 10, "{resident} KiB were resident");
    let blocks = file.metadata().expect("it is open").blocks();
    assert!(blocks <= 8, "{blocks} blocks were filled");
    get(&mut followers, 500);
    assert_whole(publisher, &mut followers);
}

#[test]
fn hostile_words_in_a_ring_neither_stop_nor_fool_its_reader() {
    const SLOTS: u64 = 65_536;
    let place = Place::new("words");
    let group = free_group();
    let mut config = one_channel(&[group], endless(5_000, 2));
    config["channels"][0]["slots"] = SLOTS.into();
    config["channels"][0]["slot_len"] = 1472.into();
    config["channels"][0]["fan_out"] = json!([
        { "transport": "udp", "lines": [{ "group": group }] },
        { "transport": "shm", "path": place.0 },
    ]);
    let publisher = Publisher::start(&config);
    let follow = |name: &str, transport| {
        let builder = publisher.subscriber().name(name).transport(transport);
        Follower::new(builder.channel("all"))
    };
    let mut followers = [
        follow("victim", Transport::Shm),
        follow("witness", Transport::Udp),
    ];
    get(&mut followers, 500);
    // The numbers of the last copies lie behind the ring. Only readers use these words.
    let geometry = Geometry::new(1472, SLOTS).expect("a possible one");
    let file = std::fs::OpenOptions::new().write(true).open(&place.0);
    let file = file.expect("it is ours");
    for word in [u64::MAX, u64::MAX - 1, 1 << 63, 1 << 32, 0].repeat(8) {
        for area in 0..2 {
            let at = geometry.bytes() + area * tail_len(geometry) / 2;
            let written = file.write_all_at(&word.to_le_bytes(), at as u64);
            written.expect("it is ours");
        }
        get(&mut followers, 100);
    }
    assert_whole(publisher, &mut followers);
}

#[test]
fn refusals_with_control_characters_flood_no_terminal() {
    let text = "no\nERROR forged\r\x1b[2J\u{202e}".to_owned() + &"x".repeat(50_000);
    let rejected = Message::Rejected(Rejected {
        code: RejectCode::TooMany,
        text,
        retry_after_ms: 1,
    });
    let hostile = Answerer::start(&rejected, false);
    let (publisher, mut followers) = honest();
    let folder = tempfile::tempdir().expect("a folder");
    let waits = ["--join-timeout", "600"];
    let victim = Listener::start(folder.path(), hostile.address, &waits);
    // The subscriber returns after each refusal.
    drive(&mut followers, |_| {
        hostile.answered.load(Ordering::Relaxed) >= 6
    });
    let log = wait_for("a refusal", || {
        let log = victim.log();
        log.contains("forged").then_some(log)
    });
    assert_clean(&log);
    let lines_max = 10 * (hostile.answered.load(Ordering::Relaxed) + 2);
    assert!(log.lines().count() < lines_max, "{log}");
    let longest = log.lines().map(str::len).max();
    assert!(longest < Some(4_096), "a line of {longest:?} bytes");
    assert_whole(publisher, &mut followers);
}

/// Asserts that a log has no control character but the ends of its lines, and no forged line.
pub(crate) fn assert_clean(log: &str) {
    let is_foreign = |c: char| c.is_control() && c != '\n' || c == '\u{202e}';
    let foreign = log.lines().find(|line| line.contains(is_foreign));
    assert_eq!(foreign, None);
    let forged = log.lines().find(|line| line.starts_with("ERROR forged"));
    assert_eq!(forged, None);
}
