//! Checks that each reported loss, death or recovery had a reason: a message of the publisher, the
//! clock, or the settings. Also checks that a publisher refuses nothing that its ring holds.

use std::collections::{BTreeMap, BTreeSet};

use tickcast_reliability::control::{BODY_LEN_MAX_TO_SUBSCRIBER, Message, RefusalReason};
use tickcast_reliability::delivery::{Delivery, Event, Item, Loss, LossCause};
use tickcast_reliability::receive::ReceiverConfig;
use tickcast_reliability::types::{ChannelId, Epoch, Nanos, Sequence, SequenceRange};

use crate::feed::Feed;

type Checked = Result<(), String>;

/// Number of jumps of the last known sequence that are kept.
const JUMPS_MAX: usize = 1 << 15;
/// Number of sequences of one loss that are checked individually.
const LOOKED_AT_MAX: usize = 1 << 14;

/// One increase of the last known sequence; the skipped sequences were found missing at that time.
#[derive(Clone, Copy, Debug)]
struct Jump {
    at: Nanos,
    /// The earliest start of its deadline. Beyond the window, a run may join the one before it.
    counts_from: Nanos,
    len: u64,
    /// The first sequence of the run that this jump may belong to. Sequences found at one time, or
    /// beyond the window, form one run.
    run_from: Sequence,
}

/// The detection of a missing sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Time since which the sequence was known to be sent.
    pub at: Nanos,
    /// Whether the run in which it was found may have been too long for repair.
    pub too_long: bool,
}

/// Check on the reasons of events that one subscriber received on one channel.
#[derive(Debug)]
pub struct LossReasonCheck {
    config: ReceiverConfig,
    slots: u64,
    epoch: Epoch,
    /// Earlier epochs that the current one continues.
    before: BTreeSet<Epoch>,
    next: Sequence,
    heard: Sequence,
    /// Jumps by their last sequence.
    jumps: BTreeMap<u64, Jump>,
    /// Runs that may have been too long for repair.
    too_long: Runs,
    /// The highest `oldest` that a publisher reported, by epoch.
    floors: BTreeMap<Epoch, Sequence>,
    too_slow: Runs,
    malformed: Runs,
    /// Last sequence that was given up because the publisher was dead.
    dead_to: Sequence,
    /// Time of the publisher's last sign of liveness, and whether the current input carries one.
    word_at: Nanos,
    word: bool,
    leaving: bool,
    /// Events emitted during the current input.
    losses: Vec<(Epoch, Loss)>,
    recovered: Vec<(Sequence, Nanos)>,
    left: Option<Epoch>,
    dead: bool,
}

impl LossReasonCheck {
    /// Returns a check without events, for a publisher with this many slots.
    #[must_use]
    pub fn new(config: ReceiverConfig, slots: u64) -> Self {
        Self {
            config,
            slots,
            epoch: Epoch::NONE,
            before: BTreeSet::new(),
            next: Sequence::NONE,
            heard: Sequence::NONE,
            jumps: BTreeMap::new(),
            too_long: Runs::default(),
            floors: BTreeMap::new(),
            too_slow: Runs::default(),
            malformed: Runs::default(),
            dead_to: Sequence::NONE,
            word_at: Nanos::ZERO,
            word: false,
            leaving: false,
            losses: Vec::new(),
            recovered: Vec::new(),
            left: None,
            dead: false,
        }
    }

    /// Records a control message that is about to be passed to the core; `of` is the channel in its
    /// header.
    pub fn message(&mut self, channel: ChannelId, of: ChannelId, message: &Message<'_>) {
        self.word |= channel == of;
        match message {
            Message::Welcome(welcome) => {
                for offer in welcome.channels.iter().filter(|o| o.channel == channel) {
                    self.floor(offer.epoch, offer.oldest_of_all().0);
                }
            }
            Message::Refused(refused) if channel == of => match refused.reason {
                RefusalReason::Window => self.floor(refused.epoch, refused.oldest),
                RefusalReason::TooSlow if refused.epoch == self.epoch => {
                    self.too_slow.add(refused.range);
                }
                RefusalReason::Malformed if refused.epoch == self.epoch => {
                    self.malformed.add(refused.range);
                }
                _ => {}
            },
            _ => {}
        }
    }

