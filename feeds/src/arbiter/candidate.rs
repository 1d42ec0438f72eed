//! Packets of another session: they wait until it is certain that the source goes on there.
//!
//! A candidate's first packet has messages that fill it exactly and are known. The candidate is
//! accepted when a second packet confirms it, or when the hold time passes without a packet of the
//! current session. A packet of the current session between two packets voids the first: heartbeats
//! and the end of the session too, and old messages. Only a line that brought no packet of the
//! candidate may still lag behind, so its old packets count once the line skew is over. Once two
//! packets confirm a candidate that waits for missing messages, only news voids it. The previous
//! session takes [`INSISTING`] packets, because the slower line's last packets are no change. Lines that
//! brought no packet of the candidate may bring more of the current session within the line skew, so it
//! waits for them.
//!
//! A source may begin with a packet whose session's name is damaged in one bit. The source then goes on in
//! the session that brings the same messages again, or the next ones.
//!
//! Heartbeats of the candidate wait with its packets, because they announce its messages. One right
//! behind its messages confirms it where nothing more can be awaited: at the end of the input, and when
//! a third session begins. In a file, message 1 of a session does so too. The news of slower lines refutes
//! nothing there. A confirmed candidate does not wait for missing messages any longer than there is room:
//! the current session is left then, and its missing messages are lost.

use std::collections::VecDeque;

use tickcast_reliability::types::Nanos;

use super::holding::Holding;
use super::protocol::{Blocks, Listen, PacketHead, Protocol};
use super::queue::{Held, UNDECIDED_BYTES_MAX, UNDECIDED_MAX};
use super::refused::FOREIGN;
use super::{Arbiter, Arrived, trails};
use crate::planted::{ArbiterBug, planted};
use crate::source::{Incident, PacketOrigin};

/// Packets in a row that confirm a candidate.
const CONFIRMING: u32 = 2;
/// Packets in a row that make the previous session current again.
pub(super) const INSISTING: u32 = 3;

/// The packets that wait for a decision.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    session: u128,
    since: Nanos,
    /// Packets since the last one that voided them.
    in_a_row: u32,
    /// Packets since the last one that was not on a slower line.
    in_its_row: u32,
    is_refuted: bool,
    /// Whether a heartbeat came right behind the messages.
    is_closed: bool,
    /// Heartbeats among the packets that count as signs of life.
    counted: u64,
    /// Its packets in order of arrival, and their length.
    packets: VecDeque<Held>,
    bytes: usize,
    /// The lines that brought one of them.
    brought_by: Vec<usize>,
}

impl Candidate {
    fn new(session: u128, since: Nanos) -> Self {
        Self {
            session,
            since,
            in_a_row: 0,
            in_its_row: 0,
            is_refuted: false,
            is_closed: false,
            counted: 0,
            packets: VecDeque::new(),
            bytes: 0,
            brought_by: Vec::new(),
        }
    }

    fn push(&mut self, held: Held) {
        self.bytes += held.bytes.len();
        if !self.brought_by.contains(&held.line) {
            self.brought_by.push(held.line);
        }
        self.packets.push_back(held);
    }

    fn pop(&mut self) -> Option<Held> {
        let held = self.packets.pop_front()?;
        self.bytes -= held.bytes.len();
        Some(held)
    }

    /// Returns whether more waits than allowed.
    fn exceeds(&self, holding: &Holding) -> bool {
        let packets_max = UNDECIDED_MAX.max(holding.packets_max as usize);
        let bytes_max = UNDECIDED_BYTES_MAX.max(holding.bytes_max as usize);
        self.packets.len() > packets_max || self.bytes > bytes_max
    }

    /// Returns whether its packets confirm it.
    fn is_confirmed(&self, is_previous: bool) -> bool {
        self.in_a_row >= needed(is_previous)
    }

