//! One line: its queue, its membership, and the recovery of both.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Instant;

use tickcast_reliability::delivery::LineId;
use tickcast_reliability::types::Nanos;

use super::queue::ReceiveQueue;
use super::reopening::{RETRY_EVERY, Reopening};
use super::waiting::Waiting;
use crate::config::{VerbsReceiveLine, VerbsReceiverConfig, VerbsSender};
use crate::device::queue::TAKEN_MAX;
use crate::device::sys::{self, GRH_LEN};
use crate::error::{VerbsError, failed};
use tickcast_transport_base::{ReceiveStats, Received};

/// Delay before a refused membership is requested again.
const JOIN_RETRY: Nanos = Nanos::from_ms(500);
/// Limit for the answer to a join.
const JOIN_MAX: Nanos = Nanos::from_secs(5);
/// Longest delay of a join after a port went up.
const JITTER_MAX: Nanos = Nanos::from_ms(100);
/// Interval between checks for events of a membership, without and with a waiting thread.
const NEWS_EVERY: Nanos = Nanos::from_secs(1);
const NEWS_EVERY_WAITABLE: Nanos = Nanos::from_ms(1);

/// One line of a receiver.
pub(super) struct Line {
    /// `None` while the helper thread opens another queue, because the last one broke or its device is gone.
    queue: Option<Box<ReceiveQueue>>,
    reopening: Reopening,
    membership: Membership,
    config: VerbsReceiverConfig,
    line: VerbsReceiveLine,
    opened_at: Instant,
    waited: bool,
    /// Whether a completion arrived since the descriptor was armed.
    stirred: bool,
    /// Time of the next check for events, and the device's change count at the last check.
    news_at: Nanos,
    changes: u64,
    /// The count of times that a port of the device went up, at the last join.
    activations: u64,
    /// The port's counts of datagrams without a buffer, and with another Q_Key.
    dropped: SinceOpened,
    wrong: SinceOpened,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Membership {
    /// Not a member, and not to become one.
    Out,
    /// To be requested at this time.
    Due(Nanos),
    /// Requested; this is the deadline for the answer. Zero: the next poll sets the deadline.
    Asked(Nanos),
    In,
}

/// A counter of a port, which begins anew when the device returns.
#[derive(Clone, Copy, Debug, Default)]
struct SinceOpened {
    /// The count of earlier devices, and that of this one when it was opened.
    earlier: u64,
    before: u64,
}

impl SinceOpened {
    /// Begins with another device.
    const fn begin(&mut self, total: u64, before: u64) {
        (self.earlier, self.before) = (total, before);
    }

    const fn total(&self, now: u64) -> u64 {
        self.earlier + now.saturating_sub(self.before)
    }
}

impl Line {
    /// Opens the line's device and queue, and requests its membership if the port is up.
    ///
    /// # Errors
    /// [`VerbsError`] names the step that failed and the remedy.
    pub(super) fn open(
        config: &VerbsReceiverConfig,
        line: &VerbsReceiveLine,
        waiting: &Waiting,
    ) -> Result<Self, VerbsError> {
        let queue = Box::new(ReceiveQueue::open(config, line)?);
        waiting.add(&queue)?;
        let reopening = Reopening::start(config, line, waiting.wake_up());
        let reopening = reopening.map_err(|source| VerbsError::Call {
            what: "start the helper thread of a line",
            source,
        })?;
        let device = Arc::clone(queue.device());
        let mut opened = Self {
            membership: Membership::Due(Nanos::ZERO),
            config: config.clone(),
            line: line.clone(),
            opened_at: Instant::now(),
            waited: config.waitable,
            stirred: false,
            news_at: Nanos::ZERO,
            changes: 0,
            activations: 0,
            dropped: SinceOpened::default(),
            wrong: SinceOpened::default(),
            queue: Some(queue),
            reopening,
        };
        opened.begin(&ReceiveStats::default());
        let group = line.group;
        let name = device.name();
        if !device.is_active() {
            tracing::warn!(device = name, %group, "a line's port is down; the line is joined once the port is up");
            return Ok(opened);
        }
        opened.ask(Nanos::ZERO).map_err(|errno| VerbsError::Join {
            group,
            device: name.to_owned(),
            reason: failed("rdma_join_multicast", errno).to_string(),
        })?;
        Ok(opened)
    }

