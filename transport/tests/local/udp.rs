//! UDP on loopback: posted datagrams arrive, whole and in order, and losses are counted.

mod runs;

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use tickcast_reliability::delivery::LineId;
use tickcast_reliability::types::{Nanos, Sequence, SequenceRange};
use tickcast_transport::host::interface::Interface;
use tickcast_transport::udp::{
    FeedReceiver, FeedReceiverConfig, UdpError, UdpFanOut, UdpFanOutConfig, UdpReceiveLine,
    UdpReceiver, UdpReceiverConfig, UdpSendLine, UdpWarning,
};
use tickcast_transport::{FanOut, FanOutError, Receive, Slots};

const STRANGER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// Returns a group that no other test uses, on a port that was free a moment ago.
fn group() -> SocketAddrV4 {
    static NEXT: AtomicU16 = AtomicU16::new(1);
    let n = NEXT.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    let id = std::process::id() as u8;
    let probe = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = probe.local_addr().unwrap().port();
    SocketAddrV4::new(Ipv4Addr::new(239, 255, id, n[1]), port)
}

/// Slots as a map: sequence to bytes.
#[derive(Default)]
struct TestSlots(HashMap<u64, Vec<u8>>);

impl TestSlots {
    /// Slots of `len` bytes each, beginning with their sequence.
    fn new(count: u64, len: usize) -> Self {
        Self::of(count, |_| len)
    }

    /// Slots of the given lengths, beginning with their sequence and their length.
    fn of(count: u64, len: impl Fn(u64) -> usize) -> Self {
        let slot = |n: u64| {
            let len = len(n);
            let mut bytes = n.to_le_bytes().to_vec();
            bytes.extend((len as u64).to_le_bytes());
            bytes.resize(len, n as u8);
            (n, bytes)
        };
        Self((1..=count).map(slot).collect())
    }
}

impl Slots for TestSlots {
    fn slot(&self, sequence: Sequence) -> Option<&[u8]> {
        self.0.get(&sequence.0).map(Vec::as_slice)
    }
}

fn range(first: u64, last: u64) -> SequenceRange {
    SequenceRange::new(Sequence(first), Sequence(last)).unwrap()
}

fn send_config(groups: &[SocketAddrV4], len: usize) -> UdpFanOutConfig {
    let line = |group: &SocketAddrV4| UdpSendLine {
        group: *group,
        interface: Interface::default(),
    };
    UdpFanOutConfig {
        lines: groups.iter().map(line).collect(),
        ttl: 0,
        send_buffer_bytes: None,
        datagram_len_max: len,
        gso: true,
    }
}

fn receive_config(groups: &[SocketAddrV4], senders: &[Ipv4Addr]) -> UdpReceiverConfig {
    let line = |group: &SocketAddrV4| UdpReceiveLine {
        group: *group,
        interface: Interface::default(),
        senders: senders.to_vec(),
    };
    UdpReceiverConfig {
        lines: groups.iter().map(line).collect(),
        datagram_len_max: 1472,
        receive_buffer_bytes: Some(1 << 20),
        source_specific: true,
        batch: 64,
        busy_poll_us: None,
        gro: true,
    }
}

type Seen = Vec<(LineId, Ipv4Addr, u64)>;

fn poll(receiver: &mut UdpReceiver, seen: &mut Seen) -> usize {
    let polled = receiver.poll(Nanos(7), &mut |received| {
        assert_eq!(received.received_at, Nanos(7));
        assert_eq!(received.bytes.as_ptr().addr() % 64, 0);
        let word = |at: usize| u64::from_le_bytes(*received.bytes[at..].first_chunk().unwrap());
        let number = word(0);
        let (own, padding) = received.bytes.split_at(word(8) as usize);
        assert!(own[16..].iter().all(|b| *b == number as u8));
        assert!(padding.iter().all(|b| *b == 0));
        seen.push((received.line, received.from, number));
    });
    polled.unwrap()
}

/// Polls until `count` datagrams were seen. Fails after a time that no loopback needs.
fn poll_until(receiver: &mut UdpReceiver, count: usize) -> Seen {
    let (mut seen, begun) = (Seen::new(), Instant::now());
    while seen.len() < count {
        if poll(receiver, &mut seen) == 0 {
            assert!(begun.elapsed() < Duration::from_secs(120), "only {seen:?}");
            std::thread::yield_now();
        }
    }
    seen
}

