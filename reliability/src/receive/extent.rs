//! How far the publisher's stream extends: what was heard of, what of that the repair path confirmed, and
//! where it ends (docs/PROTOCOL.md §5.2, §5.5, §5.6).

use serde::{Deserialize, Serialize};

use crate::control::{ChannelOffer, Status};
use crate::delivery::Via;
use crate::planted::{Bug, planted};
use crate::receive::config::ReceiverConfig;
use crate::receive::confirmed::{Confirmed, Impostor, LossLimit, Place};
use crate::receive::end::EndState;
use crate::receive::lines::Lines;
use crate::receive::progress::ProgressState;
use crate::receive::window::Held;
use crate::types::{Continued, Nanos, RecordNumber, SEQUENCE_LAST, Sequence, SequenceRange};
use crate::wire::{Header, Heartbeat, PublisherState, relay_flags};

/// How far the publisher's stream extends.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Extent {
    progress: ProgressState,
    confirmed: Confirmed,
    end: EndState,
}

impl Extent {
    /// Nothing is known of a publisher with a ring of this many slots.
    #[must_use]
    pub(crate) fn new(config: &ReceiverConfig, ring_slots: u64, now: Nanos) -> Self {
        Self {
            progress: ProgressState::new(config, now),
            confirmed: Confirmed::new(ring_slots),
            end: EndState::default(),
        }
    }

    /// The highest sequence known to have been sent.
    #[inline]
    pub(crate) const fn highest_seen(&self) -> Sequence {
        self.progress.highest_seen()
    }

    /// The newest sequence that the repair path confirmed, and the last one that multicast may claim.
    pub(crate) fn confirmed(&self, now: Nanos) -> (Sequence, Sequence) {
        (self.confirmed.newest(), self.confirmed.limit(now))
    }

    /// How far the clock may declare missing sequences lost.
    pub(crate) fn loss_limit(&self) -> LossLimit {
        self.confirmed.loss_limit()
    }

    /// The timer of PROGRESS, and how far the publisher is.
    pub(crate) const fn progress(&self) -> &ProgressState {
        &self.progress
    }

    /// The timer of PROGRESS, and how far the publisher is.
    pub(crate) const fn progress_mut(&mut self) -> &mut ProgressState {
        &mut self.progress
    }

    /// The end of the session.
    pub(crate) const fn end_mut(&mut self) -> &mut EndState {
        &mut self.end
    }

    /// Returns whether a datagram with the next sequence is the newest one, nothing before it is missing, and
    /// nothing is to be asked before it is delivered.
    #[inline(always)]
    pub(crate) fn is_newest(&self, next: Sequence) -> bool {
        self.progress.highest_seen() == next.previous()
            && next <= self.confirmed.fast_until()
            && !self.end.is_confirmed()
    }

    /// Returns whether a sequence is believable, at most `jump_max` beyond what was heard. Otherwise asks the
    /// publisher how far it is. `next`: the next sequence to deliver.
    pub(crate) fn admit(
        &mut self,
        now: Nanos,
        via: Via,
        sequence: Sequence,
        next: Sequence,
        jump_max: u64,
    ) -> bool {
        let highest = self.highest_seen();
        // No publisher sends a sequence without a successor, and delivery could not move past it. Nor does
        // it send anything beyond an END that it confirmed.
        if sequence > SEQUENCE_LAST || self.end.is_beyond(sequence) {
            return false;
        }
        let jumps = sequence.since(highest.max(next)) > jump_max;
        let unconfirmed = via != Via::Repair && sequence > self.confirmed.limit(now);
        if (jumps || unconfirmed) && !planted(Bug::JumpBelieved) {
            self.progress.note_jump();
            self.progress.query_soon(now);
            return false;
        }
        if via != Via::Repair && self.confirmed.is_report_due(sequence) {
            self.progress.report_at(now);
        }
        true
    }

    /// Takes the state in a heartbeat. A datagram ends nothing: STATUS says whether it is true.
    pub(crate) fn hear_state(&mut self, now: Nanos, last: Sequence, heartbeat: &Heartbeat) {
        if heartbeat.state == PublisherState::Ended && !self.end.is_confirmed() {
            if planted(Bug::EndedHeartbeatBelieved) {
                self.end.confirm(last);
            }
            self.progress.query_soon(now);
        }
    }

    /// Takes an END. STATUS says whether one of multicast is true. A publisher sends END before it closes its
    /// connections, so a later one does not stand for itself when the publisher is dead.
    pub(crate) fn hear_end(&mut self, now: Nanos, via: Via, sequence: Sequence) {
        match via {
            Via::Repair => self.end.confirm(sequence),
            Via::Line(_) if self.confirmed.is_outage_old() => {}
            Via::Line(_) => self.end.hear(sequence),
        }
        self.progress.query_soon(now);
    }

    /// The repair path brought END as `last`, with this number of the next record. Returns the proof of an
    /// impostor, if more was heard.
    pub(crate) fn proof_of_end(
        &self,
        last: Sequence,
        next_record: RecordNumber,
    ) -> Option<Impostor> {
        (self.highest_seen() > last).then(|| self.confirmed.proof_of_end(last, next_record))
    }

    /// Notes a datagram that is older than anything remembered, which is this `span`. A line that is merely
    /// slow does not bring it behind one that is a whole memory younger: an impostor may have sent that one.
    pub(crate) fn note_forgotten(
        &mut self,
        held: &Held,
        header: &Header,
        lines: &Lines,
        span: u64,
    ) {
        let Via::Line(line) = held.via else { return };
        let is_repair_copy = header.relay & relay_flags::RETRANSMITTED != 0;
        if !is_repair_copy && lines.highest(line).since(held.sequence) > span {
            self.confirmed.note_forgotten(held.sequence);
        }
    }

