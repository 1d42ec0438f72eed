//! How connections are made.

use serde::{Deserialize, Serialize};

use crate::device::private_data::{BUFFER_LEN_MAX, BUFFER_LEN_MIN, BUFFERS_MIN, CREDIT_MAX};
use crate::error::{VerbsError, check_range};

/// READs of one connection at a time, at most.
const READS_MAX: u64 = 128;
/// WRITEs of slots of one connection at a time, at most.
const WRITES_MAX: u64 = 1024;
/// Bytes of one READ, at most; and what its length is a multiple of.
const READ_LEN_MAX: u64 = 16 << 20;
const READ_LEN_UNIT: usize = 64;

/// How connections are made. Defaults are for a rack, where rdma_cm's own mean seconds, and for bytes
/// alone: neither side may READ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StreamConfig {
    /// Bytes of a buffer: the largest SEND.
    pub buffer_len: usize,
    /// Buffers to receive into, and as many to send from.
    pub buffers: u32,
    /// READs and atomic operations that are under way at once: of this side, if it reads, and of the
    /// other, which this side answers. The smaller number of both sides and both devices counts. 0:
    /// none either way.
    pub reads_max: u8,
    /// Bytes of the longest READ of this side, a multiple of 64; `reads_max` times as many are
    /// pinned. 0: this side reads nothing, and answers only.
    pub read_len_max: usize,
    /// WRITEs of whole slots to an inbox of the other side that are under way at once; 0: this side
    /// writes none.
    pub writes_max: u32,
    /// A packet counts as lost after 4.096 us × 2^n; 14 is 67 ms.
    pub ack_timeout: u8,
    /// How often a packet is sent again before the connection is given up, 0 to 7.
    pub retries: u8,
    /// How long a peer without a free buffer is given, as a code of the device: 12 is 0.64 ms.
    pub rnr_timer: u8,
    /// Goes into every packet; the upper six bits are the DSCP.
    pub traffic_class: u8,
    /// How long looking for a peer may take.
    pub resolve_ms: i32,
    /// How long it may take until a connection is up, from its very beginning.
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
    /// Whether this side READs.
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
    fn what_no_connection_can_be_made_with_is_refused_by_name() {
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
