//! The page: for each channel and stage a verdict, a table and two plots.

use std::fmt::Write;

use crate::support::table::{span, thousands};
use tickcast_hlog::ClockOffset;
use tickcast_subscriber::Stage;

use super::Account;
use super::plot::{Line, Plot};
use super::series::{COMPARED, Comparison, Row, SAMPLES_MIN, Side};
use super::statistics::{SIGNIFICANCE, VALUES_MIN, Verdict, median};
use super::summary::{Totals, add_summaries};
use super::text::{LETTERS, escaped};

const STYLE: &str = ":root{color-scheme:light dark;--a:#0b62c4;--b:#c2410c;--c:#15803d;--d:#7e22ce;--e:#b45309;\
--f:#0e7490;--g:#be123c;--h:#4d7c0f;--line:#8884}\
@media(prefers-color-scheme:dark){:root{--a:#6cb2ff;--b:#ff9a5c;--c:#5fd38d;--d:#c792ff;--e:#f5c04e;--f:#5fd0e0;\
--g:#ff8ba0;--h:#b5d95b}}\
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}\
table{border-collapse:collapse;margin:.6rem 0;font-size:.9rem;font-variant-numeric:tabular-nums}\
td,th{padding:.2rem .7rem;border-bottom:1px solid var(--line);text-align:right}\
td:first-child,th:first-child{text-align:left}h2{margin-top:2.4rem}.differs{font-weight:600}\
.scroll{overflow-x:auto}svg{max-width:100%;height:auto;display:block}svg text{font-size:12px;fill:currentColor}\
.grid{stroke:var(--line)}polyline{fill:none;stroke-width:1.6}.p99{stroke-dasharray:6 3}.max{stroke-dasharray:1.5 3}\
pre{overflow-x:auto;padding:.6rem;border:1px solid var(--line)}\
.key b{display:inline-block;width:1.6rem;border-top:3px solid;margin:0 .4rem .25rem 0}";

/// The percentiles of the table.
const QUANTILES: [(&str, f64); 5] = [
    ("p50", 0.5),
    ("p90", 0.9),
    ("p99", 0.99),
    ("p99.9", 0.999),
    ("p99.99", 0.9999),
];
/// Nines on the axis of percentiles.
const NINES_MAX: i32 = 6;
/// Points of a percentile curve for each nine.
const POINTS_A_NINE: i32 = 20;
/// Points of a curve over time. Longer logs show the worst interval of several.
const POINTS_MAX: usize = 600;

/// Returns the page of some logs side by side, of summaries side by side, and of accounts of losses.
pub(super) fn page(
    names: &[String],
    clocks: &[Option<ClockOffset>],
    comparison: &Comparison,
    summaries: &[Totals],
    accounts: &[Account],
) -> String {
    let colours = LETTERS.map(|letter| {
        let class = letter.to_lowercase();
        format!(
            ".{class}{{stroke:var(--{class})}}circle.{class}{{fill:var(--{class})}}\
             .key .{class}{{border-color:var(--{class})}}"
        )
    });
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>tickcast report</title>\
         <style>{STYLE}{}</style></head><body>\n",
        colours.concat()
    );
    if !names.is_empty() {
        latency(&mut out, names, clocks, comparison);
    }
    if !summaries.is_empty() {
        add_summaries(&mut out, summaries);
    }
    if !accounts.is_empty() {
        out.push_str("<h1>Losses</h1>\n");
    }
    for Account { heading, lines } in accounts {
        let (heading, lines) = (escaped(heading), escaped(&lines.join("\n")));
        let _ = writeln!(
            out,
            "<section><h2>{heading}</h2>\n<pre tabindex=\"0\">{lines}</pre></section>"
        );
    }
    out.push_str("</body></html>\n");
    out
}

/// Adds the latency of the logs.
fn latency(
    out: &mut String,
    names: &[String],
    clocks: &[Option<ClockOffset>],
    comparison: &Comparison,
) {
    out.push_str("<h1>Latency by channel and stage</h1>\n<p class=\"key\">");
    let logs = names.iter().zip(clocks).zip(&comparison.spans);
    for (letter, ((name, clock), span)) in LETTERS.iter().zip(logs) {
        let (class, s) = (letter.to_lowercase(), span.as_secs_f64());
        let name = escaped(name);
        let _ = writeln!(
            out,
            "<b class=\"{class}\"></b>{letter}: {name}, {s:.1} s{}<br>",
            differing(*clock)
        );
    }
    out.push_str("</p>\n");
    if names.len() == 2 {
        method(out, comparison.verdicts);
    }
    for row in &comparison.rows {
        section(out, row, clocks);
    }
}

