//! READ of the publisher's ring: the first step of repair where it is granted. Only epoch, sequence and
//! CRC make a slot valid. A failing READ is harmless.

use tickcast_reliability::control::{Message, Purpose, RefusalReason, RepairOffer, Start};
use tickcast_reliability::delivery::{Event, LinkDownReason, LossCause};
use tickcast_reliability::receive::{ReceiverConfig, RemoteOp, RepairOrder};
use tickcast_reliability::ring::offset;
use tickcast_reliability::session::{Action, Path, SubscriberInput};
use tickcast_reliability::types::Nanos;

use crate::world::*;

fn offer(read: bool) -> RepairOffer {
    let address = "10.0.0.1:7410".parse().unwrap();
    RepairOffer::Verbs {
        address,
        read,
        mirror: false,
    }
}

/// Returns a joined subscriber with an offer and a grant for READ.
fn joined(ladder: RepairOrder, publisher: &Publisher) -> World {
    joined_with(ladder, publisher, |_| ())
}

fn joined_with(ladder: RepairOrder, publisher: &Publisher, set: impl FnOnce(&mut World)) -> World {
    begun_with(ReceiverConfig { ladder, ..quiet() }, publisher, set)
}

/// Returns such a subscriber with a short timeout for the publisher's silence.
fn watchful(publisher: &Publisher) -> World {
    let (stale_us, dead_us) = (30_000, 5_000_000);
    let config = ReceiverConfig {
        ladder: RepairOrder::Read,
        stale_us,
        dead_us,
        ..quiet()
    };
    begun_with(config, publisher, |_| ())
}

fn begun_with(
    config: ReceiverConfig,
    publisher: &Publisher,
    set: impl FnOnce(&mut World),
) -> World {
    let mut world = World::new(config, Start::Live, 1);
    world.repairs = vec![offer(true)];
    world.give(SubscriberInput::UseNackPath(true));
    world.give(SubscriberInput::UseReadPath(true));
    set(&mut world);
    world.settle(publisher);
    world.asked_on.clear();
    world
}

/// Loses `count` datagrams in a row and delivers the next one.
fn lose(world: &mut World, publisher: &mut Publisher, count: u64) {
    for _ in 0..count {
        publisher.publish(1);
    }
    let bytes = publisher.publish(1);
    world.hear(A, &bytes);
    world.settle(publisher);
}

fn asked(world: &mut World) -> Vec<(Path, u64)> {
    let all = std::mem::take(&mut world.asked_on);
    all.into_iter()
        .map(|(path, range)| (path, range.first.0))
        .collect()
}

/// Returns the slot index and the number of slots of each READ in flight.
fn begun(world: &World) -> Vec<(u64, u64)> {
    let slot_len = SLOT_LEN as u64;
    let slots = world.read_requests.iter().map(|request| {
        let at = (request.address - RING_AT - 4096) / slot_len;
        (at, u64::from(request.len) / slot_len)
    });
    slots.collect()
}

#[test]
fn missing_slots_are_read_without_a_nack() {
    for ladder in [RepairOrder::Read, RepairOrder::ReadThenNack] {
        let mut publisher = Publisher::new(5, 1);
        let mut world = joined(ladder, &publisher);
        for count in [1, 2, 3] {
            lose(&mut world, &mut publisher, count);
        }
        assert_eq!(world.records, numbers(1..=9));
        assert_eq!(asked(&mut world), []);
        let c = world.counters();
        assert_eq!((c.reads.get(), c.read_sequences.get()), (3, 6));
        assert_eq!(
            (c.read_repairs_received.get(), c.missing_recovered.get()),
            (6, 6)
        );
        assert_eq!((c.nacks_sent.get(), c.read_links_up.get()), (0, 1));
        world.pass(Nanos::from_secs(11), &publisher);
        assert_eq!(world.read_bytes, 6 * SLOT_LEN as u64, "what PROGRESS says");
        let looked = world.counters().page_reads.get();
        assert_eq!(looked, 0, "multicast is heard");
        world.assert_balanced(&publisher, "");
    }
}

#[test]
fn repair_order_determines_the_connections_made() {
    let publisher = Publisher::new(5, 1);
    for (ladder, paths) in [
        (RepairOrder::Read, vec![Path::Repair, Path::Read]),
        (RepairOrder::Nack, vec![Path::Repair, Path::Nack]),
        (
            RepairOrder::ReadThenNack,
            vec![Path::Repair, Path::Read, Path::Nack],
        ),
    ] {
        let world = joined(ladder, &publisher);
        let connected: Vec<Path> = world.connects.iter().map(|(path, _)| *path).collect();
        assert_eq!(connected, paths, "{ladder:?}");
        let session = 9 + 1;
        let read = Purpose::Read {
            session,
            attempt: 1,
        };
        assert_eq!(world.joins.contains(&read), ladder.reads());
    }
}

