//! Losses reported beyond the last confirmation, and source messages that events there claimed: all of
//! them are void if an impostor is proven (docs/PROTOCOL.md §5.5).

use std::collections::VecDeque;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::delivery::{Loss, LossCause};
use crate::types::{Counter, ReceiverCounters, RecordNumber, Sequence, SequenceRange};

/// The number of losses that are kept although they cannot become void: their size can still be corrected.
const KEPT: usize = 1024;

/// A loss that was reported, of which the records follow from the datagrams beside it.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Reported {
    sequences: SequenceRange,
    /// The number of its first record, where known.
    first_record: Option<RecordNumber>,
    /// The number of the record behind it, where known.
    next_record: Option<RecordNumber>,
    records: u64,
    cause: LossCause,
}

/// A loss whose size followed from a forged datagram beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Corrected {
    pub sequences: SequenceRange,
    /// The number of records that was reported.
    pub reported: u64,
    /// The right number.
    pub records: u64,
}

impl Reported {
    /// Returns whether `next` is lost behind it, and the number of the record between them is known.
    fn is_before(&self, next: &Self) -> bool {
        let is_known = self.next_record.is_some() && next.first_record.is_some();
        is_known && self.sequences.last.next() == next.sequences.first
    }

    /// Counts the records between these numbers. Returns the correction, if their number changes.
    fn recount(&mut self, first: RecordNumber, next: RecordNumber) -> Option<Corrected> {
        let before = self.next_record?.since(self.first_record?);
        let reported = self.records;
        // By the difference, because records that an earlier epoch delivered do not count.
        self.records = (reported.saturating_add(next.since(first))).saturating_sub(before);
        (self.first_record, self.next_record) = (Some(first), Some(next));
        (self.records != reported).then_some(Corrected {
            sequences: self.sequences,
            reported,
            records: self.records,
        })
    }
}

/// Records that were delivered, lost and fenced, and source messages lost, up to the sequence `last`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Tally {
    last: Sequence,
    delivered: u64,
    lost: u64,
    fenced: u64,
    source_messages: u64,
}

/// Losses and claims that were reported lately.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Revocable {
    /// Ascending.
    losses: VecDeque<Reported>,
    /// Everything up to here was confirmed, so that its losses stand.
    confirmed: Sequence,
    /// Contents that cannot be delivered although they came, with the number of their records.
    contents: VecDeque<(Sequence, u64)>,
    source_losses: VecDeque<(Sequence, u64)>,
    /// The counts up to the last confirmation, while nothing can be confirmed.
    base: Option<Tally>,
}

impl Revocable {
    /// Notes a loss that is being reported, with the number of its first record and of the record behind it.
    /// `oldest`: what lies below cannot become void.
    pub(crate) fn note_loss(
        &mut self,
        loss: &Loss,
        (first_record, next_record): (Option<RecordNumber>, Option<RecordNumber>),
        oldest: Sequence,
    ) {
        let records = loss.records.unwrap_or(0);
        let (sequences, cause) = (loss.sequences, loss.cause);
        if matches!(cause, LossCause::Fenced | LossCause::Unreadable) {
            drop_front(&mut self.contents, |(it, _)| *it < oldest);
            self.contents.push_back((sequences.first, records));
        } else {
            self.drop_losses(|it| it.sequences.last < oldest);
            self.losses.push_back(Reported {
                sequences,
                first_record,
                next_record,
                records,
                cause,
            });
        }
        if let Some(base) = self.base_of(loss.sequences.first) {
            base.lost = base.lost.saturating_add(records);
        }
    }

    /// The record `found` begins `sequence`: corrects the sizes of the losses that end before it, and returns
    /// the corrections.
    pub(crate) fn correct_losses_before(
        &mut self,
        sequence: Sequence,
        found: RecordNumber,
        counters: &ReceiverCounters,
    ) -> Vec<Corrected> {
        let losses = &self.losses;
        let end = losses.partition_point(|it| it.sequences.last < sequence);
        let Some(mut first) = end.checked_sub(1) else {
            return Vec::new();
        };
        if losses[first].sequences.last.next() != sequence {
            return Vec::new();
        }
        while first > 0 && losses[first - 1].is_before(&losses[first]) {
            first -= 1;
        }
        let from = losses[first].first_record;
        self.recount(first..end, from, Some(found), counters)
    }

