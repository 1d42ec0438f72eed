//! IEX-TP, TOPS 1.6 and DEEP 1.0: expected values are derived by hand from the specified layouts.

mod records;

use std::path::Path;

use crate::common::{Counted, Recorded, data_dir};
use proptest::{collection::vec, prelude::*};
use tickcast_feeds::{
    arbiter::{Blocks, Holding, Lines},
    capture::Capture,
    iex::{
        IexDecoder,
        transport::{IexFeed, Segment},
    },
    instruments::{Instruments, Symbol},
    source::{Decoder, Incident, Packet, ResumePoint},
    venues::Format,
};
use tickcast_reliability::record::{
    Action, FlagSet, ImbalanceMsg, InstrumentDefMsg, MboMsg, Mbp1Msg, RType, Side, StatMsg,
    StatType, StatusAction, StatusMsg, StatusReason, SymbolMappingMsg, TradeMsg, TradingEvent,
    UNDEF_PRICE, flags,
};
use tickcast_reliability::types::{Nanos, SourcePosition};

const SESSION: u32 = 0x4200_0001;
const SECOND: u64 = 1_000_000_000;
const NOON: u64 = 1_500_000_000 * SECOND;

/// An encoder of segments that shares only the specification with the decoder.
#[derive(Clone)]
struct Seg {
    protocol: u16,
    session: u32,
    first: i64,
    sent_at: u64,
    messages: Vec<Vec<u8>>,
}

impl Seg {
    fn deep(first: i64, messages: usize) -> Self {
        Self {
            protocol: 0x8004,
            session: SESSION,
            first,
            sent_at: NOON,
            messages: vec![level(b'8', 1, b"ZVZZT   ", 100, 10_0000); messages],
        }
    }

    fn of(messages: Vec<Vec<u8>>) -> Self {
        Self {
            messages,
            ..Self::deep(1, 0)
        }
    }

    fn tops(messages: Vec<Vec<u8>>) -> Self {
        Self {
            protocol: 0x8003,
            ..Self::of(messages)
        }
    }

    fn at(self, sent_at: u64) -> Self {
        Self { sent_at, ..self }
    }

    fn session(self, session: u32) -> Self {
        Self { session, ..self }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut payload = Vec::new();
        for message in &self.messages {
            payload.extend((message.len() as u16).to_le_bytes());
            payload.extend(message);
        }
        let mut bytes = vec![1, 0];
        bytes.extend(self.protocol.to_le_bytes());
        bytes.extend(1_u32.to_le_bytes());
        bytes.extend(self.session.to_le_bytes());
        bytes.extend((payload.len() as u16).to_le_bytes());
        bytes.extend((self.messages.len() as u16).to_le_bytes());
        bytes.extend(0_i64.to_le_bytes());
        bytes.extend(self.first.to_le_bytes());
        bytes.extend(self.sent_at.to_le_bytes());
        assert_eq!(bytes.len(), 40);
        bytes.extend(payload);
        bytes
    }
}

fn message(kind: u8, second: u8, symbol: &[u8; 8]) -> Vec<u8> {
    let mut bytes = vec![kind, second];
    bytes.extend((NOON - 5).to_le_bytes());
    bytes.extend(symbol);
    bytes
}

fn level(kind: u8, event: u8, symbol: &[u8; 8], size: u32, price: i64) -> Vec<u8> {
    let mut bytes = message(kind, event, symbol);
    bytes.extend(size.to_le_bytes());
    bytes.extend(price.to_le_bytes());
    bytes
}

fn trade(kind: u8, symbol: &[u8; 8], size: u32, price: i64) -> Vec<u8> {
    let mut bytes = level(kind, 0, symbol, size, price);
    bytes.extend(7_i64.to_le_bytes());
    bytes
}

fn run(packets: &[Vec<u8>]) -> (IexDecoder, Recorded) {
    let mut decoder = IexDecoder::default();
    let mut recorded = Recorded::default();
    for payload in packets {
        let packet = Packet {
            received_at: Nanos(NOON + 1_500),
            payload,
        };
        decoder.packet(packet, &mut recorded);
    }
    (decoder, recorded)
}

fn run_segments(segments: &[Seg]) -> Recorded {
    run(&segments.iter().map(Seg::bytes).collect::<Vec<_>>()).1
}

fn gap(ordinal: u16, from: u64, missing: u64) -> Incident {
    let from = SourcePosition::new(ordinal, from);
    Incident::Gap { from, missing }
}

fn reset(ordinal: u16, next: u64) -> Incident {
    let next = SourcePosition::new(ordinal, next);
    Incident::SequenceReset { next }
}

fn is_malformed(incident: &Incident) -> bool {
    matches!(incident, Incident::Malformed { .. })
}

/// Returns the position of a message that could not be read.
const fn unreadable(incident: &Incident) -> Option<SourcePosition> {
    match incident {
        Incident::UnreadableMessage { position, .. } => Some(*position),
        _ => None,
    }
}

// Sequencing.

#[test]
fn packets_of_the_source_are_counted() {
    for segments in 0..4 {
        let packets: Vec<_> = (0..segments).map(|n| Seg::deep(1 + n, 1).bytes()).collect();
        assert_eq!(run(&packets).0.packets(), segments as u64);
    }
}

#[test]
fn unreadable_bytes_are_reported_at_the_next_position() {
    let (mut decoder, mut recorded) = run(&[Seg::deep(500, 2).bytes()]);
    decoder.unreadable(&mut recorded);
    let from = SourcePosition::new(0, 502);
    assert_eq!(recorded.incidents, [Incident::Unreadable { from }]);
}

#[test]
fn stream_joined_midway_has_no_initial_gap() {
    let recorded = run_segments(&[Seg::deep(500, 2), Seg::deep(502, 1)]);
    assert_eq!(recorded.positions(), [(0, 500), (0, 501), (0, 502)]);
    assert_eq!(recorded.incidents, []);
}

#[test]
fn iex_gap_is_reported_once_with_exact_size() {
    let recorded = run_segments(&[Seg::deep(1, 2), Seg::deep(10, 1), Seg::deep(11, 1)]);
    assert_eq!(recorded.positions(), [(0, 1), (0, 2), (0, 10), (0, 11)]);
    assert_eq!(recorded.incidents, [gap(0, 3, 7)]);
}

#[test]
fn heartbeat_next_sequence_finds_tail_gap() {
    let quiet = run_segments(&[Seg::deep(1, 2), Seg::deep(3, 0), Seg::deep(3, 1)]);
    assert_eq!(quiet.incidents, [], "a quiet second is no gap");
    let lossy = run_segments(&[Seg::deep(1, 2), Seg::deep(5, 0), Seg::deep(5, 1)]);
    assert_eq!(lossy.incidents, [gap(0, 3, 2)]);
    assert_eq!(lossy.positions(), [(0, 1), (0, 2), (0, 5)]);
}

#[test]
fn line_with_other_segmentation_adds_no_duplicates() {
    let recorded = run_segments(&[
        Seg::deep(1, 3),
        Seg::deep(1, 2),
        Seg::deep(3, 2),
        Seg::deep(4, 3),
        Seg::deep(5, 0),
    ]);
    let expected: Vec<_> = (1..=6).map(|s| (0, s)).collect();
    assert_eq!(recorded.positions(), expected);
    let duplicates = [2, 1, 1].map(|messages| Incident::Duplicate { messages });
    assert_eq!(recorded.incidents, duplicates);
}

#[test]
fn heartbeat_at_sequence_one_resets_iex_sequence() {
    let recorded = run_segments(&[
        Seg::deep(1, 3),
        Seg::deep(1, 0).at(NOON + 46 * SECOND),
        Seg::deep(1, 2).at(NOON + 47 * SECOND),
        Seg::deep(3, 0).at(NOON + 48 * SECOND),
    ]);
    assert_eq!(
        recorded.positions(),
        [(0, 1), (0, 2), (0, 3), (1, 1), (1, 2)]
    );
    assert_eq!(recorded.incidents, [reset(1, 1)]);
}

#[test]
fn reset_with_standing_or_stepped_clock_is_found() {
    for sent_at in [NOON, NOON - 3_600 * SECOND] {
        let recorded = run_segments(&[Seg::deep(1, 3), Seg::deep(1, 0).at(sent_at)]);
        assert_eq!(recorded.incidents, [reset(1, 1)], "sent at {sent_at}");
    }
}

