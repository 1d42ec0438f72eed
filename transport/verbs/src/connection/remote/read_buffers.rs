//! Buffers that READs arrive in, and the queue of one-sided operations in flight, in order of posting.
//!
//! A READ arrives in a buffer that serves this connection alone, registered so that no peer can reach it.
//! The caller borrows the bytes there, without a copy. A place is free again when its operation is taken.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use crate::connection::{StreamConfig, StreamEnd};
use crate::device::Device;
use crate::device::region::Region;
use crate::device::sys;
use crate::error::VerbsError;
use tickcast_transport_base::host::mapping::SharedMapping;

/// Largest number of WRITEs in flight on one connection.
pub const WRITES_MAX: u32 = 4;
/// Length of the word that is compared and swapped, in bytes.
pub(crate) const WORD_LEN: usize = size_of::<u64>();

/// A completed operation in the peer's memory. `tag` is the caller's value from the start of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Completed<'a> {
    /// The bytes of a READ, at an address that is a multiple of 64. They belong to this side and do not
    /// change any more. The READ is not atomic: a concurrent write at the peer may have torn the bytes.
    Read {
        /// The caller's tag.
        tag: u64,
        /// The bytes, as many as were requested.
        bytes: &'a [u8],
    },
    /// The old value of a compare-and-swap. The swap took place if it equals the expected value.
    Swapped {
        /// The caller's tag.
        tag: u64,
        /// The old value, in this host's byte order, which must be the peer's too.
        old: u64,
    },
    /// The peer's device has the written bytes.
    Written {
        /// The caller's tag.
        tag: u64,
    },
    /// The connection ended, and the result of the operation is unknown.
    Failed {
        /// The caller's tag.
        tag: u64,
        /// Why the connection ended.
        why: StreamEnd,
    },
}

/// Operations in flight or done, in order. Dropped after the queue, which may still write to the buffers.
pub(crate) struct ReadBuffers {
    /// Buffers for READs and old words. `None` if this side starts no such operation.
    buffers: Option<Region>,
    buffer_len: usize,
    under_way: VecDeque<Operation>,
    /// Total number of operations done, and total number taken (done, or failed with the connection). A
    /// completion after the connection was given up does not affect the later operations.
    done: u64,
    taken: u64,
    /// Places in use, by READs and swaps and by WRITEs.
    reads: u32,
    writes: u32,
    /// Places for READs and swaps that both sides agreed on. 0 until then.
    depth: u32,
    /// The next buffer. Buffers are used in turn.
    next_buffer: u32,
}

/// An operation in the peer's memory.
#[derive(Clone, Copy)]
pub(crate) struct Operation {
    pub(crate) tag: u64,
    pub(crate) kind: Kind,
}

#[derive(Clone, Copy)]
pub(crate) enum Kind {
    Read { buffer: u32, len: usize },
    Swap { buffer: u32 },
    Write,
}

impl ReadBuffers {
    pub(crate) fn new(device: &Arc<Device>, config: &StreamConfig) -> Result<Self, VerbsError> {
        let buffers = || {
            let len = config.read_len_max * usize::from(config.reads_max);
            let memory =
                SharedMapping::memfd("read-buffers", len).map_err(|error| VerbsError::Call {
                    what: "allocate memory for READs",
                    source: io::Error::other(error),
                })?;
            Region::writable(device, Arc::new(memory), "what was read")
        };
        let places = usize::from(config.reads_max) + WRITES_MAX as usize;
        Ok(Self {
            buffers: config.reads().then(buffers).transpose()?,
            buffer_len: config.read_len_max,
            under_way: VecDeque::with_capacity(places),
            done: 0,
            taken: 0,
            reads: 0,
            writes: 0,
            depth: 0,
            next_buffer: 0,
        })
    }

    /// Sets the number of READs in flight that was agreed on.
    pub(crate) fn agreed(&mut self, depth: u8) {
        self.depth = depth.into();
    }

    /// Marks the oldest operation in flight as done. Operations complete in order of posting.
    pub(crate) fn operation_done(&mut self) {
        self.done += 1;
    }

    /// Returns the number of READs and swaps that may be in flight.
    pub(crate) const fn depth(&self) -> u32 {
        self.depth
    }

    /// Returns the number of operations in flight or not taken.
    pub(crate) fn len(&self) -> usize {
        self.under_way.len()
    }

