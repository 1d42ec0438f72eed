//! The subscriber's side of a control connection: connects, reconnects and polls without ever
//! blocking.
//!
//! Only [`resolve`] blocks, on the name service: call it before the first poll, or on a thread of
//! your own, and hand the addresses over.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::os::fd::BorrowedFd;

use tickcast_reliability::control::{BODY_LEN_MAX_TO_SUBSCRIBER, Message};
use tickcast_reliability::types::{ChannelId, Nanos};

use super::carrier::CarrierStream;
use super::{CloseReason, Filled, Inbox, Outbox, SendError};

/// Bounds of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientConfig {
    /// How long an attempt to connect may take.
    pub connect_timeout: Nanos,
    /// Bytes of messages queued for the publisher at most.
    pub backlog_bytes_max: usize,
    /// Bytes that one poll reads at most (or one message, if that is longer).
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
    /// The connection is over, or was not to be had. Unsent messages are gone.
    Disconnected(CloseReason),
}

/// Looks up a `host:port`. Blocks for as long as the name service takes, unless the host is an
/// address.
///
/// # Errors
/// When the text is no `host:port`, or no such host is known.
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

pub(super) enum State {
    Idle,
    Connecting(CarrierStream, SocketAddr, Nanos),
    Connected(CarrierStream),
}

/// One connection to a publisher, made anew as often as asked.
pub struct ControlClient {
    addresses: Vec<SocketAddr>,
    /// Which of them the next attempt takes.
    turn: usize,
    over_verbs: bool,
    for_reads: bool,
    interfaces: Vec<Ipv4Addr>,
    config: ClientConfig,
    pub(super) state: State,
    inbox: Inbox,
    outbox: Outbox,
}

impl ControlClient {
    /// A client of the publisher at one of `addresses`, which are tried in turn. Does not connect
    /// yet.
    #[must_use]
    pub fn new(addresses: Vec<SocketAddr>, config: ClientConfig) -> Self {
        Self {
            addresses,
            turn: 0,
            over_verbs: false,
            for_reads: false,
            interfaces: Vec::new(),
            config,
            state: State::Idle,
            inbox: Inbox::new(BODY_LEN_MAX_TO_SUBSCRIBER),
            outbox: Outbox::default(),
        }
    }

    /// As [`new`](Self::new), for a reliable connection over RDMA verbs, from a device of
    /// [`set_interfaces`](Self::set_interfaces), else the one whose interface leads to the address.
    /// Without the feature `rdma`, or without a device, no attempt begins
    /// ([`io::ErrorKind::Unsupported`]).
    #[must_use]
    pub fn over_verbs(addresses: Vec<SocketAddr>, config: ClientConfig) -> Self {
        Self {
            over_verbs: true,
            ..Self::new(addresses, config)
        }
    }

    /// As [`over_verbs`](Self::over_verbs), over which the publisher's memory can be READ as well.
    #[must_use]
    pub fn for_reads(addresses: Vec<SocketAddr>, config: ClientConfig) -> Self {
        Self {
            for_reads: true,
            ..Self::over_verbs(addresses, config)
        }
    }

    /// Begins to connect to the next address, dropping the connection that there may be. How it
    /// went is an event of a later poll; only when the attempt can't even begin does it fail here.
    ///
    /// # Errors
    /// [`CloseReason::Unreachable`].
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
            SocketAddr::V4(address) => {
                CarrierStream::dial_verbs(address, &self.interfaces, self.for_reads)
            }
            SocketAddr::V6(_) => Err(io::ErrorKind::Unsupported.into()),
        };
        let carrier = carrier.map_err(CloseReason::Unreachable)?;
        self.state = State::Connecting(carrier, address, now);
        Ok(())
    }

    /// From the next attempt on, connections over verbs are made from the first of these interfaces
    /// that belongs to a device, if one does.
    pub fn set_interfaces(&mut self, interfaces: Vec<Ipv4Addr>) {
        self.interfaces = interfaces;
    }

    /// Replaces the addresses, from the next attempt on.
    pub fn set_addresses(&mut self, addresses: Vec<SocketAddr>) {
        self.addresses = addresses;
        self.turn = 0;
    }

    /// Drops the connection without a word, and what was queued for it. No event follows.
    pub fn disconnect(&mut self) {
        self.state = State::Idle;
        self.inbox.clear();
        self.outbox.clear();
    }

    /// Moves the connection along: connects, writes what is queued, hands over what arrived. How
    /// many messages there were. Never blocks; does nothing while idle.
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
                // The next poll looks again.
                Filled::Short if stream.is_tcp() => return Ok(count),
                _ if read >= self.config.read_bytes_max => return Ok(count),
                Filled::More | Filled::Short => {}
            }
        }
    }

    /// Queues a message; [`flush`](Self::flush) or the next poll writes it.
    ///
    /// # Errors
    /// [`SendError`]; nothing of the message was queued then.
    pub fn send(&mut self, channel: ChannelId, message: &Message<'_>) -> Result<(), SendError> {
        if !self.is_connected() {
            return Err(SendError::NotConnected);
        }
        self.outbox
            .push(channel, message, self.config.backlog_bytes_max)
    }

    /// Queues frames that were written already; [`flush`](Self::flush) or the next poll sends them.
    ///
    /// # Errors
    /// [`SendError`]; nothing of them was queued then.
    pub fn send_frames(&mut self, frames: &[u8]) -> Result<(), SendError> {
        if !self.is_connected() {
            return Err(SendError::NotConnected);
        }
        self.outbox
            .push_frames(frames, self.config.backlog_bytes_max)
    }

    /// Writes what is queued as far as the connection takes it. A failure is an event of the next
    /// poll, which meets it again.
    pub fn flush(&mut self) {
        let _ = self.flush_or_reason();
    }

    fn flush_or_reason(&mut self) -> Result<(), CloseReason> {
        match &mut self.state {
            State::Connected(stream) if self.outbox.backlog() > 0 => self
                .outbox
                .write(stream)
                .map(|_| ())
                .map_err(CloseReason::Io),
            _ => Ok(()),
        }
    }

    /// Bytes queued and not yet taken by the connection.
    #[must_use]
    pub const fn backlog(&self) -> usize {
        self.outbox.backlog()
    }

    /// Whether the connection is up.
    #[must_use]
    pub const fn is_connected(&self) -> bool {
        matches!(self.state, State::Connected(_))
    }

    /// Whether there is neither a connection nor an attempt at one.
    #[must_use]
    pub const fn is_idle(&self) -> bool {
        matches!(self.state, State::Idle)
    }

    /// Whether bytes have come that no descriptor tells of any more: poll before waiting.
    #[must_use]
    pub fn holds_input(&self) -> bool {
        matches!(&self.state, State::Connected(carrier) if carrier.holds_input())
    }

    /// The connection's descriptors, for `epoll`; others after each reconnect, and one more while it
    /// connects over verbs. Writable means that connecting is over, or that a backlog can go on.
    #[must_use]
    pub fn descriptors(&self) -> [Option<BorrowedFd<'_>>; 2] {
        match &self.state {
            State::Idle => [None, None],
            State::Connecting(carrier, ..) | State::Connected(carrier) => carrier.descriptors(),
        }
    }
}
