//! One channel's way out: what is published is sealed into its ring and goes out on every fan-out;
//! none of them can hold the feed up.
//!
//! [`ChannelDriver`] drives the sans-I/O core of a channel; the [`Router`]s of the sources (which
//! message to which channel) and what is told of a source stand above it in [`Publishing`].
//!
//! [`Router`]: crate::channels::Router

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use tickcast_feeds::source::Incident;
use tickcast_reliability::delivery::LineId;
use tickcast_reliability::publisher_core::{
    PublisherConfig, PublisherCore, PublisherEvent, Transmit,
};
use tickcast_reliability::record::{RecordSlice, WireRecord, names_instruments};
use tickcast_reliability::recorder::{Note, RecordedPublisher, Recorder, Unread};
use tickcast_reliability::ring::RingWriter;
use tickcast_reliability::sequencer::PublishError;
use tickcast_reliability::units::{
    FanOutId, Nanos, Now, Sequence, SequenceRange, SourceId, SourcePosition,
};
use tickcast_reliability::wire::{SourceLossReason, StreamEvent};
use tickcast_transport::FanOut;

use crate::channels::{ChannelSet, Router};
use crate::digest::Digest;
use crate::error::PublisherError;
use crate::flight::Noted;
use crate::given_again::{Differs, GivenAgain};
use crate::hand_over::Standing;
use crate::hop::Item;
use crate::loss::SourceLoss;
use crate::shared::{ChannelShared, Shared, SourceShared};
use crate::standby::agreement::shifted;
use crate::standby::keeping::{Entry, Positions, Resumed, What};

/// Datagrams that are handed to a transport at a time.
const POST_MAX: u64 = 64;
/// Between looks at what the transports counted.
const STATS_NS: u64 = 100_000_000;

