//! Is the publisher there, and does its multicast reach us? Silence is measured against the
//! interval that the publisher announced itself; dead is told apart from stale, and both from
//! multicast that is lost on its way (docs/PROTOCOL.md §5.5).

use serde::{Deserialize, Serialize};

use crate::delivery::Event;
use crate::planted::{Bug, planted};
use crate::receive::lines::LineChange;
use crate::receive::{REJOIN_EVERY, Receiver};
use crate::types::Nanos;

/// Limits of silence.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct LivenessLimits {
    /// Never stale before this long a silence, however short the announced interval.
    pub stale_min: Nanos,
    /// Dead after this long a silence of multicast and repair path together.
    pub dead: Nanos,
}

/// What changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LivenessChange {
    /// Silent for three announced intervals.
    Stale,
    /// Heard again by multicast.
    Fresh,
    /// The publisher goes on, but multicast does not reach us.
    MulticastLost,
    /// Multicast reaches us again.
    MulticastRestored,
    /// Silent on every path for long.
    Dead,
}

/// What an application was told of silence: not all that happens is told, after an end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Silence {
    /// That nothing is heard by multicast.
    pub stale: bool,
    /// And that the publisher goes on all the same.
    pub multicast_lost: bool,
}

/// The state of one channel's publisher as seen from here.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Liveness {
    limits: LivenessLimits,
    multicast_at: Nanos,
    word_at: Nanos,
    interval: Nanos,
    stale: bool,
    multicast_lost: bool,
    dead: bool,
}

impl Liveness {
    /// Starts as if everything had just been heard.
    #[must_use]
    pub(crate) const fn new(limits: LivenessLimits, now: Nanos) -> Self {
        Self {
            limits,
            multicast_at: now,
            word_at: now,
            interval: Nanos::ZERO,
            stale: false,
            multicast_lost: false,
            dead: false,
        }
    }

    /// Another stream begins, and with it the time of silence; what was `told` of the silence
    /// before holds until something is heard.
    pub(crate) const fn restart(&mut self, told: Silence, now: Nanos) {
        (self.multicast_at, self.word_at, self.dead) = (now, now, false);
        (self.stale, self.multicast_lost) = (told.stale, told.multicast_lost);
    }

    /// Something came by multicast. Tells up to one change; if multicast had been lost, that it is
    /// restored.
    #[inline]
    pub(crate) fn heard_multicast(&mut self, now: Nanos) -> Option<LivenessChange> {
        self.multicast_at = now;
        self.word_at = now;
        if !self.stale {
            return None;
        }
        self.stale = false;
        self.dead = false;
        if std::mem::take(&mut self.multicast_lost) {
            Some(LivenessChange::MulticastRestored)
        } else {
            Some(LivenessChange::Fresh)
        }
    }

    /// The publisher announced when it will be heard next at the latest.
    pub(crate) fn announced(&mut self, interval: Nanos) {
        self.interval = interval;
    }

    /// The publisher spoke on the repair path. `ahead`: it has sent what we never heard of by
    /// multicast.
    pub(crate) fn heard_repair(&mut self, ahead: bool, now: Nanos) -> Option<LivenessChange> {
        self.word_at = now;
        self.dead = false;
        if self.stale && ahead && !self.multicast_lost {
            self.multicast_lost = true;
            return Some(LivenessChange::MulticastLost);
        }
        None
    }

    /// The publisher welcomed us: it lives, whatever multicast does.
    pub(crate) const fn heard_welcome(&mut self, now: Nanos) {
        self.word_at = now;
        self.dead = false;
    }

    /// Looks at the clock. Tells up to one change at a time; call again until there is none.
    pub(crate) fn check(&mut self, now: Nanos) -> Option<LivenessChange> {
        if !self.stale && now >= self.stale_at() {
            self.stale = true;
            return Some(LivenessChange::Stale);
        }
        // Never dead before it is stale: it may have announced a long silence.
        if self.stale && !self.dead && now >= self.dead_at() && !planted(Bug::DeadNeverTold) {
            self.dead = true;
            return Some(LivenessChange::Dead);
        }
        None
    }

    /// When [`Liveness::check`] has something to say if nothing is heard until then.
    #[must_use]
    pub(crate) fn next_check(&self) -> Nanos {
        if !self.stale {
            self.stale_at()
        } else if !self.dead {
            self.dead_at()
        } else {
            Nanos::MAX
        }
    }

