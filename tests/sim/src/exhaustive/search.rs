//! Every path through a small world, depth first, without visiting a state twice. From each state,
//! faults are also stopped, and the end must be reached.

use std::collections::HashSet;
use std::time::Instant;

use super::SmallPlan;
use super::core::Checked;
use super::cores::Cores;
use super::counter_example::CounterExample;
use super::ends::Ends;
use super::world::{SmallWorld, Step};

/// The result of a search.
#[derive(Clone, Debug)]
pub struct SearchOutcome {
    /// Name of the world.
    pub name: &'static str,
    /// Number of distinct states; from each the end was reached.
    pub states: u64,
    /// Number of steps taken, including steps into known states.
    pub transitions: u64,
    /// Number of steps of the longest path.
    pub depth: usize,
    /// Maximum number of timers from a state to the end once faults stopped.
    pub ticks_to_end: u32,
    /// Number of states of single cores.
    pub core_states: usize,
    /// Number of runs of a core, one for each of its states and inputs.
    pub core_inputs: usize,
    /// Whether every state within the bounds was visited.
    pub exhaustive: bool,
    /// Duration in seconds.
    pub seconds: f64,
    /// A path to a violation, if there is one.
    pub counter_example: Option<CounterExample>,
}

/// Depth of a path that is a violation, because it indicates a cycle in which no time passes.
const DEPTH_MAX: usize = 1_000;

struct Frame {
    world: SmallWorld,
    steps: Vec<Step>,
    next: usize,
}

struct Search<'p> {
    cores: Cores<'p>,
    seen: HashSet<u128>,
    ends: Ends,
    scratch: Vec<u8>,
}

/// Searches a world, and gives up after `states_max` states.
#[must_use]
pub fn search(plan: &SmallPlan, states_max: u64) -> SearchOutcome {
    let begun = Instant::now();
    let mut outcome = SearchOutcome {
        name: plan.name,
        states: 0,
        transitions: 0,
        depth: 0,
        ticks_to_end: 0,
        core_states: 0,
        core_inputs: 0,
        exhaustive: true,
        seconds: 0.0,
        counter_example: None,
    };
    let mut search = Search {
        cores: Cores::new(plan),
        seen: HashSet::new(),
        ends: Ends::default(),
        scratch: Vec::new(),
    };
    let mut path = Vec::new();
    if let Err(what) = search.explore(states_max, &mut path, &mut outcome) {
        outcome.exhaustive = false;
        outcome.counter_example = Some(CounterExample::of(plan, path, what));
    }
    let Cores {
        receivers,
        publishers,
        ..
    } = &search.cores;
    outcome.core_states = receivers.count() + publishers.count();
    outcome.core_inputs = receivers.inputs() + publishers.inputs();
    outcome.seconds = begun.elapsed().as_secs_f64();
    outcome
}

impl Search<'_> {
    fn explore(
        &mut self,
        states_max: u64,
        path: &mut Vec<Step>,
        outcome: &mut SearchOutcome,
    ) -> Checked {
        let world = SmallWorld::new(&mut self.cores)?;
        self.seen.insert(world.fingerprint(true, &mut self.scratch));
        outcome.states = 1;
        let mut frames = vec![self.frame(world, outcome)?];
        while let Some(frame) = frames.last_mut() {
            let Some(&step) = frame.steps.get(frame.next) else {
                frames.pop();
                path.pop();
                continue;
            };
            frame.next += 1;
            let mut world = frame.world.clone();
            path.push(step);
            outcome.transitions += 1;
            outcome.depth = outcome.depth.max(path.len());
            if path.len() > DEPTH_MAX {
                return Err("so many steps, and no end".into());
            }
            world.apply(&mut self.cores, step)?;
            if !self.seen.insert(world.fingerprint(true, &mut self.scratch)) {
                path.pop();
                continue;
            }
            outcome.states += 1;
            if outcome.states >= states_max {
                outcome.exhaustive = false;
                return Ok(());
            }
            frames.push(self.frame(world, outcome)?);
        }
        Ok(())
    }

    fn frame(&mut self, world: SmallWorld, outcome: &mut SearchOutcome) -> Result<Frame, String> {
        let ticks = self.ends.settle(&mut self.cores, world.clone())?;
        outcome.ticks_to_end = outcome.ticks_to_end.max(ticks);
        Ok(Frame {
            steps: world.steps(&self.cores),
            world,
            next: 0,
        })
    }
}
