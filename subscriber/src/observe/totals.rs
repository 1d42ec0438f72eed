//! The counts and the state of a channel at some point of delivery: the content of a checkpoint of the
//! local ring. The difference of two totals is the content between them.

use tickcast_reliability::delivery::StreamState;
use tickcast_reliability::delivery::{Event, Overrun, Place, Position, Via};
use tickcast_reliability::types::{ChannelId, Epoch, RecordNumber, Sequence};
use tickcast_reliability::wire::StreamEvent;

use crate::sync::position_words::{POSITION_WORDS, unpack};

/// Words of one channel in a checkpoint.
pub(crate) const CHECKPOINT_WORDS: usize = 11;

/// The counts and the state of one channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) channel: ChannelId,
    pub(crate) records: u64,
    pub(crate) events: u64,
    lost_records: u64,
    losses_of_unknown_size: u64,
    epoch_changes: u64,
    source_losses: u64,
    fencing_violations: u64,
    /// The position of the last datagram, with the number of the next record.
    pub(crate) place: Place,
    pub(crate) state: StreamState,
}

impl Totals {
    #[inline]
    pub(crate) const fn record(&mut self, position: &Position) {
        self.records(position, 1);
    }

    /// Adds `count` consecutive records, from this position on.
    #[inline]
    pub(crate) const fn records(&mut self, first: &Position, count: u64) {
        self.channel = first.channel;
        self.records += count;
        self.place = first.place();
        self.place.record = first.record.plus(count);
    }

    pub(crate) fn event(&mut self, position: &Position, event: &Event) {
        self.channel = position.channel;
        self.events += 1;
        self.place = position.place();
        self.state.follow(event);
        match event {
            Event::Lost(loss) => {
                // A forged number may claim any loss.
                let records = loss.records.unwrap_or(0);
                self.lost_records = self.lost_records.saturating_add(records);
                self.losses_of_unknown_size += u64::from(loss.records.is_none());
            }
            Event::EpochChanged { to, .. } => {
                self.epoch_changes += 1;
                // The event's position is the end of the previous epoch, so move to the start of the new one.
                self.place = Place {
                    epoch: *to,
                    sequence: Sequence::NONE,
                    record: RecordNumber::FIRST,
                };
            }
            Event::Stream(StreamEvent::SourceLost { .. }) => self.source_losses += 1,
            Event::FencingViolation { .. }
            | Event::RolledBack { .. }
            | Event::LossCorrected { .. } => {
                self.fencing_violations += 1;
            }
            _ => {}
        }
    }

    /// Replaces these totals of a reader by `to`. Returns the difference, if there is any.
    pub(crate) fn catch_up(&mut self, to: Self) -> Option<Overrun> {
        let from = std::mem::replace(self, to);
        let overrun = Overrun {
            from: from.place,
            to: to.place,
            records: to.records - from.records,
            events: to.events - from.events,
            lost_records: to.lost_records - from.lost_records,
            losses_of_unknown_size: to.losses_of_unknown_size - from.losses_of_unknown_size,
            epoch_changes: to.epoch_changes - from.epoch_changes,
            source_losses: to.source_losses - from.source_losses,
            fencing_violations: to.fencing_violations - from.fencing_violations,
            state: to.state,
        };
        (overrun.records > 0 || overrun.events > 0).then_some(overrun)
    }

    pub(crate) fn pack(&self) -> [u64; CHECKPOINT_WORDS] {
        [
            u64::from(self.channel.0) | u64::from(self.state.bits()) << 32,
            self.records,
            self.events,
            self.lost_records,
            self.losses_of_unknown_size,
            self.epoch_changes,
            self.source_losses,
            self.fencing_violations,
            self.place.epoch.0,
            self.place.sequence.0,
            self.place.record.0,
        ]
    }

    pub(crate) fn unpack(words: &[u64; CHECKPOINT_WORDS]) -> Self {
        let [
            channel,
            records,
            events,
            lost_records,
            losses_of_unknown_size,
            epoch_changes,
            source_losses,
            fencing_violations,
            epoch,
            sequence,
            record,
        ] = *words;
        Self {
            channel: ChannelId(channel as u16),
            records,
            events,
            lost_records,
            losses_of_unknown_size,
            epoch_changes,
            source_losses,
            fencing_violations,
            place: Place {
                epoch: Epoch(epoch),
                sequence: Sequence(sequence),
                record: RecordNumber(record),
            },
            state: StreamState::from_bits((channel >> 32) as u32),
        }
    }
}

/// Returns the position of an event at the point of these totals.
pub(crate) fn position_at(totals: &Totals) -> Position {
    let mut words = [0; POSITION_WORDS];
    words[0] = totals.channel.0.into();
    let mut position = unpack(&words);
    position.via = Via::Repair;
    position.epoch = totals.place.epoch;
    position.sequence = totals.place.sequence;
    position.record = totals.place.record;
    position
}
