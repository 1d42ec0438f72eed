//! Grants for READ, and cursors.
//!
//! The publisher's CPU has no part in a READ. It therefore grants bytes in advance, out of the repair
//! budgets, and more as they are used (docs/PROTOCOL.md §6.6). A subscriber reports its progress
//! through its cursor, without a message (§6.7).

use std::sync::Arc;

use super::RepairCore;
use crate::control::{
    CURSOR_WORDS, CursorState, Grant, Message, NUMBER_WORD, Progress, RemoteAccess,
};
use crate::serve::config::BURST_BYTES_MIN;
use crate::serve::peer::Peer;
use crate::serve::peer_id::PeerId;
use crate::types::{ChannelId, Nanos, Now, Sequence};

impl RepairCore {
    /// Records that a channel's ring can be READ at this location, over a READ connection, and informs the
    /// subscriber. Returns `false` when the connection is gone or its subscriber did not join the channel.
    pub fn grant(
        &mut self,
        now: Now,
        peer: PeerId,
        channel: ChannelId,
        ring: RemoteAccess,
    ) -> bool {
        let Some((_, attempt)) = self.peers.get(&peer).and_then(|peer| peer.reads()) else {
            return false;
        };
        let Some((owner, index, at)) = self.owner_of(peer, channel) else {
            return false;
        };
        let epoch = self.channels[index].epoch;
        let grant = Grant {
            epoch,
            attempt,
            ring,
            tokens: 0,
            cursor: None,
        };
        if let Some(state) = self.peers.get_mut(&owner) {
            state.channels[at].granted = Some(grant);
            state.channels[at].reported = 0;
            let origin = state.origin();
            self.origins.begin_read(origin, owner, now.monotonic);
        }
        self.counters.read_grants.increment();
        self.renew_tokens(now, owner, index, at, 0);
        true
    }

    /// Records that a channel's cursor can be written at this location, over a connection whose ring was
    /// granted before, and informs the subscriber. Returns `false` when there is no such grant.
    pub fn grant_cursor(&mut self, peer: PeerId, channel: ChannelId, cursor: RemoteAccess) -> bool {
        let Some((owner, index, at)) = self.owner_of(peer, channel) else {
            return false;
        };
        let owned = self.peers.get_mut(&owner);
        let Some(grant) = owned.and_then(|peer| peer.channels[at].granted.as_mut()) else {
            return false;
        };
        grant.cursor = Some(cursor);
        let grant = *grant;
        self.counters.cursor_grants.increment();
        self.send(owner, self.channels[index].id, &Message::Grant(grant));
        true
    }

    /// Returns whether this is a READ connection of a session whose subscriber was informed of no ring yet.
    #[must_use]
    pub fn awaits_grant(&self, peer: PeerId) -> bool {
        let session = self.peers.get(&peer).and_then(Peer::reads);
        let owner = session.and_then(|(session, _)| self.sessions.owner(session));
        let owner = owner.and_then(|owner| self.peers.get(&owner));
        owner.is_some_and(|owner| owner.channels.iter().all(|of| of.granted.is_none()))
    }

    /// Handles the content of a cursor that was granted to this connection. Call it as often as the
    /// subscriber's progress should be known. Returns the subscriber's repair connection and its new
    /// progress; `None` when there is nothing new.
    pub fn handle_cursor(
        &mut self,
        now: Now,
        peer: PeerId,
        channel: ChannelId,
        words: &[u64; CURSOR_WORDS],
    ) -> Option<(PeerId, Progress)> {
        let (owner, index, at) = self.owner_of(peer, channel)?;
        let counters = Arc::clone(&self.channels[index].counters);
        let state = self.peers.get_mut(&owner)?;
        let session = state.session();
        let of = &mut state.channels[at];
        if words[NUMBER_WORD] == of.reported {
            return None;
        }
        let report = match CursorState::of(words) {
            CursorState::Silent => return None,
            CursorState::Torn => {
                counters.cursor_torn.increment();
                return None;
            }
            CursorState::Reported(by, report) if Some(by) == session => report,
            CursorState::Reported(..) => {
                counters.cursor_ignored.increment();
                return None;
            }
        };
        if report.number < of.reported {
            counters.cursor_ignored.increment();
            return None;
        }
        of.reported = report.number;
        counters.cursor_reports.increment();
        let progress = Progress {
            epoch: report.epoch,
            sequence: report.sequence,
            lost_records: report.lost_records,
            heard: report.heard,
            sent_at: Nanos::ZERO,
            read_bytes: report.read_bytes,
        };
        // PROGRESS arrives over another connection and may be ahead of the cursor.
        let known = of.progress.filter(|known| known.epoch == report.epoch);
        let is_news = known.is_none_or(|known| known.sequence <= report.sequence);
        if is_news {
            // A STATUS that is due must not say less than its PROGRESS heard.
            let heard = known.map_or(Sequence::NONE, |known| known.heard);
            let heard = heard.max(report.heard);
            self.progress(now, owner, index, at, Progress { heard, ..progress });
        }
        self.renew_tokens(now, owner, index, at, report.read_bytes);
        is_news.then_some((owner, progress))
    }

