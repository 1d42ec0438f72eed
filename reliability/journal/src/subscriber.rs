//! A subscriber's core as a driver uses it, with a record of what it is given, or without. The one
//! place where inputs are recorded: before the core has them, so that the last one of a process that
//! dies of it is in the record.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use super::layout::{EntryKind, JournalInput, Note, of_line};
use crate::outputs::Outputs;
use crate::writer::JournalWriter;
use tickcast_reliability::control::{Message, RemoteAccess, Start};
use tickcast_reliability::delivery::{Deliver, LineId, LinkDownReason, LossCause, Via};
use tickcast_reliability::receive::{InboxWanted, Mirror};
use tickcast_reliability::ring::RingMemory;
use tickcast_reliability::session::{
    Action, Path, ReadLimits, RemoteRequest, SubscriberCore, SubscriberSettings,
};
use tickcast_reliability::types::{ChannelId, Epoch, Nanos, SequenceRange};
use tickcast_reliability::wire::headers_only;
use tickcast_reliability::wire::{CrcVerdict, Datagram, HEADER_LEN};

/// See the module. What only looks goes to the core; what changes it is here, under the same names and
/// with the same promises.
pub struct JournaledCore {
    core: SubscriberCore,
    recorder: Option<Box<JournalWriter>>,
    /// The last READ limits given to the core.
    limits: ReadLimits,
    /// The time that was given last.
    now: Nanos,
}

impl fmt::Debug for JournaledCore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.core.fmt(f)
    }
}

impl Deref for JournaledCore {
    type Target = SubscriberCore;

    fn deref(&self) -> &SubscriberCore {
        &self.core
    }
}

impl JournaledCore {
    /// A core as [`SubscriberCore::new`] makes it, without a record.
    #[must_use]
    pub fn new(settings: SubscriberSettings, now: Nanos) -> Self {
        Self {
            core: SubscriberCore::new(settings, now),
            recorder: None,
            limits: ReadLimits::default(),
            now,
        }
    }

    /// A core as it was taken down, without a record.
    pub(super) fn of(core: SubscriberCore) -> Self {
        Self {
            limits: core.read_limits(),
            core,
            recorder: None,
            now: Nanos::ZERO,
        }
    }

    /// Records from now on; the record begins with the core's state as it is.
    pub fn record(&mut self, recorder: JournalWriter) {
        self.recorder = Some(Box::new(recorder));
    }

    /// Records no longer; gives what did.
    pub fn stop_recording(&mut self) -> Option<Box<JournalWriter>> {
        self.recorder.take()
    }

    /// Returns the attached journal writer, if any.
    #[must_use]
    pub fn recorder(&self) -> Option<&JournalWriter> {
        self.recorder.as_deref()
    }

    /// Returns the outputs of the core since recording began.
    #[must_use]
    pub fn outputs(&self) -> Option<&Outputs> {
        Some(self.recorder()?.outputs())
    }

    /// Notes what happened around the core.
    #[cold]
    pub fn note(&mut self, now: Nanos, note: Note) {
        if let Some(recorder) = &mut self.recorder {
            recorder.note(&self.core, now, &note);
        }
    }

    fn input(&mut self, now: Nanos, input: &JournalInput) {
        self.now = now;
        if let Some(recorder) = &mut self.recorder {
            recorder.input(&self.core, now, input);
        }
    }

    /// See [`SubscriberCore::use_nack_path`].
    pub fn use_nack_path(&mut self, usable: bool) {
        self.input(self.now, &JournalInput::Use(Some(usable), None, None));
        self.core.use_nack_path(usable);
    }

    /// See [`SubscriberCore::use_read_path`].
    pub fn use_read_path(&mut self, usable: bool) {
        self.input(self.now, &JournalInput::Use(None, Some(usable), None));
        self.core.use_read_path(usable);
    }

    /// See [`SubscriberCore::use_inboxes`].
    pub fn use_inboxes(&mut self, usable: bool) {
        self.input(self.now, &JournalInput::Use(None, None, Some(usable)));
        self.core.use_inboxes(usable);
    }

