//! The rows of a report.

use serde::{Deserialize, Serialize};

use super::order::NotDone;

/// The verdict of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub(super) enum Judgement {
    Pass,
    Fail,
    Skipped,
    /// It ran, and only hardware could meet its bound.
    NotJudged,
}

impl Judgement {
    /// Returns the word in reports.
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Pass => "PASS",
            Self::Fail => "FAIL",
            Self::Skipped => "SKIPPED",
            Self::NotJudged => "not judged",
        }
    }
}

/// The result of one step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Row {
    /// Identifier of the step. It never changes.
    pub(super) step: String,
    pub(super) judgement: Judgement,
    /// The measured result.
    pub(super) number: String,
    /// The required result.
    pub(super) bound: String,
    /// Why it failed, was skipped or not judged. Empty if it passed.
    pub(super) reason: String,
}

impl Row {
    /// Returns a row that passes unless something is wrong.
    pub(super) fn judged(
        step: &str,
        number: impl Into<String>,
        bound: &str,
        wrong: &[String],
    ) -> Self {
        Self {
            step: step.to_owned(),
            judgement: if wrong.is_empty() {
                Judgement::Pass
            } else {
                Judgement::Fail
            },
            number: number.into(),
            bound: bound.to_owned(),
            reason: wrong.join("; "),
        }
    }

    /// Returns the row, without a verdict if its bound needs hardware and a driver imitates the device.
    pub(super) fn of_hardware(mut self, is_software: bool) -> Self {
        if is_software {
            self.judgement = Judgement::NotJudged;
            self.reason = "the bound needs hardware, and a driver imitates the device".into();
        }
        self
    }

    /// Returns the row of a step that was not tried.
    pub(super) fn skipped(step: &str, bound: &str, reason: impl Into<String>) -> Self {
        Self {
            judgement: Judgement::Skipped,
            ..Self::judged(step, "", bound, &[reason.into()])
        }
    }

    /// Returns the row of a step that did not come to its end.
    pub(super) fn not_done(step: &str, bound: &str, reason: &NotDone) -> Self {
        match reason {
            NotDone::Unavailable(reason) => Self::skipped(step, bound, reason),
            NotDone::Failed(_) | NotDone::Gone(_) => {
                Self::judged(step, "", bound, &[reason.to_string()])
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_passes_only_if_nothing_is_wrong() {
        let wrong = vec!["2 of 3".to_owned()];
        assert_eq!(Row::judged("a", "3", "3", &[]).judgement, Judgement::Pass);
        let failed = Row::judged("a", "2", "3", &wrong);
        assert_eq!(
            (failed.judgement, failed.reason.as_str()),
            (Judgement::Fail, "2 of 3")
        );
        for is_software in [false, true] {
            let rows = [Row::judged("a", "3", "3", &[]), failed.clone()];
            let judged = rows.map(|row| row.of_hardware(is_software).judgement);
            let expected = match is_software {
                true => [Judgement::NotJudged; 2],
                false => [Judgement::Pass, Judgement::Fail],
            };
            assert_eq!(judged, expected);
        }
    }

    #[test]
    fn step_that_breaks_off_fails_unless_something_lacks() {
        let of = |reason: NotDone| Row::not_done("a", "", &reason).judgement;
        assert_eq!(
            of(NotDone::Unavailable("no tool".into())),
            Judgement::Skipped
        );
        assert_eq!(of(NotDone::Failed("it broke".into())), Judgement::Fail);
        assert_eq!(of(NotDone::Gone("it left".into())), Judgement::Fail);
    }
}
