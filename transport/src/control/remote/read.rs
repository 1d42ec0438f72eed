//! A subscriber's access to the publisher's memory, over a connection made for this purpose
//! (docs/PROTOCOL.md §6.6, §6.7).

use std::io;

use tickcast_reliability::session::{ReadLimits, RemoteRequest};

use crate::control::client::{ControlClient, State};

impl ControlClient {
    /// Returns the agreed limits of concurrent operations; zero while not connected.
    #[must_use]
    pub fn read_limits(&self) -> ReadLimits {
        match &self.state {
            State::Connected(carrier) => carrier.read_limits(),
            _ => ReadLimits::default(),
        }
    }

    /// Starts an operation. If it fails later, the connection ends.
    ///
    /// # Errors
    /// The device's error if it can't be started. The connection is then unusable.
    pub fn begin_remote(&mut self, request: &RemoteRequest) -> io::Result<()> {
        match &mut self.state {
            State::Connected(carrier) => carrier.begin_remote(request),
            _ => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Passes the result of each completed operation to `on`, with its tag, in the order of their start: the
    /// bytes of a READ, the old word of a claim, no bytes for a report. Returns their number.
    pub fn take_remote(&mut self, mut on: impl FnMut(u64, &[u8])) -> usize {
        let mut count = 0;
        while let State::Connected(carrier) = &mut self.state
            && carrier.take_remote(&mut on)
        {
            count += 1;
        }
        count
    }
}
