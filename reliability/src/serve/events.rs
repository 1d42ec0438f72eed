//! The events of the repair service for its driver, oldest first.

use std::collections::VecDeque;

use crate::control::{MirrorRefusal, Rejected};
use crate::serve::peer_id::PeerId;
use crate::types::{ChannelId, Epoch};

/// Maximum number of queued informational events.
pub(super) const NEWS_MAX: usize = 4096;

/// The purpose of a further connection of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Further {
    /// Replay of history.
    Replay,
    /// NACKs and repairs.
    Nack,
    /// READ.
    Read,
}

/// An event for the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RepairEvent {
    /// A subscriber joined these channels.
    Joined {
        /// Its connection.
        peer: PeerId,
        /// Its name.
        name: String,
        /// The channels that it joined.
        channels: Vec<ChannelId>,
    },
    /// A subscriber opened a further connection.
    FurtherJoined {
        /// Its connection.
        peer: PeerId,
        /// Its purpose.
        further: Further,
        /// The earlier connection of the same kind, which is closed in favour of this one.
        instead_of: Option<PeerId>,
    },
    /// A subscriber wants to READ. The driver binds windows of the rings of these channels to its
    /// connection and reports their location with [`RepairCore::grant`](super::RepairCore::grant).
    ReadJoined {
        /// The connection to bind them to.
        peer: PeerId,
        /// The subscriber's name.
        name: String,
        /// The subscriber's session.
        session: u64,
        /// The attempt number to name in the grants.
        attempt: u64,
        /// The channels whose rings are wanted.
        channels: Vec<ChannelId>,
    },
    /// Sealed datagrams of a channel are written to a standby from now on, or the request was refused.
    Mirroring {
        /// Its connection.
        peer: PeerId,
        /// Its name.
        name: String,
        /// The channel.
        channel: ChannelId,
        /// The reason of a refusal; `None` when mirroring starts.
        refused: Option<MirrorRefusal>,
    },
    /// A subscriber left.
    Left {
        /// Its connection.
        peer: PeerId,
        /// Its name.
        name: String,
        /// Whether it announced that it leaves.
        on_purpose: bool,
    },
    /// The driver closes this connection once its output is written, or at once where writing takes long.
    /// The core no longer knows the connection.
    Close {
        /// The connection.
        peer: PeerId,
        /// The rejection that was sent; `None` when the peer left on purpose.
        reason: Option<Rejected>,
    },
    /// A JOIN claimed an epoch higher than the publisher's: counted, no other effect.
    HigherEpochClaimed {
        /// The connection that sent the JOIN.
        peer: PeerId,
        /// The channel.
        channel: ChannelId,
        /// The claimed epoch.
        epoch: Epoch,
    },
    /// A subscriber is more than half a ring behind.
    SlowSubscriber {
        /// Its connection.
        peer: PeerId,
        /// Its name.
        name: String,
        /// The channel on which it is behind.
        channel: ChannelId,
        /// How many datagrams it is behind.
        behind: u64,
    },
}

impl RepairEvent {
    /// Returns whether the event is only informational, so that it may be dropped: nothing depends on it,
    /// not even an audit. The number of all other events is bounded for each connection.
    const fn is_news(&self) -> bool {
        matches!(
            self,
            Self::HigherEpochClaimed { .. } | Self::SlowSubscriber { .. }
        )
    }
}

/// The events that the driver has not taken yet.
#[derive(Debug, Default)]
pub(super) struct Events {
    queue: VecDeque<RepairEvent>,
    /// Number of queued events that are only informational.
    news: usize,
}

impl Events {
    /// Adds an event. Returns `false` for an informational one when too many of those wait: it is dropped.
    pub(super) fn push(&mut self, event: RepairEvent) -> bool {
        if event.is_news() {
            if self.news >= NEWS_MAX {
                return false;
            }
            self.news += 1;
        }
        self.queue.push_back(event);
        true
    }

    /// Removes and returns the oldest event.
    pub(super) fn pop(&mut self) -> Option<RepairEvent> {
        let event = self.queue.pop_front()?;
        self.news -= usize::from(event.is_news());
        Some(event)
    }
}
