//! How much memory processes hold while they live, and whether that grows.

use std::time::{Duration, Instant};

/// Looks at a process are this far apart.
const EVERY: Duration = Duration::from_millis(500);
/// Who lived shorter says nothing.
const LIFE_MIN: Duration = Duration::from_secs(40);

/// What one process held in the course of its life.
pub(crate) struct Memory {
    born_at: Instant,
    looked_at: Option<Instant>,
    looks: Vec<(Duration, u64)>,
}

/// How it went with one process.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub(crate) struct Growth {
    pub(crate) life_s: u64,
    /// The most it held in the second quarter of its life.
    pub(crate) early_kib: u64,
    /// And in the last.
    pub(crate) late_kib: u64,
}

impl Growth {
    /// In hundredths of a percent.
    pub(crate) const fn basis_points(self) -> u64 {
        self.late_kib.saturating_sub(self.early_kib) * 10_000
            / if self.early_kib == 0 {
                1
            } else {
                self.early_kib
            }
    }
}

impl Memory {
    pub(crate) fn of_newborn() -> Self {
        Self {
            born_at: Instant::now(),
            looked_at: None,
            looks: Vec::new(),
        }
    }

    /// Looks, if it is time to.
    pub(crate) fn look(&mut self, process: u32) {
        if self.looked_at.is_some_and(|at| at.elapsed() < EVERY) {
            return;
        }
        self.looked_at = Some(Instant::now());
        if let Some(kib) = resident_kib(process) {
            self.looks.push((self.born_at.elapsed(), kib));
        }
    }

    /// What came of it; `None` where it did not live long enough.
    pub(crate) fn growth(&self) -> Option<Growth> {
        growth(&self.looks)
    }
}

fn growth(looks: &[(Duration, u64)]) -> Option<Growth> {
    let life = looks.last()?.0;
    let most = |from: u32, to: u32| {
        let within = looks
            .iter()
            .filter(|(at, _)| *at >= life * from / 4 && *at <= life * to / 4);
        within.map(|(_, kib)| *kib).max()
    };
    (life >= LIFE_MIN).then_some(Growth {
        life_s: life.as_secs(),
        early_kib: most(1, 2)?,
        late_kib: most(3, 4)?,
    })
}

/// What a process holds; `None` where it is gone.
fn resident_kib(process: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_that_of_the_last_quarter_over_the_second_and_a_short_life_has_none() {
        let looks = |kib: fn(u64) -> u64, s: u64| -> Vec<_> {
            (0..=s)
                .map(|at| (Duration::from_secs(at), kib(at)))
                .collect()
        };
        let of = |kib, s| growth(&looks(kib, s)).map(Growth::basis_points);
        assert_eq!(of(|_| 1_000, 100), Some(0));
        // It grows only while it begins.
        assert_eq!(of(|at| if at < 20 { at } else { 1_000 }, 100), Some(0));
        assert_eq!(of(|at| 10_000 + at, 100), Some(49));
        assert_eq!(of(|at| if at > 90 { 1_010 } else { 1_000 }, 100), Some(100));
        assert_eq!(of(|_| 1_000, 39), None);
    }

    #[test]
    fn this_process_holds_something_and_one_that_is_gone_nothing() {
        assert!(resident_kib(std::process::id()).is_some_and(|kib| kib > 100));
        assert_eq!(resident_kib(u32::MAX), None);
    }
}
