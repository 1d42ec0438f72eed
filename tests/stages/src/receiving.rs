//! The reassembly window: a subscriber's work from a received datagram to the delivery of its last record.

use tickcast_reliability::types::{Nanos, Sequence};

use crate::pair::{Pair, RECORDS};
use crate::{Opened, steps};

/// Datagrams of a run.
const DATAGRAMS: u64 = 64;
/// One in this many datagrams is lost.
const LOST_EVERY: u64 = 16;
/// Number of datagrams between the one that shows the gap and the repair.
const MEANWHILE: u64 = 4;

/// Input of a run: the first and the last datagram, and answers to NACKs with the sequences that they
/// repair.
struct Receiving {
    pair: Pair,
    span: (Sequence, Sequence),
    records: u64,
    repairs: Vec<(Sequence, Vec<u8>)>,
}

impl Receiving {
    fn new(records: u64, pair: Pair) -> Self {
        Self {
            pair,
            span: (Sequence::NONE, Sequence::NONE),
            records,
            repairs: Vec::new(),
        }
    }

    fn prepare(&mut self) {
        self.pair.pass(Nanos::from_us(10));
        self.pair.look_after();
        self.span = self.pair.publish_datagrams(DATAGRAMS, self.records);
    }

    fn run(&mut self, deliver: fn(&mut Pair, Sequence)) -> u64 {
        let before = self.pair.application.records;
        let mut sequence = self.span.0;
        while sequence <= self.span.1 {
            deliver(&mut self.pair, sequence);
            sequence = sequence.next();
        }
        self.pair.application.records - before
    }
}

fn fair(records: u64, run: fn(&mut Receiving) -> u64) -> Opened {
    steps(
        Receiving::new(records, Pair::new()),
        Receiving::prepare,
        run,
    )
}

/// Full datagrams, in order.
pub(crate) fn in_order() -> Opened {
    fair(RECORDS.into(), |it| it.run(Pair::deliver))
}

/// Datagrams of one record, in order.
pub(crate) fn one() -> Opened {
    fair(1, |it| it.run(Pair::deliver))
}

/// Full datagrams, in order, with a journal.
pub(crate) fn journaled_in_order() -> Opened {
    let receiving = Receiving::new(RECORDS.into(), Pair::journaled());
    steps(receiving, Receiving::prepare, |it| it.run(Pair::deliver))
}

/// Datagrams of one record, in order, with a journal.
pub(crate) fn journaled_one() -> Opened {
    let receiving = Receiving::new(1, Pair::journaled());
    steps(receiving, Receiving::prepare, |it| it.run(Pair::deliver))
}

/// Full datagrams, in order, from a transport that guarantees whole bytes.
pub(crate) fn whole() -> Opened {
    fair(RECORDS.into(), |it| it.run(Pair::deliver_whole))
}

/// Full datagrams with one in 16 lost. The subscriber sends a NACK at once, and the repair arrives after
/// four more datagrams. The publisher's part is not included.
pub(crate) fn loss() -> Opened {
    fn prepare(it: &mut Receiving) {
        it.prepare();
        it.repairs.clear();
        let mut sequence = it.span.0.plus(LOST_EVERY / 2);
        while sequence <= it.span.1 {
            let mut frame = Vec::new();
            it.pair.repair_of(sequence, &mut frame);
            it.repairs.push((sequence, frame));
            sequence = sequence.plus(LOST_EVERY);
        }
    }
    fn run(it: &mut Receiving) -> u64 {
        let before = it.pair.application.records;
        let mut sequence = it.span.0;
        let mut repairs = it.repairs.iter().peekable();
        while sequence <= it.span.1 {
            let lost = repairs.peek().map(|(lost, _)| *lost);
            if lost != Some(sequence) {
                it.pair.deliver(sequence);
            }
            match lost {
                Some(lost) if lost.next() == sequence => {
                    assert!(it.pair.ask(), "it is asked for at once");
                }
                Some(lost) if lost.plus(1 + MEANWHILE) == sequence => {
                    if let Some((_, frame)) = repairs.next() {
                        it.pair.hear(frame);
                    }
                }
                _ => {}
            }
            sequence = sequence.next();
        }
        it.pair.application.records - before
    }
    steps(Receiving::new(RECORDS.into(), Pair::new()), prepare, run)
}
