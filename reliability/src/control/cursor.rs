//! A subscriber's cursor: 64 bytes of the publisher's memory that the subscriber alone writes, over
//! RDMA. It reports the subscriber's progress without a message (docs/PROTOCOL.md §6.7).
//!
//! A cursor has eight words. The first is the owner's session, claimed by compare-and-swap. The others
//! are one report, written at once. A device may place its bytes in any order, so a report counts
//! only when its CRC fits.

use serde::{Deserialize, Serialize};

use crate::control::RemoteAccess;
use crate::planted::{Bug, planted};
use crate::types::{Epoch, Nanos, Sequence};

/// Words of a cursor.
pub const CURSOR_WORDS: usize = 8;
/// Bytes of a cursor.
pub const CURSOR_LEN: usize = CURSOR_WORDS * WORD_LEN;
/// Offset of a report in bytes: behind the claim.
pub const REPORT_OFFSET: u64 = WORD_LEN as u64;
/// Index of the report's number, which changes with every report.
pub(crate) const NUMBER_WORD: usize = 1;
/// Words of a report.
pub const REPORT_WORDS: usize = CURSOR_WORDS - 1;

const WORD_LEN: usize = size_of::<u64>();

/// A subscriber's report in its cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// The number of the report, from 1 on.
    pub number: u64,
    /// The epoch that the subscriber follows.
    pub epoch: Epoch,
    /// The last sequence delivered or declared lost.
    pub sequence: Sequence,
    /// The highest known sequence.
    pub heard: Sequence,
    /// Records declared lost so far.
    pub lost_records: u64,
    /// Bytes of the READs begun so far under the present grant.
    pub read_bytes: u64,
}

/// The content of a cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CursorState {
    /// The cursor is not claimed, or nothing was reported yet.
    Silent,
    /// Words of two reports, or no report at all: read it again later.
    Torn,
    /// A report by this session.
    Reported(u64, Report),
}

impl Report {
    /// Returns the report's words, as this session writes them.
    #[must_use]
    pub fn words(&self, session: u64) -> [u64; REPORT_WORDS] {
        let mut words = [
            self.number,
            self.epoch.0,
            self.sequence.0,
            self.heard.0,
            self.lost_records,
            self.read_bytes,
            0,
        ];
        words[REPORT_WORDS - 1] = crc(session, &words);
        words
    }
}

impl CursorState {
    /// Decodes the words of a cursor, which were read one by one and may have been written meanwhile.
    #[must_use]
    pub fn of(words: &[u64; CURSOR_WORDS]) -> Self {
        let [session, report @ ..] = *words;
        if session == 0 || report[0] == 0 {
            return Self::Silent;
        }
        if report[REPORT_WORDS - 1] != crc(session, &report) && !planted(Bug::TornCursorBelieved) {
            return Self::Torn;
        }
        let [number, epoch, sequence, heard, lost_records, read_bytes, _] = report;
        let report = Report {
            number,
            epoch: Epoch(epoch),
            sequence: Sequence(sequence),
            heard: Sequence(heard),
            lost_records,
            read_bytes,
        };
        Self::Reported(session, report)
    }
}

/// Returns the CRC32C of all words but the last, in memory order.
fn crc(session: u64, report: &[u64; REPORT_WORDS]) -> u64 {
    let words = std::iter::once(&session).chain(&report[..REPORT_WORDS - 1]);
    let crc = words.fold(0, |crc, word| {
        crc32c::crc32c_append(crc, &word.to_le_bytes())
    });
    u64::from(crc)
}

/// The subscriber's side of a cursor.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Cursor {
    pub(crate) at: RemoteAccess,
    state: State,
    /// The last report.
    last: Option<Report>,
    told_at: Nanos,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum State {
    Granted,
    /// A swap or a report is in flight.
    Busy,
    Ours,
    /// Another session has claimed the cursor, so it is not written.
    Foreign,
}

/// The next operation on a cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum CursorStep {
    Claim,
    Report(Report),
}

impl Cursor {
    pub(crate) const fn new(at: RemoteAccess) -> Self {
        Self {
            at,
            state: State::Granted,
            last: None,
            told_at: Nanos::ZERO,
        }
    }

    /// Returns when the next operation is due: a claim at once, a report this long after the last one.
    pub(crate) fn due_at(&self, every: Nanos) -> Nanos {
        match self.state {
            State::Granted => Nanos::ZERO,
            State::Ours => self.told_at.after(every),
            State::Busy | State::Foreign => Nanos::MAX,
        }
    }

