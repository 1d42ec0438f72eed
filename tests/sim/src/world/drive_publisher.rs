//! Drives the cores of publishers as their driver would: after every input, it performs all actions
//! that the core requests, and then runs the checks.

use rand::RngExt;
use std::net::Ipv4Addr;

use tickcast_reliability::control::{BODY_LEN_MAX_TO_PUBLISHER, Message, NackClass};
use tickcast_reliability::publish::{PublisherEvent, Transmit};
use tickcast_reliability::serve::{Carrier, Destination, RepairEvent, RepairInput};
use tickcast_reliability::session::Path;
use tickcast_reliability::types::{FanOutId, Nanos, PeerOrigin};

use crate::actors::publisher::{Arrival, PublisherActor};
use crate::checks::counters;
use crate::checks::loss_reason::nothing_held_is_refused;
use crate::checks::refusals::Asker;
use crate::checks::tamper::Tamper;
use crate::feed::Interruption;
use crate::feed::torn_copy;
use crate::network::packet::packet;
use crate::network::stream::Connection;
use crate::world::{SPINS_MAX, World, now_of};

/// Name of the fault that a writer laps the ring during a copy, and its maximum number in a run.
/// Each lap causes more repairs, and so more copies.
const LAPPED: &str = "writer_in_mid_copy";
const LAPS_MAX: u64 = 60;

