//! Recovery of a line whose queue breaks, or whose stream restarts at another sequence. The line is taken
//! back from the device, so that nothing stays pinned, and a broken line joins its group again.

use std::time::{Duration, Instant};

use tickcast_reliability::types::Sequence;

use super::{JOIN_MAX, Line};
use crate::device::queue::{AddressHandle, MARKER, TAKEN_MAX};
use crate::device::sys;
use tickcast_transport_base::SendStats;

/// Limit for a flushed queue to return all requests.
const FLUSH_MAX: Duration = Duration::from_secs(1);
/// Shortest interval between joins of a broken line. The first join is immediate.
const REPAIR_EVERY: Duration = Duration::from_millis(500);

/// Interval between joins of a line whose port has too small an MTU.
const UNFIT_EVERY: Duration = Duration::from_secs(30);

/// State of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Health {
    Well,
    /// It sends, and renews its membership.
    Renewing,
    /// Broken or never joined, and nothing is in flight. It joins at this time, if its port is active.
    Broken(Instant),
    /// It requested to join at this time.
    Asked(Instant),
    /// It could not be taken back from its device, which is broken or gone. It sends no more and blocks
    /// nobody: its slots are counted as refused. If the device reads on, the datagrams it sends from
    /// overwritten slots have a wrong CRC.
    Lost,
}

impl Health {
    /// Returns whether the line sends.
    #[inline]
    pub(crate) const fn sends(self) -> bool {
        matches!(self, Self::Well | Self::Renewing)
    }
}

impl Line {
    /// Records that the device failed a send, and with it the queue.
    #[cold]
    pub(crate) fn broke(&mut self, status: u32, stats: &mut SendStats) {
        if self.health == Health::Lost {
            return;
        }
        let (device, group) = (self.device.name(), self.group);
        tracing::warn!(device, %group, status, "a send queue failed (ibv_wc_status) and joins its group again");
        stats.last_errno = libc::EIO;
        let now = Instant::now();
        let at = self.broke_at.map_or(now, |before| before + REPAIR_EVERY);
        self.broke_at = Some(at.max(now));
        self.health = Health::Broken(at.max(now));
        self.take_back(stats);
        // The line joins with its queue again.
        self.membership.reset();
    }

    /// Handles a change of the device. If the line can't send to its address any more, it is taken back and
    /// resolves the route again. If only its membership ended, it sends on while it renews it.
    #[cold]
    pub(crate) fn changed(&mut self, stats: &mut SendStats) {
        use sys::rdma_cm_event_type as kind;
        self.changes = self.device.watch().changes();
        if !self.health.sends() {
            // The line is about to join again, or is lost.
            return;
        }
        let address = self.address.as_ref();
        let mut is_stale = !address.is_some_and(AddressHandle::is_current);
        let mut is_member = true;
        while let Some(event) = self.membership.event(&mut self.queue) {
            is_stale |= matches!(
                event.kind,
                kind::RDMA_CM_EVENT_ADDR_CHANGE | kind::RDMA_CM_EVENT_DEVICE_REMOVAL
            );
            is_member &= event.kind != kind::RDMA_CM_EVENT_MULTICAST_ERROR;
        }
        if is_stale || self.device.watch().has_failed() {
            self.broke(sys::ibv_wc_status::IBV_WC_GENERAL_ERR, stats);
        } else if !is_member {
            let (device, group) = (self.device.name(), self.group);
            tracing::info!(device, %group, "a membership ended; the line sends on and renews it");
            self.membership.lost(Instant::now());
            self.health = Health::Renewing;
        }
    }

    /// Advances the renewal of the membership, and sends to the new address once there is one.
    #[cold]
    fn renew(&mut self, now: Instant, stats: &mut SendStats) {
        let membership = &mut self.membership;
        let route = match membership.renew(now, &self.device, self.group, self.join_flags) {
            Ok(None) => return,
            Ok(Some(route)) => route,
            Err(errno) => {
                stats.last_errno = errno;
                self.join_flags = other_flags(self.join_flags);
                let (device, group) = (self.device.name(), self.group);
                tracing::warn!(device, %group, errno, "a membership is not renewed yet; the line sends on");
                return;
            }
        };
        let address = AddressHandle::new(&self.device, route, self.priority);
        let fits = self.device.check_len(self.slot_len_max);
        match (address, fits) {
            (Ok(address), Ok(())) => {
                let pins = &self.pins;
                let is_done = |first: u64| first.checked_sub(1).is_none_or(|it| pins.is_done(it));
                self.membership.forget_done(is_done);
                if let Some(old) = self.address.replace(address) {
                    (self.membership).renewed(&mut self.queue, old, self.pins.posted());
                }
                let (device, group) = (self.device.name(), self.group);
                tracing::info!(device, %group, "a membership was renewed");
                self.health = Health::Well;
            }
            (Err(error), _) => {
                tracing::debug!(group = %self.group, "a membership can't be used: {error}");
                self.membership.failed(now);
            }
            // The port came back with a smaller MTU, which joining reports.
            (_, Err(_)) => self.broke(sys::ibv_wc_status::IBV_WC_GENERAL_ERR, stats),
        }
    }

