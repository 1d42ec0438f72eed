//! The networks that the suite runs over, as one trait. The cases may use only what it provides.

use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread;

use tickcast_reliability::control::ChannelOffer;
use tickcast_reliability::receive::RepairOrder;
use tickcast_reliability::ring::{Geometry, HeapMemory, RingMemory};
use tickcast_transport::host::interface::Interface;
use tickcast_transport::host::mapping::SharedMapping;
use tickcast_transport::memory::{Completion, MemoryNetwork, MemoryNetworkConfig};
use tickcast_transport::udp::{
    BATCH_MAX, UdpFanOut, UdpFanOutConfig, UdpReceiveLine, UdpReceiver, UdpReceiverConfig,
    UdpSendLine,
};
use tickcast_transport::{FanOut, Receive};

/// Length of a slot, in bytes: the longest datagram.
pub const SLOT_LEN: usize = 1024;
/// Receive buffers, or the most slot-sized datagrams that the kernel holds. Fewer than the slots that the
/// suite's slow reader misses.
pub const BUFFERS: usize = 128;

/// Kind of transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Memory,
    Udp(Offload),
    Shm,
    /// UDP sent over Ethernet, and received by AF_XDP.
    Xdp,
    /// Verbs, with repairs over verbs on these rungs.
    #[cfg(feature = "rdma")]
    Verbs(RepairOrder),
}

/// Whether runs of datagrams pass as one buffer, per side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offload {
    pub gso: bool,
    pub gro: bool,
}

/// Source of repairs besides TCP, and its rungs.
#[derive(Clone, Copy)]
pub struct Repairs {
    pub at: Ipv4Addr,
    pub ladder: RepairOrder,
}

impl Kind {
    /// UDP with all offloads, as by default.
    pub const UDP: Self = Self::Udp(Offload {
        gso: true,
        gro: true,
    });
}

/// Groups of one transport, on one line or two, that no other test uses.
pub trait Network {
    fn lines(&self) -> usize;
    /// Returns the sender's address.
    fn sender(&self) -> Ipv4Addr;
    /// Opens a fan-out of the ring in `memory`.
    fn fan_out(&self, memory: &Arc<dyn RingMemory>) -> Box<dyn FanOut>;
    /// Opens a member of the groups with about `buffers` buffers. It accepts datagrams up to `len_max`.
    fn receiver_of(&self, buffers: usize, len_max: usize, offer: &ChannelOffer)
    -> Box<dyn Receive>;
    /// Returns memory for the ring, if the transport requires a kind.
    fn memory(&self, _: Geometry) -> Option<SharedMapping> {
        None
    }
    /// Returns whether a receiver is unusable for another epoch.
    fn is_of_one_epoch(&self) -> bool {
        false
    }
    /// Returns whether datagrams are lost when receive buffers are full, instead of when the ring laps.
    fn has_buffers(&self) -> bool {
        true
    }
    /// Opens a fan-out that sends to the groups from an address that was not announced, if this machine has a
    /// second one.
    fn stranger(&self) -> Option<Box<dyn FanOut>>;
    /// Returns whether its receivers drop datagrams of unknown senders. The driver above drops them anyway.
    fn keeps_strangers_out(&self) -> bool {
        true
    }
    /// Stops and starts sends below the fan-out. Returns whether the transport supports that.
    fn stall(&self, stalled: bool) -> bool;
    /// Returns whether buffers may be too short for a datagram, and how many datagrams one count of a full
    /// buffer represents at most, if these are counted.
    fn counts_what_does_not_fit(&self) -> (bool, Option<u64>);
    /// Returns the source of repairs over this network.
    fn repairs(&self) -> Option<Repairs> {
        None
    }
    /// Gives the network time. Called when a round had nothing to do.
    fn idle(&self) {
        thread::yield_now();
    }

    /// Opens another publisher's fan-out to the same groups, for copies only.
    fn intruder(&self) -> Box<dyn FanOut> {
        self.fan_out(&no_ring())
    }
}

fn no_ring() -> Arc<dyn RingMemory> {
    Arc::new(HeapMemory::new(Geometry::new(1024, 16).unwrap()))
}

/// The memory network: sends complete late, buffers are few, and it stalls on demand.
pub struct InMemory {
    network: MemoryNetwork,
    lines: usize,
}

