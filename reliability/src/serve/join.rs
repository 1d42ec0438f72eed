//! Admission of peers: every JOIN is answered, by WELCOME or by REJECTED with its reason
//! (docs/PROTOCOL.md §6.1).

use super::{Further, RETRY_AFTER_MS, RepairCore, RepairEvent};
use crate::control::{ChannelName, Join, Message, Purpose, RejectCode, Rejected, Welcome};
use crate::planted::{Bug, planted};
use crate::serve::lane::Lane;
use crate::serve::peer::{Carrier, Peer, Role, check_join, rejected};
use crate::serve::peer_id::PeerId;
use crate::serve::token_bucket::TokenBucket;
use crate::types::{ChannelId, Now, PeerOrigin};

impl RepairCore {
    pub(super) fn join(&mut self, now: Now, peer: PeerId, join: &Join) {
        let outcome = match check_join(join, self.versions) {
            Err(rejected) => Err(rejected),
            Ok(version) => match join.purpose {
                Purpose::Repair => self.join_channels(now, peer, join, version),
                Purpose::Replay { session } => {
                    self.join_further(peer, version, Role::Replay { session })
                }
                Purpose::Nack { session } => {
                    self.join_further(peer, version, Role::Nack { session })
                }
                Purpose::Read { session, attempt } => {
                    self.join_further(peer, version, Role::Read { session, attempt })
                }
            },
        };
        match outcome {
            Ok(welcome) => self.send(peer, ChannelId(0), &Message::Welcome(welcome)),
            Err(rejected) => self.reject(peer, rejected),
        }
    }

    pub(super) fn join_channels(
        &mut self,
        now: Now,
        peer: PeerId,
        join: &Join,
        wire_version: u8,
    ) -> Result<Welcome, Rejected> {
        let mut indices: Vec<usize> = Vec::with_capacity(join.channels.len());
        let mut is_wanted = vec![false; self.channels.len()];
        for wanted in &join.channels {
            let index = match &wanted.channel {
                ChannelName::Id(id) => self.by_id.get(id),
                ChannelName::Name(name) => self.by_name.get(name),
            };
            let index = *index.ok_or_else(|| self.unknown_channel(&wanted.channel))?;
            if std::mem::replace(&mut is_wanted[index], true) {
                let name = &self.channels[index].info.name;
                let text = format!("the JOIN names channel {name} twice");
                return Err(rejected(RejectCode::Protocol, text));
            }
            if self.channels[index].keys.is_some() && !join.authentication {
                let name = &self.channels[index].info.name;
                let text = format!(
                    "channel {name} is authenticated, and this subscriber does not check tags; upgrade it, or join another channel"
                );
                return Err(rejected(RejectCode::Authentication, text));
            }
            indices.push(index);
        }
        let origin = self.peers.get(&peer).map(Peer::origin);
        if let Some(origin) = origin {
            self.take_place(peer, origin)?;
        }
        for (wanted, &index) in join.channels.iter().zip(&indices) {
            let channel = &mut self.channels[index];
            channel.subscribers += 1;
            channel.counters.subscribers.set(channel.subscribers.into());
            channel.counters.joins.increment();
            if wanted.confirmed_epoch > channel.epoch {
                channel.counters.higher_epoch_claims.increment();
                let event = RepairEvent::HigherEpochClaimed {
                    peer,
                    channel: channel.id,
                    epoch: wanted.confirmed_epoch,
                };
                self.event(event);
            }
        }
        let bucket = TokenBucket::new(
            self.config.subscriber_bytes_per_s,
            self.config.subscriber_burst_bytes,
            now.monotonic,
        );
        self.absent.returned(&join.name, peer);
        let session = self.sessions.begin(peer, bucket);
        if let Some(state) = self.peers.get_mut(&peer) {
            let role = Role::Subscriber {
                session,
                replay: None,
                nack: None,
                read: None,
            };
            let channels = indices.iter().map(|i| (self.channels[*i].id, *i));
            state.join(role, peer, join.name.clone(), channels);
        }
        self.event(RepairEvent::Joined {
            peer,
            name: join.name.clone(),
            channels: indices.iter().map(|i| self.channels[*i].id).collect(),
        });
        Ok(Welcome {
            wire_version,
            publisher: self.publisher.clone(),
            session,
            channels: indices.iter().map(|i| self.channels[*i].offer()).collect(),
            repairs: self.offers.clone(),
            latency: true,
        })
    }

