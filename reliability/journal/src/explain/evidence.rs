//! One walk through a journal: which datagrams were missing, when each gap was found and how it ended,
//! and everything that may explain it.

use std::collections::BTreeMap;

use super::publisher_view::{Sent, Serving};
use super::{Fate, Happening, How, Ranges};
use crate::replay::Witnessed;
use crate::{Dropped, EntryBody, Journal, JournalEntry, Note, RequestedRanges, Served};
use tickcast_reliability::control::{Message, RefusalReason, Welcome};
use tickcast_reliability::delivery::{Event, LineId, Loss, LossCause};
use tickcast_reliability::session::{Path, SubscriberInput};
use tickcast_reliability::types::{ChannelId, Epoch, Nanos, Sequence, SequenceRange};
use tickcast_reliability::wire::{
    CrcVerdict, Datagram, Header, Kind, StreamEvent, headers_only, relay_flags,
};

/// The evidence in one journal.
#[derive(Debug, Default)]
pub(super) struct Evidence {
    /// The boot id of the journal host; empty when unknown.
    pub(super) host: String,
    pub(super) channels: BTreeMap<ChannelId, Channel>,
    /// Times at which sent frames, perhaps with NACKs, were not fully recorded.
    pub(super) cut: Vec<Nanos>,
    /// End and duration of each stall of the application or the publish thread.
    pub(super) stalls: Vec<(Nanos, Nanos)>,
    pub(super) timeline: Vec<(Nanos, Happening)>,
    pub(super) from: Nanos,
    pub(super) to: Nanos,
    pub(super) damaged: Option<String>,
    pub(super) on_lines: [u64; LineId::MAX],
    pub(super) loss_events: u64,
    /// The datagrams that a publisher sent; empty in journals of other cores.
    pub(super) sent: Sent,
    /// The work of a repair service; `None` in journals of other cores.
    pub(super) serving: Option<Serving>,
}

/// The evidence for one channel.
#[derive(Debug, Default)]
pub(super) struct Channel {
    /// The current epoch, and the highest known sequence in it.
    epoch: Epoch,
    heard: Sequence,
    /// The newest sequence in the publisher's last status.
    status_newest: Option<Sequence>,
    /// Whether the journal holds the beginning of the channel.
    begun: bool,
    stale: bool,
    /// Number of lines on which the channel is received.
    pub(super) lines: usize,
    slot_len: usize,
    /// Arrival of the last datagram, and of the one before it.
    heard_at: Nanos,
    heard_before: Nanos,
    /// Sequences that the current entry shows to be missing.
    unheard: Option<SequenceRange>,
    /// Sequences received on each line in each epoch.
    pub(super) received: BTreeMap<(Epoch, LineId), Ranges>,
    /// Sequences received while their epoch was not the current one.
    pub(super) early: BTreeMap<Epoch, Ranges>,
    /// Sequences dropped or held back by an injected fault, by epoch and line.
    pub(super) injected: BTreeMap<(Epoch, LineId), Ranges>,
    /// Sequences sent before the subscriber joined.
    pub(super) history: BTreeMap<Epoch, Ranges>,
    /// Sequences overwritten in this host's ring before they were copied.
    pub(super) overrun: BTreeMap<Epoch, Ranges>,
    /// Sequences received without room in the window.
    pub(super) turned_away: BTreeMap<Epoch, Ranges>,
    pub(super) gaps: Vec<Gap>,
    /// Upper bound of the sequences in gaps: no gap holds a later one.
    last_missing: (Epoch, Sequence),
    /// Loss events emitted, including those outside any gap.
    pub(super) lost: Vec<(Nanos, Epoch, Loss)>,
    /// Losses that the publisher reported of its source.
    pub(super) sources: Vec<(Nanos, Epoch, Sequence, StreamEvent)>,
    /// When items of the local ring were overwritten, and how many.
    pub(super) overwritten: Vec<(Nanos, Sequence, u64)>,
    /// Datagrams with altered bytes: time, line, and the sequence in the header.
    pub(super) damaged: Vec<(Nanos, LineId, Sequence)>,
    pub(super) malformed: Vec<(Nanos, LineId)>,
    /// When the transport's drop counts increased, and by how much.
    pub(super) drops: Vec<(Nanos, Dropped)>,
    dropped: Dropped,
    /// Begin and end of each period without multicast.
    pub(super) silences: Vec<(Nanos, Nanos)>,
}

