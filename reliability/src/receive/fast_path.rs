//! The straight way: what came by multicast and is the next one, while nothing is missing, nothing waits
//! and nothing is to be told before it. Nearly every datagram comes so, and of what
//! [`Receiver::handle_datagram`] does for any, what is done here is all that comes to something for it.

use crate::delivery::{Deliver, LineId, Via};
use crate::receive::Receiver;
use crate::receive::window::Held;
use crate::types::{Nanos, Sequence};
use crate::wire::{Datagram, Kind, relay_flags};

impl Receiver {
    /// Whether a datagram of multicast, whose CRC fits, can go the straight way.
    #[inline]
    pub(crate) fn is_fast_path(&self, datagram: &Datagram<'_>) -> bool {
        let (header, next) = (datagram.header(), self.reassembly.next());
        header.sequence == next
            // So nothing that is known of lies between, nor beyond.
            && self.highest_seen == next.previous()
            && header.kind == Kind::Data
            && header.relay & relay_flags::RETRANSMITTED == 0
            && header.channel == self.channel
            && self.is_of_our_line(header)
            && self.end_at.is_none()
            && !self.ended()
            && self.beginning.is_none()
            && self.reassembly.is_clear()
            && datagram.bytes().len() <= self.reassembly.window().slot_len()
    }

    /// Takes such a datagram.
    #[inline]
    pub(crate) fn deliver_fast(
        &mut self,
        now: Nanos,
        line: LineId,
        datagram: &Datagram<'_>,
        on: &mut impl Deliver,
    ) {
        self.highest_seen = datagram.header().sequence;
        self.heard_on(line, self.highest_seen, now);
        let held = Self::held(now, Via::Line(line), datagram);
        self.reassembly.hand_on(datagram, held, &self.counters, on);
        self.tell(on);
    }

    /// Something of the stream came on this line.
    #[inline]
    pub(crate) fn heard_on(&mut self, line: LineId, sequence: Sequence, now: Nanos) {
        if let Some(change) = self.lines.heard(line, sequence, now) {
            self.note_line(change);
        }
        if let Some(change) = self.liveness.heard_multicast(now) {
            self.note_liveness(change, now);
        }
    }

