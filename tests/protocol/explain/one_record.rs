//! Losses staged one by one, each in another place. The journal of each says where it was and how it
//! ended, and its findings add up to the counters.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use tickcast_journal::explain::{DelayCause, Explanation, Fate, Finding, How, Origin, explain};
use tickcast_journal::layout::{FILE_HEAD_LEN, JOURNAL_LEN_MIN, SEGMENTS};
use tickcast_journal::{
    Dropped, GapCounts, Journal, JournalOrigin, JournalWriter, Journaled, Note, replay,
};
use tickcast_reliability::control::{Message, RefusalReason, Start};
use tickcast_reliability::delivery::{Delivery, Item, LineId, LossCause};
use tickcast_reliability::receive::ReceiverConfig;
use tickcast_reliability::session::{
    LinkTimers, SubscriberCore, SubscriberInput, SubscriberSettings,
};
use tickcast_reliability::types::{
    Epoch, Nanos, Sequence, SequenceRange, SourceId, SourcePosition,
};
use tickcast_reliability::wire::{Kind, SourceLossReason, StreamEvent, relay_flags};
use tickcast_sim::journal::staged::{
    CHANNEL, EPOCH, JournalStage, data, datagram, event, heartbeat,
};
use tickcast_transport::journal_file::JournalFile;

const A: LineId = LineId(0);
const B: LineId = LineId(1);

fn ordered() -> ReceiverConfig {
    ReceiverConfig::default()
}

fn range(first: u64, last: u64) -> SequenceRange {
    SequenceRange::new(Sequence(first), Sequence(last)).unwrap()
}

/// Returns the only finding.
fn only(explained: &Explanation) -> &Finding {
    assert_eq!(explained.findings.len(), 1, "{explained:#?}");
    &explained.findings[0]
}

/// Loses 13 and 14 on line A. 15 shows the gap, and repair fills it.
fn lose_two(
    before: impl FnOnce(&mut JournalStage),
    after: impl FnOnce(&mut JournalStage),
) -> Explanation {
    let mut stage = JournalStage::new(ordered(), 1);
    stage.hear(0, 11..=12);
    before(&mut stage);
    stage.hear(0, 15..=15);
    after(&mut stage);
    stage.repair(13..=14);
    stage.hear(0, 16..=18);
    stage.explain()
}

fn origin_of_two(explained: &Explanation) -> Origin {
    let found = only(explained);
    assert_eq!((found.channel, found.epoch), (CHANNEL, EPOCH));
    assert_eq!(found.sequences, range(13, 14));
    assert_eq!(found.fate, Fate::Came(How::Repair));
    assert!(found.asked > 0 && found.settled_at > found.found_at);
    found.origin
}

const fn dropped(buffer: u64, oversize: u64, q_key: u64, restarts: u64) -> Note {
    let dropped = Dropped {
        buffer,
        oversize,
        q_key,
        restarts,
    };
    Note::Dropped(CHANNEL, dropped)
}

#[test]
fn sole_line_without_local_drop_blames_wire_or_queue() {
    let explained = lose_two(|_| (), |_| ());
    assert_eq!(origin_of_two(&explained), Origin::WireOrSendQueue);
}

#[test]
fn datagram_only_on_other_line_is_wire_loss() {
    let mut stage = JournalStage::new(ordered(), 2);
    for sequence in 11..=20 {
        if !(14..=15).contains(&sequence) {
            stage.hear(0, sequence..=sequence);
        }
        // B is slower by two datagrams.
        stage.hear(1, sequence - 2..=sequence - 2);
    }
    let explained = stage.explain();
    let found = only(&explained);
    assert_eq!(
        (found.origin, found.sequences),
        (Origin::Wire(A), range(14, 15))
    );
    assert_eq!(found.fate, Fate::Came(How::OtherLine(B)));
    assert_eq!(explained.totals.missed_by_lines, [2, 0]);
}

#[test]
fn loss_on_both_lines_is_blamed_on_send_queue() {
    let mut stage = JournalStage::new(ordered(), 2);
    for sequence in (11..=13).chain(16..=20) {
        stage.hear(0, sequence..=sequence);
        stage.hear(1, sequence..=sequence);
    }
    stage.repair(14..=15);
    let explained = stage.explain();
    assert_eq!(only(&explained).origin, Origin::SendQueue);
    assert_eq!(only(&explained).fate, Fate::Came(How::Repair));
}

#[test]
fn rising_kernel_drop_count_names_socket_buffer() {
    let explained = lose_two(|_| (), |stage| stage.note(dropped(2, 0, 0, 0)));
    assert_eq!(origin_of_two(&explained), Origin::SocketBuffer);
    assert_eq!(only(&explained).buffer_drops, 2);
}

