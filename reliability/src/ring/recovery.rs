//! Reopening of a ring that outlived its writer: the next writer continues there, if every held datagram is
//! what was sealed (docs/PROTOCOL.md §9).

use std::sync::Arc;

use super::reader::{Place, damaged};
use super::{HEADER_WORDS, OwnWords, RingMemory, RingReader, RingWriter, WORD, slot};
use crate::record::words_as_bytes;
use crate::ring::layout::{CHECKPOINTS_MAX, RingError, offset};
use crate::types::{FanOutId, RecordNumber, Sequence, SequenceRange, SourceId, SourcePosition};
use crate::wire::{Datagram, Kind, PublisherState, StreamEvent};

impl RingWriter {
    /// Continues with the ring in `memory` as its last writer left it, wherever that writer was stopped.
    ///
    /// Sealed datagrams stay unchanged. The last one may be sealed but not yet published in the control page;
    /// it is kept and published. An END among the held datagrams sets the state to ended. A half-written slot
    /// is dropped and its sequence is sealed anew.
    ///
    /// # Errors
    /// [`RingError`] on one of these conditions:
    /// - `memory` has another owner, or is too small or misaligned;
    /// - it holds no ring, or one of another layout;
    /// - the control page or a checkpoint has a value that its writer cannot have left there;
    /// - a held slot does not contain what was sealed.
    pub fn reopen(mut memory: Arc<dyn RingMemory>) -> Result<Self, RingError> {
        if Arc::get_mut(&mut memory).is_none() {
            return Err(RingError::Shared);
        }
        let reader = RingReader::attach(memory)?;
        reader.verify()?;
        let published = reader.sealed();
        // Keep this slot: it is complete before the control page says so, and a READ may have copied it
        // already.
        let sealed = match reader.holds(published.next())? {
            true => published.next(),
            false => published,
        };
        let next_record = reader
            .next_record_after(sealed)
            .ok_or(RingError::Slot { sequence: sealed.0 })?;
        reader.check_numbers(sealed, next_record)?;
        let held = reader.held(sealed);
        let sources = reader.check_checkpoints(&held.data)?;
        let oldest = reader.oldest();
        let RingReader {
            words,
            identity,
            lineage,
        } = reader;
        let mut words = OwnWords(words);
        words.store(offset::NEXT_RECORD, next_record.0);
        words.store(offset::SEALED, sealed.0);
        if held.ended {
            words.store(offset::STATE, PublisherState::Ended as u64);
        }
        Ok(Self {
            words,
            identity,
            lineage,
            sealed,
            oldest,
            next_record,
            open: None,
            tagger: None,
            payload_word: HEADER_WORDS,
            sources,
            kept: None,
        })
    }
}

impl RingReader {
    /// Returns the last sealed position of each source, from the held datagrams. A source without held
    /// datagrams has the position of its checkpoint. Messages reported as lost count as sealed. For a
    /// ring that is not being written.
    #[must_use]
    pub fn positions(&self) -> Vec<(SourceId, SourcePosition)> {
        let Held { mut data, lost, .. } = self.held(self.sealed());
        for index in 0..CHECKPOINTS_MAX {
            if let Place::Whole(at) = self.checkpoint_at(index)
                && position_of(&data, at.source).is_none()
            {
                data.push((at.source, at.position));
            }
        }
        for (source, last) in lost {
            reach(&mut data, source, last);
        }
        data
    }

    /// Rejects control-page numbers that a writer of these slots cannot have left there.
    fn check_numbers(&self, sealed: Sequence, next_record: RecordNumber) -> Result<(), RingError> {
        let (published, oldest) = (self.sealed(), self.oldest());
        let slots = self.geometry().slots();
        let versions = (0..slots).map(|slot| slot::version_before(self.words.slot(Sequence(slot))));
        if versions.max().unwrap_or(0) > sealed.0 {
            return Err(damaged("sealed", published.0));
        }
        // A writer publishes both numbers right after it completes a slot, the record number first.
        let said = RecordNumber(self.words.load(offset::NEXT_RECORD));
        if said != next_record && Some(said) != self.next_record_after(published) {
            return Err(damaged("next record", said.0));
        }
        let epochs = self.lineage.epochs();
        if !self.lineage.is_possible(self.identity.epoch) {
            return Err(damaged(
                "epoch continued",
                epochs.first().map_or(0, |it| it.epoch.0),
            ));
        }
        // A mirrored ring may have been cut at either end, so only a ring without lineage must be full.
        let full = sealed
            .plus(2)
            .minus(slots)
            .max(self.identity.first_sequence);
        if epochs.is_empty() && oldest > full {
            return Err(damaged("oldest", oldest.0));
        }
        let sent = (0..self.identity.fan_outs).map(|index| self.sent(FanOutId(index)));
        match sent.max() {
            Some(sent) if sent > sealed => Err(damaged("sent", sent.0)),
            _ => Ok(()),
        }
    }

