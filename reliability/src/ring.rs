//! The ring: what was sealed can be copied by anyone, at any time, and a copy is either exactly
//! what was sealed or an error; never a mixture, and the writer never waits.
//!
//! One [`RingWriter`] seals datagrams into slots; any number of [`RingReader`]s copy them, in this
//! process or another. The memory comes from outside ([`RingMemory`]). The layout is in
//! [`crate::ring_layout`] (docs/PROTOCOL.md §9).
//!
//! Each slot is a sequence lock whose version is the datagram's own sequence word: it is 0 while
//! the slot is written and takes each value once, so a reader that finds the wanted sequence
//! before and after its copy has copied that datagram.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, fence};

use crate::ring_layout::{
    CHECKPOINT_LEN, CHECKPOINTS_MAX, CONTROL_PAGE_LEN, Checkpoint, CopyError, FAN_OUTS_MAX,
    Geometry, LAYOUT_VERSION, RING_ALIGN, RING_MAGIC, RingError, RingIdentity, SEQUENCE_LAST,
    offset,
};
use crate::units::{
    ChannelId, ConfigHash, Epoch, FanOutId, Nanos, RecordNumber, Sequence, SequenceRange, SourceId,
    SourcePosition,
};
use crate::wire::{
    CrcVerdict, Datagram, HEADER_LEN, Header, Kind, PublisherState, SEQUENCE_OFFSET, crc_of,
};

/// Bytes in a word; all shared fields are words.
const WORD: usize = 8;
const SEQUENCE_WORD: usize = SEQUENCE_OFFSET / WORD;
const HEADER_WORDS: usize = HEADER_LEN / WORD;

/// Memory for a ring: mapped, or on the heap.
///
/// # Safety
/// `as_ptr` returns the same address at every call, aligned to [`RING_ALIGN`], of `len` bytes that
/// are initialised and stay valid and mapped for as long as the value lives. Nothing writes them
/// but the one [`RingWriter`], in whichever process; nothing makes a reference to them but this
/// module.
#[expect(clippy::len_without_is_empty, reason = "empty memory is no ring")]
pub unsafe trait RingMemory: Send + Sync {
    /// Address of the first byte.
    fn as_ptr(&self) -> *mut u8;
    /// Length in bytes.
    fn len(&self) -> usize;
}

#[repr(C, align(64))]
struct Line([AtomicU64; RING_ALIGN / WORD]);

/// Memory of this process alone, for tests and simulation.
pub struct HeapMemory(Box<[Line]>);

impl HeapMemory {
    /// Zeroed memory for a ring of this geometry.
    #[must_use]
    pub fn new(geometry: Geometry) -> Self {
        let line = || Line([const { AtomicU64::new(0) }; RING_ALIGN / WORD]);
        let lines = geometry.bytes().div_ceil(RING_ALIGN);
        Self((0..lines).map(|_| line()).collect())
    }
}

// SAFETY: the box is never reallocated, its elements are aligned to 64 and made of atomics, so
// shared writes through the pointer are allowed. Exercised by every test here, also under Miri.
unsafe impl RingMemory for HeapMemory {
    fn as_ptr(&self) -> *mut u8 {
        self.0.as_ptr().cast_mut().cast()
    }

    fn len(&self) -> usize {
        self.0.len() * RING_ALIGN
    }
}

/// The ring's words, and what is fixed about them.
#[derive(Clone)]
struct Words {
    base: NonNull<AtomicU64>,
    count: usize,
    geometry: Geometry,
    _memory: Arc<dyn RingMemory>,
}

// SAFETY: the words are atomics in memory that `_memory` keeps valid, and it is `Send + Sync`.
// Exercised by `tests::a_reader_that_is_lapped_never_gets_a_mixture`.
unsafe impl Send for Words {}
// SAFETY: as for `Send`.
unsafe impl Sync for Words {}

