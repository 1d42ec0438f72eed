//! The verbs fan-out: sends every slot to the group of every line, directly from the ring, by chains of
//! work requests. Each n-th request reports its completion.
//!
//! A slot that was not sent inline stays pinned until the device has read it. The last completion of a
//! chain may be reported only with a later chain, so up to `signal_every` slots stay pinned while
//! nothing follows.
//!
//! A line whose membership ends sends to its old address until the membership is renewed. On InfiniBand any
//! event of the subnet manager ends a membership, while the route to the group usually still works.
//!
//! A line whose queue breaks is taken back from the device and joins again, in the background. The slots
//! that it misses meanwhile are counted as refused, and the other line continues.

mod membership;
mod recover;
mod renewal;

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tickcast_reliability::ring::RingMemory;
use tickcast_reliability::serve::TokenBucket;
use tickcast_reliability::types::{Sequence, SequenceRange};

use self::membership::Membership;
use self::recover::Health;
use crate::config::{Priority, VerbsFanOutConfig, VerbsSendLine};
use crate::device::cm::{CmId, PortSpace};
use crate::device::queue::{
    AddressHandle, Completions, DatagramQueue, Depths, TAKEN_MAX, no_completion,
};
use crate::device::region::Region;
use crate::device::{Device, sys};
use crate::error::{VerbsError, failed};
use crate::multicast::send_queue::{CHAIN_MAX, Chain, Piece, Pins};
use tickcast_transport_base::host::clock::{Clock, SystemClock};
use tickcast_transport_base::host::mapping::SharedMapping;
use tickcast_transport_base::{FanOut, FanOutError, Posted, SendStats, Slots};

/// Limit for joining a group when the fan-out is opened.
const JOIN_MAX: Duration = Duration::from_secs(5);
/// Copies in flight per line.
const COPIES: usize = 16;

/// Sends a channel by RDMA multicast.
pub struct VerbsFanOut {
    lines: Vec<Line>,
    stats: Vec<SendStats>,
    chain: Chain,
    datagram_len_max: usize,
}

/// Drop order: the queue before the objects that its work requests name.
struct Line {
    health: Health,
    broke_at: Option<Instant>,
    queue: DatagramQueue,
    /// The group's address. A line whose port was down from the start has none until it joined.
    address: Option<AddressHandle>,
    membership: Membership,
    /// The registered ring. `None` if there are only copies to send.
    ring: Option<Region>,
    copies: Region,
    sent: Completions,
    _received: Completions,
    device: Arc<Device>,
    pins: Pins,
    bucket: Option<TokenBucket>,
    q_key: u32,
    /// The device's change count at the last check.
    changes: u64,
    group: Ipv4Addr,
    join_flags: u32,
    priority: Priority,
    slot_len_max: usize,
    /// Length of a copy buffer in bytes, the next buffer to use, and the last send of each.
    slot_len: usize,
    next_copy: usize,
    copied: [Option<u64>; COPIES],
    /// Space for completions.
    taken: [sys::ibv_wc; TAKEN_MAX],
}

impl VerbsFanOut {
    /// Opens a queue per line, registers `ring` with each device, and joins the groups, as a sender only if
    /// the port supports it. Blocks until all of this is done.
    ///
    /// # Errors
    /// [`VerbsError`] names the step that failed and the remedy.
    pub fn open(
        config: &VerbsFanOutConfig,
        ring: &Arc<dyn RingMemory>,
    ) -> Result<Self, VerbsError> {
        Self::open_all(config, Some(ring))
    }

    /// Opens a fan-out for copies alone. Without a ring, every post returns
    /// [`FanOutError::NotRegistered`].
    ///
    /// # Errors
    /// As for [`VerbsFanOut::open`].
    pub fn for_copies(config: &VerbsFanOutConfig) -> Result<Self, VerbsError> {
        Self::open_all(config, None)
    }

