//! A publisher whose epoch continues another: earlier datagrams are offered and repaired.

use super::*;
use crate::control::History;
use crate::types::{Continued, Lineage};

const NEW: Epoch = Epoch(12);
const AT: Continued = Continued {
    epoch: EPOCH,
    last: Sequence(20),
    next_record: RecordNumber(21),
    complete: false,
};

/// Returns a ring with this many slots, twenty datagrams of the earlier epoch, and five of the new one.
fn promoted(slots: u64) -> Bench {
    let mut bench = Bench::new(RepairConfig::default(), slots, 1);
    bench.publish(20);
    let lineage = Lineage::from(vec![AT]);
    (bench.ring).set_epoch(NEW, lineage, None, PublisherState::Live);
    let channels = (bench.core.channels.iter())
        .map(|of| (of.info.clone(), bench.ring.reader(), of.counters.clone()))
        .collect();
    let config = RepairConfig::default();
    bench.core = RepairCore::new(
        config,
        "pub".into(),
        channels,
        Arc::default(),
        SECRET,
        bench.now,
    );
    bench.publish(5);
    bench
}

fn answers(bench: &mut Bench, epoch: Epoch, first: u64, last: u64) -> Vec<Got> {
    let nack = Message::Nack {
        epoch,
        class: NackClass::Repair,
        ranges: vec![run(first, last)],
    };
    bench.deliver(1, nack);
    bench.take(1)
}

#[test]
fn offer_after_promotion_carries_new_epoch_and_lineage() {
    let offer = promoted(64).join(1).channels.remove(0);
    assert_eq!((offer.epoch, offer.newest), (NEW, Sequence(25)));
    let begins = (Sequence(21), RecordNumber(21));
    assert_eq!((offer.oldest, offer.oldest_record), begins);
    assert_eq!(offer.continues.epochs(), [AT]);
    let history = History {
        oldest: Sequence(1),
        oldest_record: RecordNumber(1),
    };
    assert_eq!(offer.history, Some(history));
    assert_eq!(offer.oldest_of_all(), (Sequence(1), RecordNumber(1)));
    // After the ring has wrapped there is no history, but the lineage is still offered.
    for (more, oldest) in [(19, 21), (20, 22)] {
        let mut bench = promoted(32);
        bench.publish(more);
        let offer = bench.join(1).channels.remove(0);
        assert_eq!((offer.oldest, offer.history), (Sequence(oldest), None));
        assert_eq!(offer.continues.epochs(), [AT]);
        let oldest = (Sequence(oldest), RecordNumber(oldest));
        assert_eq!(offer.oldest_of_all(), oldest);
    }
}

#[test]
fn sequence_sealed_before_promotion_keeps_its_epoch() {
    let mut bench = promoted(64);
    bench.join(1);
    let got = answers(&mut bench, NEW, 19, 22);
    assert_eq!(sequences(&got), [19, 20, 21, 22]);
    let epochs = got.iter().map(|got| match got {
        Got::Datagram(header) => header.epoch,
        got => panic!("{got:?}"),
    });
    assert_eq!(epochs.collect::<Vec<_>>(), [EPOCH, EPOCH, NEW, NEW]);
    // A subscriber that still follows the old epoch needs a WELCOME first.
    let got = answers(&mut bench, EPOCH, 19, 19);
    let [Got::Refused(refused)] = &got[..] else {
        panic!("{got:?}");
    };
    assert_eq!((refused.reason, refused.epoch), (RefusalReason::Epoch, NEW));
}
