//! The clocks of a recording's files: equal messages show how far they are apart.
//!
//! Lines of one feed are milliseconds apart. More is a clock that was not set, and costs nothing if the
//! files are merged without it.

use std::collections::BTreeMap;

use tickcast_reliability::types::Nanos;

/// Lines of one feed are at most this far apart, ns.
const LAG_MAX: u64 = 100_000_000;
/// Equal messages of two files that are compared: the first ones, because a clock may be set later.
const SAMPLES_MAX: usize = 31;
/// Fewer show nothing: one of them may have a wrong stamp.
const SAMPLES_MIN: usize = 3;

/// How far the times of equal messages are apart, for each two files, the lower index first.
#[derive(Debug, Default)]
pub(super) struct Comparison(BTreeMap<(usize, usize), Vec<i64>>);

impl Comparison {
    /// Adds the files and times of two equal messages. Only the first ones of two files count.
    pub(super) fn add(&mut self, one: (usize, Nanos), other: (usize, Nanos)) {
        let (low, high) = (one.min(other), one.max(other));
        if low.0 == high.0 {
            return;
        }
        let apart = self.0.entry((low.0, high.0)).or_default();
        if apart.len() < SAMPLES_MAX {
            apart.push(ahead(high.1, low.1));
        }
    }

    /// Returns the clocks of so many files. Each is measured by the first file that it can be compared with,
    /// over others if need be.
    pub(super) fn clocks(&self, files: usize) -> Clocks {
        let mut apart: Vec<_> = (self.0.iter())
            .filter(|(_, samples)| samples.len() >= SAMPLES_MIN)
            .map(|(pair, samples)| (*pair, median(samples)))
            .collect();
        let mut clocks: Vec<Option<i64>> = vec![None; files];
        for root in 0..files {
            if clocks[root].is_some() {
                continue;
            }
            clocks[root] = Some(0);
            // Each pass reaches at least one more file, or ends.
            loop {
                let before = apart.len();
                apart.retain(|((low, high), ahead)| match (clocks[*low], clocks[*high]) {
                    (None, None) => true,
                    (Some(of_low), None) => {
                        clocks[*high] = Some(of_low.saturating_add(*ahead));
                        false
                    }
                    (None, Some(of_high)) => {
                        clocks[*low] = Some(of_high.saturating_sub(*ahead));
                        false
                    }
                    (Some(_), Some(_)) => false,
                });
                if apart.len() == before {
                    break;
                }
            }
        }
        let is_clock = |it: &i64| it.unsigned_abs() > LAG_MAX;
        let ahead = clocks.into_iter().map(|it| it.filter(is_clock));
        Clocks(ahead.map(Option::unwrap_or_default).collect())
    }
}

/// How far the clock of each file is ahead of the first one that it could be compared with, ns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Clocks(Vec<i64>);

impl Clocks {
    /// Returns the time of a file's stamp by the clock that the files have in common. A time that is
    /// unknown, 0, remains so.
    pub(super) fn common(&self, file: usize, stamp: Nanos) -> Nanos {
        if stamp == Nanos::ZERO {
            return stamp;
        }
        let ahead = self.0.get(file).copied().unwrap_or_default();
        Nanos(stamp.0.saturating_add_signed(ahead.saturating_neg()).max(1))
    }

    /// Returns a note if the clock of a file differs.
    pub(super) fn note(&self, file: usize) -> Option<String> {
        let ahead = self.0.get(file).copied().filter(|ahead| *ahead != 0)?;
        let (by, way) = (
            ahead.unsigned_abs() / 1_000_000,
            if ahead > 0 { "ahead of" } else { "behind" },
        );
        Some(format!(
            "the clock is {}.{:03} s {way} the other file's, as equal messages show; the files are merged \
             without that",
            by / 1_000,
            by % 1_000,
        ))
    }
}

/// Returns how far one time is ahead of another.
fn ahead(one: Nanos, other: Nanos) -> i64 {
    let apart = i64::try_from(one.0.abs_diff(other.0)).unwrap_or(i64::MAX);
    if one >= other { apart } else { -apart }
}

fn median(samples: &[i64]) -> i64 {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: i64 = 1_000_000_000;

    /// The clocks of five files, of which some have equal messages so far apart.
    fn clocks(apart: &[(usize, usize, &[i64])]) -> Vec<i64> {
        let mut comparison = Comparison::default();
        for (one, other, samples) in apart {
            for (n, ahead) in (1_000..).zip(*samples) {
                let at = n * S;
                let (one, other) = (
                    (*one, Nanos(at as u64)),
                    (*other, Nanos((at + ahead) as u64)),
                );
                comparison.add(other, one);
            }
        }
        comparison.clocks(5).0
    }

    #[test]
    fn clock_is_the_median_of_equal_messages() {
        let samples = [5 * S, 5 * S + 1, 900 * S, 5 * S - 1, -3 * S];
        assert_eq!(clocks(&[(0, 1, &samples)]), [0, 5 * S, 0, 0, 0]);
        assert_eq!(clocks(&[(1, 0, &samples)]), [0, -5 * S, 0, 0, 0]);
        assert_eq!(clocks(&[(0, 1, &samples[..2])]), [0; 5], "too few");
        assert_eq!(clocks(&[(1, 1, &samples)]), [0; 5], "one file");
    }

    #[test]
    fn lag_of_a_line_is_no_clock() {
        let ms = S / 1_000;
        for (ahead, expected) in [(100 * ms, 0), (-100 * ms, 0), (100 * ms + 1, 100 * ms + 1)] {
            assert_eq!(clocks(&[(0, 1, &[ahead; 3])])[1], expected);
        }
    }

    #[test]
    fn files_are_compared_over_others() {
        let (a, b, c) = ([7 * S; 3], [-2 * S; 3], [S; 3]);
        let apart: [(usize, usize, &[i64]); 3] = [(2, 4, &a), (0, 4, &b), (1, 3, &c)];
        assert_eq!(clocks(&apart), [0, 0, -9 * S, S, -2 * S]);
    }

    #[test]
    fn common_time_leaves_out_the_clock() {
        let clocks = Clocks(vec![0, 5, -5]);
        let times = [0, 1, 2, 3].map(|file| clocks.common(file, Nanos(9)));
        assert_eq!(times, [Nanos(9), Nanos(4), Nanos(14), Nanos(9)]);
        assert_eq!(clocks.common(1, Nanos(5)), Nanos(1));
        assert_eq!(clocks.common(2, Nanos::ZERO), Nanos::ZERO);
    }

    #[test]
    fn note_names_a_clock_that_differs() {
        let clocks = Clocks(vec![0, 5 * S + 250_000_000, -S]);
        assert_eq!(clocks.note(0), None);
        assert!(clocks.note(1).unwrap().contains("5.250 s ahead"));
        assert!(clocks.note(2).unwrap().contains("1.000 s behind"));
        assert_eq!(clocks.note(3), None);
    }
}
