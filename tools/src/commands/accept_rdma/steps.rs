//! The steps of a run, in order. Each gives one row, or more.

mod device;
mod links;
mod system;

use std::time::Duration;

use super::order::{NotDone, Repair};
use super::row::{Judgement, Row};
use super::run::Hosts;

/// Commands of the owner for parts that no program can break by itself. Each runs on this host, in a shell.
#[derive(Clone, Debug, Default)]
pub(super) struct Hooks {
    pub(super) pause_a: Option<String>,
    pub(super) resume_a: Option<String>,
    pub(super) restart_subnet_manager: Option<String>,
    pub(super) reload_driver: Option<String>,
}

/// The state of a run.
pub(super) struct Acceptance {
    hosts: Hosts,
    hooks: Hooks,
    minutes: u64,
    /// The steps to run; empty: all.
    only: Vec<&'static str>,
    /// The defect of READ that the probe of this host found.
    read_defect: Option<String>,
}

/// One step: its identifier, its bound, and its rows.
struct Step {
    id: &'static str,
    bound: &'static str,
    run: fn(&mut Acceptance, Bound) -> Result<Vec<Row>, NotDone>,
}

/// Identifier and bound of a step, for its rows.
#[derive(Clone, Copy, Debug)]
struct Bound {
    id: &'static str,
    text: &'static str,
}

impl Bound {
    fn judged(self, number: impl Into<String>, wrong: &[String]) -> Row {
        Row::judged(self.id, number, self.text, wrong)
    }
}

#[rustfmt::skip]
const STEPS: &[Step] = &[
    Step { id: "probe", bound: "READ and cursors are granted, and refused beyond a grant", run: Acceptance::probe },
    Step { id: "datagrams", bound: "each datagram arrives once, in order, byte for byte", run: Acceptance::datagrams },
    Step { id: "digest-10k", bound: "two subscribers, equal digests", run: |it, bound| it.rate(bound, 10_000) },
    Step { id: "digest-mtu", bound: "two subscribers, equal digests, with slots as long as packets", run: Acceptance::long_slots },
    Step { id: "digest-100k", bound: "two subscribers, equal digests", run: |it, bound| it.rate(bound, 100_000) },
    Step { id: "digest-1m", bound: "two subscribers, equal digests", run: |it, bound| it.rate(bound, 1_000_000) },
    Step { id: "repair-read", bound: "a receiver that pauses loses datagrams; READ takes part, and all are repaired", run: |it, bound| it.repair(bound, Repair::Read) },
    Step { id: "repair-nack", bound: "a receiver that pauses loses datagrams; NACKs over verbs take part, and all are repaired", run: |it, bound| it.repair(bound, Repair::Nack) },
    Step { id: "repair-tcp", bound: "a receiver that pauses loses datagrams; all are repaired over TCP", run: |it, bound| it.repair(bound, Repair::Tcp) },
    Step { id: "subscribers-8", bound: "equal digests", run: |it, bound| it.subscribers(bound, 8) },
    Step { id: "subscribers-128", bound: "equal digests", run: |it, bound| it.subscribers(bound, 128) },
    Step { id: "subscribers-512", bound: "equal digests", run: |it, bound| it.subscribers(bound, 512) },
    Step { id: "latency", bound: "p50 of both ways at most 3 times that of ib_send_lat", run: Acceptance::latency },
    Step { id: "line-a-down-there", bound: "line B goes on: nothing lost, and multicast never ends", run: Acceptance::line_down_there },
    Step { id: "line-a-down-here", bound: "line B goes on: nothing lost, and multicast never ends", run: Acceptance::line_down_here },
    Step { id: "line-a-flaps", bound: "line B goes on: nothing lost, and multicast never ends", run: Acceptance::line_flaps },
    Step { id: "line-a-paused", bound: "line B goes on: nothing lost, and multicast never ends", run: Acceptance::line_paused },
    Step { id: "line-a-returns", bound: "line A carries the feed alone after it was down", run: Acceptance::line_returns },
    Step { id: "subnet-manager", bound: "a restart loses nothing", run: Acceptance::subnet_manager },
    Step { id: "driver", bound: "a reload of this host's driver takes lines down and loses nothing", run: Acceptance::driver },
    Step { id: "querier", bound: "memberships outlive 10 minutes: nothing is missing", run: Acceptance::querier },
    Step { id: "standby", bound: "after a kill the standby continues; the records are those of one publisher", run: Acceptance::standby },
    Step { id: "rights", bound: "no subscriber reached beyond its grant", run: Acceptance::rights },
];

