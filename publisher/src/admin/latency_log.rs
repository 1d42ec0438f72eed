//! The latency log: an interval log of the stages up to the sealed datagram. Its thread follows the rings
//! as a reader of the same host does, so the threads that publish do nothing for it. `/status` has its counts
//! by powers of two, a second old at most.

use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use tickcast_hlog::{IntervalLog, Series};
use tickcast_reliability::record::words_as_bytes;
use tickcast_reliability::ring::CopyError;
use tickcast_reliability::types::Sequence;
use tickcast_reliability::wire::{Datagram, Kind};
use tickcast_subscriber::internal::SealedLatency;

use crate::config::Config;
use crate::error::PublisherError;
use crate::state::thread::{Thread, now, spawn};
use crate::state::{ChannelShared, Shared};

/// The longest pause between two looks at the rings.
const PAUSE_MAX: Duration = Duration::from_millis(50);
/// The shortest pause.
const PAUSE_MIN: Duration = Duration::from_millis(1);
/// Interval at which `/status` gets the counts.
const SHOWN_EVERY: Duration = Duration::from_secs(1);
/// Looks at a ring in the time that it holds at its peak rate.
const LOOKS_A_RING: u64 = 4;

/// Starts the thread that keeps the latency log, if the config has one, from the next sealed datagram on. A
/// log that can't be opened is logged as an error and counted, and the publisher continues without it.
///
/// # Errors
/// Returns [`PublisherError::System`] if the thread can't be started.
pub(crate) fn start(
    config: &Config,
    shared: &Arc<Shared>,
) -> Result<Option<Thread<()>>, PublisherError> {
    let Some(setting) = &config.latency_log else {
        return Ok(None);
    };
    let log = match IntervalLog::open(&setting.path, &config.name, now().utc) {
        Ok(log) => log,
        Err(error) => {
            tracing::error!("latency_log: {error}; the publisher continues without it");
            shared.latency_log.latency_log_failures.add(1);
            return Ok(None);
        }
    };
    let keeper = LatencyKeeper {
        log,
        channels: shared.channels.iter().map(Follower::new).collect(),
        shared: shared.clone(),
    };
    let (interval, pause) = (setting.interval(), pause_of(config));
    spawn("latency", None, move || {
        keeper.run(interval, pause);
        Ok(())
    })
    .map(Some)
}

/// Returns the pause in which no ring is overwritten at its peak rate.
fn pause_of(config: &Config) -> Duration {
    let shortest = config.channels.iter().map(|channel| {
        let ring_us = channel.slots.saturating_mul(1_000_000) / channel.peak_datagrams_per_s.max(1);
        Duration::from_micros(ring_us / LOOKS_A_RING)
    });
    shortest.fold(PAUSE_MAX, Duration::min).max(PAUSE_MIN)
}

/// Keeps the log of all channels.
struct LatencyKeeper {
    log: IntervalLog,
    channels: Vec<Follower>,
    shared: Arc<Shared>,
}

impl LatencyKeeper {
    fn run(mut self, interval: Duration, pause: Duration) {
        let mut next = Instant::now() + interval;
        let mut shown = Instant::now();
        loop {
            // Read first: nothing is sealed after a shut-down.
            let is_over = self.shared.is_shutting_down();
            for channel in &mut self.channels {
                channel.follow(&self.shared);
            }
            let time = Instant::now();
            if is_over || time >= next {
                self.write();
                next = (next + interval).max(time);
            }
            if is_over || time >= shown {
                self.channels.iter().for_each(Follower::show);
                shown = time + SHOWN_EVERY;
            }
            if is_over {
                return;
            }
            sleep(
                pause
                    .min(next.saturating_duration_since(time))
                    .max(PAUSE_MIN),
            );
        }
    }

    fn write(&mut self) {
        let all = self.channels.iter().flat_map(Follower::series).collect();
        let failures = &self.shared.latency_log.latency_log_failures;
        self.log.write(now().utc, all, failures);
    }
}

/// Follows the ring of one channel.
struct Follower {
    channel: Arc<ChannelShared>,
    /// The next sequence to record.
    next: Sequence,
    latency: SealedLatency,
    buffer: Vec<u64>,
}

impl Follower {
    fn new(channel: &Arc<ChannelShared>) -> Self {
        let slot_words = channel.ring.geometry().slot_len() / size_of::<u64>();
        Self {
            next: channel.ring.sealed().next(),
            latency: SealedLatency::default(),
            buffer: vec![0; slot_words],
            channel: channel.clone(),
        }
    }

    /// Records the datagrams sealed so far.
    fn follow(&mut self, shared: &Shared) {
        let skipped = &shared.latency_log.latency_log_skipped;
        let ring = &self.channel.ring;
        let sealed = ring.sealed();
        while self.next <= sealed {
            match ring.copy(self.next, &mut self.buffer) {
                Ok(len) => record(&self.latency, &words_as_bytes(&self.buffer)[..len]),
                Err(CopyError::Lapped { .. }) => {
                    let oldest = ring.floor().max(self.next.next());
                    skipped.add(oldest.since(self.next));
                    self.next = oldest;
                    continue;
                }
                Err(_) => skipped.add(1),
            }
            self.next = self.next.next();
        }
    }

    fn series(&self) -> Vec<Series> {
        self.latency.series(&self.channel.plan.name)
    }

