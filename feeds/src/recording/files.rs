//! The files of a recording, merged by the time of a common clock. Files are read ahead by one datagram,
//! and further for the survey.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::path::PathBuf;

use tickcast_reliability::types::Nanos;

use super::clocks::Clocks;
use crate::capture::{
    Capture, CaptureError, CaptureStats, CapturedDatagram, STEP_MAX,
    account::{Reason, Row},
};

/// Neighbours of a regular file are further apart only where nothing was sent. Stamps that are further from
/// those before and behind are wrong.
const JUMP: Nanos = Nanos::from_ms(250);
/// Datagrams in a row that may have wrong stamps in a regular file.
const WRONG_MAX: usize = 4;

/// A datagram in memory.
#[derive(Debug, Default)]
pub(super) struct Held {
    /// Index of its file.
    pub(super) file: usize,
    pub(super) destination: Option<SocketAddr>,
    pub(super) received_at: Nanos,
    /// The stamp by the common clock, or the time of a neighbour where the stamp can't be right. The order
    /// of files and the arbiter's clock depend on it.
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
    clocks: Clocks,
    /// Buffers to reuse.
    spare: Vec<Held>,
}

struct File {
    capture: Capture,
    /// Datagrams that were read and not returned.
    ahead: VecDeque<Held>,
    /// Time of the first of them by the file's own clock, once it is known.
    front_at: Option<Nanos>,
    /// Time of the datagram that was returned last, by the same clock; 0 before the first.
    last_at: Nanos,
    /// Neighbours further apart may have a wrong stamp.
    jump: Nanos,
    /// Datagrams in a row that may have one.
    wrong_max: usize,
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

    /// Returns the time of the next datagram by the file's own clock; `None` at the end.
    ///
    /// A stamp that is far from the datagrams before and behind is damage where it is not between them, and
    /// counts as the time of the one before. Several that would be wrong need two datagrams behind them
    /// that show it, because one may have a wrong stamp itself.
    /// The datagram keeps its place in the file either way. One without a time comes at once.
    fn next_at(&mut self, index: usize, spare: &mut Vec<Held>) -> Option<Nanos> {
        if self.ahead.is_empty() && !self.read_ahead(index, spare) {
            return None;
        }
        if self.front_at.is_none() {
            self.front_at = self.time_of_front(index, spare);
        }
        self.front_at
    }

    /// Returns the time of the first datagram ahead.
    fn time_of_front(&mut self, index: usize, spare: &mut Vec<Held>) -> Option<Nanos> {
        let (stamp, last) = (self.ahead.front()?.received_at, self.last_at);
        if stamp == Nanos::ZERO {
            return Some(last);
        }
        let is_first = last == Nanos::ZERO;
        if !is_first && !self.is_far(stamp, last) {
            return Some(stamp);
        }
        if is_first {
            let mut is_far = |n| {
                let next = self.stamp_ahead(n, index, spare);
                next.filter(|next| *next < stamp && self.is_far(stamp, *next))
            };
            let next = is_far(1).filter(|_| is_far(2).is_some());
            return Some(next.map_or(stamp, |next| stamp.min(next)));
        }
        // The order of the file tells which of two is wrong.
        for n in 1..=self.wrong_max {
            let Some(next) = self.stamp_ahead(n, index, spare) else {
                break;
            };
            if self.contradicts(stamp, last, next) {
                // One wrong stamp behind several right ones is alone with that.
                let after = match n {
                    1 => Some(next),
                    _ => self.stamp_ahead(n + 1, index, spare),
                };
                if after.is_some_and(|after| self.contradicts(stamp, last, after)) {
                    return Some(last);
                }
            }
        }
        Some(stamp)
    }

    /// Returns whether a stamp that is far from the `last` one is wrong if a later one is right.
    fn contradicts(&self, stamp: Nanos, last: Nanos, later: Nanos) -> bool {
        let is_between = last < stamp && stamp < later;
        self.is_far(stamp, later) && later.after(self.jump) >= last && !is_between
    }

    /// Returns the stamp of the `n`-th datagram behind the first one ahead; `None` if it has none.
    fn stamp_ahead(&mut self, n: usize, index: usize, spare: &mut Vec<Held>) -> Option<Nanos> {
        while self.ahead.len() <= n && self.read_ahead(index, spare) {}
        let stamp = self.ahead.get(n).map(|held| held.received_at);
        stamp.filter(|stamp| *stamp != Nanos::ZERO)
    }

    /// Returns whether two stamps are further apart than neighbours are.
    fn is_far(&self, one: Nanos, other: Nanos) -> bool {
        one.since(other).max(other.since(one)) > self.jump
    }

    /// Takes the next datagram, whose time by the common clock is this.
    fn take(&mut self, at: Nanos) -> Option<Held> {
        let mut held = self.ahead.pop_front()?;
        self.last_at = self.front_at.take().unwrap_or(held.received_at);
        held.at = at;
        Some(held)
    }
}

impl Files {
    pub(super) fn new(captures: Vec<Capture>) -> Self {
        let file = |capture: Capture| {
            // The writer of a pipe may pause behind each datagram, which must not wait for the next ones.
            let (jump, wrong_max) = match capture.size() {
                Some(_) => (JUMP, WRONG_MAX),
                None => (STEP_MAX, 1),
            };
            File {
                capture,
                ahead: VecDeque::new(),
                front_at: None,
                last_at: Nanos::ZERO,
                jump,
                wrong_max,
                failed: None,
            }
        };
        Self {
            files: captures.into_iter().map(file).collect(),
            clocks: Clocks::default(),
            spare: Vec::new(),
        }
    }

    /// From now on, merges the files by these clocks.
    pub(super) fn set_clocks(&mut self, clocks: Clocks) {
        self.clocks = clocks;
    }

    pub(super) const fn len(&self) -> usize {
        self.files.len()
    }

    /// Returns whether a file has an end that is known.
    pub(super) fn is_regular(&self, file: usize) -> bool {
        let file = self.files.get(file);
        file.is_some_and(|file| file.capture.size().is_some())
    }

    /// Returns another reader of a regular file, from its beginning.
    pub(super) fn reopened(&self, file: usize) -> Option<Capture> {
        let capture = &self.files.get(file)?.capture;
        capture.size()?;
        capture.reopened().ok()
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
            let at = file.next_at(index, &mut self.spare);
            if let Some(at) = at.map(|at| self.clocks.common(index, at))
                && earliest.is_none_or(|(than, _)| at < than)
            {
                earliest = Some((at, index));
            }
        }
        let next = earliest.and_then(|(at, file)| self.files.get_mut(file)?.take(at));
        let Some(next) = next else {
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

    /// Returns one line for each file whose clock differs.
    pub(super) fn clock_notes(&self) -> Vec<String> {
        let files = self.files.iter().enumerate();
        let notes = files.filter_map(|(index, file)| {
            let path = file.capture.path().display();
            let note = self.clocks.note(index)?;
            Some(format!("{path}: {note}"))
        });
        notes.collect()
    }

    pub(super) fn paths(&self) -> Vec<PathBuf> {
        let paths = self
            .files
            .iter()
            .map(|file| file.capture.path().to_path_buf());
        paths.collect()
    }
}
