//! Totals: the counters of one run, and their sums over many runs.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use tickcast_reliability::delivery::LossCause;
use tickcast_reliability::types::{Nanos, ReceiverCounters, RepairCounters, SenderCounters};

use crate::checks::delivery::Stream;
use crate::checks::first_nack::DeadlineCounts;
use crate::faults::weather::FaultCounts;

/// Counters of one run or of many.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tally {
    /// Events of the simulation.
    pub events: u64,
    /// Datagrams sent, counted once per line.
    pub datagrams: u64,
    /// Datagrams that arrived at a subscriber.
    pub heard: u64,
    /// Connections established.
    pub connections: u64,
    /// Datagrams sealed.
    pub sealed: u64,
    /// Records delivered, all subscribers together.
    pub records: u64,
    /// Datagrams that arrived although the subscriber was not missing them.
    pub duplicates: u64,
    /// Sequences found missing.
    pub gaps: u64,
    /// Missing sequences that were recovered.
    pub recovered: u64,
    /// Sequences of history that joiners requested.
    pub history: u64,
    /// Sequences that NACKs requested, as publishers counted them.
    pub nacked: u64,
    /// Sequences nacked that were repaired by unicast to the requester alone.
    pub answered: u64,
    /// Sequences nacked that were repaired by multicast.
    pub answered_by_multicast: u64,
    /// Multicast repairs sent.
    pub multicast_repairs: u64,
    /// Records published.
    pub published: u64,
    /// Bytes sealed.
    pub sealed_bytes: u64,
    /// Bytes of repair sent, by unicast and by multicast.
    pub repair_bytes: u64,
    /// NACK messages that arrived at publishers.
    pub nack_messages: u64,
    /// Sequences requested on NACK connections, as subscribers counted them.
    pub rc_asked: u64,
    /// Sequences requested on NACK connections that were not repaired in time.
    pub nack_link_timeouts: u64,
    /// The repairs of one run; not summed over runs.
    #[serde(skip)]
    pub repairs: Repairs,
    /// Sequences nacked that were refused.
    pub refused: u64,
    /// Sequences refused because the ring no longer holds them.
    pub refused_window: u64,
    /// Sequences refused because a budget was exhausted.
    pub refused_budget: u64,
    /// Sequences nacked whose repair was dropped with the requester's connection or still queued at the
    /// end.
    pub repairs_cancelled: u64,
    /// Slots that were overwritten during a copy.
    pub lapped_copies: u64,
    /// Epochs followed.
    pub epochs: u64,
    /// Sequences of gaps declared lost.
    pub missing_lost: u64,
    /// Sequences of gaps still open at the end of a run.
    pub missing_open: u64,
    /// Sequences that NACKs requested, as subscribers counted them.
    pub asked: u64,
    /// Datagrams dropped because their epoch had ended.
    pub old_epoch: u64,
    /// Datagrams dropped because their epoch was not confirmed.
    pub unknown_epoch: u64,
    /// Alarms that two publishers have one epoch.
    pub fencing_violations: u64,
    /// Records delivered before an alarm reported that they were not the publisher's.
    pub fenced_records: u64,
    /// Sequences declared lost, by cause.
    pub unrecoverable: BTreeMap<String, u64>,
    /// Loss events of unknown size.
    pub losses_of_unknown_size: u64,
    /// First NACKs that were due by a deadline and met it.
    pub asked_in_time: u64,
    /// Gaps that had to be given up by a deadline and were.
    pub given_up_in_time: u64,
    /// Requests for a STATUS that were due before a deadline and sent in time.
    pub confirmed_in_time: u64,
    /// Number of cases that each other check examined, by check.
    pub checked: BTreeMap<&'static str, u64>,
}

/// The repaired sequences and the time that repair took.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repairs {
    /// Distinct sequences that at least one subscriber missed.
    pub sequences: BTreeSet<u64>,
    /// Number of repairs by duration in nanoseconds, measured from the detection of the gap.
    pub took: BTreeMap<u64, u64>,
}

impl Repairs {
    fn add(&mut self, stream: &Stream) {
        for &(first, sequences, took) in &stream.repairs {
            self.sequences
                .extend(first..first.saturating_add(sequences));
            *self.took.entry(took).or_default() += 1;
        }
    }

    /// Returns the time in nanoseconds within which this share (of 100) of the repairs completed; 0
    /// without any.
    #[must_use]
    pub fn percentile(&self, share: u64) -> u64 {
        let all: u64 = self.took.values().sum();
        let rank = (all * share).div_ceil(100).max(1);
        let mut seen = 0;
        let mut within = self.took.iter().filter(|(_, count)| {
            seen += **count;
            seen >= rank
        });
        within.next().map_or(0, |(took, _)| *took)
    }
}

