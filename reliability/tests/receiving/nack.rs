//! The NACK connection of a subscriber's core: the first step of repair while it answers, and harmless
//! when it does not.

use tickcast_reliability::control::{Message, Purpose, RefusalReason, RepairOffer, Start};
use tickcast_reliability::delivery::LinkDownReason;
use tickcast_reliability::receive::ReceiverConfig;
use tickcast_reliability::session::{Path, SubscriberInput};
use tickcast_reliability::types::Nanos;

use crate::world::*;

fn offer() -> RepairOffer {
    offer_at("10.0.0.1:7410")
}

fn offer_at(address: &str) -> RepairOffer {
    RepairOffer::Verbs {
        address: address.parse().unwrap(),
        read: false,
        mirror: false,
    }
}

/// Returns the offers of a publisher with two devices.
fn two_offers() -> [RepairOffer; 2] {
    [offer(), offer_at("10.0.1.1:7410")]
}

/// Returns a joined subscriber with these repair offers beside TCP, which the driver may be able to use.
fn joined(publisher: &Publisher, repairs: Vec<RepairOffer>, usable: bool) -> World {
    let mut world = World::new(quiet(), Start::Live, 1);
    world.repairs = repairs;
    world.give(SubscriberInput::UseNackPath(usable));
    world.settle(publisher);
    world.asked_on.clear();
    world
}

/// Loses one datagram and delivers the next one.
fn lose_one(world: &mut World, publisher: &mut Publisher) {
    publisher.publish(1);
    let bytes = publisher.publish(1);
    world.hear(A, &bytes);
}

fn asked(world: &mut World) -> Vec<(Path, u64)> {
    let all = std::mem::take(&mut world.asked_on);
    all.into_iter()
        .map(|(path, range)| (path, range.first.0))
        .collect()
}

#[test]
fn answering_nack_connection_gets_all_nacks() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = joined(&publisher, vec![RepairOffer::Unknown, offer()], true);
    assert!(world.core.is_nack_up());
    assert_eq!(world.core.nack_offer(), Some(offer()));
    let session = 9 + 1;
    assert_eq!(world.joins, [Purpose::Repair, Purpose::Nack { session }]);
    for lost in [1, 3, 5] {
        lose_one(&mut world, &mut publisher);
        world.settle(&publisher);
        assert_eq!(asked(&mut world), [(Path::Nack, lost)]);
    }
    assert_eq!(world.records, numbers(1..=6));
    let c = world.counters();
    assert_eq!((c.nacks_sent.get(), c.nack_link_nacks_sent.get()), (3, 3));
    assert_eq!(
        (c.nacked_sequences.get(), c.nack_link_nacked_sequences.get()),
        (3, 3)
    );
    assert_eq!(
        (c.repairs_received.get(), c.nack_link_repairs_received.get()),
        (3, 3)
    );
    assert_eq!(
        (
            c.nack_link_timeouts.get(),
            c.nack_links_up.get(),
            c.nack_links_down.get()
        ),
        (0, 1, 0)
    );
}

fn closed() -> SubscriberInput<'static> {
    SubscriberInput::Disconnected(Path::Nack, LinkDownReason::Closed)
}

/// Returns the number of attempts at a NACK connection.
fn attempts(world: &World) -> usize {
    let attempts = world.connects.iter();
    attempts.filter(|(path, _)| *path == Path::Nack).count()
}

#[test]
fn nack_connection_that_ends_moves_to_the_next_offer() {
    let mut publisher = Publisher::new(5, 1);
    let [one, other] = two_offers();
    let mut world = joined(&publisher, vec![one, RepairOffer::Unknown, other], true);
    for offer in [other, one, other] {
        assert!(world.core.is_nack_up());
        world.give(closed());
        assert_eq!(world.core.nack_offer(), Some(offer));
        // A late report of the same end changes nothing.
        world.give(closed());
        assert_eq!(world.core.nack_offer(), Some(offer));
        world.pass(Nanos::from_secs(1), &publisher);
    }
    lose_one(&mut world, &mut publisher);
    world.settle(&publisher);
    assert_eq!(asked(&mut world), [(Path::Nack, 1)]);
}