#[test]
fn poll_stall_is_named_as_cause_of_buffer_drops() {
    let stall = Nanos::from_ms(30);
    let explained = lose_two(
        |stage| {
            stage.pass_us(30_000);
            stage.note(Note::Stall(stall));
        },
        |stage| stage.note(dropped(2, 0, 0, 0)),
    );
    assert_eq!(origin_of_two(&explained), Origin::PollStall);
    assert_eq!(only(&explained).stalled_for, Some(stall));
}

#[test]
fn poll_stall_without_buffer_drops_is_not_blamed() {
    let explained = lose_two(|stage| stage.note(Note::Stall(Nanos::from_ms(30))), |_| ());
    assert_eq!(origin_of_two(&explained), Origin::WireOrSendQueue);
}

#[test]
fn drops_of_another_time_are_not_blamed() {
    let explained = lose_two(
        |stage| {
            stage.note(dropped(5, 0, 0, 0));
            stage.wait_ms(1);
            stage.bytes(0, &heartbeat(12));
            stage.wait_ms(1);
        },
        |_| (),
    );
    assert_eq!(origin_of_two(&explained), Origin::WireOrSendQueue);
}

#[test]
fn injected_fault_is_named_as_origin() {
    let injected = Note::Injected(CHANNEL, A, EPOCH, range(13, 14));
    let explained = lose_two(|_| (), |stage| stage.note(injected));
    assert_eq!(origin_of_two(&explained), Origin::Injected(A));
}

#[test]
fn datagrams_that_came_with_altered_bytes_are_named_damaged() {
    let explained = lose_two(
        |stage| {
            for sequence in 13..=14 {
                let mut bytes = data(EPOCH, sequence, 0);
                bytes[80] ^= 1;
                stage.bytes(0, &bytes);
            }
        },
        |_| (),
    );
    assert_eq!(origin_of_two(&explained), Origin::Damaged(A));
}

#[test]
fn datagrams_that_came_cut_off_are_named_so() {
    let cut = |stage: &mut JournalStage| stage.bytes(0, &data(EPOCH, 13, 0)[..70]);
    let explained = lose_two(cut, |_| ());
    assert_eq!(origin_of_two(&explained), Origin::CutOff(A));
}

#[test]
fn datagrams_longer_than_a_slot_are_named_so() {
    let explained = lose_two(|_| (), |stage| stage.note(dropped(0, 2, 0, 0)));
    assert_eq!(origin_of_two(&explained), Origin::TooLong);
}

#[test]
fn broken_receive_queue_or_foreign_q_key_names_device() {
    for note in [dropped(0, 0, 2, 0), dropped(0, 0, 0, 1)] {
        let explained = lose_two(|_| (), |stage| stage.note(note));
        assert_eq!(origin_of_two(&explained), Origin::Device);
    }
}

#[test]
fn shared_ring_overrun_is_named_as_origin() {
    let mut stage = JournalStage::new(ordered(), 1);
    stage.hear(0, 11..=12);
    stage.overrun(13, 40);
    stage.hear(0, 41..=42);
    let explained = stage.explain();
    let found = only(&explained);
    assert_eq!(
        (found.origin, found.sequences),
        (Origin::RingOverrun, range(13, 40))
    );
    assert_eq!(found.fate, Fate::Lost(LossCause::Window));
}

#[test]
fn window_full_drop_differs_from_earlier_loss() {
    let config = ReceiverConfig {
        window_slots: 16,
        ..ordered()
    };
    let mut stage = JournalStage::new(config, 1);
    stage.hear(0, 11..=12);
    // 13 is lost; 14 to 28 wait; 29 and 30 find no room.
    stage.hear(0, 14..=30);
    stage.repair(13..=13);
    stage.wait_ms(1);
    stage.repair(29..=30);
    stage.hear(0, 31..=33);
    let explained = stage.explain();
    let of = |sequence: u64| {
        let mut findings = explained.findings.iter();
        let found = findings.find(|it| it.sequences.contains(Sequence(sequence)));
        found.map(|it| (it.origin, it.fate))
    };
    let came = Fate::Came(How::Repair);
    assert_eq!(of(13), Some((Origin::WireOrSendQueue, came)));
    assert_eq!(of(29), Some((Origin::WindowFull, came)), "{explained:#?}");
    assert_eq!(of(30), Some((Origin::WindowFull, came)));
}

