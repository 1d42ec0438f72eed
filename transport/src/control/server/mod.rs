//! The publisher's side of the control connections, over TCP and over verbs alike: accepts a bounded
//! number, reads whole messages, and keeps a bounded backlog for each peer.
//!
//! It decides nothing: it tells which peer is late with its JOIN, how long each backlog is, and
//! why a connection ended. Who is closed, and with which last word, is the service's choice.

mod admission;
mod backlog_hint;
mod reserved;

use std::cell::OnceCell;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV4};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::net::TcpListener;
use mio::{Events, Interest, Poll, Token};
use tickcast_reliability::control::{BODY_LEN_MAX_TO_PUBLISHER, Message, RemoteAccess};
use tickcast_reliability::ring::RingMemory;
use tickcast_reliability::serve::Carrier;
use tickcast_reliability::types::ChannelId;

pub use self::backlog_hint::BacklogHint;
use self::backlog_hint::Watched;
pub use self::reserved::Reserved;
use super::carrier::{CarrierStream, Cursors, Granted, Leased, Shared};
use super::remote::share::{Right, ShareId};
use super::{CloseReason, Filled, Inbox, Outbox, SendError};
#[cfg(feature = "rdma")]
use tickcast_verbs::{Listener, ReadableMemory};

/// Bounds of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerConfig {
    /// Connections at most; further ones get REJECTED with `too_many`.
    pub connections_max: usize,
    /// Of those, connections of one IP address at most, so that no host takes the places of all others.
    pub connections_per_address_max: usize,
    /// Of those, connections over verbs at most, because each pins memory; further ones are turned
    /// away without a word.
    pub verbs_connections_max: usize,
    /// Bytes of messages queued for one peer at most.
    pub backlog_bytes_max: usize,
    /// Bytes that one poll reads from one peer at most, so that none starves the others.
    pub read_bytes_max: usize,
    /// After this many bytes of messages one peer's turn in a poll is over, for the same reason: the rest
    /// of what it said waits for the next poll, which waits for nothing then. A message that was begun
    /// is finished, so one that is longer is a turn of its own.
    pub turn_bytes_max: usize,
    /// After how long a peer without a first message is reported.
    pub join_timeout: Duration,
    /// How long a closing peer may take to read its last message.
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
            // Some two dozen small NACKs. As many ranges in one NACK cost less, so bytes measure both.
            turn_bytes_max: 1024,
            join_timeout: Duration::from_secs(2),
            linger: Duration::from_secs(1),
        }
    }
}

/// One connection, never used again for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId(usize);

/// An event of one server poll.
#[derive(Debug)]
pub enum ServerEvent<'a> {
    /// Somebody connected, from there and so.
    Connected(PeerId, SocketAddr, Carrier),
    /// A peer asks, and so many bytes given to it have not arrived at its system yet, those queued
    /// among them; told before its NACK, over TCP.
    Unconfirmed(PeerId, usize),
    /// A message, valid within the call.
    Frame(PeerId, ChannelId, Message<'a>),
    /// No whole message has come within `join_timeout`; said once. Close it.
    JoinOverdue(PeerId),
    /// A peer may READ what [`ControlServer::grant`] named, here.
    Granted(PeerId, ShareId, RemoteAccess),
    /// A peer may write the cursor that [`ControlServer::grant_cursor`] leased, here.
    CursorGranted(PeerId, ShareId, RemoteAccess),
    /// A peer that waited for a cursor gets none: its device refused.
    CursorRefused(PeerId, ShareId, io::Error),
    /// The connection is gone; the last event of this peer.
    Closed(PeerId, CloseReason),
}

/// The facts about one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerInfo {
    /// The other side's address.
    pub address: SocketAddr,
    /// Bytes queued and not yet taken by the connection.
    pub backlog_bytes: usize,
    /// Messages read from it.
    pub messages: u64,
    /// When something was last read from it, or when it connected.
    pub heard_at: Instant,
    /// Whether it is being closed.
    pub closing: bool,
}

