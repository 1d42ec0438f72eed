//! Checks on one application's stream against the published one: every record is delivered once, in
//! order and as it was sealed. Every record that is not delivered is declared lost, to the exact
//! number.

use std::collections::{BTreeMap, BTreeSet};

use tickcast_reliability::control::Start;
use tickcast_reliability::delivery::{Delivery, Event, Item, Loss, LossCause, Position};
use tickcast_reliability::receive::ReceiverConfig;
use tickcast_reliability::types::{ChannelId, Epoch, Sequence, SequenceRange};
use tickcast_reliability::wire::{Datagram, Kind};

use crate::checks::epoch_lineage::Reported;
use crate::truth::{Continuation, EpochTruth, Truth};

/// The position and the counts of one subscriber in the stream of one channel.
#[derive(Debug)]
pub struct Stream {
    channel: ChannelId,
    /// Whether the subscriber named its first sequence, so that the number of the first record is
    /// unknown.
    begins_anywhere: bool,
    in_arrival_order: bool,
    epoch: Epoch,
    /// The epoch that the core follows; it equals `epoch` or descends from it.
    followed: Epoch,
    /// Records that dead ends of the stream delivered or passed.
    reported: Reported,
    /// First sequence of the losses after which nothing was delivered.
    lost_from: Option<Sequence>,
    /// Whether records are void without another publisher of the epoch: another epoch must continue it.
    is_void: bool,
    /// Whether a line brought a datagram after one that is younger by more than a core remembers. Then
    /// the core cannot tell it from one that an impostor has replaced.
    pub outran_memory: bool,
    /// The repeated records that the next `EpochContinued` must report, where that is known.
    repeats: Option<u64>,
    /// Sequence behind which the stream was continued, not yet passed on to other checks.
    cut: Option<Sequence>,
    /// The next sequence, and the number of its records already delivered.
    next: Sequence,
    part: u64,
    /// Ring of these records, when two publishers have the epoch.
    ring: usize,
    /// Ring of the undelivered copies that arrived over the repair path, by sequence.
    decided: BTreeMap<u64, usize>,
    /// Value of `next` when the subscriber joined.
    joined: Sequence,
    /// In arrival order, the sequences delivered beyond `next`.
    early: BTreeSet<u64>,
    ended: bool,
    /// The last loss and its real cost, if its size was not reported. Only the end of an epoch
    /// excuses an unknown size.
    of_unknown_size: Option<(SequenceRange, u64)>,
    /// Whether the size of the previous loss was unknown, as it may be when a publisher is dead.
    unknown_before: bool,
    /// Whether the tail of the epoch was declared lost, so that only another epoch can follow.
    tail_lost: bool,
    /// Records delivered.
    pub records: u64,
    /// Number of loss events.
    pub losses: u64,
    /// Records that the loss events declared lost.
    pub lost_records: u64,
    /// Loss events of unknown size.
    pub losses_of_unknown_size: u64,
    /// Sequences reported as recovered.
    pub recovered: u64,
    /// Recovered runs: first sequence, number of sequences, duration in nanoseconds.
    pub repairs: Vec<(u64, u64, u64)>,
    /// Sequences declared lost, by cause as in [`LossCause::ALL`].
    pub lost_by_cause: [u64; LossCause::ALL.len()],
    /// Digest of the numbers of all records, epoch by epoch.
    pub digest: u64,
}

type Checked = Result<(), String>;

impl Stream {
    /// Returns a stream without any item.
    #[must_use]
    pub fn new(channel: ChannelId, delivery: Delivery, start: Start) -> Self {
        Self {
            channel,
            begins_anywhere: matches!(start, Start::At(..)),
            in_arrival_order: delivery == Delivery::Arrival,
            epoch: Epoch::NONE,
            followed: Epoch::NONE,
            reported: Reported::default(),
            lost_from: None,
            is_void: false,
            outran_memory: false,
            repeats: None,
            cut: None,
            next: Sequence::NONE,
            part: 0,
            ring: 0,
            decided: BTreeMap::new(),
            joined: Sequence::NONE,
            early: BTreeSet::new(),
            ended: false,
            of_unknown_size: None,
            unknown_before: false,
            tail_lost: false,
            records: 0,
            losses: 0,
            lost_records: 0,
            losses_of_unknown_size: 0,
            recovered: 0,
            repairs: Vec::new(),
            lost_by_cause: [0; LossCause::ALL.len()],
            digest: 0,
        }
    }

