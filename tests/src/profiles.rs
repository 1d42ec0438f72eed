//! What a run is made of: a profile names the kind of trouble, the seed decides its particulars.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tickcast_reliability::delivery::{Delivery, Start};
use tickcast_reliability::heartbeat::HeartbeatConfig;
use tickcast_reliability::link::LinkTimers;
use tickcast_reliability::receiver_config::ReceiverConfig;
use tickcast_reliability::repair_config::{BURST_BYTES_MIN, RepairConfig};
use tickcast_reliability::units::Nanos;

use crate::faults::{Incident, Weather, What, Whom};

/// Every profile, in the order in which seeds cycle over them.
pub const PROFILES: [&str; 36] = [
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
];

/// Whether the faults stop before the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// They go on: nothing untrue may be told.
    Safety,
    /// They stop: everyone must reach the end within [`Plan::settle`].
    Liveness,
}

/// Everything that is decided before a run begins.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Decides what chance decides on the way.
    pub seed: u64,
    /// Its profile.
    pub profile: &'static str,
    /// Whether the faults stop.
    pub mode: Mode,
    /// Subscribers.
    pub receivers: usize,
    /// Lines of each fan-out.
    pub lines: u8,
    /// Fan-outs of the ring; subscribers are spread over them.
    pub fan_outs: u8,
    /// Slots of the ring.
    pub ring_slots: u64,
    /// Bytes of a slot.
    pub slot_len: u32,
    /// First sequence and record of the first epoch.
    pub first: (u64, u64),
    /// From one burst of the feed to the next, on average.
    pub spacing: Nanos,
    /// Messages in a burst at most.
    pub burst: u32,
    /// When the feed ends; faults stop before it.
    pub feed_until: Nanos,
    /// When the faults stop.
    pub faults_until: Nanos,
    /// How long everything may take to settle after the feed's end.
    pub settle: Nanos,
    /// Of the network, one way, least and most.
    pub delay: (Nanos, Nanos),
    /// Of a connection.
    pub connection_bytes_per_s: u64,
    /// Datagrams that a socket holds while nobody polls.
    pub socket_datagrams: usize,
    /// By chance, until the faults stop.
    pub weather: Vec<Weather>,
    /// Once each, in order of time.
    pub incidents: Vec<(Nanos, Incident)>,
    /// Settings of each subscriber.
    pub subscribers: Vec<(ReceiverConfig, Start)>,
    /// Settings of repair.
    pub repair: RepairConfig,
    /// Settings of heartbeats.
    pub heartbeat: HeartbeatConfig,
    /// Times of the subscribers' connections.
    pub link: LinkTimers,
    /// Subscribers from this one on must not notice anything: whatever happens to the others.
    pub untouched_from: usize,
    /// Whether all subscribers are there from the start.
    pub all_join_first: bool,
    /// Whether the publisher that goes does not come back.
    pub gone: bool,
}

const fn ms(ms: u64) -> Nanos {
    Nanos::from_ms(ms)
}

const fn us(us: u64) -> Nanos {
    Nanos::from_us(us)
}

fn pick<T: Copy>(rng: &mut ChaCha8Rng, of: &[T]) -> T {
    of[rng.random_range(0..of.len())]
}

impl Plan {
    /// The plan of a seed. `profile`: one of [`PROFILES`], or the seed's own.
    #[must_use]
    pub fn of(seed: u64, profile: Option<&'static str>, receivers: Option<usize>) -> Self {
        let profile = profile.unwrap_or(PROFILES[(seed % PROFILES.len() as u64) as usize]);
        let mut rng = ChaCha8Rng::seed_from_u64(seed ^ 0x706c_616e);
        let mut plan = Self::base(seed, profile, receivers, &mut rng);
        plan.trouble(&mut rng);
        let until = plan.faults_until;
        plan.incidents.retain(|(at, _)| *at < until);
        plan.incidents.sort_by_key(|(at, _)| *at);
        plan
    }

