//! The messages of a standby and its publisher in a hand-over (`POST /hand-over`), and before it
//! (`POST /check`).

use std::fmt;

use serde::{Deserialize, Serialize};
use tickcast_reliability::types::{ChannelId, Epoch, RecordNumber, Sequence};

/// The position of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishPosition {
    /// Number of the channel.
    pub channel: ChannelId,
    /// The last sequence sealed; of a mirror, the last one without a gap before it.
    pub last: Sequence,
    /// Number of the record after it.
    pub next_record: RecordNumber,
}

/// Number of a subscriber's session. The publisher gives it to that subscriber alone.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct SessionNumber(pub(crate) u64);

impl fmt::Debug for SessionNumber {
    /// Hides the number.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionNumber")
    }
}

/// The request of a standby.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Request {
    /// Name of the standby, also used for its JOIN.
    pub(crate) standby: String,
    /// Session of its repair connection, over which it mirrors; `None` once it has stopped mirroring.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) session: Option<SessionNumber>,
    /// The epoch that it mirrors.
    pub(crate) epoch: Epoch,
    /// Mirrored position of each channel.
    #[serde(default)]
    pub(crate) mirrored: Vec<PublishPosition>,
    /// The higher epoch that it has opened already, by force: there is nothing to wait for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) superseded_by: Option<Epoch>,
}

/// The publisher's answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub(crate) enum Answer {
    /// Sealing rests; the positions follow once final.
    Resting {
        /// Positions of the channels; empty before they are final.
        channels: Vec<PublishPosition>,
    },
    /// The publisher ends, without END.
    Ends {
        /// Final positions.
        channels: Vec<PublishPosition>,
    },
    /// The publisher continues.
    Refused {
        /// Reason and remedy.
        why: String,
    },
}

/// The question of a standby whether its request would be heard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Check {
    /// Name of the standby.
    pub(crate) standby: String,
}

/// The answer to a [`Check`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub(crate) enum Checked {
    /// The request would be heard.
    Accepted,
    /// It would be refused.
    Refused {
        /// Reason and remedy.
        why: String,
    },
}

/// Returns the reason against a standby of this name.
pub(crate) fn not_allowed(name: &str) -> String {
    format!("this publisher does not hand over to {name:?}; add the name to hand_over_to")
}
