//! The last losses of each subscriber, as its requests, the answers to them and its PROGRESS show them.
//!
//! The publisher does not see what a subscriber repairs without a NACK: by another line or by READ. Each
//! rise of a subscriber's `lost_records` has an episode, whether it was requested or not.

use std::collections::{BTreeMap, VecDeque};

use serde::Serialize;
use tickcast_metrics::Exemplar;
use tickcast_reliability::control::{NackAnswer, NackClass, Progress, RefusalReason};
use tickcast_reliability::types::{ChannelId, Epoch, Nanos, Now, Sequence, SequenceRange};

/// Episodes kept of one subscriber on one channel.
const KEPT_MAX: usize = 16;
/// Episodes listed in all; with more subscribers, each has fewer.
const LISTED_MAX: usize = 4096;
/// Subscribers kept that have left.
const LEFT_MAX: usize = 128;

/// The connection and the budget on which a subscriber requested missing datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LossRequest {
    /// By NACK over the repair connection.
    Nack,
    /// By NACK over the NACK connection.
    NackConnection,
    /// As a replay: history, or a gap beyond `burst_max`.
    Replay,
}

impl LossRequest {
    /// Returns the request of this class on the owner's connection, or on a further one.
    pub(crate) const fn of(class: NackClass, is_owner: bool) -> Self {
        match (class, is_owner) {
            (NackClass::Replay, _) => Self::Replay,
            (NackClass::Repair, true) => Self::Nack,
            (NackClass::Repair, false) => Self::NackConnection,
        }
    }
}

/// The outcome of an episode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LossOutcome {
    /// Neither answered nor given up yet.
    Open,
    /// The publisher answered, and the subscriber did not declare it lost.
    Repaired,
    /// It arrived on a line, or as a multicast repair that another subscriber requested, too.
    Elsewhere,
    /// The subscriber declared records of it lost.
    Lost,
}

/// A run of datagrams that one subscriber missed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct LossEpisode {
    epoch: Epoch,
    first: Sequence,
    last: Sequence,
    /// When the publisher heard of it, UTC.
    at_utc_ns: Nanos,
    #[serde(skip)]
    at: Nanos,
    /// How it was requested; `None` for a loss without a request.
    pub(crate) requested: Option<LossRequest>,
    requests: u32,
    /// Datagrams sent to this subscriber alone.
    answered: u64,
    #[serde(skip)]
    answered_to: Option<Sequence>,
    /// The last reason of a refusal.
    refused: Option<RefusalReason>,
    outcome: LossOutcome,
    /// Time from the request to the last answer, or to the PROGRESS that settled it.
    took_us: Option<u64>,
    /// Records declared lost; `None` if unknown.
    pub(crate) lost_records: Option<u64>,
}

impl LossEpisode {
    fn new(epoch: Epoch, range: SequenceRange, now: Now) -> Self {
        Self {
            epoch,
            first: range.first,
            last: range.last,
            at_utc_ns: now.utc,
            at: now.monotonic,
            requested: None,
            requests: 0,
            answered: 0,
            answered_to: None,
            refused: None,
            outcome: LossOutcome::Open,
            took_us: None,
            lost_records: None,
        }
    }

    /// Returns whether the subscriber declared it lost.
    pub(crate) fn is_lost(&self) -> bool {
        self.outcome == LossOutcome::Lost
    }

    /// Returns it as an example of that many, at its first datagram.
    pub(crate) fn exemplar(&self, value: u64) -> Exemplar {
        Exemplar {
            epoch: self.epoch.0,
            sequence: self.first.0,
            value: value as f64,
            at_utc_ns: Some(self.at_utc_ns.0),
        }
    }

    /// Returns its number of datagrams.
    pub(crate) const fn datagrams(&self) -> u64 {
        self.last.0.saturating_sub(self.first.0).saturating_add(1)
    }

    const fn holds(&self, sequence: Sequence) -> bool {
        self.first.0 <= sequence.0 && sequence.0 <= self.last.0
    }

    fn is_open(&self) -> bool {
        self.outcome == LossOutcome::Open
    }

    fn settle(&mut self, outcome: LossOutcome, now: Nanos) {
        self.outcome = outcome;
        self.took_us = Some(now.since(self.at).as_us());
    }
}

/// The episodes of one subscriber on one channel.
#[derive(Clone, Debug, Default)]
struct OfSubscriber {
    name: String,
    episodes: VecDeque<LossEpisode>,
    /// As its last PROGRESS stated them.
    sequence: Sequence,
    lost_records: u64,
}

