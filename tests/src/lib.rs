//! The protocol in virtual time: the shipped cores of publisher, repair and subscribers in one
//! process, with a network and a clock that one seed decides. Same seed, same event log, to the
//! byte.
//!
//! [`profiles`] says what goes wrong, [`world`] lets it happen; [`stream`], [`beginning`], [`beside`],
//! [`asked`], [`pace`], [`rungs`], [`meters`], [`watch`], [`refusals`], [`justified`] and [`balance`]
//! check after every step that nobody was told anything untrue, and that nothing comes too soon, too
//! often or too late; [`report`] adds up. [`small_worlds`] tries every order of few events instead, and
//! [`grid`] measures what loss costs.

pub mod asked;
pub mod balance;
pub mod beginning;
pub mod beside;
pub mod both_sides;
pub mod comparing;
mod connections;
mod cursors;
mod driving;
mod ending;
pub mod faults;
pub mod feed;
pub mod grid;
mod inboxes;
pub mod incident;
mod incidents;
mod interruption;
pub mod justified;
pub mod kills;
mod line;
pub mod meters;
mod multicast;
pub mod pace;
pub mod pipe;
pub mod plan;
#[cfg(feature = "planted-bugs")]
pub mod planted;
pub mod profiles;
pub mod publisher;
mod queue;
pub mod quiet;
mod reads;
pub mod refusals;
pub mod replaying;
mod replies;
pub mod report;
pub mod rungs;
mod serving;
pub mod small_worlds;
pub mod soon;
pub mod staged;
mod standby;
pub mod stream;
pub mod subscriber;
pub mod tamper;
pub mod trace;
pub mod truth;
pub mod watch;
pub mod world;
