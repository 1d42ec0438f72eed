//! `tickcast`: moves market data about, breaks it on purpose, and says exactly what became of it.
//!
//! Every verb is a file of `commands/`; what it prints on stdout is its result, everything else
//! goes to stderr. Exit codes: [`exit`].

mod bench;
mod chaos;
mod cli;
mod commands;
mod digest;
mod exit;
mod faults;
mod files;
mod leftovers;
mod network;
mod output;
mod packets;
mod processes;
mod progress;
mod send;
mod signals;
mod table;

use std::process::ExitCode;

use clap::Parser;

use cli::{Cli, Command};
use exit::{CommandError, Exit};

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are answers, not errors. Nobody is left to tell if this fails.
            let _ = error.print();
            let asked = !error.use_stderr();
            return if asked { Exit::Whole } else { Exit::Usage }.into();
        }
    };
    cli.log.start();
    let done = match cli.command {
        Command::Demo(args) => commands::demo::run(&args),
        Command::Listen(args) => commands::listen::run(&args),
        Command::Replay(args) => commands::replay::run(&args),
        Command::Inject(args) => commands::inject::run(&args),
        Command::Promote(args) => commands::promote::run(&args),
        Command::Explain(args) => commands::explain::run(&args),
        Command::Doctor(args) => commands::doctor::run(&args),
        Command::Bench(args) => commands::bench::run(&args),
        Command::BenchSide(args) => commands::bench::side(&args),
        Command::Chaos(args) => commands::chaos::run(&args),
        Command::ChaosSide(args) => commands::chaos::side(&args),
    };
    match done {
        Ok(exit) => exit.into(),
        Err(CommandError::NobodyReads) => Exit::Whole.into(),
        Err(error) => {
            eprintln!("tickcast: {error}");
            error.exit().into()
        }
    }
}
