//! READs of a subscriber over a connection that was made for them (docs/PROTOCOL.md §6.6).

use std::io;

use tickcast_reliability::subscriber_core::{ReadLimits, ReadRequest};

use super::client::{ControlClient, State};

impl ControlClient {
    /// What can be READ at a time, as both sides agreed; nothing while it is not connected.
    #[must_use]
    pub fn read_limits(&self) -> ReadLimits {
        match &self.state {
            State::Connected(conduit) => conduit.read_limits(),
            _ => ReadLimits {
                reads: 0,
                len_max: 0,
            },
        }
    }

    /// Begins a READ. That it failed later is told by the end of the connection.
    ///
    /// # Errors
    /// When it can't even begin: the connection is of no more use then.
    pub fn begin_read(&mut self, request: &ReadRequest) -> io::Result<()> {
        match &mut self.state {
            State::Connected(conduit) => conduit.read_remote(request),
            _ => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Hands over every READ that is done, with its tag, in the order in which they were begun. How
    /// many there were.
    pub fn take_reads(&mut self, mut on: impl FnMut(u64, &[u8])) -> usize {
        let mut count = 0;
        while let State::Connected(conduit) = &mut self.state
            && conduit.take_read(&mut on)
        {
            count += 1;
        }
        count
    }
}
