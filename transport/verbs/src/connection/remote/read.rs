//! One-sided operations in the peer's memory: READs, and the cursor.
//!
//! Each operation in flight takes a place ([`ReadBuffers`]): as many READs and swaps as both sides agreed
//! on, and a few WRITEs. An access that was not granted ends the connection, because the device stops it,
//! and every operation in flight fails.

use std::io;

use super::read_buffers::{Completed, Kind, Operation, ReadBuffers, WORD_LEN};
use crate::connection::{Link, ONE_SIDED, Stream, StreamEnd};
use crate::device::sys;
use crate::memory::window::RemoteMemory;

/// Largest length of one WRITE, in bytes. The bytes go inline with the request, from no registered memory.
pub const WRITE_LEN_MAX: usize = 64;

impl Stream {
    /// Returns the READs and swaps of this side that may be in flight: the limit agreed on by both sides
    /// and their devices. 0 while the connection is not up, and if this side does not read.
    #[must_use]
    pub fn reads_depth(&self) -> u32 {
        (self.link.as_ref()).map_or(0, |link| link.read_buffers.depth())
    }

    /// Returns whether this side's device can compare and swap.
    #[must_use]
    pub fn swaps(&self) -> bool {
        self.device.check_atomics().is_ok()
    }

    /// Starts a READ of `len` bytes, up to `read_len_max`, of memory that the peer granted.
    ///
    /// # Errors
    /// - `WouldBlock` while the connection is not up, or the agreed number of operations is in flight or
    ///   not taken
    /// - `InvalidInput` if the range is too long or not granted, or the connection agreed on no READs
    /// - otherwise the device's error, or why the connection ended
    pub fn read_remote(
        &mut self,
        of: RemoteMemory,
        offset: usize,
        len: usize,
        tag: u64,
    ) -> io::Result<()> {
        check_within(of, offset, len, self.config.read_len_max)?;
        let link = self.link_with(ReadBuffers::has_read_place)?;
        let buffer = link.read_buffers.next_buffer();
        let kind = Kind::Read { buffer, len };
        let piece = link.read_buffers.piece(buffer, len);
        self.begin(Operation { tag, kind }, piece, |request| {
            request.opcode = sys::ibv_wr_opcode::IBV_WR_RDMA_READ;
            request.wr.rdma = sys::rdma_t {
                remote_addr: of.address + offset as u64,
                rkey: of.key,
            };
        })
    }

