//! All results of a run, with the marks that they meet.

use serde::Serialize;

use super::marks::Judged;
use super::plan::Size;
use super::quiet::{Machine, Noise};
use super::results::{Absent, Measured};

/// All results of a run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Results {
    pub(crate) version: &'static str,
    pub(crate) size: Size,
    pub(crate) is_loopback: bool,
    pub(crate) is_debug_build: bool,
    pub(crate) machine: Machine,
    pub(crate) absent: Vec<Absent>,
    /// Whether the run ended before all turns were taken: a signal arrived, or the host refused a step.
    pub(crate) is_interrupted: bool,
    pub(crate) measures: Vec<Measured>,
    pub(crate) marks: Vec<Judged>,
}

impl Results {
    /// Returns the number of turns, how many of them were noisy, and the highest noise of a turn.
    pub(crate) fn noise(&self) -> (usize, usize, Noise) {
        let rows = self.measures.iter().flat_map(|measured| &measured.rows);
        let turns: Vec<Noise> = rows
            .flat_map(|row| row.turns.iter().flatten().map(|turn| turn.noise))
            .collect();
        let noisy = turns.iter().filter(|noise| !noise.is_quiet()).count();
        let share = |noise: &&Noise| noise.others + noise.steal;
        let worst = turns.iter().max_by(|a, b| share(a).total_cmp(&share(b)));
        (turns.len(), noisy, worst.copied().unwrap_or_default())
    }

    /// Returns whether tickcast delivered or declared lost every tick, and completed all of its turns.
    pub(crate) fn is_whole(&self) -> bool {
        let rows = self.measures.iter().flat_map(|measured| &measured.rows);
        let mut ours = rows.filter(|row| row.is_ours());
        ours.all(|row| row.balances && row.failures.is_empty())
    }
}
