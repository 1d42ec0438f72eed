//! An impostor multicasts datagrams whose CRC is right.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tickcast_reliability::control::{Message, RefusalReason, Start, Status};
use tickcast_reliability::delivery::{Delivery, Event, LinkDownReason, LossCause};
use tickcast_reliability::receive::ReceiverConfig;
use tickcast_reliability::session::Path;
use tickcast_reliability::types::{
    Nanos, ReceiverCounters, Sequence, SequenceRange, SourceId, SourcePosition,
};
use tickcast_reliability::wire::{Kind, SourceLossReason, StreamEvent};

use crate::world::*;

/// An impostor of this publisher, whose next datagram has the same numbers.
fn impostor_of(publisher: &Publisher) -> Publisher {
    let mut impostor = Publisher::new(publisher.epoch.0, publisher.next);
    impostor.next_record = publisher.next_record;
    impostor
}

/// Gives the core the publisher's STATUS, which answers every PROGRESS so far.
fn answer(world: &mut World, publisher: &Publisher) {
    let status = Status {
        echo: Nanos(u64::MAX),
        ..publisher.status()
    };
    world.tell(Path::Repair, &Message::Status(status));
}

/// Returns delivered − fenced + lost.
fn balance(world: &World) -> u64 {
    balance_of(world.counters())
}

fn balance_of(c: &ReceiverCounters) -> u64 {
    c.delivered_records.get() + c.lost_records.get() - c.fenced_records.get()
}

#[test]
fn status_rolls_back_what_impostor_sent_beyond_it() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = World::joined(immediate(), &publisher);
    answer(&mut world, &publisher);
    for _ in 0..3 {
        world.hear(A, &publisher.publish(2));
    }
    let mut impostor = impostor_of(&publisher);
    for _ in 0..4 {
        world.hear(A, &impostor.publish(1));
    }
    impostor.publish(1);
    world.hear(A, &impostor.heartbeat());
    world.answer = false;
    world.pass(Nanos::from_ms(150), &publisher);
    assert_eq!(world.records.len(), 10, "nothing contradicts it yet");
    answer(&mut world, &publisher);
    let after = Sequence(3);
    assert!(world.saw(&Event::RolledBack { after, records: 4 }));
    assert_eq!(world.counters().missing_open.get(), 0);
    world.records.clear();
    world.hear(A, &publisher.publish(3));
    assert_eq!(world.records, [7, 8, 9]);
    assert_eq!((balance(&world), world.losses().len()), (9, 0));
    assert_eq!(world.counters().impostors.get(), 1);
}

#[test]
fn unconfirmed_contents_are_compared_with_repair_path() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = World::joined(immediate(), &publisher);
    answer(&mut world, &publisher);
    world.hear(A, &publisher.publish(1));
    // The genuine copies of 2 and 3 never arrive.
    let mut impostor = impostor_of(&publisher);
    for _ in 0..5 {
        world.hear(A, &impostor.publish(2));
    }
    world.answer = false;
    world.pass(Nanos::from_ms(150), &publisher);
    publisher.publish(1);
    publisher.publish(1);
    answer(&mut world, &publisher);
    assert!(world.saw(&Event::RolledBack {
        after: Sequence(3),
        records: 6
    }));
    world.answer = true;
    world.settle(&publisher);
    let causes: Vec<_> = world.losses().iter().map(|loss| loss.cause).collect();
    assert_eq!(causes, [LossCause::Fenced; 2]);
    assert_eq!(balance(&world), 3);
}

#[test]
fn waiting_contents_are_compared_with_repair_path() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = World::joined(immediate(), &publisher);
    answer(&mut world, &publisher);
    world.hear(A, &publisher.publish(1));
    let mut impostor = impostor_of(&publisher);
    impostor.publish(1);
    // Sequence 2 is missing, so they wait.
    for _ in 0..3 {
        world.hear(A, &impostor.publish(2));
    }
    world.answer = false;
    world.pass(Nanos::from_ms(150), &publisher);
    publisher.publish(1);
    publisher.publish(1);
    answer(&mut world, &publisher);
    world.answer = true;
    world.pass(Nanos::from_ms(500), &publisher);
    assert_eq!(world.counters().fenced_dropped.get(), 2);
    assert_eq!(world.counters().fencing_violations.get(), 1);
    assert_eq!(balance(&world), 3);
}

#[test]
fn repaired_copy_confirms_nothing_before_it() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = World::joined(immediate(), &publisher);
    answer(&mut world, &publisher);
    world.hear(A, &publisher.publish(1));
    // The genuine copies of 2 and 3 never arrive.
    let mut impostor = impostor_of(&publisher);
    for _ in 0..5 {
        world.hear(A, &impostor.publish(2));
    }
    world.answer = false;
    world.pass(Nanos::from_ms(150), &publisher);
    publisher.publish(1);
    let copy = publisher.publish(1);
    world.tell(Path::Repair, &Message::Datagram(&copy));
    answer(&mut world, &publisher);
    world.answer = true;
    world.settle(&publisher);
    let fenced: Vec<_> = (world.losses().iter())
        .map(|loss| (loss.sequences.first.0, loss.cause))
        .collect();
    assert_eq!(fenced, [(3, LossCause::Fenced), (2, LossCause::Fenced)]);
    assert_eq!(balance(&world), 3);
}

