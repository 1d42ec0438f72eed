//! How a subscriber's core handles every behaviour of a network and a publisher, in virtual time, against
//! a publisher made of a list of datagrams.

mod admission;
mod authentication;
mod cursor;
mod epochs;
mod fencing;
mod inbox;
mod join;
mod nack;
mod overrun;
mod rdma_read;
mod requests;
mod world;

use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tickcast_reliability::control::{Message, RefusalReason, Refused, Start};
use tickcast_reliability::delivery::{Delivery, Event, LinkDownReason, Loss, LossCause};
use tickcast_reliability::receive::ReceiverConfig;
use tickcast_reliability::session::{Action, Path, SubscriberInput};
use tickcast_reliability::types::{
    ConfigHash, Epoch, Nanos, RecordNumber, Sequence, SequenceRange,
};
use tickcast_reliability::wire::{
    Header, Heartbeat, Kind, PublisherState, RELAY_OFFSET, crc_of, relay_flags,
};

use world::*;

#[test]
fn forged_end_does_not_end_the_session() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = World::joined(immediate(), &publisher);
    world.hear(A, &publisher.publish(1));
    let mut forger = Publisher::new(5, 1);
    forger.publish(1);
    world.hear(A, &forger.end());
    world.pass(Nanos::from_ms(20), &publisher);
    assert!(!world.core.ended() && !world.saw(&Event::EndOfSession));
    // The real datagram has the same sequence: expect a violation and an exact loss.
    world.hear(A, &publisher.publish(2));
    world.settle(&publisher);
    assert_eq!(world.losses()[0].cause, LossCause::Fenced);
    assert_eq!(world.losses()[0].records, Some(2));
    world.hear(A, &publisher.publish(1));
    assert_eq!(world.records, [1, 4]);
    world.assert_balanced(&publisher, "");
}

#[test]
fn join_from_oldest_survives_moving_ring() {
    let mut publisher = Publisher::new(5, 1);
    for _ in 0..100 {
        publisher.publish(1);
    }
    publisher.oldest = 50;
    let mut world = World::new(immediate(), Start::Oldest, 1);
    world.answer = false;
    world.settle(&publisher);
    publisher.oldest = 70;
    world.answer = true;
    world.pass(Nanos::from_secs(1), &publisher);
    assert_eq!(world.records, numbers(70..=100));
    assert!(world.losses().is_empty());
    assert!(
        world.saw(&Event::Joined {
            after: Sequence(69)
        }),
        "it begins later, and says so"
    );
}

#[test]
fn heartbeat_alone_neither_ends_nor_holds_off() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = World::joined(immediate(), &publisher);
    world.hear(A, &publisher.publish(1));
    let mut forger = Publisher::new(5, 1);
    forger.publish(1);
    forger.ended = true;
    world.hear(A, &forger.heartbeat());
    world.pass(Nanos::from_ms(20), &publisher);
    assert!(!world.core.ended() && !world.saw(&Event::EndOfSession));
    world.hear(A, &publisher.publish(1));
    assert_eq!(world.records, [1, 2]);
}

#[test]
fn burst_is_abandoned_only_after_publisher_confirms() {
    let within = Delivery::OrderedWithin(Nanos::from_ms(2));
    let config = ReceiverConfig {
        delivery: within,
        ..immediate()
    };
    let mut publisher = Publisher::new(5, 1);
    let mut world = World::joined(config, &publisher);
    world.hear(A, &publisher.publish(1));
    world.hear(A, &Publisher::new(5, 500).publish(1));
    world.pass(Nanos::from_ms(5), &publisher);
    assert!(world.losses().is_empty(), "nobody sent it");
    for _ in 0..300 {
        publisher.publish(1);
    }
    world.hear(A, &publisher.publish(1));
    world.pass(Nanos::from_ms(5), &publisher);
    assert_eq!(world.losses()[0].cause, LossCause::Burst);
    world.assert_balanced(&publisher, "");
}

#[test]
fn in_order_datagrams_are_delivered_without_request() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = World::joined(immediate(), &publisher);
    assert_eq!(
        world.events[..2],
        [Event::Joined { after: Sequence(0) }, Event::Live]
    );
    for n in 1..=10u64 {
        let bytes = publisher.publish(2);
        world.hear(A, &bytes);
        assert_eq!(world.records.len() as u64, 2 * n);
    }
    world.settle(&publisher);
    assert!(world.nacks.is_empty());
    world.assert_balanced(&publisher, "");
}

#[test]
fn gaps_are_nacked_in_one_message_and_filled_in_order() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = World::joined(immediate(), &publisher);
    for n in 1..=20u64 {
        let bytes = publisher.publish(1);
        if n % 3 != 0 {
            world.hear(A, &bytes);
        }
    }
    assert_eq!(world.records, [1, 2]);
    world.settle(&publisher);
    assert_eq!(world.records, numbers(1..=20));
    assert_eq!(world.nacks.len(), 6);
    assert_eq!(
        world.counters().nacks_sent.get(),
        1,
        "all gaps of a poll in one message"
    );
    assert!(world.saw(&Event::GapRecovered {
        first: Sequence(3),
        sequences: 1,
        took: Nanos(0)
    }));
    world.assert_balanced(&publisher, "");
}

#[test]
fn lost_tail_is_found_by_heartbeat_and_end_repaired() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = World::joined(immediate(), &publisher);
    world.hear(A, &publisher.publish(1));
    let _lost = publisher.publish(3);
    world.hear(A, &publisher.heartbeat());
    world.settle(&publisher);
    assert_eq!(world.records, numbers(1..=4));
    let _lost = publisher.end();
    world.hear(A, &publisher.heartbeat());
    let told_before = world.progresses;
    world.settle(&publisher);
    assert!(world.saw(&Event::EndOfSession) && world.core.ended());
    assert!(
        world.progresses > told_before,
        "the publisher lingers until it knows"
    );
    world.pass(Nanos::from_ms(500), &publisher);
    assert!(
        !world.saw(&Event::Stale),
        "silence after the end is no fault"
    );
}

