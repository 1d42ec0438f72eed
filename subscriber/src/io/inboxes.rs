//! A standby's inboxes: memory of the current READ connection that the publisher may write. It may write
//! once this host's device has bound the memory to that connection (docs/PROTOCOL.md §6.8).

use std::sync::Arc;

use tickcast_journal::Journaled;
use tickcast_reliability::receive::InboxWanted;
use tickcast_reliability::ring::RingMemory;
use tickcast_reliability::session::{SubscriberCore, SubscriberInput};
use tickcast_reliability::types::{ChannelId, Nanos};
use tickcast_transport::control::{ControlClient, InboxGrant};
use tickcast_transport::host::mapping::SharedMapping;

use crate::dispatch::Sink;

/// The inboxes that are not bound yet.
#[derive(Default)]
pub(crate) struct Inboxes(Vec<Granting>);

struct Granting {
    channel: ChannelId,
    wanted: InboxWanted,
    memory: Arc<dyn RingMemory>,
    grant: InboxGrant,
}

impl Inboxes {
    /// Creates an inbox and drops those of earlier connections. On failure a line is logged, and the mirror
    /// is filled as on any subscriber.
    pub(crate) fn make(
        &mut self,
        read: &mut ControlClient,
        channel: ChannelId,
        wanted: InboxWanted,
    ) {
        self.0.retain(|it| it.wanted.attempt == wanted.attempt);
        let memory = SharedMapping::memfd("inbox", wanted.geometry.bytes());
        let memory = memory.map_err(|error| error.to_string()).map(Arc::new);
        let granted = memory.and_then(|memory| {
            let grant = read.grant_inbox(memory.clone(), wanted.part());
            grant
                .map_err(|error| error.to_string())
                .map(|grant| Granting {
                    channel,
                    wanted,
                    memory,
                    grant,
                })
        });
        match granted {
            Ok(granting) => self.0.push(granting),
            Err(error) => tracing::warn!(
                %channel,
                "the publisher can't write to this standby, which fills its mirror from multicast \
                 and repair: {error}"
            ),
        }
    }

    /// Passes inboxes that are now bound to the core.
    pub(crate) fn poll(
        &mut self,
        now: Nanos,
        read: &ControlClient,
        core: &mut Journaled<SubscriberCore>,
        sink: &mut dyn Sink,
    ) {
        self.0.retain(|it| {
            let Some(access) = read.granted_inbox(&it.grant) else {
                return true;
            };
            let inbox = SubscriberInput::Inbox {
                channel: it.channel,
                wanted: it.wanted,
                memory: &it.memory,
                access,
            };
            core.handle(now, inbox, sink);
            false
        });
    }
}
