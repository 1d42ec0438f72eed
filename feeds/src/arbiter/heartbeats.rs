//! Heartbeats of sessions that are not followed: they wait until their session is, and are foreign
//! otherwise.
//!
//! A heartbeat opens no session, because it has no messages that show the format. The next session of
//! the venue begins with heartbeats, so they are no fault by themselves. They are foreign once the
//! current session brings new messages after the hold time, and with the end of the input.

use std::collections::VecDeque;

use tickcast_reliability::types::Nanos;

use super::protocol::{Listen, PacketHead, Protocol};
use super::refused::{FOREIGN, UNFOLLOWED};
use super::{Arbiter, Arrived};
use crate::source::PacketOrigin;

/// Heartbeats that wait at most. Of a session that goes on, the oldest are forgotten, because the later
/// ones are reported in any case.
const HEARTBEATS_MAX: usize = 4_096;

/// A heartbeat of a session that is not followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Heartbeat {
    pub(super) session: u128,
    /// The next sequence of the session.
    pub(super) next: u64,
    pub(super) arrived_at: Nanos,
    /// Origin and receive time.
    pub(super) of_packet: (PacketOrigin, Nanos),
}

/// Heartbeats in order of arrival.
#[derive(Clone, Debug, Default)]
pub(super) struct Heartbeats(VecDeque<Heartbeat>);

impl Heartbeats {
    /// Adds a heartbeat; returns the oldest one if there is no room for it, and nothing stands for it.
    pub(super) fn push(&mut self, heartbeat: Heartbeat) -> Option<Heartbeat> {
        let is_full = self.0.len() == HEARTBEATS_MAX;
        let oldest = is_full.then(|| self.0.pop_front()).flatten();
        self.0.push_back(heartbeat);
        oldest.filter(|it| it.session != heartbeat.session)
    }

    /// Returns the first one of a session.
    pub(super) fn first_of(&self, session: u128) -> Option<Heartbeat> {
        self.0.iter().find(|it| it.session == session).copied()
    }

    /// Forgets those of a session that is followed now.
    pub(super) fn follow(&mut self, session: u128) {
        self.0.retain(|it| it.session != session);
    }

    /// Takes those that came until then.
    fn take(&mut self, until: impl Fn(Nanos) -> bool) -> VecDeque<Heartbeat> {
        let due = self.0.partition_point(|it| until(it.arrived_at));
        let rest = self.0.split_off(due);
        std::mem::replace(&mut self.0, rest)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<P: Protocol> Arbiter<P> {
    /// Keeps a heartbeat until its session is followed.
    pub(super) fn wait_for_session(
        &mut self,
        arrived: Arrived<'_>,
        head: &PacketHead<P::Note>,
        out: &mut impl Listen<P>,
    ) {
        self.other_heartbeats += u64::from(self.is_between_sessions());
        self.is_plain = false;
        let heartbeat = Heartbeat {
            session: head.session,
            next: head.first,
            arrived_at: self.now,
            of_packet: arrived.of_packet(),
        };
        if let Some(oldest) = self.heartbeats.push(heartbeat) {
            self.refuse_heartbeats([oldest], out);
        }
    }

    /// Returns whether no session is open, so that the heartbeat of another one is a sign of the source's
    /// life. A stranger's must not hide that an open session is silent.
    pub(super) const fn is_between_sessions(&self) -> bool {
        self.session.is_none() || self.has_ended
    }

    /// Refuses the heartbeats after whose hold time the current session goes on; at the end, all.
    pub(super) fn settle_heartbeats(&mut self, is_end: bool, out: &mut impl Listen<P>) {
        if self.heartbeats.is_empty() {
            return;
        }
        let (now, hold) = (self.now, self.holding.session());
        let due = self.heartbeats.take(|at| is_end || now >= at.after(hold));
        self.refuse_heartbeats(due, out);
    }

    /// Drops heartbeats whose session is not followed.
    pub(super) fn refuse_heartbeats(
        &mut self,
        heartbeats: impl IntoIterator<Item = Heartbeat>,
        out: &mut impl Listen<P>,
    ) {
        for it in heartbeats {
            let reason = if it.next > 1 { UNFOLLOWED } else { FOREIGN };
            self.refuse(it.of_packet, 0, reason, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heartbeat(session: u128, at: u64) -> Heartbeat {
        let origin = PacketOrigin {
            line: 0,
            sender: None,
        };
        Heartbeat {
            session,
            next: 1,
            arrived_at: Nanos(at),
            of_packet: (origin, Nanos(at)),
        }
    }

    #[test]
    fn oldest_heartbeat_beyond_the_bound_is_returned() {
        let mut heartbeats = Heartbeats::default();
        for at in 0..HEARTBEATS_MAX as u64 {
            let session = u128::from(at > 0);
            assert_eq!(heartbeats.push(heartbeat(session, at)), None);
        }
        assert_eq!(heartbeats.push(heartbeat(1, 9_000)), Some(heartbeat(0, 0)));
        assert_eq!(
            heartbeats.push(heartbeat(1, 9_001)),
            None,
            "the same session"
        );
        assert_eq!(heartbeats.0.len(), HEARTBEATS_MAX);
        assert_eq!(heartbeats.first_of(1), Some(heartbeat(1, 2)));
        assert_eq!(heartbeats.first_of(0), None);
        heartbeats.follow(1);
        assert!(heartbeats.is_empty());
    }

    #[test]
    fn heartbeats_are_taken_up_to_a_time() {
        let mut heartbeats = Heartbeats::default();
        for at in [3, 5, 7] {
            heartbeats.push(heartbeat(at.into(), at));
        }
        heartbeats.follow(9);
        let taken = heartbeats.take(|at| at <= Nanos(5));
        assert_eq!(taken, [heartbeat(3, 3), heartbeat(5, 5)]);
        assert_eq!(heartbeats.take(|_| true), [heartbeat(7, 7)]);
        assert!(heartbeats.is_empty());
    }
}
