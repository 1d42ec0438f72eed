//! Connections: ordered byte streams that can be slow, delayed, half open, or cut.

use std::collections::VecDeque;

use rand::RngExt;
use tickcast_reliability::control::{BODY_LEN_MAX_TO_SUBSCRIBER, ChannelOffer, Message, NackClass};
use tickcast_reliability::delivery::LinkDownReason;
use tickcast_reliability::serve::{PeerId, RepairInput};
use tickcast_reliability::session::{Action, Path, SubscriberInput};
use tickcast_reliability::types::Nanos;

use crate::actors::publisher::Arrival;
use crate::checks::tamper::Tamper;
use crate::network::clock_queue::Event;
use crate::network::stream::index_of;
use crate::network::stream::{Connection, Pipe, RECEIVE_BUFFER};
use crate::world::drive_subscriber::Came;
use crate::world::{World, now_of};

/// Interval at which a delayed transfer is retried.
const RETRANSMIT: Nanos = Nanos::from_ms(1);

impl World {
    /// Checks frames that a subscriber sends, and puts them on its connection.
    pub(crate) fn send_up(
        &mut self,
        number: usize,
        path: Path,
        frames: &[u8],
    ) -> Result<(), String> {
        let subscriber = &mut self.subscribers[number];
        if !self.plan.impostor {
            subscriber
                .check_sent(path, frames, self.now)
                .map_err(|what| format!("subscriber {number}: {what}"))?;
        }
        let Some(connection) = subscriber.connections[index_of(path)] else {
            return Err(format!(
                "subscriber {number} speaks on {path:?}, which is down"
            ));
        };
        let mut rest = frames;
        let mut asks = false;
        while let Ok(Some((_, message, len))) = Message::read(rest, 1 << 20) {
            rest = &rest[len..];
            if let Message::Nack { class, ranges, .. } = message {
                asks = true;
                let what = match (path, class) {
                    (Path::Nack, _) => "asks-on-nack",
                    (_, NackClass::Repair) => "asks",
                    (_, NackClass::Replay) => "asks-replay",
                };
                for range in ranges {
                    let (first, last) = (range.first.0, range.last.0);
                    self.trace.note(self.now, what, number, first, last);
                }
            }
        }
        if asks
            && self.tampering.is_it(|tamper| match tamper {
                Tamper::AskTwice(n) => Some(n),
                _ => None,
            })
        {
            (self.subscribers[number].check_sent(path, frames, self.now))
                .map_err(|what| format!("subscriber {number}: {what}"))?;
        }
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
                if self.plan.timed {
                    self.dials.push((number, *path, self.now));
                }
                let rtt = Nanos(self.plan.delay.0.0 * 2);
                self.schedule(self.now.after(rtt), Event::Dial(number, *path, attempt));
            }
            Action::Disconnect(path) => {
                let at = index_of(*path);
                subscriber.attempts[at] += 1;
                subscriber.reconnected(*path, self.now);
                if let Some(connection) = subscriber.connections[at].take() {
                    self.connections[connection].near = false;
                    self.connections[connection].up.unsent.clear();
                    self.tell_closed(connection, true);
                }
            }
            Action::Listen(ChannelOffer { channel, .. }) | Action::Rejoin(channel) => {
                if let Action::Listen(offer) = action
                    && self.plan.is_standby(number)
                {
                    subscriber.keeps_mirror(self.now, &self.plan, offer)?;
                }
                self.trace
                    .note(self.now, "listens", number, channel.0.into(), 0);
                if let Some(of) = subscriber.following_mut(*channel) {
                    if matches!(action, Action::Rejoin(_)) {
                        of.silence.rejoined(self.now);
                    }
                    of.member[..lines].fill(true);
                }
            }
            Action::Inbox(channel, wanted) => self.make_inbox(number, *channel, wanted)?,
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
        let closed = self.is_closed(number, path, 1) || self.is_closed(number, path, 2);
        let silent = publisher.dark || closed;
        if silent || subscriber.stalled {
            let again = self.now.after(Nanos(RETRANSMIT.0 * 3));
            self.schedule(again, Event::Dial(number, path, attempt));
            return Ok(());
        }
        if !publisher.alive {
            let reason = LinkDownReason::Unreachable;
            self.with_core(number, |core, now, mut on| {
                core.handle(now, SubscriberInput::Disconnected(path, reason), &mut on);
            })?;
            return self.pump(number);
        }
        let connection = self.connections.len();
        let payer = subscriber.connections[0].filter(|_| matches!(path, Path::Nack | Path::Read));
        self.connections.push(Connection {
            publisher: self.endpoint,
            subscriber: number,
            life: subscriber.life,
            path,
            peer: PeerId(connection as u64),
            payer: PeerId(payer.unwrap_or(connection) as u64),
            near: true,
            far: true,
            up: Pipe::default(),
            down: Pipe::default(),
            reads_begun: VecDeque::new(),
            reads_done: VecDeque::new(),
            read_at: Nanos::ZERO,
            writes: VecDeque::new(),
            write_at: Nanos::ZERO,
        });
        self.trace
            .note(self.now, "connects", number, at as u64, connection as u64);
        self.tally.connections += 1;
        self.subscribers[number].connections[at] = Some(connection);
        self.subscribers[number].reconnected(path, self.now);
        let limits = self.read_limits();
        self.with_core(number, |core, now, mut on| {
            if path == Path::Read {
                core.handle(now, SubscriberInput::Limits(limits), &mut on);
            }
            core.handle(now, SubscriberInput::Connected(path), &mut on);
        })?;
        self.arrives(self.endpoint, Arrival::Connected(connection))?;
        self.pump(number)
    }

    /// Returns whether this link of a subscriber's connection carries nothing: 1 is up, 2 is down.
    pub(crate) fn is_closed(&self, number: usize, path: Path, link: usize) -> bool {
        let broken = matches!(path, Path::Nack | Path::Read) && self.cut[number][3];
        broken || self.cut[number][link] || self.clogged[number][link]
    }

    /// Schedules the next step of a direction that is idle and has something to send.
    pub(crate) fn kick(&mut self, connection: usize, up: bool) {
        let pipe = self.connections[connection].pipe(up);
        if !pipe.moving && (!pipe.unsent.is_empty() || pipe.closing) {
            pipe.moving = true;
            self.schedule(self.now, Event::Move(connection, up));
        }
    }

    pub(crate) fn move_on(&mut self, connection: usize, up: bool) -> Result<(), String> {
        let Connection {
            subscriber: number,
            path,
            ..
        } = self.connections[connection];
        let closed = self.is_closed(number, path, if up { 1 } else { 2 });
        let rc_held = matches!(path, Path::Nack | Path::Read) && self.cut[number][3];
        let of = &mut self.connections[connection];
        let index = of.publisher;
        let open = if up { of.near } else { of.far };
        let pipe = of.pipe(up);
        if !open {
            (pipe.moving, pipe.closing) = (false, false);
            pipe.unsent.clear();
            return Ok(());
        }
        let full = pipe.received.len() >= RECEIVE_BUFFER;
        if closed || full {
            if closed && !pipe.unsent.is_empty() {
                self.count(match up {
                    _ if rc_held => "rc_held",
                    true => "up_held",
                    false => "down_held",
                });
            }
            self.schedule(self.now.after(RETRANSMIT), Event::Move(connection, up));
            return Ok(());
        }
        let publisher = &self.publishers[index];
        if up && publisher.dark {
            // The host is gone, so that nothing is acknowledged. Once another host has the address,
            // it resets connections that it does not know.
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
        let rng = &mut self.subscribers[number].rng;
        let len = rng.random_range(1..6000);
        let bytes = pipe.take(len);
        let (least, most) = self.plan.delay;
        let jitter = Nanos(rng.random_range(0..=most.0 - least.0));
        let left_at = if up {
            self.now
        } else {
            self.left_at(bytes.len())
        };
        let pipe = self.connections[connection].pipe(up);
        let at = (left_at.after(least).after(jitter)).max(pipe.last_arrival);
        pipe.last_arrival = at;
        let left = pipe.unsent.len();
        let takes = Nanos(bytes.len() as u64 * 1_000_000_000 / self.plan.connection_bytes_per_s);
        self.schedule(at, Event::Bytes(connection, up, bytes));
        let again = self.now.after(takes).max(left_at);
        self.schedule(again, Event::Move(connection, up));
        if !up && !self.publishers[index].paused {
            let peer = self.connections[connection].peer;
            let publisher = &mut self.publishers[index];
            if publisher.peers.contains_key(&peer) {
                let now = now_of(self.now, self.utc);
                publisher
                    .repair
                    .handle(now, RepairInput::Backlog(peer, left));
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
        of.pipe(up).under_way -= bytes.len();
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

    /// Makes the application read the frames that arrived on a connection.
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
            }
            self.subscribers[number].answers(channel, path, &message, self.now);
            let epoch = (self.subscribers[number].core.receiver(channel)).map(|it| it.epoch());
            for of in &mut self.subscribers[number].following {
                of.loss_reason.message(of.channel, channel, &message);
                match message {
                    Message::Welcome(ref welcome) if path == Path::Repair => {
                        of.asked.welcomed(self.now);
                        let mut offers = welcome.channels.iter();
                        let offer = offers.find(|offer| offer.channel == of.channel);
                        offer
                            .into_iter()
                            .for_each(|offer| of.beginning.welcomed(offer));
                    }
                    Message::Refused(_) if of.channel == channel => of.beginning.message(&message),
                    Message::Status(status) if of.channel == channel => {
                        of.silence.status();
                        if epoch == Some(status.epoch) {
                            of.asked.pace.status(status.echo, self.now);
                        }
                    }
                    Message::Grant(grant) if of.channel == channel => {
                        of.first_nack.granted(&grant, self.now);
                    }
                    _ => {}
                }
            }
            let bytes = match &message {
                Message::Datagram(bytes) => *bytes,
                _ => &[],
            };
            self.with_datagram(number, (bytes, Came::Answered), |core, now, mut on| {
                core.handle(
                    now,
                    SubscriberInput::message(path, channel, &message),
                    &mut on,
                );
            })?;
            // The core may close the connection in an action; it must not read later frames then.
            while let Some(action) = self.subscribers[number].core.poll_action() {
                self.act(number, &action)?;
            }
        }
        self.connections[connection].down.received = received[taken..].to_vec();
        Ok(())
    }

    /// Schedules the close notification of one side (`far`: the publisher's) after the other side
    /// closed.
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
        if self.is_closed(number, path, if far { 1 } else { 2 }) || stalled {
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
        subscriber.reconnected(path, self.now);
        self.trace
            .note(self.now, "closed", number, connection as u64, 0);
        self.with_core(number, |core, now, mut on| {
            core.handle(
                now,
                SubscriberInput::Disconnected(path, LinkDownReason::Closed),
                &mut on,
            );
        })?;
        self.pump(number)
    }
}
