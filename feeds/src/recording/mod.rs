//! A recording: the packets of the wanted feeds of one or several captures, merged by time, and an
//! account of everything else.
//!
//! The first packets of each file are surveyed, which finds the feeds and their lines; in a regular file
//! without a feed among them, the first packets from where one begins. Captures with several feeds need a
//! choice; everything that is not of the chosen feeds is foreign, counted by
//! destination, and changes nothing.

mod clocks;
mod destination;
mod error;
mod files;
mod first_times;
mod inspection;
mod refused;
mod selection;
mod services;
mod survey;
mod timeline;

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::path::Path;

use tickcast_reliability::types::Nanos;

pub use self::destination::{FeedDestination, NotADestination};
pub use self::error::RecordingError;
use self::files::{Files, Held};
use self::first_times::FirstTimes;
pub use self::inspection::{FeedReport, Inspection, LATE, LineReport};
use self::refused::{PacketRecord, Recent};
pub use self::selection::Selection;
use self::services::{service, tunnel};
use self::survey::Survey;
pub use self::survey::{Feed, RecordedLine};
pub use self::timeline::Timeline;
use crate::capture::{
    Capture, CaptureError, CaptureStats, RecordedFile,
    account::{Class, Reason, Row},
    binary_file::BinaryFile,
    guess::Guess,
    not_read,
};
use crate::venues::Format;

/// Packets of each regular file that are surveyed; their bytes are bounded too.
const SURVEY_PACKETS: usize = 20_000;
const SURVEY_BYTES: usize = 32 << 20;
/// Packets of a pipe that are surveyed at most.
const SURVEY_PIPE_PACKETS: usize = 1_000;
/// A pipe is surveyed for this long behind the first packet of a feed, by the packets' times, so that its
/// other lines and feeds are found.
const SURVEY_PIPE_SPAN: Nanos = Nanos::from_secs(1);
/// Packets to named destinations that wait until one shows their format.
const PENDING_MAX: usize = 1_000;
/// Destinations that are counted apart.
const DESTINATIONS_MAX: usize = 4_096;
/// Lines of one feed.
const LINES_MAX: usize = 256;

/// One packet of a feed.
#[derive(Clone, Copy, Debug)]
pub struct FeedPacket<'a> {
    /// Index of its feed.
    pub feed: usize,
    /// Index of its line in the feed.
    pub line: usize,
    /// Capture time, or that of the stamp that was asked for, UTC ns; 0 if unknown.
    pub received_at: Nanos,
    /// Time on the recording's clock, at least 1. It never goes back, and no single stamp moves it.
    pub at: Nanos,
    /// The bytes above UDP.
    pub payload: &'a [u8],
    /// Whether it is the first packet, and unreadable bytes precede it in its file.
    pub follows_damage: bool,
}

/// UDP to a destination that is not of a chosen feed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Other {
    /// Frames and bytes of the file.
    pub record: Row,
    /// Format of a feed that was recognised there.
    pub format: Option<Format>,
    /// Another protocol that it looks like, where no feed was recognised.
    pub guess: Option<Guess>,
    /// A tunnel that it looks like, which may hold a feed.
    pub tunnel: Option<&'static str>,
}

/// The recorded files of a source, by their content.
pub enum Recorded {
    /// Packets of captures.
    Packets(Box<Recording>),
    /// Messages of a file.
    Messages(Box<BinaryFile>),
}

impl Recorded {
    /// Opens a file of messages, or captures as [`Recording::new`] reads them.
    ///
    /// # Errors
    /// [`RecordingError`] when a file can't be read, the captures hold no feed, or need a choice, or
    /// a file of messages is asked for packets.
    pub fn open(
        files: &[impl AsRef<Path>],
        selection: &Selection,
        format: Option<Format>,
    ) -> Result<Self, RecordingError> {
        let captures = match files {
            [file] => match RecordedFile::open(file)? {
                RecordedFile::Messages(messages) => {
                    selection.check_messages(file.as_ref(), format)?;
                    return Ok(Self::Messages(messages));
                }
                RecordedFile::Capture(capture) => vec![*capture],
            },
            files => (files.iter())
                .map(Capture::open)
                .collect::<Result<_, _>>()?,
        };
        let recording = Recording::new(captures, selection, format)?;
        Ok(Self::Packets(Box::new(recording)))
    }