impl OfSubscriber {
    fn push(&mut self, episode: LossEpisode) {
        if self.episodes.len() == KEPT_MAX {
            self.episodes.pop_front();
        }
        self.episodes.push_back(episode);
    }

    fn requested(&mut self, now: Now, epoch: Epoch, range: SequenceRange, how: LossRequest) {
        let mut open = self.episodes.iter_mut().rev().filter(|it| it.is_open());
        let known = open.find(|it| it.epoch == epoch && it.holds(range.first));
        if let Some(known) = known {
            known.requests = known.requests.saturating_add(1);
            return;
        }
        self.push(LossEpisode {
            requested: Some(how),
            requests: 1,
            ..LossEpisode::new(epoch, range, now)
        });
    }

    fn answered(&mut self, now: Nanos, answer: &NackAnswer) {
        for it in self.episodes.iter_mut().filter(|it| it.is_open()) {
            match answer {
                NackAnswer::Sent(epoch, sequence) => {
                    // A repeated answer does not count again.
                    let is_new = it.answered_to.is_none_or(|before| *sequence > before);
                    if it.epoch != *epoch || !it.holds(*sequence) || !is_new {
                        continue;
                    }
                    it.answered += 1;
                    it.answered_to = Some(*sequence);
                    if it.answered > it.last.0 - it.first.0 {
                        it.settle(LossOutcome::Repaired, now);
                    }
                }
                NackAnswer::Refused(refused) => {
                    let range = refused.range;
                    if range.first <= it.last && it.first <= range.last {
                        it.refused = Some(refused.reason);
                    }
                }
            }
        }
    }

    fn progressed(&mut self, now: Now, progress: &Progress) {
        let before = std::mem::replace(&mut self.sequence, progress.sequence);
        let lost = progress.lost_records.saturating_sub(self.lost_records);
        self.lost_records = progress.lost_records;
        if lost > 0 {
            self.lost(now, progress, before, lost);
        }
        let passed = |it: &&mut LossEpisode| {
            it.is_open() && it.epoch == progress.epoch && it.last <= progress.sequence
        };
        for it in self.episodes.iter_mut().filter(passed) {
            let outcome = match it.answered {
                0 => LossOutcome::Elsewhere,
                _ => LossOutcome::Repaired,
            };
            it.settle(outcome, now.monotonic);
        }
    }

    /// Finds the episodes of a loss: those refused, else those not fully answered, else those answered too
    /// late, of the sequences passed since `before`. A loss without a request is an episode of its own.
    fn lost(&mut self, now: Now, progress: &Progress, before: Sequence, records: u64) {
        let passed = |it: &LossEpisode| {
            it.epoch == progress.epoch && it.last > before && it.last <= progress.sequence
        };
        let rank = |it: &LossEpisode| match (it.refused, it.outcome) {
            (Some(_), LossOutcome::Open) => 0,
            (_, LossOutcome::Open) => 1,
            _ => 2,
        };
        let best = self.episodes.iter().filter(|it| passed(it)).map(rank).min();
        let mut chosen: Vec<&mut LossEpisode> = (self.episodes.iter_mut())
            .filter(|it| passed(it) && Some(rank(it)) == best)
            .collect();
        for it in &mut chosen {
            it.settle(LossOutcome::Lost, now.monotonic);
        }
        if let [only] = &mut chosen[..] {
            only.lost_records = Some(records);
        }
        if chosen.is_empty() {
            let first = Sequence((before.0 + 1).min(progress.sequence.0));
            let range = SequenceRange {
                first,
                last: progress.sequence,
            };
            let mut episode = LossEpisode::new(progress.epoch, range, now);
            episode.outcome = LossOutcome::Lost;
            episode.lost_records = Some(records);
            self.push(episode);
        }
    }
}

/// An episode as the page `/losses` lists it.
#[derive(Debug, Serialize)]
pub(crate) struct ListedLoss {
    pub(crate) subscriber: String,
    pub(crate) channel: ChannelId,
    joined: bool,
    #[serde(flatten)]
    pub(crate) episode: LossEpisode,
}

/// The last losses of all subscribers. The work for one does not grow with the number of the others.
#[derive(Debug, Default)]
pub(crate) struct LossTable {
    joined: BTreeMap<(u64, ChannelId), OfSubscriber>,
    left: VecDeque<(ChannelId, OfSubscriber)>,
}

