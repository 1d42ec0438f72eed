//! Asking for what is missing, and hearing the answers: NACKs for everything that is due at once,
//! refusals, and the publisher's status (docs/PROTOCOL.md §5.4, §6).

use crate::control::{NackClass, Progress, RefusalReason, Refused, Status};
use crate::delivery::{Deliver, LossCause};
use crate::planted::{Bug, planted};
use crate::receive::gaps::{Gap, Origin, Rung, Visit};
use crate::receive::lines::Lines;
use crate::receive::rdma_read::{ReadPlan, ReadRoom, Readable};
use crate::receive::{Receiver, ReplayPath};
use crate::timing::NackTimer;
use crate::types::{Nanos, ReceiverCounters, RecordNumber, Sequence, SequenceRange};

/// What a receiver wants to ask for in one go.
#[derive(Clone, Debug, Default)]
pub struct RepairRequests {
    /// Gaps of the live stream, ascending.
    pub repair: Vec<SequenceRange>,
    /// Gaps of the live stream that the NACK connection is asked for, ascending.
    pub nack: Vec<SequenceRange>,
    /// Gaps of the live stream to be READ, each in one go, ascending.
    pub read: Vec<SequenceRange>,
    /// History, ascending; on the joiners' budget.
    pub replay: Vec<SequenceRange>,
    /// Whether replay is wanted and the path for it is not open.
    pub replay_wanted: bool,
    /// Whether the NACK connection takes questions; told by the caller.
    pub nack_open: bool,
    /// When the latest of the questions was asked that the NACK connection did not answer in time.
    pub nack_overdue: Option<Nanos>,
    /// What can be READ yet; told by the caller, `None` where nothing can.
    pub room: Option<ReadRoom>,
    /// When the latest of the READs was begun that was not done in time.
    pub read_overdue: Option<Nanos>,
}

impl RepairRequests {
    /// Forgets what was collected before; the NACK connection takes questions, or does not, and so
    /// much can be READ.
    pub fn begin(&mut self, nack_open: bool, room: Option<ReadRoom>) {
        self.repair.clear();
        self.nack.clear();
        self.read.clear();
        self.replay.clear();
        (self.replay_wanted, self.nack_open) = (false, nack_open);
        (self.nack_overdue, self.read_overdue) = (None, None);
        self.room = room;
    }
}

/// Whether the path still answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathHealth {
    /// As far as we know.
    Answers,
    /// Asked as often as allowed, and silent: build it anew.
    Exhausted,
}

/// PROGRESS that waits for its STATUS: beyond these the next one comes no sooner than `progress_us` after
/// the last.
const UNANSWERED_MAX: u8 = 4;
/// What the publisher denies to have sent is left alone for this long at the most.
const DENIED_MAX: Nanos = Nanos::from_ms(100);

impl Receiver {
    /// Collects all gaps that are due into `requests`, marks them as requested, and returns whether the path
    /// still answers.
    pub fn due_requests(&mut self, now: Nanos, requests: &mut RepairRequests) -> PathHealth {
        if !self.link_up || !self.config.repair || !self.is_waiting() {
            return PathHealth::Answers;
        }
        self.query_contested(now, requests);
        let next = self.reassembly.next();
        // The window ends before `window_end`; at the very end of the numbers it saturates.
        let last = self.reassembly.window_end().previous().max(next);
        let window = SequenceRange { first: next, last };
        if self.readable.is_none() {
            requests.room = None;
        }
        let mut pass = Pass {
            now,
            skew: Nanos::from_us(self.config.line_skew_us.into()),
            attempts_max: self.config.nack_tries,
            replay_room: u64::from(self.config.replay_in_flight)
                .saturating_sub(self.replay_in_flight()),
            replay_open: self.replay == ReplayPath::Open,
            replay_wanted: false,
            lines: &self.lines,
            answered: self.answered,
            nack: &mut self.nack,
            nack_link: &mut self.rc,
            read: &mut self.read,
            readable: self.readable.as_mut(),
            read_wait: Nanos::ZERO,
            counters: &self.counters,
            health: PathHealth::Answers,
        };
        (self.gaps).visit(window, |gap| pass.visit(gap, requests));
        let (read_wait, health) = (pass.read_wait, pass.health);
        let replay_wanted = pass.replay_wanted;
        if requests.nack_overdue.is_some() {
            self.rc_lateness.fallback_at = now;
        }
        if requests.read_overdue.is_some() {
            self.read_lateness.fallback_at = now;
        }
        self.read_wait = read_wait;
        if replay_wanted && self.replay == ReplayPath::Unwanted {
            self.replay = ReplayPath::Awaited;
            requests.replay_wanted = true;
        }
        let count = |ranges: &[SequenceRange]| ranges.iter().map(|range| range.len()).sum::<u64>();
        let over_nack = count(&requests.nack);
        let nacked = count(&requests.repair) + over_nack + count(&requests.replay);
        self.counters.nacked_sequences.add(nacked);
        self.counters.nack_link_nacked_sequences.add(over_nack);
        self.counters.reads.add(requests.read.len() as u64);
        self.counters.read_sequences.add(count(&requests.read));
        health
    }

