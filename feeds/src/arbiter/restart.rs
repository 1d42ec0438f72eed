//! A restart of the count within its session: the proof is in packets that lie before the next message.
//!
//! Where the venue stamps its packets, their times tell a new run from copies of the old one. Elsewhere a
//! heartbeat proves nothing, because a copy of an old one looks the same: [`HEARTBEATS_BEHIND`] in a row
//! claim a restart. Messages that continue there confirm the claim. Whatever goes on at the old position
//! voids it. Messages that were delivered before are no restart either way.
//!
//! Messages that nothing remembered can be compared with are no proof, and neither is a heartbeat with an old
//! stamp. They wait: [`INSISTING`] in a row restart the count, or the hold time of a session without anything
//! at the old position.

use super::candidate::INSISTING;
use super::protocol::{Listen, PacketHead, PacketKind, Protocol, RESEND_NS, trails};
use super::refused::report_fault;
use super::{Arbiter, Arrived};
use crate::planted::{ArbiterBug, planted};

/// Heartbeats in a row below the next sequence that a restarted count takes: fewer may be
/// stragglers.
const HEARTBEATS_BEHIND: u8 = 3;

/// The signs that the venue counts anew.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Claim {
    /// Heartbeats behind since the stream last went on.
    heartbeats: u8,
    /// The next message by the last one.
    next: u64,
}

impl Claim {
    /// Forgets the heartbeats, because the stream went on where it was.
    #[inline(always)]
    pub(super) const fn void(&mut self) {
        self.heartbeats = 0;
    }

    /// Adds a heartbeat. It begins another row where it lies before the last one.
    const fn add(&mut self, next: u64) {
        if next < self.next {
            self.heartbeats = 0;
        }
        self.heartbeats = self.heartbeats.saturating_add(1);
        self.next = next;
    }

    /// Returns the next message of the heartbeats, if a packet of messages continues there.
    pub(super) fn continued(&self, first: u64) -> Option<u64> {
        let is_claimed = self.heartbeats >= HEARTBEATS_BEHIND;
        (is_claimed && first >= self.next).then_some(self.next)
    }
}

/// Whether a packet shows that the venue counts anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Restart {
    /// It is an old packet.
    No,
    /// Further packets decide.
    Perhaps,
    /// Nothing else explains it.
    Certain,
}

impl<P: Protocol> Arbiter<P> {
    /// Returns whether a packet before the next message shows that the venue restarted its count.
    pub(super) fn restarts(
        &mut self,
        arrived: Arrived<'_>,
        head: &PacketHead<P::Note>,
        blocks: P::Blocks<'_>,
    ) -> Restart {
        if self.is_resuming && self.is_after_stragglers(head) {
            return Restart::Certain;
        }
        let is_stamped = head.sent_at > 0;
        if is_stamped && head.count == 0 {
            return self.heartbeat_restarts(head);
        }
        let is_sign = match is_stamped {
            true => self.is_stamped_anew(head),
            false => self.is_claimed(arrived.line, head),
        };
        if !is_sign {
            return Restart::No;
        }
        let known = |sequence| self.recent.packet_of(sequence);
        if known(head.first).is_some() {
            return match self.differing(head.first, arrived.payload, blocks, known) {
                0 => Restart::No,
                _ => Restart::Certain,
            };
        }
        match head.sent_at > self.newest_sent_at {
            true => Restart::Certain,
            false if self.queue.rerun.takes(head.first) => Restart::Perhaps,
            false => Restart::No,
        }
    }

    /// Returns whether a stamped heartbeat shows a restart: it precedes the first message of a new count.
    fn heartbeat_restarts(&self, head: &PacketHead<P::Note>) -> Restart {
        let is_early = head.sent_at < self.newest_sent_at;
        if head.first != 1 || trails(head.sent_at, self.newest_sent_at) {
            return Restart::No;
        }
        match (is_early, self.queue.rerun.is_empty()) {
            (false, _) => Restart::Certain,
            // The venue's clock was set, or it is a copy.
            (true, true) => Restart::Perhaps,
            (true, false) => Restart::No,
        }
    }

