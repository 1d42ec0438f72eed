//! Proof that the simulation finds bugs: each deliberate one must be found within a stated number
//! of seeds of one profile, and none of these seeds may fail without it.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use tickcast_reliability::planted::{Bug, plant, tear};

use crate::faults::plan::Plan;
use crate::trace::Trace;
use crate::world::run;

/// A bug, the profile that finds it, and the number of seeds, from 0 on, within which it must be
/// found.
struct Hunt {
    bug: Bug,
    profile: &'static str,
    seeds: u64,
}

const fn hunt(bug: Bug, profile: &'static str, seeds: u64) -> Hunt {
    Hunt {
        bug,
        profile,
        seeds,
    }
}

/// Every bug. The bounds are measured, with a margin for changes in how seeds are interpreted.
const HUNTS: [Hunt; 80] = [
    hunt(Bug::TornReadDelivered, "lapped-mid-copy", 20),
    hunt(Bug::LappedReadDelivered, "lapped", 60),
    hunt(Bug::ReadTokensIgnored, "tight-budget", 40),
    hunt(Bug::WindowOverfilled, "only-nacks", 12),
    hunt(Bug::BackwardJumpBelieved, "calm", 3),
    hunt(Bug::JumpBelieved, "forger", 5),
    hunt(Bug::ImpostorIgnored, "impostor", 60),
    hunt(Bug::UnreadableTaken, "impostor", 10),
    hunt(Bug::TagIgnored, "impostor-keys", 5),
    hunt(Bug::CrcIgnored, "corrupt", 5),
    hunt(Bug::RelayByteCovered, "iid", 3),
    hunt(Bug::RelayByteInSlot, "iid", 3),
    hunt(Bug::TornSlotAnswered, "iid", 5),
    hunt(Bug::WrongSlotAnswered, "lapped", 10),
    hunt(Bug::OldEpochAccepted, "two-publishers", 10),
    hunt(Bug::StrayEpochBelieved, "restart", 5),
    hunt(Bug::ZombieWelcomed, "two-publishers", 10),
    hunt(Bug::EpochTailForgotten, "restart", 5),
    hunt(Bug::HeartbeatForgotten, "calm", 3),
    hunt(Bug::HeartbeatSaysSealed, "fan-out-stall", 5),
    hunt(Bug::TimerDeadAfterPause, "pause", 5),
    hunt(Bug::RetainedGoesBack, "calm", 3),
    hunt(Bug::NackNeverRetried, "only-repairs", 12),
    hunt(Bug::NackStorm, "iid", 3),
    hunt(Bug::RungNeverFallsBack, "nack-link-breaks", 5),
    hunt(Bug::AnsweredElsewhere, "nack-link-breaks", 3),
    hunt(Bug::LineSkewIgnored, "one-line", 5),
    hunt(Bug::RefusalIgnored, "lapped", 5),
    hunt(Bug::RefusedWithoutReason, "iid", 3),
    hunt(Bug::MulticastAnswersForever, "join-storm", 20),
    hunt(Bug::UnicastAnswersOthers, "common", 5),
    hunt(Bug::MulticastForOne, "iid", 5),
    hunt(Bug::NextAnsweredAsWell, "tight-budget", 250),
    hunt(Bug::StatusOfAShorterRing, "calm", 3),
    hunt(Bug::HeartbeatsNeverRarer, "calm", 3),
    hunt(Bug::ScoutsRead, "join-storm", 20),
    hunt(Bug::MulticastRepairUncounted, "join-storm", 5),
    hunt(Bug::AbandonedUncounted, "tight-budget", 20),
    hunt(Bug::BudgetIgnored, "tight-budget", 20),
    hunt(Bug::SubscriberBudgetForgotten, "tight-budget", 20),
    hunt(Bug::JoinersUncharged, "tight-budget", 20),
    hunt(Bug::EndNotRepaired, "tight-budget", 20),
    hunt(Bug::EndUnchecked, "forger", 3),
    hunt(Bug::EndedHeartbeatBelieved, "forger", 3),
    hunt(Bug::EndEmittedTwice, "calm", 3),
    hunt(Bug::LateJoinRepeatsOne, "calm", 3),
    hunt(Bug::LateJoinSkipsOne, "calm", 3),
    hunt(Bug::BeginsFurtherOn, "calm", 3),
    hunt(Bug::LiveToldTooSoon, "calm", 3),
    hunt(Bug::LossOneRecordShort, "stall", 5),
    hunt(Bug::SecondLossSwallowed, "lapped", 5),
    hunt(Bug::WrongCause, "join-storm", 20),
    hunt(Bug::LostAndDelivered, "reorder-unbounded", 20),
    hunt(Bug::RecoveryCountedTwice, "iid", 3),
    hunt(Bug::RecoveryToldTwice, "iid", 3),
    hunt(Bug::DuplicateDelivered, "reorder", 20),
    hunt(Bug::SecondLineDelivered, "reorder", 40),
    hunt(Bug::ProgressAhead, "calm", 3),
    hunt(Bug::StatusOvertakesSocket, "busy-reader", 20),
    hunt(Bug::DeadlineForgotten, "join-storm", 20),
    hunt(Bug::DeadlineStretched, "tight-budget", 40),
    hunt(Bug::DeadlineUnconfirmed, "impostor-deadline", 20),
    hunt(Bug::DeadlineNotAsked, "tight-budget", 40),
    hunt(Bug::DeadlineNotLifted, "swizzle", 40),
    hunt(Bug::FirstQuestionLate, "iid", 5),
    hunt(Bug::DeadNeverTold, "gone", 5),
    hunt(Bug::ReconnectForgotten, "restart", 5),
    hunt(Bug::RetryTooSlow, "only-repairs", 20),
    hunt(Bug::BackOffForgotten, "only-repairs", 20),
    hunt(Bug::RejoinForgotten, "membership", 20),
    hunt(Bug::HoldOffIgnored, "join-storm", 20),
    hunt(Bug::MulticastWithoutCap, "only-repairs", 20),
    hunt(Bug::StatusWithoutLimit, "two-publishers", 20),
    hunt(Bug::DecidingCopyIgnored, "fencing", 20),
    hunt(Bug::RecoveredNotEmitted, "pause", 20),
    hunt(Bug::TornCursorBelieved, "calm", 20),
    hunt(Bug::RelayByteMirrored, "promotion", 10),
    hunt(Bug::TornWriteTaken, "promotion", 10),
    hunt(Bug::RepeatedRecordsDelivered, "promotion", 20),
    hunt(Bug::HistoryOfOldEpochForgotten, "promotion", 20),
];

