//! Compares the messages that inputs replay after a restart with the rings. It detects a source
//! that replays other messages, or fewer, before any later message is published.
//!
//! The check uses the ring itself, so publishing keeps no extra data. The ring holds the end of a
//! source's messages on a channel. A datagram gives only the position of its last message, so the
//! position where the first held datagram begins is unknown. The check finds that begin by length:
//! it buffers the last replayed bytes up to the datagram's position.

use std::path::PathBuf;

use tickcast_reliability::record::RecordSlice;
use tickcast_reliability::ring::RingReader;
use tickcast_reliability::types::{Epoch, SourceId, SourcePosition};
use tickcast_reliability::wire::Kind;
use tickcast_transport::host::files::{DirectoryEntry, Readers};
use xxhash_rust::xxh3::Xxh3;

use crate::state::positions::Positions;

/// Length of the longest recorded epoch, in bytes.
const EPOCH_LEN_MAX: u64 = 64;

/// Bytes by which the buffered end may exceed the needed length before it is trimmed.
const SLACK: usize = 64 * 1024;

/// The file that records that an epoch's messages were not replayed. No later run of that epoch can
/// give its digest.
#[derive(Clone, Debug)]
pub(crate) struct ReplayMismatch {
    pub(crate) path: Option<PathBuf>,
    pub(crate) epoch: Epoch,
}

impl ReplayMismatch {
    /// Returns whether an earlier run recorded a mismatch for this epoch.
    pub(crate) fn is_kept(&self) -> bool {
        let Some(path) = &self.path else { return false };
        let kept = DirectoryEntry::trusted(path).and_then(|entry| entry.read(EPOCH_LEN_MAX));
        let kept = kept
            .ok()
            .flatten()
            .and_then(|it| String::from_utf8(it).ok());
        kept.is_some_and(|kept| kept.trim() == self.epoch.to_string())
    }

    /// Records the mismatch.
    pub(crate) fn keep(&self) {
        let Some(path) = &self.path else { return };
        let text = format!("{}\n", self.epoch);
        let written = DirectoryEntry::trusted(path)
            .and_then(|entry| entry.write(text.as_bytes(), Readers::Owner));
        if let Err(error) = written {
            let path = path.display();
            tracing::error!(%path, %error, "the replay mismatch can't be recorded; a later run of \
                                            this epoch may show a wrong digest: make the state \
                                            directory writable");
        }
    }
}

/// The replay in progress, by channel.
pub(crate) struct ReplayCheck(Vec<Vec<SourceReplay>>);

/// A source that did not replay its published messages on a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mismatch {
    /// Last position published.
    pub(crate) last: SourcePosition,
    /// Highest position that the source replayed; `None` if it replayed nothing.
    pub(crate) given: Option<SourcePosition>,
}

/// The replay of one source on one channel.
struct SourceReplay {
    source: SourceId,
    last: SourcePosition,
    given: Option<SourcePosition>,
    /// Hash of the records that the ring holds.
    held: Xxh3,
    /// Position and payload length in bytes of the source's first datagram in the ring. `None` if the
    /// ring holds everything, or hashing has begun.
    begins: Option<(SourcePosition, usize)>,
    /// The last bytes replayed up to that position, at least that length if there are as many.
    end: Vec<u8>,
    /// Hash of the replayed records, from the begin of that datagram on.
    replayed: Xxh3,
}

impl ReplayCheck {
    /// Creates the check for the contents of these rings, up to `sealed`.
    pub(crate) fn of<'a>(
        rings: impl Iterator<Item = RingReader>,
        sealed: impl Iterator<Item = &'a Positions>,
    ) -> Self {
        Self(
            rings
                .zip(sealed)
                .map(|(ring, it)| held(&ring, it))
                .collect(),
        )
    }

    /// Adds the records that a source replays on a channel; a message that was reported lost has no
    /// records.
    pub(crate) fn take(
        &mut self,
        channel: usize,
        source: SourceId,
        at: SourcePosition,
        records: RecordSlice<'_>,
    ) {
        let mut all = self.0.get_mut(channel).into_iter().flatten();
        if let Some(replayed) = all.find(|replayed| replayed.source == source) {
            replayed.take(at, records.bytes());
        }
    }

    /// Ends the check of a source that has passed its published messages, or has ended. Returns a
    /// mismatch, once.
    pub(crate) fn end(&mut self, channel: usize, source: SourceId) -> Option<Mismatch> {
        let all = self.0.get_mut(channel)?;
        let index = all.iter().position(|replayed| replayed.source == source)?;
        all.swap_remove(index).mismatch()
    }

    /// Ends the check of a channel. Returns whether a published message is missing or differs.
    pub(crate) fn is_missing(&mut self, channel: usize) -> bool {
        let all = self.0.get_mut(channel);
        all.is_some_and(|all| all.drain(..).any(|replayed| replayed.mismatch().is_some()))
    }
}

