//! Packs messages into the slots of a ring: whole messages of one source per datagram, numbered
//! without a gap, and what can't be sent is said in the stream instead.
//!
//! It packs what is there and never waits to fill a datagram: the caller flushes when nothing more
//! is waiting (docs/PROTOCOL.md §3). It does not know who sends the slots; whether the oldest may
//! be overwritten is told to it by [`Sequencer::set_completed`].

use std::sync::Arc;

use thiserror::Error;

use crate::counters::SenderCounters;
use crate::record::RecordBatch;
use crate::ring::{RingWriter, Seal};
use crate::ring_layout::{Checkpoint, RingError, SEQUENCE_LAST};
use crate::units::{Nanos, RecordNumber, Sequence, SourceId, SourcePosition};
use crate::wire::{Kind, SourceLossReason, StreamEvent, datagram_flags};

/// Why something was not published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PublishError {
    /// The message is larger than a datagram. It was counted and is told in the stream as lost;
    /// there is nothing to do but to configure larger slots.
    #[error("a message of {len} bytes does not fit a datagram of {max}; use a larger slot_len")]
    TooLarge {
        /// Bytes of its records.
        len: usize,
        /// Bytes that fit.
        max: usize,
    },
    /// The slot to be written has not been sent by every fan-out yet. Nothing happened; the caller
    /// tears the stalled fan-out down and tries again. [`crate::publisher_core`] never lets it
    /// come to this.
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
    /// Slots are opened before they are written, and only what fits is: so what is left is
    /// exhaustion.
    fn from(_: RingError) -> Self {
        Self::Exhausted
    }
}

/// What is in the open slot.
#[derive(Clone, Copy, Debug)]
struct Open {
    source: SourceId,
    position: SourcePosition,
    count: u16,
}

/// The one that fills a ring.
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
    /// Goes on where `ring` stands.
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

    /// Adds one message of a source, which is never split. It is sealed by a later message that
    /// does not fit beside it, or by [`Self::flush`]. A message of no records only moves the
    /// position of its source.
    ///
    /// # Errors
    /// [`PublishError`]; the sequencer stays usable.
    pub fn publish(
        &mut self,
        message: &RecordBatch,
        source: SourceId,
        position: SourcePosition,
        utc: Nanos,
    ) -> Result<(), PublishError> {
        if self.ended {
            return Err(PublishError::Ended);
        }
        let (bytes, records) = (message.bytes(), message.len());
        if bytes.len() > self.ring.payload_max() {
            return self.refuse(message, source, position, utc);
        }
        if let Some(open) = self.open {
            let fits = open.source == source
                && bytes.len() <= self.ring.room()
                && usize::from(open.count) + records <= usize::from(u16::MAX);
            if !fits {
                self.flush(utc, false);
            }
        }
        if records > 0 {
            let open = match self.open {
                Some(open) => open,
                None => self.open_slot(source, position)?,
            };
            self.ring.append(bytes)?;
            self.open = Some(Open {
                position,
                count: open.count + records as u16,
                ..open
            });
            self.counters.published_records.add(records as u64);
        } else if let Some(open) = &mut self.open {
            open.position = position;
        }
        self.counters.published_messages.increment();
        Ok(())
    }

    /// Seals what is open, and returns its sequence; `None` when nothing is.
    pub fn flush(&mut self, utc: Nanos, last_of_burst: bool) -> Option<Sequence> {
        let open = self.open.take()?;
        let flags = if last_of_burst {
            datagram_flags::LAST_OF_BURST
        } else {
            0
        };
        let sealed = self.seal(Kind::Data, open, flags, utc);
        let (source, position) = (open.source, open.position);
        let session = (self.sessions.iter()).find(|(known, _)| *known == source);
        self.ring.set_checkpoint(Checkpoint {
            source,
            position,
            session: session.map_or([0; 16], |(_, session)| *session),
        });
        sealed
    }

    /// Seals what is open, then a datagram that tells of `event`.
    ///
    /// # Errors
    /// [`PublishError`]; except for what was open, nothing happened.
    pub fn event(&mut self, event: &StreamEvent, utc: Nanos) -> Result<Sequence, PublishError> {
        if self.ended {
            return Err(PublishError::Ended);
        }
        self.flush(utc, true);
        let (source, position) = match event {
            StreamEvent::SourceLost { source, from, .. } => (*source, *from),
            StreamEvent::EpochOpened { .. } => Default::default(),
        };
        self.event_body.clear();
        event.write(&mut self.event_body);
        let open = self.open_slot(source, position)?;
        self.ring.append(&self.event_body)?;
        if let StreamEvent::SourceLost { messages, .. } = event {
            // A loss of unknown size counts as one message: it must show.
            let known = if *messages == u64::MAX { 1 } else { *messages };
            self.counters.source_messages_lost.add(known);
        }
        self.seal(Kind::Event, open, 0, utc)
            .ok_or(PublishError::Exhausted)
    }

    /// Seals what is open, then END. Nothing can follow.
    ///
    /// # Errors
    /// [`PublishError`], also when the session was ended before.
    pub fn end(&mut self, utc: Nanos) -> Result<Sequence, PublishError> {
        if self.ended {
            return Err(PublishError::Ended);
        }
        self.flush(utc, true);
        // Until here, so that `open_slot` lets END have the last sequence of all.
        self.ended = true;
        match self.open_slot(SourceId(0), SourcePosition(0)) {
            Ok(open) => self
                .seal(Kind::End, open, datagram_flags::LAST_OF_BURST, utc)
                .ok_or(PublishError::Exhausted),
            Err(error) => {
                self.ended = false;
                Err(error)
            }
        }
    }

    fn refuse(
        &mut self,
        message: &RecordBatch,
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
        // A slot never holds as many records as `count` can say.
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
        })
    }

    fn seal(&mut self, kind: Kind, open: Open, flags: u16, utc: Nanos) -> Option<Sequence> {
        let sequence = self.ring.seal(Seal {
            kind,
            count: open.count,
            source: open.source,
            source_position: open.position,
            sent_at: utc,
            flags,
        });
        let sequence = sequence.ok()?;
        self.counters.sealed_datagrams.increment();
        let len = self.ring.slot(sequence).map_or(0, <[u8]>::len);
        self.counters.sealed_bytes.add(len as u64);
        Some(sequence)
    }

    /// Every fan-out has done with the slots up to `sequence`: they may be overwritten.
    pub fn set_completed(&mut self, sequence: Sequence) {
        self.completed = self.completed.max(sequence);
    }

    /// The venue's name of a source's session, kept in its checkpoint from the next seal on.
    pub fn set_session(&mut self, source: SourceId, session: [u8; 16]) {
        match self.sessions.iter_mut().find(|(known, _)| *known == source) {
            Some(entry) => entry.1 = session,
            None => self.sessions.push((source, session)),
        }
    }

    /// Whether END was sealed.
    #[must_use]
    pub const fn is_ended(&self) -> bool {
        self.ended
    }

    /// Whether a slot is open: whether a flush would seal something.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// The last sequence sealed.
    #[must_use]
    pub const fn sealed(&self) -> Sequence {
        self.ring.sealed()
    }

    /// Number of the record after the last one sealed.
    #[must_use]
    pub const fn next_record(&self) -> RecordNumber {
        self.ring.next_record()
    }

    /// The ring.
    #[must_use]
    pub const fn ring(&self) -> &RingWriter {
        &self.ring
    }

    /// The ring's control page, to be kept up to date.
    pub const fn ring_mut(&mut self) -> &mut RingWriter {
        &mut self.ring
    }
}
