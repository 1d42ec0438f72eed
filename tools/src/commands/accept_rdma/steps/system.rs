//! Steps of the whole system on healthy networks: rates, repair, many subscribers, latency, a standby.

use std::time::{Duration, Instant};

use tickcast_tools::support::table::span;

use super::super::order::{Line, NotDone, Publication, Repair};
use super::super::row::{Judgement, Row};
use super::super::run::{END_MAX, ENDLESS, Outcome, Plan};
use super::{Acceptance, Bound};

/// Messages a second of steps that are not about speed.
const QUIET_RATE: u64 = 2_000;
/// Share of a rate that must be delivered, in percent.
const RATE_MIN_PERCENT: u64 = 90;
/// Receive buffers of a subscriber that is to lose datagrams when it pauses.
const FEW: u32 = 64;
const PAUSE: Duration = Duration::from_secs(1);
const PAUSES: u32 = 2;
/// Receive buffers of each of many subscribers.
const MANY_DEPTH: u32 = 256;
/// Messages a second to many subscribers.
const MANY_RATE: u64 = 1_000;
/// Largest ratio of our latency to that of `ib_send_lat`.
const LATENCY_RATIO_MAX: u64 = 3;
/// Records of a publisher that fills its slots.
const FULL_RECORDS: u64 = 20_000;
/// Messages a second of a publisher that is killed.
const PROMOTED_RATE: u64 = 1_000;
/// Records before and after a promotion.
const PROMOTED_AFTER: u64 = 4_000;

impl Acceptance {
    /// Publishes at a rate. Gives a row for the records, and one for the rate.
    pub(super) fn rate(&mut self, bound: Bound, rate: u64) -> Result<Vec<Row>, NotDone> {
        let plan = Plan::new(&self.hosts, Repair::Read, rate);
        let records = rate * self.time().as_secs();
        let limit = 2 * self.time() + Duration::from_secs(10);
        let mut delivered = None;
        let outcome = self.hosts.run_while(&plan, |hosts| {
            let begun = Instant::now();
            match hosts.there.wait_for(records, limit) {
                Ok(()) => delivered = Some((records as f64 / begun.elapsed().as_secs_f64()) as u64),
                // A host that is too slow for the rate is no failure of its records.
                Err(NotDone::Failed(_)) => {}
                Err(error) => return Err(error),
            }
            Ok(())
        })?;
        let is_software = self.hosts.is_software();
        let of_rate = rate_row(bound.id, rate, delivered).of_hardware(is_software);
        Ok(vec![records_row(bound, &outcome, is_software), of_rate])
    }

    /// Publishes with slots as long as packets.
    pub(super) fn long_slots(&mut self, bound: Bound) -> Result<Vec<Row>, NotDone> {
        let mut plan = Plan::new(&self.hosts, Repair::Read, QUIET_RATE);
        plan.is_long = true;
        // Slots are full only at a rate beyond what one thread sends.
        plan.is_unpaced = true;
        let outcome = self.hosts.run_whole(&plan, FULL_RECORDS)?;
        let mtus = [&self.hosts.facts_here, &self.hosts.facts_there];
        let mtus = mtus
            .iter()
            .flat_map(|host| &host.lines)
            .map(|line| line.mtu);
        let (least, most) = (mtus.clone().min(), mtus.max());
        let mut wrong = outcome.differences();
        if least != most {
            wrong.push("the packets of the ports differ in length".to_owned());
        }
        let (least, records) = (least.unwrap_or(0), outcome.published.records);
        Ok(vec![bound.judged(
            format!("{records} records, slots of {least} bytes"),
            &wrong,
        )])
    }

    /// Pauses a subscriber with few receive buffers, so that datagrams find none.
    pub(super) fn repair(&mut self, bound: Bound, repair: Repair) -> Result<Vec<Row>, NotDone> {
        if let (Repair::Read, Some(defect)) = (repair, &self.read_defect) {
            return Err(NotDone::Unavailable(format!(
                "this host does not offer READ: {defect}"
            )));
        }
        let mut plan = Plan::new(&self.hosts, repair, QUIET_RATE);
        plan.lines = 1;
        plan.subscribers = 1;
        plan.depth = FEW;
        let outcome = self.hosts.run_while(&plan, |hosts| {
            hosts.there.wait_for_repair(repair, END_MAX)?;
            for _ in 0..PAUSES {
                hosts.there.pause(PAUSE)?;
                hosts.there.wait_for(QUIET_RATE, END_MAX)?;
            }
            Ok(())
        })?;
        Ok(vec![repair_row(bound, &outcome, repair)])
    }