impl Words {
    fn new(memory: Arc<dyn RingMemory>, geometry: Geometry) -> Result<Self, RingError> {
        let (needed, len) = (geometry.bytes(), memory.len());
        if len < needed {
            return Err(RingError::TooSmall { needed, len });
        }
        match NonNull::new(memory.as_ptr().cast::<AtomicU64>()) {
            Some(base) if base.addr().get().is_multiple_of(RING_ALIGN) => Ok(Self {
                base,
                count: needed / WORD,
                geometry,
                _memory: memory,
            }),
            _ => Err(RingError::Misaligned),
        }
    }

    #[inline]
    fn all(&self) -> &[AtomicU64] {
        // SAFETY: `new` checked alignment and length; the implementor of `RingMemory` promised
        // initialised memory that outlives `_memory`, and that only this module refers to it.
        // Exercised by `tests::memory_that_is_no_ring_is_refused` and the torture test.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.count) }
    }

    #[inline]
    fn field(&self, offset: usize) -> &AtomicU64 {
        &self.all()[offset / WORD]
    }

    #[inline]
    fn load(&self, offset: usize) -> u64 {
        u64::from_le(self.field(offset).load(Acquire))
    }

    #[inline]
    fn store(&self, offset: usize, value: u64) {
        self.field(offset).store(value.to_le(), Release);
    }

    #[inline]
    fn slot(&self, sequence: Sequence) -> &[AtomicU64] {
        let first = self.geometry.slot_offset(sequence) / WORD;
        &self.all()[first..first + self.geometry.slot_len() / WORD]
    }
}

const fn fan_out_offset(fan_out: FanOutId) -> usize {
    offset::SENT + (fan_out.0 as usize % FAN_OUTS_MAX) * WORD
}

const fn checkpoint_offset(index: usize) -> usize {
    offset::CHECKPOINTS + index * CHECKPOINT_LEN
}

/// What the caller of [`RingWriter::seal`] says of a datagram; the ring knows the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seal {
    /// What it is; must be a kind that takes a sequence.
    pub kind: Kind,
    /// Records in it.
    pub count: u16,
    /// Whose messages.
    pub source: SourceId,
    /// Position of the last complete message.
    pub source_position: SourcePosition,
    /// Now, UTC.
    pub sent_at: Nanos,
    /// See [`crate::wire::datagram_flags`].
    pub flags: u16,
}

/// The one that writes a ring. Not `Clone`: there is one for each ring.
pub struct RingWriter {
    words: Words,
    identity: RingIdentity,
    sealed: Sequence,
    oldest: Sequence,
    next_record: RecordNumber,
    /// Bytes appended to the open slot, where one is open.
    open: Option<usize>,
    sources: [Option<SourceId>; CHECKPOINTS_MAX],
}

