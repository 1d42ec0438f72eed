//! What a subscriber process was given, as lines of a file that are written before it can be killed: each
//! says of a span of record numbers how many of them were delivered, and how many declared lost. Spans end at
//! the same numbers in every process, so that what they hold can be compared.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};
use tickcast_reliability::delivery::Loss;
use tickcast_reliability::types::{ChannelId, Epoch};
use tickcast_subscriber::{Event, Item, Position};
use xxhash_rust::xxh3::Xxh3;

/// A span ends with a record whose number is divisible by this.
const SPAN: u64 = 1_024;

/// One line of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Line {
    /// What became of the records `first..=last`.
    Span(Span),
    /// It joined, and `next` is the first record to come.
    Joined {
        channel: ChannelId,
        epoch: Epoch,
        next: u64,
    },
    /// What follows in this epoch is lost, and nobody knows how much it was: its publisher died with it.
    Tail { channel: ChannelId, epoch: Epoch },
    /// Something that the application was told, for people.
    Told { channel: ChannelId, what: String },
    /// Something that must never be.
    Wrong { channel: ChannelId, what: String },
    /// The session ended here; `whole` is the digest of the epoch's records where all were delivered.
    Ended {
        channel: ChannelId,
        epoch: Epoch,
        whole: Option<String>,
    },
    /// The process ended by itself; what it counted, by name, over all channels.
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
    /// Of the records, where none was lost.
    pub(crate) digest: Option<String>,
}

/// A channel, as far as it has come.
struct Open {
    epoch: Epoch,
    /// The first record that is on no line yet.
    first: u64,
    /// The next record to come; `None` before the first one, and behind a loss of unknown size.
    next: Option<u64>,
    lost: u64,
    digest: Xxh3,
    /// Of the epoch, from its first record on, as long as nothing is missing.
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

    /// The first record that we know of.
    fn begin(&mut self, at: u64) -> u64 {
        self.first = at;
        self.whole = (at == 1).then(Xxh3::new);
        at
    }

    /// What there is since the last line, if anything.
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

/// The file, and what is not on it yet.
pub(crate) struct Ledger {
    file: File,
    channels: BTreeMap<ChannelId, Open>,
    failed: Option<io::Error>,
}

impl Ledger {
    /// A new file.
    ///
    /// # Errors
    /// Those of the file system.
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        Ok(Self {
            file: File::create(path)?,
            channels: BTreeMap::new(),
            failed: None,
        })
    }

    /// Takes what the application was given.
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
                // Told again, it begins further on.
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
                // It is followed from where it begins.
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
            Event::FencingViolation { .. } => {
                let what = event.to_string();
                self.write(&Line::Wrong { channel, what });
            }
            _ => {}
        }
        if !matches!(event, Event::GapRecovered { .. }) {
            let what = event.to_string();
            self.write(&Line::Told { channel, what });
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
        // Events say which record is the next to come.
        if open.next != Some(position.record.0) {
            let what = format!(
                "behind a loss of {records} from {next} on comes {}",
                position.record
            );
            self.write(&Line::Wrong { channel, what });
        }
    }

    fn close(&mut self, channel: ChannelId) {
        let span = self.channels.get_mut(&channel);
        if let Some(span) = span.and_then(|open| open.close(channel)) {
            self.write(&Line::Span(span));
        }
    }

    /// Writes all there is, and what was counted.
    ///
    /// # Errors
    /// The first one of the file system, ever.
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

/// Reads the lines of a process; a last one that was cut off is none.
///
/// # Errors
/// Those of the file system, and a line that is none.
pub(crate) fn read(path: &Path) -> io::Result<Vec<Line>> {
    let text = std::fs::read_to_string(path)?;
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let lines = whole.lines().map(serde_json::from_str);
    lines.map(|line| line.map_err(io::Error::other)).collect()
}
