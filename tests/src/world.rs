//! One run: a clock, a queue of events, publishers, subscribers and what lies between them.
//!
//! Nothing here looks at a real clock or at anything but the plan and its seed. Every input of a
//! core is followed by everything that core wants done, and then by the checks.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tickcast_reliability::delivery::{self, Delivery, Item, Start};
use tickcast_reliability::loss::LossCause;
use tickcast_reliability::subscriber_core::{Path, SubscriberCore};
use tickcast_reliability::units::{Epoch, Nanos, Now, Sequence};

use crate::balance;
use crate::faults::{FaultCounts, Storm, Whom};
use crate::pipe::Connection;
use crate::profiles::{Mode, Plan};
use crate::publisher::Publisher;
use crate::report::{Outcome, Tally};
use crate::stream::Stream;
use crate::subscriber::{Packet, Subscriber};
use crate::trace::Trace;
use crate::truth::Truth;

/// Something that will happen.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// A publisher's feed has something.
    Feed(usize),
    /// A publisher's timer.
    PublisherTimer(usize),
    /// A subscriber's timer, in this life.
    SubscriberTimer(usize, u64),
    /// A datagram arrives on a line.
    Datagram(usize, u8, Packet),
    /// A direction of a connection moves on.
    Move(usize, bool),
    /// Bytes arrive.
    Bytes(usize, bool, Vec<u8>),
    /// An attempt to connect is answered, or not.
    Dial(usize, Path, u64),
    /// One side (`true`: the publisher's) learns that a connection is over.
    Closed(usize, bool),
    /// The next incident of the plan.
    Incident(usize),
    /// The faults stop.
    Heal,
    /// The feed ends.
    Finish,
    /// Everyone has joined.
    Joined,
}

struct Scheduled {
    at: Nanos,
    number: u64,
    event: Event,
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Scheduled {}

impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Scheduled {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

/// A deliberate error of the harness between core and application: the checks must see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tamper {
    /// The nth record is told twice.
    Twice(u64),
    /// The nth record is not told.
    Drop(u64),
    /// The nth record is told with another content.
    Alter(u64),
    /// The nth loss is not told.
    HideLoss(u64),
}

/// See the module.
pub struct World {
    pub(crate) plan: Plan,
    pub(crate) rng: ChaCha8Rng,
    pub(crate) now: Nanos,
    /// UTC less protocol time, in nanoseconds.
    pub(crate) utc: i64,
    queue: BinaryHeap<Reverse<Scheduled>>,
    scheduled: u64,
    pub(crate) truth: Truth,
    pub(crate) publishers: Vec<Publisher>,
    pub(crate) subscribers: Vec<Subscriber>,
    pub(crate) connections: Vec<Connection>,
    pub(crate) storms: Vec<Storm>,
    pub(crate) weather: bool,
    /// Where the address leads.
    pub(crate) endpoint: usize,
    /// Receivers that no datagram reaches; whose words up, and down, do not pass.
    pub(crate) cut: Vec<[bool; 3]>,
    pub(crate) faults: FaultCounts,
    pub(crate) tally: Tally,
    pub(crate) trace: Trace,
    violation: Option<String>,
    tamper: Option<Tamper>,
    tampered: u64,
}

/// UTC at the beginning.
const UTC: i64 = 1_700_000_000_000_000_000;
/// Events on their way at most, so that a storm ends the run and not the machine.
const QUEUE_MAX: usize = 10_000_000;
/// By then everyone has joined who is there from the start.
const JOINED: Nanos = Nanos::from_ms(10);
/// Events of one run at most: more is a storm of its own making.
const EVENTS_MAX: u64 = 60_000_000;
/// Wake-ups in a row without anything to do that are one too many.
const SPINS_MAX: u32 = 200;

/// Runs a plan to its end or to the first violation.
#[must_use]
pub fn run(plan: Plan, trace: Trace, tamper: Option<Tamper>) -> Outcome {
    let mut world = World::new(plan, trace, tamper);
    let result = world.begin().and_then(|()| world.live());
    if let Err(what) = result {
        world.violated(what);
    }
    world.outcome()
}

impl World {
    fn new(plan: Plan, trace: Trace, tamper: Option<Tamper>) -> Self {
        let paths = plan.receivers * 2;
        let storms = (plan.weather.iter())
            .map(|w| Storm::new(*w, if w.whom == Whom::Common { 2 } else { paths }));
        Self {
            rng: ChaCha8Rng::seed_from_u64(plan.seed),
            now: Nanos::ZERO,
            utc: UTC,
            queue: BinaryHeap::new(),
            scheduled: 0,
            truth: Truth::default(),
            publishers: Vec::new(),
            subscribers: Vec::with_capacity(plan.receivers),
            connections: Vec::new(),
            storms: storms.collect(),
            weather: true,
            endpoint: 0,
            cut: vec![[false; 3]; plan.receivers],
            faults: FaultCounts::new(),
            tally: Tally::default(),
            trace,
            violation: None,
            tamper,
            tampered: 0,
            plan,
        }
    }

