//! Publishing on one channel: messages are sealed into its ring and sent on every fan-out. No
//! fan-out can delay the feed. [`ChannelDriver`] drives the sans-I/O core of a channel.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use tickcast_journal::{JournalWriter, JournaledPublisher, Note};
use tickcast_reliability::delivery::LineId;
use tickcast_reliability::publish::{
    PublishError, PublisherConfig, PublisherCore, PublisherEvent, Transmit,
};
use tickcast_reliability::record::{RecordSlice, WireRecord};
use tickcast_reliability::ring::RingWriter;
use tickcast_reliability::types::{
    FanOutId, Nanos, Now, Sequence, SequenceRange, SourceId, SourcePosition,
};
use tickcast_reliability::wire::StreamEvent;
use tickcast_transport::FanOut;

use crate::error::PublisherError;
use crate::publish::digest::Digest;
use crate::state::ChannelShared;
use crate::state::hand_over::PublishPosition;
use crate::state::journal::Noted;

/// Maximum number of datagrams posted to a transport at a time.
const POST_MAX: u64 = 64;
/// Interval between polls of the transports' counters, in nanoseconds.
const STATS_NS: u64 = 100_000_000;

/// Seals and sends the messages of one channel.
pub struct ChannelDriver {
    core: JournaledPublisher,
    noted: Noted,
    fan_outs: Vec<Box<dyn FanOut>>,
    digest: Option<Digest>,
    shared: Arc<ChannelShared>,
    stats_at: Nanos,
}

impl ChannelDriver {
    /// Creates a driver that publishes on `ring`, which has as many fan-outs as are given.
    #[must_use]
    pub fn new(
        config: PublisherConfig,
        ring: RingWriter,
        fan_outs: Vec<Box<dyn FanOut>>,
        digest: bool,
        shared: Arc<ChannelShared>,
        now: Nanos,
    ) -> Self {
        let core = PublisherCore::new(config, ring, shared.sender.clone(), now);
        Self {
            core: JournaledPublisher::new(core),
            noted: Noted::default(),
            fan_outs,
            digest: digest.then(Digest::default),
            shared,
            stats_at: now,
        }
    }

    /// Keeps a flight record from now on, if one is given.
    #[must_use]
    pub fn recording(mut self, recorder: Option<JournalWriter>) -> Self {
        if let Some(recorder) = recorder {
            self.core.record(recorder);
        }
        self
    }

    /// Publishes one message of a source. The message goes out with the next
    /// [`flush`](Self::flush), or with the next [`drive`](Self::drive) once its datagram is full. A
    /// message too large for a datagram is counted and reported in the stream as lost.
    ///
    /// # Errors
    /// Returns [`PublisherError::Publish`] if the session has ended, or its sequences are used up.
    #[inline]
    pub fn publish(
        &mut self,
        message: RecordSlice<'_>,
        source: SourceId,
        position: SourcePosition,
        now: Now,
    ) -> Result<(), PublisherError> {
        let published = self.core.publish(message, source, position, now);
        // Reset now: many messages may follow before the next `drive`. They would overwrite the
        // slots that a torn-down fan-out still pins.
        self.reset_fan_outs();
        match published {
            Ok(()) => {
                if let Some(digest) = &mut self.digest {
                    digest.add(message);
                }
                Ok(())
            }
            Err(PublishError::TooLarge { .. }) => Ok(()),
            Err(error) => Err(self.failed(error)),
        }
    }

    /// Publishes a message of one record, like [`publish`](Self::publish), but adds it to no
    /// digest. Returns `false` if nothing was published; the caller must then use
    /// [`publish`](Self::publish).
    #[inline]
    pub fn put_record<R: WireRecord>(
        &mut self,
        record: &R,
        source: SourceId,
        position: SourcePosition,
        now: Now,
    ) -> bool {
        self.core.add_record(record, source, position)
            || self.begin_record(record, source, position, now)
    }

