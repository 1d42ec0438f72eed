//! A recording: the packets of the wanted feeds of a capture, and an account of everything else.
//!
//! The first packets are surveyed. A capture with several feeds needs a choice; everything that is
//! not of the chosen feeds is foreign, counted by destination, and changes nothing.

mod inspection;
mod selection;
mod survey;
mod timeline;

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use thiserror::Error;
use tickcast_reliability::types::Nanos;

pub use self::inspection::{FeedReport, Inspection};
pub use self::selection::{Destination, NotADestination, Selection};
pub use self::survey::Feed;
use self::survey::{Survey, channel};
pub use self::timeline::Timeline;
use crate::capture::{
    Capture, CaptureError,
    account::{Account, Reason, Row},
    guess::Guess,
};
use crate::moldudp64;
use crate::venues::Format;

/// Packets of a regular file that are surveyed; their bytes are bounded too.
const SURVEY_PACKETS: usize = 20_000;
const SURVEY_BYTES: usize = 32 << 20;
/// Packets of a pipe that are surveyed, unless a feed is recognised earlier.
const SURVEY_PIPE_PACKETS: usize = 1_000;
/// Destinations that are counted apart.
const DESTINATIONS_MAX: usize = 4_096;

/// A recording that can't be used as it was asked for.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RecordingError {
    /// The file can't be read.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// The file holds several feeds.
    #[error(
        "{} holds {} feeds: {}; choose one by its destination, or all",
        .path.display(), .feeds.len(), list(.feeds)
    )]
    Choice {
        /// The file.
        path: PathBuf,
        /// Its feeds.
        feeds: Vec<Feed>,
    },
    /// The file holds no feed that is wanted.
    #[error("{} holds no feed at the destinations asked for; it holds {}", .path.display(), list(.feeds))]
    NotThere {
        /// The file.
        path: PathBuf,
        /// Its feeds.
        feeds: Vec<Feed>,
    },
    /// No feed was recognised.
    #[error("{} holds no feed that is recognised: {}", .path.display(), .clues.join("; "))]
    Nothing {
        /// The file.
        path: PathBuf,
        /// What is in it, and remedies.
        clues: Vec<String>,
    },
}

fn list(feeds: &[Feed]) -> String {
    if feeds.is_empty() {
        return "none".into();
    }
    feeds
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(", ")
}

/// One packet of a feed.
#[derive(Clone, Copy, Debug)]
pub struct RecordedPacket<'a> {
    /// Index of its feed.
    pub feed: usize,
    /// Index of its line in the feed.
    pub line: usize,
    /// Capture time, UTC ns; 0 if unknown.
    pub received_at: Nanos,
    /// The bytes above UDP.
    pub payload: &'a [u8],
}

/// UDP to a destination that is not of a chosen feed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Other {
    /// Frames and bytes of the file.
    pub record: Row,
    /// Format of a feed that was recognised there.
    pub format: Option<Format>,
    /// Another protocol that it looks like.
    pub guess: Option<Guess>,
}

/// A capture whose feeds were surveyed and chosen.
pub struct Recording {
    path: PathBuf,
    capture: Capture,
    feeds: Vec<Feed>,
    is_chosen: bool,
    /// Surveyed packets that were not returned yet.
    held: VecDeque<Held>,
    others: BTreeMap<SocketAddr, Other>,
    current: Held,
    /// Start of the part of the current packet that comes next.
    part_at: usize,
    place: (usize, usize),
}

#[derive(Debug, Default)]
struct Held {
    destination: Option<SocketAddr>,
    received_at: Nanos,
    payload: Vec<u8>,
    is_snapped: bool,
    record: Row,
}

impl Recording {
    /// Surveys a capture and chooses its feeds. With `format`, every packet at the chosen
    /// destinations has that format, recognised or not.
    ///
    /// # Errors
    /// [`RecordingError`] when the file can't be read, holds no feed, or needs a choice.
    pub fn new(
        path: impl AsRef<Path>,
        mut capture: Capture,
        selection: &Selection,
        format: Option<Format>,
    ) -> Result<Self, RecordingError> {
        let path = path.as_ref().to_owned();
        let mut survey = Survey::default();
        let mut held = VecDeque::new();
        let mut bytes = 0;
        let is_file = capture.size().is_some();
        let packets_max = if is_file {
            SURVEY_PACKETS
        } else {
            SURVEY_PIPE_PACKETS
        };
        while held.len() < packets_max && bytes < SURVEY_BYTES {
            let Some(datagram) = capture.next()? else {
                break;
            };
            bytes += datagram.payload.len();
            let packet = Held::of(&datagram);
            let first = match packet.is_snapped {
                true => packet.payload.len(),
                false => first_mold_len(&packet.payload),
            };
            let first = packet.payload.get(..first).unwrap_or_default();
            let found = survey.packet(datagram.destination, first, packet.is_snapped);
            held.push_back(packet);
            if found.is_some() && !is_file {
                break;
            }
        }
        let mut all = survey.feeds();
        if let Some(format) = format {
            all.retain(|feed| feed.format == format);
        }
        let feeds = choose(&all, selection);
        if feeds.is_empty() && !all.is_empty() {
            return Err(RecordingError::NotThere { path, feeds: all });
        }
        if feeds.len() > 1 && !selection.all_feeds {
            return Err(RecordingError::Choice { path, feeds });
        }
        let mut recording = Self {
            path,
            capture,
            feeds,
            is_chosen: !selection.only.is_empty(),
            held,
            others: BTreeMap::new(),
            current: Held::default(),
            part_at: 0,
            place: (0, 0),
        };
        if recording.feeds.is_empty() {
            while recording.next()?.is_some() {}
            return Err(RecordingError::Nothing {
                clues: recording.clues(),
                path: recording.path,
            });
        }
        Ok(recording)
    }

