//! Checks of this host: its processor, memory, network and clocks, against the needs of a config.
//!
//! Each check is a function of the files of /proc and /sys ([`Tree`]) and of the needs ([`Wanted`]). Those of
//! [`live`] use devices and sockets.

mod clock;
#[cfg(test)]
mod examples;
mod groups;
mod limits;
mod live;
mod memory;
mod network;
mod nic;
mod processor;
mod wanted;

use std::cmp::Reverse;
use std::path::Path;

use tickcast_publisher::Config;
use tickcast_publisher::config::InputConfig;
use tickcast_publisher::internal::{Plan, preflight};
use tickcast_subscriber::Interface;
use tickcast_tools::exit::ToolError;

use super::check::{Check, Subject};
use super::rdma;
#[cfg(test)]
pub(super) use crate::commands::tree::FakedTree;
pub(super) use crate::commands::tree::Tree;
pub(super) use wanted::Wanted;

/// The part of a host in a config.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Role {
    /// It publishes the config's channels.
    Publisher,
    /// It subscribes to them.
    Subscriber,
}

/// Runs all checks, the worst results first. Without a config, for multicast on `interface`; with one, for
/// its needs, and for multicast on `interface` if it is given. Devices of RDMA are checked for a publisher
/// whose config uses verbs.
///
/// # Errors
/// Returns [`ToolError::Usage`] if the config can't be read.
pub(super) fn check(
    config: Option<&Path>,
    role: Role,
    interface: Option<&Interface>,
) -> Result<Vec<Check>, ToolError> {
    let mut checks = unsorted(config, role, interface)?;
    checks.sort_by_key(|check| Reverse(check.verdict()));
    Ok(checks)
}

fn unsorted(
    config: Option<&Path>,
    role: Role,
    interface: Option<&Interface>,
) -> Result<Vec<Check>, ToolError> {
    let tree = Tree::of_this_host();
    let Some(path) = config else {
        let interface = interface.cloned().unwrap_or_default();
        let wanted = Wanted::on(&interface);
        let mut checks = checks(&tree, &wanted);
        checks.push(live::multicast(&interface));
        checks.push(live::rdma(&wanted));
        return Ok(checks);
    };
    let config = Config::read(path).map_err(|error| ToolError::Usage(error.to_string()))?;
    if role == Role::Subscriber {
        let wanted = Wanted::of_subscriber(&config, interface);
        let mut checks = checks(&tree, &wanted);
        checks.push(live::multicast(interface.unwrap_or(&config.interface)));
        return Ok(checks);
    }
    let wanted = Wanted::of(&config);
    let interface = interface.unwrap_or(&config.interface).clone();
    let (mut checks, plan) = planned(config);
    checks.extend(self::checks(&tree, &wanted));
    checks.push(live::multicast(&interface));
    checks.push(live::rdma(&wanted));
    if wanted.uses_verbs() {
        checks.extend(rdma::check(None).0);
    }
    // A standby listens to the publisher that it mirrors.
    if let Some(plan) = plan.filter(|plan| plan.config.standby.is_none()) {
        checks.extend(live::groups_in_use(&plan));
    }
    Ok(checks)
}

/// Checks this host's limit of locked memory, without a config's needs.
pub(super) fn memlock() -> Check {
    memory::memlock(&Tree::of_this_host(), &Wanted::default())
}

/// Runs the checks that only read.
fn checks(tree: &Tree, wanted: &Wanted) -> Vec<Check> {
    [
        processor::checks(tree, wanted),
        limits::checks(tree, wanted),
        memory::checks(tree, wanted),
        nic::checks(tree, wanted),
        network::checks(tree, wanted),
        groups::checks(tree, wanted),
        clock::checks(tree),
    ]
    .concat()
}

