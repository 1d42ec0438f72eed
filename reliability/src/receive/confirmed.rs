//! How far the repair path has confirmed the stream, how far multicast may run ahead of that, and the
//! proof that an impostor sent what the publisher did not (docs/PROTOCOL.md §5.5).
//!
//! Multicast is delivered before it is confirmed, but at most half a ring beyond the last confirmation.
//! So everything that is not confirmed is remembered, and the ring still holds the publisher's own copy.

use serde::{Deserialize, Serialize};

use crate::planted::{Bug, planted};
use crate::receive::remembered::RING_SLOTS_MAX;
use crate::types::{Continued, Nanos, RecordNumber, SEQUENCE_LAST, Sequence};

/// Multicast may run ahead of the last confirmation by one half of the ring.
const AHEAD_SHARE: u64 = 2;
/// A confirmation is requested after one eighth of the ring, so that a full-rate stream never waits.
const ASK_SHARE: u64 = 8;

/// A STATUS that takes longer confirms nothing for a while: multicast is followed as without a connection.
pub(crate) const CONFIRM_WAIT: Nanos = Nanos::from_ms(20);

/// A time in which nobody confirms anything.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum Outage {
    /// Since this time. A datagram may have come before.
    New(Nanos),
    /// The next datagram can't have come before.
    Due,
    /// Delivery was here when the datagrams from before had been read.
    Old(Place),
    /// The same of a mirror, which takes nothing more by multicast.
    Mirrored(Place),
}

/// A place in the stream: a sequence, and the number of the record after it (0: unknown).
pub(crate) type Place = (Sequence, RecordNumber);

/// The proof that an impostor sent datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Impostor {
    /// Contents behind this sequence are to be compared: they were delivered since the STATUS before.
    pub compare_behind: Sequence,
    /// The last sequence that the publisher sent, and the number of the record after it.
    pub last: Sequence,
    /// See `last`.
    pub next_record: RecordNumber,
    /// Whether an impostor sent what lies beyond `last`. Otherwise the publisher has sent the same
    /// sequences meanwhile.
    pub is_beyond: bool,
}

/// How far the clock may declare missing sequences lost: what multicast alone claims waits for a STATUS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LossLimit {
    /// The newest sequence that the repair path confirmed.
    pub confirmed: Sequence,
    /// From when on nothing waits for a STATUS: at once while nobody can confirm, and [`Nanos::MAX`] while
    /// no STATUS is awaited.
    pub lifted_at: Nanos,
    /// When the last PROGRESS was sent, and what was heard then.
    pub reported: (Nanos, Sequence),
}

impl LossLimit {
    /// Returns whether a missing sequence may be declared lost now.
    pub(crate) fn contains(&self, now: Nanos, sequence: Sequence) -> bool {
        sequence <= self.confirmed || now >= self.lifted_at
    }
}

/// How far the repair path has confirmed the stream.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Confirmed {
    /// The newest sequence confirmed, and the number of the record after it (0: unknown). No repaired
    /// sequence counts: that it was sent says nothing of the multicast delivered before it.
    newest: Sequence,
    next_record: RecordNumber,
    /// The last confirmation by a STATUS, if the repair connection was down since.
    before_down: Option<Place>,
    outage: Option<Outage>,
    /// Whether two contents of a sequence came, or a proof of an impostor, since the last STATUS without one.
    is_disputed: bool,
    /// Everything up to here was delivered when the last STATUS came.
    delivered: Sequence,
    /// Slots of the ring, as far as its contents are remembered.
    ring_slots: u64,
    /// Nothing beyond is believed.
    limit: Sequence,
    /// A sequence beyond asks for a confirmation first; at most `limit`.
    asks_beyond: Sequence,
    /// The last sequence that was rolled back; [`Sequence::NONE`] once all of them are settled again.
    rolled_back_to: Sequence,
    /// The fast path is closed up to this sequence, because its deliveries are contested or counted apart;
    /// [`Sequence::NONE`] once all of it is settled.
    slow_to: Sequence,
    /// `asks_beyond`, or nothing while the fast path is closed. A new outage closes it too.
    fast_until: Sequence,
    /// When the first PROGRESS was sent that no STATUS has answered, and what was heard then.
    asked: Option<(Nanos, Sequence)>,
    /// The same of the last PROGRESS.
    reported: (Nanos, Sequence),
    /// Whether a datagram of the publisher came that is too old to be compared, although nothing
    /// confirmed what was delivered in its place.
    has_forgotten: bool,
}

