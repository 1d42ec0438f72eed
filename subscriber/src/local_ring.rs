//! The local ring of a split subscriber: one writer that never waits, any number of readers of
//! their own positions, and a reader that is lapped learns exactly what it missed.
//!
//! The ring is words, all of them atomic; what stands in it are entries of variable length at
//! positions that only grow. The writer says how far it *claims* before it writes and how far it
//! has *committed* after; a reader copies an entry and then looks whether the claim has reached it
//! meanwhile: if not, it copied what was committed. (A claim that a reader sees late is ordered by
//! the two fences, as in [`tickcast_reliability::ring`].)
//!
//! The ring is divided into segments that no entry crosses. Each begins with a checkpoint: how
//! much had been delivered of every channel. A lapped reader goes on at a checkpoint, and the
//! difference to what it has read is what it missed.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64, fence};

use tickcast_reliability::delivery::{Event, Overrun, Place, Position};
use tickcast_reliability::record::{RecordRef, words_as_bytes};
use tickcast_reliability::units::{ChannelId, Epoch, RecordNumber, Sequence};

use crate::bell::Bell;
use crate::packed::{POSITION_WORDS, pack, unpack};

/// The smallest ring, in bytes.
pub(crate) const SIZE_MIN: usize = 1 << 20;
/// The largest.
pub(crate) const SIZE_MAX: usize = 1 << 36;
/// The longest entry, in words; longer runs of records become several.
const ENTRY_WORDS_MAX: usize = 1024;
const SEGMENT_WORDS_MIN: u64 = 8192;
/// Room for the longest entry, and for a checkpoint of as many channels as can be joined.
const BUFFER_WORDS: usize = 4096;
const SEGMENTS: u64 = 16;
const CHECKPOINT_WORDS: usize = 8;
/// What a reader that was lapped leaves between itself and the writer, in segments.
const MARGIN: u64 = SEGMENTS / 4;

/// What an entry is; in the lowest byte of its first word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Kind {
    /// Nothing, up to the end of the segment.
    Padding = 1,
    Checkpoint = 2,
    Records = 3,
    Event = 4,
    /// A cell of a `latest` channel changed.
    Changed = 5,
}

/// The first word of an entry: kind (8 bits), channel index (16), count (16), length in words (24).
#[derive(Clone, Copy)]
struct Head {
    kind: u8,
    channel: u16,
    count: u16,
    words: u32,
}

impl Head {
    const fn pack(self) -> u64 {
        self.kind as u64
            | (self.channel as u64) << 8
            | (self.count as u64) << 24
            | (self.words as u64) << 40
    }

    const fn unpack(word: u64) -> Self {
        Self {
            kind: word as u8,
            channel: (word >> 8) as u16,
            count: (word >> 24) as u16,
            words: (word >> 40) as u32,
        }
    }
}

/// How much of a channel has been delivered, or read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) channel: ChannelId,
    pub(crate) records: u64,
    pub(crate) events: u64,
    lost_records: u64,
    losses_of_unknown_size: u64,
    /// The last datagram, and the next record.
    pub(crate) place: Place,
}

impl Totals {
    #[inline]
    pub(crate) const fn record(&mut self, position: &Position) {
        self.channel = position.channel;
        self.records += 1;
        self.place = position.place();
        self.place.record = position.record.plus(1);
    }

    pub(crate) fn event(&mut self, position: &Position, event: &Event) {
        self.channel = position.channel;
        self.events += 1;
        self.place = position.place();
        if let Event::Lost(loss) = event {
            self.lost_records += loss.records.unwrap_or(0);
            self.losses_of_unknown_size += u64::from(loss.records.is_none());
        }
    }

    /// What lies between a reader's totals and these, which it takes over.
    fn catch_up(&mut self, to: Self) -> Option<Overrun> {
        let from = std::mem::replace(self, to);
        let overrun = Overrun {
            from: from.place,
            to: to.place,
            records: to.records - from.records,
            events: to.events - from.events,
            lost_records: to.lost_records - from.lost_records,
            losses_of_unknown_size: to.losses_of_unknown_size - from.losses_of_unknown_size,
        };
        (overrun.records > 0 || overrun.events > 0).then_some(overrun)
    }

