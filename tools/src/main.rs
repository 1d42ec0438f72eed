//! `tickcast`: moves market data, injects faults, and reports every loss exactly.
//!
//! Every verb is a module of `commands`. Results go to stdout, everything else to stderr. Exit codes:
//! [`tickcast_tools::exit`].

mod cli;
mod commands;

use std::process::ExitCode;

use clap::CommandFactory;
use cli::{Cli, Command};
use tickcast_tools::exit::run_program;

fn main() -> ExitCode {
    run_program("tickcast", |cli: Cli| {
        cli.log.start()?;
        match cli.command {
            Command::Demo(args) => commands::demo::run(&args),
            Command::Inspect(args) => commands::inspect::run(&args),
            Command::Listen(args) => commands::listen::run(&args),
            Command::Replay(args) => commands::replay::run(&args),
            Command::Plan(args) => commands::plan::run(&args),
            Command::Simulate(args) => commands::simulate::run(&args),
            Command::Inject(args) => commands::inject::run(&args),
            Command::Promote(args) => commands::promote::run(&args),
            Command::Reload(args) => commands::reload::run(&args),
            Command::Explain(args) => commands::explain::run(&args),
            Command::Report(args) => commands::report::run(&args),
            Command::Top(args) => commands::top::run(&args),
            Command::Loss(args) => commands::loss::run(&args),
            Command::Doctor(args) => commands::doctor::run(&args),
            Command::AcceptRdma(args) => commands::accept_rdma::run(&args),
            Command::Manual(args) => commands::manual::run(&args, Cli::command()),
        }
    })
}
