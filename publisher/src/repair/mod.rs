//! The repair service: its own thread, so that joining, repair and replay never delay fresh data.
//! It passes the output of the sans-I/O [`RepairCore`] to the TCP and verbs connections and to the
//! multicast sockets. It reports the group size to the publish thread.

pub(crate) mod access;
pub(crate) mod audit;
pub(crate) mod deny_list;
pub(crate) mod listeners;
mod peer_log;
pub(crate) mod peers;
mod warnings;

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use rustix::rand::{GetRandomFlags, getrandom};
use tickcast_journal::{JournalWriter, JournaledServer, Note};
use tickcast_reliability::control::{Message, MirrorRefusal, Progress, RepairOffer, nack_answers};
use tickcast_reliability::delivery::LineId;
use tickcast_reliability::serve::{
    ChannelInfo, Destination, Further, PeerId, RepairCore, RepairEvent, RepairInput,
};
use tickcast_reliability::types::{ChannelId, FanOutId, Nanos, Now, PeerOrigin};
use tickcast_reliability::wire::authentication::ChannelKeys;
use tickcast_transport::FanOut;
use tickcast_transport::control::{CloseReason, ControlServer, ServerConfig, ServerEvent, ShareId};
use tickcast_transport::host::clock::SystemClock;
use tickcast_transport::host::sched::set_short_slice;

use crate::config::Config;
use crate::error::PublisherError;
use crate::repair::access::Access;
use crate::repair::peers::Peers;
use crate::repair::warnings::Warnings;
use crate::state::Shared;
use crate::state::hand_over::SessionNumber;
use crate::state::journal::Noted;
use crate::state::losses::LossRequest;

/// Time that a shutdown waits for peers to read their last message.
const GOODBYE: Duration = Duration::from_millis(500);
/// The longest sleep, so that flags of other threads are seen.
const WAIT_MAX: Duration = Duration::from_millis(20);
/// The longest sleep while datagrams may be waiting to be written to a standby.
const WAIT_MIRRORED: Duration = Duration::from_millis(1);
/// Turns of output after which messages are read again, so that a NACK does not wait for a whole burst.
const TURNS_MAX: usize = 64;
/// Interval between reports of the group sizes while nobody joins or leaves.
const GROUPS_EVERY: Nanos = Nanos::from_ms(1);

/// Returns the limits of the control server for a config.
#[must_use]
pub(crate) fn server_config(config: &Config) -> ServerConfig {
    let (repair, default) = (&config.repair, ServerConfig::default());
    let over_verbs = config.repair_verbs.as_ref();
    ServerConfig {
        // The core refuses further connections with a reason; the server refuses only if that
        // fails, and has room for those that the core closes after a poll.
        connections_max: repair.connections_max().saturating_add(64),
        connections_per_address_max: repair.of_one_address_max(),
        // The core closes earlier; a WELCOME with a whole directory must fit on top.
        backlog_bytes_max: repair.backlog_close_bytes.saturating_add(32 << 20),
        join_timeout: Duration::from_micros(repair.join_timeout_us),
        verbs_connections_max: over_verbs.map_or(default.verbs_connections_max, |it| {
            it.connections_max as usize
        }),
        ..default
    }
}

/// The repair service of a publisher.
pub(crate) struct RepairService {
    core: JournaledServer,
    noted: Noted,
    server: ControlServer,
    /// The sockets for multicast repairs, in the order of the channels.
    multicast: Vec<Vec<Box<dyn FanOut>>>,
    shared: Arc<Shared>,
    clock: SystemClock,
    peers: Peers,
    directory_versions: Vec<u64>,
    access: Access,
    out: Vec<u8>,
    stats_at: Nanos,
    groups_at: Nanos,
    warnings: Warnings,
    /// Whether all peers were notified of the publisher's end.
    is_ending: bool,
}

