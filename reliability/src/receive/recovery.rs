//! Missing sequences, their requests, and the delivery that waits for them (docs/PROTOCOL.md §5.3, §5.4, §7).

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::control::{ChannelOffer, Refused};
use crate::delivery::{Deliver, Delivery, Event, LossCause, Via};
use crate::receive::config::ReceiverConfig;
use crate::receive::confirmed::LossLimit;
use crate::receive::gaps::Origin;
use crate::receive::in_order::InOrder;
use crate::receive::lines::Lines;
use crate::receive::path::ArrivalPath;
use crate::receive::rdma_read::Readable;
use crate::receive::reassembly::{Conflict, Duplicate, Misnumbered, Reassembly};
use crate::receive::repair::{ALL, Repair};
use crate::receive::requests::{PathHealth, RepairRequests};
use crate::receive::window::{Held, Window};
use crate::record::Records;
use crate::types::{
    ChannelId, Continued, Epoch, Lineage, Nanos, ReceiverCounters, RecordNumber, Sequence,
    SequenceRange,
};
use crate::wire::{Datagram, Header};

/// The missing sequences, and the delivery that waits for them.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Recovery {
    repair: Repair,
    reassembly: Reassembly,
    /// The last sequence in its turn whose record number did not follow. Other datagrams of it may be
    /// forged as well.
    misnumbered: Sequence,
    #[serde(skip)]
    counters: Arc<ReceiverCounters>,
}

impl Recovery {
    /// Nothing is missing, of a publisher with a ring of `ring.0` slots of `ring.1` bytes.
    #[must_use]
    pub(crate) fn new(
        config: &ReceiverConfig,
        channel: ChannelId,
        ring: (u64, usize),
        seed: u64,
        counters: Arc<ReceiverCounters>,
    ) -> Self {
        let window = Window::new(config.window_slots as usize, ring.1);
        let in_arrival_order = config.delivery == Delivery::Arrival;
        Self {
            repair: Repair::new(config, seed),
            reassembly: Reassembly::new(channel, window, ring.0, in_arrival_order),
            misnumbered: Sequence::NONE,
            counters,
        }
    }

    /// The counters of the channel.
    #[inline]
    pub(crate) const fn counters(&self) -> &Arc<ReceiverCounters> {
        &self.counters
    }

    /// Counts in these counters from now on.
    pub(crate) fn set_counters(&mut self, counters: Arc<ReceiverCounters>) {
        self.counters = counters;
    }

    /// The missing sequences, and when to request them.
    #[inline]
    pub(crate) const fn repair(&self) -> &Repair {
        &self.repair
    }

    /// The missing sequences, and when to request them.
    pub(crate) const fn repair_mut(&mut self) -> &mut Repair {
        &mut self.repair
    }

    /// The delivery.
    #[inline(always)]
    pub(crate) const fn reassembly(&self) -> &Reassembly {
        &self.reassembly
    }

    /// The delivery.
    #[inline(always)]
    pub(crate) const fn reassembly_mut(&mut self) -> &mut Reassembly {
        &mut self.reassembly
    }

    /// The stream that the application receives.
    pub(crate) const fn stream(&self) -> &InOrder {
        self.reassembly.stream()
    }

    /// The stream that the application receives, to change its lineage, its mirror or its end.
    pub(crate) const fn stream_mut(&mut self) -> &mut InOrder {
        self.reassembly.stream_mut()
    }

    /// The next sequence to deliver or declare lost.
    #[inline(always)]
    pub(crate) const fn next(&self) -> Sequence {
        self.reassembly.next()
    }

    /// Starts over in `epoch` with `next`.
    pub(crate) fn restart(
        &mut self,
        epoch: Epoch,
        next: Sequence,
        next_record: Option<RecordNumber>,
    ) {
        self.reassembly.restart(epoch, next, next_record);
        self.misnumbered = Sequence::NONE;
    }

