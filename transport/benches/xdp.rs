//! AF_XDP beside UDP over a pair of Ethernet devices: the time of one datagram from the send to its receiver,
//! and the time per datagram to receive a burst that waits. Rounds alternate, so both see the same machine.
//!
//! `cargo bench -p tickcast-transport --bench xdp` (needs root)

#[path = "../xdp/tests/veth/network.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    reason = "the suite of AF_XDP uses the rest"
)]
mod veth;

use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Instant;

use tickcast_reliability::types::Nanos;
use tickcast_transport::Receive;
use tickcast_transport::udp::{UdpReceiveLine, UdpReceiver, UdpReceiverConfig};
use tickcast_transport::xdp::{XdpReceiveLine, XdpReceiver, XdpReceiverConfig};
use veth::{SENDER, Sender, TO, enter};

const UDP: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(239, 255, 7, 1), 7500);
const XDP: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(239, 255, 7, 2), 7501);
const LEN: usize = 1_024;
const ROUNDS: usize = 20_000;
const BURST: usize = 64;

fn main() {
    // Test runners start benches to see that they start.
    if !std::env::args().any(|it| it == "--bench") || !enter(1) {
        return;
    }
    let mut udp = UdpReceiver::open(&UdpReceiverConfig {
        lines: vec![UdpReceiveLine {
            group: UDP,
            interface: TO.parse().unwrap(),
            senders: vec![SENDER],
        }],
        datagram_len_max: 1_472,
        receive_buffer_bytes: Some(4 << 20),
        source_specific: true,
        batch: BURST,
        busy_poll_us: None,
        gro: true,
    })
    .unwrap();
    let mut xdp = XdpReceiver::open(&XdpReceiverConfig {
        lines: vec![XdpReceiveLine {
            group: XDP,
            interface: TO.parse().unwrap(),
            senders: vec![SENDER],
        }],
        datagram_len_max: 1_472,
        receive_buffer_bytes: None,
        source_specific: true,
        batch: BURST,
        memory_bytes: 32 << 20,
    })
    .unwrap();
    println!("{:?}", xdp.grants().collect::<Vec<_>>());
    let sender = Sender::from(SENDER);
    for (what, datagrams) in [
        ("one datagram, sent and received", 1),
        ("a burst, received", BURST),
    ] {
        let mut times = [Vec::new(), Vec::new()];
        for _ in 0..ROUNDS / datagrams {
            times[0].push(round(&sender, UDP, &mut udp, datagrams));
            times[1].push(round(&sender, XDP, &mut xdp, datagrams));
        }
        let [udp, xdp] = times.map(|mut all| {
            all.sort_unstable();
            all[all.len() / 2] as f64 / datagrams as f64
        });
        println!(
            "{what}: udp {udp:.0} ns, xdp {xdp:.0} ns, ratio {:.2}",
            xdp / udp
        );
    }
}

/// Returns the nanoseconds until all of these datagrams are received. Only a lone one counts from its send.
fn round(sender: &Sender, group: SocketAddrV4, to: &mut dyn Receive, datagrams: usize) -> u64 {
    let bytes = [7; LEN];
    let begun = Instant::now();
    for _ in 0..datagrams {
        sender.send(group, &bytes);
    }
    let begun = if datagrams == 1 {
        begun
    } else {
        Instant::now()
    };
    let mut received = 0;
    while received < datagrams {
        received += to
            .poll(Nanos(1), &mut |it| assert_eq!(it.bytes.len(), LEN))
            .unwrap();
    }
    begun.elapsed().as_nanos() as u64
}
