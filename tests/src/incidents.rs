//! Lets incidents happen, and puts an end to all trouble where a run is to come to its end.

use tickcast_reliability::units::Nanos;

use crate::faults::Incident;
use crate::subscriber::Subscriber;
use crate::world::{Event, World};

impl World {
    pub(crate) fn incident(&mut self, incident: Incident) -> Result<(), String> {
        let (name, who) = name(incident);
        self.count(name);
        self.trace.note(self.now, name, who, 0, 0);
        match incident {
            Incident::DatagramsStop(whom) => self.set_cut(0, whom, true),
            Incident::DatagramsPass(whom) => self.set_cut(0, whom, false),
            Incident::UpStops(whom) => self.set_cut(1, whom, true),
            Incident::UpPasses(whom) => self.set_cut(1, whom, false),
            Incident::DownStops(whom) => self.set_cut(2, whom, true),
            Incident::DownPasses(whom) => self.set_cut(2, whom, false),
            Incident::Reset(whom) => self.reset(whom),
            Incident::Stall(number) => self.subscribers[number].stalled = true,
            Incident::Resume(number) => return self.resume(number),
            Incident::LoseMembership(number) => self.subscribers[number].member = [false; 2],
            Incident::Leave(number, on_purpose) => return self.goes(number, on_purpose),
            Incident::Join(number) => return self.comes(number),
            Incident::Pause => self.publishers[self.endpoint].paused = true,
            Incident::GoOn => {
                for index in 0..self.publishers.len() {
                    self.go_on(index)?;
                }
            }
            Incident::Kill => self.kill(self.endpoint),
            Incident::PowerCut => {
                let publisher = &mut self.publishers[self.endpoint];
                (publisher.alive, publisher.dark) = (false, true);
            }
            Incident::Start => return self.start_publisher((1, 1)),
            Incident::Divert => {
                let alive = (0..self.publishers.len())
                    .filter(|p| self.publishers[*p].alive && !self.publishers[*p].paused);
                let next = alive.clone().find(|p| *p > self.endpoint);
                if let Some(next) = next.or_else(|| alive.clone().next()) {
                    self.endpoint = next;
                }
            }
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

    /// All trouble is over: the newest publisher lives, all paths are open, everyone is there.
    pub(crate) fn heal(&mut self) -> Result<(), String> {
        self.trace.note(self.now, "heal", 0, 0, 0);
        self.weather = false;
        self.cut.fill([false; 3]);
        for index in 0..self.publishers.len() {
            self.publishers[index].stalled = [false; 2];
            self.go_on(index)?;
        }
        let newest = self.publishers.len() - 1;
        if self.plan.gone {
            return Ok(());
        }
        for index in 0..newest {
            if self.publishers[index].alive {
                self.kill(index);
            }
        }
        if self.publishers[newest].alive {
            self.endpoint = newest;
        } else {
            self.start_publisher((1, 1))?;
        }
        for number in 0..self.subscribers.len() {
            self.comes(number)?;
            self.resume(number)?;
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

    fn reset(&mut self, whom: Option<usize>) {
        for number in 0..self.subscribers.len() {
            if whom.is_some_and(|whom| whom != number) {
                continue;
            }
            for connection in self.subscribers[number].connections.into_iter().flatten() {
                self.schedule(self.now, Event::Closed(connection, true));
                self.schedule(self.now, Event::Closed(connection, false));
            }
        }
    }

    fn resume(&mut self, number: usize) -> Result<(), String> {
        if !std::mem::replace(&mut self.subscribers[number].stalled, false) {
            return Ok(());
        }
        while let Some((line, packet)) = self.subscribers[number].socket.pop_front() {
            self.hear(number, line, &packet)?;
        }
        for connection in self.subscribers[number].connections.into_iter().flatten() {
            self.read_down(connection)?;
        }
        self.pump(number)
    }

    /// A subscriber goes: says so and leaves in order, or is just not there any more.
    fn goes(&mut self, number: usize, on_purpose: bool) -> Result<(), String> {
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
        subscriber.member = [false; 2];
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

    /// A subscriber comes, as a new process.
    fn comes(&mut self, number: usize) -> Result<(), String> {
        if self.subscribers[number].alive {
            return Ok(());
        }
        self.tally_subscriber(number);
        let life = self.subscribers[number].life + 1;
        self.subscribers[number] = Subscriber::new(&self.plan, number, life, self.now);
        self.pump(number)
    }

    fn go_on(&mut self, index: usize) -> Result<(), String> {
        if !std::mem::replace(&mut self.publishers[index].paused, false) {
            return Ok(());
        }
        while let Some(arrival) = self.publishers[index].waiting.pop_front() {
            self.arrives(index, arrival)?;
        }
        self.serve(index)
    }

    /// A publisher's process ends, and its kernel says so to everyone connected.
    fn kill(&mut self, index: usize) {
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
                    crate::publisher::Arrival::Connected(connection) => Some(connection),
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

/// The name of an incident and whom it concerns.
const fn name(incident: Incident) -> (&'static str, usize) {
    const fn who(whom: Option<usize>) -> usize {
        match whom {
            Some(number) => number,
            None => usize::MAX,
        }
    }
    match incident {
        Incident::DatagramsStop(whom) => ("datagrams_stop", who(whom)),
        Incident::DatagramsPass(whom) => ("datagrams_pass", who(whom)),
        Incident::UpStops(whom) => ("up_stops", who(whom)),
        Incident::UpPasses(whom) => ("up_passes", who(whom)),
        Incident::DownStops(whom) => ("down_stops", who(whom)),
        Incident::DownPasses(whom) => ("down_passes", who(whom)),
        Incident::Reset(whom) => ("reset", who(whom)),
        Incident::Stall(number) => ("stall", number),
        Incident::Resume(number) => ("resume", number),
        Incident::LoseMembership(number) => ("lose_membership", number),
        Incident::Leave(number, _) => ("leave", number),
        Incident::Join(number) => ("join", number),
        Incident::Pause => ("pause", 0),
        Incident::GoOn => ("go_on", 0),
        Incident::Kill => ("kill", 0),
        Incident::PowerCut => ("power_cut", 0),
        Incident::Start => ("restart", 0),
        Incident::Divert => ("divert", 0),
        Incident::ClockStep(_) => ("clock_step", 0),
        Incident::FanOutStalls(of) => ("fan_out_stalls", of as usize),
        Incident::FanOutGoesOn(of) => ("fan_out_goes_on", of as usize),
    }
}
