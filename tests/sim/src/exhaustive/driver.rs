//! The effect of a step: the input of a core, and all its immediate consequences.

use tickcast_reliability::serve::PeerId;
use tickcast_reliability::types::Nanos;

use super::core::Checked;
use super::cores::Cores;
use super::publisher::{PublisherInput, PublisherOutput};
use super::receiver::{ReceiverEvent, ReceiverInput, ReceiverOutput};
use super::transcript::{FrameId, Identity, PacketId};
use super::world::{Connection, Place, SmallWorld, Step, spend};

/// Smallest advance of the clock.
const SOON: Nanos = Nanos(1_000);

impl SmallWorld {
    /// Advances the clock to the next timer of any core, and wakes the cores that are due.
    pub(super) fn tick(&mut self, cores: &mut Cores<'_>) -> Checked {
        let publisher = cores.publishers.facts(self.publisher).due;
        let receivers = self.receivers.iter().map(|place| match place.started {
            true => cores.receivers.facts(place.core).due,
            false => Nanos::MAX,
        });
        let due: Vec<Nanos> = receivers.collect();
        let first = due.iter().copied().fold(publisher, Nanos::min);
        let span = first.max(SOON);
        self.publisher = cores.publisher_waits(self.publisher, span)?;
        for place in &mut self.receivers {
            place.core = cores.receiver_waits(place.core, span)?;
        }
        if publisher <= span {
            self.serve(cores, PublisherInput::Look)?;
        }
        for (r, due) in due.into_iter().enumerate() {
            if due <= span {
                self.receive(cores, r, ReceiverEvent::Look)?;
            }
        }
        Ok(())
    }