/// A run of sequences found missing.
#[derive(Debug)]
pub(super) struct Gap {
    pub(super) epoch: Epoch,
    pub(super) range: SequenceRange,
    pub(super) found_at: Nanos,
    pub(super) heard_before: Nanos,
    /// Fate of each sequence and when it was settled.
    pub(super) fates: BTreeMap<Sequence, (Fate, Nanos)>,
    /// Line of the datagram that revealed the gap; `None` when something else did.
    pub(super) found_on: Option<LineId>,
    /// For a gap revealed by something else: how long nothing had arrived before the next datagram.
    pub(super) silence: Option<Nanos>,
    /// Sequences that arrived on a line after the gap was found.
    pub(super) late: BTreeMap<(Sequence, LineId), Late>,
    /// The parts of the gap in each NACK.
    pub(super) asked: Vec<SequenceRange>,
    /// The parts that the publisher refused, and why.
    pub(super) refused: Vec<(SequenceRange, RefusalReason)>,
}

/// A datagram that arrived on its line after its gap was found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Late {
    pub(super) at: Nanos,
    /// Whether the line had brought a later sequence before it.
    pub(super) overtaken: bool,
}

impl Gap {
    fn new(epoch: Epoch, range: SequenceRange, found_at: Nanos, heard_before: Nanos) -> Self {
        Self {
            epoch,
            range,
            found_at,
            heard_before,
            fates: BTreeMap::new(),
            found_on: None,
            silence: None,
            late: BTreeMap::new(),
            asked: Vec::new(),
            refused: Vec::new(),
        }
    }
}

/// How the core handled the datagrams of an entry.
#[derive(Clone, Copy, Debug)]
struct Taken {
    /// Whether the core did not drop it, for want of room in the window or of valid records.
    is_kept: bool,
    /// Whether it may have filled a gap. Late and duplicate datagrams do not.
    fills: bool,
}

/// Longest range that is examined sequence by sequence.
pub(super) const GAP_LEN_MAX: u64 = 1 << 20;

impl Evidence {
    /// Collects the evidence of a whole journal.
    pub(super) fn of(journal: &Journal) -> Self {
        let mut evidence = Self {
            host: journal.origin().boot_id.clone(),
            damaged: journal.damage().map(|it| it.to_string()),
            ..Self::default()
        };
        let (mut began, witnessed) = (false, Witnessed::of(journal));
        for entry in journal.entries() {
            match entry {
                Ok(entry) => {
                    if !std::mem::replace(&mut began, true) {
                        evidence.from = entry.at;
                    }
                    evidence.to = entry.at;
                    let known = witnessed.knows(entry.place);
                    let taken = Taken {
                        is_kept: !witnessed.dropped.contains(&entry.place),
                        fills: !known || witnessed.filled.contains(&entry.place),
                    };
                    evidence.entry(&entry, taken);
                    let found = witnessed.found.get(&entry.place);
                    evidence.found(&entry, found.map_or(&[], |it| it), known);
                }
                Err(error) => evidence.damaged = Some(error.to_string()),
            }
        }
        evidence
    }

    /// Returns whether the journal is known to come from `host`.
    pub(super) fn is_of(&self, host: &str) -> bool {
        !host.is_empty() && self.host == host
    }

    /// Returns whether the journal holds the beginning of a channel.
    pub(super) fn channels_begun(&self, id: ChannelId) -> bool {
        self.channels.get(&id).is_some_and(|it| it.begun)
    }

    /// Returns whether sent frames between these times were not fully recorded.
    pub(super) fn is_cut_between(&self, from: Nanos, to: Nanos) -> bool {
        let next = self.cut.partition_point(|at| *at < from);
        self.cut.get(next).is_some_and(|at| *at <= to)
    }

    /// Returns the longest stall that had ended at `at` or shortly before.
    pub(super) fn stalled_before(&self, at: Nanos) -> Option<Nanos> {
        let stalls = self.stalls.iter();
        let near = stalls.filter(|(stall, span)| *stall <= at && at <= stall.after(*span));
        near.map(|(_, span)| *span).max()
    }