impl RingWriter {
    /// Makes an empty ring in `memory`, whatever was there before, and touches every slot, so
    /// that no later write faults a page in.
    ///
    /// # Errors
    /// [`RingError`] when the memory or the identity can't hold a ring.
    pub fn create(
        memory: Arc<dyn RingMemory>,
        geometry: Geometry,
        identity: RingIdentity,
    ) -> Result<Self, RingError> {
        check_identity(&identity)?;
        let words = Words::new(memory, geometry)?;
        words.store(offset::MAGIC, 0);
        fence(Release);
        for word in &words.all()[1..CONTROL_PAGE_LEN / WORD] {
            word.store(0, Relaxed);
        }
        for slot in 0..geometry.slots() {
            words.slot(Sequence(slot))[SEQUENCE_WORD].store(0, Relaxed);
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
            sealed,
            oldest: identity.first_sequence,
            next_record: identity.first_record,
            open: None,
            sources: [None; CHECKPOINTS_MAX],
        })
    }

    /// Opens the slot after the last sealed one, and returns its sequence; the slot that is
    /// overwritten is out of the ring from here on. Opening an open slot changes nothing.
    ///
    /// # Errors
    /// [`RingError::Exhausted`] after [`SEQUENCE_LAST`].
    pub fn open(&mut self) -> Result<Sequence, RingError> {
        let sequence = self.sealed.next();
        if self.open.is_some() {
            return Ok(sequence);
        }
        if sequence > SEQUENCE_LAST {
            return Err(RingError::Exhausted);
        }
        let oldest = sequence.minus(self.words.geometry.slots() - 1);
        if oldest > self.oldest {
            self.oldest = oldest;
            self.words.store(offset::OLDEST, oldest.0);
        }
        // Release: who sees the slot invalid also sees that `oldest` has moved past it.
        self.words.slot(sequence)[SEQUENCE_WORD].store(0, Release);
        // Whoever reads any of the words written from here on finds the sequence word changed.
        fence(Release);
        self.open = Some(0);
        Ok(sequence)
    }

    /// Bytes that still fit the open slot; a whole payload when none is open.
    #[must_use]
    pub fn room(&self) -> usize {
        self.payload_max() - self.open.unwrap_or(0)
    }

    /// The longest payload of a datagram.
    #[must_use]
    pub fn payload_max(&self) -> usize {
        self.words.geometry.slot_len() - HEADER_LEN
    }

    /// Whether a slot is open.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Writes `bytes` behind what the open slot holds. A length that is no multiple of 8 is
    /// filled up with zeros, so that records stay aligned.
    ///
    /// # Errors
    /// [`RingError::SlotFull`] and [`RingError::NotOpen`], without effect.
    #[inline]
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), RingError> {
        let at = self.open.ok_or(RingError::NotOpen)?;
        let (len, room) = (bytes.len().next_multiple_of(WORD), self.room());
        if len > room {
            return Err(RingError::SlotFull { len, room });
        }
        let slot = self.words.slot(self.sealed.next());
        let first = (HEADER_LEN + at) / WORD;
        for (word, chunk) in slot[first..].iter().zip(bytes.chunks(WORD)) {
            let mut value = [0; WORD];
            value[..chunk.len()].copy_from_slice(chunk);
            word.store(u64::from_ne_bytes(value), Relaxed);
        }
        self.open = Some(at + len);
        Ok(())
    }

    /// Seals the open slot: header, CRC over the slot's own bytes, sequence last. From here on it
    /// is never modified until the ring comes round.
    ///
    /// # Errors
    /// [`RingError::NotOpen`].
    pub fn seal(&mut self, seal: Seal) -> Result<Sequence, RingError> {
        let len = self.open.ok_or(RingError::NotOpen)?;
        let sequence = self.sealed.next();
        let header = Header {
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
        };
        let crc = crc_of(
            &header.to_bytes(0),
            self.bytes_of(sequence, HEADER_LEN, len),
        );
        let bytes = header.to_bytes(crc);
        let slot = self.words.slot(sequence);
        for (index, (word, chunk)) in slot.iter().zip(bytes.chunks_exact(WORD)).enumerate() {
            if index != SEQUENCE_WORD {
                let mut value = [0; WORD];
                value.copy_from_slice(chunk);
                word.store(u64::from_ne_bytes(value), Relaxed);
            }
        }
        slot[SEQUENCE_WORD].store(sequence.0.to_le(), Release);
        self.open = None;
        self.sealed = sequence;
        self.next_record = self.next_record.plus(seal.count.into());
        self.words.store(offset::NEXT_RECORD, self.next_record.0);
        self.words.store(offset::SEALED, sequence.0);
        Ok(sequence)
    }

    /// The datagram of a sealed slot, for sending it; `None` when the ring does not hold it.
    #[must_use]
    #[inline]
    pub fn slot(&self, sequence: Sequence) -> Option<&[u8]> {
        if sequence < self.oldest || sequence > self.sealed {
            return None;
        }
        let lens = self.words.slot(sequence);
        let len = datagram_len(
            u64::from_le(lens[6].load(Relaxed)),
            u64::from_le(lens[7].load(Relaxed)),
        );
        Some(self.bytes_of(sequence, 0, len.min(self.words.geometry.slot_len())))
    }

    /// The address of the slot that holds `sequence`, for transports that pin it. It may be read
    /// until the fan-out reports it completed; it is a whole slot long.
    #[must_use]
    pub fn slot_ptr(&self, sequence: Sequence) -> *const u8 {
        self.words.slot(sequence).as_ptr().cast()
    }

    fn bytes_of(&self, sequence: Sequence, at: usize, len: usize) -> &[u8] {
        let slot = &self.words.slot(sequence)[at / WORD..(at + len).div_ceil(WORD)];
        // SAFETY: the words lie in the ring (the slice is checked). Only this writer writes them,
        // and only by `&mut self`, which the borrow excludes; others only load them. Exercised by
        // `tests::what_was_sealed_is_read_back_by_writer_and_readers`.
        unsafe { std::slice::from_raw_parts(slot.as_ptr().cast(), len) }
    }

    /// `sequence + 1 − oldest`, what a header says in `retained`; 0 when nothing is held.
    #[must_use]
    pub fn retained(&self, sequence: Sequence) -> u32 {
        u32::try_from(sequence.next().since(self.oldest)).unwrap_or(u32::MAX)
    }

    /// Number of the record after `sequence`; `None` when the ring can't tell.
    #[must_use]
    pub fn next_record_after(&self, sequence: Sequence) -> Option<RecordNumber> {
        next_record_after(&self.words, &self.identity, sequence)
    }

    /// The last sequence sealed.
    #[must_use]
    pub const fn sealed(&self) -> Sequence {
        self.sealed
    }

    /// The oldest sequence held.
    #[must_use]
    pub const fn oldest(&self) -> Sequence {
        self.oldest
    }

    /// Number of the record after the last one sealed.
    #[must_use]
    pub const fn next_record(&self) -> RecordNumber {
        self.next_record
    }

    /// What the ring is.
    #[must_use]
    pub const fn identity(&self) -> &RingIdentity {
        &self.identity
    }

    /// Its size.
    #[must_use]
    pub const fn geometry(&self) -> Geometry {
        self.words.geometry
    }

    /// Tells everyone how far a fan-out has sent.
    pub fn set_sent(&mut self, fan_out: FanOutId, sequence: Sequence) {
        self.words.store(fan_out_offset(fan_out), sequence.0);
    }

    /// Tells everyone what the publisher is doing.
    pub fn set_state(&mut self, state: PublisherState) {
        self.words.store(offset::STATE, state as u64);
    }

    /// Tells everyone that the publisher lives.
    pub fn set_heartbeat_at(&mut self, utc: Nanos) {
        self.words.store(offset::HEARTBEAT_AT, utc.0);
    }

    /// Keeps how far a source is sealed. `false` when there are more sources than a ring keeps
    /// checkpoints for: that one is replayed from its beginning after a restart.
    pub fn set_checkpoint(&mut self, checkpoint: Checkpoint) -> bool {
        let wanted = Some(checkpoint.source);
        let Some(index) = (self.sources.iter()).position(|s| *s == wanted || s.is_none()) else {
            return false;
        };
        self.sources[index] = wanted;
        let (low, high) = split(checkpoint.session);
        let at = checkpoint_offset(index);
        let version = self.words.load(at);
        self.words.store(at, version | 1);
        fence(Release);
        self.words.store(at + 8, u64::from(checkpoint.source.0) + 1);
        self.words.store(at + 16, checkpoint.position.0);
        self.words.store(at + 24, low);
        self.words.store(at + 32, high);
        self.words.store(at, (version | 1).wrapping_add(1));
        true
    }

    /// A reader of this ring.
    #[must_use]
    pub fn reader(&self) -> RingReader {
        RingReader {
            words: self.words.clone(),
            identity: self.identity,
        }
    }
}

