//! The files of a recording, merged by time. Files are read ahead by one datagram, and further for
//! the survey.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::path::PathBuf;

use tickcast_reliability::types::Nanos;

use crate::capture::{
    Capture, CaptureError, CaptureStats, CapturedDatagram,
    account::{Reason, Row},
};

/// A datagram in memory.
#[derive(Debug, Default)]
pub(super) struct Held {
    /// Index of its file.
    pub(super) file: usize,
    pub(super) destination: Option<SocketAddr>,
    pub(super) received_at: Nanos,
    pub(super) payload: Vec<u8>,
    pub(super) is_snapped: bool,
    pub(super) record: Row,
}

impl Held {
    fn fill(&mut self, file: usize, datagram: &CapturedDatagram<'_>) {
        self.file = file;
        self.destination = Some(datagram.destination);
        self.received_at = datagram.received_at;
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
    /// The error behind them.
    failed: Option<CaptureError>,
}

impl Files {
    pub(super) fn new(captures: Vec<Capture>) -> Self {
        let file = |capture| File {
            capture,
            ahead: VecDeque::new(),
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
        if file.failed.is_some() {
            return None;
        }
        let datagram = match file.capture.next() {
            Ok(datagram) => datagram?,
            Err(error) => {
                file.failed = Some(error);
                return None;
            }
        };
        let mut held = self.spare.pop().unwrap_or_default();
        held.fill(index, &datagram);
        file.ahead.push_back(held);
        file.ahead.back()
    }

    /// Makes the earliest datagram of all files the current one; `false` at the end of all. One
    /// without a time comes at once.
    ///
    /// # Errors
    /// [`CaptureError`] of each file that cannot be read further, once all others are at their end.
    pub(super) fn next(&mut self, current: &mut Held) -> Result<bool, CaptureError> {
        let mut earliest: Option<(Nanos, usize)> = None;
        for file in 0..self.files.len() {
            if self.front(file).is_none() {
                self.read_ahead(file);
            }
            if let Some(at) = self.front(file)
                && earliest.is_none_or(|(than, _)| at < than)
            {
                earliest = Some((at, file));
            }
        }
        let file = earliest.and_then(|(_, file)| self.files.get_mut(file));
        let Some(next) = file.and_then(|file| file.ahead.pop_front()) else {
            let failed = self.files.iter_mut().find_map(|file| file.failed.take());
            return failed.map_or(Ok(false), Err);
        };
        let before = std::mem::replace(current, next);
        if self.spare.len() < self.files.len() {
            self.spare.push(before);
        }
        Ok(true)
    }

    fn front(&self, file: usize) -> Option<Nanos> {
        self.files.get(file)?.ahead.front().map(|it| it.received_at)
    }

    /// Moves a datagram from the feed to another reason.
    pub(super) fn account_as(&mut self, reason: Reason, held: &Held) {
        if let Some(file) = self.files.get_mut(held.file) {
            file.capture.account_as(reason, held.record);
        }
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
