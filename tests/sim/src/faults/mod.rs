//! Everything that a run decides before it begins: its plan, and what goes wrong in it.

pub mod incident;
pub mod kill;
pub mod plan;
pub mod profiles;
pub mod weather;
