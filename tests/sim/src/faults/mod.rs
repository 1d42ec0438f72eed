//! Everything that is decided before a run begins: its plan and its faults.

pub mod forged;
pub mod incident;
pub mod kill;
pub mod plan;
pub mod profiles;
pub mod weather;
