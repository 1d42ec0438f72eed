//! Guarantees that every transport must keep under any fault. Each case is one function over a bench.

use tickcast_reliability::control::Start;
use tickcast_reliability::delivery::{Event, LineId, LossCause};
use tickcast_reliability::receive::RepairOrder;
use tickcast_reliability::types::{Nanos, Sequence, SequenceRange};
use tickcast_reliability::wire::{SourceLossReason, StreamEvent};
use tickcast_transport::faults::{Burst, FaultConfig, Reorder, Scripted};
use tickcast_transport::{FanOut, FanOutError, Receive};

use crate::lab::{Bench, Lab, open};
use crate::network::{Kind, SLOT_LEN};
use crate::subscriber::{Subscriber, Wanted, ladder};
use crate::verdict::{Verdict, check, equal};

/// Slots for all datagrams of a case.
const SLOTS: u64 = 2048;

fn from_oldest() -> Wanted {
    Wanted {
        start: Start::Oldest,
        ..Wanted::default()
    }
}

/// Returns a subscriber with every kind of fault at once.
fn behind_a_bad_network(seed: u64) -> Wanted {
    let faults = FaultConfig {
        seed,
        drop: 0.02,
        burst: Some(Burst {
            loss: 0.03,
            mean_len: 4.0,
        }),
        duplicate: 0.02,
        reorder: Some(Reorder {
            probability: 0.02,
            depth: 8,
            hold: Nanos::from_ms(1),
        }),
        corrupt: 0.02,
        truncate: 0.02,
        ..FaultConfig::default()
    };
    Wanted {
        faults,
        ..Wanted::default()
    }
}

/// Returns a subscriber that gets these sequences only as repairs.
fn without(ranges: &[(u64, u64)]) -> Wanted {
    let range = |(first, last): &(u64, u64)| SequenceRange {
        first: Sequence(*first),
        last: Sequence(*last),
    };
    let script = vec![Scripted::DropSequences {
        channel: None,
        ranges: ranges.iter().map(range).collect(),
        retransmitted: false,
    }];
    Wanted {
        faults: FaultConfig {
            script,
            ..FaultConfig::default()
        },
        ..Wanted::default()
    }
}

/// Checks that each line delivered every datagram once and in order, and that nothing was missing, repeated,
/// damaged or requested.
fn undisturbed(lab: &mut Lab, number: usize, lines: &[usize]) -> Verdict {
    let sealed = lab.publisher().core.sealed().0;
    let subscriber = &lab.subscribers[number];
    for line in lines {
        in_order(subscriber, *line)?;
        let count = subscriber.arrived(*line).len() as u64;
        equal("datagrams of a line, and sealed", count, sealed)?;
    }
    unharmed(subscriber)
}

/// Checks that nothing was missing or damaged.
fn unharmed(subscriber: &Subscriber) -> Verdict {
    let c = subscriber.counters();
    equal("gaps", c.missing_datagrams.get(), 0)?;
    equal("NACKs", c.nacks_sent.get(), 0)?;
    equal("corrupt", c.corrupt_dropped.get(), 0)?;
    equal("malformed", c.malformed_dropped.get(), 0)?;
    equal("unknown_senders", c.unknown_sender_dropped.get(), 0)?;
    equal("losses", subscriber.heard.losses.as_slice(), &[])
}

/// Checks that first transmissions rise on a line: none came twice or too late.
fn in_order(subscriber: &Subscriber, line: usize) -> Verdict {
    let arrived = subscriber.arrived(line);
    let wrong = arrived.windows(2).find(|pair| pair[0] >= pair[1]);
    check(wrong.is_none(), || {
        format!("line {line}: out of order: {wrong:?}")
    })
}

fn lost_only_by(subscriber: &Subscriber, cause: LossCause) -> Verdict {
    let losses = &subscriber.heard.losses;
    check(losses.iter().all(|loss| loss.cause == cause), || {
        format!("{losses:?}")
    })
}

