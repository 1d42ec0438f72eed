//! The newest interval of each channel and stage of interval logs.

use std::collections::BTreeMap;

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

/// Returns a row for each channel and stage of a log.
pub(crate) fn rows(log: &str, intervals: &[Interval]) -> Vec<LatencyRow> {
    let mut by_tag = BTreeMap::<&str, Vec<&Interval>>::new();
    for interval in intervals {
        by_tag.entry(&interval.tag).or_default().push(interval);
    }
    let newest = |(tag, all): (&str, Vec<&Interval>)| {
        let last = all.last()?;
        let of = |quantile| last.samples.value_at_quantile(quantile);
        let kept = &all[all.len().saturating_sub(HISTORY_MAX)..];
        let p99 = kept.iter().map(|it| it.samples.value_at_quantile(0.99));
        Some(LatencyRow {
            log: log.into(),
            tag: tag.into(),
            samples: last.samples.len(),
            p50: of(0.5),
            p99: of(0.99),
            p999: of(0.999),
            max: last.samples.max(),
            p99_history: p99.collect(),
        })
    };
    by_tag.into_iter().filter_map(newest).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::report::series::tests::log;

    #[test]
    fn newest_interval_gives_percentiles_and_history() {
        let intervals = log("all/repair", 5_000);
        let rows = rows("a.hlog", &intervals);
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
