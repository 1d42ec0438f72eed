//! The cores of a small world. Each core runs once for each of its states and inputs. The result is
//! cached, however many states of the world share it.
//!
//! A core state is a number, which stands for the inputs that first led to it. When the core itself
//! is needed, these inputs run again from the beginning. Each time, the [`super::fingerprint`] is
//! checked to be the same.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::rc::Rc;

use tickcast_reliability::types::Nanos;

use super::core::{Checked, Core, Does};
use super::fingerprint::Printer;
use super::publisher::{self, SmallPublisher};
use super::receiver::Receiver;
use super::transcript::{Said, TruthId};
use super::{BEGIN, SmallPlan};

/// The number of a state of a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StateId(pub u32);

/// A transition from one state of a core to another.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Move<I> {
    Wait(Nanos),
    Take(I),
}

#[derive(Clone, Copy)]
enum Origin<I> {
    Begin(u64),
    From(StateId, Move<I>),
}

struct State<C: Core> {
    origin: Origin<C::Input>,
    fingerprint: u128,
    facts: C::Facts,
}

type Known<C> = (StateId, Rc<Does<<C as Core>::Output>>);

/// The known states and transitions of one kind of core.
pub struct States<C: Core> {
    states: Vec<State<C>>,
    ids: HashMap<u128, StateId>,
    begun: HashMap<u64, StateId>,
    known: HashMap<(StateId, Move<C::Input>), Known<C>>,
    /// Whether results are cached. If not, the core runs for every input, and all states are
    /// distinct.
    remembers: bool,
    /// The cores that ran last, each with its state and clock.
    at_hand: VecDeque<(StateId, C, Nanos)>,
    printer: Printer,
}

/// Number of cores kept: one for each receiver, and some to go back to.
const AT_HAND_MAX: usize = 8;

impl<C: Core> States<C> {
    fn new(remembers: bool) -> Self {
        Self {
            states: Vec::new(),
            ids: HashMap::new(),
            begun: HashMap::new(),
            known: HashMap::new(),
            remembers,
            at_hand: VecDeque::new(),
            printer: Printer::default(),
        }
    }

    /// Returns the number of states.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.states.len()
    }

    /// Returns the number of cached pairs of state and input.
    #[must_use]
    pub fn inputs(&self) -> usize {
        self.known.len()
    }

    /// Returns the facts of a state.
    #[must_use]
    pub fn facts(&self, of: StateId) -> C::Facts {
        self.states[of.0 as usize].facts.clone()
    }

    /// Returns the fingerprint of a state.
    #[must_use]
    pub fn fingerprint(&self, of: StateId) -> u128 {
        self.states[of.0 as usize].fingerprint
    }

    fn begin(&mut self, plan: &SmallPlan, number: u64) -> Result<StateId, String> {
        if let Some(id) = self.begun.get(&number) {
            return Ok(*id);
        }
        let core = C::begin(plan, number)?;
        let id = self.reached(core, BEGIN, Origin::Begin(number));
        self.begun.insert(number, id);
        Ok(id)
    }

    fn step(
        &mut self,
        (plan, said): (&SmallPlan, &mut Said),
        from: StateId,
        what: Move<C::Input>,
    ) -> Result<Known<C>, String> {
        if let Some((to, does)) = self.known.get(&(from, what)) {
            return Ok((*to, Rc::clone(does)));
        }
        let at_hand = self.at_hand.iter().position(|(at, ..)| *at == from);
        let (mut core, mut now) = match at_hand.and_then(|nth| self.at_hand.remove(nth)) {
            Some((_, core, now)) => (core, now),
            None => self.again(plan, said, from)?,
        };
        let mut does = Does::default();
        apply(&mut core, said, &mut now, what, &mut does)?;
        let to = self.reached(core, now, Origin::From(from, what));
        let does = Rc::new(does);
        if self.remembers {
            self.known.insert((from, what), (to, Rc::clone(&does)));
        }
        Ok((to, does))
    }

    /// Recreates the core in this state by repeating the inputs that first led to it.
    fn again(
        &mut self,
        plan: &SmallPlan,
        said: &mut Said,
        to: StateId,
    ) -> Result<(C, Nanos), String> {
        let (mut moves, mut at) = (Vec::new(), to);
        let number = loop {
            match self.states[at.0 as usize].origin {
                Origin::Begin(number) => break number,
                Origin::From(before, what) => {
                    moves.push(what);
                    at = before;
                }
            }
        };
        let (mut core, mut now) = (C::begin(plan, number)?, BEGIN);
        for what in moves.into_iter().rev() {
            apply(&mut core, said, &mut now, what, &mut Does::default())?;
        }
        let state = &self.states[to.0 as usize];
        if core.fingerprint(&mut self.printer, now) != state.fingerprint {
            return Err("the same inputs lead to two states: something is not in the text".into());
        }
        Ok((core, now))
    }

    fn reached(&mut self, core: C, now: Nanos, origin: Origin<C::Input>) -> StateId {
        let fingerprint = core.fingerprint(&mut self.printer, now);
        let facts = core.facts(now);
        let new = StateId(self.states.len() as u32);
        let id = match self.remembers {
            true => *self.ids.entry(fingerprint).or_insert(new),
            false => new,
        };
        if id == new {
            self.states.push(State {
                origin,
                fingerprint,
                facts,
            });
        }
        self.at_hand.push_back((id, core, now));
        if self.at_hand.len() > AT_HAND_MAX {
            self.at_hand.pop_front();
        }
        id
    }
}