#[test]
fn gap_filled_after_status_is_compared_with_repair_path() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = World::joined(immediate(), &publisher);
    answer(&mut world, &publisher);
    world.hear(A, &publisher.publish(1));
    let mut impostor = impostor_of(&publisher);
    publisher.publish(1);
    world.hear(A, &publisher.publish(1));
    world.answer = false;
    world.pass(Nanos::from_ms(150), &publisher);
    answer(&mut world, &publisher);
    // Sequence 2, which that STATUS covers, comes from the impostor alone.
    world.hear(A, &impostor.publish(2));
    let mut impostor = impostor_of(&publisher);
    world.hear(A, &impostor.publish(1));
    world.pass(Nanos::from_ms(150), &publisher);
    answer(&mut world, &publisher);
    world.answer = true;
    world.pass(Nanos::from_ms(500), &publisher);
    let fenced: Vec<_> = (world.losses().iter())
        .map(|loss| (loss.sequences.first.0, loss.cause))
        .collect();
    assert_eq!(fenced, [(2, LossCause::Fenced)]);
}

#[test]
fn datagram_beyond_confirmed_end_is_not_delivered() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = World::joined(immediate(), &publisher);
    world.hear(A, &publisher.publish(1));
    publisher.end();
    world.answer = false;
    world.pass(Nanos::from_ms(150), &publisher);
    answer(&mut world, &publisher);
    // END itself is still missing.
    let mut impostor = impostor_of(&publisher);
    world.hear(A, &impostor.publish(1));
    world.answer = true;
    world.pass(Nanos::from_ms(50), &publisher);
    assert!(world.saw(&Event::EndOfSession));
    assert_eq!(world.records, [1]);
}

/// Forges two datagrams that follow each other, in place of the publisher's that were lost. The publisher's
/// copy of one of them comes.
fn forge_pair(copied: u64) -> (Publisher, Alone) {
    let mut publisher = Publisher::new(5, 1);
    let mut alone = Alone::welcomed(quiet(), &publisher, Start::Live, 1);
    alone.hear(A, &publisher.publish(1));
    let mut impostor = impostor_of(&publisher);
    // Datagram 2 of the publisher has more records than the forged one, so 3 does not follow that.
    publisher.publish(2);
    (3..=4).for_each(|_| drop(publisher.publish(1)));
    (2..=4).for_each(|_| alone.hear(A, &impostor.publish(1)));
    assert_eq!(alone.records, [1, 2, 3, 4]);
    alone.hear(A, &publisher.sent[&copied]);
    assert_eq!(alone.asks(), [run(copied, copied)]);
    alone.answer(&publisher.sent[&copied]);
    (publisher, alone)
}

#[test]
fn neighbours_of_forged_datagram_are_contested() {
    for copied in 2..=4 {
        let (publisher, mut alone) = forge_pair(copied);
        for _ in 0..3 {
            for range in alone.asks() {
                for sequence in range.iter() {
                    alone.answer(&publisher.sent[&sequence.0]);
                }
            }
        }
        let mut fenced: Vec<_> = alone.losses().iter().map(|it| (it.0, it.3)).collect();
        fenced.sort_by_key(|it| it.0);
        let all: Vec<_> = (2..=4).map(|it| (it, LossCause::Fenced)).collect();
        assert_eq!(fenced, all, "from {copied}");
    }
}

#[test]
fn end_waits_for_contested_datagrams_within_bounds() {
    let (publisher, mut alone) = {
        let mut publisher = Publisher::new(5, 1);
        let mut alone = Alone::welcomed(quiet(), &publisher, Start::Live, 1);
        let genuine = publisher.publish(1);
        alone.hear(A, &genuine);
        alone.hear(A, &forged(&genuine));
        let end = publisher.end();
        alone.hear(A, &end);
        (publisher, alone)
    };
    alone.status(&publisher.status());
    assert!(!alone.receiver.ended(), "1 may be forged");
    // A publisher that never answers holds the end up for a few requests only.
    let mut requests = 0;
    while !alone.receiver.ended() {
        requests += alone.asks().len();
        assert!(requests <= 5, "it never ends");
        alone.at(alone.receiver.poll_timeout().max(alone.now.after(Nanos(1))));
    }
    assert_eq!(requests, 5);
}

#[test]
fn contents_that_ring_no_longer_decides_are_counted() {
    let mut publisher = Publisher::new(5, 1);
    let mut alone = Alone::welcomed(quiet(), &publisher, Start::Live, 1);
    let genuine = publisher.publish(1);
    alone.hear(A, &genuine);
    alone.hear(A, &forged(&genuine));
    assert_eq!(alone.asks(), [run(1, 1)]);
    publisher.oldest = 2;
    alone.refuse(&publisher, (1, 1), RefusalReason::Window, 0);
    assert_eq!(alone.counters().contents_undecided.get(), 1);
    alone.later(1_000_000);
    assert!(alone.asks().is_empty(), "nobody can answer");
}

#[test]
fn end_of_repair_path_voids_what_lies_beyond() {
    let mut publisher = Publisher::new(5, 1);
    let config = ReceiverConfig {
        delivery: Delivery::Arrival,
        ..immediate()
    };
    let mut world = World::joined(config, &publisher);
    world.hear(A, &publisher.publish(1));
    let end = publisher.end();
    let mut impostor = impostor_of(&publisher);
    world.hear(A, &impostor.publish(1));
    assert_eq!(world.records, [1, 2]);
    world.tell(Path::Repair, &Message::Datagram(&end));
    assert!(!world.saw(&Event::EndOfSession), "1 may be an impostor's");
    world.settle(&publisher);
    assert!(world.saw(&Event::EndOfSession));
    let after = Sequence(2);
    assert!(world.saw(&Event::RolledBack { after, records: 1 }));
    assert_eq!((balance(&world), world.counters().impostors.get()), (1, 1));
}

