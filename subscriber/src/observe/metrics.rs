//! The metrics of a subscriber: counters and latencies of each channel. Every series but one exists
//! from the start. The names are in the table of `tickcast_metrics`.

use std::sync::atomic::Ordering::Relaxed;

use tickcast_metrics::families::{LATENCY, SUBSCRIBER};
use tickcast_metrics::{Labels, Page, TimeBuckets};
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
    for stage in latency.iter().flat_map(stages) {
        let (stage, times) = stage;
        page.add_times(&SUBSCRIBER, &place.with("stage", stage), LATENCY, times);
    }
    channel.counters.each(page.counters(&SUBSCRIBER, &place));
    channel.handed.each(page.counters(&SUBSCRIBER, &place));
}

/// Returns the name and the samples of each stage.
fn stages(latency: &ChannelLatency) -> impl Iterator<Item = (&'static str, TimeBuckets)> {
    Stage::ALL.into_iter().map(|stage| {
        let mut times = TimeBuckets::default();
        for bucket in latency.stage(stage).iter_recorded() {
            times.record(
                bucket.value_iterated_to(),
                bucket.count_since_last_iteration(),
            );
        }
        (stage.name(), times)
    })
}
