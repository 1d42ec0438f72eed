//! Delivery in order: each datagram is delivered once everything before it was delivered or declared
//! lost (docs/PROTOCOL.md §7, §8).
//!
//! A datagram in order is delivered from the receive buffer; only an early one is copied. In arrival
//! order every datagram is delivered at once, and this file keeps track of the gaps behind it.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::delivery::{Deliver, LossCause, Via};
use crate::planted::{Bug, planted};
use crate::receive::in_order::InOrder;
use crate::receive::remembered::Content;
use crate::receive::window::{Held, Window};
use crate::record::Records;
use crate::types::{
    ChannelId, Continued, Epoch, Lineage, ReceiverCounters, RecordNumber, Sequence, SequenceRange,
};
use crate::wire::{Datagram, Header, Kind};

/// The state of delivery of one channel in one epoch.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Reassembly {
    stream: InOrder,
    window: Window,
    /// Ranges declared lost that delivery has not reached: ascending, apart from each other.
    lost: VecDeque<(SequenceRange, LossCause)>,
    /// The anchor behind the newest sequence known, from a heartbeat, a datagram or the publisher; and
    /// the anchor of the oldest sequence that the ring still holds.
    anchor: Option<RecordAnchor>,
    floor: Option<RecordAnchor>,
    in_arrival_order: bool,
}

/// A datagram that was not missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Duplicate {
    /// It came before with the same content, or is no longer wanted.
    Known,
    /// It is older than anything that is remembered.
    Forgotten,
    /// It came with another content.
    Conflict(Conflict),
}

/// Two contents with one sequence, of which one is not the publisher's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Conflict {
    /// Whether the wrong content was delivered, as the publisher's own copy shows.
    pub wrong_one_delivered: bool,
    /// Whether the publisher's copy is to be requested, because the sequence was not contested before.
    pub is_newly_contested: bool,
}

/// Two datagrams in a row whose record numbers do not follow, so that one of them is forged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Misnumbered {
    /// The second waited and was dropped: this sequence is missing again.
    Dropped(Sequence),
    /// One of them, with this sequence, is contested: the other is the publisher's, or both were delivered.
    Contested(Sequence),
}

/// A sequence and the number of its first record.
type RecordAnchor = (Sequence, RecordNumber);

impl Reassembly {
    /// Delivery of `channel` through `window`, of a publisher with a ring of `ring_slots` slots. It begins
    /// where [`Reassembly::restart`] says.
    #[must_use]
    pub(crate) fn new(
        channel: ChannelId,
        window: Window,
        ring_slots: u64,
        in_arrival_order: bool,
    ) -> Self {
        let slots = ring_slots.max(window.span());
        Self {
            stream: InOrder::new(channel, slots),
            window,
            lost: VecDeque::with_capacity(64),
            anchor: None,
            floor: None,
            in_arrival_order,
        }
    }

    /// Starts over in `epoch` with `next`; held datagrams of another epoch are dropped.
    pub(crate) fn restart(
        &mut self,
        epoch: Epoch,
        next: Sequence,
        next_record: Option<RecordNumber>,
    ) {
        self.stream.restart(epoch, next, next_record);
        self.window.clear();
        self.lost.clear();
        (self.anchor, self.floor) = (None, None);
    }

    /// Makes room for datagrams of this length, and remembers as many contents as the ring has slots.
    pub(crate) fn fit_ring(&mut self, ring_slots: u64, slot_len: usize) {
        self.window.fit_slots(slot_len);
        self.stream.fit_ring(ring_slots.max(self.window.span()));
    }

    /// The stream that the application receives.
    #[must_use]
    pub(crate) const fn stream(&self) -> &InOrder {
        &self.stream
    }

    /// The stream that the application receives, to change its lineage, its mirror or its end.
    pub(crate) const fn stream_mut(&mut self) -> &mut InOrder {
        &mut self.stream
    }

    /// Another epoch continues the one followed at this place: datagrams beyond it count no more, except
    /// that they were delivered. Returns how many datagrams waited there.
    pub(crate) fn continue_epoch(
        &mut self,
        epoch: Epoch,
        lineage: &Lineage,
        at: Continued,
        counters: &ReceiverCounters,
        on: &mut dyn Deliver,
    ) -> u64 {
        let early = self.window.delivered_above(at.last);
        let early = early.filter(|_| self.in_arrival_order);
        (self.stream).continue_epoch((epoch, lineage), at, early, counters, on);
        self.forget_above(at.last, at.last.next())
    }

    /// Forgets what lies above `last`, and anchors above `anchor_last`. Returns how many datagrams waited
    /// there.
    fn forget_above(&mut self, last: Sequence, anchor_last: Sequence) -> u64 {
        let dropped = self.window.forget_above(last);
        self.lost.retain(|(range, _)| range.first <= last);
        if let Some((range, _)) = self.lost.back_mut() {
            range.last = range.last.min(last);
        }
        for anchor in [&mut self.anchor, &mut self.floor] {
            anchor.take_if(|(of, _)| *of > anchor_last);
        }
        dropped
    }

