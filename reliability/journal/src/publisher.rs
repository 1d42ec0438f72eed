//! A channel's publishing core as its driver uses it, with a record of what it decided upon, or without.
//!
//! Nothing is kept of a message that only goes into the datagram that is open. What seals is kept once
//! it has, by the header that came of it: which says how many records of how many bytes there were, and
//! so what to publish in a replay. Looks at the clock at which nothing was due are left out, and so is
//! whatever else changed nothing.

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

/// The thread did not come back for so long: that is worth a note.
const STALL: Nanos = Nanos::from_ms(1);
/// An event names no more instruments; a list that is longer by one stands for any longer one.
const INSTRUMENTS_MAX: usize = StreamEvent::INSTRUMENTS_MAX + 1;

/// See the module. What only looks goes to the core; what changes it is here, under the same names and
/// with the same promises.
pub struct JournaledPublisher {
    core: PublisherCore,
    recorder: Option<Box<JournalWriter>>,
    /// The time that was given last, where it is recorded, and with the clock's last look.
    now: Nanos,
    looked_at: Nanos,
    /// The group that was told last.
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
    /// This core, without a record.
    #[must_use]
    pub const fn new(core: PublisherCore) -> Self {
        Self {
            core,
            recorder: None,
            now: Nanos::ZERO,
            looked_at: Nanos::MAX,
            group: (0, 0),
        }
    }

    /// Records from now on; the record begins with the core's state as it is.
    pub fn record(&mut self, recorder: JournalWriter) {
        self.now = recorder.last;
        // Whatever it is, it is told again.
        self.group = (u32::MAX, u32::MAX);
        self.recorder = Some(Box::new(recorder));
    }

    /// Records no longer; gives what did.
    pub const fn stop_recording(&mut self) -> Option<Box<JournalWriter>> {
        self.recorder.take()
    }

    /// Whether anything is recorded.
    #[must_use]
    #[inline]
    pub const fn is_recorded(&self) -> bool {
        self.recorder.is_some()
    }

    /// Notes what happened around the core.
    #[cold]
    pub fn note(&mut self, note: Note) {
        if let Some(recorder) = &mut self.recorder {
            recorder.note(&self.core, self.now, &note);
        }
    }

