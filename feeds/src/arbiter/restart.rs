//! A restart of the count within its session: the proof is in packets that lie before the next message.
//!
//! Where the venue stamps its packets, their times tell a new run from copies of the old one. Elsewhere a
//! heartbeat proves nothing, because a copy of an old one looks the same: [`HEARTBEATS_BEHIND`] in a row
//! claim a restart. Messages that continue there confirm the claim. Whatever goes on at the old position
//! voids it. Messages that were delivered before are no restart either way.

use super::protocol::{PacketHead, PacketKind, Protocol, RESEND_NS, trails};
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

impl<P: Protocol> Arbiter<P> {
    /// Returns whether a packet before the next message shows that the venue restarted its count.
    pub(super) fn restarts(
        &mut self,
        arrived: Arrived<'_>,
        head: &PacketHead<P::Note>,
        blocks: P::Blocks<'_>,
    ) -> bool {
        if self.is_resuming && self.is_after_stragglers(head) {
            return true;
        }
        let (first, sent_at, newest) = (head.first, head.sent_at, self.newest_sent_at);
        if sent_at > 0 && head.count == 0 {
            return first == 1 && !trails(sent_at, newest);
        }
        let is_new = if sent_at > 0 {
            // After a resumption, the packet may be one of the slower line.
            newest > 0 && sent_at > newest.saturating_add(RESEND_NS)
        } else if !self.lines[arrived.line].is_beyond(first) || head.kind == PacketKind::End {
            // A slower line's packet lies behind the others, and not behind its own messages.
            false
        } else if head.count == 0 {
            self.claim.add(first);
            false
        } else {
            first + head.count <= self.next && self.claim.continued(first).is_some()
        };
        is_new && !self.is_copy(first, arrived.payload, blocks)
    }

    /// Returns whether a packet comes too late to be of the run that was resumed. The slower lines
    /// bring the rest of what was delivered soon after its first packet.
    fn is_after_stragglers(&mut self, head: &PacketHead<P::Note>) -> bool {
        if head.first + head.count > self.next || head.kind == PacketKind::End {
            return false;
        }
        let since = *self.behind_since.get_or_insert(self.now);
        self.now > since.after(self.holding.stragglers()) && !planted(ArbiterBug::ResumeSwallows)
    }

    /// Returns whether old messages of a packet are those which were delivered, as far as these are
    /// remembered.
    fn is_copy(&self, first: u64, packet: &[u8], blocks: P::Blocks<'_>) -> bool {
        let known = |sequence| self.recent.packet_of(sequence);
        known(first).is_some() && self.differing(first, packet, blocks, known) == 0
    }
}
