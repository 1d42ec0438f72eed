//! docs/METRICS.md is generated from the `counters!` of the code and the table of metrics: every counter
//! with its metric, unit, type and meaning. `TICKCAST_BLESS=1` makes the test write it.

use std::collections::BTreeSet;
use std::fmt::Write;

use crate::source::{Tree, pattern, root};
use crate::{Violation, none, violation};

#[allow(dead_code, unreachable_pub)]
#[path = "../../transport/metrics/src/families.rs"]
pub(crate) mod families;

use families::{FedBy, PARTS, PUBLISHER, Part, STANDBY, SUBSCRIBER};

const PATH: &str = "docs/METRICS.md";
const TABLE: &str = "transport/metrics/src/families.rs";

const INTRODUCTION: &str = "# Metrics and counters

The test `metrics_document_matches_the_code` generates this page from the code: `TICKCAST_BLESS=1` writes it.

Every series exists from the start of the process. A *counter* only grows until the process ends; a *gauge* also falls.
The column *name* is the counter in JSON, C and Rust; the column *metric* is its series for Prometheus. `GET /metrics` on
the admin port of a publisher serves them in Prometheus' text format, or in OpenMetrics if the request accepts that. For a
subscriber, `Monitor::metrics_text()` (C: `tickcast_monitor_metrics_text`) returns the same page for the application to
serve; `metrics_listen` of the builder and `tickcast listen --metrics` serve it. Its counters are also fields of `Subscriber::channels()` and of the JSON
that `tickcast listen --summary` writes. [OPERATIONS.md](OPERATIONS.md#watch) lists the ones to alert on.

Metrics are in base units: times in seconds, sizes in bytes. Every page begins with `tickcast_build_info{version}`, which
is 1, and `process_start_time_seconds`.

In OpenMetrics, exemplars name a datagram by `epoch` and `sequence`:

- the last gap that a channel was asked to repair, at `repair_requested_sequences_total`
- the last loss of a subscriber, at `subscriber_lost_records_total`
- a subscriber's last repaired datagram, at its latency of the stage `repair` and at `missing_settled_datagrams_total`

A family contains the counters whose sum has a meaning, told apart by labels. These stay apart:

- A counter that counts a part of another one, because their sum counts twice: `unknown_sessions`, `nack_link_…`,
  `lapped_copies`, `heartbeats` received, `inbox_first`, `epochs_continued`, `losses_of_unknown_size`, `read_repairs_received`.
  The difference is no counter either. Its parts are read one after the other, so it could fall, and Prometheus takes a
  fall for a restart.
- Stages of one stream, because each datagram passes all of them: published, built, sent, received, delivered, handed.
- Gauges of different facts: `ended` and `silent`, the oldest and the newest sequence, sequences of lag and seconds of lag.
- Counters whose places differ: JOINs of a channel, and further connections of the process.

Sums that always hold, per channel of a subscriber:

- `missing_datagrams` = `missing_recovered` + `missing_lost` + `missing_superseded` + `missing_open`
- `replay_requested` = `replay_received` + `replay_lost` + `replay_superseded` + `replay_open`
- `endpoint_connections` (publisher) = `endpoint_answered` + `endpoint_failed` + `endpoint_evicted` +
  `endpoint_refused` + `endpoint_open`
- `nacked` (publisher) = `answered` + `answered_by_multicast` + all `refused_…` + `repairs_cancelled` + `pending`
";

/// A heading, the series' form, the table of their metrics, and the structs of counters below it.
type Section = (
    &'static str,
    &'static str,
    Option<&'static Part>,
    &'static [&'static str],
);

