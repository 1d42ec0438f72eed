//! Every path through a small world, depth first: no state twice, and back by executing the path
//! again from the start.

use std::collections::HashSet;
use std::fmt::Write;
use std::time::Instant;

use super::Plan;
use super::fingerprint::Printer;
use super::world::{Step, World};

/// What a search found.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The world.
    pub name: &'static str,
    /// States that differ.
    pub states: u64,
    /// Steps taken, also into states that were known.
    pub transitions: u64,
    /// States in which only time could pass; from each the end was reached.
    pub terminal: u64,
    /// Steps of the longest path.
    pub depth: usize,
    /// The most timers that it took from such a state to the end.
    pub ticks_to_end: u32,
    /// Whether every state within the bounds was seen.
    pub exhaustive: bool,
    /// Seconds it took.
    pub seconds: f64,
    /// A path to what must not be, if there is one.
    pub counter_example: Option<CounterExample>,
}

/// A path to what must not be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CounterExample {
    /// The steps.
    pub path: Vec<Step>,
    /// What is wrong.
    pub what: String,
    /// The path, step by step, with what receivers were told.
    pub story: String,
}

/// A path without time passing that is too long: something goes round in circles.
const DEPTH_MAX: usize = 1_000;

struct Frame {
    steps: Vec<Step>,
    next: usize,
    parts: Vec<u128>,
}

/// Searches a world; gives up after `states_max` states.
#[must_use]
pub fn search(plan: &Plan, states_max: u64) -> Outcome {
    let begun = Instant::now();
    let mut outcome = Outcome {
        name: plan.name,
        states: 0,
        transitions: 0,
        terminal: 0,
        depth: 0,
        ticks_to_end: 0,
        exhaustive: true,
        seconds: 0.0,
        counter_example: None,
    };
    let mut path = Vec::new();
    if let Err(what) = explore(plan, states_max, &mut path, &mut outcome) {
        outcome.exhaustive = false;
        outcome.counter_example = Some(shortened(plan, path, what));
    }
    outcome.seconds = begun.elapsed().as_secs_f64();
    outcome
}

fn explore(
    plan: &Plan,
    states_max: u64,
    path: &mut Vec<Step>,
    outcome: &mut Outcome,
) -> Result<(), String> {
    let mut printer = Printer::default();
    let mut seen = HashSet::new();
    let mut world = World::new(plan)?;
    let mut parts = Vec::new();
    seen.insert(world.fingerprint(&mut printer, &mut parts));
    let mut frames = vec![Frame {
        steps: world.steps(),
        next: 0,
        parts,
    }];
    // The state on top of `frames`, if it is at hand.
    let mut at_hand = Some(world);
    outcome.states = 1;
    while let Some(frame) = frames.last_mut() {
        let Some(&step) = frame.steps.get(frame.next) else {
            frames.pop();
            path.pop();
            at_hand = None;
            continue;
        };
        frame.next += 1;
        let mut world = match at_hand.take() {
            Some(world) => world,
            None => {
                let mut world = replay(plan, path)?;
                // Nothing of it changed since its parts were printed.
                world.unchanged();
                world
            }
        };
        path.push(step);
        outcome.transitions += 1;
        outcome.depth = outcome.depth.max(path.len());
        if path.len() > DEPTH_MAX {
            return Err("so many steps, and no end".into());
        }
        world.apply(step)?;
        let mut parts = frame.parts.clone();
        if !seen.insert(world.fingerprint(&mut printer, &mut parts)) {
            path.pop();
            continue;
        }
        outcome.states += 1;
        if outcome.states >= states_max {
            outcome.exhaustive = false;
            return Ok(());
        }
        let steps = world.steps();
        let only_time = steps.is_empty();
        frames.push(Frame {
            steps,
            next: 0,
            parts,
        });
        if only_time {
            outcome.terminal += 1;
            let ticks = settle(&mut world, plan)?;
            outcome.ticks_to_end = outcome.ticks_to_end.max(ticks);
        } else {
            at_hand = Some(world);
        }
    }
    Ok(())
}

