//! An epoch that continues another: nothing is lost or delivered twice, and datagrams outside the lineage
//! are rejected.

use std::sync::Arc;

use tickcast_reliability::control::{Message, RefusalReason, Start};
use tickcast_reliability::delivery::{Delivery, Event, LinkDownReason, LossCause};
use tickcast_reliability::receive::{Mirror, MirrorHost, Promotion, ReceiverConfig, Welcomed};
use tickcast_reliability::ring::HeapMemory;
use tickcast_reliability::session::{Path, SubscriberInput};
use tickcast_reliability::types::{
    ConfigHash, Continued, Epoch, Lineage, Nanos, RecordNumber, Sequence, SequenceRange,
};
use tickcast_reliability::wire::relay_flags;

use crate::world::*;

const fn continued(from: u64, to: u64, last: u64, repeated: u64) -> Event {
    Event::EpochContinued {
        from: Epoch(from),
        to: Epoch(to),
        last: Sequence(last),
        repeated,
    }
}

/// Directs the repair connection to another publisher from now on.
fn moves_to(world: &mut World, publisher: &Publisher) {
    world.cut(LinkDownReason::Closed);
    world.pass(Nanos::from_ms(50), publisher);
}

fn no_epoch_changed(world: &World) -> bool {
    let mut events = world.events.iter();
    !events.any(|event| matches!(event, Event::EpochChanged { .. }))
}

/// Publishes a datagram for each of these record counts, and returns them.
fn published(publisher: &mut Publisher, counts: &[u16]) -> Vec<Vec<u8>> {
    counts
        .iter()
        .map(|count| publisher.publish(*count))
        .collect()
}

/// Returns a publisher, its eight datagrams of two records, and a receiver that waits 300 µs for each.
fn eight_within_deadline() -> (Publisher, Vec<Vec<u8>>, Alone) {
    let config = ReceiverConfig {
        delivery: Delivery::OrderedWithin(Nanos::from_us(300)),
        ..quiet()
    };
    let mut publisher = Publisher::new(5, 1);
    let alone = Alone::welcomed(config, &publisher, Start::Live, 1);
    let sent = published(&mut publisher, &[2; 8]);
    (publisher, sent, alone)
}

#[test]
fn lagging_receiver_gets_rest_of_old_epoch_then_new() {
    let mut old = Publisher::new(5, 1);
    let mut world = World::joined(immediate(), &old);
    world.answer = false;
    let sent = published(&mut old, &[2; 10]);
    for n in [0, 1, 4, 5, 8] {
        world.hear(A, &sent[n]);
    }
    world.settle(&old);
    assert_eq!(world.records, numbers(1..=4));
    // Of ten datagrams eight were mirrored: 3, 4, 7 and 8 are still missing, and 9 is discarded.
    let mut new = old.promoted(9, 8);
    published(&mut new, &[2, 2]);
    (world.answer, world.events) = (true, vec![]);
    moves_to(&mut world, &new);
    assert_eq!(world.records, numbers(1..=20));
    assert!(world.saw(&continued(5, 9, 8, 0)), "{:?}", world.events);
    assert!(no_epoch_changed(&world) && world.losses().is_empty());
    let c = world.counters();
    assert_eq!(
        (c.missing_superseded.get(), c.epoch_change_dropped.get()),
        (0, 1)
    );
    assert_eq!((c.epochs.get(), c.epochs_continued.get()), (2, 1));
    assert_eq!(c.records_already_delivered.get(), 0);
    world.assert_balanced(&new, "behind");
    // New datagrams arrive as usual.
    world.hear(A, &new.publish(1));
    assert_eq!(world.records, numbers(1..=21));
}

#[test]
fn epoch_change_stands_after_last_old_record() {
    let mut old = Publisher::new(5, 1);
    let mut alone = Alone::welcomed(quiet(), &old, Start::Live, 1);
    let sent = published(&mut old, &[1; 4]);
    alone.hear(A, &sent[0]);
    alone.hear(A, &sent[3]);
    let mut new = old.promoted(6, 4);
    alone.events.clear();
    assert_eq!(
        alone.welcome(&new.welcome(1), Start::Live),
        Welcomed::Continued
    );
    assert_eq!(alone.receiver.epoch(), Epoch(6));
    assert_eq!(
        alone.receiver.position().epoch,
        Epoch(5),
        "it is still there"
    );
    let first = new.publish(1);
    alone.hear(A, &first);
    assert!(alone.events.is_empty() && alone.records == [1]);
    alone.answer(&sent[1]);
    assert!(alone.events.is_empty() && alone.records == [1, 2]);
    alone.answer(&sent[2]);
    assert_eq!(alone.records, numbers(1..=4));
    assert_eq!(alone.events[0], continued(5, 6, 4, 0));
    assert_eq!(alone.receiver.position().epoch, Epoch(6));
    alone.answer(&new.sent[&5].clone());
    assert_eq!(alone.records, numbers(1..=5));
}

