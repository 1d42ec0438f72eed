//! The publish thread's core. A message is sealed at once or refused with a reason. Every fan-out receives
//! its datagrams to send, and no fan-out can block the feed.
//!
//! The core does no I/O. Its inputs are messages ([`PublisherCore::publish`], `flush`, `event`, `end`), the
//! fan-outs' progress (`handle_posted`, `handle_completed`) and the time (`handle_timeout`). Its outputs
//! are `poll_transmit` (datagrams to send), `poll_timeout` (when to call again) and `poll` (events). It is
//! deterministic: same inputs, same outputs. Source: docs/PROTOCOL.md §4.1 (heartbeats), §9 (the ring).

mod beat;
mod heartbeat;
mod sequencer;
mod snapshot;

pub use self::beat::{HEARTBEAT_LEN, HeartbeatDatagram};
pub use self::heartbeat::{HeartbeatConfig, HeartbeatConfigError};
pub use self::sequencer::{PublishError, Sequencer};

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::planted::{Bug, planted};
use crate::publish::heartbeat::HeartbeatSchedule;
use crate::record::{RecordSlice, WireRecord};
use crate::ring::RingWriter;
use crate::types::{
    FanOutId, Nanos, Now, RecordNumber, SenderCounters, Sequence, SequenceRange, SourceId,
    SourcePosition,
};
use crate::wire::{HEADER_LEN, Header, Heartbeat, Kind, PublisherState, StreamEvent};

/// Maximum number of queued events; further lost messages are only counted.
const EVENTS_MAX: usize = 1024;

/// The publisher's settings for one channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PublisherConfig {
    /// The intervals of heartbeats.
    pub heartbeat: HeartbeatConfig,
    /// A fan-out that leaves at most this many slots of the ring free is torn down; 0 means an eighth of
    /// the ring. At least 2, at most all but 2.
    pub fan_out_margin_slots: u64,
}

/// The next output of a fan-out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transmit {
    /// Slots to send, in order. They are returned again until [`PublisherCore::handle_posted`] confirms
    /// them.
    Slots(SequenceRange),
    /// A heartbeat to send. It is returned once.
    Heartbeat(HeartbeatDatagram),
}

/// An event for the driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum PublisherEvent {
    /// This fan-out held the ring until it was nearly full. The driver must flush its transport before as
    /// many further datagrams are published as its margin has slots. After that, the slots that it still
    /// pins are overwritten.
    FanOutReset {
        /// The fan-out.
        fan_out: FanOutId,
        /// The sequences that it never sent; its receivers repair them. `None` when all were posted but not
        /// completed.
        skipped: Option<SequenceRange>,
    },
    /// A message was too large for a datagram and was reported in the stream as lost.
    SourceLost {
        /// The source of the message.
        source: SourceId,
        /// The position of the message.
        position: SourcePosition,
    },
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct FanOut {
    posted: Sequence,
    completed: Sequence,
    heartbeat: Option<DueHeartbeat>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct DueHeartbeat {
    at_utc: Nanos,
    next_interval: Nanos,
}

/// The publish side of one channel.
pub struct PublisherCore {
    sequencer: Sequencer,
    fan_outs: Vec<FanOut>,
    /// The last sequence that every fan-out has completed; it lags on a channel without a fan-out.
    completed_by_all: Sequence,
    margin: u64,
    heartbeats: HeartbeatSchedule,
    subscribers: u32,
    hold_off_us: u32,
    stopped: bool,
    events: VecDeque<PublisherEvent>,
    counters: Arc<SenderCounters>,
}

impl fmt::Debug for PublisherCore {
    /// Prints all state that decides what the core does next, without its config, ring and queued output.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PublisherCore")
            .field("sealed", &self.sealed())
            .field("is_open", &self.is_open())
            .field("is_ended", &self.is_ended())
            .field("fan_outs", &self.fan_outs)
            .field("heartbeats", &self.heartbeats)
            .field("subscribers", &self.subscribers)
            .field("hold_off_us", &self.hold_off_us)
            .field("stopped", &self.stopped)
            .finish_non_exhaustive()
    }
}

