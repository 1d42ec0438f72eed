//! The publish thread's core: what is published is sealed at once or refused with a reason, every
//! fan-out is told what to send, and none can hold the feed up.
//!
//! Five verbs, no I/O: put messages in ([`PublisherCore::publish`], `flush`, `event`, `end`), say
//! what the fan-outs did (`handle_posted`, `handle_completed`), say what time it is
//! (`handle_timeout`), and take out what to send (`poll_transmit`), when to come back
//! (`poll_timeout`) and what happened (`poll`). It is deterministic: same inputs, same outputs.
//! Source: docs/PROTOCOL.md §4.1 (heartbeats), §9 (the ring).

use std::collections::VecDeque;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::counters::SenderCounters;
use crate::heartbeat::{HeartbeatConfig, HeartbeatSchedule};
use crate::record::RecordBatch;
use crate::ring::RingWriter;
use crate::sequencer::{PublishError, Sequencer};
use crate::units::{
    FanOutId, Nanos, Now, RecordNumber, Sequence, SequenceRange, SourceId, SourcePosition,
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
#[derive(Clone, Debug, PartialEq, Eq)]
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

#[derive(Clone, Copy, Debug)]
struct FanOut {
    posted: Sequence,
    completed: Sequence,
    heartbeat: Option<DueHeartbeat>,
}

#[derive(Clone, Copy, Debug)]
struct DueHeartbeat {
    at_utc: Nanos,
    next_interval: Nanos,
}

/// The publish side of one channel.
pub struct PublisherCore {
    sequencer: Sequencer,
    fan_outs: Vec<FanOut>,
    margin: u64,
    heartbeats: HeartbeatSchedule,
    subscribers: u32,
    hold_off_us: u32,
    stopped: bool,
    events: VecDeque<PublisherEvent>,
    counters: Arc<SenderCounters>,
}

impl PublisherCore {
    /// Goes on where `ring` stands; nothing sealed in it counts as unsent. The first heartbeat is
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
        let sealed = ring.sealed();
        let fan_out = FanOut {
            posted: sealed,
            completed: sealed,
            heartbeat: None,
        };
        let mut core = Self {
            fan_outs: vec![fan_out; ring.identity().fan_outs.into()],
            sequencer: Sequencer::new(ring, counters.clone()),
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
    pub fn publish(
        &mut self,
        message: &RecordBatch,
        source: SourceId,
        position: SourcePosition,
        now: Now,
    ) -> Result<(), PublishError> {
        self.make_room();
        let sealed = self.sequencer.sealed();
        let result = self.sequencer.publish(message, source, position, now.utc);
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
        if let Some(range) = SequenceRange::new(state.posted.next(), self.sequencer.sealed()) {
            return Some(Transmit::Slots(range));
        }
        let (posted, due) = (state.posted, state.heartbeat?);
        self.fan_outs[index].heartbeat = None;
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
            retained: ring.retained(posted),
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
    fn make_room(&mut self) {
        let sealed = self.sequencer.sealed();
        let bound = self.sequencer.ring().geometry().slots() - self.margin;
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
        let completed = completed.unwrap_or_else(|| self.sequencer.sealed());
        self.sequencer.set_completed(completed);
    }

    #[inline]
    fn after_sealing(&mut self, before: Sequence, now: Nanos) {
        if self.sequencer.sealed() > before {
            self.heartbeats.on_data(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{InstrumentDefMsg, MboMsg};
    use crate::ring::HeapMemory;
    use crate::ring_layout::{Geometry, RingIdentity};
    use crate::units::{ChannelId, ConfigHash, Epoch};
    use crate::wire::{CrcVerdict, Datagram};

    const F0: FanOutId = FanOutId(0);
    const F1: FanOutId = FanOutId(1);
    const SOURCE: SourceId = SourceId(1);

    fn core(first: u64, fan_outs: u8) -> PublisherCore {
        let geometry = Geometry::new(1024, 64).unwrap();
        let identity = RingIdentity {
            channel: ChannelId(1),
            epoch: Epoch(2),
            config_hash: ConfigHash(3),
            boot_id: [0; 16],
            fan_outs,
            first_sequence: Sequence(first),
            first_record: RecordNumber(1),
        };
        let memory = Arc::new(HeapMemory::new(geometry));
        let ring = RingWriter::create(memory, geometry, identity).unwrap();
        PublisherCore::new(
            PublisherConfig::default(),
            ring,
            Arc::default(),
            Nanos::ZERO,
        )
    }

    fn now(us: u64) -> Now {
        Now {
            monotonic: Nanos::from_us(us),
            utc: Nanos::from_secs(1_700_000_000).after(Nanos::from_us(us)),
        }
    }

    fn publish(core: &mut PublisherCore, us: u64) {
        let mut message = RecordBatch::default();
        message.push(&MboMsg::default());
        let position = SourcePosition::new(0, us);
        core.publish(&message, SOURCE, position, now(us)).unwrap();
        core.flush(now(us), true);
    }

    /// Sends all there is on a fan-out whose transport copies; what it sent, and its heartbeats.
    fn send(core: &mut PublisherCore, fan_out: FanOutId) -> (u64, Vec<(Header, Heartbeat)>) {
        let (mut slots, mut heartbeats) = (0, Vec::new());
        while let Some(transmit) = core.poll_transmit(fan_out) {
            match transmit {
                Transmit::Slots(range) => {
                    assert!(range.iter().all(|s| core.slot(s).is_some()));
                    slots += range.len();
                    core.handle_posted(fan_out, range.last);
                    core.handle_completed(fan_out, range.last);
                }
                Transmit::Heartbeat(bytes) => {
                    let datagram = Datagram::parse(&bytes).unwrap();
                    assert_eq!(datagram.verdict(), CrcVerdict::Good);
                    let body = Heartbeat::parse(datagram.payload()).unwrap();
                    heartbeats.push((*datagram.header(), body));
                }
            }
        }
        (slots, heartbeats)
    }

    #[test]
    fn each_fan_out_sends_every_slot_once_and_in_order() {
        let mut core = core(1, 2);
        publish(&mut core, 1);
        publish(&mut core, 2);
        let both = SequenceRange::new(Sequence(1), Sequence(2)).map(Transmit::Slots);
        assert_eq!(core.poll_transmit(F0), both);
        assert_eq!(core.poll_transmit(F0), both, "until it is posted");
        core.handle_posted(F0, Sequence(1));
        let second = Transmit::Slots(SequenceRange::one(Sequence(2)));
        assert_eq!(core.poll_transmit(F0), Some(second));
        core.handle_posted(F0, Sequence(99));
        assert_eq!(core.posted(F0), Sequence(2), "not beyond what is sealed");
        assert_eq!(core.poll_transmit(F0), None);
        assert_eq!(send(&mut core, F1).0, 2);
        assert_eq!(core.counters.sent_datagrams.get(), 4);
        assert_eq!(core.ring().reader().sent_by_all(), Sequence(2));
        assert_eq!(core.poll_transmit(FanOutId(2)), None);
        core.handle_posted(FanOutId(2), Sequence(2));
        core.handle_completed(FanOutId(200), Sequence(2));
    }

    #[test]
    fn a_heartbeat_reports_what_its_own_fan_out_has_sent() {
        let mut core = core(1, 2);
        core.set_group(7, 20);
        publish(&mut core, 0);
        send(&mut core, F0);
        publish(&mut core, 1);
        core.handle_timeout(now(21));
        core.handle_posted(F0, Sequence(2));
        let (_, beats) = send(&mut core, F0);
        let (header, body) = beats[0];
        assert_eq!(header.sequence, Sequence(2));
        assert_eq!(header.first_record, RecordNumber(3), "of the next record");
        assert_eq!((header.retained, header.sent_at), (2, now(21).utc));
        assert_eq!((body.subscribers, body.hold_off_us), (7, 20));
        assert_eq!(body.config_hash, ConfigHash(3));
        assert_eq!(body.next_interval_us, 20);
        // The other one has sent nothing: its data goes first, then its own heartbeat.
        assert!(matches!(core.poll_transmit(F1), Some(Transmit::Slots(_))));
        core.handle_posted(F1, Sequence(1));
        assert!(matches!(core.poll_transmit(F1), Some(Transmit::Slots(_))));
        core.handle_posted(F1, Sequence(2));
        assert_eq!(send(&mut core, F1).1[0].0.sequence, Sequence(2));
        assert_eq!(core.ring().reader().heartbeat_at(), now(21).utc);
    }

    #[test]
    fn before_the_first_datagram_heartbeats_say_that_there_is_none() {
        let mut core = core(10, 1);
        core.handle_timeout(now(20));
        let (header, _) = send(&mut core, F0).1[0];
        assert_eq!((header.sequence, header.retained), (Sequence(9), 0));
        assert_eq!(header.first_record, RecordNumber(1));
        assert_eq!(header.oldest(), None);
    }

    #[test]
    fn data_restarts_the_heartbeats_and_stop_ends_them() {
        let mut core = core(1, 1);
        let mut times = Vec::new();
        publish(&mut core, 1_000);
        while let Some(at) = core.poll_timeout().filter(|at| *at < Nanos::from_us(2_000)) {
            core.handle_timeout(now(at.as_us()));
            times.push(at.as_us());
            let (_, beats) = send(&mut core, F0);
            let next = at.after(Nanos::from_us(beats[0].1.next_interval_us.into()));
            assert_eq!(core.poll_timeout(), Some(next), "it announced the next one");
        }
        assert_eq!(times, [1_020, 1_040, 1_080, 1_160, 1_320, 1_640]);
        publish(&mut core, 2_000);
        assert_eq!(core.poll_timeout(), Some(Nanos::from_us(2_020)));
        assert_eq!(core.end(now(2_001)), Ok(Sequence(3)));
        assert_eq!(core.end(now(2_001)), Err(PublishError::Ended));
        core.handle_timeout(now(3_000));
        let (_, beats) = send(&mut core, F0);
        assert_eq!(beats[0].1.state, PublisherState::Ended);
        assert_eq!(core.ring().reader().state(), Some(PublisherState::Ended));
        core.handle_timeout(now(9_000));
        core.stop();
        assert_eq!((core.poll_transmit(F0), core.poll_timeout()), (None, None));
        core.handle_timeout(now(99_000));
        assert_eq!(core.poll_transmit(F0), None);
    }

    #[test]
    fn a_stalled_fan_out_never_holds_up_the_feed_or_the_others() {
        let mut core = core((1 << 32) - 500, 2);
        let (mut skipped, mut resets) = (0, 0);
        for n in 0..1_000 {
            publish(&mut core, n);
            assert_eq!(
                send(&mut core, F0).0,
                1,
                "the healthy one sends each at once"
            );
            while let Some(event) = core.poll() {
                let PublisherEvent::FanOutReset {
                    fan_out: F1,
                    skipped: Some(range),
                } = event
                else {
                    panic!("{event:?}");
                };
                skipped += range.len();
                resets += 1;
            }
        }
        assert_eq!(core.counters.skipped_datagrams.get(), skipped);
        assert_eq!(core.counters.fan_out_resets.get(), resets);
        assert_eq!(core.counters.sealed_datagrams.get(), 1_000);
        // Each reset lets go of the ring but for its margin of an eighth.
        assert_eq!((resets, skipped), (17, 17 * 56));
        let (sent, _) = send(&mut core, F1);
        assert_eq!(sent + skipped, 1_000, "sent or skipped, each exactly once");
    }

    #[test]
    fn a_fan_out_that_posts_but_never_completes_is_reset_too() {
        let mut core = core(1, 1);
        for n in 0..60 {
            publish(&mut core, n);
            core.handle_posted(F0, core.sealed());
        }
        let reset = PublisherEvent::FanOutReset {
            fan_out: F0,
            skipped: None,
        };
        assert_eq!(core.poll(), Some(reset));
        assert_eq!(core.poll(), None);
        assert_eq!(core.counters.skipped_datagrams.get(), 0);
    }

    #[test]
    fn events_that_nobody_takes_do_not_pile_up() {
        let mut core = core(1, 1);
        let mut large = RecordBatch::default();
        large.push(&InstrumentDefMsg::default());
        large.push(&InstrumentDefMsg::default());
        for n in 0..5_000 {
            let position = SourcePosition::new(0, n);
            let refused = core.publish(&large, SOURCE, position, now(n));
            assert!(matches!(refused, Err(PublishError::TooLarge { .. })));
        }
        assert_eq!(core.counters.source_messages_lost.get(), 5_000);
        let events: Vec<_> = std::iter::from_fn(|| core.poll()).collect();
        assert!(events.len() <= EVENTS_MAX + 1);
        let reset = events.iter().find_map(|event| match event {
            PublisherEvent::FanOutReset { skipped, .. } => *skipped,
            PublisherEvent::SourceLost { .. } => None,
        });
        assert_eq!(
            reset.map(SequenceRange::len),
            Some(core.counters.skipped_datagrams.get()),
            "one event tells of all resets"
        );
    }
}