/// Lets faults stop, and time pass until all is at its end; tells how many timers that took.
fn settle(world: &mut World<'_>, plan: &Plan) -> Result<u32, String> {
    let mut ticks = 0;
    for _ in 0..100_000 {
        if let Some(step) = world.next_without_faults() {
            world.apply(step)?;
            continue;
        }
        let Some(unfinished) = world.unfinished() else {
            return Ok(ticks);
        };
        if ticks >= plan.settle_ticks {
            return Err(format!("{ticks} timers after the last fault {unfinished}"));
        }
        ticks += 1;
        world.apply(Step::Tick)?;
    }
    Err("messages without end, and no time passes".into())
}

fn replay<'p>(plan: &'p Plan, path: &[Step]) -> Result<World<'p>, String> {
    let mut world = World::new(plan)?;
    for step in path {
        world.apply(*step)?;
    }
    Ok(world)
}

/// What goes wrong on a path, with the end that follows it, if anything.
fn fails(plan: &Plan, path: &[Step]) -> Option<String> {
    match replay(plan, path) {
        Ok(mut world) => settle(&mut world, plan).err(),
        Err(what) => Some(what),
    }
}

/// Leaves out every step that is not needed for something to go wrong.
fn shortened(plan: &Plan, mut path: Vec<Step>, what: String) -> CounterExample {
    let mut what = what;
    let mut from = path.len();
    while from > 0 {
        from -= 1;
        let mut shorter = path.clone();
        shorter.remove(from);
        if let Some(still) = fails(plan, &shorter) {
            (path, what) = (shorter, still);
            from = path.len().min(from + 1);
        }
    }
    let story = story(plan, &path).unwrap_or_default();
    CounterExample { path, what, story }
}

fn story(plan: &Plan, path: &[Step]) -> Result<String, String> {
    let mut world = World::new(plan)?;
    world.keep_diary();
    let mut text = String::new();
    for (number, step) in path.iter().enumerate() {
        let result = world.apply(*step);
        let _ = writeln!(text, "{:>4}  {}", number + 1, words(*step));
        for (receiver, told) in world.read_diary() {
            let _ = writeln!(text, "        receiver {receiver} is told: {told}");
        }
        if result.is_err() {
            return Ok(text);
        }
    }
    let _ = writeln!(text, "      then nothing is lost any more");
    Ok(text)
}

fn words(step: Step) -> String {
    let datagram = |i: super::receiver::Identity| {
        let kind = match i.kind {
            1 => "data",
            2 => "event",
            3 => "heartbeat",
            4 => "END",
            _ => "datagram",
        };
        let again = if i.relay == 0 { "" } else { " (sent again)" };
        format!("{kind} {}.{}{again}", i.epoch, i.sequence)
    };
    let path = |path: usize| ["repair", "replay"][path.min(1)];
    match step {
        Step::Publish => "the next datagram is published".into(),
        Step::Restart => "the publisher restarts with a new epoch".into(),
        Step::Join(r) => format!("receiver {r} joins"),
        Step::Arrive(r, i) => format!("{} arrives at receiver {r}", datagram(i)),
        Step::ArriveTwice(r, i) => {
            format!(
                "{} arrives at receiver {r}, a copy is on its way",
                datagram(i)
            )
        }
        Step::Drop(r, i) => format!("{} to receiver {r} is lost", datagram(i)),
        Step::Up(r, p) => format!("the next {} message of receiver {r} arrives", path(p)),
        Step::Down(r, p) => format!("the next {} message to receiver {r} arrives", path(p)),
        Step::Cut(r, p) => format!("the {} connection of receiver {r} breaks", path(p)),
        Step::Tick => "time passes until the next timer".into(),
    }
}