    /// Moves the beginning forward before anything was delivered, and forgets what waits before it.
    pub(crate) fn begin_at(&mut self, oldest: Sequence, record: RecordNumber) {
        self.stream.begin_at(oldest, record);
        self.window.forget_below(oldest);
    }

    /// The next sequence to deliver or declare lost.
    #[must_use]
    pub(crate) const fn next(&self) -> Sequence {
        self.stream.next()
    }

    /// The window of held and remembered datagrams.
    #[must_use]
    pub(crate) const fn window(&self) -> &Window {
        &self.window
    }

    /// The first sequence that lies beyond the window.
    #[must_use]
    pub(crate) const fn window_end(&self) -> Sequence {
        self.stream.next().plus(self.window.span())
    }

    /// Takes a datagram that is not missing. The repair path's copy decides between two contents: it
    /// replaces one that still waits, and is reported as the right one if another was delivered.
    #[cold]
    pub(crate) fn take_duplicate(
        &mut self,
        held: &Held,
        datagram: &Datagram<'_>,
        counters: &ReceiverCounters,
        on: &mut dyn Deliver,
    ) -> Duplicate {
        let sequence = held.sequence;
        let decides = held.via == Via::Repair;
        let next = self.stream.next();
        let (seen, delivered) = match self.window.seen(sequence) {
            Some((seen, delivered)) if sequence >= next => (Some(Content::of(seen)), delivered),
            _ => (self.stream.remembered().get(sequence), true),
        };
        let mut duplicate = Duplicate::Known;
        match seen {
            Some(seen) if seen.crc != held.crc => {
                counters.fencing_violations.increment();
                if decides && !delivered && !planted(Bug::DecidingCopyIgnored) {
                    self.window.hold(*held, datagram.bytes());
                }
                if decides && delivered {
                    self.report_fenced(seen.count, held, datagram, counters, on);
                }
                duplicate = Duplicate::Conflict(Conflict {
                    wrong_one_delivered: decides && delivered,
                    is_newly_contested: !decides && self.contest(sequence),
                });
            }
            Some(_) => counters.duplicates.increment(),
            // Not remembered: declared lost lately, or longer ago than the ring remembers.
            None if planted(Bug::LostAndDelivered) => {
                let _ = self.offer(datagram, *held, counters, on);
            }
            None if self.stream.remembered().is_within(sequence) => {
                counters.late_dropped.increment();
            }
            None => {
                counters.duplicates.increment();
                duplicate = Duplicate::Forgotten;
            }
        }
        if decides && seen.is_some() {
            match sequence < next {
                true => self
                    .stream
                    .remembered_mut()
                    .decide(sequence, Content::of(held)),
                false => self.window.confirm(sequence),
            }
        }
        duplicate
    }

    /// Contests the content of a sequence that was delivered or waits. Returns whether it was not
    /// contested before.
    pub(crate) fn contest(&mut self, sequence: Sequence) -> bool {
        match sequence < self.stream.next() {
            true => self.stream.remembered_mut().contest(sequence),
            false => self.window.contest(sequence),
        }
    }

    /// Contests everything that was delivered with sequences of `range` and is remembered, or waits,
    /// because an impostor was proven. Returns what was not contested before.
    pub(crate) fn contest_all(&mut self, range: SequenceRange) -> impl Iterator<Item = Sequence> {
        let known = range.first.max(self.stream.remembered().above().next());
        let last = range.last.min(self.window_end().previous());
        let all = SequenceRange::new(known, last).into_iter();
        all.flat_map(SequenceRange::iter)
            .filter(|sequence| self.contest(*sequence))
    }

    /// Returns the sequences of `range` that are contested and not decided, ascending. The work is that of
    /// the range, not of the memory: each of many refusals may name one sequence.
    pub(crate) fn contested(&self, range: SequenceRange) -> impl Iterator<Item = Sequence> {
        let first = range.first.max(self.stream.next());
        let last = range.last.min(self.window_end().previous());
        let held = SequenceRange::new(first, last).into_iter();
        let waiting = held.flat_map(SequenceRange::iter);
        let waiting = waiting.filter(|it| self.window.is_contested(*it));
        self.stream.remembered().contested(range).chain(waiting)
    }

    /// Returns whether two contents of this sequence came and the publisher's copy did not.
    pub(crate) fn is_contested(&self, sequence: Sequence) -> bool {
        match sequence < self.stream.next() {
            true => self.stream.remembered().is_contested(sequence),
            false => self.window.is_contested(sequence),
        }
    }

    /// The publisher's copies of these sequences can't be had any more. Counts those that are contested.
    #[cold]
    pub(crate) fn leave_contested(&mut self, range: SequenceRange, counters: &ReceiverCounters) {
        let contested: Vec<_> = self.contested(range).collect();
        counters.contents_undecided.add(contested.len() as u64);
        for sequence in contested {
            match sequence < self.stream.next() {
                true => self.stream.remembered_mut().leave(sequence),
                false => self.window.confirm(sequence),
            }
        }
    }

    /// Nothing is confirmed beyond `last` until the repair connection is up again.
    pub(crate) fn suspend_confirmation(&mut self, last: Sequence, counters: &ReceiverCounters) {
        let delivered = self.records_beyond(last).unwrap_or(0);
        self.stream.suspend_confirmation(last, delivered, counters);
    }

