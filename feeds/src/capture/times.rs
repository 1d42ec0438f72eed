//! The times of a capture's frames: those that can't be right are findings.

use tickcast_reliability::types::Nanos;

use super::finding::{CaptureFinding, Findings};
use super::{RawFrame, STEP_MAX, units};

/// The times so far.
#[derive(Debug, Default)]
pub(super) struct Times {
    /// Time of the last frame that has one.
    last_at: Nanos,
    /// First byte of the first frame without a time.
    timeless_at: Option<u64>,
    /// Whether frames without a time are a finding already.
    is_timeless_named: bool,
}

impl Times {
    /// Reports a time that can't be right, steps of more than a minute, and frames without a time among
    /// others. The frame's record begins at byte `at`.
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
        // A later stamp that is beyond is a jump.
        if last == Nanos::ZERO && units::is_beyond(now) {
            findings.add(CaptureFinding::Beyond { at });
        }
        if now == Nanos::ZERO || last == Nanos::ZERO {
            return;
        }
        if now > last.after(STEP_MAX) {
            let by = now.since(last);
            findings.add(CaptureFinding::Jump { at, by });
        } else if now.after(STEP_MAX) < last {
            let by = last.since(now);
            findings.add(CaptureFinding::StepBack { at, by });
        }
    }
}
