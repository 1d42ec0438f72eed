//! A reader of the publisher's ring in the same host. Overwritten datagrams are lost at once, exactly
//! and without a NACK. Copied datagrams are complete whatever their CRC.

use tickcast_reliability::delivery::LossCause;
use tickcast_reliability::record::AlignedCopy;
use tickcast_reliability::session::SubscriberInput;
use tickcast_reliability::types::{Epoch, Sequence};

use crate::world::*;

fn overrun(world: &mut World, epoch: Epoch, first: u64, last: u64) {
    let overrun = SubscriberInput::Overrun {
        channel: CHANNEL,
        epoch,
        range: run(first, last),
    };
    world.give(overrun);
}

/// Returns the first and last sequence, records and cause of each loss.
fn losses(world: &World) -> Vec<(u64, u64, Option<u64>, LossCause)> {
    let losses = world.losses().into_iter();
    let losses = losses.map(|it| {
        (
            it.sequences.first.0,
            it.sequences.last.0,
            it.records,
            it.cause,
        )
    });
    losses.collect()
}

#[test]
fn readers_overrun_is_lost_to_record_without_request() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = World::joined(immediate(), &publisher);
    let first = publisher.publish(2);
    world.hear(A, &first);
    (0..5).for_each(|_| drop(publisher.publish(3)));
    overrun(&mut world, publisher.epoch, 2, 6);
    let next = publisher.publish(1);
    world.hear(A, &next);
    world.settle(&publisher);
    assert_eq!(losses(&world), [(2, 6, Some(15), LossCause::Window)]);
    assert_eq!(world.records, [1, 2, 18]);
    assert!(world.nacks.is_empty(), "{:?}", world.nacks);
    let c = world.counters();
    assert_eq!((c.missing_datagrams.get(), c.missing_lost.get()), (5, 5));
    world.assert_balanced(&publisher, "overrun");
}

#[test]
fn overrun_beyond_ring_continues_unconfirmed() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = World::joined(immediate(), &publisher);
    let first = publisher.publish(1);
    world.hear(A, &first);
    (0..5 * SLOTS).for_each(|_| drop(publisher.publish(1)));
    let last = publisher.newest().0;
    overrun(&mut world, publisher.epoch, 2, last);
    let next = publisher.publish(1);
    world.hear(A, &next);
    world.settle(&publisher);
    assert_eq!(
        losses(&world),
        [(2, last, Some(last - 1), LossCause::Window)]
    );
    assert_eq!(world.counters().sequence_jump_dropped.get(), 0);
    assert!(world.nacks.is_empty());
    world.assert_balanced(&publisher, "far behind");
}

#[test]
fn otherwise_delivered_is_not_lost() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = World::joined(quiet(), &publisher);
    let all: Vec<_> = (0..6).map(|_| publisher.publish(1)).collect();
    world.hear(A, &all[0]);
    world.hear(A, &all[3]);
    overrun(&mut world, Epoch(4), 2, 5);
    assert!(losses(&world).is_empty());
    overrun(&mut world, publisher.epoch, 2, 5);
    world.hear(A, &all[5]);
    let (one, two) = ((2, 3, Some(2)), (5, 5, Some(1)));
    let reported = losses(&world).into_iter().map(|it| (it.0, it.1, it.2));
    assert_eq!(reported.collect::<Vec<_>>(), [one, two]);
    assert_eq!(world.records, [1, 4, 6]);
    world.assert_balanced(&publisher, "one came");
}

#[test]
fn copied_datagram_skips_crc_but_no_other_check() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = World::joined(quiet(), &publisher);
    let mut copied = publisher.publish(1);
    copied[60] ^= 1;
    let whole = |world: &mut World, bytes: &[u8]| {
        let mut aligned = AlignedCopy::default();
        let bytes = aligned.of(bytes);
        world.input(|core, now, mut on| {
            core.handle_bytes(now, (CHANNEL, A), bytes, true, &mut on);
        });
    };
    world.hear(A, &copied);
    assert_eq!(world.counters().corrupt_dropped.get(), 1);
    whole(&mut world, &copied);
    assert_eq!(world.records, [1]);
    let mut foreign = publisher.publish(1);
    foreign[8] = 4;
    whole(&mut world, &foreign);
    whole(&mut world, &foreign[..70]);
    let c = world.counters();
    assert_eq!(c.old_epoch_dropped.get(), 1);
    assert_eq!(c.malformed_dropped.get(), 1);
    assert_eq!(
        world.core.receivers().next().unwrap().progress().0,
        Sequence(1)
    );
}
