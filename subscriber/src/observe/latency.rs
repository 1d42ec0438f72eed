//! Latency histograms (HdrHistogram), one per stage. The stages run from the exchange's event to the
//! publisher, to the sealed datagram, and to the closure. Another stage is the time until a missing
//! datagram arrives.
//!
//! A stage between two hosts includes the difference of their clocks. Visible differences are counted
//! separately: a negative sample counts as zero, and a sample of more than an hour is discarded.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, fence};

use hdrhistogram::Histogram;
use tickcast_hlog::Series;
use tickcast_reliability::control::{LATENCY_STAGES, StageLatency};
use tickcast_reliability::delivery::Position;
use tickcast_reliability::record::{
    ImbalanceMsg, InstrumentDefMsg, MboMsg, Mbp1Msg, RecordRef, Records, StatMsg, StatusMsg,
    TradeMsg, UNDEF_TIMESTAMP,
};
use tickcast_reliability::types::{ChannelId, Counter, Epoch, Nanos, Sequence};

/// A stage of latency.
///
/// ```
/// # use tickcast_subscriber::{ChannelLatency, Stage};
/// let repair = ChannelLatency::default().stage(Stage::Repair).value_at_quantile(0.999);
/// assert_eq!(repair, 0, "nothing was repaired");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// From the exchange's event until the publisher received it.
    EventToReceived,
    /// From the publisher's reception until the datagram was sealed.
    ReceivedToSealed,
    /// From the sealed datagram until delivery to the closure.
    SealedToDelivered,
    /// From the detection of a missing datagram until it arrived.
    Repair,
    /// From the sealed datagram until delivery, for records sealed before the subscriber had caught up with
    /// the live stream. This is the age of replayed records, not a latency.
    Replayed,
}

impl Stage {
    /// All stages.
    ///
    /// ```
    /// # use tickcast_subscriber::{ChannelLatency, Stage};
    /// # fn f(latency: &ChannelLatency) {
    /// for stage in Stage::ALL {
    ///     println!("{}: {} samples", stage.name(), latency.stage(stage).len());
    /// }
    /// # }
    /// ```
    pub const ALL: [Self; STAGES] = [
        Self::EventToReceived,
        Self::ReceivedToSealed,
        Self::SealedToDelivered,
        Self::Repair,
        Self::Replayed,
    ];

    /// Returns the name of the stage in interval logs.
    ///
    /// ```
    /// # use tickcast_subscriber::Stage;
    /// assert_eq!(Stage::SealedToDelivered.name(), "sealed_to_delivered");
    /// ```
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::EventToReceived => "event_to_received",
            Self::ReceivedToSealed => "received_to_sealed",
            Self::SealedToDelivered => "sealed_to_delivered",
            Self::Repair => "repair",
            Self::Replayed => "replayed",
        }
    }

    /// Returns whether the stage begins by the publisher's clock and ends by the subscriber's. Such a latency
    /// includes the difference of their clocks.
    ///
    /// ```
    /// # use tickcast_subscriber::Stage;
    /// assert!(Stage::SealedToDelivered.compares_clocks() && !Stage::Repair.compares_clocks());
    /// ```
    #[must_use]
    pub const fn compares_clocks(self) -> bool {
        matches!(self, Self::SealedToDelivered | Self::Replayed)
    }
}

/// A copy of one channel's histograms, in nanoseconds.
///
/// ```
/// # use tickcast_subscriber::{ChannelLatency, Stage};
/// let latency = ChannelLatency::default();
/// assert!(latency.stage(Stage::SealedToDelivered).is_empty());
/// ```
#[derive(Clone, Debug)]
pub struct ChannelLatency {
    stages: [Histogram<u64>; STAGES],
    /// Samples that show a difference of clocks. Negative samples count as zero, and samples of more than an
    /// hour are in no histogram. A replayed capture also causes them, because its stamps are of the day of
    /// the capture.
    pub clock_skewed: u64,
}

/// The number of stages.
const STAGES: usize = LATENCY_STAGES;
/// The histograms range from one nanosecond to one hour at three digits.
const HIGHEST_NS: u64 = 3_600_000_000_000;

