//! The pages `/status` and `/losses` of a publisher, as far as `top` and `loss` show them.

use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use tickcast_subscriber::Stage;
use tickcast_tools::support::plain::Plain;

/// Maximum number of entries of one list that are shown; a page beyond it is refused.
const ENTRIES_MAX: usize = 100_000;

/// The reason why a page is not that of a publisher.
#[derive(Debug, Error)]
pub(crate) enum PageError {
    /// The page is not JSON, or lacks a field, or has one of another type.
    #[error("{page} is not that of a publisher: {source}; give the address of its admin port")]
    Json {
        /// Path of the page.
        page: &'static str,
        /// Cause, with line and column.
        source: serde_json::Error,
    },
    /// A list is longer than any publisher's.
    #[error("{page} lists {count} {what}, and at most {ENTRIES_MAX} are shown")]
    TooMany {
        /// Path of the page.
        page: &'static str,
        /// Kind of the entries.
        what: &'static str,
        /// Number of the entries.
        count: usize,
    },
}

/// The page `/status`.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Status {
    pub(crate) name: String,
    pub(crate) epoch: u64,
    pub(crate) ended: bool,
    pub(crate) handed_over_to: Option<String>,
    pub(crate) published_records: u64,
    pub(crate) channels: Vec<Channel>,
    pub(crate) sources: Vec<Source>,
    pub(crate) subscribers: Vec<Subscriber>,
    /// Reports for which the page has no room.
    #[serde(default)]
    pub(crate) subscribers_not_listed: usize,
}

/// A channel in `/status`.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Channel {
    pub(crate) id: u16,
    pub(crate) name: String,
    pub(crate) sealed: u64,
    pub(crate) ring_holds_s: f64,
    pub(crate) published_records: u64,
    pub(crate) sealed_bytes: u64,
    pub(crate) skipped_datagrams: u64,
    pub(crate) nacked: u64,
    pub(crate) answered: u64,
    pub(crate) answered_by_multicast: u64,
    pub(crate) refused_window: u64,
    pub(crate) refused_ahead: u64,
    pub(crate) refused_budget: u64,
    pub(crate) refused_too_slow: u64,
    pub(crate) refused_epoch: u64,
    pub(crate) refused_malformed: u64,
    pub(crate) pending: u64,
    pub(crate) repair_bytes: u64,
    pub(crate) multicast_repair_bytes: u64,
    pub(crate) replay_bytes: u64,
    pub(crate) lines: Vec<Line>,
}

impl Channel {
    /// Returns the sequences that were sent again.
    pub(crate) const fn repairs(&self) -> u64 {
        self.answered.saturating_add(self.answered_by_multicast)
    }

    /// Returns the sequences that were refused, for any reason.
    pub(crate) fn refused(&self) -> u64 {
        [
            self.refused_window,
            self.refused_ahead,
            self.refused_budget,
            self.refused_too_slow,
            self.refused_epoch,
            self.refused_malformed,
        ]
        .into_iter()
        .fold(0, u64::saturating_add)
    }

    /// Returns the bytes of repair and replay.
    pub(crate) const fn budgeted_bytes(&self) -> u64 {
        let repair = self
            .repair_bytes
            .saturating_add(self.multicast_repair_bytes);
        repair.saturating_add(self.replay_bytes)
    }
}

/// A line of a channel in `/status`.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Line {
    pub(crate) datagrams: u64,
    pub(crate) bytes: u64,
    pub(crate) stalls: u64,
    pub(crate) refused: u64,
    pub(crate) last_errno: u64,
}

/// A source in `/status`.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Source {
    pub(crate) source: u16,
    pub(crate) messages_total: u64,
    pub(crate) gaps: u64,
    pub(crate) missing_messages: u64,
    pub(crate) overflow_messages: u64,
    pub(crate) ended: u64,
    /// Absent for a source whose silence means nothing.
    pub(crate) silent: Option<bool>,
    pub(crate) age_us: Option<u64>,
    pub(crate) lines: Vec<InputLine>,
}

/// A line of a source in `/status`.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
pub(crate) struct InputLine {
    pub(crate) packets: u64,
    pub(crate) missing: u64,
    pub(crate) stopped: u64,
    pub(crate) age_us: Option<u64>,
}

/// A subscriber on one channel in `/status`.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Subscriber {
    pub(crate) name: String,
    pub(crate) channel: u16,
    pub(crate) joined: bool,
    pub(crate) follows: bool,
    pub(crate) sequence: u64,
    pub(crate) heard: u64,
    pub(crate) lag: u64,
    pub(crate) lost_records: u64,
    /// Absent before its first report, and from a publisher that takes none.
    #[serde(default)]
    pub(crate) latency: Option<ReportedLatency>,
}