    /// Records a READ of the control page, which may show that the publisher is alive.
    pub const fn page(&mut self) {
        self.word = true;
    }

    /// Records that a slot that was READ holds a later sequence, so that the ring begins at
    /// `oldest`.
    pub fn lapped(&mut self, epoch: Epoch, oldest: Sequence) {
        self.floor(epoch, oldest);
    }

    /// Records a datagram of the followed epoch that is about to be passed to the core.
    pub fn datagram(&mut self, sequence: Sequence) {
        let jump = sequence.since(self.heard.max(self.next));
        self.word |= jump <= self.slots.min(self.config.burst_max.into());
    }

    /// Records that the core follows another epoch, which continues the one before behind `last`.
    pub fn continued(&mut self, epoch: Epoch, last: Sequence) {
        if let Some(floor) = self.floors.get(&self.epoch).copied() {
            self.floor(epoch, floor);
        }
        self.before.insert(self.epoch);
        self.epoch = epoch;
        if self.heard > last {
            // Missing sequences up to `last` keep their detection time.
            let found = self.jumps.range(last.0..).next().map(|(_, jump)| *jump);
            self.jumps.split_off(&last.next().0);
            self.jumps.extend(found.map(|jump| (last.0, jump)));
            self.heard = last;
        }
        self.dead_to = self.dead_to.min(last);
    }

    /// Records that the application leaves, so that open gaps are lost.
    pub const fn leaves(&mut self) {
        self.leaving = true;
    }

    /// Records an item that the application received.
    pub fn reported(&mut self, item: &Item<'_>) {
        let Item::Event(position, event) = item else {
            return;
        };
        match event {
            Event::Lost(loss) => self.losses.push((position.epoch, *loss)),
            Event::GapRecovered { first, took, .. } => self.recovered.push((*first, *took)),
            Event::EpochChanged { from, .. } => self.left = Some(*from),
            Event::PublisherDead => self.dead = true,
            _ => {}
        }
    }

    /// Checks the events of an input afterwards. The core follows `epoch`, `next` is the next
    /// sequence to deliver, and `heard` the last known one.
    ///
    /// # Errors
    /// An event without a reason.
    pub fn settle(
        &mut self,
        epoch: Epoch,
        (next, heard): (Sequence, Sequence),
        now: Nanos,
    ) -> Checked {
        let losses = std::mem::take(&mut self.losses);
        if epoch != self.epoch {
            self.all_had_a_reason(&losses, now)?;
            (self.epoch, self.heard) = (epoch, Sequence::NONE);
            self.before.clear();
            self.dead_to = Sequence::NONE;
            self.jumps.clear();
            self.floors.retain(|of, _| *of >= epoch);
            (self.too_slow, self.malformed) = (Runs::default(), Runs::default());
            self.too_long = Runs::default();
        }
        if heard > self.heard || self.jumps.is_empty() {
            self.jumped(heard, now);
        }
        self.next = next;
        if std::mem::take(&mut self.dead) {
            let silent = now.since(self.word_at);
            if silent < Nanos::from_us(self.config.dead_us.into()) {
                return Err(format!("dead, {silent} after the last word"));
            }
            self.dead_to = heard;
        }
        self.all_had_a_reason(&losses, now)?;
        for (first, took) in std::mem::take(&mut self.recovered) {
            self.was_missing(first, now, took)?;
        }
        self.left = None;
        if std::mem::take(&mut self.word) {
            self.word_at = now;
        }
        Ok(())
    }

    fn span(&self) -> u64 {
        u64::from(self.config.window_slots).next_power_of_two()
    }

    fn floor(&mut self, epoch: Epoch, oldest: Sequence) {
        let floor = self.floors.entry(epoch).or_insert(oldest);
        *floor = oldest.max(*floor);
    }

