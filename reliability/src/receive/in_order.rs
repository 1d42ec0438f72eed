//! The stream that the application receives: each loss is reported exactly in its place, with the number of
//! records that it cost, and each change of epoch behind what precedes it (docs/PROTOCOL.md §7, §8).

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::control::ChannelOffer;
use crate::delivery::{Deliver, Event, Item, Loss, LossCause, Position, Quality, Via};
use crate::planted::{Bug, planted};
use crate::receive::confirmed::Place;
use crate::receive::mirror::Mirror;
use crate::receive::remembered::{Content, Remembered};
use crate::receive::replayed_records::AlreadyDelivered;
use crate::receive::revocable::{Corrected, Revocable};
use crate::receive::window::Held;
use crate::record::Records;
use crate::types::{
    ChannelId, Continued, Epoch, Lineage, Nanos, ReceiverCounters, RecordNumber, Sequence,
    SequenceRange, SourceId, SourcePosition,
};
use crate::wire::{Datagram, Header, Kind, StreamEvent};

/// A place where another epoch continues the stream.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Crossing {
    /// The last sequence of the epoch before.
    last: Sequence,
    to: Epoch,
    /// Records of the epoch before that were delivered beyond the place.
    repeated: u64,
}

/// The stream that the application receives.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct InOrder {
    channel: ChannelId,
    epoch: Epoch,
    /// The next sequence to deliver or declare lost, and the contents delivered last.
    remembered: Remembered,
    /// The number of the first record of the next sequence, where known.
    next_record: Option<RecordNumber>,
    /// A loss that delivery has reached, until the number of its records is known.
    pending: Option<(SequenceRange, LossCause)>,
    /// Every record below this number was delivered or reported lost, as of the last known `next_record`.
    known_to: RecordNumber,
    /// Where other epochs continue this one, ascending: beyond `next`, or reached and not yet reported.
    crossings: VecDeque<Crossing>,
    /// Records that the old epochs of the crossings delivered beyond them.
    repeated: AlreadyDelivered,
    /// Losses and claims that were reported and are not confirmed.
    revocable: Revocable,
    after_loss: bool,
    ended: bool,
    /// Takes everything delivered, for a standby.
    #[serde(skip)]
    mirror: Option<Box<Mirror>>,
}

impl InOrder {
    /// Nothing was delivered yet, of a publisher with a ring of `ring_slots` slots.
    #[must_use]
    pub(crate) fn new(channel: ChannelId, ring_slots: u64) -> Self {
        Self {
            channel,
            epoch: Epoch::NONE,
            remembered: Remembered::new(ring_slots),
            next_record: None,
            pending: None,
            known_to: RecordNumber(0),
            crossings: VecDeque::new(),
            repeated: AlreadyDelivered::default(),
            revocable: Revocable::default(),
            after_loss: false,
            ended: false,
            mirror: None,
        }
    }

    /// Starts over in `epoch` with `next`.
    pub(crate) fn restart(
        &mut self,
        epoch: Epoch,
        next: Sequence,
        next_record: Option<RecordNumber>,
    ) {
        (self.epoch, self.next_record) = (epoch, next_record);
        self.remembered.restart(next);
        (self.pending, self.ended) = (None, false);
        self.known_to = RecordNumber(0);
        self.crossings.clear();
        self.repeated.clear();
        self.revocable.clear();
    }

    /// Remembers the contents of a ring of this many slots.
    pub(crate) fn fit_ring(&mut self, ring_slots: u64) {
        self.remembered.fit(ring_slots);
    }

    /// Returns how many records of the remembered contents beyond `last` were not delivered.
    pub(crate) fn undelivered_beyond(&self, last: Sequence) -> u64 {
        self.revocable.undelivered_beyond(last)
    }

    /// The next sequence to deliver or declare lost.
    #[inline(always)]
    #[must_use]
    pub(crate) const fn next(&self) -> Sequence {
        self.remembered.next()
    }

    /// The last sequence delivered or reported lost, and the number of the record after it (0: unknown).
    #[inline]
    pub(crate) fn place(&self) -> Place {
        let pending = self.pending.map(|(range, _)| range.first);
        let last = pending.unwrap_or(self.next()).previous();
        (last, self.next_record.unwrap_or(RecordNumber(0)))
    }

