//! Drives the cores of subscribers as their driver would: after every input, it performs all
//! actions that the core requests, and then runs the checks.

use rand::RngExt;
use tickcast_journal::Journaled;
use tickcast_reliability::control::{Message, NackClass, Start};
use tickcast_reliability::delivery::LossCause;
use tickcast_reliability::delivery::{Event as Reported, Item, LinkDownReason};
use tickcast_reliability::session::{SubscriberCore, SubscriberInput};
use tickcast_reliability::types::{Nanos, Sequence, SequenceRange};
use tickcast_reliability::wire::{CrcVerdict, Datagram, Heartbeat, Kind, relay_flags};

use crate::checks::counters;
use crate::checks::delivery::can_be_lost;
use crate::checks::ladder::Rung;
use crate::checks::nack_validity::{Alarm, Given};
use crate::checks::tamper::Tamper;
use crate::faults::plan::StartAt;
use crate::faults::plan::channels;
use crate::network::clock_queue::Event;
use crate::trace::note_item;
use crate::world::end::gaps_of;
use crate::world::{SPINS_MAX, World};

/// Maximum number of unsent bytes of a flooding subscriber.
const FLOOD_UNSENT_MAX: usize = 256 << 10;

/// The path on which a datagram arrived at a subscriber.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Came {
    /// Multicast, on this line.
    Line(u8),
    /// A connection or a READ, in response to a request.
    Answered,
    /// A WRITE of the publisher to this standby.
    Written,
}

