//! Routes the messages of the sources to their channels. The [`Router`]s select the channels of a
//! message; the [`ChannelDriver`]s publish it.
//!
//! [`Router`]: crate::plan::routing::Router

pub(crate) mod channel;
mod digest;
pub(crate) mod direct;
pub(crate) mod replay_check;
mod rerouted;
pub(crate) mod restarted;
mod resumed;

use std::sync::Arc;

use tickcast_feeds::source::Incident;
use tickcast_journal::{Note, Unread};
use tickcast_reliability::record::{RecordSlice, WireRecord, names_instruments};
use tickcast_reliability::types::{MessageCount, Nanos, Now, SourceId, SourcePosition};
use tickcast_reliability::wire::{SourceLossReason, StreamEvent};

use crate::error::PublisherError;
use crate::ingest::queue::SourceItem;
use crate::plan::routing::{ChannelSet, Router};
use crate::publish::channel::ChannelDriver;
use crate::publish::replay_check::{Mismatch, ReplayCheck, ReplayMismatch};
use crate::publish::resumed::Resumed;
use crate::standby::backlog::{BacklogEntry, BacklogItem};
use crate::state::hand_over::PublishPosition;
use crate::state::hearing::Silence;
use crate::state::positions::{Positions, shifted};
use crate::state::source_loss::SourceLoss;
use crate::state::{Shared, SourceShared};

/// The reason why a channel has no digest: a source did not replay its published messages.
pub(crate) const REPLAY_MISMATCH: &str = "a source did not replay its published messages";

/// One source of messages.
pub(crate) struct Source {
    /// State that all threads share.
    pub shared: Arc<SourceShared>,
    /// Selects the channels of its messages.
    pub router: Router,
    /// Whether its messages are counted here; a feed thread counts its own messages.
    pub counts_here: bool,
    /// Offset added to the ordinals of its positions, where channels continue from mirrors whose
    /// publisher counted more session changes.
    pub ordinals: i32,
    /// Counts kept by [`PublishStage`].
    pub counts: SourceCounts,
}

/// Counts and direct route of a source.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SourceCounts {
    /// Messages taken but not counted yet: the next [`PublishStage::drive`] counts them.
    messages: u64,
    records: u64,
    /// The last message taken of an input.
    last: SourcePosition,
    /// The only channel, and the source's number there, if no message needs a lookup or a filter.
    direct: Option<(usize, SourceId)>,
}

impl SourceCounts {
    /// Continues behind a message that an earlier publisher took.
    pub(crate) const fn resume(&mut self, last: SourcePosition) {
        self.last = last;
    }

    /// Records messages for the next count.
    #[inline]
    pub(crate) const fn took(&mut self, messages: u64, records: u64) {
        self.messages += messages;
        self.records += records;
    }

    /// Returns the direct route: the channel and the source's number there.
    pub(crate) const fn direct(&self) -> Option<(usize, SourceId)> {
        self.direct
    }
}

impl Source {
    /// Adds the taken messages to the shared counters.
    #[inline]
    fn count(&mut self) {
        let messages = std::mem::take(&mut self.counts.messages);
        let records = std::mem::take(&mut self.counts.records);
        if self.counts_here && messages > 0 {
            self.shared.counters.source_messages.add(messages);
            self.shared.counters.source_records.add(records);
        }
    }
}

/// All channels, and the routes of every source to them.
pub(crate) struct PublishStage {
    drivers: Vec<ChannelDriver>,
    sources: Vec<Source>,
    shared: Arc<Shared>,
    /// Messages that the channels already have, if they continue from mirrors.
    resumed: Option<Resumed>,
    /// The replay check and its mismatch file, if the sources replay from the beginning and the
    /// replay counts in the digests.
    replay_check: Option<(ReplayCheck, ReplayMismatch)>,
    /// The first error that could not be returned.
    failure: Option<PublisherError>,
}

