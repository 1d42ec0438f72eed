//! A record run through the core again: the same inputs must give the same outputs, and where they do
//! not, the first that differs is named.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use super::reader::{EntryBody, EntryPlace, Journal, JournalEntry, JournalReadError};
use super::{
    Emitted, JournalInput, JournalOrigin, JournalSide, JournalWriter, JournaledCore, Outputs,
};
use crate::layout::RECORD_LEN_MIN;
use tickcast_reliability::delivery::{Deliver, Event, Item, LossCause, Via};
use tickcast_reliability::session::SubscriberCore;
use tickcast_reliability::types::{ChannelId, Epoch, Nanos, Sequence, SequenceRange};
use tickcast_reliability::wire::{CrcVerdict, Datagram, HEADER_LEN, SEQUENCE_OFFSET, headers_only};

/// What a replay came to.
pub struct Replayed<Core = JournaledCore> {
    /// The core as it stands after the last input; `None` when nothing could be run.
    pub core: Option<Core>,
    /// How many inputs it was given.
    pub inputs: u64,
    /// The number of the first input that could be run: before it there is no snapshot.
    pub first_input: u64,
    /// What a subscriber's core had counted when the record begins, where its state of then is in it.
    pub before: Option<GapCounts>,
    /// The first thing that came out otherwise than it was recorded.
    pub difference: Option<Difference>,
    /// Why the record could not be run to its end, where it could not.
    pub stopped: Option<Stopped>,
}

impl<Core> Replayed<Core> {
    /// There is no state to begin with.
    pub(super) const fn nothing() -> Self {
        Self {
            core: None,
            inputs: 0,
            first_input: 0,
            before: None,
            difference: None,
            stopped: Some(Stopped::NoSnapshot),
        }
    }

    /// Gives `take` the entries from this segment on, up to the first of which something else came, or
    /// that can't be run.
    pub(super) fn walk(
        recording: &Journal,
        segment: usize,
        mut take: impl FnMut(&JournalEntry<'_>) -> Result<(), &'static str>,
    ) -> Self {
        let first_input = recording.segments().get(segment).map_or(0, |it| it.inputs);
        let mut walked = Self {
            core: None,
            inputs: 0,
            first_input,
            before: None,
            difference: None,
            stopped: None,
        };
        for entry in recording.entries_from(segment) {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => {
                    walked.stopped = Some(Stopped::Damaged(error));
                    break;
                }
            };
            if matches!(entry.what, EntryBody::Input(JournalInput::Unrecorded)) {
                walked.stopped = Some(Stopped::Unrecorded(entry.at));
                break;
            }
            walked.inputs += u64::from(entry.what.is_input());
            if let Err(what) = take(&entry) {
                walked.difference = Some(Difference {
                    at: entry.at,
                    input: entry.inputs,
                    offset: entry.place.offset,
                    what,
                });
                break;
            }
        }
        walked
    }
}

/// What a subscriber's core counted of what was missing, in sequences of all its channels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GapCounts {
    /// Found missing.
    pub missing: u64,
    /// Of those, what came after all.
    pub came: u64,
    /// Of those, what was declared lost.
    pub lost: u64,
    /// Of those, what is still open.
    pub open: u64,
}

impl GapCounts {
    /// As they stand now.
    #[must_use]
    pub fn of(core: &SubscriberCore) -> Self {
        core.counters().fold(Self::default(), |sum, it| Self {
            missing: sum.missing.saturating_add(it.missing_datagrams.get()),
            came: sum.came.saturating_add(it.missing_recovered.get()),
            lost: sum.lost.saturating_add(it.missing_lost.get()),
            open: sum.open.saturating_add(it.missing_open.get()),
        })
    }
}

/// Where a replay left the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Difference {
    /// When it was, protocol time of who recorded.
    pub at: Nanos,
    /// All outputs of the inputs before this one were the same as far as the last look.
    pub input: u64,
    /// Where in the record.
    pub offset: usize,
    /// What was compared.
    pub what: &'static str,
}

/// Why a replay stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// No segment has a snapshot: the state did not fit, or it is a standby's.
    NoSnapshot,
    /// Something happened that a record does not hold.
    Unrecorded(Nanos),
    /// The record is damaged.
    Damaged(JournalReadError),
}

/// Nothing is kept of a replay but its outputs.
fn witness(after: u64, keep_log: bool) -> Option<JournalWriter> {
    let area = Box::new(vec![0; RECORD_LEN_MIN]);
    let mut recorder = JournalWriter::new(area, &JournalOrigin::default()).ok()?;
    recorder.outputs = Outputs::after(after);
    if keep_log {
        recorder.keep_log();
    }
    Some(recorder)
}