    fn begin(&mut self) -> Result<(), String> {
        self.start_publisher(self.plan.first)?;
        for number in 0..self.plan.receivers {
            let mut subscriber = Subscriber::new(&self.plan, number, 0, self.now);
            subscriber.alive = self.plan.all_join_first;
            let at = Nanos(self.rng.random_range(0..2_000_000));
            subscriber.wakes_at = at;
            self.subscribers.push(subscriber);
            self.schedule(at, Event::SubscriberTimer(number, 0));
        }
        if let Some((at, _)) = self.plan.incidents.first() {
            self.schedule(*at, Event::Incident(0));
        }
        self.schedule(JOINED, Event::Joined);
        if self.plan.mode == Mode::Liveness {
            self.schedule(self.plan.faults_until, Event::Heal);
            self.schedule(self.plan.feed_until, Event::Finish);
        }
        Ok(())
    }

    fn live(&mut self) -> Result<(), String> {
        let until = match self.plan.mode {
            Mode::Safety => self.plan.feed_until,
            Mode::Liveness => self.plan.feed_until.after(self.plan.settle),
        };
        while let Some(Reverse(next)) = self.queue.pop() {
            if next.at > until {
                break;
            }
            self.now = next.at;
            self.happen(next.event)?;
            if let Some(what) = self.violation.take() {
                return Err(what);
            }
            self.tally.events += 1;
            if self.queue.len() > QUEUE_MAX {
                return Err(format!(
                    "{QUEUE_MAX} datagrams and timers are on their way at once"
                ));
            }
            if self.tally.events > EVENTS_MAX {
                return Err(format!("{EVENTS_MAX} events and no end"));
            }
            let look = self.now > self.plan.feed_until && self.tally.events.is_multiple_of(64);
            if look && self.unfinished().is_none() {
                break;
            }
        }
        match self.plan.mode {
            Mode::Liveness => self.unfinished().map_or(Ok(()), Err)?,
            Mode::Safety => self.everyone_leaves()?,
        }
        self.nobody_noticed()
    }

    fn happen(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Feed(publisher) => self.feed(publisher),
            Event::PublisherTimer(publisher) => {
                let of = &mut self.publishers[publisher];
                if of.wakes_at != self.now {
                    return Ok(());
                }
                of.wakes_at = Nanos::MAX;
                self.serve(publisher)
            }
            Event::SubscriberTimer(number, life) => {
                let subscriber = &mut self.subscribers[number];
                let stale = subscriber.life != life || subscriber.wakes_at != self.now;
                if stale || !subscriber.alive {
                    return Ok(());
                }
                subscriber.wakes_at = Nanos::MAX;
                self.pump(number)
            }
            Event::Datagram(number, line, packet) => self.datagram_arrives(number, line, packet),
            Event::Move(connection, up) => self.move_on(connection, up),
            Event::Bytes(connection, up, bytes) => self.bytes_arrive(connection, up, &bytes),
            Event::Dial(number, path, attempt) => self.dial(number, path, attempt),
            Event::Closed(connection, far) => self.closed(connection, far),
            Event::Incident(index) => {
                let (_, incident) = self.plan.incidents[index];
                if let Some((at, _)) = self.plan.incidents.get(index + 1) {
                    self.schedule(*at, Event::Incident(index + 1));
                }
                self.incident(incident)
            }
            Event::Heal => self.heal(),
            Event::Joined => self.nobody_noticed(),
            Event::Finish if self.plan.gone => Ok(()),
            Event::Finish => {
                let publisher = &mut self.publishers[self.endpoint];
                if !publisher.finished {
                    let now = now_of(self.now, self.utc);
                    publisher.finish(&mut self.truth, now)?;
                }
                self.serve(self.endpoint)
            }
        }
    }

