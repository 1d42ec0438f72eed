//! The schedule of faults. The same seed injects the same faults into the same processes. The behaviour
//! of the processes in between is not reproducible.

use std::fmt;
use std::time::Duration;

use rand::RngExt;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde::Serialize;

/// The process that a fault hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Who {
    /// The publisher.
    Publisher,
    /// A subscriber, from 1 on. The first is never killed, so that one lives through the whole run.
    Subscriber(usize),
}

impl Who {
    /// Returns the process's end of the network.
    pub(crate) const fn end(self) -> usize {
        match self {
            Self::Publisher => 0,
            Self::Subscriber(n) => n,
        }
    }
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Publisher => f.write_str("publisher"),
            Self::Subscriber(n) => write!(f, "s{n}"),
        }
    }
}

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Fault {
    /// `kill -9`. The supervisor restarts the process at once.
    Kill(Who),
    /// The publisher is killed and its rings are removed, as after a power cut.
    LoseRings,
    /// The publisher and all subscribers but the first are killed at once.
    KillAll,
    /// The process is stopped for a while (SIGSTOP, SIGCONT).
    Stop(Who),
    /// The process's cable is pulled for a while.
    Unplug(Who),
    /// At most this many kbit/s reach the process, through a queue that drops.
    Limit(Who, u32),
    /// Foreign datagrams and connections.
    Strangers,
    /// The file system of rings, state, audit and journals is full.
    FillDisk,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kill(who) => write!(f, "kill -9 {who}"),
            Self::LoseRings => f.write_str("kill -9 publisher, and its rings are gone"),
            Self::KillAll => f.write_str("kill -9 publisher and all subscribers but s1"),
            Self::Stop(who) => write!(f, "{who} stands still"),
            Self::Unplug(who) => write!(f, "{who} unplugged"),
            Self::Limit(who, rate) => write!(f, "{who} gets {rate} kbit/s"),
            Self::Strangers => f.write_str("strangers"),
            Self::FillDisk => f.write_str("no room on the file system"),
        }
    }
}

impl Fault {
    /// Returns the name by which the report counts it.
    pub(crate) const fn kind(self) -> &'static str {
        match self {
            Self::Kill(Who::Publisher) => "publisher killed",
            Self::Kill(Who::Subscriber(_)) => "subscriber killed",
            Self::LoseRings => "rings lost",
            Self::KillAll => "all killed",
            Self::Stop(Who::Publisher) => "publisher stopped",
            Self::Stop(Who::Subscriber(_)) => "subscriber stopped",
            Self::Unplug(Who::Publisher) => "publisher unplugged",
            Self::Unplug(Who::Subscriber(_)) => "subscriber unplugged",
            Self::Limit(..) => "rate limited",
            Self::Strangers => "strangers",
            Self::FillDisk => "file system full",
        }
    }

    /// Returns whether the fault has no duration.
    const fn is_instant(self) -> bool {
        matches!(self, Self::Kill(_) | Self::LoseRings | Self::KillAll)
    }

    /// Returns whether the fault kills the publisher.
    const fn kills_publisher(self) -> bool {
        matches!(
            self,
            Self::Kill(Who::Publisher) | Self::LoseRings | Self::KillAll
        )
    }
}

/// One scheduled fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Happening {
    pub(crate) at_ms: u64,
    pub(crate) fault: Fault,
    /// Duration; 0 for a fault without one.
    pub(crate) for_ms: u64,
}

impl fmt::Display for Happening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (at_ms, fault) = (self.at_ms, self.fault);
        write!(f, "{:>5}.{:03} s  {fault}", at_ms / 1_000, at_ms % 1_000)?;
        match self.for_ms {
            0 => Ok(()),
            ms => write!(f, " for {ms} ms"),
        }
    }
}

/// After this part of a run the publisher is no longer killed. The rest shows whether the memory of a
/// long-lived publisher stays constant.
const KILLED_UNTIL: f64 = 0.6;
/// The first fault comes after this time, in which all processes can join.
const QUIET_MS: u64 = 3_000;

/// Returns all faults of a run of `span` with `subscribers`, oldest first. Faults of the same kind never
/// overlap.
pub(crate) fn schedule(seed: u64, span: Duration, subscribers: usize) -> Vec<Happening> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let span_ms = span.as_millis() as u64;
    let mut happenings: Vec<Happening> = Vec::new();
    let mut at_ms = QUIET_MS;
    loop {
        at_ms += random.random_range(300..3_500);
        // Every fault ends before the run does.
        let for_ms = random.random_range(50..3_000);
        let fault = draw(&mut random, subscribers);
        if at_ms + for_ms >= span_ms {
            return happenings;
        }
        let is_late = at_ms as f64 > span_ms as f64 * KILLED_UNTIL;
        let goes_on = |it: &Happening| {
            let what = std::mem::discriminant(&it.fault) == std::mem::discriminant(&fault);
            what && it.at_ms + it.for_ms > at_ms
        };
        if fault.kills_publisher() && is_late || happenings.iter().rev().take(20).any(goes_on) {
            continue;
        }
        happenings.push(Happening {
            at_ms,
            fault,
            for_ms: if fault.is_instant() { 0 } else { for_ms },
        });
    }
}

fn draw(random: &mut ChaCha8Rng, subscribers: usize) -> Fault {
    let mut any = |from: usize| Who::Subscriber(random.random_range(from..=subscribers));
    let (subscriber, mortal) = (any(1), any(2.min(subscribers)));
    let rate = [64, 512, 2_000, 8_000][random.random_range(0..4)];
    match random.random_range(0..100) {
        0..12 => Fault::Kill(Who::Publisher),
        12..16 => Fault::LoseRings,
        16..20 => Fault::KillAll,
        20..36 => Fault::Kill(mortal),
        36..42 => Fault::Stop(Who::Publisher),
        42..54 => Fault::Stop(subscriber),
        54..58 => Fault::Unplug(Who::Publisher),
        58..70 => Fault::Unplug(subscriber),
        70..73 => Fault::Limit(Who::Publisher, rate),
        73..84 => Fault::Limit(subscriber, rate),
        84..93 => Fault::Strangers,
        _ => Fault::FillDisk,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);

    #[test]
    fn chaos_schedule_is_deterministic_per_seed() {
        assert_eq!(schedule(7, HOUR, 4), schedule(7, HOUR, 4));
        assert_ne!(schedule(7, HOUR, 4), schedule(8, HOUR, 4));
    }

    #[test]
    fn hour_of_chaos_covers_all_and_spares_first() {
        let hour = schedule(1, HOUR, 4);
        let kinds: BTreeSet<_> = hour.iter().map(|it| it.fault.kind()).collect();
        assert_eq!(kinds.len(), 11, "{kinds:?}");
        assert!(hour.len() > 1_000);
        assert!(
            hour.iter()
                .all(|it| it.fault != Fault::Kill(Who::Subscriber(1)))
        );
        for n in 1..=4 {
            assert!(
                hour.iter()
                    .any(|it| it.fault == Fault::Unplug(Who::Subscriber(n)))
            );
        }
    }

    #[test]
    fn chaos_ends_clean_and_publisher_survives() {
        let hour = schedule(3, HOUR, 3);
        assert!(hour.is_sorted_by_key(|it| it.at_ms));
        assert!(hour.iter().all(|it| it.at_ms + it.for_ms < 3_600_000));
        let late = hour.iter().filter(|it| it.at_ms > 2_160_000);
        assert!(late.clone().count() > 300);
        assert!(late.clone().all(|it| !it.fault.kills_publisher()));
    }
}
