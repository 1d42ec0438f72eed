//! The verbs fan-out: every slot to the group of every line, straight from the ring, by chains of
//! work requests of which each n-th tells when it is done.
//!
//! A slot that was not sent inline stays pinned until the device has read it; a chain's last word
//! may come with a later chain, so up to `signal_every` slots stay pinned while nothing follows.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tickcast_reliability::budget::TokenBucket;
use tickcast_reliability::delivery::LineId;
use tickcast_reliability::ring::RingMemory;
use tickcast_reliability::units::{Sequence, SequenceRange};

use super::cm::{CmId, PortSpace};
use super::device::Device;
use super::error::{VerbsError, failed};
use super::memory::Region;
use super::queue::{AddressHandle, Completions, DatagramQueue, Depths, TAKEN_MAX, no_completion};
use super::sending::{CHAIN_MAX, Chain, Piece, Pins};
use super::sys;
use crate::clock::{Clock, SystemClock};
use crate::mapping::SharedMapping;
use crate::udp::Interface;
use crate::{FanOut, FanOutError, Posted, SendStats, Slots};

/// How long a group may take to be joined when the fan-out is opened.
const JOIN_MAX: Duration = Duration::from_secs(5);
/// How long a queue that is flushed may take to give everything back.
const FLUSH_MAX: Duration = Duration::from_secs(1);
/// Copies that may be on their way at once, per line.
const COPIES: usize = 16;

/// One line to send on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VerbsSendLine {
    /// Multicast group.
    pub group: Ipv4Addr,
    /// The interface of the device to send from.
    pub interface: Interface,
}

/// A rate that is not exceeded, since no device paces datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pace {
    /// Bytes per second, over any second but for the burst.
    pub rate_bytes_per_s: u64,
    /// Bytes that may go at once.
    pub burst_bytes: u64,
}

/// How a channel is sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VerbsFanOutConfig {
    /// A, then B where there is one.
    pub lines: Vec<VerbsSendLine>,
    /// The longest datagram, that is the slot size.
    pub datagram_len_max: usize,
    /// Receivers take only datagrams with this key. No secret, but a wall between systems.
    pub q_key: u32,
    /// Goes into every packet; the upper six bits are the DSCP.
    #[serde(default)]
    pub traffic_class: u8,
    /// Sends that may be on their way at once.
    #[serde(default = "send_depth_default")]
    pub send_depth: u32,
    /// Every how many sends the device tells that it is done.
    #[serde(default = "signal_every_default")]
    pub signal_every: u32,
    /// Datagrams up to this length are handed to the device with the request itself.
    #[serde(default = "inline_default")]
    pub inline_bytes: u32,
    /// No faster than this; as fast as the port where it is left out.
    #[serde(default)]
    pub pace: Option<Pace>,
}

const fn send_depth_default() -> u32 {
    512
}

const fn signal_every_default() -> u32 {
    32
}

const fn inline_default() -> u32 {
    220
}

/// Sends a channel by RDMA multicast.
pub struct VerbsFanOut {
    lines: Vec<Line>,
    stats: Vec<SendStats>,
    chain: Chain,
    datagram_len_max: usize,
}

/// Fields go in this order: the queue before what its work requests name.
struct Line {
    queue: DatagramQueue,
    address: AddressHandle,
    ring: Region,
    copies: Region,
    sent: Completions,
    _received: Completions,
    device: Arc<Device>,
    pins: Pins,
    bucket: Option<TokenBucket>,
    q_key: u32,
    group: Ipv4Addr,
    slot_len_max: usize,
    /// Bytes of a buffer for copies, which of them comes next, and the last send of each.
    slot_len: usize,
    next_copy: usize,
    copied: [Option<u64>; COPIES],
    /// Where completions are taken into.
    taken: [sys::ibv_wc; TAKEN_MAX],
}

