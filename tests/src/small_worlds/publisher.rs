//! The publisher of a small world: the shipped cores over the smallest ring there is.

use std::sync::Arc;

use tickcast_reliability::control::{FanOutOffer, UdpLine};
use tickcast_reliability::counters::RepairCounters;
use tickcast_reliability::heartbeat::HeartbeatConfig;
use tickcast_reliability::publisher_core::{PublisherConfig, PublisherCore};
use tickcast_reliability::record::RecordBatch;
use tickcast_reliability::repair_config::RepairConfig;
use tickcast_reliability::repair_core::{ChannelInfo, RepairCore};
use tickcast_reliability::ring::{HeapMemory, RingWriter};
use tickcast_reliability::ring_layout::{Geometry, RingIdentity};
use tickcast_reliability::units::{
    ConfigHash, Epoch, Now, RecordNumber, Sequence, SequenceRange, SourceId, SourcePosition,
};
use tickcast_reliability::wire::{Datagram, EpochReason, StreamEvent};

use super::Publish;
use crate::subscriber::CHANNEL;
use crate::truth::{ContentKey, Truth, push_record};

/// A heartbeat at this interval, whatever is sent: one timer that matters.
const HEARTBEAT_US: u64 = 1_000;

/// See the module.
pub struct Publisher {
    /// Publishing.
    pub core: PublisherCore,
    /// Repair.
    pub repair: RepairCore,
    /// What repair counts.
    pub counters: Arc<RepairCounters>,
    /// Its epoch.
    pub epoch: Epoch,
    /// How much of its epoch's list was published.
    pub published: usize,
    position: u64,
}

impl Publisher {
    /// A publisher that opens `epoch`.
    ///
    /// # Errors
    /// What the cores refuse.
    pub fn open(epoch: Epoch, truth: &mut Truth, now: Now) -> Result<Self, String> {
        let geometry = Geometry::new(1024, 16).map_err(|e| e.to_string())?;
        let identity = RingIdentity {
            channel: CHANNEL,
            epoch,
            config_hash: ConfigHash(1),
            boot_id: [1; 16],
            fan_outs: 1,
            first_sequence: Sequence::FIRST,
            first_record: RecordNumber::FIRST,
        };
        let ring = RingWriter::create(Arc::new(HeapMemory::new(geometry)), geometry, identity)
            .map_err(|e| e.to_string())?;
        truth.open(CHANNEL, epoch, (Sequence::FIRST, 1));
        let line = UdpLine {
            group: std::net::SocketAddrV4::new(std::net::Ipv4Addr::new(239, 0, 0, 1), 4000),
            sender: std::net::Ipv4Addr::LOCALHOST,
        };
        let info = ChannelInfo {
            name: "small".into(),
            fan_outs: vec![FanOutOffer::Udp { lines: vec![line] }],
            directory: Vec::new(),
        };
        let counters = Arc::<RepairCounters>::default();
        let channels = vec![(info, ring.reader(), Arc::clone(&counters))];
        let config = PublisherConfig {
            heartbeat: HeartbeatConfig {
                first_us: HEARTBEAT_US,
                idle_us: HEARTBEAT_US,
                ambient_us: HEARTBEAT_US,
            },
            fan_out_margin_slots: 0,
        };
        let service = Arc::default();
        let repair = RepairConfig::default();
        Ok(Self {
            repair: RepairCore::new(repair, "small".into(), channels, service, epoch.0, now),
            core: PublisherCore::new(config, ring, Arc::default(), now.monotonic),
            counters,
            epoch,
            published: 0,
            position: 0,
        })
    }

    /// Publishes one datagram.
    ///
    /// # Errors
    /// What the core refused, or sealed otherwise than it should.
    pub fn publish(&mut self, what: Publish, truth: &mut Truth, now: Now) -> Result<(), String> {
        let of = truth
            .ring_mut(CHANNEL, self.epoch, 0)
            .ok_or("no such epoch")?;
        match what {
            Publish::Data(records) => {
                self.position += 1;
                let mut batch = RecordBatch::default();
                for n in 0..u64::from(records) {
                    push_record(
                        &mut batch,
                        ContentKey::of(CHANNEL, self.epoch, 0),
                        of.next_record() + n,
                    );
                }
                let position = SourcePosition::new(0, self.position);
                let result = self.core.publish(&batch, SourceId(1), position, now);
                result.map_err(|e| e.to_string())?;
                self.core.flush(now, true);
            }
            Publish::Opened => {
                let opened = StreamEvent::EpochOpened {
                    reason: EpochReason::Restart,
                    previous: Epoch(self.epoch.0 - 1),
                    previous_last: Sequence::NONE,
                };
                self.core.event(&opened, now).map_err(|e| e.to_string())?;
            }
            Publish::End => {
                self.core.end(now).map_err(|e| e.to_string())?;
            }
        }
        let new = SequenceRange::new(of.last().next(), self.core.sealed());
        for sequence in new.into_iter().flat_map(SequenceRange::iter) {
            let bytes = self.core.slot(sequence).ok_or("a sealed slot is gone")?;
            let datagram = Datagram::parse(bytes).map_err(|e| e.to_string())?;
            let header = datagram.header();
            let due = (sequence, of.next_record());
            if (header.sequence, header.first_record.0) != due {
                return Err(format!("sealed {header:?} where {due:?} is due"));
            }
            of.seal(header.kind, header.count.into());
        }
        Ok(())
    }
}