#[test]
fn early_or_late_heartbeat_creates_no_phantom_gap() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = World::joined(immediate(), &publisher);
    let early = publisher.heartbeat();
    let first = publisher.publish(1);
    world.hear(A, &first);
    world.hear(A, &early);
    world.hear(A, &publisher.heartbeat());
    world.settle(&publisher);
    assert_eq!(world.counters().missing_datagrams.get(), 0);
    assert_eq!(world.counters().heartbeats.get(), 2);
}

#[test]
fn useless_datagrams_are_counted_without_effect() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = World::joined(immediate(), &publisher);
    let first = publisher.publish(1);
    world.hear(A, &first);
    world.hear(A, &first);
    let mut corrupt = publisher.publish(1);
    corrupt[70] ^= 4;
    world.hear(A, &corrupt);
    world.hear(A, &corrupt[..80]);
    let mut other_channel = Publisher::new(5, 1);
    let mut bytes = other_channel.publish(1);
    bytes[4] = 99;
    let crc = crc_of(bytes[..64].try_into().unwrap(), &bytes[64..]);
    bytes[60..64].copy_from_slice(&crc.to_le_bytes());
    world.hear(A, &bytes);
    let c = world.counters();
    assert_eq!(c.duplicates.get(), 1);
    assert_eq!(c.corrupt_dropped.get(), 1);
    assert_eq!(c.malformed_dropped.get(), 1);
    assert_eq!(c.other_channel_dropped.get(), 1);
    assert_eq!(world.records, [1]);
    world.hear(A, &publisher.heartbeat());
    world.settle(&publisher);
    assert_eq!(world.records, [1, 2]);
}

#[test]
fn datagram_of_unconfirmed_epoch_or_jump_is_counted() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = World::joined(immediate(), &publisher);
    world.hear(A, &publisher.publish(1));
    world.hear(A, &Publisher::new(u64::MAX, 1).publish(1));
    world.hear(A, &Publisher::new(4, 1).publish(1));
    world.hear(A, &Publisher::new(5, 5_000).publish(1));
    world.hear(A, &Publisher::new(5, u64::MAX - 1).heartbeat());
    world.settle(&publisher);
    let c = world.counters();
    assert_eq!(c.unknown_epoch_dropped.get(), 1);
    assert_eq!(c.old_epoch_dropped.get(), 1);
    assert_eq!(c.sequence_jump_dropped.get(), 2);
    assert_eq!(c.missing_datagrams.get(), 0);
    world.hear(A, &publisher.publish(1));
    assert_eq!(world.records, [1, 2]);
}

/// Delivery could not move past the number, in either order.
#[test]
fn sequence_without_successor_is_dropped_on_every_path() {
    for delivery in [Delivery::default(), Delivery::Arrival] {
        for first in [1, u64::MAX - 1] {
            let config = ReceiverConfig {
                delivery,
                ..immediate()
            };
            let mut publisher = Publisher::new(5, first);
            let mut alone = Alone::welcomed(config, &publisher, Start::Live, 1);
            alone.hear(A, &publisher.publish(1));
            let beyond = Header {
                sequence: Sequence(u64::MAX),
                ..Publisher::new(5, 1).header(Kind::End, 0, 0)
            };
            let beyond = Publisher::seal(&beyond, &[]);
            alone.hear(A, &beyond);
            alone.answer(&beyond);
            let c = alone.counters();
            assert_eq!(c.sequence_jump_dropped.get(), 2, "{delivery:?} {first}");
            assert_eq!(c.delivered_datagrams.get(), 1, "{delivery:?} {first}");
        }
    }
}

#[test]
fn confirmed_sequence_jump_is_followed_by_replay() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = World::joined(immediate(), &publisher);
    world.hear(A, &publisher.publish(1));
    for _ in 0..3_000 {
        publisher.publish(1);
    }
    publisher.oldest = 2_200;
    world.hear(A, &publisher.publish(1));
    assert_eq!(world.counters().sequence_jump_dropped.get(), 1);
    world.pass(Nanos::from_ms(50), &publisher);
    let lost = SequenceRange::new(Sequence(2), Sequence(2_199)).unwrap();
    let expected = Loss {
        sequences: lost,
        records: Some(2_198),
        cause: LossCause::Window,
    };
    assert_eq!(world.losses(), [expected]);
    let mut delivered = vec![1];
    delivered.extend(2_200..=3_002);
    assert_eq!(world.records, delivered);
    world.assert_balanced(&publisher, "");
}

#[test]
fn overwritten_is_declared_lost_to_record_in_order() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = World::joined(immediate(), &publisher);
    world.hear(A, &publisher.publish(1));
    for _ in 0..10 {
        publisher.publish(3);
    }
    publisher.oldest = 6;
    world.hear(A, &publisher.publish(1));
    world.settle(&publisher);
    let sequences = SequenceRange::new(Sequence(2), Sequence(5)).unwrap();
    let loss = Loss {
        sequences,
        records: Some(12),
        cause: LossCause::Window,
    };
    assert_eq!(world.losses(), [loss]);
    assert_eq!(world.counters().lost_records.get(), 12);
    let mut expected = vec![1];
    expected.extend(14..=32);
    assert_eq!(world.records, expected);
    world.assert_balanced(&publisher, "");
}

