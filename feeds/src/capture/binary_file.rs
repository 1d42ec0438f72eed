//! Reads Nasdaq BinaryFILE: the messages of a daily file in order; message n has sequence n.
//!
//! Layout: `u16 length | message`, big-endian, up to a zero length or the end of the file. The file
//! may be gzip, which its content decides. A file that is cut off ends there and is counted as
//! truncated. Some files have only zero lengths. If the first length is zero and an ITCH 5.0 type
//! follows, each type implies its length.

use std::{
    fs::File,
    io::{self, ErrorKind, Read},
    path::{Path, PathBuf},
};

use super::{CaptureError, CaptureFault, input::Input};
use crate::itch::messages::message_len;

const PREFIX_LEN: usize = 2;
/// Bytes that may be appended to the first message of a file that still looks like ITCH 5.0.
const APPENDED_MAX: usize = 64;

/// A BinaryFILE being read.
pub struct BinaryFile {
    path: PathBuf,
    size: Option<u64>,
    input: Input,
    has_lengths: bool,
    ended: bool,
    stats: BinaryFileStats,
}

/// Counts of the messages read so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BinaryFileStats {
    /// Messages returned so far, which is the sequence of the last one.
    pub messages: u64,
    /// 1 when the file ended in the middle of a message or of its compressed stream.
    pub truncated: u64,
    /// 1 when the file ended with a zero length, as a whole one does.
    pub end_marks: u64,
}

impl BinaryFile {
    /// Returns whether a file may be a BinaryFILE of ITCH 5.0, by its first bytes after decompression.
    /// Three bytes are enough: no capture format begins like that.
    #[must_use]
    pub fn looks_like(head: &[u8]) -> bool {
        let Some((&[high, low, kind], _)) = head.split_first_chunk::<3>() else {
            return false;
        };
        let len = usize::from(u16::from_be_bytes([high, low]));
        message_len(kind)
            .is_some_and(|of_kind| len == 0 || (of_kind..=of_kind + APPENDED_MAX).contains(&len))
    }

