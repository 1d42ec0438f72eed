//! Who may be here, and what of this publisher's memory whoever is may reach: rings, to be READ, and
//! cursors, to be written. Two files decide, and what they say is enforced while the service runs.

use std::collections::BTreeSet;
use std::path::PathBuf;

use tickcast_reliability::peers::PeerId;
use tickcast_reliability::repair_core::RepairCore;
use tickcast_reliability::units::{ChannelId, Nanos};
use tickcast_transport::control::{ControlServer, PeerId as Connection, ShareId};

use crate::audit::audited;
use crate::bans::Bans;
use crate::peers::Peers;

/// See the module.
#[derive(Debug)]
pub(crate) struct Rights {
    /// The rings that may be READ.
    shares: Vec<(ChannelId, ShareId)>,
    banned: Bans,
    denied: Bans,
    /// Connections for READ that were let reach nothing, or no longer.
    withheld: BTreeSet<PeerId>,
}

impl Default for Rights {
    /// Everybody may be here and READ, but nothing is shared.
    fn default() -> Self {
        Self {
            shares: Vec::new(),
            banned: Bans::new(Bans::BANNED, None),
            denied: Bans::new(Bans::DENIED, None),
            withheld: BTreeSet::new(),
        }
    }
}

impl Rights {
    /// Lets these rings be READ.
    pub(crate) fn share(&mut self, shares: Vec<(ChannelId, ShareId)>) {
        self.shares = shares;
    }

    /// Nobody may be here whom this file names.
    pub(crate) fn ban(&mut self, file: Option<PathBuf>) {
        self.banned = Bans::new(Bans::BANNED, file);
    }

    /// Nobody may READ, or be written to, whom this file names.
    pub(crate) fn deny(&mut self, file: Option<PathBuf>) {
        self.denied = Bans::new(Bans::DENIED, file);
    }

    /// Why whoever is behind a connection may not be here.
    pub(crate) fn banned(&self, peers: &Peers, peer: PeerId) -> Option<&str> {
        let known = peers.get(peer)?;
        self.banned.reason(&known.name, known.address)
    }

    /// Enforces what has changed in the files.
    pub(crate) fn enforce(
        &mut self,
        now: Nanos,
        peers: &Peers,
        server: &mut ControlServer,
        core: &mut RepairCore,
    ) {
        if self.banned.look(now) {
            for (peer, known) in peers.iter() {
                if let Some(why) = self.banned.reason(&known.name, known.address) {
                    // First what its device may reach, then its connections.
                    server.revoke(known.connection);
                    core.ban(peer, why);
                }
            }
        }
        if self.denied.look(now) {
            self.withhold(peers, server, core);
        }
    }

    /// Takes back what those reach who may not any more, and writes nothing to them. Those who may again
    /// come again: a connection that was let reach nothing is closed.
    fn withhold(&mut self, peers: &Peers, server: &mut ControlServer, core: &mut RepairCore) {
        for (peer, known) in peers.iter() {
            let denied = self.denied.reason(&known.name, known.address).is_some();
            if denied && !self.withheld.contains(&peer) {
                let holds_rights = server.holds_rights(known.connection);
                if holds_rights {
                    server.revoke(known.connection);
                }
                if core.deny_writes(peer) || holds_rights {
                    self.withheld.insert(peer);
                }
            } else if !denied && self.withheld.contains(&peer) {
                server.close(known.connection, None);
            }
        }
    }

    /// Has windows of the rings bound to a connection for READ; its subscriber is told once they are.
    pub(crate) fn let_read(
        &mut self,
        peer: PeerId,
        channels: &[ChannelId],
        peers: &Peers,
        server: &mut ControlServer,
        core: &mut RepairCore,
    ) {
        let Some(known) = peers.get(peer) else {
            return;
        };
        let (name, connection) = (&known.name, known.connection);
        if let Some(why) = self.denied.reason(name, known.address) {
            audited("read_denied", peers, peer, None, Some(why));
            core.deny_writes(peer);
            self.withheld.insert(peer);
            return;
        }
        for channel in channels {
            let share = self.shares.iter().find(|(it, _)| it == channel);
            let Some((_, share)) = share.copied() else {
                tracing::debug!(subscriber = name, "no ring is shared");
                continue;
            };
            if let Err(error) = server.grant(connection, share) {
                tracing::warn!(
                    subscriber = name,
                    channel = channel.0,
                    "its ring can't be READ, NACKs are answered: {error}"
                );
            } else if let Err(error) = server.grant_cursor(connection, share) {
                // It says how far it is by messages alone.
                tracing::debug!(subscriber = name, "it has no cursor: {error}");
            }
        }
    }

    /// Whose connection this is, and the channel whose ring is shared so.
    pub(crate) fn granted_to(
        &self,
        peers: &Peers,
        connection: Connection,
        share: ShareId,
    ) -> Option<(PeerId, ChannelId)> {
        let (channel, _) = self.shares.iter().find(|(_, it)| *it == share)?;
        Some((peers.of(connection)?, *channel))
    }

    /// The ring of a channel, as it is shared.
    pub(crate) fn share_of(&self, channel: ChannelId) -> Option<ShareId> {
        let mut shares = self.shares.iter();
        shares
            .find(|(it, _)| *it == channel)
            .map(|(_, share)| *share)
    }

    /// A connection is gone.
    pub(crate) fn forget(&mut self, peer: PeerId) {
        self.withheld.remove(&peer);
    }
}
