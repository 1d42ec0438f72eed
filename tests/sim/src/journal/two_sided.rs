//! A recorded publisher and a recorded subscriber without a network between them. A test decides
//! which datagrams are sealed, sent and received, and checks the explanation of both records.

use std::sync::Arc;

use tickcast_journal::explain::{Explanation, explain};
use tickcast_journal::{
    Journal, JournalOrigin, JournalSide, JournalWriter, JournaledPublisher, Note, Sending, Unread,
    replay_publisher,
};
use tickcast_reliability::delivery::LineId;
use tickcast_reliability::publish::{PublisherConfig, PublisherCore, Transmit};
use tickcast_reliability::receive::ReceiverConfig;
use tickcast_reliability::record::{InstrumentDefMsg, MboMsg, RecordBatch, RecordHeader};
use tickcast_reliability::ring::{Geometry, HeapMemory, RingIdentity, RingWriter};
use tickcast_reliability::types::{
    ConfigHash, FanOutId, Nanos, Now, RecordNumber, Sequence, SourceId, SourcePosition,
};
use tickcast_reliability::wire::{SourceLossReason, StreamEvent};

use crate::journal::staged::{CHANNEL, EPOCH, JOINED_AFTER, JournalStage};

/// UTC minus protocol time, in nanoseconds.
const UTC: u64 = 1_700_000_000_000_000_000;
const FAN_OUT: FanOutId = FanOutId(0);
const SLOTS: u64 = 64;
/// The source of all messages.
pub const SOURCE: SourceId = SourceId(1);

/// A recorded publisher and a recorded subscriber that a test drives.
pub struct BothSides {
    /// The subscriber.
    pub subscriber: JournalStage,
    publisher: JournaledPublisher,
    lines: u8,
    position: u64,
}

impl BothSides {
    /// Returns a publisher with one fan-out, and a subscriber that has joined it and listens on
    /// this many lines.
    #[must_use]
    pub fn new(config: ReceiverConfig, lines: u8) -> Self {
        let subscriber = JournalStage::new(config, lines.into());
        let geometry = Geometry::new(1472, SLOTS).unwrap_or_else(|error| panic!("{error}"));
        let identity = RingIdentity {
            channel: CHANNEL,
            epoch: EPOCH,
            config_hash: ConfigHash(1),
            boot_id: [0; 16],
            fan_outs: 1,
            first_sequence: Sequence(JOINED_AFTER + 1),
            first_record: RecordNumber(JOINED_AFTER + 1),
        };
        let memory = Arc::new(HeapMemory::new(geometry));
        let ring = RingWriter::create(memory, geometry, identity);
        let ring = ring.unwrap_or_else(|error| panic!("{error}"));
        let (config, now) = (PublisherConfig::default(), subscriber.now());
        let core = PublisherCore::new(config, ring, Arc::default(), now);
        let mut publisher = JournaledPublisher::new(core);
        let origin = JournalOrigin {
            began: now,
            began_utc: Nanos(now.0 + UTC),
            side: JournalSide::Publisher,
            ..JournalOrigin::default()
        };
        let journal = JournalWriter::new(Box::new(vec![0; 4 << 20]), &origin);
        publisher.keep_journal(journal.unwrap_or_else(|error| panic!("{error}")));
        Self {
            subscriber,
            publisher,
            lines,
            position: 0,
        }
    }

    fn now(&self) -> Now {
        let monotonic = self.subscriber.now();
        Now {
            monotonic,
            utc: Nanos(monotonic.0 + UTC),
        }
    }

    fn next_position(&mut self) -> SourcePosition {
        self.position += 1;
        SourcePosition::new(0, self.position)
    }

    /// Seals this many datagrams of one record.
    pub fn seal(&mut self, count: u64) {
        for _ in 0..count {
            let position = self.next_position();
            let record = MboMsg {
                hd: RecordHeader::new::<MboMsg>(0xa0, 1, 2, 3),
                order_id: position.0,
                ..MboMsg::default()
            };
            let now = self.now();
            // Both ways to publish a record take turns.
            if position.0.is_multiple_of(2) {
                assert!(self.publisher.begin_record(&record, SOURCE, position, now));
            } else {
                let mut message = RecordBatch::default();
                message.put(&record);
                let published = self.publisher.publish(&message, SOURCE, position, now);
                assert_eq!(published, Ok(()));
            }
            self.publisher.flush(now, true);
            // A driver polls the events after each message.
            while self.publisher.poll().is_some() {}
        }
    }