    /// Publishes records that are one message each: the first at this position, the others right
    /// after it. Returns the number published; the caller must publish the next one with
    /// [`publish`](Self::publish).
    #[inline]
    pub fn put_run<R: WireRecord>(
        &mut self,
        records: &[R],
        source: SourceId,
        first: SourcePosition,
        now: Now,
    ) -> usize {
        let mut put = 0;
        loop {
            let at = first.plus(put as u64);
            put += self.core.add_run(&records[put..], source, at);
            let Some(next) = records.get(put) else {
                return put;
            };
            if !self.begin_record(next, source, first.plus(put as u64), now) {
                return put;
            }
            put += 1;
        }
    }

    fn begin_record<R: WireRecord>(
        &mut self,
        record: &R,
        source: SourceId,
        position: SourcePosition,
        now: Now,
    ) -> bool {
        let is_begun = self.core.begin_record(record, source, position, now);
        // Reset now, for the reason given in `publish`.
        self.reset_fan_outs();
        is_begun
    }

    /// Returns the ring of the channel.
    pub(crate) fn ring(&self) -> &RingWriter {
        self.core.ring()
    }

    /// Returns the channel's name.
    pub(crate) fn name(&self) -> &str {
        &self.shared.plan.name
    }

    /// Returns whether the channel takes a digest.
    pub(crate) const fn has_digest(&self) -> bool {
        self.digest.is_some()
    }

