//! Gaps: runs of missing sequences, in order (docs/PROTOCOL.md §5.2).
//!
//! Each gap knows when it was found and when to request it next. Many gaps are open at once, and none
//! waits for another. The caller bounds their number: within a window of W sequences there are at most
//! W/2 runs, and everything missing beyond the window is one run.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::control::NackClass;
use crate::delivery::Event;
use crate::types::{Nanos, Sequence, SequenceRange};

/// A run of missing sequences that are requested together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Gap {
    /// The sequences.
    pub range: SequenceRange,
    /// When they were found missing.
    pub found_at: Nanos,
    /// When to request them (again).
    pub next_request_at: Nanos,
    /// When they were last requested; meaningless while `attempts` is 0.
    pub last_request_at: Nanos,
    /// How often they have been requested on the rung.
    pub attempts: u32,
    /// The publisher's budget for them.
    pub class: NackClass,
    /// How they came to be missing.
    pub origin: Origin,
    /// Where they were last requested; meaningless while `attempts` is 0.
    pub rung: Rung,
    /// Whether the publisher refused them for a while, so that the request does not count.
    pub refused: bool,
    /// Whether they were requested once since they were found, or refused last. Only then is the time
    /// to their arrival a round trip (Karn's rule).
    pub rtt_sample_valid: bool,
    /// Whether this request skips the hold-off of a large group, so that the publisher learns of the
    /// loss.
    pub is_scout: bool,
    /// The episode that they belong to: one jump of the sequence is one episode.
    episode: u64,
}

/// The first request for a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FirstRequest {
    /// When it is due.
    pub at: Nanos,
    /// Whether this receiver is a scout for it.
    pub is_scout: bool,
}

/// Why sequences are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Origin {
    /// They were sent while we listened, and did not arrive.
    Live,
    /// They were sent before we joined.
    History,
}

/// The rung of the repair ladder that a gap is on (docs/PROTOCOL.md §5.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Rung {
    /// A READ of the publisher's ring.
    Read {
        /// Whether a first READ brought a torn slot.
        again: bool,
    },
    /// The READ is done, and the slot was being written meanwhile.
    Torn {
        /// Whether that was the second READ.
        again: bool,
    },
    /// The NACK connection.
    Nack,
    /// The repair connection, or the one for replay.
    Repair,
    /// The repair connection, because the rungs above did not answer in time or broke.
    Fallback,
}

/// The outcome of one jump of the sequence, once each of its sequences arrived or was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GapOutcome {
    /// The first sequence of the jump.
    pub first: Sequence,
    /// How many sequences arrived after all.
    pub recovered: u64,
    /// How many were declared lost.
    pub lost: u64,
    /// When the jump was found.
    pub found_at: Nanos,
    /// How the sequences came to be missing.
    pub origin: Origin,
}

impl GapOutcome {
    /// Returns the event of a recovered gap; `None` where nothing was recovered, and for history.
    pub(crate) fn event(&self, now: Nanos) -> Option<Event> {
        let is_news = self.recovered > 0 && self.origin == Origin::Live;
        is_news.then(|| Event::GapRecovered {
            first: self.first,
            sequences: self.recovered,
            took: now.since(self.found_at),
        })
    }
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Episode {
    resolved: GapOutcome,
    open: u64,
}

/// All gaps of a channel.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Gaps {
    runs: VecDeque<Gap>,
    episodes: VecDeque<Episode>,
    /// The number of the episode at the front of `episodes`.
    first_episode: u64,
    open_live: u64,
    open_history: u64,
}

impl Gaps {
    /// Returns how many sequences of this origin are missing.
    #[must_use]
    pub(crate) const fn open(&self, origin: Origin) -> u64 {
        match origin {
            Origin::Live => self.open_live,
            Origin::History => self.open_history,
        }
    }

    /// Returns whether nothing is missing.
    #[must_use]
    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Returns all gaps, oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Gap> {
        self.runs.iter()
    }

