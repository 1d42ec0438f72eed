//! WRITEs of this side's memory to an inbox that the peer granted. Others may write that memory meanwhile,
//! and nothing pins it, so the reader of the inbox must check what arrived.

use std::io;
use std::sync::Arc;

use super::read::check_within;
use crate::connection::StreamEnd;
use crate::connection::{MIRRORED, Stream};
use crate::device::sys;
use crate::memory::window::{ReadableMemory, RemoteMemory};

/// The WRITEs in flight. Dropped after the queue that may still read the memory.
#[derive(Default)]
pub(crate) struct Writing {
    under_way: u32,
    /// WRITEs done and not reported yet.
    done: u32,
    /// Memory that was written from. It stays registered for as long as the queue exists.
    sources: Vec<Arc<ReadableMemory>>,
}

impl Writing {
    /// Marks the oldest WRITE as done.
    pub(crate) fn one_done(&mut self) {
        self.under_way = self.under_way.saturating_sub(1);
        self.done += 1;
    }
}

impl Stream {
    /// Starts to write `len` bytes at `offset` of some memory of this connection's device to `at` of the
    /// memory that the peer granted. [`Stream::take_written`] returns how many are done, in order of
    /// posting.
    ///
    /// # Errors
    /// - `InvalidInput` if a range is not in the memory, or not in the granted memory
    /// - `WouldBlock` while the connection is not up, or `writes_max` are in flight
    /// - otherwise why the connection ended
    pub fn write_from(
        &mut self,
        memory: &Arc<ReadableMemory>,
        (offset, len): (usize, usize),
        to: RemoteMemory,
        at: usize,
    ) -> io::Result<()> {
        let within = offset
            .checked_add(len)
            .is_some_and(|end| end <= memory.len());
        if !within || !Arc::ptr_eq(memory.bindable().device(), &self.device) {
            let text = format!(
                "{len} bytes at {offset} are not in memory of {} that is registered with this connection's device",
                memory.len()
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        check_within(to, at, len, memory.len())?;
        let writes_max = self.config.writes_max;
        let link = self.link_up()?;
        if link.writing.under_way >= writes_max {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        if !link
            .writing
            .sources
            .iter()
            .any(|it| Arc::ptr_eq(it, memory))
        {
            link.writing.sources.push(Arc::clone(memory));
        }
        let mut piece = memory.bindable().piece(offset, len);
        // SAFETY: zero is a value of every field; the bytes are in registered memory that outlives the
        // queue, and the device alone reads them, by its own accesses, whoever writes there meanwhile.
        // Exercised by `verbs::window::remote_writes_land_only_inside_inbox`.
        let posted = unsafe {
            let mut request: sys::ibv_send_wr = std::mem::zeroed();
            request.wr_id = MIRRORED;
            request.sg_list = &raw mut piece;
            request.num_sge = 1;
            request.opcode = sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE;
            request.send_flags = sys::ibv_send_flags::IBV_SEND_SIGNALED.0;
            request.wr.rdma = sys::rdma_t {
                remote_addr: to.address + at as u64,
                rkey: to.key,
            };
            link.queue.post_send(&raw mut request)
        };
        match posted {
            Ok(()) => {
                link.writing.under_way += 1;
                Ok(())
            }
            Err(error) => {
                self.ends(StreamEnd::Broken { status: 0 });
                Err(io::Error::other(error))
            }
        }
    }

    /// Returns how many WRITEs of [`Stream::write_from`] completed since the last call.
    pub fn take_written(&mut self) -> u32 {
        let writing = self.link.as_mut().map(|link| &mut link.writing);
        writing.map_or(0, |writing| std::mem::take(&mut writing.done))
    }
}
