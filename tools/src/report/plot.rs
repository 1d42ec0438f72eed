//! Plots as inline SVG: a logarithmic axis of latency over percentiles, or over time.

use std::fmt::Write;

use crate::support::table::span;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 16.0;
const BOTTOM: f64 = 44.0;

/// A line of a plot, with the class of its style.
pub(crate) struct Line {
    pub(crate) class: String,
    pub(crate) name: String,
    /// Position on the horizontal axis, and nanoseconds.
    pub(crate) points: Vec<(f64, u64)>,
}

/// A plot: its description, its lines, and the ticks of its horizontal axis.
pub(crate) struct Plot {
    pub(crate) title: String,
    pub(crate) axis: String,
    pub(crate) lines: Vec<Line>,
    pub(crate) ticks: Vec<(f64, String)>,
}

impl Plot {
    /// Returns the plot as SVG; empty without any point.
    pub(crate) fn svg(&self) -> String {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let Some(lowest) = points().map(|(_, ns)| (*ns).max(1)).min() else {
            return String::new();
        };
        let highest = points()
            .map(|(_, ns)| *ns)
            .max()
            .unwrap_or(1)
            .max(lowest.saturating_add(1));
        let right = points()
            .map(|(x, _)| *x)
            .fold(0.0, f64::max)
            .max(f64::MIN_POSITIVE);
        let decades = (decade_below(lowest), decade_below(highest) + 1);
        let x = |at: f64| LEFT + at / right * (WIDTH - LEFT - RIGHT);
        let y = |ns: u64| {
            let (low, high) = (f64::from(decades.0), f64::from(decades.1));
            let share = ((ns.max(1) as f64).log10() - low) / (high - low);
            HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)
        };
        let mut out = format!(
            "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{0}\"><title>{0}</title>\n",
            self.title
        );
        for decade in decades.0..=decades.1 {
            let ns = 10_u64.saturating_pow(decade);
            let (at, end) = (y(ns), WIDTH - RIGHT);
            let _ = writeln!(
                out,
                "<path class=\"grid\" d=\"M{LEFT} {at:.1}H{end}\"/><text x=\"{:.1}\" y=\"{:.1}\" \
                 text-anchor=\"end\">{}</text>",
                LEFT - 6.0,
                at + 4.0,
                round_span(ns)
            );
        }
        for (at, name) in self.ticks.iter().filter(|(at, _)| *at <= right) {
            let (at, end) = (x(*at), HEIGHT - BOTTOM);
            let _ = writeln!(
                out,
                "<path class=\"grid\" d=\"M{at:.1} {TOP}V{end}\"/><text x=\"{at:.1}\" y=\"{:.1}\" \
                 text-anchor=\"middle\">{name}</text>",
                end + 16.0
            );
        }
        let _ = writeln!(
            out,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            (LEFT + WIDTH - RIGHT) / 2.0,
            HEIGHT - 8.0,
            self.axis
        );
        for line in self.lines.iter().filter(|line| !line.points.is_empty()) {
            let all = line.points.iter();
            let all = all.map(|(at, ns)| format!("{:.1},{:.1}", x(*at), y(*ns)));
            let all = all.collect::<Vec<_>>().join(" ");
            let Line { class, name, .. } = line;
            let _ = writeln!(
                out,
                "<polyline class=\"{class}\" points=\"{all}\"><title>{name}</title></polyline>"
            );
            // A line of one point would be invisible.
            if let [(at, ns)] = &line.points[..] {
                let (at, ns) = (x(*at), y(*ns));
                let _ = writeln!(
                    out,
                    "<circle class=\"{class}\" cx=\"{at:.1}\" cy=\"{ns:.1}\" r=\"3\"/>"
                );
            }
        }
        out.push_str("</svg>\n");
        out
    }
}

fn decade_below(ns: u64) -> u32 {
    ns.max(1).ilog10()
}

/// Formats a power of ten: 10 us, not 10.0 us.
fn round_span(ns: u64) -> String {
    let shown = span(ns);
    let Some((number, unit)) = shown.split_once(' ') else {
        return shown;
    };
    match number.split_once('.') {
        Some((whole, _)) => format!("{whole} {unit}"),
        None => shown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(points: Vec<(f64, u64)>) -> Plot {
        Plot {
            title: "t".into(),
            axis: "x".into(),
            lines: vec![Line {
                class: "a".into(),
                name: "A".into(),
                points,
            }],
            ticks: vec![(0.0, "0".into()), (2.0, "two".into()), (9.0, "nine".into())],
        }
    }

    #[test]
    fn points_lie_on_a_logarithmic_axis_within_the_frame() {
        let svg = plot(vec![(0.0, 1_000), (1.0, 10_000), (2.0, 100_000)]).svg();
        // The axis has the decades 1 us to 1 ms.
        assert!(
            svg.contains("points=\"70.0,256.0 387.0,176.0 704.0,96.0\""),
            "{svg}"
        );
        assert!(svg.contains(">1 us<") && svg.contains(">1 ms<"), "{svg}");
        assert!(svg.contains(">two<") && !svg.contains(">nine<"), "{svg}");
    }

    #[test]
    fn plots_of_zero_and_one_point_have_no_invalid_number() {
        assert_eq!(plot(Vec::new()).svg(), "");
        for svg in [
            plot(vec![(0.0, 0)]).svg(),
            plot(vec![(5.0, u64::MAX)]).svg(),
        ] {
            assert!(
                svg.contains("<circle") && !svg.contains("NaN") && !svg.contains("inf"),
                "{svg}"
            );
        }
    }
}
