//! A core of a small world, whichever it is, and the terms that all of them share.

use std::hash::Hash;

use tickcast_reliability::session::Path;
use tickcast_reliability::types::{FanOutId, Nanos, Now};

use super::fingerprint::Printer;
use super::transcript::Said;
use super::{BEGIN, SmallPlan};

pub(super) const PATHS: [Path; 2] = [Path::Repair, Path::Replay];
pub(super) const FAN_OUT: FanOutId = FanOutId(0);

pub(super) type Checked = Result<(), String>;

/// A core with a driver that performs its actions.
pub trait Core: Sized {
    /// The inputs of the core.
    type Input: Copy + Eq + Hash;
    /// The outputs of the core.
    type Output;
    /// The part of the core's state that the world needs.
    type Facts: Clone;

    /// Creates the core of this number, at the common start time.
    ///
    /// # Errors
    /// Settings that a part of the core refuses.
    fn begin(plan: &SmallPlan, number: u64) -> Result<Self, String>;

    /// Passes an input to the core and collects its outputs.
    ///
    /// # Errors
    /// A property that does not hold.
    fn take(
        &mut self,
        said: &mut Said,
        now: Nanos,
        input: Self::Input,
        does: &mut Does<Self::Output>,
    ) -> Checked;

    /// Returns the fingerprint of the state. Two states with equal fingerprints are one.
    fn fingerprint(&self, printer: &mut Printer, now: Nanos) -> u128;

    /// Returns the facts of the state.
    fn facts(&self, now: Nanos) -> Self::Facts;
}

/// The outputs of a core for one input.
#[derive(Debug)]
pub struct Does<O> {
    /// Outputs, in order.
    pub outputs: Vec<O>,
    /// Items for the application, as text.
    pub reported: Vec<String>,
}

impl<O> Default for Does<O> {
    fn default() -> Self {
        Self {
            outputs: Vec::new(),
            reported: Vec::new(),
        }
    }
}

/// Returns both clocks. UTC only measures and stands still, so that sealed bytes are the same at
/// any time.
pub(super) const fn both_clocks(now: Nanos) -> Now {
    Now {
        monotonic: now,
        utc: BEGIN,
    }
}

/// Returns the time until a timer fires; [`Nanos::MAX`] means never.
pub(super) fn from_now(at: Nanos, now: Nanos) -> Nanos {
    if at == Nanos::MAX { at } else { at.since(now) }
}
