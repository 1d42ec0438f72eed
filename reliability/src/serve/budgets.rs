//! The budgets that all subscribers share, one of repairs and one of replays (docs/PROTOCOL.md §6.4).

use crate::control::NackClass;
use crate::planted::{Bug, planted};
use crate::serve::config::RepairConfig;
use crate::serve::lane::Lane;
use crate::serve::token_bucket::TokenBucket;
use crate::types::Nanos;

/// The shared budgets.
#[derive(Debug)]
pub(super) struct Budgets {
    repair: TokenBucket,
    joiners: TokenBucket,
    /// Length of the longest answer with a datagram.
    answer_len_max: usize,
}

impl Budgets {
    /// Returns full budgets for answers of at most this length.
    pub(super) fn new(config: &RepairConfig, answer_len_max: usize, now: Nanos) -> Self {
        let bucket = |bytes_per_s, burst_bytes| TokenBucket::new(bytes_per_s, burst_bytes, now);
        Self {
            repair: bucket(config.repair_bytes_per_s, config.repair_burst_bytes),
            joiners: bucket(config.joiner_bytes_per_s, config.joiner_burst_bytes),
            answer_len_max,
        }
    }

    /// Changes the rates and bursts from now on.
    pub(super) fn set(&mut self, now: Nanos, config: &RepairConfig) {
        let repair = (config.repair_bytes_per_s, config.repair_burst_bytes);
        self.repair.set(now, repair.0, repair.1);
        let joiners = (config.joiner_bytes_per_s, config.joiner_burst_bytes);
        self.joiners.set(now, joiners.0, joiners.1);
    }

    /// Returns whether the budget of a lane allows any datagram. While it does not, nobody is asked.
    pub(super) fn has(&mut self, lane: Lane, now: Nanos) -> bool {
        let bucket = match lane {
            Lane::Answers => return true,
            Lane::Repair => &mut self.repair,
            Lane::Replay => &mut self.joiners,
        };
        bucket.has(now, self.answer_len_max) || planted(Bug::BudgetIgnored)
    }

    /// Returns when the budget of a lane allows any datagram, if nothing else is sent before.
    pub(super) fn available_at(&self, lane: Lane) -> Nanos {
        let bucket = match lane {
            Lane::Answers => return Nanos::ZERO,
            Lane::Repair => &self.repair,
            Lane::Replay => &self.joiners,
        };
        bucket.available_at(self.answer_len_max)
    }

    /// Takes tokens for READ out of the repair budget, at most `most`, and returns their number.
    ///
    /// Half of the burst is reserved for NACKs. The uppermost quarter is for every origin. The quarter below
    /// is divided by the number of `origins` that READ, and so is the rate: `share` is the part of one.
    pub(super) fn take_read_tokens(
        &mut self,
        now: Nanos,
        most: u64,
        share: &mut TokenBucket,
        origins: u64,
    ) -> u64 {
        let repair = &mut self.repair;
        let spare = repair.take_above(now, most, 3);
        let origins = origins.max(1);
        share.set(
            now,
            repair.bytes_per_s() / origins,
            repair.burst_bytes() / 4 / origins,
        );
        let own = share.take_up_to(now, most - spare);
        let given = repair.take_above(now, own, 2);
        share.give_back(own - given);
        spare + given
    }

    /// Returns the budget that answers NACKs of this class.
    pub(super) const fn of(&mut self, class: NackClass) -> &mut TokenBucket {
        match class {
            NackClass::Repair => &mut self.repair,
            NackClass::Replay => &mut self.joiners,
        }
    }
}
