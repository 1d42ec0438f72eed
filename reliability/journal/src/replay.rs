//! Runs a journal through the core again. The same inputs must give the same outputs; the replay names
//! the first difference.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use super::reader::{EntryBody, EntryPlace, Journal, JournalEntry, JournalReadError};
use super::{JournalOrigin, JournalSide, JournalWriter, Journaled, Outputs};
use crate::layout::JOURNAL_LEN_MIN;
use tickcast_reliability::delivery::{Deliver, Item};
use tickcast_reliability::session::{SubscriberCore, SubscriberInput};
use tickcast_reliability::types::{ChannelId, Epoch, Nanos, Sequence, SequenceRange, State};
use tickcast_reliability::wire::{CrcVerdict, Datagram, HEADER_LEN, headers_only};

/// The outcome of a replay.
pub struct Replayed<Core = Journaled<SubscriberCore>> {
    /// The core after the last input; `None` when nothing could be run.
    pub core: Option<Core>,
    /// The number of inputs that the core was given.
    pub inputs: u64,
    /// The number of the first input that could be run. No snapshot exists before it.
    pub first_input: u64,
    /// The counts of a subscriber's core where the journal begins, if it holds the state at that point.
    pub before: Option<GapCounts>,
    /// The first output that differs from the journal.
    pub difference: Option<Difference>,
    /// The reason why the replay stopped before the end of the journal.
    pub stopped: Option<Stopped>,
}

impl<Core> Replayed<Core> {
    /// Returns the outcome of a journal without a state to begin with.
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

    /// Passes the entries from this segment on to `take`, up to the first difference or the first entry
    /// that can't be run.
    pub(super) fn walk(
        journal: &Journal,
        segment: usize,
        mut take: impl FnMut(JournalEntry<'_>) -> Result<(), &'static str>,
    ) -> Self {
        let first_input = journal.segments().get(segment).map_or(0, |it| it.inputs);
        let mut walked = Self {
            core: None,
            inputs: 0,
            first_input,
            before: None,
            difference: None,
            stopped: None,
        };
        for entry in journal.entries_from(segment) {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => {
                    walked.stopped = Some(Stopped::Damaged(error));
                    break;
                }
            };
            if matches!(entry.what, EntryBody::Unrecorded) {
                walked.stopped = Some(Stopped::Unrecorded(entry.at));
                break;
            }
            walked.inputs += u64::from(entry.what.is_input());
            let (at, input, offset) = (entry.at, entry.inputs, entry.place.offset);
            if let Err(what) = take(entry) {
                walked.difference = Some(Difference {
                    at,
                    input,
                    offset,
                    what,
                });
                break;
            }
        }
        walked
    }
}

/// Counts of missing sequences, over all channels of a subscriber's core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GapCounts {
    /// Sequences found missing.
    pub missing: u64,
    /// Missing sequences that came after all.
    pub came: u64,
    /// Missing sequences that were declared lost.
    pub lost: u64,
    /// Missing sequences that are still open.
    pub open: u64,
}

impl GapCounts {
    /// Returns the current counts of a core.
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

/// The entry at which a replay and its journal differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The time of the entry: protocol time of the recording process.
    pub at: Nanos,
    /// The number of the input. All outputs before it were the same as far as they were compared.
    pub input: u64,
    /// The byte offset in the journal.
    pub offset: usize,
    /// The compared output.
    pub what: &'static str,
}

/// The reason why a replay stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// No segment has a snapshot, because the state did not fit or is a standby's.
    NoSnapshot,
    /// The journal does not hold an input at this time.
    Unrecorded(Nanos),
    /// The journal is damaged.
    Damaged(JournalReadError),
}

/// Returns a journal that keeps only the outputs of a replay.
fn witness(after: u64, keep_log: bool) -> Option<JournalWriter> {
    let area = Box::new(vec![0; JOURNAL_LEN_MIN]);
    let mut journal = JournalWriter::new(area, &JournalOrigin::default()).ok()?;
    journal.outputs = Outputs::after(after);
    if keep_log {
        journal.keep_log();
    }
    Some(journal)
}

/// Runs a journal from its first snapshot on. `keep_log` keeps every output in words. Deliveries go to
/// `on`; the values in their records are not those of the recorded run.
#[must_use]
pub fn replay(journal: &Journal, keep_log: bool, on: &mut impl Deliver) -> Replayed {
    run(journal, keep_log, on, |_, _| ())
}

/// The core's reaction to each entry that can be run, by the place of the entry.
#[derive(Debug, Default)]
pub(crate) struct Witnessed {
    /// The first and the last entry whose reaction is known.
    known: Option<RangeInclusive<EntryPlace>>,
    /// Datagrams that the core dropped, for want of room in the window or of valid records.
    pub(crate) dropped: BTreeSet<EntryPlace>,
    /// Entries that brought a missing sequence.
    pub(crate) filled: BTreeSet<EntryPlace>,
    /// The sequences that each entry showed to be missing.
    pub(crate) found: BTreeMap<EntryPlace, Vec<(ChannelId, Epoch, SequenceRange)>>,
}

/// The counts of one channel's receiver, and the highest sequence that it had seen.
type Counted = ([u64; 4], Sequence);