/// Expects no datagrams. Loopback delivers within the send call, so later datagrams are impossible.
fn nothing_arrives(receiver: &mut UdpReceiver) {
    let mut seen = Seen::new();
    assert_eq!(poll(receiver, &mut seen), 0, "{seen:?}");
}

fn stranger(group: SocketAddrV4, number: u64) {
    let config = UdpFanOutConfig {
        lines: vec![UdpSendLine {
            group,
            interface: Interface::Address(STRANGER),
        }],
        ..send_config(&[], 64)
    };
    let mut fan_out = UdpFanOut::open(&config).unwrap();
    let slots = TestSlots::new(number, 64);
    let posted = fan_out.post(&slots, SequenceRange::one(Sequence(number)));
    assert_eq!(posted.unwrap().last, Some(Sequence(number)));
}

#[test]
fn datagrams_arrive_in_the_order_they_were_posted() {
    let groups = [group()];
    let mut receiver = UdpReceiver::open(&receive_config(&groups, &[Ipv4Addr::LOCALHOST])).unwrap();
    let mut fan_out = UdpFanOut::open(&send_config(&groups, 1472)).unwrap();
    assert_eq!(*fan_out.senders()[0].ip(), Ipv4Addr::LOCALHOST);
    let loopback = Interface::default().resolve().unwrap().name;
    let target = format!("{} on {loopback} (127.0.0.1)", groups[0]);
    assert_eq!(receiver.targets().collect::<Vec<_>>(), [target]);
    assert_eq!(fan_out.completed(), None);
    let slots = TestSlots::new(200, 200);
    let posted = fan_out.post(&slots, range(1, 200)).unwrap();
    assert_eq!((posted.last, posted.stalled), (Some(Sequence(200)), false));
    assert_eq!(fan_out.completed(), Some(Sequence(200)));
    let seen = poll_until(&mut receiver, 200);
    let numbers: Vec<u64> = seen.iter().map(|(.., number)| *number).collect();
    assert_eq!(numbers, (1..=200).collect::<Vec<_>>());
    assert!(seen.iter().all(|(_, from, _)| *from == Ipv4Addr::LOCALHOST));
    let stats = fan_out.stats()[0];
    assert_eq!(
        (stats.datagrams, stats.bytes, stats.batches),
        (200, 40_000, 4)
    );
    let padding = stats.padding_bytes;
    let stats = receiver.stats()[0];
    assert_eq!(
        (stats.datagrams, stats.bytes, stats.buffer_drops),
        (200, 40_000 + padding, 0)
    );
}

#[test]
fn udp_fan_out_sends_slots_on_both_lines() {
    let groups = [group(), group()];
    let mut receiver = UdpReceiver::open(&receive_config(&groups, &[Ipv4Addr::LOCALHOST])).unwrap();
    assert_eq!(receiver.raw_fds().len(), 2);
    let mut fan_out = UdpFanOut::open(&send_config(&groups, 1472)).unwrap();
    let slots = TestSlots::new(100, 64);
    fan_out.post(&slots, range(1, 100)).unwrap();
    assert!(fan_out.send_copy(&slots.0[&7]).unwrap());
    let seen = poll_until(&mut receiver, 202);
    for line in [LineId(0), LineId(1)] {
        let on_line = seen
            .iter()
            .filter(|(l, ..)| *l == line)
            .map(|(.., number)| *number);
        assert_eq!(
            on_line.collect::<Vec<_>>(),
            (1..=100).chain([7]).collect::<Vec<_>>()
        );
    }
}

#[test]
fn posted_range_may_start_anywhere() {
    let groups = [group()];
    let mut receiver = UdpReceiver::open(&receive_config(&groups, &[])).unwrap();
    let mut fan_out = UdpFanOut::open(&send_config(&groups, 1472)).unwrap();
    let slots = TestSlots::new(10, 64);
    for (first, last) in [(1, 5), (6, 10), (3, 4)] {
        let posted = fan_out.post(&slots, range(first, last)).unwrap();
        assert_eq!(posted.last, Some(Sequence(last)));
    }
    fan_out.reset();
    assert_eq!(fan_out.completed(), None);
    fan_out.post(&slots, range(1, 1)).unwrap();
    let numbers: Vec<u64> = poll_until(&mut receiver, 13).iter().map(|s| s.2).collect();
    assert_eq!(numbers, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 3, 4, 1]);
}

