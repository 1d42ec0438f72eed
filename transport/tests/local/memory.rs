//! The in-memory transport is strict: early writes corrupt, buffers run out, queues stall.

use std::net::Ipv4Addr;
use std::sync::Arc;

use tickcast_reliability::control::{FRAME_HEAD_LEN, Message};
use tickcast_reliability::delivery::LineId;
use tickcast_reliability::ring::RingMemory;
use tickcast_reliability::types::{ChannelId, Nanos, Sequence, SequenceRange};
use tickcast_transport::control::SendError;
use tickcast_transport::faults::{FaultConfig, FaultyReceiver, Scripted};
use tickcast_transport::host::mapping::SharedMapping;
use tickcast_transport::memory::{Completion, LinkEvent, MemoryNetwork, MemoryNetworkConfig, link};
use tickcast_transport::{FanOut, FanOutError, Receive, Slots};

const SLOT: usize = 64;

/// Eight slots in a mapping, each filled with one byte.
#[derive(Clone)]
struct Ring(Arc<SharedMapping>);

impl Ring {
    fn new() -> Self {
        let ring = Self(Arc::new(SharedMapping::memfd("test", 8 * SLOT).unwrap()));
        (1..=8).for_each(|n| ring.write(n, n as u8));
        ring
    }

    fn write(&self, sequence: u64, value: u8) {
        let slot = (sequence as usize % 8) * SLOT;
        for i in 0..SLOT {
            // SAFETY: within the mapping; these tests have one thread and no slot is borrowed.
            unsafe { self.0.as_ptr().add(slot + i).write(value) };
        }
    }
}

impl Slots for Ring {
    fn slot(&self, sequence: Sequence) -> Option<&[u8]> {
        let offset = (sequence.0 as usize % 8) * SLOT;
        // SAFETY: within the mapping, which is not written while the slice lives.
        Some(unsafe { std::slice::from_raw_parts(self.0.as_ptr().add(offset), SLOT) })
    }
}

fn range(first: u64, last: u64) -> SequenceRange {
    SequenceRange::new(Sequence(first), Sequence(last)).unwrap()
}

/// Polls, and returns the first byte of each datagram.
fn poll(receiver: &mut impl Receive) -> Vec<u8> {
    let mut seen = Vec::new();
    let polled = receiver.poll(Nanos(1), &mut |received| {
        assert_eq!(received.bytes.as_ptr().addr() % 8, 0);
        assert!(received.bytes.iter().all(|b| *b == received.bytes[0]));
        seen.push(received.bytes[0]);
    });
    assert_eq!(polled.unwrap(), seen.len());
    seen
}

fn manual() -> MemoryNetworkConfig {
    MemoryNetworkConfig {
        completion: Completion::Manual,
        ..MemoryNetworkConfig::default()
    }
}

#[test]
fn slot_overwritten_before_completion_is_sent_corrupted() {
    let (network, ring) = (MemoryNetwork::new(manual()), Ring::new());
    let mut fan_out = network.fan_out(ring.0.clone(), Ipv4Addr::LOCALHOST);
    let mut receiver = network.receiver();
    fan_out.post(&ring, range(1, 3)).unwrap();
    network.complete(1);
    assert_eq!(fan_out.completed(), Some(Sequence(1)));
    ring.write(1, 99); // allowed: it is completed
    ring.write(2, 98); // too early
    network.complete(2);
    assert_eq!(fan_out.completed(), Some(Sequence(3)));
    assert_eq!(poll(&mut receiver), [1, 98, 3]);
}

#[test]
fn sends_complete_after_the_polls_that_were_configured() {
    let config = MemoryNetworkConfig {
        completion: Completion::AfterPolls(2),
        ..MemoryNetworkConfig::default()
    };
    let (network, ring) = (MemoryNetwork::new(config), Ring::new());
    let mut fan_out = network.fan_out(ring.0.clone(), Ipv4Addr::LOCALHOST);
    let mut receiver = network.receiver();
    fan_out.post(&ring, range(1, 2)).unwrap();
    assert_eq!(fan_out.completed(), None);
    assert_eq!(poll(&mut receiver), [1, 2]);
    assert_eq!(fan_out.completed(), Some(Sequence(2)));
}