    /// Joins a further connection to a session: for replay, for NACKs, or for READ.
    fn join_further(
        &mut self,
        peer: PeerId,
        wire_version: u8,
        role: Role,
    ) -> Result<Welcome, Rejected> {
        let (Role::Replay { session } | Role::Nack { session } | Role::Read { session, .. }) = role
        else {
            return Err(rejected(
                RejectCode::Protocol,
                "the role of the JOIN is not that of a further connection",
            ));
        };
        let carrier = self.peers.get(&peer).map(Peer::carrier);
        if matches!(role, Role::Read { .. }) && carrier != Some(Carrier::Verbs) {
            let text = "this connection does not support READ; connect over verbs to an address in `repairs`";
            return Err(rejected(RejectCode::Protocol, text));
        }
        let Some(owner) = self.owner_mut(session) else {
            self.counters.unknown_sessions.increment();
            return Err(rejected(
                RejectCode::UnknownSession,
                "no repair connection has this session; it may have been closed: JOIN for repair first",
            ));
        };
        let indices: Vec<usize> = owner.channels.iter().map(|c| c.channel).collect();
        let (name, origin) = (owner.name().to_owned(), owner.origin());
        let of_session = owner.owner();
        if matches!(role, Role::Read { .. }) {
            (owner.channels.iter_mut()).for_each(|of| of.mirrors = 0);
        }
        // The subscriber is authoritative: an earlier connection of this kind is gone or half open.
        let before = owner.further(&role).and_then(Option::take);
        if let Some(before) = before {
            self.remove(before, false, true, None);
        }
        self.take_place(peer, origin)?;
        if let Some(slot) = self.owner_mut(session).and_then(|o| o.further(&role)) {
            *slot = Some(peer);
        }
        let (further, count) = match role {
            Role::Nack { .. } => (Further::Nack, &self.counters.nack_link_joins),
            Role::Read { .. } => (Further::Read, &self.counters.read_joins),
            _ => (Further::Replay, &self.counters.replay_joins),
        };
        count.increment();
        self.event(RepairEvent::FurtherJoined {
            peer,
            further,
            instead_of: before,
        });
        if let Role::Read { session, attempt } = role {
            let channels = indices.iter().map(|i| self.channels[*i].id).collect();
            self.event(RepairEvent::ReadJoined {
                peer,
                name: name.clone(),
                session,
                attempt,
                channels,
            });
        }
        if let Some(state) = self.peers.get_mut(&peer) {
            let channels = indices.iter().map(|i| (self.channels[*i].id, *i));
            state.join(role, of_session, name, channels);
        }
        Ok(Welcome {
            wire_version,
            publisher: self.publisher.clone(),
            session,
            channels: Vec::new(),
            repairs: Vec::new(),
            latency: false,
        })
    }

    /// Gives a joining connection a place among those of sessions, at the origin of its session. When all are
    /// taken, the newest connection of the origin with the most gives way, unless that is hardly larger.
    fn take_place(&mut self, peer: PeerId, origin: PeerOrigin) -> Result<(), Rejected> {
        if self.origins.is_full(self.config.peers_max) {
            let Some(gives_way) = self.origins.to_give_way(origin) else {
                return Err(self.too_many());
            };
            self.reject(gives_way, self.too_many());
        }
        let Some(state) = self.peers.get_mut(&peer) else {
            return Ok(());
        };
        let (before, unread) = (state.move_to(origin), state.output.unread());
        self.origins.set_unread(before, unread, 0);
        if self.origins.join(before, origin, peer) {
            self.lanes.forget_origin(before);
        }
        self.origins.set_unread(origin, 0, unread);
        Ok(())
    }

    /// Returns the rejection of a connection for which there is no place.
    pub(super) fn too_many(&self) -> Rejected {
        let text = format!(
            "this publisher serves at most {} connections; raise peers_max or try again later",
            self.config.peers_max
        );
        Rejected {
            retry_after_ms: RETRY_AFTER_MS,
            ..rejected(RejectCode::TooMany, text)
        }
    }

    fn owner_mut(&mut self, session: u64) -> Option<&mut Peer> {
        let owner = self.sessions.owner(session)?;
        self.peers.get_mut(&owner)
    }

    pub(super) fn unknown_channel(&self, wanted: &ChannelName) -> Rejected {
        let wanted = match wanted {
            ChannelName::Id(id) => id.to_string(),
            ChannelName::Name(name) => {
                let name: String = name.chars().take(64).collect();
                format!("{name:?}")
            }
        };
        let known: Vec<String> = (self.channels.iter().take(20))
            .map(|c| format!("{} ({})", c.info.name, c.id))
            .collect();
        rejected(
            RejectCode::UnknownChannel,
            format!(
                "this publisher has no channel {wanted}; it has {}",
                known.join(", ")
            ),
        )
    }