/// The latency of a subscriber on one channel in its last interval, as it reports itself.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
pub(crate) struct ReportedLatency {
    pub(crate) interval_ns: u64,
    /// The clocks differ by at most this; `None` when unknown.
    pub(crate) clock_limit_ns: Option<u64>,
    pub(crate) stages: Vec<ReportedStage>,
}

/// A stage of a subscriber's latency.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
pub(crate) struct ReportedStage {
    pub(crate) stage: String,
    pub(crate) samples: u64,
    pub(crate) p50_ns: u64,
    pub(crate) p99_ns: u64,
    pub(crate) p999_ns: u64,
    pub(crate) max_ns: u64,
    /// Whether the clocks support these numbers.
    pub(crate) supported: bool,
}

impl ReportedLatency {
    /// Returns the stage from the sealed datagram to the application.
    pub(crate) fn delivered(&self) -> Option<&ReportedStage> {
        let mut all = self.stages.iter();
        all.find(|it| it.stage == Stage::SealedToDelivered.name())
    }
}

impl Status {
    /// Parses the page.
    ///
    /// # Errors
    /// Returns [`PageError`] if it is not that of a publisher.
    pub(crate) fn parse(text: &str) -> Result<Self, PageError> {
        const PAGE: &str = "/status";
        let parsed: Self = parsed(PAGE, text)?;
        for (what, count) in [
            ("channels", parsed.channels.len()),
            ("sources", parsed.sources.len()),
            ("subscribers", parsed.subscribers.len()),
        ] {
            check(PAGE, what, count)?;
        }
        let latencies = parsed.subscribers.iter().flat_map(|it| &it.latency);
        let stages = latencies.map(|it| it.stages.len()).sum();
        check(PAGE, "stages of latency", stages)?;
        Ok(parsed)
    }
}

/// The page `/losses`.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Losses {
    pub(crate) losses: Vec<Loss>,
}

/// A run of datagrams that one subscriber missed, as the publisher saw it.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
pub(crate) struct Loss {
    pub(crate) subscriber: String,
    pub(crate) channel: u16,
    pub(crate) epoch: u64,
    pub(crate) first: u64,
    pub(crate) last: u64,
    /// When the publisher heard of it, UTC.
    pub(crate) at_utc_ns: u64,
    pub(crate) requested: Option<String>,
    pub(crate) requests: u64,
    pub(crate) answered: u64,
    pub(crate) refused: Option<String>,
    pub(crate) outcome: String,
    pub(crate) took_us: Option<u64>,
    pub(crate) lost_records: Option<u64>,
}

impl Loss {
    /// Returns when the publisher heard of it, with microseconds of UTC.
    pub(crate) fn at(&self) -> String {
        let at = Timestamp::from_nanosecond(i128::from(self.at_utc_ns)).unwrap_or_default();
        format!("{at:.6}")
    }

    /// Returns its cause as far as the publisher knows it.
    pub(crate) fn cause(&self) -> String {
        match (&self.refused, self.requests) {
            (Some(reason), _) => match &reason[..] {
                "window" => "refused: the ring no longer held it".into(),
                "ahead" => "refused: it had not been sent yet".into(),
                "budget" => "refused: a budget for repair was used up".into(),
                "too_slow" => "refused: the replay would never have caught up".into(),
                other => format!("refused: {}", Plain(other)),
            },
            (None, 0) => "not requested: a deadline, no repair, or gone before".into(),
            (None, _) => "missing at the subscriber; its journal has the place".into(),
        }
    }

    /// Returns what became of it.
    pub(crate) fn fate(&self) -> String {
        let by = match self.requested.as_deref() {
            Some("nack") => "by NACK",
            Some("nack_connection") => "by NACK over verbs",
            Some("replay") => "by replay",
            _ => "without a request",
        };
        match &self.outcome[..] {
            "repaired" => format!("repaired {by}"),
            "elsewhere" => "arrived on a line or by multicast repair".into(),
            "open" => format!("open, requested {by}"),
            "lost" => "lost".into(),
            other => Plain(other).to_string(),
        }
    }
}

impl Losses {
    /// Parses the page.
    ///
    /// # Errors
    /// Returns [`PageError`] if it is not that of a publisher.
    pub(crate) fn parse(text: &str) -> Result<Self, PageError> {
        const PAGE: &str = "/losses";
        let parsed: Self = parsed(PAGE, text)?;
        check(PAGE, "losses", parsed.losses.len())?;
        Ok(parsed)
    }
}

