//! What both sides say of themselves when they connect, in the connection manager's private data.

/// More than this no side may have.
pub(crate) const CREDIT_MAX: u32 = 16_384;
/// Fewer buffers than this no side may have, and none shorter or longer than these.
pub(crate) const BUFFERS_MIN: u32 = 8;
pub(crate) const BUFFER_LEN_MIN: u32 = 256;
pub(crate) const BUFFER_LEN_MAX: u32 = 1 << 20;

/// "tick", then the version of what follows and of the rules of credit.
const MAGIC: u32 = 0x7469_636b;
const VERSION: u32 = 1;

/// Which buffers one side receives into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) buffers: u32,
    /// Bytes of each: the largest SEND it takes.
    pub(crate) buffer_len: u32,
}

impl Hello {
    /// Its bytes: four words, the highest byte first.
    pub(crate) const LEN: usize = 16;

    pub(crate) fn encode(self) -> [u8; Self::LEN] {
        let words = [MAGIC, VERSION, self.buffers, self.buffer_len];
        std::array::from_fn(|i| words[i / 4].to_be_bytes()[i % 4])
    }

    /// `None` where it is something else, or of somebody one can't talk to.
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
    fn a_hello_is_read_as_it_was_written_and_nothing_else_is_one() {
        let hello = Hello {
            buffers: 64,
            buffer_len: 4096,
        };
        let bytes = hello.encode();
        assert_eq!(&bytes[..8], b"tick\0\0\0\x01");
        assert_eq!(&bytes[8..], [0, 0, 0, 64, 0, 0, 16, 0]);
        assert_eq!(Hello::decode(bytes), Some(hello));
        for (at, byte) in [(0, b'T'), (7, 2), (8, 1), (11, 7), (12, 1), (14, 0)] {
            let mut other = bytes;
            other[at] = byte;
            assert_eq!(Hello::decode(other), None, "byte {at} is {byte}");
        }
        assert_eq!(Hello::decode([0; 16]), None);
    }
}
