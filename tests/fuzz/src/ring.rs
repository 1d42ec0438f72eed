//! A ring that a writer left behind and that was damaged since.

use std::sync::Arc;

use tickcast_reliability::record::{AlignedCopy, MboMsg, RecordBatch};
use tickcast_reliability::ring::{HeapMemory, RingReader, RingWriter};
use tickcast_reliability::types::{Nanos, Now, Sequence, SourceId, SourcePosition};
use tickcast_reliability::wire::{CrcVerdict, Datagram};

use crate::bytes::Bytes;
use crate::pair::CHANNEL;
use crate::spoilt::{geometry, publisher, spoilt};

/// Asserts that opening the ring gives an error with a text, or a ring with these properties:
/// - All datagrams are whole, each under its own sequence, up to the last that the ring says was sealed.
/// - The next writer continues behind that.
pub fn ring(bytes: &[u8]) {
    let mut input = Bytes(bytes);
    let count = u64::from(input.byte() % 40);
    let whole = left_behind(count);
    let untouched = input.0.is_empty();
    let left = spoilt(&whole, &mut input);
    let memory = || Arc::new(HeapMemory::left_behind(&left, || {}));
    if let Ok(reader) = RingReader::attach(memory()) {
        // A concurrent reader gets whole datagrams or nothing, whatever the contents.
        let _ = reader.verify();
        drop(reader.positions());
        let (oldest, sealed) = (reader.oldest(), reader.sealed());
        let sequences = (0..40).flat_map(|n| [oldest.plus(n), sealed.minus(n)]);
        sequences.for_each(|sequence| copied(&reader, sequence));
    }
    let mut writer = match RingWriter::reopen(memory()) {
        Ok(writer) => writer,
        Err(error) => {
            assert!(!untouched && !error.to_string().is_empty(), "{error}");
            return;
        }
    };
    let reader = writer.reader();
    let (oldest, sealed) = (reader.oldest(), reader.sealed());
    let held = sealed.0 + 1 - oldest.0;
    assert!(held <= geometry().slots(), "{held} datagrams are held");
    for n in 0..held {
        let sequence = oldest.plus(n);
        let slot = writer.slot(sequence).expect("it is held");
        whole_datagram(slot, sequence);
    }
    if untouched {
        assert_eq!(sealed, Sequence(count));
    }
    if let Ok(next) = writer.open() {
        assert_eq!(next, sealed.next());
    }
}

/// Asserts that a copied datagram is no longer than a slot.
fn copied(reader: &RingReader, sequence: Sequence) {
    let mut buffer = vec![0_u64; geometry().slot_len() / 8];
    if let Ok(len) = reader.copy(sequence, &mut buffer) {
        assert!(len <= geometry().slot_len());
    }
}

fn whole_datagram(bytes: &[u8], sequence: Sequence) {
    let mut aligned = AlignedCopy::default();
    let datagram = Datagram::parse(aligned.of(bytes)).expect("a datagram");
    assert_eq!(datagram.verdict(), CrcVerdict::Good, "{sequence:?}");
    assert_eq!(
        (datagram.header().channel, datagram.header().sequence),
        (CHANNEL, sequence)
    );
}

/// Returns the bytes of a ring with `count` sealed datagrams.
pub(crate) fn left_behind(count: u64) -> Vec<u8> {
    let mut publisher = publisher();
    let mut batch = RecordBatch::default();
    batch.put(&MboMsg::default());
    for n in 1..=count {
        let now = Now {
            monotonic: Nanos(n),
            utc: Nanos(n),
        };
        let position = SourcePosition::new(0, n);
        publisher
            .publish(&batch, SourceId(1), position, now)
            .expect("it fits");
        publisher.flush(now, true);
    }
    let mut bytes = vec![0; geometry().bytes()];
    publisher.ring().reader().raw(0, &mut bytes);
    bytes
}
