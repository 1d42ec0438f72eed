//! The core of a channel's publisher with an optional journal of its decisions.
//!
//! A message that only goes into the open datagram has no entry. A call that seals a datagram records the
//! header of that datagram. The header gives the number of records and of bytes, so a replay knows how
//! much to publish. Calls that changed nothing have no entry, such as timeouts with nothing due.

use std::fmt;
use std::ops::Deref;

use super::layout::{EntryKind, Note, Published, SealedBy};
use crate::writer::JournalWriter;
use tickcast_reliability::publish::{PublishError, PublisherCore, PublisherEvent, Transmit};
use tickcast_reliability::record::{RecordSlice, WireRecord};
use tickcast_reliability::types::{
    FanOutId, Nanos, Now, Sequence, SequenceRange, SourceId, SourcePosition,
};
use tickcast_reliability::wire::{HEADER_LEN, StreamEvent};

/// A longer time between two timeouts of the driver is worth a note.
const STALL: Nanos = Nanos::from_ms(1);
/// One more than the most instruments of an event. A list of this length stands for any longer one.
const INSTRUMENTS_MAX: usize = StreamEvent::INSTRUMENTS_MAX + 1;

/// A publisher's core with an optional journal. It dereferences to the core for everything that changes
/// nothing. The methods that change the core have the contracts of the core's methods.
pub struct JournaledPublisher {
    core: PublisherCore,
    journal: Option<Box<JournalWriter>>,
    /// The time of the last recorded input. `polled_at` is the time of the last `handle_timeout`.
    now: Nanos,
    polled_at: Nanos,
    /// The group of the last recorded `set_group`.
    group: (u32, u32),
}

impl fmt::Debug for JournaledPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.core.fmt(f)
    }
}

impl Deref for JournaledPublisher {
    type Target = PublisherCore;

    #[inline]
    fn deref(&self) -> &PublisherCore {
        &self.core
    }
}

impl JournaledPublisher {
    /// Returns this core without a journal.
    #[must_use]
    pub const fn new(core: PublisherCore) -> Self {
        Self {
            core,
            journal: None,
            now: Nanos::ZERO,
            polled_at: Nanos::MAX,
            group: (0, 0),
        }
    }

    /// Attaches a journal, which begins with the core's current state.
    pub fn keep_journal(&mut self, journal: JournalWriter) {
        self.now = journal.last;
        // No group has this value, so the next `set_group` is recorded.
        self.group = (u32::MAX, u32::MAX);
        self.journal = Some(Box::new(journal));
    }

    /// Detaches the journal and returns it.
    pub const fn take_journal(&mut self) -> Option<Box<JournalWriter>> {
        self.journal.take()
    }

    /// Returns whether a journal is attached.
    #[must_use]
    #[inline]
    pub const fn is_journaled(&self) -> bool {
        self.journal.is_some()
    }

    /// Notes an event around the core.
    #[cold]
    pub fn note(&mut self, note: Note) {
        if let Some(journal) = &mut self.journal {
            journal.note(&self.core, self.now, &note);
        }
    }