    /// An impostor sent everything beyond `last`; the record `next_record` follows it. Forgets what it
    /// made known, returns to the place behind `last`, and reports what it made us deliver. Returns how
    /// many datagrams waited there.
    #[cold]
    pub(crate) fn roll_back(
        &mut self,
        last: Sequence,
        next_record: RecordNumber,
        counters: &ReceiverCounters,
        on: &mut dyn Deliver,
    ) -> u64 {
        let delivered = self.records_beyond(last);
        let was_reported =
            self.stream.next() > last.next() || self.window.delivered_above(last).next().is_some();
        let dropped = self.forget_above(last, last);
        if was_reported {
            self.stream
                .roll_back(last, next_record, delivered, counters, on);
        }
        dropped
    }

    /// Returns how many records were delivered beyond `last`; `None` if not all are remembered.
    fn records_beyond(&self, last: Sequence) -> Option<u64> {
        let stream = &self.stream;
        if stream.remembered().above() > last {
            return None;
        }
        let early = self.window.delivered_above(last);
        let early = early.filter(|held| held.sequence >= stream.next());
        let early: u64 = early.map(|held| u64::from(held.count)).sum();
        let beyond = SequenceRange::new(last.next(), Sequence(u64::MAX));
        let remembered = beyond.map_or(0, |range| stream.remembered().records_of(range));
        Some((early + remembered).saturating_sub(stream.undelivered_beyond(last)))
    }

    /// Reports that the datagram delivered with this sequence, of `forged` records, was not the publisher's,
    /// and `held` is.
    fn report_fenced(
        &mut self,
        forged: u16,
        held: &Held,
        datagram: &Datagram<'_>,
        counters: &ReceiverCounters,
        on: &mut dyn Deliver,
    ) {
        if held.sequence >= self.stream.next() {
            // Delivered early: remembered from now on, so that a second copy of it is no news.
            self.window.delivered(*held);
        }
        (self.stream).report_fenced(forged, held, datagram, counters, on);
    }

    /// Takes a datagram that is neither delivered nor held and lies within the window. Delivers
    /// what can be delivered. Returns the sequence that is missing again, as
    /// [`Reassembly::advance`] does.
    #[inline]
    pub(crate) fn offer(
        &mut self,
        datagram: &Datagram<'_>,
        held: Held,
        counters: &ReceiverCounters,
        on: &mut dyn Deliver,
    ) -> Option<Misnumbered> {
        if datagram.bytes().len() > self.window.slot_len() {
            // Longer than the slot size of WELCOME: no repair will bring anything else.
            counters.malformed_dropped.increment();
            self.lose(SequenceRange::one(held.sequence), LossCause::Unreadable);
            return self.advance(counters, on);
        }
        let in_turn = held.sequence == self.stream.next();
        if in_turn || self.in_arrival_order {
            if in_turn {
                self.stream
                    .emit_pending(Some(held.first_record), counters, on);
                self.stream.enter_next_epoch(on);
            }
            self.stream.deliver(datagram, &held, !in_turn, counters, on);
            if in_turn {
                self.stream.pass(&held);
                return self.advance(counters, on);
            }
            self.window.delivered(held);
        } else {
            self.window.hold(held, datagram.bytes());
        }
        None
    }

    /// Returns whether the content of a datagram can be delivered at all.
    #[must_use]
    pub(crate) fn can_deliver(&self, datagram: &Datagram<'_>) -> bool {
        let fits = datagram.bytes().len() <= self.window.slot_len();
        fits && (datagram.header().kind != Kind::Data || datagram.records().is_ok())
    }

    /// Returns whether the next datagram cannot be the publisher's, because its record number does not
    /// follow.
    #[must_use]
    pub(crate) fn contradicts(&self, header: &Header) -> bool {
        header.sequence == self.stream.next() && self.stream.contradicts(header.first_record)
    }

    /// Returns whether nothing precedes `next`: no loss, no other epoch, no held datagram.
    #[inline]
    pub(crate) fn is_clear(&self) -> bool {
        self.stream.is_clear() && self.lost.is_empty() && self.window.waiting() == 0
    }

    /// Delivers the records of the next datagram as [`Reassembly::offer`] does, when no other datagram
    /// waits or is missing.
    #[inline(always)]
    pub(crate) fn deliver_next(
        &mut self,
        datagram: &Datagram<'_>,
        records: Records<'_>,
        held: Held,
        counters: &ReceiverCounters,
        on: &mut impl Deliver,
    ) {
        (self.stream).deliver_next(datagram, records, &held, counters, on);
    }

    /// Declares `range` lost, as far as delivery has not passed it.
    pub(crate) fn lose(&mut self, range: SequenceRange, cause: LossCause) {
        let Some(range) = SequenceRange::new(range.first.max(self.stream.next()), range.last)
        else {
            return;
        };
        let at = self
            .lost
            .partition_point(|(lost, _)| lost.last < range.first);
        self.lost.insert(at, (range, cause));
    }

    /// Notes that the first record of `sequence` has this number.
    pub(crate) fn set_anchor(&mut self, sequence: Sequence, record: RecordNumber) {
        note(&mut self.anchor, self.stream.next(), (sequence, record));
    }

