//! A publisher and a subscriber that are joined: the cores of both, with no transport between them. Also
//! the common parts of all stages.

use std::hint::black_box;
use std::sync::Arc;

use tickcast_journal::{JournalOrigin, JournalWriter, Journaled};
use tickcast_reliability::control::{
    BODY_LEN_MAX_TO_PUBLISHER, BODY_LEN_MAX_TO_SUBSCRIBER, ChannelName, FanOutOffer, Message,
    Start, UdpLine,
};
use tickcast_reliability::delivery::{Deliver, Item, LineId, Position};
use tickcast_reliability::publish::{HeartbeatConfig, PublisherConfig, PublisherCore};
use tickcast_reliability::receive::ReceiverConfig;
use tickcast_reliability::record::{MboMsg, RecordBatch, RecordHeader, Records, WireRecord};
use tickcast_reliability::ring::{Geometry, RingIdentity, RingMemory, RingWriter};
use tickcast_reliability::serve::{
    Carrier, ChannelInfo, Destination, PeerId, RepairConfig, RepairCore, RepairInput,
};
use tickcast_reliability::session::{
    Action, ChannelWanted, LinkTimers, Path, SubscriberCore, SubscriberInput, SubscriberSettings,
};
use tickcast_reliability::types::{
    ChannelId, ConfigHash, Epoch, FanOutId, Nanos, Now, PeerOrigin, RecordNumber, Sequence,
    SourceId, SourcePosition,
};
use tickcast_reliability::wire::authentication::{KEY_LEN, Key};
use tickcast_reliability::wire::{Header, Kind, RELAY_OFFSET, crc_of, relay_flags};
use tickcast_transport::host::mapping::SharedMapping;
use tickcast_transport::shm::boot_id;

pub(crate) const CHANNEL: ChannelId = ChannelId(3);
pub(crate) const EPOCH: Epoch = Epoch(5);
pub(crate) const SOURCE: SourceId = SourceId(1);
pub(crate) const LINE: LineId = LineId(0);
pub(crate) const FAN_OUT: FanOutId = FanOutId(0);
pub(crate) const UTC: Nanos = Nanos(1_700_000_000_000_000_000);
/// Records of a full datagram.
pub(crate) const RECORDS: u16 = 25;
/// Records of a full datagram with a tag.
pub(crate) const TAGGED_RECORDS: u16 = 24;
/// Slot length for an MTU of 1500.
const SLOT_LEN: u32 = 1472;
const SLOTS: u64 = 1024;
const PEER: PeerId = PeerId(1);

pub(crate) fn geometry() -> Geometry {
    Geometry::new(SLOT_LEN, SLOTS).expect("a possible shape")
}

pub(crate) fn record(number: u64) -> MboMsg {
    MboMsg {
        hd: RecordHeader::new::<MboMsg>(MboMsg::RTYPE, 1, 1, UTC.0),
        order_id: number,
        size: 100,
        ts_recv: UTC.0,
        ..MboMsg::default()
    }
}

/// Returns one message of `count` records.
pub(crate) fn records(count: u16) -> RecordBatch {
    let mut batch = RecordBatch::with_capacity(SLOT_LEN as usize);
    (1..=count.into()).for_each(|number| batch.put(&record(number)));
    batch
}

/// Returns a sealed datagram of `count` records, at an aligned address.
pub(crate) fn datagram(count: u16) -> Vec<u64> {
    let records = records(count);
    let header = Header {
        kind: Kind::Data,
        channel: CHANNEL,
        count,
        epoch: EPOCH,
        sequence: Sequence::FIRST,
        first_record: RecordNumber::FIRST,
        source_position: SourcePosition(9),
        sent_at: UTC,
        retained: 1,
        source: SOURCE,
        payload_len: records.bytes().len() as u16,
        flags: 0,
        header_len: 64,
        relay: 0,
    };
    let crc = crc_of(&header.to_bytes(0), records.bytes());
    let bytes = [&header.to_bytes(crc), records.bytes()].concat();
    // Records are a multiple of 8 bytes.
    let words = bytes.as_chunks::<8>().0.iter();
    words.map(|word| u64::from_ne_bytes(*word)).collect()
}

pub(crate) fn ring_in(memory: Arc<dyn RingMemory>, fan_outs: u8) -> RingWriter {
    let identity = RingIdentity {
        channel: CHANNEL,
        epoch: EPOCH,
        config_hash: ConfigHash(7),
        boot_id: boot_id().expect("a boot id"),
        fan_outs,
        first_sequence: Sequence::FIRST,
        first_record: RecordNumber::FIRST,
    };
    RingWriter::create(memory, geometry(), identity).expect("the memory is large enough")
}

/// Returns a ring in memory, shaped like a publisher's.
pub(crate) fn ring(fan_outs: u8) -> RingWriter {
    let memory = SharedMapping::memfd("stages", geometry().bytes());
    ring_in(Arc::new(memory.expect("there is memory")), fan_outs)
}

