//! Receives many datagrams in one system call, and runs of them in one buffer, without an allocation after
//! the start.
//!
//! With GRO the kernel delivers a run of one sender's datagrams as one buffer with the length of each (the
//! last may be shorter). [`Buffer::datagrams`] splits it in place.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::RawFd;

use super::BATCH_MAX;
use super::iovec::{Array, NO_IOVEC, no_header};

/// One cache line, the alignment of receive buffers.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct CacheLine([u8; 64]);

/// Length of the longest run, in bytes: one IPv4 packet.
const RUN_LEN_MAX: usize = 1 << 16;
/// Number of buffers of that length. A call that fills them all returns at least that many datagrams.
const RUN_BUFFERS_MAX: usize = 32;

/// Space for the control messages with the kernel's drop count and the segment length.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Control([u8; 64]);

// SAFETY: CMSG_SPACE only computes. Checked at compile time.
const _: () = assert!(2 * unsafe { libc::CMSG_SPACE(4) } as usize <= size_of::<Control>());

/// Buffers for incoming datagrams, one for each datagram or run.
pub(super) struct ReceiveBatch {
    buffers: Array<CacheLine>,
    /// Length of a buffer, in cache lines.
    stride: usize,
    buffer_len: usize,
    names: Array<libc::sockaddr_in>,
    /// Keeps the memory that the headers point at.
    _controls: Array<Control>,
    /// Keeps the memory that the headers point at.
    _iovecs: Array<libc::iovec>,
    headers: Array<libc::mmsghdr>,
    /// Number of headers that the last call may have changed.
    used: usize,
    /// Largest number of datagrams that a call should return.
    batch: usize,
    /// Number of buffers that the next call may fill.
    asked: usize,
}

// SAFETY: the addresses inside are of the struct's own arrays, which move with it. Exercised by
// tests/local/udp.rs `udp_fan_out_can_move_to_another_thread`.
unsafe impl Send for ReceiveBatch {}

/// The contents of one buffer.
pub(super) struct Buffer<'a> {
    bytes: &'a [u8],
    /// Length of each datagram but the last, if it is a run.
    segment: Option<usize>,
    pub(super) from: Ipv4Addr,
    /// Whether the datagram was longer than the buffer.
    pub(super) truncated: bool,
    /// The socket's drop count when the datagram was queued, modulo 2^32. `None` while it is 0.
    pub(super) drops: Option<u32>,
}

impl<'a> Buffer<'a> {
    /// Returns the number of datagrams, at least one.
    pub(super) fn len(&self) -> usize {
        let segment = self.segment.unwrap_or(self.bytes.len());
        self.bytes.len().div_ceil(segment.max(1)).max(1)
    }

    /// Returns the datagrams, in order.
    pub(super) fn datagrams(&self) -> impl Iterator<Item = &'a [u8]> {
        let segment = self.segment.unwrap_or(self.bytes.len()).max(1);
        let mut left = Some(self.bytes);
        std::iter::from_fn(move || {
            let bytes = left?;
            let (datagram, rest) = bytes.split_at(segment.min(bytes.len()));
            left = (!rest.is_empty()).then_some(rest);
            Some(datagram)
        })
    }
}