impl Default for ChannelLatency {
    fn default() -> Self {
        let empty = || {
            Histogram::new_with_bounds(1, HIGHEST_NS, 3).unwrap_or_else(|_| {
                // invariant: these bounds and three digits are within what the crate allows.
                unreachable!("one nanosecond to one hour at three digits is allowed")
            })
        };
        Self {
            stages: std::array::from_fn(|_| empty()),
            clock_skewed: 0,
        }
    }
}

impl ChannelLatency {
    /// Returns the histogram of a stage.
    ///
    /// ```
    /// # use tickcast_subscriber::{ChannelLatency, Stage};
    /// # fn f(latency: &ChannelLatency) {
    /// let repair = latency.stage(Stage::Repair);
    /// # }
    /// ```
    #[must_use]
    pub const fn stage(&self, stage: Stage) -> &Histogram<u64> {
        &self.stages[stage as usize]
    }

    /// Returns the series of an interval log, one for each stage.
    pub(crate) fn into_series(self, channel: &str) -> impl Iterator<Item = Series> {
        let stages = Stage::ALL.into_iter().zip(self.stages);
        stages.map(move |(stage, total)| Series::new(channel, stage.name(), total))
    }
}

/// The buckets of an HdrHistogram at three digits, written by one thread and read by any. Recording is a
/// shift and a plain store. The buckets have their full size from the start, so a session allocates none.
#[derive(Debug)]
struct Buckets(Box<[Counter]>);

/// 2,048 buckets of one nanosecond, then 1,024 for every doubling.
const SUB_BITS: u32 = 11;
const HALF: u64 = 1 << (SUB_BITS - 1);

#[inline]
const fn bucket_of(value: u64) -> usize {
    // The operand is never zero, and the buckets of one nanosecond get a shift of zero.
    let shift = u64::BITS - SUB_BITS - (value | (2 * HALF - 1)).leading_zeros();
    (shift as u64 * HALF + (value >> shift)) as usize
}

/// Returns the lowest value of a bucket.
const fn value_of(bucket: usize) -> u64 {
    let (bucket, whole) = (bucket as u64, 2 * HALF);
    if bucket < whole {
        return bucket;
    }
    let shift = (bucket - HALF) / HALF;
    (bucket - shift * HALF) << shift
}

impl Default for Buckets {
    fn default() -> Self {
        let count = bucket_of(HIGHEST_NS) + 1;
        Self((0..count).map(|_| Counter::default()).collect())
    }
}

impl Buckets {
    #[inline]
    fn record(&self, span: u64, count: u64) {
        self.0[bucket_of(span.min(HIGHEST_NS))].add(count);
    }

    /// Returns the samples since `before`, which becomes the samples so far.
    fn since(&self, before: &mut Vec<u64>) -> StageLatency {
        before.resize(self.0.len(), 0);
        let mut new = Vec::new();
        for (bucket, (count, before)) in self.0.iter().zip(before).enumerate() {
            let count = count.get();
            let samples = count.saturating_sub(std::mem::replace(before, count));
            if samples > 0 {
                new.push((bucket, samples));
            }
        }
        let samples = new.iter().fold(0u64, |all, (_, n)| all.saturating_add(*n));
        // The longest of a bucket's values stands for all of them, as in HdrHistogram.
        let longest = |bucket: usize| Nanos((value_of(bucket + 1) - 1).min(HIGHEST_NS));
        let at = |per_mille: u64| {
            let rank = (u128::from(samples) * u128::from(per_mille)).div_ceil(1_000);
            let mut passed = 0;
            let found = new.iter().find(|(_, samples)| {
                passed += u128::from(*samples);
                passed >= rank
            });
            found.map_or(Nanos::ZERO, |(bucket, _)| longest(*bucket))
        };
        StageLatency {
            samples,
            p50: at(500),
            p99: at(990),
            p999: at(999),
            max: at(1_000),
        }
    }

    fn copy_to(&self, histogram: &mut Histogram<u64>) {
        for (bucket, count) in self.0.iter().enumerate() {
            let count = count.get();
            if count > 0 {
                histogram.saturating_record_n(value_of(bucket), count);
            }
        }
    }
}

/// A datagram that was missing, and arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Repaired {
    pub(crate) epoch: Epoch,
    pub(crate) sequence: Sequence,
    pub(crate) missing_for: Nanos,
}

