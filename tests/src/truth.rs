//! What was really published: every datagram sealed and the content of every record, kept apart
//! from the code under test. A record's content follows from its epoch and number alone.

use std::collections::BTreeMap;

use tickcast_reliability::record::{MboMsg, RecordBatch, TradeMsg};
use tickcast_reliability::units::{Epoch, Sequence, SequenceRange};
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

/// All datagrams of one epoch.
#[derive(Clone, Debug)]
pub struct EpochTruth {
    /// Its first sequence.
    pub first: Sequence,
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

/// All epochs.
#[derive(Clone, Debug, Default)]
pub struct Truth {
    epochs: BTreeMap<Epoch, EpochTruth>,
}

impl Truth {
    /// Notes that an epoch was opened.
    pub fn open(&mut self, epoch: Epoch, first: Sequence, first_record: u64) {
        let sealed = Vec::new();
        let truth = EpochTruth {
            first,
            first_record,
            sealed,
        };
        self.epochs.insert(epoch, truth);
    }

    /// What was published in this epoch.
    #[must_use]
    pub fn of(&self, epoch: Epoch) -> Option<&EpochTruth> {
        self.epochs.get(&epoch)
    }

    /// The same, to be added to.
    pub fn of_mut(&mut self, epoch: Epoch) -> Option<&mut EpochTruth> {
        self.epochs.get_mut(&epoch)
    }

    /// The highest epoch opened.
    #[must_use]
    pub fn highest(&self) -> Epoch {
        self.epochs
            .last_key_value()
            .map_or(Epoch::NONE, |(epoch, _)| *epoch)
    }
}

fn content(epoch: Epoch, number: u64) -> u64 {
    let mut z = epoch.0.rotate_left(32) ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z ^ (z >> 27)
}

fn mbo(epoch: Epoch, number: u64) -> MboMsg {
    MboMsg {
        order_id: number,
        price: content(epoch, number) as i64,
        ts_recv: epoch.0,
        ..MboMsg::default()
    }
}

fn trade(epoch: Epoch, number: u64) -> TradeMsg {
    TradeMsg {
        price: content(epoch, number) as i64,
        ts_recv: number,
        ..TradeMsg::default()
    }
}

/// Appends the record of this number to a message.
pub fn push_record(batch: &mut RecordBatch, epoch: Epoch, number: u64) {
    if number.is_multiple_of(5) {
        batch.push(&trade(epoch, number));
    } else {
        batch.push(&mbo(epoch, number));
    }
}

/// Whether these bytes are the record of this number.
#[must_use]
pub fn is_record(epoch: Epoch, number: u64, bytes: &[u8]) -> bool {
    if number.is_multiple_of(5) {
        bytes == trade(epoch, number).as_ref()
    } else {
        bytes == mbo(epoch, number).as_ref()
    }
}
