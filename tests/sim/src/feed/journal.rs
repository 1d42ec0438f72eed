//! Journals of the cores in a run.

use tickcast_journal::layout::JOURNAL_LEN_MIN;
use tickcast_journal::{
    JournalOrigin, JournalSide, JournalWriter, Journaled, JournaledPublisher, JournaledServer,
};
use tickcast_reliability::session::SubscriberCore;
use tickcast_reliability::types::Now;

/// Length in bytes of a record that holds a few runs of any profile.
pub(crate) const SHORT_LEN: usize = JOURNAL_LEN_MIN;

/// Starts recording a subscriber's core in `len` bytes, with a log of all its outputs.
pub(crate) fn record(core: &mut Journaled<SubscriberCore>, len: usize) {
    let origin = JournalOrigin {
        name: "simulated".into(),
        ..JournalOrigin::default()
    };
    // `len` is at least the minimum, so that creating the record can't fail.
    if let Ok(mut journal) = JournalWriter::new(Box::new(vec![0; len]), &origin) {
        journal.keep_log();
        core.keep_journal(journal);
    }
}

/// Starts recording a publisher's core in a short record.
pub(crate) fn record_publisher(core: &mut JournaledPublisher, now: Now) {
    if let Some(journal) = journal(JournalSide::Publisher, SHORT_LEN, now) {
        core.keep_journal(journal);
    }
}

/// Starts recording a repair service's core in a record four times as long.
pub(crate) fn record_repair(core: &mut JournaledServer, now: Now) {
    if let Some(journal) = journal(JournalSide::Repair, 4 * SHORT_LEN, now) {
        core.keep_journal(journal);
    }
}

fn journal(side: JournalSide, len: usize, now: Now) -> Option<JournalWriter> {
    let origin = JournalOrigin {
        name: "simulated".into(),
        began: now.monotonic,
        began_utc: now.utc,
        side,
        ..JournalOrigin::default()
    };
    JournalWriter::new(Box::new(vec![0; len]), &origin).ok()
}