impl RepairService {
    /// Creates the service for the channels of `shared` and the connections of `server`.
    /// `multicast` holds the fan-outs for multicast repairs of each channel.
    ///
    /// # Errors
    /// Returns [`PublisherError::System`] if the system gives no randomness.
    pub(crate) fn new(
        config: &Config,
        server: ControlServer,
        multicast: Vec<Vec<Box<dyn FanOut>>>,
        shared: Arc<Shared>,
    ) -> Result<Self, PublisherError> {
        let clock = SystemClock;
        let now = clock.both();
        let channels = shared.channels.iter().map(|channel| {
            let info = ChannelInfo {
                name: channel.plan.name.clone(),
                fan_outs: channel.plan.fan_outs.iter().map(|f| f.offer()).collect(),
                directory: Vec::new(),
                heartbeat: config.heartbeat,
            };
            (info, channel.ring.clone(), channel.repair.clone())
        });
        let secret = random_secret()?;
        let service = shared.service.clone();
        let name = shared.name.clone();
        let channels = channels.collect();
        let core = RepairCore::new(config.repair, name, channels, service, secret, now);
        Ok(Self {
            core: JournaledServer::new(core),
            noted: Noted::default(),
            server,
            multicast,
            clock,
            peers: Peers::default(),
            directory_versions: vec![0; shared.channels.len()],
            access: Access::default(),
            shared,
            out: Vec::with_capacity(64 << 10),
            stats_at: now.monotonic,
            groups_at: now.monotonic,
            warnings: Warnings::default(),
            is_ending: false,
        })
    }

    /// Offers joiners the addresses for NACK and READ connections where the server listens.
    /// `shares` are the rings that may be READ.
    #[must_use]
    pub(crate) fn offering(
        mut self,
        offers: Vec<RepairOffer>,
        shares: Vec<(ChannelId, ShareId)>,
    ) -> Self {
        self.core.set_repair_offers(offers);
        self.access.share(shares);
        self
    }

    /// Refuses and disconnects the subscribers that this file bans; the service polls it.
    #[must_use]
    pub(crate) fn banning(mut self, file: Option<PathBuf>) -> Self {
        self.access.ban(file);
        self
    }

    /// Denies READ and writes to the subscribers that this file names; the service polls it.
    #[must_use]
    pub(crate) fn denying(mut self, file: Option<PathBuf>) -> Self {
        self.access.deny(file);
        self
    }

    /// Gives subscribers the keys of these channels, and refuses those that do not check tags.
    #[must_use]
    pub(crate) fn authenticating(mut self, keys: Vec<(ChannelId, ChannelKeys)>) -> Self {
        for (channel, keys) in keys {
            self.core.authenticate(channel, keys);
        }
        self
    }

    /// Writes sealed datagrams to the standbys with one of these names, on request.
    #[must_use]
    pub(crate) fn mirrored_by(mut self, names: Vec<String>) -> Self {
        self.core.set_standbys(names);
        self
    }

    /// Keeps a journal from now on, if one is given.
    #[must_use]
    pub(crate) fn with_journal(mut self, journal: Option<JournalWriter>) -> Self {
        if let Some(journal) = journal {
            self.core.keep_journal(journal);
        }
        self
    }

    /// Serves until the publisher shuts down, then notifies all peers.
    ///
    /// # Errors
    /// Returns [`PublisherError::System`] when polling fails, or [`PublisherError::Send`] when a
    /// multicast socket can't continue.
    pub(crate) fn run(mut self) -> Result<(), PublisherError> {
        if let Err(error) = set_short_slice() {
            tracing::info!(
                "repair keeps the default scheduler slice and may start late, because a short \
                 slice can't be set: {error}"
            );
        }
        while !self.shared.is_shutting_down() {
            self.round(WAIT_MAX)?;
            self.shared.rounds.repaired();
        }
        self.is_ending = true;
        match self.shared.handed_over_to.get() {
            None => self.core.shut_down(),
            Some(_) => self.core.hand_over(),
        }
        let until = Instant::now() + GOODBYE;
        while !self.peers.is_empty() && Instant::now() < until {
            self.round(Duration::from_millis(5))?;
        }
        audit::report_omitted();
        Ok(())
    }

    fn round(&mut self, wait_max: Duration) -> Result<(), PublisherError> {
        let before = self.clock.both();
        if let Some(budgets) = self.shared.take_budgets() {
            self.core.set_budgets(before, &budgets);
        }
        (self.access).enforce(
            before.monotonic,
            &self.peers,
            &mut self.server,
            &mut self.core,
        );
        let timer = self.core.poll_timeout().unwrap_or(Nanos::MAX);
        let wait = Duration::from_nanos(timer.since(before.monotonic).0).min(wait_max);
        // No wake-up announces new datagrams.
        let wait = if self.core.is_mirrored() {
            wait.min(WAIT_MIRRORED)
        } else {
            wait
        };
        self.receive(before, wait)?;
        let now = self.clock.both();
        let (stats, log) = (self.server.stats(), &mut self.peers.log);
        self.warnings.check(now.monotonic, stats, log);
        self.poll_cursors(now);
        self.write_to_standbys(now);
        self.core.handle(now, RepairInput::Timeout);
        self.transmit(now)?;
        self.events();
        self.report(now.monotonic);
        Ok(())
    }