/// Copies datagrams out of a ring that someone else writes. It never writes.
#[derive(Clone)]
pub struct RingReader {
    words: Words,
    identity: RingIdentity,
}

impl RingReader {
    /// Finds the ring in `memory`. The memory may be mapped read-only.
    ///
    /// # Errors
    /// [`RingError`] says why there is none that this build can read.
    pub fn attach(memory: Arc<dyn RingMemory>) -> Result<Self, RingError> {
        let smallest = Geometry::new(Geometry::SLOT_LEN_MIN, Geometry::SLOTS_MIN)?;
        let head = Words::new(memory.clone(), smallest)?;
        let magic = head.load(offset::MAGIC);
        if magic != RING_MAGIC {
            return Err(RingError::Magic { magic });
        }
        let layout = head.load(offset::LAYOUT);
        if layout != LAYOUT_VERSION {
            return Err(RingError::Layout { layout });
        }
        let slot_len = u32::try_from(head.load(offset::SLOT_LEN)).unwrap_or(u32::MAX);
        let geometry = Geometry::new(slot_len, head.load(offset::SLOTS))?;
        let mut boot_id = [0; 16];
        boot_id[..8].copy_from_slice(&head.load(offset::BOOT_ID).to_le_bytes());
        boot_id[8..].copy_from_slice(&head.load(offset::BOOT_ID + WORD).to_le_bytes());
        let identity = RingIdentity {
            channel: ChannelId(head.load(offset::CHANNEL) as u16),
            epoch: Epoch(head.load(offset::EPOCH)),
            config_hash: ConfigHash(head.load(offset::CONFIG_HASH)),
            boot_id,
            fan_outs: u8::try_from(head.load(offset::FAN_OUTS)).unwrap_or(u8::MAX),
            first_sequence: Sequence(head.load(offset::FIRST_SEQUENCE)),
            first_record: RecordNumber(head.load(offset::FIRST_RECORD)),
        };
        check_identity(&identity)?;
        let words = Words::new(memory, geometry)?;
        Ok(Self { words, identity })
    }