    fn base(
        seed: u64,
        profile: &'static str,
        receivers: Option<usize>,
        rng: &mut ChaCha8Rng,
    ) -> Self {
        let receivers = receivers.unwrap_or_else(|| rng.random_range(1..=5)).max(1);
        let ring_slots = pick(rng, &[64, 128, 256, 1024]);
        let delay = pick(rng, &[5, 20, 100, 400]);
        let jitter = pick(rng, &[0, 0, 1, 10]);
        let subscribers = (0..receivers).map(|_| subscriber(rng)).collect();
        let faults_until = ms(rng.random_range(60..200));
        Self {
            seed,
            profile,
            mode: if rng.random_bool(0.25) {
                Mode::Safety
            } else {
                Mode::Liveness
            },
            receivers,
            lines: pick(rng, &[1, 1, 2]),
            fan_outs: pick(rng, &[1, 1, 1, 2]),
            ring_slots,
            slot_len: pick(rng, &[1024, 1472]),
            first: (1, 1),
            spacing: us(pick(rng, &[100, 200, 500])),
            burst: pick(rng, &[1, 3, 10]),
            faults_until,
            feed_until: faults_until.after(ms(40)),
            settle: Nanos::from_secs(3),
            delay: (us(delay), us(delay + jitter)),
            connection_bytes_per_s: pick(rng, &[1_000_000_000, 20_000_000]),
            socket_datagrams: pick(rng, &[16, 64, 1000]),
            weather: Vec::new(),
            incidents: Vec::new(),
            subscribers,
            repair: RepairConfig {
                repair_coalesce_us: 5,
                sender_ignore_us: 45,
                large_group: pick(rng, &[3, 64]),
                peers_max: receivers * 4 + 16,
                multicast_repair: rng.random_bool(0.8),
                join_timeout_us: 50_000,
                silent_timeout_us: 2_000_000,
                ..RepairConfig::default()
            },
            heartbeat: HeartbeatConfig {
                first_us: pick(rng, &[20, 200]),
                idle_us: pick(rng, &[2_000, 10_000]),
                ambient_us: 20_000,
            },
            link: LinkTimers {
                retry_min: ms(1),
                retry_max: ms(50),
                join_timeout: ms(60),
            },
            untouched_from: receivers,
            all_join_first: true,
            gone: false,
        }
    }

    fn at(&mut self, at: Nanos, incident: Incident) {
        self.incidents.push((at, incident));
    }

    /// Something that begins, and ends after a while.
    fn spell(&mut self, at: Nanos, lasts: Nanos, begins: Incident, ends: Incident) {
        self.at(at, begins);
        self.at(at.after(lasts), ends);
    }

    /// A time at which trouble may begin.
    fn some_time(&self, rng: &mut ChaCha8Rng) -> Nanos {
        Nanos(rng.random_range(ms(10).0..self.faults_until.0 - ms(10).0))
    }

    fn whom(&self, rng: &mut ChaCha8Rng) -> Option<usize> {
        rng.random_bool(0.7)
            .then(|| rng.random_range(0..self.receivers))
    }