    /// Returns whether one more READ or swap may start.
    pub(crate) const fn has_read_place(&self) -> bool {
        self.reads < self.depth
    }

    /// Returns whether one more WRITE may start.
    pub(crate) const fn has_write_place(&self) -> bool {
        self.writes < WRITES_MAX
    }

    /// Returns the buffer for the next READ or swap.
    pub(crate) const fn next_buffer(&self) -> u32 {
        self.next_buffer
    }

    /// Returns whether the oldest operation is done.
    pub(crate) const fn has_done(&self) -> bool {
        self.taken < self.done
    }

    /// Returns the buffer's address, length and key for a work request.
    pub(crate) fn piece(&self, buffer: u32, len: usize) -> sys::ibv_sge {
        let buffers = self.buffers.as_ref();
        let from = buffers.map_or(0, |buffers| buffers.as_ptr().addr());
        sys::ibv_sge {
            addr: (from + buffer as usize * self.buffer_len) as u64,
            length: len as u32,
            lkey: buffers.map_or(0, Region::lkey),
        }
    }

    /// Records an operation that was posted.
    pub(crate) fn began(&mut self, operation: Operation) {
        match operation.kind {
            Kind::Write => self.writes += 1,
            Kind::Read { .. } | Kind::Swap { .. } => {
                self.reads += 1;
                self.next_buffer = (self.next_buffer + 1) % self.depth;
            }
        }
        self.under_way.push_back(operation);
    }

    /// Takes the oldest operation that is done, or that failed with the connection. Its place is free at
    /// once, but can't be reused while the caller borrows the bytes, because that borrows the whole stream.
    pub(crate) fn take(&mut self, end: Option<StreamEnd>) -> Option<Completed<'_>> {
        let failed = end.filter(|_| !self.has_done());
        if failed.is_none() && !self.has_done() {
            return None;
        }
        let Operation { tag, kind } = self.under_way.pop_front()?;
        self.taken += 1;
        match kind {
            Kind::Write => self.writes -= 1,
            Kind::Read { .. } | Kind::Swap { .. } => self.reads -= 1,
        }
        if let Some(why) = failed {
            return Some(Completed::Failed { tag, why });
        }
        Some(match kind {
            Kind::Write => Completed::Written { tag },
            Kind::Read { buffer, len } => Completed::Read {
                tag,
                bytes: self.landed(buffer, len)?,
            },
            Kind::Swap { buffer } => {
                let mut old = [0; WORD_LEN];
                old.copy_from_slice(self.landed(buffer, WORD_LEN)?);
                let old = u64::from_ne_bytes(old);
                Completed::Swapped { tag, old }
            }
        })
    }

    /// Returns the bytes in a buffer whose operation completed.
    fn landed(&self, buffer: u32, len: usize) -> Option<&[u8]> {
        let buffers = self.buffers.as_ref()?;
        // SAFETY: the memory is this connection's alone, and no peer has a right to it; the device has
        // completed what landed here, and nothing else is posted to land while the stream is borrowed.
        // Exercised by `verbs::read::several_reads_at_once_bring_what_was_granted_in_order`.
        Some(unsafe { buffers.lend(buffer as usize * self.buffer_len, len) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completion_after_abandon_changes_nothing() {
        let mut read_buffers = ReadBuffers {
            buffers: None,
            buffer_len: 64,
            under_way: VecDeque::new(),
            done: 0,
            taken: 0,
            reads: 0,
            writes: 0,
            depth: 4,
            next_buffer: 0,
        };
        for tag in 0..4 {
            let kind = Kind::Write;
            read_buffers.began(Operation { tag, kind });
        }
        let why = StreamEnd::Broken { status: 0 };
        assert_eq!(read_buffers.take(None), None);
        read_buffers.operation_done();
        assert_eq!(
            read_buffers.take(Some(why)),
            Some(Completed::Written { tag: 0 })
        );
        let failed = |tag| Some(Completed::Failed { tag, why });
        assert_eq!(read_buffers.take(Some(why)), failed(1));
        // A completion before the queue reports that the connection ended.
        read_buffers.operation_done();
        assert_eq!(read_buffers.take(Some(why)), failed(2));
        assert_eq!(
            (read_buffers.writes, read_buffers.take(Some(why))),
            (1, failed(3))
        );
        assert_eq!(
            (read_buffers.writes, read_buffers.take(Some(why))),
            (0, None)
        );
    }
}
