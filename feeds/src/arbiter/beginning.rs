//! The beginning of a source: no session is followed yet.
//!
//! A packet of messages begins it. A heartbeat alone shows no format, and may be a stranger's. It waits until
//! messages of its session come, or another heartbeat. The source is joined where the first one says.

use super::heartbeats::Heartbeat;
use super::protocol::{Listen, PacketHead, Protocol, is_exact};
use super::{Arbiter, Arrived};

impl<P: Protocol> Arbiter<P> {
    /// Returns whether a session is the one that is followed; while none is, it may be.
    #[cold]
    pub(super) fn may_follow(&self, session: u128) -> bool {
        self.session.is_none_or(|it| it == session)
    }

    /// Returns whether a source may begin with a packet: nothing is at stake, so one that was cut
    /// will do.
    pub(super) fn may_begin(&self, mut blocks: P::Blocks<'_>) -> bool {
        let is_known = blocks.next().is_some_and(|it| self.protocol.is_known(it));
        is_known || is_exact(blocks)
    }

    /// Takes a heartbeat while no session is followed.
    pub(super) fn early_heartbeat(
        &mut self,
        arrived: Arrived<'_>,
        head: PacketHead<P::Note>,
        blocks: P::Blocks<'_>,
        out: &mut impl Listen<P>,
    ) {
        if self.heartbeats.first_of(head.session).is_some() {
            return self.begin(arrived, head, blocks, out);
        }
        self.wait_for_session(arrived, &head, out);
    }

    /// Returns the line of the heartbeat that came before its session began, and where the source is
    /// joined by that; 0 if that is too far to be believed. From then on, it is a packet of its line.
    pub(super) fn joined_at(&mut self, session: u128) -> Option<(usize, u64)> {
        let Heartbeat {
            next, of_packet, ..
        } = self.heartbeats.first_of(session)?;
        self.heartbeats.follow(session);
        self.other_heartbeats -= 1;
        let joined_at = if self.is_far(next) { 0 } else { next };
        Some((of_packet.0.line.into(), joined_at))
    }
}