    /// The record `found` follows `sequence`: corrects the sizes of the losses that begin behind it, and
    /// returns the corrections.
    pub(crate) fn correct_losses_behind(
        &mut self,
        sequence: Sequence,
        found: RecordNumber,
        counters: &ReceiverCounters,
    ) -> Vec<Corrected> {
        let losses = &self.losses;
        let first = losses.partition_point(|it| it.sequences.first <= sequence);
        let begins = |it: &Reported| it.sequences.first == sequence.next();
        if !losses.get(first).is_some_and(begins) {
            return Vec::new();
        }
        let mut end = first + 1;
        while end < losses.len() && losses[end - 1].is_before(&losses[end]) {
            end += 1;
        }
        let to = losses[end - 1].next_record;
        self.recount(first..end, Some(found), to, counters)
    }

    /// Counts the records of adjacent losses anew, which are those between these two. How they divide among
    /// the losses is known no better than before.
    fn recount(
        &mut self,
        run: Range<usize>,
        first: Option<RecordNumber>,
        next: Option<RecordNumber>,
        counters: &ReceiverCounters,
    ) -> Vec<Corrected> {
        let (Some(mut from), Some(next)) = (first, next) else {
            return Vec::new();
        };
        let mut corrected = Vec::new();
        for at in run.clone() {
            let loss = &mut self.losses[at];
            let to = match loss.next_record {
                Some(between) if at + 1 < run.end => between.min(next).max(from),
                _ => next,
            };
            corrected.extend(loss.recount(from, to));
            from = to;
        }
        for it in &corrected {
            self.count_correction(it, counters);
        }
        corrected
    }

    /// Counts the difference. A number that was too large cannot be taken back from a count of losses, so it
    /// counts as fenced.
    fn count_correction(&mut self, corrected: &Corrected, counters: &ReceiverCounters) {
        let first = corrected.sequences.first;
        let more = corrected.records.saturating_sub(corrected.reported);
        let less = corrected.reported.saturating_sub(corrected.records);
        counters.lost_records.add(more);
        counters.fenced_records.add(less);
        if let Some(base) = &mut self.base {
            let lost = if first <= base.last { more } else { less };
            base.lost = base.lost.saturating_add(lost);
            base.fenced = base.fenced.saturating_add(less);
        }
    }

    /// Another epoch goes on behind `last` with the record `next_record`, and publishes again what was lost
    /// beyond. Corrects the losses that end with `end`, as far as nothing was delivered behind them. Returns
    /// the number of their first record, and the corrections.
    pub(crate) fn void_last_losses(
        &mut self,
        mut end: Sequence,
        (last, next_record): (Sequence, RecordNumber),
        counters: &ReceiverCounters,
    ) -> (Option<RecordNumber>, Vec<Corrected>) {
        let (mut first_record, mut corrected) = (None, Vec::new());
        let is_void = |it: &mut Reported, end| it.sequences.last == end && end > last;
        while let Some(mut loss) = self.losses.pop_back_if(|it| is_void(it, end)) {
            end = loss.sequences.first.previous();
            first_record = loss.first_record;
            let first = loss.first_record.unwrap_or(next_record);
            corrected.extend(loss.recount(first, first.max(next_record)));
        }
        for it in &corrected {
            self.count_correction(it, counters);
        }
        (first_record, corrected)
    }

    /// Notes records that were delivered with a sequence.
    pub(crate) fn note_delivered(&mut self, sequence: Sequence, records: u64) {
        if let Some(base) = self.base_of(sequence) {
            base.delivered = base.delivered.saturating_add(records);
        }
    }

