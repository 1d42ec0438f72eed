//! A thread that writes an interval log.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tickcast_reliability::types::Counter;
use tickcast_transport_base::host::clock::{Clock, SystemClock};
use tickcast_transport_base::host::periodic_thread::PeriodicThread;

use crate::clock::ClockOffset;
use crate::log::{IntervalLog, Series};

/// A running thread that writes an interval log. Dropping it writes the last interval, and waits for that.
#[derive(Debug)]
pub struct IntervalLogging {
    _thread: PeriodicThread,
}

impl IntervalLogging {
    /// Starts a thread that reads the totals and the clocks' offset, and writes the log, once per interval.
    /// The thread inherits the caller's cores. Attempts to write that failed are counted in `failed`.
    ///
    /// # Errors
    /// Returns the operating system's error if the thread can't be started.
    pub fn start(
        mut log: IntervalLog,
        interval: Duration,
        failed: Arc<Counter>,
        mut totals: impl FnMut() -> (Vec<Series>, Option<ClockOffset>) + Send + 'static,
    ) -> io::Result<Self> {
        let thread = PeriodicThread::start("interval-log", interval, move || {
            let (all, offset) = totals();
            log.note_clock(offset);
            log.write(SystemClock.utc(), all, &failed);
        })?;
        Ok(Self { _thread: thread })
    }
}