#[test]
fn disabled_repair_declares_gaps_and_tail_lost() {
    let config = ReceiverConfig {
        repair: false,
        ..immediate()
    };
    let mut publisher = Publisher::new(5, 1);
    let mut world = World::joined(config, &publisher);
    for n in 1..=10u64 {
        let bytes = publisher.publish(2);
        if ![3, 4, 10].contains(&n) {
            world.hear(A, &bytes);
        }
    }
    world.hear(A, &publisher.heartbeat());
    world.pass(Nanos::from_ms(19), &publisher);
    assert!(world.losses().is_empty(), "it may still fill by itself");
    world.pass(Nanos::from_ms(2), &publisher);
    let losses: Vec<_> = world
        .losses()
        .iter()
        .map(|l| (l.sequences.to_string(), l.records, l.cause))
        .collect();
    let off = LossCause::RepairOff;
    assert_eq!(
        losses,
        [("3-4".into(), Some(4), off), ("10".into(), Some(2), off)]
    );
    assert!(world.nacks.is_empty());
    world.assert_balanced(&publisher, "");
}

#[test]
fn deadline_repairs_or_abandons_and_drops_late_copy() {
    let delivery = Delivery::OrderedWithin(Nanos::from_ms(2));
    let mut publisher = Publisher::new(5, 1);
    let mut world = World::joined(
        ReceiverConfig {
            delivery,
            ..immediate()
        },
        &publisher,
    );
    world.answer = false;
    let late = publisher.publish(1);
    world.hear(A, &publisher.publish(1));
    world.tell(Path::Repair, &Message::Status(publisher.status()));
    world.pass(Nanos::from_us(1_999), &publisher);
    assert!(world.records.is_empty() && !world.nacks.is_empty());
    world.pass(Nanos::from_us(2), &publisher);
    assert_eq!(world.records, [2]);
    assert_eq!(world.losses()[0].cause, LossCause::Deadline);
    world.hear(A, &late);
    assert_eq!(world.counters().late_dropped.get(), 1);
    assert_eq!(world.records, [2]);
    world.assert_balanced(&publisher, "");
}

#[test]
fn arrival_order_delivers_datagrams_once_without_waiting() {
    let config = ReceiverConfig {
        delivery: Delivery::Arrival,
        ..immediate()
    };
    let mut publisher = Publisher::new(5, 1);
    let mut world = World::new(config, Start::Live, 1);
    world.settle(&publisher);
    let sent: Vec<_> = (0..4).map(|_| publisher.publish(1)).collect();
    for n in [0, 2, 3, 2, 1, 3] {
        world.hear(A, &sent[n]);
    }
    assert_eq!(world.records, [1, 3, 4, 2]);
    assert_eq!(world.counters().duplicates.get(), 2);
    assert_eq!(
        world.core.receivers().next().unwrap().progress().0,
        Sequence(4)
    );
}

#[test]
fn second_line_fills_single_loss_and_common_loss_is_nacked() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = World::new(immediate(), Start::Live, 2);
    world.settle(&publisher);
    for n in 1..=30u64 {
        let bytes = publisher.publish(1);
        if n % 5 != 0 && n != 11 {
            world.hear(A, &bytes);
        }
        if n % 7 != 0 && n != 11 {
            world.hear(B, &bytes);
        }
        world.settle(&publisher);
    }
    world.hear(A, &publisher.heartbeat());
    world.hear(B, &publisher.heartbeat());
    world.settle(&publisher);
    assert_eq!(world.nacks, [SequenceRange::one(Sequence(11))]);
    assert_eq!(world.records, numbers(1..=30));
}

#[test]
fn cut_line_goes_down_without_nack_and_returns() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = World::new(immediate(), Start::Live, 2);
    world.settle(&publisher);
    for n in 1..=100u64 {
        let bytes = publisher.publish(1);
        world.hear(A, &bytes);
        if n > 60 {
            world.hear(B, &bytes);
        }
        world.pass(Nanos::from_ms(1), &publisher);
    }
    assert!(world.saw(&Event::LineDown(B)) && world.saw(&Event::LineUp(B)));
    assert!(world.nacks.is_empty());
    for _ in 0..50 {
        let bytes = publisher.publish(1);
        world.hear(B, &bytes);
        world.pass(Nanos::from_ms(1), &publisher);
    }
    assert!(world.saw(&Event::LineDown(A)) && world.nacks.is_empty());
    assert_eq!(world.records, numbers(1..=150));
}

#[test]
fn lost_multicast_is_reported_followed_and_rejoined() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = World::joined(immediate(), &publisher);
    world.hear(A, &publisher.publish(1));
    for _ in 0..60 {
        publisher.publish(1);
        world.pass(Nanos::from_ms(1), &publisher);
    }
    assert!(world.saw(&Event::Stale) && world.saw(&Event::MulticastLost));
    assert!(world.rejoins >= 1);
    assert_eq!(world.counters().multicast_lost.get(), 1);
    assert!(
        world.records.len() >= 58,
        "followed by unicast: {}",
        world.records.len()
    );
    world.hear(A, &publisher.publish(1));
    world.settle(&publisher);
    assert!(world.saw(&Event::MulticastRestored));
    assert_eq!(world.records, numbers(1..=62));
    world.assert_balanced(&publisher, "");
}

#[test]
fn clock_pauses_while_repair_link_is_down() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = World::joined(immediate(), &publisher);
    world.hear(A, &publisher.publish(1));
    publisher.publish(1);
    world.connectable = false;
    world.cut(LinkDownReason::Closed);
    for _ in 0..300 {
        world.hear(A, &publisher.publish(1));
        world.pass(Nanos::from_ms(10), &publisher);
    }
    assert_eq!(world.records, [1]);
    assert!(world.losses().is_empty());
    world.connectable = true;
    world.pass(Nanos::from_secs(3), &publisher);
    assert_eq!(world.records, numbers(1..=302));
    assert!(world.saw(&Event::RepairLinkDown(LinkDownReason::Closed)));
    assert!(world.saw(&Event::RepairLinkUp));
    assert_eq!(world.counters().repair_links_down.get(), 1);
    world.assert_balanced(&publisher, "");
}