impl World {
    /// Passes an input to a subscriber's core, and checks the items and counters that it emits.
    pub(crate) fn with_core(
        &mut self,
        number: usize,
        f: impl FnOnce(&mut Journaled<SubscriberCore>, Nanos, &mut dyn FnMut(Item<'_>)),
    ) -> Result<(), String> {
        if self.plan.impostor {
            return self.with_core_attacked(number, f);
        }
        let (truth, trace, now) = (&self.truth, &mut self.trace, self.now);
        let tampering = &mut self.tampering;
        let compared = self.plan.timed || self.plan.broken.is_some();
        let late = match tampering.tamper {
            Some(Tamper::DelayOthers(late_us)) => Nanos::from_us(late_us),
            _ => Nanos::ZERO,
        };
        let has_twin = self.faults.contains_key("start_twin");
        let mut wrong = None;
        let subscriber = &mut self.subscribers[number];
        for of in &mut subscriber.following {
            of.alarms.clear();
            if self.plan.broken == Some(number) || subscriber.stalled || of.disturbed {
                continue;
            }
            let on_time = of.first_nack.on_time(now);
            let on_time = on_time.and_then(|()| of.asked.rungs.on_time(now));
            on_time
                .and_then(|()| of.asked.pace.on_time(now))
                .map_err(|what| {
                    let gaps = gaps_of(&subscriber.core);
                    format!(
                        "subscriber {number} on channel {} {what}; {gaps}",
                        of.channel
                    )
                })?;
        }
        subscriber.input(
            |core, on| f(core, now, on),
            |of, item| {
                note_item(trace, now, number, item);
                of.loss_reason.reported(item);
                if let Item::Event(position, event) = item {
                    of.first_nack.reported(event);
                    if let Err(what) = of.beginning.reported(of.channel, position, event) {
                        wrong.get_or_insert(format!("subscriber {number}: {what}"));
                    }
                    match event {
                        Reported::Joined { after } => of.asked.begins_behind(*after),
                        Reported::Stale => of.asked.pace.stale(Some(now)),
                        Reported::EndOfSession => of.asked.pace.ends(),
                        Reported::Recovered => of.asked.pace.stale(None),
                        _ => {}
                    }
                    if matches!(event, Reported::RepairLinkDown(LinkDownReason::Unanswered)) {
                        of.asked.gives_up(now);
                    }
                    if let Err(what) = of.silence.reported(event, now) {
                        wrong.get_or_insert(format!("subscriber {number}: {what}"));
                    }
                }
                let epoch = of.stream.epoch();
                if let Item::Event(_, Reported::Lost(loss)) = item
                    && !can_be_lost(&of.config, loss.cause)
                {
                    wrong = Some(format!("subscriber {number}: {loss} with {:?}", of.config));
                }
                if let Err(what) = tampering.tell(&mut of.stream, truth, item) {
                    let channel = of.channel;
                    wrong
                        .get_or_insert(format!("subscriber {number} on channel {channel}: {what}"));
                }
                let goes_on = matches!(item, Item::Event(_, Reported::EpochContinued { .. }));
                if of.stream.epoch() != epoch && !goes_on {
                    of.asked.restarted();
                }
                match item {
                    Item::Record(position, _) if compared => {
                        let starved = tampering.is_it(|tamper| match tamper {
                            Tamper::StarveOthers(n) if number > 0 => Some(n),
                            _ => None,
                        });
                        if !starved {
                            let at = now.after(late);
                            of.log.push((position.epoch.0, position.record.0, at));
                        }
                    }
                    Item::Event(_, Reported::Lost(loss)) if loss.cause != LossCause::Fenced => {
                        of.asked.lost(loss.sequences);
                    }
                    Item::Event(
                        _,
                        Reported::FencingViolation {
                            sequence,
                            wrong_one_delivered,
                        },
                    ) => {
                        let hidden = tampering.tamper == Some(Tamper::HideAlarms);
                        if !hidden {
                            of.asked.alarmed(*sequence);
                            of.alarms.push(Alarm {
                                sequence: *sequence,
                                wrong_one_delivered: *wrong_one_delivered,
                            });
                        }
                    }
                    _ => {}
                }
            },
        );
        if let Some(what) = wrong {
            return Err(what);
        }
        for of in &mut subscriber.following {
            let Some(receiver) = subscriber.core.receiver(of.channel) else {
                continue;
            };
            let (settled, heard) = receiver.progress();
            of.stream.follows(truth, receiver.epoch(), heard);
            let c = receiver.counters();
            let is_proven = c.impostors.get() > 0 && !of.stream.outran_memory;
            let accuses = is_proven || c.fencing_violations.get() > 0;
            if accuses && !has_twin {
                let (proofs, contents) = (c.impostors.get(), c.fencing_violations.get());
                return Err(format!(
                    "subscriber {number} on channel {} accuses the only publisher: {proofs} proofs, \
                     {contents} second contents",
                    of.channel
                ));
            }
            of.disturbed |= c.impostors.get() > 0 || has_twin && c.malformed_dropped.get() > 0;
            if of.disturbed {
                continue;
            }
            if let Some(last) = of.stream.take_cut() {
                of.asked.continued(last);
                of.loss_reason.continued(receiver.epoch(), last);
            }
            let episodes = receiver.counters().gaps.get();
            (of.asked.pace).found(episodes, subscriber.core.is_joined());
            of.silence.input_over();
            (of.silence.stands(receiver.stream_state()))
                .map_err(|what| format!("subscriber {number} on channel {}: {what}", of.channel))?;
            (of.loss_reason)
                .settle(receiver.epoch(), (settled.next(), heard), now)
                .map_err(|what| format!("subscriber {number} on channel {}: {what}", of.channel))?;
            let (next, connected) = (settled.next(), subscriber.core.is_joined());
            (of.beginning.settled(next, heard))
                .map_err(|what| format!("subscriber {number} on channel {}: {what}", of.channel))?;
            let found = (next <= heard)
                .then(|| of.loss_reason.known_of(next))
                .flatten();
            of.first_nack.follows(receiver.epoch(), heard);
            let read_most = of.asked.rungs.rtt_most(Rung::Read);
            of.first_nack
                .answered_within(of.asked.pace.rtt_most(), read_most);
            let (newest, limit) = receiver.confirmed(now);
            let confirmed = (connected && limit < Sequence(u64::MAX)).then_some(newest);
            (of.first_nack).confirms(confirmed, of.asked.pace.unanswered(), now);
            of.first_nack.settled((next, heard), found, connected, now);
            of.asked.rungs.settled(next, heard);
            of.asked.pace.may_read(of.first_nack.may_read());
        }
        for (of, c) in subscriber.following.iter().zip(subscriber.core.counters()) {
            counters::receiver(c, &of.stream)
                .and_then(|()| match of.disturbed {
                    true => Ok(()),
                    false => counters::asked(c, &of.asked),
                })
                .map_err(|what| {
                    let gaps = gaps_of(&subscriber.core);
                    format!("subscriber {number}: {what}; {gaps}")
                })?;
        }
        Ok(())
    }

    /// Passes an input with this datagram to a core. Checks that the core emits an alarm when the
    /// sequence had another content before.
    pub(crate) fn with_datagram(
        &mut self,
        number: usize,
        (bytes, came): (&[u8], Came),
        f: impl FnOnce(&mut Journaled<SubscriberCore>, Nanos, &mut dyn FnMut(Item<'_>)),
    ) -> Result<(), String> {
        self.with_datagrams(number, &[bytes], came, f)
    }

    /// Passes an input with several datagrams to a core, with the checks of
    /// [`World::with_datagram`].
    pub(crate) fn with_datagrams(
        &mut self,
        number: usize,
        each: &[&[u8]],
        came: Came,
        f: impl FnOnce(&mut Journaled<SubscriberCore>, Nanos, &mut dyn FnMut(Item<'_>)),
    ) -> Result<(), String> {
        if self.plan.impostor {
            let decides = !matches!(came, Came::Line(_));
            each.iter()
                .for_each(|bytes| self.notes_content(number, bytes, decides));
            return self.with_core_attacked(number, f);
        }
        let due = each.iter().enumerate();
        let due = due.map(|(nth, bytes)| self.notes_datagram(number, bytes, came, nth > 0));
        let due: Vec<_> = due.collect();
        self.with_core(number, f)?;
        for (nth, due) in due.into_iter().enumerate() {
            let Some((at, due)) = due else { continue };
            self.count("two_contents");
            let of = &self.subscribers[number].following[at];
            if of.disturbed {
                continue;
            }
            // An earlier datagram of the input may have delivered the other content of a later one.
            let other = Alarm {
                wrong_one_delivered: true,
                ..due
            };
            if !(of.alarms.contains(&due) || nth > 0 && of.alarms.contains(&other)) {
                return Err(format!(
                    "subscriber {number} does not say {due:?}, but {:?}",
                    of.alarms
                ));
            }
        }
        Ok(())
    }

    fn notes_datagram(
        &mut self,
        number: usize,
        bytes: &[u8],
        came: Came,
        after_another: bool,
    ) -> Option<(usize, Alarm)> {
        let line = match came {
            Came::Line(line) => Some(line),
            Came::Answered | Came::Written => None,
        };
        let datagram = Datagram::parse(bytes).ok()?;
        let header = datagram.header();
        if datagram.verdict() != CrcVerdict::Good {
            return None;
        }
        let subscriber = &mut self.subscribers[number];
        let receiver = subscriber.core.receiver(header.channel)?;
        if line.is_some() {
            // A datagram without the right tag must not change any expectation.
            let checked = subscriber.core.checked(header.channel, bytes, false);
            if !matches!(checked, Ok((_, CrcVerdict::Good))) {
                return None;
            }
        }
        let (delivered, heard) = receiver.progress();
        let beyond_the_end = receiver.ended() && header.sequence > heard;
        let mut following = subscriber.following.iter_mut();
        let at = following.position(|of| of.channel == header.channel)?;
        let of = &mut subscriber.following[at];
        let due_epoch = match header.kind {
            Kind::Heartbeat => of.stream.followed(),
            _ => (self.truth).epoch_at(of.channel, of.stream.followed(), header.sequence),
        };
        if due_epoch != header.epoch || beyond_the_end {
            return None;
        }
        let (sequence, next, now) = (header.sequence, delivered.next(), self.now);
        // A datagram over a connection is checked with its message, and a READ is no sign of
        // liveness.
        let confirmed = receiver.confirmed(self.now);
        let unconfirmed = line.is_some() && sequence > confirmed.1;
        if line.is_some() && !unconfirmed {
            of.loss_reason.datagram(sequence);
        }
        let beat = Heartbeat::parse(datagram.payload()).filter(|_| header.kind == Kind::Heartbeat);
        // A datagram that jumps must not change any expectation.
        let jumps = unconfirmed || of.asked.jumps(sequence, next, heard);
        if let Some(line) = line.filter(|_| !jumps) {
            let interval = beat.map(|b| Nanos::from_us(b.next_interval_us.into()));
            of.silence.hears(line.into(), interval, now);
        }
        if let Some(beat) = beat.filter(|_| !jumps) {
            let hold_off = Nanos::from_us(beat.hold_off_us.into());
            of.asked.pace.advised(hold_off, beat.subscribers, now);
            of.first_nack.advised(hold_off, now);
        }
        if header.kind == Kind::Heartbeat {
            return None;
        }
        if let Some(line) = line.filter(|_| header.relay & relay_flags::RETRANSMITTED == 0) {
            of.hears_line(line.into(), (header.epoch, sequence));
        }
        let (crc, decides) = (datagram.crc(), line.is_none());
        let given = Given {
            sequence,
            crc,
            decides,
            unasked: came == Came::Written,
            again: header.relay & relay_flags::RETRANSMITTED != 0,
            unconfirmed,
            has_room: of.asked.has_room(sequence, next, confirmed, decides),
            at: now,
        };
        // An earlier datagram of the input may deliver the other content. This one is then too late
        // to decide.
        let may_be_late = after_another && of.asked.took_another(sequence, crc);
        let due = of.asked.give(given, next, heard);
        let decides = decides && sequence >= next && !may_be_late;
        if decides && of.asked.took(sequence, crc) {
            of.stream.decided(&self.truth, &datagram);
        }
        Some((at, due?))
    }

    /// Performs all actions that a subscriber's core requests.
    pub(crate) fn pump(&mut self, number: usize) -> Result<(), String> {
        if self.subscribers[number].stalled || !self.subscribers[number].alive {
            return Ok(());
        }
        let mut out = Vec::new();
        for round in 0.. {
            if round > 1_000 {
                return Err(format!("subscriber {number} never comes to rest"));
            }
            let mut busy = false;
            self.with_core(number, |core, now, mut on| {
                core.handle(now, SubscriberInput::Timeout, &mut on);
            })?;
            loop {
                let mut path = None;
                self.with_core(number, |core, now, mut on| {
                    core.handle(now, SubscriberInput::Poll, &mut on);
                    path = core.poll_transmit(&mut out);
                })?;
                let Some(path) = path else { break };
                busy = true;
                self.send_up(number, path, &out)?;
                out.clear();
            }
            busy |= self.take_written(number)?;
            busy |= self.begin_reads(number)?;
            while let Some(action) = self.subscribers[number].core.poll_action() {
                busy = true;
                self.act(number, &action)?;
            }
            if !busy {
                break;
            }
        }
        self.sleep(number)
    }

    fn sleep(&mut self, number: usize) -> Result<(), String> {
        let (now, life) = (self.now, self.subscribers[number].life);
        let subscriber = &mut self.subscribers[number];
        let connected = subscriber.core.is_joined();
        let checked = subscriber.following.iter_mut();
        for of in checked.filter(|_| !self.plan.impostor) {
            (of.silence.on_time(connected, now))
                .map_err(|what| format!("subscriber {number} on channel {}: {what}", of.channel))?;
        }
        let due = subscriber.core.poll_timeout();
        if due > now {
            subscriber.spins = 0;
        } else {
            subscriber.spins += 1;
            if subscriber.spins > SPINS_MAX {
                let gaps = gaps_of(&subscriber.core);
                return Err(format!(
                    "subscriber {number} wants to be woken at {due}, again and again, and does nothing; {gaps}"
                ));
            }
        }
        let due = due.max(now.after(Nanos(1_000)));
        if due < subscriber.wakes_at {
            subscriber.wakes_at = due;
            self.schedule(due, Event::SubscriberTimer(number, life));
        }
        Ok(())
    }

    /// Returns the start of each channel of a subscriber that joins now.
    pub(crate) fn starts(&self, number: usize) -> Vec<Start> {
        let publisher = &self.publishers[self.endpoint];
        let start = |channel| {
            let (_, planned) = self.plan.subscribers[number % self.plan.subscribers.len()];
            let Some(at) = self.plan.starts_at.get(number).copied().flatten() else {
                return planned;
            };
            let last = publisher
                .feed(channel)
                .map_or(Sequence::NONE, |f| f.core.sealed());
            match (at, self.truth.before(publisher.epoch)) {
                (StartAt::EpochBefore(sequence), Some(epoch)) => {
                    Start::At(epoch, Sequence(sequence))
                }
                (StartAt::Back(n) | StartAt::EpochBefore(n), _) => {
                    Start::At(publisher.epoch, last.minus(n).max(Sequence::FIRST))
                }
                (StartAt::Ahead(n), _) => Start::At(publisher.epoch, last.plus(n)),
            }
        };
        channels(&self.plan).map(start).collect()
    }

    /// Sends a flood of NACKs for arbitrary sequences: delivered ones, ones gone from the ring, and
    /// future ones.
    pub(crate) fn flood(&mut self, number: usize) -> Result<(), String> {
        let again = self.subscribers[number].rng.random_range(20_000..200_000);
        self.schedule(self.now.after(Nanos(again)), Event::Flood(number));
        let slots = self.plan.ring_slots;
        let subscriber = &mut self.subscribers[number];
        let mut connection = subscriber.connections[0].filter(|_| subscriber.core.is_joined());
        if subscriber.core.is_nack_up() && subscriber.rng.random_bool(0.5) {
            connection = subscriber.connections[2].or(connection);
        }
        let Some(connection) = connection else {
            return Ok(());
        };
        let publisher = &self.publishers[self.connections[connection].publisher];
        let mut out = Vec::new();
        for feed in &publisher.feeds {
            let last = feed.core.sealed();
            let ranges = (0..subscriber.rng.random_range(1..=64)).map(|_| {
                let first = last
                    .plus(4)
                    .minus(subscriber.rng.random_range(0..slots + 8));
                let first = first.max(Sequence::FIRST);
                let len = subscriber.rng.random_range(0..64);
                SequenceRange {
                    first,
                    last: first.plus(len),
                }
            });
            let mut ranges: Vec<SequenceRange> = ranges.collect();
            ranges.sort_by_key(|r| r.first);
            let class = if subscriber.rng.random_bool(0.7) {
                NackClass::Repair
            } else {
                NackClass::Replay
            };
            let nack = Message::Nack {
                epoch: publisher.epoch,
                ranges,
                class,
            };
            nack.write(feed.channel, &mut out);
        }
        let pipe = &mut self.connections[connection].up;
        if pipe.unsent.len() < FLOOD_UNSENT_MAX {
            pipe.unsent.extend(&out);
            self.count("flood_nacks");
            self.kick(connection, true);
        }
        Ok(())
    }
}
