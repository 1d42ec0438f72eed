//! The publisher of a small world: the shipped cores over the smallest possible ring.

use std::sync::Arc;

use tickcast_reliability::control::{FanOutOffer, UdpLine};
use tickcast_reliability::publish::{HeartbeatConfig, PublisherConfig, PublisherCore, Transmit};
use tickcast_reliability::record::RecordBatch;
use tickcast_reliability::ring::{Geometry, HeapMemory, RingIdentity, RingWriter};
use tickcast_reliability::serve::{
    Carrier, ChannelInfo, Destination, PeerId, RepairConfig, RepairCore, RepairEvent, RepairInput,
};
use tickcast_reliability::types::{
    ConfigHash, Epoch, Nanos, Now, PeerOrigin, RecordNumber, RepairCounters, Sequence,
    SequenceRange, SourceId, SourcePosition,
};
use tickcast_reliability::wire::{Datagram, EpochReason, StreamEvent};

use super::core::{Checked, Core, Does, FAN_OUT, both_clocks, from_now};
use super::fingerprint::Printer;
use super::transcript::{FrameId, PacketId, Said};
use super::{BEGIN, Publish, SmallPlan};
use crate::checks::counters;
use crate::faults::plan::CHANNEL;
use crate::truth::{ContentKey, Truth, push_record};

/// Constant heartbeat interval, whatever is sent, so that only one timer matters.
const HEARTBEAT_US: u64 = 1_000;
/// The host of all subscribers.
const HOST: PeerOrigin = PeerOrigin::V4(std::net::Ipv4Addr::LOCALHOST);

/// The publisher of a small world.
pub struct SmallPublisher {
    /// The publisher core.
    pub core: PublisherCore,
    /// The repair core.
    pub repair: RepairCore,
    /// Counters of repair.
    pub counters: Arc<RepairCounters>,
    /// The publisher's epoch.
    pub epoch: Epoch,
    /// Number of datagrams published from its epoch's list.
    pub published: usize,
    /// The truth of this epoch and of the earlier ones passed to it.
    pub truth: Truth,
    position: u64,
}

/// Inputs of a publisher.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PublisherInput {
    /// A poll only: a timer fires.
    Look,
    /// A datagram to publish.
    Publish(Publish),
    /// A peer connects.
    Connected(PeerId),
    /// A connection closes.
    Disconnected(PeerId),
    /// A message arrives.
    Message(PeerId, FrameId),
}

/// Outputs of a publisher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PublisherOutput {
    /// A datagram sent to the group.
    Multicast(PacketId),
    /// A message sent on one connection.
    Send(PeerId, FrameId),
}

/// The part of a publisher's state that a world needs.
#[derive(Clone, Copy, Debug)]
pub struct PublisherFacts {
    /// Time from now until its next timer; [`Nanos::MAX`] means never.
    pub due: Nanos,
    /// Last sequence sent.
    pub posted: Sequence,
    /// Number of datagrams published from its epoch's list.
    pub published: usize,
    /// Whether all subscribers are known to have reached the end.
    pub all_reached_end: bool,
    /// Number of sequences whose repair is pending.
    pub pending: u64,
}

/// Returns the truth after this many datagrams of each epoch were published.
///
/// # Errors
/// A datagram that the publisher's core refuses.
pub(super) fn truth_after(plan: &SmallPlan, published: &[usize]) -> Result<Truth, String> {
    let mut truth = Truth::default();
    for (epoch, published) in (1..).map(Epoch).zip(published) {
        let mut publisher = SmallPublisher::open(epoch, truth)?;
        for what in &plan.epoch(epoch.0)[..*published] {
            publisher.publish(*what, both_clocks(BEGIN))?;
        }
        truth = publisher.truth;
    }
    Ok(truth)
}

impl SmallPublisher {
    /// Opens `epoch` after the epochs in `truth`.
    ///
    /// # Errors
    /// Settings that the cores refuse.
    pub fn open(epoch: Epoch, mut truth: Truth) -> Result<Self, String> {
        let now = both_clocks(BEGIN);
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
        let config = PublisherConfig {
            heartbeat: HeartbeatConfig {
                first_us: HEARTBEAT_US,
                idle_us: HEARTBEAT_US,
                ambient_us: HEARTBEAT_US,
            },
            fan_out_margin_slots: 0,
        };
        let info = ChannelInfo {
            name: "small".into(),
            fan_outs: vec![FanOutOffer::Udp { lines: vec![line] }],
            directory: Vec::new(),
            heartbeat: config.heartbeat,
        };
        let counters = Arc::<RepairCounters>::default();
        let channels = vec![(info, ring.reader(), Arc::clone(&counters))];
        let service = Arc::default();
        let repair = RepairConfig::default();
        let secret = [epoch.0 as u8; 32];
        Ok(Self {
            repair: RepairCore::new(repair, "small".into(), channels, service, secret, now),
            core: PublisherCore::new(config, ring, Arc::default(), now.monotonic),
            counters,
            epoch,
            published: 0,
            truth,
            position: 0,
        })
    }

