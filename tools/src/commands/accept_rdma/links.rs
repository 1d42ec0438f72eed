//! Links that a step takes down for a while, with the addresses and routes that go with them.

use std::thread::sleep;
use std::time::{Duration, Instant};

use tickcast_transport::verbs::ports;

use super::command::output;
use super::order::{LineFacts, NotDone};

/// Time limit of one call of `ip`.
const CALL_MAX: Duration = Duration::from_secs(20);
/// Time limit for a port to become active again.
const ACTIVE_MAX: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);
/// Flags that `ip` shows and refuses as arguments.
const STATES: [&str; 6] = [
    "linkdown",
    "dead",
    "offload",
    "trap",
    "tentative",
    "dadfailed",
];

/// Reason why no link of InfiniBand is taken down.
pub(super) const ON_INFINIBAND: &str =
    "InfiniBand goes on while IPoIB is down; give --pause-a and --resume-a";

/// Takes the link of a line down for `time`, then up, and waits until its port is active.
///
/// # Errors
/// Returns [`NotDone::Unavailable`] on InfiniBand, where IPoIB may be down and multicast goes on, and
/// [`NotDone::Failed`] with the words of `ip`, which needs root. The link is up then, unless that failed.
pub(super) fn break_for(line: &LineFacts, time: Duration) -> Result<(), NotDone> {
    if !line.is_ethernet {
        return Err(NotDone::Unavailable(ON_INFINIBAND.into()));
    }
    let mut broken = Broken::take_down(&line.interface)?;
    sleep(time);
    broken.bring_up()?;
    let until = Instant::now() + ACTIVE_MAX;
    while !is_active(line) {
        if Instant::now() >= until {
            return Err(NotDone::Failed(format!(
                "{} was not active {} s after its link came up",
                line.device,
                ACTIVE_MAX.as_secs()
            )));
        }
        sleep(POLL);
    }
    Ok(())
}

fn is_active(line: &LineFacts) -> bool {
    let ports = ports::all().unwrap_or_default();
    let mut own = ports
        .iter()
        .filter(|it| it.device == line.device && it.port == line.port);
    own.any(ports::Port::is_active)
}

/// A link that is down. Dropping it brings the link up.
struct Broken {
    interface: String,
    is_down: bool,
    /// Commands of `ip` that bring back what the kernel drops with the link.
    lost: Vec<Vec<String>>,
}

impl Broken {
    fn take_down(interface: &str) -> Result<Self, NotDone> {
        let show = |args: &[&str]| {
            let args: Vec<_> = args.iter().copied().chain(["dev", interface]).collect();
            output("ip", &args, CALL_MAX)
        };
        // The kernel keeps IPv4 addresses, and drops those of IPv6.
        let mut lost = restorable(
            &["-6", "address"],
            interface,
            &show(&["-6", "-o", "address", "show", "scope", "global"])?,
        );
        for family in ["-4", "-6"] {
            let routes = show(&[family, "route", "show", "table", "all"])?;
            lost.extend(restorable(&[family, "route"], interface, &routes));
        }
        // A call that fails or is late may have taken the link down all the same.
        let broken = Self {
            interface: interface.to_owned(),
            is_down: true,
            lost,
        };
        let down = ["link", "set", "dev", interface, "down"];
        output("ip", &down, CALL_MAX).map(|_| broken)
    }

    /// Brings the link up, then addresses and routes, as often as one of them helps another.
    fn bring_up(&mut self) -> Result<(), NotDone> {
        output(
            "ip",
            &["link", "set", "dev", &self.interface, "up"],
            CALL_MAX,
        )?;
        self.is_down = false;
        loop {
            let before = self.lost.len();
            let mut last = Ok(String::new());
            self.lost.retain(|command| {
                let args: Vec<_> = command.iter().map(String::as_str).collect();
                let done = output("ip", &args, CALL_MAX);
                let is_lost = done.is_err();
                if is_lost {
                    last = done;
                }
                is_lost
            });
            if self.lost.is_empty() {
                return Ok(());
            }
            if self.lost.len() == before {
                return last.map(drop);
            }
        }
    }
}

impl Drop for Broken {
    fn drop(&mut self) {
        if self.is_down
            && let Err(error) = self.bring_up()
        {
            tracing::error!(
                "{} was taken down and does not come up: {error}",
                self.interface
            );
        }
    }
}

/// Returns the commands of `ip` that bring back what it shows of an interface. The kernel brings back its own
/// part (`proto kernel`), and router advertisements theirs.
fn restorable(object: &[&str], interface: &str, shown: &str) -> Vec<Vec<String>> {
    const BY_ITSELF: [&str; 5] = [
        "proto kernel",
        "proto ra",
        "expires",
        "dynamic",
        "temporary",
    ];
    let returns = |line: &str| BY_ITSELF.iter().any(|mark| line.contains(mark));
    let lines = shown
        .lines()
        .filter(|line| !returns(line) && !line.trim().is_empty());
    let lines = lines.map(|line| {
        let mut words: Vec<_> = line.split_whitespace().collect();
        if object.contains(&"address") {
            // `2: eth0    inet6 2001:db8::1/64 scope global \       valid_lft forever …`
            words = words
                .iter()
                .copied()
                .skip_while(|it| *it != "inet6")
                .skip(1)
                .take(1)
                .collect();
        }
        let words = words.into_iter().filter(|word| !STATES.contains(word));
        let head = object.iter().copied().chain(["replace"]);
        let all = head.chain(words).chain(["dev", interface]);
        all.map(str::to_owned).collect()
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_come_back_without_states_of_the_kernel() {
        let shown = "default via 10.0.0.254 proto static linkdown \n\
            10.0.0.0/24 proto kernel scope link src 10.0.0.1 \n\
            fe80::/64 proto ra metric 100 expires 1793sec \n\
            224.0.0.0/4 table 101 scope link offload \n\n";
        let commands = restorable(&["-4", "route"], "eth1", shown);
        let commands: Vec<_> = commands.iter().map(|it| it.join(" ")).collect();
        assert_eq!(
            commands,
            [
                "-4 route replace default via 10.0.0.254 proto static dev eth1",
                "-4 route replace 224.0.0.0/4 table 101 scope link dev eth1",
            ]
        );
    }

    #[test]
    fn ipv6_addresses_come_back_alone() {
        let shown = "3: eth1    inet6 2001:db8::7/64 scope global tentative \\       valid_lft forever\n\
             3: eth1    inet6 2001:db8::8/64 scope global dynamic \\       valid_lft 86000sec\n";
        let commands = restorable(&["-6", "address"], "eth1", shown);
        assert_eq!(commands.len(), 1);
        assert_eq!(
            commands[0].join(" "),
            "-6 address replace 2001:db8::7/64 dev eth1"
        );
    }
}