    const fn pack(&self) -> [u64; CHECKPOINT_WORDS] {
        [
            self.channel.0 as u64,
            self.records,
            self.events,
            self.lost_records,
            self.losses_of_unknown_size,
            self.place.epoch.0,
            self.place.sequence.0,
            self.place.record.0,
        ]
    }

    const fn unpack(words: &[u64; CHECKPOINT_WORDS]) -> Self {
        let [
            channel,
            records,
            events,
            lost_records,
            unknown,
            epoch,
            sequence,
            record,
        ] = *words;
        Self {
            channel: ChannelId(channel as u16),
            records,
            events,
            lost_records,
            losses_of_unknown_size: unknown,
            place: Place {
                epoch: Epoch(epoch),
                sequence: Sequence(sequence),
                record: RecordNumber(record),
            },
        }
    }
}

/// The memory that writer and readers share.
#[derive(Debug)]
pub(crate) struct LocalRing {
    words: Box<[AtomicU64]>,
    segment_words: u64,
    /// Everything below may be written at any time, but for what the ring holds.
    claimed: AtomicU64,
    /// Everything below has been written.
    committed: AtomicU64,
    closed: AtomicBool,
    pub(crate) bell: Bell,
}

impl LocalRing {
    fn new(size_bytes: usize) -> Self {
        let bytes = size_bytes.clamp(SIZE_MIN, SIZE_MAX).next_power_of_two();
        let words = (bytes / size_of::<u64>()) as u64;
        Self {
            words: (0..words).map(|_| AtomicU64::new(0)).collect(),
            segment_words: (words / SEGMENTS).max(SEGMENT_WORDS_MIN),
            claimed: AtomicU64::new(0),
            committed: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            bell: Bell::default(),
        }
    }

    #[inline]
    fn word(&self, at: u64) -> &AtomicU64 {
        &self.words[at as usize & (self.words.len() - 1)]
    }

    const fn len(&self) -> u64 {
        self.words.len() as u64
    }

    /// Words up to the end of the segment that `at` lies in.
    const fn left(&self, at: u64) -> u64 {
        self.segment_words - at % self.segment_words
    }

    /// Whether the writer has left, and said all it had to.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Acquire)
    }
}

/// Writes the ring. Dropping it tells the readers that nothing follows.
#[derive(Debug)]
pub(crate) struct Writer {
    ring: Arc<LocalRing>,
    /// Where the next entry begins, or the open one.
    at: u64,
    open: Option<Open>,
    totals: Box<[Totals]>,
    text: Vec<u8>,
}

/// An entry of records that more can be added to.
#[derive(Debug)]
struct Open {
    channel: u16,
    /// Of the first record in it; and what the next one must have to be added.
    position: Position,
    next: RecordNumber,
    count: u16,
    words: u64,
}

impl Writer {
    /// A ring of at least `size_bytes` for so many channels, and its first reader.
    pub(crate) fn new(size_bytes: usize, channels: usize) -> (Self, Cursor) {
        let ring = Arc::new(LocalRing::new(size_bytes));
        let totals: Box<[Totals]> = vec![Totals::default(); channels].into();
        let cursor = Cursor {
            ring: Arc::clone(&ring),
            at: 0,
            totals: totals.clone(),
            buffer: vec![0; BUFFER_WORDS],
        };
        let writer = Self {
            ring,
            at: 0,
            open: None,
            totals,
            text: Vec::with_capacity(4096),
        };
        (writer, cursor)
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
            let value = u64::from_ne_bytes(value);
            self.ring.word(at).store(value, Relaxed);
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
        // invariant: writing numbers and names to memory does not fail, and the longest event, a
        // source loss that names 128 instruments, is far from filling an entry.
        let _ = serde_json::to_writer(&mut text, event);
        let words = 1 + POSITION_WORDS + text.len().div_ceil(size_of::<u64>());
        self.begin(words as u64);
        self.put(1, &pack(position));
        let chunks = text.chunks(size_of::<u64>());
        for (chunk, at) in chunks.zip(self.at + 1 + POSITION_WORDS as u64..) {
            let mut value = [0; size_of::<u64>()];
            value[..chunk.len()].copy_from_slice(chunk);
            self.ring.word(at).store(u64::from_ne_bytes(value), Relaxed);
        }
        self.end(Kind::Event, channel as u16, text.len() as u16, words as u64);
        self.totals[channel].event(position, event);
        self.text = text;
    }

