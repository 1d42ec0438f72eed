//! The files of a recording, merged by time. Files are read ahead by one datagram, and further for
//! the survey.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::path::PathBuf;

use tickcast_reliability::types::Nanos;

use crate::capture::{
    Capture, CaptureError, CaptureStats, CapturedDatagram, STEP_MAX,
    account::{Reason, Row},
};

/// A datagram in memory.
#[derive(Debug, Default)]
pub(super) struct Held {
    /// Index of its file.
    pub(super) file: usize,
    pub(super) destination: Option<SocketAddr>,
    pub(super) received_at: Nanos,
    /// The stamp, or the time of a neighbour where the stamp can't be right. The order of files and the
    /// arbiter's clock depend on it.
    pub(super) at: Nanos,
    pub(super) payload: Vec<u8>,
    pub(super) is_snapped: bool,
    pub(super) record: Row,
    /// The parts of its file before it that could not be read ([`CaptureStats::unread`]).
    pub(super) unread: u64,
}

impl Held {
    fn fill(&mut self, file: usize, datagram: &CapturedDatagram<'_>) {
        self.file = file;
        self.destination = Some(datagram.destination);
        self.received_at = datagram.received_at;
        self.at = datagram.received_at;
        self.payload.clear();
        self.payload.extend_from_slice(datagram.payload);
        self.is_snapped = datagram.is_snapped();
        self.record = datagram.record;
    }
}

/// Several captures, read as one.
pub(super) struct Files {
    files: Vec<File>,
    /// Buffers to reuse.
    spare: Vec<Held>,
}

struct File {
    capture: Capture,
    /// Datagrams that were read and not returned.
    ahead: VecDeque<Held>,
    /// Whether `at` of the first of them is known.
    is_timed: bool,
    /// Time of the datagram that was returned last; 0 before the first.
    last_at: Nanos,
    /// The error behind them.
    failed: Option<CaptureError>,
}

impl File {
    /// Reads another datagram, and keeps it; `false` at the end. An error is kept too, until
    /// everything before it is returned.
    fn read_ahead(&mut self, index: usize, spare: &mut Vec<Held>) -> bool {
        if self.failed.is_some() {
            return false;
        }
        let datagram = match self.capture.next() {
            Ok(Some(datagram)) => datagram,
            Ok(None) => return false,
            Err(error) => {
                self.failed = Some(error);
                return false;
            }
        };
        let mut held = spare.pop().unwrap_or_default();
        held.fill(index, &datagram);
        held.unread = self.capture.stats().unread();
        self.ahead.push_back(held);
        true
    }

    /// Returns the time of the next datagram; `None` at the end.
    ///
    /// A stamp that is far from both neighbours is damage, and counts as the nearer neighbour's time.
    /// The datagram keeps its place in the file either way. One without a time comes at once.
    fn next_at(&mut self, index: usize, spare: &mut Vec<Held>) -> Option<Nanos> {
        if self.ahead.is_empty() && !self.read_ahead(index, spare) {
            return None;
        }
        if !self.is_timed {
            let at = self.time_of_front(index, spare)?;
            self.ahead.front_mut()?.at = at;
            self.is_timed = true;
        }
        self.ahead.front().map(|held| held.at)
    }

    /// Returns the time of the first datagram ahead.
    fn time_of_front(&mut self, index: usize, spare: &mut Vec<Held>) -> Option<Nanos> {
        let (stamp, last) = (self.ahead.front()?.received_at, self.last_at);
        if stamp == Nanos::ZERO {
            return Some(last);
        }
        let is_first = last == Nanos::ZERO;
        if !is_first && !is_far(stamp, last) {
            return Some(stamp);
        }
        let Some(next) = self.stamp_ahead(1, index, spare) else {
            return Some(stamp);
        };
        Some(match is_first {
            _ if !is_far(stamp, next) => stamp,
            true => match self.stamp_ahead(2, index, spare) {
                Some(third) if is_far(stamp, third) => stamp.min(next),
                _ => stamp,
            },
            false if is_far(last, next) => stamp,
            false => last,
        })
    }

    /// Returns the stamp of the `n`-th datagram behind the first one ahead; `None` if it has none.
    fn stamp_ahead(&mut self, n: usize, index: usize, spare: &mut Vec<Held>) -> Option<Nanos> {
        while self.ahead.len() <= n && self.read_ahead(index, spare) {}
        let stamp = self.ahead.get(n).map(|held| held.received_at);
        stamp.filter(|stamp| *stamp != Nanos::ZERO)
    }