#[test]
fn silent_publisher_is_dead_and_gaps_lost() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = World::joined(immediate(), &publisher);
    publisher.publish(1);
    world.connectable = false;
    world.cut(LinkDownReason::Closed);
    world.hear(A, &publisher.publish(2));
    world.pass(Nanos::from_secs(6), &publisher);
    assert!(world.saw(&Event::Stale) && world.saw(&Event::PublisherDead));
    assert_eq!(world.losses()[0].cause, LossCause::PublisherDead);
    assert_eq!(world.losses()[0].records, Some(1));
    assert_eq!(world.counters().missing_lost.get(), 1);
    assert_eq!(world.records, [2, 3]);
}

#[test]
fn unanswered_nack_retries_then_rebuilds_the_link() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = World::joined(immediate(), &publisher);
    world.answer = false;
    publisher.publish(1);
    world.hear(A, &publisher.publish(1));
    world.pass(Nanos::from_secs(1), &publisher);
    assert!(world.disconnects >= 1);
    assert!(world.saw(&Event::RepairLinkDown(LinkDownReason::Unanswered)));
    let down = world.counters().repair_links_down.get();
    assert!(down >= 1 && down == world.disconnects as u64, "{down}");
    let links = world.counters().repair_links_up.get() as usize;
    assert!(
        world.nacks.len() <= 8 * links,
        "{} questions on {links} links",
        world.nacks.len()
    );
    world.answer = true;
    world.pass(Nanos::from_secs(3), &publisher);
    assert_eq!(world.records, [1, 2]);
}

#[test]
fn premature_fallback_lengthens_next_timeout() {
    let config = ReceiverConfig {
        nack_attempts: 3,
        nack_retry_us: 50,
        ..quiet()
    };
    let mut publisher = Publisher::new(5, 1);
    let mut world = World::joined(config, &publisher);
    world.answer = false;
    let copy = |publisher: &Publisher, n| again(&publisher.sent[&n]);
    // A copy that was already in flight answers the first NACK immediately.
    publisher.publish(1);
    world.hear(A, &publisher.publish(1));
    world.settle(&publisher);
    world.now = world.now.after(Nanos(319));
    world.hear(A, &copy(&publisher, 1));
    publisher.publish(1);
    world.hear(A, &publisher.publish(1));
    // Each NACK is answered 800 us later, if its connection lives that long.
    let (mut asked, mut links) = (vec![], 1);
    for _ in 0..40_000 {
        let questions = world.nacks.len();
        world.settle(&publisher);
        if world.nacks.len() > questions {
            asked.push(world.now);
        }
        if world.disconnects >= links {
            links += 1;
            asked.clear();
        }
        if (asked.first()).is_some_and(|at| world.now.since(*at) >= Nanos::from_us(800)) {
            break;
        }
        world.now = world.now.after(Nanos::from_us(20));
    }
    let bytes = copy(&publisher, 3);
    world.tell(Path::Repair, &Message::Datagram(&bytes));
    assert_eq!(world.records, [1, 2, 3, 4]);
    assert_eq!(world.disconnects, 1, "once is enough to learn from");
}

#[test]
fn join_from_oldest_splices_to_live_exactly() {
    let mut publisher = Publisher::new(5, 1);
    for _ in 0..5_000 {
        publisher.publish(1);
    }
    publisher.oldest = 4_100;
    let mut world = World::new(immediate(), Start::Oldest, 1);
    world.settle(&publisher);
    for _ in 0..100 {
        world.hear(A, &publisher.publish(1));
    }
    world.settle(&publisher);
    assert!(
        world.records == numbers(4_100..=5_100),
        "{} records",
        world.records.len()
    );
    let live = world.events.iter().filter(|e| **e == Event::Live).count();
    assert_eq!((live, world.counters().missing_datagrams.get()), (1, 0));
    assert_eq!(world.counters().replay_received.get(), 901);
    assert!(world.losses().is_empty());
}

#[test]
fn join_at_sequence_starts_there_and_names_missing() {
    let mut publisher = Publisher::new(5, 1);
    for _ in 0..100 {
        publisher.publish(1);
    }
    let mut world = World::new(immediate(), Start::At(Epoch(5), Sequence(90)), 1);
    world.settle(&publisher);
    assert_eq!(
        world.records,
        numbers(90..=100),
        "{:?} {:?}",
        world.events,
        world.nacks
    );
    publisher.oldest = 50;
    let mut world = World::new(immediate(), Start::At(Epoch(5), Sequence(40)), 1);
    world.settle(&publisher);
    assert_eq!(world.records, numbers(50..=100));
    assert_eq!(
        world.losses()[0].sequences,
        SequenceRange::new(Sequence(40), Sequence(49)).unwrap()
    );
}

#[test]
fn confirmed_epoch_is_followed_and_old_tail_reported() {
    let mut old = Publisher::new(5, 1);
    let mut world = World::joined(immediate(), &old);
    world.hear(A, &old.publish(1));
    old.publish(1);
    world.hear(A, &old.publish(1));
    let mut new = Publisher::new(6, 1);
    for _ in 0..3 {
        new.publish(1);
    }
    world.cut(LinkDownReason::Closed);
    world.pass(Nanos::from_ms(100), &new);
    assert!(world.saw(&Event::EpochChanged {
        from: Epoch(5),
        to: Epoch(6)
    }));
    let causes: Vec<_> = world
        .losses()
        .iter()
        .map(|l| (l.sequences.first.0, l.cause))
        .collect();
    assert_eq!(causes, [(2, LossCause::Epoch), (4, LossCause::Epoch)]);
    assert_eq!(world.records, [1, 3, 1, 2, 3]);
    world.cut(LinkDownReason::Closed);
    world.pass(Nanos::from_ms(100), &old);
    assert_eq!(
        world.core.receivers().next().unwrap().epoch(),
        Epoch(6),
        "a zombie is not followed"
    );
    let before = world.counters().old_epoch_dropped.get();
    assert!(before > 0, "its WELCOME");
    world.hear(A, &old.publish(1));
    assert_eq!(world.counters().old_epoch_dropped.get(), before + 1);
    assert_eq!(world.records, [1, 3, 1, 2, 3]);
}