    /// See [`SubscriberCore::handle_nack_unusable`].
    pub fn handle_nack_unusable(&mut self, now: Nanos) {
        self.input(now, &JournalInput::NackUnusable);
        self.core.handle_nack_unusable(now);
    }

    /// See [`SubscriberCore::handle_read_unusable`].
    pub fn handle_read_unusable(&mut self, now: Nanos) {
        self.input(now, &JournalInput::ReadUnusable);
        self.core.handle_read_unusable(now);
    }

    /// See [`SubscriberCore::handle_received`].
    #[inline]
    pub fn handle_received(
        &mut self,
        now: Nanos,
        channel: ChannelId,
        line: LineId,
        bytes: &[u8],
        on: &mut impl Deliver,
    ) {
        let Some(recorder) = &mut self.recorder else {
            return self.core.handle_received(now, channel, line, bytes, on);
        };
        self.now = now;
        match Datagram::parse(bytes) {
            Ok(datagram) => {
                let verdict = datagram.verdict();
                note_datagram(
                    recorder,
                    &self.core,
                    now,
                    (channel, line),
                    &datagram,
                    verdict,
                );
                let (via, mut on) = (Via::Line(line), recorder.witness(on));
                (self.core).handle_datagram(now, channel, via, &datagram, verdict, &mut on);
            }
            Err(_) => {
                let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
                recorder.input(
                    &self.core,
                    now,
                    &JournalInput::Malformed(channel, line, len),
                );
                let on = &mut recorder.witness(on);
                self.core.handle_received(now, channel, line, bytes, on);
            }
        }
    }

    /// See [`SubscriberCore::handle_whole`].
    #[inline]
    pub fn handle_whole(
        &mut self,
        now: Nanos,
        channel: ChannelId,
        line: LineId,
        bytes: &[u8],
        on: &mut impl Deliver,
    ) {
        let Some(recorder) = &mut self.recorder else {
            return self.core.handle_whole(now, channel, line, bytes, on);
        };
        let Ok(datagram) = Datagram::parse(bytes) else {
            return self.handle_received(now, channel, line, bytes, on);
        };
        self.now = now;
        let verdict = CrcVerdict::Good;
        note_datagram(
            recorder,
            &self.core,
            now,
            (channel, line),
            &datagram,
            verdict,
        );
        let (via, mut on) = (Via::Line(line), recorder.witness(on));
        (self.core).handle_datagram(now, channel, via, &datagram, verdict, &mut on);
    }

    /// A datagram as a record has it, with the verdict of then.
    pub(super) fn handle_recorded(
        &mut self,
        now: Nanos,
        channel: ChannelId,
        via: Via,
        datagram: &Datagram<'_>,
        verdict: CrcVerdict,
        on: &mut impl Deliver,
    ) {
        self.now = now;
        if let Some(recorder) = &mut self.recorder {
            let on = &mut recorder.witness(on);
            (self.core).handle_datagram(now, channel, via, datagram, verdict, on);
        }
    }

    /// See [`SubscriberCore::handle_overrun`].
    pub fn handle_overrun(
        &mut self,
        now: Nanos,
        channel: ChannelId,
        (epoch, range): (Epoch, SequenceRange),
        on: &mut impl Deliver,
    ) {
        self.input(now, &JournalInput::Overrun(channel, epoch, range));
        match &mut self.recorder {
            None => self.core.handle_overrun(now, channel, (epoch, range), on),
            Some(recorder) => {
                let on = &mut recorder.witness(on);
                self.core.handle_overrun(now, channel, (epoch, range), on);
            }
        }
    }

    /// See [`SubscriberCore::handle_stranger`].
    pub fn handle_stranger(&mut self, channel: ChannelId) {
        self.input(self.now, &JournalInput::Stranger(channel));
        self.core.handle_stranger(channel);
    }

    /// See [`SubscriberCore::handle_connected`].
    pub fn handle_connected(&mut self, now: Nanos, path: Path) {
        self.input(now, &JournalInput::Connected(path));
        self.core.handle_connected(now, path);
    }

