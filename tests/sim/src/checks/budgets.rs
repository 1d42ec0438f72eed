//! Checks on a publisher's output, measured from outside: bytes against budgets in every window,
//! and counters against the frames that were sent.

use std::collections::{BTreeMap, BTreeSet};

use tickcast_reliability::control::{BODY_LEN_MAX_TO_SUBSCRIBER, Message};
use tickcast_reliability::serve::{Destination, PeerId, RepairConfig};
use tickcast_reliability::session::Path;
use tickcast_reliability::types::{Nanos, SequenceRange};

use crate::feed::Feed;

/// Compares bytes with a rate and a burst, over all windows at once: in no window do the bytes
/// exceed `rate × time` by more than `burst`.
#[derive(Clone, Debug)]
pub struct Meter {
    bytes_per_s: u128,
    burst: u128,
    debt: u128,
    at: Nanos,
}

/// Nanoseconds per second: debts are kept in billionths of a byte.
const SCALE: u128 = 1_000_000_000;

impl Meter {
    /// Returns a meter without debt.
    #[must_use]
    pub fn new(bytes_per_s: u64, burst_bytes: u64) -> Self {
        Self {
            bytes_per_s: bytes_per_s.into(),
            burst: u128::from(burst_bytes) * SCALE,
            debt: 0,
            at: Nanos::ZERO,
        }
    }

    /// Adds bytes at this time. Returns whether they exceed the rate and the burst.
    pub fn pass(&mut self, now: Nanos, bytes: u64) -> bool {
        let paid = u128::from(now.since(self.at).0) * self.bytes_per_s;
        self.debt = self.debt.saturating_sub(paid) + u128::from(bytes) * SCALE;
        self.at = now;
        self.debt > self.burst
    }
}

/// Repair counters of a publisher, summed over all channels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counted {
    repair: u64,
    multicast: u64,
    replay: u64,
    answered: u64,
    nacked: u64,
}

impl Counted {
    fn of(feeds: &[Feed]) -> Self {
        feeds.iter().fold(Self::default(), |sum, feed| {
            let c = &feed.repair;
            Self {
                repair: sum.repair + c.repair_bytes.get(),
                multicast: sum.multicast + c.multicast_repair_bytes.get(),
                replay: sum.replay + c.replay_bytes.get(),
                answered: sum.answered + c.answered.get(),
                nacked: sum.nacked + c.nacked.get() + c.nacks_duplicate.get(),
            }
        })
    }
}

/// Check of a publisher's repairs against its budgets and counters.
pub struct BudgetCheck {
    repair: Meter,
    joiners: Meter,
    of_a_peer: Meter,
    peers: BTreeMap<PeerId, Meter>,
    seen: Counted,
    /// Peers with a NACK that was not counted: they must be leaving.
    unheard: BTreeSet<PeerId>,
}

impl BudgetCheck {
    /// Returns a check for these budgets.
    #[must_use]
    pub fn new(r: &RepairConfig) -> Self {
        Self {
            repair: Meter::new(r.repair_bytes_per_s, r.repair_burst_bytes),
            joiners: Meter::new(r.joiner_bytes_per_s, r.joiner_burst_bytes),
            of_a_peer: Meter::new(r.subscriber_bytes_per_s, r.subscriber_burst_bytes),
            peers: BTreeMap::new(),
            seen: Counted::default(),
            unheard: BTreeSet::new(),
        }
    }