#[test]
fn window_full_drop_is_found_among_losses() {
    let config = ReceiverConfig {
        window_slots: 16,
        ..ordered()
    };
    let off = ReceiverConfig {
        repair: false,
        ..config
    };
    // With repair, without repair, and with a record that ends before the first NACK.
    for (config, repaired) in [(config, true), (off, false), (config, false)] {
        let mut stage = JournalStage::new(config, 1);
        stage.hear(0, 11..=12);
        // 13 is lost, 14 to 28 wait; then every other one is lost, and the others find no room.
        stage.hear(0, 14..=28);
        for sequence in (30..=40).step_by(2) {
            stage.hear(0, sequence..=sequence);
        }
        if repaired {
            stage.repair(13..=13);
            stage.wait_ms(1);
            stage.repair(29..=40);
            stage.hear(0, 41..=43);
        }
        if !config.repair {
            stage.wait_ms(200);
        }
        let explained = stage.explain();
        let lost = |origin| {
            let findings = explained.findings.iter().filter(|it| it.origin == origin);
            let sequences = findings.flat_map(|it| it.sequences.iter().map(|it| it.0));
            sequences.collect::<Vec<_>>()
        };
        let every_other = |first: u64| (first..=40).step_by(2).collect::<Vec<_>>();
        assert_eq!(lost(Origin::WindowFull), every_other(30), "{explained:#?}");
        let on_path = [vec![13], every_other(29)].concat();
        assert_eq!(lost(Origin::WireOrSendQueue), on_path, "{explained:#?}");
    }
}

/// Runs `steps` random steps of datagrams, losses, repairs and messages about them. `up_to` is the source
/// of randomness.
fn trouble(stage: &mut JournalStage, lines: u64, steps: usize, up_to: &mut impl FnMut(u64) -> u64) {
    let mut newest = 10;
    for _ in 0..steps {
        let line = up_to(lines) as u8;
        let back = (newest - up_to(30).min(newest - 1)).max(1);
        let to = (back + up_to(20)).min(newest);
        match up_to(9) {
            0..=2 => {
                stage.hear(line, newest + 1..=newest + 1 + up_to(12));
                newest += 12;
            }
            3 => newest += 1 + up_to(20),
            4 => stage.hear(line, back..=to),
            5 => stage.repair(back..=to),
            6 => stage.status(newest),
            7 => stage.bytes(line, &heartbeat(newest)),
            _ => stage.wait_ms(1 + up_to(40)),
        }
    }
}

#[test]
fn findings_add_up_to_counts() {
    let mut turned_away = 0;
    for seed in 0..150 {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut up_to = |n: u64| u64::from(random.next_u32()) % n;
        let config = ReceiverConfig {
            window_slots: 16,
            repair: up_to(8) > 0,
            delivery: match up_to(4) {
                0 => Delivery::OrderedWithin(Nanos::from_ms(2)),
                _ => Delivery::Ordered,
            },
            ..ordered()
        };
        let lines = 1 + up_to(2);
        let mut stage = JournalStage::new(config, lines as usize);
        trouble(&mut stage, lines, 60, &mut up_to);
        println!("seed {seed}, {config:?}");
        let explained = stage.explain();
        turned_away += u64::from(
            explained
                .findings
                .iter()
                .any(|it| it.origin == Origin::WindowFull),
        );
    }
    assert!(turned_away > 50, "only {turned_away} had a full window");
}

#[test]
fn silent_multicast_of_live_publisher_is_named() {
    let mut stage = JournalStage::new(ordered(), 1);
    stage.hear(0, 11..=12);
    stage.bytes(0, &heartbeat(12));
    stage.wait_ms(60);
    stage.status(20);
    stage.wait_ms(2);
    stage.status(20);
    stage.repair(13..=20);
    stage.hear(0, 21..=22);
    let explained = stage.explain();
    let found = only(&explained);
    assert_eq!(
        (found.origin, found.sequences),
        (Origin::Silence, range(13, 20))
    );
}

#[test]
fn gap_open_at_publisher_death_names_publisher() {
    let mut stage = JournalStage::new(ordered(), 1);
    stage.hear(0, 11..=12);
    stage.bytes(0, &heartbeat(14));
    stage.disconnect();
    // From here on the publisher does not answer.
    stage.wait_ms(12_000);
    let explained = stage.explain();
    let gone = explained.findings.iter();
    let gone: Vec<_> = gone.map(|it| (it.origin, it.fate)).collect();
    let lost = Fate::Lost(LossCause::PublisherDead);
    assert_eq!(gone, [(Origin::PublisherGone, lost)], "{explained:#?}");
}

#[test]
fn gap_open_at_epoch_change_names_epoch_change() {
    let mut stage = JournalStage::new(ordered(), 1);
    stage.hear(0, 11..=12);
    stage.disconnect();
    stage.wait_ms(100);
    stage.welcome(Epoch(EPOCH.0 + 1), 0, 1);
    stage.bytes(0, &data(Epoch(EPOCH.0 + 1), 1, 0));
    stage.pass_us(10);
    let explained = stage.explain();
    let found = only(&explained);
    let lost = Fate::Lost(LossCause::Epoch);
    assert_eq!(
        (found.origin, found.fate),
        (Origin::EpochChange, lost),
        "{explained:#?}"
    );
}

