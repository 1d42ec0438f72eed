//! Work requests in flight: their chains, and how far the device has completed them.

use std::ptr;

use tickcast_reliability::types::Sequence;

use crate::device::queue::{AddressHandle, DatagramQueue};
use crate::device::sys;

/// Largest number of requests posted at a time.
pub(crate) const CHAIN_MAX: usize = 32;

/// Bytes to send, and the key of the registration they are in (0: they are copied into the request).
#[derive(Clone, Copy)]
pub(crate) struct Piece {
    pub(crate) bytes: *const u8,
    pub(crate) len: u32,
    pub(crate) lkey: u32,
    pub(crate) inline: bool,
}

/// Work requests that are posted together.
pub(crate) struct Chain {
    requests: Box<[sys::ibv_send_wr]>,
    pieces: Box<[sys::ibv_sge]>,
    len: usize,
    /// Sum of the lengths of the first n pieces, for each n.
    bytes_before: [u32; CHAIN_MAX + 1],
}

// SAFETY: the pointers inside are set when a chain is posted and mean nothing afterwards.
// Exercised by `verbs::datagrams::verbs_fan_out_reaches_all_receivers`.
unsafe impl Send for Chain {}

impl Chain {
    pub(crate) fn new() -> Self {
        // SAFETY: zero is a value of every field: numbers and null pointers.
        // Exercised by `verbs::datagrams::verbs_fan_out_reaches_all_receivers`.
        let request = || unsafe { std::mem::zeroed::<sys::ibv_send_wr>() };
        let piece = sys::ibv_sge {
            addr: 0,
            length: 0,
            lkey: 0,
        };
        let mut requests: Box<[_]> = (0..CHAIN_MAX).map(|_| request()).collect();
        for request in &mut requests {
            request.opcode = sys::ibv_wr_opcode::IBV_WR_SEND;
            request.num_sge = 1;
        }
        Self {
            requests,
            pieces: vec![piece; CHAIN_MAX].into_boxed_slice(),
            len: 0,
            bytes_before: [0; CHAIN_MAX + 1],
        }
    }

    pub(crate) const fn is_full(&self) -> bool {
        self.len == CHAIN_MAX
    }

    /// Returns the bytes of the first `count` requests that were added last.
    pub(crate) const fn bytes_of(&self, count: usize) -> usize {
        self.bytes_before[count] as usize
    }

    /// Returns whether the n-th request that was added last carries its bytes.
    pub(crate) fn is_inline(&self, at: usize) -> bool {
        self.requests[at].send_flags & sys::ibv_send_flags::IBV_SEND_INLINE.0 != 0
    }

    /// Returns whether the completion of the n-th request that was added last is reported.
    pub(crate) fn is_signalled(&self, at: usize) -> bool {
        self.requests[at].send_flags & sys::ibv_send_flags::IBV_SEND_SIGNALED.0 != 0
    }

    /// Discards the requests that were added and not posted.
    pub(crate) const fn clear(&mut self) {
        self.len = 0;
    }

    /// Adds a datagram to a group. `number` comes back with its completion, if `signalled`.
    #[inline]
    pub(crate) fn push(
        &mut self,
        piece: Piece,
        to: &AddressHandle,
        q_key: u32,
        number: u64,
        signalled: bool,
    ) {
        type Flags = sys::ibv_send_flags;
        let at = self.len;
        self.pieces[at] = sys::ibv_sge {
            addr: piece.bytes.addr() as u64,
            length: piece.len,
            lkey: piece.lkey,
        };
        let request = &mut self.requests[at];
        request.wr_id = number;
        let flag = |is_set, flag: Flags| if is_set { flag.0 } else { 0 };
        request.send_flags =
            flag(signalled, Flags::IBV_SEND_SIGNALED) | flag(piece.inline, Flags::IBV_SEND_INLINE);
        request.wr.ud = sys::ud_t {
            ah: to.as_ptr(),
            remote_qpn: sys::MULTICAST_QPN,
            remote_qkey: q_key,
        };
        self.bytes_before[at + 1] = self.bytes_before[at] + piece.len;
        self.len = at + 1;
    }

