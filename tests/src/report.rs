//! What runs add up to.

use std::collections::BTreeMap;

use serde::Serialize;
use tickcast_reliability::counters::{ReceiverCounters, RepairCounters, SenderCounters};
use tickcast_reliability::loss::LossCause;
use tickcast_reliability::units::Nanos;

use crate::faults::FaultCounts;
use crate::stream::Stream;

/// Numbers of one run or of many.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tally {
    /// Events of the simulation.
    pub events: u64,
    /// Datagrams sent, each line for itself.
    pub datagrams: u64,
    /// Datagrams that came to a subscriber.
    pub heard: u64,
    /// Connections established.
    pub connections: u64,
    /// Datagrams sealed.
    pub sealed: u64,
    /// Records delivered, all subscribers together.
    pub records: u64,
    /// Sequences found missing.
    pub gaps: u64,
    /// Of those, recovered.
    pub recovered: u64,
    /// History wanted by joiners.
    pub history: u64,
    /// Sequences that NACKs asked for, as publishers counted them.
    pub nacked: u64,
    /// Of those, answered to the asker alone.
    pub answered: u64,
    /// Of those, answered by a multicast.
    pub answered_by_multicast: u64,
    /// Multicast repairs sent.
    pub multicast_repairs: u64,
    /// Of those nacked, refused.
    pub refused: u64,
    /// Slots that were overwritten while they were copied.
    pub lapped_copies: u64,
    /// Epochs followed.
    pub epochs: u64,
    /// Sequences declared lost, by cause.
    pub unrecoverable: BTreeMap<String, u64>,
    /// Loss events whose size nobody knows.
    pub losses_of_unknown_size: u64,
}

impl Tally {
    /// Adds what a subscriber counted.
    pub fn subscriber(&mut self, c: &ReceiverCounters, stream: &Stream) {
        self.records += stream.records;
        self.gaps += c.gaps_detected.get();
        self.recovered += c.gaps_recovered.get();
        self.history += c.history_wanted.get();
        self.epochs += c.epochs.get();
        self.losses_of_unknown_size += stream.losses_of_unknown_size;
        for (cause, lost) in LossCause::ALL.iter().zip(stream.lost_by_cause) {
            if lost > 0 {
                *self.unrecoverable.entry(cause.to_string()).or_default() += lost;
            }
        }
    }

    /// Adds what a publisher counted.
    pub fn publisher(&mut self, c: &RepairCounters, sender: &SenderCounters) {
        self.sealed += sender.sealed_datagrams.get();
        self.nacked += c.nacked.get();
        self.answered += c.answered.get();
        self.answered_by_multicast += c.answered_by_multicast.get();
        self.lapped_copies += c.lapped_copies.get();
        self.refused += c.refused_window.get()
            + c.refused_ahead.get()
            + c.refused_budget.get()
            + c.refused_too_slow.get()
            + c.refused_epoch.get()
            + c.refused_malformed.get();
    }

    fn add(&mut self, other: &Self) {
        self.events += other.events;
        self.datagrams += other.datagrams;
        self.heard += other.heard;
        self.connections += other.connections;
        self.sealed += other.sealed;
        self.records += other.records;
        self.gaps += other.gaps;
        self.recovered += other.recovered;
        self.history += other.history;
        self.nacked += other.nacked;
        self.answered += other.answered;
        self.answered_by_multicast += other.answered_by_multicast;
        self.multicast_repairs += other.multicast_repairs;
        self.refused += other.refused;
        self.lapped_copies += other.lapped_copies;
        self.epochs += other.epochs;
        self.losses_of_unknown_size += other.losses_of_unknown_size;
        for (cause, lost) in &other.unrecoverable {
            *self.unrecoverable.entry(cause.clone()).or_default() += lost;
        }
    }
}

/// How one run ended.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Its seed.
    pub seed: u64,
    /// Its profile.
    pub profile: &'static str,
    /// What was untrue, if anything.
    pub violation: Option<String>,
    /// The hash of its event log.
    pub hash: u64,
    /// Lines of its event log.
    pub lines: u64,
    /// The last of those.
    pub recent: Vec<String>,
    /// Virtual time that passed.
    pub simulated: Nanos,
    /// Faults that happened.
    pub faults: FaultCounts,
    /// Its numbers.
    pub tally: Tally,
}

/// What many runs add up to; written as JSON.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Summary {
    /// Seeds run.
    pub seeds: u64,
    /// Seeds of each profile.
    pub profiles: BTreeMap<&'static str, u64>,
    /// Virtual seconds.
    pub simulated_seconds: f64,
    /// The numbers of all runs.
    pub tally: Tally,
    /// Faults by kind.
    pub faults: BTreeMap<&'static str, u64>,
    /// Runs in which something was untrue.
    pub violations: u64,
    /// Their seeds and what it was.
    pub failed: Vec<(u64, String)>,
    /// Real seconds.
    pub wall_seconds: f64,
}

impl Summary {
    /// Adds a run.
    pub fn add(&mut self, outcome: &Outcome) {
        self.seeds += 1;
        *self.profiles.entry(outcome.profile).or_default() += 1;
        self.simulated_seconds += outcome.simulated.0 as f64 / 1e9;
        self.tally.add(&outcome.tally);
        for (fault, count) in &outcome.faults {
            *self.faults.entry(fault).or_default() += count;
        }
        if let Some(what) = &outcome.violation {
            self.violations += 1;
            self.failed
                .push((outcome.seed, format!("{}: {what}", outcome.profile)));
        }
    }
}

impl std::fmt::Display for Summary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let t = &self.tally;
        let seconds = self.wall_seconds.max(0.001);
        writeln!(
            f,
            "seeds          {} ({:.0} a minute)",
            self.seeds,
            self.seeds as f64 * 60.0 / seconds
        )?;
        writeln!(f, "simulated      {:.1} s", self.simulated_seconds)?;
        writeln!(
            f,
            "datagrams      {} sent, {} heard, {} sealed",
            t.datagrams, t.heard, t.sealed
        )?;
        writeln!(
            f,
            "records        {} delivered in {} epochs",
            t.records, t.epochs
        )?;
        writeln!(
            f,
            "gaps           {} sequences, {} recovered; history {}",
            t.gaps, t.recovered, t.history
        )?;
        writeln!(
            f,
            "nacked         {}: {} answered, {} by {} multicasts, {} refused",
            t.nacked, t.answered, t.answered_by_multicast, t.multicast_repairs, t.refused
        )?;
        writeln!(
            f,
            "unrecoverable  {:?}, {} losses of unknown size",
            t.unrecoverable, t.losses_of_unknown_size
        )?;
        writeln!(f, "faults         {:?}", self.faults)?;
        writeln!(f, "violations     {}", self.violations)?;
        write!(f, "wall           {:.1} s", self.wall_seconds)
    }
}