impl ReceiveBatch {
    /// Allocates buffers for `batch` datagrams of `datagram_len_max` bytes per call, or for runs.
    pub(super) fn new(batch: usize, datagram_len_max: usize, runs: bool) -> Self {
        let batch = batch.clamp(1, BATCH_MAX);
        let (count, buffer_len) = if runs {
            (batch.min(RUN_BUFFERS_MAX), RUN_LEN_MAX)
        } else {
            (batch, datagram_len_max)
        };
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
            batch,
            asked: count,
        }
    }

    /// Receives at most one batch of what has arrived. Returns how many buffers were filled.
    pub(super) fn receive(&mut self, fd: RawFd) -> io::Result<usize> {
        let headers = self.headers.as_mut_slice();
        for header in &mut headers[..self.used] {
            header.msg_hdr.msg_namelen = size_of::<libc::sockaddr_in>() as libc::socklen_t;
            header.msg_hdr.msg_controllen = size_of::<Control>() as _;
            header.msg_hdr.msg_flags = 0;
        }
        self.used = 0;
        if let (1, [header, ..]) = (self.asked, &mut *headers) {
            // SAFETY: as below, of one header. Exercised by tests/local/udp.rs
            // `datagrams_arrive_in_the_order_they_were_posted`.
            let len = unsafe { libc::recvmsg(fd, &raw mut header.msg_hdr, libc::MSG_DONTWAIT) };
            self.used = 1;
            header.msg_len = u32::try_from(len).map_err(|_| io::Error::last_os_error())?;
            return Ok(1);
        }
        // SAFETY: every header names buffers of this struct with their true lengths, none of which
        // is borrowed while `self` is borrowed mutably. Exercised by tests/local/udp.rs
        // `datagrams_arrive_in_the_order_they_were_posted`.
        let received = unsafe {
            libc::recvmmsg(
                fd,
                headers.as_mut_ptr(),
                self.asked as libc::c_uint,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut(),
            )
        };
        let received = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
        // The kernel stops at the first header that it can't fill, and may have changed that one.
        self.used = (received + 1).min(headers.len());
        Ok(received)
    }

    /// Sets the number of buffers for the next call: as many as were filled, or twice as many if all were.
    /// Requesting a buffer that stays empty would delay the filled ones. The number is also limited to
    /// about one batch of datagrams, so that received bytes are still in the cache when they are read. After
    /// an empty call one buffer is requested, because the next datagram usually arrives alone. Returns
    /// whether all requested buffers were filled, so that more may be there.
    pub(super) fn brought(&mut self, buffers: usize, datagrams: usize) -> bool {
        let all = buffers == self.asked;
        let next = if all { 2 * buffers } else { buffers };
        let one_batch = self.batch * buffers / datagrams.max(1);
        self.asked = next.min(one_batch).clamp(1, self.headers.len());
        all
    }

    /// Returns the number of datagrams per poll. A run at the end may exceed it.
    pub(super) const fn batch(&self) -> usize {
        self.batch
    }

    /// Returns buffer `i` of the last call; `i` is below the number that call returned.
    pub(super) fn buffer(&self, i: usize) -> Buffer<'_> {
        let header = &self.headers.as_slice()[i];
        let len = (header.msg_len as usize).min(self.buffer_len);
        // SAFETY: the buffers are initialised memory of `CacheLine`s, which are bytes without
        // padding; buffer `i` has `stride` of them, at least `len` bytes. Exercised by
        // tests/local/udp.rs `oversize_udp_datagram_is_dropped_and_counted`.
        let bytes = unsafe {
            std::slice::from_raw_parts(self.buffers.at(i * self.stride).cast::<u8>(), len)
        };
        let (drops, segment) = control_messages(&header.msg_hdr);
        Buffer {
            bytes,
            segment,
            from: Ipv4Addr::from(u32::from_be(self.names.as_slice()[i].sin_addr.s_addr)),
            truncated: header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
            drops,
        }
    }
}

/// Space for a datagram whose address is not aligned to 8. Its run was cut into segments of another
/// length than our senders use: these are multiples of 64.
pub(super) struct Aside(Box<[u8]>);

impl Aside {
    const ALIGN: usize = 8;

    /// Allocates space for `len_max` bytes.
    pub(super) fn new(len_max: usize) -> Self {
        Self(vec![0; len_max + Self::ALIGN].into_boxed_slice())
    }

    /// Returns the bytes in place if they are aligned, else an aligned copy.
    #[inline]
    pub(super) fn aligned<'a>(&'a mut self, bytes: &'a [u8]) -> &'a [u8] {
        if bytes.as_ptr().addr().is_multiple_of(Self::ALIGN) {
            return bytes;
        }
        let at = self.0.as_ptr().addr().next_multiple_of(Self::ALIGN) - self.0.as_ptr().addr();
        let copy = &mut self.0[at..at + bytes.len()];
        copy.copy_from_slice(bytes);
        copy
    }
}