    /// Passes everything that is resolved.
    pub(crate) fn advance(&mut self, now: Nanos, on: &mut dyn Deliver) {
        while let Some(found) = self.reassembly.advance(&self.counters, on) {
            self.handle_misnumbered(found, now, on);
        }
    }

    /// The publisher says that the first record of `sequence` has this number.
    pub(crate) fn confirm_number(
        &mut self,
        sequence: Sequence,
        record: RecordNumber,
        on: &mut dyn Deliver,
    ) {
        (self.reassembly).confirm_number(sequence, record, &self.counters, on);
    }

    /// Handles two datagrams whose record numbers do not follow. If the second was dropped, it is missing
    /// again, and either may be forged, so the first is contested.
    #[cold]
    fn handle_misnumbered(&mut self, found: Misnumbered, now: Nanos, on: &mut dyn Deliver) {
        match found {
            Misnumbered::Dropped(sequence) => {
                self.repair.reopen(sequence, now, &self.counters);
                self.note_misnumbered(sequence, on);
            }
            Misnumbered::Contested(sequence) => self.note_contested(sequence, on),
        }
    }

    /// Contests the datagram before this one, which does not follow it.
    fn note_misnumbered(&mut self, sequence: Sequence, on: &mut dyn Deliver) {
        self.misnumbered = sequence;
        self.contest_and_report(sequence.previous(), on);
    }

    /// Contests what was delivered or waits with this sequence, and reports it, unless it was contested
    /// before.
    fn contest_and_report(&mut self, sequence: Sequence, on: &mut dyn Deliver) {
        if self.reassembly.contest(sequence) {
            self.note_contested(sequence, on);
        }
    }

    /// Requests the publisher's copy of a datagram that may be forged, and reports it.
    fn note_contested(&mut self, sequence: Sequence, on: &mut dyn Deliver) {
        self.repair.contest(sequence);
        self.counters.fencing_violations.increment();
        let event = Event::FencingViolation {
            sequence,
            wrong_one_delivered: false,
        };
        self.reassembly.stream().emit(&event, on);
    }

    /// Counts what is open.
    #[inline]
    pub(crate) fn count_open(&mut self) {
        self.repair.count_open(&self.counters);
    }

    /// Delivers the records of the next datagram, when no other datagram waits or is missing.
    #[inline(always)]
    pub(crate) fn deliver_next(
        &mut self,
        datagram: &Datagram<'_>,
        records: Records<'_>,
        held: Held,
        on: &mut impl Deliver,
    ) {
        (self.reassembly).deliver_next(datagram, records, held, &self.counters, on);
    }

    /// Takes a datagram that is neither delivered nor held and lies within the window.
    #[inline]
    pub(crate) fn offer(&mut self, datagram: &Datagram<'_>, held: Held, on: &mut dyn Deliver) {
        let found = (self.reassembly).offer(datagram, held, &self.counters, on);
        // First, because those that waited behind this one may be misnumbered, too.
        if held.sequence == self.misnumbered && held.via != Via::Repair {
            self.contest_and_report(held.sequence, on);
        }
        if let Some(found) = found {
            self.handle_misnumbered(found, held.received_at, on);
            self.advance(held.received_at, on);
        }
    }

    /// Makes room for the datagrams of the ring on offer.
    pub(crate) fn fit_ring(&mut self, offer: &ChannelOffer) {
        (self.reassembly).fit_ring(offer.slots, offer.slot_len as usize);
    }

    /// Another epoch continues the one followed at this place: datagrams beyond it count no more, except
    /// that they were delivered. Missing sequences of `superseded` are missing no more.
    pub(crate) fn continue_epoch(
        &mut self,
        (epoch, lineage): (Epoch, &Lineage),
        at: Continued,
        superseded: Option<SequenceRange>,
        on: &mut dyn Deliver,
    ) {
        if let Some(range) = superseded {
            self.repair.supersede(range, &self.counters);
        }
        let dropped = (self.reassembly).continue_epoch(epoch, lineage, at, &self.counters, on);
        self.counters.epoch_change_dropped.add(dropped);
        self.repair.forget_contested_above(at.last);
    }

