//! Connection settings.

use serde::{Deserialize, Serialize};

use crate::device::private_data::{BUFFER_LEN_MAX, BUFFER_LEN_MIN, BUFFERS_MIN, CREDIT_MAX};
use crate::error::{VerbsError, check_range};

/// Largest number of READs in flight on one connection.
const READS_MAX: u64 = 128;
/// Largest number of slot WRITEs in flight on one connection.
const WRITES_MAX: u64 = 1024;
/// Largest length of one READ, in bytes, and the unit of its length.
const READ_LEN_MAX: u64 = 16 << 20;
const READ_LEN_UNIT: usize = 64;

/// Connection settings. The defaults suit a rack, where rdma_cm's own defaults take seconds. They
/// allow bytes only: neither side may READ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StreamConfig {
    /// Length of a buffer, in bytes: the largest SEND.
    pub buffer_len: usize,
    /// Number of receive buffers, and of send buffers.
    pub buffers: u32,
    /// READs and atomic operations in flight: those of this side, if it reads, and those of the peer that
    /// this side answers. The smallest value of both sides and both devices applies. 0: none in either
    /// direction.
    pub reads_max: u8,
    /// Length of the longest READ of this side, in bytes, a multiple of 64. `reads_max` times this length
    /// is pinned. 0: this side never READs and only answers.
    pub read_len_max: usize,
    /// WRITEs of whole slots to an inbox of the peer that may be in flight. 0: this side writes none.
    pub writes_max: u32,
    /// A packet counts as lost after 4.096 us × 2^n; 14 is 67 ms.
    pub ack_timeout: u8,
    /// Retransmissions of a packet before the connection is given up, 0 to 7.
    pub retries: u8,
    /// Time that a peer without a free buffer is given, as a code of the device: 12 is 0.64 ms.
    pub rnr_timer: u8,
    /// Traffic class of every packet in both directions, if this side connects; the upper six bits are the
    /// DSCP. On Ethernet the system derives the VLAN priority from it; on InfiniBand the subnet manager
    /// may derive the service level. A side that accepts uses the class of the side that connects.
    pub traffic_class: u8,
    /// Limit for resolving a peer, in milliseconds.
    pub resolve_ms: i32,
    /// Limit from the first call until the connection is up, in milliseconds.
    pub connect_ms: u32,
}

impl Default for StreamConfig {
    fn default() -> Self {
        Self {
            buffer_len: 4096,
            buffers: 128,
            reads_max: 0,
            read_len_max: 0,
            writes_max: 0,
            ack_timeout: 14,
            retries: 4,
            rnr_timer: 12,
            traffic_class: 0,
            resolve_ms: 2_000,
            connect_ms: 10_000,
        }
    }
}

impl StreamConfig {
    /// Returns whether this side READs.
    pub(crate) const fn reads(&self) -> bool {
        self.reads_max > 0 && self.read_len_max > 0
    }

    pub(crate) fn check(&self) -> Result<(), VerbsError> {
        let whole = self.read_len_max.min(READ_LEN_MAX as usize);
        let whole = whole.next_multiple_of(READ_LEN_UNIT);
        for (name, value, min, max) in [
            (
                "buffer_len",
                self.buffer_len as u64,
                BUFFER_LEN_MIN.into(),
                BUFFER_LEN_MAX.into(),
            ),
            (
                "buffers",
                self.buffers.into(),
                BUFFERS_MIN.into(),
                CREDIT_MAX.into(),
            ),
            ("reads_max", self.reads_max.into(), 0, READS_MAX),
            ("read_len_max", self.read_len_max as u64, 0, READ_LEN_MAX),
            (
                "read_len_max, in multiples of 64,",
                self.read_len_max as u64,
                whole as u64,
                READ_LEN_MAX,
            ),
            ("writes_max", self.writes_max.into(), 0, WRITES_MAX),
            ("ack_timeout", self.ack_timeout.into(), 1, 31),
            ("retries", self.retries.into(), 0, 7),
            ("rnr_timer", self.rnr_timer.into(), 1, 31),
            ("resolve_ms", self.resolve_ms.max(0) as u64, 1, 60_000),
            ("connect_ms", self.connect_ms.into(), 1, 600_000),
        ] {
            check_range(name, value, min, max)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_stream_config_is_refused_with_field_name() {
        let refused = |change: fn(&mut StreamConfig)| {
            let mut config = StreamConfig::default();
            change(&mut config);
            config.check().map_err(|error| error.to_string())
        };
        assert_eq!(refused(|_| {}), Ok(()));
        assert_eq!(refused(|c| c.read_len_max = 64 * 1024), Ok(()));
        let error = refused(|c| c.reads_max = 129).unwrap_err();
        assert_eq!(error, "reads_max is 129; it must be between 0 and 128");
        let error = refused(|c| c.read_len_max = 100).unwrap_err();
        assert!(error.contains("multiples of 64"), "{error}");
        assert!(refused(|c| c.read_len_max = 32 << 20).is_err());
        assert!(refused(|c| c.read_len_max = usize::MAX - 64).is_err());
    }
}
