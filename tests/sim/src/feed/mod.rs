//! The feed of one channel of a publisher: it makes up messages from a seed of its own, publishes
//! them through the shipped core, and keeps a journal of what was sealed.

pub(crate) mod flight_record;
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
use tickcast_reliability::wire::{Datagram, Kind, SourceLossReason, StreamEvent};

use self::publisher_output::OutputCheck;
use crate::faults::plan::Plan;
use crate::truth::{ContentKey, push_record};

/// See the module.
pub struct Feed {
    /// Publishing.
    pub core: JournaledPublisher,
    /// Its ring, as others see it.
    pub reader: RingReader,
    /// Its channel.
    pub channel: ChannelId,
    /// Which ring of its channel and epoch this is.
    pub nth: usize,
    /// What sending counts.
    pub sender: Arc<SenderCounters>,
    /// What repair counts.
    pub repair: Arc<RepairCounters>,
    /// What was sent and given out of it.
    pub output: OutputCheck,
    /// Whether it has ended.
    pub finished: bool,
    /// Kind, first record and records of what was sealed and is not yet written down as the truth.
    pub journal: Vec<(Kind, u64, u64)>,
    rng: ChaCha8Rng,
    burst: u32,
    key: ContentKey,
    noted: Sequence,
    number: u64,
    /// Records up to this one were published before, elsewhere.
    behind: u64,
    position: u64,
    batch: RecordBatch,
}

impl Feed {
    /// An empty ring for the `nth` publisher that opens `epoch` of `channel`.
    ///
    /// # Errors
    /// What of the plan can't be.
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

    /// The feed of the `nth` publisher of its epoch that goes on where this ring stands, with records
    /// of this content.
    #[must_use]
    pub fn on(
        plan: &Plan,
        (ring, nth): (RingWriter, usize),
        (key, output): (ContentKey, OutputCheck),
        now: Now,
    ) -> Self {
        let (channel, epoch) = (ring.identity().channel, ring.identity().epoch);
        let (sealed, number) = (ring.sealed(), ring.next_record().0);
        let reader = ring.reader();
        let config = PublisherConfig {
            heartbeat: plan.heartbeat,
            fan_out_margin_slots: 0,
        };
        let sender = Arc::default();
        let core = PublisherCore::new(config, ring, Arc::clone(&sender), now.monotonic);
        let mut core = JournaledPublisher::new(core);
        if plan.recorded.is_some() {
            flight_record::record_publisher(&mut core, now);
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

    /// A standby's feed, now that it is promoted: tells so first, and then what was published up to
    /// this record and is not in its ring.
    ///
    /// # Errors
    /// What the core refused although it should not have.
    pub fn promoted(&mut self, opened: &StreamEvent, made: u64, now: Now) -> Result<(), String> {
        match self.core.event(opened, now) {
            Ok(_) => {}
            Err(PublishError::Exhausted) => return self.finish(now),
            Err(error) => return Err(error.to_string()),
        }
        self.behind = made;
        self.note_sealed()
    }

    /// A burst of messages: publishes them, or ends the session where sequences end.
    ///
    /// # Errors
    /// What the core refused although it should not have.
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

    /// Seals what is open.
    ///
    /// # Errors
    /// As for [`Feed::burst`].
    pub fn flush(&mut self, now: Now) -> Result<(), String> {
        self.core.flush(now, true);
        self.note_sealed()
    }

    /// One message; what it fills is sealed, and the rest stays in an open slot.
    ///
    /// # Errors
    /// As for [`Feed::burst`].
    pub fn message(&mut self, now: Now) -> Result<(), String> {
        self.position += 1;
        let source = SourceId(self.rng.random_range(1..=2));
        let position = SourcePosition::new(0, self.position);
        self.batch.clear();
        let kind = self.rng.random_range(0..1000);
        let is_event = (1..=10).contains(&kind);
        let records = match kind {
            // Too large for a slot.
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

    /// Publishes what the batch has; every other message of one record as handlers do that have but one.
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
    /// What the core refused.
    pub fn finish(&mut self, now: Now) -> Result<(), String> {
        if std::mem::replace(&mut self.finished, true) {
            return Ok(());
        }
        self.core.end(now).map_err(|e| e.to_string())?;
        self.note_sealed()
    }

    /// How many records its feed has made up so far, the first one's number included.
    #[must_use]
    pub const fn number(&self) -> u64 {
        self.number
    }

    /// How long it waits for its next burst: mostly regular, now and then a lull.
    pub fn wait(&mut self, spacing: u64) -> u64 {
        if self.number < self.behind {
            // What is published once more waits for nothing.
            return 2_000;
        }
        if self.rng.random_bool(0.02) {
            self.rng.random_range(0..spacing * 40)
        } else {
            self.rng.random_range(spacing / 2..spacing * 3 / 2)
        }
    }

    /// Writes down what was sealed, as it stands in the ring.
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

/// A feed that goes on between the two halves of a copy.
pub(crate) struct Interruption {
    /// The feed that goes on.
    pub(crate) feed: Feed,
    /// Messages that it publishes: as many as it takes to come round.
    pub(crate) messages: u64,
    /// The time.
    pub(crate) now: Now,
    /// Copies that were interrupted.
    pub(crate) happened: u64,
    /// What went wrong.
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
    /// The writer goes on now.
    pub(crate) fn run(&mut self) {
        self.happened += 1;
        self.result = self.go_on();
    }

    fn go_on(&mut self) -> Result<(), String> {
        for _ in 0..self.messages {
            if !self.feed.finished {
                // Without a flush: the last slot stays open, half written.
                self.feed.message(self.now)?;
            }
        }
        Ok(())
    }
}
