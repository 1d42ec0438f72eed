//! The inspection of a recording: it is decoded to its end, and the verdict covers all of it.

use std::net::SocketAddr;
use std::path::Path;

use tickcast_reliability::record::RecordBatch;
use tickcast_reliability::types::{Nanos, SourcePosition};

use super::{Feed, Other, Recorded, RecordedLine, Recording, RecordingError, Selection};
use crate::arbiter::Holding;
use crate::capture::{
    account::{Account, Class},
    binary_file::BinaryFile,
};
use crate::itch::ItchDecoder;
use crate::source::{Decoder, Incident, LineStats, Packet, Sink};
use crate::venues::{Format, Settings};

/// The fault of messages of a recording that were declared missing and came later, behind their number.
pub const LATE: &str = "messages came later than they are waited for: a clock was set, or the clocks of \
                        the files run apart; correct the stamps (editcap -t), or leave that file out,";

/// Everything that the files of a recording came to.
#[derive(Clone, Debug)]
pub struct Inspection {
    /// Each frame and byte by reason.
    pub account: Account,
    /// The chosen feeds.
    pub feeds: Vec<FeedReport>,
    /// Destinations that are not of the chosen feeds.
    pub others: Vec<(SocketAddr, Other)>,
    /// One line for each finding that leaves the recording whole.
    pub notes: Vec<String>,
    /// One line for each reason why the recording is not whole.
    pub faults: Vec<String>,
    /// Where the files yield little: what is in them.
    pub clues: Vec<String>,
}

/// One feed's messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FeedReport {
    /// Format and lines.
    pub name: String,
    /// Packets of all lines.
    pub packets: u64,
    /// Messages delivered.
    pub messages: u64,
    /// Messages that were delivered before.
    pub duplicates: u64,
    /// Packets that differ from another line's under the same numbers.
    pub conflicting: u64,
    /// Messages that did not come in time; a loss of unknown size counts as one.
    pub missing: u64,
    /// Those of them that came later.
    pub late: u64,
    /// Packets to the feed's destinations that are not of the feed.
    pub foreign: u64,
    /// Packets or messages that could not be read.
    pub malformed: u64,
    /// Messages of a type that is not known.
    pub unknown_types: u64,
    /// Messages that refer to an order that is not known.
    pub unknown_orders: u64,
    /// Sessions, resets included.
    pub sessions: u64,
    /// The lines; none for a file of messages.
    pub lines: Vec<LineReport>,
    /// Line and receive time of the packets that were refused just now.
    refused: Vec<(usize, Nanos)>,
}

/// Returns the text of packets that differ under the same numbers.
const fn differing(lines: usize) -> &'static str {
    match lines {
        0 | 1 => {
            "packets differ from earlier ones under the same numbers: the count of the session began \
             anew, or they are damaged,"
        }
        _ => {
            "packets differ from another line's under the same numbers: the lines are of two feeds, or \
             damaged,"
        }
    }
}

/// One line of a feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineReport {
    /// File and destination.
    pub line: RecordedLine,
    /// Counts of the line.
    pub stats: LineStats,
}

impl Inspection {
    /// Reads files to their end. Without limits of the settings, those for files apply.
    ///
    /// # Errors
    /// [`RecordingError`] when a file can't be opened, or a choice is needed. Damage is no error.
    pub fn of(
        files: &[impl AsRef<Path>],
        selection: &Selection,
        format: Option<Format>,
        settings: &Settings,
    ) -> Result<Self, RecordingError> {
        Ok(match Recorded::open(files, selection, format)? {
            Recorded::Packets(recording) => Self::of_recording(*recording, settings),
            Recorded::Messages(file) => Self::of_messages(*file, settings),
        })
    }

