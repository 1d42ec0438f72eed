//! The writer of a journal: a ring of segments, each starting with a snapshot of the core.

use std::sync::atomic::{Ordering::Release, compiler_fence};

use serde::Serialize;
use thiserror::Error;

use crate::layout::{
    EntryKind, FILE_HEAD_LEN, JOURNAL_LEN_MIN, JournalOrigin, Note, RECORD_MAGIC, RECORD_VERSION,
    SEGMENT_HEAD_LEN, SEGMENTS, segment,
};
use crate::outputs::Outputs;
use tickcast_reliability::control::{FRAME_HEAD_LEN, Message, NACK_RANGES_MAX};
use tickcast_reliability::delivery::{Deliver, Event, Item, Position};
use tickcast_reliability::record::Records;
use tickcast_reliability::types::{ChannelId, Nanos, State};
use tickcast_reliability::wire::HEADER_LEN;
use tickcast_reliability::wire::authentication::Key;

/// Memory that holds a journal. Other processes may read it concurrently through the file behind it.
pub trait Area: Send {
    /// Returns the whole memory.
    fn bytes(&mut self) -> &mut [u8];
}

impl Area for Vec<u8> {
    fn bytes(&mut self) -> &mut [u8] {
        self
    }
}

/// Why a journal cannot be written. The cause is a wrong size or name in the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum JournalError {
    /// The memory is too small for the segments.
    #[error("a journal of {len} bytes is too small; make it at least {JOURNAL_LEN_MIN} bytes")]
    TooSmall {
        /// Length of the memory, in bytes.
        len: usize,
    },
    /// The origin does not fit in the file head.
    #[error(
        "the name of the recording process is too long for the head of a journal; choose a shorter name"
    )]
    Origin,
}

/// Writer of a journal.
pub struct JournalWriter {
    area: Box<dyn Area>,
    segment_len: usize,
    /// Index of the current segment in the ring, and its number within the run.
    segment: usize,
    generation: u64,
    /// Offsets: begin of the current segment, next entry, end of the room for inputs.
    base: usize,
    at: usize,
    inputs_end: usize,
    /// Time of the last entry.
    pub(crate) last: Nanos,
    pub(crate) inputs: u64,
    pub(crate) outputs: Outputs,
    /// Buffer for serializing a body.
    pub(crate) scratch: Vec<u8>,
}

/// Length of an entry with the header of a datagram, in bytes.
const DATA_LEN: usize = 8 + HEADER_LEN;
/// Bytes reserved for the outputs of one input, beside the input.
const OUTPUTS_LEN: usize = 24 << 10;
/// Part of `OUTPUTS_LEN` reserved for short outputs, because a replay needs all of them.
const SHORT_OUTPUTS_LEN: usize = 8 << 10;
/// Greatest number of sent frame bytes kept in one entry: room for a NACK with the most ranges and the
/// frames sent with it. Request frames are whole words long, so a cut at this length falls inside a
/// frame.
pub(crate) const FRAMES_LEN_MAX: usize = (6 << 10) - 4;
const _: () = assert!(FRAMES_LEN_MAX > FRAME_HEAD_LEN + 16 + NACK_RANGES_MAX * 16);
/// Greatest length of the fixed-length entries of one call of a publisher's core, in bytes.
const CALL_LEN_MAX: usize = 1024;
/// Greatest length of a serialized event, in bytes.
const EVENT_LEN_MAX: usize = 4096;