    /// The same reader, if the ring was made under this config.
    ///
    /// # Errors
    /// [`RingError::Config`] when it was not.
    pub fn expecting(self, config_hash: ConfigHash) -> Result<Self, RingError> {
        if self.identity.config_hash == config_hash {
            return Ok(self);
        }
        Err(RingError::Config {
            found: self.identity.config_hash.0,
            expected: config_hash.0,
        })
    }

    /// Checks the CRC, epoch and sequence of every slot held, and says which they are; `None` when
    /// the ring is empty. For a ring that nobody writes just now.
    ///
    /// # Errors
    /// [`RingError::Slot`] names the first slot that does not hold what was sealed.
    pub fn verify(&self) -> Result<Option<SequenceRange>, RingError> {
        let Some(held) = SequenceRange::new(self.oldest(), self.sealed()) else {
            return Ok(None);
        };
        if held.len() > self.words.geometry.slots() {
            return Err(RingError::Slot {
                sequence: held.first.0,
            });
        }
        let mut buffer = vec![0; self.words.geometry.slot_len() / WORD];
        for sequence in held.iter() {
            let good = self.copy(sequence, &mut buffer).is_ok_and(|len| {
                Datagram::parse(&crate::record::words_as_bytes(&buffer)[..len]).is_ok_and(|d| {
                    d.verdict() == CrcVerdict::Good && d.header().epoch == self.identity.epoch
                })
            });
            if !good {
                return Err(RingError::Slot {
                    sequence: sequence.0,
                });
            }
        }
        Ok(Some(held))
    }

