//! The verbs receiver: posted buffers of a whole packet each, lent by reference and posted again
//! in batches.
//!
//! Every buffer has room for the largest packet of the port, whatever the slots' size: a shorter
//! one would let any member of the group break the queue with one long datagram. Joining is
//! begun, and completed by later polls.

use std::net::Ipv4Addr;
use std::os::fd::RawFd;
use std::ptr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tickcast_reliability::delivery::LineId;
use tickcast_reliability::units::Nanos;

use super::cm::{CmId, PortSpace};
use super::device::Device;
use super::error::{VerbsError, failed};
use super::fan_out::device_of;
use super::memory::Region;
use super::queue::{Completions, DatagramQueue, Depths, TAKEN_MAX, no_completion};
use super::sys::{self, GRH_LEN};
use crate::mapping::SharedMapping;
use crate::udp::Interface;
use crate::{Receive, ReceiveError, ReceiveStats, Received};

/// A membership that was refused is asked for again after this.
const JOIN_RETRY: Nanos = Nanos::from_ms(500);
/// An answer that does not come by then never does.
const JOIN_MAX: Nanos = Nanos::from_secs(5);
/// Between looks at the device's own counters.
const COUNTERS_EVERY: Nanos = Nanos::from_secs(1);
/// Payloads begin on a cache line: the header that precedes them ends there.
const LEAD: usize = 64 - GRH_LEN;

/// One line to receive on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VerbsReceiveLine {
    /// Multicast group.
    pub group: Ipv4Addr,
    /// The interface of the device to receive on.
    pub interface: Interface,
    /// The addresses it may be sent from; empty: anybody's.
    #[serde(default)]
    pub senders: Vec<Ipv4Addr>,
}

/// How a channel is received.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VerbsReceiverConfig {
    /// A, then B where there is one.
    pub lines: Vec<VerbsReceiveLine>,
    /// The longest datagram, that is the slot size; longer ones are dropped and counted.
    pub datagram_len_max: usize,
    /// Datagrams with another key are dropped by the device.
    pub q_key: u32,
    /// Buffers per line: what arrives while nobody polls.
    #[serde(default = "depth_default")]
    pub depth: u32,
    /// Datagrams a poll takes at most, per line.
    #[serde(default = "batch_default")]
    pub batch: usize,
    /// Whether its descriptors tell of arrivals, for those who sleep; who polls all the time does
    /// without.
    #[serde(default = "yes")]
    pub waitable: bool,
}

const fn depth_default() -> u32 {
    2048
}

const fn batch_default() -> usize {
    64
}

const fn yes() -> bool {
    true
}

/// Receives a channel by RDMA multicast.
pub struct VerbsReceiver {
    lines: Vec<Line>,
    stats: Vec<ReceiveStats>,
    fds: Vec<RawFd>,
    batch: usize,
    datagram_len_max: usize,
}

