//! Datagrams that arrive, and those that must not.

use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use tickcast_reliability::delivery::LineId;
use tickcast_reliability::types::Nanos;
use tickcast_transport_base::Receive;
use tickcast_xdp::XdpMode;

use crate::network::{SENDER, STRANGER, Sender, enter};
use crate::support::{GROUP_A, GROUP_B, config, datagram, open, poll_until, received};

#[test]
fn datagrams_arrive_once_in_order_and_whole() {
    if !enter(1) {
        return;
    }
    let Some(mut receiver) = open(&config(&[GROUP_A])) else {
        return;
    };
    let grant = receiver.grants().next().unwrap();
    println!("{grant:?}");
    assert_eq!((grant.mode, grant.zero_copy), (XdpMode::Native, false));
    let sender = Sender::from(SENDER);
    let len = |n: u64| 8 + (n * 37 % 1_465) as usize;
    let mut next = 0;
    for round in 1..=100 {
        let first = next;
        for n in first..first + 50 {
            sender.send(GROUP_A, &datagram(n, len(n)));
        }
        poll_until(
            &mut receiver,
            |it| {
                assert_eq!(it.bytes, datagram(next, len(next)), "{next}");
                assert_eq!((it.line, it.from, it.whole), (LineId(0), SENDER, false));
                assert!(it.bytes.as_ptr().addr().is_multiple_of(64));
                next += 1;
            },
            |it| it.stats()[0].datagrams >= round * 50,
        );
    }
    let stats = receiver.stats()[0];
    assert_eq!((stats.datagrams, stats.joins), (5_000, 1));
    assert_eq!(stats.bytes, (0..5_000).map(|n| len(n) as u64).sum::<u64>());
    let dropped = (
        stats.buffer_drops,
        stats.malformed,
        stats.oversize,
        stats.unknown_senders,
    );
    assert_eq!(dropped, (0, 0, 0, 0));
    assert!(stats.batches <= stats.datagrams);
}

#[test]
fn two_lines_of_one_interface_share_it() {
    if !enter(1) {
        return;
    }
    let Some(mut receiver) = open(&config(&[GROUP_A, GROUP_B])) else {
        return;
    };
    let sender = Sender::from(SENDER);
    for n in 0..40 {
        sender.send(GROUP_A, &datagram(n, 100));
        sender.send(GROUP_B, &datagram(n, 200));
    }
    let all = received(&mut receiver, 80);
    for (line, len) in [(LineId(0), 100), (LineId(1), 200)] {
        let of_line = all.iter().filter(|it| it.0 == line).map(|it| &it.1);
        let expected: Vec<_> = (0..40).map(|n| datagram(n, len)).collect();
        assert!(of_line.eq(&expected), "{line}");
    }
}

#[test]
fn batch_limits_the_datagrams_of_a_poll() {
    if !enter(1) {
        return;
    }
    let mut config = config(&[GROUP_A]);
    config.batch = 7;
    let Some(mut receiver) = open(&config) else {
        return;
    };
    let sender = Sender::from(SENDER);
    for n in 0..20 {
        sender.send(GROUP_A, &datagram(n, 64));
    }
    let waiting = |it: &tickcast_xdp::XdpReceiver| it.frames(LineId(0))[0].waiting;
    crate::support::until("all wait", || waiting(&receiver) == 20);
    let mut counts = Vec::new();
    while counts.last() != Some(&0) {
        counts.push(receiver.poll(Nanos(1), &mut |_| ()).unwrap());
    }
    assert_eq!(counts, [7, 7, 6, 0]);
}

#[test]
fn datagrams_of_strangers_are_dropped_and_counted() {
    if !enter(1) {
        return;
    }
    let mut config = config(&[GROUP_A]);
    config.source_specific = false;
    let Some(mut receiver) = open(&config) else {
        return;
    };
    let (ours, theirs) = (Sender::from(SENDER), Sender::from(STRANGER));
    for n in 0..30 {
        theirs.send(GROUP_A, &datagram(1_000 + n, 64));
        ours.send(GROUP_A, &datagram(n, 64));
    }
    let all = received(&mut receiver, 30);
    assert_eq!(all.len(), 30);
    assert!((0..).zip(&all).all(|(n, it)| it.1 == datagram(n, 64)));
    assert_eq!(receiver.stats()[0].unknown_senders, 30);
    // Without a list, everybody may send.
    drop(receiver);
    config.lines[0].senders.clear();
    let mut receiver = open(&config).unwrap();
    theirs.send(GROUP_A, &datagram(1, 64));
    assert_eq!(received(&mut receiver, 1).len(), 1);
}

#[test]
fn datagrams_that_are_too_long_are_counted() {
    if !enter(1) {
        return;
    }
    let mut config = config(&[GROUP_A]);
    config.datagram_len_max = 512;
    let Some(mut receiver) = open(&config) else {
        return;
    };
    let sender = Sender::from(SENDER);
    for len in [512, 513, 1_472, 0, 1, 512] {
        sender.send(GROUP_A, &datagram(len as u64, len));
    }
    // Cut into fragments, which pass to the kernel.
    sender.send(GROUP_A, &datagram(9, 3_000));
    sender.send(GROUP_A, &datagram(7, 7));
    let lens: Vec<_> = received(&mut receiver, 5)
        .iter()
        .map(|it| it.1.len())
        .collect();
    assert_eq!(lens, [512, 0, 1, 512, 7]);
    assert_eq!(receiver.stats()[0].oversize, 2);
}

