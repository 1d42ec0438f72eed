//! The account of what was delivered: output and digests during delivery, and losses to the record.

use std::collections::BTreeMap;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use serde_json::json;
use tickcast_subscriber::{ChannelId, Epoch, LossCause, RecordNumber, Sequence, SequenceRange};
use tickcast_subscriber::{Event, Item, Position, StreamEvent, Subscriber, record::RecordRef};

use super::event_lines::EventLines;
use super::instruments::Instruments;
use super::{Args, Format, print};
use tickcast_tools::exit::ToolError;
use tickcast_tools::support::digest::Digest;
use tickcast_tools::support::output::Output;
use tickcast_tools::support::table::{rate, thousands};

/// A run of sequences that was declared lost.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct LostRange {
    pub(crate) channel: ChannelId,
    pub(crate) epoch: Epoch,
    pub(crate) first: Sequence,
    /// The last sequence; null: up to the end of the epoch.
    pub(crate) last: Option<Sequence>,
    /// Number of records; null if unknown.
    pub(crate) records: Option<u64>,
    pub(crate) cause: LossCause,
}

/// The account of one session.
pub(super) struct Account {
    format: Format,
    every: std::time::Duration,
    quiet: bool,
    digests: bool,
    records_max: u64,
    pub(super) records: u64,
    pub(super) channels: Vec<ChannelAccount>,
    pub(super) events: BTreeMap<&'static str, u64>,
    pub(super) lost: Vec<LostRange>,
    pub(super) lost_unlisted: u64,
    instruments: Instruments,
    source_lost: bool,
    /// Whether another process sends different datagrams under the publisher's numbers.
    fenced: bool,
    dead: bool,
    output: Output,
    lines: EventLines,
    /// The first error of the output.
    failed: Option<ToolError>,
    shown_at: Instant,
    shown_records: u64,
}

/// The account of one channel.
pub(super) struct ChannelAccount {
    pub(super) channel: ChannelId,
    pub(super) records: u64,
    pub(super) first_record: RecordNumber,
    pub(super) last_record: RecordNumber,
    pub(super) digest: Option<Digest>,
}

/// Maximum number of losses kept; further ones are only counted.
const LOST_MAX: usize = 1 << 18;

impl Account {
    pub(super) fn new(args: &Args) -> Self {
        Self {
            format: args.format,
            every: args.every,
            quiet: args.quiet,
            digests: args.digest,
            records_max: args.records.unwrap_or(u64::MAX),
            records: 0,
            channels: Vec::new(),
            events: BTreeMap::new(),
            lost: Vec::new(),
            lost_unlisted: 0,
            instruments: Instruments::default(),
            source_lost: false,
            fenced: false,
            dead: false,
            output: Output::stdout(),
            lines: EventLines::new(),
            failed: None,
            shown_at: Instant::now(),
            shown_records: 0,
        }
    }

    /// Adds one item.
    pub(super) fn take(&mut self, item: &Item<'_>) {
        match item {
            Item::Record(position, record) => self.record(position, *record),
            Item::Event(position, event) => self.event(position, event),
        }
    }

    fn record(&mut self, position: &Position, record: RecordRef<'_>) {
        if self.is_full() {
            return;
        }
        self.records += 1;
        self.instruments.learn(position.channel, record);
        let channel = self.channel(position);
        channel.records += 1;
        channel.last_record = position.record;
        if let Some(digest) = &mut channel.digest {
            digest.add(record);
        }
        let printed = match self.format {
            Format::Text => self.output.line(print::Text(position, record)),
            Format::Json => self.output.json(print::json(position, record)),
            Format::Count | Format::CountJson => return,
        };
        self.keep_first(printed);
    }

    fn channel(&mut self, position: &Position) -> &mut ChannelAccount {
        let known = self
            .channels
            .iter()
            .position(|c| c.channel == position.channel);
        let at = known.unwrap_or_else(|| {
            self.channels.push(ChannelAccount {
                channel: position.channel,
                records: 0,
                first_record: position.record,
                last_record: position.record,
                digest: self.digests.then(Digest::default),
            });
            self.channels.len() - 1
        });
        &mut self.channels[at]
    }

