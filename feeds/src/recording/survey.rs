//! The survey of a recording: the feeds in it, and which of its streams are lines of one feed.
//!
//! Two streams are lines of one feed if they carry equal messages under equal numbers. A common
//! session name alone proves nothing: different feeds of one venue may share it, so a number may have
//! several contents. Two files with one destination hold one feed unless their messages differ: one file
//! may continue the other.
//!
//! Equal messages of two files also show how far their clocks are apart.

use std::collections::HashMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;
use std::ops::Range;

use tickcast_reliability::types::Nanos;

use super::clocks::{Clocks, Comparison};
use super::destination::FeedDestination;
use crate::{arbiter::MessageNumber, venues::Format};

/// Streams that are compared with one another; further ones are not.
pub(super) const STREAMS_MAX: usize = 256;
/// A feed of fewer packets needs a session of its own, or numbers of its own on another channel: otherwise
/// the destinations or channels of these packets are damaged.
const FEED_PACKETS_MIN: u64 = 3;
/// Sessions of one stream that are remembered.
const SESSIONS_MAX: usize = 8;
/// First messages of a stream that are compared with those of another channel.
const FIRST_MAX: usize = 64;
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
    sessions: Vec<Session>,
    /// Numbers and hashes of the first messages.
    first: Vec<(MessageNumber, u64)>,
}

/// One session of a stream.
#[derive(Clone, Debug)]
struct Session {
    id: u128,
    /// Sequences from the lowest to the highest, where a destination may carry several channels.
    sequences: Option<Range<u64>>,
}

impl Stream {
    fn session(&mut self, id: u128) -> Option<&mut Session> {
        let known = self.sessions.iter().position(|session| session.id == id);
        if known.is_none() && self.sessions.len() < SESSIONS_MAX {
            let sequences = None;
            self.sessions.push(Session { id, sequences });
        }
        let index = known.unwrap_or(self.sessions.len() - 1);
        self.sessions
            .get_mut(index)
            .filter(|session| session.id == id)
    }

    /// Returns whether all sessions are those of other streams too.
    fn is_of_sessions(&self, others: &[&Self]) -> bool {
        let theirs = others.iter().flat_map(|other| &other.sessions);
        (self.sessions.iter()).all(|own| theirs.clone().any(|it| it.id == own.id))
    }

    /// Returns whether the sequences of each session lie among those of another stream, or touch them.
    fn is_among(&self, other: &Self) -> bool {
        let touches = |own: &Session, their: &Session| {
            let both = own.sequences.as_ref().zip(their.sequences.as_ref());
            own.id == their.id && both.is_some_and(|(a, b)| a.start <= b.end && b.start <= a.end)
        };
        (self.sessions.iter()).all(|own| other.sessions.iter().any(|their| touches(own, their)))
    }
}

/// A number, and which of the contents that streams carry under it.
type ContentKey = (Format, Option<u32>, MessageNumber, usize);

/// One content of a number, as the first stream with it brought it.
#[derive(Debug)]
struct Content {
    hash: u64,
    stream: usize,
    received_at: Nanos,
}

/// Collects the streams of all files and compares them.
#[derive(Debug, Default)]
pub(super) struct Survey {
    streams: Vec<Stream>,
    /// Whether further streams were left out.
    is_full: bool,
    contents: HashMap<ContentKey, Content>,
    /// Equal and different messages of two streams, the lower index first.
    compared: HashMap<(usize, usize), (u64, u64)>,
    comparison: Comparison,
}

