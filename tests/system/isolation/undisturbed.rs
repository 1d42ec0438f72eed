//! One subscriber's trouble never delays another, in virtual time. The tests compare each run with the
//! same run without the trouble:
//!
//! - A subscriber is cut off for two seconds at full rate and catches up.
//! - 200 subscribers join at once from the oldest datagram on.
//!
//! Every fresh record then reaches the others at exactly the same time. If all share the publisher's
//! uplink, the budgets of repair and replay bound the delay. Further, 200 subscribers that lose their
//! publisher come back spread over time.

use std::ops::Range;

use tickcast_reliability::control::Start;
use tickcast_reliability::delivery::Delivery;
use tickcast_reliability::receive::ReceiverConfig;
use tickcast_reliability::serve::RepairConfig;
use tickcast_reliability::session::LinkTimers;
use tickcast_reliability::session::Path;
use tickcast_reliability::types::Nanos;
use tickcast_sim::faults::incident::Incident;
use tickcast_sim::faults::plan::Mode;
use tickcast_sim::faults::plan::Plan;
use tickcast_sim::report::Outcome;
use tickcast_sim::world::{Times, run_for_times};

/// 10 Gbit/s. Repair and replay together may take half of it, as the config check demands.
const UPLINK_BYTES_PER_S: u64 = 1_250_000_000;
const BURST_BYTES: u64 = 64 << 10;

const fn ms(ms: u64) -> Nanos {
    Nanos::from_ms(ms)
}

/// Returns a plan with a network without loss and with default settings, until `until`.
fn calm(subscribers: usize, until: Nanos) -> Plan {
    let mut plan = Plan::of(1, Some("calm"), Some(subscribers));
    (plan.mode, plan.all_join_first) = (Mode::Liveness, true);
    (plan.lines, plan.fan_outs, plan.channels) = (1, 1, 1);
    (plan.nack_path, plan.read_path) = (false, false);
    plan.incidents.clear();
    plan.starts_at.fill(None);
    // Constant delay: without reordering, an undisturbed subscriber has no gaps.
    plan.delay = (Nanos::from_us(20), Nanos::from_us(20));
    plan.connection_bytes_per_s = 1_000_000_000;
    // Bursts so small that exceeding the budgets would show.
    plan.repair = RepairConfig {
        repair_burst_bytes: BURST_BYTES,
        subscriber_burst_bytes: BURST_BYTES,
        joiner_burst_bytes: BURST_BYTES,
        ..RepairConfig::default()
    };
    plan.link = LinkTimers::default();
    let config = ReceiverConfig {
        delivery: Delivery::Ordered,
        ..ReceiverConfig::default()
    };
    plan.subscribers.fill((config, Start::Live));
    (plan.faults_until, plan.feed_until) = (until, until.after(ms(50)));
    plan.settle = Nanos::from_secs(10);
    plan
}

/// Returns a plan with three witnesses, and a first subscriber without any traffic for two seconds. The
/// rate is about 12,000 datagrams a second, and the ring has `ring_slots` slots.
fn outage(ring_slots: u64) -> Plan {
    let (from, to) = (ms(300), ms(2_300));
    let mut plan = calm(4, ms(2_700));
    (plan.spacing, plan.burst) = (Nanos::from_us(60), 3);
    (plan.ring_slots, plan.slot_len) = (ring_slots, 1_024);
    for (at, incident) in [
        (from, Incident::UpStops(Some(0))),
        (from, Incident::DownStops(Some(0))),
        (from, Incident::DatagramsStop(Some(0))),
        (to, Incident::UpPasses(Some(0))),
        (to, Incident::DownPasses(Some(0))),
        (to, Incident::DatagramsPass(Some(0))),
    ] {
        plan.incidents.push((at, incident));
    }
    plan.untouched_from = 1;
    plan
}

/// Returns a plan with three witnesses, and 200 subscribers that join at the same moment.
fn joiners() -> Plan {
    let mut plan = calm(3 + JOINERS, ms(430));
    plan.all_join_first = false;
    (plan.spacing, plan.burst) = (Nanos::from_us(200), 3);
    (plan.ring_slots, plan.slot_len) = (256, 1_024);
    for of in 0..3 + JOINERS {
        let at = if of < 3 { Nanos::ZERO } else { ms(400) };
        plan.incidents.push((at, Incident::Join(of)));
        if of >= 3 {
            plan.subscribers[of].1 = Start::Oldest;
        }
    }
    plan
}

const JOINERS: usize = 200;

fn run(plan: Plan) -> (Outcome, Times) {
    let (outcome, times) = run_for_times(plan);
    assert_eq!(outcome.violation, None, "{:#?}", outcome.recent);
    (outcome, times)
}

/// Returns the largest delay of a record to a witness, compared with the other run. No record comes earlier
/// than `earlier_max` before its usual time.
fn delay(witnesses: Range<usize>, with: &Times, without: &Times, earlier_max: Nanos) -> Nanos {
    let mut most = Nanos::ZERO;
    for number in witnesses {
        let (with, without) = (&with.records[number], &without.records[number]);
        assert!(without.len() > 2_000, "only {} records", without.len());
        assert_eq!(with.len(), without.len(), "to subscriber {number}");
        for ((epoch, record, at), (.., usual)) in with.iter().zip(without) {
            let earliest = usual.since(earlier_max);
            assert!(*at >= earliest, "{record} of {epoch} comes before its time");
            most = most.max(at.since(*usual));
        }
    }
    most
}

