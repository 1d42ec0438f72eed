//! Repair: which sequences are missing, when and where each is requested, and how long to wait for
//! it (docs/PROTOCOL.md §5.4, §6).

use serde::{Deserialize, Serialize};

use crate::control::NackClass;
use crate::delivery::{Delivery, LossCause};
use crate::planted::{Bug, planted};
use crate::receive::config::ReceiverConfig;
use crate::receive::confirmed::LossLimit;
use crate::receive::contested::ContestedSequences;
use crate::receive::deadlines::Deadlines;
use crate::receive::gaps::{FirstRequest, Gap, GapOutcome, Gaps, Origin, Rung, Visit};
use crate::receive::lines::Lines;
use crate::receive::path::{Arrival, ArrivalPath, Lateness};
use crate::receive::rdma_read::{ReadPlan, Readable};
use crate::receive::requests::{PathHealth, RepairRequests};
use crate::timing::NackTimer;
use crate::types::{Nanos, ReceiverCounters, Sequence, SequenceRange};
use crate::wire::Heartbeat;

/// Every sequence there is.
pub(crate) const ALL: SequenceRange = SequenceRange {
    first: Sequence(0),
    last: Sequence(u64::MAX),
};

/// The connection for history, and for gaps that are too long for repair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum ReplayPath {
    /// Nothing has asked for the connection.
    Unwanted,
    /// The connection is being established. Until then nothing is requested, and no attempt counts.
    Awaited,
    /// The connection takes requests.
    Open,
}

/// The settings of a receiver that decide when to request, and when to give up.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Settings {
    enabled: bool,
    delivery: Delivery,
    /// How long a gap must outlive the network's own reordering.
    grace: Nanos,
    /// How long the slower of two live lines may lag.
    skew: Nanos,
    retry_min: Nanos,
    attempts_max: u32,
    /// Longer gaps are replayed instead of repaired.
    burst_max: u64,
    /// Sequences of a replay that may be in flight.
    replay_in_flight: u64,
}

impl Settings {
    fn of(config: &ReceiverConfig) -> Self {
        Self {
            enabled: config.repair,
            delivery: config.delivery,
            grace: Nanos::from_us(config.reorder_grace_us.into()),
            skew: Nanos::from_us(config.line_skew_us.into()),
            retry_min: Nanos::from_us(config.nack_retry_us.into()),
            attempts_max: config.nack_attempts,
            burst_max: config.burst_max.into(),
            replay_in_flight: config.replay_in_flight.into(),
        }
    }
}

/// All that is missing of one channel, and the timers of its requests.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Repair {
    settings: Settings,
    deadlines: Deadlines,
    gaps: Gaps,
    contested: ContestedSequences,
    /// Times of the repair connection, and of the hold-off before a first request.
    nack: NackTimer,
    /// Times of the NACK connection, which has no hold-off of its own.
    nack_link: NackTimer,
    /// Times of READ.
    read: NackTimer,
    nack_link_lateness: Lateness,
    read_lateness: Lateness,
    /// When an answer came last and for which sequence, for each index of [`answered_by`].
    answered: [Option<(Nanos, Sequence)>; 4],
    /// READs that wait are planned again at this time at the latest; each pass plans them, too.
    read_wait: Nanos,
    replay: ReplayPath,
}

impl Repair {
    /// Nothing is missing. `seed` decides all jitter.
    #[must_use]
    pub(crate) fn new(config: &ReceiverConfig, seed: u64) -> Self {
        let settings = Settings::of(config);
        let timer = |seed| NackTimer::new(settings.retry_min, seed);
        Self {
            settings,
            gaps: Gaps::default(),
            deadlines: Deadlines::of(config),
            contested: ContestedSequences::default(),
            nack: timer(seed),
            nack_link: timer(!seed),
            read: timer(seed.rotate_left(17)),
            nack_link_lateness: Lateness::default(),
            read_lateness: Lateness::default(),
            answered: [None; 4],
            read_wait: Nanos::ZERO,
            replay: ReplayPath::Unwanted,
        }
    }

