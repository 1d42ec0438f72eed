//! The small worlds, searched to the end within the bounds of a test; `small_worlds --large` has
//! wider ones.

use tickcast_tests::small_worlds::{Plan, search::search, worlds};

/// Searches the world of this name, which must have at least so many states.
fn searched(name: &str, states_min: u64) {
    let plans: Vec<Plan> = worlds(false);
    let plan = plans.iter().find(|plan| plan.name == name).unwrap();
    let found = search(plan, u64::MAX);
    println!(
        "{name}: {} states, {} transitions, depth {}, {} terminal, {} timers to the end, {:.1} s",
        found.states,
        found.transitions,
        found.depth,
        found.terminal,
        found.ticks_to_end,
        found.seconds,
    );
    if let Some(example) = found.counter_example {
        panic!("{name}: {}\n{}", example.what, example.story);
    }
    assert!(found.exhaustive);
    assert!(found.states >= states_min, "{} states only", found.states);
}

#[test]
fn every_interleaving_with_a_loss_and_an_overtaking_is_right() {
    searched("loss", 15_000);
}

#[test]
fn every_interleaving_of_a_common_loss_and_its_lost_repair_is_right() {
    searched("common loss", 120);
}

#[test]
fn every_interleaving_with_a_timer_is_right() {
    searched("timers", 1_300);
}

#[test]
fn every_interleaving_with_a_duplicate_and_an_overtaking_is_right() {
    searched("duplicate", 12_000);
}

#[test]
fn every_interleaving_beyond_a_narrow_window_is_right() {
    searched("narrow window", 2_700);
}

#[test]
fn every_interleaving_with_a_restart_is_right() {
    searched("restart", 8_500);
}

#[test]
fn every_interleaving_with_a_restart_and_disorder_is_right() {
    searched("restart, overtaking", 3_000);
    searched("restart, duplicate", 2_800);
}

#[test]
fn every_interleaving_with_a_late_joiner_is_right() {
    searched("late join, oldest", 9_000);
    searched("late join, live", 2_800);
}

#[test]
fn every_interleaving_with_a_broken_connection_is_right() {
    searched("connection cut", 5_000);
}