    /// Adds that a cell of a `latest` channel changed.
    #[inline]
    pub(crate) fn changed(&mut self, channel: usize, cell: u32) {
        self.begin(2);
        self.put(1, &[cell.into()]);
        self.end(Kind::Changed, channel as u16, 0, 2);
    }

    /// Lets readers have everything so far, and wakes those that wait.
    #[inline]
    pub(crate) fn flush(&mut self) {
        self.seal();
        self.ring.bell.ring();
    }

    /// Ends the open entry and claims room for one of at most so many words, or more if records
    /// are to be added to it.
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

    /// Tells readers that these words are being written: what they hold is gone.
    #[inline]
    fn claim(&self, words: u64) {
        self.ring.claimed.store(self.at + words, Relaxed);
        // Who reads any word written from here on finds the claim.
        fence(Release);
    }

    #[inline]
    fn put(&self, offset: usize, words: &[u64]) {
        for (word, at) in words.iter().zip(self.at + offset as u64..) {
            self.ring.word(at).store(*word, Relaxed);
        }
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
        self.ring.committed.store(self.at, Release);
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.seal();
        self.ring.closed.store(true, Release);
        self.ring.bell.ring();
    }
}

/// One entry as it was read; its bytes are in the cursor's buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// So many records from [`Cursor::bytes`], the first of which stands here.
    Records(usize, Position, u16),
    Event(usize, Position, Event),
    Changed(usize, u32),
    /// What was overwritten of a channel.
    Overrun(usize, Position, Overrun),
    /// The reader was lapped: cells may have changed without a word.
    Lapped,
}

/// Reads the ring from a place of its own.
#[derive(Clone, Debug)]
pub(crate) struct Cursor {
    ring: Arc<LocalRing>,
    at: u64,
    /// What this reader has read, or was told it missed.
    totals: Box<[Totals]>,
    buffer: Vec<u64>,
}

impl Cursor {
    pub(crate) fn ring(&self) -> &LocalRing {
        &self.ring
    }

    pub(crate) fn totals_mut(&mut self, channel: usize) -> &mut Totals {
        &mut self.totals[channel]
    }

    pub(crate) const fn totals(&self) -> &[Totals] {
        &self.totals
    }

    /// Whether there is something to read.
    #[inline]
    pub(crate) fn is_ready(&self) -> bool {
        self.ring.committed.load(Acquire) != self.at
    }

    /// The bytes of the records of the last entry, from a word on.
    pub(crate) fn bytes(&self, from_word: usize, words: usize) -> &[u8] {
        words_as_bytes(&self.buffer[from_word..from_word + words])
    }

    /// Reads the next entry. Tells one overrun a call where a checkpoint shows several.
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
                // It is read again until it shows nothing new.
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

    /// Copies the entry at this place to the buffer; `None` when it is being overwritten.
    #[inline]
    fn copy(&mut self) -> Option<Head> {
        let head = self.ring.word(self.at).load(Relaxed);
        self.still_there()?;
        let words = Head::unpack(head).words as usize;
        self.buffer[0] = head;
        if Head::unpack(head).kind == Kind::Padding as u8 {
            return Some(Head::unpack(head));
        }
        for (word, at) in self.buffer[..words].iter_mut().zip(self.at..) {
            *word = self.ring.word(at).load(Relaxed);
        }
        self.still_there()?;
        Some(Head::unpack(head))
    }

    /// Whether nothing was written since over what was just read.
    #[inline]
    fn still_there(&self) -> Option<()> {
        fence(Acquire);
        (self.ring.claimed.load(Relaxed) <= self.at + self.ring.len()).then_some(())
    }

    /// Goes on at a checkpoint that will be there for a while.
    #[cold]
    fn skip_ahead(&mut self) {
        let ring = &self.ring;
        let committed = ring.committed.load(Acquire);
        let oldest = committed
            .saturating_sub(ring.len())
            .next_multiple_of(ring.segment_words);
        self.at = oldest + MARGIN * ring.segment_words;
    }

