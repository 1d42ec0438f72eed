//! The packets of a recorded file, whatever kind of file it is: the UDP payloads of a capture as
//! they were, or the messages of a BinaryFILE wrapped into MoldUDP64 packets.

use std::path::{Path, PathBuf};

use tickcast_feeds::capture::binary_file::BinaryFile;
use tickcast_feeds::capture::{Capture, CaptureError, CapturedDatagram, RecordedFile};
use tickcast_feeds::moldudp64::{END_OF_SESSION, HEADER_LEN, Header};
use tickcast_feeds::recording::Destination;
use tickcast_reliability::types::Nanos;

use crate::exit::CommandError;

/// One payload and when it was sent.
#[derive(Clone, Copy, Debug)]
pub struct RecordedPacket<'a> {
    /// When, on the recording's own clock; 0 when it does not say.
    pub at: Nanos,
    /// The UDP payload.
    pub payload: &'a [u8],
}

/// What a file held that is not sent.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct PassedOver {
    /// Frames of a capture that are no whole UDP datagram.
    pub frames: u64,
    /// Datagrams of which the capture kept only the beginning.
    pub snapped: u64,
    /// Datagrams for another destination than the one asked for.
    pub other_destination: u64,
    /// 1 when the file ends in the middle of a record.
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

/// A file's packets, in order, as often as asked for.
pub struct Packets<'a> {
    path: &'a Path,
    only: &'a [Destination],
    source: Source,
    earlier: PassedOver,
    /// The packet that was read last.
    packet: Vec<u8>,
    /// The time of that packet, while it was not given out.
    ahead: Option<Nanos>,
}

/// The packets of several files, merged by time.
pub struct Merged<'a> {
    files: Vec<Packets<'a>>,
}

impl<'a> Merged<'a> {
    /// Opens the files, each as [`Packets::open`].
    ///
    /// # Errors
    /// As for [`Packets::open`].
    pub fn open(paths: &'a [PathBuf], only: &'a [Destination]) -> Result<Self, CommandError> {
        let files = paths.iter().map(|path| Packets::open(path, only));
        Ok(Self {
            files: files.collect::<Result<_, _>>()?,
        })
    }

    /// Begins the files again.
    ///
    /// # Errors
    /// As for [`Packets::open`].
    pub fn rewind(&mut self) -> Result<(), CommandError> {
        self.files.iter_mut().try_for_each(Packets::rewind)
    }

    /// The earliest of the files' next packets; `None` at the end of all.
    ///
    /// # Errors
    /// [`CommandError::Capture`] when a file can't be read further.
    pub fn next_packet(&mut self) -> Result<Option<RecordedPacket<'_>>, CommandError> {
        let mut earliest: Option<(usize, Nanos)> = None;
        for (index, file) in self.files.iter_mut().enumerate() {
            if let Some(at) = file.look_ahead()?
                && earliest.is_none_or(|(_, than)| at < than)
            {
                earliest = Some((index, at));
            }
        }
        match earliest.and_then(|(index, _)| self.files.get_mut(index)) {
            Some(file) => file.next_packet(),
            None => Ok(None),
        }
    }

    /// How far the files have been read, and their size, in bytes.
    pub fn progress(&self) -> (u64, Option<u64>) {
        let all = self.files.iter().map(Packets::progress);
        all.fold((0, Some(0)), |(sum, sizes), (at, size)| {
            (sum + at, sizes.zip(size).map(|(a, b)| a + b))
        })
    }

    /// What was not sent.
    pub fn passed_over(&self) -> PassedOver {
        let mut all = PassedOver::default();
        self.files
            .iter()
            .for_each(|file| all.add(file.passed_over()));
        all
    }

    /// One line for each reason why a file that was read to its end is not whole.
    pub fn faults(&self) -> Vec<String> {
        let faults = self.files.iter().flat_map(|file| {
            let path = file.path.display();
            let faults = file.source.faults().into_iter();
            faults.map(move |fault| format!("{path}: {fault}"))
        });
        faults.collect()
    }
}

enum Source {
    Capture(Box<Capture>, PassedOver),
    Messages(Box<MoldPackets>),
}

impl<'a> Packets<'a> {
    /// Opens a file; with `only`, a capture's packets to other destinations are passed over.
    ///
    /// # Errors
    /// [`CommandError::Capture`] when it is neither a capture nor a BinaryFILE.
    pub fn open(path: &'a Path, only: &'a [Destination]) -> Result<Self, CommandError> {
        Ok(Self {
            path,
            only,
            source: Source::open(path, 1)?,
            earlier: PassedOver::default(),
            packet: Vec::new(),
            ahead: None,
        })
    }

    /// Begins the file again. A BinaryFILE becomes another session; a capture's packets are the
    /// same again, and decoders take them for what they are: old.
    ///
    /// # Errors
    /// As for [`Packets::open`].
    pub fn rewind(&mut self) -> Result<(), CommandError> {
        self.earlier = self.passed_over();
        let next_session = match &self.source {
            Source::Messages(messages) => messages.session + 1,
            Source::Capture(..) => 1,
        };
        self.source = Source::open(self.path, next_session)?;
        Ok(())
    }

