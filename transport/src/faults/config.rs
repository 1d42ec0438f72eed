//! The fault configuration and its validation.

use serde::{Deserialize, Serialize};
use thiserror::Error;
use tickcast_reliability::types::{ChannelId, Nanos, SequenceRange};

/// Configuration of a fault injector. The default injects nothing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FaultConfig {
    /// Seed of all random decisions.
    pub seed: u64,
    /// Probability that a datagram is dropped, independently of others.
    pub drop: f64,
    /// Drops in bursts, in addition to independent drops.
    pub burst: Option<Burst>,
    /// Probability that a datagram arrives twice.
    pub duplicate: f64,
    /// Lets later datagrams overtake.
    pub reorder: Option<Reorder>,
    /// Delays datagrams.
    pub delay: Option<Delay>,
    /// Probability that bits of a datagram are flipped.
    pub corrupt: f64,
    /// Probability that a datagram is truncated.
    pub truncate: f64,
    /// The scripted faults, applied before the random ones.
    pub script: Vec<Scripted>,
}

/// Gilbert-Elliott loss: the good state loses nothing, the bad state loses everything.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Burst {
    /// Long-run share of datagrams lost.
    pub loss: f64,
    /// Mean length of a burst in datagrams, at least 1.
    pub mean_len: f64,
}

/// Reordering: some datagrams wait for later ones.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reorder {
    /// Probability that a datagram waits.
    pub probability: f64,
    /// Largest number of later datagrams that overtake it, at least 1. The number is uniformly distributed.
    pub depth: u32,
    /// Time after which it is released although fewer have overtaken it, in nanoseconds.
    #[serde(default = "reorder_hold_default")]
    pub hold: Nanos,
}

const fn reorder_hold_default() -> Nanos {
    Nanos::from_ms(1)
}

/// Datagrams that arrive late.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Delay {
    /// Probability that a datagram is late.
    pub probability: f64,
    /// Shortest delay, in nanoseconds.
    pub min: Nanos,
    /// Longest delay, in nanoseconds. The delay is uniformly distributed.
    pub max: Nanos,
}

/// A scripted fault. Repairs (RETRANSMITTED in the relay byte) pass unless `retransmitted` is set, so that
/// a scripted gap can be repaired.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Scripted {
    /// Drops these sequences. Heartbeats have no sequence and pass.
    DropSequences {
        /// The channel. Without it, any channel.
        #[serde(default)]
        channel: Option<ChannelId>,
        /// The sequences.
        ranges: Vec<SequenceRange>,
        /// Whether repairs are dropped too.
        #[serde(default)]
        retransmitted: bool,
    },
    /// Drops this many datagrams of any kind, from the `from`th on (the first is 0).
    DropBurst {
        /// Number of datagrams before the burst.
        from: u64,
        /// Number of datagrams dropped.
        count: u64,
    },
    /// Drops the END of every session.
    DropEnd {
        /// The channel. Without it, any channel.
        #[serde(default)]
        channel: Option<ChannelId>,
    },
    /// Drops everything for a while. Time counts from the first `now` that the injector sees.
    Partition {
        /// Start, in nanoseconds.
        at: Nanos,
        /// Duration, in nanoseconds.
        lasts: Nanos,
    },
}

/// Reason that a fault configuration is invalid. Its author is at fault.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum FaultConfigError {
    /// The value is not a probability.
    #[error("{field} is {value}; it is a probability, between 0 and 1")]
    Probability {
        /// Name of the field.
        field: &'static str,
        /// The configured value.
        value: f64,
    },
    /// No chain of states can produce these bursts.
    #[error(
        "burst.loss {loss} with burst.mean_len {mean_len}: mean_len must be at least 1, loss below 1, and loss / (1 - loss) / mean_len at most 1; make the bursts longer or rarer"
    )]
    Burst {
        /// The configured share of lost datagrams.
        loss: f64,
        /// The configured mean length.
        mean_len: f64,
    },
    /// The reordering depth is 0 or too large.
    #[error("reorder.depth is {depth}, it must lie between 1 and {max}")]
    Depth {
        /// The configured value.
        depth: u32,
        /// The largest valid depth.
        max: u32,
    },
    /// The shortest delay exceeds the longest.
    #[error("delay.min {min} ns is more than delay.max {max} ns")]
    Delay {
        /// The configured shortest delay.
        min: Nanos,
        /// The configured longest delay.
        max: Nanos,
    },
    /// The range is empty or reversed.
    #[error("script: the range from {first} to {last} is empty or begins with 0; sequences count from 1", first = range.first, last = range.last)]
    Range {
        /// The configured value.
        range: SequenceRange,
    },
}

impl FaultConfig {
    /// The largest valid [`Reorder::depth`].
    pub const REORDER_DEPTH_MAX: u32 = 1024;

    /// Checks every value.
    ///
    /// # Errors
    /// [`FaultConfigError`] names the first invalid value.
    pub fn check(&self) -> Result<(), FaultConfigError> {
        let probabilities = [
            ("drop", self.drop),
            ("duplicate", self.duplicate),
            ("corrupt", self.corrupt),
            ("truncate", self.truncate),
            ("burst.loss", self.burst.map_or(0.0, |b| b.loss)),
            (
                "reorder.probability",
                self.reorder.map_or(0.0, |r| r.probability),
            ),
            (
                "delay.probability",
                self.delay.map_or(0.0, |d| d.probability),
            ),
        ];
        for (field, value) in probabilities {
            // A NaN is in no range, so it is refused.
            if !(0.0..=1.0).contains(&value) {
                return Err(FaultConfigError::Probability { field, value });
            }
        }
        if let Some(Burst { loss, mean_len }) = self.burst {
            let possible = mean_len >= 1.0
                && mean_len.is_finite()
                && loss < 1.0
                && loss / (1.0 - loss) <= mean_len;
            if !possible {
                return Err(FaultConfigError::Burst { loss, mean_len });
            }
        }
        if let Some(Reorder { depth, .. }) = self.reorder
            && !(1..=Self::REORDER_DEPTH_MAX).contains(&depth)
        {
            let max = Self::REORDER_DEPTH_MAX;
            return Err(FaultConfigError::Depth { depth, max });
        }
        if let Some(Delay { min, max, .. }) = self.delay
            && min > max
        {
            return Err(FaultConfigError::Delay { min, max });
        }
        for scripted in &self.script {
            if let Scripted::DropSequences { ranges, .. } = scripted
                && let Some(range) = ranges.iter().find(|r| r.first.0 == 0 || r.first > r.last)
            {
                return Err(FaultConfigError::Range { range: *range });
            }
        }
        Ok(())
    }
}