    /// Returns the epoch of the last item.
    #[must_use]
    pub const fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Returns the epoch that the core follows.
    #[must_use]
    pub const fn followed(&self) -> Epoch {
        self.followed
    }

    /// Removes and returns the sequence behind which the stream was continued during the last
    /// input.
    pub const fn take_cut(&mut self) -> Option<Sequence> {
        self.cut.take()
    }

    /// Records, after an input, the epoch that the core follows, and the highest sequence that it knows.
    pub fn follows(&mut self, truth: &Truth, epoch: Epoch, heard: Sequence) {
        // A STATUS voids what lies beyond in silence, if nothing of it was delivered.
        self.decided.split_off(&heard.next().0);
        if let Some(link) = truth.descent(self.channel, self.followed, epoch) {
            self.continue_epoch(truth, epoch, link);
        }
    }

    /// Returns the next sequence that must be delivered or declared lost.
    #[must_use]
    pub const fn next(&self) -> Sequence {
        self.next
    }

    /// Returns whether the end of the session was delivered.
    #[must_use]
    pub const fn ended(&self) -> bool {
        self.ended
    }

    /// Checks the next item that the application received.
    ///
    /// # Errors
    /// An item that is untrue or out of order.
    pub fn take(&mut self, truth: &Truth, item: &Item<'_>) -> Checked {
        match item {
            Item::Record(position, record) => {
                let bytes: &[u8] = record.as_ref();
                self.record(truth, position, bytes)
            }
            Item::Event(position, event) => self.event(truth, position, event),
        }
    }

    /// Records that a copy of an undelivered datagram arrived over the repair path: its content
    /// overrides earlier copies.
    pub fn decided(&mut self, truth: &Truth, datagram: &Datagram<'_>) {
        let header = datagram.header();
        let number = header.first_record.0;
        let Some(record) = (datagram.records().ok()).and_then(|mut records| records.next()) else {
            return;
        };
        let rings = truth.of(self.channel, header.epoch);
        let is_it = |of: &EpochTruth| of.is_record(number, record.as_ref());
        if let Some(ring) = rings.iter().position(is_it)
            && !self.in_arrival_order
        {
            self.decided.insert(header.sequence.0, ring);
        }
    }

