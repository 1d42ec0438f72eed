//! The READ connection of a subscriber, and the READs that are on their way over it
//! (docs/PROTOCOL.md §6.6).
//!
//! READs are done in the order in which they were begun. None is taken back: one that is late has
//! given way on its gap's own timer, and what it brings is taken all the same.

use std::collections::VecDeque;

use crate::link::LinkTimers;
use crate::rc_path::RcPath;
use crate::reading::{PAGE_READ_LEN, ReadRoom, Readable};
use crate::units::{ChannelId, Epoch, Nanos, SequenceRange};

/// What the READ connection can do; the driver knows once it is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadLimits {
    /// READs at a time, as both sides agreed.
    pub reads: u32,
    /// Bytes of one at most.
    pub len_max: u32,
}

/// A READ to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadRequest {
    /// Whose ring.
    pub channel: ChannelId,
    /// What of it.
    pub what: What,
    /// Where the bytes stand, as the publisher's device counts.
    pub address: u64,
    /// The right to them.
    pub key: u32,
    /// How many.
    pub len: u32,
    /// Names it when it is done.
    pub tag: u64,
}

/// What a READ is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// The slots of these sequences, which stand in a row.
    Slots(SequenceRange),
    /// The head of the control page.
    Page,
}

/// A READ that was begun.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Begun {
    pub(crate) channel: ChannelId,
    pub(crate) epoch: Epoch,
    pub(crate) what: What,
    at: Nanos,
    tag: u64,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct ReadPath {
    pub(crate) rc: RcPath,
    /// Which connection this is: grants name it.
    attempt: u64,
    limits: ReadLimits,
    begun: VecDeque<Begun>,
    /// Whether one of them is late, and none was done since that was found.
    late: bool,
    /// How long one may take before the connection counts as broken.
    patience: Nanos,
    /// Those of them that the driver has not taken yet.
    requests: VecDeque<ReadRequest>,
    next_tag: u64,
}

impl ReadPath {
    pub(crate) fn new(timers: LinkTimers, seed: u64) -> Self {
        Self {
            rc: RcPath::new(timers, seed),
            attempt: 0,
            limits: ReadLimits {
                reads: 0,
                len_max: 0,
            },
            begun: VecDeque::new(),
            late: false,
            patience: timers.join_timeout,
            requests: VecDeque::new(),
            next_tag: 0,
        }
    }

    /// A further connection is made: what is granted is granted to it.
    pub(crate) fn next_attempt(&mut self) -> u64 {
        self.forget();
        self.attempt += 1;
        self.attempt
    }

    pub(crate) const fn attempt(&self) -> u64 {
        self.attempt
    }

    pub(crate) const fn set_limits(&mut self, limits: ReadLimits) {
        self.limits = limits;
    }

    /// What can be begun now; `None` while there is no connection.
    pub(crate) fn room(&self) -> Option<ReadRoom> {
        let begun = u32::try_from(self.begun.len()).unwrap_or(u32::MAX);
        self.rc.link.is_up().then_some(ReadRoom {
            reads: self.limits.reads.saturating_sub(begun),
            len_max: self.limits.len_max,
            is_late: self.late,
        })
    }

    /// Begins a READ, for which there must be room.
    pub(crate) fn begin(
        &mut self,
        channel: ChannelId,
        epoch: Epoch,
        what: What,
        readable: &Readable,
        now: Nanos,
    ) {
        let (address, len) = match what {
            What::Slots(range) => readable.place(range),
            What::Page => (readable.grant.ring.address, PAGE_READ_LEN),
        };
        let tag = self.next_tag;
        self.next_tag += 1;
        self.begun.push_back(Begun {
            channel,
            epoch,
            what,
            at: now,
            tag,
        });
        let key = readable.grant.ring.key;
        self.requests.push_back(ReadRequest {
            channel,
            what,
            address,
            key,
            len,
            tag,
        });
    }

    /// Whether the control page of this channel is being READ.
    pub(crate) fn is_watching(&self, channel: ChannelId) -> bool {
        let mut begun = self.begun.iter();
        begun.any(|it| it.channel == channel && it.what == What::Page)
    }

    pub(crate) fn next_request(&mut self) -> Option<ReadRequest> {
        self.requests.pop_front()
    }

    /// The READ of this tag is done. `None` for one of a connection that is gone.
    pub(crate) fn done(&mut self, tag: u64) -> Option<Begun> {
        let first = self.begun.front().filter(|begun| begun.tag == tag)?;
        let first = *first;
        self.begun.pop_front();
        self.late = false;
        self.rc.answered();
        Some(first)
    }

    /// What was on its way will not come.
    pub(crate) fn forget(&mut self) {
        self.begun.clear();
        self.requests.clear();
        self.late = false;
    }

    /// One that was begun at `asked_at` is late: who waits for room waits no longer. Whether the
    /// connection has been asked once too often.
    pub(crate) fn unanswered(&mut self, asked_at: Nanos, now: Nanos, tries_max: u32) -> bool {
        self.late = true;
        self.rc.unanswered(asked_at, now, tries_max)
    }

    /// Whether the oldest READ takes longer than any device should.
    pub(crate) fn is_stuck(&self, now: Nanos) -> bool {
        now >= self.stuck_at()
    }

    fn stuck_at(&self) -> Nanos {
        let oldest = self.begun.front();
        oldest.map_or(Nanos::MAX, |begun| begun.at.after(self.patience))
    }

    /// When something is due.
    pub(crate) fn next_due(&self) -> Nanos {
        self.rc.next_due().min(self.stuck_at())
    }
}
