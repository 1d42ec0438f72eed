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
