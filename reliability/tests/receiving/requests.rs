//! When a receiver sends NACKs for its gaps, and how it handles the answers: the receiver alone, at
//! times chosen by the test.

use tickcast_reliability::control::{RefusalReason, Start, Status};
use tickcast_reliability::delivery::{Delivery, Event, LinkDownReason, LossCause};
use tickcast_reliability::receive::{PathHealth, ReceiverConfig, RepairRequests};
use tickcast_reliability::record::{MboMsg, RecordBatch, TradeMsg};
use tickcast_reliability::types::{Epoch, Nanos, RecordNumber, Sequence};

use crate::world::*;

/// The first retry interval without a measured RTT, in nanoseconds: four times 250 us, with a deviation of
/// up to a quarter.
const FIRST_WAIT: std::ops::RangeInclusive<u64> = 750_000..=1_250_000;

/// Returns a receiver that has received datagrams 1 and 3 of the three that `publisher` has sent.
fn missing_one(config: ReceiverConfig, lines: usize) -> (Publisher, Alone) {
    let mut publisher = Publisher::new(5, 1);
    let mut alone = Alone::welcomed(config, &publisher, Start::Live, lines);
    for n in 1..=3 {
        let bytes = publisher.publish(1);
        if n != 2 {
            alone.hear(A, &bytes);
        }
    }
    assert_eq!(alone.records, [1]);
    (publisher, alone)
}

#[test]
fn gap_is_nacked_exactly_when_its_reorder_grace_ends() {
    let config = ReceiverConfig {
        reorder_grace_us: 50,
        ..quiet()
    };
    for late_us in [0, 1] {
        let (_, mut alone) = missing_one(config, 1);
        assert!(alone.receiver.is_waiting());
        assert_eq!((alone.asks(), alone.due()), (vec![], Nanos::from_us(50)));
        alone.later(49);
        assert_eq!((alone.asks(), alone.due()), (vec![], Nanos::from_us(1)));
        alone.later(1 + late_us);
        assert_eq!(alone.asks(), [run(2, 2)]);
        assert!(FIRST_WAIT.contains(&alone.due().0), "{}", alone.due());
        assert_eq!(alone.counters().nacked_sequences.get(), 1);
    }
}

#[test]
fn unanswered_nack_backs_off_then_path_is_exhausted() {
    let config = ReceiverConfig {
        nack_attempts: 4,
        ..quiet()
    };
    let (_, mut alone) = missing_one(config, 1);
    for attempts in 0..4 {
        assert_eq!(alone.asks(), [run(2, 2)]);
        assert_eq!(alone.asks(), [], "once");
        let wait = alone.due();
        assert!(
            FIRST_WAIT.contains(&(wait.0 >> attempts)),
            "{attempts}: {wait}"
        );
        alone.at(Nanos(alone.now.after(wait).0 - 1));
        assert_eq!(alone.asks(), []);
        alone.at(alone.now.after(Nanos(1)));
    }
    let mut asks = RepairRequests::default();
    let health = alone.receiver.due_requests(alone.now, &mut asks);
    assert_eq!((health, asks.repair.len()), (PathHealth::Exhausted, 0));
    assert_eq!(alone.counters().nacked_sequences.get(), 4);
    // The connection is rebuilt: every gap is requested as if for the first time.
    let publisher = Publisher::new(5, 4);
    let offer = publisher.welcome(1).channels.remove(0);
    alone.link_down(LinkDownReason::Unanswered);
    assert_eq!(alone.asks(), []);
    alone.input(|r, now, mut on| {
        r.handle_welcome(now, &offer, Start::Live, &mut on);
    });
    assert_eq!(alone.asks(), [run(2, 2)]);
}

#[test]
fn down_link_or_no_repair_sends_and_awaits_nothing() {
    let (mut publisher, mut alone) = missing_one(quiet(), 1);
    alone.link_down(LinkDownReason::Closed);
    assert_eq!(alone.asks(), []);
    assert!(alone.due() > Nanos::from_secs(40), "nor is progress told");
    assert!(alone.receiver.take_progress(Nanos::MAX).is_none());
    let off = ReceiverConfig {
        repair: false,
        ..quiet()
    };
    let mut alone = Alone::welcomed(off, &publisher, Start::Live, 1);
    publisher.publish(1);
    alone.hear(A, &publisher.publish(1));
    assert_eq!(alone.asks(), []);
    assert_eq!(alone.due(), Nanos::from_ms(10), "a STATUS is wanted");
    alone.status(&publisher.status());
    assert_eq!(alone.due(), Nanos::from_ms(20), "when it is given up");
}

#[test]
fn gap_is_not_nacked_again_while_earlier_answers_arrive() {
    let mut publisher = Publisher::new(5, 1);
    let mut alone = Alone::welcomed(quiet(), &publisher, Start::Live, 1);
    let sent: Vec<_> = (0..6).map(|_| publisher.publish(1)).collect();
    alone.hear(A, &sent[0]);
    alone.hear(A, &sent[2]);
    alone.hear(A, &sent[5]);
    assert_eq!(alone.asks(), [run(2, 2), run(4, 5)]);
    alone.later(700);
    alone.answer(&sent[1]);
    let answered = alone.now;
    // An RTT of 700 us was measured, so retry intervals are much longer from here on.
    alone.at(answered.after(Nanos::from_us(600)));
    assert_eq!(alone.asks(), [], "the answers before it still come");
    let turn = alone.receiver.poll_timeout().since(answered);
    assert!((2_100_000..=3_500_000).contains(&turn.0), "{turn}");
    alone.at(alone.receiver.poll_timeout());
    assert_eq!(alone.asks(), [run(4, 5)], "nothing came for long");
}

