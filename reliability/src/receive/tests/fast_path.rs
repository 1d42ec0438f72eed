//! The fast path leaves the receiver as the full path does.

use std::sync::Arc;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::control::{ChannelOffer, HeartbeatLimits, Start, Status};
use crate::delivery::{Delivery, Item, LineId, Via};
use crate::receive::path::{Arrival, ArrivalPath};
use crate::receive::{Receiver, ReceiverConfig};
use crate::record::{AlignedCopy, MboMsg, RecordBatch};
use crate::types::{
    ChannelId, ConfigHash, Epoch, Lineage, Nanos, ReceiverCounters, RecordNumber, Sequence,
    SourceId, SourcePosition,
};
use crate::wire::{CrcVerdict, Datagram, HEADER_LEN, Header, Kind, crc_of, relay_flags};

const EPOCH: Epoch = Epoch(5);
const SLOT_LEN: u32 = 256;

/// A receiver that has joined, and the items that it delivered.
struct Bench {
    receiver: Receiver,
    reported: Vec<String>,
}

impl Bench {
    fn new(delivery: Delivery) -> Self {
        let config = ReceiverConfig {
            delivery,
            window_slots: 16,
            ..ReceiverConfig::default()
        };
        let offer = ChannelOffer {
            authentication: None,
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
            heartbeats: HeartbeatLimits::default(),
        };
        let counters = Arc::<ReceiverCounters>::default();
        let ring = (offer.slots, SLOT_LEN as usize);
        let (channel, now) = (offer.channel, Nanos(1));
        let mut bench = Self {
            receiver: Receiver::new(config, channel, ring, 2, 7, now, counters),
            reported: Vec::new(),
        };
        bench.with(|receiver, mut on| {
            receiver.handle_welcome(now, &offer, Start::Live, &mut on);
        });
        bench
    }

    fn with(&mut self, f: impl FnOnce(&mut Receiver, &mut dyn FnMut(Item<'_>))) {
        let reported = &mut self.reported;
        f(&mut self.receiver, &mut |item| {
            reported.push(match item {
                // Without the address of the record.
                Item::Record(position, record) => {
                    format!("{position:?} {:?}", record.get::<MboMsg>())
                }
                other => format!("{other:?}"),
            });
        });
    }

    /// The whole state, and all that was delivered.
    fn all(&self) -> String {
        format!("{:?}\n{:?}", self.receiver, self.reported)
    }
}

/// A datagram of `count` records.
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
fn fast_path_leaves_same_state_as_full_path() {
    let mut fast = 0;
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
                // Perhaps a missing one, perhaps a duplicate.
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
            // Four records exceed a slot.
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
            fast += u64::from(is_of_line && either.receiver.is_fast_path(&datagram));
            either.with(|it, mut on| {
                it.handle_datagram(now, via, &datagram, verdict, &mut on);
            });
            long.with(|it, mut on| {
                it.counters().received_datagrams.increment();
                it.counters()
                    .received_bytes
                    .add(datagram.bytes().len() as u64);
                let path = ArrivalPath::Other;
                it.process(now, Arrival { via, path }, &datagram, verdict, &mut on);
            });
            if one_in(3) {
                let status = Status {
                    epoch: EPOCH,
                    newest: Sequence(newest),
                    oldest: Sequence::FIRST,
                    next_record: RecordNumber(newest * 2 + 1),
                    echo: Nanos::ZERO,
                    answered_at: Nanos::ZERO,
                    ended: false,
                };
                for bench in [&mut either, &mut long] {
                    bench.with(|it, mut on| it.handle_status(now, &status, &mut on));
                }
            }
            if one_in(6) {
                for bench in [&mut either, &mut long] {
                    bench.with(|it, mut on| it.handle_timeout(now, &mut on));
                }
            }
            assert_eq!(either.all(), long.all(), "seed {seed}, step {step}");
        }
    }
    assert!(fast > 1_000, "{fast} took the fast path");
}