#[test]
fn next_session_begins_with_the_offer_that_answered() {
    let mut publisher = Publisher::new(5, 1);
    let [one, other] = two_offers();
    let mut world = joined(&publisher, vec![one, other], true);
    world.give(closed());
    world.pass(Nanos::from_secs(1), &publisher);
    lose_one(&mut world, &mut publisher);
    world.settle(&publisher);
    assert_eq!(asked(&mut world), [(Path::Nack, 1)]);
    // The publisher's end closes all connections, in any order.
    for session_first in [true, false] {
        if !session_first {
            world.give(closed());
        }
        world.cut(LinkDownReason::Closed);
        world.give(closed());
        world.pass(Nanos::from_secs(1), &publisher);
        assert!(world.core.is_nack_up());
        assert_eq!(world.core.nack_offer(), Some(other), "{session_first}");
    }
    // That one is gone from the next session's offers.
    world.repairs = vec![one];
    world.cut(LinkDownReason::Closed);
    world.pass(Nanos::from_secs(1), &publisher);
    assert_eq!(world.core.nack_offer(), Some(one));
}

#[test]
fn offer_whose_attempt_failed_comes_after_those_that_work() {
    let publisher = Publisher::new(5, 1);
    let [one, other] = two_offers();
    let mut world = joined(&publisher, vec![one, other], true);
    world.unreachable = vec![other];
    world.give(closed());
    world.pass(Nanos::from_secs(1), &publisher);
    assert!(world.core.is_nack_up());
    let tried = attempts(&world);
    // From now on, the first offer is tried again at once.
    for n in 1..=3 {
        world.give(closed());
        assert_eq!(world.core.nack_offer(), Some(one));
        world.pass(Nanos::from_secs(1), &publisher);
        assert_eq!(attempts(&world), tried + n);
    }
    // Until it fails too. Then both are tried in turn, with back-off.
    world.unreachable = vec![one, other];
    world.give(closed());
    world.pass(Nanos::from_secs(60), &publisher);
    let tried_more = attempts(&world) - tried;
    assert!((5..50).contains(&tried_more), "{tried_more}");
    world.unreachable = vec![one];
    world.pass(Nanos::from_secs(60), &publisher);
    assert!(world.core.is_nack_up());
    assert_eq!(world.core.nack_offer(), Some(other));
}

#[test]
fn nack_offer_without_a_device_is_dropped() {
    let publisher = Publisher::new(5, 1);
    let [one, other] = two_offers();
    for without in [vec![one], vec![other], vec![one, other]] {
        let mut world = World::new(quiet(), Start::Live, 1);
        world.repairs = vec![one, other];
        world.without_device.clone_from(&without);
        world.give(SubscriberInput::UseNackPath(true));
        world.settle(&publisher);
        if without.len() < 2 {
            let left = [one, other].into_iter().find(|it| !without.contains(it));
            for _ in 0..3 {
                assert!(world.core.is_nack_up());
                assert_eq!(world.core.nack_offer(), left, "the other is dropped");
                world.give(closed());
                world.pass(Nanos::from_secs(1), &publisher);
            }
            continue;
        }
        // No other attempt follows within the session.
        assert_eq!((world.core.nack_offer(), attempts(&world)), (None, 2));
        world.pass(Nanos::from_secs(60), &publisher);
        assert_eq!(attempts(&world), 2);
        world.without_device.clear();
        world.cut(LinkDownReason::Closed);
        world.pass(Nanos::from_secs(1), &publisher);
        assert!(world.core.is_nack_up());
        assert_eq!(world.core.nack_offer(), Some(one));
    }
}

#[test]
fn offers_beyond_the_limit_are_ignored() {
    let publisher = Publisher::new(5, 1);
    let offers: Vec<_> = (1..=20)
        .map(|n| offer_at(&format!("10.0.{n}.1:7410")))
        .collect();
    let mut world = joined(&publisher, offers.clone(), true);
    for n in 1..=17 {
        world.give(closed());
        assert_eq!(world.core.nack_offer(), Some(offers[n % 16]));
        // Nothing is asked, so the back-off grows.
        world.pass(Nanos::from_secs(20), &publisher);
    }
}

