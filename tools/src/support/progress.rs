//! Progress of long work: a bar on a terminal, otherwise a line of text at intervals.

use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

const LINES_EVERY: Duration = Duration::from_secs(2);
const BAR_EVERY: Duration = Duration::from_millis(100);

/// Progress on stderr.
pub struct ProgressReport {
    bar: Option<ProgressBar>,
    name: &'static str,
    total: Option<u64>,
    quiet: bool,
    shown_at: Instant,
}

impl ProgressReport {
    /// Creates progress towards `total`, or without a known end. With `quiet`, shows nothing.
    pub fn new(name: &'static str, total: Option<u64>, quiet: bool) -> Self {
        let bar = (!quiet && stderr().is_terminal()).then(|| {
            let target = ProgressDrawTarget::stderr();
            let template = if total.is_some() {
                "{prefix} {bar:30} {percent:>3}% {elapsed} {wide_msg}"
            } else {
                "{prefix} {spinner} {elapsed} {wide_msg}"
            };
            let style = ProgressStyle::with_template(template);
            ProgressBar::with_draw_target(total, target)
                .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
                .with_prefix(name)
        });
        Self {
            bar,
            name,
            total,
            quiet,
            shown_at: Instant::now(),
        }
    }

    /// Shows the position if an update is due. `message` is called only then.
    pub fn show(&mut self, position: u64, message: impl FnOnce() -> String) {
        let every = if self.bar.is_some() {
            BAR_EVERY
        } else {
            LINES_EVERY
        };
        if self.quiet || self.shown_at.elapsed() < every {
            return;
        }
        self.shown_at = Instant::now();
        if let Some(bar) = &self.bar {
            bar.set_position(position);
            bar.set_message(message());
            return;
        }
        let percent = |total: u64| position.min(total) * 100 / total.max(1);
        match self.total.map(percent) {
            Some(percent) => eprintln!("{}: {percent}%, {}", self.name, message()),
            None => eprintln!("{}: {}", self.name, message()),
        }
    }

    /// Removes the bar, so that further output starts on its own line.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
