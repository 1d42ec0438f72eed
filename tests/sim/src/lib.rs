//! The protocol in virtual time: the shipped cores of publisher, repair and subscribers in one
//! process. One seed decides the network and the clock. The same seed gives the same event log,
//! byte for byte.
//!
//! The folders from top to bottom; each imports only folders below it:
//!
//! 1. `planted`: the deliberate bugs, and the seeds that find them
//! 2. `grid`: the measured cost of loss
//! 3. `exhaustive`: every order of a few events
//! 4. `journal`: journals of runs, replayed
//! 5. `world`: one run: it drives the actors, applies incidents, and runs the checks
//! 6. `report`: totals over runs
//! 7. `actors`: publishers, subscribers, standbys
//! 8. `checks`: no event is untrue; no message is sent too soon, too often or too late
//! 9. `feed`: the feed of a channel, and the checks on its publisher's output
//! 10. `network`: datagrams, bytes and copies in flight
//! 11. `faults`: the plan of a run, and its faults
//! 12. `trace`: the event log
//! 13. `truth`: the record of everything published

pub mod actors;
pub mod checks;
pub mod exhaustive;
pub mod faults;
pub mod feed;
pub mod grid;
pub mod journal;
pub mod network;
#[cfg(feature = "planted-bugs")]
pub mod planted;
pub mod report;
pub mod trace;
pub mod truth;
pub mod world;

/// Reads seeds: a range `A..B` that excludes B, or one seed. `None` if the text is neither.
#[must_use]
pub fn seeds_of(text: &str) -> Option<std::ops::Range<u64>> {
    let seeds = match text.split_once("..") {
        Some((from, to)) => from.parse().ok()?..to.parse().ok()?,
        None => text.parse().ok().map(|seed: u64| seed..seed + 1)?,
    };
    (!seeds.is_empty()).then_some(seeds)
}
