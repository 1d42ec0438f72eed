//! The publisher's side of the control connections, over TCP and over verbs: accepts a bounded
//! number, reads whole messages, and keeps a bounded backlog for each peer.
//!
//! It makes no policy decisions. It reports which peer's JOIN is overdue, how long each backlog is, and
//! why a connection ended. The service decides which peer to close, and with which last message.

mod admission;
mod backlog_hint;
mod peer;
mod reserved;
mod shares;
mod stats;
mod timers;
mod turns;
mod verbs_listeners;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{SocketAddr, SocketAddrV4};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::net::TcpListener;
use mio::{Events, Interest, Poll, Token};
use tickcast_reliability::control::{CURSOR_WORDS, Message, RemoteAccess};
use tickcast_reliability::ring::RingMemory;
use tickcast_reliability::serve::{Carrier, MirrorWrite};
use tickcast_reliability::types::ChannelId;

use self::admission::Crowd;
pub use self::backlog_hint::BacklogHint;
use self::backlog_hint::Watched;
use self::peer::{Peer, Right, WRITE_TURN_MAX};
pub use self::reserved::Reserved;
pub use self::shares::ShareId;
use self::shares::Shares;
pub use self::stats::ServerStats;
use self::timers::Timers;
use self::turns::Turns;
use self::verbs_listeners::VerbsListeners;
use super::{CloseReason, Outbox, SendError};

/// Limits of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerConfig {
    /// Largest number of open connections. Further ones get REJECTED with `too_many`. Connections that are
    /// being closed do not count; there are at most 64 more connections with them.
    pub connections_max: usize,
    /// Largest number of open connections of one address, so that one host can't take all places. An IPv6
    /// network of 64 bits counts as one address.
    pub connections_per_address_max: usize,
    /// Largest number of connections over verbs, because each pins memory. Further ones are refused without
    /// a message. One address has at most half of them.
    pub verbs_connections_max: usize,
    /// Largest number of bytes queued for one peer.
    pub backlog_bytes_max: usize,
    /// Largest number of bytes that one poll reads from one peer, so that none starves the others.
    pub read_bytes_max: usize,
    /// Bytes of messages after which one peer's turn in a poll ends, so that none starves the others. The
    /// rest waits for the next poll, which then does not sleep. A message is always finished, so a message
    /// longer than this is one turn. A short message counts as a NACK of one range.
    pub turn_bytes_max: usize,
    /// Turns after which the peers of one address have had their share of a poll. The others wait for the
    /// next poll.
    pub turns_per_address_max: usize,
    /// Time after which a peer without a first message is reported.
    pub join_timeout: Duration,
    /// Time that a closing peer has to read its last message.
    pub linger: Duration,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            connections_max: 1024,
            connections_per_address_max: 512,
            verbs_connections_max: 256,
            backlog_bytes_max: 4 << 20,
            read_bytes_max: 64 << 10,
            // About two dozen small NACKs. As many ranges in one NACK cost less, so bytes measure both.
            turn_bytes_max: 1024,
            // More would delay other addresses; fewer would make polls of many peers cost more than their
            // messages.
            turns_per_address_max: 4,
            join_timeout: Duration::from_secs(2),
            linger: Duration::from_secs(1),
        }
    }
}

/// Identifies a connection. Never reused for another connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(usize);

/// An event of one server poll.
#[derive(Debug)]
pub enum ServerEvent<'a> {
    /// A peer connected: its address and its carrier.
    Connected(ConnectionId, SocketAddr, Carrier),
    /// Bytes sent to a peer that have not arrived at its system yet, including queued ones. Reported over
    /// TCP before the peer's NACK.
    Unconfirmed(ConnectionId, usize),
    /// A message, valid within the call.
    Frame(ConnectionId, ChannelId, Message<'a>),
    /// No whole message has arrived within `join_timeout`. Reported once. Close the peer.
    JoinOverdue(ConnectionId),
    /// A peer may READ the memory that [`ControlServer::grant`] named, at this location.
    Granted(ConnectionId, ShareId, RemoteAccess),
    /// A peer may write the cursor that [`ControlServer::grant_cursor`] leased, at this location.
    CursorGranted(ConnectionId, ShareId, RemoteAccess),
    /// A peer that waited for a cursor gets none, because its device refused.
    CursorRefused(ConnectionId, ShareId, io::Error),
    /// The connection ended. This is the last event of the peer.
    Closed(ConnectionId, CloseReason),
}