    /// See [`PublisherCore::publish`].
    ///
    /// # Errors
    /// As there.
    // What goes into the open datagram, which is nearly all, must not take a call.
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
        // One call with a record and without: who keeps none pays for two looks, who keeps one for no call.
        let before = self.before_sealing(now);
        let Self { core, recorder, .. } = self;
        let result = core.begin(message, source, position, now);
        if let Some(recorder) = recorder {
            if !core.is_open() {
                recorder.begun_nothing(core, before, (message, source, position), now);
            } else {
                recorder.begun(core, before, now.monotonic);
            }
        }
        result
    }

    /// Makes room for the entry of a call that may seal. What was sealed before it.
    #[inline(always)]
    fn before_sealing(&mut self, now: Now) -> Sequence {
        let Self { core, recorder, .. } = self;
        if let Some(recorder) = recorder {
            self.now = now.monotonic;
            recorder.make_room_for_call(core, now.monotonic);
        }
        core.sealed()
    }

    /// See [`PublisherCore::add_record`].
    #[inline]
    pub fn add_record<R: WireRecord>(
        &mut self,
        record: &R,
        source: SourceId,
        position: SourcePosition,
    ) -> bool {
        self.core.add_record(record, source, position)
    }

    /// See [`PublisherCore::add_run`].
    #[inline]
    pub fn add_run<R: WireRecord>(
        &mut self,
        records: &[R],
        source: SourceId,
        first: SourcePosition,
    ) -> usize {
        self.core.add_run(records, source, first)
    }

    /// See [`PublisherCore::begin_record`].
    #[inline]
    pub fn begin_record<R: WireRecord>(
        &mut self,
        record: &R,
        source: SourceId,
        position: SourcePosition,
        now: Now,
    ) -> bool {
        let before = self.before_sealing(now);
        let Self { core, recorder, .. } = self;
        let begun = core.begin_record(record, source, position, now);
        if let Some(recorder) = recorder {
            if begun {
                recorder.begun(core, before, now.monotonic);
            } else if core.sealed() != before {
                recorder.sealed_last(core, now.monotonic, SealedBy::MessageAlone);
            }
        }
        begun
    }

    /// See [`PublisherCore::flush`].
    #[inline]
    pub fn flush(&mut self, now: Now, last_of_burst: bool) {
        let before = self.before_sealing(now);
        let Self { core, recorder, .. } = self;
        core.flush(now, last_of_burst);
        if let Some(recorder) = recorder
            && core.sealed() != before
        {
            let by = match last_of_burst {
                true => SealedBy::FlushLast,
                false => SealedBy::Flush,
            };
            recorder.sealed_last(core, now.monotonic, by);
        }
    }

    /// See [`PublisherCore::event`].
    ///
    /// # Errors
    /// As there.
    pub fn event(&mut self, event: &StreamEvent, now: Now) -> Result<Sequence, PublishError> {
        let before = self.core.sealed();
        if self.recorder.is_some() {
            let mut event = event.clone();
            if let StreamEvent::SourceLost { instruments, .. } = &mut event {
                instruments.truncate(INSTRUMENTS_MAX);
            }
            self.told(now.monotonic, &Published::Event(event, now.utc));
        }
        let result = self.core.event(event, now);
        self.sealed_since(before, now.monotonic);
        result
    }

    /// See [`PublisherCore::end`].
    ///
    /// # Errors
    /// As there.
    pub fn end(&mut self, now: Now) -> Result<Sequence, PublishError> {
        let before = self.core.sealed();
        self.told(now.monotonic, &Published::End(now.utc));
        let result = self.core.end(now);
        self.sealed_since(before, now.monotonic);
        result
    }

    /// See [`PublisherCore::stop`].
    pub fn stop(&mut self) {
        self.told(self.now, &Published::Stop);
        self.core.stop();
    }

    /// See [`PublisherCore::set_group`].
    #[inline]
    pub fn set_group(&mut self, subscribers: u32, hold_off_us: u32) {
        let group = (subscribers, hold_off_us);
        if self.recorder.is_some() && group != self.group {
            self.group = group;
            self.told(self.now, &Published::Group(subscribers, hold_off_us));
        }
        self.core.set_group(subscribers, hold_off_us);
    }

    /// See [`PublisherCore::handle_posted`].
    #[inline]
    pub fn handle_posted(&mut self, fan_out: FanOutId, up_to: Sequence) {
        let Self { core, recorder, .. } = self;
        let Some(recorder) = recorder else {
            return core.handle_posted(fan_out, up_to);
        };
        recorder.make_room_for_call(core, self.now);
        let head = (EntryKind::Posted, fan_out.0, 0);
        recorder.fixed(self.now, head, &up_to.0.to_le_bytes());
        core.handle_posted(fan_out, up_to);
    }

    /// See [`PublisherCore::handle_completed`].
    #[inline]
    pub fn handle_completed(&mut self, fan_out: FanOutId, up_to: Sequence) {
        let Self { core, recorder, .. } = self;
        match recorder {
            Some(recorder) if up_to > core.completed(fan_out) => {
                recorder.make_room_for_call(core, self.now);
                let head = (EntryKind::Completed, fan_out.0, 0);
                recorder.fixed(self.now, head, &up_to.0.to_le_bytes());
                core.handle_completed(fan_out, up_to);
            }
            _ => core.handle_completed(fan_out, up_to),
        }
    }

    /// See [`PublisherCore::handle_timeout`].
    #[inline]
    pub fn handle_timeout(&mut self, now: Now) {
        if self.recorder.is_some() {
            self.look(now);
        }
        self.core.handle_timeout(now);
    }

    fn look(&mut self, now: Now) {
        let Self { core, recorder, .. } = self;
        let Some(recorder) = recorder else { return };
        self.now = now.monotonic;
        let away = now.monotonic.since(self.looked_at);
        if away >= STALL {
            recorder.note(core, now.monotonic, &Note::Stall(away));
        }
        self.looked_at = now.monotonic;
        if core.poll_timeout().is_some_and(|due| due <= now.monotonic) {
            recorder.make_room_for_call(core, now.monotonic);
            let utc = now.utc.0.to_le_bytes();
            recorder.fixed(now.monotonic, (EntryKind::Due, 0, 0), &utc);
        }
    }

    /// See [`PublisherCore::poll_transmit`].
    #[inline]
    pub fn poll_transmit(&mut self, fan_out: FanOutId) -> Option<Transmit> {
        let Self { core, recorder, .. } = self;
        let Some(recorder) = recorder else {
            return core.poll_transmit(fan_out);
        };
        recorder.make_room_for_call(core, self.now);
        let transmit = core.poll_transmit(fan_out)?;
        if let Transmit::Heartbeat(bytes) = &transmit {
            recorder.fixed(self.now, (EntryKind::Beat, fan_out.0, 0), bytes);
        }
        Some(transmit)
    }

    /// See [`PublisherCore::poll`].
    #[inline]
    pub fn poll(&mut self) -> Option<PublisherEvent> {
        let Self { core, recorder, .. } = self;
        match recorder {
            Some(recorder) if core.has_events() => {
                // First, so that what begins a segment is the state from before.
                recorder.make_room_for_call(core, self.now);
                let event = core.poll()?;
                recorder.rare_output(self.now, (EntryKind::Happened, 0, 0), &event);
                Some(event)
            }
            _ => core.poll(),
        }
    }

    /// See [`PublisherCore::set_session`].
    pub fn set_session(&mut self, source: SourceId, session: [u8; 16]) {
        // It is kept beside the stream, and decides nothing.
        self.core.set_session(source, session);
    }

    /// See [`PublisherCore::sealed`].
    #[must_use]
    pub const fn sealed(&self) -> Sequence {
        self.core.sealed()
    }

    fn told(&mut self, now: Nanos, what: &Published) {
        self.now = now;
        if let Some(recorder) = &mut self.recorder {
            recorder.rare(&self.core, now, (EntryKind::Published, 0, 0), what);
        }
    }

    fn sealed_since(&mut self, before: Sequence, now: Nanos) {
        if let Some(recorder) = &mut self.recorder {
            recorder.sealed_since(&self.core, before, now);
        }
    }
}

