//! The only writer of a ring. A slot is opened, then sealed, then never modified until the ring wraps
//! (docs/PROTOCOL.md §9).

use std::sync::Arc;

use super::{
    HEADER_WORDS, LINE_LEN, OwnWords, RingMemory, RingReader, SEQUENCE_WORD, WORD, Words,
    check_identity, checkpoint_check, checkpoint_offset, datagram_len, fan_out_offset,
    next_record_after, slot, split, words_of,
};
use crate::record::{WireRecord, headed, record_words};
use crate::ring::atomics::Ordering::{Relaxed, Release};
use crate::ring::atomics::{AtomicU64, fence};
use crate::ring::layout::{
    CHECKPOINTS_MAX, CONTROL_PAGE_LEN, Checkpoint, FAN_OUTS_MAX, Geometry, LAYOUT_VERSION,
    RING_MAGIC, RingError, RingIdentity, offset,
};
use crate::types::{
    FanOutId, Lineage, Nanos, RecordNumber, SEQUENCE_LAST, Sequence, SequenceRange, SourceId,
    SourcePosition,
};
use crate::wire::authentication::{ChannelKeys, Key, TAG_LEN, TAGGED_HEADER_LEN, Tagger};
use crate::wire::{HEADER_LEN, Header, Kind, PublisherState, crc_of, datagram_flags};

/// The caller's part of a datagram's header. The ring fills in the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seal {
    /// The kind, which must take a sequence.
    pub kind: Kind,
    /// Number of records.
    pub count: u16,
    /// The source of the messages.
    pub source: SourceId,
    /// Position of the last complete message.
    pub source_position: SourcePosition,
    /// Time of the seal, UTC.
    pub sent_at: Nanos,
    /// Bits of [`crate::wire::datagram_flags`].
    pub flags: u16,
}

/// Position of the next word of the open slot's payload, in words of the ring.
#[derive(Clone, Copy)]
pub(super) struct OpenSlot {
    begin: usize,
    at: usize,
    end: usize,
}

impl OpenSlot {
    /// Returns the number of bytes appended.
    const fn len(self) -> usize {
        (self.at - self.begin) * WORD
    }

    /// Returns the number of bytes that still fit.
    const fn room(self) -> usize {
        (self.end - self.at) * WORD
    }
}

/// The only writer of a ring. Not `Clone`: there is one for each ring.
pub struct RingWriter {
    pub(super) words: OwnWords,
    pub(super) identity: RingIdentity,
    /// The epochs that the ring's own epoch continues.
    pub(super) lineage: Lineage,
    pub(super) sealed: Sequence,
    pub(super) oldest: Sequence,
    pub(super) next_record: RecordNumber,
    pub(super) open: Option<OpenSlot>,
    /// Makes the tags of an authenticated channel.
    pub(super) tagger: Option<Box<Tagger>>,
    /// Place of the payload in a slot, in words: behind the header, and behind the tag if there is one.
    pub(super) payload_word: usize,
    pub(super) sources: [Option<SourceId>; CHECKPOINTS_MAX],
    /// The source of the last checkpoint, its place, and its check without the position.
    pub(super) kept: Option<(SourceId, usize, u64)>,
}

impl RingWriter {
    /// Creates an empty ring in `memory`, and overwrites its earlier content. The memory must not be shared:
    /// the ring has one writer, which makes the readers.
    ///
    /// # Errors
    /// [`RingError`] when the memory is shared, or memory or identity cannot hold a ring.
    pub fn create(
        mut memory: Arc<dyn RingMemory>,
        geometry: Geometry,
        identity: RingIdentity,
    ) -> Result<Self, RingError> {
        if Arc::get_mut(&mut memory).is_none() {
            return Err(RingError::Shared);
        }
        Self::create_in(memory, geometry, identity)
    }