    /// Notes records of a sequence that were delivered and are fenced.
    pub(crate) fn note_fenced(&mut self, sequence: Sequence, records: u64) {
        if let Some(base) = self.base_of(sequence) {
            base.fenced = base.fenced.saturating_add(records);
        }
    }

    /// Returns the counts up to the last confirmation, if this sequence is one of them.
    fn base_of(&mut self, sequence: Sequence) -> Option<&mut Tally> {
        self.base.as_mut().filter(|base| sequence <= base.last)
    }

    /// Counts source messages that an event claims to be lost. `oldest`: as for a loss.
    pub(crate) fn count_source_loss(
        &mut self,
        sequence: Sequence,
        messages: u64,
        oldest: Sequence,
        counters: &ReceiverCounters,
    ) {
        drop_front(&mut self.source_losses, |(it, _)| *it < oldest);
        // As far as the counter does not saturate, so that it can be taken back.
        let counter = &counters.source_messages_lost;
        let messages = messages.min(u64::MAX - counter.get());
        counter.add(messages);
        self.source_losses.push_back((sequence, messages));
        if let Some(base) = self.base_of(sequence) {
            base.source_messages = base.source_messages.saturating_add(messages);
        }
    }

    /// The event of this sequence was forged: takes its source loss back.
    pub(crate) fn revoke_source_loss(&mut self, sequence: Sequence, counters: &ReceiverCounters) {
        let all = self.source_losses.iter();
        let forged = all.filter(|(it, _)| *it == sequence);
        let messages = forged.fold(0, |sum: u64, (_, messages)| sum.saturating_add(*messages));
        self.source_losses.retain(|(it, _)| *it != sequence);
        take_back(&counters.source_messages_lost, messages);
        if let Some(base) = self.base_of(sequence) {
            base.source_messages = base.source_messages.saturating_sub(messages);
        }
    }

    /// Everything up to `last` is confirmed, so that its losses stand. Their sizes may still be corrected.
    pub(crate) fn confirm_losses(&mut self, last: Sequence) {
        self.drop_losses(|it| it.sequences.last <= last);
        drop_front(&mut self.contents, |(it, _)| *it <= last);
        self.confirmed = self.confirmed.max(last);
        self.base = None;
    }

    /// Drops the oldest losses beyond [`KEPT`], as far as they cannot become void.
    fn drop_losses(&mut self, is_over: impl Fn(&Reported) -> bool) {
        while self.losses.len() > KEPT && self.losses.front().is_some_and(&is_over) {
            self.losses.pop_front();
        }
    }

    /// Nothing can be confirmed from now on. `delivered`: records delivered beyond `last`, the last
    /// sequence confirmed.
    pub(crate) fn suspend(&mut self, last: Sequence, delivered: u64, counters: &ReceiverCounters) {
        let lost = self.lost_beyond(last);
        let claimed = self.claimed_beyond(last);
        self.base.get_or_insert(Tally {
            last,
            delivered: counters.delivered_records.get().saturating_sub(delivered),
            lost: counters.lost_records.get().saturating_sub(lost),
            fenced: counters.fenced_records.get(),
            source_messages: counters.source_messages_lost.get().saturating_sub(claimed),
        });
    }

    /// Removes and returns a loss that begins up to `last` and reaches it: its size followed from what
    /// lies beyond, so it is reported anew. Returns its sequences up to `last`, the number of its first
    /// record, and its cause.
    pub(crate) fn take_last_loss(
        &mut self,
        last: Sequence,
        counters: &ReceiverCounters,
    ) -> Option<(SequenceRange, Option<RecordNumber>, LossCause)> {
        let reaches = |it: &Reported| it.sequences.first <= last && it.sequences.last >= last;
        let at = self.losses.iter().position(reaches)?;
        let loss = self.losses.remove(at)?;
        counters.fenced_records.add(loss.records);
        let sequences = SequenceRange {
            last,
            ..loss.sequences
        };
        Some((sequences, loss.first_record, loss.cause))
    }