/// The one that seals and sends what is published on a channel.
pub struct ChannelDriver {
    core: RecordedPublisher,
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
            core: RecordedPublisher::new(core),
            noted: Noted::default(),
            fan_outs,
            digest: digest.then(Digest::default),
            shared,
            stats_at: now,
        }
    }

    /// Keeps a flight record from now on, if one is given.
    #[must_use]
    pub fn recording(mut self, recorder: Option<Recorder>) -> Self {
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

    /// Counts a message in the digest that was published before. What of it was: nothing where it does not
    /// fit a datagram.
    #[cold]
    fn pass_over<'a>(&mut self, message: RecordSlice<'a>) -> RecordSlice<'a> {
        if message.bytes().len() > self.core.ring().payload_max() {
            return RecordSlice::default();
        }
        if let Some(digest) = &mut self.digest {
            digest.add(message);
        }
        message
    }

    /// Takes no digest where records were published before that do not come again as they came.
    fn without_digest(&mut self, why: &'static str) {
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
    fn note(&mut self, note: Note) {
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
        self.show_stats(now);
    }

    /// The last sequence sealed.
    #[must_use]
    pub const fn sealed(&self) -> Sequence {
        self.core.sealed()
    }

    /// Where the channel stands, once all that was published is sealed and sent.
    #[must_use]
    pub fn standing(&self) -> Option<Standing> {
        let last = self.core.sealed();
        let mut fan_outs = (0..self.fan_outs.len()).map(|index| FanOutId(index as u8));
        let is_sent = !self.core.is_open() && fan_outs.all(|id| self.core.posted(id) >= last);
        is_sent.then(|| Standing {
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
            self.show_stats(now.monotonic);
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
            self.happened(&event);
        }
    }

    #[cold]
    fn happened(&mut self, event: &PublisherEvent) {
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

    fn show_stats(&mut self, now: Nanos) {
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

/// One source of what is published.
pub struct Source {
    /// As all threads see it.
    pub shared: Arc<SourceShared>,
    /// Where its messages go.
    pub router: Router,
    /// Whether its messages are counted here; a feed thread counts its own.
    pub counts: bool,
    /// By how much the ordinals of its positions are raised, where channels go on from mirrors whose
    /// publisher counted more session changes.
    pub ordinals: i32,
    /// What [`Publishing`] keeps of it.
    pub taking: Taking,
}

/// How a source's messages are taken.
#[derive(Clone, Copy, Debug, Default)]
pub struct Taking {
    /// Messages taken that are not counted yet: they are at the next [`Publishing::drive`].
    messages: u64,
    records: u64,
    /// The one channel, and the source's number there, where nothing is to be looked up or left out.
    straight: Option<(usize, SourceId)>,
}

impl Taking {
    /// Takes note of messages that are to be counted.
    #[inline]
    pub(crate) const fn took(&mut self, messages: u64, records: u64) {
        self.messages += messages;
        self.records += records;
    }

    /// See the field.
    pub(crate) const fn straight(&self) -> Option<(usize, SourceId)> {
        self.straight
    }
}

impl Source {
    /// Counts what was taken.
    #[inline]
    fn count(&mut self) {
        let messages = std::mem::take(&mut self.taking.messages);
        let records = std::mem::take(&mut self.taking.records);
        if self.counts && messages > 0 {
            self.shared.counters.source_messages.add(messages);
            self.shared.counters.source_records.add(records);
        }
    }
}

/// All channels, and the routes of every source to them.
pub struct Publishing {
    drivers: Vec<ChannelDriver>,
    sources: Vec<Source>,
    shared: Arc<Shared>,
    /// What the channels have already, where they go on from mirrors.
    resumed: Option<Resumed>,
    /// Where those are given again from the beginning, and count in the digests.
    given_again: Option<GivenAgain>,
    /// The first thing that went wrong where no error could be returned.
    failure: Option<PublisherError>,
}

impl Publishing {
    /// Publishes through `drivers`, in the order of the config, what the sources tell.
    #[must_use]
    pub fn new(drivers: Vec<ChannelDriver>, sources: Vec<Source>, shared: Arc<Shared>) -> Self {
        let mut all = Self {
            drivers,
            sources,
            shared,
            resumed: None,
            given_again: None,
            failure: None,
        };
        all.straighten();
        all
    }

    /// Finds out which sources' messages go straight to a channel.
    fn straighten(&mut self) {
        for source in &mut self.sources {
            let channel = source.router.only().filter(|channel| {
                let looked_through = self.resumed.is_some() || source.ordinals != 0;
                !looked_through && self.drivers[*channel].digest.is_none()
            });
            source.taking.straight = channel.map(|channel| (channel, source.shared.source));
        }
    }

    /// The channels, the sources, and the first thing that went wrong.
    pub(crate) fn parts(
        &mut self,
    ) -> (
        &mut [ChannelDriver],
        &mut [Source],
        &mut Option<PublisherError>,
    ) {
        (&mut self.drivers, &mut self.sources, &mut self.failure)
    }

    /// Goes on where each channel is `mirrored` up to: what the sources tell of before is not
    /// published again.
    #[must_use]
    pub(crate) fn resuming(mut self, mirrored: Vec<Positions>) -> Self {
        self.resumed = Some(Resumed::new(mirrored));
        self.straighten();
        self
    }

    /// As [`resuming`](Self::resuming), where the sources give everything again from the beginning. Of a
    /// channel where that can come in another order there is no digest, for the reason given.
    #[must_use]
    pub(crate) fn replaying(
        mut self,
        sealed: Vec<Positions>,
        digest_breaks: impl Fn(usize) -> Option<&'static str>,
    ) -> Self {
        let rings = self
            .drivers
            .iter()
            .map(|driver| driver.core.ring().reader());
        self.given_again = Some(GivenAgain::of(rings, sealed.iter()));
        for (channel, driver) in self.drivers.iter_mut().enumerate() {
            if let Some(why) = digest_breaks(channel) {
                driver.without_digest(why);
            }
        }
        self.resuming(sealed)
    }

    /// Publishes what was kept of a source, on the channels that it was for when it came.
    pub(crate) fn take_kept(&mut self, source: usize, entry: &Entry, now: Now) {
        match &entry.what {
            What::Message(records) => {
                self.publish_to(source, entry.position, records.into(), entry.channels, now);
            }
            What::Lost(loss) => self.lost_to(source, loss, entry.channels, now),
        }
    }

    /// Publishes what a source told; sources are counted as they were given.
    #[inline]
    pub fn take(&mut self, source: usize, item: &Item<'_>, now: Now) {
        match item {
            Item::Message(position, records) => self.message(source, *position, *records, now),
            Item::Incident(incident) => self.incident(source, *incident),
            Item::Lost(loss) => self.lost(source, loss, now),
            Item::Flush => self.flush_source(source, now),
        }
    }

    /// As [`take`](Self::take), for a message that is one record, where nothing of it is to be looked up or
    /// left out. `false`, and it was not published: it must be taken so.
    #[inline]
    pub fn take_record<R: WireRecord>(
        &mut self,
        source: usize,
        record: &R,
        at: SourcePosition,
        now: Now,
    ) -> bool {
        let source = &mut self.sources[source];
        if !const { names_instruments(R::RTYPE) }
            && let Some((channel, id)) = source.taking.straight
            && self.drivers[channel].put_record(record, id, at, now)
        {
            source.taking.took(1, 1);
            return true;
        }
        false
    }

    #[inline]
    fn message(&mut self, index: usize, at: SourcePosition, records: RecordSlice<'_>, now: Now) {
        let source = &mut self.sources[index];
        source.taking.took(1, records.len() as u64);
        if let Some((channel, id)) = source.taking.straight
            && !records.names_instruments()
        {
            if let Err(error) = self.drivers[channel].publish(records, id, at, now) {
                self.failure.get_or_insert(error);
            }
            return;
        }
        let shared = &self.shared;
        let channels = source.router.route(records, |announced| {
            for channel in announced.channels.iter() {
                let channel = &shared.channels[channel];
                // locks: where an instrument is named, which no tick does.
                channel.directory().put(announced.instrument.clone());
            }
        });
        if channels.is_empty() {
            let counters = &source.shared.counters;
            return counters.source_unrouted_messages.increment();
        }
        self.publish_to(index, at, records, channels, now);
    }

    #[inline]
    fn publish_to(
        &mut self,
        index: usize,
        at: SourcePosition,
        records: RecordSlice<'_>,
        channels: ChannelSet,
        now: Now,
    ) {
        let Source {
            shared, ordinals, ..
        } = &self.sources[index];
        let source = shared.source;
        let at = if *ordinals == 0 {
            at
        } else {
            shifted(at, *ordinals)
        };
        for channel in channels.iter() {
            if self.resumed.is_some() && self.is_mirrored(channel, source, at, records, now) {
                continue;
            }
            if let Err(error) = self.drivers[channel].publish(records, source, at, now) {
                self.failure.get_or_insert(error);
            }
        }
    }

    fn incident(&self, index: usize, incident: Incident) {
        let source = self.sources[index].shared.source.0;
        match incident {
            Incident::SequenceReset { next } => {
                tracing::info!(source, %next, "the source counts from the start again");
            }
            Incident::SessionChange { next } => {
                tracing::info!(source, %next, "the source opened another session");
            }
            Incident::EndOfSession => tracing::info!(source, "the source ended its session"),
            _ => {}
        }
    }

    /// Whether a channel has a message already, that its mirror or its ring had.
    #[cold]
    fn is_mirrored(
        &mut self,
        channel: usize,
        source: SourceId,
        at: SourcePosition,
        records: RecordSlice<'_>,
        now: Now,
    ) -> bool {
        let Some(resumed) = &mut self.resumed else {
            return false;
        };
        let has = resumed.has(channel, source, at);
        if resumed.is_over() {
            self.resumed = None;
            self.straighten();
        }
        if !has {
            self.was_given_again(channel, source, now);
        } else if let Some(again) = &mut self.given_again {
            let records = self.drivers[channel].pass_over(records);
            again.take(channel, source, at, records);
        }
        has
    }

    /// A source is beyond what was published of it, or has ended: where it did not give the same again,
    /// nobody knows what is missing from there on, and that is told.
    fn was_given_again(&mut self, channel: usize, source: SourceId, now: Now) {
        let again = self.given_again.as_mut();
        let Some(Differs { last, given }) = again.and_then(|it| it.end(channel, source)) else {
            return;
        };
        let driver = &mut self.drivers[channel];
        tracing::error!(
            channel = driver.shared.plan.name,
            source = source.0,
            %last,
            given = given.map(tracing::field::display),
            "the source does not give again what was published of it: its capture was cut or replaced, or is read otherwise; what follows is told as lost in part"
        );
        let lost = StreamEvent::SourceLost {
            source,
            reason: SourceLossReason::Gap,
            from: SourcePosition(last.0.saturating_add(1)),
            messages: u64::MAX,
            instruments: Vec::new(),
        };
        driver.without_digest("what was published before did not come again");
        if let Err(error) = driver.event(&lost, now) {
            self.failure.get_or_insert(error);
        }
    }

    /// A source has nothing more to tell. What it did not give again is known only where it was not stopped.
    #[cold]
    pub(crate) fn source_ended(&mut self, index: usize, now: Now) {
        if !self.shared.is_stopping() {
            let source = self.sources[index].shared.source;
            (0..self.drivers.len()).for_each(|at| self.was_given_again(at, source, now));
        }
    }

    fn lost(&mut self, index: usize, loss: &SourceLoss, now: Now) {
        let channels = self.sources[index].router.of_all(&loss.instruments);
        self.lost_to(index, loss, channels, now);
    }

    #[cold]
    fn lost_to(&mut self, index: usize, loss: &SourceLoss, channels: ChannelSet, now: Now) {
        let Source {
            shared,
            counts,
            ordinals,
            ..
        } = &self.sources[index];
        let (source, counters) = (shared.source, &shared.counters);
        let (from, messages) = (shifted(loss.from, *ordinals), loss.messages);
        let last = shifted(loss.last(), *ordinals);
        match loss.reason {
            SourceLossReason::Gap => {
                if let Some(Unread { packets, paused }) = loss.unread {
                    let paused_us = paused.0 / 1000;
                    tracing::warn!(
                        source = source.0, %from, messages, packets, paused_us,
                        "packets of the source were dropped in this host, before its socket was read; use a core \
                         of its own or a larger receive_buffer_bytes"
                    );
                } else {
                    tracing::warn!(source = source.0, %from, messages, "the source has a gap");
                }
                if *counts {
                    counters.source_gaps.increment();
                    counters.source_missing_messages.add(loss.known_messages());
                }
            }
            SourceLossReason::Malformed => {
                tracing::error!(source = source.0, %from, messages, "the source can't be read");
                if *counts {
                    counters.source_malformed.increment();
                }
            }
            SourceLossReason::Overflow => {
                tracing::warn!(
                    source = source.0,
                    %from,
                    messages,
                    "the publish thread could not keep up: messages were lost before it; use faster cores or more hop_batches"
                );
                if *counts {
                    counters.source_overflow_messages.add(messages);
                }
            }
        }
        let event = StreamEvent::SourceLost {
            source,
            reason: loss.reason,
            from,
            messages,
            instruments: loss.instruments.clone(),
        };
        for channel in channels.iter() {
            let none = RecordSlice::default();
            if self.resumed.is_some() && self.is_mirrored(channel, source, last, none, now) {
                continue;
            }
            if let Some(unread) = loss.unread {
                self.drivers[channel].note(Note::Unread(source, unread));
            }
            if let Err(error) = self.drivers[channel].event(&event, now) {
                self.failure.get_or_insert(error);
            }
        }
    }

    /// Seals what is open on every channel that the source can go to.
    fn flush_source(&mut self, index: usize, now: Now) {
        for channel in self.sources[index].router.of_all(&[]).iter() {
            self.drivers[channel].flush(now);
        }
    }

    /// Nothing more is waiting: seals what is open.
    #[inline]
    pub fn flush(&mut self, now: Now) {
        for driver in &mut self.drivers {
            driver.flush(now);
        }
    }

    /// Sends what is sealed and due on all channels. Whether anything was sent.
    ///
    /// # Errors
    /// The first thing that went wrong since the last time.
    pub fn drive(&mut self, now: Now) -> Result<bool, PublisherError> {
        self.sources.iter_mut().for_each(Source::count);
        if let Some(error) = self.failure.take() {
            return Err(error);
        }
        let mut worked = false;
        for driver in &mut self.drivers {
            worked |= driver.drive(now)?;
        }
        Ok(worked)
    }

    /// Tells on every channel.
    ///
    /// # Errors
    /// As [`ChannelDriver::event`].
    pub fn event(
        &mut self,
        event: impl Fn(usize) -> Option<StreamEvent>,
        now: Now,
    ) -> Result<(), PublisherError> {
        for (index, driver) in self.drivers.iter_mut().enumerate() {
            if let Some(event) = event(index) {
                driver.event(&event, now)?;
            }
        }
        Ok(())
    }

    /// Ends the session on every channel.
    ///
    /// # Errors
    /// As [`ChannelDriver::end`].
    pub fn end(&mut self, now: Now) -> Result<(), PublisherError> {
        self.sources.iter_mut().for_each(Source::count);
        for driver in &mut self.drivers {
            driver.end(now)?;
        }
        Ok(())
    }

    /// Where every channel stands, once all that was published is sealed and sent.
    #[must_use]
    pub fn standing(&self) -> Option<Vec<Standing>> {
        self.drivers.iter().map(ChannelDriver::standing).collect()
    }

    /// Shows the digests of what was published so far.
    pub fn show_digests(&self) {
        self.drivers.iter().for_each(ChannelDriver::show_digest);
    }

    /// Stops the heartbeats of every channel.
    pub fn stop(&mut self, now: Nanos) {
        self.sources.iter_mut().for_each(Source::count);
        for driver in &mut self.drivers {
            driver.stop(now);
        }
    }
}
