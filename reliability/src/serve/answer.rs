//! Sending of answers: peers take turns, one datagram each, within the budgets
//! (docs/PROTOCOL.md §6.3).

use arrayvec::ArrayVec;

use super::{Destination, RepairCore, Served};
use crate::control::{FRAME_HEAD_LEN, Message, NackClass, RefusalReason};
use crate::planted::{Bug, planted};
use crate::record::words_as_bytes;
use crate::serve::channel::Channel;
use crate::serve::coalesce::Answer;
use crate::serve::lane::Lane;
use crate::serve::output::Output;
use crate::serve::peer::Role;
use crate::serve::peer_id::PeerId;
use crate::serve::turns::Place;
use crate::types::{Nanos, Now, Sequence, SequenceRange};
use crate::wire::{RELAY_OFFSET, relay_flags};

/// Bytes of answers without budget that one turn sends, about as many as a datagram has. A longer answer is a
/// turn of its own.
const ANSWERS_MAX: usize = 1_500;
/// Requests that one turn drops because a multicast has answered them.
const ANSWERED_MAX: u64 = 64;

impl RepairCore {
    /// Gives a connection a place in the order of turns, if it has output of this kind and no place yet.
    pub(super) fn schedule(&mut self, id: PeerId, lane: Lane) {
        if let Some(peer) = self.peers.get_mut(&id)
            && peer.begins_to_wait(lane)
        {
            self.lanes.turns_mut(lane).push(Place {
                origin: peer.origin(),
                owner: peer.owner(),
                peer: id,
            });
        }
    }

    /// Sends some answers or one datagram to a connection, or one datagram to the group.
    pub(super) fn serve(&mut self, id: PeerId, lane: Lane, now: Now, out: &mut Vec<u8>) -> Served {
        let Some(peer) = self.peers.get_mut(&id) else {
            return Served::Nothing;
        };
        peer.end_wait(lane);
        let (origin, output) = (peer.origin(), &mut peer.output);
        if !output.answers.is_empty() {
            let before = output.unread();
            output.take(ANSWERS_MAX, out);
            (self.origins).set_unread(origin, before, output.unread());
            if output.answers.is_empty()
                && let Role::Closing(reason) = peer.role()
            {
                let reason = reason.clone();
                self.remove(id, false, true, Some(reason));
            }
            return Served::Sent(Destination::Peer(id));
        }
        let (bytes, of_origin) = (output.backlog(), self.origins.unread(origin));
        if !self.config.may_send(bytes, of_origin) {
            // `RepairInput::Backlog` gives the connection a turn again.
            // A replay that its peer does not read takes no share of those that others read.
            output.set_paused(true);
            self.origins.end_replay(origin, id);
            return Served::Nothing;
        }
        let class = match lane {
            Lane::Answers => return self.serve_status(id, now, out),
            Lane::Repair => NackClass::Repair,
            Lane::Replay => NackClass::Replay,
        };
        while let Some(peer) = self.peers.get_mut(&id)
            && let Some(at) = peer.channels.pop_due(lane)
        {
            let served = self.serve_queue(id, at, class, now.monotonic, out);
            self.settle(id, at, lane);
            if !matches!(served, Served::Nothing) {
                return served;
            }
        }
        Served::Nothing
    }

    /// Keeps a channel of a connection among those that wait for repair or replay, if anything is pending.
    fn settle(&mut self, id: PeerId, at: usize, lane: Lane) {
        let Some(peer) = self.peers.get_mut(&id) else {
            return;
        };
        let Some(of) = peer.channels.get(at) else {
            return;
        };
        let is_empty = match lane {
            Lane::Answers => return,
            Lane::Repair => of.repair.is_empty(),
            Lane::Replay => of.replay.is_empty(),
        };
        if !is_empty {
            peer.channels.push_due(lane, at);
        } else if lane == Lane::Replay && peer.channels.end_replay() {
            self.origins.end_replay(peer.origin(), id);
        }
    }