/// Counters since the server was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerStats {
    /// Connections accepted.
    pub accepted: u64,
    /// Connections turned away because there were too many.
    pub turned_away: u64,
    /// Of those, connections of an address that had as many as one may have.
    pub turned_away_of_address: u64,
    /// The address of the last of them.
    pub crowded_address: Option<IpAddr>,
    /// Of those accepted, connections over verbs.
    pub accepted_over_verbs: u64,
    /// Connections that broke: the network, the device or the peer's system gave up on them.
    pub broken: u64,
    /// Connections over verbs that the device stopped because of what the peer wanted of its memory.
    pub violations: u64,
    /// Cursors leased to peers since the beginning.
    pub cursors_leased: u64,
    /// Of those leases, the ones that are over: the cursor is zero, and may be leased again.
    pub cursors_returned: u64,
    /// Cursors that somebody has now.
    pub cursors_live: u64,
    /// Failures to accept, for example because the process is out of descriptors, or because who
    /// came over verbs is no tickcast.
    pub accept_errors: u64,
    /// The error number of the last of them that has one, 0 for none.
    pub accept_errno: i32,
    /// Messages read.
    pub messages: u64,
    /// Connections closed because what came was no message.
    pub protocol_errors: u64,
    /// Messages not queued because a peer's backlog was full.
    pub overflows: u64,
    /// Polls that the thread with the hint ended (see [`ControlServer::backlog_hint`]).
    pub woken_by_hint: u64,
}

impl ServerStats {
    fn not_accepted(&mut self, error: &io::Error) {
        self.accept_errors += 1;
        self.accept_errno = error.raw_os_error().unwrap_or(self.accept_errno);
    }
}

/// Wakes a server's poll from another thread.
#[derive(Clone, Debug)]
pub struct Waker(Arc<mio::Waker>);

impl Waker {
    /// Makes the poll in progress, or the next one, return at once.
    ///
    /// # Errors
    /// When the operating system refuses.
    pub fn wake(&self) -> io::Result<()> {
        self.0.wake()
    }
}

const LISTENER: Token = Token(0);
const WAKER: Token = Token(1);
const VERBS_LISTENER: Token = Token(2);
const FIRST_PEER: usize = 3;

pub(super) struct Peer {
    pub(super) carrier: CarrierStream,
    /// The access to be granted to the peer, once the device has bound it.
    pub(super) granting: Vec<(Right, Granted)>,
    /// Its cursors, and what each stands beside.
    pub(super) cursors: Vec<(ShareId, Leased)>,
    address: SocketAddr,
    inbox: Inbox,
    outbox: Outbox,
    connected_at: Instant,
    heard_at: Instant,
    messages: u64,
    /// The kernel may have bytes that we have not read: readiness is told only once.
    readable: bool,
    /// Its turn was over before it had said all that was read of it.
    interrupted: bool,
    /// It is over behind what there is to be read.
    ending: bool,
    /// Messages were queued since the last write, or the connection takes more again.
    writable: bool,
    overdue_reported: bool,
    phase: Phase,
    /// Never became a peer: no events about it.
    turned_away: bool,
}

enum Phase {
    Open,
    /// The backlog is being written; then the connection is shut down and the other side awaited.
    Closing {
        until: Instant,
        shut: bool,
    },
}

/// Listens for subscribers.
pub struct ControlServer {
    poll: Poll,
    events: Events,
    listener: TcpListener,
    #[cfg(feature = "rdma")]
    verbs_listener: Option<Listener>,
    waker: Waker,
    pub(super) peers: BTreeMap<PeerId, Peer>,
    /// Memory that peers may be let READ.
    pub(super) shares: Vec<Shared>,
    /// And cursors that they may be let write.
    pub(super) cursors: Option<Cursors>,
    /// The peers that wait for a free cursor, each with its share.
    pub(super) awaiting_cursors: VecDeque<(PeerId, ShareId)>,
    next_peer: usize,
    /// Connections may wait to be accepted: that is told only once, too.
    accept_pending: bool,
    /// Not because there were many at a time, but since accepting failed.
    accept_failed: bool,
    watched: Watched,
    config: ServerConfig,
    pub(super) stats: ServerStats,
    /// Peers to look at in this round; kept for its memory.
    round: Vec<PeerId>,
}

