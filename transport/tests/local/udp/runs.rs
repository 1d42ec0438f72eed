//! Runs of datagrams as one buffer (GSO, GRO): the result equals that of single datagrams.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tickcast_reliability::delivery::LineId;
use tickcast_reliability::ring::{Geometry, HeapMemory, RingIdentity, RingWriter, Seal};
use tickcast_reliability::types::{
    ChannelId, ConfigHash, Epoch, FanOutId, Nanos, RecordNumber, Sequence, SequenceRange, SourceId,
    SourcePosition,
};
use tickcast_reliability::wire::Kind;
use tickcast_transport::faults::{FaultConfig, FaultyReceiver};
use tickcast_transport::host::interface::Interface;
use tickcast_transport::udp::{
    UdpFanOut, UdpFanOutConfig, UdpReceiver, UdpReceiverConfig, UdpSendLine,
};
use tickcast_transport::{FanOut, Receive};

use super::{
    STRANGER, Seen, TestSlots, group, nothing_arrives, poll, poll_until, range, receive_config,
    send_config,
};

/// Whether runs are sent and received as one, in every combination.
const OFFLOADS: [(bool, bool); 4] = [(true, true), (true, false), (false, true), (false, false)];

fn open(group: SocketAddrV4, (gso, gro): (bool, bool)) -> (UdpFanOut, UdpReceiver) {
    let receiver = UdpReceiver::open(&UdpReceiverConfig {
        receive_buffer_bytes: Some(8 << 20),
        gro,
        ..receive_config(&[group], &[Ipv4Addr::LOCALHOST])
    });
    let fan_out = UdpFanOut::open(&UdpFanOutConfig {
        gso,
        ..send_config(&[group], 1472)
    });
    (fan_out.unwrap(), receiver.unwrap())
}

fn numbers(seen: &Seen) -> Vec<u64> {
    seen.iter().map(|(.., number)| *number).collect()
}

#[test]
fn neighbouring_slots_arrive_as_they_were_sealed() {
    let geometry = Geometry::new(1472, 64).unwrap();
    let identity = RingIdentity {
        channel: ChannelId(1),
        epoch: Epoch(2),
        config_hash: ConfigHash(3),
        boot_id: [0; 16],
        fan_outs: 1,
        first_sequence: Sequence(1),
        first_record: RecordNumber(1),
    };
    let memory = Arc::new(HeapMemory::new(geometry));
    let mut ring = RingWriter::create(memory, geometry, identity).unwrap();
    let (mut fan_out, mut receiver) = open(group(), (true, true));
    // Posts begin and end anywhere in the ring. Most datagrams fill their slots, some nearly, some do not.
    let (mut next, mut padding) = (1, 0);
    for count in (2..=40).chain([64, 64]) {
        let range = range(next, next + count - 1);
        for n in range.iter() {
            ring.open().unwrap();
            let len = match n.0 % 29 {
                7 => 1344,
                11 => 56,
                _ => 1408 - 8 * (n.0 % 8) as usize,
            };
            ring.append(&vec![n.0 as u8; len]).unwrap();
            let seal = Seal {
                kind: Kind::Data,
                count: 1,
                source: SourceId(1),
                source_position: SourcePosition(n.0),
                sent_at: Nanos(n.0),
                flags: 0,
            };
            ring.seal(seal).unwrap();
        }
        let posted = fan_out.post(&ring, range).unwrap();
        assert_eq!(posted.last, Some(range.last));
        ring.set_sent(FanOutId(0), range.last);
        next += count;
        let (mut expected, begun) = (range.first, Instant::now());
        while expected <= range.last {
            let polled = receiver.poll(Nanos(7), &mut |received| {
                let sent = ring.slot(expected).unwrap();
                expected = expected.next();
                let (own, behind) = received.bytes.split_at(sent.len());
                assert_eq!(own, sent);
                assert!(behind.iter().all(|byte| *byte == 0));
                padding += behind.len() as u64;
            });
            assert!(polled.unwrap() > 0 || begun.elapsed() < Duration::from_secs(120));
        }
    }
    let sent = fan_out.stats()[0];
    assert_eq!((sent.datagrams, sent.padding_bytes), (next - 1, padding));
}

