//! A ring whose datagrams another publisher sealed: they are taken as they are, in the same places,
//! until it is sealed on under an epoch of its own (docs/PROTOCOL.md §9).

use super::{RingWriter, SEQUENCE_WORD, WORD, checkpoint_offset, fan_out_offset, slot, words_of};
use crate::atomics::Ordering::{Relaxed, Release};
use crate::atomics::fence;
use crate::lineage::{Continued, Lineage};
use crate::planted::{Bug, planted};
use crate::ring_layout::{CHECKPOINTS_MAX, FAN_OUTS_MAX, RING_MAGIC, RingError, offset};
use crate::units::{Epoch, FanOutId, RecordNumber, Sequence};
use crate::wire::{Datagram, PublisherState, RELAY_OFFSET};

impl RingWriter {
    /// Takes the datagram after the last one, as it was sealed elsewhere; the relay byte, which
    /// says how a copy of it came, is left behind.
    ///
    /// # Errors
    /// [`RingError::SlotFull`] when it is longer than a slot, [`RingError::Exhausted`].
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

    /// Puts another content into a slot that is held: what was taken was not the publisher's. For a
    /// ring that nobody reads yet.
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

    /// Begins anew with this sequence and record: nothing is held any more.
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
        for index in 0..CHECKPOINTS_MAX {
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

    /// Takes back everything above `last`, which another epoch seals anew from the record of this
    /// number on.
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

    /// What follows is of `epoch`, which has this lineage; what is held stays as it was sealed. What
    /// no epoch of the lineage sealed is out of the ring.
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
            let entry = of.map_or([0; 3], |it| [it.epoch.0, it.last.0, it.next_record.0]);
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

    /// Whoever sealed what is held has sent it.
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

    /// Writes a slot that is out of the ring: its sequence last.
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
        slot::seal(slot, sequence.0);
    }
}
