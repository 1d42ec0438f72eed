//! One state of a small world, its possible steps, and their effects.

use tickcast_reliability::serve::PeerId;
use tickcast_reliability::types::{Epoch, Sequence};
use xxhash_rust::xxh3::xxh3_128;

use super::cores::{Cores, StateId};
use super::publisher::PublisherInput;
use super::receiver::ReceiverEvent;
use super::transcript::{FrameId, Identity, PacketId, TruthId};
use super::{Faults, Publish};
use crate::faults::plan::CHANNEL;
use crate::truth::EpochTruth;

/// A step. Receivers are numbered; paths are 0 (repair) and 1 (replay).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The next datagram of the plan is published.
    Publish,
    /// The publisher dies and restarts with a new epoch.
    Restart,
    /// A late receiver joins.
    Join(usize),
    /// A datagram arrives.
    Arrive(usize, Identity),
    /// A datagram arrives while a copy of it stays in flight.
    ArriveTwice(usize, Identity),
    /// A datagram is lost.
    Drop(usize, Identity),
    /// The next message of a connection arrives at the publisher.
    Up(usize, usize),
    /// The next message of a connection arrives at the receiver.
    Down(usize, usize),
    /// An impostor multicasts this datagram of the plan.
    Forge(usize),
    /// A connection breaks, and everything in flight on it is lost.
    Cut(usize, usize),
    /// The clock advances to the next timer of any core.
    Tick,
}

/// A connection, which carries whole messages in order.
#[derive(Clone, Debug)]
pub(super) struct Connection {
    /// The publisher's number for this peer.
    pub(super) peer: PeerId,
    /// Messages in flight to the publisher.
    pub(super) up: Vec<FrameId>,
    /// Messages in flight from the publisher.
    pub(super) down: Vec<FrameId>,
}

/// A receiver, and everything in flight to it and from it.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) core: StateId,
    /// Whether the receiver has started.
    pub(super) started: bool,
    /// Whether the receiver is a member of the group.
    pub(super) listens: bool,
    /// Datagrams in flight to the receiver, in the order of sending.
    pub(super) packets: Vec<PacketId>,
    /// Connections for repair and replay.
    pub(super) connections: [Option<Connection>; 2],
    /// Number of attempts to connect, by path.
    pub(super) attempts: [u32; 2],
    /// Last sequence sent when the publisher received the JOIN; kept until the WELCOME arrives.
    pub(super) joined_at: Option<Sequence>,
}

/// One state of a small world.
#[derive(Clone, Debug)]
pub struct SmallWorld {
    pub(super) publisher: StateId,
    /// The datagrams published so far, by epoch.
    pub(super) truth: TruthId,
    pub(super) receivers: Vec<Place>,
    /// Number of faults that are still possible.
    pub(super) left: Faults,
    /// Items that receivers emitted, if they are recorded.
    pub(super) diary: Option<Vec<(usize, String)>>,
}

impl SmallWorld {
    /// Returns the first state: receivers that are present from the beginning have joined.
    ///
    /// # Errors
    /// A violation in the first inputs.
    pub fn new(cores: &mut Cores<'_>) -> Result<Self, String> {
        let plan = cores.plan;
        let mut receivers = Vec::new();
        for number in 0..plan.receivers.len() {
            receivers.push(Place {
                core: cores.receiver(number)?,
                started: false,
                listens: false,
                packets: Vec::new(),
                connections: [None, None],
                attempts: [0; 2],
                joined_at: None,
            });
        }
        let mut world = Self {
            publisher: cores.publisher(1)?,
            truth: cores.truth_after(&[0])?,
            receivers,
            left: plan.faults,
            diary: None,
        };
        for r in 0..plan.receivers.len() {
            if !plan.receivers[r].late {
                world.apply(cores, Step::Join(r))?;
            }
        }
        while let Some(step) = world.next_arrival(cores) {
            world.apply(cores, step)?;
        }
        Ok(world)
    }

    /// Starts recording the items that receivers emit.
    pub fn keep_diary(&mut self) {
        self.diary = Some(Vec::new());
    }