#[test]
fn unsealed_or_oversize_slot_is_not_sent() {
    let mut fan_out = UdpFanOut::open(&send_config(&[group()], 100)).unwrap();
    let slots = TestSlots::new(3, 101);
    let missing = fan_out.post(&slots, range(4, 4));
    assert!(matches!(
        missing,
        Err(FanOutError::NotSealed {
            sequence: Sequence(4)
        })
    ));
    let long = fan_out.post(&slots, range(1, 3));
    assert!(matches!(
        long,
        Err(FanOutError::TooLong { len: 101, max: 100 })
    ));
    assert_eq!(fan_out.stats()[0].datagrams, 0);
}

#[test]
fn source_specific_join_excludes_other_senders() {
    let group = group();
    let mut receiver =
        UdpReceiver::open(&receive_config(&[group], &[Ipv4Addr::LOCALHOST])).unwrap();
    stranger(group, 9);
    nothing_arrives(&mut receiver);
    let mut fan_out = UdpFanOut::open(&send_config(&[group], 1472)).unwrap();
    fan_out.post(&TestSlots::new(1, 64), range(1, 1)).unwrap();
    assert_eq!(poll_until(&mut receiver, 1)[0].2, 1);
    assert_eq!(
        receiver.stats()[0].unknown_senders,
        0,
        "the kernel kept it out"
    );
}

#[test]
fn any_source_join_drops_and_counts_other_senders() {
    let group = group();
    let config = UdpReceiverConfig {
        source_specific: false,
        ..receive_config(&[group], &[Ipv4Addr::LOCALHOST])
    };
    let mut receiver = UdpReceiver::open(&config).unwrap();
    stranger(group, 9);
    nothing_arrives(&mut receiver);
    assert_eq!(receiver.stats()[0].unknown_senders, 1);
    let mut anybody = UdpReceiver::open(&receive_config(&[group], &[])).unwrap();
    stranger(group, 9);
    assert_eq!(poll_until(&mut anybody, 1), [(LineId(0), STRANGER, 9)]);
}

#[test]
fn dropped_reads_hide_nothing_and_poll_ends() {
    let group = group();
    for gro in [false, true] {
        let config = UdpReceiverConfig {
            source_specific: false,
            datagram_len_max: 100,
            batch: 4,
            gro,
            ..receive_config(&[group], &[Ipv4Addr::LOCALHOST])
        };
        let mut receiver = UdpReceiver::open(&config).unwrap();
        let mut fan_out = UdpFanOut::open(&send_config(&[group], 1472)).unwrap();
        let slots = TestSlots::new(4, 64);
        for number in [1, 3] {
            // After a single datagram, only one buffer is requested.
            fan_out.post(&slots, range(number, number)).unwrap();
            assert_eq!(poll_until(&mut receiver, 1)[0].2, number);
            stranger(group, 9);
            assert!(fan_out.send_copy(&[0; 101]).unwrap());
            let next = number + 1;
            fan_out.post(&slots, range(next, next)).unwrap();
            let mut seen = Seen::new();
            assert_eq!(poll(&mut receiver, &mut seen), 1, "with gro: {gro}");
            assert_eq!(seen[0].2, next);
        }
        // A poll takes at most one batch, however many have arrived.
        (0..8).for_each(|_| stranger(group, 9));
        nothing_arrives(&mut receiver);
        let unknown_senders = receiver.stats()[0].unknown_senders;
        assert!(
            (2 + 4..2 + 8).contains(&unknown_senders),
            "{unknown_senders}"
        );
    }
}

#[test]
fn line_membership_survives_leave_and_rejoin() {
    for senders in [&[Ipv4Addr::LOCALHOST][..], &[]] {
        let group = group();
        let mut receiver = UdpReceiver::open(&receive_config(&[group], senders)).unwrap();
        let mut fan_out = UdpFanOut::open(&send_config(&[group], 1472)).unwrap();
        let slots = TestSlots::new(4, 64);
        receiver.leave(LineId(0)).unwrap();
        receiver.leave(LineId(0)).unwrap();
        fan_out.post(&slots, range(1, 1)).unwrap();
        nothing_arrives(&mut receiver);
        receiver.rejoin(LineId(0)).unwrap();
        fan_out.post(&slots, range(2, 2)).unwrap();
        assert_eq!(poll_until(&mut receiver, 1)[0].2, 2);
        receiver.rejoin(LineId(0)).unwrap();
        receiver.join(LineId(0)).unwrap();
        fan_out.post(&slots, range(3, 3)).unwrap();
        assert_eq!(
            poll_until(&mut receiver, 1)[0].2,
            3,
            "once, though joined twice"
        );
        assert!(receiver.rejoin(LineId(1)).is_err());
    }
}

