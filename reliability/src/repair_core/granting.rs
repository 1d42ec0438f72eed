//! What may be READ: the publisher's CPU has no part in a READ, so it grants bytes before, out of the
//! budgets that it repairs from, and more as they are used (docs/PROTOCOL.md §6.6).

use super::RepairCore;
use crate::control::{Grant, Message, RemoteAccess};
use crate::peers::PeerId;
use crate::repair_config::BURST_BYTES_MIN;
use crate::units::{ChannelId, Now};

impl RepairCore {
    /// The ring of a channel can be READ over a connection that joined for it, at this place. The
    /// subscriber is told. `false` when the connection is gone, or never joined the channel.
    pub fn grant(
        &mut self,
        now: Now,
        peer: PeerId,
        channel: ChannelId,
        ring: RemoteAccess,
    ) -> bool {
        let Some((session, attempt)) = self.peers.get(&peer).and_then(|peer| peer.reads()) else {
            return false;
        };
        let Some(owner) = self.sessions.get(&session).map(|session| session.owner) else {
            return false;
        };
        let Some(index) = self.channels.iter().position(|of| of.id == channel) else {
            return false;
        };
        let epoch = self.channels[index].epoch;
        let Some(at) = self.place_of(owner, index) else {
            return false;
        };
        let grant = Grant {
            epoch,
            attempt,
            ring,
            tokens: 0,
        };
        if let Some(state) = self.peers.get_mut(&owner) {
            state.channels[at].granted = Some(grant);
        }
        self.counters.read_grants.increment();
        self.renew_tokens(now, owner, index, at, 0);
        true
    }

    /// A subscriber says how much it has READ: what it may READ further is made up to an eighth of a
    /// burst, as far as its budget, and that of all, allows.
    pub(super) fn renew_tokens(
        &mut self,
        now: Now,
        peer: PeerId,
        index: usize,
        at: usize,
        used: u64,
    ) {
        // A small part of the burst: what many are granted and do not use, nobody else can have.
        let span = (self.config.subscriber_burst_bytes / 8).max(BURST_BYTES_MIN);
        let Some(state) = self.peers.get_mut(&peer) else {
            return;
        };
        let session = state.session();
        let Some(grant) = &mut state.channels[at].granted else {
            return;
        };
        // Who claims to have READ more than it was granted gets no more for it.
        let left = grant.tokens.saturating_sub(used);
        let is_first = grant.tokens == 0;
        if left >= span / 2 && !is_first {
            return;
        }
        let session = session.and_then(|session| self.sessions.get_mut(&session));
        let Some(session) = session else {
            return;
        };
        let theirs = session.bucket.take_up_to(now.monotonic, span - left);
        let given = self.repair.take_up_to(now.monotonic, theirs);
        session.bucket.give_back(theirs - given);
        grant.tokens += given;
        if given == 0 && !is_first {
            return;
        }
        let grant = *grant;
        let of = &self.channels[index];
        of.counters.read_tokens_bytes.add(given);
        let id = of.id;
        self.say(peer, id, &Message::Grant(grant));
    }

    /// The READ connection of a session is over: nothing is granted any more.
    pub(super) fn grants_over(&mut self, session: u64) {
        let owner = self.sessions.get(&session).map(|session| session.owner);
        let Some(owner) = owner.and_then(|owner| self.peers.get_mut(&owner)) else {
            return;
        };
        for of in &mut owner.channels {
            of.granted = None;
        }
    }

    fn place_of(&self, peer: PeerId, index: usize) -> Option<usize> {
        let peer = self.peers.get(&peer)?;
        peer.channels.iter().position(|of| of.channel == index)
    }
}