#[test]
fn datagrams_that_find_no_buffer_are_lost_and_counted() {
    let config = MemoryNetworkConfig {
        receive_buffers: 2,
        ..manual()
    };
    let (network, ring) = (MemoryNetwork::new(config), Ring::new());
    let mut fan_out = network.fan_out(ring.0.clone(), Ipv4Addr::LOCALHOST);
    let (mut slow, mut quick) = (network.receiver(), network.receiver());
    fan_out.post(&ring, range(1, 5)).unwrap();
    for n in 1..=5 {
        network.complete(1);
        assert_eq!(poll(&mut quick), [n]);
    }
    assert_eq!(poll(&mut slow), [1, 2]);
    assert_eq!(slow.stats()[0].buffer_drops, 3);
    assert_eq!(quick.stats()[0].buffer_drops, 0);
    // A buffer lent to the application is occupied, even while another datagram arrives.
    fan_out.post(&ring, range(6, 8)).unwrap();
    network.complete(2);
    let mut seen = Vec::new();
    let polled = slow.poll(Nanos(2), &mut |received| {
        network.complete(1);
        seen.push(received.bytes[0]);
    });
    assert_eq!((polled.unwrap(), seen), (2, vec![6, 7]));
    assert_eq!(slow.stats()[0].buffer_drops, 4);
}

#[test]
fn full_queue_reports_stall_and_reset_flushes_it() {
    let config = MemoryNetworkConfig {
        send_queue_len: 4,
        ..manual()
    };
    let (network, ring) = (MemoryNetwork::new(config), Ring::new());
    let mut fan_out = network.fan_out(ring.0.clone(), Ipv4Addr::LOCALHOST);
    let mut receiver = network.receiver();
    let posted = fan_out.post(&ring, range(1, 8)).unwrap();
    assert_eq!((posted.last, posted.stalled), (Some(Sequence(4)), true));
    network.complete(1);
    network.stall(true);
    let posted = fan_out.post(&ring, range(5, 8)).unwrap();
    assert_eq!((posted.last, posted.stalled), (None, true));
    assert!(!fan_out.send_copy(&[7; 8]).unwrap());
    network.complete(9);
    assert_eq!(fan_out.completed(), Some(Sequence(1)));
    fan_out.reset();
    let stats = fan_out.stats()[0];
    assert_eq!((fan_out.completed(), stats.flushed), (None, 3));
    assert_eq!(stats.datagrams, 4, "handed over, whatever came back");
    network.stall(false);
    ring.write(2, 50); // nothing is pinned any more
    fan_out.post(&ring, range(8, 8)).unwrap();
    network.complete(9);
    assert_eq!(poll(&mut receiver), [1, 8]);
}

#[test]
fn sent_copy_does_not_overtake_posted_slots() {
    let (network, ring) = (MemoryNetwork::new(manual()), Ring::new());
    let mut fan_out = network.fan_out(ring.0.clone(), Ipv4Addr::LOCALHOST);
    let mut receiver = network.receiver();
    assert!(fan_out.send_copy(&[91; 8]).unwrap());
    fan_out.post(&ring, range(1, 2)).unwrap();
    assert!(fan_out.send_copy(&[92; 8]).unwrap());
    fan_out.post(&ring, range(3, 3)).unwrap();
    network.complete(3);
    assert_eq!(poll(&mut receiver), [91, 1, 2, 92]);
    assert_eq!(
        fan_out.completed(),
        Some(Sequence(2)),
        "a copy pins nothing"
    );
    network.complete(1);
    assert_eq!(poll(&mut receiver), [3]);
    assert_eq!(fan_out.completed(), Some(Sequence(3)));
    let stats = fan_out.stats()[0];
    assert_eq!((stats.datagrams, stats.bytes), (5, 3 * 64 + 2 * 8));
}

