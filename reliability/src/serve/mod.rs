//! The repair service core, one for all channels of a publisher.
//!
//! Every NACK is answered, by the datagram or by a refusal with its reason. Each subscriber's repairs
//! stay within its budget and starve no other subscriber. No peer can make the core hold unbounded
//! memory, whatever it sends.
//!
//! The core does no I/O. [`RepairCore::handle`] takes an input. Its outputs are `poll_transmit` (bytes to
//! send), `poll_write` (WRITEs to start), `poll_timeout` (when to call again) and `poll` (events). Slots are
//! copied out of the rings, never referred to. Source: docs/PROTOCOL.md §6.
//!
//! Counters balance at any time, in sequences: nacked = answered + answered by multicast + refused (by
//! reason) + cancelled + pending.

mod absent;
mod answer;
mod budgets;
mod channel;
mod coalesce;
mod config;
mod events;
mod in_flight;
mod input;
mod join;
mod lane;
mod nack;
mod origins;
mod outbox;
mod output;
mod peer;
mod peer_channels;
mod peer_id;
mod places;
mod read_grant;
mod request_queue;
mod sessions;
mod standby;
mod standby_writes;
mod token_bucket;
mod turns;

pub use self::config::{BURST_BYTES_MIN, RepairConfig, RepairConfigError};
pub use self::events::{Further, RepairEvent};
pub use self::input::RepairInput;
pub use self::peer::Carrier;
pub use self::peer_id::PeerId;
pub use self::standby_writes::{MIRROR_WRITES_MAX, MirrorWrite};
pub use self::token_bucket::TokenBucket;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::control::{
    Announced, FRAME_HEAD_LEN, Instrument, Message, MirrorRefusal, Refused, RejectCode, Rejected,
    RepairOffer,
};
use crate::ring::RingReader;
use crate::serve::absent::Absent;
use crate::serve::budgets::Budgets;
use crate::serve::channel::Channel;
pub use crate::serve::channel::ChannelInfo;
use crate::serve::events::Events;
use crate::serve::lane::Lane;
use crate::serve::origins::Origins;
use crate::serve::peer::{Peer, Role, rejected};
use crate::serve::sessions::Sessions;
use crate::serve::standby_writes::Standbys;
use crate::serve::turns::Lanes;
use crate::types::{ChannelId, Nanos, Now, PeerOrigin, RepairCounters, RepairServiceCounters};
use crate::wire::WireVersions;
use crate::wire::authentication::ChannelKeys;

/// How long the service waits for a subscriber whose connection broke. Subscribers reconnect at least
/// once a second.
const ABSENT_MAX: Nanos = Nanos::from_secs(5);
/// Interval between measurements of the live rate and checks for silent connections.
const TICK: Nanos = Nanos::from_ms(100);
/// Retry delay in a refusal for sequences that were not sent yet.
const AHEAD_RETRY_US: u64 = 100;
/// Retry delay in a refusal of a replay that is too slow.
const TOO_SLOW_RETRY_US: u64 = 1_000_000;
/// Retry delay in a refusal of a replay beyond those that an origin has at a time.
const REPLAY_RETRY_US: u64 = 100_000;
/// Maximum retry delay in a refusal for lack of budget.
const BUDGET_RETRY_US_MAX: u64 = 1_000_000;
/// Reconnect delay for a rejected peer, where reconnecting can help.
const RETRY_AFTER_MS: u64 = 1_000;
// Subscribers keep no longer wait than these bounds, so no honest one may exceed them.
const _: () = assert!(RETRY_AFTER_MS <= Rejected::WAIT_MAX_MS);
const _: () = assert!(BUDGET_RETRY_US_MAX <= Refused::WAIT_MAX_US as u64);
const _: () = assert!(TOO_SLOW_RETRY_US <= Refused::WAIT_MAX_US as u64);
/// Maximum number of turns in one call that send nothing: the caller reads messages between calls.
const PASSED_MAX: u32 = 64;

/// The destination of bytes that were appended to the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// Whole frames for this connection.
    Peer(PeerId),
    /// One datagram for the channel's multicast group, on all its fan-outs and lines.
    Multicast(ChannelId),
}

/// The outcome of an attempt to serve a peer.
enum Served {
    Sent(Destination),
    Blocked(Nanos),
    /// Nothing was sent, and more waits for a further turn.
    Passed,
    Nothing,
}

