//! What becomes of what is missing: it came, or it is given up because its time is over, the ring
//! moved on, or the session ended (docs/PROTOCOL.md §5.4, §5.6, §8).

use crate::delivery::{Deliver, Delivery, Event, Item, LossCause};
use crate::planted::{Bug, planted};
use crate::receive::gaps::{Gap, GapOutcome, Origin};
use crate::receive::{ALL, Receiver};
use crate::types::{Nanos, RecordNumber, Sequence, SequenceRange};

impl Receiver {
    /// The ring moved on before our first question was answered: so does the beginning.
    pub(crate) fn begin_later(
        &mut self,
        oldest: Sequence,
        record: RecordNumber,
        on: &mut impl Deliver,
    ) {
        let Some(gone) = SequenceRange::new(self.reassembly.next(), oldest.previous()) else {
            return;
        };
        let counters = &self.counters;
        self.gaps.lose(gone, |part, origin, _| match origin {
            Origin::Live => counters.missing_lost.add(part.len()),
            Origin::History => counters.replay_lost.add(part.len()),
        });
        self.reassembly.begin_at(oldest, record);
        self.highest_seen = self.highest_seen.max(oldest.previous());
        self.beginning = Some(oldest);
        // Where the ring was empty it was told already that the stream is followed live.
        self.live_after.get_or_insert(self.highest_seen);
        let after = oldest.previous();
        on.item(Item::Event(
            &self.reassembly.position(),
            &Event::Joined { after },
        ));
    }

    /// Declares what is missing of `range` lost.
    pub(crate) fn lose(&mut self, range: SequenceRange, cause: LossCause) {
        let (reassembly, counters) = (&mut self.reassembly, &self.counters);
        self.gaps.lose(range, |part, origin, _| {
            match origin {
                Origin::Live => counters.missing_lost.add(part.len()),
                Origin::History => counters.replay_lost.add(part.len()),
            }
            reassembly.lose(part, cause);
        });
    }

    /// How long a gap may stay open at all, if there is a limit.
    pub(crate) fn patience(&self) -> Option<Nanos> {
        match self.config.delivery {
            Delivery::OrderedWithin(deadline) if planted(Bug::DeadlineStretched) => {
                Some(deadline.times(10))
            }
            Delivery::OrderedWithin(deadline) if self.config.repair => Some(deadline),
            _ if !self.config.repair => Some(Nanos::from_us(self.config.unrepaired_wait_us as u64)),
            _ => None,
        }
    }

    /// A joiner's history has no deadline: it is awaited as long as repair is on at all.
    pub(crate) fn has_deadline(&self, gap: &Gap) -> bool {
        gap.origin == Origin::Live || !self.config.repair
    }

    pub(crate) fn give_up_overdue(&mut self, now: Nanos) {
        let Some(wait) = self.patience() else { return };
        if planted(Bug::DeadlineForgotten) {
            return;
        }
        let cause = if self.config.repair != planted(Bug::WrongCause) {
            LossCause::Deadline
        } else {
            LossCause::RepairOff
        };
        loop {
            let overdue = |gap: &&Gap| now >= gap.found_at.after(wait) && self.has_deadline(gap);
            let first = self.gaps.iter().find(overdue).map(|gap| gap.range);
            let Some(range) = first else { break };
            self.lose(range, cause);
        }
    }

    pub(crate) fn note_outcome(&mut self, resolved: Option<GapOutcome>, now: Nanos) {
        if let Some(resolved) = resolved
            && resolved.recovered > 0
            && resolved.origin == Origin::Live
        {
            let told = Event::GapRecovered {
                first: resolved.first,
                sequences: resolved.recovered,
                took: now.since(resolved.found_at),
            };
            if planted(Bug::RecoveryToldTwice) {
                self.events.push_back(told.clone());
            }
            self.events.push_back(told);
        }
    }

    /// Ends the session once everything up to a confirmed END is settled. Nothing follows it: what
    /// another publisher made us miss beyond it is not missing.
    pub(crate) fn end_if_resolved(&mut self, on: &mut impl Deliver) {
        if self.end_at.is_none_or(|end| self.reassembly.next() <= end) {
            return;
        }
        self.reassembly.end(on);
        if self.highest_seen >= self.reassembly.next() {
            let counters = &self.counters;
            self.gaps.lose(ALL, |part, origin, _| match origin {
                Origin::Live => counters.missing_lost.add(part.len()),
                Origin::History => counters.replay_lost.add(part.len()),
            });
            self.highest_seen = self.reassembly.next().previous();
            self.note_open();
        }
    }

    #[inline]
    pub(crate) fn note_open(&self) {
        self.counters.missing_open.set(self.gaps.open(Origin::Live));
        self.counters
            .replay_open
            .set(self.gaps.open(Origin::History));
    }

    /// After every input: what follows from the new state.
    #[inline]
    pub(crate) fn resolve(&mut self, now: Nanos, on: &mut impl Deliver) {
        self.note_open();
        self.tell(on);
        self.end_if_resolved(on);
        if self.reassembly.ended() && !self.end_told {
            // The publisher lingers until it knows that we have everything.
            self.end_told = true;
            self.progress_at = now;
        }
    }

    /// Tells what is to be told after what was delivered.
    #[inline]
    pub(crate) fn tell(&mut self, on: &mut impl Deliver) {
        if let Some(after) = self.live_after
            && self.reassembly.next() > after
        {
            self.live_after = None;
            on.item(Item::Event(&self.reassembly.position(), &Event::Live));
        }
        if !self.events.is_empty() {
            self.drain_events(on);
        }
    }
}
