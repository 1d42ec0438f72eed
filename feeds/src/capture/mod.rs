//! Reads recorded packets: every UDP datagram of a capture in order, and an account of every frame
//! and byte that is none.
//!
//! The first bytes of a file distinguish pcap from pcapng, gzip and zstd; its name does not matter.
//! Damage costs the damaged record, no more: reading continues at the next sound one. Memory is
//! bounded for any file.

pub mod account;
pub mod binary_file;
mod compression;
mod error;
pub mod finding;
mod fragments;
mod frame;
pub mod guess;
mod head;
mod input;
mod pcap;
mod pcapng;
mod times;
mod units;

use std::{
    collections::BTreeMap,
    io::Read,
    net::SocketAddr,
    ops::Range,
    path::{Path, PathBuf},
};

use tickcast_reliability::types::Nanos;

pub use self::error::CaptureError;
pub use self::frame::{PacketTime, UnknownPacketTime};
use self::{
    account::{Account, Reason, Row},
    binary_file::BinaryFile,
    error::CaptureFault,
    finding::{CaptureFinding, Findings},
    fragments::{Added, Reassembly},
    frame::{Content, Link, Skip},
    head::{begins_file, not_a_capture, open_input, open_reader},
    input::Input,
    pcap::PcapReader,
    pcapng::PcapNgReader,
    times::Times,
};
use crate::source::Packet;

/// Neighbouring stamps that are further apart are a finding.
pub(crate) const STEP_MAX: Nanos = Nanos::from_secs(60);
/// Packets that came in fragments, one within the other, up to the datagram of a frame.
const NESTED_MAX: usize = 8;
/// EtherTypes and protocols that are counted apart.
const OTHERS_MAX: usize = 64;
/// Interfaces and link types of which the first frame is a finding.
const UNREADABLE_MAX: usize = 64;

/// A capture being read.
pub struct Capture {
    path: PathBuf,
    size: Option<u64>,
    input: Input,
    format: CaptureFormat,
    reader: Reader,
    reassembly: Reassembly,
    stats: CaptureStats,
    findings: Findings,
    unreadable: Vec<NoLink>,
    others: Others,
    /// Origin of the packets' times.
    time: PacketTime,
    times: Times,
}

/// A recorded file, by its content.
pub enum RecordedFile {
    /// Packets.
    Capture(Box<Capture>),
    /// Messages.
    Messages(Box<BinaryFile>),
}

impl RecordedFile {
    /// Opens a file, a FIFO, or standard input for the path `-`.
    ///
    /// # Errors
    /// [`CaptureError`] when the file can't be read, or is neither a capture nor a file of messages.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, CaptureError> {
        let path = path.as_ref();
        let (mut input, size) = open_input(path)?;
        let framing = binary_file::recognise(&mut input);
        Ok(
            match framing.map_err(|e| CaptureFault::Io(e).at(path, 0))? {
                Some(framing) => {
                    Self::Messages(Box::new(BinaryFile::new(path, input, size, framing)))
                }
                None => Self::Capture(Box::new(Capture::new(path, input, size)?)),
            },
        )
    }
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
    /// Capture time, or that of the stamp that was asked for, UTC ns; 0 if the capture has none.
    pub received_at: Nanos,
    /// Sender address.
    pub source: SocketAddr,
    /// Destination address: the group and port of a feed's line.
    pub destination: SocketAddr,
    /// Captured part of the UDP payload.
    pub payload: &'a [u8],
    /// Length of the payload when it was sent, in bytes.
    pub original_len: usize,
    /// Frames and bytes of the file that carry it, as in the account.
    pub record: Row,
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

/// Counts so far. The account's sums are the frames and bytes read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CaptureStats {
    /// Frames read.
    pub frames: u64,
    /// Datagrams returned.
    pub datagrams: u64,
    /// Returned datagrams of which the capture kept only the beginning.
    pub snapped: u64,
    /// Returned datagrams without the stamp that was asked for: they have the time of their record.
    pub unstamped: u64,
    /// 1 when the file ended in the middle of a record or of its compressed stream.
    pub truncated: u64,
    /// Frames and bytes by reason. Every returned datagram counts as one of the feed.
    pub account: Account,
}

impl CaptureStats {
    /// Returns the number of frames without a returned datagram.
    #[must_use]
    pub fn skipped(&self) -> u64 {
        let returned = [Reason::Datagram, Reason::Snapped].map(|r| self.account.of(r).frames);
        self.frames - returned.iter().sum::<u64>()
    }