    /// Starts a compare-and-swap of the word at `offset`: stores `new` if the word equals `expected`.
    /// [`Completed::Swapped`] returns the old value.
    ///
    /// # Errors
    /// - as for [`Stream::read_remote`]
    /// - `InvalidInput` if the word's address is not a multiple of 8
    /// - `Unsupported` if this side's device has no atomic operations
    pub fn compare_and_swap(
        &mut self,
        of: RemoteMemory,
        offset: usize,
        expected: u64,
        new: u64,
        tag: u64,
    ) -> io::Result<()> {
        check_within(of, offset, WORD_LEN, WORD_LEN)?;
        let remote_addr = of.address + offset as u64;
        if !remote_addr.is_multiple_of(WORD_LEN as u64) {
            let text = format!("the word at {offset} is not aligned; swap whole words of 8 bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let atomics = self.device.check_atomics();
        atomics.map_err(|error| io::Error::new(io::ErrorKind::Unsupported, error))?;
        let link = self.link_with(ReadBuffers::has_read_place)?;
        let buffer = link.read_buffers.next_buffer();
        let kind = Kind::Swap { buffer };
        let piece = link.read_buffers.piece(buffer, WORD_LEN);
        self.begin(Operation { tag, kind }, piece, |request| {
            request.opcode = sys::ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP;
            request.wr.atomic = sys::atomic_t {
                remote_addr,
                compare_add: expected,
                swap: new,
                rkey: of.key,
            };
        })
    }

    /// Starts to write up to [`WRITE_LEN_MAX`] bytes to a cursor that the peer granted. The bytes are
    /// copied before this returns.
    ///
    /// # Errors
    /// `WouldBlock` while the connection is not up, or [`crate::WRITES_MAX`] are in flight or not taken;
    /// otherwise as for [`Stream::read_remote`].
    pub fn write_remote(
        &mut self,
        of: RemoteMemory,
        offset: usize,
        bytes: &[u8],
        tag: u64,
    ) -> io::Result<()> {
        check_within(of, offset, bytes.len(), WRITE_LEN_MAX)?;
        self.link_with(ReadBuffers::has_write_place)?;
        // Inline: the device ignores the key.
        let piece = sys::ibv_sge {
            addr: bytes.as_ptr().addr() as u64,
            length: bytes.len() as u32,
            lkey: 0,
        };
        let kind = Kind::Write;
        self.begin(Operation { tag, kind }, piece, |request| {
            request.opcode = sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE;
            request.send_flags |= sys::ibv_send_flags::IBV_SEND_INLINE.0;
            request.wr.rdma = sys::rdma_t {
                remote_addr: of.address + offset as u64,
                rkey: of.key,
            };
        })
    }

    /// Returns the oldest operation of this side that is complete, in order of posting. `None` while it is
    /// in flight, or if there is none. After the connection ended, the rest are [`Completed::Failed`]: call
    /// this until it returns `None`.
    pub fn take_completed(&mut self) -> Option<Completed<'_>> {
        if (self.link.as_ref()).is_some_and(|link| !link.read_buffers.has_done()) {
            self.advance();
        }
        let end = self.end();
        self.link.as_mut()?.read_buffers.take(end)
    }

    /// Returns the number of operations that were not taken, complete or not.
    #[must_use]
    pub fn under_way(&self) -> usize {
        (self.link.as_ref()).map_or(0, |link| link.read_buffers.len())
    }

    /// Returns the link, if it is up and has a free place.
    fn link_with(&mut self, has_place: fn(&ReadBuffers) -> bool) -> io::Result<&mut Link> {
        if !self.is_up() {
            self.advance();
        }
        let (ended, is_up) = (self.ended(), self.is_up());
        if is_up && self.reads.own == 0 {
            let text = "this side can't READ over the connection; set reads_max on both sides and read_len_max on this one, above 0";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let link = self.link.as_mut();
        link.filter(|link| is_up && has_place(&link.read_buffers))
            .ok_or(ended)
    }

    /// Posts an operation into a free place.
    fn begin(
        &mut self,
        operation: Operation,
        mut piece: sys::ibv_sge,
        fill: impl FnOnce(&mut sys::ibv_send_wr),
    ) -> io::Result<()> {
        let link = self.link_up()?;
        // SAFETY: zero is a value of every field; the piece is inline and copied by the call, or the
        // buffer of a free place of the read_buffers memory, which is neither lent nor written before this
        // completes. Exercised by
        // `verbs::read::several_reads_at_once_bring_what_was_granted_in_order`.
        let posted = unsafe {
            let mut request: sys::ibv_send_wr = std::mem::zeroed();
            request.wr_id = ONE_SIDED;
            request.sg_list = &raw mut piece;
            request.num_sge = 1;
            request.send_flags = sys::ibv_send_flags::IBV_SEND_SIGNALED.0;
            fill(&mut request);
            link.queue.post_send(&raw mut request)
        };
        match posted {
            Ok(()) => {
                link.read_buffers.began(operation);
                Ok(())
            }
            Err(error) => {
                self.ends(StreamEnd::Broken { status: 0 });
                Err(io::Error::other(error))
            }
        }
    }
}

/// Checks that the range is within the granted memory and not longer than one operation may be.
pub(crate) fn check_within(
    of: RemoteMemory,
    offset: usize,
    len: usize,
    len_max: usize,
) -> io::Result<()> {
    let within = offset.checked_add(len).is_some_and(|end| end <= of.len)
        && of.address.checked_add(of.len as u64).is_some();
    if within && (1..=len_max).contains(&len) {
        return Ok(());
    }
    let text = format!(
        "{len} bytes at {offset} of {} can't be accessed in one operation; access 1 to {len_max} bytes within the grant",
        of.len
    );
    Err(io::Error::new(io::ErrorKind::InvalidInput, text))
}
