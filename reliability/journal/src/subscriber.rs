//! The journal of a subscriber's core. An entry is written before the core has the input, so that the
//! last input of a process that dies of it is in the journal.

use super::journaled::Journaled;
use super::layout::{EntryKind, of_line};
use crate::writer::JournalWriter;
use tickcast_reliability::control::Message;
use tickcast_reliability::delivery::{Deliver, LineId};
use tickcast_reliability::receive::Mirror;
use tickcast_reliability::session::{Action, Path, RemoteRequest, SubscriberCore, SubscriberInput};
use tickcast_reliability::types::{ChannelId, Nanos};
use tickcast_reliability::wire::headers_only;
use tickcast_reliability::wire::{CrcVerdict, Datagram, HEADER_LEN};

impl Journaled<SubscriberCore> {
    /// Notes an input and gives it to [`SubscriberCore::handle`].
    pub fn handle(&mut self, now: Nanos, input: SubscriberInput<'_>, mut on: &mut dyn Deliver) {
        let Some(journal) = &mut self.journal else {
            return self.core.handle(now, input, on);
        };
        journal.subscriber_input(&self.core, now, &input);
        let entry = journal.end();
        let datagram = match &input {
            SubscriberInput::Datagram { datagram, .. } => Some(*datagram),
            _ => None,
        };
        (self.core).handle(now, input, &mut journal.witness(&mut on));
        if let Some(datagram) = datagram {
            journal.mark_unreadable(entry, datagram);
        }
    }

    /// Handles bytes that came on a line, as [`SubscriberCore::handle_bytes`].
    #[inline(always)]
    pub fn handle_bytes(
        &mut self,
        now: Nanos,
        at: (ChannelId, LineId),
        bytes: &[u8],
        whole: bool,
        on: &mut impl Deliver,
    ) {
        let Some(journal) = &mut self.journal else {
            return self.core.handle_bytes(now, at, bytes, whole, on);
        };
        match self.core.checked(at.0, bytes, whole) {
            Ok((datagram, verdict)) => {
                let entry = journal.datagram(&self.core, now, at, &datagram, verdict);
                let mut on = journal.witness(on);
                (self.core).handle_datagram(now, at, &datagram, verdict, &mut on);
                if !on.has_delivered() {
                    journal.mark_unreadable(entry, &datagram);
                }
            }
            Err(_) => self.handle(now, SubscriberInput::malformed(at.0, at.1, bytes), on),
        }
    }

    /// Returns the next action, as [`SubscriberCore::poll_action`].
    pub fn poll_action(&mut self) -> Option<Action> {
        let action = self.core.poll_action()?;
        if let Some(journal) = &mut self.journal {
            journal.outputs.action(&action);
            journal.short_output(EntryKind::Action);
        }
        Some(action)
    }

    /// Appends queued frames to `out`, as [`SubscriberCore::poll_transmit`].
    pub fn poll_transmit(&mut self, out: &mut Vec<u8>) -> Option<Path> {
        let before = out.len();
        let path = self.core.poll_transmit(out)?;
        if let Some(journal) = &mut self.journal {
            let frames = &out[before..];
            journal.outputs.sent(path, frames);
            journal.sent(path as u8, frames);
        }
        Some(path)
    }

    /// Returns the next remote request, as [`SubscriberCore::poll_remote`].
    pub fn poll_remote(&mut self) -> Option<RemoteRequest> {
        let request = self.core.poll_remote()?;
        if let Some(journal) = &mut self.journal {
            journal.outputs.request(&request);
            journal.short_output(EntryKind::Request);
        }
        Some(request)
    }

    /// Polls the inboxes, as [`SubscriberCore::poll_written`].
    #[inline]
    pub fn poll_written(&mut self) -> Option<ChannelId> {
        self.core.poll_written()
    }

    /// Takes the mirror out of a channel, as [`SubscriberCore::take_mirror`].
    pub fn take_mirror(&mut self, channel: ChannelId) -> Option<Mirror> {
        self.core.take_mirror(channel)
    }
}

impl JournalWriter {
    /// Writes the entry of an input. Inputs that carry bytes keep them as they are; the others are written
    /// in their serialized form.
    fn subscriber_input(&mut self, core: &SubscriberCore, now: Nanos, input: &SubscriberInput<'_>) {
        match input {
            SubscriberInput::Datagram {
                channel,
                line,
                datagram,
                verdict,
            } => {
                self.datagram(core, now, (*channel, *line), datagram, *verdict);
            }
            SubscriberInput::Timeout => self.short(core, now, EntryKind::Timeout),
            SubscriberInput::Poll => self.short(core, now, EntryKind::Poll),
            SubscriberInput::Message {
                path,
                channel,
                message,
            } => self.message(core, now, (*path, *channel), message),
            SubscriberInput::Read { tag, bytes } => {
                let head = (EntryKind::Read, 0, self.outputs.check());
                self.long(core, now, head, [&tag.to_le_bytes(), bytes]);
            }
            // An inbox cannot be replayed, and its own entry says so.
            SubscriberInput::Written(_) => {}
            rare => self.input(core, now, rare),
        }
    }

    /// Writes the entry of a datagram and returns where it ends.
    // Always inline: a call would add a fifth to the cost of an entry.
    #[inline(always)]
    fn datagram(
        &mut self,
        core: &SubscriberCore,
        now: Nanos,
        (channel, line): (ChannelId, LineId),
        datagram: &Datagram<'_>,
        verdict: CrcVerdict,
    ) -> usize {
        let bytes = datagram.bytes();
        let line = if line.0 == 0 { 0 } else { of_line::B };
        let bad = match verdict {
            CrcVerdict::Good => 0,
            CrcVerdict::Bad => of_line::BAD,
            CrcVerdict::Unauthenticated => of_line::UNAUTHENTICATED,
        };
        match bytes.first_chunk::<HEADER_LEN>() {
            Some(header) if headers_only::is_enough(datagram) => {
                self.data(core, now, (line | bad, channel.0), header);
            }
            _ => {
                let head = (EntryKind::Other, line | bad, channel.0);
                self.long(core, now, head, [bytes, &[]]);
            }
        }
        self.end()
    }

    /// Notes in the entry that ends here that the records of its datagram are invalid, if they are.
    #[cold]
    fn mark_unreadable(&mut self, end: usize, datagram: &Datagram<'_>) {
        if headers_only::is_enough(datagram) && datagram.records().is_err() {
            self.set_bits(end, of_line::UNREADABLE);
        }
    }

    fn message(
        &mut self,
        core: &SubscriberCore,
        now: Nanos,
        (path, channel): (Path, ChannelId),
        message: &Message<'_>,
    ) {
        let frame = self.frame_of(channel, message);
        let head = (EntryKind::Message, path as u8, self.outputs.check());
        self.long(core, now, head, [&frame, &[]]);
        self.scratch = frame;
    }
}