/// The facts about one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerInfo {
    /// Address of the peer.
    pub address: SocketAddr,
    /// Bytes queued and not yet taken by the connection.
    pub backlog_bytes: usize,
    /// Messages read from the peer.
    pub messages: u64,
    /// Turns in which the server read from the peer.
    pub turns: u64,
    /// Time when bytes were last read from the peer, or when it connected.
    pub heard_at: Instant,
    /// Whether it is being closed.
    pub closing: bool,
}

/// Wakes a server's poll from another thread.
#[derive(Clone, Debug)]
pub struct Waker(Arc<mio::Waker>);

impl Waker {
    /// Makes the poll in progress, or the next one, return at once.
    ///
    /// # Errors
    /// The operating system's error if it refuses.
    pub fn wake(&self) -> io::Result<()> {
        self.0.wake()
    }
}

const LISTENER: Token = Token(0);
const WAKER: Token = Token(1);
const VERBS_LISTENER: Token = Token(2);
const FIRST_PEER: usize = 3;
/// Smallest and largest number of events that one poll takes.
const EVENTS_MIN: usize = 256;
const EVENTS_MAX: usize = 1 << 16;

/// Listens for subscribers.
pub struct ControlServer {
    poll: Poll,
    events: Events,
    listener: TcpListener,
    verbs: VerbsListeners,
    waker: Waker,
    peers: BTreeMap<ConnectionId, Peer>,
    /// Numbers of the connections, for admission.
    crowd: Crowd,
    /// The connections with input, and those with output that they may accept.
    turns: Turns,
    write_turns: Turns,
    /// The connections that were written to since their backlogs were taken.
    written_to: BTreeSet<ConnectionId>,
    /// The end of each connection's time to send a first message, or to read the last one.
    timers: Timers,
    /// Memory that peers may be allowed to reach.
    shares: Shares,
    /// The peers that were written to one-sided.
    mirrored: BTreeSet<ConnectionId>,
    next_peer: usize,
    /// Connections may wait to be accepted, because this is reported only once too.
    accept_pending: bool,
    /// Connections wait because accepting failed, not because there were many.
    accept_failed: bool,
    watched: Watched,
    config: ServerConfig,
    stats: ServerStats,
}

impl ControlServer {
    /// Listens at `address`. With port 0 the system chooses the port.
    ///
    /// # Errors
    /// The operating system's error if the address is in use or not this host's.
    pub fn bind(address: SocketAddr, config: ServerConfig) -> io::Result<Self> {
        Self::listening(TcpListener::bind(address)?, config)
    }

    /// Creates a server of an existing listener.
    pub(super) fn listening(mut listener: TcpListener, config: ServerConfig) -> io::Result<Self> {
        let poll = Poll::new()?;
        poll.registry()
            .register(&mut listener, LISTENER, Interest::READABLE)?;
        let waker = Waker(Arc::new(mio::Waker::new(poll.registry(), WAKER)?));
        // With room for an event of each connection, none of them is reported a poll later than others.
        let events_max = (config.connections_max.saturating_mul(2)).clamp(EVENTS_MIN, EVENTS_MAX);
        let share = |turn: usize| turn.saturating_mul(config.turns_per_address_max);
        Ok(Self {
            poll,
            events: Events::with_capacity(events_max),
            listener,
            verbs: VerbsListeners::default(),
            waker,
            peers: BTreeMap::new(),
            crowd: Crowd::default(),
            turns: Turns::new(share(config.turn_bytes_max)),
            write_turns: Turns::new(share(WRITE_TURN_MAX)),
            written_to: BTreeSet::new(),
            timers: Timers::default(),
            shares: Shares::default(),
            mirrored: BTreeSet::new(),
            next_peer: FIRST_PEER,
            accept_pending: true,
            accept_failed: false,
            watched: Watched::default(),
            config,
            stats: ServerStats::default(),
        })
    }