impl Tally {
    /// Adds the counters of a subscriber.
    pub fn subscriber(&mut self, c: &ReceiverCounters, stream: &Stream, seen: DeadlineCounts) {
        self.asked_in_time += seen.asked;
        self.given_up_in_time += seen.given_up;
        self.confirmed_in_time += seen.confirmed;
        self.repairs.add(stream);
        self.duplicates += c.duplicates.get();
        self.records += stream.records;
        self.gaps += c.missing_datagrams.get();
        self.recovered += c.missing_recovered.get();
        self.history += c.replay_requested.get();
        self.epochs += c.epochs.get();
        self.missing_lost += c.missing_lost.get();
        self.missing_open += c.missing_open.get();
        self.asked += c.nacked_sequences.get();
        self.rc_asked += c.nack_link_nacked_sequences.get();
        self.nack_link_timeouts += c.nack_link_timeouts.get();
        self.old_epoch += c.old_epoch_dropped.get();
        self.unknown_epoch += c.unknown_epoch_dropped.get();
        self.fencing_violations += c.fencing_violations.get();
        self.fenced_records += c.fenced_records.get();
        self.losses_of_unknown_size += stream.losses_of_unknown_size;
        for (cause, lost) in LossCause::ALL.iter().zip(stream.lost_by_cause) {
            if lost > 0 {
                *self.unrecoverable.entry(cause.to_string()).or_default() += lost;
            }
        }
    }

    /// Adds `times` to the number of cases that a check examined.
    pub(crate) fn checked(&mut self, what: &'static str, times: u64) {
        *self.checked.entry(what).or_default() += times;
    }

    /// Adds the counters of a publisher.
    pub fn publisher(&mut self, c: &RepairCounters, sender: &SenderCounters) {
        self.sealed += sender.sealed_datagrams.get();
        self.sealed_bytes += sender.sealed_bytes.get();
        self.published += sender.published_records.get();
        self.repair_bytes += c.repair_bytes.get() + c.multicast_repair_bytes.get();
        self.nack_messages += c.nack_messages.get();
        self.nacked += c.nacked.get();
        self.answered += c.answered.get();
        self.answered_by_multicast += c.answered_by_multicast.get();
        self.lapped_copies += c.lapped_copies.get();
        self.refused_window += c.refused_window.get();
        self.refused_budget += c.refused_budget.get();
        self.repairs_cancelled += c.repairs_cancelled.get() + c.pending.get();
        self.refused += c.refused_window.get()
            + c.refused_ahead.get()
            + c.refused_budget.get()
            + c.refused_too_slow.get()
            + c.refused_epoch.get()
            + c.refused_malformed.get();
    }

    /// Adds the failures that the cores counted to the faults that were injected.
    pub(crate) fn count_as_faults(&self, faults: &mut FaultCounts) {
        for (fault, count) in [
            ("lapped_copy", self.lapped_copies),
            ("refused", self.refused),
            ("refused_window", self.refused_window),
            ("refused_budget", self.refused_budget),
            ("old_epoch", self.old_epoch),
            ("unknown_epoch", self.unknown_epoch),
            ("fencing_violation", self.fencing_violations),
            ("rc_asked", self.rc_asked),
            ("rc_timeout", self.nack_link_timeouts),
            ("asked_in_time", self.asked_in_time),
            ("given_up_in_time", self.given_up_in_time),
            ("confirmed_in_time", self.confirmed_in_time),
        ] {
            if count > 0 {
                *faults.entry(fault).or_default() += count;
            }
        }
    }