    pub(super) fn subscribers(&mut self, bound: Bound, count: u16) -> Result<Vec<Row>, NotDone> {
        let mut plan = Plan::new(&self.hosts, Repair::Read, MANY_RATE);
        plan.subscribers = count;
        plan.depth = MANY_DEPTH;
        plan.is_eager = false;
        let outcome = self
            .hosts
            .run_whole(&plan, MANY_RATE * self.time().as_secs())?;
        let number = format!(
            "{} subscribers of {count}, {} records each, {} datagrams missing",
            outcome.heard.len(),
            outcome.published.records,
            outcome.sum(|it| it.missing)
        );
        let mut wrong = outcome.differences();
        if outcome.heard.len() != usize::from(count) {
            wrong.push(format!(
                "{} subscribers of {count} came to their end",
                outcome.heard.len()
            ));
        }
        Ok(vec![bound.judged(number, &wrong)])
    }

    /// Measures both ways, because the difference of the hosts' clocks cancels in their mean.
    pub(super) fn latency(&mut self, bound: Bound) -> Result<Vec<Row>, NotDone> {
        let mut plan = Plan::new(&self.hosts, Repair::Read, QUIET_RATE);
        plan.lines = 1;
        plan.subscribers = 1;
        let records = QUIET_RATE * self.time().as_secs();
        let there = self.hosts.run_whole(&plan, records)?;
        self.hosts.swap();
        let back = self.hosts.run_whole(&plan, records);
        self.hosts.swap();
        let server = self.hosts.facts_there.line(Line::A).map(|it| it.address);
        let server = server.ok_or_else(|| NotDone::Failed("no line A there".to_owned()))?;
        let measured = match self.hosts.there.serve_latency() {
            Ok(()) => self.hosts.here.measure_latency(server),
            Err(reason) => Err(reason),
        };
        // A server whose client gave up polls for ever.
        self.hosts.there.stop()?;
        let is_software = self.hosts.is_software();
        let row = latency_row(bound, &[there, back?], measured, is_software)?;
        Ok(vec![row])
    }

    /// Kills the publisher of this host under load, and promotes the standby of the other.
    pub(super) fn standby(&mut self, bound: Bound) -> Result<Vec<Row>, NotDone> {
        let outcome = self.promotion();
        let outcome = self.hosts.or_stop(outcome)?;
        let number = format!(
            "{} records of one publisher, {} of two by {} subscribers",
            outcome.published.records,
            outcome.worst(|it| it.records),
            outcome.heard.len()
        );
        Ok(vec![bound.judged(number, &outcome.differences())])
    }

    /// Returns the records of a publisher and its successor, beside those of one publisher alone.
    fn promotion(&mut self) -> Result<Outcome, NotDone> {
        let plan = Plan::new(&self.hosts, Repair::Read, PROMOTED_RATE);
        let publication = |is_standby| Publication {
            // The standby is a subscriber, too.
            wait_for: plan.subscribers + 1,
            is_standby,
            ..plan.publication(ENDLESS)
        };
        let hosts = &mut self.hosts;
        hosts.here.publish(publication(false))?;
        hosts.there.publish(publication(true))?;
        hosts.there.listen(plan.listening())?;
        hosts.there.wait_for(PROMOTED_AFTER, 2 * END_MAX)?;
        hosts.here.kill_publisher()?;
        hosts.there.promote()?;
        hosts.there.wait_for(PROMOTED_AFTER, 2 * END_MAX)?;
        hosts.there.end_publisher(Duration::ZERO)?;
        let heard = hosts.there.heard(END_MAX)?;
        let alone = Publication {
            rate: None,
            wait_for: 0,
            ..plan.publication(heard.first().map_or(0, |it| it.records).max(1))
        };
        hosts.here.publish(alone)?;
        let published = hosts.here.end_publisher(END_MAX)?;
        Ok(Outcome {
            published,
            heard,
            expected: 2 * PROMOTED_AFTER,
        })
    }
}