    /// The publisher says that the first record of `sequence` has this number: a loss that ends before it is
    /// reported with its size, or corrected.
    pub(crate) fn confirm_number(
        &mut self,
        sequence: Sequence,
        record: RecordNumber,
        counters: &ReceiverCounters,
        on: &mut dyn Deliver,
    ) {
        if sequence == self.stream.next() && record != RecordNumber(0) {
            self.stream.emit_pending(Some(record), counters, on);
            self.stream.enter_next_epoch(on);
        }
    }

    /// Notes the first record of the oldest sequence that the ring still holds; all below will be lost.
    pub(crate) fn note_floor(&mut self, oldest: Sequence, record: RecordNumber) {
        note(&mut self.floor, self.stream.next(), (oldest, record));
    }

    /// Passes everything that is resolved: delivered early, held, or lost. Returns the next sequence if its
    /// datagram waited and was dropped, because its record number does not follow: it is missing again.
    #[must_use]
    pub(crate) fn advance(
        &mut self,
        counters: &ReceiverCounters,
        on: &mut dyn Deliver,
    ) -> Option<Misnumbered> {
        let mut dropped = None;
        loop {
            if let Some(&(range, cause)) = self.lost.front()
                && range.first <= self.stream.next()
            {
                self.lost.pop_front();
                if range.last >= self.stream.next() {
                    self.stream.reach_lost(range, cause);
                }
            } else if self.in_arrival_order {
                let next = self.stream.next();
                let Some((&held, true)) = self.window.seen(next) else {
                    break;
                };
                if self.stream.contradicts(held.first_record) {
                    // Either is forged, and both were delivered.
                    for either in [next, next.previous()] {
                        if self.contest(either) {
                            return Some(Misnumbered::Contested(either));
                        }
                    }
                }
                self.stream
                    .emit_pending(Some(held.first_record), counters, on);
                self.stream.enter_next_epoch(on);
                self.pass_waiting(&held);
            } else {
                dropped = self.drop_misnumbered(counters);
                if dropped.is_some() || !self.deliver_waiting(counters, on) {
                    break;
                }
            }
        }
        if self.stream.has_pending() {
            let (next, stream) = (self.stream.next(), &self.stream);
            let mut known = [self.floor, self.anchor].into_iter().flatten();
            // Anybody may have sent the heartbeat that a number comes from.
            let fits = |(of, record)| of == next && stream.can_follow(record);
            if let Some((_, record)) = known.find(|it| fits(*it)) {
                self.stream.emit_pending(Some(record), counters, on);
            }
        }
        self.stream.enter_next_epoch(on);
        dropped
    }

    /// Drops the datagram that waits for its turn at `next` if it came by multicast and its record number
    /// does not follow, because anybody may have sent it. Returns its sequence.
    fn drop_misnumbered(&mut self, counters: &ReceiverCounters) -> Option<Misnumbered> {
        let next = self.stream.next();
        let (held, _) = self.window.waiting_at(next)?;
        if !self.stream.contradicts(held.first_record) {
            return None;
        }
        if held.via == Via::Repair || self.window.is_decided(next) {
            // The publisher's copy contests the datagram before it.
            let before = next.previous();
            return self
                .contest(before)
                .then_some(Misnumbered::Contested(before));
        }
        counters.malformed_dropped.increment();
        self.window.forget(next);
        Some(Misnumbered::Dropped(next))
    }

    /// Delivers the datagram that waits for its turn at `next`, if there is one.
    fn deliver_waiting(&mut self, counters: &ReceiverCounters, on: &mut dyn Deliver) -> bool {
        let next = self.stream.next();
        let Some((&held, bytes)) = self.window.waiting_at(next) else {
            return false;
        };
        self.stream
            .emit_pending(Some(held.first_record), counters, on);
        self.stream.enter_next_epoch(on);
        // Held bytes were parsed when they arrived, and nothing changes them while they wait.
        if let Ok(datagram) = Datagram::parse(bytes) {
            self.stream.deliver(&datagram, &held, false, counters, on);
        }
        self.pass_waiting(&held);
        self.window.release(next);
        true
    }

    /// Moves past a datagram of the window. It stays contested, or decided.
    fn pass_waiting(&mut self, held: &Held) {
        self.stream.pass(held);
        if self.window.is_contested(held.sequence) {
            self.stream.remembered_mut().contest(held.sequence);
        } else if self.window.is_decided(held.sequence) {
            let content = Content::of(held);
            self.stream.remembered_mut().decide(held.sequence, content);
        }
    }
}