#[test]
fn answer_beyond_or_before_gap_delays_nothing() {
    let mut publisher = Publisher::new(5, 1);
    let mut alone = Alone::welcomed(quiet(), &publisher, Start::Live, 1);
    let sent: Vec<_> = (0..9).map(|_| publisher.publish(1)).collect();
    alone.hear(A, &sent[0]);
    alone.hear(A, &sent[2]);
    alone.hear(A, &sent[4]);
    assert_eq!(alone.asks(), [run(2, 2), run(4, 4)]);
    let due = alone.receiver.poll_timeout();
    alone.later(700);
    alone.answer(&sent[3]);
    alone.at(due.after(Nanos::from_us(550)));
    assert_eq!(alone.asks(), [run(2, 2)], "its own answer was lost");
    alone.later(700);
    alone.answer(&sent[1]);
    alone.later(1);
    alone.hear(A, &sent[6]);
    alone.hear(A, &sent[8]);
    assert_eq!(alone.asks(), [run(6, 6), run(8, 8)]);
    let asked = alone.now;
    let due = alone.receiver.poll_timeout().since(asked);
    alone.at(asked.after(Nanos(due.0 * 2)));
    assert_eq!(
        alone.asks(),
        [run(6, 6), run(8, 8)],
        "the last answer was to an earlier question"
    );
}

#[test]
fn new_or_just_nacked_gap_is_not_delayed_by_other_answers() {
    let config = ReceiverConfig {
        reorder_grace_us: 50,
        ..quiet()
    };
    let (mut publisher, mut alone) = missing_one(config, 1);
    alone.later(50);
    assert_eq!(alone.asks(), [run(2, 2)]);
    publisher.publish(1);
    alone.hear(A, &publisher.publish(1));
    alone.later(10);
    alone.answer(&publisher.sent[&2]);
    alone.later(40);
    assert_eq!(alone.asks(), [run(4, 4)], "the other's answer is not its");
    // Many times, a gap is requested at the very moment at which the one before is answered.
    let (mut publisher, mut alone) = missing_one(quiet(), 1);
    assert_eq!(alone.asks(), [run(2, 2)]);
    for missing in (4..40).step_by(2) {
        alone.later(700);
        publisher.publish(1);
        alone.hear(A, &publisher.publish(1));
        alone.answer(&publisher.sent[&(missing - 2)]);
        assert_eq!(alone.asks(), [run(missing, missing)]);
        alone.at(alone.receiver.poll_timeout());
        assert_eq!(alone.asks(), [run(missing, missing)]);
    }
}

#[test]
fn repair_message_proves_publisher_alive() {
    let config = ReceiverConfig {
        stale_us: 30_000,
        dead_us: 1_000_000,
        ..quiet()
    };
    let publisher = Publisher::new(5, 1);
    let mut alone = Alone::welcomed(config, &publisher, Start::Live, 1);
    alone.later(900_000);
    alone.receiver.heard_repair(alone.now);
    alone.later(999_999);
    assert!(!alone.receiver.take_link_silent());
    alone.later(1);
    assert!(alone.receiver.take_link_silent(), "it is built anew first");
    assert!(!alone.receiver.take_link_silent(), "told once");
    assert!(!alone.events.contains(&Event::PublisherDead));
    alone.link_down(LinkDownReason::Unanswered);
    alone.later(999_999);
    assert!(!alone.events.contains(&Event::PublisherDead));
    assert_eq!(alone.due(), Nanos::from_us(1));
    alone.later(1);
    assert!(alone.events.contains(&Event::PublisherDead));
    assert_eq!(
        alone.due(),
        Nanos::MAX.since(alone.now),
        "nothing is left to do"
    );
    assert!(alone.receiver.stream_state().publisher_dead);
    alone.receiver.heard_repair(alone.now);
    assert!(!alone.receiver.stream_state().publisher_dead);
}

#[test]
fn silence_after_end_emits_no_event_and_no_request() {
    let config = ReceiverConfig {
        stale_us: 30_000,
        dead_us: 1_000_000,
        ..quiet()
    };
    let mut publisher = Publisher::new(5, 1);
    let mut alone = Alone::welcomed(config, &publisher, Start::Live, 1);
    let end = publisher.end();
    alone.hear(A, &end);
    alone.status(&publisher.status());
    assert!(alone.receiver.ended());
    // Another copy of the same END is not a foreign datagram.
    alone.hear(B, &end);
    alone.hear(A, &publisher.heartbeat());
    let c = alone.counters();
    assert_eq!((c.duplicates.get(), c.heartbeats.get()), (1, 1));
    assert_eq!(c.sequence_jump_dropped.get(), 0);
    assert!(alone.receiver.take_progress(alone.now).is_some());
    alone.events.clear();
    alone.later(40_000);
    assert_eq!(
        alone.due(),
        Nanos::from_ms(960),
        "no one to follow or rejoin"
    );
    alone.later(2_000_000);
    assert!(!alone.receiver.take_rejoin() && !alone.receiver.take_link_silent());
    alone.hear(A, &publisher.heartbeat());
    alone.later(7_960_000);
    assert!(alone.receiver.take_progress(alone.now).is_some());
    alone.link_down(LinkDownReason::Closed);
    alone.later(3_000_000);
    assert_eq!(alone.events, []);
    assert_eq!(alone.counters().repair_links_down.get(), 1);
    // The renewed connection is not reported either, and no silence of the next epoch is known yet.
    let welcome = |alone: &mut Alone, publisher: &Publisher| {
        alone.welcome(&publisher.welcome(1), Start::Live);
    };
    welcome(&mut alone, &publisher);
    assert_eq!(alone.events, []);
    let mut next = Publisher::new(6, 1);
    welcome(&mut alone, &next);
    alone.hear(A, &next.publish(1));
    let reported = |event: &Event| alone.events.contains(event);
    assert!(
        reported(&Event::Live) && !reported(&Event::Recovered) && !reported(&Event::RepairLinkUp)
    );
}