impl PublishStage {
    /// Creates the stage that publishes the sources' messages through `drivers`, in the order of
    /// the config.
    #[must_use]
    pub(crate) fn new(
        drivers: Vec<ChannelDriver>,
        sources: Vec<Source>,
        shared: Arc<Shared>,
    ) -> Self {
        let mut all = Self {
            drivers,
            sources,
            shared,
            resumed: None,
            replay_check: None,
            failure: None,
        };
        all.resolve_direct_routes();
        all
    }

    /// Finds the sources whose messages go directly to one channel.
    fn resolve_direct_routes(&mut self) {
        for source in &mut self.sources {
            let channel = source.router.only().filter(|channel| {
                let looked_through = self.resumed.is_some() || source.ordinals != 0;
                !looked_through && !self.drivers[*channel].has_digest()
            });
            source.counts.direct = channel.map(|channel| (channel, source.shared.source));
        }
    }

    /// Returns the channels, the sources, and the first error.
    pub(crate) fn parts(
        &mut self,
    ) -> (
        &mut [ChannelDriver],
        &mut [Source],
        &mut Option<PublisherError>,
    ) {
        (&mut self.drivers, &mut self.sources, &mut self.failure)
    }

    /// Continues after the `mirrored` positions of each channel. Earlier messages are not published
    /// again.
    #[must_use]
    pub(crate) fn resuming(mut self, mirrored: Vec<Positions>) -> Self {
        self.resumed = Some(Resumed::new(mirrored));
        self.resolve_direct_routes();
        self
    }

    /// Continues like [`resuming`](Self::resuming), with sources that replay from the beginning. A
    /// channel whose replay can have another order takes no digest, for the given reason.
    #[must_use]
    pub(crate) fn replaying(
        mut self,
        sealed: Vec<Positions>,
        mismatch: ReplayMismatch,
        why_no_digest: impl Fn(usize) -> Option<&'static str>,
    ) -> Self {
        let rings = self.drivers.iter().map(|driver| driver.ring().reader());
        self.replay_check = Some((ReplayCheck::of(rings, sealed.iter()), mismatch));
        for (channel, driver) in self.drivers.iter_mut().enumerate() {
            if let Some(why) = why_no_digest(channel) {
                driver.without_digest(why);
            }
        }
        self.resuming(sealed)
    }

    /// Publishes a kept message of a source, on the channels that it was for on arrival.
    pub(crate) fn take_backlog(&mut self, source: usize, entry: &BacklogEntry, now: Now) {
        match &entry.what {
            BacklogItem::Message(records) => {
                self.publish_to(source, entry.position, records.into(), entry.channels, now);
            }
            BacklogItem::Lost(loss) => self.lost_to(source, loss, entry.channels, now),
        }
    }

    /// Publishes an item of a source; sources are numbered in the order given to the constructor.
    #[inline]
    pub(crate) fn take(&mut self, source: usize, item: &SourceItem<'_>, now: Now) {
        match item {
            SourceItem::Message(position, records) => {
                self.message(source, *position, *records, now);
            }
            SourceItem::Incident(incident) => self.incident(source, *incident),
            SourceItem::Lost(loss) => self.lost(source, loss, now),
            SourceItem::Silence(silence) => self.silence(source, *silence, now),
            SourceItem::Flush => self.flush_source(source, now),
        }
    }

    /// Takes a message of one record, if it needs no lookup or filter. Returns `false` if nothing
    /// was published; the caller must then use [`take`](Self::take).
    #[inline]
    pub(crate) fn take_record<R: WireRecord>(
        &mut self,
        source: usize,
        record: &R,
        at: SourcePosition,
        now: Now,
    ) -> bool {
        let source = &mut self.sources[source];
        if !const { names_instruments(R::RTYPE) }
            && let Some((channel, id)) = source.counts.direct
            && self.drivers[channel].put_record(record, id, at, now)
        {
            source.counts.took(1, 1);
            return true;
        }
        false
    }

