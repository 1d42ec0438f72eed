//! The repair service's core, one for all channels of a publisher: every NACK is answered, by the
//! datagram or by a refusal with its reason; nobody's repairs exceed their budget or starve
//! another's; and no peer, whatever it sends, makes it hold unbounded memory.
//!
//! Five verbs, no I/O: say who came, spoke and went (`handle_connected`, `handle_message`,
//! `handle_backlog`, `handle_disconnected`) and what time it is (`handle_timeout`); take out what
//! to send (`poll_transmit`), when to come back (`poll_timeout`) and what happened (`poll`). Slots
//! are copied out of the rings, never referred to. Source: docs/PROTOCOL.md §6.
//!
//! Counters balance at any time: nacked = answered + answered by multicast + refused (by reason) +
//! abandoned + pending, in sequences.

mod answer;
mod channel;
mod coalesce;
mod config;
mod in_flight;
mod join;
mod nack;
mod peer;
mod read_grant;
mod request_queue;
mod standby;
mod standby_writes;
mod token_bucket;

pub use self::config::{BURST_BYTES_MIN, RepairConfig};
pub use self::peer::{Carrier, PeerId};
pub use self::standby_writes::{MIRROR_WRITES_MAX, MirrorWrite};
pub use self::token_bucket::TokenBucket;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::ops::Bound;
use std::sync::Arc;

use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::SeedableRng;

use crate::control::{Instrument, Message, MirrorRefusal, RejectCode, Rejected, RepairOffer};
use crate::ring::RingReader;
use crate::serve::channel::Channel;
pub use crate::serve::channel::ChannelInfo;
use crate::serve::peer::{Peer, Role, Session, rejected};
use crate::types::{ChannelId, Epoch, Nanos, Now, RepairCounters, RepairServiceCounters};
use crate::wire::WireVersions;

/// For how long a subscriber whose connection broke is expected again: it tries at least once a second.
const ABSENT_MAX: Nanos = Nanos::from_secs(5);
/// Between measurements of the live rate and looks at silent connections.
const TICK: Nanos = Nanos::from_ms(100);
/// A peer is reported as slow no more often.
const SLOW_EVERY: Nanos = Nanos::from_secs(1);
/// When asking again makes sense for what has not been sent yet.
const AHEAD_RETRY_US: u64 = 100;
/// When asking again makes sense for a replay that is too slow.
const TOO_SLOW_RETRY_US: u64 = 1_000_000;
/// The longest that a refusal for want of budget tells to wait.
const BUDGET_RETRY_US_MAX: u64 = 1_000_000;
/// When a rejected peer may come again, where that can help.
const RETRY_AFTER_MS: u64 = 1_000;
/// How many events wait to be taken that merely inform; more are dropped and counted.
const NEWS_MAX: usize = 4096;

/// Where bytes go that were appended to the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// Whole frames for this connection.
    Peer(PeerId),
    /// One datagram for the channel's multicast group, on all its fan-outs and lines.
    Multicast(ChannelId),
}

/// What a further connection of a session is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Further {
    /// History.
    Replay,
    /// NACKs.
    Nack,
    /// READ.
    Read,
}