#[test]
fn conflicting_datagrams_raise_violation_settled_by_repair() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = World::joined(immediate(), &publisher);
    let mut impostor = Publisher::new(5, 1);
    let right = publisher.publish(1);
    let wrong = impostor.publish(2);
    world.hear(A, &wrong);
    world.hear(A, &right);
    assert_eq!(world.counters().fencing_violations.get(), 1);
    world.settle(&publisher);
    let alarm = Event::FencingViolation {
        sequence: Sequence(1),
        wrong_one_delivered: true,
    };
    assert!(world.saw(&alarm));
    assert_eq!(world.counters().fenced_records.get(), 2);
    let one = SequenceRange::one(Sequence(1));
    world.answer_nack(&publisher, Path::Repair, Epoch(5), one);
    assert_eq!(world.losses().len(), 1, "a second copy says nothing new");
    world.assert_balanced(&publisher, "");
}

#[test]
fn waiting_impostor_is_replaced_by_repair_copy() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = World::joined(immediate(), &publisher);
    let mut impostor = Publisher::new(5, 1);
    impostor.publish(1);
    let first = publisher.publish(1);
    let wrong = impostor.publish(2);
    let right = publisher.publish(1);
    world.hear(A, &wrong);
    world.hear(A, &right);
    // The gap's own answer comes last, so that the conflict is decided before its turn.
    world.answer = false;
    world.settle(&publisher);
    world.answer_nack(
        &publisher,
        Path::Repair,
        Epoch(5),
        SequenceRange::one(Sequence(2)),
    );
    world.hear(A, &first);
    assert_eq!(world.records, [1, 2]);
}

#[test]
fn datagrams_beyond_window_are_dropped_then_repaired() {
    let config = ReceiverConfig {
        window_slots: 16,
        ..immediate()
    };
    let mut publisher = Publisher::new(5, 1);
    let mut world = World::joined(config, &publisher);
    world.answer = false;
    publisher.publish(1);
    for _ in 0..60 {
        world.hear(A, &publisher.publish(1));
        world.settle(&publisher);
    }
    assert!(world.records.is_empty());
    assert_eq!(world.counters().window_full_dropped.get(), 45);
    world.answer = true;
    world.pass(Nanos::from_ms(100), &publisher);
    assert_eq!(world.records, numbers(1..=61));
    world.assert_balanced(&publisher, "");
}

/// Does one random run for a seed, with every fault of the network, starting at sequence `first`.
fn random_run(seed: u64, first: u64, delivery: Delivery, repair: bool) {
    let context = format!("seed {seed}, first {first}, {delivery:?}, repair {repair}");
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let config = ReceiverConfig {
        delivery,
        repair,
        window_slots: 64,
        ..immediate()
    };
    let mut publisher = Publisher::new(5, first);
    publisher.oldest = first;
    let mut world = World::joined(config, &publisher);
    let mut delayed: Vec<Vec<u8>> = Vec::new();
    let loss = random.random_range(0.0..0.4);
    for _ in 0..400 {
        let bytes = publisher.publish(random.random_range(0..4));
        let mut arrivals = Vec::new();
        if random.random_bool(loss) {
            // The datagram is dropped.
        } else if random.random_bool(0.1) {
            delayed.push(bytes.clone());
        } else {
            arrivals.push(bytes.clone());
        }
        if random.random_bool(0.1) {
            arrivals.push(bytes.clone());
        }
        if random.random_bool(0.05) {
            let mut corrupt = bytes.clone();
            let at = random.random_range(0..corrupt.len());
            corrupt[at] ^= 1 << (random.next_u32() % 8);
            arrivals.push(corrupt);
        }
        if random.random_bool(0.05) {
            arrivals.push(bytes[..random.random_range(0..bytes.len())].to_vec());
        }
        if random.random_bool(0.2) && !delayed.is_empty() {
            arrivals.push(delayed.swap_remove(random.random_range(0..delayed.len())));
        }
        if random.random_bool(0.1) {
            arrivals.push(publisher.heartbeat());
        }
        for arrival in arrivals {
            world.hear(A, &arrival);
        }
        world.answer = random.random_bool(0.8);
        if random.random_bool(0.02) {
            let oldest = publisher.next.saturating_sub(random.random_range(1..40));
            publisher.oldest = publisher.oldest.max(oldest);
        }
        if random.random_bool(0.01) {
            world.cut(LinkDownReason::Closed);
        }
        let span = Nanos::from_us(random.random_range(1..300));
        world.pass(span, &publisher);
    }
    publisher.end();
    world.answer = true;
    for _ in 0..40 {
        world.hear(A, &publisher.heartbeat());
        world.pass(Nanos::from_ms(100), &publisher);
    }
    assert!(
        world.core.ended(),
        "everything settles once the faults stop; {context}"
    );
    assert_eq!(world.counters().missing_open.get(), 0, "{context}");
    if delivery == Delivery::Arrival {
        world.records.sort_unstable();
    }
    world.assert_balanced(&publisher, &context);
    let lost: u64 = world
        .losses()
        .iter()
        .map(|loss| loss.records.unwrap())
        .sum();
    assert_eq!(lost, world.counters().lost_records.get(), "{context}");
}

#[test]
fn random_fault_run_delivers_or_declares_all_records() {
    let seeds = std::env::var("TICKCAST_SEEDS")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(60);
    let within = Delivery::OrderedWithin(Nanos::from_ms(1));
    for seed in 0..seeds {
        for first in [1, (1 << 32) - 200, u64::MAX - 1_000] {
            for delivery in [Delivery::Ordered, within, Delivery::Arrival] {
                for repair in [true, false] {
                    random_run(seed, first, delivery, repair);
                }
            }
        }
    }
}

