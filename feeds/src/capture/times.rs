//! The times of a capture's frames: those that can't be right are findings.

use tickcast_reliability::types::Nanos;

use super::finding::{CaptureFinding, Findings};
use super::{RawFrame, STEP_MAX, units};

/// A longer step back is a finding by itself. Queues of one network card are read in turn, and give packets
/// up to a tenth of a second late.
const STEP_BACK_MAX: Nanos = Nanos::from_secs(1);
/// Stamps further behind the newest one are a finding if they are many.
const BEHIND_MAX: Nanos = Nanos(100_000_000);
/// One in so many stamps may be so far behind.
const BEHIND_SHARE: u64 = 10;
/// Queues do not explain a row of so many stamps that are each before the last one.
const DESCENT_MIN: u64 = 16;

/// The times so far.
#[derive(Debug, Default)]
pub(super) struct Times {
    /// Time of the last frame that has one.
    last_at: Nanos,
    /// The newest time since the clock was set back.
    newest: Nanos,
    /// Frames that have a time.
    stamps: u64,
    /// Those far behind the newest one.
    behind: u64,
    /// The current row of stamps that descend, and the longest one: their number, and the first byte of the
    /// first record.
    descent: (u64, u64),
    longest_descent: (u64, u64),
    /// Steps back, the first byte of the first record, and the longest step.
    steps_back: Option<(u64, u64, Nanos)>,
    /// First byte of the first frame without a time.
    timeless_at: Option<u64>,
    /// Whether frames without a time are a finding already.
    is_timeless_named: bool,
}

impl Times {
    /// Reports a time that can't be right, another unit than the file states, jumps of more than a minute,
    /// and frames without a time among others. The frame's record begins at byte `at`.
    pub(super) fn check(&mut self, frame: &RawFrame, at: u64, findings: &mut Findings) {
        if let Some(finding) = &frame.other_unit {
            findings.add_once(finding);
        }
        if let Some(ns) = frame.excess {
            findings.add(CaptureFinding::Fraction { at, ns });
        }
        let (now, last) = (frame.received_at, self.last_at);
        if now == Nanos::ZERO {
            self.timeless_at.get_or_insert(at);
        } else {
            self.last_at = now;
        }
        // Where no frame has a time, nothing is wrong.
        if !self.is_timeless_named
            && self.last_at != Nanos::ZERO
            && let Some(at) = self.timeless_at
        {
            self.is_timeless_named = true;
            findings.add(CaptureFinding::NoTime { at });
        }
        if now == Nanos::ZERO {
            return;
        }
        // A later stamp that is beyond is a jump.
        if last == Nanos::ZERO && units::is_beyond(now) {
            findings.add(CaptureFinding::Beyond { at });
        }
        if last != Nanos::ZERO && now > last.after(STEP_MAX) {
            let by = now.since(last);
            findings.add(CaptureFinding::Jump { at, by });
        }
        self.count(now, last, at);
    }

    /// Reports the times that only their number makes doubtful, at the end of the file.
    pub(super) fn end(&mut self, findings: &mut Findings) {
        if let Some((steps, at, by)) = self.steps_back.take() {
            findings.add(CaptureFinding::StepBack { steps, at, by });
        }
        let (stamps, at) = std::mem::take(&mut self.longest_descent);
        let behind = std::mem::take(&mut self.behind);
        if stamps >= DESCENT_MIN {
            findings.add(CaptureFinding::Descent { stamps, at });
        } else if behind * BEHIND_SHARE > self.stamps {
            let of = self.stamps;
            findings.add(CaptureFinding::Behind { stamps: behind, of });
        }
    }

    /// Counts the stamp at byte `at` by its distance to the last one and to the newest one.
    fn count(&mut self, now: Nanos, last: Nanos, at: u64) {
        self.stamps += 1;
        let back = last.since(now);
        if back > STEP_BACK_MAX {
            let (steps, _, longest) = self.steps_back.get_or_insert((0, at, back));
            *steps += 1;
            *longest = back.max(*longest);
            // Behind a step the clock counts anew.
            (self.newest, self.descent) = (now, (0, at));
        } else if back > Nanos::ZERO {
            let (stamps, first) = self.descent;
            self.descent = (stamps + 1, if stamps == 0 { at } else { first });
            self.longest_descent = self.longest_descent.max(self.descent);
        } else {
            self.descent = (0, at);
        }
        self.newest = self.newest.max(now);
        self.behind += u64::from(self.newest.since(now) > BEHIND_MAX);
    }
}