impl Confirmed {
    /// Nothing is confirmed, and nobody can confirm anything.
    #[must_use]
    pub(crate) fn new(ring_slots: u64) -> Self {
        Self {
            newest: Sequence::NONE,
            next_record: RecordNumber(0),
            before_down: None,
            outage: None,
            is_disputed: false,
            delivered: Sequence::NONE,
            ring_slots: ring_slots.min(RING_SLOTS_MAX),
            limit: Sequence(u64::MAX),
            asks_beyond: Sequence(u64::MAX),
            rolled_back_to: Sequence::NONE,
            slow_to: Sequence::NONE,
            fast_until: SEQUENCE_LAST,
            asked: None,
            reported: (Nanos::ZERO, Sequence::NONE),
            has_forgotten: false,
        }
    }

    /// The repair connection is up, to a publisher with a ring of this many slots.
    pub(crate) fn link_is_up(&mut self, ring_slots: u64) {
        (self.ring_slots, self.asked) = (ring_slots.min(RING_SLOTS_MAX), None);
    }

    /// WELCOME says that the publisher of the epoch that goes on has sent up to `newest`.
    pub(crate) fn welcome(&mut self, newest: Sequence, next_record: RecordNumber, heard: Sequence) {
        self.confirm(newest, next_record);
        // Sequences heard without a connection stay, until a STATUS contradicts them.
        self.limit = self.limit.max(heard);
    }

    /// Another epoch is followed from now on, of which everything up to `delivered` was delivered: forgets
    /// the one before.
    pub(crate) fn restart(
        &mut self,
        delivered: Sequence,
        newest: Sequence,
        next_record: RecordNumber,
    ) {
        (self.newest, self.next_record) = (Sequence::NONE, RecordNumber(0));
        (self.asked, self.has_forgotten, self.before_down) = (None, false, None);
        self.is_disputed = false;
        self.delivered = delivered;
        (self.rolled_back_to, self.slow_to) = (Sequence::NONE, Sequence::NONE);
        self.confirm(newest, next_record);
    }

    /// The repair connection is down: nobody confirms anything, and multicast is followed all the same.
    pub(crate) fn link_is_down(&mut self, now: Nanos) {
        self.asked = None;
        self.suspend(now);
    }

    /// Nobody confirms anything until the next STATUS, and multicast is followed all the same.
    pub(crate) fn suspend(&mut self, now: Nanos) {
        (self.before_down).get_or_insert((self.newest, self.next_record));
        self.outage.get_or_insert(Outage::New(now));
        self.limit = Sequence(u64::MAX);
        self.slow_to = self.slow_to.max(self.newest);
        self.ask_beyond(self.limit);
    }

    /// Notes the time, so that an outage that is no longer new has no time of its own.
    #[inline]
    pub(crate) fn note_time(&mut self, now: Nanos) {
        if let Some(Outage::New(since)) = self.outage
            && now.since(since) >= CONFIRM_WAIT
        {
            self.outage = Some(Outage::Due);
        }
    }

    /// Notes that a datagram comes now. The first one that can't have come before the
    /// outage ends what is believed without a confirmation. `place`: where delivery is, and whether it fills
    /// a mirror.
    #[inline]
    pub(crate) fn note_arrival(&mut self, now: Nanos, place: impl FnOnce() -> (Place, bool)) {
        self.note_time(now);
        if matches!(self.outage, Some(Outage::Due)) {
            let (place, is_mirrored) = place();
            self.outage = Some(match is_mirrored {
                true => Outage::Mirrored(place),
                false => Outage::Old(place),
            });
            self.ask_beyond(self.asks_beyond);
        }
    }

    /// Returns whether what comes by multicast now can't be the last of a publisher that has ended: nobody
    /// has confirmed anything for a while.
    pub(crate) const fn is_outage_old(&self) -> bool {
        matches!(self.outage, Some(Outage::Old(_) | Outage::Mirrored(_)))
    }

    /// Returns whether a mirror takes nothing by multicast now, because anybody may have sent it. A standby
    /// publishes from its own input what the mirror lacks.
    pub(crate) const fn stops_mirror(&self) -> bool {
        matches!(self.outage, Some(Outage::Mirrored(_)))
    }

    /// Notes that two contents of a sequence came, so that an impostor may be about.
    pub(crate) const fn note_dispute(&mut self) {
        self.is_disputed = true;
    }