    /// What has not come to its end, if anything.
    fn unfinished(&self) -> Option<String> {
        let publisher = &self.publishers[self.endpoint];
        for (number, subscriber) in self.subscribers.iter().enumerate() {
            let stream = &subscriber.stream;
            if self.plan.gone {
                let receiver = subscriber.core.receiver(crate::subscriber::CHANNEL);
                let heard = receiver.map_or(Sequence::NONE, |r| r.progress().1);
                if let Some(range) = stream.unaccounted(heard) {
                    let gaps = gaps_of(&subscriber.core);
                    return Some(format!(
                        "the publisher is gone and subscriber {number} was told nothing of {range}; {gaps}"
                    ));
                }
                continue;
            }
            if !stream.ended() || stream.epoch() != publisher.epoch {
                let last = self.truth.of(publisher.epoch).map(|of| of.last());
                return Some(format!(
                    "subscriber {number} ({:?}) never reached the end: at {} of epoch {}, the publisher's is {} of {}; {:?}",
                    subscriber.config.delivery,
                    stream.next(),
                    stream.epoch(),
                    last.unwrap_or_default(),
                    publisher.epoch,
                    subscriber
                        .core
                        .receiver(crate::subscriber::CHANNEL)
                        .map(|r| r.progress()),
                ));
            }
            let open = subscriber.core.counters().next();
            let open = open.map_or(0, |c| c.gaps_open.get() + c.history_open.get());
            if open > 0 {
                return Some(format!("subscriber {number} still misses {open} sequences"));
            }
        }
        if self.plan.gone {
            return None;
        }
        if !publisher.repair.all_reached_end() {
            return Some("the publisher does not know that all have reached the end".into());
        }
        let pending = publisher.counters.pending.get();
        (pending > 0).then(|| format!("{pending} sequences still wait for an answer"))
    }

    /// The end of a run whose faults went on: whatever was heard of must be accounted for.
    fn everyone_leaves(&mut self) -> Result<(), String> {
        for number in 0..self.subscribers.len() {
            if self.subscribers[number].alive {
                self.leave(number)?;
            }
        }
        Ok(())
    }

    /// Tells a core to leave, and checks that nothing it heard of is left unsaid.
    pub(crate) fn leave(&mut self, number: usize) -> Result<(), String> {
        self.with_core(number, |core, _, mut on| {
            core.leave(LossCause::PublisherDead, &mut on);
        })?;
        let subscriber = &self.subscribers[number];
        let Some(receiver) = subscriber.core.receiver(crate::subscriber::CHANNEL) else {
            return Ok(());
        };
        let heard = receiver.progress().1;
        match subscriber.stream.unaccounted(heard) {
            Some(range) => Err(format!(
                "subscriber {number} left without a word on {range}"
            )),
            None => Ok(()),
        }
    }

    /// Those that nothing was done to have no gap but the one of joining, and no loss.
    fn nobody_noticed(&mut self) -> Result<(), String> {
        for number in self.plan.untouched_from..self.subscribers.len() {
            let subscriber = &mut self.subscribers[number];
            let (config, start) = self.plan.subscribers[number];
            if (config.delivery, config.repair, start) != (Delivery::Ordered, true, Start::Live) {
                continue;
            }
            let gaps = subscriber.core.counters().next();
            let gaps = gaps.map_or(0, |c| c.gaps_detected.get());
            let losses = subscriber.stream.losses;
            if self.now <= JOINED {
                subscriber.gaps_of_joining = gaps;
            }
            if losses > 0 || gaps > subscriber.gaps_of_joining {
                return Err(format!(
                    "subscriber {number} has {gaps} gaps and {losses} losses from another's trouble"
                ));
            }
        }
        Ok(())
    }