pub fn everything_arrives_once_and_in_order(bench: Bench) -> Verdict {
    let mut lab = Lab::with_publisher(bench, 1, SLOTS);
    let numbers = [lab.join(Wanted::default())?, lab.join(Wanted::default())?];
    lab.publish(1_000);
    lab.end()?;
    for number in numbers {
        undisturbed(&mut lab, number, &[0])?;
        let subscriber = &lab.subscribers[number];
        equal("duplicates", subscriber.counters().duplicates.get(), 0)?;
        equal("first record", subscriber.heard.first, Some(1))?;
    }
    equal("nacked", lab.publisher().repaired.nacked.get(), 0)?;
    lab.account()
}

pub fn exactly_what_was_lost_is_repaired(bench: Bench) -> Verdict {
    let mut lab = Lab::with_publisher(bench, 1, SLOTS);
    // The first, the last before END, END itself, some in between.
    lab.join(without(&[(1, 1), (50, 60), (200, 300), (399, 401)]))?;
    lab.join(Wanted::default())?;
    lab.publish(400);
    lab.close()?;
    undisturbed(&mut lab, 1, &[0])?;
    let subscriber = &lab.subscribers[0];
    let c = subscriber.counters();
    equal("gaps", c.missing_datagrams.get(), 1 + 11 + 101 + 3)?;
    equal(
        "recovered",
        c.missing_recovered.get(),
        c.missing_datagrams.get(),
    )?;
    equal("losses", subscriber.heard.losses.as_slice(), &[])?;
    let read = c.read_repairs_received.get();
    let c = &lab.publisher().repaired;
    let answered = c.answered.get() + c.answered_by_multicast.get();
    check(answered + read >= 116, || {
        format!("answered {answered}, READ {read}")
    })
}

pub fn under_loss_disorder_and_damage_all_of_it_comes(bench: Bench) -> Verdict {
    let mut lab = Lab::with_publisher(bench, 1, SLOTS);
    for seed in 1..=3 {
        lab.join(behind_a_bad_network(seed))?;
    }
    lab.publish(1_500);
    lab.close()?;
    for subscriber in &lab.subscribers {
        in_order(subscriber, 0)?;
        let c = subscriber.counters();
        let counted = [&c.missing_recovered, &c.duplicates, &c.corrupt_dropped];
        let all = counted.iter().all(|counter| counter.get() > 0);
        check(all && c.malformed_dropped.get() > 0, || format!("{c:?}"))?;
        equal("losses", subscriber.heard.losses.as_slice(), &[])?;
        equal("first record", subscriber.heard.first, Some(1))?;
    }
    Ok(())
}

pub fn repairs_come_by_the_fastest_way_there_is(bench: Bench) -> Verdict {
    let mut lab = Lab::with_publisher(bench, 1, SLOTS);
    let ladder = ladder(&*lab.network);
    lab.join(without(&[(10, 20), (50, 50), (100, 160)]))?;
    lab.publish(200);
    lab.close()?;
    let c = lab.subscribers[0].counters();
    equal("recovered", c.missing_recovered.get(), 11 + 1 + 61)?;
    let reads = ladder.is_some_and(RepairOrder::reads);
    let nacks = ladder.is_some_and(|it| !it.reads());
    equal("by READ", c.read_repairs_received.get() > 0, reads)?;
    equal(
        "on the NACK connection",
        c.nack_link_repairs_received.get() > 0,
        nacks,
    )?;
    equal(
        "over TCP",
        c.nacks_sent.get() > c.nack_link_nacks_sent.get(),
        ladder.is_none(),
    )?;
    equal("NACK connections lost", c.nack_links_down.get(), 0)
}

pub fn a_subscriber_that_starts_first_finds_whoever_comes(bench: Bench) -> Verdict {
    let mut lab = Lab::new(bench, 1);
    lab.subscribe(Wanted::default());
    lab.rounds(1_000);
    check(!lab.subscribers[0].is_listening(), || "to whom?".into())?;
    lab.publish_from(SLOTS, 1_000);
    lab.all_listen()?;
    lab.publish(200);
    lab.close()?;
    undisturbed(&mut lab, 0, &[0])?;
    equal("first record", lab.subscribers[0].heard.first, Some(1))
}

