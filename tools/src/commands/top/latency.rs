//! The newest interval of each channel and stage of interval logs.

use std::collections::{BTreeMap, VecDeque};

use serde::Serialize;
use tickcast_hlog::Interval;
use tickcast_subscriber::Histogram;

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

/// The last intervals of each channel and stage of a log. Its size does not grow with the log.
#[derive(Debug, Default)]
pub(crate) struct LastIntervals(BTreeMap<String, VecDeque<Histogram<u64>>>);

impl LastIntervals {
    /// Keeps the next interval, in place of the oldest one beyond [`HISTORY_MAX`].
    pub(crate) fn take(&mut self, interval: Interval) {
        let kept = self.0.entry(interval.tag).or_default();
        if kept.len() == HISTORY_MAX {
            kept.pop_front();
        }
        kept.push_back(interval.samples);
    }

    /// Returns a row for each channel and stage.
    pub(crate) fn rows(&self, log: &str) -> Vec<LatencyRow> {
        let newest = |(tag, kept): (&String, &VecDeque<Histogram<u64>>)| {
            let last = kept.back()?;
            let of = |quantile| last.value_at_quantile(quantile);
            let p99 = kept.iter().map(|it| it.value_at_quantile(0.99));
            Some(LatencyRow {
                log: log.into(),
                tag: tag.clone(),
                samples: last.len(),
                p50: of(0.5),
                p99: of(0.99),
                p999: of(0.999),
                max: last.max(),
                p99_history: p99.collect(),
            })
        };
        self.0.iter().filter_map(newest).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::report::series::tests::log;

    #[test]
    fn newest_interval_gives_percentiles_and_history() {
        let intervals = log("all/repair", 5_000);
        let mut kept = LastIntervals::default();
        log("all/repair", 5_000)
            .into_iter()
            .for_each(|it| kept.take(it));
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