#[test]
fn gap_waits_for_other_line_at_most_line_skew() {
    let config = ReceiverConfig {
        line_skew_us: 500,
        ..quiet()
    };
    let (_, mut alone) = missing_one(config, 2);
    assert_eq!((alone.asks(), alone.due()), (vec![], Nanos::from_us(500)));
    alone.later(499);
    assert_eq!(alone.asks(), []);
    alone.later(1);
    assert_eq!(alone.asks(), [run(2, 2)]);
    let again = alone.due();
    assert!(FIRST_WAIT.contains(&again.0), "{again}");
    // The other line passes the gap without a copy: send the NACK at once.
    let (publisher, mut alone) = missing_one(config, 2);
    alone.hear(B, &publisher.sent[&1]);
    assert_eq!(alone.asks(), []);
    alone.hear(B, &publisher.sent[&3]);
    assert_eq!((alone.due(), alone.asks()), (Nanos::ZERO, vec![run(2, 2)]));
    // No line brings datagrams sent before the join.
    let mut alone = Alone::welcomed(config, &publisher, Start::Oldest, 2);
    let mut asks = RepairRequests::default();
    alone.receiver.due_requests(alone.now, &mut asks);
    assert!(asks.replay_wanted);
    // With one line there is no other line to wait for.
    let (_, mut alone) = missing_one(config, 1);
    assert_eq!(alone.asks(), [run(2, 2)]);
}

#[test]
fn temporary_refusal_is_waited_out_without_using_a_try() {
    let config = ReceiverConfig {
        nack_attempts: 1,
        ..quiet()
    };
    for reason in [
        RefusalReason::Budget,
        RefusalReason::Ahead,
        RefusalReason::Epoch,
    ] {
        let (publisher, mut alone) = missing_one(config, 1);
        // Sequences refused as ahead of the stream are requested less often.
        let then = if reason == RefusalReason::Ahead {
            100_000
        } else {
            50
        };
        for (retry_after_us, wait_us) in [(100_000, 100_000), (u32::MAX, 1_000_000), (0, then)] {
            assert_eq!(alone.asks(), [run(2, 2)]);
            alone.refuse(&publisher, (2, 2), reason, retry_after_us);
            assert_eq!(alone.due(), Nanos::from_us(wait_us), "{reason:?}");
            alone.later(wait_us - 1);
            assert_eq!(alone.asks(), []);
            alone.later(1);
        }
        assert_eq!(alone.counters().refusals_received.get(), 3);
        assert!(alone.losses().is_empty());
    }
}

/// Returns the time from the first NACK of a new gap to its retry.
fn first_retry(publisher: &mut Publisher, alone: &mut Alone) -> Nanos {
    publisher.publish(1);
    let last = publisher.publish(1);
    alone.hear(A, &last);
    assert_eq!(alone.asks().len(), 1);
    alone.due()
}

#[test]
fn rtt_counts_only_single_requests() {
    for again in [false, true] {
        let (mut publisher, mut alone) = missing_one(quiet(), 1);
        let copy = publisher.sent[&2].clone();
        assert_eq!(alone.asks().len(), 1);
        alone.at(alone.receiver.poll_timeout());
        assert_eq!(alone.asks().len(), 1, "unanswered");
        alone.later(1);
        alone.refuse(&publisher, (2, 2), RefusalReason::Budget, 100);
        if again {
            alone.later(100);
            assert_eq!(alone.asks().len(), 1);
        }
        alone.later(10);
        alone.answer(&copy);
        assert_eq!(alone.records, [1, 2, 3]);
        let wait = first_retry(&mut publisher, &mut alone);
        // Four times 10 us, but at least 50, with a deviation of up to a quarter; or no measured RTT.
        let measured = 37_000..=63_000;
        assert_eq!(measured.contains(&wait.0), again, "{wait}");
        assert_eq!(FIRST_WAIT.contains(&wait.0), !again, "{wait}");
    }
}

#[test]
fn permanent_refusal_loses_only_the_refused_range() {
    for (reason, cause) in [
        (RefusalReason::TooSlow, LossCause::Burst),
        (RefusalReason::Malformed, LossCause::Refused),
    ] {
        let mut publisher = Publisher::new(5, 1);
        let mut alone = Alone::welcomed(quiet(), &publisher, Start::Live, 1);
        let sent: Vec<_> = (0..6).map(|_| publisher.publish(2)).collect();
        alone.hear(A, &sent[0]);
        alone.hear(A, &sent[5]);
        assert_eq!(alone.asks(), [run(2, 5)]);
        alone.refuse(&publisher, (3, 4), reason, 0);
        alone.answer(&sent[1]);
        alone.answer(&sent[4]);
        assert_eq!(alone.losses(), [(3, 4, Some(4), cause)]);
        assert_eq!(alone.records, [1, 2, 3, 4, 9, 10, 11, 12]);
        assert!(!alone.receiver.is_waiting());
    }
}

