//! What this side does in the other's memory by itself: READs, and its cursor there.
//!
//! A READ lands in a buffer that is this connection's own and for nothing else, registered so that no
//! peer reaches it. It is lent from there, once, without a copy. What is under way has places: as many
//! READs, and swaps, as both sides agreed on, and a few WRITEs. A place is free again when what took it
//! is taken. All of it completes in the order in which it was begun. What is not granted ends the
//! connection, as the device has it, and whatever was under way has failed then.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use super::{Link, ONE_SIDED, Stream, StreamConfig, StreamEnd, sys};
use crate::mapping::SharedMapping;
use crate::verbs::device::Device;
use crate::verbs::error::VerbsError;
use crate::verbs::memory::Region;
use crate::verbs::window::RemoteMemory;

/// WRITEs of one connection under way at a time.
pub const WRITES_MAX: u32 = 4;
/// Bytes that one WRITE carries at most: they go with the request, from no registered memory.
pub const WRITE_LEN_MAX: usize = 64;
/// What is compared and swapped.
const WORD_LEN: usize = size_of::<u64>();

/// What this side did in the other's memory is over: `tag` is what it was begun with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Completed<'a> {
    /// What a READ brought, at an address that is a multiple of 64. The bytes are this side's alone and
    /// nobody writes them any more. They may be of several moments: whoever wrote there meanwhile may
    /// have torn them.
    Read {
        /// As given.
        tag: u64,
        /// As many as were asked for.
        bytes: &'a [u8],
    },
    /// What was there before it was compared: it was swapped if this is what was expected.
    Swapped {
        /// As given.
        tag: u64,
        /// In the order of bytes of this host, which must be the other's.
        old: u64,
    },
    /// The other side's device has what was written.
    Written {
        /// As given.
        tag: u64,
    },
    /// The connection is over, and nobody knows what became of it.
    Failed {
        /// As given.
        tag: u64,
        /// Why the connection is over.
        why: StreamEnd,
    },
}

/// What is under way or done, in order. Goes behind the queue that may still write where it lands.
pub(super) struct Reading {
    /// Where READs and old words land; `None` where this side does nothing of the kind.
    landing: Option<Region>,
    buffer_len: usize,
    under_way: VecDeque<Operation>,
    /// How many of all there ever were are done, and how many were taken: done, or failed with the
    /// connection. What is done after it was given up changes nothing for those behind it.
    done: u64,
    taken: u64,
    /// Places that are taken, by READs and swaps and by WRITEs.
    reads: u32,
    writes: u32,
    /// Places for the former: what both sides agreed on. 0 until then.
    depth: u32,
    /// Their buffers take turns.
    next_buffer: u32,
}

#[derive(Clone, Copy)]
struct Operation {
    tag: u64,
    kind: Kind,
}

#[derive(Clone, Copy)]
enum Kind {
    Read { buffer: u32, len: usize },
    Swap { buffer: u32 },
    Write,
}

