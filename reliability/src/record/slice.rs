//! Borrowed records of one venue message, from a batch of its own or from memory shared by many
//! messages.

use super::{RecordBatch, Records, words_as_bytes};

/// The records of one venue message, borrowed from a [`RecordBatch`] or from [`RecordBatches`].
#[derive(Clone, Copy, Debug, Default)]
pub struct RecordSlice<'a> {
    /// Whole records, each with its own type and length.
    words: &'a [u64],
    count: usize,
    names: bool,
}

impl<'a> RecordSlice<'a> {
    /// Returns the number of records.
    #[must_use]
    #[inline]
    pub const fn len(self) -> usize {
        self.count
    }

    /// Returns whether there are no records.
    #[must_use]
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.count == 0
    }

    /// Returns whether a record maps an instrument to its symbol.
    #[must_use]
    #[inline]
    pub const fn names_instruments(self) -> bool {
        self.names
    }

    /// Returns the records as words: their bytes in memory order, eight each.
    #[must_use]
    #[inline]
    pub const fn words(self) -> &'a [u64] {
        self.words
    }

    /// Returns the records' bytes, aligned.
    #[must_use]
    #[inline]
    pub fn bytes(self) -> &'a [u8] {
        words_as_bytes(self.words)
    }

    /// Returns the records, in order.
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

/// The records of many messages in one reused piece of memory. It needs room for their sum only, not for
/// the largest message times their number.
#[derive(Clone, Debug, Default)]
pub struct RecordBatches {
    words: Vec<u64>,
    ends: Vec<End>,
}

/// End of a message in the shared memory, and its properties.
#[derive(Clone, Copy, Debug)]
struct End {
    at: usize,
    count: usize,
    names: bool,
}

impl RecordBatches {
    /// Returns an empty buffer with room for `messages` messages of `words` words (8 bytes each) in all, with
    /// every page already resident.
    #[must_use]
    pub fn with_room(messages: usize, words: usize) -> Self {
        let end = End {
            at: 1,
            count: 1,
            names: false,
        };
        // Fill with ones: zeroed memory may be mapped lazily by the system and fault at the first write.
        let mut all = Self {
            words: vec![1; words],
            ends: vec![end; messages],
        };
        all.clear();
        all
    }

    /// Appends a copy of a message.
    #[inline]
    pub fn push(&mut self, message: RecordSlice<'_>) {
        self.words.extend_from_slice(message.words);
        self.ends.push(End {
            at: self.words.len(),
            count: message.count,
            names: message.names,
        });
    }

    /// Returns the messages, in the order pushed.
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

    /// Removes the messages and keeps the memory.
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