#[test]
fn ring_loss_is_final_and_other_refusals_retry() {
    let mut publisher = Publisher::new(5, 1);
    let mut alone = Alone::welcomed(quiet(), &publisher, Start::Live, 1);
    let sent: Vec<_> = (0..9).map(|_| publisher.publish(2)).collect();
    alone.hear(A, &sent[0]);
    alone.hear(A, &sent[8]);
    assert_eq!(alone.asks(), [run(2, 8)]);
    publisher.oldest = 4;
    alone.refuse(&publisher, (2, 5), RefusalReason::Window, 0);
    assert_eq!(alone.losses(), [(2, 3, Some(4), LossCause::Window)]);
    assert!(FIRST_WAIT.contains(&alone.due().0), "{}", alone.due());
    let later = alone.due();
    alone.at(alone.now.after(Nanos(later.0 * 2)));
    assert_eq!(alone.asks(), [run(4, 5), run(6, 8)]);
}

#[test]
fn refusal_from_other_epoch_only_asks_for_status() {
    let (_, mut alone) = missing_one(quiet(), 1);
    alone.asks();
    let mut other = Publisher::new(6, 1);
    other.publish(1);
    for reason in [RefusalReason::Malformed, RefusalReason::Window] {
        alone.refuse(&other, (2, 2), reason, 0);
    }
    assert!(alone.losses().is_empty() && alone.receiver.is_waiting());
    alone.later(999);
    assert!(alone.receiver.take_progress(alone.now).is_none());
    alone.later(1);
    assert!(alone.receiver.take_progress(alone.now).is_some());
}

#[test]
fn rtt_is_measured_only_from_the_answer_to_a_first_nack() {
    // (how the missing datagram arrives, whether its delay counts as an RTT)
    type Arrival = fn(&mut Alone, &[u8]);
    let cases: [(Arrival, bool); 3] = [
        (|alone, bytes| alone.answer(bytes), true),
        (|alone, bytes| alone.hear(A, &again(bytes)), true),
        (|alone, bytes| alone.hear(A, bytes), false),
    ];
    for (arrival, measured) in cases {
        let (mut publisher, mut alone) = missing_one(quiet(), 1);
        assert_eq!(alone.asks(), [run(2, 2)]);
        alone.later(25);
        arrival(&mut alone, &publisher.sent[&2]);
        publisher.publish(1);
        alone.hear(A, &publisher.publish(1));
        assert_eq!(alone.asks(), [run(4, 4)]);
        let wait = alone.due().0;
        assert_eq!((75_000..=125_000).contains(&wait), measured, "{wait}");
    }
    // The answer to a second NACK may be the answer to the first.
    let (mut publisher, mut alone) = missing_one(quiet(), 1);
    alone.asks();
    alone.at(alone.receiver.poll_timeout());
    assert_eq!(alone.asks(), [run(2, 2)]);
    alone.later(25);
    alone.answer(&publisher.sent[&2]);
    publisher.publish(1);
    alone.hear(A, &publisher.publish(1));
    alone.asks();
    assert!(FIRST_WAIT.contains(&alone.due().0), "{}", alone.due());
}

#[test]
fn fencing_violation_is_nacked_immediately_and_once() {
    let mut publisher = Publisher::new(5, 1);
    let mut alone = Alone::welcomed(quiet(), &publisher, Start::Live, 1);
    let mut impostor = Publisher::new(5, 1);
    alone.hear(A, &impostor.publish(2));
    let right = publisher.publish(1);
    alone.hear(A, &right);
    alone.hear(A, &right);
    assert!(alone.receiver.is_waiting());
    assert_eq!(alone.receiver.poll_timeout(), Nanos::ZERO);
    assert_eq!(alone.asks(), [run(1, 1)]);
    assert_eq!(alone.asks(), []);
    assert!(alone.due() > Nanos::ZERO);
    alone.answer(&right);
    assert!(!alone.receiver.is_waiting() && alone.due() > Nanos::from_secs(1));
    assert_eq!(alone.counters().nacked_sequences.get(), 1);
}

#[test]
fn fencing_violations_are_nacked_in_few_ranges() {
    let mut publisher = Publisher::new(5, 1);
    let mut alone = Alone::welcomed(quiet(), &publisher, Start::Live, 1);
    for n in 1..=100 {
        let right = publisher.publish(1);
        let wrong = forged(&right);
        if n != 50 {
            alone.hear(A, &wrong);
        }
        alone.hear(A, &right);
    }
    assert_eq!(alone.counters().fencing_violations.get(), 99);
    assert_eq!(alone.asks(), [run(1, 49), run(51, 100)]);
    for n in 1..=100 {
        alone.answer(&publisher.sent[&n]);
    }
    assert_eq!(alone.counters().lost_records.get(), 99);
    // The sequence is decided: further forged copies trigger no NACK.
    alone.hear(A, &forged(&publisher.sent[&7]));
    assert_eq!(alone.asks(), []);
}

#[test]
fn contested_sequence_is_requeried_after_refusal() {
    let mut publisher = Publisher::new(5, 1);
    let mut alone = Alone::welcomed(quiet(), &publisher, Start::Live, 1);
    for _ in 0..3 {
        let right = publisher.publish(1);
        alone.hear(A, &forged(&right));
        alone.hear(A, &right);
    }
    assert_eq!(alone.asks(), [run(1, 3)]);
    alone.answer(&publisher.sent[&1]);
    alone.refuse(&publisher, (2, 3), RefusalReason::Budget, 5_000);
    assert_eq!(alone.asks(), []);
    assert_eq!(alone.due(), Nanos::from_us(5_000));
    alone.later(5_000);
    assert_eq!(alone.asks(), [run(2, 3)]);
    // A refusal of other sequences delays nothing.
    let right = publisher.publish(1);
    alone.hear(A, &forged(&right));
    alone.hear(A, &right);
    alone.refuse(&publisher, (5, 9), RefusalReason::Budget, 5_000);
    assert_eq!(alone.asks(), [run(4, 4)]);
    alone.answer(&publisher.sent[&2]);
    alone.answer(&publisher.sent[&4]);
    alone.link_down(LinkDownReason::Closed);
    let right = publisher.publish(1);
    alone.hear(A, &forged(&right));
    alone.hear(A, &right);
    assert_eq!(alone.asks(), [], "nobody can be asked");
    let offer = publisher.welcome(1).channels.remove(0);
    let welcome = |alone: &mut Alone| {
        alone.input(|r, now, mut on| {
            r.handle_welcome(now, &offer, Start::Live, &mut on);
        });
    };
    welcome(&mut alone);
    assert_eq!(alone.asks(), [run(3, 3), run(5, 5)]);
    for n in [1, 3, 5] {
        alone.answer(&publisher.sent[&n]);
    }
    assert_eq!(alone.counters().lost_records.get(), 5);
    welcome(&mut alone);
    assert_eq!(alone.asks(), [], "all is decided");
}

