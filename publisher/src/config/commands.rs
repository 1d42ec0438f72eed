//! The command endpoints as written in the config.

use std::net::SocketAddr;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The endpoints that take commands.
///
/// ```
/// use tickcast_publisher::config::CommandsConfig;
///
/// let json = r#"{ "listen": "10.0.0.1:7402", "token_file": "/etc/tickcast/token" }"#;
/// let commands: CommandsConfig = serde_json::from_str(json).unwrap();
/// assert_eq!(commands.socket, None);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CommandsConfig {
    /// Path of the command socket, which only this user and root can open; null: `NAME.commands` in
    /// `state_dir`, for a standby and for a publisher that hands over. Beside a command port, that default
    /// socket may be missing, with a warning.
    pub socket: Option<PathBuf>,
    /// Address of the command port, for standbys of other hosts; null: none. With port 0 the system
    /// chooses. Needs `token_file`.
    pub listen: Option<SocketAddr>,
    /// File with the token that requests to the command port must carry: 16 or more visible
    /// characters. Only this user may read it.
    pub token_file: Option<PathBuf>,
}