    /// When the next question is due.
    pub(crate) fn next_request(&self) -> Nanos {
        if !self.link_up || !self.config.repair {
            return Nanos::MAX;
        }
        let window_end = self.reassembly.window_end();
        let skew = Nanos::from_us(self.config.line_skew_us.into());
        // While the replay asked for is on its way, the rest of it waits.
        let full = self.replay_in_flight() >= u64::from(self.config.replay_in_flight);
        let awaited = self.replay == ReplayPath::Awaited;
        let gaps = self
            .gaps
            .iter()
            .take_while(|gap| gap.range.first < window_end)
            .filter(|gap| {
                gap.class == NackClass::Repair || !(awaited || (full && gap.attempts == 0))
            })
            .map(|gap| {
                let waits = may_come_by_itself(gap, &self.lines);
                let at = if waits {
                    gap.found_at.after(skew)
                } else {
                    Nanos::ZERO
                };
                let wait = match may_read_first(gap) {
                    true => self.read_wait,
                    false => Nanos::ZERO,
                };
                gap.next_request_at.max(at).max(wait)
            });
        gaps.min()
            .unwrap_or(Nanos::MAX)
            .min(self.contested.due_at())
    }

    /// Sequences of a replay that were asked for and have not come.
    fn replay_in_flight(&self) -> u64 {
        (self.gaps.iter())
            .filter(|gap| gap.class == NackClass::Replay && gap.attempts > 0)
            .map(|gap| gap.range.len())
            .sum()
    }

