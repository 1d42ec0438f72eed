//! A device in trouble: calls that do not return, sends that fail, and a removal that is reported. The
//! libraries of `tests/lab/vm` that are loaded before the program cause them.

use std::fs;
use std::time::Instant;

use tickcast_reliability::types::{Nanos, Sequence};
use tickcast_transport::verbs::{VerbsFanOut, VerbsFanOutConfig, VerbsReceiver};
use tickcast_transport::{FanOut, Receive, Slots};

use crate::datagrams::{
    SLOTS, Seen, TestRing, group, poll, range, readable, receive_config, receiver, send_config,
};
use crate::device::{resources, until};

/// Sends with this Q_Key fail while [`Trouble::FailingSends`] exists.
const FAILING_Q_KEY: u32 = 0x0bad_beef;
const STUCK: &str = "/tmp/device-stuck";
const FAILING: &str = "/tmp/sends-fail";
/// The ids of memberships report once that their device is removed, if the second file is made while the
/// first exists (`tests/lab/vm/lose.c`).
const REMOVED: &str = "/tmp/device-removed";
const REPORTED: &str = "/tmp/memberships-lost";

/// A trouble, which ends when this is dropped.
struct Trouble(&'static str);

impl Trouble {
    fn begin(path: &'static str) -> Self {
        fs::write(path, "").unwrap();
        Self(path)
    }
}

impl Drop for Trouble {
    fn drop(&mut self) {
        fs::remove_file(self.0).unwrap();
    }
}

/// A ring that goes on for ever: each sequence has the content of one of its slots.
struct Endless<'a>(&'a TestRing);

impl Endless<'_> {
    const fn content(sequence: u64) -> u64 {
        sequence % SLOTS
    }
}

impl Slots for Endless<'_> {
    fn slot(&self, sequence: Sequence) -> Option<&[u8]> {
        self.0.slot(Sequence(Self::content(sequence.0)))
    }
}

/// A line, as a publisher opens it: a fan-out of its own, and a receiver that hears it.
struct Line {
    fan_out: VerbsFanOut,
    receiver: VerbsReceiver,
    /// The next sequence to post, and all sequences that arrived.
    next: u64,
    seen: Vec<u64>,
    begun: Instant,
}

impl Line {
    fn new(ring: &TestRing, q_key: u32) -> Self {
        let group = group();
        let config = VerbsFanOutConfig {
            q_key,
            ..send_config(&[group])
        };
        let mut hears = receive_config(&[group]);
        hears.q_key = q_key;
        Self {
            receiver: receiver(&hears),
            fan_out: VerbsFanOut::open(&config, &ring.memory).unwrap(),
            next: 1,
            seen: Vec::new(),
            begun: Instant::now(),
        }
    }

    /// Posts up to `last` as far as the line accepts it, and takes what has arrived. Returns whether all is
    /// posted.
    fn drive(&mut self, ring: &TestRing, last: u64) -> bool {
        if self.next <= last {
            let range = range(self.next, last);
            let posted = self.fan_out.post(&Endless(ring), range).unwrap();
            self.next = posted.last.map_or(self.next, |last| last.0 + 1);
        }
        self.fan_out.completed();
        self.hear();
        self.next > last
    }

    /// Takes what has arrived. The time counts: a receiver checks its membership once a millisecond.
    fn hear(&mut self) {
        let now = Nanos(self.begun.elapsed().as_nanos() as u64);
        let seen = &mut self.seen;
        let polled = self.receiver.poll(now, &mut |received| {
            let (sequence, rest) = received.bytes.split_first_chunk().unwrap();
            let sequence = u64::from_le_bytes(*sequence);
            assert!(rest.iter().all(|byte| *byte == sequence as u8));
            seen.push(sequence);
        });
        polled.unwrap();
    }
}