pub fn a_late_joiner_gets_the_history_once(bench: Bench) -> Verdict {
    let mut lab = Lab::with_publisher(bench, 1, SLOTS);
    lab.join(Wanted::default())?;
    lab.publish(600);
    let published = lab.publisher().records;
    // They join while the stream continues.
    for wanted in [
        from_oldest(),
        Wanted {
            start: Start::Oldest,
            ..behind_a_bad_network(7)
        },
        Wanted::default(),
    ] {
        lab.subscribe(wanted);
        lab.publish(50);
    }
    lab.all_listen()?;
    lab.publish(200);
    lab.close()?;
    undisturbed(&mut lab, 0, &[0])?;
    for subscriber in &lab.subscribers {
        let lives = subscriber.heard.count(|event| *event == Event::Live);
        equal("told that it is live", lives, 1)?;
        equal("losses", subscriber.heard.losses.as_slice(), &[])?;
    }
    for late in &lab.subscribers[1..=2] {
        equal("first record", late.heard.first, Some(1))?;
        let history = late.counters().replay_received.get();
        check(history >= 600, || format!("history of {history}"))?;
    }
    let live = &lab.subscribers[3];
    check(live.heard.first > Some(published), || {
        format!("{:?}", live.heard.first)
    })?;
    equal("history", live.counters().replay_received.get(), 0)
}

pub fn a_ring_that_has_moved_on_gives_what_it_holds(bench: Bench) -> Verdict {
    let mut lab = Lab::with_publisher(bench, 1, 128);
    lab.join(Wanted::default())?;
    lab.publish(500);
    lab.sent()?;
    lab.join(from_oldest())?;
    lab.until("the history came", |lab| {
        lab.subscribers[1]
            .heard
            .count(|event| *event == Event::Live)
            > 0
    })?;
    lab.publish(100);
    lab.close()?;
    undisturbed(&mut lab, 0, &[0])?;
    let late = &lab.subscribers[1];
    let history = late.counters().replay_received.get();
    check((64..=128).contains(&history), || format!("{history}"))?;
    check(late.heard.first > Some(1), || "it had moved on".into())?;
    equal("losses", late.heard.losses.as_slice(), &[])
}

pub fn a_slow_reader_is_repaired_and_holds_nobody_up(bench: Bench) -> Verdict {
    let mut lab = Lab::with_publisher(bench, 1, SLOTS);
    lab.join(Wanted::default())?;
    let slow = lab.join(Wanted {
        slow: true,
        ..Wanted::default()
    })?;
    lab.publish(100);
    lab.subscribers[slow].asleep = true;
    lab.publish(800);
    lab.sent()?;
    lab.until("the other has everything", |lab| {
        lab.subscribers[0].heard.next == lab.publisher().records + 1
    })?;
    lab.subscribers[slow].asleep = false;
    lab.publish(50);
    lab.close()?;
    undisturbed(&mut lab, 0, &[0])?;
    let slow = &lab.subscribers[slow];
    in_order(slow, 0)?;
    let c = slow.counters();
    // A reader of the ring itself finds the missed datagrams there.
    let few = slow.network.has_buffers();
    check((c.missing_recovered.get() > 0) == few, || {
        format!("buffers are few: {few}; {c:?}")
    })?;
    equal("losses", slow.heard.losses.as_slice(), &[])?;
    let (_, counted) = slow.network.counts_what_does_not_fit();
    let drops = slow.receiver.as_ref().map(|r| r.stats()[0].buffer_drops);
    // Heartbeats may be among them.
    let enough = |each| drops.is_some_and(|drops| drops * each >= c.missing_recovered.get());
    check(counted.is_none_or(enough), || {
        format!("{drops:?} for {c:?}")
    })
}