    /// The publisher refuses a range.
    pub fn handle_refused(&mut self, now: Nanos, refused: &Refused, on: &mut impl Deliver) {
        self.counters.refusals_received.increment();
        if planted(Bug::RefusalIgnored) {
            return;
        }
        let asked = self
            .gaps
            .iter()
            .find(|gap| gap.range.intersection(refused.range).is_some());
        if let Some(by) = asked.map(answered_by) {
            self.answered[by] = Some((now, refused.range.last));
        }
        if refused.epoch != self.epoch {
            self.query_status_soon(now);
            return;
        }
        match refused.reason {
            RefusalReason::Window => {
                self.reassembly
                    .note_floor(refused.oldest, refused.oldest_record);
                if self.beginning == Some(self.reassembly.next()) {
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
                let mut wait = Nanos::from_us(refused.retry_after_us.into()).max(least);
                if refused.reason == RefusalReason::Ahead {
                    wait = wait.max(self.refusal_wait(now));
                }
                self.postpone(refused.range, now.after(wait));
                self.requery(refused.range, now.after(wait));
            }
        }
        self.reassembly.advance(&self.counters, on);
        self.handle_timeout(now, on);
    }

    /// The publisher says that it has not sent yet what we heard of, as a stranger's heartbeat would have it:
    /// how long that is left alone. The longer it says so the longer, until it has sent that much.
    fn refusal_wait(&mut self, now: Nanos) -> Nanos {
        let told = self.confirmed.map_or(Sequence::NONE, |(newest, _)| newest);
        let known = told.max(self.reassembly.next().previous());
        let (since, _) = *match &mut self.refused_ahead_since {
            Some(denied) if denied.1 > known => denied,
            denied => denied.insert((now, self.highest_seen)),
        };
        Nanos(now.since(since).0 / 2).min(DENIED_MAX)
    }

    /// The publisher's word on how far it is. An epoch other than ours is the caller's to follow.
    pub fn handle_status(&mut self, now: Nanos, status: &Status, on: &mut impl Deliver) {
        if status.epoch != self.epoch {
            return;
        }
        // The last one may answer for those before it.
        self.unanswered = match status.echo == self.progress_said_at {
            true => 0,
            false => self.unanswered.saturating_sub(1),
        };
        let ahead = status.newest > self.highest_seen;
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
        if self.ended() {
            return;
        }
        let before = self.confirmed.replace((newest, next_record));
        let believed = self.liveness.is_stale() || planted(Bug::StatusOvertakesSocket);
        let at_once = std::mem::take(&mut self.leapt) || believed;
        let heard = if at_once { self.confirmed } else { before };
        if let Some((heard, record_after)) = heard {
            self.note_sent(heard, now, Origin::Live);
            self.reassembly.set_anchor(heard.next(), record_after);
        }
    }

    /// Something came over the repair path: the publisher lives.
    pub fn heard_repair(&mut self, now: Nanos) {
        // Never a change: only STATUS says whether multicast is behind.
        let _ = self.liveness.heard_repair(false, now);
    }

    /// Whether it is time to say how far we are, and to find out how far the publisher is.
    pub(crate) fn is_progress_due(&self, now: Nanos) -> bool {
        now >= self.progress_at && self.link_up
    }

    /// The PROGRESS to send if it is due. While so many wait for their STATUS that the link is slower than
    /// they come, there is none: they would leave repairs no room on it.
    pub fn take_progress(&mut self, now: Nanos) -> Option<Progress> {
        if !self.is_progress_due(now) {
            return None;
        }
        let every = Nanos::from_us(self.config.progress_us.into());
        let soon = Nanos::from_us(self.config.follow_us.into());
        let limited = !planted(Bug::StatusWithoutLimit);
        let is_held = limited
            && self.unanswered >= UNANSWERED_MAX
            && now < self.progress_said_at.after(every);
        self.progress_looked_at = now;
        if is_held {
            self.progress_at = now.after(soon).min(self.progress_said_at.after(every));
            return None;
        }
        let next = if self.is_following() { soon } else { every };
        self.progress_at = now.after(next);
        self.progress_said_at = now;
        self.unanswered = self.unanswered.saturating_add(1);
        let (sequence, heard) = self.progress();
        Some(Progress {
            epoch: self.epoch,
            sequence: sequence.plus(planted(Bug::ProgressAhead).into()),
            lost_records: self.counters.lost_records.get(),
            heard,
            sent_at: now,
            read_bytes: self.readable.as_ref().map_or(0, Readable::used),
        })
    }

    /// Whether multicast is silent, so that the publisher is asked how far it is.
    pub(crate) const fn is_following(&self) -> bool {
        self.liveness.is_stale() && !self.ended()
    }

    /// Asks the publisher how far it is, soon but not more often than the config allows.
    pub(crate) fn query_status_soon(&mut self, now: Nanos) {
        let soonest = self
            .progress_looked_at
            .after(Nanos::from_us(self.config.follow_us.into()));
        let limited = !planted(Bug::StatusWithoutLimit);
        self.progress_at = (self.progress_at).min(if limited { soonest.max(now) } else { now });
    }

    /// Asks for `range` again, but not before `at`; a refusal to wait is no try that failed.
    fn postpone(&mut self, range: SequenceRange, at: Nanos) {
        self.gaps.visit(range, |gap| {
            gap.attempts = gap.attempts.saturating_sub(1);
            (gap.next_request_at, gap.refused) = (at, true);
            Visit::Continue
        });
    }
}

/// One pass over the gaps of the window: the limits and timers that decide which of them to request now.
struct Pass<'a> {
    now: Nanos,
    skew: Nanos,
    attempts_max: u32,
    /// Sequences that may still be requested from replay.
    replay_room: u64,
    replay_open: bool,
    /// Whether a gap waits for the replay path.
    replay_wanted: bool,
    lines: &'a Lines,
    answered: [Option<(Nanos, Sequence)>; 4],
    nack: &'a mut NackTimer,
    nack_link: &'a mut NackTimer,
    read: &'a mut NackTimer,
    readable: Option<&'a mut Readable>,
    /// When to plan READs again that must wait.
    read_wait: Nanos,
    counters: &'a ReceiverCounters,
    health: PathHealth,
}

