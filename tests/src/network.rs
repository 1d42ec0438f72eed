//! Between publishers and subscribers: datagrams that may come or not, and connections that carry
//! bytes in order until they are cut.

use std::rc::Rc;

use rand::RngExt;
use tickcast_reliability::control::{
    BODY_LEN_MAX_TO_PUBLISHER, BODY_LEN_MAX_TO_SUBSCRIBER, Message,
};
use tickcast_reliability::delivery::{LineId, LinkDownReason};
use tickcast_reliability::peers::PeerId;
use tickcast_reliability::publisher_core::Transmit;
use tickcast_reliability::record::{words_as_bytes, words_as_bytes_mut};
use tickcast_reliability::repair_core::{Destination, RepairEvent};
use tickcast_reliability::subscriber_core::{Action, Path};
use tickcast_reliability::units::{FanOutId, Nanos};

use crate::balance::{self, Meter};
use crate::faults::{Copy, Damage, Whom};
use crate::pipe::{Connection, Pipe, RECEIVE_BUFFER};
use crate::publisher::Arrival;
use crate::subscriber::{CHANNEL, Packet, index_of};
use crate::world::{Event, World, now_of, spins_max};

/// Line B is a little slower.
const LINE_SKEW: Nanos = Nanos::from_us(30);
/// How soon something that does not pass is tried again.
const RETRANSMIT: Nanos = Nanos::from_ms(1);

fn packet(bytes: &[u8]) -> Packet {
    let mut words = vec![0u64; bytes.len().div_ceil(8)];
    words_as_bytes_mut(&mut words)[..bytes.len()].copy_from_slice(bytes);
    Packet {
        words: Rc::from(words),
        len: bytes.len(),
    }
}