#[test]
fn late_first_heartbeat_of_other_line_is_no_reset() {
    let recorded = run_segments(&[
        Seg::deep(1, 3),
        Seg::deep(1, 0).at(NOON - 1_000),
        Seg::deep(4, 1),
    ]);
    assert_eq!(recorded.positions().last(), Some(&(0, 4)));
    assert_eq!(recorded.incidents, []);
}

#[test]
fn reset_without_heartbeat_is_found_and_counted() {
    let recorded = run_segments(&[Seg::deep(1, 9), Seg::deep(4, 2).at(NOON + 2 * SECOND)]);
    assert_eq!(recorded.incidents, [reset(1, 1), gap(1, 1, 3)]);
    assert_eq!(recorded.positions()[9..], [(1, 4), (1, 5)]);
}

#[test]
fn restarted_iex_count_without_pause_is_found_within_a_second() {
    let ms = |ms: u64| NOON + ms * SECOND / 1_000;
    let restarted = (1..=3).map(|n| Seg::deep(n, 1).at(ms(400 * n as u64)));
    let segments: Vec<_> = [Seg::deep(1, 9)].into_iter().chain(restarted).collect();
    let recorded = run_segments(&segments);
    let old = Incident::Duplicate { messages: 1 };
    assert_eq!(recorded.incidents, [old, old, reset(1, 1), gap(1, 1, 2)]);
    assert_eq!(recorded.positions()[9..], [(1, 3)]);
}

#[test]
fn old_packet_within_a_second_is_duplicate() {
    let recorded = run_segments(&[
        Seg::deep(1, 3),
        Seg::deep(2, 1).at(NOON + SECOND),
        Seg::deep(2, 1).at(NOON - 9 * SECOND),
    ]);
    let duplicate = Incident::Duplicate { messages: 1 };
    assert_eq!(recorded.incidents, [duplicate, duplicate]);
}

#[test]
fn new_session_restarts_and_packet_left_behind_is_late() {
    let recorded = run_segments(&[
        Seg::deep(1, 2),
        Seg::deep(3, 1).session(9).at(NOON + SECOND / 2),
        Seg::deep(3, 1).at(NOON),
        Seg::deep(4, 1).session(9).at(NOON + SECOND),
    ]);
    let change = Incident::SessionChange {
        next: SourcePosition::new(1, 1),
    };
    let late = Incident::Late { messages: 1 };
    assert_eq!(recorded.incidents, [change, gap(1, 1, 2), late]);
    assert_eq!(recorded.positions(), [(0, 1), (0, 2), (1, 3), (1, 4)]);
}

#[test]
fn sequences_above_32_bits_order_and_records_keep_low() {
    let recorded = run_segments(&[Seg::deep(0xffff_ffff, 2), Seg::deep(0x1_0000_0002, 1)]);
    assert_eq!(recorded.incidents, [gap(0, 0x1_0000_0001, 1)]);
    let sequences: Vec<_> = recorded.all::<MboMsg>();
    let sequences: Vec<_> = sequences.iter().map(|m| m.sequence).collect();
    assert_eq!(sequences, [u32::MAX, 0, 2]);
}

#[test]
fn impossible_first_sequence_keeps_stream() {
    let recorded = run_segments(&[
        Seg::deep(1, 1),
        Seg::deep(i64::MAX, 1),
        Seg::deep(-1, 1),
        Seg::deep(0, 1),
        Seg::deep(2, 1),
    ]);
    assert_eq!(recorded.positions(), [(0, 1), (0, 2)]);
    assert_eq!(recorded.incidents.len(), 3);
    assert!(recorded.incidents.iter().all(is_malformed));
}

#[test]
fn segment_reaching_last_position_is_malformed() {
    let last = (1 << 48) - 1;
    let recorded = run_segments(&[Seg::deep(last - 2, 1), Seg::deep(last - 1, 2)]);
    assert_eq!(recorded.positions(), [(0, last as u64 - 2)]);
    assert!(recorded.incidents.iter().all(is_malformed));
    assert_eq!(recorded.incidents.len(), 1);
}

#[test]
fn first_sequence_of_segment_is_bounded() {
    let most = SourcePosition::SEQUENCE_MAX as i64;
    for (first, messages, is_sound) in [
        (0, 1, false),
        (1, 1, true),
        (most - 2, 2, true),
        (most - 1, 2, false),
        (most, 0, true),
        (most + 1, 0, false),
        (-1, 1, false),
    ] {
        let bytes = Seg::deep(first, messages).bytes();
        let segment = Segment::read(&bytes);
        assert_eq!(segment.is_ok(), is_sound, "{messages} from {first}");
    }
}

#[test]
fn segment_of_no_messages_with_payload_is_refused() {
    let mut bytes = Seg::deep(1, 1).bytes();
    bytes[14..16].fill(0);
    assert!(Segment::read(&bytes).is_err());
    assert!(Segment::read(&Seg::deep(1, 0).bytes()).is_ok());
}

#[test]
fn segment_header_fields_are_read_at_their_offsets() {
    for (protocol, feed) in [
        (0x8002, IexFeed::Tops),
        (0x8003, IexFeed::Tops),
        (0x8004, IexFeed::Deep),
    ] {
        let mut bytes = Seg {
            protocol,
            session: 0x1122_3344,
            first: 0x5566_7788,
            sent_at: 0x0102_0304_0506_0708,
            ..Seg::deep(1, 2)
        }
        .bytes();
        bytes[4..8].copy_from_slice(&0xa1b2_c3d4_u32.to_le_bytes());
        let segment = Segment::read(&bytes).unwrap();
        assert_eq!((segment.feed, segment.channel), (feed, 0xa1b2_c3d4));
        assert_eq!((segment.session, segment.count), (0x1122_3344, 2));
        assert_eq!(segment.first, 0x5566_7788);
        assert_eq!(segment.sent_at, 0x0102_0304_0506_0708);
        assert_eq!(segment.messages().count(), 2);
    }
}

#[test]
fn refused_segment_of_other_channel_changes_nothing() {
    let mut other = Seg::deep(1, 1).bytes();
    other[4..8].copy_from_slice(&2_u32.to_le_bytes());
    other.truncate(other.len() - 1);
    let (_, recorded) = run(&[other, Seg::deep(1, 1).bytes(), Seg::deep(2, 1).bytes()]);
    assert_eq!(recorded.positions(), [(0, 1), (0, 2)]);
    assert!(is_malformed(&recorded.incidents[0]));
    assert_eq!(recorded.incidents.len(), 1);
}

// Lines.

const MS: u64 = 1_000_000;

/// A segment of a line, with the time in ms after noon at which it arrives.
type Arrival = (usize, u64, Vec<u8>);

/// Decodes two lines that wait at most 5 ms for each other, with a poll in each ms.
fn run_lines(arrivals: &[Arrival]) -> (IexDecoder, Recorded) {
    let holding = Holding::live(2_000, 5_000);
    let lines = Lines { count: 2, holding };
    let mut decoder = IexDecoder::new(Instruments::default(), lines);
    let mut recorded = Recorded::default();
    let mut now = 0;
    for (line, at, payload) in arrivals {
        for ms in now..*at {
            decoder.poll(Nanos(NOON + ms * MS), &mut recorded);
        }
        now = *at;
        let received_at = Nanos(NOON + now * MS);
        let packet = Packet {
            received_at,
            payload,
        };
        decoder.line_packet(*line, received_at, packet, &mut recorded);
    }
    decoder.finish(&mut recorded);
    (decoder, recorded)
}

/// Sends a segment at a time in ms.
fn sent(segment: Seg, at: u64) -> Vec<u8> {
    segment.at(NOON + at * MS).bytes()
}

