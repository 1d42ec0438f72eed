//! The account of frames: each is in one place, whatever is lost, full or closed.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;

use tickcast_reliability::delivery::LineId;
use tickcast_reliability::types::Nanos;
use tickcast_transport_base::Receive;
use tickcast_xdp::XdpReceiver;

use crate::network::{SENDER, Sender, enter};
use crate::support::{GROUP_A, GROUP_B, config, datagram, open, poll_until, received, until};

/// Frames that the kernel keeps for its next packet, after it dropped one.
const WITH_KERNEL_MAX: usize = 1;

/// Sets a flag when it is dropped.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Checks that every frame of the interface is in one place. `receivers` are all that share it.
#[track_caller]
fn account(receivers: &[&XdpReceiver]) {
    let lines = receivers.iter().flat_map(|receiver| {
        let count = receiver.stats().len() as u8;
        (0..count).map(|line| receiver.frames(LineId(line)))
    });
    let lines: Vec<_> = lines.collect();
    for queue in 0..lines[0].len() {
        let (total, free) = (lines[0][queue].total as usize, &lines[0][queue].free);
        let held: usize = lines
            .iter()
            .map(|line| line[queue].waiting as usize + line[queue].taken)
            .sum();
        let distinct: BTreeSet<_> = free.iter().collect();
        assert_eq!(distinct.len(), free.len(), "a frame was given back twice");
        let found = free.len() + held;
        assert!(
            found <= total && total - found <= WITH_KERNEL_MAX,
            "of {total} frames, {} are free and {held} with lines",
            free.len()
        );
    }
}

#[test]
fn frames_are_all_there_after_each_burst() {
    if !enter(1) {
        return;
    }
    let Some(mut receiver) = open(&config(&[GROUP_A, GROUP_B])) else {
        return;
    };
    account(&[&receiver]);
    let sender = Sender::from(SENDER);
    // More than there are frames.
    for round in 1..=100 {
        for n in 0..30 {
            sender.send(GROUP_A, &datagram(n, 64));
            sender.send(GROUP_B, &datagram(n, 1_472));
        }
        received(&mut receiver, round * 60);
        account(&[&receiver]);
    }
    assert_eq!(receiver.stats()[0].buffer_drops, 0);
}

#[test]
fn overrun_ring_counts_drops_and_keeps_frames() {
    if !enter(1) {
        return;
    }
    let mut config = config(&[GROUP_A]);
    config.receive_buffer_bytes = Some(64 * 2_048);
    let Some(mut receiver) = open(&config) else {
        return;
    };
    let sender = Sender::from(SENDER);
    for round in 1..=20 {
        for n in 0..200 {
            sender.send(GROUP_A, &datagram(n, 64));
        }
        until("the ring is full", || {
            receiver.frames(LineId(0))[0].waiting == 64
        });
        // A full ring asks for the kernel's counts at once, so time need not pass.
        until("each has arrived or is counted", || {
            receiver.poll(Nanos(1), &mut |_| ()).unwrap();
            let stats = receiver.stats()[0];
            stats.datagrams + stats.buffer_drops == round * 200
        });
        assert!(receiver.stats()[0].buffer_drops > 0);
        account(&[&receiver]);
    }
}

#[test]
fn slow_line_does_not_take_frames_of_others() {
    if !enter(1) {
        return;
    }
    let mut small = config(&[GROUP_A]);
    small.memory_bytes = 1 << 20;
    let Some(slow) = open(&small) else {
        return;
    };
    small.lines[0].group = GROUP_B;
    let mut quick = open(&small).unwrap();
    assert!(quick.warnings()[0].to_string().contains("memory_bytes"));
    let sender = Sender::from(SENDER);
    // More than all frames, to a line that does not poll.
    for n in 0..2_000 {
        sender.send(GROUP_A, &datagram(n, 64));
    }
    for round in 1..=50 {
        for n in 0..20 {
            sender.send(GROUP_B, &datagram(n, 64));
        }
        received(&mut quick, round * 20);
    }
    assert_eq!(quick.stats()[0].buffer_drops, 0);
    account(&[&slow, &quick]);
}