    /// The interval that the publisher announced last.
    #[must_use]
    pub(crate) const fn interval(&self) -> Nanos {
        self.interval
    }

    /// Whether nothing came by multicast for three announced intervals.
    #[must_use]
    pub(crate) const fn is_stale(&self) -> bool {
        self.stale
    }

    /// Whether it has been silent on every path for long.
    #[must_use]
    pub(crate) const fn is_dead(&self) -> bool {
        self.dead
    }

    /// Both states as they are now, told or not.
    #[must_use]
    pub(crate) const fn silence(&self) -> Silence {
        Silence {
            stale: self.stale,
            multicast_lost: self.multicast_lost,
        }
    }

    fn stale_at(&self) -> Nanos {
        self.multicast_at
            .after(self.interval.times(3).max(self.limits.stale_min))
    }

    fn dead_at(&self) -> Nanos {
        self.word_at.after(self.limits.dead)
    }
}

impl Receiver {
    #[cold]
    pub(crate) fn note_line(&mut self, change: LineChange) {
        self.events.push_back(match change {
            LineChange::Down(line) => {
                self.counters.line_down.increment();
                Event::LineDown(line)
            }
            LineChange::Up(line) => Event::LineUp(line),
        });
    }

    #[cold]
    pub(crate) fn note_liveness(&mut self, change: LivenessChange, now: Nanos) {
        let event = match change {
            // After the end silence is no news, nor is that it is over.
            _ if self.ended() => return,
            LivenessChange::Stale => {
                self.silence_told.stale = true;
                // Find out at once whether the publisher is gone, or only its multicast.
                self.progress_at = Nanos::ZERO;
                self.rejoin_at = now.after(REJOIN_EVERY);
                Event::Stale
            }
            LivenessChange::Fresh if planted(Bug::FreshForgotten) => return,
            LivenessChange::Fresh => {
                self.silence_told = Silence::default();
                Event::Recovered
            }
            LivenessChange::MulticastLost => {
                self.silence_told.multicast_lost = true;
                self.counters.multicast_lost.increment();
                self.rejoin_at = now;
                Event::MulticastLost
            }
            LivenessChange::MulticastRestored => {
                self.silence_told = Silence::default();
                self.events.push_back(Event::MulticastRestored);
                // Whoever stopped at `Stale` goes on at `Fresh`, however it was heard again.
                Event::Recovered
            }
            LivenessChange::Dead => Event::PublisherDead,
        };
        self.events.push_back(event);
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
            Some(LivenessChange::Fresh)
        );
    }

    #[test]
    fn other_stream_starts_as_told_with_its_silence() {
        let mut liveness = Liveness::new(LIMITS, Nanos(0));
        assert_eq!(liveness.check(Nanos(30)), Some(LivenessChange::Stale));
        let lost = liveness.heard_repair(true, Nanos(40));
        assert_eq!(lost, Some(LivenessChange::MulticastLost));
        assert_eq!(liveness.check(Nanos(1_040)), Some(LivenessChange::Dead));
        let told = liveness.silence();
        assert!(told.stale && told.multicast_lost);
        liveness.restart(told, Nanos(2_000));
        assert_eq!(liveness.check(Nanos(2_999)), None, "not dead yet");
        let restored = liveness.heard_multicast(Nanos(2_999));
        assert_eq!(restored, Some(LivenessChange::MulticastRestored));
        liveness.restart(Silence::default(), Nanos(2_000));
        assert_eq!(liveness.heard_multicast(Nanos(2_000)), None);
        assert_eq!(liveness.check(Nanos(2_029)), None);
        assert_eq!(liveness.check(Nanos(2_030)), Some(LivenessChange::Stale));
        assert_eq!(liveness.heard_repair(false, Nanos(2_030)), None);
        assert_eq!(liveness.next_check(), Nanos(3_030));
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
            Some(LivenessChange::Fresh)
        );
        assert_eq!(liveness.heard_multicast(Nanos(2002)), None);
        assert_eq!(liveness.check(Nanos(2040)), Some(LivenessChange::Stale));
        assert_eq!(liveness.check(Nanos(3001)), None);
        assert_eq!(liveness.check(Nanos(3002)), Some(LivenessChange::Dead));
        liveness.announced(Nanos(7));
        assert_eq!(liveness.interval(), Nanos(7));
    }
}
