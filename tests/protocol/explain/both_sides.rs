//! Losses at the publisher or behind it. Telling them apart takes the publisher's journal beside the
//! subscriber's.

use std::collections::BTreeSet;

use tickcast_journal::explain::{DelayCause, Explanation, Fate, Finding, How, Origin, explain};
use tickcast_journal::{Journal, Unread, replay_publisher};
use tickcast_reliability::control::RefusalReason;
use tickcast_reliability::delivery::{Delivery, LineId, LossCause};
use tickcast_reliability::receive::ReceiverConfig;
use tickcast_reliability::types::{FanOutId, Nanos, Sequence, SequenceRange};
use tickcast_reliability::wire::SourceLossReason;
use tickcast_sim::journal::staged::heartbeat;
use tickcast_sim::journal::two_sided::BothSides;

const A: LineId = LineId(0);
const CAME: Fate = Fate::Came(How::Repair);

fn both(lines: u8) -> BothSides {
    BothSides::new(ReceiverConfig::default(), lines)
}

fn range(first: u64, last: u64) -> SequenceRange {
    SequenceRange::new(Sequence(first), Sequence(last)).unwrap()
}

fn only(explained: &Explanation) -> &Finding {
    assert_eq!(explained.findings.len(), 1, "{explained:#?}");
    &explained.findings[0]
}

/// Returns the origin of the only finding, from the subscriber's record alone and with the publisher's.
fn origins(explained: &(Explanation, [Explanation; 2])) -> [Origin; 2] {
    [only(&explained.0).origin, only(&explained.1[0]).origin]
}

#[test]
fn sent_but_missing_was_lost_behind_the_sender() {
    let mut both = both(1);
    both.seal(5);
    both.send_but(&[(0, 13), (0, 14)]);
    both.subscriber.repair(13..=14);
    let explained = both.explain();
    assert_eq!(
        origins(&explained),
        [Origin::WireOrSendQueue, Origin::WireOrUplink],
        "it may have been dropped in the publisher's own interface"
    );
    assert_eq!(only(&explained.1[0]).sequences, range(13, 14));
    let publisher = &explained.1[1];
    assert_eq!((publisher.totals.sealed, publisher.totals.handed), (5, 5));
    assert!(publisher.findings.is_empty(), "{publisher:#?}");
}

#[test]
fn common_miss_after_send_was_lost_before_lines_part() {
    let mut both = both(2);
    both.seal(5);
    both.send_but(&[(0, 13), (1, 13)]);
    both.subscriber.repair(13..=13);
    let explained = both.explain();
    assert_eq!(origins(&explained), [Origin::SendQueue, Origin::Uplink]);
}

#[test]
fn torn_down_fan_outs_unsent_is_named_on_both_sides() {
    let mut both = both(1);
    both.seal(2);
    both.send();
    // The fan-out sends nothing until the ring of 64 slots is nearly full.
    both.seal(60);
    both.send();
    both.seal(1);
    both.send();
    let explained = both.explain();
    let torn_down = Origin::TornDown(FanOutId(0));
    let first = &explained.1[0].findings[0];
    assert_eq!(first.origin, torn_down, "{:#?}", explained.1[0]);
    assert_eq!(explained.0.findings[0].origin, Origin::WireOrSendQueue);
    let own = only(&explained.1[1]);
    assert_eq!((own.origin, own.fate), (torn_down, Fate::Unrepairable));
    assert_eq!(own.sequences, first.sequences);
    assert!(own.sequences.len() > 40);
}

#[test]
fn refused_send_is_named_with_its_line() {
    let mut both = both(1);
    both.seal(2);
    both.send();
    both.seal(3);
    both.send_but(&[(0, 13), (0, 14)]);
    both.refused(0, 2);
    both.subscriber.repair(13..=14);
    both.seal(2);
    // Later losses are not refused sends.
    both.send_but(&[(0, 16)]);
    both.subscriber.repair(16..=16);
    let explained = both.explain();
    let findings = explained.1[0].findings.iter();
    let reported: Vec<_> = findings.map(|it| (it.sequences, it.origin)).collect();
    assert_eq!(
        reported,
        [
            (range(13, 14), Origin::SendRefused(A)),
            (range(16, 16), Origin::WireOrUplink)
        ]
    );
    let own = only(&explained.1[1]);
    assert_eq!(own.origin, Origin::SendRefused(A));
    assert_eq!((own.sequences, own.buffer_drops), (range(13, 15), 2));
}