/// Returns how long the publisher's uplink takes for the bursts that the budgets allow, and for one
/// kilobyte of control messages per subscriber, which no budget counts.
fn bound(plan: &Plan) -> Nanos {
    let repair = &plan.repair;
    let words = plan.receivers as u64 * 1_024;
    let bytes = repair.repair_burst_bytes + repair.joiner_burst_bytes + words;
    Nanos(bytes * 1_000_000_000 / UPLINK_BYTES_PER_S)
}

/// Returns the plan with practically unlimited budgets.
fn without_budgets(plan: &Plan) -> Plan {
    let mut plan = plan.clone();
    let repair = &mut plan.repair;
    for bytes in [
        &mut repair.repair_bytes_per_s,
        &mut repair.repair_burst_bytes,
        &mut repair.subscriber_bytes_per_s,
        &mut repair.subscriber_burst_bytes,
        &mut repair.joiner_bytes_per_s,
        &mut repair.joiner_burst_bytes,
    ] {
        *bytes = 1 << 40;
    }
    plan
}

/// Compares the delivery times of `witnesses` with those of the run in which `undo` removed the trouble.
/// Three setups: a separate uplink for repair and replay, one uplink for everything, and the latter without
/// budgets.
fn assert_undisturbed(plan: &Plan, witnesses: Range<usize>, undo: impl Fn(&mut Plan)) -> Outcome {
    let mut usual = plan.clone();
    undo(&mut usual);
    let (outcome, with) = run(plan.clone());
    let (_, without) = run(usual.clone());
    let late = delay(witnesses.clone(), &with, &without, Nanos::ZERO);
    assert_eq!(late, Nanos::ZERO, "the fan-out waited for somebody");

    let shared = |plan: &Plan| {
        let mut plan = plan.clone();
        plan.uplink_bytes_per_s = Some(UPLINK_BYTES_PER_S);
        run(plan).1
    };
    let without = shared(&usual);
    // A subscriber in trouble is sent no STATUS, which takes the uplink's time in the usual run.
    let earlier_max = Nanos(1_024 * 1_000_000_000 / UPLINK_BYTES_PER_S);
    let late = delay(witnesses.clone(), &shared(plan), &without, earlier_max);
    let unlimited = shared(&without_budgets(plan));
    let unlimited = delay(witnesses, &unlimited, &without, earlier_max);
    let bound = bound(plan);
    println!(
        "on one line: {late} later at most, of {bound} that budgets allow; {unlimited} without budgets; {} datagrams of history, {} gaps",
        outcome.tally.history, outcome.tally.gaps,
    );
    assert!(late > Nanos::ZERO, "it has shared nothing");
    assert!(late <= bound, "{late}, and budgets allow {bound}");
    // A single connection never exceeds the bound: it has only one piece on the uplink at a time.
    assert!(
        plan.receivers < JOINERS || unlimited > bound,
        "{unlimited} without budgets: nothing was held against them"
    );
    outcome
}

#[test]
fn absent_subscriber_delays_no_record_of_others() {
    // The ring still holds everything that it missed, ...
    let outcome = assert_undisturbed(&outage(1 << 15), 1..4, |plan| plan.incidents.clear());
    assert!(
        outcome.tally.gaps + outcome.tally.history > 15_000,
        "{:?}",
        outcome.tally
    );
    // ... and here the ring has lost most of it.
    let outcome = assert_undisturbed(&outage(1 << 12), 1..4, |plan| plan.incidents.clear());
    assert!(
        outcome.tally.gaps + outcome.tally.history > 1_000,
        "{:?}",
        outcome.tally
    );
}

#[test]
fn mass_join_delays_no_other_subscriber() {
    let outcome = assert_undisturbed(&joiners(), 0..3, |plan| plan.absent = 3..3 + JOINERS);
    assert!(outcome.tally.history > 10_000, "{:?}", outcome.tally);
}

#[test]
fn orphaned_subscribers_reconnect_with_jitter() {
    const SUBSCRIBERS: usize = 200;
    let (dies, lives) = (ms(100), ms(400));
    let mut plan = calm(SUBSCRIBERS, ms(2_500));
    (plan.spacing, plan.burst) = (ms(2), 1);
    plan.incidents.push((dies, Incident::Kill));
    plan.incidents.push((lives, Incident::Start));
    let (_, times) = run(plan);
    let dials = times.dials.iter().filter(|(.., at)| *at > dies);
    let dials: Vec<_> = dials.filter(|(_, path, _)| *path == Path::Repair).collect();
    for number in 0..SUBSCRIBERS {
        let mut own = dials.iter().filter(|(of, ..)| *of == number);
        assert!(
            own.any(|(.., at)| *at > lives),
            "{number} did not come back"
        );
    }
    // Without jitter, all subscribers would reconnect at the same moments, again and again.
    let mut by_ms = std::collections::BTreeMap::<u64, usize>::new();
    for (.., at) in &dials {
        *by_ms.entry(at.0 / 1_000_000).or_default() += 1;
    }
    let most = by_ms.values().copied().max().unwrap_or(0);
    let first_after = by_ms.range(lives.0 / 1_000_000..).take(1_500);
    let after = first_after.map(|(_, n)| *n).max().unwrap_or(0);
    println!(
        "{} attempts within {} ms, {most} in one of them at most, {after} where the publisher was there again",
        dials.len(),
        by_ms.len()
    );
    assert!(most <= SUBSCRIBERS / 5, "{by_ms:?}");
    assert!(after <= SUBSCRIBERS / 20, "{by_ms:?}");
}
