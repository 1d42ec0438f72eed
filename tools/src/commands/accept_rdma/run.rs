//! A run of the whole system between both hosts: a publisher here, subscribers there.

use std::time::Duration;

use super::order::{
    Heard, HostFacts, Line, LineFacts, Listening, NotDone, Publication, Published, Repair,
};
use super::site::Site;

/// Time limit for subscribers to join and to deliver their first record.
const JOIN_MAX: Duration = Duration::from_secs(180);
/// Time limit for the end of a session, once nothing more is published.
pub(super) const END_MAX: Duration = Duration::from_secs(120);
/// Most differences of a row.
const DIFFERENCES_MAX: usize = 8;
/// Records of a publisher that does not end by itself.
pub(super) const ENDLESS: u64 = 1 << 31;
/// Receive buffers of a subscriber that is not to lose datagrams.
const DEPTH: u32 = 4_096;

/// Both hosts. The publisher runs here, and the subscribers there.
pub(super) struct Hosts {
    pub(super) here: Site,
    pub(super) there: Site,
    pub(super) facts_here: HostFacts,
    pub(super) facts_there: HostFacts,
}

impl Hosts {
    /// Returns the lines that both hosts have.
    pub(super) fn lines(&self) -> Vec<Line> {
        let all = self.facts_here.lines.iter().map(|it| it.line);
        all.filter(|line| self.facts_there.line(*line).is_some())
            .collect()
    }

    /// Returns whether a driver imitates any of the devices.
    pub(super) fn is_software(&self) -> bool {
        self.all_lines().any(|it| it.is_software)
    }

    /// Returns whether no line is one of InfiniBand.
    pub(super) fn is_ethernet(&self) -> bool {
        self.all_lines().all(|it| it.is_ethernet)
    }

    /// Returns the lines of both hosts.
    fn all_lines(&self) -> impl Iterator<Item = &LineFacts> {
        self.facts_here.lines.iter().chain(&self.facts_there.lines)
    }

    /// Returns whether both owners let links be broken, over a connection that uses neither line.
    pub(super) const fn may_break_links(&self) -> bool {
        self.facts_here.may_break_links && self.facts_there.may_break_links
    }

    /// Runs `during`. Returns whether each subscriber heard a line fall silent meanwhile.
    ///
    /// # Errors
    /// Returns [`NotDone`] if `during` fails, or the subscribers can't be asked.
    pub(super) fn line_falls_silent(
        &mut self,
        during: impl FnOnce(&mut Self) -> Result<(), NotDone>,
    ) -> Result<bool, NotDone> {
        let before = self.there.lines_down()?;
        during(self)?;
        Ok(fell(&before, &self.there.lines_down()?))
    }

    /// Runs a publisher of `records` records, and subscribers, to their end.
    ///
    /// # Errors
    /// Returns [`NotDone`] if a program fails. All programs have ended then.
    pub(super) fn run_whole(&mut self, plan: &Plan, records: u64) -> Result<Outcome, NotDone> {
        let outcome = self.start(plan, records).and_then(|()| {
            // Twice the time that the rate implies, and that of all joins and of the end.
            let limit = Duration::from_secs(2 * records / plan.rate.max(1)) + JOIN_MAX + END_MAX;
            self.end(limit)
        });
        let mut outcome = self.or_stop(outcome)?;
        outcome.expected = records;
        Ok(outcome)
    }

    /// Runs a publisher and subscribers for as long as `middle` takes. It begins once each subscriber has a
    /// record.
    ///
    /// # Errors
    /// Returns [`NotDone`] if a program fails or `middle` does. All programs have ended then.
    pub(super) fn run_while(
        &mut self,
        plan: &Plan,
        middle: impl FnOnce(&mut Self) -> Result<(), NotDone>,
    ) -> Result<Outcome, NotDone> {
        let outcome = self
            .start(plan, ENDLESS)
            .and_then(|()| self.there.wait_for(1, JOIN_MAX))
            .and_then(|()| middle(self))
            .and_then(|()| self.end(Duration::ZERO));
        self.or_stop(outcome)
    }

    fn start(&mut self, plan: &Plan, records: u64) -> Result<(), NotDone> {
        self.here.publish(plan.publication(records))?;
        self.there.listen(plan.listening())
    }

    fn end(&mut self, limit: Duration) -> Result<Outcome, NotDone> {
        let published = self.here.end_publisher(limit)?;
        let heard = self.there.heard(END_MAX)?;
        Ok(Outcome {
            published,
            heard,
            expected: 1,
        })
    }

    /// Ends all programs unless there is an outcome.
    pub(super) fn or_stop(
        &mut self,
        outcome: Result<Outcome, NotDone>,
    ) -> Result<Outcome, NotDone> {
        if outcome.is_err() {
            self.stop();
        }
        outcome
    }

    /// Ends all programs on both hosts.
    fn stop(&mut self) {
        for site in [&mut self.here, &mut self.there] {
            if let Err(error) = site.stop() {
                tracing::warn!("programs of a step may still run: {error}");
            }
        }
    }

    /// Exchanges the parts of both hosts.
    pub(super) fn swap(&mut self) {
        std::mem::swap(&mut self.here, &mut self.there);
        std::mem::swap(&mut self.facts_here, &mut self.facts_there);
    }
}

/// Returns whether a line fell silent at each subscriber, between two counts.
fn fell(before: &[u64], after: &[u64]) -> bool {
    let mut pairs = before.iter().zip(after);
    !before.is_empty() && before.len() == after.len() && pairs.all(|(before, after)| before < after)
}