impl Survey {
    /// Takes a datagram, of which the capture may have kept only the beginning; returns its format
    /// if it is recognised. Of several packets in it, the first counts.
    pub(super) fn packet(
        &mut self,
        file: usize,
        to: SocketAddr,
        received_at: Nanos,
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
                    first: Vec::new(),
                });
                self.streams.len() - 1
            }
        };
        if let Some(stream) = self.streams.get_mut(index) {
            stream.packets += 1;
            if let Some((id, more)) = format.numbers(payload)
                && let Some(session) = stream.session(id)
            {
                let so_far = session.sequences.get_or_insert(more.clone());
                *so_far = so_far.start.min(more.start)..so_far.end.max(more.end);
            }
        }
        let mut compare = |number: MessageNumber, message: &[u8]| {
            let mut hasher = DefaultHasher::new();
            message.hash(&mut hasher);
            let hash = hasher.finish();
            if let Some(stream) = self.streams.get_mut(index) {
                stream.session(number.session());
                if stream.first.len() < FIRST_MAX {
                    stream.first.push((number, hash));
                }
            }
            let content = Content {
                hash,
                stream: index,
                received_at,
            };
            self.compare((format, channel, number), content);
        };
        format.packets().messages(payload, &mut compare);
        Some(format)
    }

    /// Compares a message with each content that other streams carried under its number first.
    fn compare(
        &mut self,
        (format, channel, number): (Format, Option<u32>, MessageNumber),
        content: Content,
    ) {
        let mut is_new = true;
        // Each content has another first stream, so streams bound the contents of a number.
        for nth in 0..STREAMS_MAX {
            let key = (format, channel, number, nth);
            let Some(known) = self.contents.get(&key) else {
                if is_new && self.contents.len() < MESSAGES_MAX {
                    self.contents.insert(key, content);
                }
                return;
            };
            if known.stream == content.stream {
                return;
            }
            let pair = (
                known.stream.min(content.stream),
                known.stream.max(content.stream),
            );
            let (equal, different) = self.compared.entry(pair).or_default();
            if known.hash == content.hash {
                is_new = false;
                *equal += 1;
                let of = |it: &Content| {
                    let file = self.streams.get(it.stream).map(|stream| stream.line.file);
                    file.zip((it.received_at != Nanos::ZERO).then_some(it.received_at))
                };
                if let (Some(one), Some(other)) = (of(known), of(&content)) {
                    self.comparison.add(one, other);
                }
            } else {
                *different += 1;
            }
        }
    }

    /// Returns the clocks of the files.
    pub(super) fn clocks(&self, files: usize) -> Clocks {
        self.comparison.clocks(files)
    }

    /// Returns whether there are more streams than are compared.
    pub(super) const fn is_full(&self) -> bool {
        self.is_full
    }

    /// Returns the feeds in the order of their first packets, file by file, and the lines that are of no
    /// feed: a few packets of another feed's session.
    pub(super) fn feeds(self) -> (Vec<Feed>, Vec<RecordedLine>) {
        let feeds: Vec<_> = (self.groups().into_iter())
            .filter_map(|members| {
                let streams: Vec<_> = (members.iter())
                    .filter_map(|it| self.streams.get(*it))
                    .collect();
                let feed = Feed {
                    format: streams.first()?.format,
                    lines: streams.iter().map(|stream| stream.line).collect(),
                    packets: streams.iter().map(|stream| stream.packets).sum(),
                };
                Some((members, feed))
            })
            .collect();
        let is_stray = |(members, feed): &(Vec<usize>, Feed)| {
            feed.packets < FEED_PACKETS_MIN
                && feeds.iter().any(|(others, other)| {
                    other.packets >= FEED_PACKETS_MIN && self.are_strays(members, others)
                })
        };
        let (strays, feeds): (Vec<_>, Vec<_>) = feeds.iter().partition(|feed| is_stray(feed));
        let strays = strays.iter().flat_map(|(_, feed)| feed.lines.clone());
        let strays = strays.collect();
        (feeds.iter().map(|(_, feed)| feed.clone()).collect(), strays)
    }

    /// Returns whether a few packets are of another feed's sessions: on its channel, or on another channel of
    /// its destinations under its numbers.
    fn are_strays(&self, few: &[usize], others: &[usize]) -> bool {
        let streams = |members: &[usize]| -> Vec<&Stream> {
            let streams = members.iter().filter_map(|it| self.streams.get(*it));
            streams.collect()
        };
        let theirs = streams(others);
        streams(few).into_iter().all(|own| {
            let (of, to) = (own.format, own.line.destination);
            let mut of_format = theirs.iter().filter(|their| their.format == of);
            !own.sessions.is_empty()
                && of_format.any(|their| match their.line.destination {
                    it if it.channel == to.channel => own.is_of_sessions(&theirs),
                    it => {
                        it.address == to.address && own.is_among(their) && !self.differs(own, their)
                    }
                })
        })
    }

    /// Returns whether another stream has other messages under the same numbers.
    fn differs(&self, own: &Stream, other: &Stream) -> bool {
        let channel = other.line.destination.channel;
        own.first.iter().any(|(number, hash)| {
            let contents = (0..STREAMS_MAX).map(|nth| {
                let key = (other.format, channel, *number, nth);
                self.contents.get(&key).map(|content| content.hash)
            });
            let mut contents = contents.map_while(|it| it).peekable();
            contents.peek().is_some() && contents.all(|it| it != *hash)
        })
    }

    /// Returns the streams of each feed, in order.
    fn groups(&self) -> Vec<Vec<usize>> {
        let mut groups: Vec<Vec<usize>> = (0..self.streams.len()).map(|it| vec![it]).collect();
        merge(&mut groups, |one, other| {
            self.pairs(one, other)
                .any(|(equal, different)| equal > different)
        });
        // Equal messages come first: a copy of another line shows as well that two files differ.
        merge(&mut groups, |one, other| {
            let streams = |group: &[usize]| -> Vec<_> {
                group.iter().map(|it| self.streams.get(*it)).collect()
            };
            let (one_is, other_is) = (streams(one), streams(other));
            let is_same = one_is.iter().flatten().any(|one| {
                other_is.iter().flatten().any(|other| {
                    (other.format, other.line.destination) == (one.format, one.line.destination)
                })
            });
            is_same && self.pairs(one, other).all(|(_, different)| different == 0)
        });
        groups
    }

    /// Returns the equal and different messages of each pair of streams in two groups.
    fn pairs<'a>(
        &'a self,
        one: &'a [usize],
        other: &'a [usize],
    ) -> impl Iterator<Item = (u64, u64)> + 'a {
        let pairs = (one.iter()).flat_map(move |a| other.iter().map(move |b| (a, b)));
        pairs.filter_map(|(a, b)| self.compared.get(&(*a.min(b), *a.max(b))).copied())
    }
}