impl Witnessed {
    /// Returns the reactions of the core of a subscriber's journal.
    pub(crate) fn of(journal: &Journal) -> Self {
        let (mut all, mut before) = (Self::default(), Vec::new());
        run(journal, false, &mut |_: Item<'_>| (), |place, core| {
            if let Some(place) = place {
                let first = all.known.as_ref().map_or(place, |known| *known.start());
                all.known = Some(first..=place);
            }
            all.entry(place, core, &mut before);
        });
        all
    }

    /// Returns whether the core's reaction to the entry at this place is known.
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
                &counters.malformed_dropped,
            ];
            let now = (counted.map(|it| it.get()), receiver.progress().1);
            if before.len() <= index {
                before.resize(index + 1, None);
            }
            // A receiver of the snapshot has counted before.
            let (was, heard_before) = before[index].replace(now).unwrap_or(now);
            let ((counted, heard), Some(place)) = (now, place) else {
                continue;
            };
            if counted[1] > was[1] {
                self.filled.insert(place);
            }
            if counted[2..] != was[2..] {
                self.dropped.insert(place);
            }
            let count = counted[0].saturating_sub(was[0]);
            if count == 0 {
                continue;
            }
            // All sequences up to the highest seen are missing, except the one that came itself.
            let came = u64::from(heard.since(heard_before) > count);
            let last = heard.minus(came);
            if let Some(range) = SequenceRange::new(last.minus(count - 1), last) {
                let found = self.found.entry(place).or_default();
                found.push((receiver.channel(), receiver.epoch(), range));
            }
        }
    }
}

/// Runs a journal as [`replay`]. `after` gets the core at its beginning and after each entry.
fn run(
    journal: &Journal,
    keep_log: bool,
    on: &mut impl Deliver,
    mut after: impl FnMut(Option<EntryPlace>, &SubscriberCore),
) -> Replayed {
    let is_it = journal.side() == JournalSide::Subscriber;
    let mut segments = journal.segments().iter().enumerate().filter(|_| is_it);
    let begin = segments.find_map(|(nth, segment)| {
        let bytes = journal.snapshot(segment);
        Some((nth, segment, SubscriberCore::take_up(bytes)?))
    });
    let Some((nth, segment, core)) = begin else {
        return Replayed::nothing();
    };
    after(None, &core);
    let before = (nth == 0).then(|| GapCounts::of(&core));
    let mut core = Journaled::new(core);
    if let Some(witness) = witness(segment.digest, keep_log) {
        core.keep_journal(witness);
    }
    let mut run = Run {
        core,
        out: Vec::new(),
        at: segment.first_at,
    };
    let walked = Replayed::walk(journal, nth, |entry| {
        run.at = entry.at;
        run.entry(entry.what, on)?;
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
    core: Journaled<SubscriberCore>,
    out: Vec<u8>,
    at: Nanos,
}

impl Run {
    /// Gives the input of an entry to the core, or compares an output with the core's.
    fn entry(&mut self, what: EntryBody<'_>, on: &mut impl Deliver) -> Result<(), &'static str> {
        let (now, core) = (self.at, &mut self.core);
        match what {
            EntryBody::Datagram {
                channel,
                line,
                verdict,
                readable,
                kept,
            } => {
                let bytes = match <&[u8; HEADER_LEN]>::try_from(kept) {
                    // A bad CRC is found before the records are looked at.
                    Ok(_) => headers_only::whole_as(kept, readable && verdict == CrcVerdict::Good),
                    Err(_) => kept.to_vec(),
                };
                let aligned = &mut tickcast_reliability::record::AlignedCopy::default();
                let Ok(datagram) = Datagram::parse(aligned.of(&bytes)) else {
                    return Err("a datagram can't be rebuilt from its header");
                };
                let input = SubscriberInput::Datagram {
                    channel,
                    line,
                    datagram: &datagram,
                    verdict,
                };
                self.core.handle(now, input, on);
            }
            EntryBody::Message(check, path, channel, message) => {
                compare(core, check, "the outputs before a message")?;
                core.handle(now, SubscriberInput::message(path, channel, &message), on);
            }
            EntryBody::Input(check, input) => {
                compare(core, check, "the outputs before an input")?;
                core.handle(now, input, on);
            }
            EntryBody::Sent(path, check, frames) => {
                self.out.clear();
                let sent = core.poll_transmit(&mut self.out);
                if sent != Some(path) || !self.out.starts_with(frames) {
                    return Err("the frames that were sent");
                }
                compare(core, check, "the frames that were sent")?;
            }
            EntryBody::Action(check) => {
                core.poll_action().ok_or("a recorded action")?;
                compare(core, check, "the recorded action")?;
            }
            EntryBody::Request(check) => {
                core.poll_remote().ok_or("a recorded request")?;
                compare(core, check, "the recorded request")?;
            }
            EntryBody::Event(_) | EntryBody::Note(_) => {}
            _ => return Err("an entry of another core"),
        }
        Ok(())
    }
}

fn compare(
    core: &Journaled<SubscriberCore>,
    check: u16,
    what: &'static str,
) -> Result<(), &'static str> {
    match core.outputs() {
        Some(outputs) if outputs.check() == check => Ok(()),
        _ => Err(what),
    }
}
