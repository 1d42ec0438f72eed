//! Counter-examples: minimal paths through a small world to a violation, described in text.

use std::fmt::Write;

use super::SmallPlan;
use super::cores::Cores;
use super::ends::Ends;
use super::transcript::Identity;
use super::world::{SmallWorld, Step};

/// A minimal path to a violation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CounterExample {
    /// The steps of the path.
    pub path: Vec<Step>,
    /// The violation.
    pub what: String,
    /// The path as text, step by step, with the items that receivers emitted.
    pub story: String,
}

impl CounterExample {
    /// Minimises a path with this violation: removes every step without which there is still a
    /// violation. Each try runs with an empty cache.
    #[must_use]
    pub fn of(plan: &SmallPlan, mut path: Vec<Step>, mut what: String) -> Self {
        if fails(plan, &path).is_none() {
            what = format!("only after other paths, hence an error of the search: {what}");
        }
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
        Self { path, what, story }
    }
}

/// Returns the violation on a path and on its continuation to the end, if any.
fn fails(plan: &SmallPlan, path: &[Step]) -> Option<String> {
    let mut cores = Cores::new(plan);
    let world = SmallWorld::new(&mut cores).and_then(|mut world| {
        for step in path {
            world.apply(&mut cores, *step)?;
        }
        Ok(world)
    });
    let end = world.and_then(|world| Ends::default().settle(&mut cores, world));
    end.err()
}

fn story(plan: &SmallPlan, path: &[Step]) -> Result<String, String> {
    let mut cores = Cores::new(plan);
    let mut world = SmallWorld::new(&mut cores)?;
    world.keep_diary();
    let mut text = String::new();
    for (number, step) in path.iter().enumerate() {
        let result = world.apply(&mut cores, *step);
        let _ = writeln!(text, "{:>4}  {}", number + 1, words(*step));
        for (receiver, reported) in world.read_diary() {
            let _ = writeln!(text, "        receiver {receiver} is told: {reported}");
        }
        if result.is_err() {
            return Ok(text);
        }
    }
    let _ = writeln!(text, "      then nothing is lost any more");
    Ok(text)
}

fn words(step: Step) -> String {
    let datagram = |i: Identity| {
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
        Step::Forge(nth) => format!("an impostor multicasts datagram {nth} of the plan"),
        Step::Drop(r, i) => format!("{} to receiver {r} is lost", datagram(i)),
        Step::Up(r, p) => format!("the next {} message of receiver {r} arrives", path(p)),
        Step::Down(r, p) => format!("the next {} message to receiver {r} arrives", path(p)),
        Step::Cut(r, p) => format!("the {} connection of receiver {r} breaks", path(p)),
        Step::Tick => "time passes until the next timer".into(),
    }
}
