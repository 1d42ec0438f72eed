//! One run: a clock, a queue of events, publishers, subscribers, and the network between them.
//!
//! A run depends only on the plan and its seed, and never on a real clock. After every input, all
//! actions that the core requests are performed, and then the checks run.

mod apply_incident;
mod connections;
mod cursors;
mod drive_publisher;
mod drive_subscriber;
mod end;
mod forge;
mod impostor;
mod inboxes;
pub mod isolation;
pub mod kills;
mod multicast;
mod promotion;
mod reads;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tickcast_journal::Journaled;
use tickcast_reliability::session::{Path, SubscriberCore};
use tickcast_reliability::types::{Epoch, Nanos, Now};

use crate::actors::publisher::PublisherActor;
use crate::actors::subscriber::Subscriber;
use crate::checks::tamper::{Tamper, Tampering};
use crate::faults::kill::KillVictim;
use crate::faults::kill::Moment;
use crate::faults::plan::{Mode, Plan};
use crate::faults::weather::{FaultCounts, Storm, Whom};
use crate::network::clock_queue::{Event, Queue};
use crate::network::inboxes::Inboxes;
use crate::network::packet::Packet;
use crate::network::stream::Connection;
use crate::report::{Outcome, Tally};
use crate::trace::Trace;
use crate::truth::Truth;
use crate::world::impostor::Impostor;

/// The state of one run.
pub struct World {
    pub(crate) plan: Plan,
    pub(crate) rng: ChaCha8Rng,
    pub(crate) now: Nanos,
    /// UTC minus protocol time, in nanoseconds.
    pub(crate) utc: i64,
    queue: Queue,
    pub(crate) truth: Truth,
    pub(crate) publishers: Vec<PublisherActor>,
    pub(crate) subscribers: Vec<Subscriber>,
    /// Cores of earlier incarnations of subscribers, in runs that are recorded.
    pub(crate) retired: Vec<Journaled<SubscriberCore>>,
    pub(crate) connections: Vec<Connection>,
    pub(crate) inboxes: Inboxes,
    pub(crate) storms: Vec<Storm>,
    pub(crate) weather: bool,
    /// Index of the publisher that the address leads to.
    pub(crate) endpoint: usize,
    /// For each receiver, whether each link is cut: datagrams, messages up, messages down, NACK
    /// connection.
    pub(crate) cut: Vec<[bool; 4]>,
    /// For each receiver, whether each of the first three links delays what it carries.
    pub(crate) clogged: Vec<[bool; 3]>,
    /// Datagrams that a clogged link delays, by receiver.
    pub(crate) held: Vec<Vec<(u8, Packet)>>,
    pub(crate) faults: FaultCounts,
    pub(crate) tally: Tally,
    pub(crate) trace: Trace,
    pub(crate) tampering: Tampering,
    /// The planned kill: the processes and the moment.
    pub(crate) kill: Option<(KillVictim, Moment)>,
    /// The connection and direction (`true`: up) whose bytes were lost in the kill.
    pub(crate) torn: Option<(usize, bool)>,
    /// The impostor, in runs that have one.
    pub(crate) impostor: Impostor,
    violation: Option<String>,
    /// Sequences that were nacked before all subscribers had joined.
    pub(crate) nacked_of_joining: u64,
    /// Time at which the uplink of the publishers' host is free, when its bandwidth is limited.
    uplink_free_at: Nanos,
    /// Attempts to connect, in timed runs: subscriber, path, time.
    pub(crate) dials: Vec<(usize, Path, Nanos)>,
}

/// UTC at the start of a run, in nanoseconds.
const UTC: i64 = 1_700_000_000_000_000_000;
/// Maximum number of scheduled events. The bound ends a run with a message storm before it exhausts
/// memory.
const QUEUE_MAX: usize = 10_000_000;
/// Time by which all subscribers that are present from the start have joined.
pub(crate) const JOINED: Nanos = Nanos::from_ms(10);
/// Maximum number of events of one run; more indicate a message storm.
const EVENTS_MAX: u64 = 60_000_000;
/// Number of consecutive wake-ups without work that is a violation.
pub(crate) const SPINS_MAX: u32 = 200;

