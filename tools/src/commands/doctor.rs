//! `tickcast doctor`: looks at what this host has for tickcast and says of each thing what was found,
//! why it matters, and what to do about it.

mod host;
mod rdma;
mod selftest;

use std::fmt;

use serde::Serialize;
use tickcast_subscriber::Interface;

use selftest::SelfTest;
use tickcast_tools::exit::{CommandError, Exit};
use tickcast_tools::support::output::Output;

/// What to look at.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Look at RDMA instead of the host in general: devices, ports, identifiers, MTU, rights, a datagram
    /// through each port, counters.
    #[arg(long)]
    rdma: bool,
    /// Then run publisher and subscribers over each device, one of them with loss: all must have the
    /// same records in the end.
    #[arg(long, requires = "rdma")]
    selftest: bool,
    /// The interface for multicast, loopback where it is left out; with --rdma only the device of this one.
    #[arg(long, value_name = "NAME|ADDRESS")]
    interface: Option<Interface>,
    /// Records of the self-test.
    #[arg(long, value_name = "N", default_value_t = 200_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    records: u64,
    /// Messages a second of the self-test.
    #[arg(long, value_name = "N", default_value_t = 50_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    rate: u64,
    /// Print a JSON object instead of text.
    #[arg(long)]
    json: bool,
}

/// How something was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    /// As it should be.
    Ok,
    /// It works, but one should know.
    Note,
    /// It does not work.
    Finding,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Check {
    verdict: Verdict,
    /// What was looked at, and what was found.
    found: String,
    /// Why it matters; empty where all is well.
    #[serde(skip_serializing_if = "str::is_empty")]
    why: &'static str,
    /// What to do; empty where there is nothing to do.
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

/// All that was found.
#[derive(Debug, Serialize)]
struct Report {
    checks: Vec<Check>,
    findings: usize,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    selftest: Vec<SelfTest>,
}

/// Looks, and says what was found; [`Exit::Finding`] where something was.
///
/// # Errors
/// [`CommandError`] when the result can't be written.
pub(crate) fn run(args: &Args) -> Result<Exit, CommandError> {
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
                    "mend what is found above; run it again with --log debug",
                )),
            }
        }
        if addresses.is_empty() {
            checks.push(Check::finding(
                "self-test: there is no device to run it over",
                "nothing of RDMA was proven on this host",
                "mend what is found above; `make test-rdma` runs everything on Soft-RoCE, in a virtual machine",
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
