//! The survey of a recording: the feeds in it, and which of its streams are lines of one feed.
//!
//! Two streams are lines of one feed if they carry equal messages under equal numbers. A common
//! session name alone proves nothing: different feeds of one venue may share it. Two files with one
//! destination hold one feed unless their messages differ: one file may continue the other.

use std::collections::HashMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;

use super::selection::FeedDestination;
use crate::{
    iex::transport::Segment,
    itch::messages::message_len,
    moldudp64::{MoldHeader, Session},
    venues::Format,
};

const IEX_CHANNEL_AT: usize = 4;
/// Streams that are compared with one another; further ones are not.
pub(super) const STREAMS_MAX: usize = 256;
/// Messages that are remembered to compare lines.
const MESSAGES_MAX: usize = 1 << 20;

/// One line of a feed: the packets of one file to one destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordedLine {
    /// Index of the file.
    pub file: usize,
    /// Destination of the packets.
    pub destination: FeedDestination,
}

/// A feed of a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Feed {
    /// Format of its packets.
    pub format: Format,
    /// Its lines.
    pub lines: Vec<RecordedLine>,
    /// Packets surveyed, on all lines.
    pub packets: u64,
}

impl Feed {
    /// Returns the channel of the feed, in formats whose destinations may carry several.
    pub(super) fn channel(&self) -> Option<u32> {
        self.lines.first().and_then(|line| line.destination.channel)
    }
}

impl fmt::Display for Feed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut destinations: Vec<String> = Vec::new();
        for line in &self.lines {
            let destination = line.destination.to_string();
            if !destinations.contains(&destination) {
                destinations.push(destination);
            }
        }
        write!(f, "{} at {}", self.format, destinations.join(" and "))
    }
}

/// The packets of one file to one destination, or to one channel of it.
#[derive(Debug)]
struct Stream {
    format: Format,
    line: RecordedLine,
    packets: u64,
}

/// Number of a message, unique within a feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Number {
    Mold(Session, u64),
    Iex(u32, u32, u64),
}

/// Collects the streams of all files and compares them.
#[derive(Debug, Default)]
pub(super) struct Survey {
    streams: Vec<Stream>,
    /// Whether further streams were left out.
    is_full: bool,
    /// Content and first stream of each message.
    messages: HashMap<Number, (u64, usize)>,
    /// Equal and different messages of two streams, the lower index first.
    compared: HashMap<(usize, usize), (u64, u64)>,
}

impl Survey {
    /// Takes a packet, of which the capture may have kept only the beginning; returns its format if
    /// it is recognised.
    pub(super) fn packet(
        &mut self,
        file: usize,
        to: SocketAddr,
        payload: &[u8],
        is_cut: bool,
    ) -> Option<Format> {
        let format = match is_cut {
            true => detect_beginning(payload)?,
            false => Format::detect(payload)?,
        };
        let destination = FeedDestination {
            address: to,
            channel: channel(format, payload),
        };
        let line = RecordedLine { file, destination };
        let mut streams = self.streams.iter();
        let index = match streams.position(|s| (s.format, s.line) == (format, line)) {
            Some(index) => index,
            None if self.streams.len() == STREAMS_MAX => {
                self.is_full = true;
                return Some(format);
            }
            None => {
                self.streams.push(Stream {
                    format,
                    line,
                    packets: 0,
                });
                self.streams.len() - 1
            }
        };
        if let Some(stream) = self.streams.get_mut(index) {
            stream.packets += 1;
        }
        each_message(format, payload, |number, message| {
            self.compare(index, number, message);
        });
        Some(format)
    }

    fn compare(&mut self, stream: usize, number: Number, message: &[u8]) {
        let mut hasher = DefaultHasher::new();
        message.hash(&mut hasher);
        let content = hasher.finish();
        match self.messages.get(&number) {
            Some((_, first)) if *first == stream => {}
            Some((known, first)) => {
                let pair = (stream.min(*first), stream.max(*first));
                let (equal, different) = self.compared.entry(pair).or_default();
                if *known == content {
                    *equal += 1;
                } else {
                    *different += 1;
                }
            }
            None if self.messages.len() < MESSAGES_MAX => {
                self.messages.insert(number, (content, stream));
            }
            None => {}
        }
    }