#[test]
fn live_gaps_are_nacked_during_replay() {
    let mut publisher = Publisher::new(5, 1);
    for _ in 0..40 {
        publisher.publish(1);
    }
    let config = ReceiverConfig {
        replay_in_flight: 8,
        ..immediate()
    };
    let mut world = World::new(config, Start::Oldest, 1);
    world.settle(&Publisher::new(5, 1));
    assert!(world.records.is_empty());
    world.answer = false;
    // A gap over the burst limit is replayed, eight at a time, and no answer arrives yet.
    for _ in 0..200 {
        publisher.publish(1);
    }
    let after_burst = publisher.publish(1);
    world.hear(A, &after_burst);
    world.settle(&publisher);
    assert_eq!(world.nacks.len(), 1, "{:?}", world.nacks);
    let _missed = publisher.publish(1);
    let next = publisher.publish(1);
    world.hear(A, &next);
    world.settle(&publisher);
    let missed = SequenceRange::one(Sequence(242));
    assert!(world.nacks.contains(&missed), "{:?}", world.nacks);
    assert!(
        world.core.poll_timeout() > world.now,
        "it does not want to be woken for what it can't ask yet"
    );
}

#[test]
fn history_under_a_deadline_policy_sets_no_deadline_timer() {
    let mut publisher = Publisher::new(5, 1);
    for _ in 0..20 {
        publisher.publish(1);
    }
    let config = ReceiverConfig {
        delivery: Delivery::OrderedWithin(Nanos::from_us(500)),
        nack_retry_us: 200,
        ..immediate()
    };
    let mut world = World::new(config, Start::Oldest, 1);
    world.answer = false;
    world.settle(&publisher);
    for _ in 0..5 {
        world.now = world.now.after(Nanos::from_us(400));
        world.settle(&publisher);
        assert!(world.core.poll_timeout() > world.now);
    }
    assert!(world.losses().is_empty(), "{:?}", world.losses());
}

#[test]
fn vanished_publisher_ends_gaps_and_connection() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = World::joined(immediate(), &publisher);
    world.hear(A, &publisher.publish(1));
    let _missed = publisher.publish(3);
    let next = publisher.publish(1);
    world.hear(A, &next);
    world.settle(&publisher);
    assert_eq!(world.records, numbers(1..=5));
    // The publisher's host loses power, so its connection is not even reset.
    world.answer = false;
    world.connectable = false;
    let _missed = publisher.publish(2);
    let last = publisher.publish(1);
    world.hear(A, &last);
    let dead = Nanos::from_us(immediate().dead_us.into());
    world.pass(dead.after(Nanos::from_ms(1)), &publisher);
    assert!(world.saw(&Event::PublisherDead));
    assert!(world.disconnects > 0 && !world.core.is_joined());
    let lost = world.losses();
    assert_eq!(lost.len(), 1, "{lost:?}");
    assert_eq!(
        (lost[0].records, lost[0].cause),
        (Some(2), LossCause::PublisherDead)
    );
    assert_eq!(world.records, [1, 2, 3, 4, 5, 8]);
    world.assert_balanced(&publisher, "");
}

#[test]
fn leave_clears_the_open_gap_counter() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = World::joined(immediate(), &publisher);
    world.answer = false;
    world.hear(A, &publisher.publish(1));
    let _missed = publisher.publish(2);
    let next = publisher.publish(1);
    world.hear(A, &next);
    assert_eq!(world.counters().missing_open.get(), 1);
    world.give(SubscriberInput::Leave(LossCause::RepairOff));
    assert_eq!(world.counters().missing_open.get(), 0);
    world.assert_balanced(&publisher, "");
}

#[test]
fn early_status_declares_no_loss_of_queued_datagrams() {
    let config = ReceiverConfig {
        delivery: Delivery::OrderedWithin(Nanos::from_ms(50)),
        ..immediate()
    };
    let mut publisher = Publisher::new(5, 1);
    let mut world = World::joined(config, &publisher);
    let sent: Vec<_> = (0..300).map(|_| publisher.publish(1)).collect();
    for s in &sent[..64] {
        world.hear(A, s);
    }
    // The rest waits in our own socket, and STATUS overtakes it.
    let status = publisher.status();
    world.tell(Path::Repair, &Message::Status(status));
    for s in &sent[64..] {
        world.hear(A, s);
    }
    assert!(world.losses().is_empty());
}

#[test]
fn early_status_triggers_no_nack_for_queued_datagrams() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = World::joined(immediate(), &publisher);
    let sent: Vec<_> = (0..90).map(|_| publisher.publish(1)).collect();
    world.hear(A, &sent[0]);
    world.answer = false;
    world.tell(Path::Repair, &Message::Status(publisher.status()));
    world.settle(&publisher);
    for s in &sent[1..] {
        world.hear(A, s);
    }
    assert!(world.nacks.is_empty());
}

#[test]
fn slowly_opened_replay_connection_is_used() {
    let mut publisher = Publisher::new(5, 1);
    for _ in 0..50 {
        publisher.publish(1);
    }
    let mut world = World::new(immediate(), Start::Oldest, 1);
    // Drive by hand: repair connects at once, and the first attempt for replay times out after 2 s.
    let mut attempts = 0;
    let mut connected_at = None;
    let until = world.now.after(Nanos::from_secs(30));
    while world.now < until {
        world.now = world.now.after(Nanos::from_ms(1));
        if world.now.0.is_multiple_of(10_000_000) {
            let hb = publisher.heartbeat();
            world.hear(A, &hb);
        }
        // The order of a driver: messages, timeout, actions, transmit, actions.
        if let Some(at) = connected_at
            && world.now >= at
        {
            connected_at = None;
            let mut w = publisher.welcome(1);
            w.channels.clear();
            world.tell(Path::Replay, &Message::Welcome(w));
        }
        world.give(SubscriberInput::Timeout);
        for _ in 0..2 {
            while let Some(action) = world.core.poll_action() {
                match action {
                    Action::Connect(Path::Repair) => {
                        world.give(SubscriberInput::Connected(Path::Repair));
                    }
                    Action::Connect(Path::Replay) => {
                        attempts += 1;
                        if attempts >= 2 {
                            world.give(SubscriberInput::Connected(Path::Replay));
                            connected_at = Some(world.now.after(Nanos::from_ms(1)));
                        }
                    }
                    _ => {}
                }
            }
            let mut out = Vec::new();
            loop {
                world.give(SubscriberInput::Poll);
                let path = world.core.poll_transmit(&mut out);
                let Some(path) = path else { break };
                let frames = std::mem::take(&mut out);
                let mut rest = &frames[..];
                while let Some((_, m, n)) = Message::read(rest, 1 << 20).unwrap() {
                    if path == Path::Replay && matches!(m, Message::Join(_)) {
                        rest = &rest[n..];
                        continue;
                    }
                    world.answer(&publisher, path, &rest[..n]);
                    rest = &rest[n..];
                }
            }
        }
    }
    assert_eq!(world.records.len(), 50);
}

