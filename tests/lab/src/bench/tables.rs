//! The results as text for people.

use std::fmt::{self, Display, Write};

use super::marks::{Judged, NOBODY};
use super::protocol::Load;
use super::report::Results;
use super::results::{Figure, Measured, Row};
use super::statistics::Spread;
use tickcast_tools::support::table::{span, table, thousands};

impl Display for Results {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for measured in &self.measures {
            writeln!(f, "{}", measure(measured))?;
        }
        writeln!(f, "Marks: ratios within the rounds of this run, medians")?;
        writeln!(f, "{}", marks(&self.marks))?;
        for doubt in doubts(&self.marks) {
            writeln!(f, "{doubt}")?;
        }
        writeln!(f)?;
        for remark in remarks(self) {
            writeln!(f, "{remark}")?;
        }
        Ok(())
    }
}

/// Returns the remarks that readers of the figures need.
pub(crate) fn remarks(results: &Results) -> Vec<String> {
    let machine = &results.machine;
    let mut all = vec![format!(
        "{}, Linux {}, cores {:?}",
        machine.processor, machine.kernel, machine.cores
    )];
    let mut warn = |text: String| all.push(format!("WARNING: {text}"));
    if results.is_interrupted {
        warn("the run was interrupted: this is what there was until then".into());
    }
    if results.is_debug_build {
        warn("this is a debug build: the figures mean nothing".into());
    }
    if results.is_loopback {
        warn("everyone shared the loopback device: not comparable with a network".into());
    }
    if !machine.is_quiet {
        warn(format!(
            "the machine was not quiet before the run: others took {:.0} % of it, the hypervisor {:.0} %, {} wanted to run, load {:.1}",
            machine.idle_noise.others * 100.0,
            machine.idle_noise.steal * 100.0,
            machine.runnable,
            machine.load_1_min,
        ));
    }
    let (turns, noisy, worst) = results.noise();
    if noisy > 0 {
        warn(format!(
            "others took more than 5 % of the machine in {noisy} of {turns} turns, up to {:.0} % and {:.0} % steal",
            worst.others * 100.0,
            worst.steal * 100.0
        ));
    } else {
        all.push(format!("the machine was quiet in all {turns} turns"));
    }
    for absent in &results.absent {
        all.push(format!(
            "MISSING: {} took no part: {}",
            absent.contender, absent.why
        ));
    }
    all
}

/// Returns a figure as people write it.
pub(crate) fn text(figure: Figure, value: f64) -> String {
    match figure {
        Figure::RatePerS | Figure::DecodedPerS | Figure::MessagesPerS if value >= 1e6 => {
            format!("{:.2} M/s", value / 1e6)
        }
        Figure::RatePerS | Figure::DecodedPerS | Figure::MessagesPerS => {
            format!("{:.1} k/s", value / 1e3)
        }
        Figure::SenderMemoryBytes | Figure::ReceiverMemoryBytes => {
            format!("{:.0} MiB", value / f64::from(1 << 20))
        }
        _ => span(value as u64),
    }
}

/// Returns the columns of a measure.
fn columns(measured: &Measured) -> Vec<(&'static str, Figure)> {
    let mut columns = Vec::new();
    let flood = measured.measure.is_flood();
    if let Load::Feed { .. } = measured.measure.load {
        columns.push(("messages", Figure::MessagesPerS));
        columns.push(("decode alone", Figure::DecodedPerS));
    }
    if flood {
        columns.push(("rate", Figure::RatePerS));
    } else {
        columns.extend([
            ("p50", Figure::P50Ns),
            ("p90", Figure::P90Ns),
            ("p99", Figure::P99Ns),
            ("p99.9", Figure::P999Ns),
        ]);
    }
    if measured.measure.loss.is_some() {
        columns.extend([
            ("lost p50", Figure::LostP50Ns),
            ("lost p99", Figure::LostP99Ns),
            ("rate", Figure::RatePerS),
        ]);
    }
    if flood {
        columns.extend([
            ("CPU/M send", Figure::SenderCpuNs),
            ("CPU/M take", Figure::ReceiverCpuNs),
        ]);
    }
    columns.extend([
        ("mem send", Figure::SenderMemoryBytes),
        ("mem take", Figure::ReceiverMemoryBytes),
    ]);
    columns
}