#[test]
fn multicast_beyond_half_a_ring_waits_for_confirmation() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = World::joined(immediate(), &publisher);
    answer(&mut world, &publisher);
    world.answer = false;
    let asked = world.progresses;
    for _ in 0..600 {
        world.hear(A, &publisher.publish(1));
        world.settle(&publisher);
    }
    assert_eq!(world.records, numbers(1..=SLOTS / 2));
    assert_eq!(world.counters().sequence_jump_dropped.get(), 88);
    assert!(world.progresses > asked, "a confirmation was asked for");
    world.answer = true;
    answer(&mut world, &publisher);
    world.pass(Nanos::from_ms(10), &publisher);
    assert_eq!(world.records, numbers(1..=600));
    world.assert_balanced(&publisher, "");
}

#[test]
fn overdue_confirmation_stops_no_stream() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = World::joined(immediate(), &publisher);
    answer(&mut world, &publisher);
    world.answer = false;
    for _ in 0..600 {
        world.hear(A, &publisher.publish(1));
        world.settle(&publisher);
    }
    assert_eq!(world.counters().sequence_jump_dropped.get(), 88);
    world.pass(Nanos::from_ms(20), &publisher);
    for _ in 0..SLOTS {
        world.hear(A, &publisher.publish(1));
    }
    assert_eq!(world.counters().sequence_jump_dropped.get(), 88);
    world.answer = true;
    answer(&mut world, &publisher);
    world.pass(Nanos::from_ms(10), &publisher);
    assert_eq!(world.records.last(), Some(&(600 + SLOTS)));
    assert_eq!(world.counters().impostors.get(), 0);
}

#[test]
fn multicast_is_followed_without_repair_connection() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = World::joined(immediate(), &publisher);
    world.connectable = false;
    world.cut(LinkDownReason::Closed);
    for _ in 0..SLOTS * 2 {
        world.hear(A, &publisher.publish(1));
    }
    assert_eq!(world.records, numbers(1..=SLOTS * 2));
}

#[test]
fn unconfirmed_and_forgotten_run_is_rolled_back_as_a_whole() {
    let mut publisher = Publisher::new(5, 1);
    let config = ReceiverConfig {
        window_slots: 16,
        ..immediate()
    };
    let mut world = World::joined(config, &publisher);
    world.hear(A, &publisher.publish(1));
    answer(&mut world, &publisher);
    world.connectable = false;
    world.cut(LinkDownReason::Closed);
    let mut impostor = impostor_of(&publisher);
    for _ in 0..SLOTS * 3 {
        world.hear(A, &impostor.publish(2));
    }
    world.hear(A, &publisher.publish(1));
    world.connectable = true;
    world.pass(Nanos::from_ms(50), &publisher);
    let (after, records) = (Sequence(1), SLOTS * 6);
    assert!(world.saw(&Event::RolledBack { after, records }));
    assert_eq!(world.records.len() as u64, 1 + records + 1);
    assert_eq!(world.records.last(), Some(&2));
    assert_eq!(balance(&world), 2);
}

#[test]
fn slow_line_without_repair_connection_rolls_nothing_back() {
    let mut publisher = Publisher::new(5, 1);
    let config = ReceiverConfig {
        window_slots: 16,
        ..immediate()
    };
    let mut world = World::joined(config, &publisher);
    answer(&mut world, &publisher);
    world.connectable = false;
    world.cut(LinkDownReason::Closed);
    let datagrams: Vec<_> = (0..SLOTS * 4).map(|_| publisher.publish(1)).collect();
    // Line B is later by more than anything that is remembered.
    datagrams.iter().for_each(|it| world.hear(A, it));
    datagrams.iter().for_each(|it| world.hear(B, it));
    world.connectable = true;
    world.pass(Nanos::from_ms(50), &publisher);
    assert_eq!(world.counters().impostors.get(), 0);
    assert_eq!(world.records, numbers(1..=SLOTS * 4));
}

#[test]
fn unreadable_multicast_leaves_a_gap_for_the_genuine_copy() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = World::joined(immediate(), &publisher);
    let payload = [0xa5; 80];
    let forged = Publisher::seal(&publisher.header(Kind::Data, 1, 80), &payload);
    let later = {
        let impostor = Publisher::new(5, 3);
        Publisher::seal(&impostor.header(Kind::Data, 1, 80), &payload)
    };
    world.hear(A, &forged);
    world.hear(A, &later);
    assert_eq!(world.counters().malformed_dropped.get(), 2);
    for _ in 0..3 {
        world.hear(A, &publisher.publish(1));
    }
    assert_eq!(world.records, [1, 2, 3]);
    assert!(world.losses().is_empty());
    world.assert_balanced(&publisher, "");
}

#[test]
fn contested_sequence_is_requested_until_its_copy_comes() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = World::joined(immediate(), &publisher);
    let mut impostor = impostor_of(&publisher);
    world.hear(A, &impostor.publish(2));
    world.hear(A, &publisher.publish(1));
    world.answer = false;
    world.pass(Nanos::from_ms(5), &publisher);
    assert!(world.nacks.len() > 1, "{:?}", world.nacks);
    world.answer = true;
    world.pass(Nanos::from_ms(500), &publisher);
    assert_eq!(world.losses()[0].cause, LossCause::Fenced);
    let asked = world.nacks.len();
    world.pass(Nanos::from_ms(500), &publisher);
    assert_eq!(world.nacks.len(), asked, "it is decided");
}