    fn event(&mut self, position: &Position, event: &Event) {
        *self.events.entry(kind(event)).or_default() += 1;
        match event {
            Event::Lost(loss) if self.lost.len() < LOST_MAX => self.lost.push(LostRange {
                channel: position.channel,
                epoch: position.epoch,
                first: loss.sequences.first,
                last: (!loss.sequences.is_open()).then_some(loss.sequences.last),
                records: loss.records,
                cause: loss.cause,
            }),
            Event::Lost(_) => self.lost_unlisted += 1,
            Event::Stream(StreamEvent::SourceLost { .. }) => self.source_lost = true,
            Event::LossCorrected {
                sequences, records, ..
            } => {
                self.fenced = true;
                self.correct(position, *sequences, *records);
            }
            Event::RolledBack { after, .. } => {
                self.fenced = true;
                let place = (position.channel, position.epoch);
                self.lost
                    .retain(|it| (it.channel, it.epoch) != place || it.first <= *after);
            }
            Event::FencingViolation { .. } => self.fenced = true,
            Event::PublisherDead => self.dead = true,
            Event::Recovered | Event::RepairLinkUp => self.dead = false,
            Event::GapRecovered { .. } if self.quiet => return,
            _ => {}
        }
        let (channel, sequence) = (position.channel, position.sequence);
        if self.lines.allow(kind(event)) {
            let concerned = self.instruments.of(channel, event);
            eprintln!("channel {channel} after {sequence}: {event}{concerned}");
        }
        if self.format == Format::Json {
            let line = print::event(position, kind(event), event);
            let printed = self.output.json(line);
            self.keep_first(printed);
        }
    }

    /// Corrects the number of records of a loss that is listed.
    fn correct(&mut self, position: &Position, sequences: SequenceRange, records: u64) {
        let place = (position.channel, position.epoch);
        let range = (sequences.first, Some(sequences.last));
        let is_it =
            |it: &&mut LostRange| (it.channel, it.epoch) == place && (it.first, it.last) == range;
        // The newest one, because a rollback reports a loss anew.
        if let Some(loss) = self.lost.iter_mut().rev().find(is_it) {
            loss.records = Some(records);
        }
    }

    /// Reports the events without a line of their own.
    fn sum_events(&mut self, is_end: bool) {
        for (kind, events) in self.lines.take_sums(is_end) {
            eprintln!("{events} more events of kind {kind} came too fast for a line each");
        }
    }

    fn keep_first(&mut self, result: Result<(), ToolError>) {
        if let Err(error) = result {
            self.failed.get_or_insert(error);
        }
    }

    /// Prints the counts if they are due, and flushes waiting lines.
    pub(super) fn show(&mut self, joined: bool, subscriber: &Subscriber) -> Result<(), ToolError> {
        self.sum_events(false);
        if let Some(failed) = self.failed.take() {
            return Err(failed);
        }
        let elapsed = self.shown_at.elapsed();
        match self.format {
            Format::Text | Format::Json => return self.output.flush(),
            Format::Count | Format::CountJson if elapsed < self.every => return Ok(()),
            Format::Count => {
                let rate = rate(self.records - self.shown_records, elapsed) as u64;
                let (records, rate) = (thousands(self.records), thousands(rate));
                self.output
                    .line(format_args!("{records} records, {rate} a second"))?;
            }
            Format::CountJson => {
                let mut counts = [0; 7];
                for channel in subscriber.channels() {
                    let counters = &channel.counters;
                    for (sum, counter) in counts.iter_mut().zip([
                        &counters.missing_datagrams,
                        &counters.missing_recovered,
                        &counters.missing_open,
                        &counters.lost_records,
                        &counters.nack_links_up,
                        &counters.read_links_up,
                        &counters.line_down,
                    ]) {
                        *sum += counter.get();
                    }
                }
                let [
                    missing_datagrams,
                    missing_recovered,
                    missing_open,
                    lost_records,
                    nack_links_up,
                    read_links_up,
                    line_down,
                ] = counts;
                self.output.json(json!({
                    "joined": joined,
                    "delivered_records": self.records,
                    "missing_datagrams": missing_datagrams,
                    "missing_recovered": missing_recovered,
                    "missing_open": missing_open,
                    "lost_records": lost_records,
                    "nack_links_up": nack_links_up,
                    "read_links_up": read_links_up,
                    "line_down": line_down,
                }))?;
            }
        }
        self.shown_at = Instant::now();
        self.shown_records = self.records;
        self.output.flush()
    }

    /// Flushes the last lines, and releases stdout.
    pub(super) fn finish(&mut self) -> Result<(), ToolError> {
        self.sum_events(true);
        self.failed.take().map_or(Ok(()), Err)?;
        self.output.flush()
    }

