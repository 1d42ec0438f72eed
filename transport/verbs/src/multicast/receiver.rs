//! The verbs receiver: posted buffers of a whole packet each, lent by reference and posted again
//! in batches.
//!
//! Every buffer has room for the largest packet that any port sends, whatever the slot size and this
//! port's MTU. The MTU limits only what this port sends, and with shorter buffers one long datagram of
//! any group member would break the queue. Joining starts at opening, and later polls complete it. A
//! line whose queue breaks all the same is restarted while the other continues.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::ptr;
use std::sync::Arc;

use tickcast_reliability::delivery::LineId;
use tickcast_reliability::types::Nanos;

use crate::config::{VerbsReceiveLine, VerbsReceiverConfig, VerbsSender};
use crate::device::Device;
use crate::device::cm::{CmId, PortSpace};
use crate::device::queue::{Completions, DatagramQueue, Depths, TAKEN_MAX, no_completion};
use crate::device::region::Region;
use crate::device::sys::{self, GRH_LEN};
use crate::error::{VerbsError, done, failed};
use tickcast_transport_base::host::mapping::SharedMapping;
use tickcast_transport_base::{Receive, ReceiveError, ReceiveStats, Received};

/// Delay before a refused membership is requested again.
const JOIN_RETRY: Nanos = Nanos::from_ms(500);
/// Limit for the answer to a join.
const JOIN_MAX: Nanos = Nanos::from_secs(5);
/// Longest delay of a join after a port went up.
const JITTER_MAX: Nanos = Nanos::from_ms(100);
/// Interval between checks for events of a membership, without and with a waiting thread.
const NEWS_EVERY: Nanos = Nanos::from_secs(1);
const NEWS_EVERY_WAITABLE: Nanos = Nanos::from_ms(1);
/// Shortest interval between restarts. The first restart of a broken queue is immediate.
const RESTART_EVERY: Nanos = Nanos::from_ms(500);
/// Length of the longest possible datagram, in bytes: the largest MTU of InfiniBand.
const PACKET_MAX: usize = 4096;
/// Padding before the header, so that the payload after it begins on a cache line.
const LEAD: usize = 64 - GRH_LEN;

/// Receives a channel by RDMA multicast.
pub struct VerbsReceiver {
    lines: Vec<Line>,
    stats: Vec<ReceiveStats>,
    fds: Vec<RawFd>,
    batch: usize,
    datagram_len_max: usize,
}

/// Drop order: the queue before its buffers.
struct Line {
    queue: DatagramQueue,
    buffers: Region,
    arrived: Completions,
    _sent: Completions,
    device: Arc<Device>,
    health: Health,
    membership: Membership,
    group: Ipv4Addr,
    depth: u32,
    senders: Vec<VerbsSender>,
    stride: usize,
    /// Whether packets have an IPv4 header, according to the port's own identifier.
    over_ipv4: bool,
    requests: Requests,
    taken: [sys::ibv_wc; TAKEN_MAX],
    waitable: bool,
    /// Whether a thread waits on the descriptors.
    waited: bool,
    /// Whether a completion arrived since the descriptor was armed.
    stirred: bool,
    /// Time of the next check for events, and the device's change count at the last check.
    news_at: Nanos,
    changes: u64,
    /// The count of times that a port of the device went up, at the last join.
    activations: u64,
    /// The device's count of datagrams without a buffer when the line was opened.
    dropped_before: u64,
    /// The device's count of datagrams with another Q_Key when the line was opened.
    wrong_before: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Health {
    /// Working. If it fails, it may be restarted from this time on.
    Well(Nanos),
    /// Broken, to be restarted at this time.
    Broken(Nanos),
    /// A restart failed, to be retried at this time.
    Failed(Nanos),
    /// The device was removed.
    Gone,
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

/// Receives to be posted together.
struct Requests {
    requests: Box<[sys::ibv_recv_wr]>,
    pieces: Box<[sys::ibv_sge]>,
    len: usize,
}

// SAFETY: the pointers inside are set when requests are posted and mean nothing afterwards.
// Exercised by `verbs::datagrams::verbs_fan_out_reaches_all_receivers`.
unsafe impl Send for Requests {}

impl VerbsReceiver {
    /// Opens a queue per line, posts its buffers, and requests its membership.
    ///
    /// # Errors
    /// [`VerbsError`] names the step that failed and the remedy.
    pub fn open(config: &VerbsReceiverConfig) -> Result<Self, VerbsError> {
        config.check()?;
        let lines = config.lines.iter().map(|line| Line::open(config, line));
        let lines = lines.collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            fds: lines.iter().flat_map(Line::fds).collect(),
            stats: vec![ReceiveStats::default(); lines.len()],
            lines,
            batch: config.batch,
            datagram_len_max: config.datagram_len_max,
        })
    }