/// Keeps the newer of two anchors, if delivery has not passed it.
fn note(kept: &mut Option<RecordAnchor>, next: Sequence, (sequence, record): RecordAnchor) {
    let newer = kept.is_none_or(|(of, _)| of < next || of < sequence);
    if record != RecordNumber(0) && newer && sequence >= next {
        *kept = Some((sequence, record));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delivery::Item;
    use crate::record::{AlignedCopy, MboMsg, RecordBatch};
    use crate::types::{Nanos, SourceId, SourcePosition};
    use crate::wire::{Header, SourceLossReason, StreamEvent, crc_of};

    /// Delivery from sequence 10 and record 100 on, and what was told.
    struct Bench {
        reassembly: Reassembly,
        counters: ReceiverCounters,
        reported: Vec<String>,
    }

    impl Bench {
        fn new(in_arrival_order: bool) -> Self {
            let window = Window::new(16, 1024);
            let mut reassembly = Reassembly::new(ChannelId(1), window, 16, in_arrival_order);
            reassembly.restart(Epoch(5), Sequence(10), Some(RecordNumber(100)));
            Self {
                reassembly,
                counters: ReceiverCounters::default(),
                reported: Vec::new(),
            }
        }

        fn run(
            &mut self,
            f: impl FnOnce(&mut Reassembly, &ReceiverCounters, &mut dyn FnMut(Item<'_>)),
        ) {
            let reported = &mut self.reported;
            f(&mut self.reassembly, &self.counters, &mut |item| {
                reported.push(match item {
                    Item::Record(p, _) => {
                        let marks = [
                            (p.quality.repaired, "repaired"),
                            (p.quality.out_of_order, "early"),
                            (p.quality.after_loss, "after loss"),
                        ];
                        let marks = marks.iter().filter(|m| m.0).map(|m| format!(" {}", m.1));
                        format!("{}:{}{}", p.sequence, p.record, marks.collect::<String>())
                    }
                    Item::Event(p, event) => format!("{}:{} {event}", p.sequence, p.record),
                });
            });
        }

        fn offer(&mut self, sequence: u64, record: u64, kind: Kind, payload: &[u8], count: u16) {
            let header = Header {
                kind,
                channel: ChannelId(1),
                count,
                epoch: Epoch(5),
                sequence: Sequence(sequence),
                first_record: RecordNumber(record),
                source_position: SourcePosition(0),
                sent_at: Nanos(1),
                retained: 1,
                source: SourceId(1),
                payload_len: payload.len() as u16,
                flags: 0,
                header_len: 64,
                relay: 0,
            };
            let crc = crc_of(&header.to_bytes(0), payload);
            let mut bytes = header.to_bytes(crc).to_vec();
            bytes.extend_from_slice(payload);
            let mut aligned = AlignedCopy::default();
            let datagram = Datagram::parse(aligned.of(&bytes)).unwrap();
            let held = Held {
                sequence: header.sequence,
                first_record: header.first_record,
                count,
                crc,
                via: Via::Repair,
                received_at: Nanos(2),
                missing_for: Nanos(u64::from(sequence == 12)),
            };
            let mut dropped = None;
            self.run(|reassembly, counters, mut on| {
                dropped = reassembly.offer(&datagram, held, counters, &mut on);
            });
            assert_eq!(dropped, None);
        }

        fn advance(&mut self) {
            let mut dropped = None;
            self.run(|reassembly, counters, mut on| {
                dropped = reassembly.advance(counters, &mut on);
            });
            assert_eq!(dropped, None);
        }

        fn data(&mut self, sequence: u64, record: u64, count: u16) {
            let mut batch = RecordBatch::default();
            (0..count).for_each(|_| batch.put(&MboMsg::default()));
            self.offer(sequence, record, Kind::Data, batch.bytes(), count);
        }

        fn lose(&mut self, first: u64, last: u64, cause: LossCause) {
            let range = SequenceRange::new(Sequence(first), Sequence(last)).unwrap();
            self.reassembly.lose(range, cause);
            self.advance();
        }

        /// Epoch `from` is continued by the one whose lineage this is, newest first: each epoch with
        /// its last sequence and the number of the record after it. How many waited in vain.
        fn continue_epoch(&mut self, from: u64, to: u64, lineage: &[(u64, u64, u64)]) -> u64 {
            let continued = |&(epoch, last, next_record): &(u64, u64, u64)| Continued {
                epoch: Epoch(epoch),
                last: Sequence(last),
                next_record: RecordNumber(next_record),
                complete: false,
            };
            let lineage: Lineage = lineage.iter().map(continued).collect::<Vec<_>>().into();
            let (at, mut dropped) = (lineage.of(Epoch(from)).unwrap(), 0);
            self.run(|reassembly, counters, mut on| {
                dropped = reassembly.continue_epoch(Epoch(to), &lineage, at, counters, &mut on);
            });
            dropped
        }

        fn anchor(&mut self, sequence: u64, record: u64) {
            self.reassembly
                .set_anchor(Sequence(sequence), RecordNumber(record));
            self.advance();
        }
    }

    #[test]
    fn consecutive_losses_merge_before_next_delivery() {
        let mut bench = Bench::new(false);
        bench.data(10, 100, 2);
        bench.data(14, 109, 1);
        bench.lose(13, 13, LossCause::Window);
        assert_eq!(bench.reported, ["10:100", "10:101"], "11 may still come");
        bench.data(12, 105, 1);
        bench.lose(11, 11, LossCause::Deadline);
        assert_eq!(
            bench.reported[2..],
            [
                "11:105 sequences 11 lost (deadline), 3 records",
                "12:105 repaired after loss",
                "13:109 sequences 13 lost (window), 3 records",
                "14:109 after loss"
            ]
        );
        bench.lose(15, 16, LossCause::Refused);
        bench.lose(17, 17, LossCause::Burst);
        bench.data(18, 120, 1);
        assert_eq!(
            bench.reported[6..],
            [
                "17:120 sequences 15-17 lost (refused), 10 records",
                "18:120 after loss"
            ]
        );
        assert_eq!(bench.counters.loss_events.get(), 3);
        assert_eq!(bench.counters.lost_records.get(), 16);
        assert_eq!(bench.counters.delivered_datagrams.get(), 4);
        assert_eq!(bench.counters.delivered_records.get(), 5);
    }

    #[test]
    fn events_too_say_that_something_was_lost_before_them() {
        let mut bench = Bench::new(false);
        let after_loss = |bench: &Bench| bench.reassembly.stream().position().quality.after_loss;
        assert!(!after_loss(&bench));
        bench.lose(10, 10, LossCause::Window);
        assert!(!after_loss(&bench), "it is not told yet");
        bench.data(11, 105, 1);
        assert!(after_loss(&bench));
        assert_eq!(bench.reassembly.stream().position().sequence, Sequence(11));
    }

    #[test]
    fn loss_range_excludes_delivered_sequences() {
        let mut bench = Bench::new(false);
        bench.data(10, 100, 1);
        bench.lose(1, 10, LossCause::Window);
        assert_eq!(
            (bench.reported.len(), bench.reassembly.next()),
            (1, Sequence(11))
        );
        bench.lose(1, 11, LossCause::Window);
        bench.data(12, 105, 1);
        assert_eq!(
            bench.reported[1],
            "11:105 sequences 11 lost (window), 4 records"
        );
    }

    #[test]
    fn newest_record_number_sizes_loss_at_head() {
        let mut bench = Bench::new(false);
        bench.anchor(9, 90);
        bench.anchor(13, 0);
        bench.anchor(13, 130);
        bench.anchor(12, 120);
        bench.lose(10, 11, LossCause::Window);
        assert_eq!(bench.reported, [""; 0], "of 12 nobody knows any more");
        bench.lose(12, 12, LossCause::Window);
        let reported = "12:130 sequences 10-12 lost (window), 30 records";
        assert_eq!(bench.reported, [reported]);
        bench.anchor(13, 140);
        bench.lose(13, 13, LossCause::Window);
        assert_eq!(
            bench.reported.len(),
            1,
            "a second word on 13 changes nothing"
        );
        bench.anchor(14, 141);
        assert_eq!(
            bench.reported[1],
            "13:141 sequences 13 lost (window), 11 records"
        );
    }

    #[test]
    fn second_anchor_for_same_sequence_is_ignored() {
        let mut bench = Bench::new(false);
        bench.lose(10, 12, LossCause::Window);
        bench.reassembly.set_anchor(Sequence(13), RecordNumber(130));
        bench.anchor(13, 140);
        assert_eq!(
            bench.reported,
            ["12:130 sequences 10-12 lost (window), 30 records"]
        );
    }

    #[test]
    fn loss_up_to_end_is_reported_before_the_end() {
        let mut bench = Bench::new(false);
        bench.data(10, 100, 1);
        bench.lose(11, 12, LossCause::Deadline);
        assert_eq!(bench.reported, ["10:100"], "its size is not known");
        bench.run(|reassembly, counters, mut on| reassembly.stream_mut().end(counters, &mut on));
        assert_eq!(
            bench.reported[1..],
            [
                "12:0 sequences 11-12 lost (deadline), number of records unknown",
                "12:0 end of session"
            ]
        );
    }

    #[test]
    fn another_epoch_begins_without_what_the_one_before_left() {
        let mut bench = Bench::new(false);
        bench.data(11, 101, 1);
        bench.lose(10, 10, LossCause::Epoch);
        bench.lose(12, 12, LossCause::Epoch);
        bench.lose(15, 20, LossCause::Epoch);
        bench.anchor(30, 300);
        bench.run(|reassembly, counters, mut on| reassembly.stream_mut().end(counters, &mut on));
        assert!(bench.reassembly.stream().ended());
        bench.reported.clear();
        bench
            .reassembly
            .restart(Epoch(6), Sequence(15), Some(RecordNumber(1)));
        assert!(!bench.reassembly.stream().ended() && bench.reassembly.window().waiting() == 0);
        bench.data(15, 1, 1);
        bench.data(16, 2, 1);
        assert_eq!(bench.reported, ["15:1 after loss", "16:2 after loss"]);
        bench.reassembly.restart(Epoch(7), Sequence(1), None);
        bench.lose(1, 4, LossCause::Window);
        bench.data(5, 50, 1);
        assert_eq!(
            bench.reported[2..],
            [
                "4:50 sequences 1-4 lost (window), number of records unknown",
                "5:50 after loss"
            ]
        );
        // The loss before the end, and this one.
        assert_eq!(bench.counters.losses_of_unknown_size.get(), 2);
    }

    #[test]
    fn unsized_loss_is_reported_at_end_without_recount() {
        let mut bench = Bench::new(false);
        bench.lose(10, 12, LossCause::Left);
        assert!(bench.reported.is_empty());
        bench.run(|reassembly, counters, mut on| {
            reassembly.stream_mut().give_up_pending(counters, &mut on);
        });
        let reported = "12:0 sequences 10-12 lost (left), number of records unknown";
        assert_eq!(bench.reported, [reported]);
        bench.run(|reassembly, counters, mut on| {
            reassembly.stream_mut().give_up_pending(counters, &mut on);
        });
        assert_eq!(bench.reported.len(), 1);
        bench.lose(13, 13, LossCause::Left);
        bench.data(14, 140, 1);
        assert!(
            bench.reported[1].ends_with("unknown"),
            "{}",
            bench.reported[1]
        );
    }

    #[test]
    fn arrival_order_delivers_at_once_with_losses_in_place() {
        let mut bench = Bench::new(true);
        bench.data(12, 102, 1);
        bench.data(10, 100, 1);
        bench.data(13, 103, 1);
        bench.lose(11, 11, LossCause::Window);
        assert_eq!(
            bench.reported,
            [
                "12:102 repaired early",
                "10:100",
                "13:103 early",
                "11:102 sequences 11 lost (window), 1 records"
            ]
        );
        assert_eq!(bench.reassembly.next(), Sequence(14));
        assert_eq!(bench.reassembly.window_end(), Sequence(30));
    }

    #[test]
    fn events_and_end_take_turns_source_loss_counts() {
        let mut bench = Bench::new(false);
        let mut body = Vec::new();
        StreamEvent::SourceLost {
            source: SourceId(2),
            reason: SourceLossReason::Gap,
            from: SourcePosition(9),
            messages: 5,
            instruments: vec![],
        }
        .write(&mut body);
        bench.offer(11, 100, Kind::Event, &body, 0);
        bench.offer(10, 100, Kind::Event, &[1, 2, 3], 0);
        assert_eq!(bench.reported, ["11:100 source 2 lost 5 messages from 0:9"]);
        bench.offer(12, 100, Kind::End, &[], 0);
        assert!(
            !bench.reassembly.stream().ended(),
            "a datagram ends nothing"
        );
        let c = &bench.counters;
        assert_eq!(
            (c.stream_events.get(), c.source_messages_lost.get()),
            (1, 5)
        );
        assert_eq!(
            (c.delivered_datagrams.get(), c.delivered_records.get()),
            (3, 0)
        );
        bench.run(|reassembly, counters, mut on| reassembly.stream_mut().end(counters, &mut on));
        bench.run(|reassembly, counters, mut on| reassembly.stream_mut().end(counters, &mut on));
        assert_eq!(bench.reported[1..], ["12:100 end of session"]);
    }

    #[test]
    fn reassembly_start_moves_forward_only() {
        let mut bench = Bench::new(false);
        bench
            .reassembly
            .stream_mut()
            .begin_at(Sequence(14), RecordNumber(0));
        bench
            .reassembly
            .stream_mut()
            .begin_at(Sequence(12), RecordNumber(120));
        assert_eq!(bench.reassembly.next(), Sequence(14));
        bench.lose(14, 14, LossCause::Window);
        bench.anchor(15, 125);
        assert_eq!(
            bench.reported,
            ["14:125 sequences 14 lost (window), 5 records"]
        );
        bench.reassembly.fit_ring(16, 1024);
        bench.data(16, 130, 1);
        bench.reassembly.fit_ring(16, 1024);
        assert_eq!(bench.reassembly.window().waiting(), 1, "there was room");
        bench.reassembly.fit_ring(16, 1025);
        let window = bench.reassembly.window();
        assert_eq!((window.slot_len(), window.span()), (1032, 16));
    }

    #[test]
    fn state_beyond_epoch_change_does_not_count() {
        let mut bench = Bench::new(false);
        bench.data(10, 100, 1);
        for sequence in [12, 14, 17, 19] {
            bench.data(sequence, 90 + sequence, 1);
        }
        bench.lose(13, 13, LossCause::Window);
        bench.lose(15, 16, LossCause::Deadline);
        bench.lose(18, 18, LossCause::Window);
        assert_eq!(
            bench.continue_epoch(5, 6, &[(5, 15, 107)]),
            2,
            "17 and 19 waited"
        );
        assert_eq!(bench.reassembly.window().waiting(), 2);
        assert_eq!(bench.reported, ["10:100"]);
        bench.data(11, 101, 1);
        for sequence in 16..=19 {
            bench.data(sequence, 91 + sequence, 1);
        }
        assert_eq!(
            bench.reported[1..],
            [
                "11:101",
                "12:102 repaired",
                "13:104 sequences 13 lost (window), 1 records",
                "14:104 after loss",
                "15:107 sequences 15 lost (deadline), 2 records",
                "15:107 epoch 5 continued by 6 after 15",
                "16:107 after loss",
                "17:108 after loss",
                "18:109 after loss",
                "19:110 after loss",
            ]
        );
    }

    #[test]
    fn record_number_at_epoch_change_stands_beyond_falls() {
        // It tells what is lost before it.
        let mut bench = Bench::new(false);
        bench.anchor(13, 106);
        bench.continue_epoch(5, 6, &[(5, 12, 106)]);
        bench.lose(10, 12, LossCause::Window);
        assert_eq!(
            bench.reported,
            [
                "12:106 sequences 10-12 lost (window), 6 records",
                "12:106 epoch 5 continued by 6 after 12",
            ]
        );
        // The number that the old epoch gave a sequence beyond it is not that of the new one's.
        let mut bench = Bench::new(false);
        bench.anchor(14, 150);
        bench.continue_epoch(5, 6, &[(5, 12, 106)]);
        bench.lose(10, 13, LossCause::Window);
        assert_eq!(
            bench.reported, [""; 0],
            "nor is the change told before the loss"
        );
        bench.data(14, 108, 1);
        assert_eq!(
            bench.reported,
            [
                "13:108 sequences 10-13 lost (window), 8 records",
                "13:108 epoch 5 continued by 6 after 12",
                "14:108 after loss",
            ]
        );
    }

    #[test]
    fn unreported_loss_is_cut_at_epoch_change() {
        let continued = "12:106 epoch 5 continued by 6 after 12";
        for (first, before, reported) in [
            (
                11,
                1,
                Some("12:106 sequences 11-12 lost (window), 5 records"),
            ),
            (12, 2, Some("12:106 sequences 12 lost (window), 4 records")),
            (13, 6, None),
        ] {
            let mut bench = Bench::new(false);
            for sequence in 10..first {
                let count = if sequence == 12 { 4 } else { 1 };
                bench.data(sequence, 90 + sequence, count);
            }
            bench.lose(first, 14, LossCause::Window);
            bench.reported.clear();
            bench.continue_epoch(5, 6, &[(5, 12, 106)]);
            let expected: Vec<_> = reported.into_iter().chain([continued]).collect();
            assert_eq!(bench.reported, expected, "{first} to 14 were lost");
            assert_eq!(bench.reassembly.next(), Sequence(13));
            bench.data(13, 106, 1);
            let delivered = bench.counters.delivered_records.get();
            assert_eq!(delivered, before + 1);
        }
    }

    #[test]
    fn repeated_records_count_for_one_epoch_change_only() {
        let mut bench = Bench::new(false);
        for n in 0..5 {
            bench.data(10 + n, 100 + 2 * n, 2);
        }
        bench.reported.clear();
        bench.continue_epoch(5, 6, &[(5, 12, 106)]);
        bench.data(13, 106, 3);
        // 109 is still to come again, and that was told.
        bench.continue_epoch(6, 7, &[(6, 13, 109), (5, 12, 106)]);
        bench.data(14, 109, 2);
        assert_eq!(
            bench.reported,
            [
                "12:106 epoch 5 continued by 6 after 12, 4 of its records were already delivered",
                "13:109 epoch 6 continued by 7 after 13",
                "14:110",
            ]
        );
        assert_eq!(bench.counters.records_already_delivered.get(), 4);
    }

    #[test]
    fn old_epochs_delivery_is_not_lost_with_new_copy() {
        let mut bench = Bench::new(false);
        for n in 0..5 {
            bench.data(10 + n, 100 + 2 * n, 2);
        }
        bench.continue_epoch(5, 6, &[(5, 12, 106)]);
        bench.reported.clear();
        bench.lose(13, 13, LossCause::Window);
        bench.data(14, 112, 1);
        assert_eq!(
            bench.reported,
            [
                "13:112 sequences 13 lost (window), 2 records",
                "14:112 after loss",
            ]
        );
        assert_eq!(bench.counters.lost_records.get(), 2);
    }

    #[test]
    fn epoch_restart_discards_pending_repeats() {
        let mut bench = Bench::new(false);
        for n in 0..5 {
            bench.data(10 + n, 100 + 2 * n, 2);
        }
        bench.continue_epoch(5, 6, &[(5, 12, 106)]);
        bench
            .reassembly
            .restart(Epoch(9), Sequence(1), Some(RecordNumber(106)));
        bench.reported.clear();
        bench.data(1, 106, 2);
        assert_eq!(bench.reported, ["1:106", "1:107"]);
        assert_eq!(bench.counters.records_already_delivered.get(), 0);
    }

    #[test]
    fn repeat_counts_merge_across_two_epoch_changes() {
        let mut bench = Bench::new(true);
        bench.data(10, 100, 1);
        bench.data(13, 105, 2);
        bench.data(15, 109, 1);
        bench.continue_epoch(5, 6, &[(5, 11, 102)]);
        bench.data(14, 120, 2);
        bench.reported.clear();
        bench.continue_epoch(6, 7, &[(6, 13, 118), (5, 11, 102)]);
        assert_eq!(bench.reported, [""; 0], "11 is still missing");
        bench.data(11, 101, 1);
        bench.data(12, 102, 6);
        bench.data(13, 108, 10);
        assert_eq!(
            bench.reported[..2],
            [
                "11:101",
                "11:102 epoch 5 continued by 6 after 11, 5 of its records were already delivered",
            ]
        );
        let last = bench.reported.last().unwrap();
        assert_eq!(last, "13:118 epoch 6 continued by 7 after 13");
        assert_eq!(bench.counters.records_already_delivered.get(), 3);
    }
}
