//! Packets that wait for those before them.

use std::collections::VecDeque;
use std::net::Ipv4Addr;

use tickcast_reliability::types::Nanos;

use crate::planted::{ArbiterBug, planted};

/// Buffers that exist from the start, and their length.
const BUFFERS: usize = 64;
const BUFFER_LEN: usize = 2048;
/// Packets compared with a new one, so that a long queue costs no more than a short one.
const COVERS_MAX: usize = 8;
/// Packets of another session, or far ahead, that are kept until it is certain where the source goes on.
pub(super) const UNDECIDED_MAX: usize = 256;
/// Bytes of packets of another session that are kept even where nothing else is held.
pub(super) const UNDECIDED_BYTES_MAX: usize = 1 << 20;

/// A packet that waits.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) line: usize,
    pub(super) sender: Option<Ipv4Addr>,
    pub(super) first: u64,
    pub(super) end: u64,
    pub(super) arrived_at: Nanos,
    pub(super) received_at: Nanos,
    pub(super) bytes: Vec<u8>,
}

/// Waiting packets in order of their first message, and their memory.
#[derive(Clone, Debug)]
pub(super) struct Queue {
    packets: VecDeque<Held>,
    buffers: Vec<Vec<u8>>,
    bytes: usize,
    /// The packet of the next message, which another line may bring less damaged.
    pub(super) doubtful: Option<Held>,
    pub(super) rerun: Rerun,
    /// The packet with messages behind the end of the session.
    pub(super) behind_end: Vec<Held>,
}

/// The first packets of a count that perhaps began anew, in order of arrival.
#[derive(Clone, Debug, Default)]
pub(super) struct Rerun {
    pub(super) packets: Vec<Held>,
    /// One beyond their messages.
    end: u64,
    /// Packets that each begin behind the messages of those before.
    pub(super) in_a_row: u32,
}

impl Rerun {
    pub(super) const fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    pub(super) fn push(&mut self, held: Held) {
        self.in_a_row += u32::from(held.first >= self.end);
        self.end = self.end.max(held.end);
        self.packets.push(held);
    }

    /// Returns whether there is room for a packet from this message on, which is no copy.
    pub(super) fn takes(&self, first: u64) -> bool {
        let is_copy = |held: &Held| held.first == first && held.end > first;
        self.packets.len() < UNDECIDED_MAX && !self.packets.iter().any(is_copy)
    }
}

impl Queue {
    pub(super) fn new(packets_max: u32) -> Self {
        let packets_max = packets_max as usize;
        let buffers = BUFFERS.min(packets_max);
        let mut all = Vec::with_capacity(packets_max + 1);
        all.extend((0..buffers).map(|_| Vec::with_capacity(BUFFER_LEN)));
        Self {
            packets: VecDeque::with_capacity(packets_max + 1),
            buffers: all,
            bytes: 0,
            doubtful: None,
            rerun: Rerun::default(),
            behind_end: Vec::new(),
        }
    }

    /// Copies bytes into a buffer of the queue's.
    pub(super) fn copy(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut buffer = self.buffers.pop().unwrap_or_default();
        buffer.clear();
        buffer.extend_from_slice(bytes);
        buffer
    }

    /// Takes back the buffer of a packet.
    pub(super) fn recycle(&mut self, buffer: Vec<u8>) {
        if self.buffers.len() < self.buffers.capacity() {
            self.buffers.push(buffer);
        }
    }

    /// Returns a waiting packet that holds all of `first..end`, if it is near.
    pub(super) fn covers(&self, first: u64, end: u64) -> Option<&Held> {
        let before = self.packets.partition_point(|held| held.first <= first);
        let mut held = self.packets.range(..before).rev().take(COVERS_MAX);
        held.find(|held| held.end >= end)
    }

    /// Adds a packet.
    pub(super) fn insert(&mut self, held: Held) {
        self.bytes += held.bytes.len();
        let at = if planted(ArbiterBug::ReleasedByArrival) {
            self.packets.len()
        } else {
            self.packets.partition_point(|it| it.first <= held.first)
        };
        self.packets.insert(at, held);
    }