#[test]
fn old_epochs_tail_is_not_redelivered() {
    let mut old = Publisher::new(5, 1);
    let mut world = World::joined(immediate(), &old);
    for bytes in published(&mut old, &[2; 10]) {
        world.hear(A, &bytes);
    }
    assert_eq!(world.records, numbers(1..=20));
    let mut new = old.promoted(9, 7);
    // 15 to 17, then 18 to 22: the second holds both.
    published(&mut new, &[3, 5]);
    world.events.clear();
    moves_to(&mut world, &new);
    assert_eq!(world.records, numbers(1..=22));
    assert!(world.saw(&continued(5, 9, 7, 6)), "{:?}", world.events);
    assert_eq!(world.counters().records_already_delivered.get(), 6);
    assert!(no_epoch_changed(&world) && world.losses().is_empty());
    world.assert_balanced(&new, "ahead");
    assert_eq!(
        world.core.receiver(CHANNEL).unwrap().progress().0,
        Sequence(10)
    );
}

#[test]
fn arrival_order_across_promotion_repeats_no_record() {
    let config = ReceiverConfig {
        delivery: Delivery::Arrival,
        ..quiet()
    };
    let mut old = Publisher::new(5, 1);
    let mut alone = Alone::welcomed(config, &old, Start::Live, 1);
    let sent = published(&mut old, &[2; 10]);
    for n in [0, 1, 4, 6, 9] {
        alone.hear(A, &sent[n]);
    }
    assert_eq!(alone.records, [1, 2, 3, 4, 9, 10, 13, 14, 19, 20]);
    let mut new = old.promoted(9, 4);
    let copies = published(&mut new, &[3, 4, 1, 6]);
    alone.welcome(&new.welcome(1), Start::Live);
    assert!(
        !alone.events.contains(&continued(5, 9, 4, 6)),
        "3 and 4 are missing"
    );
    for bytes in [3, 1, 0, 2].map(|n| &copies[n]) {
        alone.hear(A, bytes);
    }
    alone.answer(&new.sent[&5].clone());
    alone.answer(&sent[3]);
    alone.answer(&sent[2]);
    assert!(
        alone.events.contains(&continued(5, 9, 4, 6)),
        "{:?}",
        alone.events
    );
    let mut all = alone.records.clone();
    all.sort_unstable();
    assert_eq!(all, numbers(1..=22), "each once");
    let c = alone.counters();
    assert_eq!(c.records_already_delivered.get(), 6);
    assert_eq!(c.missing_superseded.get(), 3, "6, 8 and 9");
    assert_eq!(c.missing_datagrams.get(), 5);
    assert_eq!(alone.receiver.progress(), (Sequence(9), Sequence(9)));
}

#[test]
fn losses_beyond_cut_stay_if_records_followed() {
    // A loss that was reported with its record numbers stays: 11 and 12 are not delivered again, and
    // nothing is out of order.
    let (old, sent, mut alone) = eight_within_deadline();
    for n in [0, 1, 2, 3, 4, 6] {
        alone.hear(A, &sent[n]);
    }
    alone.status(&old.status());
    alone.later(300);
    assert_eq!(alone.losses(), [(6, 6, Some(2), LossCause::Deadline)]);
    let mut new = old.promoted(9, 4);
    alone.welcome(&new.welcome(1), Start::Live);
    assert!(alone.events.contains(&continued(5, 9, 4, 6)));
    for bytes in published(&mut new, &[5, 5]) {
        alone.hear(A, &bytes);
    }
    alone.answer(&new.sent[&5].clone());
    let expected: Vec<u64> = (1..=10).chain(13..=18).collect();
    assert_eq!(alone.records, expected);
}