impl SourceReplay {
    fn take(&mut self, at: SourcePosition, records: &[u8]) {
        self.given = self.given.max(Some(at));
        match self.begins {
            Some((first, len)) if at <= first => {
                self.end.extend_from_slice(records);
                let more = self.end.len().saturating_sub(len);
                if more > SLACK {
                    self.end.drain(..more);
                }
            }
            _ => {
                self.begin();
                self.replayed.update(records);
            }
        }
    }

    /// Begins hashing with the first held datagram: from here on the ring holds every replayed record.
    fn begin(&mut self) {
        if let Some((_, len)) = self.begins.take() {
            let before = self.end.len().saturating_sub(len);
            self.replayed.update(&self.end[before..]);
            self.end = Vec::new();
        }
    }

    fn mismatch(mut self) -> Option<Mismatch> {
        self.begin();
        let is_same =
            self.given >= Some(self.last) && self.replayed.digest128() == self.held.digest128();
        let (last, given) = (self.last, self.given);
        (!is_same).then_some(Mismatch { last, given })
    }
}

fn held(ring: &RingReader, sealed: &Positions) -> Vec<SourceReplay> {
    let is_whole = ring.oldest() == ring.identity().first_sequence;
    let replayed = |(source, last): &(SourceId, SourcePosition)| SourceReplay {
        source: *source,
        last: *last,
        given: None,
        held: Xxh3::new(),
        // If the ring holds no datagram of the source, the length is 0.
        begins: (!is_whole).then_some((*last, 0)),
        end: Vec::new(),
        replayed: Xxh3::new(),
    };
    let mut all: Vec<(SourceReplay, bool)> =
        sealed.iter().map(|it| (replayed(it), false)).collect();
    ring.each_held(|datagram| {
        let header = datagram.header();
        let mut of_it = all.iter_mut().filter(|_| header.kind == Kind::Data);
        if let Some((replayed, is_begun)) =
            of_it.find(|(replayed, _)| replayed.source == header.source)
        {
            let records = datagram.payload();
            if !std::mem::replace(is_begun, true) && !is_whole {
                replayed.begins = Some((header.source_position, records.len()));
            }
            replayed.held.update(records);
        }
    });
    all.into_iter().map(|(replayed, _)| replayed).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use tickcast_reliability::publish::Sequencer;
    use tickcast_reliability::record::{MboMsg, RecordBatch};
    use tickcast_reliability::ring::{Geometry, RingIdentity};
    use tickcast_reliability::ring::{HeapMemory, RingWriter};
    use tickcast_reliability::types::{ChannelId, ConfigHash, Nanos, RecordNumber, Sequence};

    use super::*;

    const A: SourceId = SourceId(1);
    const B: SourceId = SourceId(2);
    const SLOTS: u64 = 16;

    fn at(n: u64) -> SourcePosition {
        SourcePosition::new(0, n)
    }

    fn message(order_id: u64) -> RecordBatch {
        let mut batch = RecordBatch::default();
        batch.put(&MboMsg {
            order_id,
            ..MboMsg::default()
        });
        batch
    }

    /// Returns the source of message `n`.
    const fn source(n: u64, each: u64) -> SourceId {
        if (n / each).is_multiple_of(2) { A } else { B }
    }

    /// Returns a ring with alternate messages of A and B, `each` messages in a datagram, and the
    /// last positions.
    fn published(messages: u64, each: u64) -> (RingReader, Positions) {
        let geometry = Geometry::new(1024, SLOTS).unwrap();
        let identity = RingIdentity {
            channel: ChannelId(1),
            epoch: Epoch(2),
            config_hash: ConfigHash(3),
            boot_id: [0; 16],
            fan_outs: 0,
            first_sequence: Sequence::FIRST,
            first_record: RecordNumber::FIRST,
        };
        let memory = Arc::new(HeapMemory::new(geometry));
        let ring = RingWriter::create(memory, geometry, identity).unwrap();
        let mut sequencer = Sequencer::new(ring, Arc::default());
        sequencer.set_completed(Sequence(u64::MAX));
        for n in 1..=messages {
            let source = source(n, each);
            sequencer
                .publish(&message(n), source, at(n), Nanos(1))
                .unwrap();
        }
        sequencer.flush(Nanos(1), true);
        let reader = sequencer.ring().reader();
        let sealed = reader.positions();
        (reader, sealed)
    }

    /// Returns the results for both sources after these messages were replayed.
    fn after(
        (ring, sealed): &(RingReader, Positions),
        each: u64,
        given: impl Iterator<Item = (u64, u64)>,
    ) -> [bool; 2] {
        let mut replayed = ReplayCheck::of([ring.clone()].into_iter(), [sealed].into_iter());
        for (n, order_id) in given {
            let source = source(n, each);
            let last = sealed.iter().find(|(id, _)| *id == source);
            if last.is_some_and(|(_, last)| at(n) <= *last) {
                replayed.take(0, source, at(n), (&message(order_id)).into());
            }
        }
        [A, B].map(|source| replayed.end(0, source).is_some())
    }

    #[test]
    fn unchanged_replay_matches_however_much_ring_holds() {
        let few = [1, 2, 5].map(|each| [1, 2, 7, 16, 40, 1_000].map(|messages| (messages, each)));
        // Covers a single source around the point where its buffered end is trimmed.
        let cut = (1_400..1_500).map(|messages| (messages, 10_000));
        for (messages, each) in few.into_iter().flatten().chain(cut) {
            let ring = published(messages, each);
            let same = (1..=messages + 9).map(|n| (n, n));
            assert_eq!(after(&ring, each, same), [false; 2], "{messages} by {each}");
        }
    }

    #[test]
    fn changed_source_differs_and_other_does_not() {
        for (messages, each) in [(9, 2), (1_000, 2), (1_000, 5)] {
            let ring = published(messages, each);
            let mut held = BTreeSet::new();
            ring.0.each_held(|datagram| {
                let header = datagram.header();
                let last = header.source_position.sequence();
                held.extend(last + 1 - u64::from(header.count)..=last);
            });
            for other in messages.saturating_sub(100).max(1)..=messages {
                let given = (1..=messages).map(|n| (n, if n == other { 0 } else { n }));
                let mismatch = [A, B].map(|it| held.contains(&other) && it == source(other, each));
                assert_eq!(after(&ring, each, given), mismatch, "{other} of {messages}");
            }
        }
    }

    #[test]
    fn source_replaying_fewer_messages_mismatches() {
        for (messages, each) in [(9, 2), (1_000, 2), (1_000, 5)] {
            let ring = published(messages, each);
            let shorter = (1..messages).map(|n| (n, n));
            let mismatch = [A, B].map(|it| it == source(messages, each));
            assert_eq!(after(&ring, each, shorter), mismatch);
        }
    }

    #[test]
    fn source_absent_from_ring_must_repeat_position() {
        // A has only the first messages, which the ring no longer holds.
        let (reader, sealed) = published(999, 500);
        reader.each_held(|datagram| assert_eq!(datagram.header().source, B));
        for (last, mismatch) in [(498, true), (499, false)] {
            let all = held(&reader, &sealed).into_iter();
            let mut replayed = { all }.find(|it| it.source == A).unwrap();
            (1..=last).for_each(|n| replayed.take(at(n), message(n).bytes()));
            assert_eq!(replayed.mismatch().is_some(), mismatch, "{last}");
        }
    }

    #[test]
    fn source_replaying_nothing_mismatches() {
        let ring = published(50, 3);
        assert_eq!(after(&ring, 3, std::iter::empty()), [true; 2]);
    }
}