fn damaged(packet: &Packet, damage: Damage) -> Packet {
    let bytes = &words_as_bytes(&packet.words)[..packet.len];
    match damage {
        Damage::None => packet.clone(),
        Damage::Cut(len) => Packet {
            words: packet.words.clone(),
            len,
        },
        Damage::Flip { first, bits } => {
            let mut bytes = bytes.to_vec();
            for bit in (first..bytes.len() * 8).take(bits) {
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
            self::packet(&bytes)
        }
    }
}

impl World {
    /// Does everything that a publisher wants done.
    pub(crate) fn serve(&mut self, index: usize) -> Result<(), String> {
        if !self.publishers[index].alive || self.publishers[index].paused {
            return Ok(());
        }
        let now = now_of(self.now, self.utc);
        let publisher = &mut self.publishers[index];
        publisher.core.handle_timeout(now);
        publisher.repair.handle_timeout(now);
        for fan_out in 0..self.plan.fan_outs {
            self.send_fan_out(index, fan_out)?;
        }
        while let Some(event) = self.publishers[index].core.poll() {
            let _ = event;
            self.count("publisher_event");
        }
        self.send_repairs(index)?;
        let publisher = &mut self.publishers[index];
        let mut close = Vec::new();
        while let Some(event) = publisher.repair.poll() {
            if let RepairEvent::Close { peer, .. } = event {
                close.extend(publisher.peers.remove(&peer));
            }
        }
        let (subscribers, hold_off_us) = publisher.repair.group(CHANNEL);
        publisher.core.set_group(subscribers, hold_off_us);
        balance::repair(&publisher.counters)
            .map_err(|what| format!("publisher {index}: {what}"))?;
        let due = (publisher.core.poll_timeout().unwrap_or(Nanos::MAX))
            .min(publisher.repair.poll_timeout().unwrap_or(Nanos::MAX));
        if due > self.now {
            publisher.spins = 0;
        } else {
            publisher.spins += 1;
            if publisher.spins > spins_max() {
                return Err(format!(
                    "publisher {index} wants to be woken again and again"
                ));
            }
        }
        let due = due.max(self.now.after(Nanos(1_000)));
        self.wake_publisher(index, due);
        for connection in close {
            self.connections[connection].down.closing = true;
            self.kick(connection, false);
        }
        Ok(())
    }

    fn send_fan_out(&mut self, index: usize, fan_out: u8) -> Result<(), String> {
        let id = FanOutId(fan_out);
        if self.publishers[index].stalled[usize::from(fan_out)] {
            return Ok(());
        }
        while let Some(transmit) = self.publishers[index].core.poll_transmit(id) {
            match transmit {
                Transmit::Slots(range) => {
                    for sequence in range.iter() {
                        let slot = self.publishers[index].core.slot(sequence);
                        let packet = packet(slot.ok_or("a slot to be sent is gone")?);
                        self.multicast(fan_out, &packet);
                    }
                    let core = &mut self.publishers[index].core;
                    core.handle_posted(id, range.last);
                    core.handle_completed(id, range.last);
                }
                Transmit::Heartbeat(bytes) => self.multicast(fan_out, &packet(&bytes)),
            }
        }
        Ok(())
    }

    fn send_repairs(&mut self, index: usize) -> Result<(), String> {
        let now = now_of(self.now, self.utc);
        let mut out = Vec::new();
        let (mut peers, mut multicasts) = (Vec::new(), Vec::new());
        loop {
            out.clear();
            let publisher = &mut self.publishers[index];
            let Some(destination) = publisher.repair.poll_transmit(now, &mut out) else {
                break;
            };
            meter(publisher, &self.plan, self.now, destination)
                .map_err(|what| format!("publisher {index}: {what}"))?;
            match destination {
                Destination::Multicast(_) => multicasts.push(packet(&out)),
                Destination::Peer(peer) => {
                    let Some(&connection) = publisher.peers.get(&peer) else {
                        return Err(format!("publisher {index} speaks to {peer:?}, who is gone"));
                    };
                    let pipe = &mut self.connections[connection].down;
                    pipe.unsent.extend(&out);
                    let backlog = pipe.unsent.len();
                    publisher.repair.handle_backlog(peer, backlog);
                    let most = self.plan.repair.backlog_close_bytes + (1 << 17);
                    if backlog > most {
                        return Err(format!("{backlog} bytes wait for {peer:?}"));
                    }
                    peers.push(connection);
                }
            }
        }
        for packet in multicasts {
            self.tally.multicast_repairs += 1;
            for fan_out in 0..self.plan.fan_outs {
                if !self.publishers[index].stalled[usize::from(fan_out)] {
                    self.multicast(fan_out, &packet);
                }
            }
        }
        for connection in peers {
            self.kick(connection, false);
        }
        Ok(())
    }

    /// Sends a datagram on all lines of a fan-out.
    fn multicast(&mut self, fan_out: u8, packet: &Packet) {
        let (least, most) = self.plan.delay;
        let mut common = Vec::new();
        let mut copies = Vec::new();
        for line in 0..self.plan.lines {
            self.tally.datagrams += 1;
            common.clear();
            common.push(Copy {
                late: Nanos::ZERO,
                damage: Damage::None,
            });
            self.weather(Whom::Common, line.into(), line, packet, &mut common);
            for number in 0..self.subscribers.len() {
                let subscriber = &self.subscribers[number];
                let here = number % usize::from(self.plan.fan_outs) == usize::from(fan_out);
                if !here || !subscriber.alive || !subscriber.member[usize::from(line)] {
                    continue;
                }
                if self.cut[number][0] {
                    self.count("partition_drop");
                    continue;
                }
                copies.clear();
                copies.extend_from_slice(&common);
                let path = number * 2 + usize::from(line);
                self.weather(Whom::One(number), path, line, packet, &mut copies);
                for copy in &copies {
                    let jitter = self.rng.random_range(0..=most.0 - least.0);
                    let skew = Nanos(LINE_SKEW.0 * u64::from(line));
                    let takes = least.after(Nanos(jitter)).after(skew).after(copy.late);
                    let packet = damaged(packet, copy.damage);
                    let at = self.now.after(takes);
                    self.schedule(at, Event::Datagram(number, line, packet));
                }
            }
        }
    }

    fn weather(
        &mut self,
        whom: Whom,
        path: usize,
        line: u8,
        packet: &Packet,
        copies: &mut Vec<Copy>,
    ) {
        if !self.weather || self.storms.is_empty() {
            return;
        }
        let bytes = &words_as_bytes(&packet.words)[..packet.len];
        for storm in &mut self.storms {
            let meets = match storm.whom() {
                Whom::Common => whom == Whom::Common,
                Whom::Each => whom != Whom::Common,
                one => whom == one,
            };
            if meets {
                storm.meet(path, line, bytes, &mut self.rng, copies, &mut self.faults);
            }
        }
    }

    pub(crate) fn datagram_arrives(
        &mut self,
        number: usize,
        line: u8,
        packet: Packet,
    ) -> Result<(), String> {
        let subscriber = &mut self.subscribers[number];
        if !subscriber.alive || !subscriber.member[usize::from(line)] {
            return Ok(());
        }
        if subscriber.stalled {
            if subscriber.socket.len() < self.plan.socket_datagrams {
                subscriber.socket.push_back((line, packet));
            } else {
                self.count("socket_overflow");
            }
            return Ok(());
        }
        self.hear(number, line, &packet)?;
        self.pump(number)
    }

    pub(crate) fn hear(&mut self, number: usize, line: u8, packet: &Packet) -> Result<(), String> {
        self.tally.heard += 1;
        let bytes = &words_as_bytes(&packet.words)[..packet.len];
        self.with_core(number, |core, now, mut on| {
            core.handle_received(now, CHANNEL, LineId(line), bytes, &mut on);
        })
    }

    /// Puts what a subscriber says on its connection.
    pub(crate) fn send_up(
        &mut self,
        number: usize,
        path: Path,
        frames: &[u8],
    ) -> Result<(), String> {
        let subscriber = &mut self.subscribers[number];
        subscriber
            .check_sent(frames)
            .map_err(|what| format!("subscriber {number}: {what}"))?;
        let Some(connection) = subscriber.connections[index_of(path)] else {
            return Err(format!(
                "subscriber {number} speaks on {path:?}, which is down"
            ));
        };
        let sent = frames.len() as u64;
        self.trace
            .note(self.now, "says", number, connection as u64, sent);
        self.connections[connection].up.unsent.extend(frames);
        self.kick(connection, true);
        Ok(())
    }

    pub(crate) fn act(&mut self, number: usize, action: &Action) -> Result<(), String> {
        let lines = usize::from(self.plan.lines);
        let subscriber = &mut self.subscribers[number];
        match action {
            Action::Connect(path) => {
                let at = index_of(*path);
                subscriber.attempts[at] += 1;
                let attempt = subscriber.attempts[at];
                let rtt = Nanos(self.plan.delay.0.0 * 2);
                self.schedule(self.now.after(rtt), Event::Dial(number, *path, attempt));
            }
            Action::Disconnect(path) => {
                let at = index_of(*path);
                subscriber.attempts[at] += 1;
                if let Some(connection) = subscriber.connections[at].take() {
                    self.connections[connection].near = false;
                    self.connections[connection].up.unsent.clear();
                    self.tell_closed(connection, true);
                }
            }
            Action::Listen(_) | Action::Rejoin(_) => {
                self.trace.note(self.now, "listens", number, 0, 0);
                subscriber.member[..lines].fill(true);
            }
            Action::Rejected(_) => self.count("rejected"),
        }
        Ok(())
    }

    pub(crate) fn dial(&mut self, number: usize, path: Path, attempt: u64) -> Result<(), String> {
        let at = index_of(path);
        let subscriber = &self.subscribers[number];
        if subscriber.attempts[at] != attempt || !subscriber.alive {
            return Ok(());
        }
        let publisher = &self.publishers[self.endpoint];
        let silent = publisher.dark || self.cut[number][1] || self.cut[number][2];
        if silent || subscriber.stalled {
            let again = self.now.after(Nanos(RETRANSMIT.0 * 3));
            self.schedule(again, Event::Dial(number, path, attempt));
            return Ok(());
        }
        if !publisher.alive {
            let reason = LinkDownReason::Unreachable;
            self.with_core(number, |core, now, mut on| {
                core.handle_disconnected(now, path, reason, &mut on);
            })?;
            return self.pump(number);
        }
        let connection = self.connections.len();
        self.connections.push(Connection {
            publisher: self.endpoint,
            subscriber: number,
            life: subscriber.life,
            path,
            peer: PeerId(connection as u64),
            near: true,
            far: true,
            up: Pipe::default(),
            down: Pipe::default(),
        });
        self.trace
            .note(self.now, "connects", number, at as u64, connection as u64);
        self.tally.connections += 1;
        self.subscribers[number].connections[at] = Some(connection);
        self.subscribers[number].connected();
        self.with_core(number, |core, now, _| core.handle_connected(now, path))?;
        self.arrives(self.endpoint, Arrival::Connected(connection))?;
        self.pump(number)
    }

    /// Something comes to a publisher's process, which may stand still.
    pub(crate) fn arrives(&mut self, index: usize, arrival: Arrival) -> Result<(), String> {
        let publisher = &mut self.publishers[index];
        if !publisher.alive {
            return Ok(());
        }
        if publisher.paused {
            publisher.waiting.push_back(arrival);
            return Ok(());
        }
        let now = now_of(self.now, self.utc);
        match arrival {
            Arrival::Connected(connection) => {
                let peer = self.connections[connection].peer;
                publisher.peers.insert(peer, connection);
                publisher.repair.handle_connected(now, peer);
            }
            Arrival::Closed(connection) => {
                let peer = self.connections[connection].peer;
                if publisher.peers.remove(&peer).is_some() {
                    publisher.repair.handle_disconnected(peer);
                }
            }
            Arrival::Bytes(connection) => {
                let Connection { peer, up, .. } = &mut self.connections[connection];
                let peer = *peer;
                if !publisher.peers.contains_key(&peer) {
                    return Ok(());
                }
                let mut taken = 0;
                while let Some((channel, message, len)) =
                    Message::read(&up.received[taken..], BODY_LEN_MAX_TO_PUBLISHER)
                        .map_err(|e| e.to_string())?
                {
                    taken += len;
                    publisher.repair.handle_message(now, peer, channel, message);
                }
                up.received.drain(..taken);
            }
        }
        self.serve(index)
    }

    /// Sets a direction in motion, if it stands still.
    pub(crate) fn kick(&mut self, connection: usize, up: bool) {
        let pipe = self.connections[connection].pipe(up);
        if !pipe.moving && (!pipe.unsent.is_empty() || pipe.closing) {
            pipe.moving = true;
            self.schedule(self.now, Event::Move(connection, up));
        }
    }

    pub(crate) fn move_on(&mut self, connection: usize, up: bool) -> Result<(), String> {
        let of = &mut self.connections[connection];
        let (number, index) = (of.subscriber, of.publisher);
        let open = if up { of.near } else { of.far };
        let pipe = of.pipe(up);
        if !open {
            (pipe.moving, pipe.closing) = (false, false);
            pipe.unsent.clear();
            return Ok(());
        }
        let full = pipe.received.len() >= RECEIVE_BUFFER;
        if self.cut[number][if up { 1 } else { 2 }] || full {
            self.schedule(self.now.after(RETRANSMIT), Event::Move(connection, up));
            return Ok(());
        }
        let publisher = &self.publishers[index];
        if up && publisher.dark {
            // Nobody answers; once another host has the address, it resets what it does not know.
            let again = self.now.after(RETRANSMIT);
            if self.endpoint == index {
                self.schedule(again, Event::Move(connection, up));
            } else {
                self.schedule(again, Event::Closed(connection, false));
            }
            return Ok(());
        }
        if pipe.unsent.is_empty() {
            pipe.moving = false;
            if pipe.closing {
                pipe.closing = false;
                if up {
                    of.near = false;
                } else {
                    of.far = false;
                }
                self.tell_closed(connection, up);
            }
            return Ok(());
        }
        let len = self.rng.random_range(1..6000);
        let bytes = pipe.take(len);
        let (least, most) = self.plan.delay;
        let jitter = Nanos(self.rng.random_range(0..=most.0 - least.0));
        let at = (self.now.after(least).after(jitter)).max(pipe.last_arrival);
        pipe.last_arrival = at;
        let left = pipe.unsent.len();
        let takes = bytes.len() as u64 * 1_000_000_000 / self.plan.connection_bytes_per_s;
        self.schedule(at, Event::Bytes(connection, up, bytes));
        self.schedule(self.now.after(Nanos(takes)), Event::Move(connection, up));
        if !up && !self.publishers[index].paused {
            let peer = self.connections[connection].peer;
            let publisher = &mut self.publishers[index];
            if publisher.peers.contains_key(&peer) {
                publisher.repair.handle_backlog(peer, left);
                let due = publisher.repair.poll_timeout().unwrap_or(Nanos::MAX);
                if due <= self.now {
                    self.wake_publisher(index, self.now);
                }
            }
        }
        Ok(())
    }

    pub(crate) fn bytes_arrive(
        &mut self,
        connection: usize,
        up: bool,
        bytes: &[u8],
    ) -> Result<(), String> {
        let of = &mut self.connections[connection];
        let (number, index) = (of.subscriber, of.publisher);
        let open = if up { of.far } else { of.near };
        if !open {
            return Ok(());
        }
        of.pipe(up).received.extend_from_slice(bytes);
        if up {
            return self.arrives(index, Arrival::Bytes(connection));
        }
        if self.subscribers[number].stalled {
            return Ok(());
        }
        self.read_down(connection)?;
        self.pump(number)
    }

    /// The application reads what came on a connection.
    pub(crate) fn read_down(&mut self, connection: usize) -> Result<(), String> {
        let of = &mut self.connections[connection];
        let (number, path) = (of.subscriber, of.path);
        let received = std::mem::take(&mut of.down.received);
        let mut taken = 0;
        while self.connections[connection].near {
            let read = Message::read(&received[taken..], BODY_LEN_MAX_TO_SUBSCRIBER)
                .map_err(|e| e.to_string())?;
            let Some((channel, message, len)) = read else {
                break;
            };
            taken += len;
            if let Message::Refused(refused) = &message {
                let (first, last) = (refused.range.first.0, refused.range.last.0);
                self.trace.note(self.now, "refused", number, first, last);
                self.subscribers[number].refused(first, last);
            }
            self.with_core(number, |core, now, mut on| {
                core.handle_message(now, path, channel, &message, &mut on);
            })?;
            // What it breaks off, it does not hear any more of.
            while let Some(action) = self.subscribers[number].core.poll_action() {
                self.act(number, &action)?;
            }
        }
        self.connections[connection].down.received = received[taken..].to_vec();
        Ok(())
    }

    /// One side closed: the other (`far`: the publisher's) will learn of it.
    pub(crate) fn tell_closed(&mut self, connection: usize, far: bool) {
        let delay = self.plan.delay.0;
        let arrival = self.connections[connection].pipe(far).last_arrival;
        let at = self.now.after(delay).max(arrival);
        self.schedule(at, Event::Closed(connection, far));
    }

    pub(crate) fn closed(&mut self, connection: usize, far: bool) -> Result<(), String> {
        let of = &self.connections[connection];
        let (number, index, path) = (of.subscriber, of.publisher, of.path);
        let open = if far { of.far } else { of.near };
        if !open {
            return Ok(());
        }
        let stalled = !far && self.subscribers[number].stalled;
        if self.cut[number][if far { 1 } else { 2 }] || stalled {
            let again = self.now.after(RETRANSMIT);
            self.schedule(again, Event::Closed(connection, far));
            return Ok(());
        }
        if far {
            self.connections[connection].far = false;
            return self.arrives(index, Arrival::Closed(connection));
        }
        self.connections[connection].near = false;
        let subscriber = &mut self.subscribers[number];
        let slot = &mut subscriber.connections[index_of(path)];
        if *slot != Some(connection) {
            return Ok(());
        }
        *slot = None;
        self.trace
            .note(self.now, "closed", number, connection as u64, 0);
        self.with_core(number, |core, now, mut on| {
            core.handle_disconnected(now, path, LinkDownReason::Closed, &mut on);
        })?;
        self.pump(number)
    }
}

/// Holds what repair gave out against its budgets.
fn meter(
    publisher: &mut crate::publisher::Publisher,
    plan: &crate::profiles::Plan,
    now: Nanos,
    destination: Destination,
) -> Result<(), String> {
    let c = &publisher.counters;
    let bytes = (
        c.repair_bytes.get(),
        c.multicast_repair_bytes.get(),
        c.replay_bytes.get(),
    );
    let before = std::mem::replace(&mut publisher.meters.seen, bytes);
    let (unicast, replay) = (bytes.0 - before.0, bytes.2 - before.2);
    let all = unicast + bytes.1 - before.1;
    if publisher.meters.repair.pass(now, all) {
        return Err("more repair than its budget".into());
    }
    if publisher.meters.joiners.pass(now, replay) {
        return Err("more replay than its budget".into());
    }
    if let Destination::Peer(peer) = destination {
        let meters = &mut publisher.meters.peers;
        let meter = meters.entry(peer).or_insert_with(|| {
            let r = &plan.repair;
            Meter::new(r.subscriber_bytes_per_s, r.subscriber_burst_bytes)
        });
        if meter.pass(now, unicast) {
            return Err(format!("more repair for {peer:?} than its budget"));
        }
    }
    Ok(())
}
