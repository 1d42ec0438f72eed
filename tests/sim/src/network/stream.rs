//! A connection in virtual time: two ordered, reliable byte streams that can be slow, stalled, cut,
//! or half open. What one side wrote arrives in pieces of any size.

use std::collections::VecDeque;

use tickcast_reliability::serve::PeerId;
use tickcast_reliability::session::{Path, RemoteRequest};
use tickcast_reliability::types::Nanos;

use crate::network::inboxes::HalfWrite;

/// Bytes that a side which does not read takes all the same.
pub const RECEIVE_BUFFER: usize = 64 << 10;

/// One direction.
#[derive(Debug, Default)]
pub struct Pipe {
    /// Written and not yet on its way.
    pub unsent: VecDeque<u8>,
    /// Bytes that are.
    pub under_way: usize,
    /// Arrived and not yet taken as whole frames.
    pub received: Vec<u8>,
    /// Whether a step is scheduled.
    pub moving: bool,
    /// When the latest piece arrives.
    pub last_arrival: Nanos,
    /// The writer closes once everything is on its way.
    pub closing: bool,
}

impl Pipe {
    /// Takes up to `len` bytes to put on their way.
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
    /// Which incarnation of that subscriber.
    pub life: u64,
    /// Which of its four.
    pub path: Path,
    /// As the publisher numbers it.
    pub peer: PeerId,
    /// Whose budget it draws on: of all connections of a session the first.
    pub payer: PeerId,
    /// Whether the subscriber's side is open.
    pub near: bool,
    /// Whether the publisher's side is open.
    pub far: bool,
    /// From subscriber to publisher.
    pub up: Pipe,
    /// From publisher to subscriber.
    pub down: Pipe,
    /// READs that its device has not seen.
    pub reads_begun: VecDeque<RemoteRequest>,
    /// What was READ over it and not handed over yet.
    pub reads_done: VecDeque<(RemoteRequest, Vec<u8>)>,
    /// When the device has copied the last READ that came.
    pub read_at: Nanos,
    /// What was written over it and is held on the way.
    pub(crate) writes: VecDeque<HalfWrite>,
    /// When the device has copied the last slot that it writes.
    pub write_at: Nanos,
}

impl Connection {
    /// One of its directions.
    pub const fn pipe(&mut self, up: bool) -> &mut Pipe {
        if up { &mut self.up } else { &mut self.down }
    }
}

/// Index of a path.
#[must_use]
pub const fn index_of(path: Path) -> usize {
    match path {
        Path::Repair => 0,
        Path::Replay => 1,
        Path::Nack => 2,
        Path::Read => 3,
    }
}
