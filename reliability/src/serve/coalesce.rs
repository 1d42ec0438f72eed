//! The choice between unicast and multicast repair (docs/PROTOCOL.md §6.3). This module alone holds the
//! policy, so that it can be tuned.
//!
//! - The first NACK for a sequence is answered at once, by unicast.
//! - When `max(2, ⌈G/8⌉)` (at most 16) of `G` subscribers have asked for it within `repair_coalesce_us`,
//!   it is multicast. In a large group, whose members hold off, three askers are enough.
//! - A multicast answers all pending NACKs for the sequence, and all NACKs within `sender_ignore_us` after
//!   it. A later asker missed it and starts a new round.
//! - After three multicasts, the sequence is only sent by unicast.
//!
//! When a crowd of 32 NACKs still asks for one sequence, the hold-off is too short for this network. The
//! group is then told to wait twice as long. The hold-off is halved after each second without a crowd.

use std::collections::VecDeque;
use std::fmt;

use arrayvec::ArrayVec;

use crate::planted::{Bug, planted};
use crate::serve::config::RepairConfig;
use crate::serve::peer_id::PeerId;
use crate::types::{Nanos, Sequence};

/// Number of remembered sequences: the slots of a window (`window_slots`, docs/PROTOCOL.md §5.2), so
/// that the gaps of one subscriber do not displace each other. A newer sequence displaces an older one,
/// never the reverse: a NACK for an old sequence cannot evict newer ones. Other sequences are sent by
/// unicast.
const ENTRIES: usize = 4096;
/// Maximum remembered sequences of one NACK: more would displace each other.
pub(super) const LOGGED_MAX: u64 = ENTRIES as u64;
/// Maximum number of distinct askers counted, and so the highest threshold.
const ASKERS_MAX: usize = 16;
/// Number of askers of a large group that trigger a multicast. It is below the number of scouts, so that a
/// common loss is repaired within the first round trip. It is above chance coincidences.
const ASKERS_OF_LARGE_GROUP: usize = 3;
/// Maximum multicasts of one sequence: a receiver that misses all of them may not be reachable that way.
const MULTICASTS_MAX: u8 = 3;
/// Number of NACKs for one sequence that make a crowd.
const CROWD: u32 = 32;
/// Maximum number of doublings of the hold-off.
const WIDER_MAX: u32 = 4;
/// Minimum interval between doublings: until all know the longer hold-off, further crowds say nothing new.
const WIDENS_EVERY: Nanos = Nanos::from_ms(1);
/// Interval without a crowd after which the hold-off is halved.
const NARROWS_EVERY: Nanos = Nanos::from_secs(1);

/// How to answer a NACK for one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// Send it to the asker.
    Unicast,
    /// Send it to the group.
    Multicast,
    /// Send nothing: a multicast has answered it.
    Answered,
}

/// The NACKs for one sequence, in rounds. Each round may end with a multicast.
#[derive(Clone, Debug)]
struct Entry {
    sequence: Sequence,
    /// When this round began.
    requested_at: Nanos,
    /// The distinct peers that asked in this round, up to [`ASKERS_MAX`].
    askers: ArrayVec<PeerId, ASKERS_MAX>,
    /// Whether an asker was answered in this round.
    answered: bool,
    multicast_at: Nanos,
    multicasts: u8,
    /// Number of its last multicast among those of the channel, counted from 1; 0 for none.
    last_multicast: u64,
    /// Number of NACKs in all rounds, without immediate repetitions by one peer.
    asks: u32,
    asked_by: PeerId,
}

impl Entry {
    fn multicast_within(&self, span: Nanos, now: Nanos) -> bool {
        self.multicasts > 0 && now.since(self.multicast_at) <= span
    }
}

/// The recent NACKs of one channel.
#[derive(Clone)]
pub(super) struct RepairLog {
    /// For each sequence, modulo the table size: its index in `entries`, counted from 1; 0 for none.
    places: Box<[u16]>,
    entries: Vec<Entry>,
    /// Number of multicasts so far, and the sequences of the last [`ENTRIES`] of them.
    multicasts: u64,
    last: VecDeque<Sequence>,
    coalesce: Nanos,
    ignore: Nanos,
    multicast: bool,
    large_group: u32,
    /// Number of doublings of the hold-off, and when a crowd or a quiet second last set it.
    wider: u32,
    wider_at: Nanos,
}