#[test]
fn nacks_use_tcp_without_an_offer_or_capable_driver() {
    for (repairs, usable) in [
        (vec![], true),
        (vec![RepairOffer::Unknown], true),
        (vec![offer()], false),
    ] {
        let mut publisher = Publisher::new(5, 1);
        let mut world = joined(&publisher, repairs, usable);
        lose_one(&mut world, &mut publisher);
        world.pass(Nanos::from_secs(3), &publisher);
        assert_eq!(asked(&mut world), [(Path::Repair, 1)]);
        assert!(world.connects.iter().all(|(path, _)| *path == Path::Repair));
        assert_eq!(world.counters().nack_link_nacks_sent.get(), 0);
    }
}

#[test]
fn unanswered_step_falls_back_to_tcp() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = joined(&publisher, vec![offer()], true);
    world.rc_answers = false;
    lose_one(&mut world, &mut publisher);
    world.settle(&publisher);
    assert_eq!(asked(&mut world), [(Path::Nack, 1)]);
    // Without a measured RTT: four times 250 us, with a deviation of up to a quarter.
    world.pass(Nanos::from_us(749), &publisher);
    assert_eq!(asked(&mut world), []);
    world.pass(Nanos::from_us(502), &publisher);
    assert_eq!(asked(&mut world), [(Path::Repair, 1)]);
    assert_eq!(world.records, numbers(1..=2));
    assert_eq!(world.counters().nack_link_timeouts.get(), 1);
    // The next gap is requested there first again.
    world.rc_answers = true;
    lose_one(&mut world, &mut publisher);
    world.settle(&publisher);
    assert_eq!(asked(&mut world), [(Path::Nack, 3)]);
}

#[test]
fn late_answers_lengthen_timeout_once() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = joined(&publisher, vec![offer()], true);
    world.answer = false;
    let mut waits = Vec::new();
    for _ in 0..4 {
        let first = publisher.next;
        for _ in 0..10 {
            lose_one(&mut world, &mut publisher);
        }
        world.settle(&publisher);
        let requested_at = world.now;
        let late = |world: &World| world.counters().nack_link_timeouts.get();
        let before = late(&world);
        while late(&world) == before {
            world.pass(Nanos::from_us(10), &publisher);
        }
        waits.push(world.now.since(requested_at).0 / 1_000);
        world.pass(Nanos(world.now.since(requested_at).0), &publisher);
        // In every second round TCP is faster, so the NACK connection's answers are duplicates.
        for lost in (first..publisher.next)
            .step_by(2)
            .filter(|_| waits.len() % 2 == 0)
        {
            let copy = again(&publisher.sent[&lost]);
            world.tell(Path::Repair, &Message::Datagram(&copy));
        }
        for lost in (first..publisher.next).step_by(2) {
            let copy = again(&publisher.sent[&lost]);
            world.tell(Path::Nack, &Message::Datagram(&copy));
        }
    }
    // The shortest of ten intervals: four times 250 us, half as long again each time, a quarter less.
    for (n, wait) in waits.iter().enumerate() {
        let full = 1_000 * 3_u64.pow(n as u32) / 2_u64.pow(n as u32);
        assert!((full * 3 / 4..=full * 5 / 4).contains(wait), "{waits:?}");
    }
    assert_eq!(world.records.len() as u64, publisher.next - 1);
}

#[test]
fn gap_moved_to_tcp_stays_there_with_all_its_tries() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = joined(&publisher, vec![offer()], true);
    world.answer = false;
    lose_one(&mut world, &mut publisher);
    world.settle(&publisher);
    while world.given_up.is_empty() {
        world.pass(Nanos::from_us(100), &publisher);
    }
    let attempts = ReceiverConfig::default().nack_attempts as usize;
    let asked = asked(&mut world);
    assert_eq!(asked[0], (Path::Nack, 1));
    assert!(
        asked[1..=attempts].iter().all(|a| *a == (Path::Repair, 1)),
        "{asked:?}"
    );
    assert_eq!(
        world.given_up[..2],
        [Path::Repair, Path::Nack],
        "the last rung, and all with it"
    );
}