    /// Adds the gaps that an entry revealed. When `known`, the replayed core names them in `found`; otherwise
    /// this walk's own sequence tracking does.
    fn found(
        &mut self,
        entry: &JournalEntry<'_>,
        found: &[(ChannelId, Epoch, SequenceRange)],
        known: bool,
    ) {
        let line = match entry.what {
            EntryBody::Datagram { line, .. } => Some(line),
            _ => None,
        };
        for of in self.channels.values_mut() {
            if let Some(range) = of.unheard.take().filter(|_| !known) {
                of.missing(of.epoch, range, entry.at, line);
            }
        }
        for (channel, epoch, range) in found {
            let of = self.channels.entry(*channel).or_default();
            if range.len() <= GAP_LEN_MAX {
                of.missing(*epoch, *range, entry.at, line);
            }
        }
    }

    /// Processes an entry.
    fn entry(&mut self, entry: &JournalEntry<'_>, taken: Taken) {
        let at = entry.at;
        match &entry.what {
            EntryBody::Datagram {
                channel,
                line,
                verdict,
                kept,
                ..
            } => {
                let Some(header) = header_of(kept) else {
                    return;
                };
                let of = self.channels.entry(*channel).or_default();
                if *verdict == CrcVerdict::Bad {
                    return of.damaged.push((at, *line, header.sequence));
                }
                if *verdict == CrcVerdict::Unauthenticated {
                    // Anybody may have sent it, so it is evidence of nothing.
                    return;
                }
                self.on_lines[usize::from(line.0)] += 1;
                if header.channel == *channel {
                    of.datagram(at, *line, &header, taken);
                }
            }
            EntryBody::Message(_, path, channel, message) => {
                self.message(at, *path, *channel, message, taken);
            }
            EntryBody::Input(_, input) => self.input(at, input, taken),
            EntryBody::Sent(_, _, frames) => self.sent(at, frames),
            EntryBody::Event(emitted) => {
                let of = self.channels.entry(emitted.channel).or_default();
                of.event(at, emitted.epoch, emitted.sequence, &emitted.event);
                self.loss_events += u64::from(matches!(emitted.event, Event::Lost(_)));
                let words = Happening::Event(emitted.channel, emitted.event.to_string());
                self.timeline.push((at, words));
            }
            EntryBody::Note(note) => self.note(at, note),
            EntryBody::Action(_) | EntryBody::Request(_) | EntryBody::Unrecorded => {}
            what => self.of_publisher(at, what),
        }
    }

    fn of_publisher(&mut self, at: Nanos, what: &EntryBody<'_>) {
        match what {
            EntryBody::Sealed(_, header) => {
                if let Some(header) = headers_only::header_of(header) {
                    self.sent.sealed(&header);
                }
            }
            EntryBody::Posted(fan_out, up_to) => {
                let stalled = self.stalls.last().copied();
                let stalled = stalled.filter(|(stall, span)| at <= stall.after(*span));
                (self.sent).posted(at, *fan_out, *up_to, stalled.map(|(_, span)| span));
            }
            EntryBody::Published(published) => self.sent.published(at, published),
            EntryBody::Happened(event) => self.sent.happened(at, event),
            EntryBody::Heard(_, _, message) => {
                self.serving.get_or_insert_default().heard(message);
            }
            EntryBody::Said(_, _, message) => self.serving.get_or_insert_default().said(message),
            EntryBody::Repaired(peer, ..) => {
                let serving = self.serving.get_or_insert_default();
                match peer {
                    Some(_) => serving.given += 1,
                    None => serving.given_to_all += 1,
                }
            }
            EntryBody::Served(served) => {
                let serving = self.serving.get_or_insert_default();
                match served {
                    Served::Joined(..) => serving.joined += 1,
                    // A connection closed here could not announce its end, so its peer did not vanish.
                    Served::Left(peer, _, false) if !serving.closed.contains(peer) => {
                        serving.vanished += 1;
                    }
                    Served::TurnedAway(peer, _) => {
                        serving.turned_away += 1;
                        serving.closed.insert(*peer);
                    }
                    Served::Closed(peer, _) => {
                        serving.closed.insert(*peer);
                    }
                    _ => {}
                }
                self.timeline.push((at, Happening::Served(served.clone())));
            }
            _ => {}
        }
    }