impl VerbsFanOut {
    /// Opens a queue per line, registers `ring` with each device, and joins the groups, as one who
    /// only sends where the port knows such. Blocks until that is done.
    ///
    /// # Errors
    /// [`VerbsError`] says which step failed and what to change.
    pub fn open(
        config: &VerbsFanOutConfig,
        ring: &Arc<dyn RingMemory>,
    ) -> Result<Self, VerbsError> {
        check(config)?;
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

    /// The device of each line.
    #[must_use]
    pub fn devices(&self) -> Vec<Arc<Device>> {
        self.lines
            .iter()
            .map(|line| Arc::clone(&line.device))
            .collect()
    }
}

fn check(config: &VerbsFanOutConfig) -> Result<(), VerbsError> {
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
    range("send_depth", config.send_depth.into(), 16, 32_768)?;
    let most = u64::from(config.send_depth / 2);
    range("signal_every", config.signal_every.into(), 1, most)?;
    range(
        "datagram_len_max",
        config.datagram_len_max as u64,
        64,
        65_536,
    )?;
    if let Some(pace) = config.pace {
        let least = config.datagram_len_max as u64;
        range("pace.burst_bytes", pace.burst_bytes, least, u64::MAX)?;
        range("pace.rate_bytes_per_s", pace.rate_bytes_per_s, 1, u64::MAX)?;
    }
    let foreign = config.lines.iter().find(|line| !line.group.is_multicast());
    foreign.map_or(Ok(()), |line| {
        Err(VerbsError::NotMulticast { group: line.group })
    })
}

/// Opens the device that an interface belongs to, and checks that it carries such datagrams.
pub(super) fn device_of(
    interface: &Interface,
    datagram_len_max: usize,
) -> Result<Arc<Device>, VerbsError> {
    let address = match interface.resolve() {
        Ok(resolved) => resolved.address,
        Err(error) => {
            return Err(VerbsError::Call {
                what: "find the interface",
                source: std::io::Error::other(error),
            });
        }
    };
    let device = Device::open(address)?;
    if datagram_len_max > device.mtu() {
        return Err(VerbsError::Mtu {
            slot_len: datagram_len_max,
            mtu: device.mtu(),
            device: device.name().to_owned(),
            port: device.port(),
        });
    }
    Ok(device)
}

impl Line {
    fn open(
        config: &VerbsFanOutConfig,
        line: &VerbsSendLine,
        ring: &Arc<dyn RingMemory>,
    ) -> Result<Self, VerbsError> {
        let device = device_of(&line.interface, config.datagram_len_max)?;
        let id = CmId::new(PortSpace::Udp)?;
        id.bind(device.address(), 0)?;
        let sent = Completions::new(&device, config.send_depth, false)?;
        let received = Completions::new(&device, 1, false)?;
        let depths = Depths {
            send: config.send_depth,
            receive: 1,
            inline_bytes: config.inline_bytes,
        };
        let mut queue = DatagramQueue::new(&device, id, &sent, &received, &depths, config.q_key)?;
        let address = join(&mut queue, &device, line.group, config.traffic_class)?;
        let slot_len = config.datagram_len_max.next_multiple_of(64);
        let copies = SharedMapping::memfd("copies", slot_len * COPIES);
        let copies = copies.map_err(|error| VerbsError::Call {
            what: "allocate buffers for copies",
            source: std::io::Error::other(error),
        })?;
        let now = SystemClock.now();
        Ok(Self {
            ring: Region::readable(&device, Arc::clone(ring))?,
            copies: Region::readable(&device, Arc::new(copies))?,
            queue,
            address,
            sent,
            _received: received,
            pins: Pins::new(config.send_depth, config.signal_every),
            bucket: config
                .pace
                .map(|pace| TokenBucket::new(pace.rate_bytes_per_s, pace.burst_bytes, now)),
            q_key: config.q_key,
            group: line.group,
            slot_len_max: config.datagram_len_max,
            slot_len,
            next_copy: 0,
            copied: [None; COPIES],
            taken: std::array::from_fn(|_| no_completion()),
            device,
        })
    }

    /// Takes what the device has done.
    #[inline]
    fn collect(&mut self, line: usize, stats: &mut SendStats) -> Result<(), FanOutError> {
        if self.pins.on_their_way() == 0 {
            return Ok(());
        }
        loop {
            let done = self.sent.take(&mut self.taken, TAKEN_MAX);
            for completion in done {
                if completion.status != sys::ibv_wc_status::IBV_WC_SUCCESS {
                    stats.last_errno = libc::EIO;
                    return Err(gave_up(line, &self.device, self.group, completion.status));
                }
                self.pins.told(completion.wr_id);
            }
            if done.len() < TAKEN_MAX {
                return Ok(());
            }
        }
    }

