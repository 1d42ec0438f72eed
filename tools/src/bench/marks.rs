//! The marks that tickcast is held to: ratios within one run, met or not, or not safely measured.

use serde::Serialize;

use super::results::{Figure, Measured};
use super::statistics::{Spread, ratio};

/// What a ratio must be.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Wanted {
    AtLeast(f64),
    AtMost(f64),
}

/// One mark: a contender's figure at a measure against another's.
struct Mark {
    measure: &'static str,
    figure: Figure,
    ours: &'static str,
    /// Whom it is held against: a contender, [`SCHEDULE`], or [`NOBODY`].
    theirs: &'static str,
    wanted: Wanted,
}

/// A mark that is a figure.
const fn outright(least: f64, measure: &'static str, figure: Figure, ours: &'static str) -> Mark {
    Mark {
        measure,
        figure,
        ours,
        theirs: NOBODY,
        wanted: Wanted::AtLeast(least),
    }
}

/// Stands where a mark is a figure and no ratio.
pub(crate) const NOBODY: &str = "";
/// Stands where a rate is held against what the measure's own schedule wants.
const SCHEDULE: &str = "schedule";

const fn at_least(
    factor: f64,
    measure: &'static str,
    ours: &'static str,
    theirs: &'static str,
) -> Mark {
    Mark {
        measure,
        figure: Figure::RatePerS,
        ours,
        theirs,
        wanted: Wanted::AtLeast(factor),
    }
}

const fn at_most(
    factor: f64,
    measure: &'static str,
    figure: Figure,
    ours: &'static str,
    theirs: &'static str,
) -> Mark {
    Mark {
        measure,
        figure,
        ours,
        theirs,
        wanted: Wanted::AtMost(factor),
    }
}

const MARKS: [Mark; 19] = [
    at_least(8.0, "throughput-1500-1", "tickcast", "aeron"),
    at_least(0.7, "throughput-1500-1", "tickcast", "floor"),
    at_least(2.0, "throughput-1500-1", "tickcast-no-gso", "aeron"),
    at_least(0.85, "throughput-1500-1", "tickcast-no-gso", "floor-no-gso"),
    at_least(8.0, "throughput-1500-4", "tickcast", "aeron"),
    at_most(0.9, "latency-100k", Figure::P50Ns, "tickcast", "aeron"),
    at_most(1.15, "latency-100k", Figure::P50Ns, "tickcast", "floor"),
    at_most(1.0, "latency-100k", Figure::P99Ns, "tickcast", "aeron"),
    at_most(1.0, "latency-1m", Figure::P50Ns, "tickcast", "aeron"),
    at_most(1.0, "latency-2m", Figure::P50Ns, "tickcast", "aeron"),
    at_least(3.0, "host-throughput", "tickcast-shm", "aeron-ipc"),
    at_most(0.9, "host-rtt", Figure::P50Ns, "tickcast-shm", "aeron-ipc"),
    at_most(0.5, "loss-0.1", Figure::P999Ns, "tickcast", "aeron"),
    at_most(0.5, "loss-0.1", Figure::LostP50Ns, "tickcast", "aeron"),
    at_most(0.5, "loss-0.1", Figure::LostP99Ns, "tickcast", "aeron"),
    at_least(0.99, "loss-5", "tickcast", SCHEDULE),
    at_most(0.5, "loss-5", Figure::P99Ns, "tickcast", "aeron"),
    outright(20e6, "feed-simulator", Figure::DecodedPerS, "tickcast"),
    outright(10e6, "feed-simulator", Figure::MessagesPerS, "tickcast"),
];

/// Whether a mark looks at what this contender does at this measure.
pub(crate) fn looks_at(measure: &str, contender: &str) -> bool {
    let mut of_measure = MARKS.iter().filter(|mark| mark.measure == measure);
    of_measure.any(|mark| mark.ours == contender || mark.theirs == contender)
}

/// A mark and what came of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Judged {
    pub(crate) measure: &'static str,
    pub(crate) figure: Figure,
    pub(crate) ours: &'static str,
    pub(crate) theirs: &'static str,
    wanted: Wanted,
    /// The ratio, of the rounds in which both had a turn.
    pub(crate) ratio: Option<Spread>,
    pub(crate) verdict: Verdict,
}

/// Whether a mark was met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    Met,
    NotMet,
    /// Somebody was not there.
    NotMeasured,
}

impl Verdict {
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::Met => "met",
            Self::NotMet => "NOT MET",
            Self::NotMeasured => "not measured",
        }
    }
}

impl Judged {
    pub(crate) fn wanted(&self) -> String {
        match self.wanted {
            Wanted::AtLeast(least) if self.theirs == NOBODY => {
                format!(">= {:.0} M/s", least / 1e6)
            }
            Wanted::AtLeast(factor) => format!(">= {factor}"),
            Wanted::AtMost(factor) => format!("<= {factor}"),
        }
    }
}

