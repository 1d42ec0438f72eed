//! The helper thread of a receiving line. It closes a queue whose device failed it, and opens another one.
//! The thread that polls makes none of these calls, because a card in trouble takes seconds to minutes for
//! each.

use std::io;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::Builder;
use std::time::Duration;

use super::queue::ReceiveQueue;
use super::waiting::WakeUp;
use crate::config::{VerbsReceiveLine, VerbsReceiverConfig};
use crate::device::leave_pinned_core;

/// Interval between attempts.
pub(super) const RETRY_EVERY: Duration = Duration::from_millis(500);

/// A queue to replace, and the delay of the first attempt to open another one.
type Task = (Box<ReceiveQueue>, Duration);

/// The line's side of the thread. Dropping it ends the thread, and does not wait for the call under way.
pub(super) struct Reopening {
    tasks: Sender<Task>,
    opened: Receiver<Box<ReceiveQueue>>,
}

impl Reopening {
    /// Starts the thread.
    ///
    /// # Errors
    /// The operating system's error.
    pub(super) fn start(
        config: &VerbsReceiverConfig,
        line: &VerbsReceiveLine,
        wake_up: &WakeUp,
    ) -> io::Result<Self> {
        let (to_thread, tasks) = mpsc::channel();
        let (to_line, opened) = mpsc::channel();
        let (config, line, wake_up) = (config.clone(), line.clone(), wake_up.clone());
        Builder::new().name("verbs-line".into()).spawn(move || {
            leave_pinned_core();
            while let Ok((queue, delay)) = tasks.recv() {
                drop(queue);
                let Some(queue) = reopen(&config, &line, delay, &tasks) else {
                    return;
                };
                if to_line.send(queue).is_err() {
                    return;
                }
                wake_up.send();
            }
        })?;
        Ok(Self {
            tasks: to_thread,
            opened,
        })
    }

    /// Hands a queue over that is to be replaced. Returns whether the thread still runs.
    pub(super) fn replace(&self, queue: Box<ReceiveQueue>, delay: Duration) -> bool {
        // After a panic of the thread nobody closes the queue. Dropping it here could wait for the device.
        let sent = self.tasks.send((queue, delay));
        sent.map_err(std::mem::forget).is_ok()
    }

    /// Returns the new queue, once it is open.
    pub(super) fn opened(&self) -> Option<Box<ReceiveQueue>> {
        self.opened.try_recv().ok()
    }
}

/// Opens a queue, as often as it takes. Returns `None` when it is not wanted any more.
fn reopen(
    config: &VerbsReceiverConfig,
    line: &VerbsReceiveLine,
    mut delay: Duration,
    tasks: &Receiver<Task>,
) -> Option<Box<ReceiveQueue>> {
    let mut is_reported = false;
    loop {
        // The line has no queue to hand over, so only its end comes.
        match tasks.recv_timeout(delay) {
            Err(RecvTimeoutError::Timeout) => delay = RETRY_EVERY,
            _ => return None,
        }
        match ReceiveQueue::open(config, line) {
            Ok(queue) => return Some(Box::new(queue)),
            Err(error) if !is_reported => {
                let group = line.group;
                tracing::warn!(%group, "a receive queue can't be opened, and is tried again: {error}");
                is_reported = true;
            }
            Err(_) => {}
        }
    }
}