/// Merges groups until no two belong together.
fn merge(groups: &mut Vec<Vec<usize>>, belong: impl Fn(&[usize], &[usize]) -> bool) {
    let mut at = 0;
    while at < groups.len() {
        let mut others = at + 1..groups.len();
        match others.find(|other| belong(&groups[at], &groups[*other])) {
            Some(other) => {
                let mut members = groups.remove(other);
                groups[at].append(&mut members);
                groups[at].sort_unstable();
            }
            None => at += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A packet of one message of the first feed.
    fn packet(sequence: u8) -> Vec<u8> {
        packet_of(0, sequence)
    }

    /// A packet of one message of a feed. All feeds have one session.
    fn packet_of(feed: u8, sequence: u8) -> Vec<u8> {
        let head = [
            &b"SESSION001\0\0\0\0\0\0\0"[..],
            &[sequence],
            b"\0\x01\0\x0cS",
        ];
        [&head.concat()[..], &[feed; 10], b"O"].concat()
    }

    /// Returns the file and port of the lines of each feed of some streams: file, port, feed, sequences.
    fn feeds(streams: &[(usize, u16, u8, Range<u8>)]) -> Vec<Vec<(usize, u16)>> {
        let mut survey = Survey::default();
        for (file, port, feed, sequences) in streams.iter().cloned() {
            for sequence in sequences {
                let to = SocketAddr::from(([239, 1, 1, 1], port));
                survey.packet(file, to, Nanos(1), &packet_of(feed, sequence), false);
            }
        }
        let lines = |feed: &Feed| {
            let lines = feed.lines.iter();
            lines
                .map(|line| (line.file, line.destination.address.port()))
                .collect()
        };
        survey.feeds().0.iter().map(lines).collect()
    }

    #[test]
    fn lines_of_each_of_several_feeds_are_found() {
        for feed in 0..3 {
            let mut streams = vec![(0, 1, 0, 1..9), (0, 2, 1, 1..9), (0, 3, 2, 1..9)];
            streams.push((0, 4, feed, 2..9));
            let mut expected = vec![vec![(0, 1)], vec![(0, 2)], vec![(0, 3)]];
            expected[usize::from(feed)].push((0, 4));
            assert_eq!(feeds(&streams), expected, "{feed}");
        }
    }

    #[test]
    fn stream_between_two_others_makes_them_one_feed() {
        let streams = [(0, 1, 0, 1..5), (0, 2, 0, 8..12), (0, 3, 0, 3..10)];
        assert_eq!(feeds(&streams), [[(0, 1), (0, 2), (0, 3)]]);
        assert_eq!(feeds(&streams[..2]), [[(0, 1)], [(0, 2)]]);
    }

    #[test]
    fn files_differ_where_a_copy_of_one_line_does() {
        // Port 2 of the second file carries another feed than that of the first, whose copy is at port 1.
        let streams = [(0, 1, 0, 1..9), (0, 2, 0, 1..9), (1, 2, 1, 1..9)];
        assert_eq!(feeds(&streams), [vec![(0, 1), (0, 2)], vec![(1, 2)]]);
        // One file continues the other.
        let streams = [(0, 1, 0, 1..9), (0, 2, 0, 1..9), (1, 2, 0, 9..12)];
        assert_eq!(feeds(&streams), [[(0, 1), (0, 2), (1, 2)]]);
    }

    #[test]
    fn packets_of_all_lines_and_files_are_summed() {
        let mut survey = Survey::default();
        for (file, port, sequences) in [(0, 1, 1..=4), (0, 2, 2..=4), (1, 1, 1..=5)] {
            for sequence in sequences {
                let to = SocketAddr::from(([239, 1, 1, 1], port));
                survey.packet(file, to, Nanos(1), &packet(sequence), false);
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
    fn content_of_a_message_is_kept_once() {
        let mut survey = Survey::default();
        for (port, feed, contents) in [(1, 0, 3), (2, 0, 3), (3, 1, 6), (4, 0, 6), (5, 1, 6)] {
            let to = SocketAddr::from(([239, 1, 1, 1], port));
            for sequence in 1..=3 {
                survey.packet(0, to, Nanos(1), &packet_of(feed, sequence), false);
            }
            assert_eq!(survey.contents.len(), contents, "{port}");
        }
    }

    #[test]
    fn streams_beyond_the_bound_are_left_out() {
        let packet = packet(1);
        for (ports, is_full) in [(256, false), (257, true), (2_000, true)] {
            let mut survey = Survey::default();
            for port in 0..ports {
                let to = SocketAddr::from(([239, 1, 1, 1], port));
                let found = survey.packet(0, to, Nanos(1), &packet, false);
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
