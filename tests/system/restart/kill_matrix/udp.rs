//! A cell over UDP: a publisher that keeps its rings, a subscriber process behind a proxy of its control
//! connection, and a second subscriber that is never killed.

use tickcast_sim::faults::kill::KillVictim;
use tickcast_sim::faults::kill::Moment;
use tickcast_subscriber::Event;

use super::gate::{Gate, Wanted};
use super::victim::{Given, Victim};
use crate::restart::kept::{Kept, Sealed};
use tickcast_test_support::{Follower, Publisher, channel, drive, drive_to_end, signal};

/// Number of records that each subscriber gets before the next step.
const SOME: usize = 500;
/// Datagrams that are dropped to make a gap: the first, and how many.
const DROPPED: (u64, u64) = (300, 200);

/// Returns the frame that is in flight at that moment.
fn on_its_way(moment: Moment) -> Option<Wanted> {
    const JOIN: u8 = 1;
    const WELCOME: u8 = 2;
    const NACK: u8 = 4;
    const STATUS: u8 = 8;
    match moment {
        Moment::BeforeJoin => Some(|kind, _| kind == JOIN),
        Moment::DuringJoin => Some(|kind, _| kind == WELCOME),
        // Only class repair: requests of replay are no gaps.
        Moment::MidGap => Some(|kind, body| kind == NACK && body[8] == 1),
        // Over UDP there is no frame in the middle of a READ.
        Moment::HalfSlot | Moment::MidRead => None,
        Moment::AtEnd => Some(|kind, body| kind == STATUS && body[48] == 1),
    }
}

pub(crate) fn cell(who: KillVictim, moment: Moment) {
    let kept = Kept::new(4_000, 1);
    let mut publisher = kept.start();
    let mut beside = [Follower::new(publisher.subscriber().channel("all"))];
    let gate = Gate::new(publisher.control, on_its_way(moment));
    drive(&mut beside, |all| {
        all[0].records.values().sum::<u64>() > 500
    });
    let dropped = (moment == Moment::MidGap).then_some(DROPPED);
    let mut victim = Victim::start(gate.address, None, dropped);
    match moment {
        Moment::BeforeJoin | Moment::DuringJoin | Moment::MidGap | Moment::MidRead => {
            drive(&mut beside, |_| victim.is_there() && gate.holds());
        }
        Moment::HalfSlot => {
            drive(&mut beside, |_| victim.given().len() > SOME);
            stop_within_slot(&publisher, &kept, &mut beside);
        }
        Moment::AtEnd => {
            drive(&mut beside, |_| victim.given().len() > SOME);
            publisher.terminate();
            // A publisher does not wait for a killed subscriber. The other subscriber keeps it alive.
            if who.publisher() {
                drive_to_end(&mut beside);
            }
            drive(&mut [], |_| victim.is_there() && gate.holds());
        }
    }

    if who.publisher() {
        publisher.kill();
    }
    if who.subscriber() {
        victim.kill();
    }
    let before = kept.sealed();
    if moment == Moment::HalfSlot && !who.publisher() {
        signal(publisher.id(), "CONT");
    }
    if who.publisher() {
        gate.lose();
    } else {
        gate.open();
    }
    // After a session's end, the restarted publisher begins the next session.
    let goes_on = !who.publisher() || moment.goes_on();
    if who.publisher() {
        let log;
        (publisher, log, _) = kept.started();
        let said = match goes_on {
            true => "continues the previous epoch",
            false => "a new epoch begins: the previous session has ended",
        };
        assert!(log.contains(said), "{log}");
    }
    // A subscriber with the complete session is not checked against the next one.
    let beside_now: &mut [Follower] = match moment {
        Moment::AtEnd => &mut [],
        _ => &mut beside,
    };
    let mut given = Vec::new();
    if who.subscriber() {
        given = victim.given();
        let last = (given.iter()).rfind(|it| matches!(it, Given::Record(..)));
        victim = Victim::start(gate.address, last, None);
    }
    if moment != Moment::AtEnd || who.publisher() {
        let had = victim.given().len();
        drive(beside_now, |_| {
            victim.is_there() && victim.given().len() > had + SOME
        });
        publisher.terminate();
    }
    drive(beside_now, |_| !victim.is_there());
    if goes_on {
        drive_to_end(&mut beside);
    }
    given.extend(victim.given());
    let (status, summary) = publisher.finish();
    assert!(status.success(), "{summary}");
    let after = kept.sealed();

    assert_eq!(given.last(), Some(&Given::Whole));
    assert_eq!(given.iter().filter(|it| **it == Given::End).count(), 1);
    beside[0].assert_balanced();
    assert!(beside[0].losses.is_empty(), "{:?}", beside[0].losses);
    assert!(!beside[0].saw(|event| matches!(event, Event::EpochChanged { .. })));
    let reported: Vec<Given> = given.iter().copied().filter(is_news).collect();
    if goes_on {
        assert!(
            after.slots.starts_with(&before.slots),
            "what was sealed stays"
        );
        assert_eq!(reported, [], "nothing is lost, and it is one epoch");
        has_exactly(&given, &after);
        assert_eq!(beside[0].digest(1), after.digest);
        if !who.publisher() {
            assert_eq!(channel(&summary)["digest"], after.digest);
        }
    } else {
        // The subscriber never received the end, so it declares an open-ended loss. The loss begins at its
        // last record, or at the position where it wanted to resume.
        let last = given.iter().rev().find_map(|it| match it {
            &Given::Record(epoch, sequence, ..) => (epoch == before.epoch).then_some(sequence),
            _ => None,
        });
        let end = Some(before.slots.len() as u64);
        let from = if who.subscriber() { last } else { end };
        let lost = reported.iter().filter(|it| matches!(it, Given::Lost(..)));
        let open_end = Given::Lost(from.unwrap_or(0), u64::MAX, None);
        assert_eq!(lost.collect::<Vec<_>>(), [&open_end], "{reported:?}");
        assert!(who.subscriber() || reported.contains(&Given::Epoch(after.epoch)));
        assert!(after.epoch > before.epoch);
        has_exactly(&given, &before);
        has_exactly(&given, &after);
        assert_eq!(beside[0].digest(1), before.digest);
    }
}

const fn is_news(given: &Given) -> bool {
    matches!(given, Given::Lost(..) | Given::Epoch(_))
}

/// Asserts that every record of this epoch was delivered once and in order, as it was sealed.
fn has_exactly(given: &[Given], sealed: &Sealed) {
    let records = given.iter().filter_map(|it| match it {
        &Given::Record(epoch, _, number, hash) => (epoch == sealed.epoch).then_some((number, hash)),
        _ => None,
    });
    let records: Vec<_> = records.collect();
    let differs = records
        .iter()
        .zip(&sealed.records)
        .position(|(a, b)| a != b);
    assert_eq!(differs, None, "the same records in the same order");
    assert_eq!(records.len(), sealed.records.len());
    assert!(records.len() > SOME, "it would prove nothing");
}

/// Stops the publisher and leaves its next slot half written. A stop hits the middle of a slot only by
/// chance, so the test writes the first part of the slot.
fn stop_within_slot(publisher: &Publisher, kept: &Kept, beside: &mut [Follower]) {
    signal(publisher.id(), "STOP");
    drive(beside, |_| stands_still(publisher.id()));
    kept.half_write_next_slot();
}

/// Returns whether every thread of a process is stopped.
fn stands_still(pid: u32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it is there");
    tasks.flatten().all(|task| {
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        stat.rsplit(") ")
            .next()
            .is_some_and(|rest| rest.starts_with('T'))
    })
}
