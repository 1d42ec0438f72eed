//! How a receiver handles arriving datagrams: when it delivers them, what counts as missing, and when it
//! emits events.

use tickcast_reliability::control::{RefusalReason, Start};
use tickcast_reliability::delivery::{
    Delivery, Event, Item, LinkDownReason, LossCause, Place, Position, Via,
};
use tickcast_reliability::receive::{ReceiverConfig, RepairRequests};
use tickcast_reliability::record::AlignedCopy;
use tickcast_reliability::types::{ConfigHash, Epoch, Nanos, RecordNumber, Sequence};
use tickcast_reliability::wire::{Heartbeat, Kind, PublisherState};

use crate::world::*;

fn heartbeat(publisher: &Publisher, next_interval_us: u32, hold_off_us: u32) -> Vec<u8> {
    let body = Heartbeat {
        next_interval_us,
        hold_off_us,
        subscribers: 1_000,
        state: PublisherState::Live,
        config_hash: ConfigHash(0),
    };
    let header = publisher.header(Kind::Heartbeat, 0, Heartbeat::LEN);
    Publisher::seal(&header, &body.to_bytes())
}

fn live(config: ReceiverConfig) -> (Publisher, Alone) {
    let publisher = Publisher::new(5, 1);
    let alone = Alone::welcomed(config, &publisher, Start::Live, 1);
    (publisher, alone)
}

fn arrival() -> ReceiverConfig {
    ReceiverConfig {
        delivery: Delivery::Arrival,
        window_slots: 16,
        ..quiet()
    }
}

/// Returns whether replay is wanted, and the number of ranges requested as repair.
fn wanted(alone: &mut Alone) -> (bool, usize) {
    let mut asks = RepairRequests::default();
    alone.receiver.due_requests(alone.now, &mut asks);
    (asks.replay_wanted, asks.repair.len())
}

#[test]
fn gap_at_burst_limit_is_repaired_longer_replayed() {
    for (missing, expected) in [(100, (false, 1)), (101, (true, 0))] {
        let (mut publisher, mut alone) = live(quiet());
        alone.hear(A, &publisher.publish(1));
        (0..missing).for_each(|_| drop(publisher.publish(1)));
        alone.hear(A, &publisher.publish(1));
        assert_eq!(wanted(&mut alone), expected, "{missing}");
        let c = alone.counters();
        assert_eq!((c.missing_datagrams.get(), c.gaps.get()), (missing, 1));
        assert!(alone.losses().is_empty());
    }
}

#[test]
fn burst_under_a_deadline_is_lost_not_replayed() {
    for (missing, lost) in [(100, 0), (101, 101)] {
        let config = ReceiverConfig {
            delivery: Delivery::OrderedWithin(Nanos::from_ms(5)),
            ..quiet()
        };
        let (mut publisher, mut alone) = live(config);
        alone.hear(A, &publisher.publish(1));
        (0..missing).for_each(|_| drop(publisher.publish(1)));
        alone.status(&publisher.status());
        assert_eq!(
            alone.counters().missing_datagrams.get(),
            0,
            "not by one word"
        );
        alone.status(&publisher.status());
        assert_eq!(alone.counters().missing_lost.get(), lost, "{missing}");
        let first = alone.losses().first().map(|loss| loss.3);
        assert_eq!(first, (lost > 0).then_some(LossCause::Burst));
    }
}

#[test]
fn gaps_beyond_window_forming_a_burst_are_replayed() {
    let config = ReceiverConfig {
        window_slots: 16,
        burst_max: 20,
        ..quiet()
    };
    let (mut publisher, mut alone) = live(config);
    alone.hear(A, &publisher.publish(1));
    let _missed = publisher.publish(1);
    for _ in 0..35 {
        alone.hear(A, &publisher.publish(1));
    }
    let c = alone.counters();
    assert_eq!(c.window_full_dropped.get(), 20, "from 18 to 37");
    assert_eq!(
        alone.asks(),
        [run(2, 2)],
        "beyond the window nothing is asked yet"
    );
    let one_more = publisher.publish(1);
    alone.hear(A, &one_more);
    alone.answer(&publisher.sent[&2]);
    assert_eq!(alone.records, numbers(1..=17));
    assert_eq!(wanted(&mut alone), (true, 0));
}