#[test]
fn groups_on_the_same_port_do_not_mix() {
    let first = group();
    let second = SocketAddrV4::new(*group().ip(), first.port());
    let mut on_first = UdpReceiver::open(&receive_config(&[first], &[])).unwrap();
    let mut on_second = UdpReceiver::open(&receive_config(&[second], &[])).unwrap();
    let mut fan_out = UdpFanOut::open(&send_config(&[second], 1472)).unwrap();
    fan_out.post(&TestSlots::new(1, 64), range(1, 1)).unwrap();
    assert_eq!(poll_until(&mut on_second, 1).len(), 1);
    nothing_arrives(&mut on_first);
}

#[test]
fn kernel_receive_buffer_drops_are_counted() {
    let group = group();
    let config = UdpReceiverConfig {
        receive_buffer_bytes: Some(4096),
        gro: false,
        ..receive_config(&[group], &[])
    };
    let mut receiver = UdpReceiver::open(&config).unwrap();
    let mut fan_out = UdpFanOut::open(&send_config(&[group], 1472)).unwrap();
    let slots = TestSlots::new(301, 1400);
    fan_out.post(&slots, range(1, 300)).unwrap();
    let mut seen = Seen::new();
    while poll(&mut receiver, &mut seen) > 0 {}
    // The first datagram after the drops carries the count.
    fan_out.post(&slots, range(301, 301)).unwrap();
    seen.extend(poll_until(&mut receiver, 1));
    assert!(seen.len() < 301);
    assert_eq!(receiver.stats()[0].buffer_drops, 301 - seen.len() as u64);
}

#[test]
fn oversize_udp_datagram_is_dropped_and_counted() {
    let group = group();
    let config = UdpReceiverConfig {
        datagram_len_max: 100,
        ..receive_config(&[group], &[])
    };
    let mut receiver = UdpReceiver::open(&config).unwrap();
    let mut fan_out = UdpFanOut::open(&send_config(&[group], 1472)).unwrap();
    assert!(fan_out.send_copy(&[0; 101]).unwrap());
    fan_out.post(&TestSlots::new(1, 100), range(1, 1)).unwrap();
    assert_eq!(poll_until(&mut receiver, 1)[0].2, 1);
    assert_eq!(receiver.stats()[0].oversize, 1);
}

#[test]
fn udp_fan_out_can_move_to_another_thread() {
    let group = group();
    let receiver = UdpReceiver::open(&receive_config(&[group], &[])).unwrap();
    let mut fan_out = UdpFanOut::open(&send_config(&[group], 1472)).unwrap();
    let reading = std::thread::spawn(move || {
        let mut receiver = Box::new(receiver);
        poll_until(&mut receiver, 100).len()
    });
    let sending = std::thread::spawn(move || {
        fan_out
            .post(&TestSlots::new(100, 64), range(1, 100))
            .unwrap();
    });
    sending.join().unwrap();
    assert_eq!(reading.join().unwrap(), 100);
}

#[test]
fn ungranted_buffer_names_the_setting() {
    let group = group();
    let config = UdpReceiverConfig {
        receive_buffer_bytes: Some(usize::MAX / 4),
        ..receive_config(&[group], &[])
    };
    let receiver = UdpReceiver::open(&config).unwrap();
    let grant = receiver.buffers()[0];
    assert!(grant.granted_bytes < grant.asked_bytes);
    let [warning @ UdpWarning::Buffer { .. }] = receiver.warnings() else {
        panic!("{:?}", receiver.warnings())
    };
    assert!(
        warning.to_string().contains("sysctl -w net.core.rmem_max="),
        "{warning}"
    );
    let content = UdpReceiver::open(&receive_config(&[group], &[])).unwrap();
    assert!(content.buffers()[0].granted_bytes > 0);
}