const SECTIONS: [Section; 16] = [
    (
        "Publisher: process",
        "`tickcast_publisher_<metric>`",
        Some(&PUBLISHER),
        &[
            "PublisherMetrics",
            "RepairServiceCounters",
            "LatencyLogMetrics",
        ],
    ),
    (
        "Publisher: endpoints",
        "`tickcast_publisher_<metric>{endpoint}`; `endpoint` is `admin`, `command_socket` or `command_port`",
        Some(&PUBLISHER),
        &["EndpointCounters"],
    ),
    (
        "Publisher: RDMA ports",
        "`tickcast_publisher_<metric>{device, port}`, as far as a device counts them",
        Some(&PUBLISHER),
        &["PortEventMetrics"],
    ),
    (
        "Publisher: channel",
        "`tickcast_publisher_<metric>{channel}`",
        Some(&PUBLISHER),
        &["RingMetrics", "SenderCounters"],
    ),
    (
        "Publisher: repair",
        "`tickcast_publisher_<metric>{channel}`",
        Some(&PUBLISHER),
        &["RepairCounters"],
    ),
    (
        "Publisher: lines",
        "`tickcast_publisher_<metric>{channel, fan_out, line, role}`; `role` is `data` or `repair`",
        Some(&PUBLISHER),
        &["LineCounters"],
    ),
    (
        "Publisher: sources",
        "`tickcast_publisher_<metric>{source}`; `source_messages_by_type_total` has a label `type` too",
        Some(&PUBLISHER),
        &[
            "SourceCounters",
            "SourceHearingMetrics",
            "MessageTypeMetrics",
        ],
    ),
    (
        "Publisher: lines of sources",
        "`tickcast_publisher_<metric>{source, line}`, lines in the order of the config",
        Some(&PUBLISHER),
        &["InputLineCounters", "InputLineHearingMetrics"],
    ),
    (
        "Publisher: its subscribers",
        "`tickcast_publisher_<metric>{subscriber, peer, channel}`, as subscribers report themselves",
        Some(&PUBLISHER),
        &["SubscriberMetrics", "SubscriberClockMetrics"],
    ),
    (
        "Publisher: latency of its subscribers",
        "`tickcast_publisher_<metric>{subscriber, peer, channel, stage}`, while a stage has samples",
        Some(&PUBLISHER),
        &["SubscriberLatencyMetrics"],
    ),
    (
        "Standby: process",
        "`tickcast_standby_<metric>`; a promoted standby adds the publisher's series",
        Some(&STANDBY),
        &["StandbyMetrics", "StandbyCounters"],
    ),
    (
        "Standby: channel",
        "`tickcast_standby_<metric>{channel}`",
        Some(&STANDBY),
        &["MirrorMetrics"],
    ),
    (
        "Subscriber: process",
        "`tickcast_subscriber_<metric>`",
        Some(&SUBSCRIBER),
        &["MembershipMetrics", "ClockMetrics"],
    ),
    (
        "Subscriber: channel",
        "`tickcast_subscriber_<metric>{channel}`",
        Some(&SUBSCRIBER),
        &["FollowedMetrics"],
    ),
    (
        "Subscriber: protocol",
        "`tickcast_subscriber_<metric>{channel}`; in Rust `ChannelReport::counters`",
        Some(&SUBSCRIBER),
        &["ReceiverCounters"],
    ),
    (
        "Subscriber: delivery",
        "`tickcast_subscriber_<metric>{channel}`; in Rust `ChannelReport::handed`; with `split` the local ring counts \
         as delivery",
        Some(&SUBSCRIBER),
        &["HandedCounters"],
    ),
];

/// Words that a meaning may open with: its unit.
const UNITS: &str = "1 Bytes Calls Connections Cursors Datagrams Epoch Epochs Error Errors Events Files Frames \
     Gaps Heartbeats Inboxes JOINs Lines Messages Microseconds NACKs Nanoseconds Packets Quantities READs Records Refusals \
     Reports Rings Runs Samples Sequence Sequences Slots Source Subscribers Ticks Times WELCOMEs";

/// Ends the meaning of a gauge.
const GAUGE: &str = " (a gauge)";

/// One counter as it is declared.
#[derive(Debug)]
struct Counter {
    path: String,
    line: usize,
    /// The struct that holds it.
    within: String,
    name: String,
    meaning: String,
}

impl Counter {
    /// The unit, which opens the meaning.
    fn unit(&self) -> Option<String> {
        let first = self.meaning.split_whitespace().next()?;
        let known = UNITS.split_whitespace().any(|unit| unit == first);
        known.then(|| match first {
            "1" => "0 or 1".to_owned(),
            "JOINs" | "NACKs" | "READs" | "WELCOMEs" => first.to_owned(),
            _ => first.to_lowercase(),
        })
    }

    fn is_gauge(&self) -> bool {
        self.meaning.contains(GAUGE)
    }

    /// The metric that it feeds, with the label that it has there.
    fn metric(&self, part: &Part) -> Option<String> {
        let (at, own) = part.find(&self.name)?;
        let own = own
            .iter()
            .map(|(label, value)| format!("{label}=\"{value}\""));
        let own: Vec<String> = own.collect();
        let name = part.families[at].name;
        Some(match own.join(",") {
            none if none.is_empty() => name.to_owned(),
            own => format!("{name}{{{own}}}"),
        })
    }