    fn jumped(&mut self, heard: Sequence, now: Nanos) {
        let before = self.jumps.last_key_value().map(|(_, jump)| *jump);
        let within = self.heard.next() < self.next.plus(self.span());
        let joins = before.filter(|b| !within || b.at == now);
        let run_from = joins.map_or(self.heard.next(), |b| b.run_from);
        let run = SequenceRange::new(run_from, heard).filter(|_| before.is_some());
        if let Some(run) = run.filter(|run| run.len() > self.config.burst_max.into()) {
            self.too_long.add(run);
        }
        let jump = Jump {
            at: now,
            counts_from: before.filter(|_| !within).map_or(now, |b| b.counts_from),
            len: before.map_or(0, |_| heard.since(self.heard)),
            run_from,
        };
        self.jumps.insert(heard.0, jump);
        if self.jumps.len() > JUMPS_MAX {
            self.jumps.pop_first();
        }
        self.heard = heard;
    }

    /// Checks the losses of the followed epoch.
    fn all_had_a_reason(&self, losses: &[(Epoch, Loss)], now: Nanos) -> Checked {
        let is_here = |epoch| epoch == self.epoch || self.before.contains(&epoch);
        let here = losses.iter().filter(|(epoch, _)| is_here(*epoch));
        for (_, loss) in here {
            let range = loss.sequences;
            // Adjacent losses are reported as one, with the cause of the first.
            if !self.is_cause(range.first, loss.cause, now) {
                let known = self.known(range.first);
                return Err(format!("{loss} without a reason; {known}"));
            }
            let floor = self.floors.get(&self.epoch).copied();
            let from = floor.map_or(range.first, |floor| floor.max(range.first));
            let Some(rest) = SequenceRange::new(from, range.last) else {
                continue;
            };
            let mut rest = rest.iter().take(LOOKED_AT_MAX);
            if let Some(without) = rest.find(|s| *s > range.first && !self.may_be_lost(*s, now)) {
                let known = self.known(without);
                return Err(format!("{loss}, {without} without a reason; {known}"));
            }
        }
        Ok(())
    }

    /// Returns whether this sequence may be lost at this time, for any cause.
    #[must_use]
    pub fn may_be_lost(&self, sequence: Sequence, now: Nanos) -> bool {
        self.left == Some(self.epoch)
            || LossCause::ALL
                .iter()
                // This check knows nothing about these causes.
                .filter(|c| !matches!(c, LossCause::Fenced | LossCause::Unreadable))
                .any(|cause| self.is_cause(sequence, *cause, now))
    }

    /// Returns whether this sequence may be lost for this cause at this time.
    fn is_cause(&self, sequence: Sequence, cause: LossCause, now: Nanos) -> bool {
        let found = self.jumps.range(sequence.0..).next().map(|(_, jump)| *jump);
        let delivery = self.config.delivery;
        let overdue = |wait| found.is_some_and(|jump| now >= jump.counts_from.after(wait));
        match cause {
            LossCause::Window => {
                let gone = self.floors.get(&self.epoch).is_some_and(|f| sequence < *f);
                let last = self.heard.minus(self.span());
                gone || (delivery == Delivery::Arrival && sequence <= last)
            }
            LossCause::Burst => {
                let big = found.is_some_and(|jump| jump.len > self.config.burst_max.into());
                self.too_slow.has(sequence) || (big && !delivery.waits_for_repair())
            }
            LossCause::Refused => self.malformed.has(sequence),
            LossCause::Deadline => match delivery {
                Delivery::OrderedWithin(deadline) => self.config.repair && overdue(deadline),
                _ => false,
            },
            LossCause::RepairOff => {
                let wait = Nanos::from_us(self.config.unrepaired_wait_us.into());
                !self.config.repair && overdue(wait)
            }
            LossCause::PublisherDead => self.leaving || sequence <= self.dead_to,
            LossCause::Left => self.leaving,
            LossCause::Epoch => self.left == Some(self.epoch),
            _ => true,
        }
    }

