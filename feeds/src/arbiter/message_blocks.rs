//! The message blocks of a packet: each is a length of two bytes and a message of so many.

/// Walks the messages of a packet, no more than its header announces. An empty one only uses up a sequence.
#[derive(Clone, Copy, Debug)]
pub struct MessageBlocks<'a, const BIG_ENDIAN: bool> {
    blocks: &'a [u8],
    left: u16,
}

impl<'a, const BIG_ENDIAN: bool> MessageBlocks<'a, BIG_ENDIAN> {
    /// Creates a walker of `count` messages.
    pub(crate) const fn new(blocks: &'a [u8], count: u16) -> Self {
        let left = count;
        Self { blocks, left }
    }

    /// Returns the bytes behind the last message that the header announced; `None` before that.
    #[inline(always)]
    pub(crate) fn rest(&self) -> Option<&'a [u8]> {
        match (self.left, self.blocks) {
            (0, rest) | (1, [0, 0, rest @ ..]) => Some(rest),
            _ => None,
        }
    }

    /// After the last message: returns `more` if bytes are behind the last one that the header announces,
    /// `fewer` if that one is missing.
    #[inline(always)]
    pub(crate) fn fault_named(
        &self,
        fewer: &'static str,
        more: &'static str,
    ) -> Option<&'static str> {
        match self.rest() {
            Some([]) => None,
            Some(_) => Some(more),
            None => Some(fewer),
        }
    }
}

impl<'a, const BIG_ENDIAN: bool> Iterator for MessageBlocks<'a, BIG_ENDIAN> {
    type Item = &'a [u8];

    #[inline(always)]
    fn next(&mut self) -> Option<&'a [u8]> {
        if self.left == 0 {
            return None;
        }
        let (len, rest) = self.blocks.split_first_chunk::<2>()?;
        let len = match BIG_ENDIAN {
            true => u16::from_be_bytes(*len),
            false => u16::from_le_bytes(*len),
        };
        let (message, rest) = rest.split_at_checked(len.into())?;
        if message.is_empty() && is_cut(self.left, rest) {
            return None;
        }
        self.blocks = rest;
        self.left -= 1;
        Some(message)
    }
}

/// Returns whether an empty message, of the last `left`, is missing: bytes stand behind the last one of its
/// packet, so its length became 0.
#[cold]
const fn is_cut(left: u16, rest: &[u8]) -> bool {
    left == 1 && !rest.is_empty()
}
