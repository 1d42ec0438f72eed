//! Standbys in virtual time: subscribers that keep a mirror and become the publisher. A mirror
//! equals the sealed datagrams byte for byte, and records that are not in it are published again.

use std::collections::BTreeMap;

use tickcast_reliability::receive::{Mirror, NotPromoted};
use tickcast_reliability::ring::RingWriter;
use tickcast_reliability::types::{Nanos, Sequence, SequenceRange, SourceId, SourcePosition};
use tickcast_reliability::wire::{CrcVerdict, Datagram, Kind, StreamEvent};

use crate::actors::publisher::PublisherActor;
use crate::feed::Feed;
use crate::feed::publisher_output::OutputCheck;
use crate::network::clock_queue::Event;
use crate::truth::{Continuation, Truth};
use crate::world::{World, now_of};

/// Longest time for which a publisher waits for a standby to have everything, before it continues
/// itself.
const HAND_OVER_MAX: Nanos = Nanos::from_ms(30);
/// Interval at which the publisher checks the standby.
const LOOKS_EVERY: Nanos = Nanos::from_us(200);

impl World {
    /// Makes the publisher stop sealing, and end once this standby has everything.
    pub(crate) fn hand_over(&mut self, number: usize) -> Result<(), String> {
        let index = self.endpoint;
        let publisher = &mut self.publishers[index];
        if !publisher.alive || publisher.paused || publisher.finished() {
            return Ok(());
        }
        publisher.hands_over = true;
        let now = now_of(self.now, self.utc);
        for feed in &mut publisher.feeds {
            feed.flush(now)?;
        }
        publisher.write_down(&mut self.truth)?;
        self.serve(index)?;
        let until = self.now.after(HAND_OVER_MAX);
        self.schedule(self.now, Event::HandOver(number, index, until));
        Ok(())
    }

    pub(crate) fn goes_on_handing_over(
        &mut self,
        number: usize,
        index: usize,
        until: Nanos,
    ) -> Result<(), String> {
        let publisher = &self.publishers[index];
        if !publisher.alive || !publisher.hands_over {
            return Ok(());
        }
        let core = &self.subscribers[number].core;
        let has_all = publisher.feeds.iter().all(|feed| {
            let mirrored = core.mirror(feed.channel).map(Mirror::mirrored);
            mirrored.is_some_and(|it| {
                it.epoch == publisher.epoch && it.last == feed.core.sealed() && it.next_record.0 > 0
            })
        });
        if has_all && !publisher.paused && self.promote(number, true)? {
            self.count("handed_over");
            self.publishers[index].repair.hand_over();
            self.serve(index)?;
            self.schedule(self.now.after(Nanos::from_ms(1)), Event::Ends(index));
        } else if self.now >= until || self.now >= self.plan.faults_until {
            // The hand-over failed, so that the publisher continues.
            self.count("hand_over_given_up");
            self.publishers[index].hands_over = false;
        } else {
            let again = self.now.after(LOOKS_EVERY);
            self.schedule(again, Event::HandOver(number, index, until));
        }
        Ok(())
    }

