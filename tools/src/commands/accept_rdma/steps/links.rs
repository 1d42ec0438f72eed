//! Steps that break a line, or wait until its network forgets it.

use std::thread::sleep;
use std::time::Duration;

use tickcast_tools::support::table::span;

use super::super::command;
use super::super::links::ON_INFINIBAND;
use super::super::order::{Line, NotDone, Repair};
use super::super::row::{Judgement, Row};
use super::super::run::{END_MAX, Hosts, Outcome, Plan};
use super::{Acceptance, Bound};

/// Messages a second.
const RATE: u64 = 2_000;
/// Time for which a line is down.
const DOWN: Duration = Duration::from_secs(3);
/// Time for which a flapping link is down, and up.
const FLAP: Duration = Duration::from_millis(700);
const FLAPS: u32 = 3;
/// Time for a line to return: its link, addresses and memberships, one after the other. Ports of switches
/// must be edge ports, because one with a classic spanning tree forwards only after 30 s.
const RETURN: Duration = Duration::from_secs(20);
/// One in so many records may come with a repaired datagram while line B carries the feed.
const REPAIRED_SHARE: u64 = 50;
/// Time after which a subscriber has printed its counts.
const PRINTED: Duration = Duration::from_secs(1);
/// Difference of two p99 that is noise.
const P99_NOISE_NS: u64 = 20_000;
/// The same behind an imitated device, where a slow host loses datagrams, too.
const REPAIRED_SHARE_SOFTWARE: u64 = 10;
/// Largest ratio of the p99 with a broken line to that with both, in percent.
const P99_MAX_PERCENT: u64 = 125;
/// Length of the step about queriers. Their memberships end after 260 s at most.
const QUERIER: Duration = Duration::from_secs(600 + 260);
/// Minutes of a run from which on the step about queriers is part of it.
const QUERIER_MINUTES: u64 = 30;
/// Time limit of a command. The reload of a driver takes longest.
const HOOK_MAX: Duration = Duration::from_secs(300);
/// Messages a second of the step about queriers.
const QUERIER_RATE: u64 = 100;

impl Acceptance {
    pub(super) fn line_down_there(&mut self, bound: Bound) -> Result<Vec<Row>, NotDone> {
        self.check_ethernet()?;
        self.broken(bound, |hosts| hosts.there.break_link(Line::A, DOWN))
    }

    pub(super) fn line_down_here(&mut self, bound: Bound) -> Result<Vec<Row>, NotDone> {
        self.check_ethernet()?;
        self.broken(bound, |hosts| hosts.here.break_link(Line::A, DOWN))
    }

    pub(super) fn line_flaps(&mut self, bound: Bound) -> Result<Vec<Row>, NotDone> {
        self.check_ethernet()?;
        self.broken(bound, |hosts| {
            for _ in 0..FLAPS {
                hosts.there.break_link(Line::A, FLAP)?;
                sleep(FLAP);
            }
            Ok(())
        })
    }

    pub(super) fn line_paused(&mut self, bound: Bound) -> Result<Vec<Row>, NotDone> {
        let hooks = (self.hooks.pause_a.clone(), self.hooks.resume_a.clone());
        let (Some(pause), Some(resume)) = hooks else {
            return Err(NotDone::Unavailable(
                "nothing pauses a port by itself; give --pause-a and --resume-a".into(),
            ));
        };
        self.broken(bound, move |_| {
            let paused = shell(&pause);
            sleep(DOWN);
            // A command that failed may have paused the port all the same.
            let resumed = shell(&resume);
            paused.and(resumed)
        })
    }

    /// Takes A down and up, then B down. The feed goes on only if A has returned.
    pub(super) fn line_returns(&mut self, bound: Bound) -> Result<Vec<Row>, NotDone> {
        self.check_ethernet()?;
        self.broken(bound, |hosts| {
            hosts.there.break_link(Line::A, DOWN)?;
            sleep(RETURN);
            let is_noticed = hosts.line_falls_silent(|hosts| {
                hosts.there.break_link(Line::B, DOWN)?;
                sleep(RETURN);
                Ok(())
            })?;
            match is_noticed {
                true => Ok(()),
                false => Err(NotDone::Failed(format!(
                    "not every subscriber heard a line fall silent when B was down: A had not returned \
                     within {} s (is its switch port an edge port?), or B was not down",
                    RETURN.as_secs()
                ))),
            }
        })
    }

    pub(super) fn subnet_manager(&mut self, bound: Bound) -> Result<Vec<Row>, NotDone> {
        if self.hosts.is_ethernet() {
            return Err(NotDone::Unavailable(
                "Ethernet has no subnet manager".into(),
            ));
        }
        let hook = self.hooks.restart_subnet_manager.clone();
        let (number, wrong, _) = self.hooked(hook, "--restart-subnet-manager")?;
        Ok(vec![bound.judged(number, &wrong)])
    }

