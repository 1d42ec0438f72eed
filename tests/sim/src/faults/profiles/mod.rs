//! Profiles: named kinds of faults, and the faults that each adds to a run.

mod hosts;
mod impostor;
mod limits;
mod network;
mod promotion;
mod redundancy;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tickcast_reliability::serve::BURST_BYTES_MIN;
use tickcast_reliability::types::Nanos;

use crate::faults::incident::Incident;
pub use crate::faults::plan::{Mode, Plan, StartAt};
use crate::faults::plan::{ms, pick, subscriber};
use crate::faults::weather::{Weather, Whom};

/// Every profile, in the order in which seeds cycle over them.
pub const PROFILES: [&str; 54] = [
    "calm",
    "iid",
    "burst",
    "one-receiver",
    "common",
    "only-nacks",
    "only-repairs",
    "only-heartbeats",
    "only-last",
    "duplicate",
    "reorder",
    "reorder-unbounded",
    "corrupt",
    "truncate",
    "delay",
    "partition-one-way",
    "partition-two-way",
    "stall",
    "pause",
    "restart",
    "power-cut",
    "gone",
    "zombie",
    "two-publishers",
    "lapped",
    "clock-step",
    "near-2-32",
    "near-2-64",
    "churn",
    "join-storm",
    "membership",
    "outage",
    "fan-out-stall",
    "tight-budget",
    "resets",
    "chaos",
    "one-line",
    "busy-reader",
    "forger",
    "line-skew",
    "swizzle",
    "fencing",
    "lapped-mid-copy",
    "broken-one",
    "two-channels",
    "start-at",
    "nack-link-breaks",
    "promotion",
    "long-runs",
    "impostor",
    "impostor-loss",
    "impostor-keys",
    "impostor-deadline",
    "promotion-keys",
];

/// Chaos draws from this many first profiles, because adding a later one would change the meaning of
/// its seeds.
const OF_CHAOS: usize = 47;

/// Profiles that chaos excludes: itself, those that decide the first sequence, and those that demand
/// that no subscriber is affected.
const NOT_IN_CHAOS: [&str; 10] = [
    "chaos",
    "near-2-64",
    "outage",
    "one-receiver",
    "gone",
    "one-line",
    "busy-reader",
    "forger",
    "fencing",
    "broken-one",
];

/// Returns the maximum time from the end of the feed until every subscriber has reached it, for runs
/// without tight budgets. The bound is about three times the longest of a thousand seeds of the
/// profile. Where a subscriber waits for a fixed timer, the bound follows that timer. Attempts to
/// connect back off by 75 ms and are given up after 60 ms.
fn settles_within(profile: &str) -> Nanos {
    // With planted bugs, copies are torn on purpose, and each is requested again after a first retry.
    let torn = cfg!(feature = "planted-bugs");
    ms(match profile {
        _ if torn => 2_250,
        // A subscriber that disappeared is removed once it has been silent for 2 s. A publisher that
        // disappeared is waited for until it counts as dead, twice when its connection times out first.
        "churn" | "gone" | "chaos" => 2_250,
        // No subscriber has to reconnect.
        "broken-one" | "one-line" | "busy-reader" => 30,
        "one-receiver" => 75,
        "lapped-mid-copy" | "forger" | "near-2-32" | "near-2-64" => 200,
        "promotion" => 250,
        "impostor" | "impostor-loss" | "impostor-keys" | "impostor-deadline" | "promotion-keys" => {
            2_250
        }
        "fencing" | "outage" | "swizzle" | "two-publishers" | "common" | "partition-two-way"
        | "stall" | "resets" | "zombie" => 550,
        "join-storm" | "truncate" | "membership" | "duplicate" | "long-runs" => 750,
        _ => 360,
    })
}