/// Returns a ring in memory whose datagrams carry tags.
pub(crate) fn tagged_ring() -> RingWriter {
    let mut ring = ring(0);
    ring.authenticate(Key::new([7; KEY_LEN]), 1 << 22);
    ring
}

/// An application that reads each delivered record.
#[derive(Default)]
pub(crate) struct Application {
    pub(crate) records: u64,
    sum: u64,
}

impl Application {
    #[inline]
    pub(crate) fn take(&mut self, item: Item<'_>) {
        if let Item::Record(_, record) = item
            && let Some(record) = record.get::<MboMsg>()
        {
            self.records += 1;
            self.sum = self.sum.wrapping_add(black_box(record).order_id);
        }
    }
}

impl Deliver for Application {
    #[inline]
    fn item(&mut self, item: Item<'_>) {
        self.take(item);
    }

    #[inline]
    fn records(&mut self, first: &Position, records: Records<'_>) {
        let Some(run) = records.all_of::<MboMsg>() else {
            return self.one_by_one(first, records);
        };
        self.records += run.len() as u64;
        for record in run {
            self.sum = self.sum.wrapping_add(black_box(record).order_id);
        }
    }
}

/// A publisher and a subscriber that are joined. Time advances only in [`Self::pass`].
pub(crate) struct Pair {
    pub(crate) now: Now,
    pub(crate) publisher: PublisherCore,
    pub(crate) repair: RepairCore,
    pub(crate) subscriber: Journaled<SubscriberCore>,
    pub(crate) application: Application,
    message: RecordBatch,
    position: u64,
    to_publisher: Vec<u8>,
    to_subscriber: Vec<u8>,
}

impl Pair {
    /// Returns a pair over a ring in memory.
    pub(crate) fn new() -> Self {
        Self::over(ring(1))
    }

    /// Returns a pair over a ring in memory, whose subscriber keeps a journal.
    pub(crate) fn journaled() -> Self {
        let mut pair = Self::new();
        let area = Box::new(vec![0; 64 << 20]);
        let journal = JournalWriter::new(area, &JournalOrigin::default()).expect("there is room");
        pair.subscriber.keep_journal(journal);
        pair
    }

    /// Returns a pair over an empty ring with one fan-out.
    pub(crate) fn over(ring: RingWriter) -> Self {
        let now = Now {
            monotonic: Nanos::from_secs(100),
            utc: UTC,
        };
        let line = UdpLine {
            group: "239.255.0.1:7000".parse().expect("an address"),
            sender: "127.0.0.1".parse().expect("an address"),
        };
        let info = ChannelInfo {
            name: "all".into(),
            fan_outs: vec![FanOutOffer::Udp { lines: vec![line] }],
            directory: vec![],
            heartbeat: HeartbeatConfig::default(),
        };
        let repair = RepairConfig {
            repair_bytes_per_s: 1 << 40,
            subscriber_bytes_per_s: 1 << 40,
            ..RepairConfig::default()
        };
        let channels = vec![(info, ring.reader(), Arc::default())];
        let settings = SubscriberSettings {
            name: "stages".into(),
            channels: vec![ChannelWanted {
                channel: ChannelName::Id(CHANNEL),
                start: Start::Live,
                config: ReceiverConfig::default(),
                lines: None,
            }],
            link: LinkTimers::default(),
            seed: 1,
        };
        let config = PublisherConfig {
            heartbeat: Default::default(),
            fan_out_margin_slots: 0,
        };
        let mut pair = Self {
            now,
            publisher: PublisherCore::new(config, ring, Arc::default(), now.monotonic),
            repair: RepairCore::new(
                repair,
                "stages".into(),
                channels,
                Arc::default(),
                [7; 32],
                now,
            ),
            subscriber: Journaled::new(SubscriberCore::new(settings, now.monotonic)),
            application: Application::default(),
            message: records(1),
            position: 0,
            to_publisher: Vec::with_capacity(1 << 16),
            to_subscriber: Vec::with_capacity(1 << 20),
        };
        pair.repair.handle(
            now,
            RepairInput::Connected(
                PEER,
                Carrier::Tcp,
                PeerOrigin::V4(std::net::Ipv4Addr::LOCALHOST),
            ),
        );
        while !pair
            .subscriber
            .receivers()
            .any(|receiver| receiver.is_live())
        {
            pair.look_after();
        }
        pair
    }

    /// Runs the subscriber's timers and actions, and exchanges messages until the subscriber has no more.
    pub(crate) fn look_after(&mut self) {
        let (now, application) = (self.now, &mut self.application);
        let on = &mut |item: Item<'_>| application.take(item);
        self.subscriber
            .handle(now.monotonic, SubscriberInput::Timeout, on);
        while let Some(action) = self.subscriber.poll_action() {
            if let Action::Connect(path) = action {
                self.subscriber.handle(
                    now.monotonic,
                    SubscriberInput::Connected(path),
                    &mut |_: Item<'_>| (),
                );
            }
        }
        self.converse();
    }

