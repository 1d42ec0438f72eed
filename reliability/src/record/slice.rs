//! Records that are lent: those of one venue message, out of a batch of its own or out of the memory
//! that many messages share.

use super::{RecordBatch, Records, words_as_bytes};

/// What one venue message became, lent of a [`RecordBatch`] or of [`RecordBatches`].
#[derive(Clone, Copy, Debug, Default)]
pub struct RecordSlice<'a> {
    /// Whole records, each under its own type and length.
    words: &'a [u64],
    count: usize,
    names: bool,
}

impl<'a> RecordSlice<'a> {
    /// How many records these are.
    #[must_use]
    #[inline]
    pub const fn len(self) -> usize {
        self.count
    }

    /// Whether there are none.
    #[must_use]
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.count == 0
    }

    /// Whether one of them gives an instrument its symbol.
    #[must_use]
    #[inline]
    pub const fn names_instruments(self) -> bool {
        self.names
    }

    /// The records' words: their bytes in the order of memory, eight each.
    #[must_use]
    #[inline]
    pub const fn words(self) -> &'a [u64] {
        self.words
    }

    /// The records' bytes, aligned.
    #[must_use]
    #[inline]
    pub fn bytes(self) -> &'a [u8] {
        words_as_bytes(self.words)
    }

    /// The records, in order.
    #[must_use]
    #[inline]
    pub fn records(self) -> Records<'a> {
        Records {
            bytes: self.bytes(),
            count: self.count,
            rtype: None,
        }
    }
}

impl<'a> From<&'a RecordBatch> for RecordSlice<'a> {
    #[inline]
    fn from(batch: &'a RecordBatch) -> Self {
        Self {
            words: &batch.words,
            count: batch.count,
            names: batch.names,
        }
    }
}

/// The records of many messages in one piece of memory, which is used again: as much as they take
/// together, whichever of them is large.
#[derive(Clone, Debug, Default)]
pub struct RecordBatches {
    words: Vec<u64>,
    ends: Vec<End>,
}

/// Where a message ends, and what of it is known.
#[derive(Clone, Copy, Debug)]
struct End {
    at: usize,
    count: usize,
    names: bool,
}

impl RecordBatches {
    /// Empty, with room for so many messages of so many words (8 bytes each) in all, every page of which is
    /// there already.
    #[must_use]
    pub fn with_room(messages: usize, words: usize) -> Self {
        let end = End {
            at: 1,
            count: 1,
            names: false,
        };
        // What is allocated zeroed may be a promise of the system's, kept at the first write: no zeros here.
        let mut all = Self {
            words: vec![1; words],
            ends: vec![end; messages],
        };
        all.clear();
        all
    }

    /// Adds a copy of a message behind the others.
    #[inline]
    pub fn push(&mut self, message: RecordSlice<'_>) {
        self.words.extend_from_slice(message.words);
        self.ends.push(End {
            at: self.words.len(),
            count: message.count,
            names: message.names,
        });
    }

    /// The messages, as they were pushed.
    #[inline]
    pub fn messages(&self) -> impl Iterator<Item = RecordSlice<'_>> {
        let mut from = 0;
        self.ends.iter().map(move |end| {
            let words = &self.words[from..end.at];
            from = end.at;
            RecordSlice {
                words,
                count: end.count,
                names: end.names,
            }
        })
    }

    /// Forgets the messages, keeps the memory.
    #[inline]
    pub fn clear(&mut self) {
        self.words.clear();
        self.ends.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{MboMsg, RType, RecordHeader, SymbolMappingMsg};

    fn message(records: u32) -> RecordBatch {
        let mut batch = RecordBatch::default();
        for id in 0..records {
            batch.put(&MboMsg {
                hd: RecordHeader::new::<MboMsg>(RType::Mbo as u8, 2, id, 0),
                ..MboMsg::default()
            });
        }
        batch
    }

    #[test]
    fn messages_come_out_of_shared_memory_as_they_went_in() {
        let mut naming = message(1);
        naming.put(&SymbolMappingMsg::default());
        let given = [message(3), message(0), naming, message(110)];
        let mut all = RecordBatches::default();
        for _ in 0..2 {
            for batch in &given {
                all.push(batch.into());
            }
            assert_eq!(all.messages().count(), given.len());
            for (lent, batch) in all.messages().zip(&given) {
                assert_eq!(lent.bytes(), batch.bytes());
                assert_eq!(lent.words(), batch.words());
                assert_eq!(lent.len(), batch.len());
                assert_eq!(lent.is_empty(), batch.is_empty());
                assert_eq!(lent.names_instruments(), batch.names_instruments());
                let ids =
                    |it: Records<'_>| it.map(|r| r.header().instrument_id).collect::<Vec<_>>();
                assert_eq!(ids(lent.records()), ids(batch.records()));
            }
            all.clear();
            assert_eq!(all.messages().count(), 0);
        }
    }
}