    /// Creates a ring like [`RingWriter::create`], in memory that the caller knows to have no other writer.
    pub(crate) fn create_in(
        memory: Arc<dyn RingMemory>,
        geometry: Geometry,
        identity: RingIdentity,
    ) -> Result<Self, RingError> {
        check_identity(&identity)?;
        let mut words = OwnWords(Words::new(memory, geometry)?);
        words.store(offset::MAGIC, 0);
        fence(Release);
        for word in &words.0.all()[1..CONTROL_PAGE_LEN / WORD] {
            word.store(0, Relaxed);
        }
        for slot in 0..geometry.slots() {
            words.slot_mut(Sequence(slot))[SEQUENCE_WORD].store(0, Relaxed);
        }
        let (boot_low, boot_high) = split(identity.boot_id);
        let sealed = identity.first_sequence.previous();
        for (offset, value) in [
            (offset::LAYOUT, LAYOUT_VERSION),
            (offset::SLOT_LEN, geometry.slot_len() as u64),
            (offset::SLOTS, geometry.slots()),
            (offset::CHANNEL, identity.channel.0.into()),
            (offset::CONFIG_HASH, identity.config_hash.0),
            (offset::EPOCH, identity.epoch.0),
            (offset::BOOT_ID, boot_low),
            (offset::BOOT_ID + WORD, boot_high),
            (offset::FAN_OUTS, identity.fan_outs.into()),
            (offset::FIRST_SEQUENCE, identity.first_sequence.0),
            (offset::FIRST_RECORD, identity.first_record.0),
            (offset::SEALED, sealed.0),
            (offset::OLDEST, identity.first_sequence.0),
            (offset::NEXT_RECORD, identity.first_record.0),
            (offset::STATE, PublisherState::Live as u64),
        ] {
            words.store(offset, value);
        }
        for fan_out in 0..FAN_OUTS_MAX as u8 {
            words.store(fan_out_offset(FanOutId(fan_out)), sealed.0);
        }
        words.store(offset::MAGIC, RING_MAGIC);
        Ok(Self {
            words,
            identity,
            lineage: Lineage::default(),
            sealed,
            oldest: identity.first_sequence,
            next_record: identity.first_record,
            open: None,
            tagger: None,
            payload_word: HEADER_WORDS,
            sources: [None; CHECKPOINTS_MAX],
            kept: None,
        })
    }

    /// Opens the slot after the last sealed one and returns its sequence. The overwritten slot is no longer
    /// held from here on. Does nothing when a slot is already open.
    ///
    /// # Errors
    /// [`RingError::Exhausted`] after [`SEQUENCE_LAST`].
    #[inline]
    pub fn open(&mut self) -> Result<Sequence, RingError> {
        let sequence = self.sealed.next();
        if self.open.is_some() {
            return Ok(sequence);
        }
        if sequence > SEQUENCE_LAST {
            return Err(RingError::Exhausted);
        }
        let oldest = sequence.minus(self.words.0.geometry.slots() - 1);
        if oldest > self.oldest {
            self.oldest = oldest;
            self.words.store(offset::OLDEST, oldest.0);
        }
        let geometry = self.words.0.geometry;
        let (slot, len) = (
            geometry.slot_offset(sequence) / WORD,
            geometry.slot_len() / WORD,
        );
        slot::open(self.words.at_mut(slot, len));
        self.open = Some(OpenSlot {
            begin: slot + HEADER_WORDS,
            at: slot + self.payload_word,
            end: slot + len,
        });
        Ok(sequence)
    }

    /// Returns the number of bytes that still fit in the open slot; a whole payload when none is open.
    #[must_use]
    pub fn room(&self) -> usize {
        self.open.map_or(self.payload_max(), OpenSlot::room)
    }

    /// Returns the maximum length of a payload in bytes.
    #[must_use]
    #[inline]
    pub fn payload_max(&self) -> usize {
        self.words.0.geometry.slot_len() - self.payload_word * WORD
    }

