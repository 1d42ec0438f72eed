//! Facts of this process.

use std::fs::read_to_string;
use std::sync::LazyLock;

static STARTED: LazyLock<Option<f64>> = LazyLock::new(|| {
    let boot = read_to_string("/proc/stat").ok()?;
    let own = read_to_string("/proc/self/stat").ok()?;
    started_of(&boot, &own, rustix::param::clock_ticks_per_second())
});

/// Returns when this process started, in seconds since 1970; `None` where /proc does not say.
pub(crate) fn started() -> Option<f64> {
    *STARTED
}

/// Returns the start by these texts of /proc/stat and /proc/self/stat.
fn started_of(boot: &str, own: &str, ticks_per_s: u64) -> Option<f64> {
    let boot: f64 = boot
        .lines()
        .find_map(|line| line.strip_prefix("btime "))?
        .parse()
        .ok()?;
    // The name of the program, in parentheses, may contain anything. Field 22 is the 20th behind it.
    let (_, fields) = own.rsplit_once(')')?;
    let ticks: f64 = fields.split_whitespace().nth(19)?.parse().ok()?;
    Some(boot + ticks / ticks_per_s as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_is_read_behind_any_program_name() {
        let own = "7 (a) b 1) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 250 20";
        let boot = "cpu 1 2\nbtime 1000\n";
        assert_eq!(started_of(boot, own, 100), Some(1002.5));
        assert_eq!(started_of("cpu 1\n", own, 100), None);
        assert_eq!(started_of(boot, "7 (a) S 1", 100), None);
        assert!(started().unwrap() > 1e9);
    }
}
