//! READ as the driver sees it: whether it can, what to begin, and what was brought
//! (docs/PROTOCOL.md §6.6).

use super::{Action, Path, SubscriberCore};
use crate::control::RepairOffer;
use crate::delivery::Deliver;
use crate::receive::RemoteOp;
use crate::session::read_link::{ReadLimits, RemoteRequest};
use crate::types::Nanos;

impl SubscriberCore {
    /// Tells whether the driver can READ where the publisher offers it; counts from the next WELCOME
    /// on. Without this call nothing is READ.
    pub const fn use_read_path(&mut self, usable: bool) {
        self.read.link.set_usable(usable);
    }

    /// Where to connect for [`Path::Read`].
    #[must_use]
    pub const fn read_offer(&self) -> Option<RepairOffer> {
        self.read.link.offer()
    }

    /// There is no way to READ from here, and trying again would not help: no connection is made for
    /// it before the next WELCOME.
    pub fn handle_read_unusable(&mut self, now: Nanos) {
        self.stop_read(now);
    }

    /// What the connection can do that is being made for READ: before it is said to be connected.
    pub const fn set_read_limits(&mut self, limits: ReadLimits) {
        self.read.set_limits(limits);
    }

    /// The limits that [`set_read_limits`](Self::set_read_limits) set last.
    #[must_use]
    pub const fn read_limits(&self) -> ReadLimits {
        self.read.limits()
    }

    /// The next thing to begin in the publisher's memory, in this order; never more at a time than
    /// [`ReadLimits`] says.
    pub fn poll_remote(&mut self) -> Option<RemoteRequest> {
        self.read.next_request()
    }

    /// What was begun under this tag is done and brought these bytes: of a claim the old word. All is
    /// done in the order in which it was begun; when something fails, the connection is over
    /// ([`SubscriberCore::handle_disconnected`]).
    pub fn handle_read(&mut self, now: Nanos, tag: u64, bytes: &[u8], on: &mut impl Deliver) {
        let Some(begun) = self.read.done(tag) else {
            return;
        };
        self.look_for_room();
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

    /// There is room for READs again: whoever waited looks at once.
    pub(super) fn look_for_room(&mut self) {
        for receiver in self.entries.iter_mut().filter_map(|e| e.receiver.as_mut()) {
            receiver.plan_reads_again();
        }
    }

    /// Ends the READ connection for as long as nobody offers it again.
    pub(super) fn stop_read(&mut self, now: Nanos) {
        if self.read.link.stop() {
            self.actions.push_back(Action::Disconnect(Path::Read));
        }
        self.read_down(now);
    }

    /// Nothing is READ any more: the next rung is asked, at once.
    pub(super) fn read_down(&mut self, now: Nanos) {
        self.read.forget();
        for receiver in self.entries.iter_mut().filter_map(|e| e.receiver.as_mut()) {
            receiver.handle_read_down(now);
        }
    }
}