    /// Opens a file as one of messages, whatever its first bytes are.
    ///
    /// # Errors
    /// [`RecordingError`] when the file can't be read, or is asked for destinations.
    pub fn messages(file: &Path, selection: &Selection) -> Result<Self, RecordingError> {
        selection.check_messages(file, None)?;
        let messages = BinaryFile::open(file)?;
        Ok(Self::Messages(Box::new(messages)))
    }
}

/// Captures whose feeds were surveyed and chosen.
pub struct Recording {
    files: Files,
    feeds: Vec<Feed>,
    /// The destinations that were chosen; none: all.
    chosen: Vec<FeedDestination>,
    /// With destinations and all feeds: the feeds that another recording of the same files reads.
    elsewhere: Option<Vec<Feed>>,
    /// Whether the survey found more feeds and lines than it compares.
    is_survey_full: bool,
    /// A few packets of a feed's session to other destinations.
    strays: Vec<RecordedLine>,
    /// Packets that were read before the format of their destination was known.
    pending: VecDeque<Held>,
    others: BTreeMap<SocketAddr, Other>,
    /// Frames to further destinations.
    uncounted_frames: u64,
    /// Frames to chosen destinations that are of no chosen feed.
    unplaced_frames: u64,
    /// Frames without a payload to destinations of the feeds.
    empty_frames: u64,
    current: Held,
    recent: Recent,
    first_times: FirstTimes,
    clock: Timeline,
    /// Start of the part of the current packet that was returned last.
    last_part_at: usize,
    /// Start of the part of the current packet that comes next.
    part_at: usize,
    place: (usize, usize),
    /// Whether the current packet is the first one.
    is_first: bool,
    /// File of the last packet, and the parts of it that could not be read before that packet.
    last: Option<(usize, u64)>,
}

impl Recording {
    /// Surveys captures and chooses their feeds. With `format`, every packet at destinations that
    /// were chosen has that format, recognised or not.
    ///
    /// # Errors
    /// [`RecordingError`] when a file can't be read, or the captures hold no feed, or need a choice.
    pub fn new(
        mut captures: Vec<Capture>,
        selection: &Selection,
        format: Option<Format>,
    ) -> Result<Self, RecordingError> {
        (captures.iter_mut()).for_each(|capture| capture.set_time(selection.time));
        let mut files = Files::new(captures);
        let mut survey = Survey::default();
        for file in 0..files.len() {
            read_survey(&mut files, file, &mut survey);
        }
        let is_survey_full = survey.is_full();
        files.set_clocks(survey.clocks(files.len()));
        let (mut all, strays) = survey.feeds();
        if let Some(format) = format {
            all.retain(|feed| feed.format == format);
        }
        let feeds = selection.choose(&all, files.len(), format);
        let may_begin_late = !selection.only.is_empty() && !selection.all_feeds;
        if feeds.is_empty() && !all.is_empty() && !may_begin_late {
            let files = files.paths();
            return Err(RecordingError::NotThere { files, feeds: all });
        }
        if feeds.len() > 1 && !selection.all_feeds {
            let files = files.paths();
            return Err(RecordingError::Choice { files, feeds });
        }
        let lines = feeds.iter().map(|feed| feed.lines.len()).max();
        if let Some(lines) = lines.filter(|lines| *lines > LINES_MAX) {
            let files = files.paths();
            return Err(RecordingError::TooManyLines { files, lines });
        }
        let elsewhere = (selection.all_feeds && !selection.only.is_empty()).then(|| {
            all.retain(|feed| !feeds.contains(feed));
            std::mem::take(&mut all)
        });
        let mut recording = Self {
            files,
            feeds,
            elsewhere,
            chosen: selection.only.clone(),
            is_survey_full,
            strays,
            pending: VecDeque::new(),
            others: BTreeMap::new(),
            uncounted_frames: 0,
            unplaced_frames: 0,
            empty_frames: 0,
            current: Held::default(),
            recent: Recent::default(),
            first_times: FirstTimes::default(),
            clock: Timeline::default(),
            last_part_at: 0,
            part_at: 0,
            place: (0, 0),
            is_first: false,
            last: None,
        };
        if recording.feeds.is_empty() && may_begin_late {
            recording.find_named(selection)?;
        }
        if recording.feeds.is_empty() {
            while recording.next()?.is_some() {}
            if !all.is_empty() {
                let files = recording.files.paths();
                return Err(RecordingError::NotThere { files, feeds: all });
            }
            return Err(recording.nothing(format));
        }
        Ok(recording)
    }