#[test]
fn slot_outside_registered_memory_is_refused() {
    let (network, ring, other) = (MemoryNetwork::new(manual()), Ring::new(), Ring::new());
    let mut fan_out = network.fan_out(ring.0.clone(), Ipv4Addr::LOCALHOST);
    let posted = fan_out.post(&other, range(1, 1));
    assert!(matches!(
        posted,
        Err(FanOutError::NotRegistered {
            sequence: Sequence(1)
        })
    ));
}

#[test]
fn lines_are_cut_left_and_forgotten_each_for_itself() {
    let config = MemoryNetworkConfig {
        lines: 2,
        ..manual()
    };
    let (network, ring) = (MemoryNetwork::new(config), Ring::new());
    let mut fan_out = network.fan_out(ring.0.clone(), Ipv4Addr::LOCALHOST);
    let mut receiver = network.receiver();
    let mut round = |receiver: &mut _, n: u64| {
        fan_out.post(&ring, range(n, n)).unwrap();
        network.complete(1);
        poll(receiver).len()
    };
    assert_eq!(round(&mut receiver, 1), 2);
    network.cut(LineId(0), true);
    assert_eq!(round(&mut receiver, 2), 1);
    network.forget(&receiver, LineId(1));
    assert_eq!(round(&mut receiver, 3), 0);
    receiver.rejoin(LineId(1)).unwrap();
    network.cut(LineId(0), false);
    receiver.leave(LineId(0)).unwrap();
    assert_eq!(round(&mut receiver, 4), 1);
    assert!(receiver.join(LineId(2)).is_err());
}

#[test]
fn faults_wrap_any_receiver() {
    let (network, ring) = (MemoryNetwork::new(manual()), Ring::new());
    let mut fan_out = network.fan_out(ring.0.clone(), Ipv4Addr::LOCALHOST);
    let config = FaultConfig {
        script: vec![Scripted::DropBurst { from: 1, count: 2 }],
        ..FaultConfig::default()
    };
    let mut receiver = FaultyReceiver::new(network.receiver(), &config).unwrap();
    fan_out.post(&ring, range(1, 5)).unwrap();
    network.complete(5);
    assert_eq!(poll(&mut receiver), [1, 4, 5]);
    assert_eq!(
        receiver
            .injector(LineId(0))
            .unwrap()
            .counts()
            .scripted_dropped,
        2
    );
    assert_eq!(receiver.stats()[0].datagrams, 5, "the network did its part");
}

#[test]
fn link_carries_frames_until_cut_and_after_restore() {
    let (handle, mut publisher, mut subscriber) = link(64);
    assert_eq!(
        subscriber.send(ChannelId(1), &Message::Leave),
        Err(SendError::NotConnected)
    );
    let event = |end: &mut tickcast_transport::memory::LinkEnd| {
        let mut seen = Vec::new();
        end.poll(|event| {
            seen.push(match event {
                LinkEvent::Connected => "up".to_owned(),
                LinkEvent::Frame(channel, message) => format!("{channel} {message:?}"),
                LinkEvent::Disconnected(why) => format!("down {}", why.is_some()),
            });
        });
        seen
    };
    assert_eq!(event(&mut subscriber), ["up"]);
    subscriber.send(ChannelId(1), &Message::Leave).unwrap();
    assert_eq!(event(&mut publisher), ["up", "1 Leave"]);
    publisher
        .send(ChannelId(2), &Message::Datagram(&[7; 8]))
        .unwrap();
    let full = publisher.send(ChannelId(2), &Message::Datagram(&[7; 60]));
    let backlog = FRAME_HEAD_LEN + 8;
    assert_eq!(full, Err(SendError::Full { backlog, max: 64 }));
    handle.cut();
    assert_eq!(event(&mut subscriber), ["down false"]);
    handle.restore();
    assert_eq!(
        event(&mut publisher),
        ["down false"],
        "although it is up again"
    );
    assert_eq!(event(&mut publisher), ["up"]);
    assert_eq!(
        event(&mut subscriber),
        ["up"],
        "what was on its way is gone"
    );
    handle.forge_to_publisher(&[0xff; 16]);
    assert_eq!(event(&mut publisher), ["down true"]);
    assert_eq!(event(&mut subscriber), ["down false"]);
}