    fn of_recording(mut recording: Recording, settings: &Settings) -> Self {
        let decoder = |feed: &Feed| {
            feed.format.decoder(Settings {
                lines: feed.lines.len(),
                holding: settings.holding.or(Some(Holding::RECORDED)),
                ..settings.clone()
            })
        };
        let mut feeds: Vec<_> = (recording.feeds().iter())
            .map(|feed| (decoder(feed), FeedReport::new(feed)))
            .collect();
        let mut failed = Vec::new();
        loop {
            let packet = match recording.next() {
                Ok(Some(packet)) => packet,
                Ok(None) => break,
                Err(error) => {
                    failed.push(error.to_string());
                    continue;
                }
            };
            if let Some((decoder, report)) = feeds.get_mut(packet.feed) {
                report.packets += 1;
                let (feed, line, at) = (packet.feed, packet.line, packet.at);
                let packet = Packet {
                    received_at: packet.received_at,
                    payload: packet.payload,
                };
                let before = (report.taken(), report.malformed);
                decoder.line_packet(line, at, packet, report);
                report.refuse(feed, &mut recording);
                if report.malformed > before.1 && report.taken() == before.0 {
                    recording.refuse_last();
                }
            }
        }
        for (feed, (decoder, report)) in feeds.iter_mut().enumerate() {
            decoder.finish(report);
            report.refuse(feed, &mut recording);
            for (index, line) in report.lines.iter_mut().enumerate() {
                line.stats = decoder.line(index);
            }
        }
        let mut faults = recording.faults();
        faults.append(&mut failed);
        let feeds = feeds.into_iter().map(|(_, report)| report).collect();
        Self::judge(Self {
            account: recording.stats().account,
            feeds,
            others: recording.others().collect(),
            notes: recording.notes(),
            faults,
            clues: recording.clues(),
        })
    }

    fn of_messages(mut file: BinaryFile, settings: &Settings) -> Self {
        let mut decoder = ItchDecoder::new(settings.itch);
        let framing = if file.is_soup() {
            "SoupBinTCP"
        } else {
            "BinaryFILE"
        };
        let mut report = FeedReport {
            name: format!("{framing} of ITCH 5.0"),
            sessions: 1,
            ..FeedReport::default()
        };
        let failed = loop {
            // The message is lent from the file, whose numbers are read first.
            let message = match file.next() {
                Ok(Some(message)) => message.to_vec(),
                Ok(None) => break None,
                Err(error) => break Some(error),
            };
            if file.follows_damage() {
                decoder.unreadable(&mut report);
            }
            let position = SourcePosition::new(file.session(), file.sequence());
            decoder.message(position, Nanos::ZERO, &message, &mut report);
        };
        if file.follows_damage() {
            decoder.unreadable(&mut report);
        }
        report.duplicates = file.stats().repeated;
        let findings = file.findings().clone();
        let mut faults = file.faults();
        faults.extend(failed.map(|error| error.to_string()));
        Self::judge(Self {
            account: file.stats().account,
            feeds: vec![report],
            others: Vec::new(),
            clues: findings.kept().iter().map(ToString::to_string).collect(),
            notes: findings.notes(),
            faults,
        })
    }

    /// Adds the faults that only the sums show.
    fn judge(mut self) -> Self {
        for feed in &self.feeds {
            let name = &feed.name;
            // A file of messages, which has no lines, names its gaps itself.
            let missing = if feed.lines.is_empty() {
                0
            } else {
                feed.missing
            };
            for (count, what) in [
                (missing, "messages are missing"),
                (feed.late, LATE),
                (feed.conflicting, differing(feed.lines.len())),
                (feed.foreign, "packets are not of the feed"),
                (feed.malformed, "packets or messages can't be read"),
                (feed.unknown_types, "messages of unknown types are left out"),
            ] {
                if count > 0 {
                    self.faults.push(format!("{count} {what} in {name}"));
                }
            }
            if feed.messages == 0 {
                self.faults.push(format!("{name} holds no messages"));
            }
        }
        let damaged = self.account.class(Class::Damaged);
        if damaged.bytes > 0 && self.faults.is_empty() {
            self.faults
                .push(format!("{} bytes are damaged", damaged.bytes));
        }
        self
    }

    /// Returns whether every frame and byte was delivered, a true duplicate, foreign for certain,
    /// or known to be harmless.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.faults.is_empty()
    }
}

impl FeedReport {
    /// Accounts for the packets that were refused as foreign.
    fn refuse(&mut self, feed: usize, recording: &mut Recording) {
        for (line, received_at) in self.refused.drain(..) {
            recording.refuse(feed, line, received_at);
        }
    }

    /// Returns the messages that packets brought, new or not.
    const fn taken(&self) -> u64 {
        self.messages + self.unknown_types + self.duplicates + self.late
    }

    fn new(feed: &Feed) -> Self {
        let line = |line: &RecordedLine| LineReport {
            line: *line,
            stats: LineStats::default(),
        };
        Self {
            name: feed.to_string(),
            sessions: 1,
            lines: feed.lines.iter().map(line).collect(),
            ..Self::default()
        }
    }
}

impl Sink for FeedReport {
    fn message(&mut self, _: SourcePosition, _: &RecordBatch) {
        self.messages += 1;
    }

