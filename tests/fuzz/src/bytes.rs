//! An input read from its front, for targets that it controls.

/// The rest of an input.
#[derive(Clone, Debug)]
pub(crate) struct Bytes<'a>(pub(crate) &'a [u8]);

impl<'a> Bytes<'a> {
    /// Returns the next byte; `None` at the end.
    pub(crate) const fn next(&mut self) -> Option<u8> {
        let Some((first, rest)) = self.0.split_first() else {
            return None;
        };
        self.0 = rest;
        Some(*first)
    }

    /// Returns the next byte, or 0 at the end.
    pub(crate) fn byte(&mut self) -> u8 {
        self.next().unwrap_or(0)
    }

    /// Returns `len` bytes, or all that are left.
    pub(crate) fn slice(&mut self, len: usize) -> &'a [u8] {
        let (slice, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        slice
    }

    /// Returns a packet, after its length in two little-endian bytes; `None` at the end.
    pub(crate) fn packet(&mut self) -> Option<&'a [u8]> {
        let low = self.next()?;
        let len = u16::from_le_bytes([low, self.byte()]);
        Some(self.slice(len.into()))
    }
}
