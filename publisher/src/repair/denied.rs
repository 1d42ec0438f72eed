//! Subscribers that wait at the control port because there is no descriptor for their connections: that
//! is said in the log, with what to change, and not each time that it is tried again.

use rustix::io::Errno;
use tickcast_reliability::types::Nanos;
use tickcast_transport::control::ServerStats;

use crate::repair::seldom::Seldom;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Denied {
    errors: u64,
    seldom: Seldom,
}

impl Denied {
    /// What the server counts now: says so where it lacked a descriptor since the last time.
    pub(crate) fn look(&mut self, now: Nanos, stats: &ServerStats) {
        if let Some((errno, remedy)) = self.news(now, stats) {
            tracing::warn!(
                "the control port has no descriptor for a connection ({errno}): who comes waits, who is \
                 there is served; {remedy}"
            );
        }
    }

    fn news(&mut self, now: Nanos, stats: &ServerStats) -> Option<(Errno, &'static str)> {
        let before = std::mem::replace(&mut self.errors, stats.accept_errors);
        if stats.accept_errors == before || !self.seldom.is_due(now) {
            return None;
        }
        // Not the other way round: what fails over verbs has no number.
        let is = |errno: &Errno| errno.raw_os_error() == stats.accept_errno;
        let errno = [Errno::MFILE, Errno::NFILE].into_iter().find(is)?;
        let remedy = match errno {
            Errno::MFILE => "raise this process's limit of open files (LimitNOFILE=, ulimit -n)",
            _ => "raise the host's limit of open files (sysctl fs.file-max)",
        };
        self.seldom.said(now);
        Some((errno, remedy))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_said_with_what_to_change_and_not_each_time() {
        let mut denied = Denied::default();
        let mut look = |at_ms, accept_errors, errno: i32| {
            let stats = ServerStats {
                accept_errors,
                accept_errno: errno,
                ..ServerStats::default()
            };
            let news = denied.news(Nanos::from_ms(at_ms), &stats);
            news.map(|(_, remedy)| remedy)
        };
        let [process, system] = [Errno::MFILE, Errno::NFILE].map(Errno::raw_os_error);
        assert_eq!(look(1, 0, process), None, "nothing was counted");
        for other in [Errno::PERM.raw_os_error(), 0, -1, i32::MAX, i32::MIN] {
            assert_eq!(
                look(2, 1 + other as u64 % 7, other),
                None,
                "that is something else"
            );
        }
        let own = look(3, 20, process).unwrap();
        assert!(own.contains("LimitNOFILE="), "{own}");
        assert_eq!(look(10_002, 900, process), None, "it was said");
        assert_eq!(look(10_003, 900, process), None, "it is over");
        let host = look(10_004, 901, system).unwrap();
        assert!(host.contains("fs.file-max"), "{host}");
    }
}
