//! Latency, stage by stage, in HdrHistograms: from the exchange's event to the publisher, from
//! there to the sealed datagram, from there to the closure; and how long what was missing took to
//! come.
//!
//! Stamps of different hosts are only as good as their clocks; a stage that would be negative
//! counts as zero and is counted apart.

use hdrhistogram::Histogram;
use tickcast_reliability::delivery::{Item, Position};
use tickcast_reliability::record::{
    ImbalanceMsg, InstrumentDefMsg, MboMsg, Mbp1Msg, RecordRef, StatMsg, StatusMsg, TradeMsg,
    UNDEF_TIMESTAMP,
};
use tickcast_reliability::units::{ChannelId, Nanos, Sequence};

/// From where to where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The exchange's event until the publisher received it.
    EventToReceived,
    /// Received by the publisher until sealed.
    ReceivedToSealed,
    /// Sealed until handed to the closure.
    SealedToDelivered,
    /// Found missing until it came.
    Repair,
}

/// The histograms of one channel, in nanoseconds.
#[derive(Clone, Debug)]
pub struct ChannelLatency {
    stages: [Histogram<u64>; 4],
    /// Samples that were negative because clocks disagree; counted as zero.
    pub clock_skewed: u64,
}

/// One nanosecond to one hour at three digits; what is longer counts as an hour.
const HIGHEST_NS: u64 = 3_600_000_000_000;

impl Default for ChannelLatency {
    fn default() -> Self {
        // Of full size from the start: nothing grows in the middle of a session.
        let empty = || {
            Histogram::new_with_bounds(1, HIGHEST_NS, 3).unwrap_or_else(|_| {
                // invariant: these bounds and three digits are within what the crate allows.
                unreachable!("one nanosecond to one hour at three digits is allowed")
            })
        };
        Self {
            stages: [empty(), empty(), empty(), empty()],
            clock_skewed: 0,
        }
    }
}

impl ChannelLatency {
    /// The histogram of a stage.
    #[must_use]
    pub const fn stage(&self, stage: Stage) -> &Histogram<u64> {
        &self.stages[stage as usize]
    }

    fn record(&mut self, stage: Stage, from: u64, to: u64) {
        self.clock_skewed += u64::from(to < from);
        let span = to.saturating_sub(from).min(HIGHEST_NS);
        self.stages[stage as usize].saturating_record(span);
    }

    fn record_span(&mut self, stage: Stage, span: Nanos) {
        self.stages[stage as usize].saturating_record(span.0.min(HIGHEST_NS));
    }
}

/// Measures what passes, for all channels of a subscriber.
pub(crate) struct Meter {
    channels: Vec<(ChannelId, ChannelLatency)>,
    /// The datagram whose delivery time is `delivered_at`: one clock read serves all its records.
    current: (ChannelId, Sequence),
    delivered_at: Nanos,
}

impl Meter {
    pub(crate) const fn new() -> Self {
        Self {
            channels: Vec::new(),
            current: (ChannelId(0), Sequence::NONE),
            delivered_at: Nanos::ZERO,
        }
    }

    pub(crate) fn of(&self, channel: ChannelId) -> Option<&ChannelLatency> {
        self.channels
            .iter()
            .find(|(id, _)| *id == channel)
            .map(|(_, latency)| latency)
    }

    /// A channel's histograms; made when its first record comes.
    fn of_mut(&mut self, channel: ChannelId) -> &mut ChannelLatency {
        let at = self
            .channels
            .iter()
            .position(|(id, _)| *id == channel)
            .unwrap_or_else(|| {
                self.channels.push((channel, ChannelLatency::default()));
                self.channels.len() - 1
            });
        &mut self.channels[at].1
    }

    /// Measures an item on its way to the closure; `utc` is only called once per datagram.
    #[inline]
    pub(crate) fn pass(&mut self, item: &Item<'_>, utc: impl FnOnce() -> Nanos) {
        let Item::Record(position, record) = item else {
            return;
        };
        let fresh = self.current != (position.channel, position.sequence);
        if fresh {
            self.current = (position.channel, position.sequence);
            self.delivered_at = utc();
        }
        let delivered_at = self.delivered_at;
        let latency = self.of_mut(position.channel);
        if fresh && position.missing_for != Nanos::ZERO {
            latency.record_span(Stage::Repair, position.missing_for);
        }
        latency.measure(position, *record, delivered_at);
    }
}

