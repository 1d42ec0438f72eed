//! A publisher in virtual time: the shipped cores of publishing and repair over one small ring,
//! and a feed that makes up messages.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use tickcast_reliability::control::{FanOutOffer, UdpLine};
use tickcast_reliability::counters::{RepairCounters, RepairServiceCounters, SenderCounters};
use tickcast_reliability::peers::PeerId;
use tickcast_reliability::publisher_core::{PublisherConfig, PublisherCore};
use tickcast_reliability::record::RecordBatch;
use tickcast_reliability::repair_core::{ChannelInfo, RepairCore};
use tickcast_reliability::ring::{HeapMemory, RingWriter};
use tickcast_reliability::ring_layout::{Geometry, RingIdentity};
use tickcast_reliability::sequencer::PublishError;
use tickcast_reliability::units::{
    ConfigHash, Epoch, Nanos, Now, RecordNumber, Sequence, SequenceRange, SourceId, SourcePosition,
};
use tickcast_reliability::wire::{Datagram, SourceLossReason, StreamEvent};

use crate::balance::Meter;
use crate::profiles::Plan;
use crate::subscriber::CHANNEL;
use crate::truth::{Truth, push_record};

/// What happens to a publisher's process, kept while it is paused.
#[derive(Clone, Copy, Debug)]
pub enum Arrival {
    /// A connection was accepted.
    Connected(usize),
    /// Bytes came on it.
    Bytes(usize),
    /// It is over.
    Closed(usize),
}

/// Budgets of a publisher as seen from outside.
pub struct Meters {
    /// All repair.
    pub repair: Meter,
    /// All replay.
    pub joiners: Meter,
    /// Repair of each peer.
    pub peers: BTreeMap<PeerId, Meter>,
    /// Bytes of repair by unicast, by multicast, and of replay, so far.
    pub seen: (u64, u64, u64),
}

/// See the module.
pub struct Publisher {
    /// Publishing.
    pub core: PublisherCore,
    /// Repair.
    pub repair: RepairCore,
    /// What repair counts.
    pub counters: Arc<RepairCounters>,
    /// What sending counts.
    pub sender: Arc<SenderCounters>,
    /// Its epoch.
    pub epoch: Epoch,
    /// Whether the process is there.
    pub alive: bool,
    /// Whether nobody would reset a connection to it: the host is gone.
    pub dark: bool,
    /// Whether it stands still.
    pub paused: bool,
    /// Fan-outs that take no more.
    pub stalled: [bool; 2],
    /// Connections by peer.
    pub peers: BTreeMap<PeerId, usize>,
    /// What came while it was paused.
    pub waiting: VecDeque<Arrival>,
    /// When it is woken next.
    pub wakes_at: Nanos,
    /// How often in a row it wanted to be woken at once.
    pub spins: u32,
    /// Budgets.
    pub meters: Meters,
    /// Whether its feed has ended.
    pub finished: bool,
    position: u64,
    batch: RecordBatch,
}

impl Publisher {
    /// A publisher that opens `epoch`.
    ///
    /// # Errors
    /// What of the plan can't be.
    pub fn open(
        plan: &Plan,
        epoch: Epoch,
        first: (u64, u64),
        truth: &mut Truth,
        now: Now,
    ) -> Result<Self, String> {
        let geometry = Geometry::new(plan.slot_len, plan.ring_slots).map_err(|e| e.to_string())?;
        let identity = RingIdentity {
            channel: CHANNEL,
            epoch,
            config_hash: ConfigHash(1),
            boot_id: [1; 16],
            fan_outs: plan.fan_outs,
            first_sequence: Sequence(first.0),
            first_record: RecordNumber(first.1),
        };
        let ring = RingWriter::create(Arc::new(HeapMemory::new(geometry)), geometry, identity)
            .map_err(|e| e.to_string())?;
        truth.open(epoch, Sequence(first.0), first.1);
        let line = UdpLine {
            group: std::net::SocketAddrV4::new(std::net::Ipv4Addr::new(239, 0, 0, 1), 4000),
            sender: std::net::Ipv4Addr::LOCALHOST,
        };
        let offer = FanOutOffer::Udp {
            lines: vec![line; plan.lines.into()],
        };
        let info = ChannelInfo {
            name: "sim".into(),
            fan_outs: vec![offer; plan.fan_outs.into()],
            directory: Vec::new(),
        };
        let (counters, sender) = (Arc::<RepairCounters>::default(), Arc::default());
        let service: Arc<RepairServiceCounters> = Arc::default();
        let channels = vec![(info, ring.reader(), counters.clone())];
        let config = PublisherConfig {
            heartbeat: plan.heartbeat,
            fan_out_margin_slots: 0,
        };
        let r = &plan.repair;
        Ok(Self {
            repair: RepairCore::new(
                plan.repair,
                "sim".into(),
                channels,
                service,
                plan.seed ^ epoch.0,
                now,
            ),
            core: PublisherCore::new(config, ring, Arc::clone(&sender), now.monotonic),
            counters,
            sender,
            epoch,
            alive: true,
            dark: false,
            paused: false,
            stalled: [false; 2],
            peers: BTreeMap::new(),
            waiting: VecDeque::new(),
            wakes_at: Nanos::MAX,
            spins: 0,
            meters: Meters {
                repair: Meter::new(r.repair_bytes_per_s, r.repair_burst_bytes),
                joiners: Meter::new(r.joiner_bytes_per_s, r.joiner_burst_bytes),
                peers: BTreeMap::new(),
                seen: (0, 0, 0),
            },
            finished: false,
            position: 0,
            batch: RecordBatch::default(),
        })
    }

