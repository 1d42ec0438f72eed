//! The publish thread's core: what is published is sealed at once or refused with a reason, every
//! fan-out is told what to send, and none can hold the feed up.
//!
//! Five verbs, no I/O: put messages in ([`PublisherCore::publish`], `flush`, `event`, `end`), say
//! what the fan-outs did (`handle_posted`, `handle_completed`), say what time it is
//! (`handle_timeout`), and take out what to send (`poll_transmit`), when to come back
//! (`poll_timeout`) and what happened (`poll`). It is deterministic: same inputs, same outputs.
//! Source: docs/PROTOCOL.md §4.1 (heartbeats), §9 (the ring).

mod heartbeat;
mod sequencer;
mod snapshot;

pub use self::heartbeat::HeartbeatConfig;
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
use crate::wire::{HEADER_LEN, Header, Heartbeat, Kind, PublisherState, StreamEvent, crc_of};

/// Length of a heartbeat datagram in bytes.
pub const HEARTBEAT_LEN: usize = HEADER_LEN + Heartbeat::LEN;

/// How many events wait to be taken before further lost messages are only counted.
const EVENTS_MAX: usize = 1024;

/// How a publisher behaves on one channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PublisherConfig {
    /// The intervals of heartbeats.
    pub heartbeat: HeartbeatConfig,
    /// A fan-out that leaves no more than this many slots of the ring free is torn down; 0 means
    /// an eighth of the ring. At least 2, at most all but 2.
    pub fan_out_margin_slots: u64,
}

/// What a fan-out should send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transmit {
    /// These slots, in order. They are given out again until
    /// [`PublisherCore::handle_posted`] says that they are under way.
    Slots(SequenceRange),
    /// This heartbeat. It is given out once.
    Heartbeat([u8; HEARTBEAT_LEN]),
}