    /// Listens also for reliable connections over RDMA verbs, on the device whose interface has this
    /// address. With port 0 the system chooses the port. Returns the address to connect to. Each call adds a
    /// listener.
    ///
    /// # Errors
    /// - [`io::ErrorKind::Unsupported`] if there is no such device, or in a build without the feature
    ///   `rdma`
    /// - otherwise the device's error
    pub fn listen_over_verbs(&mut self, address: SocketAddrV4) -> io::Result<SocketAddrV4> {
        self.verbs.listen(address, self.poll.registry())
    }

    /// Returns the address that it listens at.
    ///
    /// # Errors
    /// The operating system's error.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Returns a handle that wakes [`poll`](Self::poll).
    #[must_use]
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Returns a hint by which another thread sees whether input waits for [`poll`](Self::poll). Only the
    /// last hint counts. While its thread checks it on the core of the server's thread, it wakes that
    /// thread, which otherwise finds the input after milliseconds.
    ///
    /// # Errors
    /// The operating system's error if the process is out of descriptors.
    pub fn backlog_hint(&mut self) -> io::Result<BacklogHint> {
        self.watched.hint(&self.poll)
    }

    /// Writes queued messages, waits at most `timeout` for events, and passes them to `on`. With `None` it
    /// waits until an event occurs or a timer fires.
    ///
    /// # Errors
    /// The operating system's error if polling fails. A peer's failure is an event.
    pub fn poll(
        &mut self,
        timeout: Option<Duration>,
        mut on: impl FnMut(ServerEvent<'_>),
    ) -> io::Result<()> {
        self.poll_charged(timeout, |event| {
            on(event);
            0
        })
    }

    /// Polls like [`Self::poll`], where `on` returns the work that a message caused beyond reading it, as the
    /// number of bytes that cost as much to read. The peer's turn, and the share of its address, are charged.
    ///
    /// # Errors
    /// As for [`Self::poll`].
    pub fn poll_charged(
        &mut self,
        timeout: Option<Duration>,
        mut on: impl FnMut(ServerEvent<'_>) -> usize,
    ) -> io::Result<()> {
        self.flush();
        let timeout = self.wait_at_most(timeout);
        let (poll, events) = (&mut self.poll, &mut self.events);
        match (self.watched).wait(timeout, |timeout| poll.poll(events, timeout)) {
            Ok(woken) => self.stats.woken_by_hint += u64::from(woken),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        for event in &self.events {
            match event.token() {
                LISTENER | VERBS_LISTENER => self.accept_pending = true,
                WAKER => {}
                Token(number) => {
                    let id = ConnectionId(number);
                    if let Some(peer) = self.peers.get_mut(&id) {
                        peer.handle_event(event);
                        enqueue(&mut self.turns, &mut self.write_turns, id, peer);
                    }
                }
            }
        }
        let now = Instant::now();
        if self.accept_pending {
            self.accept(now, &mut on);
        }
        self.turns.begin_pass();
        while let Some(id) = self.turns.next() {
            let work = self.serve(id, now, &mut on);
            self.turns.charge(work);
        }
        self.flush();
        self.fire_timers(now, &mut on);
        self.lease_returned(&mut on);
        self.count_cursors();
        Ok(())
    }

    /// Returns the longest wait: none while work is left over, and not beyond the next timer.
    fn wait_at_most(&self, timeout: Option<Duration>) -> Option<Duration> {
        if !self.turns.is_empty() || !self.write_turns.is_empty() {
            return Some(Duration::ZERO);
        }
        let until_timer = self.timers.next();
        let until_timer = until_timer.map(|at| at.saturating_duration_since(Instant::now()));
        // Wait a little after a failure to accept, because it may be temporary.
        let patience = Duration::from_millis(if self.accept_failed { 10 } else { 0 });
        let until_accept = self.accept_pending.then_some(patience);
        [timeout, until_timer, until_accept]
            .into_iter()
            .flatten()
            .min()
    }

    /// Reads from a peer for one turn. Returns what that cost.
    fn serve(
        &mut self,
        id: ConnectionId,
        now: Instant,
        on: &mut impl FnMut(ServerEvent<'_>) -> usize,
    ) -> usize {
        let Some(peer) = self.peers.get_mut(&id) else {
            return 0;
        };
        let (before, mut work) = (peer.messages(), 0);
        let result = peer.read(
            &self.config,
            now,
            &mut work,
            |unconfirmed, channel, message| {
                if let Some(bytes) = unconfirmed {
                    on(ServerEvent::Unconfirmed(id, bytes));
                }
                on(ServerEvent::Frame(id, channel, message))
            },
        );
        self.stats.turns += 1;
        self.stats.messages += peer.messages() - before;
        if let Err(reason) = result {
            let reason = match reason {
                CloseReason::Io(error) if peer.carrier.is_violated() => {
                    CloseReason::Violation(error)
                }
                reason => reason,
            };
            self.stats.violations += u64::from(matches!(reason, CloseReason::Violation(_)));
            self.stats.protocol_errors += u64::from(matches!(reason, CloseReason::Protocol(_)));
            self.stats.broken += u64::from(matches!(reason, CloseReason::Io(_)));
            self.remove(id, reason, on);
            return work;
        }
        peer.report_granted(id, on);
        enqueue(&mut self.turns, &mut self.write_turns, id, peer);
        if before == 0 && peer.messages() > 0 {
            self.timers.cancel(id);
        }
        self.report_overdue(id, now, on);
        work
    }

    /// Ends the connections whose time to read the last message is over, and reports those whose first
    /// message is overdue.
    fn fire_timers(&mut self, now: Instant, on: &mut impl FnMut(ServerEvent<'_>) -> usize) {
        while let Some(id) = self.timers.take_expired(now) {
            if self.peers.get(&id).is_some_and(Peer::is_closing) {
                self.remove(id, CloseReason::ByUs, on);
            } else if !self.turns.contains(id) {
                // A message that waits for a turn is not overdue; after that turn it is decided.
                self.report_overdue(id, now, on);
            }
        }
    }

    fn report_overdue(
        &mut self,
        id: ConnectionId,
        now: Instant,
        on: &mut impl FnMut(ServerEvent<'_>) -> usize,
    ) {
        let peer = self.peers.get_mut(&id);
        if peer.is_some_and(|peer| peer.becomes_overdue(now, &self.config)) {
            self.timers.cancel(id);
            on(ServerEvent::JoinOverdue(id));
        }
    }

    fn remove(
        &mut self,
        id: ConnectionId,
        reason: CloseReason,
        on: &mut impl FnMut(ServerEvent<'_>) -> usize,
    ) {
        if let Some(mut peer) = self.peers.remove(&id) {
            self.crowd.leave(id, &peer);
            self.timers.cancel(id);
            self.written_to.remove(&id);
            self.mirrored.remove(&id);
            if !peer.carrier.is_tcp() {
                self.shares.stop_waiting(id);
            }
            peer.carrier.deregister(self.poll.registry());
            let is_turned_away = peer.is_turned_away();
            // Its device must not be able to write a cursor that is leased again.
            drop(peer);
            self.shares.end_leases(id);
            if !is_turned_away {
                on(ServerEvent::Closed(id, reason));
            }
        }
    }

    /// Queues a message; [`flush`](Self::flush) or the next poll writes it.
    ///
    /// # Errors
    /// [`SendError`] if the queue is full or the peer is gone. Nothing was queued then.
    pub fn send(
        &mut self,
        peer: ConnectionId,
        channel: ChannelId,
        message: &Message<'_>,
    ) -> Result<(), SendError> {
        let max = self.config.backlog_bytes_max;
        self.queue(peer, |outbox| outbox.push(channel, message, max))
    }

    /// Queues encoded frames; [`flush`](Self::flush) or the next poll sends them.
    ///
    /// # Errors
    /// [`SendError`] if the queue is full or the peer is gone. Nothing was queued then.
    pub fn send_frames(&mut self, peer: ConnectionId, frames: &[u8]) -> Result<(), SendError> {
        let max = self.config.backlog_bytes_max;
        self.queue(peer, |outbox| outbox.push_frames(frames, max))
    }

    fn queue(
        &mut self,
        peer: ConnectionId,
        push: impl FnOnce(&mut Outbox) -> Result<(), SendError>,
    ) -> Result<(), SendError> {
        let to = self.peers.get_mut(&peer).ok_or(SendError::NotConnected)?;
        let queued = to.queue(push);
        self.stats.overflows += u64::from(matches!(queued, Err(SendError::Full { .. })));
        enqueue(&mut self.turns, &mut self.write_turns, peer, to);
        queued
    }

    /// Writes queued messages as far as the connections accept them, within the share of each address. The
    /// next poll writes the rest, and reports a failure as an event.
    pub fn flush(&mut self) {
        self.write_turns.begin_pass();
        while let Some(id) = self.write_turns.next() {
            let Some(peer) = self.peers.get_mut(&id) else {
                continue;
            };
            self.write_turns.charge(peer.write());
            self.stats.write_turns += 1;
            self.written_to.insert(id);
            enqueue(&mut self.turns, &mut self.write_turns, id, peer);
            // Writing may have learned of a right that the device has bound.
            if peer.is_being_granted() {
                self.turns.add(peer.origin(), id);
            }
        }
    }

    /// Passes each peer that was written to since the last call, and the bytes that are still queued for it.
    pub fn take_backlogs(&mut self, mut on: impl FnMut(ConnectionId, usize)) {
        while let Some(id) = self.written_to.pop_first() {
            if let Some(peer) = self.peers.get(&id) {
                on(id, peer.info().backlog_bytes);
            }
        }
    }

    /// Sends an optional last message, and closes the connection once the peer has read it, or `linger` has
    /// passed. `Closed` follows as an event. The last message is queued whatever the backlog.
    pub fn close(&mut self, peer: ConnectionId, last: Option<(ChannelId, &Message<'_>)>) {
        let found = self.peers.get_mut(&peer);
        let Some(closing) = found.filter(|peer| !peer.is_closing()) else {
            return;
        };
        closing.close(last);
        self.crowd.begins_to_close(peer, closing);
        enqueue(&mut self.turns, &mut self.write_turns, peer, closing);
        self.timers.set(peer, Instant::now() + self.config.linger);
    }

    /// Gives a peer a turn of reading soon if an operation of its carrier has taken reports of its
    /// descriptor, or while it is being granted a right.
    fn revisit(&mut self, id: ConnectionId) {
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.note_held_input();
            if peer.has_input() || peer.is_being_granted() {
                self.turns.add(peer.origin(), id);
            }
        }
    }

    /// Creates a share, which has no memory yet.
    pub fn create_share(&mut self) -> ShareId {
        self.shares.create()
    }

    /// Registers the memory of a share with the device of the verbs listener at this address. Peers that
    /// connect there can be allowed to READ it. Blocks while the device is probed, once in a process.
    ///
    /// # Errors
    /// - [`io::ErrorKind::Unsupported`] without such a listener, or in a build without the feature `rdma`
    /// - otherwise the device's error
    pub fn share(
        &mut self,
        share: ShareId,
        memory: Arc<dyn RingMemory>,
        at: SocketAddrV4,
    ) -> io::Result<()> {
        let (listener, memory) = self.verbs.register(memory, at)?;
        self.shares.set(share, listener, memory);
        Ok(())
    }

    /// Registers `entries` cursors, 1 to 4096, for the peers of the verbs listener at this address.
    ///
    /// # Errors
    /// As for [`ControlServer::share`].
    pub fn share_cursors(&mut self, entries: usize, at: SocketAddrV4) -> io::Result<()> {
        let (listener, cursors) = self.verbs.register_cursors(entries, at)?;
        self.shares.set_cursors(listener, cursors);
        Ok(())
    }

    /// Starts to let a peer READ all of some memory, over its connection alone. [`ServerEvent::Granted`]
    /// reports the location. The right ends with the connection.
    ///
    /// # Errors
    /// - [`io::ErrorKind::NotConnected`] if the peer is gone
    /// - [`io::ErrorKind::NotFound`] if the memory is not shared at the address that it connected to
    /// - [`io::ErrorKind::Unsupported`] over TCP
    /// - [`io::ErrorKind::WouldBlock`] if the peer has the maximum number of rights, or its device has not
    ///   reported the connection yet
    /// - otherwise the device's error
    pub fn grant(&mut self, id: ConnectionId, share: ShareId) -> io::Result<()> {
        let peer = self.peers.get_mut(&id).ok_or(io::ErrorKind::NotConnected)?;
        let memory = self.shares.memory(share, peer.listener())?;
        let granted = peer.grant(Right::Ring(share), |it| it.grant(memory));
        self.revisit(id);
        granted
    }

    /// Starts to let a peer write a cursor of its own, for memory that it was allowed to READ before. If no
    /// cursor is free, the peer waits in order of request. [`ServerEvent::CursorGranted`] reports the
    /// location, and [`ServerEvent::CursorRefused`] a later failure. The right ends with the connection.
    ///
    /// # Errors
    /// As for [`ControlServer::grant`]; [`io::ErrorKind::NotFound`] if there are no cursors.
    pub fn grant_cursor(&mut self, id: ConnectionId, share: ShareId) -> io::Result<()> {
        let peer = self.peers.get_mut(&id).ok_or(io::ErrorKind::NotConnected)?;
        let listener = peer.listener();
        let Some(cursor) = self.shares.take_cursor(listener)? else {
            self.shares.wait_for_cursor(listener, id, share);
            return Ok(());
        };
        let granted = peer.grant(Right::Cursor(share), |it| it.grant_cursor(&cursor));
        if granted.is_ok() {
            self.shares.keep_lease(id, share, cursor);
        }
        self.revisit(id);
        granted
    }

    /// Returns the number of peers that wait for a cursor.
    #[must_use]
    pub fn awaiting_cursors(&self) -> usize {
        self.shares.waiting()
    }

    /// Leases returned cursors to the waiting peers.
    fn lease_returned(&mut self, on: &mut impl FnMut(ServerEvent<'_>) -> usize) {
        let mut served = Vec::new();
        for listener in self.shares.listeners() {
            while let Some((id, share)) = self.shares.first_waiting(listener) {
                if let Some(peer) = self.peers.get_mut(&id) {
                    let Ok(Some(cursor)) = self.shares.take_cursor(listener) else {
                        break;
                    };
                    match peer.grant(Right::Cursor(share), |it| it.grant_cursor(&cursor)) {
                        Ok(()) => self.shares.keep_lease(id, share, cursor),
                        // The next peer gets the cursor.
                        Err(error) => {
                            on(ServerEvent::CursorRefused(id, share, error));
                        }
                    }
                    served.push(id);
                }
                self.shares.remove_first_waiting(listener);
            }
        }
        for id in served {
            self.revisit(id);
        }
    }

    fn count_cursors(&mut self) {
        if let Some((live, leased, returned)) = self.shares.cursor_counts() {
            let stats = &mut self.stats;
            stats.cursors_live = live;
            (stats.cursors_leased, stats.cursors_returned) = (leased, returned);
        }
    }

    /// Revokes all rights of a peer, as soon as its device does so, and refuses new ones. The audit trail
    /// records `why`. The connection and the rights of other peers stay.
    pub fn revoke(&mut self, id: ConnectionId, why: &str) {
        let Some(peer) = self.peers.get_mut(&id) else {
            return;
        };
        self.shares.stop_waiting(id);
        if !peer.revoke_rights(why) {
            self.close(id, None);
        }
    }

    /// Returns whether a peer has a right, or will get one.
    #[must_use]
    pub fn holds_rights(&self, peer: ConnectionId) -> bool {
        self.peers.get(&peer).is_some_and(Peer::holds_rights)
    }

    /// Returns all cursors that peers may write, with their present words.
    pub fn cursors(&self) -> impl Iterator<Item = (ConnectionId, ShareId, [u64; CURSOR_WORDS])> {
        self.shares.cursors()
    }

    /// Starts to write a datagram from shared memory to a peer's inbox.
    ///
    /// # Errors
    /// - [`io::ErrorKind::NotConnected`] if the peer is gone
    /// - [`io::ErrorKind::Unsupported`] over TCP
    /// - otherwise the error of an invalid write, or the device's error
    pub fn write(
        &mut self,
        peer: ConnectionId,
        share: ShareId,
        write: &MirrorWrite,
    ) -> io::Result<()> {
        let to = self.peers.get_mut(&peer);
        let to = to.ok_or(io::ErrorKind::NotConnected)?;
        let memory = self.shares.memory(share, to.listener())?;
        let written = to.carrier.write_from(memory, write);
        self.revisit(peer);
        written?;
        self.mirrored.insert(peer);
        Ok(())
    }

    /// Returns the peers whose WRITEs completed since the last call, and how many of each.
    pub fn written(&mut self) -> impl Iterator<Item = (ConnectionId, u32)> {
        let peers = &mut self.peers;
        self.mirrored.iter().filter_map(move |id| {
            let count = peers.get_mut(id)?.carrier.take_written();
            (count > 0).then_some((*id, count))
        })
    }

    /// Returns the facts about a peer; `None` once it is gone.
    #[must_use]
    pub fn peer(&self, peer: ConnectionId) -> Option<PeerInfo> {
        self.peers.get(&peer).map(Peer::info)
    }

    /// Returns all peers.
    pub fn peers(&self) -> impl Iterator<Item = (ConnectionId, PeerInfo)> {
        let admitted = self.peers.iter().filter(|(_, peer)| !peer.is_turned_away());
        admitted.map(|(id, peer)| (*id, peer.info()))
    }

    /// Returns the counters since opening.
    #[must_use]
    pub const fn stats(&self) -> &ServerStats {
        &self.stats
    }
}

/// Lets a connection wait for turns of reading and writing, if it has something to read or to write.
fn enqueue(turns: &mut Turns, write_turns: &mut Turns, id: ConnectionId, peer: &Peer) {
    if peer.has_input() {
        turns.add(peer.origin(), id);
    }
    if peer.has_output() {
        write_turns.add(peer.origin(), id);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{Ipv4Addr, TcpStream};

    use super::*;
    use crate::control::carrier::CarrierStream;
    use crate::control::server::peer::WRITE_COST_MIN;

    #[test]
    fn unprocessed_frames_make_next_wait_zero() {
        let config = ServerConfig {
            turn_bytes_max: 1,
            ..ServerConfig::default()
        };
        let mut server = ControlServer::bind((Ipv4Addr::LOCALHOST, 0).into(), config).unwrap();
        let mut stream = TcpStream::connect(server.local_address().unwrap()).unwrap();
        let mut said = Vec::new();
        for _ in 0..50 {
            Message::Leave.write(ChannelId(1), &mut said);
        }
        stream.write_all(&said).unwrap();
        let mut heard = 0;
        while heard < 50 {
            let before = heard;
            server
                .poll(None, |event| {
                    heard += usize::from(matches!(event, ServerEvent::Frame(..)));
                })
                .unwrap();
            assert!(heard <= before + 1, "a message is a turn");
            // All of it was read at once, so the kernel has nothing to report.
            if heard > before {
                assert_eq!(server.wait_at_most(None), Some(Duration::ZERO));
            }
        }
        // The message cost far more than a share of one byte, and later passes make up for it.
        while !server.turns.is_empty() {
            server.poll(None, |_| ()).unwrap();
        }
        assert_eq!(server.wait_at_most(None), None, "it is all said");
    }

    /// Connects one peer, and returns its stream and its id.
    fn connect(server: &mut ControlServer) -> (TcpStream, ConnectionId) {
        let stream = TcpStream::connect(server.local_address().unwrap()).unwrap();
        let id = ConnectionId(server.next_peer);
        while !server.peers.contains_key(&id) || !server.turns.is_empty() {
            server.poll(None, |_| ()).unwrap();
        }
        (stream, id)
    }

    #[test]
    fn output_beyond_the_share_makes_next_wait_zero() {
        let config = ServerConfig {
            turns_per_address_max: 1,
            ..ServerConfig::default()
        };
        let mut server = ControlServer::bind((Ipv4Addr::LOCALHOST, 0).into(), config).unwrap();
        assert!(server.events.capacity() >= config.connections_max);
        // The turns of this many short outputs cost as much as one long turn.
        let share = WRITE_TURN_MAX / WRITE_COST_MIN;
        let peers: Vec<_> = (0..share + 3).map(|_| connect(&mut server)).collect();
        for (_, id) in &peers {
            server.send_frames(*id, &[0]).unwrap();
        }
        for expected in [3, 0] {
            server.flush();
            let waits = |(_, id): &(TcpStream, ConnectionId)| server.peers[id].info().backlog_bytes;
            assert_eq!(peers.iter().map(waits).sum::<usize>(), expected);
            let wait = server.wait_at_most(None);
            assert_eq!(wait == Some(Duration::ZERO), expected > 0);
        }
    }

    #[test]
    fn wait_ends_with_join_timeout_or_linger() {
        let hour = Duration::from_secs(3600);
        let config = ServerConfig {
            join_timeout: hour,
            linger: 2 * hour,
            ..ServerConfig::default()
        };
        let mut server = ControlServer::bind((Ipv4Addr::LOCALHOST, 0).into(), config).unwrap();
        let (mut stream, id) = connect(&mut server);
        assert!(server.wait_at_most(None).unwrap() <= hour);
        let mut said = Vec::new();
        Message::Leave.write(ChannelId(1), &mut said);
        stream.write_all(&said).unwrap();
        while server.stats().messages == 0 {
            server.poll(None, |_| ()).unwrap();
        }
        assert_eq!(server.wait_at_most(None), None);
        server.close(id, None);
        server.flush();
        let wait = server.wait_at_most(None).unwrap();
        assert!(wait > hour && wait <= 2 * hour, "{wait:?}");
        // The peer reads on and never closes.
        server.timers.set(id, Instant::now());
        let mut closed = 0;
        (server.poll(None, |event| {
            closed += usize::from(matches!(event, ServerEvent::Closed(_, CloseReason::ByUs)));
        }))
        .unwrap();
        assert_eq!((closed, server.peers.len()), (1, 0));
        assert_eq!(server.wait_at_most(None), None);
    }

    #[test]
    fn message_that_waits_for_a_turn_is_not_overdue() {
        let config = ServerConfig {
            turns_per_address_max: 1,
            join_timeout: Duration::from_secs(3600),
            ..ServerConfig::default()
        };
        let mut server = ControlServer::bind((Ipv4Addr::LOCALHOST, 0).into(), config).unwrap();
        let mut peers: Vec<_> = (0..4).map(|_| connect(&mut server)).collect();
        let mut said = Vec::new();
        Message::Leave.write(ChannelId(1), &mut said);
        let said = said.repeat(100);
        for (stream, id) in &mut peers[..3] {
            stream.write_all(&said).unwrap();
            let carrier = &server.peers[id].carrier;
            match carrier {
                CarrierStream::Tcp(stream) => while stream.peek(&mut [0]).is_err() {},
                #[cfg(feature = "rdma")]
                CarrierStream::Verbs(_) => unreachable!("it is TCP"),
            }
        }
        // All are overdue now, but three of them only because the server has not read them.
        server.config.join_timeout = Duration::ZERO;
        peers
            .iter()
            .for_each(|(_, id)| server.timers.set(*id, Instant::now()));
        let mut overdue = Vec::new();
        while server.stats().messages < 300 {
            server
                .poll(None, |event| match event {
                    ServerEvent::JoinOverdue(id) => overdue.push(id),
                    ServerEvent::Frame(..) => {}
                    event => panic!("{event:?}"),
                })
                .unwrap();
        }
        assert_eq!(overdue, [peers[3].1]);
        server.poll(Some(Duration::ZERO), |_| ()).unwrap();
        assert_eq!(server.wait_at_most(None), None, "it is reported once");
    }
}