    fn open_all(
        config: &VerbsFanOutConfig,
        ring: Option<&Arc<dyn RingMemory>>,
    ) -> Result<Self, VerbsError> {
        config.check()?;
        let lines = config
            .lines
            .iter()
            .map(|line| Line::open(config, line, ring));
        let lines = lines.collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            stats: vec![SendStats::default(); lines.len()],
            lines,
            chain: Chain::new(),
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
}

impl Line {
    fn open(
        config: &VerbsFanOutConfig,
        line: &VerbsSendLine,
        ring: Option<&Arc<dyn RingMemory>>,
    ) -> Result<Self, VerbsError> {
        let device = Device::of(&line.interface, config.datagram_len_max)?;
        let id = CmId::new(PortSpace::Udp)?;
        id.bind(device.address(), 0)?;
        let sent = Completions::new(&device, config.send_depth + 1, false)?;
        let received = Completions::new(&device, 1, false)?;
        let depths = Depths {
            send: config.send_depth,
            receive: 1,
            inline_bytes: config.inline_bytes,
        };
        let mut queue = DatagramQueue::new(&device, id, &sent, &received, &depths, config.q_key)?;
        let joined = if device.is_active() {
            Some(join(&mut queue, &device, line.group, config.priority())?)
        } else {
            let (device, group) = (device.name(), line.group);
            tracing::warn!(device, %group, "a line's port is down; the line sends once the port is up, and the others send now");
            None
        };
        let (address, join_flags) = match joined {
            Some((address, flags)) => (Some(address), flags),
            None => (None, sys::JOIN_SEND_ONLY),
        };
        let slot_len = config.datagram_len_max.next_multiple_of(64);
        let copies = SharedMapping::memfd("copies", slot_len * COPIES);
        let copies = copies.map_err(|error| VerbsError::Call {
            what: "allocate buffers for copies",
            source: std::io::Error::other(error),
        })?;
        let now = SystemClock.now();
        // At most a part of the ring may be pinned until the next send.
        let slots = ring.map_or(u32::MAX, |ring| {
            u32::try_from(ring.len() / config.datagram_len_max).unwrap_or(u32::MAX)
        });
        let signal_every = config.signal_every.min(slots / 4).max(1);
        Ok(Self {
            health: match address {
                Some(_) => Health::Well,
                None => Health::Broken(Instant::now()),
            },
            broke_at: None,
            ring: ring
                .map(|ring| Region::readable(&device, Arc::clone(ring), "ring sent from"))
                .transpose()?,
            copies: Region::readable(&device, Arc::new(copies), "datagrams sent")?,
            queue,
            address,
            membership: Membership::new(device.address(), line.group),
            sent,
            _received: received,
            pins: Pins::new(config.send_depth, signal_every),
            bucket: config
                .pace
                .map(|pace| TokenBucket::new(pace.rate_bytes_per_s, pace.burst_bytes, now)),
            q_key: config.q_key,
            changes: device.watch().changes(),
            group: line.group,
            join_flags,
            priority: config.priority(),
            slot_len_max: config.datagram_len_max,
            slot_len,
            next_copy: 0,
            copied: [None; COPIES],
            taken: std::array::from_fn(|_| no_completion()),
            device,
        })
    }

    /// Takes the device's completions. Counts sends that the device failed, then repairs the line.
    #[inline]
    fn collect(&mut self, stats: &mut SendStats) {
        let mut failed = None;
        while self.pins.in_flight() > 0 {
            let done = match self.sent.take(&mut self.taken, TAKEN_MAX) {
                Ok(done) => done,
                Err(errno) => {
                    stats.last_errno = errno;
                    failed = Some(sys::ibv_wc_status::IBV_WC_GENERAL_ERR);
                    break;
                }
            };
            for completion in done {
                if completion.status != sys::ibv_wc_status::IBV_WC_SUCCESS {
                    stats.flushed += 1;
                    failed = failed.or(Some(completion.status));
                }
                self.pins.signalled(completion.wr_id);
            }
            if done.len() < TAKEN_MAX {
                break;
            }
        }
        if let Some(status) = failed {
            self.broke(status, stats);
        }
        if self.changes != self.device.watch().changes() {
            self.changed(stats);
        }
        if self.health != Health::Well {
            self.mend(stats);
        }
    }