    pub(super) fn reject(&mut self, peer: PeerId, reason: Rejected) {
        self.counters.joins_rejected.increment();
        self.close(peer, reason);
    }

    /// Rejects a peer that may not be connected: sends the reason, then closes the connection. A subscriber
    /// loses all of its connections.
    pub fn ban(&mut self, peer: PeerId, why: &str) {
        if self.peers.get(&peer).is_some_and(|peer| !peer.is_closing()) {
            self.counters.banned.increment();
            let text = format!("the publisher banned this peer: {why}");
            self.close(peer, rejected(RejectCode::Banned, text));
        }
    }

    pub(super) fn break_off(&mut self, peer: PeerId, text: String) {
        self.counters.protocol_errors.increment();
        self.close(peer, rejected(RejectCode::Protocol, text));
    }

    /// Sends the rejection as the last message and closes the connection after that.
    pub(super) fn close(&mut self, peer: PeerId, reason: Rejected) {
        let Some(state) = self.peers.get_mut(&peer) else {
            return;
        };
        if state.is_closing() {
            // The peer was already rejected and does not read even that.
            return self.remove(peer, false, true, Some(reason));
        }
        let (origin, output) = (state.origin(), &mut state.output);
        let before = output.unread();
        output
            .answers
            .push(ChannelId(0), &Message::Rejected(reason.clone()));
        (self.origins).set_unread(origin, before, output.unread());
        self.resign(peer, false);
        if let Some(state) = self.peers.get_mut(&peer) {
            state.close(reason);
        }
        self.schedule(peer, Lane::Answers);
    }

    /// Ends a peer's role: abandons its queues and frees its session and its place in the groups.
    pub(super) fn resign(&mut self, id: PeerId, on_purpose: bool) {
        let Some(peer) = self.peers.get_mut(&id) else {
            return;
        };
        let (name, origin) = (peer.name().to_owned(), peer.origin());
        self.sessions.set_at_end(peer.has_reached_end(), false);
        let (role, channels) = peer.resign(id);
        let subscriber = matches!(role, Role::Subscriber { .. });
        self.origins.vacate(origin, id);
        for mut of in channels {
            let channel = &mut self.channels[of.channel];
            // No multicast is compared here, so that nobody pays for the end of a connection.
            let abandoned = of.repair.clear() + of.replay.clear();
            if !planted(Bug::AbandonedUncounted) {
                channel.counters.repairs_cancelled.add(abandoned);
            }
            channel.drop_pending(abandoned);
            if subscriber {
                channel.subscribers -= 1;
                channel.counters.subscribers.set(channel.subscribers.into());
            }
        }
        match role {
            Role::Subscriber {
                session,
                replay,
                nack,
                read,
            } => {
                self.sessions.end(session);
                self.absent.left(&name, id);
                self.lanes.disband(origin, id);
                for further in [replay, nack, read].into_iter().flatten() {
                    let reason = rejected(RejectCode::UnknownSession, Rejected::SESSION_OVER);
                    self.close(further, reason);
                }
                self.event(RepairEvent::Left {
                    peer: id,
                    name,
                    on_purpose,
                });
            }
            Role::Replay { session } | Role::Nack { session } | Role::Read { session, .. } => {
                if matches!(role, Role::Read { .. }) {
                    self.grants_over(session);
                    self.writes_over(id);
                }
                if let Some(slot) = self.owner_mut(session).and_then(|o| o.further(&role)) {
                    *slot = None;
                }
            }
            Role::Connecting | Role::Closing(_) => {}
        }
    }

    pub(super) fn remove(
        &mut self,
        peer: PeerId,
        on_purpose: bool,
        report: bool,
        reason: Option<Rejected>,
    ) {
        self.resign(peer, on_purpose);
        if let Some(removed) = self.peers.remove(&peer) {
            self.lanes.forget(peer);
            let origin = removed.origin();
            (self.origins).set_unread(origin, removed.output.unread(), 0);
            if self.origins.disconnect(origin, peer) {
                self.lanes.forget_origin(origin);
            }
            self.counters.connected.set(self.peers.len() as u64);
            if report {
                self.event(RepairEvent::Close { peer, reason });
            }
        }
    }
}