    fn add(&mut self, other: &Self) {
        self.events += other.events;
        self.datagrams += other.datagrams;
        self.heard += other.heard;
        self.connections += other.connections;
        self.sealed += other.sealed;
        self.sealed_bytes += other.sealed_bytes;
        self.published += other.published;
        self.repair_bytes += other.repair_bytes;
        self.nack_messages += other.nack_messages;
        self.rc_asked += other.rc_asked;
        self.nack_link_timeouts += other.nack_link_timeouts;
        self.duplicates += other.duplicates;
        self.records += other.records;
        self.gaps += other.gaps;
        self.recovered += other.recovered;
        self.history += other.history;
        self.nacked += other.nacked;
        self.answered += other.answered;
        self.answered_by_multicast += other.answered_by_multicast;
        self.multicast_repairs += other.multicast_repairs;
        self.refused += other.refused;
        self.refused_window += other.refused_window;
        self.refused_budget += other.refused_budget;
        self.repairs_cancelled += other.repairs_cancelled;
        self.lapped_copies += other.lapped_copies;
        self.epochs += other.epochs;
        self.missing_lost += other.missing_lost;
        self.missing_open += other.missing_open;
        self.asked += other.asked;
        self.old_epoch += other.old_epoch;
        self.unknown_epoch += other.unknown_epoch;
        self.fencing_violations += other.fencing_violations;
        self.fenced_records += other.fenced_records;
        self.losses_of_unknown_size += other.losses_of_unknown_size;
        self.asked_in_time += other.asked_in_time;
        self.given_up_in_time += other.given_up_in_time;
        self.confirmed_in_time += other.confirmed_in_time;
        for (what, times) in &other.checked {
            *self.checked.entry(what).or_default() += times;
        }
        for (cause, lost) in &other.unrecoverable {
            *self.unrecoverable.entry(cause.clone()).or_default() += lost;
        }
    }
}

/// The result of one run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The run's seed.
    pub seed: u64,
    /// The run's profile.
    pub profile: &'static str,
    /// The first violation, if any.
    pub violation: Option<String>,
    /// The hash of the event log.
    pub hash: u64,
    /// Number of lines of the event log.
    pub lines: u64,
    /// The last lines of the event log.
    pub recent: Vec<String>,
    /// Virtual time that passed.
    pub simulated: Nanos,
    /// Time from the end of the feed until every subscriber reached it; `None` in runs whose faults do
    /// not stop.
    pub settled: Option<Nanos>,
    /// Faults that happened.
    pub faults: FaultCounts,
    /// Counters of the run.
    pub tally: Tally,
}

/// Totals over many runs, written as JSON.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Summary {
    /// Number of seeds run.
    pub seeds: u64,
    /// Number of seeds by profile.
    pub profiles: BTreeMap<&'static str, u64>,
    /// Virtual seconds simulated.
    pub simulated_seconds: f64,
    /// By profile, the longest time in milliseconds from the end of the feed until every subscriber
    /// reached it, and its seed.
    pub settled_ms: BTreeMap<&'static str, (f64, u64)>,
    /// Counters summed over all runs.
    pub tally: Tally,
    /// Faults by kind.
    pub faults: BTreeMap<&'static str, u64>,
    /// Faults by profile and kind.
    pub faults_of: BTreeMap<&'static str, BTreeMap<&'static str, u64>>,
    /// Number of runs with a violation.
    pub violations: u64,
    /// Seeds of these runs, each with its violation.
    pub failed: Vec<(u64, String)>,
    /// Real seconds that all runs took.
    pub wall_seconds: f64,
    /// Seeds run per real minute.
    pub seeds_per_minute: f64,
}

impl Summary {
    /// Records the total real time in seconds.
    pub fn took(&mut self, wall_seconds: f64) {
        self.wall_seconds = wall_seconds;
        self.seeds_per_minute = self.seeds as f64 * 60.0 / wall_seconds.max(0.001);
    }

    /// Adds the result of a run.
    pub fn add(&mut self, outcome: &Outcome) {
        self.seeds += 1;
        *self.profiles.entry(outcome.profile).or_default() += 1;
        self.simulated_seconds += outcome.simulated.0 as f64 / 1e9;
        self.tally.add(&outcome.tally);
        if let Some(settled) = outcome.settled {
            let most = self.settled_ms.entry(outcome.profile).or_default();
            let ms = settled.0 as f64 / 1e6;
            if ms > most.0 {
                *most = (ms, outcome.seed);
            }
        }
        for (fault, count) in &outcome.faults {
            *self.faults.entry(fault).or_default() += count;
            let of = self.faults_of.entry(outcome.profile).or_default();
            *of.entry(fault).or_default() += count;
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
        writeln!(
            f,
            "seeds          {} ({:.0} a minute)",
            self.seeds, self.seeds_per_minute
        )?;
        writeln!(f, "simulated      {:.1} s", self.simulated_seconds)?;
        let slowest = self
            .settled_ms
            .iter()
            .max_by(|a, b| a.1.0.total_cmp(&b.1.0));
        if let Some((profile, (ms, seed))) = slowest {
            writeln!(
                f,
                "settled        {ms:.1} ms after the feed at most ({profile}, seed {seed})"
            )?;
        }
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
        writeln!(f, "checked        {:?}", t.checked)?;
        writeln!(f, "faults         {:?}", self.faults)?;
        writeln!(f, "violations     {}", self.violations)?;
        write!(f, "wall           {:.1} s", self.wall_seconds)
    }
}
