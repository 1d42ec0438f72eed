//! The publish side over a ring on the heap, in virtual time.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::*;
use crate::record::{InstrumentDefMsg, MboMsg, RecordBatch};
use crate::ring::{Geometry, HeapMemory, RingIdentity};
use crate::types::{ChannelId, ConfigHash, Epoch};
use crate::wire::{CrcVerdict, Datagram};

const F0: FanOutId = FanOutId(0);
const F1: FanOutId = FanOutId(1);
const SOURCE: SourceId = SourceId(1);

fn core(first: u64, fan_outs: u8) -> PublisherCore {
    let geometry = Geometry::new(1024, 64).unwrap();
    let identity = RingIdentity {
        channel: ChannelId(1),
        epoch: Epoch(2),
        config_hash: ConfigHash(3),
        boot_id: [0; 16],
        fan_outs,
        first_sequence: Sequence(first),
        first_record: RecordNumber(1),
    };
    let memory = Arc::new(HeapMemory::new(geometry));
    let ring = RingWriter::create(memory, geometry, identity).unwrap();
    PublisherCore::new(
        PublisherConfig::default(),
        ring,
        Arc::default(),
        Nanos::ZERO,
    )
}

fn now(us: u64) -> Now {
    Now {
        monotonic: Nanos::from_us(us),
        utc: Nanos::from_secs(1_700_000_000).after(Nanos::from_us(us)),
    }
}

fn publish(core: &mut PublisherCore, us: u64) {
    let mut message = RecordBatch::default();
    message.put(&MboMsg::default());
    let position = SourcePosition::new(0, us);
    core.publish(&message, SOURCE, position, now(us)).unwrap();
    core.flush(now(us), true);
}

/// Sends all there is on a fan-out whose transport copies; what it sent, and its heartbeats.
fn send(core: &mut PublisherCore, fan_out: FanOutId) -> (u64, Vec<(Header, Heartbeat)>) {
    let (mut slots, mut heartbeats) = (0, Vec::new());
    while let Some(transmit) = core.poll_transmit(fan_out) {
        match transmit {
            Transmit::Slots(range) => {
                assert!(range.iter().all(|s| core.slot(s).is_some()));
                slots += range.len();
                core.handle_posted(fan_out, range.last);
                core.handle_completed(fan_out, range.last);
            }
            Transmit::Heartbeat(bytes) => {
                let datagram = Datagram::parse(&bytes).unwrap();
                assert_eq!(datagram.verdict(), CrcVerdict::Good);
                let body = Heartbeat::parse(datagram.payload()).unwrap();
                heartbeats.push((*datagram.header(), body));
            }
        }
    }
    (slots, heartbeats)
}

#[test]
fn unsent_sealed_slots_are_sent_after_reopen() {
    let mut before = core(1, 2);
    (1..=9).for_each(|us| publish(&mut before, us));
    before.handle_posted(F0, Sequence(4));
    let sealed = before.slot(Sequence(7)).map(<[u8]>::to_vec);
    let memory = before.ring().memory();
    drop(before);
    let ring = RingWriter::reopen(memory).unwrap();
    let config = PublisherConfig::default();
    let mut core = PublisherCore::new(config, ring, Arc::default(), Nanos::ZERO);
    for (fan_out, first) in [(F0, 5), (F1, 1)] {
        let range = SequenceRange::new(Sequence(first), Sequence(9)).unwrap();
        assert_eq!(core.poll_transmit(fan_out), Some(Transmit::Slots(range)));
    }
    assert_eq!(core.slot(Sequence(7)).map(<[u8]>::to_vec), sealed);
    assert_eq!((send(&mut core, F0).0, send(&mut core, F1).0), (5, 9));
    publish(&mut core, 20);
    assert_eq!(core.sealed(), Sequence(10));
    assert_eq!((send(&mut core, F0).0, send(&mut core, F1).0), (1, 1));
}

