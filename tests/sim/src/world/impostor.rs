//! An impostor: it knows the stream and multicasts forged datagrams whose CRC is right.

use std::collections::BTreeSet;

use tickcast_journal::Journaled;
use tickcast_reliability::delivery::Item;
use tickcast_reliability::session::SubscriberCore;
use tickcast_reliability::types::{Epoch, Nanos, Sequence};
use tickcast_reliability::wire::{CrcVerdict, Datagram, Kind};

use crate::faults::forged::forged_datagram;
use crate::faults::incident::{Attack, ForgedFrom};
use crate::faults::plan::CHANNEL;
use crate::network::packet::packet;
use crate::trace::note_item;
use crate::world::World;

/// The impostor's memory.
#[derive(Debug, Default)]
pub(crate) struct Impostor {
    /// Sequence and CRC of every forged datagram.
    sent: BTreeSet<(u64, u32)>,
    /// The last forged sequence and the record after it, from which a walk goes on.
    walked: (Sequence, u64),
    /// Number of attacks so far.
    attacks: usize,
}

impl Impostor {
    /// Returns whether this datagram is forged.
    fn is_forged(&self, datagram: &Datagram<'_>) -> bool {
        let key = (datagram.header().sequence.0, datagram.crc());
        self.sent.contains(&key)
    }
}

impl World {
    /// Multicasts the forged datagrams of an attack to all subscribers, in the name of each publisher so
    /// far by turns.
    pub(crate) fn attack(&mut self, attack: Attack) {
        let publisher = &self.publishers[self.impostor.attacks % self.publishers.len()];
        self.impostor.attacks += 1;
        let (feed, epoch) = (&publisher.feeds[0], publisher.epoch);
        if feed.finished {
            return;
        }
        let newest = (feed.core.sealed(), feed.core.ring().next_record().0);
        let (first, record) = match attack.from {
            ForgedFrom::Next => (newest.0.next(), newest.1),
            ForgedFrom::Walk if self.impostor.walked.0 > newest.0 => {
                (self.impostor.walked.0.next(), self.impostor.walked.1)
            }
            ForgedFrom::Walk => (newest.0.next(), newest.1),
            ForgedFrom::Ahead(by) => (newest.0.plus(by), newest.1 + 3 * by),
            ForgedFrom::Behind(by) => (newest.0.minus(by).max(Sequence::FIRST), newest.1 / 2),
        };
        let mut at = (first, record);
        for _ in 0..attack.count {
            at = self.forge_one(attack.kind, epoch, at);
        }
        if attack.from == ForgedFrom::Walk {
            self.impostor.walked = (at.0.previous(), at.1);
        }
    }

    /// Multicasts one forged datagram. Returns the sequence and the record that follow.
    fn forge_one(
        &mut self,
        kind: Kind,
        epoch: Epoch,
        (sequence, record): (Sequence, u64),
    ) -> (Sequence, u64) {
        let sent_at = Nanos(self.now.0);
        // Some record numbers do not follow, and would put every later one in the past.
        let number = match sequence.0 % 5 {
            3 => record + (1 << 40),
            _ => record,
        };
        let hold_off_us = [0, u32::MAX][sequence.0 as usize % 2];
        let (bytes, count) = forged_datagram(kind, epoch, (sequence, number), sent_at, hold_off_us);
        let crc = Datagram::parse(&bytes).map_or(0, |it| it.crc());
        self.impostor.sent.insert((sequence.0, crc));
        self.count("forged");
        for fan_out in 0..self.plan.fan_outs {
            self.multicast(fan_out, &packet(CHANNEL, &bytes));
        }
        (sequence.next(), record + count)
    }

    /// Passes an input to a subscriber's core while an impostor is about: checks only that every
    /// record is delivered or declared lost, because the times of requests follow forged datagrams.
    pub(crate) fn with_core_attacked(
        &mut self,
        number: usize,
        f: impl FnOnce(&mut Journaled<SubscriberCore>, Nanos, &mut dyn FnMut(Item<'_>)),
    ) -> Result<(), String> {
        let (truth, trace, now) = (&self.truth, &mut self.trace, self.now);
        let mut wrong = None;
        self.subscribers[number].input(
            |core, on| f(core, now, on),
            |of, item| {
                note_item(trace, now, number, item);
                if let Err(what) = of.impostor.take(truth, item) {
                    let channel = of.channel;
                    wrong
                        .get_or_insert(format!("subscriber {number} on channel {channel}: {what}"));
                }
            },
        );
        if let Some(what) = wrong {
            return Err(what);
        }
        let subscriber = &mut self.subscribers[number];
        for of in &mut subscriber.following {
            let Some(receiver) = subscriber.core.receiver(of.channel) else {
                continue;
            };
            let ((_, heard), (newest, limit)) = (receiver.progress(), receiver.confirmed(now));
            let can_confirm = subscriber.core.is_joined() && limit < Sequence(u64::MAX);
            (of.impostor.input_over(newest, can_confirm, heard))
                .map_err(|what| format!("subscriber {number} on channel {}: {what}", of.channel))?;
        }
        Ok(())
    }

    /// Notes whether a datagram that reaches a core is forged.
    pub(crate) fn notes_content(&mut self, number: usize, bytes: &[u8], decides: bool) {
        let Ok(datagram) = Datagram::parse(bytes) else {
            return;
        };
        let header = datagram.header();
        let subscriber = &mut self.subscribers[number];
        let forged = self.impostor.is_forged(&datagram);
        if datagram.verdict() == CrcVerdict::Good
            && header.kind.is_sequenced()
            && let Some(receiver) = subscriber.core.receiver(header.channel)
        {
            let ((settled, heard), confirmed) = (receiver.progress(), receiver.confirmed(self.now));
            let Some(of) = subscriber.following_mut(header.channel) else {
                return;
            };
            // The core drops what it has no room for, or does not believe yet.
            let (sequence, next) = (header.sequence, settled.next());
            let has_room = (of.asked).has_room(sequence, next, confirmed, decides);
            let jumps = of.asked.jumps(sequence, next, heard);
            if has_room && (decides || sequence <= confirmed.1) && !jumps {
                of.impostor.hears(sequence, forged, decides);
            }
        }
    }

    /// Returns what is wrong with the account of the whole session, if anything is.
    pub(crate) fn account_for_impostor(&mut self) -> Result<(), String> {
        let epoch = self.publishers[self.endpoint].epoch;
        let (mut forged, mut unseen) = (0, 0);
        let (mut rollbacks, mut void, mut undecided) = (0, 0, 0);
        for (number, subscriber) in self.subscribers.iter().enumerate() {
            let counters: Vec<_> = subscriber.core.counters().cloned().collect();
            for (of, counters) in subscriber.following.iter().zip(counters) {
                let Some(ring) = self.truth.of(of.channel, epoch).first() else {
                    continue;
                };
                let unproven = of.impostor.settle(ring, &counters).map_err(|what| {
                    format!("subscriber {number} on channel {}: {what}", of.channel)
                })?;
                undecided += unproven.undecided;
                rollbacks += of.impostor.rollbacks;
                void += of.impostor.genuine_void;
                (forged, unseen) = (forged + of.impostor.forged, unseen + unproven.unseen);
            }
        }
        *self.faults.entry("forged_delivered").or_default() += forged;
        *self.faults.entry("undecided").or_default() += undecided;
        *self.faults.entry("rollbacks").or_default() += rollbacks;
        *self.faults.entry("genuine_void").or_default() += void;
        *self.faults.entry("forged_unseen").or_default() += unseen;
        Ok(())
    }
}