#[test]
fn other_groups_and_ports_reach_their_own_sockets() {
    if !enter(1) {
        return;
    }
    let Some(mut receiver) = open(&config(&[GROUP_A])) else {
        return;
    };
    let own = Ipv4Addr::new(10, 77, 1, 1);
    let other_port = SocketAddrV4::new(*GROUP_A.ip(), GROUP_A.port() + 1);
    let others = [GROUP_B, other_port].map(|group| {
        let socket = UdpSocket::bind(group).unwrap();
        socket.join_multicast_v4(group.ip(), &own).unwrap();
        let patience = Some(Duration::from_secs(300));
        socket.set_read_timeout(patience).unwrap();
        (group, socket)
    });
    let sender = Sender::from(SENDER);
    let mut bytes = [0; 2_000];
    for (group, socket) in &others {
        sender.send(*group, b"theirs");
        assert_eq!(socket.recv(&mut bytes).unwrap(), 6);
    }
    sender.send(GROUP_A, b"ours");
    assert_eq!(received(&mut receiver, 1)[0].1, b"ours");
    assert_eq!(receiver.stats()[0].datagrams, 1);
}

#[test]
fn line_that_left_receives_nothing_until_it_joins() {
    if !enter(1) {
        return;
    }
    let Some(mut receiver) = open(&config(&[GROUP_A, GROUP_B])) else {
        return;
    };
    let sender = Sender::from(SENDER);
    receiver.leave(LineId(0)).unwrap();
    receiver.leave(LineId(0)).unwrap();
    for n in 0..10 {
        sender.send(GROUP_A, &datagram(n, 64));
    }
    // The device keeps the order, so these come last.
    sender.send(GROUP_B, &datagram(10, 64));
    let all = received(&mut receiver, 1);
    assert_eq!(all, [(LineId(1), datagram(10, 64))]);
    receiver.join(LineId(0)).unwrap();
    receiver.join(LineId(0)).unwrap();
    receiver.rejoin(LineId(0)).unwrap();
    sender.send(GROUP_A, &datagram(11, 64));
    assert_eq!(received(&mut receiver, 2), [(LineId(0), datagram(11, 64))]);
    assert_eq!(receiver.stats()[0].joins, 4);
    assert!(receiver.join(LineId(2)).is_err());
}

#[test]
fn descriptors_become_readable_with_a_datagram() {
    if !enter(1) {
        return;
    }
    let Some(mut receiver) = open(&config(&[GROUP_A, GROUP_B])) else {
        return;
    };
    let sender = Sender::from(SENDER);
    let readable = |receiver: &tickcast_xdp::XdpReceiver, wait_s| {
        let fds = receiver.fds();
        let mut fds: Vec<_> = fds
            .iter()
            .map(|fd| PollFd::new(fd, PollFlags::IN))
            .collect();
        let wait = Timespec {
            tv_sec: wait_s,
            tv_nsec: 0,
        };
        poll(&mut fds, Some(&wait)).unwrap();
        let ready = fds.iter().map(|fd| fd.revents().contains(PollFlags::IN));
        ready.collect::<Vec<_>>()
    };
    assert_eq!(receiver.raw_fds().len(), 2);
    assert_eq!(readable(&receiver, 0), [false, false]);
    sender.send(GROUP_B, b"datagram");
    assert_eq!(readable(&receiver, 300), [false, true]);
    received(&mut receiver, 1);
    assert_eq!(readable(&receiver, 0), [false, false]);
}

#[test]
fn generic_mode_receives_where_the_driver_can_not() {
    // A dummy device has no driver's mode, and receives nothing; a bridge has none, and receives.
    if !enter(2) {
        return;
    }
    let Some(first) = open(&config(&[GROUP_A])) else {
        return;
    };
    drop(first);
    let mut over_bridge = config(&[GROUP_A]);
    over_bridge.lines[0].interface = "from".parse().unwrap();
    over_bridge.lines[0].senders.clear();
    let mut receiver = open(&over_bridge).unwrap();
    let grant = receiver.grants().next().unwrap();
    assert_eq!(grant.mode, XdpMode::Generic);
    let warning = receiver.warnings()[0].to_string();
    assert!(
        warning.contains("interface from") && warning.contains("no XDP program"),
        "{warning}"
    );
    // From the other end of a port, which the bridge hands up to its own device.
    let socket = UdpSocket::bind("10.77.1.1:0").unwrap();
    let index = socket2::SockRef::from(&socket);
    index
        .set_multicast_if_v4(&Ipv4Addr::new(10, 77, 1, 1))
        .unwrap();
    for n in 0..20 {
        socket.send_to(&datagram(n, 900), GROUP_A).unwrap();
    }
    let all = received(&mut receiver, 20);
    assert!((0..).zip(&all).all(|(n, it)| it.1 == datagram(n, 900)));
}
