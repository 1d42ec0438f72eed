//! Reads a local ring. Each cursor has its own position and its own totals.

use std::sync::Arc;

use tickcast_reliability::delivery::{Event, Overrun, Position};
use tickcast_reliability::record::{Records, words_as_bytes};

use super::{BUFFER_WORDS, Head, Kind, LocalRing, MARGIN};
use crate::observe::totals::{CHECKPOINT_WORDS, Totals, position_at};
use crate::sync::position_words::{POSITION_WORDS, unpack};

/// One entry of the ring. Its bytes are in the cursor's buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// A number of [`Cursor::records`], with the position of the first one.
    Records(usize, Position, u16),
    Event(usize, Position, Event),
    Changed(usize, u32),
    /// The overwritten part of a channel.
    Overrun(usize, Position, Overrun),
    /// The reader was lapped, so cells may have changed without an entry.
    Lapped,
}

/// Reads the ring at its own position.
#[derive(Clone, Debug)]
pub(crate) struct Cursor {
    ring: Arc<LocalRing>,
    at: u64,
    /// The counts of what this reader has read or received as an overrun.
    totals: Box<[Totals]>,
    buffer: Vec<u64>,
}

impl Cursor {
    /// Creates a cursor at the beginning of a ring that is still empty.
    pub(super) fn new(ring: Arc<LocalRing>, totals: Box<[Totals]>) -> Self {
        Self {
            ring,
            at: 0,
            totals,
            buffer: vec![0; BUFFER_WORDS],
        }
    }

    pub(crate) fn ring(&self) -> &LocalRing {
        &self.ring
    }

    pub(crate) fn totals_mut(&mut self, channel: usize) -> &mut Totals {
        &mut self.totals[channel]
    }

    pub(crate) const fn totals(&self) -> &[Totals] {
        &self.totals
    }

    /// Returns whether there is something to read.
    #[inline]
    pub(crate) fn is_ready(&self) -> bool {
        self.ring.words.committed() != self.at
    }

    /// Returns the `count` records of the last entry.
    pub(crate) fn records(&self, count: u16) -> Option<Records<'_>> {
        let words = Head::unpack(self.buffer[0]).words as usize;
        let bytes = words_as_bytes(self.buffer.get(RECORDS_AT..words)?);
        Records::check(bytes, count.into()).ok()
    }

    /// Reads the next entry. When a checkpoint shows several overruns, each call returns one.
    pub(crate) fn next(&mut self) -> Option<Entry> {
        loop {
            if !self.is_ready() {
                return None;
            }
            let Some(head) = self.copy() else {
                self.skip_ahead();
                return Some(Entry::Lapped);
            };
            let channel = usize::from(head.channel);
            if head.kind == Kind::Checkpoint as u8
                && let Some(overrun) = self.compare()
            {
                // Stay at this checkpoint, so that the next call compares it again until no overrun is left.
                return Some(overrun);
            }
            self.at += u64::from(head.words);
            if head.kind == Kind::Records as u8 {
                return Some(Entry::Records(channel, self.position(), head.count));
            }
            if head.kind == Kind::Changed as u8 {
                return Some(Entry::Changed(channel, self.buffer[1] as u32));
            }
            if head.kind == Kind::Event as u8
                && let Some(event) = self.event(head.count.into())
            {
                return Some(Entry::Event(channel, self.position(), event));
            }
        }
    }

    /// Copies the entry at this position to the buffer. Returns `None` when it is being overwritten.
    #[inline]
    fn copy(&mut self) -> Option<Head> {
        let (words, at) = (&self.ring.words, self.at);
        words.copy(at, &mut self.buffer[..1])?;
        let head = Head::unpack(self.buffer[0]);
        if head.kind != Kind::Padding as u8 {
            words.copy(at, &mut self.buffer[..head.words as usize])?;
        }
        Some(head)
    }

    /// Moves to a checkpoint that will not be overwritten soon.
    #[cold]
    fn skip_ahead(&mut self) {
        let ring = &self.ring;
        let committed = ring.words.committed();
        let oldest = committed
            .saturating_sub(ring.words.len())
            .next_multiple_of(ring.segment_words);
        self.at = oldest + MARGIN * ring.segment_words;
    }

    /// Returns the overrun of the first channel for which the checkpoint in the buffer is ahead of this
    /// reader.
    fn compare(&mut self) -> Option<Entry> {
        for (index, totals) in self.totals.iter_mut().enumerate() {
            let at = 1 + index * CHECKPOINT_WORDS;
            let words: &[u64; CHECKPOINT_WORDS] = self.buffer[at..].first_chunk()?;
            let reported = Totals::unpack(words);
            if let Some(overrun) = totals.catch_up(reported) {
                let position = position_at(&reported);
                return Some(Entry::Overrun(index, position, overrun));
            }
        }
        None
    }

    fn position(&self) -> Position {
        let mut words = [0; POSITION_WORDS];
        words.copy_from_slice(&self.buffer[1..=POSITION_WORDS]);
        unpack(&words)
    }

    fn event(&self, len: usize) -> Option<Event> {
        let bytes = words_as_bytes(&self.buffer[1 + POSITION_WORDS..]);
        serde_json::from_slice(&bytes[..len]).ok()
    }
}

/// The offset of the records' words in an entry.
const RECORDS_AT: usize = 1 + POSITION_WORDS;