#[test]
fn content_contested_while_waiting_stays_contested() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = World::joined(immediate(), &publisher);
    world.connectable = false;
    world.cut(LinkDownReason::Closed);
    let first = publisher.publish(1);
    let mut impostor = impostor_of(&publisher);
    world.hear(A, &impostor.publish(2));
    world.hear(A, &publisher.publish(1));
    world.hear(A, &first);
    assert_eq!(world.records, [1, 2, 3], "the forged one was first");
    world.connectable = true;
    world.pass(Nanos::from_ms(50), &publisher);
    let causes: Vec<_> = world.losses().iter().map(|loss| loss.cause).collect();
    assert_eq!(causes, [LossCause::Fenced]);
    assert_eq!(balance(&world), 2);
}

#[test]
fn late_forged_copies_of_rolled_back_run_are_contested() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = World::joined(immediate(), &publisher);
    answer(&mut world, &publisher);
    world.hear(A, &publisher.publish(1));
    let mut impostor = impostor_of(&publisher);
    let late = [impostor.publish(2), impostor.publish(2)];
    // Its number follows the publisher's own copies of 2 and 3.
    impostor.next_record = 4;
    world.hear(A, &impostor.publish(1));
    world.answer = false;
    world.pass(Nanos::from_ms(150), &publisher);
    // The publisher's own copies come before the STATUS that makes everything beyond 1 void.
    let status = Status {
        echo: Nanos(u64::MAX),
        ..publisher.status()
    };
    for _ in 0..2 {
        world.hear(A, &publisher.publish(1));
    }
    world.tell(Path::Repair, &Message::Status(status));
    let after = Sequence(1);
    assert!(world.saw(&Event::RolledBack { after, records: 3 }));
    // One waits for the other.
    world.hear(A, &late[1]);
    world.hear(A, &late[0]);
    assert_eq!(world.records.len(), 8, "nothing contradicts them yet");
    world.answer = true;
    world.pass(Nanos::from_ms(500), &publisher);
    let causes: Vec<_> = world.losses().iter().map(|loss| loss.cause).collect();
    assert_eq!(causes, [LossCause::Fenced; 2]);
    assert_eq!(balance(&world), 3);
}

#[test]
fn forged_record_number_in_turn_is_dropped_and_repaired() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = World::joined(immediate(), &publisher);
    world.hear(A, &publisher.publish(2));
    let mut impostor = impostor_of(&publisher);
    impostor.next_record = 1 << 40;
    world.hear(A, &impostor.publish(2));
    assert_eq!(world.records, [1, 2], "its number does not follow");
    assert_eq!(world.counters().malformed_dropped.get(), 1);
    publisher.publish(3);
    world.settle(&publisher);
    assert_eq!(world.records, [1, 2, 3, 4, 5]);
    world.assert_balanced(&publisher, "");
}

#[test]
fn forged_record_number_that_waited_is_dropped_and_repaired() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = World::joined(immediate(), &publisher);
    world.hear(A, &publisher.publish(2));
    let missing = publisher.publish(2);
    let mut impostor = impostor_of(&publisher);
    impostor.next_record = 1 << 40;
    world.hear(A, &impostor.publish(2));
    publisher.publish(1);
    world.answer = false;
    world.hear(A, &missing);
    assert_eq!(world.records, [1, 2, 3, 4]);
    let c = world.counters();
    assert_eq!((c.malformed_dropped.get(), c.missing_open.get()), (1, 1));
    world.hear(A, &publisher.publish(1));
    world.answer = true;
    world.settle(&publisher);
    assert_eq!(world.records, [1, 2, 3, 4, 5, 6]);
    let c = world.counters();
    assert_eq!(
        (c.missing_datagrams.get(), c.missing_recovered.get()),
        (2, 2)
    );
    world.assert_balanced(&publisher, "");
}

#[test]
fn forged_record_number_does_not_silence_next_epoch() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = World::joined(immediate(), &publisher);
    for _ in 0..3 {
        world.hear(A, &publisher.publish(2));
    }
    let mut impostor = impostor_of(&publisher);
    impostor.next_record = 1 << 40;
    world.answer = false;
    world.hear(A, &impostor.publish(2));
    // The standby has all of it, and continues with the records that follow.
    let mut promoted = publisher.promoted(6, 3);
    let copies: Vec<_> = (0..3).map(|_| promoted.publish(2)).collect();
    world.answer = true;
    world.tell(Path::Repair, &Message::Welcome(promoted.welcome(2)));
    for copy in &copies {
        world.hear(A, copy);
    }
    world.settle(&promoted);
    assert_eq!(world.records, numbers(1..=12));
    assert_eq!(world.counters().records_already_delivered.get(), 0);
    assert!(world.losses().is_empty());
}

#[test]
fn fenced_copy_says_which_record_follows() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = World::joined(immediate(), &publisher);
    world.hear(A, &publisher.publish(1));
    let mut impostor = impostor_of(&publisher);
    world.hear(A, &impostor.publish(3));
    world.hear(A, &publisher.publish(2));
    world.settle(&publisher);
    let causes: Vec<_> = world.losses().iter().map(|loss| loss.cause).collect();
    assert_eq!(causes, [LossCause::Fenced]);
    world.answer = false;
    world.hear(A, &publisher.publish(1));
    assert_eq!(
        world.records.last(),
        Some(&4),
        "it follows the publisher's copy"
    );
    assert_eq!(world.counters().malformed_dropped.get(), 0);
}