/// What the driver should know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum PublisherEvent {
    /// This fan-out held the ring until it was nearly full. Its transport must be flushed before
    /// as many further datagrams are published as its margin has slots: the slots that it still
    /// pins are overwritten then.
    FanOutReset {
        /// Which.
        fan_out: FanOutId,
        /// What it never sent; its receivers repair that. `None` when all was posted but not
        /// completed.
        skipped: Option<SequenceRange>,
    },
    /// A message was too large for a datagram; the stream tells so.
    SourceLost {
        /// Whose.
        source: SourceId,
        /// Which.
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
    /// The last sequence that every fan-out has completed; of a channel without one it lags.
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
    /// All that decides what it does next, but its config, the ring and what waits to be taken.
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
    /// Goes on where `ring` stands: what was sealed in it and not sent goes out, as it is. The first
    /// heartbeat is due soon after `now`.
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

    /// Publishes one message of a source: it is packed with others of that source, and sealed when
    /// the next one does not fit or at [`Self::flush`].
    ///
    /// # Errors
    /// [`PublishError`]: too large (counted, told in the stream), exhausted, or ended.
    #[inline]
    pub fn publish<'a>(
        &mut self,
        message: impl Into<RecordSlice<'a>>,
        source: SourceId,
        position: SourcePosition,
        now: Now,
    ) -> Result<(), PublishError> {
        let message = message.into();
        // Then nothing is sealed, so nothing needs room, and nothing happened.
        if self.add(message, source, position) {
            return Ok(());
        }
        self.begin(message, source, position, now)
    }

    /// As [`publish`](Self::publish), for a message that is one record, under the type and length that are
    /// its own: the record goes from the caller's memory into the slot. `false`, and nothing happened: it
    /// begins a datagram, and needs [`begin_record`](Self::begin_record) or [`publish`](Self::publish).
    #[inline]
    pub fn add_record<R: WireRecord>(
        &mut self,
        record: &R,
        source: SourceId,
        position: SourcePosition,
    ) -> bool {
        self.sequencer.add_record(record, source, position)
    }

    /// As [`add_record`](Self::add_record), for as many of these records as the open datagram has room for,
    /// each a message: the first stands at this position, and the others follow it. How many were added;
    /// the next one needs [`begin_record`](Self::begin_record).
    #[inline]
    pub fn add_run<R: WireRecord>(
        &mut self,
        records: &[R],
        source: SourceId,
        first: SourcePosition,
    ) -> usize {
        self.sequencer.add_run(records, source, first)
    }

    /// As [`add_record`](Self::add_record), for one that was not taken there: a datagram begins with it.
    /// `false`, and it was not published: it needs [`publish`](Self::publish), which says why.
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

    /// Adds a message to the datagram that is open, where it has room; `false`, and nothing happened: it
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

    /// Publishes a message that begins a datagram.
    ///
    /// # Errors
    /// [`PublishError`], as from [`publish`](Self::publish).
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

    /// Seals what was published: there is nothing more waiting (`last_of_burst`), or the caller
    /// wants it out. Without anything open it does nothing.
    #[inline]
    pub fn flush(&mut self, now: Now, last_of_burst: bool) {
        let sealed = self.sequencer.sealed();
        self.sequencer.flush(now.utc, last_of_burst);
        self.after_sealing(sealed, now.monotonic);
    }

    /// Tells of something in the stream, in order with what was published.
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

    /// Ends the session: seals END. Heartbeats go on, saying so, until [`Self::stop`].
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

    /// No heartbeats from here on: everyone has reached END, or the time to linger is over.
    pub fn stop(&mut self) {
        self.stopped = true;
        for fan_out in &mut self.fan_outs {
            fan_out.heartbeat = None;
        }
    }

    /// A fan-out has handed the slots up to `up_to` to its transport. This is what counts as sent.
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

    /// A fan-out's transport no longer refers to the slots up to `up_to`: for one that copies,
    /// together with [`Self::handle_posted`].
    pub fn handle_completed(&mut self, fan_out: FanOutId, up_to: Sequence) {
        if let Some(state) = self.fan_outs.get_mut(usize::from(fan_out.0)) {
            state.completed = state.completed.max(up_to.min(state.posted));
        }
        self.release_slots();
    }

    /// Time has passed. Calling it too early or too often does nothing.
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

    /// What this fan-out should send next; `None`: nothing. Data goes before heartbeats. A driver
    /// whose transport takes no more now just comes back later.
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

    /// When to call [`Self::handle_timeout`]; `None` after [`Self::stop`].
    #[must_use]
    #[inline]
    pub fn poll_timeout(&self) -> Option<Nanos> {
        (!self.stopped).then(|| self.heartbeats.timeout())
    }

    /// What happened, oldest first. Call it after every input that can seal: a fan-out that was
    /// reset must be flushed soon.
    #[inline]
    pub fn poll(&mut self) -> Option<PublisherEvent> {
        self.events.pop_front()
    }

    /// How many subscribers there are, and how long they should wait before a first NACK; goes
    /// out with the next heartbeat.
    pub const fn set_group(&mut self, subscribers: u32, hold_off_us: u32) {
        self.subscribers = subscribers;
        self.hold_off_us = hold_off_us;
    }

    /// The venue's name of a source's session, kept in its checkpoint.
    pub fn set_session(&mut self, source: SourceId, session: [u8; 16]) {
        self.sequencer.set_session(source, session);
    }

    /// The datagram of a sealed slot, for sending it.
    #[must_use]
    #[inline]
    pub fn slot(&self, sequence: Sequence) -> Option<&[u8]> {
        self.sequencer.ring().slot(sequence)
    }

    /// The ring: geometry, addresses of slots, readers.
    #[must_use]
    pub const fn ring(&self) -> &RingWriter {
        self.sequencer.ring()
    }

    /// Whether a flush would seal something.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        self.sequencer.is_open()
    }

    /// Whether END was sealed.
    #[must_use]
    pub const fn is_ended(&self) -> bool {
        self.sequencer.is_ended()
    }

    /// The last sequence sealed.
    #[must_use]
    pub const fn sealed(&self) -> Sequence {
        self.sequencer.sealed()
    }

    /// The last sequence that this fan-out posted; [`Sequence::NONE`] for one that is not there.
    #[must_use]
    pub fn posted(&self, fan_out: FanOutId) -> Sequence {
        let state = self.fan_outs.get(usize::from(fan_out.0));
        state.map_or(Sequence::NONE, |state| state.posted)
    }

    /// What it counts.
    #[must_use]
    pub fn counters(&self) -> &SenderCounters {
        &self.counters
    }

    /// Whether [`poll`](Self::poll) has something to tell.
    #[must_use]
    #[inline]
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// The last sequence that this fan-out's transport is done with.
    #[must_use]
    pub fn completed(&self, fan_out: FanOutId) -> Sequence {
        let state = self.fan_outs.get(usize::from(fan_out.0));
        state.map_or(Sequence::NONE, |state| state.completed)
    }

    fn heartbeat(&self, posted: Sequence, due: DueHeartbeat) -> [u8; HEARTBEAT_LEN] {
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
        }
        .to_bytes();
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
        let crc = crc_of(&header.to_bytes(0), &body);
        let mut bytes = [0; HEARTBEAT_LEN];
        bytes[..HEADER_LEN].copy_from_slice(&header.to_bytes(crc));
        bytes[HEADER_LEN..].copy_from_slice(&body);
        bytes
    }

    /// Tears down the fan-outs that hold the ring until it is nearly full. One input seals two
    /// datagrams at most (what was open, and an event), which is the least a margin can be.
    #[inline]
    fn make_room(&mut self) {
        let bound = self.sequencer.ring().geometry().slots() - self.margin;
        if self.sequencer.sealed().since(self.completed_by_all) >= bound {
            self.tear_down(bound);
        }
    }

    /// Tears down the fan-outs that have not completed what was sealed so long ago.
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
            // What was skipped counts as sent, so that heartbeats make receivers ask for it.
            self.sequencer.ring_mut().set_sent(fan_out, sealed);
            // One event for each fan-out at most waits, however long nobody takes it.
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
            // Data puts the next heartbeat off: one that still waits must not promise it sooner.
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