#[test]
fn fan_out_sends_slots_once_in_order() {
    let mut core = core(1, 2);
    publish(&mut core, 1);
    publish(&mut core, 2);
    let both = SequenceRange::new(Sequence(1), Sequence(2)).map(Transmit::Slots);
    assert_eq!(core.poll_transmit(F0), both);
    assert_eq!(core.poll_transmit(F0), both, "until it is posted");
    core.handle_posted(F0, Sequence(1));
    let second = Transmit::Slots(SequenceRange::one(Sequence(2)));
    assert_eq!(core.poll_transmit(F0), Some(second));
    core.handle_posted(F0, Sequence(99));
    assert_eq!(core.posted(F0), Sequence(2), "not beyond what is sealed");
    assert_eq!(core.poll_transmit(F0), None);
    assert_eq!(send(&mut core, F1).0, 2);
    assert_eq!(core.counters.sent_datagrams.get(), 4);
    assert_eq!(core.ring().reader().sent_by_all(), Sequence(2));
    assert_eq!(core.poll_transmit(FanOutId(2)), None);
    core.handle_posted(FanOutId(2), Sequence(2));
    core.handle_completed(FanOutId(200), Sequence(2));
}

#[test]
fn heartbeat_reports_sent_state_of_own_fan_out() {
    let mut core = core(1, 2);
    core.set_group(7, 20);
    publish(&mut core, 0);
    send(&mut core, F0);
    publish(&mut core, 1);
    core.handle_timeout(now(21));
    core.handle_posted(F0, Sequence(2));
    let (_, beats) = send(&mut core, F0);
    let (header, body) = beats[0];
    assert_eq!(header.sequence, Sequence(2));
    assert_eq!(header.first_record, RecordNumber(3), "of the next record");
    assert_eq!((header.retained, header.sent_at), (2, now(21).utc));
    assert_eq!((body.subscribers, body.hold_off_us), (7, 20));
    assert_eq!(body.config_hash, ConfigHash(3));
    assert_eq!(body.next_interval_us, 20);
    // The other one has sent nothing: its data goes first, then its own heartbeat.
    assert!(matches!(core.poll_transmit(F1), Some(Transmit::Slots(_))));
    core.handle_posted(F1, Sequence(1));
    assert!(matches!(core.poll_transmit(F1), Some(Transmit::Slots(_))));
    core.handle_posted(F1, Sequence(2));
    assert_eq!(send(&mut core, F1).1[0].0.sequence, Sequence(2));
    assert_eq!(core.ring().reader().heartbeat_at(), now(21).utc);
}

#[test]
fn delayed_heartbeat_promises_state_at_send() {
    let mut core = core(1, 1);
    publish(&mut core, 0);
    core.handle_timeout(now(20));
    assert_eq!(core.poll_timeout(), Some(Nanos::from_us(40)));
    // It has not gone yet, and data puts the next one off.
    publish(&mut core, 39);
    let (_, beats) = send(&mut core, F0);
    assert_eq!(core.poll_timeout(), Some(Nanos::from_us(59)));
    assert_eq!(beats[0].1.next_interval_us, 20, "from 39 on, not from 20");
    core.handle_timeout(now(59));
    core.handle_timeout(now(79));
    let (_, beats) = send(&mut core, F0);
    assert_eq!(beats.len(), 1, "the newer one stands for both");
    let next = Nanos::from_us(79 + u64::from(beats[0].1.next_interval_us));
    assert_eq!(core.poll_timeout(), Some(next));
}

#[test]
fn heartbeat_before_first_datagram_reports_none_retained() {
    let mut core = core(10, 1);
    core.handle_timeout(now(20));
    let (header, _) = send(&mut core, F0).1[0];
    assert_eq!((header.sequence, header.retained), (Sequence(9), 0));
    assert_eq!(header.first_record, RecordNumber(1));
    assert_eq!(header.oldest(), None);
}