impl fmt::Debug for RepairLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(&self.entries)
            .entry(&(self.wider, self.wider_at, &self.last))
            .finish()
    }
}

impl RepairLog {
    /// Returns an empty log.
    #[must_use]
    pub(super) fn new(config: &RepairConfig) -> Self {
        Self {
            places: vec![0; ENTRIES].into(),
            entries: Vec::new(),
            multicasts: 0,
            last: VecDeque::new(),
            coalesce: Nanos::from_us(config.repair_coalesce_us),
            ignore: Nanos::from_us(config.sender_ignore_us),
            multicast: config.multicast_repair,
            large_group: config.large_group,
            wider: 0,
            wider_at: Nanos::ZERO,
        }
    }

    /// Returns the longest hold-off that a publisher with this config advises.
    #[must_use]
    pub(super) const fn hold_off_max_us(config: &RepairConfig) -> u32 {
        (config.hold_off_us(u32::MAX)).saturating_mul(1 << WIDER_MAX)
    }

    /// Returns the number of times to double the hold-off.
    #[must_use]
    pub(super) const fn wider(&self) -> u32 {
        self.wider
    }

    /// Advances time: takes back one doubling after [`NARROWS_EVERY`] without a crowd.
    pub(super) fn handle_timeout(&mut self, now: Nanos) {
        if self.wider > 0 && now.since(self.wider_at) >= NARROWS_EVERY {
            (self.wider, self.wider_at) = (self.wider - 1, now);
        }
    }

    fn entry(&mut self, sequence: Sequence) -> Option<&mut Entry> {
        let place = self.places[sequence.0 as usize % ENTRIES];
        let entry = self.entries.get_mut(usize::from(place).checked_sub(1)?);
        entry.filter(|entry| entry.sequence == sequence)
    }

    /// Adds an unknown sequence. It replaces an older one in its place, and is dropped for a newer one.
    fn begin(&mut self, entry: Entry) {
        let place = &mut self.places[entry.sequence.0 as usize % ENTRIES];
        match usize::from(*place).checked_sub(1) {
            Some(at) if self.entries[at].sequence > entry.sequence => {}
            Some(at) => self.entries[at] = entry,
            None => {
                // Reserve the whole table at once: untouched memory costs nothing. Growing by doubling
                // would copy it and leave the old allocation behind.
                self.entries.reserve_exact(ENTRIES - self.entries.len());
                self.entries.push(entry);
                // The table never has more entries than places.
                *place = self.entries.len() as u16;
            }
        }
    }

    /// Records that `peer` asks for `sequence`, which was not pending for it before. Returns whether a
    /// multicast of it within the last `sender_ignore_us` already answers it.
    pub(super) fn ask(&mut self, sequence: Sequence, peer: PeerId, now: Nanos) -> bool {
        let (coalesce, ignore) = (self.coalesce, self.ignore);
        let Some(entry) = self.entry(sequence) else {
            self.begin(Entry {
                sequence,
                requested_at: now,
                askers: ArrayVec::from_iter([peer]),
                answered: false,
                multicast_at: Nanos::ZERO,
                multicasts: 0,
                last_multicast: 0,
                asks: 1,
                asked_by: peer,
            });
            return false;
        };
        // Immediate repetitions by one peer do not count towards a crowd.
        let another = std::mem::replace(&mut entry.asked_by, peer) != peer;
        entry.asks = entry.asks.saturating_add(u32::from(another));
        let crowded = another && entry.asks == CROWD;
        let forever = entry.multicasts > 0 && planted(Bug::MulticastAnswersForever)
            || entry.answered && planted(Bug::UnicastAnswersOthers);
        let answered = entry.multicast_within(ignore, now) || forever;
        if answered {
            // The multicast in flight answers this NACK, so it starts no further round.
        } else if entry.askers.is_empty()
            || entry.answered && now.since(entry.requested_at) > coalesce
        {
            entry.askers.clear();
            entry.askers.push(peer);
            (entry.requested_at, entry.answered) = (now, false);
        } else if !entry.askers.contains(&peer) {
            // Askers beyond the highest threshold need not be distinguished.
            let _ = entry.askers.try_push(peer);
        }
        if crowded && now.since(self.wider_at) >= WIDENS_EVERY {
            (self.wider, self.wider_at) = ((self.wider + 1).min(WIDER_MAX), now);
        }
        answered
    }

