//! What the application is told when something is lost for good: silence is never an answer.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::types::SequenceRange;

/// Why sequences will never be delivered (docs/PROTOCOL.md §8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LossCause {
    /// The publisher's ring no longer holds them.
    Window,
    /// The delivery deadline passed (`ordered within`).
    Deadline,
    /// The gap was over the burst limit and catching up was not wanted or not possible.
    Burst,
    /// Their epoch is over.
    Epoch,
    /// The publisher refused them for another reason, to the end.
    Refused,
    /// The publisher is gone, and its repair path with it.
    PublisherDead,
    /// Two publishers sent different content under these numbers.
    Fenced,
    /// Repair is switched off in this subscriber.
    RepairOff,
    /// The application left before they came.
    Left,
    /// Its CRC fits but its records can't be read: the publisher sent what no version carries.
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

/// A run of sequences that will never be delivered, exact to the record where anybody knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loss {
    /// The datagrams lost. A `last` of `u64::MAX` says: to the end of that epoch, wherever it was.
    pub sequences: SequenceRange,
    /// The records they carried; `None` when nobody knows (the tail of an epoch that died).
    pub records: Option<u64>,
    /// Why.
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
