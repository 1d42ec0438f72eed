//! Ring readers: they copy, check that nothing changed meanwhile, and never write (docs/PROTOCOL.md §9).

use std::sync::Arc;

use super::{
    HEADER_WORDS, RingMemory, WORD, Words, check_identity, checkpoint_check, checkpoint_offset,
    datagram_len, fan_out_offset, next_record_after, numbers_of, slot,
};
use crate::planted::{Bug, planted, torn};
use crate::record::words_as_bytes;
use crate::ring::atomics::Ordering::{Acquire, Relaxed};
use crate::ring::atomics::fence;
use crate::ring::layout::{
    CHECKPOINTS_MAX, CONTROL_PAGE_LEN, Checkpoint, CopyError, Geometry, LAYOUT_VERSION, RING_MAGIC,
    RingError, RingIdentity, offset,
};
use crate::types::{
    ChannelId, ConfigHash, Continued, Epoch, FanOutId, Lineage, Nanos, RecordNumber, SEQUENCE_LAST,
    Sequence, SequenceRange, SourceId, SourcePosition,
};
use crate::wire::{CrcVerdict, Datagram, HEADER_LEN, PublisherState};

/// Copies datagrams out of a ring, and never writes.
#[derive(Clone)]
pub struct RingReader {
    pub(super) words: Words,
    pub(super) identity: RingIdentity,
    pub(super) lineage: Lineage,
}

impl RingReader {
    pub(super) const fn of(words: Words, identity: RingIdentity, lineage: Lineage) -> Self {
        Self {
            words,
            identity,
            lineage,
        }
    }

    /// Attaches to the ring in `memory`, which may be mapped read-only.
    ///
    /// # Errors
    /// [`RingError`] names the reason why this build cannot read a ring there.
    pub fn attach(memory: Arc<dyn RingMemory>) -> Result<Self, RingError> {
        let smallest = Geometry::new(Geometry::SLOT_LEN_MIN, Geometry::SLOTS_MIN)?;
        let head = Words::new(memory.clone(), smallest)?;
        let (geometry, identity) = read_head(|at| head.load(at))?;
        let words = Words::new(memory, geometry)?;
        let continued = (0..Lineage::MAX).map(|at| {
            let word =
                |index| words.load(offset::LINEAGE + at * offset::LINEAGE_LEN + index * WORD);
            Continued {
                epoch: Epoch(word(0)),
                last: Sequence(word(1)),
                next_record: RecordNumber(word(2)),
                complete: word(3) & 1 != 0,
            }
        });
        let lineage: Vec<_> = continued.take_while(|it| it.epoch != Epoch::NONE).collect();
        let lineage = Lineage::from(lineage);
        Ok(Self::of(words, identity, lineage))
    }

    /// Returns geometry and identity of the ring whose file begins with this control page. Nothing else of
    /// the file needs to be read or mapped.
    ///
    /// # Errors
    /// [`RingError`] when the page is none of a ring, or has impossible values.
    pub fn head_of(page: &[u8; CONTROL_PAGE_LEN]) -> Result<(Geometry, RingIdentity), RingError> {
        read_head(|at| {
            let word = page.get(at..).and_then(<[u8]>::first_chunk);
            u64::from_le_bytes(word.copied().unwrap_or_default())
        })
    }

    /// Returns this reader if the ring was created under this config.
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

    /// Checks the CRC, epoch and sequence of every held slot and returns their range; `None` when the ring
    /// is empty. For a ring that is not being written.
    ///
    /// # Errors
    /// [`RingError::Control`] when the control page is impossible, else [`RingError::Slot`] with the first
    /// slot that does not hold what was sealed.
    pub fn verify(&self) -> Result<Option<SequenceRange>, RingError> {
        let (first, sealed, oldest) = (self.identity.first_sequence, self.sealed(), self.oldest());
        if sealed.next() < first || sealed > SEQUENCE_LAST {
            return Err(damaged("sealed", sealed.0));
        }
        let is_empty = sealed.next() == first;
        let possible = first <= oldest
            && oldest <= sealed.next()
            && sealed.next().since(oldest) <= self.words.geometry.slots()
            && (oldest > sealed) == is_empty;
        if !possible {
            return Err(damaged("oldest", oldest.0));
        }
        let Some(held) = SequenceRange::new(oldest, sealed) else {
            return Ok(None);
        };
        let mut buffer = vec![0; self.words.geometry.slot_len() / WORD];
        let bad = held
            .iter()
            .find(|sequence| !self.is_good(*sequence, &mut buffer));
        bad.map_or(Ok(Some(held)), |sequence| {
            Err(RingError::Slot {
                sequence: sequence.0,
            })
        })
    }

