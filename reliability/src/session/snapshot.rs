//! A core's state as bytes, and back: points at which a recorded run can be resumed (the crate
//! `tickcast-journal`).
//!
//! It holds the counters and all that decides what the core does next. Of the datagrams in a window it
//! holds only the headers, because record values decide nothing (`wire/headers_only.rs`). A standby's
//! mirror and inbox are memory of others, so a core that has one cannot be written down.

use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serializer};

use crate::receive::Receiver;
use crate::session::SubscriberCore;
use crate::session::entries::Entry;
use crate::types::{ReceiverCounters, State};

impl State for SubscriberCore {
    type Restored = Self;

    /// Returns `None` also when the core keeps a mirror or an inbox.
    fn take_down(&self, into: &mut [u8]) -> Option<usize> {
        let is_standby = |it: &Receiver| it.mirror().is_some() || it.inbox().is_some();
        if self.receivers().any(is_standby) {
            return None;
        }
        Some(postcard::to_slice(self, into).ok()?.len())
    }

    fn take_up(bytes: &[u8]) -> Option<Self> {
        let mut core: Self = postcard::from_bytes(bytes).ok()?;
        core.entries.iter_mut().for_each(Entry::restored);
        Some(core)
    }
}

/// Serializes counters as their values, in the order declared.
pub(crate) mod counters {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(
        counters: &Arc<ReceiverCounters>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        let (mut values, mut at) = ([0; ReceiverCounters::COUNT], 0);
        counters.each(|_, _, value| {
            values[at] = value;
            at += 1;
        });
        to.collect_seq(values)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Arc<ReceiverCounters>, D::Error> {
        let counters = ReceiverCounters::default();
        counters.set_all(Vec::<u64>::deserialize(from)?);
        Ok(Arc::new(counters))
    }
}