#[test]
fn read_connection_needs_an_offer_and_a_capable_driver() {
    let mut publisher = Publisher::new(5, 1);
    for (read, usable) in [(false, true), (true, false)] {
        let mut world = joined_with(RepairOrder::Read, &publisher, |world| {
            world.repairs = vec![offer(read)];
            world.give(SubscriberInput::UseReadPath(usable));
        });
        lose(&mut world, &mut publisher, 1);
        assert!(world.connects.iter().all(|(path, _)| *path == Path::Repair));
        assert_eq!(asked(&mut world).len(), 1);
        assert_eq!(world.core.read_offer().is_some(), read);
    }
}

#[test]
fn reads_use_each_offer_that_allows_them() {
    let publisher = Publisher::new(5, 1);
    let at = |address: &str, read| RepairOffer::Verbs {
        address: address.parse().unwrap(),
        read,
        mirror: false,
    };
    let (one, other) = (at("10.0.0.1:7410", true), at("10.0.2.1:7410", true));
    let mut world = joined_with(RepairOrder::Read, &publisher, |world| {
        world.repairs = vec![at("10.0.1.1:7410", false), one, other];
    });
    for offer in [other, one] {
        let closed = LinkDownReason::Closed;
        world.give(SubscriberInput::Disconnected(Path::Read, closed));
        assert_eq!(world.core.read_offer(), Some(offer));
        world.pass(Nanos::from_secs(1), &publisher);
    }
    // Without a device for either, no attempt follows.
    world.without_device = vec![one, other];
    let closed = LinkDownReason::Closed;
    world.give(SubscriberInput::Disconnected(Path::Read, closed));
    world.pass(Nanos::from_secs(1), &publisher);
    assert_eq!(world.core.read_offer(), None);
    let attempts = world.connects.len();
    world.pass(Nanos::from_secs(60), &publisher);
    assert_eq!(world.connects.len(), attempts);
}

#[test]
fn run_is_read_in_pieces_within_the_ring() {
    let mut publisher = Publisher::new(5, SLOTS - 2);
    let mut world = joined(RepairOrder::Read, &publisher);
    world.reads = false;
    lose(&mut world, &mut publisher, 30);
    // Four READs at a time, of four slots each, and of two up to the end of the ring.
    let expected = [(SLOTS - 2, 2), (0, 4), (4, 4), (8, 4)];
    assert_eq!(begun(&world), expected);
    assert_eq!(world.read_requests[0].len as usize, 2 * SLOT_LEN);
    // A completed READ makes room for the next.
    let first = world.read_requests.remove(0);
    world.read_done(&publisher, &first, |_| ());
    world.settle(&publisher);
    assert_eq!(begun(&world)[2..], [(8, 4), (12, 4)]);
    assert_eq!(asked(&mut world), [], "the rest waits");
    world.reads = true;
    world.settle(&publisher);
    assert_eq!(world.records.len(), 31);
    assert_eq!(asked(&mut world), []);
}

#[test]
fn torn_slot_is_read_again_then_nacked() {
    for (ladder, next) in [
        (RepairOrder::Read, Path::Repair),
        (RepairOrder::ReadThenNack, Path::Nack),
    ] {
        let mut publisher = Publisher::new(5, 1);
        let mut world = joined(ladder, &publisher);
        world.reads = false;
        lose(&mut world, &mut publisher, 3);
        let whole = world.read_requests.remove(0);
        // The second of three was being written.
        world.read_done(&publisher, &whole, |bytes| bytes[SLOT_LEN + 100] ^= 1);
        assert_eq!(world.records, numbers(1..=1));
        world.settle(&publisher);
        assert_eq!(begun(&world), [(2, 1)]);
        let again = world.read_requests.remove(0);
        world.read_done(&publisher, &again, |bytes| bytes[16..24].fill(0));
        world.settle(&publisher);
        assert_eq!(begun(&world), []);
        assert_eq!(asked(&mut world), [(next, 2)]);
        assert_eq!(world.records, numbers(1..=4));
        let c = world.counters();
        assert_eq!((c.reads_torn.get(), c.read_timeouts.get()), (2, 0));
        world.assert_balanced(&publisher, "");
    }
}

#[test]
fn torn_slot_without_room_is_nacked_and_counted() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = joined(RepairOrder::Read, &publisher);
    world.reads = false;
    for count in [3, 1, 1, 1] {
        lose(&mut world, &mut publisher, count);
    }
    assert_eq!(world.counters().reads.get(), 4, "all there is room for");
    let whole = world.read_requests.remove(0);
    // The first and the third were being written, and the READ made room for one.
    world.read_done(&publisher, &whole, |bytes| {
        bytes[100] ^= 1;
        bytes[2 * SLOT_LEN + 100] ^= 1;
    });
    world.settle(&publisher);
    assert_eq!(begun(&world).last(), Some(&(1, 1)));
    assert_eq!(asked(&mut world), [(Path::Repair, 3)]);
    let c = world.counters();
    assert_eq!((c.reads_torn.get(), c.reads_not_begun.get()), (2, 1));
}