    /// Returns the queue, if it is open.
    pub(super) fn queue(&self) -> Option<&ReceiveQueue> {
        self.queue.as_deref()
    }

    /// Returns whether the line is a member of its group, as of the last poll.
    pub(super) fn is_member(&self) -> bool {
        self.membership == Membership::In
    }

    /// Requests the membership with the next poll, if there is none.
    pub(super) fn request(&mut self) {
        if self.membership == Membership::Out {
            self.membership = Membership::Due(Nanos::ZERO);
        }
    }

    /// Leaves the group.
    pub(super) fn leave(&mut self) -> Result<(), i32> {
        let before = std::mem::replace(&mut self.membership, Membership::Out);
        match &mut self.queue {
            Some(queue) if before != Membership::Out => queue.leave(),
            _ => Ok(()),
        }
    }

    /// Sets whether a thread waits on the descriptors.
    pub(super) const fn set_waited(&mut self, waited: bool) {
        self.waited = waited && self.config.waitable;
        // A datagram may have arrived meanwhile, with its event consumed and the descriptor not armed.
        self.stirred |= self.waited;
    }

    /// Begins with the queue that was just opened.
    fn begin(&mut self, stats: &ReceiveStats) {
        let Some(queue) = &self.queue else {
            return;
        };
        let (watch, counters) = (queue.device().watch(), queue.device().counters());
        (self.changes, self.activations) = (watch.changes(), watch.activations());
        self.opened_at = Instant::now();
        self.dropped
            .begin(stats.buffer_drops, counters.dropped().unwrap_or(0));
        self.wrong.begin(stats.wrong_q_keys, counters.wrong());
    }

    /// Gives the queue up, because the device failed it or is gone. Datagrams are lost until the helper
    /// thread has opened another one.
    #[cold]
    fn broke(&mut self, status: u32, errno: i32, stats: &mut ReceiveStats, waiting: &Waiting) {
        let Some(queue) = self.queue.take() else {
            return;
        };
        let (device, group) = (queue.device().name(), self.line.group);
        if errno == libc::ENODEV {
            tracing::warn!(device, %group, "the device of a receive queue is gone; the line opens it once it is back");
        } else {
            tracing::warn!(device, %group, status, "a receive queue failed (ibv_wc_status) and is opened again");
        }
        stats.transient_errors += 1;
        stats.restarts += 1;
        stats.last_errno = errno;
        waiting.remove(&queue);
        // A queue that breaks again and again is not opened more often than this.
        let delay = RETRY_EVERY.saturating_sub(self.opened_at.elapsed());
        if !self.reopening.replace(queue, delay) {
            tracing::error!(%group, "the helper thread of a line has ended; the line hears nothing any more, so restart the program");
        }
        if self.membership != Membership::Out {
            self.membership = Membership::Due(Nanos::ZERO);
        }
    }

    /// Continues with the queue that the helper thread has opened, if it has. Returns whether it has.
    #[cold]
    pub(super) fn take_opened(&mut self, stats: &ReceiveStats, waiting: &Waiting) -> bool {
        let Some(queue) = self.reopening.opened() else {
            return false;
        };
        let (device, group) = (queue.device().name(), self.line.group);
        tracing::info!(device, %group, "a receive queue is open again");
        if let Err(error) = waiting.add(&queue) {
            tracing::error!(device, %group, "a receive queue that was opened again wakes nobody: {error}");
        }
        self.queue = Some(queue);
        // The thread that waits has not armed the descriptor since.
        self.stirred = true;
        self.begin(stats);
        true
    }

