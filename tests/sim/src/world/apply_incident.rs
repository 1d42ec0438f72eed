//! Applies incidents, and ends all faults in runs that must reach the end of the stream.

use tickcast_reliability::session::Path;
use tickcast_reliability::types::Nanos;

use crate::actors::publisher::PublisherActor;
use crate::actors::subscriber::Subscriber;
use crate::faults::incident::{Incident, LinkDirection};
use crate::feed::Feed;
use crate::network::clock_queue::Event;
use crate::world::World;

impl World {
    pub(crate) fn incident(&mut self, incident: Incident) -> Result<(), String> {
        let (name, who) = incident.name();
        if self.plan.absent.contains(&who) {
            return Ok(());
        }
        self.count(name);
        self.trace.note(self.now, name, who, 0, 0);
        match incident {
            Incident::DatagramsStop(whom) => self.set_cut(0, whom, true),
            Incident::DatagramsPass(whom) => self.set_cut(0, whom, false),
            Incident::UpStops(whom) => self.set_cut(1, whom, true),
            Incident::UpPasses(whom) => self.set_cut(1, whom, false),
            Incident::DownStops(whom) => self.set_cut(2, whom, true),
            Incident::DownPasses(whom) => self.set_cut(2, whom, false),
            Incident::Reset(whom) => self.reset(whom, None),
            Incident::RcResets(whom) => self.reset(whom, Some(Path::Nack)),
            Incident::RcStops(whom) => self.set_cut(3, whom, true),
            Incident::RcPasses(whom) => self.set_cut(3, whom, false),
            Incident::Stall(number) => self.subscribers[number].stalled = true,
            Incident::Resume(number) => return self.resume(number),
            Incident::Clog(number, link) => self.clogged[number][link_index(link)] = true,
            Incident::Unclog(number, link) => {
                self.clogged[number][link_index(link)] = false;
                if link == LinkDirection::Datagrams {
                    self.release(number);
                }
            }
            Incident::Flood(number) => return self.flood(number),
            Incident::LoseMembership(number) => self.subscribers[number].lose_membership(),
            Incident::Leave(number, on_purpose) => return self.goes(number, on_purpose),
            Incident::Join(number) => return self.comes(number),
            Incident::Pause => self.publishers[self.endpoint].paused = true,
            Incident::Unpause => {
                for index in 0..self.publishers.len() {
                    self.unpause(index)?;
                }
            }
            Incident::Kill => self.kill(self.endpoint),
            Incident::PowerCut => {
                let publisher = &mut self.publishers[self.endpoint];
                (publisher.alive, publisher.dark) = (false, true);
            }
            Incident::Start => {
                let epoch = self.next_epoch();
                self.endpoint = self.start_publisher(epoch, &[(1, 1); 2])?;
            }
            Incident::StartTwin(further) => {
                let publisher = &self.publishers[self.endpoint];
                let first = |feed: &Feed| {
                    let ring = feed.core.ring();
                    if further {
                        (ring.sealed().next().0, ring.next_record().0)
                    } else {
                        self.plan.first
                    }
                };
                let firsts: Vec<_> = publisher.feeds.iter().map(first).collect();
                let epoch = publisher.epoch;
                self.start_publisher(epoch, &firsts)?;
            }
            Incident::HandOver(number) => return self.hand_over(number),
            Incident::Promote(number) => return self.promote(number, false).map(|_| ()),
            Incident::Divert => {
                let alive = (0..self.publishers.len())
                    .filter(|p| self.publishers[*p].alive && !self.publishers[*p].paused);
                let next = alive.clone().find(|p| *p > self.endpoint);
                if let Some(next) = next.or_else(|| alive.clone().next()) {
                    self.endpoint = next;
                }
            }
            Incident::Forge(forgery) => self.forge(forgery),
            Incident::Attack(attack) => self.attack(attack),
            Incident::ClockStep(ms) => self.utc += ms * 1_000_000,
            Incident::FanOutStalls(of) => {
                for publisher in &mut self.publishers {
                    publisher.stalled[usize::from(of)] = true;
                }
            }
            Incident::FanOutGoesOn(of) => {
                for index in 0..self.publishers.len() {
                    self.publishers[index].stalled[usize::from(of)] = false;
                    self.serve(index)?;
                }
            }
        }
        Ok(())
    }

    /// Ends all faults: the newest publisher runs, all paths are open, and all subscribers are
    /// present.
    pub(crate) fn heal(&mut self) -> Result<(), String> {
        self.trace.note(self.now, "heal", 0, 0, 0);
        self.weather = false;
        self.cut.fill([false; 4]);
        self.clogged.fill([false; 3]);
        for number in 0..self.subscribers.len() {
            self.release(number);
        }
        for index in 0..self.publishers.len() {
            self.publishers[index].stalled = [false; 2];
            self.publishers[index].hands_over = false;
            self.unpause(index)?;
        }
        if self.plan.gone {
            return Ok(());
        }
        // When two publishers have one epoch, the one that the address leads to stays.
        let newest = self.publishers.len() - 1;
        let has_it = |p: &PublisherActor| p.alive && p.epoch == self.publishers[newest].epoch;
        let stays = if has_it(&self.publishers[self.endpoint]) {
            self.endpoint
        } else {
            newest
        };
        for index in (0..self.publishers.len()).filter(|index| *index != stays) {
            if self.publishers[index].alive {
                self.kill(index);
            }
        }
        if self.publishers[stays].alive {
            self.endpoint = stays;
        } else {
            let epoch = self.next_epoch();
            self.endpoint = self.start_publisher(epoch, &[(1, 1); 2])?;
        }
        for number in 0..self.subscribers.len() {
            self.comes(number)?;
            if self.plan.broken != Some(number) {
                self.resume(number)?;
            }
        }
        self.serve(self.endpoint)
    }