#[test]
fn losses_without_successor_are_published_again() {
    let (old, sent, mut alone) = eight_within_deadline();
    sent[..3].iter().for_each(|bytes| alone.hear(A, bytes));
    // 4 and 5 are lost with their number, and then 6 to 8.
    for newest in [5, 8] {
        let mut status = old.status();
        status.newest = Sequence(newest);
        status.next_record = RecordNumber(2 * newest + 1);
        alone.status(&status);
        alone.status(&status);
        alone.later(301);
    }
    let lost = |first, last, records| (first, last, Some(records), LossCause::Deadline);
    assert_eq!(alone.losses(), [lost(4, 5, 4), lost(6, 8, 6)]);
    let mut new = old.promoted(9, 4);
    alone.welcome(&new.welcome(1), Start::Live);
    for (first, last, reported, records) in [(6, 8, 6, 0), (4, 5, 4, 2)] {
        let corrected = Event::LossCorrected {
            sequences: SequenceRange::new(Sequence(first), Sequence(last)).unwrap(),
            reported,
            records,
        };
        assert!(alone.events.contains(&corrected), "{:?}", alone.events);
    }
    assert!(alone.events.contains(&continued(5, 9, 4, 0)));
    alone.answer(&new.sent[&5].clone());
    alone.hear(A, &new.publish(9));
    let expected: Vec<u64> = (1..=6).chain(9..=17).collect();
    assert_eq!(alone.records, expected);
    let c = alone.counters();
    assert_eq!((c.lost_records.get(), c.fenced_records.get()), (10, 8));
}

#[test]
fn pending_loss_ends_at_the_old_epoch_cut() {
    let (old, sent, mut alone) = eight_within_deadline();
    alone.hear(A, &sent[0]);
    // The STATUS says that 8 datagrams were sent, but not how many records they have.
    let mut status = old.status();
    status.next_record = RecordNumber(0);
    alone.status(&status);
    alone.status(&status);
    alone.later(301);
    assert_eq!(alone.losses(), [], "nobody knows how much");
    let mut new = old.promoted(9, 4);
    alone.welcome(&new.welcome(1), Start::Live);
    assert_eq!(alone.losses(), [(2, 4, Some(6), LossCause::Deadline)]);
    assert!(alone.events.contains(&continued(5, 9, 4, 0)));
    alone.answer(&new.sent[&5].clone());
    alone.hear(A, &new.publish(3));
    assert_eq!(alone.records, [1, 2, 9, 10, 11]);
    assert_eq!(alone.counters().lost_records.get(), 6);
}

#[test]
fn publisher_death_after_reported_end_is_followed() {
    let mut old = Publisher::new(5, 1);
    let mut alone = Alone::welcomed(immediate(), &old, Start::Live, 1);
    let sent = published(&mut old, &[2; 6]);
    for n in [0, 1, 2, 5] {
        alone.hear(A, &sent[n]);
    }
    alone.link_down(LinkDownReason::Closed);
    alone.later(10_000_000);
    alone.later(10_000_000);
    assert!(alone.events.contains(&Event::PublisherDead));
    let lost = (4, 5, Some(4), LossCause::PublisherDead);
    assert_eq!(alone.losses(), [lost]);
    assert_eq!(alone.records, [1, 2, 3, 4, 5, 6, 11, 12]);
    let mut new = old.promoted(9, 4);
    alone.welcome(&new.welcome(1), Start::Live);
    assert!(alone.events.contains(&continued(5, 9, 4, 4)));
    assert!(!alone.receiver.stream_state().publisher_dead);
    alone.answer(&new.sent[&5].clone());
    alone.hear(A, &new.publish(9));
    assert_eq!(alone.records[8..], numbers(13..=17), "9 to 12 were settled");

    let mut old = Publisher::new(5, 1);
    let mut alone = Alone::welcomed(quiet(), &old, Start::Live, 1);
    alone.hear(A, &old.publish(1));
    alone.answer(&old.end());
    assert!(alone.receiver.ended() && alone.receiver.stream_state().ended);
    let mut new = old.promoted(9, 1);
    alone.welcome(&new.welcome(1), Start::Live);
    assert!(!alone.receiver.ended() && !alone.receiver.stream_state().ended);
    alone.answer(&new.sent[&2].clone());
    alone.hear(A, &new.publish(1));
    alone.answer(&new.end());
    assert_eq!(alone.records, [1, 2]);
    let ends = alone.events.iter().filter(|it| **it == Event::EndOfSession);
    assert_eq!(ends.count(), 2);
}