/// Fields go in this order: the queue before its buffers.
struct Line {
    queue: DatagramQueue,
    buffers: Region,
    arrived: Completions,
    _sent: Completions,
    device: Arc<Device>,
    membership: Membership,
    group: Ipv4Addr,
    senders: Vec<Ipv4Addr>,
    stride: usize,
    requests: Requests,
    taken: [sys::ibv_wc; TAKEN_MAX],
    waitable: bool,
    /// Whether something came since the descriptor was armed.
    stirred: bool,
    counters_at: Nanos,
    /// The device's count of datagrams without a buffer when the line was opened.
    dropped_before: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Membership {
    /// Not wanted.
    Out,
    /// To be asked for at this time.
    Due(Nanos),
    /// Asked for, to be answered by then; zero: by the next poll's time and the limit.
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
// Exercised by `verbs::a_fan_out_reaches_every_receiver`.
unsafe impl Send for Requests {}

impl VerbsReceiver {
    /// Opens a queue per line, posts its buffers, and asks for its membership.
    ///
    /// # Errors
    /// [`VerbsError`] says which step failed and what to change.
    pub fn open(config: &VerbsReceiverConfig) -> Result<Self, VerbsError> {
        let range = |name, value: u64, min, max| {
            if (min..=max).contains(&value) {
                return Ok(());
            }
            Err(VerbsError::Range {
                name,
                value,
                min,
                max,
            })
        };
        range(
            "the number of lines",
            config.lines.len() as u64,
            1,
            LineId::MAX as u64,
        )?;
        range("depth", config.depth.into(), TAKEN_MAX as u64, 32_768)?;
        range("batch", config.batch as u64, 1, 4_096)?;
        let foreign = config.lines.iter().find(|line| !line.group.is_multicast());
        if let Some(line) = foreign {
            return Err(VerbsError::NotMulticast { group: line.group });
        }
        let lines = config.lines.iter().map(|line| Line::open(config, line));
        let lines = lines.collect::<Result<Vec<_>, _>>()?;
        let fds = lines.iter().map(|line| line.arrived.fd());
        Ok(Self {
            fds: fds.filter(|fd| *fd >= 0).collect(),
            stats: vec![
                ReceiveStats {
                    joins: 1,
                    ..ReceiveStats::default()
                };
                lines.len()
            ],
            lines,
            batch: config.batch,
            datagram_len_max: config.datagram_len_max,
        })
    }

    /// The device of each line.
    #[must_use]
    pub fn devices(&self) -> Vec<Arc<Device>> {
        self.lines
            .iter()
            .map(|line| Arc::clone(&line.device))
            .collect()
    }

    /// Whether every line is a member of its group, as of the last poll.
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
        let device = device_of(&line.interface, config.datagram_len_max)?;
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
        let stride = (64 + device.mtu()).next_multiple_of(64);
        let memory = SharedMapping::memfd("receive", stride * config.depth as usize);
        let memory = memory.map_err(|error| VerbsError::Call {
            what: "allocate receive buffers",
            source: std::io::Error::other(error),
        })?;
        let mut line = Self {
            buffers: Region::writable(&device, Arc::new(memory))?,
            queue,
            arrived,
            _sent: sent,
            membership: Membership::Due(Nanos::ZERO),
            group: line.group,
            senders: line.senders.clone(),
            stride,
            requests: Requests::new(),
            taken: std::array::from_fn(|_| no_completion()),
            waitable: config.waitable,
            stirred: false,
            counters_at: Nanos::ZERO,
            dropped_before: device.hardware_counter("out_of_buffer").unwrap_or(0),
            device,
        };
        // All of them before the group is joined: nothing may find the queue empty.
        for buffer in 0..u64::from(config.depth) {
            line.post_again(buffer)?;
        }
        line.post_all()?;
        line.ask(Nanos::ZERO).map_err(|errno| VerbsError::Join {
            group: line.group,
            device: line.device.name().to_owned(),
            reason: failed("rdma_join_multicast", errno).to_string(),
        })?;
        Ok(line)
    }

    fn ask(&mut self, now: Nanos) -> Result<(), i32> {
        self.queue.join(self.group, sys::JOIN_FULL_MEMBER)?;
        self.membership = Membership::Asked(now);
        Ok(())
    }

    /// Brings a membership forward that is asked for, or due.
    #[cold]
    fn settle(&mut self, now: Nanos, stats: &mut ReceiveStats) {
        while let Some(event) = self.queue.id_mut().event() {
            let asked = matches!(self.membership, Membership::Asked(_));
            if event.group.is_some() && event.status == 0 && asked {
                self.membership = Membership::In;
            } else if self.membership != Membership::Out {
                stats.transient_errors += 1;
                stats.last_errno = event.status.abs();
                self.membership = Membership::Due(now.after(JOIN_RETRY));
            }
        }
        match self.membership {
            Membership::Asked(Nanos::ZERO) => self.membership = Membership::Asked(now),
            Membership::Asked(since) if now.since(since) > JOIN_MAX => {
                stats.transient_errors += 1;
                self.membership = Membership::Due(now);
            }
            Membership::Due(at) if now >= at => {
                stats.joins += 1;
                if let Err(errno) = self.ask(now) {
                    stats.last_errno = errno;
                    stats.transient_errors += 1;
                    self.membership = Membership::Due(now.after(JOIN_RETRY));
                }
            }
            _ => {}
        }
    }

    /// Hands over what has arrived, up to `batch`.
    #[inline]
    fn poll(
        &mut self,
        line: LineId,
        now: Nanos,
        batch: usize,
        len_max: usize,
        stats: &mut ReceiveStats,
        on: &mut dyn FnMut(Received<'_>),
    ) -> Result<usize, ReceiveError> {
        let mut count = 0;
        loop {
            let wanted = (batch - count).min(TAKEN_MAX);
            let arrived = self.arrived.take(&mut self.taken, wanted).len();
            if arrived == 0 && self.waitable && self.stirred && count == 0 {
                // Asleep again: whatever comes from here on is told of.
                self.stirred = false;
                self.arrived.rearm();
                continue;
            }
            self.stirred |= arrived > 0;
            for at in 0..arrived {
                let completion = &self.taken[at];
                let (buffer, status) = (completion.wr_id, completion.status);
                if status != sys::ibv_wc_status::IBV_WC_SUCCESS {
                    return Err(broken(line, &self.device, status));
                }
                let len = (completion.byte_len as usize).saturating_sub(GRH_LEN);
                let (from, bytes) = self.datagram(buffer, len);
                if len > len_max {
                    stats.oversize += 1;
                } else if !self.senders.is_empty() && !self.senders.contains(&from) {
                    stats.strangers += 1;
                } else {
                    stats.datagrams += 1;
                    stats.bytes += len as u64;
                    on(Received {
                        line,
                        from,
                        bytes,
                        received_at: now,
                    });
                }
                if self.post_again(buffer).is_err() {
                    return Err(broken(line, &self.device, 0));
                }
            }
            if self.post_all().is_err() {
                return Err(broken(line, &self.device, 0));
            }
            count += arrived;
            if arrived < wanted || count >= batch {
                break;
            }
        }
        stats.batches += u64::from(count > 0);
        if self.membership != Membership::In || count == 0 && now >= self.counters_at {
            self.look(now, stats);
        }
        Ok(count)
    }

    /// What needs no haste.
    #[cold]
    fn look(&mut self, now: Nanos, stats: &mut ReceiveStats) {
        self.settle(now, stats);
        if now >= self.counters_at {
            self.counters_at = now.after(COUNTERS_EVERY);
            if let Some(dropped) = self.device.hardware_counter("out_of_buffer") {
                stats.buffer_drops = dropped.saturating_sub(self.dropped_before);
            }
        }
    }

    /// Who sent what lies in a buffer, and its bytes.
    fn datagram(&self, buffer: u64, len: usize) -> (Ipv4Addr, &[u8]) {
        let len = len.min(self.stride - 64);
        // SAFETY: the buffer is one of ours and completed, so the device does not write it until
        // it is posted again, for which `&mut self` is needed; all of it was written or zeroed.
        // Exercised by `verbs::a_fan_out_reaches_every_receiver`.
        let (header, bytes) = unsafe {
            let start = self.buffers.as_ptr().add(buffer as usize * self.stride);
            let header = std::slice::from_raw_parts(start.add(LEAD), GRH_LEN);
            (header, std::slice::from_raw_parts(start.add(64), len))
        };
        // Over IPv4 the header is in the last 20 bytes (RoCEv2).
        let from = Ipv4Addr::new(header[32], header[33], header[34], header[35]);
        (from, bytes)
    }

    /// Adds a buffer to those that are posted together, and posts them when they are many.
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
        // `verbs::a_fan_out_reaches_every_receiver`.
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
        if error == 0 {
            Ok(())
        } else {
            Err(failed("ibv_post_recv", error))
        }
    }
}

impl Requests {
    fn new() -> Self {
        // SAFETY: zero is a value of every field: numbers and null pointers.
        // Exercised by `verbs::a_fan_out_reaches_every_receiver`.
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
            count += line.poll(id, now, self.batch, self.datagram_len_max, stats, on)?;
        }
        Ok(count)
    }

    fn join(&mut self, line: LineId) -> Result<(), ReceiveError> {
        let (line, _) = self.line(line)?;
        if line.membership == Membership::Out {
            // With the next poll; its answer comes later still.
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

    fn stats(&self) -> &[ReceiveStats] {
        &self.stats
    }
}

#[cold]
fn broken(line: LineId, device: &Device, status: u32) -> ReceiveError {
    let text = format!(
        "the receive queue on {} broke (ibv_wc_status {status})",
        device.name()
    );
    ReceiveError::Io {
        line,
        source: std::io::Error::other(text),
    }
}