pub fn a_reader_that_is_lapped_is_told_exactly_what_it_lost(bench: Bench) -> Verdict {
    let mut lab = Lab::with_publisher(bench, 1, 256);
    lab.join(Wanted::default())?;
    let slow = lab.join(Wanted {
        slow: true,
        ..Wanted::default()
    })?;
    lab.publish(100);
    lab.subscribers[slow].asleep = true;
    lab.publish(1_200);
    lab.sent()?;
    lab.subscribers[slow].asleep = false;
    lab.close()?;
    undisturbed(&mut lab, 0, &[0])?;
    let slow = &lab.subscribers[slow];
    check(slow.heard.lost_records > 0, || "it was lapped".into())?;
    lost_only_by(slow, LossCause::Window)
}

pub fn sends_that_stall_lose_nothing(bench: Bench) -> Verdict {
    let mut lab = Lab::with_publisher(bench, 1, SLOTS);
    lab.join(Wanted::default())?;
    for _ in 0..3 {
        lab.publish(30);
        lab.sent()?;
        let before = lab.publisher().records;
        lab.until("all is heard", |lab| {
            lab.subscribers[0].heard.next == before + 1
        })?;
        lab.publisher().ways[0].stall(true);
        lab.publish(300);
        equal(
            "nothing more is heard",
            lab.subscribers[0].heard.next,
            before + 1,
        )?;
        check(!lab.publisher().is_sent(), || "it was stalled".into())?;
        lab.publisher().ways[0].stall(false);
        // In parts, because of its few buffers.
        lab.sent()?;
    }
    lab.close()?;
    let sealed = lab.publisher().core.sealed().0;
    let subscriber = &lab.subscribers[0];
    in_order(subscriber, 0)?;
    let c = subscriber.counters();
    equal("lost", c.missing_lost.get(), 0)?;
    let drops = subscriber
        .receiver
        .as_ref()
        .map(|r| r.stats()[0].buffer_drops);
    if drops == Some(0) {
        let arrived = subscriber.arrived(0).len() as u64;
        equal("datagrams, and sealed", arrived, sealed)?;
    }
    equal("resets", lab.publisher().sender.fan_out_resets.get(), 0)
}

pub fn nothing_is_sent_that_was_overwritten_while_it_was_posted(bench: Bench) -> Verdict {
    let mut lab = Lab::with_publisher(bench, 1, 128);
    lab.join(Wanted::default())?;
    // 112 is the most that a fan-out may hold of this ring.
    for held in [60, 110, 130, 150, 170, 400] {
        lab.publish(20);
        lab.sent()?;
        lab.rounds(20);
        lab.publish_at_once(40);
        lab.round();
        lab.publisher().ways[0].stall(true);
        lab.publish(held - 40);
        lab.publisher().ways[0].stall(false);
        lab.sent()?;
        lab.rounds(40);
        in_order(&lab.subscribers[0], 0).map_err(|what| format!("{held} held: {what}"))?;
    }
    // The feed also overtakes datagrams that are being sent.
    for n in 0..100 {
        lab.publish_at_once(60);
        lab.round();
        lab.publish_at_once(100 + n % 20);
        lab.sent()?;
        lab.rounds(2);
        in_order(&lab.subscribers[0], 0).map_err(|what| format!("amid sends: {what}"))?;
    }
    lab.close()?;
    let subscriber = &lab.subscribers[0];
    in_order(subscriber, 0)?;
    let c = subscriber.counters();
    equal("corrupt", c.corrupt_dropped.get(), 0)?;
    equal("malformed", c.malformed_dropped.get(), 0)?;
    lost_only_by(subscriber, LossCause::Window)?;
    let lost = subscriber.heard.lost_records > 0;
    check(lost || !subscriber.network.has_buffers(), || {
        "400 are more than the ring".into()
    })?;
    let s = &lab.publisher().sender;
    check(s.fan_out_resets.get() > 0, || "it held the ring".into())?;
    check(s.skipped_datagrams.get() > 0, || {
        "it never sent some".into()
    })
}

