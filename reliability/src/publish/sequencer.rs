//! Packs messages into the slots of a ring: whole messages of one source per datagram, numbered without a
//! gap. A message that cannot be sent is reported in the stream as lost.
//!
//! The sequencer never waits to fill a datagram: the caller flushes when nothing more is waiting
//! (docs/PROTOCOL.md §3). It does not know the fan-outs. [`Sequencer::set_completed`] says which slots may
//! be overwritten.

use std::sync::Arc;

use thiserror::Error;

use crate::record::{RecordSlice, WireRecord};
use crate::ring::{Checkpoint, RingError, RingWriter, Seal};
use crate::types::{
    Nanos, RecordNumber, SEQUENCE_LAST, SenderCounters, Sequence, SourceId, SourcePosition,
};
use crate::wire::{HEADER_LEN, Kind, SourceLossReason, StreamEvent, datagram_flags};

/// The reason why something was not published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PublishError {
    /// The message is larger than a datagram. It was counted and reported in the stream as lost. Only
    /// larger slots in the config help.
    #[error("a message of {len} bytes does not fit a datagram of {max}; use a larger slot_len")]
    TooLarge {
        /// Bytes of its records.
        len: usize,
        /// Bytes that fit.
        max: usize,
    },
    /// Some fan-out has not sent the slot to be overwritten. Nothing changed. The caller tears the stalled
    /// fan-out down and tries again. [`crate::publish`] prevents this case.
    #[error("the ring is full: a fan-out has not completed sequence {blocked}")]
    RingFull {
        /// The sequence that would be overwritten.
        blocked: Sequence,
    },
    /// Sequences or record numbers are used up. Only a new epoch helps.
    #[error("the channel has used up its sequences; a new epoch is needed")]
    Exhausted,
    /// The session was ended.
    #[error("the session was ended; nothing can follow in this epoch")]
    Ended,
}

impl From<RingError> for PublishError {
    /// Maps to exhaustion: slots are opened before they are written, and only fitting data is written, so no
    /// other error is possible.
    fn from(_: RingError) -> Self {
        Self::Exhausted
    }
}

/// The content of the open slot.
#[derive(Clone, Copy, Debug)]
struct Open {
    source: SourceId,
    position: SourcePosition,
    /// Number of records. A slot never holds more than its header can count.
    count: u16,
    /// Number of messages, counted when the slot is sealed.
    messages: u64,
}

impl Open {
    #[inline]
    const fn add(&mut self, records: u16, position: SourcePosition) {
        self.position = position;
        self.count += records;
        self.messages += 1;
    }
}

/// The writer of messages into a ring.
pub struct Sequencer {
    ring: RingWriter,
    open: Option<Open>,
    completed: Sequence,
    ended: bool,
    event_body: Vec<u8>,
    /// The venue session of each source seen, for its checkpoint.
    sessions: Vec<(SourceId, [u8; 16])>,
    counters: Arc<SenderCounters>,
}

impl Sequencer {
    /// Continues where `ring` stands.
    #[must_use]
    pub fn new(ring: RingWriter, counters: Arc<SenderCounters>) -> Self {
        let completed = ring.sealed();
        Self {
            ring,
            open: None,
            completed,
            ended: false,
            event_body: Vec::with_capacity(1024),
            sessions: Vec::new(),
            counters,
        }
    }

    /// Continues from a recorded state: the completed sequence, and whether the session was ended.
    pub(crate) fn taken_up(
        ring: RingWriter,
        (completed, ended): (Sequence, bool),
        counters: Arc<SenderCounters>,
    ) -> Self {
        Self {
            completed,
            ended,
            ..Self::new(ring, counters)
        }
    }

    /// Returns the last sequence that every fan-out has completed.
    pub(crate) const fn completed(&self) -> Sequence {
        self.completed
    }

