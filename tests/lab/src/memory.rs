//! How much memory processes hold over their lives, and whether that grows.
//!
//! Rings, windows and journals are touched for the first time when they are needed. Growth of a young
//! process is therefore no leak, but no process may hold more than all of them together.

use std::time::{Duration, Instant};

/// Interval between two samples of a process.
const EVERY: Duration = Duration::from_millis(500);
/// Processes with a shorter life are not judged.
const LIFE_MIN: Duration = Duration::from_secs(40);
/// A process of this age has touched all of its memory, and must not grow any more.
const GROWN_UP: Duration = Duration::from_secs(600);
/// Growth from here on, after [`GROWN_UP`], is a leak. In hundredths of a percent.
const GROWTH_MAX: u64 = 100;
/// Maximum for any process: about four times its rings, windows and records together, because page sizes and
/// allocators differ between machines.
const HELD_MAX_KIB: u64 = 128 << 10;

/// Memory samples of one process over its life.
pub(crate) struct Memory {
    born_at: Instant,
    looked_at: Option<Instant>,
    looks: Vec<(Duration, u64)>,
}

/// Memory growth of one process.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub(crate) struct Growth {
    pub(crate) life_s: u64,
    /// Median of the second quarter of its life. The median ignores buffers that wait for a slow peer for a
    /// while.
    pub(crate) early_kib: u64,
    /// Median of the last quarter of its life.
    pub(crate) late_kib: u64,
    /// Maximum over its life.
    pub(crate) most_kib: u64,
}

impl Growth {
    /// Returns whether the process lived so long that its memory must not grow any more.
    pub(crate) const fn is_grown_up(self) -> bool {
        self.life_s >= GROWN_UP.as_secs()
    }

    /// Returns whether the process held or grew more than is allowed.
    pub(crate) const fn is_a_leak(self) -> bool {
        self.most_kib > HELD_MAX_KIB || self.is_grown_up() && self.basis_points() >= GROWTH_MAX
    }

    /// Returns the growth in hundredths of a percent.
    const fn basis_points(self) -> u64 {
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

    /// Takes a sample if one is due.
    pub(crate) fn look(&mut self, process: u32) {
        if self.looked_at.is_some_and(|at| at.elapsed() < EVERY) {
            return;
        }
        self.looked_at = Some(Instant::now());
        if let Some(kib) = held_kib(process) {
            self.looks.push((self.born_at.elapsed(), kib));
        }
    }

    /// Returns the growth; `None` if the process did not live long enough.
    pub(crate) fn growth(&self) -> Option<Growth> {
        growth(&self.looks)
    }
}

fn growth(looks: &[(Duration, u64)]) -> Option<Growth> {
    let life = looks.last()?.0;
    let most_of_the_time = |from: u32, to: u32| {
        let within = looks
            .iter()
            .filter(|(at, _)| *at >= life * from / 4 && *at <= life * to / 4);
        let mut held: Vec<u64> = within.map(|(_, kib)| *kib).collect();
        held.sort_unstable();
        held.get(held.len() / 2).copied()
    };
    (life >= LIFE_MIN).then_some(Growth {
        life_s: life.as_secs(),
        early_kib: most_of_the_time(1, 2)?,
        late_kib: most_of_the_time(3, 4)?,
        most_kib: looks.iter().map(|(_, kib)| *kib).max()?,
    })
}

/// Returns a process's private and shared memory in KiB; `None` if the process is gone. Mapped files on
/// disk do not count, because the kernel drops and reloads them as it likes.
fn held_kib(process: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let kib = |name| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix(" kB")?.parse::<u64>().ok()
    };
    Some(kib("RssAnon:")? + kib("RssShmem:")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_compares_last_with_second_quarter() {
        let looks = |kib: fn(u64) -> u64, s: u64| -> Vec<_> {
            (0..=s)
                .map(|at| (Duration::from_secs(at), kib(at)))
                .collect()
        };
        let of = |kib, s| growth(&looks(kib, s)).map(Growth::basis_points);
        assert_eq!(of(|_| 1_000, 100), Some(0));
        // It grows only at its beginning.
        assert_eq!(of(|at| if at < 20 { at } else { 1_000 }, 100), Some(0));
        assert_eq!(of(|at| 10_000 + at, 100), Some(49));
        assert_eq!(of(|at| if at > 75 { 1_010 } else { 1_000 }, 100), Some(100));
        // Memory that is released again is no growth, but it counts for the maximum.
        let peak = |at| if at > 90 { 2_000 } else { 1_000 };
        assert_eq!(of(peak, 100), Some(0));
        let growth = growth(&looks(peak, 100)).map(|growth| growth.most_kib);
        assert_eq!(growth, Some(2_000));
        assert_eq!(of(|_| 1_000, 39), None);
    }

    #[test]
    fn growing_or_oversized_process_is_a_leak() {
        let leaks = |life_s, early_kib, late_kib| {
            let growth = Growth {
                life_s,
                early_kib,
                late_kib,
                most_kib: late_kib,
            };
            growth.is_a_leak()
        };
        assert!(!leaks(600, 10_000, 10_099) && leaks(600, 10_000, 10_100));
        // A young process may still touch its memory for the first time.
        assert!(!leaks(599, 10_000, 40_000) && leaks(40, 10_000, 140_000));
    }

    #[test]
    fn this_process_holds_something_and_one_that_is_gone_nothing() {
        assert!(held_kib(std::process::id()).is_some_and(|kib| kib > 100));
        assert_eq!(held_kib(u32::MAX), None);
    }
}