    /// Posts slots from behind the last one taken up to `last`, as far as there is room and the
    /// pace allows. Whether it stalled.
    fn post(
        &mut self,
        line: usize,
        slots: &dyn Slots,
        last: Sequence,
        chain: &mut Chain,
        stats: &mut SendStats,
    ) -> Result<bool, FanOutError> {
        let now = self.bucket.as_ref().map(|_| SystemClock.now());
        while self.pins.taken() < last {
            let first = self.pins.taken().next();
            let mut bytes_of_chain = 0;
            let mut count = 0;
            let mut sequence = first;
            while sequence <= last && !chain.is_full() && count < self.pins.room() {
                let bytes = slots
                    .slot(sequence)
                    .ok_or(FanOutError::NotSealed { sequence })?;
                self.check(sequence, bytes)?;
                if let (Some(bucket), Some(now)) = (&mut self.bucket, now)
                    && !bucket.take(now, bytes.len())
                {
                    break;
                }
                let (number, tells) = self.pins.number(count, false);
                chain.push(
                    self.piece(bytes, &self.ring),
                    &self.address,
                    self.q_key,
                    number,
                    tells,
                );
                bytes_of_chain += bytes.len() as u64;
                count += 1;
                sequence = sequence.next();
            }
            // SAFETY: `check` found every slot in the registered ring, and the ring's writer does
            // not touch it until `completed` says so. Exercised by
            // `verbs::a_fan_out_reaches_every_receiver`.
            let (taken, error) = unsafe { chain.post(&mut self.queue) };
            for i in 0..taken {
                let sequence = first.plus(i as u64);
                let (_, tells) = self.pins.number(0, false);
                let len = slots.slot(sequence).map_or(usize::MAX, <[u8]>::len);
                let inline = len <= self.queue.inline_bytes();
                self.pins.sent(Some(sequence), inline, tells);
            }
            if taken > 0 {
                stats.batches += 1;
                stats.datagrams += taken as u64;
                stats.bytes += bytes_of_chain;
            }
            if taken < count && !matches!(error, libc::ENOMEM | libc::EAGAIN) {
                stats.last_errno = error;
                return Err(FanOutError::Io {
                    line: LineId(line as u8),
                    source: std::io::Error::from_raw_os_error(error),
                });
            }
            if taken < CHAIN_MAX && self.pins.taken() < last {
                stats.stalls += 1;
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn piece(&self, bytes: &[u8], region: &Region) -> Piece {
        Piece {
            bytes: bytes.as_ptr(),
            len: bytes.len() as u32,
            lkey: region.lkey(),
            inline: bytes.len() <= self.queue.inline_bytes(),
        }
    }

    fn check(&self, sequence: Sequence, bytes: &[u8]) -> Result<(), FanOutError> {
        check_len(bytes, self.slot_len_max)?;
        if self.ring.holds(bytes) {
            return Ok(());
        }
        Err(FanOutError::NotRegistered { sequence })
    }

    /// Sends a copy, if a buffer for it is free.
    fn send_copy(
        &mut self,
        line: usize,
        bytes: &[u8],
        chain: &mut Chain,
        stats: &mut SendStats,
    ) -> Result<bool, FanOutError> {
        self.collect(line, stats)?;
        let inline = bytes.len() <= self.queue.inline_bytes();
        let at = self.next_copy;
        if self.pins.room() == 0
            || !(inline || self.copied[at].is_none_or(|n| self.pins.is_done(n)))
        {
            stats.copies_dropped += 1;
            return Ok(false);
        }
        let (number, tells) = self.pins.number(0, !inline);
        if inline {
            chain.push(
                self.piece(bytes, &self.copies),
                &self.address,
                self.q_key,
                number,
                tells,
            );
        } else {
            let buffer = self.copies.fill(at * self.slot_len, bytes);
            let piece = Piece {
                bytes: buffer,
                ..self.piece(bytes, &self.copies)
            };
            chain.push(piece, &self.address, self.q_key, number, tells);
        }
        // SAFETY: inline bytes are copied by the call; the buffer is in the registered memory and
        // is not written until its send is done. Exercised by
        // `verbs::a_fan_out_reaches_every_receiver`, which sends heartbeats of both sizes.
        let (taken, error) = unsafe { chain.post(&mut self.queue) };
        if taken == 0 {
            stats.last_errno = error;
            stats.copies_dropped += 1;
            return Ok(false);
        }
        self.pins.sent(None, inline, tells);
        if !inline {
            self.copied[at] = Some(number);
            self.next_copy = (at + 1) % COPIES;
        }
        stats.batches += 1;
        stats.datagrams += 1;
        stats.bytes += bytes.len() as u64;
        Ok(true)
    }

    /// Takes everything back from the device. What was not sent is not sent any more.
    fn reset(&mut self, stats: &mut SendStats) -> Result<(), VerbsError> {
        let on_their_way = self.pins.on_their_way();
        if on_their_way > 0 {
            self.queue.flush()?;
            let until = Instant::now() + FLUSH_MAX;
            let mut flushed = 0;
            // The last request may be one that does not tell of success, but all tell of a flush.
            while self.pins.on_their_way() > 0 && Instant::now() < until {
                for completion in self.sent.take(&mut self.taken, TAKEN_MAX) {
                    flushed += u64::from(completion.status != sys::ibv_wc_status::IBV_WC_SUCCESS);
                    self.pins.told(completion.wr_id);
                }
            }
            stats.flushed += flushed;
            self.queue.restart()?;
        }
        self.pins.flushed();
        self.pins.begin_after(Sequence::NONE);
        Ok(())
    }
}

impl FanOut for VerbsFanOut {
    fn post(&mut self, slots: &dyn Slots, range: SequenceRange) -> Result<Posted, FanOutError> {
        let taken_by_all = |lines: &[Line]| lines.iter().map(|line| line.pins.taken()).min();
        if taken_by_all(&self.lines) != Some(range.first.previous()) {
            for line in &mut self.lines {
                line.pins.begin_after(range.first.previous());
            }
        }
        let mut stalled = false;
        for (i, line) in self.lines.iter_mut().enumerate() {
            line.collect(i, &mut self.stats[i])?;
            stalled |= line.post(i, slots, range.last, &mut self.chain, &mut self.stats[i])?;
        }
        let last = taken_by_all(&self.lines).filter(|last| *last >= range.first);
        Ok(Posted { last, stalled })
    }

    fn completed(&mut self) -> Option<Sequence> {
        for (i, line) in self.lines.iter_mut().enumerate() {
            // What is wrong with the queue, the next post says.
            let _ = line.collect(i, &mut self.stats[i]);
        }
        let completed = self.lines.iter().map(|line| line.pins.completed()).min();
        completed.filter(|sequence| *sequence != Sequence::NONE)
    }

    fn send_copy(&mut self, bytes: &[u8]) -> Result<bool, FanOutError> {
        check_len(bytes, self.datagram_len_max)?;
        let mut everywhere = true;
        for (i, line) in self.lines.iter_mut().enumerate() {
            everywhere &= line.send_copy(i, bytes, &mut self.chain, &mut self.stats[i])?;
        }
        Ok(everywhere)
    }

    fn reset(&mut self) {
        for (line, stats) in self.lines.iter_mut().zip(&mut self.stats) {
            if let Err(error) = line.reset(stats) {
                tracing::error!(group = %line.group, "the fan-out can't be reset: {error}");
            }
        }
    }

    fn datagram_len_max(&self) -> usize {
        self.datagram_len_max
    }

    fn stats(&self) -> &[SendStats] {
        &self.stats
    }
}

/// Joins as one who only sends, or as a full member where the port knows no such.
fn join(
    queue: &mut DatagramQueue,
    device: &Arc<Device>,
    group: Ipv4Addr,
    traffic_class: u8,
) -> Result<AddressHandle, VerbsError> {
    let mut reason = String::new();
    for flags in [sys::JOIN_SEND_ONLY, sys::JOIN_FULL_MEMBER] {
        if let Err(errno) = queue.join(group, flags) {
            reason = failed("rdma_join_multicast", errno).to_string();
            continue;
        }
        match queue.id_mut().wait(JOIN_MAX) {
            Some(event) => match event.group {
                Some(route) if event.status == 0 => {
                    return AddressHandle::new(device, route, traffic_class);
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

#[cold]
fn gave_up(line: usize, device: &Device, group: Ipv4Addr, status: u32) -> FanOutError {
    let text = format!(
        "{} gave up on a send to {group} (ibv_wc_status {status})",
        device.name()
    );
    FanOutError::Io {
        line: LineId(line as u8),
        source: std::io::Error::other(text),
    }
}
