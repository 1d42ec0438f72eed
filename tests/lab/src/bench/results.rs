//! The results of a run, for programs: every figure with its spread, and the books, which balance.

use std::collections::BTreeMap;

use serde::Serialize;

use super::plan::Measure;
use super::protocol::{Latency, Part};
use super::statistics::Spread;
use super::turn::Turn;

/// A figure of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Figure {
    /// Ticks a second of the slowest receiver.
    RatePerS,
    P50Ns,
    P90Ns,
    P99Ns,
    P999Ns,
    /// Latency of the ticks that were dropped on purpose.
    LostP50Ns,
    LostP99Ns,
    /// CPU time per million ticks.
    SenderCpuNs,
    ReceiverCpuNs,
    /// Peak resident memory.
    SenderMemoryBytes,
    ReceiverMemoryBytes,
    /// Venue messages a second of a feed: decoding alone, and end to end.
    DecodedPerS,
    MessagesPerS,
}

impl Figure {
    pub(crate) const ALL: [Self; 13] = [
        Self::RatePerS,
        Self::P50Ns,
        Self::P90Ns,
        Self::P99Ns,
        Self::P999Ns,
        Self::LostP50Ns,
        Self::LostP99Ns,
        Self::SenderCpuNs,
        Self::ReceiverCpuNs,
        Self::SenderMemoryBytes,
        Self::ReceiverMemoryBytes,
        Self::DecodedPerS,
        Self::MessagesPerS,
    ];

    /// Returns its value in a turn; with several receivers, the worst one.
    pub(crate) fn of(self, turn: &Turn) -> Option<f64> {
        let worst = |latency: fn(&Part) -> Option<&Latency>, of: fn(&Latency) -> u64| {
            let all = turn.receivers.iter().filter_map(latency);
            all.map(|latency| of(latency) as f64).reduce(f64::max)
        };
        let of_all = |of| worst(|part| part.latency.as_ref(), of);
        let of_lost = |of| worst(|part| part.recovered.as_ref(), of);
        let per_million =
            |part: &Part| (part.ticks > 0).then(|| part.cpu_ns as f64 * 1e6 / part.ticks as f64);
        let of_receivers = |of: &dyn Fn(&Part) -> Option<f64>| {
            turn.receivers.iter().filter_map(of).reduce(f64::max)
        };
        match self {
            Self::RatePerS => turn.receivers.iter().map(|p| p.rate_per_s).reduce(f64::min),
            Self::P50Ns => of_all(|l| l.p50),
            Self::P90Ns => of_all(|l| l.p90),
            Self::P99Ns => of_all(|l| l.p99),
            Self::P999Ns => of_all(|l| l.p999),
            Self::LostP50Ns => of_lost(|l| l.p50),
            Self::LostP99Ns => of_lost(|l| l.p99),
            Self::SenderCpuNs => per_million(&turn.sender),
            Self::ReceiverCpuNs => of_receivers(&per_million),
            Self::DecodedPerS => turn.sender.decoded_per_s,
            Self::MessagesPerS => turn.sender.messages_per_s,
            Self::SenderMemoryBytes => Some(turn.sender.memory_bytes as f64),
            Self::ReceiverMemoryBytes => of_receivers(&|part| Some(part.memory_bytes as f64)),
        }
    }
}

/// The account of all ticks. For each receiver, ticks sent = received + declared lost + missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Books {
    pub(crate) sent: u64,
    pub(crate) delivered: u64,
    pub(crate) declared_lost: u64,
    pub(crate) missing: u64,
    /// Delivered, but damaged or out of order.
    pub(crate) wrong: u64,
}

impl Books {
    fn add(&mut self, turn: &Turn) {
        for part in &turn.receivers {
            self.sent += turn.sender.ticks;
            self.delivered += part.ticks;
            self.declared_lost += part.declared_lost;
            self.missing += part.missing;
            self.wrong += part.wrong;
        }
    }

    /// Returns whether every tick is accounted for: no extra tick arrived, none is missing, none was
    /// damaged.
    pub(crate) const fn balance(&self) -> bool {
        self.sent == self.delivered + self.declared_lost && self.missing == 0 && self.wrong == 0
    }
}

/// A contender's results at a measure.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Row {
    pub(crate) contender: &'static str,
    /// Number of planned rounds.
    pub(crate) rounds: usize,
    pub(crate) figures: BTreeMap<Figure, Spread>,
    /// Values of each figure by round; `None` for a failed turn.
    values: BTreeMap<Figure, Vec<Option<f64>>>,
    pub(crate) books: Books,
    pub(crate) balances: bool,
    /// Turns in which other load makes the figures unreliable.
    pub(crate) noisy_turns: usize,
    /// Errors of failed turns.
    pub(crate) failures: Vec<String>,
    pub(crate) notes: Vec<String>,
    /// The distribution of the turn in the middle.
    pub(crate) curve: Vec<(f64, u64)>,
    #[serde(skip)]
    pub(crate) turns: Vec<Option<Turn>>,
}

