//! `lab`: measures tickcast beside its peers, injects faults into a whole system, and watches it for long.
//!
//! The verbs start the programs under test as processes of their own. The result goes to stdout,
//! everything else to stderr. Exit codes: [`tickcast_tools::exit`].

mod bench;
mod chaos;
mod leftovers;
mod memory;
mod network;
mod soak;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tickcast_tools::exit::run_program;
use tickcast_tools::support::args::LogArgs;

/// Measures tickcast beside its peers, and injects faults into a whole system.
#[derive(Debug, Parser)]
#[command(
    name = "lab",
    version,
    after_help = "Exit codes: 0 whole, 1 loss or finding, 2 usage or config, 3 unreachable, \
                  4 internal, or refused by the host."
)]
struct Cli {
    /// The verb to run.
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    log: LogArgs,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measures tickcast beside a raw floor and beside peers, in one run.
    Bench(bench::command::Args),
    /// Takes part in a measurement; started by `bench`.
    #[command(hide = true)]
    BenchSide(bench::command::SideArgs),
    /// Kills, stops, cuts off and starves a whole system, and checks that every record is accounted for.
    Chaos(chaos::command::Args),
    /// Takes part in a chaos run; started by `chaos`.
    #[command(hide = true)]
    ChaosSide(chaos::command::SideArgs),
    /// Watches a publisher and a subscriber for hours, in minutes, and checks that no memory grows.
    Soak(soak::Args),
}

fn main() -> ExitCode {
    run_program("lab", |cli: Cli| {
        cli.log.start()?;
        match cli.command {
            Command::Bench(args) => bench::command::run(&args),
            Command::BenchSide(args) => bench::command::side(&args),
            Command::Chaos(args) => chaos::command::run(&args),
            Command::ChaosSide(args) => chaos::command::side(&args),
            Command::Soak(args) => soak::run(&args),
        }
    })
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