    /// Returns whether something is missing that an answer of the publisher would bring.
    #[must_use]
    pub(crate) fn is_waiting(&self) -> bool {
        !self.gaps.is_empty() || !self.contested.is_empty()
    }

    /// Sets the gauges of what is missing.
    #[inline]
    pub(crate) fn count_open(&self, counters: &ReceiverCounters) {
        counters.missing_open.set(self.gaps.open(Origin::Live));
        counters.replay_open.set(self.gaps.open(Origin::History));
    }

    /// Notes that `range`, which lies above everything noted before, is missing. `joins`: the range
    /// cannot be requested yet and may be part of the gap before it. Returns whether to give the range
    /// up: the application prefers the loss of a long burst to the delay of its replay.
    #[must_use]
    pub(crate) fn note_missing(
        &mut self,
        range: SequenceRange,
        now: Nanos,
        origin: Origin,
        joins: bool,
        counters: &ReceiverCounters,
    ) -> bool {
        let burst_max = self.settings.burst_max;
        let too_big = range.len() > burst_max;
        let class = if too_big || origin == Origin::History {
            NackClass::Replay
        } else {
            NackClass::Repair
        };
        if origin == Origin::Live {
            counters.missing_datagrams.add(range.len());
            counters.gaps.increment();
        } else {
            counters.replay_requested.add(range.len());
        }
        let hold_off = self.nack.first();
        let is_scout = self.nack.holds_off() && hold_off == Nanos::ZERO;
        let mut at = now.after(self.settings.grace).after(hold_off);
        if planted(Bug::FirstQuestionLate) {
            at = at.after(Nanos::from_us(50));
        }
        let first = FirstRequest { at, is_scout };
        self.gaps.found(range, now, first, class, origin, joins);
        if self.gaps.last_len() > burst_max {
            self.gaps.replay_last();
        }
        too_big && origin == Origin::Live && !self.settings.delivery.waits_for_repair()
    }

    /// Notes that a sequence is missing whose datagram waited and was dropped. It is requested at once.
    #[cold]
    pub(crate) fn reopen(&mut self, sequence: Sequence, now: Nanos, counters: &ReceiverCounters) {
        counters.missing_datagrams.increment();
        counters.gaps.increment();
        self.gaps.reopen(sequence, now);
    }

    /// A datagram arrived. Returns the gap that it fills, and the outcome of the jump of the sequence
    /// whose last missing sequence this was; `None` if the sequence was not missing. Where the datagram
    /// answers a request, takes a sample of the round trip.
    #[inline(always)]
    pub(crate) fn fill(
        &mut self,
        sequence: Sequence,
        now: Nanos,
        arrival: Arrival,
        is_repair_copy: bool,
    ) -> Option<(Gap, Option<GapOutcome>)> {
        let (gap, outcome) = self.gaps.fill(sequence)?;
        if arrival.is_answer() {
            self.answered[answered_by(&gap)] = Some((now, sequence));
        }
        if arrival.is_answer() || is_repair_copy {
            self.sample_rtt(&gap, now);
        }
        let given_up = match arrival.path {
            ArrivalPath::Read => !matches!(gap.rung, Rung::Read { .. }),
            _ => gap.rung == Rung::Fallback,
        };
        if given_up {
            self.note_late(arrival.path, now);
        }
        Some((gap, outcome))
    }

    #[inline(always)]
    fn sample_rtt(&mut self, gap: &Gap, now: Nanos) {
        // An answer after the retry timeout is no sample: one of us was stopped meanwhile.
        let in_time = !gap.refused && now <= gap.next_request_at;
        if !gap.rtt_sample_valid || !in_time || gap.class != NackClass::Repair {
            return;
        }
        let rtt = now.since(gap.last_request_at);
        match gap.rung {
            Rung::Nack => self.nack_link.measured(rtt),
            Rung::Repair => self.nack.measured(rtt),
            Rung::Read { again: false } => self.read.measured(rtt),
            // Which request it answers is not known.
            Rung::Fallback | Rung::Read { .. } | Rung::Torn { .. } => {}
        }
    }