    /// Opens a file.
    ///
    /// # Errors
    /// [`CaptureError`] when it can't be read, or does not begin with an ITCH 5.0 message.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, CaptureError> {
        let path = path.as_ref();
        let at = |source: io::Error| match source.kind() {
            ErrorKind::NotFound => CaptureError::Missing { path: path.into() },
            _ => CaptureFault::Io(source).at(path, 0),
        };
        let file = File::open(path).map_err(at)?;
        let metadata = file.metadata().map_err(at)?;
        if metadata.is_dir() {
            return Err(CaptureError::Directory { path: path.into() });
        }
        let size = metadata.is_file().then_some(metadata.len());
        Self::new(path, file, size)
    }

    /// Reads from any reader; errors show `name` as its path.
    ///
    /// # Errors
    /// Same as [`BinaryFile::open`].
    pub fn from_reader(
        name: impl AsRef<Path>,
        reader: impl Read + Send + 'static,
    ) -> Result<Self, CaptureError> {
        Self::new(name.as_ref(), reader, None)
    }

    fn new(
        path: &Path,
        reader: impl Read + Send + 'static,
        size: Option<u64>,
    ) -> Result<Self, CaptureError> {
        let io_fault = |e| CaptureFault::Io(e).at(path, 0);
        let mut input = Input::new(reader).map_err(io_fault)?;
        input.ensure(PREFIX_LEN + 1).map_err(io_fault)?;
        let head = input.visible();
        if head.is_empty() && !input.is_cut() {
            return Err(CaptureError::Empty { path: path.into() });
        }
        // A file that holds only its end mark is whole. A file cut within its first bytes is truncated.
        if head.len() > PREFIX_LEN && !Self::looks_like(head) {
            let what = "no message of ITCH 5.0 begins";
            return Err(CaptureFault::Damaged(what).at(path, 0));
        }
        let has_lengths = head.len() <= PREFIX_LEN || head[..PREFIX_LEN] != [0; PREFIX_LEN];
        Ok(Self {
            path: path.into(),
            size,
            input,
            has_lengths,
            ended: false,
            stats: BinaryFileStats::default(),
        })
    }

    /// Returns the next message, or `None` at the end of the file and after an error.
    ///
    /// # Errors
    /// [`CaptureError`] when the file cannot be read further. The error ends the file.
    #[expect(
        clippy::should_implement_trait,
        reason = "it lends from the file, which an iterator cannot"
    )]
    pub fn next(&mut self) -> Result<Option<&[u8]>, CaptureError> {
        if self.ended {
            return Ok(None);
        }
        match self.message_len() {
            Ok(Some(len)) => {
                self.input.take(PREFIX_LEN);
                let message = self.input.take(len);
                self.stats.messages += 1;
                Ok(Some(self.input.taken(message)))
            }
            Ok(None) => {
                self.ended = true;
                Ok(None)
            }
            Err(fault) => {
                self.ended = true;
                Err(fault.at(&self.path, self.input.offset()))
            }
        }
    }

    /// Makes the next message visible and returns its length; `None` at the end.
    fn message_len(&mut self) -> Result<Option<usize>, CaptureFault> {
        if !self.input.ensure(PREFIX_LEN).map_err(CaptureFault::Io)? {
            return Ok(self.cut());
        }
        let prefix = self.input.visible();
        let mut len = usize::from(u16::from_be_bytes([prefix[0], prefix[1]]));
        if len == 0 && self.has_lengths {
            self.stats.end_marks = 1;
            return Ok(None);
        }
        if len == 0 {
            if !self
                .input
                .ensure(PREFIX_LEN + 1)
                .map_err(CaptureFault::Io)?
            {
                return Ok(self.cut());
            }
            let what = "a message without a length is of no type of ITCH 5.0";
            let kind = self.input.visible()[PREFIX_LEN];
            len = message_len(kind).ok_or(CaptureFault::Damaged(what))?;
        }
        if !self
            .input
            .ensure(PREFIX_LEN + len)
            .map_err(CaptureFault::Io)?
        {
            return Ok(self.cut());
        }
        Ok(Some(len))
    }

    /// Ends the input. Bytes that are left belong to a truncated message.
    fn cut(&mut self) -> Option<usize> {
        let is_cut = !self.input.visible().is_empty() || self.input.is_cut();
        self.stats.truncated = u64::from(is_cut);
        None
    }

    /// Returns the counts so far.
    #[must_use]
    pub const fn stats(&self) -> &BinaryFileStats {
        &self.stats
    }

    /// Returns the bytes of the file read so far, before decompression. Compare with
    /// [`BinaryFile::size`] for progress.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.input.raw_position()
    }

    /// Returns the file's size in bytes if it is a regular file.
    #[must_use]
    pub const fn size(&self) -> Option<u64> {
        self.size
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Cursor, Write};

    use flate2::{Compression, write::GzEncoder};

    use super::*;

    const EVENT: &[u8] = b"\x00\x0cS\0\0\0\0\0\0\0\0\0\0O";

    fn read(bytes: &[u8]) -> (Vec<Vec<u8>>, BinaryFileStats) {
        let mut file = BinaryFile::from_reader("test", Cursor::new(bytes.to_vec())).unwrap();
        let mut messages = Vec::new();
        while let Some(message) = file.next().unwrap() {
            messages.push(message.to_vec());
        }
        assert!(file.next().unwrap().is_none());
        (messages, *file.stats())
    }

    #[test]
    fn zero_length_ends_file_and_later_bytes_are_unread() {
        let bytes = [EVENT, EVENT, &[0, 0], EVENT].concat();
        let (messages, stats) = read(&bytes);
        assert_eq!(messages, [&EVENT[2..], &EVENT[2..]]);
        assert_eq!(
            (stats.messages, stats.truncated, stats.end_marks),
            (2, 0, 1)
        );
    }

    #[test]
    fn truncated_binary_file_gives_whole_messages() {
        let bytes = [EVENT, EVENT].concat();
        for len in 1..bytes.len() {
            let (messages, stats) = read(&bytes[..len]);
            assert_eq!(messages.len(), len / EVENT.len());
            assert_eq!(
                stats.truncated,
                u64::from(!len.is_multiple_of(EVENT.len())),
                "{len}"
            );
        }
    }

    #[test]
    fn gzip_is_seen_by_content_and_may_be_cut_too() {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
        for _ in 0..100 {
            gzip.write_all(EVENT).unwrap();
        }
        let mut bytes = gzip.finish().unwrap();
        assert_eq!(read(&bytes).0.len(), 100);
        bytes.truncate(bytes.len() - 4);
        assert_eq!(read(&bytes).1.truncated, 1);
    }

    #[test]
    fn lengths_that_are_all_zero_come_from_the_types() {
        let zero = [&[0, 0], &EVENT[2..]].concat();
        let (messages, stats) = read(&[&zero[..], &zero[..], &zero[..9]].concat());
        assert_eq!(messages, [&EVENT[2..], &EVENT[2..]]);
        assert_eq!((stats.truncated, stats.end_marks), (1, 0));
        let bytes = [&zero[..], b"\0\0~junk"].concat();
        let mut file = BinaryFile::from_reader("test", Cursor::new(bytes)).unwrap();
        assert!(file.next().unwrap().is_some());
        assert!(matches!(
            file.next(),
            Err(CaptureError::Damaged { offset: 14, .. })
        ));
        assert!(file.next().unwrap().is_none());
    }

    #[test]
    fn captures_and_other_files_are_no_binary_file() {
        assert!(BinaryFile::looks_like(EVENT));
        for head in [
            [0xd4, 0xc3, 0xb2, 0xa1],
            [0xa1, 0xb2, 0xc3, 0xd4],
            [0x4d, 0x3c, 0xb2, 0xa1],
            [0xa1, 0xb2, 0x3c, 0x4d],
            [0x0a, 0x0d, 0x0d, 0x0a],
        ] {
            assert!(!BinaryFile::looks_like(&head), "{head:02x?}");
            let file = BinaryFile::from_reader("test", Cursor::new(head.to_vec()));
            assert!(matches!(file, Err(CaptureError::Damaged { offset: 0, .. })));
        }
        let empty = BinaryFile::from_reader("test", Cursor::new(Vec::new()));
        assert!(matches!(empty, Err(CaptureError::Empty { .. })));
    }
}
