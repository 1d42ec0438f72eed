//! The operations on the publisher's memory: the offer of their connection, the requests for the driver, and
//! the bytes that they bring (docs/PROTOCOL.md §6.6).

use super::SubscriberCore;
use crate::control::RepairOffer;
use crate::delivery::Deliver;
use crate::receive::RemoteOp;
use crate::session::read_link::RemoteRequest;
use crate::types::Nanos;

impl SubscriberCore {
    /// Returns the offer to connect to for [`Path::Read`](super::Path::Read).
    #[must_use]
    pub fn read_offer(&self) -> Option<RepairOffer> {
        self.read.link.offer()
    }

    /// Returns the next remote request, in the order in which to begin them. The number in flight stays
    /// within [`ReadLimits`](super::ReadLimits).
    pub fn poll_remote(&mut self) -> Option<RemoteRequest> {
        self.read.next_request()
    }

    pub(super) fn handle_read(&mut self, now: Nanos, tag: u64, bytes: &[u8], on: &mut dyn Deliver) {
        let Some(begun) = self.read.done(tag) else {
            return;
        };
        self.check_room();
        let mut aligned = std::mem::take(&mut self.aligned);
        let session = self.session;
        let receiver = self.receiver_mut(begun.channel);
        if let Some(receiver) = receiver.filter(|it| it.epoch() == begun.epoch) {
            match begun.what {
                RemoteOp::Slots(range) => {
                    receiver.handle_read_slots(now, range, bytes, &mut aligned, on);
                }
                RemoteOp::Page => receiver.handle_read_page(now, bytes, on),
                RemoteOp::Claim(_) => {
                    let old = bytes
                        .first_chunk()
                        .map_or(0, |word| u64::from_le_bytes(*word));
                    receiver.handle_claimed(session, old);
                }
                RemoteOp::Report(_) => receiver.handle_reported(),
            }
        }
        self.aligned = aligned;
    }

    /// Lets receivers that waited for room plan their READs again at once.
    pub(super) fn check_room(&mut self) {
        for receiver in self.entries.receivers_mut() {
            receiver.plan_reads_again();
        }
    }

    /// Moves the READs in flight to the next rung at once.
    pub(super) fn read_down(&mut self, now: Nanos) {
        self.read.forget();
        for receiver in self.entries.receivers_mut() {
            receiver.handle_read_down(now);
        }
    }
}
