//! The counters of a server.

use std::io;
use std::net::IpAddr;

/// Counters since the server was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerStats {
    /// Connections accepted.
    pub accepted: u64,
    /// Connections refused because there were too many.
    pub turned_away: u64,
    /// Refused connections of an address that had the maximum for one address.
    pub turned_away_of_address: u64,
    /// Address of the last of these.
    pub crowded_address: Option<IpAddr>,
    /// Accepted connections over verbs.
    pub accepted_over_verbs: u64,
    /// Connections that broke: the network, the device or the peer's system gave up on them.
    pub broken: u64,
    /// Verbs connections that the device stopped because the peer requested an access that was not granted.
    pub violations: u64,
    /// Cursors leased to peers since opening.
    pub cursors_leased: u64,
    /// Leases that ended: the cursor is zero, and may be leased again.
    pub cursors_returned: u64,
    /// Cursors leased now.
    pub cursors_live: u64,
    /// Failures to accept, for example because the process is out of descriptors, or because a verbs peer
    /// is not tickcast.
    pub accept_errors: u64,
    /// Error number of the last such failure that has one, 0 for none.
    pub accept_errno: i32,
    /// Messages read.
    pub messages: u64,
    /// Turns in which the server read from one peer.
    pub turns: u64,
    /// Turns in which it wrote to one peer.
    pub write_turns: u64,
    /// Connections closed because the peer sent an invalid message.
    pub protocol_errors: u64,
    /// Messages not queued because a peer's backlog was full.
    pub overflows: u64,
    /// Polls that the thread with the hint ended (see [`backlog_hint`](super::ControlServer::backlog_hint)).
    pub woken_by_hint: u64,
}

impl ServerStats {
    /// Counts a failure to accept.
    pub(super) fn not_accepted(&mut self, error: &io::Error) {
        self.accept_errors += 1;
        self.accept_errno = error.raw_os_error().unwrap_or(self.accept_errno);
    }
}
