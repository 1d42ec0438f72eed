//! The small worlds, searched to the end within the bounds of a test; `exhaustive --large` has
//! wider ones.

use tickcast_sim::exhaustive::cores::Cores;
use tickcast_sim::exhaustive::search::{Ends, search};
use tickcast_sim::exhaustive::world::World;
use tickcast_sim::exhaustive::{Plan, worlds};

/// Searches the world of this name, which must have at least so many states.
fn searched(name: &str, states_min: u64) {
    let plans: Vec<Plan> = worlds(false);
    let plan = plans.iter().find(|plan| plan.name == name).unwrap();
    let found = search(plan, u64::MAX);
    println!(
        "{name}: {} states, {} transitions, depth {}, {} timers to the end, {:.1} s",
        found.states, found.transitions, found.depth, found.ticks_to_end, found.seconds,
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
fn interleavings_of_lost_common_repair_are_right() {
    searched("common loss", 120);
}

#[test]
fn every_interleaving_with_a_timer_is_right() {
    searched("timers", 1_300);
}

#[test]
fn interleavings_with_duplicate_and_overtake_are_right() {
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
fn interleavings_of_late_old_datagrams_are_right() {
    searched("old epoch", 14_000);
}

#[test]
fn every_interleaving_with_a_deadline_is_right() {
    searched("deadline", 8_500);
}

#[test]
fn every_interleaving_with_a_broken_connection_is_right() {
    searched("connection cut", 5_000);
}

#[test]
fn interleavings_with_late_heartbeat_are_right() {
    searched("old heartbeats", 1_000_000);
}

/// The search lets a core run once for each of its states and inputs, and remembers what it did
/// and what it was then: on any path that is what a core does and is that runs for every input.
#[test]
fn what_is_remembered_of_a_core_is_what_it_does_when_it_runs() {
    let mut random = 1_u64;
    for mut plan in worlds(true) {
        plan.faults.ticks += 2;
        let mut remembering = Cores::new(&plan);
        for _ in 0..30 {
            let mut running = Cores::forgetful(&plan);
            let mut told = World::new(&mut remembering).unwrap();
            let mut due = World::new(&mut running).unwrap();
            told.keep_diary();
            due.keep_diary();
            loop {
                let steps = due.steps(&running);
                assert_eq!(told.steps(&remembering), steps, "{}", plan.name);
                if steps.is_empty() {
                    break;
                }
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                let step = steps[(random >> 33) as usize % steps.len()];
                assert!(told.apply(&mut remembering, step).unwrap());
                assert!(due.apply(&mut running, step).unwrap());
                assert_eq!(told.read_diary(), due.read_diary(), "{}", plan.name);
                let of_all = due.core_fingerprints(&running);
                assert_eq!(
                    told.core_fingerprints(&remembering),
                    of_all,
                    "{}",
                    plan.name
                );
                assert_eq!(told.unfinished(&remembering), due.unfinished(&running));
            }
            let ticks = Ends::default().settle(&mut running, due).unwrap();
            assert_eq!(Ends::default().settle(&mut remembering, told), Ok(ticks));
        }
    }
}
