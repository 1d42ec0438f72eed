//! One receive queue of an interface: the memory of its frames, and the ring that hands them to the kernel.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tickcast_reliability::ring::RingMemory;
use tickcast_transport_base::host::private_memory::PrivateMemory;

use crate::frame::HEADERS_LEN;
use crate::socket::{Descriptor, FillRing, Frames, ReceiveRing, XskSocket};

/// Room that the kernel keeps before each frame (`XDP_PACKET_HEADROOM`).
const KERNEL_HEADROOM: usize = 256;
/// Room of ours before each frame. With it, a datagram begins on a cache line.
const HEADROOM: usize = (64 - (KERNEL_HEADROOM + HEADERS_LEN) % 64) % 64;
/// The lengths that the kernel permits for frames.
const FRAME_LENS: [usize; 2] = [2048, 4096];
/// Attempts to bind, and the time between two. The kernel frees a closed queue on a thread of its own.
const BIND_ATTEMPTS: u32 = 1_000;
const BIND_INTERVAL: Duration = Duration::from_millis(5);

/// Returns the shortest frame that holds an Ethernet frame of `len` bytes, or else the longest.
pub(super) fn frame_len_for(len: usize) -> usize {
    let [short, long] = FRAME_LENS;
    if len <= room(short) { short } else { long }
}

/// Returns the bytes of an Ethernet frame that a frame of memory holds.
pub(super) const fn room(frame_len: usize) -> usize {
    frame_len - KERNEL_HEADROOM - HEADROOM
}

/// A receive queue. Its frames are in the fill ring, with the kernel, in the ring of a line, or in the hands
/// of a line's port.
#[derive(Debug)]
pub(crate) struct Queue {
    /// Owns the memory's registration. No group is steered to it.
    socket: XskSocket,
    /// Of the socket, which can't be bound without one.
    _receive: ReceiveRing,
    fill: FillRing,
    /// Whether a thread produces in `fill`.
    is_filling: AtomicBool,
    memory: PrivateMemory,
    frame_len: usize,
    frames: u32,
    number: u32,
    zero_copy: bool,
}

impl Queue {
    /// Opens a queue with this number of frames, and hands all of them to the kernel. Returns the failed step
    /// with its error.
    pub(super) fn open(
        interface: u32,
        number: u32,
        (frames, frame_len): (u32, usize),
    ) -> Result<Self, (&'static str, io::Error)> {
        let step = |what: &'static str| move |error| (what, error);
        let memory = PrivateMemory::new(frames as usize * frame_len)
            .map_err(step("allocate memory for frames"))?;
        let socket = XskSocket::open().map_err(step("open an AF_XDP socket"))?;
        let registered = Frames {
            memory: &memory,
            frame_len,
            headroom: HEADROOM,
        };
        let fill = (socket.register(&registered, frames.next_power_of_two()))
            .map_err(step("register memory for frames"))?;
        let receive = socket
            .receive_into(1)
            .map_err(step("create a ring of received frames"))?;
        let all: Vec<u64> = (0..u64::from(frames))
            .map(|n| n * frame_len as u64)
            .collect();
        fill.put(&all);
        bind_when_free(|| socket.bind(interface, number)).map_err(step("bind to a queue"))?;
        let zero_copy = socket
            .is_zero_copy()
            .map_err(step("read a socket's mode"))?;
        Ok(Self {
            socket,
            _receive: receive,
            fill,
            is_filling: AtomicBool::new(false),
            memory,
            frame_len,
            frames,
            number,
            zero_copy,
        })
    }

    /// Opens a socket with a ring of `len` frames that shares this queue's frames.
    pub(super) fn open_beside(
        &self,
        interface: u32,
        len: u32,
    ) -> Result<(XskSocket, ReceiveRing), (&'static str, io::Error)> {
        let step = |what: &'static str| move |error| (what, error);
        let socket = XskSocket::open().map_err(step("open an AF_XDP socket"))?;
        let ring = socket
            .receive_into(len)
            .map_err(step("create a ring of received frames"))?;
        let owner = &self.socket;
        bind_when_free(|| socket.bind_beside(interface, self.number, owner))
            .map_err(step("bind to a queue"))?;
        Ok((socket, ring))
    }

