//! The state of one connection: what it has sent and not yet been given a turn for, and what waits to be
//! written to it.

use std::cell::OnceCell;
use std::net::SocketAddr;
use std::time::Instant;

use tickcast_reliability::control::{BODY_LEN_MAX_TO_PUBLISHER, Message};
use tickcast_reliability::types::ChannelId;

use super::{PeerInfo, ServerConfig};
use crate::control::carrier::{CarrierStream, Granted, Leased};
use crate::control::remote::share::{Right, ShareId};
use crate::control::{CloseReason, Filled, Inbox, Outbox};

pub(in crate::control) struct Peer {
    pub(in crate::control) carrier: CarrierStream,
    /// The access to be granted to the peer, once the device has bound it.
    pub(in crate::control) granting: Vec<(Right, Granted)>,
    /// The peer's cursors, each with its share.
    pub(in crate::control) cursors: Vec<(ShareId, Leased)>,
    pub(super) address: SocketAddr,
    inbox: Inbox,
    pub(super) outbox: Outbox,
    pub(super) connected_at: Instant,
    heard_at: Instant,
    pub(super) messages: u64,
    /// The kernel may have unread bytes, because it reports readiness only once.
    pub(super) readable: bool,
    /// Its turn ended before all received messages were processed.
    pub(super) interrupted: bool,
    /// The connection ends after the bytes that are still to be read.
    pub(super) ending: bool,
    /// Messages were queued since the last write, or the connection accepts more again.
    pub(super) writable: bool,
    pub(super) overdue_reported: bool,
    pub(super) phase: Phase,
    /// A refused connection, which never became a peer: no events about it.
    pub(super) turned_away: bool,
}

pub(super) enum Phase {
    Open,
    /// The backlog is being written. Then the connection is shut down and waits for the peer.
    Closing {
        until: Instant,
        shut: bool,
    },
}

impl Peer {
    /// Creates the state of a new connection.
    pub(super) fn new(
        carrier: CarrierStream,
        address: SocketAddr,
        now: Instant,
        turned_away: bool,
    ) -> Self {
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

    pub(super) const fn info(&self) -> PeerInfo {
        PeerInfo {
            address: self.address,
            backlog_bytes: self.outbox.backlog(),
            messages: self.messages,
            heard_at: self.heard_at,
            closing: matches!(self.phase, Phase::Closing { .. }),
        }
    }

    pub(super) fn read(
        &mut self,
        config: &ServerConfig,
        now: Instant,
        mut on: impl FnMut(Option<usize>, ChannelId, Message<'_>),
    ) -> Result<(), CloseReason> {
        let (mut read, mut turn) = (0, config.turn_bytes_max);
        // Reading may consume the only report that there is room to write.
        self.writable |= self.readable && self.carrier.signals_both_at_once();
        loop {
            if matches!(self.phase, Phase::Closing { .. }) {
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
                    );
                };
                self.messages += self.inbox.messages_within(&mut turn, emit)? as u64;
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
                // Another read would find nothing: new bytes are reported again.
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

    pub(super) fn write(&mut self, now: Instant) -> Result<(), CloseReason> {
        if self.writable && self.outbox.backlog() > 0 {
            self.writable = (self.outbox.write(&mut self.carrier)).map_err(CloseReason::Io)?;
            self.readable |= self.carrier.holds_input();
        }
        if let Phase::Closing { until, shut } = &mut self.phase {
            if !*shut && self.outbox.backlog() == 0 {
                // The peer reads to the end; closing at once could lose the last message.
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
