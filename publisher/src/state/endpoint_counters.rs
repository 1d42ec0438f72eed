//! Counters of the publisher's HTTP endpoints.

use std::sync::Arc;

use tickcast_http::counters::EndpointCounters;

/// Counters of all endpoints.
#[derive(Clone, Debug, Default)]
pub(crate) struct AllEndpointCounters {
    /// Of the admin port.
    pub(crate) admin: Arc<EndpointCounters>,
    /// Of the command socket.
    pub(crate) command_socket: Arc<EndpointCounters>,
    /// Of the command port.
    pub(crate) command_port: Arc<EndpointCounters>,
}

impl AllEndpointCounters {
    /// Returns each endpoint's counters with its name.
    pub(crate) fn each(&self) -> [(&'static str, &EndpointCounters); 3] {
        [
            ("admin", &self.admin),
            ("command_socket", &self.command_socket),
            ("command_port", &self.command_port),
        ]
    }
}