    /// Notes that `range`, which must lie above everything noted before, is missing. The range joins the
    /// last gap if it continues that, if that was not requested yet, and if both were found at the same
    /// time or `joins` says that the time does not matter yet.
    pub(crate) fn found(
        &mut self,
        range: SequenceRange,
        now: Nanos,
        first: FirstRequest,
        class: NackClass,
        origin: Origin,
        joins: bool,
    ) {
        let is_above = self
            .runs
            .back()
            .is_none_or(|last| last.range.last < range.first);
        debug_assert!(is_above, "a gap lies above all others");
        if let Some(last) = self.runs.back_mut()
            && last.range.last.next() == range.first
            && last.attempts == 0
            && !last.refused
            && last.origin == origin
            && (joins || (last.found_at, last.class) == (now, class))
        {
            last.range.last = range.last;
            // The gap's episode need not be the newest one, because gaps above may be forgotten.
            let at = last.episode - self.first_episode;
            if let Some(episode) = self.episodes.get_mut(at as usize) {
                episode.open += range.len();
            }
            *self.open_of(origin) += range.len();
            return;
        }
        self.push(range, now, first, class, origin);
    }

    /// Adds a gap with an episode of its own.
    fn push(
        &mut self,
        range: SequenceRange,
        now: Nanos,
        first: FirstRequest,
        class: NackClass,
        origin: Origin,
    ) {
        *self.open_of(origin) += range.len();
        let resolved = GapOutcome {
            first: range.first,
            recovered: 0,
            lost: 0,
            found_at: now,
            origin,
        };
        self.episodes.push_back(Episode {
            resolved,
            open: range.len(),
        });
        let episode = self.first_episode + self.episodes.len() as u64 - 1;
        self.runs.push_back(Gap {
            range,
            found_at: now,
            next_request_at: first.at,
            last_request_at: now,
            attempts: 0,
            class,
            origin,
            rung: Rung::Repair,
            refused: false,
            rtt_sample_valid: false,
            is_scout: first.is_scout,
            episode,
        });
    }

    /// Notes that `sequence`, which was noted before and is not missing, is missing from `now` on. It is a
    /// gap and an episode of its own.
    pub(crate) fn reopen(&mut self, sequence: Sequence, now: Nanos) {
        let range = SequenceRange::one(sequence);
        let first = FirstRequest {
            at: now,
            is_scout: false,
        };
        let at = self.runs.partition_point(|gap| gap.range.last < sequence);
        let above = self.runs.split_off(at);
        // A gap that ends right below and was found just now must not take the sequence in.
        self.push(range, now, first, NackClass::Repair, Origin::Live);
        self.runs.extend(above);
    }

    /// Returns the length of the newest gap; 0 without gaps.
    #[must_use]
    pub(crate) fn last_len(&self) -> u64 {
        self.runs.back().map_or(0, |gap| gap.range.len())
    }

    /// Moves the newest gap, which is too long for repair, to replay, unless it was requested already.
    pub(crate) fn replay_last(&mut self) {
        if let Some(gap) = self.runs.back_mut()
            && gap.attempts == 0
        {
            gap.class = NackClass::Replay;
        }
    }

    /// Removes `sequence`, which arrived. Returns the gap that it was part of, and the outcome of the
    /// episode if this was its last open sequence; `None` if the sequence was not missing.
    pub(crate) fn fill(&mut self, sequence: Sequence) -> Option<(Gap, Option<GapOutcome>)> {
        let at = self.find(sequence)?;
        let gap = self.runs[at];
        let below = SequenceRange::new(gap.range.first, sequence.previous());
        let above = SequenceRange::new(sequence.next(), gap.range.last);
        // At the very last sequence `next` stays put, so nothing lies above.
        let above = above.filter(|_| sequence != gap.range.last);
        let below = below.filter(|_| sequence != gap.range.first);
        match (below, above) {
            (None, None) => {
                self.runs.remove(at);
            }
            (Some(range), None) | (None, Some(range)) => self.runs[at].range = range,
            (Some(below), Some(above)) => {
                self.runs[at].range = below;
                self.runs.insert(
                    at + 1,
                    Gap {
                        range: above,
                        ..gap
                    },
                );
            }
        }
        Some((gap, self.resolve(gap.episode, 1, 0)))
    }

    /// Removes everything of `range` that is missing as lost, and passes each part to `on`.
    pub(crate) fn lose(
        &mut self,
        range: SequenceRange,
        mut on: impl FnMut(SequenceRange, Origin, Option<GapOutcome>),
    ) {
        let mut at = self
            .runs
            .partition_point(|gap| gap.range.last < range.first);
        while let Some(&gap) = self.runs.get(at) {
            let Some(lost) = gap.range.intersection(range) else {
                break;
            };
            self.isolate(at, lost);
            let at_lost = if gap.range.first < lost.first {
                at + 1
            } else {
                at
            };
            self.runs.remove(at_lost);
            let resolved = self.resolve(gap.episode, 0, lost.len());
            on(lost, gap.origin, resolved);
            at = at_lost;
        }
    }

