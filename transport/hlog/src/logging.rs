//! A thread that writes an interval log.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use tickcast_reliability::types::Counter;
use tickcast_transport_base::host::clock::{Clock, SystemClock};

use crate::clock::ClockOffset;
use crate::log::{IntervalLog, Series};

/// A running thread that writes an interval log. Dropping it writes the last interval, and waits for that.
#[derive(Debug)]
pub struct IntervalLogging {
    /// The thread ends when this is dropped.
    stop: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
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
        let (stop, stopped) = sync_channel(0);
        let thread = Builder::new().name("interval-log".into()).spawn(move || {
            let mut next = Instant::now() + interval;
            loop {
                let left = next.saturating_duration_since(Instant::now());
                let is_over = stopped.recv_timeout(left) != Err(RecvTimeoutError::Timeout);
                let (all, offset) = totals();
                log.note_clock(offset);
                log.write(SystemClock.utc(), all, &failed);
                if is_over {
                    return;
                }
                // After a pause of the host, one line covers the pause.
                next = (next + interval).max(Instant::now());
            }
        })?;
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for IntervalLogging {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!(
                "the thread of the interval log has panicked; its last lines are missing"
            );
        }
    }
}
