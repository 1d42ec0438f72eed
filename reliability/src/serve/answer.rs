//! Sending of answers: peers take turns, one datagram each, within the budgets
//! (docs/PROTOCOL.md §6.3).

use arrayvec::ArrayVec;

use super::{Destination, RepairCore, Served};
use crate::control::{FRAME_HEAD_LEN, Message, NackClass, RefusalReason};
use crate::planted::{Bug, planted};
use crate::record::words_as_bytes;
use crate::serve::channel::Channel;
use crate::serve::coalesce::Answer;
use crate::serve::in_flight::InFlight;
use crate::serve::peer::{Peer, PeerId, Role};
use crate::serve::token_bucket::TokenBucket;
use crate::types::{Nanos, Now, Sequence, SequenceRange};
use crate::wire::{RELAY_OFFSET, relay_flags};

impl RepairCore {
    pub(super) fn schedule_peer(&mut self, id: PeerId) {
        if let Some(peer) = self.peers.get_mut(&id)
            && peer.has_work()
        {
            peer.blocked_until = Nanos::ZERO;
            if !peer.in_round {
                peer.in_round = true;
                self.ready_peers.push_back(id);
            }
        }
    }

    pub(super) fn serve(&mut self, id: PeerId, now: Now, out: &mut Vec<u8>) -> Served {
        let Some(peer) = self.peers.get_mut(&id) else {
            return Served::Nothing;
        };
        if !peer.outbox.is_empty() {
            peer.in_flight.give(peer.outbox.len(), None);
            out.append(&mut peer.outbox);
            if let Role::Closing(reason) = &peer.role {
                let reason = reason.clone();
                self.remove(id, false, true, Some(reason));
            }
            return Served::Sent(Destination::Peer(id));
        }
        if peer.backlog >= self.config.backlog_pause_bytes {
            // `handle_backlog` puts the peer back into the queue.
            return Served::Nothing;
        }
        if write_status(peer, &self.channels, now, out) {
            return Served::Sent(Destination::Peer(id));
        }
        let mut until = Nanos::MAX;
        for _ in 0..peer.channels.len() * 2 {
            let Some(peer) = self.peers.get_mut(&id) else {
                return Served::Nothing;
            };
            peer.turn = (peer.turn + 1) % (peer.channels.len() * 2);
            let (at, class) = match peer.turn % 2 {
                0 => (peer.turn / 2, NackClass::Repair),
                _ => (peer.turn / 2, NackClass::Replay),
            };
            match self.serve_queue(id, at, class, now.monotonic, out) {
                Served::Sent(destination) => return Served::Sent(destination),
                Served::Blocked(time) => until = until.min(time),
                Served::Nothing => {}
            }
        }
        if until == Nanos::MAX {
            Served::Nothing
        } else {
            Served::Blocked(until)
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
        let of = &mut peer.channels[at];
        let channel = &mut self.channels[of.channel];
        let queue = match class {
            NackClass::Repair => &mut of.repair,
            NackClass::Replay => &mut of.replay,
        };
        let most = channel.ring.geometry().slot_len() + FRAME_HEAD_LEN;
        let Some(sequence) = queue.first() else {
            return Served::Nothing;
        };
        let mut floor = channel.floor();
        if planted(Bug::WrongSlotAnswered) {
            floor = Sequence::NONE;
        }
        if let Some(gone) = queue.take_below(floor) {
            return refuse_pending(channel, gone, (id, &mut peer.in_flight), out);
        }
        let answer = match class {
            NackClass::Repair => channel.log.answer(sequence, channel.subscribers),
            NackClass::Replay => Answer::Unicast,
        };
        let multicast = answer == Answer::Multicast;
        // Require credit for a whole slot before the copy, so that no copy is wasted.
        let buckets: [Option<&mut TokenBucket>; 2] = match class {
            NackClass::Replay => [Some(&mut self.joiners), None],
            NackClass::Repair if multicast => [Some(&mut self.repair), None],
            NackClass::Repair if planted(Bug::SubscriberBudgetForgotten) => {
                [Some(&mut self.repair), None]
            }
            NackClass::Repair => {
                let session = session.and_then(|session| self.sessions.get_mut(&session));
                let bucket = session.map(|session| &mut session.bucket);
                [Some(&mut self.repair), bucket]
            }
        };
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
            return refuse_pending(channel, gone, (id, &mut peer.in_flight), out);
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
            (peer.in_flight).give(out.len() - start, Some((at, sequence)));
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
            let (index, channel) = (of.channel, channel.id);
            self.answer_all(index, sequence);
            Served::Sent(Destination::Multicast(channel))
        } else {
            Served::Sent(Destination::Peer(id))
        }
    }

    /// Removes a multicast sequence from the queues of all waiting peers, however long they wait. A peer with
    /// so much unread output that it gets no datagrams keeps its request and gets its own copy later.
    fn answer_all(&mut self, index: usize, sequence: Sequence) {
        let mut answered = 0;
        for id in &self.ready_peers {
            let Some(peer) = self.peers.get_mut(id) else {
                continue;
            };
            let of = peer.channels.iter_mut().find(|of| of.channel == index);
            let Some(of) = of else { continue };
            answered += u64::from(of.repair.remove(sequence));
            if planted(Bug::NextAnsweredAsWell) {
                answered += u64::from(of.repair.remove(sequence.next()));
            }
        }
        let channel = &mut self.channels[index];
        channel.drop_pending(answered);
        channel.counters.answered_by_multicast.add(answered);
    }
}

/// Answers a peer's last PROGRESS on each channel, and returns whether there was one. On a blocked link,
/// that answer covers all earlier ones, because outdated STATUS messages would only delay repairs.
fn write_status(peer: &mut Peer, channels: &[Channel], now: Now, out: &mut Vec<u8>) -> bool {
    let start = out.len();
    for of in &mut peer.channels {
        if let Some(asked_at) = of.status_due.take() {
            let channel = &channels[of.channel];
            let heard = of.progress.filter(|it| it.epoch == channel.epoch);
            let heard = heard.map_or(Sequence::NONE, |it| it.heard);
            let status = channel.status(heard, asked_at, now);
            of.end_confirmed |= status.ended;
            Message::Status(status).write(channel.id, out);
        }
    }
    let written = out.len() - start;
    peer.in_flight.give(written, None);
    written > 0
}

/// Refuses pending sequences that the ring no longer holds.
fn refuse_pending(
    channel: &mut Channel,
    gone: SequenceRange,
    (peer, in_flight): (PeerId, &mut InFlight),
    out: &mut Vec<u8>,
) -> Served {
    channel.drop_pending(gone.len());
    channel.count_refused(RefusalReason::Window, gone.len());
    let refusal = channel.refusal(gone, RefusalReason::Window, 0);
    let start = out.len();
    Message::Refused(refusal).write(channel.id, out);
    in_flight.give(out.len() - start, None);
    Served::Sent(Destination::Peer(peer))
}
