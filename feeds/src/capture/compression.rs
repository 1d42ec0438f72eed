//! Decompresses gzip and zstd as it reads; the content decides, not the name.
//!
//! A file may consist of several members. Zeros behind the last one pad a file (block devices and
//! tapes do that); any other bytes there are trailing. Both are counted.
//!
//! A zstd frame that is cut off gives its whole blocks. gzip gives each byte before the cut.
//!
//! The decoder holds the window of a zstd frame in memory: 128 MiB at most, as `zstd -d` does. A frame
//! that needs more is refused, since a few bytes could ask for any amount.

use std::io::{self, BufRead, Error, ErrorKind, Read};

use flate2::bufread::GzDecoder;
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder, errors::FrameDecoderError};

use super::{
    account::{Account, Reason},
    finding::{CaptureFinding, Findings},
};

const GZIP_MAGIC: [u8; 3] = [0x1f, 0x8b, 8];
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Skippable zstd frames: sixteen magic numbers, which differ in the first byte only.
const ZSTD_SKIPPABLE: [u8; 3] = [0x2a, 0x4d, 0x18];
const BUFFER_LEN: usize = 1 << 16;

/// Bytes behind the last member of a compressed file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tail {
    /// Zeros that pad the file.
    pub(crate) zeros: u64,
    /// Bytes from the first that is not zero.
    pub(crate) trailing: u64,
}

impl Tail {
    /// Adds the bytes to the account, and a finding if they are no padding.
    pub(super) fn account(self, account: &mut Account, findings: &mut Findings) {
        account.add(Reason::Padding, 0, self.zeros);
        if self.trailing > 0 {
            let bytes = self.trailing;
            account.add(Reason::Trailing, 0, bytes);
            findings.add(CaptureFinding::Trailing { bytes });
        }
    }
}

/// Reads a file that may be compressed.
pub(super) struct Decompressor {
    member: Member,
    tail: Tail,
}

enum Member {
    Plain(Source),
    Gzip(Box<GzDecoder<Source>>),
    Zstd(Box<Zstd>),
    /// Behind the last member; or an error has ended the file.
    Ended(Source),
}

impl Decompressor {
    /// Looks at the first bytes and chooses the decompressor.
    pub(super) fn new(reader: impl Read + Send + 'static) -> io::Result<Self> {
        let mut source = Source::new(reader);
        let member = match Kind::of(&mut source)? {
            Some(kind) => kind.open(source)?,
            None => Member::Plain(source),
        };
        Ok(Self {
            member,
            tail: Tail::default(),
        })
    }

    /// Returns the bytes taken from the file so far, before decompression.
    pub(super) fn raw_position(&self) -> u64 {
        let source = match &self.member {
            Member::Plain(source) | Member::Ended(source) => source,
            Member::Gzip(decoder) => decoder.get_ref(),
            Member::Zstd(decoder) => &decoder.source,
        };
        source.position
    }

    /// Returns the bytes behind the last member; complete once the end was read.
    pub(super) const fn tail(&self) -> Tail {
        self.tail
    }

    /// Continues behind a member: with the next one, or over the rest of the file.
    fn pass_member(&mut self, mut source: Source) -> io::Result<()> {
        let zeros = source.skip_zeros()?;
        self.tail.zeros += zeros;
        if let Some(kind) = Kind::of(&mut source)? {
            self.member = kind.open(source)?;
            return Ok(());
        }
        self.tail.trailing += source.skip(u64::MAX)?;
        self.member = Member::Ended(source);
        Ok(())
    }
}

impl Read for Decompressor {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let len = match &mut self.member {
                Member::Plain(source) => return source.read(buffer),
                Member::Gzip(decoder) => decoder.read(buffer)?,
                Member::Zstd(decoder) => decoder.read(buffer)?,
                Member::Ended(_) => return Ok(0),
            };
            if len > 0 || buffer.is_empty() {
                return Ok(len);
            }
            let ended = Member::Ended(Source::new(io::empty()));
            let source = match std::mem::replace(&mut self.member, ended) {
                Member::Plain(source) | Member::Ended(source) => source,
                Member::Gzip(decoder) => decoder.into_inner(),
                Member::Zstd(decoder) => decoder.source,
            };
            self.pass_member(source)?;
        }
    }
}

