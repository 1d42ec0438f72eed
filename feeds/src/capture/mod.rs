//! Reads recorded packets: every UDP datagram of a capture in order, with a count of each skipped frame.
//!
//! The first bytes of a file distinguish pcap from pcapng and gzip; its name does not matter. A file
//! that ends within a record ends the capture and counts as truncated. Memory is bounded for any file.

pub mod binary_file;
mod error;
mod frame;
mod input;
mod pcap;
mod pcapng;

use std::{
    fs::File,
    io::{self, ErrorKind, Read},
    net::SocketAddr,
    ops::Range,
    path::{Path, PathBuf},
};

use tickcast_reliability::types::Nanos;

pub use self::error::CaptureError;
use self::{
    error::CaptureFault,
    frame::{Link, Skip},
    input::Input,
    pcap::PcapReader,
    pcapng::PcapNgReader,
};
use crate::source::Packet;

/// A capture being read.
pub struct Capture {
    path: PathBuf,
    size: Option<u64>,
    input: Input,
    format: CaptureFormat,
    reader: Reader,
    stats: CaptureStats,
}

/// File format of a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CaptureFormat {
    /// Classic pcap.
    Pcap,
    /// pcapng.
    PcapNg,
}

/// One UDP datagram as captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapturedDatagram<'a> {
    /// Capture time, UTC ns; 0 if the capture has none.
    pub received_at: Nanos,
    /// Sender address.
    pub source: SocketAddr,
    /// Destination address: the group and port of a feed's line.
    pub destination: SocketAddr,
    /// Captured part of the UDP payload.
    pub payload: &'a [u8],
    /// Length of the payload when it was sent, in bytes.
    pub original_len: usize,
}

impl<'a> CapturedDatagram<'a> {
    /// Returns whether the capture kept only the beginning of the payload.
    #[must_use]
    pub const fn is_snapped(&self) -> bool {
        self.payload.len() < self.original_len
    }

    /// Returns the datagram as a decoder takes it.
    #[must_use]
    pub const fn packet(&self) -> Packet<'a> {
        Packet {
            received_at: self.received_at,
            payload: self.payload,
        }
    }
}

/// Counts so far. Always `frames == datagrams + skipped.total()`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CaptureStats {
    /// Whole frames read.
    pub frames: u64,
    /// Datagrams returned.
    pub datagrams: u64,
    /// Returned datagrams of which the capture kept only the beginning.
    pub snapped: u64,
    /// Skipped frames.
    pub skipped: Skipped,
    /// 1 when the file ended in the middle of a record or of its compressed stream.
    pub truncated: u64,
}

/// Skipped frames, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Skipped {
    /// Neither IPv4 nor IPv6.
    pub not_ip: u64,
    /// IP with a protocol other than UDP.
    pub not_udp: u64,
    /// Fragments of IP packets.
    pub fragments: u64,
    /// Frames whose headers contradict each other or are cut off.
    pub malformed: u64,
    /// Frames of an unsupported link type, interface or block type.
    pub unknown_link: u64,
}

impl Skipped {
    /// Returns the number of all skipped frames.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.not_ip + self.not_udp + self.fragments + self.malformed + self.unknown_link
    }

    const fn add(&mut self, skip: Skip) {
        match skip {
            Skip::NotIp => self.not_ip += 1,
            Skip::NotUdp => self.not_udp += 1,
            Skip::Fragment => self.fragments += 1,
            Skip::Malformed => self.malformed += 1,
        }
    }
}

impl Capture {
    /// Opens a capture file.
    ///
    /// # Errors
    /// [`CaptureError`] when the file is no readable capture; [`CaptureError::NotACapture`] when it has
    /// another format.
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

