//! A subscriber's cursor: claimed once, written remotely, and harmless when it cannot be written.

use tickcast_reliability::control::{CursorState, RepairOffer, Report, Start};
use tickcast_reliability::delivery::LinkDownReason;
use tickcast_reliability::receive::{ReceiverConfig, RemoteOp, RepairOrder};
use tickcast_reliability::session::Path;
use tickcast_reliability::types::{Epoch, Nanos, Sequence};

use crate::world::*;

const SESSION: u64 = 10;

/// Returns a joined subscriber with a ring to READ and a cursor.
fn joined_with(publisher: &Publisher, set: impl FnOnce(&mut World)) -> World {
    let config = ReceiverConfig {
        ladder: RepairOrder::Read,
        ..quiet()
    };
    let mut world = World::new(config, Start::Live, 1);
    world.repairs = vec![RepairOffer::Verbs {
        address: "10.0.0.1:7410".parse().unwrap(),
        read: true,
        mirror: false,
    }];
    world.cursor = Some(CURSOR);
    world.core.use_read_path(true);
    set(&mut world);
    world.settle(publisher);
    world
}

fn joined(publisher: &Publisher) -> World {
    joined_with(publisher, |_| ())
}

fn reported(world: &World) -> Report {
    match world.cursor_state() {
        CursorState::Reported(SESSION, report) => report,
        other => panic!("{other:?}"),
    }
}

fn later(world: &mut World, publisher: &Publisher, us: u64) {
    world.pass(Nanos::from_us(us), publisher);
}

#[test]
fn cursor_is_claimed_and_reports_at_interval() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = joined(&publisher);
    let first = reported(&world);
    let nothing = Report {
        number: 1,
        epoch: Epoch(5),
        sequence: Sequence(0),
        heard: Sequence(0),
        lost_records: 0,
        read_bytes: 0,
    };
    assert_eq!(first, nothing);
    let progresses = world.progresses;
    for _ in 0..3 {
        let bytes = publisher.publish(1);
        world.hear(A, &bytes);
    }
    world.settle(&publisher);
    later(&mut world, &publisher, 9_999);
    assert_eq!(reported(&world), first, "not yet");
    later(&mut world, &publisher, 1);
    let second = Report {
        number: 2,
        sequence: Sequence(3),
        heard: Sequence(3),
        ..nothing
    };
    assert_eq!(reported(&world), second);
    // The missing datagram is READ, and the report counts its bytes.
    publisher.publish(1);
    let bytes = publisher.publish(1);
    world.hear(A, &bytes);
    world.settle(&publisher);
    later(&mut world, &publisher, 10_000);
    let third = reported(&world);
    assert_eq!((third.number, third.sequence), (3, Sequence(5)));
    assert!(third.read_bytes > 0);
    let counters = world.counters();
    let of = (
        counters.cursors_claimed.get(),
        counters.cursor_reports.get(),
    );
    assert_eq!((of, world.progresses), ((1, 3), progresses), "no message");
}

#[test]
fn cursor_claimed_by_another_session_is_left_untouched() {
    let publisher = Publisher::new(5, 1);
    let mut world = joined_with(&publisher, |world| world.cursor_words[0] = SESSION + 1);
    later(&mut world, &publisher, 100_000);
    let mut untouched = [0; 8];
    untouched[0] = SESSION + 1;
    assert_eq!(world.cursor_words, untouched);
    assert_eq!(world.counters().cursors_foreign.get(), 1);
    assert_eq!(world.counters().cursors_claimed.get(), 0);
}

#[test]
fn cursor_operation_waits_for_the_previous_completion() {
    let publisher = Publisher::new(5, 1);
    let mut world = joined_with(&publisher, |world| world.reads = false);
    later(&mut world, &publisher, 50_000);
    let claims = |world: &World| {
        let begun = world.read_requests.iter();
        begun
            .map(|it| matches!(it.what, RemoteOp::Claim(SESSION)))
            .collect::<Vec<_>>()
    };
    assert_eq!(claims(&world), [true]);
    world.reads = true;
    world.settle(&publisher);
    assert_eq!(reported(&world).number, 1);
    world.reads = false;
    later(&mut world, &publisher, 50_000);
    later(&mut world, &publisher, 50_000);
    assert_eq!(claims(&world), [false], "one report at a time");
}

#[test]
fn further_connection_claims_its_cursor_anew() {
    let publisher = Publisher::new(5, 1);
    let mut world = joined(&publisher);
    later(&mut world, &publisher, 10_000);
    assert_eq!(reported(&world).number, 2);
    world.input(|core, now, mut on| {
        core.handle_disconnected(now, Path::Read, LinkDownReason::Closed, &mut on);
    });
    world.cursor_words = [0; 8];
    later(&mut world, &publisher, 50_000);
    assert_eq!(world.counters().cursors_claimed.get(), 2);
    let number = reported(&world).number;
    assert!((1..=5).contains(&number), "{number}: it begins anew");
}

#[test]
fn late_cursor_is_claimed_and_later_grant_ignored() {
    let publisher = Publisher::new(5, 1);
    let mut world = joined_with(&publisher, |world| world.cursor = None);
    assert_eq!(world.cursor_state(), CursorState::Silent);
    world.cursor = Some(CURSOR);
    world.grant(&publisher, 1, 1 << 20);
    world.settle(&publisher);
    assert_eq!(reported(&world).number, 1);
    world.grant(&publisher, 1, 2 << 20);
    later(&mut world, &publisher, 10_000);
    assert_eq!(reported(&world).number, 2);
    assert_eq!(world.counters().cursors_claimed.get(), 1);
}

#[test]
fn full_connection_starts_no_cursor_claim_and_no_timer() {
    for (reads, writes) in [(0, 2), (4, 0)] {
        let publisher = Publisher::new(5, 1);
        let mut world = joined_with(&publisher, |world| {
            (world.limits.reads, world.limits.writes) = (reads, writes);
        });
        assert!(world.core.poll_timeout() > world.now.after(Nanos::from_secs(5)));
        later(&mut world, &publisher, 50_000);
        assert_eq!(world.cursor_state(), CursorState::Silent);
        assert_eq!(world.counters().cursors_claimed.get(), 0);
    }
}

#[test]
fn cursor_report_in_flight_uses_no_read_capacity() {
    let mut publisher = Publisher::new(5, 1);
    let mut world = joined_with(&publisher, |world| {
        (world.limits.reads, world.limits.writes) = (2, 1);
    });
    world.reads = false;
    later(&mut world, &publisher, 10_000);
    let lose = |world: &mut World, publisher: &mut Publisher| {
        publisher.publish(1);
        let bytes = publisher.publish(1);
        world.hear(A, &bytes);
        world.settle(publisher);
    };
    lose(&mut world, &mut publisher);
    lose(&mut world, &mut publisher);
    let kinds = world.read_requests.iter().map(|it| match it.what {
        RemoteOp::Report(_) => 'w',
        RemoteOp::Slots(_) => 'r',
        other => panic!("{other:?}"),
    });
    assert_eq!(kinds.collect::<String>(), "wrr");
}