    /// Renews a subscriber's READ grant after it has READ `used` bytes in all. When less than half of a
    /// span is left, tops the grant up to a span: an eighth of the subscriber's burst, at least
    /// [`BURST_BYTES_MIN`]. The subscriber's own budget, its origin's share and the shared budget limit it.
    /// Sends the new grant, and the first one even if it is empty.
    pub(super) fn renew_tokens(
        &mut self,
        now: Now,
        peer: PeerId,
        index: usize,
        at: usize,
        used: u64,
    ) {
        // The span is a small part of the burst, because granted but unused bytes are lost to all others.
        let span = (self.config.subscriber_burst_bytes / 8).max(BURST_BYTES_MIN);
        let Some(state) = self.peers.get_mut(&peer) else {
            return;
        };
        let (session, origin) = (state.session(), state.origin());
        let Some(grant) = &mut state.channels[at].granted else {
            return;
        };
        // A subscriber that claims to have READ more than its grant gains nothing: `left` is then 0.
        let left = grant.tokens.saturating_sub(used);
        let is_first = grant.tokens == 0;
        if left >= span / 2 && !is_first {
            return;
        }
        let bucket = session.and_then(|session| self.sessions.bucket_mut(session));
        let (Some(bucket), Some((share, origins))) = (bucket, self.origins.read_share(origin))
        else {
            return;
        };
        let theirs = bucket.take_up_to(now.monotonic, span - left);
        let given = (self.budgets).take_read_tokens(now.monotonic, theirs, share, origins);
        bucket.give_back(theirs - given);
        grant.tokens += given;
        if given == 0 && !is_first {
            return;
        }
        let grant = *grant;
        let of = &self.channels[index];
        of.counters.read_tokens_bytes.add(given);
        let id = of.id;
        self.send(peer, id, &Message::Grant(grant));
    }

    /// Returns the repair connection of the session that a connection joined: itself, or the owner of its
    /// session. `None` before its JOIN was answered.
    #[must_use]
    pub fn session_of(&self, peer: PeerId) -> Option<PeerId> {
        let session = self.session_number(peer)?;
        self.sessions.owner(session)
    }

    /// Returns the number of the session that a connection joined. Only the publisher and the subscriber know
    /// it. `None` before its JOIN was answered.
    #[must_use]
    pub fn session_number(&self, peer: PeerId) -> Option<u64> {
        self.peers.get(&peer)?.session()
    }

    /// Revokes all grants of a session whose READ connection ended.
    pub(super) fn grants_over(&mut self, session: u64) {
        let Some(owner) = self.sessions.owner(session) else {
            return;
        };
        let Some(state) = self.peers.get_mut(&owner) else {
            return;
        };
        self.origins.end_read(state.origin(), owner);
        for of in state.channels.iter_mut() {
            of.granted = None;
        }
    }

    /// Returns the owner of this READ connection, and the indices of this channel in the core and in the
    /// owner.
    fn owner_of(&self, peer: PeerId, channel: ChannelId) -> Option<(PeerId, usize, usize)> {
        let (session, _) = self.peers.get(&peer)?.reads()?;
        let owner = self.sessions.owner(session)?;
        let index = *self.by_id.get(&channel)?;
        Some((owner, index, self.place_of(owner, index)?))
    }

    fn place_of(&self, peer: PeerId, index: usize) -> Option<usize> {
        self.peers
            .get(&peer)?
            .channels
            .place_of(self.channels[index].id)
    }
}