    /// Another epoch goes on at `at`: returns the place beyond which deliveries are void, because neither the
    /// publisher confirmed them nor multicast brought them undisputed while it could; `None` if all stand.
    /// Contents above `remembered` are remembered.
    pub(crate) fn void_beyond(&self, at: Continued, remembered: Sequence) -> Option<Place> {
        let goes_on = (at.last, at.next_record);
        let confirmed = (self.before_down).unwrap_or((self.newest, self.next_record));
        let stands = match self.is_disputed {
            _ if at.complete => goes_on,
            true => confirmed.max(goes_on),
            false => match self.outage? {
                Outage::New(_) | Outage::Due => return None,
                Outage::Old(delivered) | Outage::Mirrored(delivered) => delivered.max(goes_on),
            },
        };
        // The number of records beyond is known only from remembered contents.
        Some(match remembered > stands.0 {
            true => confirmed,
            false => stands,
        })
    }

    /// Everything up to `heard` was rolled back. Forged copies of it may still be under way, and those of
    /// the publisher may have come before: only the repair path can tell which one comes now.
    pub(crate) fn note_rolled_back(&mut self, heard: Sequence) {
        self.rolled_back_to = self.rolled_back_to.max(heard);
        self.slow_to = self.slow_to.max(heard);
        self.ask_beyond(self.asks_beyond);
    }

    /// Returns whether this sequence was rolled back, so that a copy by multicast is contested.
    pub(crate) fn was_rolled_back(&self, sequence: Sequence) -> bool {
        sequence <= self.rolled_back_to
    }

    /// Everything before `next` is settled. Once that is all that was rolled back or confirmed before the
    /// connection was down, the fast path is free.
    pub(crate) fn note_settled(&mut self, next: Sequence) {
        if self.slow_to != Sequence::NONE && next > self.slow_to {
            (self.rolled_back_to, self.slow_to) = (Sequence::NONE, Sequence::NONE);
            self.ask_beyond(self.asks_beyond);
        }
    }

    /// The newest sequence confirmed.
    pub(crate) const fn newest(&self) -> Sequence {
        self.newest
    }

    /// The last sequence of the fast path: nothing needs to be asked before it is delivered.
    #[inline(always)]
    pub(crate) const fn fast_until(&self) -> Sequence {
        self.fast_until
    }

    /// The last sequence that multicast may claim now.
    #[must_use]
    pub(crate) fn limit(&self, now: Nanos) -> Sequence {
        match self.is_overdue(now) {
            true => Sequence(u64::MAX),
            false => self.limit,
        }
    }

    /// Returns whether a sequence lies so far ahead that nothing may be delivered there before a STATUS, and
    /// that STATUS is overdue.
    #[must_use]
    pub(crate) fn is_blocked(&self, now: Nanos, sequence: Sequence) -> bool {
        sequence > self.limit && self.is_overdue(now)
    }

    fn is_overdue(&self, now: Nanos) -> bool {
        (self.asked).is_some_and(|(sent_at, _)| now.since(sent_at) >= CONFIRM_WAIT)
    }

    /// How far the clock may declare missing sequences lost.
    #[must_use]
    pub(crate) fn loss_limit(&self) -> LossLimit {
        let lifted_at = match self.asked {
            _ if self.limit == Sequence(u64::MAX) => Nanos::ZERO,
            Some((sent_at, _)) => sent_at.after(CONFIRM_WAIT),
            None => Nanos::MAX,
        };
        LossLimit {
            confirmed: self.newest,
            lifted_at,
            reported: self.reported,
        }
    }

    /// Notes that this sequence came by multicast. Returns whether to report progress now, so that the
    /// publisher confirms how far it is.
    pub(crate) fn is_report_due(&mut self, sequence: Sequence) -> bool {
        if sequence <= self.asks_beyond {
            return false;
        }
        self.ask_beyond(self.limit);
        // A STATUS that is awaited already confirms as much.
        self.asked.is_none()
    }

    /// Notes that a PROGRESS was sent, when everything up to `heard` was known.
    pub(crate) fn note_report(&mut self, sent_at: Nanos, heard: Sequence) {
        self.reported = (sent_at, heard);
        self.asked.get_or_insert(self.reported);
    }

    /// Notes that the publisher's ring itself showed this sequence.
    pub(crate) fn note_of_ring(&mut self, sequence: Sequence) {
        if sequence > self.newest {
            self.confirm(sequence, RecordNumber(0));
        }
    }

    /// Notes a datagram of multicast that is too old to be compared with what was delivered.
    pub(crate) fn note_forgotten(&mut self, sequence: Sequence) {
        self.has_forgotten |= sequence > self.newest;
    }