#[test]
fn record_position_carries_its_path_and_missing_time() {
    let (mut publisher, mut alone) = live(quiet());
    let sent: Vec<_> = (0..4).map(|_| publisher.publish(1)).collect();
    let mut positions: Vec<Position> = Vec::new();
    let mut take = |alone: &mut Alone, via, bytes: &[u8]| {
        let mut aligned = AlignedCopy::default();
        let on = &mut |item: Item<'_>| {
            if let Item::Record(position, _) = item {
                positions.push(*position);
            }
        };
        alone
            .receiver
            .handle_bytes(alone.now, via, aligned.of(bytes), on);
    };
    let start = alone.now;
    take(&mut alone, Via::Line(A), &sent[0]);
    take(&mut alone, Via::Line(A), &sent[3]);
    alone.asks();
    take(&mut alone, Via::Repair, &again(&sent[1]));
    alone.now = start.after(Nanos(500));
    take(&mut alone, Via::Line(A), &again(&sent[2]));
    let reported: Vec<_> = (positions.iter())
        .map(|p| (p.sequence.0, p.via, p.missing_for.0, p.quality.repaired))
        .collect();
    let line = Via::Line(A);
    assert_eq!(
        reported,
        [
            (1, line, 0, false),
            (2, Via::Repair, 1, true),
            (3, line, 500, true),
            (4, line, 0, false)
        ],
        "at least a nanosecond, for zero says that it was never missing"
    );
    let lines: Vec<_> = positions.iter().map(Position::line).collect();
    assert_eq!(lines, [Some(A), None, Some(A), Some(A)]);
    let place = Place {
        epoch: Epoch(5),
        sequence: Sequence(2),
        record: RecordNumber(2),
    };
    assert_eq!(positions[1].place(), place);
    assert_eq!(
        positions[3].received_at, start,
        "when it came, not when it was its turn"
    );
    assert_eq!(positions[2].received_at, alone.now);
    let c = alone.counters();
    assert_eq!(
        (c.repairs_received.get(), c.multicast_repairs_received.get()),
        (1, 1)
    );
    assert_eq!((c.missing_recovered.get(), c.missing_open.get()), (2, 0));
}

#[test]
fn gap_recovery_is_not_reported_if_last_settled_by_loss() {
    let (mut publisher, mut alone) = live(quiet());
    let sent: Vec<_> = (0..9).map(|_| publisher.publish(1)).collect();
    alone.hear(A, &sent[0]);
    alone.hear(A, &sent[5]);
    alone.asks();
    alone.later(30);
    alone.answer(&sent[2]);
    alone.answer(&sent[4]);
    alone.answer(&sent[1]);
    alone.events.clear();
    publisher.oldest = 5;
    alone.refuse(&publisher, (4, 4), RefusalReason::Window, 0);
    assert_eq!(alone.losses().len(), 1);
    // The last sequence to be settled was lost, so no recovery is reported.
    assert_eq!(alone.events.len(), 1);
    alone.hear(A, &sent[8]);
    alone.later(70);
    alone.hear(A, &sent[7]);
    alone.events.clear();
    alone.hear(A, &sent[6]);
    let recovered = Event::GapRecovered {
        first: Sequence(7),
        sequences: 2,
        took: Nanos::from_us(70),
    };
    assert_eq!(alone.events, [recovered]);
}

/// Hears a heartbeat with the longest hold-off, misses one datagram of each of many gaps, and returns the
/// longest wait before a first request, in microseconds.
fn longest_hold_off(mut publisher: Publisher, mut alone: Alone) -> u64 {
    alone.hear(A, &publisher.publish(1));
    let mut longest = Nanos::ZERO;
    for _ in 0..200 {
        alone.hear(A, &publisher.heartbeat_with(u32::MAX, u32::MAX));
        let missed = publisher.publish(1);
        alone.hear(A, &publisher.publish(1));
        longest = longest.max(alone.due());
        alone.answer(&missed);
    }
    longest.0 / 1_000
}

