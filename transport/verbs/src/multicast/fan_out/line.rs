//! One line: the queue that it sends with, a spare, and the position in the stream.
//!
//! Nothing here waits for a device. A queue that breaks, or that has sends in flight when the stream
//! restarts, is swapped for the spare. The helper thread closes it and supplies the next spare.
//!
//! | state | queue | a slot to send is |
//! |---|---|---|
//! | sending | yes | posted |
//! | between queues | no, and one is requested | left for the next post |
//! | detached, or not a member yet | none with an address | refused and counted |

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tickcast_reliability::ring::RingMemory;
use tickcast_reliability::serve::TokenBucket;
use tickcast_reliability::types::Sequence;

use super::queue::SendQueue;
use super::upkeep::{Supply, Upkeep};
use crate::config::{VerbsFanOutConfig, VerbsSendLine};
use crate::device::queue::{AddressHandle, TAKEN_MAX};
use crate::device::{Device, sys};
use crate::error::VerbsError;
use crate::multicast::send_queue::{CHAIN_MAX, Chain, Pins};
use tickcast_transport_base::host::clock::{Clock, SystemClock};
use tickcast_transport_base::{FanOutError, SendStats, Slots};

/// A queue that breaks within this time of the one before is not at fault: the line opens its device again.
const AGAIN: Duration = Duration::from_millis(500);

/// One line of a fan-out. Drop order: the queues before the thread, which is waited for.
pub(super) struct Line {
    queue: Option<Box<SendQueue>>,
    spare: Option<Box<SendQueue>>,
    /// The group's address. `None` before the line has joined, and while it is detached.
    address: Option<Arc<AddressHandle>>,
    /// Whether the device is open. Otherwise the helper thread is opening it.
    is_attached: bool,
    broke_at: Option<Instant>,
    pins: Pins,
    /// Queues that the helper thread is closing. Until all are closed, the device may read slots behind
    /// the held sequence.
    closing: u32,
    held: Option<Sequence>,
    bucket: Option<TokenBucket>,
    q_key: u32,
    group: Ipv4Addr,
    datagram_len_max: usize,
    upkeep: Upkeep,
}

impl Line {
    /// Opens the line's device and queues, registers the ring, and joins the group if the port is up. Blocks
    /// until all of this is done.
    ///
    /// # Errors
    /// [`VerbsError`] names the step that failed and the remedy.
    pub(super) fn open(
        config: &VerbsFanOutConfig,
        line: &VerbsSendLine,
        ring: Option<&Arc<dyn RingMemory>>,
    ) -> Result<Self, VerbsError> {
        let now = SystemClock.now();
        // At most a part of the ring may be pinned until the next send.
        let slots = ring.map_or(u32::MAX, |ring| {
            u32::try_from(ring.len() / config.datagram_len_max).unwrap_or(u32::MAX)
        });
        let signal_every = config.signal_every.min(slots / 4).max(1);
        let mut line = Self {
            queue: None,
            spare: None,
            address: None,
            is_attached: false,
            broke_at: None,
            pins: Pins::new(config.send_depth, signal_every),
            closing: 0,
            held: None,
            bucket: config
                .pace
                .map(|pace| TokenBucket::new(pace.rate_bytes_per_s, pace.burst_bytes, now)),
            q_key: config.q_key,
            group: line.group,
            datagram_len_max: config.datagram_len_max,
            upkeep: Upkeep::start(config, line, ring)?,
        };
        line.take_news(&mut SendStats::default());
        Ok(line)
    }

    /// Returns the device, if the line has a queue.
    pub(super) fn device(&self) -> Option<&Arc<Device>> {
        self.queue.as_ref().map(|queue| queue.device())
    }

    /// Returns the last sequence that was posted or refused.
    pub(super) const fn taken(&self) -> Sequence {
        self.pins.taken()
    }

    /// Returns the last sequence that no queue reads any more.
    pub(super) fn completed(&self) -> Sequence {
        let completed = self.pins.completed();
        self.held.map_or(completed, |held| held.min(completed))
    }

    /// Takes the device's completions and the helper thread's messages.
    #[inline]
    pub(super) fn collect(&mut self, stats: &mut SendStats) {
        if self.upkeep.has_news() {
            self.take_news(stats);
        }
        self.take_completions(stats);
    }

    /// Takes the helper thread's messages, and completions if the queue has no room for a chain. Otherwise
    /// one poll for each turn of the publisher is enough, which [`Line::collect`] makes.
    #[inline]
    pub(super) fn make_room(&mut self, stats: &mut SendStats) {
        if self.upkeep.has_news() {
            self.take_news(stats);
        }
        if self.pins.room() < CHAIN_MAX {
            self.take_completions(stats);
        }
    }