    /// Returns whether it is to be followed rather than dropped, if nothing more can be awaited: slower
    /// lines do not refute it then, and its own heartbeat confirms one packet.
    fn is_preferred(&self, is_previous: bool) -> bool {
        self.in_its_row >= needed(is_previous)
            || (self.is_closed && !is_previous && !self.is_refuted)
    }

    /// Returns one beyond its messages.
    fn end(&self) -> Option<u64> {
        let messages = self.packets.iter().filter(|it| it.end > it.first);
        messages.map(|it| it.end).max()
    }

    /// Returns whether a line brought one of the packets.
    fn came_on(&self, line: usize) -> bool {
        self.brought_by.contains(&line)
    }
}

impl<P: Protocol> Arbiter<P> {
    /// Takes a packet of another session.
    pub(super) fn other_session(
        &mut self,
        arrived: Arrived<'_>,
        head: &PacketHead<P::Note>,
        blocks: P::Blocks<'_>,
        out: &mut impl Listen<P>,
    ) {
        // Without this, a packet would be judged before a candidate whose hold time is over.
        self.settle(false, out);
        if self.session == Some(head.session) {
            return self.own(arrived, *head, blocks, out);
        }
        if let Some(left_at) = self.left_at(head.session)
            && (head.first + head.count <= left_at || trails(head.sent_at, self.newest_sent_at))
        {
            return self.left_behind(arrived.line, head, left_at, out);
        }
        if head.count == 0 {
            return self.other_heartbeat(arrived, head, out);
        }
        if !self.is_sound(blocks) {
            return self.refuse(arrived.of_packet(), head.count, FOREIGN, out);
        }
        self.add(arrived, head, out);
    }

    /// Records that a packet of the current session came on a line.
    pub(super) fn refute(&mut self, line: usize, is_news: bool) {
        let Some(candidate) = &mut self.candidate else {
            return;
        };
        let is_previous = is_previous(candidate.session, self.previous);
        let lags_until = candidate.since.after(self.holding.wait());
        // News of a slower line only postpones the change.
        let lags = self.now <= lags_until && !candidate.came_on(line);
        if is_news || is_previous || (candidate.in_a_row < CONFIRMING && !lags) {
            candidate.in_a_row = 0;
            if !lags || is_previous {
                candidate.in_its_row = 0;
                candidate.is_refuted = true;
            }
        }
    }

    /// Accepts or gives up a candidate if that is due.
    pub(super) fn settle_candidate(&mut self, is_over: bool, out: &mut impl Listen<P>) {
        // Missing messages of the current session may still come.
        let Some(candidate) = self.candidate.as_ref().filter(|_| self.gap.is_none()) else {
            return;
        };
        let is_previous = is_previous(candidate.session, self.previous);
        // The end of the input does not shorten the time: a last packet may be a damaged one.
        let is_due = self.now >= candidate.since.after(self.holding.session());
        let is_alone = !is_previous && !candidate.is_refuted && is_due;
        let is_awaited = candidate.brought_by.len() < self.lines.len()
            && self.now < candidate.since.after(self.holding.wait());
        let is_followed = (candidate.is_confirmed(is_previous) && !is_awaited)
            || is_alone
            || (is_over && self.is_preferred(candidate));
        if is_followed || planted(ArbiterBug::SessionBelieved) {
            self.accept(out);
            if is_over {
                self.settle(true, out);
            }
        } else if is_over || (is_due && candidate.is_refuted) {
            self.give_up(out);
        }
    }

    /// Takes a heartbeat of another session.
    fn other_heartbeat(
        &mut self,
        arrived: Arrived<'_>,
        head: &PacketHead<P::Note>,
        out: &mut impl Listen<P>,
    ) {
        let next = head.first;
        let is_candidates = |it: &Candidate| it.session == head.session;
        if self.candidate.as_ref().is_some_and(is_candidates) {
            let is_counted = self.is_between_sessions();
            self.other_heartbeats += u64::from(is_counted);
            let held = self.held(arrived, next, next);
            if let Some(candidate) = &mut self.candidate {
                candidate.counted += u64::from(is_counted);
                candidate.is_closed |= candidate.end() == Some(next);
                candidate.push(held);
            }
            return self.bound(out);
        }
        self.wait_for_session(arrived, head, out);
    }