    /// Copies the datagram of `sequence` to the start of `buffer`, which has room for a whole
    /// slot, and returns its length in bytes.
    ///
    /// # Errors
    /// [`CopyError`]; what `buffer` then holds means nothing.
    pub fn copy(&self, sequence: Sequence, buffer: &mut [u64]) -> Result<usize, CopyError> {
        let slot_len = self.words.geometry.slot_len();
        if buffer.len() * WORD < slot_len {
            return Err(CopyError::Buffer {
                len: buffer.len() * WORD,
                needed: slot_len,
            });
        }
        let slot = self.words.slot(sequence);
        let found = u64::from_le(slot[SEQUENCE_WORD].load(Acquire));
        if found != sequence.0 || sequence == Sequence::NONE {
            return Err(self.missing(sequence, found));
        }
        for (to, from) in buffer[..HEADER_WORDS].iter_mut().zip(slot) {
            *to = from.load(Relaxed);
        }
        let len = datagram_len(u64::from_le(buffer[6]), u64::from_le(buffer[7]));
        let possible = (HEADER_LEN..=slot_len).contains(&len);
        let words = if possible {
            len.div_ceil(WORD)
        } else {
            HEADER_WORDS
        };
        for (to, from) in buffer[..words].iter_mut().zip(slot).skip(HEADER_WORDS) {
            *to = from.load(Relaxed);
        }
        // Whatever was loaded of a later datagram makes this load see a later sequence word.
        fence(Acquire);
        let found = u64::from_le(slot[SEQUENCE_WORD].load(Relaxed));
        if found != sequence.0 {
            return Err(CopyError::Lapped {
                oldest: self.oldest(),
            });
        }
        if possible {
            Ok(len)
        } else {
            Err(CopyError::Damaged { len })
        }
    }

    fn missing(&self, sequence: Sequence, found: u64) -> CopyError {
        let oldest = self.oldest();
        if sequence < oldest || found > sequence.0 {
            CopyError::Lapped { oldest }
        } else {
            CopyError::NotSealed {
                sealed: self.sealed(),
            }
        }
    }

    /// Number of the record after `sequence`: 0 records are in events and END. `None` when the
    /// ring no longer holds the sequence, or not yet.
    #[must_use]
    pub fn next_record_after(&self, sequence: Sequence) -> Option<RecordNumber> {
        next_record_after(&self.words, &self.identity, sequence)
    }

    /// Number of the first record of `sequence`; `None` when the ring does not hold it.
    #[must_use]
    pub fn first_record_of(&self, sequence: Sequence) -> Option<RecordNumber> {
        Some(numbers_of(&self.words, sequence)?.0)
    }

    /// Bytes of the datagram of `sequence`; `None` when the ring does not hold it.
    #[must_use]
    pub fn len_of(&self, sequence: Sequence) -> Option<usize> {
        Some(numbers_of(&self.words, sequence)?.2)
    }

    /// What the ring is.
    #[must_use]
    pub const fn identity(&self) -> &RingIdentity {
        &self.identity
    }

    /// Its size.
    #[must_use]
    pub const fn geometry(&self) -> Geometry {
        self.words.geometry
    }

    /// The last sequence sealed.
    #[must_use]
    pub fn sealed(&self) -> Sequence {
        Sequence(self.words.load(offset::SEALED))
    }

    /// The oldest sequence held; `sealed + 1` when the ring is empty.
    #[must_use]
    pub fn oldest(&self) -> Sequence {
        Sequence(self.words.load(offset::OLDEST))
    }

    /// The last sequence that this fan-out has sent.
    #[must_use]
    pub fn sent(&self, fan_out: FanOutId) -> Sequence {
        Sequence(self.words.load(fan_out_offset(fan_out)))
    }

    /// The last sequence that every fan-out has sent; the last one sealed where there is none.
    #[must_use]
    pub fn sent_by_all(&self) -> Sequence {
        let all = (0..self.identity.fan_outs).map(|f| self.sent(FanOutId(f)));
        all.min().unwrap_or_else(|| self.sealed())
    }