#[test]
fn read_slot_of_other_epoch_or_channel_is_rejected() {
    for spoilt in [4, 8] {
        let mut publisher = Publisher::new(5, 1);
        let mut world = joined(RepairOrder::Read, &publisher);
        world.reads = false;
        lose(&mut world, &mut publisher, 1);
        let request = world.read_requests.remove(0);
        let mut other = publisher.sent[&1].clone();
        other[spoilt] ^= 1;
        let crc = tickcast_reliability::wire::crc_of(other[..64].try_into().unwrap(), &other[64..]);
        other[60..64].copy_from_slice(&crc.to_le_bytes());
        world.read_done(&publisher, &request, |bytes| {
            bytes[..other.len()].copy_from_slice(&other);
        });
        assert!(world.records.is_empty());
        assert_eq!(world.counters().reads_torn.get(), 1);
    }
}

#[test]
fn lapped_slot_is_declared_lost_immediately() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = joined(RepairOrder::Read, &publisher);
    world.reads = false;
    lose(&mut world, &mut publisher, 3);
    let request = world.read_requests.remove(0);
    // The ring wrapped meanwhile: slots 1 and 2 hold sequences one ring later, slot 3 does not yet.
    while publisher.next < 3 + SLOTS {
        publisher.publish(1);
    }
    world.read_done(&publisher, &request, |_| ());
    world.settle(&publisher);
    let losses = world.losses();
    let [loss] = &losses[..] else {
        panic!("{losses:?}")
    };
    assert_eq!(
        (loss.cause, loss.sequences.first.0, loss.sequences.last.0),
        (LossCause::Window, 1, 2)
    );
    assert_eq!(
        world.records,
        numbers(3..=4),
        "what the ring still holds came"
    );
    assert_eq!(world.counters().reads_lapped.get(), 2);
    assert_eq!(asked(&mut world), []);
}

#[test]
fn late_read_falls_back_to_nack_and_is_still_accepted() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = joined(RepairOrder::ReadThenNack, &publisher);
    (world.reads, world.rc_answers) = (false, false);
    lose(&mut world, &mut publisher, 1);
    assert_eq!(begun(&world), [(1, 1)]);
    world.pass(Nanos::from_us(749), &publisher);
    assert_eq!(asked(&mut world), []);
    world.pass(Nanos::from_us(502), &publisher);
    assert_eq!(asked(&mut world), [(Path::Nack, 1)]);
    assert_eq!(world.counters().read_timeouts.get(), 1);
    world.pass(Nanos::from_us(1_251), &publisher);
    assert_eq!(asked(&mut world), [(Path::Repair, 1)]);
    assert_eq!(world.records, numbers(1..=2));
    let late = world.read_requests.remove(0);
    world.read_done(&publisher, &late, |_| ());
    assert_eq!(world.counters().duplicates.get(), 1);
    // The next READ has a longer timeout.
    lose(&mut world, &mut publisher, 1);
    world.pass(Nanos::from_us(1_124), &publisher);
    assert_eq!(asked(&mut world), []);
}

#[test]
fn broken_connection_is_rebuilt_with_new_grant() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = joined(RepairOrder::Read, &publisher);
    world.reads = false;
    lose(&mut world, &mut publisher, 1);
    let lost = world.read_requests.remove(0);
    world.give(SubscriberInput::Disconnected(
        Path::Read,
        LinkDownReason::Closed,
    ));
    world.settle(&publisher);
    assert_eq!(asked(&mut world), [(Path::Repair, 1)], "at once");
    assert_eq!(world.counters().read_links_down.get(), 1);
    world.read_done(&publisher, &lost, |_| ());
    assert_eq!(
        world.counters().duplicates.get(),
        0,
        "of a connection that is gone"
    );
    // A late grant for the broken connection is ignored.
    world.grant(&publisher, 1, 1 << 30);
    lose(&mut world, &mut publisher, 1);
    assert_eq!(begun(&world), []);
    world.asked_on.clear();
    world.pass(Nanos::from_ms(20), &publisher);
    let attempts = world.joins.iter().filter_map(|join| match join {
        Purpose::Read { attempt, .. } => Some(*attempt),
        _ => None,
    });
    assert_eq!(attempts.collect::<Vec<_>>(), [1, 2]);
    lose(&mut world, &mut publisher, 1);
    assert_eq!(begun(&world).len(), 1);
    assert_eq!(asked(&mut world), []);
}

