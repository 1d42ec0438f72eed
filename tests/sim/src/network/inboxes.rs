//! WRITEs in flight to the inboxes of standbys.

use std::collections::BTreeMap;

use tickcast_reliability::control::RemoteAccess;
use tickcast_reliability::ring::WrittenSlots;
use tickcast_reliability::serve::MirrorWrite;
use tickcast_reliability::types::ChannelId;

/// A WRITE whose first half has been copied.
#[derive(Clone, Debug)]
pub(crate) struct HalfWrite {
    pub(crate) connection: usize,
    pub(crate) write: MirrorWrite,
    pub(crate) bytes: Vec<u8>,
}

/// The inbox granted to each connection and channel.
#[derive(Default)]
pub(crate) struct Inboxes(pub(crate) BTreeMap<(usize, ChannelId), (RemoteAccess, WrittenSlots)>);