#[test]
fn zombie_tail_after_promotion_is_dropped() {
    let mut old = Publisher::new(5, 1);
    let mut alone = Alone::welcomed(quiet(), &old, Start::Live, 1);
    let sent = published(&mut old, &[1; 3]);
    alone.hear(A, &sent[0]);
    let mut new = old.promoted(9, 3);
    alone.welcome(&new.welcome(1), Start::Live);
    // The old publisher continues. Its datagrams beyond the cut are rejected, and so are all of its
    // heartbeats.
    alone.hear(A, &old.heartbeat());
    alone.hear(A, &old.publish(1));
    alone.hear(A, &old.heartbeat());
    assert_eq!(alone.counters().old_epoch_dropped.get(), 3);
    // A datagram under the new epoch with a sequence that the old epoch sealed is rejected as well.
    let mut forger = Publisher::new(9, 1);
    forger.publish(1);
    alone.hear(A, &forger.publish(7));
    assert_eq!(alone.counters().old_epoch_dropped.get(), 4);
    // Multicast repairs of the old epoch are the sealed datagrams.
    alone.hear(A, &again(&sent[1]));
    alone.hear(A, &again(&sent[2]));
    assert_eq!(alone.records, [1, 2, 3]);
    // The old publisher's WELCOME is of an outdated epoch.
    assert_eq!(
        alone.welcome(&old.welcome(1), Start::Live),
        Welcomed::Zombie
    );
    alone.hear(A, &new.publish(1));
    alone.answer(&new.sent[&4].clone());
    assert_eq!(alone.records, [1, 2, 3, 4]);
}

#[test]
fn promotions_are_followed_together_or_one_by_one() {
    let mut first = Publisher::new(5, 1);
    let mut slow = Alone::welcomed(quiet(), &first, Start::Live, 1);
    let mut quick = Alone::welcomed(quiet(), &first, Start::Live, 1);
    for bytes in published(&mut first, &[2; 6]) {
        slow.hear(A, &bytes);
        quick.hear(A, &bytes);
    }
    let mut second = first.promoted(6, 4);
    quick.welcome(&second.welcome(1), Start::Live);
    quick.answer(&second.sent[&5].clone());
    // The first three records of the second epoch are repeated. It dies with the fourth.
    for bytes in published(&mut second, &[3, 2]) {
        quick.hear(A, &bytes);
    }
    let mut third = second.promoted(7, 6);
    published(&mut third, &[4, 1]);
    for alone in [&mut slow, &mut quick] {
        alone.welcome(&third.welcome(1), Start::Live);
        let rest: Vec<_> = third.sent.range(5..).map(|(_, b)| b.clone()).collect();
        rest.iter().for_each(|bytes| alone.answer(bytes));
        assert_eq!(alone.records, numbers(1..=16));
        assert!(alone.events.contains(&continued(5, 6, 4, 4)));
        assert_eq!(alone.receiver.position().epoch, Epoch(7));
    }
    assert!(slow.events.contains(&continued(6, 7, 6, 0)));
    assert!(quick.events.contains(&continued(6, 7, 6, 2)));
    assert_eq!(slow.counters().records_already_delivered.get(), 4);
    assert_eq!(quick.counters().records_already_delivered.get(), 4 + 2);
}

#[test]
fn other_line_is_other_epoch_from_its_start() {
    let mut old = Publisher::new(5, 1);
    published(&mut old, &[2; 9]);
    let mut stranger = Publisher::new(6, 1);
    let mut alone = Alone::welcomed(quiet(), &stranger, Start::Live, 1);
    alone.hear(A, &stranger.publish(3));
    let mut new = old.promoted(9, 7);
    new.publish(2);
    assert_eq!(
        alone.welcome(&new.welcome(1), Start::Live),
        Welcomed::EpochChanged
    );
    assert_eq!(alone.losses(), [(2, u64::MAX, None, LossCause::Epoch)]);
    assert_eq!(alone.receiver.progress(), (Sequence(7), Sequence(9)));
    assert_eq!(alone.counters().replay_requested.get(), 2);
    alone.answer(&new.sent[&8].clone());
    alone.answer(&new.sent[&9].clone());
    assert_eq!(alone.records, [1, 2, 3, 15, 16]);
    assert_eq!(alone.losses().len(), 1, "and nothing else is lost");
}

