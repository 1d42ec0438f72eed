//! Verbs on a real device: posted slots arrive, whole and in order; failures are distinguished; and all
//! resources are freed on drop. The tests need a device, so `make test-rdma` runs
//! them in its virtual machine (tests/lab/vm); the address of the device is `TICKCAST_RDMA_ADDRESS`.

use std::net::Ipv4Addr;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use tickcast_reliability::delivery::LineId;
use tickcast_reliability::ring::RingMemory;
use tickcast_reliability::types::{Nanos, Sequence, SequenceRange};
use tickcast_transport::host::interface::Interface;
use tickcast_transport::host::mapping::SharedMapping;
use tickcast_transport::verbs::{
    Device, RateLimit, VerbsError, VerbsFanOut, VerbsFanOutConfig, VerbsReceiveLine, VerbsReceiver,
    VerbsReceiverConfig, VerbsSendLine, VerbsSender,
};
use tickcast_transport::{FanOut, FanOutError, Receive, Slots};

use crate::device::{address, resources, until};

const Q_KEY: u32 = 0x1234_5678;
const SLOT_LEN: usize = 1024;
pub(crate) const SLOTS: u64 = 4096;

/// Changes an address or the MTU of the device's interface, as its administrator might.
pub(crate) fn ip(arguments: &str) {
    let interface = std::env::var("TICKCAST_RDMA_INTERFACE").unwrap_or_else(|_| "dummy0".into());
    let arguments = arguments.replace("DEV", &interface);
    let status = std::process::Command::new("ip")
        .args(arguments.split(' '))
        .status()
        .unwrap();
    assert!(status.success(), "ip {arguments}");
}

/// Returns a group that no other test uses.
pub(crate) fn group() -> Ipv4Addr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    Ipv4Addr::new(
        239,
        9,
        std::process::id() as u8,
        NEXT.fetch_add(1, Ordering::Relaxed),
    )
}

/// A ring of slots that begin with their sequence and are filled with it.
pub(crate) struct TestRing {
    pub(crate) memory: Arc<dyn RingMemory>,
    len: fn(u64) -> usize,
}

impl TestRing {
    pub(crate) fn new(len: fn(u64) -> usize) -> Self {
        let memory = SharedMapping::memfd("ring", SLOT_LEN * SLOTS as usize).unwrap();
        for sequence in 0..SLOTS {
            for at in 0..SLOT_LEN {
                let byte = sequence
                    .to_le_bytes()
                    .get(at)
                    .copied()
                    .unwrap_or(sequence as u8);
                // SAFETY: within the mapping, which nobody else has yet.
                unsafe {
                    memory
                        .as_ptr()
                        .add(sequence as usize * SLOT_LEN + at)
                        .write(byte);
                };
            }
        }
        Self {
            memory: Arc::new(memory),
            len,
        }
    }
}

impl Slots for TestRing {
    fn slot(&self, sequence: Sequence) -> Option<&[u8]> {
        let at = sequence.0 as usize * SLOT_LEN;
        // SAFETY: within the mapping, which is not written any more.
        (sequence.0 < SLOTS).then(|| unsafe {
            std::slice::from_raw_parts(self.memory.as_ptr().add(at), (self.len)(sequence.0))
        })
    }
}

/// Lengths of which some fit into a request and some do not.
pub(crate) fn mixed(sequence: u64) -> usize {
    if sequence.is_multiple_of(3) {
        100
    } else {
        SLOT_LEN
    }
}

pub(crate) fn send_config(groups: &[Ipv4Addr]) -> VerbsFanOutConfig {
    let line = |group: &Ipv4Addr| VerbsSendLine {
        group: *group,
        interface: Interface::Address(address()),
    };
    VerbsFanOutConfig {
        lines: groups.iter().map(line).collect(),
        datagram_len_max: SLOT_LEN,
        q_key: Q_KEY,
        traffic_class: 0xb8,
        service_level: None,
        send_depth: 256,
        signal_every: 16,
        inline_bytes: 200,
        pace: None,
    }
}

pub(crate) fn receive_config(groups: &[Ipv4Addr]) -> VerbsReceiverConfig {
    let line = |group: &Ipv4Addr| VerbsReceiveLine {
        group: *group,
        interface: Interface::Address(address()),
        senders: vec![sender(address())],
    };
    VerbsReceiverConfig {
        lines: groups.iter().map(line).collect(),
        datagram_len_max: SLOT_LEN,
        q_key: Q_KEY,
        depth: 1024,
        batch: 64,
        waitable: true,
    }
}

fn sender(address: Ipv4Addr) -> VerbsSender {
    let gid = address.to_ipv6_mapped();
    VerbsSender { address, gid }
}

pub(crate) fn receiver(config: &VerbsReceiverConfig) -> VerbsReceiver {
    let mut receiver = VerbsReceiver::open(config).unwrap();
    let begun = Instant::now();
    while !receiver.is_joined() {
        poll(&mut receiver, &mut Vec::new());
        assert!(begun.elapsed() < Duration::from_secs(120), "never joined");
        std::thread::sleep(Duration::from_millis(1));
    }
    receiver
}

/// Sequences by line, each checked byte by byte.
pub(crate) type Seen = Vec<(u8, u64)>;