impl LossTable {
    /// Begins with a subscriber on these channels. A subscriber that returns continues its own list.
    pub(crate) fn join(&mut self, owner: u64, name: &str, channels: &[ChannelId]) {
        for channel in channels {
            let mut left = self.left.iter();
            let known = left.position(|(of, it)| of == channel && it.name == name);
            let known = known.and_then(|at| self.left.remove(at));
            let fresh = || OfSubscriber {
                name: name.into(),
                ..OfSubscriber::default()
            };
            let of = known.map_or_else(fresh, |(_, it)| it);
            self.joined.insert((owner, *channel), of);
        }
    }

    /// Records that a subscriber left. Its episodes are kept for a while.
    pub(crate) fn leave(&mut self, owner: u64) {
        let of_owner = (owner, ChannelId(0))..=(owner, ChannelId(u16::MAX));
        for ((_, channel), of) in self.joined.extract_if(of_owner, |_, _| true) {
            if !of.episodes.is_empty() {
                self.left.push_back((channel, of));
            }
        }
        while self.left.len() > LEFT_MAX {
            self.left.pop_front();
        }
    }

    /// Records a NACK of a subscriber.
    pub(crate) fn requested(
        &mut self,
        now: Now,
        at: (u64, ChannelId),
        epoch: Epoch,
        ranges: &[SequenceRange],
        how: LossRequest,
    ) {
        if let Some(of) = self.joined.get_mut(&at) {
            // Earlier ranges would be replaced at once.
            for range in &ranges[ranges.len().saturating_sub(KEPT_MAX)..] {
                of.requested(now, epoch, *range, how);
            }
        }
    }

    /// Records an answer to a subscriber.
    pub(crate) fn answered(&mut self, now: Nanos, at: (u64, ChannelId), answer: &NackAnswer) {
        if let Some(of) = self.joined.get_mut(&at) {
            of.answered(now, answer);
        }
    }

    /// Records a PROGRESS of a subscriber that follows the channel's epoch.
    pub(crate) fn progressed(&mut self, now: Now, at: (u64, ChannelId), progress: &Progress) {
        if let Some(of) = self.joined.get_mut(&at) {
            of.progressed(now, progress);
        }
    }

    /// Returns the newest episodes of every subscriber, oldest first.
    pub(crate) fn list(&self) -> Vec<ListedLoss> {
        let joined = self.joined.iter().map(|((_, at), of)| (*at, of, true));
        let left = self.left.iter().map(|(at, of)| (*at, of, false));
        let some = |(_, of, _): &(ChannelId, &OfSubscriber, bool)| !of.episodes.is_empty();
        let all: Vec<_> = joined.chain(left).filter(some).collect();
        let each = (LISTED_MAX / all.len().max(1)).max(1);
        let mut listed: Vec<ListedLoss> = Vec::new();
        for (channel, of, joined) in all.into_iter().take(LISTED_MAX) {
            let newest = of
                .episodes
                .iter()
                .skip(of.episodes.len().saturating_sub(each));
            listed.extend(newest.map(|episode| ListedLoss {
                subscriber: of.name.clone(),
                channel,
                joined,
                episode: episode.clone(),
            }));
        }
        listed.sort_by_key(|it| it.episode.at);
        listed
    }
}

#[cfg(test)]
mod tests {
    use tickcast_reliability::control::Refused;
    use tickcast_reliability::types::RecordNumber;

    use super::*;

    const A: ChannelId = ChannelId(1);
    const EPOCH: Epoch = Epoch(5);

    fn at(ms: u64) -> Now {
        Now {
            monotonic: Nanos::from_ms(ms),
            utc: Nanos::from_ms(1_000_000 + ms),
        }
    }

    fn run(first: u64, last: u64) -> SequenceRange {
        SequenceRange::new(Sequence(first), Sequence(last)).unwrap()
    }

    fn joined() -> LossTable {
        let mut all = LossTable::default();
        all.join(7, "risk-1", &[A]);
        all
    }

    fn ask(all: &mut LossTable, ms: u64, range: SequenceRange) {
        all.requested(at(ms), (7, A), EPOCH, &[range], LossRequest::Nack);
    }

    fn send(all: &mut LossTable, ms: u64, sequence: u64) {
        let answer = NackAnswer::Sent(EPOCH, Sequence(sequence));
        all.answered(Nanos::from_ms(ms), (7, A), &answer);
    }

    fn refuse(all: &mut LossTable, ms: u64, range: SequenceRange) {
        let answer = NackAnswer::Refused(Refused {
            epoch: EPOCH,
            range,
            reason: RefusalReason::Window,
            retry_after_us: 0,
            oldest: Sequence(0),
            oldest_record: RecordNumber(0),
        });
        all.answered(Nanos::from_ms(ms), (7, A), &answer);
    }

