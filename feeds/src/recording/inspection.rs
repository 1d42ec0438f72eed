//! The inspection of a recording: it is decoded to its end, and the verdict covers all of it.

use std::net::SocketAddr;
use std::path::Path;

use tickcast_reliability::record::RecordBatch;
use tickcast_reliability::types::{Nanos, SourcePosition};

use super::{Feed, Other, Recording, RecordingError, Selection};
use crate::capture::{
    RecordedFile,
    account::{Account, Class},
    binary_file::BinaryFile,
    finding::Findings,
};
use crate::itch::ItchDecoder;
use crate::source::{Incident, Packet, Sink};
use crate::venues::{Format, Settings};

/// Everything that a file came to.
#[derive(Clone, Debug)]
pub struct Inspection {
    /// Each frame and byte by reason.
    pub account: Account,
    /// The chosen feeds.
    pub feeds: Vec<FeedReport>,
    /// Destinations that are not of the chosen feeds.
    pub others: Vec<(SocketAddr, Other)>,
    /// Findings of the file.
    pub findings: Findings,
    /// One line for each reason why the file is not whole.
    pub faults: Vec<String>,
    /// Where the file yields little: what is in it.
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
    /// Messages that never came.
    pub missing: u64,
    /// Packets or messages that could not be read.
    pub malformed: u64,
    /// Messages of a type that is not known.
    pub unknown_types: u64,
    /// Messages that refer to an order that is not known.
    pub unknown_orders: u64,
    /// Sessions, resets included.
    pub sessions: u64,
}

impl Inspection {
    /// Reads a file to its end.
    ///
    /// # Errors
    /// [`RecordingError`] when the file can't be opened, or needs a choice. Damage is no error.
    pub fn of(
        path: impl AsRef<Path>,
        selection: &Selection,
        format: Option<Format>,
        settings: &Settings,
    ) -> Result<Self, RecordingError> {
        let path = path.as_ref();
        match RecordedFile::open(path)? {
            RecordedFile::Capture(capture) => {
                let recording = Recording::new(path, *capture, selection, format)?;
                Ok(Self::of_recording(recording, settings))
            }
            RecordedFile::Messages(file) => Ok(Self::of_messages(*file, settings)),
        }
    }

    fn of_recording(mut recording: Recording, settings: &Settings) -> Self {
        let mut feeds: Vec<_> = (recording.feeds().iter())
            .map(|feed| (feed.format.decoder(settings.clone()), FeedReport::new(feed)))
            .collect();
        let failed = loop {
            let packet = match recording.next() {
                Ok(Some(packet)) => packet,
                Ok(None) => break None,
                Err(error) => break Some(error),
            };
            if let Some((decoder, report)) = feeds.get_mut(packet.feed) {
                report.packets += 1;
                let packet = Packet {
                    received_at: packet.received_at,
                    payload: packet.payload,
                };
                decoder.packet(packet, report);
            }
        };
        let mut faults = recording.faults();
        faults.extend(failed.map(|error| error.to_string()));
        let feeds = feeds.into_iter().map(|(_, report)| report).collect();
        Self::judge(Self {
            account: *recording.account(),
            feeds,
            others: recording.others().collect(),
            findings: recording.capture().findings().clone(),
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
            let position = SourcePosition::new(file.session(), file.sequence());
            decoder.message(position, Nanos::ZERO, &message, &mut report);
        };
        let findings = file.findings().clone();
        let mut faults = file.faults();
        faults.extend(failed.map(|error| error.to_string()));
        Self::judge(Self {
            account: file.stats().account,
            feeds: vec![report],
            others: Vec::new(),
            clues: findings.kept().iter().map(ToString::to_string).collect(),
            findings,
            faults,
        })
    }

    /// Adds the faults that only the sums show.
    fn judge(mut self) -> Self {
        for feed in &self.feeds {
            let name = &feed.name;
            for (count, what) in [
                (feed.missing, "messages are missing"),
                (feed.malformed, "packets or messages can't be read"),
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
    fn new(feed: &Feed) -> Self {
        Self {
            name: feed.to_string(),
            sessions: 1,
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
            Incident::SequenceReset { .. } | Incident::SessionChange { .. } => self.sessions += 1,
            Incident::Duplicate { messages } => self.duplicates += messages,
            Incident::Malformed { .. } => self.malformed += 1,
            Incident::UnknownMessage { .. } => self.unknown_types += 1,
            Incident::UnknownOrder => self.unknown_orders += 1,
            _ => {}
        }
    }
}
