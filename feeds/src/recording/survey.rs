//! The survey of a recording: the feeds in it, and which of its streams are lines of one feed.
//!
//! Two streams are lines of one feed if they carry equal messages under equal numbers. A common
//! session name alone proves nothing: different feeds of one venue may share it. Two files with one
//! destination hold one feed unless their messages differ: one file may continue the other.

use std::collections::HashMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;

use super::destination::FeedDestination;
use crate::{arbiter::MessageNumber, venues::Format};

/// Streams that are compared with one another; further ones are not.
pub(super) const STREAMS_MAX: usize = 256;
/// A feed of fewer packets needs a session of its own: otherwise the destinations of these packets are
/// damaged.
const FEED_PACKETS_MIN: u64 = 3;
/// Sessions of one stream that are remembered.
const SESSIONS_MAX: usize = 8;
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
    sessions: Vec<u128>,
}

/// Collects the streams of all files and compares them.
#[derive(Debug, Default)]
pub(super) struct Survey {
    streams: Vec<Stream>,
    /// Whether further streams were left out.
    is_full: bool,
    /// Content and first stream of each message.
    messages: HashMap<(Format, Option<u32>, MessageNumber), (u64, usize)>,
    /// Equal and different messages of two streams, the lower index first.
    compared: HashMap<(usize, usize), (u64, u64)>,
}

impl Survey {
    /// Takes a datagram, of which the capture may have kept only the beginning; returns its format
    /// if it is recognised. Of several packets in it, the first counts.
    pub(super) fn packet(
        &mut self,
        file: usize,
        to: SocketAddr,
        payload: &[u8],
        is_cut: bool,
    ) -> Option<Format> {
        let format = match is_cut {
            true => Format::detect_beginning(payload)?,
            false => Format::detect(payload)?,
        };
        let channel = format.packets().channel(payload);
        let destination = FeedDestination {
            address: to,
            channel,
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
                    sessions: Vec::new(),
                });
                self.streams.len() - 1
            }
        };
        if let Some(stream) = self.streams.get_mut(index) {
            stream.packets += 1;
        }
        let mut compare = |number: MessageNumber, message: &[u8]| {
            if let Some(stream) = self.streams.get_mut(index) {
                let is_known = stream.sessions.contains(&number.session());
                if !is_known && stream.sessions.len() < SESSIONS_MAX {
                    stream.sessions.push(number.session());
                }
            }
            self.compare(index, (format, channel, number), message);
        };
        format.packets().messages(payload, &mut compare);
        Some(format)
    }

    fn compare(
        &mut self,
        stream: usize,
        number: (Format, Option<u32>, MessageNumber),
        message: &[u8],
    ) {
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

    /// Returns the feeds in the order of their first packets, file by file, and the lines that are of no
    /// feed: a few packets of another feed's session.
    pub(super) fn feeds(self) -> (Vec<Feed>, Vec<RecordedLine>) {
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
        let is_stray = |(members, feed): &(Vec<usize>, Feed)| {
            let sessions = |members: &[usize]| -> Vec<u128> {
                let streams = members.iter().filter_map(|it| self.streams.get(*it));
                streams.flat_map(|stream| stream.sessions.clone()).collect()
            };
            let own = sessions(members);
            feed.packets < FEED_PACKETS_MIN
                && !own.is_empty()
                && feeds.iter().any(|(others, other)| {
                    let theirs = sessions(others);
                    other.packets >= FEED_PACKETS_MIN
                        && (other.format, other.channel()) == (feed.format, feed.channel())
                        && own.iter().all(|session| theirs.contains(session))
                })
        };
        let (strays, feeds): (Vec<_>, Vec<_>) = feeds.iter().partition(|feed| is_stray(feed));
        let strays = strays.iter().flat_map(|(_, feed)| feed.lines.clone());
        let strays = strays.collect();
        (feeds.iter().map(|(_, feed)| feed.clone()).collect(), strays)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A packet of one message.
    fn packet(sequence: u8) -> Vec<u8> {
        let head = [
            &b"SESSION001\0\0\0\0\0\0\0"[..],
            &[sequence],
            b"\0\x01\0\x0cS",
        ];
        [&head.concat()[..], &[0; 10], b"O"].concat()
    }

    #[test]
    fn packets_of_all_lines_and_files_are_summed() {
        let mut survey = Survey::default();
        for (file, port, sequences) in [(0, 1, 1..=4), (0, 2, 2..=4), (1, 1, 1..=5)] {
            for sequence in sequences {
                let to = SocketAddr::from(([239, 1, 1, 1], port));
                survey.packet(file, to, &packet(sequence), false);
            }
        }
        let (feeds, strays) = survey.feeds();
        let [feed] = &feeds[..] else {
            panic!("one feed: {feeds:?}");
        };
        assert_eq!((feed.packets, feed.lines.len()), (12, 3));
        assert!(strays.is_empty());
    }

    #[test]
    fn streams_beyond_the_bound_are_left_out() {
        let packet = packet(1);
        for (ports, is_full) in [(256, false), (257, true), (2_000, true)] {
            let mut survey = Survey::default();
            for port in 0..ports {
                let to = SocketAddr::from(([239, 1, 1, 1], port));
                let found = survey.packet(0, to, &packet, false);
                assert_eq!(found, Some(Format::MoldUdp64Itch50));
            }
            assert_eq!(survey.is_full(), is_full, "{ports}");
            let lines: Vec<_> = (survey.feeds().0.iter())
                .map(|feed| feed.lines.len())
                .collect();
            assert_eq!(lines, [256], "{ports}");
        }
    }
}