    fn report(all: &mut LossTable, ms: u64, sequence: u64, lost_records: u64) {
        let progress = Progress {
            epoch: EPOCH,
            sequence: Sequence(sequence),
            lost_records,
            heard: Sequence(sequence),
            sent_at: Nanos::ZERO,
            read_bytes: 0,
        };
        all.progressed(at(ms), (7, A), &progress);
    }

    fn only(all: &LossTable) -> LossEpisode {
        let mut listed = all.list();
        assert_eq!(listed.len(), 1, "{listed:?}");
        listed.remove(0).episode
    }

    #[test]
    fn answered_episode_is_repaired_with_its_time() {
        let mut all = joined();
        ask(&mut all, 10, run(4, 5));
        ask(&mut all, 12, run(4, 5));
        send(&mut all, 13, 4);
        send(&mut all, 14, 4);
        assert_eq!(only(&all).outcome, LossOutcome::Open, "5 is missing");
        send(&mut all, 15, 5);
        let it = only(&all);
        assert_eq!((it.outcome, it.requests), (LossOutcome::Repaired, 2));
        assert_eq!((it.answered, it.took_us), (2, Some(5_000)));
        assert_eq!(it.requested, Some(LossRequest::Nack));
        assert_eq!(it.at_utc_ns, at(10).utc);
        report(&mut all, 90, 9, 0);
        assert_eq!(only(&all), it, "its PROGRESS changes nothing");
    }

    #[test]
    fn unanswered_episode_that_progress_passes_came_elsewhere() {
        let mut all = joined();
        ask(&mut all, 10, run(4, 5));
        report(&mut all, 20, 4, 0);
        assert_eq!(only(&all).outcome, LossOutcome::Open);
        report(&mut all, 30, 5, 0);
        let it = only(&all);
        let expected = (LossOutcome::Elsewhere, Some(20_000));
        assert_eq!((it.outcome, it.took_us), expected);
    }

    #[test]
    fn refused_episode_is_lost_with_reason_and_records() {
        let mut all = joined();
        ask(&mut all, 10, run(4, 5));
        ask(&mut all, 10, run(7, 7));
        refuse(&mut all, 11, run(4, 5));
        report(&mut all, 30, 9, 12);
        let listed = all.list();
        let [lost, came] = [&listed[0].episode, &listed[1].episode];
        assert_eq!(lost.refused, Some(RefusalReason::Window));
        let expected = (LossOutcome::Lost, Some(12));
        assert_eq!((lost.outcome, lost.lost_records), expected);
        assert_eq!(came.outcome, LossOutcome::Elsewhere);
    }

    #[test]
    fn loss_without_request_is_an_episode() {
        let mut all = joined();
        report(&mut all, 10, 20, 0);
        report(&mut all, 20, 30, 3);
        let it = only(&all);
        assert_eq!((it.first, it.last), (Sequence(21), Sequence(30)));
        assert_eq!((it.requested, it.lost_records), (None, Some(3)));
        report(&mut all, 30, 40, 3);
        assert_eq!(all.list().len(), 1, "no further loss");
    }

    #[test]
    fn answer_after_deadline_is_a_loss() {
        let mut all = joined();
        ask(&mut all, 10, run(4, 4));
        send(&mut all, 15, 4);
        report(&mut all, 20, 9, 2);
        assert_eq!(only(&all).outcome, LossOutcome::Lost);
    }

    #[test]
    fn episodes_are_bounded_and_survive_a_reconnection() {
        let mut all = joined();
        for n in 0..100 {
            ask(&mut all, n, run(2 * n + 1, 2 * n + 1));
        }
        let listed = all.list();
        assert_eq!(listed.len(), KEPT_MAX);
        assert_eq!(listed[0].episode.first, Sequence(169));
        report(&mut all, 200, 300, 6);
        all.leave(7);
        assert!(all.list().iter().all(|it| !it.joined));
        all.join(8, "risk-1", &[A]);
        assert!(all.list().iter().all(|it| it.joined));
        assert_eq!((all.list().len(), all.left.len()), (KEPT_MAX, 0));
        // Strangers beyond the bound leave something of everybody.
        for peer in 100..100 + 2 * LISTED_MAX as u64 {
            all.join(peer, "x", &[A]);
            all.requested(at(1), (peer, A), EPOCH, &[run(1, 1)], LossRequest::Replay);
        }
        let listed = all.list();
        assert_eq!(listed.len(), LISTED_MAX);
        assert!(listed.iter().any(|it| it.subscriber == "risk-1"));
        for peer in 100..1_000 {
            all.leave(peer);
        }
        assert_eq!(all.left.len(), LEFT_MAX);
    }
}
