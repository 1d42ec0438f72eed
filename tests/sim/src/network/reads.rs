//! READs in flight: the grants of each connection, and copies of which the first half is done.

use std::collections::BTreeMap;

use tickcast_reliability::control::{Grant, Message};
use tickcast_reliability::receive::RemoteOp;
use tickcast_reliability::session::RemoteRequest;
use tickcast_reliability::types::ChannelId;

/// Maximum number of READs in flight on a connection.
pub(crate) const READS: u32 = 8;

/// READ grants over each connection of a publisher.
#[derive(Debug, Default)]
pub struct Granted {
    pub(crate) rings: BTreeMap<(usize, ChannelId), Grant>,
    /// Bytes READ by connection and channel.
    pub(crate) used: BTreeMap<(usize, ChannelId), u64>,
}

impl Granted {
    /// Records the grants in frames sent to a subscriber. Returns the number of bytes that it may
    /// READ in addition.
    ///
    /// # Errors
    /// A frame that can't be parsed, or a grant below an earlier one.
    pub fn reported(&mut self, mut frames: &[u8]) -> Result<u64, String> {
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

/// A READ whose first half has been copied.
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