    /// Checks repairs that were sent. A repair for one peer names the kind of its connection and
    /// the peer whose budget pays.
    ///
    /// # Errors
    /// A budget that is exceeded, or a counter that does not match the bytes sent.
    pub fn given(
        &mut self,
        now: Nanos,
        (destination, of): (Destination, Option<(Path, PeerId)>),
        out: &[u8],
        feeds: &[Feed],
    ) -> Result<(), String> {
        let counted = Counted::of(feeds);
        let before = std::mem::replace(&mut self.seen, counted);
        let (repair, replay) = (
            counted.repair - before.repair,
            counted.replay - before.replay,
        );
        let multicast = counted.multicast - before.multicast;
        let peer = match destination {
            Destination::Multicast(_) => {
                if (multicast, repair, replay) != (out.len() as u64, 0, 0) {
                    return Err(format!(
                        "{} bytes by multicast, {multicast} counted",
                        out.len()
                    ));
                }
                None
            }
            Destination::Peer(peer) => {
                let (datagrams, bytes) = datagrams_in(out)?;
                if (multicast, repair + replay) != (0, bytes) {
                    return Err(format!(
                        "{bytes} bytes for {peer:?}, {repair} + {replay} counted"
                    ));
                }
                if counted.answered - before.answered != datagrams {
                    return Err(format!(
                        "{datagrams} answers for {peer:?} that were not counted"
                    ));
                }
                let path = of.map(|(path, _)| path);
                if path == Some(Path::Replay) && repair > 0 {
                    return Err(format!("{peer:?}, who replays, costs the budget of repair"));
                }
                if path == Some(Path::Nack) && replay > 0 {
                    return Err(format!("{peer:?}, who repairs, costs the budget of replay"));
                }
                Some(of.map_or(peer, |(_, payer)| payer))
            }
        };
        if self.repair.pass(now, repair + multicast) {
            return Err("more repair than its budget".into());
        }
        if self.joiners.pass(now, replay) {
            return Err("more replay than its budget".into());
        }
        if let Some(peer) = peer {
            let fresh = || self.of_a_peer.clone();
            if (self.peers.entry(peer).or_insert_with(fresh)).pass(now, repair) {
                return Err(format!("more repair for {peer:?} than its budget"));
            }
        }
        Ok(())
    }

    /// Checks a grant of further bytes that `peer` may READ at any time: they count as sent now.
    ///
    /// # Errors
    /// A budget that is exceeded.
    pub fn granted(&mut self, now: Nanos, peer: PeerId, bytes: u64) -> Result<(), String> {
        let fresh = || self.of_a_peer.clone();
        let theirs = self.peers.entry(peer).or_insert_with(fresh);
        if theirs.pass(now, bytes) || self.repair.pass(now, bytes) {
            return Err(format!("{peer:?} may READ more than the budgets allow"));
        }
        Ok(())
    }

    /// Checks that a NACK of `peer` was counted, for a channel whose ring has this many slots.
    /// Every sequence counts, but each refused part of a range counts at most once per slot of the
    /// ring.
    pub fn asked(&mut self, peer: PeerId, ranges: &[SequenceRange], slots: u64, feeds: &[Feed]) {
        let counted = Counted::of(feeds).nacked;
        // A range has at most three parts: held, no longer held, and not yet sent.
        let of = |most: u64| ranges.iter().map(|it| it.len().min(most)).sum::<u64>();
        if !(of(slots)..=of(slots.saturating_mul(3))).contains(&(counted - self.seen.nacked)) {
            self.unheard.insert(peer);
        }
        self.seen.nacked = counted;
    }

    /// Checks at the end of a turn that uncounted NACKs belong to removed peers. `left` are the
    /// peers that remain.
    ///
    /// # Errors
    /// A remaining peer with a NACK that was not counted.
    pub fn settled(&mut self, left: &BTreeMap<PeerId, usize>) -> Result<(), String> {
        match self.unheard.iter().find(|peer| left.contains_key(peer)) {
            Some(peer) => Err(format!(
                "a NACK of {peer:?} was neither counted nor its last"
            )),
            None => {
                self.unheard.clear();
                Ok(())
            }
        }
    }
}

/// Returns the number of datagrams in these frames, and the bytes of their frames.
fn datagrams_in(mut frames: &[u8]) -> Result<(u64, u64), String> {
    let (mut datagrams, mut bytes) = (0, 0);
    while !frames.is_empty() {
        let read = Message::read(frames, BODY_LEN_MAX_TO_SUBSCRIBER).map_err(|e| e.to_string())?;
        let (_, message, len) = read.ok_or("a frame that is not whole")?;
        if matches!(message, Message::Datagram(_)) {
            datagrams += 1;
            bytes += len as u64;
        }
        frames = &frames[len..];
    }
    Ok((datagrams, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budget_excess_is_detected_in_any_window() {
        let mut meter = Meter::new(1_000_000, 100);
        assert!(!meter.pass(Nanos::ZERO, 100));
        assert!(meter.clone().pass(Nanos::ZERO, 1));
        assert!(!meter.pass(Nanos::from_us(50), 50), "paid meanwhile");
        assert!(meter.clone().pass(Nanos::from_us(50), 1));
        assert!(
            !meter.pass(Nanos::from_ms(500), 100),
            "no credit beyond the burst"
        );
        assert!(meter.pass(Nanos::from_ms(500), 1));
    }
}
