//! A WELCOME: the core compares the offers with the wanted channels, and each channel follows its offer
//! (docs/PROTOCOL.md §5.2).

use super::{Action, Path, SubscriberCore};
use crate::control::{ChannelOffer, FanOutOffer, RejectCode, Rejected, RepairOffer, Welcome};
use crate::delivery::{Deliver, LinkDownReason};
use crate::receive::{Receiver, Welcomed};
use crate::types::{Epoch, Nanos};

/// Longest slot that a WELCOME may announce, in bytes.
const SLOT_LEN_MAX: u32 = 65_536;
/// Reported wait before the next attempt after a WELCOME without a usable key.
const NO_KEY_RETRY_MS: u64 = 1_000;

impl SubscriberCore {
    /// Handles the offer for each channel, or closes the connection when an offer is impossible.
    pub(super) fn welcomed(&mut self, now: Nanos, welcome: &Welcome, on: &mut dyn Deliver) {
        // Epochs only rise along a line, and a continuation starts where the continued epoch ended. Epoch 0
        // stands for no epoch: a subscriber that followed it would begin twice.
        let is_possible = |offer: &ChannelOffer| {
            offer.epoch != Epoch::NONE
                && offer.continues.is_possible(offer.epoch)
                && offer.continues.begins().0 <= offer.newest.next()
        };
        let fits = self.versions.has(welcome.wire_version)
            && welcome.channels.len() == self.entries.iter().len()
            && welcome
                .channels
                .iter()
                .all(|offer| (64..=SLOT_LEN_MAX).contains(&offer.slot_len) && offer.slots > 0)
            && welcome.channels.iter().all(is_possible);
        if !fits {
            return self.refuse_welcome(now, LinkDownReason::Protocol, on);
        }
        if let Some(without) = welcome.channels.iter().find(|it| !it.has_keys()) {
            let text = format!(
                "the publisher authenticates channel {} and gave no key for its newest datagram; upgrade the older side",
                without.channel
            );
            self.actions.push_back(Action::Rejected(Rejected {
                code: RejectCode::Authentication,
                text,
                retry_after_ms: NO_KEY_RETRY_MS,
            }));
            return self.refuse_welcome(now, LinkDownReason::NoKey, on);
        }
        self.repair.up();
        self.session = welcome.session;
        let mut zombie = false;
        for (entry, offer) in self.entries.iter_mut().zip(&welcome.channels) {
            let seed = self.seed ^ (u64::from(offer.channel.0) << 32);
            let welcomed = entry.welcome(now, offer, offered_lines(offer), seed, on);
            if welcomed == Welcomed::Zombie {
                zombie = true;
            } else {
                let mut offer = offer.clone();
                offer.redact();
                self.actions.push_back(Action::Listen(offer));
            }
        }
        self.is_authenticated = self.entries.receivers().any(Receiver::is_authenticated);
        let offers = || welcome.repairs.iter().copied();
        if self.wants(|ladder| ladder.nacks()) {
            let known = |offer: &RepairOffer| !matches!(offer, RepairOffer::Unknown);
            self.nack.offered(now, offers().filter(known));
        }
        if self.wants(|ladder| ladder.reads()) {
            let reads =
                |offer: &RepairOffer| matches!(offer, RepairOffer::Verbs { read: true, .. });
            self.read.link.offered(now, offers().filter(reads));
        }
        if zombie {
            self.refuse_welcome(now, LinkDownReason::OldEpoch, on);
        }
    }

    fn refuse_welcome(&mut self, now: Nanos, reason: LinkDownReason, on: &mut dyn Deliver) {
        self.counters()
            .for_each(|it| it.welcomes_invalid.increment());
        self.break_off(now, Path::Repair, reason, on);
    }
}

fn offered_lines(offer: &ChannelOffer) -> usize {
    let lines = offer.fan_outs.iter().map(|fan_out| match fan_out {
        FanOutOffer::Udp { lines } => lines.len(),
        FanOutOffer::Verbs { lines, .. } => lines.len(),
        FanOutOffer::Shm { .. } => 1,
        FanOutOffer::Unknown => 0,
    });
    lines.max().unwrap_or(1)
}