    fn ask(&mut self, now: Nanos) -> Result<(), i32> {
        if let Some(queue) = &mut self.queue {
            queue.join(self.line.group)?;
            self.membership = Membership::Asked(now);
        }
        Ok(())
    }

    /// Advances a membership that is requested or due.
    #[cold]
    fn settle(&mut self, now: Nanos, stats: &mut ReceiveStats, waiting: &Waiting) {
        while let Some(queue) = &mut self.queue
            && let Some(event) = queue.event()
        {
            let asked = matches!(self.membership, Membership::Asked(_));
            if event.group.is_some() && event.status == 0 && asked {
                self.membership = Membership::In;
                stats.joins += 1;
            } else if event.is_of_device() {
                return self.broke(0, libc::ENODEV, stats, waiting);
            } else if self.membership != Membership::Out {
                stats.transient_errors += 1;
                // The library's -1 is not an error number.
                stats.last_errno = match event.status.abs() {
                    0 | 1 => libc::EIO,
                    errno => errno,
                };
                // An event of the subnet manager reaches all receivers at once.
                let spread = jitter(queue.device().address(), self.line.group);
                self.membership = Membership::Due(now.after(JOIN_RETRY).after(spread));
            }
        }
        let is_active = |queue: &ReceiveQueue| queue.device().is_active();
        match self.membership {
            Membership::Asked(Nanos::ZERO) => self.membership = Membership::Asked(now),
            Membership::Asked(since) if now.since(since) > JOIN_MAX => {
                stats.transient_errors += 1;
                self.membership = Membership::Due(now);
            }
            Membership::Due(at) if now >= at && !self.queue().is_some_and(is_active) => {
                self.membership = Membership::Due(now.after(JOIN_RETRY));
            }
            Membership::Due(at) if now >= at => {
                if let Err(errno) = self.ask(now) {
                    stats.last_errno = errno;
                    stats.transient_errors += 1;
                    self.membership = Membership::Due(now.after(JOIN_RETRY));
                }
            }
            _ => {}
        }
    }

