//! The committed table: instructions of each stage, and the reasons for growth. This module reads, judges
//! and writes it.
//!
//! A stage is compared with its lowest count since its own last reason. Growth in small steps thus fails
//! too, before a reason and after it. Counts of another operation are not comparable, so a stage's
//! operation does not change without a reason either.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::Stage;
use crate::callgrind::Count;

/// A stage that grew by more than this share needs a reason.
pub const GROWTH_MAX: f64 = 0.03;

const PROGRAM: &str = "- program: ";
const LIBC: &str = "- C library: ";
const ANEW: &str = "- begun anew: ";
const HEAD: &str = "| stage | per | ours | C library | lowest | since | why it grew |";

/// The inputs of a count besides the sources.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    /// Inputs of the program's own instructions.
    pub program: String,
    /// Inputs of the C library's instructions, and valgrind.
    pub libc: String,
}

impl std::fmt::Display for Environment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}; {}", self.program, self.libc)
    }
}

/// A row.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The stage.
    pub stage: String,
    /// The unit of an operation.
    pub per: String,
    /// Instructions of this program.
    pub ours: f64,
    /// Instructions of the C library.
    pub libc: f64,
    /// Lowest sum of both in the table's history.
    pub lowest: f64,
    /// Lowest sum since this row's last reason. Growth is measured from here.
    pub since: f64,
    /// Why the sum is above the lowest: all reasons since then.
    pub reason: String,
}

impl Row {
    /// Returns the first row of a stage.
    fn first(stage: &Stage, count: &Count) -> Self {
        let (ours, libc) = (rounded(count.ours), rounded(count.libc));
        let sum = rounded(ours + libc);
        Self {
            stage: stage.name.to_owned(),
            per: stage.per.to_owned(),
            ours,
            libc,
            lowest: sum,
            since: sum,
            reason: String::new(),
        }
    }

    /// Starts a new history after a row with another operation. `reason` says why.
    fn begin_after(&mut self, before: &Self, reason: &str) {
        self.reason = one_line(&format!("counted by {} before: {reason}", before.per));
    }

    /// Continues the history of the previous row. `reason` is the reason for the present growth.
    fn go_on_from(&mut self, before: &Self, reason: Option<&str>) {
        let sum = self.lowest;
        self.lowest = before.lowest.min(sum);
        if reason.is_none() {
            self.since = before.since.min(sum);
        }
        // Our own part may have grown while the sum hardly did. The lowest is of the sum.
        if reason.is_some() || sum > self.lowest {
            let reasons = [before.reason.as_str(), reason.unwrap_or_default()];
            let stated = reasons.into_iter().filter(|reason| !reason.is_empty());
            self.reason = one_line(&stated.collect::<Vec<_>>().join("; "));
        }
    }

    fn sum(&self) -> f64 {
        self.ours + self.libc
    }
}

/// The whole table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    /// Where the counts were made.
    pub environment: Environment,
    /// Why the table has no earlier history, and where the earlier counts were made. Empty for the first
    /// table.
    pub anew: String,
    /// One for each stage.
    pub rows: Vec<Row>,
}

/// How a count compares with its row.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// At most the allowed growth. The share is the change; negative is less.
    Within(f64),
    /// Grew by this share.
    Grew(f64),
}

fn grew(before: f64, now: f64) -> bool {
    now > before * (1.0 + GROWTH_MAX)
}

fn rounded(count: f64) -> f64 {
    (count * 10.0).round() / 10.0
}

/// Returns the text in a form that fits a cell.
fn one_line(text: &str) -> String {
    text.replace(['|', '\n'], " ")
}

impl Table {
    /// Reads a table as [`write`](Self::write) writes it.
    ///
    /// # Errors
    /// The first line that can't be read, and its error.
    pub fn read(text: &str) -> Result<Self, String> {
        let mut table = Self::default();
        let of = |head: &str| text.lines().find_map(|line| line.strip_prefix(head));
        table.environment = Environment {
            program: of(PROGRAM).unwrap_or_default().to_owned(),
            libc: of(LIBC).unwrap_or_default().to_owned(),
        };
        table.anew = of(ANEW).unwrap_or_default().to_owned();
        let lines = text
            .lines()
            .enumerate()
            .skip_while(|(_, line)| *line != HEAD);
        for (at, line) in lines.skip(2).take_while(|(_, line)| line.starts_with('|')) {
            let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
            let wrong = |what: &str| format!("line {}: {what}: {line}", at + 1);
            let [stage, per, ours, libc, lowest, since, reason] = cells[..] else {
                return Err(wrong("seven cells are wanted"));
            };
            let number = |cell: &str| match cell.parse::<f64>() {
                Ok(number) if number.is_finite() && number >= 0.0 => Ok(number),
                _ => Err(wrong("no number")),
            };
            table.rows.push(Row {
                stage: stage.trim_matches('`').to_owned(),
                per: per.to_owned(),
                ours: number(ours)?,
                libc: number(libc)?,
                lowest: number(lowest)?,
                since: number(since)?,
                reason: reason.to_owned(),
            });
        }
        Ok(table)
    }

