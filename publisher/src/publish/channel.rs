//! One channel's way out: what is published is sealed into its ring and goes out on every fan-out;
//! none of them can hold the feed up. [`ChannelDriver`] drives the sans-I/O core of a channel.

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

/// Datagrams that are handed to a transport at a time.
const POST_MAX: u64 = 64;
/// Between looks at what the transports counted.
const STATS_NS: u64 = 100_000_000;

/// The one that seals and sends what is published on a channel.
pub struct ChannelDriver {
    core: JournaledPublisher,
    noted: Noted,
    fan_outs: Vec<Box<dyn FanOut>>,
    digest: Option<Digest>,
    shared: Arc<ChannelShared>,
    stats_at: Nanos,
}

impl ChannelDriver {
    /// Publishes on `ring`, which has as many fan-outs as are given.
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

    /// Publishes one message of a source. It goes out with the next [`flush`](Self::flush), or
    /// when its datagram is full, with the next [`drive`](Self::drive). One that is too large for
    /// a datagram is counted and told in the stream as lost.
    ///
    /// # Errors
    /// [`PublisherError::Publish`]: the session was ended, or its sequences are used up.
    #[inline]
    pub fn publish(
        &mut self,
        message: RecordSlice<'_>,
        source: SourceId,
        position: SourcePosition,
        now: Now,
    ) -> Result<(), PublisherError> {
        let published = self.core.publish(message, source, position, now);
        // At once: much may be published before the next `drive`, and what a fan-out that was torn
        // down still pins would be overwritten.
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

    /// As [`publish`](Self::publish), for a message that is one record, and counts in no digest. `false`, and
    /// it was not published: it must go that way.
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

    /// As [`put_record`](Self::put_record), for records that are a message each, the first of them at this
    /// position and the others behind it. How many were published: the next one must go the other way.
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
        // As in `publish`.
        self.reset_fan_outs();
        is_begun
    }

    /// The ring that it seals into.
    pub(crate) fn ring(&self) -> &RingWriter {
        self.core.ring()
    }

    /// The channel's name.
    pub(crate) fn name(&self) -> &str {
        &self.shared.plan.name
    }

    /// Whether a digest is taken of what is published.
    pub(crate) const fn has_digest(&self) -> bool {
        self.digest.is_some()
    }

    /// Counts a message in the digest that was published before. What of it was: nothing where it does not
    /// fit a datagram.
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

    /// Takes no digest where records were published before that do not come again as they came.
    pub(crate) fn without_digest(&mut self, why: &'static str) {
        let ring = self.core.ring();
        if self.digest.is_some() && ring.next_record() > ring.identity().first_record {
            self.digest = None;
            self.shared.set_digest(Err(why));
        }
    }

    /// Seals what was published: nothing more is waiting.
    #[inline]
    pub fn flush(&mut self, now: Now) {
        self.core.flush(now, true);
    }

    /// Tells of something in the stream, in order with what was published.
    ///
    /// # Errors
    /// As for [`publish`](Self::publish).
    pub fn event(&mut self, event: &StreamEvent, now: Now) -> Result<Sequence, PublisherError> {
        let sequence = self.core.event(event, now);
        self.reset_fan_outs();
        sequence.map_err(|error| self.failed(error))
    }

    /// Notes in the flight record, if one is kept, what happened around the channel.
    pub(crate) fn note(&mut self, note: Note) {
        self.core.note(note);
    }

    /// Ends the session: seals END.
    ///
    /// # Errors
    /// As for [`publish`](Self::publish).
    pub fn end(&mut self, now: Now) -> Result<Sequence, PublisherError> {
        self.show_digest();
        let sequence = self.core.end(now);
        self.reset_fan_outs();
        sequence.map_err(|error| self.failed(error))
    }

    /// No heartbeats from here on.
    pub fn stop(&mut self, now: Nanos) {
        self.core.stop();
        self.update_stats(now);
    }

    /// The last sequence sealed.
    #[must_use]
    pub const fn sealed(&self) -> Sequence {
        self.core.sealed()
    }

    /// Where the channel stands, once all that was published is sealed and sent.
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

    /// Shows the digest of what was published so far.
    pub fn show_digest(&self) {
        if let Some(digest) = &self.digest {
            self.shared.set_digest(Ok(digest.to_hex()));
        }
    }

    /// Sends what is sealed and what is due, as far as the transports take it, and never waits.
    /// Whether anything was sent. Call it after every batch of messages and when idle.
    ///
    /// # Errors
    /// [`PublisherError::Send`] when a fan-out is of no more use.
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
                    // In steps, so that what has gone out can be asked for at once.
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
                    // One that found no room was counted; the next one is not far.
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

    /// Notes what the lines of a fan-out could not send, where that is more than before.
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
                    "a fan-out held the ring and was torn down; its receivers will ask for repair"
                );
            }
            PublisherEvent::SourceLost { source, position } => {
                tracing::error!(
                    channel,
                    source = source.0,
                    %position,
                    "a message does not fit a datagram and was told in the stream as lost; use a larger slot_len"
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