#[test]
fn copy_of_the_first_heartbeat_restarts_no_count() {
    let begin = [
        (0, 0, sent(Seg::deep(1, 9), 0)),
        (0, 5_000, sent(Seg::deep(10, 1), 5_000)),
        (0, 5_001, sent(Seg::deep(1, 0), 0)),
    ];
    for then in [
        (0, 6_000, sent(Seg::deep(11, 0), 6_000)),
        (0, 6_000, sent(Seg::deep(11, 1), 6_000)),
        (1, 7_499, sent(Seg::deep(11, 1), 7_499)),
    ] {
        let after = (0, 20_000, sent(Seg::deep(11, 2), 20_000));
        let recorded = run_lines(&[&begin[..], &[then, after]].concat()).1;
        assert!(!recorded.incidents.contains(&reset(1, 1)));
        let expected: Vec<_> = (1..=12).map(|sequence| (0, sequence)).collect();
        assert_eq!(recorded.positions(), expected);
    }
    // Further copies are no further signs.
    let copies = [2, 3, 4].map(|n| (0, 5_000 + n, begin[2].2.clone()));
    let goes_on = (0, 6_000, sent(Seg::deep(11, 2), 6_000));
    let recorded = run_lines(&[&begin[..], &copies, &[goes_on]].concat()).1;
    assert!(!recorded.incidents.contains(&reset(1, 1)));
    assert_eq!(recorded.positions()[10..], [(0, 11), (0, 12)]);
    // Nothing goes on at the old position: the venue restarted, and its clock was set.
    let restarted = (0, 7_502, sent(Seg::deep(1, 2), 2_500));
    let recorded = run_lines(&[&begin[..], &[restarted]].concat()).1;
    assert!(recorded.incidents.contains(&reset(1, 1)));
    assert_eq!(recorded.positions()[10..], [(1, 1), (1, 2)]);
}

#[test]
fn other_messages_behind_an_old_heartbeat_restart_the_count() {
    let other = Seg {
        messages: vec![level(b'8', 1, b"ZVZZT   ", 200, 10_0000); 2],
        ..Seg::deep(1, 0)
    };
    let recorded = run_lines(&[
        (0, 0, sent(Seg::deep(1, 9), 0)),
        (0, 5_000, sent(Seg::deep(10, 1), 5_000)),
        (0, 5_001, sent(Seg::deep(1, 0), 0)),
        (0, 5_002, sent(other, 1)),
        (0, 5_003, sent(Seg::deep(3, 1), 2)),
    ])
    .1;
    assert!(recorded.incidents.contains(&reset(1, 1)));
    assert_eq!(recorded.positions()[10..], [(1, 1), (1, 2), (1, 3)]);
}

/// Nothing remembers messages before the first packet, so only their time tells.
#[test]
fn unknown_messages_restart_the_count_if_sent_later() {
    let recorded = run_lines(&[
        (0, 0, sent(Seg::deep(96, 2), 0)),
        (0, 5_000, sent(Seg::deep(5, 1), 5_000)),
        (0, 5_001, sent(Seg::deep(98, 1), 5_001)),
    ])
    .1;
    assert!(recorded.incidents.contains(&reset(1, 1)), "at once");
    let recorded = run_lines(&[
        (0, 0, sent(Seg::deep(96, 2), 0)),
        (0, 5_000, sent(Seg::deep(98, 1), 5_000)),
        (0, 5_001, sent(Seg::deep(1, 0), 0)),
        (0, 5_002, sent(Seg::deep(5, 1), 1)),
        (0, 5_003, sent(Seg::deep(99, 1), 5_003)),
    ])
    .1;
    assert!(
        !recorded.incidents.contains(&reset(1, 1)),
        "it may be a copy"
    );
    assert_eq!(recorded.positions(), [96, 97, 98, 99].map(|n| (0, n)));
}

#[test]
fn message_behind_the_first_heartbeat_of_a_count_is_kept() {
    let recorded = run_lines(&[
        (0, 0, sent(Seg::deep(96, 2), 0)),
        (0, 5_000, sent(Seg::deep(98, 1), 5_000)),
        (0, 5_001, sent(Seg::deep(1, 0), 0)),
        (0, 5_002, sent(Seg::deep(1, 1), 1)),
        (0, 5_003, sent(Seg::deep(2, 1), 2)),
    ])
    .1;
    assert!(recorded.incidents.contains(&reset(1, 1)));
    assert_eq!(recorded.positions()[3..], [(1, 1), (1, 2)]);
}

#[test]
fn messages_left_behind_by_session_change_are_late() {
    let run_with = |at: u64| {
        run_lines(&[
            (0, 0, sent(Seg::deep(96, 2), 0)),
            (1, 9, sent(Seg::deep(96, 1), 0)),
            (0, 10, sent(Seg::deep(1, 1).session(9), 10)),
            (0, 11, sent(Seg::deep(2, 1).session(9), 11)),
            (1, at, sent(Seg::deep(97, 4), 2)),
            (1, at + 1, sent(Seg::deep(101, 0), 3)),
        ])
    };
    let (decoder, recorded) = run_with(16);
    let next = SourcePosition::new(1, 1);
    let change = Incident::SessionChange { next };
    let (late, duplicate) = (
        Incident::Late { messages: 3 },
        Incident::Duplicate { messages: 1 },
    );
    assert_eq!(recorded.incidents, [duplicate, change, late, duplicate]);
    assert_eq!(recorded.positions(), [(0, 96), (0, 97), (1, 1), (1, 2)]);
    let line = decoder.line(1);
    assert_eq!((line.late, line.duplicates), (3, 2));
    // Within the line skew they are in time.
    let (_, recorded) = run_with(12);
    assert_eq!(recorded.incidents, [duplicate, duplicate, change]);
    let old = (96..=100).map(|sequence| (0, sequence));
    let all: Vec<_> = old.chain([(1, 1), (1, 2)]).collect();
    assert_eq!(recorded.positions(), all);
}

#[test]
fn restart_leaves_packets_of_slower_line_behind() {
    let (decoder, recorded) = run_lines(&[
        (0, 0, sent(Seg::deep(1, 3), 0)),
        (1, 4, sent(Seg::deep(1, 3), 0)),
        (0, 10, sent(Seg::deep(1, 0), 10)),
        // The venue sent these before it restarted; line 0 lost messages 4 and 5.
        (1, 11, sent(Seg::deep(4, 2), 7)),
        (1, 12, sent(Seg::deep(6, 0), 8)),
        (1, 14, sent(Seg::deep(1, 0), 10)),
        (0, 30, sent(Seg::deep(1, 2), 30)),
        (1, 34, sent(Seg::deep(1, 2), 30)),
    ]);
    assert_eq!(
        recorded.positions(),
        [(0, 1), (0, 2), (0, 3), (1, 1), (1, 2)]
    );
    let duplicate = |messages| Incident::Duplicate { messages };
    let late = Incident::Late { messages: 2 };
    assert_eq!(
        recorded.incidents,
        [duplicate(3), reset(1, 1), late, duplicate(2)]
    );
    assert_eq!(decoder.line(1).late, 2);
}

#[test]
fn iex_lines_complete_each_other_in_all_runs() {
    let mut arrivals: Vec<Arrival> = Vec::new();
    let mut left_out = [0; 2];
    // A run of the first session, its restart, and another session.
    for (run, session) in [(0, SESSION), (1, SESSION), (2, 9)] {
        let begin = 1_000 * run;
        for n in 0..=50 {
            let at = begin + 10 * n;
            // A heartbeat begins each run, and another ends it.
            let (first, messages) = match n {
                0 => (1, 0),
                50 => (99, 0),
                n => (2 * n as i64 - 1, 2),
            };
            let bytes = sent(Seg::deep(first, messages).session(session), at);
            for (line, left_out) in left_out.iter_mut().enumerate() {
                let mut bytes = bytes.clone();
                let nth = n + 2 * line as u64;
                if messages > 0 && nth.is_multiple_of(5) {
                    *left_out += 2;
                    continue;
                }
                if messages > 0 && nth % 5 == 1 && n > 10 {
                    *left_out += 1;
                    bytes.truncate(bytes.len() - 1);
                }
                arrivals.push((line, at + 3 * line as u64, bytes));
            }
        }
    }
    arrivals.sort_by_key(|(_, at, _)| *at);
    let (decoder, recorded) = run_lines(&arrivals);
    let all = (0..3).flat_map(|run| (1..=98).map(move |sequence| (run, sequence)));
    assert_eq!(recorded.positions(), all.collect::<Vec<_>>());
    let next = SourcePosition::new(2, 1);
    let known = |it: &&Incident| !matches!(it, Incident::Duplicate { .. }) && !is_malformed(it);
    let others: Vec<_> = recorded.incidents.iter().filter(known).copied().collect();
    assert_eq!(others, [reset(1, 1), Incident::SessionChange { next }]);
    for (line, left_out) in left_out.into_iter().enumerate() {
        let stats = decoder.line(line);
        assert_eq!(stats.missing, left_out, "line {line}");
        assert_eq!(stats.first + stats.duplicates, 3 * 98 - left_out);
        assert_eq!((stats.late, stats.foreign), (0, 0));
    }
}