    /// Returns whether there are more streams than are compared.
    pub(super) const fn is_full(&self) -> bool {
        self.is_full
    }

    /// Returns the feeds in the order of their first packets, file by file.
    pub(super) fn feeds(self) -> Vec<Feed> {
        let mut feeds: Vec<(Vec<usize>, Feed)> = Vec::new();
        for (index, stream) in self.streams.iter().enumerate() {
            let is_line_of = |other: &usize| {
                let pair = (index.min(*other), index.max(*other));
                let (equal, different) = self.compared.get(&pair).copied().unwrap_or_default();
                let is_same = self.streams.get(*other).is_some_and(|other| {
                    (other.format, other.line.destination)
                        == (stream.format, stream.line.destination)
                });
                equal > different || (is_same && different == 0)
            };
            let of = feeds
                .iter_mut()
                .find(|(members, _)| members.iter().any(is_line_of));
            match of {
                Some((members, feed)) => {
                    members.push(index);
                    feed.lines.push(stream.line);
                    feed.packets += stream.packets;
                }
                None => feeds.push((
                    vec![index],
                    Feed {
                        format: stream.format,
                        lines: vec![stream.line],
                        packets: stream.packets,
                    },
                )),
            }
        }
        feeds.into_iter().map(|(_, feed)| feed).collect()
    }
}

/// Recognises the beginning of a packet: by the IEX-TP header, or the first block of MoldUDP64.
fn detect_beginning(payload: &[u8]) -> Option<Format> {
    if Segment::read(payload).is_ok() {
        return Some(Format::IexTp);
    }
    let (header, blocks) = MoldHeader::split(payload)?;
    let (len, message) = blocks.split_first_chunk::<2>()?;
    let is_sound = (header.session.iter()).all(|c| c.is_ascii_graphic() || *c == b' ')
        && message_len(*message.first()?) == Some(u16::from_be_bytes(*len).into());
    is_sound.then_some(Format::MoldUdp64Itch50)
}

/// Returns the channel of a packet, in formats whose destinations may carry several.
pub(super) fn channel(format: Format, payload: &[u8]) -> Option<u32> {
    match format {
        Format::IexTp => {
            let field = payload.get(IEX_CHANNEL_AT..)?.first_chunk()?;
            Some(u32::from_le_bytes(*field))
        }
        Format::MoldUdp64Itch50 => None,
    }
}

fn each_message(format: Format, payload: &[u8], mut each: impl FnMut(Number, &[u8])) {
    match format {
        Format::IexTp => {
            let Ok(segment) = Segment::read(payload) else {
                return;
            };
            let channel = channel(format, payload).unwrap_or_default();
            for (sequence, message) in (segment.first..).zip(segment.messages()) {
                each(Number::Iex(channel, segment.session, sequence), message);
            }
        }
        Format::MoldUdp64Itch50 => {
            let Some((header, mut blocks)) = MoldHeader::split(payload) else {
                return;
            };
            let mut sequence = header.sequence;
            while let Some((len, rest)) = blocks.split_first_chunk::<2>() {
                let len = usize::from(u16::from_be_bytes(*len));
                let Some((message, rest)) = rest.split_at_checked(len) else {
                    return;
                };
                each(Number::Mold(header.session, sequence), message);
                sequence = sequence.saturating_add(1);
                blocks = rest;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_beyond_the_bound_are_left_out() {
        let mut packet = b"SESSION001\0\0\0\0\0\0\0\x01\0\x01\0\x0cS".to_vec();
        packet.extend([0; 10]);
        packet.push(b'O');
        for (ports, is_full) in [(256, false), (257, true), (2_000, true)] {
            let mut survey = Survey::default();
            for port in 0..ports {
                let to = SocketAddr::from(([239, 1, 1, 1], port));
                let found = survey.packet(0, to, &packet, false);
                assert_eq!(found, Some(Format::MoldUdp64Itch50));
            }
            assert_eq!(survey.is_full(), is_full, "{ports}");
            let lines: Vec<_> = (survey.feeds().iter())
                .map(|feed| feed.lines.len())
                .collect();
            assert_eq!(lines, [256], "{ports}");
        }
    }
}
