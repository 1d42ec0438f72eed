//! Rows as text with fixed columns, formatted with integer arithmetic only, and the lines in which
//! two tables differ.

use super::{Cell, GridRow, Loss};

const HEAD: &str = "\
# Cost and delay of repair

Made by `cargo run -p tickcast-sim --release --bin grid -- --write`; without `--write` the same command compares. All
in virtual time, with the default settings and a round trip of 10 us.

- loss: *common*: all miss the same; *one*: one receiver alone; *each*: each by its own chance; *burst*: the same in bursts of 10;
  *run*: all miss the same, a fifth of the time in one run; *long*: half of the time of a
  faster feed, more than 2,000 in a row, with windows of 4,096 slots.
- repair: *unicast* alone, or by *multicast* too, with the hold-off that the publisher advises.
- fresh: datagrams sealed. missed: datagrams that did not come, over all receivers. distinct: sequences that somebody missed.
- delivered: records, over all receivers, and their share of those published.
- p50, p99: from finding a gap to its last repair. bytes: repair by fresh. NACKs: messages by distinct sequences.
- multicast: repairs sent to all. sent: those and repairs sent to one. unneeded: datagrams that came again, by fresh ones.
- left out: unicast alone where many of 1,000 miss 5 % or more, or 100 a long run; its answers exceed the budget of repair many
  times over. A long run of 1,000 takes too long to simulate.
";

/// Columns with their widths.
const COLUMNS: [(&str, usize); 17] = [
    ("loss", 6),
    ("rate", 6),
    ("receivers", 9),
    ("repair", 9),
    ("fresh", 5),
    ("missed", 6),
    ("distinct", 8),
    ("delivered", 9),
    ("share", 9),
    ("unrecoverable", 13),
    ("p50 us", 8),
    ("p99 us", 8),
    ("bytes", 7),
    ("NACKs", 7),
    ("multicast", 9),
    ("sent", 6),
    ("unneeded", 9),
];

const fn is_text(column: usize) -> bool {
    column == 0 || column == 3
}

/// Returns the table of these rows.
#[must_use]
pub fn table(rows: &[GridRow]) -> String {
    let line = |columns: [String; COLUMNS.len()]| {
        let mut line = String::from("|");
        for (at, (column, (_, width))) in columns.iter().zip(COLUMNS).enumerate() {
            line += &if is_text(at) {
                format!(" {column:<width$} |")
            } else {
                format!(" {column:>width$} |")
            };
        }
        line + "\n"
    };
    let rule = (0..COLUMNS.len()).map(|at| {
        let dashes = "-".repeat(COLUMNS[at].1 + 1);
        dashes + if is_text(at) { "-|" } else { ":|" }
    });
    let mut text = HEAD.to_owned() + "\n" + &line(COLUMNS.map(|(name, _)| name.to_owned()));
    text += &format!("|{}\n", rule.collect::<String>());
    for row in rows {
        text += &line(row.columns());
    }
    text
}

/// Returns the lines that only `old` has (`-`) and those that only `new` has (`+`), or `None` when
/// both are equal. A sample is equal to the table that has all of its lines.
#[must_use]
pub fn difference(old: &str, new: &str, is_sample: bool) -> Option<String> {
    let (old, new): (Vec<_>, Vec<_>) = (old.lines().collect(), new.lines().collect());
    let gone = old.iter().filter(|line| !is_sample && !new.contains(line));
    let come = new.iter().filter(|line| !old.contains(line));
    let gone = gone.map(|line| format!("- {line}\n"));
    let lines: String = gone.chain(come.map(|line| format!("+ {line}\n"))).collect();
    (!lines.is_empty()).then_some(lines)
}

impl Cell {
    fn loss(self) -> &'static str {
        match self.loss {
            Loss::None => "none",
            Loss::Common => "common",
            Loss::One => "one",
            Loss::Each => "each",
            Loss::Burst => "burst",
            Loss::Run => "run",
            Loss::Long => "long",
        }
    }
}

impl GridRow {
    fn columns(&self) -> [String; COLUMNS.len()] {
        let (cell, t) = (self.cell, &self.tally);
        let distinct = t.repairs.sequences.len() as u64;
        let everyone = t.published * cell.receivers as u64;
        let us = |ns: u64| ratio(ns, 1_000, 1);
        [
            cell.loss().into(),
            format!("{} %", ratio(cell.per_mille.into(), 10, 1)),
            cell.receivers.to_string(),
            if cell.multicast {
                "multicast"
            } else {
                "unicast"
            }
            .into(),
            t.sealed.to_string(),
            t.gaps.to_string(),
            distinct.to_string(),
            t.records.to_string(),
            percent(t.records, everyone),
            t.unrecoverable.values().sum::<u64>().to_string(),
            us(t.repairs.percentile(50)),
            us(t.repairs.percentile(99)),
            ratio(t.repair_bytes, t.sealed_bytes, 3),
            ratio(t.nack_messages, distinct, 2),
            t.multicast_repairs.to_string(),
            (t.answered + t.multicast_repairs).to_string(),
            percent(t.duplicates, t.sealed * cell.receivers as u64),
        ]
    }
}

fn percent(of: u64, by: u64) -> String {
    ratio(of * 100, by, 3) + " %"
}

/// Returns a ratio with this many digits, rounded down, or a dash when the divisor is 0.
fn ratio(of: u64, by: u64, digits: u32) -> String {
    let unit = 10u64.pow(digits);
    let Some(scaled) = (of * unit).checked_div(by) else {
        return "-".into();
    };
    let digits = digits as usize;
    format!("{}.{:0digits$}", scaled / unit, scaled % unit)
}
