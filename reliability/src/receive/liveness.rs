//! Whether the publisher lives, and whether its multicast reaches us (docs/PROTOCOL.md §5.5).
//!
//! Silence is measured against the interval that the publisher announced. Three states are kept
//! apart: stale, dead, and multicast that is lost on its way.

use serde::{Deserialize, Serialize};

use crate::delivery::Event;
use crate::planted::{Bug, planted};
use crate::types::{Nanos, ReceiverCounters};

/// While multicast is silent, its groups are joined anew this often.
const REJOIN_EVERY: Nanos = Nanos::from_ms(200);

/// Limits of silence.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct LivenessLimits {
    /// The shortest silence that counts as stale, however short the announced interval.
    pub stale_min: Nanos,
    /// The silence of multicast and repair connection together that counts as dead.
    pub dead: Nanos,
}

/// A change of the publisher's state as seen from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LivenessChange {
    /// Multicast is silent for three announced intervals.
    Stale,
    /// Multicast is heard again.
    Recovered,
    /// The publisher continues, but its multicast does not reach us.
    MulticastLost,
    /// Multicast reaches us again.
    MulticastRestored,
    /// Every path is silent for long.
    Dead,
}

/// The silence that an application knows of. After the end of the session no change is reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Silence {
    /// Nothing is heard by multicast.
    pub stale: bool,
    /// The publisher continues all the same.
    pub multicast_lost: bool,
}

/// The state of one channel's publisher as seen from here, and the requests that follow from its
/// silence: join the groups anew, build the repair connection anew.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Liveness {
    limits: LivenessLimits,
    multicast_at: Nanos,
    /// When anything was last heard on any path.
    word_at: Nanos,
    interval: Nanos,
    silence: Silence,
    dead: bool,
    /// The silence that was reported to the application.
    reported: Silence,
    /// Whether the groups should be joined anew, and when that is due next.
    rejoin: bool,
    rejoin_at: Nanos,
    /// Whether the repair connection is silent as well, so that it should be built anew.
    link_silent: bool,
}

impl Liveness {
    /// Starts as if everything had just been heard.
    #[must_use]
    pub(crate) fn new(limits: LivenessLimits, now: Nanos) -> Self {
        Self {
            limits,
            multicast_at: now,
            word_at: now,
            interval: Nanos::ZERO,
            silence: Silence::default(),
            dead: false,
            reported: Silence::default(),
            rejoin: false,
            rejoin_at: now,
            link_silent: false,
        }
    }

    /// Another stream begins, and with it the time of silence. The reported silence holds until
    /// something is heard.
    pub(crate) const fn restart(&mut self, now: Nanos) {
        (self.multicast_at, self.word_at, self.dead) = (now, now, false);
        self.silence = self.reported;
    }

    /// Takes over the state of another receiver of the channel, so that the application hears of the
    /// end of a silence that was reported.
    pub(crate) const fn take_over(&mut self, before: Self, now: Nanos) {
        *self = Self {
            rejoin: self.rejoin,
            rejoin_at: self.rejoin_at,
            link_silent: self.link_silent,
            ..before
        };
        self.restart(now);
    }

    /// Notes a datagram that came by multicast. Returns at most one change; where multicast had been
    /// lost, that it is restored.
    #[inline]
    pub(crate) fn heard_multicast(&mut self, now: Nanos) -> Option<LivenessChange> {
        self.multicast_at = now;
        self.word_at = now;
        if !self.silence.stale {
            return None;
        }
        self.dead = false;
        match std::mem::take(&mut self.silence).multicast_lost {
            true => Some(LivenessChange::MulticastRestored),
            false => Some(LivenessChange::Recovered),
        }
    }

    /// Notes the longest time until the publisher is heard next, as it announced.
    pub(crate) const fn announced(&mut self, interval: Nanos) {
        self.interval = interval;
    }

    /// Notes a message on the repair connection. `ahead`: the publisher has sent datagrams that were
    /// not heard by multicast.
    pub(crate) fn heard_repair(&mut self, ahead: bool, now: Nanos) -> Option<LivenessChange> {
        self.word_at = now;
        self.dead = false;
        if self.silence.stale && ahead && !self.silence.multicast_lost {
            self.silence.multicast_lost = true;
            return Some(LivenessChange::MulticastLost);
        }
        None
    }

    /// Notes a WELCOME: the publisher lives and the repair connection speaks, whatever multicast does.
    pub(crate) const fn heard_welcome(&mut self, now: Nanos) {
        self.word_at = now;
        self.dead = false;
        self.link_silent = false;
    }

