//! Other load of the machine during a measurement: the share of its time that other processes and a
//! hypervisor took, and the number of other runnable threads.

use std::time::Duration;

use serde::Serialize;

/// Above this share a figure depends on other processes as much as on the contender.
pub(crate) const SHARE_MAX: f64 = 0.05;
/// The kernel's unit of these figures, on all machines.
const TICKS_PER_S: f64 = 100.0;

/// The machine's time so far, in ticks of all cores.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Spent {
    total: f64,
    busy: f64,
    steal: f64,
    /// The part of the busy time that our processes spent.
    own: f64,
}

impl Spent {
    /// Returns the present time, with the part that these processes spent.
    pub(crate) fn now(own: impl IntoIterator<Item = u32>) -> Self {
        let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        let own = own.into_iter().map(|id| {
            let stat = std::fs::read_to_string(format!("/proc/{id}/stat"));
            own_ticks(&stat.unwrap_or_default())
        });
        Self {
            own: own.sum(),
            ..Self::parse(&stat)
        }
    }

    fn parse(stat: &str) -> Self {
        let line = stat.lines().next().unwrap_or_default();
        let all: Vec<f64> = line
            .split_whitespace()
            .skip(1)
            .filter_map(|n| n.parse().ok())
            .collect();
        let at = |index: usize| all.get(index).copied().unwrap_or(0.0);
        // user, nice, system, idle, iowait, irq, softirq, steal; guests are within user.
        let steal = at(7);
        let busy = at(0) + at(1) + at(2) + at(5) + at(6);
        Self {
            total: busy + at(3) + at(4) + steal,
            busy,
            steal,
            own: 0.0,
        }
    }

    /// Returns the noise between `before` and this.
    pub(crate) fn since(self, before: Self) -> Noise {
        let total = (self.total - before.total).max(1.0);
        let others = (self.busy - before.busy) - (self.own - before.own);
        Noise {
            others: (others / total).clamp(0.0, 1.0),
            steal: ((self.steal - before.steal) / total).clamp(0.0, 1.0),
        }
    }
}

/// Returns user and system time of a process, from its `stat`. The name in it may have spaces and brackets.
fn own_ticks(stat: &str) -> f64 {
    let behind = stat.rsplit_once(')').map_or("", |(_, behind)| behind);
    let fields: Vec<&str> = behind.split_whitespace().collect();
    let at = |index: usize| -> f64 {
        fields
            .get(index)
            .and_then(|n| n.parse().ok())
            .unwrap_or(0.0)
    };
    at(11) + at(12)
}

/// Shares of the machine's time that others took, from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Noise {
    /// Other processes.
    pub(crate) others: f64,
    /// Other machines on the same hardware.
    pub(crate) steal: f64,
}

impl Noise {
    pub(crate) fn is_quiet(self) -> bool {
        self.others + self.steal <= SHARE_MAX
    }
}

/// State of the machine before the first measurement.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Machine {
    pub(crate) kernel: String,
    pub(crate) processor: String,
    /// Cores that this process may use.
    pub(crate) cores: Vec<usize>,
    pub(crate) load_1_min: f64,
    /// Runnable threads, without this process.
    pub(crate) runnable: u64,
    pub(crate) idle_noise: Noise,
    pub(crate) is_quiet: bool,
}

impl Machine {
    /// Observes the machine for `span` while this process sleeps.
    pub(crate) fn look(span: Duration) -> Self {
        let before = Spent::now([]);
        std::thread::sleep(span.max(Duration::from_secs_f64(10.0 / TICKS_PER_S)));
        let idle_noise = Spent::now([]).since(before);
        let (load_1_min, runnable) = load(&read("/proc/loadavg"));
        let processor = read("/proc/cpuinfo");
        let processor = processor.lines().find_map(|l| l.strip_prefix("model name"));
        Self {
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            processor: processor
                .unwrap_or("unknown")
                .trim_start_matches([' ', '\t', ':'])
                .to_owned(),
            cores: cores(&read("/proc/self/status")),
            load_1_min,
            runnable,
            idle_noise,
            is_quiet: idle_noise.is_quiet() && runnable == 0,
        }
    }
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// Returns the load of the last minute, and the number of runnable threads without the calling one.
fn load(text: &str) -> (f64, u64) {
    let mut fields = text.split_whitespace();
    let minute = fields.next().and_then(|n| n.parse().ok()).unwrap_or(0.0);
    let running = fields
        .nth(2)
        .and_then(|n| n.split('/').next()?.parse().ok());
    (minute, running.unwrap_or(1_u64).saturating_sub(1))
}

/// Returns the cores in the list of a process's status: `0-2,5`.
fn cores(status: &str) -> Vec<usize> {
    let list = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let ranges = list.unwrap_or_default().trim().split(',');
    let range = |text: &str| -> Option<std::ops::RangeInclusive<usize>> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    ranges.filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_of_others_is_busy_time_minus_own() {
        let before = Spent::parse("cpu  100 0 50 800 10 0 5 2 0 0\ncpu0 1 2 3\n");
        let mut after = Spent::parse("cpu  200 0 50 850 10 0 5 12 0 0\n");
        after.own = 60.0;
        let noise = after.since(before);
        // 160 ticks went by: 100 busy of which 60 ours, 10 stolen.
        assert_eq!((noise.others, noise.steal), (0.25, 0.0625));
        assert!(!noise.is_quiet());
        after.own = 100.0;
        after.steal = before.steal;
        assert!(after.since(before).is_quiet());
    }

    #[test]
    fn cpu_times_parse_after_any_process_name() {
        let stat = "42 (a) b) S 1 2 3 4 5 6 7 8 9 10 30 12 0 0 20";
        assert_eq!(own_ticks(stat), 42.0);
        assert_eq!(own_ticks(""), 0.0);
    }

    #[test]
    fn load_and_cores_are_read_as_the_kernel_writes_them() {
        assert_eq!(load("1.50 0.70 0.30 3/345 999\n"), (1.5, 2));
        assert_eq!(cores("Name: x\nCpus_allowed_list:\t0-2,5\n"), [0, 1, 2, 5]);
        assert!(cores("").is_empty());
    }
}
