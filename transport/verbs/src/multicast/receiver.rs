//! The verbs receiver: posted buffers of a whole packet each, lent by reference and posted again
//! in batches.
//!
//! Every buffer has room for the largest packet that any port sends, whatever the slot size and this
//! port's MTU. The MTU limits only what this port sends, and with shorter buffers one long datagram of
//! any group member would break the queue. Joining starts at opening, and later polls complete it.
//!
//! A line whose queue breaks all the same, or whose device is gone, opens them again in a helper thread,
//! while the other line continues.

mod line;
mod queue;
mod reopening;
mod waiting;

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

use tickcast_reliability::delivery::LineId;
use tickcast_reliability::types::Nanos;

use self::line::Line;
use self::waiting::Waiting;
use crate::config::VerbsReceiverConfig;
use crate::device::Device;
use crate::error::VerbsError;
use tickcast_transport_base::{Receive, ReceiveError, ReceiveStats, Received};

/// Receives a channel by RDMA multicast.
pub struct VerbsReceiver {
    lines: Vec<Line>,
    stats: Vec<ReceiveStats>,
    waiting: Waiting,
    fds: Vec<RawFd>,
}

impl VerbsReceiver {
    /// Opens a queue per line, posts its buffers, and requests its membership.
    ///
    /// # Errors
    /// [`VerbsError`] names the step that failed and the remedy.
    pub fn open(config: &VerbsReceiverConfig) -> Result<Self, VerbsError> {
        config.check()?;
        let waiting = Waiting::new(config.waitable)?;
        let lines = config.lines.iter();
        let lines = lines.map(|line| Line::open(config, line, &waiting));
        let lines = lines.collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            fds: waiting.fd().iter().map(AsRawFd::as_raw_fd).collect(),
            stats: vec![ReceiveStats::default(); lines.len()],
            lines,
            waiting,
        })
    }

    /// Returns the devices of the lines that have a queue.
    #[must_use]
    pub fn devices(&self) -> Vec<Arc<Device>> {
        let queues = self.lines.iter().filter_map(Line::queue);
        queues.map(|queue| Arc::clone(queue.device())).collect()
    }

    /// Returns whether every line is a member of its group, as of the last poll.
    #[must_use]
    pub fn is_joined(&self) -> bool {
        self.lines.iter().all(Line::is_member)
    }

    fn line(&mut self, line: LineId) -> Result<&mut Line, ReceiveError> {
        let lines = self.lines.len();
        let at = self.lines.get_mut(usize::from(line.0));
        at.ok_or(ReceiveError::NoSuchLine { line, lines })
    }
}

impl Receive for VerbsReceiver {
    fn poll(
        &mut self,
        now: Nanos,
        on: &mut dyn FnMut(Received<'_>),
    ) -> Result<usize, ReceiveError> {
        let mut count = 0;
        for i in 0..self.lines.len() {
            let (line, stats) = (&mut self.lines[i], &mut self.stats[i]);
            if line.queue().is_none() && line.take_opened(stats, &self.waiting) {
                self.waiting.take();
            }
            count += line.poll(LineId(i as u8), now, stats, &self.waiting, on);
        }
        Ok(count)
    }

    fn join(&mut self, line: LineId) -> Result<(), ReceiveError> {
        self.line(line)?.request();
        Ok(())
    }

    fn leave(&mut self, line: LineId) -> Result<(), ReceiveError> {
        let left = self.line(line)?.leave();
        left.map_err(|errno| ReceiveError::Membership {
            line,
            source: io::Error::from_raw_os_error(errno),
        })
    }

    fn raw_fds(&self) -> &[RawFd] {
        &self.fds
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.waiting.fd().into_iter().collect()
    }

    fn set_waited(&mut self, waited: bool) {
        self.lines
            .iter_mut()
            .for_each(|line| line.set_waited(waited));
    }

    fn stats(&self) -> &[ReceiveStats] {
        &self.stats
    }
}