/// What the driver should know or do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RepairEvent {
    /// A subscriber joined these channels.
    Joined {
        /// Its connection.
        peer: PeerId,
        /// Its name.
        name: String,
        /// What it joined.
        channels: Vec<ChannelId>,
    },
    /// A subscriber has a further connection.
    FurtherJoined {
        /// Its connection.
        peer: PeerId,
        /// For what.
        further: Further,
        /// The one of its kind that was there before, and is closed for it.
        instead_of: Option<PeerId>,
    },
    /// A subscriber wants to READ: bind windows of the rings of these channels to its connection,
    /// and say where they are with [`RepairCore::grant`].
    ReadJoined {
        /// The connection to bind them to.
        peer: PeerId,
        /// The subscriber's name.
        name: String,
        /// Whose.
        session: u64,
        /// To be named in the grants.
        attempt: u64,
        /// Whose rings.
        channels: Vec<ChannelId>,
    },
    /// What is sealed of a channel is written to a standby from now on, or is not.
    Mirroring {
        /// Its connection.
        peer: PeerId,
        /// Its name.
        name: String,
        /// Which channel.
        channel: ChannelId,
        /// Why not.
        refused: Option<MirrorRefusal>,
    },
    /// A subscriber is gone.
    Left {
        /// Its connection.
        peer: PeerId,
        /// Its name.
        name: String,
        /// Whether it said so.
        on_purpose: bool,
    },
    /// Close this connection once what was given out for it is written, or at once where that
    /// takes long. The core has forgotten it already.
    Close {
        /// Which.
        peer: PeerId,
        /// What it was told; `None` when it left on purpose.
        reason: Option<Rejected>,
    },
    /// A JOIN claimed an epoch higher than ours: counted, no effect.
    HigherEpochClaimed {
        /// Whose.
        peer: PeerId,
        /// Of which channel.
        channel: ChannelId,
        /// Which epoch.
        epoch: Epoch,
    },
    /// A subscriber is more than half a ring behind.
    SlowSubscriber {
        /// Its connection.
        peer: PeerId,
        /// Its name.
        name: String,
        /// On which channel.
        channel: ChannelId,
        /// By how many datagrams.
        behind: u64,
    },
}

impl RepairEvent {
    /// Whether nothing depends on it, not even an audit: such a one may be dropped. There are boundedly
    /// many of all others for each connection.
    const fn is_news(&self) -> bool {
        matches!(
            self,
            Self::HigherEpochClaimed { .. } | Self::SlowSubscriber { .. }
        )
    }
}

/// How an attempt to serve a peer went.
enum Served {
    Sent(Destination),
    Blocked(Nanos),
    Nothing,
}

/// The repair side of a publisher.
pub struct RepairCore {
    config: RepairConfig,
    publisher: String,
    channels: Vec<Channel>,
    peers: BTreeMap<PeerId, Peer>,
    sessions: BTreeMap<u64, Session>,
    /// The wire versions that it speaks.
    versions: WireVersions,
    /// Where NACK connections can be made.
    offers: Vec<RepairOffer>,
    /// Names of those that are written to when they ask for it.
    standbys: Vec<String>,
    /// Connections over which something is written.
    mirrored: Vec<PeerId>,
    /// Session numbers: what ChaCha20 makes of a secret. Who knows some of them knows no other.
    session_numbers: ChaCha20Rng,
    /// Those with something to be sent, each once, next first.
    ready_peers: VecDeque<PeerId>,
    repair: TokenBucket,
    joiners: TokenBucket,
    events: VecDeque<RepairEvent>,
    /// How many of those are news.
    news: usize,
    /// Subscribers whose connection broke short of the end, and until when they are waited for.
    absent: Vec<(String, Nanos)>,
    tick_at: Nanos,
    scratch: Vec<u64>,
    counters: Arc<RepairServiceCounters>,
}

impl fmt::Debug for RepairCore {
    /// All that decides what it does next, but its config and what waits to be taken.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RepairCore")
            .field("channels", &self.channels)
            .field("peers", &self.peers)
            .field("sessions", &self.sessions)
            .field("sessions_given", &self.session_numbers.get_word_pos())
            .field("ready_peers", &self.ready_peers)
            .field("repair", &self.repair)
            .field("joiners", &self.joiners)
            .field("tick_at", &self.tick_at)
            .field("absent", &self.absent)
            .finish_non_exhaustive()
    }
}