    fn add(&mut self, arrived: Arrived<'_>, head: &PacketHead<P::Note>, out: &mut impl Listen<P>) {
        let session = head.session;
        let is_third = |it: &&Candidate| it.session != session;
        if let Some(candidate) = self.candidate.as_ref().filter(is_third) {
            if self.is_preferred(candidate) {
                self.leave(out);
            } else {
                self.give_up(out);
            }
        }
        let held = self.held(arrived, head.first, head.first + head.count);
        let since = held.arrived_at;
        let candidate = (self.candidate).get_or_insert_with(|| Candidate::new(session, since));
        // Beyond that, copies make no difference.
        if candidate.in_a_row < INSISTING {
            let mut packets = candidate.packets.iter().filter(|it| it.end > it.first);
            let is_copy = packets.any(|it| (it.first, it.line) == (held.first, held.line));
            candidate.in_a_row += u32::from(!is_copy);
            candidate.in_its_row = candidate.in_its_row.saturating_add((!is_copy).into());
        }
        candidate.push(held);
        self.bound(out);
        self.settle(false, out);
    }

    /// Decides about a candidate whose packets exceed the room: without this, some of a session that is
    /// followed would be lost.
    fn bound(&mut self, out: &mut impl Listen<P>) {
        while let Some(candidate) = &self.candidate
            && candidate.exceeds(&self.holding)
        {
            if self.is_preferred(candidate) {
                self.leave(out);
            } else if let Some(oldest) = self.candidate.as_mut().and_then(Candidate::pop) {
                // Should the session be followed yet, these messages are a gap before its first one.
                self.drop_held(oldest, FOREIGN, out);
            }
        }
    }

    /// Leaves the current session for the candidate's. Messages that are still missing are lost.
    fn leave(&mut self, out: &mut impl Listen<P>) {
        self.release_due(true, out);
        self.accept(out);
    }

    /// Makes the candidate's session current.
    fn accept(&mut self, out: &mut impl Listen<P>) {
        let Some(candidate) = self.candidate.take() else {
            return;
        };
        self.heartbeats.follow(candidate.session);
        self.void_rerun(out);
        if self.is_joining {
            // No message was delivered: the source begins with this session.
            self.drop_far(out);
            self.begin_elsewhere(candidate.session);
        } else if self.is_renamed(&candidate) {
            self.session = Some(candidate.session);
        } else {
            self.change_session(&candidate, out);
        }
        // From here on, they are packets of their lines.
        self.other_heartbeats -= candidate.counted;
        for held in candidate.packets {
            if planted(ArbiterBug::SessionPacketsDropped) {
                continue;
            }
            self.take_held(held, out);
        }
    }

    /// Leaves the current session, and begins the run of another one.
    fn change_session(&mut self, candidate: &Candidate, out: &mut impl Listen<P>) {
        let left_at = self.left_at(candidate.session);
        let next = self.next;
        self.report_unknown_end(out);
        self.drop_far(out);
        self.begin_run(left_at.unwrap_or(1));
        let before = self.session.replace(candidate.session);
        self.previous = before.map(|before| (before, next));
        if planted(ArbiterBug::PreviousForgotten) {
            self.previous = None;
        }
        self.newest_sent_at = 0;
        let unnumbered = candidate.packets.front().is_some_and(|it| it.first == 0);
        self.is_unnumbered = left_at.is_none() && unnumbered;
        let next = self.next_position();
        out.incident(Incident::SessionChange { next });
    }

    /// Drops the packets of the candidate.
    fn give_up(&mut self, out: &mut impl Listen<P>) {
        let packets = self.candidate.take().map(|it| it.packets);
        for held in packets.unwrap_or_default() {
            self.drop_held(held, FOREIGN, out);
        }
    }