    /// Adds a message behind the others of its source if the open slot has room, which is the common case.
    /// Returns `false`, without effect, when the message needs [`begin`](Self::begin).
    #[inline]
    pub(crate) fn add(
        &mut self,
        message: RecordSlice<'_>,
        source: SourceId,
        position: SourcePosition,
    ) -> bool {
        let (ring, words) = (&mut self.ring, message.words());
        // A slot holds too few records for the count to wrap.
        let count = message.len() as u16;
        match &mut self.open {
            Some(open) if open.source == source && ring.append_words(words) => {
                open.add(count, position);
                true
            }
            _ => false,
        }
    }

    /// Adds a message that is this one record, under the contract of [`add`](Self::add).
    #[inline]
    pub(crate) fn add_record<R: WireRecord>(
        &mut self,
        record: &R,
        source: SourceId,
        position: SourcePosition,
    ) -> bool {
        let ring = &mut self.ring;
        match &mut self.open {
            Some(open) if open.source == source && ring.append_record(record) => {
                open.add(1, position);
                true
            }
            _ => false,
        }
    }

    /// Adds as many of these records as the open slot has room for, each as one message, and returns their
    /// number. The first has this position, and the others follow it.
    #[inline]
    pub(crate) fn add_run<R: WireRecord>(
        &mut self,
        records: &[R],
        source: SourceId,
        first: SourcePosition,
    ) -> usize {
        let Some(open) = (self.open.as_mut()).filter(|open| open.source == source) else {
            return 0;
        };
        let added = self.ring.append_run(records);
        if added > 0 {
            open.position = first.plus(added as u64 - 1);
            // The count cannot wrap, as in `add`.
            open.count += added as u16;
            open.messages += added as u64;
        }
        added
    }

