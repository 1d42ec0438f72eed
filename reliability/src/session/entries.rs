//! The channels that a subscriber follows, each with its receiver once it is welcomed.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::ChannelWanted;
use crate::control::{ChannelOffer, JoinChannel, Start};
use crate::delivery::{Deliver, LinkDownReason, LossCause};
use crate::receive::{ChannelHealth, Receiver, ReceiverConfig, Welcomed};
use crate::types::{ChannelId, Epoch, Nanos, ReceiverCounters};

/// A channel to follow.
#[derive(Serialize, Deserialize)]
pub(crate) struct Entry {
    wanted: ChannelWanted,
    #[serde(with = "crate::session::snapshot::counters")]
    counters: Arc<ReceiverCounters>,
    receiver: Option<Receiver>,
    /// The health of the previous receiver, while there is none.
    health: Option<ChannelHealth>,
    /// The number of lines that the driver listens on, once it has said so.
    listening: Option<usize>,
}

impl Entry {
    fn new(wanted: ChannelWanted) -> Self {
        Self {
            wanted,
            counters: Arc::default(),
            receiver: None,
            health: None,
            listening: None,
        }
    }

    /// Handles the offer of a WELCOME, with the number of lines that it announces.
    pub(crate) fn welcome(
        &mut self,
        now: Nanos,
        offer: &ChannelOffer,
        offered_lines: usize,
        seed: u64,
        on: &mut dyn Deliver,
    ) -> Welcomed {
        let mut start = self.wanted.start;
        let moved = |receiver: &mut Receiver| receiver.channel() != offer.channel;
        if let Some(mut receiver) = self.receiver.take_if(moved) {
            // The name has another number, so the sequence space differs. To the application the
            // epoch is another one, because its places and ids have another meaning from here on.
            if receiver.epoch() != Epoch::NONE {
                receiver.end_epoch(now, offer.epoch, on);
                start = Start::Oldest;
            }
            receiver.close(LossCause::Epoch, on);
            self.health = Some(receiver.health());
        }
        let lines = (self.listening.or(self.wanted.lines)).unwrap_or(offered_lines);
        let receiver = self.receiver.get_or_insert_with(|| {
            let ring = (offer.slots, offer.slot_len as usize);
            let (config, counters) = (self.wanted.config, Arc::clone(&self.counters));
            let mut receiver =
                Receiver::new(config, offer.channel, ring, lines, seed, now, counters);
            if let Some(health) = self.health.take() {
                receiver.restore_health(health, now);
            }
            receiver
        });
        receiver.handle_lines(lines, now);
        let welcomed = receiver.handle_welcome(now, offer, start, on);
        if welcomed == Welcomed::Zombie {
            // A receiver that has not begun must not wait for this publisher either.
            let unbegun = |receiver: &mut Receiver| receiver.epoch() == Epoch::NONE;
            if let Some(receiver) = self.receiver.take_if(unbegun) {
                self.health = Some(receiver.health());
            }
        }
        welcomed
    }

    /// Handles the number of lines that the driver listens on.
    pub(crate) fn listens(&mut self, lines: usize, now: Nanos) {
        self.listening = Some(lines);
        if let Some(receiver) = &mut self.receiver {
            receiver.handle_lines(lines, now);
        }
    }

    /// Ends the receiver, and begins anew at `start` with the next WELCOME.
    pub(crate) fn rejoin(&mut self, now: Nanos, start: Start, on: &mut dyn Deliver) {
        self.wanted.start = start;
        if let Some(mut receiver) = self.receiver.take() {
            // Emit the loss of the link now: the next WELCOME may never come.
            receiver.handle_link_down(now, LinkDownReason::Rejoining);
            receiver.close(LossCause::Left, on);
            self.health = Some(receiver.health());
        }
    }

    /// Gives the receiver its counters, which a snapshot holds only once.
    pub(super) fn restored(&mut self) {
        if let Some(receiver) = &mut self.receiver {
            receiver.set_counters(Arc::clone(&self.counters));
        }
    }

    /// Returns the channel's part of JOIN: the current position, or the start position before the first.
    pub(crate) fn join(&self) -> JoinChannel {
        let (start, confirmed_epoch) = match &self.receiver {
            Some(receiver) => (
                Start::At(receiver.epoch(), receiver.progress().0.next()),
                receiver.epoch(),
            ),
            None => (self.wanted.start, Epoch::NONE),
        };
        JoinChannel {
            channel: self.wanted.channel.clone(),
            start,
            confirmed_epoch,
        }
    }

    pub(crate) const fn config(&self) -> &ReceiverConfig {
        &self.wanted.config
    }

    pub(crate) const fn counters(&self) -> &Arc<ReceiverCounters> {
        &self.counters
    }

    pub(crate) const fn receiver(&self) -> Option<&Receiver> {
        self.receiver.as_ref()
    }

    pub(crate) const fn receiver_mut(&mut self) -> Option<&mut Receiver> {
        self.receiver.as_mut()
    }

    /// Returns what decides its next receiver.
    pub(crate) const fn standing(&self) -> (&Option<ChannelHealth>, Option<usize>) {
        (&self.health, self.listening)
    }
}

/// All channels, in the order of the settings.
#[derive(Serialize, Deserialize)]
pub(crate) struct Entries {
    all: Vec<Entry>,
    /// The entry whose requests come first.
    turn: usize,
}

impl Entries {
    pub(crate) fn new(wanted: Vec<ChannelWanted>) -> Self {
        Self {
            all: wanted.into_iter().map(Entry::new).collect(),
            turn: 0,
        }
    }

    pub(crate) fn iter(&self) -> std::slice::Iter<'_, Entry> {
        self.all.iter()
    }

    pub(crate) fn iter_mut(&mut self) -> std::slice::IterMut<'_, Entry> {
        self.all.iter_mut()
    }

    /// Returns all receivers, each with its settings and counters. Each call begins with another channel, so
    /// that no channel takes all room for READs from the others.
    pub(crate) fn next_turn(
        &mut self,
    ) -> impl Iterator<Item = (&mut Receiver, &ReceiverConfig, &ReceiverCounters)> {
        let begins = self.turn.checked_rem(self.all.len()).unwrap_or(0);
        self.turn = begins + 1;
        let (later, first) = self.all.split_at_mut(begins);
        first.iter_mut().chain(later).filter_map(|it| {
            let receiver = it.receiver.as_mut()?;
            Some((receiver, &it.wanted.config, &*it.counters))
        })
    }

    pub(crate) fn receivers(&self) -> impl Iterator<Item = &Receiver> {
        self.all.iter().filter_map(Entry::receiver)
    }

    #[inline]
    pub(crate) fn receivers_mut(&mut self) -> impl Iterator<Item = &mut Receiver> {
        self.all.iter_mut().filter_map(Entry::receiver_mut)
    }

    #[inline]
    pub(crate) fn receiver_mut(&mut self, channel: ChannelId) -> Option<&mut Receiver> {
        self.receivers_mut().find(|it| it.channel() == channel)
    }

    /// Returns the entry of a channel that is welcomed.
    pub(crate) fn of(&mut self, channel: ChannelId) -> Option<&mut Entry> {
        let is_it = |it: &&mut Entry| it.receiver().is_some_and(|it| it.channel() == channel);
        self.all.iter_mut().find(is_it)
    }
}
