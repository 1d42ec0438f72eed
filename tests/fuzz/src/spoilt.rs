//! What a publisher and a subscriber leave behind in memory, and how an input spoils it.

use std::sync::Arc;

use tickcast_reliability::control::{ChannelName, ChannelOffer, Message, Welcome};
use tickcast_reliability::delivery::{Item, LineId, Start};
use tickcast_reliability::lineage::Lineage;
use tickcast_reliability::link::LinkTimers;
use tickcast_reliability::publisher_core::{PublisherConfig, PublisherCore, Transmit};
use tickcast_reliability::receiver_config::ReceiverConfig;
use tickcast_reliability::record::{MboMsg, RecordBatch};
use tickcast_reliability::recorder::layout::{RECORD_LEN_MIN, RecordOrigin, RecordedSide};
use tickcast_reliability::recorder::{RecordedCore, RecordedPublisher, Recorder};
use tickcast_reliability::ring::{HeapMemory, RingWriter};
use tickcast_reliability::ring_layout::{Geometry, RingIdentity};
use tickcast_reliability::subscriber_core::{Action, ChannelWanted, Path, SubscriberSettings};
use tickcast_reliability::units::{
    ChannelId, ConfigHash, Epoch, FanOutId, Nanos, Now, RecordNumber, Sequence, SourceId,
    SourcePosition,
};
use tickcast_reliability::wire::{EpochReason, StreamEvent};

use crate::bytes::Bytes;

/// The channel that everything is of.
pub(crate) const CHANNEL: ChannelId = ChannelId(1);
const FAN_OUT: FanOutId = FanOutId(0);
const EPOCH: Epoch = Epoch(5);

/// Bytes that an input spoils as it says: bits, bytes and words at any place, the end cut off.
pub(crate) fn spoilt(whole: &[u8], input: &mut Bytes<'_>) -> Vec<u8> {
    let mut bytes = whole.to_vec();
    while let Some(how) = input.next() {
        let at = u32::from_le_bytes([input.byte(), input.byte(), input.byte(), 0]) as usize;
        let at = at % whole.len();
        let with = input.byte();
        match how % 5 {
            0 => bytes[at] ^= 1 << (with & 7),
            1 => bytes[at] = with,
            2 => fill(&mut bytes, at / 8 * 8, u64::from(with)),
            3 => fill(&mut bytes, at / 8 * 8, u64::MAX - u64::from(with)),
            _ if with < 16 => bytes[at..].fill(0),
            _ => {}
        }
    }
    bytes
}

fn fill(bytes: &mut [u8], at: usize, word: u64) {
    let bytes = bytes[at..].iter_mut().zip(word.to_le_bytes());
    bytes.for_each(|(byte, of)| *byte = of);
}

/// A publisher that writes the smallest ring, before its first datagram.
pub(crate) fn publisher() -> PublisherCore {
    let geometry = geometry();
    let identity = RingIdentity {
        channel: CHANNEL,
        epoch: EPOCH,
        config_hash: ConfigHash(3),
        boot_id: [7; 16],
        fan_outs: 1,
        first_sequence: Sequence(1),
        first_record: RecordNumber(1),
    };
    let memory = Arc::new(HeapMemory::new(geometry));
    let ring = RingWriter::create(memory, geometry, identity).expect("a ring");
    PublisherCore::new(PublisherConfig::default(), ring, Arc::default(), Nanos(0))
}

/// The shape of that ring.
pub(crate) fn geometry() -> Geometry {
    Geometry::new(Geometry::SLOT_LEN_MIN, Geometry::SLOTS_MIN).expect("the least is possible")
}