impl ControlServer {
    /// Listens at `address`; port 0 lets the system choose.
    ///
    /// # Errors
    /// When the address is taken or not this host's.
    pub fn bind(address: SocketAddr, config: ServerConfig) -> io::Result<Self> {
        Self::listening(TcpListener::bind(address)?, config)
    }

    /// Listens where `listener` does already.
    pub(super) fn listening(mut listener: TcpListener, config: ServerConfig) -> io::Result<Self> {
        let poll = Poll::new()?;
        poll.registry()
            .register(&mut listener, LISTENER, Interest::READABLE)?;
        let waker = Waker(Arc::new(mio::Waker::new(poll.registry(), WAKER)?));
        Ok(Self {
            poll,
            events: Events::with_capacity(256),
            listener,
            #[cfg(feature = "rdma")]
            verbs_listener: None,
            waker,
            peers: BTreeMap::new(),
            shares: Vec::new(),
            cursors: None,
            awaiting_cursors: VecDeque::new(),
            next_peer: FIRST_PEER,
            accept_pending: true,
            accept_failed: false,
            watched: Watched::default(),
            config,
            stats: ServerStats::default(),
            round: Vec::new(),
        })
    }

    /// Listens for reliable connections over RDMA verbs as well, on the device whose interface has
    /// this address; port 0 lets the system choose. Gives the address to connect to.
    ///
    /// # Errors
    /// When there is no such device, or the build is without the feature `rdma`
    /// ([`io::ErrorKind::Unsupported`]), or the device refuses.
    #[cfg(feature = "rdma")]
    pub fn listen_over_verbs(&mut self, address: SocketAddrV4) -> io::Result<SocketAddrV4> {
        use super::carrier::{answering_config, verbs_error};
        use std::os::fd::AsRawFd;

        let listener = Listener::bind(*address.ip(), address.port(), &answering_config());
        let listener = listener.map_err(verbs_error)?;
        let descriptor = listener.as_raw_fd();
        self.poll.registry().register(
            &mut mio::unix::SourceFd(&descriptor),
            VERBS_LISTENER,
            Interest::READABLE,
        )?;
        let address = listener.address();
        self.verbs_listener = Some(listener);
        Ok(address)
    }

    /// Listens for reliable connections over RDMA verbs as well.
    ///
    /// # Errors
    /// Always, in a build without the feature `rdma` ([`io::ErrorKind::Unsupported`]).
    #[cfg(not(feature = "rdma"))]
    pub fn listen_over_verbs(&mut self, _: SocketAddrV4) -> io::Result<SocketAddrV4> {
        Err(super::carrier::no_verbs())
    }

    /// The device that is listened on over verbs.
    #[cfg(feature = "rdma")]
    fn listening_device(&self) -> io::Result<&Arc<tickcast_verbs::Device>> {
        let listener = self.verbs_listener.as_ref();
        listener
            .map(Listener::device)
            .ok_or_else(|| io::ErrorKind::Unsupported.into())
    }

    /// Registers memory with it.
    #[cfg(feature = "rdma")]
    pub(super) fn register(&self, memory: Arc<dyn RingMemory>) -> io::Result<Shared> {
        let shared = ReadableMemory::register(self.listening_device()?, memory);
        shared.map_err(super::carrier::verbs_error)
    }

    #[cfg(not(feature = "rdma"))]
    pub(super) fn register(&self, _: Arc<dyn RingMemory>) -> io::Result<Shared> {
        Err(super::carrier::no_verbs())
    }

    /// Registers cursors with it.
    #[cfg(feature = "rdma")]
    pub(super) fn register_cursors(&self, entries: usize) -> io::Result<Cursors> {
        let cursors = Cursors::register(self.listening_device()?, entries);
        cursors.map_err(super::carrier::verbs_error)
    }

