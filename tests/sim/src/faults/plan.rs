//! The plan of a run: everything that its profile and seed decide before it begins.

use std::ops::Range;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tickcast_reliability::control::Start;
use tickcast_reliability::delivery::Delivery;
use tickcast_reliability::publish::HeartbeatConfig;
use tickcast_reliability::receive::{ReceiverConfig, RepairOrder};
use tickcast_reliability::serve::RepairConfig;
use tickcast_reliability::session::LinkTimers;
use tickcast_reliability::types::{ChannelId, Nanos};

use crate::faults::incident::Incident;
use crate::faults::weather::Weather;

/// Whether the faults stop before the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The faults continue to the end: no event may be untrue.
    Safety,
    /// The faults stop: every subscriber must reach the end within [`Plan::settle`] of the feed's end.
    Liveness,
}

/// Everything that is decided before a run begins.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Seed of all random decisions during the run.
    pub seed: u64,
    /// Name of the profile.
    pub profile: &'static str,
    /// Whether the faults stop before the end.
    pub mode: Mode,
    /// Number of subscribers.
    pub receivers: usize,
    /// Number of lines of each fan-out.
    pub lines: u8,
    /// Number of fan-outs of the ring; subscribers are spread over them.
    pub fan_outs: u8,
    /// Number of slots of the ring.
    pub ring_slots: u64,
    /// Slot length in bytes.
    pub slot_len: u32,
    /// First sequence and record of the first epoch.
    pub first: (u64, u64),
    /// Average time between two bursts of the feed.
    pub spacing: Nanos,
    /// Maximum number of messages in a burst.
    pub burst: u32,
    /// Time at which the feed begins.
    pub feed_from: Nanos,
    /// Time at which the feed ends, after the faults stop.
    pub feed_until: Nanos,
    /// Time at which the faults stop.
    pub faults_until: Nanos,
    /// Maximum time from the end of the feed until every subscriber has reached it.
    pub settle: Nanos,
    /// Shortest and longest one-way delay of the network.
    pub delay: (Nanos, Nanos),
    /// Bandwidth of a connection in bytes per second.
    pub connection_bytes_per_s: u64,
    /// Number of datagrams that a socket buffers while the application does not poll.
    pub socket_datagrams: usize,
    /// Random faults, active until the faults stop.
    pub weather: Vec<Weather>,
    /// Incidents with their times, in order of time.
    pub incidents: Vec<(Nanos, Incident)>,
    /// Settings and start of each subscriber.
    pub subscribers: Vec<(ReceiverConfig, Start)>,
    /// Repair settings.
    pub repair: RepairConfig,
    /// Heartbeat settings.
    pub heartbeat: HeartbeatConfig,
    /// Timers of the subscribers' connections.
    pub link: LinkTimers,
    /// Index of the first subscriber that must be unaffected by faults of the others.
    pub untouched_from: usize,
    /// Whether no subscriber has a reason to send a NACK once all have joined.
    pub unasked: bool,
    /// Whether all subscribers are present from the start.
    pub all_join_first: bool,
    /// Whether the publisher that disappears does not come back.
    pub gone: bool,
    /// Whether NACK connections are offered and used.
    pub nack_path: bool,
    /// Whether READ of rings is offered and used.
    pub read_path: bool,
    /// Whether sealed datagrams are written to the inboxes of standbys.
    pub inboxes: bool,
    /// Maximum number of slots of one READ.
    pub read_slots: u32,
    /// Number of channels that every subscriber follows: 1 or 2.
    pub channels: usize,
    /// Additional delay of line B.
    pub line_skew: Nanos,
    /// Start of each subscriber that names a sequence; it is resolved when the subscriber joins.
    pub starts_at: Vec<Option<StartAt>>,
    /// Share of the repair service's copies during which the writer laps the ring.
    pub lapped_mid_copy: f64,
    /// A subscriber that is permanently broken. The others must be unaffected, whether it is present
    /// or absent.
    pub broken: Option<usize>,
    /// Length in bytes of the journal of each subscriber's core; `None` when not recorded.
    pub recorded: Option<usize>,
    /// Number of subscribers, counted from the last, that are standbys: they keep a mirror.
    pub standbys: usize,
    /// Subscribers that are absent from the run. A run with broken or many more subscribers is compared
    /// with it.
    pub absent: Range<usize>,
    /// Whether the times of each delivery and each connection attempt are logged.
    pub timed: bool,
    /// Whether an impostor multicasts forged datagrams with right CRCs.
    pub impostor: bool,
    /// Number of datagrams that one key authenticates; `None` when the channels are not authenticated.
    pub datagrams_per_key: Option<u64>,
    /// Bandwidth of the publishers' host in bytes per second, shared by multicast and all connections,
    /// which are sent one after the other. `None`: unlimited.
    pub uplink_bytes_per_s: Option<u64>,
}

/// A sequence that a subscriber names as its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartAt {
    /// This many sequences before the last one sealed.
    Back(u64),
    /// This many sequences after the last one sealed.
    Ahead(u64),
    /// This sequence of the epoch before, if there was one.
    EpochBefore(u64),
}

pub(crate) const fn ms(ms: u64) -> Nanos {
    Nanos::from_ms(ms)
}

