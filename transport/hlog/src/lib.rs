//! Interval logs: files of latency histograms, one line an interval, channel and stage. Readers of
//! HdrHistogram logs 1.3 read them, in any language.
//!
//! The histograms of a program only grow. The log keeps those of its last line, and a line has the
//! difference. Therefore the counts of all lines add up to the program's totals.
//!
//! Order of modules, top to bottom; each imports only those below it:
//!
//! 1. `logging`: a thread that writes an interval log
//! 2. `reader`: an interval log as it is read
//! 3. `log`: an interval log as it is written
//! 4. `encoded`: the histogram of a line
//! 5. `clock`: how far two hosts' clocks differ
//! 6. `file`: a file of whole lines

mod clock;
mod encoded;
mod file;
mod log;
mod logging;
mod reader;

pub use clock::ClockOffset;
pub use log::{IntervalLog, Series};
pub use logging::IntervalLogging;
pub use reader::{Interval, IntervalLogError, each_interval, read_intervals};