impl Row {
    pub(crate) fn new(contender: &'static str, rounds: usize) -> Self {
        Self {
            contender,
            rounds,
            balances: true,
            ..Self::default()
        }
    }

    /// Adds a turn. Call this in the order of the rounds.
    pub(crate) fn add(&mut self, turn: Result<Turn, String>) {
        match turn {
            Ok(turn) => {
                self.books.add(&turn);
                self.noisy_turns += usize::from(!turn.noise.is_quiet());
                let notes = turn.receivers.first().map(|part| part.notes.clone());
                self.notes = notes.unwrap_or_default();
                self.turns.push(Some(turn));
            }
            Err(why) => {
                self.failures.push(why);
                self.turns.push(None);
            }
        }
        self.balances = self.books.balance();
        for figure in Figure::ALL {
            let turns = self.turns.iter();
            let values: Vec<_> = turns.map(|turn| figure.of(turn.as_ref()?)).collect();
            if let Some(spread) = Spread::of(values.iter().copied().flatten()) {
                self.figures.insert(figure, spread);
            }
            self.values.insert(figure, values);
        }
        self.curve = self.middle_curve();
    }

    /// Returns a figure's values, by round.
    pub(crate) fn values(&self, figure: Figure) -> &[Option<f64>] {
        self.values.get(&figure).map_or(&[], Vec::as_slice)
    }

    /// Returns the number of completed turns.
    pub(crate) fn whole_turns(&self) -> usize {
        self.turns.iter().flatten().count()
    }

    /// Returns whether the contender is a variant of tickcast.
    pub(crate) fn is_ours(&self) -> bool {
        self.contender.starts_with("tickcast")
    }

    /// Returns the reasons why the figures are unreliable; empty if there are none.
    pub(crate) fn doubts(&self) -> Vec<String> {
        let Self {
            contender, rounds, ..
        } = self;
        let Books {
            sent,
            delivered,
            declared_lost,
            missing,
            wrong,
        } = self.books;
        let mut all = Vec::new();
        let mut doubt = |count: u64, what: String| {
            if count > 0 {
                all.push(what);
            }
        };
        let failed = self.failures.len();
        let untaken = rounds.saturating_sub(self.turns.len());
        doubt(
            failed as u64,
            format!("{failed} of {rounds} rounds of {contender} failed"),
        );
        doubt(
            untaken as u64,
            format!("{untaken} of {rounds} rounds of {contender} were not taken"),
        );
        doubt(
            u64::from(self.noisy_turns * 2 >= (*rounds).max(1)),
            format!(
                "others were at work in {} of {rounds} rounds of {contender}",
                self.noisy_turns
            ),
        );
        doubt(
            wrong,
            format!("{contender} delivered {wrong} ticks damaged or out of place"),
        );
        // A floor is a raw program that repairs nothing, so its missing ticks are normal.
        if !self.contender.starts_with("floor") {
            doubt(
                declared_lost,
                format!("{contender} declared {declared_lost} ticks lost"),
            );
            doubt(
                missing,
                format!("{missing} ticks of {contender} are missing"),
            );
            doubt(
                sent.abs_diff(delivered + declared_lost + missing),
                format!(
                    "the books of {contender} do not balance: {sent} sent, {delivered} delivered, \
                     {declared_lost} declared lost, {missing} missing"
                ),
            );
        }
        all
    }

    pub(crate) fn median(&self, figure: Figure) -> Option<f64> {
        self.figures.get(&figure).map(|spread| spread.median)
    }

    fn middle_curve(&self) -> Vec<(f64, u64)> {
        let Some(median) = self.median(Figure::P50Ns) else {
            return Vec::new();
        };
        let distance = |turn: &&Turn| {
            let p50 = Figure::P50Ns.of(turn).unwrap_or(f64::MAX);
            (p50 - median).abs()
        };
        let middle = self.turns.iter().flatten();
        let middle = middle.min_by(|a, b| distance(a).total_cmp(&distance(b)));
        let part = middle.and_then(|turn| turn.receivers.first());
        let latency = part.and_then(|part| part.latency.clone());
        latency.map(|latency| latency.curve).unwrap_or_default()
    }
}

/// A measure with the rows of all contenders.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Measured {
    #[serde(flatten)]
    pub(crate) measure: Measure,
    pub(crate) rows: Vec<Row>,
}