    /// The publisher would be dead, but its repair connection is up and may be half open. Asks for a
    /// new connection, unless the session has ended, and starts the time of silence over.
    pub(crate) const fn suspect_link(&mut self, ended: bool, now: Nanos) {
        self.heard_welcome(now);
        self.link_silent = !ended;
    }

    /// Checks the clock. Returns at most one change; call again until there is none.
    pub(crate) fn check(&mut self, now: Nanos) -> Option<LivenessChange> {
        if !self.silence.stale && now >= self.stale_at() {
            self.silence.stale = true;
            return Some(LivenessChange::Stale);
        }
        // Never dead before stale, because the publisher may have announced a long silence.
        let stale = self.silence.stale;
        if stale && !self.dead && now >= self.dead_at() && !planted(Bug::DeadNeverTold) {
            self.dead = true;
            return Some(LivenessChange::Dead);
        }
        None
    }

    /// Returns when [`Liveness::check`] finds a change if nothing is heard until then.
    #[must_use]
    pub(crate) fn next_check(&self) -> Nanos {
        match (self.silence.stale, self.dead) {
            (false, _) => self.stale_at(),
            (true, false) => self.dead_at(),
            (true, true) => Nanos::MAX,
        }
    }

    /// Emits the events of a change, counts it, and remembers that it was reported.
    #[cold]
    pub(crate) fn report(
        &mut self,
        change: LivenessChange,
        now: Nanos,
        counters: &ReceiverCounters,
        mut emit: impl FnMut(Event),
    ) {
        match change {
            LivenessChange::Stale => {
                self.reported.stale = true;
                self.rejoin_at = now.after(REJOIN_EVERY);
                emit(Event::Stale);
            }
            LivenessChange::Recovered if planted(Bug::RecoveredNotEmitted) => {}
            LivenessChange::Recovered => {
                self.reported = Silence::default();
                emit(Event::Recovered);
            }
            LivenessChange::MulticastLost => {
                self.reported.multicast_lost = true;
                counters.multicast_lost.increment();
                self.rejoin_at = now;
                emit(Event::MulticastLost);
            }
            LivenessChange::MulticastRestored => {
                self.reported = Silence::default();
                emit(Event::MulticastRestored);
                // An application that stopped at `Stale` waits for `Recovered`.
                emit(Event::Recovered);
            }
            LivenessChange::Dead => emit(Event::PublisherDead),
        }
    }

    /// Asks to join the groups anew, if multicast is silent and that is due.
    pub(crate) fn rejoin_if_due(&mut self, now: Nanos) {
        if self.silence.stale && now >= self.rejoin_at {
            self.rejoin = !planted(Bug::RejoinForgotten);
            self.rejoin_at = now.after(REJOIN_EVERY);
        }
    }

    /// Returns when the groups are to be joined anew if multicast stays silent.
    #[must_use]
    pub(crate) const fn next_rejoin(&self) -> Nanos {
        match self.silence.stale {
            true => self.rejoin_at,
            false => Nanos::MAX,
        }
    }

    /// Returns once whether the groups should be joined anew.
    pub(crate) const fn take_rejoin(&mut self) -> bool {
        std::mem::replace(&mut self.rejoin, false)
    }

    /// Returns once whether the repair connection should be built anew.
    pub(crate) const fn take_link_silent(&mut self) -> bool {
        std::mem::replace(&mut self.link_silent, false)
    }

    /// The interval that the publisher announced last.
    #[must_use]
    pub(crate) const fn interval(&self) -> Nanos {
        self.interval
    }

    /// Returns whether nothing came by multicast for three announced intervals.
    #[must_use]
    pub(crate) const fn is_stale(&self) -> bool {
        self.silence.stale
    }

    /// Returns whether every path has been silent for long.
    #[must_use]
    pub(crate) const fn is_dead(&self) -> bool {
        self.dead
    }

    /// The silence as it is now, reported or not.
    #[must_use]
    pub(crate) const fn silence(&self) -> Silence {
        self.silence
    }

    /// The silence that was reported to the application.
    #[must_use]
    pub(crate) const fn reported(&self) -> Silence {
        self.reported
    }

    fn stale_at(&self) -> Nanos {
        self.multicast_at
            .after(self.interval.times(3).max(self.limits.stale_min))
    }

