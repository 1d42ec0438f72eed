//! Grants: parts of memory that the peer may READ, and a cursor of its own.
//!
//! A queue pair allows nothing until something is granted through it, and then no more than that. A
//! cursor's lease stays with the connection until its queue pair is gone, whether revoked or not.

use std::fmt;
use std::io;
use std::sync::Arc;

use crate::audit::{self, AuditEvent};
use crate::connection::{Link, Stream, WINDOW};
use crate::memory::cursor::{CURSOR_LEN, CursorEntry};
use crate::memory::window::{Bindable, InboxMemory, ReadableMemory, RemoteMemory, Right, Window};

/// Largest number of grants of one connection: two for each channel.
pub const GRANTS_MAX: u32 = 64;

/// Identifies a grant of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantId(u32);

/// The grants of a link. Dropped before the queue that its windows are bound to.
#[derive(Default)]
pub(crate) struct Granting {
    grants: Vec<Grant>,
    next: u32,
    /// Reason why no more grants are made. A window that is still being bound is revoked once it is bound.
    over: Option<Box<str>>,
}

struct Grant {
    id: u32,
    window: Window,
    remote: RemoteMemory,
    right: Right,
    phase: Phase,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Binding,
    Bound,
    Revoking,
}

impl Granting {
    /// Returns whether everything was revoked.
    pub(crate) const fn is_over(&self) -> bool {
        self.over.is_some()
    }
}

impl Grant {
    fn audit(&self, what: AuditEvent, link: &Link) {
        let why = link.granting.over.as_ref();
        let of = audit::Of {
            device: link.queue.device().name(),
            peer: Some(link.queue.peer()),
            memory: Some(self.right.memory()),
            bytes: Some(self.remote.len),
            access: Some(self.right.flags()),
            key: Some(self.remote.key),
            why: why
                .filter(|_| matches!(what, AuditEvent::WindowRevoked))
                .map(|why| why as &dyn fmt::Display),
        };
        audit::write_entry(what, of);
    }
}

impl Stream {
    /// Starts to let the peer READ a part of some memory of this connection's device. Send the peer the
    /// result of [`Stream::granted`] once there is one.
    ///
    /// # Errors
    /// - `WouldBlock` while the connection is not up, or has [`GRANTS_MAX`] grants
    /// - `PermissionDenied` after [`Stream::revoke_all`]
    /// - `InvalidInput` if the range is not in the memory, the memory belongs to another device, or the
    ///   connection agreed on no READs of the peer
    /// - otherwise the device's error
    pub fn grant(
        &mut self,
        memory: &Arc<ReadableMemory>,
        offset: usize,
        len: usize,
    ) -> io::Result<GrantId> {
        if len == 0 || offset.checked_add(len).is_none_or(|end| end > memory.len()) {
            return Err(invalid(format!(
                "{len} bytes at {offset} are not within memory of {}; grant a range within it",
                memory.len()
            )));
        }
        self.check_grant(memory.bindable(), Right::Read)?;
        self.bind(memory.bindable(), offset, len, Right::Read)
    }

    /// Starts to let the peer READ, WRITE, and compare and swap in a leased entry. The connection keeps
    /// the lease until its queue pair is gone, so an entry can be granted only once.
    ///
    /// # Errors
    /// As for [`Stream::grant`], and `InvalidInput` for an entry that was granted before.
    pub fn grant_cursor(&mut self, entry: &CursorEntry) -> io::Result<GrantId> {
        let lease = entry.lease();
        self.check_grant(lease.bindable(), Right::Cursor)?;
        if !lease.grant_once() {
            return Err(invalid(format!(
                "entry {} was granted before; lease another entry for each connection",
                entry.number()
            )));
        }
        self.link_up()?.leases.push(Arc::clone(lease));
        self.bind(lease.bindable(), 0, CURSOR_LEN, Right::Cursor)
    }

    /// Starts to let the peer WRITE an inbox, and nothing else. The connection keeps the inbox until its
    /// queue pair is gone.
    ///
    /// # Errors
    /// As for [`Stream::grant`], except that no READs need to have been agreed on.
    pub fn grant_inbox(&mut self, memory: &Arc<InboxMemory>) -> io::Result<GrantId> {
        self.check_grant(memory.bindable(), Right::Inbox)?;
        self.link_up()?.inboxes.push(Arc::clone(memory));
        self.bind(memory.bindable(), 0, memory.len(), Right::Inbox)
    }

    /// Returns whether the peer has a grant that was not revoked.
    #[must_use]
    pub fn has_granted(&self) -> bool {
        let granting = self.link.as_ref().map(|link| &link.granting);
        granting.is_some_and(|it| it.over.is_none() && !it.grants.is_empty())
    }