    /// Returns the next packet of the chosen feeds, or `None` at the end and after an error. A
    /// datagram of several packets, which a kernel merged on receipt, is split.
    ///
    /// # Errors
    /// [`CaptureError`] when the file cannot be read further.
    #[expect(
        clippy::should_implement_trait,
        reason = "it lends from the recording, which an iterator cannot"
    )]
    pub fn next(&mut self) -> Result<Option<RecordedPacket<'_>>, CaptureError> {
        while self.part_at >= self.current.payload.len() {
            if !self.take_next()? {
                return Ok(None);
            }
        }
        let (feed, line) = self.place;
        let rest = self.current.payload.get(self.part_at..).unwrap_or_default();
        let len = match self.feeds.get(feed).map(|feed| feed.format) {
            Some(Format::MoldUdp64Itch50) if !self.current.is_snapped => first_mold_len(rest),
            _ => rest.len(),
        };
        self.part_at += len;
        Ok(Some(RecordedPacket {
            feed,
            line,
            received_at: self.current.received_at,
            payload: &rest[..len],
        }))
    }

    /// Makes the next packet of a chosen feed the current one; `false` at the end.
    fn take_next(&mut self) -> Result<bool, CaptureError> {
        loop {
            self.current = match self.held.pop_front() {
                Some(held) => held,
                None => match self.capture.next()? {
                    Some(datagram) => Held::of(&datagram),
                    None => return Ok(false),
                },
            };
            self.part_at = 0;
            if let Some(place) = self.place() {
                self.place = place;
                // An empty payload is nobody's packet.
                if !self.current.payload.is_empty() {
                    return Ok(true);
                }
            }
        }
    }

    /// Returns feed and line of the current packet; accounts for a foreign one.
    fn place(&mut self) -> Option<(usize, usize)> {
        let current = &self.current;
        let destination = current.destination?;
        let mut is_of_feed = false;
        for (index, feed) in self.feeds.iter().enumerate() {
            let line = feed.lines.iter().position(|line| {
                let is_at = line.address == destination;
                is_of_feed |= is_at;
                is_at
                    && (line.channel.is_none()
                        || line.channel == channel(feed.format, &current.payload))
            });
            if let Some(line) = line {
                return Some((index, line));
            }
        }
        let record = current.record;
        if !current.is_snapped {
            let reason = match is_of_feed {
                true => Reason::OtherFeed,
                false => Reason::OtherDestination,
            };
            self.capture.account_as(reason, record);
        }
        if self.others.len() < DESTINATIONS_MAX || self.others.contains_key(&destination) {
            let other = self.others.entry(destination).or_default();
            other.record.frames += record.frames;
            other.record.bytes += record.bytes;
            other.format = other.format.or_else(|| Format::detect(&current.payload));
            other.guess = other.guess.or_else(|| Guess::of_payload(&current.payload));
        }
        None
    }

    /// Returns the chosen feeds.
    #[must_use]
    pub fn feeds(&self) -> &[Feed] {
        &self.feeds
    }

    /// Returns the format of the first chosen feed.
    #[must_use]
    pub fn format(&self) -> Format {
        let first = self.feeds.first();
        first.map_or(Format::MoldUdp64Itch50, |feed| feed.format)
    }

    /// Returns the capture.
    #[must_use]
    pub const fn capture(&self) -> &Capture {
        &self.capture
    }

    /// Returns the account; complete at the end.
    #[must_use]
    pub const fn account(&self) -> &Account {
        &self.capture.stats().account
    }

    /// Returns the destinations that are not of the chosen feeds.
    pub fn others(&self) -> impl Iterator<Item = (SocketAddr, Other)> + '_ {
        self.others.iter().map(|(to, other)| (*to, *other))
    }

    /// Returns one line for each reason why the recording is not whole; complete at the end.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        let mut faults = self.capture.faults();
        for (to, other) in &self.others {
            if self.is_chosen {
                break;
            }
            let frames = other.record.frames;
            if let Some(format) = other.format {
                faults.push(format!(
                    "{frames} frames to {to} are of another feed ({format}), which begins late: \
                     choose a feed by its destination"
                ));
            } else if to.ip().is_multicast() && service(to.port()).is_none() {
                let guess = other
                    .guess
                    .map_or_else(String::new, |guess| format!("; it {guess}"));
                faults.push(format!(
                    "{frames} frames to {to} are of no feed that is known: choose the feed by its \
                     destination{guess}"
                ));
            }
        }
        faults
    }

    /// Returns what the file holds where it yields little: link types, EtherTypes, protocols,
    /// destinations and guesses, the most frequent first.
    #[must_use]
    pub fn clues(&self) -> Vec<String> {
        let mut clues = capture_clues(&self.capture);
        let mut others: Vec<_> = self.others().collect();
        others.sort_by_key(|(_, other)| std::cmp::Reverse(other.record.frames));
        for (to, other) in others.into_iter().take(10) {
            let name = service(to.port()).map_or_else(String::new, |name| format!(" ({name})"));
            let guess = other
                .guess
                .map_or_else(String::new, |guess| format!(" {guess}"));
            clues.push(format!(
                "{} frames to {to}{name}{guess}",
                other.record.frames
            ));
        }
        if clues.is_empty() {
            clues.push("it holds no frames".into());
        }
        clues
    }
}

