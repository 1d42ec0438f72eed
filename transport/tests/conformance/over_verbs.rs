//! Multicast by verbs, on the device that `TICKCAST_RDMA_ADDRESS` names.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;
use std::time::Duration;

use tickcast_reliability::control::ChannelOffer;
use tickcast_reliability::receive::RepairOrder;
use tickcast_reliability::ring::RingMemory;
use tickcast_reliability::types::Nanos;
use tickcast_transport::host::interface::Interface;
use tickcast_transport::verbs::{
    VerbsFanOut, VerbsFanOutConfig, VerbsReceiveLine, VerbsReceiver, VerbsReceiverConfig,
    VerbsSendLine, VerbsSender,
};
use tickcast_transport::{FanOut, Receive};

use crate::network::{Network, Repairs, SLOT_LEN};

const Q_KEY: u32 = 0x2345_6789;
/// Polls until the groups are joined, one per millisecond.
const JOIN_LOOKS_MAX: u32 = 20_000;

pub struct OverVerbs {
    groups: Vec<Ipv4Addr>,
    ladder: RepairOrder,
}

impl OverVerbs {
    /// Opens groups that no other test uses.
    pub fn new(lines: usize, ladder: RepairOrder) -> Self {
        static NEXT: AtomicU8 = AtomicU8::new(1);
        let id = std::process::id() as u8;
        let group = |_| Ipv4Addr::new(239, 10, id, NEXT.fetch_add(1, Ordering::Relaxed));
        let groups = (0..lines).map(group).collect();
        Self { groups, ladder }
    }
}

fn address() -> Ipv4Addr {
    let address = std::env::var("TICKCAST_RDMA_ADDRESS");
    address.map_or(Ipv4Addr::new(10, 1, 0, 1), |text| text.parse().unwrap())
}

impl Network for OverVerbs {
    fn lines(&self) -> usize {
        self.groups.len()
    }

    fn sender(&self) -> Ipv4Addr {
        address()
    }

    fn fan_out(&self, memory: &Arc<dyn RingMemory>) -> Box<dyn FanOut> {
        let line = |group: &Ipv4Addr| VerbsSendLine {
            group: *group,
            interface: Interface::Address(address()),
        };
        let config = VerbsFanOutConfig {
            lines: self.groups.iter().map(line).collect(),
            datagram_len_max: SLOT_LEN,
            q_key: Q_KEY,
            traffic_class: 0,
            service_level: None,
            send_depth: 64,
            signal_every: 8,
            inline_bytes: 200,
            pace: None,
        };
        Box::new(VerbsFanOut::open(&config, memory).unwrap())
    }

    fn receiver_of(&self, buffers: usize, len_max: usize, _: &ChannelOffer) -> Box<dyn Receive> {
        let gid = address().to_ipv6_mapped();
        let address = address();
        let line = |group: &Ipv4Addr| VerbsReceiveLine {
            group: *group,
            interface: Interface::Address(address),
            senders: vec![VerbsSender { address, gid }],
        };
        let config = VerbsReceiverConfig {
            lines: self.groups.iter().map(line).collect(),
            datagram_len_max: len_max,
            q_key: Q_KEY,
            depth: buffers as u32,
            batch: 64,
            waitable: true,
        };
        let mut receiver = VerbsReceiver::open(&config).unwrap();
        // No datagrams are sent meanwhile, because the suite has one thread.
        for _ in 0..JOIN_LOOKS_MAX {
            if receiver.is_joined() {
                break;
            }
            receiver.poll(Nanos(0), &mut |_| {}).unwrap();
            thread::sleep(Duration::from_millis(1));
        }
        assert!(receiver.is_joined(), "the groups were never joined");
        Box::new(receiver)
    }

    fn stranger(&self) -> Option<Box<dyn FanOut>> {
        None
    }

    fn stall(&self, _: bool) -> bool {
        false
    }

    fn counts_what_does_not_fit(&self) -> (bool, Option<u64>) {
        // Soft-RoCE does not count a datagram without a buffer.
        (true, None)
    }

    fn repairs(&self) -> Option<Repairs> {
        let (at, ladder) = (address(), self.ladder);
        Some(Repairs { at, ladder })
    }

    fn idle(&self) {
        // The device works on other threads.
        thread::sleep(Duration::from_micros(50));
    }
}
