//! AF_XDP sockets and the rings that they share with the kernel.

mod ring;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::net::sockopt::{
    set_xdp_rx_ring_size, set_xdp_umem_completion_ring_size, set_xdp_umem_fill_ring_size,
    set_xdp_umem_reg, socket_error, xdp_mmap_offsets, xdp_options, xdp_statistics,
};
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, SocketAddrXdpWithSharedUmem, XDP_PGOFF_RX_RING,
    XDP_UMEM_PGOFF_FILL_RING, XdpOptionsFlags, XdpUmemReg, XdpUmemRegFlags,
};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};
use tickcast_reliability::ring::RingMemory;

pub(crate) use ring::{Descriptor, FillRing, ReceiveRing};

/// A socket must have completions for sends, even if it sends nothing.
const COMPLETIONS: u32 = 2;

/// Where the kernel writes frames: all of one memory, and the room before each frame.
pub(crate) struct Frames<'a> {
    pub(crate) memory: &'a dyn RingMemory,
    pub(crate) frame_len: usize,
    pub(crate) headroom: usize,
}

/// One AF_XDP socket.
#[derive(Debug)]
pub(crate) struct XskSocket(OwnedFd);

impl XskSocket {
    /// Opens a socket without memory, rings and address.
    pub(crate) fn open() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::XDP, SocketType::RAW, flags, None)?;
        Ok(Self(socket))
    }

    /// Registers the memory of frames, and returns the ring that hands frames to the kernel. The memory must
    /// outlive the socket, because the kernel writes to it.
    pub(crate) fn register(&self, frames: &Frames<'_>, fill_len: u32) -> io::Result<FillRing> {
        let registration = XdpUmemReg {
            addr: frames.memory.as_ptr().expose_provenance() as u64,
            len: frames.memory.len() as u64,
            chunk_size: frames.frame_len as u32,
            headroom: frames.headroom as u32,
            flags: XdpUmemRegFlags::empty(),
            tx_metadata_len: 0,
        };
        set_xdp_umem_reg(&self.0, registration)?;
        set_xdp_umem_fill_ring_size(&self.0, fill_len)?;
        set_xdp_umem_completion_ring_size(&self.0, COMPLETIONS)?;
        let offsets = xdp_mmap_offsets(&self.0)?;
        FillRing::map(
            self.0.as_fd(),
            XDP_UMEM_PGOFF_FILL_RING,
            offsets.fr,
            fill_len,
        )
    }

    /// Creates the ring of received frames.
    pub(crate) fn receive_into(&self, len: u32) -> io::Result<ReceiveRing> {
        set_xdp_rx_ring_size(&self.0, len)?;
        let offsets = xdp_mmap_offsets(&self.0)?;
        ReceiveRing::map(self.0.as_fd(), XDP_PGOFF_RX_RING, offsets.rx, len)
    }

    /// Binds to a receive queue, with memory of its own. The kernel grants zero-copy mode if the driver can.
    pub(crate) fn bind(&self, interface: u32, queue: u32) -> io::Result<()> {
        let flags = SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP;
        bind(&self.0, &SocketAddrXdp::new(flags, interface, queue))?;
        Ok(())
    }

    /// Binds to a receive queue, with the memory and the mode of a socket that is bound to it.
    pub(crate) fn bind_beside(&self, interface: u32, queue: u32, owner: &Self) -> io::Result<()> {
        let flags = SocketAddrXdpFlags::XDP_SHARED_UMEM;
        let address = SocketAddrXdpWithSharedUmem {
            addr: SocketAddrXdp::new(flags, interface, queue),
            shared_umem_fd: owner.0.as_fd(),
        };
        bind(&self.0, &address)?;
        Ok(())
    }

    /// Returns whether the driver writes directly into the frames.
    pub(crate) fn is_zero_copy(&self) -> io::Result<bool> {
        Ok(xdp_options(&self.0)?.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY))
    }

    /// Returns the datagrams of this socket that the kernel dropped since it was opened, because no frame was
    /// free, its ring was full, or the datagram is longer than a frame.
    pub(crate) fn drops(&self) -> io::Result<u64> {
        let found = xdp_statistics(&self.0)?;
        let full = found.rx_ring_full.unwrap_or(0);
        Ok(found.rx_dropped.saturating_add(full))
    }

    /// Returns the error that ended the socket, if any.
    pub(crate) fn check(&self) -> io::Result<()> {
        socket_error(&self.0)??;
        Ok(())
    }

    /// Makes the driver look at the fill ring.
    pub(crate) fn wake(&self) {
        // The driver answers by datagrams. An error here says only that it is awake already.
        let _ = recv(&self.0, &mut [0u8; 0], RecvFlags::DONTWAIT);
    }
}

impl AsFd for XskSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for XskSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}