/// The repair side of a publisher.
pub struct RepairCore {
    config: RepairConfig,
    publisher: String,
    channels: Vec<Channel>,
    /// The index of each channel, by number and by name.
    by_id: BTreeMap<ChannelId, usize>,
    by_name: BTreeMap<String, usize>,
    peers: BTreeMap<PeerId, Peer>,
    origins: Origins,
    sessions: Sessions,
    /// The wire versions that this publisher speaks.
    versions: WireVersions,
    /// The addresses that accept NACK connections.
    offers: Vec<RepairOffer>,
    standbys: Standbys,
    /// The connections with something to send.
    lanes: Lanes,
    budgets: Budgets,
    events: Events,
    absent: Absent,
    /// Work of the message that is being handled.
    work: usize,
    tick_at: Nanos,
    scratch: Vec<u64>,
    counters: Arc<RepairServiceCounters>,
}

impl fmt::Debug for RepairCore {
    /// Prints all state that decides the core's next step, without config and queued output.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RepairCore")
            .field("channels", &self.channels)
            .field("peers", &self.peers)
            .field("sessions", &self.sessions)
            .field("lanes", &self.lanes)
            .field("origins", &self.origins)
            .field("budgets", &self.budgets)
            .field("tick_at", &self.tick_at)
            .field("absent", &self.absent)
            .finish_non_exhaustive()
    }
}

impl RepairCore {
    /// Returns a service for these channels, without connections.
    ///
    /// [`RepairConfig::check`] has checked the config; bursts too small for a datagram are raised.
    /// Session numbers follow from `secret`, which must come from the system's randomness, anew at each
    /// start: anybody who knows it can take over any session.
    #[must_use]
    pub fn new(
        config: RepairConfig,
        publisher: String,
        channels: Vec<(ChannelInfo, RingReader, Arc<RepairCounters>)>,
        counters: Arc<RepairServiceCounters>,
        secret: [u8; 32],
        now: Now,
    ) -> Self {
        let (now, config) = (now.monotonic, config.with_whole_bursts());
        let channels: Vec<Channel> = (channels.into_iter())
            .map(|(info, ring, counters)| Channel::new(&config, info, ring, counters, now))
            .collect();
        let slot_len = channels.iter().map(|c| c.ring.geometry().slot_len()).max();
        let slot_len = slot_len.unwrap_or(0);
        let indices = || channels.iter().zip(0..);
        Self {
            by_id: indices().map(|(it, at)| (it.id, at)).collect(),
            by_name: indices()
                .map(|(it, at)| (it.info.name.clone(), at))
                .collect(),
            budgets: Budgets::new(&config, slot_len + FRAME_HEAD_LEN, now),
            config,
            publisher,
            scratch: vec![0; slot_len / 8],
            channels,
            peers: BTreeMap::new(),
            origins: Origins::default(),
            sessions: Sessions::new(secret),
            versions: WireVersions::default(),
            offers: Vec::new(),
            standbys: Standbys::default(),
            lanes: Lanes::default(),
            absent: Absent::default(),
            work: 0,
            events: Events::default(),
            tick_at: now.after(TICK),
            counters,
        }
    }

    /// Takes over the six rates and bursts of `config`, for all sessions and replays from now on. Other
    /// settings stay. [`RepairConfig::check`] has checked the config.
    pub fn set_budgets(&mut self, now: Now, config: &RepairConfig) {
        let now = now.monotonic;
        self.config = self.config.with_budgets_of(config).with_whole_bursts();
        self.budgets.set(now, &self.config);
        let rate = self.config.subscriber_bytes_per_s;
        let burst = self.config.subscriber_burst_bytes;
        for bucket in self.sessions.buckets_mut() {
            bucket.set(now, rate, burst);
        }
        // The old rates decided how long each of them pauses.
        while let Some(peer) = self.lanes.turns_mut(Lane::Repair).resumed(Nanos::MAX) {
            self.schedule(peer, Lane::Repair);
        }
    }

