//! The cores of a small world. Each runs once for each of its own states and inputs: what it does
//! then is known from there on, however many states of the world that happens in.
//!
//! A state of a core is a number, and stands for the inputs that first led to it: who needs the
//! core itself lets it run again from its beginning. That this leads to the same state, to the
//! [`super::fingerprint`], is checked each time.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::rc::Rc;

use tickcast_reliability::types::Nanos;

use super::fingerprint::Printer;
use super::publisher::Publisher;
use super::receiver::Receiver;
use super::transcript::Said;
use super::world::Checked;
use super::{BEGIN, Plan};

/// A core with the driver that does for it what it wants done.
pub trait Core: Sized {
    /// What may happen to it.
    type Input: Copy + Eq + Hash;
    /// What it has others do.
    type Output;
    /// What the world must know of its state.
    type Facts: Copy;

    /// The one of this number, at the time that all begin with.
    ///
    /// # Errors
    /// What its parts refuse.
    fn begin(plan: &Plan, number: u64) -> Result<Self, String>;

    /// Takes an input, and tells what comes of it.
    ///
    /// # Errors
    /// The property that does not hold.
    fn take(
        &mut self,
        said: &mut Said,
        now: Nanos,
        input: Self::Input,
        does: &mut Does<Self::Output>,
    ) -> Checked;

    /// Two states with equal ones are one.
    fn fingerprint(&self, printer: &mut Printer, now: Nanos) -> u128;

    /// Of its state.
    fn facts(&self, now: Nanos) -> Self::Facts;
}

/// What a core does upon an input.
#[derive(Debug)]
pub struct Does<O> {
    /// What it has others do, in this order.
    pub outputs: Vec<O>,
    /// What its application is told, in words.
    pub told: Vec<String>,
}

impl<O> Default for Does<O> {
    fn default() -> Self {
        Self {
            outputs: Vec::new(),
            told: Vec::new(),
        }
    }
}

/// The number of a state of a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StateId(pub u32);

/// What leads from one state of a core to another.
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

/// All that is known of one kind of core.
pub struct States<C: Core> {
    states: Vec<State<C>>,
    ids: HashMap<u128, StateId>,
    begun: HashMap<u64, StateId>,
    known: HashMap<(StateId, Move<C::Input>), Known<C>>,
    /// Whether it remembers: if not, the core runs for every input, and no two states are one.
    remembers: bool,
    /// Those that ran last, each with its clock.
    at_hand: VecDeque<(StateId, C, Nanos)>,
    printer: Printer,
}

/// One for each receiver, and some to go back to.
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

    /// How many there are.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.states.len()
    }

    /// How many inputs to them were tried.
    #[must_use]
    pub fn inputs(&self) -> usize {
        self.known.len()
    }

    /// Of a state.
    #[must_use]
    pub fn facts(&self, of: StateId) -> C::Facts {
        self.states[of.0 as usize].facts
    }

    /// Of a state.
    #[must_use]
    pub fn fingerprint(&self, of: StateId) -> u128 {
        self.states[of.0 as usize].fingerprint
    }

    fn begin(&mut self, plan: &Plan, number: u64) -> Result<StateId, String> {
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
        (plan, said): (&Plan, &mut Said),
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

    /// The core in this state, by the way that led there first.
    fn again(&mut self, plan: &Plan, said: &mut Said, to: StateId) -> Result<(C, Nanos), String> {
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

/// All that is known of the cores of a world.
pub struct Cores<'p> {
    /// The world.
    pub plan: &'p Plan,
    /// What is said in it.
    pub said: Said,
    /// Of its receivers.
    pub receivers: States<Receiver>,
    /// Of its publishers, of each epoch.
    pub publishers: States<Publisher>,
}

impl<'p> Cores<'p> {
    /// Nothing is known yet.
    #[must_use]
    pub fn new(plan: &'p Plan) -> Self {
        Self::with(plan, true)
    }

    /// Nothing is ever known: each core runs for every input, one after the other.
    #[must_use]
    pub fn forgetful(plan: &'p Plan) -> Self {
        Self::with(plan, false)
    }

    fn with(plan: &'p Plan, remembers: bool) -> Self {
        Self {
            plan,
            said: Said::default(),
            receivers: States::new(remembers),
            publishers: States::new(remembers),
        }
    }

    /// A receiver at its beginning.
    ///
    /// # Errors
    /// What its parts refuse.
    pub fn receiver(&mut self, number: usize) -> Result<StateId, String> {
        self.receivers.begin(self.plan, number as u64)
    }

    /// The publisher of this epoch at its beginning.
    ///
    /// # Errors
    /// What its parts refuse.
    pub fn publisher(&mut self, epoch: u64) -> Result<StateId, String> {
        self.publishers.begin(self.plan, epoch)
    }

    /// A receiver takes an input.
    ///
    /// # Errors
    /// The property that does not hold.
    pub fn receive(
        &mut self,
        at: StateId,
        input: <Receiver as Core>::Input,
    ) -> Result<Known<Receiver>, String> {
        let with = (self.plan, &mut self.said);
        self.receivers.step(with, at, Move::Take(input))
    }

    /// A publisher takes an input.
    ///
    /// # Errors
    /// The property that does not hold.
    pub fn serve(
        &mut self,
        at: StateId,
        input: <Publisher as Core>::Input,
    ) -> Result<Known<Publisher>, String> {
        let with = (self.plan, &mut self.said);
        self.publishers.step(with, at, Move::Take(input))
    }

    /// Time passes for a receiver.
    ///
    /// # Errors
    /// None but those of [`Cores::receive`].
    pub fn receiver_waits(&mut self, at: StateId, span: Nanos) -> Result<StateId, String> {
        let with = (self.plan, &mut self.said);
        let (to, _) = self.receivers.step(with, at, Move::Wait(span))?;
        Ok(to)
    }

    /// Time passes for a publisher.
    ///
    /// # Errors
    /// None but those of [`Cores::serve`].
    pub fn publisher_waits(&mut self, at: StateId, span: Nanos) -> Result<StateId, String> {
        let with = (self.plan, &mut self.said);
        let (to, _) = self.publishers.step(with, at, Move::Wait(span))?;
        Ok(to)
    }
}

#[cfg(test)]
mod tests {
    use super::super::world::World;
    use super::super::worlds;
    use super::*;

    #[test]
    fn all_that_is_left_out_is_there() {
        let plans = worlds(false);
        let plan = plans.iter().find(|plan| plan.name == "duplicate").unwrap();
        let mut cores = Cores::new(plan);
        for begin in 0..50 {
            let mut world = World::new(&mut cores).unwrap();
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