    /// The last sequence that any fan-out has sent; the last one sealed where there is none.
    #[must_use]
    pub fn sent_by_any(&self) -> Sequence {
        let all = (0..self.identity.fan_outs).map(|f| self.sent(FanOutId(f)));
        all.max().unwrap_or_else(|| self.sealed())
    }

    /// What the publisher says it is doing; `None` when it says nothing known.
    #[must_use]
    pub fn state(&self) -> Option<PublisherState> {
        [
            PublisherState::Live,
            PublisherState::Ended,
            PublisherState::Standby,
        ]
        .into_iter()
        .find(|state| *state as u64 == self.words.load(offset::STATE))
    }

    /// When the publisher last made a heartbeat, UTC.
    #[must_use]
    pub fn heartbeat_at(&self) -> Nanos {
        Nanos(self.words.load(offset::HEARTBEAT_AT))
    }

    /// How far a source was sealed; `None` when it has no checkpoint or that is being written.
    #[must_use]
    pub fn checkpoint(&self, source: SourceId) -> Option<Checkpoint> {
        (0..CHECKPOINTS_MAX).find_map(|index| {
            let at = checkpoint_offset(index);
            let version = self.words.load(at);
            if self.words.load(at + 8) != u64::from(source.0) + 1 {
                return None;
            }
            let position = SourcePosition(self.words.load(at + 16));
            let mut session = [0; 16];
            session[..8].copy_from_slice(&self.words.load(at + 24).to_le_bytes());
            session[8..].copy_from_slice(&self.words.load(at + 32).to_le_bytes());
            fence(Acquire);
            (version & 1 == 0 && self.words.load(at) == version).then_some(Checkpoint {
                source,
                position,
                session,
            })
        })
    }
}

/// First record, count and length of a sealed slot, read like [`RingReader::copy`] does.
fn numbers_of(words: &Words, sequence: Sequence) -> Option<(RecordNumber, u16, usize)> {
    let slot = words.slot(sequence);
    if sequence == Sequence::NONE || slot[SEQUENCE_WORD].load(Acquire) != sequence.0.to_le() {
        return None;
    }
    let count = u64::from_le(slot[0].load(Relaxed)) >> 48;
    let first = u64::from_le(slot[3].load(Relaxed));
    let len = datagram_len(
        u64::from_le(slot[6].load(Relaxed)),
        u64::from_le(slot[7].load(Relaxed)),
    );
    fence(Acquire);
    (slot[SEQUENCE_WORD].load(Relaxed) == sequence.0.to_le()).then_some((
        RecordNumber(first),
        count as u16,
        len,
    ))
}

fn next_record_after(
    words: &Words,
    identity: &RingIdentity,
    sequence: Sequence,
) -> Option<RecordNumber> {
    if sequence.next() == identity.first_sequence {
        return Some(identity.first_record);
    }
    let (first, count, _) = numbers_of(words, sequence)?;
    Some(first.plus(count.into()))
}

/// Length of a datagram by the words of its header that hold `payload_len` and `header_len`.
const fn datagram_len(word_6: u64, word_7: u64) -> usize {
    (word_6 >> 48) as usize + ((word_7 >> 16) & 0xff) as usize * WORD
}

fn split(bytes: [u8; 16]) -> (u64, u64) {
    let whole = u128::from_le_bytes(bytes);
    (whole as u64, (whole >> 64) as u64)
}

fn check_identity(identity: &RingIdentity) -> Result<(), RingError> {
    let possible = identity.epoch != Epoch::NONE
        && identity.first_sequence != Sequence::NONE
        && identity.first_sequence <= SEQUENCE_LAST
        && usize::from(identity.fan_outs) <= FAN_OUTS_MAX;
    if possible {
        return Ok(());
    }
    Err(RingError::Identity {
        epoch: identity.epoch.0,
        first_sequence: identity.first_sequence.0,
        fan_outs: identity.fan_outs.into(),
    })
}