#[test]
fn runs_arrive_as_the_datagrams_that_were_posted() {
    for offload in OFFLOADS {
        let (mut fan_out, mut receiver) = open(group(), offload);
        // Full datagrams, short ones between them, and every length of whole records.
        let slots = TestSlots::of(500, |n| match n % 100 {
            0..50 => 1464,
            50..60 => 64 + 56 * (n as usize % 2 * 24 + 1),
            _ => 64 + 56 * (1 + n as usize % 25),
        });
        let mut seen = Seen::new();
        for first in (1..=500).step_by(100) {
            fan_out.post(&slots, range(first, first + 99)).unwrap();
            seen.extend(poll_until(&mut receiver, 100));
        }
        assert_eq!(numbers(&seen), (1..=500).collect::<Vec<_>>(), "{offload:?}");
        let (sent, received) = (fan_out.stats()[0], receiver.stats()[0]);
        assert_eq!((sent.gso, received.gro), offload);
        let bytes: usize = slots.0.values().map(Vec::len).sum();
        assert_eq!((sent.datagrams, sent.bytes), (500, bytes as u64));
        assert_eq!(
            (received.datagrams, received.bytes),
            (500, bytes as u64 + sent.padding_bytes)
        );
        assert_eq!((sent.refused, sent.runs_refused), (0, 0));
        let (gso, both) = (offload.0, offload == (true, true));
        assert_eq!(sent.runs > 0, gso);
        assert!(sent.padding_bytes <= sent.bytes / 8);
        let (runs, of) = if both {
            (sent.runs, sent.run_datagrams)
        } else {
            (0, 0)
        };
        assert_eq!((received.runs, received.run_datagrams), (runs, of));
        assert!(!gso || sent.run_datagrams >= 250, "{sent:?}");
    }
}

#[test]
fn gso_runs_are_sent_on_both_lines() {
    let groups = [group(), group()];
    let mut receiver = UdpReceiver::open(&receive_config(&groups, &[])).unwrap();
    let mut fan_out = UdpFanOut::open(&send_config(&groups, 1472)).unwrap();
    fan_out
        .post(&TestSlots::new(150, 1464), range(1, 150))
        .unwrap();
    let seen = poll_until(&mut receiver, 300);
    for line in [LineId(0), LineId(1)] {
        let on_line = seen.iter().filter(|(l, ..)| *l == line).copied().collect();
        assert_eq!(numbers(&on_line), (1..=150).collect::<Vec<_>>());
        let stats = fan_out.stats()[usize::from(line.0)];
        assert_eq!((stats.run_datagrams, stats.batches), (150, 3));
        let stats = receiver.stats()[usize::from(line.0)];
        assert_eq!(stats.run_datagrams, 150);
    }
}

#[test]
fn single_datagram_is_sent_without_run_or_padding() {
    let (mut fan_out, mut receiver) = open(group(), (true, true));
    let slots = TestSlots::new(20, 120);
    for sequence in 1..=20 {
        let one = SequenceRange::one(Sequence(sequence));
        fan_out.post(&slots, one).unwrap();
    }
    assert!(fan_out.send_copy(&slots.0[&7]).unwrap());
    assert_eq!(poll_until(&mut receiver, 21).len(), 21);
    let (sent, received) = (fan_out.stats()[0], receiver.stats()[0]);
    assert_eq!((sent.runs, sent.padding_bytes, received.runs), (0, 0, 0));
    assert_eq!(received.bytes, 21 * 120);
}

#[test]
fn loaded_call_moves_twenty_datagrams_unallocated() {
    for offload in OFFLOADS {
        let (mut fan_out, mut receiver) = open(group(), offload);
        let slots = TestSlots::new(640, 1464);
        let mut count = 0;
        let counted = allocation_counter::measure(|| {
            // In steps of 64, as a publisher posts.
            for first in (1..=640).step_by(64) {
                let posted = fan_out.post(&slots, range(first, first + 63)).unwrap();
                assert_eq!(posted.last, Some(Sequence(first + 63)));
            }
            while count < 640 {
                count += receiver.poll(Nanos(7), &mut |_| ()).unwrap();
            }
        });
        assert_eq!((count, counted.count_total), (640, 0), "{offload:?}");
        let (sent, received) = (fan_out.stats()[0], receiver.stats()[0]);
        assert!(sent.batches <= 640 / 20, "{offload:?}: {sent:?}");
        assert!(received.batches <= 640 / 20, "{offload:?}: {received:?}");
    }
}

#[test]
fn poll_batch_is_bounded_despite_long_runs() {
    let (mut fan_out, mut receiver) = open(group(), (true, true));
    let slots = TestSlots::new(2_000, 1464);
    fan_out.post(&slots, range(1, 2_000)).unwrap();
    let mut seen = Seen::new();
    poll(&mut receiver, &mut seen);
    while seen.len() < 2_000 {
        // A batch of 64, and the rest of the run at its end.
        assert!(poll(&mut receiver, &mut seen) < 64 + 44);
    }
    assert_eq!(numbers(&seen), (1..=2_000).collect::<Vec<_>>());
}