/// The last repaired datagram, written by one thread and read by any.
#[derive(Debug, Default)]
struct LastRepaired {
    /// Grows before and after each write, so it is odd during one.
    version: AtomicU64,
    epoch: Counter,
    sequence: Counter,
    missing_for: Counter,
}

impl LastRepaired {
    fn set(&self, position: &Position) {
        let version = self.version.load(Relaxed);
        self.version.store(version + 1, Relaxed);
        fence(Release);
        self.epoch.set(position.epoch.0);
        self.sequence.set(position.sequence.0);
        self.missing_for.set(position.missing_for.0);
        self.version.store(version + 2, Release);
    }

    /// Returns it; `None` before the first repair, and during a write.
    fn get(&self) -> Option<Repaired> {
        let version = self.version.load(Acquire);
        let repaired = Repaired {
            epoch: Epoch(self.epoch.get()),
            sequence: Sequence(self.sequence.get()),
            missing_for: Nanos(self.missing_for.get()),
        };
        fence(Acquire);
        let is_whole = version == self.version.load(Relaxed) && version.is_multiple_of(2);
        (is_whole && version > 0).then_some(repaired)
    }
}

/// The samples of a channel at one moment, by stage and bucket; empty before the first sample.
#[derive(Debug, Default)]
pub(crate) struct Recorded([Vec<u64>; STAGES]);

/// Records the histograms of one channel.
#[derive(Debug, Default)]
pub(crate) struct LatencyRecorder {
    stages: [Buckets; STAGES],
    last_repaired: LastRepaired,
    clock_skewed: Counter,
    /// Datagrams sealed at or before this time (UTC by the publisher's clock) are replayed.
    replayed_until: Counter,
}

impl LatencyRecorder {
    /// Returns a copy of the histograms.
    pub(crate) fn snapshot(&self) -> ChannelLatency {
        let mut copy = ChannelLatency::default();
        for (stage, histogram) in self.stages.iter().zip(&mut copy.stages) {
            stage.copy_to(histogram);
        }
        copy.clock_skewed = self.clock_skewed.get();
        copy
    }

    /// Returns the samples of each stage since `before`, which becomes the samples so far.
    pub(crate) fn since(&self, before: &mut Recorded) -> [StageLatency; STAGES] {
        std::array::from_fn(|stage| self.stages[stage].since(&mut before.0[stage]))
    }

    /// Returns the datagram that was repaired last.
    pub(crate) fn last_repaired(&self) -> Option<Repaired> {
        self.last_repaired.get()
    }

    /// Records that a missing datagram arrived.
    #[cold]
    fn repaired(&self, position: &Position) {
        self.stages[Stage::Repair as usize].record(position.missing_for.0, 1);
        self.last_repaired.set(position);
    }

    /// Counts all deliveries as replayed until [`enter_live`](Self::enter_live).
    pub(crate) fn enter_join(&self) {
        self.replayed_until.set(u64::MAX);
    }

    /// Marks the subscriber as caught up. With `replayed_until`, datagrams sealed by then still count as
    /// replayed.
    pub(crate) fn enter_live(&self, replayed_until: Option<Nanos>) {
        self.replayed_until
            .set(replayed_until.map_or(0, |until| until.0));
    }

    #[inline]
    fn record(&self, stage: Stage, from: u64, to: u64, count: u64) {
        let span = to.saturating_sub(from);
        if to < from || span > HIGHEST_NS {
            self.clock_skewed.add(count);
        }
        if span <= HIGHEST_NS {
            self.stages[stage as usize].record(span, count);
        }
    }

    /// Records the delivery of `count` records of a datagram.
    #[inline]
    fn delivered(&self, position: &Position, at: Nanos, count: u64) {
        let sealed = position.sent_at.0;
        let stage = if sealed <= self.replayed_until.get() {
            Stage::Replayed
        } else {
            Stage::SealedToDelivered
        };
        self.record(stage, sealed, at.0, count);
    }