    fn message(
        &mut self,
        at: Nanos,
        path: Path,
        channel: ChannelId,
        message: &Message<'_>,
        taken: Taken,
    ) {
        let how = match path {
            Path::Repair => How::Repair,
            Path::Replay => How::Replay,
            Path::Nack => How::Nack,
            Path::Read => How::Read,
        };
        match message {
            Message::Welcome(welcome) if path == Path::Repair => self.welcome(at, welcome),
            Message::Datagram(bytes) => {
                let of = self.channels.entry(channel).or_default();
                if let Some(header) = header_of(bytes) {
                    of.answered(at, &header, how, taken);
                }
            }
            Message::Refused(it) => {
                let of = self.channels.entry(channel).or_default();
                for (gap, part) in of.gaps_of(it.epoch, it.range) {
                    gap.refused.push((part, it.reason));
                }
            }
            Message::Status(status) => {
                let of = self.channels.entry(channel).or_default();
                if status.epoch == of.epoch {
                    let before = of.status_newest.replace(status.newest);
                    let believed = if of.stale { of.status_newest } else { before };
                    if let Some(newest) = believed {
                        of.heard_of(newest);
                    }
                }
            }
            _ => {}
        }
    }

    fn welcome(&mut self, at: Nanos, welcome: &Welcome) {
        let count = welcome.channels.len();
        self.timeline.push((at, Happening::Welcomed(count)));
        for offer in &welcome.channels {
            let of = self.channels.entry(offer.channel).or_default();
            of.slot_len = offer.slot_len as usize;
            if of.epoch != offer.epoch {
                // The events that follow report the losses of the epoch change.
                (of.epoch, of.heard, of.status_newest) = (offer.epoch, Sequence::NONE, None);
                of.begun = true;
            }
            if let Some(range) = SequenceRange::new(of.heard.next(), offer.newest)
                && offer.newest > of.heard
            {
                of.history.entry(offer.epoch).or_default().insert(range);
                of.heard = offer.newest;
            }
        }
    }

    /// Processes the bytes of a READ, which are slots unless they parse otherwise.
    fn brought(&mut self, at: Nanos, bytes: &[u8]) {
        for of in self.channels.values_mut().filter(|of| of.slot_len > 0) {
            for slot in bytes.chunks(of.slot_len) {
                match header_of(slot) {
                    Some(header) => of.came(at, header.epoch, header.sequence, How::Read),
                    None => break,
                }
            }
        }
    }

    fn input(&mut self, at: Nanos, input: &SubscriberInput<'_>, taken: Taken) {
        match *input {
            SubscriberInput::Read { bytes, .. } if taken.fills => self.brought(at, bytes),
            SubscriberInput::Malformed { channel, line, .. } => {
                let of = self.channels.entry(channel).or_default();
                of.malformed.push((at, line));
            }
            SubscriberInput::Overrun {
                channel,
                epoch,
                range,
            } => {
                let of = self.channels.entry(channel).or_default();
                of.overrun.entry(epoch).or_default().insert(range);
                if epoch == of.epoch {
                    of.heard_of(range.last);
                }
            }
            SubscriberInput::Listening { channel, lines } => {
                self.channels.entry(channel).or_default().lines = lines.into();
            }
            _ => {}
        }
    }

    /// Adds sent NACKs: their ranges are the gaps that the core knew of.
    fn sent(&mut self, at: Nanos, frames: &[u8]) {
        let asked = RequestedRanges::of(frames);
        for (channel, epoch, ranges) in &asked.nacks {
            let of = self.channels.entry(*channel).or_default();
            ranges.iter().for_each(|range| of.asked(*epoch, *range));
        }
        self.cut.extend(asked.is_cut.then_some(at));
    }

    fn note(&mut self, at: Nanos, note: &Note) {
        match *note {
            Note::Stall(span) => {
                self.stalls.push((at, span));
                self.timeline.push((at, Happening::Stall(span)));
            }
            Note::Dropped(channel, dropped) => {
                let of = self.channels.entry(channel).or_default();
                let before = std::mem::replace(&mut of.dropped, dropped);
                let more = Dropped {
                    buffer: dropped.buffer.saturating_sub(before.buffer),
                    oversize: dropped.oversize.saturating_sub(before.oversize),
                    q_key: dropped.q_key.saturating_sub(before.q_key),
                    restarts: dropped.restarts.saturating_sub(before.restarts),
                };
                of.drops.push((at, more));
                if more.buffer > 0 {
                    let drops = Happening::BufferDrops(channel, more.buffer);
                    self.timeline.push((at, drops));
                }
            }
            Note::Injected(channel, line, epoch, range) => {
                let of = self.channels.entry(channel).or_default();
                of.injected.entry((epoch, line)).or_default().insert(range);
            }
            Note::Overrun(channel, items) => {
                let of = self.channels.entry(channel).or_default();
                of.overwritten.push((at, of.heard, items));
            }
            Note::Sending(fan_out, line, sending) => {
                self.sent.counted(at, fan_out, line, sending);
            }
            Note::Unread(source, unread) => self.sent.unread(source, unread),
        }
    }
}