    /// Returns the device of each line.
    #[must_use]
    pub fn devices(&self) -> Vec<Arc<Device>> {
        self.lines
            .iter()
            .map(|line| Arc::clone(&line.device))
            .collect()
    }

    /// Returns whether every line is a member of its group, as of the last poll.
    #[must_use]
    pub fn is_joined(&self) -> bool {
        self.lines
            .iter()
            .all(|line| line.membership == Membership::In)
    }

    fn line(&mut self, line: LineId) -> Result<(&mut Line, &mut ReceiveStats), ReceiveError> {
        let (at, lines) = (usize::from(line.0), self.lines.len());
        match (self.lines.get_mut(at), self.stats.get_mut(at)) {
            (Some(line), Some(stats)) => Ok((line, stats)),
            _ => Err(ReceiveError::NoSuchLine { line, lines }),
        }
    }
}

impl Line {
    fn open(config: &VerbsReceiverConfig, line: &VerbsReceiveLine) -> Result<Self, VerbsError> {
        let device = Device::of(&line.interface, config.datagram_len_max)?;
        let id = CmId::new(PortSpace::Udp)?;
        id.bind(device.address(), 0)?;
        let arrived = Completions::new(&device, config.depth, config.waitable)?;
        let sent = Completions::new(&device, 1, false)?;
        let depths = Depths {
            send: 1,
            receive: config.depth,
            inline_bytes: 0,
        };
        let queue = DatagramQueue::new(&device, id, &sent, &arrived, &depths, config.q_key)?;
        let stride = (64 + PACKET_MAX).next_multiple_of(64);
        let memory = SharedMapping::memfd("receive", stride * config.depth as usize);
        let memory = memory.map_err(|error| VerbsError::Call {
            what: "allocate receive buffers",
            source: std::io::Error::other(error),
        })?;
        let mut line = Self {
            buffers: Region::writable(&device, Arc::new(memory), "datagrams received")?,
            queue,
            arrived,
            _sent: sent,
            health: Health::Well(Nanos::ZERO),
            membership: Membership::Due(Nanos::ZERO),
            group: line.group,
            depth: config.depth,
            senders: line.senders.clone(),
            stride,
            over_ipv4: device.gid().to_ipv4_mapped().is_some(),
            requests: Requests::new(),
            taken: std::array::from_fn(|_| no_completion()),
            waitable: config.waitable,
            waited: config.waitable,
            stirred: false,
            news_at: Nanos::ZERO,
            changes: device.watch().changes(),
            activations: device.watch().activations(),
            dropped_before: device.counters().dropped().unwrap_or(0),
            wrong_before: device.counters().wrong(),
            device,
        };
        // Post all buffers before joining, so that no datagram finds the queue empty.
        line.post_everything()?;
        if !line.device.is_active() {
            let (device, group) = (line.device.name(), line.group);
            tracing::warn!(device, %group, "a line's port is down; the line is joined once the port is up");
            return Ok(line);
        }
        line.ask(Nanos::ZERO).map_err(|errno| VerbsError::Join {
            group: line.group,
            device: line.device.name().to_owned(),
            reason: failed("rdma_join_multicast", errno).to_string(),
        })?;
        Ok(line)
    }