    /// Sends all sealed datagrams on every line, except these sequences on these lines, which are
    /// lost. Then some time passes.
    pub fn send_but(&mut self, lost: &[(u8, u64)]) {
        self.publisher.handle_timeout(self.now());
        while let Some(transmit) = self.publisher.poll_transmit(FAN_OUT) {
            let Transmit::Slots(range) = transmit else {
                continue;
            };
            for sequence in range.iter() {
                let slot = self.publisher.slot(sequence).map(<[u8]>::to_vec);
                let slot = slot.unwrap_or_default();
                for line in (0..self.lines).filter(|it| !lost.contains(&(*it, sequence.0))) {
                    self.subscriber.bytes(line, &slot);
                }
            }
            self.publisher.handle_posted(FAN_OUT, range.last);
            self.publisher.handle_completed(FAN_OUT, range.last);
        }
        self.subscriber.pass_us(10);
    }

    /// Sends all sealed datagrams without loss.
    pub fn send(&mut self) {
        self.send_but(&[]);
    }

    /// Records that the network has refused this many datagrams on a line so far.
    pub fn refused(&mut self, line: u8, refused: u64) {
        let sending = Sending {
            refused,
            ..Sending::default()
        };
        self.publisher
            .note(Note::Sending(FAN_OUT, LineId(line), sending));
    }

    /// Keeps the publish thread from running for this many milliseconds.
    pub fn stall_ms(&mut self, ms: u64) {
        self.publisher.handle_timeout(self.now());
        self.subscriber.pass_us(ms * 1_000);
        self.publisher.handle_timeout(self.now());
    }

    /// Publishes an event that the source lost four messages.
    pub fn lose_source(&mut self, reason: SourceLossReason) {
        let from = self.next_position();
        let event = StreamEvent::SourceLost {
            source: SOURCE,
            reason,
            from,
            messages: 4,
            instruments: vec![7],
        };
        let now = self.now();
        assert!(self.publisher.event(&event, now).is_ok());
    }

    /// Publishes the event that the source lost four messages, because packets were dropped in the
    /// publisher's host.
    pub fn lose_unread(&mut self, unread: Unread) {
        self.publisher.note(Note::Unread(SOURCE, unread));
        self.lose_source(SourceLossReason::Gap);
    }

    /// Publishes a message that exceeds the length of a datagram, which the core must refuse.
    pub fn too_large(&mut self) {
        let mut message = RecordBatch::default();
        for instrument in [9, 4, 9] {
            let mut definition = InstrumentDefMsg::default();
            definition.hd.instrument_id = instrument;
            message.put(&definition);
        }
        let (position, now) = (self.next_position(), self.now());
        let refused = self.publisher.publish(&message, SOURCE, position, now);
        assert!(refused.is_err());
        while self.publisher.poll().is_some() {}
    }

    /// Ends the session.
    pub fn end(&mut self) {
        let now = self.now();
        assert!(self.publisher.end(now).is_ok());
    }

    /// Returns both records, the subscriber's first, after checking that the publisher's replays to
    /// the same state.
    #[must_use]
    pub fn records(self) -> [Journal; 2] {
        let mut publisher = self.publisher;
        let journal = publisher.take_journal();
        let bytes = journal.map_or_else(Vec::new, |it| it.into_bytes());
        let recording = Journal::read(bytes).unwrap_or_else(|error| panic!("{error}"));
        let replayed = replay_publisher(&recording);
        assert_eq!((replayed.difference, replayed.stopped), (None, None));
        let again = replayed.core.map(|it| format!("{it:?}"));
        assert_eq!(again, Some(format!("{publisher:?}")));
        [self.subscriber.record(), recording]
    }

    /// Returns the bytes of the publisher's record.
    #[must_use]
    pub fn bytes_of_publisher(mut self) -> Vec<u8> {
        let journal = self.publisher.take_journal();
        journal.map_or_else(Vec::new, |it| it.into_bytes())
    }

    /// Returns the explanation of the subscriber's record alone, and the explanation of both
    /// records together.
    #[must_use]
    pub fn explain(self) -> (Explanation, [Explanation; 2]) {
        let [subscriber, publisher] = self.records();
        let subscriber = [subscriber];
        let alone = explain(&subscriber).remove(0);
        let [subscriber] = subscriber;
        let mut both = explain(&[subscriber, publisher]);
        let of_publisher = both.remove(1);
        (alone, [both.remove(0), of_publisher])
    }
}