#[test]
fn forged_hold_off_is_limited_by_welcome() {
    let mut publisher = Publisher::new(5, 1);
    publisher.heartbeats.hold_off_max_us = 400;
    let alone = Alone::welcomed(quiet(), &publisher, Start::Live, 1);
    assert!((390..=400).contains(&longest_hold_off(publisher, alone)));
    // A WELCOME may promise less than anybody, but not more.
    let mut publisher = Publisher::new(5, 1);
    publisher.heartbeats.hold_off_max_us = u32::MAX;
    let alone = Alone::welcomed(quiet(), &publisher, Start::Live, 1);
    assert!((9_900..=10_000).contains(&longest_hold_off(publisher, alone)));
}

#[test]
fn hold_off_takes_at_most_a_quarter_of_a_deadline() {
    let config = ReceiverConfig {
        delivery: Delivery::OrderedWithin(Nanos::from_ms(4)),
        ..quiet()
    };
    let (publisher, alone) = live(config);
    assert!((990..=1_000).contains(&longest_hold_off(publisher, alone)));
}

#[test]
fn large_group_nacks_wait_the_advised_hold_off() {
    let mut waits = Vec::new();
    let (mut publisher, mut alone) = live(quiet());
    for _ in 0..40 {
        publisher.publish(1);
        alone.hear(A, &heartbeat(&publisher, 1_000, 5_000));
        waits.push(alone.due());
        alone.at(alone.receiver.poll_timeout());
        assert_eq!(alone.asks().len(), 1);
        alone.answer(&publisher.sent[&(publisher.next - 1)].clone());
    }
    let held: Vec<_> = waits.iter().filter(|wait| **wait > Nanos::ZERO).collect();
    assert!(held.len() >= 35, "most of them: {waits:?}");
    let within = Nanos::from_us(2_500)..Nanos::from_us(5_000);
    assert!(held.iter().all(|wait| within.contains(wait)), "{waits:?}");
}

#[test]
fn silence_is_three_announced_intervals_or_minimum() {
    let config = ReceiverConfig {
        stale_us: 30_000,
        follow_us: 10_000_000,
        ..quiet()
    };
    for (interval_us, stale_us) in [(1_000, 30_000), (20_000, 60_000), (u32::MAX, 30_000_000)] {
        let (publisher, mut alone) = live(config);
        alone.link_down(LinkDownReason::Closed);
        alone.hear(A, &heartbeat(&publisher, interval_us, 0));
        assert_eq!(alone.due(), Nanos::from_us(stale_us));
        alone.later(stale_us - 1);
        assert!(!alone.events.contains(&Event::Stale));
        alone.later(1);
        assert!(alone.events.contains(&Event::Stale));
        alone.hear(A, &heartbeat(&publisher, interval_us, 0));
        assert_eq!(alone.events.last(), Some(&Event::Recovered));
    }
}

#[test]
fn window_accepts_exactly_its_slot_count() {
    let config = ReceiverConfig {
        window_slots: 16,
        ..quiet()
    };
    let (mut publisher, mut alone) = live(config);
    let sent: Vec<_> = (0..17).map(|_| publisher.publish(1)).collect();
    alone.hear(A, &sent[15]);
    assert_eq!(alone.counters().window_full_dropped.get(), 0);
    alone.hear(A, &sent[16]);
    assert_eq!(alone.counters().window_full_dropped.get(), 1);
    assert_eq!(alone.receiver.progress(), (Sequence(0), Sequence(17)));
    assert_eq!(alone.asks(), [run(1, 15)]);
    for bytes in &sent[..15] {
        alone.answer(bytes);
    }
    assert_eq!(alone.records, numbers(1..=16));
    assert_eq!(alone.asks(), [run(17, 17)]);
}

#[test]
fn arrival_order_loses_gap_that_leaves_the_window() {
    let (mut publisher, mut alone) = live(arrival());
    let sent: Vec<_> = (0..19).map(|_| publisher.publish(1)).collect();
    alone.hear(A, &sent[0]);
    for bytes in &sent[3..17] {
        alone.hear(A, bytes);
    }
    assert!(alone.losses().is_empty());
    alone.status(&publisher.status());
    alone.hear(A, &sent[17]);
    assert_eq!(
        alone.losses(),
        [],
        "its records are known with the next only"
    );
    assert_eq!(alone.receiver.progress().0, Sequence(2));
    alone.hear(A, &sent[18]);
    assert_eq!(alone.losses(), [(2, 3, Some(2), LossCause::Window)]);
    assert_eq!(alone.receiver.progress().0, Sequence(19));
    let mut expected = vec![1];
    expected.extend(4..=19);
    assert_eq!(alone.records, expected);
    assert_eq!(alone.counters().window_full_dropped.get(), 0);
}