    /// Records the stamps of all records of a datagram, in order.
    #[inline(always)]
    pub(super) fn all_stamped(&self, position: &Position, records: Records<'_>) {
        // In a run of one type, the stamps have a fixed offset, so no record needs a search for them.
        macro_rules! of_types {
            ($($record:ty),+) => {
                $(if let Some(records) = records.all_of::<$record>() {
                    return self.stamped_alike(position, records, |record| Stamps {
                        event: record.hd.ts_event,
                        received: record.ts_recv,
                    });
                })+
            };
        }
        of_types!(MboMsg, TradeMsg, Mbp1Msg);
        self.stamped(position, records.filter_map(stamps));
    }

    /// Records the stamps of a datagram whose records are all of one type. Records of one message all have
    /// equal stamps, so a comparison in groups of four detects that case quickly.
    #[inline]
    fn stamped_alike<R>(&self, position: &Position, all: &[R], stamps: impl Fn(&R) -> Stamps) {
        let Some(first) = all.first().map(&stamps) else {
            return;
        };
        let (fours, rest) = all.as_chunks::<4>();
        let is_same = |record: &R| stamps(record) == first;
        if fours.iter().all(|four| four.iter().all(is_same)) && rest.iter().all(is_same) {
            self.ended(position, first, (all.len() as u64, 0), Stamps::default());
        } else {
            self.stamped(position, all.iter().map(stamps));
        }
    }

    /// Records the stamps of a datagram's records, in order. Equal neighbours are recorded together: the
    /// messages of a packet were received together, and often happened together.
    fn stamped(&self, position: &Position, stamps: impl Iterator<Item = Stamps>) {
        let (mut last, mut alike, mut before) = (Stamps::default(), 0, 0);
        for stamps in stamps {
            if stamps != last {
                before = self.ended(position, last, (alike, before), stamps);
                (last, alike) = (stamps, 0);
            }
            alike += 1;
        }
        self.ended(position, last, (alike, before), Stamps::default());
    }

    /// Records a run of `alike` records with equal stamps. Before them come `before` records with the same
    /// reception time, and after them a record with the stamps `next`. Returns the number of records
    /// with that reception time that are still to be recorded.
    fn ended(
        &self,
        position: &Position,
        Stamps { event, received }: Stamps,
        (alike, mut before): (u64, u64),
        next: Stamps,
    ) -> u64 {
        if (Stamps { event, received }).are_both() && alike > 0 {
            self.record(Stage::EventToReceived, event, received, alike);
            before += alike;
        }
        if received == next.received || before == 0 {
            return before;
        }
        self.record(
            Stage::ReceivedToSealed,
            received,
            position.sent_at.0,
            before,
        );
        0
    }
}

/// The exchange's time of an event, and the publisher's reception time.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Stamps {
    event: u64,
    received: u64,
}

impl Stamps {
    /// Returns whether a record has both stamps. Zero means that no reception took place.
    const fn are_both(self) -> bool {
        self.received != UNDEF_TIMESTAMP && self.received != 0 && self.event != UNDEF_TIMESTAMP
    }
}

/// Measures delivered records, for all channels of a subscriber.
#[derive(Debug)]
pub(crate) struct Meter {
    /// The datagram whose delivery time is `delivered_at`: one clock read serves all its records.
    current: (ChannelId, Sequence),
    delivered_at: Nanos,
}

impl Meter {
    pub(crate) const fn new() -> Self {
        Self {
            current: (ChannelId(0), Sequence::NONE),
            delivered_at: Nanos::ZERO,
        }
    }

    /// Measures a record before its delivery. `utc` is called once per datagram only.
    #[inline]
    pub(crate) fn pass(
        &mut self,
        latency: &LatencyRecorder,
        position: &Position,
        record: RecordRef<'_>,
        utc: impl FnOnce() -> Nanos,
    ) {
        self.begin(latency, position, utc);
        latency.delivered(position, self.delivered_at, 1);
        latency.stamped(position, stamps(record).into_iter());
    }

    /// Measures all records of a datagram, as [`pass`](Self::pass) does for one.
    #[inline]
    pub(crate) fn pass_all(
        &mut self,
        latency: &LatencyRecorder,
        first: &Position,
        records: Records<'_>,
        utc: impl FnOnce() -> Nanos,
    ) {
        self.begin(latency, first, utc);
        latency.delivered(first, self.delivered_at, records.len() as u64);
        latency.all_stamped(first, records);
    }