/// Returns headings and cells of a measure. The first column is the contender.
pub(crate) fn cells(measured: &Measured) -> (Vec<String>, Vec<Vec<String>>) {
    let columns = columns(measured);
    let headings = ["contender"]
        .into_iter()
        .chain(columns.iter().map(|(heading, _)| *heading))
        .chain(["spread", "turns", "noisy", "lost", "missing"]);
    let row = |row: &Row| {
        let mut cells = vec![row.contender.to_owned()];
        for &(_, figure) in &columns {
            let value = row.median(figure).map(|value| text(figure, value));
            cells.push(value.unwrap_or_else(|| "-".into()));
        }
        let spread = columns.first().and_then(|(_, figure)| {
            let spread = row.figures.get(figure)?;
            Some(range(*figure, spread))
        });
        cells.push(spread.unwrap_or_else(|| "-".into()));
        let mut turns = String::new();
        let _ = write!(turns, "{} of {}", row.whole_turns(), row.rounds);
        if !row.failures.is_empty() {
            let _ = write!(turns, ", {} FAILED", row.failures.len());
        }
        cells.push(turns);
        cells.push(row.noisy_turns.to_string());
        cells.push(thousands(row.books.declared_lost));
        cells.push(thousands(row.books.missing + row.books.wrong));
        cells
    };
    (
        headings.map(str::to_owned).collect(),
        measured.rows.iter().map(row).collect(),
    )
}

fn range(figure: Figure, spread: &Spread) -> String {
    format!(
        "{} to {}",
        text(figure, spread.low),
        text(figure, spread.high)
    )
}

fn measure(measured: &Measured) -> String {
    let (headings, rows) = cells(measured);
    let headings: Vec<&str> = headings.iter().map(String::as_str).collect();
    let mut shown = table(&headings);
    rows.into_iter().for_each(|row| {
        shown.add_row(row);
    });
    let mut out = format!(
        "{} ({})\n{shown}\n",
        measured.measure.title, measured.measure.id
    );
    for row in &measured.rows {
        for why in row.failures.iter().take(1) {
            let _ = writeln!(out, "{}: {why}", row.contender);
        }
    }
    out
}

/// Returns the name of a mark.
fn name(mark: &Judged) -> String {
    let figure = match mark.figure {
        Figure::RatePerS => "rate",
        Figure::P50Ns => "p50",
        Figure::P90Ns => "p90",
        Figure::P99Ns => "p99",
        Figure::P999Ns => "p99.9",
        Figure::LostP50Ns => "p50 of the lost",
        Figure::LostP99Ns => "p99 of the lost",
        Figure::DecodedPerS => "decoding alone",
        Figure::MessagesPerS => "decoded to delivered",
        _ => "cost",
    };
    let against = if mark.theirs == NOBODY { "" } else { " / " };
    format!(
        "{}: {figure}, {}{against}{}",
        mark.measure, mark.ours, mark.theirs
    )
}

/// Returns the reasons why marks were not safely measured, one line each.
pub(crate) fn doubts(marks: &[Judged]) -> Vec<String> {
    let in_doubt = marks.iter().filter(|mark| !mark.doubts.is_empty());
    in_doubt
        .map(|mark| {
            format!(
                "{}: not safely measured: {}",
                name(mark),
                mark.doubts.join("; ")
            )
        })
        .collect()
}

/// Returns headings and cells of the marks.
pub(crate) fn mark_cells(marks: &[Judged]) -> (Vec<String>, Vec<Vec<String>>) {
    let headings = ["mark", "wanted", "measured", "spread", "rounds", "verdict"];
    let row = |mark: &Judged| {
        let outright = mark.theirs == NOBODY;
        let shown = |value: f64| {
            if outright {
                text(mark.figure, value)
            } else {
                format!("{value:.2}")
            }
        };
        let ratio = mark.ratio.map(|ratio| shown(ratio.median));
        let spread =
            (mark.ratio).map(|ratio| format!("{} to {}", shown(ratio.low), shown(ratio.high)));
        let rounds =
            (mark.rounds > 0).then(|| format!("{} of {}", mark.rounds_judged, mark.rounds));
        vec![
            name(mark),
            mark.wanted(),
            ratio.unwrap_or_else(|| "-".into()),
            spread.unwrap_or_else(|| "-".into()),
            rounds.unwrap_or_else(|| "-".into()),
            mark.verdict_text(),
        ]
    };
    (
        headings.map(str::to_owned).to_vec(),
        marks.iter().map(row).collect(),
    )
}

fn marks(marks: &[Judged]) -> String {
    let (headings, rows) = mark_cells(marks);
    let headings: Vec<&str> = headings.iter().map(String::as_str).collect();
    let mut shown = table(&headings);
    rows.into_iter().for_each(|row| {
        shown.add_row(row);
    });
    shown.to_string()
}