#[test]
fn unconfirmed_end_is_final_once_publisher_is_dead() {
    let config = ReceiverConfig {
        stale_us: 30_000,
        dead_us: 1_000_000,
        ..quiet()
    };
    for missed in [false, true] {
        let (mut publisher, mut alone) = live(config);
        let first = publisher.publish(2);
        let end = publisher.end();
        if !missed {
            alone.hear(A, &first);
        }
        alone.hear(A, &end);
        alone.link_down(LinkDownReason::Closed);
        alone.later(999_999);
        assert!(!alone.receiver.ended());
        alone.later(1);
        assert!(alone.receiver.ended());
        assert_eq!(alone.losses().len(), usize::from(missed));
        assert_eq!(alone.events.last(), Some(&Event::EndOfSession));
    }
    // Without END, a dead publisher does not end the session.
    let (mut publisher, mut alone) = live(config);
    alone.hear(A, &publisher.publish(2));
    alone.link_down(LinkDownReason::Closed);
    alone.later(1_000_000);
    assert!(alone.events.contains(&Event::PublisherDead) && !alone.receiver.ended());
}

#[test]
fn end_of_an_old_outage_ends_no_session() {
    let config = ReceiverConfig {
        stale_us: 30_000,
        dead_us: 1_000_000,
        ..quiet()
    };
    for (after_us, ended) in [(19_999, true), (20_000, false)] {
        let (mut publisher, mut alone) = live(config);
        alone.hear(A, &publisher.publish(2));
        alone.link_down(LinkDownReason::Closed);
        alone.later(after_us);
        alone.hear(A, &publisher.end());
        alone.later(1_000_000);
        assert!(alone.events.contains(&Event::PublisherDead));
        assert_eq!(alone.receiver.ended(), ended, "{after_us} us");
        // The publisher is there after all.
        alone.welcome(&publisher.welcome(1), Start::Live);
        alone.status(&publisher.status());
        assert!(alone.receiver.ended());
    }
}

#[test]
fn heartbeat_of_end_hastens_confirmation() {
    let (mut publisher, mut alone) = live(quiet());
    alone.later(10_000);
    publisher.end();
    alone.hear(A, &publisher.heartbeat());
    assert!(alone.receiver.take_progress(alone.now).is_some());
    alone.status(&publisher.status());
    alone.later(10_000);
    alone.asks();
    let awaited = alone.due();
    alone.hear(A, &publisher.heartbeat());
    assert_eq!(alone.due(), awaited, "it is known");
    assert!(alone.receiver.take_progress(alone.now).is_none());
}

#[test]
fn live_event_is_emitted_once_when_history_is_complete() {
    let mut publisher = Publisher::new(5, 1);
    (0..3).for_each(|_| drop(publisher.publish(1)));
    let mut alone = Alone::welcomed(quiet(), &publisher, Start::Oldest, 1);
    let lives = |alone: &Alone| alone.events.iter().filter(|e| **e == Event::Live).count();
    let c = alone.counters();
    assert_eq!((c.replay_requested.get(), c.replay_open.get()), (3, 3));
    for sequence in 1..=3 {
        assert_eq!(lives(&alone), 0);
        let bytes = publisher.sent[&sequence].clone();
        alone.answer(&bytes);
    }
    assert_eq!(lives(&alone), 1);
    alone.hear(A, &publisher.publish(1));
    assert_eq!(lives(&alone), 1);
    let c = alone.counters();
    assert_eq!((c.replay_received.get(), c.replay_open.get()), (3, 0));
    assert_eq!(c.missing_recovered.get(), 0, "history was never missing");
    let reported = |e: &Event| matches!(e, Event::GapRecovered { .. });
    assert!(!alone.events.iter().any(reported));
}

