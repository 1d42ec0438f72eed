//! Who gets a repair, and how: by unicast to the asker, or once by multicast when many ask for the
//! same (docs/PROTOCOL.md §6.3). The policy is here and nowhere else, so that it can be tuned.
//!
//! Small groups: the first asker of a sequence is answered at once. When `max(2, ⌈G/8⌉)` of `G`
//! subscribers have asked for it within `repair_coalesce_us`, it is multicast, once. Large groups:
//! the first asker waits out `repair_coalesce_us`, and a second one is enough for a multicast. For
//! `sender_ignore_us` a multicast answers all that ask; who asks again later gets unicast.

use arrayvec::ArrayVec;

use crate::peers::PeerId;
use crate::repair_config::RepairConfig;
use crate::units::{Nanos, Sequence};

/// How many sequences are remembered. What is forgotten costs at most a needless unicast.
const ENTRIES: usize = 1024;
/// How many distinct askers are told apart: the highest threshold there is.
const ASKERS_MAX: usize = 16;

/// How to answer a NACK for one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Send it to the asker.
    Unicast,
    /// Send it to the group.
    Multicast,
    /// Nothing more to send: a multicast has just answered it.
    Answered,
    /// Ask again at this time.
    Wait(Nanos),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Asked,
    Unicast,
    Multicast { at: Nanos },
}

#[derive(Clone, Debug)]
struct Entry {
    sequence: Sequence,
    asked_at: Nanos,
    askers: ArrayVec<PeerId, ASKERS_MAX>,
    state: State,
}

/// What was asked for lately on one channel.
#[derive(Clone, Debug)]
pub struct RepairLog {
    entries: Vec<Option<Entry>>,
    coalesce: Nanos,
    ignore: Nanos,
    multicast: bool,
    large_group: u32,
}

impl RepairLog {
    /// An empty log.
    #[must_use]
    pub fn new(config: &RepairConfig) -> Self {
        Self {
            entries: vec![None; ENTRIES],
            coalesce: Nanos::from_us(config.repair_coalesce_us),
            ignore: Nanos::from_us(config.sender_ignore_us),
            multicast: config.multicast_repair,
            large_group: config.large_group,
        }
    }

    fn entry(&mut self, sequence: Sequence) -> &mut Option<Entry> {
        &mut self.entries[sequence.0 as usize % ENTRIES]
    }

    /// `peer` asks for `sequence`.
    pub fn ask(&mut self, sequence: Sequence, peer: PeerId, now: Nanos) {
        let coalesce = self.coalesce;
        let entry = self.entry(sequence);
        if let Some(entry) = entry.as_mut().filter(|e| e.sequence == sequence) {
            let counts = match entry.state {
                State::Asked => true,
                State::Unicast => now.since(entry.asked_at) <= coalesce,
                // It was multicast once; what comes now is answered one by one.
                State::Multicast { .. } => return,
            };
            if counts {
                if !entry.askers.contains(&peer) {
                    // More than the highest threshold need not be told apart.
                    let _ = entry.askers.try_push(peer);
                }
                return;
            }
        }
        let mut askers = ArrayVec::new();
        askers.push(peer);
        *entry = Some(Entry {
            sequence,
            asked_at: now,
            askers,
            state: State::Asked,
        });
    }

    /// How to answer one that asked for `sequence`, in a group of this many subscribers.
    pub fn answer(&mut self, sequence: Sequence, subscribers: u32, now: Nanos) -> Answer {
        let (coalesce, ignore, multicast) = (self.coalesce, self.ignore, self.multicast);
        let large = subscribers >= self.large_group;
        let threshold = if large {
            2
        } else {
            (subscribers.div_ceil(8) as usize).clamp(2, ASKERS_MAX)
        };
        let entry = self.entry(sequence).as_ref();
        let Some(entry) = entry.filter(|e| multicast && e.sequence == sequence) else {
            return Answer::Unicast;
        };
        match entry.state {
            State::Multicast { at } if now.since(at) <= ignore => Answer::Answered,
            State::Multicast { .. } => Answer::Unicast,
            _ if entry.askers.len() >= threshold => Answer::Multicast,
            State::Asked if large && now.since(entry.asked_at) < coalesce => {
                Answer::Wait(entry.asked_at.after(coalesce))
            }
            _ => Answer::Unicast,
        }
    }

    /// `sequence` was sent to one asker.
    pub fn sent_unicast(&mut self, sequence: Sequence) {
        if let Some(entry) = self.entry(sequence)
            && entry.sequence == sequence
            && entry.state == State::Asked
        {
            entry.state = State::Unicast;
        }
    }

    /// `sequence` was sent to the group.
    pub fn sent_multicast(&mut self, sequence: Sequence, now: Nanos) {
        if let Some(entry) = self.entry(sequence)
            && entry.sequence == sequence
        {
            entry.state = State::Multicast { at: now };
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

    fn us(us: u64) -> Nanos {
        Nanos::from_us(us)
    }

    #[test]
    fn the_first_asker_of_a_small_group_is_answered_at_once() {
        let mut log = log();
        log.ask(S, PeerId(1), us(0));
        assert_eq!(log.answer(S, 8, us(0)), Answer::Unicast);
    }

    #[test]
    fn when_enough_of_the_group_ask_it_is_multicast_once() {
        let mut log = log();
        log.ask(S, PeerId(1), us(0));
        log.sent_unicast(S);
        log.ask(S, PeerId(1), us(1));
        assert_eq!(log.answer(S, 8, us(1)), Answer::Unicast, "the same asker");
        log.ask(S, PeerId(2), us(2));
        assert_eq!(log.answer(S, 63, us(2)), Answer::Unicast, "8 are needed");
        assert_eq!(log.answer(S, 8, us(2)), Answer::Multicast);
        log.sent_multicast(S, us(2));
        log.ask(S, PeerId(3), us(10));
        assert_eq!(log.answer(S, 8, us(10)), Answer::Answered);
        log.ask(S, PeerId(3), us(18));
        assert_eq!(log.answer(S, 8, us(18)), Answer::Unicast);
    }

    #[test]
    fn askers_far_apart_in_time_are_not_of_one_loss() {
        let mut log = log();
        log.ask(S, PeerId(1), us(0));
        log.sent_unicast(S);
        log.ask(S, PeerId(2), us(6));
        assert_eq!(log.answer(S, 8, us(6)), Answer::Unicast);
    }

    #[test]
    fn in_a_large_group_the_first_asker_waits_for_a_second() {
        let mut log = log();
        log.ask(S, PeerId(1), us(0));
        assert_eq!(log.answer(S, 500, us(0)), Answer::Wait(us(5)));
        assert_eq!(log.answer(S, 500, us(5)), Answer::Unicast);
        log.ask(S, PeerId(2), us(4));
        assert_eq!(log.answer(S, 500, us(4)), Answer::Multicast);
    }

    #[test]
    fn what_is_forgotten_or_switched_off_is_answered_by_unicast() {
        let mut log = log();
        log.ask(S, PeerId(1), us(0));
        log.ask(S.plus(ENTRIES as u64), PeerId(1), us(0));
        assert_eq!(log.answer(S, 500, us(0)), Answer::Unicast);
        let mut off = RepairLog::new(&RepairConfig {
            multicast_repair: false,
            ..RepairConfig::default()
        });
        off.ask(S, PeerId(1), us(0));
        off.ask(S, PeerId(2), us(0));
        assert_eq!(off.answer(S, 8, us(0)), Answer::Unicast);
    }
}