    /// Promotes a standby to publisher with the content of its mirrors. `complete`: the publisher handed
    /// over. Returns whether this was possible.
    pub(crate) fn promote(&mut self, number: usize, complete: bool) -> Result<bool, String> {
        let subscriber = &mut self.subscribers[number];
        let is_there = subscriber.alive && !subscriber.stalled;
        let Some(mirrors) = is_there.then(|| subscriber.take_mirrors()).flatten() else {
            self.count("promotion_impossible");
            return Ok(false);
        };
        let (epoch, now) = (self.next_epoch(), now_of(self.now, self.utc));
        let mut feeds = Vec::new();
        for mirror in mirrors {
            let mirrored = mirror.mirrored();
            let channel = mirror.channel();
            let positions: BTreeMap<_, _> = mirror.positions().collect();
            let promotion = mirror.promote(epoch, complete);
            let promotion = promotion.map_err(|NotPromoted { error, .. }| error.to_string())?;
            let link = Continuation {
                from: mirrored.epoch,
                last: mirrored.last,
                next_record: mirrored.next_record.0,
            };
            let key = self.truth.continue_epoch(channel, epoch, link);
            let key = key.ok_or("an epoch was mirrored that nobody opened")?;
            let ring = promotion.ring;
            check_ring(&self.truth, &ring, &positions)
                .and_then(|()| check_line(&self.truth, &ring))
                .map_err(|what| format!("standby {number} on channel {channel}: {what}"))?;
            let made = (self
                .publishers
                .iter()
                .filter(|it| it.epoch == mirrored.epoch))
            .filter_map(|it| Some(it.feed(channel)?.number()));
            let made = made.max().unwrap_or(0);
            let held = SequenceRange::new(ring.oldest(), ring.sealed());
            let first = held.map_or(ring.sealed().next(), |held| held.first);
            let slots = held.into_iter().flat_map(SequenceRange::iter);
            let slots = slots.filter_map(|sequence| ring.slot(sequence));
            let output = OutputCheck::new(first, self.plan.fan_outs, self.plan.heartbeat);
            let output = output.going_on(slots);
            if made > mirrored.next_record.0 {
                *self.faults.entry("tail_not_mirrored").or_default() += 1;
            }
            let mut feed = Feed::on(&self.plan, (ring, 0), (key, output), now);
            feed.promoted(&promotion.opened, made, now)?;
            feeds.push(feed);
        }
        // The subscriber's process is the publisher's from now on.
        self.goes(number, false)?;
        let mut publisher = PublisherActor::with(&self.plan, (epoch, 0), feeds, now);
        publisher.write_down(&mut self.truth)?;
        self.count("promoted");
        self.trace.note(self.now, "promoted", number, epoch.0, 0);
        self.endpoint = self.add_publisher(publisher);
        self.serve(self.endpoint)?;
        Ok(true)
    }
}

/// Checks that a continued ring holds the sealed datagrams unchanged, and that the positions
/// reported for its sources are those in the ring.
pub(crate) fn check_ring(
    truth: &Truth,
    ring: &RingWriter,
    positions: &BTreeMap<SourceId, SourcePosition>,
) -> Result<(), String> {
    let (channel, epoch) = (ring.identity().channel, ring.identity().epoch);
    let held = SequenceRange::new(ring.oldest(), ring.sealed());
    let mut found = BTreeMap::new();
    for sequence in held.into_iter().flat_map(SequenceRange::iter) {
        let bytes = ring.slot(sequence).ok_or("a slot that is held is gone")?;
        let datagram = Datagram::parse(bytes).map_err(|e| e.to_string())?;
        let header = datagram.header();
        if datagram.verdict() != CrcVerdict::Good || header.relay != 0 {
            return Err(format!("{sequence} is not as it was sealed: {header:?}"));
        }
        let line = truth.epoch_at(channel, epoch, sequence);
        if (header.epoch, header.sequence) != (line, sequence) {
            return Err(format!("{header:?} in the place of {sequence} of {line}"));
        }
        let sealed = truth.sealed_at(channel, epoch, sequence);
        let same = sealed.is_some_and(|sealed| {
            let is = (header.kind, header.first_record.0, u64::from(header.count));
            is == (sealed.kind, sealed.first_record, sealed.count)
        });
        let of = truth.of(channel, line).first();
        let mut records = datagram.records().map_err(|e| e.to_string())?.enumerate();
        let all = records.all(|(n, record)| {
            of.is_some_and(|of| of.is_record(header.first_record.0 + n as u64, record.as_ref()))
        });
        if !same || !all {
            return Err(format!("{sequence} is not what was sealed"));
        }
        if header.kind == Kind::Data {
            found.insert(header.source, header.source_position);
        } else if header.kind == Kind::Event
            && let Some(StreamEvent::SourceLost { source, from, .. }) =
                StreamEvent::parse(datagram.payload())
        {
            // Messages reported as lost must not be reported again.
            found.insert(source, from);
        }
    }
    for (source, position) in &found {
        if positions.get(source) != Some(position) {
            let said = positions.get(source);
            return Err(format!(
                "source {source} is at {position}, said is {said:?}"
            ));
        }
    }
    Ok(())
}

/// Checks that a promoted ring names its lineage of epochs.
fn check_line(truth: &Truth, ring: &RingWriter) -> Result<(), String> {
    let (channel, epoch) = (ring.identity().channel, ring.identity().epoch);
    let lineage = ring.lineage();
    let right = lineage.epochs().iter().all(|it| {
        let link = truth.descent(channel, it.epoch, epoch);
        link.is_some_and(|link| (link.last, link.next_record) == (it.last, it.next_record.0))
    });
    let begins = lineage.begins().0;
    if !right || begins != Sequence(ring.sealed().next().0) {
        return Err(format!("the line is said to be {lineage:?}"));
    }
    Ok(())
}
