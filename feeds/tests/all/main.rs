//! Decoders, captures and the simulated market, from outside.

mod captures;
mod common;
mod damage;
mod iex;
mod intake;
mod itch;
mod lines;
mod simulator;