impl RepairCore {
    /// A service for these channels, without connections. The config was checked by
    /// [`RepairConfig::check`]; bursts too small for a datagram are raised.
    /// Session numbers follow from `secret`, which is to come from the system's randomness, anew at each
    /// start: whoever knows it can take over any session.
    #[must_use]
    pub fn new(
        mut config: RepairConfig,
        publisher: String,
        channels: Vec<(ChannelInfo, RingReader, Arc<RepairCounters>)>,
        counters: Arc<RepairServiceCounters>,
        secret: [u8; 32],
        now: Now,
    ) -> Self {
        let now = now.monotonic;
        for burst in [
            &mut config.repair_burst_bytes,
            &mut config.subscriber_burst_bytes,
            &mut config.joiner_burst_bytes,
        ] {
            *burst = (*burst).max(BURST_BYTES_MIN);
        }
        let channels: Vec<Channel> = (channels.into_iter())
            .map(|(info, ring, counters)| Channel::new(&config, info, ring, counters, now))
            .collect();
        let slot_len = channels.iter().map(|c| c.ring.geometry().slot_len()).max();
        Self {
            repair: TokenBucket::new(config.repair_bytes_per_s, config.repair_burst_bytes, now),
            joiners: TokenBucket::new(config.joiner_bytes_per_s, config.joiner_burst_bytes, now),
            config,
            publisher,
            scratch: vec![0; slot_len.unwrap_or(0) / 8],
            channels,
            peers: BTreeMap::new(),
            sessions: BTreeMap::new(),
            versions: WireVersions::default(),
            offers: Vec::new(),
            standbys: Vec::new(),
            mirrored: Vec::new(),
            session_numbers: ChaCha20Rng::from_seed(secret),
            ready_peers: VecDeque::new(),
            absent: Vec::new(),
            events: VecDeque::new(),
            news: 0,
            tick_at: now.after(TICK),
            counters,
        }
    }

    /// A connection was accepted, of this kind.
    pub fn handle_connected(&mut self, now: Now, peer: PeerId, carrier: Carrier) {
        // A number that is used again belongs to a new connection.
        self.remove(peer, false, false, None);
        let full = self.peers.len() >= self.config.peers_max;
        self.peers.insert(peer, Peer::new(now.monotonic, carrier));
        self.counters.connections.increment();
        self.counters.connected.set(self.peers.len() as u64);
        if full {
            let text = format!(
                "this publisher serves at most {} connections; raise peers_max or come again",
                self.config.peers_max
            );
            self.reject(
                peer,
                Rejected {
                    retry_after_ms: RETRY_AFTER_MS,
                    ..rejected(RejectCode::TooMany, text)
                },
            );
        }
    }

    /// A peer said something. What is said after it was rejected is ignored.
    pub fn handle_message(
        &mut self,
        now: Now,
        peer: PeerId,
        channel: ChannelId,
        message: Message<'_>,
    ) {
        let Some(state) = self.peers.get_mut(&peer) else {
            return;
        };
        state.heard_at = now.monotonic;
        let connecting = state.role == Role::Connecting;
        match (state.is_closing(), connecting, message) {
            (true, ..) => {}
            (_, true, Message::Join(join)) => self.join(now, peer, &join),
            (_, _, Message::Leave) => self.remove(peer, true, true, None),
            (_, true, _) => self.break_off(peer, "a connection begins with JOIN".into()),
            (
                _,
                _,
                Message::Nack {
                    epoch,
                    class,
                    ranges,
                },
            ) => self.nack(now, peer, channel, epoch, class, &ranges),
            (_, _, Message::Progress(progress)) => {
                let Some((index, at)) = self.joined(peer, channel) else {
                    return;
                };
                self.progress(now, peer, index, at, progress);
                self.renew_tokens(now, peer, index, at, progress.read_bytes);
                if let Some(peer) = self.peers.get_mut(&peer) {
                    peer.channels[at].status_due = Some(progress.sent_at);
                }
                self.schedule_peer(peer);
            }
            (_, _, Message::Mirror(wish)) => self.mirror(peer, channel, &wish),
            _ => self.break_off(peer, "a message that subscribers do not send".into()),
        }
    }

