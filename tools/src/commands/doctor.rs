//! `tickcast doctor`: checks this host for tickcast. Each check reports its finding, the reason why
//! it matters, and the remedy.

mod host;
mod rdma;
mod selftest;

use std::fmt;

use serde::Serialize;
use tickcast_subscriber::Interface;

use selftest::SelfTest;
use tickcast_tools::exit::{Exit, ToolError};
use tickcast_tools::support::output::Output;

/// The checks to run.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Check RDMA instead of the host in general: devices, ports, identifiers, MTU, rights, a datagram
    /// through each port, counters.
    #[arg(long)]
    rdma: bool,
    /// Then run a publisher and subscribers over each device, one of them with loss; all must receive
    /// the same records.
    #[arg(long, requires = "rdma")]
    selftest: bool,
    /// Interface for multicast, loopback by default; with --rdma check only the device of this interface.
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
}

/// The verdict of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    /// The host is as it should be.
    Ok,
    /// It works, with a limitation worth knowing.
    Note,
    /// It does not work.
    Finding,
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Check {
    verdict: Verdict,
    /// Subject and result.
    found: String,
    /// Why the result matters; empty if all is well.
    #[serde(skip_serializing_if = "str::is_empty")]
    why: &'static str,
    /// Remedy; empty if none is needed.
    #[serde(rename = "do", skip_serializing_if = "String::is_empty")]
    remedy: String,
}

impl Check {
    fn ok(found: impl Into<String>) -> Self {
        Self {
            verdict: Verdict::Ok,
            found: found.into(),
            why: "",
            remedy: String::new(),
        }
    }

    fn note(found: impl Into<String>, why: &'static str, remedy: impl Into<String>) -> Self {
        Self {
            verdict: Verdict::Note,
            why,
            remedy: remedy.into(),
            ..Self::ok(found)
        }
    }

    fn finding(found: impl Into<String>, why: &'static str, remedy: impl Into<String>) -> Self {
        Self {
            verdict: Verdict::Finding,
            ..Self::note(found, why, remedy)
        }
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = match self.verdict {
            Verdict::Ok => "ok",
            Verdict::Note => "note",
            Verdict::Finding => "FINDING",
        };
        write!(f, "{verdict:<8} {}", self.found)?;
        if !self.why.is_empty() {
            write!(f, "\n         why: {}", self.why)?;
        }
        if !self.remedy.is_empty() {
            write!(f, "\n         do:  {}", self.remedy)?;
        }
        Ok(())
    }
}

/// The results of all checks.
#[derive(Debug, Serialize)]
struct Report {
    checks: Vec<Check>,
    findings: usize,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    selftest: Vec<SelfTest>,
}

/// Runs the checks and prints the results. Returns [`Exit::Finding`] if a check found a problem.
///
/// # Errors
/// Returns [`ToolError`] if the output can't be written.
pub(crate) fn run(args: &Args) -> Result<Exit, ToolError> {
    let (mut checks, addresses) = if args.rdma {
        rdma::look(args.interface.as_ref())
    } else {
        let interface = args.interface.clone().unwrap_or_default();
        (host::look(&interface), Vec::new())
    };
    let mut selftest = Vec::new();
    if args.selftest {
        for address in &addresses {
            match selftest::run(*address, args.records, args.rate) {
                Ok(test) => {
                    checks.push(test.check());
                    selftest.push(test);
                }
                Err(reason) => checks.push(Check::finding(
                    format!("self-test over {address}: {reason}"),
                    "publisher and subscribers do not work over this device",
                    "fix the findings above; then run this again with --log debug",
                )),
            }
        }
        if addresses.is_empty() {
            checks.push(Check::finding(
                "self-test: this host has no device for it",
                "RDMA was not tested on this host",
                "fix the findings above; `make test-rdma` runs everything on Soft-RoCE, in a \
                 virtual machine",
            ));
        }
    }
    let found = |check: &&Check| check.verdict == Verdict::Finding;
    let report = Report {
        findings: checks.iter().filter(found).count(),
        checks,
        selftest,
    };
    let mut output = Output::stdout();
    if args.json {
        let text = serde_json::to_string_pretty(&report).unwrap_or_default();
        output.line(text)?;
    } else {
        for check in &report.checks {
            output.line(check)?;
        }
        output.line(format_args!("{} findings", report.findings))?;
    }
    output.flush()?;
    Ok(Exit::whole_if(report.findings == 0))
}