/// Compression of a member.
#[derive(Clone, Copy)]
enum Kind {
    Gzip,
    Zstd,
}

impl Kind {
    /// Returns the compression of the member that begins here, past skippable frames.
    fn of(source: &mut Source) -> io::Result<Option<Self>> {
        loop {
            let head = source.peek(8)?;
            if head.starts_with(&GZIP_MAGIC) {
                return Ok(Some(Self::Gzip));
            }
            if head.starts_with(&ZSTD_MAGIC) {
                return Ok(Some(Self::Zstd));
            }
            match *head {
                [0x50..=0x5f, a, b, c, l0, l1, l2, l3, ..] if [a, b, c] == ZSTD_SKIPPABLE => {
                    let len = u64::from(u32::from_le_bytes([l0, l1, l2, l3]));
                    source.skip(8 + len)?;
                }
                _ => return Ok(None),
            }
        }
    }

    fn open(self, source: Source) -> io::Result<Member> {
        Ok(match self {
            Self::Gzip => Member::Gzip(Box::new(GzDecoder::new(source))),
            Self::Zstd => Member::Zstd(Box::new(Zstd::open(source)?)),
        })
    }
}

/// One zstd frame.
struct Zstd {
    source: Source,
    frame: FrameDecoder,
    /// The error to return behind the content of a frame that is cut off or corrupt.
    cut: Option<Error>,
}

impl Zstd {
    /// An empty last block and a checksum.
    const FRAME_END: [u8; 7] = [1, 0, 0, 0, 0, 0, 0];

    fn open(mut source: Source) -> io::Result<Self> {
        let mut frame = FrameDecoder::new();
        frame.init(&mut source).map_err(fault)?;
        Ok(Self {
            source,
            frame,
            cut: None,
        })
    }

    fn decode_block(&mut self) -> io::Result<()> {
        let one = || BlockDecodingStrategy::UptoBlocks(1);
        let Err(error) = self.frame.decode_blocks(&mut self.source, one()) else {
            return Ok(());
        };
        let error = fault(error);
        // The decoder keeps back a window of what it decoded until the frame ends.
        let ended = self.frame.decode_blocks(&Self::FRAME_END[..], one());
        if ended.is_err() {
            return Err(error);
        }
        self.cut = Some(error);
        Ok(())
    }
}

impl Read for Zstd {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.frame.can_collect() == 0 && !self.frame.is_finished() {
            self.decode_block()?;
        }
        let len = self.frame.read(buffer)?;
        if len > 0 || buffer.is_empty() {
            return Ok(len);
        }
        if let Some(cut) = self.cut.take() {
            return Err(cut);
        }
        let stored = self.frame.get_checksum_from_data();
        if stored.is_some() && stored != self.frame.get_calculated_checksum() {
            return Err(ErrorKind::InvalidInput.into());
        }
        Ok(0)
    }
}

/// Returns an error of the zstd decoder: of the file or its early end, or of a corrupt stream.
fn fault(error: FrameDecoderError) -> Error {
    let first: &dyn std::error::Error = &error;
    let mut causes = std::iter::successors(Some(first), |error| error.source());
    let of_file = causes.find_map(|cause| cause.downcast_ref::<Error>());
    let kind = of_file.map_or(ErrorKind::InvalidInput, Error::kind);
    Error::new(kind, error)
}

/// Returns the window that a zstd frame asks for and the longest one that is read, if an error says so.
pub(super) fn window_too_long(error: &Error) -> Option<(u64, u64)> {
    match error.get_ref()?.downcast_ref()? {
        FrameDecoderError::WindowSizeTooBig { requested, max } => Some((*requested, *max)),
        _ => None,
    }
}

/// The file's bytes, a few of which can be seen before they are read.
struct Source {
    reader: Box<dyn Read + Send>,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    position: u64,
}

impl Source {
    fn new(reader: impl Read + Send + 'static) -> Self {
        Self {
            reader: Box::new(reader),
            buffer: vec![0; BUFFER_LEN].into(),
            start: 0,
            end: 0,
            position: 0,
        }
    }

