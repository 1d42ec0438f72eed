//! The contents of interval logs, by channel and stage, one log beside another.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Duration;

use thiserror::Error;
use tickcast_hlog::Interval;
use tickcast_subscriber::Histogram;

use super::statistics::{Verdict, verdict};

/// The compared percentiles of intervals.
pub(crate) const COMPARED: [(&str, f64); 2] = [("p50", 0.5), ("p99", 0.99)];
/// An interval with fewer samples has no percentile to compare: its p99 would be its maximum.
pub(crate) const SAMPLES_MIN: u64 = 100;

/// Bytes that the sums of a log's channels and stages, and their sections of the page, may take.
const SUMS_BYTES_MAX: usize = 1 << 30;
/// Bytes of a section of the page.
const SECTION_BYTES: usize = 64 << 10;

/// The sums of a log take too much memory.
#[derive(Debug, Error)]
#[error(
    "has {tags} channels and stages whose histograms take more than {} MiB; cut the log into several",
    SUMS_BYTES_MAX >> 20
)]
pub(crate) struct TooManySums {
    tags: usize,
}

/// One interval, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Point {
    /// Middle of the interval, in seconds since the log's first interval.
    pub(crate) at_s: f64,
    pub(crate) samples: u64,
    /// The values of [`COMPARED`].
    pub(crate) compared: [u64; COMPARED.len()],
    pub(crate) max: u64,
}

/// One channel and stage of one log.
#[derive(Clone, Debug)]
pub(crate) struct Side {
    pub(crate) total: Histogram<u64>,
    pub(crate) points: Vec<Point>,
}

/// One channel and stage of all logs; `None` where a log lacks it.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) tag: String,
    pub(crate) sides: Vec<Option<Side>>,
    /// The verdict on each of [`COMPARED`], if two logs have the row.
    pub(crate) verdicts: Option<[Verdict; COMPARED.len()]>,
}

/// One log, or two side by side.
#[derive(Clone, Debug)]
pub(crate) struct Comparison {
    pub(crate) rows: Vec<Row>,
    /// The number of verdicts.
    pub(crate) verdicts: usize,
    /// The time from the first to the last interval of each log.
    pub(crate) spans: Vec<Duration>,
}

/// The contents of one log. It keeps no histogram of an interval, so its size hardly grows with the log.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log {
    /// The beginning of the first interval, and the end of the last.
    extent: Option<(Duration, Duration)>,
    by_tag: BTreeMap<String, Side>,
    /// Bytes of the sums and of their sections.
    sums_bytes: usize,
}

impl Log {
    /// Adds the next interval.
    ///
    /// # Errors
    /// Returns [`TooManySums`] if the log has too many channels and stages.
    pub(crate) fn take(&mut self, interval: &Interval) -> Result<(), TooManySums> {
        let Interval { begin, length, .. } = interval;
        let end = begin.saturating_add(*length);
        let (first, last) = self.extent.get_or_insert((*begin, end));
        *last = end.max(*last);
        let first = *first;
        let side = self.by_tag.entry(interval.tag.clone());
        let before = match &side {
            Entry::Occupied(side) => side.get().bytes(),
            Entry::Vacant(_) => 0,
        };
        let side = side.or_insert_with(|| Side::new(&interval.samples));
        side.take(interval, first);
        self.sums_bytes += side.bytes() - before;
        match self.sums_bytes > SUMS_BYTES_MAX {
            true => Err(TooManySums {
                tags: self.by_tag.len(),
            }),
            false => Ok(()),
        }
    }

    /// Returns whether there was no interval.
    pub(crate) const fn is_empty(&self) -> bool {
        self.extent.is_none()
    }

    fn span(&self) -> Duration {
        let (first, last) = self.extent.unwrap_or_default();
        last.saturating_sub(first)
    }
}

impl Comparison {
    /// Puts one or two logs side by side.
    pub(crate) fn of(logs: Vec<Log>) -> Self {
        let mut by_tag = BTreeMap::<String, Vec<Option<Side>>>::new();
        let (count, spans) = (logs.len(), logs.iter().map(Log::span).collect());
        for (at, log) in logs.into_iter().enumerate() {
            for (tag, side) in log.by_tag {
                let sides = by_tag.entry(tag).or_insert_with(|| vec![None; count]);
                sides[at] = Some(side);
            }
        }
        let both = |sides: &[Option<Side>]| count == 2 && sides.iter().all(Option::is_some);
        let compared = by_tag.values().filter(|sides| both(sides)).count();
        let verdicts = compared * COMPARED.len();
        let rows = by_tag.into_iter().map(|(tag, sides)| Row {
            verdicts: match &sides[..] {
                [Some(a), Some(b)] => Some(std::array::from_fn(|at| {
                    verdict(&a.compared(at), &b.compared(at), verdicts)
                })),
                _ => None,
            },
            tag,
            sides,
        });
        Self {
            rows: rows.collect(),
            verdicts,
            spans,
        }
    }
}

impl Side {
    fn new(like: &Histogram<u64>) -> Self {
        let mut total = Histogram::new_from(like);
        // A log of another program may have other bounds.
        total.auto(true);
        Self {
            total,
            points: Vec::new(),
        }
    }