/// Returns the socket's drop count and the segment length, if the kernel reports them.
fn control_messages(header: &libc::msghdr) -> (Option<u32>, Option<usize>) {
    let (mut drops, mut segment) = (None, None);
    // SAFETY: the kernel filled `msg_control` up to `msg_controllen`, both of our own batch, and
    // the CMSG functions stay within it; the values, 32 bits each, are read unaligned. Exercised by
    // tests/local/udp.rs `kernel_receive_buffer_drops_are_counted` and
    // `runs_arrive_as_the_datagrams_that_were_posted`.
    unsafe {
        let mut at = libc::CMSG_FIRSTHDR(header);
        while let Some(message) = at.as_ref() {
            let value = libc::CMSG_DATA(at).cast::<u32>();
            match (message.cmsg_level, message.cmsg_type) {
                (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => drops = Some(value.read_unaligned()),
                (libc::SOL_UDP, libc::UDP_GRO) => segment = Some(value.read_unaligned() as usize),
                _ => {}
            }
            at = libc::CMSG_NXTHDR(header, at);
        }
    }
    (drops, segment)
}

const NO_NAME: libc::sockaddr_in = libc::sockaddr_in {
    sin_family: 0,
    sin_port: 0,
    sin_addr: libc::in_addr { s_addr: 0 },
    sin_zero: [0; 8],
};

#[cfg(test)]
mod tests {
    use super::*;

    fn taken_apart(bytes: &[u8], segment: Option<usize>) -> Vec<&[u8]> {
        let buffer = Buffer {
            bytes,
            segment,
            from: Ipv4Addr::LOCALHOST,
            truncated: false,
            drops: None,
        };
        let datagrams: Vec<_> = buffer.datagrams().collect();
        assert_eq!(datagrams.len(), buffer.len());
        datagrams
    }

    #[test]
    fn gro_buffer_is_split_into_datagrams() {
        assert_eq!(taken_apart(b"", None), [b""], "an empty one is one too");
        assert_eq!(taken_apart(b"abc", None), [b"abc"]);
        assert_eq!(
            taken_apart(b"abcdefg", Some(3)),
            [&b"abc"[..], b"def", b"g"]
        );
        assert_eq!(taken_apart(b"abcdef", Some(3)), [b"abc", b"def"]);
        assert_eq!(taken_apart(b"ab", Some(3)), [b"ab"]);
        assert_eq!(taken_apart(b"ab", Some(0)), [b"a", b"b"], "never for ever");
    }

    #[test]
    fn unaligned_datagram_is_copied_to_aligned_buffer() {
        let mut aside = Aside::new(24);
        let bytes: Vec<u8> = (0..40).collect();
        let at = bytes.as_ptr().addr().next_multiple_of(8) - bytes.as_ptr().addr();
        let aligned = aside.aligned(&bytes[at..at + 24]);
        assert_eq!(aligned.as_ptr(), bytes[at..].as_ptr(), "where it was");
        for off in 1..8 {
            let odd = &bytes[at + off..at + off + 24];
            let copy = aside.aligned(odd);
            assert!(copy.as_ptr().addr().is_multiple_of(8));
            assert_eq!(copy, odd);
        }
    }

    #[test]
    fn receive_call_asks_for_backlog_up_to_one_batch() {
        let mut batch = ReceiveBatch::new(64, 1472, true);
        let mut asked = |buffers, datagrams| {
            let all = buffers == batch.asked;
            assert_eq!(batch.brought(buffers, datagrams), all);
            batch.asked
        };
        assert_eq!(asked(1, 44), 1);
        assert_eq!(asked(1, 1), 2, "there may be more");
        assert_eq!(asked(2, 2), 4);
        assert_eq!(asked(4, 4), 8);
        assert_eq!(asked(8, 32), 16);
        assert_eq!(asked(16, 64), 16, "a batch, in as many buffers");
        assert_eq!(asked(16, 16), 32, "as many as there are");
        assert_eq!(asked(2, 2), 2, "there was no more");
        assert_eq!(asked(1, 1), 1);
        assert_eq!(asked(1, 200), 1);
        assert_eq!(asked(0, 0), 1);
        let mut plain = ReceiveBatch::new(64, 1472, false);
        plain.brought(64, 64);
        assert_eq!(plain.asked, 64);
    }
}
