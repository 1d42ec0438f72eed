//! Checks the liveness events of one channel: silence and recovery, lost multicast, lines, and the
//! repair connection. Events of a kind alternate, have their reason in the subscriber's input, and
//! are emitted when due (docs/PROTOCOL.md §5.3, §5.5).

use tickcast_reliability::delivery::{Event, StreamState};
use tickcast_reliability::receive::ReceiverConfig;
use tickcast_reliability::types::Nanos;

type Checked = Result<(), String>;

/// Tolerance for a late timer.
const SLACK: Nanos = Nanos(5_000);
/// Longest heartbeat interval that is accepted.
const INTERVAL_MAX: Nanos = Nanos::from_secs(10);
/// Interval at which the groups are rejoined during silence.
const REJOIN_EVERY: Nanos = Nanos::from_ms(200);

/// Check on the liveness events of one channel.
#[derive(Debug)]
pub struct SilenceCheck {
    config: ReceiverConfig,
    joined: bool,
    ended: bool,
    stale: bool,
    multicast_lost: bool,
    /// Whether a datagram arrived since silence was reported.
    heard_since: bool,
    /// Time at which the silence timer restarted, because another epoch began after an end.
    silent_since: Nanos,
    /// State that follows from the events so far.
    pub state: StreamState,
    link_down: bool,
    line_down: [bool; 2],
    /// Time of the last datagram of each line, and the interval that the last heartbeat announced.
    heard_at: [Nanos; 2],
    interval: Nanos,
    /// Latest time at which the groups must be rejoined.
    rejoin_due: Nanos,
    connected: bool,
    /// Content of the current input: a datagram of a line, a STATUS.
    line: Option<usize>,
    status: bool,
}

impl SilenceCheck {
    /// Returns a check without events.
    #[must_use]
    pub fn new(config: ReceiverConfig) -> Self {
        Self {
            config,
            joined: false,
            ended: false,
            stale: false,
            multicast_lost: false,
            heard_since: false,
            silent_since: Nanos::ZERO,
            state: StreamState::default(),
            link_down: false,
            line_down: [false; 2],
            heard_at: [Nanos::ZERO; 2],
            interval: Nanos::ZERO,
            rejoin_due: Nanos::MAX,
            connected: false,
            line: None,
            status: false,
        }
    }

    /// Records an accepted datagram of this line that is about to be passed to the core. A
    /// heartbeat announces an interval.
    pub fn hears(&mut self, line: usize, interval: Option<Nanos>, now: Nanos) {
        (self.line, self.heard_at[line]) = (Some(line), now);
        self.heard_since = self.stale;
        if let Some(interval) = interval {
            self.interval = interval.min(INTERVAL_MAX);
        }
    }

    /// Records a STATUS that is about to be passed to the core.
    pub const fn status(&mut self) {
        self.status = true;
    }

    /// Records the end of an input.
    pub const fn input_over(&mut self) {
        (self.line, self.status) = (None, false);
    }

    /// Records that the groups were rejoined.
    pub fn rejoined(&mut self, now: Nanos) {
        if self.stale {
            self.rejoin_due = now.after(REJOIN_EVERY);
        }
    }

    fn silence(&self, least_us: u32) -> Nanos {
        self.interval.times(3).max(Nanos::from_us(least_us.into()))
    }

    fn last_heard(&self) -> Nanos {
        self.heard_at[0].max(self.heard_at[1])
    }

    /// Returns the time at which silence is due if nothing arrives.
    fn silent_at(&self) -> Nanos {
        let since = self.last_heard().max(self.silent_since);
        since.after(self.silence(self.config.stale_us))
    }

    /// Checks the core's state after an input.
    ///
    /// # Errors
    /// A state that differs from the one that follows from the events.
    pub fn stands(&self, core: StreamState) -> Checked {
        let reported = self.state;
        // A message of the publisher ends this state without an event.
        let publisher_dead = reported.publisher_dead;
        if reported
            == (StreamState {
                publisher_dead,
                ..core
            })
        {
            return Ok(());
        }
        Err(format!("stands {core}, and was told {reported}"))
    }