    /// A datagram arrived on this path after its request was given up, or after another copy: the
    /// path needs more time.
    pub(crate) fn note_late(&mut self, path: ArrivalPath, now: Nanos) {
        match path {
            ArrivalPath::Nack if self.nack_link_lateness.is_first_late_reply(now) => {
                self.nack_link.late();
            }
            ArrivalPath::Read if self.read_lateness.is_first_late_reply(now) => self.read.late(),
            _ => {}
        }
    }

    /// Gives up everything of `range` that is missing, counts it, and passes each part to `on`.
    pub(crate) fn lose(
        &mut self,
        range: SequenceRange,
        counters: &ReceiverCounters,
        mut on: impl FnMut(SequenceRange),
    ) {
        self.gaps.lose(range, |part, origin, _| {
            match origin {
                Origin::Live => counters.missing_lost.add(part.len()),
                Origin::History => counters.replay_lost.add(part.len()),
            }
            on(part);
        });
    }

    /// Forgets everything of `range` that is missing, because another epoch continues this one
    /// without it; nothing is lost.
    pub(crate) fn supersede(&mut self, range: SequenceRange, counters: &ReceiverCounters) {
        self.gaps.lose(range, |part, origin, _| match origin {
            Origin::Live => counters.missing_superseded.add(part.len()),
            Origin::History => counters.replay_superseded.add(part.len()),
        });
    }

    /// Forgets everything, because another epoch is followed.
    pub(crate) fn clear(&mut self) {
        self.gaps.clear();
        self.contested.clear();
    }

    /// Returns missing sequences whose time is over, and the cause of their loss.
    pub(crate) fn overdue(
        &self,
        now: Nanos,
        limit: &LossLimit,
    ) -> Option<(SequenceRange, LossCause)> {
        self.deadlines.overdue(&self.gaps, now, limit)
    }

    /// Returns when [`Repair::overdue`] finds a gap if nothing arrives until then.
    pub(crate) fn next_deadline(&self, limit: &LossLimit) -> Nanos {
        self.deadlines.next(&self.gaps, limit)
    }

    /// Returns when a STATUS is wanted, so that a gap need not wait for it at its deadline.
    pub(crate) fn next_confirmation(&self, limit: &LossLimit) -> Nanos {
        self.deadlines.next_confirmation(&self.gaps, limit)
    }

    /// Collects the requests of contested sequences that are due into `requests`.
    pub(crate) fn due_decisions(
        &mut self,
        now: Nanos,
        is_contested: impl Fn(Sequence) -> bool,
        requests: &mut RepairRequests,
    ) {
        let retry = |attempts| self.nack.retry(attempts);
        (self.contested).take_due(now, is_contested, retry, &mut requests.repair);
    }

    /// Collects all requests that are due into `requests`, marks their gaps as requested, and returns
    /// whether the path still answers. `window`: the sequences that can be taken now.
    pub(crate) fn due_requests(
        &mut self,
        now: Nanos,
        window: SequenceRange,
        lines: &Lines,
        readable: Option<&mut Readable>,
        counters: &ReceiverCounters,
        requests: &mut RepairRequests,
    ) -> PathHealth {
        if !self.settings.enabled || !self.is_waiting() {
            return PathHealth::Answers;
        }
        if readable.is_none() {
            requests.room = None;
        }
        let replay_room = self.replay_room();
        let mut pass = Pass {
            now,
            settings: &self.settings,
            replay_room,
            replay_open: self.replay == ReplayPath::Open,
            replay_wanted: false,
            lines,
            answered: &self.answered,
            nack: &mut self.nack,
            nack_link: &mut self.nack_link,
            read: &mut self.read,
            readable,
            read_wait: Nanos::ZERO,
            counters,
            health: PathHealth::Answers,
        };
        self.gaps.visit(window, |gap| pass.visit(gap, requests));
        let (replay_wanted, health) = (pass.replay_wanted, pass.health);
        self.read_wait = pass.read_wait;
        if requests.nack_overdue.is_some() {
            self.nack_link_lateness.note_fallback(now);
        }
        if requests.read_overdue.is_some() {
            self.read_lateness.note_fallback(now);
        }
        if replay_wanted && self.replay == ReplayPath::Unwanted {
            self.replay = ReplayPath::Awaited;
            requests.replay_wanted = true;
        }
        requests.count(counters);
        health
    }