    /// Returns whether the stamp of a packet of messages says that it is of a new count.
    fn is_stamped_anew(&self, head: &PacketHead<P::Note>) -> bool {
        let (sent_at, newest) = (head.sent_at, self.newest_sent_at);
        // After a resumption, the packet may be one of the slower line.
        let is_later = newest > 0 && sent_at > newest.saturating_add(RESEND_NS);
        let is_earlier = sent_at < newest && !trails(sent_at, newest);
        is_later || (is_earlier && !self.queue.rerun.is_empty() && self.is_behind(head))
    }

    /// Returns whether heartbeats without stamps claimed a restart that this packet of messages continues.
    fn is_claimed(&mut self, line: usize, head: &PacketHead<P::Note>) -> bool {
        // A slower line's packet lies behind the others, and not behind its own messages.
        if !self.lines[line].is_beyond(head.first) || head.kind == PacketKind::End {
            return false;
        }
        if head.count == 0 {
            self.claim.add(head.first);
            return false;
        }
        self.is_behind(head) && self.claim.continued(head.first).is_some()
    }

    /// Returns whether all messages of a packet lie before the next one.
    const fn is_behind(&self, head: &PacketHead<P::Note>) -> bool {
        head.first + head.count <= self.next
    }

    /// Holds a packet of a count that perhaps began anew.
    pub(super) fn hold_rerun(
        &mut self,
        arrived: Arrived<'_>,
        head: &PacketHead<P::Note>,
        out: &mut impl Listen<P>,
    ) {
        let held = self.held(arrived, head.first, head.first + head.count);
        self.queue.rerun.push(held);
        self.settle(false, out);
    }

    /// Starts to count anew if the packets that wait show so by now.
    pub(super) fn settle_rerun(&mut self, out: &mut impl Listen<P>) {
        let session = self.holding.session();
        let first = self.queue.rerun.packets.first();
        let is_due = first.is_some_and(|it| self.now >= it.arrived_at.after(session));
        if is_due || self.queue.rerun.in_a_row >= INSISTING {
            self.confirm_rerun(out);
        }
    }

    /// Starts to count anew at the packets that wait for that, if any do.
    pub(super) fn confirm_rerun(&mut self, out: &mut impl Listen<P>) {
        let packets = std::mem::take(&mut self.queue.rerun).packets;
        if let Some(oldest) = packets.first()
            && let Ok((head, _)) = self.protocol.read(&oldest.bytes)
        {
            self.leave_run(oldest.line, &head, out);
        }
        for held in packets {
            self.take_held(held, out);
        }
    }

    /// Takes the packets that wait for old ones, because the stream went on where it was.
    pub(super) fn void_rerun(&mut self, out: &mut impl Listen<P>) {
        for held in std::mem::take(&mut self.queue.rerun).packets {
            if let Ok((mut head, blocks)) = self.protocol.read(&held.bytes) {
                head.count = held.end - held.first;
                self.heard(held.line, &head, out);
                report_fault(blocks.clone(), out);
                self.compare(held.first, &held.bytes, blocks, out);
                self.old(held.line, held.first, held.end, out);
            }
            self.queue.recycle(held.bytes);
        }
    }

    /// Ends the run for one that begins with a packet of this line, unless a candidate's session does so.
    pub(super) fn leave_run(
        &mut self,
        line: usize,
        head: &PacketHead<P::Note>,
        out: &mut impl Listen<P>,
    ) {
        self.refute(line, false);
        self.settle(true, out);
        if self.session == Some(head.session) {
            self.restart(head, out);
        }
    }

    /// Returns whether a packet comes too late to be of the run that was resumed. The slower lines
    /// bring the rest of what was delivered soon after its first packet.
    fn is_after_stragglers(&mut self, head: &PacketHead<P::Note>) -> bool {
        if !self.is_behind(head) || head.kind == PacketKind::End {
            return false;
        }
        let since = *self.behind_since.get_or_insert(self.now);
        self.now > since.after(self.holding.stragglers()) && !planted(ArbiterBug::ResumeSwallows)
    }
}
