//! The protocol in virtual time: the shipped cores of publisher, repair and subscribers in one
//! process, with a network and a clock that one seed decides. The same seed gives the same event log, to the
//! byte.
//!
//! The folders from top to bottom; each imports only folders that stand below it:
//!
//! 1. `planted`: the deliberate bugs, and the seeds that find them
//! 2. `grid`: the cost of loss, measured
//! 3. `exhaustive`: every order of few events
//! 4. `journal`: flight records of runs, replayed
//! 5. `world`: one run: it drives the actors, lets incidents happen, and runs the checks
//! 6. `report`: the sums of runs
//! 7. `actors`: publishers, subscribers, standbys
//! 8. `checks`: nobody is told anything untrue; nothing comes too soon, too often or too late
//! 9. `feed`: the feed of a channel, and what its publisher gives out
//! 10. `network`: datagrams, bytes and copies on their way
//! 11. `faults`: the plan of a run, and its trouble
//! 12. `trace`: the event log
//! 13. `truth`: what was really published

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
