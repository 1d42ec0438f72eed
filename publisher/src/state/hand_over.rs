//! What a standby and its publisher say to each other in a hand-over (`POST /hand-over`).

use serde::{Deserialize, Serialize};
use tickcast_reliability::types::{ChannelId, Epoch, RecordNumber, Sequence};

/// Where a channel stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishPosition {
    /// Which.
    pub channel: ChannelId,
    /// The last sequence sealed; of a mirror, the last one that is there without a hole.
    pub last: Sequence,
    /// Number of the record after it.
    pub next_record: RecordNumber,
}

/// What a standby asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Request {
    /// Its name, under which it has joined as well.
    pub(crate) standby: String,
    /// The epoch that it mirrors.
    pub(crate) epoch: Epoch,
    /// How far.
    #[serde(default)]
    pub(crate) mirrored: Vec<PublishPosition>,
    /// The higher epoch that it has opened already, by force: there is nothing to wait for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) superseded_by: Option<Epoch>,
}

/// What it is answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub(crate) enum Answer {
    /// Nothing is sealed just now; where each channel stands, once that is final.
    Resting {
        /// Empty before it is.
        channels: Vec<PublishPosition>,
    },
    /// The publisher ends, without END.
    Ends {
        /// Where it ended.
        channels: Vec<PublishPosition>,
    },
    /// It goes on.
    Refused {
        /// Why, and what to do.
        why: String,
    },
}