#[test]
fn oversize_datagrams_within_run_are_each_counted() {
    let group = group();
    let mut receiver = UdpReceiver::open(&UdpReceiverConfig {
        datagram_len_max: 100,
        ..receive_config(&[group], &[])
    })
    .unwrap();
    let mut fan_out = UdpFanOut::open(&send_config(&[group], 1472)).unwrap();
    fan_out
        .post(&TestSlots::new(10, 120), range(1, 10))
        .unwrap();
    fan_out
        .post(&TestSlots::new(11, 64), range(11, 11))
        .unwrap();
    assert_eq!(numbers(&poll_until(&mut receiver, 1)), [11]);
    let stats = receiver.stats()[0];
    assert_eq!((stats.oversize, stats.datagrams), (10, 1));
}

#[test]
fn run_datagrams_of_unlisted_sender_are_each_counted() {
    let group = group();
    let mut receiver = UdpReceiver::open(&UdpReceiverConfig {
        source_specific: false,
        ..receive_config(&[group], &[Ipv4Addr::LOCALHOST])
    })
    .unwrap();
    let mut fan_out = UdpFanOut::open(&UdpFanOutConfig {
        lines: vec![UdpSendLine {
            group,
            interface: Interface::Address(STRANGER),
        }],
        ..send_config(&[], 1472)
    })
    .unwrap();
    fan_out
        .post(&TestSlots::new(10, 120), range(1, 10))
        .unwrap();
    nothing_arrives(&mut receiver);
    let stats = receiver.stats()[0];
    assert_eq!((stats.unknown_senders, stats.run_datagrams), (10, 10));
}

#[test]
fn runs_that_the_kernel_drops_are_counted() {
    let group = group();
    let mut receiver = UdpReceiver::open(&UdpReceiverConfig {
        receive_buffer_bytes: Some(4096),
        ..receive_config(&[group], &[])
    })
    .unwrap();
    let mut fan_out = UdpFanOut::open(&send_config(&[group], 1472)).unwrap();
    let slots = TestSlots::new(301, 1400);
    fan_out.post(&slots, range(1, 300)).unwrap();
    let mut seen = Seen::new();
    while poll(&mut receiver, &mut seen) > 0 {}
    fan_out.post(&slots, range(301, 301)).unwrap();
    seen.extend(poll_until(&mut receiver, 1));
    assert!(seen.len() < 301);
    // The kernel counts a dropped run as one.
    let (sent, received) = (fan_out.stats()[0], receiver.stats()[0]);
    assert_eq!(received.buffer_drops, sent.runs - received.runs);
}

#[test]
fn run_with_odd_segment_length_is_delivered_aligned() {
    let group = group();
    let mut receiver = UdpReceiver::open(&receive_config(&[group], &[])).unwrap();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_multicast_ttl_v4(0).unwrap();
    let segment = 101_i32;
    // SAFETY: the value lives through the call and its size is passed along.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_UDP,
            libc::UDP_SEGMENT,
            (&raw const segment).cast(),
            size_of::<i32>() as libc::socklen_t,
        )
    };
    assert_eq!(set, 0);
    let bytes: Vec<u8> = (0..1000_usize).map(|i| (i / 101) as u8).collect();
    assert_eq!(socket.send_to(&bytes, group).unwrap(), 1000);
    let mut lens = Vec::new();
    while lens.len() < 10 {
        receiver
            .poll(Nanos(7), &mut |received| {
                assert!(received.bytes.as_ptr().addr().is_multiple_of(8));
                assert!(received.bytes.iter().all(|b| *b == lens.len() as u8));
                lens.push(received.bytes.len());
            })
            .unwrap();
    }
    assert_eq!(lens, [101, 101, 101, 101, 101, 101, 101, 101, 101, 91]);
    assert_eq!(receiver.stats()[0].run_datagrams, 10);
}

#[test]
fn injected_faults_act_on_single_datagrams_of_a_run() {
    let faults = FaultConfig {
        seed: 7,
        drop: 0.2,
        ..FaultConfig::default()
    };
    let survivors = |offload| {
        let (mut fan_out, receiver) = open(group(), offload);
        let mut receiver = FaultyReceiver::new(receiver, &faults).unwrap();
        fan_out
            .post(&TestSlots::new(400, 1464), range(1, 400))
            .unwrap();
        let mut survivors = BTreeSet::new();
        while receiver.stats()[0].datagrams < 400 {
            receiver
                .poll(Nanos(7), &mut |received| {
                    let number = u64::from_le_bytes(*received.bytes.first_chunk().unwrap());
                    survivors.insert(number);
                })
                .unwrap();
        }
        survivors
    };
    let plain = survivors((false, false));
    assert!(plain.len() > 250 && plain.len() < 390, "{}", plain.len());
    for offload in OFFLOADS {
        assert_eq!(survivors(offload), plain, "{offload:?}");
    }
}
