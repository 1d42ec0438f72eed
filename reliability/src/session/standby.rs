//! A standby's inboxes: memory that the publisher writes sealed datagrams to, where it offers that
//! (docs/PROTOCOL.md §6.8).

use std::sync::Arc;

use super::{Action, SubscriberCore};
use crate::control::{Message, MirrorRefused, Mirroring, RemoteAccess, RepairOffer};
use crate::receive::InboxWanted;
use crate::ring::RingMemory;
use crate::types::ChannelId;

impl SubscriberCore {
    pub(super) fn handle_inbox(
        &mut self,
        channel: ChannelId,
        wanted: &InboxWanted,
        memory: Arc<dyn RingMemory>,
        access: RemoteAccess,
    ) {
        let is_current = self.read.is_current(wanted.attempt);
        let Some(receiver) = self.receiver_mut(channel).filter(|_| is_current) else {
            return;
        };
        if receiver.set_inbox(memory, wanted, access) {
            let wish = Message::Mirror(Mirroring {
                epoch: receiver.epoch(),
                attempt: wanted.attempt,
                inbox: access,
            });
            wish.write(channel, self.repair.frames());
        }
    }

    /// Polls the inboxes and returns a channel with an untaken datagram. Call it often, and then give
    /// [`SubscriberInput::Written`](super::SubscriberInput::Written) for that channel.
    #[inline]
    pub fn poll_written(&mut self) -> Option<ChannelId> {
        let mut receivers = self.entries.receivers_mut();
        receivers.find_map(|it| it.poll_written().then(|| it.channel()))
    }

    /// Returns the datagram that [`poll_written`](Self::poll_written) found.
    #[must_use]
    pub fn written(&self, channel: ChannelId) -> &[u8] {
        let receiver = self.receiver(channel);
        receiver.map_or(&[], |receiver| receiver.written())
    }

    /// Requests inboxes, because the READ connection is up and they can be granted through it.
    pub(super) fn want_inboxes(&mut self) {
        let offered = matches!(
            self.read.link.offer(),
            Some(RepairOffer::Verbs { mirror: true, .. })
        );
        if !offered || !self.inboxes {
            return;
        }
        let attempt = self.read.attempt();
        for receiver in self.entries.receivers() {
            let ring = receiver.geometry();
            if let Some(wanted) = ring.and_then(|ring| InboxWanted::of(attempt, ring)) {
                let action = Action::Inbox(receiver.channel(), wanted);
                self.actions.push_back(action);
            }
        }
    }

    pub(super) fn mirror_refused(&mut self, channel: ChannelId, refused: &MirrorRefused) {
        let is_current = self.read.is_current(refused.attempt);
        if let Some(receiver) = self.receiver_mut(channel).filter(|_| is_current) {
            receiver.handle_mirror_refused(refused.reason);
        }
    }
}