    /// Checks the next record.
    ///
    /// # Errors
    /// A record that is not the published one, is out of order, or is a duplicate.
    pub fn record(&mut self, truth: &Truth, position: &Position, bytes: &[u8]) -> Checked {
        let (sequence, number) = (position.sequence, position.record.0);
        self.nothing_of_unknown_size()?;
        if self.is_void {
            return Err(format!(
                "record {number} of {sequence} after a rollback, and one publisher alone has the epoch"
            ));
        }
        let rings = self.here(truth, position)?;
        let line = truth.epoch_at(self.channel, self.followed, sequence);
        if position.epoch != line {
            let epoch = position.epoch;
            return Err(format!("sequence {sequence} of {epoch}, it is of {line}"));
        }
        let data = |of: &EpochTruth| of.get(sequence).copied().filter(|s| s.kind == Kind::Data);
        if !rings.iter().any(|of| data(of).is_some()) {
            return Err(format!(
                "a record of sequence {sequence}, which carries none"
            ));
        }
        let is_it = |of: &EpochTruth| data(of).is_some() && of.is_record(number, bytes);
        let found = rings.iter().position(is_it);
        let Some((ring, sealed)) = found.and_then(|ring| Some((ring, data(&rings[ring])?))) else {
            return Err(format!(
                "record {number} of {sequence} is not what was published"
            ));
        };
        if let Some(of) = self.decided.get(&sequence.0).filter(|of| **of != ring) {
            return Err(format!(
                "record {number} of {sequence} is of publisher {ring}, the repair path's copy is of {of}"
            ));
        }
        if !self.in_arrival_order {
            self.catch_up(truth, sequence);
        }
        let early = self.in_arrival_order && sequence != self.next;
        let mut part = if early {
            number.wrapping_sub(sealed.first_record)
        } else {
            self.part
        };
        while !early
            && sealed.first_record + part < number
            && self.reported.may_skip(sealed.first_record + part)
        {
            part += 1;
        }
        if number != sealed.first_record + part || part >= sealed.count {
            return Err(format!(
                "record {number} of {sequence} (records {} + {}) where {part} came before",
                sealed.first_record, sealed.count
            ));
        }
        self.reported.record(number)?;
        let rest = number + 1..sealed.first_record + sealed.count;
        let whole = rest.clone().all(|number| self.reported.may_skip(number));
        self.records += 1;
        self.digest = self
            .digest
            .wrapping_add((number ^ position.epoch.0.rotate_left(40)).wrapping_mul(0x9e37_79b9));
        if early {
            if sequence < self.next || (part == 0 && self.early.contains(&sequence.0)) {
                return Err(format!("sequence {sequence} a second time"));
            }
            self.early.insert(sequence.0);
            return Ok(());
        }
        self.in_turn(truth, sequence)?;
        if part > 0 && ring != self.ring {
            return Err(format!("{sequence} is a mixture of two publishers"));
        }
        (self.part, self.ring) = (part + 1, ring);
        self.unknown_before = false;
        self.lost_from = None;
        if whole {
            self.pass(sequence);
        }
        Ok(())
    }

    fn event(&mut self, truth: &Truth, position: &Position, event: &Event) -> Checked {
        match event {
            Event::Joined { after } => {
                // The subscriber may move to an epoch that continues the one in which it was to
                // start.
                let line = truth.epoch_at(self.channel, self.followed, after.next());
                let moves = line == position.epoch
                    && (self.next, self.part) == (self.joined, 0)
                    && after.next() > self.next;
                if self.epoch != Epoch::NONE && !moves {
                    return Err("joined a second time".into());
                }
                (self.epoch, self.next) = (position.epoch, after.next());
                if truth
                    .descent(self.channel, self.epoch, self.followed)
                    .is_none()
                {
                    self.followed = self.epoch;
                }
                self.joined = self.next;
                self.unknown_before = self.begins_anywhere;
                Ok(())
            }
            Event::EpochChanged { from, to } => self.changed(truth, *from, *to),
            Event::EpochContinued {
                from,
                to,
                last,
                repeated,
            } => self.continued(truth, (*from, *to), *last, *repeated),
            Event::Lost(loss) => self.lost(truth, loss),
            Event::GapRecovered {
                first,
                sequences,
                took,
            } => {
                self.recovered += sequences;
                self.repairs.push((first.0, *sequences, took.0));
                Ok(())
            }
            Event::Stream(_) => {
                let kind = |of: &EpochTruth| of.get(position.sequence).map(|s| s.kind);
                let mut rings = self.here(truth, position)?.iter();
                if !rings.any(|of| kind(of) == Some(Kind::Event)) {
                    return Err(format!("sequence {} is no event", position.sequence));
                }
                self.whole(truth, position.sequence)
            }
            Event::EndOfSession => {
                let rings = self.here(truth, position)?;
                if self.ended {
                    return Err("the end a second time".into());
                }
                let mut ended = rings.iter().filter(|of| of.ended()).peekable();
                if ended.peek().is_none() {
                    return Err("the end, which was not published".into());
                }
                self.ended = true;
                // The end may be delivered although its datagram was declared lost or came from
                // another publisher.
                let last = position.sequence;
                let lost = ended.any(|of| last == of.last() && self.next > last);
                if lost || (rings.len() > 1 && last != self.next) {
                    return Ok(());
                }
                self.whole(truth, last)
            }
            Event::RolledBack { after, .. } => self.rolled_back(truth, *after),
            Event::LossCorrected {
                reported, records, ..
            } => {
                let is_alone = truth.of(self.channel, self.epoch).len() < 2;
                // Another epoch publishes the records of the last losses again.
                if is_alone && (records >= reported || self.lost_from.is_none()) {
                    return Err(format!("{event}, although one publisher alone sent"));
                }
                self.lost_records += records.saturating_sub(*reported);
                Ok(())
            }
            Event::FencingViolation { sequence, .. }
                if truth.of(self.channel, self.epoch).len() < 2 =>
            {
                Err(format!(
                    "an alarm for {sequence}, which one publisher alone sent"
                ))
            }
            _ => Ok(()),
        }
    }

