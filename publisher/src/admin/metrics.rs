//! The publisher's metrics: each counter with the labels of its place. Every series exists from the
//! start. The names are in the table of `tickcast_metrics`.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

use tickcast_metrics::families::{PUBLISHER, STANDBY};
use tickcast_metrics::{Labels, Page, PageFormat};
use tickcast_reliability::counters;
use tickcast_reliability::delivery::LineId;
use tickcast_reliability::types::{ChannelId, Nanos};
use tickcast_transport::verbs::port_events::PortCounts;

use crate::state::audit_log;
use crate::state::hearing::Hearing;
use crate::state::losses::{ListedLoss, LossEpisode};
use crate::state::standby::StandbyState;
use crate::state::subscriber_latency::SubscriberLatency;
use crate::state::{ChannelShared, Shared, SourceShared, thread};

counters! {
    /// The publisher as a whole.
    struct PublisherMetrics {
        /// Epoch of all channels (a gauge).
        epoch,
        /// 1 if the session has ended (a gauge).
        ended,
        /// Lines of the audit trail that could not be written to its file.
        audit_lines_lost,
        /// Times that a hand-over was requested and refused.
        hand_overs_refused,
        /// Times that a reload of the config applied every changed setting.
        reloads_applied,
        /// Times that a reload of the config was refused and changed nothing.
        reloads_refused,
    }
}

counters! {
    /// The ring of one channel.
    struct RingMetrics {
        /// Sequence sealed last (a gauge).
        sealed_sequence,
        /// Sequence that is the oldest in the ring (a gauge).
        oldest_sequence,
    }
}

counters! {
    /// Events of an RDMA port, as its device counts them.
    struct PortEventMetrics {
        /// Packets that arrived at the port with a mark of congestion (ECN).
        port_ecn_marks,
        /// Packets by which the port asked a sender to slow down (CNP).
        port_cnps_sent,
        /// Packets that asked the port to slow down, and that it obeyed (CNP).
        port_cnps_handled,
        /// Ticks of the device in which a pause or missing credits held back a packet.
        port_send_waits,
        /// Packets that found no receive buffer.
        port_out_of_buffer,
        /// Packets that the port discarded in place of sending them.
        port_send_discards,
        /// Packets that arrived damaged or malformed.
        port_receive_errors,
        /// Packets of RoCE that arrived with a wrong checksum.
        port_checksum_errors,
        /// Errors of symbols that the cable delivered.
        port_symbol_errors,
        /// Times that the port's link went down.
        port_link_downs,
    }
}

counters! {
    /// When a live source was heard last.
    struct SourceHearingMetrics {
        /// 1 while the source is silent; the stream reports it (a gauge).
        source_silent,
        /// Microseconds since a packet of the source arrived (a gauge).
        source_age_us,
    }
}

counters! {
    /// When a line of a live source was heard last.
    struct InputLineHearingMetrics {
        /// Microseconds since any packet arrived on the line (a gauge).
        input_line_age_us,
    }
}

counters! {
    /// Messages of one source, by type.
    struct MessageTypeMetrics {
        /// Messages of the venue received, by their type byte.
        source_messages_by_type,
    }
}

counters! {
    /// A subscriber of one channel, as it reports itself.
    struct SubscriberMetrics {
        /// Sequence that a subscriber delivered or declared lost last (a gauge).
        subscriber_sequence,
        /// Sequences that a subscriber is behind the last one sealed (a gauge).
        subscriber_lag,
        /// Records that a subscriber declared lost.
        subscriber_lost_records,
    }
}

counters! {
    /// The clocks of a subscriber, as it reports them. The series appears with its first report of latency.
    struct SubscriberClockMetrics {
        /// Nanoseconds by which the subscriber's clock may differ from this host's. The clocks support no
        /// smaller latency between the hosts (a gauge).
        subscriber_clock_difference_ns,
    }
}