/// The load of a run.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) lines: u8,
    pub(super) repair: Repair,
    pub(super) rate: u64,
    pub(super) subscribers: u16,
    pub(super) depth: u32,
    pub(super) is_eager: bool,
    /// Whether slots are as long as packets.
    pub(super) is_long: bool,
    /// Whether the publisher is as fast as it can be; `rate` only bounds the time then.
    pub(super) is_unpaced: bool,
}

impl Plan {
    /// Returns a run of two subscribers over all lines of `hosts`, at `rate` messages a second.
    pub(super) fn new(hosts: &Hosts, repair: Repair, rate: u64) -> Self {
        let lines = u8::try_from(hosts.lines().len()).unwrap_or(2).clamp(1, 2);
        Self {
            lines,
            repair,
            rate,
            subscribers: 2,
            depth: DEPTH,
            is_eager: true,
            is_long: false,
            is_unpaced: false,
        }
    }

    pub(super) fn publication(&self, records: u64) -> Publication {
        Publication {
            lines: self.lines,
            repair: self.repair,
            rate: (!self.is_unpaced).then_some(self.rate),
            records,
            wait_for: self.subscribers,
            is_standby: false,
            is_long: self.is_long,
        }
    }

    pub(super) fn listening(&self) -> Listening {
        Listening {
            subscribers: self.subscribers,
            lines: self.lines,
            repair: self.repair,
            depth: self.depth,
            is_eager: self.is_eager,
        }
    }
}

/// The results of a run.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    pub(super) published: Published,
    pub(super) heard: Vec<Heard>,
    /// Records that were to be published, at least.
    pub(super) expected: u64,
}

impl Outcome {
    /// Returns the differences between the published and the delivered records; empty if there are none.
    pub(super) fn differences(&self) -> Vec<String> {
        let published = &self.published;
        let mut all = Vec::new();
        if published.records < self.expected || published.digest.is_empty() {
            let (records, expected) = (published.records, self.expected);
            all.push(format!("{records} records of {expected} were published"));
        }
        if self.heard.is_empty() {
            all.push("nobody subscribed".to_owned());
        }
        for (number, it) in (1..).zip(&self.heard) {
            if all.len() >= DIFFERENCES_MAX {
                all.push("and so on".to_owned());
                break;
            }
            if it.lost > 0 {
                all.push(format!("subscriber {number} lost {} records", it.lost));
            } else if it.records != published.records || it.digest != published.digest {
                all.push(format!(
                    "subscriber {number} has {} records with digest {}, and {} with digest {} were published",
                    it.records, it.digest, published.records, published.digest
                ));
            }
        }
        all
    }

    /// Returns whether each difference is a loss that its subscriber reported exactly.
    pub(super) fn is_exact(&self) -> bool {
        let is_exact = |it: &Heard| {
            let whole = it.lost == 0 && it.digest == self.published.digest;
            whole
                || (it.lost > 0 && it.records.checked_add(it.lost) == Some(self.published.records))
        };
        !self.heard.is_empty() && self.heard.iter().all(is_exact)
    }

    /// Returns the sum of a counter over all subscribers.
    pub(super) fn sum(&self, counter: impl Fn(&Heard) -> u64) -> u64 {
        self.heard.iter().map(counter).fold(0, u64::saturating_add)
    }

    /// Returns the largest value of a counter.
    pub(super) fn worst(&self, counter: impl Fn(&Heard) -> u64) -> u64 {
        self.heard.iter().map(counter).max().unwrap_or(0)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns seven records that each subscriber has, with a change.
    pub(in super::super) fn outcome_of(
        subscribers: usize,
        change: impl FnOnce(&mut Outcome),
    ) -> Outcome {
        let heard = Heard {
            records: 7,
            digest: "a".into(),
            ..Heard::default()
        };
        let mut outcome = Outcome {
            published: Published {
                records: 7,
                digest: "a".into(),
            },
            heard: vec![heard; subscribers],
            expected: 7,
        };
        change(&mut outcome);
        outcome
    }

    fn outcome(change: impl FnOnce(&mut Outcome)) -> Outcome {
        outcome_of(2, change)
    }

    #[test]
    fn line_counts_as_silent_only_if_each_subscriber_heard_it() {
        assert!(fell(&[0, 3], &[1, 4]));
        for (before, after) in [(&[0, 3][..], &[1, 3][..]), (&[0], &[1, 1]), (&[], &[])] {
            assert!(!fell(before, after), "{before:?} {after:?}");
        }
    }

    #[test]
    fn run_passes_only_with_equal_records() {
        assert_eq!(outcome(|_| ()).differences(), [""; 0]);
        let wrong = |change: fn(&mut Outcome)| outcome(change).differences().join("; ");
        assert!(wrong(|it| it.heard[1].digest = "b".into()).contains("subscriber 2 has 7 records"));
        assert!(wrong(|it| it.heard[0].records = 6).contains("subscriber 1 has 6"));
        assert!(wrong(|it| it.heard[0].lost = 1).contains("lost 1"));
        assert!(wrong(|it| it.heard.clear()).contains("nobody subscribed"));
        assert!(wrong(|it| it.expected = 8).contains("7 records of 8 were published"));
        let none = outcome(|it| {
            it.published.digest.clear();
            it.heard.iter_mut().for_each(|it| it.digest.clear());
        });
        assert!(!none.differences().is_empty());
    }

    #[test]
    fn loss_is_exact_only_if_all_records_are_accounted_for() {
        assert!(outcome(|_| ()).is_exact());
        let lossy = |records, lost| {
            outcome(|it| {
                it.heard[0].records = records;
                it.heard[0].lost = lost;
                it.heard[0].digest = "b".into();
            })
        };
        assert!(lossy(5, 2).is_exact());
        assert!(!lossy(5, 1).is_exact());
        assert!(!lossy(7, 0).is_exact());
        assert!(!outcome(|it| it.heard.clear()).is_exact());
    }
}