#[test]
fn history_gone_from_ring_at_join_is_named() {
    let mut stage = JournalStage::starting(ordered(), 1, Start::At(EPOCH, Sequence(3)));
    stage.wait_ms(1);
    stage.refuse(3, 7, RefusalReason::Window, 8);
    stage.repair(8..=10);
    stage.hear(0, 11..=12);
    let explained = stage.explain();
    let found = only(&explained);
    assert_eq!(
        (found.origin, found.sequences),
        (Origin::BeforeJoining, range(3, 7))
    );
    assert_eq!(found.fate, Fate::Lost(LossCause::Window));
    assert_eq!(explained.totals.lost_otherwise, 5);
}

#[test]
fn gap_during_group_join_is_not_wire_loss() {
    let mut stage = JournalStage::new(ordered(), 1);
    stage.hear(0, 14..=15);
    stage.repair(11..=13);
    stage.hear(0, 16..=17);
    let explained = stage.explain();
    let found = only(&explained);
    assert_eq!(
        (found.origin, found.sequences),
        (Origin::Joining, range(11, 13))
    );
}

#[test]
fn source_loss_event_names_its_origin() {
    for (reason, origin) in [
        (SourceLossReason::Gap, Origin::SourceLineOrInput),
        (SourceLossReason::Overflow, Origin::FeedQueue),
        (SourceLossReason::Malformed, Origin::SourceUnreadable),
    ] {
        let mut stage = JournalStage::new(ordered(), 1);
        stage.hear(0, 11..=12);
        let lost = StreamEvent::SourceLost {
            source: SourceId(1),
            reason,
            from: SourcePosition(99),
            messages: 4,
            instruments: Vec::new(),
        };
        stage.bytes(0, &event(13, &lost));
        let explained = stage.explain();
        let found = only(&explained);
        assert_eq!((found.origin, found.fate), (origin, Fate::Unrepairable));
        assert_eq!(found.source, Some((reason, 4)));
    }
}

#[test]
fn records_that_no_version_carries_are_named_unreadable() {
    let mut stage = JournalStage::new(ordered(), 1);
    stage.hear(0, 11..=12);
    let unreadable = datagram(Kind::Data, EPOCH, (13, 1), &[0xff; 56], 0);
    stage.bytes(0, &unreadable);
    stage.hear(0, 14..=15);
    stage.message(&Message::Datagram(&unreadable));
    let explained = stage.explain();
    let found = only(&explained);
    assert_eq!(
        (found.origin, found.sequences),
        (Origin::Unreadable, range(13, 13))
    );
    assert_eq!(found.fate, Fate::Lost(LossCause::Unreadable));
}

#[test]
fn another_content_under_the_same_number_names_an_impostor() {
    let mut stage = JournalStage::new(ordered(), 1);
    stage.hear(0, 11..=12);
    let mut other = data(EPOCH, 13, 0);
    other[100] ^= 0xff;
    let forged = datagram(Kind::Data, EPOCH, (13, 1), &other[64..], 0);
    stage.bytes(0, &forged);
    stage.pass_us(10);
    stage.bytes(0, &data(EPOCH, 13, 0));
    stage.pass_us(10);
    stage.repair(13..=13);
    stage.hear(0, 14..=15);
    let explained = stage.explain();
    let found = only(&explained);
    assert_eq!(
        (found.origin, found.sequences),
        (Origin::Impostor, range(13, 13))
    );
    assert_eq!(found.fate, Fate::Lost(LossCause::Fenced));
}

#[test]
fn local_ring_overrun_blames_the_application() {
    let mut stage = JournalStage::new(ordered(), 1);
    stage.hear(0, 11..=20);
    stage.note(Note::Overrun(CHANNEL, 6));
    let explained = stage.explain();
    let found = only(&explained);
    assert_eq!(
        (found.origin, found.fate),
        (Origin::LocalRing, Fate::Unrepairable)
    );
    assert_eq!(found.records, Some(6));
}

#[test]
fn overtaken_datagram_on_its_line_is_late_not_lost() {
    let mut stage = JournalStage::new(ordered(), 1);
    stage.hear(0, 11..=12);
    stage.hear(0, 14..=14);
    stage.hear(0, 13..=13);
    stage.hear(0, 15..=16);
    let explained = stage.explain();
    let found = only(&explained);
    assert_eq!(
        (found.origin, found.fate),
        (Origin::Late(A), Fate::Came(How::Late(A)))
    );
    assert_eq!(why_late(found), DelayCause::Overtaken);
}

fn why_late(found: &Finding) -> DelayCause {
    found.late.expect("it is late").1
}

