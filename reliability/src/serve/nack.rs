//! NACK handling: a NACK is split into the parts refused at once, each with its reason, and the parts
//! that are queued (docs/PROTOCOL.md §6.2).

use super::{
    AHEAD_RETRY_US, BUDGET_RETRY_US_MAX, REPLAY_RETRY_US, RETRY_AFTER_MS, RepairCore, RepairEvent,
    TOO_SLOW_RETRY_US,
};
use crate::control::{Message, NackClass, Progress, RefusalReason, RejectCode, Rejected};
use crate::planted::{Bug, planted};
use crate::serve::coalesce::{LOGGED_MAX, RepairLog};
use crate::serve::lane::Lane;
use crate::serve::peer::{Peer, Role, rejected};
use crate::serve::peer_id::PeerId;
use crate::types::{ChannelId, Epoch, Nanos, Now, Sequence, SequenceRange};

/// Work of one look-up in the repair log, in bytes of input that cost as much to read.
const LOOK_UP_WORK: usize = 4;
/// Bytes of an answer that cost as much as reading one byte.
const ANSWER_BYTES_PER_WORK: usize = 8;

/// The sender of a NACK, for the repair log. Sequences that are already pending are not logged again, so
/// repeated NACKs cost nothing.
struct NackBatch {
    asker: PeerId,
    at: Nanos,
    /// The rate at which the NACK may be answered.
    bytes_per_s: u64,
    /// Number of sequences of this NACK that may still be logged.
    left: u64,
    /// Logged sequences that a recent multicast has answered.
    answered: Vec<Sequence>,
}

impl NackBatch {
    fn note(&mut self, range: SequenceRange, log: &mut RepairLog) {
        for sequence in range.iter().take(self.left as usize) {
            if log.ask(sequence, self.asker, self.at) {
                self.answered.push(sequence);
            }
        }
        self.left = self.left.saturating_sub(range.len());
    }
}

impl RepairCore {
    /// Returns the index of a joined channel, in the core and in the peer. Naming a channel that the peer did
    /// not join is a protocol error.
    pub(super) fn joined(&mut self, peer: PeerId, channel: ChannelId) -> Option<(usize, usize)> {
        let state = self.peers.get(&peer)?;
        let found = state.channels.place_of(channel);
        let found = found.map(|at| (state.channels[at].channel, at));
        if found.is_none() {
            self.break_off(
                peer,
                format!("this connection did not join channel {channel}"),
            );
        }
        found
    }

    /// Handles a subscriber's PROGRESS. It may name unsealed sequences, if the subscriber believed an
    /// impostor.
    pub(super) fn progress(
        &mut self,
        now: Now,
        peer: PeerId,
        index: usize,
        at: usize,
        progress: Progress,
    ) {
        let channel = &self.channels[index];
        let Some(state) = self.peers.get_mut(&peer) else {
            return;
        };
        if progress.epoch != channel.epoch || !state.is_subscriber() {
            return;
        }
        let of = &mut state.channels[at];
        of.progress = Some(progress);
        let is_after_end = of.end_confirmed;
        let behind = channel.view().newest.since(progress.sequence);
        let slots = channel.ring.geometry().slots();
        if state.comes_to_be_slow(at, behind, slots, now.monotonic) {
            let event = RepairEvent::SlowSubscriber {
                peer,
                name: state.name().to_owned(),
                channel: channel.id,
                behind,
            };
            self.event(event);
        }
        if is_after_end {
            self.note_end(peer, at);
        }
    }