    /// Returns a number that rises with each part of the file that could not be read, and may have held
    /// datagrams.
    pub(crate) const fn unread(&self) -> u64 {
        let account = &self.account;
        self.truncated
            + account.of(Reason::Skipped).bytes
            + account.of(Reason::Malformed).bytes
            + account.of(Reason::Contradiction).bytes
            + account.of(Reason::Checksum).bytes
            + account.of(Reason::Trailing).bytes
    }

    /// Adds the counts of another file; `truncated` becomes the number of such files.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.frames += other.frames;
        self.datagrams += other.datagrams;
        self.snapped += other.snapped;
        self.unstamped += other.unstamped;
        self.truncated += other.truncated;
        self.account.merge(&other.account);
    }
}

impl Capture {
    /// Opens a capture file, a FIFO, or standard input for the path `-`.
    ///
    /// # Errors
    /// [`CaptureError`] when the file is no readable capture; [`CaptureError::NotACapture`] when it has
    /// another format.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, CaptureError> {
        let path = path.as_ref();
        let (input, size) = open_input(path)?;
        Self::new(path, input, size)
    }

    /// Reads a capture from any reader; errors show `name` as its path.
    ///
    /// # Errors
    /// Same as [`Capture::open`].
    pub fn from_reader(
        name: impl AsRef<Path>,
        reader: impl Read + Send + 'static,
    ) -> Result<Self, CaptureError> {
        let name = name.as_ref();
        let input = Input::new(reader).map_err(|e| CaptureFault::Io(e).at(name, 0))?;
        Self::new(name, input, None)
    }

    pub(crate) fn new(
        path: &Path,
        mut input: Input,
        size: Option<u64>,
    ) -> Result<Self, CaptureError> {
        let at = |fault: CaptureFault| fault.at(path, 0);
        let Some((format, reader)) = open_reader(&mut input).map_err(at)? else {
            return Err(not_a_capture(path, &mut input));
        };
        let mut capture = Self {
            path: path.into(),
            size,
            input,
            format,
            reader,
            reassembly: Reassembly::default(),
            stats: CaptureStats::default(),
            findings: Findings::default(),
            unreadable: Vec::new(),
            others: Others::default(),
            time: PacketTime::default(),
            times: Times::default(),
        };
        capture.begin_file();
        if matches!(capture.reader, Reader::Ended) {
            capture.end(capture.input.offset()).map_err(at)?;
        }
        Ok(capture)
    }

    /// Takes the packets' times from here, instead of from the capture's records.
    pub const fn set_time(&mut self, time: PacketTime) {
        self.time = time;
    }

    /// Accounts for a file header that was just read.
    fn begin_file(&mut self) {
        if matches!(self.reader, Reader::Pcap(_)) {
            self.stats
                .account
                .add(Reason::Structure, 0, pcap::FILE_HEADER_LEN as u64);
        }
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
        loop {
            if matches!(self.reader, Reader::Ended) {
                return Ok(None);
            }
            let entered = self.enter_file();
            let offset = self.input.offset();
            let step = match entered.and_then(|()| self.step()) {
                Ok(step) => step,
                Err(fault) => {
                    let bytes = self.input.offset() - offset;
                    self.stats.account.add(Reason::Truncated, 0, bytes);
                    self.stats.truncated = 1;
                    self.reader = Reader::Ended;
                    self.times.end(&mut self.findings);
                    return Err(fault.at(&self.path, self.input.offset()));
                }
            };
            let bytes = self.input.offset() - offset;
            let account = &mut self.stats.account;
            match step {
                Step::Structure => account.add(Reason::Structure, 0, bytes),
                Step::Padding => account.add(Reason::Padding, 0, bytes),
                Step::Skipped => {
                    account.add(Reason::Skipped, 0, bytes);
                    let (from, to) = (offset, offset + bytes);
                    self.findings.add(CaptureFinding::Skipped { from, to });
                }
                Step::UnknownBlock(kind) => {
                    account.add(Reason::Skipped, 0, bytes);
                    let finding = CaptureFinding::UnknownBlock { kind, at: offset };
                    self.findings.add(finding);
                }
                Step::Unreadable => {
                    self.stats.frames += 1;
                    account.add(Reason::Malformed, 1, bytes);
                }
                Step::End => {
                    let ended = self.end(offset);
                    ended.map_err(|fault| fault.at(&self.path, self.input.offset()))?;
                }
                Step::Frame(mut frame) => {
                    self.stats.frames += 1;
                    // Fragments age by one clock: not every frame has the stamp that is asked for.
                    let captured_at = frame.received_at;
                    let is_stamped = self.stamp(&mut frame);
                    // Another clock's time is no step of this one.
                    if is_stamped {
                        self.times.check(&frame, offset, &mut self.findings);
                    }
                    match self.datagram(&frame, captured_at, offset, bytes) {
                        Ok(found) => {
                            self.stats.unstamped += u64::from(!is_stamped);
                            return Ok(Some(self.lend(&frame, found, bytes)));
                        }
                        Err(Some(reason)) => self.stats.account.add(reason, 1, bytes),
                        Err(None) => {}
                    }
                }
            }
        }
    }

    /// Opens another file that begins here, and the next one where that is empty.
    fn enter_file(&mut self) -> Result<(), CaptureFault> {
        loop {
            self.input.ensure(pcap::FILE_HEADER_LEN)?;
            let begins = begins_file(self.input.visible());
            let is_section_of_same =
                matches!(self.reader, Reader::PcapNg(_)) && begins == Some(CaptureFormat::PcapNg);
            let at = self.input.offset();
            if begins.is_none() || at == 0 || is_section_of_same {
                return Ok(());
            }
            let Some((_, reader)) = open_reader(&mut self.input)? else {
                return Ok(());
            };
            self.findings.add(CaptureFinding::AnotherFile { at });
            self.reader = reader;
            self.begin_file();
            if matches!(self.reader, Reader::Ended) {
                return Ok(());
            }
        }
    }

    /// Returns another reader of the same file, from its beginning.
    pub(crate) fn reopened(&self) -> Result<Self, CaptureError> {
        let mut capture = Self::open(&self.path)?;
        capture.set_time(self.time);
        Ok(capture)
    }

    /// Reads the next record or block.
    fn step(&mut self) -> Result<Step, CaptureFault> {
        match &mut self.reader {
            Reader::Pcap(reader) => reader.next(&mut self.input),
            Reader::PcapNg(reader) => reader.next(&mut self.input),
            Reader::Ended => Ok(Step::End),
        }
    }

    /// Accounts for the end of the file, whose last record begins at `at` and is cut off. Returns the error
    /// that ended it.
    fn end(&mut self, at: u64) -> Result<(), CaptureFault> {
        let rest = self.input.visible();
        // No record or block begins with so many zeros.
        let is_padding = rest.len() >= 4 && rest.iter().all(|byte| *byte == 0);
        self.input.take(rest.len());
        let bytes = self.input.offset() - at;
        let is_cut = self.input.is_cut();
        let fault = self.input.take_fault();
        if is_padding && !is_cut {
            self.stats.account.add(Reason::Padding, 0, bytes);
        } else if bytes > 0 || is_cut {
            self.stats.account.add(Reason::Truncated, 0, bytes);
            self.stats.truncated = 1;
            // The error names itself.
            if fault.is_none() {
                self.findings.add(CaptureFinding::Truncated { at });
            }
        }
        (self.input.tail()).account(&mut self.stats.account, &mut self.findings);
        self.times.end(&mut self.findings);
        self.reader = Reader::Ended;
        fault.map_or(Ok(()), |fault| Err(fault.into()))
    }

    /// Gives a frame the time that is asked for. Returns `false` if it has none, and keeps its record's.
    fn stamp(&self, frame: &mut RawFrame) -> bool {
        if self.time == PacketTime::Capture {
            return true;
        }
        let bytes = self.input.taken(frame.bytes.clone());
        let link = frame.link.ok();
        let stamp = link.and_then(|link| self.time.of(link, bytes, frame.received_at));
        if let Some(at) = stamp {
            frame.received_at = at;
            frame.excess = None;
            frame.other_unit = None;
        }
        stamp.is_some()
    }

    /// Finds the datagram of a frame, or the reason why it has none; fragments that wait for others
    /// have none yet.
    fn datagram(
        &mut self,
        frame: &RawFrame,
        captured_at: Nanos,
        at: u64,
        record_bytes: u64,
    ) -> Result<Found, Option<Reason>> {
        let link = frame
            .link
            .map_err(|no_link| Some(self.unreadable(no_link, at)))?;
        let bytes = self.input.taken(frame.bytes.clone());
        let content = frame::content(link, bytes).map_err(|skip| {
            self.others.add(skip, 1);
            Some(match skip.reason {
                Reason::Malformed | Reason::Fragment if frame.is_snapped => Reason::Snapped,
                reason => reason,
            })
        })?;
        match content {
            // A header length beyond an unsnapped frame contradicts that frame.
            Content::Datagram(datagram) if !datagram.is_whole() && !frame.is_snapped => {
                Err(Some(Reason::Malformed))
            }
            Content::Datagram(datagram) => {
                let reason = match datagram.is_whole() {
                    true => Reason::Datagram,
                    false => Reason::Snapped,
                };
                self.stats.account.add(reason, 1, record_bytes);
                Ok(Found::InFrame(datagram))
            }
            Content::Fragment(fragment) => {
                let part = bytes.get(fragment.bytes.clone()).unwrap_or_default();
                self.stats.account.add(Reason::Fragment, 1, record_bytes);
                let row = Row {
                    frames: 1,
                    bytes: record_bytes,
                };
                let added = self.reassembly.add(&fragment, part, captured_at, row);
                self.assembled(added, captured_at).ok_or(None)
            }
        }
    }

    /// Finds the datagram in a packet that a fragment completed, through fragments of a tunnel too. Its
    /// frames move to their reason.
    fn assembled(&mut self, mut added: Added, captured_at: Nanos) -> Option<Found> {
        let account = &mut self.stats.account;
        for _ in 0..NESTED_MAX {
            let whole = match added {
                Added::Waits => return None,
                Added::Repeated(row) => {
                    account.move_frames(Reason::Fragment, Reason::RepeatedFragment, row);
                    return None;
                }
                Added::Damaged(reason, row) => {
                    account.move_frames(Reason::Fragment, reason, row);
                    return None;
                }
                Added::Completed(whole) => whole,
            };
            let row = whole.row;
            let skip = match frame::content_of_packet(&whole.origin, self.reassembly.payload()) {
                Ok(Content::Datagram(datagram)) if datagram.is_whole() => {
                    account.move_frames(Reason::Fragment, Reason::Datagram, row);
                    return Some(Found::Reassembled(datagram, row));
                }
                Ok(Content::Datagram(_)) => Reason::Malformed.into(),
                Ok(Content::Fragment(fragment)) => {
                    added = self.reassembly.add_inner(&fragment, captured_at, row);
                    continue;
                }
                Err(skip) => skip,
            };
            self.others.add(skip, row.frames);
            account.move_frames(Reason::Fragment, skip.reason, row);
            return None;
        }
        None
    }

    /// Reports the first frame of each interface or link type that can't be read.
    fn unreadable(&mut self, no_link: NoLink, at: u64) -> Reason {
        let is_new = !self.unreadable.contains(&no_link);
        if is_new && self.unreadable.len() < UNREADABLE_MAX {
            self.unreadable.push(no_link);
            self.findings.add(match no_link {
                NoLink::Type(link) => CaptureFinding::UnknownLink { link, at },
                NoLink::Interface(interface) => CaptureFinding::UnknownInterface {
                    interface,
                    block: match &self.reader {
                        Reader::PcapNg(reader) => reader.blocks(),
                        _ => 0,
                    },
                    at,
                },
            });
        }
        match no_link {
            NoLink::Type(_) => Reason::UnknownLink,
            NoLink::Interface(_) => Reason::UnknownInterface,
        }
    }

    fn lend(&mut self, frame: &RawFrame, found: Found, record_bytes: u64) -> CapturedDatagram<'_> {
        self.stats.datagrams += 1;
        let received_at = frame.received_at;
        match found {
            Found::InFrame(datagram) => {
                let bytes = self.input.taken(frame.bytes.clone());
                let captured = CapturedDatagram {
                    received_at,
                    source: datagram.source,
                    destination: datagram.destination,
                    payload: bytes.get(datagram.payload).unwrap_or_default(),
                    original_len: datagram.original_len,
                    record: Row {
                        frames: 1,
                        bytes: record_bytes,
                    },
                };
                self.stats.snapped += u64::from(captured.is_snapped());
                captured
            }
            Found::Reassembled(datagram, record) => {
                let payload = self.reassembly.payload();
                CapturedDatagram {
                    received_at,
                    source: datagram.source,
                    destination: datagram.destination,
                    payload: payload.get(datagram.payload).unwrap_or_default(),
                    original_len: datagram.original_len,
                    record,
                }
            }
        }
    }

    /// Returns the path of the file, as given.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the counts so far.
    #[must_use]
    pub const fn stats(&self) -> &CaptureStats {
        &self.stats
    }

    /// Returns the findings so far.
    #[must_use]
    pub const fn findings(&self) -> &Findings {
        &self.findings
    }

    /// Returns the frames without a datagram by reason and number (of the EtherType or protocol).
    pub fn others(&self) -> impl Iterator<Item = (Reason, u16, u64)> + '_ {
        let others = self.others.0.iter();
        others.map(|((reason, number), frames)| (*reason, *number, *frames))
    }

    /// Returns one line for each reason why the capture is not whole; complete at the end.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        let mut faults = self.findings.faults();
        if self.stats.frames == 0 {
            faults.push("the file holds no frames: check that it is complete".into());
        }
        for reason in [
            Reason::Snapped,
            Reason::Malformed,
            Reason::Fragment,
            Reason::Contradiction,
            Reason::Checksum,
        ] {
            let frames = self.stats.account.of(reason).frames;
            if frames > 0 {
                let remedy = match reason {
                    Reason::Snapped => "record with a snap length of 0",
                    _ => "record them again",
                };
                faults.push(format!("{frames} frames: {}; {remedy}", reason.text()));
            }
        }
        let mut named = 0;
        for (reason, number, frames) in self.others() {
            if let Some(name) = not_read(reason, number) {
                named += frames;
                faults.push(format!(
                    "{frames} frames of {name} are not read, and may hold packets of the feed: record \
                     where they are plain"
                ));
            }
        }
        let not_read = [Reason::OtherEtherType, Reason::OtherProtocol];
        let all: u64 = not_read
            .map(|it| self.stats.account.of(it).frames)
            .iter()
            .sum();
        if all > named {
            faults.push(format!(
                "{} frames of further EtherTypes or protocols are not read",
                all - named
            ));
        }
        faults
    }

    /// Returns one line for each finding that leaves the capture whole; complete at the end.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let mut notes = self.findings.notes();
        let CaptureStats {
            unstamped,
            datagrams,
            ..
        } = self.stats;
        if unstamped > 0 {
            notes.push(format!(
                "{unstamped} of {datagrams} packets have no time stamp of {}: the time of their record \
                 is taken",
                self.time
            ));
        }
        notes
    }

    /// Moves a returned datagram from the feed to another reason.
    pub(crate) const fn account_as(&mut self, reason: Reason, record: Row) {
        (self.stats.account).move_frames(Reason::Datagram, reason, record);
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

/// Returns the name of content that is not read: a frame of it may hold a packet of a feed.
pub(crate) fn not_read(reason: Reason, number: u16) -> Option<String> {
    Skip { reason, number }.not_read()
}

/// Frames without a datagram, by reason and number.
#[derive(Debug, Default)]
struct Others(BTreeMap<(Reason, u16), u64>);

impl Others {
    fn add(&mut self, skip: Skip, frames: u64) {
        let key = (skip.reason, skip.number);
        if self.0.len() < OTHERS_MAX || self.0.contains_key(&key) {
            *self.0.entry(key).or_default() += frames;
        }
    }
}

/// One step through a file; its bytes were just taken.
enum Step {
    Frame(RawFrame),
    /// A header or block without a packet.
    Structure,
    /// A packet block whose content contradicts itself.
    Unreadable,
    /// A block that may be a packet under a damaged type.
    UnknownBlock(u32),
    /// Bytes up to the next sound record.
    Skipped,
    /// Zeros up to the end.
    Padding,
    /// The rest of the input holds no whole record.
    End,
}

impl Step {
    /// Returns the step over damage, or over the zeros that end the file.
    const fn damage(is_padding: bool) -> Self {
        match is_padding {
            true => Self::Padding,
            false => Self::Skipped,
        }
    }
}

/// Place of a datagram.
enum Found {
    InFrame(frame::Datagram),
    /// In the packet completed last, which came in these frames.
    Reassembled(frame::Datagram, Row),
}

/// Reason why a frame's link layer is not known: the number of an interface, or of a link type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NoLink {
    Interface(u32),
    Type(i32),
}

/// A frame in the input's buffer, just taken.
#[derive(Debug)]
struct RawFrame {
    link: Result<Link, NoLink>,
    received_at: Nanos,
    /// The finding that the stamp has another unit than the file states.
    other_unit: Option<CaptureFinding>,
    /// A fraction of the stamp that exceeds a second, in ns.
    excess: Option<u64>,
    bytes: Range<usize>,
    is_snapped: bool,
}

#[cfg(test)]
mod tests;