    pub(super) fn driver(&mut self, bound: Bound) -> Result<Vec<Row>, NotDone> {
        let hook = self.hooks.reload_driver.clone();
        self.check_second_line()?;
        let (number, mut wrong, is_noticed) = self.hooked(hook, "--reload-driver")?;
        if !is_noticed {
            wrong.push("no line fell silent, so the driver was not reloaded".to_owned());
        }
        Ok(vec![bound.judged(number, &wrong)])
    }

    pub(super) fn querier(&mut self, bound: Bound) -> Result<Vec<Row>, NotDone> {
        if self.minutes < QUERIER_MINUTES {
            return Err(NotDone::Unavailable(format!(
                "it takes {} s; give --minutes {QUERIER_MINUTES} or more",
                QUERIER.as_secs()
            )));
        }
        let plan = Plan::new(&self.hosts, Repair::Read, QUERIER_RATE);
        let outcome = self
            .hosts
            .run_whole(&plan, QUERIER_RATE * QUERIER.as_secs())?;
        let mut wrong = outcome.differences();
        let missing = outcome.sum(|it| it.missing);
        if missing > 0 {
            wrong.push(format!("{missing} datagrams came by no line"));
        }
        let number = format!("{} s, {missing} datagrams missing", QUERIER.as_secs());
        Ok(vec![bound.judged(number, &wrong)])
    }

    /// Runs a command of the owner under load. Returns the result, its differences, and whether each
    /// subscriber heard a line fall silent.
    fn hooked(
        &mut self,
        hook: Option<String>,
        option: &str,
    ) -> Result<(String, Vec<String>, bool), NotDone> {
        self.check_may_break()?;
        let hook = hook.ok_or_else(|| {
            NotDone::Unavailable(format!("no command was given for it with {option}"))
        })?;
        let plan = Plan::new(&self.hosts, Repair::Read, RATE);
        let mut is_noticed = false;
        let outcome = self.hosts.run_while(&plan, |hosts| {
            is_noticed = hosts.line_falls_silent(|_| {
                shell(&hook)?;
                sleep(RETURN);
                Ok(())
            })?;
            hosts.there.wait_for(RATE, END_MAX)
        })?;
        let number = format!(
            "{} records, {} datagrams missing, {} repaired, lines down {} times",
            outcome.published.records,
            outcome.sum(|it| it.missing),
            outcome.sum(|it| it.repaired),
            outcome.sum(|it| it.line_down)
        );
        Ok((number, outcome.differences(), is_noticed))
    }

    fn check_may_break(&self) -> Result<(), NotDone> {
        match self.hosts.may_break_links() {
            true => Ok(()),
            false => Err(NotDone::Unavailable(
                "it needs --may-break-links, and a --peer that is reached over neither line".into(),
            )),
        }
    }

    /// Refuses a step before its runs, because no host takes a link of InfiniBand down.
    fn check_ethernet(&self) -> Result<(), NotDone> {
        match self.hosts.is_ethernet() {
            true => Ok(()),
            false => Err(NotDone::Unavailable(ON_INFINIBAND.into())),
        }
    }

    fn check_second_line(&self) -> Result<(), NotDone> {
        match self.hosts.lines().len() {
            0 | 1 => Err(NotDone::Unavailable(
                "it needs a second line: --b, on both hosts".into(),
            )),
            _ => Ok(()),
        }
    }

    /// Runs under load while `break_it` breaks line A. Gives a row for the records, and one for the latency
    /// beside that of a run with both lines.
    fn broken(
        &mut self,
        bound: Bound,
        break_it: impl FnOnce(&mut Hosts) -> Result<(), NotDone>,
    ) -> Result<Vec<Row>, NotDone> {
        self.check_may_break()?;
        self.check_second_line()?;
        let is_software = self.hosts.is_software();
        let mut plan = Plan::new(&self.hosts, Repair::Read, RATE);
        if is_software {
            // Soft-RoCE can lose a membership if another subscriber leaves the group at the same time.
            plan.subscribers = 1;
        }
        let before = self.hosts.run_whole(&plan, RATE * self.time().as_secs())?;
        let mut is_noticed = false;
        let outcome = self.hosts.run_while(&plan, |hosts| {
            hosts.there.wait_for(RATE, END_MAX)?;
            is_noticed = hosts.line_falls_silent(|hosts| {
                break_it(hosts)?;
                sleep(PRINTED);
                Ok(())
            })?;
            hosts.there.wait_for(RATE, END_MAX)
        })?;
        let row = line_row(bound, &outcome, is_noticed, is_software);
        let of_latency = latency_row(bound.id, &before, &outcome).of_hardware(is_software);
        Ok(vec![row, of_latency])
    }
}