fn apply<C: Core>(
    core: &mut C,
    said: &mut Said,
    now: &mut Nanos,
    what: Move<C::Input>,
    does: &mut Does<C::Output>,
) -> Checked {
    match what {
        Move::Wait(span) => {
            *now = now.after(span);
            Ok(())
        }
        Move::Take(input) => core.take(said, *now, input, does),
    }
}

/// The known states of all cores of a world.
pub struct Cores<'p> {
    /// Plan of the world.
    pub plan: &'p SmallPlan,
    /// Datagrams and messages of the world.
    pub said: Said,
    /// States of the receivers.
    pub receivers: States<Receiver>,
    /// States of the publishers of all epochs.
    pub publishers: States<SmallPublisher>,
}

impl<'p> Cores<'p> {
    /// Returns an empty cache.
    #[must_use]
    pub fn new(plan: &'p SmallPlan) -> Self {
        Self::with(plan, true)
    }

    /// Returns a cache that keeps nothing: each core runs for every input.
    #[must_use]
    pub fn forgetful(plan: &'p SmallPlan) -> Self {
        Self::with(plan, false)
    }

    fn with(plan: &'p SmallPlan, remembers: bool) -> Self {
        Self {
            plan,
            said: Said::default(),
            receivers: States::new(remembers),
            publishers: States::new(remembers),
        }
    }

    /// Returns the initial state of a receiver.
    ///
    /// # Errors
    /// Settings that a part of the core refuses.
    pub fn receiver(&mut self, number: usize) -> Result<StateId, String> {
        self.receivers.begin(self.plan, number as u64)
    }

    /// Returns the initial state of the publisher of this epoch.
    ///
    /// # Errors
    /// Settings that a part of the core refuses.
    pub fn publisher(&mut self, epoch: u64) -> Result<StateId, String> {
        self.publishers.begin(self.plan, epoch)
    }

    /// Returns the number of the truth after this many datagrams of each epoch were published.
    ///
    /// # Errors
    /// A datagram that the publisher's core refuses.
    pub fn truth_after(&mut self, published: &[usize]) -> Result<TruthId, String> {
        let make = || publisher::truth_after(self.plan, published);
        self.said.truth_after(published, make)
    }

    /// Passes an input to a receiver. Returns the next state and the outputs.
    ///
    /// # Errors
    /// A property that does not hold.
    pub fn receive(
        &mut self,
        at: StateId,
        input: <Receiver as Core>::Input,
    ) -> Result<Known<Receiver>, String> {
        let with = (self.plan, &mut self.said);
        self.receivers.step(with, at, Move::Take(input))
    }

    /// Passes an input to a publisher. Returns the next state and the outputs.
    ///
    /// # Errors
    /// A property that does not hold.
    pub fn serve(
        &mut self,
        at: StateId,
        input: <SmallPublisher as Core>::Input,
    ) -> Result<Known<SmallPublisher>, String> {
        let with = (self.plan, &mut self.said);
        self.publishers.step(with, at, Move::Take(input))
    }

    /// Advances the clock of a receiver and returns its next state.
    ///
    /// # Errors
    /// The errors of [`Cores::receive`].
    pub fn receiver_waits(&mut self, at: StateId, span: Nanos) -> Result<StateId, String> {
        let with = (self.plan, &mut self.said);
        let (to, _) = self.receivers.step(with, at, Move::Wait(span))?;
        Ok(to)
    }

    /// Advances the clock of a publisher and returns its next state.
    ///
    /// # Errors
    /// The errors of [`Cores::serve`].
    pub fn publisher_waits(&mut self, at: StateId, span: Nanos) -> Result<StateId, String> {
        let with = (self.plan, &mut self.said);
        let (to, _) = self.publishers.step(with, at, Move::Wait(span))?;
        Ok(to)
    }
}

#[cfg(test)]
mod tests {
    use super::super::world::SmallWorld;
    use super::super::worlds;
    use super::*;

    #[test]
    fn omitted_fingerprint_fields_all_occur() {
        let plans = worlds(false);
        let plan = plans.iter().find(|plan| plan.name == "duplicate").unwrap();
        let mut cores = Cores::new(plan);
        for begin in 0..50 {
            let mut world = SmallWorld::new(&mut cores).unwrap();
            for nth in begin.. {
                let steps = world.steps(&cores);
                let Some(step) = steps.get(nth % steps.len().max(1)) else {
                    break;
                };
                assert!(world.apply(&mut cores, *step).unwrap());
            }
        }
        let (receivers, publishers) = (&cores.receivers.printer, &cores.publishers.printer);
        assert_eq!(receivers.never_met(publishers), []);
    }
}
