//! System calls per tick, from Rust: none but receiving, and under load a fraction of a call. The counted
//! program is this test binary, run again under strace.

use std::io::Write as _;
use std::os::unix::process::parent_id;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};

use serde_json::json;
use tempfile::TempDir;
use tickcast_publisher::{Config, InlinePublisher, SourcePosition, trade};
use tickcast_subscriber::{Core, Event, Idle, Item, Subscriber};
use tickcast_test_support::system_calls::{calls_are_few, calls_are_receiving, once, strace_works};
use tickcast_test_support::{PATIENCE, Publisher, free_group, one_channel, simulated};

const PUBLISHER: &str = "STEADY_PUBLISHER";
const WAY: &str = "STEADY_WAY";
/// No system calls are allowed between these records.
const MARKS: [u64; 2] = [5_000, 40_000];

/// The program: follows in one way, and marks two records by a system call that has no other use here.
#[test]
#[ignore = "the other tests here run it, with a publisher"]
fn follow() {
    let publisher = std::env::var(PUBLISHER).expect("a publisher");
    let subscriber = Subscriber::builder(publisher).channel("all");
    let mut subscriber = subscriber.build().expect("a subscriber");
    let mut records = 0;
    let mut on = |item: Item<'_>| {
        records += u64::from(matches!(item, Item::Record(..)));
        if matches!(item, Item::Record(..)) && MARKS.contains(&records) {
            let _ = parent_id();
        }
    };
    if std::env::var(WAY).is_ok_and(|way| way == "split") {
        let idle = Idle::Sleep { us: 50 };
        let (running, mut reader) = subscriber.split(Core(0), idle, 64 << 20).expect("a thread");
        while !reader.is_over() {
            reader.poll(&mut on);
        }
        running.join().expect("no panic");
    } else {
        while !subscriber.ended() {
            subscriber.poll(&mut on);
        }
        subscriber.leave();
    }
    assert!(records > MARKS[1]);
}

/// Datagrams that are published before they are sent, as in a busy feed.
const BURST: u64 = 64;
/// Number of bursts before the marks, and between them.
const BURSTS: [u64; 2] = [50, 400];
/// Minimum number of datagrams per system call of a side.
const DATAGRAMS_A_CALL: u64 = 20;
/// Trades of a full datagram: 48 bytes each, of 1472 with its header of 64.
const RECORDS: u64 = 29;
const SOCKET_BYTES: usize = 4 << 20;

/// The program: publishes from one thread and follows in another, at full speed. Each thread marks begin
/// and end of the counted bursts.
#[test]
#[ignore = "another test here runs it"]
fn carry() {
    let mut publisher = InlinePublisher::open(busy_config()).expect("a publisher");
    let control = publisher.control_address().to_string();
    let (sent, taken) = (
        Arc::new(AtomicU64::new(0)),
        Arc::new(AtomicU64::new(JOINING)),
    );
    let following = std::thread::spawn({
        let (sent, taken) = (sent.clone(), taken.clone());
        move || follow_bursts(control, &sent, &taken)
    });
    while taken.load(Acquire) == JOINING {
        publisher.drive().expect("it sends");
    }
    let (mut number, mut datagrams) = (0, 0);
    for burst in 0..BURSTS.iter().sum() {
        if burst == BURSTS[0] {
            datagrams = sealed_by(&publisher);
            let _ = parent_id();
        }
        let mut channel = publisher.channel(0).expect("nothing is looked through");
        for _ in 0..BURST * RECORDS {
            number += 1;
            channel.publish(&trade(1, number, 1), SourcePosition::new(0, number as u64));
        }
        drop(channel);
        publisher.drive().expect("it sends");
        sent.store(number as u64, Release);
        // The next burst is due when this one was received. Neither side waits by a system call.
        while taken.load(Acquire) < number as u64 {
            std::hint::spin_loop();
        }
    }
    let _ = parent_id();
    let datagrams = sealed_by(&publisher) - datagrams;
    sent.store(OVER, Release);
    following.join().expect("no panic");
    println!("{CARRIED}{datagrams}");
}

const CARRIED: &str = "datagrams carried: ";

/// Value of `taken` before the subscriber has joined.
const JOINING: u64 = u64::MAX;
/// Value of `sent` after the last burst.
const OVER: u64 = u64::MAX;

fn sealed_by(publisher: &InlinePublisher) -> u64 {
    publisher.monitor().channels()[0].sealed.0
}