#[test]
fn unanswered_reads_fall_back_then_drop_the_connection() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = joined(RepairOrder::Read, &publisher);
    world.reads = false;
    // As many READs as there is room for.
    for _ in 0..4 {
        lose(&mut world, &mut publisher, 1);
        world.read_requests.clear();
        world.pass(Nanos::from_ms(100), &publisher);
        assert!(world.core.read_offer().is_some() && world.given_up.is_empty());
    }
    assert_eq!(world.counters().reads.get(), 4);
    assert_eq!(
        world.records.len() as u64,
        publisher.next - 1,
        "asked for otherwise"
    );
    // A gap does not wait for room while the oldest READ is late.
    world.asked_on.clear();
    lose(&mut world, &mut publisher, 1);
    assert_eq!(asked(&mut world).len(), 1);
    assert_eq!(world.counters().reads_not_begun.get(), 1);
    // No device takes that long, so the connection is given up.
    world.pass(Nanos::from_secs(2), &publisher);
    assert_eq!(world.given_up, [Path::Read]);
    lose(&mut world, &mut publisher, 1);
    assert_eq!(world.read_requests.len(), 1, "over the next one");
    assert_eq!(asked(&mut world), []);
}

#[test]
fn gap_waits_for_room_until_a_read_is_late() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = joined(RepairOrder::Read, &publisher);
    world.reads = false;
    for _ in 0..8 {
        lose(&mut world, &mut publisher, 1);
    }
    let counts = |world: &World| {
        let counters = world.counters();
        let (late, waited) = (counters.read_timeouts.get(), counters.reads_not_begun.get());
        (counters.reads.get(), late, waited)
    };
    assert_eq!(counts(&world), (4, 0, 0));
    // Each poll considers the waiting gaps again. READs of the same age are late after them.
    for _ in 0..74 {
        world.pass(Nanos::from_us(10), &publisher);
        assert_eq!(counts(&world), (4, 0, 0));
        lose(&mut world, &mut publisher, 1);
    }
    while counts(&world).2 == 0 {
        world.pass(Nanos::from_us(10), &publisher);
        lose(&mut world, &mut publisher, 1);
    }
    assert_eq!(counts(&world).1, 4, "every READ was late before");
}

#[test]
fn exhausted_read_tokens_are_requested_then_gap_is_nacked() {
    let mut publisher = Publisher::new(5, 1);
    let slot = SLOT_LEN as u64;
    let mut world = joined_with(RepairOrder::Read, &publisher, |world| {
        world.tokens = 4 * slot;
    });
    let before = world.progresses;
    lose(&mut world, &mut publisher, 2);
    assert_eq!(world.progresses, before, "half is left");
    lose(&mut world, &mut publisher, 1);
    world.pass(Nanos::from_ms(1), &publisher);
    assert_eq!((world.progresses, world.read_bytes), (before + 1, 3 * slot));
    // There are no more tokens: one datagram can be READ, then nothing.
    lose(&mut world, &mut publisher, 2);
    assert_eq!(world.counters().read_sequences.get(), 4);
    assert_eq!(asked(&mut world), [], "more may come");
    world.pass(Nanos::from_us(400), &publisher);
    assert_eq!(asked(&mut world), []);
    assert_eq!(world.counters().reads_not_begun.get(), 0);
    world.pass(Nanos::from_ms(2), &publisher);
    assert_eq!(asked(&mut world).len(), 1);
    assert_eq!(world.counters().reads_not_begun.get(), 1);
    // It stays so, without another wait, until the tokens suffice for a slot.
    lose(&mut world, &mut publisher, 1);
    assert_eq!(asked(&mut world).len(), 1);
    world.grant(&publisher, 1, 5 * slot - 1);
    lose(&mut world, &mut publisher, 1);
    assert_eq!(asked(&mut world).len(), 1);
    world.grant(&publisher, 1, 12 * slot);
    lose(&mut world, &mut publisher, 2);
    assert_eq!(asked(&mut world), []);
    assert_eq!(world.counters().read_sequences.get(), 6);
    assert_eq!(world.records.len() as u64, publisher.next - 1);
    // A grant of fewer tokens than before takes nothing back.
    world.grant(&publisher, 1, slot);
    lose(&mut world, &mut publisher, 1);
    assert_eq!(world.counters().read_sequences.get(), 7);
}

#[test]
fn gap_without_slot_token_is_nacked_without_waiting() {
    let mut publisher = Publisher::new(5, 1);
    let slot = SLOT_LEN as u64;
    let mut world = joined_with(RepairOrder::Read, &publisher, |world| {
        world.tokens = slot - 1;
    });
    lose(&mut world, &mut publisher, 1);
    assert_eq!(asked(&mut world), [(Path::Repair, 1)]);
    world.grant(&publisher, 1, 3 * slot);
    lose(&mut world, &mut publisher, 1);
    assert_eq!(asked(&mut world), []);
    assert_eq!(world.counters().read_sequences.get(), 1);
}

