//! Sends many datagrams in one system call, and runs of them as one buffer that the kernel or the
//! device cuts (GSO), without an allocation after the start.
//!
//! A buffer is cut into equal *segments*, only the last of which may be shorter. Datagrams differ in
//! length, so all of a run but the last are padded with zeros to the longest of them, rounded up to a
//! cache line. docs/PROTOCOL.md §3 allows padding after a datagram. The rounding puts every datagram on a
//! cache line of its own if a receiver gets the run in one buffer. A run ends where padding would exceed
//! an eighth of its bytes, so short datagrams are not padded to long ones.
//!
//! Neighbouring slots that are as long as the segments are one piece of memory, which the kernel copies
//! faster than two pieces per datagram.
//!
//! Addresses of slots are written before a call and not used after it.

use std::io;
use std::os::fd::RawFd;

use super::BATCH_MAX;
use super::iovec::{Array, NO_IOVEC, no_header};

/// Largest length of one buffer, in bytes: what fits an IPv4 packet. A buffer has at most [`BATCH_MAX`]
/// segments, the lowest limit of all kernels.
const RUN_BYTES_MAX: usize = super::UDP_LEN_MAX;
/// The padding of a run is at most its own bytes divided by this.
const PADDING_DIVISOR: usize = 8;
/// Alignment of segment lengths, in bytes.
const SEGMENT_ALIGN: usize = 64;
/// The padding bytes. No padding is longer, because a run has at least two segments.
static ZEROS: [u8; RUN_BYTES_MAX / 2] = [0; RUN_BYTES_MAX / 2];

/// The control message with the segment length.
#[derive(Clone, Copy)]
#[repr(C)]
struct Control {
    header: libc::cmsghdr,
    segment: u16,
}

// SAFETY: these only compute. Checked at compile time.
const _: () = assert!(unsafe { libc::CMSG_SPACE(2) } as usize == size_of::<Control>());

/// One datagram, or a run of them in one buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Message {
    /// Number of datagrams.
    pub(super) datagrams: usize,
    /// Bytes without padding.
    pub(super) bytes: usize,
    /// Segment length: that of the longest datagram, rounded up.
    segment: usize,
    /// Length of the last datagram.
    last_len: usize,
}

impl Message {
    const fn of(len: usize) -> Self {
        Self {
            datagrams: 1,
            bytes: len,
            segment: len.next_multiple_of(SEGMENT_ALIGN),
            last_len: len,
        }
    }

    /// Returns the message extended by one datagram. `None` if a run in segments of at most `segment_max`
    /// bytes does not pay off.
    fn and(&self, len: usize, segment_max: usize) -> Option<Self> {
        let segment = self.segment.max(len.next_multiple_of(SEGMENT_ALIGN));
        let run = Self {
            datagrams: self.datagrams + 1,
            bytes: self.bytes + len,
            segment,
            last_len: len,
        };
        let fits = (1..=segment_max).contains(&segment) && run.datagrams * segment <= RUN_BYTES_MAX;
        (fits && run.padding() <= run.bytes / PADDING_DIVISOR).then_some(run)
    }

    /// Returns whether it is a run.
    pub(super) const fn is_run(&self) -> bool {
        self.datagrams > 1
    }

    /// Returns the length of a run, with padding.
    const fn run_len(&self) -> usize {
        (self.datagrams - 1) * self.segment + self.last_len
    }

    /// Returns the bytes of padding.
    pub(super) const fn padding(&self) -> usize {
        if self.is_run() {
            self.run_len() - self.bytes
        } else {
            0
        }
    }
}

/// Outgoing datagrams, gathered in place.
pub(super) struct SendBatch {
    /// Two per datagram: its bytes, and its padding. A run in one piece uses the first of its own.
    iovecs: Array<libc::iovec>,
    controls: Array<Control>,
    headers: Array<libc::mmsghdr>,
    messages: [Message; BATCH_MAX],
    len: usize,
}

// SAFETY: the addresses inside are of the struct's own arrays, which move with it, or of slots
// that are used only while a `Gathered` borrows them. Exercised by
// tests/local/udp.rs `udp_fan_out_can_move_to_another_thread`.
unsafe impl Send for SendBatch {}

