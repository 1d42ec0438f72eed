//! Checks on one application's stream while an impostor multicasts datagrams whose CRC is right: the
//! application gets every record as it was published, or a report of its loss, and never both.
//!
//! Without a key, a receiver that never sees the genuine copy may keep a forged datagram that no STATUS
//! contradicts. The checks tolerate exactly that.

use std::collections::{BTreeMap, BTreeSet};

use tickcast_reliability::delivery::{Event, Item, Loss, LossCause, Position};
use tickcast_reliability::types::{ChannelId, ReceiverCounters, Sequence};
use tickcast_reliability::wire::{Kind, StreamEvent};

use crate::faults::forged::FORGED_MESSAGES;
use crate::truth::{EpochTruth, Sealed, Truth};

type Checked = Result<(), String>;

/// The fate of one sequence, as the application knows it.
#[derive(Clone, Copy, Debug, Default)]
struct Account {
    /// Records delivered as they were published.
    genuine: u64,
    /// Forged records delivered.
    forged: u64,
    /// Whether the event was delivered as it was published.
    event: bool,
    /// Whether a forged event was delivered.
    forged_event: bool,
    lost: bool,
    /// Whether the application was alarmed that the sequence had two contents.
    alarmed: bool,
}

impl Account {
    const fn is_forged(&self) -> bool {
        self.forged > 0 || self.forged_event
    }

    const fn is_genuine(&self) -> bool {
        self.genuine > 0 || self.event
    }
}

/// Check on one subscriber's stream of one channel.
#[derive(Debug)]
pub struct ImpostorCheck {
    channel: ChannelId,
    joined_after: Option<Sequence>,
    accounts: BTreeMap<u64, Account>,
    /// Sequences whose genuine or forged copies reached the core, on any path.
    genuine_heard: BTreeSet<u64>,
    forged_heard: BTreeSet<u64>,
    /// Sequences whose genuine copy came over a connection, which decides.
    decided: BTreeSet<u64>,
    /// Forged sequences delivered since the last STATUS; and those that a STATUS with a proof must have
    /// compared.
    unconfirmed: BTreeSet<u64>,
    compared: BTreeSet<u64>,
    /// Number of proofs so far.
    proofs: u64,
    ended: bool,
    /// Losses of the current input that the clock caused.
    given_up: Vec<Loss>,
    /// The highest sequence that the core knows.
    heard: Sequence,
    /// The highest sequence heard of while nobody could confirm any.
    unchecked: Sequence,
    /// Losses by their first sequence, with their records as reported last.
    losses: BTreeMap<u64, Loss>,
    /// Forged sequences that were delivered.
    pub forged: u64,
    /// Number of rollbacks.
    pub rollbacks: u64,
    /// Genuine records that became void with them.
    pub genuine_void: u64,
}

/// Sequences that no check can decide.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unproven {
    /// Those of which the application knows only that they had two contents.
    pub undecided: u64,
    /// Forged ones that nothing contradicted.
    pub unseen: u64,
}

impl ImpostorCheck {
    /// Returns a check without any item.
    #[must_use]
    pub const fn new(channel: ChannelId) -> Self {
        Self {
            channel,
            joined_after: None,
            accounts: BTreeMap::new(),
            genuine_heard: BTreeSet::new(),
            forged_heard: BTreeSet::new(),
            decided: BTreeSet::new(),
            unconfirmed: BTreeSet::new(),
            compared: BTreeSet::new(),
            proofs: 0,
            ended: false,
            given_up: Vec::new(),
            heard: Sequence::NONE,
            unchecked: Sequence::NONE,
            losses: BTreeMap::new(),
            forged: 0,
            rollbacks: 0,
            genuine_void: 0,
        }
    }

    /// Returns whether the end of the session was delivered.
    #[must_use]
    pub const fn ended(&self) -> bool {
        self.ended
    }