    #[inline]
    fn take_completions(&mut self, stats: &mut SendStats) {
        let Some(queue) = &mut self.queue else {
            return;
        };
        let mut failed = None;
        while self.pins.in_flight() > 0 {
            let done = match queue.take() {
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
    }

    /// Posts the slots after the last one taken, up to `last`, as far as there is room and the pace allows.
    /// Returns whether it stalled.
    ///
    /// # Errors
    /// [`FanOutError`] if a slot can't be sent. Nothing of its chain is posted.
    pub(super) fn post(
        &mut self,
        slots: &dyn Slots,
        last: Sequence,
        chain: &mut Chain,
        stats: &mut SendStats,
    ) -> Result<bool, FanOutError> {
        if self.address.is_none() {
            self.refuse(last, stats);
            return Ok(false);
        }
        let Some(queue) = &mut self.queue else {
            // Another queue was requested.
            let stalled = self.pins.taken() < last;
            stats.stalls += u64::from(stalled);
            return Ok(stalled);
        };
        let now = self.bucket.as_ref().map(|_| SystemClock.now());
        while self.pins.taken() < last {
            let first = self.pins.taken().next();
            let mut bytes_of_chain = 0;
            let mut count = 0;
            let mut paced = false;
            let mut sequence = first;
            while sequence <= last && !chain.is_full() && count < self.pins.room() {
                let bytes = checked(slots, sequence, self.datagram_len_max)
                    .inspect_err(|_| chain.clear())?;
                if let (Some(bucket), Some(now)) = (&mut self.bucket, now)
                    && !bucket.has(now, bytes_of_chain + bytes.len())
                {
                    paced = true;
                    break;
                }
                let number = self.pins.number(count, false);
                let added = queue.add_slot(chain, (sequence, bytes), self.q_key, number);
                added.inspect_err(|_| chain.clear())?;
                bytes_of_chain += bytes.len();
                count += 1;
                sequence = sequence.next();
            }
            let (taken, error) = queue.post(chain);
            for i in 0..taken {
                // The flags of the request say the same, and take longer to read.
                let (_, signalled) = self.pins.number(0, false);
                let sequence = first.plus(i as u64);
                self.pins
                    .sent(Some(sequence), chain.is_inline(i), signalled);
            }
            self.pins.chain_sent();
            let bytes_taken = chain.bytes_of(taken);
            if let (Some(bucket), Some(now)) = (&mut self.bucket, now) {
                bucket.take(now, bytes_taken);
            }
            if taken > 0 {
                stats.batches += 1;
                stats.datagrams += taken as u64;
                stats.bytes += bytes_taken as u64;
            }
            if taken < count && !matches!(error, libc::ENOMEM | libc::EAGAIN) {
                // The queue accepts nothing any more. The next one takes the rest.
                self.broke(sys::ibv_wc_status::IBV_WC_GENERAL_ERR, stats);
                stats.last_errno = error;
                return Ok(true);
            }
            if taken < CHAIN_MAX && self.pins.taken() < last {
                stats.stalls += u64::from(!paced);
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Sends a copy, if a buffer for it is free. Returns whether it was sent.
    pub(super) fn send_copy(
        &mut self,
        bytes: &[u8],
        chain: &mut Chain,
        stats: &mut SendStats,
    ) -> bool {
        // Copies have few buffers, which completions free.
        self.collect(stats);
        let is_sent = self.try_copy(bytes, chain, stats);
        if is_sent {
            stats.batches += 1;
            stats.datagrams += 1;
            stats.bytes += bytes.len() as u64;
        } else {
            stats.unpinned_sends_dropped += 1;
        }
        is_sent
    }

    fn try_copy(&mut self, bytes: &[u8], chain: &mut Chain, stats: &mut SendStats) -> bool {
        let Some(queue) = self.queue.as_mut().filter(|_| self.address.is_some()) else {
            return false;
        };
        let mut bucket = self.bucket.as_mut().map(|it| (it, SystemClock.now()));
        let is_paced = bucket
            .as_mut()
            .is_some_and(|(bucket, now)| !bucket.has(*now, bytes.len()));
        let has_room = self.pins.room() > 0 && !is_paced;
        if !has_room || !queue.add_copy(chain, bytes, self.q_key, &self.pins) {
            return false;
        }
        let (taken, error) = queue.post(chain);
        if taken > 0 {
            self.pins
                .sent(None, chain.is_inline(0), chain.is_signalled(0));
            if let Some((bucket, now)) = &mut bucket {
                bucket.take(*now, bytes.len());
            }
            return true;
        }
        if !matches!(error, libc::ENOMEM | libc::EAGAIN) {
            self.broke(sys::ibv_wc_status::IBV_WC_GENERAL_ERR, stats);
        }
        stats.last_errno = error;
        false
    }

    /// Restarts the line behind another sequence. If sends are in flight, their queue is given up. Until it
    /// is closed, it may send slots that are overwritten meanwhile: torn, with a wrong CRC, or a whole later
    /// datagram ahead of its turn.
    pub(super) fn begin_after(&mut self, sequence: Sequence, stats: &mut SendStats) {
        self.collect(stats);
        if self.pins.in_flight() > 0 {
            self.swap(stats);
        }
        self.held = None;
        self.pins.begin_after(sequence);
    }

    /// Counts slots that the line does not send as refused, and marks them as done.
    #[cold]
    fn refuse(&mut self, last: Sequence, stats: &mut SendStats) {
        if self.pins.taken() < last {
            stats.refused += last.since(self.pins.taken());
            self.pins.skipped(last);
        }
    }

    /// Records that the queue failed. A second failure within a short time is the device's.
    #[cold]
    fn broke(&mut self, status: u32, stats: &mut SendStats) {
        let group = self.group;
        stats.last_errno = libc::EIO;
        let now = Instant::now();
        let before = self.broke_at.replace(now);
        if before.is_some_and(|before| now.duration_since(before) < AGAIN) {
            tracing::warn!(%group, status, "a send queue failed again (ibv_wc_status); the line opens its device again");
            self.detach(stats);
        } else {
            tracing::warn!(%group, status, "a send queue failed (ibv_wc_status) and is replaced");
            self.swap(stats);
        }
    }

    /// Gives the queue up and continues with the spare, if there is one.
    #[cold]
    fn swap(&mut self, stats: &mut SendStats) {
        if let Some(queue) = self.queue.take() {
            self.give_up(stats);
            self.ask_helper(|upkeep| upkeep.replace(queue));
        }
        self.queue = self.spare.take();
        self.direct_queue();
    }

    /// Returns all queues, so that the helper thread opens the device again.
    #[cold]
    fn detach(&mut self, stats: &mut SendStats) {
        if let Some(queue) = self.queue.take() {
            self.give_up(stats);
            self.ask_helper(|upkeep| upkeep.close(queue));
        }
        if let Some(spare) = self.spare.take() {
            self.closing += 1;
            self.ask_helper(|upkeep| upkeep.close(spare));
        }
        (self.address, self.is_attached) = (None, false);
        self.ask_helper(Upkeep::reattach);
    }

    /// Sends the helper thread a message. Without the thread, the line sends nothing any more.
    fn ask_helper(&mut self, ask: impl FnOnce(&Upkeep) -> bool) {
        if !ask(&self.upkeep) {
            let group = self.group;
            tracing::error!(%group, "the helper thread of a line has ended; the line sends nothing any more, so restart the publisher");
            (self.address, self.held) = (None, None);
        }
    }

    /// Holds the slots that the queue may still read until it is closed.
    fn give_up(&mut self, stats: &mut SendStats) {
        stats.restarts += 1;
        self.closing += 1;
        self.held = Some(self.completed());
        self.pins.flushed();
    }

    /// Sets the queue to the line's address.
    fn direct_queue(&mut self) {
        if let (Some(queue), Some(address)) = (&mut self.queue, &self.address) {
            queue.set_address(address, &self.pins);
        }
    }

    /// Takes all messages of the helper thread.
    #[cold]
    fn take_news(&mut self, stats: &mut SendStats) {
        while let Some(supply) = self.upkeep.next() {
            match supply {
                Supply::Attached => self.is_attached = true,
                // The queue or the address is of the device that the line has returned.
                Supply::Queue(queue) if !self.is_attached => {
                    self.closing += 1;
                    self.ask_helper(|upkeep| upkeep.close(queue));
                }
                Supply::Address(_) | Supply::Stale if !self.is_attached => {}
                Supply::Queue(queue) if self.queue.is_none() => {
                    self.queue = Some(queue);
                    self.direct_queue();
                }
                Supply::Queue(queue) => self.spare = Some(queue),
                Supply::Address(address) => {
                    self.address = Some(address);
                    self.direct_queue();
                }
                Supply::Stale => self.detach(stats),
                Supply::Closed { unsent } => {
                    stats.flushed += unsent;
                    self.closing -= 1;
                    self.held = self.held.filter(|_| self.closing > 0);
                }
                Supply::Failed(errno) => stats.last_errno = errno,
            }
        }
    }
}

/// Returns the bytes of a sealed slot.
#[inline]
fn checked(slots: &dyn Slots, sequence: Sequence, len_max: usize) -> Result<&[u8], FanOutError> {
    let bytes = slots
        .slot(sequence)
        .ok_or(FanOutError::NotSealed { sequence })?;
    check_len(bytes, len_max)?;
    Ok(bytes)
}

/// Checks the length of a datagram.
pub(super) const fn check_len(bytes: &[u8], max: usize) -> Result<(), FanOutError> {
    let len = bytes.len();
    if len > max {
        return Err(FanOutError::TooLong { len, max });
    }
    Ok(())
}