    /// Returns when the next request is due for gaps that begin before `window_end`.
    pub(crate) fn next_request(&self, lines: &Lines, window_end: Sequence) -> Nanos {
        if !self.settings.enabled {
            return Nanos::MAX;
        }
        // While the requested part of a replay is in flight, the rest waits.
        let full = self.replay_room() == 0;
        let awaited = self.replay == ReplayPath::Awaited;
        let gaps = self
            .gaps
            .iter()
            .take_while(|gap| gap.range.first < window_end)
            .filter(|gap| {
                gap.class == NackClass::Repair || !(awaited || (full && gap.attempts == 0))
            })
            .map(|gap| {
                let at = match may_come_by_itself(gap, lines) {
                    true => gap.found_at.after(self.settings.skew),
                    false => Nanos::ZERO,
                };
                let wait = match may_read_first(gap) {
                    true => self.read_wait,
                    false => Nanos::ZERO,
                };
                gap.next_request_at.max(at).max(wait)
            });
        let first = gaps.min().unwrap_or(Nanos::MAX);
        first.min(self.contested.due_at())
    }

    /// The number of sequences that may still be requested from replay: some of those requested
    /// before have not come.
    fn replay_room(&self) -> u64 {
        let in_flight = (self.gaps.iter())
            .filter(|gap| gap.class == NackClass::Replay && gap.attempts > 0)
            .map(|gap| gap.range.len())
            .sum();
        self.settings.replay_in_flight.saturating_sub(in_flight)
    }

    /// Sets whether the replay connection takes requests now, or is being established.
    pub(crate) const fn set_replay(&mut self, open: bool, in_progress: bool) {
        self.replay = match self.replay {
            _ if open => ReplayPath::Open,
            ReplayPath::Awaited if in_progress => ReplayPath::Awaited,
            _ => ReplayPath::Unwanted,
        };
    }

    /// The longest gap that is repaired rather than replayed.
    #[must_use]
    pub(crate) const fn burst_max(&self) -> u64 {
        self.settings.burst_max
    }

    /// Takes over the publisher's advice on the hold-off before a first request. It never takes more than a
    /// quarter of a deadline, so that most of that remains for the repair.
    pub(crate) fn advise_hold_off(&mut self, heartbeat: &Heartbeat) {
        let advised = Nanos::from_us(heartbeat.hold_off_us.into());
        let hold_off = match self.settings.delivery {
            Delivery::OrderedWithin(deadline) => advised.min(Nanos(deadline.0 / 4)),
            _ => advised,
        };
        self.nack.advise_hold_off(hold_off, heartbeat.subscribers);
    }

    /// Requests this sequence, of which another content came, as soon as anything can be requested.
    pub(crate) fn contest(&mut self, sequence: Sequence) {
        if self.settings.enabled {
            self.contested.add(sequence);
        }
    }

    /// Requests these contested sequences again at this time, because they were refused for a while.
    pub(crate) fn requery(&mut self, contested: impl Iterator<Item = Sequence>, at: Nanos) {
        if self.settings.enabled {
            self.contested.request_again(contested, at);
        }
    }

