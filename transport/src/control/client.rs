//! The subscriber's side of a control connection: connects, reconnects and polls without ever
//! blocking.
//!
//! Only [`resolve`] blocks, on the name service. Call it before the first poll, or on a separate
//! thread, and pass the addresses to the client.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use tickcast_reliability::control::{BODY_LEN_MAX_TO_SUBSCRIBER, Message, RemoteAccess};
use tickcast_reliability::ring::RingMemory;
use tickcast_reliability::session::{ReadLimits, RemoteRequest};
use tickcast_reliability::types::{ChannelId, Nanos};

use super::carrier::{CarrierStream, Granted};
use super::{CloseReason, Filled, Inbox, Outbox, SendError};

/// Limits of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientConfig {
    /// Limit for an attempt to connect.
    pub connect_timeout: Nanos,
    /// Largest number of bytes queued for the publisher.
    pub backlog_bytes_max: usize,
    /// Largest number of bytes that one poll reads (or one message, if that is longer).
    pub read_bytes_max: usize,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            connect_timeout: Nanos::from_secs(2),
            backlog_bytes_max: 1 << 20,
            read_bytes_max: 1 << 20,
        }
    }
}

/// An event of one client poll.
#[derive(Debug)]
pub enum ClientEvent<'a> {
    /// The connection is up. Nothing has been sent on it.
    Connected(SocketAddr),
    /// A message, valid within the call. The bytes of a datagram are not aligned.
    Frame(ChannelId, Message<'a>),
    /// The connection ended, or could not be established. Unsent messages are lost.
    Disconnected(CloseReason),
}

/// A grant of an inbox to the publisher over one connection, bound or still being bound.
pub struct InboxGrant(Granted);

/// Resolves a `host:port`. Blocks on the name service, unless the host is an address.
///
/// # Errors
/// [`io::Error`] if the text is not a `host:port`, or the host is unknown.
pub fn resolve(endpoint: &str) -> io::Result<Vec<SocketAddr>> {
    let addresses: Vec<_> = endpoint.to_socket_addrs()?.collect();
    if addresses.is_empty() {
        return Err(io::Error::new(
            io::ErrorKind::NotFound,
            format!("{endpoint} has no address"),
        ));
    }
    Ok(addresses)
}

enum State {
    Idle,
    Connecting(CarrierStream, SocketAddr, Nanos),
    Connected(CarrierStream),
}

/// A connection to a publisher that can be established repeatedly.
pub struct ControlClient {
    addresses: Vec<SocketAddr>,
    /// Index of the address for the next attempt.
    turn: usize,
    over_verbs: bool,
    for_reads: bool,
    interfaces: Vec<Ipv4Addr>,
    traffic_class: u8,
    config: ClientConfig,
    state: State,
    inbox: Inbox,
    outbox: Outbox,
}

impl ControlClient {
    /// Creates a client of the publisher at one of `addresses`, which are tried in turn. Does not connect
    /// yet.
    #[must_use]
    pub fn new(addresses: Vec<SocketAddr>, config: ClientConfig) -> Self {
        Self {
            addresses,
            turn: 0,
            over_verbs: false,
            for_reads: false,
            interfaces: Vec::new(),
            traffic_class: 0,
            config,
            state: State::Idle,
            inbox: Inbox::new(BODY_LEN_MAX_TO_SUBSCRIBER),
            outbox: Outbox::default(),
        }
    }

    /// Creates a client like [`new`](Self::new), for a reliable connection over RDMA verbs. It uses the
    /// device whose interface routes to the address, else one of [`set_interfaces`](Self::set_interfaces).
    /// For an address of this host, the device of an interface that was set comes first.
    /// Without the feature `rdma`, or without a device, every attempt fails at once
    /// ([`io::ErrorKind::Unsupported`]).
    #[must_use]
    pub fn over_verbs(addresses: Vec<SocketAddr>, config: ClientConfig) -> Self {
        Self {
            over_verbs: true,
            ..Self::new(addresses, config)
        }
    }

    /// Creates a client like [`over_verbs`](Self::over_verbs) that can also READ the publisher's memory.
    #[must_use]
    pub fn for_reads(addresses: Vec<SocketAddr>, config: ClientConfig) -> Self {
        Self {
            for_reads: true,
            ..Self::over_verbs(addresses, config)
        }
    }

