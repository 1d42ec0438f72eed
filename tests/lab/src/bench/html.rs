//! The results as one self-contained page: tables, and plots as inline SVG.

use std::fmt::Write;

use plotters::coord::Shift;
use plotters::prelude::*;

use super::report::Results;
use super::results::{Figure, Measured, Row};
use super::tables::{cells, doubts, mark_cells, remarks};

const WIDTH: u32 = 760;
const HEIGHT: u32 = 300;

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:64rem;margin:2rem auto;padding:0 1rem;\
color:#1d2430}table{border-collapse:collapse;margin:.6rem 0 1.6rem;font-size:.86rem}td,th{padding:.25rem \
.7rem;border-bottom:1px solid #d6dbe3;text-align:right}td:first-child,th:first-child{text-align:left}h2{\
margin-top:2.2rem}.warning{color:#a12020;font-weight:600}svg{max-width:100%;height:auto}";

/// Returns the page.
pub(crate) fn page(results: &Results) -> String {
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>tickcast bench</title>\
         <style>{STYLE}</style></head><body>\n<h1>tickcast {} beside floor and peers</h1>\n<ul>\n",
        escaped(results.version)
    );
    for remark in remarks(results) {
        let class = if remark.starts_with("WARNING") || remark.starts_with("MISSING") {
            " class=\"warning\""
        } else {
            ""
        };
        let _ = writeln!(out, "<li{class}>{}</li>", escaped(&remark));
    }
    out.push_str("</ul>\n<h2>Marks</h2>\n");
    table(&mut out, &mark_cells(&results.marks));
    for doubt in doubts(&results.marks) {
        warning(&mut out, &doubt);
    }
    for measured in &results.measures {
        let _ = writeln!(out, "<h2>{}</h2>", escaped(measured.measure.title));
        out.push_str(&plot(measured));
        table(&mut out, &cells(measured));
        for row in &measured.rows {
            for why in row.failures.iter().take(1) {
                warning(&mut out, &format!("{}: {why}", row.contender));
            }
            for note in &row.notes {
                let _ = writeln!(out, "<p>{}: {}</p>", row.contender, escaped(note));
            }
        }
    }
    out.push_str("</body></html>\n");
    out
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

fn warning(out: &mut String, text: &str) {
    let _ = writeln!(out, "<p class=\"warning\">{}</p>", escaped(text));
}

fn table(out: &mut String, (headings, rows): &(Vec<String>, Vec<Vec<String>>)) {
    out.push_str("<table>\n");
    let mut line = |tag: &str, cells: &[String]| {
        out.push_str("<tr>");
        for cell in cells {
            let _ = write!(out, "<{tag}>{}</{tag}>", escaped(cell));
        }
        out.push_str("</tr>\n");
    };
    line("th", headings);
    for row in rows {
        line("td", row);
    }
    out.push_str("</table>\n");
}

/// Returns a plot of a measure: rates as bars, latencies as curves. Empty if no contender had a turn.
fn plot(measured: &Measured) -> String {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (WIDTH, HEIGHT)).into_drawing_area();
        let drawn = if measured.measure.is_flood() {
            bars(&area, measured)
        } else {
            curves(&area, measured)
        };
        if drawn.is_none() {
            return String::new();
        }
    }
    svg
}