impl JournalWriter {
    /// Starts a new journal in this memory.
    ///
    /// # Errors
    /// [`JournalError::TooSmall`] when the memory is too small. [`JournalError::Origin`] when `origin`
    /// does not fit in the file head.
    pub fn new(mut area: Box<dyn Area>, origin: &JournalOrigin) -> Result<Self, JournalError> {
        let bytes = area.bytes();
        let len = bytes.len();
        if len < JOURNAL_LEN_MIN {
            return Err(JournalError::TooSmall { len });
        }
        let segment_len = (len - FILE_HEAD_LEN) / SEGMENTS / 64 * 64;
        // Invalidate the previous journal before the new head is written.
        bytes[..FILE_HEAD_LEN].fill(0);
        for nth in 0..SEGMENTS {
            let base = FILE_HEAD_LEN + nth * segment_len;
            put_word(bytes, base + segment::GENERATION, 0);
        }
        let head = &mut bytes[..FILE_HEAD_LEN];
        postcard::to_slice(origin, &mut head[64..]).map_err(|_| JournalError::Origin)?;
        head[8..12].copy_from_slice(&RECORD_VERSION.to_le_bytes());
        head[12..16].copy_from_slice(&(SEGMENTS as u32).to_le_bytes());
        put_word(head, 16, segment_len as u64);
        compiler_fence(Release);
        head[..8].copy_from_slice(&RECORD_MAGIC);
        Ok(Self {
            area,
            segment_len,
            segment: SEGMENTS - 1,
            generation: 0,
            base: 0,
            at: 0,
            inputs_end: 0,
            last: origin.began,
            inputs: 0,
            outputs: Outputs::default(),
            scratch: Vec::with_capacity(64 << 10),
        })
    }

    /// Returns the journal's bytes, as a file would hold them.
    #[must_use]
    pub fn into_bytes(mut self) -> Vec<u8> {
        self.area.bytes().to_vec()
    }

    /// Starts the log of outputs, for tests.
    pub fn keep_log(&mut self) {
        self.outputs.keep_log();
    }

    /// Returns the digest of the core's outputs so far.
    #[must_use]
    pub const fn outputs(&self) -> &Outputs {
        &self.outputs
    }

    /// Returns the number of inputs so far.
    #[must_use]
    pub const fn inputs(&self) -> u64 {
        self.inputs
    }

    /// Makes room for an input with a body of `body` bytes and for its outputs. Begins a new segment with the
    /// core's current state when the current segment has no room. Returns `false` when no segment is long
    /// enough.
    #[inline]
    pub(crate) fn make_room(&mut self, core: &impl State, now: Nanos, body: usize) -> bool {
        // 40 bytes: a time entry, an entry head, a body length.
        if self.at + body + 40 > self.inputs_end {
            return self.begin_segment(core, now, body);
        }
        true
    }

    #[cold]
    pub(crate) fn begin_segment(&mut self, core: &impl State, now: Nanos, body: usize) -> bool {
        if body > self.segment_len / 4 {
            return false;
        }
        self.segment = (self.segment + 1) % SEGMENTS;
        self.base = FILE_HEAD_LEN + self.segment * self.segment_len;
        self.generation += 1;
        self.last = now;
        let area = self.area.bytes();
        let bytes = &mut area[self.base..self.base + self.segment_len];
        put_word(bytes, segment::GENERATION, 0);
        compiler_fence(Release);
        // The snapshot gets at most half a segment; the rest is for entries.
        let snapshot = &mut bytes[SEGMENT_HEAD_LEN..self.segment_len / 2];
        let len = core.take_down(snapshot).unwrap_or(0);
        let crc = crc32c::crc32c(&snapshot[..len]);
        let entries = SEGMENT_HEAD_LEN + len.next_multiple_of(8);
        put_word(bytes, segment::COMMITTED, entries as u64);
        put_word(bytes, segment::FIRST_AT, now.0);
        put_word(bytes, segment::DIGEST, self.outputs.digest());
        put_word(bytes, segment::SNAPSHOT_LEN, len as u64);
        put_word(bytes, segment::INPUTS, self.inputs);
        put_word(bytes, segment::SNAPSHOT_CRC, crc.into());
        compiler_fence(Release);
        put_word(bytes, segment::GENERATION, self.generation);
        self.at = self.base + entries;
        self.inputs_end = self.base + self.segment_len - OUTPUTS_LEN;
        true
    }