    /// Drops any connection and starts to connect to the next address. A later poll reports the result as an
    /// event.
    ///
    /// # Errors
    /// [`CloseReason::Unreachable`] if the attempt can't be started.
    pub fn connect(&mut self, now: Nanos) -> Result<(), CloseReason> {
        self.disconnect();
        let none = || io::Error::new(io::ErrorKind::NotFound, "no address to connect to");
        let count = self.addresses.len().max(1);
        let address = *self
            .addresses
            .get(self.turn % count)
            .ok_or_else(|| CloseReason::Unreachable(none()))?;
        self.turn = (self.turn + 1) % count;
        let carrier = match address {
            _ if !self.over_verbs => CarrierStream::dial_tcp(address),
            SocketAddr::V4(address) => CarrierStream::dial_verbs(
                address,
                &self.interfaces,
                self.for_reads,
                self.traffic_class,
            ),
            SocketAddr::V6(_) => Err(io::ErrorKind::Unsupported.into()),
        };
        let carrier = carrier.map_err(CloseReason::Unreachable)?;
        self.state = State::Connecting(carrier, address, now);
        Ok(())
    }

    /// Sets the traffic class of connections over verbs, in both directions, from the next attempt on. Its
    /// upper six bits are the DSCP.
    pub const fn set_traffic_class(&mut self, class: u8) {
        self.traffic_class = class;
    }

    /// Sets the interfaces for connections over verbs, from the next attempt on. The first that belongs to
    /// a device is used where the route to the address leads over no device, or the address is this host's.
    pub fn set_interfaces(&mut self, interfaces: Vec<Ipv4Addr>) {
        self.interfaces = interfaces;
    }

    /// Replaces the addresses, from the next attempt on.
    pub fn set_addresses(&mut self, addresses: Vec<SocketAddr>) {
        self.addresses = addresses;
        self.turn = 0;
    }

    /// Drops the connection and its queued messages. Sends no last message, and no event follows.
    pub fn disconnect(&mut self) {
        self.state = State::Idle;
        self.inbox.clear();
        self.outbox.clear();
    }

