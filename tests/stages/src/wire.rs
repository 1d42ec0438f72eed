//! The header, the CRC and the tag of a datagram.

use std::hint::black_box;

use tickcast_reliability::record::words_as_bytes;
use tickcast_reliability::wire::authentication::Authentication;
use tickcast_reliability::wire::{CrcVerdict, Datagram, Header};

use crate::pair::{self, RECORDS, TAGGED_RECORDS, datagram, tagged_ring};
use crate::rings::seal;
use crate::{Opened, steps};

const TIMES: u64 = 1_000;

fn parse(words: &[u64]) -> Datagram<'_> {
    Datagram::parse(words_as_bytes(words)).expect("a datagram")
}

/// Writes a header.
pub(crate) fn encode() -> Opened {
    fn run(header: &mut Header) -> u64 {
        for _ in 0..TIMES {
            header.sequence = header.sequence.next();
            black_box(black_box(&*header).to_bytes(7));
        }
        TIMES
    }
    let header = *parse(&datagram(RECORDS)).header();
    steps(header, |_| (), run)
}

/// Reads a header and checks it.
pub(crate) fn decode() -> Opened {
    fn run((words, sum): &mut (Vec<u64>, u64)) -> u64 {
        for _ in 0..TIMES {
            *sum += black_box(&parse(black_box(words))).header().sequence.0;
        }
        TIMES
    }
    steps((datagram(RECORDS), 0), |_| (), run)
}

fn crc(records: u16) -> Opened {
    fn run((words, good): &mut (Vec<u64>, u64)) -> u64 {
        let datagram = parse(words);
        for _ in 0..TIMES {
            *good += u64::from(black_box(&datagram).verdict() == CrcVerdict::Good);
        }
        TIMES
    }
    steps((datagram(records), 0), |_| (), run)
}

/// Checks the CRC of a full datagram.
pub(crate) fn crc_full() -> Opened {
    crc(RECORDS)
}

/// Checks the CRC of a datagram of one record.
pub(crate) fn crc_one() -> Opened {
    crc(1)
}

/// Checks the tag of a datagram of this many records.
fn tag(records: u16) -> Opened {
    type Checking = (Vec<u64>, Authentication, u64);
    fn run((words, keys, good): &mut Checking) -> u64 {
        let datagram = parse(words);
        for _ in 0..TIMES {
            *good += u64::from(keys.admits(black_box(&datagram)));
        }
        TIMES
    }
    let mut ring = tagged_ring();
    let sequence = seal(&mut ring, pair::records(records).bytes(), records);
    let bytes = ring.slot(sequence).expect("it is sealed");
    let words = bytes.as_chunks::<8>().0.iter();
    let words = words.map(|word| u64::from_ne_bytes(*word)).collect();
    let keys = ring.keys().expect("it has keys").offer(sequence);
    steps((words, keys, 0), |_| (), run)
}

/// Checks the tag of a full datagram.
pub(crate) fn tag_full() -> Opened {
    tag(TAGGED_RECORDS)
}

/// Checks the tag of a datagram of one record.
pub(crate) fn tag_one() -> Opened {
    tag(1)
}
