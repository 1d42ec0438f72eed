//! The network in memory: one or more fan-outs, any number of receivers, and a handle to cut,
//! stall and complete.

use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tickcast_reliability::delivery::LineId;
use tickcast_reliability::record::{words_as_bytes, words_as_bytes_mut};
use tickcast_reliability::ring::RingMemory;
use tickcast_reliability::types::{Nanos, Sequence, SequenceRange};

use tickcast_transport_base::{
    FanOut, FanOutError, Posted, Receive, ReceiveError, ReceiveStats, Received, SendStats, Slots,
};

/// The time when posted slots are read and delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// After this many further calls to any fan-out's `completed` or receiver's `poll`.
    AfterPolls(u32),
    /// On calls of [`MemoryNetwork::complete`].
    Manual,
}

/// The properties of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryNetworkConfig {
    /// Number of lines, one or two.
    pub lines: usize,
    /// The time when sends complete.
    pub completion: Completion,
    /// Slots that a fan-out can have posted at once.
    pub send_queue_len: usize,
    /// Buffers of each receiver.
    pub receive_buffers: usize,
    /// Largest number of datagrams per receiver poll.
    pub batch: usize,
    /// Length of the longest datagram, in bytes.
    pub datagram_len_max: usize,
}

impl Default for MemoryNetworkConfig {
    fn default() -> Self {
        Self {
            lines: 1,
            completion: Completion::AfterPolls(3),
            send_queue_len: 128,
            receive_buffers: 256,
            batch: 64,
            datagram_len_max: 1472,
        }
    }
}

/// The network. Clones are handles on the same network.
#[derive(Clone)]
pub struct MemoryNetwork(Arc<Mutex<State>>);

struct State {
    config: MemoryNetworkConfig,
    /// Number of polls so far, of all fan-outs and receivers.
    tick: u64,
    stalled: bool,
    cut: [bool; LineId::MAX],
    senders: Vec<Sender>,
    receivers: Vec<Receiver>,
}

/// A fan-out as the network sees it.
struct Sender {
    from: Ipv4Addr,
    memory: Arc<dyn RingMemory>,
    queue: VecDeque<Work>,
    completed: Option<Sequence>,
    stats: Vec<SendStats>,
}

/// Datagrams taken and not yet delivered.
struct Work {
    what: Payload,
    /// The tick at which it is delivered.
    due: u64,
}

enum Payload {
    /// A slot, which is read when it is delivered.
    Slot {
        sequence: Sequence,
        offset: usize,
        len: usize,
    },
    /// Bytes that were copied while slots were waiting, because a copy does not overtake them.
    Copy(Vec<u8>),
}

/// A receiver as the network sees it.
struct Receiver {
    joined: [bool; LineId::MAX],
    free: Vec<Vec<u64>>,
    ready: VecDeque<Arrival>,
    stats: Vec<ReceiveStats>,
}

struct Arrival {
    line: LineId,
    from: Ipv4Addr,
    words: Vec<u64>,
    len: usize,
}

impl MemoryNetwork {
    /// Creates a network without senders and receivers. Numbers out of range are clamped.
    #[must_use]
    pub fn new(config: MemoryNetworkConfig) -> Self {
        Self(Arc::new(Mutex::new(State {
            config: MemoryNetworkConfig {
                lines: config.lines.clamp(1, LineId::MAX),
                ..config
            },
            tick: 0,
            stalled: false,
            cut: [false; LineId::MAX],
            senders: Vec::new(),
            receivers: Vec::new(),
        })))
    }

    /// Adds a fan-out that sends from `memory`, the ring's, with source address `from`.
    #[must_use]
    pub fn fan_out(&self, memory: Arc<dyn RingMemory>, from: Ipv4Addr) -> MemoryFanOut {
        let mut state = self.state();
        let lines = state.config.lines;
        state.senders.push(Sender {
            from,
            memory: Arc::clone(&memory),
            queue: VecDeque::new(),
            completed: None,
            stats: vec![SendStats::default(); lines],
        });
        MemoryFanOut {
            network: self.clone(),
            memory,
            index: state.senders.len() - 1,
            datagram_len_max: state.config.datagram_len_max,
            stats: vec![SendStats::default(); lines],
        }
    }

    /// Adds a receiver on all lines.
    #[must_use]
    pub fn receiver(&self) -> MemoryReceiver {
        let mut state = self.state();
        let MemoryNetworkConfig {
            lines,
            receive_buffers,
            batch,
            datagram_len_max,
            ..
        } = state.config;
        let buffer = vec![0; datagram_len_max.div_ceil(8)];
        let stats = ReceiveStats {
            joins: 1,
            ..ReceiveStats::default()
        };
        state.receivers.push(Receiver {
            joined: [true; LineId::MAX],
            free: vec![buffer; receive_buffers],
            ready: VecDeque::with_capacity(receive_buffers),
            stats: vec![stats; lines],
        });
        MemoryReceiver {
            network: self.clone(),
            index: state.receivers.len() - 1,
            batch,
            stats: vec![stats; lines],
        }
    }