/// STATUS announces 13 to 20 after the line was silent for 60 ms, and repair fills them before the line
/// does.
fn overtake_the_line(meanwhile: impl FnOnce(&mut JournalStage)) -> Explanation {
    let mut stage = JournalStage::new(ordered(), 1);
    stage.hear(0, 11..=12);
    stage.bytes(0, &heartbeat(12));
    stage.wait_ms(60);
    meanwhile(&mut stage);
    stage.status(20);
    stage.wait_ms(2);
    stage.status(20);
    stage.repair(13..=20);
    stage.hear(0, 13..=22);
    let explained = stage.explain();
    let found = only(&explained);
    assert_eq!(
        (found.origin, found.fate, found.sequences),
        (Origin::Late(A), Fate::Came(How::Repair), range(13, 20))
    );
    explained
}

#[test]
fn datagram_after_resume_was_late_not_lost() {
    let explained = overtake_the_line(|_| ());
    let DelayCause::Silence(silence) = why_late(only(&explained)) else {
        panic!("{explained:#?}");
    };
    assert!(silence >= Nanos::from_ms(62), "{silence:?}");
}

#[test]
fn line_and_repair_in_reporting_poll_were_late() {
    let mut stage = JournalStage::new(ordered(), 1);
    stage.hear(0, 11..=16);
    stage.bytes(0, &heartbeat(16));
    stage.wait_ms(60);
    // All in one poll: the line's first datagram, repair for the others, and then the line's copies.
    stage.status(34);
    stage.bytes(0, &data(EPOCH, 17, 0));
    stage.repair(18..=34);
    for sequence in 18..=36 {
        stage.bytes(0, &data(EPOCH, sequence, 0));
    }
    assert_eq!(stage.counted("duplicates"), 17);
    let explained = stage.explain();
    let reported = explained.findings.iter();
    let reported: Vec<_> = reported
        .map(|it| (it.sequences, it.origin, it.fate))
        .collect();
    let by = |how| (Origin::Late(A), Fate::Came(how));
    let ((late, on_line), (_, repaired)) = (by(How::OtherLine(A)), by(How::Repair));
    assert_eq!(
        reported,
        [
            (range(17, 17), late, on_line),
            (range(18, 34), late, repaired)
        ]
    );
}

#[test]
fn unvouched_line_datagram_was_not_lost_on_wire() {
    let mut stage = JournalStage::new(ordered(), 1);
    stage.hear(0, 11..=12);
    // A jump so far ahead is dropped until STATUS confirms it.
    stage.hear(0, 70_000..=70_000);
    assert_eq!(stage.counted("sequence_jump_dropped"), 1);
    stage.status(70_000);
    let explained = stage.explain();
    let reported = explained.findings.iter();
    let reported: Vec<_> = reported.map(|it| (it.sequences, it.origin)).collect();
    assert_eq!(
        reported,
        [
            (range(13, 69_999), Origin::WireOrSendQueue),
            (range(70_000, 70_000), Origin::Late(A))
        ]
    );
}

#[test]
fn stalled_application_explains_lateness() {
    let stall = Nanos::from_ms(60);
    let explained = overtake_the_line(|stage| stage.note(Note::Stall(stall)));
    assert_eq!(why_late(only(&explained)), DelayCause::PollStall(stall));
}

#[test]
fn injected_delay_is_named_as_cause_of_lateness() {
    let held_back = Note::Injected(CHANNEL, A, EPOCH, range(13, 14));
    let mut stage = JournalStage::new(ordered(), 1);
    stage.hear(0, 11..=12);
    stage.hear(0, 15..=15);
    stage.note(held_back);
    stage.repair(13..=14);
    stage.hear(0, 13..=14);
    stage.hear(0, 16..=18);
    let explained = stage.explain();
    assert_eq!(origin_of_two(&explained), Origin::Late(A));
    assert_eq!(why_late(only(&explained)), DelayCause::Injected);
}

#[test]
fn line_loss_repaired_before_other_line_is_that_lines() {
    let mut stage = JournalStage::new(ordered(), 2);
    stage.hear(0, 11..=12);
    stage.hear(1, 11..=12);
    stage.hear(0, 15..=18);
    stage.wait_ms(5);
    stage.repair(13..=14);
    stage.hear(1, 13..=18);
    let explained = stage.explain();
    assert_eq!(origin_of_two(&explained), Origin::Wire(A));
}

