//! A ring in a file of this host's memory, and its readers.

use std::cell::RefCell;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Weak};

use tickcast_reliability::control::ChannelOffer;
use tickcast_reliability::ring::{Geometry, RingMemory};
use tickcast_reliability::types::FanOutId;
use tickcast_transport::host::mapping::SharedMapping;
use tickcast_transport::shm::{
    CopyWriter, ShmFanOut, ShmReceiver, ShmReceiverConfig, boot_id, tail_len,
};
use tickcast_transport::{FanOut, Receive};

use crate::network::{Network, SLOT_LEN};

pub struct OverShm {
    path: PathBuf,
    /// The present ring.
    ring: RefCell<Option<(Geometry, Weak<dyn RingMemory>)>>,
}

impl OverShm {
    /// Creates a file that no other test uses.
    pub fn new() -> Self {
        static NEXT: AtomicU16 = AtomicU16::new(1);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tickcast-conformance-{}-{n}", std::process::id());
        Self {
            path: PathBuf::from("/dev/shm").join(name),
            ring: RefCell::new(None),
        }
    }
}

impl Network for OverShm {
    fn lines(&self) -> usize {
        1
    }

    fn sender(&self) -> Ipv4Addr {
        ShmReceiver::SENDER
    }

    fn memory(&self, geometry: Geometry) -> Option<SharedMapping> {
        Some(SharedMapping::fresh(&self.path, geometry.bytes(), tail_len(geometry)).unwrap())
    }

    fn fan_out(&self, memory: &Arc<dyn RingMemory>) -> Box<dyn FanOut> {
        let slots = (memory.len() - 4096) / SLOT_LEN;
        let geometry = Geometry::new(SLOT_LEN as u32, slots as u64).unwrap();
        *self.ring.borrow_mut() = Some((geometry, Arc::downgrade(memory)));
        Box::new(ShmFanOut::open(memory, geometry, CopyWriter::FanOut).unwrap())
    }

    fn receiver_of(&self, _: usize, _: usize, offer: &ChannelOffer) -> Box<dyn Receive> {
        let config = ShmReceiverConfig {
            path: self.path.clone(),
            fan_out: FanOutId(0),
            boot_id: boot_id().unwrap(),
            channel: offer.channel,
            epoch: offer.epoch,
            geometry: Geometry::new(offer.slot_len, offer.slots).unwrap(),
        };
        Box::new(ShmReceiver::open(&config, offer.newest).unwrap())
    }

    fn is_of_one_epoch(&self) -> bool {
        true
    }

    fn stranger(&self) -> Option<Box<dyn FanOut>> {
        None
    }

    /// Opens a fan-out with write access to the publisher's memory.
    fn intruder(&self) -> Box<dyn FanOut> {
        let ring = self.ring.borrow();
        let (geometry, memory) = ring.as_ref().unwrap();
        let memory = memory.upgrade().unwrap();
        Box::new(ShmFanOut::open(&memory, *geometry, CopyWriter::Repairs).unwrap())
    }

    fn stall(&self, _: bool) -> bool {
        false
    }

    fn counts_what_does_not_fit(&self) -> (bool, Option<u64>) {
        (false, Some(1))
    }

    fn has_buffers(&self) -> bool {
        false
    }
}