pub fn a_subscriber_that_restarts_goes_on_where_it_was(bench: Bench) -> Verdict {
    let mut lab = Lab::with_publisher(bench, 1, SLOTS);
    lab.join(Wanted::default())?;
    lab.publish(300);
    // It leaves without a message, in the middle of the stream.
    let mut gone = lab.subscribers.pop().ok_or("one joined")?;
    gone.account()?;
    let before = std::mem::take(&mut gone.heard);
    drop(gone);
    lab.publish(200);
    let wanted = Wanted {
        start: Start::At(before.epoch, before.sequence.next()),
        ..Wanted::default()
    };
    lab.subscribe(wanted);
    lab.publish(50);
    lab.all_listen()?;
    lab.publish(100);
    lab.close()?;
    let after = &lab.subscribers[0].heard;
    equal("it goes on", after.first, Some(before.next))?;
    equal("losses", after.losses.as_slice(), &[])?;
    let both = before.records + after.records;
    equal(
        "of both lives, and published",
        both,
        lab.publisher().records,
    )
}

pub fn a_publisher_that_restarts_is_followed_into_its_epoch(bench: Bench) -> Verdict {
    let mut lab = Lab::with_publisher(bench, 1, SLOTS);
    lab.join(without(&[(100, 102)]))?;
    lab.publish(99);
    lab.sent()?;
    let first = lab.publisher().records;
    lab.until("all is heard", |lab| {
        lab.subscribers[0].heard.records == first
    })?;
    // The last three never reach it, and the publisher dies before a NACK is possible.
    lab.publish_at_once(3);
    let now = lab.now();
    lab.publisher().round(now);
    lab.publisher = None;
    lab.rounds(100);
    lab.publish_from(SLOTS, 2_000);
    lab.until("the new epoch is welcome", |lab| {
        lab.subscribers[0].counters().epochs.get() == 2 && lab.subscribers[0].is_listening()
    })?;
    lab.publish(300);
    lab.close()?;
    let second = lab.publisher().records;
    let subscriber = &lab.subscribers[0];
    let heard = &subscriber.heard;
    equal("epoch", heard.epoch.0, 2_000)?;
    equal("first record", heard.first, Some(1))?;
    equal("of both", heard.records, first + second)?;
    let changes = heard.count(|event| matches!(event, Event::EpochChanged { .. }));
    equal("changes told", changes, 1)?;
    // The tail is reported as lost, although its length is unknown.
    equal("losses", heard.losses.len(), 1)?;
    lost_only_by(subscriber, LossCause::Epoch)
}

pub fn what_is_too_long_is_told_and_passed_by(bench: Bench) -> Verdict {
    let mut lab = Lab::with_publisher(bench, 1, SLOTS);
    lab.join(Wanted::default())?;
    let (measures, _) = lab.network.counts_what_does_not_fit();
    if measures {
        lab.join(Wanted {
            len_max: SLOT_LEN / 2,
            ..Wanted::default()
        })?;
    }
    lab.publish(100);
    let now = lab.now();
    check(!lab.publisher().publish(30, now), || "it can't fit".into())?;
    let sent = lab.publisher().ways[0]
        .fan_out
        .send_copy(&[0; SLOT_LEN + 8]);
    let refused = matches!(sent, Err(FanOutError::TooLong { .. }));
    check(refused, || format!("{sent:?}"))?;
    lab.publish(100);
    lab.close()?;
    undisturbed(&mut lab, 0, &[0])?;
    equal(
        "oversize",
        lab.publisher().sender.oversize_records.get(),
        30,
    )?;
    for subscriber in &lab.subscribers {
        let reported = |event: &Event| {
            matches!(event, Event::Stream(StreamEvent::SourceLost { messages: 1, reason, .. })
                if *reason != SourceLossReason::Gap)
        };
        equal("told", subscriber.heard.count(reported), 1)?;
    }
    if !measures {
        return Ok(());
    }
    // Subscribers without room for them count them, and get them from the publisher instead.
    let core = &lab.publisher().core;
    let long = (1..=core.sealed().0).filter(|n| {
        let slot = core.slot(Sequence(*n));
        slot.is_some_and(|slot| slot.len() > SLOT_LEN / 2)
    });
    let long = long.count() as u64;
    let short = &lab.subscribers[1];
    let dropped = short.receiver.as_ref().map(|r| r.stats()[0].oversize);
    equal("too long for it", dropped, Some(long))?;
    equal("recovered", short.counters().missing_recovered.get(), long)?;
    equal("losses", short.heard.losses.as_slice(), &[])
}

