//! The comparison of publisher and subscribers: digests, and losses balanced to the record.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tickcast_reliability::delivery::LossCause;
use tickcast_reliability::types::{ChannelId, Sequence, SequenceRange};

use crate::commands::listen::summary::{Percentiles, Summary};
use tickcast_tools::support::table::{span, table, thousands};

/// The used part of the publisher's summary.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Published {
    published_records: u64,
    source: Value,
    service: Value,
    channels: Vec<PublishedChannel>,
}

/// One channel of the publisher's summary.
#[derive(Debug, Serialize, Deserialize)]
struct PublishedChannel {
    id: ChannelId,
    name: String,
    published_records: u64,
    digest: Option<String>,
    /// All other fields, such as the repair counters.
    #[serde(flatten)]
    more: BTreeMap<String, Value>,
}

/// A subscriber's summary, compared with the publisher's.
#[derive(Debug, Serialize)]
struct Compared {
    #[serde(flatten)]
    summary: Summary,
    /// Whether every channel's digest equals the publisher's.
    digest_matches: bool,
    /// Whether delivered + lost = published on every channel, to the record.
    balances: bool,
}

/// The result of the demo.
#[derive(Debug, Serialize)]
pub(super) struct Verdict {
    seed: u64,
    /// Whether every digest of every subscriber equals the publisher's, and the source itself was
    /// complete.
    pub(super) whole: bool,
    repair: bool,
    #[serde(flatten)]
    published: Published,
    subscribers: Vec<Compared>,
}

impl Verdict {
    /// Compares the summaries.
    pub(super) fn new(
        published: Published,
        received: Vec<Summary>,
        seed: u64,
        repair: bool,
    ) -> Self {
        let subscribers: Vec<_> = received
            .into_iter()
            .map(|summary| Compared {
                digest_matches: published.all(&summary, |theirs, ours| {
                    theirs.digest.is_some() && theirs.digest == ours.digest
                }),
                balances: summary.losses_of_unknown_size == 0
                    && published.all(&summary, |theirs, ours| {
                        theirs.published_records == ours.delivered_records + ours.lost_records
                    }),
                summary,
            })
            .collect();
        Self {
            seed,
            whole: published.is_whole()
                && subscribers.iter().all(|s| s.digest_matches && s.balances),
            repair,
            published,
            subscribers,
        }
    }

    /// Returns whether the verdict explains the publisher's exit code 1.
    pub(super) fn explains_publisher(&self) -> bool {
        let lost = |s: &Compared| !s.summary.lost_ranges.is_empty();
        !self.published.is_whole() || self.subscribers.iter().any(lost)
    }

    /// Returns the table of results: one row for each measurement, one column for each subscriber.
    fn table(&self) -> comfy_table::Table {
        let names = self.subscribers.iter().map(|s| s.summary.name.as_str());
        let mut table = table(&std::iter::once("").chain(names).collect::<Vec<_>>());
        let mut row = |name: &str, value: &dyn Fn(&Compared) -> String| {
            let values = self.subscribers.iter().map(value);
            table.add_row(std::iter::once(name.to_owned()).chain(values));
        };
        let published = self.published.published_records;
        row("records published", &|_| thousands(published));
        row("records delivered", &|s| {
            thousands(s.summary.delivered_records)
        });
        row("records lost", &|s| thousands(s.summary.lost_records));
        let sealed = self.published.sealed();
        row("datagrams sent", &|_| thousands(sealed));
        row("of those dropped by the network", &|s| {
            thousands(s.summary.dropped_by_faults())
        });
        row("gaps (datagrams)", &|s| {
            thousands(s.summary.missing_datagrams)
        });
        row("of those recovered", &|s| {
            thousands(s.summary.missing_recovered)
        });
        row("duplicates", &|s| thousands(s.summary.duplicates));
        row("corrupt, dropped", &|s| {
            thousands(s.summary.corrupt_dropped)
        });
        let of = |p: Percentiles, value: u64| {
            if p.count == 0 {
                "-".into()
            } else {
                span(value)
            }
        };
        let latency = |s: &Compared| s.summary.latency_ns;
        row("latency p50", &|s| of(latency(s), latency(s).p50));
        row("latency p99", &|s| of(latency(s), latency(s).p99));
        row("latency p99.9", &|s| of(latency(s), latency(s).p999));
        row("latency max", &|s| of(latency(s), latency(s).max));
        let repair = |s: &Compared| s.summary.repair_ns;
        row("time to repair p50", &|s| of(repair(s), repair(s).p50));
        row("time to repair p99", &|s| of(repair(s), repair(s).p99));
        row("digest equals the publisher's", &|s| {
            yes(s.digest_matches).into()
        });
        table
    }
}