#[test]
fn late_joiner_starts_in_history_of_the_old_epoch() {
    let mut old = Publisher::new(5, 1);
    published(&mut old, &[2; 6]);
    old.oldest = 3;
    let mut new = old.promoted(9, 5);
    new.publish(1);
    let mut world = World::new(immediate(), Start::Oldest, 1);
    world.pass(Nanos::from_ms(50), &new);
    assert_eq!(world.records, numbers(5..=11));
    let joined = Event::Joined { after: Sequence(2) };
    assert_eq!(world.events[0], joined);
    assert!(world.saw(&continued(5, 9, 5, 0)), "{:?}", world.events);
    // A start position in the old epoch continues there.
    for (epoch, sequence, after, records) in [
        (5, 4, 3, numbers(7..=11)),
        (5, 6, 5, numbers(11..=11)),
        (5, 99, 5, numbers(11..=11)),
        (9, 7, 6, numbers(11..=11)),
        (9, 4, 3, numbers(7..=11)),
    ] {
        let start = Start::At(Epoch(epoch), Sequence(sequence));
        let mut world = World::new(immediate(), start, 1);
        world.pass(Nanos::from_ms(50), &new);
        let joined = Event::Joined {
            after: Sequence(after),
        };
        assert_eq!(world.events[0], joined);
        assert_eq!(world.records, records, "from {sequence} of {epoch}");
        assert!(no_epoch_changed(&world) && world.losses().is_empty());
    }
    // A later start also moves on beyond the cut.
    let mut world = World::new(immediate(), Start::Oldest, 1);
    world.answer = false;
    world.settle(&new);
    let late = new.refused(run(3, 7), RefusalReason::Window, 0);
    let late = tickcast_reliability::control::Refused {
        oldest: Sequence(7),
        oldest_record: RecordNumber(11),
        ..late
    };
    world.tell(Path::Repair, &Message::Refused(late));
    let joined = Event::Joined { after: Sequence(6) };
    assert_eq!(world.events.last(), Some(&joined));
    world.answer = true;
    world.pass(Nanos::from_ms(50), &new);
    assert_eq!(world.records, [11]);
    assert!(!world.saw(&continued(5, 9, 5, 0)), "it began behind it");
}

#[test]
fn welcome_with_impossible_lineage_ends_the_connection() {
    let mut old = Publisher::new(5, 1);
    let mut world = World::joined(immediate(), &old);
    world.hear(A, &old.publish(1));
    let mut new = old.promoted(9, 1);
    new.lineage = Lineage::from(vec![Continued {
        epoch: Epoch(9),
        last: Sequence(1),
        next_record: RecordNumber(2),
        complete: false,
    }]);
    world.events.clear();
    moves_to(&mut world, &new);
    let down = Event::RepairLinkDown(LinkDownReason::Protocol);
    let closed = Event::RepairLinkDown(LinkDownReason::Closed);
    assert!(world.saw(&closed) || world.saw(&down));
    assert!(world.counters().welcomes_invalid.get() >= 1);
    assert!(!world.core.is_joined());
    assert_eq!(world.core.receiver(CHANNEL).unwrap().epoch(), Epoch(5));
}

#[test]
fn ring_read_after_promotion_accepts_the_sealing_epoch() {
    let mut old = Publisher::new(5, 1);
    let mut world = World::new(immediate(), Start::Live, 1);
    world.repairs = vec![tickcast_reliability::control::RepairOffer::Verbs {
        address: "10.0.0.1:7410".parse().unwrap(),
        read: true,
        mirror: false,
    }];
    world.give(SubscriberInput::UseReadPath(true));
    world.settle(&old);
    let sent = published(&mut old, &[1; 4]);
    world.answer = false;
    world.reads = false;
    world.hear(A, &sent[0]);
    world.hear(A, &sent[3]);
    world.settle(&old);
    let mut new = old.promoted(9, 4);
    (world.answer, world.reads) = (true, true);
    world.read_requests.clear();
    moves_to(&mut world, &new);
    assert_eq!(world.records, numbers(1..=4));
    // Gaps of the new epoch are READ as well.
    new.publish(1);
    world.hear(A, &new.publish(1));
    world.pass(Nanos::from_ms(20), &new);
    assert_eq!(world.records, numbers(1..=6));
    assert_eq!(world.counters().reads_torn.get(), 0);
    assert!(world.counters().read_repairs_received.get() > 0);
}

