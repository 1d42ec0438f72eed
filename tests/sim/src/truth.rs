//! The ground truth of a run: every datagram sealed and the content of every record, kept apart
//! from the code under test. A record's content follows from its number and the key of its ring.

use std::collections::BTreeMap;

use tickcast_reliability::record::{MboMsg, RecordBatch, TradeMsg};
use tickcast_reliability::types::{ChannelId, Epoch, Sequence, SequenceRange};
use tickcast_reliability::wire::Kind;

/// A sealed datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sealed {
    /// The datagram's kind.
    pub kind: Kind,
    /// Number of its first record, or of the next record when the datagram has none.
    pub first_record: u64,
    /// Number of records in the datagram.
    pub count: u64,
}

/// Key that decides the content of all records of one ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContentKey(u64);

impl ContentKey {
    /// Returns the key of the `nth` ring that was opened for this channel and epoch.
    #[must_use]
    pub const fn of(channel: ChannelId, epoch: Epoch, nth: usize) -> Self {
        Self(epoch.0 ^ (channel.0 as u64) << 48 ^ (nth as u64) << 44)
    }
}

/// All datagrams of one ring.
#[derive(Clone, Debug)]
pub struct EpochTruth {
    /// The ring's first sequence.
    pub first: Sequence,
    key: ContentKey,
    first_record: u64,
    sealed: Vec<Sealed>,
}

impl EpochTruth {
    /// Returns the datagram of this sequence, or `None` when it was not sealed in this ring.
    #[must_use]
    pub fn get(&self, sequence: Sequence) -> Option<&Sealed> {
        let at = sequence.0.checked_sub(self.first.0)?;
        self.sealed.get(usize::try_from(at).ok()?)
    }

    /// Returns the last sequence sealed.
    #[must_use]
    pub fn last(&self) -> Sequence {
        Sequence(self.first.0 - 1 + self.sealed.len() as u64)
    }

    /// Returns the number of the first record at or after this sequence.
    #[must_use]
    pub fn record_at(&self, sequence: Sequence) -> u64 {
        if sequence <= self.first {
            return self.first_record;
        }
        match self.get(sequence) {
            Some(sealed) => sealed.first_record,
            None => self.next_record(),
        }
    }

    /// Returns whether these bytes are the record of this number.
    #[must_use]
    pub fn is_record(&self, number: u64, bytes: &[u8]) -> bool {
        if number.is_multiple_of(5) {
            bytes == trade(self.key, number).as_ref()
        } else {
            bytes == mbo(self.key, number).as_ref()
        }
    }

    /// Returns whether the last datagram sealed is END.
    #[must_use]
    pub fn ended(&self) -> bool {
        self.sealed.last().is_some_and(|s| s.kind == Kind::End)
    }

    /// Returns the number of records sealed in these sequences.
    #[must_use]
    pub fn records_in(&self, range: SequenceRange) -> u64 {
        self.record_at(range.last.next()) - self.record_at(range.first)
    }

    /// Returns the number of the record after the last one sealed.
    #[must_use]
    pub fn next_record(&self) -> u64 {
        self.sealed
            .last()
            .map_or(self.first_record, |s| s.first_record + s.count)
    }

    /// Records that a datagram was sealed.
    pub fn seal(&mut self, kind: Kind, count: u64) {
        let first_record = self.next_record();
        self.sealed.push(Sealed {
            kind,
            first_record,
            count,
        });
    }
}

/// The point at which an epoch continues the stream of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Continuation {
    /// The epoch that is continued.
    pub from: Epoch,
    /// The last valid sequence of that epoch.
    pub last: Sequence,
    /// Number of the record after that sequence.
    pub next_record: u64,
}

/// All rings. Two rings of one channel and epoch mean that two publishers claim the same epoch.
#[derive(Clone, Debug, Default)]
pub struct Truth {
    rings: BTreeMap<(ChannelId, Epoch), Vec<EpochTruth>>,
    links: BTreeMap<(ChannelId, Epoch), Continuation>,
}

impl Truth {
    /// Records that a ring was opened. Returns its index among the rings of its channel and epoch.
    pub fn open(&mut self, channel: ChannelId, epoch: Epoch, first: (Sequence, u64)) -> usize {
        let rings = self.rings.entry((channel, epoch)).or_default();
        rings.push(EpochTruth {
            first: first.0,
            key: ContentKey::of(channel, epoch, rings.len()),
            first_record: first.1,
            sealed: Vec::new(),
        });
        rings.len() - 1
    }

    /// Records that an epoch was opened that continues another: its records have the same content.
    /// Returns `None`, without effect, when the other epoch was never opened.
    pub fn continue_epoch(
        &mut self,
        channel: ChannelId,
        epoch: Epoch,
        link: Continuation,
    ) -> Option<ContentKey> {
        let key = self.of(channel, link.from).first()?.key;
        self.open(channel, epoch, (link.last.next(), link.next_record));
        self.ring_mut(channel, epoch, 0)?.key = key;
        self.links.insert((channel, epoch), link);
        Some(key)
    }