    /// Records that a copy of a sequence reached the core: over a connection, where it `decides`.
    pub fn hears(&mut self, sequence: Sequence, forged: bool, decides: bool) {
        if decides {
            self.decided.insert(sequence.0);
        }
        match forged {
            true => self.forged_heard.insert(sequence.0),
            false => self.genuine_heard.insert(sequence.0),
        };
    }

    /// Records that a STATUS came, after which the core counts this many proofs of an impostor. A proof
    /// demands that everything forged since the STATUS before is found. Only a world whose ring keeps
    /// everything can demand that.
    pub fn hears_status(&mut self, proofs: u64) {
        let forged = std::mem::take(&mut self.unconfirmed);
        if proofs > self.proofs {
            self.compared.extend(forged);
        }
        self.proofs = proofs;
    }

    /// Checks the next item that the application received.
    ///
    /// # Errors
    /// A record or an event a second time, or both delivered and lost.
    pub fn take(&mut self, truth: &Truth, item: &Item<'_>) -> Checked {
        match item {
            Item::Record(position, record) => {
                let bytes: &[u8] = record.as_ref();
                self.record(truth, position, bytes)
            }
            Item::Event(position, event) => self.event(truth, position, event),
        }
    }

    fn record(&mut self, truth: &Truth, position: &Position, bytes: &[u8]) -> Checked {
        let (sequence, number) = (position.sequence, position.record.0);
        let ring = truth.of(self.channel, position.epoch).first();
        let data = |ring: &EpochTruth| ring.get(sequence).copied();
        let sealed = ring.and_then(data).filter(|it| it.kind == Kind::Data);
        let account = self.accounts.entry(sequence.0).or_default();
        if account.lost {
            return Err(format!(
                "record {number} of {sequence}, which was declared lost"
            ));
        }
        let due = |it: &Sealed| (it.first_record..it.first_record + it.count).contains(&number);
        let is_it = ring.is_some_and(|ring| ring.is_record(number, bytes));
        match sealed.filter(|it| is_it && due(it)) {
            Some(it) if account.is_forged() || number != it.first_record + account.genuine => Err(
                format!("record {number} of {sequence} out of its place: {account:?}"),
            ),
            Some(_) => {
                account.genuine += 1;
                Ok(())
            }
            None if account.is_genuine() => Err(format!(
                "a forged record {number} of {sequence} behind genuine ones"
            )),
            None => {
                self.forged += u64::from(!account.is_forged());
                account.forged += 1;
                self.unconfirmed.insert(sequence.0);
                Ok(())
            }
        }
    }

    fn event(&mut self, truth: &Truth, position: &Position, event: &Event) -> Checked {
        match event {
            Event::Joined { after } => {
                self.joined_after = Some(*after);
                Ok(())
            }
            Event::Stream(event) => self.stream_event(position.sequence, event),
            Event::Lost(loss) => self.lost(truth, position, loss),
            Event::FencingViolation { sequence, .. } => {
                self.accounts.entry(sequence.0).or_default().alarmed = true;
                Ok(())
            }
            Event::RolledBack { after, records } => self.rolled_back(*after, *records),
            Event::LossCorrected {
                sequences,
                reported,
                records,
            } => {
                let loss = self.losses.get_mut(&sequences.first.0);
                match loss.filter(|it| it.sequences == *sequences && it.records == Some(*reported))
                {
                    Some(loss) => loss.records = Some(*records),
                    None => return Err(format!("{event}, which was not reported so")),
                }
                Ok(())
            }
            Event::EndOfSession => {
                let ring = truth.of(self.channel, position.epoch).first();
                if self.ended || !ring.is_some_and(EpochTruth::ended) {
                    return Err("the end, which was not published or reported before".into());
                }
                self.ended = true;
                Ok(())
            }
            Event::EpochChanged { .. } | Event::EpochContinued { .. } => {
                Err(format!("{event}: an impostor opens no epoch"))
            }
            _ => Ok(()),
        }
    }

