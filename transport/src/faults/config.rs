//! The fault configuration and its validation.

use serde::{Deserialize, Serialize};
use thiserror::Error;
use tickcast_reliability::types::{ChannelId, Nanos, SequenceRange};

/// A fault injector. By default nothing happens.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FaultConfig {
    /// Decides everything that chance decides.
    pub seed: u64,
    /// Probability that a datagram is dropped, each for itself.
    pub drop: f64,
    /// Drops in bursts, beside those.
    pub burst: Option<Burst>,
    /// Probability that a datagram arrives twice.
    pub duplicate: f64,
    /// Lets later datagrams overtake.
    pub reorder: Option<Reorder>,
    /// Holds datagrams back.
    pub delay: Option<Delay>,
    /// Probability that bits of a datagram are flipped.
    pub corrupt: f64,
    /// Probability that a datagram is cut short.
    pub truncate: f64,
    /// The scripted faults, applied before the random ones.
    pub script: Vec<Scripted>,
}

/// Gilbert-Elliott loss: a good state that loses nothing, a bad one that loses everything.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Burst {
    /// Share of all datagrams that is lost, in the long run.
    pub loss: f64,
    /// Mean length of a burst in datagrams, at least 1.
    pub mean_len: f64,
}

/// Datagrams that step aside for later ones.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reorder {
    /// Probability that a datagram steps aside.
    pub probability: f64,
    /// How many later ones overtake it at most, at least 1; how many is even chance.
    pub depth: u32,
    /// After how long it is let go although fewer have come, in nanoseconds.
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
    /// By how much at least, in nanoseconds.
    pub min: Nanos,
    /// By how much at most, in nanoseconds; in between even chance.
    pub max: Nanos,
}

/// One thing that happens for certain. Datagrams sent again on request (RETRANSMITTED in the relay
/// byte) pass unless `retransmitted` is set, so that a gap that was scripted can be repaired.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Scripted {
    /// These sequences are dropped; heartbeats, which take none, are not.
    DropSequences {
        /// On which channel; left out: on any.
        #[serde(default)]
        channel: Option<ChannelId>,
        /// Which.
        ranges: Vec<SequenceRange>,
        /// Whether copies sent on request are dropped too.
        #[serde(default)]
        retransmitted: bool,
    },
    /// This many datagrams of any kind are dropped, from the `from`th on (the first is 0).
    DropBurst {
        /// Datagrams before it.
        from: u64,
        /// Datagrams dropped.
        count: u64,
    },
    /// The END of every session is dropped.
    DropEnd {
        /// On which channel; left out: on any.
        #[serde(default)]
        channel: Option<ChannelId>,
    },
    /// Nothing passes for a while. Time counts from the first `now` that the injector sees.
    Partition {
        /// When it begins, in nanoseconds.
        at: Nanos,
        /// How long it lasts, in nanoseconds.
        lasts: Nanos,
    },
}

/// Why a fault injector makes no sense. Whoever wrote it is at fault.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum FaultConfigError {
    /// No probability.
    #[error("{field} is {value}; it is a probability, between 0 and 1")]
    Probability {
        /// Which.
        field: &'static str,
        /// The configured value.
        value: f64,
    },
    /// Bursts that no chain of states can produce.
    #[error(
        "burst.loss {loss} with burst.mean_len {mean_len}: mean_len must be at least 1, loss below 1, and loss / (1 - loss) / mean_len at most 1; make the bursts longer or rarer"
    )]
    Burst {
        /// Share lost.
        loss: f64,
        /// Mean length.
        mean_len: f64,
    },
    /// Overtaken by none or by too many.
    #[error("reorder.depth is {depth}, it must lie between 1 and {max}")]
    Depth {
        /// The configured value.
        depth: u32,
        /// The most.
        max: u32,
    },
    /// A delay that ends before it begins.
    #[error("delay.min {min} ns is more than delay.max {max} ns")]
    Delay {
        /// Least.
        min: Nanos,
        /// Most.
        max: Nanos,
    },
    /// A range that is no range.
    #[error("script: the range from {first} to {last} is empty or begins with 0; sequences count from 1", first = range.first, last = range.last)]
    Range {
        /// The configured value.
        range: SequenceRange,
    },
}

impl FaultConfig {
    /// The most that [`Reorder::depth`] can be.
    pub const REORDER_DEPTH_MAX: u32 = 1024;

    /// Checks every number.
    ///
    /// # Errors
    /// [`FaultConfigError`] names the first that makes no sense.
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
            // A NaN is in no range.
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
