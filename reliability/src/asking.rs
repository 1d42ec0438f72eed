//! Asking for what is missing, and hearing the answers: NACKs for everything that is due at once,
//! refusals, and the publisher's status (docs/PROTOCOL.md §5.4, §6).

use crate::control::{NackClass, Progress, RefusalReason, Refused, Status};
use crate::delivery::Item;
use crate::gaps::{Gap, Origin, Visit};
use crate::lines::Lines;
use crate::loss::LossCause;
use crate::planted::{Bug, planted};
use crate::receiver::{Receiver, ReplayPath};
use crate::units::{Nanos, RecordNumber, Sequence, SequenceRange};

/// What a receiver wants to ask for in one go.
#[derive(Clone, Debug, Default)]
pub struct Asks {
    /// Gaps of the live stream, ascending.
    pub repair: Vec<SequenceRange>,
    /// History, ascending; on the joiners' budget.
    pub replay: Vec<SequenceRange>,
    /// Whether replay is wanted and the path for it is not open.
    pub replay_wanted: bool,
}

/// Whether the path still answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathHealth {
    /// As far as we know.
    Answers,
    /// Asked as often as allowed, and silent: build it anew.
    Exhausted,
}

impl Receiver {
    /// Collects all gaps that are due, marks them as asked, and tells whether the path answers.
    pub fn collect_asks(&mut self, now: Nanos, asks: &mut Asks) -> PathHealth {
        if !self.link_up || !self.config.repair || !self.is_waiting() {
            return PathHealth::Answers;
        }
        for sequence in self.in_doubt.drain(..) {
            asks.repair.push(SequenceRange::one(sequence));
        }
        let next = self.order.next();
        // The window ends before `beyond`; at the very end of the numbers it saturates.
        let last = self.order.beyond().previous().max(next);
        let window = SequenceRange { first: next, last };
        let mut in_flight = self.replay_in_flight();
        let skew = Nanos::from_us(self.config.line_skew_us.into());
        let tries_max = self.config.nack_tries;
        let in_flight_max = u64::from(self.config.replay_in_flight);
        let (nack, lines, answered) = (&mut self.nack, &self.lines, self.answered);
        let replay_open = self.replay == ReplayPath::Open;
        let mut replay_wanted = false;
        let mut health = PathHealth::Answers;
        self.gaps.visit(window, |gap| {
            if gap.ask_at > now {
                return Visit::Continue;
            }
            if gap.class == NackClass::Replay && !replay_open {
                replay_wanted = true;
                return Visit::Continue;
            }
            if may_come_by_itself(gap, lines) && now < gap.found_at.after(skew) {
                return Visit::Continue;
            }
            if gap.tries > 0 {
                // Answers come by ascending sequence: while they are below this gap, its turn will
                // come; once they are above it, its answer was lost.
                let patience = nack.retry(1);
                if let Some((at, sequence)) = answered[gap.class as usize - 1]
                    && at > gap.asked_at
                    && sequence < gap.range.first
                    && now.since(at) < patience
                {
                    gap.ask_at = at.after(patience);
                    return Visit::Continue;
                }
            }
            if gap.tries >= tries_max {
                health = PathHealth::Exhausted;
                return Visit::Stop;
            }
            if gap.class == NackClass::Replay && gap.tries == 0 {
                let room = in_flight_max.saturating_sub(in_flight);
                if room == 0 {
                    // The rest of the replay waits, but gaps of the live stream do not.
                    return Visit::Continue;
                }
                gap.range.last = gap.range.last.min(gap.range.first.plus(room - 1));
                in_flight += gap.range.len();
            }
            gap.tries += 1;
            gap.asked_at = now;
            gap.ask_at = now.after(nack.retry(gap.tries));
            if planted(Bug::NackNeverRetried) {
                gap.ask_at = Nanos::MAX;
            }
            if planted(Bug::NackStorm) {
                (gap.tries, gap.ask_at) = (1, now);
            }
            match gap.class {
                NackClass::Repair => asks.repair.push(gap.range),
                NackClass::Replay => asks.replay.push(gap.range),
            }
            Visit::Continue
        });
        if replay_wanted && self.replay == ReplayPath::Unwanted {
            self.replay = ReplayPath::Awaited;
            asks.replay_wanted = true;
        }
        let asked = asks
            .repair
            .iter()
            .chain(&asks.replay)
            .map(|range| range.len())
            .sum();
        self.counters.nacked_sequences.add(asked);
        health
    }

    /// When the next question is due.
    pub(crate) fn next_ask(&self) -> Nanos {
        if !self.link_up || !self.config.repair {
            return Nanos::MAX;
        }
        if !self.in_doubt.is_empty() {
            return Nanos::ZERO;
        }
        let beyond = self.order.beyond();
        let skew = Nanos::from_us(self.config.line_skew_us.into());
        // While the replay asked for is on its way, the rest of it waits.
        let full = self.replay_in_flight() >= u64::from(self.config.replay_in_flight);
        let awaited = self.replay == ReplayPath::Awaited;
        self.gaps
            .iter()
            .take_while(|gap| gap.range.first < beyond)
            .filter(|gap| gap.class == NackClass::Repair || !(awaited || (full && gap.tries == 0)))
            .map(|gap| {
                let waits = may_come_by_itself(gap, &self.lines);
                let at = if waits {
                    gap.found_at.after(skew)
                } else {
                    Nanos::ZERO
                };
                gap.ask_at.max(at)
            })
            .min()
            .unwrap_or(Nanos::MAX)
    }