    /// Takes a packet that has waited to be confirmed.
    pub(super) fn take_held(&mut self, held: Held, out: &mut impl Listen<P>) {
        if let Ok((mut head, blocks)) = self.protocol.read(&held.bytes) {
            head.count = held.end - held.first;
            let arrived = Arrived {
                line: held.line,
                sender: held.sender,
                received_at: held.received_at,
                payload: &held.bytes,
            };
            if self.session == Some(head.session) {
                self.own(arrived, head, blocks, out);
            } else {
                self.other_session(arrived, &head, blocks, out);
            }
        }
        self.queue.recycle(held.bytes);
    }

    /// Drops a packet that has waited, and counts its messages.
    pub(super) fn drop_held(&mut self, held: Held, reason: Incident, out: &mut impl Listen<P>) {
        let origin = PacketOrigin {
            line: held.line as u8,
            sender: held.sender,
        };
        self.refuse(
            (origin, held.received_at),
            held.end - held.first,
            reason,
            out,
        );
        self.queue.recycle(held.bytes);
    }

    /// Returns the next sequence of a session, if that is the previous one.
    fn left_at(&self, session: u128) -> Option<u64> {
        self.previous
            .filter(|(previous, _)| *previous == session)
            .map(|(_, next)| next)
    }

    /// Returns whether a candidate is to be followed rather than dropped, if nothing more can be awaited.
    fn is_preferred(&self, candidate: &Candidate) -> bool {
        let is_previous = is_previous(candidate.session, self.previous);
        candidate.is_preferred(is_previous) || (!is_previous && self.is_beginning(candidate))
    }

    /// Returns whether a candidate's packet in a file begins a session, as far as nothing contradicts it. A
    /// packet of the current session whose name is damaged has other numbers, or the same messages.
    fn is_beginning(&self, candidate: &Candidate) -> bool {
        let Some(held) = candidate.packets.front() else {
            return false;
        };
        let is_other = |blocks: P::Blocks<'_>| {
            let known = self.recent.packet_of(held.first);
            known.is_none() || self.differing(held.first, &held.bytes, blocks, |_| known) > 0
        };
        self.holding.compares_alone
            && !candidate.is_refuted
            && held.first == 1
            && (self.protocol.read(&held.bytes)).is_ok_and(|(_, blocks)| is_other(blocks))
    }

    /// Returns whether the source began just now with a packet of the candidate's, one bit of whose name is
    /// damaged: the same messages came again, or the next ones.
    fn is_renamed(&self, candidate: &Candidate) -> bool {
        let name = self.session.filter(|_| self.previous.is_none());
        let is_like = name.is_some_and(|name| (name ^ candidate.session).count_ones() == 1);
        let Some((at, first, packet)) = self.recent.only().filter(|_| is_like) else {
            return false;
        };
        let is_same = |it: &Held| {
            let read = self.protocol.read(&it.bytes);
            let of_only = |_| Some((first, packet));
            let is_equal = |blocks| self.differing(first, &it.bytes, blocks, of_only) == 0;
            it.first == first && read.is_ok_and(|(_, blocks)| is_equal(blocks))
        };
        let mut packets = candidate.packets.iter().filter(|it| it.end > it.first);
        let begin = packets.clone().map(|it| it.first).min();
        candidate.since < at.after(self.holding.session())
            && (begin == Some(self.next) || packets.any(is_same))
    }

    /// Returns whether a packet's messages fill it exactly and are known.
    fn is_sound(&self, mut blocks: P::Blocks<'_>) -> bool {
        blocks
            .by_ref()
            .all(|message| self.protocol.is_known(message))
            && blocks.fault().is_none()
    }
}

const fn needed(is_previous: bool) -> u32 {
    if is_previous { INSISTING } else { CONFIRMING }
}

fn is_previous(session: u128, previous: Option<(u128, u64)>) -> bool {
    previous.is_some_and(|(previous, _)| session == previous)
}