#[test]
fn data_restarts_the_heartbeats_and_stop_ends_them() {
    let mut core = core(1, 1);
    let mut times = Vec::new();
    publish(&mut core, 1_000);
    while let Some(at) = core.poll_timeout().filter(|at| *at < Nanos::from_us(2_000)) {
        core.handle_timeout(now(at.as_us()));
        times.push(at.as_us());
        let (_, beats) = send(&mut core, F0);
        let next = at.after(Nanos::from_us(beats[0].1.next_interval_us.into()));
        assert_eq!(core.poll_timeout(), Some(next), "it announced the next one");
    }
    assert_eq!(times, [1_020, 1_040, 1_080, 1_160, 1_320, 1_640]);
    publish(&mut core, 2_000);
    assert_eq!(core.poll_timeout(), Some(Nanos::from_us(2_020)));
    assert_eq!(core.end(now(2_001)), Ok(Sequence(3)));
    assert_eq!(core.end(now(2_001)), Err(PublishError::Ended));
    core.handle_timeout(now(3_000));
    let (_, beats) = send(&mut core, F0);
    assert_eq!(beats[0].1.state, PublisherState::Ended);
    assert_eq!(core.ring().reader().state(), Some(PublisherState::Ended));
    core.handle_timeout(now(9_000));
    core.stop();
    assert_eq!((core.poll_transmit(F0), core.poll_timeout()), (None, None));
    core.handle_timeout(now(99_000));
    assert_eq!(core.poll_transmit(F0), None);
}

#[test]
fn stalled_fan_out_never_blocks_feed_or_others() {
    let mut core = core((1 << 32) - 500, 2);
    let (mut skipped, mut resets) = (0, 0);
    for n in 0..1_000 {
        publish(&mut core, n);
        assert_eq!(
            send(&mut core, F0).0,
            1,
            "the healthy one sends each at once"
        );
        while let Some(event) = core.poll() {
            let PublisherEvent::FanOutReset {
                fan_out: F1,
                skipped: Some(range),
            } = event
            else {
                panic!("{event:?}");
            };
            skipped += range.len();
            resets += 1;
        }
    }
    assert_eq!(core.counters.skipped_datagrams.get(), skipped);
    assert_eq!(core.counters.fan_out_resets.get(), resets);
    assert_eq!(core.counters.sealed_datagrams.get(), 1_000);
    // Each reset lets go of the ring but for its margin of an eighth.
    assert_eq!((resets, skipped), (17, 17 * 56));
    let (sent, _) = send(&mut core, F1);
    assert_eq!(sent + skipped, 1_000, "sent or skipped, each exactly once");
}

#[test]
fn fan_out_without_completions_is_reset() {
    let mut core = core(1, 1);
    for n in 0..60 {
        publish(&mut core, n);
        core.handle_posted(F0, core.sealed());
    }
    let reset = PublisherEvent::FanOutReset {
        fan_out: F0,
        skipped: None,
    };
    assert_eq!(core.poll(), Some(reset));
    assert_eq!(core.poll(), None);
    assert_eq!(core.counters.skipped_datagrams.get(), 0);
}

#[test]
fn unpolled_publisher_events_are_bounded() {
    let mut core = core(1, 1);
    let mut large = RecordBatch::default();
    large.put(&InstrumentDefMsg::default());
    large.put(&InstrumentDefMsg::default());
    for n in 0..5_000 {
        let position = SourcePosition::new(0, n);
        let refused = core.publish(&large, SOURCE, position, now(n));
        assert!(matches!(refused, Err(PublishError::TooLarge { .. })));
    }
    assert_eq!(core.counters.source_messages_lost.get(), 5_000);
    let events: Vec<_> = std::iter::from_fn(|| core.poll()).collect();
    assert!(events.len() <= EVENTS_MAX + 1);
    let reset = events.iter().find_map(|event| match event {
        PublisherEvent::FanOutReset { skipped, .. } => *skipped,
        PublisherEvent::SourceLost { .. } => None,
    });
    assert_eq!(
        reset.map(SequenceRange::len),
        Some(core.counters.skipped_datagrams.get()),
        "one event tells of all resets"
    );
}

