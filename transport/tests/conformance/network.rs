//! The networks that the suite runs over, as one trait: what they share is what the cases may use.

use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::rc::Rc;
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

/// Bytes of a slot: the longest datagram there is.
pub const SLOT_LEN: usize = 1024;
/// Receive buffers, or datagrams of the length of a slot that the kernel holds at most: fewer than
/// the slots that the slow reader of the suite lets pass.
pub const BUFFERS: usize = 128;

/// Which transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Memory,
    Udp(Offload),
    Shm,
    /// And repairs by it, on these rungs.
    #[cfg(feature = "rdma")]
    Verbs(RepairOrder),
}

/// Whether runs of datagrams pass as one buffer, on which side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offload {
    pub gso: bool,
    pub gro: bool,
}

/// Where repairs can be had besides TCP, and on which rungs.
#[derive(Clone, Copy)]
pub struct Repairs {
    pub at: Ipv4Addr,
    pub ladder: RepairOrder,
}

impl Kind {
    /// UDP with what there is to make it fast, as it is unless a config says otherwise.
    pub const UDP: Self = Self::Udp(Offload {
        gso: true,
        gro: true,
    });
}

/// Groups that nobody else uses, by one transport, on one line or two.
pub trait Network {
    fn lines(&self) -> usize;
    /// The address that is sent from.
    fn sender(&self) -> Ipv4Addr;
    /// A fan-out of the ring in `memory`.
    fn fan_out(&self, memory: &Arc<dyn RingMemory>) -> Box<dyn FanOut>;
    /// A member of the groups with `buffers` buffers or about as many; it takes datagrams up to
    /// `len_max`.
    fn receiver_of(&self, buffers: usize, len_max: usize, offer: &ChannelOffer)
    -> Box<dyn Receive>;
    /// Memory for the ring, where it matters which.
    fn memory(&self, _: Geometry) -> Option<SharedMapping> {
        None
    }
    /// Whether a receiver is of no use for another epoch.
    fn is_of_one_epoch(&self) -> bool {
        false
    }
    /// Whether what nobody takes is lost when receive buffers are full, and not when the ring is.
    fn has_buffers(&self) -> bool {
        true
    }
    /// One who sends to the groups from an address that nobody announced, where this machine has
    /// a second one.
    fn stranger(&self) -> Option<Box<dyn FanOut>>;
    /// Whether its receivers drop what strangers send; the driver above drops it in any case.
    fn keeps_strangers_out(&self) -> bool {
        true
    }
    /// Stops and starts sends below the fan-out, where the transport can do that.
    fn stall(&self, stalled: bool) -> bool;
    /// Whether buffers may be too short for what is sent; and how many datagrams one of the count of
    /// full ones stands for at most, where they are counted.
    fn counts_what_does_not_fit(&self) -> (bool, Option<u64>);
    /// Where repairs can be had by it.
    fn repairs(&self) -> Option<Repairs> {
        None
    }
    /// Nothing was to be done in a round: gives the network its time.
    fn idle(&self) {
        thread::yield_now();
    }

    /// Another publisher's way to the same groups, for copies only.
    fn intruder(&self) -> Box<dyn FanOut> {
        self.fan_out(&no_ring())
    }
}

/// A network of so many lines.
pub fn open(kind: Kind, lines: usize) -> Rc<dyn Network> {
    match kind {
        Kind::Memory => Rc::new(InMemory::new(lines)),
        Kind::Udp(offload) => Rc::new(Udp {
            groups: (0..lines).map(|_| udp_group()).collect(),
            offload,
        }),
        Kind::Shm => Rc::new(crate::over_shm::OverShm::new()),
        #[cfg(feature = "rdma")]
        Kind::Verbs(ladder) => Rc::new(crate::over_verbs::OverVerbs::new(lines, ladder)),
    }
}

fn no_ring() -> Arc<dyn RingMemory> {
    Arc::new(HeapMemory::new(Geometry::new(1024, 16).unwrap()))
}

/// The memory network: sends complete late, buffers are few, and it stalls on demand.
struct InMemory {
    network: MemoryNetwork,
    lines: usize,
}

impl InMemory {
    fn new(lines: usize) -> Self {
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
struct Udp {
    groups: Vec<SocketAddrV4>,
    offload: Offload,
}

/// A group that no other test uses, on a port that was free a moment ago.
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
            // Whoever else sends reaches the socket, and is told apart there.
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
        // Loopback takes whatever it is given.
        false
    }

    fn counts_what_does_not_fit(&self) -> (bool, Option<u64>) {
        // The kernel counts a run that it drops as one.
        let runs = self.offload.gso && self.offload.gro;
        (true, Some(if runs { BATCH_MAX as u64 } else { 1 }))
    }
}