    fn take(&mut self) -> Option<Held> {
        let held = self.ahead.pop_front()?;
        self.is_timed = false;
        self.last_at = held.at;
        Some(held)
    }
}

impl Files {
    pub(super) fn new(captures: Vec<Capture>) -> Self {
        let file = |capture| File {
            capture,
            ahead: VecDeque::new(),
            is_timed: false,
            last_at: Nanos::ZERO,
            failed: None,
        };
        Self {
            files: captures.into_iter().map(file).collect(),
            spare: Vec::new(),
        }
    }

    pub(super) const fn len(&self) -> usize {
        self.files.len()
    }

    /// Returns whether a file has an end that is known.
    pub(super) fn is_regular(&self, file: usize) -> bool {
        let file = self.files.get(file);
        file.is_some_and(|file| file.capture.size().is_some())
    }

    /// Reads another datagram of a file, and keeps it; `None` at the end of that file. An error is
    /// kept too, until everything before it is returned.
    pub(super) fn read_ahead(&mut self, index: usize) -> Option<&Held> {
        let file = self.files.get_mut(index)?;
        match file.read_ahead(index, &mut self.spare) {
            true => file.ahead.back(),
            false => None,
        }
    }

    /// Makes the earliest datagram of all files the current one; `false` at the end of all.
    ///
    /// # Errors
    /// [`CaptureError`] of each file that cannot be read further, once all others are at their end.
    pub(super) fn next(&mut self, current: &mut Held) -> Result<bool, CaptureError> {
        let mut earliest: Option<(Nanos, usize)> = None;
        for (index, file) in self.files.iter_mut().enumerate() {
            if let Some(at) = file.next_at(index, &mut self.spare)
                && earliest.is_none_or(|(than, _)| at < than)
            {
                earliest = Some((at, index));
            }
        }
        let file = earliest.and_then(|(_, file)| self.files.get_mut(file));
        let Some(next) = file.and_then(File::take) else {
            let failed = self.files.iter_mut().find_map(|file| file.failed.take());
            return failed.map_or(Ok(false), Err);
        };
        let before = std::mem::replace(current, next);
        if self.spare.len() < self.files.len() {
            self.spare.push(before);
        }
        Ok(true)
    }

    /// Moves a datagram from the feed to another reason.
    pub(super) fn account_as(&mut self, reason: Reason, held: &Held) {
        self.account_row_as(reason, held.file, held.record);
    }

    /// Moves frames and bytes of a file from the feed to another reason.
    pub(super) fn account_row_as(&mut self, reason: Reason, file: usize, row: Row) {
        if let Some(file) = self.files.get_mut(file) {
            file.capture.account_as(reason, row);
        }
    }

    /// Returns the parts of a file that could not be read so far.
    pub(super) fn unread(&self, file: usize) -> u64 {
        let file = self.files.get(file);
        file.map_or(0, |file| file.capture.stats().unread())
    }

    /// Returns the sums of all files.
    pub(super) fn stats(&self) -> CaptureStats {
        let mut all = CaptureStats::default();
        for file in &self.files {
            all.merge(file.capture.stats());
        }
        all
    }

    /// Returns some texts of each file, with its path if there are several.
    pub(super) fn texts(&self, of: impl Fn(&Capture) -> Vec<String>) -> Vec<String> {
        let is_only = self.files.len() == 1;
        let mut all = Vec::new();
        for File { capture, .. } in &self.files {
            let path = capture.path().display();
            let texts = of(capture).into_iter();
            all.extend(texts.map(|text| match is_only {
                true => text,
                false => format!("{path}: {text}"),
            }));
        }
        all
    }

    pub(super) fn paths(&self) -> Vec<PathBuf> {
        let paths = self
            .files
            .iter()
            .map(|file| file.capture.path().to_path_buf());
        paths.collect()
    }
}

/// Returns whether two stamps are further apart than neighbours are.
fn is_far(one: Nanos, other: Nanos) -> bool {
    one.since(other).max(other.since(one)) > STEP_MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_beyond_a_minute_are_far_apart() {
        let (one, minute) = (Nanos::from_secs(1_000), Nanos::from_secs(60));
        assert_eq!(STEP_MAX, minute);
        for (other, far) in [
            (one, false),
            (one.after(minute), false),
            (one.after(minute).after(Nanos(1)), true),
            (Nanos::ZERO, true),
        ] {
            assert_eq!(is_far(one, other), far, "{other:?}");
            assert_eq!(is_far(other, one), far, "{other:?}");
        }
    }
}