    /// Advances a broken line: joins again, which resolves the current route to the group.
    #[cold]
    pub(crate) fn mend(&mut self, stats: &mut SendStats) {
        let now = Instant::now();
        match self.health {
            Health::Renewing => self.renew(now, stats),
            Health::Broken(at) if now >= at && !self.device.is_active() => {
                self.health = Health::Broken(now + REPAIR_EVERY);
            }
            Health::Broken(at) if now >= at => {
                // Discard events of the previous membership.
                while self.queue.id_mut().event().is_some() {}
                self.health = match self.queue.join(self.group, self.join_flags) {
                    Ok(()) => Health::Asked(now),
                    Err(errno) => {
                        stats.last_errno = errno;
                        Health::Broken(now + REPAIR_EVERY)
                    }
                };
            }
            Health::Asked(since) => {
                let route = match self.queue.id_mut().event() {
                    Some(event) => event.group.filter(|_| event.status == 0),
                    None if now.duration_since(since) < JOIN_MAX => return,
                    None => None,
                };
                let address = route.map(|to| AddressHandle::new(&self.device, to, self.priority));
                self.health = match address {
                    Some(Ok(address)) => self.comes_up(address, now),
                    _ => {
                        // Some ports join only as full members.
                        self.join_flags = other_flags(self.join_flags);
                        Health::Broken(now + REPAIR_EVERY)
                    }
                };
            }
            _ => {}
        }
    }

    /// Returns the health of a line that joined. A port that went up may have another MTU than before.
    fn comes_up(&mut self, address: AddressHandle, now: Instant) -> Health {
        if let Err(error) = self.device.check_len(self.slot_len_max) {
            tracing::error!(group = %self.group, "a line can't send: {error}");
            return Health::Broken(now + UNFIT_EVERY);
        }
        self.address = Some(address);
        Health::Well
    }

    /// Takes all requests back from the device. Unsent slots are not sent any more.
    #[cold]
    pub(crate) fn take_back(&mut self, stats: &mut SendStats) {
        stats.restarts += 1;
        // Sends without completions report no flush either, so a marker ends the flush.
        let flushed = self.queue.flush();
        let mut waiting = match (flushed, &self.address) {
            (Ok(()), Some(address)) => self.queue.post_marker(address).is_ok(),
            _ => false,
        };
        let until = Instant::now() + FLUSH_MAX;
        while let Ok(done) = self.sent.take(&mut self.taken, TAKEN_MAX) {
            for completion in done {
                if completion.wr_id == MARKER {
                    waiting = false;
                } else if completion.status != sys::ibv_wc_status::IBV_WC_SUCCESS {
                    stats.flushed += 1;
                }
            }
            if done.is_empty() {
                if !waiting {
                    break;
                }
                if Instant::now() >= until {
                    stats.last_errno = libc::ETIMEDOUT;
                    break;
                }
                std::thread::yield_now();
            }
        }
        // From here on the device has no requests, whatever it reported.
        if let Err(error) = self.queue.restart() {
            let (device, group) = (self.device.name(), self.group);
            tracing::error!(device, %group, "a send queue can't be restarted and sends nothing any more; restart the program: {error}");
            stats.last_errno = libc::EIO;
            self.health = Health::Lost;
        }
        self.pins.flushed();
        self.membership.forget_done(|_| self.health != Health::Lost);
    }

    /// Restarts the line behind another sequence; nothing earlier may be in flight then.
    pub(crate) fn begin_after(&mut self, sequence: Sequence, stats: &mut SendStats) {
        self.collect(stats);
        if self.pins.in_flight() > 0 && self.health != Health::Lost {
            self.take_back(stats);
        }
        self.pins.begin_after(sequence);
    }

    /// Counts the slots that a broken line does not send as refused, and marks them as done.
    #[cold]
    pub(crate) fn refuse(&mut self, last: Sequence, stats: &mut SendStats) {
        if self.pins.taken() < last {
            stats.refused += last.since(self.pins.taken());
            self.pins.skipped(last);
        }
    }
}

/// Returns the other way to join.
const fn other_flags(flags: u32) -> u32 {
    match flags {
        sys::JOIN_SEND_ONLY => sys::JOIN_FULL_MEMBER,
        _ => sys::JOIN_SEND_ONLY,
    }
}