fn method(out: &mut String, verdicts: usize) {
    let percent = SIGNIFICANCE * 100.0;
    let _ = writeln!(
        out,
        "<p>Method: the p50 and the p99 of every interval with at least {SAMPLES_MIN} samples are the \
         values of a log. The rank test of Mann and Whitney (two-sided, normal approximation, corrected for \
         ties and continuity) compares those of A and B. They differ by more than the noise if chance has a \
         probability below {percent}%, divided by the {verdicts} comparisons of this page. A side needs \
         {VALUES_MIN} intervals. The test takes intervals as independent, so a slow drift within a log looks \
         like a difference.</p>"
    );
}

/// Returns by how much the hosts' clocks may differ.
fn differing(clock: Option<ClockOffset>) -> String {
    let Some(clock) = clock else {
        return String::new();
    };
    let sign = if clock.offset_ns < 0 { "-" } else { "" };
    let offset = span(clock.offset_ns.unsigned_abs());
    let error = span(clock.error_ns);
    format!("; the publisher's clock is ahead by {sign}{offset}, ± {error} (the worst interval)")
}

/// Returns the latency of a stage below which the clocks of a log support no number.
fn unsupported_below(tag: &str, clock: Option<ClockOffset>) -> u64 {
    let (_, name) = tag.rsplit_once('/').unwrap_or_default();
    let mut between = Stage::ALL.into_iter().filter(|it| it.compares_clocks());
    let is_between = between.any(|it| it.name() == name);
    clock
        .filter(|_| is_between)
        .map_or(0, |clock| clock.limit_ns())
}

fn section(out: &mut String, row: &Row, clocks: &[Option<ClockOffset>]) {
    let tag = escaped(&row.tag);
    let _ = writeln!(out, "<section><h2>{tag}</h2>");
    if let (Some(verdicts), [Some(a), Some(b)]) = (&row.verdicts, &row.sides[..]) {
        for (at, (name, _)) in COMPARED.iter().enumerate() {
            let medians = [a, b].map(|side| median(&side.compared(at)));
            sentence(out, name, verdicts[at], medians);
        }
    }
    table(out, row, clocks);
    out.push_str(&percentiles(&tag, row).svg());
    out.push_str(&over_time(&tag, row).svg());
    out.push_str("<p>Over time: solid p50, dashed p99, dotted maximum.</p></section>\n");
}

fn sentence(out: &mut String, name: &str, verdict: Verdict, [a, b]: [u64; 2]) {
    let change = match a {
        0 => String::new(),
        a => format!(" ({:+.1}%)", (b as f64 / a as f64 - 1.0) * 100.0),
    };
    let of = format!(
        "median of intervals {} in A, {} in B{change}",
        span(a),
        span(b)
    );
    let _ = match verdict {
        Verdict::TooFew => writeln!(out, "<p>{name}: too few intervals to compare.</p>"),
        Verdict::Noise(p) => {
            writeln!(
                out,
                "<p>{name}: no difference beyond the noise; {of}, p = {p:.2e}.</p>"
            )
        }
        Verdict::Lower(p) => writeln!(
            out,
            "<p class=\"differs\">{name}: B is lower, beyond the noise; {of}, p = {p:.2e}.</p>"
        ),
        Verdict::Higher(p) => writeln!(
            out,
            "<p class=\"differs\">{name}: B is higher, beyond the noise; {of}, p = {p:.2e}.</p>"
        ),
    };
}