    #[inline]
    fn message(&mut self, index: usize, at: SourcePosition, records: RecordSlice<'_>, now: Now) {
        let source = &mut self.sources[index];
        source.counts.took(1, records.len() as u64);
        source.counts.last = at;
        if let Some((channel, id)) = source.counts.direct
            && !records.names_instruments()
        {
            if let Err(error) = self.drivers[channel].publish(records, id, at, now) {
                self.failure.get_or_insert(error);
            }
            return;
        }
        let (shared, memory) = (&self.shared, source.shared.memory.get());
        let channels = source.router.route(records, |announced| {
            if let Some(memory) = memory {
                memory.name(&announced.instrument);
            }
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
                tracing::info!(source, %next, "the source restarted its sequence numbers");
            }
            Incident::SessionChange { next } => {
                tracing::info!(source, %next, "the source opened another session");
            }
            Incident::EndOfSession => tracing::info!(source, "the source ended its session"),
            Incident::LineStopped { line } => {
                tracing::warn!(source, line, "a line is silent while another is heard");
            }
            Incident::LineBack { line } => {
                tracing::info!(source, line, "a line is heard again");
            }
            _ => {}
        }
    }

    /// Returns whether a channel already has a message, from its mirror or its ring.
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
            self.resolve_direct_routes();
        }
        if !has {
            self.end_replay_check(channel, source, now);
        } else if let Some((check, _)) = &mut self.replay_check {
            let records = self.drivers[channel].digest_replayed(records);
            check.take(channel, source, at, records);
        }
        has
    }

    /// Ends the replay check of a source that has passed its published messages, or has ended. On a
    /// mismatch, the later messages are unknown, and the stream reports that.
    fn end_replay_check(&mut self, channel: usize, source: SourceId, now: Now) {
        let Some((check, mismatch)) = &mut self.replay_check else {
            return;
        };
        let Some(Mismatch { last, given }) = check.end(channel, source) else {
            return;
        };
        let driver = &mut self.drivers[channel];
        tracing::error!(
            channel = driver.name(),
            source = source.0,
            %last,
            given = given.map(tracing::field::display),
            "the source did not replay the messages that were published: its capture was \
             truncated, replaced, or is decoded differently; later messages are reported as lost; \
             restore the capture, or start a new epoch"
        );
        let lost = StreamEvent::SourceLost {
            source,
            reason: SourceLossReason::Gap,
            from: SourcePosition(last.0.saturating_add(1)),
            messages: u64::MAX,
            instruments: Vec::new(),
        };
        driver.without_digest(REPLAY_MISMATCH);
        // This runs on the publish thread, once, because its next messages can't be trusted anyway.
        mismatch.keep();
        if let Err(error) = driver.event(&lost, now) {
            self.failure.get_or_insert(error);
        }
    }

    /// Ends a source. Missing replayed messages are known only if the source was not stopped.
    #[cold]
    pub(crate) fn source_ended(&mut self, index: usize, now: Now) {
        if !self.shared.is_stopping() {
            let source = self.sources[index].shared.source;
            (0..self.drivers.len()).for_each(|at| self.end_replay_check(at, source, now));
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
            counts_here,
            ordinals,
            ..
        } = &self.sources[index];
        let (source, counters) = (shared.source, &shared.counters);
        let (from, messages) = (shifted(loss.from, *ordinals), loss.messages);
        let known = MessageCount(messages).known();
        let last = shifted(loss.last(), *ordinals);
        match loss.reason {
            SourceLossReason::Gap => {
                if let Some(Unread { packets, paused }) = loss.unread {
                    let paused_us = paused.0 / 1000;
                    tracing::warn!(
                        source = source.0, %from, messages = known, packets, paused_us,
                        "the source has a gap. The kernel dropped packets of its socket at that \
                         time, which may be the missing ones: give the feed thread a core, or \
                         raise receive_buffer_bytes"
                    );
                } else {
                    tracing::warn!(source = source.0, %from, messages = known, "the source has a gap");
                }
                if *counts_here {
                    counters.source_gaps.increment();
                    counters.source_missing_messages.add(loss.known_messages());
                }
            }
            SourceLossReason::Malformed => {
                tracing::error!(source = source.0, %from, messages = known, "the source can't be read");
                if *counts_here {
                    counters.source_malformed.increment();
                }
            }
            SourceLossReason::Overflow => {
                if let Some(memory) = shared.memory.get() {
                    memory.lose(from, messages);
                }
                tracing::warn!(
                    source = source.0,
                    %from,
                    messages = known,
                    "the publish thread can't keep up, and messages were lost in its queue; give \
                     it a faster core, or raise threads.queue_batches"
                );
                if *counts_here {
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

    /// Reports that a source fell silent, or is heard again, on every channel that it can reach.
    #[cold]
    fn silence(&mut self, index: usize, silence: Silence, now: Now) {
        let source = self.sources[index].shared.source;
        let event = silence.event(source);
        for channel in self.sources[index].router.of_all(&[]).iter() {
            if let Err(error) = self.drivers[channel].event(&event, now) {
                self.failure.get_or_insert(error);
            }
        }
    }

    /// Reports which live sources are silent and which are heard, where another publisher's reports end: it
    /// may have heard other sources.
    pub(crate) fn report_silences(&mut self, now: Now) {
        for index in 0..self.sources.len() {
            let source = &self.sources[index];
            // Handlers can share the state of a live source, but have no silence of their own.
            let Some(hearing) = source.shared.hearing().filter(|_| !source.counts_here) else {
                continue;
            };
            let silence = match hearing.silent_since() {
                Some(since) => Silence::Begun { since },
                None => Silence::Over { since: Nanos::ZERO },
            };
            self.silence(index, silence, now);
        }
    }

    /// Seals the open datagrams of every channel that the source can reach.
    fn flush_source(&mut self, index: usize, now: Now) {
        for channel in self.sources[index].router.of_all(&[]).iter() {
            self.drivers[channel].flush(now);
        }
    }

    /// Seals the open datagrams, because no message is waiting.
    #[inline]
    pub(crate) fn flush(&mut self, now: Now) {
        for driver in &mut self.drivers {
            driver.flush(now);
        }
        // Handlers can share the state of a live source, but have positions of their own.
        for source in self.sources.iter().filter(|it| !it.counts_here) {
            if let Some(memory) = source.shared.memory.get() {
                memory.settle(source.counts.last);
            }
        }
    }

    /// Sends the sealed datagrams that are due on all channels. Returns whether anything was sent.
    ///
    /// # Errors
    /// Returns the first error since the last call.
    pub(crate) fn drive(&mut self, now: Now) -> Result<bool, PublisherError> {
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

    /// Publishes an event on every channel.
    ///
    /// # Errors
    /// Returns the errors of [`ChannelDriver::event`].
    pub(crate) fn event(
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

    /// Drops the digest of a channel whose published messages were not all replayed: it would cover
    /// only a part.
    fn check_replay_is_whole(&mut self) {
        let Some((check, _)) = &mut self.replay_check else {
            return;
        };
        for (channel, driver) in self.drivers.iter_mut().enumerate() {
            if check.is_missing(channel) {
                driver.without_digest(
                    "the replay was stopped before it reached the end of the published messages",
                );
            }
        }
    }

    /// Ends the session on every channel.
    ///
    /// # Errors
    /// Returns the errors of [`ChannelDriver::end`].
    pub(crate) fn end(&mut self, now: Now) -> Result<(), PublisherError> {
        self.sources.iter_mut().for_each(Source::count);
        self.check_replay_is_whole();
        for driver in &mut self.drivers {
            driver.end(now)?;
        }
        Ok(())
    }

    /// Returns the position of every channel, once all messages are sealed and sent.
    #[must_use]
    pub(crate) fn position(&self) -> Option<Vec<PublishPosition>> {
        self.drivers.iter().map(ChannelDriver::position).collect()
    }

    /// Shows the digests of the messages published so far.
    pub(crate) fn show_digests(&mut self) {
        self.check_replay_is_whole();
        self.drivers.iter().for_each(ChannelDriver::show_digest);
    }

    /// Stops the heartbeats of every channel.
    pub(crate) fn stop(&mut self, now: Nanos) {
        self.sources.iter_mut().for_each(Source::count);
        for driver in &mut self.drivers {
            driver.stop(now);
        }
    }
}