/// Judges a run with a broken line: it was noticed, and the other one carried on. Behind an imitated device,
/// short silences of all lines are those of a slow host, so only repairs show whether the other line failed.
fn line_row(bound: Bound, outcome: &Outcome, is_noticed: bool, is_software: bool) -> Row {
    let repaired = outcome.worst(|it| it.repaired);
    let [line_down, lost] = [
        outcome.sum(|it| it.line_down),
        outcome.sum(|it| it.multicast_lost),
    ];
    let number = format!(
        "{} records, line down {line_down} times, multicast lost {lost} times, {} datagrams repaired",
        outcome.published.records,
        outcome.sum(|it| it.repaired)
    );
    let mut wrong = outcome.differences();
    let share = if is_software {
        REPAIRED_SHARE_SOFTWARE
    } else {
        REPAIRED_SHARE
    };
    if repaired > outcome.published.records / share {
        wrong.push(format!(
            "{repaired} datagrams had to be repaired, so line B did not go on"
        ));
    }
    if !is_noticed {
        wrong.push("not every subscriber heard a line fall silent, so A was not down".to_owned());
    }
    if lost > 0 && !is_software {
        wrong.push(format!("all lines were silent {lost} times"));
    }
    bound.judged(number, &wrong)
}

/// Judges the latency of a run with a broken line beside one with both.
fn latency_row(id: &str, before: &Outcome, broken: &Outcome) -> Row {
    let clocks = broken
        .heard
        .iter()
        .map(|it| it.clock_error_ns.unwrap_or(u64::MAX))
        .max();
    let [before, broken] = [before, broken].map(|it| it.worst(|heard| heard.p99_ns));
    let most = before.saturating_mul(P99_MAX_PERCENT) / 100;
    let most = most.saturating_add(P99_NOISE_NS);
    let mut wrong = Vec::new();
    if broken > most {
        wrong.push(format!("above {}", span(most)));
    }
    let number = format!("p99 {}, with both lines {}", span(broken), span(before));
    let bound = format!(
        "p99 at most {P99_MAX_PERCENT}% of that with both lines, and {} more",
        span(P99_NOISE_NS)
    );
    let row = Row::judged(&format!("{id}-p99"), number, &bound, &wrong);
    if clocks.is_none_or(|error| error > before / 2) {
        return Row {
            judgement: Judgement::NotJudged,
            reason: "the difference of the hosts' clocks is as large; synchronise them".to_owned(),
            ..row
        };
    }
    row
}

fn shell(hook: &str) -> Result<(), NotDone> {
    command::output("sh", &["-c", hook], HOOK_MAX).map(drop)
}

#[cfg(test)]
mod tests {
    use super::super::super::order::Heard;
    use super::super::super::run::tests::outcome_of;
    use super::*;

    const BOUND: Bound = Bound {
        id: "line-a-down-there",
        text: "line B goes on",
    };

    fn outcome(change: impl FnOnce(&mut Heard)) -> Outcome {
        outcome_of(1, |it| {
            it.heard[0].p99_ns = 100_000;
            change(&mut it.heard[0]);
        })
    }

    #[test]
    fn broken_line_passes_only_if_noticed_and_harmless() {
        let judged = |is_noticed, is_software, change: fn(&mut Heard)| {
            line_row(BOUND, &outcome(change), is_noticed, is_software).judgement
        };
        for is_software in [false, true] {
            assert_eq!(judged(true, is_software, |_| ()), Judgement::Pass);
            assert_eq!(judged(false, is_software, |_| ()), Judgement::Fail);
            assert_eq!(judged(true, is_software, |it| it.lost = 1), Judgement::Fail);
            assert_eq!(
                judged(true, is_software, |it| it.repaired = 1),
                Judgement::Fail
            );
        }
        assert_eq!(
            judged(true, false, |it| it.multicast_lost = 1),
            Judgement::Fail
        );
        assert_eq!(
            judged(true, true, |it| it.multicast_lost = 1),
            Judgement::Pass
        );
    }

    #[test]
    fn latency_of_one_line_is_judged_beside_both() {
        let judged = |p99_ns, clock_error_ns| {
            let broken = outcome(|it| {
                it.p99_ns = p99_ns;
                it.clock_error_ns = clock_error_ns;
            });
            latency_row(BOUND.id, &outcome(|_| ()), &broken)
        };
        assert_eq!(judged(145_000, Some(50_000)).judgement, Judgement::Pass);
        assert_eq!(judged(145_001, Some(50_000)).judgement, Judgement::Fail);
        for vague in [None, Some(50_001)] {
            assert_eq!(judged(145_000, vague).judgement, Judgement::NotJudged);
        }
        assert_eq!(judged(0, Some(0)).step, "line-a-down-there-p99");
    }
}
