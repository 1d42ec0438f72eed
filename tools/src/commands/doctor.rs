//! `tickcast doctor`: checks this host for tickcast. Each check reports its finding, the reason why
//! it matters, and the remedy.

mod check;
mod fix_script;
mod host;
mod peer;
mod rdma;
mod selftest;

use std::collections::BTreeMap;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::PathBuf;

use serde::Serialize;
use tickcast_subscriber::Interface;

use check::{Check, Subject, Verdict};
use fix_script::FixScript;
use host::Role;
use peer::{Multicast, Passage};
use selftest::SelfTest;
use tickcast_tools::exit::{Exit, ToolError};
use tickcast_tools::support::output::Output;

/// The checks to run.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A publisher's config: check whether this host meets its needs, or those of its subscribers.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["rdma", "peer", "answer"])]
    config: Option<PathBuf>,
    /// The part of this host in the config: it publishes the channels, or subscribes to them.
    #[arg(long, requires = "config", default_value = "publisher")]
    role: Role,
    /// Check RDMA instead of the host in general: devices, ports, identifiers, MTU, rights, a datagram
    /// through each port, counters.
    #[arg(long, conflicts_with_all = ["peer", "answer"])]
    rdma: bool,
    /// Then run a publisher and subscribers over each device, one of them with loss; all must receive
    /// the same records.
    #[arg(long, requires = "rdma")]
    selftest: bool,
    /// Send multicast to and from another host, where `tickcast doctor --answer` runs, and report where it
    /// stops.
    #[arg(long, value_name = "HOST[:PORT]", conflicts_with = "answer")]
    peer: Option<String>,
    /// Answer one doctor of another host that has --peer, then end.
    #[arg(long, value_name = "ADDRESS:PORT", num_args = 0..=1)]
    #[arg(default_missing_value = "0.0.0.0:7410", conflicts_with_all = ["json", "fix_script"])]
    answer: Option<SocketAddr>,
    /// Group of --peer and --answer.
    #[arg(long, value_name = "GROUP:PORT", default_value_t = peer::GROUP, value_parser = group)]
    group: SocketAddrV4,
    /// Number of routers that datagrams of --peer and --answer may pass, and one; 0 keeps them on this host.
    #[arg(long, value_name = "N", default_value_t = 1)]
    ttl: u8,
    /// Interface for multicast: loopback by default, the config's with --config, that of the connection with
    /// --peer and --answer. With --rdma check only the device of this interface.
    #[arg(long, value_name = "NAME|ADDRESS")]
    interface: Option<Interface>,
    /// Number of records of the self-test.
    #[arg(long, value_name = "N", default_value_t = 200_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    records: u64,
    /// Messages per second of the self-test.
    #[arg(long, value_name = "N", default_value_t = 50_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    rate: u64,
    /// Print a JSON object instead of text.
    #[arg(long)]
    json: bool,
    /// Print a shell script of the commands that fix the findings, instead of text. Nothing is run.
    #[arg(long, conflicts_with = "json")]
    fix_script: bool,
}

/// Parses a multicast group within 239.0.0.0/8, which stays within an organisation, with a port.
fn group(text: &str) -> Result<SocketAddrV4, String> {
    match text.parse::<SocketAddrV4>() {
        Ok(group) if group.ip().octets()[0] == 239 && group.port() > 0 => Ok(group),
        _ => {
            Err("give a group within 239.0.0.0/8 and a port, for example 239.255.74.10:7410".into())
        }
    }
}

/// The results of all checks.
#[derive(Debug, Serialize)]
struct Report {
    checks: Vec<Check>,
    counts: Counts,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    selftest: Vec<SelfTest>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    passages: Vec<Passage>,
}