    /// A peer sent bytes that are no control message; `text` says what is wrong with them.
    pub fn handle_protocol_error(&mut self, peer: PeerId, text: String) {
        if self.peers.get(&peer).is_some_and(|p| !p.is_closing()) {
            self.break_off(peer, text);
        }
    }

    /// Bytes given out for this peer that are still unsent. Told after each attempt to write.
    pub fn handle_backlog(&mut self, peer: PeerId, bytes: usize) {
        let pause = self.config.backlog_pause_bytes;
        if let Some(state) = self.peers.get_mut(&peer) {
            let resumes = state.backlog >= pause && bytes < pause;
            state.backlog = bytes;
            if resumes {
                self.schedule_peer(peer);
            }
        }
    }

    /// So many of the bytes given out for this peer have not arrived at its system yet, unsent ones among
    /// them. Told before what it asks: what is on its way is not given again. A driver that can't know
    /// it does not say it, and then whoever asks again is answered again.
    pub fn handle_on_the_way(&mut self, peer: PeerId, bytes: usize) {
        if let Some(state) = self.peers.get_mut(&peer) {
            state.in_flight.has_left(bytes);
        }
    }

    /// A connection is gone. What it still waited for is abandoned.
    pub fn handle_disconnected(&mut self, peer: PeerId) {
        let known = self.peers.get(&peer).filter(|it| it.is_subscriber());
        // Where the end of a connection is heard late, its subscriber may be here again by then.
        let is_back = |name: &str| {
            let mut later = self.peers.range((Bound::Excluded(peer), Bound::Unbounded));
            later.any(|(_, it)| it.is_subscriber() && it.name == name)
        };
        if let Some(it) = known.filter(|it| !self.has_reached_end(it) && !is_back(&it.name))
            && self.absent.len() < self.config.peers_max
        {
            let until = self.tick_at.after(ABSENT_MAX);
            self.absent.push((it.name.clone(), until));
        }
        self.remove(peer, false, false, None);
    }

    /// Time has passed. Calling it too early or too often does nothing.
    pub fn handle_timeout(&mut self, now: Now) {
        if now.monotonic < self.tick_at {
            return;
        }
        self.tick_at = now.monotonic.after(TICK);
        self.absent.retain(|(_, until)| now.monotonic < *until);
        for channel in &mut self.channels {
            channel.measure(now.monotonic);
            channel.log.handle_timeout(now.monotonic);
        }
        let join_timeout = Nanos::from_us(self.config.join_timeout_us);
        let silent_timeout = Nanos::from_us(self.config.silent_timeout_us);
        let silent: Vec<PeerId> = (self.peers.iter())
            .filter(|(_, peer)| {
                let silence = now.monotonic.since(peer.heard_at);
                match peer.role {
                    Role::Connecting => silence >= join_timeout,
                    Role::Subscriber { .. } | Role::Closing(_) => silence >= silent_timeout,
                    Role::Replay { .. } | Role::Nack { .. } | Role::Read { .. } => false,
                }
            })
            .map(|(id, _)| *id)
            .collect();
        for peer in silent {
            self.counters.silent_disconnects.increment();
            let reason = rejected(RejectCode::Protocol, "nothing was heard for too long");
            self.close(peer, reason);
        }
    }

    /// Appends the next bytes to send to `out`, and says where they go; `None`: nothing now. One
    /// datagram a call at most, peers in turn. Call it after every input until it returns `None`.
    pub fn poll_transmit(&mut self, now: Now, out: &mut Vec<u8>) -> Option<Destination> {
        for _ in 0..self.ready_peers.len() {
            let id = self.ready_peers.pop_front()?;
            let served = self.serve(id, now, out);
            let Some(peer) = self.peers.get_mut(&id) else {
                if let Served::Sent(destination) = served {
                    return Some(destination);
                }
                continue;
            };
            peer.in_round = !matches!(served, Served::Nothing) && peer.has_work();
            if peer.in_round {
                self.ready_peers.push_back(id);
            }
            match served {
                Served::Sent(destination) => {
                    peer.blocked_until = now.monotonic;
                    return Some(destination);
                }
                Served::Blocked(until) => peer.blocked_until = until,
                Served::Nothing => {}
            }
        }
        None
    }