    /// Removes and returns the recorded items: receiver and text.
    pub fn read_diary(&mut self) -> Vec<(usize, String)> {
        self.diary.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Returns the fingerprint: two worlds with equal fingerprints are one. `faults` tells whether
    /// the remaining faults are included.
    #[must_use]
    pub fn fingerprint(&self, faults: bool, scratch: &mut Vec<u8>) -> u128 {
        scratch.clear();
        let mut put = |value: u64| scratch.extend_from_slice(&value.to_le_bytes()[..4]);
        put(self.publisher.0.into());
        put(self.truth.0.into());
        for place in &self.receivers {
            put(place.core.0.into());
            put(u64::from(place.started) | u64::from(place.listens) << 1);
            put(place.joined_at.map_or(0, |at| at.0 + 1));
            put(place.packets.len() as u64);
            place.packets.iter().for_each(|id| put(id.0.into()));
            for (connection, attempts) in place.connections.iter().zip(place.attempts) {
                put(attempts.into());
                let Some(connection) = connection else {
                    put(0);
                    continue;
                };
                put(1 + connection.up.len() as u64);
                connection.up.iter().for_each(|id| put(id.0.into()));
                put(connection.down.len() as u64);
                connection.down.iter().for_each(|id| put(id.0.into()));
            }
        }
        if faults {
            let left = self.left;
            scratch.extend_from_slice(&[left.drops, left.overtakes, left.duplicates]);
            scratch.extend_from_slice(&[left.cuts, left.restarts, left.forgeries, left.ticks]);
        }
        xxh3_128(scratch)
    }

    /// Returns the fingerprints of the cores: the publisher's first, then each receiver's.
    #[must_use]
    pub fn core_fingerprints(&self, cores: &Cores<'_>) -> Vec<u128> {
        let mut all = vec![cores.publishers.fingerprint(self.publisher)];
        let receivers = self.receivers.iter();
        all.extend(receivers.map(|place| cores.receivers.fingerprint(place.core)));
        all
    }

    /// Returns all steps that this state allows, always in the same order.
    #[must_use]
    pub fn steps(&self, cores: &Cores<'_>) -> Vec<Step> {
        let mut steps = Vec::new();
        let left = self.left;
        for (r, receiver) in self.receivers.iter().enumerate() {
            if !receiver.started {
                steps.push(Step::Join(r));
            }
            for (at, id) in receiver.packets.iter().enumerate() {
                if at > 0 && left.overtakes == 0 {
                    break;
                }
                if receiver.packets[..at].contains(id) {
                    continue;
                }
                let identity = cores.said.identity(*id);
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
        if self.next_of_plan(cores).is_some() {
            steps.push(Step::Publish);
        }
        if left.restarts > 0 {
            steps.push(Step::Restart);
        }
        if left.forgeries > 0 {
            let newest = self.newest(cores).0 as i64;
            let all = cores.plan.forged.iter().enumerate();
            let possible = all.filter(|(_, it)| newest + it.ahead > 0);
            steps.extend(possible.map(|(nth, _)| Step::Forge(nth)));
        }
        if left.ticks > 0 {
            steps.push(Step::Tick);
        }
        steps
    }

    /// Returns the next arrival once faults have stopped: everything in flight arrives, in order.
    fn next_arrival(&self, cores: &Cores<'_>) -> Option<Step> {
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
            if let Some(id) = receiver.packets.first() {
                return Some(Step::Arrive(r, cores.said.identity(*id)));
            }
        }
        None
    }

    /// Returns the next step once faults have stopped: an arrival first, then a late join, then a
    /// publication.
    #[must_use]
    pub fn next_without_faults(&self, cores: &Cores<'_>) -> Option<Step> {
        if let Some(step) = self.next_arrival(cores) {
            return Some(step);
        }
        let late = self.receivers.iter().position(|r| !r.started);
        let publish = self.next_of_plan(cores).map(|_| Step::Publish);
        late.map(Step::Join).or(publish)
    }

    /// Returns a description of the first part that has not reached its end, if any.
    #[must_use]
    pub fn unfinished(&self, cores: &Cores<'_>) -> Option<String> {
        let epoch = self.epoch(cores);
        for (r, receiver) in self.receivers.iter().enumerate() {
            let facts = cores.receivers.facts(receiver.core);
            if let Err(what) = facts.account {
                return Some(format!("receiver {r}: {what}"));
            }
            let (of, at) = facts.at;
            if !facts.ended || of.0 != epoch {
                return Some(format!(
                    "receiver {r} is at {at} of epoch {of} and was not told the end of {epoch}"
                ));
            }
            if facts.open > 0 {
                return Some(format!("receiver {r} still misses {}", facts.open));
            }
        }
        let facts = cores.publishers.facts(self.publisher);
        if !facts.all_reached_end {
            return Some("the publisher does not know that all have reached the end".into());
        }
        (facts.pending > 0).then(|| format!("{} sequences still wait for an answer", facts.pending))
    }

    /// Applies a step. Returns `Ok(false)` when this state does not allow it.
    ///
    /// # Errors
    /// A property that does not hold.
    pub fn apply(&mut self, cores: &mut Cores<'_>, step: Step) -> Result<bool, String> {
        match step {
            Step::Publish => {
                let Some(what) = self.next_of_plan(cores) else {
                    return Ok(false);
                };
                let mut published = cores.said.published(self.truth).to_vec();
                if let Some(last) = published.last_mut() {
                    *last += 1;
                }
                self.truth = cores.truth_after(&published)?;
                self.serve(cores, PublisherInput::Publish(what))?;
            }
            Step::Restart => {
                if !spend(&mut self.left.restarts) {
                    return Ok(false);
                }
                self.restart(cores)?;
            }
            Step::Join(r) => {
                if std::mem::replace(&mut self.receivers[r].started, true) {
                    return Ok(false);
                }
                self.receive(cores, r, ReceiverEvent::Look)?;
            }
            Step::Arrive(r, identity)
            | Step::Drop(r, identity)
            | Step::ArriveTwice(r, identity) => {
                return self.arrive(cores, step, r, identity);
            }
            Step::Up(r, path) => return self.up(cores, r, path),
            Step::Down(r, path) => return self.down(cores, r, path),
            Step::Forge(nth) => {
                let Some(forged) = cores.said.forged(self.truth, cores.plan.forged[nth]) else {
                    return Ok(false);
                };
                if !spend(&mut self.left.forgeries) {
                    return Ok(false);
                }
                self.multicast(cores, forged);
            }
            Step::Cut(r, path) => {
                if self.receivers[r].connections[path].is_none() || !spend(&mut self.left.cuts) {
                    return Ok(false);
                }
                self.hang_up(cores, r, path)?;
                self.receive(cores, r, ReceiverEvent::Disconnected(path))?;
            }
            Step::Tick => {
                // Ticks are not bounded once faults have stopped.
                self.left.ticks = self.left.ticks.saturating_sub(1);
                self.tick(cores)?;
            }
        }
        Ok(true)
    }

    fn epoch(&self, cores: &Cores<'_>) -> u64 {
        cores.said.published(self.truth).len() as u64
    }

    /// Returns the newest sequence published.
    fn newest(&self, cores: &Cores<'_>) -> Sequence {
        let ring = cores.said.truth(self.truth);
        let ring = ring.of(CHANNEL, Epoch(self.epoch(cores))).first();
        ring.map_or(Sequence::NONE, EpochTruth::last)
    }

    fn next_of_plan(&self, cores: &Cores<'_>) -> Option<Publish> {
        let published = cores.said.published(self.truth);
        let list = cores.plan.epoch(published.len() as u64);
        list.get(*published.last()?).copied()
    }
}

/// Decrements a bound. Returns `false` when it was 0.
pub(super) const fn spend(left: &mut u8) -> bool {
    let some = *left > 0;
    *left = left.saturating_sub(1);
    some
}