    fn stream_event(&mut self, sequence: Sequence, event: &StreamEvent) -> Checked {
        let account = self.accounts.entry(sequence.0).or_default();
        if account.lost || account.is_genuine() || account.is_forged() {
            return Err(format!("an event of {sequence}, after {account:?}"));
        }
        if event.source_messages_lost() >= FORGED_MESSAGES {
            (account.forged_event, self.forged) = (true, self.forged + 1);
            self.unconfirmed.insert(sequence.0);
        } else {
            account.event = true;
        }
        Ok(())
    }

    /// Checks after an input that nothing was given up which the publisher may not have sent, unless nobody
    /// could tell. `confirmed`: the newest sequence that the repair path confirmed; `can_confirm`: whether it
    /// can confirm more; `heard`: the highest sequence known.
    ///
    /// # Errors
    /// A sequence that was given up although only multicast claimed it.
    pub fn input_over(
        &mut self,
        confirmed: Sequence,
        can_confirm: bool,
        heard: Sequence,
    ) -> Checked {
        if heard < self.heard {
            // A STATUS voided what lies beyond, so that the core forgot the genuine copies as well.
            self.genuine_heard.split_off(&heard.next().0);
        }
        self.heard = heard;
        if !can_confirm {
            self.unchecked = self.unchecked.max(heard);
        }
        let known = confirmed.max(self.unchecked);
        // Adjacent losses are reported as one, with the cause of the first.
        let mut given_up = std::mem::take(&mut self.given_up).into_iter();
        match given_up.find(|loss| loss.sequences.first > known) {
            Some(loss) => Err(format!(
                "{loss}, but no STATUS confirmed more than {confirmed}"
            )),
            None => Ok(()),
        }
    }

    fn lost(&mut self, truth: &Truth, position: &Position, loss: &Loss) -> Checked {
        let range = loss.sequences;
        self.losses.insert(range.first.0, *loss);
        let last = truth.of(self.channel, position.epoch).first();
        let last = last.map_or(Sequence::NONE, EpochTruth::last);
        if matches!(loss.cause, LossCause::Deadline | LossCause::RepairOff) {
            self.given_up.push(*loss);
        }
        if range.last > last.plus(1 << 20) {
            return Err(format!("{loss}, but {last} was the last published"));
        }
        for sequence in range.iter() {
            let account = self.accounts.entry(sequence.0).or_default();
            let fenced = loss.cause == LossCause::Fenced;
            if account.lost || account.is_genuine() || (account.is_forged() && !fenced) {
                return Err(format!("{loss}, but {sequence} has {account:?}"));
            }
            *account = Account {
                lost: true,
                ..Account::default()
            };
        }
        Ok(())
    }

    /// Checks that everything beyond `after` was an impostor's, which is void from now on.
    fn rolled_back(&mut self, after: Sequence, records: u64) -> Checked {
        let void = self.accounts.split_off(&after.next().0);
        self.unconfirmed.split_off(&after.next().0);
        self.compared.split_off(&after.next().0);
        self.losses.split_off(&after.next().0);
        if let Some((_, loss)) = self.losses.last_key_value()
            && loss.sequences.last > after
        {
            return Err(format!("{loss}, of which a part beyond {after} is void"));
        }
        self.unchecked = self.unchecked.min(after);
        let delivered: u64 = void
            .values()
            .map(|account| account.genuine + account.forged)
            .sum();
        if delivered != records {
            return Err(format!(
                "{records} records beyond {after} are said to be void, {delivered} were delivered"
            ));
        }
        self.rollbacks += 1;
        self.genuine_void += void.values().map(|account| account.genuine).sum::<u64>();
        Ok(())
    }

