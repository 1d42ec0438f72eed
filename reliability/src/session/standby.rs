//! A standby's inboxes as the driver sees them: where the publisher offers it, it is asked to write
//! what it seals to memory of ours (docs/PROTOCOL.md §6.8).

use std::sync::Arc;

use super::{Action, SubscriberCore};
use crate::control::{Message, MirrorRefused, Mirroring, RemoteAccess, RepairOffer};
use crate::delivery::Deliver;
use crate::receive::InboxWanted;
use crate::ring::RingMemory;
use crate::types::{ChannelId, Nanos};

impl SubscriberCore {
    /// Tells whether this is a standby whose driver can make inboxes; counts from the next connection
    /// for READ on. Without this call the publisher is not asked to write anything.
    pub const fn use_inboxes(&mut self, usable: bool) {
        self.inboxes = usable;
    }

    /// The inbox that [`Action::Inbox`] wanted is there: memory that is zero, whose slots
    /// ([`InboxWanted::part`]) the device lets the publisher write through the connection for READ of that
    /// attempt, and through no other. The publisher is asked to; one for a connection that is gone is
    /// dropped.
    pub fn handle_inbox(
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
            wish.write(channel, &mut self.out_repair);
        }
    }

    /// Looks whether something was written that was not taken yet, to be called often; of which channel.
    /// [`SubscriberCore::handle_written`] takes it, and must follow.
    #[inline]
    pub fn look_for_written(&mut self) -> Option<ChannelId> {
        let receivers = self.entries.iter_mut().filter_map(|e| e.receiver.as_mut());
        let mut written = receivers.filter_map(|it| it.look_for_written().then(|| it.channel()));
        written.next()
    }

    /// The datagram that was found.
    #[must_use]
    pub fn written(&self, channel: ChannelId) -> &[u8] {
        let receiver = self.receiver(channel);
        receiver.map_or(&[], |receiver| receiver.written())
    }

    /// Takes the datagram that was found, and delivers what can be.
    pub fn handle_written(&mut self, now: Nanos, channel: ChannelId, on: &mut impl Deliver) {
        if let Some(receiver) = self.receiver_mut(channel) {
            receiver.take_written(now, on);
        }
    }

    /// The connection for READ is up: inboxes can be granted through it.
    pub(super) fn want_inboxes(&mut self) {
        let offered = matches!(
            self.read.link.offer(),
            Some(RepairOffer::Verbs { mirror: true, .. })
        );
        if !offered || !self.inboxes {
            return;
        }
        let attempt = self.read.attempt();
        let receivers = (self.entries.iter()).filter_map(|entry| entry.receiver.as_ref());
        for receiver in receivers {
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
