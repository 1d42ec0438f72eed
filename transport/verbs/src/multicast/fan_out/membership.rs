//! The memberships of a sending line: the one that it sends by, and the one that is to replace it.
//!
//! A line joins with the id of its queue. A renewal joins with an id of its own, because an id must leave a
//! group before it joins it again. The old membership is left once the new one is ready.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Instant;

use super::renewal::{Action, Renewal};
use crate::device::cm::{CmEvent, CmId, PortSpace};
use crate::device::queue::{AddressHandle, DatagramQueue};
use crate::device::{Device, sys};
use crate::error::VerbsError;

/// The memberships of one line.
pub(crate) struct Membership {
    renewal: Renewal,
    /// The id that holds the membership since it was renewed; before, the queue's id holds it.
    holder: Option<CmId>,
    /// The id that has requested the next membership.
    next: Option<CmId>,
    /// Addresses that sends in flight may use, and the number of the first send that does not.
    retired: Vec<(AddressHandle, u64)>,
}

impl Membership {
    /// Creates the state of a line that joins with its queue.
    pub(crate) fn new(from: Ipv4Addr, group: Ipv4Addr) -> Self {
        let seed = u64::from(u32::from(group)) << 32 | u64::from(u32::from(from));
        Self {
            renewal: Renewal::new(seed),
            holder: None,
            next: None,
            retired: Vec::new(),
        }
    }

    /// Returns the next event of the ids that hold or held the membership.
    pub(crate) fn event(&mut self, queue: &mut DatagramQueue) -> Option<CmEvent> {
        let of_holder = self.holder.as_mut().and_then(CmId::event);
        // Events of a group that the queue has left mean nothing, but those of its device do.
        of_holder.or_else(|| queue.id_mut().event())
    }

    /// Notes that the membership ended.
    pub(crate) fn lost(&mut self, now: Instant) {
        self.renewal.lost(now);
    }

    /// Advances the renewal. Returns the route of a new membership once there is one.
    ///
    /// # Errors
    /// The error number of a request that failed. Another one follows.
    pub(crate) fn renew(
        &mut self,
        now: Instant,
        device: &Arc<Device>,
        group: Ipv4Addr,
        join_flags: u32,
    ) -> Result<Option<sys::ibv_ah_attr>, i32> {
        match self.renewal.advance(now, device.is_active()) {
            Action::Wait => Ok(None),
            Action::Ask => match request(device, group, join_flags) {
                Ok(id) => {
                    self.next = Some(id);
                    Ok(None)
                }
                Err(errno) => Err(self.without_answer(now, errno)),
            },
            Action::Abandon => {
                self.next = None;
                Err(libc::ETIMEDOUT)
            }
            Action::Listen => match self.next.as_mut().and_then(CmId::event) {
                None => Ok(None),
                Some(event) => match event.group.filter(|_| event.status == 0) {
                    Some(route) => Ok(Some(route)),
                    None => Err(self.without_answer(now, libc::EIO)),
                },
            },
        }
    }

    fn without_answer(&mut self, now: Instant, errno: i32) -> i32 {
        self.failed(now);
        errno
    }

    /// Drops the request, and repeats it later.
    pub(crate) fn failed(&mut self, now: Instant) {
        self.next = None;
        self.renewal.failed(now);
    }

    /// Keeps the renewed membership and leaves the old one. `old` is the address that the sends before
    /// number `posted` use.
    pub(crate) fn renewed(&mut self, queue: &mut DatagramQueue, old: AddressHandle, posted: u64) {
        self.renewal.settle();
        self.retired.push((old, posted));
        // Dropping the id of a membership leaves it.
        self.holder = self.next.take();
        let _ = queue.leave();
    }

    /// Drops the addresses that no send in flight uses.
    pub(crate) fn forget_done(&mut self, is_done: impl Fn(u64) -> bool) {
        self.retired.retain(|(_, first)| !is_done(*first));
    }

    /// Leaves all memberships but that of the queue.
    pub(crate) fn reset(&mut self) {
        self.renewal.settle();
        (self.holder, self.next) = (None, None);
    }
}

/// Requests a membership with an id of its own.
fn request(device: &Arc<Device>, group: Ipv4Addr, flags: u32) -> Result<CmId, i32> {
    let errno = |error: &VerbsError| match error {
        VerbsError::Call { source, .. } | VerbsError::NoDevice { source, .. } => {
            source.raw_os_error().unwrap_or(libc::EIO)
        }
        _ => libc::EIO,
    };
    let mut id = CmId::new(PortSpace::Udp).map_err(|error| errno(&error))?;
    let bound = id.bind(device.address(), 0);
    bound.map_err(|error| errno(&error))?;
    id.join(group, flags)?;
    Ok(id)
}