    /// What the checkpoint in the buffer says of the first channel that this reader is behind of.
    fn compare(&mut self) -> Option<Entry> {
        for (index, totals) in self.totals.iter_mut().enumerate() {
            let at = 1 + index * CHECKPOINT_WORDS;
            let words: &[u64; CHECKPOINT_WORDS] = self.buffer[at..].first_chunk()?;
            let told = Totals::unpack(words);
            if let Some(overrun) = totals.catch_up(told) {
                let position = position_at(&told);
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

/// Where words of records begin in an entry.
pub(crate) const RECORDS_AT: usize = 1 + POSITION_WORDS;

/// The position of an event that stands where these totals were taken.
pub(crate) fn position_at(totals: &Totals) -> Position {
    let mut words = [0; POSITION_WORDS];
    words[0] = totals.channel.0.into();
    let mut position = unpack(&words);
    position.via = tickcast_reliability::delivery::Via::Repair;
    position.epoch = totals.place.epoch;
    position.sequence = totals.place.sequence;
    position.record = totals.place.record;
    position
}

#[cfg(test)]
mod tests {
    use super::*;
    use tickcast_reliability::delivery::{Quality, Via};
    use tickcast_reliability::loss::{Loss, LossCause};
    use tickcast_reliability::record::{InstrumentDefMsg, MboMsg, Records};
    use tickcast_reliability::units::{Nanos, SequenceRange, SourceId, SourcePosition};

    fn position(channel: u16, epoch: u64, record: u64) -> Position {
        Position {
            channel: ChannelId(channel),
            epoch: Epoch(epoch),
            sequence: Sequence(1 + record / 25),
            record: RecordNumber(record),
            via: Via::Repair,
            quality: Quality::default(),
            source: SourceId(1),
            source_position: SourcePosition(record / 25),
            sent_at: Nanos(1),
            received_at: Nanos(2),
            missing_for: Nanos(0),
        }
    }

    /// Writes a record whose content follows from its number.
    fn write(writer: &mut Writer, channel: usize, epoch: u64, number: u64) {
        let mbo = MboMsg {
            order_id: number,
            price: number.wrapping_mul(0x9e37_79b9_7f4a_7c15) as i64,
            ..MboMsg::default()
        };
        let position = position(channel as u16, epoch, number);
        writer.record(channel, &position, RecordRef::from(&mbo));
    }

    fn lost(writer: &mut Writer, channel: usize, epoch: u64, at: u64, records: Option<u64>) {
        let sequences = SequenceRange::one(Sequence(at));
        let cause = LossCause::Window;
        let loss = Loss {
            sequences,
            records,
            cause,
        };
        let position = position(channel as u16, epoch, at);
        writer.event(channel, &position, &Event::Lost(loss));
    }

    /// What a reader made of it.
    #[derive(Debug, Default)]
    struct Read {
        records: Vec<(usize, u64, u64)>,
        events: Vec<(usize, Event)>,
        overruns: Vec<(usize, Overrun)>,
        lapped: u64,
    }

    impl Read {
        fn all(&mut self, cursor: &mut Cursor) {
            while self.one(cursor) {}
        }

        fn one(&mut self, cursor: &mut Cursor) -> bool {
            match cursor.next() {
                None => return false,
                Some(Entry::Records(channel, mut position, count)) => {
                    let words = usize::from(count) * 7;
                    let bytes = cursor.bytes(RECORDS_AT, words).to_vec();
                    let mut aligned = vec![0; words];
                    tickcast_reliability::record::words_as_bytes_mut(&mut aligned)
                        .copy_from_slice(&bytes);
                    let bytes = words_as_bytes(&aligned);
                    for record in Records::check(bytes, count.into()).unwrap() {
                        let mbo = record.get::<MboMsg>().unwrap();
                        let expected = mbo.order_id.wrapping_mul(0x9e37_79b9_7f4a_7c15) as i64;
                        assert_eq!((mbo.order_id, mbo.price), (position.record.0, expected));
                        self.records
                            .push((channel, position.epoch.0, position.record.0));
                        cursor.totals_mut(channel).record(&position);
                        position.record = position.record.plus(1);
                    }
                }
                Some(Entry::Event(channel, position, event)) => {
                    cursor.totals_mut(channel).event(&position, &event);
                    self.events.push((channel, event));
                }
                Some(Entry::Overrun(channel, position, overrun)) => {
                    assert_eq!(position.place(), overrun.to);
                    self.overruns.push((channel, overrun));
                }
                Some(Entry::Lapped) => self.lapped += 1,
                Some(Entry::Changed(..)) => {}
            }
            true
        }

        fn sum(&self, channel: usize, of: impl Fn(&Overrun) -> u64) -> u64 {
            let of_it = self.overruns.iter().filter(|(it, _)| *it == channel);
            of_it.map(|(_, overrun)| of(overrun)).sum()
        }

        fn records_of(&self, channel: usize) -> u64 {
            self.records
                .iter()
                .filter(|(it, ..)| *it == channel)
                .count() as u64
        }
    }

    #[test]
    fn a_reader_that_keeps_up_reads_all_there_was_in_order() {
        let (mut writer, mut cursor) = Writer::new(SIZE_MIN, 2);
        let mut read = Read::default();
        let mut expected = Vec::new();
        for number in 1..=200_000 {
            let channel = usize::from(number % 3 == 0);
            write(&mut writer, channel, 5, number);
            expected.push((channel, 5, number));
            if number % 1_000 == 0 {
                lost(&mut writer, channel, 5, number, Some(1));
                writer.flush();
                read.all(&mut cursor);
            }
        }
        assert_eq!(read.records, expected);
        assert_eq!(
            (read.events.len(), read.overruns.len(), read.lapped),
            (200, 0, 0)
        );
    }

    #[test]
    fn a_run_of_records_of_one_datagram_is_one_entry_and_another_position_begins_another() {
        let (mut writer, mut cursor) = Writer::new(SIZE_MIN, 1);
        // Of one datagram but with a hole: a filter left one out.
        for number in [25, 26, 28, 29, 50] {
            write(&mut writer, 0, 5, number);
        }
        assert!(!cursor.is_ready() || cursor.next().is_some());
        writer.flush();
        let mut counts = Vec::new();
        while let Some(entry) = cursor.next() {
            let Entry::Records(_, position, count) = entry else {
                panic!("{entry:?}")
            };
            counts.push((position.record.0, count));
            for n in 0..u64::from(count) {
                let mut at = position;
                at.record = at.record.plus(n);
                cursor.totals_mut(0).record(&at);
            }
        }
        assert_eq!(counts.last(), Some(&(50, 1)));
        let definition = InstrumentDefMsg::default();
        writer.record(0, &position(0, 5, 51), RecordRef::from(&definition));
        drop(writer);
        assert_eq!(
            cursor.next(),
            Some(Entry::Records(0, position(0, 5, 51), 1))
        );
        let bytes = cursor.bytes(RECORDS_AT, 65);
        assert_eq!(bytes, AsRef::<[u8]>::as_ref(&definition));
        assert!(cursor.ring().is_closed() && !cursor.is_ready());
    }

    #[test]
    fn a_reader_that_was_lapped_is_told_exactly_what_it_missed_of_each_channel() {
        let (mut writer, mut cursor) = Writer::new(SIZE_MIN, 3);
        let mut read = Read::default();
        let (mut written, mut events) = ([0u64; 3], [0u64; 3]);
        let mut lost_records = 0;
        for (round, epoch) in [5u64, 6, 9].into_iter().enumerate() {
            for number in 1..=60_000 {
                let channel = usize::from(number % 4 == 0);
                write(&mut writer, channel, epoch, number);
                written[channel] += 1;
                if number % 10_000 == 0 {
                    let records = (number != 30_000).then_some(7);
                    lost(&mut writer, channel, epoch, number, records);
                    events[channel] += 1;
                    lost_records += records.unwrap_or(0);
                }
                if number == 40 && round == 0 {
                    writer.flush();
                    read.all(&mut cursor);
                    assert_eq!(read.records.len(), 40);
                }
            }
            writer.flush();
        }
        let before = read.records.len();
        read.all(&mut cursor);
        assert_eq!(read.lapped, 1);
        for channel in 0..3 {
            let records = read.records_of(channel) + read.sum(channel, |it| it.records);
            assert_eq!(records, written[channel], "channel {channel}");
            let read_events = read.events.iter().filter(|(it, _)| *it == channel).count() as u64;
            let told = read_events + read.sum(channel, |it| it.events);
            assert_eq!(told, events[channel], "channel {channel}");
        }
        assert_eq!(read.overruns.len(), 2, "nothing was written of channel 2");
        let (_, overrun) = read.overruns[0];
        assert_eq!((overrun.from.epoch, overrun.to.epoch), (Epoch(5), Epoch(9)));
        assert_eq!(overrun.from.record, RecordNumber(40));
        let seen_lost = read.events.iter().map(|(_, event)| match event {
            Event::Lost(loss) => loss.records.unwrap_or(0),
            other => panic!("{other}"),
        });
        let told: u64 = (0..2)
            .map(|channel| read.sum(channel, |it| it.lost_records))
            .sum();
        assert_eq!(told + seen_lost.sum::<u64>(), lost_records);
        let unknown = |it: &Overrun| it.losses_of_unknown_size;
        let of_each = (read.sum(0, unknown), read.sum(1, unknown));
        assert_eq!(of_each, (0, 3), "one of each epoch");
        // What follows the overruns is without a hole, from where they say.
        let mut next = [
            read.overruns[0].1.to.record.0,
            read.overruns[1].1.to.record.0,
        ];
        for (channel, epoch, record) in &read.records[before..] {
            assert!(*record >= next[*channel], "{record} of {channel}");
            assert_eq!(*epoch, 9);
            next[*channel] = record + 1;
        }
        assert_eq!(read.records.last(), Some(&(1, 9, 60_000)));
    }

    #[test]
    fn readers_of_any_speed_see_no_torn_entry_and_their_accounts_balance() {
        const RECORDS: u64 = 400_000;
        let (mut writer, cursor) = Writer::new(SIZE_MIN, 2);
        let readers: Vec<_> = [0u64, 300, 5_000]
            .into_iter()
            .map(|pause| {
                let mut cursor = cursor.clone();
                std::thread::spawn(move || {
                    let mut read = Read::default();
                    let mut spins = 0;
                    loop {
                        let closed = cursor.ring().is_closed();
                        if !read.one(&mut cursor) && closed {
                            return read;
                        }
                        for _ in 0..pause {
                            spins += 1;
                            std::hint::black_box(spins);
                        }
                    }
                })
            })
            .collect();
        for number in 1..=RECORDS {
            write(&mut writer, usize::from(number % 5 == 0), 1, number);
            if number % 1_000 == 0 {
                lost(&mut writer, 0, 1, number, None);
                writer.flush();
            }
            if number % 20_000 == 0 {
                std::thread::yield_now();
            }
        }
        drop(writer);
        for reader in readers {
            let read = reader.join().unwrap();
            let told = |channel| read.records_of(channel) + read.sum(channel, |it| it.records);
            assert_eq!((told(0), told(1)), (RECORDS / 5 * 4, RECORDS / 5));
            let events = read.events.len() as u64 + read.sum(0, |it| it.events);
            assert_eq!(events, RECORDS / 1_000);
            let order = read.records.windows(2).all(|pair| pair[0].2 < pair[1].2);
            assert!(order, "records come in order");
        }
    }

    #[test]
    fn writing_and_reading_allocate_nothing() {
        let (mut writer, mut cursor) = Writer::new(SIZE_MIN, 1);
        let mut count = 0;
        let counted = allocation_counter::measure(|| {
            for number in 1..=50_000 {
                write(&mut writer, 0, 1, number);
                writer.flush();
                while let Some(entry) = cursor.next() {
                    if let Entry::Records(_, mut at, records) = entry {
                        for _ in 0..records {
                            cursor.totals_mut(0).record(&at);
                            at.record = at.record.plus(1);
                            count += 1;
                        }
                    }
                }
            }
        });
        assert_eq!((count, counted.count_total), (50_000, 0), "{counted:?}");
    }
}