    fn row(&self, part: Option<&Part>) -> String {
        let kind = if self.is_gauge() { "gauge" } else { "counter" };
        let meaning = self.meaning.replace(GAUGE, "");
        let unit = self.unit().unwrap_or_default();
        let metric = part.map(|part| match self.metric(part) {
            Some(metric) => format!(" `{metric}` |"),
            None => " none |".into(),
        });
        let metric = metric.unwrap_or_default();
        format!(
            "| `{}` |{metric} {unit} | {kind} | {meaning} |\n",
            self.name
        )
    }
}

/// Every counter declared with `counters!`, in the order of files and lines.
fn counters(tree: &Tree) -> Vec<Counter> {
    let head = pattern(r"^\s*(?:pub(?:\([^)]*\))? )?struct (\w+) \{$");
    let field = pattern(r"^\s+([a-z][a-z0-9_]*),$");
    let mut found = Vec::new();
    for file in tree.files.iter().filter(|f| f.is_rust()) {
        let (mut open, mut within) = (false, String::new());
        let mut meaning: Vec<&str> = Vec::new();
        let lines = file.product.lines().zip(file.text.lines()).enumerate();
        for (i, (code, text)) in lines {
            if code.trim_start().ends_with("counters! {") {
                open = true;
            } else if code == "}" {
                open = false;
            } else if let Some(doc) = text.trim_start().strip_prefix("///").filter(|_| open) {
                meaning.push(doc.trim());
            } else if let Some(name) = head.captures(code).filter(|_| open) {
                within = name[1].to_owned();
                meaning.clear();
            } else if let Some(name) = field.captures(code).filter(|_| open) {
                found.push(Counter {
                    path: file.path.clone(),
                    line: i + 1,
                    within: within.clone(),
                    name: name[1].to_owned(),
                    meaning: meaning.join(" "),
                });
                meaning.clear();
            }
        }
    }
    found
}

/// The document that these counters make.
fn document(counters: &[Counter]) -> String {
    let mut text = INTRODUCTION.to_owned();
    for (heading, series, part, structs) in SECTIONS {
        // Writing to a string can't fail.
        let _ = write!(text, "\n## {heading}\n\n{series}\n\n");
        text.push_str(match part {
            Some(_) => "| name | metric | unit | type | meaning |\n|---|---|---|---|---|\n",
            None => "| name | unit | type | meaning |\n|---|---|---|---|\n",
        });
        for name in structs {
            let of_it = counters.iter().filter(|counter| counter.within == *name);
            text.extend(of_it.map(|counter| counter.row(part)));
        }
    }
    text.push_str(
        "\n## Histograms\n\nOf each channel and stage; docs/EMBEDDING.md explains the stages.\n\n",
    );
    text.push_str("| metric | meaning |\n|---|---|\n");
    for part in PARTS {
        for family in part.families {
            if let FedBy::Histograms(help) = family.feed {
                let _ = writeln!(
                    text,
                    "| `{}{}{{channel, stage}}` | {help} |",
                    part.prefix, family.name
                );
            }
        }
    }
    text
}

/// Counters without a unit or a section.
fn undescribed(counters: &[Counter]) -> Vec<(String, Violation)> {
    let mut found = Vec::new();
    for counter in counters {
        let mut wrong = |what| found.push((counter.path.clone(), violation(counter.line, what)));
        if counter.unit().is_none() {
            wrong(format!(
                "the meaning of `{}` opens with no unit",
                counter.name
            ));
        }
        let has_it = |(_, _, _, structs): &&Section| structs.contains(&counter.within.as_str());
        let Some((_, _, part, _)) = SECTIONS.iter().find(has_it) else {
            wrong(format!("`{}` has no section in {PATH}", counter.within));
            continue;
        };
        let Some(part) = part else { continue };
        match part.find(&counter.name) {
            None => wrong(format!("`{}` has no family in {TABLE}", counter.name)),
            Some((at, _)) if part.families[at].is_counter() == counter.is_gauge() => {
                wrong(format!("`{}` and its family differ in type", counter.name));
            }
            Some(_) => {}
        }
    }
    found
}