    /// Publishes one datagram.
    ///
    /// # Errors
    /// A datagram that the core refuses or seals incorrectly.
    pub fn publish(&mut self, what: Publish, now: Now) -> Checked {
        let ring = self.truth.ring_mut(CHANNEL, self.epoch, 0);
        let of = ring.ok_or("no such epoch")?;
        self.published += 1;
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

    /// Performs all actions that the cores request.
    fn serve(&mut self, said: &mut Said, now: Now, does: &mut Does<PublisherOutput>) -> Checked {
        let out = &mut does.outputs;
        self.core.handle_timeout(now);
        self.repair.handle(now, RepairInput::Timeout);
        while let Some(transmit) = self.core.poll_transmit(FAN_OUT) {
            match transmit {
                Transmit::Slots(range) => {
                    for sequence in range.iter() {
                        let slot = self.core.slot(sequence).ok_or("a slot is gone")?;
                        out.push(PublisherOutput::Multicast(said.packet(slot)));
                    }
                    self.core.handle_posted(FAN_OUT, range.last);
                    self.core.handle_completed(FAN_OUT, range.last);
                }
                Transmit::Heartbeat(bytes) => {
                    out.push(PublisherOutput::Multicast(said.packet(&bytes)));
                }
            }
        }
        let mut bytes = Vec::new();
        while let Some(destination) = self.repair.poll_transmit(now, &mut bytes) {
            match destination {
                Destination::Multicast(_) => {
                    out.push(PublisherOutput::Multicast(said.packet(&bytes)));
                }
                Destination::Peer(peer) => {
                    said.frames(
                        &bytes,
                        |_| {},
                        |id| out.push(PublisherOutput::Send(peer, id)),
                    )?;
                }
            }
            bytes.clear();
        }
        while let Some(event) = self.repair.poll() {
            if let RepairEvent::Close { peer, .. } = event {
                out.push(PublisherOutput::Send(peer, FrameId::CLOSED));
            }
        }
        let (subscribers, hold_off_us) = self.repair.group(CHANNEL);
        self.core.set_group(subscribers, hold_off_us);
        counters::repair(&self.counters)
    }
}

impl Core for SmallPublisher {
    type Input = PublisherInput;
    type Output = PublisherOutput;
    type Facts = PublisherFacts;

    fn begin(_: &SmallPlan, epoch: u64) -> Result<Self, String> {
        Self::open(Epoch(epoch), Truth::default())
    }

    fn take(
        &mut self,
        said: &mut Said,
        now: Nanos,
        input: PublisherInput,
        does: &mut Does<PublisherOutput>,
    ) -> Checked {
        let now = both_clocks(now);
        match input {
            PublisherInput::Look => {}
            PublisherInput::Publish(what) => self.publish(what, now)?,
            PublisherInput::Connected(peer) => {
                self.repair
                    .handle(now, RepairInput::Connected(peer, Carrier::Verbs, HOST));
            }
            PublisherInput::Disconnected(peer) => {
                self.repair.handle(now, RepairInput::Disconnected(peer));
            }
            PublisherInput::Message(peer, id) => {
                let (channel, message) = said.message(id)?;
                self.repair
                    .handle(now, RepairInput::Message(peer, channel, &message));
            }
        }
        self.serve(said, now, does)
    }

    fn fingerprint(&self, printer: &mut Printer, now: Nanos) -> u128 {
        let cores = (&self.core, &self.repair);
        let published = (self.epoch, self.published, self.position, &self.truth);
        printer.of(&(cores, published, &self.counters), now)
    }

    fn facts(&self, now: Nanos) -> PublisherFacts {
        let core = self.core.poll_timeout().unwrap_or(Nanos::MAX);
        let repair = self.repair.poll_timeout().unwrap_or(Nanos::MAX);
        PublisherFacts {
            due: from_now(core.min(repair), now),
            posted: self.core.posted(FAN_OUT),
            published: self.published,
            all_reached_end: self.repair.all_reached_end(),
            pending: self.counters.pending.get(),
        }
    }
}