/// Runs what can be run of a record: from its first snapshot on. `keep_log` keeps every output in
/// words. What is delivered goes to `on`; the values in its records are not those of then.
#[must_use]
pub fn replay(recording: &Journal, keep_log: bool, on: &mut impl Deliver) -> Replayed {
    run(recording, keep_log, on, |_, _| ())
}

/// What the core did with each entry, by where the entry stands, as far as the record can be run.
#[derive(Debug, Default)]
pub(crate) struct Witnessed {
    /// Of which entries that is known: the first and the last of them.
    known: Option<RangeInclusive<EntryPlace>>,
    /// Datagrams for which the window had no room.
    pub(crate) no_room: BTreeSet<EntryPlace>,
    /// What brought something that was missing.
    pub(crate) filled: BTreeSet<EntryPlace>,
    /// What was found missing.
    pub(crate) found: BTreeMap<EntryPlace, Vec<(ChannelId, Epoch, SequenceRange)>>,
}

/// What one channel's receiver had counted, and the highest sequence it had heard of.
type Counted = ([u64; 3], Sequence);

impl Witnessed {
    /// What the core of a subscriber's record did.
    pub(crate) fn of(recording: &Journal) -> Self {
        let (mut all, mut before) = (Self::default(), Vec::new());
        run(recording, false, &mut |_: Item<'_>| (), |place, core| {
            if let Some(place) = place {
                let first = all.known.as_ref().map_or(place, |known| *known.start());
                all.known = Some(first..=place);
            }
            all.entry(place, core, &mut before);
        });
        all
    }

    /// Whether it is known what the core did with the entry that stands there.
    pub(crate) fn knows(&self, place: EntryPlace) -> bool {
        let known = self.known.as_ref();
        known.is_some_and(|known| known.contains(&place))
    }

    fn entry(
        &mut self,
        place: Option<EntryPlace>,
        core: &SubscriberCore,
        before: &mut Vec<Option<Counted>>,
    ) {
        let receivers = core.entries().enumerate();
        for (index, receiver) in receivers.filter_map(|(index, it)| Some((index, it?))) {
            let counters = receiver.counters();
            let counted = [
                &counters.missing_datagrams,
                &counters.missing_recovered,
                &counters.window_full_dropped,
            ];
            let now = (counted.map(|it| it.get()), receiver.progress().1);
            if before.len() <= index {
                before.resize(index + 1, None);
            }
            // One that a record begins with has counted before.
            let (was, heard_before) = before[index].replace(now).unwrap_or(now);
            let ((counted, heard), Some(place)) = (now, place) else {
                continue;
            };
            if counted[1] > was[1] {
                self.filled.insert(place);
            }
            if counted[2] > was[2] {
                self.no_room.insert(place);
            }
            let count = counted[0].saturating_sub(was[0]);
            if count == 0 {
                continue;
            }
            // All up to what is heard of now, but for what shows it by having come itself.
            let came = u64::from(heard.since(heard_before) > count);
            let last = heard.minus(came);
            if let Some(range) = SequenceRange::new(last.minus(count - 1), last) {
                let found = self.found.entry(place).or_default();
                found.push((receiver.channel(), receiver.epoch(), range));
            }
        }
    }
}

/// See [`replay`]; `after` is shown the core as it begins, and once it has what an entry holds.
fn run(
    recording: &Journal,
    keep_log: bool,
    on: &mut impl Deliver,
    mut after: impl FnMut(Option<EntryPlace>, &SubscriberCore),
) -> Replayed {
    let is_it = recording.side() == JournalSide::Subscriber;
    let mut segments = recording.segments().iter().enumerate().filter(|_| is_it);
    let begin = segments.find_map(|(nth, segment)| {
        let bytes = recording.snapshot(segment);
        Some((nth, segment, SubscriberCore::take_up(bytes)?))
    });
    let Some((nth, segment, core)) = begin else {
        return Replayed::nothing();
    };
    after(None, &core);
    let before = (nth == 0).then(|| GapCounts::of(&core));
    let mut core = JournaledCore::of(core);
    if let Some(witness) = witness(segment.digest, keep_log) {
        core.record(witness);
    }
    let mut run = Run {
        unreadable: unreadable(recording),
        core,
        out: Vec::new(),
        at: segment.first_at,
    };
    let walked = Replayed::walk(recording, nth, |entry| {
        run.at = entry.at;
        run.entry(&entry.what, on)?;
        after(Some(entry.place), &run.core);
        Ok(())
    });
    Replayed {
        core: Some(run.core),
        before,
        ..walked
    }
}

struct Run {
    core: JournaledCore,
    unreadable: BTreeSet<(Epoch, Sequence)>,
    out: Vec<u8>,
    at: Nanos,
}

