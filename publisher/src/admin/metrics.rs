//! The publisher's metrics as text for Prometheus (format 0.0.4). Every series exists from the
//! start. Series of one name are together, and peers' texts can't leave their label.

use std::fmt::Write;
use std::sync::atomic::Ordering::Relaxed;

use tickcast_log::is_control;
use tickcast_reliability::counters;
use tickcast_reliability::types::Nanos;

use crate::state::audit_log;
use crate::state::hearing::Hearing;
use crate::state::standby::StandbyState;
use crate::state::{Shared, thread};

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
        written_first_datagrams,
        /// Sequences not written, or overwritten before they were read; they arrive on another path.
        written_skipped_sequences,
        /// Slots found half written, or never holding a whole datagram.
        inbox_torn,
        /// Times that a mirror began anew because a missing datagram could not be had.
        holes,
    }
}

/// One metric: its series must stand together under one head.
struct Family {
    part: &'static str,
    name: &'static str,
    help: &'static str,
    series: String,
}

/// Families in the order they first appeared.
#[derive(Default)]
struct Families(Vec<Family>);

impl Families {
    fn add(&mut self, labels: &str, name: &'static str, help: &'static str, value: u64) {
        self.add_of("publisher", labels, name, help, value);
    }

    /// Adds a series of a part other than the publisher.
    fn add_of(
        &mut self,
        part: &'static str,
        labels: &str,
        name: &'static str,
        help: &'static str,
        value: u64,
    ) {
        let is_it = |family: &Family| (family.part, family.name) == (part, name);
        let at = self.0.iter().position(is_it).unwrap_or_else(|| {
            let series = String::new();
            self.0.push(Family {
                part,
                name,
                help,
                series,
            });
            self.0.len() - 1
        });
        let series = &mut self.0[at].series;
        // Writing to a string can't fail.
        let _ = writeln!(series, "tickcast_{part}_{name}{labels} {value}");
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for Family {
            part,
            name,
            help,
            series,
        } in &self.0
        {
            let kind = if help.contains("(a gauge)") {
                "gauge"
            } else {
                "counter"
            };
            let _ = write!(
                text,
                "# HELP tickcast_{part}_{name} {help}\n# TYPE tickcast_{part}_{name} {kind}\n{series}"
            );
        }
        text
    }
}

/// Returns all series of a publisher, in Prometheus' text format.
#[must_use]
pub(crate) fn metrics(shared: &Shared) -> String {
    let mut all = Families::default();
    let publisher = PublisherMetrics::default();
    publisher.epoch.set(shared.epoch.0);
    publisher.ended.set(shared.is_ended().into());
    publisher.audit_lines_lost.set(audit_log::lines_lost());
    publisher
        .hand_overs_refused
        .set(shared.hand_overs_refused.load(Relaxed));
    publisher.each(|name, help, value| all.add("", name, help, value));
    shared
        .service
        .each(|name, help, value| all.add("", name, help, value));
    shared
        .latency_log
        .each(|name, help, value| all.add("", name, help, value));
    for (endpoint, counters) in shared.endpoints.each() {
        let label = format!("{{endpoint=\"{endpoint}\"}}");
        counters.each(|name, help, value| all.add(&label, name, help, value));
    }
    if let Some(standby) = &shared.standby {
        each_standby_metric(standby, |name, help, channel, value| {
            let label = channel.map(|channel| format!("{{channel=\"{channel}\"}}"));
            all.add_of("standby", &label.unwrap_or_default(), name, help, value);
        });
    }
    for channel in &shared.channels {
        let label = format!("{{channel=\"{}\"}}", channel.plan.name);
        let ring = RingMetrics::default();
        ring.sealed_sequence.set(channel.ring.sealed().0);
        ring.oldest_sequence.set(channel.ring.oldest().0);
        ring.each(|name, help, value| all.add(&label, name, help, value));
        channel
            .sender
            .each(|name, help, value| all.add(&label, name, help, value));
        channel
            .repair
            .each(|name, help, value| all.add(&label, name, help, value));
        for (role, fan_outs) in [("data", &channel.lines), ("repair", &channel.repair_lines)] {
            for (fan_out, lines) in fan_outs.iter().enumerate() {
                for (line, counters) in lines.iter().enumerate() {
                    let label = format!(
                        "{{channel=\"{}\",fan_out=\"{fan_out}\",line=\"{}\",role=\"{role}\"}}",
                        channel.plan.name,
                        tickcast_reliability::delivery::LineId(line as u8),
                    );
                    counters.each(|name, help, value| all.add(&label, name, help, value));
                }
            }
        }
    }
    for source in &shared.sources {
        let label = format!("{{source=\"{}\"}}", source.source);
        source
            .counters
            .each(|name, help, value| all.add(&label, name, help, value));
        for (line, counters) in source.lines.iter().enumerate() {
            let label = format!("{{source=\"{}\",line=\"{line}\"}}", source.source);
            counters.each(|name, help, value| all.add(&label, name, help, value));
        }
        if let Some(hearing) = source.hearing() {
            add_ages(&mut all, &label, hearing, thread::now().monotonic);
        }
        for (kind, count) in source.types() {
            let kind = escaped(&kind);
            let label = format!("{{source=\"{}\",type=\"{kind}\"}}", source.source);
            let of_type = MessageTypeMetrics::default();
            of_type.source_messages_by_type.set(count);
            of_type.each(|name, help, value| all.add(&label, name, help, value));
        }
    }
    // The repair thread waits for this lock, so it is released before anything is formatted.
    let subscribers = shared.subscribers().list();
    for status in subscribers.iter().filter(|s| s.joined) {
        let channel = shared.channels.iter().find(|c| c.plan.id == status.channel);
        let label = format!(
            "{{subscriber=\"{}\",peer=\"{}\",channel=\"{}\"}}",
            escaped(&status.name),
            status.peer,
            channel.map_or("", |c| &c.plan.name)
        );
        let subscriber = SubscriberMetrics::default();
        subscriber.subscriber_sequence.set(status.sequence);
        subscriber.subscriber_lag.set(status.lag);
        subscriber.subscriber_lost_records.set(status.lost_records);
        subscriber.each(|name, help, value| all.add(&label, name, help, value));
    }
    all.text()
}