#[test]
fn forged_source_loss_does_not_stay_in_the_counter() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = World::joined(immediate(), &publisher);
    let lost = StreamEvent::SourceLost {
        source: SourceId(1),
        reason: SourceLossReason::Overflow,
        from: SourcePosition(1),
        messages: u64::MAX - 1,
        instruments: Vec::new(),
    };
    let mut body = Vec::new();
    lost.write(&mut body);
    let forged = Publisher::seal(&publisher.header(Kind::Event, 0, body.len()), &body);
    world.hear(A, &forged);
    assert_eq!(world.counters().source_messages_lost.get(), u64::MAX - 1);
    world.hear(A, &publisher.publish(1));
    world.settle(&publisher);
    assert_eq!(world.losses()[0].cause, LossCause::Fenced);
    assert_eq!(world.counters().source_messages_lost.get(), 0);
}

#[test]
fn datagram_that_the_next_does_not_follow_is_reported() {
    let config = ReceiverConfig {
        repair: false,
        ..immediate()
    };
    let mut publisher = Publisher::new(5, 1);
    let mut world = World::joined(config, &publisher);
    world.hear(A, &publisher.publish(1));
    let forged = impostor_of(&publisher).publish(2);
    publisher.publish(1);
    world.hear(A, &forged);
    let alarm = Event::FencingViolation {
        sequence: Sequence(2),
        wrong_one_delivered: false,
    };
    assert!(!world.saw(&alarm));
    for _ in 0..2 {
        world.hear(A, &publisher.publish(1));
    }
    let alarms = world.events.iter().filter(|it| **it == alarm);
    assert_eq!(alarms.count(), 1, "nobody can decide");
    assert_eq!(world.counters().fencing_violations.get(), 1);
}

/// Returns a world that gives up gaps after 2 ms, in which a forged heartbeat claims sequences 2 to 4.
fn claimed(publisher: &mut Publisher) -> World {
    let config = ReceiverConfig {
        delivery: Delivery::OrderedWithin(Nanos::from_ms(2)),
        ..immediate()
    };
    let mut world = World::joined(config, publisher);
    answer(&mut world, publisher);
    world.hear(A, &publisher.publish(1));
    let mut impostor = impostor_of(publisher);
    for _ in 0..3 {
        impostor.publish(1);
    }
    world.answer = false;
    world.hear(A, &impostor.heartbeat());
    world
}

#[test]
fn claimed_gap_is_not_lost_before_status() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = claimed(&mut publisher);
    let before = world.progresses;
    world.pass(Nanos::from_us(999), &publisher);
    assert_eq!(world.progresses, before);
    world.pass(Nanos::from_us(2), &publisher);
    assert_eq!(world.progresses, before + 1, "half of its time is over");
    world.pass(Nanos::from_ms(10), &publisher);
    answer(&mut world, &publisher);
    assert_eq!(world.counters().impostors.get(), 1);
    assert_eq!(world.counters().missing_open.get(), 0);
    world.hear(A, &publisher.publish(1));
    assert_eq!(world.records, [1, 2]);
    assert_eq!((balance(&world), world.losses().len()), (2, 0));
}

#[test]
fn claimed_gap_is_lost_up_to_what_status_confirms() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = claimed(&mut publisher);
    let genuine = [publisher.publish(1), publisher.publish(1)];
    world.pass(Nanos::from_ms(3), &publisher);
    assert!(world.losses().is_empty(), "no STATUS came");
    // It answers no PROGRESS, so it proves nothing.
    world.tell(Path::Repair, &Message::Status(publisher.status()));
    assert_eq!(world.counters().missing_lost.get(), 2);
    assert_eq!(world.counters().missing_open.get(), 1);
    for bytes in genuine {
        world.hear(A, &bytes);
    }
    assert_eq!(world.counters().late_dropped.get(), 2);
    world.hear(A, &publisher.publish(1));
    let losses: Vec<_> = world.losses().iter().map(|it| it.cause).collect();
    assert_eq!(losses, [LossCause::Deadline]);
    assert_eq!(
        (world.records.as_slice(), balance(&world)),
        (&[1, 4][..], 4)
    );
}

#[test]
fn claimed_gap_is_lost_once_status_is_overdue() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = claimed(&mut publisher);
    // PROGRESS is sent after 1 ms, and its STATUS is overdue 20 ms later.
    world.pass(Nanos::from_us(20_998), &publisher);
    assert_eq!(world.counters().missing_lost.get(), 0);
    world.pass(Nanos::from_us(3), &publisher);
    assert_eq!(world.counters().missing_lost.get(), 3);
}

#[test]
fn claimed_gap_is_lost_in_time_without_connection() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = claimed(&mut publisher);
    world.connectable = false;
    world.cut(LinkDownReason::Closed);
    world.pass(Nanos::from_us(1_999), &publisher);
    assert_eq!(world.counters().missing_lost.get(), 0);
    world.pass(Nanos::from_us(2), &publisher);
    assert_eq!(world.counters().missing_lost.get(), 3);
}