    /// Takes a STATUS of the epoch that is followed: the publisher has sent up to `newest`, and nothing
    /// more where it `ended`. `heard`: the highest sequence known now; `delivered`: everything up to here
    /// was delivered; `remembered`: contents above this sequence are remembered. Returns the proof of an
    /// impostor, if the STATUS is one.
    pub(crate) fn status(
        &mut self,
        (newest, next_record): (Sequence, RecordNumber),
        (echo, ended): (Nanos, bool),
        heard: Sequence,
        (delivered, remembered): (Sequence, Sequence),
    ) -> Option<Impostor> {
        // The publisher sealed everything that it sent, before we heard of it and said so.
        let claimed = self.take_answered(echo).filter(|it| *it > newest);
        let beyond_end = ended && heard > newest;
        let known = self.before_down.take();
        let (known, known_record) = known.unwrap_or((self.newest, self.next_record));
        let before = std::mem::replace(&mut self.delivered, delivered);
        let has_forgotten = std::mem::take(&mut self.has_forgotten);
        self.confirm(newest, next_record);
        self.is_disputed = claimed.is_some() || beyond_end || has_forgotten;
        if planted(Bug::ImpostorIgnored) || !self.is_disputed {
            return None;
        }
        self.asked = None;
        // Contents that are no longer remembered cannot be compared with the publisher's copies.
        let is_forgotten = remembered > known && known_record != RecordNumber(0);
        let (last, next_record) = match is_forgotten {
            true => (known, known_record),
            // The ring itself may have shown more than the publisher had sent then.
            false => (self.newest, self.next_record),
        };
        Some(Impostor {
            // Multicast may have filled gaps below the STATUS before, after it came.
            compare_behind: known.min(before),
            last,
            next_record,
            is_beyond: is_forgotten || beyond_end || claimed.is_some_and(|it| it > last),
        })
    }

    /// Returns what was heard when a PROGRESS was sent that this STATUS is the first to answer. Those sent
    /// after it still wait.
    fn take_answered(&mut self, echo: Nanos) -> Option<Sequence> {
        let (_, heard) = self.asked.take_if(|(sent_at, _)| echo >= *sent_at)?;
        if echo < self.reported.0 {
            self.asked = Some(self.reported);
            return Some(heard);
        }
        Some(heard.max(self.reported.1))
    }

    /// The proof that an impostor sent what was heard beyond END, the sequence `last`.
    pub(crate) fn proof_of_end(&self, last: Sequence, next_record: RecordNumber) -> Impostor {
        let known = self.before_down.map_or(self.newest, |(newest, _)| newest);
        Impostor {
            compare_behind: known.min(self.delivered),
            last,
            next_record,
            is_beyond: true,
        }
    }

    fn confirm(&mut self, newest: Sequence, next_record: RecordNumber) {
        if newest >= self.newest {
            (self.newest, self.next_record) = (newest, next_record);
        }
        self.outage = None;
        // At least one, so that a ring of few slots is followed.
        let share = |of: u64| self.newest.plus((self.ring_slots / of).max(1));
        let asks_beyond = share(ASK_SHARE);
        self.limit = share(AHEAD_SHARE);
        self.ask_beyond(asks_beyond);
    }

