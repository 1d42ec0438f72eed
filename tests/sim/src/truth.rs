//! What was really published: every datagram sealed and the content of every record, kept apart
//! from the code under test. A record's content follows from its number and the key of its ring.

use std::collections::BTreeMap;

use tickcast_reliability::record::{MboMsg, RecordBatch, TradeMsg};
use tickcast_reliability::types::{ChannelId, Epoch, Sequence, SequenceRange};
use tickcast_reliability::wire::Kind;

/// A datagram that was sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sealed {
    /// What it is.
    pub kind: Kind,
    /// Number of its first record, or of the next one where it has none.
    pub first_record: u64,
    /// Records in it.
    pub count: u64,
}

/// Decides the content of all records of one ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContentKey(u64);

impl ContentKey {
    /// The key of a ring: the `nth` that was opened for this channel and epoch.
    #[must_use]
    pub const fn of(channel: ChannelId, epoch: Epoch, nth: usize) -> Self {
        Self(epoch.0 ^ (channel.0 as u64) << 48 ^ (nth as u64) << 44)
    }
}

/// All datagrams of one ring.
#[derive(Clone, Debug)]
pub struct EpochTruth {
    /// Its first sequence.
    pub first: Sequence,
    key: ContentKey,
    first_record: u64,
    sealed: Vec<Sealed>,
}

impl EpochTruth {
    /// The datagram of this sequence.
    #[must_use]
    pub fn get(&self, sequence: Sequence) -> Option<&Sealed> {
        let at = sequence.0.checked_sub(self.first.0)?;
        self.sealed.get(usize::try_from(at).ok()?)
    }

    /// The last sequence sealed.
    #[must_use]
    pub fn last(&self) -> Sequence {
        Sequence(self.first.0 - 1 + self.sealed.len() as u64)
    }

    /// Number of the first record at or after this sequence.
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

    /// Whether these bytes are the record of this number.
    #[must_use]
    pub fn is_record(&self, number: u64, bytes: &[u8]) -> bool {
        if number.is_multiple_of(5) {
            bytes == trade(self.key, number).as_ref()
        } else {
            bytes == mbo(self.key, number).as_ref()
        }
    }

    /// Whether it ends with END.
    #[must_use]
    pub fn ended(&self) -> bool {
        self.sealed.last().is_some_and(|s| s.kind == Kind::End)
    }

    /// How many records were sealed in these sequences.
    #[must_use]
    pub fn records_in(&self, range: SequenceRange) -> u64 {
        self.record_at(range.last.next()) - self.record_at(range.first)
    }

    /// Number of the record after the last one sealed.
    #[must_use]
    pub fn next_record(&self) -> u64 {
        self.sealed
            .last()
            .map_or(self.first_record, |s| s.first_record + s.count)
    }

    /// Notes that a datagram was sealed.
    pub fn seal(&mut self, kind: Kind, count: u64) {
        let first_record = self.next_record();
        self.sealed.push(Sealed {
            kind,
            first_record,
            count,
        });
    }
}

/// Where an epoch goes on with the stream of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// The epoch that it continues.
    pub from: Epoch,
    /// The last sequence of that one that counts.
    pub last: Sequence,
    /// Number of the record after it.
    pub next_record: u64,
}

/// All rings. Two of one channel and epoch are two publishers that both believe to be it.
#[derive(Clone, Debug, Default)]
pub struct Truth {
    rings: BTreeMap<(ChannelId, Epoch), Vec<EpochTruth>>,
    links: BTreeMap<(ChannelId, Epoch), Link>,
}

impl Truth {
    /// Notes that a ring was opened, and which one of its channel and epoch it is.
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

    /// Notes that an epoch was opened that continues another: its records have the same content.
    /// `None`, without effect, when the other was never opened.
    pub fn go_on(&mut self, channel: ChannelId, epoch: Epoch, link: Link) -> Option<ContentKey> {
        let key = self.of(channel, link.from).first()?.key;
        self.open(channel, epoch, (link.last.next(), link.next_record));
        self.ring_mut(channel, epoch, 0)?.key = key;
        self.links.insert((channel, epoch), link);
        Some(key)
    }

    /// Where this epoch goes on with another, if it does.
    #[must_use]
    pub fn link(&self, channel: ChannelId, epoch: Epoch) -> Option<Link> {
        self.links.get(&(channel, epoch)).copied()
    }

    /// Where `from` was continued on the way to `to`, if `to` descends from it.
    #[must_use]
    pub fn descent(&self, channel: ChannelId, from: Epoch, to: Epoch) -> Option<Link> {
        let first = self.link(channel, to);
        let mut links = std::iter::successors(first, |link| self.link(channel, link.from));
        links.find(|link| link.from == from)
    }

    /// In which epoch this sequence was sealed, of the stream that `epoch` goes on with.
    #[must_use]
    pub fn epoch_at(&self, channel: ChannelId, epoch: Epoch, sequence: Sequence) -> Epoch {
        let first = self.link(channel, epoch);
        let links = std::iter::successors(first, |link| self.link(channel, link.from));
        let earlier = links.take_while(|link| sequence <= link.last);
        earlier.last().map_or(epoch, |link| link.from)
    }

    /// The datagram of this sequence, of the stream that `epoch` goes on with.
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

    /// Number of the first record at or after this sequence, of the stream that `epoch` goes on
    /// with.
    #[must_use]
    pub fn record_at(&self, channel: ChannelId, epoch: Epoch, sequence: Sequence) -> u64 {
        let epoch = self.epoch_at(channel, epoch, sequence);
        let ring = self.of(channel, epoch).first();
        ring.map_or(1, |ring| ring.record_at(sequence))
    }

    /// What was published in this epoch of this channel: one ring, or those of all that had it.
    #[must_use]
    pub fn of(&self, channel: ChannelId, epoch: Epoch) -> &[EpochTruth] {
        self.rings.get(&(channel, epoch)).map_or(&[], Vec::as_slice)
    }

    /// One ring, to be added to.
    pub fn ring_mut(
        &mut self,
        channel: ChannelId,
        epoch: Epoch,
        nth: usize,
    ) -> Option<&mut EpochTruth> {
        self.rings.get_mut(&(channel, epoch))?.get_mut(nth)
    }

    /// The highest epoch opened.
    #[must_use]
    pub fn highest(&self) -> Epoch {
        let epochs = self.rings.keys().map(|(_, epoch)| *epoch);
        epochs.max().unwrap_or(Epoch::NONE)
    }

    /// The epoch before this one, if there was one.
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