    /// Returns the next bytes: at least `len`, unless the file ends before.
    fn peek(&mut self, len: usize) -> io::Result<&[u8]> {
        while self.end - self.start < len {
            if self.start > 0 {
                self.buffer.copy_within(self.start..self.end, 0);
                (self.start, self.end) = (0, self.end - self.start);
            }
            match self.reader.read(&mut self.buffer[self.end..]) {
                Ok(0) => break,
                Ok(n) => self.end += n,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(&self.buffer[self.start..self.end])
    }

    /// Skips `len` bytes, or the rest of the file; returns how many were there.
    fn skip(&mut self, len: u64) -> io::Result<u64> {
        let mut left = len;
        while left > 0 {
            let there = self.peek(1)?.len();
            if there == 0 {
                break;
            }
            let step = usize::try_from(left).unwrap_or(usize::MAX).min(there);
            self.consume(step);
            left -= step as u64;
        }
        Ok(len - left)
    }

    /// Skips zeros; returns how many there were.
    fn skip_zeros(&mut self) -> io::Result<u64> {
        let mut skipped = 0;
        loop {
            let visible = self.peek(1)?;
            let zeros = visible.iter().take_while(|byte| **byte == 0).count();
            let is_all = zeros == visible.len();
            self.consume(zeros);
            skipped += zeros as u64;
            if zeros == 0 || !is_all {
                return Ok(skipped);
            }
        }
    }
}

impl Read for Source {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let visible = self.fill_buf()?;
        let len = visible.len().min(buffer.len());
        buffer[..len].copy_from_slice(&visible[..len]);
        self.consume(len);
        Ok(len)
    }
}

impl BufRead for Source {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.peek(1)
    }

    fn consume(&mut self, len: usize) {
        self.start += len;
        self.position += len as u64;
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::super::{Capture, CaptureError, RecordedFile, binary_file::BinaryFile};
    use super::*;

    const EVENT: &[u8] = b"\x00\x0cS\0\0\0\0\0\0\0\0\0\0Q";

    /// A zstd frame of stored blocks, with a window of `2^(10 + exponent)` bytes.
    fn zstd(exponent: u8, blocks: &[&[u8]]) -> Vec<u8> {
        let mut bytes = [&ZSTD_MAGIC[..], &[0, exponent << 3]].concat();
        for (n, block) in blocks.iter().enumerate() {
            let is_last = u32::from(n + 1 == blocks.len());
            bytes.extend(&((block.len() as u32) << 3 | is_last).to_le_bytes()[..3]);
            bytes.extend(*block);
        }
        bytes
    }

    fn open(bytes: &[u8]) -> Result<Capture, CaptureError> {
        Capture::from_reader("test", Cursor::new(bytes.to_vec()))
    }

    #[test]
    fn compressed_file_without_a_whole_block_is_cut_off() {
        let header = [&[0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0][..], &[0; 16]].concat();
        let whole = zstd(10, &[&header]);
        for bytes in [&whole[..5], &whole[..6], &whole[..8], &whole[..20]] {
            let error = open(bytes).err().unwrap();
            let CaptureError::Damaged {
                offset: 0, what, ..
            } = &error
            else {
                panic!("{error:?}");
            };
            assert!(what.contains("is cut off"), "{error}");
        }
    }

    /// Returns the number of messages, and whether the file is cut off.
    fn read(bytes: &[u8]) -> (u64, bool) {
        let mut file = BinaryFile::from_reader("test", Cursor::new(bytes.to_vec())).unwrap();
        while file.next().unwrap().is_some() {}
        let stats = file.stats();
        (stats.messages, stats.truncated > 0)
    }

    #[test]
    fn cut_zstd_frame_gives_its_whole_blocks() {
        const LEN: usize = 14 * 1_000;
        let block = EVENT.repeat(1_000);
        for (window, has_checksum) in [(4, false), (10, false), (10, true)] {
            let mut whole = zstd(window, &[&block[..]; 3]);
            if has_checksum {
                whole[4] |= 4;
                // The checksum is wrong, but missing where the frame is cut.
                whole.extend([0; 4]);
            }
            let head = 6;
            for blocks in 1..3 {
                let ends = head + blocks * (3 + LEN);
                for cut in [ends, ends + 2, ends + 3, ends + 9, ends + 2 + LEN] {
                    let found = read(&whole[..cut]);
                    assert_eq!(found, (blocks as u64 * 1_000, true), "{window} {cut}");
                }
            }
            if has_checksum {
                for cut in 1..4 {
                    assert_eq!(read(&whole[..whole.len() - cut]), (3_000, true));
                }
            } else {
                assert_eq!(read(&whole), (3_000, false));
            }
        }
    }

    /// Every other read is interrupted, and the others give one byte.
    struct Interrupted(Cursor<Vec<u8>>, bool);

    impl Read for Interrupted {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.1 = !self.1;
            if self.1 {
                return Err(ErrorKind::Interrupted.into());
            }
            let len = buffer.len().min(1);
            self.0.read(&mut buffer[..len])
        }
    }

