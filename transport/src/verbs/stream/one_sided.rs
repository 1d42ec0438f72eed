//! What one side does alone: READs of memory that the other side has granted, and the granting.
//!
//! A READ lands in a buffer of the connection's own, and takes the place of a write meanwhile. One
//! that is not granted ends the connection, as the device has it.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use super::{Link, READ, State, Stream, WINDOW, sys};
use crate::verbs::window::{ReadableMemory, RemoteMemory, Window};

/// Grants that one connection has at a time.
pub(super) const GRANTS_MAX: u32 = 4;

/// Names a grant of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantId(u32);

/// What a link has granted, and what it reads.
#[derive(Default)]
pub(super) struct OneSided {
    grants: Vec<Grant>,
    next_grant: u32,
    /// READs that are on their way or done, in order: their buffer and its bytes.
    reads: VecDeque<(u32, usize)>,
    /// How many of them are done.
    done: usize,
}

struct Grant {
    id: u32,
    window: Window,
    remote: RemoteMemory,
    phase: Phase,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Binding,
    Bound,
    Revoking,
}

impl OneSided {
    /// The device has done what a window was asked for.
    pub(super) fn window_done(&mut self, id: u32) {
        self.grants
            .retain(|grant| grant.id != id || grant.phase != Phase::Revoking);
        for grant in self.grants.iter_mut().filter(|grant| grant.id == id) {
            grant.phase = Phase::Bound;
        }
    }

    /// READs are done in the order in which they were posted.
    pub(super) fn read_done(&mut self) {
        self.done += 1;
    }
}

impl Stream {
    /// Begins to let the other side READ a part of some memory of this connection's device. It is
    /// to be told of it once [`Stream::granted`] says where.
    ///
    /// # Errors
    /// `WouldBlock` while the connection is not up, or has four grants; `InvalidInput` for what is not
    /// in the memory; otherwise what the device said.
    pub fn grant(
        &mut self,
        memory: &Arc<ReadableMemory>,
        offset: usize,
        len: usize,
    ) -> io::Result<GrantId> {
        if len == 0 || offset.checked_add(len).is_none_or(|end| end > memory.len()) {
            let text = format!(
                "{len} bytes at {offset} are not within memory of {}; grant what is in it",
                memory.len()
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let link = self.link_up()?;
        if link.one_sided.grants.len() >= GRANTS_MAX as usize {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut window = Window::new(memory).map_err(io::Error::other)?;
        let remote = window.remote(offset, len);
        let id = link.one_sided.next_grant;
        link.one_sided.next_grant = id.wrapping_add(1);
        let posted = window.bind(&mut link.queue, WINDOW | u64::from(id), remote);
        posted.map_err(io::Error::other)?;
        link.one_sided.grants.push(Grant {
            id,
            window,
            remote,
            phase: Phase::Binding,
        });
        Ok(GrantId(id))
    }

    /// Where the other side may READ; `None` before the device has bound it, and once it is revoked.
    #[must_use]
    pub fn granted(&self, grant: GrantId) -> Option<RemoteMemory> {
        let grants = &self.link.as_ref()?.one_sided.grants;
        let grant = grants.iter().find(|held| held.id == grant.0);
        grant
            .filter(|grant| grant.phase == Phase::Bound)
            .map(|grant| grant.remote)
    }

    /// Begins to take a grant back. Once it counts no more ([`Stream::grants`]) nobody reads.
    ///
    /// # Errors
    /// `InvalidInput` for a grant that is not bound; otherwise what the device said.
    pub fn revoke(&mut self, grant: GrantId) -> io::Result<()> {
        let link = self.link_up()?;
        let mut grants = link.one_sided.grants.iter_mut();
        let held = grants.find(|held| held.id == grant.0 && held.phase == Phase::Bound);
        let held = held.ok_or_else(|| {
            let text = "no such grant is bound; wait until it is, and revoke it once";
            io::Error::new(io::ErrorKind::InvalidInput, text)
        })?;
        let number = WINDOW | u64::from(grant.0);
        let posted = held.window.invalidate(&mut link.queue, number);
        posted.map_err(io::Error::other)?;
        held.phase = Phase::Revoking;
        Ok(())
    }

    /// How many grants there are, with those that are being bound or revoked.
    #[must_use]
    pub fn grants(&self) -> usize {
        (self.link.as_ref()).map_or(0, |link| link.one_sided.grants.len())
    }

    /// Begins to READ so many bytes of what the other side has granted; up to a buffer of them.
    ///
    /// # Errors
    /// `WouldBlock` while the connection is not up, or no buffer is free; `InvalidInput` for what is
    /// longer than a buffer or not granted; otherwise what the device said.
    pub fn read_remote(&mut self, of: RemoteMemory, offset: usize, len: usize) -> io::Result<()> {
        let buffer_len = self.config.buffer_len;
        let within = offset.checked_add(len).is_some_and(|end| end <= of.len);
        if len == 0 || len > buffer_len || !within {
            let text = format!(
                "{len} bytes at {offset} of {} can't be read at once into {buffer_len}",
                of.len
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let link = self.link_up()?;
        let Some(buffer) = link.free.pop() else {
            return Err(io::ErrorKind::WouldBlock.into());
        };
        if let Err(error) = link.post_read(buffer, buffer_len, of, offset, len) {
            self.state = State::Broken(0);
            return Err(io::Error::other(error));
        }
        link.one_sided.reads.push_back((buffer, len));
        Ok(())
    }

    /// Copies what the next READ has brought to the front of `into`, in the order in which they were
    /// begun. How many bytes; `None` while none is done.
    pub fn take_read(&mut self, into: &mut [u8]) -> Option<usize> {
        self.advance();
        let buffer_len = self.config.buffer_len;
        let link = self.link.as_mut()?;
        link.one_sided.done = link.one_sided.done.checked_sub(1)?;
        let (buffer, len) = link.one_sided.reads.pop_front()?;
        let len = len.min(into.len());
        (link.sending).read(buffer as usize * buffer_len, &mut into[..len]);
        link.free.push(buffer);
        Some(len)
    }

    fn link_up(&mut self) -> io::Result<&mut Link> {
        self.advance();
        let ended = self.ended();
        let is_up = self.is_up();
        self.link.as_mut().filter(|_| is_up).ok_or(ended)
    }
}

impl Link {
    fn post_read(
        &mut self,
        buffer: u32,
        buffer_len: usize,
        of: RemoteMemory,
        offset: usize,
        len: usize,
    ) -> Result<(), crate::verbs::VerbsError> {
        let mut piece = sys::ibv_sge {
            addr: self.sending.as_ptr().addr() as u64 + u64::from(buffer) * buffer_len as u64,
            length: len as u32,
            lkey: self.sending.lkey(),
        };
        // SAFETY: zero is a value of every field; the buffer is free, in the registered memory, and
        // neither read nor written before this completes. Exercised by
        // `verbs_window::a_peer_reads_what_it_was_granted_until_it_is_revoked`.
        unsafe {
            let mut request: sys::ibv_send_wr = std::mem::zeroed();
            request.wr_id = READ | u64::from(buffer);
            request.sg_list = &raw mut piece;
            request.num_sge = 1;
            request.opcode = sys::ibv_wr_opcode::IBV_WR_RDMA_READ;
            request.send_flags = sys::ibv_send_flags::IBV_SEND_SIGNALED.0;
            request.wr.rdma = sys::rdma_t {
                remote_addr: of.address + offset as u64,
                rkey: of.key,
            };
            self.queue.post_send(&raw mut request)
        }
    }
}
