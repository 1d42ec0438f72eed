//! Faults around any receiver, as a bad network before it would cause them.

use std::net::Ipv4Addr;
use std::os::fd::{BorrowedFd, RawFd};

use tickcast_reliability::delivery::LineId;
use tickcast_reliability::types::{Epoch, Nanos, SequenceRange};

use super::config::{FaultConfig, FaultConfigError};
use super::injector::FaultInjector;
use tickcast_transport_base::{Receive, ReceiveError, ReceiveStats, Received};

/// A receiver behind a bad network. Each line has an injector of its own.
pub struct FaultyReceiver<R> {
    inner: R,
    injectors: Vec<FaultInjector<Ipv4Addr>>,
}

impl<R: Receive> FaultyReceiver<R> {
    /// Applies the faults of `config` to each line of `inner`. Line B's seed is line A's plus one.
    ///
    /// # Errors
    /// [`FaultConfigError`] if the config is invalid.
    pub fn new(inner: R, config: &FaultConfig) -> Result<Self, FaultConfigError> {
        let on_line = |line: usize| FaultConfig {
            seed: config.seed.wrapping_add(line as u64),
            ..config.clone()
        };
        let configs = (0..inner.stats().len()).map(on_line);
        let injectors = configs.map(FaultInjector::new).collect::<Result<_, _>>()?;
        Ok(Self { inner, injectors })
    }

    /// Returns the injector of a line, which holds its fault log.
    #[must_use]
    pub fn injector(&self, line: LineId) -> Option<&FaultInjector<Ipv4Addr>> {
        self.injectors.get(usize::from(line.0))
    }

    /// Returns the wrapped receiver.
    #[must_use]
    pub const fn inner(&self) -> &R {
        &self.inner
    }
}

impl<R: Receive> Receive for FaultyReceiver<R> {
    fn poll(
        &mut self,
        now: Nanos,
        on: &mut dyn FnMut(Received<'_>),
    ) -> Result<usize, ReceiveError> {
        let mut count = 0;
        let mut deliver = |line: LineId, from: Ipv4Addr, bytes: &[u8]| {
            count += 1;
            on(Received {
                line,
                from,
                bytes,
                received_at: now,
                whole: false,
            });
        };
        let injectors = &mut self.injectors;
        for (line, injector) in injectors.iter_mut().enumerate() {
            let line = LineId(line as u8);
            injector.due(now, |from, bytes| deliver(line, from, bytes));
        }
        self.inner.poll(now, &mut |received| {
            if let Some(injector) = injectors.get_mut(usize::from(received.line.0)) {
                injector.apply(now, received.from, received.bytes, |from, bytes| {
                    deliver(received.line, from, bytes);
                });
            }
        })?;
        Ok(count)
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

    fn set_waited(&mut self, waited: bool) {
        self.inner.set_waited(waited);
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
