//! Who may come, what they are told, and how they go: every JOIN is answered, by WELCOME or by
//! REJECTED with its reason (docs/PROTOCOL.md §6.1).

use super::{RepairCore, RepairEvent};
use crate::control::{ChannelName, Join, Message, Purpose, RejectCode, Rejected, Welcome};
use crate::nack::split_mix;
use crate::peers::{PeerChannel, PeerId, Role, check_join, rejected};
use crate::planted::{Bug, planted};
use crate::units::ChannelId;
use crate::wire::WIRE_VERSION;

impl RepairCore {
    pub(super) fn join(&mut self, peer: PeerId, join: &Join) {
        let outcome = match check_join(join) {
            Err(rejected) => Err(rejected),
            Ok(_) => match join.purpose {
                Purpose::Repair => self.join_channels(peer, join),
                Purpose::Replay { session } => self.join_replay(peer, session),
            },
        };
        match outcome {
            Ok(welcome) => self.say(peer, ChannelId(0), &Message::Welcome(welcome)),
            Err(rejected) => self.reject(peer, rejected),
        }
    }

    pub(super) fn join_channels(&mut self, peer: PeerId, join: &Join) -> Result<Welcome, Rejected> {
        let mut indices: Vec<usize> = Vec::with_capacity(join.channels.len());
        for wanted in &join.channels {
            let index = self.channels.iter().position(|c| match &wanted.channel {
                ChannelName::Id(id) => c.id == *id,
                ChannelName::Name(name) => c.info.name == *name,
            });
            let index = index.ok_or_else(|| self.unknown_channel(&wanted.channel))?;
            if indices.contains(&index) {
                let name = &self.channels[index].info.name;
                let text = format!("the JOIN names channel {name} twice");
                return Err(rejected(RejectCode::Protocol, text));
            }
            indices.push(index);
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
        let session = self.next_session();
        self.sessions.insert(session, peer);
        if let Some(state) = self.peers.get_mut(&peer) {
            state.role = Role::Subscriber {
                session,
                replay: None,
            };
            state.name.clone_from(&join.name);
            state.channels = indices.iter().map(|i| PeerChannel::of(*i)).collect();
        }
        self.event(RepairEvent::Joined {
            peer,
            name: join.name.clone(),
            channels: indices.iter().map(|i| self.channels[*i].id).collect(),
        });
        Ok(Welcome {
            wire_version: WIRE_VERSION,
            publisher: self.publisher.clone(),
            session,
            channels: indices.iter().map(|i| self.channels[*i].offer()).collect(),
        })
    }

    pub(super) fn join_replay(&mut self, peer: PeerId, session: u64) -> Result<Welcome, Rejected> {
        let owner = self.sessions.get(&session).copied();
        let owner = owner.and_then(|id| self.peers.get_mut(&id));
        let Some(owner) = owner else {
            return Err(rejected(
                RejectCode::UnknownSession,
                "no repair connection has this session; it may have been closed: JOIN for repair first",
            ));
        };
        let indices: Vec<usize> = owner.channels.iter().map(|c| c.channel).collect();
        let name = owner.name.clone();
        let owner_id = self.sessions.get(&session).copied();
        // The subscriber knows best: a replay connection before this one is gone, or half open.
        let before = match &mut owner.role {
            Role::Subscriber { replay, .. } => replay.take(),
            _ => None,
        };
        if let Some(before) = before {
            self.remove(before, false, true, None);
        }
        if let Some(owner) = owner_id.and_then(|id| self.peers.get_mut(&id))
            && let Role::Subscriber { replay, .. } = &mut owner.role
        {
            *replay = Some(peer);
        }
        if let Some(state) = self.peers.get_mut(&peer) {
            state.role = Role::Replay { session };
            state.name = name;
            state.channels = indices.into_iter().map(PeerChannel::of).collect();
        }
        self.counters.replay_joins.increment();
        Ok(Welcome {
            wire_version: WIRE_VERSION,
            publisher: self.publisher.clone(),
            session,
            channels: Vec::new(),
        })
    }

    pub(super) fn unknown_channel(&self, wanted: &ChannelName) -> Rejected {
        let wanted = match wanted {
            ChannelName::Id(id) => id.to_string(),
            ChannelName::Name(name) => format!("{:?}", name.chars().take(64).collect::<String>()),
        };
        let known: Vec<String> = (self.channels.iter().take(20))
            .map(|c| format!("{} ({})", c.info.name, c.id))
            .collect();
        rejected(
            RejectCode::UnknownChannel,
            format!(
                "there is no channel {wanted} here; there are {}",
                known.join(", ")
            ),
        )
    }

    /// Session numbers: SplitMix64 from the seed, so that they do not repeat or follow a count.
    pub(super) fn next_session(&mut self) -> u64 {
        loop {
            let z = split_mix(&mut self.session_seed);
            if z != 0 && !self.sessions.contains_key(&z) {
                return z;
            }
        }
    }

    pub(super) fn reject(&mut self, peer: PeerId, reason: Rejected) {
        self.counters.joins_rejected.increment();
        self.close(peer, reason);
    }

    pub(super) fn break_off(&mut self, peer: PeerId, text: String) {
        self.counters.protocol_errors.increment();
        self.close(peer, rejected(RejectCode::Protocol, text));
    }

    /// Tells a peer why, as the last thing, and closes it when that has been given out.
    pub(super) fn close(&mut self, peer: PeerId, reason: Rejected) {
        let Some(state) = self.peers.get_mut(&peer) else {
            return;
        };
        if state.is_closing() {
            // It was told, and does not even take that.
            return self.remove(peer, false, true, Some(reason));
        }
        Message::Rejected(reason.clone()).write(ChannelId(0), &mut state.outbox);
        self.resign(peer, false);
        if let Some(state) = self.peers.get_mut(&peer) {
            state.role = Role::Closing(reason);
        }
        self.enter_round(peer);
    }

    /// Ends what a peer was: its queues are abandoned, its session and its place in the groups
    /// are free.
    pub(super) fn resign(&mut self, id: PeerId, on_purpose: bool) {
        let Some(peer) = self.peers.get_mut(&id) else {
            return;
        };
        let name = peer.name.clone();
        let role = std::mem::replace(&mut peer.role, Role::Connecting);
        let subscriber = matches!(role, Role::Subscriber { .. });
        for mut of in std::mem::take(&mut peer.channels) {
            let channel = &mut self.channels[of.channel];
            let abandoned = of.repair.clear() + of.replay.clear();
            if !planted(Bug::AbandonedUncounted) {
                channel.counters.abandoned.add(abandoned);
            }
            channel.drop_pending(abandoned);
            if subscriber {
                channel.subscribers -= 1;
                channel.counters.subscribers.set(channel.subscribers.into());
            }
        }
        match role {
            Role::Subscriber { session, replay } => {
                self.sessions.remove(&session);
                if let Some(replay) = replay {
                    let reason = "the session of this replay connection is over";
                    self.close(replay, rejected(RejectCode::UnknownSession, reason));
                }
                self.event(RepairEvent::Left {
                    peer: id,
                    name,
                    on_purpose,
                });
            }
            Role::Replay { session } => {
                let owner = self.sessions.get(&session);
                let owner = owner.and_then(|owner| self.peers.get_mut(owner));
                if let Some(Role::Subscriber { replay, .. }) = owner.map(|o| &mut o.role) {
                    *replay = None;
                }
            }
            Role::Connecting | Role::Closing(_) => {}
        }
    }

    pub(super) fn remove(
        &mut self,
        peer: PeerId,
        on_purpose: bool,
        tell: bool,
        reason: Option<Rejected>,
    ) {
        self.resign(peer, on_purpose);
        if self.peers.remove(&peer).is_some() {
            self.counters.connected.set(self.peers.len() as u64);
            if tell {
                self.event(RepairEvent::Close { peer, reason });
            }
        }
    }
}
