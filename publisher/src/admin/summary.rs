//! The results of a run: for `--summary`, for `/status`, and for the exit code.

use serde_json::{Map, Value, json};
use thiserror::Error;
use tickcast_reliability::types::Nanos;

use crate::error::PublisherError;
use crate::state::Shared;
use crate::state::audit_log;
use crate::state::hearing::Hearing;
use crate::state::thread;

/// The reason why a session did not end properly.
///
/// ```
/// # use std::time::Duration;
/// # use tickcast_publisher::Publisher;
/// # use tickcast_publisher::summary::EndError;
/// # fn f(publisher: Publisher) {
/// match publisher.end_session(Duration::from_secs(5)) {
///     Ok(summary) => println!("{}", summary.json()),
///     Err(EndError::NotKept { summary, .. }) => println!("{}", summary.json()),
///     Err(error) => std::process::exit(error.exit_code().into()),
/// }
/// # }
/// ```
#[derive(Debug, Error)]
pub enum EndError {
    /// The publisher failed.
    #[error(transparent)]
    Failed(#[from] PublisherError),
    /// All messages and END were published, but the state directory could not record the end.
    #[error(
        "{source}; the session was published completely, but its end could not be recorded: the \
         next start will not report a proper end"
    )]
    NotKept {
        /// The result of the run.
        summary: Box<PublisherSummary>,
        /// The reason why the end could not be recorded.
        source: Box<PublisherError>,
    },
}

impl EndError {
    /// Returns the exit code of the service, as [`PublisherError::exit_code`].
    ///
    /// ```
    /// # use tickcast_publisher::summary::EndError;
    /// # fn f(error: EndError) {
    /// std::process::exit(error.exit_code().into());
    /// # }
    /// ```
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Failed(error) => error.exit_code(),
            Self::NotKept { source, .. } => source.exit_code(),
        }
    }
}

/// The results of a publisher at one moment.
///
/// ```
/// # fn f(monitor: &tickcast_publisher::PublisherMonitor) {
/// let summary = monitor.summary();
/// println!("{}", summary.json());
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct PublisherSummary {
    json: Value,
    lost: bool,
}

impl PublisherSummary {
    /// Takes the current values of all counters.
    #[must_use]
    pub(crate) fn of(shared: &Shared) -> Self {
        let mut published = 0;
        let mut lost = false;
        let channels: Vec<Value> = (shared.channels.iter())
            .map(|channel| {
                published += channel.sender.published_records.get();
                lost |= channel.sender.oversize_records.get() > 0;
                lost |= channel.sender.source_messages_lost.get() > 0;
                let mut all = Map::new();
                all.insert("id".into(), json!(channel.plan.id));
                all.insert("name".into(), json!(channel.plan.name));
                all.insert("epoch".into(), json!(shared.epoch));
                let (digest, missing) = match channel.digest() {
                    None => (None, None),
                    Some(Ok(digest)) => (Some(digest), None),
                    Some(Err(why)) => (None, Some(why)),
                };
                all.insert("digest".into(), json!(digest));
                all.insert("digest_missing".into(), json!(missing));
                all.insert("sealed".into(), json!(channel.ring.sealed()));
                all.insert("before".into(), json!(channel.before.get()));
                all.insert("ring_holds_s".into(), json!(channel.plan.holds_s));
                all.insert("latency".into(), json!(channel.latency()));
                channel
                    .sender
                    .each(|name, _, value| put(&mut all, name, value));
                channel
                    .repair
                    .each(|name, _, value| put(&mut all, name, value));
                let lines: Vec<Value> = (channel.lines.iter().flatten())
                    .map(|line| {
                        let mut all = Map::new();
                        line.each(|name, _, value| put(&mut all, short(name, "line_"), value));
                        Value::Object(all)
                    })
                    .collect();
                all.insert("lines".into(), Value::Array(lines));
                Value::Object(all)
            })
            .collect();
        let sources: Vec<Value> = (shared.sources.iter())
            .map(|source| {
                let c = &source.counters;
                lost |= [
                    &c.source_missing_messages,
                    &c.source_gaps,
                    &c.source_malformed,
                    &c.source_overflow_messages,
                    &c.source_errors,
                    &c.source_faults,
                ]
                .iter()
                .any(|counter| counter.get() > 0);
                let mut all = Map::new();
                all.insert("source".into(), json!(source.source));
                let types = source.types().into_iter().map(|(kind, n)| (kind, json!(n)));
                let types: Map<String, Value> = types.collect();
                c.each(|name, _, value| put(&mut all, short(name, "source_"), value));
                // Show the counts by type, and their sum beside them.
                if let Some(total) = all.insert("messages".into(), Value::Object(types)) {
                    all.insert("messages_total".into(), total);
                }
                let lines = source.lines.iter().map(|line| {
                    let mut all = Map::new();
                    line.each(|name, _, value| put(&mut all, short(name, "input_line_"), value));
                    Value::Object(all)
                });
                all.insert("lines".into(), lines.collect());
                if let Some(hearing) = source.hearing() {
                    put_ages(&mut all, hearing, thread::now().monotonic);
                }
                all.insert("foreign_senders".into(), source.foreign().json());
                Value::Object(all)
            })
            .collect();
        let subscribers = shared.subscribers().listed();
        let mut service = Map::new();
        shared
            .service
            .each(|name, _, value| put(&mut service, name, value));
        let reloads = shared.reloads.counts();
        let json = json!({
            "name": shared.name,
            "epoch": shared.epoch,
            "ended": shared.is_ended(),
            "handed_over_to": shared.handed_over_to.get(),
            "standby": shared.standby.as_ref().map(|standby| standby.json()),
            "published_records": published,
            "channels": channels,
            "source": added_up(&sources),
            "sources": sources,
            "subscribers": subscribers.reports,
            "subscribers_not_listed": subscribers.not_listed,
            // A subscriber's report is its claim, so it does not decide the exit code.
            "subscribers_report_loss": subscribers.report_loss,
            "service": service,
            "rdma_withheld": shared.withheld.get(),
            "audit_lines_lost": audit_log::lines_lost(),
            "reloads": { "applied": reloads.0, "refused": reloads.1 },
        });
        Self { json, lost }
    }

