//! The summary of a session as JSON: totals, channels, and injected faults.

use std::collections::BTreeMap;
use std::fmt;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tickcast_subscriber::{ChannelId, Epoch, RecordNumber, Sequence};
use tickcast_subscriber::{ChannelReport, LineId, Stage, Subscriber};
use tickcast_transport::faults::FaultConfig;

use super::Args;
use super::account::{Account, LostRange};
use tickcast_tools::support::table::{span, thousands};

/// The reason why listening ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum EndedBy {
    EndOfSession,
    Records,
    Duration,
    Signal,
    PublisherDead,
}

/// Percentiles of a duration, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Percentiles {
    pub(crate) count: u64,
    pub(crate) p50: u64,
    pub(crate) p99: u64,
    pub(crate) p999: u64,
    pub(crate) max: u64,
}

impl Percentiles {
    fn of(histogram: &Histogram<u64>) -> Self {
        Self {
            count: histogram.len(),
            p50: histogram.value_at_quantile(0.5),
            p99: histogram.value_at_quantile(0.99),
            p999: histogram.value_at_quantile(0.999),
            max: histogram.max(),
        }
    }
}

/// The summary of one channel.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ChannelSummary {
    pub(crate) name: String,
    /// Null if the publisher never admitted the subscriber.
    pub(crate) channel: Option<ChannelId>,
    epoch: Epoch,
    /// The last sequence delivered or declared lost.
    sequence: Sequence,
    ended: bool,
    pub(crate) delivered_records: u64,
    first_record: Option<RecordNumber>,
    last_record: Option<RecordNumber>,
    pub(crate) digest: Option<String>,
    pub(crate) lost_records: u64,
    counters: BTreeMap<String, u64>,
    latency_ns: Percentiles,
    /// Ages of the records that precede the live stream; they are no latency.
    replayed_ns: Percentiles,
    repair_ns: Percentiles,
    /// Samples, of all stages, that synchronised clocks can't produce.
    clock_skewed: u64,
    /// Counts of the fault injector, one entry per line; empty without faults.
    faults: Vec<Value>,
}

/// The summary of the session.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Summary {
    pub(crate) name: String,
    publisher: String,
    pub(crate) ended_by: EndedBy,
    pub(crate) delivered_records: u64,
    /// Records declared lost, as far as their number is known.
    pub(crate) lost_records: u64,
    pub(crate) lost_ranges: Vec<LostRange>,
    /// Losses beyond those listed.
    lost_ranges_unlisted: u64,
    /// Losses of an unknown number of records.
    pub(crate) losses_of_unknown_size: u64,
    pub(crate) missing_datagrams: u64,
    pub(crate) missing_recovered: u64,
    missing_lost: u64,
    missing_open: u64,
    pub(crate) duplicates: u64,
    pub(crate) corrupt_dropped: u64,
    pub(crate) latency_ns: Percentiles,
    /// Ages of the records that precede the live stream; they are no latency.
    replayed_ns: Percentiles,
    pub(crate) repair_ns: Percentiles,
    /// Samples, of all stages and channels, that synchronised clocks can't produce.
    clock_skewed: u64,
    /// The publisher's clock minus this host's; null if no STATUS came.
    clock_offset_ns: Option<i64>,
    /// The largest error of that offset.
    clock_error_ns: Option<u64>,
    pub(crate) channels: Vec<ChannelSummary>,
    /// Counters summed over all channels.
    counters: BTreeMap<String, u64>,
    events: BTreeMap<String, u64>,
    pub(crate) seed: u64,
    /// The requested faults.
    faults: Value,
}

impl Summary {
    /// Takes the state of the subscriber that is no longer available after it has left.
    pub(super) fn begin(
        args: &Args,
        subscriber: &Subscriber,
        faults: &FaultConfig,
        ended_by: EndedBy,
    ) -> Self {
        let mut latency = Latency::default();
        let clock = subscriber.monitor().clock_offset();
        let channels = subscriber.channels();
        let channels = channels
            .iter()
            .map(|report| of_channel(report, subscriber, &mut latency));
        let channels: Vec<_> = channels.collect();
        Self {
            clock_skewed: channels.iter().map(|channel| channel.clock_skewed).sum(),
            clock_offset_ns: clock.map(|it| it.offset_ns),
            clock_error_ns: clock.map(|it| it.error_ns),
            channels,
            name: args.name.clone().unwrap_or_default(),
            publisher: args.connect.clone(),
            ended_by,
            latency_ns: latency
                .sealed_to_delivered
                .as_ref()
                .map(Percentiles::of)
                .unwrap_or_default(),
            replayed_ns: latency
                .replayed
                .as_ref()
                .map(Percentiles::of)
                .unwrap_or_default(),
            repair_ns: latency
                .repair
                .as_ref()
                .map(Percentiles::of)
                .unwrap_or_default(),
            seed: faults.seed,
            faults: serde_json::to_value(faults).unwrap_or_default(),
            delivered_records: 0,
            lost_records: 0,
            lost_ranges: Vec::new(),
            lost_ranges_unlisted: 0,
            losses_of_unknown_size: 0,
            missing_datagrams: 0,
            missing_recovered: 0,
            missing_lost: 0,
            missing_open: 0,
            duplicates: 0,
            corrupt_dropped: 0,
            counters: BTreeMap::new(),
            events: BTreeMap::new(),
        }
    }