impl ChannelLatency {
    #[inline]
    fn measure(&mut self, position: &Position, record: RecordRef<'_>, delivered_at: Nanos) {
        self.record(Stage::SealedToDelivered, position.sent_at.0, delivered_at.0);
        if let Some(received) = received_at(record) {
            self.record(Stage::EventToReceived, record.header().ts_event, received);
            self.record(Stage::ReceivedToSealed, received, position.sent_at.0);
        }
    }
}

/// When the publisher received what the record says, where it says so.
#[inline]
fn received_at(record: RecordRef<'_>) -> Option<u64> {
    let stamp = if let Some(mbo) = record.get::<MboMsg>() {
        mbo.ts_recv
    } else if let Some(trade) = record.get::<TradeMsg>() {
        trade.ts_recv
    } else if let Some(quote) = record.get::<Mbp1Msg>() {
        quote.ts_recv
    } else if let Some(status) = record.get::<StatusMsg>() {
        status.ts_recv
    } else if let Some(imbalance) = record.get::<ImbalanceMsg>() {
        imbalance.ts_recv
    } else if let Some(stat) = record.get::<StatMsg>() {
        stat.ts_recv
    } else {
        record.get::<InstrumentDefMsg>()?.ts_recv
    };
    (stamp != UNDEF_TIMESTAMP && stamp != 0 && record.header().ts_event != UNDEF_TIMESTAMP)
        .then_some(stamp)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tickcast_reliability::delivery::{Quality, Via};
    use tickcast_reliability::units::{Epoch, RecordNumber, SourceId, SourcePosition};

    fn position(sequence: u64, sent_at: u64, missing_for: u64) -> Position {
        Position {
            channel: ChannelId(1),
            epoch: Epoch(1),
            sequence: Sequence(sequence),
            record: RecordNumber(1),
            via: Via::Repair,
            quality: Quality::default(),
            source: SourceId(1),
            source_position: SourcePosition(0),
            sent_at: Nanos(sent_at),
            received_at: Nanos(0),
            missing_for: Nanos(missing_for),
        }
    }

    #[test]
    fn every_stage_measures_from_stamp_to_stamp_with_one_clock_read_a_datagram() {
        let mut meter = Meter::new();
        let mut mbo = MboMsg {
            ts_recv: 1_100,
            ..MboMsg::default()
        };
        mbo.hd.ts_event = 1_000;
        let mut reads = 0;
        for (sequence, missing) in [(1, 0), (1, 0), (2, 77)] {
            let position = position(sequence, 1_300, missing);
            let item = Item::Record(&position, RecordRef::from(&mbo));
            meter.pass(&item, || {
                reads += 1;
                Nanos(2_000)
            });
        }
        let latency = meter.of(ChannelId(1)).unwrap();
        assert_eq!(reads, 2);
        for (stage, count, value) in [
            (Stage::EventToReceived, 3, 100),
            (Stage::ReceivedToSealed, 3, 200),
            (Stage::SealedToDelivered, 3, 700),
            (Stage::Repair, 1, 77),
        ] {
            let histogram = latency.stage(stage);
            assert_eq!(
                (histogram.len(), histogram.max()),
                (count, value),
                "{stage:?}"
            );
        }
        assert_eq!(latency.clock_skewed, 0);
    }

    #[test]
    fn clocks_that_disagree_are_counted_and_never_make_a_huge_latency() {
        let mut meter = Meter::new();
        let position = position(1, 5_000, 0);
        let trade = TradeMsg {
            ts_recv: UNDEF_TIMESTAMP,
            ..TradeMsg::default()
        };
        meter.pass(&Item::Record(&position, RecordRef::from(&trade)), || {
            Nanos(4_000)
        });
        let latency = meter.of(ChannelId(1)).unwrap();
        assert_eq!(latency.stage(Stage::SealedToDelivered).max(), 0);
        assert_eq!(latency.stage(Stage::EventToReceived).len(), 0);
        assert_eq!(latency.clock_skewed, 1);
    }
}
