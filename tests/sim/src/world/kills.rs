//! Kills at moments of the protocol: the publisher, a subscriber, or both end at exactly that
//! moment and restart a little later. A publisher finds its rings unchanged, word for word, and
//! continues its epoch. When its session was over, it opens another epoch.

use std::sync::Arc;

use tickcast_reliability::control::Start;
use tickcast_reliability::delivery::Delivery;
use tickcast_reliability::receive::RepairOrder;
use tickcast_reliability::ring::{HeapMemory, RingWriter};
use tickcast_reliability::session::Path;
use tickcast_reliability::types::{FanOutId, Nanos, Sequence, SequenceRange};

use crate::actors::publisher::PublisherActor;
use crate::faults::incident::Incident;
use crate::faults::kill::{KillVictim, Moment};
use crate::faults::plan::{Mode, Plan, ms};
use crate::feed::Feed;
use crate::feed::publisher_output::OutputCheck;
use crate::feed::torn_copy::interrupt;
use crate::network::clock_queue::Event;
use crate::network::stream::index_of;
use crate::report::Outcome;
use crate::trace::Trace;
use crate::truth::ContentKey;
use crate::world::promotion::check_ring;
use crate::world::{World, now_of};

/// Name under which [`Outcome::faults`] counts a kill.
pub const KILLED: &str = "killed_at_its_moment";
/// The subscriber that is killed; it joins after the others.
const VICTIM: usize = 2;
/// Time at which the victim joins.
const COMES: Nanos = ms(10);
/// Earliest time of a kill within the stream, and the duration for which the victim then receives
/// no datagrams where it must have a gap.
const DUE: Nanos = ms(25);
const DEAF: Nanos = ms(10);
/// Time until the killed processes restart.
const BLACK_OUT: Nanos = ms(3);

/// Runs a seed in which this kill happens once.
#[must_use]
pub fn run(seed: u64, who: KillVictim, moment: Moment) -> Outcome {
    let mut world = World::new(plan(seed, moment), Trace::default(), None);
    world.kill = Some((who, moment));
    world.run_to_its_end()
}

fn plan(seed: u64, moment: Moment) -> Plan {
    let mut plan = Plan::of(seed, Some("calm"), Some(VICTIM + 1));
    (plan.mode, plan.all_join_first) = (Mode::Liveness, false);
    (plan.ring_slots, plan.settle) = (4_096, ms(750));
    plan.starts_at.fill(None);
    plan.read_path &= moment != Moment::MidGap;
    plan.read_path |= moment == Moment::MidRead;
    for (config, start) in &mut plan.subscribers {
        (config.delivery, config.repair) = (Delivery::Ordered, true);
        (config.window_slots, *start) = (1_024, Start::Oldest);
        config.burst_max = 2_048;
        if moment == Moment::MidRead {
            config.ladder = RepairOrder::ReadThenNack;
        }
    }
    let others = (0..VICTIM).map(|number| (Nanos::ZERO, Incident::Join(number)));
    plan.incidents = others.collect();
    plan.incidents.push((COMES, Incident::Join(VICTIM)));
    if matches!(moment, Moment::MidGap | Moment::MidRead) {
        let whom = Some(VICTIM);
        plan.incidents.push((DUE, Incident::DatagramsStop(whom)));
        let hears = (DUE.after(DEAF), Incident::DatagramsPass(whom));
        plan.incidents.push(hears);
    }
    plan
}

impl World {
    /// Kills the planned processes if this is the moment, before `event` happens. Returns whether
    /// the event is lost with its sender or recipient.
    pub(crate) fn check_kill(&mut self, event: &Event) -> Result<bool, String> {
        // Bytes behind those lost in the kill are lost as well, as over TCP.
        if let Event::Bytes(of, up, _) = event
            && self.torn == Some((*of, *up))
        {
            return Ok(true);
        }
        let Some((who, moment)) = self.kill.filter(|(_, moment)| self.is_at(*moment, event)) else {
            return Ok(false);
        };
        self.kill = None;
        if let Event::Bytes(of, up, _) = event {
            self.torn = Some((*of, *up));
        }
        self.count(KILLED);
        self.trace
            .note(self.now, "killed", moment as usize, who as u64, 0);
        if moment == Moment::HalfSlot {
            self.begin_slots()?;
        }
        if who.publisher() {
            self.kill(self.endpoint);
        }
        if who.subscriber() {
            self.goes(VICTIM, false)?;
        }
        self.schedule(self.now.after(BLACK_OUT), Event::Revive(who));
        Ok(self.torn.is_some())
    }