impl Acceptance {
    /// Creates a run of the steps `only`; without any, of all.
    pub(super) fn new(hosts: Hosts, hooks: Hooks, minutes: u64, only: &[&'static str]) -> Self {
        Self {
            hosts,
            hooks,
            minutes,
            only: only.to_vec(),
            read_defect: None,
        }
    }

    pub(super) fn hosts(&mut self) -> &mut Hosts {
        &mut self.hosts
    }

    /// Runs all steps. Reports each row as it comes. Ends early once `asked_to_end`; the rest is skipped.
    pub(super) fn run(
        &mut self,
        asked_to_end: impl Fn() -> bool,
        mut on_row: impl FnMut(&Row),
    ) -> Vec<Row> {
        let mut rows = Vec::new();
        let mut gone = None;
        for step in STEPS {
            if asked_to_end() {
                gone.get_or_insert_with(|| "the run was interrupted".to_owned());
            }
            let bound = Bound {
                id: step.id,
                text: step.bound,
            };
            let is_left_out = !self.only.is_empty() && !self.only.contains(&step.id);
            let left_out = is_left_out.then(|| "--only leaves it out".to_owned());
            let result = match gone.clone().or(left_out) {
                Some(reason) => vec![Row::skipped(step.id, step.bound, reason)],
                None => (step.run)(self, bound).unwrap_or_else(|reason| {
                    if let NotDone::Gone(_) = reason {
                        gone = Some(reason.to_string());
                    }
                    vec![Row::not_done(step.id, step.bound, &reason)]
                }),
            };
            result.iter().for_each(&mut on_row);
            rows.extend(result);
        }
        rows
    }

    /// Returns the time of a run under load: a twentieth of the whole, 3 s to 2 minutes.
    fn time(&self) -> Duration {
        Duration::from_secs((self.minutes * 3).clamp(3, 120))
    }

    fn rights(&mut self, bound: Bound) -> Result<Vec<Row>, NotDone> {
        let hosts = &mut self.hosts;
        let all = [hosts.here.violations()?, hosts.there.violations()?];
        let [publishers, violations] = [all.map(|it| it.0), all.map(|it| it.1)];
        let [publishers, violations] =
            [publishers, violations].map(|it| it.into_iter().fold(0, u64::saturating_add));
        let mut wrong = Vec::new();
        if violations > 0 {
            wrong.push(format!("{violations} accesses beyond a grant"));
        }
        if publishers == 0 {
            wrong.push("no publisher ran".to_owned());
        }
        let number = format!("{violations} violations noted by {publishers} publishers");
        Ok(vec![bound.judged(number, &wrong)])
    }
}

/// Parses the identifier of a step.
pub(super) fn known(text: &str) -> Result<&'static str, String> {
    let ids = STEPS.iter().map(|step| step.id);
    let found = ids.clone().find(|id| *id == text);
    found.ok_or_else(|| format!("the steps are {}", ids.collect::<Vec<_>>().join(", ")))
}

/// Returns the number of rows of a verdict.
pub(super) fn count(rows: &[Row], judgement: Judgement) -> usize {
    rows.iter().filter(|row| row.judgement == judgement).count()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};

    use tickcast_tools::support::conversation::Conversation;
    use tickcast_tools::support::signals::Stop;

    use super::super::order::{HostFacts, Line, LineFacts};
    use super::super::programs::Setting;
    use super::super::site::Site;
    use super::super::worker::Worker;
    use super::*;

    /// Returns two hosts of which the other one has left.
    fn left_alone() -> Hosts {
        let facts = HostFacts {
            name: "h".into(),
            more: BTreeMap::new(),
            lines: vec![LineFacts {
                line: Line::A,
                interface: "lo".into(),
                address: Ipv4Addr::LOCALHOST,
                gid: Ipv6Addr::LOCALHOST,
                gid_index: None,
                device: "none".into(),
                port: 1,
                mtu: 1_024,
                is_ethernet: true,
                is_software: true,
                more: BTreeMap::new(),
            }],
            may_break_links: false,
        };
        let setting = Setting {
            control: "127.0.0.1:1".parse().unwrap(),
            other: "127.0.0.1:1".parse().unwrap(),
            repair_port: 1,
            lines: vec![("lo".into(), Ipv4Addr::new(239, 255, 74, 20))],
            mtu: 1_024,
            publisher_bin: "/bin/false".into(),
            folder: std::env::temp_dir(),
        };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        drop(listener.accept().unwrap());
        Hosts {
            here: Site::Here(Box::new(Worker::new(facts.clone(), setting, 1))),
            there: Site::There(
                Conversation::new(stream, Duration::from_secs(60)).unwrap(),
                Stop::on_signals().unwrap(),
            ),
            facts_here: facts.clone(),
            facts_there: facts,
        }
    }

    #[test]
    fn steps_after_the_other_host_left_are_skipped() {
        let mut acceptance = Acceptance::new(left_alone(), Hooks::default(), 1, &[]);
        let mut reported = 0;
        let rows = acceptance.run(|| false, |_| reported += 1);
        assert_eq!(rows.len(), STEPS.len());
        assert_eq!(reported, rows.len());
        let [failed, skipped] = [Judgement::Fail, Judgement::Skipped].map(|it| count(&rows, it));
        // This host has no device, so its own probe fails first.
        assert_eq!((failed, skipped), (2, rows.len() - 2), "{rows:#?}");
        assert!(rows[1].reason.contains("gone"), "{:?}", rows[1]);
    }

    #[test]
    fn steps_that_were_not_selected_or_interrupted_are_skipped() {
        let mut acceptance = Acceptance::new(left_alone(), Hooks::default(), 1, &["rights"]);
        let rows = acceptance.run(|| false, |_| ());
        assert_eq!(count(&rows, Judgement::Skipped), STEPS.len() - 1);
        assert_eq!(count(&rows, Judgement::Fail), 1, "the other host has left");
        let rows = acceptance.run(|| true, |_| ());
        assert_eq!(count(&rows, Judgement::Skipped), STEPS.len());
    }

    #[test]
    fn step_identifiers_are_unique_and_known() {
        let mut ids: Vec<_> = STEPS.iter().map(|it| it.id).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), STEPS.len());
        assert!(ids.iter().all(|id| known(id).is_ok()));
        assert!(known("odd").unwrap_err().contains("standby"));
    }
}
