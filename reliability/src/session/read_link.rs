//! The READ connection of a subscriber, and what is on its way over it: READs, and what is done with
//! cursors (docs/PROTOCOL.md §6.6, §6.7).
//!
//! All is done in the order in which it was begun. None is taken back: one that is late has
//! given way on its gap's own timer, and what it brings is taken all the same.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::control::CursorStep;
use crate::receive::RemoteOp;
use crate::receive::{ReadRoom, Readable, Receiver};
use crate::session::nack_link::NackLink;
use crate::timing::LinkTimers;
use crate::types::{ChannelId, Epoch, Nanos};

/// What the READ connection can do, by default nothing; the driver knows once it is connected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadLimits {
    /// READs at a time, as both sides agreed.
    pub reads: u32,
    /// Bytes of one at most.
    pub len_max: u32,
    /// WRITEs at a time.
    pub writes: u32,
}

/// What is to be begun in the publisher's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteRequest {
    /// Whose ring, or cursor.
    pub channel: ChannelId,
    /// What of it.
    pub what: RemoteOp,
    /// Where the bytes stand, as the publisher's device counts.
    pub address: u64,
    /// The right to them.
    pub key: u32,
    /// How many bytes come back, or go there.
    pub len: u32,
    /// Names it when it is done.
    pub tag: u64,
}

/// What was begun.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Begun {
    pub(crate) channel: ChannelId,
    pub(crate) epoch: Epoch,
    pub(crate) what: RemoteOp,
    at: Nanos,
    tag: u64,
}

/// See the module.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ReadLink {
    pub(crate) link: NackLink,
    /// Which connection this is: grants name it.
    attempt: u64,
    limits: ReadLimits,
    begun: VecDeque<Begun>,
    /// How long one may take before the connection counts as broken.
    patience: Nanos,
    /// Those of them that the driver has not taken yet.
    requests: VecDeque<RemoteRequest>,
    next_tag: u64,
}

impl ReadLink {
    pub(crate) fn new(timers: LinkTimers, seed: u64) -> Self {
        Self {
            link: NackLink::new(timers, seed),
            attempt: 0,
            limits: ReadLimits::default(),
            begun: VecDeque::new(),
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

    /// Whether what is granted to this attempt can be used: its connection is there, not gone, and no
    /// other has followed it.
    pub(crate) fn is_current(&self, attempt: u64) -> bool {
        self.link.link.is_connected() && attempt == self.attempt
    }

    /// Which connection this is.
    pub(crate) const fn attempt(&self) -> u64 {
        self.attempt
    }

    pub(crate) const fn set_limits(&mut self, limits: ReadLimits) {
        self.limits = limits;
    }

    pub(crate) const fn limits(&self) -> ReadLimits {
        self.limits
    }

    /// What can be begun now; `None` while there is no connection, or one that can do no READs.
    pub(crate) fn room(&self) -> Option<ReadRoom> {
        let can = self.link.link.is_up() && self.limits.reads > 0;
        can.then_some(ReadRoom {
            reads: self.limits.reads.saturating_sub(self.begun(false)),
            len_max: self.limits.len_max,
            oldest_at: self.begun.front().map(|begun| begun.at),
        })
    }

    /// How many WRITEs are under way, or how many others.
    fn begun(&self, writes: bool) -> u32 {
        let begun = self.begun.iter().filter(|it| it.what.writes() == writes);
        u32::try_from(begun.count()).unwrap_or(u32::MAX)
    }

    /// Whether one more can be begun that is no WRITE.
    pub(crate) fn has_room(&self) -> bool {
        self.link.link.is_up() && self.begun(false) < self.limits.reads
    }

    /// Whether a cursor can be claimed, or written, now.
    pub(crate) fn has_cursor_room(&self) -> bool {
        self.has_room() && self.begun(true) < self.limits.writes
    }

    /// Begins something for which there must be room, in what was granted.
    pub(crate) fn begin(
        &mut self,
        channel: ChannelId,
        epoch: Epoch,
        what: RemoteOp,
        readable: &Readable,
        now: Nanos,
    ) {
        let Some(place) = readable.place(&what) else {
            return;
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
        self.requests.push_back(RemoteRequest {
            channel,
            what,
            address: place.address,
            key: place.key,
            len: place.len as u32,
            tag,
        });
    }

    /// Claims the cursor of a channel, or writes a report to it, where that is due and there is room.
    pub(crate) fn write_cursor(&mut self, session: u64, receiver: &mut Receiver, now: Nanos) {
        if now < receiver.cursor_due() || !self.has_cursor_room() {
            return;
        }
        let step = receiver.take_cursor_step(now);
        let (Some(step), Some(readable)) = (step, receiver.readable()) else {
            return;
        };
        let what = match step {
            CursorStep::Claim => RemoteOp::Claim(session),
            CursorStep::Report(report) => RemoteOp::Report(report.words(session)),
        };
        self.begin(receiver.channel(), receiver.epoch(), what, readable, now);
    }

    /// Whether the control page of this channel is being READ.
    pub(crate) fn is_watching(&self, channel: ChannelId) -> bool {
        let mut begun = self.begun.iter();
        begun.any(|it| it.channel == channel && it.what == RemoteOp::Page)
    }

    pub(crate) fn next_request(&mut self) -> Option<RemoteRequest> {
        self.requests.pop_front()
    }

    /// The READ of this tag is done. `None` for one of a connection that is gone.
    pub(crate) fn done(&mut self, tag: u64) -> Option<Begun> {
        let first = self.begun.front().filter(|begun| begun.tag == tag)?;
        let first = *first;
        self.begun.pop_front();
        self.link.answered();
        Some(first)
    }

    /// What was on its way will not come.
    pub(crate) fn forget(&mut self) {
        self.begun.clear();
        self.requests.clear();
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
        self.link.next_due().min(self.stuck_at())
    }
}
