//! Input messages that are not mirrored yet, which may have to be published again. A message is
//! released once the mirror of each of its channels has it. A full backlog evicts the oldest
//! message, which is lost unless the mirrors pass it in the end.

use std::collections::VecDeque;

use tickcast_reliability::record::RecordBatch;
use tickcast_reliability::types::{SourceId, SourcePosition};
use tickcast_reliability::wire::SourceLossReason;

use crate::ingest::queue::SourceItem;
use crate::plan::routing::{ChannelSet, Router};
use crate::standby::agreement::Found;
use crate::state::positions::{Positions, position_of};
use crate::state::source_loss::SourceLoss;
use crate::state::standby_view::Head;

/// One item of a source.
#[derive(Debug)]
pub(crate) struct BacklogEntry {
    /// Arrival number over all sources.
    arrived: u64,
    pub(crate) position: SourcePosition,
    /// The channels of the item.
    pub(crate) channels: ChannelSet,
    pub(crate) what: BacklogItem,
}

/// The kind of the item.
#[derive(Debug)]
pub(crate) enum BacklogItem {
    /// A message.
    Message(RecordBatch),
    /// Messages that never came.
    Lost(SourceLoss),
}

/// The released items of a channel: mirrored or evicted.
#[derive(Clone, Copy, Debug)]
struct Gone {
    first: SourcePosition,
    last: SourcePosition,
}

struct Source {
    id: SourceId,
    entries: VecDeque<BacklogEntry>,
    /// By channel.
    gone: Vec<Option<Gone>>,
}

/// The kept items, in order of arrival.
pub(crate) struct Backlog {
    sources: Vec<Source>,
    /// Memory to reuse.
    free: Vec<RecordBatch>,
    max: usize,
    len: usize,
    arrived: u64,
}

impl Backlog {
    /// Creates a backlog of at most `max` messages for these sources, numbered in this order.
    pub(crate) fn new(sources: impl Iterator<Item = SourceId>, max: usize) -> Self {
        let source = |id| Source {
            id,
            entries: VecDeque::new(),
            gone: Vec::new(),
        };
        Self {
            sources: sources.map(source).collect(),
            free: Vec::new(),
            max: max.max(1),
            len: 0,
            arrived: 0,
        }
    }

    /// Returns the number of messages kept.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Keeps an item of a source for these channels. Returns the number of messages evicted.
    pub(crate) fn take(
        &mut self,
        source: usize,
        item: &SourceItem<'_>,
        channels: ChannelSet,
    ) -> u64 {
        if channels.is_empty() {
            return 0;
        }
        let (position, what) = match item {
            // Without records there is nothing to publish.
            SourceItem::Message(_, records) if records.is_empty() => return 0,
            SourceItem::Message(position, records) => {
                let mut batch = self.free.pop().unwrap_or_default();
                batch.copy_from(*records);
                (*position, BacklogItem::Message(batch))
            }
            SourceItem::Lost(loss) => (loss.from, BacklogItem::Lost((*loss).clone())),
            // The promoted publisher reports the silences that last.
            SourceItem::Incident(_) | SourceItem::Silence(_) | SourceItem::Flush => return 0,
        };
        let evicted = if self.len == self.max {
            self.evict()
        } else {
            0
        };
        self.arrived += 1;
        self.len += 1;
        self.sources[source].entries.push_back(BacklogEntry {
            arrived: self.arrived,
            position,
            channels,
            what,
        });
        evicted
    }