    /// Checks the account of the whole session at its end. Returns how much of it nobody can decide.
    ///
    /// # Errors
    /// A sequence that was neither delivered nor declared lost, or that an impostor's copy replaced
    /// although the genuine one was heard; or counters that do not balance.
    pub fn settle(
        &self,
        ring: &EpochTruth,
        counters: &ReceiverCounters,
    ) -> Result<Unproven, String> {
        let mut unproven = Unproven::default();
        let Some(after) = self.joined_after else {
            return Ok(unproven);
        };
        let mut sequence = after.next().max(ring.first);
        while sequence <= ring.last() {
            self.settle_one(sequence, ring, &mut unproven)?;
            sequence = sequence.next();
        }
        let is_held =
            |account: &Account| account.lost || account.is_forged() || account.is_genuine();
        let mut beyond = self.accounts.range(ring.last().0 + 1..);
        if let Some((beyond, account)) = beyond.find(|(_, account)| is_held(account)) {
            return Err(format!(
                "{beyond} was never published, and the application still holds {account:?}"
            ));
        }
        if unproven != Unproven::default() {
            return Ok(unproven);
        }
        let messages = counters.source_messages_lost.get();
        if messages >= FORGED_MESSAGES {
            return Err(format!("{messages} source messages are counted as lost"));
        }
        let (delivered, fenced) = (
            counters.delivered_records.get(),
            counters.fenced_records.get(),
        );
        self.settle_losses(ring)?;
        let all = ring.next_record() - ring.record_at(after.next());
        let balance = (delivered + counters.lost_records.get()).wrapping_sub(fenced);
        let is_known = self.losses.values().all(|loss| loss.records.is_some());
        if is_known && balance != all {
            let lost = counters.lost_records.get();
            return Err(format!(
                "{delivered} records delivered, {fenced} fenced, {lost} lost: {all} were published"
            ));
        }
        Ok(unproven)
    }

    /// Checks the number of records of each run of losses. Of adjacent ones, only the sum is known.
    fn settle_losses(&self, ring: &EpochTruth) -> Checked {
        let losses: Vec<_> = self.losses.values().collect();
        let is_one_run = |a: &&Loss, b: &&Loss| a.sequences.last.next() == b.sequences.first;
        for run in losses.chunk_by(is_one_run) {
            let reported: Option<u64> = run.iter().map(|loss| loss.records).sum();
            let sequences = run.iter().flat_map(|loss| loss.sequences.iter());
            let records: u64 = sequences
                .filter_map(|it| ring.get(it))
                .map(|it| it.count)
                .sum();
            if reported.is_some_and(|reported| reported != records) {
                let run: Vec<_> = run.iter().map(ToString::to_string).collect();
                let run = run.join(", ");
                return Err(format!("{run}, but {records} records were published there"));
            }
        }
        Ok(())
    }

    fn settle_one(
        &self,
        sequence: Sequence,
        ring: &EpochTruth,
        unproven: &mut Unproven,
    ) -> Checked {
        let Some(sealed) = ring.get(sequence) else {
            return Ok(());
        };
        let account = self.accounts.get(&sequence.0).copied().unwrap_or_default();
        let whole = match sealed.kind {
            Kind::Data => account.genuine == sealed.count,
            Kind::Event => account.event,
            Kind::End | Kind::Heartbeat => !account.is_forged(),
        };
        if account.lost || whole {
            return Ok(());
        }
        if account.alarmed && !self.decided.contains(&sequence.0) {
            // The publisher's copy was gone before it could decide.
            unproven.undecided += 1;
            return Ok(());
        }
        let contradicted =
            self.genuine_heard.contains(&sequence.0) || self.compared.contains(&sequence.0);
        let forged = account.is_forged() || self.forged_heard.contains(&sequence.0);
        if forged && !contradicted {
            unproven.unseen += 1;
            return Ok(());
        }
        Err(match account.is_forged() {
            true => format!("{sequence} is an impostor's, and was never reported"),
            false => format!("{sequence} was neither delivered nor declared lost: {account:?}"),
        })
    }
}
