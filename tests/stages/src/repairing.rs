//! A NACK round through both cores. The subscriber sends a NACK, and the publisher answers from its ring.
//! The subscriber takes the repair and delivers the datagrams that waited for it.

use tickcast_reliability::types::Nanos;

use crate::pair::{Pair, RECORDS};
use crate::{Opened, steps};

/// Lost datagrams of a burst, each between two that arrived.
const BURST: u64 = 32;

/// Makes the subscriber miss this many datagrams, before its NACK.
fn missing(pair: &mut Pair, lost: u64) {
    pair.pass(Nanos::from_ms(1));
    pair.look_after();
    let (first, last) = pair.publish_datagrams(2 * lost + 1, RECORDS.into());
    let mut sequence = first;
    while sequence <= last {
        pair.deliver(sequence);
        sequence = sequence.plus(2);
    }
    assert!(pair.subscriber.receivers().all(|r| r.is_waiting()));
}

fn round(pair: &mut Pair, lost: u64) -> u64 {
    pair.converse();
    debug_assert!(!pair.subscriber.receivers().any(|r| r.is_waiting()));
    lost
}

/// One datagram is lost.
pub(crate) fn one() -> Opened {
    steps(Pair::new(), |pair| missing(pair, 1), |pair| round(pair, 1))
}

/// Every other datagram of a burst is lost, and one NACK round asks for all.
pub(crate) fn burst() -> Opened {
    steps(
        Pair::new(),
        |pair| missing(pair, BURST),
        |pair| round(pair, BURST),
    )
}
