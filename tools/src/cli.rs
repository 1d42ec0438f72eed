//! The command line: the verbs and the options that they share.

use clap::{Parser, Subcommand};
use tickcast_tools::support::args::LogArgs;

use crate::commands::{demo, doctor, explain, inject, inspect, listen, promote, replay, simulate};

/// Moves market data about, breaks it on purpose, and says exactly what became of it.
#[derive(Debug, Parser)]
#[command(
    name = "tickcast",
    version,
    after_help = "Exit codes: 0 whole, 1 loss or finding, 2 usage or config, 3 unreachable, \
                  4 internal, or refused by the host."
)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
    #[command(flatten)]
    pub(crate) log: LogArgs,
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Runs the whole system on this host, under loss, and proves that nothing is missing.
    Demo(demo::Args),
    /// Joins a live publisher and prints or counts what it publishes.
    Listen(listen::Args),
    /// Paces a capture into a publisher's live UDP input.
    Replay(replay::Args),
    /// Decodes a recording and says what became of each frame and byte.
    Inspect(inspect::Args),
    /// Writes a capture of a simulated market.
    Simulate(simulate::Args),
    /// Relays one multicast group to another with faults, and reports exactly which.
    Inject(inject::Args),
    /// Has a standby take over from its publisher.
    Promote(promote::Args),
    /// Says from records where each missing datagram was lost, and replays them.
    Explain(explain::Args),
    /// Looks at what this host has for tickcast: finding, why, what to do.
    Doctor(doctor::Args),
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn every_verb_and_option_has_help() {
        tickcast_test_support::assert_has_help(Cli::command());
    }
}
