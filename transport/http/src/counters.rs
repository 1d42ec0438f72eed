//! Counts of an endpoint's connections.

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