    /// Posts the added requests. Returns how many the device took, and its error number if not all.
    ///
    /// # Safety
    /// Every piece added since the last post lies in the registration it names and stays unchanged until
    /// its request completes; inline pieces until this returns.
    #[inline]
    pub(crate) unsafe fn post(&mut self, queue: &mut DatagramQueue) -> (usize, i32) {
        let len = std::mem::take(&mut self.len);
        if len == 0 {
            return (0, 0);
        }
        let (first, pieces) = (self.requests.as_mut_ptr(), self.pieces.as_mut_ptr());
        // SAFETY: all indices are below `len`, which is at most the length of both arrays; the
        // device's library copies requests and pieces before it returns. Exercised by
        // `verbs::datagrams::verbs_fan_out_reaches_all_receivers`.
        unsafe {
            for i in 0..len {
                let request = first.add(i);
                (*request).sg_list = pieces.add(i);
                (*request).next = first.add(i + 1);
            }
            (*first.add(len - 1)).next = ptr::null_mut();
            let mut bad = ptr::null_mut();
            match queue.post_send(first, &mut bad) {
                0 => (len, 0),
                error if bad.is_null() => (0, error),
                error => (bad.offset_from(first) as usize, error),
            }
        }
    }
}

/// Numbers the sends of a queue, counts those in flight, and tracks up to which sequence the device no
/// longer reads slots.
pub(crate) struct Pins {
    /// Largest number of sends in flight.
    depth: u64,
    /// The interval of signalled sends, less one. The interval is a power of two, so that no send divides.
    signal_mask: u64,
    /// Sends given to the device, and sends known to be done.
    posted: u64,
    done: u64,
    /// Sends since the last signalled one.
    silent: u64,
    /// One past the last send that the device reads from memory.
    pinned: u64,
    /// For each send in flight: the last sequence before or at it. The length is a power of two.
    sequences: Box<[Sequence]>,
    /// The last sequence given to the device or skipped.
    taken: Sequence,
    /// The last sequence that the device does not read any more.
    completed: Sequence,
}

impl Pins {
    /// Creates the numbers of a queue of this depth. `signal_every` is rounded down to a power of two.
    pub(crate) fn new(depth: u32, signal_every: u32) -> Self {
        Self {
            depth: depth.into(),
            signal_mask: (1 << signal_every.max(1).ilog2()) - 1,
            posted: 0,
            done: 0,
            silent: 0,
            pinned: 0,
            sequences: vec![Sequence::NONE; (depth as usize).next_power_of_two()]
                .into_boxed_slice(),
            taken: Sequence::NONE,
            completed: Sequence::NONE,
        }
    }

    /// Returns how many sends the queue still accepts.
    pub(crate) const fn room(&self) -> usize {
        (self.depth - self.in_flight()) as usize
    }

    /// Returns the last sequence given to the device or skipped.
    pub(crate) const fn taken(&self) -> Sequence {
        self.taken
    }

    /// Restarts the queue behind `sequence`. Nothing may be in flight: the device would still read
    /// slots counted as done, and a late completion would report sequences from before the restart.
    pub(crate) const fn begin_after(&mut self, sequence: Sequence) {
        debug_assert!(self.in_flight() == 0, "no send is in flight");
        self.taken = sequence;
        self.completed = sequence;
    }

    /// Returns the number of the send added to a chain as its `ahead`-th, and whether it must be signalled.
    /// Every n-th send is, and every send whose buffer is waited for.
    pub(crate) const fn number(&self, ahead: usize, waited_for: bool) -> (u64, bool) {
        let signalled = waited_for || (self.silent + ahead as u64 + 1) & self.signal_mask == 0;
        (self.posted + ahead as u64, signalled)
    }

    /// Records a send that the device took: of this sequence or, for `None`, of a copy. After the last slot
    /// of a chain, call [`chain_sent`](Self::chain_sent).
    #[inline]
    pub(crate) fn sent(&mut self, sequence: Option<Sequence>, inline: bool, signalled: bool) {
        self.taken = sequence.unwrap_or(self.taken);
        let at = self.slot(self.posted);
        self.sequences[at] = self.taken;
        self.posted += 1;
        if !inline {
            self.pinned = self.posted;
        }
        self.silent = if signalled { 0 } else { self.silent + 1 };
    }

    /// Completes all recorded sends, unless the device still reads one of them from memory.
    #[inline]
    pub(crate) fn chain_sent(&mut self) {
        if self.done >= self.pinned {
            self.completed = self.taken;
        }
    }

    /// Records a sequence that is not sent.
    pub(crate) const fn skipped(&mut self, sequence: Sequence) {
        debug_assert!(self.in_flight() == 0, "no send is in flight");
        self.taken = sequence;
        self.completed = sequence;
    }

    /// Records the completion of a signalled send. All sends before it are done too.
    #[inline]
    pub(crate) fn signalled(&mut self, number: u64) {
        if (self.done..self.posted).contains(&number) {
            self.done = number + 1;
            let sent = self.sequences[self.slot(number)];
            self.completed = self.completed.max(sent);
            self.chain_sent();
        }
    }

    const fn slot(&self, number: u64) -> usize {
        number as usize & (self.sequences.len() - 1)
    }

