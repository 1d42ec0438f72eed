//! The connection manager's private data: each side states its receive buffers when it connects.

/// Largest number of buffers of one side.
pub(crate) const CREDIT_MAX: u32 = 16_384;
/// Smallest number of buffers of one side, and the bounds of their length.
pub(crate) const BUFFERS_MIN: u32 = 8;
pub(crate) const BUFFER_LEN_MIN: u32 = 256;
pub(crate) const BUFFER_LEN_MAX: u32 = 1 << 20;

/// "tick", then the version of the layout and of the credit rules.
const MAGIC: u32 = 0x7469_636b;
const VERSION: u32 = 1;

/// The receive buffers of one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PrivateData {
    pub(crate) buffers: u32,
    /// Length of each buffer, in bytes: the largest SEND it accepts.
    pub(crate) buffer_len: u32,
}

impl PrivateData {
    /// Encoded length in bytes: four big-endian words.
    pub(crate) const LEN: usize = 16;

    pub(crate) fn encode(self) -> [u8; Self::LEN] {
        let words = [MAGIC, VERSION, self.buffers, self.buffer_len];
        std::array::from_fn(|i| words[i / 4].to_be_bytes()[i % 4])
    }

    /// Returns `None` for other bytes, another version, or buffers out of bounds.
    pub(crate) fn decode(bytes: [u8; Self::LEN]) -> Option<Self> {
        let word = |i: usize| u32::from_be_bytes(std::array::from_fn(|at| bytes[i * 4 + at]));
        let (buffers, buffer_len) = (word(2), word(3));
        let known = word(0) == MAGIC && word(1) == VERSION;
        let sane = (BUFFERS_MIN..=CREDIT_MAX).contains(&buffers)
            && (BUFFER_LEN_MIN..=BUFFER_LEN_MAX).contains(&buffer_len);
        (known && sane).then_some(Self {
            buffers,
            buffer_len,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_data_round_trips_and_anything_else_is_refused() {
        let private_data = PrivateData {
            buffers: 64,
            buffer_len: 4096,
        };
        let bytes = private_data.encode();
        assert_eq!(&bytes[..8], b"tick\0\0\0\x01");
        assert_eq!(&bytes[8..], [0, 0, 0, 64, 0, 0, 16, 0]);
        assert_eq!(PrivateData::decode(bytes), Some(private_data));
        for (at, byte) in [(0, b'T'), (7, 2), (8, 1), (11, 7), (12, 1), (14, 0)] {
            let mut other = bytes;
            other[at] = byte;
            assert_eq!(PrivateData::decode(other), None, "byte {at} is {byte}");
        }
        assert_eq!(PrivateData::decode([0; 16]), None);
    }
}