// Messages of unexpected length.

#[test]
fn overlong_message_is_read_and_short_one_is_dropped() {
    let good = level(b'8', 1, b"ZVZZT   ", 100, 10_0000);
    let longer = [good.clone(), vec![0xee; 9]].concat();
    let shorter = good[..29].to_vec();
    let recorded = run_segments(&[Seg::of(vec![longer, shorter, vec![], good])]);
    assert_eq!(recorded.positions(), [(0, 1), (0, 4)]);
    let lost: Vec<_> = recorded.incidents.iter().map(unreadable).collect();
    let at = |sequence| Some(SourcePosition::new(0, sequence));
    assert_eq!(lost, [at(2), at(3)]);
    let levels = recorded.all::<MboMsg>();
    assert_eq!((levels[0].price, levels[0].size), (10 * 1_000_000_000, 100));
    assert_eq!((levels[1].price, levels[1].size), (10 * 1_000_000_000, 100));
}

#[test]
fn message_one_byte_short_is_malformed_for_all_types() {
    let lengths = [
        (b'S', 10),
        (b'D', 31),
        (b'H', 22),
        (b'I', 18),
        (b'O', 18),
        (b'P', 19),
        (b'E', 18),
        (b'Q', 42),
        (b'T', 38),
        (b'B', 38),
        (b'X', 26),
        (b'A', 80),
        (b'8', 30),
        (b'5', 30),
    ];
    for (kind, len) in lengths {
        let mut whole = vec![b' '; len];
        whole[0] = kind;
        let short = whole[..len - 1].to_vec();
        let recorded = run_segments(&[Seg::of(vec![short, whole])]);
        assert_eq!(recorded.positions(), [(0, 2)], "type {}", kind as char);
        let lost = unreadable(&recorded.incidents[0]);
        assert_eq!(lost, Some(SourcePosition::new(0, 1)));
    }
}

#[test]
fn unknown_iex_message_is_counted_and_skipped() {
    let unknown = vec![b'z', 1, 2, 3];
    let good = level(b'5', 1, b"ZVZZT   ", 1, 1);
    let (decoder, recorded) = run(&[Seg::of(vec![unknown, good]).bytes()]);
    assert_eq!(
        recorded.incidents,
        [Incident::UnknownMessage { kind: b'z' }]
    );
    assert_eq!(recorded.positions(), [(0, 2)]);
    assert_eq!(
        (decoder.counts().of(b'z'), decoder.counts().of(b'5')),
        (1, 1)
    );
}

#[test]
fn cut_iex_packet_emits_whole_messages_then_gap() {
    let whole = Seg::deep(1, 3).bytes();
    let cut = whole[..whole.len() - 1].to_vec();
    let (_, recorded) = run(&[cut, Seg::deep(4, 1).bytes()]);
    assert_eq!(recorded.positions(), [(0, 1), (0, 2), (0, 4)]);
    assert!(is_malformed(&recorded.incidents[0]));
    assert_eq!(recorded.incidents[1..], [gap(0, 3, 1)]);
}

#[test]
fn messages_lost_in_cut_packet_are_filled_by_other_line() {
    let whole = Seg::deep(1, 3).bytes();
    let (_, recorded) = run(&[whole[..whole.len() - 1].to_vec(), whole]);
    assert_eq!(recorded.positions(), [(0, 1), (0, 2), (0, 3)]);
    assert_eq!(
        recorded.incidents[1..],
        [Incident::Duplicate { messages: 2 }]
    );
}

#[test]
fn false_count_or_length_is_malformed() {
    let lie = |at: usize, value: u16| {
        let mut bytes = Seg::deep(1, 2).bytes();
        bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
        run(&[bytes]).1
    };
    let (len, count) = (12, 14);
    for (at, value, delivered) in [
        (count, 3, 2),
        (count, u16::MAX, 2),
        (count, 1, 1),
        (count, 0, 0),
        (len, 63, 1),
        (len, 65, 2),
        (len, 1, 0),
        (len, u16::MAX, 2),
        (40, 29, 0),
        (40, u16::MAX, 0),
    ] {
        let recorded = lie(at, value);
        let case = format!("{value} at {at}");
        // A wrong length of the first message truncates it and shifts the rest.
        assert!(
            recorded.messages.len() <= 2 && recorded.messages.len() >= delivered,
            "{case}"
        );
        if at < 40 {
            assert_eq!(recorded.messages.len(), delivered, "{case}");
        }
        assert!(recorded.incidents.iter().any(is_malformed), "{case}");
    }
}

#[test]
fn iex_fault_tells_missing_messages_from_a_longer_payload() {
    let fault = |messages: &[&[u8]], count: u16, cut: usize| {
        let mut bytes = Seg::of(messages.iter().map(|it| it.to_vec()).collect()).bytes();
        bytes[14..16].copy_from_slice(&count.to_le_bytes());
        bytes.truncate(bytes.len() - cut);
        let mut messages = Segment::read(&bytes).unwrap().messages();
        messages.by_ref().for_each(drop);
        messages.fault()
    };
    let fewer = Some("the IEX-TP payload holds fewer messages than announced");
    let more = Some("the IEX-TP payload goes on after its last message");
    assert_eq!(fault(&[b"a", b""], 2, 0), None);
    assert_eq!(fault(&[b"a"], 2, 0), fewer);
    assert_eq!(fault(&[b"a", b"b"], 1, 0), more);
    assert_eq!(
        fault(&[b"a", b"", b"b"], 2, 0),
        more,
        "no length, but bytes"
    );
    let cut = Some("the packet ends before the IEX-TP payload does");
    assert_eq!(fault(&[b"a", b"b"], 2, 1), cut);
    assert_eq!(fault(&[b"a", b"b"], 1, 1), cut);
}

#[test]
fn bytes_after_the_payload_are_the_networks_padding() {
    let padded = [Seg::deep(1, 1).bytes(), vec![0; 13]].concat();
    let (_, recorded) = run(&[padded]);
    assert_eq!((recorded.messages.len(), recorded.incidents.len()), (1, 0));
}

#[test]
fn packet_of_foreign_protocol_is_foreign() {
    let mut version = Seg::deep(1, 1).bytes();
    version[0] = 2;
    let plus = Seg {
        protocol: 0x8005,
        ..Seg::deep(1, 1)
    };
    for packet in [vec![], vec![1; 39], version, plus.bytes()] {
        let (_, recorded) = run(&[packet]);
        assert!(matches!(recorded.incidents[..], [Incident::Foreign { .. }]));
        assert!(recorded.messages.is_empty());
    }
}

#[test]
fn tops_and_deep_in_one_source_do_not_disturb_each_other() {
    let recorded = run_segments(&[
        Seg::deep(10, 1),
        Seg::tops(vec![trade(b'T', b"A       ", 1, 1)]),
        Seg::deep(11, 1),
    ]);
    assert_eq!(recorded.positions(), [(0, 10), (0, 11)]);
    assert!(matches!(recorded.incidents[..], [Incident::Foreign { .. }]));
}

#[test]
fn full_instrument_table_drops_new_symbol_as_malformed() {
    let mut decoder = IexDecoder::new(Instruments::new(1, 1), Lines::default());
    let mut recorded = Recorded::default();
    let symbols = [b"A       ", b"B       ", b"A       "];
    let payload = Seg::of(symbols.map(|s| level(b'8', 1, s, 1, 1)).to_vec()).bytes();
    let packet = Packet {
        received_at: Nanos(NOON),
        payload: &payload,
    };
    decoder.packet(packet, &mut recorded);
    assert_eq!(recorded.positions(), [(0, 1), (0, 3)]);
    assert!(matches!(
        recorded.incidents[..],
        [Incident::Malformed { .. }]
    ));
}

// Resumption.

