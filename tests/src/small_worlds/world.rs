//! One state of a small world, the steps that lead on from it, and what each does.

use tickcast_reliability::delivery::LineId;
use tickcast_reliability::subscriber_core::Path;
use tickcast_reliability::units::{Epoch, FanOutId, Nanos, Now};

use super::publisher::Publisher;
use super::receiver::{Identity, Receiver};
use super::{Faults, Plan, Publish};
use crate::subscriber::CHANNEL;
use crate::truth::Truth;

/// Something that may happen. Receivers are numbered, paths are 0 (repair) and 1 (replay).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The next datagram of the plan is published.
    Publish,
    /// The publisher dies, and comes back with a new epoch.
    Restart,
    /// A receiver that comes late joins.
    Join(usize),
    /// A datagram arrives.
    Arrive(usize, Identity),
    /// A datagram arrives, and a copy of it is still on its way.
    ArriveTwice(usize, Identity),
    /// A datagram is lost.
    Drop(usize, Identity),
    /// The next message of a connection arrives at the publisher.
    Up(usize, usize),
    /// The next message of a connection arrives at the receiver.
    Down(usize, usize),
    /// A connection breaks, with everything on its way.
    Cut(usize, usize),
    /// The clock moves on to the next timer of any core.
    Tick,
}

/// See the module.
pub struct World<'p> {
    pub(super) plan: &'p Plan,
    pub(super) now: Nanos,
    pub(super) truth: Truth,
    pub(super) publisher: Publisher,
    pub(super) receivers: Vec<Receiver>,
    pub(super) left: Faults,
    /// Parts that an input changed since the last fingerprint: receivers, then the publisher.
    pub(super) changed: Vec<bool>,
}

/// When it begins: late enough that 0 is no time.
const BEGIN: Nanos = Nanos::from_secs(1_000);
pub(super) const PATHS: [Path; 2] = [Path::Repair, Path::Replay];
pub(super) const FAN_OUT: FanOutId = FanOutId(0);

pub(super) type Checked = Result<(), String>;

impl<'p> World<'p> {
    /// The first state: those who are there from the beginning have joined.
    ///
    /// # Errors
    /// What already went wrong.
    pub fn new(plan: &'p Plan) -> Result<Self, String> {
        let mut truth = Truth::default();
        let publisher = Publisher::open(Epoch(1), &mut truth, both_clocks(BEGIN))?;
        let receivers = 0..plan.receivers.len();
        let mut world = Self {
            plan,
            now: BEGIN,
            truth,
            publisher,
            receivers: receivers.map(|r| Receiver::new(plan, r, BEGIN)).collect(),
            left: plan.faults,
            changed: vec![true; plan.receivers.len() + 1],
        };
        for r in 0..plan.receivers.len() {
            if !plan.receivers[r].late {
                world.apply(Step::Join(r))?;
            }
        }
        while let Some(step) = world.next_arrival() {
            world.apply(step)?;
        }
        world.left = plan.faults;
        Ok(world)
    }

    /// Writes down what receivers are told from here on.
    pub fn keep_diary(&mut self) {
        for receiver in &mut self.receivers {
            receiver.diary = Some(Vec::new());
        }
    }

    /// Takes what was written down: receiver and words.
    pub fn read_diary(&mut self) -> Vec<(usize, String)> {
        let mut all = Vec::new();
        for (r, receiver) in self.receivers.iter_mut().enumerate() {
            let told = receiver.diary.as_mut().map(std::mem::take);
            all.extend(told.unwrap_or_default().into_iter().map(|words| (r, words)));
        }
        all
    }