    fn ask_beyond(&mut self, sequence: Sequence) {
        self.asks_beyond = sequence;
        let is_closed = !matches!(self.outage, None | Some(Outage::Old(_)));
        self.fast_until = match self.slow_to {
            Sequence::NONE if !is_closed => sequence.min(SEQUENCE_LAST),
            _ => Sequence::NONE,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Epoch;

    const RECORD: RecordNumber = RecordNumber(1);

    fn confirmed() -> Confirmed {
        let mut confirmed = Confirmed::new(64);
        confirmed.restart(Sequence(100), Sequence(100), RECORD);
        confirmed
    }

    /// Returns the last sequence that stands, and whether what lies beyond is an impostor's.
    fn status(of: &mut Confirmed, newest: u64, echo: u64, heard: u64) -> Option<(u64, bool)> {
        let newest = (Sequence(newest), RECORD);
        let answer = (Nanos(echo), false);
        let proof = of.status(
            newest,
            answer,
            Sequence(heard),
            (Sequence(heard), Sequence(0)),
        );
        proof.map(|it| (it.last.0, it.is_beyond))
    }

    #[test]
    fn multicast_runs_half_a_ring_ahead_of_confirmation() {
        let mut of = Confirmed::new(64);
        assert_eq!(of.limit(Nanos(0)), Sequence(u64::MAX), "nobody can confirm");
        of.restart(Sequence(100), Sequence(100), RECORD);
        assert_eq!(
            (of.fast_until(), of.limit(Nanos(0))),
            (Sequence(108), Sequence(132))
        );
        of.note_of_ring(Sequence(110));
        of.note_of_ring(Sequence(105));
        assert_eq!(
            (of.fast_until(), of.limit(Nanos(0))),
            (Sequence(118), Sequence(142))
        );
        of.link_is_down(Nanos(0));
        of.note_arrival(CONFIRM_WAIT, || ((Sequence(109), RECORD), false));
        of.note_settled(Sequence(110));
        assert_eq!(of.fast_until(), Sequence::NONE, "110 was confirmed");
        of.note_settled(Sequence(111));
        assert_eq!(of.fast_until(), SEQUENCE_LAST);
        of.welcome(Sequence(112), RECORD, Sequence(900));
        assert_eq!(
            of.limit(Nanos(0)),
            Sequence(900),
            "heard without a connection"
        );
    }

    #[test]
    fn deliveries_stand_up_to_last_word_of_publisher() {
        let at = |last: u64, complete| Continued {
            epoch: Epoch(4),
            last: Sequence(last),
            next_record: RecordNumber(last + 1),
            complete,
        };
        let place = |last: u64| (Sequence(last), RecordNumber(last + 1));
        let void_beyond = |of: &Confirmed, last, complete| {
            let place = of.void_beyond(at(last, complete), Sequence::NONE);
            place.map(|(last, _)| last.0)
        };
        let mut of = confirmed();
        assert_eq!(void_beyond(&of, 90, false), None, "no outage");
        assert_eq!(void_beyond(&of, 90, true), Some(90), "all that was sent");
        of.link_is_down(Nanos(5));
        of.note_arrival(CONFIRM_WAIT, || (place(119), false));
        of.link_is_down(CONFIRM_WAIT);
        assert_eq!(void_beyond(&of, 90, false), None, "all may be from before");
        of.note_arrival(Nanos(5).after(CONFIRM_WAIT), || (place(120), false));
        of.note_arrival(Nanos::MAX, || (place(140), false));
        assert_eq!(void_beyond(&of, 90, false), Some(120));
        assert_eq!(void_beyond(&of, 130, false), Some(130));
        let forgotten = of.void_beyond(at(90, false), Sequence(121));
        assert_eq!(forgotten, Some((Sequence(100), RECORD)), "uncounted");
        of.note_dispute();
        let disputed = [90, 130].map(|last| void_beyond(&of, last, false));
        assert_eq!(disputed, [Some(100), Some(130)]);
        assert_eq!(status(&mut of, 140, 1, 140), None);
        assert_eq!(void_beyond(&of, 90, false), None, "it was confirmed");
    }

    #[test]
    fn confirmation_is_asked_for_once_per_eighth_of_ring() {
        let mut of = confirmed();
        assert!(!of.is_report_due(Sequence(108)));
        assert!(of.is_report_due(Sequence(109)));
        assert!(!of.is_report_due(Sequence(110)), "asked already");
        of.note_report(Nanos(7), Sequence(109));
        assert_eq!(status(&mut of, 109, 7, 110), None);
        assert!(!of.is_report_due(Sequence(117)) && of.is_report_due(Sequence(118)));
        of.note_report(Nanos(9), Sequence(118));
        of.confirm(Sequence(118), RECORD);
        assert!(!of.is_report_due(Sequence(127)), "a STATUS is on its way");
    }

    #[test]
    fn overdue_status_holds_multicast_up_no_longer() {
        let mut of = confirmed();
        of.note_report(Nanos(7), Sequence(109));
        let late = Nanos(7).after(CONFIRM_WAIT);
        assert_eq!(of.limit(Nanos(late.0 - 1)), Sequence(132));
        assert!(!of.is_blocked(late, Sequence(132)));
        assert!(of.is_blocked(late, Sequence(133)));
        assert_eq!(of.limit(late), Sequence(u64::MAX));
        of.suspend(late);
        of.note_settled(Sequence(101));
        of.note_arrival(Nanos(late.after(CONFIRM_WAIT).0 - 1), || {
            ((Sequence(101), RECORD), false)
        });
        assert_eq!(of.fast_until(), Sequence::NONE, "it may be from before");
        of.note_arrival(late.after(CONFIRM_WAIT), || {
            ((Sequence(102), RECORD), false)
        });
        assert_eq!(of.fast_until(), SEQUENCE_LAST);
        assert_eq!(status(&mut of, 105, 7, 900), Some((105, true)));
        assert_eq!(of.limit(late), Sequence(137), "it confirms again");
    }

    #[test]
    fn status_below_what_its_report_heard_proves_impostor() {
        let mut of = confirmed();
        of.note_report(Nanos(7), Sequence(110));
        of.note_report(Nanos(8), Sequence(120));
        assert_eq!(status(&mut of, 109, 6, 120), None, "it answers another");
        assert_eq!(status(&mut of, 109, 8, 120), Some((109, true)));
        assert_eq!(status(&mut of, 109, 9, 120), None, "asked once");
        let end = (Nanos(1), true);
        let known = (Sequence(0), Sequence(0));
        let beyond = of.status((Sequence(115), RECORD), end, Sequence(116), known);
        assert_eq!(
            beyond.map(|it| (it.last, it.is_beyond)),
            Some((Sequence(115), true))
        );
    }

    #[test]
    fn report_behind_an_answered_one_still_waits() {
        let mut of = confirmed();
        of.note_report(Nanos(7), Sequence(100));
        of.note_report(Nanos(8), Sequence(120));
        assert_eq!(status(&mut of, 110, 7, 120), None, "it heard no more then");
        assert_eq!(of.loss_limit().lifted_at, Nanos(8).after(CONFIRM_WAIT));
        assert_eq!(status(&mut of, 110, 8, 120), Some((110, true)));
        assert_eq!(of.loss_limit().lifted_at, Nanos::MAX);
    }

    #[test]
    fn losses_wait_for_status_that_can_come() {
        let mut of = Confirmed::new(64);
        assert_eq!(of.loss_limit().lifted_at, Nanos::ZERO, "nobody can confirm");
        of.restart(Sequence(100), Sequence(100), RECORD);
        let waits = LossLimit {
            confirmed: Sequence(100),
            lifted_at: Nanos::MAX,
            reported: (Nanos::ZERO, Sequence::NONE),
        };
        assert_eq!(of.loss_limit(), waits);
        of.note_report(Nanos(7), Sequence(110));
        let overdue_at = Nanos(7).after(CONFIRM_WAIT);
        assert_eq!(
            (of.loss_limit().lifted_at, of.loss_limit().reported),
            (overdue_at, (Nanos(7), Sequence(110)))
        );
        of.link_is_down(Nanos(9));
        assert_eq!(of.loss_limit().lifted_at, Nanos::ZERO);
        of.welcome(Sequence(112), RECORD, Sequence(900));
        assert_eq!(
            (of.loss_limit().confirmed, of.loss_limit().lifted_at),
            (Sequence(112), Nanos::MAX)
        );
    }

    #[test]
    fn ring_outruns_late_status() {
        let mut of = confirmed();
        of.note_report(Nanos(7), Sequence(110));
        of.note_of_ring(Sequence(112));
        assert_eq!(status(&mut of, 109, 7, 120), Some((112, false)));
    }

    #[test]
    fn contents_since_status_before_are_compared() {
        let mut of = confirmed();
        let mut behind = |newest: u64, heard: u64, delivered: u64| {
            of.note_report(Nanos(7), Sequence(heard));
            let (newest, delivered) = ((Sequence(newest), RECORD), Sequence(delivered));
            let known = (delivered, Sequence(0));
            let proof = of.status(newest, (Nanos(7), false), Sequence(heard), known);
            proof.map(|it| it.compare_behind.0)
        };
        assert_eq!(behind(109, 110, 110), Some(100));
        assert_eq!(behind(115, 115, 111), None);
        assert_eq!(behind(116, 117, 117), Some(111), "112 was missing");
        assert_eq!(behind(117, 118, 118), Some(116));
    }

    #[test]
    fn unconfirmed_and_forgotten_contents_are_void_as_a_whole() {
        let mut of = confirmed();
        of.note_forgotten(Sequence(100));
        assert_eq!(status(&mut of, 300, 1, 300), None);
        of.note_forgotten(Sequence(301));
        let newest = (Sequence(400), RecordNumber(5));
        let known = (Sequence(500), Sequence(350));
        let proof = of.status(newest, (Nanos(1), false), Sequence(500), known);
        let proof = proof.map(|it| (it.last, it.next_record, it.is_beyond));
        assert_eq!(proof, Some((Sequence(300), RECORD, true)));
    }
}