/// Judges the records of a run. Devices that a driver imitates may lose at a rate beyond them, if exactly.
fn records_row(bound: Bound, outcome: &Outcome, is_software: bool) -> Row {
    let number = format!(
        "{} records, {} delivered at least, {} datagrams missing, {} repaired",
        outcome.published.records,
        outcome.heard.iter().map(|it| it.records).min().unwrap_or(0),
        outcome.sum(|it| it.missing),
        outcome.sum(|it| it.repaired)
    );
    let row = bound.judged(number, &outcome.differences());
    match row.judgement {
        Judgement::Fail if is_software && outcome.is_exact() => Row {
            judgement: Judgement::NotJudged,
            ..row
        },
        _ => row,
    }
}

/// Judges the delivered rate; `None`: the records did not come in time.
fn rate_row(id: &str, rate: u64, delivered: Option<u64>) -> Row {
    let step = id.replace("digest", "rate");
    let least = rate * RATE_MIN_PERCENT / 100;
    let number = delivered.map_or_else(
        || format!("less than {} records/s", rate / 2),
        |it| format!("{it} records/s"),
    );
    let wrong: Vec<_> = (delivered.is_none_or(|it| it < least))
        .then(|| format!("below {least} records/s"))
        .into_iter()
        .collect();
    Row::judged(
        &step,
        number,
        &format!("at least {least} records/s delivered"),
        &wrong,
    )
}

/// Judges a run with a paused subscriber: datagrams were missing, and this way repaired them.
fn repair_row(bound: Bound, outcome: &Outcome, repair: Repair) -> Row {
    let [missing, recovered] = [outcome.sum(|it| it.missing), outcome.sum(|it| it.recovered)];
    let [by_read, by_nack] = [outcome.sum(|it| it.by_read), outcome.sum(|it| it.by_nack)];
    // The rest came over TCP, or late by multicast.
    let by_verbs = by_read.saturating_add(by_nack);
    let by_tcp = recovered.saturating_sub(by_verbs);
    let number = format!(
        "{missing} datagrams missing, {recovered} recovered: {by_read} by READ, {by_nack} by NACK over verbs, \
         {by_tcp} over TCP"
    );
    let mut wrong = outcome.differences();
    let by_this = match repair {
        Repair::Read => by_read,
        Repair::Nack => by_nack,
        Repair::Tcp => by_tcp,
    };
    if missing == 0 {
        wrong.push("the pause lost nothing, so repair was not tried".to_owned());
    } else if by_this == 0 {
        wrong.push("another way repaired everything".to_owned());
    }
    if repair == Repair::Tcp && by_verbs > 0 {
        wrong.push("something was repaired over verbs, which was not offered".to_owned());
    }
    bound.judged(number, &wrong)
}

/// Judges the latency of both ways beside that of the plainest program.
///
/// # Errors
/// Returns [`NotDone::Gone`] if the other host is gone.
fn latency_row(
    bound: Bound,
    ways: &[Outcome; 2],
    measured: Result<u64, NotDone>,
    is_software: bool,
) -> Result<Row, NotDone> {
    let [there, back] = ways.each_ref().map(|it| it.worst(|heard| heard.p50_ns));
    let mean = there / 2 + back / 2;
    let plainest = match &measured {
        Ok(ns) => span(*ns),
        Err(NotDone::Gone(_)) => return Err(measured.unwrap_err()),
        Err(reason) => format!("not measured: {reason}"),
    };
    let number = format!(
        "p50 {} there, {} back, mean {}; ib_send_lat {plainest}",
        span(there),
        span(back),
        span(mean)
    );
    let mut wrong: Vec<_> = ways.iter().flat_map(Outcome::differences).collect();
    if !wrong.is_empty() {
        return Ok(bound.judged(number, &wrong));
    }
    if is_software {
        return Ok(bound.judged(number, &wrong).of_hardware(true));
    }
    let plainest = match measured {
        Ok(ns) => ns,
        Err(reason) => {
            return Ok(Row {
                number,
                ..Row::not_done(bound.id, bound.text, &reason)
            });
        }
    };
    // A record that seems to arrive before it was sent counts as 0, and nothing cancels then.
    if there == 0 || back == 0 {
        return Ok(Row {
            judgement: Judgement::NotJudged,
            reason: "the hosts' clocks differ by more than the latency; synchronise them"
                .to_owned(),
            ..bound.judged(number, &wrong)
        });
    }
    let most = plainest.saturating_mul(LATENCY_RATIO_MAX);
    if mean > most {
        wrong.push(format!("above {}", span(most)));
    }
    Ok(bound.judged(number, &wrong))
}