impl Channel {
    fn datagram(&mut self, at: Nanos, line: LineId, header: &Header, taken: Taken) {
        if self.epoch == Epoch::NONE && !self.begun {
            // The journal begins mid-stream, so earlier sequences are unknown.
            (self.epoch, self.heard) = (header.epoch, header.sequence);
        }
        if header.epoch != self.epoch {
            if header.kind.is_sequenced() {
                let early = self.early.entry(header.epoch).or_default();
                early.insert(SequenceRange::one(header.sequence));
            }
            return;
        }
        let heard_at = self.heard_at;
        let found_since = self.gaps.iter_mut().rev();
        let found_since = found_since.take_while(|gap| gap.found_at >= heard_at);
        for gap in found_since.filter(|gap| gap.found_on.is_none()) {
            gap.silence.get_or_insert(at.since(heard_at));
        }
        let sequenced = header.kind.is_sequenced();
        if sequenced {
            let resent = header.relay & relay_flags::RETRANSMITTED != 0;
            let overtaken = self.passed(line, header);
            let how = match (resent, overtaken) {
                (true, _) => How::Multicast,
                (false, true) => How::Late(line),
                (false, false) => How::OtherLine(line),
            };
            if taken.is_kept && taken.fills {
                self.came(at, header.epoch, header.sequence, how);
            }
            if !resent {
                if taken.is_kept {
                    self.came_late(at, line, header, overtaken);
                } else {
                    let turned_away = self.turned_away.entry(header.epoch).or_default();
                    turned_away.insert(SequenceRange::one(header.sequence));
                }
                let received = self.received.entry((header.epoch, line)).or_default();
                received.insert(SequenceRange::one(header.sequence));
            }
        }
        // A datagram that was dropped stays missing.
        let known = if sequenced && taken.is_kept {
            header.sequence.previous()
        } else {
            header.sequence
        };
        self.heard_of(known);
        self.heard = self.heard.max(header.sequence);
        self.heard_before = std::mem::replace(&mut self.heard_at, at);
    }

    /// Returns whether this line has already brought a later sequence.
    fn passed(&self, line: LineId, header: &Header) -> bool {
        let received = self.received.get(&(header.epoch, line));
        let highest = received.and_then(Ranges::highest);
        highest.is_some_and(|highest| highest > header.sequence)
    }

    /// Marks the sequences up to `last` as sent. Those above the highest known one are missing.
    fn heard_of(&mut self, last: Sequence) {
        if last > self.heard {
            let range = SequenceRange::new(self.heard.next(), last);
            self.unheard = range.filter(|range| range.len() <= GAP_LEN_MAX);
            self.heard = last;
        }
    }

    /// Adds a gap. `line` is the line of the datagram that revealed it; `None` when something else did.
    fn missing(&mut self, epoch: Epoch, range: SequenceRange, at: Nanos, line: Option<LineId>) {
        self.last_missing = self.last_missing.max((epoch, range.last));
        // Consecutive datagrams without room form one gap.
        let turned_away = self.turned_away.get(&epoch);
        let is_away = |it: Sequence| turned_away.is_some_and(|away| away.has(it));
        if let Some(gap) = self.gaps.last_mut()
            && (gap.epoch, gap.range.last.next()) == (epoch, range.first)
            && range.len() == 1
            && gap.range.len() < GAP_LEN_MAX
            && is_away(range.first)
            && is_away(gap.range.last)
        {
            gap.range.last = range.last;
            return;
        }
        let heard_before = match line {
            Some(_) => self.heard_before,
            None => self.heard_at,
        };
        self.gaps.push(Gap {
            found_on: line,
            ..Gap::new(epoch, range, at, heard_before)
        });
    }

    /// Returns the gaps of an epoch that overlap `range`, newest first, each with its overlap.
    fn gaps_of(
        &mut self,
        epoch: Epoch,
        range: SequenceRange,
    ) -> impl Iterator<Item = (&mut Gap, SequenceRange)> {
        let gaps = self.gaps.iter_mut().rev();
        let of = gaps.filter(move |gap| gap.epoch == epoch);
        of.filter_map(move |gap| {
            let part = gap.range.intersection(range)?;
            Some((gap, part))
        })
    }

