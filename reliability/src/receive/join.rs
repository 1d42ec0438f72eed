//! Beginning, and beginning again: what WELCOME says decides where delivery starts, whether an
//! interrupted stream goes on, and which epoch is followed (docs/PROTOCOL.md §5.1, §6.1).

use serde::{Deserialize, Serialize};

use crate::control::{ChannelOffer, NackClass, Start};
use crate::delivery::{Deliver, Event, Item, LinkDownReason, Loss, LossCause};
use crate::planted::{Bug, planted};
use crate::receive::gaps::{Gap, Origin, Rung, Visit};
use crate::receive::lines::Lines;
use crate::receive::liveness::{Liveness, Silence};
use crate::receive::{ALL, Receiver, ReplayPath, geometry_of};
use crate::types::{Epoch, Nanos, Sequence, SequenceRange};

/// What a WELCOME led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Welcomed {
    /// The stream begins here.
    Began,
    /// It goes on where it was interrupted.
    GoesOn,
    /// It goes on in an epoch that continues the one followed.
    Continued,
    /// Another epoch is followed from now on.
    EpochChanged,
    /// The offer is of an epoch older than ours: a zombie's. Nothing changed.
    Zombie,
}

/// What one receiver of a channel leaves to the next: how the channel stands beside its stream, of
/// which the application was told and will be told no other way.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ChannelHealth {
    liveness: Liveness,
    silence_told: Silence,
    lines: Lines,
    link_down_told: bool,
}

impl Receiver {
    /// What the next receiver of this channel is to know.
    #[must_use]
    pub fn health(self) -> ChannelHealth {
        ChannelHealth {
            liveness: self.liveness,
            silence_told: self.silence_told,
            lines: self.lines,
            link_down_told: self.link_down_told,
        }
    }

    /// Goes on where another receiver of the channel stood, of whose state the application knows:
    /// before anything is given to this one.
    pub fn restore_health(&mut self, health: ChannelHealth, now: Nanos) {
        let count = self.lines.count();
        self.silence_told = health.silence_told;
        self.liveness = health.liveness;
        self.liveness.restart(self.silence_told, now);
        self.link_down_told = health.link_down_told;
        self.lines = health.lines;
        let changes = self.lines.renew(count, now);
        changes.for_each(|change| self.note_line(change));
    }

    /// The repair connection is up and the publisher offers this.
    pub fn handle_welcome(
        &mut self,
        now: Nanos,
        offer: &ChannelOffer,
        start: Start,
        on: &mut impl Deliver,
    ) -> Welcomed {
        let ahead = match start {
            Start::At(epoch, _) if self.epoch == Epoch::NONE => epoch,
            _ => self.epoch,
        };
        if offer.epoch < ahead && !planted(Bug::ZombieWelcomed) {
            self.counters.old_epoch_dropped.increment();
            return Welcomed::Zombie;
        }
        self.link_up = true;
        self.link_silent = false;
        self.liveness.heard_welcome(now);
        self.counters.repair_links_up.increment();
        self.slots = offer.slots;
        self.geometry = geometry_of(offer.slots, offer.slot_len as usize);
        self.progress_at = now;
        self.unanswered = 0;
        self.refused_ahead_since = None;
        self.note_link_up();
        let welcomed = if self.epoch == Epoch::NONE {
            self.begin(now, offer, start, on);
            Welcomed::Began
        } else if offer.epoch == self.epoch {
            self.note_told(offer.newest, offer.next_record, now);
            self.request_again(now, |_| true);
            self.requery(ALL, now);
            Welcomed::GoesOn
        } else if let Some(at) = offer.continues.of(self.epoch) {
            self.continue_epoch(now, offer, at, on);
            Welcomed::Continued
        } else {
            self.follow(now, offer, on);
            Welcomed::EpochChanged
        };
        self.handle_timeout(now, on);
        welcomed
    }

    /// The repair connection is down: nothing is asked for, and the clock of repair stands still.
    pub fn handle_link_down(&mut self, reason: LinkDownReason) {
        self.replay = ReplayPath::Unwanted;
        if std::mem::replace(&mut self.link_up, false) {
            self.counters.repair_links_down.increment();
            if !self.ended() {
                // After the end the publisher may go: that is no news.
                self.link_down_told = true;
                self.events.push_back(Event::RepairLinkDown(reason));
            }
        }
    }

    /// Tells that the connection is up again, where it was told that it was down.
    fn note_link_up(&mut self) {
        if std::mem::take(&mut self.link_down_told) {
            self.events.push_back(Event::RepairLinkUp);
        }
    }

    /// The replay connection is down: what was asked for there is asked for again.
    pub fn handle_replay_down(&mut self, now: Nanos) {
        self.request_again(now, |gap| gap.class == NackClass::Replay);
    }

    /// The NACK connection is down: what it was asked for is due on the repair connection at once.
    pub fn handle_nack_down(&mut self, now: Nanos) {
        self.leave_rung(now, |rung| rung == Rung::Nack);
    }

    /// What was asked for on these rungs is due on the next one at once: they answer no more.
    pub(crate) fn leave_rung(&mut self, now: Nanos, is_it: impl Fn(Rung) -> bool) {
        self.gaps.visit(ALL, |gap| {
            if gap.attempts > 0 && is_it(gap.rung) {
                gap.next_request_at = now;
            }
            Visit::Continue
        });
    }

    /// Whether questions for replay can be sent now.
    pub(crate) const fn set_replay(&mut self, open: bool, on_its_way: bool) {
        self.replay = match self.replay {
            _ if open => ReplayPath::Open,
            ReplayPath::Awaited if on_its_way => ReplayPath::Awaited,
            _ => ReplayPath::Unwanted,
        };
    }

