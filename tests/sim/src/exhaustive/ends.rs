//! The end of a small world: whether all of it is reached once faults have stopped.

use std::collections::HashMap;

use super::cores::Cores;
use super::world::{SmallWorld, Step};

/// States from which the end is reached once faults have stopped, and the number of timers needed.
#[derive(Debug, Default)]
pub struct Ends {
    /// Keyed by the halves of the fingerprints, which takes less memory.
    known: HashMap<[u64; 2], u8>,
    path: Vec<([u64; 2], u32)>,
    scratch: Vec<u8>,
}

/// Number of steps without reaching the end that is a violation.
const STEPS_MAX: u32 = 100_000;

impl Ends {
    /// Stops all faults and advances time until everything has reached its end. Returns the number
    /// of timers needed.
    ///
    /// # Errors
    /// A receiver or publisher that has not reached its end after the plan's `settle_ticks` timers, or
    /// a violation on the path.
    pub fn settle(&mut self, cores: &mut Cores<'_>, mut world: SmallWorld) -> Result<u32, String> {
        let (mut ticks, ticks_max) = (0, cores.plan.settle_ticks);
        self.path.clear();
        for _ in 0..STEPS_MAX {
            let fingerprint = world.fingerprint(false, &mut self.scratch);
            let halves = [fingerprint as u64, (fingerprint >> 64) as u64];
            if let Some(known) = self.known.get(&halves) {
                return Ok(self.reached(ticks + u32::from(*known)));
            }
            self.path.push((halves, ticks));
            if let Some(step) = world.next_without_faults(cores) {
                world.apply(cores, step)?;
                continue;
            }
            let Some(unfinished) = world.unfinished(cores) else {
                return Ok(self.reached(ticks));
            };
            if ticks >= ticks_max {
                return Err(format!("{ticks} timers after the last fault {unfinished}"));
            }
            ticks += 1;
            world.apply(cores, Step::Tick)?;
        }
        Err("messages without end, and no time passes".into())
    }

    fn reached(&mut self, ticks: u32) -> u32 {
        for (halves, before) in self.path.drain(..) {
            let further = u8::try_from(ticks - before).unwrap_or(u8::MAX);
            self.known.insert(halves, further);
        }
        ticks
    }
}
