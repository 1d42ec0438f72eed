//! The choice of feeds: destinations, with a channel where one destination carries several.

use std::path::Path;

use super::RecordingError;
use super::destination::FeedDestination;
use super::survey::{Feed, RecordedLine};
use crate::capture::PacketTime;
use crate::venues::Format;

/// The feeds that are wanted of a recording, and the origin of their packets' times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// The destinations of the feed, in the order of its lines; empty: the only feed there is.
    pub only: Vec<FeedDestination>,
    /// Whether each feed is wanted. With destinations: whether other recordings of the files read the
    /// other feeds, so that what is of none of them is a fault here.
    pub all_feeds: bool,
    /// Origin of the times of captured packets.
    pub time: PacketTime,
}

impl Selection {
    /// Returns the wanted lines of all feeds of some files.
    ///
    /// Destinations that were named are lines of one feed, as far as their format and channel allow.
    /// With `format` they need not be recognised.
    pub(super) fn choose(&self, all: &[Feed], files: usize, format: Option<Format>) -> Vec<Feed> {
        let is_named = !self.only.is_empty() && !self.all_feeds;
        let mut chosen: Vec<Feed> = Vec::new();
        for feed in all {
            let mut feed = feed.clone();
            feed.lines.retain(|line| self.wants(line.destination));
            if feed.lines.is_empty() {
                continue;
            }
            let same = chosen.iter_mut().find(|other| {
                is_named && other.format == feed.format && other.channel() == feed.channel()
            });
            match same {
                Some(other) => {
                    other.lines.append(&mut feed.lines);
                    other.packets += feed.packets;
                }
                None => chosen.push(feed),
            }
        }
        if let (true, true, Some(format)) = (is_named, chosen.is_empty(), format) {
            chosen.push(Feed {
                format,
                lines: Vec::new(),
                packets: 0,
            });
        }
        if let (true, [feed]) = (is_named, &mut chosen[..]) {
            self.add_named(feed, files);
        }
        chosen
    }

    /// Returns the feed of the named destinations, once a first packet shows its format and channel.
    pub(super) fn named(&self, format: Format, channel: Option<u32>, files: usize) -> Feed {
        let mut feed = Feed {
            format,
            lines: Vec::new(),
            packets: 0,
        };
        self.add_named(&mut feed, files);
        for line in &mut feed.lines {
            let of = &mut line.destination.channel;
            *of = of.or(channel);
        }
        feed
    }

    /// Refuses a choice of destinations, of a format of packets, or of their time, for a file of messages.
    ///
    /// # Errors
    /// [`RecordingError::NoPackets`], which names the setting.
    pub fn check_messages(
        &self,
        file: &Path,
        format: Option<Format>,
    ) -> Result<(), RecordingError> {
        let asked = match format.filter(|format| *format != Format::MoldUdp64Itch50) {
            Some(format) => format!("the format {format}"),
            None if !self.only.is_empty() => "a choice of destinations".to_owned(),
            None if self.time != PacketTime::Capture => format!("the time stamp {}", self.time),
            None => return Ok(()),
        };
        let file = file.to_path_buf();
        Err(RecordingError::NoPackets { file, asked })
    }

    /// Adds the named destinations at which nothing was recognised, and puts the lines in order.
    fn add_named(&self, feed: &mut Feed, files: usize) {
        for named in &self.only {
            let is_there = |line: &RecordedLine| line.destination.address == named.address;
            let channel = feed.channel();
            let is_other = named.channel.is_some() && channel.is_some() && named.channel != channel;
            if is_other || feed.lines.iter().any(is_there) {
                continue;
            }
            let destination = FeedDestination {
                channel: named.channel.or(channel),
                ..*named
            };
            let lines = (0..files).map(|file| RecordedLine { file, destination });
            feed.lines.extend(lines);
        }
        feed.lines.sort_by_key(|line| {
            let mut only = self.only.iter();
            let place = only.position(|named| named.address == line.destination.address);
            (place, line.file)
        });
    }

