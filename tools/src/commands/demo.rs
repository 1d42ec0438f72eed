//! demo
use crate::exit::{CommandError, Exit};
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}
pub(crate) fn run(_: &Args) -> Result<Exit, CommandError> { Ok(Exit::Whole) }