#[test]
fn arrival_order_end_waits_for_missing_datagrams() {
    let config = ReceiverConfig {
        delivery: Delivery::Arrival,
        ..immediate()
    };
    let mut publisher = Publisher::new(5, 1);
    let mut world = World::new(config, Start::Live, 1);
    world.settle(&publisher);
    let a = publisher.publish(1);
    let _b = publisher.publish(1);
    let e = publisher.end();
    world.hear(A, &a);
    world.hear(A, &e);
    assert!(!world.core.ended());
}

#[test]
fn arrival_order_is_not_blocked_by_a_full_window() {
    let config = ReceiverConfig {
        delivery: Delivery::Arrival,
        window_slots: 16,
        ..immediate()
    };
    let mut publisher = Publisher::new(5, 1);
    let mut world = World::new(config, Start::Live, 1);
    world.settle(&publisher);
    world.cut(LinkDownReason::Closed);
    let sent: Vec<_> = (0..60).map(|_| publisher.publish(1)).collect();
    for (i, s) in sent.iter().enumerate() {
        if i != 1 {
            world.hear(A, s);
        }
    }
    assert_eq!(world.records.len(), 59);
}

#[test]
fn process_stall_does_not_inflate_the_rtt() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = World::joined(immediate(), &publisher);
    let s: Vec<_> = (0..6).map(|_| publisher.publish(1)).collect();
    world.answer = false;
    world.hear(A, &s[0]);
    world.hear(A, &s[2]);
    world.settle(&publisher); // NACK 2
    // The process is stopped for three seconds, and the answer waits in its socket.
    world.now = world.now.after(Nanos::from_secs(3));
    let mut copy = publisher.sent[&2].clone();
    copy[RELAY_OFFSET] |= relay_flags::RETRANSMITTED;
    world.tell(Path::Repair, &Message::Datagram(&copy));
    world.hear(A, &s[4]); // 4 missing
    world.settle(&publisher);
    let refused = publisher.refused(SequenceRange::one(Sequence(4)), RefusalReason::Ahead, 100);
    world.tell(Path::Repair, &Message::Refused(refused));
    let at = world.now;
    let n = |w: &World| w.nacks.iter().filter(|r| r.contains(Sequence(4))).count();
    let before = n(&world);
    while n(&world) == before && world.now.since(at) < Nanos::from_secs(30) {
        world.now = world.now.after(Nanos::from_ms(1));
        world.tell(Path::Repair, &Message::Status(publisher.status()));
        world.settle(&publisher);
    }
    assert!(world.now.since(at) < Nanos::from_ms(500));
}

#[test]
fn lost_answer_is_nacked_again_while_others_arrive() {
    let config = ReceiverConfig {
        delivery: Delivery::OrderedWithin(Nanos::from_ms(20)),
        ..immediate()
    };
    let mut publisher = Publisher::new(5, 1);
    let mut world = World::joined(config, &publisher);
    world.answer = false;
    let first = publisher.publish(1);
    world.hear(A, &first);
    let _lost = publisher.publish(1); // 2: its answer, by multicast, is lost
    let n = publisher.publish(1);
    world.hear(A, &n);
    world.settle(&publisher);
    let lost_asks = |w: &World| w.nacks.iter().filter(|r| r.contains(Sequence(2))).count();
    assert_eq!(lost_asks(&world), 1);
    for _ in 0..300 {
        // Every 100 us another loss, repaired by unicast 50 us later.
        let missing = publisher.publish(1);
        let next = publisher.publish(1);
        world.hear(A, &next);
        world.settle(&publisher);
        world.now = world.now.after(Nanos::from_us(50));
        let mut copy = missing.clone();
        copy[RELAY_OFFSET] |= relay_flags::RETRANSMITTED;
        world.tell(Path::Repair, &Message::Datagram(&copy));
        world.now = world.now.after(Nanos::from_us(50));
        world.settle(&publisher);
    }
    assert!(lost_asks(&world) > 1);
}

#[test]
fn start_in_newer_epoch_does_not_follow_an_older_one() {
    let publisher = Publisher::new(5, 1);
    let mut world = World::new(immediate(), Start::At(Epoch(9), Sequence(100)), 1);
    world.give(SubscriberInput::Timeout);
    while world.core.poll_action().is_some() {}
    world.give(SubscriberInput::Connected(Path::Repair));
    world.tell(Path::Repair, &Message::Welcome(publisher.welcome(1)));
    assert!(
        world
            .events
            .iter()
            .all(|e| !matches!(e, Event::EpochChanged { .. }))
    );
}