#[test]
fn publishers_word_counts_twice_or_with_multicast() {
    let mut publisher = Publisher::new(5, 1);
    let mut alone = Alone::welcomed(quiet(), &publisher, Start::Live, 1);
    alone.hear(A, &publisher.publish(1));
    let _lost = [publisher.publish(1), publisher.publish(1)];
    alone.status(&publisher.status());
    assert_eq!(alone.asks(), [], "it may still lie in our socket");
    let _later = publisher.publish(1);
    alone.status(&publisher.status());
    assert_eq!(alone.asks(), [run(2, 3)], "what it had told before");
    // A datagram far ahead is confirmed by the first STATUS.
    let mut alone = Alone::welcomed(quiet(), &publisher, Start::Live, 1);
    publisher.publish(1);
    alone.hear(A, &Publisher::new(5, 5_000).publish(1));
    alone.status(&publisher.status());
    assert_eq!(alone.asks(), [run(5, 5)]);
    // A STATUS of another epoch is ignored.
    let mut other = Publisher::new(6, 1);
    (0..20).for_each(|_| drop(other.publish(1)));
    alone.status(&other.status());
    alone.status(&other.status());
    assert_eq!(alone.receiver.progress().1, Sequence(5));
}

#[test]
fn silence_is_reported_and_one_status_then_confirms_loss() {
    let config = ReceiverConfig {
        stale_us: 30_000,
        follow_us: 1_000,
        ..quiet()
    };
    let mut publisher = Publisher::new(5, 1);
    let mut alone = Alone::welcomed(config, &publisher, Start::Live, 1);
    alone.hear(A, &publisher.publish(1));
    assert_eq!(alone.due(), Nanos::from_ms(30));
    alone.later(29_999);
    assert!(!alone.events.contains(&Event::Stale));
    alone.later(1);
    assert!(alone.events.contains(&Event::Stale));
    assert!(alone.receiver.take_progress(alone.now).is_some(), "at once");
    alone.later(999);
    assert!(alone.receiver.take_progress(alone.now).is_none());
    alone.later(1);
    assert!(alone.receiver.take_progress(alone.now).is_some());
    alone.status(&publisher.status());
    assert!(
        !alone.events.contains(&Event::MulticastLost),
        "it is silent"
    );
    let _lost = publisher.publish(1);
    alone.status(&publisher.status());
    assert!(alone.events.contains(&Event::MulticastLost));
    assert_eq!(alone.asks(), [run(2, 2)]);
    assert_eq!(alone.counters().multicast_lost.get(), 1);
    assert!(alone.receiver.take_rejoin());
    assert!(!alone.receiver.take_rejoin(), "told once");
    alone.later(199_999);
    assert!(!alone.receiver.take_rejoin());
    alone.later(1);
    assert!(alone.receiver.take_rejoin(), "every 200 ms");
}

#[test]
fn unanswered_status_requests_fall_back_to_progress_us() {
    let config = ReceiverConfig {
        stale_us: 30_000,
        follow_us: 1_000,
        progress_us: 100_000,
        ..quiet()
    };
    let publisher = Publisher::new(5, 1);
    let mut alone = Alone::welcomed(config, &publisher, Start::Live, 1);
    alone.later(30_000);
    // Returns when it asked, in milliseconds from now on.
    let asks = |alone: &mut Alone, ms: u64| {
        let asked = (0..ms).filter_map(|ms| {
            alone.later(1_000);
            let progress = alone.receiver.take_progress(alone.now)?;
            Some((ms + 1, progress.sent_at))
        });
        asked.collect::<Vec<_>>()
    };
    let asked = asks(&mut alone, 350);
    let at = asked.iter().map(|it| it.0).collect::<Vec<_>>();
    assert_eq!(at, [1, 2, 3, 103, 203, 303], "one waited before");
    let answer = |alone: &mut Alone, echo| {
        let status = Status {
            echo,
            ..publisher.status()
        };
        alone.status(&status);
    };
    // Answers to old requests allow one more request. An answer to the last one settles all of them.
    for (_, sent_at) in &asked[..4] {
        answer(&mut alone, *sent_at);
    }
    assert_eq!(asks(&mut alone, 50).len(), 1);
    let last = asks(&mut alone, 100).last().unwrap().1;
    answer(&mut alone, last);
    assert_eq!(asks(&mut alone, 50).len(), 4);
}