#[test]
fn scout_of_large_group_nacks_others_read() {
    // The only subscriber is always a scout. Of a huge group, hardly anyone is.
    for (subscribers, scouts) in [(1, true), (u32::MAX, false)] {
        for (ladder, path) in [
            (RepairOrder::Read, Path::Repair),
            (RepairOrder::ReadThenNack, Path::Nack),
        ] {
            let mut publisher = Publisher::new(5, 1);
            let mut world = joined(ladder, &publisher);
            let beat = publisher.heartbeat_with(25, subscribers);
            world.hear(A, &beat);
            lose(&mut world, &mut publisher, 2);
            assert_eq!(asked(&mut world), [(path, 1)][..usize::from(scouts)]);
            world.pass(Nanos::from_us(25), &publisher);
            let read = if scouts { 0 } else { 2 };
            assert_eq!(world.counters().read_sequences.get(), read);
            assert_eq!(asked(&mut world), []);
            assert_eq!(world.records, numbers(1..=3));
        }
    }
}

#[test]
fn grant_with_wrong_geometry_or_epoch_is_not_used() {
    for change in 0..2 {
        let mut publisher = Publisher::new(5, 1);
        let mut world = joined_with(RepairOrder::Read, &publisher, |world| world.tokens = 0);
        let mut grant = tickcast_reliability::control::Grant {
            epoch: publisher.epoch,
            attempt: 1,
            ring: tickcast_reliability::control::RemoteAccess {
                address: RING_AT,
                len: publisher.ring().len() as u64,
                key: KEY,
            },
            tokens: 1 << 20,
            cursor: None,
        };
        match change {
            0 => grant.ring.len += 1,
            _ => grant.epoch.0 += 1,
        }
        world.tell(Path::Repair, &Message::Grant(grant));
        lose(&mut world, &mut publisher, 1);
        assert_eq!(asked(&mut world).len(), 1);
        assert_eq!(world.counters().read_links_up.get(), 0);
    }
}

#[test]
fn control_page_gives_position_in_silence() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = watchful(&publisher);
    let bytes = publisher.publish(1);
    world.hear(A, &bytes);
    // From here on, TCP does not answer and multicast does not arrive.
    world.answer = false;
    for _ in 0..3 {
        publisher.publish(1);
    }
    world.pass(Nanos::from_ms(50), &publisher);
    assert!(world.saw(&Event::Stale) && world.saw(&Event::MulticastLost));
    assert_eq!(world.records, numbers(1..=4), "it is followed by READ");
    assert!(world.counters().page_reads.get() > 5);
    // While its heartbeat in the control page advances, the publisher is not dead.
    for _ in 0..100 {
        publisher.beat_at += 1;
        world.pass(Nanos::from_ms(100), &publisher);
    }
    assert!(!world.saw(&Event::PublisherDead) && world.given_up.is_empty());
    // When the heartbeat stops, the connection is rebuilt first, and then the death is reported.
    world.pass(Nanos::from_ms(5_001), &publisher);
    assert_eq!(world.given_up[0], Path::Repair);
}

#[test]
fn publisher_ring_ahead_is_alive_while_page_moves() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = watchful(&publisher);
    let bytes = publisher.publish(1);
    world.hear(A, &bytes);
    world.answer = false;
    for _ in 0..SLOTS + 2 {
        publisher.publish(1);
    }
    publisher.oldest = 4;
    for _ in 0..100 {
        publisher.beat_at += 1;
        world.pass(Nanos::from_ms(100), &publisher);
    }
    assert!(world.saw(&Event::MulticastLost));
    assert!(!world.saw(&Event::PublisherDead) && world.given_up.is_empty());
    assert_eq!(world.records, numbers(1..=1), "nothing is believed of it");
}

#[test]
fn control_page_of_another_ring_is_ignored() {
    for (at, bit) in [(0, 1), (8, 2), (32, 1), (48, 1)] {
        let mut publisher = Publisher::new(5, 1);
        let mut world = watchful(&publisher);
        (world.answer, world.reads) = (false, false);
        publisher.publish(1);
        world.pass(Nanos::from_ms(32), &publisher);
        let page = world.read_requests.remove(0);
        assert_eq!((page.address, page.len), (RING_AT, 320));
        world.read_done(&publisher, &page, |bytes| bytes[at] ^= bit);
        assert!(!world.saw(&Event::MulticastLost), "word at {at}");
        assert_eq!(world.counters().page_reads.get(), 0);
    }
}

#[test]
fn unusable_read_path_is_not_retried() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = joined(RepairOrder::Read, &publisher);
    world.give(SubscriberInput::ReadUnusable);
    assert_eq!(
        world.core.poll_action(),
        Some(Action::Disconnect(Path::Read))
    );
    lose(&mut world, &mut publisher, 1);
    world.pass(Nanos::from_secs(3), &publisher);
    assert_eq!(asked(&mut world).len(), 1);
    assert_eq!(world.joins.len(), 2);
}