/// Plans a config, as the publisher does at its start. Returns the errors and warnings, and the plan.
fn planned(config: Config) -> (Vec<Check>, Option<Plan>) {
    let id = Subject::Config;
    let is_own = |input: &InputConfig| matches!(input, InputConfig::Own(_));
    let plan = if config.inputs.is_empty() || config.inputs.iter().any(is_own) {
        Plan::for_handlers(config)
    } else {
        preflight(config)
    };
    let plan = match plan {
        Ok(plan) => plan,
        Err(error) => {
            let check = Check::error(
                id,
                error.to_string(),
                "the publisher refuses to start with this config on this host",
                "change the setting as the error says",
            );
            return (vec![check], None);
        }
    };
    let warnings = plan.warnings.iter().map(|warning| {
        Check::note(
            id,
            warning,
            "the publisher starts, and logs this as a warning",
            "change the setting as the warning says",
        )
    });
    let mut checks: Vec<_> = warnings.collect();
    if checks.is_empty() {
        checks.push(Check::ok(id, "the publisher accepts it on this host"));
    }
    (checks, Some(plan))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::commands::doctor::check::Verdict;
    use crate::commands::tree::ODD;

    fn config(slots: u64) -> Config {
        let config = json!({
            "name": "a", "control": "127.0.0.1:0", "inputs": [],
            "channels": [{
                "id": 1, "name": "all", "slots": slots, "peak_datagrams_per_s": 1_000,
                "fan_out": [{ "transport": "udp", "lines": [{ "group": "239.255.90.1:7590" }] }],
            }],
        });
        Config::parse(&config.to_string()).unwrap()
    }

    #[test]
    fn config_that_a_publisher_refuses_or_warns_of_is_reported() {
        let (checks, plan) = planned(config(65_536));
        assert!(plan.is_some());
        assert_eq!(checks.len(), 1);
        assert_eq!(checks[0].verdict(), Verdict::Ok, "{}", checks[0]);
        let (checks, plan) = planned(config(512));
        assert!(plan.is_some());
        assert_eq!(checks[0].verdict(), Verdict::Note, "{}", checks[0]);
        let (checks, plan) = planned(config(1_000));
        assert!(plan.is_none());
        assert_eq!(checks[0].verdict(), Verdict::Error, "{}", checks[0]);
        assert!(checks[0].found().contains("channels[0]"), "{}", checks[0]);
    }

    /// Files of all kinds with odd contents make no check panic.
    #[test]
    fn tree_of_odd_contents_gives_every_check_a_result() {
        let odd = ODD.into_iter().chain(["a b c d e f g h i j k l\n"]);
        let paths = [
            "/proc/self/status",
            "/proc/self/limits",
            "/proc/self/cgroup",
            "/proc/self/mountinfo",
            "/proc/meminfo",
            "/proc/interrupts",
            "/proc/irq/1/smp_affinity_list",
            "/proc/1/comm",
            "/proc/net/igmp",
            "/proc/net/route",
            "/proc/net/snmp",
            "/proc/net/netstat",
            "/proc/net/udp",
            "/proc/net/softnet_stat",
            "/proc/sys/net/core/rmem_max",
            "/proc/sys/net/core/busy_read",
            "/proc/sys/net/ipv4/conf/all/rp_filter",
            "/sys/class/net/eth0/flags",
            "/sys/class/net/eth0/mtu",
            "/sys/class/net/eth0/statistics/rx_dropped",
            "/sys/class/ptp/ptp0/clock_name",
            "/sys/devices/system/cpu/online",
            "/sys/devices/system/cpu/isolated",
            "/sys/devices/system/cpu/smt/active",
            "/sys/devices/system/clocksource/clocksource0/current_clocksource",
            "/sys/kernel/mm/transparent_hugepage/enabled",
            "/sys/fs/cgroup/cpu.max",
        ];
        let wanted = wanted::wanted(json!({
            "threads": { "idle": "spin", "feed_core": 1 },
            "inputs": [{ "source": 1, "kind": "udp", "lines": [{ "listen": "239.1.1.1:100" }] }],
        }));
        for text in odd {
            let faked = FakedTree::of(&[]);
            for path in paths {
                faked.put(path, text);
            }
            let checks = checks(&faked.tree(), &wanted);
            assert!(checks.len() > 25, "{text:?}: {}", checks.len());
            for check in checks {
                assert!(!check.to_string().contains('\u{1b}'), "{check}");
            }
        }
    }
}
