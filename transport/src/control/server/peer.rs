//! The state of one connection: what it sent and has not had a turn for, and what waits to be written to it.

use std::cell::OnceCell;
use std::io;
use std::net::SocketAddr;
use std::time::Instant;

use mio::event::Event;
use tickcast_reliability::control::{BODY_LEN_MAX_TO_PUBLISHER, Message, RemoteAccess};
use tickcast_reliability::types::{ChannelId, PeerOrigin};

use super::shares::{ListenerNumber, ShareId};
use super::{ConnectionId, PeerInfo, ServerConfig, ServerEvent};
use crate::control::carrier::{CarrierStream, Granted};
use crate::control::{CloseReason, Filled, Inbox, Outbox, SendError};

/// Cost of a read, in bytes, because a system call costs as much as reading several messages.
const READ_COST: usize = 256;
/// Bytes written in one turn.
pub(super) const WRITE_TURN_MAX: usize = 64 << 10;
/// Least cost of a turn of writing, in bytes, because a system call costs as much as the bytes of several
/// datagrams.
pub(super) const WRITE_COST_MIN: usize = 4 << 10;

/// A right that is still being bound for a peer.
pub(super) enum Right {
    /// READ of this memory.
    Ring(ShareId),
    /// Write of a cursor for this memory.
    Cursor(ShareId),
}

pub(super) struct Peer {
    pub(super) carrier: CarrierStream,
    /// The rights to be granted to the peer, once the device has bound them.
    granting: Vec<(Right, Granted)>,
    /// The listener that accepted it, which means nothing over TCP.
    listener: ListenerNumber,
    address: SocketAddr,
    inbox: Inbox,
    outbox: Outbox,
    connected_at: Instant,
    heard_at: Instant,
    messages: u64,
    turns: u64,
    /// The kernel may have unread bytes, because it reports readiness only once.
    readable: bool,
    /// Its turn ended before all received messages were processed.
    interrupted: bool,
    /// The connection ends after the bytes that are still to be read.
    ending: bool,
    /// Messages were queued since the last write, or the connection accepts more again.
    writable: bool,
    /// The failure of a write. The connection ends with it once everything received is read.
    failed: Option<io::Error>,
    overdue_reported: bool,
    phase: Phase,
    /// A refused connection, which never became a peer: no events about it.
    turned_away: bool,
}

enum Phase {
    Open,
    /// The backlog is being written. Then the connection is shut down and waits for the peer.
    Closing {
        shut: bool,
    },
}

impl Peer {
    /// Creates the state of a new connection.
    pub(super) fn new(
        carrier: CarrierStream,
        listener: ListenerNumber,
        address: SocketAddr,
        now: Instant,
        turned_away: bool,
    ) -> Self {
        Self {
            carrier,
            granting: Vec::new(),
            listener,
            address,
            inbox: Inbox::new(BODY_LEN_MAX_TO_PUBLISHER),
            outbox: Outbox::default(),
            connected_at: now,
            heard_at: now,
            messages: 0,
            turns: 0,
            readable: true,
            interrupted: false,
            ending: false,
            writable: true,
            failed: None,
            overdue_reported: false,
            phase: Phase::Open,
            turned_away,
        }
    }

    pub(super) const fn info(&self) -> PeerInfo {
        PeerInfo {
            address: self.address,
            backlog_bytes: self.outbox.backlog(),
            messages: self.messages,
            turns: self.turns,
            heard_at: self.heard_at,
            closing: self.is_closing(),
        }
    }

    /// Returns the listener that accepted it, over verbs.
    pub(super) const fn listener(&self) -> ListenerNumber {
        self.listener
    }

    /// Returns the unit by which the connection shares resources with others.
    pub(super) const fn origin(&self) -> PeerOrigin {
        PeerOrigin::of(self.address.ip())
    }

    pub(super) const fn messages(&self) -> u64 {
        self.messages
    }

    pub(super) const fn is_turned_away(&self) -> bool {
        self.turned_away
    }

    pub(super) const fn is_closing(&self) -> bool {
        matches!(self.phase, Phase::Closing { .. })
    }

    /// Returns whether received bytes or messages may wait.
    pub(super) const fn has_input(&self) -> bool {
        self.readable || self.interrupted
    }

    /// Returns whether bytes can be written, or the connection is to be shut down.
    pub(super) const fn has_output(&self) -> bool {
        match self.outbox.backlog() {
            0 => matches!(self.phase, Phase::Closing { shut: false }),
            _ => self.writable,
        }
    }

    /// Notes an event of the connection.
    pub(super) fn handle_event(&mut self, event: &Event) {
        let both = self.carrier.signals_both_at_once();
        self.readable |= event.is_readable() || event.is_error();
        self.ending |= event.is_read_closed() || event.is_error();
        self.writable |= event.is_writable() || both;
    }

    /// Notes bytes that an operation of the carrier has taken from its descriptor.
    pub(super) fn note_held_input(&mut self) {
        self.readable |= self.carrier.holds_input();
    }

    /// Starts to give the peer a right over its connection alone, as the carrier starts it.
    pub(super) fn grant(
        &mut self,
        right: Right,
        start: impl FnOnce(&mut CarrierStream) -> io::Result<Granted>,
    ) -> io::Result<()> {
        self.granting.push((right, start(&mut self.carrier)?));
        Ok(())
    }

    /// Returns whether the device has yet to bind a right of the peer.
    pub(super) const fn is_being_granted(&self) -> bool {
        !self.granting.is_empty()
    }