    /// Returns the operation that is due now; it is in flight from here on.
    pub(crate) fn step(&mut self, now: Nanos, mut report: Report) -> CursorStep {
        let before = std::mem::replace(&mut self.state, State::Busy);
        if before == State::Granted {
            return CursorStep::Claim;
        }
        report.number = self.last.map_or(1, |last| last.number + 1);
        (self.last, self.told_at) = (Some(report), now);
        CursorStep::Report(report)
    }

    /// Handles the result of the swap, which is the previous word. Returns whether the cursor is ours now.
    pub(crate) fn claimed(&mut self, session: u64, old: u64) -> bool {
        let is_ours = old == 0 || old == session;
        self.state = if is_ours { State::Ours } else { State::Foreign };
        is_ours
    }

    /// Records that the report has reached the publisher's device.
    pub(crate) const fn reported(&mut self) {
        self.state = State::Ours;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: Report = Report {
        number: 3,
        epoch: Epoch(7),
        sequence: Sequence(u64::MAX - 1),
        heard: Sequence(u64::MAX),
        lost_records: 12,
        read_bytes: 4_096,
    };

    fn cursor(session: u64, report: &Report) -> [u64; CURSOR_WORDS] {
        let mut words = [session; CURSOR_WORDS];
        words[1..].copy_from_slice(&report.words(session));
        words
    }

    #[test]
    fn cursor_report_round_trips_and_unclaimed_is_silent() {
        let words = cursor(5, &REPORT);
        assert_eq!(CursorState::of(&words), CursorState::Reported(5, REPORT));
        assert_eq!(CursorState::of(&[0; 8]), CursorState::Silent);
        let mut unclaimed = words;
        unclaimed[0] = 0;
        assert_eq!(CursorState::of(&unclaimed), CursorState::Silent);
        assert_eq!(
            CursorState::of(&[5, 0, 0, 0, 0, 0, 0, 0]),
            CursorState::Silent
        );
    }

    #[test]
    fn words_of_two_reports_or_of_two_sessions_are_no_report() {
        let before = cursor(5, &REPORT);
        let next = Report {
            number: 4,
            epoch: Epoch(8),
            sequence: Sequence(10),
            heard: Sequence(11),
            lost_records: 13,
            read_bytes: 8_192,
        };
        let after = cursor(5, &next);
        // Any of the seven words may be of the later report, but not all and not none.
        for places in 1..(1_u32 << REPORT_WORDS) - 1 {
            let mixed = std::array::from_fn(|word| {
                let is_later = word > 0 && places >> (word - 1) & 1 == 1;
                if is_later { after[word] } else { before[word] }
            });
            assert_eq!(CursorState::of(&mixed), CursorState::Torn, "{places:b}");
        }
        let mut stolen = before;
        stolen[0] = 6;
        assert_eq!(CursorState::of(&stolen), CursorState::Torn);
    }

    #[test]
    fn cursor_report_crc_matches_protocol_example() {
        // The example in docs/PROTOCOL.md §6.7.
        let words = Report {
            number: 1,
            epoch: Epoch(2),
            sequence: Sequence(3),
            heard: Sequence(4),
            lost_records: 5,
            read_bytes: 6,
        }
        .words(9);
        assert_eq!(words[..6], [1, 2, 3, 4, 5, 6]);
        let bytes: Vec<u8> = [9, 1, 2, 3, 4, 5, 6_u64]
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect();
        assert_eq!(words[6], u64::from(crc32c::crc32c(&bytes)));
    }

    #[test]
    fn cursor_is_claimed_once_then_reports_one_at_a_time() {
        let at = RemoteAccess {
            address: 64,
            len: 64,
            key: 1,
        };
        let (every, mut cursor) = (Nanos(10), Cursor::new(at));
        assert_eq!(cursor.due_at(every), Nanos::ZERO);
        assert_eq!(cursor.step(Nanos(100), REPORT), CursorStep::Claim);
        assert_eq!(cursor.due_at(every), Nanos::MAX, "under way");
        assert!(cursor.claimed(5, 0));
        assert!(cursor.due_at(every) <= Nanos(10));
        for number in 1..4 {
            let told = CursorStep::Report(Report { number, ..REPORT });
            assert_eq!(cursor.step(Nanos(100 * number), REPORT), told);
            assert_eq!(cursor.due_at(every), Nanos::MAX, "under way");
            cursor.reported();
            assert_eq!(cursor.due_at(every), Nanos(100 * number + 10));
        }
        let mut again = Cursor::new(at);
        again.step(Nanos(1), REPORT);
        assert!(again.claimed(5, 5), "it was ours already");
        let mut foreign = Cursor::new(at);
        foreign.step(Nanos(1), REPORT);
        assert!(!foreign.claimed(5, 6));
        assert_eq!(foreign.due_at(every), Nanos::MAX);
    }
}