    /// Returns the descriptors to wait on, if waiting is enabled: datagrams, then membership events.
    fn fds(&self) -> impl Iterator<Item = RawFd> + use<> {
        let fds = self
            .waitable
            .then(|| [self.arrived.fd(), self.queue.id().as_raw_fd()]);
        fds.into_iter().flatten()
    }

    /// Posts all buffers; none may be posted yet.
    fn post_everything(&mut self) -> Result<(), VerbsError> {
        for buffer in 0..u64::from(self.depth) {
            self.post_again(buffer)?;
        }
        self.post_all()
    }

    /// Records that the device failed the queue. Datagrams are lost until it is restarted.
    #[cold]
    fn broke(&mut self, status: u32, now: Nanos, stats: &mut ReceiveStats) {
        let (device, group) = (self.device.name(), self.group);
        tracing::warn!(device, %group, status, "a receive queue failed (ibv_wc_status)");
        stats.transient_errors += 1;
        stats.last_errno = libc::EIO;
        self.health = match self.health {
            Health::Well(from) => Health::Broken(from.max(now)),
            other => other,
        };
        self.mend(now, stats);
    }

    /// Restarts a broken queue, when it is time.
    #[cold]
    fn mend(&mut self, now: Nanos, stats: &mut ReceiveStats) {
        match self.health {
            Health::Broken(at) | Health::Failed(at) if now >= at => {
                stats.restarts += 1;
                self.health = match self.restart() {
                    Ok(()) => Health::Well(now.after(RESTART_EVERY)),
                    Err(error) => {
                        tracing::warn!("a receive queue can't be restarted: {error}");
                        stats.last_errno = libc::EIO;
                        Health::Failed(now.after(RESTART_EVERY))
                    }
                };
                if self.membership != Membership::Out {
                    self.membership = Membership::Due(now);
                }
            }
            _ => {}
        }
    }

    fn restart(&mut self) -> Result<(), VerbsError> {
        self.queue.restart()?;
        // Earlier posts are void, and their completions mean nothing.
        self.requests.len = 0;
        while self
            .arrived
            .take(&mut self.taken, TAKEN_MAX)
            .is_ok_and(|taken| !taken.is_empty())
        {}
        self.arrived.rearm();
        self.post_everything()
    }

    /// Returns whether the restart failed or the device is gone.
    const fn is_out_of_order(&self) -> bool {
        matches!(self.health, Health::Failed(_) | Health::Gone)
    }

    fn ask(&mut self, now: Nanos) -> Result<(), i32> {
        self.queue.join(self.group, sys::JOIN_FULL_MEMBER)?;
        self.membership = Membership::Asked(now);
        Ok(())
    }

