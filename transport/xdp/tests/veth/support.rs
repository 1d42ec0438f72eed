//! Receivers of the tests, and datagrams that say who they are.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::thread;
use std::time::{Duration, Instant};

use tickcast_reliability::delivery::LineId;
use tickcast_reliability::types::Nanos;
use tickcast_transport_base::host::interface::Interface;
use tickcast_transport_base::{Receive, Received};
use tickcast_xdp::{XdpError, XdpReceiveLine, XdpReceiver, XdpReceiverConfig};

use crate::network::{SENDER, TO};

/// Upper bound of every wait. It only turns a hang into a failure.
pub const PATIENCE: Duration = Duration::from_secs(300);

pub const GROUP_A: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(239, 255, 7, 1), 7500);
pub const GROUP_B: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(239, 255, 7, 2), 7501);

/// Returns a config for these groups on the first receiving device.
pub fn config(groups: &[SocketAddrV4]) -> XdpReceiverConfig {
    let line = |group: &SocketAddrV4| XdpReceiveLine {
        group: *group,
        interface: Interface::Name(TO.into()),
        senders: vec![SENDER],
    };
    XdpReceiverConfig {
        lines: groups.iter().map(line).collect(),
        datagram_len_max: 1_472,
        receive_buffer_bytes: None,
        source_specific: true,
        batch: 64,
        memory_bytes: 4 << 20,
    }
}

/// Opens a receiver. Returns `None`, and says so, where the system has no AF_XDP for this user.
pub fn open(config: &XdpReceiverConfig) -> Option<XdpReceiver> {
    match XdpReceiver::open(config) {
        Ok(receiver) => Some(receiver),
        Err(error @ (XdpError::Forbidden { .. } | XdpError::Unsupported { .. })) => {
            eprintln!("SKIPPED: no AF_XDP here: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Returns a datagram of this length whose bytes all follow from its number.
pub fn datagram(number: u64, len: usize) -> Vec<u8> {
    let words = (0..).flat_map(|n: u64| (number << 16 | n).to_le_bytes());
    words.take(len).collect()
}

/// Polls until `is` returns true of the receiver and everything that arrived.
pub fn poll_until(
    receiver: &mut XdpReceiver,
    mut on: impl FnMut(Received<'_>),
    mut is: impl FnMut(&XdpReceiver) -> bool,
) {
    let begun = Instant::now();
    let mut now = Nanos::from_secs(1);
    while !is(receiver) {
        assert!(begun.elapsed() < PATIENCE, "never; {:?}", receiver.stats());
        now = now.after(Nanos::from_us(1_000));
        if receiver.poll(now, &mut on).unwrap() == 0 {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Polls until this many datagrams have arrived since the receiver was opened. Returns those that came
/// meanwhile.
pub fn received(receiver: &mut XdpReceiver, count: u64) -> Vec<(LineId, Vec<u8>)> {
    let mut all = Vec::new();
    poll_until(
        receiver,
        |it| all.push((it.line, it.bytes.to_vec())),
        |it| it.stats().iter().map(|line| line.datagrams).sum::<u64>() >= count,
    );
    all
}

/// Waits until something is true.
pub fn until(what: &str, mut is: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is() {
        assert!(begun.elapsed() < PATIENCE, "never: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}