    fn begin(&mut self, now: Nanos, offer: &ChannelOffer, start: Start, on: &mut impl Deliver) {
        self.epoch = offer.epoch;
        self.counters.epochs.increment();
        self.lineage = offer.continues.clone();
        let (oldest, oldest_record) = offer.oldest_of_all();
        let oldest = (oldest, Some(oldest_record));
        // How far the epoch goes that the start names, if it is one of the line.
        let end_of = |epoch: Epoch| match offer.continues.of(epoch) {
            Some(it) => Some((it.last.next(), it.next_record)),
            None if epoch == offer.epoch => Some((offer.newest.next(), offer.next_record)),
            None => None,
        };
        let (next, next_record) = match start {
            Start::Live => (offer.newest.next(), Some(offer.next_record)),
            Start::Oldest => oldest,
            Start::At(epoch, sequence) if let Some((end, record)) = end_of(epoch) => {
                let next = sequence.max(Sequence::FIRST).min(end);
                if next == oldest.0 {
                    oldest
                } else {
                    (next, (next == end).then_some(record))
                }
            }
            Start::At(epoch, sequence) => {
                // Its epoch is over; what it missed of it nobody can tell.
                self.reassembly.restart(epoch, sequence, None);
                self.tell_epoch_tail(sequence, on);
                let change = Event::EpochChanged {
                    from: epoch,
                    to: offer.epoch,
                };
                on.item(Item::Event(&self.reassembly.position(), &change));
                oldest
            }
        };
        let (next, next_record) = match planted(Bug::BeginsFurtherOn) {
            true => (next.plus(3), None),
            false => (next, next_record),
        };
        let skipped = u64::from(planted(Bug::LateJoinSkipsOne));
        self.reassembly
            .restart(offer.epoch, next.plus(skipped), next_record);
        self.reassembly.set_lineage(offer.epoch, &self.lineage);
        self.highest_seen = next.plus(skipped).previous();
        self.lines.restart();
        let position = self.reassembly.position();
        on.item(Item::Event(
            &position,
            &Event::Joined {
                after: next
                    .previous()
                    .plus(planted(Bug::LateJoinRepeatsOne).into()),
            },
        ));
        self.live_after = match planted(Bug::LiveToldTooSoon) {
            true => Some(Sequence::NONE),
            false => Some(offer.newest),
        };
        self.beginning = (start == Start::Oldest).then_some(next);
        self.note_sent(offer.newest, now, Origin::History);
        self.reassembly
            .set_anchor(offer.newest.next(), offer.next_record);
        self.lose_below(oldest.0);
    }

    /// Ends the epoch that was followed: what is open of it is lost, its end or its tail told, and
    /// which epoch comes next.
    pub fn end_epoch(&mut self, now: Nanos, to: Epoch, on: &mut impl Deliver) {
        let from = self.epoch;
        self.lose(ALL, LossCause::Epoch);
        self.reassembly.advance(&self.counters, on);
        self.reassembly.give_up_pending(&self.counters, on);
        self.end_if_resolved(on);
        if self.reassembly.ended() {
            // Of what was silent or heard since nothing was told.
            self.liveness.restart(self.silence_told, now);
        } else if !planted(Bug::EpochTailForgotten) {
            // An END that nobody confirmed was not told: whatever it was, it is part of the tail.
            let unconfirmed = self.end_heard.filter(|end| *end == self.highest_seen);
            self.tell_epoch_tail(unconfirmed.unwrap_or_else(|| self.highest_seen.next()), on);
        }
        let change = Event::EpochChanged { from, to };
        on.item(Item::Event(&self.reassembly.position(), &change));
    }

    /// Follows the publisher into another epoch: all of it, from its first datagram.
    fn follow(&mut self, now: Nanos, offer: &ChannelOffer, on: &mut impl Deliver) {
        self.end_epoch(now, offer.epoch, on);
        self.epoch = offer.epoch;
        self.lineage = offer.continues.clone();
        self.counters.epochs.increment();
        self.reassembly.fit_slots(offer.slot_len as usize);
        let (first, first_record) = offer.continues.begins();
        self.reassembly
            .restart(offer.epoch, first, Some(first_record));
        self.mirror_anew(offer, first);
        self.gaps.clear();
        self.contested.clear();
        self.lines.restart();
        self.confirmed = None;
        self.leapt = false;
        self.highest_seen = first.previous();
        self.end_at = None;
        self.end_heard = None;
        self.end_told = false;
        self.live_after = Some(offer.newest);
        self.note_sent(offer.newest, now, Origin::History);
        self.reassembly
            .set_anchor(offer.newest.next(), offer.next_record);
        self.lose_below(offer.oldest);
    }

    pub(crate) fn lose_below(&mut self, oldest: Sequence) {
        if let Some(gone) = SequenceRange::new(Sequence::FIRST, oldest.previous()) {
            self.lose(gone, LossCause::Window);
        }
    }

    /// What was never heard of an epoch that is over: lost, and nobody knows how much.
    fn tell_epoch_tail(&mut self, first: Sequence, on: &mut impl Deliver) {
        self.counters.loss_events.increment();
        self.counters.losses_of_unknown_size.increment();
        let sequences = SequenceRange {
            first,
            last: Sequence(u64::MAX),
        };
        let loss = Loss {
            sequences,
            records: None,
            cause: LossCause::Epoch,
        };
        on.item(Item::Event(&self.reassembly.position(), &Event::Lost(loss)));
    }

    /// Everything that had been asked for is asked for again, as if for the first time.
    pub(crate) fn request_again(&mut self, now: Nanos, which: impl Fn(&Gap) -> bool) {
        self.gaps.visit(ALL, |gap| {
            if which(gap) {
                gap.attempts = 0;
                gap.next_request_at = now;
            }
            Visit::Continue
        });
    }
}