    #[cfg(not(feature = "rdma"))]
    pub(super) fn register_cursors(&self, _: usize) -> io::Result<Cursors> {
        Err(super::carrier::no_verbs())
    }

    /// The address it listens at.
    ///
    /// # Errors
    /// When the operating system does not say.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// A handle that wakes [`poll`](Self::poll).
    #[must_use]
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Returns a hint by which another thread sees whether input waits for [`poll`](Self::poll). Only the
    /// last hint counts. While its thread checks it on the core of the server's thread, it wakes that
    /// thread, which otherwise finds the input after milliseconds.
    ///
    /// # Errors
    /// When the process is out of descriptors.
    pub fn backlog_hint(&mut self) -> io::Result<BacklogHint> {
        self.watched.hint(&self.poll)
    }

    /// Writes what is queued, waits at most `timeout` for something to happen (`None`: for as long
    /// as it takes, but for the timers), and tells what did.
    ///
    /// # Errors
    /// When the operating system's polling fails; a peer's failure is an event.
    pub fn poll(
        &mut self,
        timeout: Option<Duration>,
        mut on: impl FnMut(ServerEvent<'_>),
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
                    if let Some(peer) = self.peers.get_mut(&PeerId(number)) {
                        let both = peer.carrier.tells_both_at_once();
                        peer.readable |= event.is_readable() || event.is_error();
                        peer.ending |= event.is_read_closed() || event.is_error();
                        peer.writable |= event.is_writable() || both;
                    }
                }
            }
        }
        let now = Instant::now();
        if self.accept_pending {
            self.accept(now, &mut on);
        }
        self.round.clear();
        self.round.extend(self.peers.keys());
        for i in 0..self.round.len() {
            self.serve(self.round[i], now, &mut on);
        }
        self.lease_returned(&mut on);
        self.count_cursors();
        Ok(())
    }

    /// Work that is left over must not wait, and neither must a timer.
    fn wait_at_most(&self, timeout: Option<Duration>) -> Option<Duration> {
        let now = Instant::now();
        let mut wait = timeout;
        let mut at_most = |span: Duration| wait = Some(wait.map_or(span, |wait| wait.min(span)));
        for peer in self.peers.values() {
            if peer.readable || peer.interrupted {
                at_most(Duration::ZERO);
            }
            match peer.phase {
                Phase::Closing { until, .. } => at_most(until.saturating_duration_since(now)),
                Phase::Open if peer.messages == 0 && !peer.overdue_reported => {
                    let until = peer.connected_at + self.config.join_timeout;
                    at_most(until.saturating_duration_since(now));
                }
                Phase::Open => {}
            }
        }
        if self.accept_pending {
            // A failure a little patience may cure.
            let patience = if self.accept_failed { 10 } else { 0 };
            at_most(Duration::from_millis(patience));
        }
        wait
    }

    fn serve(&mut self, id: PeerId, now: Instant, on: &mut impl FnMut(ServerEvent<'_>)) {
        let Some(peer) = self.peers.get_mut(&id) else {
            return;
        };
        let before = peer.messages;
        let mut result = peer.read(&self.config, now, |unconfirmed, channel, message| {
            if let Some(bytes) = unconfirmed {
                on(ServerEvent::Unconfirmed(id, bytes));
            }
            on(ServerEvent::Frame(id, channel, message));
        });
        self.stats.messages += peer.messages - before;
        if result.is_ok() {
            peer.tell_granted(id, on);
            result = peer.write(now);
        }
        let result = result.map_err(|reason| match reason {
            CloseReason::Io(error) if peer.carrier.is_violated() => CloseReason::Violation(error),
            reason => reason,
        });
        if let Err(reason) = result {
            self.stats.violations += u64::from(matches!(reason, CloseReason::Violation(_)));
            self.stats.protocol_errors += u64::from(matches!(reason, CloseReason::Protocol(_)));
            self.stats.broken += u64::from(matches!(reason, CloseReason::Io(_)));
            self.remove(id, reason, on);
        } else if matches!(peer.phase, Phase::Open)
            && peer.messages == 0
            && !peer.overdue_reported
            && now.duration_since(peer.connected_at) >= self.config.join_timeout
        {
            peer.overdue_reported = true;
            on(ServerEvent::JoinOverdue(id));
        }
    }

    fn remove(&mut self, id: PeerId, reason: CloseReason, on: &mut impl FnMut(ServerEvent<'_>)) {
        if let Some(mut peer) = self.peers.remove(&id) {
            self.awaiting_cursors.retain(|(it, _)| *it != id);
            peer.carrier.deregister(self.poll.registry());
            if !peer.turned_away {
                on(ServerEvent::Closed(id, reason));
            }
        }
    }

    /// Queues a message; [`flush`](Self::flush) or the next poll writes it.
    ///
    /// # Errors
    /// [`SendError`]; nothing of the message was queued then.
    pub fn send(
        &mut self,
        peer: PeerId,
        channel: ChannelId,
        message: &Message<'_>,
    ) -> Result<(), SendError> {
        let max = self.config.backlog_bytes_max;
        self.queue(peer, |outbox| outbox.push(channel, message, max))
    }

    /// Queues frames that were written already; [`flush`](Self::flush) or the next poll sends them.
    ///
    /// # Errors
    /// [`SendError`]; nothing of them was queued then.
    pub fn send_frames(&mut self, peer: PeerId, frames: &[u8]) -> Result<(), SendError> {
        let max = self.config.backlog_bytes_max;
        self.queue(peer, |outbox| outbox.push_frames(frames, max))
    }

    fn queue(
        &mut self,
        peer: PeerId,
        push: impl FnOnce(&mut Outbox) -> Result<(), SendError>,
    ) -> Result<(), SendError> {
        let open = |p: &&mut Peer| matches!(p.phase, Phase::Open);
        let to = self.peers.get_mut(&peer).filter(open);
        let to = to.ok_or(SendError::NotConnected)?;
        let queued = push(&mut to.outbox);
        self.stats.overflows += u64::from(queued.is_err());
        to.writable = true;
        queued
    }

    /// Writes what is queued as far as the connections take it. A failure is an event of the next
    /// poll.
    pub fn flush(&mut self) {
        for peer in self.peers.values_mut() {
            if peer.writable && peer.outbox.backlog() > 0 {
                match peer.outbox.write(&mut peer.carrier) {
                    Ok(done) => {
                        peer.writable = done;
                        peer.readable |= peer.carrier.holds_input();
                    }
                    Err(_) => peer.readable = true, // reading meets the failure again
                }
            }
        }
    }

    /// Says one last thing to a peer, if anything, and closes the connection once the peer has
    /// read it, or `linger` is over. `Closed` follows as an event. The last message is queued
    /// whatever the backlog.
    pub fn close(&mut self, peer: PeerId, last: Option<(ChannelId, &Message<'_>)>) {
        let Some(peer) = self.peers.get_mut(&peer) else {
            return;
        };
        if matches!(peer.phase, Phase::Closing { .. }) {
            return;
        }
        if let Some((channel, message)) = last {
            // With this bound it can't be refused.
            let _ = peer.outbox.push(channel, message, usize::MAX);
        }
        peer.writable = true;
        peer.phase = Phase::Closing {
            until: Instant::now() + self.config.linger,
            shut: false,
        };
    }

    /// Returns the facts about a peer; `None` once it is gone.
    #[must_use]
    pub fn peer(&self, peer: PeerId) -> Option<PeerInfo> {
        self.peers.get(&peer).map(Peer::info)
    }

    /// All peers.
    pub fn peers(&self) -> impl Iterator<Item = (PeerId, PeerInfo)> {
        let admitted = self.peers.iter().filter(|(_, peer)| !peer.turned_away);
        admitted.map(|(id, peer)| (*id, peer.info()))
    }

    /// Counters since it was opened.
    #[must_use]
    pub const fn stats(&self) -> &ServerStats {
        &self.stats
    }
}

impl Peer {
    /// Of a connection that is there from now on.
    fn new(carrier: CarrierStream, address: SocketAddr, now: Instant, turned_away: bool) -> Self {
        Self {
            carrier,
            granting: Vec::new(),
            cursors: Vec::new(),
            address,
            inbox: Inbox::new(BODY_LEN_MAX_TO_PUBLISHER),
            outbox: Outbox::default(),
            connected_at: now,
            heard_at: now,
            messages: 0,
            readable: true,
            interrupted: false,
            ending: false,
            writable: true,
            overdue_reported: false,
            phase: Phase::Open,
            turned_away,
        }
    }

    const fn info(&self) -> PeerInfo {
        PeerInfo {
            address: self.address,
            backlog_bytes: self.outbox.backlog(),
            messages: self.messages,
            heard_at: self.heard_at,
            closing: matches!(self.phase, Phase::Closing { .. }),
        }
    }

    fn read(
        &mut self,
        config: &ServerConfig,
        now: Instant,
        mut on: impl FnMut(Option<usize>, ChannelId, Message<'_>),
    ) -> Result<(), CloseReason> {
        let (mut read, mut turn) = (0, config.turn_bytes_max);
        // Reading may take the word that there is room as well.
        self.writable |= self.readable && self.carrier.tells_both_at_once();
        loop {
            if matches!(self.phase, Phase::Closing { .. }) {
                self.inbox.clear();
            } else {
                let (carrier, queued) = (&self.carrier, self.outbox.backlog());
                // The system is asked once, however many questions one read has brought.
                let unconfirmed = OnceCell::new();
                let told = |channel, message: Message<'_>| {
                    let asks = matches!(message, Message::Nack { .. });
                    let bytes = asks.then(|| *unconfirmed.get_or_init(|| carrier.unconfirmed()));
                    on(
                        bytes.flatten().map(|bytes| bytes + queued),
                        channel,
                        message,
                    );
                };
                self.messages += self.inbox.messages_within(&mut turn, told)? as u64;
            }
            self.interrupted = turn == 0;
            if !self.readable || self.interrupted || read >= config.read_bytes_max {
                return Ok(());
            }
            let held = self.inbox.end - self.inbox.start;
            let filled = (self.inbox.fill(&mut self.carrier)).map_err(CloseReason::Io)?;
            read += (self.inbox.end - self.inbox.start).saturating_sub(held);
            match filled {
                Filled::Drained => self.readable = false,
                Filled::More => self.heard_at = now,
                // To read once more would only find that there is nothing: what comes is told anew.
                Filled::Short => {
                    self.heard_at = now;
                    self.readable = self.ending || !self.carrier.is_tcp();
                }
                Filled::End if matches!(self.phase, Phase::Closing { .. }) => {
                    return Err(CloseReason::ByUs);
                }
                Filled::End => return Err(CloseReason::ByPeer),
            }
        }
    }

    fn write(&mut self, now: Instant) -> Result<(), CloseReason> {
        if self.writable && self.outbox.backlog() > 0 {
            self.writable = (self.outbox.write(&mut self.carrier)).map_err(CloseReason::Io)?;
            self.readable |= self.carrier.holds_input();
        }
        if let Phase::Closing { until, shut } = &mut self.phase {
            if !*shut && self.outbox.backlog() == 0 {
                // The other side reads to the end; closing at once could cost it the last message.
                *shut = true;
                self.carrier.finish().map_err(|_| CloseReason::ByUs)?;
            }
            if now >= *until {
                return Err(CloseReason::ByUs);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{Ipv4Addr, TcpStream};

    use super::*;

    #[test]
    fn what_is_left_of_a_turn_waits_for_nothing_else_to_happen() {
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
            // All of it was read at once, so that the kernel has nothing to tell of.
            if heard > before {
                assert_eq!(server.wait_at_most(None), Some(Duration::ZERO));
            }
        }
        server.poll(None, |_| ()).unwrap();
        assert_eq!(server.wait_at_most(None), None, "it is all said");
    }
}