pub(crate) fn poll(receiver: &mut VerbsReceiver, seen: &mut Seen) -> usize {
    let polled = receiver.poll(Nanos(7), &mut |received| {
        assert_eq!((received.from, received.received_at), (address(), Nanos(7)));
        assert_eq!(received.bytes.as_ptr().addr() % 64, 0);
        let sequence = u64::from_le_bytes(*received.bytes.first_chunk().unwrap());
        assert!(received.bytes[8..].iter().all(|b| *b == sequence as u8));
        seen.push((received.line.0, sequence));
    });
    polled.unwrap()
}

fn poll_until(receiver: &mut VerbsReceiver, count: usize) -> Seen {
    let (mut seen, begun) = (Seen::new(), Instant::now());
    while seen.len() < count {
        if poll(receiver, &mut seen) == 0 {
            assert!(
                begun.elapsed() < Duration::from_secs(120),
                "only {}: {seen:?}",
                seen.len()
            );
            std::thread::yield_now();
        }
    }
    seen
}

/// Waits for datagrams in flight to arrive, and expects none.
fn nothing_arrives(receiver: &mut VerbsReceiver) {
    std::thread::sleep(Duration::from_millis(200));
    let mut seen = Seen::new();
    assert_eq!(poll(receiver, &mut seen), 0, "{seen:?}");
}

pub(crate) fn range(first: u64, last: u64) -> SequenceRange {
    SequenceRange::new(Sequence(first), Sequence(last)).unwrap()
}

/// Posts all of a range and calls `each` between the posts.
fn post_all(
    fan_out: &mut VerbsFanOut,
    ring: &TestRing,
    mut first: u64,
    last: u64,
    mut each: impl FnMut(),
) {
    let begun = Instant::now();
    while first <= last {
        let posted = fan_out.post(ring, range(first, last)).unwrap();
        first = posted.last.map_or(first, |sequence| sequence.0 + 1);
        each();
        assert!(
            begun.elapsed() < Duration::from_secs(120),
            "stuck at {first}"
        );
    }
}

fn completed(fan_out: &mut VerbsFanOut, least: u64) {
    let begun = Instant::now();
    while fan_out.completed().unwrap_or_default() < Sequence(least) {
        assert!(
            begun.elapsed() < Duration::from_secs(120),
            "{:?}",
            fan_out.completed()
        );
        std::thread::yield_now();
    }
}