impl Pass<'_> {
    /// Requests `gap`, or leaves it for a later pass.
    fn visit(&mut self, gap: &mut Gap, requests: &mut RepairRequests) -> Visit {
        if !self.is_due(gap) {
            return Visit::Continue;
        }
        if let Some(until) = self.may_wait(gap, requests) {
            gap.next_request_at = until;
            return Visit::Continue;
        }
        if gap.attempts >= self.attempts_max && !is_above_last(gap) {
            self.nack.unanswered(self.now.since(gap.last_request_at));
            self.health = PathHealth::Exhausted;
            return Visit::Stop;
        }
        if !self.take_replay_room(gap) || !self.next_step(gap, requests) {
            return Visit::Continue;
        }
        self.schedule_retry(gap);
        match (gap.class, gap.rung) {
            (NackClass::Replay, _) => requests.replay.push(gap.range),
            (NackClass::Repair, Rung::Nack) => requests.nack.push(gap.range),
            (NackClass::Repair, Rung::Read { .. }) => requests.read.push(gap.range),
            (NackClass::Repair, _) => requests.repair.push(gap.range),
        }
        Visit::Continue
    }

    /// Returns whether `gap` may be requested now: its time has come, its path is open, and no line is
    /// likely to bring it.
    #[inline(always)]
    fn is_due(&mut self, gap: &Gap) -> bool {
        if gap.next_request_at > self.now {
            return false;
        }
        if gap.class == NackClass::Replay && !self.replay_open {
            self.replay_wanted = true;
            return false;
        }
        !may_come_by_itself(gap, self.lines) || self.now >= gap.found_at.after(self.skew)
    }

    /// Returns until when an answer to the last request may still come. Answers come by ascending sequence:
    /// while they are below this gap, its turn will come. An answer above it means that its own was lost.
    #[inline(always)]
    fn may_wait(&mut self, gap: &Gap, requests: &RepairRequests) -> Option<Nanos> {
        if gap.attempts == 0 || !is_open(gap, requests) {
            return None;
        }
        let patience = self.retry_after(gap.rung, 1);
        let (at, sequence) = self.answered[answered_by(gap)]?;
        let may_still_come =
            at > gap.last_request_at && sequence < gap.range.first && self.now.since(at) < patience;
        may_still_come.then(|| at.after(patience))
    }

    /// Cuts a first request for replay to the room that is left. Returns `false` where there is none: the
    /// rest of the replay waits, but gaps of the live stream do not.
    fn take_replay_room(&mut self, gap: &mut Gap) -> bool {
        if gap.class != NackClass::Replay || gap.attempts > 0 {
            return true;
        }
        if self.replay_room == 0 {
            return false;
        }
        gap.range.last = (gap.range.last).min(gap.range.first.plus(self.replay_room - 1));
        self.replay_room -= gap.range.len();
        true
    }

    /// Chooses the step of the repair order that `gap` is requested on next, and counts a request that was
    /// not answered in time. Returns `false` where a READ must wait.
    #[inline(always)]
    fn next_step(&mut self, gap: &mut Gap, requests: &mut RepairRequests) -> bool {
        let (open, above) = (is_open(gap, requests), is_above_last(gap));
        let on_nack = gap.attempts > 0 && gap.rung == Rung::Nack;
        let on_read = gap.attempts > 0 && matches!(gap.rung, Rung::Read { .. });
        let torn = match gap.rung {
            Rung::Torn { again } if gap.attempts > 0 => Some(again),
            _ => None,
        };
        if on_read && open {
            self.counters.read_timeouts.add(gap.range.len());
            requests.read_overdue = requests.read_overdue.max(Some(gap.last_request_at));
        }
        if on_nack && open {
            self.counters.nack_link_timeouts.add(gap.range.len());
            requests.nack_overdue = requests.nack_overdue.max(Some(gap.last_request_at));
        }
        let reads = may_read_first(gap) || torn == Some(false);
        let plan = match (&mut self.readable, &mut requests.room) {
            (Some(readable), Some(room)) if reads => {
                let retries = (self.read.retry(1), self.nack.retry(1));
                readable.plan_read(self.now, retries, gap.range, room)
            }
            _ => ReadPlan::Nothing,
        };
        match plan {
            ReadPlan::Slots(count) => {
                gap.range.last = gap.range.first.plus(count - 1);
                let again = torn.is_some();
                (gap.rung, gap.attempts) = (Rung::Read { again }, 1);
            }
            ReadPlan::Wait(until) if torn.is_none() => {
                self.read_wait = until;
                return false;
            }
            // The step did not answer, so the next one takes over: it counts as the first attempt there.
            _ if above => {
                let is_next = !on_nack && requests.nack_open;
                gap.rung = match is_next || on_nack && open && planted(Bug::RungNeverGivesWay) {
                    true => Rung::Nack,
                    false => Rung::Fallback,
                };
            }
            _ => {
                if gap.attempts == 0 {
                    let first = requests.nack_open && gap.class == NackClass::Repair;
                    gap.rung = if first { Rung::Nack } else { Rung::Repair };
                }
                gap.attempts += 1;
            }
        }
        true
    }

    /// Notes that `gap` is requested now, and when to request it again.
    #[inline(always)]
    fn schedule_retry(&mut self, gap: &mut Gap) {
        gap.last_request_at = self.now;
        gap.rtt_sample_valid = gap.attempts == 1 || gap.refused;
        gap.refused = false;
        let doubled = match planted(Bug::BackOffForgotten) {
            true => 1,
            false => gap.attempts,
        };
        gap.next_request_at = self.now.after(self.retry_after(gap.rung, doubled));
        if planted(Bug::RetryTooSlow) {
            gap.next_request_at = (self.now).after(gap.next_request_at.since(self.now).times(50));
        }
        if planted(Bug::NackNeverRetried) {
            gap.next_request_at = Nanos::MAX;
        }
        if planted(Bug::NackStorm) {
            (gap.attempts, gap.next_request_at) = (1, self.now);
        }
    }

    /// How long a request on `rung` may take. Only the last step backs off with the number of attempts.
    fn retry_after(&mut self, rung: Rung, attempts: u32) -> Nanos {
        match rung {
            Rung::Nack => self.nack_link.retry(1),
            Rung::Read { .. } | Rung::Torn { .. } => self.read.retry(1),
            Rung::Repair | Rung::Fallback => self.nack.retry(attempts),
        }
    }
}

