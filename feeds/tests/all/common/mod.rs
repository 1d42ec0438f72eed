//! Common parts of the feeds tests: the paths of real captures, and a sink that keeps everything.

use std::{env, path::PathBuf};

use tickcast_feeds::source::{Incident, Sink};
use tickcast_reliability::record::{HasRType, RecordBatch, RecordHeader};
use tickcast_reliability::types::SourcePosition;

/// Returns the directory of real captures: `TICKCAST_DATA`, or `../shared/data` beside the repository.
/// If it is missing, prints a message and returns `None`; the test then passes without checking.
pub(crate) fn data_dir() -> Option<PathBuf> {
    let beside = || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared/data");
    let dir = env::var_os("TICKCAST_DATA").map_or_else(beside, PathBuf::from);
    if dir.is_dir() {
        return Some(dir);
    }
    eprintln!(
        "SKIPPED: no real captures at {}; set TICKCAST_DATA to their folder",
        dir.display()
    );
    None
}

/// All output of a decoder.
#[derive(Default)]
pub(crate) struct Recorded {
    /// Each message's position and records.
    pub(crate) messages: Vec<(SourcePosition, RecordBatch)>,
    /// All incidents, in order.
    pub(crate) incidents: Vec<Incident>,
}

impl Recorded {
    /// Returns the positions of all messages as (ordinal, sequence).
    pub(crate) fn positions(&self) -> Vec<(u16, u64)> {
        let positions = self.messages.iter();
        positions
            .map(|(p, _)| (p.ordinal(), p.sequence()))
            .collect()
    }

    /// Returns all records of one type, in order.
    pub(crate) fn all<R: HasRType<Header = RecordHeader> + Clone>(&self) -> Vec<R> {
        let records = self.messages.iter().flat_map(|(_, batch)| batch.records());
        records.filter_map(|r| r.get::<R>().cloned()).collect()
    }
}

impl Sink for Recorded {
    fn message(&mut self, position: SourcePosition, records: &RecordBatch) {
        assert!(!records.is_empty(), "a message becomes at least one record");
        let first = records.records().next().unwrap().header().instrument_id;
        for record in records.records() {
            assert_eq!(record.header().instrument_id, first, "one instrument");
        }
        self.messages.push((position, records.clone()));
    }

    fn incident(&mut self, incident: Incident) {
        self.incidents.push(incident);
    }
}

/// A sink that counts instead of keeping, for whole captures.
#[derive(Default)]
pub(crate) struct Counted {
    /// Messages.
    pub(crate) messages: u64,
    /// Records by type tag.
    pub(crate) records: std::collections::BTreeMap<u8, u64>,
    /// Positions that did not grow.
    pub(crate) out_of_order: u64,
    /// The newest position.
    pub(crate) newest: SourcePosition,
    /// All incidents, in order.
    pub(crate) incidents: Vec<Incident>,
}

impl Sink for Counted {
    fn message(&mut self, position: SourcePosition, records: &RecordBatch) {
        self.messages += 1;
        self.out_of_order += u64::from(position <= self.newest);
        self.newest = position;
        for record in records.records() {
            *self.records.entry(record.header().rtype).or_default() += 1;
        }
    }

    fn incident(&mut self, incident: Incident) {
        self.incidents.push(incident);
    }
}
