//! The subscribers that an input waits for before its first message.

use std::sync::atomic::Ordering::Relaxed;

use tickcast_reliability::types::Nanos;

use crate::config::WaitForSubscribers;
use crate::state::Shared;

/// Interval between two looks for named subscribers.
const LOOK_EVERY: Nanos = Nanos::from_ms(10);

/// The subscribers that an input still waits for.
#[derive(Debug)]
pub(super) struct Awaited {
    subscribers: WaitForSubscribers,
    look_at: Nanos,
}

impl Awaited {
    /// Waits for these subscribers.
    pub(super) const fn new(subscribers: WaitForSubscribers) -> Self {
        let look_at = Nanos::ZERO;
        Self {
            subscribers,
            look_at,
        }
    }

    /// Returns whether they are all joined now and follow their channels.
    pub(super) fn are_here(&mut self, now: Nanos, shared: &Shared) -> bool {
        match &self.subscribers {
            WaitForSubscribers::Count(count) => shared.joined.load(Relaxed) >= *count,
            WaitForSubscribers::Names(_) if now < self.look_at => false,
            WaitForSubscribers::Names(names) => {
                self.look_at = now.after(LOOK_EVERY);
                // locks: before the first message only.
                shared.subscribers().follow(names)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::Arc;

    use tickcast_reliability::types::{ChannelId, Epoch, PeerOrigin};

    use super::*;

    const A: ChannelId = ChannelId(1);

    fn joined(shared: &Shared, peer: u64, name: &str, follows: bool) {
        let mut subscribers = shared.subscribers();
        let origin = PeerOrigin::V4(Ipv4Addr::LOCALHOST);
        subscribers.join((peer, origin), None, name, &[A]);
        subscribers.report(peer, A, |it| it.follows = follows);
        shared.joined.store(subscribers.following(), Relaxed);
    }

    #[test]
    fn strangers_do_not_begin_an_input_that_waits_for_names() {
        let (none, stop) = ((Vec::new(), Vec::new()), Arc::default());
        let shared = Shared::new("a".into(), Epoch(5), none.0, none.1, stop, Nanos::ZERO);
        let mut named = Awaited::new(WaitForSubscribers::Names(
            ["risk-a", "risk-b"].map(String::from).to_vec(),
        ));
        let mut counted = Awaited::new(WaitForSubscribers::Count(2));
        let mut now = Nanos::from_secs(1);
        let mut begin = |shared: &Shared| {
            now = now.after(LOOK_EVERY);
            [&mut named, &mut counted].map(|it| it.are_here(now, shared))
        };
        for peer in 0..20 {
            joined(&shared, peer, &format!("stranger-{peer}"), true);
        }
        assert_eq!(begin(&shared), [false, true]);
        joined(&shared, 100, "risk-a", true);
        joined(&shared, 101, "risk-b", false);
        assert_eq!(begin(&shared), [false, true], "it follows no channel yet");
        joined(&shared, 102, "risk-b", true);
        assert_eq!(begin(&shared), [true, true]);
        shared.subscribers().leave(100);
        assert_eq!(begin(&shared), [false, true]);
    }

    #[test]
    fn names_are_looked_for_once_an_interval() {
        let (none, stop) = ((Vec::new(), Vec::new()), Arc::default());
        let shared = Shared::new("a".into(), Epoch(5), none.0, none.1, stop, Nanos::ZERO);
        let mut named = Awaited::new(WaitForSubscribers::Names(vec!["risk".into()]));
        let at = Nanos::from_ms;
        assert!(!named.are_here(at(5), &shared));
        joined(&shared, 1, "risk", true);
        assert!(!named.are_here(at(14), &shared));
        assert!(named.are_here(at(15), &shared));
    }
}