#[test]
fn join_start_follows_ring_until_first_delivery() {
    let joins = |alone: &Alone| {
        let of = |event: &Event| match event {
            Event::Joined { after } => Some(after.0),
            _ => None,
        };
        alone.events.iter().filter_map(of).collect::<Vec<_>>()
    };
    let mut publisher = Publisher::new(5, 1);
    (0..9).for_each(|_| drop(publisher.publish(1)));
    let (third, fifth) = (publisher.sent[&3].clone(), publisher.sent[&5].clone());
    for (config, bytes, moves) in [(quiet(), &third, true), (arrival(), &third, false)] {
        publisher.oldest = 1;
        let mut alone = Alone::welcomed(config, &publisher, Start::Oldest, 1);
        alone.hear(A, bytes);
        publisher.oldest = 3;
        alone.refuse(&publisher, (1, 2), RefusalReason::Window, 0);
        if moves {
            assert_eq!(joins(&alone), [0, 2], "what waits was not delivered");
            assert!(alone.losses().is_empty());
            assert_eq!(alone.counters().replay_lost.get(), 2);
        } else {
            assert_eq!(joins(&alone), [0]);
            assert_eq!(alone.losses(), [(1, 2, Some(2), LossCause::Window)]);
        }
        assert_eq!(alone.records, [3]);
        publisher.oldest = 5;
        alone.refuse(&publisher, (4, 4), RefusalReason::Window, 0);
        alone.hear(A, &fifth);
        assert_eq!(joins(&alone).len(), if moves { 2 } else { 1 });
        assert_eq!(
            alone.losses().last(),
            Some(&(4, 4, Some(1), LossCause::Window))
        );
    }
}

#[test]
fn moved_join_start_is_live_after_its_history() {
    let mut publisher = Publisher::new(5, 1);
    let mut alone = Alone::welcomed(quiet(), &publisher, Start::Oldest, 1);
    let reported = |alone: &mut Alone| {
        let of = |event| match event {
            Event::Joined { after } => Some(format!("joined {after}")),
            Event::Live => Some("live".into()),
            _ => None,
        };
        let events = std::mem::take(&mut alone.events);
        events.into_iter().filter_map(of).collect::<Vec<_>>()
    };
    assert_eq!(
        reported(&mut alone),
        ["joined 0", "live"],
        "the ring was empty"
    );
    (0..5).for_each(|_| drop(publisher.publish(1)));
    alone.hear(A, &publisher.sent[&5].clone());
    publisher.oldest = 4;
    alone.refuse(&publisher, (1, 4), RefusalReason::Window, 0);
    assert_eq!(reported(&mut alone), ["joined 3"]);
    assert!(!alone.receiver.is_live());
    alone.answer(&publisher.sent[&4].clone());
    assert_eq!(reported(&mut alone), ["live"]);
    assert_eq!(alone.records, [4, 5]);
}

#[test]
fn first_of_two_contents_waits_for_repair_path() {
    let (mut publisher, mut alone) = live(quiet());
    let mut impostor = Publisher::new(5, 1);
    let first = publisher.publish(1);
    impostor.publish(1);
    let right = publisher.publish(1);
    let wrong = impostor.publish(3);
    alone.hear(A, &right);
    alone.hear(A, &wrong);
    assert_eq!(alone.counters().fencing_violations.get(), 1);
    alone.hear(A, &first);
    assert_eq!(alone.records, [1, 2]);
    let alarm = |wrong_one_delivered| Event::FencingViolation {
        sequence: Sequence(2),
        wrong_one_delivered,
    };
    assert_eq!(
        alone.events.iter().filter(|e| **e == alarm(false)).count(),
        1
    );
    // The repair path's copy equals the delivered one, so nothing wrong was delivered.
    assert_eq!(alone.asks(), [run(2, 2)]);
    alone.answer(&right);
    assert!(!alone.events.contains(&alarm(true)));
    assert_eq!(alone.counters().duplicates.get(), 1);
    assert_eq!(alone.counters().fenced_records.get(), 0);
}

#[test]
fn malformed_and_unknown_sender_counters_are_separate() {
    let (_, mut alone) = live(quiet());
    alone.hear(A, &[0; 70]);
    alone.receiver.handle_unknown_sender();
    let c = alone.counters();
    assert_eq!(
        (c.malformed_dropped.get(), c.unknown_sender_dropped.get()),
        (1, 1)
    );
    assert_eq!((c.received_datagrams.get(), c.received_bytes.get()), (2, 0));
}