    #[test]
    fn interrupted_reads_are_repeated() {
        let events = EVENT.repeat(9);
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        io::Write::write_all(&mut gzip, &events).unwrap();
        let gzip = gzip.finish().unwrap();
        for bytes in [zstd(4, &[&events]), gzip, events] {
            let reader = Interrupted(Cursor::new(bytes), false);
            let mut file = BinaryFile::from_reader("test", reader).unwrap();
            while file.next().unwrap().is_some() {}
            assert_eq!((file.stats().messages, file.stats().truncated), (9, 0));
        }
    }

    #[test]
    fn skippable_frames_of_zstd_are_passed_over() {
        let frame = zstd(4, &[EVENT]);
        for first in [0x50, 0x5a, 0x5f] {
            let skippable = [first, 0x2a, 0x4d, 0x18, 5, 0, 0, 0, b'5', 0, 1, 2, 3];
            let bytes = [&skippable[..], &skippable, &frame, &skippable, &frame].concat();
            assert_eq!(read(&bytes), (2, false), "{first:#x}");
        }
        for other in [[0x4f, 0x2a, 0x4d, 0x18], [0x50, 0x2a, 0x4d, 0x19]] {
            let bytes = [&other[..], &[5, 0, 0, 0, b'5', 0, 1, 2, 3], &frame].concat();
            let opened = BinaryFile::from_reader("test", Cursor::new(bytes));
            assert!(opened.is_err(), "{other:02x?}");
        }
    }

    #[test]
    fn corrupt_last_block_of_zstd_is_no_cut() {
        let mut frame = zstd(4, &[&EVENT.repeat(100)[..]; 2]);
        let second = 6 + 3 + 1_400;
        // A block of a reserved type, and one whose literals exceed it, at the end of the file.
        for (kind, body) in [(3, &[0; 9][..]), (2, &[0xff; 9])] {
            frame.truncate(second);
            let header = (body.len() as u32) << 3 | kind << 1 | 1;
            frame.extend(&header.to_le_bytes()[..3]);
            frame.extend(body);
            let mut file = BinaryFile::from_reader("test", Cursor::new(frame.clone())).unwrap();
            let mut messages = 0;
            let error = loop {
                match file.next() {
                    Ok(message) => messages += usize::from(message.is_some()),
                    Err(error) => break error.to_string(),
                }
            };
            assert!(error.contains("is corrupt"), "{error}");
            assert_eq!((messages, file.stats().truncated), (100, 1));
            assert_eq!(file.stats().account.total().bytes, 1_400);
        }
    }

    #[test]
    fn zstd_window_beyond_the_limit_is_named() {
        let path = std::env::temp_dir().join(format!("window-{}", std::process::id()));
        // 128 MiB and 2 GiB.
        assert!(BinaryFile::from_reader("test", Cursor::new(zstd(17, &[EVENT]))).is_ok());
        let long = zstd(21, &[EVENT]);
        std::fs::write(&path, &long).unwrap();
        let behind = [&zstd(10, &[EVENT, EVENT])[..], &long].concat();
        let mut file = BinaryFile::from_reader("test", Cursor::new(behind)).unwrap();
        let later = std::iter::from_fn(|| match file.next() {
            Ok(message) => message.map(|_| None),
            Err(error) => Some(Some(error)),
        });
        for error in [
            open(&long).err(),
            RecordedFile::open(&path).err(),
            later.flatten().next(),
        ] {
            let error = error.unwrap();
            assert!(
                matches!(
                    error,
                    CaptureError::Window {
                        window: 0x8000_0000,
                        ..
                    }
                ),
                "{error:?}"
            );
            let text = error.to_string();
            for part in ["2048 MiB", "128 MiB", "zstd -d --long=31"] {
                assert!(text.contains(part), "{text}");
            }
        }
        std::fs::remove_file(path).unwrap();
    }
}