    /// Checks whether a part of this memory may be granted now.
    fn check_grant(&mut self, memory: &Arc<Bindable>, right: Right) -> io::Result<()> {
        let link = self.link_up()?;
        if link.granting.over.is_some() {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        if link.granting.grants.len() >= GRANTS_MAX as usize {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        if !Arc::ptr_eq(memory.device(), &self.device) {
            return Err(invalid(format!(
                "the memory is not registered with this connection's {}; register it with the device that the connection is made from",
                self.device.name()
            )));
        }
        if self.reads.answered == 0 && right != Right::Inbox {
            return Err(invalid(
                "the connection can't answer READs; set reads_max above 0 on both sides".into(),
            ));
        }
        Ok(())
    }

    fn bind(
        &mut self,
        memory: &Arc<Bindable>,
        offset: usize,
        len: usize,
        right: Right,
    ) -> io::Result<GrantId> {
        let link = self.link_up()?;
        let mut window = Window::new(memory).map_err(io::Error::other)?;
        let remote = window.remote(offset, len);
        let id = link.granting.next;
        link.granting.next = id.wrapping_add(1);
        let number = WINDOW | u64::from(id);
        let queue = &mut link.queue;
        let posted = queue.allow(right.flags());
        let posted = posted.and_then(|()| window.bind(queue, number, remote, right));
        posted.map_err(io::Error::other)?;
        link.granting.grants.push(Grant {
            id,
            window,
            remote,
            right,
            phase: Phase::Binding,
        });
        Ok(GrantId(id))
    }

    /// Returns the memory of a grant. `None` before the device has bound it, and once it is revoked.
    #[must_use]
    pub fn granted(&self, grant: GrantId) -> Option<RemoteMemory> {
        let grants = &self.link.as_ref()?.granting.grants;
        let grant = grants.iter().find(|held| held.id == grant.0);
        grant
            .filter(|grant| grant.phase == Phase::Bound)
            .map(|grant| grant.remote)
    }

    /// Starts to revoke a grant. Once [`Stream::grants`] no longer counts it, nobody can reach the memory.
    ///
    /// # Errors
    /// `InvalidInput` if the grant is not bound; otherwise the device's error.
    pub fn revoke(&mut self, grant: GrantId) -> io::Result<()> {
        let link = self.link_up()?;
        let mut grants = link.granting.grants.iter();
        let at = grants.position(|held| held.id == grant.0 && held.phase == Phase::Bound);
        let at = at.ok_or_else(|| {
            invalid(
                "the grant is not bound; wait until it is bound, and revoke it only once".into(),
            )
        })?;
        link.take_back(at)
    }

    /// Starts to revoke all grants and refuses new ones. The audit trail records `why`.
    ///
    /// # Errors
    /// The device's error. Drop the connection then, which revokes all rights.
    pub fn revoke_all(&mut self, why: &str) -> io::Result<()> {
        let Some(link) = &mut self.link else {
            return Ok(());
        };
        link.granting.over = Some(why.into());
        for at in 0..link.granting.grants.len() {
            if link.granting.grants[at].phase == Phase::Bound {
                link.take_back(at)?;
            }
        }
        Ok(())
    }

    /// Returns the number of grants, including those being bound or revoked.
    #[must_use]
    pub fn grants(&self) -> usize {
        (self.link.as_ref()).map_or(0, |link| link.granting.grants.len())
    }

    /// Returns what the connection's queue pair allows its peer, as the device reports it
    /// (`ibv_access_flags`): only what was granted. `None` if there is no queue pair or the query fails.
    #[must_use]
    pub fn allowed(&self) -> Option<u32> {
        self.link.as_ref()?.queue.access().ok()
    }
}

impl Link {
    /// Handles the completion of a window's request.
    pub(crate) fn window_done(&mut self, id: u32) {
        let Some(at) = (self.granting.grants.iter()).position(|grant| grant.id == id) else {
            return;
        };
        if self.granting.grants[at].phase == Phase::Revoking {
            let grant = self.granting.grants.remove(at);
            grant.audit(AuditEvent::WindowRevoked, self);
        } else {
            self.granting.grants[at].phase = Phase::Bound;
            self.granting.grants[at].audit(AuditEvent::WindowBound, self);
            if self.granting.over.is_some() {
                // A queue that accepts no more requests has ended, and its windows end with it.
                let _ = self.take_back(at);
            }
        }
    }

    /// Starts to revoke the bound grant at index `at`.
    fn take_back(&mut self, at: usize) -> io::Result<()> {
        let held = &mut self.granting.grants[at];
        let number = WINDOW | u64::from(held.id);
        let posted = held.window.invalidate(&mut self.queue, number);
        posted.map_err(io::Error::other)?;
        held.phase = Phase::Revoking;
        Ok(())
    }

    /// Frees the windows, before their queue pair. A window that was never seen bound emits no audit event.
    pub(crate) fn free_windows(&mut self) {
        for grant in std::mem::take(&mut self.granting.grants) {
            if grant.phase != Phase::Binding {
                grant.audit(AuditEvent::WindowFreed, self);
            }
        }
    }
}

fn invalid(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, text)
}
