//! What the publisher wrote to this standby's inbox is taken like what was READ: it shows nobody
//! alive, and what it did not bring is asked for as ever (docs/PROTOCOL.md §6.8).

use std::sync::Arc;

use crate::control::{MirrorRefusal, RemoteAccess};
use crate::delivery::{Deliver, Via};
use crate::receive::Receiver;
use crate::receive::inbox::{Inbox, InboxState, InboxWanted};
use crate::receive::path::ArrivalPath;
use crate::ring::RingMemory;
use crate::types::{Nanos, Sequence};
use crate::wire::{CrcVerdict, Datagram};

/// How an inbox stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InboxView {
    /// What became of it.
    pub state: InboxState,
    /// Slots of it.
    pub slots: u64,
    /// The newest sequence found there; 0: none yet.
    pub newest: Sequence,
}

impl Receiver {
    /// The inbox that the publisher writes this channel to; `None` where there is none.
    #[must_use]
    pub fn inbox(&self) -> Option<InboxView> {
        let inbox = self.inbox.as_ref()?;
        Some(InboxView {
            state: inbox.state,
            slots: inbox.slots(),
            newest: inbox.newest,
        })
    }

    /// An inbox was made for the connection that there is. Whether it can be one.
    pub(crate) fn set_inbox(
        &mut self,
        memory: Arc<dyn RingMemory>,
        wanted: &InboxWanted,
        access: RemoteAccess,
    ) -> bool {
        let fits = access.len == wanted.part().len() as u64;
        let first = self.highest_seen.max(Sequence::FIRST);
        let inbox = Inbox::new(memory, wanted.geometry, first);
        self.inbox = inbox.ok().filter(|_| fits);
        self.inbox.is_some()
    }

    /// The publisher does not write to it.
    pub(crate) fn handle_mirror_refused(&mut self, reason: MirrorRefusal) {
        if let Some(inbox) = &mut self.inbox {
            inbox.state = InboxState::Refused(reason);
            self.counters.inboxes_refused.increment();
        }
    }

    /// Whether something was written that was not taken yet.
    #[inline]
    pub(crate) fn look_for_written(&mut self) -> bool {
        // Out of its place, because what is right is the receiver's to say.
        let Some(mut inbox) = self.inbox.take() else {
            return false;
        };
        let looked = inbox.look(|datagram| {
            let header = datagram.header();
            header.channel == self.channel && self.is_of_our_line(header)
        });
        self.inbox = Some(inbox);
        if looked.skipped > 0 {
            self.counters.inbox_skipped.add(looked.skipped);
        }
        if looked.torn > 0 {
            self.counters.inbox_torn.add(looked.torn);
        }
        looked.found
    }

    /// What is taken now comes for the first time.
    #[inline]
    pub(crate) fn note_inbox_first(&self) {
        if self.path == ArrivalPath::Written {
            self.counters.inbox_first.increment();
        }
    }

    /// The datagram that was found last.
    pub(crate) fn written(&self) -> &[u8] {
        self.inbox.as_ref().map_or(&[], Inbox::found)
    }

    /// Takes it.
    pub(crate) fn take_written(&mut self, now: Nanos, on: &mut impl Deliver) {
        let Some(inbox) = self.inbox.take() else {
            return;
        };
        if let Ok(datagram) = Datagram::parse(inbox.found()) {
            self.path = ArrivalPath::Written;
            self.handle_datagram(now, Via::Repair, &datagram, CrcVerdict::Good, on);
            self.path = ArrivalPath::Other;
        }
        self.inbox = Some(inbox);
    }
}