/// Runs a plan to its end or to the first violation. A plan with a broken subscriber is also
/// compared with a run without it.
#[must_use]
pub fn run(plan: Plan, trace: Trace, tamper: Option<Tamper>) -> Outcome {
    let alone = plan.broken.map(|broken| Plan {
        absent: broken..broken + 1,
        ..plan.clone()
    });
    let mut world = World::new(plan, trace, tamper);
    let mut result = world.begin().and_then(|()| world.live());
    if let (Ok(()), Some(alone)) = (&result, alone) {
        let mut without = World::new(alone, Trace::default(), None);
        result = without.begin().and_then(|()| without.live());
        result = result.and_then(|()| isolation::compare(&world, &without));
    }
    if let Err(what) = result {
        world.violated(what);
    }
    world.outcome()
}

/// Runs a plan once. Returns the outcome, the cores of all subscribers, and the publishers, in
/// their final state.
#[must_use]
pub fn run_for_cores(plan: Plan) -> (Outcome, Vec<Journaled<SubscriberCore>>, Vec<PublisherActor>) {
    let mut world = World::new(plan, Trace::default(), None);
    if let Err(what) = world.begin().and_then(|()| world.live()) {
        world.violated(what);
    }
    let outcome = world.outcome();
    let mut cores = world.retired;
    cores.extend(world.subscribers.into_iter().map(|it| it.core));
    (outcome, cores, world.publishers)
}

/// Times of deliveries and connection attempts.
#[derive(Debug)]
pub struct Times {
    /// Records of the first channel that each subscriber received, in order: epoch, number, time.
    pub records: Vec<Vec<(u64, u64, Nanos)>>,
    /// Attempts to connect: subscriber, path, time.
    pub dials: Vec<(usize, Path, Nanos)>,
}

/// Runs a plan once. Returns the outcome and the times of deliveries and connection attempts.
#[must_use]
pub fn run_for_times(plan: Plan) -> (Outcome, Times) {
    let timed = Plan {
        timed: true,
        ..plan
    };
    let mut world = World::new(timed, Trace::default(), None);
    if let Err(what) = world.begin().and_then(|()| world.live()) {
        world.violated(what);
    }
    let outcome = world.outcome();
    let first = |it: Subscriber| it.following.into_iter().next();
    let subscribers = world.subscribers.into_iter();
    let records = subscribers.map(|it| first(it).map_or_else(Vec::new, |of| of.log));
    let times = Times {
        records: records.collect(),
        dials: world.dials,
    };
    (outcome, times)
}

impl World {
    pub(crate) fn new(plan: Plan, trace: Trace, tamper: Option<Tamper>) -> Self {
        let paths = plan.receivers * 2;
        let storms = (plan.weather.iter())
            .map(|w| Storm::new(*w, if w.whom == Whom::Common { 2 } else { paths }));
        Self {
            rng: ChaCha8Rng::seed_from_u64(plan.seed),
            now: Nanos::ZERO,
            utc: UTC,
            queue: Queue::default(),
            truth: Truth::default(),
            publishers: Vec::new(),
            subscribers: Vec::with_capacity(plan.receivers),
            retired: Vec::new(),
            connections: Vec::new(),
            inboxes: Inboxes::default(),
            storms: storms.collect(),
            weather: true,
            endpoint: 0,
            cut: vec![[false; 4]; plan.receivers],
            clogged: vec![[false; 3]; plan.receivers],
            held: vec![Vec::new(); plan.receivers],
            faults: FaultCounts::new(),
            tally: Tally::default(),
            trace,
            tampering: Tampering::new(tamper),
            kill: None,
            torn: None,
            impostor: Impostor::default(),
            violation: None,
            nacked_of_joining: 0,
            uplink_free_at: Nanos::ZERO,
            dials: Vec::new(),
            plan,
        }
    }

    /// Runs to the end or to the first violation, and returns the outcome.
    pub(crate) fn run_to_its_end(&mut self) -> Outcome {
        if let Err(what) = self.begin().and_then(|()| self.live()) {
            self.violated(what);
        }
        self.outcome()
    }

