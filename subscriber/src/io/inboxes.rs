//! A standby's inboxes: memory that is made for the connection for READ that there is, and that the
//! publisher may write once its device has bound it to that (docs/PROTOCOL.md §6.8).

use std::sync::Arc;

use tickcast_journal::Journaled;
use tickcast_reliability::receive::InboxWanted;
use tickcast_reliability::ring::RingMemory;
use tickcast_reliability::session::{SubscriberCore, SubscriberInput};
use tickcast_reliability::types::{ChannelId, Nanos};
use tickcast_transport::control::{ControlClient, InboxGrant};
use tickcast_transport::host::mapping::SharedMapping;

use crate::dispatch::Sink;

/// Those that are not bound yet.
#[derive(Default)]
pub(crate) struct Inboxes(Vec<Granting>);

struct Granting {
    channel: ChannelId,
    wanted: InboxWanted,
    memory: Arc<dyn RingMemory>,
    grant: InboxGrant,
}

impl Inboxes {
    /// Makes one, in the place of any for a connection before. Where it can't be had the mirror is filled
    /// as any subscriber is, which the log says.
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
                "the publisher can't write to this standby, which fills its mirror by itself: {error}"
            ),
        }
    }

    /// Tells the core of those that are bound now.
    pub(crate) fn poll(
        &mut self,
        now: Nanos,
        read: &ControlClient,
        core: &mut Journaled<SubscriberCore>,
        sink: &mut impl Sink,
    ) {
        self.0.retain(|it| {
            let Some(access) = read.granted_inbox(&it.grant) else {
                return true;
            };
            let inbox = SubscriberInput::Inbox {
                channel: it.channel,
                wanted: it.wanted,
                memory: it.memory.clone(),
                access,
            };
            core.handle(now, inbox, sink);
            false
        });
    }
}