    fn take(&mut self, interval: &Interval, first: Duration) {
        let samples = &interval.samples;
        // invariant: a histogram that resizes itself takes every other.
        let _ = self.total.add(samples);
        let middle = interval.begin.saturating_add(interval.length / 2);
        self.points.push(Point {
            at_s: middle.saturating_sub(first).as_secs_f64(),
            samples: samples.len(),
            compared: COMPARED.map(|(_, quantile)| samples.value_at_quantile(quantile)),
            max: samples.max(),
        });
    }

    /// Returns the bytes of its sum and of its section.
    fn bytes(&self) -> usize {
        SECTION_BYTES + self.total.distinct_values() * size_of::<u64>()
    }

    /// Returns a compared percentile of every interval with enough samples.
    pub(crate) fn compared(&self, at: usize) -> Vec<u64> {
        let enough = self.points.iter().filter(|it| it.samples >= SAMPLES_MIN);
        enough.map(|it| it.compared[at]).collect()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns a log of 20 intervals of a second: 200 samples around `ns` each.
    pub(crate) fn log(tag: &str, ns: u64) -> Vec<Interval> {
        let interval = |n: u64| {
            let mut samples = Histogram::new_with_bounds(1, 3_600_000_000_000, 3).unwrap();
            for sample in 0..200 {
                samples.record(ns + 10 * (n % 4) + sample / 2).unwrap();
            }
            Interval {
                tag: tag.into(),
                begin: Duration::from_secs(1_700_000_000 + n),
                length: Duration::from_secs(1),
                samples,
            }
        };
        (0..20).map(interval).collect()
    }

    /// Returns the contents of intervals.
    pub(crate) fn contents(intervals: &[Interval]) -> Log {
        let mut log = Log::default();
        for interval in intervals {
            log.take(interval).unwrap();
        }
        log
    }

    #[test]
    fn rows_pair_the_tags_of_two_logs() {
        let a = [log("all/repair", 5_000), log("all/old", 9_000)].concat();
        let b = [log("all/repair", 6_000), log("all/new", 9_000)].concat();
        let comparison = Comparison::of(vec![contents(&a), contents(&b)]);
        let rows = comparison.rows.iter();
        let rows: Vec<_> = rows
            .map(|row| {
                (
                    row.tag.as_str(),
                    row.sides.iter().map(Option::is_some).collect::<Vec<_>>(),
                )
            })
            .collect();
        let expected = [
            ("all/new", vec![false, true]),
            ("all/old", vec![true, false]),
            ("all/repair", vec![true, true]),
        ];
        assert_eq!(rows, expected);
        assert_eq!(comparison.verdicts, 2);
        let repair = &comparison.rows[2];
        assert!(matches!(
            repair.verdicts,
            Some([Verdict::Higher(_), Verdict::Higher(_)])
        ));
        let side = repair.sides[0].as_ref().unwrap();
        assert_eq!((side.total.len(), side.points.len()), (4_000, 20));
        assert_eq!((side.points[0].at_s, side.points[19].at_s), (0.5, 19.5));
        assert_eq!(comparison.spans, [Duration::from_secs(20); 2]);
        let same = Comparison::of(vec![contents(&a), contents(&a)]);
        let verdicts = same.rows[1].verdicts.unwrap();
        let is_noise = |it: &Verdict| matches!(it, Verdict::Noise(p) if *p > 0.999);
        assert!(verdicts.iter().all(is_noise), "{verdicts:?}");
    }

    #[test]
    fn log_of_ever_more_tags_is_refused_in_bounded_memory() {
        let mut interval = log("all/repair", 5_000).remove(0);
        let mut taken = Log::default();
        let most = (SUMS_BYTES_MAX / SECTION_BYTES) as u64;
        let tags = (0..=most).find(|tag| {
            interval.tag = tag.to_string();
            taken.take(&interval).is_err()
        });
        let each = SECTION_BYTES + interval.samples.distinct_values() * size_of::<u64>();
        assert_eq!(tags, Some((SUMS_BYTES_MAX / each) as u64));
    }

    #[test]
    fn intervals_of_absurd_times_and_order_are_taken() {
        let mut intervals = log("all/repair", 5_000);
        intervals.truncate(3);
        (intervals[1].begin, intervals[1].length) = (Duration::MAX, Duration::MAX);
        intervals[2].begin = Duration::ZERO;
        let comparison = Comparison::of(vec![contents(&intervals)]);
        let side = comparison.rows[0].sides[0].as_ref().unwrap();
        assert_eq!((side.total.len(), side.points.len()), (600, 3));
        assert_eq!(side.points[2].at_s, 0.0);
    }

    #[test]
    fn thin_intervals_are_shown_and_not_compared() {
        let mut a = log("all/repair", 5_000);
        for interval in &mut a[4..] {
            interval.samples.reset();
            interval.samples.record_n(9, SAMPLES_MIN - 1).unwrap();
        }
        let comparison = Comparison::of(vec![contents(&a), contents(&log("all/repair", 5_000))]);
        let row = &comparison.rows[0];
        assert_eq!(row.verdicts, Some([Verdict::TooFew; 2]));
        assert_eq!(row.sides[0].as_ref().unwrap().points.len(), 20);
    }
}