#[test]
fn grant_of_closed_connection_is_not_reused() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = joined(RepairOrder::Read, &publisher);
    world.tokens = 0;
    world.give(SubscriberInput::Disconnected(
        Path::Read,
        LinkDownReason::Closed,
    ));
    // The grant was in flight over the repair connection.
    world.grant(&publisher, 1, 1 << 20);
    world.pass(Nanos::from_ms(100), &publisher);
    assert_eq!(world.joins.len(), 3, "READ is joined for again");
    world.reads = false;
    lose(&mut world, &mut publisher, 1);
    assert_eq!(world.read_requests, []);
    world.grant(&publisher, 2, 1 << 20);
    lose(&mut world, &mut publisher, 1);
    assert_eq!(world.read_requests.len(), 1);
}

/// Returns the number of READs of the control page in flight.
fn pages(world: &World) -> usize {
    let requests = world.read_requests.iter();
    requests.filter(|it| it.what == RemoteOp::Page).count()
}

/// Returns a subscriber with a READ of the control page in flight after a long silence, and a publisher
/// that answers nothing. The test completes the READ.
fn watching(publisher: &mut Publisher) -> World {
    let mut world = watchful(publisher);
    (world.answer, world.reads) = (false, false);
    let bytes = publisher.publish(1);
    world.hear(A, &bytes);
    world.pass(Nanos::from_ms(32), publisher);
    assert_eq!(pages(&world), 1);
    world
}

/// Completes the READ of the control page with these words.
fn page_done(world: &mut World, publisher: &Publisher, words: &[(usize, u64)]) {
    let page = world.read_requests.remove(0);
    assert_eq!(page.what, RemoteOp::Page);
    world.read_done(publisher, &page, |bytes| {
        for (at, word) in words {
            bytes[*at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
    });
}

#[test]
fn control_page_progress_is_the_furthest_fan_out() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = watching(&mut publisher);
    // Three fan-outs are in use; the word behind them is unused.
    let words = [2, 4, 3, 9].into_iter().enumerate();
    let mut words: Vec<_> = words
        .map(|(n, sent)| (offset::SENT + n * 8, sent))
        .collect();
    words.push((offset::FAN_OUTS, 3));
    page_done(&mut world, &publisher, &words);
    assert!(world.saw(&Event::MulticastLost));
    let c = world.counters();
    assert_eq!((c.page_reads.get(), c.missing_datagrams.get()), (1, 3));
}

#[test]
fn control_page_is_trusted_up_to_one_ring_ahead() {
    for (ahead, missing) in [(0, 0), (1, 1), (SLOTS, SLOTS), (SLOTS + 1, 0)] {
        let mut publisher = Publisher::new(5, 1);
        let mut world = watching(&mut publisher);
        page_done(&mut world, &publisher, &[(offset::SENT, 1 + ahead)]);
        assert_eq!(world.saw(&Event::MulticastLost), ahead > 0, "{ahead}");
        assert_eq!(world.counters().missing_datagrams.get(), missing, "{ahead}");
    }
}

#[test]
fn page_read_before_multicast_return_finds_no_gap() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = watching(&mut publisher);
    let sent: Vec<_> = (0..3).map(|_| publisher.publish(1)).collect();
    world.hear(A, &sent[0]);
    assert!(world.saw(&Event::Recovered));
    // The other datagrams wait in our own socket.
    page_done(&mut world, &publisher, &[]);
    let c = world.counters();
    assert_eq!((c.page_reads.get(), c.missing_datagrams.get()), (1, 0));
    sent[1..].iter().for_each(|bytes| world.hear(A, bytes));
    assert_eq!(world.records, numbers(1..=4));
}

#[test]
fn moving_page_heartbeat_is_life_standing_is_none() {
    let config = ReceiverConfig {
        ladder: RepairOrder::Read,
        stale_us: 10_000,
        dead_us: 60_000,
        ..quiet()
    };
    let mut publisher = Publisher::new(5, 1);
    let mut world = begun_with(config, &publisher, |_| ());
    world.answer = false;
    for _ in 0..20 {
        publisher.beat_at += 1;
        world.pass(Nanos::from_ms(10), &publisher);
    }
    assert!(world.saw(&Event::Stale) && !world.saw(&Event::MulticastLost));
    assert_eq!(world.given_up, []);
    world.pass(Nanos::from_ms(61), &publisher);
    assert_eq!(world.given_up[0], Path::Repair, "first it is made anew");
}

