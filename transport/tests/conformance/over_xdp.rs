//! UDP multicast over a bridge of Ethernet devices, received by AF_XDP. Each receiver has a device of its
//! own, as a host has, because a frame has one receiver.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use tickcast_reliability::control::ChannelOffer;
use tickcast_reliability::ring::RingMemory;
use tickcast_transport::host::interface::Interface;
use tickcast_transport::udp::{UdpFanOut, UdpFanOutConfig, UdpSendLine};
use tickcast_transport::xdp::{XdpError, XdpReceiveLine, XdpReceiver, XdpReceiverConfig};
use tickcast_transport::{FanOut, Receive};

use crate::network::{Network, SLOT_LEN};
use crate::veth::{SENDER, STRANGER, enter};

/// Devices that receive, more than any case has receivers.
const DEVICES: usize = 8;
/// Length of a frame, in bytes.
const FRAME_LEN: usize = 2_048;

/// Enters a namespace with the devices. Returns `false`, and says so, where this host has no AF_XDP for us.
pub fn is_here() -> bool {
    if !enter(DEVICES) {
        return false;
    }
    let group = SocketAddrV4::new(Ipv4Addr::new(239, 254, 0, 1), 7_500);
    match open(&[group], 0, 64, SLOT_LEN) {
        Err(error @ (XdpError::Forbidden { .. } | XdpError::Unsupported { .. })) => {
            eprintln!("SKIPPED: no AF_XDP here: {error}");
            false
        }
        opened => opened.map(|_| true).unwrap(),
    }
}

fn open(
    groups: &[SocketAddrV4],
    device: usize,
    buffers: usize,
    len_max: usize,
) -> Result<XdpReceiver, XdpError> {
    let line = |group: &SocketAddrV4| XdpReceiveLine {
        group: *group,
        interface: Interface::Name(format!("to{device}")),
        senders: vec![SENDER],
    };
    XdpReceiver::open(&XdpReceiverConfig {
        lines: groups.iter().map(line).collect(),
        datagram_len_max: len_max,
        receive_buffer_bytes: Some(buffers * FRAME_LEN),
        // Datagrams of other senders reach the receiver and are distinguished there.
        source_specific: false,
        batch: 64,
        memory_bytes: 16 << 20,
    })
}

pub struct OverXdp {
    groups: Vec<SocketAddrV4>,
}

impl OverXdp {
    pub fn new(lines: usize) -> Self {
        static NEXT: AtomicU8 = AtomicU8::new(1);
        let group = |_| {
            let n = NEXT.fetch_add(1, Ordering::Relaxed);
            SocketAddrV4::new(Ipv4Addr::new(239, 254, 1, n), 7_500 + u16::from(n))
        };
        Self {
            groups: (0..lines).map(group).collect(),
        }
    }

    fn sending_from(&self, address: Ipv4Addr) -> Box<dyn FanOut> {
        let line = |group: &SocketAddrV4| UdpSendLine {
            group: *group,
            interface: Interface::Address(address),
        };
        let config = UdpFanOutConfig {
            lines: self.groups.iter().map(line).collect(),
            ttl: 1,
            send_buffer_bytes: None,
            datagram_len_max: SLOT_LEN,
            gso: true,
        };
        Box::new(UdpFanOut::open(&config).unwrap())
    }
}

impl Network for OverXdp {
    fn lines(&self) -> usize {
        self.groups.len()
    }

    fn sender(&self) -> Ipv4Addr {
        SENDER
    }

    fn fan_out(&self, _: &Arc<dyn RingMemory>) -> Box<dyn FanOut> {
        self.sending_from(SENDER)
    }

    fn receiver_of(&self, buffers: usize, len_max: usize, _: &ChannelOffer) -> Box<dyn Receive> {
        for device in 0..DEVICES {
            match open(&self.groups, device, buffers, len_max) {
                Err(XdpError::GroupTaken { .. }) => {}
                opened => return Box::new(opened.unwrap()),
            }
        }
        panic!("every device has a receiver")
    }

    fn stranger(&self) -> Option<Box<dyn FanOut>> {
        Some(self.sending_from(STRANGER))
    }

    fn stall(&self, _: bool) -> bool {
        // The devices accept everything.
        false
    }

    fn counts_what_does_not_fit(&self) -> (bool, Option<u64>) {
        (true, Some(1))
    }
}
