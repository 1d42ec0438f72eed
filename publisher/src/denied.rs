//! Subscribers that wait at the control port because there is no descriptor for their connections: that
//! is said in the log, with what to change, and not each time that it is tried again.

use rustix::io::Errno;
use tickcast_reliability::units::Nanos;
use tickcast_transport::control::ServerStats;

/// It is said this often at most.
const EVERY: Nanos = Nanos::from_secs(10);

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Denied {
    errors: u64,
    /// Not before this it is said again.
    next_at: Nanos,
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
        if stats.accept_errors == before || now < self.next_at {
            return None;
        }
        let errno = Errno::from_raw_os_error(stats.accept_errno);
        let remedy = match errno {
            Errno::MFILE => "raise this process's limit of open files (LimitNOFILE=, ulimit -n)",
            Errno::NFILE => "raise the host's limit of open files (sysctl fs.file-max)",
            _ => return None,
        };
        self.next_at = now.after(EVERY);
        Some((errno, remedy))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_said_with_what_to_change_and_not_each_time() {
        let mut denied = Denied::default();
        let mut look = |at_ms, accept_errors, errno: Errno| {
            let stats = ServerStats {
                accept_errors,
                accept_errno: errno.raw_os_error(),
                ..ServerStats::default()
            };
            let news = denied.news(Nanos::from_ms(at_ms), &stats);
            news.map(|(_, remedy)| remedy)
        };
        assert_eq!(look(1, 0, Errno::MFILE), None, "nothing was counted");
        assert_eq!(look(2, 1, Errno::PERM), None, "that is something else");
        let own = look(3, 2, Errno::MFILE).unwrap();
        assert!(own.contains("LimitNOFILE="), "{own}");
        assert_eq!(look(10_002, 900, Errno::MFILE), None, "it was said");
        assert_eq!(look(10_003, 900, Errno::MFILE), None, "it is over");
        let host = look(10_004, 901, Errno::NFILE).unwrap();
        assert!(host.contains("fs.file-max"), "{host}");
    }
}
