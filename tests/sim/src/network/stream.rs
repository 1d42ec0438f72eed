//! A connection in virtual time: two ordered, reliable byte streams that can be slow, stalled, cut,
//! or half open. Written bytes arrive in pieces of any size.

use std::collections::VecDeque;

use tickcast_reliability::serve::PeerId;
use tickcast_reliability::session::{Path, RemoteRequest};
use tickcast_reliability::types::Nanos;

use crate::network::inboxes::HalfWrite;

/// Bytes that the receive buffer of a side accepts although the side does not read.
pub const RECEIVE_BUFFER: usize = 64 << 10;

/// One direction of a connection.
#[derive(Debug, Default)]
pub struct Pipe {
    /// Bytes written and not yet in flight.
    pub unsent: VecDeque<u8>,
    /// Number of bytes in flight.
    pub under_way: usize,
    /// Bytes that arrived and are not yet consumed as whole frames.
    pub received: Vec<u8>,
    /// Whether the next step of this direction is scheduled.
    pub moving: bool,
    /// Arrival time of the last piece.
    pub last_arrival: Nanos,
    /// Whether the writer closes once everything is in flight.
    pub closing: bool,
}

impl Pipe {
    /// Puts up to `len` unsent bytes in flight and returns them.
    pub fn take(&mut self, len: usize) -> Vec<u8> {
        let len = len.min(self.unsent.len());
        let mut piece = Vec::with_capacity(len);
        let (before, after) = self.unsent.as_slices();
        let split = len.min(before.len());
        piece.extend_from_slice(&before[..split]);
        piece.extend_from_slice(&after[..len - split]);
        self.unsent.drain(..len);
        self.under_way += len;
        piece
    }
}

/// A connection between a subscriber and a publisher.
#[derive(Debug)]
pub struct Connection {
    /// Index of the publisher.
    pub publisher: usize,
    /// Index of the subscriber.
    pub subscriber: usize,
    /// Incarnation of that subscriber.
    pub life: u64,
    /// The path that this connection serves.
    pub path: Path,
    /// The publisher's number for this peer.
    pub peer: PeerId,
    /// The peer whose budget pays for the connection: the first connection of the session.
    pub payer: PeerId,
    /// Whether the subscriber's side is open.
    pub near: bool,
    /// Whether the publisher's side is open.
    pub far: bool,
    /// The direction from subscriber to publisher.
    pub up: Pipe,
    /// The direction from publisher to subscriber.
    pub down: Pipe,
    /// READs that have not arrived at the publisher's device.
    pub reads_begun: VecDeque<RemoteRequest>,
    /// Results of READs that were not yet delivered to the core.
    pub reads_done: VecDeque<(RemoteRequest, Vec<u8>)>,
    /// Time at which the device completes the last READ that arrived.
    pub read_at: Nanos,
    /// WRITEs that are delayed in flight.
    pub(crate) writes: VecDeque<HalfWrite>,
    /// Time at which the device completes the copy of the last slot that it writes.
    pub write_at: Nanos,
}

impl Connection {
    /// Returns the direction towards the publisher (`up`) or towards the subscriber.
    pub const fn pipe(&mut self, up: bool) -> &mut Pipe {
        if up { &mut self.up } else { &mut self.down }
    }
}

/// Returns the index of a path.
#[must_use]
pub const fn index_of(path: Path) -> usize {
    match path {
        Path::Repair => 0,
        Path::Replay => 1,
        Path::Nack => 2,
        Path::Read => 3,
    }
}
