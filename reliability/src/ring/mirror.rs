//! A ring of datagrams that another publisher sealed. They are stored unchanged, in the same slots, until
//! this writer continues under an epoch of its own (docs/PROTOCOL.md §9).

use super::{
    LINE_LEN, RingWriter, SEQUENCE_WORD, WORD, checkpoint_offset, fan_out_offset, slot, words_of,
};
use crate::planted::{Bug, planted};
use crate::ring::atomics::Ordering::{Relaxed, Release};
use crate::ring::atomics::fence;
use crate::ring::layout::{CHECKPOINTS_MAX, FAN_OUTS_MAX, RING_MAGIC, RingError, offset};
use crate::types::{Continued, Epoch, FanOutId, Lineage, RecordNumber, Sequence};
use crate::wire::{Datagram, PublisherState, RELAY_OFFSET};

impl RingWriter {
    /// Stores the next datagram as its publisher sealed it, without the relay byte, which describes the path
    /// of a copy.
    ///
    /// # Errors
    /// [`RingError::SlotFull`] when it is longer than a slot. [`RingError::Exhausted`] when no sequence is
    /// left.
    pub(crate) fn take(&mut self, datagram: &Datagram<'_>) -> Result<(), RingError> {
        let header = datagram.header();
        debug_assert_eq!(header.sequence, self.sealed.next());
        self.check_fits(datagram)?;
        self.open()?;
        self.open = None;
        self.store_datagram(datagram);
        self.sealed = header.sequence;
        self.next_record = header.first_record.plus(header.count.into());
        self.words.store(offset::NEXT_RECORD, self.next_record.0);
        self.words.store(offset::SEALED, self.sealed.0);
        Ok(())
    }

    /// Replaces the content of a held slot, because the earlier content came from another sender. Only for a
    /// ring without readers.
    ///
    /// # Errors
    /// [`RingError::SlotFull`] when it is longer than a slot.
    pub(crate) fn replace(&mut self, datagram: &Datagram<'_>) -> Result<(), RingError> {
        let header = datagram.header();
        if header.sequence < self.oldest || header.sequence > self.sealed {
            return Ok(());
        }
        self.check_fits(datagram)?;
        slot::open(self.words.slot_mut(header.sequence));
        self.store_datagram(datagram);
        if header.sequence == self.sealed {
            self.next_record = header.first_record.plus(header.count.into());
            self.words.store(offset::NEXT_RECORD, self.next_record.0);
        }
        Ok(())
    }

    /// Restarts with this sequence and record. The ring is then empty.
    pub(crate) fn begin_anew(&mut self, first: Sequence, record: RecordNumber) {
        self.words.store(offset::MAGIC, 0);
        fence(Release);
        for slot in 0..self.geometry().slots() {
            self.words.slot_mut(Sequence(slot))[SEQUENCE_WORD].store(0, Relaxed);
        }
        self.identity.first_sequence = first;
        self.identity.first_record = record;
        self.sealed = first.previous();
        self.oldest = first;
        self.next_record = record;
        self.sources = [None; CHECKPOINTS_MAX];
        self.keep_anew();
        for index in 0..CHECKPOINTS_MAX {
            self.words.store(checkpoint_offset(index), 0);
            self.words.store(checkpoint_offset(index) + WORD, 0);
        }
        for (offset, value) in [
            (offset::FIRST_SEQUENCE, first.0),
            (offset::FIRST_RECORD, record.0),
            (offset::OLDEST, first.0),
            (offset::NEXT_RECORD, record.0),
            (offset::SEALED, self.sealed.0),
        ] {
            self.words.store(offset, value);
        }
        self.all_sent();
        self.words.store(offset::MAGIC, RING_MAGIC);
    }

    /// Drops everything above `last`, because another epoch seals those sequences anew from this record on.
    pub(crate) fn cut(&mut self, last: Sequence, next_record: RecordNumber) {
        if last >= self.sealed {
            return;
        }
        if last.next() <= self.oldest {
            return self.begin_anew(last.next(), next_record);
        }
        let first = self.oldest.max(last.next());
        for sequence in first.0..=self.sealed.0 {
            self.words.slot_mut(Sequence(sequence))[SEQUENCE_WORD].store(0, Relaxed);
        }
        (self.sealed, self.next_record) = (last, next_record);
        self.words.store(offset::NEXT_RECORD, next_record.0);
        self.words.store(offset::SEALED, last.0);
    }

