//! The feed of one channel of a publisher. It makes messages from its own seed, publishes them
//! through the shipped core, and keeps a journal of the sealed datagrams.

pub(crate) mod journal;
pub mod publisher_output;
pub(crate) mod torn_copy;

use std::sync::Arc;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tickcast_journal::JournaledPublisher;
use tickcast_reliability::publish::{PublishError, PublisherConfig, PublisherCore};
use tickcast_reliability::record::{MboMsg, RecordBatch};
use tickcast_reliability::ring::{Geometry, HeapMemory, RingIdentity, RingReader, RingWriter};
use tickcast_reliability::types::{
    ChannelId, ConfigHash, Epoch, Now, RecordNumber, RepairCounters, SenderCounters, Sequence,
    SequenceRange, SourceId, SourcePosition,
};
use tickcast_reliability::wire::authentication::{KEY_LEN, Key};
use tickcast_reliability::wire::{Datagram, Kind, SourceLossReason, StreamEvent};

use self::publisher_output::OutputCheck;
use crate::faults::plan::Plan;
use crate::truth::{ContentKey, push_record};

/// The feed of one channel of a publisher.
pub struct Feed {
    /// The publisher core.
    pub core: JournaledPublisher,
    /// A reader of its ring.
    pub reader: RingReader,
    /// The feed's channel.
    pub channel: ChannelId,
    /// Index of the ring among those of its channel and epoch.
    pub nth: usize,
    /// Counters of the sender.
    pub sender: Arc<SenderCounters>,
    /// Counters of repair.
    pub repair: Arc<RepairCounters>,
    /// Check on the datagrams sent and repaired.
    pub output: OutputCheck,
    /// Whether the session has ended.
    pub finished: bool,
    /// Kind, first record and number of records of sealed datagrams that are not yet in the truth.
    pub journal: Vec<(Kind, u64, u64)>,
    rng: ChaCha8Rng,
    burst: u32,
    key: ContentKey,
    noted: Sequence,
    number: u64,
    /// Records below this number were published before by another publisher.
    behind: u64,
    position: u64,
    batch: RecordBatch,
}

impl Feed {
    /// Opens an empty ring for the `nth` publisher that opens `epoch` of `channel`.
    ///
    /// # Errors
    /// Settings of the plan that are impossible.
    pub fn open(
        plan: &Plan,
        (channel, epoch, nth): (ChannelId, Epoch, usize),
        first: (u64, u64),
        now: Now,
    ) -> Result<Self, String> {
        let geometry = Geometry::new(plan.slot_len, plan.ring_slots).map_err(|e| e.to_string())?;
        let identity = RingIdentity {
            channel,
            epoch,
            config_hash: ConfigHash(1),
            boot_id: [1; 16],
            fan_outs: plan.fan_outs,
            first_sequence: Sequence(first.0),
            first_record: RecordNumber(first.1),
        };
        let memory = Arc::new(HeapMemory::interrupted(geometry, torn_copy::interrupt));
        let ring = RingWriter::create(memory, geometry, identity).map_err(|e| e.to_string())?;
        let key = ContentKey::of(channel, epoch, nth);
        let output = OutputCheck::new(Sequence(first.0), plan.fan_outs, plan.heartbeat);
        Ok(Self::on(plan, (ring, nth), (key, output), now))
    }

    /// Returns the feed of the `nth` publisher of its epoch, which continues this ring with records
    /// of this content.
    #[must_use]
    pub fn on(
        plan: &Plan,
        (mut ring, nth): (RingWriter, usize),
        (key, output): (ContentKey, OutputCheck),
        now: Now,
    ) -> Self {
        let (channel, epoch) = (ring.identity().channel, ring.identity().epoch);
        let (sealed, number) = (ring.sealed(), ring.next_record().0);
        let reader = ring.reader();
        if let Some(datagrams) = plan.datagrams_per_key {
            // Another secret for each process.
            let mut secret = [nth as u8; KEY_LEN];
            secret[..8].copy_from_slice(&(plan.seed ^ epoch.0).to_le_bytes());
            secret[8..16].copy_from_slice(&now.monotonic.0.to_le_bytes());
            ring.authenticate(Key::new(secret), datagrams);
        }
        let config = PublisherConfig {
            heartbeat: plan.heartbeat,
            fan_out_margin_slots: 0,
        };
        let sender = Arc::default();
        let core = PublisherCore::new(config, ring, Arc::clone(&sender), now.monotonic);
        let mut core = JournaledPublisher::new(core);
        if plan.recorded.is_some() {
            journal::record_publisher(&mut core, now);
        }
        let seed = plan.seed ^ epoch.0.rotate_left(20) ^ u64::from(channel.0) << 8 ^ nth as u64;
        Self {
            reader,
            core,
            channel,
            nth,
            sender,
            repair: Arc::default(),
            output,
            finished: false,
            journal: Vec::new(),
            rng: ChaCha8Rng::seed_from_u64(seed ^ 0x6665_6564),
            burst: plan.burst,
            key,
            noted: sealed,
            number,
            behind: 0,
            position: 0,
            batch: RecordBatch::default(),
        }
    }

    /// Starts the feed of a promoted standby. It publishes the promotion event first, and then the
    /// records below `made` that are not in its ring.
    ///
    /// # Errors
    /// An event that the core refused for another reason than the end of the sequences.
    pub fn promoted(&mut self, opened: &StreamEvent, made: u64, now: Now) -> Result<(), String> {
        match self.core.event(opened, now) {
            Ok(_) => {}
            Err(PublishError::Exhausted) => return self.finish(now),
            Err(error) => return Err(error.to_string()),
        }
        self.behind = made;
        self.note_sealed()
    }