/// Whether the step that the gap was last requested on still takes requests.
const fn is_open(gap: &Gap, requests: &RepairRequests) -> bool {
    match gap.rung {
        Rung::Nack => requests.nack_open,
        Rung::Read { .. } => requests.room.is_some(),
        Rung::Torn { .. } => false,
        Rung::Repair | Rung::Fallback => true,
    }
}

/// Whether the gap was requested on a step above the last: those requests do not count as attempts there.
const fn is_above_last(gap: &Gap) -> bool {
    gap.attempts > 0 && matches!(gap.rung, Rung::Nack | Rung::Read { .. } | Rung::Torn { .. })
}

/// Which connection's answers say that the answer for this gap is still to come: an index of
/// [`Receiver::answered`].
pub(crate) const fn answered_by(gap: &Gap) -> usize {
    match (gap.class, gap.rung) {
        (NackClass::Repair, Rung::Nack) => 2,
        (NackClass::Repair, Rung::Read { .. } | Rung::Torn { .. }) => 3,
        (class, _) => class as usize - 1,
    }
}

/// Whether a first question is a READ, where that can be. A scout's is none: the publisher is to hear what
/// many miss.
fn may_read_first(gap: &Gap) -> bool {
    let scouts = planted(Bug::ScoutsRead);
    gap.attempts == 0 && gap.class == NackClass::Repair && (!gap.is_scout || scouts)
}

/// Whether another live line may still bring what one line did not.
fn may_come_by_itself(gap: &Gap, lines: &Lines) -> bool {
    gap.attempts == 0
        && !planted(Bug::LineSkewIgnored)
        && gap.origin == Origin::Live
        && lines.count() > 1
        && !lines.all_passed(gap.range.last)
}