    /// Handles an input. After any input, poll until nothing comes.
    ///
    /// Returns the work of a message beyond reading it, as the number of bytes that cost as much to read; 0
    /// for any other input. The driver charges it to the peer's turn, so that no short message takes a long
    /// turn for nothing.
    // The kind of an input is known where it is made, so the choice costs nothing there.
    #[inline]
    pub fn handle(&mut self, now: Now, input: RepairInput<'_>) -> usize {
        match input {
            RepairInput::Message(peer, channel, message) => {
                self.work = 0;
                self.handle_message(now, peer, channel, message);
                return self.work;
            }
            RepairInput::Connected(peer, carrier, origin) => {
                self.handle_connected(now, peer, carrier, origin);
            }
            RepairInput::Malformed(peer, text) => self.handle_malformed(peer, text),
            RepairInput::Disconnected(peer) => self.handle_disconnected(peer),
            RepairInput::Backlog(peer, bytes) => self.handle_backlog(peer, bytes),
            RepairInput::InFlight(peer, bytes) => {
                if let Some(peer) = self.peers.get_mut(&peer) {
                    peer.output.in_flight.has_left(bytes);
                }
            }
            RepairInput::Written(peer, count) => {
                if let Some(peer) = self.peers.get_mut(&peer) {
                    peer.writes.done(count);
                }
            }
            RepairInput::Unwritable(peer) => self.end_writes(peer, MirrorRefusal::Impossible),
            RepairInput::Timeout => self.handle_timeout(now),
        }
        0
    }

    fn handle_connected(&mut self, now: Now, peer: PeerId, carrier: Carrier, origin: PeerOrigin) {
        // A reused peer number belongs to a new connection.
        self.remove(peer, false, false, None);
        let max = self.config.connections_max();
        let gives_way = self.origins.connect(origin, peer, max);
        self.peers
            .insert(peer, Peer::new(peer, now.monotonic, carrier, origin));
        self.counters.connections.increment();
        self.counters.connected.set(self.peers.len() as u64);
        if let Some(gives_way) = gives_way {
            self.reject(gives_way, self.too_many());
        }
    }

    fn handle_message(
        &mut self,
        now: Now,
        peer: PeerId,
        channel: ChannelId,
        message: &Message<'_>,
    ) {
        let Some(state) = self.peers.get_mut(&peer) else {
            return;
        };
        state.heard(now.monotonic);
        let connecting = *state.role() == Role::Connecting;
        match (state.is_closing(), connecting, message) {
            (true, ..) => {}
            (_, true, Message::Join(join)) => self.join(now, peer, join),
            (_, _, Message::Leave) => self.remove(peer, true, true, None),
            (_, true, _) => self.break_off(
                peer,
                "the first message of a connection must be JOIN".into(),
            ),
            (
                _,
                _,
                Message::Nack {
                    epoch,
                    class,
                    ranges,
                },
            ) => self.nack(now, peer, channel, *epoch, *class, ranges),
            (_, _, Message::Progress(progress)) => {
                let Some((index, at)) = self.joined(peer, channel) else {
                    return;
                };
                self.progress(now, peer, index, at, *progress);
                self.renew_tokens(now, peer, index, at, progress.read_bytes);
                if let Some(peer) = self.peers.get_mut(&peer) {
                    peer.channels.owe_status(at, progress.sent_at);
                }
                self.schedule(peer, Lane::Answers);
            }
            (_, _, Message::Mirror(wish)) => self.mirror(peer, channel, wish),
            // It decides nothing here: the driver shows it.
            (_, _, Message::Latency(_)) => {
                let is_joined = self.joined(peer, channel).is_some();
                let state = self.peers.get_mut(&peer).filter(|_| is_joined);
                if state.is_some_and(|it| it.floods_reports(now.monotonic)) {
                    self.break_off(peer, "too many reports of latency in a second".into());
                }
            }
            _ => self.break_off(
                peer,
                "a subscriber must not send this type of message".into(),
            ),
        }
    }

    fn handle_malformed(&mut self, peer: PeerId, text: &str) {
        if self.peers.get(&peer).is_some_and(|p| !p.is_closing()) {
            self.break_off(peer, text.to_owned());
        }
    }

    fn handle_backlog(&mut self, peer: PeerId, bytes: usize) {
        if let Some(state) = self.peers.get_mut(&peer) {
            let (origin, output) = (state.origin(), &mut state.output);
            let before = output.unread();
            output.set_backlog(bytes);
            (self.origins).set_unread(origin, before, output.unread());
            let of_origin = self.origins.unread(origin);
            if output.is_paused() && self.config.may_send(bytes, of_origin) {
                output.set_paused(false);
                if state.channels.is_replaying() {
                    self.origins.resume_replay(origin, peer);
                }
                for lane in Lane::ALL {
                    self.schedule(peer, lane);
                }
            }
        }
    }

