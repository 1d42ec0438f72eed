//! The stream of one channel: which sequences the publisher has sent, which are missing, and what is
//! delivered in their order (docs/PROTOCOL.md §5, §7, §8).
//!
//! [`EpochStream`] composes the parts that know of sequences. [`crate::receive::Receiver`] gives it the
//! datagrams and messages that concern them.

use std::collections::VecDeque;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::control::{ChannelOffer, Progress, RefusalReason, Refused, Start, Status};
use crate::delivery::{Deliver, Delivery, Event, LineId, LinkDownReason, LossCause, Position, Via};
use crate::planted::{Bug, planted};
use crate::receive::config::ReceiverConfig;
use crate::receive::confirmed::{Confirmed, Impostor};
use crate::receive::end::EndState;
use crate::receive::gaps::Origin;
use crate::receive::join::{Beginning, JoinState};
use crate::receive::lines::Lines;
use crate::receive::mirror::Mirror;
use crate::receive::path::{Arrival, ArrivalPath};
use crate::receive::progress::ProgressState;
use crate::receive::rdma_read::Readable;
use crate::receive::reassembly::{Duplicate, Reassembly};
use crate::receive::repair::{ALL, Repair};
use crate::receive::requests::{PathHealth, RepairRequests};
use crate::receive::window::{Held, Window};
use crate::types::{
    ChannelId, Continued, Epoch, Nanos, ReceiverCounters, RecordNumber, Sequence, SequenceRange,
};
use crate::wire::{Datagram, Header, Heartbeat, Kind, PublisherState, relay_flags};

/// The sequences of one channel, in the epoch that is followed and those that it continues.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct EpochStream {
    delivery: Delivery,
    join: JoinState,
    progress: ProgressState,
    confirmed: Confirmed,
    repair: Repair,
    reassembly: Reassembly,
    end: EndState,
    /// Events outside the order of delivery, which the next input delivers.
    events: VecDeque<Event>,
    #[serde(skip)]
    counters: Arc<ReceiverCounters>,
}

