//! Warnings of the repair thread about all connections together, each once in a while.

use std::net::IpAddr;

use rustix::io::Errno;
use tickcast_log::LogLimit;
use tickcast_reliability::types::Nanos;
use tickcast_transport::control::ServerStats;

use crate::repair::audit;
use crate::repair::peer_log::PeerLog;

/// Returns the limit for each warning of this module.
const fn warning_limit() -> LogLimit {
    LogLimit::new(1, 0.1)
}

/// The counts at the last check, and a limit for each warning.
#[derive(Debug)]
pub(crate) struct Warnings {
    suppressed: LogLimit,
    crowded: LogLimit,
    no_descriptor: LogLimit,
    omitted: LogLimit,
    turned_away: u64,
    accept_errors: u64,
}

impl Default for Warnings {
    fn default() -> Self {
        Self {
            suppressed: warning_limit(),
            crowded: warning_limit(),
            no_descriptor: warning_limit(),
            omitted: LogLimit::new(1, 1.0),
            turned_away: 0,
            accept_errors: 0,
        }
    }
}

impl Warnings {
    /// Logs current problems, and once a second what the limits left out of the audit file. `log` limits the
    /// lines about single connections.
    pub(crate) fn check(&mut self, now: Nanos, stats: &ServerStats, log: &mut PeerLog) {
        if let Some((errno, remedy)) = self.no_descriptor(now, stats) {
            tracing::warn!(
                "the control port can't accept a connection ({errno}): new subscribers wait, and \
                 joined ones are served; {remedy}"
            );
        }
        if let Some((address, count)) = self.crowded(now, stats) {
            tracing::warn!(
                %address,
                count,
                "an address has reached its maximum of connections, and further ones were \
                 refused: raise repair.peers_per_address_max if it has that many subscribers, \
                 otherwise find out who connects"
            );
        }
        if let Some(count) = self.suppressed(now, log) {
            tracing::warn!(
                count,
                "log lines about connections were suppressed, because connections open, close or \
                 break the protocol too often: --audit FILE records their peers, and the `banned` \
                 file blocks them"
            );
        }
        if self.omitted.allow_at(now) {
            audit::report_omitted();
        }
    }

    /// Returns the number of suppressed lines about single connections since the last report.
    fn suppressed(&mut self, now: Nanos, log: &mut PeerLog) -> Option<u64> {
        log.advance(now);
        let is_due = log.suppressed() > 0 && self.suppressed.allow_at(now);
        is_due.then(|| log.take_suppressed())
    }

    /// Returns an address that has reached its maximum of connections, and the number of connections
    /// refused since the last report.
    fn crowded(&mut self, now: Nanos, stats: &ServerStats) -> Option<(IpAddr, u64)> {
        let count = stats.turned_away_of_address - self.turned_away;
        if count == 0 || !self.crowded.allow_at(now) {
            return None;
        }
        self.turned_away = stats.turned_away_of_address;
        stats.crowded_address.map(|address| (address, count))
    }

    /// Returns the reason why there is no descriptor for a connection, and the remedy, if that is
    /// new.
    fn no_descriptor(&mut self, now: Nanos, stats: &ServerStats) -> Option<(Errno, &'static str)> {
        let before = std::mem::replace(&mut self.accept_errors, stats.accept_errors);
        if stats.accept_errors == before {
            return None;
        }
        // This order matters: a failure over verbs has no number.
        let is = |errno: &Errno| errno.raw_os_error() == stats.accept_errno;
        let errno = [Errno::MFILE, Errno::NFILE].into_iter().find(is)?;
        let remedy = match errno {
            Errno::MFILE => "raise this process's limit of open files (LimitNOFILE=, ulimit -n)",
            _ => "raise the host's limit of open files (sysctl fs.file-max)",
        };
        self.no_descriptor.allow_at(now).then_some((errno, remedy))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suppressed_lines_are_counted_and_reported() {
        let (mut warnings, mut log) = (Warnings::default(), PeerLog::default());
        let allowed_of = |log: &PeerLog, count: u64| {
            (0..count)
                .filter(|_| log.allow([10, 0, 0, 1].into()))
                .count() as u64
        };
        let now = Nanos::from_secs;
        assert_eq!(
            warnings.suppressed(now(100), &mut log),
            None,
            "nothing was left out"
        );
        let allowed = allowed_of(&log, 1_000);
        let left_out = 1_000 - allowed;
        assert_eq!(warnings.suppressed(now(100), &mut log), Some(left_out));
        assert_eq!(allowed_of(&log, 5), 0);
        assert_eq!(warnings.suppressed(now(101), &mut log), None, "it was said");
        let more = 1_000 - allowed_of(&log, 1_000);
        assert!(more > 990);
        assert_eq!(warnings.suppressed(now(111), &mut log), Some(5 + more));
        assert_eq!(warnings.suppressed(now(200), &mut log), None, "none since");
    }

    #[test]
    fn crowded_addresses_are_reported_together() {
        let mut warnings = Warnings::default();
        let mut check = |at_ms, turned_away_of_address, from: [u8; 4]| {
            let stats = ServerStats {
                turned_away_of_address,
                crowded_address: Some(from.into()),
                ..ServerStats::default()
            };
            warnings.crowded(Nanos::from_ms(at_ms), &stats)
        };
        let (a, b) = ([10, 0, 0, 1], [10, 0, 0, 2]);
        assert_eq!(check(1, 0, a), None, "nobody was turned away");
        assert_eq!(check(2, 3, a), Some((a.into(), 3)));
        assert_eq!(check(10_001, 400, a), None, "it was said");
        assert_eq!(
            check(10_002, 500, b),
            Some((b.into(), 497)),
            "none is left out"
        );
        assert_eq!(check(30_000, 500, b), None, "it is over");
    }

    #[test]
    fn descriptor_shortage_is_reported_with_remedy() {
        let mut warnings = Warnings::default();
        let mut check = |at_ms, accept_errors, errno: i32| {
            let stats = ServerStats {
                accept_errors,
                accept_errno: errno,
                ..ServerStats::default()
            };
            let found = warnings.no_descriptor(Nanos::from_ms(at_ms), &stats);
            found.map(|(_, remedy)| remedy)
        };
        let [process, system] = [Errno::MFILE, Errno::NFILE].map(Errno::raw_os_error);
        assert_eq!(check(1, 0, process), None, "nothing was counted");
        for other in [Errno::PERM.raw_os_error(), 0, -1, i32::MAX, i32::MIN] {
            assert_eq!(
                check(2, 1 + other as u64 % 7, other),
                None,
                "that is something else"
            );
        }
        let own = check(3, 20, process).unwrap();
        assert!(own.contains("LimitNOFILE="), "{own}");
        assert_eq!(check(10_002, 900, process), None, "it was said");
        assert_eq!(check(10_003, 900, process), None, "it is over");
        let host = check(10_004, 901, system).unwrap();
        assert!(host.contains("fs.file-max"), "{host}");
    }
}