    /// Advances a membership that is requested or due.
    #[cold]
    fn settle(&mut self, now: Nanos, stats: &mut ReceiveStats) {
        while let Some(event) = self.queue.id_mut().event() {
            let asked = matches!(self.membership, Membership::Asked(_));
            if event.group.is_some() && event.status == 0 && asked {
                self.membership = Membership::In;
                stats.joins += 1;
            } else if event.kind == sys::rdma_cm_event_type::RDMA_CM_EVENT_DEVICE_REMOVAL {
                stats.last_errno = libc::ENODEV;
                self.health = Health::Gone;
                return;
            } else if self.membership != Membership::Out {
                stats.transient_errors += 1;
                // The library's -1 is not an error number.
                stats.last_errno = match event.status.abs() {
                    0 | 1 => libc::EIO,
                    errno => errno,
                };
                // An event of the subnet manager reaches all receivers at once.
                let spread = jitter(self.device.address(), self.group);
                self.membership = Membership::Due(now.after(JOIN_RETRY).after(spread));
            }
        }
        match self.membership {
            Membership::Asked(Nanos::ZERO) => self.membership = Membership::Asked(now),
            Membership::Asked(since) if now.since(since) > JOIN_MAX => {
                stats.transient_errors += 1;
                self.membership = Membership::Due(now);
            }
            Membership::Due(at) if now >= at && !self.device.is_active() => {
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

    /// Passes arrived datagrams to the caller, up to `batch`.
    #[inline]
    fn poll(
        &mut self,
        line: LineId,
        now: Nanos,
        batch: usize,
        len_max: usize,
        stats: &mut ReceiveStats,
        on: &mut dyn FnMut(Received<'_>),
    ) -> usize {
        if !matches!(self.health, Health::Well(_)) {
            self.mend(now, stats);
            return 0;
        }
        let mut count = 0;
        loop {
            let wanted = (batch - count).min(TAKEN_MAX);
            let arrived = match self.arrived.take(&mut self.taken, wanted) {
                Ok(arrived) => arrived.len(),
                Err(_) => {
                    self.broke(sys::ibv_wc_status::IBV_WC_GENERAL_ERR, now, stats);
                    return count;
                }
            };
            if arrived == 0 && self.waited && self.stirred && count == 0 {
                // Arm the descriptor, because the thread is about to sleep again.
                self.stirred = false;
                self.arrived.rearm();
                continue;
            }
            self.stirred |= arrived > 0;
            for at in 0..arrived {
                let completion = &self.taken[at];
                let (buffer, status) = (completion.wr_id, completion.status);
                if status != sys::ibv_wc_status::IBV_WC_SUCCESS {
                    self.broke(status, now, stats);
                    return count + at;
                }
                let len = (completion.byte_len as usize).saturating_sub(GRH_LEN);
                let has_header = completion.wc_flags & sys::ibv_wc_flags::IBV_WC_GRH.0 != 0;
                let (from, bytes) = self.datagram(buffer, len);
                if len > len_max {
                    stats.oversize += 1;
                } else if let Some(from) = from.filter(|_| has_header).and_then(|f| self.known(f)) {
                    stats.datagrams += 1;
                    stats.bytes += len as u64;
                    on(Received {
                        line,
                        from,
                        bytes,
                        received_at: now,
                        whole: false,
                    });
                } else {
                    stats.unknown_senders += 1;
                }
                if self.post_again(buffer).is_err() {
                    self.broke(0, now, stats);
                    return count + at + 1;
                }
            }
            count += arrived;
            if self.post_all().is_err() {
                self.broke(0, now, stats);
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
            || self.changes != self.device.watch().changes()
        {
            self.refresh(now, stats);
        }
        count
    }

    /// Does the work that is not urgent: events, membership and counters.
    #[cold]
    fn refresh(&mut self, now: Nanos, stats: &mut ReceiveStats) {
        self.news_at = now.after(if self.waited {
            NEWS_EVERY_WAITABLE
        } else {
            NEWS_EVERY
        });
        self.changes = self.device.watch().changes();
        if self.device.watch().has_failed() {
            stats.last_errno = libc::ENODEV;
            self.health = Health::Gone;
            return;
        }
        let activations = self.device.watch().activations();
        if activations != self.activations && self.membership != Membership::Out {
            // The kernel does not repeat a membership when the carrier returns, so the switch may not
            // have it. All receivers behind a switch see its return at once: they spread their joins.
            self.membership = Membership::Due(now.after(jitter(self.device.address(), self.group)));
        }
        self.activations = activations;
        self.settle(now, stats);
        let counters = self.device.counters();
        stats.wrong_q_keys = counters.wrong().saturating_sub(self.wrong_before);
        if let Some(dropped) = counters.dropped() {
            stats.buffer_drops = dropped.saturating_sub(self.dropped_before);
        }
    }

    /// Returns the address of an allowed sender, else `None`.
    #[inline]
    fn known(&self, gid: Ipv6Addr) -> Option<Ipv4Addr> {
        if self.senders.is_empty() {
            // On InfiniBand packets do not carry the sender's IPv4 address.
            return Some(gid.to_ipv4_mapped().unwrap_or(Ipv4Addr::UNSPECIFIED));
        }
        let known = self.senders.iter().find(|sender| sender.gid == gid);
        known.map(|sender| sender.address)
    }

    /// Returns the sender's identifier and the bytes of the datagram in a buffer.
    fn datagram(&self, buffer: u64, len: usize) -> (Option<Ipv6Addr>, &[u8]) {
        let len = len.min(self.stride - 64);
        // SAFETY: the buffer is one of ours and completed, so the device does not write it until
        // it is posted again, for which `&mut self` is needed; all of it was written or zeroed.
        // Exercised by `verbs::datagrams::verbs_fan_out_reaches_all_receivers`.
        let (header, bytes) = unsafe {
            let start = self.buffers.as_ptr().add(buffer as usize * self.stride);
            let header = std::slice::from_raw_parts(start.add(LEAD), GRH_LEN);
            (header, std::slice::from_raw_parts(start.add(64), len))
        };
        (sender_of(header, self.over_ipv4), bytes)
    }

    /// Queues a buffer to be posted, and posts the queued buffers once there are many.
    fn post_again(&mut self, buffer: u64) -> Result<(), VerbsError> {
        let at = self.requests.len;
        self.requests.pieces[at] = sys::ibv_sge {
            addr: self.buffers.as_ptr().addr() as u64 + buffer * self.stride as u64 + LEAD as u64,
            length: (self.stride - LEAD) as u32,
            lkey: self.buffers.lkey(),
        };
        self.requests.requests[at].wr_id = buffer;
        self.requests.len += 1;
        if self.requests.len == TAKEN_MAX {
            return self.post_all();
        }
        Ok(())
    }

    fn post_all(&mut self) -> Result<(), VerbsError> {
        let len = std::mem::take(&mut self.requests.len);
        if len == 0 {
            return Ok(());
        }
        let requests = self.requests.requests.as_mut_ptr();
        let pieces = self.requests.pieces.as_mut_ptr();
        // SAFETY: all indices are below `len`, at most the length of both arrays; every piece is
        // within the registered buffers, of which each is posted once. Exercised by
        // `verbs::datagrams::verbs_fan_out_reaches_all_receivers`.
        let error = unsafe {
            for i in 0..len {
                let request = requests.add(i);
                (*request).sg_list = pieces.add(i);
                (*request).num_sge = 1;
                (*request).next = if i + 1 < len {
                    requests.add(i + 1)
                } else {
                    ptr::null_mut()
                };
            }
            self.queue.post_receive(requests, &mut ptr::null_mut())
        };
        done("ibv_post_recv", error)
    }
}

impl Requests {
    fn new() -> Self {
        // SAFETY: zero is a value of every field: numbers and null pointers.
        // Exercised by `verbs::datagrams::verbs_fan_out_reaches_all_receivers`.
        let request = || unsafe { std::mem::zeroed::<sys::ibv_recv_wr>() };
        let piece = sys::ibv_sge {
            addr: 0,
            length: 0,
            lkey: 0,
        };
        Self {
            requests: (0..TAKEN_MAX).map(|_| request()).collect(),
            pieces: vec![piece; TAKEN_MAX].into_boxed_slice(),
            len: 0,
        }
    }
}

impl Receive for VerbsReceiver {
    fn poll(
        &mut self,
        now: Nanos,
        on: &mut dyn FnMut(Received<'_>),
    ) -> Result<usize, ReceiveError> {
        let mut count = 0;
        for (i, line) in self.lines.iter_mut().enumerate() {
            let stats = &mut self.stats[i];
            let id = LineId(i as u8);
            count += line.poll(id, now, self.batch, self.datagram_len_max, stats, on);
        }
        if self.lines.iter().all(Line::is_out_of_order) {
            return Err(out_of_order(&self.lines[0].device));
        }
        Ok(count)
    }

    fn join(&mut self, line: LineId) -> Result<(), ReceiveError> {
        let (line, _) = self.line(line)?;
        if line.membership == Membership::Out {
            // Request it with the next poll; the answer comes later still.
            line.membership = Membership::Due(Nanos::ZERO);
        }
        Ok(())
    }

    fn leave(&mut self, line: LineId) -> Result<(), ReceiveError> {
        let id = line;
        let (line, _) = self.line(line)?;
        if line.membership == Membership::Out {
            return Ok(());
        }
        line.membership = Membership::Out;
        line.queue
            .leave()
            .map_err(|errno| ReceiveError::Membership {
                line: id,
                source: std::io::Error::from_raw_os_error(errno),
            })
    }

    fn raw_fds(&self) -> &[RawFd] {
        &self.fds
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        let fds = self.fds.iter();
        // SAFETY: a descriptor is open for as long as its completions or its id live, that is this
        // value. Exercised by `verbs::datagrams::sleeping_verbs_receiver_is_woken_by_datagram`.
        fds.map(|&fd| unsafe { BorrowedFd::borrow_raw(fd) })
            .collect()
    }

    fn set_waited(&mut self, waited: bool) {
        for line in &mut self.lines {
            line.waited = waited && line.waitable;
            // A datagram may have arrived meanwhile, with its event consumed and the descriptor not armed.
            line.stirred |= line.waited;
        }
    }

    fn stats(&self) -> &[ReceiveStats] {
        &self.stats
    }
}

/// Returns the delay of a join, up to [`JITTER_MAX`], which is the same each time.
fn jitter(address: Ipv4Addr, group: Ipv4Addr) -> Nanos {
    let of = u64::from(u32::from(group)) << 32 | u64::from(u32::from(address));
    // Multiples of the golden ratio are spread evenly (Knuth, TAOCP 3, 6.4).
    let share = of.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    Nanos(JITTER_MAX.0 * share / u64::from(u32::MAX))
}

/// Returns the sender's identifier from the 40 bytes before a packet's payload. Over IPv4 (RoCEv2) the
/// header is in the last 20 of them; otherwise all 40 are a global route header or an IPv6 header. `None`
/// if the header is not of the kind that this port has.
#[inline]
fn sender_of(header: &[u8], over_ipv4: bool) -> Option<Ipv6Addr> {
    if over_ipv4 {
        let of: [u8; 4] = std::array::from_fn(|i| header[32 + i]);
        return (header[20] >> 4 == 4).then(|| Ipv4Addr::from(of).to_ipv6_mapped());
    }
    let of = std::array::from_fn::<u8, 16, _>(|i| header[8 + i]);
    (header[0] >> 4 == 6).then(|| Ipv6Addr::from(of))
}

#[cold]
fn out_of_order(device: &Device) -> ReceiveError {
    let text = format!(
        "no receive queue works any more and none can be restarted (the first is on {}); check that `rdma link` shows the device, then restart the program",
        device.name()
    );
    ReceiveError::Io {
        line: LineId(0),
        source: std::io::Error::other(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn sender_address_is_parsed_by_port_header_kind() {
        let mut header: [u8; GRH_LEN] = std::array::from_fn(|i| i as u8);
        assert_eq!(sender_of(&header, true), None, "version 1");
        assert_eq!(sender_of(&header, false), None, "version 0");
        header[20] = 0x45;
        let over_ipv4: Ipv6Addr = "::ffff:32.33.34.35".parse().unwrap();
        assert_eq!(sender_of(&header, true), Some(over_ipv4));
        assert_eq!(sender_of(&header, false), None);
        header[20] = 20;
        header[0] = 0x60;
        let global: Ipv6Addr = "809:a0b:c0d:e0f:1011:1213:1415:1617".parse().unwrap();
        assert_eq!(sender_of(&header, false), Some(global));
        assert_eq!(sender_of(&header, true), None);
    }
}