    /// Everything beyond `last` is void: takes back what its losses and events counted, and returns the
    /// number of delivered records beyond. `delivered`: that number, or `None` if the contents are no
    /// longer remembered; then `last` is the last sequence confirmed before the connection was down.
    pub(crate) fn revoke(
        &mut self,
        last: Sequence,
        delivered: Option<u64>,
        counters: &ReceiverCounters,
    ) -> u64 {
        let mut lost = self.lost_beyond(last);
        let mut claimed = self.claimed_beyond(last);
        let stands = self.confirmed.max(last);
        self.losses.retain(|it| it.sequences.first <= stands);
        self.contents.retain(|(it, _)| *it <= last);
        self.source_losses.retain(|(it, _)| *it <= last);
        let base = self.base.take();
        let delivered = match (delivered, base) {
            (None, Some(base)) => {
                lost = counters.lost_records.get().saturating_sub(base.lost);
                let now = counters.source_messages_lost.get();
                claimed = now.saturating_sub(base.source_messages);
                let fenced = counters.fenced_records.get().saturating_sub(base.fenced);
                let delivered = counters.delivered_records.get();
                delivered
                    .saturating_sub(base.delivered)
                    .saturating_sub(fenced)
            }
            (delivered, _) => delivered.unwrap_or(0),
        };
        take_back(&counters.source_messages_lost, claimed);
        counters.fenced_records.add(delivered.saturating_add(lost));
        delivered
    }

    /// Forgets everything, at a change of epoch.
    pub(crate) fn clear(&mut self) {
        self.losses.clear();
        self.confirmed = Sequence::NONE;
        self.contents.clear();
        self.source_losses.clear();
        self.base = None;
    }

    /// Returns how many records the losses beyond `last` counted whose sequences are remembered with their
    /// contents although these were not delivered.
    pub(crate) fn undelivered_beyond(&self, last: Sequence) -> u64 {
        sum_beyond(&self.contents, last)
    }

    /// Returns how many source messages the events beyond `last` counted.
    fn claimed_beyond(&self, last: Sequence) -> u64 {
        sum_beyond(&self.source_losses, last)
    }

    /// Returns how many records the losses beyond `last` counted.
    fn lost_beyond(&self, last: Sequence) -> u64 {
        let void = self.confirmed.max(last);
        let beyond = self.losses.iter().filter(|it| it.sequences.first > void);
        let lost = beyond.fold(0, |sum: u64, it| sum.saturating_add(it.records));
        lost.saturating_add(self.undelivered_beyond(last))
    }
}

/// Drops the entries at the front that are over.
fn drop_front<T>(entries: &mut VecDeque<T>, is_over: impl Fn(&T) -> bool) {
    while entries.front().is_some_and(&is_over) {
        entries.pop_front();
    }
}

/// Returns the sum of the entries beyond `last`.
fn sum_beyond(entries: &VecDeque<(Sequence, u64)>, last: Sequence) -> u64 {
    let beyond = entries.iter().filter(|(it, _)| *it > last);
    beyond.fold(0, |sum, (_, n)| sum.saturating_add(*n))
}

