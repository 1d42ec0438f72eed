//! What a tick costs the operating system, from Rust: nothing but the receiving itself. A program,
//! which is this test again, follows under strace.

mod common;
#[path = "common/steady.rs"]
mod steady;

use std::io::Write as _;
use std::os::unix::process::parent_id;
use std::process::Command;

use common::{PATIENCE, Publisher, free_group, one_channel, simulated};
use tickcast_subscriber::{Core, Idle, Item, Subscriber};

const PUBLISHER: &str = "STEADY_PUBLISHER";
const WAY: &str = "STEADY_WAY";
/// The records between which nothing is to be called.
const MARKS: [u64; 2] = [5_000, 40_000];

/// The program: follows in one way, and marks two records by a system call that nobody else makes.
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

fn traced(way: &str) {
    if Command::new("strace").arg("--version").output().is_err() {
        let why = "strace is not here, so system calls are not counted; `make setup` installs it";
        writeln!(std::io::stderr(), "\nSKIPPED: {why}").expect("stderr takes it");
        return;
    }
    let publisher = Publisher::start(&one_channel(&[free_group()], simulated(45_000, 20_000, 1)));
    let folder = tempfile::tempdir().expect("a folder");
    let trace = folder.path().join("trace");
    let output = Command::new("timeout")
        .arg(PATIENCE.as_secs().to_string())
        .args(["strace", "-f", "-o"])
        .arg(&trace)
        .arg(std::env::current_exe().expect("this program"))
        .args(["--ignored", "--exact", "follow", "--nocapture"])
        .env(PUBLISHER, publisher.control.to_string())
        .env(WAY, way)
        .output()
        .expect("strace runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    steady::assert_calls_are_receiving(&trace, MARKS[1] - MARKS[0], way == "split");
}

#[test]
fn a_polled_tick_costs_no_system_call_but_receiving_it() {
    traced("poll");
}

#[test]
fn a_tick_through_the_local_ring_costs_none_but_receiving_it_and_its_reader_none_at_all() {
    traced("split");
}
