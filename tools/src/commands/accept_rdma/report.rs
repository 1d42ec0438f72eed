//! The report: rows, inventory and counters, as JSON, as a page, and as the table of docs/RDMA.md.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::{Deserialize, Serialize};
use tickcast_tools::report::escaped;

use super::order::HostFacts;
use super::row::{Judgement, Row};
use super::steps::count;

const STYLE: &str = ":root{color-scheme:light dark;--line:#8884;--ok:#15803d;--bad:#be123c;--open:#b45309}\
@media(prefers-color-scheme:dark){:root{--ok:#5fd38d;--bad:#ff8ba0;--open:#f5c04e}}\
body{font:15px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem}\
table{border-collapse:collapse;margin:.6rem 0;font-size:.9rem;font-variant-numeric:tabular-nums}\
td,th{padding:.2rem .7rem;border-bottom:1px solid var(--line);text-align:left;vertical-align:top}\
.scroll{overflow-x:auto}.number{text-align:right}.pass{color:var(--ok)}.fail{color:var(--bad);font-weight:600}\
.skipped,.notjudged{color:var(--open)}";

/// Version of the JSON.
const VERSION: u32 = 1;

/// The parts that no run tries.
const UNTRIED: [&str; 5] = [
    "accesses beyond a grant by a peer on the other host: the probe makes them within each host",
    "switches: PFC storms, ECN marks, full buffers, IGMP snooping without a querier",
    "loss on the wire: datagrams are lost only by receivers that pause",
    "more than one publisher, more than one channel, and more than two lines",
    "virtual functions, partitions and VLANs other than those of the given interfaces",
];

/// A whole run.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Report {
    version: u32,
    tickcast: String,
    /// Start, in UTC.
    started: String,
    minutes: u64,
    hosts: [HostFacts; 2],
    rows: Vec<Row>,
    /// Counters of both hosts before and after, by host and name.
    counters: BTreeMap<String, [Option<u64>; 2]>,
    untried: Vec<String>,
}

impl Report {
    pub(super) fn new(
        started: String,
        minutes: u64,
        hosts: [HostFacts; 2],
        rows: Vec<Row>,
        counters: BTreeMap<String, [Option<u64>; 2]>,
    ) -> Self {
        Self {
            version: VERSION,
            tickcast: env!("CARGO_PKG_VERSION").to_owned(),
            started,
            minutes,
            hosts,
            rows,
            counters,
            untried: UNTRIED.map(str::to_owned).into(),
        }
    }

    /// Returns the numbers of rows by verdict, as text.
    pub(super) fn counts(&self) -> String {
        let all = [
            Judgement::Pass,
            Judgement::Fail,
            Judgement::Skipped,
            Judgement::NotJudged,
        ];
        let all = all.map(|it| format!("{} {}", it.word(), count(&self.rows, it)));
        all.join(", ")
    }

    /// Returns the rows as a table in Markdown.
    pub(super) fn table(&self) -> String {
        let mut out =
            String::from("| step | verdict | result | bound or reason |\n|---|---|---|---|\n");
        for row in &self.rows {
            let why = if row.reason.is_empty() {
                &row.bound
            } else {
                &row.reason
            };
            let cells = [&row.number, why].map(|it| in_cell(it));
            let word = row.judgement.word();
            let _ = writeln!(
                out,
                "| `{}` | {word} | {} | {} |",
                row.step, cells[0], cells[1]
            );
        }
        out
    }

    /// Returns the page: one file without references to others.
    pub(super) fn page(&self) -> String {
        let mut out = format!(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
             <meta name=\"viewport\" content=\"width=device-width\"><title>tickcast accept-rdma</title>\
             <style>{STYLE}</style></head><body>\n<h1>RDMA acceptance</h1>\n"
        );
        let [here, there] = &self.hosts;
        let _ = writeln!(
            out,
            "<p>tickcast {} on {} and {}, from {} on, --minutes {}: {}.</p>",
            escaped(&self.tickcast),
            escaped(&here.name),
            escaped(&there.name),
            escaped(&self.started),
            self.minutes,
            self.counts()
        );
        self.add_rows(&mut out);
        out.push_str("<h2>Not tried</h2>\n<ul>\n");
        for it in &self.untried {
            let _ = writeln!(out, "<li>{}</li>", escaped(it));
        }
        out.push_str("</ul>\n<h2>Hosts</h2>\n");
        for host in &self.hosts {
            add_host(&mut out, host);
        }
        self.add_counters(&mut out);
        out.push_str("</body></html>\n");
        out
    }

    fn add_rows(&self, out: &mut String) {
        out.push_str("<div class=\"scroll\"><table><tr><th>step</th><th>verdict</th><th>result</th><th>bound</th><th>reason</th></tr>\n");
        for row in &self.rows {
            let word = row.judgement.word();
            let class = word.to_lowercase().replace(' ', "");
            let cells = [&row.number, &row.bound, &row.reason].map(|it| escaped(it));
            let _ = writeln!(
                out,
                "<tr><td>{}</td><td class=\"{class}\">{word}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
                escaped(&row.step),
                cells[0],
                cells[1],
                cells[2]
            );
        }
        out.push_str("</table></div>\n");
    }