fn colour(index: usize) -> RGBColor {
    const COLOURS: [RGBColor; 6] = [
        RGBColor(20, 110, 180),
        RGBColor(200, 80, 30),
        RGBColor(60, 140, 60),
        RGBColor(120, 80, 170),
        RGBColor(140, 110, 40),
        RGBColor(90, 90, 90),
    ];
    COLOURS[index % COLOURS.len()]
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Draws horizontal bars, in millions a second, with their spread as a line.
fn bars(area: &Area<'_>, measured: &Measured) -> Option<()> {
    let rows: Vec<(&Row, _)> = measured
        .rows
        .iter()
        .filter_map(|row| Some((row, *row.figures.get(&Figure::RatePerS)?)))
        .collect();
    let most = rows.iter().map(|(_, spread)| spread.high / 1e6);
    let most = most.reduce(f64::max)?;
    let names: Vec<String> = rows
        .iter()
        .map(|(row, _)| row.contender.to_owned())
        .collect();
    area.fill(&WHITE).ok()?;
    let mut chart = ChartBuilder::on(area)
        .margin(10)
        .x_label_area_size(36)
        .y_label_area_size(120)
        .build_cartesian_2d(0.0..most * 1.05, 0.0..rows.len() as f64)
        .ok()?;
    let name = |y: &f64| {
        let at = *y as usize;
        let is_middle = (y - at as f64 - 0.5).abs() < 1e-6;
        let name = is_middle.then(|| names.iter().rev().nth(at)).flatten();
        name.cloned().unwrap_or_default()
    };
    chart
        .configure_mesh()
        .disable_y_mesh()
        .y_labels(2 * rows.len() + 1)
        .y_label_formatter(&name)
        .x_desc("million ticks a second")
        .draw()
        .ok()?;
    for (index, (_, spread)) in rows.iter().enumerate() {
        let from_top = (rows.len() - 1 - index) as f64;
        let (low, high) = (spread.low / 1e6, spread.high / 1e6);
        let bar = [
            (0.0, from_top + 0.25),
            (spread.median / 1e6, from_top + 0.75),
        ];
        let line = [(low, from_top + 0.5), (high, from_top + 0.5)];
        chart
            .draw_series([Rectangle::new(bar, colour(index).filled())])
            .ok()?;
        chart
            .draw_series([PathElement::new(line, BLACK.stroke_width(2))])
            .ok()?;
    }
    area.present().ok()
}

/// Draws latency by quantile: the further to the right, the rarer.
fn curves(area: &Area<'_>, measured: &Measured) -> Option<()> {
    /// Returns the number of nines: 0 is the median's side, 4 is one in 10,000.
    fn nines(quantile: f64) -> f64 {
        -(1.0 - quantile).max(5e-5).log10()
    }
    let rows: Vec<&Row> = measured
        .rows
        .iter()
        .filter(|row| !row.curve.is_empty())
        .collect();
    let values = rows.iter().flat_map(|row| &row.curve);
    let us = values.map(|(_, ns)| (*ns as f64 / 1e3).max(0.05));
    let (low, high) = us.fold((f64::MAX, 0.0_f64), |(low, high), us| {
        (low.min(us), high.max(us))
    });
    if rows.is_empty() {
        return None;
    }
    area.fill(&WHITE).ok()?;
    let mut chart = ChartBuilder::on(area)
        .margin(10)
        .x_label_area_size(36)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..4.4, (low * 0.8..high * 1.3).log_scale())
        .ok()?;
    chart
        .configure_mesh()
        .x_desc("quantile")
        .y_desc("microseconds")
        .x_labels(5)
        .x_label_formatter(&|nines: &f64| format!("{}", 1.0 - 10_f64.powf(-nines.round())))
        .draw()
        .ok()?;
    for (index, row) in rows.iter().enumerate() {
        let points = row.curve.iter();
        let points = points.map(|(q, ns)| (nines(*q), (*ns as f64 / 1e3).max(0.05)));
        let colour = colour(index);
        chart
            .draw_series(LineSeries::new(points, colour.stroke_width(2)))
            .ok()?
            .label(row.contender)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .draw()
        .ok()?;
    area.present().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::plan::{Size, all};
    use crate::bench::protocol::{Latency, Part};
    use crate::bench::turn::Turn;

    fn measured(at: usize, contender: &'static str) -> Measured {
        let mut row = Row::new(contender, 1);
        let latency = Latency {
            count: 1,
            p50: 2_000,
            curve: vec![(0.5, 2_000), (0.99, 9_000), (1.0, 30_000)],
            ..Latency::default()
        };
        let part = Part {
            rate_per_s: 5e6,
            latency: Some(latency),
            ..Part::default()
        };
        row.add(Ok(Turn {
            receivers: vec![part],
            ..Turn::default()
        }));
        Measured {
            measure: all(Size::Tiny).remove(at),
            rows: vec![row],
        }
    }

    #[test]
    fn measure_plot_names_its_contenders() {
        let latency = all(Size::Tiny).iter().position(|m| m.id == "latency-1m");
        for at in [0, latency.unwrap()] {
            let svg = plot(&measured(at, "tickcast"));
            assert!(svg.starts_with("<svg") && svg.contains("tickcast"), "{svg}");
        }
    }

    #[test]
    fn measure_without_rows_has_no_plot() {
        let mut empty = measured(0, "tickcast");
        empty.rows.clear();
        assert_eq!(plot(&empty), "");
    }

    #[test]
    fn process_output_is_escaped_in_html() {
        assert_eq!(escaped("<b> & </b>"), "&lt;b&gt; &amp; &lt;/b&gt;");
    }
}