#[test]
fn following_standby_holds_deliveries_and_promotes() {
    let mut old = Publisher::new(5, 1);
    published(&mut old, &[2; 3]);
    let mut world = World::new(immediate(), Start::Oldest, 1);
    world.answer = false;
    world.settle(&old);
    let offer = old.welcome(1).channels.remove(0);
    let geometry = Mirror::geometry_of(&offer).unwrap();
    let host = MirrorHost {
        fan_outs: 1,
        boot_id: [0; 16],
        config_hash: ConfigHash(0),
    };
    let memory = Arc::new(HeapMemory::new(geometry));
    let mirror = Mirror::create(memory, &offer, host).unwrap();
    world.give(SubscriberInput::Mirror(CHANNEL, &mut Some(mirror)));
    assert!(world.core.mirror(CHANNEL).is_some());
    world.answer = true;
    world.pass(Nanos::from_ms(50), &old);
    // A twin's datagram arrives first, and the publisher's own replaces it.
    let mut twin = Publisher::new(5, 4);
    twin.next_record = 7;
    world.hear(A, &twin.publish(5));
    world.hear(A, &old.publish(2));
    world.pass(Nanos::from_ms(50), &old);
    let missed = old.publish(2);
    world.hear(A, &old.publish(1));
    world.pass(Nanos::from_ms(50), &old);
    let mirrored = world.core.mirror(CHANNEL).unwrap().mirrored();
    assert_eq!(mirrored.last, Sequence(6));
    assert_eq!(mirrored.next_record, RecordNumber(12));
    let positions = world.core.mirror(CHANNEL).unwrap().positions();
    assert_eq!(positions.map(|(_, at)| at.0).collect::<Vec<_>>(), [6]);
    // The old publisher is continued by another standby, and this one follows it.
    let mut new = old.promoted(8, 5);
    new.publish(1);
    moves_to(&mut world, &new);
    let mirror = world.core.take_mirror(CHANNEL).unwrap();
    let mirrored = mirror.mirrored();
    assert_eq!((mirrored.epoch, mirrored.last), (Epoch(8), Sequence(7)));
    let Promotion { ring, .. } = mirror.promote(Epoch(11), false).ok().unwrap();
    for (sequence, bytes) in &new.sent {
        if *sequence <= 7 {
            assert_eq!(
                ring.slot(Sequence(*sequence)),
                Some(&bytes[..]),
                "{sequence}"
            );
        }
    }
    assert_eq!(
        ring.slot(Sequence(5)).unwrap()[59] & relay_flags::RETRANSMITTED,
        0
    );
    assert_eq!(again(&missed)[59], relay_flags::RETRANSMITTED);
    let epochs: Vec<_> = ring
        .lineage()
        .epochs()
        .iter()
        .map(|it| (it.epoch.0, it.last.0))
        .collect();
    assert_eq!(epochs, [(8, 7), (5, 5)]);
}

#[test]
fn mirror_stops_at_hole_until_publisher_returns() {
    let mut publisher = Publisher::new(8, 1);
    let mut world = World::joined(immediate(), &publisher);
    let offer = publisher.welcome(1).channels.remove(0);
    let geometry = Mirror::geometry_of(&offer).unwrap();
    let memory = Arc::new(HeapMemory::new(geometry));
    let host = MirrorHost {
        fan_outs: 1,
        boot_id: [1; 16],
        config_hash: ConfigHash(3),
    };
    let mirror = Mirror::create(memory, &offer, host).unwrap();
    world.give(SubscriberInput::Mirror(CHANNEL, &mut Some(mirror)));
    assert!(world.core.mirror(CHANNEL).is_some());
    world.hear(A, &publisher.publish(2));
    publisher.publish(1);
    world.connectable = false;
    world.cut(LinkDownReason::Closed);
    world.hear(A, &publisher.publish(2));
    world.pass(Nanos::from_secs(6), &publisher);
    assert!(world.saw(&Event::PublisherDead));
    assert!(world.losses().is_empty(), "{:?}", world.losses());
    let mirrored = |world: &World| world.core.mirror(CHANNEL).unwrap().mirrored();
    assert_eq!(
        (mirrored(&world).last, mirrored(&world).holes),
        (Sequence(1), 0)
    );
    world.connectable = true;
    world.pass(Nanos::from_secs(3), &publisher);
    assert_eq!(
        (mirrored(&world).last, mirrored(&world).holes),
        (Sequence(3), 0)
    );
    world.assert_balanced(&publisher, "");
}

