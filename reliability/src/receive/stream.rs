//! The stream of one channel: which sequences the publisher has sent, which are missing, and what is
//! delivered in their order (docs/PROTOCOL.md §5, §7, §8).
//!
//! [`EpochStream`] composes the parts that know of sequences. [`crate::receive::Receiver`] gives it the
//! datagrams and messages that concern them.

use std::collections::VecDeque;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::control::{ChannelOffer, Progress, RefusalReason, Refused, Start, Status};
use crate::delivery::{Deliver, Delivery, Event, LineId, LinkDownReason, LossCause, Via};
use crate::planted::{Bug, planted};
use crate::receive::config::ReceiverConfig;
use crate::receive::confirmed::Impostor;
use crate::receive::extent::Extent;
use crate::receive::gaps::Origin;
use crate::receive::join::{Beginning, JoinState};
use crate::receive::lines::Lines;
use crate::receive::path::{Arrival, ArrivalPath};
use crate::receive::progress::ProgressState;
use crate::receive::rdma_read::Readable;
use crate::receive::reassembly::Duplicate;
use crate::receive::recovery::Recovery;
use crate::receive::repair::{ALL, Repair};
use crate::receive::requests::{PathHealth, RepairRequests};
use crate::receive::window::Held;
use crate::types::{
    ChannelId, Continued, Epoch, Nanos, ReceiverCounters, RecordNumber, Sequence, SequenceRange,
};
use crate::wire::{Datagram, Header, Heartbeat, Kind, relay_flags};