impl Reading {
    pub(super) fn new(device: &Arc<Device>, config: &StreamConfig) -> Result<Self, VerbsError> {
        let landing = || {
            let len = config.read_len_max * usize::from(config.reads_max);
            let memory =
                SharedMapping::memfd("landing", len).map_err(|error| VerbsError::Call {
                    what: "allocate memory for READs",
                    source: io::Error::other(error),
                })?;
            Region::writable(device, Arc::new(memory))
        };
        let places = usize::from(config.reads_max) + WRITES_MAX as usize;
        Ok(Self {
            landing: config.reads().then(landing).transpose()?,
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

    /// So many READs at once were agreed on.
    pub(super) fn agreed(&mut self, depth: u8) {
        self.depth = depth.into();
    }

    /// They are done in the order in which they were posted.
    pub(super) fn operation_done(&mut self) {
        self.done += 1;
    }

    /// Whether the oldest is done.
    const fn has_done(&self) -> bool {
        self.taken < self.done
    }

    /// The buffer of a place.
    fn piece(&self, buffer: u32, len: usize) -> sys::ibv_sge {
        let landing = self.landing.as_ref();
        let from = landing.map_or(0, |landing| landing.as_ptr().addr());
        sys::ibv_sge {
            addr: (from + buffer as usize * self.buffer_len) as u64,
            length: len as u32,
            lkey: landing.map_or(0, Region::lkey),
        }
    }

    /// Something took its place.
    fn began(&mut self, operation: Operation) {
        match operation.kind {
            Kind::Write => self.writes += 1,
            Kind::Read { .. } | Kind::Swap { .. } => {
                self.reads += 1;
                self.next_buffer = (self.next_buffer + 1) % self.depth;
            }
        }
        self.under_way.push_back(operation);
    }

    /// The oldest that is done, or failed with the connection. Its place is free at once: it is not
    /// taken while the caller has what is lent, which borrows the whole stream.
    fn take(&mut self, end: Option<StreamEnd>) -> Option<Completed<'_>> {
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

    /// What lies in a buffer whose operation completed.
    fn landed(&self, buffer: u32, len: usize) -> Option<&[u8]> {
        let landing = self.landing.as_ref()?;
        // SAFETY: the memory is this connection's alone, and no peer has a right to it; the device has
        // completed what landed here, and nothing else is posted to land while the stream is borrowed.
        // Exercised by `verbs_read::several_reads_at_once_bring_what_was_granted_in_order`.
        Some(unsafe { landing.lend(buffer as usize * self.buffer_len, len) })
    }
}

impl Stream {
    /// READs and swaps of this side that may be under way at once: what both sides and their devices
    /// agreed on. 0 while it is not up, and where it does not read.
    #[must_use]
    pub fn reads_depth(&self) -> u32 {
        (self.link.as_ref()).map_or(0, |link| link.reading.depth)
    }

    /// Begins to READ so many bytes of what the other side has granted, up to `read_len_max`.
    ///
    /// # Errors
    /// `WouldBlock` while the connection is not up, or as many as agreed are under way or were not
    /// taken; `InvalidInput` for what is too long or not granted, and where the connection agreed on
    /// no READs; otherwise what the device said, or why the connection ended.
    pub fn read_remote(
        &mut self,
        of: RemoteMemory,
        offset: usize,
        len: usize,
        tag: u64,
    ) -> io::Result<()> {
        check_within(of, offset, len, self.config.read_len_max)?;
        let link = self.link_with(|reading| reading.reads < reading.depth)?;
        let buffer = link.reading.next_buffer;
        let kind = Kind::Read { buffer, len };
        let piece = link.reading.piece(buffer, len);
        self.begin(Operation { tag, kind }, piece, |request| {
            request.opcode = sys::ibv_wr_opcode::IBV_WR_RDMA_READ;
            request.wr.rdma = sys::rdma_t {
                remote_addr: of.address + offset as u64,
                rkey: of.key,
            };
        })
    }

    /// Begins to compare the word at `offset` with `expected`, and to put `new` in its place if that is
    /// what it is. [`Completed::Swapped`] tells what it was.
    ///
    /// # Errors
    /// As for [`Stream::read_remote`]; `InvalidInput` for a word whose address is no multiple of 8;
    /// `Unsupported` where this side's device has no atomic operations.
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
        let link = self.link_with(|reading| reading.reads < reading.depth)?;
        let buffer = link.reading.next_buffer;
        let kind = Kind::Swap { buffer };
        let piece = link.reading.piece(buffer, WORD_LEN);
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

    /// Begins to write so few bytes, up to [`WRITE_LEN_MAX`], to where the other side has granted a
    /// cursor. They are copied before this returns.
    ///
    /// # Errors
    /// `WouldBlock` while the connection is not up, or [`WRITES_MAX`] are under way or were not taken;
    /// otherwise as for [`Stream::read_remote`].
    pub fn write_remote(
        &mut self,
        of: RemoteMemory,
        offset: usize,
        bytes: &[u8],
        tag: u64,
    ) -> io::Result<()> {
        check_within(of, offset, bytes.len(), WRITE_LEN_MAX)?;
        self.link_with(|reading| reading.writes < WRITES_MAX)?;
        // Inline: the key is not looked at.
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

    /// The next of what this side has begun in the other's memory that is over, in the order in which it
    /// was begun; `None` while it is still under way, or there is nothing. Once the connection has ended
    /// all that is left is [`Completed::Failed`]: take until there is nothing more.
    pub fn take_completed(&mut self) -> Option<Completed<'_>> {
        if (self.link.as_ref()).is_some_and(|link| !link.reading.has_done()) {
            self.advance();
        }
        let end = self.end();
        self.link.as_mut()?.reading.take(end)
    }

    /// What this side has begun in the other's memory and was not taken yet, done or not.
    #[must_use]
    pub fn under_way(&self) -> usize {
        (self.link.as_ref()).map_or(0, |link| link.reading.under_way.len())
    }

    /// The link, if it is up and has such a place.
    fn link_with(&mut self, has_place: fn(&Reading) -> bool) -> io::Result<&mut Link> {
        if !self.is_up() {
            self.advance();
        }
        let (ended, is_up) = (self.ended(), self.is_up());
        if is_up && self.reads.own == 0 {
            let text = "the connection agreed on no READs of this side; set reads_max on both sides and read_len_max on this one, above 0";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let link = self.link.as_mut();
        link.filter(|link| is_up && has_place(&link.reading))
            .ok_or(ended)
    }

    /// Posts what takes a place that is free.
    fn begin(
        &mut self,
        operation: Operation,
        mut piece: sys::ibv_sge,
        fill: impl FnOnce(&mut sys::ibv_send_wr),
    ) -> io::Result<()> {
        let link = self.link_up()?;
        // SAFETY: zero is a value of every field; the piece is inline and copied by the call, or the
        // buffer of a free place of the landing memory, which is neither lent nor written before this
        // completes. Exercised by
        // `verbs_read::several_reads_at_once_bring_what_was_granted_in_order`.
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
                link.reading.began(operation);
                Ok(())
            }
            Err(error) => {
                self.ends(StreamEnd::Broken { status: 0 });
                Err(io::Error::other(error))
            }
        }
    }
}

/// Whether so many bytes are within what was granted, and are as many as one operation may have.
fn check_within(of: RemoteMemory, offset: usize, len: usize, len_max: usize) -> io::Result<()> {
    let within = offset.checked_add(len).is_some_and(|end| end <= of.len)
        && of.address.checked_add(of.len as u64).is_some();
    if within && (1..=len_max).contains(&len) {
        return Ok(());
    }
    let text = format!(
        "{len} bytes at {offset} of {} can't be reached at once; take 1 to {len_max} within what was granted",
        of.len
    );
    Err(io::Error::new(io::ErrorKind::InvalidInput, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_done_after_it_was_given_up_changes_nothing_for_those_behind_it() {
        let mut reading = Reading {
            landing: None,
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
            reading.began(Operation { tag, kind });
        }
        let why = StreamEnd::Broken { status: 0 };
        assert_eq!(reading.take(None), None);
        reading.operation_done();
        assert_eq!(reading.take(Some(why)), Some(Completed::Written { tag: 0 }));
        let failed = |tag| Some(Completed::Failed { tag, why });
        assert_eq!(reading.take(Some(why)), failed(1));
        // The queue was not told yet that all is over.
        reading.operation_done();
        assert_eq!(reading.take(Some(why)), failed(2));
        assert_eq!((reading.writes, reading.take(Some(why))), (1, failed(3)));
        assert_eq!((reading.writes, reading.take(Some(why))), (0, None));
    }
}
