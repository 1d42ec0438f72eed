//! AF_XDP over pairs of Ethernet devices, each test in a network namespace of its own thread. Where the
//! system permits no namespace, or has no AF_XDP, a test says so and passes.

#![allow(
    unreachable_pub,
    reason = "what the modules of one test share is public to it"
)]

mod frames;
mod network;
mod receiving;
mod refusals;
mod steady;
mod support;