    fn handle_disconnected(&mut self, peer: PeerId) {
        let known = self.peers.get(&peer).filter(|it| it.is_subscriber());
        if let Some(it) = known.filter(|it| !it.has_reached_end()) {
            let until = self.tick_at.after(ABSENT_MAX);
            (self.absent).broke(it.name(), peer, until, self.config.peers_max);
        }
        self.remove(peer, false, false, None);
    }

    fn handle_timeout(&mut self, now: Now) {
        if now.monotonic < self.tick_at {
            return;
        }
        self.tick_at = now.monotonic.after(TICK);
        self.absent.handle_timeout(now.monotonic);
        for channel in &mut self.channels {
            channel.measure(now.monotonic);
            channel.log.handle_timeout(now.monotonic);
        }
        self.announce_keys();
        let join_timeout = Nanos::from_us(self.config.join_timeout_us);
        let silent_timeout = Nanos::from_us(self.config.silent_timeout_us);
        let silent: Vec<PeerId> = (self.peers.iter())
            .filter(|(_, peer)| {
                let silence = peer.silence(now.monotonic);
                match peer.role() {
                    Role::Connecting => silence >= join_timeout,
                    Role::Subscriber { .. } | Role::Closing(_) => silence >= silent_timeout,
                    Role::Replay { .. } | Role::Nack { .. } | Role::Read { .. } => false,
                }
            })
            .map(|(id, _)| *id)
            .collect();
        for peer in silent {
            self.counters.silent_disconnects.increment();
            let reason = rejected(
                RejectCode::Protocol,
                "the publisher received nothing from this peer for too long",
            );
            self.close(peer, reason);
        }
    }

    /// Appends the next bytes to send to `out` and returns their destination, or `None` when nothing can be
    /// sent now. Each call appends at most one datagram; peers take turns. Call it after every input until it
    /// returns `None`. A call that only drops requests that
    /// multicast has answered ends after 64 turns; [`Self::poll_timeout`] is due at once then.
    pub fn poll_transmit(&mut self, now: Now, out: &mut Vec<u8>) -> Option<Destination> {
        while let Some(peer) = self.lanes.turns_mut(Lane::Repair).resumed(now.monotonic) {
            self.schedule(peer, Lane::Repair);
        }
        let mut passed = 0;
        for _ in Lane::ALL {
            let lane = self.lanes.next();
            while passed < PASSED_MAX
                && self.lanes.turns(lane).is_waiting()
                && self.budgets.has(lane, now.monotonic)
                && let Some(peer) = self.lanes.turns_mut(lane).pop()
            {
                match self.serve(peer, lane, now, out) {
                    Served::Sent(destination) => {
                        self.schedule(peer, lane);
                        return Some(destination);
                    }
                    Served::Blocked(until) => {
                        self.lanes.turns_mut(lane).pause(peer, until);
                    }
                    Served::Passed => {
                        passed += 1;
                        self.schedule(peer, lane);
                    }
                    Served::Nothing => {}
                }
            }
        }
        None
    }