impl PublisherCore {
    /// Continues where `ring` stands: sealed and unsent datagrams are sent unchanged. The first heartbeat is
    /// due soon after `now`.
    #[must_use]
    pub fn new(
        config: PublisherConfig,
        ring: RingWriter,
        counters: Arc<SenderCounters>,
        now: Nanos,
    ) -> Self {
        let slots = ring.geometry().slots();
        let margin = match config.fan_out_margin_slots {
            0 => slots / 8,
            slots => slots,
        };
        let fan_outs = (0..ring.identity().fan_outs).map(|index| {
            let posted = ring.sent(FanOutId(index));
            FanOut {
                posted,
                completed: posted,
                heartbeat: None,
            }
        });
        let mut core = Self {
            fan_outs: fan_outs.collect(),
            sequencer: Sequencer::new(ring, counters.clone()),
            completed_by_all: Sequence::NONE,
            margin: margin.clamp(2, slots - 2),
            heartbeats: HeartbeatSchedule::new(config.heartbeat, now),
            subscribers: 0,
            hold_off_us: 0,
            stopped: false,
            events: VecDeque::new(),
            counters,
        };
        core.release_slots();
        core
    }

    /// Publishes one message of a source. It is packed with others of that source, and sealed when the next
    /// one does not fit or at [`Self::flush`].
    ///
    /// # Errors
    /// [`PublishError`]: too large (counted, reported in the stream as lost), exhausted, or ended.
    #[inline]
    pub fn publish<'a>(
        &mut self,
        message: impl Into<RecordSlice<'a>>,
        source: SourceId,
        position: SourcePosition,
        now: Now,
    ) -> Result<(), PublishError> {
        let message = message.into();
        // An added message seals nothing, so no room must be made.
        if self.add(message, source, position) {
            return Ok(());
        }
        self.begin(message, source, position, now)
    }

    /// Publishes a message that is one record, under its own type and length, if the open datagram has room.
    /// The record is copied from the caller's memory into the slot. Returns `false`, without effect, when a
    /// datagram must begin: call [`begin_record`](Self::begin_record) or [`publish`](Self::publish).
    #[inline]
    pub fn add_record<R: WireRecord>(
        &mut self,
        record: &R,
        source: SourceId,
        position: SourcePosition,
    ) -> bool {
        self.sequencer.add_record(record, source, position)
    }

    /// Publishes as many of these records as the open datagram has room for, each as one message, and returns
    /// their number. The first has this position, and the others follow it. The next record needs
    /// [`begin_record`](Self::begin_record).
    #[inline]
    pub fn add_run<R: WireRecord>(
        &mut self,
        records: &[R],
        source: SourceId,
        first: SourcePosition,
    ) -> usize {
        self.sequencer.add_run(records, source, first)
    }

    /// Publishes a record that [`add_record`](Self::add_record) did not take, at the start of a datagram.
    /// Returns `false`, unpublished, when [`publish`](Self::publish) must be called to learn the reason.
    pub fn begin_record<R: WireRecord>(
        &mut self,
        record: &R,
        source: SourceId,
        position: SourcePosition,
        now: Now,
    ) -> bool {
        self.make_room();
        let sealed = self.sequencer.sealed();
        let is_begun = (self.sequencer).begin_record(record, source, position, now.utc);
        self.after_sealing(sealed, now.monotonic);
        is_begun
    }

    /// Adds a message to the open datagram if it has room. Returns `false`, without effect, when the message
    /// needs [`begin`](Self::begin).
    #[inline]
    pub fn add(
        &mut self,
        message: RecordSlice<'_>,
        source: SourceId,
        position: SourcePosition,
    ) -> bool {
        self.sequencer.add(message, source, position)
    }

    /// Publishes a message at the start of a datagram.
    ///
    /// # Errors
    /// [`PublishError`] on the conditions of [`publish`](Self::publish).
    pub fn begin(
        &mut self,
        message: RecordSlice<'_>,
        source: SourceId,
        position: SourcePosition,
        now: Now,
    ) -> Result<(), PublishError> {
        self.make_room();
        let sealed = self.sequencer.sealed();
        let result = self.sequencer.begin(message, source, position, now.utc);
        let too_large = matches!(result, Err(PublishError::TooLarge { .. }));
        if too_large && self.events.len() < EVENTS_MAX {
            self.events
                .push_back(PublisherEvent::SourceLost { source, position });
        }
        self.after_sealing(sealed, now.monotonic);
        result
    }

    /// Seals the open datagram, because nothing more is waiting (`last_of_burst`) or because the caller wants
    /// it sent. Does nothing when none is open.
    #[inline]
    pub fn flush(&mut self, now: Now, last_of_burst: bool) {
        let sealed = self.sequencer.sealed();
        self.sequencer.flush(now.utc, last_of_burst);
        self.after_sealing(sealed, now.monotonic);
    }

    /// Reports an event in the stream, in order with the published messages.
    ///
    /// # Errors
    /// [`PublishError::Exhausted`] or [`PublishError::Ended`].
    pub fn event(&mut self, event: &StreamEvent, now: Now) -> Result<Sequence, PublishError> {
        self.make_room();
        let sealed = self.sequencer.sealed();
        let result = self.sequencer.event(event, now.utc);
        self.after_sealing(sealed, now.monotonic);
        result
    }

    /// Ends the session: seals END. Heartbeats continue and announce the end, until [`Self::stop`].
    ///
    /// # Errors
    /// [`PublishError::Ended`] when it was ended before.
    pub fn end(&mut self, now: Now) -> Result<Sequence, PublishError> {
        self.make_room();
        let sealed = self.sequencer.sealed();
        let result = self.sequencer.end(now.utc);
        self.after_sealing(sealed, now.monotonic);
        if result.is_ok() {
            self.sequencer.ring_mut().set_state(PublisherState::Ended);
        }
        result
    }

    /// Stops the heartbeats: every receiver has reached END, or the linger time is over.
    pub fn stop(&mut self) {
        self.stopped = true;
        for fan_out in &mut self.fan_outs {
            fan_out.heartbeat = None;
        }
    }

    /// Records that a fan-out posted the slots up to `up_to` to its transport. Posted slots count as sent.
    pub fn handle_posted(&mut self, fan_out: FanOutId, up_to: Sequence) {
        let sealed = self.sequencer.sealed();
        if let Some(state) = self.fan_outs.get_mut(usize::from(fan_out.0)) {
            let up_to = up_to.min(sealed);
            let count = up_to.since(state.posted);
            if count > 0 {
                state.posted = up_to;
                self.counters.sent_datagrams.add(count);
                self.sequencer.ring_mut().set_sent(fan_out, up_to);
                self.sequencer.ring().warm_next();
            }
        }
    }

    /// Records that a fan-out no longer refers to the slots up to `up_to`. A transport that copies
    /// calls it together with [`Self::handle_posted`].
    pub fn handle_completed(&mut self, fan_out: FanOutId, up_to: Sequence) {
        if let Some(state) = self.fan_outs.get_mut(usize::from(fan_out.0)) {
            state.completed = state.completed.max(up_to.min(state.posted));
        }
        self.release_slots();
    }

    /// Advances time. Calling it too early or too often does nothing.
    pub fn handle_timeout(&mut self, now: Now) {
        if self.stopped {
            return;
        }
        if let Some(next_interval) = self.heartbeats.handle_timeout(now.monotonic) {
            self.sequencer.ring_mut().set_heartbeat_at(now.utc);
            for fan_out in &mut self.fan_outs {
                fan_out.heartbeat = Some(DueHeartbeat {
                    at_utc: now.utc,
                    next_interval,
                });
            }
        }
    }

    /// Returns this fan-out's next output, or `None`. Data comes before heartbeats. A driver whose transport
    /// is full calls it again later.
    pub fn poll_transmit(&mut self, fan_out: FanOutId) -> Option<Transmit> {
        let index = usize::from(fan_out.0);
        let state = self.fan_outs.get(index)?;
        let first = planted(Bug::HeartbeatSaysSealed) && state.heartbeat.is_some();
        if !first
            && let Some(range) = SequenceRange::new(state.posted.next(), self.sequencer.sealed())
        {
            return Some(Transmit::Slots(range));
        }
        let (posted, due) = (state.posted, state.heartbeat?);
        self.fan_outs[index].heartbeat = None;
        if planted(Bug::HeartbeatForgotten) {
            return None;
        }
        let posted = if first { self.sealed() } else { posted };
        self.counters.heartbeats.increment();
        Some(Transmit::Heartbeat(self.heartbeat(posted, due)))
    }

    /// Returns when to call [`Self::handle_timeout`]; `None` after [`Self::stop`].
    #[must_use]
    #[inline]
    pub fn poll_timeout(&self) -> Option<Nanos> {
        (!self.stopped).then(|| self.heartbeats.timeout())
    }

    /// Returns the next event, oldest first. Call it after every input that can seal: a fan-out that was
    /// reset must be flushed soon.
    #[inline]
    pub fn poll(&mut self) -> Option<PublisherEvent> {
        self.events.pop_front()
    }

    /// Sets the number of subscribers and their wait before a first NACK. The next heartbeat carries both.
    pub const fn set_group(&mut self, subscribers: u32, hold_off_us: u32) {
        self.subscribers = subscribers;
        self.hold_off_us = hold_off_us;
    }

    /// Sets the venue's session name of a source, kept in its checkpoint.
    pub fn set_session(&mut self, source: SourceId, session: [u8; 16]) {
        self.sequencer.set_session(source, session);
    }

    /// Returns the datagram of a sealed slot, for sending it.
    #[must_use]
    #[inline]
    pub fn slot(&self, sequence: Sequence) -> Option<&[u8]> {
        self.sequencer.ring().slot(sequence)
    }

    /// Returns the ring: geometry, addresses of slots, readers.
    #[must_use]
    pub const fn ring(&self) -> &RingWriter {
        self.sequencer.ring()
    }

    /// Returns whether a flush would seal something.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        self.sequencer.is_open()
    }

    /// Returns whether END was sealed.
    #[must_use]
    pub const fn is_ended(&self) -> bool {
        self.sequencer.is_ended()
    }

    /// Returns the last sequence sealed.
    #[must_use]
    pub const fn sealed(&self) -> Sequence {
        self.sequencer.sealed()
    }

    /// Returns the last sequence that this fan-out posted; [`Sequence::NONE`] for an unknown fan-out.
    #[must_use]
    pub fn posted(&self, fan_out: FanOutId) -> Sequence {
        let state = self.fan_outs.get(usize::from(fan_out.0));
        state.map_or(Sequence::NONE, |state| state.posted)
    }

    /// Returns the counters.
    #[must_use]
    pub fn counters(&self) -> &SenderCounters {
        &self.counters
    }

    /// Returns whether [`poll`](Self::poll) has an event.
    #[must_use]
    #[inline]
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Returns the last sequence that this fan-out's transport has completed.
    #[must_use]
    pub fn completed(&self, fan_out: FanOutId) -> Sequence {
        let state = self.fan_outs.get(usize::from(fan_out.0));
        state.map_or(Sequence::NONE, |state| state.completed)
    }

    fn heartbeat(&self, posted: Sequence, due: DueHeartbeat) -> HeartbeatDatagram {
        let ring = self.sequencer.ring();
        let identity = ring.identity();
        let body = Heartbeat {
            next_interval_us: u32::try_from(due.next_interval.0.div_ceil(1_000))
                .unwrap_or(u32::MAX)
                .max(1),
            hold_off_us: self.hold_off_us,
            subscribers: self.subscribers,
            state: if self.sequencer.is_ended() {
                PublisherState::Ended
            } else {
                PublisherState::Live
            },
            config_hash: identity.config_hash,
        };
        let header = Header {
            kind: Kind::Heartbeat,
            channel: identity.channel,
            count: 0,
            epoch: identity.epoch,
            sequence: posted,
            first_record: ring.next_record_after(posted).unwrap_or(RecordNumber(0)),
            source_position: SourcePosition(0),
            sent_at: due.at_utc,
            retained: ring.retained(posted) + u32::from(planted(Bug::RetainedGoesBack)),
            source: SourceId(0),
            payload_len: Heartbeat::LEN as u16,
            flags: 0,
            header_len: HEADER_LEN as u16,
            relay: 0,
        };
        HeartbeatDatagram::new(header, &body, ring.keys())
    }

    /// Tears down the fan-outs that hold the ring until it is nearly full. One input seals at most two
    /// datagrams (the open one and an event), which is the minimum of the margin.
    #[inline]
    fn make_room(&mut self) {
        let bound = self.sequencer.ring().geometry().slots() - self.margin;
        if self.sequencer.sealed().since(self.completed_by_all) >= bound {
            self.tear_down(bound);
        }
    }

    /// Tears down the fan-outs that are `bound` or more datagrams behind in completions.
    #[cold]
    fn tear_down(&mut self, bound: u64) {
        let sealed = self.sequencer.sealed();
        for (index, state) in self.fan_outs.iter_mut().enumerate() {
            if sealed.since(state.completed) < bound {
                continue;
            }
            let fan_out = FanOutId(index as u8);
            let skipped = SequenceRange::new(state.posted.next(), sealed);
            self.counters
                .skipped_datagrams
                .add(skipped.map_or(0, SequenceRange::len));
            self.counters.fan_out_resets.increment();
            (state.posted, state.completed) = (sealed, sealed);
            // Skipped datagrams count as sent, so that heartbeats make receivers request them.
            self.sequencer.ring_mut().set_sent(fan_out, sealed);
            // At most one event for each fan-out is queued, however long the driver does not poll.
            let waiting = self.events.iter_mut().find_map(|event| match event {
                PublisherEvent::FanOutReset {
                    fan_out: waiting,
                    skipped,
                } if *waiting == fan_out => Some(skipped),
                _ => None,
            });
            match (waiting, skipped) {
                (Some(Some(before)), Some(now)) => before.last = now.last,
                (Some(before), _) => *before = before.or(skipped),
                (None, _) => {
                    let reset = PublisherEvent::FanOutReset { fan_out, skipped };
                    self.events.push_back(reset);
                }
            }
        }
        self.release_slots();
    }

    fn release_slots(&mut self) {
        let completed = self.fan_outs.iter().map(|f| f.completed).min();
        self.completed_by_all = completed.unwrap_or_else(|| self.sequencer.sealed());
        self.sequencer.set_completed(self.completed_by_all);
    }

    #[inline]
    fn after_sealing(&mut self, before: Sequence, now: Nanos) {
        if self.sequencer.sealed() > before {
            self.heartbeats.on_data(now);
            // Data postpones the next heartbeat: a waiting heartbeat must not announce an earlier one.
            let next_interval = self.heartbeats.timeout().since(now);
            for due in self
                .fan_outs
                .iter_mut()
                .filter_map(|f| f.heartbeat.as_mut())
            {
                due.next_interval = next_interval;
            }
        }
    }
}

#[cfg(test)]
mod tests;