    /// Returns this summary, or an error that contains it if the end of the session could not be recorded.
    pub(crate) fn unless(self, kept: Result<(), PublisherError>) -> Result<Self, EndError> {
        match kept {
            Ok(()) => Ok(self),
            Err(source) => Err(EndError::NotKept {
                summary: Box::new(self),
                source: Box::new(source),
            }),
        }
    }

    /// Returns the summary as JSON. For each channel, `digest` and `sealed` cover the whole epoch.
    /// `before` gives what an earlier run of this publisher published in it. Counters cover this run.
    ///
    /// ```
    /// # fn f(monitor: &tickcast_publisher::PublisherMonitor) {
    /// let summary = monitor.summary();
    /// println!("{:#}", summary.json());
    /// # }
    /// ```
    #[must_use]
    pub const fn json(&self) -> &Value {
        &self.json
    }

    /// Returns the number of records that this process published, on all channels.
    ///
    /// ```
    /// # fn f(monitor: &tickcast_publisher::PublisherMonitor) {
    /// let summary = monitor.summary();
    /// println!("{} records so far", summary.published_records());
    /// # }
    /// ```
    #[must_use]
    pub fn published_records(&self) -> u64 {
        self.json["published_records"].as_u64().unwrap_or(0)
    }

    /// Returns whether a source was incomplete, or a record was too long to be sent. Losses that
    /// subscribers report stand in the JSON, as `subscribers_report_loss`.
    ///
    /// ```
    /// # fn f(monitor: &tickcast_publisher::PublisherMonitor) {
    /// let summary = monitor.summary();
    /// assert!(!summary.has_loss(), "{}", summary.json());
    /// # }
    /// ```
    #[must_use]
    pub const fn has_loss(&self) -> bool {
        self.lost
    }
}

fn put(all: &mut Map<String, Value>, name: &str, value: u64) {
    all.insert(name.into(), value.into());
}

/// Adds how long ago a live source and its lines were heard.
fn put_ages(all: &mut Map<String, Value>, hearing: &Hearing, now: Nanos) {
    all.insert("silent".into(), hearing.silent_since().is_some().into());
    put(all, "age_us", hearing.age(now).as_us());
    let lines = all.get_mut("lines").and_then(Value::as_array_mut);
    for (line, age) in lines.into_iter().flatten().zip(hearing.line_ages(now)) {
        line["age_us"] = age.as_us().into();
    }
}

fn short<'a>(name: &'a str, prefix: &str) -> &'a str {
    name.strip_prefix(prefix).unwrap_or(name)
}

/// Returns the sum over all sources, field by field.
fn added_up(sources: &[Value]) -> Value {
    let mut all = Map::new();
    for source in sources.iter().filter_map(Value::as_object) {
        for (key, value) in source {
            if ["source", "lines", "foreign_senders", "silent", "age_us"].contains(&key.as_str()) {
                continue;
            }
            add(all.entry(key).or_insert(Value::Null), value);
        }
    }
    Value::Object(all)
}

fn add(to: &mut Value, value: &Value) {
    match (&mut *to, value) {
        (Value::Null, _) => *to = value.clone(),
        (Value::Object(sums), Value::Object(values)) => {
            for (key, value) in values {
                add(sums.entry(key).or_insert(Value::Null), value);
            }
        }
        _ => {
            let sum = to
                .as_u64()
                .unwrap_or(0)
                .saturating_add(value.as_u64().unwrap_or(0));
            *to = sum.into();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn live_source_and_its_lines_show_their_ages() {
        let s = Nanos::from_secs;
        let hearing = Hearing::new(2, s(10));
        hearing.line_heard(1, s(12));
        let mut all = Map::new();
        all.insert("lines".into(), json!([{ "packets": 1 }, { "packets": 2 }]));
        put_ages(&mut all, &hearing, s(15));
        let expected = json!({
            "silent": false, "age_us": 5_000_000,
            "lines": [
                { "packets": 1, "age_us": 5_000_000 }, { "packets": 2, "age_us": 3_000_000 },
            ],
        });
        assert_eq!(Value::Object(all), expected);
    }

    #[test]
    fn sources_are_added_up_field_by_field() {
        let sources = [
            json!({"source": 1, "gaps": 2, "messages": {"Q": 3, "T": 1}, "foreign_senders": []}),
            json!({"source": 2, "gaps": 5, "messages": {"Q": 4, "A": 7}}),
        ];
        let expected = json!({"gaps": 7, "messages": {"Q": 7, "T": 1, "A": 7}});
        assert_eq!(added_up(&sources), expected);
    }
}
