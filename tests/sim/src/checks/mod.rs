//! Checks on one channel or one connection, run after every step.

pub mod budgets;
pub mod counters;
pub mod delivery;
pub(crate) mod epoch_lineage;
pub mod first_nack;
pub mod impostor;
pub mod join;
pub mod ladder;
pub mod loss_reason;
pub(crate) mod multicast_repair;
pub mod nack_rate;
pub mod nack_validity;
pub mod refusals;
pub mod silence;
pub mod tamper;