    /// Returns the number of multicasts so far.
    pub(super) const fn multicasts(&self) -> u64 {
        self.multicasts
    }

    /// Returns the sequences of the multicasts after the first `seen`, as far as they are remembered.
    pub(super) fn multicasts_after(&self, seen: u64) -> impl Iterator<Item = Sequence> {
        let missed = usize::try_from(self.multicasts - seen).unwrap_or(usize::MAX);
        let from = self.last.len().saturating_sub(missed);
        self.last.range(from..).copied()
    }

    /// Returns how to answer a NACK for `sequence` that has been pending since the first `seen` multicasts,
    /// in a group of this many subscribers.
    pub(super) fn answer(&mut self, sequence: Sequence, subscribers: u32, seen: u64) -> Answer {
        let multicast = self.multicast;
        let threshold = if planted(Bug::MulticastForOne) {
            1
        } else if subscribers >= self.large_group {
            ASKERS_OF_LARGE_GROUP
        } else {
            (subscribers.div_ceil(8) as usize).clamp(2, ASKERS_MAX)
        };
        let Some(entry) = self.entry(sequence).filter(|_| multicast) else {
            return Answer::Unicast;
        };
        if entry.last_multicast > seen {
            Answer::Answered
        } else if entry.askers.len() >= threshold
            && (entry.multicasts < MULTICASTS_MAX || planted(Bug::MulticastWithoutCap))
        {
            Answer::Multicast
        } else {
            Answer::Unicast
        }
    }

    /// Records that `sequence` was sent to one asker.
    pub(super) fn sent_unicast(&mut self, sequence: Sequence) {
        if let Some(entry) = self.entry(sequence) {
            entry.answered = true;
        }
    }