    /// Checks the checkpoints. None may lie beyond the held datagrams of its source. If a checkpoint was
    /// being written, its datagram must be held.
    fn check_checkpoints(
        &self,
        data: &[(SourceId, SourcePosition)],
    ) -> Result<[Option<SourceId>; CHECKPOINTS_MAX], RingError> {
        let mut sources = [None; CHECKPOINTS_MAX];
        for index in 0..CHECKPOINTS_MAX {
            let (source, possible) = match self.checkpoint_at(index) {
                Place::Unused => continue,
                Place::Torn(source) => (source, position_of(data, source).is_some()),
                Place::Whole(it) => {
                    let newest = position_of(data, it.source);
                    (it.source, newest.is_none_or(|newest| it.position <= newest))
                }
                Place::Damaged => (SourceId(0), false),
            };
            let is_next = sources[..index]
                .iter()
                .all(|it| it.is_some() && *it != Some(source));
            if !possible || !is_next {
                return Err(damaged("a checkpoint", index as u64));
            }
            sources[index] = Some(source);
        }
        Ok(sources)
    }

    /// Calls `each` for every held datagram, the oldest first. For a ring that is not being written.
    pub fn each_held(&self, each: impl FnMut(&Datagram<'_>)) {
        self.each_held_after(Sequence::NONE, each);
    }

    /// Calls `each` for every held datagram behind this sequence, as [`each_held`](Self::each_held) does.
    pub fn each_held_after(&self, after: Sequence, each: impl FnMut(&Datagram<'_>)) {
        self.each_between(after, self.sealed(), each);
    }

    fn each_between(&self, after: Sequence, sealed: Sequence, mut each: impl FnMut(&Datagram<'_>)) {
        let mut buffer = vec![0; self.geometry().slot_len() / WORD];
        // Bound the range by the number of slots, because the control page may be wrong.
        let oldest = self
            .oldest()
            .max(sealed.next().minus(self.geometry().slots()))
            .max(after.next());
        let held = SequenceRange::new(oldest, sealed);
        for sequence in held.into_iter().flat_map(SequenceRange::iter) {
            let Ok(len) = self.copy(sequence, &mut buffer) else {
                continue;
            };
            if let Ok(datagram) = Datagram::parse(&words_as_bytes(&buffer)[..len]) {
                each(&datagram);
            }
        }
    }

    /// Returns the source positions in the datagrams up to `sealed`.
    fn held(&self, sealed: Sequence) -> Held {
        let mut all = Held::default();
        self.each_between(Sequence::NONE, sealed, |datagram| {
            let header = datagram.header();
            match header.kind {
                Kind::Data => reach(&mut all.data, header.source, header.source_position),
                Kind::Event => {
                    if let Some((source, last)) = last_lost(datagram.payload()) {
                        reach(&mut all.lost, source, last);
                    }
                }
                Kind::End => all.ended = true,
                _ => {}
            }
        });
        all
    }
}

/// The source positions in the datagrams of a ring.
#[derive(Default)]
struct Held {
    /// Position of each source's last message.
    data: Vec<(SourceId, SourcePosition)>,
    /// Position of each source's last message reported as lost.
    lost: Vec<(SourceId, SourcePosition)>,
    /// Whether END is among the datagrams.
    ended: bool,
}

fn position_of(all: &[(SourceId, SourcePosition)], source: SourceId) -> Option<SourcePosition> {
    let found = all.iter().find(|(id, _)| *id == source);
    found.map(|(_, at)| *at)
}

fn reach(all: &mut Vec<(SourceId, SourcePosition)>, source: SourceId, to: SourcePosition) {
    match all.iter_mut().find(|(id, _)| *id == source) {
        Some((_, at)) => *at = (*at).max(to),
        None => all.push((source, to)),
    }
}

/// Returns the last position that a loss event of a source covers.
fn last_lost(event: &[u8]) -> Option<(SourceId, SourcePosition)> {
    let Some(StreamEvent::SourceLost {
        source,
        from,
        messages,
        ..
    }) = StreamEvent::parse(event)
    else {
        return None;
    };
    let more = if messages == u64::MAX {
        0
    } else {
        messages.saturating_sub(1)
    };
    Some((source, SourcePosition(from.0.saturating_add(more))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::layout::{CONTROL_PAGE_LEN, Checkpoint, Geometry, RingIdentity};
    use crate::ring::{HeapMemory, Seal, checkpoint_offset};
    use crate::types::{ChannelId, ConfigHash, Epoch, Nanos};
    use crate::wire::SourceLossReason;

    const A: SourceId = SourceId(1);
    const B: SourceId = SourceId(2);

    fn at(sequence: u64) -> SourcePosition {
        SourcePosition::new(0, sequence)
    }

    fn a_ring() -> RingWriter {
        let geometry = Geometry::new(1024, 16).unwrap();
        let identity = RingIdentity {
            channel: ChannelId(1),
            epoch: Epoch(5),
            config_hash: ConfigHash(7),
            boot_id: [3; 16],
            fan_outs: 1,
            first_sequence: Sequence::FIRST,
            first_record: RecordNumber::FIRST,
        };
        RingWriter::create(Arc::new(HeapMemory::new(geometry)), geometry, identity).unwrap()
    }

    fn seal(ring: &mut RingWriter, kind: Kind, source: SourceId, position: u64, bytes: &[u8]) {
        ring.open().unwrap();
        ring.append(bytes).unwrap();
        ring.seal(Seal {
            kind,
            count: u16::from(kind == Kind::Data) * 2,
            source,
            source_position: at(position),
            sent_at: Nanos(11),
            flags: 0,
        })
        .unwrap();
    }

    fn checkpoint(ring: &mut RingWriter, source: SourceId, position: u64) -> bool {
        ring.set_checkpoint(Checkpoint {
            source,
            position: at(position),
            session: *b"SESSION\0\0\0\0\0\0\0\0\0",
        })
    }

    fn reopened(ring: RingWriter) -> Result<RingWriter, RingError> {
        let memory = ring.memory();
        drop(ring);
        RingWriter::reopen(memory)
    }

    #[test]
    fn ring_continues_where_writer_stopped() {
        for sealed in [0, 1, 15, 16, 40] {
            let mut ring = a_ring();
            for n in 1..=sealed {
                seal(&mut ring, Kind::Data, A, n, &[n as u8; 56]);
            }
            let before: Vec<_> = (1..=sealed)
                .map(|n| ring.slot(Sequence(n)).map(<[u8]>::to_vec))
                .collect();
            ring.open().unwrap();
            ring.append(&[0xee; 200]).unwrap();
            let mut ring = reopened(ring).unwrap();
            assert_eq!(ring.sealed(), Sequence(sealed));
            assert_eq!(ring.next_record(), RecordNumber(1 + 2 * sealed));
            for (n, before) in (1..).zip(before).skip((sealed as usize).saturating_sub(15)) {
                assert_eq!(
                    ring.slot(Sequence(n)).map(<[u8]>::to_vec),
                    before,
                    "{n} of {sealed}"
                );
            }
            seal(&mut ring, Kind::Data, A, sealed + 1, &[1; 8]);
            assert_eq!(ring.sealed(), Sequence(sealed + 1));
            let reader = ring.reader();
            assert_eq!(
                reader.verify().unwrap().map(|held| held.last),
                Some(ring.sealed())
            );
            assert_eq!(reader.identity().epoch, Epoch(5));
        }
    }

    #[test]
    fn slot_sealed_but_unpublished_is_recovered() {
        let mut ring = a_ring();
        (1..=3).for_each(|n| seal(&mut ring, Kind::Data, A, n, &[7; 56]));
        let whole = ring.slot(Sequence(3)).map(<[u8]>::to_vec);
        // The writer was killed between sealing the slot and publishing it.
        ring.words_mut().store(offset::SEALED, 2);
        ring.words_mut().store(offset::NEXT_RECORD, 5);
        let ring = reopened(ring).unwrap();
        assert_eq!(
            (ring.sealed(), ring.next_record()),
            (Sequence(3), RecordNumber(7))
        );
        assert_eq!(ring.slot(Sequence(3)).map(<[u8]>::to_vec), whole);
        assert_eq!(ring.reader().sealed(), Sequence(3));
        assert_eq!(ring.reader().positions(), [(A, at(3))]);
    }

    #[test]
    fn end_sealed_but_unpublished_is_recovered() {
        let mut ring = a_ring();
        seal(&mut ring, Kind::Data, A, 1, &[7; 56]);
        let ring = reopened(ring).unwrap();
        assert_eq!(ring.reader().state(), Some(PublisherState::Live));
        let mut ring = ring;
        seal(&mut ring, Kind::End, SourceId(0), 0, &[]);
        let ring = reopened(ring).unwrap();
        assert_eq!(ring.reader().state(), Some(PublisherState::Ended));
    }

    #[test]
    fn unverified_or_foreign_ring_is_not_continued() {
        let mut ring = a_ring();
        (1..=3).for_each(|n| seal(&mut ring, Kind::Data, A, n, &[7; 56]));
        let other = ring.reader();
        assert_eq!(reopened(ring).err(), Some(RingError::Shared));
        drop(other);
        for damaged in [2, 4] {
            let mut ring = a_ring();
            (1..=4).for_each(|n| seal(&mut ring, Kind::Data, A, n, &[7; 56]));
            ring.words_mut().store(offset::SEALED, 3);
            let at = ring.geometry().slot_offset(Sequence(damaged)) + 64;
            ring.words_mut().store(at, 1);
            assert_eq!(
                reopened(ring).err(),
                Some(RingError::Slot { sequence: damaged })
            );
        }
    }

    #[test]
    fn positions_are_last_sealed_or_reported_lost() {
        let mut ring = a_ring();
        // Now the ring holds no more datagrams of B.
        seal(&mut ring, Kind::Data, B, 70, &[7; 56]);
        assert!(checkpoint(&mut ring, B, 70));
        assert!(checkpoint(&mut ring, A, 9));
        (10..40).for_each(|n| seal(&mut ring, Kind::Data, A, n, &[7; 56]));
        assert_eq!(ring.reader().positions(), [(A, at(39)), (B, at(70))]);
        let mut body = Vec::new();
        StreamEvent::SourceLost {
            source: A,
            reason: SourceLossReason::Gap,
            from: at(40),
            messages: 3,
            instruments: Vec::new(),
        }
        .write(&mut body);
        seal(&mut ring, Kind::Event, A, 40, &body);
        body.clear();
        StreamEvent::SourceLost {
            source: A,
            reason: SourceLossReason::Gap,
            from: at(42),
            messages: 0,
            instruments: Vec::new(),
        }
        .write(&mut body);
        seal(&mut ring, Kind::Event, A, 42, &body);
        let mut ring = reopened(ring).unwrap();
        assert_eq!(ring.reader().positions(), [(A, at(42)), (B, at(70))]);
        // Checkpoints continue in their places.
        assert!(checkpoint(&mut ring, B, 71));
        assert_eq!(ring.reader().positions(), [(A, at(42)), (B, at(71))]);
    }

    /// Returns rings as a killed writer may leave them, between any two stores: before and after the first
    /// wrap, with one source that the ring holds and one that it no longer holds.
    fn left_behind() -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        for sealed in [0, 1, 2, 5, 15, 16, 40] {
            let mut ring = a_ring();
            for n in 1..=sealed {
                let source = if n == 1 && sealed > 16 { B } else { A };
                seal(&mut ring, Kind::Data, source, n, &[n as u8; 56]);
                assert!(checkpoint(&mut ring, source, n));
            }
            ring.set_sent(FanOutId(0), Sequence(sealed.min(4)));
            all.push(bytes_of(&ring));
            ring.open().unwrap();
            all.push(bytes_of(&ring));
            ring.append(&[9; 56]).unwrap();
            seal(&mut ring, Kind::Data, A, sealed + 1, &[9; 56]);
            all.push(bytes_of(&ring));
            ring.words_mut().store(offset::SEALED, sealed);
            all.push(bytes_of(&ring));
            ring.words_mut().store(offset::NEXT_RECORD, 1 + 2 * sealed);
            all.push(bytes_of(&ring));
        }
        all
    }

    fn bytes_of(ring: &RingWriter) -> Vec<u8> {
        let mut bytes = vec![0; ring.geometry().bytes()];
        ring.reader().raw(0, &mut bytes);
        bytes
    }

    /// Returns everything that decides how a publisher continues, except these parts:
    /// - identity, lineage and state, which the publisher compares itself;
    /// - the sent sequences, because unsent ones are sent again or requested;
    /// - the oldest slot of a full ring, which may already be released.
    fn goes_on(ring: &RingWriter) -> impl PartialEq + use<> {
        let (sealed, next_record) = (ring.sealed(), ring.next_record());
        let held = sealed.minus(14).0..=sealed.0;
        let held = held.map(|n| ring.slot(Sequence(n)).map(<[u8]>::to_vec));
        let held: Vec<_> = held.collect();
        (sealed, next_record, ring.reader().positions(), held)
    }

    #[test]
    fn overwritten_control_word_is_refused_or_has_no_effect() {
        let (mut refused, mut same) = (0, 0);
        for left in left_behind() {
            let reopen =
                |bytes: &[u8]| RingWriter::reopen(Arc::new(HeapMemory::left_behind(bytes, || {})));
            let whole = reopen(&left).unwrap();
            for at in (0..CONTROL_PAGE_LEN).step_by(WORD) {
                for value in [0, 1, 2, 3, 1 << 63, u64::MAX] {
                    let mut bytes = left.clone();
                    bytes[at..at + WORD].copy_from_slice(&u64::to_le_bytes(value));
                    let Ok(ring) = reopen(&bytes) else {
                        refused += 1;
                        continue;
                    };
                    let is_compared = ring.identity() != whole.identity()
                        || !ring.lineage().is_empty()
                        || ring.reader().state() != whole.reader().state();
                    assert!(
                        is_compared || goes_on(&ring) == goes_on(&whole),
                        "{value:#x} at {at} of one with {}",
                        whole.sealed()
                    );
                    same += 1;
                }
            }
        }
        assert!(refused > 1_000 && same > 1_000, "{refused} and {same}");
    }

    #[test]
    fn inconsistent_checkpoint_is_refused_on_reopen() {
        let spoilt: [&dyn Fn(&mut RingWriter); 4] = [
            &|ring| assert!(checkpoint(ring, A, 6)),
            &|ring| ring.words_mut().store(checkpoint_offset(1), 1),
            &|ring| ring.words_mut().store(checkpoint_offset(0) + WORD, 0),
            &|ring| ring.words_mut().store(checkpoint_offset(1) + 2 * WORD, 8),
        ];
        for (index, spoil) in spoilt.into_iter().enumerate() {
            let mut ring = a_ring();
            for n in 1..=5 {
                seal(&mut ring, Kind::Data, A, n, &[7; 56]);
            }
            assert!(checkpoint(&mut ring, A, 5) && checkpoint(&mut ring, B, 7));
            assert_eq!(ring.reader().positions(), [(A, at(5)), (B, at(7))]);
            spoil(&mut ring);
            let (word, value) = ("a checkpoint", [0, 1, 0, 1][index]);
            let expected = RingError::Control { word, value };
            assert_eq!(reopened(ring).err(), Some(expected), "{index}");
        }
        // A killed move of a checkpoint: its check was stored, its position was not.
        let mut ring = a_ring();
        seal(&mut ring, Kind::Data, A, 5, &[7; 56]);
        assert!(checkpoint(&mut ring, A, 5));
        seal(&mut ring, Kind::Data, A, 6, &[7; 56]);
        assert!(ring.move_checkpoint(A, at(6)));
        assert_eq!(
            ring.reader().checkpoint(A).map(|it| it.position),
            Some(at(6))
        );
        ring.words_mut()
            .store(checkpoint_offset(0) + 2 * WORD, at(5).0);
        assert_eq!(ring.reader().checkpoint(A), None);
        assert_eq!(reopened(ring).unwrap().reader().positions(), [(A, at(6))]);
        // A checkpoint was being written when the writer was killed. Its datagram is held.
        let mut ring = a_ring();
        seal(&mut ring, Kind::Data, A, 5, &[7; 56]);
        assert!(checkpoint(&mut ring, A, 5));
        ring.words_mut().store(checkpoint_offset(0), 3);
        ring.words_mut().store(checkpoint_offset(0) + 2 * WORD, 99);
        assert_eq!(reopened(ring).unwrap().reader().positions(), [(A, at(5))]);
    }
}
