//! The marks that tickcast must meet: ratios within one run, each met, not met, or not safely measured.

use serde::Serialize;

use super::results::{Figure, Measured, Row};
use super::statistics::{Spread, ratio};

/// The required value of a ratio.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Wanted {
    AtLeast(f64),
    AtMost(f64),
}

impl Wanted {
    fn is_met_by(self, ratio: f64) -> bool {
        match self {
            Self::AtLeast(factor) => ratio >= factor,
            Self::AtMost(factor) => ratio <= factor,
        }
    }
}

/// One mark: a contender's figure at a measure, compared with another contender's.
struct Mark {
    measure: &'static str,
    figure: Figure,
    ours: &'static str,
    /// The other side of the comparison: a contender, [`SCHEDULE`], or [`NOBODY`].
    theirs: &'static str,
    wanted: Wanted,
}

/// Returns a mark on a figure without a comparison.
const fn outright(least: f64, measure: &'static str, figure: Figure, ours: &'static str) -> Mark {
    Mark {
        measure,
        figure,
        ours,
        theirs: NOBODY,
        wanted: Wanted::AtLeast(least),
    }
}

/// Stands in for the other side of a mark on a figure without a comparison.
pub(crate) const NOBODY: &str = "";
/// Stands in for the other side of a mark that compares a rate with the measure's own schedule.
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

/// Returns whether a mark uses this contender's results at this measure.
pub(crate) fn looks_at(measure: &str, contender: &str) -> bool {
    let mut of_measure = MARKS.iter().filter(|mark| mark.measure == measure);
    of_measure.any(|mark| mark.ours == contender || mark.theirs == contender)
}

/// A mark and its verdict.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Judged {
    pub(crate) measure: &'static str,
    pub(crate) figure: Figure,
    pub(crate) ours: &'static str,
    pub(crate) theirs: &'static str,
    wanted: Wanted,
    /// The ratio, from the rounds in which both had a turn.
    pub(crate) ratio: Option<Spread>,
    /// Rounds that the verdict uses, of `rounds`.
    pub(crate) rounds_judged: usize,
    pub(crate) rounds: usize,
    pub(crate) verdict: Verdict,
    /// Reasons why it was not safely measured.
    pub(crate) doubts: Vec<String>,
}

/// Whether a mark was met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    Met,
    NotMet,
    /// The ratio is unreliable, because turns or ticks are missing.
    NotSafelyMeasured,
    /// One of the two contenders took no part.
    NotMeasured,
}

impl Verdict {
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::Met => "met",
            Self::NotMet => "NOT MET",
            Self::NotSafelyMeasured => "NOT SAFELY MEASURED",
            Self::NotMeasured => "not measured",
        }
    }
}