    /// Checks an event that the application received.
    ///
    /// # Errors
    /// An event without a reason or at a wrong time.
    pub fn reported(&mut self, event: &Event, now: Nanos) -> Checked {
        let state = (self.stale, self.multicast_lost);
        self.state.follow(event);
        self.heard_since &= !matches!(event, Event::Recovered | Event::EndOfSession);
        let by_line = self.line.is_some() && !self.ended;
        let right = match event {
            Event::Joined { .. } if !self.joined => {
                (self.joined, self.connected) = (true, true);
                self.heard_at = [now; 2];
                true
            }
            Event::EndOfSession => {
                self.ended = true;
                true
            }
            Event::EpochChanged { .. } | Event::EpochContinued { .. } => {
                if std::mem::replace(&mut self.ended, false) {
                    // No liveness events were emitted after the end, so restart the silence timer.
                    (self.silent_since, self.heard_since) = (now, false);
                }
                true
            }
            Event::Stale => {
                let due = self.silent_at();
                self.stale = true;
                self.rejoin_due = now.after(REJOIN_EVERY);
                !self.ended && !state.0 && now >= due
            }
            Event::MulticastLost => {
                self.multicast_lost = true;
                self.rejoin_due = now;
                !self.ended && state == (true, false) && self.status
            }
            Event::Recovered => {
                self.stale = false;
                state == (true, false) && by_line
            }
            Event::MulticastRestored => {
                // `Recovered` follows at once.
                self.multicast_lost = false;
                state == (true, true) && by_line
            }
            Event::PublisherDead => state.0 && !self.ended,
            Event::RepairLinkDown(_) => !std::mem::replace(&mut self.link_down, true),
            Event::RepairLinkUp => std::mem::replace(&mut self.link_down, false),
            Event::LineDown(line) => {
                let line = usize::from(line.0);
                let silence = self.silence(self.config.line_silence_us);
                let heard = self.heard_at.get(line).copied();
                let witness = self.last_heard();
                !std::mem::replace(&mut self.line_down[line], true)
                    && heard.is_some_and(|heard| now >= heard.after(silence) && witness > heard)
                    && now < witness.after(silence)
            }
            Event::LineUp(line) => {
                let line = usize::from(line.0);
                std::mem::replace(&mut self.line_down[line], false) && self.line == Some(line)
            }
            _ => true,
        };
        if right {
            return Ok(());
        }
        Err(format!(
            "told {event:?} at {now} without a reason: {self:?}"
        ))
    }