impl Plan {
    /// Returns the plan of a seed. `profile` is one of [`PROFILES`], or `None` for the seed's own.
    #[must_use]
    pub fn of(seed: u64, profile: Option<&'static str>, receivers: Option<usize>) -> Self {
        let profile = profile.unwrap_or(PROFILES[(seed % PROFILES.len() as u64) as usize]);
        let mut rng = ChaCha8Rng::seed_from_u64(seed ^ 0x706c_616e);
        let mut plan = Self::base(seed, profile, receivers, &mut rng);
        plan.ladders(&mut ChaCha8Rng::seed_from_u64(seed ^ 0x6c61_6464));
        plan.variety(&mut ChaCha8Rng::seed_from_u64(seed ^ 0x7661_7269));
        plan.trouble(&mut rng);
        // A separate generator, so that seeds without standbys keep their meaning.
        let inboxes = ChaCha8Rng::seed_from_u64(seed ^ 0x696e_626f).random_bool(0.7);
        plan.inboxes = inboxes && plan.read_path && plan.standbys > 0;
        plan.settle = plan.settle.max(settles_within(profile));
        let until = plan.faults_until;
        plan.incidents.retain(|(at, _)| *at < until);
        plan.incidents.sort_by_key(|(at, _)| *at);
        plan
    }

    /// Adds the faults of the profile.
    fn trouble(&mut self, rng: &mut ChaCha8Rng) {
        match self.profile {
            "chaos" => {
                for _ in 0..rng.random_range(2..=5) {
                    let profile = loop {
                        let of = PROFILES[rng.random_range(1..OF_CHAOS)];
                        if !NOT_IN_CHAOS.contains(&of) {
                            break of;
                        }
                    };
                    self.add(profile, rng);
                }
            }
            profile => self.add(profile, rng),
        }
    }

    fn add(&mut self, profile: &'static str, rng: &mut ChaCha8Rng) {
        let share = pick(rng, &[0.001, 0.01, 0.05, 0.2]);
        let many = rng.random_range(1..=4);
        let known = self.add_network(profile, (share, many), rng)
            || self.add_hosts(profile, (share, many), rng)
            || self.add_limits(profile, (share, many), rng)
            || self.add_promotion(profile, share, rng)
            || self.add_impostor(profile, (share, many), rng);
        if matches!(profile, "one-line" | "busy-reader" | "forger") {
            return self.add_quiet(profile, rng);
        }
        debug_assert!(known || profile == "calm", "there is no profile {profile}");
    }

    fn weather(&mut self, whom: Whom, change: impl FnOnce(&mut Weather)) {
        let mut weather = Weather::fair(whom);
        change(&mut weather);
        self.weather.push(weather);
    }

    fn at(&mut self, at: Nanos, incident: Incident) {
        self.incidents.push((at, incident));
    }

    /// Adds an incident that begins at `at` and a second one that ends it after `lasts`.
    fn spell(&mut self, at: Nanos, lasts: Nanos, begins: Incident, ends: Incident) {
        self.at(at, begins);
        self.at(at.after(lasts), ends);
    }

    /// Returns a random time at which a fault may begin.
    fn some_time(&self, rng: &mut ChaCha8Rng) -> Nanos {
        Nanos(rng.random_range(ms(10).0..self.faults_until.0 - ms(10).0))
    }

    fn whom(&self, rng: &mut ChaCha8Rng) -> Option<usize> {
        rng.random_bool(0.7)
            .then(|| rng.random_range(0..self.receivers))
    }

    fn tight_bursts(&mut self) {
        self.repair.repair_burst_bytes = BURST_BYTES_MIN;
        self.repair.subscriber_burst_bytes = BURST_BYTES_MIN;
        self.repair.joiner_burst_bytes = BURST_BYTES_MIN;
    }

    fn receivers_at_least(&mut self, least: usize, rng: &mut ChaCha8Rng) {
        while self.receivers < least {
            self.subscribers.push(subscriber(rng));
            self.starts_at.push(None);
            self.receivers += 1;
        }
        self.untouched_from = self.receivers;
        self.repair.peers_max = self.receivers * 4 + 16;
    }
}