    fn dead_at(&self) -> Nanos {
        self.word_at.after(self.limits.dead)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: LivenessLimits = LivenessLimits {
        stale_min: Nanos(30),
        dead: Nanos(1000),
    };

    #[test]
    fn silence_is_measured_against_the_announced_interval() {
        let mut liveness = Liveness::new(LIMITS, Nanos(0));
        assert_eq!(liveness.check(Nanos(29)), None);
        assert_eq!(liveness.next_check(), Nanos(30));
        liveness.announced(Nanos(20));
        assert_eq!(liveness.check(Nanos(59)), None);
        assert_eq!(liveness.check(Nanos(60)), Some(LivenessChange::Stale));
        assert_eq!(liveness.check(Nanos(60)), None);
        assert_eq!(
            liveness.heard_multicast(Nanos(70)),
            Some(LivenessChange::Recovered)
        );
    }

    /// Reports a change and returns the events.
    fn events(liveness: &mut Liveness, change: Option<LivenessChange>, now: u64) -> Vec<Event> {
        let (counters, mut events) = (ReceiverCounters::default(), Vec::new());
        let change = change.expect("a change");
        liveness.report(change, Nanos(now), &counters, |event| events.push(event));
        let lost = u64::from(change == LivenessChange::MulticastLost);
        assert_eq!(counters.multicast_lost.get(), lost);
        events
    }

    #[test]
    fn other_stream_starts_with_reported_silence() {
        let mut liveness = Liveness::new(LIMITS, Nanos(0));
        let stale = liveness.check(Nanos(30));
        assert_eq!(events(&mut liveness, stale, 30), [Event::Stale]);
        let lost = liveness.heard_repair(true, Nanos(40));
        assert_eq!(events(&mut liveness, lost, 40), [Event::MulticastLost]);
        assert_eq!(liveness.check(Nanos(1_040)), Some(LivenessChange::Dead));
        let reported = liveness.reported();
        assert!(reported.stale && reported.multicast_lost);
        liveness.restart(Nanos(2_000));
        assert_eq!(liveness.silence(), reported);
        assert_eq!(liveness.check(Nanos(2_999)), None, "not dead yet");
        let restored = liveness.heard_multicast(Nanos(2_999));
        let both = [Event::MulticastRestored, Event::Recovered];
        assert_eq!(events(&mut liveness, restored, 2_999), both);
        assert_eq!(liveness.reported(), Silence::default());
        liveness.restart(Nanos(2_000));
        assert_eq!(liveness.heard_multicast(Nanos(2_000)), None);
        assert_eq!(liveness.check(Nanos(2_029)), None);
        assert_eq!(liveness.check(Nanos(2_030)), Some(LivenessChange::Stale));
        assert_eq!(liveness.heard_repair(false, Nanos(2_030)), None);
        assert_eq!(liveness.next_check(), Nanos(3_030));
    }

    #[test]
    fn unreported_silence_is_forgotten_at_restart() {
        let mut liveness = Liveness::new(LIMITS, Nanos(0));
        assert_eq!(liveness.check(Nanos(30)), Some(LivenessChange::Stale));
        liveness.restart(Nanos(40));
        assert!(!liveness.is_stale());
        assert_eq!(liveness.check(Nanos(69)), None);
        assert_eq!(liveness.check(Nanos(70)), Some(LivenessChange::Stale));
    }

    #[test]
    fn next_receiver_recovers_from_reported_silence() {
        let mut before = Liveness::new(LIMITS, Nanos(0));
        before.announced(Nanos(20));
        let stale = before.check(Nanos(60));
        assert_eq!(events(&mut before, stale, 60), [Event::Stale]);
        before.suspect_link(false, Nanos(60));
        let mut next = Liveness::new(LIMITS, Nanos(100));
        next.take_over(before, Nanos(100));
        assert!(next.is_stale() && !next.take_link_silent());
        assert_eq!(
            (next.interval(), next.next_check()),
            (Nanos(20), Nanos(1_100))
        );
        assert_eq!(next.next_rejoin(), Nanos(100), "as a new receiver");
        let recovered = next.heard_multicast(Nanos(110));
        assert_eq!(events(&mut next, recovered, 110), [Event::Recovered]);
    }

    #[test]
    fn silent_groups_are_rejoined_at_intervals() {
        let mut liveness = Liveness::new(LIMITS, Nanos(0));
        liveness.rejoin_if_due(Nanos(10));
        assert!(!liveness.take_rejoin(), "multicast is heard");
        assert_eq!(liveness.next_rejoin(), Nanos::MAX);
        let stale = liveness.check(Nanos(30));
        assert_eq!(events(&mut liveness, stale, 30), [Event::Stale]);
        let due = Nanos(30).after(REJOIN_EVERY);
        assert_eq!(liveness.next_rejoin(), due);
        liveness.rejoin_if_due(Nanos(due.0 - 1));
        assert!(!liveness.take_rejoin());
        liveness.rejoin_if_due(due);
        assert!(liveness.take_rejoin() && !liveness.take_rejoin());
        assert_eq!(liveness.next_rejoin(), due.after(REJOIN_EVERY));
        // Lost multicast is a reason to join at once.
        let lost = liveness.heard_repair(true, Nanos(due.0 + 1));
        assert_eq!(
            events(&mut liveness, lost, due.0 + 1),
            [Event::MulticastLost]
        );
        liveness.rejoin_if_due(Nanos(due.0 + 1));
        assert!(liveness.take_rejoin());
    }

    #[test]
    fn silent_link_is_built_anew_unless_session_ended() {
        for ended in [false, true] {
            let mut liveness = Liveness::new(LIMITS, Nanos(0));
            assert_eq!(liveness.check(Nanos(2_000)), Some(LivenessChange::Stale));
            assert_eq!(liveness.check(Nanos(2_000)), Some(LivenessChange::Dead));
            liveness.suspect_link(ended, Nanos(2_000));
            assert!(!liveness.is_dead());
            assert_eq!(liveness.next_check(), Nanos(3_000));
            assert_eq!(liveness.take_link_silent(), !ended);
            assert!(!liveness.take_link_silent());
        }
        let mut liveness = Liveness::new(LIMITS, Nanos(0));
        liveness.suspect_link(false, Nanos(10));
        liveness.heard_welcome(Nanos(20));
        assert!(!liveness.take_link_silent(), "it speaks again");
    }

    #[test]
    fn multicast_is_lost_only_when_publisher_advanced() {
        let mut liveness = Liveness::new(LIMITS, Nanos(0));
        assert_eq!(
            liveness.heard_repair(true, Nanos(10)),
            None,
            "not silent for long enough"
        );
        assert_eq!(liveness.check(Nanos(30)), Some(LivenessChange::Stale));
        assert_eq!(liveness.heard_repair(false, Nanos(31)), None);
        let lost = liveness.heard_repair(true, Nanos(32));
        assert_eq!(lost, Some(LivenessChange::MulticastLost));
        assert_eq!(liveness.heard_repair(true, Nanos(33)), None, "told once");
        assert_eq!(
            liveness.check(Nanos(1032)),
            None,
            "the repair path keeps it alive"
        );
        let restored = liveness.heard_multicast(Nanos(1040));
        assert_eq!(restored, Some(LivenessChange::MulticastRestored));
    }

    #[test]
    fn dead_comes_after_stale_when_every_path_is_silent() {
        let mut liveness = Liveness::new(LIMITS, Nanos(0));
        assert_eq!(liveness.check(Nanos(2000)), Some(LivenessChange::Stale));
        assert_eq!(liveness.check(Nanos(2000)), Some(LivenessChange::Dead));
        assert_eq!(liveness.check(Nanos(2000)), None);
        assert_eq!(liveness.next_check(), Nanos::MAX);
    }

    #[test]
    fn welcome_or_message_revives_dead_and_restarts_clock() {
        for word in [
            |liveness: &mut Liveness, now| liveness.heard_welcome(now),
            |liveness: &mut Liveness, now| {
                assert_eq!(liveness.heard_repair(false, now), None);
            },
        ] {
            let mut liveness = Liveness::new(LIMITS, Nanos(0));
            assert_eq!(liveness.check(Nanos(999)), Some(LivenessChange::Stale));
            assert_eq!(liveness.check(Nanos(999)), None);
            assert_eq!(liveness.next_check(), Nanos(1000));
            assert_eq!(liveness.check(Nanos(1000)), Some(LivenessChange::Dead));
            word(&mut liveness, Nanos(2000));
            assert!(liveness.is_stale(), "of multicast nothing was heard");
            assert_eq!(liveness.next_check(), Nanos(3000));
            assert_eq!(liveness.check(Nanos(2999)), None);
            assert_eq!(liveness.check(Nanos(3000)), Some(LivenessChange::Dead));
        }
    }

    #[test]
    fn multicast_alone_proves_both_and_is_news_only_after_silence() {
        let mut liveness = Liveness::new(LIMITS, Nanos(0));
        assert_eq!(liveness.heard_multicast(Nanos(20)), None);
        assert_eq!(
            (liveness.next_check(), liveness.is_stale()),
            (Nanos(50), false)
        );
        assert_eq!(liveness.check(Nanos(2000)), Some(LivenessChange::Stale));
        assert_eq!(liveness.check(Nanos(2000)), Some(LivenessChange::Dead));
        assert_eq!(
            liveness.heard_multicast(Nanos(2001)),
            Some(LivenessChange::Recovered)
        );
        assert_eq!(liveness.heard_multicast(Nanos(2002)), None);
        assert_eq!(liveness.check(Nanos(2040)), Some(LivenessChange::Stale));
        assert_eq!(liveness.check(Nanos(3001)), None);
        assert_eq!(liveness.check(Nanos(3002)), Some(LivenessChange::Dead));
        liveness.announced(Nanos(7));
        assert_eq!(liveness.interval(), Nanos(7));
    }
}