pub fn fan_outs_of_different_kinds_do_not_hold_each_other_up(bench: Bench) -> Verdict {
    let mut lab = Lab::new(bench, 1);
    let other = match bench.kind {
        Kind::Udp(_) => Kind::Memory,
        _ => Kind::UDP,
    };
    let networks = [lab.network.clone(), open(other, 1)];
    lab.publish_on(&networks, 256, 1_000);
    for network in &networks {
        lab.subscribe_by(network, Wanted::default());
    }
    lab.all_listen()?;
    for (stalled, free) in [(1, 0), (0, 1)] {
        // First fewer than the ring holds, then more.
        for datagrams in [100, 600] {
            lab.publish(50);
            lab.sent()?;
            lab.until("all is heard", |lab| {
                let next = lab.publisher().records + 1;
                lab.subscribers.iter().all(|s| s.heard.next == next)
            })?;
            let heard = lab.subscribers[stalled].heard.records;
            lab.publisher().ways[stalled].stall(true);
            lab.publish(datagrams);
            lab.until("the other goes on", |lab| {
                lab.subscribers[free].heard.next == lab.publisher().records + 1
            })?;
            if datagrams == 100 {
                let now = lab.subscribers[stalled].heard.records;
                equal("nothing went out where it stalled", now, heard)?;
            }
            lab.publisher().ways[stalled].stall(false);
            lab.sent()?;
        }
    }
    lab.close()?;
    for subscriber in &lab.subscribers {
        lost_only_by(subscriber, LossCause::Window)?;
        in_order(subscriber, 0)?;
        let lost = subscriber.heard.lost_records;
        check(lost > 0 || !subscriber.network.has_buffers(), || {
            "a ring was overwritten while it stalled".into()
        })?;
        let c = subscriber.counters();
        equal("corrupt", c.corrupt_dropped.get(), 0)?;
    }
    equal(
        "resets",
        lab.publisher().sender.fan_out_resets.get() >= 2,
        true,
    )
}

pub fn of_two_lines_one_is_enough(bench: Bench) -> Verdict {
    let mut lab = Lab::with_publisher(bench, 2, SLOTS);
    if lab.network.lines() < 2 {
        // There is only one memory.
        return Ok(());
    }
    lab.join(Wanted::default())?;
    lab.join(Wanted::default())?;
    lab.publish(200);
    lab.sent()?;
    lab.until("both lines bring all", |lab| {
        let sealed = lab.publisher().core.sealed().0;
        let mut each = [0, 1]
            .into_iter()
            .map(|line| lab.subscribers[0].arrived(line).len());
        each.all(|count| count as u64 == sealed)
    })?;
    undisturbed(&mut lab, 0, &[0, 1])?;
    // Line A is down for a while.
    let line = LineId(0);
    let there = lab.subscribers[0].arrived(0).len();
    let receiver = lab.subscribers[0].receiver.as_mut().ok_or("it listens")?;
    receiver.leave(line).map_err(|e| e.to_string())?;
    lab.publish(200);
    lab.sent()?;
    lab.rounds(40);
    let now = lab.subscribers[0].arrived(0).len();
    check(now < there + 200, || format!("{now} came, it had left"))?;
    let receiver = lab.subscribers[0].receiver.as_mut().ok_or("it listens")?;
    receiver.join(line).map_err(|e| e.to_string())?;
    lab.publish(200);
    lab.close()?;
    undisturbed(&mut lab, 0, &[1])?;
    in_order(&lab.subscribers[0], 0)?;
    undisturbed(&mut lab, 1, &[0, 1])?;
    let sealed = lab.publisher().core.sealed().0;
    let duplicates = lab.subscribers[1].counters().duplicates.get();
    equal("each came twice", duplicates, sealed)
}