    /// Delegates to [`PublisherCore::publish`].
    ///
    /// # Errors
    /// Returns the errors of [`PublisherCore::publish`].
    // Nearly all messages go into the open datagram, and these must not cost a call.
    #[inline(always)]
    pub fn publish<'a>(
        &mut self,
        message: impl Into<RecordSlice<'a>>,
        source: SourceId,
        position: SourcePosition,
        now: Now,
    ) -> Result<(), PublishError> {
        let message = message.into();
        if self.core.add(message, source, position) {
            return Ok(());
        }
        // One call serves both cases: two checks are the cost without a journal, and no second call with one.
        let before = self.before_sealing(now);
        let Self { core, journal, .. } = self;
        let result = core.begin(message, source, position, now);
        if let Some(journal) = journal {
            if !core.is_open() {
                journal.begun_nothing(core, before, (message, source, position), now);
            } else {
                journal.begun(core, before, now.monotonic);
            }
        }
        result
    }

    /// Makes room for the entry of a call that may seal. Returns the last sequence sealed before the call.
    #[inline(always)]
    fn before_sealing(&mut self, now: Now) -> Sequence {
        let Self { core, journal, .. } = self;
        if let Some(journal) = journal {
            self.now = now.monotonic;
            journal.make_room_for_call(core, now.monotonic);
        }
        core.sealed()
    }

    /// Delegates to [`PublisherCore::add_record`].
    #[inline]
    pub fn add_record<R: WireRecord>(
        &mut self,
        record: &R,
        source: SourceId,
        position: SourcePosition,
    ) -> bool {
        self.core.add_record(record, source, position)
    }

    /// Delegates to [`PublisherCore::add_run`].
    #[inline]
    pub fn add_run<R: WireRecord>(
        &mut self,
        records: &[R],
        source: SourceId,
        first: SourcePosition,
    ) -> usize {
        self.core.add_run(records, source, first)
    }

    /// Delegates to [`PublisherCore::begin_record`].
    #[inline]
    pub fn begin_record<R: WireRecord>(
        &mut self,
        record: &R,
        source: SourceId,
        position: SourcePosition,
        now: Now,
    ) -> bool {
        let before = self.before_sealing(now);
        let Self { core, journal, .. } = self;
        let begun = core.begin_record(record, source, position, now);
        if let Some(journal) = journal {
            if begun {
                journal.begun(core, before, now.monotonic);
            } else if core.sealed() != before {
                journal.sealed_last(core, now.monotonic, SealedBy::MessageAlone);
            }
        }
        begun
    }

    /// Delegates to [`PublisherCore::flush`].
    #[inline]
    pub fn flush(&mut self, now: Now, last_of_burst: bool) {
        let before = self.before_sealing(now);
        let Self { core, journal, .. } = self;
        core.flush(now, last_of_burst);
        if let Some(journal) = journal
            && core.sealed() != before
        {
            let by = match last_of_burst {
                true => SealedBy::FlushLast,
                false => SealedBy::Flush,
            };
            journal.sealed_last(core, now.monotonic, by);
        }
    }

    /// Delegates to [`PublisherCore::event`].
    ///
    /// # Errors
    /// Returns the errors of [`PublisherCore::event`].
    pub fn event(&mut self, event: &StreamEvent, now: Now) -> Result<Sequence, PublishError> {
        let before = self.core.sealed();
        if self.journal.is_some() {
            let mut event = event.clone();
            if let StreamEvent::SourceLost { instruments, .. }
            | StreamEvent::SourceSilent { instruments, .. }
            | StreamEvent::SourceBack { instruments, .. } = &mut event
            {
                instruments.truncate(INSTRUMENTS_MAX);
            }
            self.record_published(now.monotonic, &Published::Event(event, now.utc));
        }
        let result = self.core.event(event, now);
        self.sealed_since(before, now.monotonic);
        result
    }

    /// Delegates to [`PublisherCore::end`].
    ///
    /// # Errors
    /// Returns the errors of [`PublisherCore::end`].
    pub fn end(&mut self, now: Now) -> Result<Sequence, PublishError> {
        let before = self.core.sealed();
        self.record_published(now.monotonic, &Published::End(now.utc));
        let result = self.core.end(now);
        self.sealed_since(before, now.monotonic);
        result
    }

    /// Delegates to [`PublisherCore::stop`].
    pub fn stop(&mut self) {
        self.record_published(self.now, &Published::Stop);
        self.core.stop();
    }

    /// Delegates to [`PublisherCore::set_group`].
    #[inline]
    pub fn set_group(&mut self, subscribers: u32, hold_off_us: u32) {
        let group = (subscribers, hold_off_us);
        if self.journal.is_some() && group != self.group {
            self.group = group;
            self.record_published(self.now, &Published::Group(subscribers, hold_off_us));
        }
        self.core.set_group(subscribers, hold_off_us);
    }

    /// Delegates to [`PublisherCore::handle_posted`].
    #[inline]
    pub fn handle_posted(&mut self, fan_out: FanOutId, up_to: Sequence) {
        let Self { core, journal, .. } = self;
        let Some(journal) = journal else {
            return core.handle_posted(fan_out, up_to);
        };
        journal.make_room_for_call(core, self.now);
        let head = (EntryKind::Posted, fan_out.0, 0);
        journal.fixed(self.now, head, &up_to.0.to_le_bytes());
        core.handle_posted(fan_out, up_to);
    }

    /// Delegates to [`PublisherCore::handle_completed`].
    #[inline]
    pub fn handle_completed(&mut self, fan_out: FanOutId, up_to: Sequence) {
        let Self { core, journal, .. } = self;
        match journal {
            Some(journal) if up_to > core.completed(fan_out) => {
                journal.make_room_for_call(core, self.now);
                let head = (EntryKind::Completed, fan_out.0, 0);
                journal.fixed(self.now, head, &up_to.0.to_le_bytes());
                core.handle_completed(fan_out, up_to);
            }
            _ => core.handle_completed(fan_out, up_to),
        }
    }

    /// Delegates to [`PublisherCore::handle_timeout`].
    #[inline]
    pub fn handle_timeout(&mut self, now: Now) {
        if self.journal.is_some() {
            self.note_poll(now);
        }
        self.core.handle_timeout(now);
    }

    fn note_poll(&mut self, now: Now) {
        let Self { core, journal, .. } = self;
        let Some(journal) = journal else { return };
        self.now = now.monotonic;
        let away = now.monotonic.since(self.polled_at);
        if away >= STALL {
            journal.note(core, now.monotonic, &Note::Stall(away));
        }
        self.polled_at = now.monotonic;
        if core.poll_timeout().is_some_and(|due| due <= now.monotonic) {
            journal.make_room_for_call(core, now.monotonic);
            let utc = now.utc.0.to_le_bytes();
            journal.fixed(now.monotonic, (EntryKind::Due, 0, 0), &utc);
        }
    }

    /// Delegates to [`PublisherCore::poll_transmit`].
    #[inline]
    pub fn poll_transmit(&mut self, fan_out: FanOutId) -> Option<Transmit> {
        let Self { core, journal, .. } = self;
        let Some(journal) = journal else {
            return core.poll_transmit(fan_out);
        };
        journal.make_room_for_call(core, self.now);
        let transmit = core.poll_transmit(fan_out)?;
        if let Transmit::Heartbeat(bytes) = &transmit {
            journal.fixed(self.now, (EntryKind::Beat, fan_out.0, 0), &bytes.plain());
        }
        Some(transmit)
    }

    /// Delegates to [`PublisherCore::poll`].
    #[inline]
    pub fn poll(&mut self) -> Option<PublisherEvent> {
        let Self { core, journal, .. } = self;
        match journal {
            Some(journal) if core.has_events() => {
                // Make room first, because a new segment must begin with the state before the poll.
                journal.make_room_for_call(core, self.now);
                let event = core.poll()?;
                journal.rare_output(self.now, (EntryKind::Happened, 0, 0), &event);
                Some(event)
            }
            _ => core.poll(),
        }
    }

    /// Delegates to [`PublisherCore::set_session`].
    pub fn set_session(&mut self, source: SourceId, session: [u8; 16]) {
        // The session is kept beside the stream and decides nothing, so it has no entry.
        self.core.set_session(source, session);
    }

    /// Delegates to [`PublisherCore::sealed`].
    #[must_use]
    pub const fn sealed(&self) -> Sequence {
        self.core.sealed()
    }

    fn record_published(&mut self, now: Nanos, what: &Published) {
        self.now = now;
        if let Some(journal) = &mut self.journal {
            journal.rare(&self.core, now, (EntryKind::Published, 0, 0), what);
        }
    }

    fn sealed_since(&mut self, before: Sequence, now: Nanos) {
        if let Some(journal) = &mut self.journal {
            journal.sealed_since(&self.core, before, now);
        }
    }
}