impl SendBatch {
    pub(super) fn new() -> Self {
        let control = Control {
            header: libc::cmsghdr {
                // SAFETY: it only computes. Exercised by tests/local/udp.rs
                // `runs_arrive_as_the_datagrams_that_were_posted`.
                cmsg_len: unsafe { libc::CMSG_LEN(2) } as _,
                cmsg_level: libc::SOL_UDP,
                cmsg_type: libc::UDP_SEGMENT,
            },
            segment: 0,
        };
        Self {
            iovecs: Array::new(NO_IOVEC, 2 * BATCH_MAX),
            controls: Array::new(control, BATCH_MAX),
            headers: Array::new(no_header(), BATCH_MAX),
            messages: [Message::default(); BATCH_MAX],
            len: 0,
        }
    }

    /// Borrows the datagrams for as long as the returned value lives; at most [`BATCH_MAX`] are taken.
    /// Runs have segments of at most `segment_max` bytes. 0: no runs. `adjacent` returns the bytes from one
    /// datagram through another, by index, as [`Slots::adjacent`](crate::Slots::adjacent) does.
    pub(super) fn gather<'a, E>(
        &'a mut self,
        segment_max: usize,
        datagrams: impl Iterator<Item = Result<&'a [u8], E>>,
        adjacent: impl Fn(usize, usize) -> Option<&'a [u8]>,
    ) -> Result<Gathered<'a>, E> {
        self.len = 0;
        let (mut first, mut message) = (0, Message::default());
        for (i, datagram) in datagrams.take(BATCH_MAX).enumerate() {
            let datagram = datagram?;
            // The kernel only reads what a send's iovec points at.
            let bytes = &mut self.iovecs.as_mut_slice()[2 * i];
            bytes.iov_base = datagram.as_ptr().cast_mut().cast();
            bytes.iov_len = datagram.len();
            match message.and(datagram.len(), segment_max) {
                Some(longer) if i > 0 => message = longer,
                _ => {
                    self.close(first, message, &adjacent);
                    (first, message) = (i, Message::of(datagram.len()));
                }
            }
        }
        self.close(first, message, &adjacent);
        Ok(Gathered { batch: self })
    }

    /// Records a message of the datagrams from `first` on.
    // In place, so that the growing message stays in registers.
    #[inline(always)]
    fn close<'a>(
        &mut self,
        first: usize,
        message: Message,
        adjacent: impl Fn(usize, usize) -> Option<&'a [u8]>,
    ) {
        if message.datagrams == 0 {
            return;
        }
        let header = &mut self.headers.as_mut_slice()[self.len].msg_hdr;
        header.msg_iov = self.iovecs.at(2 * first);
        if message.is_run() {
            let last = first + message.datagrams - 1;
            let pairs = &mut self.iovecs.as_mut_slice()[2 * first..2 * last];
            // Segments are as long as slots, and each datagram reaches into the last cache line of its own.
            let is_even = (pairs.iter().step_by(2))
                .all(|piece| piece.iov_len + SEGMENT_ALIGN > message.segment);
            let whole = adjacent(first, last).filter(|whole| whole.len() == message.run_len());
            if let Some(whole) = whole.filter(|_| is_even) {
                pairs[0].iov_len = whole.len();
                pairs[0].iov_base = whole.as_ptr().cast_mut().cast();
                header.msg_iovlen = 1;
            } else {
                for pair in pairs.chunks_exact_mut(2) {
                    pair[1].iov_base = ZEROS.as_ptr().cast_mut().cast();
                    pair[1].iov_len = message.segment - pair[0].iov_len;
                }
                header.msg_iovlen = (2 * message.datagrams - 1) as _;
            }
            self.controls.as_mut_slice()[self.len].segment = message.segment as u16;
            header.msg_control = self.controls.at(self.len).cast();
            header.msg_controllen = size_of::<Control>() as _;
        } else {
            header.msg_iovlen = 1;
            header.msg_control = std::ptr::null_mut();
            header.msg_controllen = 0;
        }
        self.messages[self.len] = message;
        self.len += 1;
    }
}

/// A filled batch, ready to send.
pub(super) struct Gathered<'a> {
    batch: &'a mut SendBatch,
}