    fn trouble(&mut self, rng: &mut ChaCha8Rng) {
        match self.profile {
            "chaos" => {
                for _ in 0..rng.random_range(2..=5) {
                    // All but chaos itself, and those that decide where sequences begin.
                    let profile = loop {
                        let of = PROFILES[rng.random_range(1..PROFILES.len() - 1)];
                        if !matches!(of, "near-2-64" | "outage" | "one-receiver" | "gone") {
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
        let weather = |plan: &mut Self, whom, change: &dyn Fn(&mut Weather)| {
            let mut weather = Weather::fair(whom);
            change(&mut weather);
            plan.weather.push(weather);
        };
        let share = pick(rng, &[0.001, 0.01, 0.05, 0.2]);
        let many = rng.random_range(1..=4);
        match profile {
            "iid" => weather(self, Whom::Each, &|w| w.drop = share),
            "burst" => {
                let mean = pick(rng, &[3.0, 20.0, 100.0]);
                weather(self, Whom::Each, &|w| w.burst = Some((share, mean)));
            }
            "one-receiver" => {
                self.receivers_at_least(3, rng);
                self.untouched_from = 1;
                // Room enough for what those miss who have only just joined.
                self.ring_slots = 1024;
                for (config, _) in &mut self.subscribers {
                    config.window_slots = 1024;
                }
                self.repair.multicast_repair = false;
                // Nothing overtakes, so that every gap is somebody's trouble.
                self.delay.1 = self.delay.0;
                weather(self, Whom::One(0), &|w| w.drop = share.max(0.05));
                let (at, lasts) = (self.some_time(rng), ms(rng.random_range(1..60)));
                self.spell(at, lasts, Incident::Stall(0), Incident::Resume(0));
                let at = self.some_time(rng);
                self.at(at, Incident::Reset(Some(0)));
            }
            "common" => {
                weather(self, Whom::Common, &|w| w.drop = share);
                if rng.random_bool(0.5) {
                    weather(self, Whom::Common, &|w| w.burst = Some((0.02, 10.0)));
                }
            }
            "only-nacks" => {
                weather(self, Whom::Each, &|w| w.drop = share);
                for _ in 0..many {
                    let (whom, at) = (self.whom(rng), self.some_time(rng));
                    let lasts = ms(rng.random_range(1..50));
                    self.spell(at, lasts, Incident::UpStops(whom), Incident::UpPasses(whom));
                }
            }
            "only-repairs" => {
                weather(self, Whom::Common, &|w| w.drop = share);
                weather(self, Whom::Each, &|w| {
                    (w.what, w.drop) = (What::Repairs, 0.7);
                });
                for _ in 0..many {
                    let (whom, at) = (self.whom(rng), self.some_time(rng));
                    let lasts = ms(rng.random_range(1..50));
                    let (stop, pass) = (Incident::DownStops(whom), Incident::DownPasses(whom));
                    self.spell(at, lasts, stop, pass);
                }
            }
            "only-heartbeats" => weather(self, Whom::Each, &|w| {
                (w.what, w.drop) = (What::Heartbeats, 0.9);
            }),
            "only-last" => weather(self, Whom::Each, &|w| {
                (w.what, w.drop) = (What::Last, 0.8);
            }),
            "duplicate" => weather(self, Whom::Each, &|w| w.duplicate = 0.3),
            "reorder" => weather(self, Whom::Each, &|w| w.late = Some((0.2, us(500)))),
            "reorder-unbounded" => weather(self, Whom::Each, &|w| w.late = Some((0.1, ms(60)))),
            "corrupt" => weather(self, Whom::Each, &|w| w.corrupt = share),
            "truncate" => weather(self, Whom::Each, &|w| w.truncate = share),
            "delay" => weather(self, Whom::Common, &|w| w.late = Some((share, ms(20)))),
            "partition-one-way" => {
                for _ in 0..many {
                    let (whom, at) = (self.whom(rng), self.some_time(rng));
                    let lasts = ms(rng.random_range(5..150));
                    let (stop, pass) = match rng.random_range(0..3) {
                        0 => (Incident::UpStops(whom), Incident::UpPasses(whom)),
                        1 => (Incident::DownStops(whom), Incident::DownPasses(whom)),
                        _ => (Incident::DatagramsStop(whom), Incident::DatagramsPass(whom)),
                    };
                    self.spell(at, lasts, stop, pass);
                }
            }
            "partition-two-way" => {
                let (whom, at) = (self.whom(rng), self.some_time(rng));
                let lasts = ms(rng.random_range(5..150));
                self.isolate(at, lasts, whom);
            }
            "stall" => {
                for _ in 0..many {
                    let (at, lasts) = (self.some_time(rng), ms(rng.random_range(1..120)));
                    let of = rng.random_range(0..self.receivers);
                    self.spell(at, lasts, Incident::Stall(of), Incident::Resume(of));
                }
            }
            "pause" => {
                let (at, lasts) = (self.some_time(rng), ms(rng.random_range(1..150)));
                self.spell(at, lasts, Incident::Pause, Incident::GoOn);
            }
            "restart" | "power-cut" => {
                weather(self, Whom::Each, &|w| w.drop = share);
                for _ in 0..rng.random_range(1..=2) {
                    let (at, lasts) = (self.some_time(rng), ms(rng.random_range(0..80)));
                    let end = match profile {
                        "restart" => Incident::Kill,
                        _ => Incident::PowerCut,
                    };
                    self.spell(at, lasts, end, Incident::Start);
                }
            }
            "gone" => {
                self.gone = true;
                weather(self, Whom::Each, &|w| w.drop = share);
                let at = self.some_time(rng);
                let end = [Incident::Kill, Incident::PowerCut];
                self.at(at, pick(rng, &end));
            }
            "zombie" => {
                weather(self, Whom::Each, &|w| w.drop = share);
                let at = self.some_time(rng);
                self.at(at, Incident::Pause);
                let (starts, back) = (rng.random_range(1..30), rng.random_range(30..60));
                self.at(at.after(ms(starts)), Incident::Start);
                self.at(at.after(ms(back)), Incident::GoOn);
            }
            "two-publishers" => {
                weather(self, Whom::Each, &|w| w.drop = share);
                let at = self.some_time(rng);
                self.at(at, Incident::Start);
                for _ in 0..many {
                    let (at, whom) = (self.some_time(rng), self.whom(rng));
                    self.at(at, Incident::Reset(whom));
                    let at = self.some_time(rng);
                    self.at(at, Incident::Divert);
                }
            }
            "lapped" => {
                (self.ring_slots, self.spacing) = (pick(rng, &[16, 32]), us(50));
                self.repair.repair_bytes_per_s = 2_000_000;
                self.repair.subscriber_bytes_per_s = 1_000_000;
                self.repair.joiner_bytes_per_s = 1_000_000;
                self.tight_bursts();
                weather(self, Whom::Each, &|w| w.burst = Some((0.1, 12.0)));
            }
            "clock-step" => {
                weather(self, Whom::Each, &|w| w.drop = 0.01);
                for _ in 0..many {
                    let at = self.some_time(rng);
                    let step = rng.random_range(-3_600_000..3_600_000);
                    self.at(at, Incident::ClockStep(step));
                }
            }
            "near-2-32" => {
                let near = (1 << 32) - rng.random_range(0..300);
                self.first = (near, near);
                weather(self, Whom::Each, &|w| w.drop = share);
            }
            "near-2-64" => {
                let near = u64::MAX - rng.random_range(100..3000);
                self.first = (near, u64::MAX - (1 << 32));
                weather(self, Whom::Each, &|w| w.drop = share);
            }
            "churn" => {
                weather(self, Whom::Each, &|w| w.drop = 0.01);
                for _ in 0..rng.random_range(2..=12) {
                    let (at, lasts) = (self.some_time(rng), ms(rng.random_range(0..60)));
                    let of = rng.random_range(0..self.receivers);
                    let leave = Incident::Leave(of, rng.random_bool(0.5));
                    self.spell(at, lasts, leave, Incident::Join(of));
                }
            }
            "join-storm" => {
                self.receivers_at_least(10, rng);
                self.all_join_first = false;
                weather(self, Whom::Common, &|w| w.drop = 0.02);
                let at = self.some_time(rng);
                for of in 0..self.receivers {
                    let spread = us(rng.random_range(0..500));
                    self.at(at.after(spread), Incident::Join(of));
                }
            }
            "membership" => {
                for _ in 0..many {
                    let (at, of) = (self.some_time(rng), rng.random_range(0..self.receivers));
                    self.at(at, Incident::LoseMembership(of));
                }
            }
            "outage" => {
                // A second without the network, at a rate that laps the ring many times.
                self.spacing = us(50);
                (self.faults_until, self.feed_until) = (ms(1_100), ms(1_150));
                let whom = self.whom(rng);
                self.isolate(ms(60), Nanos::from_secs(1), whom);
            }
            "fan-out-stall" => {
                let (at, lasts) = (self.some_time(rng), ms(rng.random_range(5..100)));
                let of = rng.random_range(0..self.fan_outs);
                let (stalls, goes_on) = (Incident::FanOutStalls(of), Incident::FanOutGoesOn(of));
                self.spell(at, lasts, stalls, goes_on);
            }
            "tight-budget" => {
                weather(self, Whom::Each, &|w| w.drop = share.max(0.05));
                self.repair.repair_bytes_per_s = rng.random_range(300_000..3_000_000);
                self.repair.subscriber_bytes_per_s = self.repair.repair_bytes_per_s / 2;
                self.repair.joiner_bytes_per_s = rng.random_range(300_000..3_000_000);
                self.repair.pending_ranges_max = pick(rng, &[2, 16, 1024]);
                self.settle = Nanos::from_secs(30);
                self.tight_bursts();
            }
            "resets" => {
                weather(self, Whom::Each, &|w| w.drop = share);
                for _ in 0..rng.random_range(1..10) {
                    let (at, whom) = (self.some_time(rng), self.whom(rng));
                    self.at(at, Incident::Reset(whom));
                }
            }
            // "calm", and what is no profile.
            _ => {}
        }
    }

    fn tight_bursts(&mut self) {
        self.repair.repair_burst_bytes = BURST_BYTES_MIN;
        self.repair.subscriber_burst_bytes = BURST_BYTES_MIN;
        self.repair.joiner_burst_bytes = BURST_BYTES_MIN;
    }

    fn isolate(&mut self, at: Nanos, lasts: Nanos, whom: Option<usize>) {
        self.spell(at, lasts, Incident::UpStops(whom), Incident::UpPasses(whom));
        let (stop, pass) = (Incident::DownStops(whom), Incident::DownPasses(whom));
        self.spell(at, lasts, stop, pass);
        let (stop, pass) = (Incident::DatagramsStop(whom), Incident::DatagramsPass(whom));
        self.spell(at, lasts, stop, pass);
    }

    fn receivers_at_least(&mut self, least: usize, rng: &mut ChaCha8Rng) {
        while self.receivers < least {
            self.subscribers.push(subscriber(rng));
            self.receivers += 1;
        }
        self.untouched_from = self.receivers;
        self.repair.peers_max = self.receivers * 4 + 16;
    }
}

fn subscriber(rng: &mut ChaCha8Rng) -> (ReceiverConfig, Start) {
    let delivery = match rng.random_range(0..10) {
        0 => Delivery::Arrival,
        1 => Delivery::OrderedWithin(us(rng.random_range(500..20_000))),
        _ => Delivery::Ordered,
    };
    let config = ReceiverConfig {
        delivery,
        repair: !rng.random_bool(0.03),
        window_slots: pick(rng, &[16, 64, 256, 1024]),
        reorder_grace_us: pick(rng, &[0, 0, 50]),
        line_skew_us: pick(rng, &[100, 500]),
        line_silence_us: 5_000,
        nack_retry_us: 50,
        nack_tries: pick(rng, &[3, 8]),
        burst_max: pick(rng, &[10, 100, 2048]),
        replay_in_flight: pick(rng, &[8, 64, 512]),
        unrepaired_wait_us: 2_000,
        stale_us: 5_000,
        dead_us: pick(rng, &[60_000, 500_000]),
        progress_us: 10_000,
        follow_us: 1_000,
    };
    let start = if rng.random_bool(0.4) {
        Start::Oldest
    } else {
        Start::Live
    };
    (config, start)
}
