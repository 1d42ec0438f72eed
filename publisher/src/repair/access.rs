//! Access rights: the peers that may connect, and the memory that each may reach (rings to READ,
//! cursors to write). Two files decide, and the service enforces them while it runs.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::PathBuf;

use tickcast_reliability::serve::{PeerId, RepairCore};
use tickcast_reliability::types::{ChannelId, Nanos};
use tickcast_transport::control::{ConnectionId, ControlServer, ShareId};

use crate::repair::deny_list::DenyList;
use crate::repair::peers::Peers;

/// Operations of the control server on rights.
pub(crate) trait Revokes {
    /// Revokes rights, as [`ControlServer::revoke`] does.
    fn revoke(&mut self, connection: ConnectionId, why: &str);
    /// Returns whether rights remain, as [`ControlServer::holds_rights`] does.
    fn holds_rights(&self, connection: ConnectionId) -> bool;
    /// Closes it, without a message.
    fn close(&mut self, connection: ConnectionId);
}

impl Revokes for ControlServer {
    fn revoke(&mut self, connection: ConnectionId, why: &str) {
        Self::revoke(self, connection, why);
    }

    fn holds_rights(&self, connection: ConnectionId) -> bool {
        Self::holds_rights(self, connection)
    }

    fn close(&mut self, connection: ConnectionId) {
        Self::close(self, connection, None);
    }
}

/// The access rights of all peers.
#[derive(Debug)]
pub(crate) struct Access {
    /// The rings that may be READ, by channel and by share.
    shares: BTreeMap<ChannelId, ShareId>,
    channels: BTreeMap<ShareId, ChannelId>,
    banned: DenyList,
    denied: DenyList,
    /// Connections for READ without rights: never granted, or withdrawn.
    withheld: BTreeSet<PeerId>,
}

impl Default for Access {
    /// Returns rights that allow every peer to connect and READ, with nothing shared.
    fn default() -> Self {
        Self {
            shares: BTreeMap::new(),
            channels: BTreeMap::new(),
            banned: DenyList::new(DenyList::BANNED, None),
            denied: DenyList::new(DenyList::DENIED, None),
            withheld: BTreeSet::new(),
        }
    }
}

impl Access {
    /// Lets these rings be READ.
    pub(crate) fn share(&mut self, shares: Vec<(ChannelId, ShareId)>) {
        self.channels = shares
            .iter()
            .map(|(channel, share)| (*share, *channel))
            .collect();
        self.shares = shares.into_iter().collect();
    }

    /// Bans the peers that this file names.
    pub(crate) fn ban(&mut self, file: Option<PathBuf>) {
        self.banned = DenyList::new(DenyList::BANNED, file);
    }

    /// Denies READ and writes to the peers that this file names.
    pub(crate) fn deny(&mut self, file: Option<PathBuf>) {
        self.denied = DenyList::new(DenyList::DENIED, file);
    }

    /// Returns the reason why the peer of a connection is banned.
    pub(crate) fn banned(&self, peers: &Peers, peer: PeerId) -> Option<&str> {
        peers.get(peer)?.reason(&self.banned)
    }

    /// Enforces what has changed in the files.
    pub(crate) fn enforce(
        &mut self,
        now: Nanos,
        peers: &Peers,
        server: &mut impl Revokes,
        core: &mut RepairCore,
    ) {
        if self.banned.refresh(now) {
            for (peer, known) in peers.iter() {
                if let Some(why) = known.reason(&self.banned) {
                    // Revoke the device's rights first, then close its connections.
                    server.revoke(known.connection, &format!("banned: {why}"));
                    core.ban(peer, why);
                }
            }
        }
        if self.denied.refresh(now) {
            self.withhold(peers, server, core);
        }
    }

    /// Withdraws the rights of denied peers, and stops writing to them. A READ connection without
    /// rights is closed when its peer is allowed again, so that the peer reconnects.
    fn withhold(&mut self, peers: &Peers, server: &mut impl Revokes, core: &mut RepairCore) {
        for (peer, known) in peers.iter() {
            let withheld = self.withheld.contains(&peer);
            match known.reason(&self.denied) {
                Some(why) if !withheld => {
                    let holds_rights = server.holds_rights(known.connection);
                    if holds_rights {
                        // The device was still binding its windows, so its subscriber learns of no ring.
                        if core.awaits_grant(peer) {
                            peers.audit("read_denied", peer, None, Some(why));
                        }
                        server.revoke(known.connection, &format!("denied: {why}"));
                    }
                    if core.deny_writes(peer) || holds_rights {
                        self.withheld.insert(peer);
                    }
                }
                None if withheld => server.close(known.connection),
                _ => {}
            }
        }
    }

