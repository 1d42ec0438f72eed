//! Many datagrams in one system call, without an allocation after the start.
//!
//! The arrays that `sendmmsg` and `recvmmsg` want are made once and hold addresses of each other.
//! Addresses of slots are written before a call and not used after it.

use std::io;
use std::mem;
use std::net::Ipv4Addr;
use std::os::fd::RawFd;

/// How many datagrams one system call carries at most.
pub const BATCH_MAX: usize = 64;

/// An array that the kernel is given the address of: never moved or resized, and reached through
/// its address alone, so that what the kernel writes is seen.
struct Array<T>(*mut [T]);

impl<T: Copy> Array<T> {
    fn new(value: T, count: usize) -> Self {
        Self(Box::into_raw(vec![value; count].into_boxed_slice()))
    }

    const fn len(&self) -> usize {
        self.0.len()
    }

    fn at(&self, i: usize) -> *mut T {
        assert!(i < self.len());
        self.0.cast::<T>().wrapping_add(i)
    }

    const fn as_slice(&self) -> &[T] {
        // SAFETY: `new` made it from a box that only `drop` takes back; the kernel writes only
        // within calls that hold the owner mutably. Exercised by every test in tests/udp.rs.
        unsafe { &*self.0 }
    }

    const fn as_mut_slice(&mut self) -> &mut [T] {
        // SAFETY: as above, and `self` is borrowed mutably.
        unsafe { &mut *self.0 }
    }
}

impl<T> Drop for Array<T> {
    fn drop(&mut self) {
        // SAFETY: `new` made it from a box, and nothing else frees it. Exercised by every test in
        // tests/udp.rs.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

/// Outgoing datagrams, gathered from where they lie.
pub(super) struct SendBatch {
    iovecs: Array<libc::iovec>,
    headers: Array<libc::mmsghdr>,
    len: usize,
}

// SAFETY: the addresses inside are of the struct's own arrays, which move with it, or of slots
// that are used only while a `Gathered` borrows them. Exercised by
// tests/udp.rs `a_fan_out_may_move_to_another_thread`.
unsafe impl Send for SendBatch {}

impl SendBatch {
    pub(super) fn new() -> Self {
        let iovecs = Array::new(NO_IOVEC, BATCH_MAX);
        let mut headers = Array::new(no_header(), BATCH_MAX);
        for (i, header) in headers.as_mut_slice().iter_mut().enumerate() {
            header.msg_hdr.msg_iov = iovecs.at(i);
            header.msg_hdr.msg_iovlen = 1;
        }
        Self {
            iovecs,
            headers,
            len: 0,
        }
    }

    /// Borrows the datagrams for as long as the returned value lives; at most [`BATCH_MAX`] are
    /// taken.
    pub(super) fn gather<'a>(
        &'a mut self,
        datagrams: impl Iterator<Item = &'a [u8]>,
    ) -> Gathered<'a> {
        self.len = 0;
        for (iovec, bytes) in self.iovecs.as_mut_slice().iter_mut().zip(datagrams) {
            // The kernel only reads what a send's iovec points at.
            iovec.iov_base = bytes.as_ptr().cast_mut().cast();
            iovec.iov_len = bytes.len();
            self.len += 1;
        }
        Gathered { batch: self }
    }
}

/// A filled batch; it can be sent on several sockets.
pub(super) struct Gathered<'a> {
    batch: &'a mut SendBatch,
}

impl Gathered<'_> {
    pub(super) const fn len(&self) -> usize {
        self.batch.len
    }

    pub(super) fn bytes(&self, from: usize, count: usize) -> u64 {
        let sent = self.batch.iovecs.as_slice()[..self.batch.len].iter();
        sent.skip(from).take(count).map(|v| v.iov_len as u64).sum()
    }

    /// Sends from the datagram at `from` on; how many the kernel took.
    pub(super) fn send(&mut self, fd: RawFd, from: usize) -> io::Result<usize> {
        let headers = &mut self.batch.headers.as_mut_slice()[from..self.batch.len];
        // SAFETY: each header names one iovec of `self.batch.iovecs`, and each of these a slice
        // that the lifetime of `self` keeps borrowed; the kernel reads them and writes `msg_len`
        // of the headers passed. Exercised by tests/udp.rs
        // `datagrams_arrive_in_the_order_they_were_posted`.
        let sent = unsafe {
            libc::sendmmsg(
                fd,
                headers.as_mut_ptr(),
                headers.len() as libc::c_uint,
                libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
            )
        };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }
}

/// One cache line: receive buffers begin on one.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct CacheLine([u8; 64]);

/// Room for one control message with the kernel's drop count.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Control([u8; 64]);

// SAFETY: CMSG_SPACE only computes. Checked at compile time.
const _: () = assert!(unsafe { libc::CMSG_SPACE(4) } as usize <= size_of::<Control>());

/// Incoming datagrams, each in a buffer of its own.
pub(super) struct ReceiveBatch {
    buffers: Array<CacheLine>,
    /// Cache lines of one buffer.
    stride: usize,
    buffer_len: usize,
    names: Array<libc::sockaddr_in>,
    /// Held for the headers, which have its addresses.
    _controls: Array<Control>,
    /// Likewise.
    _iovecs: Array<libc::iovec>,
    headers: Array<libc::mmsghdr>,
    /// How many headers the last call may have changed.
    used: usize,
}