    /// Nothing is confirmed beyond `last` until the repair connection is up again.
    pub(crate) fn suspend_confirmation(&mut self, last: Sequence) {
        self.reassembly.suspend_confirmation(last, &self.counters);
    }

    /// Notes that nobody has heard of these sequences, which were sent.
    pub(crate) fn note_missing(&mut self, range: SequenceRange, now: Nanos, origin: Origin) {
        // Sequences beyond the window cannot be requested yet and may be one gap.
        let joins = range.first >= self.reassembly.window_end();
        let gives_up = (self.repair).note_missing(range, now, origin, joins, &self.counters);
        if gives_up {
            self.lose(range, LossCause::Burst);
        }
    }

    /// Declares everything of `range` that is missing lost.
    pub(crate) fn lose(&mut self, range: SequenceRange, cause: LossCause) {
        let reassembly = &mut self.reassembly;
        (self.repair).lose(range, &self.counters, |part| reassembly.lose(part, cause));
    }

    /// Declares everything that is missing below `oldest` lost: the ring no longer holds it.
    pub(crate) fn lose_below(&mut self, oldest: Sequence) {
        if let Some(gone) = SequenceRange::new(Sequence::FIRST, oldest.previous()) {
            self.lose(gone, LossCause::Window);
        }
    }

    /// Declares everything that is open lost, even where nobody knows how many records that costs.
    pub(crate) fn lose_all(&mut self, cause: LossCause, on: &mut dyn Deliver) {
        self.lose(ALL, cause);
        while let Some(found) = self.reassembly.advance(&self.counters, on) {
            self.handle_misnumbered(found, Nanos::ZERO, on);
            self.lose(ALL, cause);
        }
        (self.reassembly.stream_mut()).give_up_pending(&self.counters, on);
    }

    /// Reports the end of the session once, after any loss before it.
    pub(crate) fn end(&mut self, on: &mut dyn Deliver) {
        (self.reassembly.stream_mut()).end(&self.counters, on);
    }

    /// Declares lost what the clock says, as far as `limit` lets it.
    pub(crate) fn lose_overdue(&mut self, now: Nanos, limit: &LossLimit, on: &mut dyn Deliver) {
        while let Some((range, cause)) = self.repair.overdue(now, limit) {
            self.lose(range, cause);
        }
        self.advance(now, on);
    }

    /// Nothing of these sequences is missing any more, and nothing of them is lost.
    pub(crate) fn forget_missing(&mut self, range: SequenceRange) {
        self.repair.lose(range, &self.counters, |_| {});
    }

    /// Takes a datagram that is not missing. Returns what nothing remembered contradicts or confirms.
    /// `can_request`: whether the repair connection is up.
    pub(crate) fn take_duplicate(
        &mut self,
        path: ArrivalPath,
        held: &Held,
        datagram: &Datagram<'_>,
        can_request: bool,
        on: &mut dyn Deliver,
    ) -> Duplicate {
        self.repair.note_late(path, held.received_at);
        if held.via == Via::Repair {
            self.repair.decide(held.sequence);
        }
        let duplicate = (self.reassembly).take_duplicate(held, datagram, &self.counters, on);
        if let Duplicate::Conflict(Conflict {
            wrong_one_delivered: true,
            ..
        }) = duplicate
        {
            // An impostor's neighbours follow its records, so nothing else may reveal them.
            for neighbour in [held.sequence.previous(), held.sequence.next()] {
                self.contest_and_report(neighbour, on);
            }
        }
        if let Duplicate::Conflict(Conflict {
            is_newly_contested: true,
            ..
        }) = duplicate
            && can_request
        {
            self.repair.contest(held.sequence);
        }
        duplicate
    }