    /// Publishes a burst of messages, or ends the session when sequences run out.
    ///
    /// # Errors
    /// A message that the core refused although it is valid.
    pub fn burst(&mut self, now: Now) -> Result<(), String> {
        for _ in 0..self.rng.random_range(1..=self.burst) {
            self.message(now)?;
            if self.finished {
                return Ok(());
            }
        }
        self.core.flush(now, true);
        self.note_sealed()
    }

    /// Seals the open slot.
    ///
    /// # Errors
    /// A sealed datagram in the ring that can't be read or has the wrong sequence.
    pub fn flush(&mut self, now: Now) -> Result<(), String> {
        self.core.flush(now, true);
        self.note_sealed()
    }

    /// Publishes one message. Slots that it fills are sealed; the rest stays in an open slot.
    ///
    /// # Errors
    /// A message that the core refused although it is valid.
    pub fn message(&mut self, now: Now) -> Result<(), String> {
        self.position += 1;
        let source = SourceId(self.rng.random_range(1..=2));
        let position = SourcePosition::new(0, self.position);
        self.batch.clear();
        let kind = self.rng.random_range(0..1000);
        let is_event = (1..=10).contains(&kind);
        let records = match kind {
            // Exceeds the slot length.
            0 => 200,
            1..=20 => 0,
            _ => self.rng.random_range(1..=6),
        };
        for n in 0..records {
            push_record(&mut self.batch, self.key, self.number.saturating_add(n));
        }
        let result = if is_event {
            let lost = StreamEvent::SourceLost {
                source,
                reason: SourceLossReason::Overflow,
                from: position,
                messages: 1,
                instruments: vec![1, 2],
            };
            self.core.event(&lost, now).map(|_| ())
        } else {
            self.publish(source, position, now)
        };
        match result {
            Ok(()) => self.number += records * u64::from(!is_event),
            Err(PublishError::TooLarge { .. }) => {}
            Err(PublishError::Exhausted) => return self.finish(now),
            Err(error) => return Err(error.to_string()),
        }
        self.note_sealed()
    }

    /// Publishes the batch. Every other message of one record goes through the single-record calls,
    /// as handlers with one record use them.
    fn publish(
        &mut self,
        source: SourceId,
        position: SourcePosition,
        now: Now,
    ) -> Result<(), PublishError> {
        let Self { core, batch, .. } = self;
        if batch.len() == 1
            && position.0.is_multiple_of(2)
            && let Some(record) = batch.records().next().and_then(|it| it.get::<MboMsg>())
            && (core.add_record(record, source, position)
                || core.begin_record(record, source, position, now))
        {
            return Ok(());
        }
        core.publish(&*batch, source, position, now)
    }

    /// Ends the session.
    ///
    /// # Errors
    /// The core refused to end the session.
    pub fn finish(&mut self, now: Now) -> Result<(), String> {
        if std::mem::replace(&mut self.finished, true) {
            return Ok(());
        }
        self.core.end(now).map_err(|e| e.to_string())?;
        self.note_sealed()
    }

    /// Returns the number of the next record that the feed makes.
    #[must_use]
    pub const fn number(&self) -> u64 {
        self.number
    }

    /// Returns the time until the next burst in nanoseconds: mostly regular, with an occasional
    /// lull.
    pub fn wait(&mut self, spacing: u64) -> u64 {
        if self.number < self.behind {
            // Records that are published again are due at once.
            return 2_000;
        }
        if self.rng.random_bool(0.02) {
            self.rng.random_range(0..spacing * 40)
        } else {
            self.rng.random_range(spacing / 2..spacing * 3 / 2)
        }
    }

    /// Adds newly sealed datagrams to the journal, as they are in the ring.
    fn note_sealed(&mut self) -> Result<(), String> {
        let new = SequenceRange::new(self.noted.next(), self.core.sealed());
        for sequence in new.into_iter().flat_map(SequenceRange::iter) {
            let bytes = self.core.slot(sequence).ok_or("a sealed slot is gone")?;
            let datagram = Datagram::parse(bytes).map_err(|e| e.to_string())?;
            let header = datagram.header();
            if header.sequence != sequence {
                return Err(format!("sealed {header:?} where {sequence} is due"));
            }
            self.journal
                .push((header.kind, header.first_record.0, header.count.into()));
            self.output.sealed(bytes);
            self.noted = sequence;
        }
        Ok(())
    }
}

/// A feed that publishes between the two halves of a copy.
pub(crate) struct Interruption {
    /// The feed that publishes.
    pub(crate) feed: Feed,
    /// Number of messages that it publishes, enough to lap the ring.
    pub(crate) messages: u64,
    /// Time of the interruption.
    pub(crate) now: Now,
    /// Number of copies that were interrupted.
    pub(crate) happened: u64,
    /// Result of the publishing.
    pub(crate) result: Result<(), String>,
}

impl torn_copy::Writer for Interruption {
    fn interrupt(&mut self) {
        if self.happened == 0 {
            self.run();
        }
    }
}

impl Interruption {
    /// Publishes the messages now.
    pub(crate) fn run(&mut self) {
        self.happened += 1;
        self.result = self.run_messages();
    }

    fn run_messages(&mut self) -> Result<(), String> {
        for _ in 0..self.messages {
            if !self.feed.finished {
                // Without a flush the last slot stays open and half written.
                self.feed.message(self.now)?;
            }
        }
        Ok(())
    }
}