    pub(super) fn nack(
        &mut self,
        now: Now,
        peer: PeerId,
        channel: ChannelId,
        epoch: Epoch,
        class: NackClass,
        ranges: &[SequenceRange],
    ) {
        let Some((index, at)) = self.joined(peer, channel) else {
            return;
        };
        // A further connection carries one class of NACKs. Where a replay connection exists, replay belongs
        // there.
        let role = self.peers.get(&peer).map(|p| p.role().clone());
        let counters = &self.channels[index].counters;
        let (class, elsewhere) = match role {
            Some(Role::Replay { .. }) => (NackClass::Replay, false),
            Some(Role::Nack { .. }) => {
                counters.nack_link_messages.increment();
                (NackClass::Repair, false)
            }
            Some(Role::Subscriber { replay, .. }) => {
                (class, class == NackClass::Replay && replay.is_some())
            }
            Some(Role::Read { .. }) => {
                return self.break_off(peer, "a connection for READ must not carry NACKs".into());
            }
            _ => return,
        };
        counters.nack_messages.increment();
        let peer = if planted(Bug::AnsweredElsewhere) {
            self.asker(peer)
        } else {
            peer
        };
        let mut wants = NackBatch {
            asker: self.asker(peer),
            at: now.monotonic,
            bytes_per_s: match class {
                NackClass::Repair => self.config.subscriber_bytes_per_s,
                NackClass::Replay => self.replay_share(peer),
            },
            left: LOGGED_MAX,
            answered: Vec::new(),
        };
        for &range in ranges {
            // A refusal may have closed the connection of a peer that does not read.
            if self.peers.get(&peer).is_none_or(Peer::is_closing) {
                return;
            }
            let channel = &self.channels[index];
            let refusal = if epoch != channel.epoch {
                Some((RefusalReason::Epoch, 0))
            } else if range.first == Sequence::NONE {
                Some((RefusalReason::Malformed, 0))
            } else if elsewhere {
                Some((RefusalReason::Budget, AHEAD_RETRY_US))
            } else {
                None
            };
            if let Some((reason, retry_after_us)) = refusal {
                self.refuse_new(peer, index, range, reason, retry_after_us);
                continue;
            }
            let mut view = channel.view();
            if view.ended && planted(Bug::EndNotRepaired) {
                view.askable = view.askable.previous();
            }
            let below = SequenceRange::new(range.first, range.last.min(view.oldest.previous()));
            if let Some(below) = below {
                self.refuse_new(peer, index, below, RefusalReason::Window, 0);
            }
            let above = SequenceRange::new(range.first.max(view.askable.next()), range.last);
            if let Some(above) = above {
                self.refuse_new(peer, index, above, RefusalReason::Ahead, AHEAD_RETRY_US);
            }
            let held =
                SequenceRange::new(range.first.max(view.oldest), range.last.min(view.askable));
            let Some(held) = held else { continue };
            let Some(state) = self.peers.get(&peer) else {
                return;
            };
            let rest = state.output.in_flight.rest_of(at, held);
            let in_flight = held.len() - rest.map_or(0, |rest| rest.len());
            (self.channels[index].counters.nacks_duplicate).add(in_flight);
            if let Some(rest) = rest {
                self.queue(peer, index, at, class, rest, &mut wants);
            }
        }
        self.work += LOOK_UP_WORK * (LOGGED_MAX - wants.left) as usize;
        self.schedule(
            peer,
            match class {
                NackClass::Repair => Lane::Repair,
                NackClass::Replay => Lane::Replay,
            },
        );
    }

    /// Queues the part of a NACK range that the ring holds, and logs sequences that were not pending.
    /// Otherwise refuses the range.
    fn queue(
        &mut self,
        id: PeerId,
        index: usize,
        at: usize,
        class: NackClass,
        range: SequenceRange,
        wants: &mut NackBatch,
    ) {
        if planted(Bug::RefusedWithoutReason) && range.first.0.is_multiple_of(8) {
            let reason = RefusalReason::Budget;
            return self.refuse_new(id, index, range, reason, AHEAD_RETRY_US);
        }
        // A subscriber's connections share this bound, as they share the budget.
        let elsewhere = self.ranges_elsewhere(id, at, class);
        let replays_max = self.config.replays_per_address_max;
        let Some(peer) = self.peers.get_mut(&id) else {
            return;
        };
        // A peer that does not read takes its place when it reads again.
        let (origin, is_paused) = (peer.origin(), peer.output.is_paused());
        let Some(of) = peer.channels.get_mut(at) else {
            return;
        };
        let channel = &mut self.channels[index];
        if class == NackClass::Repair {
            self.work += LOOK_UP_WORK * channel.catch_up(of);
        }
        let queue = match class {
            NackClass::Repair => &mut of.repair,
            NackClass::Replay => &mut of.replay,
        };
        let rate = wants.bytes_per_s;
        let wanted = queue.sequences().saturating_add(range.len());
        if class == NackClass::Replay {
            let refusal = if channel.is_too_slow(rate, wanted, range.last) {
                Some((RefusalReason::TooSlow, TOO_SLOW_RETRY_US))
            } else if !(is_paused || self.origins.begin_replay(origin, id, replays_max)) {
                Some((RefusalReason::Budget, REPLAY_RETRY_US))
            } else {
                None
            };
            if let Some((reason, retry_after_us)) = refusal {
                self.refuse_new(id, index, range, reason, retry_after_us);
                return;
            }
        }
        let was_empty = queue.is_empty();
        let log = &mut channel.log;
        let on_new = |part| {
            if class == NackClass::Repair {
                wants.note(part, log);
            }
        };
        let ranges_max = (self.config.pending_ranges_max).saturating_sub(elsewhere);
        match queue.insert(range, ranges_max, on_new) {
            Some(added) => {
                channel.counters.nacked.add(added);
                channel.counters.nacks_duplicate.add(range.len() - added);
                channel.add_pending(added);
                for sequence in wants.answered.drain(..) {
                    queue.remove(sequence);
                    channel.drop_pending(1);
                    channel.counters.answered_by_multicast.increment();
                }
                let lane = match class {
                    NackClass::Repair => Lane::Repair,
                    NackClass::Replay => {
                        if was_empty {
                            peer.channels.begin_replay();
                        }
                        Lane::Replay
                    }
                };
                peer.channels.push_due(lane, at);
            }
            None => {
                let bytes =
                    (queue.sequences()).saturating_mul(channel.ring.geometry().slot_len() as u64);
                let wait_us = u128::from(bytes) * 1_000_000 / u128::from(rate.max(1));
                let wait_us = u64::try_from(wait_us).unwrap_or(u64::MAX);
                let retry_after_us = wait_us.clamp(AHEAD_RETRY_US, BUDGET_RETRY_US_MAX);
                self.refuse_new(id, index, range, RefusalReason::Budget, retry_after_us);
            }
        }
    }