pub(crate) const fn us(us: u64) -> Nanos {
    Nanos::from_us(us)
}

pub(crate) fn pick<T: Copy>(rng: &mut ChaCha8Rng, of: &[T]) -> T {
    of[rng.random_range(0..of.len())]
}

impl Plan {
    pub(crate) fn base(
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
            feed_from: Nanos::ZERO,
            feed_until: faults_until.after(ms(40)),
            settle: Nanos::ZERO,
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
            unasked: false,
            all_join_first: true,
            gone: false,
            // A separate generator, because an extra draw would change all later decisions of the seed.
            nack_path: ChaCha8Rng::seed_from_u64(seed ^ 0x6e61_636b).random_bool(0.4),
            read_path: ChaCha8Rng::seed_from_u64(seed ^ 0x7265_6164).random_bool(0.4),
            inboxes: false,
            read_slots: pick(
                &mut ChaCha8Rng::seed_from_u64(seed ^ 0x736c_6f74),
                &[1, 4, 16],
            ),
            channels: 1,
            line_skew: us(30),
            starts_at: vec![None; receivers],
            lapped_mid_copy: 0.0,
            broken: None,
            recorded: None,
            standbys: 0,
            absent: 0..0,
            timed: false,
            impostor: false,
            datagrams_per_key: None,
            uplink_bytes_per_s: None,
        }
    }

    /// Returns whether this subscriber keeps a mirror.
    #[must_use]
    pub const fn is_standby(&self, number: usize) -> bool {
        number + self.standbys >= self.receivers
    }

    /// Returns the names of the standbys that the publisher writes to: for some seeds only the first.
    #[must_use]
    pub fn written_to(&self) -> Vec<String> {
        let first = self.receivers - self.standbys;
        let count = match self.seed.is_multiple_of(4) {
            true => 1,
            false => self.standbys,
        };
        let all = (first..first + count).take(if self.inboxes { count } else { 0 });
        all.map(|number| format!("s{number}")).collect()
    }

    /// Chooses the repair order of each subscriber.
    pub(crate) fn ladders(&mut self, rng: &mut ChaCha8Rng) {
        let all = [
            RepairOrder::Read,
            RepairOrder::Nack,
            RepairOrder::ReadThenNack,
        ];
        for (config, _) in &mut self.subscribers {
            config.ladder = pick(rng, &all);
        }
    }

    /// Chooses the settings that may differ in every profile: channels, line skew, and starts.
    pub(crate) fn variety(&mut self, rng: &mut ChaCha8Rng) {
        self.channels = pick(rng, &[1, 1, 1, 2]);
        self.line_skew = pick(rng, &[us(30), us(30), us(300), ms(2)]);
        for of in 0..self.receivers {
            if rng.random_bool(0.08) {
                self.begins_at(of, rng);
            }
        }
    }

    /// Makes this subscriber join later than the others and name the sequence at which it starts.
    pub(crate) fn begins_at(&mut self, of: usize, rng: &mut ChaCha8Rng) {
        self.starts_at[of] = Some(match rng.random_range(0..6) {
            0 => StartAt::Ahead(rng.random_range(1..20)),
            1 => StartAt::EpochBefore(rng.random_range(1..100)),
            _ => StartAt::Back(rng.random_range(0..self.ring_slots * 3 / 2)),
        });
        let at = Nanos(rng.random_range(ms(5).0..self.faults_until.0));
        self.incidents.push((at, Incident::Join(of)));
    }
}

pub(crate) fn subscriber(rng: &mut ChaCha8Rng) -> (ReceiverConfig, Start) {
    let delivery = match rng.random_range(0..10) {
        0 => Delivery::Arrival,
        1 => Delivery::OrderedWithin(us(rng.random_range(500..20_000))),
        _ => Delivery::Ordered,
    };
    let config = ReceiverConfig {
        delivery,
        repair: !rng.random_bool(0.03),
        ladder: RepairOrder::ReadThenNack,
        window_slots: pick(rng, &[16, 64, 256, 1024]),
        reorder_grace_us: pick(rng, &[0, 0, 50]),
        line_skew_us: pick(rng, &[100, 500]),
        line_silence_us: 5_000,
        nack_retry_us: 50,
        nack_attempts: pick(rng, &[3, 8]),
        burst_max: pick(rng, &[10, 100, 2048]),
        replay_in_flight: pick(rng, &[8, 64, 512]),
        unrepaired_wait_us: 2_000,
        stale_us: 5_000,
        dead_us: pick(rng, &[60_000, 500_000]),
        progress_us: 10_000,
        follow_us: 1_000,
        cursor_us: 10_000,
    };
    let start = if rng.random_bool(0.4) {
        Start::Oldest
    } else {
        Start::Live
    };
    (config, start)
}

/// The first channel of every run.
pub const CHANNEL: ChannelId = CHANNELS[0];
/// All channels that a run can have, in the order in which subscribers request them.
pub const CHANNELS: [ChannelId; 2] = [ChannelId(7), ChannelId(9)];

/// Returns the channels of a run.
pub fn channels(plan: &Plan) -> impl Iterator<Item = ChannelId> + use<> {
    CHANNELS.into_iter().take(plan.channels)
}
