//! Loss events: the application is informed of every sequence that will never be delivered.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::types::SequenceRange;

/// Why sequences will never be delivered (docs/PROTOCOL.md §8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LossCause {
    /// The publisher's ring no longer holds the sequences.
    Window,
    /// The delivery deadline passed (`ordered within`).
    Deadline,
    /// The gap was over the burst limit, and catching up was disabled or impossible.
    Burst,
    /// Their epoch is over.
    Epoch,
    /// The publisher permanently refused the repair for another reason.
    Refused,
    /// The publisher is dead, and its repair path with it.
    PublisherDead,
    /// Two publishers sent different content with these sequences.
    Fenced,
    /// Repair is disabled in this subscriber.
    RepairOff,
    /// The application left before the sequences arrived.
    Left,
    /// The CRC matches but the records are unreadable: no wire version has such content.
    Unreadable,
}

impl LossCause {
    /// Every cause, for tables and metrics.
    pub const ALL: [Self; 10] = [
        Self::Window,
        Self::Deadline,
        Self::Burst,
        Self::Epoch,
        Self::Refused,
        Self::PublisherDead,
        Self::Fenced,
        Self::RepairOff,
        Self::Left,
        Self::Unreadable,
    ];
}

impl fmt::Display for LossCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Window => "window",
            Self::Deadline => "deadline",
            Self::Burst => "burst",
            Self::Epoch => "epoch",
            Self::Refused => "refused",
            Self::PublisherDead => "publisher dead",
            Self::Fenced => "fenced",
            Self::RepairOff => "repair off",
            Self::Left => "left",
            Self::Unreadable => "unreadable",
        })
    }
}

/// A run of sequences that will never be delivered, with the exact number of records where known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loss {
    /// The lost datagrams. A `last` of `u64::MAX` means: to the end of that epoch, wherever it is.
    pub sequences: SequenceRange,
    /// Number of lost records; `None` when unknown (the tail of an epoch whose publisher died).
    pub records: Option<u64>,
    /// The cause of the loss.
    pub cause: LossCause,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sequences {} lost ({}), ", self.sequences, self.cause)?;
        match self.records {
            Some(records) => write!(f, "{records} records"),
            None => f.write_str("number of records unknown"),
        }
    }
}