    /// Returns whether a copy may soon decide about a contested sequence.
    pub(crate) fn is_settling(&self) -> bool {
        self.contested.is_settling()
    }

    /// The copy of this sequence came that decides between its contents.
    pub(crate) fn decide(&mut self, sequence: Sequence) {
        self.contested.decide(sequence);
    }

    /// Forgets the contested sequences above `last`.
    pub(crate) fn forget_contested_above(&mut self, last: Sequence) {
        self.contested.forget_above(last);
    }

    /// Notes that the publisher refused `range`, which answers its request as a datagram does.
    pub(crate) fn note_refused(&mut self, range: SequenceRange, now: Nanos) {
        let mut gaps = self.gaps.iter();
        if let Some(gap) = gaps.find(|gap| gap.range.intersection(range).is_some()) {
            self.answered[answered_by(gap)] = Some((now, range.last));
        }
    }

    /// Requests `range` again no earlier than `at`, because the publisher refused it for a while. The
    /// refused request does not count as an attempt.
    pub(crate) fn postpone(&mut self, range: SequenceRange, at: Nanos) {
        self.gaps.visit(range, |gap| {
            gap.attempts = gap.attempts.saturating_sub(1);
            (gap.next_request_at, gap.refused) = (at, true);
            Visit::Continue
        });
    }

    /// Requests `range` again after a first retry timeout, as [`Repair::postpone`] does.
    pub(crate) fn retry_refused(&mut self, range: SequenceRange, now: Nanos) {
        let at = now.after(self.nack.retry(1));
        self.postpone(range, at);
    }

    /// Returns the wait after a refusal: the publisher's advice, but no less than the configured
    /// retry.
    #[must_use]
    pub(crate) fn refusal_wait(&self, advised: Nanos) -> Nanos {
        advised.max(self.settings.retry_min)
    }

    /// Makes everything due at once, as if for the first time: the repair connection is new.
    pub(crate) fn request_all_again(&mut self, now: Nanos) {
        self.contested.request_all_again();
        self.request_again(now, |_| true);
    }

    /// Makes the replay due at once, as if for the first time: the replay connection is down.
    pub(crate) fn request_replay_again(&mut self, now: Nanos) {
        self.request_again(now, |gap| gap.class == NackClass::Replay);
    }

    fn request_again(&mut self, now: Nanos, which: impl Fn(&Gap) -> bool) {
        self.gaps.visit(ALL, |gap| {
            if which(gap) {
                gap.attempts = 0;
                gap.next_request_at = now;
            }
            Visit::Continue
        });
    }

    /// The NACK connection is down: its requests are due on the repair connection at once.
    pub(crate) fn leave_nack_link(&mut self, now: Nanos) {
        self.leave_rung(now, |rung| rung == Rung::Nack);
    }

    /// Nothing can be READ any more: what was being READ is due on the next rung at once.
    pub(crate) fn leave_read(&mut self, now: Nanos) {
        self.plan_reads_again();
        self.leave_rung(now, |rung| {
            matches!(rung, Rung::Read { .. } | Rung::Torn { .. })
        });
    }

    fn leave_rung(&mut self, now: Nanos, is_it: impl Fn(Rung) -> bool) {
        self.gaps.visit(ALL, |gap| {
            if gap.attempts > 0 && is_it(gap.rung) {
                gap.next_request_at = now;
            }
            Visit::Continue
        });
    }

    /// READs that had to wait are planned again at once, because there is room or tokens for them.
    pub(crate) const fn plan_reads_again(&mut self) {
        self.read_wait = Nanos::ZERO;
    }

    /// A READ brought a slot that was being written or is damaged: the sequence is READ once more, then
    /// requested on the next rung.
    #[cold]
    pub(crate) fn note_torn_read(&mut self, sequence: Sequence, now: Nanos) {
        self.gaps.visit(SequenceRange::one(sequence), |gap| {
            if let Rung::Read { again } = gap.rung
                && gap.attempts > 0
            {
                (gap.rung, gap.next_request_at) = (Rung::Torn { again }, now);
            }
            Visit::Continue
        });
    }
}

