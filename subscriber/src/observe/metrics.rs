//! The metrics of a subscriber: counters and latencies of each channel. Every series but one exists
//! from the start. The names are in the table of `tickcast_metrics`.

use std::sync::atomic::Ordering::Relaxed;

use tickcast_metrics::families::{LATENCY, SUBSCRIBER};
use tickcast_metrics::{Exemplar, Labels, Page, TimeBuckets};
use tickcast_reliability::counters;

use super::latency::{ChannelLatency, Stage};
use super::{ChannelShared, Shared};

counters! {
    /// A subscriber as it stands.
    struct MembershipMetrics {
        /// 1 if the publisher has admitted this subscriber and the repair connection is up (a gauge).
        joined,
    }
}

counters! {
    /// The clocks of a subscriber and its publisher. The series appears with the first round trip.
    struct ClockMetrics {
        /// Microseconds by which the publisher's clock may differ from this host's. The clocks support no
        /// smaller latency between the hosts (a gauge).
        clock_difference_us,
    }
}

counters! {
    /// A channel of a subscriber as it stands.
    struct FollowedMetrics {
        /// Epoch that is followed; 0 before the publisher's welcome (a gauge).
        epoch,
        /// Sequence delivered or declared lost last (a gauge).
        delivered_sequence,
        /// Sequences between the one delivered last and the newest known to have been sent (a gauge).
        lag_sequences,
        /// 1 if the end of the session was delivered (a gauge).
        ended,
        /// Samples of latency that show a difference of clocks.
        clock_skewed_samples,
    }
}

/// Returns the page of a subscriber's metrics.
pub(super) fn page(shared: &Shared) -> Page {
    let mut page = Page::default();
    let membership = MembershipMetrics::default();
    membership.joined.set(shared.joined.load(Relaxed).into());
    membership.each(page.counters(&SUBSCRIBER, &Labels::default()));
    if let Some(offset) = shared.clock.offset() {
        let clock = ClockMetrics::default();
        clock
            .clock_difference_us
            .set(offset.limit_ns().div_ceil(1_000));
        clock.each(page.counters(&SUBSCRIBER, &Labels::default()));
    }
    for channel in &shared.channels {
        add_channel(&mut page, channel);
    }
    page
}

fn add_channel(page: &mut Page, channel: &ChannelShared) {
    let place = Labels::default().with("channel", &channel.name);
    let latency = channel.latency.as_ref().map(|recorder| recorder.snapshot());
    let followed = FollowedMetrics::default();
    followed.epoch.set(channel.epoch.get());
    followed.delivered_sequence.set(channel.delivered.get());
    followed.lag_sequences.set(channel.lag.get());
    followed.ended.set(channel.ended.load(Relaxed).into());
    let skewed = latency.as_ref().map_or(0, |latency| latency.clock_skewed);
    followed.clock_skewed_samples.set(skewed);
    followed.each(page.counters(&SUBSCRIBER, &place));
    let recorder = channel.latency.as_ref();
    let repaired = recorder.and_then(|recorder| recorder.last_repaired());
    let repaired = repaired.map(|repaired| Exemplar {
        epoch: repaired.epoch.0,
        sequence: repaired.sequence.0,
        value: repaired.missing_for.0 as f64 / 1e9,
        at_utc_ns: None,
    });
    for (stage, times) in latency.iter().flat_map(stages) {
        let exemplar = repaired.filter(|_| stage == Stage::Repair);
        let place = place.with("stage", stage.name());
        page.add_times(&SUBSCRIBER, &place, LATENCY, times, exemplar);
    }
    channel.counters.each(page.counters(&SUBSCRIBER, &place));
    if let Some(repaired) = repaired {
        let one = Exemplar {
            value: 1.0,
            ..repaired
        };
        page.exemplify(&SUBSCRIBER, &place, "missing_recovered", one);
    }
    channel.handed.each(page.counters(&SUBSCRIBER, &place));
}

/// Returns the samples of each stage.
fn stages(latency: &ChannelLatency) -> impl Iterator<Item = (Stage, TimeBuckets)> {
    Stage::ALL.into_iter().map(|stage| {
        let mut times = TimeBuckets::default();
        for bucket in latency.stage(stage).iter_recorded() {
            times.record(
                bucket.value_iterated_to(),
                bucket.count_since_last_iteration(),
            );
        }
        (stage, times)
    })
}