    fn begin(&mut self) -> Result<(), String> {
        let firsts = vec![self.plan.first; self.plan.channels];
        let epoch = self.next_epoch();
        self.start_publisher(epoch, &firsts)?;
        for number in 0..self.plan.receivers {
            let starts = self.starts(number);
            let mut subscriber = Subscriber::new(&self.plan, number, 0, &starts, self.now);
            let named = self.plan.starts_at.get(number).is_some_and(Option::is_some);
            let absent = self.plan.absent.contains(&number);
            subscriber.alive = self.plan.all_join_first && !named && !absent;
            let at = Nanos(subscriber.rng.random_range(0..2_000_000));
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
        while let Some((at, event)) = self.queue.pop() {
            if at > until {
                break;
            }
            self.now = at;
            if !self.check_kill(&event)? {
                self.happen(event)?;
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
        if self.plan.impostor {
            return self.account_for_impostor();
        }
        self.nobody_hurried()?;
        self.nobody_noticed()
    }

    fn happen(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Feed(publisher, at) => self.feed(publisher, at),
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
            Event::Reads(connection) => self.reads_arrive(connection),
            Event::ReadRest(half) => self.read_rest(half),
            Event::ReadDone(connection, request, bytes) => {
                self.read_done(connection, request, bytes)
            }
            Event::ReadAgain(connection) => self.take_reads(connection),
            Event::WriteRest(half) => self.write_rest(half),
            Event::WriteArrives(half) => self.write_arrives(half),
            Event::WritesAgain(connection) => self.writes_arrive(connection),
            Event::WriteDone(connection) => self.write_done(connection),
            Event::HandOver(number, publisher, until) => {
                self.goes_on_handing_over(number, publisher, until)
            }
            Event::Ends(publisher) => {
                self.kill(publisher);
                Ok(())
            }
            Event::Flood(number) => self.flood(number),
            Event::Incident(index) => {
                let (_, incident) = self.plan.incidents[index];
                if let Some((at, _)) = self.plan.incidents.get(index + 1) {
                    self.schedule(*at, Event::Incident(index + 1));
                }
                self.incident(incident)
            }
            Event::Revive(who) => self.revive(who),
            Event::Heal => self.heal(),
            Event::Joined if self.plan.impostor => Ok(()),
            Event::Joined => self.nobody_noticed(),
            Event::Finish if self.plan.gone => Ok(()),
            Event::Finish => {
                let now = now_of(self.now, self.utc);
                let publisher = &mut self.publishers[self.endpoint];
                for feed in &mut publisher.feeds {
                    feed.finish(now)?;
                }
                publisher.write_down(&mut self.truth)?;
                self.serve(self.endpoint)
            }
        }
    }

    pub(crate) fn next_epoch(&mut self) -> Epoch {
        Epoch(self.truth.highest().0 + self.rng.random_range(1..1000))
    }

    /// Starts a publisher that opens this epoch, each channel with the given first sequence and
    /// record. Returns its index.
    pub(crate) fn start_publisher(
        &mut self,
        epoch: Epoch,
        firsts: &[(u64, u64)],
    ) -> Result<usize, String> {
        let now = now_of(self.now, self.utc);
        let publisher = PublisherActor::open(&self.plan, epoch, firsts, &mut self.truth, now)?;
        Ok(self.add_publisher(publisher))
    }

    /// Adds a publisher, schedules its feeds, and returns its index.
    pub(crate) fn add_publisher(&mut self, publisher: PublisherActor) -> usize {
        let index = self.publishers.len();
        let epoch = publisher.epoch;
        for at in 0..publisher.feeds.len() {
            self.schedule(self.now.max(self.plan.feed_from), Event::Feed(index, at));
        }
        self.publishers.push(publisher);
        self.trace.note(self.now, "start", index, epoch.0, 0);
        self.wake_publisher(index, self.now);
        index
    }

    /// Schedules a wake-up of a publisher at this time, unless an earlier one is scheduled.
    pub(crate) fn wake_publisher(&mut self, index: usize, at: Nanos) {
        if at < self.publishers[index].wakes_at {
            self.publishers[index].wakes_at = at;
            self.schedule(at, Event::PublisherTimer(index));
        }
    }

    fn feed(&mut self, index: usize, at: usize) -> Result<(), String> {
        let now = now_of(self.now, self.utc);
        let publisher = &mut self.publishers[index];
        let (alive, paused) = (publisher.alive, publisher.paused || publisher.hands_over);
        let feed = &mut publisher.feeds[at];
        if !alive || feed.finished {
            return Ok(());
        }
        let wait = feed.wait(self.plan.spacing.0);
        if !paused {
            feed.burst(now)?;
            let sealed = feed.core.sealed();
            publisher.write_down(&mut self.truth)?;
            self.trace
                .note(self.now, "sealed", index, sealed.0, at as u64);
            self.serve(index)?;
        }
        self.schedule(self.now.after(Nanos(wait)), Event::Feed(index, at));
        Ok(())
    }

    /// Returns the time at which this many bytes, sent now, have left the publishers' host.
    pub(crate) fn left_at(&mut self, bytes: usize) -> Nanos {
        let Some(bytes_per_s) = self.plan.uplink_bytes_per_s else {
            return self.now;
        };
        let takes = Nanos(bytes as u64 * 1_000_000_000 / bytes_per_s);
        self.uplink_free_at = self.uplink_free_at.max(self.now).after(takes);
        self.uplink_free_at
    }

    pub(crate) fn schedule(&mut self, at: Nanos, event: Event) {
        self.queue.push(at, event);
    }

    pub(crate) fn count(&mut self, fault: &'static str) {
        *self.faults.entry(fault).or_default() += 1;
    }

    fn violated(&mut self, what: String) {
        self.trace.note(self.now, "violation", 0, 0, 0);
        self.violation = Some(what);
    }

    fn outcome(&mut self) -> Outcome {
        for number in 0..self.subscribers.len() {
            self.tally_subscriber(number);
        }
        for publisher in &self.publishers {
            self.tally.checked("refusals", publisher.refusals.seen);
            let replies = &publisher.replies;
            (self.tally).checked("answers by multicast", replies.answered_seen);
            (self.tally).checked("STATUS", replies.statuses_seen);
        }
        for feed in self.publishers.iter().flat_map(|p| &p.feeds) {
            self.tally.publisher(&feed.repair, &feed.sender);
            // The last possible sequence is an END.
            for (what, number) in [("passes_2_32", 1 << 32), ("reaches_2_64", u64::MAX - 1)] {
                if self.plan.first.0 < number && feed.core.sealed().0 >= number {
                    *self.faults.entry(what).or_default() += 1;
                }
            }
        }
        self.tally.count_as_faults(&mut self.faults);
        Outcome {
            seed: self.plan.seed,
            profile: self.plan.profile,
            violation: self.violation.take(),
            hash: self.trace.hash(),
            lines: self.trace.lines(),
            recent: self.trace.recent(),
            simulated: self.now,
            settled: (self.plan.mode == Mode::Liveness)
                .then(|| self.now.since(self.plan.feed_until)),
            faults: std::mem::take(&mut self.faults),
            tally: std::mem::take(&mut self.tally),
        }
    }

    pub(crate) fn tally_subscriber(&mut self, number: usize) {
        let subscriber = &self.subscribers[number];
        for (of, counters) in subscriber.following.iter().zip(subscriber.core.counters()) {
            self.tally
                .subscriber(counters, &of.stream, of.first_nack.seen);
            for (what, count) in [
                ("inbox_torn", &counters.inbox_torn),
                ("inbox_skipped", &counters.inbox_skipped),
            ] {
                if count.get() > 0 {
                    *self.faults.entry(what).or_default() += count.get();
                }
            }
            (self.tally).checked("refusals heeded", of.asked.pace.refusals_heeded);
            self.tally
                .checked("rungs that gave way", of.asked.rungs.seen);
            (self.tally).checked("said how far it is", of.asked.pace.said);
            self.tally.checked("joined", of.beginning.seen.0);
            self.tally.checked("live", of.beginning.seen.1);
        }
    }
}

/// Returns both clocks.
pub(crate) const fn now_of(now: Nanos, utc: i64) -> Now {
    Now {
        monotonic: now,
        utc: Nanos(now.0.saturating_add_signed(utc)),
    }
}
