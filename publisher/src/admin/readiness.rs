//! Whether subscribers can rely on a publisher, or a publisher on its standby.

use std::sync::Arc;

use tickcast_reliability::types::{Nanos, Now, SourceId};

use crate::state::standby::StandbyState;
use crate::state::{Shared, SourceShared};

/// The facts that decide it.
#[derive(Debug, Default)]
struct Facts {
    /// The silent sources, and how long each has been silent.
    silent: Vec<(SourceId, Nanos)>,
    /// The sources that are read no more, because of an error.
    failed: Vec<SourceId>,
    /// The standby that does not publish yet, if it is one.
    waiting: Option<Waiting>,
    /// The standby that has taken over.
    handed_over_to: Option<String>,
    is_ending: bool,
}

/// A standby that does not publish.
#[derive(Debug)]
struct Waiting {
    state: &'static str,
    /// Why it has no mirrors.
    problem: Option<String>,
    is_publisher_alive: bool,
    /// Why the publisher would not hand over.
    commands_problem: Option<String>,
}

impl Waiting {
    fn of(standby: &StandbyState) -> Option<Self> {
        let state = standby.state();
        let view = standby.view();
        (state != "promoted").then(|| Self {
            state,
            problem: view.epoch().err(),
            is_publisher_alive: view.is_publisher_alive(),
            commands_problem: view.commands_problem().map(str::to_owned),
        })
    }
}

impl Facts {
    fn of(shared: &Shared, now: Now) -> Self {
        let silent = shared.sources.iter().filter_map(|source| {
            let hearing = source.hearing()?;
            hearing.silent_since()?;
            Some((source.source, hearing.age(now.monotonic)))
        });
        let has_failed = |source: &&Arc<SourceShared>| {
            let counters = &source.counters;
            counters.source_errors.get() > 0 && counters.source_ended.get() > 0
        };
        Self {
            silent: silent.collect(),
            failed: (shared.sources.iter().filter(has_failed))
                .map(|it| it.source)
                .collect(),
            waiting: shared.standby.as_deref().and_then(Waiting::of),
            handed_over_to: shared.handed_over_to.get().cloned(),
            is_ending: shared.is_stopping() || shared.is_ended(),
        }
    }

    /// Returns the reasons against it, one line each.
    fn reasons(&self) -> Vec<String> {
        let mut all = Vec::new();
        for (source, silent_for) in &self.silent {
            let seconds = silent_for.0 / 1_000_000_000;
            all.push(format!("source {source} has been silent for {seconds} s"));
        }
        for source in &self.failed {
            all.push(format!("source {source} has ended by an error"));
        }
        match &self.waiting {
            Some(Waiting { state, problem, .. }) if *state != "mirroring" => {
                let problem = problem.as_deref().unwrap_or("GET /standby says more");
                all.push(format!(
                    "this standby has the state {state} and does not mirror: {problem}"
                ));
            }
            Some(waiting) if !waiting.is_publisher_alive => {
                all.push("nobody publishes: this standby hears nothing of its publisher".into());
            }
            Some(Waiting {
                commands_problem: Some(problem),
                ..
            }) => all.push(format!("the publisher would not hand over: {problem}")),
            Some(_) => {}
            None => match &self.handed_over_to {
                Some(to) => all.push(format!("this publisher has handed over to {to}")),
                None if self.is_ending => {
                    all.push("nobody publishes: this publisher ends its session".into());
                }
                None => {}
            },
        }
        all
    }
}

/// Returns the reasons why this process is not ready, one line each; none if it is.
pub(super) fn reasons(shared: &Shared, now: Now) -> Vec<String> {
    Facts::of(shared, now).reasons()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(state: &'static str, problem: Option<&str>, is_publisher_alive: bool) -> Facts {
        Facts {
            waiting: Some(Waiting {
                state,
                problem: problem.map(str::to_owned),
                is_publisher_alive,
                commands_problem: None,
            }),
            ..Facts::default()
        }
    }

    #[test]
    fn publisher_is_ready_unless_silent_failed_or_ending() {
        let facts = Facts::default();
        assert_eq!(facts.reasons(), [""; 0]);
        let silent = vec![
            (SourceId(7), Nanos::from_ms(4_900)),
            (SourceId(9), Nanos::from_secs(60)),
        ];
        let is_ending = true;
        let facts = Facts {
            silent,
            failed: vec![SourceId(8)],
            is_ending,
            ..Facts::default()
        };
        let expected = [
            "source 7 has been silent for 4 s",
            "source 9 has been silent for 60 s",
            "source 8 has ended by an error",
            "nobody publishes: this publisher ends its session",
        ];
        assert_eq!(facts.reasons(), expected);
        let facts = Facts {
            handed_over_to: Some("b".into()),
            is_ending,
            ..Facts::default()
        };
        assert_eq!(facts.reasons(), ["this publisher has handed over to b"]);
    }

    #[test]
    fn standby_is_ready_while_it_mirrors_a_live_publisher() {
        assert_eq!(waiting("mirroring", None, true).reasons(), [""; 0]);
        let mut refused = waiting("mirroring", None, true);
        refused.waiting.as_mut().unwrap().commands_problem = Some("no token".into());
        let expected = ["the publisher would not hand over: no token"];
        assert_eq!(refused.reasons(), expected);
        assert_eq!(
            waiting("mirroring", None, false).reasons(),
            ["nobody publishes: this standby hears nothing of its publisher"]
        );
        assert_eq!(
            waiting("joining", Some("channel a is not mirrored yet"), false).reasons(),
            [
                "this standby has the state joining and does not mirror: channel a is not mirrored yet"
            ]
        );
        assert_eq!(
            waiting("failed", None, true).reasons(),
            ["this standby has the state failed and does not mirror: GET /standby says more"]
        );
    }
}