    /// Returns the asker: the subscriber's owner connection, on whichever connection the NACK came.
    fn asker(&self, id: PeerId) -> PeerId {
        let session = self.peers.get(&id).and_then(Peer::session);
        let owner = session.and_then(|session| self.sessions.owner(session));
        owner.unwrap_or(id)
    }

    /// Returns the number of pending runs on the other connection of this session.
    fn ranges_elsewhere(&self, id: PeerId, at: usize, class: NackClass) -> usize {
        let owner = self.asker(id);
        let other = match self.peers.get(&owner).map(Peer::role) {
            Some(Role::Subscriber { nack, .. }) if owner == id => *nack,
            _ => Some(owner),
        };
        let other = other.filter(|other| class == NackClass::Repair && *other != id);
        let other = other.and_then(|other| self.peers.get(&other));
        // The channels have the same order on all connections of a session.
        let of = other.and_then(|other| other.channels.get(at));
        of.map_or(0, |of| of.repair.runs())
    }

    /// Returns the guaranteed rate of a replay of this connection, in bytes per second.
    fn replay_share(&self, peer: PeerId) -> u64 {
        let bytes_per_s = self.config.joiner_bytes_per_s;
        let origin = self.peers.get(&peer).map(Peer::origin);
        origin.map_or(bytes_per_s, |origin| {
            (self.origins).replay_share(bytes_per_s, origin, peer)
        })
    }

    /// Refuses sequences that were not pending.
    pub(super) fn refuse_new(
        &mut self,
        peer: PeerId,
        index: usize,
        range: SequenceRange,
        reason: RefusalReason,
        retry_after_us: u64,
    ) {
        let channel = &self.channels[index];
        // A correct and honest peer never asks for more than a ring holds. Larger claims are not counted,
        // because a few of them would exhaust the range of the counters.
        let count = range.len().min(channel.ring.geometry().slots());
        channel.counters.nacked.add(count);
        channel.count_refused(reason, count);
        let id = channel.id;
        let refusal = channel.refusal(range, reason, retry_after_us);
        self.send(peer, id, &Message::Refused(refusal));
    }

    /// Queues an answer that costs no budget. A peer that does not read its answers is closed.
    pub(super) fn send(&mut self, peer: PeerId, channel: ChannelId, message: &Message<'_>) {
        let Some(state) = self.peers.get_mut(&peer) else {
            return;
        };
        if state.is_closing() {
            return;
        }
        let (origin, output) = (state.origin(), &mut state.output);
        let before = output.unread();
        let len = output.answers.push(channel, message);
        self.work += len / ANSWER_BYTES_PER_WORK;
        let unread = output.unread();
        let of_origin = self.origins.unread(origin).saturating_add(len);
        let welcomes = matches!(message, Message::Welcome(_));
        if self.config.may_answer(unread, of_origin, welcomes) {
            self.origins.set_unread(origin, before, unread);
            return self.schedule(peer, Lane::Answers);
        }
        output.answers.undo(len);
        self.counters.overflow_disconnects.increment();
        let text = format!(
            "{unread} bytes of answers are unread, and {of_origin} of this host in all; read answers as they \
             arrive"
        );
        let reason = Rejected {
            retry_after_ms: RETRY_AFTER_MS,
            ..rejected(RejectCode::Overflow, text)
        };
        self.close(peer, reason);
    }
}