counters! {
    /// A stage of a subscriber's latency on one channel in its last interval, as it reports itself. The
    /// series are there while the stage has samples.
    struct SubscriberLatencyMetrics {
        /// Nanoseconds that half of the samples do not exceed (a gauge).
        subscriber_latency_p50_ns,
        /// Nanoseconds that 99 percent of the samples do not exceed (a gauge).
        subscriber_latency_p99_ns,
        /// Nanoseconds that 99.9 percent of the samples do not exceed (a gauge).
        subscriber_latency_p999_ns,
        /// Nanoseconds that the longest sample took (a gauge).
        subscriber_latency_max_ns,
        /// Samples of a subscriber's latency in its last interval (a gauge).
        subscriber_latency_samples,
        /// 1 if the clocks support all numbers of the stage (a gauge).
        subscriber_latency_supported,
    }
}

counters! {
    /// A standby as it stands.
    struct StandbyMetrics {
        /// 1 if it mirrors every channel and could be promoted (a gauge).
        mirroring,
        /// 1 if it was promoted and publishes (a gauge).
        promoted,
        /// 1 if anything is heard of the mirrored publisher (a gauge).
        publisher_alive,
        /// 1 if the publisher would not hear a request to hand over, when asked last (a gauge).
        commands_refused,
        /// Source that sends here what the publisher does not publish; 0 for none (a gauge).
        differing_source,
    }
}

counters! {
    /// The mirror of one channel.
    struct MirrorMetrics {
        /// Sequence mirrored last without a hole (a gauge).
        mirrored_sequence,
        /// Sequences sent and not mirrored yet (a gauge).
        lag_sequences,
        /// Microseconds for which something has been missing in the mirror (a gauge).
        lag_us,
        /// Sequence that the publisher wrote here last by RDMA; 0 for none (a gauge).
        written_sequence,
        /// Sequences sent and not found written here; 0 where nothing is written (a gauge).
        written_lag_sequences,
        /// Datagrams that the publisher wrote here, found whole.
        written_datagrams,
        /// Datagrams written here that arrived before any other path.
        inbox_first_datagrams,
        /// Sequences not written, or overwritten before they were read; they arrive on another path.
        inbox_skipped_sequences,
        /// Slots found half written, or never holding a whole datagram.
        inbox_torn,
        /// Times that a mirror began anew because a missing datagram could not be had.
        holes,
    }
}

/// Losses that stand as exemplars at the counters that count them.
#[derive(Debug, Default)]
struct Examples {
    /// The last gap that each channel was asked to repair.
    requested: BTreeMap<ChannelId, LossEpisode>,
    /// The last loss of each subscriber of a channel.
    lost: BTreeMap<(ChannelId, String), LossEpisode>,
}

impl Examples {
    /// Takes the newest ones of this list, oldest first.
    fn of(losses: Vec<ListedLoss>) -> Self {
        let mut all = Self::default();
        for loss in losses {
            let (channel, episode) = (loss.channel, loss.episode);
            if episode.requested.is_some() {
                all.requested.insert(channel, episode.clone());
            }
            if episode.is_lost() {
                all.lost.insert((channel, loss.subscriber), episode);
            }
        }
        all
    }
}

/// The series of a publisher, as they are added to a page.
#[derive(Default)]
struct PublisherPage {
    page: Page,
    examples: Examples,
}

impl PublisherPage {
    /// Returns what adds a counter with these labels: the argument of the counters' `each`.
    fn at<'a>(&'a mut self, place: &'a Labels) -> impl FnMut(&'static str, &'static str, u64) + 'a {
        self.page.counters(&PUBLISHER, place)
    }

    /// Adds how long ago a live source and its lines were heard.
    fn add_ages(&mut self, place: &Labels, hearing: &Hearing, now: Nanos) {
        let source = SourceHearingMetrics::default();
        source
            .source_silent
            .set(hearing.silent_since().is_some().into());
        source.source_age_us.set(hearing.age(now).as_us());
        source.each(self.at(place));
        for (line, age) in hearing.line_ages(now).enumerate() {
            let of_line = InputLineHearingMetrics::default();
            of_line.input_line_age_us.set(age.as_us());
            of_line.each(self.at(&place.with("line", line)));
        }
    }