    /// Finds a source's message by its venue sequence.
    pub(crate) fn find(&self, source: usize, sequence: u64) -> Found {
        let entries = &self.sources[source].entries;
        let Some(newest) = entries.back().map(|entry| entry.position) else {
            return Found::NotYet;
        };
        // Search the current session, then the one before.
        for ordinal in [Some(newest.ordinal()), newest.ordinal().checked_sub(1)] {
            let Some(at) = ordinal.map(|ordinal| SourcePosition::new(ordinal, sequence)) else {
                continue;
            };
            let found = entries.binary_search_by_key(&at, |entry| entry.position);
            match found.ok().map(|index| &entries[index].what) {
                Some(BacklogItem::Message(message)) => {
                    let head = Head::of_last(message);
                    return head.map_or(Found::Gone, |head| Found::There(at, head));
                }
                Some(BacklogItem::Lost(_)) => return Found::Gone,
                None => {}
            }
        }
        match sequence > newest.sequence() {
            true => Found::NotYet,
            false => Found::Gone,
        }
    }

    /// Returns the ordinal of a source's current session.
    pub(crate) fn ordinal(&self, source: usize) -> u16 {
        let newest = self.sources[source].entries.back();
        newest.map_or(0, |entry| entry.position.ordinal())
    }

    /// Drops a source's items, because they can't be compared with the mirror: all are lost.
    pub(crate) fn forget(&mut self, source: usize) {
        let source = &mut self.sources[source];
        self.len -= source.entries.len();
        let position = source.entries.back().map(|entry| entry.position);
        let channels = (source.entries.iter()).map(|entry| entry.channels);
        let channels = channels.fold(ChannelSet::default(), ChannelSet::union);
        source.entries.clear();
        source.gone.clear();
        if let Some(position) = position {
            self.len += 1;
            source.entries.push_back(BacklogEntry {
                arrived: 0,
                position,
                channels,
                what: BacklogItem::Lost(SourceLoss::gap(position, u64::MAX)),
            });
        }
    }

    /// Releases mirrored items: `mirrored` has the position of each channel, in the config's order.
    pub(crate) fn trim(&mut self, mirrored: &[Positions]) {
        for source in &mut self.sources {
            let has = |channels: ChannelSet, position| {
                let mut all = channels.iter();
                all.all(|channel| position_of(mirrored, channel, source.id) >= Some(position))
            };
            while let Some(entry) = source
                .entries
                .pop_front_if(|it| has(it.channels, it.last()))
            {
                self.len -= 1;
                entry.release(&mut source.gone, &mut self.free);
            }
        }
    }

    /// Returns all items, in order of arrival, to be published where they are not mirrored. A loss
    /// precedes them for released messages that a mirror lacks: evicted, or cut from the mirror.
    /// Sources are numbered as in [`Kept::new`].
    pub(crate) fn into_entries(
        self,
        mirrored: &[Positions],
    ) -> impl Iterator<Item = (usize, BacklogEntry)> + use<> {
        let mut all = Vec::with_capacity(self.len + self.sources.len());
        for (index, source) in self.sources.into_iter().enumerate() {
            for (channel, gone) in source.gone.iter().enumerate() {
                let lost = gone.and_then(|it| it.lost(mirrored, channel, source.id));
                all.extend(lost.map(|entry| (index, entry)));
            }
            all.extend(source.entries.into_iter().map(|entry| (index, entry)));
        }
        all.sort_by_key(|(_, entry)| entry.arrived);
        all.into_iter()
    }

    /// Evicts the oldest item of the source with the most items. Returns the number of messages
    /// evicted.
    #[cold]
    fn evict(&mut self) -> u64 {
        let Some(source) = self.sources.iter_mut().max_by_key(|it| it.entries.len()) else {
            return 0;
        };
        let Some(entry) = source.entries.pop_front() else {
            return 0;
        };
        self.len -= 1;
        let messages = entry.messages();
        entry.release(&mut source.gone, &mut self.free);
        messages
    }
}

impl BacklogEntry {
    /// Returns the position of its last message.
    fn last(&self) -> SourcePosition {
        match &self.what {
            BacklogItem::Lost(loss) => loss.last(),
            BacklogItem::Message(_) => self.position,
        }
    }