/// Waits until all datagrams that the device did not return have arrived.
fn poll_rest(fan_out: &mut VerbsFanOut, receiver: &mut VerbsReceiver, seen: &mut Seen) {
    until("a datagram is missing", || {
        poll(receiver, seen);
        fan_out.completed();
        let stats = fan_out.stats()[0];
        seen.len() as u64 == stats.datagrams - stats.flushed
    });
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn rdma_device_reports_its_port_attributes() {
    let device = Device::open(address()).unwrap();
    assert!(device.name().starts_with("rxe") || !device.name().is_empty());
    assert_eq!((device.address(), device.port()), (address(), 1));
    assert!(
        [1024, 2048, 4096].contains(&device.mtu()),
        "{}",
        device.mtu()
    );
    assert!(device.reads_max() > 0);
    assert_eq!(device.gid().to_ipv4_mapped(), Some(address()), "RoCEv2");
    assert_eq!(device.hardware_counter("there is no such counter"), None);
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn address_without_rdma_device_is_refused() {
    let error = Device::open(Ipv4Addr::new(192, 0, 2, 1)).unwrap_err();
    assert!(matches!(error, VerbsError::NoDevice { .. }), "{error}");
    let error = Device::open(Ipv4Addr::LOCALHOST).unwrap_err();
    assert!(matches!(error, VerbsError::NoDevice { .. }), "{error}");
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn verbs_fan_out_reaches_all_receivers() {
    let (group, ring) = (group(), TestRing::new(mixed));
    // All datagrams find a buffer, even if this thread does not run meanwhile.
    let config = VerbsReceiverConfig {
        depth: 4_096,
        ..receive_config(&[group])
    };
    let mut receivers = [receiver(&config), receiver(&config)];
    let mut fan_out = VerbsFanOut::open(&send_config(&[group]), &ring.memory).unwrap();
    let mut seen = [Seen::new(), Seen::new()];
    std::thread::scope(|scope| {
        // Used on another thread than the one that opened it.
        let fan_out = &mut fan_out;
        let ring = &ring;
        let sender = scope.spawn(move || {
            post_all(fan_out, ring, 1, 2_000, || {
                std::thread::sleep(Duration::from_millis(2));
            });
        });
        for (receiver, seen) in receivers.iter_mut().zip(&mut seen) {
            *seen = Seen::new();
            let _ = (receiver, seen);
        }
        let begun = Instant::now();
        while seen.iter().any(|seen| seen.len() < 2_000) {
            for (receiver, seen) in receivers.iter_mut().zip(&mut seen) {
                poll(receiver, seen);
            }
            assert!(
                begun.elapsed() < Duration::from_secs(120),
                "{:?}",
                seen.each_ref().map(Vec::len)
            );
        }
        sender.join().unwrap();
    });
    let whole: Seen = (1..=2_000).map(|sequence| (0, sequence)).collect();
    assert_eq!(seen[0], whole);
    assert_eq!(seen[1], whole);
    // The last sends may be unsignalled; all up to the last signalled one are free again.
    completed(&mut fan_out, 2_000 / 16 * 16);
    let stats = fan_out.stats()[0];
    let bytes: u64 = (1..=2_000).map(|sequence| mixed(sequence) as u64).sum();
    assert_eq!(
        (stats.datagrams, stats.bytes, stats.refused),
        (2_000, bytes, 0)
    );
    assert!(stats.batches < 2_000, "chained: {stats:?}");
    // Heartbeats and multicast repairs, of both sizes.
    assert!(fan_out.send_copy(ring.slot(Sequence(3)).unwrap()).unwrap());
    assert!(fan_out.send_copy(ring.slot(Sequence(4)).unwrap()).unwrap());
    assert_eq!(poll_until(&mut receivers[0], 2), [(0, 3), (0, 4)]);
    // The sender receives none of its own datagrams and has no buffers, so nothing may be dropped.
    assert_eq!(receivers[0].stats()[0].datagrams, 2_002);
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn verbs_lines_each_carry_all_datagrams() {
    let (groups, ring) = ([group(), group()], TestRing::new(mixed));
    let mut receiver = receiver(&receive_config(&groups));
    let mut fan_out = VerbsFanOut::open(&send_config(&groups), &ring.memory).unwrap();
    post_all(&mut fan_out, &ring, 1, 100, || ());
    let mut seen = poll_until(&mut receiver, 200);
    seen.sort_unstable();
    let whole: Seen = (0..2)
        .flat_map(|line| (1..=100).map(move |s| (line, s)))
        .collect();
    assert_eq!(seen, whole);
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn datagram_with_wrong_q_key_is_not_received() {
    let (group, ring) = (group(), TestRing::new(mixed));
    let mut receiver = receiver(&receive_config(&[group]));
    let mut config = send_config(&[group]);
    config.q_key = Q_KEY + 1;
    let mut stranger = VerbsFanOut::open(&config, &ring.memory).unwrap();
    post_all(&mut stranger, &ring, 1, 50, || ());
    nothing_arrives(&mut receiver);
    // Members with the right key are not affected.
    let mut fan_out = VerbsFanOut::open(&send_config(&[group]), &ring.memory).unwrap();
    post_all(&mut fan_out, &ring, 51, 60, || ());
    assert_eq!(poll_until(&mut receiver, 10).len(), 10);
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn oversize_datagram_is_dropped_and_counted() {
    let (group, ring) = (group(), TestRing::new(|_| SLOT_LEN));
    let mut config = receive_config(&[group]);
    config.datagram_len_max = 512;
    let mut receiver = receiver(&config);
    let mut fan_out = VerbsFanOut::open(&send_config(&[group]), &ring.memory).unwrap();
    post_all(&mut fan_out, &ring, 1, 20, || ());
    let begun = Instant::now();
    while receiver.stats()[0].oversize < 20 {
        poll(&mut receiver, &mut Seen::new());
        assert!(begun.elapsed() < Duration::from_secs(120));
    }
    let short = TestRing {
        memory: Arc::clone(&ring.memory),
        len: |_| 100,
    };
    post_all(&mut fan_out, &short, 21, 30, || ());
    assert_eq!(poll_until(&mut receiver, 10).len(), 10);
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn datagram_beyond_receiver_mtu_is_counted_oversize() {
    let (group, ring) = (group(), TestRing::new(|_| 4 * SLOT_LEN));
    ip("link set DEV mtu 1500");
    let mut receiver = receiver(&receive_config(&[group]));
    assert_eq!(receiver.devices()[0].mtu(), 1024);
    ip("link set DEV mtu 4200");
    let mut config = send_config(&[group]);
    config.datagram_len_max = 4 * SLOT_LEN;
    let mut large = VerbsFanOut::open(&config, &ring.memory).unwrap();
    post_all(&mut large, &ring, 1, 20, || ());
    let begun = Instant::now();
    while receiver.stats()[0].oversize < 20 {
        poll(&mut receiver, &mut Seen::new());
        assert!(begun.elapsed() < Duration::from_secs(120));
    }
    let mut fan_out = VerbsFanOut::open(&send_config(&[group]), &ring.memory).unwrap();
    let small = TestRing {
        memory: Arc::clone(&ring.memory),
        len: mixed,
    };
    post_all(&mut fan_out, &small, 21, 30, || ());
    assert_eq!(poll_until(&mut receiver, 10).len(), 10);
    let stats = receiver.stats()[0];
    assert_eq!(
        (stats.restarts, stats.transient_errors),
        (0, 0),
        "{stats:?}"
    );
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn datagrams_from_an_unknown_sender_are_dropped_and_counted() {
    let (group, ring) = (group(), TestRing::new(mixed));
    let mut config = receive_config(&[group]);
    config.lines[0].senders = vec![sender(Ipv4Addr::new(192, 0, 2, 9))];
    let mut receiver = receiver(&config);
    let mut fan_out = VerbsFanOut::open(&send_config(&[group]), &ring.memory).unwrap();
    post_all(&mut fan_out, &ring, 1, 20, || ());
    let begun = Instant::now();
    while receiver.stats()[0].unknown_senders < 20 {
        assert!(poll(&mut receiver, &mut Seen::new()) <= 20);
        assert!(begun.elapsed() < Duration::from_secs(120));
    }
    assert_eq!(receiver.stats()[0].datagrams, 0);
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn receiver_recovers_after_buffer_exhaustion() {
    let (group, ring) = (group(), TestRing::new(mixed));
    let mut config = receive_config(&[group]);
    config.depth = 32;
    let mut receiver = receiver(&config);
    let mut fan_out = VerbsFanOut::open(&send_config(&[group]), &ring.memory).unwrap();
    post_all(&mut fan_out, &ring, 1, 200, || ());
    completed(&mut fan_out, 192);
    // All buffers were free, so at least the first datagrams arrive. Others may arrive yet, or never: so
    // many more are sent until the last one arrives.
    let mut seen = poll_until(&mut receiver, 32);
    let mut last = 200;
    while seen.last() != Some(&(0, last)) {
        last += 1;
        post_all(&mut fan_out, &ring, last, last, || ());
        std::thread::sleep(Duration::from_millis(100));
        while poll(&mut receiver, &mut seen) > 0 {}
    }
    assert!(seen.windows(2).all(|pair| pair[0].1 < pair[1].1));
    post_all(&mut fan_out, &ring, last + 1, last + 20, || ());
    let whole: Seen = (last + 1..=last + 20)
        .map(|sequence| (0, sequence))
        .collect();
    assert_eq!(poll_until(&mut receiver, 20), whole);
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn verbs_receiver_resumes_after_leave_and_rejoin() {
    let (group, ring) = (group(), TestRing::new(mixed));
    let mut receiver = receiver(&receive_config(&[group]));
    let mut fan_out = VerbsFanOut::open(&send_config(&[group]), &ring.memory).unwrap();
    receiver.leave(LineId(0)).unwrap();
    post_all(&mut fan_out, &ring, 1, 20, || ());
    nothing_arrives(&mut receiver);
    receiver.rejoin(LineId(0)).unwrap();
    let begun = Instant::now();
    while !receiver.is_joined() {
        poll(&mut receiver, &mut Seen::new());
        assert!(begun.elapsed() < Duration::from_secs(120));
    }
    post_all(&mut fan_out, &ring, 21, 40, || ());
    assert_eq!(poll_until(&mut receiver, 20).len(), 20);
    assert_eq!(receiver.stats()[0].joins, 2);
    assert!(receiver.join(LineId(1)).is_err());
}

/// Returns whether a descriptor is readable, or becomes so within the limit.
pub(crate) fn readable(fd: RawFd, limit_ms: i32) -> bool {
    let mut poll = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one `pollfd` that lives through the call.
    unsafe { libc::poll(&raw mut poll, 1, limit_ms) == 1 }
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn sleeping_verbs_receiver_is_woken_by_datagram() {
    let (group, ring) = (group(), TestRing::new(mixed));
    let mut receiver = receiver(&receive_config(&[group]));
    let mut fan_out = VerbsFanOut::open(&send_config(&[group]), &ring.memory).unwrap();
    for round in 0..3 {
        while poll(&mut receiver, &mut Seen::new()) > 0 {}
        let fd = receiver.raw_fds()[0];
        assert_eq!(receiver.raw_fds().len(), 1);
        assert!(
            receiver.raw_fds().iter().all(|fd| !readable(*fd, 0)),
            "round {round}"
        );
        post_all(&mut fan_out, &ring, round * 10 + 1, round * 10 + 10, || ());
        assert!(readable(fd, 20_000), "round {round}");
        assert_eq!(poll_until(&mut receiver, 10).len(), 10);
    }
    // The receiver becomes a member when it takes the answer.
    receiver.rejoin(LineId(0)).unwrap();
    for _ in 0..1_000 {
        poll(&mut receiver, &mut Seen::new());
        if receiver.is_joined() {
            break;
        }
        let fd = receiver.raw_fds()[0];
        assert!(readable(fd, 20_000));
    }
    assert!(receiver.is_joined());
    assert!(!readable(receiver.raw_fds()[0], 0), "drained");
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn unwaited_receiver_is_not_armed() {
    let (group, ring) = (group(), TestRing::new(mixed));
    let mut receiver = receiver(&receive_config(&[group]));
    let mut fan_out = VerbsFanOut::open(&send_config(&[group]), &ring.memory).unwrap();
    let readable = |of: &VerbsReceiver, limit_ms| readable(of.raw_fds()[0], limit_ms);
    while poll(&mut receiver, &mut Seen::new()) > 0 {}
    receiver.set_waited(false);
    post_all(&mut fan_out, &ring, 1, 10, || ());
    assert_eq!(poll_until(&mut receiver, 10).len(), 10);
    while poll(&mut receiver, &mut Seen::new()) > 0 {}
    // Nobody has taken the event that it was armed for before, nor armed it again.
    assert!(readable(&receiver, 0), "who waits now would be woken");
    receiver.set_waited(true);
    while poll(&mut receiver, &mut Seen::new()) > 0 {}
    assert!(!readable(&receiver, 0), "taken, and armed again");
    post_all(&mut fan_out, &ring, 11, 20, || ());
    assert!(readable(&receiver, 20_000));
    assert_eq!(poll_until(&mut receiver, 10).len(), 10);
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn refused_queue_is_error_that_names_settings() {
    let (group, ring) = (group(), TestRing::new(mixed));
    let config = VerbsFanOutConfig {
        inline_bytes: 4_096,
        ..send_config(&[group])
    };
    let error = VerbsFanOut::open(&config, &ring.memory).err().unwrap();
    assert!(matches!(error, VerbsError::TooDeep { .. }), "{error:?}");
    let text = error.to_string();
    assert!(
        text.contains("4096 bytes inline") && text.contains("inline_bytes"),
        "{text}"
    );
    let config = VerbsFanOutConfig {
        send_depth: 32_768,
        ..send_config(&[group])
    };
    let error = VerbsFanOut::open(&config, &ring.memory).err().unwrap();
    assert!(error.to_string().contains("32769 requests"), "{error}");
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn verbs_fan_out_restarts_after_reset_of_full_queue() {
    let (group, ring) = (group(), TestRing::new(mixed));
    let mut receiver = receiver(&receive_config(&[group]));
    let mut fan_out = VerbsFanOut::open(&send_config(&[group]), &ring.memory).unwrap();
    let posted = fan_out.post(&ring, range(1, 600)).unwrap();
    assert!(posted.stalled, "{posted:?}: the queue holds 256");
    fan_out.reset();
    assert_eq!(fan_out.completed(), None);
    let stats = fan_out.stats()[0];
    assert!(
        stats.stalls > 0 && stats.restarts <= 1 && stats.last_errno == 0,
        "{stats:?}"
    );
    // All datagrams given to the device were sent or flushed.
    poll_rest(&mut fan_out, &mut receiver, &mut Seen::new());
    post_all(&mut fan_out, &ring, 1_001, 1_100, || ());
    let seen = poll_until(&mut receiver, 100);
    assert_eq!((seen[0].1, seen[99].1), (1_001, 1_100));
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn reset_completes_with_unsignalled_tail_sends() {
    let (group, ring) = (group(), TestRing::new(|_| SLOT_LEN));
    let mut receiver = receiver(&receive_config(&[group]));
    let mut fan_out = VerbsFanOut::open(&send_config(&[group]), &ring.memory).unwrap();
    for round in 0..3 {
        // One fewer than the interval of signalled sends.
        let first = round * 100 + 1;
        post_all(&mut fan_out, &ring, first, first + 14, || ());
        assert_eq!(poll_until(&mut receiver, 15).len(), 15);
        assert_eq!(fan_out.completed(), None);
        if round < 2 {
            fan_out.reset();
            assert_eq!(fan_out.completed(), None);
        }
    }
    let stats = fan_out.stats()[0];
    // All of it was sent, and the queue reported completion on request.
    assert_eq!((stats.datagrams, stats.flushed), (45, 0));
    assert_eq!((stats.restarts, stats.last_errno), (2, 0));
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn post_of_other_range_restarts_send_queue() {
    let (group, ring) = (group(), TestRing::new(|_| SLOT_LEN));
    let mut receiver = receiver(&receive_config(&[group]));
    let mut fan_out = VerbsFanOut::open(&send_config(&[group]), &ring.memory).unwrap();
    let mut seen = Seen::new();
    // Forward, backward, and with an unsignalled tail each.
    for (n, first) in [1, 2_001, 1_001].into_iter().enumerate() {
        post_all(&mut fan_out, &ring, first, first + 38, || ());
        let stats = fan_out.stats()[0];
        assert_eq!((stats.restarts, stats.last_errno), (n as u64, 0));
        assert!(fan_out.completed().unwrap_or_default() < Sequence(first + 38));
        while seen.last() != Some(&(0, first + 38)) {
            seen.extend(poll_until(&mut receiver, 1));
        }
    }
    poll_rest(&mut fan_out, &mut receiver, &mut seen);
    let last: Vec<u64> = seen[seen.len() - 39..].iter().map(|seen| seen.1).collect();
    assert_eq!(last, (1_001..=1_039).collect::<Vec<_>>());
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn failed_post_leaves_no_queued_datagrams() {
    let (group, ring) = (group(), TestRing::new(mixed));
    let mut receiver = receiver(&receive_config(&[group]));
    let mut fan_out = VerbsFanOut::open(&send_config(&[group]), &ring.memory).unwrap();
    let error = fan_out.post(&ring, range(SLOTS - 5, SLOTS)).unwrap_err();
    assert!(matches!(error, FanOutError::NotSealed { .. }), "{error}");
    post_all(&mut fan_out, &ring, 1, 10, || ());
    let whole: Seen = (1..=10).map(|sequence| (0, sequence)).collect();
    assert_eq!(poll_until(&mut receiver, 10), whole);
    nothing_arrives(&mut receiver);
    assert_eq!(fan_out.stats()[0].datagrams, 10);
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn small_ring_frees_slots_despite_long_signal_interval() {
    let ring = TestRing::new(|_| SLOT_LEN);
    let memory = SharedMapping::memfd("small", SLOT_LEN * 16).unwrap();
    let ring = TestRing {
        memory: Arc::new(memory),
        len: ring.len,
    };
    let mut config = send_config(&[group()]);
    (config.send_depth, config.signal_every) = (256, 128);
    let mut fan_out = VerbsFanOut::open(&config, &ring.memory).unwrap();
    post_all(&mut fan_out, &ring, 1, 13, || ());
    completed(&mut fan_out, 12);
}

/// Opens two lines, the first of which is sent from an address that is added for it.
fn two_lines_the_first_from(other: Ipv4Addr) -> (VerbsReceiver, VerbsFanOut, TestRing) {
    ip(&format!("address add {other}/24 dev DEV"));
    let (groups, ring) = ([group(), group()], TestRing::new(mixed));
    let mut config = receive_config(&groups);
    config.lines[0].senders = vec![sender(other)];
    let receiver = receiver(&config);
    let mut config = send_config(&groups);
    config.lines[0].interface = Interface::Address(other);
    let fan_out = VerbsFanOut::open(&config, &ring.memory).unwrap();
    (receiver, fan_out, ring)
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn broken_line_returns_and_unsent_is_counted() {
    let other = Ipv4Addr::new(10, 1, 0, 77);
    let (mut receiver, mut fan_out, ring) = two_lines_the_first_from(other);
    let (mut seen, mut offered) = ([0, 0], 0);
    // Sends a slot and a copy, and returns the received ones by line.
    let mut some = |fan_out: &mut VerbsFanOut| {
        offered += 2;
        let at = offered / 2;
        if at < SLOTS {
            post_all(fan_out, &ring, at, at, || ());
        } else {
            fan_out.send_copy(ring.slot(Sequence(6)).unwrap()).unwrap();
        }
        fan_out.send_copy(ring.slot(Sequence(3)).unwrap()).unwrap();
        let on = &mut |received: tickcast_transport::Received<'_>| {
            seen[usize::from(received.line.0)] += 1;
        };
        while receiver.poll(Nanos(7), on).unwrap() > 0 {}
        (seen, offered)
    };
    // Repeat until a send fails before the device reports that the address is gone.
    let mut rounds = 0;
    while fan_out.stats()[0].flushed == 0 {
        rounds += 1;
        assert!(rounds <= 30, "no send ever failed");
        let begun = Instant::now();
        // Without its address nothing can be sent any more. It is removed during the sends.
        std::thread::scope(|scope| {
            let gone = scope.spawn(|| ip(&format!("address del {other}/24 dev DEV")));
            let broken = fan_out.stats()[0].restarts;
            while fan_out.stats()[0].restarts == broken || !gone.is_finished() {
                some(&mut fan_out);
                assert!(
                    begun.elapsed() < Duration::from_secs(120),
                    "{:?}",
                    fan_out.stats()
                );
            }
        });
        ip(&format!("address add {other}/24 dev DEV"));
        let (before, _) = some(&mut fan_out);
        while some(&mut fan_out).0[0] == before[0] {
            assert!(
                begun.elapsed() < Duration::from_secs(120),
                "{:?}",
                fan_out.stats()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    // All that was sent arrives, except the last two, which may be in flight.
    let begun = Instant::now();
    let offered = loop {
        std::thread::sleep(Duration::from_millis(50));
        let (seen, offered) = some(&mut fan_out);
        let stats = fan_out.stats();
        let arrived = stats.iter().zip(seen).all(|(stats, seen)| {
            let sent = stats.datagrams - stats.flushed;
            (seen..=seen + 2).contains(&sent)
        });
        if arrived {
            break offered;
        }
        assert!(
            begun.elapsed() < Duration::from_secs(120),
            "{seen:?} {stats:?}"
        );
    };
    ip(&format!("address del {other}/24 dev DEV"));
    let stats = fan_out.stats();
    for stats in stats {
        let all = stats.datagrams + stats.refused + stats.unpinned_sends_dropped;
        assert_eq!(all, offered, "{stats:?}");
    }
    assert!(stats[0].restarts >= rounds, "{stats:?}");
    let (refused, flushed, restarts) = (stats[1].refused, stats[1].flushed, stats[1].restarts);
    assert_eq!(
        (refused, flushed, restarts),
        (0, 0, 0),
        "the other line goes on"
    );
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn removed_interface_address_restarts_its_line() {
    let other = Ipv4Addr::new(10, 1, 0, 78);
    let (mut receiver, mut fan_out, ring) = two_lines_the_first_from(other);
    // Nothing is sent, so no completion reports it.
    ip(&format!("address del {other}/24 dev DEV"));
    let begun = Instant::now();
    while fan_out.stats()[0].restarts == 0 {
        fan_out.completed();
        assert!(begun.elapsed() < Duration::from_secs(120), "nobody noticed");
        std::thread::sleep(Duration::from_millis(1));
    }
    ip(&format!("address add {other}/24 dev DEV"));
    let mut lines = [0, 0];
    let begun = Instant::now();
    for sequence in 1.. {
        post_all(&mut fan_out, &ring, sequence, sequence, || ());
        std::thread::sleep(Duration::from_millis(5));
        let polled = receiver.poll(Nanos(7), &mut |received| {
            lines[usize::from(received.line.0)] += 1;
        });
        polled.unwrap();
        if lines[0] > 0 {
            break;
        }
        assert!(
            begun.elapsed() < Duration::from_secs(120),
            "{:?}",
            fan_out.stats()
        );
    }
    ip(&format!("address del {other}/24 dev DEV"));
    assert_eq!(fan_out.stats()[0].flushed, 0, "it never sent the old way");
    let stats = fan_out.stats()[1];
    assert_eq!((stats.restarts, stats.refused), (0, 0), "not its address");
}

/// Builds a datagram of RoCEv2 of any length as it goes on the wire: the headers of IPv4, UDP and
/// InfiniBand's transport, the payload, and the checksum over all fields that no router changes.
fn raw_packet(group: Ipv4Addr, payload: &[u8]) -> Vec<u8> {
    let udp_len = (8 + 12 + 8 + payload.len() + 4) as u16;
    let mut packet = vec![0x45, 0];
    packet.extend((20 + udp_len).to_be_bytes());
    packet.extend([0x12, 0x34, 0x40, 0, 1, 17, 0, 0]);
    packet.extend(address().octets());
    packet.extend(group.octets());
    packet.extend(0xc000u16.to_be_bytes());
    packet.extend(4791u16.to_be_bytes());
    packet.extend(udp_len.to_be_bytes());
    packet.extend([0, 0]);
    // A datagram in one packet, to all queues of the group, of the default partition.
    packet.extend([0x64, 0, 0xff, 0xff, 0, 0xff, 0xff, 0xff, 0, 0, 0, 0]);
    packet.extend(Q_KEY.to_be_bytes());
    packet.extend([0, 0, 0, 0x11]);
    packet.extend(payload);
    let mut masked = packet.clone();
    // Fields that may change on the way count as ones: class, lifetime, checksums, congestion.
    for at in [1, 8, 10, 11, 26, 27, 32] {
        masked[at] = 0xff;
    }
    let mut crc = u32::MAX;
    for byte in [0xff; 8].iter().chain(&masked) {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0xedb8_8320 * (crc & 1));
        }
    }
    packet.extend((!crc).to_le_bytes());
    packet
}

fn send_raw(packet: &[u8], to: Ipv4Addr) {
    // SAFETY: plain calls, on a descriptor of its own, with structures that live through them.
    unsafe {
        let fd = libc::socket(libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_RAW);
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        let from = u32::from(address()).to_be();
        let (level, option) = (libc::IPPROTO_IP, libc::IP_MULTICAST_IF);
        assert_eq!(
            libc::setsockopt(fd, level, option, (&raw const from).cast(), 4),
            0
        );
        let mut socket: libc::sockaddr_in = std::mem::zeroed();
        socket.sin_family = libc::AF_INET as u16;
        socket.sin_addr.s_addr = u32::from(to).to_be();
        let len = size_of_val(&socket) as u32;
        let bytes = packet.as_ptr().cast();
        let sent = libc::sendto(fd, bytes, packet.len(), 0, (&raw const socket).cast(), len);
        assert_eq!(
            sent,
            packet.len() as isize,
            "{}",
            std::io::Error::last_os_error()
        );
        libc::close(fd);
    }
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn broken_receive_queue_restarts_beside_other_line() {
    let (groups, ring) = ([group(), group()], TestRing::new(mixed));
    let mut receiver = receiver(&receive_config(&groups));
    // A valid packet arrives, so the packets are built correctly.
    let mut whole = 5u64.to_le_bytes().to_vec();
    whole.resize(200, 5);
    send_raw(&raw_packet(groups[0], &whole), groups[0]);
    assert_eq!(poll_until(&mut receiver, 1), [(0, 5)]);
    // A packet that is longer than any device sends.
    ip("link set DEV mtu 9000");
    send_raw(&raw_packet(groups[0], &[7; 5_000]), groups[0]);
    ip("link set DEV mtu 4200");
    let begun = Instant::now();
    while receiver.stats()[0].restarts == 0 || !receiver.is_joined() {
        poll(&mut receiver, &mut Seen::new());
        assert!(
            begun.elapsed() < Duration::from_secs(120),
            "{:?}",
            receiver.stats()
        );
    }
    let mut fan_out = VerbsFanOut::open(&send_config(&groups), &ring.memory).unwrap();
    // More than the queue holds: every buffer is posted again.
    for first in (1..=3_000).step_by(100) {
        post_all(&mut fan_out, &ring, first, first + 99, || ());
        assert_eq!(poll_until(&mut receiver, 200).len(), 200);
    }
    let stats = receiver.stats();
    assert_eq!((stats[0].restarts, stats[1].restarts), (1, 0));
    assert_eq!((stats[0].joins, stats[1].joins), (2, 1));
}

/// Captures every packet on any interface here, outgoing ones included.
struct Tap(std::os::fd::OwnedFd);

impl Tap {
    fn open() -> Self {
        use std::os::fd::FromRawFd;
        let protocol = (libc::ETH_P_ALL as u16).to_be();
        // SAFETY: plain calls; the descriptor is this value's alone, the structure lives through
        // its call.
        unsafe {
            let fd = libc::socket(libc::AF_PACKET, libc::SOCK_DGRAM, protocol.into());
            assert!(fd >= 0, "{}", std::io::Error::last_os_error());
            let limit = libc::timeval {
                tv_sec: 20,
                tv_usec: 0,
            };
            let (level, option) = (libc::SOL_SOCKET, libc::SO_RCVTIMEO);
            let len = size_of_val(&limit) as u32;
            let set = libc::setsockopt(fd, level, option, (&raw const limit).cast(), len);
            assert_eq!(set, 0);
            Self(std::os::fd::OwnedFd::from_raw_fd(fd))
        }
    }

    /// Returns the traffic class of the next packet of RoCEv2 to a group.
    fn class_of_next(&self, group: Ipv4Addr) -> u8 {
        use std::os::fd::AsRawFd;
        let mut packet = [0u8; 64];
        loop {
            // SAFETY: the length passed is that of the buffer.
            let len = unsafe { libc::recv(self.0.as_raw_fd(), packet.as_mut_ptr().cast(), 64, 0) };
            assert!(len > 0, "{}", std::io::Error::last_os_error());
            let is_roce = packet[9] == 17 && packet[22..24] == 4791u16.to_be_bytes();
            if len >= 28 && is_roce && packet[16..20] == group.octets() {
                return packet[1];
            }
        }
    }
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn packets_carry_configured_traffic_class() {
    let (ring, tap) = (TestRing::new(mixed), Tap::open());
    for class in [0xb8, 0x28] {
        let group = group();
        let mut config = send_config(&[group]);
        config.traffic_class = class;
        let mut fan_out = VerbsFanOut::open(&config, &ring.memory).unwrap();
        post_all(&mut fan_out, &ring, 1, 6, || ());
        assert!(fan_out.send_copy(ring.slot(Sequence(4)).unwrap()).unwrap());
        for _ in 0..7 {
            assert_eq!(tap.class_of_next(group), class);
        }
    }
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn fan_out_pace_limits_posts_and_copies() {
    let (group, ring) = (group(), TestRing::new(|_| SLOT_LEN));
    let mut config = send_config(&[group]);
    config.pace = Some(RateLimit {
        rate_bytes_per_s: 1,
        burst_bytes: 10 * SLOT_LEN as u64,
    });
    let mut fan_out = VerbsFanOut::open(&config, &ring.memory).unwrap();
    // A burst, and then nothing for a thousand seconds, so that no clock affects the result.
    let posted = fan_out.post(&ring, range(1, 100)).unwrap();
    assert_eq!((posted.last, posted.stalled), (Some(Sequence(10)), true));
    let posted = fan_out.post(&ring, range(11, 100)).unwrap();
    assert_eq!((posted.last, posted.stalled), (None, true));
    // The pace limits copies too, and a paced queue does not count as full.
    assert!(!fan_out.send_copy(ring.slot(Sequence(3)).unwrap()).unwrap());
    let stats = fan_out.stats()[0];
    assert_eq!(
        (stats.datagrams, stats.unpinned_sends_dropped, stats.stalls),
        (10, 1, 0)
    );
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn invalid_fan_out_config_or_slot_is_refused() {
    let ring = TestRing::new(mixed);
    let mut config = send_config(&[group()]);
    config.datagram_len_max = 9_000;
    let error = VerbsFanOut::open(&config, &ring.memory).err().unwrap();
    let text = error.to_string();
    assert!(
        matches!(
            error,
            VerbsError::Mtu {
                slot_len: 9_000,
                ..
            }
        ),
        "{text}"
    );
    assert!(text.contains("9000") && text.contains("4096"), "{text}");
    config.datagram_len_max = SLOT_LEN;
    config.lines[0].group = Ipv4Addr::new(10, 0, 0, 1);
    let error = VerbsFanOut::open(&config, &ring.memory).err().unwrap();
    assert!(matches!(error, VerbsError::NotMulticast { .. }), "{error}");
    // Memory that is not registered with the device.
    let mut fan_out = VerbsFanOut::open(&send_config(&[group()]), &ring.memory).unwrap();
    let elsewhere = TestRing::new(mixed);
    let error = fan_out.post(&elsewhere, range(1, 3)).unwrap_err();
    assert!(
        matches!(error, FanOutError::NotRegistered { .. }),
        "{error}"
    );
    let error = fan_out.post(&ring, range(SLOTS - 1, SLOTS)).unwrap_err();
    assert!(matches!(error, FanOutError::NotSealed { .. }), "{error}");
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn dropped_fan_out_and_receiver_free_rdma_resources() {
    let ring = TestRing::new(mixed);
    let before = resources();
    for _ in 0..5 {
        let group = group();
        let receiver = receiver(&receive_config(&[group]));
        let mut fan_out = VerbsFanOut::open(&send_config(&[group]), &ring.memory).unwrap();
        post_all(&mut fan_out, &ring, 1, 50, || ());
        let during = resources();
        assert!(
            during
                .iter()
                .zip(&before)
                .all(|(during, before)| during > before),
            "{during:?}"
        );
        drop(fan_out);
        drop(receiver);
    }
    assert_eq!(resources(), before);
}