fn table(out: &mut String, row: &Row, clocks: &[Option<ClockOffset>]) {
    let mut is_marked = false;
    out.push_str("<div class=\"scroll\"><table><tr><th>log</th><th>samples</th><th>intervals</th><th>min</th>");
    for (name, _) in QUANTILES {
        let _ = write!(out, "<th>{name}</th>");
    }
    out.push_str("<th>max</th></tr>\n");
    for (letter, side) in sides(row) {
        let at = LETTERS.iter().position(|it| *it == letter);
        let clock = at.and_then(|at| clocks.get(at).copied().flatten());
        let least = unsupported_below(&row.tag, clock);
        let total = &side.total;
        let (samples, intervals) = (thousands(total.len()), side.points.len());
        let _ = write!(
            out,
            "<tr><td>{letter}</td><td>{samples}</td><td>{intervals}</td>"
        );
        let quantiles = QUANTILES.map(|(_, quantile)| total.value_at_quantile(quantile));
        let all = [total.min()]
            .into_iter()
            .chain(quantiles)
            .chain([total.max()]);
        for ns in all {
            let mark = if ns < least { " ?" } else { "" };
            is_marked |= ns < least;
            let _ = write!(out, "<td data-ns=\"{ns}\">{}{mark}</td>", span(ns));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</table></div>\n");
    if is_marked {
        out.push_str(
            "<p>? The clocks of the two hosts may differ by more than this latency.</p>\n",
        );
    }
}

fn sides(row: &Row) -> impl Iterator<Item = (&'static str, &Side)> {
    let all = LETTERS.into_iter().zip(&row.sides);
    all.filter_map(|(letter, side)| Some((letter, side.as_ref()?)))
}

fn percentiles(tag: &str, row: &Row) -> Plot {
    let ticks = (0..=NINES_MAX).map(|nines| {
        let percent = 100.0 - 10_f64.powi(2 - nines);
        let digits = usize::try_from(nines - 2).unwrap_or(0);
        (f64::from(nines), format!("{percent:.digits$}%"))
    });
    let lines = sides(row).map(|(letter, side)| {
        let nines =
            (0..=NINES_MAX * POINTS_A_NINE).map(|n| f64::from(n) / f64::from(POINTS_A_NINE));
        // Rarer than one of all samples is only the maximum.
        let rarest = (side.total.len().max(1) as f64).log10().max(1.0);
        let points = nines.filter(|nines| *nines <= rarest);
        let quantile = |nines: f64| side.total.value_at_quantile(1.0 - 10_f64.powf(-nines));
        Line {
            class: letter.to_lowercase(),
            name: letter.into(),
            points: points.map(|nines| (nines, quantile(nines))).collect(),
        }
    });
    Plot {
        title: format!("{tag}: latency by percentile"),
        axis: "percentile of samples".into(),
        lines: lines.collect(),
        ticks: ticks.collect(),
    }
}

fn over_time(tag: &str, row: &Row) -> Plot {
    let (mut lines, mut end_s) = (Vec::new(), 0.0_f64);
    for (letter, side) in sides(row) {
        let class = letter.to_lowercase();
        let mut line = |name: &str, of: fn(&super::series::Point) -> u64| {
            let some = side
                .points
                .chunks(side.points.len().div_ceil(POINTS_MAX).max(1));
            let points = some.filter_map(|some| {
                let worst = some.iter().map(of).max()?;
                Some((some[some.len() / 2].at_s, worst))
            });
            lines.push(Line {
                class: format!("{class} {name}"),
                name: format!("{letter}, {name}"),
                points: points.collect(),
            });
        };
        line("p50", |it| it.compared[0]);
        line("p99", |it| it.compared[1]);
        line("max", |it| it.max);
        end_s = side.points.iter().map(|it| it.at_s).fold(end_s, f64::max);
    }
    let step = step_of(end_s);
    let ticks = (0..=10).map(|n| f64::from(n) * step);
    Plot {
        title: format!("{tag}: latency over time"),
        axis: "seconds since the first interval of the log".into(),
        lines,
        ticks: ticks
            .map(|at| (at, format!("{}", (at * 1e3).round() / 1e3)))
            .collect(),
    }
}

/// Returns 1, 2 or 5 times a power of ten, of which at most ten fit.
fn step_of(end_s: f64) -> f64 {
    let power = 10_f64.powf((end_s.max(1e-3) / 10.0).log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
    let fits = |step: &f64| step * 10.0 >= end_s;
    steps.into_iter().find(fits).unwrap_or(10.0 * power)
}

#[cfg(test)]
mod tests {
    use super::super::series::tests::{contents, log};
    use super::*;

    /// Returns the numbers of a row of the first table below a heading, in nanoseconds.
    fn numbers(page: &str, tag: &str, letter: &str) -> Vec<u64> {
        let section = page.split(&format!("<h2>{tag}</h2>")).nth(1).unwrap();
        let row = section
            .split(&format!("<tr><td>{letter}</td>"))
            .nth(1)
            .unwrap();
        let row = row.split("</tr>").next().unwrap();
        let cells = row.split("data-ns=\"").skip(1);
        cells
            .map(|it| it.split('"').next().unwrap().parse().unwrap())
            .collect()
    }

    #[test]
    fn page_has_the_numbers_of_both_logs_and_the_verdict() {
        let a = [log("all/repair", 5_000), log("all/<old>", 9_000)].concat();
        let comparison = Comparison::of(vec![contents(&a), contents(&log("all/repair", 6_000))]);
        let page = page(
            &["a.hlog".into(), "<b>.hlog".into()],
            &[None, None],
            &comparison,
            &[],
            &[],
        );
        for (letter, side) in ["A", "B"].iter().zip(&comparison.rows[1].sides) {
            let total = &side.as_ref().unwrap().total;
            let quantiles = [0.5, 0.9, 0.99, 0.999, 0.9999].map(|q| total.value_at_quantile(q));
            let expected = [&[total.min()][..], &quantiles, &[total.max()]].concat();
            assert_eq!(numbers(&page, "all/repair", letter), expected);
        }
        assert!(
            page.contains(
                "p50: B is higher, beyond the noise; median of intervals 5.1 us in A, 6.1 us in B"
            ),
            "{page}"
        );
        assert!(page.contains("<td>4,000</td><td>20</td>"));
        assert_eq!(page.matches("<svg").count(), 4);
        assert!(page.contains("all/&lt;old&gt;") && page.contains("&lt;b&gt;.hlog"));
        assert!(page.contains("divided by the 2 comparisons"));
        for outside in ["http:", "https:", "src=", "url(", "<script"] {
            assert!(
                !page.contains(outside),
                "the page is self-contained: {outside}"
            );
        }
    }

    #[test]
    fn latency_below_the_difference_of_clocks_is_marked() {
        let tags = ["all/repair", "all/sealed_to_delivered"];
        let both = tags.map(|tag| log(tag, 5_000)).concat();
        let logs = [log(tags[1], 5_000), both];
        let comparison = Comparison::of(logs.iter().map(|it| contents(it)).collect());
        let clock = |offset_ns, error_ns| {
            Some(ClockOffset {
                offset_ns,
                error_ns,
            })
        };
        let names = ["a".into(), "b".into()];
        let marks = |clocks: &[_]| {
            page(&names, clocks, &comparison, &[], &[])
                .matches(" ?</td>")
                .count()
        };
        assert_eq!(marks(&[None, None]), 0);
        assert_eq!(marks(&[clock(-4_000, 500), clock(0, 0)]), 0);
        // The minimum, five percentiles and the maximum of the stage between hosts.
        assert_eq!(marks(&[None, clock(-4_000, 2_000)]), 7);
        assert_eq!(marks(&[clock(9_000, 0), clock(0, 9_000)]), 14);
        let page = page(&names, &[None, clock(-4_000, 2_000)], &comparison, &[], &[]);
        assert!(page.contains("ahead by -4.0 us, ± 2.0 us"), "{page}");
        assert_eq!(page.matches("<p>? The clocks").count(), 1);
    }

    #[test]
    fn page_of_one_log_makes_no_comparison() {
        let comparison = Comparison::of(vec![contents(&log("all/repair", 5_000))]);
        let page = page(&["a.hlog".into()], &[None], &comparison, &[], &[]);
        assert!(
            !page.contains("noise") && page.contains("<td>4,000</td>"),
            "{page}"
        );
    }

    #[test]
    fn page_has_a_row_and_a_colour_for_each_of_many_logs() {
        let logs = (0..8).map(|n| contents(&log("all/repair", 5_000 + n)));
        let comparison = Comparison::of(logs.collect());
        let names: Vec<_> = (1..=8).map(|n| format!("s{n}")).collect();
        let page = page(&names, &[None; 8], &comparison, &[], &[]);
        for (name, letter) in names.iter().zip(LETTERS) {
            assert_eq!(numbers(&page, "all/repair", letter).len(), 7, "{letter}");
            let class = letter.to_lowercase();
            assert!(page.contains(&format!("class=\"{class}\"></b>{letter}: {name},")));
            assert!(
                page.contains(&format!(".{class}{{stroke:"))
                    && page.contains(&format!("--{class}:#"))
            );
        }
        assert!(!page.contains("noise"), "only two logs are compared");
    }

    #[test]
    fn accounts_of_losses_are_escaped_and_need_no_latency() {
        let account = Account {
            heading: "<b>.journal".into(),
            lines: vec!["gap 1".into(), "lost & <gone>".into()],
        };
        let page = page(&[], &[], &Comparison::of(Vec::new()), &[], &[account]);
        assert!(page.contains("<h2>&lt;b&gt;.journal</h2>"), "{page}");
        assert!(
            page.contains("gap 1\nlost &amp; &lt;gone&gt;</pre>"),
            "{page}"
        );
        assert!(!page.contains("Latency by channel"), "{page}");
    }

    #[test]
    fn steps_of_the_time_axis_are_round_and_at_most_ten() {
        let steps = [0.0, 1.0, 7.0, 20.0, 3_600.0].map(step_of);
        let expected = [1e-4, 0.1, 1.0, 2.0, 500.0];
        for (step, expected) in steps.into_iter().zip(expected) {
            assert!((step / expected - 1.0).abs() < 1e-9, "{step} {expected}");
        }
    }
}
