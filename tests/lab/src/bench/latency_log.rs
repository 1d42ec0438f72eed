//! The latency of every turn as an interval log: an interval a turn, a tag a measure and contender.

use std::collections::BTreeMap;
use std::path::Path;

use hdrhistogram::Histogram;
use tickcast_hlog::{IntervalLog, Series};
use tickcast_reliability::types::Counter;
use tickcast_tools::exit::ToolError;
use tickcast_transport::host::clock::{Clock, SystemClock};

use super::protocol::{Latency, Part};
use super::side::LATENCY_MAX_NS;
use super::turn::Turn;

/// An interval log of turns. Its totals are those of all receivers.
pub(crate) struct LatencyLog {
    log: IntervalLog,
    totals: BTreeMap<(String, &'static str), Histogram<u64>>,
    failed: Counter,
}

impl LatencyLog {
    /// Opens the log.
    ///
    /// # Errors
    /// Returns [`ToolError::File`] if it can't be opened.
    pub(crate) fn open(path: &Path) -> Result<Self, ToolError> {
        let log = IntervalLog::open(path, "lab bench", SystemClock.utc());
        Ok(Self {
            log: log.map_err(ToolError::File)?,
            totals: BTreeMap::new(),
            failed: Counter::default(),
        })
    }

    /// Appends the turn that has just ended.
    pub(crate) fn add(&mut self, measure: &str, contender: &str, turn: &Turn) {
        for part in &turn.receivers {
            let Part {
                latency, recovered, ..
            } = part;
            for (stage, latency) in [("due_to_received", latency), ("recovered", recovered)] {
                if let Some(latency) = latency {
                    self.take(format!("{measure}.{contender}"), stage, latency);
                }
            }
        }
        let all = self.totals.iter();
        let all = all.map(|((of, stage), total)| Series::new(of, stage, total.clone()));
        self.log
            .write(SystemClock.utc(), all.collect(), &self.failed);
    }

    fn take(&mut self, of: String, stage: &'static str, latency: &Latency) {
        let Ok(empty) = Histogram::new_with_max(LATENCY_MAX_NS, 3) else {
            return;
        };
        let total = self.totals.entry((of, stage)).or_insert(empty);
        for (ns, count) in &latency.counts {
            total.saturating_record_n(*ns, *count);
        }
    }

    /// Returns the number of turns that could not be written.
    pub(crate) fn failures(&self) -> u64 {
        self.failed.get()
    }
}

#[cfg(test)]
mod tests {
    use tickcast_hlog::read_intervals;

    use super::*;

    #[test]
    fn turn_is_an_interval_with_the_counts_of_its_receivers() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bench.hlog");
        let mut log = LatencyLog::open(&path).unwrap();
        let part = |counts: &[(u64, u64)], is_lossy: bool| {
            let latency = Some(Latency {
                counts: counts.to_vec(),
                ..Latency::default()
            });
            Part {
                recovered: latency.clone().filter(|_| is_lossy),
                latency,
                ..Part::default()
            }
        };
        let turn = |receivers| Turn {
            receivers,
            ..Turn::default()
        };
        let both = vec![part(&[(5, 2), (9, 1)], false), part(&[(5, 4)], true)];
        log.add("latency-1m", "tickcast", &turn(both));
        log.add("latency-1m", "floor", &turn(vec![part(&[(7, 3)], false)]));
        log.add(
            "latency-1m",
            "tickcast",
            &turn(vec![part(&[(6, 1)], false)]),
        );
        let intervals = read_intervals(&std::fs::read(&path).unwrap()).unwrap();
        let found: Vec<_> = intervals
            .iter()
            .map(|it| (it.tag.as_str(), it.samples.len(), it.samples.max()))
            .collect();
        assert_eq!(
            found,
            [
                ("latency-1m.tickcast/due_to_received", 7, 9),
                ("latency-1m.tickcast/recovered", 4, 5),
                ("latency-1m.floor/due_to_received", 3, 7),
                ("latency-1m.tickcast/due_to_received", 1, 6),
            ]
        );
        assert_eq!(log.failures(), 0);
    }
}