    /// The place, and whether a mirror is filled there.
    #[inline]
    pub(crate) fn place_to_fill(&self) -> (Place, bool) {
        (self.place(), self.mirror.is_some())
    }

    /// Returns whether this is the number of the first record of the next sequence, as far as delivery knows.
    #[inline(always)]
    pub(crate) fn is_next_record(&self, record: RecordNumber) -> bool {
        self.next_record == Some(record)
    }

    /// Returns whether a datagram with the next sequence cannot be the publisher's, because its first record
    /// does not follow the last one delivered. Behind a loss the number is unknown.
    pub(crate) fn contradicts(&self, first_record: RecordNumber) -> bool {
        let known = self.next_record.filter(|_| self.pending.is_none());
        known.is_some_and(|next| next != first_record)
    }

    /// The contents delivered last.
    #[must_use]
    pub(crate) const fn remembered(&self) -> &Remembered {
        &self.remembered
    }

    /// The contents delivered last, to contest or decide them.
    pub(crate) const fn remembered_mut(&mut self) -> &mut Remembered {
        &mut self.remembered
    }

    /// Returns whether nothing is to be reported before the next datagram.
    #[inline]
    pub(crate) fn is_clear(&self) -> bool {
        self.pending.is_none() && self.crossings.is_empty()
    }

    /// Returns whether a record of this number can follow what was delivered and lost so far.
    pub(crate) fn can_follow(&self, record: RecordNumber) -> bool {
        self.next_record.is_none_or(|first| first <= record)
    }

    /// Returns whether a loss that delivery has reached is not reported yet.
    pub(crate) const fn has_pending(&self) -> bool {
        self.pending.is_some()
    }

    /// Everything up to `last` is confirmed, so that its losses stand.
    pub(crate) fn confirm_losses(&mut self, last: Sequence) {
        self.revocable.confirm_losses(last);
    }

    /// Nothing is confirmed beyond `last` from now on. `delivered`: records delivered beyond.
    pub(crate) fn suspend_confirmation(
        &mut self,
        last: Sequence,
        delivered: u64,
        counters: &ReceiverCounters,
    ) {
        self.revocable.suspend(last, delivered, counters);
    }

    /// Sets where other epochs continue the self. The epoch at `next` is `epoch`, or one that `epoch`
    /// continues.
    pub(crate) fn set_lineage(&mut self, epoch: Epoch, lineage: &Lineage) {
        if lineage.of(self.epoch).is_none() {
            self.epoch = lineage.epoch_of(epoch, self.next());
        }
        self.crossings.clear();
        let mut to = epoch;
        for it in lineage.epochs() {
            if to == self.epoch {
                break;
            }
            let (last, repeated) = (it.last, 0);
            self.crossings.push_front(Crossing { last, to, repeated });
            to = it.epoch;
        }
    }