    pub(super) fn arrive(
        &mut self,
        cores: &mut Cores<'_>,
        step: Step,
        r: usize,
        identity: Identity,
    ) -> Result<bool, String> {
        let packets = &mut self.receivers[r].packets;
        let is_it = |id: &PacketId| cores.said.identity(*id) == identity;
        let Some(at) = packets.iter().position(is_it) else {
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
        let packet = packets.remove(at);
        if matches!(step, Step::ArriveTwice(..)) {
            packets.push(packet);
        }
        if !matches!(step, Step::Drop(..)) {
            self.receive(cores, r, ReceiverEvent::Datagram(packet))?;
        }
        Ok(true)
    }

    /// Delivers the next message of a connection to the publisher. Returns `false` when there is
    /// none.
    pub(super) fn up(
        &mut self,
        cores: &mut Cores<'_>,
        r: usize,
        path: usize,
    ) -> Result<bool, String> {
        let Some(connection) = &mut self.receivers[r].connections[path] else {
            return Ok(false);
        };
        if connection.up.is_empty() {
            return Ok(false);
        }
        let (peer, message) = (connection.peer, connection.up.remove(0));
        if cores.said.is_join(message) && path == 0 {
            self.receivers[r].joined_at = Some(cores.publishers.facts(self.publisher).posted);
        }
        self.serve(cores, PublisherInput::Message(peer, message))?;
        Ok(true)
    }

    /// Delivers the next message of a connection to the receiver. Returns `false` when there is
    /// none.
    pub(super) fn down(
        &mut self,
        cores: &mut Cores<'_>,
        r: usize,
        path: usize,
    ) -> Result<bool, String> {
        let place = &mut self.receivers[r];
        let Some(connection) = &mut place.connections[path] else {
            return Ok(false);
        };
        if connection.down.is_empty() {
            return Ok(false);
        }
        let message = connection.down.remove(0);
        if message == FrameId::CLOSED {
            self.lose_connection(cores, r, path)?;
            return Ok(true);
        }
        let joined_at = match cores.said.is_welcome(message) && path == 0 {
            true => place.joined_at.take(),
            false => None,
        };
        self.receive(cores, r, ReceiverEvent::Message(path, message, joined_at))?;
        Ok(true)
    }

    pub(super) fn restart(&mut self, cores: &mut Cores<'_>) -> Checked {
        let mut published = cores.said.published(self.truth).to_vec();
        published.push(0);
        self.truth = cores.truth_after(&published)?;
        self.publisher = cores.publisher(published.len() as u64)?;
        for r in 0..self.receivers.len() {
            for path in [1, 0] {
                if self.receivers[r].connections[path].is_some() {
                    self.lose_connection(cores, r, path)?;
                }
            }
        }
        self.serve(cores, PublisherInput::Look)
    }

    /// Notifies the publisher's side that a connection closed.
    pub(super) fn hang_up(&mut self, cores: &mut Cores<'_>, r: usize, path: usize) -> Checked {
        let place = &mut self.receivers[r];
        match place.connections[path].take() {
            Some(Connection { peer, .. }) => self.serve(cores, PublisherInput::Disconnected(peer)),
            None => Ok(()),
        }
    }

    /// Notifies the receiver's side that a connection closed.
    fn lose_connection(&mut self, cores: &mut Cores<'_>, r: usize, path: usize) -> Checked {
        self.receivers[r].connections[path] = None;
        self.receive(cores, r, ReceiverEvent::Disconnected(path))
    }

    /// Passes an input to a receiver and performs its actions.
    pub(super) fn receive(
        &mut self,
        cores: &mut Cores<'_>,
        r: usize,
        event: ReceiverEvent,
    ) -> Checked {
        let truth = self.truth;
        let input = ReceiverInput { event, truth };
        let (to, does) = cores.receive(self.receivers[r].core, input)?;
        self.receivers[r].core = to;
        if let Some(diary) = &mut self.diary {
            diary.extend(does.reported.iter().map(|words| (r, words.clone())));
        }
        for output in &does.outputs {
            let place = &mut self.receivers[r];
            match *output {
                ReceiverOutput::Send(path, message) => {
                    if let Some(connection) = &mut place.connections[path] {
                        connection.up.push(message);
                    }
                }
                ReceiverOutput::Connect(path) => {
                    place.attempts[path] += 1;
                    let attempt = u64::from(place.attempts[path]);
                    let peer = PeerId((r as u64) << 32 | (path as u64) << 16 | attempt);
                    place.connections[path] = Some(Connection {
                        peer,
                        up: Vec::new(),
                        down: Vec::new(),
                    });
                    self.serve(cores, PublisherInput::Connected(peer))?;
                }
                ReceiverOutput::Disconnect(path) => self.hang_up(cores, r, path)?,
                ReceiverOutput::Listen => place.listens = true,
            }
        }
        Ok(())
    }

    /// Puts a datagram in flight to every member of the group.
    pub(super) fn multicast(&mut self, cores: &Cores<'_>, packet: PacketId) {
        for receiver in self.receivers.iter_mut().filter(|r| r.listens) {
            receiver.send(cores, packet);
        }
    }

    /// Passes an input to the publisher and puts its output in flight.
    pub(super) fn serve(&mut self, cores: &mut Cores<'_>, input: PublisherInput) -> Checked {
        let (to, does) = cores.serve(self.publisher, input)?;
        self.publisher = to;
        for output in &does.outputs {
            match *output {
                PublisherOutput::Multicast(packet) => self.multicast(cores, packet),
                PublisherOutput::Send(peer, message) => {
                    let connections = self.receivers.iter_mut().flat_map(|r| &mut r.connections);
                    let of_peer = connections.flatten().find(|c| c.peer == peer);
                    if let Some(connection) = of_peer {
                        connection.down.push(message);
                    }
                }
            }
        }
        Ok(())
    }
}

impl Place {
    /// Puts a datagram in flight. A heartbeat replaces the oldest one when the maximum is in
    /// flight.
    fn send(&mut self, cores: &Cores<'_>, packet: PacketId) {
        let identity = cores.said.identity(packet);
        if identity.is_heartbeat() {
            let older = |id: &PacketId| {
                let older = cores.said.identity(*id);
                older.is_heartbeat() && older.epoch == identity.epoch
            };
            let in_flight = self.packets.iter().filter(|id| older(id)).count();
            if in_flight >= cores.plan.heartbeats_max
                && let Some(oldest) = self.packets.iter().position(older)
            {
                self.packets.remove(oldest);
            }
        }
        self.packets.push(packet);
    }
}