#[test]
fn page_is_read_once_at_a_time_where_room() {
    for (missing, watched) in [(0, 1), (1, 1), (3, 1), (4, 0)] {
        let mut publisher = Publisher::new(5, 1);
        let mut world = watchful(&publisher);
        (world.answer, world.reads) = (false, false);
        for _ in 0..missing {
            lose(&mut world, &mut publisher, 1);
        }
        assert_eq!(begun(&world).len(), missing);
        world.pass(Nanos::from_ms(50), &publisher);
        assert!(world.saw(&Event::Stale));
        assert_eq!(pages(&world), watched, "beside {missing}");
    }
}

#[test]
fn read_wait_is_checked_on_completion_or_late() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = joined(RepairOrder::Read, &publisher);
    world.reads = false;
    for _ in 0..5 {
        lose(&mut world, &mut publisher, 1);
    }
    assert_eq!(begun(&world).len(), 4);
    // Timeout of the first one: four times 250 us, with a deviation of up to a quarter.
    let due = world.core.poll_timeout().since(world.now);
    assert!((750_000..=1_250_000).contains(&due.0), "{due}");
    let first = world.read_requests.remove(0);
    world.read_done(&publisher, &first, |_| ());
    assert!(world.core.poll_timeout() <= world.now, "there is room");
}

#[test]
fn unneeded_reads_free_room_for_waiters() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = joined(RepairOrder::Read, &publisher);
    (world.reads, world.answer) = (false, false);
    let mut late = Vec::new();
    for _ in 0..4 {
        late.push(publisher.publish(1));
        let bytes = publisher.publish(1);
        world.hear(A, &bytes);
        world.settle(&publisher);
    }
    assert_eq!(begun(&world).len(), 4);
    // The datagrams being READ arrive late, so none of them is missing any more.
    for bytes in &late {
        world.hear(A, bytes);
    }
    assert_eq!(world.records, numbers(1..=8));
    lose(&mut world, &mut publisher, 1);
    assert_eq!(asked(&mut world), []);
    // The maximum first retry interval: four times 250 us and a quarter more.
    world.pass(Nanos::from_us(1_251), &publisher);
    assert_eq!(asked(&mut world), [(Path::Repair, 9)]);
}

#[test]
fn tokens_are_requested_below_half_only() {
    let mut publisher = Publisher::new(5, 1);
    let slot = SLOT_LEN as u64;
    let mut world = joined_with(RepairOrder::Read, &publisher, |world| {
        world.tokens = 4 * slot;
    });
    let before = world.progresses;
    lose(&mut world, &mut publisher, 2);
    world.pass(Nanos::from_ms(5), &publisher);
    assert_eq!(world.progresses, before, "half is left");
    lose(&mut world, &mut publisher, 1);
    world.pass(Nanos::from_ms(1), &publisher);
    assert!(world.progresses > before);
}

#[test]
fn late_read_answer_lengthens_next_read_timeouts() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = joined(RepairOrder::ReadThenNack, &publisher);
    (world.answer, world.reads) = (false, false);
    lose(&mut world, &mut publisher, 1);
    world.pass(Nanos::from_us(1_251), &publisher);
    assert_eq!(asked(&mut world), [(Path::Nack, 1)]);
    let late = world.read_requests.remove(0);
    world.read_done(&publisher, &late, |_| ());
    assert_eq!(world.records, numbers(1..=2));
    for _ in 0..4 {
        lose(&mut world, &mut publisher, 1);
    }
    // The timeout is half as long again: at least 1125 us.
    world.pass(Nanos::from_us(1_124), &publisher);
    assert_eq!(world.counters().read_timeouts.get(), 1);
    // A READ in time changes nothing, although another one was late before.
    for request in std::mem::take(&mut world.read_requests) {
        world.read_done(&publisher, &request, |_| ());
    }
    assert_eq!(world.records, numbers(1..=10));
}

#[test]
fn refusal_delay_is_kept_while_a_read_is_in_flight() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = joined(RepairOrder::Read, &publisher);
    world.reads = false;
    lose(&mut world, &mut publisher, 1);
    let refused = publisher.refused(run(1, 1), RefusalReason::Budget, 300);
    world.tell(Path::Repair, &Message::Refused(refused));
    // The READ's content is useless, and does not shorten the delay.
    let whole = world.read_requests.remove(0);
    world.read_done(&publisher, &whole, |bytes| bytes[100] ^= 1);
    world.pass(Nanos::from_us(299), &publisher);
    assert_eq!(begun(&world), []);
    world.pass(Nanos::from_us(1), &publisher);
    assert_eq!(begun(&world), [(1, 1)], "as if for the first time");
    // A READ still in flight does not shorten it either.
    world.tell(Path::Repair, &Message::Refused(refused));
    world.pass(Nanos::from_us(300), &publisher);
    assert_eq!(begun(&world), [(1, 1); 2]);
    let c = world.counters();
    assert_eq!((c.reads_torn.get(), c.read_timeouts.get()), (1, 0));
}