    /// Gives a subscriber's core an input, and checks what it tells and counts.
    pub(crate) fn with_core(
        &mut self,
        number: usize,
        f: impl FnOnce(&mut SubscriberCore, Nanos, &mut dyn FnMut(Item<'_>)),
    ) -> Result<(), String> {
        let (truth, trace, now) = (&self.truth, &mut self.trace, self.now);
        let (tamper, tampered) = (self.tamper, &mut self.tampered);
        let mut wrong = None;
        let subscriber = &mut self.subscribers[number];
        subscriber.input(
            |core, on| f(core, now, on),
            |stream, item| {
                note_item(trace, now, number, item);
                if let Err(what) = tell(tamper, tampered, stream, truth, item) {
                    wrong.get_or_insert(format!("subscriber {number}: {what}"));
                }
            },
        );
        if let Some(what) = wrong {
            return Err(what);
        }
        let Some(counters) = subscriber.core.counters().next() else {
            return Ok(());
        };
        balance::receiver(counters, &subscriber.stream).map_err(|what| {
            let gaps = gaps_of(&subscriber.core);
            format!("subscriber {number}: {what}; {gaps}")
        })
    }

    pub(crate) fn start_publisher(&mut self, first: (u64, u64)) -> Result<(), String> {
        let epoch = Epoch(self.truth.highest().0 + self.rng.random_range(1..1000));
        let now = now_of(self.now, self.utc);
        let publisher = Publisher::open(&self.plan, epoch, first, &mut self.truth, now)?;
        self.publishers.push(publisher);
        self.endpoint = self.publishers.len() - 1;
        self.trace
            .note(self.now, "start", self.endpoint, epoch.0, 0);
        self.schedule(self.now, Event::Feed(self.endpoint));
        self.wake_publisher(self.endpoint, self.now);
        Ok(())
    }

    /// Wakes a publisher at this time at the latest.
    pub(crate) fn wake_publisher(&mut self, index: usize, at: Nanos) {
        if at < self.publishers[index].wakes_at {
            self.publishers[index].wakes_at = at;
            self.schedule(at, Event::PublisherTimer(index));
        }
    }

    fn feed(&mut self, index: usize) -> Result<(), String> {
        let publisher = &mut self.publishers[index];
        if !publisher.alive || publisher.finished {
            return Ok(());
        }
        if !publisher.paused {
            let now = now_of(self.now, self.utc);
            publisher.feed(&self.plan, &mut self.truth, &mut self.rng, now)?;
            let sealed = publisher.core.sealed();
            self.trace.note(self.now, "sealed", index, sealed.0, 0);
            self.serve(index)?;
        }
        let spacing = self.plan.spacing.0;
        // Mostly regular, now and then a lull.
        let wait = if self.rng.random_bool(0.02) {
            self.rng.random_range(0..spacing * 40)
        } else {
            self.rng.random_range(spacing / 2..spacing * 3 / 2)
        };
        self.schedule(self.now.after(Nanos(wait)), Event::Feed(index));
        Ok(())
    }

    /// Does everything that a subscriber's core wants done.
    pub(crate) fn pump(&mut self, number: usize) -> Result<(), String> {
        if self.subscribers[number].stalled || !self.subscribers[number].alive {
            return Ok(());
        }
        let mut out = Vec::new();
        for round in 0.. {
            if round > 1_000 {
                return Err(format!("subscriber {number} never comes to rest"));
            }
            let mut busy = false;
            self.with_core(number, |core, now, mut on| {
                core.handle_timeout(now, &mut on);
            })?;
            loop {
                let mut path = None;
                self.with_core(number, |core, now, mut on| {
                    path = core.poll_transmit(now, &mut out, &mut on);
                })?;
                let Some(path) = path else { break };
                busy = true;
                self.send_up(number, path, &out)?;
                out.clear();
            }
            while let Some(action) = self.subscribers[number].core.poll_action() {
                busy = true;
                self.act(number, &action)?;
            }
            if !busy {
                break;
            }
        }
        self.sleep(number)
    }

    fn sleep(&mut self, number: usize) -> Result<(), String> {
        let (now, life) = (self.now, self.subscribers[number].life);
        let subscriber = &mut self.subscribers[number];
        let due = subscriber.core.poll_timeout();
        if due > now {
            subscriber.spins = 0;
        } else {
            subscriber.spins += 1;
            if subscriber.spins > SPINS_MAX {
                let gaps = gaps_of(&subscriber.core);
                return Err(format!(
                    "subscriber {number} wants to be woken at {due}, again and again, and does nothing; {gaps}"
                ));
            }
        }
        let due = due.max(now.after(Nanos(1_000)));
        if due < subscriber.wakes_at {
            subscriber.wakes_at = due;
            self.schedule(due, Event::SubscriberTimer(number, life));
        }
        Ok(())
    }

    pub(crate) fn schedule(&mut self, at: Nanos, event: Event) {
        if at == Nanos::MAX {
            return;
        }
        self.scheduled += 1;
        let number = self.scheduled;
        self.queue.push(Reverse(Scheduled { at, number, event }));
    }

    pub(crate) fn count(&mut self, fault: &'static str) {
        *self.faults.entry(fault).or_default() += 1;
    }

    fn violated(&mut self, what: String) {
        self.trace.note(self.now, "violation", 0, 0, 0);
        self.violation = Some(what);
    }

    fn outcome(mut self) -> Outcome {
        for number in 0..self.subscribers.len() {
            self.tally_subscriber(number);
        }
        for publisher in &self.publishers {
            self.tally.publisher(&publisher.counters, &publisher.sender);
        }
        Outcome {
            seed: self.plan.seed,
            profile: self.plan.profile,
            violation: self.violation,
            hash: self.trace.hash(),
            lines: self.trace.lines(),
            recent: self.trace.recent(),
            simulated: self.now,
            faults: self.faults,
            tally: self.tally,
        }
    }

    pub(crate) fn tally_subscriber(&mut self, number: usize) {
        let subscriber = &self.subscribers[number];
        let counters = subscriber.core.counters().next().cloned();
        if let Some(counters) = counters {
            self.tally.subscriber(&counters, &subscriber.stream);
        }
    }
}

/// Both clocks.
pub(crate) const fn now_of(now: Nanos, utc: i64) -> Now {
    Now {
        monotonic: now,
        utc: Nanos(now.0.saturating_add_signed(utc)),
    }
}

fn note_item(trace: &mut Trace, now: Nanos, number: usize, item: &Item<'_>) {
    match item {
        Item::Record(position, _) => {
            trace.note(
                now,
                "record",
                number,
                position.sequence.0,
                position.record.0,
            );
        }
        Item::Event(position, event) => {
            use tickcast_reliability::delivery::Event as Told;
            let (what, a, b) = match event {
                Told::Joined { after } => ("joined", after.0, position.epoch.0),
                Told::Live => ("live", position.sequence.0, 0),
                Told::GapRecovered {
                    first, sequences, ..
                } => ("recovered", first.0, *sequences),
                Told::Lost(loss) => ("lost", loss.sequences.first.0, loss.sequences.last.0),
                Told::Stream(_) => ("event", position.sequence.0, 0),
                Told::EpochChanged { from, to } => ("epoch", from.0, to.0),
                Told::EndOfSession => ("end", position.sequence.0, 0),
                Told::Stale => ("stale", 0, 0),
                Told::Fresh => ("fresh", 0, 0),
                Told::PublisherDead => ("dead", 0, 0),
                Told::LineDown(line) => ("line-down", line.0.into(), 0),
                Told::LineUp(line) => ("line-up", line.0.into(), 0),
                Told::RepairLinkUp => ("link-up", 0, 0),
                Told::RepairLinkDown(_) => ("link-down", 0, 0),
                Told::MulticastLost => ("multicast-lost", 0, 0),
                Told::MulticastRestored => ("multicast-restored", 0, 0),
                Told::FencingViolation { sequence, .. } => ("fencing", sequence.0, 0),
                _ => ("told", 0, 0),
            };
            trace.note(now, what, number, a, b);
        }
    }
}

/// Hands an item to the application, or something else where the run is tampered with.
fn tell(
    tamper: Option<Tamper>,
    count: &mut u64,
    stream: &mut Stream,
    truth: &Truth,
    item: &Item<'_>,
) -> Result<(), String> {
    let is_loss = matches!(item, Item::Event(_, delivery::Event::Lost(_)));
    let wanted = match tamper {
        None => return stream.take(truth, item),
        Some(Tamper::HideLoss(_)) => is_loss,
        Some(_) => matches!(item, Item::Record(..)),
    };
    *count += u64::from(wanted);
    match (tamper, item) {
        (Some(Tamper::Twice(n)), _) if wanted && *count == n => {
            stream.take(truth, item)?;
            stream.take(truth, item)
        }
        (Some(Tamper::Drop(n) | Tamper::HideLoss(n)), _) if wanted && *count == n => Ok(()),
        (Some(Tamper::Alter(n)), Item::Record(position, record)) if *count == n => {
            let bytes: &[u8] = record.as_ref();
            let mut altered = bytes.to_vec();
            altered[20] ^= 1;
            stream.record(truth, position, &altered)
        }
        _ => stream.take(truth, item),
    }
}

/// What a core misses, for a message.
fn gaps_of(core: &SubscriberCore) -> String {
    let mut receivers = core.receivers();
    let text = receivers.next().map_or(String::new(), |r| format!("{r:?}"));
    let part = |from: &str| -> String {
        let from = text.find(from).unwrap_or(text.len());
        text[from..].chars().take(700).collect()
    };
    format!("{}\n{}", part("gaps: "), part("lines: "))
}

pub(crate) const fn spins_max() -> u32 {
    SPINS_MAX
}