    /// Adds the counters that changed. The JSON has all.
    fn add_counters(&self, out: &mut String) {
        out.push_str("<h2>Counters that changed</h2>\n<div class=\"scroll\"><table><tr><th>counter</th><th>before</th><th>after</th></tr>\n");
        let changed = self
            .counters
            .iter()
            .filter(|(_, [before, after])| before != after);
        for (name, values) in changed {
            let cells = values.map(|it| it.map_or_else(|| "–".to_owned(), |it| it.to_string()));
            let _ = writeln!(
                out,
                "<tr><td>{}</td><td class=\"number\">{}</td><td class=\"number\">{}</td></tr>",
                escaped(name),
                cells[0],
                cells[1]
            );
        }
        out.push_str("</table></div>\n");
    }
}

/// Returns text for a cell of a table in Markdown.
fn in_cell(text: &str) -> String {
    let replaced = |c: char| match c {
        '|' => '/',
        '<' | '[' => '(',
        '>' | ']' => ')',
        c if c.is_control() => ' ',
        c => c,
    };
    text.chars().map(replaced).collect()
}

fn add_host(out: &mut String, host: &HostFacts) {
    let _ = writeln!(out, "<h3>{}</h3>\n<table>", escaped(&host.name));
    let mut add = |name: &str, fact: &str| {
        let _ = writeln!(
            out,
            "<tr><th>{}</th><td>{}</td></tr>",
            escaped(name),
            escaped(fact)
        );
    };
    for (name, fact) in &host.more {
        add(name, fact);
    }
    for line in &host.lines {
        let letter = line.line.letter();
        let found = format!(
            "{} port {}, interface {} with {}, packets of {} bytes{}",
            line.device,
            line.port,
            line.interface,
            line.address,
            line.mtu,
            if line.is_software {
                ", imitated by a driver"
            } else {
                ""
            }
        );
        add(&format!("line {letter}"), &found);
        for (name, fact) in &line.more {
            add(&format!("line {letter} {name}"), fact);
        }
    }
    out.push_str("</table>\n");
}

#[cfg(test)]
mod tests {
    use super::super::order::{Line, LineFacts};
    use super::*;

    fn report() -> Report {
        let host = |name: &str| HostFacts {
            name: name.into(),
            more: BTreeMap::from([("kernel".to_owned(), "6.1<b>".to_owned())]),
            lines: vec![LineFacts {
                line: Line::A,
                interface: "eth1".into(),
                address: std::net::Ipv4Addr::LOCALHOST,
                gid: std::net::Ipv6Addr::LOCALHOST,
                gid_index: None,
                device: "rxe0".into(),
                port: 1,
                mtu: 4_096,
                is_ethernet: true,
                is_software: true,
                more: BTreeMap::new(),
            }],
            may_break_links: false,
        };
        let rows = vec![
            Row::judged("probe", "4 devices", "granted", &[]),
            Row::judged("rights", "1 violation", "none", &["a | b\n<i>".to_owned()]),
            Row::skipped("driver", "loses nothing", "no command"),
        ];
        let counters = BTreeMap::from([
            ("h1 A port sent".to_owned(), [Some(1), Some(9)]),
            ("h1 A port same".to_owned(), [Some(2), Some(2)]),
        ]);
        Report::new("now".into(), 5, [host("h1"), host("h2")], rows, counters)
    }

    #[test]
    fn page_has_each_row_and_changed_counter_once() {
        let page = report().page();
        assert!(page.contains("PASS 1, FAIL 1, SKIPPED 1, not judged 0"));
        for cell in [
            "<td>probe</td>",
            "<td>rights</td>",
            "<td>driver</td>",
            ">h1 A port sent<",
        ] {
            assert_eq!(page.matches(cell).count(), 1, "{cell}");
        }
        assert!(!page.contains("port same"));
        assert!(page.contains("6.1&lt;b&gt;"));
        assert!(!page.contains("http"), "a page refers to nothing else");
    }

    #[test]
    fn table_has_a_line_for_each_row() {
        let table = report().table();
        assert_eq!(table.lines().count(), 5);
        assert!(table.contains("| `rights` | FAIL | 1 violation | a / b (i) |"));
        assert!(table.contains("| `probe` | PASS | 4 devices | granted |"));
    }

    /// The example in docs/ comes from the lab; its table stands in docs/RDMA.md.
    #[test]
    fn documented_table_is_that_of_the_example_report() {
        let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs");
        let json = std::fs::read_to_string(format!("{docs}/acceptance/soft-roce.json")).unwrap();
        let report: Report = serde_json::from_str(&json).unwrap();
        let text = std::fs::read_to_string(format!("{docs}/RDMA.md")).unwrap();
        let page = std::fs::read_to_string(format!("{docs}/acceptance/soft-roce.html")).unwrap();
        assert!(
            text.contains(&report.table()),
            "write this into docs/RDMA.md:\n{}",
            report.table()
        );
        assert_eq!(page, report.page());
    }
}