    /// Calls `on` with each part of a gap that lies in `range`, as a gap of its own that `on` may
    /// change. So the part of a long gap that fits the window is requested alone.
    pub(crate) fn visit(&mut self, range: SequenceRange, mut on: impl FnMut(&mut Gap) -> Visit) {
        let mut at = self
            .runs
            .partition_point(|gap| gap.range.last < range.first);
        while let Some(&gap) = self.runs.get(at) {
            let Some(part) = gap.range.intersection(range) else {
                break;
            };
            let mut seen = Gap { range: part, ..gap };
            let verdict = on(&mut seen);
            let terms = |gap: &Gap| {
                (
                    gap.next_request_at,
                    gap.attempts,
                    gap.class,
                    gap.rung,
                    gap.refused,
                )
            };
            if terms(&seen) != terms(&gap) {
                // `on` may also have narrowed the part.
                let part = seen.range.intersection(part).unwrap_or(part);
                self.isolate(at, part);
                if gap.range.first < part.first {
                    at += 1;
                }
                self.runs[at] = Gap {
                    range: part,
                    episode: gap.episode,
                    ..seen
                };
            }
            if verdict == Visit::Stop {
                break;
            }
            at += 1;
        }
    }

    /// Forgets everything, at a change of epoch.
    pub(crate) fn clear(&mut self) {
        self.runs.clear();
        self.first_episode += self.episodes.len() as u64;
        self.episodes.clear();
        (self.open_live, self.open_history) = (0, 0);
    }

    const fn open_of(&mut self, origin: Origin) -> &mut u64 {
        match origin {
            Origin::Live => &mut self.open_live,
            Origin::History => &mut self.open_history,
        }
    }

    fn find(&self, sequence: Sequence) -> Option<usize> {
        let at = self.runs.partition_point(|gap| gap.range.last < sequence);
        self.runs
            .get(at)
            .is_some_and(|gap| gap.range.contains(sequence))
            .then_some(at)
    }

    /// Splits the gap at `at` so that `part` of it is a gap of its own.
    fn isolate(&mut self, at: usize, part: SequenceRange) {
        let gap = self.runs[at];
        if part.last < gap.range.last {
            self.runs[at].range.last = part.last;
            let above = SequenceRange {
                first: part.last.next(),
                last: gap.range.last,
            };
            self.runs.insert(
                at + 1,
                Gap {
                    range: above,
                    ..gap
                },
            );
        }
        if gap.range.first < part.first {
            self.runs[at].range.first = part.first;
            let below = SequenceRange {
                first: gap.range.first,
                last: part.first.previous(),
            };
            self.runs.insert(
                at,
                Gap {
                    range: below,
                    ..gap
                },
            );
        }
    }

    fn resolve(&mut self, episode: u64, recovered: u64, lost: u64) -> Option<GapOutcome> {
        let at = usize::try_from(episode.checked_sub(self.first_episode)?).ok()?;
        let entry = self.episodes.get_mut(at)?;
        entry.open -= recovered + lost;
        // A rollback lets the same sequences be found, and lost, again.
        let resolved = &mut entry.resolved;
        resolved.recovered = resolved.recovered.saturating_add(recovered);
        resolved.lost = resolved.lost.saturating_add(lost);
        let (origin, resolved) = (
            entry.resolved.origin,
            (entry.open == 0).then_some(entry.resolved),
        );
        *self.open_of(origin) -= recovered + lost;
        while self
            .episodes
            .front()
            .is_some_and(|episode| episode.open == 0)
        {
            self.episodes.pop_front();
            self.first_episode += 1;
        }
        resolved
    }
}