    /// Passes on what the connections bring within this wait, which begins now.
    fn receive(&mut self, mut now: Now, wait: Duration) -> Result<(), PublisherError> {
        let (core, peers, shared) = (&mut self.core, &mut self.peers, &self.shared);
        let (clock, versions) = (self.clock, &mut self.directory_versions);
        let access = &mut self.access;
        let polled = self.server.poll_charged(Some(wait), |event| {
            match event {
                ServerEvent::Connected(connection, address, carrier) => {
                    tracing::debug!(%address, "a connection was accepted");
                    let (peer, origin) =
                        (peers.add(connection, address), PeerOrigin::of(address.ip()));
                    now = clock.both();
                    core.handle(now, RepairInput::Connected(peer, carrier, origin));
                }
                ServerEvent::Unconfirmed(connection, bytes) => {
                    if let Some(peer) = peers.of(connection) {
                        // A time would cost more than the input, and the core asks for none.
                        core.handle(now, RepairInput::InFlight(peer, bytes));
                    }
                }
                ServerEvent::Frame(connection, channel, message) => {
                    let Some(peer) = peers.of(connection) else {
                        return 0;
                    };
                    now = clock.both();
                    match &message {
                        Message::Join(join) => {
                            peers.joins(peer, &join.name);
                            if let Some(why) = access.banned(peers, peer) {
                                core.ban(peer, why);
                                return 0;
                            }
                            // Refresh now, so that everything sealed before WELCOME can be read with
                            // it.
                            refresh_directories(core, shared, versions);
                        }
                        Message::Progress(progress) => {
                            note(shared, now, peer, channel, progress);
                        }
                        Message::Latency(report) => {
                            let mut all = shared.subscribers();
                            let refused =
                                all.report_latency(peer.0, channel, now.monotonic, report);
                            shared.service.latency_reports_refused.add(refused.into());
                        }
                        Message::Nack {
                            epoch,
                            class,
                            ranges,
                        } if *epoch == shared.epoch => {
                            if let Some(owner) = core.session_of(peer) {
                                let how = LossRequest::of(*class, owner == peer);
                                let at = (owner.0, channel);
                                let mut losses = shared.losses();
                                losses.requested(now, at, *epoch, ranges, how);
                            }
                        }
                        _ => {}
                    }
                    let is_join = matches!(message, Message::Join(_));
                    let work = core.handle(now, RepairInput::Message(peer, channel, &message));
                    if let Some(owner) = is_join.then(|| core.session_of(peer)).flatten() {
                        peers.belongs(peer, owner);
                    }
                    return work;
                }
                ServerEvent::Granted(connection, share, granted) => {
                    if let Some((peer, channel)) = access.granted_to(peers, connection, share)
                        && core.grant(clock.both(), peer, channel, granted)
                    {
                        peers.audit("ring_granted", peer, Some(channel), None);
                    }
                }
                ServerEvent::CursorGranted(connection, share, granted) => {
                    if let Some((peer, channel)) = access.granted_to(peers, connection, share)
                        && core.grant_cursor(peer, channel, granted)
                    {
                        peers.audit("cursor_granted", peer, Some(channel), None);
                    }
                }
                ServerEvent::CursorRefused(connection, share, error) => {
                    if let Some((peer, channel)) = access.granted_to(peers, connection, share) {
                        let why = error.to_string();
                        peers.audit("cursor_refused", peer, Some(channel), Some(&why));
                    }
                }
                ServerEvent::Closed(connection, reason) => {
                    let Some(peer) = peers.remove(connection) else {
                        return 0;
                    };
                    access.forget(peer);
                    now = clock.both();
                    match &reason {
                        CloseReason::Protocol(error) => {
                            if peers.may_log(peer) {
                                tracing::info!(peer = peer.0, %error, "a connection was closed");
                            }
                            core.handle(now, RepairInput::Malformed(peer, &error.to_string()));
                        }
                        CloseReason::Violation(error) => {
                            let subscriber = peers.get(peer).map(|known| &*known.name);
                            if peers.may_log(peer) {
                                tracing::warn!(peer = peer.0, subscriber, "{error}");
                            }
                        }
                        CloseReason::Io(error) => {
                            if peers.may_log(peer) {
                                tracing::info!(peer = peer.0, %error, "a connection failed");
                            }
                            shared.service.connections_broken.increment();
                        }
                        _ => {}
                    }
                    core.handle(now, RepairInput::Disconnected(peer));
                }
                // The core has the same timer.
                _ => {}
            }
            0
        });
        let stats = self.server.stats();
        let service = &self.shared.service;
        let of_address = stats.turned_away_of_address;
        let refused = (stats.turned_away + stats.accept_errors).saturating_sub(of_address);
        service.connections_refused.set(refused);
        service.connections_per_address_refused.set(of_address);
        service.access_violations.set(stats.violations);
        service.cursors_leased.set(stats.cursors_leased);
        service.cursors_returned.set(stats.cursors_returned);
        service.cursors_live.set(stats.cursors_live);
        polled.map_err(|source| PublisherError::System {
            what: "poll the control connections",
            source,
        })
    }