/// What a publisher's record and that of a subscriber look like who followed it, lost some of what it
/// sent, and asked for it: the used part of each.
pub(crate) fn records() -> [Vec<u8>; 2] {
    let mut publisher = RecordedPublisher::new(publisher());
    publisher.record(recorder(RecordedSide::Publisher));
    let mut subscriber = subscriber();
    let on = &mut |_: Item<'_>| {};
    let mut batch = RecordBatch::default();
    batch.put(&MboMsg::default());
    let mut asked = Vec::new();
    for n in 1..=40 {
        let now = now(n);
        let message = SourcePosition::new(0, n);
        let published = publisher.publish(&batch, SourceId(1), message, now);
        published.expect("it fits");
        publisher.flush(now, true);
        if n == 30 {
            let opened = StreamEvent::EpochOpened {
                reason: EpochReason::Restart,
                previous: Epoch(4),
                previous_last: Sequence(9),
            };
            publisher.event(&opened, now).expect("it is sealed");
        }
        publisher.handle_timeout(now);
        while let Some(transmit) = publisher.poll_transmit(FAN_OUT) {
            match transmit {
                Transmit::Slots(range) => {
                    for sequence in range.iter().filter(|it| it.0 % 7 != 3) {
                        let bytes = publisher.slot(sequence).expect("it is sealed");
                        subscriber.handle_received(now.monotonic, CHANNEL, LineId(0), bytes, on);
                    }
                    publisher.handle_posted(FAN_OUT, range.last);
                }
                Transmit::Heartbeat(bytes) => {
                    subscriber.handle_received(now.monotonic, CHANNEL, LineId(0), &bytes, on);
                }
            }
        }
        subscriber.handle_timeout(now.monotonic, on);
        while subscriber
            .poll_transmit(now.monotonic, &mut asked, on)
            .is_some()
        {}
    }
    publisher.end(now(41)).expect("the end");
    let of = |recorder: Option<Box<Recorder>>| {
        recorder.map_or_else(Vec::new, |recorder| used(&recorder.into_bytes()))
    };
    [
        of(publisher.stop_recording()),
        of(subscriber.stop_recording()),
    ]
}

fn now(n: u64) -> Now {
    let (monotonic, utc) = (Nanos::from_us(50 * n), Nanos::from_secs(n));
    Now { monotonic, utc }
}

fn recorder(side: RecordedSide) -> Recorder {
    let origin = RecordOrigin {
        name: "fuzzed".into(),
        side,
        ..RecordOrigin::default()
    };
    Recorder::new(Box::new(vec![0; RECORD_LEN_MIN]), &origin).expect("a record")
}

/// The head of a record and what is used of its first segment, as the only one there is
/// (docs/decisions/0011).
fn used(bytes: &[u8]) -> Vec<u8> {
    const HEAD_LEN: usize = 4096;
    let word = |at: usize| bytes[at..at + 8].iter().rev();
    let word = |at| word(at).fold(0, |sum, byte| sum << 8 | u64::from(*byte)) as usize;
    let committed = word(HEAD_LEN + 8).next_multiple_of(64);
    let mut bytes = bytes[..HEAD_LEN + committed].to_vec();
    bytes[12..16].copy_from_slice(&1_u32.to_le_bytes());
    bytes[16..24].copy_from_slice(&(committed as u64).to_le_bytes());
    bytes
}

/// A subscriber that the publisher has welcomed before its first datagram.
fn subscriber() -> RecordedCore {
    let wanted = ChannelWanted {
        channel: ChannelName::Id(CHANNEL),
        start: Start::Live,
        config: ReceiverConfig::default(),
        lines: Some(1),
    };
    let settings = SubscriberSettings {
        name: "s".into(),
        channels: vec![wanted],
        link: LinkTimers::default(),
        seed: 1,
    };
    let mut core = RecordedCore::new(settings, Nanos(0));
    core.record(recorder(RecordedSide::Subscriber));
    let on = &mut |_: Item<'_>| {};
    core.handle_timeout(Nanos(0), on);
    while let Some(action) = core.poll_action() {
        if action == Action::Connect(Path::Repair) {
            core.handle_connected(Nanos(0), Path::Repair);
        }
    }
    let offer = ChannelOffer {
        channel: CHANNEL,
        name: "c".into(),
        epoch: EPOCH,
        newest: Sequence(0),
        oldest: Sequence(1),
        oldest_record: RecordNumber(1),
        next_record: RecordNumber(1),
        slot_len: geometry().slot_len() as u32,
        slots: geometry().slots(),
        config_hash: ConfigHash(3),
        ended: false,
        fan_outs: vec![],
        directory: vec![],
        continues: Lineage::default(),
        history: None,
    };
    let welcome = Message::Welcome(Welcome {
        wire_version: 1,
        publisher: "p".into(),
        session: 1,
        repairs: vec![],
        channels: vec![offer],
    });
    core.handle_message(Nanos(0), Path::Repair, CHANNEL, &welcome, on);
    while core.poll_action().is_some() {}
    core
}