    /// Returns whether digests are taken.
    pub(super) const fn digests(&self) -> bool {
        self.digests
    }

    /// Returns whether the requested number of records was delivered.
    pub(super) const fn is_full(&self) -> bool {
        self.records >= self.records_max
    }

    /// Returns whether a channel has ever been joined.
    pub(super) fn has_joined(&self) -> bool {
        self.records > 0 || self.events.contains_key("joined")
    }

    /// Returns whether anything was lost, in transit or at the source, or can't be trusted.
    pub(super) const fn found_anything(&self) -> bool {
        self.source_lost || self.fenced || self.lost_unlisted > 0 || !self.lost.is_empty()
    }

    pub(super) const fn publisher_dead(&self) -> bool {
        self.dead
    }
}

/// Returns the name under which an event is counted.
const fn kind(event: &Event) -> &'static str {
    match event {
        Event::Joined { .. } => "joined",
        Event::Live => "live",
        Event::GapRecovered { .. } => "gap_recovered",
        Event::Lost(_) => "lost",
        Event::Stream(_) => "stream",
        Event::EpochChanged { .. } => "epoch_changed",
        Event::EpochContinued { .. } => "epoch_continued",
        Event::Stale => "stale",
        Event::Recovered => "recovered",
        Event::PublisherDead => "publisher_dead",
        Event::LineDown(_) => "line_down",
        Event::LineUp(_) => "line_up",
        Event::RepairLinkUp => "repair_link_up",
        Event::RepairLinkDown(_) => "repair_link_down",
        Event::MulticastLost => "multicast_lost",
        Event::MulticastRestored => "multicast_restored",
        Event::OtherPublisher { .. } => "other_publisher",
        Event::FencingViolation { .. } => "fencing_violation",
        Event::RolledBack { .. } => "rolled_back",
        Event::LossCorrected { .. } => "loss_corrected",
        Event::EndOfSession => "end_of_session",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use tickcast_subscriber::{Epoch, Loss, Nanos, Sequence, SourceId, SourcePosition};
    use tickcast_subscriber::{Quality, Via};

    use super::*;
    use crate::cli::{Cli, Command};

    fn account() -> Account {
        let typed = ["tickcast", "listen", "--connect", "a:1", "--channel", "x"];
        let Command::Listen(args) = Cli::parse_from(typed).command else {
            panic!("it is listen")
        };
        Account::new(&args)
    }

    fn give(account: &mut Account, epoch: u64, event: &Event) {
        let position = Position {
            channel: ChannelId(1),
            epoch: Epoch(epoch),
            sequence: Sequence(7),
            record: RecordNumber(7),
            via: Via::Repair,
            quality: Quality::default(),
            source: SourceId(1),
            source_position: SourcePosition::default(),
            sent_at: Nanos::ZERO,
            received_at: Nanos::ZERO,
            missing_for: Nanos::ZERO,
        };
        account.take(&Item::Event(&position, event));
    }

    #[test]
    fn delivered_fencing_violation_is_a_finding() {
        let mut account = account();
        assert!(!account.found_anything());
        let event = Event::FencingViolation {
            sequence: Sequence(7),
            wrong_one_delivered: true,
        };
        give(&mut account, 2, &event);
        assert!(account.found_anything());
    }

    #[test]
    fn listed_losses_are_those_that_stand() {
        let mut account = account();
        let range = |first, last| SequenceRange::new(Sequence(first), Sequence(last)).unwrap();
        // The sequences of the epoch before were higher.
        for (epoch, sequences, records) in [
            (1, range(8, 8), 7),
            (2, range(3, 4), 9),
            (2, range(6, 6), 5),
        ] {
            let (records, cause) = (Some(records), LossCause::Deadline);
            let loss = Loss {
                sequences,
                records,
                cause,
            };
            give(&mut account, epoch, &Event::Lost(loss));
        }
        let (sequences, reported, records) = (range(3, 4), 9, 2);
        let corrected = Event::LossCorrected {
            sequences,
            reported,
            records,
        };
        give(&mut account, 2, &corrected);
        let after = Sequence(5);
        give(&mut account, 2, &Event::RolledBack { after, records: 0 });
        let lost: Vec<_> = (account.lost.iter())
            .map(|it| (it.first.0, it.records))
            .collect();
        assert_eq!(lost, [(8, Some(7)), (3, Some(2))]);
        assert!(account.found_anything());
    }
}