/// Returns the contents of all sequences of a range.
fn all(first: u64, last: u64) -> Vec<u64> {
    (first..=last).map(Endless::content).collect()
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn held_device_calls_stop_no_line() {
    let ring = TestRing::new(|_| 1024);
    let (mut a, mut b) = (Line::new(&ring, FAILING_Q_KEY), Line::new(&ring, 7));
    // The last of these report no completion, so the queue can't be used for another range.
    for line in [&mut a, &mut b] {
        until("the first do not arrive", || {
            line.drive(&ring, 15);
            line.seen.len() == 15
        });
    }
    let stuck = Trouble::begin(STUCK);
    a.fan_out.reset();
    assert_eq!(a.fan_out.completed(), None);
    a.next = 101;
    until("the spare queue does not send", || {
        a.drive(&ring, 200);
        a.seen.len() == 115
    });
    assert_eq!(a.seen[15..], all(101, 200));

    // The spare fails too, and the device does not even return from the first call about the other queue.
    let failing = Trouble::begin(FAILING);
    a.drive(&ring, 300);
    let held = a.fan_out.completed().unwrap();
    for last in 16..=2_000 {
        a.drive(&ring, 300);
        until("a line waits for another one", || b.drive(&ring, last));
    }
    until("a datagram of the other line is missing", || {
        b.drive(&ring, 2_000);
        b.seen.len() == 2_000
    });
    assert_eq!(b.seen, all(1, 2_000));
    assert_eq!(a.next, 201, "nothing sends");
    assert_eq!(a.fan_out.completed(), Some(held), "its slots are held");
    assert!(held < Sequence(200));
    let of_b = b.fan_out.stats()[0];
    assert_eq!((of_b.refused, of_b.restarts), (0, 0));

    drop((failing, stuck));
    until("the line does not return", || {
        a.drive(&ring, 300);
        a.seen.len() == 215
    });
    assert_eq!(a.seen[115..], all(201, 300));
    until("slots of a closed queue stay held", || {
        a.drive(&ring, 300);
        a.fan_out.completed() > Some(Sequence(200))
    });
    let of_a = a.fan_out.stats()[0];
    assert_eq!((of_a.restarts, of_a.refused, of_a.flushed), (2, 0, 0));
    assert_eq!(of_a.datagrams, 215);
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn stream_begun_between_queues_has_nothing_completed() {
    let ring = TestRing::new(|_| 1024);
    let mut line = Line::new(&ring, 7);
    until("the first do not arrive", || {
        line.drive(&ring, 15);
        line.seen.len() == 15
    });
    let stuck = Trouble::begin(STUCK);
    // Each reset gives a queue up, and the device returns no other one.
    line.fan_out.reset();
    line.next = 101;
    until("the spare queue does not send", || {
        line.drive(&ring, 115);
        line.seen.len() == 30
    });
    line.fan_out.reset();
    line.next = 501;
    for _ in 0..100 {
        assert!(!line.drive(&ring, 600));
        assert_eq!(line.fan_out.completed(), None);
    }
    assert_eq!(line.next, 501);
    drop(stuck);
    until("the line does not return", || {
        line.drive(&ring, 600);
        line.seen.len() == 130
    });
    assert_eq!(line.seen[30..], all(501, 600));
    assert!(line.fan_out.completed() > Some(Sequence(500)));
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn line_whose_sends_keep_failing_opens_device_again() {
    let ring = TestRing::new(|_| 1024);
    let (mut a, mut b) = (Line::new(&ring, FAILING_Q_KEY), Line::new(&ring, 7));
    let failing = Trouble::begin(FAILING);
    let mut last = 0;
    until("the line refuses nothing", || {
        last += 1;
        let is_posted = b.drive(&ring, last) && a.drive(&ring, last);
        is_posted && a.fan_out.stats()[0].refused > 0
    });
    assert!(a.seen.is_empty());
    drop(failing);
    until("the line does not return", || {
        last += 1;
        a.drive(&ring, last);
        b.drive(&ring, last);
        a.seen.len() >= 10
    });
    until("posted datagrams are missing", || {
        a.drive(&ring, last);
        b.drive(&ring, last);
        let stats = a.fan_out.stats()[0];
        stats.datagrams == a.seen.len() as u64 && b.seen.len() as u64 == last
    });
    let (of_a, of_b) = (a.fan_out.stats()[0], b.fan_out.stats()[0]);
    assert_eq!(of_a.datagrams + of_a.refused, last, "{of_a:?}");
    assert!(of_a.restarts >= 2, "{of_a:?}");
    assert_eq!(b.seen, all(1, last));
    assert_eq!((of_b.refused, of_b.restarts), (0, 0), "{of_b:?}");
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn line_of_removed_device_opens_it_again() {
    let (ring, group) = (TestRing::new(|_| 1024), group());
    let mut fan_out = VerbsFanOut::open(&send_config(&[group]), &ring.memory).unwrap();
    let before = resources();
    let mut next = 1;
    let mut send = |fan_out: &mut VerbsFanOut| {
        fan_out.post(&Endless(&ring), range(next, next)).unwrap();
        fan_out.completed();
        next += 1;
        fan_out.stats()[0]
    };
    assert_eq!(send(&mut fan_out).datagrams, 1);
    let removed = [Trouble::begin(REMOVED), Trouble::begin(REPORTED)];
    until("the line does not hear of it", || {
        send(&mut fan_out).restarts == 1
    });
    drop(removed);
    let mut receiver = receiver(&receive_config(&[group]));
    let mut seen = Seen::new();
    until("nothing arrives from the device", || {
        send(&mut fan_out);
        poll(&mut receiver, &mut seen) > 0
    });
    let stats = send(&mut fan_out);
    assert_eq!(stats.restarts, 1, "{stats:?}");
    drop(receiver);
    until("something of the old queues is left", || {
        send(&mut fan_out);
        resources() == before
    });
    let stats = fan_out.stats()[0];
    assert_eq!(stats.datagrams + stats.refused, next - 1, "{stats:?}");
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn removed_device_of_receiver_stops_no_other() {
    let ring = TestRing::new(|_| 1024);
    let mut a = Line::new(&ring, FAILING_Q_KEY);
    until("the first do not arrive", || {
        a.drive(&ring, 10);
        a.seen.len() == 10
    });
    let removed = [Trouble::begin(REMOVED), Trouble::begin(REPORTED)];
    // Opened behind the report, which does not concern it.
    let mut b = Line::new(&ring, 7);
    let stuck = Trouble::begin(STUCK);
    // The fan-out hears of it too, and its helper thread waits likewise.
    until("the receiver does not hear of it", || {
        a.hear();
        a.receiver.stats()[0].restarts == 1
    });
    assert!(!a.receiver.is_joined());
    let fd = a.receiver.raw_fds()[0];
    for last in 1..=300 {
        a.drive(&ring, 500);
        until("a line waits for another one", || b.drive(&ring, last));
    }
    until("a datagram of the other line is missing", || {
        b.drive(&ring, 300);
        b.seen.len() == 300
    });
    assert_eq!((a.seen.len(), b.seen), (10, all(1, 300)));
    assert!(!readable(fd, 0), "the queue that was given up wakes");
    drop((removed, stuck));
    assert!(readable(fd, 60_000), "nobody is woken for the new queue");
    until("the receiver is not joined again", || {
        a.hear();
        a.receiver.is_joined()
    });
    let (before, mut last) = (a.seen.len(), 500);
    until("nothing arrives", || {
        last += 1;
        a.drive(&ring, last);
        a.seen.len() >= before + 10
    });
    let stats = a.receiver.stats()[0];
    assert_eq!((stats.restarts, stats.joins), (1, 2), "{stats:?}");
    assert_eq!(stats.datagrams, a.seen.len() as u64);
}