    fn incident(&mut self, incident: Incident) {
        match incident {
            Incident::Gap { missing, .. } => self.missing += missing,
            Incident::Unreadable { .. } => self.missing += 1,
            Incident::SequenceReset { .. } | Incident::SessionChange { .. } => self.sessions += 1,
            Incident::Duplicate { messages } => self.duplicates += messages,
            Incident::Conflicting { .. } => self.conflicting += 1,
            Incident::Late { messages } => self.late += messages,
            Incident::Foreign {
                origin,
                received_at,
                ..
            } => {
                self.foreign += 1;
                self.refused.push((usize::from(origin.line), received_at));
            }
            Incident::Malformed { .. } | Incident::UnreadableMessage { .. } => self.malformed += 1,
            Incident::UnknownMessage { .. } => self.unknown_types += 1,
            Incident::UnknownOrder => self.unknown_orders += 1,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::account::Reason;
    use crate::source::PacketOrigin;

    #[test]
    fn incident_counts_in_its_own_row() {
        let at = SourcePosition::new(0, 1);
        let origin = PacketOrigin {
            line: 3,
            sender: None,
        };
        let mut report = FeedReport::default();
        let mut last = report.clone();
        let mut rises = |incident: Incident, of: fn(&mut FeedReport) -> &mut u64, by: u64| {
            for _ in 0..2 {
                report.incident(incident);
                *of(&mut last) += by;
                last.refused = report.refused.clone();
                assert_eq!(report, last, "{incident:?}");
            }
        };
        let gap = Incident::Gap {
            from: at,
            missing: 5,
        };
        rises(gap, |it| &mut it.missing, 5);
        rises(Incident::Unreadable { from: at }, |it| &mut it.missing, 1);
        let reset = Incident::SequenceReset { next: at };
        rises(reset, |it| &mut it.sessions, 1);
        let change = Incident::SessionChange { next: at };
        rises(change, |it| &mut it.sessions, 1);
        let duplicate = Incident::Duplicate { messages: 4 };
        rises(duplicate, |it| &mut it.duplicates, 4);
        let conflicting = Incident::Conflicting { messages: 2 };
        rises(conflicting, |it| &mut it.conflicting, 1);
        rises(Incident::Late { messages: 3 }, |it| &mut it.late, 3);
        let foreign = Incident::Foreign {
            reason: "other",
            origin,
            received_at: Nanos(9),
        };
        rises(foreign, |it| &mut it.foreign, 1);
        let malformed = Incident::Malformed { reason: "cut" };
        rises(malformed, |it| &mut it.malformed, 1);
        let unreadable = Incident::UnreadableMessage {
            position: at,
            reason: "short",
        };
        rises(unreadable, |it| &mut it.malformed, 1);
        let unknown = Incident::UnknownMessage { kind: b'?' };
        rises(unknown, |it| &mut it.unknown_types, 1);
        rises(Incident::UnknownOrder, |it| &mut it.unknown_orders, 1);
        for other in [
            Incident::EndOfSession,
            Incident::LineStopped { line: 1 },
            Incident::LineBack { line: 1 },
            Incident::Saturated,
        ] {
            rises(other, |it| &mut it.messages, 0);
        }
        assert_eq!(report.refused, [(3, Nanos(9)); 2]);
    }

    #[test]
    fn taken_messages_are_those_that_packets_brought() {
        let report = FeedReport {
            messages: 1,
            unknown_types: 10,
            duplicates: 100,
            late: 1_000,
            missing: 7,
            foreign: 7,
            malformed: 7,
            ..FeedReport::default()
        };
        assert_eq!(report.taken(), 1_111);
    }

    #[test]
    fn damaged_bytes_are_a_fault_where_nothing_names_them() {
        let faults = |reason: Reason, faults: &[&str]| {
            let mut account = Account::default();
            account.add(reason, 0, 7);
            let inspection = Inspection {
                account,
                feeds: Vec::new(),
                others: Vec::new(),
                notes: Vec::new(),
                faults: faults.iter().map(ToString::to_string).collect(),
                clues: Vec::new(),
            };
            inspection.judge().faults
        };
        assert_eq!(faults(Reason::Skipped, &[]), ["7 bytes are damaged"]);
        assert_eq!(faults(Reason::Skipped, &["a cause"]), ["a cause"]);
        assert_eq!(faults(Reason::Padding, &[]), [""; 0]);
    }
}