    /// Records that `sequence` was sent to the group.
    pub(super) fn sent_multicast(&mut self, sequence: Sequence, now: Nanos) {
        self.multicasts += 1;
        match self.last.len() {
            // Like the table, the whole list is reserved at once.
            0 => self.last.reserve_exact(ENTRIES),
            ENTRIES => {
                self.last.pop_front();
            }
            _ => {}
        }
        self.last.push_back(sequence);
        let number = self.multicasts;
        if let Some(entry) = self.entry(sequence) {
            entry.answered = true;
            entry.multicast_at = now;
            entry.multicasts = entry.multicasts.saturating_add(1);
            entry.last_multicast = number;
            entry.askers.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Sequence = Sequence(7);

    fn log() -> RepairLog {
        RepairLog::new(&RepairConfig::default())
    }

    /// Returns how a NACK is answered that came after all multicasts.
    fn answer(log: &mut RepairLog, sequence: Sequence, subscribers: u32) -> Answer {
        log.answer(sequence, subscribers, log.multicasts())
    }

    fn us(us: u64) -> Nanos {
        Nanos::from_us(us)
    }

    #[test]
    fn first_nack_in_small_group_is_answered_by_unicast() {
        let mut log = log();
        log.ask(S, PeerId(1), us(0));
        assert_eq!(answer(&mut log, S, 8), Answer::Unicast);
    }

    #[test]
    fn nack_threshold_of_group_triggers_one_multicast() {
        let mut log = log();
        log.ask(S, PeerId(1), us(0));
        log.sent_unicast(S);
        log.ask(S, PeerId(1), us(1));
        assert_eq!(answer(&mut log, S, 8), Answer::Unicast, "the same asker");
        log.ask(S, PeerId(2), us(2));
        assert_eq!(answer(&mut log, S, 63), Answer::Unicast, "8 are needed");
        assert_eq!(answer(&mut log, S, 8), Answer::Multicast);
        log.sent_multicast(S, us(2));
        assert!(log.ask(S, PeerId(3), us(10)), "it is on its way");
        assert!(!log.ask(S, PeerId(3), us(18)));
        assert_eq!(answer(&mut log, S, 8), Answer::Unicast);
    }

    #[test]
    fn multicast_misser_counts_anew_within_bound() {
        let mut log = log();
        for round in 0..4u64 {
            let at = us(round * 100);
            for peer in 0..3 {
                log.ask(S, PeerId(peer), at);
            }
            let expected = if round < 3 {
                Answer::Multicast
            } else {
                Answer::Unicast
            };
            assert_eq!(answer(&mut log, S, 500), expected, "round {round}");
            log.sent_multicast(S, at);
            // A lone asker never gets more than a unicast.
            let later = at.after(us(50));
            log.ask(S, PeerId(9), later);
            assert_eq!(answer(&mut log, S, 500), Answer::Unicast);
            log.sent_unicast(S);
        }
    }

    #[test]
    fn hold_off_doubles_on_crowd_and_halves_after_quiet() {
        let mut log = log();
        let crowd = |log: &mut RepairLog, sequence: u64, at: Nanos, askers: u64| {
            for peer in 0..askers {
                log.ask(Sequence(sequence), PeerId(peer), at);
            }
        };
        let ms = Nanos::from_ms;
        crowd(&mut log, 1, ms(2), 31);
        assert_eq!(log.wider(), 0, "not quite a crowd");
        crowd(&mut log, 1, ms(3), 500);
        crowd(&mut log, 2, ms(3), 500);
        assert_eq!(log.wider(), 1, "both are of one time");
        for n in 0..10 {
            crowd(&mut log, 10 + n, ms(4 + n), 32);
        }
        assert_eq!(log.wider(), 4, "bounded");
        log.handle_timeout(ms(1_012));
        assert_eq!(log.wider(), 4);
        for (at, wider) in [(1_013, 3), (1_100, 3), (2_013, 2), (3_013, 1), (4_013, 0)] {
            log.handle_timeout(ms(at));
            assert_eq!(log.wider(), wider, "at {at} ms");
        }
        log.handle_timeout(ms(9_000));
        assert_eq!(log.wider(), 0);
    }

    #[test]
    fn askers_far_apart_in_time_are_not_of_one_loss() {
        let mut log = log();
        log.ask(S, PeerId(1), us(0));
        log.sent_unicast(S);
        log.ask(S, PeerId(2), us(6));
        assert_eq!(answer(&mut log, S, 8), Answer::Unicast);
    }

    #[test]
    fn large_group_answers_first_and_multicasts_third() {
        let mut log = log();
        log.ask(S, PeerId(1), us(0));
        assert_eq!(answer(&mut log, S, 500), Answer::Unicast);
        log.sent_unicast(S);
        log.ask(S, PeerId(2), us(4));
        assert_eq!(answer(&mut log, S, 500), Answer::Unicast);
        log.sent_unicast(S);
        log.ask(S, PeerId(3), us(5));
        assert_eq!(answer(&mut log, S, 500), Answer::Multicast);
    }

    #[test]
    fn displaced_sequence_or_disabled_log_gets_unicast() {
        let mut log = log();
        log.ask(S, PeerId(1), us(0));
        log.ask(S.plus(ENTRIES as u64), PeerId(1), us(0));
        assert_eq!(answer(&mut log, S, 500), Answer::Unicast);
        let mut off = RepairLog::new(&RepairConfig {
            multicast_repair: false,
            ..RepairConfig::default()
        });
        off.ask(S, PeerId(1), us(0));
        off.ask(S, PeerId(2), us(0));
        assert_eq!(answer(&mut off, S, 8), Answer::Unicast);
    }

    #[test]
    fn newer_sequence_displaces_older_repair_log_entry() {
        let mut log = log();
        let newer = S.plus(ENTRIES as u64);
        log.ask(S, PeerId(1), us(0));
        for peer in 1..=3 {
            log.ask(newer, PeerId(peer), us(0));
        }
        assert_eq!(answer(&mut log, newer, 500), Answer::Multicast);
    }

    #[test]
    fn nack_for_old_sequence_evicts_no_newer_entry() {
        let mut log = log();
        let newer = S.plus(ENTRIES as u64);
        for round in 0..3u64 {
            for peer in 0..3 {
                log.ask(newer, PeerId(peer), us(100 * round));
                log.ask(S, PeerId(peer), us(100 * round));
            }
            assert_eq!(answer(&mut log, S, 500), Answer::Unicast, "it has no place");
            assert_eq!(answer(&mut log, newer, 500), Answer::Multicast);
            log.sent_multicast(newer, us(100 * round));
        }
        for peer in 0..3 {
            log.ask(S, PeerId(peer), us(400));
            log.ask(newer, PeerId(peer), us(400));
        }
        assert_eq!(
            answer(&mut log, newer, 500),
            Answer::Unicast,
            "often enough"
        );
    }

    #[test]
    fn repair_log_intervals_include_last_microsecond() {
        let mut log = log();
        log.ask(S, PeerId(1), us(0));
        log.sent_unicast(S);
        log.ask(S, PeerId(2), us(5));
        assert_eq!(answer(&mut log, S, 8), Answer::Multicast, "of one loss");
        log.sent_multicast(S, us(5));
        assert!(log.ask(S, PeerId(3), us(20)));
        assert!(!log.ask(S, PeerId(3), us(21)));
        assert_eq!(answer(&mut log, S, 8), Answer::Unicast);
        // A group is large from 64 on.
        let mut log = RepairLog::new(&RepairConfig::default());
        for peer in 1..=3 {
            log.ask(S, PeerId(peer), us(0));
        }
        assert_eq!(answer(&mut log, S, 63), Answer::Unicast);
        assert_eq!(answer(&mut log, S, 64), Answer::Multicast);
    }

    #[test]
    fn send_of_colliding_sequence_keeps_repair_log_entry() {
        let other = S.plus(ENTRIES as u64);
        let mut log = log();
        for peer in 1..=3 {
            log.ask(S, PeerId(peer), us(0));
        }
        log.sent_multicast(other, us(0));
        log.sent_unicast(other);
        assert_eq!(answer(&mut log, S, 500), Answer::Multicast);
        log.sent_multicast(S, us(1));
        log.sent_unicast(S);
        assert!(log.ask(S, PeerId(4), us(2)));
        assert!(!log.ask(other, PeerId(4), us(2)));
        assert_eq!(answer(&mut log, other, 500), Answer::Unicast);
    }

    #[test]
    fn eighth_of_group_or_sixteen_make_multicast() {
        let enough = |subscribers: u32, askers: u64| {
            let mut log = RepairLog::new(&RepairConfig {
                large_group: 1_000,
                ..RepairConfig::default()
            });
            for peer in 0..askers {
                log.ask(S, PeerId(peer), us(1));
            }
            answer(&mut log, S, subscribers) == Answer::Multicast
        };
        for (subscribers, threshold) in [(1, 2), (16, 2), (17, 3), (40, 5), (128, 16), (900, 16)] {
            assert!(
                enough(subscribers, threshold),
                "{threshold} of {subscribers}"
            );
            assert!(!enough(subscribers, threshold - 1), "{subscribers}");
        }
        assert!(enough(900, 40), "more than are told apart");
    }

    #[test]
    fn hold_off_crowd_requires_distinct_peers() {
        let mut log = RepairLog::new(&RepairConfig::default());
        for n in 0..40 {
            for _ in 0..CROWD {
                log.ask(Sequence(n), PeerId(1), Nanos::from_ms(1 + 2 * n));
            }
        }
        assert_eq!(log.wider(), 0);
        for peer in 0..u64::from(CROWD) {
            log.ask(Sequence(50), PeerId(peer), Nanos::from_ms(200));
        }
        assert_eq!(log.wider(), 1);
    }

    #[test]
    fn request_before_a_multicast_is_answered_by_it() {
        let mut log = log();
        for sequence in 1..=3 {
            for peer in 1..=3 {
                log.ask(Sequence(sequence), PeerId(peer), us(1));
            }
        }
        log.sent_multicast(Sequence(2), us(1));
        assert_eq!(log.answer(Sequence(2), 8, 0), Answer::Answered);
        assert_eq!(log.answer(Sequence(1), 8, 0), Answer::Multicast);
        // A request since then counts anew.
        assert_eq!(answer(&mut log, Sequence(2), 8), Answer::Unicast);
        log.sent_multicast(Sequence(1), us(2));
        let after = |log: &RepairLog, seen| log.multicasts_after(seen).map(|it| it.0).collect();
        let all: Vec<u64> = after(&log, 0);
        assert_eq!(all, [2, 1]);
        assert_eq!((after(&log, 1), after(&log, 2)), (vec![1], vec![]));
        for sequence in 0..ENTRIES as u64 {
            log.sent_multicast(Sequence(sequence), us(3));
        }
        assert_eq!(after(&log, 0).len(), ENTRIES, "older ones are forgotten");
    }
}
