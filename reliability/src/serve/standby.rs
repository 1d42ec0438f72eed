//! Mirroring to standbys: the choice of the standbys that receive sealed datagrams, and of the next datagram
//! (docs/PROTOCOL.md §6.8). The driver does the transfer.

use super::{RepairCore, RepairEvent};
use crate::control::{Message, MirrorRefusal, MirrorRefused, Mirroring};
use crate::serve::channel::Channel;
use crate::serve::peer::Role;
use crate::serve::peer_id::PeerId;
use crate::serve::standby_writes::{MirrorWrite, Writable};
use crate::types::{ChannelId, SequenceRange};

/// Maximum requests by a subscriber to mirror a channel before its next READ connection. One request
/// suffices.
pub(super) const MIRRORS_MAX: u8 = 4;

impl RepairCore {
    /// Sets the names of the standbys whose mirror requests are accepted: those that may take over.
    pub fn set_standbys(&mut self, names: Vec<String>) {
        self.standbys.set_names(names);
    }

    /// Returns whether any datagrams are mirrored. Then [`RepairCore::poll_write`] must be called after each
    /// possible send.
    #[must_use]
    pub const fn is_mirrored(&self) -> bool {
        !self.standbys.written().is_empty()
    }

    /// Handles a standby's request to write sealed datagrams to its memory.
    pub(super) fn mirror(&mut self, peer: PeerId, channel: ChannelId, wish: &Mirroring) {
        let Some((index, at)) = self.joined(peer, channel) else {
            return;
        };
        // Each request is answered, reported and audited, so their number must be bounded.
        if let Some(state) = self.peers.get_mut(&peer) {
            let asked = &mut state.channels[at].mirrors;
            *asked = asked.saturating_add(1);
            if *asked > MIRRORS_MAX {
                let text = format!(
                    "the peer sent more than {MIRRORS_MAX} MIRRORs for channel {channel} without opening another connection for READ"
                );
                return self.break_off(peer, text);
            }
        }
        match self.begin_mirroring(peer, index, wish) {
            Ok(()) => {
                self.counters.mirrors_begun.increment();
                self.mirroring(peer, channel, None);
            }
            Err(reason) => self.refuse_mirror(peer, index, wish.attempt, reason),
        }
    }

    /// Emits [`RepairEvent::Mirroring`] for the driver.
    fn mirroring(&mut self, peer: PeerId, channel: ChannelId, refused: Option<MirrorRefusal>) {
        let name = self.peers.get(&peer).map(|peer| peer.name().to_owned());
        self.event(RepairEvent::Mirroring {
            peer,
            name: name.unwrap_or_default(),
            channel,
            refused,
        });
    }

    fn begin_mirroring(
        &mut self,
        peer: PeerId,
        index: usize,
        wish: &Mirroring,
    ) -> Result<(), MirrorRefusal> {
        let owner = self.peers.get(&peer).ok_or(MirrorRefusal::Attempt)?;
        if !self.standbys.accepts(owner.name()) {
            return Err(MirrorRefusal::NotAllowed);
        }
        let Role::Subscriber { read, .. } = *owner.role() else {
            return Err(MirrorRefusal::Attempt);
        };
        let channel = &self.channels[index];
        if wish.epoch != channel.epoch {
            return Err(MirrorRefusal::Epoch);
        }
        let reads = read.and_then(|id| Some((id, self.peers.get_mut(&id)?)));
        let (id, reads) = reads.ok_or(MirrorRefusal::Attempt)?;
        if reads.reads().is_none_or(|(_, it)| it != wish.attempt) {
            return Err(MirrorRefusal::Attempt);
        }
        let (geometry, newest) = (channel.ring.geometry(), channel.ring.sent_by_any());
        (reads.writes).begin(index, wish.inbox, geometry, newest)?;
        self.standbys.begin(id);
        Ok(())
    }

    fn refuse_mirror(&mut self, peer: PeerId, index: usize, attempt: u64, reason: MirrorRefusal) {
        let channel = &self.channels[index];
        let refused = Message::MirrorRefused(MirrorRefused {
            epoch: channel.epoch,
            attempt,
            reason,
        });
        let id = channel.id;
        self.counters.mirrors_refused.increment();
        self.send(peer, id, &refused);
        self.mirroring(peer, id, Some(reason));
    }

    /// Returns the next WRITE and its READ connection. At most
    /// [`crate::serve::standby_writes::MIRROR_WRITES_MAX`] are outstanding on one connection. WRITEs complete
    /// in the order in which they are returned.
    pub fn poll_write(&mut self) -> Option<(PeerId, MirrorWrite)> {
        let channels = &self.channels;
        let writable = |index: usize| writable(&channels[index]);
        for id in self.standbys.written() {
            let Some(peer) = self.peers.get_mut(id) else {
                continue;
            };
            while let Some(chosen) = peer.writes.choose(writable) {
                let channel = &channels[chosen.channel];
                channel.counters.mirror_writes_skipped.add(chosen.skipped);
                // The slot's header may already belong to the ring's next round; then the slot is skipped.
                let len = channel.ring.len_of(chosen.sequence);
                let len = len.filter(|len| *len <= channel.ring.geometry().slot_len());
                let of = writable(chosen.channel);
                let write = len.and_then(|len| peer.writes.write(chosen, len, of));
                let Some(write) = write else {
                    channel.counters.mirror_writes_skipped.increment();
                    continue;
                };
                channel.counters.mirror_writes.increment();
                return Some((*id, write));
            }
        }
        None
    }

    /// Denies WRITEs over a READ connection from now on. Its standby is informed, now and at each further
    /// request. Returns `false` when `peer` is not a READ connection.
    pub fn deny_writes(&mut self, peer: PeerId) -> bool {
        let Some(state) = self.peers.get_mut(&peer) else {
            return false;
        };
        let is_read = state.reads().is_some();
        state.writes.deny(is_read);
        if is_read {
            self.end_writes(peer, MirrorRefusal::Denied);
        }
        is_read
    }

    /// Ends all WRITEs over a connection, and informs its standby.
    pub(super) fn end_writes(&mut self, peer: PeerId, reason: MirrorRefusal) {
        let Some(state) = self.peers.get_mut(&peer) else {
            return;
        };
        let channels = state.writes.end();
        let reads = state.reads();
        self.standbys.end(peer);
        let owner = reads.and_then(|(session, _)| self.sessions.owner(session));
        let (Some(owner), Some((_, attempt))) = (owner, reads) else {
            return;
        };
        for index in channels {
            self.refuse_mirror(owner, index, attempt, reason);
        }
    }

    /// Ends all WRITEs over a closed READ connection.
    pub(super) fn writes_over(&mut self, peer: PeerId) {
        self.standbys.end(peer);
        if let Some(peer) = self.peers.get_mut(&peer) {
            drop(peer.writes.end());
        }
    }
}

fn writable(channel: &Channel) -> Writable {
    Writable {
        held: SequenceRange::new(channel.floor(), channel.ring.sent_by_any()),
        geometry: channel.ring.geometry(),
        id: channel.id,
    }
}