impl Held {
    fn of(datagram: &crate::capture::CapturedDatagram<'_>) -> Self {
        Self {
            destination: Some(datagram.destination),
            received_at: datagram.received_at,
            payload: datagram.payload.to_vec(),
            is_snapped: datagram.is_snapped(),
            record: datagram.record,
        }
    }
}

/// Returns the wanted lines of all feeds. Destinations that were named are lines of one feed, as
/// far as their format and channel allow.
fn choose(all: &[Feed], selection: &Selection) -> Vec<Feed> {
    let mut chosen: Vec<Feed> = Vec::new();
    for feed in all {
        let mut feed = feed.clone();
        feed.lines
            .retain(|line| selection.wants(line.address, line.channel));
        if feed.lines.is_empty() {
            continue;
        }
        let channel = |feed: &Feed| feed.lines.first().and_then(|line| line.channel);
        let is_named = !selection.only.is_empty() && !selection.all_feeds;
        let same = chosen.iter_mut().find(|other| {
            is_named && other.format == feed.format && channel(other) == channel(&feed)
        });
        match same {
            Some(other) => other.lines.append(&mut feed.lines),
            None => chosen.push(feed),
        }
    }
    chosen
}

/// Returns the length of the first of several MoldUDP64 packets; of all bytes, if they are one.
fn first_mold_len(bytes: &[u8]) -> usize {
    let Some((header, blocks)) = moldudp64::Header::split(bytes) else {
        return bytes.len();
    };
    let count = match header.count {
        moldudp64::END_OF_SESSION => 0,
        count => count,
    };
    let mut rest = blocks;
    for _ in 0..count {
        let after = rest.split_first_chunk::<2>().and_then(|(len, rest)| {
            let len = usize::from(u16::from_be_bytes(*len));
            rest.get(len..)
        });
        match after {
            Some(after) => rest = after,
            None => return bytes.len(),
        }
    }
    let next = moldudp64::Header::split(rest);
    let is_next = next.is_some_and(|(next, _)| next.session == header.session);
    if is_next {
        bytes.len() - rest.len()
    } else {
        bytes.len()
    }
}

/// Returns the name of a service that is never a feed.
const fn service(port: u16) -> Option<&'static str> {
    Some(match port {
        53 => "DNS",
        67 | 68 => "DHCP",
        123 => "NTP",
        137 | 138 => "NetBIOS",
        161 | 162 => "SNMP",
        319 | 320 => "PTP",
        514 => "syslog",
        546 | 547 => "DHCPv6",
        1900 => "SSDP",
        1985 => "HSRP",
        3784 => "BFD",
        5353 => "mDNS",
        5355 => "LLMNR",
        6343 => "sFlow",
        _ => return None,
    })
}

fn capture_clues(capture: &Capture) -> Vec<String> {
    let mut clues: Vec<_> = capture
        .findings()
        .kept()
        .iter()
        .map(ToString::to_string)
        .collect();
    let mut others: Vec<_> = capture.others().collect();
    others.sort_by_key(|(_, _, frames)| std::cmp::Reverse(*frames));
    clues.extend(
        others
            .into_iter()
            .take(10)
            .map(|(reason, number, frames)| match reason {
                Reason::OtherEtherType => format!("{frames} frames of EtherType {number:#06x}"),
                Reason::OtherProtocol => format!("{frames} frames of IP protocol {number}"),
                reason => format!("{frames} frames: {}", reason.text()),
            }),
    );
    let snapped = capture.stats().snapped;
    if snapped > 0 {
        clues.push(format!("{snapped} datagrams are cut off by the capture"));
    }
    clues
}