    /// Sets the epoch and lineage of what follows. Held datagrams stay as sealed; sequences that no epoch
    /// of the lineage sealed leave the ring.
    pub(crate) fn set_epoch(
        &mut self,
        epoch: Epoch,
        lineage: Lineage,
        forgotten: Option<Continued>,
        state: PublisherState,
    ) {
        if let Some(forgotten) = forgotten
            && forgotten.last.next() > self.oldest
        {
            self.oldest = forgotten.last.next();
            self.words.store(offset::OLDEST, self.oldest.0);
        }
        for at in 0..Lineage::MAX {
            let of = lineage.epochs().get(at);
            let words = |it: &Continued| {
                let flags = u64::from(it.complete);
                [it.epoch.0, it.last.0, it.next_record.0, flags]
            };
            let entry = of.map_or([0; 4], words);
            for (word, value) in entry.into_iter().enumerate() {
                (self.words).store(
                    offset::LINEAGE + at * offset::LINEAGE_LEN + word * WORD,
                    value,
                );
            }
        }
        self.identity.epoch = epoch;
        self.lineage = lineage;
        self.words.store(offset::EPOCH, epoch.0);
        self.words.store(offset::STATE, state as u64);
        self.all_sent();
    }

    /// Marks all held datagrams as sent, because their own publisher sent them.
    pub(crate) fn all_sent(&mut self) {
        for fan_out in 0..FAN_OUTS_MAX as u8 {
            let at = fan_out_offset(FanOutId(fan_out));
            self.words.store(at, self.sealed.0);
        }
    }

    fn check_fits(&self, datagram: &Datagram<'_>) -> Result<(), RingError> {
        let (len, room) = (datagram.bytes().len(), self.geometry().slot_len());
        if len > room {
            return Err(RingError::SlotFull { len, room });
        }
        Ok(())
    }