#[test]
fn denied_sequences_are_requested_ever_less() {
    let mut publisher = Publisher::new(5, 1);
    let mut alone = Alone::welcomed(quiet(), &publisher, Start::Live, 1);
    alone.hear(A, &publisher.publish(1));
    // A forged heartbeat, within the ring.
    (0..20).for_each(|_| drop(publisher.publish(1)));
    alone.hear(A, &publisher.heartbeat());
    let asked = |alone: &mut Alone, publisher: &Publisher, ms: u64| {
        let mut questions = 0;
        for _ in 0..ms * 10 {
            alone.later(100);
            for range in alone.asks() {
                questions += 1;
                let of = (range.first.0, range.last.0);
                alone.refuse(publisher, of, RefusalReason::Ahead, 100);
            }
        }
        questions
    };
    let first = asked(&mut alone, &publisher, 1_000);
    assert!((10..40).contains(&first), "{first} questions");
    // Every 100 ms at most.
    assert_eq!(asked(&mut alone, &publisher, 1_000), 10);
    // The publisher has sent that much. Newly denied sequences are requested as often as at first.
    alone.status(&publisher.status());
    (0..20).for_each(|_| drop(publisher.publish(1)));
    alone.hear(A, &publisher.heartbeat());
    let again = asked(&mut alone, &publisher, 1_000);
    assert!((10..60).contains(&again), "{again} questions");
}

#[test]
fn silence_rejoins_groups_while_publisher_answers() {
    let config = ReceiverConfig {
        stale_us: 30_000,
        follow_us: 10_000_000,
        ..quiet()
    };
    let publisher = Publisher::new(5, 1);
    let mut alone = Alone::welcomed(config, &publisher, Start::Live, 1);
    alone.later(30_000);
    assert!(alone.receiver.take_progress(alone.now).is_some());
    assert_eq!(alone.due(), Nanos::from_ms(200));
    alone.later(200_000);
    assert!(alone.receiver.take_rejoin());
    assert_eq!(alone.due(), Nanos::from_ms(200));
    alone.link_down(LinkDownReason::Closed);
    alone.later(200_000);
    assert!(!alone.receiver.take_rejoin(), "it may be gone");
    assert!(alone.due() > Nanos::from_secs(1));
}

#[test]
fn progress_reports_sequence_heard_and_lost_records() {
    let (mut publisher, mut alone) = missing_one(quiet(), 1);
    alone.later(9_999_999);
    assert!(alone.receiver.take_progress(alone.now).is_none());
    alone.later(1);
    let progress = alone.receiver.take_progress(alone.now).unwrap();
    assert_eq!(
        (progress.epoch, progress.sequence, progress.heard),
        (Epoch(5), Sequence(1), Sequence(3))
    );
    assert_eq!((progress.lost_records, progress.sent_at), (0, alone.now));
    publisher.oldest = 3;
    alone.asks();
    alone.refuse(&publisher, (2, 2), RefusalReason::Window, 0);
    assert_eq!(alone.due(), Nanos::from_secs(10));
    alone.later(10_000_000);
    let progress = alone.receiver.take_progress(alone.now).unwrap();
    assert_eq!((progress.sequence, progress.lost_records), (Sequence(3), 1));
}

#[test]
fn unknown_epoch_hastens_request_within_its_pace() {
    let mut publisher = Publisher::new(5, 1);
    let mut alone = Alone::welcomed(quiet(), &publisher, Start::Live, 1);
    alone.hear(A, &publisher.publish(1));
    alone.later(400);
    alone.hear(A, &Publisher::new(6, 1).publish(1));
    assert_eq!(
        alone.due(),
        Nanos::from_us(600),
        "a millisecond after the last"
    );
    alone.later(600);
    assert!(alone.receiver.take_progress(alone.now).is_some());
    alone.later(5_000);
    alone.hear(A, &Publisher::new(4, 1).publish(1));
    assert!(
        alone.due() > Nanos::from_secs(1),
        "an old one is no question"
    );
    alone.hear(A, &Publisher::new(6, 1).publish(1));
    assert_eq!(alone.due(), Nanos::ZERO);
    let c = alone.counters();
    assert_eq!(
        (c.unknown_epoch_dropped.get(), c.old_epoch_dropped.get()),
        (2, 1)
    );
}

#[test]
fn sequence_jump_is_contested_beyond_ring_or_burst() {
    let within = Delivery::OrderedWithin(Nanos::from_ms(5));
    // Half a ring beyond the newest sequence of WELCOME, which is 0.
    for (delivery, jump_max) in [(Delivery::Ordered, 511), (within, 100)] {
        let config = ReceiverConfig {
            delivery,
            ..quiet()
        };
        for (sequence, doubted) in [(jump_max + 1, 0), (jump_max + 2, 1)] {
            let publisher = Publisher::new(5, 1);
            let mut alone = Alone::welcomed(config, &publisher, Start::Live, 1);
            alone.hear(A, &Publisher::new(5, sequence).publish(1));
            assert_eq!(alone.counters().sequence_jump_dropped.get(), doubted);
        }
    }
}

#[test]
fn datagram_beyond_confirmed_end_leaves_no_gap() {
    let mut publisher = Publisher::new(5, 1);
    let mut twin = Publisher::new(5, 1);
    let mut alone = Alone::welcomed(quiet(), &publisher, Start::Live, 1);
    alone.hear(A, &publisher.publish(1));
    twin.publish(1);
    let end = publisher.end();
    // The twin continues: its 3 does not arrive, its 4 does.
    for _ in 2..=3 {
        twin.publish(1);
    }
    alone.hear(A, &end);
    alone.hear(A, &twin.publish(1));
    assert!(alone.receiver.is_waiting());
    alone.status(&publisher.status());
    assert_eq!(alone.asks(), [run(1, 2)], "the twin may have sent them");
    alone.answer(&publisher.sent[&1]);
    assert!(!alone.receiver.ended(), "2 may be the twin's");
    alone.answer(&publisher.sent[&2]);
    assert!(alone.receiver.ended());
    assert!(!alone.receiver.is_waiting());
    assert_eq!(alone.receiver.progress(), (Sequence(2), Sequence(2)));
    assert_eq!((alone.records.len(), alone.losses().len()), (1, 0));
    let counted = |alone: &Alone| {
        let c = alone.counters();
        (
            c.missing_datagrams.get(),
            c.missing_superseded.get(),
            c.missing_open.get(),
        )
    };
    assert_eq!(counted(&alone), (1, 1, 0));
    // The twin's later datagrams and claims are ignored as well.
    twin.publish(1);
    alone.hear(A, &twin.publish(1));
    alone.hear(A, &twin.heartbeat());
    alone.status(&twin.status());
    alone.status(&twin.status());
    alone.later(1_000_000);
    assert!(!alone.receiver.is_waiting(), "{:?}", alone.events);
    assert_eq!((counted(&alone), alone.receiver.lag()), ((1, 1, 0), 0));
    assert_eq!(alone.counters().sequence_jump_dropped.get(), 2);
    assert_eq!(alone.events.last(), Some(&Event::EndOfSession));
}

