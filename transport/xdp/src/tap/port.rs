//! A line's end of one receive queue: its socket, its ring, and the frames that it has not given back yet.

use std::io;

use super::queue::Queue;
use crate::socket::{ReceiveRing, XskSocket};

/// The outcome of one [`Port::take`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Taken {
    /// Frames that arrived.
    pub(crate) frames: usize,
    /// Frames of these that the kernel described wrongly.
    pub(crate) invalid: usize,
    /// Whether datagrams may have been dropped since the last call, because the ring was full.
    pub(crate) was_full: bool,
}

/// A line's socket at one receive queue.
#[derive(Debug)]
pub(crate) struct Port {
    socket: XskSocket,
    ring: ReceiveRing,
    /// Taken frames that are not in the fill ring yet. It has room for all frames of the queue.
    taken: Vec<u64>,
    /// The kernel's count of drops, as last read.
    drops: u64,
}

impl Port {
    pub(super) fn new(socket: XskSocket, ring: ReceiveRing, queue: &Queue) -> Self {
        Self {
            socket,
            ring,
            taken: Vec::with_capacity(queue.frames() as usize),
            drops: 0,
        }
    }

    /// Passes at most `max` arrived frames to `on`, then gives them back.
    #[inline]
    pub(crate) fn take(&mut self, queue: &Queue, max: usize, mut on: impl FnMut(&[u8])) -> Taken {
        let mut all = Taken::default();
        while all.frames < max {
            let Some(descriptor) = self.ring.take() else {
                break;
            };
            all.frames += 1;
            let (frame, bytes) = queue.frame(descriptor);
            // Before the call, so that a panic in it loses no frame. A frame comes back at most once, because
            // the kernel hands each to one ring.
            self.taken.extend(frame);
            match bytes {
                Some(bytes) => on(bytes),
                None => all.invalid += 1,
            }
        }
        if all.frames > 0 {
            all.was_full = self.ring.release();
        }
        if !self.taken.is_empty() {
            queue.put(&mut self.taken);
        }
        queue.wake_if_asked();
        all
    }

    /// Gives back all frames that have arrived. The caller made sure that no more arrive.
    pub(super) fn drain(&mut self, queue: &Queue) {
        while self.take(queue, queue.frames() as usize, |_| ()).frames > 0 {}
        while !self.taken.is_empty() && !queue.put(&mut self.taken) {
            std::thread::yield_now();
        }
    }

    /// Returns the datagrams that the kernel dropped since the last call.
    pub(crate) fn take_drops(&mut self) -> io::Result<u64> {
        let drops = self.socket.drops()?;
        let new = drops.saturating_sub(self.drops);
        self.drops = drops;
        Ok(new)
    }

    /// Returns the error that ended the socket, if any.
    pub(crate) fn check(&self) -> io::Result<()> {
        self.socket.check()
    }

    /// Returns the socket.
    pub(crate) const fn socket(&self) -> &XskSocket {
        &self.socket
    }

    /// Returns the frames that wait in the ring, and those taken and not given back.
    pub(crate) fn holds(&self) -> (u32, usize) {
        (self.ring.waiting(), self.taken.len())
    }
}
