//! Reads a file, gzip or not, through a window that grows only as far as a caller asks.
//!
//! A truncated file or gzip stream ends and sets a flag. Any other fault is an error.

use std::{
    io::{self, Cursor, ErrorKind, Read},
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use flate2::read::MultiGzDecoder;

const GZIP_MAGIC: [u8; 3] = [0x1f, 0x8b, 8];
const READ_LEN: usize = 1 << 16;

/// A window on the (decompressed) bytes of an input.
pub(crate) struct Input {
    reader: Box<dyn Read + Send>,
    buffer: Vec<u8>,
    window: Range<usize>,
    offset: u64,
    ended: bool,
    is_cut: bool,
    raw_position: Arc<AtomicU64>,
}

impl Input {
    /// Creates the window, and a decompressor if the first bytes are gzip's.
    pub(crate) fn new(reader: impl Read + Send + 'static) -> io::Result<Self> {
        let raw_position = Arc::new(AtomicU64::new(0));
        let mut raw = Counted {
            reader,
            position: Arc::clone(&raw_position),
        };
        let mut head = Vec::with_capacity(GZIP_MAGIC.len());
        raw.by_ref()
            .take(GZIP_MAGIC.len() as u64)
            .read_to_end(&mut head)?;
        let is_gzip = head == GZIP_MAGIC;
        let whole = Cursor::new(head).chain(raw);
        let reader: Box<dyn Read + Send> = if is_gzip {
            Box::new(MultiGzDecoder::new(whole))
        } else {
            Box::new(whole)
        };
        Ok(Self {
            reader,
            buffer: Vec::new(),
            window: 0..0,
            offset: 0,
            ended: false,
            is_cut: false,
            raw_position,
        })
    }

    /// Returns the start of the window, in bytes after decompression.
    pub(crate) const fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the bytes taken from the file so far, before decompression.
    pub(crate) fn raw_position(&self) -> u64 {
        self.raw_position.load(Ordering::Relaxed)
    }

    /// Returns whether the gzip stream broke off or the input ended within a skip.
    pub(crate) const fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Makes at least `len` bytes visible; false if the input ends before.
    pub(crate) fn ensure(&mut self, len: usize) -> io::Result<bool> {
        while self.window.len() < len && !self.ended {
            if self.buffer.len() < self.window.start + len.max(READ_LEN) {
                self.buffer.copy_within(self.window.clone(), 0);
                self.window = 0..self.window.len();
                let room = len.max(READ_LEN);
                if self.buffer.len() < room {
                    self.buffer.resize(room, 0);
                }
            }
            match self.reader.read(&mut self.buffer[self.window.end..]) {
                Ok(0) => self.ended = true,
                Ok(n) => self.window.end += n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                // Only the decompressor returns this: its stream ends before its trailer.
                Err(e) if e.kind() == ErrorKind::UnexpectedEof => {
                    self.ended = true;
                    self.is_cut = true;
                }
                Err(e) => {
                    self.ended = true;
                    return Err(e);
                }
            }
        }
        Ok(self.window.len() >= len)
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
}

struct Counted<R> {
    reader: R,
    position: Arc<AtomicU64>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.reader.read(buffer)?;
        self.position.fetch_add(n as u64, Ordering::Relaxed);
        Ok(n)
    }
}
