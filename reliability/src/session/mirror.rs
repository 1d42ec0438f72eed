//! A standby as the core sees it: a subscriber that keeps what it is given in a ring
//! (docs/PROTOCOL.md §5.7).

use super::SubscriberCore;
use crate::receive::Mirror;
use crate::types::ChannelId;

impl SubscriberCore {
    /// Lets a mirror take all that is delivered of a channel from now on. To be called when
    /// [`super::Action::Listen`] offers a ring that the mirror there is does not fit, before anything
    /// else is given to the core. The channel must be delivered in order
    /// ([`crate::delivery::Delivery::Ordered`]). `false`, and the mirror is dropped, when the channel was
    /// not welcomed yet.
    pub fn set_mirror(&mut self, channel: ChannelId, mirror: Mirror) -> bool {
        let receiver = self.receiver_mut(channel);
        receiver.map(|it| it.set_mirror(Some(mirror))).is_some()
    }

    /// The mirror of a channel; `None` when there is none (any more), because the channel's ring has
    /// another shape now.
    #[must_use]
    pub fn mirror(&self, channel: ChannelId) -> Option<&Mirror> {
        self.receiver(channel)?.mirror()
    }

    /// Takes the mirror of a channel out, to promote it.
    pub fn take_mirror(&mut self, channel: ChannelId) -> Option<Mirror> {
        self.receiver_mut(channel)?.set_mirror(None)
    }
}