/// Rows of the table that break the rules of names, or that no counter feeds.
fn wrong_families(counters: &[Counter]) -> Vec<String> {
    let mut found = Vec::new();
    for part in PARTS {
        let of_part = |(_, _, own, _): &&Section| own.is_some_and(|own| std::ptr::eq(own, part));
        let structs: Vec<&str> = (SECTIONS.iter().filter(of_part))
            .flat_map(|(_, _, _, structs)| *structs)
            .copied()
            .collect();
        let mut fed = BTreeSet::new();
        for counter in counters {
            if structs.contains(&counter.within.as_str())
                && let Some((at, label)) = part.find(&counter.name)
                && !fed.insert((at, label))
            {
                found.push(format!("{} is fed twice", part.families[at].name));
            }
        }
        let mut stems = BTreeSet::new();
        for (at, family) in part.families.iter().enumerate() {
            let series = match family.feed {
                FedBy::One(_) => 1,
                FedBy::By { counters, .. } => counters.len(),
                FedBy::Histograms(_) => 0,
            };
            if fed.iter().filter(|(of, _)| *of == at).count() != series {
                found.push(format!(
                    "{} has a series that no counter feeds",
                    family.name
                ));
            }
            if !stems.insert(family.stem()) {
                found.push(format!("{} differs only in its suffix", family.name));
            }
            let is_of_time = |counter: &str| counter.ends_with("_us") || counter.ends_with("_ns");
            let is_time = match family.feed {
                FedBy::One(counter) => is_of_time(counter),
                FedBy::By { counters, .. } => is_of_time(counters[0].0),
                FedBy::Histograms(_) => true,
            };
            if is_time != family.stem().ends_with("_seconds") || family.stem().ends_with("_us") {
                found.push(format!("{} is not in seconds", family.name));
            }
        }
    }
    found
}

#[test]
fn family_is_fed_and_named_by_the_rules() {
    let wrong = wrong_families(&counters(Tree::read()));
    assert_eq!(wrong, Vec::<String>::new());
    assert!(!wrong_families(&[]).is_empty());
}

/// The first line in which the document differs from the code.
fn outdated(counters: &[Counter], actual: &str) -> Vec<(String, Violation)> {
    let expected = document(counters);
    let lines = actual.lines().count().max(expected.lines().count());
    let differs = |i: &usize| actual.lines().nth(*i) != expected.lines().nth(*i);
    let first = (0..lines).find(differs);
    let what = |i| {
        let line = expected.lines().nth(i).unwrap_or("nothing");
        let what = format!("the code says `{line}`; TICKCAST_BLESS=1 writes it");
        (PATH.to_owned(), violation(i + 1, what))
    };
    first.map(what).into_iter().collect()
}

#[test]
fn metrics_document_matches_the_code() {
    let all = counters(Tree::read());
    assert!(
        all.len() > 50,
        "the declarations of counters are no longer recognised"
    );
    none(undescribed(&all));
    if std::env::var_os("TICKCAST_BLESS").is_some() {
        std::fs::write(root().join(PATH), document(&all)).unwrap();
    }
    let actual = std::fs::read_to_string(root().join(PATH)).unwrap_or_default();
    none(outdated(&all, &actual));
}

#[test]
fn counters_without_unit_section_or_row_are_found() {
    let code = "counters! {\n    /// A.\n    pub struct EndpointCounters {\n        /// Times that\n        \
                /// it rang.\n        rings,\n\n        /// How many (a gauge).\n        open,\n    }\n}\n\
                x::counters! {\n    struct Other {\n        /// Bytes sent (a gauge).\n        sent,\n    }\n}\n\
                fn f() {\n    g(\n        other,\n    );\n}\n";
    let all = counters(&Tree::of(&[("a.rs", code)]));
    let names: Vec<&str> = all.iter().map(|c| c.name.as_str()).collect();
    assert_eq!(names, ["rings", "open", "sent"]);
    let page = document(&all);
    assert!(page.contains("| `rings` | none | times | counter | Times that it rang. |\n"));
    let places: Vec<usize> = undescribed(&all).iter().map(|(_, v)| v.line).collect();
    assert_eq!(places, [6, 9, 9, 15]);
    assert_eq!(outdated(&all, &page), []);
    let line = |page: &str| outdated(&all, page)[0].1.line;
    let row = page.lines().position(|l| l.contains("rang")).unwrap() + 1;
    assert_eq!(line(&page.replace("rang", "sang")), row);
    assert_eq!(line(&format!("{page}x\n")), page.lines().count() + 1);
    assert_eq!(line(""), 1);
}