    fn set_cut(&mut self, kind: usize, whom: Option<usize>, cut: bool) {
        for (number, cuts) in self.cut.iter_mut().enumerate() {
            if whom.is_none_or(|whom| whom == number) {
                cuts[kind] = cut;
            }
        }
    }

    fn reset(&mut self, whom: Option<usize>, only: Option<Path>) {
        for number in 0..self.subscribers.len() {
            if whom.is_some_and(|whom| whom != number) {
                continue;
            }
            for connection in self.subscribers[number].connections.into_iter().flatten() {
                if only.is_some_and(|only| only != self.connections[connection].path) {
                    continue;
                }
                self.schedule(self.now, Event::Closed(connection, true));
                self.schedule(self.now, Event::Closed(connection, false));
            }
        }
    }

    fn resume(&mut self, number: usize) -> Result<(), String> {
        if !std::mem::replace(&mut self.subscribers[number].stalled, false) {
            return Ok(());
        }
        self.subscribers[number].awakes(self.now);
        // An application may read its connections or its socket first.
        if self.plan.seed.is_multiple_of(2) {
            self.read_connections(number)?;
        }
        while let Some((line, packet)) = self.subscribers[number].socket.pop_front() {
            self.hear(number, line, &packet)?;
        }
        self.read_connections(number)?;
        self.pump(number)
    }

    fn read_connections(&mut self, number: usize) -> Result<(), String> {
        for connection in self.subscribers[number].connections.into_iter().flatten() {
            self.read_down(connection)?;
        }
        Ok(())
    }

    /// Makes a subscriber leave: in order when `on_purpose`, otherwise it just disappears.
    pub(crate) fn goes(&mut self, number: usize, on_purpose: bool) -> Result<(), String> {
        let subscriber = &self.subscribers[number];
        if !subscriber.alive || subscriber.stalled {
            return Ok(());
        }
        if on_purpose {
            self.leave(number)?;
            self.pump(number)?;
        }
        let subscriber = &mut self.subscribers[number];
        subscriber.alive = false;
        subscriber.lose_membership();
        for connection in subscriber.connections.into_iter().flatten() {
            let of = &mut self.connections[connection];
            if on_purpose {
                of.up.closing = true;
                self.kick(connection, true);
            } else {
                of.near = false;
                self.tell_closed(connection, true);
            }
        }
        Ok(())
    }

    /// Starts a subscriber that is absent, as a new process.
    fn comes(&mut self, number: usize) -> Result<(), String> {
        if self.subscribers[number].alive || self.plan.absent.contains(&number) {
            return Ok(());
        }
        self.tally_subscriber(number);
        let life = self.subscribers[number].life + 1;
        let starts = self.starts(number);
        let next = Subscriber::new(&self.plan, number, life, &starts, self.now);
        let before = std::mem::replace(&mut self.subscribers[number], next);
        if self.plan.recorded.is_some() {
            self.retired.push(before.core);
        }
        self.pump(number)
    }

    fn unpause(&mut self, index: usize) -> Result<(), String> {
        if !std::mem::replace(&mut self.publishers[index].paused, false) {
            return Ok(());
        }
        while let Some(arrival) = self.publishers[index].waiting.pop_front() {
            self.arrives(index, arrival)?;
        }
        self.serve(index)
    }

    /// Ends a publisher's process; its kernel closes the connections of all peers.
    pub(crate) fn kill(&mut self, index: usize) {
        let publisher = &mut self.publishers[index];
        if !std::mem::replace(&mut publisher.alive, false) {
            return;
        }
        let connections = std::mem::take(&mut publisher.peers);
        let mut all: Vec<usize> = connections.into_values().collect();
        all.extend(
            publisher
                .waiting
                .drain(..)
                .filter_map(|arrival| match arrival {
                    crate::actors::publisher::Arrival::Connected(connection) => Some(connection),
                    _ => None,
                }),
        );
        for connection in all {
            let of = &mut self.connections[connection];
            of.far = false;
            of.down.unsent.clear();
            let at = self.now.after(Nanos(self.plan.delay.0.0 + 1));
            self.schedule(at, Event::Closed(connection, false));
        }
    }
}

const fn link_index(link: LinkDirection) -> usize {
    match link {
        LinkDirection::Datagrams => 0,
        LinkDirection::Up => 1,
        LinkDirection::Down => 2,
    }
}