#[test]
fn broken_nack_connection_moves_open_gaps_to_tcp() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = joined(&publisher, vec![offer()], true);
    world.rc_answers = false;
    for _ in 0..3 {
        lose_one(&mut world, &mut publisher);
    }
    world.settle(&publisher);
    assert_eq!(asked(&mut world), [1, 3, 5].map(|s| (Path::Nack, s)));
    world.connectable = false;
    world.give(SubscriberInput::Disconnected(
        Path::Nack,
        LinkDownReason::Closed,
    ));
    world.settle(&publisher);
    assert_eq!(asked(&mut world), [1, 3, 5].map(|s| (Path::Repair, s)));
    assert_eq!(world.records, numbers(1..=6));
    let c = world.counters();
    assert_eq!(
        (c.nack_links_down.get(), c.nack_link_timeouts.get()),
        (1, 0)
    );
    assert_eq!(c.repair_links_down.get(), 0, "TCP stays");
    // New gaps are requested over TCP at once.
    lose_one(&mut world, &mut publisher);
    world.settle(&publisher);
    assert_eq!(asked(&mut world), [(Path::Repair, 7)]);
}

#[test]
fn mute_connection_is_down_and_backs_off() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = joined(&publisher, vec![offer()], true);
    world.rc_answers = false;
    let until = world.now.after(Nanos::from_secs(20));
    while world.now < until {
        lose_one(&mut world, &mut publisher);
        world.pass(Nanos::from_ms(4), &publisher);
    }
    let nack = |(path, at): &(Path, Nanos)| (*path == Path::Nack).then_some(*at);
    let at: Vec<Nanos> = world.connects.iter().filter_map(nack).collect();
    let waits: Vec<u64> = at
        .windows(2)
        .map(|w| w[1].since(w[0]).0 / 1_000_000)
        .collect();
    assert!(waits[0] < 16 + 100 && waits.len() > 8, "{waits:?}");
    // Doubling from 10 ms to 8 s, with jitter from half to one and a half, and eight NACKs each time.
    let last = waits.last().unwrap();
    assert!((4_000..12_200).contains(last), "{waits:?}");
    assert!(world.given_up.iter().all(|path| *path == Path::Nack));
    let c = world.counters();
    assert_eq!(c.nack_links_down.get(), world.given_up.len() as u64);
    assert!(c.nack_link_timeouts.get() >= 8 * c.nack_links_down.get());
    assert_eq!(c.missing_open.get(), 0, "nothing was held up for good");
    // One answer resets the back-off. (The connection may be down for the longest wait before.)
    world.rc_answers = true;
    world.pass(Nanos::from_secs(13), &publisher);
    assert!(world.core.is_nack_up());
    lose_one(&mut world, &mut publisher);
    world.settle(&publisher);
    let before = world.connects.len();
    let broken_at = world.now;
    world.give(SubscriberInput::Disconnected(
        Path::Nack,
        LinkDownReason::Closed,
    ));
    world.pass(Nanos::from_ms(16), &publisher);
    let again = world.connects[before..].iter().find_map(nack);
    assert!(again.is_some_and(|at| at.since(broken_at) < Nanos::from_ms(16)));
}

#[test]
fn concurrent_requests_count_as_one_unanswered() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = joined(&publisher, vec![offer()], true);
    world.rc_answers = false;
    for _ in 0..40 {
        lose_one(&mut world, &mut publisher);
    }
    world.pass(Nanos::from_ms(20), &publisher);
    assert_eq!(world.counters().nack_link_timeouts.get(), 40);
    assert!(world.core.is_nack_up() && world.given_up.is_empty());
}