    /// Returns the last sequence that the device does not read any more.
    pub(crate) const fn completed(&self) -> Sequence {
        self.completed
    }

    /// Returns the number of the next send.
    pub(crate) const fn posted(&self) -> u64 {
        self.posted
    }

    /// Returns whether a send is done.
    pub(crate) const fn is_done(&self, number: u64) -> bool {
        number < self.done
    }

    /// Returns the number of sends in flight.
    pub(crate) const fn in_flight(&self) -> u64 {
        self.posted - self.done
    }

    /// Records that the device returned all sends.
    pub(crate) const fn flushed(&mut self) {
        self.done = self.posted;
        self.silent = 0;
        self.pinned = self.posted;
        self.completed = self.taken;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends `sequences` as a chain and returns the numbers of the signalled sends.
    fn send(pins: &mut Pins, sequences: std::ops::RangeInclusive<u64>, inline: bool) -> Vec<u64> {
        let mut numbers = Vec::new();
        for sequence in sequences {
            let (number, signalled) = pins.number(0, false);
            pins.sent(Some(Sequence(sequence)), inline, signalled);
            if signalled {
                numbers.push(number);
            }
        }
        pins.chain_sent();
        numbers
    }

    #[test]
    fn signalled_send_completes_all_earlier_sends() {
        let mut pins = Pins::new(16, 4);
        let signalled = send(&mut pins, 1..=10, false);
        assert_eq!(signalled, [3, 7]);
        assert_eq!((pins.room(), pins.completed()), (6, Sequence(0)));
        pins.signalled(3);
        assert_eq!((pins.room(), pins.completed()), (10, Sequence(4)));
        pins.signalled(7);
        assert_eq!((pins.room(), pins.completed()), (14, Sequence(8)));
        // A completion reported twice, or of a future request, changes nothing.
        pins.signalled(3);
        pins.signalled(99);
        assert_eq!(pins.completed(), Sequence(8));
    }

    #[test]
    fn inline_send_is_unpinned_but_takes_room() {
        let mut pins = Pins::new(8, 4);
        let signalled = send(&mut pins, 1..=3, true);
        assert!(signalled.is_empty());
        assert_eq!((pins.room(), pins.completed()), (5, Sequence(3)));
        // A send from memory pins itself and, because of the order, all sends after it.
        send(&mut pins, 4..=4, false);
        send(&mut pins, 5..=5, true);
        assert_eq!(pins.completed(), Sequence(3));
        pins.signalled(3);
        assert_eq!(pins.completed(), Sequence(5));
    }

    #[test]
    fn late_completion_of_inline_send_takes_nothing_back() {
        let mut pins = Pins::new(16, 4);
        assert_eq!(send(&mut pins, 1..=6, true), [3]);
        send(&mut pins, 7..=7, false);
        assert_eq!(pins.completed(), Sequence(6));
        pins.signalled(3);
        assert_eq!(pins.completed(), Sequence(6));
    }

    #[test]
    fn any_depth_and_interval_signal_in_powers_of_two() {
        // Of 12 places and an interval of 7, all 12 are used, and each fourth send is signalled.
        let mut pins = Pins::new(12, 7);
        assert_eq!(send(&mut pins, 1..=12, false), [3, 7, 11]);
        assert_eq!(pins.room(), 0);
        pins.signalled(11);
        assert_eq!((pins.room(), pins.completed()), (12, Sequence(12)));
        assert_eq!(send(&mut pins, 13..=24, false), [15, 19, 23]);
        pins.signalled(19);
        assert_eq!((pins.room(), pins.completed()), (8, Sequence(20)));
    }

    #[test]
    fn copies_take_room_and_numbers_but_no_sequence() {
        let mut pins = Pins::new(8, 100);
        pins.begin_after(Sequence(41));
        let (number, signalled) = pins.number(0, true);
        assert!(signalled);
        pins.sent(None, false, signalled);
        assert_eq!((pins.room(), pins.taken()), (7, Sequence(41)));
        pins.signalled(number);
        assert!(pins.is_done(number));
        assert_eq!(pins.completed(), Sequence(41));
    }

    #[test]
    fn numbers_go_on_beyond_the_depth_of_the_queue() {
        let mut pins = Pins::new(4, 2);
        for round in 0..100u64 {
            let signalled = send(&mut pins, round * 4 + 1..=round * 4 + 4, false);
            assert_eq!(pins.room(), 0);
            signalled
                .into_iter()
                .for_each(|number| pins.signalled(number));
            assert_eq!(
                (pins.room(), pins.completed()),
                (4, Sequence(round * 4 + 4))
            );
        }
    }
}
