//! An interface as this process taps it: the program, and the frames and sockets of each receive queue.

mod lease;
mod port;
mod queue;
mod registry;

use std::net::SocketAddrV4;
use std::os::unix::fs::MetadataExt;
use std::sync::{Mutex, PoisonError};

pub(crate) use lease::Lease;
pub(crate) use registry::SharedTap;

use queue::{Queue, frame_len_for, room};

use crate::config::{BATCH_MAX, FRAMES_MAX, FRAMES_MIN};
use crate::error::{XdpError, XdpWarning};
use crate::frame::HEADERS_LEN;
use crate::steering::{Attached, Steering, XdpMode};
use tickcast_transport_base::host::interface::ResolvedInterface;
use tickcast_transport_base::host::nic_queues::receive_queues;

/// Length of the headers that an MTU includes, in bytes: IP and UDP.
const MTU_HEADERS_LEN: usize = 28;
/// Most lines of an interface.
const LINES_MAX: usize = 256;
/// A line gets at most this part of the frames that are free, so that later ones find some.
const SHARE: u32 = 4;

/// The lines of a tap, and the frames that their rings may hold.
#[derive(Debug, Default)]
struct Book {
    lines: Vec<Option<(SocketAddrV4, u32)>>,
    promised: u32,
}

/// A tapped interface.
#[derive(Debug)]
pub(crate) struct Tap {
    /// First, so that the program is detached before its sockets are closed.
    attached: Attached,
    steering: Steering,
    queues: Vec<Queue>,
    interface: ResolvedInterface,
    frame_len: usize,
    book: Mutex<Book>,
}

impl Tap {
    /// Returns this process's tap of an interface, and opens it if there is none. It receives datagrams of
    /// `datagram_len` bytes. A new tap has `memory_bytes` of frames per receive queue.
    ///
    /// # Errors
    /// [`XdpError`] names the interface and the remedy.
    pub(crate) fn of(
        interface: &ResolvedInterface,
        datagram_len: usize,
        memory_bytes: usize,
    ) -> Result<SharedTap, XdpError> {
        let name = &interface.name;
        if interface.address.is_loopback() {
            let interface = name.clone();
            return Err(XdpError::Loopback { interface });
        }
        if let Some(mtu) = interface
            .mtu
            .filter(|it| datagram_len + MTU_HEADERS_LEN > *it)
        {
            return Err(XdpError::Mtu {
                interface: name.clone(),
                datagram_len,
                mtu,
                fits: mtu.saturating_sub(MTU_HEADERS_LEN),
            });
        }
        let io = |what| move |source| XdpError::of(name, what, source);
        // A thread may be in another namespace than its process.
        let namespace = std::fs::metadata("/proc/thread-self/ns/net");
        let namespace = namespace.map_err(io("identify the network namespace"))?;
        let key = (namespace.ino(), interface.index);
        let tap = SharedTap::find(key, || Self::open(interface, datagram_len, memory_bytes))?;
        let fits = room(tap.frame_len) - HEADERS_LEN;
        if datagram_len > fits {
            return Err(XdpError::TooLong {
                interface: name.clone(),
                datagram_len,
                fits,
            });
        }
        Ok(tap)
    }

