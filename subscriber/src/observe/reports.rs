//! The reports of latency to the publisher: one thread makes them, the receiving thread sends them with its
//! next message (docs/decisions/0054).

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::fence;
use std::time::{Duration, Instant};

use tickcast_reliability::control::{LATENCY_WORDS, LatencyReport};
use tickcast_reliability::types::{Counter, Nanos};

use super::Shared;
use super::latency::Recorded;

/// Interval between the reports of a channel.
pub(crate) const EVERY: Duration = Duration::from_secs(1);

/// The newest report of one channel, written by one thread and read by any.
#[derive(Debug, Default)]
struct Newest {
    /// Grows before and after each write, so it is odd during one.
    version: AtomicU64,
    words: [Counter; LATENCY_WORDS],
}

impl Newest {
    fn set(&self, report: &LatencyReport) {
        let version = self.version.load(Relaxed);
        self.version.store(version + 1, Relaxed);
        fence(Release);
        for (to, word) in self.words.iter().zip(report.to_words()) {
            to.set(word);
        }
        self.version.store(version + 2, Release);
    }

    /// Returns the report if it is newer than the version `seen`, which it becomes; `None` during a write.
    fn newer(&self, seen: &mut u64) -> Option<LatencyReport> {
        let version = self.version.load(Acquire);
        if version == *seen {
            return None;
        }
        let words = std::array::from_fn(|at| self.words[at].get());
        fence(Acquire);
        let is_whole = version.is_multiple_of(2) && version == self.version.load(Relaxed);
        if !is_whole {
            return None;
        }
        *seen = version;
        Some(LatencyReport::from_words(&words))
    }
}

/// The newest reports of all channels.
#[derive(Debug, Default)]
pub(crate) struct Reports {
    channels: Box<[Newest]>,
    /// Grows after each round of reports.
    rounds: AtomicU64,
}

impl Reports {
    /// Returns the reports of this many channels, of which there are none yet.
    pub(crate) fn of(channels: usize) -> Self {
        Self {
            channels: (0..channels).map(|_| Newest::default()).collect(),
            rounds: AtomicU64::new(0),
        }
    }
}

/// The reports that were sent already.
#[derive(Debug)]
pub(crate) struct Sent {
    reports: Arc<Reports>,
    versions: Box<[u64]>,
    rounds: u64,
}

impl Sent {
    pub(crate) fn new(reports: Arc<Reports>) -> Self {
        Self {
            versions: vec![0; reports.channels.len()].into(),
            rounds: 0,
            reports,
        }
    }

    pub(crate) const fn reports(&self) -> &Arc<Reports> {
        &self.reports
    }

    /// Passes on each report that was not sent yet, with the index of its channel.
    #[inline]
    pub(crate) fn each_new(&mut self, mut send: impl FnMut(usize, LatencyReport)) {
        let rounds = self.reports.rounds.load(Acquire);
        if rounds == self.rounds {
            return;
        }
        self.rounds = rounds;
        let channels = self.reports.channels.iter().zip(&mut self.versions);
        for (index, (newest, seen)) in channels.enumerate() {
            if let Some(report) = newest.newer(seen) {
                send(index, report);
            }
        }
    }
}

/// Makes the reports of all channels, each from the samples since the last one.
#[derive(Debug)]
pub(crate) struct Reporter {
    shared: Arc<Shared>,
    before: Vec<Recorded>,
    at: Instant,
}

impl Reporter {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self {
            before: shared
                .channels
                .iter()
                .map(|_| Recorded::default())
                .collect(),
            shared,
            at: Instant::now(),
        }
    }

    /// Makes the next report of every channel.
    pub(crate) fn report(&mut self) {
        let elapsed = std::mem::replace(&mut self.at, Instant::now()).elapsed();
        let offset = self.shared.clock.offset();
        let channels = self.shared.channels.iter().zip(&mut self.before);
        for ((channel, before), newest) in channels.zip(&self.shared.reports.channels) {
            let Some(recorder) = &channel.latency else {
                continue;
            };
            newest.set(&LatencyReport {
                interval: Nanos(u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX)),
                clock_limit: offset.map(|offset| Nanos(offset.limit_ns())),
                stages: recorder.since(before),
            });
        }
        self.shared.reports.rounds.fetch_add(1, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_newest_report_is_sent_and_only_once() {
        let reports = Arc::new(Reports::of(2));
        let mut sent = Sent::new(Arc::clone(&reports));
        let mut new = || {
            let mut all = Vec::new();
            sent.each_new(|index, report| all.push((index, report.interval.0)));
            all
        };
        let make = |index: usize, interval| {
            reports.channels[index].set(&LatencyReport {
                interval: Nanos(interval),
                ..LatencyReport::default()
            });
            reports.rounds.fetch_add(1, Release);
        };
        assert!(new().is_empty());
        make(1, 7);
        make(1, 8);
        assert_eq!(new(), [(1, 8)]);
        assert!(new().is_empty(), "it was sent");
        make(0, 9);
        make(1, 10);
        assert_eq!(new(), [(0, 9), (1, 10)]);
    }

    #[test]
    fn half_written_report_is_not_sent() {
        let newest = Newest::default();
        newest.set(&LatencyReport::default());
        newest.version.store(3, Relaxed);
        let mut seen = 0;
        assert_eq!((newest.newer(&mut seen), seen), (None, 0));
        newest.version.store(4, Relaxed);
        assert!(newest.newer(&mut seen).is_some());
        assert_eq!(seen, 4);
    }
}