/// Whether [`Gaps::visit`] continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Visit {
    /// With the next gap.
    Continue,
    /// No more.
    Stop,
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng};
    use std::collections::BTreeSet;

    fn range(first: u64, last: u64) -> SequenceRange {
        SequenceRange::new(Sequence(first), Sequence(last)).unwrap()
    }

    const fn first(at: u64) -> FirstRequest {
        FirstRequest {
            at: Nanos(at),
            is_scout: false,
        }
    }

    fn found(gaps: &mut Gaps, from: u64, last: u64, at: u64) {
        gaps.found(
            range(from, last),
            Nanos(at),
            first(at),
            NackClass::Repair,
            Origin::Live,
            true,
        );
    }

    #[test]
    fn filled_gap_resolves_once_with_recovered_and_lost() {
        let mut gaps = Gaps::default();
        found(&mut gaps, 5, 8, 100);
        assert_eq!(gaps.fill(Sequence(6)).unwrap().1, None);
        assert_eq!(gaps.fill(Sequence(6)), None, "it is no longer missing");
        assert_eq!(gaps.fill(Sequence(8)).unwrap().1, None);
        gaps.lose(range(1, 5), |part, _, resolved| {
            assert_eq!((part, resolved), (range(5, 5), None));
        });
        let (_, resolved) = gaps.fill(Sequence(7)).unwrap();
        let expected = GapOutcome {
            first: Sequence(5),
            recovered: 3,
            lost: 1,
            found_at: Nanos(100),
            origin: Origin::Live,
        };
        assert_eq!(resolved, Some(expected));
        assert!(gaps.is_empty() && gaps.iter().next().is_none());
    }

    #[test]
    fn outcome_of_huge_gap_found_again_saturates() {
        const LAST: u64 = u64::MAX - 1;
        let mut gaps = Gaps::default();
        found(&mut gaps, 1, LAST, 100);
        gaps.lose(range(3, LAST), |_, _, _| {});
        found(&mut gaps, 3, LAST, 100);
        let mut outcome = None;
        gaps.lose(range(1, LAST), |_, _, resolved| outcome = resolved);
        assert_eq!(outcome.unwrap().lost, u64::MAX);
        assert_eq!(gaps.open(Origin::Live), 0);
    }

    #[test]
    fn adjacent_gaps_merge_only_before_first_request() {
        let mut gaps = Gaps::default();
        found(&mut gaps, 5, 6, 1);
        found(&mut gaps, 7, 9, 2);
        assert_eq!(gaps.iter().count(), 1);
        gaps.visit(range(0, 100), |gap| {
            gap.attempts = 1;
            Visit::Continue
        });
        found(&mut gaps, 10, 10, 3);
        assert_eq!(gaps.iter().count(), 2);
        assert_eq!(gaps.open(Origin::Live), 6);
        // A refused run was asked for, although a refusal counts as no attempt.
        gaps.visit(range(0, 100), |gap| {
            (gap.attempts, gap.refused) = (0, true);
            Visit::Continue
        });
        found(&mut gaps, 11, 11, 4);
        assert_eq!(gaps.iter().last().unwrap().range, range(11, 11));
    }

    #[test]
    fn requested_part_of_gap_is_split_off() {
        let mut gaps = Gaps::default();
        found(&mut gaps, 10, 100, 1);
        gaps.visit(range(0, 20), |gap| {
            assert_eq!(gap.range, range(10, 20));
            gap.attempts += 1;
            Visit::Continue
        });
        let seen: Vec<_> = gaps.iter().map(|gap| (gap.range, gap.attempts)).collect();
        assert_eq!(seen, [(range(10, 20), 1), (range(21, 100), 0)]);
        for sequence in 10..=99 {
            assert_eq!(gaps.fill(Sequence(sequence)).unwrap().1, None);
        }
        assert_eq!(gaps.fill(Sequence(100)).unwrap().1.unwrap().recovered, 91);
    }

    #[test]
    fn joined_run_belongs_to_its_episode() {
        let mut gaps = Gaps::default();
        // This episode is over already.
        found(&mut gaps, 2, 2, 1);
        assert!(gaps.fill(Sequence(2)).unwrap().1.is_some());
        found(&mut gaps, 5, 6, 1);
        found(&mut gaps, 8, 9, 2);
        gaps.lose(range(7, 9), |_, _, _| ());
        found(&mut gaps, 7, 9, 3);
        assert_eq!(gaps.iter().count(), 1, "it joins what is below");
        let mut all = (5..=9).map(|s| gaps.fill(Sequence(s)).unwrap().1);
        assert!(all.by_ref().take(4).all(|resolved| resolved.is_none()));
        assert_eq!(all.next().flatten().unwrap().recovered, 5);
        drop(all);
        assert!(gaps.is_empty() && gaps.open(Origin::Live) == 0);
    }

    #[test]
    fn gap_visit_without_change_causes_no_split() {
        let mut gaps = Gaps::default();
        found(&mut gaps, 10, 100, 1);
        gaps.visit(range(20, 30), |_| Visit::Continue);
        assert_eq!(gaps.iter().count(), 1);
    }

    #[test]
    fn gap_visit_changes_only_visited_range() {
        let mut gaps = Gaps::default();
        found(&mut gaps, 10, 20, 1);
        gaps.visit(range(12, 14), |gap| {
            (gap.range, gap.attempts) = (range(0, 100), 1);
            Visit::Continue
        });
        let seen: Vec<_> = gaps.iter().map(|gap| (gap.range, gap.attempts)).collect();
        let expected = [(range(10, 11), 0), (range(12, 14), 1), (range(15, 20), 0)];
        assert_eq!(seen, expected);
    }

    #[test]
    fn gap_at_last_sequence_number_can_be_filled() {
        let mut gaps = Gaps::default();
        found(&mut gaps, u64::MAX - 1, u64::MAX, 1);
        assert!(gaps.fill(Sequence(u64::MAX)).unwrap().1.is_none());
        assert!(gaps.fill(Sequence(u64::MAX - 1)).unwrap().1.is_some());
        assert!(gaps.is_empty());
    }

    /// Random operations beside a plain set of numbers: both must agree after every step.
    #[test]
    fn gap_operations_agree_with_set_model() {
        for seed in 0..200 {
            let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
            let mut gaps = Gaps::default();
            let mut model = BTreeSet::new();
            let mut head = if seed % 2 == 0 { 0 } else { (1u64 << 32) - 50 };
            let base = head;
            let (mut recovered, mut lost, mut resolved) = (0u64, 0u64, 0u64);
            let mut detected = 0u64;
            for step in 0..400 {
                match random.random_range(0..4) {
                    0 => {
                        let first = head + random.random_range(1..4);
                        let last = first + random.random_range(0..12);
                        head = last;
                        found(&mut gaps, first, last, step);
                        model.extend(first..=last);
                        detected += last - first + 1;
                    }
                    1 => {
                        let sequence = random.random_range(base..=head + 2);
                        let filled = gaps.fill(Sequence(sequence));
                        assert_eq!(filled.is_some(), model.remove(&sequence), "seed {seed}");
                        recovered += u64::from(filled.is_some());
                        resolved += filled.and_then(|f| f.1).map_or(0, |s| s.recovered + s.lost);
                    }
                    2 => {
                        let first = random.random_range(base..=head + 2);
                        let last = first + random.random_range(0..8);
                        gaps.lose(range(first, last), |part, _, done| {
                            for sequence in part.iter() {
                                assert!(model.remove(&sequence.0), "seed {seed}");
                                lost += 1;
                            }
                            resolved += done.map_or(0, |s| s.recovered + s.lost);
                        });
                        assert!(model.range(first..=last).next().is_none(), "seed {seed}");
                    }
                    _ => {
                        let first = random.random_range(base..=head + 2);
                        let window = range(first, first + random.random_range(0..20));
                        gaps.visit(window, |gap| {
                            gap.attempts += 1;
                            Visit::Continue
                        });
                    }
                }
                let listed: Vec<u64> = gaps
                    .iter()
                    .flat_map(|gap| gap.range.iter().map(|s| s.0))
                    .collect();
                assert!(
                    listed.iter().copied().eq(model.iter().copied()),
                    "seed {seed}"
                );
                assert_eq!(gaps.open(Origin::Live), model.len() as u64, "seed {seed}");
                assert_eq!(
                    detected,
                    recovered + lost + gaps.open(Origin::Live),
                    "seed {seed}"
                );
            }
            gaps.lose(range(0, u64::MAX), |part, _, done| {
                lost += part.len();
                resolved += done.map_or(0, |s| s.recovered + s.lost);
            });
            assert_eq!(
                (detected, resolved),
                (recovered + lost, detected),
                "seed {seed}"
            );
        }
    }

    #[test]
    fn forgotten_is_gone_and_later_found_is_resolved() {
        let mut gaps = Gaps::default();
        found(&mut gaps, 5, 8, 1);
        gaps.fill(Sequence(6));
        found(&mut gaps, 10, 10, 1);
        gaps.clear();
        assert!(gaps.is_empty() && gaps.open(Origin::Live) == 0);
        assert_eq!((gaps.fill(Sequence(5)), gaps.last_len()), (None, 0));
        found(&mut gaps, 3, 3, 9);
        assert!(!gaps.is_empty());
        let (gap, resolved) = gaps.fill(Sequence(3)).unwrap();
        assert_eq!(
            (gap.found_at, resolved.unwrap().found_at),
            (Nanos(9), Nanos(9))
        );
        gaps.clear();
        found(&mut gaps, 5, 6, 1);
        gaps.lose(range(0, 9), |part, _, resolved| {
            assert_eq!((part, resolved.unwrap().lost), (range(5, 6), 2));
        });
    }

    #[test]
    fn adjacent_gap_of_other_discovery_is_kept_apart() {
        let note = |gaps: &mut Gaps, sequence, at, class, origin, joins| {
            let range = SequenceRange::one(Sequence(sequence));
            gaps.found(range, Nanos(at), first(at), class, origin, joins);
            gaps.iter().count()
        };
        let (repair, replay) = (NackClass::Repair, NackClass::Replay);
        let fresh = || {
            let mut gaps = Gaps::default();
            note(&mut gaps, 5, 1, repair, Origin::Live, false);
            gaps
        };
        let runs = |sequence, at, class, origin, joins| {
            note(&mut fresh(), sequence, at, class, origin, joins)
        };
        assert_eq!(runs(6, 1, repair, Origin::Live, false), 1);
        assert_eq!(runs(6, 2, repair, Origin::Live, false), 2, "found later");
        assert_eq!(runs(6, 2, repair, Origin::Live, true), 1);
        assert_eq!(runs(6, 1, replay, Origin::Live, false), 2);
        assert_eq!(runs(6, 1, replay, Origin::Live, true), 1);
        assert_eq!(runs(6, 1, repair, Origin::History, true), 2);
        assert_eq!(runs(7, 1, repair, Origin::Live, true), 2, "apart from it");
        let mut gaps = fresh();
        note(&mut gaps, 6, 1, repair, Origin::History, true);
        assert_eq!(
            (gaps.open(Origin::Live), gaps.open(Origin::History)),
            (1, 1)
        );
        gaps.lose(range(6, 6), |_, origin, _| {
            assert_eq!(origin, Origin::History);
        });
        assert_eq!(
            (gaps.open(Origin::Live), gaps.open(Origin::History)),
            (1, 0)
        );
    }

    #[test]
    fn long_gap_is_replayed_unless_already_requested() {
        for (attempts, class) in [(0, NackClass::Replay), (1, NackClass::Repair)] {
            let mut gaps = Gaps::default();
            found(&mut gaps, 5, 8, 1);
            assert_eq!(gaps.last_len(), 4);
            gaps.visit(range(5, 8), |gap| {
                gap.attempts = attempts;
                Visit::Continue
            });
            gaps.replay_last();
            assert_eq!(gaps.iter().next().unwrap().class, class);
        }
    }

    #[test]
    fn gap_visit_changes_narrowed_range_and_stops_on_request() {
        let mut gaps = Gaps::default();
        for first in [10, 20, 30] {
            found(&mut gaps, first, first + 4, 1);
        }
        let mut seen = 0;
        gaps.visit(range(12, 40), |gap| {
            seen += 1;
            gap.next_request_at = Nanos(7);
            gap.range.last = gap.range.first;
            if seen == 2 {
                Visit::Stop
            } else {
                Visit::Continue
            }
        });
        assert_eq!(seen, 2);
        let at = |gap: &Gap| (gap.range.first.0, gap.range.last.0, gap.next_request_at.0);
        let listed: Vec<_> = gaps.iter().map(at).collect();
        let rest = [(14, 14, 1), (20, 24, 1), (30, 34, 1)];
        assert_eq!(listed[..3], [(10, 11, 1), (12, 12, 7), (13, 13, 7)]);
        assert_eq!(listed[3..], rest, "what is left of a run is visited next");
        gaps.visit(range(30, 34), |gap| {
            gap.class = NackClass::Replay;
            Visit::Continue
        });
        assert_eq!(gaps.iter().last().unwrap().class, NackClass::Replay);
        for sequence in (10..=14).chain(20..=24) {
            gaps.fill(Sequence(sequence)).unwrap();
        }
        assert_eq!((gaps.open(Origin::Live), gaps.iter().count()), (5, 1));
    }
}