impl JournalWriter {
    /// Records the last sealed datagram and its cause. Full datagrams come this way, so it must be short.
    #[inline(always)]
    fn sealed_last(&mut self, core: &PublisherCore, now: Nanos, by: SealedBy) {
        if let Some(header) = core.ring().header_of_last() {
            self.fixed(now, (EntryKind::Sealed, by as u8, 0), header);
        }
    }

    /// Records the datagrams sealed after `before` by an input that has its own entry. They are not inputs.
    fn sealed_since(&mut self, core: &PublisherCore, before: Sequence, now: Nanos) {
        let range = SequenceRange::new(before.next(), core.sealed());
        for sequence in range.into_iter().flat_map(SequenceRange::iter) {
            let slot = core.slot(sequence);
            if let Some(header) = slot.and_then(|slot| slot.first_chunk::<HEADER_LEN>()) {
                self.fixed(now, (EntryKind::Sealed, SealedBy::Input as u8, 0), header);
                self.inputs -= 1;
            }
        }
    }

    /// Records a message that began a datagram, and with it the datagram that it sealed, if any.
    #[inline]
    fn begun(&mut self, core: &PublisherCore, before: Sequence, now: Nanos) {
        if core.sealed() == before {
            self.fixed(now, (EntryKind::Begun, 1, 0), &[]);
        } else {
            self.sealed_last(core, now, SealedBy::Message);
        }
    }

    /// Records a message that began no datagram: one without records, too large for one, or refused.
    #[cold]
    fn begun_nothing(
        &mut self,
        core: &PublisherCore,
        before: Sequence,
        (message, source, position): (RecordSlice<'_>, SourceId, SourcePosition),
        now: Now,
    ) {
        if message.bytes().len() > core.ring().payload_max() {
            let what = too_large(message, source, position, now.utc);
            // The call's room includes room for this entry.
            self.rare_output(now.monotonic, (EntryKind::Published, 0, 0), &what);
            self.sealed_since(core, before, now.monotonic);
        } else if core.sealed() == before {
            self.fixed(now.monotonic, (EntryKind::Begun, 0, 0), &[]);
        } else {
            self.sealed_last(core, now.monotonic, SealedBy::MessageAlone);
        }
    }
}

fn too_large(
    message: RecordSlice<'_>,
    source: SourceId,
    position: SourcePosition,
    utc: Nanos,
) -> Published {
    let records = message.records();
    let mut instruments: Vec<u32> = records.map(|it| it.header().instrument_id).collect();
    instruments.sort_unstable();
    instruments.dedup();
    instruments.truncate(INSTRUMENTS_MAX);
    let length = |len: usize| u32::try_from(len).unwrap_or(u32::MAX);
    Published::TooLarge {
        source,
        position,
        records: length(message.len()),
        bytes: length(message.bytes().len()),
        instruments,
        utc,
    }
}