    /// Another epoch continues the one followed at this place. `early`: datagrams that were delivered beyond
    /// before their turn.
    pub(crate) fn continue_epoch<'a>(
        &mut self,
        (epoch, lineage): (Epoch, &Lineage),
        at: Continued,
        early: impl Iterator<Item = &'a Held>,
        counters: &ReceiverCounters,
        on: &mut dyn Deliver,
    ) {
        let window_end = at.last.next();
        let known_to = self.next_record.unwrap_or(self.known_to);
        let before = self.repeated.count();
        if self.next() > window_end {
            // Records lost last are delivered after all. Behind other losses they would be out of order.
            let (end, place) = (self.place().0, (at.last, at.next_record));
            let (first_lost, corrected) = self.revocable.void_last_losses(end, place, counters);
            self.emit_corrected(corrected, on);
            let settled_to = first_lost.unwrap_or(known_to);
            self.repeated.add(at.next_record, settled_to);
        }
        for held in early {
            let after = held.first_record.plus(held.count.into());
            self.repeated.add(held.first_record, after);
        }
        self.ended = false;
        self.revocable.confirm_losses(at.last);
        if self.next() > window_end {
            self.remembered.return_to(at.last);
            // A loss beyond the place is none, because its records are published again.
            self.pending.take_if(|(range, _)| range.first > at.last);
            if let Some((range, _)) = &mut self.pending {
                range.last = at.last;
            }
        }
        // Repeated records of an earlier change that was not reported are reported with this one.
        let not_emitted: u64 = self.crossings.iter().map(|it| it.repeated).sum();
        let new = self.repeated.count() - before;
        self.set_lineage(epoch, lineage);
        if let Some(crossing) = self.crossings.front_mut() {
            crossing.repeated = not_emitted + new;
        }
        if planted(Bug::RepeatedRecordsDelivered) {
            self.repeated.clear();
        }
        if self.next() == window_end {
            self.emit_pending(Some(at.next_record), counters, on);
            self.next_record = Some(at.next_record);
            self.enter_next_epoch(on);
        }
        if let Some(mirror) = &mut self.mirror {
            mirror.continue_epoch(epoch, lineage.clone(), at);
        }
    }

    /// Returns whether the session is over, and all of it was delivered or declared lost.
    #[must_use]
    pub(crate) const fn ended(&self) -> bool {
        self.ended
    }

    /// Moves the beginning forward before anything was delivered. Sequences that the ring lost meanwhile
    /// are no loss, because the application wanted the oldest there is.
    pub(crate) fn begin_at(&mut self, oldest: Sequence, record: RecordNumber) {
        self.remembered.pass(oldest.previous());
        while let Some(crossing) = self.crossing() {
            self.epoch = crossing.to;
        }
        self.next_record = (record != RecordNumber(0)).then_some(record);
    }

    /// The mirror that keeps a copy of everything delivered, if there is one.
    #[must_use]
    pub(crate) fn mirror(&self) -> Option<&Mirror> {
        self.mirror.as_deref()
    }

    /// Sets the mirror that keeps a copy of everything delivered from now on; returns the one before.
    pub(crate) fn set_mirror(&mut self, mirror: Option<Mirror>) -> Option<Mirror> {
        let before = std::mem::replace(&mut self.mirror, mirror.map(Box::new));
        before.map(|it| *it)
    }

    /// Drops the mirror if the ring on offer has another shape, because its slots have other places.
    pub(crate) fn drop_unfit_mirror(&mut self, offer: &ChannelOffer) {
        self.mirror.take_if(|mirror| !mirror.fits(offer));
    }

    /// Begins the mirror anew with `first`, the first datagram of the epoch on offer.
    pub(crate) fn renew_mirror(&mut self, offer: &ChannelOffer, first: Sequence) {
        self.drop_unfit_mirror(offer);
        if let Some(mirror) = &mut self.mirror {
            mirror.begin_anew(offer.epoch, offer.continues.clone(), first);
        }
    }

    /// The publisher confirmed that the session is over; reports it once, after a loss that delivery reached.
    pub(crate) fn end(&mut self, counters: &ReceiverCounters, on: &mut dyn Deliver) {
        if !std::mem::replace(&mut self.ended, true) || planted(Bug::EndEmittedTwice) {
            // If END itself is lost, nothing follows that would report the loss with its size.
            self.emit_pending(None, counters, on);
            on.item(Item::Event(&self.position(), &Event::EndOfSession));
        }
    }

    /// Reports a pending loss although the number of its records is unknown: at the end of an epoch, or
    /// when the application leaves.
    pub(crate) fn give_up_pending(&mut self, counters: &ReceiverCounters, on: &mut dyn Deliver) {
        self.emit_pending(None, counters, on);
        self.enter_next_epoch(on);
    }

    /// Delivers an event that is no datagram, at the position of the stream.
    pub(crate) fn emit(&self, event: &Event, on: &mut dyn Deliver) {
        on.item(Item::Event(&self.position(), event));
    }

    /// Delivers that the rest of an epoch that is over is lost, from `first` on; its size is unknown.
    pub(crate) fn emit_epoch_tail(
        &self,
        first: Sequence,
        counters: &ReceiverCounters,
        on: &mut dyn Deliver,
    ) {
        counters.loss_events.increment();
        counters.losses_of_unknown_size.increment();
        let loss = Loss {
            sequences: SequenceRange {
                first,
                last: Sequence(u64::MAX),
            },
            records: None,
            cause: LossCause::Epoch,
        };
        self.emit(&Event::Lost(loss), on);
    }

    /// Delivers the records of the next datagram and moves past it, when nothing precedes it.
    #[inline(always)]
    pub(crate) fn deliver_next(
        &mut self,
        datagram: &Datagram<'_>,
        records: Records<'_>,
        held: &Held,
        counters: &ReceiverCounters,
        on: &mut impl Deliver,
    ) {
        self.copy_to_mirror(datagram);
        let position = self.position_of(datagram.header(), held, false);
        self.deliver_records(position, records, held, counters, on);
        self.pass(held);
    }

    /// Reports that the datagram delivered with this sequence, of `forged` records, was not the publisher's,
    /// and `held` is.
    pub(crate) fn report_fenced(
        &mut self,
        forged: u16,
        held: &Held,
        datagram: &Datagram<'_>,
        counters: &ReceiverCounters,
        on: &mut dyn Deliver,
    ) {
        counters.fenced_records.add(forged.into());
        (self.revocable).note_fenced(held.sequence, forged.into());
        (self.revocable).revoke_source_loss(held.sequence, counters);
        if let Some(mirror) = &mut self.mirror {
            mirror.replace(datagram);
        }
        let after = held.first_record.plus(held.count.into());
        let next = (self.pending).map_or(self.next(), |(range, _)| range.first);
        if held.sequence.next() == next && self.next_record.is_some() {
            self.next_record = Some(after);
        }
        let loss = Loss {
            sequences: SequenceRange::one(held.sequence),
            records: Some(held.count.into()),
            cause: LossCause::Fenced,
        };
        self.emit_loss(loss, (None, None), counters, on);
        self.correct_losses_before(held.sequence, held.first_record, counters, on);
        let corrected = (self.revocable).correct_losses_behind(held.sequence, after, counters);
        self.emit_corrected(corrected, on);
    }

    /// The position of the stream, for events that are no datagram.
    #[must_use]
    pub(crate) fn position(&self) -> Position {
        Position {
            channel: self.channel,
            epoch: self.epoch,
            sequence: self.next().previous(),
            record: self.next_record.unwrap_or(RecordNumber(0)),
            via: Via::Repair,
            quality: Quality {
                after_loss: self.after_loss,
                ..Quality::default()
            },
            source: SourceId(0),
            source_position: SourcePosition(0),
            sent_at: Nanos::ZERO,
            received_at: Nanos::ZERO,
            missing_for: Nanos::ZERO,
        }
    }

    /// Removes and returns the first crossing, if the stream has passed it.
    #[inline]
    fn crossing(&mut self) -> Option<Crossing> {
        let next = self.next();
        self.crossings
            .front()
            .is_some_and(|it| next > it.last)
            .then(|| self.crossings.pop_front())?
    }

    /// Reports that another epoch continues the stream here, once everything before it was reported.
    #[inline]
    pub(crate) fn enter_next_epoch(&mut self, on: &mut dyn Deliver) {
        if self.crossings.is_empty() || self.pending.is_some() {
            return;
        }
        while let Some(Crossing { last, to, repeated }) = self.crossing() {
            let from = std::mem::replace(&mut self.epoch, to);
            let continued = Event::EpochContinued {
                from,
                to,
                last,
                repeated,
            };
            on.item(Item::Event(&self.position(), &continued));
        }
    }

    /// Delivers a datagram; [`InOrder::pass`] moves past it.
    #[inline]
    pub(crate) fn deliver(
        &mut self,
        datagram: &Datagram<'_>,
        held: &Held,
        out_of_order: bool,
        counters: &ReceiverCounters,
        on: &mut (impl Deliver + ?Sized),
    ) {
        let header = datagram.header();
        self.copy_to_mirror(datagram);
        let position = self.position_of(header, held, out_of_order);
        match header.kind {
            Kind::Data => match datagram.records() {
                Ok(records) => {
                    let before = counters.delivered_records.get();
                    self.deliver_records(position, records, held, counters, on);
                    let delivered = counters.delivered_records.get() - before;
                    self.revocable.note_delivered(held.sequence, delivered);
                }
                Err(_) => self.emit_unreadable(held, counters, on),
            },
            Kind::Event => {
                if let Some(event) = StreamEvent::parse(datagram.payload()) {
                    counters.stream_events.increment();
                    let (messages, oldest) = (event.source_messages_lost(), self.revocable_from());
                    (self.revocable).count_source_loss(held.sequence, messages, oldest, counters);
                    on.item(Item::Event(&position, &Event::Stream(event)));
                }
                counters.delivered_datagrams.increment();
            }
            // A datagram ends nothing: the end is reported once the repair connection has confirmed it.
            Kind::End => counters.delivered_datagrams.increment(),
            Kind::Heartbeat => {}
        }
    }

    /// Keeps a copy of a delivered datagram in the mirror, if there is one.
    #[inline]
    fn copy_to_mirror(&mut self, datagram: &Datagram<'_>) {
        if let Some(mirror) = &mut self.mirror {
            // A datagram that the mirror refuses is missing there, and the mirror begins anew behind it.
            let _ = mirror.put(datagram);
        }
    }

    /// The position of a datagram that is delivered.
    #[inline]
    fn position_of(&self, header: &Header, held: &Held, out_of_order: bool) -> Position {
        Position {
            channel: self.channel,
            epoch: header.epoch,
            sequence: held.sequence,
            record: held.first_record,
            via: held.via,
            quality: Quality {
                repaired: held.missing_for != Nanos::ZERO,
                out_of_order,
                after_loss: self.after_loss,
                conflated: 0,
            },
            source: header.source,
            source_position: header.source_position,
            sent_at: header.sent_at,
            received_at: held.received_at,
            missing_for: held.missing_for,
        }
    }

    /// Delivers the records of a datagram.
    #[inline]
    fn deliver_records(
        &self,
        position: Position,
        records: Records<'_>,
        held: &Held,
        counters: &ReceiverCounters,
        on: &mut (impl Deliver + ?Sized),
    ) {
        if self.repeated.is_empty() {
            on.records(&position, records);
            counters.delivered_records.add(held.count.into());
        } else {
            self.deliver_new(position, records, counters, on);
        }
        counters.delivered_datagrams.increment();
    }

    /// Losses and events below this sequence cannot become void.
    const fn revocable_from(&self) -> Sequence {
        self.next().minus(self.remembered.span())
    }

    /// Returns to the place behind `last` and reports what is void; the record `next_record` follows it (0:
    /// unknown).
    #[cold]
    pub(crate) fn roll_back(
        &mut self,
        last: Sequence,
        next_record: RecordNumber,
        delivered: Option<u64>,
        counters: &ReceiverCounters,
        on: &mut dyn Deliver,
    ) {
        let records = self.revocable.revoke(last, delivered, counters);
        let known_record = (next_record != RecordNumber(0)).then_some(next_record);
        let mut after = last;
        if self.next() > last.next() {
            self.remembered.return_to(last);
            match &mut self.pending {
                Some((range, _)) if range.first <= last => range.last = last,
                _ => (self.pending, self.next_record) = (None, known_record),
            }
            if self.pending.is_none()
                && let Some(loss) = self.revocable.take_last_loss(last, counters)
            {
                // Its size followed from a forged datagram, so it is reported anew.
                let (sequences, first_record, cause) = loss;
                (self.next_record, self.pending) = (first_record, Some((sequences, cause)));
                after = sequences.first.previous();
            }
        }
        if let Some(mirror) = &mut self.mirror {
            mirror.cut(last, next_record);
        }
        let position = Position {
            sequence: after,
            ..self.position()
        };
        let rolled_back = Event::RolledBack { after, records };
        on.item(Item::Event(&position, &rolled_back));
        if self.next() == last.next() && known_record.is_some() {
            self.emit_pending(known_record, counters, on);
        }
    }

    /// Delivers the records that the epoch before did not deliver.
    #[cold]
    fn deliver_new(
        &self,
        first: Position,
        records: Records<'_>,
        counters: &ReceiverCounters,
        on: &mut (impl Deliver + ?Sized),
    ) {
        first.each(records, |position, record| {
            if self.repeated.has(position.record) {
                counters.records_already_delivered.increment();
            } else {
                counters.delivered_records.increment();
                on.item(Item::Record(position, record));
            }
        });
    }

    /// Reports a datagram with a right CRC and invalid records: it counts as lost, not as delivered.
    #[cold]
    fn emit_unreadable(
        &mut self,
        held: &Held,
        counters: &ReceiverCounters,
        on: &mut (impl Deliver + ?Sized),
    ) {
        counters.malformed_dropped.increment();
        let loss = Loss {
            sequences: SequenceRange::one(held.sequence),
            records: Some(held.count.into()),
            cause: LossCause::Unreadable,
        };
        self.emit_loss(loss, (Some(held.first_record), None), counters, on);
    }

    /// Moves past a datagram that was delivered.
    #[inline]
    pub(crate) fn pass(&mut self, held: &Held) {
        self.remembered.deliver(held.sequence, Content::of(held));
        let next_record = held.first_record.plus(held.count.into());
        self.next_record = Some(next_record);
        if !self.repeated.is_empty() {
            self.repeated.pass(next_record);
        }
    }

    /// Reaches sequences that were declared lost. They are reported once their records can be counted.
    pub(crate) fn reach_lost(&mut self, range: SequenceRange, cause: LossCause) {
        let first = self.next();
        self.remembered.pass(range.last);
        self.pending = Some(match self.pending {
            // Adjacent losses are reported as one, because only their sum is known.
            Some(before) if planted(Bug::SecondLossSwallowed) => before,
            Some((before, cause)) => (
                SequenceRange {
                    first: before.first,
                    last: range.last,
                },
                cause,
            ),
            None => (
                SequenceRange {
                    first,
                    last: range.last,
                },
                cause,
            ),
        });
    }

    /// Reports a loss that delivery has reached. The record `next_record` follows it, if that is known.
    /// Corrects the size of a loss reported before, which a heartbeat of anybody may have misstated.
    #[inline]
    pub(crate) fn emit_pending(
        &mut self,
        next_record: Option<RecordNumber>,
        counters: &ReceiverCounters,
        on: &mut dyn Deliver,
    ) {
        let expected = self.next_record;
        let is_expected = match self.pending.take() {
            Some((sequences, cause)) => {
                self.emit_reached(sequences, cause, next_record, counters, on);
                expected <= next_record
            }
            None => expected == next_record,
        };
        if let (Some(_), Some(found), false) = (expected, next_record, is_expected) {
            self.correct_losses_before(self.next(), found, counters, on);
        }
    }

    #[cold]
    fn emit_reached(
        &mut self,
        sequences: SequenceRange,
        cause: LossCause,
        next_record: Option<RecordNumber>,
        counters: &ReceiverCounters,
        on: &mut dyn Deliver,
    ) {
        let records = match (self.next_record, next_record) {
            (Some(expected), Some(found)) => {
                let short = u64::from(planted(Bug::LossOneRecordShort));
                // Records that the old epoch delivered are not lost with the new epoch's copy.
                let had = self.repeated.within(expected, found);
                Some(found.since(expected).saturating_sub(short + had))
            }
            _ => None,
        };
        let first_record = self.next_record;
        self.known_to = first_record.unwrap_or(self.known_to);
        // Without a known number the old one must go, or the next loss would include this one's records.
        self.next_record = next_record;
        let loss = Loss {
            sequences,
            records,
            cause,
        };
        self.emit_loss(loss, (first_record, next_record), counters, on);
    }

    /// The record `first` begins `sequence`: corrects and reports the sizes of losses before it.
    #[cold]
    fn correct_losses_before(
        &mut self,
        sequence: Sequence,
        first: RecordNumber,
        counters: &ReceiverCounters,
        on: &mut dyn Deliver,
    ) {
        let corrected = (self.revocable).correct_losses_before(sequence, first, counters);
        if sequence == self.next() && !corrected.is_empty() {
            self.next_record = Some(first);
        }
        self.emit_corrected(corrected, on);
    }

    fn emit_corrected(&self, corrected: Vec<Corrected>, on: &mut dyn Deliver) {
        for it in corrected {
            let (sequences, reported, records) = (it.sequences, it.reported, it.records);
            let event = Event::LossCorrected {
                sequences,
                reported,
                records,
            };
            self.emit(&event, on);
        }
    }

    /// Counts and reports a loss, with the number of its first record and of the record behind it.
    #[cold]
    fn emit_loss(
        &mut self,
        loss: Loss,
        numbers: (Option<RecordNumber>, Option<RecordNumber>),
        counters: &ReceiverCounters,
        on: &mut (impl Deliver + ?Sized),
    ) {
        counters.loss_events.increment();
        match loss.records {
            Some(records) => counters.lost_records.add(records),
            None => counters.losses_of_unknown_size.increment(),
        }
        self.after_loss = true;
        let oldest = self.revocable_from();
        self.revocable.note_loss(&loss, numbers, oldest);
        let position = self.position();
        on.item(Item::Event(&position, &Event::Lost(loss)));
    }
}
