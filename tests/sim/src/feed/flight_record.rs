//! Recording the cores of a run in flight records.

use tickcast_journal::layout::RECORD_LEN_MIN;
use tickcast_journal::{
    JournalOrigin, JournalSide, JournalWriter, Journaled, JournaledPublisher, JournaledServer,
};
use tickcast_reliability::session::SubscriberCore;
use tickcast_reliability::types::Now;

/// Room for few runs of any profile.
pub(crate) const SHORT_LEN: usize = RECORD_LEN_MIN;

/// Records a core from now on, in so many bytes, with all its outputs in words.
pub(crate) fn record(core: &mut Journaled<SubscriberCore>, len: usize) {
    let origin = JournalOrigin {
        name: "simulated".into(),
        ..JournalOrigin::default()
    };
    // A record of at least the least length can be kept.
    if let Ok(mut recorder) = JournalWriter::new(Box::new(vec![0; len]), &origin) {
        recorder.keep_log();
        core.record(recorder);
    }
}

/// Records a publisher's core from now on, in little room.
pub(crate) fn record_publisher(core: &mut JournaledPublisher, now: Now) {
    if let Some(recorder) = recorder(JournalSide::Publisher, SHORT_LEN, now) {
        core.record(recorder);
    }
}

/// The same of a repair service's, in more.
pub(crate) fn record_repair(core: &mut JournaledServer, now: Now) {
    if let Some(recorder) = recorder(JournalSide::Repair, 4 * SHORT_LEN, now) {
        core.record(recorder);
    }
}

fn recorder(side: JournalSide, len: usize, now: Now) -> Option<JournalWriter> {
    let origin = JournalOrigin {
        name: "simulated".into(),
        began: now.monotonic,
        began_utc: now.utc,
        side,
        ..JournalOrigin::default()
    };
    JournalWriter::new(Box::new(vec![0; len]), &origin).ok()
}
