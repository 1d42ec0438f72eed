//! The end of a run: whether every subscriber reached the end of the stream, accounted for every
//! sequence, and was unaffected by the faults of others.

use tickcast_reliability::control::Start;
use tickcast_reliability::delivery::{Delivery, LossCause};
use tickcast_reliability::session::{Path, SubscriberCore, SubscriberInput};
use tickcast_reliability::types::{Sequence, SequenceRange};
use tickcast_reliability::wire::Kind;

use crate::actors::subscriber::{Following, Subscriber};
use crate::checks::nack_rate::Scouts;
use crate::world::{JOINED, World};

impl World {
    /// Returns a description of the first stream that has not reached its end, if any.
    pub(crate) fn unfinished(&self) -> Option<String> {
        for (number, subscriber) in self.subscribers.iter().enumerate() {
            if self.plan.broken == Some(number) || self.plan.absent.contains(&number) {
                continue;
            }
            for of in &subscriber.following {
                if let Some(what) = self.unfinished_of(subscriber, of) {
                    let (channel, delivery) = (of.channel, of.config.delivery);
                    return Some(format!(
                        "subscriber {number} ({delivery:?}) on channel {channel} {what}; {}",
                        gaps_of(&subscriber.core)
                    ));
                }
            }
        }
        let publisher = &self.publishers[self.endpoint];
        if self.plan.gone || self.plan.broken.is_some() {
            return None;
        }
        if !publisher.repair.all_reached_end() {
            return Some("the publisher does not know that all have reached the end".into());
        }
        let pending = publisher.feeds.iter().map(|f| f.repair.pending.get());
        let pending: u64 = pending.sum();
        (pending > 0).then(|| format!("{pending} sequences still wait for an answer"))
    }

    fn unfinished_of(&self, subscriber: &Subscriber, of: &Following) -> Option<String> {
        let (stream, publisher) = (&of.stream, &self.publishers[self.endpoint]);
        if self.plan.impostor {
            let ended = of.impostor.ended();
            let at = subscriber.core.receiver(of.channel)?.progress();
            return (!ended).then(|| format!("never reached the end: at {at:?}"));
        }
        let receiver = subscriber.core.receiver(of.channel);
        if self.plan.gone {
            let heard = receiver.map_or(Sequence::NONE, |r| r.progress().1);
            let range = stream.unaccounted(&self.truth, heard)?;
            return Some(format!(
                "was told nothing of {range} of a publisher that is gone"
            ));
        }
        if !stream.ended() || stream.epoch() != publisher.epoch {
            return Some(format!(
                "never reached the end: at {} of epoch {}, the publisher's is {} of {}; {:?}",
                stream.next(),
                stream.epoch(),
                publisher
                    .feed(of.channel)
                    .map_or(Sequence::NONE, |f| f.core.sealed()),
                publisher.epoch,
                receiver.map(|r| r.progress()),
            ));
        }
        let c = receiver.map(|r| r.counters())?;
        let open = c.missing_open.get() + c.replay_open.get();
        if open > 0 {
            return Some(format!("still misses {open} sequences"));
        }
        if of.disturbed {
            return None;
        }
        if let Some(owed) = of.asked.owed() {
            return Some(format!("heard two things of {owed} and never said so"));
        }
        let doubt = of
            .asked
            .doubt()
            .filter(|_| of.config.repair && subscriber.core.is_joined());
        doubt.map(|s| format!("heard two things of {s} and never asked which is true"))
    }

    /// Makes all subscribers leave at the end of a run whose faults continue: every sequence known
    /// to a subscriber must be accounted for.
    pub(crate) fn everyone_leaves(&mut self) -> Result<(), String> {
        for number in 0..self.subscribers.len() {
            if self.subscribers[number].alive {
                self.leave(number)?;
            }
        }
        Ok(())
    }

    /// Makes a core leave, and checks that it accounts for every sequence that it knows of.
    pub(crate) fn leave(&mut self, number: usize) -> Result<(), String> {
        let following = &mut self.subscribers[number].following;
        for of in following.iter_mut() {
            of.loss_reason.leaves();
            of.beginning.leaves();
        }
        self.with_core(number, |core, now, mut on| {
            core.handle(
                now,
                SubscriberInput::Leave(LossCause::PublisherDead),
                &mut on,
            );
        })?;
        for of in &mut self.subscribers[number].following {
            // Later datagrams arrive at a core that emits nothing more.
            of.asked.reconnected(Path::Repair);
        }
        let subscriber = &self.subscribers[number];
        for of in &subscriber.following {
            let Some(receiver) = subscriber.core.receiver(of.channel) else {
                continue;
            };
            let (settled, heard) = receiver.progress();
            // An unconfirmed END is not emitted, and no record is lost with it.
            let is_end = |range: &SequenceRange| {
                let rings = self.truth.of(of.channel, receiver.epoch());
                let mut sealed = rings.iter().filter_map(|ring| ring.get(range.first));
                (range.first, range.last) == (settled, settled)
                    && sealed.any(|it| it.kind == Kind::End)
            };
            let unsaid = of.stream.unaccounted(&self.truth, heard);
            if let Some(range) = unsaid.filter(|range| !is_end(range)) {
                return Err(format!(
                    "subscriber {number} left without a word on {range}"
                ));
            }
        }
        Ok(())
    }

    /// Checks that only scouts send NACKs at once where a hold-off is advised.
    pub(crate) fn nobody_hurried(&self) -> Result<(), String> {
        let mut all = Scouts::default();
        for of in self.subscribers.iter().flat_map(|s| &s.following) {
            all.add(&of.asked.pace.scouts);
        }
        all.check()
    }

    /// Checks that unaffected subscribers have no losses, and no gaps but those of joining.
    pub(crate) fn nobody_noticed(&mut self) -> Result<(), String> {
        let feeds = &self.publishers[self.endpoint].feeds;
        let nacked: u64 = feeds.iter().map(|feed| feed.repair.nacked.get()).sum();
        if self.now <= JOINED {
            self.nacked_of_joining = nacked;
        } else if self.plan.unasked && nacked > self.nacked_of_joining {
            let asked = nacked - self.nacked_of_joining;
            return Err(format!(
                "{asked} sequences were asked for that were on their way"
            ));
        }
        for number in self.plan.untouched_from..self.subscribers.len() {
            let Subscriber {
                core, following, ..
            } = &mut self.subscribers[number];
            for of in following {
                let calm = (Delivery::Ordered, true, Start::Live);
                if (of.config.delivery, of.config.repair, of.start) != calm {
                    continue;
                }
                let receiver = core.receiver(of.channel);
                let gaps = receiver.map_or(0, |r| r.counters().missing_datagrams.get());
                let losses = of.stream.losses;
                if self.now <= JOINED {
                    of.gaps_of_joining = gaps;
                }
                if losses > 0 || gaps > of.gaps_of_joining {
                    return Err(format!(
                        "subscriber {number} has {gaps} gaps and {losses} losses from another's trouble"
                    ));
                }
            }
        }
        Ok(())
    }
}

/// Returns a description of a core's gaps for an error message.
pub(crate) fn gaps_of(core: &SubscriberCore) -> String {
    let part = |text: &str, from: &str| -> String {
        let from = text.find(from).unwrap_or(text.len());
        text[from..].chars().take(700).collect()
    };
    let texts = core.receivers().map(|r| {
        let text = format!("{r:?}");
        format!("{}\n{}", part(&text, "gaps: "), part(&text, "lines: "))
    });
    texts.collect::<Vec<_>>().join("\n")
}