    /// Returns whether a destination and its channel are wanted.
    fn wants(&self, destination: FeedDestination) -> bool {
        self.only.is_empty()
            || self.only.iter().any(|only| {
                only.address == destination.address
                    && (only.channel.is_none()
                        || destination.channel.is_none()
                        || only.channel == destination.channel)
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feed(format: Format, lines: &[(usize, &str)]) -> Feed {
        let line = |(file, text): &(usize, &str)| RecordedLine {
            file: *file,
            destination: text.parse().unwrap(),
        };
        Feed {
            format,
            lines: lines.iter().map(line).collect(),
            packets: 1,
        }
    }

    fn only(named: &[&str]) -> Selection {
        Selection {
            only: named.iter().map(|text| text.parse().unwrap()).collect(),
            ..Selection::default()
        }
    }

    #[test]
    fn named_destinations_are_the_lines_of_one_feed_in_order() {
        let (mold, iex) = (Format::MoldUdp64Itch50, Format::IexTp);
        let all = [
            feed(mold, &[(0, "239.1.1.1:1")]),
            feed(mold, &[(1, "239.1.1.2:1")]),
            feed(mold, &[(0, "239.1.1.9:1")]),
        ];
        let expected = feed(mold, &[(1, "239.1.1.2:1"), (0, "239.1.1.1:1")]);
        let chosen = only(&["239.1.1.2:1", "239.1.1.1:1"]).choose(&all, 2, None);
        assert_eq!(
            chosen,
            [Feed {
                packets: 2,
                ..expected
            }]
        );

        // Nothing was recognised at the second destination, which may begin later.
        let chosen = only(&["239.1.1.9:1", "239.1.1.3:1"]).choose(&all, 1, None);
        let expected = feed(mold, &[(0, "239.1.1.9:1"), (0, "239.1.1.3:1")]);
        assert_eq!(chosen, [expected]);

        let channels = [
            feed(iex, &[(0, "239.1.1.1:1#1")]),
            feed(iex, &[(0, "239.1.1.1:1#2")]),
        ];
        assert_eq!(
            only(&["239.1.1.1:1#2"]).choose(&channels, 1, None),
            channels[1..]
        );
        assert_eq!(only(&["239.1.1.1:1"]).choose(&channels, 1, None), channels);
    }

    #[test]
    fn named_destination_of_another_channel_is_no_line() {
        let iex = Format::IexTp;
        let all = [feed(iex, &[(0, "239.1.1.1:1#1")])];
        for (named, lines) in [
            ("239.1.1.2:1#1", &["239.1.1.1:1#1", "239.1.1.2:1#1"][..]),
            ("239.1.1.2:1", &["239.1.1.1:1#1", "239.1.1.2:1#1"]),
            ("239.1.1.2:1#2", &["239.1.1.1:1#1"]),
        ] {
            let chosen = only(&["239.1.1.1:1", named]).choose(&all, 1, None);
            let lines: Vec<_> = lines.iter().map(|text| (0, *text)).collect();
            assert_eq!(chosen, [feed(iex, &lines)], "{named}");
        }
        // MoldUDP64 has no channels, and takes what is named.
        let mold = Format::MoldUdp64Itch50;
        let all = [feed(mold, &[(0, "239.1.1.1:1")])];
        let chosen = only(&["239.1.1.1:1", "239.1.1.2:1#2"]).choose(&all, 1, None);
        let lines = [(0, "239.1.1.1:1"), (0, "239.1.1.2:1#2")];
        assert_eq!(chosen, [feed(mold, &lines)]);
    }

    #[test]
    fn destination_without_a_recognised_feed_needs_a_format() {
        let named = only(&["239.1.1.3:1"]);
        assert!(named.choose(&[], 1, None).is_empty());
        let chosen = named.choose(&[], 1, Some(Format::IexTp));
        let expected = feed(Format::IexTp, &[(0, "239.1.1.3:1")]);
        assert_eq!(
            chosen,
            [Feed {
                packets: 0,
                ..expected
            }]
        );
    }
}