    /// See [`SubscriberCore::handle_disconnected`].
    pub fn handle_disconnected(
        &mut self,
        now: Nanos,
        path: Path,
        reason: LinkDownReason,
        on: &mut impl Deliver,
    ) {
        self.input(now, &JournalInput::Disconnected(path, reason));
        match &mut self.recorder {
            None => self.core.handle_disconnected(now, path, reason, on),
            Some(recorder) => {
                let on = &mut recorder.witness(on);
                self.core.handle_disconnected(now, path, reason, on);
            }
        }
    }

    /// See [`SubscriberCore::handle_message`].
    pub fn handle_message(
        &mut self,
        now: Nanos,
        path: Path,
        channel: ChannelId,
        message: &Message<'_>,
        on: &mut impl Deliver,
    ) {
        self.now = now;
        let Some(recorder) = &mut self.recorder else {
            return self.core.handle_message(now, path, channel, message, on);
        };
        let mut frame = std::mem::take(&mut recorder.scratch);
        match message {
            Message::Welcome(welcome) => {
                // Names of instruments are for the application alone.
                let mut welcome = welcome.clone();
                let offers = welcome.channels.iter_mut();
                offers.for_each(|offer| offer.directory.clear());
                Message::Welcome(welcome).write(channel, &mut frame);
            }
            message => message.write(channel, &mut frame),
        }
        let head = (EntryKind::Message, path as u8, channel.0);
        recorder.long(&self.core, now, head, [&frame, &[]]);
        frame.clear();
        recorder.scratch = frame;
        let on = &mut recorder.witness(on);
        self.core.handle_message(now, path, channel, message, on);
    }

    /// See [`SubscriberCore::handle_timeout`].
    pub fn handle_timeout(&mut self, now: Nanos, on: &mut impl Deliver) {
        self.now = now;
        match &mut self.recorder {
            None => self.core.handle_timeout(now, on),
            Some(recorder) => {
                recorder.short(&self.core, now, EntryKind::Look);
                self.core.handle_timeout(now, &mut recorder.witness(on));
            }
        }
    }

    /// See [`SubscriberCore::poll_action`].
    pub fn poll_action(&mut self) -> Option<Action> {
        let action = self.core.poll_action()?;
        if let Some(recorder) = &mut self.recorder {
            recorder.outputs.action(&action);
            recorder.short_output(EntryKind::Action);
        }
        Some(action)
    }

    /// See [`SubscriberCore::poll_transmit`].
    pub fn poll_transmit(
        &mut self,
        now: Nanos,
        out: &mut Vec<u8>,
        on: &mut impl Deliver,
    ) -> Option<Path> {
        self.now = now;
        let Some(recorder) = &mut self.recorder else {
            return self.core.poll_transmit(now, out, on);
        };
        recorder.short(&self.core, now, EntryKind::Ask);
        let before = out.len();
        let path = (self.core).poll_transmit(now, out, &mut recorder.witness(on))?;
        let frames = &out[before..];
        recorder.outputs.sent(path, frames);
        recorder.sent(path as u8, frames);
        Some(path)
    }

    /// See [`SubscriberCore::poll_remote`].
    pub fn poll_remote(&mut self) -> Option<RemoteRequest> {
        let request = self.core.poll_remote()?;
        if let Some(recorder) = &mut self.recorder {
            recorder.outputs.request(&request);
            recorder.short_output(EntryKind::Request);
        }
        Some(request)
    }

    /// See [`SubscriberCore::set_read_limits`].
    pub fn set_read_limits(&mut self, limits: ReadLimits) {
        if limits != self.limits {
            self.limits = limits;
            self.input(self.now, &JournalInput::Limits(limits));
            self.core.set_read_limits(limits);
        }
    }