    fn serve_queue(
        &mut self,
        id: PeerId,
        at: usize,
        class: NackClass,
        now: Nanos,
        out: &mut Vec<u8>,
    ) -> Served {
        let Some(peer) = self.peers.get_mut(&id) else {
            return Served::Nothing;
        };
        let session = peer.session();
        let (of, output) = (&mut peer.channels[at], &mut peer.output);
        let channel = &mut self.channels[of.channel];
        let queue = match class {
            NackClass::Repair => &mut of.repair,
            NackClass::Replay => &mut of.replay,
        };
        let most = channel.ring.geometry().slot_len() + FRAME_HEAD_LEN;
        let (mut answer, mut answered) = (Answer::Unicast, 0);
        while class == NackClass::Repair
            && let Some(first) = queue.first()
        {
            answer = (channel.log).answer(first, channel.subscribers, of.multicasts_seen);
            if answer != Answer::Answered || answered >= ANSWERED_MAX {
                break;
            }
            queue.pop();
            answered += 1;
            if planted(Bug::NextAnsweredAsWell) {
                answered += u64::from(queue.remove(first.next()));
            }
        }
        if answered > 0 {
            channel.count_answered_by_multicast(answered);
        }
        let Some(sequence) = queue.first() else {
            return Served::Nothing;
        };
        if answer == Answer::Answered {
            return Served::Passed;
        }
        let mut floor = channel.floor();
        if planted(Bug::WrongSlotAnswered) {
            floor = Sequence::NONE;
        }
        if let Some(gone) = queue.take_below(floor) {
            return refuse_pending(channel, gone, (id, output), out);
        }
        let multicast = answer == Answer::Multicast;
        // Require credit for a whole slot before the copy, so that no copy is wasted.
        let theirs = match class {
            NackClass::Repair if !multicast && !planted(Bug::SubscriberBudgetForgotten) => {
                session.and_then(|session| self.sessions.bucket_mut(session))
            }
            _ => None,
        };
        let buckets = [Some(self.budgets.of(class)), theirs];
        let mut blocked = Nanos::ZERO;
        let mut charged = buckets.into_iter().flatten().collect::<ArrayVec<_, 2>>();
        for bucket in &mut charged {
            if !bucket.has(now, most) {
                blocked = blocked.max(bucket.available_at(most));
            }
        }
        if blocked > Nanos::ZERO && !planted(Bug::BudgetIgnored) {
            return Served::Blocked(blocked);
        }
        let Ok(len) = channel.ring.copy(sequence, &mut self.scratch) else {
            queue.pop();
            channel.counters.lapped_copies.increment();
            let gone = SequenceRange::one(sequence);
            return refuse_pending(channel, gone, (id, output), out);
        };
        let bytes = &words_as_bytes(&self.scratch)[..len];
        let start = out.len();
        let counters = &channel.counters;
        let datagram = if multicast {
            out.extend_from_slice(bytes);
            channel.log.sent_multicast(sequence, now);
            start
        } else {
            Message::Datagram(bytes).write(channel.id, out);
            channel.log.sent_unicast(sequence);
            output
                .in_flight
                .give(out.len() - start, Some((at, sequence)));
            start + FRAME_HEAD_LEN
        };
        out[datagram + RELAY_OFFSET] |= relay_flags::RETRANSMITTED;
        let sent = out.len() - start;
        if class == NackClass::Replay && planted(Bug::JoinersUncharged) {
            charged.clear();
        }
        for bucket in charged {
            bucket.take(now, sent);
        }
        match (class, multicast) {
            (NackClass::Replay, _) => &counters.replay_bytes,
            (_, true) => &counters.multicast_repair_bytes,
            (_, false) => &counters.repair_bytes,
        }
        .add(sent as u64);
        if multicast {
            let counted = !planted(Bug::MulticastRepairUncounted);
            counters.answered_by_multicast.add(counted.into());
        } else {
            counters.answered.increment();
        }
        queue.pop();
        channel.drop_pending(1);
        if multicast {
            Served::Sent(Destination::Multicast(channel.id))
        } else {
            Served::Sent(Destination::Peer(id))
        }
    }

    /// Answers a peer's last PROGRESS on the channel whose turn it is. On a blocked link, that answer covers
    /// all earlier ones, because outdated STATUS messages would only delay repairs.
    fn serve_status(&mut self, id: PeerId, now: Now, out: &mut Vec<u8>) -> Served {
        while let Some(peer) = self.peers.get_mut(&id)
            && let Some(at) = peer.channels.pop_due(Lane::Answers)
        {
            let of = &mut peer.channels[at];
            let Some(requested_at) = of.status_due.take() else {
                continue;
            };
            let channel = &self.channels[of.channel];
            let heard = of.progress.filter(|it| it.epoch == channel.epoch);
            let heard = heard.map_or(Sequence::NONE, |it| it.heard);
            let status = channel.status(heard, requested_at, now);
            of.end_confirmed |= status.ended;
            let start = out.len();
            Message::Status(status).write(channel.id, out);
            peer.output.in_flight.give(out.len() - start, None);
            self.note_end(id, at);
            return Served::Sent(Destination::Peer(id));
        }
        Served::Nothing
    }
}

/// Refuses pending sequences that the ring no longer holds.
fn refuse_pending(
    channel: &mut Channel,
    gone: SequenceRange,
    (peer, output): (PeerId, &mut Output),
    out: &mut Vec<u8>,
) -> Served {
    channel.drop_pending(gone.len());
    channel.count_refused(RefusalReason::Window, gone.len());
    let refusal = channel.refusal(gone, RefusalReason::Window, 0);
    let start = out.len();
    Message::Refused(refusal).write(channel.id, out);
    output.in_flight.give(out.len() - start, None);
    Served::Sent(Destination::Peer(peer))
}