    /// Returns whether the next datagram does not follow the one before. Either may be forged, so that one is
    /// contested.
    pub(crate) fn contradicts(&mut self, header: &Header, on: &mut dyn Deliver) -> bool {
        let contradicts = self.reassembly.contradicts(header);
        if contradicts {
            self.note_misnumbered(header.sequence, on);
        }
        contradicts
    }

    /// Contests what was delivered or waits with this sequence.
    pub(crate) fn contest(&mut self, sequence: Sequence) {
        if self.reassembly.contest(sequence) {
            self.repair.contest(sequence);
        }
    }

    /// Contests everything that was delivered or waits with these sequences.
    pub(crate) fn contest_all(&mut self, range: SequenceRange) {
        let contested = self.reassembly.contest_all(range);
        contested.for_each(|sequence| self.repair.contest(sequence));
    }

    /// Requests the contested sequences of `range` again at this time.
    pub(crate) fn requery(&mut self, range: SequenceRange, at: Nanos) {
        let contested = self.reassembly.contested(range);
        self.repair.requery(contested, at);
    }

    /// Returns to the place behind `last`: everything beyond is void. The record `next_record` follows it.
    pub(crate) fn roll_back(
        &mut self,
        last: Sequence,
        next_record: RecordNumber,
        on: &mut dyn Deliver,
    ) {
        if let Some(beyond) = SequenceRange::new(last.next(), Sequence(u64::MAX)) {
            self.repair.supersede(beyond, &self.counters);
        }
        let dropped = (self.reassembly).roll_back(last, next_record, &self.counters, on);
        self.counters.fenced_dropped.add(dropped);
        self.repair.forget_contested_above(last);
    }

    /// A READ found `found` in the place of an earlier sequence. The ring no longer holds what lies a
    /// whole round before.
    #[cold]
    pub(crate) fn handle_lapped_read(
        &mut self,
        now: Nanos,
        found: Sequence,
        slots: u64,
        on: &mut dyn Deliver,
    ) {
        let gone = found.minus(slots);
        self.counters.reads_lapped.increment();
        self.reassembly.note_floor(gone.next(), RecordNumber(0));
        self.lose_below(gone.next());
        self.advance(now, on);
    }

    /// A READ brought a slot that was being written, or is damaged.
    #[cold]
    pub(crate) fn handle_torn_read(&mut self, now: Nanos, sequence: Sequence) {
        self.counters.reads_torn.increment();
        self.repair.note_torn_read(sequence, now);
    }

    /// The ring no longer holds all of a range: what it does not hold now, it will not hold later.
    pub(crate) fn handle_refused_window(&mut self, now: Nanos, refused: &Refused) {
        self.lose_below(refused.oldest);
        // Nobody can tell any more which content below is the publisher's.
        if let Some(gone) = SequenceRange::new(Sequence::FIRST, refused.oldest.previous()) {
            self.reassembly.leave_contested(gone, &self.counters);
        }
        // The rest of the range may be requested again.
        self.repair.retry_refused(refused.range, now);
    }

    /// Collects all requests that are due, and returns whether the path still answers.
    pub(crate) fn due_requests(
        &mut self,
        now: Nanos,
        lines: &Lines,
        readable: Option<&mut Readable>,
        requests: &mut RepairRequests,
    ) -> PathHealth {
        let reassembly = &self.reassembly;
        (self.repair).due_decisions(now, |it| reassembly.is_contested(it), requests);
        let first = self.reassembly.next();
        // The window ends before `window_end`; at the very last sequence that saturates.
        let last = self.reassembly.window_end().previous().max(first);
        let window = SequenceRange { first, last };
        (self.repair).due_requests(now, window, lines, readable, &self.counters, requests)
    }

    /// Returns when a request is due if nothing arrives until then.
    pub(crate) fn next_request(&self, lines: &Lines) -> Nanos {
        let window_end = self.reassembly.window_end();
        self.repair.next_request(lines, window_end)
    }
}
