//! Wrappers of the suite around a transport: gates that it closes, and counters of its own to compare with
//! the transport's.

use std::os::fd::{BorrowedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use tickcast_reliability::delivery::LineId;
use tickcast_reliability::types::{Epoch, Nanos, Sequence, SequenceRange};
use tickcast_reliability::wire::Datagram;
use tickcast_transport::{
    FanOut, FanOutError, Posted, Receive, ReceiveError, ReceiveStats, Received, SendStats, Slots,
};

/// A fan-out, a gate in front of it, and a check of the promises of [`FanOut`].
pub struct Kept {
    inner: Box<dyn FanOut>,
    shut: Arc<AtomicBool>,
    /// The first sequence since opening or the last reset.
    first: Option<Sequence>,
    last: Option<Sequence>,
    completed: Option<Sequence>,
    /// Datagrams completed before the last reset, since opening.
    completed_before: u64,
    posted: u64,
    copies: u64,
    resets: u64,
    broken: Option<String>,
}

impl Kept {
    pub fn new(inner: Box<dyn FanOut>, shut: Arc<AtomicBool>) -> Self {
        Self {
            inner,
            shut,
            first: None,
            last: None,
            completed: None,
            completed_before: 0,
            posted: 0,
            copies: 0,
            resets: 0,
            broken: None,
        }
    }

    fn must(&mut self, kept: bool, what: impl FnOnce() -> String) {
        if !kept && self.broken.is_none() {
            self.broken = Some(what());
        }
    }

    fn completed_since_reset(&self) -> u64 {
        let first = self.first.map_or(0, |first| first.0);
        self.completed.map_or(0, |last| last.0 + 1 - first)
    }

    /// Returns whether everything posted is unpinned.
    pub fn is_done(&self) -> bool {
        self.completed == self.last
    }

    /// Returns the first broken promise, or a difference between its counters and ours. Everything must be
    /// completed.
    pub fn account(&self) -> Result<(), String> {
        if let Some(broken) = &self.broken {
            return Err(broken.clone());
        }
        for (line, stats) in self.inner.stats().iter().enumerate() {
            let reported = stats.datagrams + stats.refused;
            let handed = self.posted + self.copies;
            // With a reset, one line may have taken more than the other.
            if reported < handed || (self.resets == 0 && reported != handed) || stats.refused > 0 {
                return Err(format!(
                    "line {line}: {} posted and {} copies, but it counts {stats:?}",
                    self.posted, self.copies
                ));
            }
            if self.resets == 0 && (stats.flushed, stats.restarts) != (0, 0) {
                return Err(format!("line {line}: nobody reset it: {stats:?}"));
            }
        }
        Ok(())
    }
}

impl FanOut for Kept {
    fn post(&mut self, slots: &dyn Slots, range: SequenceRange) -> Result<Posted, FanOutError> {
        if self.shut.load(Relaxed) {
            return Ok(Posted {
                last: None,
                stalled: true,
            });
        }
        let posted = self.inner.post(slots, range)?;
        let Posted { last, stalled } = posted;
        self.must(
            last.is_none_or(|last| last >= range.first && last <= range.last),
            || format!("of {range} it took up to {last:?}"),
        );
        self.must(last == Some(range.last) || stalled, || {
            format!("of {range} it took up to {last:?}, and did not stall")
        });
        if let Some(last) = last {
            self.posted += last.0 + 1 - range.first.0;
            self.first = self.first.or(Some(range.first));
            self.last = Some(last);
        }
        Ok(posted)
    }

    fn completed(&mut self) -> Option<Sequence> {
        let completed = self.inner.completed();
        let (before, last) = (self.completed, self.last);
        self.must(completed >= before && completed <= last, || {
            format!("completed {completed:?}: it was {before:?}, posted is {last:?}")
        });
        self.completed = completed;
        let done = self.completed_before + self.completed_since_reset();
        let sent = self.inner.stats().iter().map(|line| line.datagrams);
        let sent = sent.min().unwrap_or(0);
        self.must(done <= sent, || {
            format!("{done} slots are done, {sent} datagrams were handed to the network")
        });
        completed
    }

    fn send_copy(&mut self, bytes: &[u8]) -> Result<bool, FanOutError> {
        let sent = !self.shut.load(Relaxed) && self.inner.send_copy(bytes)?;
        self.copies += u64::from(sent);
        Ok(sent)
    }

    fn reset(&mut self) {
        self.completed_before += self.completed_since_reset();
        (self.first, self.last, self.completed) = (None, None, None);
        self.resets += 1;
        self.inner.reset();
        let completed = self.inner.completed();
        self.must(completed.is_none(), || {
            format!("after a reset, {completed:?} is completed")
        });
    }

    fn datagram_len_max(&self) -> usize {
        self.inner.datagram_len_max()
    }

    fn stats(&self) -> &[SendStats] {
        self.inner.stats()
    }
}

/// A receiver, and the sequences that it delivered on each line in order of arrival, first transmissions
/// only.
pub struct Tapped {
    inner: Box<dyn Receive>,
    pub first_sent: [Vec<u64>; LineId::MAX],
    handed: [u64; LineId::MAX],
}

impl Tapped {
    pub fn new(inner: Box<dyn Receive>) -> Self {
        Self {
            inner,
            first_sent: Default::default(),
            handed: [0; LineId::MAX],
        }
    }

    /// Checks that its counters and ours agree.
    pub fn account(&self) -> Result<(), String> {
        for (line, (stats, handed)) in self.inner.stats().iter().zip(self.handed).enumerate() {
            if stats.datagrams != handed {
                return Err(format!(
                    "line {line}: {handed} datagrams handed over, but it counts {stats:?}"
                ));
            }
        }
        Ok(())
    }
}

impl Receive for Tapped {
    fn poll(
        &mut self,
        now: Nanos,
        on: &mut dyn FnMut(Received<'_>),
    ) -> Result<usize, ReceiveError> {
        let (first_sent, handed) = (&mut self.first_sent, &mut self.handed);
        self.inner.poll(now, &mut |received| {
            let line = usize::from(received.line.0);
            handed[line] += 1;
            if let Ok(datagram) = Datagram::parse(received.bytes) {
                let header = datagram.header();
                if header.kind.is_sequenced() && header.relay == 0 {
                    first_sent[line].push(header.sequence.0);
                }
            }
            on(received);
        })
    }

    fn join(&mut self, line: LineId) -> Result<(), ReceiveError> {
        self.inner.join(line)
    }

    fn leave(&mut self, line: LineId) -> Result<(), ReceiveError> {
        self.inner.leave(line)
    }

    fn rejoin(&mut self, line: LineId) -> Result<(), ReceiveError> {
        self.inner.rejoin(line)
    }

    fn take_overrun(&mut self) -> Option<(Epoch, SequenceRange)> {
        self.inner.take_overrun()
    }

    fn raw_fds(&self) -> &[RawFd] {
        self.inner.raw_fds()
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.inner.fds()
    }

    fn stats(&self) -> &[ReceiveStats] {
        self.inner.stats()
    }
}
