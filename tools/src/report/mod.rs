//! A report: the latency of interval logs, summaries, and accounts of losses, as one self-contained page.

mod page;
mod plot;
mod series;
mod statistics;
mod summary;
mod text;

use std::io::BufReader;
use std::path::Path;

use serde_json::Value;
use tickcast_hlog::{ClockOffset, each_interval};

use crate::exit::ToolError;
use crate::support::files::{open_regular, write_text};
use series::{Comparison, Log};
use summary::Totals;
use text::LETTERS;
pub use text::escaped;

/// A report before it is written: the latency of interval logs, summaries, and accounts of losses.
#[derive(Debug, Default)]
pub struct ReportPage {
    names: Vec<String>,
    logs: Vec<Log>,
    clocks: Vec<Option<ClockOffset>>,
    summaries: Vec<Totals>,
    accounts: Vec<Account>,
}

/// An account of losses: a heading, and its lines.
#[derive(Debug)]
pub(crate) struct Account {
    pub(crate) heading: String,
    pub(crate) lines: Vec<String>,
}

impl ReportPage {
    /// Adds an interval log under this name. Logs beyond the eighth are left out.
    ///
    /// # Errors
    /// Returns [`ToolError`] if the log can't be read or has no interval.
    pub fn add_log(&mut self, name: String, path: &Path) -> Result<(), ToolError> {
        if self.logs.len() < LETTERS.len() {
            let (log, clock) = read(path)?;
            self.names.push(name);
            self.logs.push(log);
            self.clocks.push(clock);
        }
        Ok(())
    }

    /// Adds the values of a program's summary under this name. Summaries beyond the eighth are left out.
    pub fn add_summary(&mut self, name: String, summary: &Value) {
        if self.summaries.len() < LETTERS.len() {
            self.summaries.push(Totals::of(name, summary));
        }
    }

    /// Adds an account of losses below the latency.
    pub fn add_account(&mut self, heading: String, lines: Vec<String>) {
        self.accounts.push(Account { heading, lines });
    }

    /// Writes the page to this file. Returns the number of its plots.
    ///
    /// # Errors
    /// Returns [`ToolError`] if the page can't be written.
    pub fn write(self, out: &Path) -> Result<usize, ToolError> {
        let comparison = Comparison::of(self.logs);
        let (names, clocks) = (&self.names, &self.clocks);
        let page = page::page(names, clocks, &comparison, &self.summaries, &self.accounts);
        write_text(out, &page)?;
        // Names, summaries and accounts are escaped, so they add none.
        Ok(page.matches("<svg ").count())
    }
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