    /// Returns the reason why a recording that was read to its end has no feed.
    fn nothing(&self, format: Option<Format>) -> RecordingError {
        let files = self.files.paths();
        let others = self.others.iter();
        let destinations: Vec<_> = others
            .filter_map(|(to, other)| other.format.map(|_| *to))
            .collect();
        match destinations.is_empty() || format.is_some() {
            true => RecordingError::Nothing {
                clues: self.clues(),
                files,
            },
            false => RecordingError::BeginsLate {
                files,
                destinations,
            },
        }
    }

    /// Reads up to the first packet that shows the format of the named destinations. Packets to others are
    /// accounted for; the latest ones to the named destinations wait.
    fn find_named(&mut self, selection: &Selection) -> Result<(), CaptureError> {
        while self.files.next(&mut self.current)? {
            let (to, payload) = (self.current.destination, &self.current.payload);
            let is_named = |it: &FeedDestination| Some(it.address) == to;
            if !self.chosen.iter().any(is_named) {
                self.place();
                continue;
            }
            let format = match self.current.is_snapped {
                true => Format::detect_beginning(payload),
                false => Format::detect(payload),
            };
            let found = format.filter(|_| {
                let mut named = self.chosen.iter();
                named.any(|it| to.is_some_and(|to| it.takes(to, payload)))
            });
            if let Some(format) = found {
                let channel = format.packets().channel(payload);
                self.feeds = vec![selection.named(format, channel, self.files.len())];
            } else if self.pending.len() == PENDING_MAX
                && let Some(oldest) = self.pending.pop_front()
            {
                let newest = std::mem::replace(&mut self.current, oldest);
                self.place();
                self.current = newest;
            }
            self.pending.push_back(std::mem::take(&mut self.current));
            if found.is_some() {
                break;
            }
        }
        self.current = Held::default();
        Ok(())
    }

    /// Accounts for a packet that is not of its feed, as a decoder decided now or after some time. Only the
    /// last few thousand packets are remembered.
    pub fn refuse(&mut self, feed: usize, line: usize, received_at: Nanos) {
        if let Some(record) = self.recent.take((feed, line), received_at) {
            let reason = Reason::OtherFeed;
            self.files.account_row_as(reason, record.file, record.row);
        }
    }

    /// Accounts for the last packet, of which a decoder could read nothing.
    pub fn refuse_last(&mut self) {
        let Some(record) = self.recent.take_last() else {
            return;
        };
        let format = self.feeds.get(self.place.0).map(|feed| feed.format);
        let part = self.current.payload.get(self.last_part_at..self.part_at);
        let is_of_format = format
            .zip(part)
            .is_some_and(|(format, part)| format.packets().recognises_beginning(part));
        let reason = match is_of_format {
            true => Reason::Unreadable,
            false => Reason::OtherFeed,
        };
        self.files.account_row_as(reason, record.file, record.row);
    }