/// The sequences of one channel, in the epoch that is followed and those that it continues.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct EpochStream {
    delivery: Delivery,
    join: JoinState,
    extent: Extent,
    recovery: Recovery,
    /// Events outside the order of delivery, which the next input delivers.
    events: VecDeque<Event>,
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
        Self {
            delivery: config.delivery,
            join: JoinState::new(ring),
            extent: Extent::new(config, ring.0, now),
            recovery: Recovery::new(config, channel, ring, seed, counters),
            events: VecDeque::with_capacity(64),
        }
    }

    /// The counters of the channel.
    #[inline]
    pub(crate) const fn counters(&self) -> &Arc<ReceiverCounters> {
        self.recovery.counters()
    }

    /// Counts in these counters from now on.
    pub(crate) fn set_counters(&mut self, counters: Arc<ReceiverCounters>) {
        self.recovery.set_counters(counters);
    }

    /// The epoch and the repair connection.
    #[inline]
    pub(crate) const fn join(&self) -> &JoinState {
        &self.join
    }

    /// The missing sequences, and the delivery that waits for them.
    #[inline]
    pub(crate) const fn recovery(&self) -> &Recovery {
        &self.recovery
    }

    /// The missing sequences, and the delivery that waits for them.
    pub(crate) const fn recovery_mut(&mut self) -> &mut Recovery {
        &mut self.recovery
    }

    /// How far the publisher's stream extends.
    #[inline]
    pub(crate) const fn extent(&self) -> &Extent {
        &self.extent
    }

    /// How far the publisher's stream extends.
    pub(crate) const fn extent_mut(&mut self) -> &mut Extent {
        &mut self.extent
    }

    /// Returns whether everything up to END was delivered or declared lost.
    #[inline]
    pub(crate) const fn ended(&self) -> bool {
        self.recovery.stream().ended()
    }

    /// Returns how many sequences lie between the last settled one and the newest known to have been sent.
    pub(crate) fn lag(&self) -> u64 {
        self.extent.progress().newest().since(self.delivered())
    }

    /// The last sequence delivered or declared lost.
    pub(crate) const fn delivered(&self) -> Sequence {
        self.recovery.next().previous()
    }

    /// Returns whether multicast with a right CRC and our channel can be delivered at once: it is the next
    /// datagram and data, nothing is missing, nothing waits, and nothing is to be reported before it.
    #[inline(always)]
    pub(crate) fn is_fast_path(&self, datagram: &Datagram<'_>) -> bool {
        let (header, next) = (datagram.header(), self.recovery.next());
        header.sequence == next
            && self.extent.is_newest(next)
            && self.recovery.stream().is_next_record(header.first_record)
            && header.kind == Kind::Data
            && header.relay & relay_flags::RETRANSMITTED == 0
            && self.join.is_of_lineage(header)
            && !self.ended()
            && self.join.beginning().is_none()
            && self.recovery.reassembly().is_clear()
            && datagram.bytes().len() <= self.recovery.reassembly().window().slot_len()
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
        let sequence = datagram.header().sequence;
        let Ok(records) = datagram.records() else {
            self.reject_unreadable(now, sequence);
            return self.resolve(now, on);
        };
        self.extent.progress_mut().note_seen(sequence);
        let held = Held::of(now, Via::Line(line), datagram);
        (self.recovery).deliver_next(datagram, records, held, on);
        self.emit(on);
    }

    /// Returns whether a datagram is of this stream and believable. Otherwise counts it as dropped, and
    /// asks the publisher how far it is where that could explain the datagram.
    pub(crate) fn admit(&mut self, now: Nanos, via: Via, header: &Header) -> bool {
        let accepted = planted(Bug::OldEpochAccepted) && header.epoch < self.join.epoch();
        if !self.join.is_of_lineage(header) && !accepted {
            self.reject_epoch(header.epoch, now);
            return false;
        }
        // The repair connection must confirm what lies beyond the ring, and a burst that would be given
        // up at once.
        let jump_max = match self.delivery.waits_for_repair() {
            true => self.join.slots(),
            false => self.join.slots().min(self.recovery.repair().burst_max()),
        };
        if self.extent.is_blocked(now, header.sequence) {
            // A connection that answers nothing is as good as none, and stops no stream.
            let newest = self.extent.suspend_confirmation(now);
            self.recovery.suspend_confirmation(newest);
        }
        (self.extent).note_arrival(now, || self.recovery.stream().place_to_fill());
        let next = self.recovery.next();
        let admitted = (self.extent).admit(now, via, header.sequence, next, jump_max);
        if !admitted {
            self.counters().sequence_jump_dropped.increment();
        }
        admitted
    }

    /// Drops a datagram of multicast that cannot be the publisher's: its own copy is requested, because
    /// anybody may have sent this one.
    #[cold]
    fn reject_unreadable(&mut self, now: Nanos, sequence: Sequence) {
        self.counters().malformed_dropped.increment();
        self.note_sent(sequence, now, Origin::Live);
    }

    #[cold]
    fn reject_epoch(&mut self, epoch: Epoch, now: Nanos) {
        if epoch <= self.join.epoch() {
            return self.counters().old_epoch_dropped.increment();
        }
        self.counters().unknown_epoch_dropped.increment();
        if planted(Bug::StrayEpochBelieved) {
            self.join.set_epoch(epoch, self.join.lineage().clone());
        }
        self.extent.progress_mut().query_soon(now);
    }

    /// Takes a heartbeat: everything up to its sequence was sent.
    pub(crate) fn handle_heartbeat(&mut self, now: Nanos, header: &Header, heartbeat: &Heartbeat) {
        self.recovery.repair_mut().advise_hold_off(heartbeat);
        self.note_sent(header.sequence, now, Origin::Live);
        let reassembly = self.recovery.reassembly_mut();
        reassembly.set_anchor(header.sequence.next(), header.first_record);
        self.extent.hear_state(now, header.sequence, heartbeat);
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
        arrival.count(is_repair_copy, self.counters());
        let window_end = self.recovery.reassembly().window_end();
        let is_beyond = sequence >= window_end.plus(2 * u64::from(planted(Bug::WindowOverfilled)));
        if is_beyond && !self.make_room(now, arrival.via, header, on) {
            return;
        }
        let anybody = arrival.via != Via::Repair && sequence >= self.recovery.next();
        let can_deliver = !anybody || self.recovery.reassembly().can_deliver(datagram);
        let is_readable = can_deliver || planted(Bug::UnreadableTaken);
        // A repair copy is the publisher's, so its record number contests the datagram before it.
        let contradicts = self.recovery.contradicts(header, on);
        if contradicts {
            self.extent.note_dispute();
        }
        if !is_readable || anybody && contradicts {
            return self.reject_unreadable(now, sequence);
        }
        let mut held = Held::of(now, arrival.via, datagram);
        if sequence > self.extent.highest_seen() {
            self.note_sent(sequence.previous(), now, Origin::Live);
            self.extent.progress_mut().note_seen(sequence);
            arrival.count_first(self.counters());
        } else if let Some((gap, outcome)) =
            self.recovery
                .repair_mut()
                .fill(sequence, now, arrival, is_repair_copy)
        {
            arrival.count_first(self.counters());
            if gap.origin == Origin::Live {
                let times = 1 + u64::from(planted(Bug::RecoveryCountedTwice));
                self.counters().missing_recovered.add(times);
                // At least one nanosecond, because zero means that it was never missing.
                held.missing_for = now.since(gap.found_at).max(Nanos(1));
            } else {
                self.counters().replay_received.increment();
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
            let proof = self.extent.proof_of_end(sequence, header.first_record);
            if let Some(impostor) = proof.filter(|_| arrival.via == Via::Repair) {
                self.fence(now, impostor, on);
            }
            self.extent.hear_end(now, arrival.via, sequence);
        }
        self.recovery.offer(datagram, held, on);
        if arrival.via != Via::Repair && self.extent.was_rolled_back(sequence) {
            self.recovery.contest(sequence);
        }
        self.extent.note_settled(self.recovery.next());
        let has_begun = self.delivery == Delivery::Arrival
            || self.join.beginning() != Some(self.recovery.next());
        if has_begun {
            self.join.set_beginning(None);
        }
    }

    /// Handles a datagram beyond the window. In arrival order, gives up what falls out of the window and
    /// returns `true`. Otherwise drops the datagram, to be repaired later, and returns `false`.
    fn make_room(&mut self, now: Nanos, via: Via, header: &Header, on: &mut dyn Deliver) -> bool {
        let sequence = header.sequence;
        let fallen_out = SequenceRange {
            first: Sequence(0),
            last: sequence.minus(self.recovery.reassembly().window().span()),
        };
        let in_arrival_order = self.delivery == Delivery::Arrival;
        // Nobody may have sent what only multicast claims.
        let limit = self.extent.loss_limit();
        if !in_arrival_order || via != Via::Repair && !limit.contains(now, fallen_out.last) {
            self.note_sent(sequence, now, Origin::Live);
            // The datagram is not held, but its number says how many records lie before it.
            let after = header.first_record.plus(header.count.into());
            let reassembly = self.recovery.reassembly_mut();
            reassembly.set_anchor(sequence.next(), after);
            self.counters().window_full_dropped.increment();
            if in_arrival_order {
                self.extent.progress_mut().query_soon(now);
            }
            return false;
        }
        self.note_sent(sequence.previous(), now, Origin::Live);
        self.recovery.lose(fallen_out, LossCause::Window);
        self.recovery.advance(now, on);
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
        let can_request = self.join.is_link_up();
        let duplicate = (self.recovery).take_duplicate(path, held, datagram, can_request, on);
        let conflict = match duplicate {
            Duplicate::Known => return,
            Duplicate::Forgotten => {
                let span = self.recovery.stream().remembered().span();
                return (self.extent).note_forgotten(held, datagram.header(), lines, span);
            }
            Duplicate::Conflict(conflict) => conflict,
        };
        self.extent.note_dispute();
        self.events.push_back(Event::FencingViolation {
            sequence: held.sequence,
            wrong_one_delivered: conflict.wrong_one_delivered,
        });
    }

    /// Notes that everything up to `last` has been sent; sequences that were not heard of are missing.
    pub(crate) fn note_sent(&mut self, last: Sequence, now: Nanos, origin: Origin) {
        let Some(range) = self.extent.note_sent(last) else {
            return;
        };
        self.recovery.note_missing(range, now, origin);
    }

    /// The publisher is dead: declares everything lost that nobody is left to bring. An END that came
    /// by multicast counts if nothing that was heard contradicts it.
    pub(crate) fn lose_to_dead_publisher(&mut self, on: &mut dyn Deliver) {
        self.extent.accept_unconfirmed_end();
        self.recovery.lose_all(LossCause::PublisherDead, on);
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
        self.extent.note_of_ring(range.last);
        self.note_sent(range.last, now, Origin::Live);
        self.recovery.lose(range, LossCause::Window);
        self.recovery.advance(now, on);
    }

    /// Declares lost what the clock says, and does what follows from the new state.
    pub(crate) fn handle_timeout(&mut self, now: Nanos, on: &mut dyn Deliver) {
        self.extent.note_time(now);
        let limit = self.extent.loss_limit();
        if self.join.is_link_up() && now >= self.recovery.repair().next_confirmation(&limit) {
            self.extent.progress_mut().query_soon(now);
        }
        self.recovery.lose_overdue(now, &limit, on);
        self.resolve(now, on);
    }

    /// Does what follows from the new state, after every input: delivers events, and ends the session.
    #[inline]
    pub(crate) fn resolve(&mut self, now: Nanos, on: &mut dyn Deliver) {
        self.recovery.count_open();
        self.emit(on);
        self.end_if_resolved(on);
        if self.ended() && self.extent.end_mut().take_report() {
            // The publisher stays until it knows that we have everything.
            self.extent.progress_mut().report_at(now);
        }
    }

    /// Ends the session once everything up to a confirmed END is resolved. Nothing follows END, so
    /// sequences beyond it that another publisher made us miss are not missing. It waits for the publisher's
    /// copies of contested sequences while they may come soon.
    fn end_if_resolved(&mut self, on: &mut dyn Deliver) {
        let next = self.recovery.next();
        if !self.extent.end_mut().is_reached(next) {
            return;
        }
        if !self.ended() && self.join.is_link_up() && self.recovery.repair().is_settling() {
            return;
        }
        self.recovery.end(on);
        if self.extent.highest_seen() >= next {
            self.recovery.forget_missing(ALL);
            self.extent.progress_mut().end_at(next.previous());
            self.recovery.count_open();
        }
    }

    /// Queues an event outside the order of delivery.
    pub(crate) fn queue(&mut self, event: Event) {
        self.events.push_back(event);
    }

    /// Delivers the events that are due after what was delivered.
    #[inline(always)]
    fn emit(&mut self, on: &mut dyn Deliver) {
        if self.join.take_live(self.recovery.next()) {
            self.recovery.stream().emit(&Event::Live, on);
        }
        if !self.events.is_empty() {
            self.drain_events(on);
        }
    }

    /// Delivers the queued events.
    #[cold]
    pub(crate) fn drain_events(&mut self, on: &mut dyn Deliver) {
        while let Some(event) = self.events.pop_front() {
            self.recovery.stream().emit(&event, on);
        }
    }

    /// Declares everything open lost and delivers all events: the receiver is closed.
    pub(crate) fn close(&mut self, cause: LossCause, on: &mut dyn Deliver) {
        self.recovery.lose_all(cause, on);
        self.recovery.count_open();
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
        self.counters().epochs.increment();
        let beginning = Beginning::of(offer, start);
        if let Some((epoch, sequence)) = beginning.over {
            // Nobody can say how much of that epoch the application missed.
            self.recovery.restart(epoch, sequence, None);
            let stream = self.recovery.stream();
            stream.emit_epoch_tail(sequence, self.counters(), on);
            let (from, to) = (epoch, offer.epoch);
            let change = Event::EpochChanged { from, to };
            self.recovery.stream().emit(&change, on);
        }
        let (next, next_record) = match planted(Bug::BeginsFurtherOn) {
            true => (beginning.next.plus(3), None),
            false => (beginning.next, beginning.next_record),
        };
        let first = next.plus(planted(Bug::LateJoinSkipsOne).into());
        self.recovery.restart(offer.epoch, first, next_record);
        let stream = self.recovery.stream_mut();
        stream.set_lineage(offer.epoch, self.join.lineage());
        self.recovery.fit_ring(offer);
        self.extent.restart(first.previous(), offer);
        let repeated = u64::from(planted(Bug::LateJoinRepeatsOne));
        let after = next.previous().plus(repeated);
        self.recovery.stream().emit(&Event::Joined { after }, on);
        self.join
            .set_live_after(match planted(Bug::LiveToldTooSoon) {
                true => Sequence::NONE,
                false => offer.newest,
            });
        self.join
            .set_beginning((start == Start::Oldest).then_some(next));
        self.note_history(now, offer);
        self.recovery.lose_below(offer.oldest_of_all().0);
    }

    /// Resumes the epoch that is followed: the repair connection is new.
    pub(crate) fn resume_epoch(&mut self, now: Nanos, offer: &ChannelOffer, is_stale: bool) {
        self.extent.resume_epoch(offer);
        self.confirm(offer.newest, offer.next_record, is_stale, now);
        self.recovery.repair_mut().request_all_again(now);
        self.recovery.requery(ALL, now);
    }

    /// Another epoch goes on at this place: rolls back what lies beyond, except what was delivered on the
    /// word of the publisher before. The new epoch publishes it again, unless an impostor sent it.
    pub(crate) fn void_unconfirmed(&mut self, at: Continued, on: &mut dyn Deliver) {
        let remembered = self.recovery.stream().remembered().above();
        if let Some((last, next_record)) = self.extent.void_beyond(at, remembered) {
            self.recovery.roll_back(last, next_record, on);
        }
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
        self.counters().epochs.increment();
        self.counters().epochs_continued.increment();
        self.recovery.fit_ring(offer);
        self.recovery.stream_mut().drop_unfit_mirror(offer);
        let mut superseded = SequenceRange::new(at.last.next(), Sequence(u64::MAX));
        if planted(Bug::HistoryOfOldEpochForgotten) {
            superseded = Some(ALL);
        }
        let epoch = (offer.epoch, self.join.lineage());
        self.recovery.continue_epoch(epoch, at, superseded, on);
        self.join.move_beginning(self.recovery.next());
        let delivered = self.delivered();
        (self.extent).continue_behind(at.last, delivered, offer);
        self.join.move_live_after(offer.newest);
        // Its datagrams so far did not reach us, like those sent before a join.
        self.note_history(now, offer);
        self.recovery.lose_below(offer.oldest_of_all().0);
        self.recovery.repair_mut().request_all_again(now);
        self.recovery.requery(ALL, now);
        self.recovery.advance(now, on);
    }

    /// Ends the epoch that is followed: declares lost what is open of it, and reports its end or its
    /// tail, and the epoch that comes next. Returns whether the session had ended.
    pub(crate) fn end_epoch(&mut self, to: Epoch, on: &mut dyn Deliver) -> bool {
        self.recovery.lose_all(LossCause::Epoch, on);
        self.end_if_resolved(on);
        let ended = self.ended();
        if !ended && !planted(Bug::EpochTailForgotten) {
            let first = self.extent.tail();
            let stream = self.recovery.stream();
            stream.emit_epoch_tail(first, self.counters(), on);
        }
        let from = self.join.epoch();
        let changed = Event::EpochChanged { from, to };
        self.recovery.stream().emit(&changed, on);
        ended
    }

    /// Follows the epoch on offer, which replaces the one followed: all of it, from its first datagram.
    pub(crate) fn follow(&mut self, now: Nanos, offer: &ChannelOffer) {
        self.join.set_epoch(offer.epoch, offer.continues.clone());
        self.counters().epochs.increment();
        self.recovery.fit_ring(offer);
        let (first, first_record) = offer.continues.begins();
        (self.recovery).restart(offer.epoch, first, Some(first_record));
        self.recovery.stream_mut().renew_mirror(offer, first);
        self.recovery.repair_mut().clear();
        self.extent.restart(first.previous(), offer);
        self.join.set_live_after(offer.newest);
        self.note_history(now, offer);
        self.recovery.lose_below(offer.oldest);
    }

    /// Requests everything up to the newest sequence on offer as history.
    fn note_history(&mut self, now: Nanos, offer: &ChannelOffer) {
        self.note_sent(offer.newest, now, Origin::History);
        self.recovery
            .reassembly_mut()
            .set_anchor(offer.newest.next(), offer.next_record);
    }

    /// The repair connection is up, and the publisher offers this.
    pub(crate) fn link_is_up(&mut self, now: Nanos, offer: &ChannelOffer) {
        self.counters().repair_links_up.increment();
        self.extent.link_is_up(now, offer.slots);
        if self.join.link_is_up(offer) {
            self.queue(Event::RepairLinkUp);
        }
    }

    /// The repair connection is down: nothing is requested until it is up again.
    pub(crate) fn link_is_down(&mut self, now: Nanos, reason: LinkDownReason) {
        self.recovery.repair_mut().set_replay(false, false);
        if self.join.link_is_down() {
            let newest = self.extent.link_is_down(now);
            self.recovery.suspend_confirmation(newest);
            self.counters().repair_links_down.increment();
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
        self.recovery.repair_mut()
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
        self.recovery.due_requests(now, lines, readable, requests)
    }

    /// Returns when a request, a report or a deadline is due if nothing arrives until then.
    pub(crate) fn poll_timeout(&self, lines: &Lines) -> Nanos {
        let (repair, progress) = (self.recovery.repair(), self.extent.progress());
        let limit = self.extent.loss_limit();
        let deadline = repair.next_deadline(&limit);
        if !self.join.is_link_up() {
            return deadline;
        }
        let query = repair.next_confirmation(&limit).max(progress.query_from());
        let request = self.recovery.next_request(lines);
        (deadline.min(request).min(query)).min(progress.due_at())
    }

    /// The publisher refuses a range. Returns whether it follows our epoch, so that this counts.
    pub(crate) fn handle_refused(
        &mut self,
        now: Nanos,
        refused: &Refused,
        on: &mut dyn Deliver,
    ) -> bool {
        self.recovery.repair_mut().note_refused(refused.range, now);
        if refused.epoch != self.join.epoch() {
            self.extent.progress_mut().query_soon(now);
            return false;
        }
        match refused.reason {
            RefusalReason::Window => self.handle_refused_window(now, refused, on),
            RefusalReason::TooSlow => self.recovery.lose(refused.range, LossCause::Burst),
            RefusalReason::Malformed => self.recovery.lose(refused.range, LossCause::Refused),
            RefusalReason::Budget | RefusalReason::Ahead | RefusalReason::Epoch => {
                let mut wait = self.recovery.repair().refusal_wait(refused.wait());
                if refused.reason == RefusalReason::Ahead {
                    let delivered = self.delivered();
                    let progress = self.extent.progress_mut();
                    wait = wait.max(progress.refusal_wait(now, delivered));
                }
                let again_at = now.after(wait);
                self.recovery.repair_mut().postpone(refused.range, again_at);
                self.recovery.requery(refused.range, again_at);
            }
        }
        self.recovery.advance(now, on);
        true
    }

    /// The ring no longer holds all of a range: what it does not hold now, it will not hold later.
    fn handle_refused_window(&mut self, now: Nanos, refused: &Refused, on: &mut dyn Deliver) {
        let reassembly = self.recovery.reassembly_mut();
        reassembly.note_floor(refused.oldest, refused.oldest_record);
        if self.join.beginning() == Some(self.recovery.next()) {
            self.begin_later(refused.oldest, refused.oldest_record, on);
        }
        self.recovery.handle_refused_window(now, refused);
    }

    /// Moves the beginning to the oldest sequence that the ring still holds: the ring moved on before
    /// the first request was answered.
    fn begin_later(&mut self, oldest: Sequence, record: RecordNumber, on: &mut dyn Deliver) {
        let Some(gone) = SequenceRange::new(self.recovery.next(), oldest.previous()) else {
            return;
        };
        self.recovery.forget_missing(gone);
        self.recovery.reassembly_mut().begin_at(oldest, record);
        self.extent.progress_mut().pass(oldest.previous());
        self.join.begin_later(oldest, self.extent.highest_seen());
        let after = oldest.previous();
        self.recovery.stream().emit(&Event::Joined { after }, on);
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
        if !self.ended() {
            let remembered = self.recovery.stream().remembered().above();
            let known = (self.delivered(), remembered);
            let proof = self.extent.status(status, known);
            if let Some(impostor) = proof {
                self.fence(now, impostor, on);
            }
            let confirmed = self.extent.confirmed(now).0;
            self.recovery.stream_mut().confirm_losses(confirmed);
        }
        self.confirm(status.newest, status.next_record, is_stale, now);
        (self.recovery).confirm_number(status.newest.next(), status.next_record, on);
        if status.ended {
            self.extent.end_mut().confirm(status.newest);
        }
    }

    /// An impostor is proven: rolls back what it sent beyond the publisher, and compares what was
    /// delivered since the confirmation before with the publisher's copies.
    #[cold]
    fn fence(&mut self, now: Nanos, impostor: Impostor, on: &mut dyn Deliver) {
        self.counters().impostors.increment();
        if impostor.is_beyond {
            self.roll_back(impostor.last, impostor.next_record, on);
        }
        let since = SequenceRange::new(impostor.compare_behind.next(), impostor.last);
        if let Some(range) = since {
            self.recovery.contest_all(range);
        }
        self.recovery.advance(now, on);
        self.recovery.count_open();
        self.extent.progress_mut().query_soon(now);
    }

    /// Returns to the place behind `last`: everything beyond is void.
    fn roll_back(&mut self, last: Sequence, next_record: RecordNumber, on: &mut dyn Deliver) {
        self.recovery.roll_back(last, next_record, on);
        self.extent.roll_back(last);
    }

    /// Notes the publisher's confirmation that it has sent up to `newest`. It counts at once while
    /// multicast is silent.
    fn confirm(&mut self, newest: Sequence, next_record: RecordNumber, is_stale: bool, now: Nanos) {
        if self.ended() {
            return;
        }
        let believed = is_stale || planted(Bug::StatusOvertakesSocket);
        let progress = self.extent.progress_mut();
        let confirmed = progress.confirm(newest, next_record, believed);
        if let Some((newest, record_after)) = confirmed {
            self.note_sent(newest, now, Origin::Live);
            let reassembly = self.recovery.reassembly_mut();
            reassembly.set_anchor(newest.next(), record_after);
        }
    }

    /// The timer of PROGRESS, and how far the publisher is.
    pub(crate) const fn progress_mut(&mut self) -> &mut ProgressState {
        self.extent.progress_mut()
    }

    /// Returns whether a report is due.
    pub(crate) fn is_progress_due(&self, now: Nanos) -> bool {
        now >= self.extent.progress().due_at() && self.join.is_link_up()
    }

    /// Returns the report to send, unless it is held back. `following`: multicast is silent, so reports
    /// are more frequent. `read_bytes`: bytes READ from the publisher's ring.
    pub(crate) fn report_progress(
        &mut self,
        now: Nanos,
        following: bool,
        read_bytes: u64,
    ) -> Option<Progress> {
        if !self.extent.take_report(now, following) {
            return None;
        }
        Some(Progress {
            epoch: self.join.epoch(),
            sequence: self.delivered().plus(planted(Bug::ProgressAhead).into()),
            lost_records: self.counters().lost_records.get(),
            heard: self.extent.highest_seen(),
            sent_at: now,
            read_bytes,
        })
    }
}