    /// Passes arrived datagrams to the caller, up to a batch.
    #[inline]
    pub(super) fn poll(
        &mut self,
        id: LineId,
        now: Nanos,
        stats: &mut ReceiveStats,
        waiting: &Waiting,
        on: &mut dyn FnMut(Received<'_>),
    ) -> usize {
        let Some(queue) = &mut self.queue else {
            return 0;
        };
        let (batch, len_max) = (self.config.batch, self.config.datagram_len_max);
        let mut count = 0;
        loop {
            let wanted = (batch - count).min(TAKEN_MAX);
            let Ok(arrived) = queue.take(wanted) else {
                let status = sys::ibv_wc_status::IBV_WC_GENERAL_ERR;
                self.broke(status, libc::EIO, stats, waiting);
                return count;
            };
            if arrived == 0 && self.waited && self.stirred && count == 0 {
                // Arm the descriptor, because the thread is about to sleep again.
                self.stirred = false;
                queue.rearm();
                continue;
            }
            self.stirred |= arrived > 0;
            for at in 0..arrived {
                let completion = queue.completion(at);
                let (buffer, status) = (completion.wr_id, completion.status);
                if status != sys::ibv_wc_status::IBV_WC_SUCCESS {
                    self.broke(status, libc::EIO, stats, waiting);
                    return count + at;
                }
                let len = (completion.byte_len as usize).saturating_sub(GRH_LEN);
                let has_header = completion.wc_flags & sys::ibv_wc_flags::IBV_WC_GRH.0 != 0;
                let (from, bytes) = queue.datagram(buffer, len);
                let from = from.filter(|_| has_header);
                if len > len_max {
                    stats.oversize += 1;
                } else if let Some(from) = from.and_then(|gid| known(&self.line.senders, gid)) {
                    stats.datagrams += 1;
                    stats.bytes += len as u64;
                    on(Received {
                        line: id,
                        from,
                        bytes,
                        received_at: now,
                        whole: false,
                    });
                } else {
                    stats.unknown_senders += 1;
                }
                if queue.post_again(buffer).is_err() {
                    self.broke(0, libc::EIO, stats, waiting);
                    return count + at + 1;
                }
            }
            count += arrived;
            if queue.post_all().is_err() {
                self.broke(0, libc::EIO, stats, waiting);
                return count;
            }
            if arrived < wanted || count >= batch {
                break;
            }
        }
        stats.batches += u64::from(count > 0);
        let hasty = match self.membership {
            Membership::In | Membership::Out => false,
            Membership::Due(at) => now >= at,
            Membership::Asked(_) => true,
        };
        if hasty
            || count == 0 && now >= self.news_at
            || self.changes != queue.device().watch().changes()
        {
            self.refresh(now, stats, waiting);
        }
        count
    }

    /// Does the work that is not urgent: events, membership and counters.
    #[cold]
    fn refresh(&mut self, now: Nanos, stats: &mut ReceiveStats, waiting: &Waiting) {
        let Some(queue) = &self.queue else {
            return;
        };
        let device = Arc::clone(queue.device());
        self.news_at = now.after(if self.waited {
            NEWS_EVERY_WAITABLE
        } else {
            NEWS_EVERY
        });
        self.changes = device.watch().changes();
        if device.watch().has_failed() {
            return self.broke(0, libc::ENODEV, stats, waiting);
        }
        let activations = device.watch().activations();
        if activations != self.activations && self.membership != Membership::Out {
            // The kernel does not repeat a membership when the carrier returns, so the switch may not
            // have it. All receivers behind a switch see its return at once: they spread their joins.
            self.membership = Membership::Due(now.after(jitter(device.address(), self.line.group)));
        }
        self.activations = activations;
        stats.wrong_q_keys = self.wrong.total(device.counters().wrong());
        if let Some(dropped) = device.counters().dropped() {
            stats.buffer_drops = self.dropped.total(dropped);
        }
        self.settle(now, stats, waiting);
    }
}

/// Returns the address of an allowed sender, else `None`.
#[inline]
fn known(senders: &[VerbsSender], gid: Ipv6Addr) -> Option<Ipv4Addr> {
    if senders.is_empty() {
        // On InfiniBand packets do not carry the sender's IPv4 address.
        return Some(gid.to_ipv4_mapped().unwrap_or(Ipv4Addr::UNSPECIFIED));
    }
    let known = senders.iter().find(|sender| sender.gid == gid);
    known.map(|sender| sender.address)
}

/// Returns the delay of a join, up to [`JITTER_MAX`], which is the same each time.
fn jitter(address: Ipv4Addr, group: Ipv4Addr) -> Nanos {
    let of = u64::from(u32::from(group)) << 32 | u64::from(u32::from(address));
    // Multiples of the golden ratio are spread evenly (Knuth, TAOCP 3, 6.4).
    let share = of.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    Nanos(JITTER_MAX.0 * share / u64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_counts_go_on_over_devices_that_return() {
        let mut count = SinceOpened::default();
        count.begin(0, 7);
        assert_eq!((count.total(7), count.total(10)), (0, 3));
        // The device was loaded again, and counts from 0.
        count.begin(3, 0);
        assert_eq!((count.total(0), count.total(2)), (3, 5));
    }

    #[test]
    fn joins_after_port_return_are_spread() {
        let group = Ipv4Addr::new(239, 9, 0, 1);
        let delays: Vec<_> = (1..=100)
            .map(|host| jitter(Ipv4Addr::new(10, 1, 0, host), group))
            .collect();
        assert!(delays.iter().all(|delay| *delay <= JITTER_MAX));
        // Every tenth of the time has some of a hundred hosts.
        for tenth in 0..10 {
            let from = JITTER_MAX.0 / 10 * tenth;
            let to = from + JITTER_MAX.0 / 10;
            let within = delays.iter().filter(|at| (from..=to).contains(&at.0));
            assert!(within.count() >= 3, "tenth {tenth}");
        }
    }
}
