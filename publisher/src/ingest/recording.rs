//! The captures of one input, merged by time, and the line that each packet belongs to.

use std::net::SocketAddr;
use std::path::Path;

use tickcast_feeds::capture::{Capture, CaptureError, CaptureStats};

use super::Held;
use crate::config::CaptureConfig;

/// The packets of an input's captures, in order of their times.
pub(super) struct Recording {
    files: Vec<RecordedFile>,
    foreign: u64,
}

/// One capture, and the lines that it holds.
struct RecordedFile {
    capture: Capture,
    /// Each line with its destination; `None`: every destination.
    lines: Vec<(Option<SocketAddr>, usize)>,
    /// The next packet; used only where there are several captures.
    ahead: Option<Held>,
}

impl Recording {
    /// Opens the captures of an input.
    pub(super) fn open(input: &CaptureConfig) -> Result<Self, CaptureError> {
        let mut paths: Vec<&Path> = Vec::new();
        let mut files: Vec<RecordedFile> = Vec::new();
        for (line, (path, group)) in input.recorded_lines().into_iter().enumerate() {
            let at = match paths.iter().position(|it| *it == path) {
                Some(at) => at,
                None => {
                    paths.push(path);
                    files.push(RecordedFile {
                        capture: Capture::open(path)?,
                        lines: Vec::new(),
                        ahead: None,
                    });
                    files.len() - 1
                }
            };
            files[at].lines.push((group, line));
        }
        let mut recording = Self { files, foreign: 0 };
        if recording.files.len() > 1 {
            for file in &mut recording.files {
                let mut held = Held::default();
                let is_there = file.read(&mut held, &mut recording.foreign)?;
                file.ahead = is_there.then_some(held);
            }
        }
        Ok(recording)
    }

    /// Reads the next packet of all captures; `false` at the end.
    pub(super) fn next(&mut self, held: &mut Held) -> Result<bool, CaptureError> {
        if let [file] = &mut self.files[..] {
            return file.read(held, &mut self.foreign);
        }
        let ahead = self.files.iter_mut().filter(|file| file.ahead.is_some());
        let first = ahead.min_by_key(|file| file.ahead.as_ref().map(|ahead| ahead.at));
        let Some(file) = first else {
            return Ok(false);
        };
        if let Some(ahead) = &mut file.ahead {
            std::mem::swap(held, ahead);
        }
        let mut ahead = file.ahead.take().unwrap_or_default();
        if file.read(&mut ahead, &mut self.foreign)? {
            file.ahead = Some(ahead);
        }
        Ok(true)
    }

    /// Returns the counts of all captures.
    pub(super) fn stats(&self) -> CaptureStats {
        let mut all = CaptureStats::default();
        for stats in self.files.iter().map(|file| file.capture.stats()) {
            all.truncated += stats.truncated;
            all.snapped += stats.snapped;
            all.skipped.unknown_link += stats.skipped.total();
        }
        all
    }

    /// Returns the packets to destinations that are no line of the input.
    pub(super) const fn foreign(&self) -> u64 {
        self.foreign
    }
}

impl RecordedFile {
    /// Reads the next packet of a line.
    fn read(&mut self, held: &mut Held, foreign: &mut u64) -> Result<bool, CaptureError> {
        held.bytes.clear();
        while let Some(datagram) = self.capture.next()? {
            let is_of = |(group, _): &&(Option<SocketAddr>, usize)| {
                group.is_none_or(|group| group == datagram.destination)
            };
            let Some((_, line)) = self.lines.iter().find(is_of) else {
                *foreign += 1;
                continue;
            };
            held.line = *line;
            held.bytes.extend_from_slice(datagram.payload);
            (held.received_at, held.at) = (datagram.received_at, datagram.received_at);
            return Ok(true);
        }
        Ok(false)
    }
}
