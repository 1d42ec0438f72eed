//! Faults of one subscriber, which the others must not notice.

mod banning;
mod misfortune;
mod undisturbed;
mod witnesses;