    /// Polls the cursors that subscribers wrote.
    fn poll_cursors(&mut self, now: Now) {
        for (connection, share, words) in self.server.cursors() {
            let of = self.access.granted_to(&self.peers, connection, share);
            let Some((peer, channel)) = of else {
                continue;
            };
            if let Some((owner, progress)) = self.core.handle_cursor(now, peer, channel, &words) {
                note(&self.shared, now, owner, channel, &progress);
            }
        }
    }

    /// Writes new datagrams to standbys, up to the limit in flight.
    fn write_to_standbys(&mut self, now: Now) {
        if !self.core.is_mirrored() {
            return;
        }
        for (connection, count) in self.server.written() {
            if let Some(peer) = self.peers.of(connection) {
                self.core.handle(now, RepairInput::Written(peer, count));
            }
        }
        while let Some((peer, write)) = self.core.poll_write() {
            let share = self.access.share_of(write.channel);
            let Some((connection, share)) = self.peers.connection(peer).zip(share) else {
                self.core.handle(now, RepairInput::Unwritable(peer));
                continue;
            };
            if let Err(error) = self.server.write(connection, share, &write) {
                tracing::info!(
                    peer = peer.0,
                    "sealed datagrams can't be written to a standby: {error}"
                );
                self.core.handle(now, RepairInput::Unwritable(peer));
            }
        }
    }

    fn transmit(&mut self, now: Now) -> Result<(), PublisherError> {
        for _ in 0..TURNS_MAX {
            self.out.clear();
            let Some(destination) = self.core.poll_transmit(now, &mut self.out) else {
                break;
            };
            match destination {
                Destination::Peer(peer) => {
                    let Some(connection) = self.peers.connection(peer) else {
                        continue;
                    };
                    self.note_answers(now.monotonic, peer);
                    // The core closes a connection before its backlog exceeds this buffer.
                    let sent = self.server.send_frames(connection, &self.out);
                    if sent.is_err() {
                        self.server.close(connection, None);
                    }
                    let backlog = self.server.peer(connection).map_or(0, |p| p.backlog_bytes);
                    self.core.handle(now, RepairInput::Backlog(peer, backlog));
                }
                Destination::Multicast(channel) => self.multicast(channel)?,
            }
        }
        self.server.flush();
        let (peers, core) = (&self.peers, &mut self.core);
        self.server.take_backlogs(|connection, bytes| {
            if let Some(peer) = peers.of(connection) {
                core.handle(now, RepairInput::Backlog(peer, bytes));
            }
        });
        Ok(())
    }

    /// Keeps what the output answers of a subscriber's NACKs.
    fn note_answers(&self, now: Nanos, peer: PeerId) {
        let mut answers = nack_answers(&self.out).peekable();
        if answers.peek().is_none() {
            return;
        }
        let Some(owner) = self.core.session_of(peer) else {
            return;
        };
        let mut losses = self.shared.losses();
        for (channel, answer) in answers {
            losses.answered(now, (owner.0, channel), &answer);
        }
    }