    /// Adds a message that was published before to the digest. Returns the part that was published:
    /// nothing if the message does not fit a datagram.
    #[cold]
    pub(crate) fn digest_replayed<'a>(&mut self, message: RecordSlice<'a>) -> RecordSlice<'a> {
        if message.bytes().len() > self.core.ring().payload_max() {
            return RecordSlice::default();
        }
        if let Some(digest) = &mut self.digest {
            digest.add(message);
        }
        message
    }

    /// Stops the digest, because the records published before are not replayed in their order.
    pub(crate) fn without_digest(&mut self, why: &'static str) {
        let ring = self.core.ring();
        if self.digest.is_some() && ring.next_record() > ring.identity().first_record {
            self.digest = None;
            self.shared.set_digest(Err(why));
        }
    }

    /// Seals all pending messages.
    #[inline]
    pub fn flush(&mut self, now: Now) {
        self.core.flush(now, true);
    }

    /// Publishes an event in the stream, in order with the messages.
    ///
    /// # Errors
    /// Returns [`PublisherError::Publish`] under the conditions of [`publish`](Self::publish).
    pub fn event(&mut self, event: &StreamEvent, now: Now) -> Result<Sequence, PublisherError> {
        let sequence = self.core.event(event, now);
        self.reset_fan_outs();
        sequence.map_err(|error| self.failed(error))
    }

    /// Writes a note to the flight record, if one is kept.
    pub(crate) fn note(&mut self, note: Note) {
        self.core.note(note);
    }

    /// Ends the session: seals END.
    ///
    /// # Errors
    /// Returns [`PublisherError::Publish`] under the conditions of [`publish`](Self::publish).
    pub fn end(&mut self, now: Now) -> Result<Sequence, PublisherError> {
        self.show_digest();
        let sequence = self.core.end(now);
        self.reset_fan_outs();
        sequence.map_err(|error| self.failed(error))
    }

    /// Stops the heartbeats.
    pub fn stop(&mut self, now: Nanos) {
        self.core.stop();
        self.update_stats(now);
    }

    /// Returns the last sequence sealed.
    #[must_use]
    pub const fn sealed(&self) -> Sequence {
        self.core.sealed()
    }

    /// Returns the position of the channel, once every message is sealed and sent.
    #[must_use]
    pub fn position(&self) -> Option<PublishPosition> {
        let last = self.core.sealed();
        let mut fan_outs = (0..self.fan_outs.len()).map(|index| FanOutId(index as u8));
        let is_sent = !self.core.is_open() && fan_outs.all(|id| self.core.posted(id) >= last);
        is_sent.then(|| PublishPosition {
            channel: self.shared.plan.id,
            last,
            next_record: self.core.ring().next_record(),
        })
    }

    /// Shows the digest of the messages published so far.
    pub fn show_digest(&self) {
        if let Some(digest) = &self.digest {
            self.shared.set_digest(Ok(digest.to_hex()));
        }
    }

    /// Sends the sealed datagrams that are due, as far as the transports accept them, and never
    /// waits. Returns whether anything was sent. Call it after every batch of messages and when
    /// idle.
    ///
    /// # Errors
    /// Returns [`PublisherError::Send`] when a fan-out can't continue.
    pub fn drive(&mut self, now: Now) -> Result<bool, PublisherError> {
        let advised = (&self.shared.subscribers, &self.shared.hold_off_us);
        self.core
            .set_group(advised.0.load(Relaxed), advised.1.load(Relaxed));
        self.core.handle_timeout(now);
        let mut worked = false;
        for index in 0..self.fan_outs.len() {
            worked |= self.transmit(index)?;
        }
        if now.monotonic >= self.stats_at {
            self.update_stats(now.monotonic);
        }
        Ok(worked)
    }

    fn transmit(&mut self, index: usize) -> Result<bool, PublisherError> {
        let id = FanOutId(index as u8);
        let failed = |source| PublisherError::Send {
            channel: self.shared.plan.name.clone(),
            source,
        };
        let fan_out = &mut self.fan_outs[index];
        let mut worked = false;
        while let Some(transmit) = self.core.poll_transmit(id) {
            match transmit {
                Transmit::Slots(all) => {
                    // Post in steps, so that late subscribers can request the datagrams already
                    // sent at once.
                    let last = all.last.min(all.first.plus(POST_MAX - 1));
                    let range = SequenceRange { last, ..all };
                    let posted = fan_out.post(self.core.ring(), range).map_err(failed)?;
                    if let Some(last) = posted.last {
                        self.core.handle_posted(id, last);
                        worked = true;
                    }
                    if posted.last != Some(range.last) {
                        break;
                    }
                }
                Transmit::Heartbeat(bytes) => {
                    // The transport counts a copy that finds no room; the next one follows soon.
                    fan_out.send_copy(&bytes).map_err(failed)?;
                }
            }
        }
        if let Some(completed) = fan_out.completed() {
            self.core.handle_completed(id, completed);
        }
        if self.core.is_recorded() {
            self.note_lines(index);
        }
        Ok(worked)
    }

    /// Notes the send failures of a fan-out's lines, if their count has grown.
    fn note_lines(&mut self, index: usize) {
        for (line, stats) in self.fan_outs[index].stats().iter().enumerate() {
            if let Some(counted) = self.noted.changed(index, line, stats) {
                let (fan_out, line) = (FanOutId(index as u8), LineId(line as u8));
                self.core.note(Note::Sending(fan_out, line, counted));
            }
        }
    }

    /// Flushes the transports of fan-outs that the core tore down.
    #[inline]
    fn reset_fan_outs(&mut self) {
        while let Some(event) = self.core.poll() {
            self.handle_event(&event);
        }
    }

    #[cold]
    fn handle_event(&mut self, event: &PublisherEvent) {
        let channel = &self.shared.plan.name;
        match event {
            PublisherEvent::FanOutReset { fan_out, skipped } => {
                if let Some(transport) = self.fan_outs.get_mut(usize::from(fan_out.0)) {
                    transport.reset();
                }
                let skipped = skipped.map_or(0, |range| range.len());
                tracing::warn!(
                    channel,
                    fan_out = fan_out.0,
                    skipped,
                    "a fan-out held up the ring and was reset: its receivers will request repair; \
                     give the publish thread a core, or check the fan-out's interface"
                );
            }
            PublisherEvent::SourceLost { source, position } => {
                tracing::error!(
                    channel,
                    source = source.0,
                    %position,
                    "a message exceeds the datagram size and is reported as lost in the stream; \
                     use a larger slot_len"
                );
            }
            _ => {}
        }
    }

    fn update_stats(&mut self, now: Nanos) {
        self.stats_at = now.after(Nanos(STATS_NS));
        for (fan_out, lines) in self.fan_outs.iter().zip(&self.shared.lines) {
            for (stats, shown) in fan_out.stats().iter().zip(lines) {
                shown.set(stats);
            }
        }
    }

    #[cold]
    fn failed(&self, source: PublishError) -> PublisherError {
        PublisherError::Publish {
            channel: self.shared.plan.name.clone(),
            source,
        }
    }
}
