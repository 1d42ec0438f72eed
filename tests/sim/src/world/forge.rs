//! Forged datagrams, which must not change anything.

use tickcast_reliability::types::{ConfigHash, Epoch, Nanos, RecordNumber, Sequence};
use tickcast_reliability::types::{SourceId, SourcePosition};
use tickcast_reliability::wire::{HEADER_LEN, Header, Heartbeat, Kind, PublisherState, crc_of};

use crate::faults::incident::Forgery;
use crate::faults::plan::CHANNEL;
use crate::network::packet::packet;
use crate::world::World;

impl World {
    /// Multicasts a forged datagram to all subscribers.
    pub(crate) fn forge(&mut self, forgery: Forgery) {
        let publisher = &self.publishers[self.endpoint];
        let (core, epoch) = (&publisher.feeds[0].core, publisher.epoch);
        let sealed = core.sealed();
        let far = sealed.plus(core.ring().geometry().slots() * 4);
        let (kind, epoch, sequence) = match forgery {
            Forgery::BrokenEnd => (Kind::End, epoch, sealed),
            Forgery::StrayEnd => (Kind::End, Epoch(epoch.0 + 1_000_000), sealed),
            Forgery::EndedHeartbeat => (Kind::Heartbeat, epoch, sealed),
            Forgery::Leap => (Kind::Event, epoch, far),
        };
        let body = Heartbeat {
            next_interval_us: 100,
            hold_off_us: 0,
            subscribers: 1,
            state: PublisherState::Ended,
            config_hash: ConfigHash(1),
        };
        let body: &[u8] = match kind {
            Kind::Heartbeat => &body.to_bytes(),
            _ => &[],
        };
        let header = Header {
            kind,
            channel: CHANNEL,
            count: 0,
            epoch,
            sequence,
            first_record: RecordNumber(0),
            source_position: SourcePosition(0),
            sent_at: Nanos::ZERO,
            retained: 1,
            source: SourceId(0),
            payload_len: body.len() as u16,
            flags: 0,
            header_len: HEADER_LEN as u16,
            relay: 0,
        };
        let crc = crc_of(&header.to_bytes(0), body);
        let wrong = u32::from(forgery == Forgery::BrokenEnd);
        let mut bytes = header.to_bytes(crc ^ wrong).to_vec();
        bytes.extend_from_slice(body);
        if sequence == Sequence::NONE {
            return;
        }
        for fan_out in 0..self.plan.fan_outs {
            self.multicast(fan_out, &packet(CHANNEL, &bytes));
        }
    }
}