impl JournalWriter {
    /// A datagram was sealed, by this: what comes of full ones, so by the shortest way.
    #[inline(always)]
    fn sealed_last(&mut self, core: &PublisherCore, now: Nanos, by: SealedBy) {
        if let Some(header) = core.ring().header_of_last() {
            self.fixed(now, (EntryKind::Sealed, by as u8, 0), header);
        }
    }

    /// Datagrams were sealed after `before`, by an input that has an entry of its own: these are none.
    fn sealed_since(&mut self, core: &PublisherCore, before: Sequence, now: Nanos) {
        let range = SequenceRange::new(before.next(), core.sealed());
        for sequence in range.into_iter().flat_map(SequenceRange::iter) {
            let slot = core.slot(sequence);
            if let Some(header) = slot.and_then(|slot| slot.first_chunk::<HEADER_LEN>()) {
                self.fixed(now, (EntryKind::Sealed, SealedBy::Told as u8, 0), header);
                self.inputs -= 1;
            }
        }
    }

    /// A message came that began a datagram, before which what was open was sealed, if anything was.
    #[inline]
    fn begun(&mut self, core: &PublisherCore, before: Sequence, now: Nanos) {
        if core.sealed() == before {
            self.fixed(now, (EntryKind::Begun, 1, 0), &[]);
        } else {
            self.sealed_last(core, now, SealedBy::Message);
        }
    }

    /// A message came that began no datagram: of no records, larger than one, or refused.
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
            // Room for it is left behind that for the call.
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