#[test]
fn read_limits_below_slot_disable_read() {
    let slot_len = SLOT_LEN as u32;
    for (most, len_max, reads) in [(8, slot_len - 1, 0), (8, slot_len, 3), (0, slot_len, 0)] {
        let mut publisher = Publisher::new(5, 1);
        let mut world = joined_with(RepairOrder::Read, &publisher, |world| {
            (world.limits.reads, world.limits.len_max) = (most, len_max);
        });
        lose(&mut world, &mut publisher, 3);
        assert_eq!(world.counters().reads.get(), reads);
        assert_eq!(asked(&mut world).is_empty(), reads > 0);
        assert_eq!(world.records, numbers(1..=4));
    }
}

#[test]
fn stale_or_out_of_order_read_completion_is_ignored() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = joined(RepairOrder::Read, &publisher);
    world.reads = false;
    lose(&mut world, &mut publisher, 1);
    let lost = world.read_requests.remove(0);
    world.give(SubscriberInput::Disconnected(
        Path::Read,
        LinkDownReason::Closed,
    ));
    world.pass(Nanos::from_ms(20), &publisher);
    lose(&mut world, &mut publisher, 1);
    lose(&mut world, &mut publisher, 1);
    let [first, second] = world.read_requests[..] else {
        panic!("{:?}", world.read_requests);
    };
    // A completion for the previous connection is ignored, and completions out of order are too.
    let before = world.records.len();
    world.read_done(&publisher, &lost, |_| ());
    world.read_done(&publisher, &second, |_| ());
    assert_eq!(world.records.len(), before);
    world.read_done(&publisher, &first, |_| ());
    world.read_done(&publisher, &second, |_| ());
    assert_eq!(world.records, numbers(1..=6));
}

#[test]
fn torn_slot_without_token_is_nacked_immediately() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = joined_with(RepairOrder::Read, &publisher, |world| {
        world.tokens = SLOT_LEN as u64;
    });
    world.reads = false;
    lose(&mut world, &mut publisher, 1);
    let whole = world.read_requests.remove(0);
    world.read_done(&publisher, &whole, |bytes| bytes[100] ^= 1);
    world.settle(&publisher);
    assert_eq!(begun(&world), []);
    assert_eq!(asked(&mut world), [(Path::Repair, 1)]);
}

#[test]
fn empty_late_reads_count_up_to_attempts() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = joined_with(RepairOrder::Read, &publisher, |world| {
        world.limits.reads = 16;
    });
    world.reads = false;
    let attempts = u64::from(ReceiverConfig::default().nack_attempts);
    for late in 1..=attempts {
        assert!(world.given_up.is_empty(), "after {}", late - 1);
        lose(&mut world, &mut publisher, 1);
        world.pass(Nanos::from_us(1_300), &publisher);
        assert_eq!(world.counters().read_timeouts.get(), late);
    }
    assert_eq!(world.given_up, [Path::Read]);
    assert_eq!(world.records.len() as u64, publisher.next - 1);
}

#[test]
fn reads_late_together_lengthen_timeout_once() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = joined(RepairOrder::Read, &publisher);
    (world.reads, world.answer) = (false, false);
    for _ in 0..4 {
        lose(&mut world, &mut publisher, 1);
    }
    world.pass(Nanos::from_us(1_251), &publisher);
    assert_eq!(world.counters().read_timeouts.get(), 4);
    for request in std::mem::take(&mut world.read_requests) {
        world.read_done(&publisher, &request, |_| ());
    }
    assert_eq!(world.records, numbers(1..=8));
    lose(&mut world, &mut publisher, 1);
    // The timeout is half as long again, with a deviation of up to a quarter.
    world.pass(Nanos::from_us(1_124), &publisher);
    assert_eq!(world.counters().read_timeouts.get(), 4);
    world.pass(Nanos::from_us(752), &publisher);
    assert_eq!(world.counters().read_timeouts.get(), 5);
}

#[test]
fn refused_after_torn_is_read_as_first_time() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = joined(RepairOrder::Read, &publisher);
    world.reads = false;
    lose(&mut world, &mut publisher, 1);
    let whole = world.read_requests.remove(0);
    world.read_done(&publisher, &whole, |bytes| bytes[100] ^= 1);
    let refused = publisher.refused(run(1, 1), RefusalReason::Budget, 300);
    world.tell(Path::Repair, &Message::Refused(refused));
    world.pass(Nanos::from_us(300), &publisher);
    // It is READ twice if the first slot is torn.
    for _ in 0..2 {
        assert_eq!(begun(&world), [(1, 1)]);
        assert_eq!(asked(&mut world), []);
        let whole = world.read_requests.remove(0);
        world.read_done(&publisher, &whole, |bytes| bytes[100] ^= 1);
        world.settle(&publisher);
    }
    assert_eq!(asked(&mut world), [(Path::Repair, 1)]);
}