#[cfg(test)]
mod tests {
    use super::super::super::order::Heard;
    use super::super::super::run::tests::outcome_of;
    use super::*;

    const BOUND: Bound = Bound {
        id: "digest-10k",
        text: "equal",
    };

    fn outcome(change: impl FnOnce(&mut Heard)) -> Outcome {
        outcome_of(1, |it| change(&mut it.heard[0]))
    }

    #[test]
    fn exact_loss_is_excused_on_imitated_devices_only() {
        let lossy = |lost| {
            outcome(|it| {
                it.records = 5;
                it.lost = lost;
            })
        };
        let judged = |lost, is_software| records_row(BOUND, &lossy(lost), is_software).judgement;
        assert_eq!(judged(2, true), Judgement::NotJudged);
        assert_eq!(judged(2, false), Judgement::Fail);
        assert_eq!(judged(1, true), Judgement::Fail);
        let whole = records_row(BOUND, &outcome(|_| ()), true);
        assert_eq!(whole.judgement, Judgement::Pass);
    }

    #[test]
    fn rate_passes_from_nine_tenths_on() {
        let judged = |delivered| rate_row("digest-10k", 10_000, delivered).judgement;
        assert_eq!(judged(Some(9_000)), Judgement::Pass);
        assert_eq!(judged(Some(8_999)), Judgement::Fail);
        assert_eq!(judged(None), Judgement::Fail);
        assert_eq!(rate_row("digest-10k", 10_000, None).step, "rate-10k");
    }

    #[test]
    fn repair_passes_only_by_the_way_that_is_tested() {
        let repaired = |by_read, by_nack, by_tcp| {
            outcome(|it| {
                it.missing = by_read + by_nack + by_tcp;
                it.recovered = it.missing;
                it.by_read = by_read;
                it.by_nack = by_nack;
            })
        };
        let judged = |outcome: &Outcome, repair| repair_row(BOUND, outcome, repair).judgement;
        let passes = |outcome, repair| judged(&outcome, repair) == Judgement::Pass;
        assert!(passes(repaired(3, 0, 0), Repair::Read));
        assert!(passes(repaired(3, 1, 1), Repair::Read));
        assert!(!passes(repaired(0, 3, 0), Repair::Read));
        assert!(!passes(repaired(0, 0, 0), Repair::Read));
        assert!(passes(repaired(0, 2, 0), Repair::Nack));
        assert!(!passes(repaired(0, 0, 2), Repair::Nack));
        assert!(passes(repaired(0, 0, 2), Repair::Tcp));
        assert!(!passes(repaired(1, 0, 2), Repair::Tcp));
    }

    #[test]
    fn latency_is_judged_by_the_mean_of_both_ways() {
        let ways = |p50s: [u64; 2]| p50s.map(|p50_ns| outcome(|it| it.p50_ns = p50_ns));
        let judged = |ways: &[Outcome; 2], measured, is_software| {
            latency_row(BOUND, ways, measured, is_software).map(|row| row.judgement)
        };
        // The clocks differ by 1 us.
        let sharp = ways([4_000, 2_000]);
        assert_eq!(judged(&sharp, Ok(1_000), false), Ok(Judgement::Pass));
        assert_eq!(judged(&sharp, Ok(999), false), Ok(Judgement::Fail));
        assert_eq!(judged(&sharp, Ok(1_000), true), Ok(Judgement::NotJudged));
        for vague in [ways([0, 9_000]), ways([9_000, 0])] {
            assert_eq!(judged(&vague, Ok(100_000), false), Ok(Judgement::NotJudged));
        }
        let lacks = NotDone::Unavailable("no ib_send_lat".into());
        assert_eq!(judged(&sharp, Err(lacks), false), Ok(Judgement::Skipped));
        let gone = NotDone::Gone("closed".into());
        assert!(judged(&sharp, Err(gone), false).is_err());
        let mut lossy = sharp;
        lossy[1].heard[0].lost = 1;
        assert_eq!(judged(&lossy, Ok(1_000), true), Ok(Judgement::Fail));
    }
}