    /// All steps that this state allows, always in the same order.
    #[must_use]
    pub fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        let left = self.left;
        for (r, receiver) in self.receivers.iter().enumerate() {
            if !receiver.started {
                steps.push(Step::Join(r));
            }
            for (at, packet) in receiver.packets.iter().enumerate() {
                let identity = packet.identity;
                if at > 0 && left.overtakes == 0 {
                    break;
                }
                steps.push(Step::Arrive(r, identity));
                if at > 0 {
                    continue;
                }
                if left.drops > 0 {
                    steps.push(Step::Drop(r, identity));
                }
                if left.duplicates > 0 && !identity.is_heartbeat() {
                    steps.push(Step::ArriveTwice(r, identity));
                }
            }
            for (path, connection) in receiver.connections.iter().enumerate() {
                let Some(connection) = connection else {
                    continue;
                };
                if !connection.up.is_empty() {
                    steps.push(Step::Up(r, path));
                }
                if !connection.down.is_empty() {
                    steps.push(Step::Down(r, path));
                }
                if left.cuts > 0 {
                    steps.push(Step::Cut(r, path));
                }
            }
        }
        if self.next_of_plan().is_some() {
            steps.push(Step::Publish);
        }
        if left.restarts > 0 {
            steps.push(Step::Restart);
        }
        if left.ticks > 0 {
            steps.push(Step::Tick);
        }
        steps
    }

    /// What happens next once faults have stopped: everything on its way arrives, in order.
    #[must_use]
    pub fn next_arrival(&self) -> Option<Step> {
        for (r, receiver) in self.receivers.iter().enumerate() {
            for (path, connection) in receiver.connections.iter().enumerate() {
                let Some(connection) = connection else {
                    continue;
                };
                if !connection.up.is_empty() {
                    return Some(Step::Up(r, path));
                }
                if !connection.down.is_empty() {
                    return Some(Step::Down(r, path));
                }
            }
            if let Some(packet) = receiver.packets.front() {
                return Some(Step::Arrive(r, packet.identity));
            }
        }
        None
    }

    /// The same with joining and publishing, which nothing holds up either.
    #[must_use]
    pub fn next_without_faults(&self) -> Option<Step> {
        if let Some(step) = self.next_arrival() {
            return Some(step);
        }
        let late = self.receivers.iter().position(|r| !r.started);
        let publish = self.next_of_plan().map(|_| Step::Publish);
        late.map(Step::Join).or(publish)
    }

    /// What is not at its end yet, if anything.
    #[must_use]
    pub fn unfinished(&self) -> Option<String> {
        for (r, receiver) in self.receivers.iter().enumerate() {
            let (stream, epoch) = (&receiver.stream, self.publisher.epoch);
            if !stream.ended() || stream.epoch() != epoch {
                let (at, of) = (stream.next(), stream.epoch());
                return Some(format!(
                    "receiver {r} is at {at} of epoch {of} and was not told the end of {epoch}"
                ));
            }
            if receiver.open() > 0 {
                return Some(format!("receiver {r} still misses {}", receiver.open()));
            }
        }
        if !self.publisher.repair.all_reached_end() {
            return Some("the publisher does not know that all have reached the end".into());
        }
        let pending = self.publisher.counters.pending.get();
        (pending > 0).then(|| format!("{pending} sequences still wait for an answer"))
    }

    /// Lets it happen; `Ok(false)` where this state does not allow it.
    ///
    /// # Errors
    /// The property that does not hold.
    pub fn apply(&mut self, step: Step) -> Result<bool, String> {
        match step {
            Step::Publish => match self.next_of_plan() {
                Some(what) => {
                    self.publisher.published += 1;
                    self.publish(what)?;
                }
                None => return Ok(false),
            },
            Step::Restart => return self.restart(),
            Step::Join(r) => {
                if std::mem::replace(&mut self.receivers[r].started, true) {
                    return Ok(false);
                }
                self.pump(r)?;
            }
            Step::Arrive(r, identity)
            | Step::Drop(r, identity)
            | Step::ArriveTwice(r, identity) => {
                return self.arrive(step, r, identity);
            }
            Step::Up(r, path) => return self.up(r, path),
            Step::Down(r, path) => return self.down(r, path),
            Step::Cut(r, path) => {
                if self.receivers[r].connections[path].is_none() || !spend(&mut self.left.cuts) {
                    return Ok(false);
                }
                self.hang_up(r, path)?;
                self.lose_connection(r, path)?;
            }
            Step::Tick => {
                // Where faults have stopped ticks are no longer counted.
                self.left.ticks = self.left.ticks.saturating_sub(1);
                self.tick()?;
            }
        }
        Ok(true)
    }

    fn next_of_plan(&self) -> Option<Publish> {
        let epoch = (self.publisher.epoch.0 - 1) as usize;
        let list = self.plan.epochs.get(epoch).or(self.plan.epochs.last())?;
        list.get(self.publisher.published).copied()
    }

    fn publish(&mut self, what: Publish) -> Checked {
        let now = both_clocks(self.now);
        self.publisher.publish(what, &mut self.truth, now)?;
        self.serve()
    }

    fn arrive(&mut self, step: Step, r: usize, identity: Identity) -> Result<bool, String> {
        let packets = &mut self.receivers[r].packets;
        let Some(at) = packets.iter().position(|p| p.identity == identity) else {
            return Ok(false);
        };
        let allowed = match step {
            Step::Drop(..) => spend(&mut self.left.drops),
            Step::ArriveTwice(..) => spend(&mut self.left.duplicates),
            _ => at == 0 || spend(&mut self.left.overtakes),
        };
        if !allowed {
            return Ok(false);
        }
        let Some(packet) = packets.remove(at) else {
            return Ok(false);
        };
        if matches!(step, Step::ArriveTwice(..)) {
            packets.push_back(packet.clone());
        }
        if !matches!(step, Step::Drop(..)) {
            let now = self.now;
            self.receivers[r].input(&self.truth, |core, mut on| {
                core.handle_received(now, CHANNEL, LineId(0), packet.bytes(), &mut on);
            })?;
            self.pump(r)?;
        }
        Ok(true)
    }

    fn restart(&mut self) -> Result<bool, String> {
        if !spend(&mut self.left.restarts) {
            return Ok(false);
        }
        let epoch = Epoch(self.publisher.epoch.0 + 1);
        self.publisher = Publisher::open(epoch, &mut self.truth, both_clocks(self.now))?;
        self.changed.fill(true);
        for r in 0..self.receivers.len() {
            for path in [1, 0] {
                if self.receivers[r].connections[path].is_some() {
                    self.lose_connection(r, path)?;
                }
            }
        }
        self.serve()?;
        Ok(true)
    }
}

/// Uses one of a bound up; `false` when it was.
const fn spend(left: &mut u8) -> bool {
    let some = *left > 0;
    *left = left.saturating_sub(1);
    some
}

pub(super) const fn both_clocks(now: Nanos) -> Now {
    Now {
        monotonic: now,
        utc: now,
    }
}