    fn came(&mut self, at: Nanos, epoch: Epoch, sequence: Sequence, how: How) {
        // Fast path for the most frequent case: the sequence is in no gap.
        if (epoch, sequence) > self.last_missing {
            return;
        }
        if let Some((gap, _)) = self.gaps_of(epoch, SequenceRange::one(sequence)).next() {
            gap.fates.entry(sequence).or_insert((Fate::Came(how), at));
        }
    }

    /// Processes a datagram from a connection. A dropped one stays missing.
    fn answered(&mut self, at: Nanos, header: &Header, how: How, taken: Taken) {
        if taken.is_kept && taken.fills {
            self.came(at, header.epoch, header.sequence, how);
        }
        if header.epoch == self.epoch && header.kind.is_sequenced() {
            let known = match taken.is_kept {
                true => header.sequence.previous(),
                false => header.sequence,
            };
            self.heard_of(known);
            self.heard = self.heard.max(header.sequence);
        }
    }

    /// Notes that a line itself brought a missing datagram: it was not lost on that line.
    fn came_late(&mut self, at: Nanos, line: LineId, header: &Header, overtaken: bool) {
        let (epoch, sequence) = (header.epoch, header.sequence);
        if (epoch, sequence) > self.last_missing {
            return;
        }
        let late = Late { at, overtaken };
        if let Some((gap, _)) = self.gaps_of(epoch, SequenceRange::one(sequence)).next() {
            gap.late.entry((sequence, line)).or_insert(late);
        }
    }

    fn asked(&mut self, epoch: Epoch, range: SequenceRange) {
        for (gap, part) in self.gaps_of(epoch, range) {
            gap.asked.push(part);
        }
    }

    fn event(&mut self, at: Nanos, epoch: Epoch, sequence: Sequence, event: &Event) {
        match event {
            Event::Joined { after } if epoch != self.epoch || !self.begun => {
                (self.epoch, self.begun) = (epoch, true);
                self.heard = self.heard.max(*after);
            }
            Event::EpochChanged { to, .. } if *to != self.epoch => {
                (self.epoch, self.heard, self.status_newest) = (*to, sequence, None);
            }
            Event::EpochContinued { to, last, .. } if *to != self.epoch => {
                (self.epoch, self.heard, self.status_newest) = (*to, *last, None);
            }
            Event::Lost(loss) => self.lose(at, epoch, *loss),
            Event::Stale => self.stale = true,
            Event::Recovered => self.stale = false,
            Event::MulticastLost => self.silences.push((self.heard_at, Nanos::MAX)),
            Event::MulticastRestored => {
                if let Some((_, until)) = self.silences.last_mut() {
                    *until = at;
                }
            }
            Event::Stream(event @ StreamEvent::SourceLost { .. }) => {
                self.sources.push((at, epoch, sequence, event.clone()));
            }
            Event::Overrun(overrun) => {
                let items = overrun.records.saturating_add(overrun.events);
                self.overwritten.push((at, sequence, items));
            }
            _ => {}
        }
    }

    fn lose(&mut self, at: Nanos, epoch: Epoch, loss: Loss) {
        self.lost.push((at, epoch, loss));
        let fate = Fate::Lost(loss.cause);
        for (gap, part) in self.gaps_of(epoch, loss.sequences) {
            for sequence in part.iter() {
                match loss.cause {
                    // A fenced datagram was delivered, but came from another publisher.
                    LossCause::Fenced => {}
                    LossCause::Unreadable => {
                        gap.fates.insert(sequence, (fate, at));
                    }
                    _ => {
                        gap.fates.entry(sequence).or_insert((fate, at));
                    }
                }
            }
        }
    }
}

/// Returns the header when at least the header is present.
fn header_of(bytes: &[u8]) -> Option<Header> {
    let whole;
    let bytes = match Datagram::parse(bytes) {
        Ok(datagram) => return Some(*datagram.header()),
        Err(_) => {
            whole = headers_only::whole(bytes);
            &whole[..]
        }
    };
    let datagram = Datagram::parse(bytes).ok()?;
    (datagram.header().kind == Kind::Data).then(|| *datagram.header())
}