    /// Returns whether a slot holds this sequence. For a slot that is not being written.
    ///
    /// # Errors
    /// [`RingError::Slot`] when its sequence word matches but its content is not what was sealed.
    pub(super) fn holds(&self, sequence: Sequence) -> Result<bool, RingError> {
        if slot::version_before(self.words.slot(sequence)) != sequence.0 {
            return Ok(false);
        }
        match self.is_good(sequence, &mut vec![0; self.geometry().slot_len() / WORD]) {
            true => Ok(true),
            false => Err(RingError::Slot {
                sequence: sequence.0,
            }),
        }
    }

    /// Returns whether the slot of `sequence` holds what was sealed there.
    fn is_good(&self, sequence: Sequence, buffer: &mut [u64]) -> bool {
        self.copy(sequence, buffer).is_ok_and(|len| {
            Datagram::parse(&words_as_bytes(buffer)[..len]).is_ok_and(|d| {
                let epoch = self.lineage.epoch_of(self.identity.epoch, sequence);
                d.verdict() == CrcVerdict::Good && d.header().epoch == epoch
            })
        })
    }

    /// Copies the datagram of `sequence` to the start of `buffer`, which must have room for a whole slot, and
    /// returns its length in bytes.
    ///
    /// # Errors
    /// [`CopyError`], after which the content of `buffer` is meaningless.
    pub fn copy(&self, sequence: Sequence, buffer: &mut [u64]) -> Result<usize, CopyError> {
        let slot_len = self.words.geometry.slot_len();
        if buffer.len() * WORD < slot_len {
            return Err(CopyError::Buffer {
                len: buffer.len() * WORD,
                needed: slot_len,
            });
        }
        let slot = self.words.slot(sequence);
        let found = slot::version_before(slot);
        let any = planted(Bug::WrongSlotAnswered) && found > sequence.0;
        if (found != sequence.0 && !any) || sequence == Sequence::NONE {
            return Err(self.missing(sequence, found));
        }
        slot::copy(slot, 0, &mut buffer[..HEADER_WORDS]);
        if let Some(half_copied) = self.words.half_copied {
            half_copied();
        }
        let len = datagram_len(u64::from_le(buffer[6]), u64::from_le(buffer[7]));
        let possible = (HEADER_LEN..=slot_len).contains(&len);
        let words = if possible {
            len.div_ceil(WORD)
        } else {
            HEADER_WORDS
        };
        slot::copy(slot, HEADER_WORDS, &mut buffer[HEADER_WORDS..words]);
        if planted(Bug::RelayByteInSlot) {
            slot[7].fetch_or((1_u64 << 31).to_le(), Relaxed);
        }
        let found = slot::version_after(slot);
        let lapped = found != sequence.0 || torn(buffer, words);
        if lapped && !planted(Bug::TornSlotAnswered) && !any {
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

    /// Copies bytes like a device's READ: each word is whole, and nothing is checked. Both ends are multiples
    /// of 8. Bytes beyond the ring are left unchanged.
    pub fn raw(&self, offset: usize, into: &mut [u8]) {
        for (at, word) in (offset..self.geometry().bytes())
            .step_by(WORD)
            .zip(into.chunks_exact_mut(WORD))
        {
            word.copy_from_slice(&self.words.load(at).to_le_bytes());
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

    /// Returns the number of the record after `sequence`. Events and END have no records. Returns `None` when
    /// the ring does not hold the sequence.
    #[must_use]
    pub fn next_record_after(&self, sequence: Sequence) -> Option<RecordNumber> {
        next_record_after(&self.words, &self.identity, sequence)
    }

    /// Returns the number of the first record of `sequence`; `None` when the ring does not hold it.
    #[must_use]
    pub fn first_record_of(&self, sequence: Sequence) -> Option<RecordNumber> {
        Some(numbers_of(&self.words, sequence)?.0)
    }

    /// Returns the length of the datagram of `sequence` in bytes; `None` when the ring does not hold it.
    #[must_use]
    pub fn len_of(&self, sequence: Sequence) -> Option<usize> {
        Some(numbers_of(&self.words, sequence)?.2)
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
        self.words.geometry
    }

    /// Returns the last sequence sealed.
    #[must_use]
    pub fn sealed(&self) -> Sequence {
        Sequence(self.words.load(offset::SEALED))
    }

    /// Returns the oldest sequence held; `sealed + 1` when the ring is empty.
    #[must_use]
    pub fn oldest(&self) -> Sequence {
        Sequence(self.words.load(offset::OLDEST))
    }

    /// Returns the oldest sequence that a reader can expect to copy before it is overwritten:
    /// [`Geometry::guard`] above the old end of a full ring.
    #[must_use]
    pub fn floor(&self) -> Sequence {
        let safe = self.geometry().slots() - self.geometry().guard();
        self.oldest().max(self.sealed().next().minus(safe))
    }

    /// Returns the last sequence that this fan-out has sent.
    #[must_use]
    pub fn sent(&self, fan_out: FanOutId) -> Sequence {
        Sequence(self.words.load(fan_out_offset(fan_out)))
    }

    /// Returns the last sequence that every fan-out has sent; the last one sealed without fan-outs.
    #[must_use]
    pub fn sent_by_all(&self) -> Sequence {
        let all = (0..self.identity.fan_outs).map(|f| self.sent(FanOutId(f)));
        all.min().unwrap_or_else(|| self.sealed())
    }

    /// Returns the last sequence that any fan-out has sent; the last one sealed without fan-outs.
    #[must_use]
    pub fn sent_by_any(&self) -> Sequence {
        let all = (0..self.identity.fan_outs).map(|f| self.sent(FanOutId(f)));
        all.max().unwrap_or_else(|| self.sealed())
    }

    /// Returns the publisher's state; `None` when the word is unknown.
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

    /// Returns the time of the publisher's last heartbeat, UTC.
    #[must_use]
    pub fn heartbeat_at(&self) -> Nanos {
        Nanos(self.words.load(offset::HEARTBEAT_AT))
    }

    /// Returns a source's sealed position; `None` without a checkpoint or while it is written.
    #[must_use]
    pub fn checkpoint(&self, source: SourceId) -> Option<Checkpoint> {
        (0..CHECKPOINTS_MAX).find_map(|index| match self.checkpoint_at(index) {
            Place::Whole(found) if found.source == source => Some(found),
            _ => None,
        })
    }

    /// Returns the content of a checkpoint.
    pub(super) fn checkpoint_at(&self, index: usize) -> Place {
        let at = checkpoint_offset(index);
        let version = self.words.load(at);
        let word = |index: usize| self.words.load(at + index * WORD);
        let said = [1, 2, 3, 4].map(word);
        let check = word(5);
        fence(Acquire);
        let is_torn = version & 1 != 0 || self.words.load(at) != version;
        let [source, position, low, high] = said;
        let Some(source) = source.checked_sub(1) else {
            // A first checkpoint starts with an odd version, and its source follows. So an even version other
            // than 0 without a source is damage.
            return if is_torn || version == 0 {
                Place::Unused
            } else {
                Place::Damaged
            };
        };
        match u16::try_from(source).map(SourceId) {
            Ok(source) if is_torn || check != checkpoint_check(said) => Place::Torn(source),
            Ok(source) => Place::Whole(Checkpoint {
                source,
                position: SourcePosition(position),
                session: (u128::from(high) << 64 | u128::from(low)).to_le_bytes(),
            }),
            Err(_) => Place::Damaged,
        }
    }
}

/// The content of a checkpoint.
pub(super) enum Place {
    Unused,
    /// A checkpoint that is being written or was left unfinished: only its source is valid.
    Torn(SourceId),
    Whole(Checkpoint),
    Damaged,
}

pub(super) const fn damaged(word: &'static str, value: u64) -> RingError {
    RingError::Control { word, value }
}

/// Returns geometry and identity of a ring by the words of its control page.
fn read_head(load: impl Fn(usize) -> u64) -> Result<(Geometry, RingIdentity), RingError> {
    let magic = load(offset::MAGIC);
    if magic != RING_MAGIC {
        return Err(RingError::Magic { magic });
    }
    let layout = load(offset::LAYOUT);
    if layout != LAYOUT_VERSION {
        return Err(RingError::Layout { layout });
    }
    let slot_len = u32::try_from(load(offset::SLOT_LEN)).unwrap_or(u32::MAX);
    let geometry = Geometry::new(slot_len, load(offset::SLOTS))?;
    let mut boot_id = [0; 16];
    boot_id[..8].copy_from_slice(&load(offset::BOOT_ID).to_le_bytes());
    boot_id[8..].copy_from_slice(&load(offset::BOOT_ID + WORD).to_le_bytes());
    let identity = RingIdentity {
        channel: ChannelId(load(offset::CHANNEL) as u16),
        epoch: Epoch(load(offset::EPOCH)),
        config_hash: ConfigHash(load(offset::CONFIG_HASH)),
        boot_id,
        fan_outs: u8::try_from(load(offset::FAN_OUTS)).unwrap_or(u8::MAX),
        first_sequence: Sequence(load(offset::FIRST_SEQUENCE)),
        first_record: RecordNumber(load(offset::FIRST_RECORD)),
    };
    check_identity(&identity)?;
    Ok((geometry, identity))
}
