//! Ports that are down when a line opens, and ports that go down later.

use std::time::{Duration, Instant};

use tickcast_reliability::types::{Nanos, Sequence};
use tickcast_transport::verbs::{Device, VerbsError, VerbsFanOut, VerbsReceiver};
use tickcast_transport::{FanOut, Receive};

use crate::datagrams::{TestRing, group, ip, mixed, range, receive_config, send_config};
use crate::device::{address, until};

/// Sets the port down, and up again when dropped, so that no other test finds it down.
struct Down;

impl Down {
    fn new() -> Self {
        ip("link set DEV down");
        until("the port stays active", || !is_active());
        Self
    }
}

impl Drop for Down {
    fn drop(&mut self) {
        ip("link set DEV up");
        // The route to the groups went with the link.
        ip("route replace 224.0.0.0/4 dev DEV");
        until("the port stays down", is_active);
    }
}

fn is_active() -> bool {
    Device::open(address()).unwrap().is_active()
}

/// Polls with the time since `begun`, and returns the number of datagrams.
fn poll(receiver: &mut VerbsReceiver, begun: Instant) -> usize {
    let now = Nanos(begun.elapsed().as_nanos() as u64);
    std::thread::sleep(Duration::from_millis(1));
    receiver.poll(now, &mut |_| ()).unwrap()
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn lines_of_dark_port_open_and_work_once_it_is_up() {
    let (ring, group, begun) = (TestRing::new(mixed), group(), Instant::now());
    let down = Down::new();
    assert!(matches!(
        Device::open(address()).unwrap().check_active(),
        Err(VerbsError::PortDown { .. })
    ));
    let mut receiver = VerbsReceiver::open(&receive_config(&[group])).unwrap();
    let mut fan_out = VerbsFanOut::open(&send_config(&[group]), &ring.memory).unwrap();
    let posted = fan_out.post(&ring, range(1, 10)).unwrap();
    assert_eq!((posted.last, posted.stalled), (Some(Sequence(10)), false));
    assert!(!fan_out.send_copy(&[0; 64]).unwrap());
    assert_eq!(poll(&mut receiver, begun), 0);
    let stats = fan_out.stats()[0];
    assert_eq!(
        (stats.refused, stats.unpinned_sends_dropped, stats.datagrams),
        (10, 1, 0),
        "a line that is down holds up nobody, and counts"
    );
    assert!(!receiver.is_joined());
    drop(down);
    let mut next = 11;
    until("nothing arrives", || {
        fan_out.post(&ring, range(next, next)).unwrap();
        fan_out.completed();
        next += 1;
        poll(&mut receiver, begun) > 0
    });
    let stats = fan_out.stats()[0];
    assert_eq!(stats.datagrams + stats.refused, next - 1);
    assert_eq!((receiver.stats()[0].joins, stats.restarts), (1, 0));
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn receiver_joins_again_after_its_port_was_down() {
    let (group, begun) = (group(), Instant::now());
    let mut receiver = VerbsReceiver::open(&receive_config(&[group])).unwrap();
    until("never joined", || {
        poll(&mut receiver, begun);
        receiver.is_joined()
    });
    for joins in 2..=3 {
        drop(Down::new());
        until("never joined again", || {
            poll(&mut receiver, begun);
            receiver.stats()[0].joins == joins
        });
        // Once is enough.
        for _ in 0..300 {
            poll(&mut receiver, begun);
        }
        assert_eq!(receiver.stats()[0].joins, joins);
    }
    assert_eq!(receiver.stats()[0].restarts, 0, "the queue stays");
}