#[test]
fn other_content_of_misnumbered_datagram_is_reported() {
    // The genuine datagram comes before the forged one that it does not follow, or after it. Behind its
    // forged copy, another forged one may wait, and a genuine one that does not follow that.
    for (waits, others_wait) in [(true, false), (false, false), (true, true), (false, true)] {
        let mut publisher = Publisher::new(5, 1);
        let mut world = World::joined(immediate(), &publisher);
        world.hear(A, &publisher.publish(1));
        let mut impostor = impostor_of(&publisher);
        let forged = [2, 1, 1].map(|records| impostor.publish(records));
        publisher.publish(1);
        let genuine = publisher.publish(1);
        publisher.publish(1);
        let last = publisher.publish(1);
        world.answer = false;
        let order = match waits {
            true => [&genuine, &forged[0]],
            false => [&forged[0], &genuine],
        };
        for bytes in order {
            world.hear(A, bytes);
        }
        assert_eq!(world.counters().malformed_dropped.get(), 1);
        if others_wait {
            world.hear(A, &forged[2]);
            world.hear(A, &last);
        }
        world.hear(A, &forged[1]);
        let alarm = |sequence| Event::FencingViolation {
            sequence: Sequence(sequence),
            wrong_one_delivered: false,
        };
        assert!(world.saw(&alarm(2)) && world.saw(&alarm(3)));
        world.answer = true;
        world.settle(&publisher);
        let fenced = [run(2, 2), run(3, 3), run(4, 4)];
        let fenced = fenced.map(|range| (LossCause::Fenced, range));
        let losses: Vec<_> = world
            .losses()
            .iter()
            .map(|it| (it.cause, it.sequences))
            .collect();
        assert_eq!(losses, fenced[..2 + usize::from(others_wait)]);
    }
}

#[test]
fn unconfirmed_datagram_pushes_nothing_out_of_the_window() {
    let config = ReceiverConfig {
        delivery: Delivery::Arrival,
        window_slots: 16,
        ..immediate()
    };
    let mut publisher = Publisher::new(5, 1);
    let mut world = World::joined(config, &publisher);
    answer(&mut world, &publisher);
    world.hear(A, &publisher.publish(1));
    world.answer = false;
    let mut impostor = impostor_of(&publisher);
    let forged: Vec<_> = (0..20).map(|_| impostor.publish(1)).collect();
    world.hear(A, &forged[19]);
    assert_eq!(world.counters().window_full_dropped.get(), 1);
    assert!(world.losses().is_empty() && world.records == [1]);
    // Sequences that STATUS confirms fall out of the window.
    let genuine: Vec<_> = (0..20).map(|_| publisher.publish(1)).collect();
    answer(&mut world, &publisher);
    world.hear(A, &genuine[19]);
    assert_eq!(world.counters().missing_lost.get(), 4);
    assert_eq!(world.records, [1, 21]);
    world.answer = true;
    world.settle(&publisher);
    assert_eq!(world.losses()[0].sequences, run(2, 5));
}

/// Returns a world that gives up gaps after 2 ms, in which records 1 and 2 were delivered, and the datagram
/// of 3 to 5 is lost but not declared so.
fn losing(publisher: &mut Publisher) -> World {
    let config = ReceiverConfig {
        delivery: Delivery::OrderedWithin(Nanos::from_ms(2)),
        ..immediate()
    };
    let mut world = World::joined(config, publisher);
    world.answer = false;
    world.hear(A, &publisher.publish(2));
    publisher.publish(3);
    world
}

/// Returns the correction of the loss of sequence 2.
fn correction(reported: u64, records: u64) -> Event {
    Event::LossCorrected {
        sequences: SequenceRange::one(Sequence(2)),
        reported,
        records,
    }
}

#[test]
fn forged_datagram_behind_loss_misstates_no_balance() {
    // Its number is too large, or smaller than that of the last record delivered.
    for (first, reported) in [(13, 10), (1, 0)] {
        let mut publisher = Publisher::new(5, 1);
        let mut world = losing(&mut publisher);
        let mut impostor = impostor_of(&publisher);
        impostor.next_record = first;
        world.hear(A, &impostor.publish(1));
        publisher.publish(2);
        answer(&mut world, &publisher);
        world.pass(Nanos::from_ms(3), &publisher);
        assert_eq!(world.losses()[0].records, Some(reported));
        world.answer = true;
        world.hear(A, &publisher.publish(1));
        world.settle(&publisher);
        assert!(world.saw(&correction(reported, 3)), "{:?}", world.events);
        assert_eq!(balance(&world), 8);
    }
}

#[test]
fn forged_datagram_before_loss_misstates_no_balance() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = losing(&mut publisher);
    // Datagram 3 is lost as well, and 4 is heard.
    let mut impostor = impostor_of(&publisher);
    let (forged, genuine) = (impostor.publish(1), publisher.publish(4));
    world.hear(A, &forged);
    publisher.publish(5);
    let last = publisher.publish(6);
    world.hear(A, &last);
    answer(&mut world, &publisher);
    world.pass(Nanos::from_ms(3), &publisher);
    let sizes: Vec<_> = world.losses().iter().map(|it| it.records).collect();
    assert_eq!(sizes, [Some(3), Some(8)], "the forged one has too few");
    world.hear(A, &genuine);
    world.answer = true;
    world.settle(&publisher);
    let corrected = Event::LossCorrected {
        sequences: SequenceRange::one(Sequence(4)),
        reported: 8,
        records: 5,
    };
    assert!(world.saw(&corrected), "{:?}", world.events);
    assert_eq!(balance(&world), 20);
}

#[test]
fn forged_heartbeat_behind_loss_misstates_no_balance() {
    // A number that cannot follow is not believed, so that the loss waits for the next datagram.
    for (next_record, reported) in [(13, Some(10)), (2, None)] {
        let mut publisher = Publisher::new(5, 1);
        let mut world = losing(&mut publisher);
        answer(&mut world, &publisher);
        let mut impostor = impostor_of(&publisher);
        impostor.next_record = next_record;
        world.hear(A, &impostor.heartbeat());
        world.pass(Nanos::from_ms(3), &publisher);
        let sizes: Vec<_> = world.losses().iter().map(|it| it.records).collect();
        assert_eq!(sizes, reported.map(Some).into_iter().collect::<Vec<_>>());
        world.answer = true;
        world.hear(A, &publisher.publish(2));
        world.settle(&publisher);
        match reported {
            Some(reported) => assert!(world.saw(&correction(reported, 3))),
            None => assert_eq!(world.losses()[0].records, Some(3)),
        }
        assert_eq!((balance(&world), world.losses().len()), (7, 1));
    }
}