#[test]
fn end_of_stream_needs_publisher_confirmation() {
    let mut publisher = Publisher::new(5, 1);
    let mut alone = Alone::welcomed(quiet(), &publisher, Start::Live, 1);
    alone.hear(A, &publisher.publish(1));
    let end = publisher.end();
    alone.later(10_000);
    alone.hear(A, &end);
    assert!(!alone.receiver.ended());
    assert_eq!(alone.due(), Nanos::ZERO, "it asks");
    let mut status = publisher.status();
    status.ended = false;
    alone.status(&status);
    assert!(!alone.receiver.ended());
    alone.status(&publisher.status());
    assert!(alone.receiver.ended() && alone.events.contains(&Event::EndOfSession));
    assert!(alone.receiver.take_progress(alone.now).is_some());
    assert_eq!(alone.receiver.progress(), (Sequence(2), Sequence(2)));
    assert_eq!(alone.counters().delivered_datagrams.get(), 2);
    // A copy of END over the repair path confirms the end too.
    let mut publisher = Publisher::new(5, 1);
    let mut alone = Alone::welcomed(quiet(), &publisher, Start::Live, 1);
    let end = publisher.end();
    alone.hear(A, &publisher.heartbeat());
    alone.asks();
    alone.answer(&end);
    assert!(alone.receiver.ended());
}

#[test]
fn unreadable_or_oversized_datagram_is_declared_lost() {
    let mut publisher = Publisher::new(5, 1);
    let mut alone = Alone::welcomed(quiet(), &publisher, Start::Live, 1);
    let header = publisher.header(tickcast_reliability::wire::Kind::Data, 3, 8);
    let unreadable = Publisher::seal(&header, &[0xee; 8]);
    // Anybody may have multicast it, so the copy from the ring decides.
    let take = |alone: &mut Alone, bytes: &[u8], next: &[u8]| {
        alone.hear(A, bytes);
        alone.hear(A, next);
        assert_eq!(alone.asks().len(), 1);
        alone.answer(bytes);
    };
    let bytes = publisher.took(unreadable, 3);
    take(&mut alone, &bytes, &publisher.publish(1));
    assert_eq!(alone.losses(), [(1, 1, Some(3), LossCause::Unreadable)]);
    assert_eq!(alone.records, [4]);
    let c = alone.counters();
    assert_eq!(
        (c.malformed_dropped.get(), c.delivered_datagrams.get()),
        (2, 1)
    );
    // A datagram longer than the slots announced in WELCOME.
    let header = publisher.header(tickcast_reliability::wire::Kind::Data, 3, 1472 - 64 + 8);
    let long = Publisher::seal(&header, &[0; 1472 - 64 + 8]);
    let bytes = publisher.took(long, 3);
    take(&mut alone, &bytes, &publisher.publish(1));
    assert_eq!(alone.losses()[1], (3, 3, Some(3), LossCause::Unreadable));
    assert_eq!(alone.records, [4, 8]);
    // It is lost although its records are readable, because a copy from the ring would not fit either.
    let bytes = publisher.publish(26);
    assert!(bytes.len() > SLOT_LEN);
    take(&mut alone, &bytes, &publisher.publish(1));
    assert_eq!(alone.losses()[2], (5, 5, Some(26), LossCause::Unreadable));
    assert_eq!(alone.records, [4, 8, 35]);
    // A datagram that just fits is delivered.
    let mut batch = RecordBatch::default();
    (0..8).for_each(|_| batch.put(&MboMsg::default()));
    (0..20).for_each(|_| batch.put(&TradeMsg::default()));
    let header = publisher.header(tickcast_reliability::wire::Kind::Data, 28, 1472 - 64);
    let full = Publisher::seal(&header, batch.bytes());
    assert_eq!(full.len(), SLOT_LEN);
    let bytes = publisher.took(full, 28);
    alone.hear(A, &bytes);
    assert_eq!((alone.losses().len(), alone.records.len()), (3, 3 + 28));
}

#[test]
fn late_datagram_is_distinguished_from_duplicate() {
    let config = ReceiverConfig {
        window_slots: 16,
        ..quiet()
    };
    let mut publisher = Publisher::new(5, 1);
    let mut alone = Alone::welcomed(config, &publisher, Start::Live, 1);
    let sent: Vec<_> = (0..SLOTS * 2 + 4).map(|_| publisher.publish(1)).collect();
    alone.hear(A, &sent[0]);
    alone.hear(A, &sent[2]);
    publisher.oldest = 3;
    alone.asks();
    alone.refuse(&publisher, (2, 2), RefusalReason::Window, 0);
    for bytes in &sent[3..16] {
        alone.hear(A, bytes);
    }
    let counted = |alone: &Alone| {
        let c = alone.counters();
        (c.late_dropped.get(), c.duplicates.get())
    };
    alone.hear(A, &sent[2]);
    assert_eq!(counted(&alone), (0, 1));
    alone.hear(A, &sent[1]);
    assert_eq!(counted(&alone), (1, 1), "its loss was declared");
    for bytes in &sent[16..] {
        alone.hear(A, bytes);
        alone.status(&publisher.status());
    }
    alone.hear(A, &sent[1]);
    assert_eq!(counted(&alone), (1, 2), "too long ago to remember");
}