    fn messages(&self) -> u64 {
        match &self.what {
            BacklogItem::Message(_) => 1,
            BacklogItem::Lost(loss) => loss.messages,
        }
    }

    /// Records its release, and returns its memory.
    fn release(self, gone: &mut Vec<Option<Gone>>, free: &mut Vec<RecordBatch>) {
        let (first, last) = (self.position, self.last());
        for channel in self.channels.iter() {
            if gone.len() <= channel {
                gone.resize(channel + 1, None);
            }
            let gone = gone[channel].get_or_insert(Gone { first, last });
            gone.last = gone.last.max(last);
        }
        if let BacklogItem::Message(batch) = self.what {
            free.push(batch);
        }
    }
}

impl Gone {
    /// Returns the part that a channel's mirror lacks, as a loss. It counts one message per
    /// position, and some of these may have been for other channels.
    fn lost(
        self,
        mirrored: &[Positions],
        channel: usize,
        source: SourceId,
    ) -> Option<BacklogEntry> {
        let from = match position_of(mirrored, channel, source) {
            Some(at) if at >= self.last => return None,
            Some(at) => self.first.max(SourcePosition(at.0 + 1)),
            None => self.first,
        };
        let messages = match from.ordinal() == self.last.ordinal() {
            true => self.last.0 - from.0 + 1,
            false => u64::MAX,
        };
        let what = SourceLoss::of(SourceLossReason::Overflow, from, messages, &[]);
        Some(BacklogEntry {
            arrived: 0,
            position: from,
            channels: ChannelSet::default().with(channel),
            what: BacklogItem::Lost(what),
        })
    }
}