    fn multicast(&mut self, channel: ChannelId) -> Result<(), PublisherError> {
        let Some(at) = self.shared.index_of(channel) else {
            return Ok(());
        };
        let (shared, fan_outs) = (&self.shared.channels[at], &mut self.multicast[at]);
        for fan_out in fan_outs {
            // A repair that found no room was counted; subscribers that miss it send another NACK.
            fan_out
                .send_copy(&self.out)
                .map_err(|source| PublisherError::Send {
                    channel: shared.plan.name.clone(),
                    source,
                })?;
        }
        Ok(())
    }

    fn events(&mut self) {
        while let Some(event) = self.core.poll() {
            match event {
                RepairEvent::Joined {
                    peer,
                    name,
                    channels,
                } => {
                    if self.peers.may_log(peer) {
                        tracing::info!(subscriber = name, channels = channels.len(), "joined");
                    }
                    for channel in &channels {
                        self.peers.audit("joined", peer, Some(*channel), None);
                    }
                    self.groups_at = Nanos::ZERO;
                    let session = self.core.session_number(peer).map(SessionNumber);
                    let address = self.peers.get(peer).map(|known| known.address.ip());
                    let origin = PeerOrigin::of(address.unwrap_or(Ipv4Addr::UNSPECIFIED.into()));
                    (self.shared.subscribers()).join((peer.0, origin), session, &name, &channels);
                    self.shared.losses().join(peer.0, &name, &channels);
                }
                RepairEvent::FurtherJoined {
                    peer,
                    further,
                    instead_of,
                } => {
                    let what = match further {
                        Further::Replay => "replay_joined",
                        Further::Nack => "nack_joined",
                        Further::Read => "read_joined",
                    };
                    let before = instead_of.and_then(|it| self.peers.get(it));
                    let why =
                        before.map(|it| format!("replaces the connection from {}", it.address));
                    self.peers.audit(what, peer, None, why.as_deref());
                }
                RepairEvent::ReadJoined { peer, channels, .. } => {
                    let (server, core) = (&mut self.server, &mut self.core);
                    (self.access).grant_read(peer, &channels, &self.peers, server, core);
                }
                RepairEvent::Mirroring {
                    peer,
                    name,
                    channel,
                    refused,
                } => {
                    let why = refused.map(MirrorRefusal::text);
                    let what = match why {
                        None => "mirror_granted",
                        Some(_) => "mirror_refused",
                    };
                    self.peers.audit(what, peer, Some(channel), why);
                    let (standby, channel) = (name, channel.0);
                    match why {
                        None => tracing::info!(
                            standby,
                            channel,
                            "sealed datagrams are written to the standby"
                        ),
                        Some(why) => {
                            tracing::warn!(
                                standby,
                                channel,
                                "the standby was refused, and nothing is written to it: {why}"
                            );
                        }
                    }
                }
                RepairEvent::Left {
                    peer,
                    name,
                    on_purpose,
                } => {
                    if self.peers.may_log(peer) {
                        tracing::info!(subscriber = name, on_purpose, "left");
                    }
                    let why = match on_purpose {
                        true => "the subscriber sent LEAVE",
                        false if self.is_ending => "the publisher ends",
                        false => "the subscriber sent no LEAVE",
                    };
                    self.groups_at = Nanos::ZERO;
                    self.peers.audit("left", peer, None, Some(why));
                    self.shared.subscribers().leave(peer.0);
                    self.shared.losses().leave(peer.0);
                }
                RepairEvent::Close { peer, reason } => {
                    if let Some(reason) = reason {
                        if self.peers.may_log(peer) {
                            tracing::info!(
                                peer = peer.0,
                                text = reason.text,
                                "closing a connection"
                            );
                        }
                        let what = if reason.is_end() {
                            "closed"
                        } else {
                            "turned_away"
                        };
                        self.peers.audit(what, peer, None, Some(&reason.text));
                    }
                    if let Some(connection) = self.peers.connection(peer) {
                        self.server.close(connection, None);
                    }
                }
                RepairEvent::HigherEpochClaimed {
                    peer,
                    channel,
                    epoch,
                } if self.peers.may_log(peer) => {
                    tracing::warn!(
                        channel = channel.0,
                        %epoch,
                        "a JOIN claims an epoch above the publisher's; it is counted, and has no effect"
                    );
                }
                RepairEvent::SlowSubscriber {
                    peer,
                    name,
                    channel,
                    behind,
                } if self.peers.may_log(peer) => tracing::warn!(
                    subscriber = name,
                    channel = channel.0,
                    behind,
                    "a subscriber is more than half a ring behind"
                ),
                _ => {}
            }
        }
        self.peers.forget_gone();
    }