    fn add_process(&mut self, shared: &Shared) {
        let process = Labels::default();
        let publisher = PublisherMetrics::default();
        publisher.epoch.set(shared.epoch.0);
        publisher.ended.set(shared.is_ended().into());
        publisher.audit_lines_lost.set(audit_log::lines_lost());
        publisher
            .hand_overs_refused
            .set(shared.hand_overs_refused.load(Relaxed));
        let (applied, refused) = shared.reloads.counts();
        publisher.reloads_applied.set(applied);
        publisher.reloads_refused.set(refused);
        publisher.each(self.at(&process));
        shared.service.each(self.at(&process));
        shared.latency_log.each(self.at(&process));
        for (endpoint, counters) in shared.endpoints.each() {
            counters.each(self.at(&process.with("endpoint", endpoint)));
        }
        if let Some(standby) = &shared.standby {
            each_standby_metric(standby, |counter, meaning, channel, value| {
                let channel = channel.map(|channel| process.with("channel", channel));
                let place = channel.as_ref().unwrap_or(&process);
                self.page.add(&STANDBY, place, counter, meaning, value);
            });
        }
    }

    /// Adds the events of RDMA ports, as far as their devices count them.
    fn add_ports(&mut self, ports: &[PortCounts]) {
        for counts in ports {
            let place = Labels::default().with("device", &counts.device);
            let place = place.with("port", counts.port);
            let mut add = self.at(&place);
            PortEventMetrics::default().each(|counter, meaning, _| {
                let mut all = counts.counts.iter();
                if let Some((_, count)) = all.find(|(event, _)| event.name() == counter) {
                    add(counter, meaning, *count);
                }
            });
        }
    }

    fn add_channel(&mut self, channel: &ChannelShared) {
        let place = Labels::default().with("channel", &channel.plan.name);
        let ring = RingMetrics::default();
        ring.sealed_sequence.set(channel.ring.sealed().0);
        ring.oldest_sequence.set(channel.ring.oldest().0);
        ring.each(self.at(&place));
        channel.sender.each(self.at(&place));
        channel.repair.each(self.at(&place));
        if let Some(gap) = self.examples.requested.get(&channel.plan.id) {
            let exemplar = gap.exemplar(gap.datagrams());
            self.page.exemplify(&PUBLISHER, &place, "nacked", exemplar);
        }
        for (role, fan_outs) in [("data", &channel.lines), ("repair", &channel.repair_lines)] {
            for (fan_out, lines) in fan_outs.iter().enumerate() {
                let place = place.with("fan_out", fan_out);
                for (line, counters) in lines.iter().enumerate() {
                    let place = place.with("line", LineId(line as u8)).with("role", role);
                    counters.each(self.at(&place));
                }
            }
        }
    }

    fn add_source(&mut self, source: &SourceShared) {
        let place = Labels::default().with("source", source.source);
        source.counters.each(self.at(&place));
        for (line, counters) in source.lines.iter().enumerate() {
            counters.each(self.at(&place.with("line", line)));
        }
        if let Some(hearing) = source.hearing() {
            self.add_ages(&place, hearing, thread::now().monotonic);
        }
        for (kind, count) in source.types() {
            let of_type = MessageTypeMetrics::default();
            of_type.source_messages_by_type.set(count);
            of_type.each(self.at(&place.with("type", kind)));
        }
    }