fn busy_config() -> Config {
    let config = json!({
        "name": "busy", "control": "127.0.0.1:0", "interface": "127.0.0.1", "inputs": [],
        "channels": [{
            "id": 1, "name": "all", "slots": 4096, "slot_len": 1472,
            "fan_out": [{
                "transport": "udp", "lines": [{ "group": free_group() }],
                "send_buffer_bytes": SOCKET_BYTES,
            }],
        }],
    });
    Config::parse(&config.to_string()).expect("a config")
}

fn follow_bursts(control: String, sent: &AtomicU64, taken: &AtomicU64) {
    let builder = Subscriber::builder(control).channel("all").seed(1);
    let mut subscriber = builder.build().expect("a subscriber");
    while taken.load(Acquire) == JOINING {
        subscriber.poll(|item| {
            if matches!(item, Item::Event(_, Event::Joined { .. })) {
                taken.store(0, Release);
            }
        });
    }
    let (mut records, mut marked) = (0, false);
    loop {
        let until = sent.load(Acquire);
        if until == OVER {
            break;
        }
        if until > BURSTS[0] * BURST * RECORDS && !marked {
            marked = true;
            let _ = parent_id();
        }
        // Polls only if a datagram is waiting, as under load.
        if until > records {
            subscriber.poll(|item| records += u64::from(matches!(item, Item::Record(..))));
            taken.store(records, Release);
        } else {
            std::hint::spin_loop();
        }
    }
    let _ = parent_id();
    subscriber.leave();
}

/// Runs the program of this name under strace. Returns its trace and its output. On a host without strace,
/// or one that forbids it to trace, prints a notice and returns `None`.
fn under_strace(program: &str, env: &[(&str, String)]) -> Option<(PathBuf, TempDir, String)> {
    if let Err(why) = strace_works() {
        writeln!(std::io::stderr(), "\nSKIPPED: {why}").expect("stderr takes it");
        return None;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let trace = folder.path().join("trace");
    let output = Command::new("timeout")
        .arg(PATIENCE.as_secs().to_string())
        .args(["strace", "-f", "-o"])
        .arg(&trace)
        .arg(std::env::current_exe().expect("this program"))
        .args(["--ignored", "--exact", "--nocapture"])
        .arg(tickcast_test_support::test_name(module_path!(), program))
        .envs(env.iter().map(|(key, value)| (key, value)))
        .output()
        .expect("strace runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    Some((trace, folder, said))
}

fn traced(way: &str) {
    once(|| {
        let config = one_channel(&[free_group()], simulated(45_000, 20_000, 1));
        let publisher = Publisher::start(&config);
        let env = [
            (PUBLISHER, publisher.control.to_string()),
            (WAY, way.to_owned()),
        ];
        match under_strace("follow", &env) {
            Some((trace, _folder, _)) => {
                calls_are_receiving(&trace, MARKS[1] - MARKS[0], way == "split")
            }
            None => Ok(()),
        }
    });
}

#[test]
fn polled_tick_costs_only_its_receive_system_call() {
    let _turn = tickcast_test_support::machine::exclusive();
    traced("poll");
}

#[test]
fn local_ring_tick_costs_only_receiving() {
    let _turn = tickcast_test_support::machine::exclusive();
    traced("split");
}

#[test]
fn loaded_sides_call_once_per_twenty_datagrams() {
    let _turn = tickcast_test_support::machine::exclusive();
    once(|| match under_strace("carry", &[]) {
        Some((trace, _folder, said)) => few_calls_carry(&trace, &said),
        None => Ok(()),
    });
}

fn few_calls_carry(trace: &Path, said: &str) -> Result<(), String> {
    let carried = said.lines().find_map(|line| line.split_once(CARRIED));
    let datagrams = carried.and_then(|(_, number)| number.parse().ok());
    let datagrams: u64 = datagrams.expect("it says how many");
    assert!(datagrams >= BURSTS[1] * BURST, "full ones: {datagrams}");
    let trace = std::fs::read_to_string(trace).expect("the trace");
    let sides = calls_are_few(&trace, datagrams, DATAGRAMS_A_CALL)?;
    let [publishing, following] = &sides[..] else {
        panic!("two threads mark: {sides:?}")
    };
    assert!(publishing.contains_key("sendmmsg"), "{sides:?}");
    assert!(following.contains_key("recvmmsg"), "{sides:?}");
    Ok(())
}
