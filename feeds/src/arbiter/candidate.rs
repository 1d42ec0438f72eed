//! Packets of another session: they wait until it is certain that the source goes on there.
//!
//! A candidate's first packet has messages that fill it exactly and are known. The candidate is
//! accepted when a second packet confirms it, or when the hold time passes without a packet of the
//! current session. A packet of the current session between two packets voids the first: heartbeats
//! and the end of the session too, and old messages. Only a line that brought no packet of the
//! candidate may still lag behind, so its old packets count once the line skew is over. Once two
//! packets confirm a candidate that waits for missing messages, only news voids it. The previous
//! session takes [`INSISTING`] packets, because the slower line's last packets are no change.

use tickcast_reliability::types::Nanos;

use super::protocol::{Blocks, Listen, PacketHead, Protocol};
use super::queue::{Held, UNDECIDED_MAX};
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
    in_a_row: u32,
    is_refuted: bool,
    packets: Vec<Held>,
}

impl Candidate {
    /// Returns whether a line brought one of the packets.
    fn came_on(&self, line: usize) -> bool {
        self.packets.iter().any(|it| it.line == line)
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
        if let Some(left_at) = self.left_at(head.session)
            && (head.first + head.count <= left_at || trails(head.sent_at, self.newest_sent_at))
        {
            return self.left_behind(arrived.line, head, left_at, out);
        }
        // A heartbeat announces a session that has not begun.
        if head.count == 0 {
            self.announcements += 1;
            return;
        }
        if !self.is_sound(blocks) {
            return self.refuse(arrived.of_packet(), head.count, FOREIGN, out);
        }
        self.add(arrived, head, out);
    }

    /// Records that a packet of the current session came on a line.
    pub(super) fn refute(&mut self, line: usize, is_news: bool) {
        let previous = self.previous;
        let stragglers_until = |it: &Candidate| it.since.after(self.holding.wait());
        if let Some(candidate) = &mut self.candidate
            && (is_news
                || is_previous(candidate.session, previous)
                || (candidate.in_a_row < CONFIRMING
                    && (candidate.came_on(line) || self.now > stragglers_until(candidate))))
        {
            candidate.in_a_row = 0;
            candidate.is_refuted = true;
        }
    }

    /// Accepts or gives up a candidate if that is due.
    pub(super) fn settle_candidate(&mut self, is_over: bool, out: &mut impl Listen<P>) {
        // Missing messages of the current session may still come.
        let Some(candidate) = self.candidate.as_ref().filter(|_| self.gap.is_none()) else {
            return;
        };
        let is_previous = is_previous(candidate.session, self.previous);
        let needed = if is_previous { INSISTING } else { CONFIRMING };
        // The end of the input does not shorten the time: a last packet may be a damaged one.
        let is_due = self.now >= candidate.since.after(self.holding.session());
        let is_alone = !is_previous && !candidate.is_refuted && is_due;
        if candidate.in_a_row >= needed || is_alone || planted(ArbiterBug::SessionBelieved) {
            self.accept(out);
            if is_over {
                self.settle(true, out);
            }
        } else if is_over || (is_due && candidate.is_refuted) {
            self.give_up(out);
        }
    }

    fn add(&mut self, arrived: Arrived<'_>, head: &PacketHead<P::Note>, out: &mut impl Listen<P>) {
        let session = head.session;
        if self
            .candidate
            .as_ref()
            .is_some_and(|it| it.session != session)
        {
            self.give_up(out);
        }
        let held = self.held(arrived, head.first, head.first + head.count);
        let candidate = self.candidate.get_or_insert_with(|| Candidate {
            session,
            since: held.arrived_at,
            in_a_row: 0,
            is_refuted: false,
            packets: Vec::new(),
        });
        let mut packets = candidate.packets.iter();
        let is_copy = packets.any(|it| (it.first, it.line) == (held.first, held.line));
        candidate.in_a_row += u32::from(!is_copy);
        if candidate.packets.len() < UNDECIDED_MAX {
            candidate.packets.push(held);
        } else {
            self.drop_held(held, FOREIGN, out);
        }
        self.settle(false, out);
    }

    /// Makes the candidate's session current.
    fn accept(&mut self, out: &mut impl Listen<P>) {
        let Some(candidate) = self.candidate.take() else {
            return;
        };
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
        let unnumbered = candidate.packets.first().is_some_and(|it| it.first == 0);
        self.is_unnumbered = left_at.is_none() && unnumbered;
        let next = self.next_position();
        out.incident(Incident::SessionChange { next });
        for held in candidate.packets {
            if planted(ArbiterBug::SessionPacketsDropped) {
                continue;
            }
            self.take_held(held, out);
        }
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
            self.own(arrived, head, blocks, out);
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

    /// Returns whether a packet's messages fill it exactly and are known.
    fn is_sound(&self, mut blocks: P::Blocks<'_>) -> bool {
        blocks
            .by_ref()
            .all(|message| self.protocol.is_known(message))
            && blocks.fault().is_none()
    }
}

fn is_previous(session: u128, previous: Option<(u128, u64)>) -> bool {
    previous.is_some_and(|(previous, _)| session == previous)
}