/// Returns a decoder that continues where another one was killed, after its last message.
fn resumed(killed: &IexDecoder, next: u64, next_id: u32) -> IexDecoder {
    let instruments = killed.instruments().iter();
    let mut decoder = IexDecoder::default();
    let session = killed.session().unwrap();
    decoder.resume(&ResumePoint {
        session: Some(session.id),
        next: SourcePosition::new(session.ordinal, next),
        instruments: instruments.map(|(symbol, id)| (id, symbol)).collect(),
        next_id,
        ..ResumePoint::default()
    });
    decoder
}

/// Decodes segments with a decoder that was resumed at this sequence of a stream of DEEP.
fn run_resumed(next: u64, segments: &[Seg]) -> Recorded {
    let (killed, _) = run(&[Seg::deep(1, 1).bytes()]);
    run_with(resumed(&killed, next, 2), segments)
}

/// Decodes segments with a decoder.
fn run_with(mut decoder: IexDecoder, segments: &[Seg]) -> Recorded {
    let mut recorded = Recorded::default();
    for (n, segment) in (0..).zip(segments) {
        let payload = &segment.bytes();
        let received_at = Nanos(NOON + n);
        decoder.packet(
            Packet {
                received_at,
                payload,
            },
            &mut recorded,
        );
    }
    recorded
}

#[test]
fn restarted_iex_count_after_resumption_is_another_run() {
    let old = Incident::Duplicate { messages: 1 };
    let unknown = gap(0, 10, u64::MAX);
    let recorded = run_resumed(10, &[Seg::deep(3, 1), Seg::deep(4, 1), Seg::deep(5, 1)]);
    assert_eq!(
        recorded.incidents,
        [old, unknown, reset(1, 1), gap(1, 1, 3)]
    );
    assert_eq!(recorded.positions(), [(1, 4), (1, 5)]);
}

#[test]
fn resumed_iex_decoder_tells_old_copies_from_a_new_count() {
    let (killed, _) = run(&[Seg::deep(1, 1).bytes()]);
    let session = killed.session().unwrap();
    let s = |seconds: u64| NOON + seconds * 1_000_000_000;
    let resumed = |sent_at| {
        let (count, holding) = (1, Format::IexTp.holding());
        let mut decoder = IexDecoder::new(Instruments::default(), Lines { count, holding });
        decoder.resume(&ResumePoint {
            session: Some(session.id),
            next: SourcePosition::new(0, 10),
            sent_at,
            ..ResumePoint::default()
        });
        assert_eq!(decoder.newest_sent_at(), sent_at);
        decoder
    };
    let copy = [Seg::deep(1, 0).at(s(0)), Seg::deep(10, 1).at(s(61))];
    let recorded = run_with(resumed(s(60)), &copy);
    assert_eq!(
        (recorded.incidents.len(), recorded.positions()),
        (0, vec![(0, 10)])
    );
    let anew = [Seg::deep(1, 1).at(s(62)), Seg::deep(2, 1).at(s(62))];
    let recorded = run_with(resumed(s(60)), &anew);
    assert_eq!(recorded.incidents, [gap(0, 10, u64::MAX), reset(1, 1)]);
    assert_eq!(recorded.positions(), [(1, 1), (1, 2)]);
}

#[test]
fn end_of_iex_session_is_known_to_its_successor() {
    let mut decoder = IexDecoder::default();
    let mut recorded = Recorded::default();
    let end = [b'S', b'C', 0, 0, 0, 0, 0, 0, 0, 0];
    for messages in [
        vec![level(b'8', 1, b"ZVZZT   ", 100, 10_0000)],
        vec![end.to_vec()],
    ] {
        assert_eq!(decoder.session().and_then(|it| it.end_at), None);
        let first = 1 + recorded.positions().len() as i64;
        let payload = &Seg {
            first,
            ..Seg::of(messages)
        }
        .bytes();
        let received_at = Nanos(NOON);
        decoder.packet(
            Packet {
                received_at,
                payload,
            },
            &mut recorded,
        );
    }
    let session = decoder.session().unwrap();
    assert_eq!(
        (session.end_at, recorded.incidents),
        (Some(3), vec![Incident::EndOfSession])
    );
    let mut next = IexDecoder::default();
    next.resume(&ResumePoint {
        session: Some(session.id),
        next: SourcePosition::new(0, 3),
        end_at: session.end_at,
        ..ResumePoint::default()
    });
    assert_eq!(next.session(), Some(session));
    let following = [1, 2].map(|first| Seg::deep(first, 1).session(SESSION + 1));
    let recorded = run_with(next, &following);
    let next = SourcePosition::new(1, 1);
    assert_eq!(
        recorded.incidents,
        [Incident::SessionChange { next }],
        "nothing is lost"
    );
}

#[test]
fn resumed_iex_decoder_reports_exactly_what_was_missed() {
    let ahead = run_resumed(10, &[Seg::deep(15, 2)]);
    assert_eq!(ahead.incidents, [gap(0, 10, 5)]);
    assert_eq!(ahead.positions(), [(0, 15), (0, 16)]);
    let next = run_resumed(10, &[Seg::deep(10, 1), Seg::deep(11, 1)]);
    assert_eq!(next.incidents, []);
    assert_eq!(next.positions(), [(0, 10), (0, 11)]);
    let heartbeat = run_resumed(10, &[Seg::deep(14, 0), Seg::deep(14, 1)]);
    assert_eq!(heartbeat.incidents, [gap(0, 10, 4)]);
    let far = run_resumed(10, &[Seg::deep(1_000_000, 1), Seg::deep(1_000_001, 1)]);
    assert_eq!(far.incidents, [gap(0, 10, 999_990)]);
    let last = SourcePosition::SEQUENCE_MAX - 2;
    let farthest = run_resumed(
        10,
        &[last - 1, last].map(|first| Seg::deep(first as i64, 1)),
    );
    assert_eq!(
        farthest.incidents,
        [gap(0, 10, last - 11)],
        "almost 2^48 messages"
    );
    assert_eq!(farthest.positions(), [(0, last - 1), (0, last)]);
    let partly = run_resumed(10, &[Seg::deep(8, 4)]);
    assert_eq!(partly.incidents, [Incident::Duplicate { messages: 2 }]);
    assert_eq!(partly.positions(), [(0, 10), (0, 11)]);
}

#[test]
fn slower_line_is_no_restarted_count_after_resumption() {
    let recorded = run_resumed(10, &[Seg::deep(7, 2), Seg::deep(10, 1)]);
    assert_eq!(recorded.incidents, [Incident::Duplicate { messages: 2 }]);
    assert_eq!(recorded.positions(), [(0, 10)]);
}

#[test]
fn session_that_ended_unheard_is_gap_of_unknown_size() {
    let later = Seg::deep(3, 1).session(SESSION + 1);
    let last = Seg::deep(4, 1).session(SESSION + 1);
    let change = Incident::SessionChange {
        next: SourcePosition::new(1, 1),
    };
    let recorded = run_resumed(10, &[later.clone(), last.clone()]);
    assert_eq!(
        recorded.incidents,
        [gap(0, 10, u64::MAX), change, gap(1, 1, 2)]
    );
    let recorded = run_resumed(10, &[Seg::deep(10, 1), later, last]);
    assert_eq!(recorded.incidents, [change, gap(1, 1, 2)], "it was heard");
    let restarted = run_resumed(10, &[Seg::deep(1, 0).at(NOON + SECOND)]);
    assert_eq!(restarted.incidents, [gap(0, 10, u64::MAX), reset(1, 1)]);
}

#[test]
fn resumed_decoder_of_tops_takes_no_deep() {
    let of_tops = |first| Seg {
        first,
        ..Seg::tops(vec![trade(b'T', b"A       ", 1, 1)])
    };
    let (killed, _) = run(&[of_tops(1).bytes()]);
    let mut decoder = resumed(&killed, 2, 9);
    assert_eq!(decoder.session(), killed.session());
    let mut recorded = Recorded::default();
    for segment in [Seg::deep(2, 1), of_tops(2)] {
        let packet = Packet {
            received_at: Nanos(NOON),
            payload: &segment.bytes(),
        };
        decoder.packet(packet, &mut recorded);
    }
    assert!(matches!(recorded.incidents[..], [Incident::Foreign { .. }]));
    assert_eq!(recorded.positions(), [(0, 2)]);
}