impl Measured {
    pub(crate) fn row(&self, contender: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.contender == contender)
    }
}

/// A contender that takes no part, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Absent {
    pub(crate) contender: &'static str,
    pub(crate) why: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::quiet::Noise;

    fn turn(sent: u64, parts: &[(u64, u64, f64)]) -> Turn {
        let part = |&(ticks, declared_lost, rate_per_s): &(u64, u64, f64)| Part {
            ticks,
            declared_lost,
            missing: sent - ticks - declared_lost,
            rate_per_s,
            ..Part::default()
        };
        Turn {
            sender: Part {
                ticks: sent,
                cpu_ns: 2 * sent,
                ..Part::default()
            },
            receivers: parts.iter().map(part).collect(),
            noise: Noise::default(),
        }
    }

    #[test]
    fn books_balance_when_all_arrived_or_was_declared() {
        let mut row = Row::new("tickcast", 3);
        row.add(Ok(turn(100, &[(100, 0, 5.0), (90, 10, 3.0)])));
        assert!(row.balances);
        let Books {
            sent,
            delivered,
            declared_lost,
            ..
        } = row.books;
        assert_eq!((sent, delivered, declared_lost), (200, 190, 10));
        row.add(Ok(turn(100, &[(99, 0, 5.0)])));
        assert!(!row.balances, "one is missing without a word");
    }

    #[test]
    fn duplicate_tick_does_not_offset_missing_one() {
        let mut books = Books {
            sent: 10,
            delivered: 10,
            ..Books::default()
        };
        assert!(books.balance());
        books.wrong = 1;
        assert!(!books.balance());
    }

    #[test]
    fn slowest_receiver_counts_and_failed_turn_has_no_value() {
        let mut row = Row::new("tickcast", 3);
        row.add(Ok(turn(10, &[(10, 0, 5.0), (10, 0, 3.0)])));
        row.add(Err("it fell over".into()));
        row.add(Ok(turn(10, &[(10, 0, 7.0)])));
        assert_eq!(row.values(Figure::RatePerS), [Some(3.0), None, Some(7.0)]);
        assert_eq!(row.median(Figure::RatePerS), Some(5.0));
        assert_eq!(row.median(Figure::SenderCpuNs), Some(2e6));
        assert_eq!(row.failures, ["it fell over"]);
    }

    #[test]
    fn programs_read_the_value_of_each_round_in_order() {
        let mut row = Row::new("tickcast", 3);
        row.add(Ok(turn(10, &[(10, 0, 5.0)])));
        row.add(Err("it fell over".into()));
        row.add(Ok(turn(10, &[(10, 0, 7.0)])));
        let json = serde_json::to_value(&row).unwrap();
        let values = &json["values"];
        assert_eq!(values["rate_per_s"], serde_json::json!([5.0, null, 7.0]));
        let nothing = serde_json::json!([null, null, null]);
        assert_eq!(values["p50_ns"], nothing, "nothing was timed");
        for figure in Figure::ALL {
            let name = serde_json::to_value(figure).unwrap();
            let name = name.as_str().unwrap();
            assert_eq!(values[name].as_array().map(Vec::len), Some(3), "{name}");
        }
    }

    #[test]
    fn row_explains_unreliable_figures() {
        let row = |contender, turns: &[Result<Turn, String>]| {
            let mut row = Row::new(contender, 3);
            turns.iter().cloned().for_each(|turn| row.add(turn));
            row.doubts()
        };
        let whole = || Ok(turn(10, &[(10, 0, 5.0)]));
        assert!(row("tickcast", &[whole(), whole(), whole()]).is_empty());
        let failed = || Err("it fell over".to_owned());
        assert_eq!(
            row("floor", &[whole(), failed()]),
            [
                "1 of 3 rounds of floor failed",
                "1 of 3 rounds of floor were not taken"
            ]
        );
        let lossy = || Ok(turn(10, &[(7, 2, 5.0)]));
        let turns = [whole(), whole(), lossy()];
        assert_eq!(
            row("aeron", &turns),
            [
                "aeron declared 2 ticks lost",
                "1 ticks of aeron are missing"
            ]
        );
        assert!(row("floor-no-gso", &turns).is_empty());
        let mut twice = turn(10, &[(10, 0, 5.0)]);
        twice.receivers[0].wrong = 1;
        twice.sender.ticks = 9;
        assert_eq!(
            row("tickcast", &[whole(), whole(), Ok(twice)]),
            [
                "tickcast delivered 1 ticks damaged or out of place",
                "the books of tickcast do not balance: 29 sent, 30 delivered, 0 declared lost, 0 missing"
            ]
        );
    }
}