#[test]
fn datagram_on_both_lines_after_status_was_late() {
    let mut stage = JournalStage::new(ordered(), 2);
    for line in [0, 1] {
        stage.hear(line, 11..=12);
        stage.bytes(line, &heartbeat(12));
    }
    stage.wait_ms(60);
    stage.status(20);
    stage.wait_ms(2);
    stage.status(20);
    stage.hear(0, 13..=22);
    stage.hear(1, 13..=22);
    let explained = stage.explain();
    let found = only(&explained);
    assert_eq!(
        (found.origin, found.sequences),
        (Origin::Late(A), range(13, 20))
    );
    assert_eq!(found.fate, Fate::Came(How::OtherLine(A)));
}

#[test]
fn gap_filled_by_multicast_repair_is_named() {
    let mut stage = JournalStage::new(ordered(), 1);
    stage.hear(0, 11..=12);
    stage.hear(0, 15..=15);
    for sequence in 13..=14 {
        stage.bytes(0, &data(EPOCH, sequence, relay_flags::RETRANSMITTED));
    }
    stage.hear(0, 16..=17);
    let explained = stage.explain();
    assert_eq!(only(&explained).fate, Fate::Came(How::Multicast));
}

#[test]
fn deadline_refusal_and_no_repair_name_loss_cause() {
    let within = ReceiverConfig {
        delivery: Delivery::OrderedWithin(Nanos::from_ms(2)),
        ..ordered()
    };
    let off = ReceiverConfig {
        repair: false,
        ..ordered()
    };
    let stages: [(ReceiverConfig, bool, LossCause); 3] = [
        (within, false, LossCause::Deadline),
        (off, false, LossCause::RepairOff),
        (ordered(), true, LossCause::Window),
    ];
    for (config, refused, cause) in stages {
        let mut stage = JournalStage::new(config, 1);
        stage.hear(0, 11..=12);
        stage.hear(0, 15..=15);
        if refused {
            stage.refuse(13, 14, RefusalReason::Window, 15);
        }
        // The publisher's heartbeats arrive all the time.
        for _ in 0..10 {
            stage.wait_ms(5);
            stage.bytes(0, &heartbeat(15));
        }
        stage.hear(0, 16..=17);
        let explained = stage.explain();
        let found = only(&explained);
        assert_eq!(found.fate, Fate::Lost(cause), "{explained:#?}");
        assert_eq!(
            (found.origin, found.sequences),
            (Origin::WireOrSendQueue, range(13, 14))
        );
        assert_eq!(found.records, Some(2));
    }
}

#[test]
fn gap_found_by_heartbeat_is_reported_open() {
    let mut stage = JournalStage::new(ordered(), 1);
    stage.hear(0, 11..=12);
    stage.bytes(0, &heartbeat(14));
    stage.pass_us(100);
    let explained = stage.explain();
    let found = only(&explained);
    assert_eq!((found.fate, found.sequences), (Fate::Open, range(13, 14)));
}

#[test]
fn gap_parts_lost_in_different_places_are_separate() {
    let injected = Note::Injected(CHANNEL, A, EPOCH, range(13, 13));
    let explained = lose_two(|_| (), |stage| stage.note(injected));
    let parts: Vec<_> = explained
        .findings
        .iter()
        .map(|it| (it.gap, it.origin))
        .collect();
    assert_eq!(
        parts,
        [(1, Origin::Injected(A)), (1, Origin::WireOrSendQueue)]
    );
}

#[test]
fn two_host_journals_separate_wire_from_common_loss() {
    let host = |lost: &[u64]| {
        let mut stage = JournalStage::new(ordered(), 1);
        for sequence in (11..=30).filter(|it| !lost.contains(it)) {
            stage.hear(0, sequence..=sequence);
        }
        for sequence in lost {
            stage.repair(*sequence..=*sequence);
        }
        stage.hear(0, 31..=32);
        stage.record()
    };
    let explained = explain(&[host(&[13, 20]), host(&[20])]);
    let origins = |nth: usize| {
        let findings = explained[nth].findings.iter();
        let origins = findings.map(|it| (it.sequences.first.0, it.origin));
        origins.collect::<Vec<_>>()
    };
    assert_eq!(origins(0), [(13, Origin::Wire(A)), (20, Origin::SendQueue)]);
    assert_eq!(origins(1), [(20, Origin::SendQueue)]);
}

#[test]
fn datagram_before_welcome_of_epoch_is_not_wire_loss() {
    let next = Epoch(EPOCH.0 + 1);
    let mut stage = JournalStage::new(ordered(), 1);
    stage.hear(0, 11..=12);
    stage.disconnect();
    // Only line A carries the new epoch, and no WELCOME has confirmed it yet.
    for sequence in [1, 2] {
        stage.bytes(0, &data(next, sequence, 0));
    }
    stage.wait_ms(100);
    stage.welcome(next, 0, 1);
    for sequence in [4, 5] {
        stage.bytes(0, &data(next, sequence, 0));
    }
    stage.pass_us(10);
    let explained = stage.explain();
    let of_next = explained.findings.iter().filter(|it| it.epoch == next);
    let origins: Vec<_> = of_next.map(|it| (it.sequences, it.origin)).collect();
    assert_eq!(
        origins,
        [
            (range(1, 2), Origin::BeforeWelcome),
            (range(3, 3), Origin::WireOrSendQueue)
        ],
        "{explained:#?}"
    );
}