    /// Exchanges messages until the subscriber has no more.
    #[inline]
    pub(crate) fn converse(&mut self) {
        while self.ask() {
            self.answer();
        }
    }

    /// Takes the subscriber's next messages. Returns whether there were any.
    #[inline]
    pub(crate) fn ask(&mut self) -> bool {
        let (now, application) = (self.now.monotonic, &mut self.application);
        let on = &mut |item: Item<'_>| application.take(item);
        self.to_publisher.clear();
        self.subscriber.handle(now, SubscriberInput::Poll, on);
        self.subscriber
            .poll_transmit(&mut self.to_publisher)
            .is_some()
    }

    /// Gives the taken messages to the publisher, and its answers to the subscriber.
    #[inline]
    fn answer(&mut self) {
        let now = self.now;
        let mut frames = &self.to_publisher[..];
        while let Ok(Some((channel, message, taken))) =
            Message::read(frames, BODY_LEN_MAX_TO_PUBLISHER)
        {
            self.repair
                .handle(now, RepairInput::Message(PEER, channel, &message));
            frames = &frames[taken..];
        }
        self.to_subscriber.clear();
        while let Some(destination) = self.repair.poll_transmit(now, &mut self.to_subscriber) {
            assert_eq!(destination, Destination::Peer(PEER), "one alone asks");
        }
        let frames = std::mem::take(&mut self.to_subscriber);
        self.hear(&frames);
        self.to_subscriber = frames;
    }

    /// Gives the publisher's frames to the subscriber.
    #[inline]
    pub(crate) fn hear(&mut self, mut frames: &[u8]) {
        let (now, application) = (self.now.monotonic, &mut self.application);
        while let Ok(Some((channel, message, taken))) =
            Message::read(frames, BODY_LEN_MAX_TO_SUBSCRIBER)
        {
            let on = &mut |item: Item<'_>| application.take(item);
            self.subscriber.handle(
                now,
                SubscriberInput::message(Path::Repair, channel, &message),
                on,
            );
            frames = &frames[taken..];
        }
    }

    /// Advances the time by `span`.
    pub(crate) fn pass(&mut self, span: Nanos) {
        self.now.monotonic = self.now.monotonic.after(span);
        self.now.utc = self.now.utc.after(span);
    }

    /// Publishes a message of one record.
    #[inline]
    pub(crate) fn publish(&mut self) {
        self.position += 1;
        let position = SourcePosition::new(0, self.position);
        let message = black_box(&self.message);
        let published = self.publisher.publish(message, SOURCE, position, self.now);
        assert!(published.is_ok(), "there is room");
    }

    /// Publishes `datagrams` datagrams of `records` records each, and marks them as sent. Returns the
    /// first and the last sequence.
    pub(crate) fn publish_datagrams(
        &mut self,
        datagrams: u64,
        records: u64,
    ) -> (Sequence, Sequence) {
        let first = self.publisher.sealed().next();
        for _ in 0..datagrams {
            (0..records).for_each(|_| self.publish());
            self.publisher.flush(self.now, false);
        }
        let last = self.publisher.sealed();
        self.publisher.handle_posted(FAN_OUT, last);
        self.publisher.handle_completed(FAN_OUT, last);
        (first, last)
    }

    /// Gives a datagram of the ring to the subscriber.
    #[inline]
    pub(crate) fn deliver(&mut self, sequence: Sequence) {
        let bytes = self.publisher.slot(sequence).unwrap_or_default();
        let (now, application) = (self.now.monotonic, &mut self.application);
        let on = &mut |item: Item<'_>| application.take(item);
        self.subscriber
            .handle_bytes(now, (CHANNEL, LINE), bytes, false, on);
    }

    /// Gives a datagram of the ring to the subscriber, as from a transport that guarantees whole bytes.
    #[inline]
    pub(crate) fn deliver_whole(&mut self, sequence: Sequence) {
        let bytes = self.publisher.slot(sequence).unwrap_or_default();
        let (now, application) = (self.now.monotonic, &mut self.application);
        let on = &mut |item: Item<'_>| application.take(item);
        self.subscriber
            .handle_bytes(now, (CHANNEL, LINE), bytes, true, on);
    }

    /// Writes the answer to a NACK for this datagram, as a frame.
    pub(crate) fn repair_of(&self, sequence: Sequence, out: &mut Vec<u8>) {
        let mut bytes = self.publisher.slot(sequence).unwrap_or_default().to_vec();
        bytes[RELAY_OFFSET] |= relay_flags::RETRANSMITTED;
        Message::Datagram(&bytes).write(CHANNEL, out);
    }
}