    /// Lets `/status` show the counts so far.
    fn show(&self) {
        let series = self.series();
        let samples = series.iter().filter(|it| !it.total.is_empty());
        let counts = samples.map(|it| {
            let stage = it.tag.rsplit('/').next().unwrap_or_default();
            (stage.to_owned(), by_powers_of_two(it))
        });
        self.channel.set_latency(counts.collect());
    }
}

/// Returns the samples by the power of two above them.
fn by_powers_of_two(series: &Series) -> Vec<u64> {
    let mut counts = Vec::new();
    for step in series.total.iter_recorded() {
        let power = (u64::BITS - step.value_iterated_to().leading_zeros()) as usize;
        counts.resize(counts.len().max(power + 1), 0);
        counts[power] += step.count_at_value();
    }
    counts
}

/// Records the records of a datagram; events have none.
fn record(latency: &SealedLatency, bytes: &[u8]) {
    let Ok(datagram) = Datagram::parse(bytes) else {
        return;
    };
    if datagram.header().kind != Kind::Data {
        return;
    }
    if let Ok(records) = datagram.records() {
        latency.record(datagram.header(), records);
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::sync::atomic::AtomicBool;

    use serde_json::json;
    use tickcast_reliability::record::{RecordBatch, TradeMsg};
    use tickcast_reliability::types::SourcePosition;

    use super::*;
    use crate::api::trade;
    use crate::config::LatencyLogConfig;
    use crate::ingest::queue::SourceItem;
    use crate::plan::Plan;
    use crate::publish::PublishStage;
    use crate::run::Opened;

    fn config() -> Config {
        let probe = UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = probe.local_addr().unwrap().port();
        let config = json!({
            "name": "logged", "control": "127.0.0.1:0", "inputs": [],
            "channels": [{
                "id": 1, "name": "all", "slots": 1024,
                "fan_out": [{ "transport": "udp", "lines": [{ "group": format!("239.255.90.5:{port}") }] }],
            }],
        });
        Config::parse(&config.to_string()).unwrap()
    }

    /// Publishes datagrams of one record, whose stages take 100 and 50 ns.
    fn publish(to: &mut PublishStage, datagrams: u64) {
        for n in 0..datagrams {
            let now = now();
            let mut record: TradeMsg = trade(1, 1, 1);
            record.ts_recv = now.utc.0 - 50;
            record.hd.ts_event = now.utc.0 - 150;
            let mut message = RecordBatch::default();
            message.put(&record);
            let item = SourceItem::Message(SourcePosition::new(0, n + 1), (&message).into());
            to.take(0, &item, now);
            to.flush(now);
            to.drive(now).unwrap();
        }
    }

    #[test]
    fn lapped_follower_counts_the_overwritten_and_continues() {
        let plan = Plan::for_handlers(config()).unwrap();
        let opened = Opened::open(plan, Arc::new(AtomicBool::new(false))).unwrap();
        let shared = opened.shared().clone();
        let (mut to, _service) = opened.inline().unwrap();
        let mut follower = Follower::new(&shared.channels[0]);
        let skipped = || shared.latency_log.latency_log_skipped.get();
        let mut follow = |to: &mut PublishStage, datagrams| {
            publish(to, datagrams);
            follower.follow(&shared);
            let series = follower.series();
            let stages: Vec<_> = series.iter().filter(|it| !it.total.is_empty()).collect();
            let [event, received] = &stages[..] else {
                panic!("{series:?}");
            };
            assert_eq!(event.tag, "all/event_to_received");
            assert_eq!(received.tag, "all/received_to_sealed");
            assert_eq!((event.total.min(), event.total.max()), (100, 100));
            assert_eq!((received.total.min(), received.total.max()), (50, 50));
            assert_eq!(event.total.len(), received.total.len());
            follower.show();
            let shown = shared.channels[0].latency().unwrap();
            for (stage, power) in [("event_to_received", 7), ("received_to_sealed", 6)] {
                let mut expected = vec![0; power];
                expected.push(event.total.len());
                assert_eq!(shown[stage], expected, "below 2^{power} ns");
            }
            event.total.len()
        };
        assert_eq!((follow(&mut to, 10), skipped()), (10, 0));
        let samples = follow(&mut to, 3_000);
        assert!((1..=1_024).contains(&(samples - 10)), "{samples}");
        assert_eq!(
            samples + skipped(),
            3_010,
            "each datagram is recorded or counted"
        );
        assert_eq!(follow(&mut to, 1), samples + 1);
    }

    #[test]
    fn log_that_cannot_be_opened_is_counted_and_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("full.hlog");
        std::os::unix::fs::symlink("/dev/full", &path).unwrap();
        let mut config = config();
        config.latency_log = Some(LatencyLogConfig {
            path,
            interval_ms: 100,
        });
        let plan = Plan::for_handlers(config.clone()).unwrap();
        let opened = Opened::open(plan, Arc::new(AtomicBool::new(false))).unwrap();
        let shared = opened.shared();
        assert!(start(&config, shared).unwrap().is_none());
        assert_eq!(shared.latency_log.latency_log_failures.get(), 1);
    }

    #[test]
    fn shortest_ring_sets_the_pause_of_the_followers() {
        let mut config = config();
        let mut pause = |slots, peak| {
            config.channels[0].slots = slots;
            config.channels[0].peak_datagrams_per_s = peak;
            pause_of(&config)
        };
        assert_eq!(pause(1024, 51_200), Duration::from_millis(5));
        assert_eq!(pause(65_536, 50_000), PAUSE_MAX);
        assert_eq!(pause(1024, u64::MAX), PAUSE_MIN);
        assert_eq!(pause(1024, 0), PAUSE_MAX);
    }
}
