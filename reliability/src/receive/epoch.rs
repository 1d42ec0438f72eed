//! Going on with an epoch that continues the one followed, and keeping a mirror of what is followed
//! (docs/PROTOCOL.md §5.7).

use crate::control::ChannelOffer;
use crate::delivery::Deliver;
use crate::planted::{Bug, planted};
use crate::receive::gaps::Origin;
use crate::receive::mirror::Mirror;
use crate::receive::{ALL, Receiver};
use crate::types::{Continued, Nanos, Sequence, SequenceRange};
use crate::wire::{Header, Kind};

impl Receiver {
    /// Whether a datagram is of the epoch that is followed, or was sealed under one that it
    /// continues, where that counts.
    #[inline]
    pub(crate) fn is_of_our_line(&self, header: &Header) -> bool {
        header.epoch
            == match header.kind {
                Kind::Heartbeat => self.epoch,
                _ => self.lineage.epoch_of(self.epoch, header.sequence),
            }
    }

    /// The publisher of another epoch goes on where the one followed ended for it: nothing is lost,
    /// and what was heard beyond that place counts no more.
    pub(crate) fn continue_epoch(
        &mut self,
        now: Nanos,
        offer: &ChannelOffer,
        at: Continued,
        on: &mut impl Deliver,
    ) {
        if self.ended() {
            // Of what was silent or heard since the end nothing was told.
            self.liveness.restart(self.silence_told, now);
        }
        self.epoch = offer.epoch;
        self.lineage = offer.continues.clone();
        self.counters.epochs.increment();
        self.counters.epochs_continued.increment();
        self.reassembly.fit_slots(offer.slot_len as usize);
        self.drop_unfit_mirror(offer);
        let mut forgotten = SequenceRange::new(at.last.next(), Sequence(u64::MAX));
        if planted(Bug::HistoryOfOldEpochForgotten) {
            forgotten = Some(ALL);
        }
        let counters = &self.counters;
        if let Some(range) = forgotten {
            self.gaps.lose(range, |part, origin, _| match origin {
                Origin::Live => counters.missing_superseded.add(part.len()),
                Origin::History => counters.replay_superseded.add(part.len()),
            });
        }
        let dropped =
            (self.reassembly).continue_epoch(self.epoch, &self.lineage, at, &self.counters, on);
        self.counters.epoch_change_dropped.add(dropped);
        self.beginning = self.beginning.map(|_| self.reassembly.next());
        self.contested.clear();
        self.lines.restart();
        self.confirmed = None;
        self.leapt = false;
        self.highest_seen = self.highest_seen.min(at.last);
        (self.end_at, self.end_heard) = (None, None);
        self.end_told = false;
        self.live_after = self.live_after.map(|_| offer.newest);
        // What it has sent so far did not reach us, as whatever is sent before one joins.
        self.note_sent(offer.newest, now, Origin::History);
        (self.reassembly).set_anchor(offer.newest.next(), offer.next_record);
        self.lose_below(offer.oldest_of_all().0);
        self.request_again(now, |_| true);
        self.requery(ALL, now);
        self.reassembly.advance(&self.counters, on);
    }

    /// What keeps a copy of all that is delivered, if anything does.
    #[must_use]
    pub fn mirror(&self) -> Option<&Mirror> {
        self.reassembly.mirror()
    }

    /// Lets this keep a copy of all that is delivered from now on; gives what did before.
    pub fn set_mirror(&mut self, mirror: Option<Mirror>) -> Option<Mirror> {
        self.reassembly
            .set_mirror(mirror.map(Box::new))
            .map(|it| *it)
    }

    /// The mirror begins anew with the first datagram of the epoch on offer.
    pub(crate) fn mirror_anew(&mut self, offer: &ChannelOffer, first: Sequence) {
        self.drop_unfit_mirror(offer);
        if let Some(mut mirror) = self.set_mirror(None) {
            mirror.begin_anew(offer.epoch, offer.continues.clone(), first);
            self.set_mirror(Some(mirror));
        }
    }

    /// A ring of another shape can't be mirrored in the same places.
    fn drop_unfit_mirror(&mut self, offer: &ChannelOffer) {
        if self.mirror().is_some_and(|mirror| !mirror.fits(offer)) {
            self.set_mirror(None);
        }
    }
}
