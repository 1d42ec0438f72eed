//! LATENCY: the latency of a subscriber's last interval (docs/PROTOCOL.md §6.10).

use super::{ChannelId, ControlError, Fields, LATENCY, begin, end};
use crate::types::Nanos;

/// Number of stages in a LATENCY.
pub const LATENCY_STAGES: usize = 5;
/// Words of its body.
pub const LATENCY_WORDS: usize = 2 + 5 * LATENCY_STAGES;
/// Longest latency that a stage can have: one hour.
const LATENCY_MAX: Nanos = Nanos::from_secs(3_600);
/// Clock limit of a subscriber that knows no limit.
const UNKNOWN: u64 = u64::MAX;

/// The samples of one stage in an interval, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageLatency {
    /// Number of samples. Without any, the other numbers are 0.
    pub samples: u64,
    /// Half of the samples are at most this long.
    pub p50: Nanos,
    /// 99 percent of the samples are at most this long.
    pub p99: Nanos,
    /// 99.9 percent of the samples are at most this long.
    pub p999: Nanos,
    /// The longest sample.
    pub max: Nanos,
}

impl StageLatency {
    /// Returns whether samples can give these numbers.
    fn is_possible(&self) -> bool {
        let ascending = [self.p50, self.p99, self.p999, self.max, LATENCY_MAX];
        ascending.is_sorted() && (self.samples > 0 || self.max == Nanos::ZERO)
    }
}

/// LATENCY: a subscriber's latency on one channel since its last report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LatencyReport {
    /// Length of the interval.
    pub interval: Nanos,
    /// The publisher's clock and the subscriber's differ by at most this; `None` when unknown.
    pub clock_limit: Option<Nanos>,
    /// The stages: event to received, received to sealed, sealed to delivered, repair, replayed.
    pub stages: [StageLatency; LATENCY_STAGES],
}

impl LatencyReport {
    /// Returns whether a subscriber can have measured this. A hostile one may still lie.
    #[must_use]
    pub fn is_possible(&self) -> bool {
        self.stages.iter().all(StageLatency::is_possible)
    }

    /// Returns the words of the body.
    #[must_use]
    pub fn to_words(&self) -> [u64; LATENCY_WORDS] {
        let mut words = [0; LATENCY_WORDS];
        words[0] = self.interval.0;
        words[1] = self.clock_limit.map_or(UNKNOWN, |limit| limit.0);
        let (of_stages, _) = words[2..].as_chunks_mut::<5>();
        for (words, stage) in of_stages.iter_mut().zip(&self.stages) {
            let spans = [stage.p50.0, stage.p99.0, stage.p999.0, stage.max.0];
            words[0] = stage.samples;
            words[1..].copy_from_slice(&spans);
        }
        words
    }

    /// Returns the report with this body.
    #[must_use]
    pub fn from_words(words: &[u64; LATENCY_WORDS]) -> Self {
        let (of_stages, _) = words[2..].as_chunks::<5>();
        let mut stages = [StageLatency::default(); LATENCY_STAGES];
        for (stage, [samples, p50, p99, p999, max]) in stages.iter_mut().zip(of_stages) {
            *stage = StageLatency {
                samples: *samples,
                p50: Nanos(*p50),
                p99: Nanos(*p99),
                p999: Nanos(*p999),
                max: Nanos(*max),
            };
        }
        Self {
            interval: Nanos(words[0]),
            clock_limit: (words[1] != UNKNOWN).then_some(Nanos(words[1])),
            stages,
        }
    }

    /// Appends the report as a frame to `out`, without a [`Message`](super::Message).
    pub fn write_frame(&self, channel: ChannelId, out: &mut Vec<u8>) {
        let start = out.len();
        begin(LATENCY, channel, out);
        self.write(out);
        end(start, out);
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.extend(self.to_words().iter().flat_map(|word| word.to_le_bytes()));
    }

    pub(super) fn read(body: &[u8]) -> Result<Self, ControlError> {
        let mut fields = Fields::new("LATENCY", body, LATENCY_WORDS * 8)?;
        Ok(Self::from_words(&std::array::from_fn(|_| fields.u64())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stage(samples: u64, spans: [u64; 4]) -> StageLatency {
        let [p50, p99, p999, max] = spans.map(Nanos);
        StageLatency {
            samples,
            p50,
            p99,
            p999,
            max,
        }
    }

    #[test]
    fn report_is_possible_only_with_ascending_percentiles() {
        let hour = LATENCY_MAX.0;
        for (samples, spans, is_possible) in [
            (0, [0; 4], true),
            (1, [0; 4], true),
            (u64::MAX, [1, 2, 3, hour], true),
            (7, [4; 4], true),
            (0, [0, 0, 0, 1], false),
            (0, [1; 4], false),
            (9, [2, 1, 3, 4], false),
            (9, [1, 3, 2, 4], false),
            (9, [1, 2, 4, 3], false),
            (9, [1, 2, 3, hour + 1], false),
            (9, [u64::MAX; 4], false),
        ] {
            for at in 0..LATENCY_STAGES {
                let mut report = LatencyReport::default();
                report.stages[at] = stage(samples, spans);
                assert_eq!(report.is_possible(), is_possible, "{samples} {spans:?}");
            }
        }
    }

    #[test]
    fn report_has_a_place_for_each_of_its_words() {
        let words: [u64; LATENCY_WORDS] = std::array::from_fn(|at| at as u64 + 1);
        let report = LatencyReport::from_words(&words);
        assert_eq!(report.to_words(), words);
        assert_eq!(
            (report.interval, report.clock_limit),
            (Nanos(1), Some(Nanos(2)))
        );
        assert_eq!(report.stages[2], stage(13, [14, 15, 16, 17]));
        let unknown = LatencyReport::default();
        assert_eq!(unknown.to_words()[1], u64::MAX);
        assert_eq!(LatencyReport::from_words(&unknown.to_words()), unknown);
    }
}