    /// Returns the next packet of the chosen feeds, or `None` at the end. A datagram of several
    /// packets, which a kernel merged on receipt, is split.
    ///
    /// # Errors
    /// [`CaptureError`] when a file cannot be read further. It comes behind the packets of all
    /// files; a further call returns the error of a further file.
    #[expect(
        clippy::should_implement_trait,
        reason = "it lends from the recording, which an iterator cannot"
    )]
    pub fn next(&mut self) -> Result<Option<FeedPacket<'_>>, CaptureError> {
        while self.part_at >= self.current.payload.len() {
            if !self.take_next()? {
                return Ok(None);
            }
        }
        let (feed, line) = self.place;
        let rest = self.current.payload.get(self.part_at..).unwrap_or_default();
        let len = match self.feeds.get(feed).map(|feed| feed.format) {
            Some(format) if !self.current.is_snapped => format.packets().first_len(rest),
            _ => rest.len(),
        };
        let is_counted = self.part_at == 0 && !self.current.is_snapped;
        self.last_part_at = self.part_at;
        self.part_at += len;
        let record = PacketRecord {
            file: self.current.file,
            row: match is_counted {
                true => self.current.record,
                false => Row::default(),
            },
        };
        self.recent
            .push(self.place, self.current.received_at, record);
        Ok(Some(FeedPacket {
            feed,
            line,
            received_at: self.current.received_at,
            at: self.clock.elapsed().after(Nanos(1)),
            payload: &rest[..len],
            follows_damage: std::mem::take(&mut self.is_first) && self.current.unread > 0,
        }))
    }

    /// Makes the next packet of a chosen feed the current one; `false` at the end.
    fn take_next(&mut self) -> Result<bool, CaptureError> {
        loop {
            match self.pending.pop_front() {
                Some(held) => self.current = held,
                None if !self.files.next(&mut self.current)? => return Ok(false),
                None => {}
            }
            self.part_at = 0;
            self.clock.advance(self.current.at, Nanos(u64::MAX));
            if let Some(place) = self.place() {
                self.place = place;
                if !self.current.payload.is_empty() {
                    self.first_times.add(place.0, self.current.received_at);
                    let last = (self.current.file, self.current.unread);
                    self.is_first = self.last.replace(last).is_none();
                    return Ok(true);
                }
                // An empty payload is nobody's packet.
                if !self.current.is_snapped {
                    self.empty_frames += self.current.record.frames;
                    self.files.account_as(Reason::OtherFeed, &self.current);
                }
            } else {
                self.part_at = self.current.payload.len();
            }
        }
    }

    /// Returns feed and line of the current packet; accounts for a foreign one.
    fn place(&mut self) -> Option<(usize, usize)> {
        let current = &self.current;
        let address = current.destination?;
        let mut is_of_feed = false;
        let mut found = None;
        for (index, feed) in self.feeds.iter().enumerate() {
            let packets = feed.format.packets();
            let line = feed.lines.iter().position(|line| {
                let of = line.destination;
                let is_at = line.file == current.file && of.address == address;
                is_of_feed |= is_at;
                is_at && (of.channel.is_none() || of.channel == packets.channel(&current.payload))
            });
            if let Some(line) = line {
                // Feeds of several formats may share a destination; what is of none is the first one's.
                if self.feeds.len() == 1 || packets.begins_or_beats(&current.payload) {
                    return Some((index, line));
                }
                found = found.or(Some((index, line)));
            }
        }
        if found.is_some() {
            return found;
        }
        if !current.is_snapped {
            if is_of_feed && current.payload.is_empty() {
                self.empty_frames += current.record.frames;
            }
            let reason = match is_of_feed {
                true => Reason::OtherFeed,
                false => Reason::OtherDestination,
            };
            self.files.account_as(reason, current);
        }
        let elsewhere = self.elsewhere.iter().flatten();
        if elsewhere.flat_map(|feed| &feed.lines).any(|line| {
            line.file == current.file && line.destination.takes(address, &current.payload)
        }) {
            return None;
        }
        let is_chosen = |chosen: &FeedDestination| {
            let has_no_channel = || Format::channels(&current.payload).next().is_none();
            chosen.address == address && (chosen.channel.is_none() || has_no_channel())
        };
        // An empty payload is nobody's packet.
        if !current.payload.is_empty() && self.chosen.iter().any(is_chosen) {
            self.unplaced_frames += current.record.frames;
        }
        if self.others.len() < DESTINATIONS_MAX || self.others.contains_key(&address) {
            let other = self.others.entry(address).or_default();
            other.record.frames += current.record.frames;
            other.record.bytes += current.record.bytes;
            other.format = other.format.or_else(|| Format::detect(&current.payload));
            other.tunnel = other
                .tunnel
                .or_else(|| tunnel(address.port(), &current.payload));
            other.guess = match other.format {
                Some(_) => None,
                None => other.guess.or_else(|| Guess::of_payload(&current.payload)),
            };
        } else {
            self.uncounted_frames += current.record.frames;
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

    /// Returns the number of lines of the first chosen feed.
    #[must_use]
    pub fn lines(&self) -> usize {
        self.feeds.first().map_or(0, |feed| feed.lines.len())
    }

    /// Returns the counts of all files; the account is complete at the end.
    #[must_use]
    pub fn stats(&self) -> CaptureStats {
        self.files.stats()
    }

    /// Returns whether bytes behind the last packet could not be read in its file; complete at the end.
    /// No later packet of a line tells what they held.
    #[must_use]
    pub fn ends_in_damage(&self) -> bool {
        self.last
            .is_some_and(|(file, unread)| self.files.unread(file) > unread)
    }

    /// Returns one line for each finding that leaves the recording whole.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let mut notes = self.files.texts(Capture::notes);
        notes.append(&mut self.files.clock_notes());
        for (index, feed) in self.feeds.iter().enumerate() {
            if feed.format == Format::MoldUdp64Itch50 {
                notes.extend(self.first_times.note(index));
            }
        }
        notes
    }

    /// Returns the destinations that are not of the chosen feeds.
    pub fn others(&self) -> impl Iterator<Item = (SocketAddr, Other)> + '_ {
        self.others.iter().map(|(to, other)| (*to, *other))
    }

    /// Returns one line for each reason why the recording is not whole; complete at the end.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        let mut faults = self.files.texts(Capture::faults);
        let is_choice = !self.chosen.is_empty();
        if self.empty_frames > 0 {
            faults.push(format!(
                "{} frames to the feed's destinations have no payload",
                self.empty_frames
            ));
        }
        if is_choice {
            let frames = self.unplaced_frames;
            if frames > 0 {
                faults.push(format!(
                    "{frames} frames to the chosen destinations are of no chosen feed: choose \
                     its channel too, or all feeds"
                ));
            }
        }
        if is_choice && self.elsewhere.is_none() {
            return faults;
        }
        if self.is_survey_full {
            faults.push(format!(
                "more than {} destinations or channels carry feeds, and the others are not \
                 compared: choose one feed by its destination",
                survey::STREAMS_MAX
            ));
        }
        if self.uncounted_frames > 0 {
            faults.push(format!(
                "{} frames go to more than {DESTINATIONS_MAX} destinations, and may be of a \
                 feed: choose the feed by its destination",
                self.uncounted_frames
            ));
        }
        for (to, other) in &self.others {
            let frames = other.record.frames;
            let is_stray = |line: &RecordedLine| line.destination.address == *to;
            if self.strays.iter().any(is_stray) {
                let cause = self.cause_of_stray(*to);
                faults.push(format!(
                    "{frames} frames to {to} are of the session of a feed at another destination: {cause}"
                ));
            } else if let Some(format) = other.format {
                faults.push(format!(
                    "{frames} frames to {to} are of another feed ({format}), or of another line, which \
                     begins late: choose only {to}, or all lines of its feed"
                ));
            } else if to.ip().is_multicast() && service(to.port()).is_none() {
                let guess = other
                    .guess
                    .map_or_else(String::new, |guess| format!("; it {guess}"));
                faults.push(format!(
                    "{frames} frames to {to} are of no feed that is known: choose the feed by its \
                     destination{guess}"
                ));
            } else if let Some(name) = other.tunnel {
                faults.push(format!(
                    "{frames} frames to {to} may be {name}, a tunnel that is not read: record behind its \
                     end"
                ));
            }
        }
        faults
    }

    /// Returns the likely reason why a few packets of a feed's session have another destination.
    fn cause_of_stray(&self, to: SocketAddr) -> String {
        let lines = self.feeds.iter().flat_map(|feed| &feed.lines);
        let destinations: Vec<_> = lines.map(|line| line.destination.address).collect();
        if destinations.contains(&to) {
            "their channel differs, which may be damage, or they are another feed of a few packets"
                .into()
        } else if destinations.iter().any(|it| differs_in_one_bit(*it, to)) {
            "one bit of their destination differs, which may be damage".into()
        } else if to.ip().is_multicast() {
            format!(
                "they are another feed of a few packets, or a line of it: choose {to} alone or too"
            )
        } else {
            format!(
                "they are a retransmission to one host, or misdirected: choose {to} too to use them"
            )
        }
    }

    /// Returns what the files hold where they yield little: link types, EtherTypes, protocols,
    /// destinations and guesses, the most frequent first.
    #[must_use]
    pub fn clues(&self) -> Vec<String> {
        let mut clues = self.files.texts(capture_clues);
        let mut others: Vec<_> = self.others().collect();
        others.sort_by_key(|(_, other)| std::cmp::Reverse(other.record.frames));
        for (to, other) in others.into_iter().take(10) {
            let name = service(to.port()).map_or_else(String::new, |name| format!(" ({name})"));
            let guess = match (other.format, other.guess, other.tunnel) {
                (Some(format), ..) => format!(" are of the format {format}"),
                (None, Some(guess), _) => format!(" {guess}"),
                (None, None, Some(name)) => {
                    format!(" look like {name}, a tunnel that is not read: record behind its end")
                }
                (None, None, None) => String::new(),
            };
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

/// Reads the first packets of a file, and compares them.
fn read_survey(files: &mut Files, file: usize, survey: &mut Survey) {
    let is_regular = files.is_regular(file);
    let packets_max = match is_regular {
        true => SURVEY_PACKETS,
        false => SURVEY_PIPE_PACKETS,
    };
    let mut bytes = 0;
    let mut found_at = None;
    for _ in 0..packets_max {
        let Some(packet) = files.read_ahead(file) else {
            break;
        };
        let at = packet.received_at;
        let is_long =
            found_at.is_some_and(|first| at == Nanos::ZERO || at.since(first) >= SURVEY_PIPE_SPAN);
        if is_long && !is_regular {
            break;
        }
        bytes += packet.payload.len();
        let found = packet
            .destination
            .and_then(|to| survey.packet(file, to, at, &packet.payload, packet.is_snapped));
        if found.is_some() {
            found_at = found_at.or(Some(at));
        }
        if bytes >= SURVEY_BYTES {
            break;
        }
    }
    if found_at.is_none()
        && let Some(capture) = files.reopened(file)
    {
        survey_from_first(capture, file, survey);
    }
}

/// Surveys a file from the first packet of a feed on. The packets before it need no memory, because the
/// recording reads the file again.
fn survey_from_first(mut capture: Capture, file: usize, survey: &mut Survey) {
    let (mut packets, mut bytes) = (0, 0);
    // The recording reports an error, when it comes there.
    while let Ok(Some(packet)) = capture.next() {
        let (to, at) = (packet.destination, packet.received_at);
        let found = survey.packet(file, to, at, packet.payload, packet.is_snapped());
        if packets > 0 || found.is_some() {
            packets += 1;
            bytes += packet.payload.len();
        }
        if packets >= SURVEY_PACKETS || bytes >= SURVEY_BYTES {
            break;
        }
    }
}

/// Returns whether two addresses of IPv4 and their ports differ in one bit.
fn differs_in_one_bit(one: SocketAddr, other: SocketAddr) -> bool {
    let (SocketAddr::V4(one), SocketAddr::V4(other)) = (one, other) else {
        return false;
    };
    let of_address = one.ip().to_bits() ^ other.ip().to_bits();
    let of_port = one.port() ^ other.port();
    of_address.count_ones() + of_port.count_ones() == 1
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
    clues.extend(others.into_iter().take(10).map(|(reason, number, frames)| {
        match not_read(reason, number) {
            Some(name) => format!("{frames} frames of {name}"),
            None if reason == Reason::Tcp => format!(
                "{frames} frames: TCP, which is not read (SoupBinTCP: save its stream as a file of its own)"
            ),
            None => format!("{frames} frames: {}", reason.text()),
        }
    }));
    let of_others = |reason| capture.others().any(|(of, ..)| of == reason);
    for (reason, row) in capture.stats().account.rows() {
        let is_said = matches!(
            reason,
            Reason::Snapped | Reason::UnknownInterface | Reason::UnknownLink
        );
        if reason.class() == Class::Damaged && row.frames > 0 && !is_said && !of_others(reason) {
            clues.push(format!("{} frames: {}", row.frames, reason.text()));
        }
    }
    let snapped = capture.stats().snapped;
    if snapped > 0 {
        clues.push(format!("{snapped} datagrams are cut off by the capture"));
    }
    clues
}