impl World {
    /// Performs all actions that a publisher's cores request.
    pub(crate) fn serve(&mut self, index: usize) -> Result<(), String> {
        if !self.publishers[index].alive || self.publishers[index].paused {
            return Ok(());
        }
        self.check_cursors(index)?;
        let now = now_of(self.now, self.utc);
        let publisher = &mut self.publishers[index];
        for feed in &mut publisher.feeds {
            feed.core.handle_timeout(now);
        }
        publisher.repair.handle(now, RepairInput::Timeout);
        publisher.refusals.ticks(&publisher.feeds, now.monotonic);
        for at in 0..self.plan.channels {
            while let Some(event) = self.publishers[index].feeds[at].core.poll() {
                if let PublisherEvent::FanOutReset { fan_out, skipped } = event {
                    let output = &mut self.publishers[index].feeds[at].output;
                    output.skipped(fan_out.0.into(), skipped, self.now);
                    self.count("fan_out_reset");
                } else {
                    self.count("oversize_message");
                }
            }
            for fan_out in 0..self.plan.fan_outs {
                self.send_fan_out(index, at, fan_out)?;
            }
            let publisher = &self.publishers[index];
            (publisher.feeds[at].output)
                .on_time(&publisher.stalled, self.now)
                .map_err(|what| format!("publisher {index}: {what}"))?;
        }
        self.send_repairs(index)?;
        self.begin_writes(index)?;
        let publisher = &mut self.publishers[index];
        let (mut close, mut joined) = (Vec::new(), Vec::new());
        while let Some(event) = publisher.repair.poll() {
            match event {
                RepairEvent::Close { peer, .. } => close.extend(publisher.peers.remove(&peer)),
                RepairEvent::ReadJoined { .. } => joined.push(event),
                _ => {}
            }
        }
        for event in &joined {
            self.bind(index, event)?;
        }
        if !joined.is_empty() {
            self.send_repairs(index)?;
        }
        let publisher = &mut self.publishers[index];
        let mut due = publisher.repair.poll_timeout().unwrap_or(Nanos::MAX);
        for feed in &mut publisher.feeds {
            let (subscribers, hold_off_us) = publisher.repair.group(feed.channel);
            feed.core.set_group(subscribers, hold_off_us);
            counters::repair(&feed.repair).map_err(|what| format!("publisher {index}: {what}"))?;
            due = due.min(feed.core.poll_timeout().unwrap_or(Nanos::MAX));
        }
        let left = std::mem::take(&mut publisher.left);
        if let Some(peer) = left.iter().find(|peer| publisher.peers.contains_key(peer)) {
            return Err(format!("publisher {index}: {peer:?} has left, and is kept"));
        }
        (publisher.budgets.settled(&publisher.peers))
            .map_err(|what| format!("publisher {index}: {what}"))?;
        if due > self.now {
            publisher.spins = 0;
        } else {
            publisher.spins += 1;
            if publisher.spins > SPINS_MAX {
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

    fn send_fan_out(&mut self, index: usize, at: usize, fan_out: u8) -> Result<(), String> {
        let id = FanOutId(fan_out);
        if self.publishers[index].stalled[usize::from(fan_out)] {
            return Ok(());
        }
        let channel = self.publishers[index].feeds[at].channel;
        while let Some(transmit) = self.publishers[index].feeds[at].core.poll_transmit(id) {
            match transmit {
                Transmit::Slots(range) => {
                    for sequence in range.iter() {
                        let feed = &mut self.publishers[index].feeds[at];
                        let slot = feed.core.slot(sequence);
                        let slot = slot.ok_or("a slot to be sent is gone")?;
                        feed.output.slot(fan_out.into(), slot, self.now)?;
                        let packet = packet(channel, slot);
                        self.multicast(fan_out, &packet);
                    }
                    let core = &mut self.publishers[index].feeds[at].core;
                    core.handle_posted(id, range.last);
                    core.handle_completed(id, range.last);
                }
                Transmit::Heartbeat(bytes) => {
                    let output = &mut self.publishers[index].feeds[at].output;
                    output.heartbeat(fan_out.into(), &bytes, self.now)?;
                    self.multicast(fan_out, &packet(channel, &bytes));
                }
            }
        }
        Ok(())
    }

    fn send_repairs(&mut self, index: usize) -> Result<(), String> {
        let mut out = Vec::new();
        let (mut peers, mut multicasts) = (Vec::new(), Vec::new());
        loop {
            out.clear();
            let Some(destination) = self.next_repair(index, &mut out)? else {
                break;
            };
            let publisher = &mut self.publishers[index];
            let connection = match destination {
                Destination::Multicast(_) => None,
                Destination::Peer(peer) => publisher.peers.get(&peer).copied(),
            };
            let of = connection.map(|connection| {
                let of = &self.connections[connection];
                (of.path, of.payer)
            });
            if self.tampering.is_it(|tamper| match tamper {
                Tamper::GiveTwice(n) if out.len() > 512 => Some(n),
                _ => None,
            }) {
                out.extend_from_within(..);
            }
            (publisher.budgets)
                .given(self.now, (destination, of), &out, &publisher.feeds)
                .map_err(|what| format!("publisher {index}: {what}"))?;
            if let Destination::Peer(peer) = destination {
                let more = publisher.granted.reported(&out)?;
                (publisher.budgets.granted(self.now, peer, more))
                    .map_err(|what| format!("publisher {index}: {what}"))?;
            }
            let PublisherActor {
                replies,
                feeds,
                repair,
                ..
            } = publisher;
            let (group, now) = (
                |channel| repair.group(channel).0,
                now_of(self.now, self.utc),
            );
            (replies.given(destination, &out, (feeds, &group), now))
                .map_err(|what| format!("publisher {index}: {what}"))?;
            publisher.gave_out(destination, &out)?;
            if let Destination::Peer(peer) = destination {
                nothing_held_is_refused(&publisher.feeds, self.plan.ring_slots, &out)
                    .and_then(|()| publisher.refusals.given(peer, &publisher.feeds, &out))
                    .map_err(|what| format!("publisher {index}: {what}"))?;
            }
            match (destination, connection) {
                (Destination::Multicast(channel), _) => multicasts.push(packet(channel, &out)),
                (Destination::Peer(peer), None) => {
                    return Err(format!("publisher {index} speaks to {peer:?}, who is gone"));
                }
                (Destination::Peer(peer), Some(connection)) => {
                    let pipe = &mut self.connections[connection].down;
                    pipe.unsent.extend(&out);
                    let backlog = pipe.unsent.len();
                    publisher
                        .repair
                        .handle(now, RepairInput::Backlog(peer, backlog));
                    let most = self.plan.repair.backlog_close_bytes + (1 << 17);
                    if backlog > most {
                        return Err(format!("{backlog} bytes wait for {peer:?}"));
                    }
                    peers.push(connection);
                }
            }
        }
        self.publishers[index].refusals.settled();
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

    /// Returns the next repair; the writer sometimes laps the ring during its copy.
    fn next_repair(
        &mut self,
        index: usize,
        out: &mut Vec<u8>,
    ) -> Result<Option<Destination>, String> {
        let now = now_of(self.now, self.utc);
        if !self.comes_round(index) {
            return Ok(self.publishers[index].repair.poll_transmit(now, out));
        }
        let at = self.rng.random_range(0..self.publishers[index].feeds.len());
        let interruption = self.interrupt(index, at);
        let repair = &mut self.publishers[index].repair;
        let (after, destination) =
            torn_copy::during(interruption, || repair.poll_transmit(now, out));
        self.interrupted(index, at, after)?;
        Ok(destination)
    }

    /// Returns whether a publisher's writer laps the ring during the current copy.
    pub(crate) fn comes_round(&mut self, index: usize) -> bool {
        let share = self.plan.lapped_mid_copy;
        share > 0.0
            && self.weather
            && self.rng.random_bool(share)
            && self.faults.get(LAPPED).is_none_or(|n| *n < LAPS_MAX)
            && !self.publishers[index].finished()
    }

    /// Takes a feed out, so that it can publish in the middle of a copy.
    pub(crate) fn interrupt(&mut self, index: usize, at: usize) -> Interruption {
        Interruption {
            feed: self.publishers[index].feeds.remove(at),
            messages: self.rng.random_range(1..=self.plan.ring_slots * 3),
            now: now_of(self.now, self.utc),
            happened: 0,
            result: Ok(()),
        }
    }

    /// Puts the feed back and schedules the sending of the datagrams that it published.
    pub(crate) fn interrupted(
        &mut self,
        index: usize,
        at: usize,
        after: Interruption,
    ) -> Result<(), String> {
        let publisher = &mut self.publishers[index];
        publisher.feeds.insert(at, after.feed);
        after.result?;
        publisher.write_down(&mut self.truth)?;
        if after.happened > 0 {
            self.count(LAPPED);
            self.wake_publisher(index, self.now.after(Nanos(1_000)));
        }
        Ok(())
    }

    /// Returns the identity of a NACK's sender, as the publisher of the connection knows it.
    /// Returns `None` when the received bytes hold no NACK.
    fn asker(&self, connection: usize) -> Option<Asker> {
        let this = &self.connections[connection];
        let mut rest = &this.up.received[..];
        let messages = std::iter::from_fn(|| {
            let read = Message::read(rest, BODY_LEN_MAX_TO_PUBLISHER);
            let (_, message, len) = read.ok().flatten()?;
            rest = &rest[len..];
            Some(message)
        });
        let mut nacks = messages.filter(|message| matches!(message, Message::Nack { .. }));
        nacks.next()?;
        let peers = &self.publishers[this.publisher].peers;
        let session = peers.values().map(|other| &self.connections[*other]);
        let session = session.filter(|c| (c.subscriber, c.life) == (this.subscriber, this.life));
        let has = |path| session.clone().any(|other| other.path == path);
        Some(Asker {
            peer: this.peer,
            path: this.path,
            replays: has(Path::Replay),
            asks_elsewhere: this.path == Path::Nack || has(Path::Nack),
            peers: peers.len() as u64,
        })
    }

    /// Passes an input to a publisher's process, or queues it while the process is paused.
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
                let Connection {
                    peer, subscriber, ..
                } = self.connections[connection];
                publisher.peers.insert(peer, connection);
                // Two subscribers run on each host.
                let origin = PeerOrigin::V4(Ipv4Addr::from_bits(subscriber as u32 / 2));
                publisher
                    .repair
                    .handle(now, RepairInput::Connected(peer, Carrier::Verbs, origin));
            }
            Arrival::Closed(connection) => {
                let peer = self.connections[connection].peer;
                if publisher.peers.remove(&peer).is_some() {
                    publisher
                        .repair
                        .handle(now, RepairInput::Disconnected(peer));
                }
            }
            Arrival::Bytes(connection) => {
                let asker = self.asker(connection);
                let publisher = &mut self.publishers[index];
                let Connection {
                    peer,
                    payer,
                    path,
                    up,
                    down,
                    ..
                } = &mut self.connections[connection];
                let (peer, payer, path) = (*peer, *payer, *path);
                if !publisher.peers.contains_key(&peer) {
                    return Ok(());
                }
                let mut taken = 0;
                while let Some((channel, message, len)) =
                    Message::read(&up.received[taken..], BODY_LEN_MAX_TO_PUBLISHER)
                        .map_err(|e| e.to_string())?
                {
                    taken += len;
                    let asked = match &message {
                        Message::Nack {
                            epoch,
                            class,
                            ranges,
                        } => Some((*epoch, *class, ranges.clone())),
                        _ => None,
                    };
                    // TCP reports the bytes in flight; a reliable connection over verbs does not.
                    if asked.is_some() && path != Path::Nack {
                        let left = down.unsent.len() + down.under_way;
                        publisher
                            .repair
                            .handle(now, RepairInput::InFlight(peer, left));
                    }
                    let progress = match &message {
                        Message::Progress(progress) => Some(*progress),
                        _ => None,
                    };
                    let mut feeds = publisher.feeds.iter_mut();
                    if let Some(feed) = feeds.find(|feed| feed.channel == channel) {
                        feed.output.asked(peer, &message);
                    }
                    if matches!(message, Message::Leave) {
                        publisher.left.insert(peer);
                        self.tally.checked("left", 1);
                    }
                    publisher
                        .repair
                        .handle(now, RepairInput::Message(peer, channel, &message));
                    let feed = publisher.feeds.iter().find(|f| f.channel == channel);
                    if let (Some(feed), Some(progress)) = (feed, progress) {
                        publisher.replies.reported(peer, feed, progress, now);
                    }
                    let Some((epoch, class, ranges)) = asked else {
                        continue;
                    };
                    let slots = feed.map_or(u64::MAX, |feed| feed.reader.geometry().slots());
                    (publisher.budgets).asked(peer, &ranges, slots, &publisher.feeds);
                    if let Some(feed) = publisher.feeds.iter().find(|f| f.channel == channel)
                        && let Some(asker) = &asker
                    {
                        let of = (epoch, class);
                        publisher.refusals.asked(asker, feed, of, &ranges);
                        let class = match path {
                            Path::Nack => NackClass::Repair,
                            Path::Replay => NackClass::Replay,
                            _ => class,
                        };
                        // A NACK of another epoch requests nothing from this ring.
                        let is_ours = epoch == feed.reader.identity().epoch;
                        let ranges = if is_ours { &ranges[..] } else { &[] };
                        (publisher.replies)
                            .asked((peer, payer), feed, class, ranges, now.monotonic)
                            .map_err(|what| format!("publisher {index}: {what}"))?;
                    }
                }
                up.received.drain(..taken);
            }
        }
        self.serve(index)
    }
}