#[test]
fn heartbeat_of_unknown_state_is_counted_and_ignored() {
    let mut publisher = Publisher::new(5, 1);
    let mut alone = Alone::welcomed(quiet(), &publisher, Start::Live, 1);
    publisher.publish(1);
    let header = publisher.header(tickcast_reliability::wire::Kind::Heartbeat, 0, 24);
    alone.hear(A, &Publisher::seal(&header, &[9; 24]));
    let c = alone.counters();
    assert_eq!((c.malformed_dropped.get(), c.heartbeats.get()), (1, 0));
    assert_eq!(alone.asks(), []);
}

#[test]
fn loss_before_heartbeat_is_sized_by_its_record_number() {
    let mut publisher = Publisher::new(5, 1);
    let config = ReceiverConfig {
        delivery: Delivery::OrderedWithin(Nanos::from_ms(5)),
        ..quiet()
    };
    let mut alone = Alone::welcomed(config, &publisher, Start::Live, 1);
    alone.hear(A, &publisher.publish(1));
    let _lost = publisher.publish(7);
    alone.hear(A, &publisher.heartbeat());
    alone.asks();
    let mut status = publisher.status();
    status.next_record = RecordNumber(0);
    alone.status(&status);
    alone.later(4_999);
    assert!(alone.losses().is_empty());
    alone.later(1);
    assert_eq!(alone.losses(), [(2, 2, Some(7), LossCause::Deadline)]);
    assert_eq!(alone.counters().lost_records.get(), 7);
    alone.status(&status);
    assert_eq!(alone.counters().losses_of_unknown_size.get(), 0);
}

#[test]
fn laggard_lags_by_all_known_sent() {
    let (mut publisher, mut alone) = missing_one(quiet(), 1);
    assert_eq!(alone.receiver.lag(), 2, "heard of, and not delivered");
    publisher.publish(1);
    alone.status(&publisher.status());
    assert_eq!(alone.receiver.lag(), 3, "told of");
    alone.answer(&publisher.sent[&2]);
    assert_eq!(alone.receiver.lag(), 1);
    let last = publisher.publish(1);
    alone.hear(A, &publisher.sent[&4].clone());
    alone.hear(A, &last);
    assert_eq!(alone.receiver.lag(), 0, "beyond what was told");
}

#[test]
fn refused_contested_range_keeps_other_queries() {
    let mut publisher = Publisher::new(5, 1);
    let mut alone = Alone::welcomed(quiet(), &publisher, Start::Live, 1);
    let mut impostor = Publisher::new(5, 1);
    for n in 1..=3 {
        alone.hear(A, &impostor.publish(2));
        alone.hear(A, &publisher.publish(1));
        if n == 2 {
            assert_eq!(alone.asks(), [run(1, 2)]);
        }
    }
    alone.refuse(&publisher, (1, 2), RefusalReason::Budget, 5_000);
    alone.later(5_000);
    assert_eq!(alone.asks(), [run(1, 3)]);
}

#[test]
fn contested_in_ended_epoch_is_queried_no_more() {
    let mut publisher = Publisher::new(5, 1);
    let mut alone = Alone::welcomed(quiet(), &publisher, Start::Live, 1);
    alone.hear(A, &Publisher::new(5, 1).publish(2));
    alone.hear(A, &publisher.publish(1));
    assert!(alone.receiver.is_waiting());
    alone.welcome(&Publisher::new(6, 1).welcome(1), Start::Live);
    assert!(!alone.receiver.is_waiting());
    assert_eq!(alone.asks(), []);
}

#[test]
fn gap_just_beyond_the_window_sets_no_timer() {
    let config = ReceiverConfig {
        window_slots: 16,
        ..quiet()
    };
    let mut publisher = Publisher::new(5, 1);
    let mut alone = Alone::welcomed(config, &publisher, Start::Live, 1);
    let sent: Vec<_> = (1..=18).map(|_| publisher.publish(1)).collect();
    // The window holds 1 to 16. Of these, only the first is missing; 17 is missing as well.
    sent[1..16].iter().for_each(|bytes| alone.hear(A, bytes));
    alone.hear(A, &sent[17]);
    assert_eq!(alone.asks(), [run(1, 1)]);
    assert!(FIRST_WAIT.contains(&alone.due().0), "{}", alone.due());
    alone.answer(&sent[0]);
    assert_eq!(
        (alone.due(), alone.asks()),
        (Nanos::ZERO, vec![run(17, 18)])
    );
}

#[test]
fn refusals_wait_covers_second_request_too() {
    let (publisher, mut alone) = missing_one(quiet(), 1);
    assert_eq!(alone.asks(), [run(2, 2)]);
    alone.at(alone.receiver.poll_timeout());
    assert_eq!(alone.asks(), [run(2, 2)]);
    alone.later(10);
    // The NACK is answered, and no other sequence on this step is outstanding.
    alone.refuse(&publisher, (2, 2), RefusalReason::Budget, 100);
    assert_eq!(alone.due(), Nanos::from_us(100));
    alone.later(100);
    assert_eq!(alone.asks(), [run(2, 2)]);
}
