//! READs on their way: what each connection was granted, and a copy of which half was made.

use std::collections::BTreeMap;

use tickcast_reliability::control::{Grant, Message};
use tickcast_reliability::receive::RemoteOp;
use tickcast_reliability::session::RemoteRequest;
use tickcast_reliability::types::ChannelId;

/// READs of a connection at a time.
pub(crate) const READS: u32 = 8;

/// RemoteOp may be READ over each connection of a publisher.
#[derive(Debug, Default)]
pub struct Granted {
    pub(crate) rings: BTreeMap<(usize, ChannelId), Grant>,
    /// Bytes that were READ.
    pub(crate) used: BTreeMap<(usize, ChannelId), u64>,
}

impl Granted {
    /// A subscriber is told this. How many bytes it may READ more than before.
    ///
    /// # Errors
    /// RemoteOp can't be read, or takes back what was granted.
    pub fn told(&mut self, mut frames: &[u8]) -> Result<u64, String> {
        let mut more = 0;
        while let Some((channel, message, len)) =
            Message::read(frames, 1 << 24).map_err(|e| e.to_string())?
        {
            frames = &frames[len..];
            if let Message::Grant(grant) = message {
                let connection = grant.ring.key as usize;
                let before = self.rings.insert((connection, channel), grant);
                let before = before.map_or(0, |before| before.tokens);
                let tokens = grant.tokens.checked_sub(before);
                more += tokens.ok_or_else(|| format!("{grant:?} after {before} bytes"))?;
            }
        }
        Ok(more)
    }

    pub(crate) fn find(&self, connection: usize, request: &RemoteRequest) -> Option<&Grant> {
        self.rings.get(&(connection, request.channel))
    }
}

/// A READ whose first half was copied.
#[derive(Clone, Debug)]
pub(crate) struct HalfRead {
    pub(crate) connection: usize,
    pub(crate) request: RemoteRequest,
    pub(crate) bytes: Vec<u8>,
}

impl HalfRead {
    pub(crate) const fn is_of_slots(&self) -> bool {
        matches!(self.request.what, RemoteOp::Slots(_))
    }
}