#[test]
fn status_corrects_loss_behind_which_nothing_comes() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = losing(&mut publisher);
    answer(&mut world, &publisher);
    let mut impostor = impostor_of(&publisher);
    impostor.next_record = 13;
    world.hear(A, &impostor.heartbeat());
    world.pass(Nanos::from_ms(3), &publisher);
    assert_eq!(world.losses()[0].records, Some(10));
    answer(&mut world, &publisher);
    assert!(world.saw(&correction(10, 3)), "{:?}", world.events);
    assert_eq!(balance(&world), 5);
    world.hear(A, &publisher.publish(2));
    assert_eq!(world.records, [1, 2, 6, 7], "it follows the corrected loss");
}

#[test]
fn forged_number_delivered_early_is_contested_in_its_turn() {
    let config = ReceiverConfig {
        delivery: Delivery::Arrival,
        ..immediate()
    };
    let mut publisher = Publisher::new(5, 1);
    let mut world = World::joined(config, &publisher);
    answer(&mut world, &publisher);
    world.answer = false;
    world.hear(A, &publisher.publish(2));
    let missing = publisher.publish(3);
    let mut impostor = impostor_of(&publisher);
    impostor.next_record += 40;
    world.hear(A, &impostor.publish(2));
    publisher.publish(2);
    world.hear(A, &publisher.publish(1));
    assert_eq!(world.records.len(), 5, "3 and 4 are early");
    world.hear(A, &missing);
    assert_eq!(world.records.len(), 8);
    world.answer = true;
    world.settle(&publisher);
    let losses: Vec<_> = (world.losses().iter())
        .map(|it| (it.sequences.first.0, it.records, it.cause))
        .collect();
    assert_eq!(losses, [(3, Some(2), LossCause::Fenced)]);
    assert_eq!(balance(&world), 8);
}

/// Gives `alone` the promoted publisher's offer and datagrams, and asserts that the application got each
/// record up to `all` once, besides those that became void beyond `after`.
fn assert_continues_whole(alone: &mut Alone, new: &mut Publisher, after: u64, all: u64) {
    let had = alone.records.len();
    let answers: Vec<_> = [3, 5].map(|count| new.publish(count)).into();
    alone.welcome(&new.welcome(1), Start::Live);
    let rolled_back = alone.events.iter().find_map(|event| match event {
        Event::RolledBack { after, records } => Some((after.0, *records as usize)),
        _ => None,
    });
    let (place, void) = rolled_back.expect("a report that records are void");
    assert_eq!(place, after);
    alone.records.truncate(had - void);
    let first = new.lineage.begins().0.0;
    alone.answer(&new.sent[&first].clone());
    answers.iter().for_each(|bytes| alone.answer(bytes));
    assert_eq!(alone.records, numbers(1..=all));
    assert_eq!(balance_of(alone.counters()), all);
}

/// Returns a publisher, and a receiver that heard three datagrams of it and lost its connection.
fn cut_off(delivery: Delivery) -> (Publisher, Alone) {
    let config = ReceiverConfig {
        delivery,
        ..quiet()
    };
    let mut publisher = Publisher::new(5, 1);
    let mut alone = Alone::welcomed(config, &publisher, Start::Live, 1);
    for _ in 0..3 {
        alone.hear(A, &publisher.publish(2));
    }
    alone.link_down(LinkDownReason::Closed);
    (publisher, alone)
}

const DELIVERIES: [Delivery; 3] = [
    Delivery::Ordered,
    Delivery::OrderedWithin(Nanos::from_us(300)),
    Delivery::Arrival,
];

#[test]
fn forged_run_after_outage_is_void_in_next_epoch() {
    for delivery in DELIVERIES {
        let (mut publisher, mut alone) = cut_off(delivery);
        // It was in the socket when the connection broke, and the standby does not have it.
        alone.later(19_999);
        alone.hear(A, &publisher.publish(1));
        let mut impostor = impostor_of(&publisher);
        alone.later(1);
        for _ in 0..5 {
            alone.hear(A, &impostor.publish(2));
        }
        impostor.next += 700;
        impostor.next_record += 1 << 40;
        alone.hear(A, &impostor.heartbeat());
        alone.later(1_000);
        assert_eq!(alone.records.len(), 17, "{delivery:?}: nobody contradicts");
        let mut new = publisher.promoted(9, 3);
        assert_continues_whole(&mut alone, &mut new, 4, 14);
        let continued = Event::EpochContinued {
            from: publisher.epoch,
            to: new.epoch,
            last: Sequence(3),
            repeated: 1,
        };
        assert!(alone.events.contains(&continued), "{:?}", alone.events);
    }
}

#[test]
fn deliveries_beyond_place_of_hand_over_are_void() {
    for delivery in DELIVERIES {
        let (publisher, mut alone) = cut_off(delivery);
        let mut impostor = impostor_of(&publisher);
        for _ in 0..5 {
            alone.hear(A, &impostor.publish(2));
        }
        let mut new = publisher.promoted(9, 3);
        let mut lineage = Vec::from(new.lineage.clone());
        lineage[0].complete = true;
        new.lineage = lineage.into();
        assert_continues_whole(&mut alone, &mut new, 3, 14);
    }
}