    /// Completes the `count` oldest posted slots of every fan-out, whether due or not. Does nothing while
    /// stalled.
    pub fn complete(&self, count: usize) {
        let mut state = self.state();
        if state.stalled {
            return;
        }
        for sender in 0..state.senders.len() {
            for _ in 0..count {
                state.deliver_next(sender);
            }
        }
    }

    /// Stalls every fan-out: nothing is taken or completed until it is lifted.
    pub fn stall(&self, stalled: bool) {
        self.state().stalled = stalled;
    }

    /// Cuts a line: datagrams sent on it are lost, and the sender does not notice.
    pub fn cut(&self, line: LineId, cut: bool) {
        if let Some(state) = self.state().cut.get_mut(usize::from(line.0)) {
            *state = cut;
        }
    }

    /// Removes a receiver's membership of a line without its knowledge, as a switch would.
    pub fn forget(&self, receiver: &MemoryReceiver, line: LineId) {
        let mut state = self.state();
        if let Some(joined) = state.receivers[receiver.index]
            .joined
            .get_mut(usize::from(line.0))
        {
            *joined = false;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The state is consistent between any two statements that could panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Advances time by one tick and delivers everything that is due.
    fn tick(&mut self) {
        self.tick += 1;
        if self.stalled {
            return;
        }
        for sender in 0..self.senders.len() {
            while self.senders[sender]
                .queue
                .front()
                .is_some_and(|w| w.due <= self.tick)
            {
                self.deliver_next(sender);
            }
        }
    }

    /// Reads the oldest posted slot *now* and delivers it.
    fn deliver_next(&mut self, sender: usize) {
        let from = &mut self.senders[sender];
        let Some(work) = from.queue.pop_front() else {
            return;
        };
        let address = from.from;
        match work.what {
            Payload::Slot {
                sequence,
                offset,
                len,
            } => {
                from.completed = Some(sequence);
                let mut words = vec![0; len.div_ceil(8)];
                read_slot(&*from.memory, offset, &mut words);
                self.deliver(sender, address, &words_as_bytes(&words)[..len]);
            }
            Payload::Copy(bytes) => self.deliver(sender, address, &bytes),
        }
    }

    fn deliver(&mut self, sender: usize, from: Ipv4Addr, bytes: &[u8]) {
        for line in 0..self.config.lines {
            let sent = &mut self.senders[sender].stats[line];
            sent.datagrams += 1;
            sent.bytes += bytes.len() as u64;
            if self.cut[line] {
                continue;
            }
            for receiver in self.receivers.iter_mut().filter(|r| r.joined[line]) {
                let Some(mut words) = receiver.free.pop() else {
                    receiver.stats[line].buffer_drops += 1;
                    continue;
                };
                words_as_bytes_mut(&mut words)[..bytes.len()].copy_from_slice(bytes);
                receiver.ready.push_back(Arrival {
                    line: LineId(line as u8),
                    from,
                    words,
                    len: bytes.len(),
                });
            }
        }
    }
}

/// Copies a slot out of memory that its writer may be writing: word by word, relaxed, as torn as
/// a network card would read it.
fn read_slot(memory: &dyn RingMemory, offset: usize, words: &mut [u64]) {
    let first = memory.as_ptr().wrapping_add(offset).cast::<u64>();
    for (i, word) in words.iter_mut().enumerate() {
        // SAFETY: `post` checked that the slot lies in `memory` on an 8-byte boundary, its last
        // word whole, and the memory stays mapped while we hold it; the access is atomic, as the
        // writer's are. Exercised by tests/local/memory.rs
        // `slot_overwritten_before_completion_is_sent_corrupted`.
        *word = unsafe { AtomicU64::from_ptr(first.add(i)) }.load(Ordering::Relaxed);
    }
}

/// Sends through a [`MemoryNetwork`].
pub struct MemoryFanOut {
    network: MemoryNetwork,
    memory: Arc<dyn RingMemory>,
    index: usize,
    datagram_len_max: usize,
    stats: Vec<SendStats>,
}

impl MemoryFanOut {
    /// Returns the offset of a slot in the registered memory.
    fn offset(&self, slot: &[u8], sequence: Sequence) -> Result<usize, FanOutError> {
        let offset = slot
            .as_ptr()
            .addr()
            .checked_sub(self.memory.as_ptr().addr());
        let words_end = |offset: usize| offset + slot.len().next_multiple_of(8);
        offset
            .filter(|offset| offset % 8 == 0 && words_end(*offset) <= self.memory.len())
            .ok_or(FanOutError::NotRegistered { sequence })
    }
}

impl FanOut for MemoryFanOut {
    fn post(&mut self, slots: &dyn Slots, range: SequenceRange) -> Result<Posted, FanOutError> {
        let mut last = None;
        let mut stalled = false;
        for sequence in range.iter() {
            let slot = slots
                .slot(sequence)
                .ok_or(FanOutError::NotSealed { sequence })?;
            let (len, max) = (slot.len(), self.datagram_len_max);
            if len > max {
                return Err(FanOutError::TooLong { len, max });
            }
            let offset = self.offset(slot, sequence)?;
            let mut state = self.network.state();
            let due = match state.config.completion {
                Completion::AfterPolls(polls) => state.tick + u64::from(polls),
                Completion::Manual => u64::MAX,
            };
            let (room, full) = (state.config.send_queue_len, state.stalled);
            let sender = &mut state.senders[self.index];
            if full || sender.queue.len() >= room {
                sender.stats.iter_mut().for_each(|line| line.stalls += 1);
                stalled = true;
                break;
            }
            let what = Payload::Slot {
                sequence,
                offset,
                len,
            };
            sender.queue.push_back(Work { what, due });
            last = Some(sequence);
        }
        let state = self.network.state();
        self.stats.copy_from_slice(&state.senders[self.index].stats);
        Ok(Posted { last, stalled })
    }

    fn completed(&mut self) -> Option<Sequence> {
        let mut state = self.network.state();
        state.tick();
        let sender = &state.senders[self.index];
        self.stats.copy_from_slice(&sender.stats);
        sender.completed
    }

    fn send_copy(&mut self, bytes: &[u8]) -> Result<bool, FanOutError> {
        let (len, max) = (bytes.len(), self.datagram_len_max);
        if len > max {
            return Err(FanOutError::TooLong { len, max });
        }
        let mut state = self.network.state();
        let taken = !state.stalled;
        if taken {
            let sender = &mut state.senders[self.index];
            let from = sender.from;
            // Behind the posted slots, as on a queue.
            match sender.queue.back().map(|work| work.due) {
                Some(due) => sender.queue.push_back(Work {
                    what: Payload::Copy(bytes.to_vec()),
                    due,
                }),
                None => state.deliver(self.index, from, bytes),
            }
        } else {
            let lines = state.senders[self.index].stats.iter_mut();
            lines.for_each(|line| line.unpinned_sends_dropped += 1);
        }
        self.stats.copy_from_slice(&state.senders[self.index].stats);
        Ok(taken)
    }

    fn reset(&mut self) {
        let mut state = self.network.state();
        let sender = &mut state.senders[self.index];
        let flushed = sender.queue.len() as u64;
        for line in &mut sender.stats {
            // They were given to the network, and come back.
            line.datagrams += flushed;
            line.flushed += flushed;
        }
        sender.queue.clear();
        sender.completed = None;
        self.stats.copy_from_slice(&sender.stats);
    }

    fn datagram_len_max(&self) -> usize {
        self.datagram_len_max
    }

    fn stats(&self) -> &[SendStats] {
        &self.stats
    }
}

impl Drop for MemoryFanOut {
    fn drop(&mut self) {
        self.reset();
    }
}

/// Receives from a [`MemoryNetwork`].
pub struct MemoryReceiver {
    network: MemoryNetwork,
    index: usize,
    batch: usize,
    stats: Vec<ReceiveStats>,
}

impl MemoryReceiver {
    fn set_joined(&mut self, line: LineId, joined: bool) -> Result<(), ReceiveError> {
        let lines = self.stats.len();
        if usize::from(line.0) >= lines {
            return Err(ReceiveError::NoSuchLine { line, lines });
        }
        let mut state = self.network.state();
        let receiver = &mut state.receivers[self.index];
        receiver.joined[usize::from(line.0)] = joined;
        receiver.stats[usize::from(line.0)].joins += u64::from(joined);
        self.stats.copy_from_slice(&receiver.stats);
        Ok(())
    }
}

impl Receive for MemoryReceiver {
    fn poll(
        &mut self,
        now: Nanos,
        on: &mut dyn FnMut(Received<'_>),
    ) -> Result<usize, ReceiveError> {
        self.network.state().tick();
        let mut count = 0;
        while count < self.batch {
            // The lock is not held during the call, which may post, or poll another receiver.
            let Some(arrival) = self.network.state().receivers[self.index].ready.pop_front() else {
                break;
            };
            on(Received {
                line: arrival.line,
                from: arrival.from,
                bytes: &words_as_bytes(&arrival.words)[..arrival.len],
                received_at: now,
                whole: false,
            });
            count += 1;
            let mut state = self.network.state();
            let receiver = &mut state.receivers[self.index];
            let stats = &mut receiver.stats[usize::from(arrival.line.0)];
            stats.datagrams += 1;
            stats.bytes += arrival.len as u64;
            receiver.free.push(arrival.words);
        }
        let mut state = self.network.state();
        let receiver = &mut state.receivers[self.index];
        if count > 0 {
            receiver.stats[0].batches += 1;
        }
        self.stats.copy_from_slice(&receiver.stats);
        Ok(count)
    }

    fn join(&mut self, line: LineId) -> Result<(), ReceiveError> {
        self.set_joined(line, true)
    }

    fn leave(&mut self, line: LineId) -> Result<(), ReceiveError> {
        self.set_joined(line, false)
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    fn raw_fds(&self) -> &[RawFd] {
        &[]
    }

    fn stats(&self) -> &[ReceiveStats] {
        &self.stats
    }
}

impl Drop for MemoryReceiver {
    fn drop(&mut self) {
        // It stays in the list, so that the others keep their indices, but receives nothing any more.
        self.network.state().receivers[self.index].joined = [false; LineId::MAX];
    }
}
