//! Publishing on one channel: messages are sealed into its ring and sent on every line of every fan-out.
//! No line can delay the feed or another line. [`ChannelDriver`] drives the sans-I/O core of a channel, to
//! which each line is a fan-out with a position of its own.

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
use crate::plan::LinePlace;
use crate::publish::digest::Digest;
use crate::state::hand_over::PublishPosition;
use crate::state::journal::Noted;
use crate::state::{ChannelShared, LineCounters};

/// Maximum number of datagrams posted to a transport at a time.
const POST_MAX: u64 = 64;
/// Interval between polls of the transports' counters, in nanoseconds.
const STATS_NS: u64 = 100_000_000;

/// Seals and sends the messages of one channel.
pub struct ChannelDriver {
    core: JournaledPublisher,
    noted: Noted,
    /// The lines of all fan-outs, with one line each, and their places.
    lines: Vec<Box<dyn FanOut>>,
    places: Vec<LinePlace>,
    /// The last sequence that the foremost line has posted.
    front: Sequence,
    digest: Option<Digest>,
    shared: Arc<ChannelShared>,
    stats_at: Nanos,
}

impl ChannelDriver {
    /// Creates a driver that publishes on `ring`. It counts each of the `lines` as a fan-out. Their places
    /// are those of the plan.
    #[must_use]
    pub fn new(
        config: PublisherConfig,
        ring: RingWriter,
        lines: Vec<Box<dyn FanOut>>,
        digest: bool,
        shared: Arc<ChannelShared>,
        now: Nanos,
    ) -> Self {
        let core = PublisherCore::new(config, ring, shared.sender.clone(), now);
        let posted = (0..lines.len()).map(|index| core.posted(FanOutId(index as u8)));
        Self {
            noted: Noted::default(),
            front: posted.max().unwrap_or_default(),
            core: JournaledPublisher::new(core),
            lines,
            places: shared.plan.lines(),
            digest: digest.then(Digest::default),
            shared,
            stats_at: now,
        }
    }

    /// Keeps a journal from now on, if one is given.
    #[must_use]
    pub fn with_journal(mut self, journal: Option<JournalWriter>) -> Self {
        if let Some(journal) = journal {
            self.core.keep_journal(journal);
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
        // slots that a torn-down line still pins.
        self.reset_lines();
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
        self.reset_lines();
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
        self.reset_lines();
        sequence.map_err(|error| self.failed(error))
    }

    /// Writes a note to the journal, if one is kept.
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
        self.reset_lines();
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
        let mut lines = (0..self.lines.len()).map(|index| FanOutId(index as u8));
        let is_sent = !self.core.is_open() && lines.all(|id| self.core.posted(id) >= last);
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
        // A line posts what is new since the last call, and no more than a step of what it lags behind:
        // a line that returns does not delay the others.
        let most = self.core.sealed().since(self.front) + POST_MAX;
        let mut worked = false;
        for index in 0..self.lines.len() {
            worked |= self.transmit(index, most)?;
        }
        if now.monotonic >= self.stats_at {
            self.update_stats(now.monotonic);
        }
        Ok(worked)
    }

    /// Posts at most this many datagrams on a line, and a heartbeat that is due.
    fn transmit(&mut self, index: usize, most: u64) -> Result<bool, PublisherError> {
        let id = FanOutId(index as u8);
        let failed = |source| PublisherError::Send {
            channel: self.shared.plan.name.clone(),
            source,
        };
        let line = &mut self.lines[index];
        let until = self.core.posted(id).plus(most);
        let mut worked = false;
        while let Some(transmit) = self.core.poll_transmit(id) {
            match transmit {
                Transmit::Slots(all) => {
                    // Post in steps, so that late subscribers can request the datagrams already
                    // sent at once.
                    let last = all.first.plus(POST_MAX - 1).min(all.last).min(until);
                    let range = SequenceRange { last, ..all };
                    let posted = line.post(self.core.ring(), range).map_err(failed)?;
                    if let Some(last) = posted.last {
                        self.core.handle_posted(id, last);
                        self.front = self.front.max(last);
                        worked = true;
                    }
                    if posted.last != Some(range.last) || range.last >= until {
                        break;
                    }
                }
                Transmit::Heartbeat(bytes) => {
                    // The transport counts a copy that finds no room; the next one follows soon.
                    line.send_copy(&bytes).map_err(failed)?;
                }
            }
        }
        if let Some(completed) = line.completed() {
            self.core.handle_completed(id, completed);
        }
        if self.core.is_journaled() {
            self.note_line(index);
        }
        Ok(worked)
    }

    /// Notes the send failures of a line, if their count has grown.
    fn note_line(&mut self, index: usize) {
        for stats in self.lines[index].stats() {
            if let Some(counted) = self.noted.changed(index, 0, stats) {
                let line = self.places.get(index).map_or(LineId(0), |at| at.line);
                let note = Note::Sending(FanOutId(index as u8), line, counted);
                self.core.note(note);
            }
        }
    }

    /// Flushes the transports of lines that the core tore down.
    #[inline]
    fn reset_lines(&mut self) {
        while let Some(event) = self.core.poll() {
            self.handle_event(&event);
        }
    }

    #[cold]
    fn handle_event(&mut self, event: &PublisherEvent) {
        let channel = &self.shared.plan.name;
        match event {
            PublisherEvent::FanOutReset { fan_out, skipped } => {
                let index = usize::from(fan_out.0);
                if let Some(line) = self.lines.get_mut(index) {
                    line.reset();
                }
                let skipped = skipped.map_or(0, |range| range.len());
                let Some(at) = self.places.get(index) else {
                    return;
                };
                if let Some(shown) = self.shown(*at) {
                    shown.line_skipped.add(skipped);
                }
                tracing::warn!(
                    channel,
                    fan_out = at.fan_out,
                    line = %at.line,
                    skipped,
                    "a line held up the ring and was reset alone: it continues with the newest, and \
                     those who hear no other line will request repair; give the publish thread a \
                     core, or check the line's interface"
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
        for (line, at) in self.lines.iter().zip(&self.places) {
            if let (Some(stats), Some(shown)) = (line.stats().first(), self.shown(*at)) {
                shown.set(stats);
            }
        }
    }

    /// Returns the counters of a line.
    fn shown(&self, at: LinePlace) -> Option<&LineCounters> {
        let lines = self.shared.lines.get(at.fan_out)?;
        lines.get(usize::from(at.line.0))
    }

    #[cold]
    fn failed(&self, source: PublishError) -> PublisherError {
        PublisherError::Publish {
            channel: self.shared.plan.name.clone(),
            source,
        }
    }
}