    /// Posts the slots after the last one taken, up to `last`, as far as there is room and the pace allows.
    /// Returns whether it stalled.
    fn post(
        &mut self,
        slots: &dyn Slots,
        last: Sequence,
        chain: &mut Chain,
        stats: &mut SendStats,
    ) -> Result<bool, FanOutError> {
        let Some(address) = self.address.as_ref().filter(|_| self.health.sends()) else {
            self.refuse(last, stats);
            return Ok(false);
        };
        let now = self.bucket.as_ref().map(|_| SystemClock.now());
        while self.pins.taken() < last {
            let first = self.pins.taken().next();
            let mut bytes_of_chain = 0;
            let mut count = 0;
            let mut paced = false;
            let mut sequence = first;
            while sequence <= last && !chain.is_full() && count < self.pins.room() {
                let (bytes, lkey) = match self.check(sequence, slots) {
                    Ok(checked) => checked,
                    Err(error) => {
                        chain.clear();
                        return Err(error);
                    }
                };
                if let (Some(bucket), Some(now)) = (&mut self.bucket, now)
                    && !bucket.has(now, bytes_of_chain + bytes.len())
                {
                    paced = true;
                    break;
                }
                let (number, signalled) = self.pins.number(count, false);
                chain.push(
                    self.piece(bytes, lkey),
                    address,
                    self.q_key,
                    number,
                    signalled,
                );
                bytes_of_chain += bytes.len();
                count += 1;
                sequence = sequence.next();
            }
            // SAFETY: `check` found every slot in the registered ring, and the ring's writer does
            // not touch it until `completed` says so. Exercised by
            // `verbs::datagrams::verbs_fan_out_reaches_all_receivers`.
            let (taken, error) = unsafe { chain.post(&mut self.queue) };
            let mut bytes_taken = 0;
            for i in 0..taken {
                let sequence = first.plus(i as u64);
                let (_, signalled) = self.pins.number(0, false);
                let len = slots.slot(sequence).map_or(usize::MAX, <[u8]>::len);
                let inline = len <= self.queue.inline_bytes();
                self.pins.sent(Some(sequence), inline, signalled);
                bytes_taken += len;
            }
            if let (Some(bucket), Some(now)) = (&mut self.bucket, now) {
                bucket.take(now, bytes_taken);
            }
            if taken > 0 {
                stats.batches += 1;
                stats.datagrams += taken as u64;
                stats.bytes += bytes_taken as u64;
            }
            if taken < count && !matches!(error, libc::ENOMEM | libc::EAGAIN) {
                // The queue accepts nothing any more, but still completes the requests that it took.
                self.broke(sys::ibv_wc_status::IBV_WC_GENERAL_ERR, stats);
                stats.last_errno = error;
                self.refuse(last, stats);
                return Ok(false);
            }
            if taken < CHAIN_MAX && self.pins.taken() < last {
                stats.stalls += u64::from(!paced);
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn piece(&self, bytes: &[u8], lkey: u32) -> Piece {
        Piece {
            bytes: bytes.as_ptr(),
            len: bytes.len() as u32,
            lkey,
            inline: bytes.len() <= self.queue.inline_bytes(),
        }
    }

    /// Checks that a slot lies in the registered ring and returns it with the ring's key.
    #[inline]
    fn check<'a>(
        &self,
        sequence: Sequence,
        slots: &'a dyn Slots,
    ) -> Result<(&'a [u8], u32), FanOutError> {
        let slot = slots.slot(sequence);
        let bytes = slot.ok_or(FanOutError::NotSealed { sequence })?;
        check_len(bytes, self.slot_len_max)?;
        let ring = self.ring.as_ref().filter(|ring| ring.holds(bytes));
        let ring = ring.ok_or(FanOutError::NotRegistered { sequence })?;
        Ok((bytes, ring.lkey()))
    }

    /// Sends a copy, if a buffer for it is free.
    fn send_copy(
        &mut self,
        bytes: &[u8],
        chain: &mut Chain,
        stats: &mut SendStats,
    ) -> Result<bool, FanOutError> {
        self.collect(stats);
        let inline = bytes.len() <= self.queue.inline_bytes();
        let at = self.next_copy;
        let Some(address) = self.address.as_ref().filter(|_| self.health.sends()) else {
            stats.unpinned_sends_dropped += 1;
            return Ok(false);
        };
        if self.pins.room() == 0
            || !(inline || self.copied[at].is_none_or(|n| self.pins.is_done(n)))
            || (self.bucket.as_mut())
                .is_some_and(|bucket| !bucket.take(SystemClock.now(), bytes.len()))
        {
            stats.unpinned_sends_dropped += 1;
            return Ok(false);
        }
        let (number, signalled) = self.pins.number(0, !inline);
        if inline {
            chain.push(
                self.piece(bytes, self.copies.lkey()),
                address,
                self.q_key,
                number,
                signalled,
            );
        } else {
            let buffer = self.copies.fill(at * self.slot_len, bytes);
            let piece = Piece {
                bytes: buffer,
                ..self.piece(bytes, self.copies.lkey())
            };
            chain.push(piece, address, self.q_key, number, signalled);
        }
        // SAFETY: inline bytes are copied by the call; the buffer is in the registered memory and
        // is not written until its send is done. Exercised by
        // `verbs::datagrams::verbs_fan_out_reaches_all_receivers`, which sends heartbeats of both sizes.
        let (taken, error) = unsafe { chain.post(&mut self.queue) };
        if taken == 0 {
            stats.unpinned_sends_dropped += 1;
            if !matches!(error, libc::ENOMEM | libc::EAGAIN) {
                self.broke(sys::ibv_wc_status::IBV_WC_GENERAL_ERR, stats);
            }
            stats.last_errno = error;
            return Ok(false);
        }
        self.pins.sent(None, inline, signalled);
        if !inline {
            self.copied[at] = Some(number);
            self.next_copy = (at + 1) % COPIES;
        }
        stats.batches += 1;
        stats.datagrams += 1;
        stats.bytes += bytes.len() as u64;
        Ok(true)
    }
}

impl FanOut for VerbsFanOut {
    fn post(&mut self, slots: &dyn Slots, range: SequenceRange) -> Result<Posted, FanOutError> {
        let taken_by_all = |lines: &[Line]| lines.iter().map(|line| line.pins.taken()).min();
        if taken_by_all(&self.lines) != Some(range.first.previous()) {
            for (line, stats) in self.lines.iter_mut().zip(&mut self.stats) {
                line.begin_after(range.first.previous(), stats);
            }
        }
        let mut stalled = false;
        for (i, line) in self.lines.iter_mut().enumerate() {
            line.collect(&mut self.stats[i]);
            stalled |= line.post(slots, range.last, &mut self.chain, &mut self.stats[i])?;
        }
        let last = taken_by_all(&self.lines).filter(|last| *last >= range.first);
        Ok(Posted { last, stalled })
    }

    fn completed(&mut self) -> Option<Sequence> {
        for (line, stats) in self.lines.iter_mut().zip(&mut self.stats) {
            line.collect(stats);
        }
        let completed = self.lines.iter().map(|line| line.pins.completed()).min();
        completed.filter(|sequence| *sequence != Sequence::NONE)
    }

    fn send_copy(&mut self, bytes: &[u8]) -> Result<bool, FanOutError> {
        check_len(bytes, self.datagram_len_max)?;
        let mut everywhere = true;
        for (i, line) in self.lines.iter_mut().enumerate() {
            everywhere &= line.send_copy(bytes, &mut self.chain, &mut self.stats[i])?;
        }
        Ok(everywhere)
    }

    fn reset(&mut self) {
        for (line, stats) in self.lines.iter_mut().zip(&mut self.stats) {
            line.begin_after(Sequence::NONE, stats);
        }
    }

    fn datagram_len_max(&self) -> usize {
        self.datagram_len_max
    }

    fn stats(&self) -> &[SendStats] {
        &self.stats
    }
}

/// Joins as a sender only, or as a full member if the port does not support that.
fn join(
    queue: &mut DatagramQueue,
    device: &Arc<Device>,
    group: Ipv4Addr,
    priority: Priority,
) -> Result<(AddressHandle, u32), VerbsError> {
    let mut reason = String::new();
    for flags in [sys::JOIN_SEND_ONLY, sys::JOIN_FULL_MEMBER] {
        if let Err(errno) = queue.join(group, flags) {
            reason = failed("rdma_join_multicast", errno).to_string();
            continue;
        }
        match queue.id_mut().wait(JOIN_MAX) {
            Some(event) => match event.group {
                Some(route) if event.status == 0 => {
                    let address = AddressHandle::new(device, route, priority)?;
                    return Ok((address, flags));
                }
                _ => reason = format!("event {}, status {}", event.kind, event.status),
            },
            None => reason = format!("no answer within {} s", JOIN_MAX.as_secs()),
        }
    }
    Err(VerbsError::Join {
        group,
        device: device.name().to_owned(),
        reason,
    })
}

fn check_len(bytes: &[u8], max: usize) -> Result<(), FanOutError> {
    let len = bytes.len();
    if len > max {
        return Err(FanOutError::TooLong { len, max });
    }
    Ok(())
}