// SAFETY: the addresses inside are of the struct's own arrays, which move with it. Exercised by
// tests/udp.rs `a_fan_out_may_move_to_another_thread`.
unsafe impl Send for ReceiveBatch {}

/// What arrived in one buffer.
pub(super) struct Arrived<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) from: Ipv4Addr,
    /// The datagram was longer than the buffer.
    pub(super) truncated: bool,
    /// The socket's drop count when it was queued, modulo 2^32; `None` while it is 0.
    pub(super) drops: Option<u32>,
}

impl ReceiveBatch {
    /// `count` buffers of `buffer_len` bytes.
    pub(super) fn new(count: usize, buffer_len: usize) -> Self {
        let count = count.clamp(1, BATCH_MAX);
        let stride = buffer_len.div_ceil(size_of::<CacheLine>());
        let buffers = Array::new(CacheLine([0; 64]), stride * count);
        let names = Array::new(NO_NAME, count);
        let controls = Array::new(Control([0; 64]), count);
        let mut iovecs = Array::new(NO_IOVEC, count);
        for (i, iovec) in iovecs.as_mut_slice().iter_mut().enumerate() {
            iovec.iov_base = buffers.at(i * stride).cast();
            iovec.iov_len = buffer_len;
        }
        let mut headers = Array::new(no_header(), count);
        for (i, header) in headers.as_mut_slice().iter_mut().enumerate() {
            header.msg_hdr.msg_iov = iovecs.at(i);
            header.msg_hdr.msg_iovlen = 1;
            header.msg_hdr.msg_name = names.at(i).cast();
            header.msg_hdr.msg_control = controls.at(i).cast();
        }
        Self {
            buffers,
            stride,
            buffer_len,
            names,
            _controls: controls,
            _iovecs: iovecs,
            headers,
            used: count,
        }
    }

    /// Receives what is there, at most one batch; how many datagrams.
    pub(super) fn receive(&mut self, fd: RawFd) -> io::Result<usize> {
        let headers = self.headers.as_mut_slice();
        for header in &mut headers[..self.used] {
            header.msg_hdr.msg_namelen = size_of::<libc::sockaddr_in>() as libc::socklen_t;
            header.msg_hdr.msg_controllen = size_of::<Control>() as _;
            header.msg_hdr.msg_flags = 0;
        }
        self.used = 0;
        // SAFETY: every header names buffers of this struct with their true lengths, none of which
        // is borrowed while `self` is borrowed mutably. Exercised by tests/udp.rs
        // `datagrams_arrive_in_the_order_they_were_posted`.
        let received = unsafe {
            libc::recvmmsg(
                fd,
                headers.as_mut_ptr(),
                headers.len() as libc::c_uint,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut(),
            )
        };
        let received = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
        // The kernel stops at the first header it can't fill, having perhaps touched that one.
        self.used = (received + 1).min(headers.len());
        Ok(received)
    }

    /// The datagram in buffer `i` of the last call, `i` below what that call returned.
    pub(super) fn arrived(&self, i: usize) -> Arrived<'_> {
        let header = &self.headers.as_slice()[i];
        let len = (header.msg_len as usize).min(self.buffer_len);
        // SAFETY: the buffers are initialised memory of `CacheLine`s, which are bytes without
        // padding; buffer `i` has `stride` of them, at least `len` bytes. Exercised by
        // tests/udp.rs `a_datagram_longer_than_the_buffers_is_dropped_and_counted`.
        let bytes = unsafe {
            std::slice::from_raw_parts(self.buffers.at(i * self.stride).cast::<u8>(), len)
        };
        Arrived {
            bytes,
            from: Ipv4Addr::from(u32::from_be(self.names.as_slice()[i].sin_addr.s_addr)),
            truncated: header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
            drops: drop_count(&header.msg_hdr),
        }
    }
}

fn drop_count(header: &libc::msghdr) -> Option<u32> {
    // SAFETY: the kernel filled `msg_control` up to `msg_controllen`, both of our own batch, and
    // the CMSG functions stay within it; the value is read unaligned. Exercised by tests/udp.rs
    // `the_kernels_drops_are_counted_when_the_buffer_is_tiny`.
    unsafe {
        let mut at = libc::CMSG_FIRSTHDR(header);
        while let Some(message) = at.as_ref() {
            if message.cmsg_level == libc::SOL_SOCKET && message.cmsg_type == libc::SO_RXQ_OVFL {
                return Some(libc::CMSG_DATA(at).cast::<u32>().read_unaligned());
            }
            at = libc::CMSG_NXTHDR(header, at);
        }
    }
    None
}

const NO_IOVEC: libc::iovec = libc::iovec {
    iov_base: std::ptr::null_mut(),
    iov_len: 0,
};

const NO_NAME: libc::sockaddr_in = libc::sockaddr_in {
    sin_family: 0,
    sin_port: 0,
    sin_addr: libc::in_addr { s_addr: 0 },
    sin_zero: [0; 8],
};

/// A header of nothing. On some platforms it has private padding, so it can't be written out.
const fn no_header() -> libc::mmsghdr {
    // SAFETY: null pointers and zero lengths are a value of every field. Exercised by every test
    // in tests/udp.rs.
    unsafe { mem::zeroed() }
}