#[test]
fn disputed_deliveries_are_void_in_next_epoch() {
    for delivery in DELIVERIES {
        let (mut publisher, mut alone) = cut_off(delivery);
        let mut impostor = impostor_of(&publisher);
        for _ in 0..5 {
            alone.hear(A, &impostor.publish(2));
        }
        alone.hear(A, &publisher.publish(1));
        assert_eq!(alone.counters().fencing_violations.get(), 1);
        let mut new = publisher.promoted(9, 3);
        assert_continues_whole(&mut alone, &mut new, 3, 14);
    }
}

#[test]
fn forged_heartbeat_after_outage_voids_no_next_epoch() {
    let (publisher, mut alone) = cut_off(Delivery::OrderedWithin(Nanos::from_us(300)));
    let mut impostor = impostor_of(&publisher);
    impostor.next += 40;
    impostor.next_record += 1 << 50;
    alone.hear(A, &impostor.heartbeat());
    alone.later(30_000);
    let mut new = publisher.promoted(9, 3);
    let opened = new.sent[&4].clone();
    let first = new.publish(3);
    alone.welcome(&new.welcome(1), Start::Live);
    alone.answer(&opened);
    alone.answer(&first);
    assert_eq!(alone.records, numbers(1..=9));
    assert_eq!(balance_of(alone.counters()), 9);
    assert_eq!(alone.losses().len(), 1, "{:?}", alone.losses());
}

/// Returns the records that `alone` lost, after all corrections and rollbacks.
fn lost_records(alone: &Alone) -> u64 {
    let mut losses: Vec<(SequenceRange, u64)> = Vec::new();
    for event in &alone.events {
        match event {
            Event::Lost(loss) => losses.push((loss.sequences, loss.records.expect("known"))),
            Event::LossCorrected {
                sequences, records, ..
            } => {
                let mut known = losses.iter_mut().rev();
                let loss = known.find(|it| it.0 == *sequences).expect("reported");
                loss.1 = *records;
            }
            Event::RolledBack { after, .. } => losses.retain(|it| it.0.first <= *after),
            _ => {}
        }
    }
    losses.iter().map(|it| it.1).sum()
}

#[test]
fn any_forgery_between_epochs_costs_no_record() {
    let mut totals = [0; 3];
    for seed in 0..300 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let config = ReceiverConfig {
            delivery: DELIVERIES[rng.random_range(0..2)],
            ..quiet()
        };
        let mut old = Publisher::new(5, 1);
        let mut alone = Alone::welcomed(config, &old, Start::Live, 1);
        let hear_some =
            |alone: &mut Alone, old: &mut Publisher, most: u32, rng: &mut ChaCha8Rng| {
                for _ in 0..rng.random_range(0..=most) {
                    let bytes = old.publish(rng.random_range(1..4));
                    if rng.random_bool(0.8) {
                        alone.hear(A, &bytes);
                    }
                    alone.later(rng.random_range(0..200));
                }
            };
        hear_some(&mut alone, &mut old, 20, &mut rng);
        alone.link_down(LinkDownReason::Closed);
        let down_at = alone.now;
        hear_some(&mut alone, &mut old, 6, &mut rng);
        alone.at(down_at.after(Nanos::from_ms(20)).max(alone.now));
        // Genuine ones still come, and an impostor's before, between or instead of them.
        let mut impostor = impostor_of(&old);
        let genuine = alone.records.len();
        for _ in 0..rng.random_range(0..12) {
            match rng.random_range(0..4) {
                0 => hear_some(&mut alone, &mut old, 3, &mut rng),
                1 => alone.hear(A, &impostor.heartbeat()),
                2 => impostor.next_record += rng.random_range(0..3),
                _ => alone.hear(A, &impostor.publish(rng.random_range(1..4))),
            }
            alone.later(rng.random_range(0..400));
        }
        let sealed = old.next - 1;
        let last = rng.random_range(0..=sealed);
        let mut new = old.promoted(9, last);
        while new.next_record <= old.next_record + 5 {
            new.publish(rng.random_range(1..5));
        }
        let had = alone.records.len();
        alone.welcome(&new.welcome(1), Start::Live);
        assert_eq!(alone.records.len(), had, "seed {seed}");
        for event in &alone.events {
            if let Event::RolledBack { records, .. } = event {
                let left = alone.records.len() - *records as usize;
                alone.records.truncate(left);
                totals[0] += records;
            }
        }
        let c = alone.counters();
        if c.fencing_violations.get() + c.malformed_dropped.get() == 0 {
            assert!(alone.records.len() >= genuine, "seed {seed}: undisputed");
        }
        for bytes in new.sent.clone().values() {
            alone.answer(bytes);
        }
        let all = new.next_record - 1;
        let lost = lost_records(&alone);
        let (had, events) = (&alone.records, &alone.events);
        // A forged datagram that displaced a genuine one may have had another number of records.
        let is_fenced = (alone.losses().iter()).any(|it| it.3 == LossCause::Fenced);
        if !is_fenced {
            let is_once = had.windows(2).all(|two| two[0] < two[1]);
            assert!(is_once, "seed {seed}: {had:?}, {events:?}");
            assert_eq!(had.len() as u64 + lost, all, "seed {seed}: {events:?}");
        }
        assert_eq!(balance_of(alone.counters()), all, "seed {seed}");
        totals[1] += lost;
        totals[2] += u64::from(last < sealed);
    }
    assert!(totals.iter().all(|total| *total > 50), "{totals:?}");
}