impl InMemory {
    pub fn new(lines: usize) -> Self {
        let network = MemoryNetwork::new(MemoryNetworkConfig {
            lines,
            completion: Completion::AfterPolls(5),
            send_queue_len: 64,
            receive_buffers: BUFFERS,
            batch: 64,
            datagram_len_max: SLOT_LEN,
        });
        Self { network, lines }
    }
}

const PUBLISHER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);

impl Network for InMemory {
    fn lines(&self) -> usize {
        self.lines
    }

    fn sender(&self) -> Ipv4Addr {
        PUBLISHER
    }

    fn fan_out(&self, memory: &Arc<dyn RingMemory>) -> Box<dyn FanOut> {
        Box::new(self.network.fan_out(Arc::clone(memory), PUBLISHER))
    }

    fn receiver_of(&self, _: usize, _: usize, _: &ChannelOffer) -> Box<dyn Receive> {
        Box::new(self.network.receiver())
    }

    fn stranger(&self) -> Option<Box<dyn FanOut>> {
        let from = Ipv4Addr::new(10, 0, 0, 2);
        Some(Box::new(self.network.fan_out(no_ring(), from)))
    }

    fn keeps_strangers_out(&self) -> bool {
        false
    }

    fn stall(&self, stalled: bool) -> bool {
        self.network.stall(stalled);
        true
    }

    fn counts_what_does_not_fit(&self) -> (bool, Option<u64>) {
        (false, Some(1))
    }
}

/// Multicast on loopback.
pub struct Udp {
    groups: Vec<SocketAddrV4>,
    offload: Offload,
}

impl Udp {
    pub fn new(lines: usize, offload: Offload) -> Self {
        let groups = (0..lines).map(|_| udp_group()).collect();
        Self { groups, offload }
    }
}

/// Returns a group that no other test uses, on a port that was free a moment ago.
fn udp_group() -> SocketAddrV4 {
    static NEXT: AtomicU16 = AtomicU16::new(1);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    let probe = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = probe.local_addr().unwrap().port();
    let id = std::process::id() as u8;
    SocketAddrV4::new(Ipv4Addr::new(239, 254, id, (1 + n % 250) as u8), port)
}

impl Udp {
    fn sending_from(&self, address: Ipv4Addr) -> Box<dyn FanOut> {
        let line = |group: &SocketAddrV4| UdpSendLine {
            group: *group,
            interface: Interface::Address(address),
        };
        let config = UdpFanOutConfig {
            lines: self.groups.iter().map(line).collect(),
            ttl: 0,
            send_buffer_bytes: None,
            datagram_len_max: SLOT_LEN,
            gso: self.offload.gso,
        };
        Box::new(UdpFanOut::open(&config).unwrap())
    }
}

impl Network for Udp {
    fn lines(&self) -> usize {
        self.groups.len()
    }

    fn sender(&self) -> Ipv4Addr {
        Ipv4Addr::LOCALHOST
    }

    fn fan_out(&self, _: &Arc<dyn RingMemory>) -> Box<dyn FanOut> {
        self.sending_from(Ipv4Addr::LOCALHOST)
    }

    fn receiver_of(&self, buffers: usize, len_max: usize, _: &ChannelOffer) -> Box<dyn Receive> {
        let line = |group: &SocketAddrV4| UdpReceiveLine {
            group: *group,
            interface: Interface::default(),
            senders: vec![Ipv4Addr::LOCALHOST],
        };
        let config = UdpReceiverConfig {
            lines: self.groups.iter().map(line).collect(),
            datagram_len_max: len_max,
            receive_buffer_bytes: Some(buffers * SLOT_LEN),
            // Datagrams of other senders reach the socket and are distinguished there.
            source_specific: false,
            batch: 64,
            busy_poll_us: None,
            gro: self.offload.gro,
        };
        Box::new(UdpReceiver::open(&config).unwrap())
    }

    fn stranger(&self) -> Option<Box<dyn FanOut>> {
        Some(self.sending_from(Ipv4Addr::new(127, 0, 0, 2)))
    }

    fn stall(&self, _: bool) -> bool {
        // Loopback accepts everything.
        false
    }

    fn counts_what_does_not_fit(&self) -> (bool, Option<u64>) {
        // The kernel counts a dropped run as one.
        let runs = self.offload.gso && self.offload.gro;
        (true, Some(if runs { BATCH_MAX as u64 } else { 1 }))
    }
}
