//! The membership of a sending line: requested, held and renewed by ids of its own.
//!
//! An id must leave a group before it joins it again. So each request has a new id, and the old membership is
//! left once the new one is ready. The queues of a line are members of nothing, because a sender needs
//! only the route to the group.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Instant;

use super::renewal::{Action, JOIN_MAX, Renewal};
use crate::device::cm::{CmEvent, CmId, PortSpace};
use crate::device::{Device, sys};
use crate::error::{VerbsError, failed};

/// The membership of one line.
pub(super) struct Membership {
    renewal: Renewal,
    /// The id that holds the membership, if any.
    holder: Option<CmId>,
    /// The id that has requested the next membership.
    next: Option<CmId>,
    group: Ipv4Addr,
    /// Some ports join only as full members.
    flags: u32,
}

impl Membership {
    /// Creates the state of a line that has not joined.
    pub(super) fn new(from: Ipv4Addr, group: Ipv4Addr) -> Self {
        let seed = u64::from(u32::from(group)) << 32 | u64::from(u32::from(from));
        Self {
            renewal: Renewal::new(seed),
            holder: None,
            next: None,
            group,
            flags: sys::JOIN_SEND_ONLY,
        }
    }

    /// Joins as a sender only, or as a full member if the port does not support that. Blocks for at most
    /// 5 s each. Returns the route to the group.
    ///
    /// # Errors
    /// [`VerbsError::Join`] names the reason of the last failure.
    pub(super) fn join(&mut self, device: &Arc<Device>) -> Result<sys::ibv_ah_attr, VerbsError> {
        let mut reason = String::new();
        for flags in [sys::JOIN_SEND_ONLY, sys::JOIN_FULL_MEMBER] {
            self.flags = flags;
            let mut id = match self.request(device) {
                Ok(id) => id,
                Err(errno) => {
                    reason = failed("rdma_join_multicast", errno).to_string();
                    continue;
                }
            };
            match id.wait(JOIN_MAX) {
                Some(event) => match event.group {
                    Some(route) if event.status == 0 => {
                        self.holder = Some(id);
                        return Ok(route);
                    }
                    _ => reason = format!("event {}, status {}", event.kind, event.status),
                },
                None => reason = format!("no answer within {} s", JOIN_MAX.as_secs()),
            }
        }
        Err(VerbsError::Join {
            group: self.group,
            device: device.name().to_owned(),
            reason,
        })
    }

    /// Returns the next event of the id that holds the membership.
    pub(super) fn event(&mut self) -> Option<CmEvent> {
        self.holder.as_mut().and_then(CmId::event)
    }

    /// Notes that the membership ended, or that there is none yet.
    pub(super) fn lost(&mut self, now: Instant) {
        self.renewal.lost(now);
    }

    /// Advances the renewal. Returns the route of a new membership once there is one.
    ///
    /// # Errors
    /// The error number of a request that failed. Another one follows, as another kind of member. ENODEV or
    /// EADDRNOTAVAIL: the device or its address is gone, and no request can succeed.
    pub(super) fn renew(
        &mut self,
        now: Instant,
        device: &Arc<Device>,
    ) -> Result<Option<sys::ibv_ah_attr>, i32> {
        let errno = match self.renewal.advance(now, device.is_active()) {
            Action::Wait => return Ok(None),
            Action::Ask => match self.request(device) {
                Ok(id) => {
                    self.next = Some(id);
                    return Ok(None);
                }
                Err(errno) => errno,
            },
            Action::Listen => match self.next.as_mut().and_then(CmId::event) {
                None => return Ok(None),
                Some(event) => match event.group.filter(|_| event.status == 0) {
                    Some(route) => return Ok(Some(route)),
                    None if event.is_of_device() => libc::ENODEV,
                    None => libc::EIO,
                },
            },
            Action::Abandon => {
                self.next = None;
                self.change_flags();
                return Err(libc::ETIMEDOUT);
            }
        };
        self.failed(now);
        self.change_flags();
        Err(errno)
    }

    /// Drops the request, and repeats it later.
    pub(super) fn failed(&mut self, now: Instant) {
        self.next = None;
        self.renewal.failed(now);
    }

    /// Keeps the renewed membership and leaves the old one.
    pub(super) fn renewed(&mut self) {
        self.renewal.settle();
        // Dropping the id of a membership leaves it.
        self.holder = self.next.take();
    }

    const fn change_flags(&mut self) {
        self.flags = match self.flags {
            sys::JOIN_SEND_ONLY => sys::JOIN_FULL_MEMBER,
            _ => sys::JOIN_SEND_ONLY,
        };
    }

    /// Requests a membership with an id of its own.
    fn request(&self, device: &Arc<Device>) -> Result<CmId, i32> {
        let errno = |error: VerbsError| error.errno().unwrap_or(libc::EIO);
        let mut id = CmId::new(PortSpace::Udp).map_err(errno)?;
        id.bind(device.address(), 0).map_err(errno)?;
        id.join(self.group, self.flags)?;
        Ok(id)
    }
}