    /// See [`SubscriberCore::handle_read`].
    pub fn handle_read(&mut self, now: Nanos, tag: u64, bytes: &[u8], on: &mut impl Deliver) {
        self.now = now;
        match &mut self.recorder {
            None => self.core.handle_read(now, tag, bytes, on),
            Some(recorder) => {
                let parts = [&tag.to_le_bytes()[..], bytes];
                recorder.long(&self.core, now, (EntryKind::Remote, 0, 0), parts);
                let on = &mut recorder.witness(on);
                self.core.handle_read(now, tag, bytes, on);
            }
        }
    }

    /// See [`SubscriberCore::leave`].
    pub fn leave(&mut self, cause: LossCause, on: &mut impl Deliver) {
        self.input(self.now, &JournalInput::Leave(cause));
        match &mut self.recorder {
            None => self.core.leave(cause, on),
            Some(recorder) => self.core.leave(cause, &mut recorder.witness(on)),
        }
    }

    /// See [`SubscriberCore::rejoin`].
    pub fn rejoin(
        &mut self,
        now: Nanos,
        channel: ChannelId,
        start: Start,
        on: &mut impl Deliver,
    ) -> bool {
        self.input(now, &JournalInput::Rejoin(channel, start));
        match &mut self.recorder {
            None => self.core.rejoin(now, channel, start, on),
            Some(recorder) => {
                let on = &mut recorder.witness(on);
                self.core.rejoin(now, channel, start, on)
            }
        }
    }

    /// See [`SubscriberCore::handle_listening`].
    pub fn handle_listening(&mut self, now: Nanos, channel: ChannelId, lines: usize) {
        let few = u8::try_from(lines).unwrap_or(u8::MAX);
        self.input(now, &JournalInput::Listening(channel, few));
        self.core.handle_listening(now, channel, few.into());
    }
}

/// Inputs of a standby's driver. The record omits them: it can be explained, not replayed.
impl JournaledCore {
    /// See [`SubscriberCore::set_mirror`].
    pub fn set_mirror(&mut self, channel: ChannelId, mirror: Mirror) -> bool {
        self.input(self.now, &JournalInput::Unrecorded);
        self.core.set_mirror(channel, mirror)
    }

    /// See [`SubscriberCore::take_mirror`].
    pub fn take_mirror(&mut self, channel: ChannelId) -> Option<Mirror> {
        self.core.take_mirror(channel)
    }

    /// See [`SubscriberCore::handle_inbox`].
    pub fn handle_inbox(
        &mut self,
        channel: ChannelId,
        wanted: &InboxWanted,
        memory: Arc<dyn RingMemory>,
        access: RemoteAccess,
    ) {
        self.input(self.now, &JournalInput::Unrecorded);
        self.core.handle_inbox(channel, wanted, memory, access);
    }

    /// See [`SubscriberCore::look_for_written`].
    #[inline]
    pub fn look_for_written(&mut self) -> Option<ChannelId> {
        self.core.look_for_written()
    }

    /// See [`SubscriberCore::handle_written`].
    pub fn handle_written(&mut self, now: Nanos, channel: ChannelId, on: &mut impl Deliver) {
        self.now = now;
        match &mut self.recorder {
            None => self.core.handle_written(now, channel, on),
            Some(recorder) => {
                let on = &mut recorder.witness(on);
                self.core.handle_written(now, channel, on);
            }
        }
    }
}

// Always: a call of its own would cost a fifth of what a record costs.
#[inline(always)]
fn note_datagram(
    recorder: &mut JournalWriter,
    core: &SubscriberCore,
    now: Nanos,
    (channel, line): (ChannelId, LineId),
    datagram: &Datagram<'_>,
    verdict: CrcVerdict,
) {
    let bytes = datagram.bytes();
    let b = if line.0 == 0 { 0 } else { of_line::B };
    let bad = match verdict {
        CrcVerdict::Good => 0,
        CrcVerdict::Bad => of_line::BAD,
    };
    match bytes.first_chunk::<HEADER_LEN>() {
        Some(header) if headers_only::is_enough(datagram) => {
            recorder.data(core, now, (b | bad, channel.0), header);
        }
        _ => recorder.long(
            core,
            now,
            (EntryKind::Other, b | bad, channel.0),
            [bytes, &[]],
        ),
    }
}
