//! Writes a local ring. Records of one datagram become one entry, and the writer never waits for a reader.

use std::sync::Arc;

use tickcast_reliability::delivery::{Event, Position};
use tickcast_reliability::record::RecordRef;
use tickcast_reliability::types::RecordNumber;

use super::cursor::Cursor;
use super::{ENTRY_WORDS_MAX, Head, Kind, LocalRing};
use crate::observe::totals::{CHECKPOINT_WORDS, Totals};
use crate::sync::position_words::{POSITION_WORDS, pack};

/// Writes the ring. Dropping it signals the end to the readers.
#[derive(Debug)]
pub(crate) struct Writer {
    ring: Arc<LocalRing>,
    /// The position of the open entry, or else of the next one.
    at: u64,
    open: Option<Open>,
    totals: Box<[Totals]>,
    text: Vec<u8>,
    /// The position up to which readers were notified.
    rung_at: u64,
}

/// An entry of records that is still open for more records.
#[derive(Debug)]
struct Open {
    channel: u16,
    /// The position of its first record. The next record must match it to be added.
    position: Position,
    next: RecordNumber,
    count: u16,
    words: u64,
}

impl Writer {
    /// Creates a ring of at least `size_bytes`, and its first reader. `totals` are the counts of each channel
    /// so far. Returns `None` when there is no memory for the ring.
    pub(crate) fn open(size_bytes: usize, totals: Box<[Totals]>) -> Option<(Self, Cursor)> {
        let ring = Arc::new(LocalRing::new(size_bytes)?);
        let cursor = Cursor::new(Arc::clone(&ring), totals.clone());
        let writer = Self {
            ring,
            at: 0,
            open: None,
            totals,
            text: Vec::with_capacity(4096),
            rung_at: 0,
        };
        Some((writer, cursor))
    }

    /// Creates a ring as [`Writer::open`] does, and panics when there is no memory for it.
    #[cfg(test)]
    pub(crate) fn new(size_bytes: usize, totals: Box<[Totals]>) -> (Self, Cursor) {
        Self::open(size_bytes, totals).expect("memory")
    }

    /// Adds a record of the channel with this index.
    #[inline]
    pub(crate) fn record(&mut self, channel: usize, position: &Position, record: RecordRef<'_>) {
        let bytes: &[u8] = record.as_ref();
        let words = (bytes.len() / size_of::<u64>()) as u64;
        let fits = |open: &Open| {
            let same = Position {
                record: open.position.record,
                ..*position
            };
            open.next == position.record
                && same == open.position
                && open.words + words <= (ENTRY_WORDS_MAX as u64)
                && open.words + words <= self.ring.left(self.at)
        };
        if !self.open.as_ref().is_some_and(fits) {
            self.begin(1 + POSITION_WORDS as u64 + words);
            self.put(1, &pack(position));
            self.open = Some(Open {
                channel: channel as u16,
                position: *position,
                next: position.record,
                count: 0,
                words: 1 + POSITION_WORDS as u64,
            });
        }
        let Some(open) = &mut self.open else { return };
        for (word, at) in bytes
            .chunks_exact(size_of::<u64>())
            .zip(self.at + open.words..)
        {
            let mut value = [0; size_of::<u64>()];
            value.copy_from_slice(word);
            self.ring.words.put(at, &[u64::from_ne_bytes(value)]);
        }
        open.words += words;
        open.count += 1;
        open.next = position.record.plus(1);
        self.totals[channel].record(position);
    }

    /// Adds an event.
    pub(crate) fn event(&mut self, channel: usize, position: &Position, event: &Event) {
        let mut text = std::mem::take(&mut self.text);
        text.clear();
        // invariant: writing numbers and names to memory does not fail. The longest event is a source loss
        // that names 128 instruments, which is far shorter than the longest entry.
        let _ = serde_json::to_writer(&mut text, event);
        let words = 1 + POSITION_WORDS + text.len().div_ceil(size_of::<u64>());
        self.begin(words as u64);
        self.put(1, &pack(position));
        let chunks = text.chunks(size_of::<u64>());
        for (chunk, at) in chunks.zip(self.at + 1 + POSITION_WORDS as u64..) {
            let mut value = [0; size_of::<u64>()];
            value[..chunk.len()].copy_from_slice(chunk);
            self.ring.words.put(at, &[u64::from_ne_bytes(value)]);
        }
        self.end(Kind::Event, channel as u16, text.len() as u16, words as u64);
        self.totals[channel].event(position, event);
        self.text = text;
    }

    /// Adds an entry for a changed cell of a `latest` channel.
    #[inline]
    pub(crate) fn changed(&mut self, channel: usize, cell: u32) {
        self.begin(2);
        self.put(1, &[cell.into()]);
        self.end(Kind::Changed, channel as u16, 0, 2);
    }

    /// Commits the open entry and notifies the waiting readers, if there is anything new.
    #[inline]
    pub(crate) fn flush(&mut self) {
        self.seal();
        if self.at != self.rung_at {
            self.rung_at = self.at;
            self.ring.notifier.notify();
        }
    }

    /// Ends the open entry and claims room for the next one: at least `words`, and more so that records
    /// can be added to it.
    #[inline]
    fn begin(&mut self, words: u64) {
        self.seal();
        let left = self.ring.left(self.at);
        if left == self.ring.segment_words {
            self.checkpoint();
        } else if left < words {
            self.claim(left);
            self.end(Kind::Padding, 0, 0, left);
            self.checkpoint();
        }
        self.claim(
            words
                .max(ENTRY_WORDS_MAX as u64)
                .min(self.ring.left(self.at)),
        );
    }

    #[inline]
    fn seal(&mut self) {
        if let Some(open) = self.open.take() {
            self.end(Kind::Records, open.channel, open.count, open.words);
        }
    }

    #[cold]
    fn checkpoint(&mut self) {
        let words = (1 + self.totals.len() * CHECKPOINT_WORDS) as u64;
        self.claim(words);
        for (index, totals) in self.totals.iter().enumerate() {
            self.put(1 + index * CHECKPOINT_WORDS, &totals.pack());
        }
        self.end(Kind::Checkpoint, 0, self.totals.len() as u16, words);
    }

    /// Announces to readers that these words are being written, so their old content is gone.
    #[inline]
    fn claim(&self, words: u64) {
        self.ring.words.claim(self.at + words);
    }

    #[inline]
    fn put(&self, offset: usize, words: &[u64]) {
        self.ring.words.put(self.at + offset as u64, words);
    }

    #[inline]
    fn end(&mut self, kind: Kind, channel: u16, count: u16, words: u64) {
        let head = Head {
            kind: kind as u8,
            channel,
            count,
            words: words as u32,
        };
        self.put(0, &[head.pack()]);
        self.at += words;
        self.ring.words.commit(self.at);
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.seal();
        self.ring.words.close();
        self.ring.notifier.notify();
    }
}
