//! Proof that the simulation of lines finds bugs in the arbiter: each must be found within a number of
//! seeds.

use std::process::ExitCode;

use tickcast_feeds::planted::{ArbiterBug, plant};

use crate::run::run;

/// Seeds, from 0 on, within which each bug must be found; none of them may fail without a bug.
const SEEDS: u64 = 400;

/// Every bug.
const BUGS: [ArbiterBug; 24] = [
    ArbiterBug::EarlyDropped,
    ArbiterBug::ReleasedByArrival,
    ArbiterBug::OverlapDelivered,
    ArbiterBug::OverlapDropped,
    ArbiterBug::GapOneShort,
    ArbiterBug::GapUnreported,
    ArbiterBug::JoinIsGap,
    ArbiterBug::JoinedAtOnce,
    ArbiterBug::LateIsDuplicate,
    ArbiterBug::OneLineSuffices,
    ArbiterBug::WaitsForever,
    ArbiterBug::SilentLineAwaited,
    ArbiterBug::StopUnreported,
    ArbiterBug::HeartbeatIgnored,
    ArbiterBug::SessionBelieved,
    ArbiterBug::SessionPacketsDropped,
    ArbiterBug::PreviousForgotten,
    ArbiterBug::JumpBelieved,
    ArbiterBug::FarHeartbeatBelieved,
    ArbiterBug::HoldUnbounded,
    ArbiterBug::EndForgets,
    ArbiterBug::ReorderedIsMissing,
    ArbiterBug::DuplicateIsFirst,
    ArbiterBug::ResumeSwallows,
];

/// Hunts every bug and prints a table. Exit codes: 0 all found and no false alarm, 1 otherwise.
pub(crate) fn show() -> ExitCode {
    let mut missed = 0;
    println!("| bug | found at seed | what the simulation says |");
    println!("|---|---|---|");
    for bug in BUGS {
        plant(Some(bug));
        match first_failure() {
            Some((seed, what)) => {
                let what: String = what.replace('|', "/").chars().take(110).collect();
                println!("| {bug:?} | {seed} | {what} |");
            }
            None => {
                missed += 1;
                println!("| {bug:?} | NOT FOUND | |");
            }
        }
    }
    plant(None);
    let alarm = first_failure();
    if let Some((seed, what)) = &alarm {
        println!("seed {seed} fails without a bug: {what}");
    }
    println!("{} bugs of the arbiter, {missed} missed", BUGS.len());
    ExitCode::from(u8::from(missed > 0 || alarm.is_some()))
}

fn first_failure() -> Option<(u64, String)> {
    (0..SEEDS).find_map(|seed| Some((seed, run(seed).err()?)))
}