    /// Notes that the publisher's ring itself showed this sequence.
    pub(crate) fn note_of_ring(&mut self, sequence: Sequence) {
        self.confirmed.note_of_ring(sequence);
    }

    /// Begins behind `last`, in the epoch on offer.
    pub(crate) fn restart(&mut self, last: Sequence, offer: &ChannelOffer) {
        self.progress.restart(last);
        (self.confirmed).restart(last, offer.newest, offer.next_record);
        self.end.clear();
    }

    /// The epoch on offer continues the one followed behind `last`; everything up to `delivered` was
    /// delivered.
    pub(crate) fn continue_behind(
        &mut self,
        last: Sequence,
        delivered: Sequence,
        offer: &ChannelOffer,
    ) {
        self.progress.continue_behind(last);
        (self.confirmed).restart(delivered, offer.newest, offer.next_record);
        self.end.clear();
    }

    /// The epoch that is followed goes on over a new repair connection.
    pub(crate) fn resume_epoch(&mut self, offer: &ChannelOffer) {
        let heard = self.highest_seen();
        (self.confirmed).welcome(offer.newest, offer.next_record, heard);
    }

    /// The first sequence of which nobody knows whether it was sent. An END that nobody confirmed was not
    /// reported and is part of the tail.
    pub(crate) fn tail(&self) -> Sequence {
        let highest = self.highest_seen();
        self.end.unconfirmed(highest).unwrap_or(highest.next())
    }

    /// The publisher is dead: an END that came by multicast counts if nothing that was heard contradicts it.
    pub(crate) fn accept_unconfirmed_end(&mut self) {
        self.end.accept_unconfirmed(self.progress.highest_seen());
    }

    /// The repair connection is up, to a publisher with a ring of this many slots.
    pub(crate) fn link_is_up(&mut self, now: Nanos, ring_slots: u64) {
        self.progress.restart_reports(now);
        self.confirmed.link_is_up(ring_slots);
    }

    /// Returns whether this sequence waits for a STATUS that is overdue.
    pub(crate) fn is_blocked(&self, now: Nanos, sequence: Sequence) -> bool {
        self.confirmed.is_blocked(now, sequence)
    }

    /// Nobody confirms anything until the next STATUS. Returns the newest sequence confirmed.
    pub(crate) fn suspend_confirmation(&mut self, now: Nanos) -> Sequence {
        self.confirmed.suspend(now);
        self.confirmed.newest()
    }

    /// The repair connection is down. Returns the newest sequence confirmed.
    pub(crate) fn link_is_down(&mut self, now: Nanos) -> Sequence {
        self.confirmed.link_is_down(now);
        self.confirmed.newest()
    }

    /// Notes the time.
    #[inline]
    pub(crate) fn note_time(&mut self, now: Nanos) {
        self.confirmed.note_time(now);
    }

    /// Notes that a datagram comes now. `place`: where delivery is, and whether it fills a mirror.
    #[inline]
    pub(crate) fn note_arrival(&mut self, now: Nanos, place: impl FnOnce() -> (Place, bool)) {
        self.confirmed.note_arrival(now, place);
    }

    /// Returns whether a mirror takes nothing by multicast now, because anybody may have sent it.
    pub(crate) const fn stops_mirror(&self) -> bool {
        self.confirmed.stops_mirror()
    }

    /// Notes that two contents of a sequence came.
    pub(crate) const fn note_dispute(&mut self) {
        self.confirmed.note_dispute();
    }

    /// Another epoch goes on at `at`: returns the place beyond which deliveries are void, as
    /// [`Confirmed::void_beyond`].
    pub(crate) fn void_beyond(&self, at: Continued, remembered: Sequence) -> Option<Place> {
        self.confirmed.void_beyond(at, remembered)
    }

    /// Takes a STATUS. Returns the proof of an impostor, if it is one. `known`: the last sequence delivered,
    /// and that above which contents are remembered.
    pub(crate) fn status(
        &mut self,
        status: &Status,
        known: (Sequence, Sequence),
    ) -> Option<Impostor> {
        let newest = (status.newest, status.next_record);
        let answer = (status.echo, status.ended);
        (self.confirmed).status(newest, answer, self.progress.highest_seen(), known)
    }

    /// Returns to the place behind `last`. Sequences that the publisher has sent beyond count at once.
    pub(crate) fn roll_back(&mut self, last: Sequence) {
        self.confirmed
            .note_rolled_back(self.progress.highest_seen());
        self.progress.roll_back(last);
        self.progress.note_jump();
        self.end.forget_above(last);
    }

    /// Returns whether a copy of this sequence by multicast is contested, because it was rolled back.
    pub(crate) fn was_rolled_back(&self, sequence: Sequence) -> bool {
        self.confirmed.was_rolled_back(sequence)
    }

    /// Notes that everything before `next` is settled.
    pub(crate) fn note_settled(&mut self, next: Sequence) {
        self.confirmed.note_settled(next);
    }

    /// Notes that everything up to `last` has been sent. Returns what was not heard of.
    pub(crate) fn note_sent(&mut self, last: Sequence) -> Option<SequenceRange> {
        self.progress.note_sent(last)
    }

    /// Returns whether a report is to be sent now, and notes that it is.
    pub(crate) fn take_report(&mut self, now: Nanos, following: bool) -> bool {
        let is_due = self.progress.take_report(now, following);
        if is_due {
            (self.confirmed).note_report(now, self.progress.highest_seen());
        }
        is_due
    }
}
