//! The committed table: instructions of each stage, and why it grew where it did. Reading, judging
//! and writing it.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::Stage;
use crate::callgrind::Count;

/// A stage that grew by more than this needs a reason.
pub const GROWTH_MAX: f64 = 0.03;

const PROGRAM: &str = "- program: ";
const LIBC: &str = "- C library: ";
const HEAD: &str = "| stage | per | ours | C library | lowest | why it grew |";

/// What counts depend on besides the sources.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    /// What the program's own instructions depend on.
    pub program: String,
    /// What the C library's depend on.
    pub libc: String,
}

/// A row.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The stage.
    pub stage: String,
    /// What an operation is.
    pub per: String,
    /// Instructions of this program.
    pub ours: f64,
    /// Instructions of the C library.
    pub libc: f64,
    /// The fewest of both together that the table ever had.
    pub lowest: f64,
    /// Why they are more now, where they are.
    pub reason: String,
}

impl Row {
    fn sum(&self) -> f64 {
        self.ours + self.libc
    }
}

/// All rows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    /// Where it was counted.
    pub environment: Environment,
    /// One for each stage.
    pub rows: Vec<Row>,
}

/// How a count relates to its row.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// No more than the row says, by the share given: negative is less.
    Within(f64),
    /// More, by this share.
    Grew(f64),
}

fn grew(before: f64, now: f64) -> bool {
    now > before * (1.0 + GROWTH_MAX)
}

fn rounded(count: f64) -> f64 {
    (count * 10.0).round() / 10.0
}

