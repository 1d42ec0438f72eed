//! Standby settings as written in the config: the mirrored publisher, and the limits.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tickcast_http::EndpointAddress;
#[cfg(feature = "testing")]
use tickcast_transport::faults::FaultConfig;

/// Makes a service the standby of another publisher. It mirrors that publisher's rings and receives
/// the same inputs. It publishes nothing before it is promoted (docs/OPERATIONS.md, "Warm
/// standby").
///
/// ```
/// use tickcast_publisher::config::StandbyConfig;
///
/// let json = r#"{ "of": "10.0.0.1:7400", "commands": "10.0.0.1:7402",
///     "token_file": "/etc/tickcast/token" }"#;
/// let standby: StandbyConfig = serde_json::from_str(json).unwrap();
/// assert_eq!(standby.keep_messages, 1 << 20);
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StandbyConfig {
    /// Control address of the publisher, as `host:port`. Commas separate several addresses, where
    /// another standby may have taken over.
    #[schemars(length(min = 1))]
    pub of: String,
    /// The publisher's command port, or the path of its command socket on the same host. It takes
    /// hand-over requests; null: no requests are made.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    pub commands: Option<EndpointAddress>,
    /// File with the token of the publisher's command port. Only this user may read it.
    #[serde(default)]
    pub token_file: Option<PathBuf>,
    /// Maximum number of input messages kept because they are not mirrored yet. Beyond this limit,
    /// the oldest are dropped; promotion reports them as lost if they are missing.
    #[serde(default = "keep_default")]
    #[schemars(range(min = 1, max = 1 << 30))]
    pub keep_messages: usize,
    /// Time the publisher may take to hand over, in milliseconds.
    #[serde(default = "hand_over_default")]
    #[schemars(range(min = 100, max = 600000))]
    pub hand_over_ms: u64,
    /// Seeded faults between the network and the mirror, for tests.
    #[cfg(feature = "testing")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(skip)]
    pub faults: Option<FaultConfig>,
}

const fn keep_default() -> usize {
    1 << 20
}

const fn hand_over_default() -> u64 {
    10_000
}