/// One pass over the gaps of the window: the limits and timers that decide which of them to request now.
struct Pass<'a> {
    now: Nanos,
    settings: &'a Settings,
    /// Sequences that may still be requested from replay.
    replay_room: u64,
    replay_open: bool,
    /// Whether a gap waits for the replay path.
    replay_wanted: bool,
    lines: &'a Lines,
    answered: &'a [Option<(Nanos, Sequence)>; 4],
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
        if gap.attempts >= self.settings.attempts_max && !is_above_last(gap) {
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
        !may_come_by_itself(gap, self.lines) || self.now >= gap.found_at.after(self.settings.skew)
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
                // Without deviation, so that no gap gives up its wait before the oldest READ is late.
                let waits_max = (self.read.first_retry_max(), self.nack.first_retry_max());
                let plan = match readable.plan_read(self.now, waits_max, gap.range, room) {
                    // A second READ of a torn slot does not wait.
                    ReadPlan::Wait(_) if torn.is_some() => ReadPlan::Nothing,
                    plan => plan,
                };
                if matches!(plan, ReadPlan::Nothing) {
                    self.counters.reads_not_begun.add(gap.range.len());
                }
                plan
            }
            _ => ReadPlan::Nothing,
        };
        match plan {
            ReadPlan::Slots(count) => {
                gap.range.last = gap.range.first.plus(count - 1);
                let again = torn.is_some();
                (gap.rung, gap.attempts) = (Rung::Read { again }, 1);
            }
            ReadPlan::Wait(until) => {
                self.read_wait = until;
                return false;
            }
            // The step did not answer, so the next one takes over: it counts as the first attempt there.
            ReadPlan::Nothing if above => {
                let is_next = !on_nack && requests.nack_open;
                gap.rung = match is_next || on_nack && open && planted(Bug::RungNeverFallsBack) {
                    true => Rung::Nack,
                    false => Rung::Fallback,
                };
            }
            ReadPlan::Nothing => {
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

/// Returns whether the step that the gap was last requested on still takes requests.
const fn is_open(gap: &Gap, requests: &RepairRequests) -> bool {
    match gap.rung {
        Rung::Nack => requests.nack_open,
        Rung::Read { .. } => requests.room.is_some(),
        Rung::Torn { .. } => false,
        Rung::Repair | Rung::Fallback => true,
    }
}

/// Returns whether the gap was requested on a step above the last. Those requests do not count as attempts
/// on the last step.
const fn is_above_last(gap: &Gap) -> bool {
    gap.attempts > 0 && matches!(gap.rung, Rung::Nack | Rung::Read { .. } | Rung::Torn { .. })
}

/// Returns which connection's answers prove that the answer for this gap is still to come: an index of
/// [`Repair::answered`].
const fn answered_by(gap: &Gap) -> usize {
    match (gap.class, gap.rung) {
        (NackClass::Repair, Rung::Nack) => 2,
        (NackClass::Repair, Rung::Read { .. } | Rung::Torn { .. }) => 3,
        (class, _) => class as usize - 1,
    }
}

/// Returns whether the first request is a READ where READs are possible. A scout does not READ, because the
/// publisher must learn what many subscribers miss.
fn may_read_first(gap: &Gap) -> bool {
    let scouts = planted(Bug::ScoutsRead);
    gap.attempts == 0 && gap.class == NackClass::Repair && (!gap.is_scout || scouts)
}

/// Returns whether another live line may still bring the gap that one line left.
fn may_come_by_itself(gap: &Gap, lines: &Lines) -> bool {
    gap.attempts == 0
        && !planted(Bug::LineSkewIgnored)
        && gap.origin == Origin::Live
        && lines.count() > 1
        && !lines.all_passed(gap.range.last)
}

#[cfg(test)]
mod tests;
