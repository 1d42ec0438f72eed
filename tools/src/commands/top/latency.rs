//! The newest interval of each channel and stage of interval logs.

use std::collections::{BTreeMap, VecDeque};

use serde::Serialize;
use tickcast_hlog::Interval;

/// Intervals kept for the sparkline.
const HISTORY_MAX: usize = 60;

/// Latency of one channel and stage, in nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct LatencyRow {
    /// Path of the log.
    pub(crate) log: String,
    /// Channel and stage.
    pub(crate) tag: String,
    /// Samples of the newest interval, whose percentiles follow.
    pub(crate) samples: u64,
    pub(crate) p50: u64,
    pub(crate) p99: u64,
    pub(crate) p999: u64,
    pub(crate) max: u64,
    /// `p99` of the last intervals, oldest first.
    pub(crate) p99_history: Vec<u64>,
}

/// The last intervals of each channel and stage of a log. It keeps no histogram, and its size does not grow
/// with the number of intervals.
#[derive(Debug, Default)]
pub(crate) struct LastIntervals(BTreeMap<String, Kept>);

/// Percentiles of the newest interval, and `p99` of the last ones.
#[derive(Debug, Default)]
struct Kept {
    samples: u64,
    p50: u64,
    p999: u64,
    max: u64,
    p99_history: VecDeque<u64>,
}

impl LastIntervals {
    /// Keeps the next interval, in place of the oldest one beyond [`HISTORY_MAX`].
    pub(crate) fn take(&mut self, interval: Interval) {
        let (kept, samples) = (self.0.entry(interval.tag).or_default(), interval.samples);
        let of = |quantile| samples.value_at_quantile(quantile);
        (kept.samples, kept.max) = (samples.len(), samples.max());
        (kept.p50, kept.p999) = (of(0.5), of(0.999));
        if kept.p99_history.len() == HISTORY_MAX {
            kept.p99_history.pop_front();
        }
        kept.p99_history.push_back(of(0.99));
    }

    /// Returns a row for each channel and stage.
    pub(crate) fn rows(&self, log: &str) -> Vec<LatencyRow> {
        let newest = |(tag, kept): (&String, &Kept)| {
            Some(LatencyRow {
                log: log.into(),
                tag: tag.clone(),
                samples: kept.samples,
                p50: kept.p50,
                p99: *kept.p99_history.back()?,
                p999: kept.p999,
                max: kept.max,
                p99_history: kept.p99_history.iter().copied().collect(),
            })
        };
        self.0.iter().filter_map(newest).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tickcast_subscriber::Histogram;

    use super::*;

    /// Returns an interval of 200 samples around `ns`, `n` seconds after the first.
    fn interval(ns: u64, n: u64) -> Interval {
        let mut samples = Histogram::new_with_bounds(1, 3_600_000_000_000, 3).unwrap();
        (0..200).for_each(|sample| samples.record(ns + 10 * n + sample / 2).unwrap());
        Interval {
            tag: "all/repair".into(),
            begin: Duration::from_secs(1_700_000_000 + n),
            length: Duration::from_secs(1),
            samples,
        }
    }

    #[test]
    fn newest_interval_gives_percentiles_and_history() {
        let intervals: Vec<_> = (0..20).map(|n| interval(5_000, n)).collect();
        let mut kept = LastIntervals::default();
        (0..20).for_each(|n| kept.take(interval(5_000, n)));
        let rows = kept.rows("a.hlog");
        let [row] = &rows[..] else {
            panic!("{rows:?}");
        };
        let last = &intervals.last().unwrap().samples;
        assert_eq!((&*row.tag, row.samples), ("all/repair", last.len()));
        assert_eq!(row.p50, last.value_at_quantile(0.5));
        assert_eq!(row.p99_history.len(), intervals.len());
        assert_eq!(row.p99_history.last(), Some(&row.p99));
    }
}
