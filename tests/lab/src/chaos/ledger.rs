//! A subscriber process's account of its records, written to a file before the process can be killed.
//!
//! Each line covers a span of record numbers: how many were delivered, and how many declared lost. Spans
//! end at the same numbers in every process, so that the verdict can compare them.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};
use tickcast_reliability::delivery::Loss;
use tickcast_reliability::types::{ChannelId, Epoch};
use tickcast_subscriber::{Event, Item, Position};
use xxhash_rust::xxh3::Xxh3;

/// A span ends at a record whose number is divisible by this.
const SPAN: u64 = 1_024;

/// One line of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Line {
    /// The outcome of the records `first..=last`.
    Span(Span),
    /// The process joined, and `next` is the first record to expect.
    Joined {
        channel: ChannelId,
        epoch: Epoch,
        next: u64,
    },
    /// An unknown number of records at the end of this epoch is lost, because its publisher died.
    Tail { channel: ChannelId, epoch: Epoch },
    /// An event that the application received, as text for people.
    Reported { channel: ChannelId, what: String },
    /// A violation of an invariant.
    Wrong { channel: ChannelId, what: String },
    /// The session ended. `whole` is the digest of the epoch's records if all were delivered.
    Ended {
        channel: ChannelId,
        epoch: Epoch,
        whole: Option<String>,
    },
    /// The process ended by itself, with these counters, summed over all channels.
    Left { counters: BTreeMap<String, u64> },
}

/// A run of records, all accounted for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Span {
    pub(crate) channel: ChannelId,
    pub(crate) epoch: Epoch,
    pub(crate) first: u64,
    pub(crate) last: u64,
    pub(crate) delivered: u64,
    pub(crate) lost: u64,
    /// Digest of the records, if none was lost.
    pub(crate) digest: Option<String>,
}

/// The open span of a channel.
struct Open {
    epoch: Epoch,
    /// The first record that is on no line yet.
    first: u64,
    /// The next expected record; `None` before the first one, and after a loss of unknown size.
    next: Option<u64>,
    lost: u64,
    digest: Xxh3,
    /// Digest of the epoch from its first record on, as long as no record is missing.
    whole: Option<Xxh3>,
}

impl Open {
    fn new(epoch: Epoch, next: Option<u64>) -> Self {
        Self {
            epoch,
            first: next.unwrap_or(0),
            next,
            lost: 0,
            digest: Xxh3::new(),
            whole: (next == Some(1)).then(Xxh3::new),
        }
    }

    /// Begins the account at record `at`. Returns `at`.
    fn begin(&mut self, at: u64) -> u64 {
        self.first = at;
        self.whole = (at == 1).then(Xxh3::new);
        at
    }

    /// Closes the span and returns it, unless it is empty.
    fn close(&mut self, channel: ChannelId) -> Option<Span> {
        let (first, next) = (self.first, self.next?);
        let records = next.checked_sub(first).filter(|records| *records > 0)?;
        let span = Span {
            channel,
            epoch: self.epoch,
            first,
            last: next - 1,
            delivered: records - self.lost.min(records),
            lost: self.lost,
            digest: (self.lost == 0).then(|| format!("{:016x}", self.digest.digest())),
        };
        (self.first, self.lost) = (next, 0);
        self.digest.reset();
        Some(span)
    }
}

/// The file, and the spans that are not in it yet.
pub(crate) struct Ledger {
    file: File,
    channels: BTreeMap<ChannelId, Open>,
    failed: Option<io::Error>,
}