impl EpochStream {
    /// A stream that has not begun, of a publisher with a ring of `ring.0` slots of `ring.1` bytes.
    #[must_use]
    pub(crate) fn new(
        config: &ReceiverConfig,
        channel: ChannelId,
        ring: (u64, usize),
        seed: u64,
        now: Nanos,
        counters: Arc<ReceiverCounters>,
    ) -> Self {
        let window = Window::new(config.window_slots as usize, ring.1);
        let in_arrival_order = config.delivery == Delivery::Arrival;
        Self {
            delivery: config.delivery,
            join: JoinState::new(ring),
            progress: ProgressState::new(config, now),
            confirmed: Confirmed::new(ring.0),
            repair: Repair::new(config, seed),
            reassembly: Reassembly::new(channel, window, ring.0, in_arrival_order),
            end: EndState::default(),
            events: VecDeque::with_capacity(64),
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

    /// The epoch and the repair connection.
    #[inline]
    pub(crate) const fn join(&self) -> &JoinState {
        &self.join
    }

    /// Returns whether everything up to END was delivered or declared lost.
    #[inline]
    pub(crate) const fn ended(&self) -> bool {
        self.reassembly.stream().ended()
    }

    /// Returns whether something is missing that an answer of the publisher would bring.
    pub(crate) fn is_waiting(&self) -> bool {
        self.repair.is_waiting()
    }

    /// Returns how many sequences lie between the last one delivered or declared lost and the newest
    /// one known to have been sent.
    pub(crate) fn lag(&self) -> u64 {
        self.progress.newest().since(self.delivered())
    }

    /// The position of the stream, for events that are no datagram.
    pub(crate) fn position(&self) -> Position {
        self.reassembly.stream().position()
    }

    /// The last sequence delivered or declared lost.
    pub(crate) const fn delivered(&self) -> Sequence {
        self.reassembly.next().previous()
    }

    /// The newest sequence that the repair path confirmed, and the last one that multicast may claim.
    pub(crate) const fn confirmed(&self) -> (Sequence, Sequence) {
        (self.confirmed.newest(), self.confirmed.limit())
    }

    /// The highest sequence known to have been sent.
    pub(crate) const fn highest_seen(&self) -> Sequence {
        self.progress.highest_seen()
    }

    /// Returns whether a datagram of multicast, whose CRC is right and whose channel is ours, can be
    /// delivered at once: it is the next one and data, nothing is missing, nothing waits, and nothing is
    /// to be reported before it.
    #[inline(always)]
    pub(crate) fn is_fast_path(&self, datagram: &Datagram<'_>) -> bool {
        let (header, next) = (datagram.header(), self.reassembly.next());
        header.sequence == next
            // So no known sequence is missing, and none lies beyond.
            && self.progress.highest_seen() == next.previous()
            // Nothing is to be asked before.
            && next <= self.confirmed.fast_until()
            && header.kind == Kind::Data
            && header.relay & relay_flags::RETRANSMITTED == 0
            && self.join.is_of_line(header)
            && !self.end.is_confirmed()
            && !self.ended()
            && self.join.beginning().is_none()
            && self.reassembly.is_clear()
            && datagram.bytes().len() <= self.reassembly.window().slot_len()
    }

    /// Delivers a datagram of the fast path.
    #[inline(always)]
    pub(crate) fn deliver_fast(
        &mut self,
        now: Nanos,
        line: LineId,
        datagram: &Datagram<'_>,
        on: &mut impl Deliver,
    ) {
        let Ok(records) = datagram.records() else {
            self.reject_unreadable(now, datagram.header().sequence);
            return self.resolve(now, on);
        };
        self.progress.note_seen(datagram.header().sequence);
        let held = Held::of(now, Via::Line(line), datagram);
        self.reassembly
            .deliver_next(datagram, records, held, &self.counters, on);
        self.emit(on);
    }

    /// Returns whether a datagram is of this stream and believable. Otherwise counts it as dropped, and
    /// asks the publisher how far it is where that could explain the datagram.
    pub(crate) fn admit(&mut self, now: Nanos, via: Via, header: &Header) -> bool {
        let sequence = header.sequence;
        let accepted = planted(Bug::OldEpochAccepted) && header.epoch < self.join.epoch();
        if !self.join.is_of_line(header) && !accepted {
            self.reject_epoch(header.epoch, now);
            return false;
        }
        if self.ended() && sequence > self.progress.highest_seen() {
            // The publisher confirmed that nothing follows, so another one sent this.
            self.counters.sequence_jump_dropped.increment();
            return false;
        }
        let leap = sequence.since(self.progress.highest_seen().max(self.reassembly.next()));
        // The repair connection must confirm what lies beyond the ring, and a burst that would be given
        // up at once.
        let leap_max = match self.delivery.waits_for_repair() {
            true => self.join.slots(),
            false => self.join.slots().min(self.repair.burst_max()),
        };
        if leap > leap_max && !planted(Bug::LeapBelieved) {
            self.reject_leap(now);
            return false;
        }
        match via {
            Via::Repair => {
                let after = header.first_record.plus(header.count.into());
                self.confirmed.note_repaired(sequence, after);
            }
            _ if sequence > self.confirmed.limit() => {
                self.reject_leap(now);
                return false;
            }
            _ if self.confirmed.is_report_due(sequence) => self.progress.report_at(now),
            _ => {}
        }
        true
    }

    /// Drops a datagram further ahead than the repair connection confirmed, and asks for a confirmation.
    #[cold]
    fn reject_leap(&mut self, now: Nanos) {
        self.counters.sequence_jump_dropped.increment();
        self.progress.note_leap();
        self.progress.query_soon(now);
    }

    /// Drops a datagram of multicast whose content cannot be delivered: the publisher's own copy is
    /// requested, because anybody may have sent this one.
    #[cold]
    fn reject_unreadable(&mut self, now: Nanos, sequence: Sequence) {
        self.counters.malformed_dropped.increment();
        self.note_sent(sequence, now, Origin::Live);
    }

    #[cold]
    fn reject_epoch(&mut self, epoch: Epoch, now: Nanos) {
        if epoch <= self.join.epoch() {
            return self.counters.old_epoch_dropped.increment();
        }
        self.counters.unknown_epoch_dropped.increment();
        if planted(Bug::StrayEpochBelieved) {
            self.join.set_epoch(epoch, self.join.lineage().clone());
        }
        self.progress.query_soon(now);
    }

    /// Takes a heartbeat: everything up to its sequence was sent.
    pub(crate) fn handle_heartbeat(&mut self, now: Nanos, header: &Header, heartbeat: &Heartbeat) {
        let hold_off = Nanos::from_us(heartbeat.hold_off_us.into());
        self.repair.advise_hold_off(hold_off, heartbeat.subscribers);
        self.note_sent(header.sequence, now, Origin::Live);
        self.reassembly
            .set_anchor(header.sequence.next(), header.first_record);
        if heartbeat.state == PublisherState::Ended && !self.end.is_confirmed() {
            if planted(Bug::EndedHeartbeatBelieved) {
                self.end.confirm(header.sequence);
            }
            // A datagram ends nothing: STATUS says whether it is true.
            self.progress.query_soon(now);
        }
    }

    /// Takes a datagram that has a sequence: a data datagram, an event or END.
    pub(crate) fn handle_sequenced(
        &mut self,
        now: Nanos,
        arrival: Arrival,
        datagram: &Datagram<'_>,
        lines: &Lines,
        on: &mut dyn Deliver,
    ) {
        let header = datagram.header();
        let sequence = header.sequence;
        let is_repair_copy = header.relay & relay_flags::RETRANSMITTED != 0;
        arrival.count(is_repair_copy, &self.counters);
        let window_end = self.reassembly.window_end();
        let is_beyond = sequence >= window_end.plus(planted(Bug::WindowOffByOne).into());
        if is_beyond && !self.make_room(now, header, on) {
            return;
        }
        let anybody = arrival.via != Via::Repair && sequence >= self.reassembly.next();
        if anybody && !self.reassembly.can_deliver(datagram) && !planted(Bug::UnreadableTaken) {
            return self.reject_unreadable(now, sequence);
        }
        let mut held = Held::of(now, arrival.via, datagram);
        if sequence > self.progress.highest_seen() {
            self.note_sent(sequence.previous(), now, Origin::Live);
            self.progress.note_seen(sequence);
            arrival.count_first(&self.counters);
        } else if let Some((gap, outcome)) =
            self.repair.fill(sequence, now, arrival, is_repair_copy)
        {
            arrival.count_first(&self.counters);
            if gap.origin == Origin::Live {
                let times = 1 + u64::from(planted(Bug::RecoveryCountedTwice));
                self.counters.missing_recovered.add(times);
                // At least one nanosecond, because zero means that it was never missing.
                held.missing_for = now.since(gap.found_at).max(Nanos(1));
            } else {
                self.counters.replay_received.increment();
            }
            if let Some(event) = outcome.and_then(|outcome| outcome.event(now)) {
                if planted(Bug::RecoveryToldTwice) {
                    self.events.push_back(event.clone());
                }
                self.events.push_back(event);
            }
        } else if !(planted(Bug::DuplicateDelivered)
            || planted(Bug::SecondLineDelivered) && arrival.via == Via::Line(LineId(1)))
        {
            return self.handle_duplicate(arrival.path, &held, datagram, lines, on);
        }
        if header.kind == Kind::End {
            if arrival.via == Via::Repair {
                self.end.confirm(sequence);
                // STATUS says whether what lies beyond is an impostor's.
                self.progress.query_soon(now);
            } else {
                self.end.hear(sequence);
                self.progress.query_soon(now);
            }
        }
        self.reassembly.offer(datagram, held, &self.counters, on);
        let has_begun = self.delivery == Delivery::Arrival
            || self.join.beginning() != Some(self.reassembly.next());
        if has_begun {
            self.join.set_beginning(None);
        }
    }

    /// Handles a datagram beyond the window. In arrival order, gives up what falls out of the window and
    /// returns `true`. Otherwise drops the datagram, to be repaired later, and returns `false`.
    fn make_room(&mut self, now: Nanos, header: &Header, on: &mut dyn Deliver) -> bool {
        let sequence = header.sequence;
        if self.delivery != Delivery::Arrival {
            self.note_sent(sequence, now, Origin::Live);
            // The datagram is not held, but its number says how many records lie before it.
            let after = header.first_record.plus(header.count.into());
            self.reassembly.set_anchor(sequence.next(), after);
            self.counters.window_full_dropped.increment();
            return false;
        }
        self.note_sent(sequence.previous(), now, Origin::Live);
        let fallen_out = SequenceRange {
            first: Sequence(0),
            last: sequence.minus(self.reassembly.window().span()),
        };
        self.lose(fallen_out, LossCause::Window);
        self.reassembly.advance(&self.counters, on);
        true
    }

    /// Takes a datagram that is not missing: a duplicate, one that comes too late, or a forged one.
    #[cold]
    fn handle_duplicate(
        &mut self,
        path: ArrivalPath,
        held: &Held,
        datagram: &Datagram<'_>,
        lines: &Lines,
        on: &mut dyn Deliver,
    ) {
        self.repair.note_late(path, held.received_at);
        if held.via == Via::Repair {
            self.repair.decide(held.sequence);
        }
        let duplicate = (self.reassembly).take_duplicate(held, datagram, &self.counters, on);
        let conflict = match duplicate {
            Duplicate::Known => return,
            Duplicate::Forgotten => return self.note_forgotten(held, datagram.header(), lines),
            Duplicate::Conflict(conflict) => conflict,
        };
        if conflict.is_newly_contested && self.join.is_link_up() {
            self.repair.contest(held.sequence);
        }
        self.events.push_back(Event::FencingViolation {
            sequence: held.sequence,
            wrong_one_delivered: conflict.wrong_one_delivered,
        });
    }

    /// Notes a datagram that is older than anything remembered. A line that is merely slow does not bring
    /// it behind one that is a whole memory younger: an impostor may have sent that one.
    fn note_forgotten(&mut self, held: &Held, header: &Header, lines: &Lines) {
        let Via::Line(line) = held.via else { return };
        let is_repair_copy = header.relay & relay_flags::RETRANSMITTED != 0;
        let span = self.reassembly.stream().remembered().span();
        if !is_repair_copy && lines.highest(line).since(held.sequence) > span {
            self.confirmed.note_incomparable(held.sequence);
        }
    }

    /// Notes that everything up to `last` has been sent; sequences that were not heard of are missing.
    pub(crate) fn note_sent(&mut self, last: Sequence, now: Nanos, origin: Origin) {
        let Some(range) = self.progress.note_sent(last) else {
            return;
        };
        // Sequences beyond the window cannot be requested yet and may be one gap.
        let joins = range.first >= self.reassembly.window_end();
        let gives_up = (self.repair).note_missing(range, now, origin, joins, &self.counters);
        if gives_up {
            self.lose(range, LossCause::Burst);
        }
    }

    /// Declares everything of `range` that is missing lost.
    fn lose(&mut self, range: SequenceRange, cause: LossCause) {
        let reassembly = &mut self.reassembly;
        (self.repair).lose(range, &self.counters, |part| reassembly.lose(part, cause));
    }

    /// Declares everything that is missing below `oldest` lost: the ring no longer holds it.
    fn lose_below(&mut self, oldest: Sequence) {
        if let Some(gone) = SequenceRange::new(Sequence::FIRST, oldest.previous()) {
            self.lose(gone, LossCause::Window);
        }
    }

    /// Declares everything that is open lost, even where nobody knows how many records that costs.
    pub(crate) fn lose_all(&mut self, cause: LossCause, on: &mut dyn Deliver) {
        self.lose(ALL, cause);
        self.reassembly.advance(&self.counters, on);
        self.reassembly
            .stream_mut()
            .give_up_pending(&self.counters, on);
    }

    /// The publisher is dead: declares everything lost that nobody is left to bring. An END that came
    /// by multicast counts if nothing that was heard contradicts it.
    pub(crate) fn lose_to_dead_publisher(&mut self, on: &mut dyn Deliver) {
        self.end.accept_unconfirmed(self.progress.highest_seen());
        self.lose_all(LossCause::PublisherDead, on);
    }

    /// The publisher's ring showed that `range` was sent and that it no longer holds it. Declares lost
    /// what nothing else brought.
    #[cold]
    pub(crate) fn handle_overrun(
        &mut self,
        now: Nanos,
        range: SequenceRange,
        on: &mut dyn Deliver,
    ) {
        // The ring itself is the publisher's word.
        (self.confirmed).note_repaired(range.last, RecordNumber(0));
        self.note_sent(range.last, now, Origin::Live);
        self.lose(range, LossCause::Window);
        self.reassembly.advance(&self.counters, on);
    }

    /// A READ found `found` in the place of an earlier sequence. The ring no longer holds what lies a
    /// whole round before.
    #[cold]
    pub(crate) fn handle_lapped_read(&mut self, found: Sequence, slots: u64, on: &mut dyn Deliver) {
        let gone = found.minus(slots);
        self.counters.reads_lapped.increment();
        self.reassembly.note_floor(gone.next(), RecordNumber(0));
        self.lose_below(gone.next());
        self.reassembly.advance(&self.counters, on);
    }

    /// A READ brought a slot that was being written, or is damaged.
    #[cold]
    pub(crate) fn handle_torn_read(&mut self, now: Nanos, sequence: Sequence) {
        self.counters.reads_torn.increment();
        self.repair.note_torn_read(sequence, now);
    }

    /// Declares lost what the clock says, and does what follows from the new state.
    pub(crate) fn handle_timeout(&mut self, now: Nanos, on: &mut dyn Deliver) {
        while let Some((range, cause)) = self.repair.overdue(now) {
            self.lose(range, cause);
        }
        self.reassembly.advance(&self.counters, on);
        self.resolve(now, on);
    }

    /// Does what follows from the new state, after every input: delivers events, and ends the session.
    #[inline]
    pub(crate) fn resolve(&mut self, now: Nanos, on: &mut dyn Deliver) {
        self.repair.count_open(&self.counters);
        self.emit(on);
        self.end_if_resolved(on);
        if self.ended() && self.end.take_report() {
            // The publisher stays until it knows that we have everything.
            self.progress.report_at(now);
        }
    }

    /// Ends the session once everything up to a confirmed END is resolved. Nothing follows END, so
    /// sequences beyond it that another publisher made us miss are not missing.
    fn end_if_resolved(&mut self, on: &mut dyn Deliver) {
        let next = self.reassembly.next();
        if !self.end.is_reached(next) {
            return;
        }
        self.reassembly.stream_mut().end(on);
        if self.progress.highest_seen() >= next {
            self.repair.lose(ALL, &self.counters, |_| {});
            self.progress.end_at(next.previous());
            self.repair.count_open(&self.counters);
        }
    }

    /// Queues an event outside the order of delivery.
    pub(crate) fn queue(&mut self, event: Event) {
        self.events.push_back(event);
    }

    /// Delivers the events that are due after what was delivered.
    #[inline(always)]
    fn emit(&mut self, on: &mut dyn Deliver) {
        if self.join.take_live(self.reassembly.next()) {
            self.reassembly.stream().emit(&Event::Live, on);
        }
        if !self.events.is_empty() {
            self.drain_events(on);
        }
    }

    /// Delivers the queued events.
    #[cold]
    pub(crate) fn drain_events(&mut self, on: &mut dyn Deliver) {
        while let Some(event) = self.events.pop_front() {
            self.reassembly.stream().emit(&event, on);
        }
    }

    /// Declares everything open lost and delivers all events: the receiver is closed.
    pub(crate) fn close(&mut self, cause: LossCause, on: &mut dyn Deliver) {
        self.lose_all(cause, on);
        self.repair.count_open(&self.counters);
        self.drain_events(on);
    }

    /// Begins to follow the epoch on offer, where the application wants to start.
    pub(crate) fn begin(
        &mut self,
        now: Nanos,
        offer: &ChannelOffer,
        start: Start,
        on: &mut dyn Deliver,
    ) {
        self.join.set_epoch(offer.epoch, offer.continues.clone());
        self.counters.epochs.increment();
        let beginning = Beginning::of(offer, start);
        if let Some((epoch, sequence)) = beginning.over {
            // Nobody can say how much of that epoch the application missed.
            self.reassembly.restart(epoch, sequence, None);
            self.reassembly
                .stream()
                .emit_epoch_tail(sequence, &self.counters, on);
            let change = Event::EpochChanged {
                from: epoch,
                to: offer.epoch,
            };
            self.reassembly.stream().emit(&change, on);
        }
        let (next, next_record) = match planted(Bug::BeginsFurtherOn) {
            true => (beginning.next.plus(3), None),
            false => (beginning.next, beginning.next_record),
        };
        let first = next.plus(planted(Bug::LateJoinSkipsOne).into());
        self.reassembly.restart(offer.epoch, first, next_record);
        self.reassembly
            .stream_mut()
            .set_lineage(offer.epoch, self.join.lineage());
        self.reassembly
            .fit_ring(offer.slots, offer.slot_len as usize);
        self.progress.restart(first.previous());
        self.confirmed.restart(offer.newest, offer.next_record);
        let repeated = u64::from(planted(Bug::LateJoinRepeatsOne));
        let after = next.previous().plus(repeated);
        self.reassembly.stream().emit(&Event::Joined { after }, on);
        self.join
            .set_live_after(match planted(Bug::LiveToldTooSoon) {
                true => Sequence::NONE,
                false => offer.newest,
            });
        self.join
            .set_beginning((start == Start::Oldest).then_some(next));
        self.note_history(now, offer);
        self.lose_below(offer.oldest_of_all().0);
    }

    /// Goes on in the epoch that is followed: the repair connection is new.
    pub(crate) fn go_on(&mut self, now: Nanos, offer: &ChannelOffer, is_stale: bool) {
        let heard = self.progress.highest_seen();
        (self.confirmed).welcome(offer.newest, offer.next_record, heard);
        self.confirm(offer.newest, offer.next_record, is_stale, now);
        self.repair.request_all_again(now);
        self.requery(ALL, now);
    }

    /// Follows the epoch on offer, which goes on where the epoch followed ended for it. Nothing is lost,
    /// and datagrams beyond that place count no more.
    pub(crate) fn continue_epoch(
        &mut self,
        now: Nanos,
        offer: &ChannelOffer,
        at: Continued,
        on: &mut dyn Deliver,
    ) {
        self.join.set_epoch(offer.epoch, offer.continues.clone());
        self.counters.epochs.increment();
        self.counters.epochs_continued.increment();
        self.reassembly
            .fit_ring(offer.slots, offer.slot_len as usize);
        self.confirmed.restart(offer.newest, offer.next_record);
        self.reassembly.stream_mut().drop_unfit_mirror(offer);
        let mut superseded = SequenceRange::new(at.last.next(), Sequence(u64::MAX));
        if planted(Bug::HistoryOfOldEpochForgotten) {
            superseded = Some(ALL);
        }
        if let Some(range) = superseded {
            self.repair.supersede(range, &self.counters);
        }
        let lineage = self.join.lineage();
        let dropped =
            (self.reassembly).continue_epoch(offer.epoch, lineage, at, &self.counters, on);
        self.counters.epoch_change_dropped.add(dropped);
        self.join.move_beginning(self.reassembly.next());
        self.repair.clear_contested();
        self.progress.continue_behind(at.last);
        self.end.clear();
        self.join.move_live_after(offer.newest);
        // Its datagrams so far did not reach us, like those sent before a join.
        self.note_history(now, offer);
        self.lose_below(offer.oldest_of_all().0);
        self.repair.request_all_again(now);
        self.requery(ALL, now);
        self.reassembly.advance(&self.counters, on);
    }

    /// Ends the epoch that is followed: declares lost what is open of it, and reports its end or its
    /// tail, and the epoch that comes next. Returns whether the session had ended.
    pub(crate) fn end_epoch(&mut self, to: Epoch, on: &mut dyn Deliver) -> bool {
        self.lose_all(LossCause::Epoch, on);
        self.end_if_resolved(on);
        let ended = self.ended();
        if !ended && !planted(Bug::EpochTailForgotten) {
            // An END that nobody confirmed was not reported and is part of the tail.
            let highest = self.progress.highest_seen();
            let unconfirmed = self.end.unconfirmed(highest);
            let first = unconfirmed.unwrap_or_else(|| highest.next());
            self.reassembly
                .stream()
                .emit_epoch_tail(first, &self.counters, on);
        }
        let from = self.join.epoch();
        self.reassembly
            .stream()
            .emit(&Event::EpochChanged { from, to }, on);
        ended
    }

    /// Follows the epoch on offer, which replaces the one followed: all of it, from its first datagram.
    pub(crate) fn follow(&mut self, now: Nanos, offer: &ChannelOffer) {
        self.join.set_epoch(offer.epoch, offer.continues.clone());
        self.counters.epochs.increment();
        self.reassembly
            .fit_ring(offer.slots, offer.slot_len as usize);
        self.confirmed.restart(offer.newest, offer.next_record);
        let (first, first_record) = offer.continues.begins();
        self.reassembly
            .restart(offer.epoch, first, Some(first_record));
        self.reassembly.stream_mut().renew_mirror(offer, first);
        self.repair.clear();
        self.progress.restart(first.previous());
        self.end.clear();
        self.join.set_live_after(offer.newest);
        self.note_history(now, offer);
        self.lose_below(offer.oldest);
    }

    /// Requests everything up to the newest sequence on offer as history.
    fn note_history(&mut self, now: Nanos, offer: &ChannelOffer) {
        self.note_sent(offer.newest, now, Origin::History);
        self.reassembly
            .set_anchor(offer.newest.next(), offer.next_record);
    }

    /// The mirror that keeps a copy of everything delivered, if there is one.
    pub(crate) fn mirror(&self) -> Option<&Mirror> {
        self.reassembly.stream().mirror()
    }

    /// Sets the mirror that keeps a copy of everything delivered from now on; returns the one before.
    pub(crate) fn set_mirror(&mut self, mirror: Option<Mirror>) -> Option<Mirror> {
        let before = self
            .reassembly
            .stream_mut()
            .set_mirror(mirror.map(Box::new));
        before.map(|it| *it)
    }

    /// The repair connection is up, and the publisher offers this.
    pub(crate) fn link_is_up(&mut self, now: Nanos, offer: &ChannelOffer) {
        self.counters.repair_links_up.increment();
        self.progress.restart_reports(now);
        self.confirmed.link_is_up(offer.slots);
        if self.join.link_is_up(offer) {
            self.queue(Event::RepairLinkUp);
        }
    }

    /// The repair connection is down: nothing is requested until it is up again.
    pub(crate) fn link_is_down(&mut self, reason: LinkDownReason) {
        self.repair.set_replay(false, false);
        if self.join.link_is_down() {
            let newest = self.confirmed.newest();
            (self.reassembly).suspend_confirmation(newest, &self.counters);
            self.confirmed.link_is_down();
            self.counters.repair_links_down.increment();
            // After the end the publisher may leave, which is no news.
            if !self.ended() {
                self.join.set_link_down_reported(true);
                self.queue(Event::RepairLinkDown(reason));
            }
        }
    }

    /// Another receiver of the channel reported the repair connection as down, or did not.
    pub(crate) const fn set_link_down_reported(&mut self, reported: bool) {
        self.join.set_link_down_reported(reported);
    }

    /// The requests of this channel: which are in flight, and on which path.
    pub(crate) const fn repair_mut(&mut self) -> &mut Repair {
        &mut self.repair
    }

    /// Collects all requests that are due, and returns whether the path still answers.
    pub(crate) fn due_requests(
        &mut self,
        now: Nanos,
        lines: &Lines,
        readable: Option<&mut Readable>,
        requests: &mut RepairRequests,
    ) -> PathHealth {
        if !self.join.is_link_up() {
            return PathHealth::Answers;
        }
        let reassembly = &self.reassembly;
        (self.repair).retry_contested(now, |sequence| reassembly.is_contested(sequence));
        let first = self.reassembly.next();
        // The window ends before `window_end`; at the very last sequence that saturates.
        let last = self.reassembly.window_end().previous().max(first);
        let window = SequenceRange { first, last };
        (self.repair).due_requests(now, window, lines, readable, &self.counters, requests)
    }

    /// Returns when a request, a report or a deadline is due if nothing arrives until then.
    pub(crate) fn poll_timeout(&self, lines: &Lines) -> Nanos {
        let deadline = self.repair.next_deadline();
        if !self.join.is_link_up() {
            return deadline;
        }
        let window_end = self.reassembly.window_end();
        let request = self.repair.next_request(lines, window_end);
        deadline.min(request).min(self.progress.due_at())
    }

    /// Requests the contested sequences of `range` again at this time.
    fn requery(&mut self, range: SequenceRange, at: Nanos) {
        let contested = self.reassembly.contested(range);
        self.repair.requery(contested, range, at);
    }

    /// The publisher refuses a range. Returns whether it follows our epoch, so that this counts.
    pub(crate) fn handle_refused(
        &mut self,
        now: Nanos,
        refused: &Refused,
        on: &mut dyn Deliver,
    ) -> bool {
        self.repair.note_refused(refused.range, now);
        if refused.epoch != self.join.epoch() {
            self.progress.query_soon(now);
            return false;
        }
        match refused.reason {
            RefusalReason::Window => self.handle_refused_window(now, refused, on),
            RefusalReason::TooSlow => self.lose(refused.range, LossCause::Burst),
            RefusalReason::Malformed => self.lose(refused.range, LossCause::Refused),
            RefusalReason::Budget | RefusalReason::Ahead | RefusalReason::Epoch => {
                let advised = Nanos::from_us(refused.retry_after_us.into());
                let mut wait = self.repair.refusal_wait(advised);
                if refused.reason == RefusalReason::Ahead {
                    wait = wait.max(self.progress.refusal_wait(now, self.delivered()));
                }
                self.repair.postpone(refused.range, now.after(wait));
                self.requery(refused.range, now.after(wait));
            }
        }
        self.reassembly.advance(&self.counters, on);
        true
    }

    /// The ring no longer holds all of a range: what it does not hold now, it will not hold later.
    fn handle_refused_window(&mut self, now: Nanos, refused: &Refused, on: &mut dyn Deliver) {
        self.reassembly
            .note_floor(refused.oldest, refused.oldest_record);
        if self.join.beginning() == Some(self.reassembly.next()) {
            self.begin_later(refused.oldest, refused.oldest_record, on);
        }
        self.lose_below(refused.oldest);
        // Nobody can tell any more which content below is the publisher's.
        if let Some(gone) = SequenceRange::new(Sequence::FIRST, refused.oldest.previous()) {
            self.reassembly.leave_contested(gone);
        }
        // The rest of the range may be requested again.
        self.repair.retry_refused(refused.range, now);
    }

    /// Moves the beginning to the oldest sequence that the ring still holds: the ring moved on before
    /// the first request was answered.
    fn begin_later(&mut self, oldest: Sequence, record: RecordNumber, on: &mut dyn Deliver) {
        let Some(gone) = SequenceRange::new(self.reassembly.next(), oldest.previous()) else {
            return;
        };
        self.repair.lose(gone, &self.counters, |_| {});
        self.reassembly.stream_mut().begin_at(oldest, record);
        self.progress.pass(oldest.previous());
        self.join.begin_later(oldest, self.progress.highest_seen());
        let after = oldest.previous();
        self.reassembly.stream().emit(&Event::Joined { after }, on);
    }

    /// The publisher's STATUS, of the epoch that is followed. Where it contradicts what was delivered, an
    /// impostor is proven, and what that sent is rolled back.
    pub(crate) fn handle_status(
        &mut self,
        now: Nanos,
        status: &Status,
        is_stale: bool,
        on: &mut dyn Deliver,
    ) {
        let newest = (status.newest, status.next_record);
        if !self.ended() {
            let heard = self.progress.highest_seen();
            let remembered = self.reassembly.stream().remembered().above();
            let answer = (status.echo, status.ended);
            let proof = self.confirmed.status(newest, answer, heard, remembered);
            if let Some(impostor) = proof {
                self.fence(now, impostor, on);
            }
            self.reassembly
                .stream_mut()
                .confirm_losses(self.confirmed.newest());
        }
        self.confirm(status.newest, status.next_record, is_stale, now);
        if status.ended {
            self.end.confirm(status.newest);
        }
    }

    /// An impostor is proven: rolls back what it sent beyond the publisher, and compares what was
    /// delivered since the confirmation before with the publisher's copies.
    #[cold]
    fn fence(&mut self, now: Nanos, impostor: Impostor, on: &mut dyn Deliver) {
        self.counters.impostors.increment();
        if impostor.is_beyond {
            self.roll_back(impostor.last, impostor.next_record, on);
        }
        let suspects = SequenceRange::new(impostor.suspect_behind.next(), impostor.last);
        if let Some(range) = suspects {
            let contested = self.reassembly.contest_all(range);
            contested.for_each(|sequence| self.repair.contest(sequence));
        }
        self.reassembly.advance(&self.counters, on);
        self.repair.count_open(&self.counters);
        self.progress.query_soon(now);
    }

    /// Returns to the place behind `last`: everything beyond is void.
    fn roll_back(&mut self, last: Sequence, next_record: RecordNumber, on: &mut dyn Deliver) {
        if let Some(beyond) = SequenceRange::new(last.next(), Sequence(u64::MAX)) {
            self.repair.supersede(beyond, &self.counters);
        }
        let dropped = (self.reassembly).roll_back(last, next_record, &self.counters, on);
        self.counters.fenced_dropped.add(dropped);
        self.repair.forget_contested_above(last);
        self.progress.roll_back(last);
        // Sequences that the publisher has sent beyond count at once.
        self.progress.note_leap();
        self.end.forget_above(last);
    }

    /// Notes the publisher's confirmation that it has sent up to `newest`. It counts at once while
    /// multicast is silent.
    fn confirm(&mut self, newest: Sequence, next_record: RecordNumber, is_stale: bool, now: Nanos) {
        if self.ended() {
            return;
        }
        let believed = is_stale || planted(Bug::StatusOvertakesSocket);
        let confirmed = self.progress.confirm(newest, next_record, believed);
        if let Some((newest, record_after)) = confirmed {
            self.note_sent(newest, now, Origin::Live);
            self.reassembly.set_anchor(newest.next(), record_after);
        }
    }

    /// The publisher confirmed END with this sequence.
    pub(crate) const fn confirm_end(&mut self, sequence: Sequence) {
        self.end.confirm(sequence);
    }

    /// The timer of PROGRESS, and how far the publisher is.
    pub(crate) const fn progress_mut(&mut self) -> &mut ProgressState {
        &mut self.progress
    }

    /// Returns whether a report is due.
    pub(crate) fn is_progress_due(&self, now: Nanos) -> bool {
        now >= self.progress.due_at() && self.join.is_link_up()
    }

    /// Returns the report to send, unless it is held back. `following`: multicast is silent, so reports
    /// are more frequent. `read_bytes`: bytes READ from the publisher's ring.
    pub(crate) fn report_progress(
        &mut self,
        now: Nanos,
        following: bool,
        read_bytes: u64,
    ) -> Option<Progress> {
        if !self.progress.take_report(now, following) {
            return None;
        }
        (self.confirmed).note_report(now, self.progress.highest_seen());
        Some(Progress {
            epoch: self.join.epoch(),
            sequence: self.delivered().plus(planted(Bug::ProgressAhead).into()),
            lost_records: self.counters.lost_records.get(),
            heard: self.progress.highest_seen(),
            sent_at: now,
            read_bytes,
        })
    }
}