impl Judged {
    /// Returns the verdict as text. A verdict from the median alone is marked as not safe.
    pub(crate) fn verdict_text(&self) -> String {
        let meets = |ratio| self.wanted.is_met_by(ratio);
        let safe = (self.ratio).is_none_or(|ratio| meets(ratio.low) == meets(ratio.high));
        match self.verdict {
            Verdict::Met | Verdict::NotMet if !safe => {
                format!("{}, but not in every round", self.verdict.text())
            }
            verdict => verdict.text().to_owned(),
        }
    }

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

/// Judges all marks by the measured results.
pub(crate) fn judge(measured: &[Measured]) -> Vec<Judged> {
    MARKS.iter().map(|mark| judged(mark, measured)).collect()
}

fn judged(mark: &Mark, measured: &[Measured]) -> Judged {
    let measure = measured.iter().find(|m| m.measure.id == mark.measure);
    let against = match mark.theirs {
        NOBODY | SCHEDULE => None,
        theirs => Some(theirs),
    };
    let looked_at = [mark.ours].into_iter().chain(against);
    let rows: Option<Vec<&Row>> = looked_at.map(|name| measure?.row(name)).collect();
    let rows = rows.unwrap_or_default();
    let ratio = match rows[..] {
        [ours, theirs] => ratio(ours.values(mark.figure), theirs.values(mark.figure)),
        [ours] if mark.theirs == NOBODY => {
            Spread::of(ours.values(mark.figure).iter().copied().flatten())
        }
        [ours] => {
            let values = ours.values(mark.figure);
            let wanted = measure.and_then(|m| m.measure.scheduled_per_s());
            ratio(values, &vec![wanted; values.len()])
        }
        _ => None,
    };
    let rounds = rows.iter().map(|row| row.rounds).max().unwrap_or(0);
    let rounds_judged = ratio.map_or(0, |ratio| ratio.turns);
    let mut doubts: Vec<String> = rows.iter().flat_map(|row| row.doubts()).collect();
    if doubts.is_empty() && rounds_judged < rounds {
        let without = rounds - rounds_judged;
        doubts.push(format!("{without} of {rounds} rounds have no such figure"));
    }
    let verdict = match ratio {
        _ if rows.is_empty() => Verdict::NotMeasured,
        _ if !doubts.is_empty() => Verdict::NotSafelyMeasured,
        Some(ratio) if mark.wanted.is_met_by(ratio.median) => Verdict::Met,
        _ => Verdict::NotMet,
    };
    Judged {
        measure: mark.measure,
        figure: mark.figure,
        ours: mark.ours,
        theirs: mark.theirs,
        wanted: mark.wanted,
        ratio,
        rounds_judged,
        rounds,
        verdict,
        doubts,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::plan::{Size, all};
    use crate::bench::protocol::Part;
    use crate::bench::turn::Turn;

    #[test]
    fn mark_compares_contenders_of_its_measure() {
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
    fn quick_run_takes_three_turns_where_judged() {
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
        let mut row = Row::new(contender, rates.len());
        for &rate in rates {
            row.add(Ok(turn(rate)));
        }
        row
    }

    /// Returns the verdict of a mark on the rate of this measure.
    fn rate_mark(id: &str, rows: Vec<Row>) -> Judged {
        let measure = all(Size::Full).into_iter().find(|m| m.id == id);
        let measure = measure.expect("its measure");
        let judged = judge(&[Measured { measure, rows }]).into_iter();
        let mut of_rate = judged.filter(|j| j.measure == id && j.figure == Figure::RatePerS);
        of_rate.next().expect("its mark")
    }

    #[test]
    fn mark_is_met_missed_or_not_judged_by_ratio() {
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
    fn verdict_differing_between_rounds_is_qualified() {
        let text = |rates: &[f64]| {
            let theirs = vec![1.0; rates.len()];
            let rows = vec![row("tickcast", rates), row("aeron", &theirs)];
            rate_mark("throughput-1500-1", rows).verdict_text()
        };
        assert_eq!(text(&[8.0, 9.0, 10.0]), "met");
        assert_eq!(text(&[7.9, 9.0, 10.0]), "met, but not in every round");
        assert_eq!(text(&[5.0, 6.0, 8.0]), "NOT MET, but not in every round");
        assert_eq!(text(&[5.0, 6.0, 7.0]), "NOT MET");
    }

    #[test]
    fn full_rate_follows_schedule_not_slow_peer() {
        let verdict = |ours, theirs| {
            let rows = vec![row("tickcast", &[ours]), row("aeron", &[theirs])];
            rate_mark("loss-5", rows).verdict
        };
        assert_eq!(verdict(19_000.0, 19_000.0), Verdict::NotMet);
        assert_eq!(verdict(19_900.0, 40_000.0), Verdict::Met);
    }

    #[test]
    fn mark_is_judged_only_after_complete_rounds() {
        let throughput =
            |ours: Row, theirs: Row| rate_mark("throughput-1500-1", vec![ours, theirs]);
        let failed = |mut row: Row| {
            row.rounds += 1;
            row.add(Err("it fell over".into()));
            row
        };
        let lossy = |mut row: Row| {
            let mut turn = turn(9.0);
            turn.sender.ticks = 12;
            turn.receivers[0].declared_lost = 12;
            row.rounds += 1;
            row.add(Ok(turn));
            row
        };
        let noisy = |mut row: Row| {
            row.noisy_turns = row.rounds.div_ceil(2);
            row
        };
        let ours = || row("tickcast", &[9.0, 9.0]);
        let aeron = || row("aeron", &[1.0, 1.0]);
        let whole = throughput(ours(), aeron());
        assert_eq!((whole.verdict, whole.rounds_judged), (Verdict::Met, 2));
        assert!(whole.doubts.is_empty());
        let three = |contender, rate| row(contender, &[rate; 3]);
        let (nothing, half) = (row("tickcast", &[]), row("aeron", &[1.0, 0.0]));
        for (ours, theirs, judged, of, why) in [
            (
                failed(ours()),
                three("aeron", 1.0),
                2,
                3,
                "1 of 3 rounds of tickcast failed",
            ),
            (
                three("tickcast", 9.0),
                failed(aeron()),
                2,
                3,
                "1 of 3 rounds of aeron failed",
            ),
            (
                noisy(three("tickcast", 9.0)),
                three("aeron", 1.0),
                3,
                3,
                "others were at work in 2 of 3 rounds of tickcast",
            ),
            (
                lossy(ours()),
                three("aeron", 1.0),
                3,
                3,
                "tickcast declared 12 ticks lost",
            ),
            (
                three("tickcast", 9.0),
                lossy(aeron()),
                3,
                3,
                "aeron declared 12 ticks lost",
            ),
            (
                failed(nothing),
                row("aeron", &[1.0]),
                0,
                1,
                "1 of 1 rounds of tickcast failed",
            ),
            (ours(), half, 1, 2, "1 of 2 rounds have no such figure"),
        ] {
            let mark = throughput(ours, theirs);
            assert_eq!(mark.verdict, Verdict::NotSafelyMeasured, "{why}");
            assert_eq!((mark.rounds_judged, mark.rounds), (judged, of), "{why}");
            assert_eq!(mark.doubts, [why]);
        }
    }
}
