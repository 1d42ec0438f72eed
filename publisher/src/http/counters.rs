//! Counts of an endpoint's connections.

use std::sync::Arc;

tickcast_reliability::counters! {
    /// Counters of connections to one endpoint; written by the thread that serves it.
    pub struct EndpointCounters {
        /// Connections to the endpoint accepted.
        endpoint_connections,
        /// Connections that got an answer.
        endpoint_answered,
        /// Connections that got no answer: no request in time, or an answer that was not read.
        endpoint_failed,
        /// Connections closed for a newer one: the oldest idle one at a limit.
        endpoint_evicted,
        /// Connections closed at once: another user, or a limit while requests are being executed.
        endpoint_refused,
        /// Connections that are open and not answered (a gauge).
        endpoint_open,
        /// Times that a request was answered with a refusal: a foreign Host, or no valid token.
        endpoint_denied,
    }
}

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