#[test]
fn sent_datagrams_are_not_called_refused() {
    let mut both = both(1);
    both.seal(5);
    both.send_but(&[(0, 13)]);
    for refused in 1..=20 {
        both.stall_ms(1);
        both.refused(0, refused);
    }
    both.subscriber.repair(13..=13);
    let explained = both.explain();
    assert_eq!(only(&explained.1[0]).origin, Origin::WireOrUplink);
    let publisher = &explained.1[1];
    assert!(publisher.findings.is_empty(), "{publisher:#?}");
}

#[test]
fn repeated_refusals_are_one_finding_with_full_count() {
    let mut both = both(2);
    both.seal(2);
    both.send();
    // The network refuses line A, and line B waits.
    both.seal(3);
    for refused in [1, 3] {
        both.stall_ms(1);
        both.refused(0, refused);
    }
    both.send_but(&[(0, 13), (0, 14), (0, 15)]);
    both.refused(0, 4);
    let publisher = &both.explain().1[1];
    let found = only(publisher);
    assert_eq!(found.origin, Origin::SendRefused(A));
    assert_eq!((found.sequences, found.buffer_drops), (range(13, 15), 4));
}

#[test]
fn sealed_but_unsent_at_death_is_named() {
    let mut both = both(1);
    both.seal(2);
    both.send();
    both.seal(2);
    // STATUS covers all sealed datagrams, because a ring can be read before they are sent.
    both.subscriber.status(14);
    both.subscriber.wait_ms(2);
    both.subscriber.status(14);
    both.subscriber.repair(13..=14);
    let explained = both.explain();
    let last = explained.1[0].findings.last().unwrap();
    assert_eq!(
        (last.origin, last.sequences),
        (Origin::Unsent, range(13, 14))
    );
    assert_eq!(last.fate, CAME);
    let totals = &explained.1[1].totals;
    assert_eq!((totals.sealed, totals.handed), (4, 2));
}

#[test]
fn source_loss_is_named_on_both_sides_with_reason() {
    for (reason, origin) in [
        (SourceLossReason::Gap, Origin::SourceLine),
        (SourceLossReason::Overflow, Origin::FeedQueue),
        (SourceLossReason::Malformed, Origin::SourceUnreadable),
    ] {
        let mut both = both(1);
        both.seal(2);
        both.lose_source(reason);
        both.seal(1);
        both.send();
        let (alone, [with, publisher]) = both.explain();
        for explained in [&alone, &with, &publisher] {
            let found = only(explained);
            let origin = match origin {
                // Only the publisher's record says whether it reached the publisher's host.
                Origin::SourceLine if std::ptr::eq(explained, &alone) => Origin::SourceLineOrInput,
                origin => origin,
            };
            assert_eq!((found.origin, found.fate), (origin, Fate::Unrepairable));
            assert_eq!(found.source, Some((reason, 4)));
        }
        assert_eq!(only(&publisher).sequences, range(13, 13));
    }
}

#[test]
fn own_socket_drop_is_not_blamed_on_venue() {
    for (paused, origin) in [
        (Nanos::ZERO, Origin::InputBuffer),
        (Nanos::from_ms(30), Origin::InputStall),
    ] {
        let mut both = both(1);
        both.seal(1);
        both.lose_unread(Unread { packets: 9, paused });
        both.seal(1);
        both.lose_source(SourceLossReason::Gap);
        both.send();
        let (_, [with, publisher]) = both.explain();
        for explained in [&with, &publisher] {
            let [unread, gap] = &explained.findings[..] else {
                panic!("{explained:#?}")
            };
            assert_eq!((unread.origin, unread.buffer_drops), (origin, 9));
            let stalled = unread.stalled_for.unwrap_or(Nanos::ZERO);
            assert_eq!(stalled, paused);
            // The next gap is the venue's own.
            assert_eq!((gap.origin, gap.buffer_drops), (Origin::SourceLine, 0));
        }
    }
}