    /// Adds one message of a source, which is never split. A later message that does not fit seals the
    /// datagram, as does [`Self::flush`]. A message without records only moves the position of its source.
    ///
    /// # Errors
    /// [`PublishError`] names the reason; the sequencer stays usable.
    pub fn publish<'a>(
        &mut self,
        message: impl Into<RecordSlice<'a>>,
        source: SourceId,
        position: SourcePosition,
        utc: Nanos,
    ) -> Result<(), PublishError> {
        let message = message.into();
        if self.add(message, source, position) {
            return Ok(());
        }
        self.begin(message, source, position, utc)
    }

    /// Seals the open slot and begins another datagram with a message that [`add`](Self::add) did not take.
    pub(crate) fn begin(
        &mut self,
        message: RecordSlice<'_>,
        source: SourceId,
        position: SourcePosition,
        utc: Nanos,
    ) -> Result<(), PublishError> {
        if self.ended {
            return Err(PublishError::Ended);
        }
        if message.bytes().len() > self.ring.payload_max() {
            return self.refuse(message, source, position, utc);
        }
        if self.open.is_some() {
            self.flush(utc, false);
        }
        if message.is_empty() {
            self.counters.published_messages.increment();
            return Ok(());
        }
        let mut open = self.open_slot(source, position)?;
        self.ring.append_words(message.words());
        open.add(message.len() as u16, position);
        self.open = Some(open);
        Ok(())
    }

    /// Begins a datagram with a message that is this one record. Returns `false`, without effect, when
    /// [`begin`](Self::begin) must be called to learn the reason.
    pub(crate) fn begin_record<R: WireRecord>(
        &mut self,
        record: &R,
        source: SourceId,
        position: SourcePosition,
        utc: Nanos,
    ) -> bool {
        if self.ended || R::LEN > self.ring.payload_max() {
            return false;
        }
        if self.open.is_some() {
            self.flush(utc, false);
        }
        let Ok(mut open) = self.open_slot(source, position) else {
            return false;
        };
        self.ring.append_record(record);
        open.add(1, position);
        self.open = Some(open);
        true
    }

    /// Seals the open slot and returns its sequence; `None` when no slot is open.
    pub fn flush(&mut self, utc: Nanos, last_of_burst: bool) -> Option<Sequence> {
        let open = self.open.take()?;
        let flags = if last_of_burst {
            datagram_flags::LAST_OF_BURST
        } else {
            0
        };
        let sealed = self.seal(Kind::Data, open, flags, utc);
        if !self.ring.move_checkpoint(open.source, open.position) {
            self.keep(open.source, open.position);
        }
        sealed
    }

    /// Writes the checkpoint of a source when the source or its session has changed.
    #[cold]
    fn keep(&mut self, source: SourceId, position: SourcePosition) {
        let session = (self.sessions.iter()).find(|(known, _)| *known == source);
        self.ring.set_checkpoint(Checkpoint {
            source,
            position,
            session: session.map_or([0; 16], |(_, session)| *session),
        });
    }

    /// Seals the open slot, then a datagram that reports `event`.
    ///
    /// # Errors
    /// [`PublishError`] names the reason; apart from the open slot, nothing changed.
    pub fn event(&mut self, event: &StreamEvent, utc: Nanos) -> Result<Sequence, PublishError> {
        if self.ended {
            return Err(PublishError::Ended);
        }
        self.flush(utc, true);
        let (source, position) = match event {
            StreamEvent::SourceLost { source, from, .. } => (*source, *from),
            // A silence has no position: it must not move the source's.
            StreamEvent::SourceSilent { source, .. } | StreamEvent::SourceBack { source, .. } => {
                (*source, SourcePosition::default())
            }
            StreamEvent::EpochOpened { .. } => Default::default(),
        };
        self.event_body.clear();
        event.write(&mut self.event_body);
        let open = self.open_slot(source, position)?;
        self.ring.append(&self.event_body)?;
        let lost = event.source_messages_lost();
        self.counters.source_messages_lost.add(lost);
        self.seal_rare(Kind::Event, open, 0, utc)
            .ok_or(PublishError::Exhausted)
    }

    /// Seals the open slot, then END. Nothing can follow.
    ///
    /// # Errors
    /// [`PublishError`], also when the session was ended before.
    pub fn end(&mut self, utc: Nanos) -> Result<Sequence, PublishError> {
        if self.ended {
            return Err(PublishError::Ended);
        }
        self.flush(utc, true);
        // Set this only here, so that `open_slot` lets END have the last sequence of all.
        self.ended = true;
        match self.open_slot(SourceId(0), SourcePosition(0)) {
            Ok(open) => self
                .seal_rare(Kind::End, open, datagram_flags::LAST_OF_BURST, utc)
                .ok_or(PublishError::Exhausted),
            Err(error) => {
                self.ended = false;
                Err(error)
            }
        }
    }

    fn refuse(
        &mut self,
        message: RecordSlice<'_>,
        source: SourceId,
        position: SourcePosition,
        utc: Nanos,
    ) -> Result<(), PublishError> {
        let mut instruments: Vec<u32> = (message.records())
            .map(|record| record.header().instrument_id)
            .collect();
        instruments.sort_unstable();
        instruments.dedup();
        self.event(
            &StreamEvent::SourceLost {
                source,
                reason: SourceLossReason::Overflow,
                from: position,
                messages: 1,
                instruments,
            },
            utc,
        )?;
        self.counters.oversize_records.add(message.len() as u64);
        Err(PublishError::TooLarge {
            len: message.bytes().len(),
            max: self.ring.payload_max(),
        })
    }

    fn open_slot(
        &mut self,
        source: SourceId,
        position: SourcePosition,
    ) -> Result<Open, PublishError> {
        let sequence = self.ring.sealed().next();
        let last = if self.ended {
            SEQUENCE_LAST
        } else {
            SEQUENCE_LAST.previous()
        };
        // A slot never holds more records than `count` can express.
        let records_left = u64::MAX - self.ring.next_record().0;
        if sequence > last || (!self.ended && records_left <= u64::from(u16::MAX)) {
            return Err(PublishError::Exhausted);
        }
        let blocked = sequence.minus(self.ring.geometry().slots());
        if blocked > self.completed {
            return Err(PublishError::RingFull { blocked });
        }
        self.ring.open()?;
        Ok(Open {
            source,
            position,
            count: 0,
            messages: 0,
        })
    }

    #[cold]
    fn seal_rare(&mut self, kind: Kind, open: Open, flags: u16, utc: Nanos) -> Option<Sequence> {
        self.seal(kind, open, flags, utc)
    }

    #[inline]
    fn seal(&mut self, kind: Kind, open: Open, flags: u16, utc: Nanos) -> Option<Sequence> {
        let sealed = self.ring.seal_open(Seal {
            kind,
            count: open.count,
            source: open.source,
            source_position: open.position,
            sent_at: utc,
            flags,
        });
        let (sequence, payload) = sealed.ok()?;
        self.counters.published_records.add(open.count.into());
        self.counters.published_messages.add(open.messages);
        self.counters.sealed_datagrams.increment();
        self.counters
            .sealed_bytes
            .add((HEADER_LEN + payload) as u64);
        Some(sequence)
    }

    /// Records that every fan-out has completed the slots up to `sequence`, so they may be overwritten.
    pub fn set_completed(&mut self, sequence: Sequence) {
        self.completed = self.completed.max(sequence);
    }

    /// Sets the venue's session name of a source, kept in its checkpoint from the next seal on.
    pub fn set_session(&mut self, source: SourceId, session: [u8; 16]) {
        match self.sessions.iter_mut().find(|(known, _)| *known == source) {
            Some(entry) => entry.1 = session,
            None => self.sessions.push((source, session)),
        }
        self.ring.keep_anew();
    }

    /// Returns whether END was sealed.
    #[must_use]
    pub const fn is_ended(&self) -> bool {
        self.ended
    }

    /// Returns whether a slot is open, so that a flush would seal something.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Returns the last sequence sealed.
    #[must_use]
    pub const fn sealed(&self) -> Sequence {
        self.ring.sealed()
    }

    /// Returns the number of the record after the last one sealed.
    #[must_use]
    pub const fn next_record(&self) -> RecordNumber {
        self.ring.next_record()
    }

    /// Returns the ring.
    #[must_use]
    pub const fn ring(&self) -> &RingWriter {
        &self.ring
    }

    /// Returns the ring, so that its control page can be updated.
    pub const fn ring_mut(&mut self) -> &mut RingWriter {
        &mut self.ring
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{InstrumentDefMsg, MboMsg, RecordBatch, TradeMsg};
    use crate::ring::{Geometry, HeapMemory, RingIdentity};
    use crate::types::{ChannelId, ConfigHash, Epoch, SequenceRange};
    use crate::wire::{CrcVerdict, Datagram, Header};

    const A: SourceId = SourceId(1);
    const B: SourceId = SourceId(2);
    const UTC: Nanos = Nanos(1_700_000_000_000_000_000);

    fn sequencer(first: u64, first_record: u64) -> Sequencer {
        let geometry = Geometry::new(1024, 16).unwrap();
        let identity = RingIdentity {
            channel: ChannelId(1),
            epoch: Epoch(2),
            config_hash: ConfigHash(3),
            boot_id: [0; 16],
            fan_outs: 1,
            first_sequence: Sequence(first),
            first_record: RecordNumber(first_record),
        };
        let memory = Arc::new(HeapMemory::new(geometry));
        let ring = RingWriter::create(memory, geometry, identity).unwrap();
        Sequencer::new(ring, Arc::default())
    }

    fn message(records: usize) -> RecordBatch {
        let mut batch = RecordBatch::default();
        for _ in 0..records {
            batch.put(&MboMsg::default());
        }
        batch
    }

    fn at(n: u64) -> SourcePosition {
        SourcePosition::new(0, n)
    }

    fn header(sequencer: &Sequencer, sequence: u64) -> Header {
        let bytes = sequencer.ring().slot(Sequence(sequence)).unwrap();
        let datagram = Datagram::parse(bytes).unwrap();
        assert_eq!(datagram.verdict(), CrcVerdict::Good);
        let count = usize::from(datagram.header().count);
        assert_eq!(datagram.records().unwrap().count(), count);
        *datagram.header()
    }

    #[test]
    fn whole_messages_of_one_source_share_a_datagram() {
        let mut s = sequencer(1, 1);
        // 17 records of 56 bytes fit 960 bytes.
        s.publish(&message(10), A, at(1), UTC).unwrap();
        s.publish(&message(7), A, at(2), UTC).unwrap();
        assert_eq!(
            s.sealed(),
            Sequence(0),
            "nothing is sealed before it must be"
        );
        s.publish(&message(1), A, at(3), UTC).unwrap();
        assert_eq!(s.sealed(), Sequence(1), "the third message did not fit");
        s.publish(&message(1), B, at(9), UTC).unwrap();
        assert_eq!(s.sealed(), Sequence(2), "the source changed");
        assert_eq!(s.flush(UTC, true), Some(Sequence(3)));
        assert_eq!(s.flush(UTC, true), None);
        let headers: Vec<Header> = (1..=3).map(|n| header(&s, n)).collect();
        assert_eq!(
            headers.iter().map(|h| h.count).collect::<Vec<_>>(),
            [17, 1, 1]
        );
        let first: Vec<u64> = headers.iter().map(|h| h.first_record.0).collect();
        assert_eq!(first, [1, 18, 19]);
        assert_eq!(
            headers[0].source_position,
            at(2),
            "of the last message in it"
        );
        assert_eq!((headers[2].source, headers[2].source_position), (B, at(9)));
        assert_eq!(
            headers.iter().map(|h| h.retained).collect::<Vec<_>>(),
            [1, 2, 3]
        );
        assert_eq!(headers[1].flags & datagram_flags::LAST_OF_BURST, 0);
        assert_ne!(headers[2].flags & datagram_flags::LAST_OF_BURST, 0);
        assert_eq!(s.counters.published_messages.get(), 4);
        assert_eq!(s.counters.published_records.get(), 19);
        assert_eq!(s.counters.sealed_bytes.get(), 3 * 64 + 19 * 56);
    }

    #[test]
    fn direct_record_has_same_bytes_as_message() {
        let (mut single, mut batched) = (sequencer(1, 1), sequencer(1, 1));
        let mut wrong = MboMsg {
            order_id: 7,
            ..MboMsg::default()
        };
        wrong.hd.rtype = 0xee; // what its header says of its type is not believed
        let mut batch = RecordBatch::default();
        batch.put(&wrong);
        assert!(!single.add_record(&wrong, A, at(1)), "nothing is open");
        for n in 1..=40 {
            let source = if n == 20 { B } else { A };
            batched.publish(&batch, source, at(n), UTC).unwrap();
            if !single.add_record(&wrong, source, at(n)) {
                single.publish(&batch, source, at(n), UTC).unwrap();
            }
        }
        let last = batched.flush(UTC, true);
        assert_eq!(single.flush(UTC, true), last);
        // 17 fit; the source changes twice.
        assert_eq!(last, Some(Sequence(5)));
        for sequence in 1..=5 {
            let slot = |s: &Sequencer| s.ring().slot(Sequence(sequence)).map(<[u8]>::to_vec);
            assert_eq!(slot(&single), slot(&batched));
            assert_eq!(header(&single, sequence).kind, Kind::Data);
        }
        let counted = |s: &Sequencer| {
            let counters = &s.counters;
            let of_source = (&counters.published_messages, &counters.published_records);
            (
                of_source.0.get(),
                of_source.1.get(),
                counters.sealed_bytes.get(),
            )
        };
        assert_eq!(counted(&single), (40, 40, 5 * 64 + 40 * 56));
        assert_eq!(counted(&single), counted(&batched));
        assert!(!single.add_record(&wrong, A, at(41)), "nothing is open");
    }

    #[test]
    fn record_run_is_sequenced_like_single_messages() {
        let (mut by_runs, mut batched) = (sequencer(1, 1), sequencer(1, 1));
        let mut n = 1;
        // Longer than a slot, as long as one (17), of another source, none.
        for (len, source) in [(1, A), (40, A), (17, A), (3, B), (0, B), (5, B), (1, A)] {
            let record = |n: u64| {
                let mut record = MboMsg {
                    order_id: n,
                    ..MboMsg::default()
                };
                record.hd.rtype = 0xee; // not believed
                record
            };
            let run: Vec<MboMsg> = (n..n + len).map(record).collect();
            for (i, record) in run.iter().enumerate() {
                let mut batch = RecordBatch::default();
                batch.put(record);
                let position = at(n + i as u64);
                batched.publish(&batch, source, position, UTC).unwrap();
            }
            let mut left = &run[..];
            while let [next, ..] = left {
                let mut added = by_runs.add_run(left, source, at(n));
                if added == 0 {
                    assert!(by_runs.begin_record(next, source, at(n), UTC));
                    added = 1;
                }
                (left, n) = (&left[added..], n + added as u64);
            }
        }
        let last = batched.flush(UTC, true);
        assert_eq!(by_runs.flush(UTC, true), last);
        for sequence in 1..=last.unwrap().0 {
            let slot = |s: &Sequencer| s.ring().slot(Sequence(sequence)).map(<[u8]>::to_vec);
            assert_eq!(slot(&by_runs), slot(&batched), "{sequence}");
        }
        for (name, s) in [("runs", &by_runs), ("messages", &batched)] {
            assert_eq!(s.counters.published_messages.get(), 67, "{name}");
            assert_eq!(s.counters.published_records.get(), 67, "{name}");
        }
        assert_eq!(
            by_runs.add_run(&[MboMsg::default()], A, at(99)),
            0,
            "nothing is open"
        );
    }

    #[test]
    fn oversized_message_is_sealed_as_source_loss() {
        let mut s = sequencer(1, 1);
        let mut large = RecordBatch::default();
        for instrument in [9, 4] {
            let mut definition = InstrumentDefMsg::default();
            definition.hd.instrument_id = instrument;
            large.put(&definition);
        }
        s.publish(&message(1), A, at(1), UTC).unwrap();
        let refused = s.publish(&large, A, at(2), UTC);
        assert_eq!(
            refused,
            Err(PublishError::TooLarge {
                len: 1040,
                max: 960
            })
        );
        s.publish(&message(1), A, at(3), UTC).unwrap();
        s.flush(UTC, true);
        let bytes = s.ring().slot(Sequence(2)).unwrap();
        let reported = StreamEvent::parse(Datagram::parse(bytes).unwrap().payload());
        assert_eq!(
            reported,
            Some(StreamEvent::SourceLost {
                source: A,
                reason: SourceLossReason::Overflow,
                from: at(2),
                messages: 1,
                instruments: vec![4, 9],
            })
        );
        assert_eq!(
            header(&s, 2).first_record,
            RecordNumber(2),
            "an event has no records"
        );
        assert_eq!(header(&s, 3).first_record, RecordNumber(2));
        assert_eq!(s.counters.oversize_records.get(), 2);
        assert_eq!(s.counters.source_messages_lost.get(), 1);
    }

    #[test]
    fn uncompleted_slot_is_never_overwritten() {
        let mut s = sequencer(1, 1);
        let publish = |s: &mut Sequencer| {
            s.publish(&message(1), A, at(1), UTC)?;
            Ok(s.flush(UTC, false).unwrap())
        };
        for n in 1..=16 {
            assert_eq!(publish(&mut s), Ok(Sequence(n)));
        }
        let full = Err(PublishError::RingFull {
            blocked: Sequence(1),
        });
        assert_eq!(publish(&mut s), full);
        assert_eq!(publish(&mut s), full, "nothing happened");
        s.set_completed(Sequence(1));
        assert_eq!(publish(&mut s), Ok(Sequence(17)));
        assert!(publish(&mut s).is_err());
    }

    #[test]
    fn sequences_pass_32_bits_and_end_refuses_all_but_end() {
        let mut s = sequencer((1 << 32) - 2, 1);
        for n in 0..5 {
            s.publish(&message(1), A, at(n), UTC).unwrap();
            assert_eq!(s.flush(UTC, true), Some(Sequence((1 << 32) - 2 + n)));
        }
        let mut s = sequencer(u64::MAX - 3, 1);
        for n in 0..2 {
            s.publish(&message(1), A, at(n), UTC).unwrap();
            s.flush(UTC, true);
        }
        let refused = s.publish(&message(1), A, at(3), UTC);
        assert_eq!(refused, Err(PublishError::Exhausted));
        assert_eq!(s.sealed(), SEQUENCE_LAST.previous());
        assert_eq!(s.end(UTC), Ok(SEQUENCE_LAST));
        assert_eq!(header(&s, SEQUENCE_LAST.0).kind, Kind::End);
    }

    #[test]
    fn record_numbers_never_wrap() {
        let mut s = sequencer(1, u64::MAX - 1000);
        let refused = s.publish(&message(1), A, at(1), UTC);
        assert_eq!(refused, Err(PublishError::Exhausted));
        assert!(s.end(UTC).is_ok());
    }

    #[test]
    fn sequencer_refuses_all_input_after_end() {
        let mut s = sequencer(1, 1);
        s.publish(&message(1), A, at(1), UTC).unwrap();
        assert_eq!(s.end(UTC), Ok(Sequence(2)), "what was open goes before it");
        assert_eq!(header(&s, 1).kind, Kind::Data);
        assert_eq!(header(&s, 2).first_record, RecordNumber(2));
        let event = StreamEvent::EpochOpened {
            reason: crate::wire::EpochReason::Fresh,
            previous: Epoch(0),
            previous_last: Sequence(0),
        };
        assert_eq!(
            s.publish(&message(1), A, at(2), UTC),
            Err(PublishError::Ended)
        );
        assert_eq!(s.event(&event, UTC), Err(PublishError::Ended));
        assert_eq!(s.end(UTC), Err(PublishError::Ended));
    }

    #[test]
    fn checkpoints_follow_what_is_sealed_and_no_more() {
        let mut s = sequencer(1, 1);
        let reader = s.ring().reader();
        s.set_session(A, *b"0000000001\0\0\0\0\0\0");
        s.publish(&message(1), A, at(5), UTC).unwrap();
        assert_eq!(reader.checkpoint(A), None);
        s.publish(&message(0), A, at(6), UTC).unwrap();
        s.flush(UTC, true);
        let checkpoint = reader.checkpoint(A).unwrap();
        assert_eq!(
            checkpoint.position,
            at(6),
            "a message of no records counts too"
        );
        assert_eq!(&checkpoint.session[..10], b"0000000001");
        s.publish(&message(0), A, at(7), UTC).unwrap();
        assert_eq!(s.flush(UTC, true), None);
        let all = SequenceRange::one(Sequence(1));
        assert_eq!(reader.verify(), Ok(Some(all)));
        let mut trade = RecordBatch::default();
        trade.put(&TradeMsg::default());
        assert_eq!(s.publish(&trade, B, at(1), UTC), Ok(()));
    }

    #[test]
    fn datagram_is_filled_to_last_byte() {
        let mut s = sequencer(1, 1);
        let rows = |count| {
            let mut batch = RecordBatch::default();
            (0..count).for_each(|_| batch.put(&crate::record::Mbp1Msg::default()));
            batch
        };
        assert!(!s.is_open() && !s.is_ended());
        s.publish(&rows(5), A, at(1), UTC).unwrap();
        assert!(s.is_open());
        s.publish(&rows(7), A, at(2), UTC).unwrap();
        assert_eq!(
            (s.sealed(), s.flush(UTC, false)),
            (Sequence(0), Some(Sequence(1)))
        );
        assert!(!s.is_open());
        s.publish(&rows(12), A, at(3), UTC).unwrap();
        assert_eq!(s.flush(UTC, true), Some(Sequence(2)));
        for (sequence, flags) in [(1, 0), (2, datagram_flags::LAST_OF_BURST)] {
            let header = header(&s, sequence);
            assert_eq!(
                (header.count, header.payload_len, header.flags),
                (12, 960, flags)
            );
        }
        assert_eq!(s.next_record(), RecordNumber(25));
    }

    #[test]
    fn source_loss_of_unknown_size_counts_one_message() {
        let mut s = sequencer(1, 1);
        let lost = |messages| StreamEvent::SourceLost {
            source: B,
            reason: SourceLossReason::Gap,
            from: at(7),
            messages,
            instruments: vec![],
        };
        s.publish(&message(1), A, at(1), UTC).unwrap();
        assert_eq!(
            s.event(&lost(5), UTC),
            Ok(Sequence(2)),
            "what was open first"
        );
        assert_eq!(s.event(&lost(u64::MAX), UTC), Ok(Sequence(3)));
        assert_eq!(s.counters.source_messages_lost.get(), 6);
        let reported = header(&s, 2);
        assert_eq!(
            (reported.kind, reported.source, reported.source_position),
            (Kind::Event, B, at(7))
        );
        assert_ne!(header(&s, 1).flags & datagram_flags::LAST_OF_BURST, 0);
        assert_eq!(s.counters.sealed_datagrams.get(), 3);
    }

    #[test]
    fn last_record_numbers_are_reserved() {
        let left = |left: u64| {
            let mut s = sequencer(1, u64::MAX - left);
            s.publish(&message(1), A, at(1), UTC).is_ok()
        };
        assert!(left(65_536) && !left(65_535));
    }

    #[test]
    fn session_change_is_in_checkpoint_after_next_seal() {
        let mut s = sequencer(1, 1);
        let reader = s.ring().reader();
        for (n, name) in (1..).zip([[1; 16], [2; 16]]) {
            s.set_session(A, name);
            s.set_session(B, [9; 16]);
            s.publish(&message(1), A, at(n), UTC).unwrap();
            s.flush(UTC, true);
            assert_eq!(reader.checkpoint(A).unwrap().session, name);
        }
        s.publish(&message(1), B, at(1), UTC).unwrap();
        s.flush(UTC, true);
        assert_eq!(reader.checkpoint(B).unwrap().session, [9; 16]);
        assert_eq!(reader.checkpoint(A).unwrap().session, [2; 16]);
    }

    #[test]
    fn completed_sequence_never_moves_backwards() {
        let mut s = sequencer(1, 1);
        s.set_completed(Sequence(4));
        s.set_completed(Sequence(2));
        for n in 1..=20 {
            s.publish(&message(1), A, at(n), UTC).unwrap();
            assert_eq!(s.flush(UTC, false), Some(Sequence(n)));
        }
        let blocked = Sequence(5);
        let full = Err(PublishError::RingFull { blocked });
        assert_eq!(s.publish(&message(1), A, at(21), UTC), full);
        assert_eq!(s.end(UTC), Err(PublishError::RingFull { blocked }));
        assert!(!s.is_ended(), "it may be tried again");
    }
}