    /// Checks that nothing is late after the subscriber has performed all its actions.
    ///
    /// # Errors
    /// An event or a rejoin that was due.
    pub fn on_time(&mut self, connected: bool, now: Nanos) -> Checked {
        if connected && !self.connected {
            self.rejoin_due = self.rejoin_due.max(now);
        }
        self.connected = connected;
        if !self.joined || self.ended {
            return Ok(());
        }
        let silent = self.silent_at();
        if !self.stale && now > silent.after(SLACK) {
            return Err(format!(
                "silent, which should have been told at {silent}: {self:?}"
            ));
        }
        if self.heard_since {
            return Err(format!("heard again, and it was not told: {self:?}"));
        }
        if self.stale && connected && now > self.rejoin_due.after(SLACK) {
            let due = self.rejoin_due;
            return Err(format!(
                "the groups should have been joined anew at {due}, it is {now}"
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tickcast_reliability::delivery::LineId;

    fn us(us: u64) -> Nanos {
        Nanos::from_us(us)
    }

    /// Returns a check that joined at 0 and is silent after 5 ms.
    fn check() -> SilenceCheck {
        let config = ReceiverConfig {
            stale_us: 5_000,
            line_silence_us: 5_000,
            ..ReceiverConfig::default()
        };
        let mut of = SilenceCheck::new(config);
        let after = tickcast_reliability::types::Sequence(0);
        of.reported(&Event::Joined { after }, Nanos::ZERO).unwrap();
        of
    }

    #[test]
    fn stale_event_is_emitted_once_when_due() {
        assert!(check().reported(&Event::Stale, us(4_999)).is_err());
        let mut of = check();
        assert_eq!(of.on_time(true, us(5_004)), Ok(()));
        assert!(of.on_time(true, us(5_010)).is_err());
        assert_eq!(of.reported(&Event::Stale, us(5_000)), Ok(()));
        assert!(of.reported(&Event::Stale, us(5_000)).is_err());
        let mut heard = check();
        heard.reported(&Event::Stale, us(5_000)).unwrap();
        heard.hears(0, None, us(6_000));
        assert!(heard.on_time(true, us(6_000)).is_err());
        assert_eq!(heard.reported(&Event::Recovered, us(6_000)), Ok(()));
        assert_eq!(heard.on_time(true, us(6_000)), Ok(()));
        assert!(
            of.reported(&Event::Recovered, us(6_000)).is_err(),
            "nothing came"
        );
    }

    #[test]
    fn reported_silence_outlasts_end_and_restarts() {
        use tickcast_reliability::types::Epoch;
        let (from, to) = (Epoch(1), Epoch(2));
        let next = |of: &mut SilenceCheck, at| {
            of.reported(&Event::EndOfSession, at).unwrap();
            of.reported(&Event::EpochChanged { from, to }, at).unwrap();
        };
        let mut of = check();
        of.reported(&Event::Stale, us(5_000)).unwrap();
        next(&mut of, us(9_000));
        of.hears(0, None, us(9_000));
        assert!(of.on_time(true, us(9_000)).is_err(), "it is not told");
        assert_eq!(of.reported(&Event::Recovered, us(9_000)), Ok(()));
        let mut of = check();
        next(&mut of, us(9_000));
        assert_eq!(of.on_time(true, us(14_004)), Ok(()));
        assert!(of.reported(&Event::Stale, us(13_999)).is_err(), "too soon");
        let mut of = check();
        assert!(of.stands(StreamState::default()).is_err(), "it has joined");
        let live = StreamState {
            joined: true,
            repair_link_up: true,
            ..StreamState::default()
        };
        assert_eq!(of.stands(live), Ok(()));
        of.reported(&Event::Stale, us(5_000)).unwrap();
        assert!(of.stands(live).is_err());
        assert_eq!(
            of.stands(StreamState {
                stale: true,
                ..live
            }),
            Ok(())
        );
    }

    #[test]
    fn silent_stream_rejoins_and_reports_multicast_loss() {
        let mut of = check();
        of.reported(&Event::Stale, us(5_000)).unwrap();
        assert_eq!(of.on_time(true, us(205_000)), Ok(()));
        assert!(of.on_time(true, us(205_010)).is_err());
        of.rejoined(us(205_010));
        assert_eq!(of.on_time(true, us(205_010)), Ok(()));
        of.status();
        assert_eq!(of.reported(&Event::MulticastLost, us(206_000)), Ok(()));
        assert!(of.on_time(true, us(206_010)).is_err());
        assert_eq!(of.on_time(false, us(206_010)), Ok(()), "it can't ask");
        of.hears(1, Some(us(100)), us(208_000));
        assert!(of.reported(&Event::MulticastRestored, us(208_000)).is_ok());
        assert!(of.on_time(true, us(208_000)).is_err(), "fresh, too");
        assert_eq!(of.reported(&Event::Recovered, us(208_000)), Ok(()));
        assert_eq!(of.on_time(true, us(208_000)), Ok(()));
        let mut of = check();
        of.reported(&Event::Stale, us(5_000)).unwrap();
        of.status();
        of.reported(&Event::MulticastLost, us(6_000)).unwrap();
        of.hears(0, None, us(7_000));
        let out_of_order = of.reported(&Event::Recovered, us(7_000));
        assert!(out_of_order.is_err(), "restored before it is fresh");
    }

    #[test]
    fn line_goes_down_beside_heard_one_and_returns() {
        let mut of = check();
        let (down, up) = (Event::LineDown(LineId(1)), Event::LineUp(LineId(1)));
        assert!(of.reported(&down, us(5_000)).is_err(), "both are silent");
        let mut of_one = check();
        of_one.hears(0, None, us(4_000));
        assert!(of_one.reported(&down, us(4_000)).is_err(), "too soon");
        let mut of_one = check();
        of_one.hears(0, None, us(4_000));
        assert_eq!(of_one.reported(&down, us(5_000)), Ok(()));
        assert!(of_one.reported(&up, us(5_001)).is_err(), "it was not heard");
    }
}