#[test]
fn resumed_iex_decoder_keeps_ids_feed_and_channel() {
    let symbols = [b"AAPL    ", b"A       "];
    let (killed, _) = run(&[Seg::of(symbols.map(|s| level(b'8', 1, s, 1, 1)).to_vec()).bytes()]);
    let mut decoder = resumed(&killed, 3, 9);
    assert_eq!(decoder.session(), killed.session());
    let mut recorded = Recorded::default();
    let mut take = |decoder: &mut IexDecoder, segment: &Seg| {
        let received_at = Nanos(NOON);
        let payload = &segment.bytes();
        decoder.packet(
            Packet {
                received_at,
                payload,
            },
            &mut recorded,
        );
    };
    let symbols = [b"A       ", b"NEW     ", b"AAPL    "];
    let messages = symbols.map(|s| level(b'8', 1, s, 1, 1)).to_vec();
    take(
        &mut decoder,
        &Seg {
            first: 3,
            ..Seg::tops(messages.clone())
        },
    );
    take(
        &mut decoder,
        &Seg {
            first: 3,
            ..Seg::of(messages)
        },
    );
    assert!(matches!(recorded.incidents[..], [Incident::Foreign { .. }]));
    let ids: Vec<_> = recorded
        .all::<MboMsg>()
        .iter()
        .map(|m| m.hd.instrument_id)
        .collect();
    assert_eq!(ids, [2, 9, 1]);
    assert_eq!(
        recorded.all::<SymbolMappingMsg>().len(),
        1,
        "known names stay"
    );
    assert_eq!(symbol_of(&decoder, 9), "NEW");
}

// Normalisation.

#[test]
fn symbol_is_introduced_once_in_first_batch() {
    let symbols = [b"AAPL    ", b"A       ", b"AAPL    "];
    let recorded = run_segments(&[Seg::of(symbols.map(|s| level(b'8', 1, s, 1, 1)).to_vec())]);
    let lens: Vec<_> = recorded.messages.iter().map(|(_, b)| b.len()).collect();
    assert_eq!(lens, [2, 2, 1]);
    let mappings = recorded.all::<SymbolMappingMsg>();
    let names: Vec<_> = mappings
        .iter()
        .map(|m| (m.stype_in_symbol().unwrap(), m.stype_out_symbol().unwrap()))
        .collect();
    assert_eq!(names, [("AAPL", "1"), ("A", "2")]);
    let ids: Vec<_> = recorded.all::<MboMsg>();
    let ids: Vec<_> = ids.iter().map(|m| m.hd.instrument_id).collect();
    assert_eq!(ids, [1, 2, 1]);
}

#[test]
fn level_is_mbp_record_with_total_and_last_flag() {
    let recorded = run_segments(&[Seg::of(vec![
        trade(b'T', b"A       ", 50, 12_3456),
        level(b'8', 0, b"A       ", 700, 12_3456),
        level(b'5', 1, b"A       ", 0, 12_3500),
    ])]);
    let trades = recorded.all::<TradeMsg>();
    assert_eq!(trades[0].price, 12_345_600_000);
    assert_eq!(trades[0].size, 50);
    assert_eq!(trades[0].flags.raw(), 0, "the event goes on");
    let levels = recorded.all::<MboMsg>();
    let seen = levels.iter().map(|m| {
        let action = m.action as u8 as char;
        (
            action,
            m.side as u8 as char,
            m.size,
            m.price,
            m.order_id,
            m.flags.raw(),
        )
    });
    assert_eq!(
        seen.collect::<Vec<_>>(),
        [
            ('M', 'B', 700, 12_345_600_000, 0, flags::MBP),
            ('C', 'A', 0, 12_350_000_000, 0, flags::MBP | flags::LAST),
        ]
    );
}

#[test]
fn trade_break_is_decoded_as_cancelled_trade() {
    let recorded = run_segments(&[Seg::tops(vec![
        trade(b'T', b"A       ", 5, 1_0000),
        trade(b'B', b"A       ", 5, 1_0000),
    ])]);
    let actions: Vec<_> = recorded.all::<TradeMsg>();
    let actions: Vec<_> = actions
        .iter()
        .map(|m| (m.action as u8, m.flags.is_last()))
        .collect();
    assert_eq!(actions, [(b'T', true), (b'C', true)]);
}

#[test]
fn unrepresentable_price_is_undefined_and_reported() {
    let most = i64::MAX / 100_000;
    let recorded = run_segments(&[Seg::of(
        [most, most + 1, i64::MIN, -1]
            .map(|price| level(b'8', 1, b"A       ", 1, price))
            .to_vec(),
    )]);
    let prices: Vec<_> = recorded.all::<MboMsg>();
    let prices: Vec<_> = prices.iter().map(|m| m.price).collect();
    assert_eq!(prices, [most * 100_000, UNDEF_PRICE, UNDEF_PRICE, -100_000]);
    assert_eq!(recorded.incidents.len(), 2);
    assert!(recorded.incidents.iter().all(is_malformed));
}

#[test]
fn unknown_receive_time_is_replaced_and_flagged() {
    let payload = Seg::deep(1, 1).bytes();
    let mut recorded = Recorded::default();
    let packet = Packet {
        received_at: Nanos(0),
        payload: &payload,
    };
    IexDecoder::default().packet(packet, &mut recorded);
    let level = &recorded.all::<MboMsg>()[0];
    assert_eq!((level.ts_recv, level.ts_in_delta), (NOON - 5, 0));
    assert!(level.flags.is_bad_ts_recv());

    let known = &run(&[payload]).1.all::<MboMsg>()[0];
    assert_eq!((known.hd.ts_event, known.ts_recv), (NOON - 5, NOON + 1_500));
    assert_eq!(known.ts_in_delta, 1_500, "since the venue sent it");
    assert!(!known.flags.is_bad_ts_recv());
    for (sent_at, delta) in [(0, i32::MAX), (u64::MAX, i32::MIN)] {
        let far = &run_segments(&[Seg::deep(1, 1).at(sent_at)]).all::<MboMsg>()[0];
        assert_eq!(far.ts_in_delta, delta, "saturates");
    }
}

#[test]
fn iex_status_message_maps_to_status_record() {
    let halt = [message(b'H', b'H', b"A       "), b"T1  ".to_vec()].concat();
    let pause = [message(b'H', b'P', b"A       "), b"MCB2".to_vec()].concat();
    let short = [message(b'P', 1, b"A       "), b"A".to_vec()].concat();
    let event = message(b'E', b'C', b"A       ");
    let retail = message(b'I', b'C', b"A       ");
    let stopped = message(b'O', b'O', b"A       ");
    let mut regular = message(b'S', b'R', b"        ");
    regular.truncate(10);
    let mut start = regular.clone();
    start[1] = b'O';
    let all = vec![halt, pause, short, event, retail, stopped, regular, start];
    let recorded = run_segments(&[Seg::of(all)]);
    let statuses = recorded.all::<StatusMsg>();
    let seen: Vec<_> = statuses
        .iter()
        .map(|s| {
            let states = [s.is_trading, s.is_quoting, s.is_short_sell_restricted];
            let states = states.map(|c| c as u8 as char).iter().collect::<String>();
            (
                s.hd.instrument_id,
                s.action().unwrap(),
                s.reason().unwrap(),
                states,
            )
        })
        .collect();
    use StatusAction as A;
    use StatusReason as R;
    let expected = [
        (1, A::Halt, R::NewsPending, "NN~"),
        (1, A::Pause, R::MarketWideHaltLevel2, "NN~"),
        (1, A::SsrChange, R::MarketEvent, "~~Y"),
        (1, A::Close, R::Scheduled, "~~~"),
        (1, A::None, R::None, "~~~"),
        (1, A::Halt, R::Operational, "NN~"),
        (0, A::Trading, R::Scheduled, "Y~~"),
        (0, A::NotAvailableForTrading, R::Scheduled, "N~~"),
    ]
    .map(|(id, action, reason, states)| (id, action, reason, states.to_owned()));
    assert_eq!(seen, expected);
    assert_eq!(
        statuses[7].trading_event().unwrap(),
        TradingEvent::ChangeTradingSession
    );
}

// Real captures.