#[test]
fn queue_overflow_reports_publish_stall() {
    for stalled in [None, Some(30)] {
        let mut both = both(1);
        both.seal(1);
        both.send();
        stalled.into_iter().for_each(|ms| both.stall_ms(ms));
        both.lose_source(SourceLossReason::Overflow);
        both.send();
        let (_, [_, publisher]) = both.explain();
        let found = only(&publisher);
        assert_eq!(found.origin, Origin::FeedQueue);
        assert_eq!(found.stalled_for, stalled.map(Nanos::from_ms));
    }
}

#[test]
fn stalled_publish_thread_explains_lateness() {
    let mut both = both(1);
    both.seal(2);
    both.send();
    // Sealed and announced by STATUS, but not sent yet.
    both.seal(2);
    both.subscriber.status(14);
    both.stall_ms(30);
    both.subscriber.status(14);
    both.subscriber.repair(13..=14);
    both.send();
    let (alone, [with, publisher]) = both.explain();
    for (explained, known) in [(&alone, false), (&with, true)] {
        let found = only(explained);
        assert_eq!(
            (found.origin, found.fate, found.sequences),
            (Origin::Late(A), CAME, range(13, 14))
        );
        let stalled = DelayCause::PublisherStall(Nanos::from_ms(30));
        let why = found.late.map(|(_, why)| why);
        assert_eq!(why == Some(stalled), known, "{found:#?}");
    }
    assert!(publisher.findings.is_empty(), "{publisher:#?}");
}

#[test]
fn oversize_message_differs_from_full_queue() {
    let mut both = both(1);
    both.seal(1);
    both.too_large();
    both.seal(1);
    both.send();
    let explained = both.explain();
    assert_eq!(origins(&explained), [Origin::FeedQueue, Origin::Oversize]);
    assert_eq!(only(&explained.1[1]).origin, Origin::Oversize);
}

#[test]
fn budget_refusal_is_reported_with_its_outcome() {
    let config = ReceiverConfig {
        delivery: Delivery::OrderedWithin(Nanos::from_ms(2)),
        ..ReceiverConfig::default()
    };
    let mut both = BothSides::new(config, 1);
    both.seal(5);
    both.send_but(&[(0, 13)]);
    both.subscriber.refuse(13, 13, RefusalReason::Budget, 1);
    both.subscriber.pass_us(500);
    both.subscriber.refuse(13, 13, RefusalReason::Budget, 1);
    // No STATUS confirms the sequence, so it waits 20 ms beyond its deadline.
    for _ in 0..12 {
        both.subscriber.wait_ms(2);
        both.subscriber.bytes(0, &heartbeat(15));
    }
    let explained = both.explain();
    let found = only(&explained.1[0]);
    assert_eq!(found.origin, Origin::WireOrUplink);
    assert_eq!(found.fate, Fate::Lost(LossCause::Deadline));
    assert_eq!(found.refused, Some((RefusalReason::Budget, 2)));
}

#[test]
fn damaged_publisher_journal_is_explained_or_refused() {
    let mut both = both(1);
    both.seal(20);
    both.send_but(&[(0, 13)]);
    both.lose_source(SourceLossReason::Gap);
    both.too_large();
    both.seal(100);
    both.send();
    both.end();
    let whole = both.bytes_of_publisher();
    let (mut kinds, mut parted) = (BTreeSet::new(), 0);
    for at in (0..4096 + 12_000).step_by(17) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x5a;
        match Journal::read(bytes) {
            Ok(recording) => {
                let explained = explain(std::slice::from_ref(&recording)).remove(0);
                let replayed = replay_publisher(&recording);
                parted += u64::from(replayed.difference.is_some());
                kinds.insert(explained.damaged.is_some());
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
    assert!(kinds.contains(&true), "no damage was ever found");
    assert!(parted > 100, "only {parted} replays came to something else");
}
