//! The number of a connection.

use serde::{Deserialize, Serialize};

/// Number of a connection, assigned by the driver and never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PeerId(pub u64);