/// Decodes a whole capture file of the data directory; `None` if there is no data.
fn fixture(name: &str) -> Option<(IexDecoder, Recorded)> {
    let path = data_dir()?.join(name);
    let mut decoder = IexDecoder::default();
    let mut recorded = Recorded::default();
    let mut capture = Capture::open(path).unwrap();
    while let Some(datagram) = capture.next().unwrap() {
        decoder.packet(datagram.packet(), &mut recorded);
    }
    assert_eq!(recorded.incidents, [], "{name}");
    Some((decoder, recorded))
}

fn symbol_of(decoder: &IexDecoder, id: u32) -> String {
    decoder.instruments().symbol(id).unwrap().to_string()
}

#[test]
fn auction_fixture_fields_are_decoded() {
    let Some((decoder, recorded)) =
        fixture("iex-tops/Tops.IexTp.v1.5_AuctionInformationMessage.pcap")
    else {
        return;
    };
    assert_eq!(recorded.positions(), [(0, 0x863a)]);
    let auction = &recorded.all::<ImbalanceMsg>()[0];
    assert_eq!(symbol_of(&decoder, auction.hd.instrument_id), "ZIEXT");
    assert_eq!(auction.hd.ts_event, 0x150d_ae65_6c45_3647);
    // 0x5a6c8130 s and 0x1f4d0 us.
    assert_eq!(auction.ts_recv, 1_517_060_400_128_208_000);
    assert_eq!(auction.auction_type as u8, b'H');
    assert_eq!(auction.paired_qty, 0);
    assert_eq!(auction.ref_price, 1_000_000_000);
    assert_eq!(auction.ind_match_price, 1_000_000_000);
    assert_eq!(auction.cont_book_clr_price, 1_000_000_000);
    assert_eq!(auction.total_imbalance_qty, 251);
    assert_eq!(auction.side().unwrap(), Side::Ask);
    assert_eq!(auction.num_extensions, 0);
    assert_eq!(auction.auction_time, 0x5a6c_825c * SECOND);
    assert_eq!(auction.auct_interest_clr_price, 1_000_000_000);
    assert_eq!(auction.upper_collar, UNDEF_PRICE);
    assert_eq!(auction.lower_collar, UNDEF_PRICE);
}

#[test]
fn official_price_fixture_fields_are_decoded() {
    let Some((decoder, recorded)) = fixture("iex-tops/Tops.IexTp.v1.5_OfficialPriceMessage.pcap")
    else {
        return;
    };
    let price = &recorded.all::<StatMsg>()[0];
    assert_eq!(symbol_of(&decoder, price.hd.instrument_id), "ZXIET");
    assert_eq!(price.hd.ts_event, 0x150d_b1d5_863a_5ff8);
    assert_eq!(price.stat_type().unwrap(), StatType::OpeningPrice);
    assert_eq!(price.price, 100_000_000_000);
    assert_eq!(price.sequence, 0xb23a);
}

#[test]
fn operational_halt_fixture_yields_four_messages() {
    let Some((decoder, recorded)) =
        fixture("iex-tops/Tops.IexTp.v1.5_OperationalHaltStatusMessage.pcap")
    else {
        return;
    };
    let expected = [0x85da, 0x85db, 0x85dc, 0x85dd].map(|s| (0, s));
    assert_eq!(recorded.positions(), expected);
    let statuses = recorded.all::<StatusMsg>();
    assert_eq!(symbol_of(&decoder, statuses[0].hd.instrument_id), "ZYNE");
    assert_eq!(statuses[0].hd.ts_event, 0x150d_ac3a_7962_8153);
    assert_eq!(statuses[0].action().unwrap(), StatusAction::None);
    assert_eq!(statuses[1].action().unwrap(), StatusAction::Trading);
    assert_eq!(statuses[1].is_trading(), Some(true));
    assert_eq!(statuses[2].hd.instrument_id, 0);
    assert_eq!(statuses[2].hd.ts_event, 0x150d_ac3a_9c4d_601a);
    assert_eq!(statuses[2].action().unwrap(), StatusAction::PreOpen);
    let quote = &recorded.all::<Mbp1Msg>()[0];
    let level = &quote.levels[0];
    assert_eq!((level.bid_px, level.ask_px), (UNDEF_PRICE, UNDEF_PRICE));
    assert_eq!((level.bid_sz, level.ask_sz), (0, 0));
}

#[test]
fn quote_fixture_fields_are_decoded() {
    for version in ["1.5", "1.6"] {
        let name = format!("iex-tops/Tops.IexTp.v{version}_QuoteUpdateMessage.pcap");
        let Some((decoder, recorded)) = fixture(&name) else {
            return;
        };
        let quote = &recorded.all::<Mbp1Msg>()[0];
        assert_eq!(symbol_of(&decoder, quote.hd.instrument_id), "ATSG");
        assert_eq!(quote.hd.ts_event, 0x150d_b337_9ce3_48c0);
        assert_eq!(quote.sequence, 0xc29d);
        assert_eq!(quote.action().unwrap(), Action::Modify);
        assert_eq!(quote.side().unwrap(), Side::None);
        assert_eq!(quote.flags, FlagSet::new(flags::LAST | flags::TOB));
        let level = &quote.levels[0];
        assert_eq!((level.bid_sz, level.bid_px), (18_773, 24_190_000_000));
        assert_eq!((level.ask_sz, level.ask_px), (60_677, 24_250_000_000));
    }
}

#[test]
fn directory_fixture_fields_and_counts_are_decoded() {
    let Some((decoder, recorded)) =
        fixture("iex-tops/Tops.IexTp.v1.5_SecurityDirectoryMessage.pcap")
    else {
        return;
    };
    let counts: Vec<_> = decoder.counts().iter().collect();
    assert_eq!(
        counts,
        [(b'D', 2), (b'H', 12), (b'O', 13), (b'P', 13), (b'Q', 12)]
    );
    let definition = &recorded.all::<InstrumentDefMsg>()[0];
    assert_eq!(definition.raw_symbol().unwrap(), "ZEXIT");
    assert_eq!(definition.hd.ts_event, 0x150d_ac3a_7961_99dd);
    assert_eq!(definition.min_lot_size_round_lot, 100);
    assert_eq!(definition.secsubtype().unwrap(), "TEST");
    assert_eq!(definition.exchange().unwrap(), "IEXG");
}

#[test]
fn iex_fixtures_decode_to_their_fields() {
    let Some((decoder, recorded)) =
        fixture("iex-tops/Tops.IexTp.v1.5_ShortSalePriceTestStatusMessage.pcap")
    else {
        return;
    };
    let short = &recorded.all::<StatusMsg>()[0];
    assert_eq!(symbol_of(&decoder, short.hd.instrument_id), "AHL");
    assert_eq!(short.hd.ts_event, 0x150d_ac4c_f29e_b342);
    assert_eq!(short.is_short_sell_restricted(), Some(true));
    assert_eq!(short.reason().unwrap(), StatusReason::None);

    let (_, recorded) = fixture("iex-tops/Tops.IexTp.v1.5_SystemEventMessage.pcap").unwrap();
    let system = &recorded.all::<StatusMsg>()[0];
    assert_eq!(
        (system.hd.instrument_id, system.is_trading as u8),
        (0, b'Y')
    );
    assert_eq!(system.hd.ts_event, 0x150d_b11f_e2cf_729a);

    let (decoder, recorded) = fixture("iex-tops/Tops.IexTp.v1.5_TradeReportMessage.pcap").unwrap();
    let trade = &recorded.all::<TradeMsg>()[0];
    assert_eq!(symbol_of(&decoder, trade.hd.instrument_id), "ZIEXT");
    assert_eq!(trade.hd.ts_event, 0x150d_ade8_8a9d_f2f8);
    assert_eq!((trade.size, trade.price), (100, 999_800_000));
    assert_eq!(trade.side().unwrap(), Side::None);

    let (decoder, recorded) =
        fixture("iex-tops/Tops.IexTp.v1.5_TradingStatusMessage.pcap").unwrap();
    let halt = &recorded.all::<StatusMsg>()[0];
    assert_eq!(symbol_of(&decoder, halt.hd.instrument_id), "JHMU");
    assert_eq!(halt.hd.ts_event, 0x150d_b3a7_36da_3df1);
    assert_eq!(halt.action().unwrap(), StatusAction::Halt);
    assert_eq!(halt.is_trading(), Some(false));
}

