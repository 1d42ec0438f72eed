//! `tickcast report`: interval logs as one self-contained page. It plots each channel and stage, one log
//! beside another, and says whether they differ by more than their intervals do.

use std::path::PathBuf;

use tickcast_tools::exit::{Exit, ToolError};
use tickcast_tools::report::ReportPage;
use tickcast_tools::support::files::check_writable;
use tickcast_tools::support::plain::Plain;

/// The logs and the page.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// An interval log (HdrHistogram log 1.3), and another one to compare it with.
    #[arg(value_name = "LOG", required = true, num_args = 1..=2)]
    logs: Vec<PathBuf>,
    /// Write the page to this file.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

/// Writes the page, and says so on standard error.
///
/// # Errors
/// Returns [`ToolError`] if a log can't be read or has no interval, or the page can't be written.
pub(crate) fn run(args: &Args) -> Result<Exit, ToolError> {
    check_writable(&args.out)?;
    let mut report = ReportPage::default();
    for path in &args.logs {
        report.add_log(path.display().to_string(), path)?;
    }
    let plots = report.write(&args.out)?;
    // The page itself may go to stdout.
    eprintln!(
        "wrote {}: {}, {plots} plots",
        Plain(args.out.display()),
        match args.logs.len() {
            1 => "1 log",
            _ => "2 logs",
        }
    );
    Ok(Exit::Whole)
}