#[test]
fn history_without_repair_is_lost_after_the_wait() {
    let config = ReceiverConfig {
        repair: false,
        unrepaired_wait_us: 500,
        ..quiet()
    };
    let mut publisher = Publisher::new(5, 1);
    (0..3).for_each(|_| drop(publisher.publish(2)));
    let mut alone = Alone::welcomed(config, &publisher, Start::Oldest, 1);
    assert_eq!(alone.due(), Nanos::from_us(500));
    alone.later(499);
    assert!(alone.losses().is_empty());
    alone.later(1);
    assert_eq!(alone.losses(), [(1, 3, Some(6), LossCause::RepairOff)]);
    assert_eq!(alone.counters().replay_lost.get(), 3);
    // The same holds with a deadline, which is a deadline for repair.
    let within = ReceiverConfig {
        delivery: Delivery::OrderedWithin(Nanos::from_ms(5)),
        ..config
    };
    let alone = Alone::welcomed(within, &publisher, Start::Oldest, 1);
    assert_eq!(alone.due(), Nanos::from_us(500));
    // With repair, history has no deadline. Only the live stream has one.
    let config = ReceiverConfig {
        delivery: Delivery::OrderedWithin(Nanos::from_ms(5)),
        ..quiet()
    };
    let mut alone = Alone::welcomed(config, &publisher, Start::Oldest, 1);
    let mut asks = RepairRequests::default();
    alone.receiver.due_requests(alone.now, &mut asks);
    assert!(alone.due() > Nanos::from_secs(1), "{}", alone.due());
    publisher.publish(1);
    alone.hear(A, &publisher.publish(1));
    alone.link_down(LinkDownReason::Closed);
    assert_eq!(alone.due(), Nanos::from_ms(5));
    alone.later(5_000);
    assert_eq!(alone.counters().missing_lost.get(), 1);
    assert_eq!(alone.counters().replay_lost.get(), 0);
}

#[test]
fn passed_end_is_not_reported_at_publisher_death() {
    let config = ReceiverConfig {
        stale_us: 30_000,
        dead_us: 1_000_000,
        ..quiet()
    };
    let (mut publisher, mut alone) = live(config);
    let mut forger = Publisher::new(5, 1);
    forger.publish(2);
    alone.hear(A, &publisher.publish(2));
    // The forger's sequence 2; the publisher's own 2 never arrives by multicast.
    alone.hear(A, &forger.end());
    publisher.publish(1);
    for _ in 0..20 {
        alone.hear(A, &publisher.publish(1));
    }
    alone.link_down(LinkDownReason::Closed);
    alone.later(1_000_000);
    assert!(!alone.receiver.ended(), "{:?}", alone.events);
}

#[test]
fn datagram_beyond_window_sizes_the_loss_before_it() {
    let config = ReceiverConfig {
        window_slots: 16,
        stale_us: 30_000,
        dead_us: 1_000_000,
        ..quiet()
    };
    let (mut publisher, mut alone) = live(config);
    for _ in 0..30 {
        publisher.publish(2);
    }
    // It is not stored, but its record numbers, 61 to 63, count.
    alone.hear(A, &publisher.publish(3));
    publisher.oldest = 5;
    alone.refuse(&publisher, (1, 16), RefusalReason::Window, 0);
    alone.link_down(LinkDownReason::Closed);
    alone.later(1_000_000);
    let reported = [
        (1, 4, Some(8), LossCause::Window),
        (5, 31, Some(55), LossCause::PublisherDead),
    ];
    assert_eq!(alone.losses(), reported);
}

#[test]
fn vouched_and_heard_is_counted_at_publisher_death() {
    let config = ReceiverConfig {
        stale_us: 30_000,
        dead_us: 1_000_000,
        ..quiet()
    };
    let (mut publisher, mut alone) = live(config);
    publisher.publish(2);
    publisher.publish(3);
    alone.status(&publisher.status());
    publisher.publish(1);
    // Now 2 counts as sent, and 3 is reported.
    alone.status(&publisher.status());
    alone.link_down(LinkDownReason::Closed);
    alone.later(1_000_000);
    let reported = [(1, 2, Some(5), LossCause::PublisherDead)];
    assert_eq!(alone.losses(), reported);
}
