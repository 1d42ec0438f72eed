//! The latency that a subscriber reports of itself.

use serde::Serialize;
use tickcast_reliability::control::LatencyReport;
use tickcast_reliability::types::Nanos;
use tickcast_subscriber::Stage;

/// Reports that come sooner after the last one are refused. Subscribers send one a second.
const EVERY_MIN: Nanos = Nanos::from_ms(500);

/// The latency of a subscriber on one channel in its last interval, as it reports itself.
///
/// ```
/// # fn f(status: &tickcast_publisher::SubscriberStatus) {
/// for stage in status.latency.iter().flat_map(|it| &it.stages) {
///     println!("{} {}: {} ns", status.name, stage.stage, stage.p99_ns);
/// }
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct SubscriberLatency {
    /// Length of the interval, in nanoseconds.
    pub interval_ns: u64,
    /// Nanoseconds by which the subscriber's clock may differ from this host's; `None` when unknown.
    pub clock_limit_ns: Option<u64>,
    /// The stages with samples.
    pub stages: Vec<StageStatus>,
    /// When the report came.
    #[serde(skip)]
    taken_at: Nanos,
}

/// One stage of a subscriber's latency.
///
/// ```
/// # fn f(stage: &tickcast_publisher::StageStatus) {
/// let mark = if stage.supported { "" } else { " ?" };
/// println!("{}: p50 {} ns{mark}", stage.stage, stage.p50_ns);
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct StageStatus {
    /// Name of the stage, as in interval logs.
    pub stage: &'static str,
    /// Number of samples.
    pub samples: u64,
    /// Nanoseconds that half of the samples do not exceed.
    pub p50_ns: u64,
    /// Nanoseconds that 99 percent of the samples do not exceed.
    pub p99_ns: u64,
    /// Nanoseconds that 99.9 percent of the samples do not exceed.
    pub p999_ns: u64,
    /// The longest sample, in nanoseconds.
    pub max_ns: u64,
    /// Whether the clocks support all these numbers: none lies below the possible difference of the clocks
    /// that the stage compares.
    pub supported: bool,
}

impl SubscriberLatency {
    /// Returns the latency of a report that came now.
    pub(crate) fn new(now: Nanos, report: &LatencyReport) -> Self {
        let of = |(stage, of): (Stage, &tickcast_reliability::control::StageLatency)| StageStatus {
            stage: stage.name(),
            samples: of.samples,
            p50_ns: of.p50.0,
            p99_ns: of.p99.0,
            p999_ns: of.p999.0,
            max_ns: of.max.0,
            supported: !stage.compares_clocks()
                || report.clock_limit.is_some_and(|limit| of.p50 >= limit),
        };
        let stages = Stage::ALL.into_iter().zip(&report.stages);
        let with_samples = stages.filter(|(_, of)| of.samples > 0);
        Self {
            interval_ns: report.interval.0,
            clock_limit_ns: report.clock_limit.map(|limit| limit.0),
            stages: with_samples.map(of).collect(),
            taken_at: now,
        }
    }

    /// Returns whether another report may come now.
    pub(crate) fn is_over(&self, now: Nanos) -> bool {
        now.since(self.taken_at) >= EVERY_MIN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latency_below_the_difference_of_clocks_is_unsupported() {
        let mut report = LatencyReport::default();
        for stage in &mut report.stages[..3] {
            (stage.samples, stage.p50, stage.p99) = (7, Nanos(900), Nanos(5_000));
            (stage.p999, stage.max) = (Nanos(5_001), Nanos(5_002));
        }
        for (limit, supported) in [
            (None, false),
            (Some(901), false),
            (Some(900), true),
            (Some(0), true),
        ] {
            report.clock_limit = limit.map(Nanos);
            let latency = SubscriberLatency::new(Nanos(1), &report);
            let seen: Vec<_> = (latency.stages.iter())
                .map(|it| (it.stage, it.supported))
                .collect();
            let expected = [
                ("event_to_received", true),
                ("received_to_sealed", true),
                ("sealed_to_delivered", supported),
            ];
            assert_eq!(seen, expected, "{limit:?}");
            let stage = &latency.stages[2];
            assert_eq!((stage.samples, stage.p50_ns, stage.p99_ns), (7, 900, 5_000));
            assert_eq!((stage.p999_ns, stage.max_ns), (5_001, 5_002));
        }
    }
}