    /// Returns the place of a received frame, and its bytes. Returns `None` for what the kernel's description
    /// can't mean.
    #[inline]
    pub(super) fn frame(&self, descriptor: Descriptor) -> (Option<u64>, Option<&[u8]>) {
        let (frame, bytes) = places(descriptor, self.memory.len(), self.frame_len);
        let bytes = bytes.map(|(at, len)| {
            // SAFETY: `places` found the bytes within one frame of the memory. The kernel wrote them before
            // it produced the descriptor, and does not write again before the frame is back in the fill ring.
            // `Port::take` puts it there after its caller is done, which ends the borrow. Exercised by
            // tests/veth/receiving.rs `datagrams_arrive_once_in_order_and_whole`.
            unsafe { std::slice::from_raw_parts(self.memory.as_ptr().add(at), len) }
        });
        (frame, bytes)
    }

    /// Hands frames to the kernel and clears the list, unless another thread does so now. Returns whether it
    /// did.
    #[inline]
    pub(super) fn put(&self, frames: &mut Vec<u64>) -> bool {
        // locks: one attempt a poll, never one a datagram; a line that fails tries again at its next poll.
        let is_free =
            self.is_filling
                .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
        if is_free.is_err() {
            return false;
        }
        self.fill.put(frames);
        self.is_filling.store(false, Ordering::Release);
        frames.clear();
        true
    }

    /// Calls the driver if it asks for that.
    #[inline]
    pub(super) fn wake_if_asked(&self) {
        if self.fill.needs_wake_up() {
            self.socket.wake();
        }
    }

    /// Returns the number of frames.
    pub(crate) const fn frames(&self) -> u32 {
        self.frames
    }

    /// Returns the queue's number at the interface.
    pub(super) const fn number(&self) -> u32 {
        self.number
    }

    /// Returns whether the driver writes directly into the frames.
    pub(super) const fn is_zero_copy(&self) -> bool {
        self.zero_copy
    }

    /// Returns the frames that the kernel has not taken yet.
    pub(crate) fn filled(&self) -> Vec<u64> {
        self.fill.waiting()
    }
}

/// Binds, as soon as a predecessor's queue is freed. A queue of a living process stays busy.
fn bind_when_free(mut bind: impl FnMut() -> io::Result<()>) -> io::Result<()> {
    for _ in 1..BIND_ATTEMPTS {
        match bind() {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                std::thread::sleep(BIND_INTERVAL);
            }
            result => return result,
        }
    }
    bind()
}

/// Returns the place of a descriptor's frame in a memory of `memory_len` bytes, and place and length of its
/// bytes. Returns `None` for the frame if it lies outside, and for the bytes if they leave their frame or
/// continue in another.
#[inline]
fn places(
    descriptor: Descriptor,
    memory_len: usize,
    frame_len: usize,
) -> (Option<u64>, Option<(usize, usize)>) {
    let at = descriptor.at;
    let frame = at & !(frame_len as u64 - 1);
    if frame >= memory_len as u64 {
        return (None, None);
    }
    let is_within = at - frame + u64::from(descriptor.len) <= frame_len as u64;
    let is_whole = is_within && descriptor.options == 0;
    let bytes = is_whole.then_some((at as usize, descriptor.len as usize));
    (Some(frame), bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(at: u64, len: u32, options: u32) -> (Option<u64>, Option<(usize, usize)>) {
        places(Descriptor { at, len, options }, 4 * 2048, 2048)
    }

    #[test]
    fn descriptors_beyond_their_frame_are_refused() {
        assert_eq!(found(2048 + 278, 1500, 0), (Some(2048), Some((2326, 1500))));
        assert_eq!(found(2048, 2048, 0), (Some(2048), Some((2048, 2048))));
        assert_eq!(
            found(3 * 2048 + 2047, 1, 0),
            (Some(3 * 2048), Some((8191, 1)))
        );
        // Beyond the frame, though within the memory.
        assert_eq!(found(2048 + 278, 1771, 0), (Some(2048), None));
        assert_eq!(found(2048 + 278, u32::MAX, 0), (Some(2048), None));
        // Continues in another frame.
        assert_eq!(found(2048 + 278, 1500, 1), (Some(2048), None));
        // Beyond the memory.
        for at in [4 * 2048, u64::MAX, u64::MAX - 2047] {
            assert_eq!(found(at, 0, 0), (None, None));
        }
    }

    #[test]
    fn datagram_begins_on_a_cache_line_of_its_frame() {
        assert!((KERNEL_HEADROOM + HEADROOM + HEADERS_LEN).is_multiple_of(64));
        assert!(room(2048) >= 1514);
        assert_eq!(frame_len_for(1514), 2048);
        assert_eq!(frame_len_for(room(2048)), 2048);
        assert_eq!(frame_len_for(room(2048) + 1), 4096);
        assert_eq!(frame_len_for(9014), 4096);
    }
}
