//! The command line: its verbs, and the options common to all of them.

use clap::{Parser, Subcommand};
use tickcast_tools::support::args::LogArgs;

use crate::commands::{
    accept_rdma, demo, doctor, explain, inject, inspect, listen, loss, manual, plan, promote,
    reload, replay, report, simulate, top,
};

/// Moves market data, injects faults, and reports every loss exactly.
#[derive(Debug, Parser)]
#[command(
    name = "tickcast",
    version,
    after_help = "Exit codes: 0 whole, 1 loss or finding, 2 usage or config, 3 unreachable, \
                  4 internal, or refused by the host."
)]
pub(crate) struct Cli {
    /// The command to run.
    #[command(subcommand)]
    pub(crate) command: Command,
    #[command(flatten)]
    pub(crate) log: LogArgs,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Runs the whole system on this host, under loss, and proves that nothing is missing.
    Demo(demo::Args),
    /// Joins a live publisher, and prints or counts its records.
    Listen(Box<listen::Args>),
    /// Paces a capture into a publisher's live UDP input.
    Replay(replay::Args),
    /// Decodes a recording and says what became of each frame and byte.
    Inspect(inspect::Args),
    /// Measures the peaks of a recording, and sizes a publisher for them.
    Plan(plan::Args),
    /// Writes a capture of a simulated market.
    Simulate(simulate::Args),
    /// Relays one multicast group to another with faults, and reports each fault.
    Inject(inject::Args),
    /// Promotes a standby, which takes over from its publisher.
    Promote(promote::Args),
    /// Lets a running publisher read its config again.
    Reload(reload::Args),
    /// Reports from journals where each missing datagram was lost, and replays them.
    Explain(explain::Args),
    /// Plots interval logs of latency on one page, and compares two of them.
    Report(report::Args),
    /// Shows publishers and all subscribers live: rates, lag, repairs, losses, lines and sources.
    Top(top::Args),
    /// Prints who lost what, when, why, how it was repaired, and how long that took.
    Loss(loss::Args),
    /// Checks this host for tickcast, and reports findings, reasons and remedies.
    Doctor(doctor::Args),
    /// Runs the whole system over RDMA between two hosts, and reports what passes.
    AcceptRdma(Box<accept_rdma::Args>),
    /// Writes the man pages and shell completions of both programs into a folder, for packages.
    #[command(hide = true)]
    Manual(manual::Args),
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn command_line_help_covers_all_verbs_and_options() {
        tickcast_test_support::assert_has_help(Cli::command());
    }
}
