//! A thread that does the same work once per interval.

use std::io;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// A running thread that works once per interval. Dropping it lets it work a last time, and waits for that.
#[derive(Debug)]
pub struct PeriodicThread {
    /// The thread ends when this is dropped.
    stop: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl PeriodicThread {
    /// Starts a thread of this name, which works first after one interval. It inherits the caller's cores.
    ///
    /// # Errors
    /// Returns the operating system's error if the thread can't be started.
    pub fn start(
        name: &str,
        interval: Duration,
        mut work: impl FnMut() + Send + 'static,
    ) -> io::Result<Self> {
        let (stop, stopped) = sync_channel(0);
        let thread = Builder::new().name(name.into()).spawn(move || {
            let mut next = Instant::now() + interval;
            loop {
                let left = next.saturating_duration_since(Instant::now());
                let is_over = stopped.recv_timeout(left) != Err(RecvTimeoutError::Timeout);
                work();
                if is_over {
                    return;
                }
                // After a pause of the host, one turn covers the pause.
                next = (next + interval).max(Instant::now());
            }
        })?;
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for PeriodicThread {
    fn drop(&mut self) {
        self.stop = None;
        let Some(thread) = self.thread.take() else {
            return;
        };
        let name = thread.thread().name().unwrap_or_default().to_owned();
        if thread.join().is_err() {
            tracing::error!("the thread {name} has panicked; its last turns are missing");
        }
    }
}