    /// Returns the link from this epoch to the epoch that it continues, if any.
    #[must_use]
    pub fn link(&self, channel: ChannelId, epoch: Epoch) -> Option<Continuation> {
        self.links.get(&(channel, epoch)).copied()
    }

    /// Returns the link from `to` to `from`, if it may be behind `last`: where the link is, or earlier
    /// where a later epoch continues `to` before its beginning.
    #[must_use]
    pub fn link_behind(
        &self,
        channel: ChannelId,
        (from, to): (Epoch, Epoch),
        last: Sequence,
    ) -> Option<Continuation> {
        self.link(channel, to).filter(|link| link.from == from)?;
        let links = self.links.iter().filter(|((of, _), _)| *of == channel);
        let later = links.filter(|(_, link)| link.from == to);
        let epochs = std::iter::once(to).chain(later.map(|((_, epoch), _)| *epoch));
        let mut ends = epochs.filter_map(|epoch| self.descent(channel, from, epoch));
        ends.find(|link| link.last == last)
    }

    /// Returns the place at which `from` ends on the path to `to`, or `None` when `to` does not descend from
    /// `from`. A mirror that had not reached the beginning of an epoch ends the one before earlier.
    #[must_use]
    pub fn descent(&self, channel: ChannelId, from: Epoch, to: Epoch) -> Option<Continuation> {
        let first = self.link(channel, to);
        let links = std::iter::successors(first, |link| self.link(channel, link.from));
        let mut ends = links.scan(first, |later, link| {
            let end = (*later).filter(|later| later.last < link.last);
            *later = Some(end.map_or(link, |end| Continuation {
                from: link.from,
                ..end
            }));
            *later
        });
        ends.find(|link| link.from == from)
    }

    /// Returns the epoch in which this sequence of the stream of `epoch` was sealed.
    #[must_use]
    pub fn epoch_at(&self, channel: ChannelId, epoch: Epoch, sequence: Sequence) -> Epoch {
        let first = self.link(channel, epoch);
        let links = std::iter::successors(first, |link| self.link(channel, link.from));
        let earlier = links.take_while(|link| sequence <= link.last);
        earlier.last().map_or(epoch, |link| link.from)
    }

    /// Returns the datagram of this sequence in the stream of `epoch`.
    #[must_use]
    pub fn sealed_at(
        &self,
        channel: ChannelId,
        epoch: Epoch,
        sequence: Sequence,
    ) -> Option<&Sealed> {
        let epoch = self.epoch_at(channel, epoch, sequence);
        self.of(channel, epoch).first()?.get(sequence)
    }

    /// Returns the number of the first record at or after this sequence in the stream of `epoch`.
    #[must_use]
    pub fn record_at(&self, channel: ChannelId, epoch: Epoch, sequence: Sequence) -> u64 {
        let epoch = self.epoch_at(channel, epoch, sequence);
        let ring = self.of(channel, epoch).first();
        ring.map_or(1, |ring| ring.record_at(sequence))
    }

    /// Returns the rings published in this epoch of this channel: more than one when several publishers
    /// had the epoch.
    #[must_use]
    pub fn of(&self, channel: ChannelId, epoch: Epoch) -> &[EpochTruth] {
        self.rings.get(&(channel, epoch)).map_or(&[], Vec::as_slice)
    }

    /// Returns one ring for appending.
    pub fn ring_mut(
        &mut self,
        channel: ChannelId,
        epoch: Epoch,
        nth: usize,
    ) -> Option<&mut EpochTruth> {
        self.rings.get_mut(&(channel, epoch))?.get_mut(nth)
    }

    /// Returns the highest epoch opened.
    #[must_use]
    pub fn highest(&self) -> Epoch {
        let epochs = self.rings.keys().map(|(_, epoch)| *epoch);
        epochs.max().unwrap_or(Epoch::NONE)
    }

    /// Returns the highest epoch below this one, if any was opened.
    #[must_use]
    pub fn before(&self, epoch: Epoch) -> Option<Epoch> {
        let epochs = self.rings.keys().map(|(_, epoch)| *epoch);
        epochs.filter(|e| *e < epoch).max()
    }
}

const fn content(key: ContentKey, number: u64) -> u64 {
    let mut z = key.0.rotate_left(32) ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z ^ (z >> 27)
}

fn mbo(key: ContentKey, number: u64) -> MboMsg {
    MboMsg {
        order_id: number,
        price: content(key, number) as i64,
        ts_recv: key.0,
        ..MboMsg::default()
    }
}

fn trade(key: ContentKey, number: u64) -> TradeMsg {
    TradeMsg {
        price: content(key, number) as i64,
        ts_recv: number,
        ..TradeMsg::default()
    }
}

/// Appends the record of this number to a message.
pub fn push_record(batch: &mut RecordBatch, key: ContentKey, number: u64) {
    if number.is_multiple_of(5) {
        batch.put(&trade(key, number));
    } else {
        batch.put(&mbo(key, number));
    }
}
