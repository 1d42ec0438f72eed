//! Resources of the host: their use in steady state, and their absence.

mod starved;
mod steady;
mod throttled;