    /// Requests windows of the rings for a READ connection; its subscriber is notified once they
    /// are bound.
    pub(crate) fn grant_read(
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
        if let Some(why) = known.reason(&self.denied) {
            peers.audit("read_denied", peer, None, Some(why));
            core.deny_writes(peer);
            self.withheld.insert(peer);
            return;
        }
        for channel in channels {
            let Some(share) = self.share_of(*channel) else {
                tracing::debug!(subscriber = name, "no ring is shared");
                continue;
            };
            let refused = |what, error: &std::io::Error| {
                peers.audit(what, peer, Some(*channel), Some(&error.to_string()));
            };
            let granted = server.grant(connection, share);
            if let Err(error) = &granted
                && error.kind() == ErrorKind::NotFound
            {
                // Only a peer that ignores the offers requests this.
                tracing::debug!(subscriber = name, "no ring is shared there: {error}");
            } else if let Err(error) = granted {
                refused("ring_refused", &error);
                tracing::warn!(
                    subscriber = name,
                    channel = channel.0,
                    "the ring can't be offered for READ, and repair uses NACKs: {error}"
                );
            } else if let Err(error) = server.grant_cursor(connection, share) {
                // It then reports its progress by messages alone.
                refused("cursor_refused", &error);
                tracing::debug!(subscriber = name, "the subscriber has no cursor: {error}");
            }
        }
    }

    /// Returns the peer of this connection, and the channel whose ring is shared this way.
    pub(crate) fn granted_to(
        &self,
        peers: &Peers,
        connection: ConnectionId,
        share: ShareId,
    ) -> Option<(PeerId, ChannelId)> {
        let channel = *self.channels.get(&share)?;
        Some((peers.of(connection)?, channel))
    }

    /// Returns the share of a channel's ring.
    pub(crate) fn share_of(&self, channel: ChannelId) -> Option<ShareId> {
        self.shares.get(&channel).copied()
    }