impl Gathered<'_> {
    /// Returns the messages of the batch, in order.
    pub(super) fn messages(&self) -> &[Message] {
        &self.batch.messages[..self.batch.len]
    }

    /// Sends the messages from index `from` on. Returns how many messages the kernel took.
    pub(super) fn send(&mut self, fd: RawFd, from: usize) -> io::Result<usize> {
        let headers = &mut self.batch.headers.as_mut_slice()[from..self.batch.len];
        // SAFETY: each header names iovecs of `self.batch.iovecs`, and each of these a slice that
        // the lifetime of `self` keeps borrowed, or zeros, and at most one control message of
        // `self.batch.controls`; the kernel reads them and writes `msg_len` of the headers passed.
        // Exercised by tests/local/udp.rs `datagrams_arrive_in_the_order_they_were_posted`.
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

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    /// Returns the messages for datagrams of these lengths: datagrams, segment and padding of each.
    fn messages(lens: &[usize], segment_max: usize) -> Vec<(usize, usize, usize)> {
        let longest = vec![7; lens.iter().copied().max().unwrap_or(0)];
        let mut batch = SendBatch::new();
        let datagrams = lens.iter().map(|len| Ok::<_, Infallible>(&longest[..*len]));
        let Ok(gathered) = batch.gather(segment_max, datagrams, |_, _| None);
        let of = |m: &Message| (m.datagrams, m.segment, m.padding());
        gathered.messages().iter().map(of).collect()
    }

    #[test]
    fn gso_run_is_padded_except_last_datagram() {
        assert_eq!(messages(&[], 1472), []);
        assert_eq!(messages(&[1464], 1472), [(1, 1472, 0)]);
        assert_eq!(messages(&[1464; 3], 1472), [(3, 1472, 16)]);
        assert_eq!(messages(&[1408, 1472, 120], 1472), [(3, 1472, 64)]);
        assert_eq!(messages(&[1472, 1408], 1472), [(2, 1472, 0)]);
    }

    #[test]
    fn gso_run_ends_when_padding_exceeds_an_eighth() {
        // A short datagram may end a run, and the next one starts another.
        assert_eq!(
            messages(&[1472, 120, 1472, 1472], 1472),
            [(2, 1472, 0), (2, 1472, 0)]
        );
        assert_eq!(messages(&[120, 1472], 1472), [(1, 128, 0), (1, 1472, 0)]);
        // Datagrams of equal length make a run, for every number of 56-byte records.
        for records in 1_usize..=25 {
            let len = 64 + 56 * records;
            let padding = len.next_multiple_of(64) - len;
            let [(2, _, padded)] = messages(&[len; 2], 1472)[..] else {
                panic!("{records} records")
            };
            assert_eq!(padded, padding);
        }
    }

    #[test]
    fn gso_run_respects_packet_mtu_and_batch_limits() {
        let runs = messages(&[1472; 64], 1472);
        assert_eq!(runs, [(44, 1472, 0), (20, 1472, 0)]);
        assert_eq!(messages(&[1472; 2], 1471), [(1, 1472, 0); 2]);
        assert_eq!(messages(&[64; 2], 0), [(1, 64, 0); 2]);
        assert_eq!(messages(&[33_000; 2], 65_507), [(1, 33_024, 0); 2]);
        assert_eq!(messages(&[32_704; 2], 65_507), [(2, 32_704, 0)]);
        assert_eq!(messages(&[64; 65], 1472), [(64, 64, 0)], "one batch");
    }

    #[test]
    fn even_run_of_adjacent_slots_is_one_piece() {
        // The lengths of datagrams in slots of this length, and the pieces of each message.
        let pieces = |lens: &[usize], slot_len: usize| {
            let memory = vec![0; lens.len() * slot_len];
            let mut batch = SendBatch::new();
            let at = |i: usize| &memory[i * slot_len..];
            let datagrams = lens.iter().enumerate();
            let datagrams = datagrams.map(|(i, len)| Ok::<_, Infallible>(&at(i)[..*len]));
            let adjacent =
                |first: usize, last: usize| at(first).get(..(last - first) * slot_len + lens[last]);
            let Ok(gathered) = batch.gather(1472, datagrams, adjacent);
            let headers = &gathered.batch.headers.as_slice()[..gathered.batch.len];
            let of = headers.iter().map(|header| header.msg_hdr.msg_iovlen as _);
            of.collect::<Vec<usize>>()
        };
        assert_eq!(pieces(&[1464; 3], 1472), [1]);
        assert_eq!(pieces(&[1464, 1416, 1472, 120], 1472), [1]);
        // The second datagram ends a cache line before its segment does, or the slots are longer.
        assert_eq!(pieces(&[1464, 1408, 1464], 1472), [5]);
        assert_eq!(pieces(&[1408, 1472], 1472), [3]);
        assert_eq!(pieces(&[1408; 3], 1472), [5]);
        assert_eq!(pieces(&[1464], 1472), [1]);
        // Two runs, each with pieces of its own.
        assert_eq!(pieces(&[1464, 120, 1464, 1464], 1472), [1, 1]);
    }

    #[test]
    fn empty_datagrams_are_sent_one_by_one() {
        assert_eq!(messages(&[0, 0], 1472), [(1, 0, 0); 2]);
    }
}