#[test]
fn read_link_follows_repair_link_and_session() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = joined(&publisher, vec![offer()], true);
    world.cut(LinkDownReason::Closed);
    world.settle(&publisher);
    assert_eq!(world.given_up, [Path::Nack]);
    assert!(!world.core.is_nack_up());
    assert_eq!(world.counters().nack_links_down.get(), 1);
    lose_one(&mut world, &mut publisher);
    world.settle(&publisher);
    assert_eq!(asked(&mut world), [], "nobody is there to be asked");
    world.pass(Nanos::from_ms(20), &publisher);
    assert!(world.core.is_nack_up());
    let sessions: Vec<u64> = (world.joins.iter())
        .filter_map(|join| match join {
            Purpose::Nack { session } => Some(*session),
            _ => None,
        })
        .collect();
    assert!(sessions[0] != sessions[1], "{sessions:?}");
    assert_eq!(world.records, numbers(1..=2));
}

#[test]
fn history_and_violations_bypass_the_nack_connection() {
    let mut publisher = Publisher::new(5, 1);
    for _ in 0..20 {
        publisher.publish(1);
    }
    let mut world = World::new(quiet(), Start::Oldest, 1);
    world.repairs = vec![offer()];
    world.give(SubscriberInput::UseNackPath(true));
    world.pass(Nanos::from_secs(1), &publisher);
    assert_eq!(world.records, numbers(1..=20));
    let mut other = Publisher::new(5, 20);
    other.next_record = 20;
    let forged = other.publish(2);
    world.hear(A, &forged);
    world.settle(&publisher);
    assert!(!world.asked_on.is_empty());
    assert!(world.asked_on.iter().all(|(path, _)| *path != Path::Nack));
}

#[test]
fn refusal_answers_nack_link_and_retries_first_step() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = joined(&publisher, vec![offer()], true);
    world.rc_answers = false;
    lose_one(&mut world, &mut publisher);
    world.settle(&publisher);
    let refused = publisher.refused(run(1, 1), RefusalReason::Budget, 300);
    world.tell(Path::Nack, &Message::Refused(refused));
    world.rc_answers = true;
    world.pass(Nanos::from_us(300), &publisher);
    assert_eq!(asked(&mut world), [(Path::Nack, 1); 2]);
    assert_eq!(world.counters().nack_link_timeouts.get(), 0);
}

#[test]
fn tcp_answer_keeps_connection_timeout() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = joined(&publisher, vec![offer()], true);
    world.answer = false;
    lose_one(&mut world, &mut publisher);
    world.pass(Nanos::from_us(1_251), &publisher);
    assert_eq!(asked(&mut world), [(Path::Nack, 1), (Path::Repair, 1)]);
    lose_one(&mut world, &mut publisher);
    world.pass(Nanos::from_us(740), &publisher);
    assert!(asked(&mut world).contains(&(Path::Nack, 3)));
    // TCP answers its own NACK. That says nothing about the other one.
    let copy = again(&publisher.sent[&1]);
    world.tell(Path::Repair, &Message::Datagram(&copy));
    world.pass(Nanos::from_us(511), &publisher);
    assert_eq!(asked(&mut world), [(Path::Repair, 3)]);
}

#[test]
fn replay_arrival_keeps_connection_timeout() {
    let mut publisher = Publisher::new(5, 1);
    (0..20).for_each(|_| drop(publisher.publish(1)));
    let mut world = World::new(quiet(), Start::Oldest, 1);
    world.repairs = vec![offer()];
    world.give(SubscriberInput::UseNackPath(true));
    world.answer = false;
    world.settle(&publisher);
    assert_eq!(asked(&mut world), [(Path::Replay, 1)]);
    lose_one(&mut world, &mut publisher);
    world.pass(Nanos::from_us(740), &publisher);
    assert_eq!(asked(&mut world), [(Path::Nack, 21)]);
    let copy = again(&publisher.sent[&1]);
    world.tell(Path::Replay, &Message::Datagram(&copy));
    world.pass(Nanos::from_us(511), &publisher);
    assert!(asked(&mut world).contains(&(Path::Repair, 21)));
}

#[test]
fn duplicate_answer_in_time_changes_no_timeout() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = joined(&publisher, vec![offer()], true);
    world.rc_answers = false;
    lose_one(&mut world, &mut publisher);
    world.settle(&publisher);
    let reordered = publisher.sent[&1].clone();
    world.hear(A, &reordered);
    world.tell(Path::Nack, &Message::Datagram(&again(&reordered)));
    assert_eq!(world.counters().duplicates.get(), 1);
    for _ in 0..10 {
        lose_one(&mut world, &mut publisher);
    }
    // With a timeout half as long again, at least 1125 us, none of the ten would be late by then.
    world.pass(Nanos::from_us(1_120), &publisher);
    let late = world.counters().nack_link_timeouts.get();
    assert!(late > 0, "{late}");
}

