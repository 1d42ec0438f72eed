//! The packets of a recorded file of any kind: the UDP payloads of a capture unchanged, or the
//! messages of a BinaryFILE in MoldUDP64 packets.

use std::net::SocketAddr;
use std::path::Path;

use tickcast_feeds::capture::binary_file::BinaryFile;
use tickcast_feeds::capture::{Capture, CaptureError};
use tickcast_feeds::moldudp64::{END_OF_SESSION, HEADER_LEN, Header};
use tickcast_reliability::types::Nanos;

use crate::exit::ToolError;

/// One payload and its time.
#[derive(Clone, Copy, Debug)]
pub struct RecordedPacket<'a> {
    /// Time on the recording's clock; 0 if unknown.
    pub at: Nanos,
    /// The UDP payload.
    pub payload: &'a [u8],
}

/// Counts of the file's contents that are not sent.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct PassedOver {
    /// Frames of a capture that are no whole UDP datagram.
    pub frames: u64,
    /// Datagrams that the capture truncated.
    pub snapped: u64,
    /// Datagrams to another destination than the requested one.
    pub other_destination: u64,
    /// 1 if the file ends in the middle of a record.
    pub truncated: u64,
}

impl PassedOver {
    fn add(&mut self, other: Self) {
        self.frames += other.frames;
        self.snapped += other.snapped;
        self.other_destination += other.other_destination;
        self.truncated += other.truncated;
    }
}

/// A file's packets in order, for any number of rounds.
pub struct Packets<'a> {
    path: &'a Path,
    only: Option<SocketAddr>,
    source: Source,
    /// Number of times that the file has been opened.
    round: u64,
    earlier: PassedOver,
    /// The packet returned last.
    packet: Vec<u8>,
}

enum Source {
    Capture(Box<Capture>, PassedOver),
    Messages(Box<MoldPackets>),
}

impl<'a> Packets<'a> {
    /// Opens a file. With `only`, skips a capture's packets to other destinations.
    ///
    /// # Errors
    /// Returns [`ToolError::Capture`] if the file is neither a capture nor a BinaryFILE.
    pub fn open(path: &'a Path, only: Option<SocketAddr>) -> Result<Self, ToolError> {
        Ok(Self {
            path,
            only,
            source: Source::open(path, 1)?,
            round: 1,
            earlier: PassedOver::default(),
            packet: Vec::new(),
        })
    }

    /// Starts over at the beginning of the file. A BinaryFILE becomes a new session. A capture's packets
    /// are identical again, so decoders treat them as old.
    ///
    /// # Errors
    /// Returns the errors of [`Packets::open`].
    pub fn rewind(&mut self) -> Result<(), ToolError> {
        self.earlier = self.passed_over();
        self.round += 1;
        self.source = Source::open(self.path, self.round)?;
        Ok(())
    }

    /// Returns the next packet; `None` at the end of the file.
    ///
    /// # Errors
    /// Returns [`ToolError::Capture`] if the file is damaged there.
    pub fn next_packet(&mut self) -> Result<Option<RecordedPacket<'_>>, ToolError> {
        let at = match &mut self.source {
            Source::Messages(messages) => messages.next(&mut self.packet)?,
            Source::Capture(capture, passed) => loop {
                let Some(datagram) = capture.next()? else {
                    break None;
                };
                if self.only.is_some_and(|only| only != datagram.destination) {
                    passed.other_destination += 1;
                } else if datagram.is_snapped() {
                    passed.snapped += 1;
                } else {
                    self.packet.clear();
                    self.packet.extend_from_slice(datagram.payload);
                    break Some(datagram.received_at);
                }
            },
        };
        let payload = &self.packet;
        Ok(at.map(|at| RecordedPacket { at, payload }))
    }

    /// Returns the number of bytes read and the size of the file.
    pub fn progress(&self) -> (u64, Option<u64>) {
        match &self.source {
            Source::Capture(capture, _) => (capture.position(), capture.size()),
            Source::Messages(messages) => (messages.file.position(), messages.file.size()),
        }
    }

    /// Returns the counts of the contents that were not sent.
    pub fn passed_over(&self) -> PassedOver {
        let mut all = self.earlier;
        all.add(match &self.source {
            Source::Capture(capture, passed) => PassedOver {
                frames: capture.stats().skipped.total(),
                truncated: capture.stats().truncated,
                ..*passed
            },
            Source::Messages(messages) => PassedOver {
                truncated: messages.file.stats().truncated,
                ..PassedOver::default()
            },
        });
        all
    }
}