    /// What is remembered of a datagram that comes now and was not missing.
    #[inline]
    pub(crate) const fn held(now: Nanos, via: Via, datagram: &Datagram<'_>) -> Held {
        let header = datagram.header();
        Held {
            sequence: header.sequence,
            first_record: header.first_record,
            count: header.count,
            crc: datagram.crc(),
            via,
            received_at: now,
            missing_for: Nanos::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::{Rng, SeedableRng};

    use super::*;
    use crate::control::{ChannelOffer, Start};
    use crate::delivery::{Delivery, Item};
    use crate::receive::config::ReceiverConfig;
    use crate::record::{AlignedCopy, MboMsg, RecordBatch};
    use crate::types::{
        ChannelId, ConfigHash, Epoch, Lineage, ReceiverCounters, RecordNumber, Sequence, SourceId,
        SourcePosition,
    };
    use crate::wire::{CrcVerdict, HEADER_LEN, Header, crc_of};

    const EPOCH: Epoch = Epoch(5);
    const SLOT_LEN: u32 = 256;

    /// A receiver that has joined, and what it told.
    struct Bench {
        receiver: Receiver,
        told: Vec<String>,
    }

    impl Bench {
        fn new(delivery: Delivery) -> Self {
            let config = ReceiverConfig {
                delivery,
                window_slots: 16,
                ..ReceiverConfig::default()
            };
            let offer = ChannelOffer {
                channel: ChannelId(1),
                name: String::new(),
                epoch: EPOCH,
                newest: Sequence(0),
                oldest: Sequence(1),
                oldest_record: RecordNumber(1),
                next_record: RecordNumber(1),
                slot_len: SLOT_LEN,
                slots: 64,
                config_hash: ConfigHash(0),
                ended: false,
                fan_outs: Vec::new(),
                directory: Vec::new(),
                continues: Lineage::default(),
                history: None,
            };
            let counters = Arc::<ReceiverCounters>::default();
            let ring = (offer.slots, SLOT_LEN as usize);
            let (channel, now) = (offer.channel, Nanos(1));
            let mut bench = Self {
                receiver: Receiver::new(config, channel, ring, 2, 7, now, counters),
                told: Vec::new(),
            };
            bench.with(|receiver, mut on| {
                receiver.handle_welcome(now, &offer, Start::Live, &mut on);
            });
            bench
        }

        fn with(&mut self, f: impl FnOnce(&mut Receiver, &mut dyn FnMut(Item<'_>))) {
            let told = &mut self.told;
            f(&mut self.receiver, &mut |item| {
                told.push(match item {
                    // Where it lies is nobody's business.
                    Item::Record(position, record) => {
                        format!("{position:?} {:?}", record.get::<MboMsg>())
                    }
                    other => format!("{other:?}"),
                });
            });
        }

        /// All that it is, and has told and counted.
        fn all(&self) -> String {
            format!("{:?}\n{:?}", self.receiver, self.told)
        }
    }

    /// A datagram of so many records, one of a line's or the publisher's answer.
    fn datagram(kind: Kind, sequence: u64, count: u16, relay: u8) -> Vec<u8> {
        let mut records = RecordBatch::default();
        for order_id in 0..count.into() {
            records.put(&MboMsg {
                order_id,
                ..MboMsg::default()
            });
        }
        let payload = match kind {
            Kind::Heartbeat => &[0; 24][..],
            _ => records.bytes(),
        };
        let header = Header {
            kind,
            channel: ChannelId(1),
            count,
            epoch: EPOCH,
            sequence: Sequence(sequence),
            first_record: RecordNumber(sequence * 2 - 1),
            source_position: SourcePosition(sequence),
            sent_at: Nanos(1),
            retained: 1,
            source: SourceId(1),
            payload_len: payload.len() as u16,
            flags: 0,
            header_len: HEADER_LEN as u16,
            relay,
        };
        let crc = crc_of(&header.to_bytes(0), payload);
        [&header.to_bytes(crc)[..], payload].concat()
    }

    #[test]
    fn what_goes_straight_leaves_all_as_the_long_way_would() {
        let mut straight = 0;
        for seed in 0..200 {
            let mut random = ChaCha8Rng::seed_from_u64(seed);
            let deliveries = [
                Delivery::Ordered,
                Delivery::OrderedWithin(Nanos(40)),
                Delivery::Arrival,
            ];
            let delivery = deliveries[seed as usize % deliveries.len()];
            let (mut either, mut long) = (Bench::new(delivery), Bench::new(delivery));
            let (mut newest, mut aligned) = (0_u64, AlignedCopy::default());
            for step in 0..150 {
                let back = u64::from(random.next_u32() % 6);
                let mut one_in = |n: u32| random.next_u32().is_multiple_of(n);
                let repair = one_in(4);
                let sequence = match (repair, one_in(12)) {
                    (false, false) => newest + 1,
                    (false, true) => newest + 3,
                    // What is missing, perhaps, or came already.
                    (true, _) => newest.saturating_sub(back).max(1),
                };
                newest = newest.max(sequence);
                let kind = match (one_in(12), one_in(90)) {
                    (_, true) => Kind::End,
                    (true, _) => Kind::Heartbeat,
                    _ => Kind::Data,
                };
                let relay = if one_in(9) {
                    relay_flags::RETRANSMITTED
                } else {
                    0
                };
                // Three are more than fit a slot.
                let count = if one_in(40) { 4 } else { 2 };
                let via = match (repair, one_in(5)) {
                    (true, _) => Via::Repair,
                    (false, second) => Via::Line(LineId(second.into())),
                };
                let verdict = if one_in(30) {
                    CrcVerdict::Bad
                } else {
                    CrcVerdict::Good
                };
                let bytes = datagram(kind, sequence, count, relay);
                let datagram = Datagram::parse(aligned.of(&bytes)).unwrap();
                let now = Nanos(10 + step * 10);
                let is_of_line = matches!(via, Via::Line(_)) && verdict == CrcVerdict::Good;
                straight += u64::from(is_of_line && either.receiver.is_fast_path(&datagram));
                either.with(|it, mut on| {
                    it.handle_datagram(now, via, &datagram, verdict, &mut on);
                });
                long.with(|it, mut on| {
                    it.counters.received_datagrams.increment();
                    it.counters
                        .received_bytes
                        .add(datagram.bytes().len() as u64);
                    it.process(now, via, &datagram, verdict, &mut on);
                });
                if one_in(6) {
                    for bench in [&mut either, &mut long] {
                        bench.with(|it, mut on| it.handle_timeout(now, &mut on));
                    }
                }
                assert_eq!(either.all(), long.all(), "seed {seed}, step {step}");
            }
        }
        assert!(straight > 1_000, "{straight} went straight");
    }
}