    /// Returns whether the peer has a right, or will get one.
    pub(super) fn holds_rights(&self) -> bool {
        self.is_being_granted() || self.carrier.has_granted()
    }

    /// Revokes all rights, as soon as the device does so. Returns `false` if the connection must end for it.
    pub(super) fn revoke_rights(&mut self, why: &str) -> bool {
        self.granting.clear();
        self.carrier.revoke_all(why)
    }

    /// Reports the rights that the device has bound since the last call.
    pub(super) fn report_granted(
        &mut self,
        id: ConnectionId,
        on: &mut impl FnMut(ServerEvent<'_>) -> usize,
    ) {
        let carrier = &mut self.carrier;
        self.granting.retain(|(right, granted): &(Right, Granted)| {
            let bound: Option<RemoteAccess> = carrier.granted(granted);
            if let Some(access) = bound {
                on(match right {
                    Right::Ring(share) => ServerEvent::Granted(id, *share, access),
                    Right::Cursor(share) => ServerEvent::CursorGranted(id, *share, access),
                });
            }
            bound.is_none()
        });
    }

    /// Queues output, unless the connection is being closed.
    pub(super) fn queue(
        &mut self,
        push: impl FnOnce(&mut Outbox) -> Result<(), SendError>,
    ) -> Result<(), SendError> {
        if self.is_closing() {
            return Err(SendError::NotConnected);
        }
        self.writable = true;
        push(&mut self.outbox)
    }

    /// Queues a last message, and shuts the connection down once everything is written.
    pub(super) fn close(&mut self, last: Option<(ChannelId, &Message<'_>)>) {
        if let Some((channel, message)) = last {
            // With this bound the message can't be refused.
            let _ = self.outbox.push(channel, message, usize::MAX);
        }
        self.writable = true;
        self.phase = Phase::Closing { shut: false };
    }

    /// Returns whether the first message is overdue, once.
    pub(super) fn becomes_overdue(&mut self, now: Instant, config: &ServerConfig) -> bool {
        let is_overdue = self.messages == 0
            && !self.is_closing()
            && !self.overdue_reported
            && now.duration_since(self.connected_at) >= config.join_timeout;
        self.overdue_reported |= is_overdue;
        is_overdue
    }

    /// Reads for one turn, and adds what that cost to `work`.
    pub(super) fn read(
        &mut self,
        config: &ServerConfig,
        now: Instant,
        work: &mut usize,
        mut on: impl FnMut(Option<usize>, ChannelId, Message<'_>) -> usize,
    ) -> Result<(), CloseReason> {
        self.turns += 1;
        let (mut read, mut cost) = (0, 0);
        // Reading may consume the only report that there is room to write.
        self.writable |= self.readable && self.carrier.signals_both_at_once();
        loop {
            if self.is_closing() {
                self.inbox.clear();
            } else {
                let (carrier, queued) = (&self.carrier, self.outbox.backlog());
                // The system is asked at most once, however many NACKs one read has brought.
                let unconfirmed = OnceCell::new();
                let emit = |channel, message: Message<'_>| {
                    let asks = matches!(message, Message::Nack { .. });
                    let bytes = asks.then(|| *unconfirmed.get_or_init(|| carrier.unconfirmed()));
                    on(
                        bytes.flatten().map(|bytes| bytes + queued),
                        channel,
                        message,
                    )
                };
                let before = cost;
                let heard = (self.inbox).messages_within(config.turn_bytes_max, &mut cost, emit);
                *work = work.saturating_add(cost - before);
                self.messages += heard? as u64;
            }
            self.interrupted = cost >= config.turn_bytes_max;
            if !self.readable || self.interrupted || read >= config.read_bytes_max {
                return Ok(());
            }
            let held = self.inbox.end - self.inbox.start;
            let filled = (self.inbox.fill(&mut self.carrier)).map_err(CloseReason::Io)?;
            *work = work.saturating_add(READ_COST);
            read += (self.inbox.end - self.inbox.start).saturating_sub(held);
            match filled {
                Filled::Drained => self.readable = false,
                Filled::More => self.heard_at = now,
                // Another read would find nothing: new bytes are reported again.
                Filled::Short => {
                    self.heard_at = now;
                    self.readable = self.ending || self.failed.is_some() || !self.carrier.is_tcp();
                }
                Filled::End if self.is_closing() => return Err(CloseReason::ByUs),
                Filled::End => return Err(CloseReason::ByPeer),
            }
            if !self.readable
                && let Some(error) = self.failed.take()
            {
                return Err(CloseReason::Io(error));
            }
        }
    }

    /// Writes for one turn. Returns what that cost. The next turn of reading reports a failure.
    pub(super) fn write(&mut self) -> usize {
        let before = self.outbox.backlog();
        if self.writable && before > 0 {
            match self.outbox.write(&mut self.carrier, WRITE_TURN_MAX) {
                Ok(accepts_more) => self.writable = accepts_more,
                Err(error) => {
                    self.failed = Some(error);
                    (self.writable, self.readable) = (false, true);
                }
            }
            self.note_held_input();
        }
        let backlog = self.outbox.backlog();
        if let Phase::Closing { shut } = &mut self.phase
            && !*shut
            && backlog == 0
        {
            // The peer reads to the end; closing at once could lose the last message.
            *shut = true;
            // If the peer is gone, reading finds the end.
            self.readable |= self.carrier.finish().is_err();
        }
        (before - backlog).max(WRITE_COST_MIN)
    }
}