/// Returns a receiver that follows this publisher and mirrors it.
pub(crate) fn mirroring(publisher: &Publisher) -> Alone {
    let mut alone = Alone::welcomed(quiet(), publisher, Start::Oldest, 1);
    let offer = publisher.welcome(1).channels.remove(0);
    let memory = Arc::new(HeapMemory::new(Mirror::geometry_of(&offer).unwrap()));
    let host = MirrorHost {
        fan_outs: 1,
        boot_id: [1; 16],
        config_hash: ConfigHash(3),
    };
    let mirror = Mirror::create(memory, &offer, host).unwrap();
    assert!(alone.receiver.set_mirror(Some(mirror)).is_none());
    alone
}

#[test]
fn mirror_takes_no_multicast_of_an_old_outage() {
    let mut publisher = Publisher::new(5, 1);
    let mut alone = mirroring(&publisher);
    alone.hear(A, &publisher.publish(2));
    let last = |alone: &Alone| alone.receiver.mirror().unwrap().mirrored().last.0;
    alone.link_down(LinkDownReason::Closed);
    // It was in the socket when the connection broke.
    alone.later(19_999);
    alone.hear(A, &publisher.publish(1));
    assert_eq!(last(&alone), 2);
    alone.later(1);
    let next = publisher.publish(1);
    alone.hear(A, &next);
    alone.hear(A, &next);
    alone.hear(A, &publisher.publish(1));
    assert_eq!(last(&alone), 2);
    assert_eq!(alone.counters().sequence_jump_dropped.get(), 3);
    alone.later(1_000_000);
    alone.hear(A, &publisher.end());
    assert!(!alone.receiver.mirror().unwrap().mirrored().ended);
    assert!(!alone.events.contains(&Event::PublisherDead), "it is heard");
    // With a connection the mirror has all of it.
    alone.welcome(&publisher.welcome(1), Start::Live);
    for sequence in 3..=5 {
        alone.answer(&publisher.sent[&sequence].clone());
    }
    let mirrored = alone.receiver.mirror().unwrap().mirrored();
    assert_eq!((mirrored.last, mirrored.ended), (Sequence(5), true));
}

#[test]
fn mirror_restarts_with_an_epoch_of_another_lineage() {
    let mut old = Publisher::new(5, 1);
    let mut alone = mirroring(&old);
    for bytes in published(&mut old, &[2; 4]) {
        alone.hear(A, &bytes);
    }
    let mut stranger = Publisher::new(6, 1);
    assert_eq!(
        alone.welcome(&stranger.welcome(1), Start::Live),
        Welcomed::EpochChanged
    );
    for bytes in published(&mut stranger, &[3; 2]) {
        alone.hear(A, &bytes);
    }
    let mirrored = alone.receiver.mirror().unwrap().mirrored();
    assert_eq!((mirrored.epoch, mirrored.holes), (Epoch(6), 0));
    assert_eq!(mirrored.held, Some(run(1, 2)));
    assert_eq!(mirrored.next_record, RecordNumber(7));
}

#[test]
fn mirror_is_dropped_when_the_ring_geometry_changes() {
    let mut old = Publisher::new(5, 1);
    let sent = published(&mut old, &[2; 4]);
    let (on, anew) = (old.promoted(6, 4), Publisher::new(6, 1));
    for (next, welcomed) in [(&on, Welcomed::Continued), (&anew, Welcomed::EpochChanged)] {
        for (slots, kept) in [(SLOTS, true), (2 * SLOTS, false)] {
            let mut alone = mirroring(&old);
            for bytes in &sent {
                alone.hear(A, bytes);
            }
            let mut welcome = next.welcome(1);
            welcome.channels[0].slots = slots;
            assert_eq!(alone.welcome(&welcome, Start::Live), welcomed);
            assert_eq!(alone.receiver.mirror().is_some(), kept, "{slots} slots");
        }
    }
}
