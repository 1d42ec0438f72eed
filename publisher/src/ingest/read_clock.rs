//! The time of a feed, as far as its packets are read.
//!
//! A wait for a missing message must not end because this thread paused: the message may lie in a socket. So
//! this time stands still while packets wait unread, and counts a pause as one step.

use tickcast_reliability::types::Nanos;

/// The longest step of a turn that reads packets. A thread that polls takes microseconds for a turn.
const STEP: Nanos = Nanos::from_ms(1);

/// The time up to which everything that has arrived is read. It lags behind the host's by all pauses.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReadClock {
    now: Nanos,
    /// The host's time at the start of the last turn.
    turned_at: Nanos,
    /// The rest of a long step, which counts if no packet came in it.
    rest: Nanos,
    /// Whether the last turn left packets unread.
    is_behind: bool,
}

impl ReadClock {
    /// Begins a turn at the host's time. Returns the time of its packets.
    #[inline]
    pub(super) fn begin(&mut self, now: Nanos) -> Nanos {
        let step = match self.turned_at {
            Nanos::ZERO => now,
            turned_at => now.since(turned_at),
        };
        let is_first = self.turned_at == Nanos::ZERO;
        self.turned_at = now;
        self.rest = Nanos::ZERO;
        if self.is_behind {
            return self.now;
        }
        let taken = if is_first { step } else { step.min(STEP) };
        self.now = self.now.after(taken);
        self.rest = step.since(taken);
        self.now
    }

    /// Ends a turn. Without packets, nothing waited in the sockets meanwhile. Returns the time until the next
    /// turn.
    #[inline]
    pub(super) fn end(&mut self, has_packets: bool, is_behind: bool) -> Nanos {
        self.is_behind = is_behind;
        if !has_packets {
            self.now = self.now.after(self.rest);
        }
        self.now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Nanos {
        Nanos::from_ms(ms)
    }

    #[test]
    fn pause_counts_as_one_step_if_packets_waited() {
        let mut clock = ReadClock::default();
        assert_eq!(clock.begin(ms(500)), ms(500));
        assert_eq!(clock.end(true, false), ms(500));
        assert_eq!(clock.begin(ms(700)), ms(501), "a pause of 200 ms");
        assert_eq!(clock.end(true, false), ms(501));
        let later = ms(700).after(Nanos(5_000));
        assert_eq!(clock.begin(later), ms(501).after(Nanos(5_000)));
    }

    #[test]
    fn idle_time_counts_in_full() {
        let mut clock = ReadClock::default();
        clock.begin(ms(500));
        clock.end(false, false);
        assert_eq!(clock.begin(ms(540)), ms(501), "packets may wait");
        assert_eq!(clock.end(false, false), ms(540), "none did");
        assert_eq!(clock.begin(ms(541)), ms(541));
    }

    #[test]
    fn clock_stands_still_while_packets_are_unread() {
        let mut clock = ReadClock::default();
        clock.begin(ms(500));
        clock.end(true, true);
        for at in [510, 520] {
            assert_eq!(clock.begin(ms(at)), ms(500));
            assert_eq!(clock.end(true, at == 510), ms(500));
        }
        assert_eq!(
            clock.begin(ms(520).after(Nanos(7))),
            ms(500).after(Nanos(7))
        );
    }
}