#[test]
fn deep_fixture_fields_are_decoded() {
    let Some((decoder, recorded)) =
        fixture("iex-deep/Deep.IexTp.v1.0_PriceLevelBuyUpdateMessage.pcap")
    else {
        return;
    };
    let buy = &recorded.all::<MboMsg>()[0];
    assert_eq!(symbol_of(&decoder, buy.hd.instrument_id), "V");
    assert_eq!(buy.hd.ts_event, 0x165d_e23a_3513_7fbe);
    assert_eq!((buy.size, buy.price), (190, 202_770_000_000));
    assert_eq!(buy.side().unwrap(), Side::Bid);
    assert_eq!(buy.flags.raw(), flags::MBP | flags::LAST);
    assert_eq!(buy.sequence, 0x0005_6b5e);

    let (decoder, recorded) =
        fixture("iex-deep/Deep.IexTp.v1.0_PriceLevelSellUpdateMessage.pcap").unwrap();
    let sell = &recorded.all::<MboMsg>()[0];
    assert_eq!(symbol_of(&decoder, sell.hd.instrument_id), "UNH");
    assert_eq!(sell.hd.ts_event, 0x165d_e23a_62d8_b92a);
    assert_eq!((sell.size, sell.price), (82, 344_140_000_000));
    assert_eq!(sell.side().unwrap(), Side::Ask);

    let (decoder, recorded) = fixture("iex-deep/Deep.IexTp.v1.0_Heartbeat.pcap").unwrap();
    assert!(recorded.messages.is_empty());
    assert_eq!(decoder.counts().total(), 0);
}

/// Decodes a whole day. Returns the decoder, the counts, and the capture at its end.
fn day(path: &Path) -> (IexDecoder, Counted, Capture) {
    let mut decoder = IexDecoder::default();
    let mut counted = Counted::default();
    let mut capture = Capture::open(path).unwrap();
    while let Some(datagram) = capture.next().unwrap() {
        assert_eq!(Format::detect(datagram.payload), Some(Format::IexTp));
        decoder.packet(datagram.packet(), &mut counted);
    }
    assert_eq!(capture.position(), capture.size().unwrap());
    (decoder, counted, capture)
}

#[test]
fn tops16_has_57674_messages_and_no_gap() {
    let Some(dir) = data_dir() else { return };
    let (decoder, counted, capture) = day(&dir.join("iex-tops/TOPS16.pcapng.gz"));
    assert_eq!(capture.stats().frames, 13_022);
    assert_eq!(capture.stats().datagrams, 13_022);
    assert_eq!(capture.stats().truncated, 0);
    assert_eq!(counted.incidents, [Incident::EndOfSession]);
    assert_eq!(counted.messages, 57_674);
    assert_eq!(counted.out_of_order, 0);
    let expected = [
        (b'A', 642),
        (b'B', 3),
        (b'D', 10),
        (b'H', 7_803),
        (b'O', 7_801),
        (b'P', 7_802),
        (b'Q', 27_217),
        (b'S', 6),
        (b'T', 6_390),
    ];
    assert_eq!(decoder.counts().iter().collect::<Vec<_>>(), expected);
    assert_eq!(decoder.instruments().len(), 7_799);
    let records = |rtype: RType| counted.records[&(rtype as u8)];
    assert_eq!(records(RType::Mbp1), 27_217);
    assert_eq!(records(RType::Mbp0), 6_390 + 3);
    assert_eq!(records(RType::SymbolMapping), 7_799);
    assert_eq!(records(RType::Status), 7_803 + 7_801 + 7_802 + 6);
    assert_eq!(records(RType::Imbalance), 642);
    assert_eq!(records(RType::InstrumentDef), 10);
}

#[test]
fn deep10_has_391999_messages_in_12_runs_and_is_truncated() {
    let Some(dir) = data_dir() else { return };
    let (decoder, counted, capture) = day(&dir.join("iex-deep/DEEP10.pcap.gz"));
    assert_eq!(capture.stats().frames, 121_314);
    assert_eq!(capture.stats().datagrams, 121_314);
    assert_eq!(capture.stats().truncated, 1);
    assert_eq!(counted.messages, 391_999);
    assert_eq!(counted.out_of_order, 0);
    // Only the first run has its last message.
    let mut expected = vec![Incident::EndOfSession];
    expected.extend((1..=11).map(|ordinal| reset(ordinal, 1)));
    assert_eq!(counted.incidents, expected, "11 resets and nothing else");
    assert_eq!(counted.newest.ordinal() + 1, 12, "runs");
    let expected = [
        (b'5', 14_627),
        (b'8', 12_941),
        (b'B', 73),
        (b'E', 59),
        (b'H', 93_638),
        (b'O', 93_638),
        (b'P', 93_636),
        (b'S', 44),
        (b'T', 83_343),
    ];
    assert_eq!(decoder.counts().iter().collect::<Vec<_>>(), expected);
    let records = |rtype: RType| counted.records[&(rtype as u8)];
    assert_eq!(records(RType::Mbo), 14_627 + 12_941);
    assert_eq!(records(RType::Mbp0), 83_343 + 73);
    assert_eq!(records(RType::Status), 93_638 + 93_638 + 93_636 + 44 + 59);
}

// Arbitrary bytes.

fn any_segment() -> impl Strategy<Value = Vec<u8>> {
    let messages = vec(
        (
            prop::sample::select(b"SDHIOPEQTBXA85z".to_vec()),
            vec(any::<u8>(), 0..90),
        ),
        0..6,
    );
    let header = (0..4_i64, 0..3_u32, 0..3_u64, prop::bool::ANY);
    (messages, header).prop_map(|(messages, (step, session, second, is_tops))| {
        let messages = messages.into_iter();
        let messages = messages.map(|(kind, rest)| [vec![kind], rest].concat());
        Seg {
            protocol: if is_tops { 0x8003 } else { 0x8004 },
            session,
            first: 1 + step,
            sent_at: NOON + second * SECOND,
            messages: messages.collect(),
        }
        .bytes()
    })
}

proptest! {
    #[test]
    fn arbitrary_iex_bytes_cause_no_panic(packets in vec(vec(any::<u8>(), 0..200), 0..8)) {
        run(&packets);
    }

    #[test]
    fn mutated_iex_segments_keep_position_order(
        packets in vec(any_segment(), 1..12),
        edits in vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<u8>()), 0..6),
    ) {
        let mut packets = packets;
        for (packet, byte, value) in edits {
            let packet = packet.get_mut(&mut packets[..]);
            *byte.get_mut(&mut packet[..]) = value;
        }
        let (decoder, recorded) = run(&packets);
        let positions: Vec<_> = recorded.messages.iter().map(|(p, _)| *p).collect();
        prop_assert!(positions.windows(2).all(|w| w[0] < w[1]));
        prop_assert!(decoder.counts().total() >= positions.len() as u64);
    }

    #[test]
    fn loss_of_whole_segments_is_reported_to_the_message(
        sizes in vec((0..5_usize, prop::bool::ANY), 1..40),
    ) {
        let mut next = 1;
        let mut kept = Vec::new();
        let mut lost = 0;
        let mut segments = vec![Seg::deep(1, 0)];
        for (size, is_kept) in sizes {
            if is_kept {
                segments.push(Seg::deep(next, size));
                kept.extend((next..next + size as i64).map(|s| (0, s as u64)));
            } else {
                lost += size as u64;
            }
            next += size as i64;
        }
        segments.push(Seg::deep(next, 0));
        // All segments have one send time, so only a heartbeat with sequence 1 could be a reset.
        let recorded = run_segments(&segments);
        let missing: u64 = recorded.incidents.iter().map(|i| match i {
            Incident::Gap { missing, .. } => *missing,
            other => panic!("{other:?}"),
        }).sum();
        prop_assert_eq!(missing, lost);
        prop_assert_eq!(recorded.positions(), kept);
    }
}

#[test]
fn symbol_with_non_ascii_bytes_is_escaped() {
    let odd = [0xff, 0xfe, 0, b' ', b'A', 0, b' ', b' '];
    let recorded = run_segments(&[Seg::of(vec![level(b'8', 1, &odd, 1, 1)])]);
    let mapping = &recorded.all::<SymbolMappingMsg>()[0];
    assert_eq!(
        mapping.stype_in_symbol().unwrap(),
        Symbol(odd).to_string(),
        "escaped, so that it is text"
    );
}