/// Judges all marks by what was measured.
pub(crate) fn judge(measured: &[Measured]) -> Vec<Judged> {
    MARKS.iter().map(|mark| judged(mark, measured)).collect()
}

fn judged(mark: &Mark, measured: &[Measured]) -> Judged {
    let measure = measured.iter().find(|m| m.measure.id == mark.measure);
    let values = |contender: &str| Some(measure?.row(contender)?.values(mark.figure));
    let ours = values(mark.ours).unwrap_or_default();
    let ratio = match mark.theirs {
        NOBODY => Spread::of(ours.into_iter().flatten()),
        SCHEDULE => {
            let wanted = measure.and_then(|m| m.measure.scheduled_per_s());
            ratio(&ours, &vec![wanted; ours.len()])
        }
        theirs => ratio(&ours, &values(theirs).unwrap_or_default()),
    };
    let verdict = match (ratio, mark.wanted) {
        (None, _) => Verdict::NotMeasured,
        (Some(ratio), Wanted::AtLeast(factor)) if ratio.median >= factor => Verdict::Met,
        (Some(ratio), Wanted::AtMost(factor)) if ratio.median <= factor => Verdict::Met,
        _ => Verdict::NotMet,
    };
    Judged {
        measure: mark.measure,
        figure: mark.figure,
        ours: mark.ours,
        theirs: mark.theirs,
        wanted: mark.wanted,
        ratio,
        verdict,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::plan::{Size, all};
    use crate::bench::protocol::Part;
    use crate::bench::results::Row;
    use crate::bench::turn::Turn;

    #[test]
    fn every_mark_is_of_a_measure_at_which_both_take_turns() {
        let measures = all(Size::Full);
        for mark in &MARKS {
            let measure = measures.iter().find(|m| m.id == mark.measure);
            let measure = measure.unwrap_or_else(|| panic!("no measure {}", mark.measure));
            for contender in [mark.ours, mark.theirs] {
                let is_one = match contender {
                    NOBODY => true,
                    SCHEDULE => measure.scheduled_per_s().is_some(),
                    name => measure.contenders.contains(&name),
                };
                assert!(is_one, "{contender}");
            }
        }
    }

    #[test]
    fn a_quick_run_takes_three_turns_where_a_mark_looks_and_one_elsewhere() {
        assert_eq!(Size::Quick.rounds(looks_at("latency-100k", "floor")), 3);
        assert_eq!(Size::Quick.rounds(looks_at("latency-2m", "floor")), 1);
        assert_eq!(
            Size::Quick.rounds(looks_at("throughput-9000-1", "aeron")),
            1
        );
        assert_eq!(Size::Full.rounds(looks_at("latency-2m", "floor")), 7);
        for mark in &MARKS {
            let id = mark.measure;
            let measures = all(Size::Quick);
            let measure = measures.iter().find(|m| m.id == id).expect("its measure");
            assert!(measure.is_quick, "{id} is judged by every run");
        }
    }

    fn turn(rate_per_s: f64) -> Turn {
        let part = Part {
            rate_per_s,
            ..Part::default()
        };
        Turn {
            receivers: vec![part],
            ..Turn::default()
        }
    }

    fn row(contender: &'static str, rates: &[f64]) -> Row {
        let mut row = Row::new(contender);
        for &rate in rates {
            row.add(Ok(turn(rate)));
        }
        row
    }

    /// What becomes of the mark of a measure that looks at a rate.
    fn rate_mark(id: &str, rows: Vec<Row>) -> Judged {
        let measure = all(Size::Full).into_iter().find(|m| m.id == id);
        let measure = measure.expect("its measure");
        let judged = judge(&[Measured { measure, rows }]).into_iter();
        let mut of_rate = judged.filter(|j| j.measure == id && j.figure == Figure::RatePerS);
        of_rate.next().expect("its mark")
    }

    #[test]
    fn a_mark_is_met_at_its_ratio_missed_below_and_not_judged_without_both() {
        let verdict = |ours, theirs: &[f64]| {
            let mut rows = vec![row("tickcast", &[ours])];
            if !theirs.is_empty() {
                rows.push(row("aeron", theirs));
            }
            rate_mark("throughput-1500-1", rows).verdict
        };
        assert_eq!(verdict(8.0, &[1.0]), Verdict::Met);
        assert_eq!(verdict(7.9, &[1.0]), Verdict::NotMet);
        assert_eq!(verdict(8.0, &[]), Verdict::NotMeasured);
        assert!(judge(&[]).iter().all(|j| j.verdict == Verdict::NotMeasured));
    }

    #[test]
    fn the_full_rate_is_the_schedules_and_not_that_of_a_peer_as_slow() {
        let verdict = |ours, theirs| {
            let rows = vec![row("tickcast", &[ours]), row("aeron", &[theirs])];
            rate_mark("loss-5", rows).verdict
        };
        assert_eq!(verdict(19_000.0, 19_000.0), Verdict::NotMet);
        assert_eq!(verdict(19_900.0, 40_000.0), Verdict::Met);
    }
}