    fn here<'t>(&self, truth: &'t Truth, position: &Position) -> Result<&'t [EpochTruth], String> {
        let is_early = self.in_arrival_order
            && position.epoch == truth.epoch_at(self.channel, self.followed, position.sequence);
        if position.epoch != self.epoch && !is_early {
            return Err(format!(
                "something of epoch {} in epoch {}",
                position.epoch, self.epoch
            ));
        }
        if self.tail_lost {
            return Err(format!("epoch {} goes on after its end", self.epoch));
        }
        Ok(truth.of(self.channel, position.epoch))
    }

    fn nothing_of_unknown_size(&self) -> Checked {
        match self.of_unknown_size {
            Some((range, records)) => Err(format!(
                "loss of {range} of unknown size; it cost {records} records, and the epoch goes on"
            )),
            None => Ok(()),
        }
    }

    fn in_turn(&mut self, truth: &Truth, sequence: Sequence) -> Checked {
        if !self.in_arrival_order {
            self.catch_up(truth, sequence);
        }
        if sequence == self.next {
            return Ok(());
        }
        // An END that only another publisher with this epoch sent is skipped without an event.
        let rings = truth.of(self.channel, self.epoch);
        let end = |of: &EpochTruth| of.get(self.next).map(|s| s.kind) == Some(Kind::End);
        if rings.len() > 1 && sequence == self.next.next() && rings.iter().any(end) {
            self.pass(self.next);
            return Ok(());
        }
        Err(format!("sequence {sequence} where {} is due", self.next))
    }

    fn whole(&mut self, truth: &Truth, sequence: Sequence) -> Checked {
        if !self.in_arrival_order {
            self.catch_up(truth, sequence);
        }
        if self.part != 0 {
            return Err(format!("sequence {sequence} within {}", self.next));
        }
        if self.in_arrival_order && sequence != self.next {
            if sequence < self.next || !self.early.insert(sequence.0) {
                return Err(format!("sequence {sequence} a second time"));
            }
            return Ok(());
        }
        self.in_turn(truth, sequence)?;
        self.lost_from = None;
        self.pass(sequence);
        Ok(())
    }

    fn pass(&mut self, sequence: Sequence) {
        (self.next, self.part) = (sequence.next(), 0);
        self.decided.retain(|of, _| *of > sequence.0);
        while self.early.remove(&self.next.0) {
            self.next = self.next.next();
            self.lost_from = None;
        }
    }

    fn lost(&mut self, truth: &Truth, loss: &Loss) -> Checked {
        let range = loss.sequences;
        self.losses += 1;
        match loss.records {
            Some(records) => self.lost_records += records,
            None => self.losses_of_unknown_size += 1,
        }
        if range.last != Sequence(u64::MAX) {
            self.nothing_of_unknown_size()?;
        }
        if self.epoch == Epoch::NONE {
            // History of a subscriber that names an epoch which has ended.
            return Ok(());
        }
        let rings = truth.of(self.channel, self.epoch);
        if loss.cause == LossCause::Fenced {
            // A delivered record turned out to be another publisher's.
            self.lost_by_cause[cause_index(loss.cause)] += range.len();
            let delivered = range.last < self.next || self.early.contains(&range.last.0);
            return if rings.len() > 1 && delivered {
                Ok(())
            } else {
                Err(format!("{range} is said to be another publisher's"))
            };
        }
        self.catch_up(truth, range.first);
        if range.first != self.next || self.part != 0 {
            return Err(format!(
                "loss of {range} where {} + {} is due",
                self.next, self.part
            ));
        }
        if range.last == Sequence(u64::MAX) && loss.cause == LossCause::Epoch {
            self.tail_lost = true;
            return Ok(());
        }
        let newest = truth.of(self.channel, self.followed);
        let last = newest.iter().map(EpochTruth::last).max();
        if last.is_none_or(|last| range.last > last) {
            return Err(format!(
                "loss of {range}, but {last:?} was the last published"
            ));
        }
        if let Some(early) = self.early.range(range.first.0..=range.last.0).next() {
            return Err(format!("loss of {range}, of which {early} was delivered"));
        }
        if rings.len() == 1 {
            let record_at = |of| truth.record_at(self.channel, self.followed, of);
            self.cost(loss, record_at(range.first)..record_at(range.last.next()))?;
        }
        self.lost_from.get_or_insert(range.first);
        self.lost_by_cause[cause_index(loss.cause)] += range.len();
        self.pass(range.last);
        Ok(())
    }

    /// Checks the reported cost of a loss against its real cost, where that is known.
    fn cost(&mut self, loss: &Loss, numbers: std::ops::Range<u64>) -> Checked {
        let range = loss.sequences;
        // Records that a dead end delivered are not lost with another copy.
        let (least, most) = self.reported.within(&numbers);
        let all = numbers.end - numbers.start;
        let (real, may_be) = (all - least, all - most.min(all));
        match loss.records {
            Some(records) if !(may_be..=real).contains(&records) => {
                return Err(format!(
                    "loss of {range} is said to cost {records} records, it cost {real}"
                ));
            }
            // The start of this loss is unknown, because the loss before it had an unknown size.
            None if self.unknown_before => {}
            None if loss.cause == LossCause::PublisherDead => self.unknown_before = true,
            None => self.of_unknown_size = Some((range, real)),
            _ => {}
        }
        Ok(())
    }

    fn changed(&mut self, truth: &Truth, from: Epoch, to: Epoch) -> Checked {
        let known = self.epoch != Epoch::NONE;
        if (known && from != self.followed) || to <= from {
            return Err(format!("from epoch {from} to {to} in {}", self.epoch));
        }
        if known && !self.tail_lost && !self.ended {
            return Err(format!("epoch {from} left without a word on its tail"));
        }
        if truth.of(self.channel, to).is_empty() {
            return Err(format!("epoch {to} was never opened"));
        }
        if !known {
            // `Joined` is emitted next.
            return Ok(());
        }
        let first = truth.of(self.channel, to).iter().map(|ring| ring.first);
        let first = match truth.link(self.channel, to) {
            Some(_) => first.min().unwrap_or(Sequence::FIRST),
            None => Sequence::FIRST,
        };
        (self.epoch, self.next, self.part) = (to, first, 0);
        self.followed = to;
        self.reported.clear();
        (self.lost_from, self.repeats) = (None, None);
        (self.ended, self.tail_lost) = (false, false);
        self.of_unknown_size = None;
        self.early.clear();
        self.decided.clear();
        Ok(())
    }

    /// Checks that epoch `to` continues epoch `from` behind `last`, now or earlier.
    fn continued(
        &mut self,
        truth: &Truth,
        (from, to): (Epoch, Epoch),
        last: Sequence,
        repeated: u64,
    ) -> Checked {
        let link = truth.link_behind(self.channel, (from, to), last);
        let Some(link) = link.filter(|_| from == self.epoch) else {
            let here = self.epoch;
            return Err(format!("{from} continued by {to} behind {last}, in {here}"));
        };
        if self.followed == from {
            self.continue_epoch(truth, to, link);
        }
        self.catch_up(truth, last.next());
        if self.next <= last || self.part != 0 {
            let next = self.next;
            return Err(format!("{from} continued behind {last}, {next} is due"));
        }
        if let Some(expected) = self.repeats.take()
            && expected != repeated
        {
            return Err(format!(
                "{repeated} records are said to be repeated, {expected} are"
            ));
        }
        self.epoch = to;
        Ok(())
    }

    /// Moves to an epoch that continues the one before. Records beyond the link are remembered as a
    /// dead end, and `next` returns to the link.
    fn continue_epoch(&mut self, truth: &Truth, to: Epoch, link: Continuation) {
        let (channel, from) = (self.channel, self.followed);
        let exact = self.reported.is_empty();
        let mut repeated = 0;
        if self.next > link.last.next() {
            let to_number = truth.record_at(channel, from, self.next) + self.part;
            let lost_from = self.lost_from.map(|s| truth.record_at(channel, from, s));
            let delivered = match lost_from {
                // The number of the first record was unknown.
                None if self.begins_anywhere && self.joined == self.next => link.next_record,
                lost_from => lost_from.unwrap_or(to_number).max(link.next_record),
            };
            repeated += self.reported.deliver(link.next_record..delivered);
            (self.next, self.part) = (link.last.next(), 0);
        }
        for early in self.early.split_off(&link.last.next().0) {
            let sealed = truth.sealed_at(channel, from, Sequence(early));
            let numbers = sealed.map_or(0..0, |s| s.first_record..s.first_record + s.count);
            repeated += self.reported.deliver(numbers);
        }
        self.repeats = exact.then_some(repeated);
        (self.lost_from, self.is_void) = (None, false);
        self.reported.continues();
        self.decided.retain(|of, _| *of <= link.last.0);
        self.of_unknown_size
            .take_if(|(range, _)| range.first > link.last);
        (self.ended, self.followed) = (false, to);
        let cut = self.cut.map_or(link.last, |cut| cut.min(link.last));
        self.cut = Some(cut);
    }

    /// Returns to the place behind `after`: another publisher has the epoch, or seems to, or another epoch
    /// continues it.
    fn rolled_back(&mut self, truth: &Truth, after: Sequence) -> Checked {
        self.is_void = truth.of(self.channel, self.epoch).len() < 2 && !self.outran_memory;
        if self.is_void {
            let void = truth.record_at(self.channel, self.followed, after.next());
            self.reported.void(void);
        } else {
            self.reported.clear();
        }
        if self.next > after.next() {
            (self.next, self.part) = (after.next(), 0);
        }
        self.early.split_off(&after.next().0);
        self.decided.retain(|of, _| *of <= after.0);
        self.of_unknown_size
            .take_if(|(range, _)| range.first > after);
        self.cut = Some(self.cut.map_or(after, |cut| cut.min(after)));
        Ok(())
    }

    /// Skips sequences whose records a dead end delivered, because they are not emitted again.
    fn catch_up(&mut self, truth: &Truth, to: Sequence) {
        let at = self.caught_up(truth, to);
        if at > self.next {
            self.pass(at.previous());
        }
    }

    /// Returns the first sequence, at most `to`, that must still be emitted. All sequences before
    /// it were delivered early or hold only records of a dead end.
    fn caught_up(&self, truth: &Truth, to: Sequence) -> Sequence {
        let line = (self.channel, self.followed);
        let (mut at, mut part) = (self.next, self.part);
        while at < to
            && (self.early.contains(&at.0) || self.reported.may_skip_all(truth, line, (at, part)))
        {
            (at, part) = (at.next(), 0);
        }
        at
    }

    /// Returns the sequences up to `heard` that were neither delivered nor declared lost.
    #[must_use]
    pub fn unaccounted(&self, truth: &Truth, heard: Sequence) -> Option<SequenceRange> {
        if self.tail_lost || self.epoch == Epoch::NONE {
            return None;
        }
        SequenceRange::new(self.caught_up(truth, heard.next()), heard)
    }
}

fn cause_index(cause: LossCause) -> usize {
    let at = LossCause::ALL.iter().position(|c| *c == cause);
    at.unwrap_or(0)
}

/// Returns whether a subscriber with these settings can lose a sequence for this cause.
#[must_use]
pub fn can_be_lost(config: &ReceiverConfig, cause: LossCause) -> bool {
    match cause {
        LossCause::Deadline => {
            config.repair && matches!(config.delivery, Delivery::OrderedWithin(_))
        }
        LossCause::RepairOff => !config.repair,
        LossCause::Burst => config.repair || config.delivery != Delivery::Ordered,
        _ => true,
    }
}