    /// Writes a slot that is outside the held range. Its sequence is stored last.
    fn store_datagram(&mut self, datagram: &Datagram<'_>) {
        let sequence = datagram.header().sequence;
        let slot = self.words.slot_mut(sequence);
        let words = words_of(datagram.bytes()).enumerate();
        let words = words.map(|(index, word)| {
            if index != RELAY_OFFSET / WORD || planted(Bug::RelayByteMirrored) {
                return word;
            }
            let mut bytes = word.to_ne_bytes();
            bytes[RELAY_OFFSET % WORD] = 0;
            u64::from_ne_bytes(bytes)
        });
        slot::put_around(slot, words);
        // As behind a datagram that the writer seals itself.
        let rest = &slot[datagram.bytes().len().div_ceil(WORD)..];
        if size_of_val(rest) < LINE_LEN {
            slot::put(rest, std::iter::repeat(0));
        }
        slot::seal(slot, sequence.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::AlignedCopy;
    use crate::ring::layout::{Checkpoint, Geometry, RingIdentity};
    use crate::ring::{HeapMemory, RingReader};
    use crate::types::{ChannelId, ConfigHash, Nanos, SequenceRange, SourceId, SourcePosition};
    use crate::wire::{Header, Kind, crc_of};
    use std::sync::Arc;

    const SLOT_LEN: usize = 1024;

    /// Returns a ring of 16 slots that holds these sequences of epoch 5, with one record each.
    fn ring(taken: u64) -> RingWriter {
        let geometry = Geometry::new(SLOT_LEN as u32, 16).unwrap();
        let identity = RingIdentity {
            channel: ChannelId(3),
            epoch: Epoch(5),
            config_hash: ConfigHash(7),
            boot_id: [1; 16],
            fan_outs: 2,
            first_sequence: Sequence(1),
            first_record: RecordNumber(1),
        };
        let memory = Arc::new(HeapMemory::new(geometry));
        let mut ring = RingWriter::create(memory, geometry, identity).unwrap();
        for sequence in 1..=taken {
            let bytes = datagram(5, sequence, 1, &[1; 8]);
            with(&bytes, |datagram| ring.take(datagram)).unwrap();
        }
        ring
    }

    fn datagram(epoch: u64, sequence: u64, count: u16, payload: &[u8]) -> Vec<u8> {
        let header = Header {
            kind: Kind::Data,
            channel: ChannelId(3),
            count,
            epoch: Epoch(epoch),
            sequence: Sequence(sequence),
            first_record: RecordNumber(sequence),
            source_position: SourcePosition(0),
            sent_at: Nanos(1),
            retained: 1,
            source: SourceId(1),
            payload_len: payload.len() as u16,
            flags: 0,
            header_len: 64,
            relay: 0,
        };
        let crc = crc_of(&header.to_bytes(0), payload);
        [&header.to_bytes(crc)[..], payload].concat()
    }

    fn with<T>(bytes: &[u8], f: impl FnOnce(&Datagram<'_>) -> T) -> T {
        let mut aligned = AlignedCopy::default();
        f(&Datagram::parse(aligned.of(bytes)).unwrap())
    }

    fn range(first: u64, last: u64) -> Option<SequenceRange> {
        SequenceRange::new(Sequence(first), Sequence(last))
    }

    #[test]
    fn ring_replace_ignores_unheld_and_updates_next_record() {
        let mut ring = ring(20);
        // The slots of 4 and 21 now hold 20 and 5.
        for out in [4, 21] {
            let bytes = datagram(5, out, 9, &[2; 8]);
            assert_eq!(with(&bytes, |datagram| ring.replace(datagram)), Ok(()));
            assert_eq!(
                ring.reader().verify(),
                Ok(range(5, 20)),
                "{out} is not held"
            );
            assert_eq!(ring.next_record(), RecordNumber(21));
        }
        for (held, next_record) in [(5, 21), (12, 21), (20, 29)] {
            let bytes = datagram(5, held, 9, &[2; 16]);
            assert_eq!(with(&bytes, |datagram| ring.replace(datagram)), Ok(()));
            assert_eq!(ring.slot(Sequence(held)), Some(&bytes[..]));
            let reported = ring.words.0.load(offset::NEXT_RECORD);
            assert_eq!(
                (ring.next_record(), reported),
                (RecordNumber(next_record), next_record)
            );
        }
        assert_eq!(ring.reader().verify(), Ok(range(5, 20)));
    }

    #[test]
    fn mirror_ring_refuses_datagram_longer_than_slot() {
        let mut ring = ring(1);
        let fits = [3; SLOT_LEN - 64];
        let full = Err(RingError::SlotFull {
            len: SLOT_LEN + 1,
            room: SLOT_LEN,
        });
        let too_long = datagram(5, 2, 1, &[&fits[..], &[3]].concat());
        assert_eq!(with(&too_long, |datagram| ring.take(datagram)), full);
        assert_eq!(ring.sealed(), Sequence(1));
        let longest = datagram(5, 2, 1, &fits);
        assert_eq!(with(&longest, |datagram| ring.take(datagram)), Ok(()));
        assert_eq!(with(&too_long, |datagram| ring.replace(datagram)), full);
        assert_eq!(ring.slot(Sequence(2)), Some(&longest[..]));
        assert_eq!(ring.reader().verify(), Ok(range(1, 2)));
    }

    #[test]
    fn datagram_of_partial_word_length_is_taken_in_full() {
        let mut ring = ring(0);
        let bytes = datagram(5, 1, 1, &[9; 13]);
        assert_eq!(with(&bytes, |datagram| ring.take(datagram)), Ok(()));
        assert_eq!(ring.slot(Sequence(1)), Some(&bytes[..]));
    }

    #[test]
    fn restarted_mirror_ring_has_no_checkpoints() {
        let mut ring = ring(3);
        let checkpoint = |source| Checkpoint {
            source: SourceId(source),
            position: SourcePosition(8),
            session: [4; 16],
        };
        let all = 0..CHECKPOINTS_MAX as u16;
        assert!(
            all.clone()
                .all(|source| ring.set_checkpoint(checkpoint(source)))
        );
        ring.begin_anew(Sequence(9), RecordNumber(90));
        let reader = ring.reader();
        assert!(
            all.clone()
                .all(|source| reader.checkpoint(SourceId(source)).is_none())
        );
        assert_eq!(
            (reader.oldest(), reader.sealed()),
            (Sequence(9), Sequence(8))
        );
        let others = CHECKPOINTS_MAX as u16..2 * CHECKPOINTS_MAX as u16;
        for source in others {
            assert!(ring.set_checkpoint(checkpoint(source)), "there is room");
            let kept = ring.reader().checkpoint(SourceId(source));
            assert_eq!(kept, Some(checkpoint(source)));
        }
    }

    #[test]
    fn lineage_layout_in_control_page_matches_protocol() {
        let mut ring = ring(0);
        let continued = |epoch| Continued {
            epoch: Epoch(epoch),
            last: Sequence(epoch * 10),
            next_record: RecordNumber(epoch * 100),
            complete: epoch == 7,
        };
        for epochs in [&[7, 6, 4][..], &[8], &[]] {
            let all: Vec<_> = epochs.iter().copied().map(continued).collect();
            let lineage = Lineage::from(all);
            ring.set_epoch(Epoch(9), lineage.clone(), None, PublisherState::Standby);
            let reader = RingReader::attach(ring.memory()).unwrap();
            assert_eq!(reader.lineage(), &lineage);
            for at in 0..Lineage::MAX {
                let epoch = epochs.get(at).copied().unwrap_or(0);
                let words = [0, 8, 16, 24].map(|word| ring.words.0.load(2048 + 32 * at + word));
                let flags = u64::from(epoch == 7);
                assert_eq!(words, [epoch, epoch * 10, epoch * 100, flags], "entry {at}");
            }
        }
    }

    #[test]
    fn ring_drops_slots_of_forgotten_epochs() {
        let forgotten = |last| {
            Some(Continued {
                epoch: Epoch(4),
                last: Sequence(last),
                next_record: RecordNumber(last + 1),
                complete: false,
            })
        };
        let mut ring = ring(20);
        for (last, oldest) in [(3, 5), (4, 5), (5, 6), (9, 10), (6, 10)] {
            let lineage = Lineage::default();
            ring.set_epoch(Epoch(5), lineage, forgotten(last), PublisherState::Live);
            assert_eq!(ring.oldest(), Sequence(oldest), "forgotten up to {last}");
            assert_eq!(ring.reader().verify(), Ok(range(oldest, 20)));
        }
    }
}