#[test]
fn records_of_one_host_do_not_blame_publisher() {
    let process = |boot_id: &str| {
        let mut stage = JournalStage::in_host(ordered(), 1, Start::Live, boot_id);
        stage.hear(0, 11..=12);
        stage.hear(0, 14..=15);
        stage.repair(13..=13);
        stage.hear(0, 16..=17);
        stage.record()
    };
    let origin = |hosts: [&str; 2]| {
        let explained = explain(&hosts.map(process));
        only(&explained[0]).origin
    };
    assert_eq!(origin(["one", "one"]), Origin::WireOrSendQueue);
    assert_eq!(origin(["one", "other"]), Origin::SendQueue);
}

#[test]
fn damaged_journal_is_explained_or_refused() {
    let mut stage = JournalStage::new(ordered(), 1);
    stage.hear(0, 11..=12);
    stage.hear(0, 15..=40);
    stage.repair(13..=14);
    let whole = stage.bytes_of_record();
    let damaged = |at: usize| {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x5a;
        let recording = match Journal::read(bytes) {
            Ok(recording) => recording,
            Err(error) => return Some(error.to_string()),
        };
        let explained = explain(std::slice::from_ref(&recording)).remove(0);
        let _ = replay(&recording, false, &mut |_: Item<'_>| ());
        explained.damaged
    };
    let found = (4096..4096 + 60_000)
        .step_by(37)
        .filter_map(damaged)
        .count();
    assert!(found > 0, "no damage was ever found");
    let segment = whole[4096..]
        .chunks(8)
        .position(|word| word == 1u64.to_le_bytes());
    let head = 4096 + 8 * segment.expect("the first segment of all was begun");
    let word = |at: usize| u64::from_le_bytes(whole[head + at..][..8].try_into().unwrap());
    // The length of the core's state, and that state, from which a replay begins.
    let state = 64..64 + word(32) as usize;
    assert!(!state.is_empty());
    for at in [32, 48].into_iter().chain(state.step_by(7)) {
        assert!(damaged(head + at).is_some(), "byte {at} of the segment");
    }
    // The end of its entries, set far beyond the segment; and the segment's generation.
    assert!(damaged(head + 8 + 6).is_some());
}

#[test]
fn damaged_journal_part_is_reported_rest_explained() {
    let mut stage = JournalStage::new(ordered(), 1);
    let mut next = 11;
    // Enough for several segments.
    for _ in 0..60_000 {
        stage.hear(0, next..=next);
        if next % 1024 == 0 {
            stage.status(next);
        }
        next += 1;
    }
    stage.hear(0, next + 2..=next + 3);
    stage.repair(next..=next + 1);
    let whole = stage.bytes_of_record();
    let read = |bytes: Vec<u8>| explain(&[Journal::read(bytes).unwrap()]).remove(0);
    let segment_len =
        usize::try_from(u64::from_le_bytes(whole[16..24].try_into().unwrap())).unwrap();
    let heads = (0..8).map(|nth| 4096 + nth * segment_len);
    let of = |base: usize| u64::from_le_bytes(whole[base..base + 8].try_into().unwrap());
    let second = heads
        .clone()
        .find(|base| of(*base) == 2)
        .expect("two segments");
    assert_eq!(read(whole.clone()).damaged, None);
    for at in [0, 8 + 6, 32 + 6] {
        let mut bytes = whole.clone();
        bytes[second + at] ^= 0x5a;
        let explained = read(bytes);
        let damaged = explained.damaged.expect("it is told");
        assert!(damaged.contains("segment"), "{damaged}");
        assert_eq!(explained.findings.len(), 1, "what follows is whole");
    }
}

/// Returns the segments of a record, the oldest first, each with its generation.
fn segments(record: &[u8]) -> Vec<(u64, &[u8])> {
    let segment_len = word(record, 16) as usize;
    let segments = record[FILE_HEAD_LEN..]
        .chunks_exact(segment_len)
        .take(SEGMENTS);
    let mut segments: Vec<_> = segments.map(|it| (word(it, 0), it)).collect();
    segments.sort_unstable_by_key(|(generation, _)| *generation);
    segments
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// Returns the record with the oldest of its segments moved to place `nth` in the file.
fn rotated(record: &[u8], nth: usize) -> Vec<u8> {
    let (mut rotated, segment_len) = (record.to_vec(), word(record, 16) as usize);
    for (age, (_, segment)) in segments(record).into_iter().enumerate() {
        let place = nth + age;
        let base = FILE_HEAD_LEN + place % SEGMENTS * segment_len;
        let generation = (SEGMENTS + place + 1) as u64;
        rotated[base..base + segment_len].copy_from_slice(segment);
        rotated[base..base + 8].copy_from_slice(&generation.to_le_bytes());
    }
    rotated
}

#[test]
fn overwritten_journal_adds_up_from_any_oldest_part() {
    let mut open_before = 0;
    for seed in 0..6 {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut up_to = |n: u64| u64::from(random.next_u32()) % n;
        let config = ReceiverConfig {
            window_slots: 16,
            ..ordered()
        };
        let mut stage = JournalStage::in_little_room(config, 2);
        trouble(&mut stage, 2, 3_000, &mut up_to);
        let record = stage.bytes_of_record();
        let oldest = segments(&record)[0].0;
        assert!(oldest > 1, "seed {seed} overwrote nothing");
        let explained = |nth: usize| {
            let recording = Journal::read(rotated(&record, nth)).unwrap();
            let explained = explain(std::slice::from_ref(&recording)).remove(0);
            (recording, explained)
        };
        let (recording, in_order) = explained(0);
        for nth in 1..SEGMENTS {
            let (_, explained) = explained(nth);
            assert!(
                explained == in_order,
                "seed {seed}, the oldest is the {nth}."
            );
        }
        let replayed = replay(&recording, false, &mut |_: Item<'_>| ());
        assert_eq!((replayed.difference, replayed.stopped), (None, None));
        let counted = GapCounts::of(&replayed.core.unwrap());
        let (before, found) = (replayed.before.unwrap(), in_order.totals);
        assert_eq!(
            found.missing,
            counted.missing - before.missing,
            "seed {seed}"
        );
        // Gaps that were open at the record's begin end in it too, and belong to no finding.
        let of_before = [
            counted.came - before.came - found.came,
            counted.lost - before.lost - found.lost,
            counted.open - found.open,
        ];
        assert_eq!(of_before.iter().sum::<u64>(), before.open, "seed {seed}");
        assert!(found.missing > 100);
        open_before += u64::from(before.open > 0);
    }
    assert!(open_before > 0, "nothing was ever missing before");
}

/// Loses every other datagram of `count` pairs, all at once, and repairs them after the NACK.
fn lose_every_other(count: u64) -> Explanation {
    let mut stage = JournalStage::new(ordered(), 1);
    stage.hear(0, 11..=12);
    let heard = (14..14 + 2 * count).step_by(2);
    for sequence in heard {
        stage.bytes(0, &data(EPOCH, sequence, 0));
    }
    stage.wait_ms(1);
    stage.repair(13..=14 + 2 * count);
    stage.explain()
}

#[test]
fn full_nack_is_recorded_whole() {
    let explained = lose_every_other(250);
    assert_eq!(explained.findings.len(), 250);
    for found in &explained.findings {
        assert!(found.asked > 0 && !found.asked_more, "{found:#?}");
    }
}

#[test]
fn truncated_nack_record_claims_nothing_more() {
    let explained = lose_every_other(900);
    let findings = || explained.findings.iter();
    let reported = findings().filter(|it| it.asked > 0).count();
    assert!((250..900).contains(&reported), "{reported} of 900");
    assert!(findings().all(|it| it.asked_more), "{explained:#?}");
}

#[test]
fn journal_without_datagrams_never_replaces_earlier_one() {
    let name = format!("tickcast-explanations-{}.journal", std::process::id());
    let path = std::path::Path::new("/dev/shm").join(name);
    let before = path.with_extension("journal.before");
    let mut stage = JournalStage::new(ordered(), 1);
    stage.hear(0, 11..=12);
    let outage = stage.bytes_of_record();
    std::fs::write(&path, &outage).unwrap();
    // Restarted several times while the publisher is down.
    for _ in 0..3 {
        let file = JournalFile::create(&path, JOURNAL_LEN_MIN).unwrap();
        let journal = JournalWriter::new(Box::new(file), &JournalOrigin::default()).unwrap();
        let settings = SubscriberSettings {
            name: "in vain".into(),
            channels: Vec::new(),
            link: LinkTimers::default(),
            seed: 1,
        };
        let mut core = Journaled::new(SubscriberCore::new(settings, Nanos::ZERO));
        core.keep_journal(journal);
        core.handle(
            Nanos::from_ms(1),
            SubscriberInput::Timeout,
            &mut |_: Item<'_>| (),
        );
        drop(core);
        assert!(std::fs::read(&before).unwrap() == outage);
    }
    for path in [path, before] {
        std::fs::remove_file(path).unwrap();
    }
}