    /// Adds the latency that a subscriber reports on one channel.
    fn add_latency(&mut self, place: &Labels, latency: &SubscriberLatency) {
        if let Some(limit_ns) = latency.clock_limit_ns {
            let clock = SubscriberClockMetrics::default();
            clock.subscriber_clock_difference_ns.set(limit_ns);
            clock.each(self.at(place));
        }
        for stage in &latency.stages {
            let of = SubscriberLatencyMetrics::default();
            of.subscriber_latency_p50_ns.set(stage.p50_ns);
            of.subscriber_latency_p99_ns.set(stage.p99_ns);
            of.subscriber_latency_p999_ns.set(stage.p999_ns);
            of.subscriber_latency_max_ns.set(stage.max_ns);
            of.subscriber_latency_samples.set(stage.samples);
            of.subscriber_latency_supported.set(stage.supported.into());
            of.each(self.at(&place.with("stage", stage.stage)));
        }
    }

    fn add_subscribers(&mut self, shared: &Shared) {
        // The repair thread waits for this lock, so it is released before anything is formatted.
        let subscribers = shared.subscribers().listed();
        for status in subscribers.reports.iter().filter(|s| s.joined) {
            let channel = shared.channels.iter().find(|c| c.plan.id == status.channel);
            let place = Labels::default()
                .with("subscriber", &status.name)
                .with("peer", status.peer)
                .with("channel", channel.map_or("", |c| &c.plan.name));
            let subscriber = SubscriberMetrics::default();
            subscriber.subscriber_sequence.set(status.sequence);
            subscriber.subscriber_lag.set(status.lag);
            subscriber.subscriber_lost_records.set(status.lost_records);
            subscriber.each(self.at(&place));
            if let Some(latency) = &status.latency {
                self.add_latency(&place, latency);
            }
            let of_it = (status.channel, status.name.clone());
            if let Some(loss) = self.examples.lost.get(&of_it) {
                let exemplar = loss.exemplar(loss.lost_records.unwrap_or(0));
                self.page
                    .exemplify(&PUBLISHER, &place, "subscriber_lost_records", exemplar);
            }
        }
    }
}

/// Returns all series of a publisher, for a page in this format.
#[must_use]
pub(crate) fn metrics(shared: &Shared, format: PageFormat) -> Page {
    let mut all = PublisherPage::default();
    if format == PageFormat::OpenMetrics {
        // The repair thread waits for this lock, so it is released before the list is read.
        let losses = shared.losses().list();
        all.examples = Examples::of(losses);
    }
    all.add_process(shared);
    all.add_ports(&shared.port_events.read());
    for channel in &shared.channels {
        all.add_channel(channel);
    }
    for source in &shared.sources {
        all.add_source(source);
    }
    all.add_subscribers(shared);
    all.page
}