#[test]
fn event_takes_sequence_and_restarts_heartbeats() {
    let mut core = core(1, 1);
    let mut message = RecordBatch::default();
    message.put(&MboMsg::default());
    assert!(!core.is_open() && !core.is_ended());
    core.publish(&message, SOURCE, SourcePosition(1), now(500))
        .unwrap();
    assert!(core.is_open());
    assert_eq!(
        core.poll_timeout(),
        Some(Nanos::from_us(20)),
        "nothing is sealed yet"
    );
    let opened = StreamEvent::EpochOpened {
        reason: crate::wire::EpochReason::Fresh,
        previous: Epoch(1),
        previous_last: Sequence(9),
    };
    assert_eq!(core.event(&opened, now(600)), Ok(Sequence(2)));
    assert_eq!(core.poll_timeout(), Some(Nanos::from_us(620)));
    assert_eq!((core.sealed(), core.is_open()), (Sequence(2), false));
    let reported = Datagram::parse(core.slot(Sequence(2)).unwrap()).unwrap();
    assert_eq!(StreamEvent::parse(reported.payload()), Some(opened));
    core.end(now(700)).unwrap();
    assert!(core.is_ended());
    assert_eq!(core.poll_timeout(), Some(Nanos::from_us(720)));
    core.flush(now(800), true);
    assert_eq!(
        core.poll_timeout(),
        Some(Nanos::from_us(720)),
        "nothing was sealed"
    );
}

#[test]
fn fan_out_margin_is_bounded_eighth_of_ring() {
    for (configured, margin) in [(0, 8), (1, 2), (20, 20), (64, 62), (u64::MAX, 62)] {
        let ring = core(1, 1).ring().geometry();
        let identity = *core(1, 1).ring().identity();
        let memory = Arc::new(HeapMemory::new(ring));
        let config = PublisherConfig {
            fan_out_margin_slots: configured,
            ..PublisherConfig::default()
        };
        let ring = RingWriter::create(memory, ring, identity).unwrap();
        let mut core = PublisherCore::new(config, ring, Arc::default(), Nanos::ZERO);
        let mut published = 0;
        while core.counters.fan_out_resets.get() == 0 {
            publish(&mut core, published);
            published += 1;
        }
        // The one that found the ring too full came after as many as may wait.
        assert_eq!(published - 1, 64 - margin, "{configured}");
        assert_eq!(core.posted(F0).0, published - 1);
        assert_eq!(core.ring().reader().sent(F0).0, published - 1);
    }
}

#[test]
fn unpolled_fan_out_resets_merge_into_one_event() {
    let mut core = core(1, 2);
    for n in 0..180 {
        publish(&mut core, n);
        core.handle_posted(F0, core.sealed());
    }
    let events: Vec<_> = std::iter::from_fn(|| core.poll()).collect();
    let reset = |fan_out, skipped| PublisherEvent::FanOutReset { fan_out, skipped };
    let skipped = SequenceRange::new(Sequence(1), Sequence(168));
    assert_eq!(events, [reset(F0, None), reset(F1, skipped)]);
    assert_eq!(core.counters.skipped_datagrams.get(), 168);
    assert_eq!(core.counters.fan_out_resets.get(), 6);
    // A reset that skipped nothing, then one that did.
    let n = core.sealed().0;
    core.handle_completed(F0, Sequence(n));
    core.handle_posted(F1, Sequence(n));
    for n in 0..120 {
        publish(&mut core, n);
        send(&mut core, F0);
    }
    let events: Vec<_> = std::iter::from_fn(|| core.poll()).collect();
    assert!(matches!(
        events[..],
        [PublisherEvent::FanOutReset {
            fan_out: F1,
            skipped: Some(_)
        }]
    ));
}

#[test]
fn fan_out_completes_only_posted_in_order() {
    let mut core = core(1, 1);
    for n in 0..10 {
        publish(&mut core, n);
    }
    core.handle_posted(F0, Sequence(6));
    core.handle_completed(F0, Sequence(99));
    core.handle_completed(F0, Sequence(2));
    core.handle_posted(F0, Sequence(3));
    assert_eq!(
        (core.posted(F0), core.posted(F1)),
        (Sequence(6), Sequence::NONE)
    );
    assert_eq!(core.counters.sent_datagrams.get(), 6);
    for n in 0..52 {
        publish(&mut core, n);
    }
    assert_eq!(
        core.counters.fan_out_resets.get(),
        0,
        "62 sealed, 6 completed"
    );
    publish(&mut core, 99);
    assert_eq!(core.counters.fan_out_resets.get(), 1);
}