    /// Reads a capture from any reader; errors show `name` as its path.
    ///
    /// # Errors
    /// Same as [`Capture::open`].
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
        let mut input = Input::new(reader).map_err(|e| CaptureFault::Io(e).at(path, 0))?;
        let has_magic = input
            .ensure(pcapng::MAGIC.len())
            .map_err(|e| CaptureFault::Io(e).at(path, 0))?;
        let head = input.visible();
        let head = &head[..head.len().min(pcapng::MAGIC.len())];
        if head.is_empty() && !input.is_cut() {
            return Err(CaptureError::Empty { path: path.into() });
        }
        let mut stats = CaptureStats::default();
        let (format, reader) = if head == pcapng::MAGIC {
            (
                CaptureFormat::PcapNg,
                Reader::PcapNg(PcapNgReader::default()),
            )
        } else if has_magic && pcap::MAGICS.iter().any(|magic| head == magic) {
            let reader = PcapReader::open(&mut input).map_err(|fault| fault.at(path, 0))?;
            if reader.is_none() {
                stats.truncated = 1;
            }
            (
                CaptureFormat::Pcap,
                reader.map_or(Reader::Ended, Reader::Pcap),
            )
        } else {
            return Err(CaptureError::NotACapture {
                path: path.into(),
                head: head.to_vec(),
            });
        };
        Ok(Self {
            path: path.into(),
            size,
            input,
            format,
            reader,
            stats,
        })
    }

    /// Returns the next UDP datagram, or `None` at the end of the capture and after an error.
    ///
    /// # Errors
    /// [`CaptureError`] when the file cannot be read further. The error ends the capture.
    #[expect(
        clippy::should_implement_trait,
        reason = "it lends from the capture, which an iterator cannot"
    )]
    pub fn next(&mut self) -> Result<Option<CapturedDatagram<'_>>, CaptureError> {
        let (frame, datagram) = loop {
            let read = match &mut self.reader {
                Reader::Pcap(reader) => reader.next(&mut self.input),
                Reader::PcapNg(reader) => reader.next(&mut self.input),
                Reader::Ended => return Ok(None),
            };
            let frame = match read {
                Ok(Some(frame)) => frame,
                Ok(None) => {
                    let is_truncated = !self.input.visible().is_empty() || self.input.is_cut();
                    self.stats.truncated += u64::from(is_truncated);
                    self.reader = Reader::Ended;
                    return Ok(None);
                }
                Err(fault) => {
                    self.reader = Reader::Ended;
                    return Err(fault.at(&self.path, self.input.offset()));
                }
            };
            self.stats.frames += 1;
            let Some(link) = frame.link else {
                self.stats.skipped.unknown_link += 1;
                continue;
            };
            match frame::datagram(link, self.input.taken(frame.bytes.clone())) {
                // A header length beyond an unsnapped frame contradicts that frame.
                Ok(d) if d.payload.len() < d.original_len && !frame.is_snapped => {
                    self.stats.skipped.malformed += 1;
                }
                Ok(datagram) => break (frame, datagram),
                Err(skip) => self.stats.skipped.add(skip),
            }
        };
        let bytes = self.input.taken(frame.bytes);
        let captured = CapturedDatagram {
            received_at: frame.received_at,
            source: datagram.source,
            destination: datagram.destination,
            payload: bytes.get(datagram.payload).unwrap_or_default(),
            original_len: datagram.original_len,
        };
        self.stats.datagrams += 1;
        self.stats.snapped += u64::from(captured.is_snapped());
        Ok(Some(captured))
    }

    /// Returns the counts so far.
    #[must_use]
    pub const fn stats(&self) -> &CaptureStats {
        &self.stats
    }

    /// Returns the file format.
    #[must_use]
    pub const fn format(&self) -> CaptureFormat {
        self.format
    }

    /// Returns the bytes of the file read so far, before decompression. Compare with [`Capture::size`]
    /// for progress.
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

enum Reader {
    Pcap(PcapReader),
    PcapNg(PcapNgReader),
    Ended,
}

/// A frame in the input's buffer, just taken.
#[derive(Debug)]
struct RawFrame {
    link: Option<Link>,
    received_at: Nanos,
    bytes: Range<usize>,
    is_snapped: bool,
}

impl RawFrame {
    const fn unreadable(bytes: Range<usize>) -> Self {
        Self {
            link: None,
            received_at: Nanos::ZERO,
            bytes,
            is_snapped: false,
        }
    }
}