/// Adds how long ago a live source and its lines were heard.
fn add_ages(all: &mut Families, source_label: &str, hearing: &Hearing, now: Nanos) {
    let source = SourceHearingMetrics::default();
    source
        .source_silent
        .set(hearing.silent_since().is_some().into());
    source.source_age_us.set(hearing.age(now).as_us());
    source.each(|name, help, value| all.add(source_label, name, help, value));
    for (line, age) in hearing.line_ages(now).enumerate() {
        let label = source_label.replace('}', &format!(",line=\"{line}\"}}"));
        let of_line = InputLineHearingMetrics::default();
        of_line.input_line_age_us.set(age.as_us());
        of_line.each(|name, help, value| all.add(&label, name, help, value));
    }
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
        mirror.written_first_datagrams.set(written.first);
        mirror.written_skipped_sequences.set(written.skipped);
        mirror.inbox_torn.set(written.torn);
        mirror.holes.set(mirrored.map_or(0, |it| it.holes));
        mirror.each(|name, help, value| on(name, help, Some(&channel.name), value));
    }
}

/// Escapes a label's value, so that a peer's text neither ends it early nor controls a terminal.
fn escaped(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    for c in value.chars() {
        match c {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            // The format has no escape for these, so the value itself has a backslash.
            c if is_control(c) => {
                text.push('\\');
                text.extend(c.escape_default());
            }
            c => text.push(c),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::hearing::Silence;

    #[test]
    fn series_of_one_name_stand_together_under_one_head() {
        let mut all = Families::default();
        for label in ["{channel=\"a\"}", "{channel=\"b\"}"] {
            all.add(label, "sealed", "Sealed.", 1);
            all.add(label, "joined", "Joined (a gauge).", 2);
        }
        assert_eq!(
            all.text(),
            "# HELP tickcast_publisher_sealed Sealed.\n# TYPE tickcast_publisher_sealed counter\n\
             tickcast_publisher_sealed{channel=\"a\"} 1\ntickcast_publisher_sealed{channel=\"b\"} 1\n\
             # HELP tickcast_publisher_joined Joined (a gauge).\n# TYPE tickcast_publisher_joined gauge\n\
             tickcast_publisher_joined{channel=\"a\"} 2\ntickcast_publisher_joined{channel=\"b\"} 2\n"
        );
    }

    #[test]
    fn silent_source_and_its_lines_show_their_ages() {
        let s = Nanos::from_secs;
        let hearing = Hearing::new(2, s(10));
        hearing.line_heard(1, s(12));
        hearing.heard(s(11));
        hearing.set(Silence::Begun { since: s(1) });
        let mut all = Families::default();
        add_ages(&mut all, "{source=\"7\"}", &hearing, s(15));
        let text = all.text();
        for series in [
            "source_silent{source=\"7\"} 1",
            "source_age_us{source=\"7\"} 4000000",
            "input_line_age_us{source=\"7\",line=\"0\"} 5000000",
            "input_line_age_us{source=\"7\",line=\"1\"} 3000000",
        ] {
            assert!(
                text.contains(&format!("\ntickcast_publisher_{series}\n")),
                "{text}"
            );
        }
    }

    #[test]
    fn metric_label_value_is_escaped() {
        assert_eq!(escaped("a\"} 1\nb\\"), "a\\\"} 1\\nb\\\\");
        assert_eq!(escaped("\x1b[2J\r\u{202e}é"), r"\\u{1b}[2J\\r\\u{202e}é");
    }
}