    /// Sequences of a replay that were asked for and have not come.
    fn replay_in_flight(&self) -> u64 {
        (self.gaps.iter())
            .filter(|gap| gap.class == NackClass::Replay && gap.tries > 0)
            .map(|gap| gap.range.len())
            .sum()
    }

    /// The publisher refuses a range.
    pub fn handle_refused(&mut self, now: Nanos, refused: &Refused, on: &mut impl FnMut(Item<'_>)) {
        self.counters.refusals_received.increment();
        if planted(Bug::RefusalIgnored) {
            return;
        }
        let asked = self
            .gaps
            .iter()
            .find(|gap| gap.range.intersection(refused.range).is_some());
        if let Some(class) = asked.map(|gap| gap.class) {
            self.answered[class as usize - 1] = Some((now, refused.range.last));
        }
        if refused.epoch != self.epoch {
            self.ask_status_soon(now);
            return;
        }
        match refused.reason {
            RefusalReason::Window => {
                self.order.note_fact(refused.oldest, refused.oldest_record);
                if self.beginning == Some(self.order.next()) {
                    self.begin_later(refused.oldest, refused.oldest_record, on);
                }
                // What the ring no longer holds now, it will not hold later either.
                let gone = SequenceRange::new(Sequence::FIRST, refused.oldest.previous());
                if let Some(gone) = gone {
                    self.lose(gone, LossCause::Window);
                }
                // Whatever else it refused may be asked for again.
                let at = now.after(self.nack.retry(1));
                self.postpone(refused.range, at);
            }
            RefusalReason::TooSlow => self.lose(refused.range, LossCause::Burst),
            RefusalReason::Malformed => self.lose(refused.range, LossCause::Refused),
            RefusalReason::Budget | RefusalReason::Ahead | RefusalReason::Epoch => {
                let least = Nanos::from_us(self.config.nack_retry_us.into());
                let wait = Nanos::from_us(refused.retry_after_us.into()).max(least);
                self.postpone(refused.range, now.after(wait));
            }
        }
        self.order.advance(&self.counters, on);
        self.handle_timeout(now, on);
    }

    /// The publisher's word on how far it is. An epoch other than ours is the caller's to follow.
    pub fn handle_status(&mut self, now: Nanos, status: &Status, on: &mut impl FnMut(Item<'_>)) {
        if status.epoch != self.epoch {
            return;
        }
        let ahead = status.newest > self.heard;
        if let Some(change) = self.liveness.heard_repair(ahead, now) {
            self.note_liveness(change, now);
        }
        self.note_told(status.newest, status.next_record, now);
        if status.ended {
            self.end_at = Some(status.newest);
        }
        self.handle_timeout(now, on);
    }

    /// The publisher's word, over the repair path, that it has sent up to `newest`. It may be ahead
    /// of datagrams that lie in our own socket: while multicast is heard it counts only when it is
    /// told again, or when a datagram had leapt.
    pub(crate) fn note_told(&mut self, newest: Sequence, next_record: RecordNumber, now: Nanos) {
        let before = self.told.replace(newest);
        let believed = self.liveness.is_stale() || planted(Bug::StatusOvertakesSocket);
        if std::mem::take(&mut self.leapt) || believed {
            self.note_heard(newest, now, Origin::Live);
        } else if let Some(before) = before {
            self.note_heard(before, now, Origin::Live);
        }
        self.order.note_fact(newest.next(), next_record);
    }

    /// Something came over the repair path: the publisher lives.
    pub fn heard_repair(&mut self, now: Nanos) {
        // Never a change: only STATUS says whether multicast is behind.
        let _ = self.liveness.heard_repair(false, now);
    }

    /// The PROGRESS to send if it is due.
    pub fn take_progress(&mut self, now: Nanos) -> Option<Progress> {
        if now < self.progress_at || !self.link_up {
            return None;
        }
        let following = self.liveness.is_stale() && !self.ended();
        let every_us = if following {
            self.config.follow_us
        } else {
            self.config.progress_us
        };
        self.progress_told_at = now;
        self.progress_at = now.after(Nanos::from_us(every_us.into()));
        let (sequence, heard) = self.progress();
        Some(Progress {
            epoch: self.epoch,
            sequence: sequence.plus(planted(Bug::ProgressAhead).into()),
            lost_records: self.counters.lost_records.get(),
            heard,
            sent_at: now,
        })
    }

    /// Asks the publisher how far it is, soon but not more often than the config allows.
    pub(crate) fn ask_status_soon(&mut self, now: Nanos) {
        let soonest = self
            .progress_told_at
            .after(Nanos::from_us(self.config.follow_us.into()));
        self.progress_at = self.progress_at.min(soonest.max(now));
    }

    /// Asks for `range` again, but not before `at`; a refusal to wait is no try that failed.
    fn postpone(&mut self, range: SequenceRange, at: Nanos) {
        self.gaps.visit(range, |gap| {
            gap.tries = gap.tries.saturating_sub(1);
            gap.ask_at = at;
            Visit::Continue
        });
    }
}

/// Whether another live line may still bring what one line did not.
fn may_come_by_itself(gap: &Gap, lines: &Lines) -> bool {
    gap.tries == 0
        && !planted(Bug::LineSkewIgnored)
        && gap.origin == Origin::Live
        && lines.count() > 1
        && !lines.all_passed(gap.range.last)
}