    /// Returns the number of sequenced datagrams that the fault injector dropped, on all lines and
    /// channels.
    pub(crate) fn dropped_by_faults(&self) -> u64 {
        let counts = self.channels.iter().flat_map(|channel| &channel.faults);
        let counted = |counts: &Value, name: &str| counts[name].as_u64().unwrap_or(0);
        let dropped = |counts: &Value| {
            let all = [
                "dropped",
                "burst_dropped",
                "scripted_dropped",
                "partition_dropped",
            ];
            let all: u64 = all.iter().map(|name| counted(counts, name)).sum();
            all.saturating_sub(counted(counts, "dropped_unsequenced"))
        };
        counts.map(dropped).sum()
    }

    /// Adds the final counters and the account.
    pub(super) fn finish(mut self, reports: &[ChannelReport], account: Account) -> Self {
        for (channel, report) in self.channels.iter_mut().zip(reports) {
            let mut add = |name: &str, _: &str, value| {
                channel.counters.insert(name.into(), value);
                *self.counters.entry(name.into()).or_default() += value;
            };
            report.counters.each(&mut add);
            report.handed.each(&mut add);
            channel.sequence = report.delivered;
            channel.lost_records = report.counters.lost_records.get();
            let delivered = account
                .channels
                .iter()
                .find(|c| Some(c.channel) == report.channel);
            if let Some(delivered) = delivered {
                channel.delivered_records = delivered.records;
                channel.first_record = Some(delivered.first_record);
                channel.last_record = Some(delivered.last_record);
                channel.digest = delivered
                    .digest
                    .as_ref()
                    .map(tickcast_tools::support::digest::Digest::to_hex);
            } else if account.digests() {
                channel.digest = Some(tickcast_tools::support::digest::Digest::default().to_hex());
            }
        }
        let counted = |name: &str| self.counters.get(name).copied().unwrap_or(0);
        Self {
            delivered_records: account.records,
            lost_records: counted("lost_records"),
            losses_of_unknown_size: counted("losses_of_unknown_size"),
            missing_datagrams: counted("missing_datagrams"),
            missing_recovered: counted("missing_recovered"),
            missing_lost: counted("missing_lost"),
            missing_open: counted("missing_open"),
            duplicates: counted("duplicates"),
            corrupt_dropped: counted("corrupt_dropped"),
            events: account
                .events
                .iter()
                .map(|(kind, n)| ((*kind).to_owned(), *n))
                .collect(),
            lost_ranges_unlisted: account.lost_unlisted,
            lost_ranges: account.lost,
            ..self
        }
    }
}

/// Histograms over all channels.
#[derive(Default)]
struct Latency {
    sealed_to_delivered: Option<Histogram<u64>>,
    replayed: Option<Histogram<u64>>,
    repair: Option<Histogram<u64>>,
}

fn of_channel(
    report: &ChannelReport,
    subscriber: &Subscriber,
    all: &mut Latency,
) -> ChannelSummary {
    let latency = report
        .channel
        .and_then(|channel| subscriber.latency(channel));
    let of = |stage, sum: &mut Option<Histogram<u64>>| {
        let Some(histogram) = latency.as_ref().map(|latency| latency.stage(stage)) else {
            return Percentiles::default();
        };
        match sum {
            // Histograms of one kind have equal bounds, so adding can't fail.
            Some(sum) => drop(sum.add(histogram)),
            None => *sum = Some(histogram.clone()),
        }
        Percentiles::of(histogram)
    };
    let faulty = report
        .channel
        .and_then(|channel| subscriber.faults(channel));
    let lines = (0..LineId::MAX as u8).map(LineId);
    let plans = lines.filter_map(|line| faulty?.injector(line));
    ChannelSummary {
        name: report.name.clone(),
        channel: report.channel,
        epoch: report.epoch,
        sequence: report.delivered,
        ended: report.ended,
        delivered_records: 0,
        first_record: None,
        last_record: None,
        digest: None,
        lost_records: 0,
        counters: BTreeMap::new(),
        latency_ns: of(Stage::SealedToDelivered, &mut all.sealed_to_delivered),
        replayed_ns: of(Stage::Replayed, &mut all.replayed),
        repair_ns: of(Stage::Repair, &mut all.repair),
        clock_skewed: latency.as_ref().map_or(0, |latency| latency.clock_skewed),
        faults: plans
            .filter_map(|plan| serde_json::to_value(plan.counts()).ok())
            .collect(),
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} records, {} lost, {} gaps of which {} recovered, latency p50 {} p99 {} max {}",
            thousands(self.delivered_records),
            thousands(self.lost_records),
            thousands(self.missing_datagrams),
            thousands(self.missing_recovered),
            span(self.latency_ns.p50),
            span(self.latency_ns.p99),
            span(self.latency_ns.max),
        )?;
        let replayed = self.replayed_ns;
        if replayed.count > 0 {
            write!(
                f,
                ", {} replayed, up to {} old",
                thousands(replayed.count),
                span(replayed.max)
            )?;
        }
        for channel in &self.channels {
            if let Some(digest) = &channel.digest {
                write!(f, "\n{}: digest {digest}", channel.name)?;
            }
        }
        Ok(())
    }
}
