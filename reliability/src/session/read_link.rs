//! The READ connection of a subscriber, and its requests in flight: READs, and writes of cursors
//! (docs/PROTOCOL.md §6.6, §6.7).
//!
//! Requests finish in the order in which they began, and none is cancelled. The timer of a gap moves a
//! late READ's request to the next rung; its bytes still count when they come.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::control::CursorStep;
use crate::receive::RemoteOp;
use crate::receive::{ReadRoom, Readable, Receiver};
use crate::session::link::LinkTimers;
use crate::session::nack_link::NackLink;
use crate::types::{ChannelId, Epoch, Nanos};

/// The limits of a READ connection, all 0 by default. The driver knows them once it is connected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadLimits {
    /// The number of READs in flight that both sides agreed on.
    pub reads: u32,
    /// The maximum number of bytes of one READ.
    pub len_max: u32,
    /// The number of WRITEs in flight.
    pub writes: u32,
}

/// An operation to begin in the publisher's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteRequest {
    /// The channel of the ring or cursor.
    pub channel: ChannelId,
    /// The operation.
    pub what: RemoteOp,
    /// The address, as the publisher's device counts.
    pub address: u64,
    /// The key that gives access to the memory.
    pub key: u32,
    /// The number of bytes to read or write.
    pub len: u32,
    /// The tag of the request, which its completion carries.
    pub tag: u64,
}

/// A request in flight.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Begun {
    pub(crate) channel: ChannelId,
    pub(crate) epoch: Epoch,
    pub(crate) what: RemoteOp,
    at: Nanos,
    tag: u64,
}

/// The READ connection and its requests in flight.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ReadLink {
    pub(crate) link: NackLink,
    /// The number of this connection, which grants carry.
    attempt: u64,
    limits: ReadLimits,
    begun: VecDeque<Begun>,
    /// The maximum time of a request, after which the connection counts as broken.
    patience: Nanos,
    /// Requests in flight that the driver has not taken yet.
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

    /// Begins a new connection attempt and returns its number, which its grants carry.
    pub(crate) fn next_attempt(&mut self) -> u64 {
        self.forget();
        self.attempt += 1;
        self.attempt
    }

    /// Returns whether a grant for this attempt can be used: its connection still exists, and no later
    /// one has followed.
    pub(crate) fn is_current(&self, attempt: u64) -> bool {
        self.link.link.is_connected() && attempt == self.attempt
    }

    /// Returns the number of this connection.
    pub(crate) const fn attempt(&self) -> u64 {
        self.attempt
    }

    pub(crate) const fn set_limits(&mut self, limits: ReadLimits) {
        self.limits = limits;
    }

    /// Returns the room for requests; `None` without a connection, or with one that can do no READs.
    pub(crate) fn room(&self) -> Option<ReadRoom> {
        let can = self.link.link.is_up() && self.limits.reads > 0;
        can.then_some(ReadRoom {
            reads: self.limits.reads.saturating_sub(self.begun(false)),
            len_max: self.limits.len_max,
            oldest_at: self.oldest_at(),
        })
    }

    /// Returns when the oldest request in flight began that takes room for READs.
    fn oldest_at(&self) -> Option<Nanos> {
        let mut begun = self.begun.iter().filter(|begun| !begun.what.writes());
        begun.next().map(|begun| begun.at)
    }

    /// Returns the number of WRITEs in flight, or of all other requests.
    fn begun(&self, writes: bool) -> u32 {
        let begun = self.begun.iter().filter(|it| it.what.writes() == writes);
        u32::try_from(begun.count()).unwrap_or(u32::MAX)
    }

    /// Returns whether there is room for a request that is no WRITE.
    pub(crate) fn has_room(&self) -> bool {
        self.link.link.is_up() && self.begun(false) < self.limits.reads
    }

    /// Returns whether there is room to claim or write a cursor.
    pub(crate) fn has_cursor_room(&self) -> bool {
        self.has_room() && self.begun(true) < self.limits.writes
    }

    /// Begins a request in granted memory. There must be room for it.
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

    /// Claims the cursor of a channel, or writes a report to it, if that is due and there is room.
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

    /// Returns whether a READ of this channel's control page is in flight.
    pub(crate) fn is_watching(&self, channel: ChannelId) -> bool {
        let mut begun = self.begun.iter();
        begun.any(|it| it.channel == channel && it.what == RemoteOp::Page)
    }

    pub(crate) fn next_request(&mut self) -> Option<RemoteRequest> {
        self.requests.pop_front()
    }

    /// Completes the request of this tag; `None` if its connection is gone.
    pub(crate) fn done(&mut self, tag: u64) -> Option<Begun> {
        let first = self.begun.front().filter(|begun| begun.tag == tag)?;
        let first = *first;
        self.begun.pop_front();
        self.link.answered();
        Some(first)
    }

    /// Drops all requests in flight, which will not complete.
    pub(crate) fn forget(&mut self) {
        self.begun.clear();
        self.requests.clear();
    }

    /// Returns whether the oldest request takes longer than any device should.
    pub(crate) fn is_stuck(&self, now: Nanos) -> bool {
        now >= self.stuck_at()
    }

    fn stuck_at(&self) -> Nanos {
        let oldest = self.begun.front();
        oldest.map_or(Nanos::MAX, |begun| begun.at.after(self.patience))
    }

    /// Returns the next time at which something is due.
    pub(crate) fn next_due(&self) -> Nanos {
        self.link.link.next_due().min(self.stuck_at())
    }
}
