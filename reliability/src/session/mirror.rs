//! A standby in the core: a subscriber that keeps a channel's records in a ring
//! (docs/PROTOCOL.md §5.7).

use super::SubscriberCore;
use crate::receive::Mirror;
use crate::types::ChannelId;

impl SubscriberCore {
    /// Returns the mirror of a channel; `None` without one, or after the channel's ring changed its shape.
    #[must_use]
    pub fn mirror(&self, channel: ChannelId) -> Option<&Mirror> {
        self.receiver(channel)?.mirror()
    }

    /// Takes the mirror of a channel out, to promote it.
    pub fn take_mirror(&mut self, channel: ChannelId) -> Option<Mirror> {
        self.receiver_mut(channel)?.set_mirror(None)
    }
}