    /// Reports subscriber state to the other threads.
    fn report(&mut self, now: Nanos) {
        if now >= self.groups_at {
            self.groups_at = now.after(GROUPS_EVERY);
            for channel in &self.shared.channels {
                let (subscribers, hold_off_us) = self.core.group(channel.plan.id);
                channel.subscribers.store(subscribers, Relaxed);
                channel.hold_off_us.store(hold_off_us, Relaxed);
            }
        }
        if self.shared.is_ended() {
            self.shared.set_all_reached_end(self.core.all_reached_end());
            let short = self.core.short_of_end() as u64;
            self.shared.service.subscribers_short_of_end.set(short);
        }
        if now < self.stats_at {
            return;
        }
        self.stats_at = now.after(Nanos::from_ms(10));
        for fan_out in self.multicast.iter_mut().flatten() {
            // Advances a transport that sends nothing for long, as one whose device is gone.
            fan_out.completed();
        }
        let following = self.shared.subscribers().following();
        self.shared.joined.store(following, Relaxed);
        for (channel, fan_outs) in self.shared.channels.iter().zip(&self.multicast) {
            for (fan_out, lines) in fan_outs.iter().zip(&channel.repair_lines) {
                for (stats, shown) in fan_out.stats().iter().zip(lines) {
                    shown.set(stats);
                }
            }
        }
        if self.core.is_journaled() {
            self.note_lines();
        }
    }

    /// Notes the send failures of multicast repair lines; fan-outs are numbered consecutively.
    fn note_lines(&mut self) {
        for (fan_out, of) in self.multicast.iter().flatten().enumerate() {
            for (line, stats) in of.stats().iter().enumerate() {
                if let Some(counted) = self.noted.changed(fan_out, line, stats) {
                    let at = (FanOutId(fan_out as u8), LineId(line as u8));
                    self.core.note(Note::Sending(at.0, at.1, counted));
                }
            }
        }
    }
}

/// Returns a secret from the system, unique to this run.
///
/// # Errors
/// Returns [`PublisherError::System`] if the system gives no randomness.
pub(crate) fn random_secret() -> Result<[u8; 32], PublisherError> {
    let mut secret = [0; 32];
    let mut rest = &mut secret[..];
    while !rest.is_empty() {
        let got = getrandom(&mut *rest, GetRandomFlags::empty());
        let got = got.map_err(|error| PublisherError::System {
            what: "take random bytes from the system",
            source: error.into(),
        })?;
        rest = &mut rest[got..];
    }
    Ok(secret)
}

fn refresh_directories(core: &mut RepairCore, shared: &Shared, versions: &mut [u64]) {
    for (channel, version) in shared.channels.iter().zip(versions) {
        let directory = channel.directory();
        if directory.version != *version {
            *version = directory.version;
            core.set_directory(channel.plan.id, directory.instruments().to_vec());
        }
    }
}

/// Keeps a subscriber's progress, for reports.
fn note(shared: &Shared, now: Now, peer: PeerId, channel: ChannelId, progress: &Progress) {
    let Some(at) = shared.index_of(channel) else {
        return;
    };
    let of = &shared.channels[at];
    let sealed = of.ring.sealed();
    // Ignore a report of a sequence that was never sealed.
    if progress.epoch == shared.epoch && progress.sequence > sealed {
        return;
    }
    let follows = progress.epoch == shared.epoch;
    if follows {
        let mut losses = shared.losses();
        losses.progressed(now, (peer.0, channel), progress);
    }
    shared.subscribers().report(peer.0, channel, |status| {
        status.follows = follows;
        status.lost_records = progress.lost_records;
        if follows {
            status.sequence = progress.sequence.0;
            status.heard = progress.heard.min(sealed).0;
            status.lag = sealed.since(progress.sequence);
        }
    });
}

#[cfg(test)]
mod tests;