    /// Returns when [`RepairInput::Timeout`] and [`Self::poll_transmit`] are due next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Nanos> {
        let at = |lane| {
            let turns = self.lanes.turns(lane);
            let budget = turns.is_waiting().then(|| self.budgets.available_at(lane));
            let next = turns.resumes_at().into_iter().chain(budget).min();
            next.unwrap_or(Nanos::MAX)
        };
        let [answers, repair, replay] = Lane::ALL.map(at);
        Some(self.tick_at.min(answers).min(repair).min(replay))
    }

    /// Returns the next event, oldest first.
    pub fn poll(&mut self) -> Option<RepairEvent> {
        self.events.pop()
    }

    /// Returns the number of subscribers of this channel, and their maximum random wait before a first NACK:
    /// the arguments of [`crate::publish::PublisherCore::set_group`].
    #[must_use]
    pub fn group(&self, channel: ChannelId) -> (u32, u32) {
        let of = self.by_id.get(&channel).map(|at| &self.channels[*at]);
        let (subscribers, wider) = of.map_or((0, 0), |c| (c.subscribers, c.log.wider()));
        let hold_off_us = self.config.hold_off_us(subscribers);
        (subscribers, hold_off_us.saturating_mul(1 << wider))
    }

    /// Returns whether every channel has ended and every subscriber has reached END and received the STATUS
    /// that confirms the end.
    ///
    /// Without that STATUS, a subscriber would wait for a publisher that has stopped. A subscriber whose
    /// connection broke before that reconnects, so it is waited for, for 5 s. With nobody joined, an ended
    /// channel counts as reached.
    #[must_use]
    pub fn all_reached_end(&self) -> bool {
        self.channels.iter().all(|channel| channel.view().ended) && self.short_of_end() == 0
    }

    /// Returns the number of subscribers that have not reached END on all their channels, or have not
    /// received the STATUS that confirms it. It includes subscribers whose reconnection is awaited.
    #[must_use]
    pub fn short_of_end(&self) -> usize {
        // Each session has one subscriber.
        self.sessions.short_of_end() + self.absent.awaited()
    }

    /// Records whether a subscriber has reached the end of a channel, once a STATUS has confirmed it.
    fn note_end(&mut self, id: PeerId, at: usize) {
        let Some(peer) = self.peers.get_mut(&id) else {
            return;
        };
        let of = &peer.channels[at];
        if !of.end_confirmed {
            return;
        }
        let end = self.channels[of.channel].view().newest;
        let is_at_end = of.progress.is_some_and(|it| it.sequence >= end);
        let before = peer.has_reached_end();
        peer.channels.set_at_end(at, is_at_end);
        self.sessions.set_at_end(before, peer.has_reached_end());
    }

    /// Sets the wire versions to speak, if they differ from those of this code.
    pub const fn set_wire_versions(&mut self, versions: WireVersions) {
        self.versions = versions;
    }

    /// Sets the addresses for NACK connections that new joiners receive.
    pub fn set_repair_offers(&mut self, offers: Vec<RepairOffer>) {
        self.offers = offers;
    }

    /// Sets the channel's instruments that new joiners receive.
    pub fn set_directory(&mut self, channel: ChannelId, directory: Vec<Instrument>) {
        if let Some(at) = self.by_id.get(&channel) {
            self.channels[*at].info.directory = directory;
        }
    }

    /// Authenticates a channel with the keys that seal its datagrams ([`RingWriter::keys`]), from the next
    /// joiner on.
    ///
    /// [`RingWriter::keys`]: crate::ring::RingWriter::keys
    pub fn authenticate(&mut self, channel: ChannelId, keys: ChannelKeys) {
        if let Some(at) = self.by_id.get(&channel) {
            let channel = &mut self.channels[*at];
            let next = keys.number_of(channel.view().newest).saturating_add(1);
            channel.keys = Some((keys, next));
        }
    }

    /// Sends each key to the subscribers when the one before it comes into use.
    fn announce_keys(&mut self) {
        for at in 0..self.channels.len() {
            let keys = self.channels[at].keys_to_announce();
            if keys.is_empty() {
                continue;
            }
            let (channel, epoch) = (self.channels[at].id, self.channels[at].epoch);
            let follows = |peer: &Peer| peer.channels.iter().any(|of| of.channel == at);
            let peers = self
                .peers
                .iter()
                .filter(|(_, it)| it.is_subscriber() && follows(it));
            for peer in peers.map(|(id, _)| *id).collect::<Vec<_>>() {
                for of in &keys {
                    let of = of.clone();
                    self.send(peer, channel, &Message::Key(Announced { epoch, of }));
                }
            }
        }
    }

    /// Announces to every peer that the publisher stops, and closes each connection after that.
    pub fn shut_down(&mut self) {
        self.close_all(RETRY_AFTER_MS, "the publisher is shutting down");
    }

    /// Announces to every peer that another publisher continues this stream, so that it reconnects at once.
    /// Closes each connection after the announcement.
    pub fn hand_over(&mut self) {
        self.close_all(1, "another publisher continues this stream");
    }

    fn close_all(&mut self, retry_after_ms: u64, text: &str) {
        let peers: Vec<PeerId> = self.peers.keys().copied().collect();
        for peer in peers {
            let reason = Rejected {
                retry_after_ms,
                ..rejected(RejectCode::ShuttingDown, text)
            };
            self.close(peer, reason);
        }
    }

    fn event(&mut self, event: RepairEvent) {
        if !self.events.push(event) {
            self.counters.events_dropped.increment();
        }
    }
}

#[cfg(test)]
mod tests;
