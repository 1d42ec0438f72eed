//! What a driver does for the cores: after every input, all that they want done, and nothing else.

use std::collections::VecDeque;

use tickcast_reliability::control::Message;
use tickcast_reliability::delivery::LinkDownReason;
use tickcast_reliability::peers::PeerId;
use tickcast_reliability::publisher_core::Transmit;
use tickcast_reliability::repair_core::{Destination, RepairEvent};
use tickcast_reliability::subscriber_core::Action;
use tickcast_reliability::units::{ChannelId, Nanos};

use super::receiver::{Connection, Packet, Receiver};
use super::world::{Checked, FAN_OUT, PATHS, World, both_clocks};
use crate::balance;
use crate::subscriber::{CHANNEL, index_of};

/// More than any frame here.
const FRAME_MAX: usize = 1 << 20;
/// Rounds of one core at one time that are too many.
const ROUNDS_MAX: u32 = 100;

impl World<'_> {
    /// The clock moves on to the next timer of any core, and whose time has come is woken.
    pub(super) fn tick(&mut self) -> Checked {
        let soon = self.now.after(Nanos(1_000));
        let publisher = (self.publisher.core.poll_timeout().unwrap_or(Nanos::MAX))
            .min(self.publisher.repair.poll_timeout().unwrap_or(Nanos::MAX));
        let due: Vec<Nanos> = (self.receivers.iter())
            .map(|r| {
                if r.started {
                    r.core.poll_timeout()
                } else {
                    Nanos::MAX
                }
            })
            .collect();
        let first = due.iter().copied().fold(publisher, Nanos::min);
        self.now = first.max(soon);
        self.changed.fill(true);
        if publisher <= self.now {
            self.serve()?;
        }
        for (r, due) in due.into_iter().enumerate() {
            if due <= self.now {
                self.pump(r)?;
            }
        }
        Ok(())
    }

    /// The next message of a connection arrives at the publisher.
    pub(super) fn up(&mut self, r: usize, path: usize) -> Result<bool, String> {
        let Some(connection) = &mut self.receivers[r].connections[path] else {
            return Ok(false);
        };
        let Some(bytes) = connection.up.pop_front() else {
            return Ok(false);
        };
        let peer = connection.peer;
        let (channel, message) = read(&bytes)?;
        if matches!(message, Message::Join(_)) && path == 0 {
            self.receivers[r].joined_at = Some(self.publisher.core.posted(FAN_OUT));
        }
        let now = both_clocks(self.now);
        self.publisher
            .repair
            .handle_message(now, peer, channel, message);
        self.serve()?;
        Ok(true)
    }

    /// The next message of a connection arrives at the receiver.
    pub(super) fn down(&mut self, r: usize, path: usize) -> Result<bool, String> {
        let Some(connection) = &mut self.receivers[r].connections[path] else {
            return Ok(false);
        };
        let Some(bytes) = connection.down.pop_front() else {
            return Ok(false);
        };
        if bytes.is_empty() {
            self.lose_connection(r, path)?;
            return Ok(true);
        }
        let (channel, message) = read(&bytes)?;
        let now = self.now;
        self.receivers[r].input(&self.truth, |core, mut on| {
            core.handle_message(now, PATHS[path], channel, &message, &mut on);
        })?;
        self.pump(r)?;
        Ok(true)
    }

    /// Does everything that a receiver's core wants done.
    pub(super) fn pump(&mut self, r: usize) -> Checked {
        self.changed[r] = true;
        let (now, mut out) = (self.now, Vec::new());
        for _ in 0..ROUNDS_MAX {
            let mut busy = false;
            let receiver = &mut self.receivers[r];
            receiver.input(&self.truth, |core, mut on| {
                core.handle_timeout(now, &mut on);
            })?;
            while let Some(path) = receiver.input(&self.truth, |core, mut on| {
                core.poll_transmit(now, &mut out, &mut on)
            })? {
                busy = true;
                if let Some(connection) = &mut receiver.connections[index_of(path)] {
                    split(&out, &mut connection.up)?;
                }
                out.clear();
            }
            while let Some(action) = self.receivers[r].core.poll_action() {
                busy = true;
                self.act(r, action)?;
            }
            if !busy {
                return Ok(());
            }
        }
        Err(format!("receiver {r} is busy without end"))
    }

    pub(super) fn act(&mut self, r: usize, action: Action) -> Checked {
        let now = self.now;
        match action {
            Action::Connect(path) => {
                let index = index_of(path);
                let receiver = &mut self.receivers[r];
                receiver.attempts[index] += 1;
                let attempt = receiver.attempts[index];
                let peer = PeerId((r as u64) << 32 | (index as u64) << 16 | attempt);
                receiver.connections[index] = Some(Connection {
                    peer,
                    up: VecDeque::new(),
                    down: VecDeque::new(),
                });
                self.publisher
                    .repair
                    .handle_connected(both_clocks(now), peer);
                self.receivers[r].input(&self.truth, |core, _| core.handle_connected(now, path))?;
                self.serve()
            }
            Action::Disconnect(path) => self.hang_up(r, index_of(path)),
            Action::Listen(_) | Action::Rejoin(_) => {
                self.receivers[r].listens = true;
                Ok(())
            }
            Action::Rejected(rejected) => {
                Err(format!("receiver {r} was rejected: {}", rejected.text))
            }
        }
    }

    /// The publisher's side learns that a connection is over.
    pub(super) fn hang_up(&mut self, r: usize, path: usize) -> Checked {
        if let Some(connection) = self.receivers[r].connections[path].take() {
            self.publisher.repair.handle_disconnected(connection.peer);
        }
        self.serve()
    }

    /// The receiver's side learns that a connection is over.
    pub(super) fn lose_connection(&mut self, r: usize, path: usize) -> Checked {
        self.receivers[r].connections[path] = None;
        let now = self.now;
        self.receivers[r].input(&self.truth, |core, mut on| {
            core.handle_disconnected(now, PATHS[path], LinkDownReason::Closed, &mut on);
        })?;
        self.pump(r)
    }

    /// Does everything that the publisher's cores want done.
    pub(super) fn serve(&mut self) -> Checked {
        *self.changed.last_mut().ok_or("no publisher")? = true;
        let now = both_clocks(self.now);
        let publisher = &mut self.publisher;
        publisher.core.handle_timeout(now);
        publisher.repair.handle_timeout(now);
        while let Some(transmit) = publisher.core.poll_transmit(FAN_OUT) {
            match transmit {
                Transmit::Slots(range) => {
                    for sequence in range.iter() {
                        let slot = publisher.core.slot(sequence).ok_or("a slot is gone")?;
                        multicast(&mut self.receivers, slot);
                    }
                    publisher.core.handle_posted(FAN_OUT, range.last);
                    publisher.core.handle_completed(FAN_OUT, range.last);
                }
                Transmit::Heartbeat(bytes) => multicast(&mut self.receivers, &bytes),
            }
        }
        let mut out = Vec::new();
        while let Some(destination) = publisher.repair.poll_transmit(now, &mut out) {
            match destination {
                Destination::Multicast(_) => multicast(&mut self.receivers, &out),
                Destination::Peer(peer) => {
                    if let Some(connection) = of_peer(&mut self.receivers, peer) {
                        split(&out, &mut connection.down)?;
                    }
                }
            }
            out.clear();
        }
        while let Some(event) = publisher.repair.poll() {
            if let RepairEvent::Close { peer, .. } = event
                && let Some(connection) = of_peer(&mut self.receivers, peer)
            {
                connection.down.push_back(Vec::new());
            }
        }
        let (subscribers, hold_off_us) = publisher.repair.group(CHANNEL);
        publisher.core.set_group(subscribers, hold_off_us);
        balance::repair(&publisher.counters)
    }
}

fn multicast(receivers: &mut [Receiver], bytes: &[u8]) {
    let packet = Packet::new(bytes);
    for receiver in receivers {
        receiver.send(&packet);
    }
}

fn of_peer(receivers: &mut [Receiver], peer: PeerId) -> Option<&mut Connection> {
    let mut connections = receivers
        .iter_mut()
        .flat_map(|r| r.connections.iter_mut().flatten());
    connections.find(|c| c.peer == peer)
}

fn split(mut frames: &[u8], to: &mut VecDeque<Vec<u8>>) -> Checked {
    while !frames.is_empty() {
        let read = Message::read(frames, FRAME_MAX).map_err(|e| e.to_string())?;
        let (_, _, taken) = read.ok_or("a message that is not whole")?;
        to.push_back(frames[..taken].to_vec());
        frames = &frames[taken..];
    }
    Ok(())
}

pub(super) fn read(bytes: &[u8]) -> Result<(ChannelId, Message<'_>), String> {
    let read = Message::read(bytes, FRAME_MAX).map_err(|e| e.to_string())?;
    let (channel, message, _) = read.ok_or("a message that is not whole")?;
    Ok((channel, message))
}