/// The number of checks of each verdict.
#[derive(Debug, Serialize)]
struct Counts(BTreeMap<&'static str, usize>);

impl Counts {
    fn of(checks: &[Check]) -> Self {
        let count = |verdict| checks.iter().filter(|it| it.verdict() == verdict).count();
        let counts = Verdict::ALL.map(|verdict| (verdict.word(), count(verdict)));
        Self(counts.into())
    }

    fn of_errors(&self) -> usize {
        self.0.get(Verdict::Error.word()).copied().unwrap_or(0)
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = Verdict::ALL.map(|verdict| {
            let count = self.0.get(verdict.word()).copied().unwrap_or(0);
            format!("{} {count}", verdict.word())
        });
        f.write_str(&counts.join(", "))
    }
}

/// Runs the checks and prints the results. Returns [`Exit::Finding`] if a check found an error.
///
/// # Errors
/// Returns [`ToolError`] if the config can't be read, the peer does not answer, or the output can't be
/// written.
pub(crate) fn run(args: &Args) -> Result<Exit, ToolError> {
    let multicast = Multicast {
        group: args.group,
        ttl: args.ttl,
        interface: args.interface.clone(),
    };
    if let Some(address) = args.answer {
        return peer::answer(address, &multicast);
    }
    let (mut selftest, mut passages) = (Vec::new(), Vec::new());
    let checks = if let Some(peer) = &args.peer {
        let (checks, passed) = peer::ask(peer, &multicast)?;
        passages = passed;
        checks
    } else if args.rdma {
        let (of_devices, addresses) = rdma::check(args.interface.as_ref());
        let mut checks = vec![host::memlock()];
        checks.extend(of_devices);
        if args.selftest {
            let (more, tested) = selftests(&addresses, args);
            checks.extend(more);
            selftest = tested;
        }
        checks
    } else {
        host::check(args.config.as_deref(), args.role, args.interface.as_ref())?
    };
    let report = Report {
        counts: Counts::of(&checks),
        checks,
        selftest,
        passages,
    };
    let mut output = Output::stdout();
    if args.json {
        let text = serde_json::to_string_pretty(&report).unwrap_or_default();
        output.json(text)?;
    } else if args.fix_script {
        output.line(FixScript(&report.checks))?;
    } else {
        // A terminal shows the last lines, so the worst results come last.
        let mut shown: Vec<_> = report.checks.iter().collect();
        shown.sort_by_key(|check| check.verdict());
        for check in shown {
            output.line(check)?;
        }
        output.line(&report.counts)?;
    }
    output.flush()?;
    Ok(Exit::whole_if(report.counts.of_errors() == 0))
}

/// Runs the self-test over each device.
fn selftests(addresses: &[Ipv4Addr], args: &Args) -> (Vec<Check>, Vec<SelfTest>) {
    let id = Subject::RdmaSelftest;
    let (mut checks, mut tested) = (Vec::new(), Vec::new());
    for address in addresses {
        match selftest::run(*address, args.records, args.rate) {
            Ok(test) => {
                checks.push(test.check());
                tested.push(test);
            }
            Err(reason) => checks.push(Check::error(
                id,
                format!("over {address}: {reason}"),
                "publisher and subscribers do not work over this device",
                "fix the findings above; then run this again with --log debug",
            )),
        }
    }
    if addresses.is_empty() {
        checks.push(Check::error(
            id,
            "this host has no device for it",
            "RDMA was not tested on this host",
            "fix the findings above; `make test-rdma` runs everything on Soft-RoCE, in a virtual \
             machine",
        ));
    }
    (checks, tested)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Each row of the table begins with the identifier of its subject.
    #[test]
    fn table_of_findings_has_a_row_for_each_subject() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/DOCTOR.md");
        let text = std::fs::read_to_string(path).unwrap();
        let (_, table) = text.split_once("\n| id | condition | ").unwrap();
        let rows = table.lines().filter_map(|line| line.strip_prefix("| `"));
        let rows = rows.filter_map(|row| row.split_once('`'));
        let rows: BTreeSet<&str> = rows.map(|(id, _)| id).collect();
        let ids: BTreeSet<&str> = Subject::ALL.iter().map(|it| it.id()).collect();
        assert_eq!(rows, ids);
    }

    #[test]
    fn group_of_peers_stays_within_the_organisation() {
        assert!(group("239.255.1.1:7000").is_ok());
        for wrong in [
            "239.255.1.1:0",
            "224.0.0.1:7000",
            "10.0.0.1:7000",
            "239.1.1.1",
        ] {
            assert!(group(wrong).is_err(), "{wrong}");
        }
    }
}