    /// Checks that a recovered run began where a gap began, and took the reported time.
    fn was_missing(&self, first: Sequence, now: Nanos, took: Nanos) -> Checked {
        let remembered = self.jumps.first_key_value();
        if remembered.is_none_or(|(known, _)| first.0 <= *known) {
            return Ok(());
        }
        let found = self.jumps.range(first.0..).next();
        let begins = self.jumps.contains_key(&first.previous().0);
        if begins && found.is_some_and(|(_, jump)| jump.at.after(took) == now) {
            return Ok(());
        }
        let known = self.known(first);
        Err(format!(
            "a run from {first} on recovered after {took}, which was not missing; {known}"
        ))
    }

    /// Returns the time at which this sequence was found missing, if it was within the window.
    #[must_use]
    pub fn found(&self, sequence: Sequence) -> Option<Nanos> {
        let (_, jump) = self.jumps.range(sequence.0..).next()?;
        (jump.counts_from == jump.at).then_some(jump.at)
    }

    /// Returns the detection of a missing sequence, if it is known to have been sent.
    #[must_use]
    pub fn known_of(&self, sequence: Sequence) -> Option<Found> {
        let (_, jump) = self.jumps.range(sequence.0..).next()?;
        let too_long = self.too_long.has(sequence);
        Some(Found {
            at: jump.at,
            too_long,
        })
    }

    fn known(&self, sequence: Sequence) -> String {
        let (floors, next, heard) = (&self.floors, self.next, self.heard);
        let found = self.jumps.range(sequence.0..).next();
        format!("floors {floors:?}, next {next}, heard {heard}, found {found:?}")
    }
}

/// Disjoint runs of sequences, by their first sequence.
#[derive(Debug, Default)]
struct Runs(BTreeMap<u64, u64>);

impl Runs {
    fn add(&mut self, range: SequenceRange) {
        let (mut first, mut last) = (range.first.0, range.last.0);
        while let Some((&f, &l)) = (self.0.range(..=last).next_back()).filter(|(_, l)| **l >= first)
        {
            (first, last) = (first.min(f), last.max(l));
            self.0.remove(&f);
        }
        self.0.insert(first, last);
    }

    fn has(&self, sequence: Sequence) -> bool {
        let below = self.0.range(..=sequence.0).next_back();
        below.is_some_and(|(_, last)| *last >= sequence.0)
    }
}

/// Checks messages of a publisher about its rings. A publisher serves all sequences that they hold,
/// except the slots at the old end, which might be overwritten meanwhile.
///
/// # Errors
/// A sequence that the ring holds and that a message declares gone.
pub fn nothing_held_is_refused(feeds: &[Feed], slots: u64, mut frames: &[u8]) -> Checked {
    let gone = |channel, last: Sequence, what: &str| {
        let safe = slots - (slots / 64).max(16).min(slots / 4);
        let feed = feeds.iter().find(|feed| feed.channel == channel);
        match feed {
            Some(feed)
                if feed.core.slot(last).is_some() && feed.core.sealed().since(last) < safe =>
            {
                let sealed = feed.core.sealed();
                Err(format!(
                    "{what} says that {last} is gone, the ring is at {sealed}"
                ))
            }
            _ => Ok(()),
        }
    };
    while let Some((channel, message, taken)) =
        Message::read(frames, BODY_LEN_MAX_TO_SUBSCRIBER).map_err(|e| e.to_string())?
    {
        frames = &frames[taken..];
        match message {
            Message::Refused(refused) => {
                gone(channel, refused.oldest.previous(), "a refusal")?;
                // With planted bugs, copies are torn on purpose, and are refused although the slot
                // is held.
                let torn = cfg!(feature = "planted-bugs");
                if refused.reason == RefusalReason::Window && !torn {
                    gone(channel, refused.range.last, "a refusal (window)")?;
                }
            }
            Message::Welcome(welcome) => {
                for offer in &welcome.channels {
                    gone(
                        offer.channel,
                        offer.oldest_of_all().0.previous(),
                        "a welcome",
                    )?;
                }
            }
            _ => {}
        }
    }
    Ok(())
}