    /// Removes a closed connection.
    pub(crate) fn forget(&mut self, peer: PeerId) {
        self.withheld.remove(&peer);
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use tickcast_reliability::control::{
        ChannelName, Join, JoinChannel, Message, Purpose, RemoteAccess, Start,
    };
    use tickcast_reliability::publish::HeartbeatConfig;
    use tickcast_reliability::ring::{Geometry, HeapMemory, RingIdentity, RingReader, RingWriter};
    use tickcast_reliability::serve::{
        Carrier, ChannelInfo, RepairConfig, RepairEvent, RepairInput,
    };
    use tickcast_reliability::types::{ConfigHash, Epoch, Now, PeerOrigin, RecordNumber, Sequence};

    use super::*;
    use crate::repair::peers::tests::{at, connections};

    /// The requests it received, in order.
    #[derive(Default)]
    struct Asked(Vec<(ConnectionId, String)>);

    impl Revokes for Asked {
        fn revoke(&mut self, connection: ConnectionId, why: &str) {
            self.0.push((connection, why.into()));
        }

        fn holds_rights(&self, _: ConnectionId) -> bool {
            true
        }

        fn close(&mut self, connection: ConnectionId) {
            self.0.push((connection, "closed".into()));
        }
    }

    const CHANNEL: ChannelId = ChannelId(1);

    fn channel() -> ChannelInfo {
        ChannelInfo {
            name: "all".into(),
            fan_outs: Vec::new(),
            directory: Vec::new(),
            heartbeat: HeartbeatConfig::default(),
        }
    }

    fn ring() -> RingReader {
        let geometry = Geometry::new(1024, 64).unwrap();
        let identity = RingIdentity {
            channel: CHANNEL,
            epoch: Epoch(1),
            config_hash: ConfigHash(1),
            boot_id: [0; 16],
            fan_outs: 1,
            first_sequence: Sequence(1),
            first_record: RecordNumber(1),
        };
        let memory = Arc::new(HeapMemory::new(geometry));
        let ring = RingWriter::create(memory, geometry, identity);
        ring.unwrap().reader()
    }

    struct Bench {
        rights: Access,
        peers: Peers,
        server: Asked,
        core: RepairCore,
        now: Nanos,
    }

    impl Bench {
        /// A repair connection and one for READ of `risk-1`, and one of `risk-2`.
        fn new(connections: &[ConnectionId]) -> Self {
            let now = Now::default();
            let (config, secret) = (RepairConfig::default(), [7; 32]);
            let channels = vec![(channel(), ring(), Arc::default())];
            let mut core =
                RepairCore::new(config, "p".into(), channels, Arc::default(), secret, now);
            let mut peers = Peers::default();
            let mut all = Vec::new();
            for (connection, name) in connections.iter().zip(["risk-1", "", "risk-2"]) {
                let peer = peers.add(*connection, at("10.0.0.1"));
                peers.joins(peer, name);
                core.handle(
                    now,
                    RepairInput::Connected(
                        peer,
                        Carrier::Verbs,
                        PeerOrigin::V4([10, 0, 0, 1].into()),
                    ),
                );
                all.push(peer);
            }
            peers.belongs(all[1], all[0]);
            Self {
                rights: Access::default(),
                peers,
                server: Asked::default(),
                core,
                now: Nanos::from_secs(1),
            }
        }

        /// Joins with the first two connections, of which the second one READs. Returns that one.
        fn join(&mut self) -> PeerId {
            let (repair, read) = (PeerId(1), PeerId(2));
            let channels = vec![JoinChannel {
                channel: ChannelName::Id(CHANNEL),
                start: Start::Live,
                confirmed_epoch: Epoch(0),
            }];
            self.joins(repair, Purpose::Repair, channels);
            let session = self.core.session_number(repair).unwrap();
            let attempt = 1;
            self.joins(read, Purpose::Read { session, attempt }, Vec::new());
            read
        }

        fn joins(&mut self, peer: PeerId, purpose: Purpose, channels: Vec<JoinChannel>) {
            let join = Message::Join(Join {
                name: "risk-1".into(),
                wire_versions: vec![1],
                purpose,
                channels,
                authentication: true,
            });
            let input = RepairInput::Message(peer, ChannelId(0), &join);
            self.core.handle(Now::default(), input);
        }

        /// Returns the requests to the server when this text is in the file.
        fn enforce(&mut self, file: &Path, text: &str) -> Vec<(ConnectionId, String)> {
            std::fs::write(file, text).unwrap();
            self.now = self.now.after(Nanos::from_secs(1));
            let Self {
                rights,
                peers,
                server,
                core,
                now,
            } = self;
            rights.enforce(*now, peers, server, core);
            std::mem::take(&mut self.server.0)
        }
    }

    #[test]
    fn denied_peer_loses_all_rights_and_no_one_else() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("banned");
        let all = connections(3);
        let mut bench = Bench::new(&all);
        bench.rights.ban(Some(file.clone()));
        assert_eq!(bench.enforce(&file, "risk-9 who"), []);
        let taken = bench.enforce(&file, "risk-1 left the desk");
        let why = || "banned: left the desk".to_owned();
        assert_eq!(taken, [(all[0], why()), (all[1], why())]);
        // The connections close after their message with the reason.
        while bench
            .core
            .poll_transmit(Now::default(), &mut Vec::new())
            .is_some()
        {}
        let closed: Vec<_> = std::iter::from_fn(|| bench.core.poll())
            .filter_map(|event| match event {
                RepairEvent::Close { peer, .. } => bench.peers.connection(peer),
                _ => None,
            })
            .collect();
        assert_eq!(closed, all[..2]);
    }

    #[test]
    fn rights_denied_while_being_bound_are_audited() {
        for (is_granted, expected) in [(false, 1), (true, 0)] {
            let folder = tempfile::tempdir().unwrap();
            let [file, trail] = ["denied", "audit"].map(|name| folder.path().join(name));
            let mut bench = Bench::new(&connections(3));
            bench.rights.deny(Some(file.clone()));
            let reads = bench.join();
            if is_granted {
                let ring = RemoteAccess {
                    address: 1,
                    len: 1,
                    key: 1,
                };
                assert!(bench.core.grant(Now::default(), reads, CHANNEL, ring));
            }
            let audit = Arc::new(std::fs::File::create(&trail).unwrap());
            let audit = tracing_subscriber::fmt().json().with_writer(audit).finish();
            tracing::subscriber::with_default(audit, || {
                bench.enforce(&file, "risk-1 too many READs")
            });
            let entries = std::fs::read_to_string(&trail).unwrap();
            let denied = |line: &&str| line.contains("\"what\":\"read_denied\"");
            assert_eq!(
                entries.lines().filter(denied).count(),
                expected,
                "{entries}"
            );
        }
    }

    #[test]
    fn denied_peer_loses_rights_once_and_may_return() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("denied");
        let all = connections(3);
        let mut bench = Bench::new(&all);
        bench.rights.deny(Some(file.clone()));
        let why = || "denied: too many READs".to_owned();
        let taken = bench.enforce(&file, "risk-1 too many READs");
        assert_eq!(taken, [(all[0], why()), (all[1], why())]);
        assert_eq!(
            bench.enforce(&file, "risk-1 too many READs\nrisk-9 who"),
            []
        );
        let closed = || "closed".to_owned();
        let freed = bench.enforce(&file, "risk-9 who");
        assert_eq!(freed, [(all[0], closed()), (all[1], closed())]);
    }
}