impl Source {
    fn open(path: &Path, round: u64) -> Result<Self, ToolError> {
        match Capture::open(path) {
            Ok(capture) => Ok(Self::Capture(Box::new(capture), PassedOver::default())),
            Err(CaptureError::NotACapture { head, .. }) if BinaryFile::looks_like(&head) => {
                let file = BinaryFile::open(path)?;
                Ok(Self::Messages(Box::new(MoldPackets::new(file, round))))
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// Packs messages into MoldUDP64 packets of one session, including the packet that ends it.
struct MoldPackets {
    file: BinaryFile,
    session: [u8; 10],
    /// Sequence of the next packet's first message.
    sequence: u64,
    /// The first message of the next packet, and its time.
    waiting: Option<(Nanos, Vec<u8>)>,
    ended: bool,
}

/// Maximum bytes of a packet: they fit an Ethernet frame.
const PACKET_MAX: usize = 1_400;
/// Maximum time between two messages of one packet.
const TOGETHER: Nanos = Nanos::from_us(100);

impl MoldPackets {
    fn new(file: BinaryFile, round: u64) -> Self {
        let mut session = *b"REPLAY0000";
        for (digit, power) in session[6..].iter_mut().zip([1_000, 100, 10, 1]) {
            *digit = b'0' + (round / power % 10) as u8;
        }
        Self {
            file,
            session,
            sequence: 1,
            waiting: None,
            ended: false,
        }
    }

    /// Fills `packet` with the next packet and returns its time; `None` after the packet that ends the
    /// session.
    fn next(&mut self, packet: &mut Vec<u8>) -> Result<Option<Nanos>, CaptureError> {
        if self.ended {
            return Ok(None);
        }
        packet.clear();
        packet.resize(HEADER_LEN, 0);
        let (mut count, mut sent_at) = (0_u16, None);
        loop {
            let (at, message) = match self.waiting.take() {
                Some(waiting) => waiting,
                None => match self.file.next()? {
                    Some(message) => (stamp(message), message.to_vec()),
                    None => break,
                },
            };
            let begun = *sent_at.get_or_insert(at);
            let full = packet.len() + 2 + message.len() > PACKET_MAX;
            if count > 0 && (full || at.since(begun) > TOGETHER) {
                self.waiting = Some((at, message));
                break;
            }
            // The length fits, because the file stores it in two bytes.
            packet.extend_from_slice(&(message.len() as u16).to_be_bytes());
            packet.extend_from_slice(&message);
            count += 1;
        }
        self.ended = count == 0;
        let header = Header {
            session: self.session,
            sequence: self.sequence,
            count: if self.ended { END_OF_SESSION } else { count },
        };
        packet[..HEADER_LEN].copy_from_slice(&header.to_bytes());
        self.sequence += u64::from(count);
        Ok(Some(sent_at.unwrap_or_default()))
    }
}

/// Returns the time of an ITCH 5.0 message since midnight: six bytes after type, locate and tracking.
fn stamp(message: &[u8]) -> Nanos {
    message.get(5..11).map_or(Nanos::ZERO, |bytes| {
        Nanos(
            bytes
                .iter()
                .fold(0, |all, byte| all << 8 | u64::from(*byte)),
        )
    })
}
