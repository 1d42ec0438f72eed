//! Recovery of a line whose queue breaks, or whose stream begins elsewhere. The line is taken back
//! from the device, so that nothing stays pinned, and a broken line joins its group anew.

use std::time::{Duration, Instant};

use tickcast_reliability::types::Sequence;

use super::{JOIN_MAX, Line};
use crate::device::queue::{AddressHandle, MARKER, TAKEN_MAX};
use crate::device::sys;
use tickcast_transport_base::SendStats;

/// How long a queue that is flushed may take to give everything back.
const FLUSH_MAX: Duration = Duration::from_secs(1);
/// A line that broke joins anew at once, but no more often than this.
const REPAIR_EVERY: Duration = Duration::from_millis(500);

/// Whether a line sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Health {
    Well,
    /// It broke, and nothing is on its way any more. It joins anew at this time.
    Broken(Instant),
    /// It asked to join at this time.
    Asked(Instant),
    /// It could not be taken back from its device, which is broken or gone. It sends no more, and
    /// holds nobody up: what is to go out is counted as refused. Should the device read on, what it
    /// sends of slots that are overwritten has a CRC that is wrong.
    Lost,
}

impl Line {
    /// The device gave up on a send, and so on its queue.
    #[cold]
    pub(crate) fn broke(&mut self, status: u32, stats: &mut SendStats) {
        if self.health == Health::Lost {
            return;
        }
        let (device, group) = (self.device.name(), self.group);
        tracing::warn!(device, %group, status, "a send queue broke (ibv_wc_status); it joins anew");
        stats.last_errno = libc::EIO;
        let now = Instant::now();
        let at = self.broke_at.map_or(now, |before| before + REPAIR_EVERY);
        self.broke_at = Some(at.max(now));
        self.health = Health::Broken(at.max(now));
        self.take_back(stats);
    }

    /// The device told of a change: where that touches the way to the group, it is found anew. What
    /// is on its way would go the old one, so it is taken back.
    #[cold]
    pub(crate) fn changed(&mut self, stats: &mut SendStats) {
        use sys::rdma_cm_event_type as kind;
        self.changes = self.device.watch().changes();
        if self.health != Health::Well {
            // It is about to join anew, or no more.
            return;
        }
        let mut is_stale = !self.address.is_current();
        while let Some(event) = self.queue.id_mut().event() {
            is_stale |= matches!(
                event.kind,
                kind::RDMA_CM_EVENT_MULTICAST_ERROR
                    | kind::RDMA_CM_EVENT_ADDR_CHANGE
                    | kind::RDMA_CM_EVENT_DEVICE_REMOVAL
            );
        }
        if is_stale || self.device.watch().has_failed() {
            self.broke(sys::ibv_wc_status::IBV_WC_GENERAL_ERR, stats);
        }
    }

    /// Brings a broken line forward: joins anew, which gives a way to the group as it is now.
    #[cold]
    pub(crate) fn mend(&mut self, stats: &mut SendStats) {
        let now = Instant::now();
        match self.health {
            Health::Broken(at) if now >= at => {
                // Words about the membership of before.
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
                let address =
                    route.map(|to| AddressHandle::new(&self.device, to, self.traffic_class));
                self.health = match address {
                    Some(Ok(address)) => {
                        self.address = address;
                        Health::Well
                    }
                    _ => Health::Broken(now + REPAIR_EVERY),
                };
            }
            _ => {}
        }
    }

    /// Takes everything back from the device. What was not sent is not sent any more.
    #[cold]
    pub(crate) fn take_back(&mut self, stats: &mut SendStats) {
        stats.restarts += 1;
        // Sends without completions report no flush either, so a marker ends the flush.
        let flushed = self.queue.flush();
        let marked = flushed.and_then(|()| self.queue.post_marker(&self.address));
        let until = Instant::now() + FLUSH_MAX;
        let mut waiting = marked.is_ok();
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
        // From here on the device has nothing, whatever it told of.
        if let Err(error) = self.queue.restart() {
            let (device, group) = (self.device.name(), self.group);
            tracing::error!(device, %group, "a send queue can't be taken back and sends no more; restart the program: {error}");
            stats.last_errno = libc::EIO;
            self.health = Health::Lost;
        }
        self.pins.flushed();
    }

    /// Restarts the line behind another sequence; nothing earlier may be in flight then.
    pub(crate) fn begin_after(&mut self, sequence: Sequence, stats: &mut SendStats) {
        self.collect(stats);
        if self.pins.on_their_way() > 0 && self.health != Health::Lost {
            self.take_back(stats);
        }
        self.pins.begin_after(sequence);
    }

    /// Counts what a broken line does not send; it is done with that.
    #[cold]
    pub(crate) fn refuse(&mut self, last: Sequence, stats: &mut SendStats) {
        if self.pins.taken() < last {
            stats.refused += last.since(self.pins.taken());
            self.pins.skipped(last);
        }
    }
}
