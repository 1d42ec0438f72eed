//! The lab's verbs, run as programs.

mod bench;
mod chaos;

use std::process::{Command, Output};

use tickcast_test_support::{Running, program};

/// Returns a command for the lab with these arguments.
pub(crate) fn lab(args: &[&str]) -> Command {
    program(env!("CARGO_BIN_EXE_lab"), args)
}

/// Starts the lab.
pub(crate) fn start(args: &[&str]) -> Running {
    Running::start(&mut lab(args))
}

/// Runs the lab to its end.
pub(crate) fn run(args: &[&str]) -> Output {
    start(args).output()
}
