//! The packets of a recorded file of any kind: the UDP payloads of a capture unchanged, or the
//! messages of a BinaryFILE in MoldUDP64 packets.

use std::path::{Path, PathBuf};

use tickcast_feeds::capture::binary_file::BinaryFile;
use tickcast_feeds::capture::{Capture, CaptureError, CapturedDatagram, PacketTime, RecordedFile};
use tickcast_feeds::moldudp64::{END_OF_SESSION, HEADER_LEN, MoldHeader};
use tickcast_feeds::recording::{FeedDestination, Selection};
use tickcast_reliability::types::Nanos;

use crate::exit::ToolError;
use crate::support::files::name_pipe;

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
    selection: &'a Selection,
    source: Source,
    earlier: PassedOver,
    /// Packets of earlier rounds without the stamp that was asked for.
    earlier_unstamped: u64,
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
    /// Returns the errors of [`Packets::open`].
    pub fn open(paths: &'a [PathBuf], selection: &'a Selection) -> Result<Self, ToolError> {
        let files = paths.iter().map(|path| Packets::open(path, selection));
        Ok(Self {
            files: files.collect::<Result<_, _>>()?,
        })
    }

    /// Starts over at the beginning of the files.
    ///
    /// # Errors
    /// Returns the errors of [`Packets::open`].
    pub fn rewind(&mut self) -> Result<(), ToolError> {
        self.files.iter_mut().try_for_each(Packets::rewind)
    }

    /// Returns the earliest of the files' next packets; `None` at the end of all.
    ///
    /// # Errors
    /// Returns [`ToolError::Capture`] if a file can't be read further.
    pub fn next_packet(&mut self) -> Result<Option<RecordedPacket<'_>>, ToolError> {
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

    /// Returns the number of bytes read and the size of all files.
    pub fn progress(&self) -> (u64, Option<u64>) {
        let all = self.files.iter().map(Packets::progress);
        all.fold((0, Some(0)), |(sum, sizes), (at, size)| {
            (sum + at, sizes.zip(size).map(|(a, b)| a + b))
        })
    }

    /// Returns the counts of the contents that were not sent.
    pub fn passed_over(&self) -> PassedOver {
        let mut all = PassedOver::default();
        self.files
            .iter()
            .for_each(|file| all.add(file.passed_over()));
        all
    }

    /// Returns the number of packets without the stamp that was asked for.
    pub fn unstamped(&self) -> u64 {
        self.files.iter().map(Packets::unstamped).sum()
    }

    /// Returns one line for each reason why a file that was read to its end is not whole.
    pub fn faults(&self) -> Vec<String> {
        self.texts(Source::faults)
    }

    /// Returns one line for each finding that leaves a file whole, such as times that can't be right.
    pub fn notes(&self) -> Vec<String> {
        self.texts(Source::notes)
    }

    fn texts(&self, of: fn(&Source) -> Vec<String>) -> Vec<String> {
        let texts = self.files.iter().flat_map(|file| {
            let path = file.path.display();
            let texts = of(&file.source).into_iter();
            texts.map(move |text| format!("{path}: {text}"))
        });
        texts.collect()
    }
}

enum Source {
    Capture(Box<Capture>, PassedOver),
    Messages(Box<MoldPackets>),
}

impl<'a> Packets<'a> {
    /// Opens a file. Skips a capture's packets to other destinations than the selection's, and takes their
    /// times from its origin.
    ///
    /// # Errors
    /// Returns [`ToolError::Capture`] if the file is neither a capture nor a BinaryFILE, and
    /// [`ToolError::Usage`] if destinations or time stamps of a BinaryFILE are asked for.
    pub fn open(path: &'a Path, selection: &'a Selection) -> Result<Self, ToolError> {
        let source = Source::open(path, selection.time, 1)?;
        if matches!(source, Source::Messages(_)) {
            let checked = selection.check_messages(path, None);
            checked.map_err(|error| ToolError::Usage(error.to_string()))?;
        }
        Ok(Self {
            path,
            selection,
            source,
            earlier: PassedOver::default(),
            earlier_unstamped: 0,
            packet: Vec::new(),
            ahead: None,
        })
    }

    /// Starts over at the beginning of the file. A BinaryFILE becomes a new session. A capture's packets
    /// are identical again, so decoders treat them as old.
    ///
    /// # Errors
    /// Returns the errors of [`Packets::open`].
    pub fn rewind(&mut self) -> Result<(), ToolError> {
        self.earlier = self.passed_over();
        self.earlier_unstamped = self.unstamped();
        let next_session = match &self.source {
            Source::Messages(messages) => messages.session + 1,
            Source::Capture(..) => 1,
        };
        self.source = Source::open(self.path, self.selection.time, next_session)?;
        Ok(())
    }

