//! A NACK round through both cores: the subscriber asks, the publisher answers out of its ring, the
//! subscriber takes the answer and delivers what waited for it.

use tickcast_reliability::types::Nanos;

use crate::pair::{Pair, RECORDS};
use crate::{Opened, steps};

/// Lost datagrams of a burst, each between two that came.
const BURST: u64 = 32;

/// A subscriber that misses this many datagrams and has not asked yet.
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

/// Every other one of a burst is lost, and all are asked for at once.
pub(crate) fn burst() -> Opened {
    steps(
        Pair::new(),
        |pair| missing(pair, BURST),
        |pair| round(pair, BURST),
    )
}
