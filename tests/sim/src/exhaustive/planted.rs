//! Proof that small worlds find bugs: each deliberate bug that they can expose must be found in the
//! world named for it, within a stated number of states. The search itself shows that the world is
//! correct without the bug.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use tickcast_reliability::planted::{Bug, plant};

use super::search::search;
use super::{SmallPlan, worlds};

/// A bug, the world that finds it, and the number of states within which it must be found.
struct Hunt {
    bug: Bug,
    world: &'static str,
    states: u64,
}

const fn hunt(bug: Bug, world: &'static str, states: u64) -> Hunt {
    Hunt { bug, world, states }
}

/// The bounds are measured, with a margin for changes in the order of steps. All other bugs need
/// conditions that no small world has (docs/VERIFICATION.md).
const HUNTS: [Hunt; 21] = [
    hunt(Bug::BackwardJumpBelieved, "loss", 100),
    hunt(Bug::RelayByteCovered, "loss", 100),
    hunt(Bug::OldEpochAccepted, "old epoch", 10_000),
    hunt(Bug::StrayEpochBelieved, "restart", 100),
    hunt(Bug::EpochTailForgotten, "restart", 1_000),
    hunt(Bug::NackNeverRetried, "common loss", 120),
    hunt(Bug::MulticastAnswersForever, "common loss", 120),
    hunt(Bug::MulticastRepairUncounted, "common loss", 100),
    hunt(Bug::EndNotRepaired, "loss", 100),
    hunt(Bug::EndEmittedTwice, "loss", 10),
    hunt(Bug::LateJoinRepeatsOne, "loss", 10),
    hunt(Bug::LateJoinSkipsOne, "loss", 10),
    hunt(Bug::LossOneRecordShort, "deadline", 5_000),
    hunt(Bug::WrongCause, "deadline", 5_000),
    hunt(Bug::RecoveryCountedTwice, "loss", 100),
    hunt(Bug::RecoveryToldTwice, "loss", 100),
    hunt(Bug::DuplicateDelivered, "narrow window", 15_000),
    hunt(Bug::ReconnectForgotten, "restart", 100),
    hunt(Bug::ImpostorIgnored, "impostor", 5_000),
    hunt(Bug::UnreadableTaken, "impostor, cut", 100),
    hunt(Bug::DeadlineUnconfirmed, "impostor, deadline", 5_000),
];

/// Returns the number of states after which a bug is found, and the violation, or `Err` with the
/// number of states searched in vain.
fn seek(hunt: &Hunt, plan: &SmallPlan) -> Result<(u64, String), u64> {
    plant(Some(hunt.bug));
    let found = catch_unwind(AssertUnwindSafe(|| search(plan, hunt.states)));
    plant(None);
    let Ok(found) = found else {
        return Ok((0, "panic".into()));
    };
    match found.counter_example {
        Some(example) => Ok((found.states, format!("{}{}", example.story, example.what))),
        None => Err(found.states),
    }
}

/// Hunts all bugs that small worlds can expose, and prints how each is found. Returns exit code 0
/// when all are found, and 1 otherwise.
#[must_use]
pub fn show() -> ExitCode {
    let plans = worlds(false);
    let mut missed = 0;
    for hunt in &HUNTS {
        let (bug, world) = (hunt.bug, hunt.world);
        let plan = plans.iter().find(|plan| plan.name == world);
        match plan.map_or(Err(0), |plan| seek(hunt, plan)) {
            Ok((states, story)) => {
                println!("{bug:?}: found in {world:?} after {states} states\n{story}\n");
            }
            Err(states) => {
                missed += 1;
                println!("{bug:?}: NOT FOUND in {states} states of {world:?}\n");
            }
        }
    }
    println!("{} bugs, {missed} missed", HUNTS.len());
    ExitCode::from(u8::from(missed > 0))
}