/// Counters of a source that make it incomplete, with the text of each.
const SOURCE_FINDINGS: [(&str, &str); 6] = [
    (
        "errors",
        "errors that ended the source early: it is damaged (see --keep-logs)",
    ),
    (
        "faults",
        "reasons why the recording is not whole (see tickcast inspect)",
    ),
    ("gaps", "gaps in the source itself"),
    ("missing_messages", "messages missing in the source itself"),
    ("malformed", "packets of the source that could not be read"),
    (
        "overflow_messages",
        "messages of the source that found the queue full",
    ),
];
const SOURCE_NOTES: [(&str, &str); 2] = [
    (
        "resets",
        "times that the source restarted its sequence numbers",
    ),
    ("truncated", "record cut off at the end of the recording"),
];

impl Published {
    /// Returns whether the source was complete and all of it was published.
    fn is_whole(&self) -> bool {
        let findings = SOURCE_FINDINGS.iter();
        findings.map(|(name, _)| self.counted(name)).sum::<u64>() + self.oversize() == 0
    }

    fn counted(&self, name: &str) -> u64 {
        self.source[name].as_u64().unwrap_or(0)
    }

    /// Returns the number of datagrams sent to each group.
    fn sealed(&self) -> u64 {
        let of = |channel: &PublishedChannel| channel.more.get("sealed")?.as_u64();
        self.channels.iter().filter_map(of).sum()
    }

    /// Returns the number of records too large for a datagram.
    fn oversize(&self) -> u64 {
        let of = |channel: &PublishedChannel| channel.more.get("oversize_records")?.as_u64();
        self.channels.iter().filter_map(of).sum()
    }

    /// Returns whether a subscriber has every channel, and the condition holds for each.
    fn all(
        &self,
        summary: &Summary,
        holds: impl Fn(&PublishedChannel, &crate::commands::listen::summary::ChannelSummary) -> bool,
    ) -> bool {
        self.channels.iter().all(|theirs| {
            let ours = summary
                .channels
                .iter()
                .find(|ours| ours.channel == Some(theirs.id));
            ours.is_some_and(|ours| holds(theirs, ours))
        })
    }
}

const fn yes(it: bool) -> &'static str {
    if it { "yes" } else { "NO" }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n", self.table())?;
        for channel in &self.published.channels {
            let digest = channel.digest.as_deref().unwrap_or("not taken");
            let records = thousands(channel.published_records);
            writeln!(
                f,
                "channel {}: {records} records, digest {digest}",
                channel.name
            )?;
        }
        for (name, what) in SOURCE_FINDINGS.iter().chain(&SOURCE_NOTES) {
            let count = self.published.counted(name);
            if count > 0 {
                writeln!(f, "source: {} {what}", thousands(count))?;
            }
        }
        if self.published.oversize() > 0 {
            let count = thousands(self.published.oversize());
            writeln!(f, "publisher: {count} records larger than a datagram")?;
        }
        for subscriber in &self.subscribers {
            self.losses_of(subscriber, f)?;
        }
        if self.whole {
            return write!(
                f,
                "Whole: every record reached every subscriber, in order (seed {}).",
                self.seed
            );
        }
        if self
            .subscribers
            .iter()
            .all(|s| s.digest_matches && s.balances)
        {
            return write!(
                f,
                "Not whole: every subscriber has every record that was published, but the source \
                 itself was not whole (seed {}).",
                self.seed
            );
        }
        let balanced = self.subscribers.iter().all(|s| s.balances);
        let sum = if balanced {
            "delivered + lost = published for every subscriber, to the record"
        } else {
            "delivered + lost does NOT equal published: this is a bug, please report it with the \
             files of --keep-logs"
        };
        let why = if self.repair {
            ""
        } else {
            ", because repair is off"
        };
        write!(f, "Not whole{why}; {sum} (seed {}).", self.seed)
    }
}

impl Verdict {
    /// Writes a subscriber's losses by channel and cause. The JSON summary has the number of records of
    /// each range.
    fn losses_of(&self, subscriber: &Compared, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let summary = &subscriber.summary;
        for channel in &self.published.channels {
            for cause in LossCause::ALL {
                let lost = summary.lost_ranges.iter();
                let lost = lost.filter(|lost| (lost.channel, lost.cause) == (channel.id, cause));
                let lost: Vec<_> = lost.collect();
                if lost.is_empty() {
                    continue;
                }
                let known: u64 = lost.iter().filter_map(|lost| lost.records).sum();
                let (name, records) = (&channel.name, thousands(known));
                write!(
                    f,
                    "{} lost {records} records of {name} ({cause}):",
                    summary.name
                )?;
                for range in lost.iter().map(|lost| SequenceRange {
                    first: lost.first,
                    last: lost.last.unwrap_or(Sequence(u64::MAX)),
                }) {
                    write!(f, " {range}")?;
                }
                writeln!(f)?;
            }
        }
        Ok(())
    }
}