impl Run {
    /// Gives the core what an entry says it was given, and compares what it says came out.
    fn entry(&mut self, what: &EntryBody<'_>, on: &mut impl Deliver) -> Result<(), &'static str> {
        let (now, core) = (self.at, &mut self.core);
        match what {
            EntryBody::Datagram {
                channel,
                line,
                verdict,
                kept,
            } => {
                let bytes = self.whole(kept, *verdict);
                let aligned = &mut tickcast_reliability::record::AlignedCopy::default();
                let Ok(datagram) = Datagram::parse(aligned.of(&bytes)) else {
                    return Err("a datagram can't be put together from its header");
                };
                let via = Via::Line(*line);
                self.core
                    .handle_recorded(now, *channel, via, &datagram, *verdict, on);
            }
            EntryBody::Look(check) => {
                compare(core, *check, "what came out before the clock was told")?;
                core.handle_timeout(now, on);
            }
            EntryBody::Ask(check) => {
                compare(core, *check, "what came out before frames were asked for")?;
                self.out.clear();
                let _ = core.poll_transmit(now, &mut self.out, on);
            }
            EntryBody::Sent(_, check, frames) => {
                if !self.out.starts_with(frames) {
                    return Err("the frames that were sent");
                }
                compare(core, *check, "the frames that were sent")?;
            }
            EntryBody::Message(path, channel, message) => {
                core.handle_message(now, *path, *channel, message, on);
            }
            EntryBody::Remote(tag, bytes) => core.handle_read(now, *tag, bytes, on),
            EntryBody::Input(input) => give(core, now, input, on),
            EntryBody::Action(check) => {
                core.poll_action().ok_or("an action that was taken")?;
                compare(core, *check, "the action that was taken")?;
            }
            EntryBody::Request(check) => {
                core.poll_remote().ok_or("a request that was taken")?;
                compare(core, *check, "the request that was taken")?;
            }
            EntryBody::Told(_) | EntryBody::Note(_) => {}
            _ => return Err("an entry of another core"),
        }
        Ok(())
    }

    fn whole(&self, kept: &[u8], verdict: CrcVerdict) -> Vec<u8> {
        let word = |at: usize| {
            let word = kept.get(at..at + 8).and_then(|it| it.first_chunk());
            u64::from_le_bytes(word.copied().unwrap_or_default())
        };
        let at = (Epoch(word(8)), Sequence(word(SEQUENCE_OFFSET)));
        let readable = verdict == CrcVerdict::Good && !self.unreadable.contains(&at);
        if kept.len() == HEADER_LEN {
            headers_only::whole_as(kept, readable)
        } else {
            kept.to_vec()
        }
    }
}

fn compare(core: &JournaledCore, check: u16, what: &'static str) -> Result<(), &'static str> {
    match core.outputs() {
        Some(outputs) if outputs.check() == check => Ok(()),
        _ => Err(what),
    }
}

fn give(core: &mut JournaledCore, now: Nanos, input: &JournalInput, on: &mut impl Deliver) {
    match *input {
        JournalInput::Use(nack, read, inboxes) => {
            nack.into_iter().for_each(|it| core.use_nack_path(it));
            read.into_iter().for_each(|it| core.use_read_path(it));
            inboxes.into_iter().for_each(|it| core.use_inboxes(it));
        }
        JournalInput::Connected(path) => core.handle_connected(now, path),
        JournalInput::Disconnected(path, reason) => core.handle_disconnected(now, path, reason, on),
        JournalInput::NackUnusable => core.handle_nack_unusable(now),
        JournalInput::ReadUnusable => core.handle_read_unusable(now),
        JournalInput::Limits(limits) => core.set_read_limits(limits),
        JournalInput::Malformed(channel, line, _) => {
            core.handle_received(now, channel, line, &[], on);
        }
        JournalInput::Stranger(channel) => core.handle_stranger(channel),
        JournalInput::Overrun(channel, epoch, range) => {
            core.handle_overrun(now, channel, (epoch, range), on);
        }
        JournalInput::Listening(channel, lines) => {
            core.handle_listening(now, channel, lines.into());
        }
        JournalInput::Leave(cause) => core.leave(cause, on),
        JournalInput::Rejoin(channel, start) => {
            core.rejoin(now, channel, start, on);
        }
        JournalInput::Unrecorded => {}
    }
}

/// The datagrams whose records could not be read, as the core found when it came to them.
fn unreadable(recording: &Journal) -> BTreeSet<(Epoch, Sequence)> {
    let told = recording
        .entries()
        .filter_map(|entry| match entry.ok()?.what {
            EntryBody::Told(Emitted {
                epoch,
                event: Event::Lost(loss),
                ..
            }) if loss.cause == LossCause::Unreadable => Some((epoch, loss.sequences.first)),
            _ => None,
        });
    told.collect()
}