fn parsed<T: DeserializeOwned>(page: &'static str, text: &str) -> Result<T, PageError> {
    serde_json::from_str(text).map_err(|source| PageError::Json { page, source })
}

fn check(page: &'static str, what: &'static str, count: usize) -> Result<(), PageError> {
    if count > ENTRIES_MAX {
        return Err(PageError::TooMany { page, what, count });
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Returns a page with one channel, source and subscriber.
    pub(crate) fn page(epoch: u64, records: u64) -> Value {
        json!({
            "name": "p", "epoch": epoch, "ended": false, "handed_over_to": null,
            "published_records": records,
            "channels": [{
                "id": 1, "name": "equities", "sealed": records / 10, "ring_holds_s": 2.5,
                "published_records": records, "sealed_bytes": records * 50,
                "skipped_datagrams": 0, "nacked": 30, "answered": 20,
                "answered_by_multicast": 4, "refused_window": 5, "refused_ahead": 0,
                "refused_budget": 1, "refused_too_slow": 0, "refused_epoch": 0,
                "refused_malformed": 0, "pending": 0, "repair_bytes": 9_000,
                "multicast_repair_bytes": 100, "replay_bytes": 0,
                "lines": [{
                    "datagrams": records / 10, "bytes": records * 50, "stalls": 2,
                    "refused": 3, "last_errno": 105,
                }],
            }],
            "sources": [{
                "source": 1, "messages_total": records, "gaps": 2, "missing_messages": 7,
                "overflow_messages": 0, "ended": 0, "silent": false, "age_us": 1_500,
                "lines": [{ "packets": 9, "missing": 1, "stopped": 0, "age_us": 1_500 }],
            }],
            "subscribers": [{
                "name": "risk-1", "channel": 1, "joined": true, "follows": true,
                "sequence": records / 10 - 5, "heard": records / 10, "lag": 5,
                "lost_records": 12,
                "latency": {
                    "interval_ns": 1_000_000_000, "clock_limit_ns": 4_000,
                    "stages": [{
                        "stage": "sealed_to_delivered", "samples": 678, "p50_ns": 3_000,
                        "p99_ns": 21_000, "p999_ns": 34_000, "max_ns": 55_000,
                        "supported": false,
                    }],
                },
            }],
        })
    }

    /// Returns a loss of the subscriber of [`page`].
    pub(crate) fn loss(first: u64, outcome: &str) -> Value {
        json!({
            "subscriber": "risk-1", "channel": 1, "joined": true, "epoch": 5, "first": first,
            "last": first + 2, "at_utc_ns": 1_795_530_600_000_000_000_u64, "requested": "nack",
            "requests": 2, "answered": 3, "refused": null, "outcome": outcome,
            "took_us": 1_250, "lost_records": null,
        })
    }

    #[test]
    fn hostile_pages_are_typed_errors() {
        for text in [
            "",
            "[]",
            "{}",
            "null",
            "<html>",
            "{\"name\": 1}",
            &"[".repeat(10_000),
        ] {
            let error = Status::parse(text).expect_err(text);
            assert!(matches!(error, PageError::Json { .. }), "{error}");
            assert!(error.to_string().contains("admin port"), "{error}");
            assert!(Losses::parse(text).is_err() || text == "{}", "{text}");
        }
        let parse = |page: &Value| Status::parse(&page.to_string());
        assert!(parse(&page(5, 1_000)).is_ok());
        // A publisher that takes no reports of latency has no field for them.
        let mut older = page(5, 1_000);
        let subscriber = older["subscribers"][0].as_object_mut().unwrap();
        subscriber.remove("latency");
        assert_eq!(parse(&older).unwrap().subscribers[0].latency, None);
        for (pointer, wrong) in [
            ("/epoch", json!(-1)),
            ("/published_records", json!(1e30)),
            ("/channels/0/nacked", json!("many")),
            ("/subscribers/0/lag", json!(null)),
            ("/subscribers", json!({})),
            ("/subscribers/0/latency", json!([])),
            ("/subscribers/0/latency/stages/0/p99_ns", json!(-1)),
        ] {
            let mut page = page(5, 1_000);
            *page.pointer_mut(pointer).unwrap() = wrong;
            assert!(parse(&page).is_err(), "{pointer}");
        }
        let mut long = page(5, 1_000);
        let one = long["subscribers"][0].clone();
        long["subscribers"] = vec![one; ENTRIES_MAX + 1].into();
        let error = parse(&long).expect_err("too many");
        assert!(matches!(error, PageError::TooMany { .. }), "{error}");
    }
}