/// Returns the channels of an item, and learns its instruments.
pub(crate) fn channels_of(
    router: &mut Router,
    item: &SourceItem<'_>,
    on: impl FnMut(crate::plan::routing::Announced),
) -> ChannelSet {
    match item {
        SourceItem::Message(_, records) => router.route(*records, on),
        SourceItem::Lost(loss) => router.of_all(&loss.instruments),
        SourceItem::Incident(_) | SourceItem::Silence(_) | SourceItem::Flush => {
            ChannelSet::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use tickcast_reliability::record::{MboMsg, RType, RecordHeader};

    use super::*;

    const A: SourceId = SourceId(1);
    const B: SourceId = SourceId(2);

    fn message() -> RecordBatch {
        let mut batch = RecordBatch::default();
        batch.put(&MboMsg {
            hd: RecordHeader::new::<MboMsg>(RType::Mbo as u8, 2, 7, 0),
            ..MboMsg::default()
        });
        batch
    }

    fn at(sequence: u64) -> SourcePosition {
        SourcePosition::new(0, sequence)
    }

    fn to(channels: &[usize]) -> ChannelSet {
        (channels.iter()).fold(ChannelSet::default(), |set, channel| set.with(*channel))
    }

    fn reported(backlog: Backlog, mirrored: &[Positions]) -> Vec<String> {
        let all = backlog.into_entries(mirrored);
        let text = |(source, entry): (usize, BacklogEntry)| match &entry.what {
            BacklogItem::Message(records) => {
                format!("{source}:{} of {}", entry.position, records.len())
            }
            BacklogItem::Lost(loss) => {
                format!("{source}: lost {} from {}", loss.messages, loss.from)
            }
        };
        all.map(text).collect()
    }

    #[test]
    fn fully_mirrored_message_part_is_dropped() {
        let mut backlog = Backlog::new([A, B].into_iter(), 100);
        let records = message();
        for n in 1..=4 {
            // Source A goes to both channels with every other message.
            let channels = if n % 2 == 0 { to(&[0, 1]) } else { to(&[0]) };
            assert_eq!(
                backlog.take(0, &SourceItem::Message(at(n), (&records).into()), channels),
                0
            );
            backlog.take(
                1,
                &SourceItem::Message(at(10 * n), (&records).into()),
                to(&[0]),
            );
        }
        let nobody = backlog.take(1, &SourceItem::Message(at(50), (&records).into()), to(&[]));
        let empty = backlog.take(
            1,
            &SourceItem::Message(at(50), (&RecordBatch::default()).into()),
            to(&[0]),
        );
        assert_eq!((nobody, empty, backlog.len()), (0, 0, 8));
        backlog.trim(&[vec![(A, at(9))], vec![]]);
        assert_eq!(backlog.len(), 7, "channel 1 lacks the second one");
        let mirrored = [vec![(A, at(9)), (B, at(20))], vec![(A, at(2))]];
        backlog.trim(&mirrored);
        assert_eq!(backlog.len(), 3);
        let expected = ["0:0:4 of 1", "1:0:30 of 1", "1:0:40 of 1"];
        let mut reported = reported(backlog, &mirrored);
        reported.sort();
        assert_eq!(reported, expected);
    }

    #[test]
    fn overflow_evicts_oldest_which_is_lost_unless_mirrored() {
        let records = message();
        let full = || {
            let mut backlog = Backlog::new([A].into_iter(), 3);
            let evicted: u64 = (1..=8)
                .map(|n| backlog.take(0, &SourceItem::Message(at(n), (&records).into()), to(&[0])))
                .sum();
            assert_eq!((backlog.len(), evicted), (3, 5));
            backlog
        };
        let rest = ["0:0:6 of 1", "0:0:7 of 1", "0:0:8 of 1"];
        for (mirrored, lost) in [
            (vec![], Some("0: lost 5 from 0:1")),
            (vec![(A, at(3))], Some("0: lost 2 from 0:4")),
            (vec![(A, at(5))], None),
        ] {
            let mut expected: Vec<&str> = lost.into_iter().collect();
            expected.extend(rest);
            assert_eq!(reported(full(), &[mirrored]), expected);
        }
    }

    #[test]
    fn released_message_cut_from_mirror_is_lost() {
        let mut backlog = Backlog::new([A].into_iter(), 9);
        let records = message();
        for n in 1..=4 {
            backlog.take(0, &SourceItem::Message(at(n), (&records).into()), to(&[0]));
        }
        backlog.trim(&[vec![(A, at(3))]]);
        assert_eq!(
            reported(backlog, &[vec![(A, at(1))]]),
            ["0: lost 2 from 0:2", "0:0:4 of 1"]
        );
    }

    #[test]
    fn venue_sequence_is_found_in_current_or_prior_session() {
        let mut backlog = Backlog::new([A].into_iter(), 9);
        assert_eq!(backlog.find(0, 1), Found::NotYet);
        let records = message();
        for position in [at(7), at(9), SourcePosition::new(1, 2)] {
            backlog.take(
                0,
                &SourceItem::Message(position, (&records).into()),
                to(&[0]),
            );
        }
        let head = Head::of_last(&records).unwrap();
        assert_eq!(backlog.find(0, 9), Found::There(at(9), head));
        let newest = SourcePosition::new(1, 2);
        assert_eq!(backlog.find(0, 2), Found::There(newest, head));
        assert_eq!(
            (backlog.find(0, 1), backlog.find(0, 3)),
            (Found::Gone, Found::NotYet)
        );
        backlog.forget(0);
        let lost = format!("0: lost {} from 1:2", u64::MAX);
        assert_eq!(reported(backlog, &[vec![(A, at(7))]]), [lost]);
    }

    #[test]
    fn source_loss_is_kept_until_mirror_passes_it() {
        let mut backlog = Backlog::new([A].into_iter(), 9);
        backlog.take(0, &SourceItem::Lost(&SourceLoss::gap(at(5), 3)), to(&[0]));
        backlog.trim(&[vec![(A, at(6))]]);
        assert_eq!(backlog.len(), 1);
        backlog.trim(&[vec![(A, at(7))]]);
        assert_eq!(backlog.len(), 0);
    }
}