    /// Takes the packet of the lowest sequence, if that is at most `next`.
    pub(super) fn pop(&mut self, next: u64) -> Option<Held> {
        if self.front()? > next {
            return None;
        }
        let held = self.packets.pop_front()?;
        self.bytes -= held.bytes.len();
        Some(held)
    }

    /// Returns the lowest sequence that waits.
    pub(super) fn front(&self) -> Option<u64> {
        self.packets.front().map(|held| held.first)
    }

    /// Returns since when the packet of the lowest sequence waits.
    pub(super) fn front_since(&self) -> Option<Nanos> {
        self.packets.front().map(|held| held.arrived_at)
    }

    /// Returns one beyond the last packet's messages.
    pub(super) fn end(&self) -> u64 {
        self.packets.back().map_or(0, |held| held.end)
    }

    /// Returns whether more waits than allowed.
    pub(super) fn exceeds(&self, packets_max: u32, bytes_max: u32) -> bool {
        self.packets.len() > packets_max as usize || self.bytes > bytes_max as usize
    }

    pub(super) fn len(&self) -> usize {
        self.packets.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A packet of the messages `first..end`, and so many bytes.
    fn held(first: u64, end: u64, len: usize) -> Held {
        Held {
            line: 0,
            sender: None,
            first,
            end,
            arrived_at: Nanos(first),
            received_at: Nanos(end),
            bytes: vec![0; len],
        }
    }

    #[test]
    fn queue_exceeds_packets_or_bytes_by_one() {
        let mut queue = Queue::new(8);
        assert!(!queue.exceeds(0, 0));
        for first in 1..=3 {
            queue.insert(held(first, first + 1, 100));
        }
        for (packets_max, bytes_max, exceeds) in [
            (3, 300, false),
            (4, 301, false),
            (2, 300, true),
            (1, 999, true),
            (3, 299, true),
            (9, 1, true),
        ] {
            let found = queue.exceeds(packets_max, bytes_max);
            assert_eq!(found, exceeds, "{packets_max} {bytes_max}");
        }
        assert!(queue.pop(1).is_some());
        assert!(!queue.exceeds(2, 200) && queue.exceeds(2, 199));
    }

    #[test]
    fn packets_leave_in_the_order_of_their_messages() {
        let mut queue = Queue::new(8);
        assert!(queue.is_empty());
        assert_eq!((queue.len(), queue.front(), queue.end()), (0, None, 0));
        for first in [7, 3, 5] {
            queue.insert(held(first, first + 2, 1));
        }
        // Of two copies, the first one leaves first.
        queue.insert(held(5, 6, 1));
        assert!(!queue.is_empty());
        assert_eq!((queue.len(), queue.front(), queue.end()), (4, Some(3), 9));
        assert_eq!(queue.front_since(), Some(Nanos(3)));
        assert!(queue.pop(2).is_none(), "a message before it is missing");
        let left: Vec<_> = std::iter::from_fn(|| queue.pop(9))
            .map(|held| (held.first, held.end))
            .collect();
        assert_eq!(left, [(3, 5), (5, 7), (5, 6), (7, 9)]);
    }

    #[test]
    fn packet_covers_what_lies_within_it() {
        let mut queue = Queue::new(8);
        queue.insert(held(10, 20, 1));
        queue.insert(held(15, 16, 1));
        for (first, end, covers) in [
            (10, 20, true),
            (16, 20, true),
            (12, 13, true),
            (9, 12, false),
            (10, 21, false),
            (20, 21, false),
        ] {
            let found = queue.covers(first, end);
            assert_eq!(found.is_some(), covers, "{first}..{end}");
        }
    }

    #[test]
    fn buffers_are_reused_up_to_the_bound() {
        let mut queue = Queue::new(2);
        for _ in 0..9 {
            queue.recycle(Vec::new());
        }
        assert!(queue.buffers.len() >= 3);
        assert_eq!(queue.buffers.len(), queue.buffers.capacity());
        let buffer = queue.copy(b"bytes");
        assert_eq!(buffer, b"bytes");
        queue.recycle(buffer);
        assert_eq!(queue.copy(b"no"), b"no", "without the bytes before");
    }
}
