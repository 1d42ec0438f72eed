//! The header, and the CRC of a datagram.

use std::hint::black_box;

use tickcast_reliability::record::words_as_bytes;
use tickcast_reliability::wire::{CrcVerdict, Datagram, Header};

use crate::pair::{RECORDS, datagram};
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