    fn open(
        interface: &ResolvedInterface,
        datagram_len: usize,
        memory_bytes: usize,
    ) -> Result<Self, XdpError> {
        let name = &interface.name;
        let io = |what| move |source| XdpError::of(name, what, source);
        let count = receive_queues(name).map_err(io("count the receive queues"))?;
        // Any frame that the network carries fits, if one can, so that later lines find room.
        let longest = datagram_len.max(interface.mtu.unwrap_or(0).saturating_sub(MTU_HEADERS_LEN));
        let frame_len = frame_len_for(longest + HEADERS_LEN);
        let frames = u32::try_from(memory_bytes / frame_len).unwrap_or(FRAMES_MAX);
        let frames = frames.clamp(4 * FRAMES_MIN, FRAMES_MAX);
        let steering = Steering::load(count, LINES_MAX as u32).map_err(io("load the program"))?;
        let attached = steering
            .attach(interface.index)
            .map_err(io("attach the program"))?;
        let mut queues = Vec::new();
        for number in 0..count {
            let queue = Queue::open(interface.index, number, (frames, frame_len));
            queues.push(queue.map_err(|(what, source)| match source.raw_os_error() {
                Some(libc::ENOBUFS | libc::ENOMEM) => XdpError::Memory {
                    interface: name.clone(),
                    bytes: frames as usize * frame_len,
                    source,
                },
                _ => XdpError::of(name, what, source),
            })?);
        }
        Ok(Self {
            attached,
            steering,
            queues,
            interface: interface.clone(),
            frame_len,
            book: Mutex::default(),
        })
    }

    /// Reserves a slot for a group, and at most `frames` frames of each queue. Returns both.
    fn reserve(&self, group: SocketAddrV4, frames: u32) -> Result<(u32, u32), XdpError> {
        let mut book = self.book.lock().unwrap_or_else(PoisonError::into_inner);
        let interface = || self.interface.name.clone();
        let mut taken = book.lines.iter().flatten();
        if taken.any(|(of, _)| *of == group) {
            return Err(XdpError::GroupTaken {
                interface: interface(),
                group,
            });
        }
        // Beside its ring, a line holds the frames that it takes at once and has not given back.
        let in_hand = 2 * BATCH_MAX as u32;
        let free = self.frames().saturating_sub(book.promised + in_hand);
        let share = (free / SHARE).max(FRAMES_MIN);
        let granted = frames.min(1 << share.ilog2());
        let slot = book.lines.iter().position(Option::is_none);
        let slot = slot.unwrap_or(book.lines.len());
        if slot >= LINES_MAX || granted > free {
            let lines = book.lines.iter().flatten().count();
            return Err(XdpError::Full {
                interface: interface(),
                lines,
            });
        }
        if slot == book.lines.len() {
            book.lines.push(None);
        }
        book.lines[slot] = Some((group, granted + in_hand));
        book.promised += granted + in_hand;
        Ok((slot as u32, granted))
    }

    /// Frees a slot, and the frames reserved with it.
    fn free(&self, slot: u32) {
        let mut book = self.book.lock().unwrap_or_else(PoisonError::into_inner);
        let line = book.lines.get_mut(slot as usize).and_then(Option::take);
        book.promised -= line.map_or(0, |(_, promised)| promised);
    }

    /// Returns what deviates from the best that a driver can do.
    pub(crate) fn warning(&self) -> Option<XdpWarning> {
        let refused = self.attached.refused.as_ref()?;
        Some(XdpWarning::Generic {
            interface: self.interface.name.clone(),
            reason: refused.to_string(),
        })
    }

    /// Returns the part of the kernel that runs the program.
    pub(crate) const fn mode(&self) -> XdpMode {
        self.attached.mode
    }

    /// Returns whether the driver of every queue writes directly into the frames.
    pub(crate) fn is_zero_copy(&self) -> bool {
        self.queues.iter().all(Queue::is_zero_copy)
    }

    /// Returns the frames of each queue.
    pub(crate) fn frames(&self) -> u32 {
        self.queues.first().map_or(0, Queue::frames)
    }

    /// Returns the length of a frame, in bytes.
    pub(crate) const fn frame_len(&self) -> usize {
        self.frame_len
    }

    /// Returns the receive queues.
    #[inline]
    pub(crate) fn queues(&self) -> &[Queue] {
        &self.queues
    }

    /// Returns the name of the interface.
    pub(crate) fn name(&self) -> &str {
        &self.interface.name
    }

    const fn index(&self) -> u32 {
        self.interface.index
    }

    const fn steering(&self) -> &Steering {
        &self.steering
    }
}