    /// The next packet; `None` at the end of the file.
    ///
    /// # Errors
    /// [`CommandError::Capture`] when the file is damaged there.
    pub fn next_packet(&mut self) -> Result<Option<RecordedPacket<'_>>, CommandError> {
        let at = self.look_ahead()?;
        self.ahead = None;
        let payload = &self.packet;
        Ok(at.map(|at| RecordedPacket { at, payload }))
    }

    /// Reads the next packet, and returns when it was sent; `None` at the end.
    fn look_ahead(&mut self) -> Result<Option<Nanos>, CommandError> {
        if self.ahead.is_some() {
            return Ok(self.ahead);
        }
        self.ahead = match &mut self.source {
            Source::Messages(messages) => messages.next(&mut self.packet)?,
            Source::Capture(capture, passed) => loop {
                let Some(datagram) = capture.next()? else {
                    break None;
                };
                if !wants(self.only, &datagram) {
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
        Ok(self.ahead)
    }

    /// How far the file has been read, and its size, in bytes.
    pub fn progress(&self) -> (u64, Option<u64>) {
        match &self.source {
            Source::Capture(capture, _) => (capture.position(), capture.size()),
            Source::Messages(messages) => (messages.file.position(), messages.file.size()),
        }
    }

    /// What was not sent.
    pub fn passed_over(&self) -> PassedOver {
        let mut all = self.earlier;
        all.add(match &self.source {
            Source::Capture(capture, passed) => PassedOver {
                frames: capture.stats().skipped(),
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
    /// One line for each reason why the file is not whole.
    fn faults(&self) -> Vec<String> {
        match self {
            Self::Capture(capture, _) => capture.faults(),
            Self::Messages(messages) => messages.file.faults(),
        }
    }

    fn open(path: &Path, first_session: u64) -> Result<Self, CommandError> {
        Ok(match RecordedFile::open(path)? {
            RecordedFile::Capture(capture) => Self::Capture(capture, PassedOver::default()),
            RecordedFile::Messages(file) => {
                Self::Messages(Box::new(MoldPackets::new(*file, first_session)))
            }
        })
    }
}

/// Returns whether a datagram is wanted: its destination, and its channel if it is IEX-TP.
fn wants(only: &[Destination], datagram: &CapturedDatagram<'_>) -> bool {
    only.is_empty()
        || only
            .iter()
            .any(|only| only.takes(datagram.destination, datagram.payload))
}

/// Wraps messages into MoldUDP64 packets, one session for each of the file, ends included.
struct MoldPackets {
    file: BinaryFile,
    /// Number of the session that is being sent.
    session: u64,
    /// The session as the file counts.
    of_file: u16,
    /// Sequence of the next packet's first message.
    sequence: u64,
    /// The message that begins the next packet.
    waiting: Option<Waiting>,
    ended: bool,
}

/// A message that was read and not sent.
struct Waiting {
    at: Nanos,
    session: u16,
    message: Vec<u8>,
}

/// Bytes of a packet at most: what fits an Ethernet frame.
const PACKET_MAX: usize = 1_400;
/// Messages that are further apart than this did not travel in one packet.
const TOGETHER: Nanos = Nanos::from_us(100);

impl MoldPackets {
    const fn new(file: BinaryFile, session: u64) -> Self {
        Self {
            file,
            session,
            of_file: 0,
            sequence: 1,
            waiting: None,
            ended: false,
        }
    }

    /// Fills `packet` with the next packet and says when it was sent; `None` behind the one that
    /// ends the session.
    fn next(&mut self, packet: &mut Vec<u8>) -> Result<Option<Nanos>, CaptureError> {
        if self.ended {
            return Ok(None);
        }
        packet.clear();
        packet.resize(HEADER_LEN, 0);
        let (mut count, mut sent_at) = (0_u16, None);
        while let Some(next) = self.next_message()? {
            let (at, message) = (next.at, &next.message);
            let begun = *sent_at.get_or_insert(at);
            let full = packet.len() + 2 + message.len() > PACKET_MAX;
            let is_later = full || at.since(begun) > TOGETHER;
            if next.session != self.of_file || (count > 0 && is_later) {
                self.waiting = Some(next);
                break;
            }
            // A message's length came from two bytes of the file.
            packet.extend_from_slice(&(message.len() as u16).to_be_bytes());
            packet.extend_from_slice(message);
            count += 1;
        }
        let is_end = count == 0;
        let header = Header {
            session: session_name(self.session),
            sequence: self.sequence,
            count: if is_end { END_OF_SESSION } else { count },
        };
        packet[..HEADER_LEN].copy_from_slice(&header.to_bytes());
        self.sequence += u64::from(count);
        if is_end {
            match &self.waiting {
                Some(next) => {
                    self.of_file = next.session;
                    self.session += 1;
                    self.sequence = 1;
                }
                None => self.ended = true,
            }
        }
        Ok(Some(sent_at.unwrap_or_default()))
    }

    fn next_message(&mut self) -> Result<Option<Waiting>, CaptureError> {
        if let Some(waiting) = self.waiting.take() {
            return Ok(Some(waiting));
        }
        let Some(message) = self.file.next()? else {
            return Ok(None);
        };
        let (at, message) = (stamp(message), message.to_vec());
        Ok(Some(Waiting {
            at,
            session: self.file.session(),
            message,
        }))
    }
}

fn session_name(number: u64) -> [u8; 10] {
    let mut name = *b"REPLAY0000";
    for (digit, power) in name[6..].iter_mut().zip([1_000, 100, 10, 1]) {
        *digit = b'0' + (number / power % 10) as u8;
    }
    name
}

/// When an ITCH 5.0 message was sent, since midnight: six bytes behind type, locate and tracking.
fn stamp(message: &[u8]) -> Nanos {
    message.get(5..11).map_or(Nanos::ZERO, |bytes| {
        Nanos(
            bytes
                .iter()
                .fold(0, |all, byte| all << 8 | u64::from(*byte)),
        )
    })
}
