//! Standby settings as written in the config: the mirrored publisher, and the limits.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
#[cfg(feature = "testing")]
use tickcast_transport::faults::FaultConfig;

/// Makes a service the standby of another publisher. It mirrors that publisher's rings and receives
/// the same inputs. It publishes nothing before it is promoted (docs/OPERATIONS.md, "Warm
/// standby").
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
    /// Control address of the publisher, as `host:port`. Commas separate several addresses, where
    /// another standby may have taken over.
    pub of: String,
    /// The publisher's admin port, which accepts hand-over requests; null: no requests are made.
    #[serde(default)]
    pub admin: Option<SocketAddr>,
    /// Maximum number of input messages kept because they are not mirrored yet. Beyond this limit,
    /// the oldest are dropped; promotion reports them as lost if they are missing.
    #[serde(default = "keep_default")]
    pub keep_messages: usize,
    /// Time the publisher may take to hand over, in milliseconds.
    #[serde(default = "hand_over_default")]
    pub hand_over_ms: u64,
    /// Seeded faults between the network and the mirror, for tests.
    #[cfg(feature = "testing")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub faults: Option<FaultConfig>,
}

const fn keep_default() -> usize {
    1 << 20
}

const fn hand_over_default() -> u64 {
    10_000
}