    /// Returns the eight-byte head of an entry. Writes a full time before it when the difference overflows.
    #[inline]
    pub(crate) fn head(&mut self, now: Nanos, kind: EntryKind, a: u8, b: u16) -> [u8; 8] {
        let since = now.0.wrapping_sub(self.last.0);
        let since = match u32::try_from(since) {
            Ok(since) => since,
            Err(_) => {
                self.put_time(now);
                0
            }
        };
        self.last = now;
        let [b0, b1] = b.to_le_bytes();
        let [t0, t1, t2, t3] = since.to_le_bytes();
        [kind as u8, a, b0, b1, t0, t1, t2, t3]
    }

    #[cold]
    pub(crate) fn put_time(&mut self, now: Nanos) {
        self.put(&[EntryKind::Time as u8, 0, 0, 0, 0, 0, 0, 0]);
        self.put(&now.0.to_le_bytes());
        self.commit();
    }

    #[inline]
    pub(crate) fn put(&mut self, bytes: &[u8]) {
        self.area.bytes()[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }

    /// Commits all bytes put so far.
    #[inline]
    pub(crate) fn commit(&mut self) {
        let (base, at) = (self.base, self.at);
        commit(self.area.bytes(), base, at);
    }

    /// Records an input without a body.
    #[inline]
    pub(crate) fn short(&mut self, core: &impl State, now: Nanos, kind: EntryKind) {
        self.make_room(core, now, 0);
        self.inputs += 1;
        let head = self.head(now, kind, 0, self.outputs.check());
        self.put(&head);
        self.commit();
    }

    /// Records the header of a datagram. This is the most frequent entry, so it has its own fast path.
    #[inline]
    pub(crate) fn data(
        &mut self,
        core: &impl State,
        now: Nanos,
        (a, b): (u8, u16),
        header: &[u8; HEADER_LEN],
    ) {
        let since = now.0.wrapping_sub(self.last.0);
        if self.at + DATA_LEN > self.inputs_end || since > u32::MAX.into() {
            return self.data_elsewhere(core, now, (a, b), header);
        }
        self.last = now;
        self.inputs += 1;
        let kind = u64::from(EntryKind::Data as u8);
        let head = kind | u64::from(a) << 8 | u64::from(b) << 16 | since << 32;
        let (base, at) = (self.base, self.at);
        let area = self.area.bytes();
        if let Some(entry) = area.get_mut(at..at + DATA_LEN) {
            entry[..8].copy_from_slice(&head.to_le_bytes());
            entry[8..].copy_from_slice(header);
            self.at = at + DATA_LEN;
            commit(area, base, self.at);
        }
    }

    /// Returns where the last entry ends.
    #[inline]
    pub(crate) const fn end(&self) -> usize {
        self.at
    }

    /// Sets bits in the head of the entry with the header of a datagram that ends here.
    #[cold]
    pub(crate) fn set_bits(&mut self, end: usize, bits: u8) {
        self.area.bytes()[end - DATA_LEN + 1] |= bits;
    }

    /// Records the header of a datagram when a new segment or a full time must come first.
    #[cold]
    pub(crate) fn data_elsewhere(
        &mut self,
        core: &impl State,
        now: Nanos,
        (a, b): (u8, u16),
        header: &[u8; HEADER_LEN],
    ) {
        self.make_room(core, now, HEADER_LEN);
        self.inputs += 1;
        let head = self.head(now, EntryKind::Data, a, b);
        self.put(&head);
        self.put(header);
        self.commit();
    }

    /// Makes room for the entries of one call of a publisher's core. Call it before the call, because a new
    /// segment begins with the state before the call.
    #[inline]
    pub(crate) fn make_room_for_call(&mut self, core: &impl State, now: Nanos) {
        if self.at + CALL_LEN_MAX > self.inputs_end {
            self.begin_segment(core, now, 0);
        }
    }

    /// Records an entry with a body of fixed length. The caller must have made room.
    #[inline]
    pub(crate) fn fixed<const LEN: usize>(
        &mut self,
        now: Nanos,
        (kind, a, b): (EntryKind, u8, u16),
        body: &[u8; LEN],
    ) {
        let mut since = now.0.wrapping_sub(self.last.0);
        if since > u32::MAX.into() {
            self.put_time(now);
            since = 0;
        }
        self.last = now;
        self.inputs += 1;
        let head = u64::from(kind as u8) | u64::from(a) << 8 | u64::from(b) << 16 | since << 32;
        let (base, at) = (self.base, self.at);
        let area = self.area.bytes();
        if let Some(entry) = area.get_mut(at..at + 8 + LEN) {
            entry[..8].copy_from_slice(&head.to_le_bytes());
            entry[8..].copy_from_slice(body);
            self.at = at + 8 + LEN;
            commit(area, base, self.at);
        }
    }

    /// Records a rare input of variable length in the postcard format, and makes room for its outputs.
    #[cold]
    pub(crate) fn rare(
        &mut self,
        core: &impl State,
        now: Nanos,
        head: (EntryKind, u8, u16),
        what: &impl Serialize,
    ) {
        if self.make_room(core, now, EVENT_LEN_MAX + CALL_LEN_MAX) {
            self.rare_output(now, head, what);
        }
    }

    /// Records an output of a call in the postcard format. The caller must have made room.
    #[cold]
    pub(crate) fn rare_output(
        &mut self,
        now: Nanos,
        head: (EntryKind, u8, u16),
        what: &impl Serialize,
    ) {
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.resize(EVENT_LEN_MAX, 0);
        let len = postcard::to_slice(what, &mut scratch).map_or(0, |it| it.len());
        if len > 0 {
            self.inputs += 1;
            self.put_long(now, head, [&scratch[..len], &[]]);
        }
        scratch.clear();
        self.scratch = scratch;
    }

    /// Records an input with a body of variable length, in two parts. Records
    /// [`JournalInput::Unrecorded`] instead when the body is too long for a segment.
    pub(crate) fn long(
        &mut self,
        core: &impl State,
        now: Nanos,
        (kind, a, b): (EntryKind, u8, u16),
        parts: [&[u8]; 2],
    ) {
        if !self.make_room(core, now, parts[0].len() + parts[1].len()) {
            return self.short(core, now, EntryKind::Unrecorded);
        }
        self.inputs += 1;
        self.put_long(now, (kind, a, b), parts);
    }

    pub(crate) fn put_long(
        &mut self,
        now: Nanos,
        (kind, a, b): (EntryKind, u8, u16),
        parts: [&[u8]; 2],
    ) {
        let head = self.head(now, kind, a, b);
        let len = parts[0].len() + parts[1].len();
        self.put(&head);
        self.put(&u64::from(len as u32).to_le_bytes());
        parts.into_iter().for_each(|part| self.put(part));
        self.put(&[0; 8][..len.next_multiple_of(8) - len]);
        self.commit();
    }

    /// Records an input in its serialized form. An input without one cannot be replayed, so its entry ends
    /// the replay.
    #[cold]
    pub(crate) fn input(&mut self, core: &impl State, now: Nanos, input: &impl Serialize) {
        let mut body = [0; 64];
        match postcard::to_slice(input, &mut body) {
            Ok(body) => {
                let head = (EntryKind::Input, 0, self.outputs.check());
                self.long(core, now, head, [body, &[]]);
            }
            Err(_) => self.short(core, now, EntryKind::Unrecorded),
        }
    }

    /// Returns the frame of a message in the scratch buffer, which the caller puts back. The names of
    /// instruments in a WELCOME are for the application alone, so the frame omits them.
    pub(crate) fn frame_of(&mut self, channel: ChannelId, message: &Message<'_>) -> Vec<u8> {
        let mut frame = std::mem::take(&mut self.scratch);
        frame.clear();
        if let Message::Welcome(welcome) = message {
            let mut welcome = welcome.clone();
            for offer in &mut welcome.channels {
                offer.directory.clear();
                offer.redact();
            }
            Message::Welcome(welcome).write(channel, &mut frame);
        } else if let Message::Key(announced) = message {
            // A journal holds no key: a replay takes the verdicts on tags from it.
            let mut announced = announced.clone();
            announced.of.key = Key::REDACTED;
            Message::Key(announced).write(channel, &mut frame);
        } else {
            message.write(channel, &mut frame);
        }
        frame
    }

    /// Records a [`Note`], which is not an input of the core.
    #[cold]
    pub(crate) fn note(&mut self, core: &impl State, now: Nanos, note: &Note) {
        let mut body = [0; 64];
        let body = postcard::to_slice(note, &mut body).map_or(&[][..], |it| it);
        self.make_room(core, now, body.len());
        self.put_long(now, (EntryKind::Note, 0, 0), [body, &[]]);
    }

    /// Returns whether an output with a body of `body` bytes fits and leaves `spare` bytes.
    pub(crate) const fn has_room(&self, body: usize, spare: usize) -> bool {
        self.at + body + 40 + spare <= self.base + self.segment_len
    }

    /// Records an output without a body.
    pub(crate) fn short_output(&mut self, kind: EntryKind) {
        if self.has_room(0, 0) {
            let head = self.head(self.last, kind, 0, self.outputs.check());
            self.put(&head);
            self.commit();
        }
    }

    pub(crate) fn sent(&mut self, path: u8, frames: &[u8]) {
        let kept = &frames[..frames.len().min(FRAMES_LEN_MAX)];
        // Without room for the frames, record an empty entry: a replay needs to know that frames were sent.
        let kept = match self.has_room(kept.len(), SHORT_OUTPUTS_LEN) {
            true => kept,
            false => &[],
        };
        if self.has_room(kept.len(), 0) {
            let check = self.outputs.check();
            self.put_long(self.last, (EntryKind::Sent, path, check), [kept, &[]]);
        }
    }

    /// Records an event emitted to the application.
    #[cold]
    pub(crate) fn event(&mut self, at: &Position, event: &Event) {
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.resize(EVENT_LEN_MAX, 0);
        let emitted = (at.channel, at.epoch, at.sequence, event);
        let len = postcard::to_slice(&emitted, &mut scratch).map_or(0, |it| it.len());
        scratch.truncate(len);
        self.outputs.event(at, event, &scratch);
        let kept = !scratch.is_empty() && self.has_room(scratch.len(), SHORT_OUTPUTS_LEN);
        if kept {
            let channel = at.channel.0;
            self.put_long(self.last, (EntryKind::Event, 0, channel), [&scratch, &[]]);
        }
        scratch.clear();
        self.scratch = scratch;
    }

    pub(crate) fn witness<'a, D: Deliver>(&'a mut self, on: &'a mut D) -> Witness<'a, D> {
        Witness {
            on,
            journal: self,
            has_delivered: false,
        }
    }
}

/// Commits a segment's entries up to `at`.
#[inline]
fn commit(area: &mut [u8], base: usize, at: usize) {
    // Stores of a killed process survive in program order, so only the compiler must not reorder them.
    compiler_fence(Release);
    put_word(area, base + segment::COMMITTED, (at - base) as u64);
}

#[inline]
fn put_word(bytes: &mut [u8], at: usize, word: u64) {
    bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
}

/// Delivery target that passes items on to the caller's target and records them.
pub(crate) struct Witness<'a, D> {
    on: &'a mut D,
    journal: &'a mut JournalWriter,
    has_delivered: bool,
}

impl<D> Witness<'_, D> {
    /// Returns whether records were delivered at once.
    #[inline]
    pub(crate) const fn has_delivered(&self) -> bool {
        self.has_delivered
    }
}

impl<D: Deliver> Deliver for Witness<'_, D> {
    fn item(&mut self, item: Item<'_>) {
        match item {
            Item::Record(position, _) => self.journal.outputs.records(position, 1),
            Item::Event(position, event) => self.journal.event(position, event),
        }
        self.on.item(item);
    }

    #[inline]
    fn records(&mut self, first: &Position, records: Records<'_>) {
        self.has_delivered = true;
        self.journal.outputs.records(first, records.len());
        self.on.records(first, records);
    }
}