impl Ledger {
    /// Creates the file.
    ///
    /// # Errors
    /// [`io::Error`] if the file can't be created.
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        Ok(Self {
            file: File::create(path)?,
            channels: BTreeMap::new(),
            failed: None,
        })
    }

    /// Adds an item that the application received.
    pub(crate) fn take(&mut self, item: &Item<'_>) {
        match item {
            Item::Record(position, record) => self.record(position, record.as_ref()),
            Item::Event(position, event) => self.event(position, event),
        }
    }

    fn record(&mut self, position: &Position, bytes: &[u8]) {
        let (channel, epoch, number) = (position.channel, position.epoch, position.record.0);
        let open = self.channels.entry(channel);
        let open = open.or_insert_with(|| Open::new(epoch, None));
        let next = open.next.unwrap_or_else(|| open.begin(number));
        let expected = (open.epoch, next);
        open.digest.update(bytes);
        if let Some(whole) = &mut open.whole {
            whole.update(bytes);
        }
        open.next = Some(number + 1);
        let span = number.is_multiple_of(SPAN).then(|| open.close(channel));
        if expected != (epoch, number) {
            let what = format!(
                "record {number} of epoch {epoch} came, and not {next} of {}",
                expected.0
            );
            self.write(&Line::Wrong { channel, what });
        }
        if let Some(span) = span.flatten() {
            self.write(&Line::Span(span));
        }
    }

    fn event(&mut self, position: &Position, event: &Event) {
        let (channel, epoch) = (position.channel, position.epoch);
        match event {
            Event::Lost(loss) => self.lost(position, loss),
            Event::Joined { .. } => {
                let next = position.record.0;
                let open = self.channels.entry(channel);
                let open = open.or_insert_with(|| Open::new(epoch, None));
                // A repeated join begins further on.
                if open.next.is_none_or(|had| had == open.first) {
                    (open.epoch, open.next) = (epoch, Some(open.begin(next)));
                }
                self.write(&Line::Joined {
                    channel,
                    epoch,
                    next,
                });
            }
            Event::EpochChanged { to, .. } => {
                self.close(channel);
                // The new epoch is followed from its first record.
                self.channels.insert(channel, Open::new(*to, Some(1)));
            }
            Event::EpochContinued { to, .. } => {
                self.close(channel);
                if let Some(open) = self.channels.get_mut(&channel) {
                    open.epoch = *to;
                }
            }
            Event::EndOfSession => {
                self.close(channel);
                let open = self.channels.get(&channel);
                let whole = open.and_then(|open| open.whole.as_ref());
                let whole = whole.map(|whole| format!("{:032x}", whole.digest128()));
                self.write(&Line::Ended {
                    channel,
                    epoch,
                    whole,
                });
            }
            Event::LossCorrected {
                reported, records, ..
            } => self.published_again(channel, reported.saturating_sub(*records)),
            Event::FencingViolation { .. } | Event::RolledBack { .. } => {
                let what = event.to_string();
                self.write(&Line::Wrong { channel, what });
            }
            _ => {}
        }
        if !matches!(event, Event::GapRecovered { .. }) {
            let what = event.to_string();
            self.write(&Line::Reported { channel, what });
        }
    }

    fn lost(&mut self, position: &Position, loss: &Loss) {
        let (channel, epoch) = (position.channel, position.epoch);
        let open = self.channels.entry(channel);
        let open = open.or_insert_with(|| Open::new(epoch, None));
        let Some(records) = loss.records else {
            self.close(channel);
            if let Some(open) = self.channels.get_mut(&channel) {
                (open.next, open.whole) = (None, None);
            }
            return self.write(&Line::Tail { channel, epoch });
        };
        let next = (open.next).unwrap_or_else(|| open.begin(position.record.0 - records));
        open.next = Some(next + records);
        open.lost += records;
        if records > 0 {
            open.whole = None;
        }
        // An event's position is that of the next record.
        if open.next != Some(position.record.0) {
            let what = format!(
                "behind a loss of {records} from {next} on comes {}",
                position.record
            );
            self.write(&Line::Wrong { channel, what });
        }
    }

    /// The records lost last are not lost, because another epoch publishes so many of them again.
    fn published_again(&mut self, channel: ChannelId, records: u64) {
        let open = self.channels.get_mut(&channel);
        let Some(open) = open.filter(|open| open.lost >= records) else {
            let what = format!("{records} records are not lost, and not so many were");
            return self.write(&Line::Wrong { channel, what });
        };
        open.lost -= records;
        open.next = open.next.map(|next| next - records);
    }

    fn close(&mut self, channel: ChannelId) {
        let span = self.channels.get_mut(&channel);
        if let Some(span) = span.and_then(|open| open.close(channel)) {
            self.write(&Line::Span(span));
        }
    }

    /// Writes all open spans, and the counters.
    ///
    /// # Errors
    /// The first [`io::Error`] of any write since the creation.
    pub(crate) fn finish(mut self, counters: BTreeMap<String, u64>) -> io::Result<()> {
        let channels: Vec<_> = self.channels.keys().copied().collect();
        channels.into_iter().for_each(|it| self.close(it));
        self.write(&Line::Left { counters });
        self.failed.map_or(Ok(()), Err)
    }

    fn write(&mut self, line: &Line) {
        let written = serde_json::to_vec(line).map_err(io::Error::other);
        let written = written.and_then(|mut line| {
            line.push(b'\n');
            self.file.write_all(&line)
        });
        if let Err(error) = written {
            self.failed.get_or_insert(error);
        }
    }
}

/// Reads the lines of a process. Skips a last line that was cut off.
///
/// # Errors
/// [`io::Error`] if the file can't be read, or if a line is invalid.
pub(crate) fn read(path: &Path) -> io::Result<Vec<Line>> {
    let text = std::fs::read_to_string(path)?;
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let lines = whole.lines().map(serde_json::from_str);
    lines.map(|line| line.map_err(io::Error::other)).collect()
}
