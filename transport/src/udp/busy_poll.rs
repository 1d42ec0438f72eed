//! Busy polling: a read of the socket asks the device for packets, in place of waiting for its interrupt.

use std::io;
use std::os::fd::AsRawFd;

use super::socket::{UdpWarning, set_option};

/// Packets that one poll of the device takes at most: as many as the kernel's own poll.
const BUDGET: i32 = 64;

/// Options of busy polling, in the order of their requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BusyPollOption {
    /// The time for which a read polls.
    Time,
    /// Whether polls go before the device's interrupts, so that these may stay off.
    Prefer,
    /// The packets of one poll.
    Budget,
}

impl BusyPollOption {
    const ALL: [Self; 3] = [Self::Time, Self::Prefer, Self::Budget];

    const fn number(self) -> i32 {
        match self {
            Self::Time => libc::SO_BUSY_POLL,
            Self::Prefer => libc::SO_PREFER_BUSY_POLL,
            Self::Budget => libc::SO_BUSY_POLL_BUDGET,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Time => "SO_BUSY_POLL",
            Self::Prefer => "SO_PREFER_BUSY_POLL",
            Self::Budget => "SO_BUSY_POLL_BUDGET",
        }
    }

    /// Returns the effect of a refusal.
    const fn refused(self) -> &'static str {
        match self {
            Self::Time => "datagrams wait for the device's interrupts",
            Self::Prefer => "the device's interrupts go on beside busy polling",
            Self::Budget => "each poll takes as many packets as the kernel chooses",
        }
    }
}

/// Requests busy polling of the socket's device for this many microseconds; 0 turns it off. Each refusal is
/// only a warning, and the socket receives as without the option.
pub(super) fn request(socket: &impl AsRawFd, us: u32, target: &str) -> Vec<UdpWarning> {
    request_by(us, target, |option, value| {
        set_option(socket, libc::SOL_SOCKET, option.number(), value)
    })
}

fn request_by(
    us: u32,
    target: &str,
    mut set: impl FnMut(BusyPollOption, i32) -> io::Result<()>,
) -> Vec<UdpWarning> {
    let mut warnings = Vec::new();
    for option in BusyPollOption::ALL {
        let value = match option {
            BusyPollOption::Time => i32::try_from(us).unwrap_or(i32::MAX),
            BusyPollOption::Prefer => 1,
            BusyPollOption::Budget => BUDGET,
        };
        let Err(error) = set(option, value) else {
            if us == 0 {
                break;
            }
            continue;
        };
        warnings.push(UdpWarning::BusyPoll {
            target: target.to_owned(),
            option: option.name(),
            value,
            reason: error.to_string(),
            effect: option.refused(),
            remedy: remedy(&error),
        });
        // Without a time nothing is polled, so the others would have no effect.
        if option == BusyPollOption::Time {
            break;
        }
    }
    warnings
}

fn remedy(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            "grant the process CAP_NET_ADMIN (AmbientCapabilities= in its unit), or remove \
             busy_poll_us"
        }
        _ => {
            "this kernel or socket library does not have it: use Linux 5.11 or newer; under Onload \
             set EF_POLL_USEC, under VMA VMA_RX_POLL; or remove busy_poll_us"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests 50 us of a kernel that refuses these options with an error; returns the options that it was
    /// asked for, and the warnings.
    fn requested(us: u32, refuses: &[(BusyPollOption, i32)]) -> (Vec<(String, i32)>, Vec<String>) {
        let mut asked = Vec::new();
        let warnings = request_by(us, "239.1.1.1:5 on eth0", |option, value| {
            asked.push((option.name().to_owned(), value));
            match refuses.iter().find(|it| it.0 == option) {
                Some((_, errno)) => Err(io::Error::from_raw_os_error(*errno)),
                None => Ok(()),
            }
        });
        let warnings = warnings.iter().map(ToString::to_string).collect();
        (asked, warnings)
    }

    fn names(asked: &[(String, i32)]) -> Vec<(&str, i32)> {
        asked.iter().map(|(name, v)| (&name[..], *v)).collect()
    }

    const ALL: [(&str, i32); 3] = [
        ("SO_BUSY_POLL", 50),
        ("SO_PREFER_BUSY_POLL", 1),
        ("SO_BUSY_POLL_BUDGET", 64),
    ];

    #[test]
    fn busy_polling_requests_time_preference_and_budget() {
        let (asked, warnings) = requested(50, &[]);
        assert_eq!(names(&asked), ALL);
        assert_eq!(warnings, [""; 0]);
    }

    #[test]
    fn zero_turns_busy_polling_off_and_asks_no_more() {
        let (asked, warnings) = requested(0, &[]);
        assert_eq!(names(&asked), [("SO_BUSY_POLL", 0)]);
        assert_eq!(warnings, [""; 0]);
    }

    #[test]
    fn busy_polling_without_privilege_is_a_warning() {
        let (asked, warnings) = requested(50, &[(BusyPollOption::Time, libc::EPERM)]);
        assert_eq!(names(&asked), ALL[..1], "the others need the first");
        assert_eq!(warnings.len(), 1);
        for part in ["239.1.1.1:5 on eth0", "SO_BUSY_POLL=50", "CAP_NET_ADMIN"] {
            assert!(warnings[0].contains(part), "{part}: {warnings:?}");
        }
    }

    /// A kernel before 5.11 has neither; a library in the kernel's place may lack all.
    #[test]
    fn options_that_are_not_there_are_warnings_with_remedies() {
        let newer = [BusyPollOption::Prefer, BusyPollOption::Budget];
        let (asked, warnings) = requested(50, &newer.map(|it| (it, libc::ENOPROTOOPT)));
        assert_eq!(names(&asked), ALL, "a refusal ends nothing");
        assert_eq!(warnings.len(), 2);
        assert!(
            warnings[0].contains("SO_PREFER_BUSY_POLL=1"),
            "{warnings:?}"
        );
        assert!(warnings[0].contains("interrupts go on"), "{warnings:?}");
        assert!(
            warnings[1].contains("SO_BUSY_POLL_BUDGET=64"),
            "{warnings:?}"
        );
        for errno in [libc::ENOPROTOOPT, libc::EOPNOTSUPP, libc::EINVAL] {
            let (_, warnings) = requested(50, &[(BusyPollOption::Time, errno)]);
            assert!(warnings[0].contains("EF_POLL_USEC"), "{warnings:?}");
        }
    }

    #[test]
    fn time_beyond_the_kernels_range_is_its_maximum() {
        let (asked, _) = requested(u32::MAX, &[]);
        assert_eq!(asked[0].1, i32::MAX);
    }
}