    /// Returns the row of a stage.
    #[must_use]
    pub fn row(&self, stage: &Stage) -> Option<&Row> {
        self.rows.iter().find(|row| row.stage == stage.name)
    }

    /// Returns the faults of the table itself, independent of any count.
    #[must_use]
    pub fn faults(&self, stages: &[Stage]) -> Vec<String> {
        let mut faults = Vec::new();
        for stage in stages {
            let rows = self.rows.iter().filter(|row| row.stage == stage.name);
            match rows.clone().count() {
                0 => faults.push(format!("{}: the stage is not in the table", stage.name)),
                1 => {}
                n => faults.push(format!("{}: the table has it {n} times", stage.name)),
            }
            for row in rows.filter(|row| row.per != stage.per) {
                let (name, was, is) = (stage.name, &row.per, stage.per);
                faults.push(format!(
                    "{name}: the table counts by {was}, the stage by {is}"
                ));
            }
        }
        for row in &self.rows {
            if !stages.iter().any(|stage| stage.name == row.stage) {
                faults.push(format!("{}: there is no such stage", row.stage));
            }
            let (stage, sum) = (&row.stage, row.sum());
            let is_unsaid = row.reason.is_empty() && grew(row.lowest, sum);
            let is_exact = stages
                .iter()
                .any(|stage| stage.name == row.stage && stage.is_exact);
            if is_exact && (is_unsaid || grew(row.since, sum)) {
                let lowest = if is_unsaid { row.lowest } else { row.since };
                let what =
                    format!("{stage}: {sum:.1} is more than it was at its lowest, {lowest:.1}");
                faults.push(what + ", and the table says no reason for that");
            }
        }
        faults
    }

    /// Compares a count with its row, and the sum of both parts with the lowest since the row's last
    /// reason.
    ///
    /// The C library's part is compared only if `environment` is the table's. Returns `None` if nothing
    /// can be compared.
    #[must_use]
    pub fn judge(&self, row: &Row, count: &Count, environment: &Environment) -> Option<Verdict> {
        if environment.program != self.environment.program {
            return None;
        }
        let (ours, libc) = (rounded(count.ours), rounded(count.libc));
        let by_ours = (row.ours, ours);
        let (to_row, judged) = if environment.libc == self.environment.libc {
            let sum = ours + libc;
            ((row.sum(), sum), vec![by_ours, (row.since, sum)])
        } else {
            (by_ours, vec![by_ours])
        };
        let share = |(before, now): &(f64, f64)| now / before.max(0.1) - 1.0;
        let most = judged.iter().filter(|(before, now)| grew(*before, *now));
        Some(match most.map(share).reduce(f64::max) {
            Some(share) => Verdict::Grew(share),
            None => Verdict::Within(share(&to_row)),
        })
    }

    /// Returns this table with the new counts.
    ///
    /// Stages without a new count keep their rows. `reason` goes only to stages that grew since their
    /// last reason, or that have a new operation.
    ///
    /// # Errors
    /// - Each stage that grew or has a new operation, if `reason` is empty.
    /// - The table was made elsewhere, so growth can't be detected.
    pub fn renewed(
        &self,
        stages: &[Stage],
        counts: &BTreeMap<&str, Count>,
        environment: &Environment,
        reason: &str,
    ) -> Result<Self, Vec<String>> {
        self.made_here(environment).map_err(|what| vec![what])?;
        let (mut faults, mut rows) = (Vec::new(), Vec::new());
        for stage in stages {
            let before = self.row(stage);
            let Some(count) = counts.get(stage.name) else {
                rows.extend(before.cloned());
                continue;
            };
            let mut row = Row::first(stage, count);
            if let Some(before) = before.filter(|row| row.per != stage.per) {
                row.begin_after(before, reason);
                if reason.is_empty() {
                    let (name, was, is) = (stage.name, &before.per, stage.per);
                    faults.push(format!(
                        "{name} counts by {is} and counted by {was}, so that growth can't be told"
                    ));
                }
            } else if let Some(before) = before {
                let grown = match self.judge(before, count, environment) {
                    Some(Verdict::Grew(share)) if stage.is_exact => Some(share),
                    _ => None,
                };
                row.go_on_from(before, grown.map(|_| reason));
                if let Some(share) = grown.filter(|_| reason.is_empty()) {
                    let (name, percent, lowest) = (stage.name, share * 100.0, before.since);
                    faults.push(format!(
                        "{name} grew by {percent:.1} % (lowest: {lowest:.1})"
                    ));
                }
            }
            rows.push(row);
        }
        match faults.is_empty() {
            true => Ok(Self {
                environment: environment.clone(),
                anew: self.anew.clone(),
                rows,
            }),
            false => Err(faults),
        }
    }

