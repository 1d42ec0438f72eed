//! An interval log as it is written.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hdrhistogram::Histogram;
use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::{IntervalLogWriterBuilder, Tag};
use jiff::Timestamp;
use tickcast_log::LogLimit;
use tickcast_reliability::types::{Counter, Nanos};
use tickcast_transport_base::host::files::FileError;

use crate::clock::ClockOffset;
use crate::file::LineFile;

/// One line of the operator's log at once, and one every ten minutes.
const COMPLAINTS_PER_SECOND: f64 = 1.0 / 600.0;

/// A histogram that only grows, of one channel and stage.
#[derive(Clone, Debug)]
pub struct Series {
    /// The tag of its lines: `channel/stage`.
    pub tag: String,
    /// All samples so far, in nanoseconds.
    pub total: Histogram<u64>,
}

impl Series {
    /// Returns a series. In its tag, `%` and hexadecimal digits replace bytes of the channel's name that a
    /// log can't hold, and `%` itself.
    #[must_use]
    pub fn new(channel: &str, stage: &str, total: Histogram<u64>) -> Self {
        let mut tag = String::with_capacity(channel.len() + stage.len() + 1);
        for c in channel.chars() {
            match c {
                ',' | '%' | '/' => tag.push_str(&format!("%{:02X}", u32::from(c))),
                c if c.is_whitespace() || c.is_control() => {
                    let mut bytes = [0; 4];
                    for byte in c.encode_utf8(&mut bytes).bytes() {
                        tag.push_str(&format!("%{byte:02X}"));
                    }
                }
                c => tag.push(c),
            }
        }
        tag.push('/');
        tag.push_str(stage);
        Self { tag, total }
    }
}

/// An interval log of HdrHistogram, version 1.3: a line for each series with samples in an interval. Values
/// are nanoseconds, times are UTC. Nothing is written to it except by [`IntervalLog::write`].
#[derive(Debug)]
pub struct IntervalLog {
    path: PathBuf,
    writer: String,
    file: LineFile,
    /// Whether the file has the head of this process.
    is_headed: bool,
    /// When the samples of the next lines begin, UTC.
    since: Nanos,
    /// The totals as of the last lines, by tag.
    written: BTreeMap<String, Histogram<u64>>,
    /// The clocks' offset during the next lines.
    clock: Option<ClockOffset>,
    /// Attempts to write that failed since the last success.
    failures: u64,
    limit: LogLimit,
}

impl IntervalLog {
    /// Opens an interval log that begins at `now`, UTC. A file of an earlier process is continued. `writer`
    /// names this process in the head.
    ///
    /// # Errors
    /// [`FileError`] if the file can't be written, or others can write or replace it.
    pub fn open(path: &Path, writer: &str, now: Nanos) -> Result<Self, FileError> {
        let mut log = Self {
            path: path.to_owned(),
            writer: writer.escape_debug().to_string(),
            file: LineFile::open(path)?,
            is_headed: false,
            since: now,
            written: BTreeMap::new(),
            clock: None,
            failures: 0,
            limit: LogLimit::new(1, COMPLAINTS_PER_SECOND),
        };
        (log.append(Vec::new())).map_err(|source| FileError::Io {
            what: "write to",
            path: path.to_owned(),
            source,
        })?;
        Ok(log)
    }

    /// Notes the clocks' offset above the next lines, as a comment that other readers skip.
    pub fn note_clock(&mut self, offset: Option<ClockOffset>) {
        self.clock = offset;
    }

    /// Appends the samples since the last lines, up to `now`, UTC. A failed attempt counts in `failed`, and
    /// the next lines have its samples. `all` has every series of the program, each with its total.
    pub fn write(&mut self, now: Nanos, all: Vec<Series>, failed: &Counter) {
        let attempt = self.try_write(now, &all);
        let path = self.path.display();
        match attempt {
            Ok(()) => {
                if self.failures > 0 {
                    tracing::info!(
                        "the interval log {path} can be written again; its next interval is long"
                    );
                }
                self.failures = 0;
                self.since = now;
                self.written
                    .extend(all.into_iter().map(|it| (it.tag, it.total)));
            }
            Err(error) => {
                self.failures += 1;
                failed.add(1);
                if self.limit.allow_at(now) {
                    tracing::warn!(
                        "the interval log {path} can't be written: {error}; free space, or fix the \
                         path. Its next interval will have the samples of this one"
                    );
                }
            }
        }
    }

    fn try_write(&mut self, now: Nanos, all: &[Series]) -> io::Result<()> {
        let is_broken = self.failures > 0 && self.file.is_stream();
        if is_broken || !self.file.has_its_name() {
            self.file = LineFile::open(&self.path)?;
            self.is_headed = false;
        }
        let mut lines = Vec::new();
        let mut serializer = V2DeflateSerializer::new();
        let mut writer =
            IntervalLogWriterBuilder::new().begin_log_with(&mut lines, &mut serializer)?;
        let since = Duration::from_nanos(self.since.0);
        let length = Duration::from_nanos(now.since(self.since).0);
        for series in all {
            let mut samples = series.total.clone();
            if let Some(written) = self.written.get(&series.tag) {
                samples.subtract(written).map_err(io::Error::other)?;
            }
            if samples.is_empty() {
                continue;
            }
            let tag = Tag::new(&series.tag);
            let line = writer.write_histogram(&samples, since, length, tag);
            line.map_err(|error| io::Error::other(error.to_string()))?;
        }
        let note = self.clock.filter(|_| !lines.is_empty());
        let note = note.map_or_else(String::new, |clock| format!("{clock}\n"));
        self.append([note.into_bytes(), lines].concat())
    }

    /// Appends lines, below the head if the file lacks it.
    fn append(&mut self, lines: Vec<u8>) -> io::Result<()> {
        let text = match self.is_headed {
            true => lines,
            false => [self.head().into_bytes(), lines].concat(),
        };
        self.file.append(&text)?;
        self.is_headed = true;
        Ok(())
    }

    /// Returns the head: the crate's writer has no version, no date and no legend.
    fn head(&self) -> String {
        let Self { writer, since, .. } = self;
        let date = Timestamp::from_nanosecond(since.0.into()).unwrap_or_default();
        let (seconds, ms) = (since.0 / 1_000_000_000, since.0 / 1_000_000 % 1_000);
        format!(
            "#[Logged by {writer}, values in nanoseconds, times in UTC]\n\
             #[Histogram log format version 1.3]\n\
             #[StartTime: {seconds}.{ms:03} (seconds since epoch), {date:.3}]\n\
             \"StartTimestamp\",\"Interval_Length\",\"Interval_Max\",\"Interval_Compressed_Histogram\"\n"
        )
    }
}