#[test]
fn broken_link_hurries_only_its_waiters() {
    let down = LinkDownReason::Closed;
    // A refusal with a delay: the delay also holds for the step that is then available.
    let mut publisher = Publisher::new(5, 1);
    let mut world = joined(&publisher, vec![offer()], true);
    (world.rc_answers, world.connectable) = (false, false);
    lose_one(&mut world, &mut publisher);
    world.settle(&publisher);
    let refused = publisher.refused(run(1, 1), RefusalReason::Budget, 300);
    world.tell(Path::Nack, &Message::Refused(refused));
    world.give(SubscriberInput::Disconnected(Path::Nack, down));
    world.pass(Nanos::from_us(299), &publisher);
    assert_eq!(asked(&mut world), [(Path::Nack, 1)]);
    world.pass(Nanos::from_us(1), &publisher);
    assert_eq!(asked(&mut world), [(Path::Repair, 1)]);
    // The gap is already requested on the next step.
    let mut publisher = Publisher::new(5, 1);
    let mut world = joined(&publisher, vec![offer()], true);
    (world.answer, world.connectable) = (false, false);
    lose_one(&mut world, &mut publisher);
    world.pass(Nanos::from_us(1_251), &publisher);
    assert_eq!(asked(&mut world), [(Path::Nack, 1), (Path::Repair, 1)]);
    world.give(SubscriberInput::Disconnected(Path::Nack, down));
    world.settle(&publisher);
    assert_eq!(asked(&mut world), []);
}

#[test]
fn failed_dial_is_not_retried_before_next_welcome() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = joined(&publisher, vec![offer()], true);
    world.give(SubscriberInput::NackUnusable);
    assert!(!world.core.is_nack_up());
    lose_one(&mut world, &mut publisher);
    world.pass(Nanos::from_secs(3), &publisher);
    assert_eq!(asked(&mut world), [(Path::Repair, 1)]);
    assert_eq!(world.given_up, [Path::Nack]);
    assert_eq!(world.joins.len(), 2);
    world.cut(LinkDownReason::Closed);
    world.pass(Nanos::from_ms(20), &publisher);
    assert!(world.core.is_nack_up(), "it is offered again");
}

#[test]
fn refusal_counts_as_answer_of_its_connection() {
    for (path, given_up) in [(Path::Nack, 0), (Path::Repair, 1)] {
        let mut publisher = Publisher::new(5, 1);
        let mut world = joined(&publisher, vec![offer()], true);
        world.rc_answers = false;
        // Eight unanswered NACKs in a row close the connection.
        for question in 0..9 {
            if question == 7 {
                let refused = publisher.refused(run(1, 1), RefusalReason::Ahead, 0);
                world.tell(path, &Message::Refused(refused));
            }
            lose_one(&mut world, &mut publisher);
            world.pass(Nanos::from_us(1_300), &publisher);
        }
        assert_eq!(world.given_up.len(), given_up, "{path:?}");
    }
}

#[test]
fn failed_nack_connect_is_not_counted_as_link_down() {
    let publisher = Publisher::new(5, 1);
    let mut world = World::new(quiet(), Start::Live, 1);
    world.repairs = vec![offer()];
    world.give(SubscriberInput::UseNackPath(true));
    world.settle(&publisher);
    world.give(SubscriberInput::Disconnected(
        Path::Nack,
        LinkDownReason::Closed,
    ));
    assert_eq!(world.counters().nack_links_down.get(), 1);
    world.connectable = false;
    world.pass(Nanos::from_secs(1), &publisher);
    let attempts = world.connects.iter();
    assert!(attempts.filter(|(path, _)| *path == Path::Nack).count() > 3);
    assert_eq!(world.counters().nack_links_down.get(), 1);
}
