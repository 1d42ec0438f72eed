//! A group's place at a tap: a slot of its maps, and a port for each receive queue.

use std::io;
use std::net::SocketAddrV4;
use std::os::fd::AsFd;

use super::port::Port;
use super::queue::Queue;
use super::{SharedTap, Tap};
use crate::error::XdpError;

/// A group's ports at an interface. Dropping it gives all frames back.
#[derive(Debug)]
pub(crate) struct Lease {
    tap: SharedTap,
    group: SocketAddrV4,
    slot: u32,
    /// Frames per queue that may wait.
    frames: u32,
    ports: Vec<Port>,
}

impl Lease {
    /// Opens ports with rings of at most `frames` frames. No datagram arrives before [`steer`](Self::steer).
    ///
    /// # Errors
    /// - [`XdpError::GroupTaken`] if the tap has a lease of the group
    /// - [`XdpError::Full`] without a free slot, or without frames
    /// - otherwise the failed step
    pub(crate) fn open(tap: SharedTap, group: SocketAddrV4, frames: u32) -> Result<Self, XdpError> {
        let (slot, frames) = tap.reserve(group, frames)?;
        // From here on, dropping the lease frees the slot.
        let mut lease = Self {
            tap,
            group,
            slot,
            frames,
            ports: Vec::new(),
        };
        let tap = &*lease.tap;
        let failed = |what, source| XdpError::of(tap.name(), what, source);
        for queue in tap.queues() {
            let (socket, ring) = queue
                .open_beside(tap.index(), frames)
                .map_err(|(what, source)| failed(what, source))?;
            let set = tap
                .steering()
                .set_socket(slot, queue.number(), socket.as_fd());
            set.map_err(|source| failed("set a socket", source))?;
            lease.ports.push(Port::new(socket, ring, queue));
        }
        Ok(lease)
    }

    /// Steers the group's datagrams to the ports.
    pub(crate) fn steer(&self) -> io::Result<()> {
        self.tap.steering().insert(self.group, self.slot)
    }

    /// Passes the group's datagrams to the kernel. Those that arrived already stay in the ports.
    pub(crate) fn unsteer(&self) -> io::Result<()> {
        self.tap.steering().remove(self.group)
    }

    /// Returns the tap.
    pub(crate) fn tap(&self) -> &Tap {
        &self.tap
    }

    /// Returns the frames per queue that may wait.
    pub(crate) const fn frames(&self) -> u32 {
        self.frames
    }

    /// Returns the ports, one per queue.
    pub(crate) fn ports(&self) -> &[Port] {
        &self.ports
    }

    /// Returns each port with its queue.
    #[inline]
    pub(crate) fn ports_mut(&mut self) -> (&mut [Port], &[Queue]) {
        (&mut self.ports, self.tap.queues())
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // If this fails, the program redirects to the sockets until they are closed below.
        let _ = self.tap.steering().remove(self.group);
        wait_for_programs();
        for (port, queue) in self.ports.iter_mut().zip(self.tap.queues()) {
            port.drain(queue);
        }
        // The sockets are closed before the slot is free, because its next owner sets others.
        self.ports.clear();
        self.tap.free(self.slot);
    }
}

/// Returns once every program that read the maps before has ended, so that its frame is in a ring. Without
/// this, the frame of a running program is lost with the socket.
fn wait_for_programs() {
    /// `linux/membarrier.h`: waits for a grace period of the kernel.
    const GLOBAL: libc::c_int = 1;
    // SAFETY: the call takes numbers only, and changes nothing of this process. Exercised by
    // tests/veth/frames.rs `frames_of_a_closed_line_come_back`.
    let result = unsafe { libc::syscall(libc::SYS_membarrier, GLOBAL, 0, 0) };
    if result != 0 {
        // A kernel with isolated cores may refuse. A program runs for microseconds.
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}
