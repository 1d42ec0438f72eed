//! Turns the venue's midnight clock into UTC: one time zone look-up a session, an addition a
//! message.
//!
//! ITCH stamps count nanoseconds since midnight in New York. They are taken as time that has
//! *elapsed*, so a stamp beyond the hour at which daylight saving begins or ends is still right.
//! The zone's rules are compiled in: the host's time zone files are not read.

use jiff::{
    Timestamp,
    civil::Date,
    tz::{self, TimeZone},
};
use tickcast_reliability::record::UNDEF_TIMESTAMP;
use tickcast_reliability::types::Nanos;

static NEW_YORK: TimeZone = tz::get!("America/New_York");

/// Which day the venue's midnight belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TradeDate {
    /// This one, as the operator says.
    Fixed(Date),
    /// The day in New York on which a session's first packet was received. While nobody knows when
    /// packets are received, venue times are undefined.
    #[default]
    Received,
}

/// The clock of one session.
#[derive(Clone, Copy, Debug, Default)]
pub struct SessionClock {
    /// UTC ns of the session's midnight.
    midnight: Option<u64>,
}

impl SessionClock {
    /// A clock for the session whose first packet was received at `received_at` (0: unknown).
    #[must_use]
    pub fn new(trade_date: TradeDate, received_at: Nanos) -> Self {
        let date = match trade_date {
            TradeDate::Fixed(date) => Some(date),
            TradeDate::Received => date_in_new_york(received_at),
        };
        Self {
            midnight: date.and_then(midnight_in_new_york),
        }
    }

    /// Whether the session's day is known.
    #[must_use]
    pub const fn is_set(self) -> bool {
        self.midnight.is_some()
    }

    /// UTC ns of a stamp of this session; [`UNDEF_TIMESTAMP`] when its day is not known.
    #[inline]
    #[must_use]
    pub const fn utc(self, since_midnight: u64) -> u64 {
        match self.midnight {
            Some(midnight) => midnight.saturating_add(since_midnight),
            None => UNDEF_TIMESTAMP,
        }
    }
}

fn midnight_in_new_york(date: Date) -> Option<u64> {
    let midnight = date.to_zoned(NEW_YORK.clone()).ok()?.timestamp();
    u64::try_from(midnight.as_nanosecond()).ok()
}

fn date_in_new_york(at: Nanos) -> Option<Date> {
    if at == Nanos::ZERO {
        return None;
    }
    let at = Timestamp::from_nanosecond(i128::from(at.0)).ok()?;
    Some(at.to_zoned(NEW_YORK.clone()).date())
}

#[cfg(test)]
mod tests {
    use jiff::civil::date;

    use super::*;

    const HOUR: u64 = 3_600_000_000_000;

    fn clock(year: i16, month: i8, day: i8) -> SessionClock {
        SessionClock::new(TradeDate::Fixed(date(year, month, day)), Nanos::ZERO)
    }

    fn utc(text: &str) -> u64 {
        text.parse::<Timestamp>().unwrap().as_nanosecond() as u64
    }

    #[test]
    fn midnight_follows_daylight_saving() {
        assert_eq!(clock(2023, 8, 22).utc(0), utc("2023-08-22T04:00:00Z"));
        assert_eq!(clock(2010, 12, 24).utc(0), utc("2010-12-24T05:00:00Z"));
        assert_eq!(clock(2025, 3, 7).utc(0), utc("2025-03-07T05:00:00Z"));
        assert_eq!(clock(2025, 3, 10).utc(0), utc("2025-03-10T04:00:00Z"));
        assert_eq!(clock(2025, 11, 3).utc(0), utc("2025-11-03T05:00:00Z"));
    }

    #[test]
    fn itch_clock_continues_from_midnight_on_dst_change() {
        assert_eq!(
            clock(2025, 3, 9).utc(3 * HOUR),
            utc("2025-03-09T04:00:00-04:00")
        );
        assert_eq!(
            clock(2025, 11, 2).utc(3 * HOUR),
            utc("2025-11-02T02:00:00-05:00")
        );
    }

    #[test]
    fn session_date_is_derived_from_first_packet_time() {
        let late_evening = Nanos(utc("2023-08-23T01:30:00Z"));
        let clock = SessionClock::new(TradeDate::Received, late_evening);
        assert_eq!(clock.utc(0), utc("2023-08-22T04:00:00Z"));
        let unknown = SessionClock::new(TradeDate::Received, Nanos::ZERO);
        assert!(!unknown.is_set());
        assert_eq!(unknown.utc(5), UNDEF_TIMESTAMP);
    }
}