    /// Returns the next packet; `None` at the end of the file.
    ///
    /// # Errors
    /// Returns [`ToolError::Capture`] if the file is damaged there.
    pub fn next_packet(&mut self) -> Result<Option<RecordedPacket<'_>>, ToolError> {
        let at = self.look_ahead()?;
        self.ahead = None;
        let payload = &self.packet;
        Ok(at.map(|at| RecordedPacket { at, payload }))
    }

    /// Reads the next packet, and returns its time; `None` at the end.
    fn look_ahead(&mut self) -> Result<Option<Nanos>, ToolError> {
        if self.ahead.is_some() {
            return Ok(self.ahead);
        }
        self.ahead = match &mut self.source {
            Source::Messages(messages) => messages.next(&mut self.packet)?,
            Source::Capture(capture, passed) => loop {
                let Some(datagram) = capture.next()? else {
                    break None;
                };
                if !wants(&self.selection.only, &datagram) {
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

    /// Returns the number of bytes read and the size of the file.
    pub fn progress(&self) -> (u64, Option<u64>) {
        match &self.source {
            Source::Capture(capture, _) => (capture.position(), capture.size()),
            Source::Messages(messages) => (messages.file.position(), messages.file.size()),
        }
    }

    /// Returns the number of packets without the stamp that was asked for.
    fn unstamped(&self) -> u64 {
        let count = match &self.source {
            Source::Capture(capture, _) => capture.stats().unstamped,
            Source::Messages(_) => 0,
        };
        self.earlier_unstamped + count
    }

    /// Returns the counts of the contents that were not sent.
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
    /// Returns one line for each reason why the file is not whole.
    fn faults(&self) -> Vec<String> {
        match self {
            Self::Capture(capture, _) => capture.faults(),
            Self::Messages(messages) => messages.file.faults(),
        }
    }

    /// Returns one line for each finding that leaves the file whole.
    fn notes(&self) -> Vec<String> {
        match self {
            Self::Capture(capture, _) => capture.notes(),
            Self::Messages(messages) => messages.file.notes(),
        }
    }

    fn open(path: &Path, time: PacketTime, first_session: u64) -> Result<Self, ToolError> {
        name_pipe(path);
        Ok(match RecordedFile::open(path)? {
            RecordedFile::Capture(mut capture) => {
                capture.set_time(time);
                Self::Capture(capture, PassedOver::default())
            }
            RecordedFile::Messages(file) => {
                Self::Messages(Box::new(MoldPackets::new(*file, first_session)))
            }
        })
    }
}

/// Returns whether a datagram is wanted: its destination, and its channel if it is IEX-TP.
fn wants(only: &[FeedDestination], datagram: &CapturedDatagram<'_>) -> bool {
    only.is_empty()
        || only
            .iter()
            .any(|only| only.takes(datagram.destination, datagram.payload))
}

/// Packs messages into MoldUDP64 packets: for each session of the file one, including the packet
/// that ends it.
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
    sequence: u64,
    message: Vec<u8>,
}

/// Maximum bytes of a packet: they fit an Ethernet frame.
const PACKET_MAX: usize = 1_400;
/// Maximum time between two messages of one packet.
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

    /// Fills `packet` with the next packet and returns its time; `None` after the packet that ends the
    /// session.
    fn next(&mut self, packet: &mut Vec<u8>) -> Result<Option<Nanos>, CaptureError> {
        if self.ended {
            return Ok(None);
        }
        packet.clear();
        packet.resize(HEADER_LEN, 0);
        let (mut count, mut sent_at) = (0_u16, None);
        let mut behind = self.sequence;
        while let Some(next) = self.next_message()? {
            let (at, message) = (next.at, &next.message);
            if count == 0 && next.session == self.of_file {
                // Messages that the file lacks are missing in the packets too.
                self.sequence = next.sequence;
                behind = next.sequence;
            }
            let begun = *sent_at.get_or_insert(at);
            let full = packet.len() + 2 + message.len() > PACKET_MAX;
            let is_later = full || at.since(begun) > TOGETHER || next.sequence != behind;
            if next.session != self.of_file || (count > 0 && is_later) {
                self.waiting = Some(next);
                break;
            }
            // The length fits, because the file stores it in two bytes.
            packet.extend_from_slice(&(message.len() as u16).to_be_bytes());
            packet.extend_from_slice(message);
            (count, behind) = (count + 1, behind + 1);
        }
        let is_end = count == 0;
        let header = MoldHeader {
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
            sequence: self.file.sequence(),
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

/// Returns the time of an ITCH 5.0 message since midnight: six bytes after type, locate and tracking.
pub fn stamp(message: &[u8]) -> Nanos {
    message.get(5..11).map_or(Nanos::ZERO, |bytes| {
        Nanos(
            bytes
                .iter()
                .fold(0, |all, byte| all << 8 | u64::from(*byte)),
        )
    })
}