/// Takes back what was counted before.
fn take_back(counter: &Counter, n: u64) {
    counter.set(counter.get().saturating_sub(n));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(of: &mut Revocable, (first, last): (u64, u64), records: u64, c: &ReceiverCounters) {
        let loss = Loss {
            sequences: SequenceRange::new(Sequence(first), Sequence(last)).unwrap(),
            records: Some(records),
            cause: LossCause::Deadline,
        };
        c.lost_records.add(records);
        let numbers = (
            Some(RecordNumber(first)),
            Some(RecordNumber(first.saturating_add(records))),
        );
        of.note_loss(&loss, numbers, Sequence(0));
    }

    #[test]
    fn counts_of_a_hostile_publisher_saturate() {
        let (mut of, c) = (Revocable::default(), ReceiverCounters::default());
        note(&mut of, (5, 6), u64::MAX - 1, &c);
        note(&mut of, (7, 8), 9, &c);
        of.count_source_loss(Sequence(7), u64::MAX, Sequence(1), &c);
        of.count_source_loss(Sequence(8), u64::MAX, Sequence(1), &c);
        assert_eq!(of.revoke(Sequence(4), Some(7), &c), 7);
        assert_eq!(c.fenced_records.get(), u64::MAX);
        assert_eq!(c.source_messages_lost.get(), 0);
    }

    #[test]
    fn losses_and_claims_beyond_are_taken_back() {
        let (mut of, c) = (Revocable::default(), ReceiverCounters::default());
        note(&mut of, (3, 4), 20, &c);
        note(&mut of, (8, 9), 30, &c);
        for (sequence, messages) in [(5, 1), (10, u64::MAX)] {
            of.count_source_loss(Sequence(sequence), messages, Sequence(0), &c);
        }
        assert_eq!(c.source_messages_lost.get(), u64::MAX);
        assert_eq!(of.revoke(Sequence(7), Some(4), &c), 4);
        assert_eq!(
            (c.fenced_records.get(), c.source_messages_lost.get()),
            (34, 1)
        );
        of.revoke_source_loss(Sequence(5), &c);
        assert_eq!(c.source_messages_lost.get(), 0);
        of.confirm_losses(Sequence(4));
        assert_eq!(of.revoke(Sequence(2), Some(0), &c), 0, "losses stand");
        assert_eq!(c.fenced_records.get(), 34);
    }

    #[test]
    fn loss_that_reaches_the_place_is_reported_anew() {
        let (mut of, c) = (Revocable::default(), ReceiverCounters::default());
        note(&mut of, (3, 9), 20, &c);
        assert_eq!(of.revoke(Sequence(5), Some(0), &c), 0);
        let (range, first, cause) = of.take_last_loss(Sequence(5), &c).unwrap();
        assert_eq!((range.first.0, range.last.0), (3, 5));
        assert_eq!((first, cause), (Some(RecordNumber(3)), LossCause::Deadline));
        assert_eq!(c.fenced_records.get(), 20);
        assert!(of.take_last_loss(Sequence(5), &c).is_none());
    }

    #[test]
    fn confirmed_sequences_that_come_later_stay_counted() {
        let (mut of, c) = (Revocable::default(), ReceiverCounters::default());
        c.delivered_records.set(100);
        of.suspend(Sequence(50), 0, &c);
        c.delivered_records.set(300);
        c.fenced_records.set(5);
        of.note_delivered(Sequence(50), 20);
        of.note_delivered(Sequence(51), 180);
        of.note_fenced(Sequence(49), 3);
        of.note_fenced(Sequence(51), 2);
        note(&mut of, (47, 48), 7, &c);
        note(&mut of, (60, 60), 9, &c);
        of.count_source_loss(Sequence(46), 4, Sequence(0), &c);
        of.count_source_loss(Sequence(45), 6, Sequence(0), &c);
        of.count_source_loss(Sequence(61), 8, Sequence(0), &c);
        of.revoke_source_loss(Sequence(45), &c);
        assert_eq!(of.revoke(Sequence(50), None, &c), 178);
        assert_eq!(c.fenced_records.get(), 5 + 178 + 9);
        assert_eq!(c.source_messages_lost.get(), 4);
    }

    #[test]
    fn counts_since_connection_was_down_are_void_as_a_whole() {
        let (mut of, c) = (Revocable::default(), ReceiverCounters::default());
        c.delivered_records.set(100);
        of.suspend(Sequence(50), 10, &c);
        c.delivered_records.set(300);
        c.fenced_records.set(5);
        note(&mut of, (60, 60), 7, &c);
        of.suspend(Sequence(50), 0, &c);
        assert_eq!(of.revoke(Sequence(50), None, &c), 205);
        assert_eq!(c.fenced_records.get(), 217);
    }

    #[test]
    fn last_losses_are_void_however_long_their_run_is() {
        let (mut of, c) = (Revocable::default(), ReceiverCounters::default());
        for first in 1..=40 {
            c.lost_records.increment();
            let loss = Loss {
                sequences: SequenceRange::one(Sequence(first)),
                records: Some(1),
                cause: LossCause::Window,
            };
            let numbers = (Some(RecordNumber(first)), Some(RecordNumber(first + 1)));
            // The ring holds four.
            of.note_loss(&loss, numbers, Sequence(first).minus(4));
        }
        let place = (Sequence(10), RecordNumber(11));
        let (first, corrected) = of.void_last_losses(Sequence(40), place, &c);
        assert_eq!((first, corrected.len()), (Some(RecordNumber(11)), 30));
        assert!(corrected.iter().all(|it| it.records == 0));
        assert_eq!((c.lost_records.get(), c.fenced_records.get()), (40, 30));
    }

    #[test]
    fn adjacent_losses_keep_their_sum_when_corrected() {
        let (mut of, c) = (Revocable::default(), ReceiverCounters::default());
        let sum = |of: &Revocable| of.lost_beyond(Sequence(0));
        // A forged heartbeat says between them that record 1000 follows the first.
        for (at, records, (first, next)) in [(3, 997, (3, 1000)), (4, 0, (1000, 9))] {
            c.lost_records.add(records);
            let loss = Loss {
                sequences: SequenceRange::one(Sequence(at)),
                records: Some(records),
                cause: LossCause::Deadline,
            };
            let numbers = (Some(RecordNumber(first)), Some(RecordNumber(next)));
            of.note_loss(&loss, numbers, Sequence(0));
        }
        let corrected = of.correct_losses_before(Sequence(5), RecordNumber(9), &c);
        assert_eq!((corrected.len(), sum(&of)), (1, 6));
        assert_eq!((corrected[0].reported, corrected[0].records), (997, 6));
        let counted = |c: &ReceiverCounters| c.lost_records.get() - c.fenced_records.get();
        assert_eq!(counted(&c), 6);
        // The publisher's copy before them ends with record 4, and the one behind them begins with 19.
        of.correct_losses_behind(Sequence(2), RecordNumber(5), &c);
        assert_eq!((sum(&of), counted(&c)), (4, 4));
        of.correct_losses_before(Sequence(5), RecordNumber(19), &c);
        assert_eq!((sum(&of), counted(&c)), (14, 14));
        let corrected = of.correct_losses_before(Sequence(4), RecordNumber(1), &c);
        assert_eq!(
            (corrected.len(), sum(&of)),
            (1, 10),
            "of the first one only"
        );
        for (sequence, found) in [(Sequence(6), 1), (Sequence(9), 1)] {
            let found = RecordNumber(found);
            assert_eq!(of.correct_losses_before(sequence, found, &c), []);
            assert_eq!(of.correct_losses_behind(sequence, found, &c), []);
        }
    }

    #[test]
    fn corrections_while_nothing_is_confirmed_are_void_once() {
        let (mut of, c) = (Revocable::default(), ReceiverCounters::default());
        note(&mut of, (3, 4), 20, &c);
        of.suspend(Sequence(5), 0, &c);
        note(&mut of, (8, 9), 30, &c);
        for (sequence, found) in [(5, 13), (10, 28)] {
            let found = RecordNumber(found);
            assert_eq!(
                of.correct_losses_before(Sequence(sequence), found, &c)
                    .len(),
                1
            );
        }
        assert_eq!((c.lost_records.get(), c.fenced_records.get()), (50, 20));
        assert_eq!(of.revoke(Sequence(5), None, &c), 0);
        assert_eq!(c.lost_records.get() - c.fenced_records.get(), 10);
    }

    #[test]
    fn confirmed_losses_are_kept_for_corrections_within_bounds() {
        let (mut of, c) = (Revocable::default(), ReceiverCounters::default());
        for n in 1..=2 * KEPT as u64 {
            note(&mut of, (2 * n, 2 * n), 1, &c);
        }
        of.confirm_losses(Sequence(u64::MAX));
        assert_eq!(of.losses.len(), KEPT);
    }
}