    #[inline]
    fn begin(
        &mut self,
        latency: &LatencyRecorder,
        position: &Position,
        utc: impl FnOnce() -> Nanos,
    ) {
        if self.current != (position.channel, position.sequence) {
            self.current = (position.channel, position.sequence);
            self.delivered_at = utc();
            if position.missing_for != Nanos::ZERO {
                latency.repaired(position);
            }
        }
    }
}

/// Returns the stamps of a record, if its type has both.
#[inline(never)]
fn stamps(record: RecordRef<'_>) -> Option<Stamps> {
    let received = if let Some(mbo) = record.get::<MboMsg>() {
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
    let event = record.header().ts_event;
    Some(Stamps { event, received })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tickcast_reliability::delivery::{Quality, Via};
    use tickcast_reliability::record::RecordBatch;
    use tickcast_reliability::types::{Epoch, RecordNumber, SourceId, SourcePosition};

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
    fn stages_measure_stamps_with_one_clock_read() {
        let (mut meter, recorder) = (Meter::new(), LatencyRecorder::default());
        let mut mbo = MboMsg {
            ts_recv: 1_100,
            ..MboMsg::default()
        };
        mbo.hd.ts_event = 1_000;
        let mut reads = 0;
        for (sequence, missing) in [(1, 0), (1, 0), (2, 77)] {
            let position = position(sequence, 1_300, missing);
            meter.pass(&recorder, &position, RecordRef::from(&mbo), || {
                reads += 1;
                Nanos(2_000)
            });
        }
        let latency = recorder.snapshot();
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
    fn history_before_live_is_replayed_and_no_latency() {
        let (mut meter, recorder) = (Meter::new(), LatencyRecorder::default());
        let trade = TradeMsg::default();
        let mut pass = |sequence, sent_at| {
            let position = position(sequence, sent_at, 0);
            let utc = || Nanos(sent_at + 500);
            meter.pass(&recorder, &position, RecordRef::from(&trade), utc);
            let latency = recorder.snapshot();
            [Stage::Replayed, Stage::SealedToDelivered].map(|stage| latency.stage(stage).len())
        };
        recorder.enter_join();
        assert_eq!(pass(1, 1_000), [1, 0]);
        // This datagram waited behind the history and was sealed before the subscriber caught up.
        recorder.enter_live(Some(Nanos(2_000)));
        assert_eq!(pass(2, 2_000), [2, 0]);
        assert_eq!(pass(3, 2_001), [2, 1]);
        // Without history, every datagram is live.
        recorder.enter_join();
        recorder.enter_live(None);
        assert_eq!(pass(4, 1), [2, 2]);
    }

    #[test]
    fn batch_records_are_measured_as_single_ones() {
        let position = position(1, 1_300, 0);
        // The event and reception times of each record, of one type and of several.
        let all = [
            &[(1_000, 1_100); 11][..],
            &[
                (1_000, 1_100),
                (1_000, 1_100),
                (1_000, 1_100),
                (1_000, 1_100),
                (900, 1_100),
            ],
            &[
                (1_000, 1_100),
                (990, 1_100),
                (980, 1_100),
                (980, 1_200),
                (980, 1_100),
            ],
            &[
                (0, 0),
                (1_000, UNDEF_TIMESTAMP),
                (UNDEF_TIMESTAMP, 1_100),
                (1_000, 1_100),
            ],
            &[
                (1_000, 1_100),
                (UNDEF_TIMESTAMP, 1_100),
                (1_000, 1_100),
                (1_200, 1_400),
            ],
            &[],
        ];
        for (stamps, is_mixed) in all.into_iter().flat_map(|it| [(it, false), (it, true)]) {
            let mut batch = RecordBatch::default();
            for (nth, (ts_event, ts_recv)) in stamps.iter().copied().enumerate() {
                let (mut mbo, mut trade) = (MboMsg::default(), TradeMsg::default());
                (mbo.hd.ts_event, mbo.ts_recv) = (ts_event, ts_recv);
                (trade.hd.ts_event, trade.ts_recv) = (ts_event, ts_recv);
                match is_mixed && nth % 2 == 1 {
                    true => batch.put(&trade),
                    false => batch.put(&mbo),
                }
            }
            let records = Records::check(batch.bytes(), stamps.len()).unwrap();
            let (together, alone) = (LatencyRecorder::default(), LatencyRecorder::default());
            let utc = || Nanos(2_000);
            Meter::new().pass_all(&together, &position, records, utc);
            let mut meter = Meter::new();
            records.for_each(|record| meter.pass(&alone, &position, record, utc));
            let (together, alone) = (together.snapshot(), alone.snapshot());
            assert_eq!(together.stages, alone.stages, "{stamps:?}, {is_mixed}");
            assert_eq!(together.clock_skewed, alone.clock_skewed);
            let whole = |(event, received): &&(u64, u64)| {
                *event != UNDEF_TIMESTAMP && ![0, UNDEF_TIMESTAMP].contains(received)
            };
            let (of_event, whole) = (Stage::EventToReceived, stamps.iter().filter(whole));
            assert_eq!(together.stage(of_event).len(), whole.count() as u64);
        }
    }

    #[test]
    fn disagreeing_clocks_are_counted_not_measured() {
        let (mut meter, recorder) = (Meter::new(), LatencyRecorder::default());
        let position = position(1, 5_000, 0);
        let trade = TradeMsg {
            ts_recv: UNDEF_TIMESTAMP,
            ..TradeMsg::default()
        };
        meter.pass(&recorder, &position, RecordRef::from(&trade), || {
            Nanos(4_000)
        });
        let latency = recorder.snapshot();
        assert_eq!(latency.stage(Stage::SealedToDelivered).max(), 0);
        assert_eq!(latency.stage(Stage::EventToReceived).len(), 0);
        assert_eq!(latency.clock_skewed, 1);
        // A publisher whose clock is behind appears slow. A span of more than an hour is discarded.
        let sealed = position.sent_at.0;
        for (sequence, span, count, skewed) in [
            (2, HIGHEST_NS, 2, 1),
            (3, HIGHEST_NS + 1, 2, 2),
            (4, u64::MAX - sealed, 2, 3),
        ] {
            let position = self::position(sequence, sealed, 0);
            meter.pass(&recorder, &position, RecordRef::from(&trade), || {
                Nanos(sealed + span)
            });
            let latency = recorder.snapshot();
            let counted = latency.stage(Stage::SealedToDelivered).len();
            assert_eq!((counted, latency.clock_skewed), (count, skewed), "{span}");
        }
    }

    #[test]
    fn samples_since_last_report_have_percentiles_of_histogram() {
        let buckets = Buckets::default();
        let mut before = Vec::new();
        assert_eq!(buckets.since(&mut before), StageLatency::default());
        for (count, scale) in [(1, 1), (2, 9), (10_000, 700), (3, HIGHEST_NS / 2)] {
            let mut expected = ChannelLatency::default().stages[0].clone();
            for nth in 0..count {
                let value = (nth + 1) * scale;
                buckets.record(value, 1);
                expected.saturating_record(value.min(HIGHEST_NS));
            }
            let found = buckets.since(&mut before);
            let of = |quantile| Nanos(expected.value_at_quantile(quantile).min(HIGHEST_NS));
            let quantiles = [found.p50, found.p99, found.p999];
            assert_eq!(quantiles, [of(0.5), of(0.99), of(0.999)], "{count}");
            assert_eq!((found.samples, found.max), (count, of(1.0)));
        }
        assert_eq!(buckets.since(&mut before), StageLatency::default());
    }

    #[test]
    fn buckets_are_those_of_a_histogram_of_three_digits() {
        let mut expected = ChannelLatency::default().stages[0].clone();
        let buckets = Buckets::default();
        let mut value = 0;
        while value < 2 * HIGHEST_NS {
            for near in [value.saturating_sub(1), value, value + 1] {
                buckets.record(near, 1);
                expected.saturating_record(near.min(HIGHEST_NS));
            }
            value += 1 + value / 700;
        }
        let mut copy = ChannelLatency::default().stages[0].clone();
        buckets.copy_to(&mut copy);
        assert_eq!(copy, expected);
        for bucket in 0..buckets.0.len() {
            assert_eq!(bucket_of(value_of(bucket)), bucket);
        }
    }
}
