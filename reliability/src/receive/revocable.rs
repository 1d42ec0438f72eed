//! Losses reported beyond the last confirmation, and source messages that events there claimed: all of
//! them are void if an impostor is proven (docs/PROTOCOL.md §5.5).

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::delivery::{Loss, LossCause};
use crate::types::{Counter, ReceiverCounters, RecordNumber, Sequence, SequenceRange};

/// A loss that was reported.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Reported {
    sequences: SequenceRange,
    /// The number of its first record, where known.
    first_record: Option<RecordNumber>,
    records: u64,
    cause: LossCause,
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
    losses: VecDeque<Reported>,
    source_losses: VecDeque<(Sequence, u64)>,
    /// The counts up to the last confirmation, while nothing can be confirmed.
    base: Option<Tally>,
}

impl Revocable {
    /// Notes a loss that is being reported. `oldest`: what lies below cannot become void.
    pub(crate) fn note_loss(
        &mut self,
        loss: &Loss,
        first_record: Option<RecordNumber>,
        oldest: Sequence,
    ) {
        while self
            .losses
            .front()
            .is_some_and(|it| it.sequences.last < oldest)
        {
            self.losses.pop_front();
        }
        let records = loss.records.unwrap_or(0);
        self.losses.push_back(Reported {
            sequences: loss.sequences,
            first_record,
            records,
            cause: loss.cause,
        });
        if let Some(base) = self.base_of(loss.sequences.first) {
            base.lost = base.lost.saturating_add(records);
        }
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
        while self
            .source_losses
            .front()
            .is_some_and(|(it, _)| *it < oldest)
        {
            self.source_losses.pop_front();
        }
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

    /// Everything up to `last` is confirmed, and its losses stand.
    pub(crate) fn confirm_losses(&mut self, last: Sequence) {
        while self
            .losses
            .front()
            .is_some_and(|it| it.sequences.last <= last)
        {
            self.losses.pop_front();
        }
        self.base = None;
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
        let at = self.losses.iter().position(|it| {
            reaches(it) && !matches!(it.cause, LossCause::Fenced | LossCause::Unreadable)
        })?;
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
        self.losses.retain(|it| it.sequences.first <= last);
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
        self.source_losses.clear();
        self.base = None;
    }

    /// Returns how many records the losses beyond `last` counted whose sequences are remembered with their
    /// contents although these were not delivered.
    pub(crate) fn undelivered_beyond(&self, last: Sequence) -> u64 {
        let beyond = self.losses.iter().filter(|it| {
            it.sequences.first > last
                && matches!(it.cause, LossCause::Fenced | LossCause::Unreadable)
        });
        beyond.fold(0, |sum, it| sum.saturating_add(it.records))
    }

    /// Returns how many source messages the events beyond `last` counted.
    fn claimed_beyond(&self, last: Sequence) -> u64 {
        let beyond = self.source_losses.iter().filter(|(it, _)| *it > last);
        beyond.fold(0, |sum, (_, messages)| sum.saturating_add(*messages))
    }

    /// Returns how many records the losses beyond `last` counted.
    fn lost_beyond(&self, last: Sequence) -> u64 {
        let beyond = self.losses.iter().filter(|it| it.sequences.first > last);
        beyond.fold(0, |sum, it| sum.saturating_add(it.records))
    }
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
        of.note_loss(&loss, Some(RecordNumber(first)), Sequence(0));
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
}