#[test]
fn frames_of_a_closed_line_come_back() {
    if !enter(1) {
        return;
    }
    let Some(mut kept) = open(&config(&[GROUP_A])) else {
        return;
    };
    let sender = Sender::from(SENDER);
    for round in 1..=20 {
        let closed = open(&config(&[GROUP_B])).unwrap();
        for n in 0..100 {
            sender.send(GROUP_B, &datagram(n, 64));
        }
        until("all wait", || closed.frames(LineId(0))[0].waiting == 100);
        account(&[&kept, &closed]);
        drop(closed);
        account(&[&kept]);
        sender.send(GROUP_A, &datagram(round, 64));
        received(&mut kept, round);
    }
    account(&[&kept]);
}

#[test]
fn frames_survive_a_close_under_traffic() {
    if !enter(1) {
        return;
    }
    let Some(mut kept) = open(&config(&[GROUP_A])) else {
        return;
    };
    let sender = Sender::from(SENDER);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        // Also when an assertion below fails, because the scope waits for the sender.
        let _ends = Ends(&is_over);
        scope.spawn(|| {
            for n in (0..).take_while(|_| !is_over.load(Relaxed)) {
                sender.send(GROUP_B, &datagram(n, 64));
                sender.send(GROUP_A, &datagram(n, 64));
            }
        });
        for _ in 0..20 {
            let mut closed = open(&config(&[GROUP_B])).unwrap();
            let before = kept.stats()[0].datagrams;
            let mut arrived = 0;
            poll_until(
                &mut kept,
                |_| (),
                |it| {
                    arrived += closed.poll(Nanos(1), &mut |_| ()).unwrap();
                    arrived > 0 && it.stats()[0].datagrams > before
                },
            );
        }
    });
    while kept.poll(Nanos(1), &mut |_| ()).unwrap() > 0 {}
    account(&[&kept]);
}

#[test]
fn interface_can_be_opened_again_at_once() {
    if !enter(1) {
        return;
    }
    let sender = Sender::from(SENDER);
    for n in 0..10 {
        let Some(mut receiver) = open(&config(&[GROUP_A, GROUP_B])) else {
            return;
        };
        sender.send(GROUP_A, &datagram(n, 64));
        sender.send(GROUP_B, &datagram(n, 64));
        assert_eq!(received(&mut receiver, 2).len(), 2);
        account(&[&receiver]);
    }
}

#[test]
fn panic_of_the_caller_loses_no_frame() {
    if !enter(1) {
        return;
    }
    let Some(mut receiver) = open(&config(&[GROUP_A])) else {
        return;
    };
    let sender = Sender::from(SENDER);
    for n in 0..10 {
        sender.send(GROUP_A, &datagram(n, 64));
    }
    until("all wait", || receiver.frames(LineId(0))[0].waiting == 10);
    let mut seen = 0;
    let poll = AssertUnwindSafe(|| {
        receiver.poll(Nanos(1), &mut |_| {
            seen += 1;
            assert!(seen < 4, "deliberate");
        })
    });
    catch_unwind(poll).unwrap_err();
    account(&[&receiver]);
    // The fourth was taken. The other six still come.
    let all = received(&mut receiver, 10);
    assert_eq!(all.len(), 6);
    assert_eq!(all[0].1, datagram(4, 64));
    account(&[&receiver]);
}

#[test]
fn threads_that_share_an_interface_lose_no_frame() {
    if !enter(1) {
        return;
    }
    const ROUNDS: u64 = 100;
    let Some(first) = open(&config(&[GROUP_A])) else {
        return;
    };
    let second = open(&config(&[GROUP_B])).unwrap();
    let sender = Sender::from(SENDER);
    let done = AtomicU64::new(0);
    let follow = |mut receiver: XdpReceiver| {
        for round in 1..=ROUNDS {
            received(&mut receiver, round * 50);
            done.fetch_add(1, Relaxed);
        }
        receiver
    };
    let receivers = thread::scope(|scope| {
        let all = [first, second].map(|receiver| scope.spawn(|| follow(receiver)));
        for round in 0..ROUNDS {
            until("both are done", || done.load(Relaxed) == 2 * round);
            for n in 0..50 {
                sender.send(GROUP_A, &datagram(n, 64));
                sender.send(GROUP_B, &datagram(n, 64));
            }
        }
        all.map(|it| it.join().unwrap())
    });
    let [first, second] = &receivers;
    account(&[first, second]);
}