    /// Returns a table of new counts without history. It only keeps where the previous counts were made,
    /// and why they are dropped.
    #[must_use]
    pub fn begun_anew(
        &self,
        stages: &[Stage],
        counts: &BTreeMap<&str, Count>,
        environment: &Environment,
        reason: &str,
    ) -> Self {
        let rows = stages.iter();
        let rows = rows.filter_map(|stage| Some(Row::first(stage, counts.get(stage.name)?)));
        Self {
            environment: environment.clone(),
            anew: format!("{} (before: {})", one_line(reason), self.environment),
            rows: rows.collect(),
        }
    }

    /// Checks that all of its counts can be compared with counts made here.
    ///
    /// # Errors
    /// If not: where the table was made, and where this is.
    pub fn made_here(&self, here: &Environment) -> Result<(), String> {
        let of = &self.environment;
        match of == here || *self == Self::default() {
            true => Ok(()),
            false => Err(format!("the table is of {of}, and this is {here}")),
        }
    }

    /// Returns the table as it is committed.
    #[must_use]
    pub fn write(&self) -> String {
        let mut text = String::from(
            "# Instructions of each stage\n\n\
             Made by `make counts-write`; `make counts` compares, and fails where a stage takes 3 % more than here. What the \
             columns\nmean, and what can be compared with what, is in [PERFORMANCE](../../docs/PERFORMANCE.md#instruction-counts).\n\n",
        );
        let Environment { program, libc } = &self.environment;
        let _ = writeln!(text, "{PROGRAM}{program}\n{LIBC}{libc}");
        if !self.anew.is_empty() {
            let _ = writeln!(text, "{ANEW}{}", self.anew);
        }
        let _ = writeln!(text, "\n{HEAD}\n|---|---|---:|---:|---:|---:|---|");
        for row in &self.rows {
            let Row {
                stage,
                per,
                ours,
                libc,
                lowest,
                since,
                reason,
            } = row;
            let _ = writeln!(
                text,
                "| `{stage}` | {per} | {ours:.1} | {libc:.1} | {lowest:.1} | {since:.1} | {reason} |"
            );
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here() -> Environment {
        Environment {
            program: "x86_64 by Rust 1".to_owned(),
            libc: "glibc 2".to_owned(),
        }
    }

    fn elsewhere(program: bool) -> Environment {
        let other = "other".to_owned();
        match program {
            true => Environment {
                program: other,
                ..here()
            },
            false => Environment {
                libc: other,
                ..here()
            },
        }
    }

    const fn stage(name: &'static str) -> Stage {
        Stage {
            name,
            per: "record",
            open: || Err(String::new()),
            is_exact: true,
        }
    }

    const STAGES: [Stage; 2] = [stage("pack"), stage("read")];

    fn count(ours: f64, libc: f64) -> Count {
        let functions = Vec::new();
        Count {
            ours,
            libc,
            functions,
        }
    }

    fn counts(pack: f64, read: f64) -> BTreeMap<&'static str, Count> {
        BTreeMap::from([("pack", count(pack, 10.0)), ("read", count(read, 0.0))])
    }

    fn table() -> Table {
        let renewed = Table::default().renewed(&STAGES, &counts(90.0, 50.0), &here(), "");
        renewed.expect("nothing grew")
    }

    #[test]
    fn stage_table_round_trips_and_refuses_bad_rows() {
        let reason = "it does | more";
        let grown = table().renewed(&STAGES, &counts(99.0, 50.0), &here(), reason);
        let grown = grown.expect("the reason is given");
        assert_eq!(grown.rows[0].reason, "it does   more");
        assert_eq!(
            (grown.rows[0].lowest, grown.rows[1].reason.as_str()),
            (100.0, "")
        );
        assert_eq!(Table::read(&grown.write()), Ok(grown));
        let cut = table().write().replace("| 50.0 | 0.0 |", "| fifty | 0.0 |");
        assert!(Table::read(&cut).is_err_and(|what| what.contains("no number")));
        let cut = table().write().replace(" 50.0 | 0.0 |", " 50.0 |");
        assert!(Table::read(&cut).is_err_and(|what| what.contains("seven cells")));
    }

    #[test]
    fn stage_growth_up_to_three_percent_is_accepted() {
        let (table, here) = (table(), here());
        let judged = |ours, libc| table.judge(&table.rows[0], &count(ours, libc), &here);
        assert!(matches!(judged(92.7, 10.0), Some(Verdict::Within(_))));
        assert!(matches!(judged(92.8, 10.0), Some(Verdict::Grew(_))));
        assert!(matches!(judged(80.0, 10.0), Some(Verdict::Within(share)) if share < -0.09));
        // One more copy adds instructions in the C library.
        assert!(matches!(judged(90.0, 13.1), Some(Verdict::Grew(_))));
        assert!(
            matches!(judged(80.0, 23.0), Some(Verdict::Within(_))),
            "it moved"
        );
    }

    #[test]
    fn comparison_is_limited_to_comparable_counts() {
        let table = table();
        let judged = |count, here| table.judge(&table.rows[0], &count, &here);
        assert_eq!(judged(count(500.0, 0.0), elsewhere(true)), None);
        let within = judged(count(90.0, 500.0), elsewhere(false));
        assert_eq!(within, Some(Verdict::Within(0.0)));
        let grew = judged(count(99.0, 0.0), elsewhere(false));
        assert!(matches!(grew, Some(Verdict::Grew(_))));
    }

    #[test]
    fn missing_unknown_and_changed_stages_are_reported() {
        let mut table = table();
        assert_eq!(table.faults(&STAGES), Vec::<String>::new());
        table.rows[0].per = "datagram".to_owned();
        table.rows[1].stage = "write".to_owned();
        let faults = table.faults(&STAGES).join("\n");
        for reported in [
            "read: the stage is not",
            "write: there is no such",
            "pack: the table counts by",
        ] {
            assert!(faults.contains(reported), "{faults}");
        }
        table.rows[1] = table.rows[0].clone();
        assert!(table.faults(&STAGES).join("\n").contains("2 times"));
        assert_eq!(Table::default().faults(&STAGES).len(), 2, "no table at all");
    }

    /// Renews `table` with this count of "read" and this reason.
    fn read_renewed(table: &Table, read: f64, reason: &str) -> Result<Table, Vec<String>> {
        table.renewed(&STAGES, &counts(90.0, read), &here(), reason)
    }

    #[test]
    fn stage_growth_or_manual_edit_needs_a_reason() {
        let refused = table().renewed(&STAGES, &counts(99.0, 50.0), &here(), "");
        let reported = "pack grew by 10.0 % (lowest: 100.0)".to_owned();
        assert_eq!(refused, Err(vec![reported]));
        let mut by_hand = table();
        by_hand.rows[1].ours = 55.0;
        assert!(by_hand.faults(&STAGES)[0].contains("no reason"));
        by_hand.rows[1].reason = "it checks more".to_owned();
        assert!(
            by_hand.faults(&STAGES)[0].contains("no reason"),
            "of before"
        );
        by_hand.rows[1].since = 55.0;
        assert_eq!(by_hand.faults(&STAGES), Vec::<String>::new());
        // The reason stays as long as the count does, and disappears when the count shrinks again.
        let next = read_renewed(&by_hand, 55.2, "").expect("it stayed");
        assert_eq!(next.rows[1].reason, "it checks more");
        let next = read_renewed(&by_hand, 49.0, "").expect("it shrank");
        let Row {
            lowest,
            since,
            reason,
            ..
        } = &next.rows[1];
        assert_eq!((*lowest, *since, reason.as_str()), (49.0, 49.0, ""));
    }

    #[test]
    fn stage_unit_change_needs_a_reason() {
        let mut by_datagram = STAGES;
        by_datagram[1].per = "datagram";
        let renewed = |reason| table().renewed(&by_datagram, &counts(90.0, 99.0), &here(), reason);
        let refused = renewed("").expect_err("it may have grown");
        let reported =
            "read counts by datagram and counted by record, so that growth can't be told";
        assert_eq!(refused, [reported]);
        let anew = renewed("all records of one at once").expect("a reason");
        let Row { since, reason, .. } = &anew.rows[1];
        let said = "counted by record before: all records of one at once";
        assert_eq!((*since, reason.as_str()), (99.0, said));
        assert_eq!(anew.rows[0], table().rows[0], "the other goes on");
        assert_eq!(anew.faults(&by_datagram), Vec::<String>::new());
    }

    #[test]
    fn small_steps_add_up_before_a_reason_and_after_it() {
        let mut table = table();
        let steps = [
            ([51.0, 51.4], 52.9, "5.8 % (lowest: 50.0)", "so it is"),
            ([53.9, 54.4], 56.0, "5.9 % (lowest: 52.9)", "and so"),
        ];
        for (small, last, reported, reason) in steps {
            for read in small {
                table = read_renewed(&table, read, "").expect("3 % is allowed");
            }
            let refused = read_renewed(&table, last, "");
            assert_eq!(refused, Err(vec![format!("read grew by {reported}")]));
            // A run that only compares fails too.
            let verdict = table.judge(&table.rows[1], &count(last, 0.0), &here());
            assert!(matches!(verdict, Some(Verdict::Grew(_))), "{verdict:?}");
            table = read_renewed(&table, last, reason).expect("a reason");
        }
        assert_eq!(table.rows[1].reason, "so it is; and so");
        assert_eq!((table.rows[1].lowest, table.rows[1].since), (50.0, 56.0));
    }

    #[test]
    fn inexact_stage_grows_without_a_reason() {
        let stages = STAGES.map(|stage| Stage {
            is_exact: false,
            ..stage
        });
        let grown = table().renewed(&stages, &counts(99.0, 60.0), &here(), "");
        let grown = grown.expect("no reason is wanted");
        assert_eq!(grown.faults(&stages), Vec::<String>::new());
        assert_eq!(grown.faults(&STAGES).len(), 2, "exact ones need one");
    }

    #[test]
    fn reason_is_kept_if_only_own_code_grew() {
        let less_libc = BTreeMap::from([("pack", count(94.0, 6.0))]);
        let unsaid = table().renewed(&STAGES, &less_libc, &here(), "");
        assert_eq!(
            unsaid,
            Err(vec!["pack grew by 4.4 % (lowest: 100.0)".to_owned()])
        );
        let of_both = BTreeMap::from([("pack", count(94.0, 8.0))]);
        let said = table().renewed(&STAGES, &of_both, &here(), "it copies by itself");
        let said = said.expect("a reason is given");
        let next = said.renewed(&STAGES, &of_both, &here(), "");
        assert_eq!(
            next.expect("it is the same").rows[0].reason,
            "it copies by itself"
        );
        let said = table().renewed(&STAGES, &less_libc, &here(), "it copies by itself");
        assert_eq!(
            said.expect("a reason is given").rows[0].reason,
            "it copies by itself"
        );
    }

    #[test]
    fn reason_is_stored_only_in_grown_rows() {
        let both = counts(92.6, 55.0);
        let next = table().renewed(&STAGES, &both, &here(), "it reads more");
        let next = next.expect("a reason");
        let of = |n: usize| (next.rows[n].since, next.rows[n].reason.as_str());
        assert_eq!(of(0), (100.0, ""), "2.6 % are none, and not forgotten");
        assert_eq!(of(1), (55.0, "it reads more"));
    }

    #[test]
    fn foreign_table_resets_lowest_only_on_request() {
        for there in [elsewhere(true), elsewhere(false)] {
            let refused = table().renewed(&STAGES, &counts(99.0, 60.0), &there, "so it is");
            let refused = refused.expect_err("nothing can be compared");
            assert!(refused[0].contains("other") && refused[0].contains("glibc 2"));
            let anew = table().begun_anew(&STAGES, &counts(99.0, 60.0), &there, "a new\nRust");
            assert_eq!(anew.anew, format!("a new Rust (before: {})", here()));
            assert_eq!((anew.rows[1].lowest, anew.faults(&STAGES).len()), (60.0, 0));
            // The new table keeps the note from then on.
            assert_eq!(Table::read(&anew.write()).as_ref(), Ok(&anew));
            let next = anew.renewed(&STAGES, &counts(99.0, 59.0), &there, "");
            assert_eq!(next.expect("it shrank").anew, anew.anew);
        }
    }

    #[test]
    fn stages_that_were_not_counted_keep_their_rows() {
        let only = BTreeMap::from([("read", count(40.0, 0.0))]);
        let renewed = table().renewed(&STAGES, &only, &here(), "");
        let renewed = renewed.expect("it shrank");
        assert_eq!(renewed.rows[0], table().rows[0]);
        assert_eq!(renewed.rows[1].ours, 40.0);
    }
}