    /// Restarts the killed processes.
    pub(crate) fn revive(&mut self, who: KillVictim) -> Result<(), String> {
        if who.publisher() && self.publishers[self.endpoint].finished() {
            self.incident(Incident::Start)?;
            self.schedule(self.now.after(ms(20)), Event::Finish);
        } else if who.publisher() {
            self.reopen()?;
        }
        match who.subscriber() {
            true => self.incident(Incident::Join(VICTIM)),
            false => Ok(()),
        }
    }

    fn is_at(&self, moment: Moment, event: &Event) -> bool {
        let (victim, publisher) = (&self.subscribers[VICTIM], &self.publishers[self.endpoint]);
        let over = |connection: usize, path| {
            victim.alive && victim.connections[index_of(path)] == Some(connection)
        };
        let joined = victim.core.is_joined();
        let mut receivers = victim.core.receivers();
        match (moment, event) {
            (Moment::BeforeJoin, Event::Bytes(of, true, _))
            | (Moment::DuringJoin, Event::Bytes(of, false, _)) => {
                over(*of, Path::Repair) && !joined
            }
            (Moment::MidGap, Event::Bytes(of, true, _)) => {
                let misses = receivers.any(|it| it.counters().missing_open.get() > 0);
                self.now > DUE && misses && (over(*of, Path::Repair) || over(*of, Path::Nack))
            }
            (Moment::HalfSlot, Event::Feed(of, _)) => self.now > DUE && *of == self.endpoint,
            (Moment::MidRead, Event::ReadRest(half)) => {
                half.is_of_slots() && over(half.connection, Path::Read)
            }
            (Moment::AtEnd, Event::Bytes(of, false, _)) => {
                let reported = receivers.any(|it| it.ended());
                publisher.finished() && over(*of, Path::Repair) && joined && !reported
            }
            _ => false,
        }
    }

    /// Makes each channel seal a datagram that it does not send, and leaves it in the middle of the
    /// next slot.
    fn begin_slots(&mut self) -> Result<(), String> {
        let now = now_of(self.now, self.utc);
        let publisher = &mut self.publishers[self.endpoint];
        for feed in &mut publisher.feeds {
            let before = feed.core.sealed();
            while !(feed.finished || feed.core.sealed() > before && feed.core.is_open()) {
                feed.message(now)?;
            }
        }
        publisher.write_down(&mut self.truth)
    }

    /// Starts a publisher that continues in the rings of the killed one.
    fn reopen(&mut self) -> Result<(), String> {
        let before = &self.publishers[self.endpoint];
        let (epoch, now) = (before.epoch, now_of(self.now, self.utc));
        let mut feeds = Vec::new();
        for feed in &before.feeds {
            let mut left = vec![0; feed.reader.geometry().bytes()];
            feed.reader.raw(0, &mut left);
            let memory = HeapMemory::left_behind(&left, interrupt);
            let ring = RingWriter::reopen(Arc::new(memory)).map_err(|e| e.to_string())?;
            let positions = ring.reader().positions().into_iter().collect();
            check_ring(&self.truth, &ring, &positions)?;
            let truth = self.truth.ring_mut(feed.channel, epoch, feed.nth);
            let due = truth.map(|truth| (truth.last(), truth.next_record()));
            if due != Some((ring.sealed(), ring.next_record().0)) {
                return Err(format!("goes on behind {}, not {due:?}", ring.sealed()));
            }
            let held = SequenceRange::new(ring.oldest(), ring.sealed());
            let first = held.map_or(ring.sealed().next(), |held| held.first);
            let slots = held.into_iter().flat_map(SequenceRange::iter);
            let slots = slots.filter_map(|sequence| ring.slot(sequence));
            let mut output = OutputCheck::new(first, self.plan.fan_outs, self.plan.heartbeat);
            output = output.going_on(slots);
            for fan_out in 0..self.plan.fan_outs {
                let sent: Sequence = ring.sent(FanOutId(fan_out));
                output.goes_on_behind(fan_out.into(), sent);
            }
            let key = ContentKey::of(feed.channel, epoch, feed.nth);
            feeds.push(Feed::on(&self.plan, (ring, feed.nth), (key, output), now));
        }
        let life = self.publishers.len() as u64;
        let publisher = PublisherActor::with(&self.plan, (epoch, life), feeds, now);
        self.count("goes_on_in_its_epoch");
        self.endpoint = self.add_publisher(publisher);
        self.serve(self.endpoint)
    }
}