#[test]
fn publisher_timeout_before_heartbeat_due_emits_none() {
    let mut core = core(1, 1);
    core.handle_timeout(now(20));
    assert_eq!(send(&mut core, F0).1[0].1.next_interval_us, 20);
    assert_eq!(core.counters.heartbeats.get(), 1);
    core.handle_timeout(now(39));
    assert_eq!(core.poll_transmit(F0), None, "too early");
    assert_eq!(core.poll_timeout(), Some(Nanos::from_us(40)));
}

#[test]
fn oversized_message_emits_source_lost_event() {
    let mut core = core(1, 1);
    let mut large = RecordBatch::default();
    (0..2).for_each(|_| large.put(&InstrumentDefMsg::default()));
    let position = SourcePosition::new(0, 7);
    assert!(core.publish(&large, SOURCE, position, now(1)).is_err());
    let lost = PublisherEvent::SourceLost {
        source: SOURCE,
        position,
    };
    assert_eq!((core.poll(), core.poll()), (Some(lost), None));
    assert_eq!(core.sealed(), Sequence(1), "the stream tells it too");
}

#[test]
fn direct_record_leaves_same_state_as_message() {
    let mut resets = 0;
    for seed in 0..20 {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let (mut fast, mut long) = (core(1, 2), core(1, 2));
        for us in 1..2_000 {
            let mut one_in = |n: u32| random.next_u32().is_multiple_of(n);
            let source = SourceId(u16::from(one_in(9)));
            let position = SourcePosition::new(0, us);
            let record = MboMsg {
                order_id: us,
                ..MboMsg::default()
            };
            let mut message = RecordBatch::default();
            message.put(&record);
            if one_in(900) {
                fast.end(now(us)).ok();
                long.end(now(us)).ok();
            }
            let is_taken = fast.add_record(&record, source, position)
                || fast.begin_record(&record, source, position, now(us));
            let published = long.publish(&message, source, position, now(us));
            assert_eq!(is_taken, published.is_ok(), "seed {seed}, {us}");
            if !is_taken {
                assert_eq!(fast.publish(&message, source, position, now(us)), published);
            }
            let (flushed, sent) = (one_in(3), one_in(40));
            for core in [&mut fast, &mut long] {
                if flushed {
                    core.flush(now(us), true);
                }
                if sent {
                    send(core, F0);
                }
            }
            let last = fast.sealed();
            assert_eq!(fast.slot(last), long.slot(last), "seed {seed}, {us}");
            assert_eq!(format!("{fast:?}"), format!("{long:?}"));
            assert_eq!(fast.poll(), long.poll());
        }
        let counted = |core: &PublisherCore| {
            let mut all = Vec::new();
            core.counters.each(|_, _, value| all.push(value));
            all
        };
        assert_eq!(counted(&fast), counted(&long), "seed {seed}");
        let checkpoint = |core: &PublisherCore| core.ring().reader().checkpoint(SourceId(0));
        assert_eq!(checkpoint(&fast), checkpoint(&long));
        resets += fast.counters.fan_out_resets.get();
    }
    assert!(resets > 0, "F1 never sends");
}

#[test]
fn waiting_losses_are_bounded_by_event_room() {
    let mut core = core(1, 0);
    let mut large = RecordBatch::default();
    (0..2).for_each(|_| large.put(&InstrumentDefMsg::default()));
    for n in 0..=EVENTS_MAX as u64 {
        let position = SourcePosition::new(0, n);
        assert!(core.publish(&large, SOURCE, position, now(n)).is_err());
    }
    let events = std::iter::from_fn(|| core.poll());
    assert_eq!(events.count(), EVENTS_MAX);
}

#[test]
fn venue_session_name_is_stored_in_checkpoint() {
    let mut core = core(1, 1);
    core.set_session(SOURCE, *b"0000000001\0\0\0\0\0\0");
    publish(&mut core, 1);
    let checkpoint = core.ring().reader().checkpoint(SOURCE).unwrap();
    assert_eq!(&checkpoint.session[..10], b"0000000001");
}
