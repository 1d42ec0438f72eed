//! One address that wants more connections than one may have: that is said in the log, with what to change,
//! and not for each that is turned away.

use std::net::IpAddr;

use tickcast_reliability::types::Nanos;
use tickcast_transport::control::ServerStats;

use crate::repair::seldom::Seldom;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Crowded {
    turned_away: u64,
    seldom: Seldom,
}

impl Crowded {
    /// What the server counts now: says so where it turned somebody away since it was said last.
    pub(crate) fn look(&mut self, now: Nanos, stats: &ServerStats) {
        if let Some((address, count)) = self.news(now, stats) {
            tracing::warn!(
                %address,
                count,
                "an address has as many connections as one may have, and more of it were turned away: raise \
                 repair.peers_per_address_max if so many subscribers are there, else see who is"
            );
        }
    }

    /// Who it was, and how many were turned away since it was said last.
    fn news(&mut self, now: Nanos, stats: &ServerStats) -> Option<(IpAddr, u64)> {
        let count = stats.turned_away_of_address - self.turned_away;
        if count == 0 || !self.seldom.is_due(now) {
            return None;
        }
        self.turned_away = stats.turned_away_of_address;
        self.seldom.said(now);
        stats.crowded_address.map(|address| (address, count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_said_who_and_how_many_and_not_for_each() {
        let mut crowded = Crowded::default();
        let mut look = |at_ms, turned_away_of_address, from: [u8; 4]| {
            let stats = ServerStats {
                turned_away_of_address,
                crowded_address: Some(from.into()),
                ..ServerStats::default()
            };
            crowded.news(Nanos::from_ms(at_ms), &stats)
        };
        let (a, b) = ([10, 0, 0, 1], [10, 0, 0, 2]);
        assert_eq!(look(1, 0, a), None, "nobody was turned away");
        assert_eq!(look(2, 3, a), Some((a.into(), 3)));
        assert_eq!(look(10_001, 400, a), None, "it was said");
        assert_eq!(
            look(10_002, 500, b),
            Some((b.into(), 497)),
            "none is left out"
        );
        assert_eq!(look(30_000, 500, b), None, "it is over");
    }
}