#[test]
fn zombie_publisher_is_reconnected_with_back_off() {
    let mut world = World::joined(immediate(), &Publisher::new(9, 1));
    let mut zombie = Publisher::new(5, 1);
    world.cut(LinkDownReason::Closed);
    let before = world.disconnects;
    world.pass(Nanos::from_secs(2), &zombie);
    let refused = world.counters().welcomes_invalid.get();
    assert!((1..20).contains(&refused), "{refused}");
    assert_eq!(refused, (world.disconnects - before) as u64);
    // None of its datagrams is followed either.
    let of = world.core.receiver(CHANNEL).map(|it| it.epoch());
    assert_eq!(of, Some(Epoch(9)));
    assert!(world.counters().old_epoch_dropped.get() >= refused);
    let dropped = world.counters().old_epoch_dropped.get();
    world.hear(A, &zombie.publish(1));
    assert_eq!(world.counters().old_epoch_dropped.get(), dropped + 1);
    assert!(world.records.is_empty());
}

#[test]
fn unknown_record_number_yields_no_zero_size_loss() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = World::joined(immediate(), &publisher);
    let a = publisher.publish(3);
    world.hear(A, &a);
    publisher.publish(3);
    publisher.publish(3);
    publisher.oldest = 4;
    let mut s = publisher.status();
    s.next_record = RecordNumber(0);
    world.answer = false;
    world.tell(Path::Repair, &Message::Status(s));
    let refused = Refused {
        epoch: publisher.epoch,
        range: SequenceRange::new(Sequence(2), Sequence(3)).unwrap(),
        reason: RefusalReason::Window,
        retry_after_us: 0,
        oldest: Sequence(4),
        oldest_record: RecordNumber(0),
    };
    world.tell(Path::Repair, &Message::Refused(refused));
    assert!(world.losses().iter().all(|l| l.records != Some(0)));
}

#[test]
fn later_gap_gets_its_own_full_deadline() {
    let config = ReceiverConfig {
        delivery: Delivery::OrderedWithin(Nanos::from_ms(10)),
        ..immediate()
    };
    let mut publisher = Publisher::new(5, 1);
    let mut world = World::joined(config, &publisher);
    let a = publisher.publish(1);
    world.hear(A, &a);
    world.cut(LinkDownReason::Closed);
    world.connectable = false;
    publisher.publish(1);
    let hb = publisher.heartbeat();
    world.hear(A, &hb);
    world.now = world.now.after(Nanos::from_us(9_990));
    let late = publisher.publish(1); // 3, in the network
    let hb = publisher.heartbeat(); // heard by the reordered heartbeat first
    world.hear(A, &hb);
    world.now = world.now.after(Nanos::from_us(20));
    world.give(SubscriberInput::Timeout);
    world.hear(A, &late);
    assert!(world.records.contains(&3));
}

#[test]
fn forged_heartbeat_interval_does_not_hide_staleness() {
    let mut publisher = Publisher::new(5, 1);
    publisher.heartbeats.interval_max_us = 100_000;
    let mut world = World::joined(immediate(), &publisher);
    let a = publisher.publish(1);
    world.hear(A, &a);
    let body = Heartbeat {
        next_interval_us: u32::MAX,
        hold_off_us: 0,
        subscribers: 1,
        state: PublisherState::Live,
        config_hash: ConfigHash(0),
    };
    let forged = Publisher::seal(
        &publisher.header(Kind::Heartbeat, 0, Heartbeat::LEN),
        &body.to_bytes(),
    );
    world.hear(A, &forged);
    world.pass(Nanos::from_ms(299), &publisher);
    assert!(
        !world.saw(&Event::Stale),
        "it may be one of the publisher's"
    );
    world.pass(Nanos::from_ms(2), &publisher);
    assert!(world.saw(&Event::Stale));
}

#[test]
fn idle_lines_with_slow_heartbeats_do_not_flap() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = World::new(immediate(), Start::Live, 2);
    world.settle(&publisher);
    let a = publisher.publish(1);
    world.hear(A, &a);
    world.hear(B, &a);
    for _ in 0..5 {
        world.now = world.now.after(Nanos::from_ms(50)); // idle_us = 50000 at the publisher
        world.give(SubscriberInput::Timeout);
        let body = Heartbeat {
            next_interval_us: 50_000,
            hold_off_us: 0,
            subscribers: 1,
            state: PublisherState::Live,
            config_hash: ConfigHash(0),
        };
        let hb = Publisher::seal(
            &publisher.header(Kind::Heartbeat, 0, Heartbeat::LEN),
            &body.to_bytes(),
        );
        world.hear(A, &hb);
        world.give(SubscriberInput::Timeout);
        world.now = world.now.after(Nanos::from_us(50));
        world.hear(B, &hb);
    }
    assert_eq!(world.counters().line_down.get(), 0);
}

#[test]
fn subscriber_pause_causes_no_loss_on_a_live_link() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = World::joined(immediate(), &publisher);
    let s: Vec<_> = (0..3).map(|_| publisher.publish(1)).collect();
    world.answer = false;
    world.hear(A, &s[0]);
    world.hear(A, &s[2]);
    world.settle(&publisher); // asked for 2
    world.now = world.now.after(Nanos::from_secs(6));
    // A refusal (budget) on the live connection also confirms the publisher.
    let refused = publisher.refused(SequenceRange::one(Sequence(2)), RefusalReason::Budget, 100);
    world.tell(Path::Repair, &Message::Refused(refused));
    assert!(world.losses().is_empty());
}

#[test]
fn long_backlog_is_requested_as_replay() {
    let config = ReceiverConfig {
        window_slots: 16,
        burst_max: 50,
        ..ReceiverConfig::default()
    };
    let mut publisher = Publisher::new(5, 1);
    let mut world = World::joined(config, &publisher);
    world.cut(LinkDownReason::Closed);
    world.connectable = false;
    world.answer = false;
    publisher.publish(1);
    for _ in 0..500 {
        let s = publisher.publish(1);
        world.hear(A, &s);
    }
    world.connectable = true;
    world.answer = true;
    let before = world.counters().nacks_sent.get();
    world.pass(Nanos::from_secs(3), &publisher);
    assert!(world.counters().nacks_sent.get() - before < 100);
}
