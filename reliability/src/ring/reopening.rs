//! A ring that outlived its writer: the next one goes on where that stood, if every datagram that it
//! says to hold is what was sealed (docs/PROTOCOL.md §9).

use std::sync::Arc;

use super::{OwnWords, RingMemory, RingReader, RingWriter, WORD, checkpoint_offset};
use crate::record::words_as_bytes;
use crate::ring_layout::{CHECKPOINTS_MAX, RingError, offset};
use crate::units::{SequenceRange, SourceId, SourcePosition};
use crate::wire::{Datagram, Kind, StreamEvent};

impl RingWriter {
    /// Goes on with the ring in `memory`, as its last writer left it, wherever that was stopped: what it
    /// sealed stays as it is, also a datagram that was sealed and not told yet; a slot that was half
    /// written is written anew. The memory must be nobody else's by now.
    ///
    /// # Errors
    /// [`RingError`]: no ring, one of another layout, or a slot that does not hold what was sealed.
    pub fn reopen(mut memory: Arc<dyn RingMemory>) -> Result<Self, RingError> {
        if Arc::get_mut(&mut memory).is_none() {
            return Err(RingError::Shared);
        }
        let reader = RingReader::attach(memory)?;
        reader.verify()?;
        let mut sealed = reader.sealed();
        // The slot is complete before the control page says so, and who READs slots may have had it.
        if reader.holds(sealed.next())? {
            sealed = sealed.next();
        }
        let next_record = reader
            .next_record_after(sealed)
            .ok_or(RingError::Slot { sequence: sealed.0 })?;
        let oldest = reader.oldest();
        let sources = std::array::from_fn(|index| {
            let source = reader.words.load(checkpoint_offset(index) + WORD);
            u16::try_from(source.checked_sub(1)?).ok().map(SourceId)
        });
        let RingReader {
            words,
            identity,
            lineage,
        } = reader;
        let mut words = OwnWords(words);
        words.store(offset::NEXT_RECORD, next_record.0);
        words.store(offset::SEALED, sealed.0);
        Ok(Self {
            words,
            identity,
            lineage,
            sealed,
            oldest,
            next_record,
            open: None,
            sources,
            kept: None,
        })
    }
}

impl RingReader {
    /// How far each source is sealed: by the datagrams held, and by the checkpoints where none is held of a
    /// source. For a ring that nobody writes just now.
    #[must_use]
    pub fn positions(&self) -> Vec<(SourceId, SourcePosition)> {
        let mut all: Vec<(SourceId, SourcePosition)> = Vec::new();
        let mut reach = |source, position| match all.iter_mut().find(|(id, _)| *id == source) {
            Some((_, at)) => *at = (*at).max(position),
            None => all.push((source, position)),
        };
        for index in 0..CHECKPOINTS_MAX {
            let source = self.words.load(checkpoint_offset(index) + WORD);
            let source = source.checked_sub(1).and_then(|id| u16::try_from(id).ok());
            // One that was being written is behind the datagram that it was written for, which is held.
            if let Some(at) = source.and_then(|id| self.checkpoint(SourceId(id))) {
                reach(at.source, at.position);
            }
        }
        let mut buffer = vec![0; self.geometry().slot_len() / WORD];
        let held = SequenceRange::new(self.oldest(), self.sealed());
        for sequence in held.into_iter().flat_map(SequenceRange::iter) {
            let Ok(len) = self.copy(sequence, &mut buffer) else {
                continue;
            };
            let Ok(datagram) = Datagram::parse(&words_as_bytes(&buffer)[..len]) else {
                continue;
            };
            let header = datagram.header();
            match header.kind {
                Kind::Data => reach(header.source, header.source_position),
                Kind::Event => {
                    if let Some((source, last)) = last_lost(datagram.payload()) {
                        reach(source, last);
                    }
                }
                _ => {}
            }
        }
        all
    }
}

/// Up to where a source's messages were told as lost.
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
    use crate::ring::{HeapMemory, Seal};
    use crate::ring_layout::{Checkpoint, Geometry, RingIdentity};
    use crate::units::{ChannelId, ConfigHash, Epoch, Nanos, RecordNumber, Sequence};
    use crate::wire::SourceLossReason;

    const A: SourceId = SourceId(1);
    const B: SourceId = SourceId(2);

    fn at(sequence: u64) -> SourcePosition {
        SourcePosition::new(0, sequence)
    }

    fn ring() -> RingWriter {
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

    fn reopened(ring: RingWriter) -> Result<RingWriter, RingError> {
        let memory = ring.memory();
        drop(ring);
        RingWriter::reopen(memory)
    }

    #[test]
    fn a_ring_goes_on_where_its_writer_stopped_and_what_was_half_written_is_written_anew() {
        for sealed in [0, 1, 15, 16, 40] {
            let mut ring = ring();
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
    fn a_datagram_that_was_sealed_and_not_told_yet_counts() {
        let mut ring = ring();
        (1..=3).for_each(|n| seal(&mut ring, Kind::Data, A, n, &[7; 56]));
        let whole = ring.slot(Sequence(3)).map(<[u8]>::to_vec);
        // As of a writer that was killed between the two.
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
    fn a_ring_with_a_slot_that_does_not_verify_or_in_other_hands_is_not_gone_on_with() {
        let mut ring = ring();
        (1..=3).for_each(|n| seal(&mut ring, Kind::Data, A, n, &[7; 56]));
        let other = ring.reader();
        assert_eq!(reopened(ring).err(), Some(RingError::Shared));
        drop(other);
        for damaged in [2, 4] {
            let mut ring = self::ring();
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
    fn positions_are_those_of_the_last_message_sealed_or_told_as_lost() {
        let mut ring = ring();
        // The ring no longer holds anything of B.
        seal(&mut ring, Kind::Data, B, 70, &[7; 56]);
        assert!(ring.set_checkpoint(Checkpoint {
            source: B,
            position: at(70),
            session: [0; 16]
        }));
        assert!(ring.set_checkpoint(Checkpoint {
            source: A,
            position: at(9),
            session: [0; 16]
        }));
        (10..40).for_each(|n| seal(&mut ring, Kind::Data, A, n, &[7; 56]));
        assert_eq!(ring.reader().positions(), [(B, at(70)), (A, at(39))]);
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
        let mut ring = reopened(ring).unwrap();
        assert_eq!(ring.reader().positions(), [(B, at(70)), (A, at(42))]);
        // And its checkpoints go on in their places.
        assert!(ring.set_checkpoint(Checkpoint {
            source: A,
            position: at(50),
            session: [0; 16]
        }));
        assert_eq!(ring.reader().positions(), [(B, at(70)), (A, at(50))]);
    }
}
