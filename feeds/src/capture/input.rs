//! Reads a file, compressed or not, through a window that grows only as far as a caller asks.
//!
//! A truncated file or compressed stream ends and sets a flag. Any other fault is an error, which comes when
//! every byte before it was taken.

use std::{
    io::{self, ErrorKind, Read},
    ops::Range,
};

use super::compression::{Decompressor, Tail};

const READ_LEN: usize = 1 << 16;
/// Bytes that are searched at once for the end of damage.
const SEARCH_LEN: usize = 1 << 16;

/// A window on the (decompressed) bytes of an input.
pub(crate) struct Input {
    reader: Decompressor,
    buffer: Vec<u8>,
    window: Range<usize>,
    offset: u64,
    ended: bool,
    is_cut: bool,
    /// The error behind the visible bytes.
    fault: Option<io::Error>,
}

impl Input {
    /// Creates the window, and a decompressor if the first bytes ask for one.
    pub(crate) fn new(reader: impl Read + Send + 'static) -> io::Result<Self> {
        Ok(Self {
            reader: Decompressor::new(reader)?,
            buffer: Vec::new(),
            window: 0..0,
            offset: 0,
            ended: false,
            is_cut: false,
            fault: None,
        })
    }

    /// Returns the start of the window, in bytes after decompression.
    pub(crate) const fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the bytes taken from the file so far, before decompression.
    pub(crate) fn raw_position(&self) -> u64 {
        self.reader.raw_position()
    }

    /// Returns the bytes behind the last member of a compressed file.
    pub(crate) const fn tail(&self) -> Tail {
        self.reader.tail()
    }

    /// Returns whether the compressed stream broke off, an error ended it, or the input ended within a skip.
    pub(crate) const fn is_cut(&self) -> bool {
        self.is_cut || self.fault.is_some()
    }

    /// Takes the error behind the visible bytes, which then ends the input.
    pub(crate) const fn take_fault(&mut self) -> Option<io::Error> {
        self.fault.take()
    }

    /// Makes at least `len` bytes visible; false if the input ends before. The decompressor reads on after
    /// an interrupt. Returns an error once, when no byte before it is left.
    pub(crate) fn ensure(&mut self, len: usize) -> io::Result<bool> {
        while self.window.len() < len && !self.ended {
            if self.buffer.len() < self.window.start + len.max(READ_LEN) {
                self.buffer.copy_within(self.window.clone(), 0);
                self.window = 0..self.window.len();
                // Half of the room stays free, so that small steps rarely move the window.
                let room = 2 * len.max(READ_LEN);
                if self.buffer.len() < room {
                    self.buffer.resize(room, 0);
                }
            }
            match self.reader.read(&mut self.buffer[self.window.end..]) {
                Ok(0) => self.ended = true,
                Ok(n) => self.window.end += n,
                // Only the decompressor returns this: its stream ends before its trailer.
                Err(e) if e.kind() == ErrorKind::UnexpectedEof => {
                    self.ended = true;
                    self.is_cut = true;
                }
                Err(e) => {
                    self.ended = true;
                    self.fault = Some(e);
                }
            }
        }
        let is_short = self.window.len() < len;
        match self.fault.take_if(|_| is_short && self.window.is_empty()) {
            Some(fault) => Err(fault),
            None => Ok(!is_short),
        }
    }

    /// Returns the visible bytes.
    pub(crate) fn visible(&self) -> &[u8] {
        &self.buffer[self.window.clone()]
    }

    /// Takes `len` visible bytes. [`Input::taken`] returns them until the next [`Input::ensure`].
    pub(crate) fn take(&mut self, len: usize) -> Range<usize> {
        let start = self.window.start;
        let end = self.window.end.min(start.saturating_add(len));
        self.window.start = end;
        self.offset += (end - start) as u64;
        start..end
    }

    /// Returns bytes that were just taken.
    pub(crate) fn taken(&self, range: Range<usize>) -> &[u8] {
        self.buffer.get(range).unwrap_or_default()
    }

    /// Skips `len` bytes without holding them; false if the input ends before.
    pub(crate) fn skip(&mut self, mut len: u64) -> io::Result<bool> {
        while len > 0 {
            if !self.ensure(1)? {
                self.is_cut = true;
                return Ok(false);
            }
            let step = usize::try_from(len)
                .unwrap_or(usize::MAX)
                .min(self.window.len());
            self.take(step);
            len -= step as u64;
        }
        Ok(true)
    }

    /// Takes at least one byte, up to where `find` finds a sound beginning, or to the end. Returns
    /// whether only zeros were left, which pad the file.
    ///
    /// `find` searches the bytes in a range, of which `look_ahead` more are visible; its last argument
    /// is true where the input ends with them.
    pub(super) fn skip_damage(
        &mut self,
        look_ahead: usize,
        find: impl Fn(&[u8], Range<usize>, bool) -> Option<usize>,
    ) -> io::Result<bool> {
        let mut is_zero = self.visible().first() == Some(&0);
        self.take(1);
        loop {
            let has_more = self.ensure(SEARCH_LEN + look_ahead)?;
            let visible = self.visible();
            let to = match has_more {
                true => SEARCH_LEN,
                false => visible.len(),
            };
            let found = find(visible, 0..to, !has_more);
            let skipped = found.unwrap_or(to);
            is_zero &= visible[..skipped].iter().all(|byte| *byte == 0);
            self.take(skipped);
            if found.is_some() || !has_more {
                return Ok(is_zero && found.is_none());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_steps_of_a_large_window_rarely_move_it() {
        const WINDOW: usize = 1 << 17;
        const LEN: usize = 1 << 20;
        let mut input = Input::new(io::repeat(7).take(LEN as u64)).unwrap();
        let mut moved = 0;
        while input.ensure(WINDOW).unwrap() {
            // A window that was moved begins at 0.
            if input.take(16).start == 0 {
                moved += input.visible().len();
            }
        }
        assert!(moved < 4 * LEN, "{moved} bytes moved");
    }
}