#[test]
fn nonsense_is_refused_before_a_socket_is_opened() {
    let unicast = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 4000);
    let no_port = SocketAddrV4::new(Ipv4Addr::new(239, 1, 1, 1), 0);
    for group in [unicast, no_port] {
        let sender = UdpFanOut::open(&send_config(&[group], 1472));
        assert!(matches!(sender, Err(UdpError::NotAGroup { .. })));
        let receiver = UdpReceiver::open(&receive_config(&[group], &[]));
        assert!(matches!(receiver, Err(UdpError::NotAGroup { .. })));
    }
    let none = UdpFanOut::open(&send_config(&[], 1472));
    assert!(matches!(none, Err(UdpError::Lines { lines: 0 })));
    let long = UdpFanOut::open(&send_config(&[group()], 70_000));
    assert!(matches!(
        long,
        Err(UdpError::OutOfRange { value: 70_000, .. })
    ));
}

#[test]
fn datagrams_beyond_the_mtu_are_warned_about() {
    let fan_out = UdpFanOut::open(&send_config(&[group()], 65_507)).unwrap();
    let mtu = Interface::default().resolve().unwrap().mtu.unwrap();
    let expected = usize::from(65_507 + 28 > mtu);
    assert_eq!(
        fan_out.warnings().len(),
        expected,
        "{:?}",
        fan_out.warnings()
    );
}

/// Returns an option of a socket, unless the kernel does not have it.
fn option(socket: BorrowedFd<'_>, name: i32) -> Option<i32> {
    let (mut value, mut len) = (0_i32, size_of::<i32>() as libc::socklen_t);
    // SAFETY: the kernel writes at most `len` bytes into `value`, and the descriptor is borrowed. Exercised
    // by `busy_polling_is_granted_or_warned_about_and_receives`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            name,
            (&raw mut value).cast(),
            &raw mut len,
        )
    };
    (result == 0).then_some(value)
}

/// Whether this kernel and user may poll busily or not, the socket receives, and each option has the
/// requested value or a warning.
#[test]
fn busy_polling_is_granted_or_warned_about_and_receives() {
    let group = group();
    let mut config = receive_config(&[group], &[Ipv4Addr::LOCALHOST]);
    config.busy_poll_us = Some(50);
    let mut receiver = UdpReceiver::open(&config).unwrap();
    let refused: Vec<_> = (receiver.warnings().iter())
        .filter_map(|warning| match warning {
            UdpWarning::BusyPoll { option, .. } => Some(*option),
            _ => None,
        })
        .collect();
    // The kernel does not report SO_BUSY_POLL_BUDGET.
    let expected = [
        ("SO_BUSY_POLL", libc::SO_BUSY_POLL, 50),
        ("SO_PREFER_BUSY_POLL", libc::SO_PREFER_BUSY_POLL, 1),
    ];
    let is_refused = |name| refused.contains(&name) || refused.contains(&"SO_BUSY_POLL");
    for (name, number, value) in expected {
        let found = option(receiver.fds()[0], number);
        assert!(
            is_refused(name) || found == Some(value),
            "{name}: {found:?}"
        );
    }
    let mut fan_out = UdpFanOut::open(&send_config(&[group], 64)).unwrap();
    let slots = TestSlots::new(3, 64);
    fan_out.post(&slots, range(1, 3)).unwrap();
    assert_eq!(poll_until(&mut receiver, 3).len(), 3);
}

#[test]
fn feed_arrives_by_unicast_and_source_multicast_only() {
    let config = |listen, source| FeedReceiverConfig {
        listen,
        interface: Interface::default(),
        source,
        datagram_len_max: 2_000,
        receive_buffer_bytes: None,
        batch: 64,
        busy_poll_us: None,
    };
    let count = |receiver: &mut FeedReceiver| {
        receiver
            .poll(&mut |datagram| assert_eq!(datagram.bytes, b"tick"))
            .unwrap()
    };
    let anywhere = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0);
    let mut unicast = FeedReceiver::open(&config(anywhere, Some(Ipv4Addr::LOCALHOST))).unwrap();
    let to = unicast.local_address().unwrap();
    UdpSocket::bind("127.0.0.1:0")
        .unwrap()
        .send_to(b"tick", to)
        .unwrap();
    UdpSocket::bind("127.0.0.2:0")
        .unwrap()
        .send_to(b"tick", to)
        .unwrap();
    assert_eq!(count(&mut unicast), 1);
    assert_eq!(unicast.stats().unknown_senders, 1);

    let group = group();
    let mut multicast = FeedReceiver::open(&config(group, Some(Ipv4Addr::LOCALHOST))).unwrap();
    stranger(group, 1);
    let mut fan_out = UdpFanOut::open(&send_config(&[group], 64)).unwrap();
    fan_out.send_copy(b"tick").unwrap();
    assert_eq!(count(&mut multicast), 1);
}
