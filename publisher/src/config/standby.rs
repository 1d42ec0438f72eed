//! What was typed of a standby: whose, and what it may cost.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use tickcast_transport::faults::FaultConfig;

/// Makes a service the standby of another publisher: it mirrors that one's rings and hears the same
/// inputs, but publishes nothing before it is promoted (docs/OPERATIONS.md, "Warm standby").
///
/// ```
/// use tickcast_publisher::config::StandbyConfig;
///
/// let json = r#"{ "of": "10.0.0.1:7400", "admin": "10.0.0.1:7401" }"#;
/// let standby: StandbyConfig = serde_json::from_str(json).unwrap();
/// assert_eq!(standby.keep_messages, 1 << 20);
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StandbyConfig {
    /// Where the publisher takes subscribers, as `host:port`; several with commas between, where
    /// another standby of it may have taken over.
    pub of: String,
    /// The publisher's admin port, where it is asked to hand over; null: it can't be asked.
    #[serde(default)]
    pub admin: Option<SocketAddr>,
    /// Messages of the inputs that are kept at most, because they are not mirrored yet. Beyond, the
    /// oldest go, and are told as lost if it comes to that.
    #[serde(default = "keep_default")]
    pub keep_messages: usize,
    /// How long the publisher may take to hand over, in milliseconds.
    #[serde(default = "hand_over_default")]
    pub hand_over_ms: u64,
    /// Seeded faults between the network and the mirror, to see what it does; null: none.
    #[serde(default)]
    pub faults: Option<FaultConfig>,
}

const fn keep_default() -> usize {
    1 << 20
}

const fn hand_over_default() -> u64 {
    10_000
}
