//! Beginning, and beginning again: what WELCOME says decides where delivery starts, whether an
//! interrupted stream goes on, and which epoch is followed (docs/PROTOCOL.md §5.1, §6.1).

use crate::control::{ChannelOffer, NackClass};
use crate::delivery::{Event, Item, LineId, LinkDownReason, Start};
use crate::gaps::{Gap, Origin, Visit};
use crate::lines::Lines;
use crate::loss::{Loss, LossCause};
use crate::planted::{Bug, planted};
use crate::receiver::{ALL, Receiver, ReplayPath};
use crate::units::{Epoch, Nanos, RecordNumber, Sequence, SequenceRange};

/// What a WELCOME led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Welcomed {
    /// The stream begins here.
    Began,
    /// It goes on where it was interrupted.
    GoesOn,
    /// Another epoch is followed from now on.
    EpochChanged,
    /// The offer is of an epoch older than ours: a zombie's. Nothing changed.
    Zombie,
}

impl Receiver {
    /// The repair connection is up and the publisher offers this.
    pub fn handle_welcome(
        &mut self,
        now: Nanos,
        offer: &ChannelOffer,
        start: Start,
        on: &mut impl FnMut(Item<'_>),
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
        self.progress_at = now;
        let welcomed = if self.epoch == Epoch::NONE {
            self.begin(now, offer, start, on);
            Welcomed::Began
        } else if offer.epoch == self.epoch {
            self.events.push_back(Event::RepairLinkUp);
            self.note_told(offer.newest, offer.next_record, now);
            self.ask_again(now, |_| true);
            Welcomed::GoesOn
        } else {
            self.events.push_back(Event::RepairLinkUp);
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
                self.events.push_back(Event::RepairLinkDown(reason));
            }
        }
    }

    /// The replay connection is down: what was asked for there is asked for again.
    pub fn handle_replay_down(&mut self, now: Nanos) {
        self.ask_again(now, |gap| gap.class == NackClass::Replay);
    }

    /// Whether questions for replay can be sent now.
    pub(crate) const fn set_replay(&mut self, open: bool, on_its_way: bool) {
        self.replay = match self.replay {
            _ if open => ReplayPath::Open,
            ReplayPath::Awaited if on_its_way => ReplayPath::Awaited,
            _ => ReplayPath::Unwanted,
        };
    }

    /// The channel is sent on this many lines from now on.
    pub fn set_lines(&mut self, lines: usize, now: Nanos) {
        if lines.clamp(1, LineId::MAX) != self.lines.count() {
            self.lines = Lines::new(lines, now);
        }
    }

    fn begin(
        &mut self,
        now: Nanos,
        offer: &ChannelOffer,
        start: Start,
        on: &mut impl FnMut(Item<'_>),
    ) {
        self.epoch = offer.epoch;
        self.counters.epochs.increment();
        let oldest = (offer.oldest, Some(offer.oldest_record));
        let (next, next_record) = match start {
            Start::Live => (offer.newest.next(), Some(offer.next_record)),
            Start::Oldest => oldest,
            Start::At(epoch, sequence) if epoch == offer.epoch => {
                let next = sequence.max(Sequence::FIRST).min(offer.newest.next());
                if next == offer.oldest {
                    oldest
                } else {
                    let at_head = next == offer.newest.next();
                    (next, at_head.then_some(offer.next_record))
                }
            }
            Start::At(epoch, sequence) => {
                // Its epoch is over; what it missed of it nobody can tell.
                self.order.restart(epoch, sequence, None);
                self.tell_epoch_tail(sequence, on);
                let change = Event::EpochChanged {
                    from: epoch,
                    to: offer.epoch,
                };
                on(Item::Event(&self.order.position(), &change));
                oldest
            }
        };
        let skipped = u64::from(planted(Bug::LateJoinSkipsOne));
        self.order
            .restart(offer.epoch, next.plus(skipped), next_record);
        self.heard = next.plus(skipped).previous();
        self.lines.restart();
        let position = self.order.position();
        on(Item::Event(
            &position,
            &Event::Joined {
                after: next
                    .previous()
                    .plus(planted(Bug::LateJoinRepeatsOne).into()),
            },
        ));
        self.live_after = Some(offer.newest);
        self.beginning = (start == Start::Oldest).then_some(next);
        self.note_heard(offer.newest, now, Origin::History);
        self.order.note_fact(offer.newest.next(), offer.next_record);
        self.lose_below(offer.oldest);
    }

    /// Follows the publisher into another epoch: all of it, from its first datagram.
    fn follow(&mut self, now: Nanos, offer: &ChannelOffer, on: &mut impl FnMut(Item<'_>)) {
        let from = self.epoch;
        self.lose(ALL, LossCause::Epoch);
        self.order.advance(&self.counters, on);
        self.order.give_up_pending(&self.counters, on);
        if !self.order.ended() && !planted(Bug::EpochTailForgotten) {
            // An END that nobody confirmed was not told: whatever it was, it is part of the tail.
            let unconfirmed = self.end_heard.filter(|end| *end == self.heard);
            self.tell_epoch_tail(unconfirmed.unwrap_or_else(|| self.heard.next()), on);
        }
        self.epoch = offer.epoch;
        self.counters.epochs.increment();
        let change = Event::EpochChanged {
            from,
            to: offer.epoch,
        };
        on(Item::Event(&self.order.position(), &change));
        self.order.fit_slots(offer.slot_len as usize);
        self.order
            .restart(offer.epoch, Sequence::FIRST, Some(RecordNumber::FIRST));
        self.gaps.clear();
        self.in_doubt.clear();
        self.lines.restart();
        self.told = None;
        self.leapt = false;
        self.heard = Sequence::NONE;
        self.end_at = None;
        self.end_heard = None;
        self.end_told = false;
        self.live_after = Some(offer.newest);
        self.note_heard(offer.newest, now, Origin::History);
        self.order.note_fact(offer.newest.next(), offer.next_record);
        self.lose_below(offer.oldest);
    }

    fn lose_below(&mut self, oldest: Sequence) {
        if let Some(gone) = SequenceRange::new(Sequence::FIRST, oldest.previous()) {
            self.lose(gone, LossCause::Window);
        }
    }

    /// What was never heard of an epoch that is over: lost, and nobody knows how much.
    fn tell_epoch_tail(&mut self, first: Sequence, on: &mut impl FnMut(Item<'_>)) {
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
        on(Item::Event(&self.order.position(), &Event::Lost(loss)));
    }

    /// Everything that had been asked for is asked for again, as if for the first time.
    fn ask_again(&mut self, now: Nanos, which: impl Fn(&Gap) -> bool) {
        self.gaps.visit(ALL, |gap| {
            if which(gap) {
                gap.tries = 0;
                gap.ask_at = now;
            }
            Visit::Continue
        });
    }
}