    /// Returns whether a slot is open.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Appends `bytes` to the open slot. A length that is no multiple of 8 is padded with zeros, so that
    /// records stay aligned.
    ///
    /// # Errors
    /// [`RingError::SlotFull`] when they do not fit, [`RingError::NotOpen`] when no slot is open. Both are
    /// without effect.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), RingError> {
        let open = self.open.ok_or(RingError::NotOpen)?;
        let (len, room) = (bytes.len().next_multiple_of(WORD), open.room());
        if len > room {
            return Err(RingError::SlotFull { len, room });
        }
        let to = self.words.at_mut(open.at, len / WORD);
        slot::put(to, words_of(bytes));
        self.open = Some(OpenSlot {
            at: open.at + len / WORD,
            ..open
        });
        Ok(())
    }

    /// Appends whole words like [`append`](Self::append). Returns `false`, without effect, when no slot is
    /// open or they do not fit.
    #[inline]
    pub fn append_words(&mut self, words: &[u64]) -> bool {
        let Some(to) = self.place_for(words.len()) else {
            return false;
        };
        slot::put_words(to, words);
        true
    }

    /// Appends one record like [`append_words`](Self::append_words), with the type and length of `R`
    /// regardless of its header.
    #[inline]
    pub fn append_record<R: WireRecord>(&mut self, record: &R) -> bool {
        let words = record_words(record);
        let Some(to) = self.place_for(words.len()) else {
            return false;
        };
        slot::put(to, headed::<R>(words));
        true
    }

    /// Appends as many of these records as the open slot has room for, like
    /// [`append_record`](Self::append_record), and returns their number.
    #[inline]
    pub fn append_run<R: WireRecord>(&mut self, records: &[R]) -> usize {
        let words = R::LEN / WORD;
        let room = self.open.map_or(0, OpenSlot::room) / R::LEN;
        let run = &records[..room.min(records.len())];
        if let Some(to) = self.place_for(run.len() * words) {
            for (to, record) in to.chunks_exact(words).zip(run) {
                slot::put(to, headed::<R>(record_words(record)));
            }
        }
        run.len()
    }

    /// Returns the next `words` words of the open slot, which count as appended.
    #[inline]
    fn place_for(&mut self, words: usize) -> Option<&[AtomicU64]> {
        let open = self.open.as_mut()?;
        if words > open.end - open.at {
            return None;
        }
        let at = open.at;
        open.at += words;
        Some(self.words.at_mut(at, words))
    }

    /// Seals the open slot: header, CRC over the slot's own bytes, sequence last. From here on it is never
    /// modified until the ring wraps.
    ///
    /// # Errors
    /// [`RingError::NotOpen`] when no slot is open.
    pub fn seal(&mut self, seal: Seal) -> Result<Sequence, RingError> {
        self.seal_open(seal).map(|(sequence, _)| sequence)
    }

    /// Seals the open slot like [`seal`](Self::seal), and also returns the number of bytes behind the header.
    #[inline(always)]
    pub(crate) fn seal_open(&mut self, seal: Seal) -> Result<(Sequence, usize), RingError> {
        let open = self.open.take().ok_or(RingError::NotOpen)?;
        let len = open.len();
        if open.room() < LINE_LEN {
            self.fill_up(open);
        }
        let sequence = match self.tagger {
            None => self.seal_header(self.header_of(&seal, len), open),
            Some(_) => self.seal_tagged(seal, open),
        };
        self.sealed = sequence;
        self.next_record = self.next_record.plus(seal.count.into());
        self.words.store(offset::NEXT_RECORD, self.next_record.0);
        self.words.store(offset::SEALED, sequence.0);
        Ok((sequence, len))
    }

    /// Fills the rest of a slot with zeros. A sender may send full slots as one piece, with their rests.
    // Apart, so that nothing else of a seal leaves its registers.
    #[inline(never)]
    fn fill_up(&mut self, open: OpenSlot) {
        let rest = self.words.at_mut(open.at, open.end - open.at);
        slot::put(rest, std::iter::repeat(0));
    }

    /// Returns the header of the next datagram, without a tag and with this length behind the header.
    #[inline(always)]
    fn header_of(&self, seal: &Seal, len: usize) -> Header {
        let sequence = self.sealed.next();
        Header {
            kind: seal.kind,
            channel: self.identity.channel,
            count: seal.count,
            epoch: self.identity.epoch,
            sequence,
            first_record: self.next_record,
            source_position: seal.source_position,
            sent_at: seal.sent_at,
            retained: self.retained(sequence),
            source: seal.source,
            payload_len: len as u16,
            flags: seal.flags,
            header_len: HEADER_LEN as u16,
            relay: 0,
        }
    }

    /// Stores the header with its CRC, and the sequence last. Returns the sequence.
    #[inline(always)]
    fn seal_header(&self, header: Header, open: OpenSlot) -> Sequence {
        let bytes = self.words.bytes_at(open.begin, open.len());
        let crc = crc_of(&header.to_bytes(0), bytes);
        let head = self.words.header_at(open.begin - HEADER_WORDS);
        slot::put_header(head, header.to_words(crc).map(u64::to_le));
        slot::seal(head, header.sequence.0);
        header.sequence
    }

    /// Stores the tag, then the header as [`seal_header`](Self::seal_header) does.
    // Apart, so that the other channels' header stays in registers.
    #[inline(never)]
    fn seal_tagged(&mut self, seal: Seal, open: OpenSlot) -> Sequence {
        let len = open.len() - TAG_LEN;
        let header = Header {
            flags: seal.flags | datagram_flags::TAGGED,
            header_len: TAGGED_HEADER_LEN as u16,
            ..self.header_of(&seal, len)
        };
        if let Some(tagger) = &mut self.tagger {
            let behind = open.begin + TAG_LEN / WORD;
            let tag = tagger.tag(&header, self.words.bytes_at(behind, len));
            let place = self.words.at_mut(open.begin, TAG_LEN / WORD);
            slot::put(place, words_of(&tag));
        }
        self.seal_header(header, open)
    }

    /// Authenticates all datagrams sealed from now on, with keys that follow from `secret` and serve this
    /// number of sequences each. No slot is open.
    pub fn authenticate(&mut self, secret: Key, datagrams_per_key: u64) {
        let (channel, epoch) = (self.identity.channel, self.identity.epoch);
        let keys = ChannelKeys::new(secret, datagrams_per_key, channel, epoch);
        self.tagger = Some(Box::new(Tagger::new(keys)));
        self.payload_word = TAGGED_HEADER_LEN / WORD;
    }

    /// Returns the keys of an authenticated channel.
    #[must_use]
    pub fn keys(&self) -> Option<&ChannelKeys> {
        self.tagger.as_ref().map(|tagger| tagger.keys())
    }

    /// Returns the datagram of a sealed slot, to send it; `None` when the ring does not hold it.
    #[must_use]
    #[inline]
    pub fn slot(&self, sequence: Sequence) -> Option<&[u8]> {
        if sequence < self.oldest || sequence > self.sealed {
            return None;
        }
        Some(self.words.bytes_of(sequence, |slot| {
            datagram_len(
                u64::from_le(slot[6].load(Relaxed)),
                u64::from_le(slot[7].load(Relaxed)),
            )
        }))
    }

    /// Returns the bytes from the first datagram of a range through the last one, with the slots between.
    /// Each begins a slot's length behind the one before. A datagram that reaches into the last cache line
    /// of its slot is followed by zeros up to the slot's end. `None` when the ring does not hold all of them,
    /// or wraps around between them.
    #[must_use]
    pub fn adjacent(&self, range: SequenceRange) -> Option<&[u8]> {
        let last = self.slot(range.last)?;
        if range.first < self.oldest {
            return None;
        }
        let offset = |sequence| self.geometry().slot_offset(sequence);
        let before = offset(range.last).checked_sub(offset(range.first))?;
        // Further slots than the ring has do not lie as far apart as their number says.
        let apart = range
            .last
            .since(range.first)
            .checked_mul(self.geometry().slot_len() as u64);
        if apart != Some(before as u64) {
            return None;
        }
        let begin = offset(range.first) / WORD;
        Some(self.words.bytes_at(begin, before + last.len()))
    }

    /// Returns the header of the last sealed datagram; `None` when the ring is empty.
    #[must_use]
    #[inline]
    pub fn header_of_last(&self) -> Option<&[u8; HEADER_LEN]> {
        if self.sealed < self.oldest {
            return None;
        }
        let header = self.words.bytes_of(self.sealed, |_| HEADER_LEN);
        header.first_chunk()
    }

    /// Returns the address of the slot that holds `sequence`, for transports that pin it. It can be read for
    /// the length of a whole slot until the fan-out reports it completed.
    #[must_use]
    pub fn slot_ptr(&self, sequence: Sequence) -> *const u8 {
        self.words.0.slot(sequence).as_ptr().cast()
    }

    /// Returns `sequence + 1 − oldest`, the header's `retained`; 0 when the ring is empty.
    #[must_use]
    pub fn retained(&self, sequence: Sequence) -> u32 {
        u32::try_from(sequence.next().since(self.oldest)).unwrap_or(u32::MAX)
    }

    /// Returns the number of the record after `sequence`; `None` when unknown.
    #[must_use]
    pub fn next_record_after(&self, sequence: Sequence) -> Option<RecordNumber> {
        next_record_after(&self.words.0, &self.identity, sequence)
    }

    /// Returns the last sequence sealed.
    #[must_use]
    pub const fn sealed(&self) -> Sequence {
        self.sealed
    }

    /// Returns the oldest sequence held.
    #[must_use]
    pub const fn oldest(&self) -> Sequence {
        self.oldest
    }

    /// Returns the number of the record after the last one sealed.
    #[must_use]
    pub const fn next_record(&self) -> RecordNumber {
        self.next_record
    }

    /// Returns the identity of the ring.
    #[must_use]
    pub const fn identity(&self) -> &RingIdentity {
        &self.identity
    }

    /// Returns the epochs that the ring's own epoch continues.
    #[must_use]
    pub const fn lineage(&self) -> &Lineage {
        &self.lineage
    }

    /// Returns the geometry of the ring.
    #[must_use]
    pub const fn geometry(&self) -> Geometry {
        self.words.0.geometry
    }

    /// Returns the last sequence that a fan-out has sent, at least the one before the oldest held.
    #[must_use]
    pub fn sent(&self, fan_out: FanOutId) -> Sequence {
        let sent = Sequence(self.words.0.load(fan_out_offset(fan_out)));
        sent.clamp(self.oldest.previous().min(self.sealed), self.sealed)
    }

    /// Publishes the last sequence that a fan-out has sent.
    pub fn set_sent(&mut self, fan_out: FanOutId, sequence: Sequence) {
        self.words.store(fan_out_offset(fan_out), sequence.0);
    }

    /// Prefetches the start of the next slot, which was last written one round ago. Nothing waits for it;
    /// call it after a send.
    #[inline]
    pub fn warm_next(&self) {
        let slot = self.words.0.slot(self.sealed.next());
        for word in [0, HEADER_LEN / WORD] {
            std::hint::black_box(slot[word].load(Relaxed));
        }
    }

    /// Publishes the publisher's state.
    pub fn set_state(&mut self, state: PublisherState) {
        self.words.store(offset::STATE, state as u64);
    }

    /// Publishes the time of the last heartbeat.
    pub fn set_heartbeat_at(&mut self, utc: Nanos) {
        self.words.store(offset::HEARTBEAT_AT, utc.0);
    }

    /// Stores a source's sealed position. Returns `false` when there are more sources than checkpoints: that
    /// source is replayed from its beginning after a restart.
    pub fn set_checkpoint(&mut self, checkpoint: Checkpoint) -> bool {
        let wanted = Some(checkpoint.source);
        let Some(index) = (self.sources.iter()).position(|s| *s == wanted || s.is_none()) else {
            return false;
        };
        self.sources[index] = wanted;
        let (low, high) = split(checkpoint.session);
        let at = checkpoint_offset(index);
        let version = self.words.0.load(at);
        let said = [
            u64::from(checkpoint.source.0) + 1,
            checkpoint.position.0,
            low,
            high,
        ];
        self.words.store(at, version | 1);
        fence(Release);
        for (word, value) in (1..).zip(said) {
            self.words.store(at + word * WORD, value);
        }
        let check = checkpoint_check(said);
        self.words.store(at + 5 * WORD, check);
        self.kept = Some((checkpoint.source, at, check ^ checkpoint.position.0));
        self.words.store(at, (version | 1).wrapping_add(1));
        true
    }

    /// Updates the position of the last checkpoint if it is this source's. It stores the check before the
    /// position, so that a reader detects a half-written one. Returns `false`, without effect, when the whole
    /// checkpoint must be stored.
    #[inline]
    pub fn move_checkpoint(&mut self, source: SourceId, position: SourcePosition) -> bool {
        let kept = self.kept.filter(|(kept, ..)| *kept == source);
        if let Some((_, at, check)) = kept {
            self.words.store(at + 5 * WORD, check ^ position.0);
            self.words.store(at + 2 * WORD, position.0);
        }
        kept.is_some()
    }

    /// Forces the next checkpoint to be stored as a whole, because its session may have changed.
    pub const fn keep_anew(&mut self) {
        self.kept = None;
    }

    #[cfg(test)]
    pub(super) const fn words_mut(&mut self) -> &mut OwnWords {
        &mut self.words
    }

    /// Returns the memory, for a transport that registers it with a device to send from.
    #[must_use]
    pub fn memory(&self) -> Arc<dyn RingMemory> {
        Arc::clone(&self.words.0.memory)
    }

    /// Returns a reader of this ring.
    #[must_use]
    pub fn reader(&self) -> RingReader {
        RingReader::of(self.words.0.clone(), self.identity, self.lineage.clone())
    }
}