    /// The feed has a burst of messages: publishes them, or ends the session where sequences end.
    ///
    /// # Errors
    /// What the core refused although it should not have.
    pub fn feed(
        &mut self,
        plan: &Plan,
        truth: &mut Truth,
        rng: &mut ChaCha8Rng,
        now: Now,
    ) -> Result<(), String> {
        let of = truth.of_mut(self.epoch).ok_or("no such epoch")?;
        // The feed's own count of records, beside the core's.
        let mut number = of.next_record();
        for _ in 0..rng.random_range(1..=plan.burst) {
            self.position += 1;
            let source = SourceId(rng.random_range(1..=2));
            let position = SourcePosition::new(0, self.position);
            self.batch.clear();
            let kind = rng.random_range(0..1000);
            let records = match kind {
                // Too large for a slot.
                0 => 200,
                1..=20 => 0,
                _ => rng.random_range(1..=6),
            };
            for n in 0..records {
                push_record(&mut self.batch, self.epoch, number.saturating_add(n));
            }
            let result = if (1..=10).contains(&kind) {
                let lost = StreamEvent::SourceLost {
                    source,
                    reason: SourceLossReason::Overflow,
                    from: position,
                    messages: 1,
                    instruments: vec![1, 2],
                };
                self.core.event(&lost, now).map(|_| ())
            } else {
                self.core.publish(&self.batch, source, position, now)
            };
            match result {
                Ok(()) => number += records * u64::from(!(1..=10).contains(&kind)),
                Err(PublishError::TooLarge { .. }) => {}
                Err(PublishError::Exhausted) => {
                    self.finish(truth, now)?;
                    return Ok(());
                }
                Err(error) => return Err(error.to_string()),
            }
            self.note_sealed(truth)?;
        }
        self.core.flush(now, true);
        self.note_sealed(truth)?;
        let told = truth.of(self.epoch).map_or(0, |of| of.next_record());
        if told != number {
            return Err(format!("{number} is the next record, the ring says {told}"));
        }
        Ok(())
    }

    /// Ends the session.
    ///
    /// # Errors
    /// What the core refused.
    pub fn finish(&mut self, truth: &mut Truth, now: Now) -> Result<(), String> {
        self.finished = true;
        self.core.end(now).map_err(|e| e.to_string())?;
        self.note_sealed(truth)
    }

    /// Writes down what was sealed, as it stands in the ring.
    fn note_sealed(&mut self, truth: &mut Truth) -> Result<(), String> {
        let of = truth.of_mut(self.epoch).ok_or("no such epoch")?;
        let new = SequenceRange::new(of.last().next(), self.core.sealed());
        for sequence in new.into_iter().flat_map(SequenceRange::iter) {
            let bytes = self.core.slot(sequence).ok_or("a sealed slot is gone")?;
            let datagram = Datagram::parse(bytes).map_err(|e| e.to_string())?;
            let header = datagram.header();
            let expected = (sequence, of.next_record());
            if (header.sequence, header.first_record.0) != expected {
                return Err(format!("sealed {header:?} where {expected:?} is due"));
            }
            of.seal(header.kind, header.count.into());
        }
        Ok(())
    }
}
