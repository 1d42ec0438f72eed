//! Trouble of one subscriber, and the others that must not notice it.

mod banning;
mod misfortune;
mod undisturbed;
mod witnesses;
