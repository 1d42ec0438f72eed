//! `tickcast report`: interval logs as one self-contained page. It plots each channel and stage, one log
//! beside another, and says whether they differ by more than their intervals do.

mod page;
mod plot;
pub(crate) mod series;
mod statistics;

use std::io::BufReader;
use std::path::{Path, PathBuf};

use tickcast_hlog::{ClockOffset, each_interval};
use tickcast_tools::exit::{Exit, ToolError};
use tickcast_tools::support::files::{check_writable, open_regular, write_text};

use series::{Comparison, Log};

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

/// Writes the page.
///
/// # Errors
/// Returns [`ToolError`] if a log can't be read or has no interval, or the page can't be written.
pub(crate) fn run(args: &Args) -> Result<Exit, ToolError> {
    check_writable(&args.out)?;
    let logs = args.logs.iter().map(|path| read(path));
    let logs = logs.collect::<Result<Vec<_>, _>>()?;
    let (logs, clocks): (Vec<_>, Vec<_>) = logs.into_iter().unzip();
    let comparison = Comparison::of(logs);
    let names: Vec<_> = args
        .logs
        .iter()
        .map(|it| it.display().to_string())
        .collect();
    write_text(&args.out, &page::page(&names, &clocks, &comparison))?;
    Ok(Exit::Whole)
}

/// Returns the contents of a log, and the worst offset of the clocks.
fn read(path: &Path) -> Result<(Log, Option<ClockOffset>), ToolError> {
    let file = BufReader::new(open_regular(path)?);
    let shown = path.display();
    let (mut log, mut taken) = (Log::default(), Ok(()));
    let whole = each_interval(file, |interval| {
        if taken.is_ok() {
            taken = log.take(&interval);
        }
    });
    let clock = whole.map_err(|error| ToolError::Usage(format!("{shown}: {error}")))?;
    taken.map_err(|error| ToolError::Usage(format!("{shown} {error}")))?;
    if log.is_empty() {
        let text = format!("{shown} has no interval; let its program run for one, or end it");
        return Err(ToolError::Usage(text));
    }
    Ok((log, clock))
}