impl Table {
    /// Reads a table as [`write`](Self::write) writes it.
    ///
    /// # Errors
    /// The first line that can't be read, and what is wrong with it.
    pub fn read(text: &str) -> Result<Self, String> {
        let mut table = Self::default();
        let of = |head: &str| text.lines().find_map(|line| line.strip_prefix(head));
        table.environment = Environment {
            program: of(PROGRAM).unwrap_or_default().to_owned(),
            libc: of(LIBC).unwrap_or_default().to_owned(),
        };
        let lines = text
            .lines()
            .enumerate()
            .skip_while(|(_, line)| *line != HEAD);
        for (at, line) in lines.skip(2).take_while(|(_, line)| line.starts_with('|')) {
            let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
            let wrong = |what: &str| format!("line {}: {what}: {line}", at + 1);
            let [stage, per, ours, libc, lowest, reason] = cells[..] else {
                return Err(wrong("six cells are wanted"));
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
                reason: reason.to_owned(),
            });
        }
        Ok(table)
    }

    /// The row of a stage.
    #[must_use]
    pub fn row(&self, stage: &Stage) -> Option<&Row> {
        self.rows.iter().find(|row| row.stage == stage.name)
    }

    /// What is wrong with the table itself, whatever is counted.
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
            if grew(row.lowest, row.sum()) && row.reason.is_empty() {
                let (stage, sum, lowest) = (&row.stage, row.sum(), row.lowest);
                let what =
                    format!("{stage}: {sum:.1} is more than it was at its lowest, {lowest:.1}");
                faults.push(what + ", and the table says no reason");
            }
        }
        faults
    }

    /// Holds a count against its row. The C library's share is only compared where `environment` is
    /// the table's; `None` where nothing is to be compared.
    #[must_use]
    pub fn judge(&self, row: &Row, count: &Count, environment: &Environment) -> Option<Verdict> {
        if environment.program != self.environment.program {
            return None;
        }
        let mut pairs = vec![(row.ours, rounded(count.ours))];
        if environment.libc == self.environment.libc {
            pairs.push((row.sum(), rounded(count.ours) + rounded(count.libc)));
        }
        let share = |(before, now): &(f64, f64)| now / before.max(0.1) - 1.0;
        let most = pairs.iter().filter(|(before, now)| grew(*before, *now));
        match most.map(share).reduce(f64::max) {
            Some(share) => Some(Verdict::Grew(share)),
            None => pairs.last().map(|pair| Verdict::Within(share(pair))),
        }
    }

    /// This table with what was counted in place of what it had. Stages that were not counted keep
    /// their rows.
    ///
    /// # Errors
    /// Each stage that grew without a reason.
    pub fn renewed(
        &self,
        stages: &[Stage],
        counts: &BTreeMap<&str, Count>,
        environment: &Environment,
        reason: &str,
    ) -> Result<Self, Vec<String>> {
        let mut faults = Vec::new();
        let mut rows = Vec::new();
        for stage in stages {
            let before = self.row(stage);
            let Some(count) = counts.get(stage.name) else {
                rows.extend(before.cloned());
                continue;
            };
            let (ours, libc) = (rounded(count.ours), rounded(count.libc));
            let same = environment == &self.environment;
            let before = before.filter(|row| same && row.per == stage.per);
            let verdict = before.and_then(|row| self.judge(row, count, environment));
            if let Some(Verdict::Grew(share)) = verdict
                && reason.is_empty()
            {
                let percent = share * 100.0;
                faults.push(format!("{} grew by {percent:.1} %", stage.name));
            }
            let sum = rounded(ours + libc);
            let lowest = before.map_or(sum, |row| row.lowest.min(sum));
            let kept = match (&verdict, before) {
                _ if !grew(lowest, sum) => "",
                (Some(Verdict::Grew(_)), _) | (_, None) => reason,
                // What it crept up by since is told, where something is.
                (_, Some(row)) if row.reason.is_empty() => reason,
                (_, Some(row)) => &row.reason,
            };
            if grew(lowest, sum)
                && kept.is_empty()
                && !faults.iter().any(|f| f.starts_with(stage.name))
            {
                faults.push(format!(
                    "{} crept up from {lowest:.1} to {sum:.1}",
                    stage.name
                ));
            }
            rows.push(Row {
                stage: stage.name.to_owned(),
                per: stage.per.to_owned(),
                ours,
                libc,
                lowest,
                reason: kept.replace(['|', '\n'], " "),
            });
        }
        match faults.is_empty() {
            true => Ok(Self {
                environment: environment.clone(),
                rows,
            }),
            false => Err(faults),
        }
    }

    /// The table as it is committed.
    #[must_use]
    pub fn write(&self) -> String {
        let mut text = String::from(
            "# Instructions of each stage\n\n\
             Made by `make counts-write`; `make counts` compares, and fails where a stage takes 3 % more than here. What the \
             columns\nmean, and what can be compared with what, is in [PERFORMANCE](../../docs/PERFORMANCE.md#instruction-counts).\n\n",
        );
        let Environment { program, libc } = &self.environment;
        let _ = writeln!(text, "{PROGRAM}{program}\n{LIBC}{libc}\n\n{HEAD}");
        text += "|---|---|---:|---:|---:|---|\n";
        for row in &self.rows {
            let Row {
                stage,
                per,
                ours,
                libc,
                lowest,
                reason,
            } = row;
            let _ = writeln!(
                text,
                "| `{stage}` | {per} | {ours:.1} | {libc:.1} | {lowest:.1} | {reason} |"
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
    fn a_table_is_read_as_it_was_written() {
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
        assert!(Table::read(&cut).is_err_and(|what| what.contains("six cells")));
    }

    #[test]
    fn a_stage_may_grow_by_three_percent_and_no_more() {
        let (table, here) = (table(), here());
        let judged = |ours, libc| table.judge(&table.rows[0], &count(ours, libc), &here);
        assert!(matches!(judged(92.7, 10.0), Some(Verdict::Within(_))));
        assert!(matches!(judged(92.8, 10.0), Some(Verdict::Grew(_))));
        assert!(matches!(judged(80.0, 10.0), Some(Verdict::Within(share)) if share < -0.09));
        // A copy more is the C library's work.
        assert!(matches!(judged(90.0, 13.1), Some(Verdict::Grew(_))));
        assert!(
            matches!(judged(80.0, 23.0), Some(Verdict::Within(_))),
            "it moved"
        );
    }

    #[test]
    fn only_what_is_comparable_is_compared() {
        let table = table();
        let judged = |count, here| table.judge(&table.rows[0], &count, &here);
        assert_eq!(judged(count(500.0, 0.0), elsewhere(true)), None);
        let within = judged(count(90.0, 500.0), elsewhere(false));
        assert_eq!(within, Some(Verdict::Within(0.0)));
        let grew = judged(count(99.0, 0.0), elsewhere(false));
        assert!(matches!(grew, Some(Verdict::Grew(_))));
    }

    #[test]
    fn a_missing_and_an_unknown_stage_are_told_and_so_is_one_of_another_unit() {
        let mut table = table();
        assert_eq!(table.faults(&STAGES), Vec::<String>::new());
        table.rows[0].per = "datagram".to_owned();
        table.rows[1].stage = "write".to_owned();
        let faults = table.faults(&STAGES).join("\n");
        for told in [
            "read: the stage is not",
            "write: there is no such",
            "pack: the table counts by",
        ] {
            assert!(faults.contains(told), "{faults}");
        }
        table.rows[1] = table.rows[0].clone();
        assert!(table.faults(&STAGES).join("\n").contains("2 times"));
        assert_eq!(Table::default().faults(&STAGES).len(), 2, "no table at all");
    }

    #[test]
    fn growth_is_not_written_without_a_reason_and_not_by_hand_either() {
        let refused = table().renewed(&STAGES, &counts(99.0, 50.0), &here(), "");
        assert_eq!(refused, Err(vec!["pack grew by 10.0 %".to_owned()]));
        let mut by_hand = table();
        by_hand.rows[1].ours = 55.0;
        assert!(by_hand.faults(&STAGES)[0].contains("no reason"));
        by_hand.rows[1].reason = "it checks more".to_owned();
        assert!(by_hand.faults(&STAGES).is_empty());
        // The reason stays while the stage does as it is, and goes when it shrinks again.
        let next = by_hand.renewed(&STAGES, &counts(90.0, 55.2), &here(), "");
        assert_eq!(next.expect("it stayed").rows[1].reason, "it checks more");
        let next = by_hand.renewed(&STAGES, &counts(90.0, 49.0), &here(), "");
        let next = next.expect("it shrank");
        assert_eq!(
            (next.rows[1].lowest, next.rows[1].reason.as_str()),
            (49.0, "")
        );
    }

    #[test]
    fn small_steps_add_up() {
        let mut table = table();
        for read in [51.0, 51.5] {
            let renewed = table.renewed(&STAGES, &counts(90.0, read), &here(), "");
            table = renewed.expect("3 % is allowed");
        }
        let refused = table.renewed(&STAGES, &counts(90.0, 52.9), &here(), "");
        assert_eq!(
            refused,
            Err(vec!["read crept up from 50.0 to 52.9".to_owned()])
        );
        let renewed = table.renewed(&STAGES, &counts(90.0, 52.9), &here(), "so it is");
        assert_eq!(renewed.expect("a reason").rows[1].reason, "so it is");
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