/// Returns all bugs.
pub fn bugs() -> impl Iterator<Item = Bug> {
    HUNTS.iter().map(|hunt| hunt.bug)
}

/// One in this many repair copies is torn: the writer laps the ring during the copy.
const TORN_EVERY: u32 = 50;

/// The seed that found a bug, and the violation.
struct Found {
    seed: u64,
    what: String,
}

/// Returns the first line of the violation in this run, if any.
fn violation(seed: u64, profile: &'static str, bug: Option<Bug>) -> Option<String> {
    plant(bug);
    tear(TORN_EVERY);
    let plan = Plan::of(seed, Some(profile), None);
    let result = catch_unwind(AssertUnwindSafe(|| run(plan, Trace::default(), None)));
    plant(None);
    tear(0);
    let what = match result {
        Ok(outcome) => outcome.violation?,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
            format!("panic: {}", text.unwrap_or_default())
        }
    };
    Some(what.lines().next().unwrap_or_default().to_owned())
}

fn seek(hunt: &Hunt) -> Option<Found> {
    (0..hunt.seeds).find_map(|seed| {
        let what = violation(seed, hunt.profile, Some(hunt.bug))?;
        Some(Found { seed, what })
    })
}

/// Runs `work` for every index below `count` on all cores. Returns the results in order.
fn on_all_cores<T: Send>(count: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(BTreeMap::new());
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Relaxed);
                    if index >= count {
                        break;
                    }
                    let result = work(index);
                    let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
                    done.insert(index, result);
                }
            });
        }
    });
    let done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.into_values().collect()
}

/// Returns the seeds of the hunted profiles that fail without any bug.
fn false_alarms(hunts: &[&Hunt]) -> Vec<(&'static str, u64, String)> {
    let mut most: BTreeMap<&'static str, u64> = BTreeMap::new();
    for hunt in hunts {
        let seeds = most.entry(hunt.profile).or_default();
        *seeds = hunt.seeds.max(*seeds);
    }
    let runs: Vec<(&'static str, u64)> = (most.into_iter())
        .flat_map(|(profile, seeds)| (0..seeds).map(move |seed| (profile, seed)))
        .collect();
    let results = on_all_cores(runs.len(), |at| violation(runs[at].1, runs[at].0, None));
    let alarms = runs.into_iter().zip(results);
    alarms
        .filter_map(|((profile, seed), what)| Some((profile, seed, what?)))
        .collect()
}

/// Hunts one bug, or `all`, and prints the result. Returns exit code 0 when all bugs were found
/// without a false alarm, 1 otherwise, and 2 when there is no such bug.
#[must_use]
pub fn show(which: &str) -> ExitCode {
    let wanted = |hunt: &&Hunt| which == "all" || format!("{:?}", hunt.bug) == which;
    let hunts: Vec<&Hunt> = HUNTS.iter().filter(wanted).collect();
    if hunts.is_empty() {
        let names: Vec<String> = HUNTS.iter().map(|h| format!("{:?}", h.bug)).collect();
        eprintln!("there is no bug {which}; there are {}", names.join(", "));
        return ExitCode::from(2);
    }
    let began = Instant::now();
    // A bug that ends in a panic is found as well; the table shows the panic's text.
    std::panic::set_hook(Box::new(|_| {}));
    let results = on_all_cores(hunts.len(), |at| seek(hunts[at]));
    let alarms = false_alarms(&hunts);
    let mut missed = 0;
    println!("| bug | profile | found at seed | seeds allowed | what the simulation says |");
    println!("|---|---|---|---|---|");
    for (hunt, result) in hunts.iter().zip(results) {
        let (seed, what) = match result {
            Some(found) => (found.seed.to_string(), found.what),
            None => {
                missed += 1;
                ("NOT FOUND".to_owned(), String::new())
            }
        };
        let what: String = what.replace('|', "/").chars().take(110).collect();
        println!(
            "| {:?} | {} | {seed} | {} | {what} |",
            hunt.bug, hunt.profile, hunt.seeds
        );
    }
    for (profile, seed, what) in &alarms {
        println!("seed {seed} of {profile} fails without a bug: {what}");
        println!(
            "replay: cargo run -p tickcast-sim --release --features planted-bugs --bin simulate -- --seeds {seed} --profile {profile} --tear-every {TORN_EVERY}"
        );
    }
    println!(
        "{} bugs, {missed} missed, {} false alarms, {:.1} s",
        hunts.len(),
        alarms.len(),
        began.elapsed().as_secs_f64()
    );
    ExitCode::from(u8::from(missed > 0 || !alarms.is_empty()))
}
