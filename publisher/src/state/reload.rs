//! Reloads of the config: changes for the other threads, and the counts of reloads.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use tickcast_reliability::serve::RepairConfig;

use crate::plan::routing::SymbolRules;

/// Changed settings that concern the stream and its repair.
#[derive(Debug)]
pub(crate) struct Change {
    /// The symbols of all channels.
    pub(crate) rules: Option<SymbolRules>,
    /// The budgets of repair.
    pub(crate) budgets: Option<RepairConfig>,
}

/// The reloads of a publisher.
#[derive(Debug, Default)]
pub(crate) struct Reloads {
    applied: AtomicU64,
    refused: AtomicU64,
}

impl Reloads {
    /// Counts a reload. The thread of reloads is the only caller.
    pub(crate) fn count(&self, is_applied: bool) {
        let counter = if is_applied {
            &self.applied
        } else {
            &self.refused
        };
        counter.fetch_add(1, Relaxed);
    }

    /// Returns the number of reloads applied, then of those refused.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.applied.load(Relaxed), self.refused.load(Relaxed))
    }
}