/// Passes on every metric of a standby: name, help text, channel if it has one, and value.
fn each_standby_metric(
    state: &StandbyState,
    mut on: impl FnMut(&'static str, &'static str, Option<&str>, u64),
) {
    let name = state.state();
    let view = state.view();
    let standby = StandbyMetrics::default();
    standby.mirroring.set((name == "mirroring").into());
    standby.promoted.set((name == "promoted").into());
    standby
        .publisher_alive
        .set(view.is_publisher_alive().into());
    let is_refused = view.commands_problem().is_some();
    standby.commands_refused.set(is_refused.into());
    let differing = view.differing().map_or(0, |source| source.0.into());
    standby.differing_source.set(differing);
    standby.each(|name, help, value| on(name, help, None, value));
    state
        .counters
        .each(|name, help, value| on(name, help, None, value));
    for channel in &view.channels {
        let (mirrored, written) = (channel.mirrored, channel.written);
        let mirror = MirrorMetrics::default();
        mirror
            .mirrored_sequence
            .set(mirrored.map_or(0, |it| it.last.0));
        mirror.lag_sequences.set(channel.lag);
        mirror.lag_us.set(channel.behind.as_us());
        mirror.written_sequence.set(written.newest());
        mirror.written_lag_sequences.set(written.lag);
        mirror.written_datagrams.set(written.datagrams);
        mirror.inbox_first_datagrams.set(written.first);
        mirror.inbox_skipped_sequences.set(written.skipped);
        mirror.inbox_torn.set(written.torn);
        mirror.holes.set(mirrored.map_or(0, |it| it.holes));
        mirror.each(|name, help, value| on(name, help, Some(&channel.name), value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::hearing::Silence;
    use tickcast_reliability::control::{LatencyReport, StageLatency};
    use tickcast_transport::verbs::port_events::PortEvent;

    #[test]
    fn rdma_port_shows_the_events_that_it_counts() {
        let mut all = PublisherPage::default();
        let (device, port) = ("mlx5_0".to_owned(), 2);
        let counts = vec![(PortEvent::CnpSent, 7), (PortEvent::SendDiscard, 0)];
        all.add_ports(&[PortCounts {
            device,
            port,
            counts,
        }]);
        let text = all.page.encode(PageFormat::Prometheus);
        for (event, count) in [("cnp_sent", 7), ("send_discard", 0)] {
            let series =
                format!("events_total{{device=\"mlx5_0\",port=\"2\",event=\"{event}\"}} {count}");
            assert!(text.contains(&format!("_rdma_port_{series}\n")), "{text}");
        }
        assert!(!text.contains("ecn_mark"), "the device does not count it");
    }

    #[test]
    fn latency_of_a_subscriber_has_a_series_per_percentile() {
        let mut report = LatencyReport {
            clock_limit: Some(Nanos(2_500)),
            ..LatencyReport::default()
        };
        report.stages[2] = StageLatency {
            samples: 7,
            p50: Nanos(2_400),
            p99: Nanos(31_000),
            p999: Nanos(40_000),
            max: Nanos(2_000_000_000),
        };
        let mut all = PublisherPage::default();
        let place = Labels::default().with("subscriber", "risk-1");
        all.add_latency(&place, &SubscriberLatency::new(Nanos(1), &report));
        let text = all.page.encode(PageFormat::Prometheus);
        let stage = "subscriber=\"risk-1\",stage=\"sealed_to_delivered\"";
        for series in [
            "clock_difference_seconds{subscriber=\"risk-1\"} 0.0000025".into(),
            format!("latency_seconds{{{stage},percentile=\"50\"}} 0.0000024"),
            format!("latency_seconds{{{stage},percentile=\"99\"}} 0.000031"),
            format!("latency_seconds{{{stage},percentile=\"99.9\"}} 0.00004"),
            format!("latency_seconds{{{stage},percentile=\"100\"}} 2.0"),
            format!("latency_samples{{{stage}}} 7"),
            format!("latency_supported{{{stage}}} 0"),
        ] {
            let series = format!("\ntickcast_publisher_subscriber_{series}\n");
            assert!(text.contains(&series), "{series} {text}");
        }
        assert!(
            !text.contains("repair"),
            "a stage without samples has no series"
        );
    }

    #[test]
    fn event_of_an_rdma_port_always_has_a_metric() {
        for event in PortEvent::ALL {
            let mut found = false;
            PortEventMetrics::default().each(|counter, _, _| found |= counter == event.name());
            assert!(found, "{event:?}");
            assert!(PUBLISHER.find(event.name()).is_some(), "{event:?}");
        }
    }

    #[test]
    fn silent_source_and_its_lines_show_their_ages() {
        let s = Nanos::from_secs;
        let hearing = Hearing::new(2, s(10));
        hearing.line_heard(1, s(12));
        hearing.heard(s(11));
        hearing.set(Silence::Begun { since: s(1) });
        let mut all = PublisherPage::default();
        all.add_ages(&Labels::default().with("source", 7), &hearing, s(15));
        let text = all.page.encode(PageFormat::Prometheus);
        for series in [
            "source_silent{source=\"7\"} 1",
            "source_age_seconds{source=\"7\"} 4.0",
            "input_line_age_seconds{source=\"7\",line=\"0\"} 5.0",
            "input_line_age_seconds{source=\"7\",line=\"1\"} 3.0",
        ] {
            assert!(
                text.contains(&format!("\ntickcast_publisher_{series}\n")),
                "{text}"
            );
        }
    }
}