    /// Advances the connection: connects, writes queued messages, and passes arrived ones to `on`. Returns
    /// the number of messages. Never blocks; does nothing while idle.
    pub fn poll(&mut self, now: Nanos, mut on: impl FnMut(ClientEvent<'_>)) -> usize {
        let result = match self.state {
            State::Idle => return 0,
            State::Connecting(..) => self.poll_connecting(now, &mut on).map(|()| 0),
            State::Connected(_) => self.poll_connected(&mut on),
        };
        result.unwrap_or_else(|reason| {
            self.disconnect();
            on(ClientEvent::Disconnected(reason));
            0
        })
    }

    fn poll_connecting(
        &mut self,
        now: Nanos,
        on: &mut impl FnMut(ClientEvent<'_>),
    ) -> Result<(), CloseReason> {
        let State::Connecting(carrier, address, since) = &mut self.state else {
            return Ok(());
        };
        let address = *address;
        if !(carrier.is_established()).map_err(CloseReason::Unreachable)? {
            return if now.since(*since) > self.config.connect_timeout {
                Err(CloseReason::Timeout)
            } else {
                Ok(())
            };
        }
        if let State::Connecting(carrier, ..) = std::mem::replace(&mut self.state, State::Idle) {
            self.state = State::Connected(carrier);
        }
        on(ClientEvent::Connected(address));
        Ok(())
    }

    fn poll_connected(
        &mut self,
        on: &mut impl FnMut(ClientEvent<'_>),
    ) -> Result<usize, CloseReason> {
        self.flush_or_reason()?;
        let State::Connected(stream) = &mut self.state else {
            return Ok(0);
        };
        let (mut read, mut count) = (0, 0);
        loop {
            let held = self.inbox.end - self.inbox.start;
            let filled = self.inbox.fill(stream).map_err(CloseReason::Io)?;
            read += (self.inbox.end - self.inbox.start).saturating_sub(held);
            let found = self
                .inbox
                .messages(|channel, message| on(ClientEvent::Frame(channel, message)))?;
            count += found;
            match filled {
                Filled::Drained => return Ok(count),
                Filled::End => return Err(CloseReason::ByPeer),
                // The next poll reads again.
                Filled::Short if stream.is_tcp() => return Ok(count),
                _ if read >= self.config.read_bytes_max => return Ok(count),
                Filled::More | Filled::Short => {}
            }
        }
    }

    /// Queues a message; [`flush`](Self::flush) or the next poll writes it.
    ///
    /// # Errors
    /// [`SendError`] if the queue is full or there is no connection. Nothing was queued then.
    pub fn send(&mut self, channel: ChannelId, message: &Message<'_>) -> Result<(), SendError> {
        if !self.is_connected() {
            return Err(SendError::NotConnected);
        }
        self.outbox
            .push(channel, message, self.config.backlog_bytes_max)
    }

    /// Queues encoded frames; [`flush`](Self::flush) or the next poll sends them.
    ///
    /// # Errors
    /// [`SendError`] if the queue is full or there is no connection. Nothing was queued then.
    pub fn send_frames(&mut self, frames: &[u8]) -> Result<(), SendError> {
        if !self.is_connected() {
            return Err(SendError::NotConnected);
        }
        self.outbox
            .push_frames(frames, self.config.backlog_bytes_max)
    }

    /// Writes queued messages as far as the connection accepts them. The next poll meets a failure again
    /// and reports it as an event.
    pub fn flush(&mut self) {
        let _ = self.flush_or_reason();
    }

    fn flush_or_reason(&mut self) -> Result<(), CloseReason> {
        match &mut self.state {
            State::Connected(stream) if self.outbox.backlog() > 0 => self
                .outbox
                .write(stream, usize::MAX)
                .map(|_| ())
                .map_err(CloseReason::Io),
            _ => Ok(()),
        }
    }

    /// Returns the bytes queued and not yet taken by the connection.
    #[must_use]
    pub const fn backlog(&self) -> usize {
        self.outbox.backlog()
    }

    /// Returns whether the connection is up.
    #[must_use]
    pub const fn is_connected(&self) -> bool {
        matches!(self.state, State::Connected(_))
    }

    /// Returns this host's address of the connection; `None` while it is down, and over verbs. The interface
    /// of that address carries the connection.
    #[must_use]
    pub fn local_address(&self) -> Option<SocketAddr> {
        match &self.state {
            State::Connected(carrier) => carrier.local_address(),
            State::Idle | State::Connecting(..) => None,
        }
    }

    /// Returns whether there is neither a connection nor an attempt.
    #[must_use]
    pub const fn is_idle(&self) -> bool {
        matches!(self.state, State::Idle)
    }

    /// Returns whether there are unread bytes that no descriptor reports any more. Poll before waiting then.
    #[must_use]
    pub fn holds_input(&self) -> bool {
        matches!(&self.state, State::Connected(carrier) if carrier.holds_input())
    }

    /// Returns the connection's descriptors, for `epoll`. They change with each reconnect, and there is one
    /// more while connecting over verbs. Writable means that connecting is complete, or that a backlog can
    /// be written.
    #[must_use]
    pub fn descriptors(&self) -> [Option<BorrowedFd<'_>>; 2] {
        match &self.state {
            State::Idle => [None, None],
            State::Connecting(carrier, ..) | State::Connected(carrier) => carrier.descriptors(),
        }
    }

    /// Returns the agreed limits of concurrent operations; zero while not connected.
    #[must_use]
    pub fn read_limits(&self) -> ReadLimits {
        match &self.state {
            State::Connected(carrier) => carrier.read_limits(),
            _ => ReadLimits::default(),
        }
    }

    /// Starts an operation. If it fails later, the connection ends.
    ///
    /// # Errors
    /// The device's error if it can't be started. The connection is then unusable.
    pub fn begin_remote(&mut self, request: &RemoteRequest) -> io::Result<()> {
        match &mut self.state {
            State::Connected(carrier) => carrier.begin_remote(request),
            _ => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Passes the result of each completed operation to `on`, with its tag, in the order of their start: the
    /// bytes of a READ, the old word of a claim, no bytes for a report. Returns their number.
    pub fn take_remote(&mut self, mut on: impl FnMut(u64, &[u8])) -> usize {
        let mut count = 0;
        while let State::Connected(carrier) = &mut self.state
            && carrier.take_remote(&mut on)
        {
            count += 1;
        }
        count
    }

    /// Registers a part of some memory with the connection's device, and starts to let the publisher
    /// write it over this connection alone. The grant ends with the connection.
    ///
    /// # Errors
    /// - [`io::ErrorKind::NotConnected`] without a connection
    /// - [`io::ErrorKind::Unsupported`] over TCP
    /// - otherwise the device's error
    pub fn grant_inbox(
        &mut self,
        memory: Arc<dyn RingMemory>,
        part: Range<usize>,
    ) -> io::Result<InboxGrant> {
        match &mut self.state {
            State::Connected(carrier) => carrier.grant_inbox(memory, part).map(InboxGrant),
            _ => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Returns the memory that the publisher may write, once the device has bound it.
    #[must_use]
    pub fn granted_inbox(&self, inbox: &InboxGrant) -> Option<RemoteAccess> {
        match &self.state {
            State::Connected(carrier) => carrier.granted(&inbox.0),
            _ => None,
        }
    }
}
