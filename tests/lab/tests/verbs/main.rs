//! The lab's verbs, run as programs.

mod bench;
mod chaos;

use std::process::{Command, Output};

use tickcast_test_support::{Running, program};

/// The program with these arguments.
pub(crate) fn lab(args: &[&str]) -> Command {
    program(env!("CARGO_BIN_EXE_lab"), args)
}

/// Starts it.
pub(crate) fn start(args: &[&str]) -> Running {
    Running::start(&mut lab(args))
}

/// Runs it to its end.
pub(crate) fn run(args: &[&str]) -> Output {
    start(args).output()
}