    /// When to call [`Self::handle_timeout`] and [`Self::poll_transmit`].
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Nanos> {
        let blocked = self.ready_peers.iter().filter_map(|id| self.peers.get(id));
        let blocked = blocked.map(|peer| peer.blocked_until).min();
        Some(self.tick_at.min(blocked.unwrap_or(Nanos::MAX)))
    }

    /// What happened, oldest first.
    pub fn poll(&mut self) -> Option<RepairEvent> {
        let event = self.events.pop_front()?;
        self.news -= usize::from(event.is_news());
        Some(event)
    }

    /// How many subscribers follow this channel, and how long they should wait before a first
    /// NACK: what [`crate::publish::PublisherCore::set_group`] takes.
    #[must_use]
    pub fn group(&self, channel: ChannelId) -> (u32, u32) {
        let of = self.channels.iter().find(|c| c.id == channel);
        let (subscribers, wider) = of.map_or((0, 0), |c| (c.subscribers, c.log.wider()));
        let hold_off_us = self.config.hold_off_us(subscribers);
        (subscribers, hold_off_us.saturating_mul(1 << wider))
    }

    /// Whether every channel has ended, and every subscriber has said that it reached END and
    /// was told by STATUS that this is the end: one that was told nothing waits for a publisher who
    /// is gone. Whose connection broke before that comes again, and is waited for, for 5 s. With nobody
    /// joined, an ended channel counts as reached.
    #[must_use]
    pub fn all_reached_end(&self) -> bool {
        self.channels.iter().all(|channel| channel.view().ended) && self.short_of_end() == 0
    }

    /// How many subscribers have not reached END on all their channels, or were not told that it is the end:
    /// those who are here, and those who are waited for.
    #[must_use]
    pub fn short_of_end(&self) -> usize {
        let here = self.peers.values().filter(|it| it.is_subscriber());
        let short = here.filter(|it| !self.has_reached_end(it)).count();
        short + self.absent.len()
    }

    fn has_reached_end(&self, peer: &Peer) -> bool {
        peer.channels.iter().all(|of| {
            let view = self.channels[of.channel].view();
            let at_end = of.progress.is_some_and(|p| p.sequence >= view.newest);
            view.ended && of.told_end && at_end
        })
    }

    /// Speaks these wire versions, where they are not what this code speaks.
    pub const fn set_wire_versions(&mut self, versions: WireVersions) {
        self.versions = versions;
    }

    /// Where NACK connections can be made: what new joiners are told.
    pub fn set_repair_offers(&mut self, offers: Vec<RepairOffer>) {
        self.offers = offers;
    }

    /// What new joiners are told of a channel's instruments.
    pub fn set_directory(&mut self, channel: ChannelId, directory: Vec<Instrument>) {
        if let Some(channel) = self.channels.iter_mut().find(|c| c.id == channel) {
            channel.info.directory = directory;
        }
    }

    /// Tells every peer that the publisher goes; each is closed once it was told.
    pub fn shut_down(&mut self) {
        self.close_all(RETRY_AFTER_MS, "the publisher is shutting down");
    }

    /// Tells every peer that another publisher goes on with this stream, so that it comes again at
    /// once; each is closed once it was told.
    pub fn hand_over(&mut self) {
        self.close_all(1, "another publisher goes on with this stream");
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
        if event.is_news() {
            if self.news >= NEWS_MAX {
                self.counters.events_dropped.increment();
                return;
            }
            self.news += 1;
        }
        self.events.push_back(event);
    }
}

#[cfg(test)]
mod tests;
