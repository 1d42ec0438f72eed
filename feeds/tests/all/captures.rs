//! Captures of every supported kind, built here byte by byte, complete and damaged.

use std::{
    fs,
    io::{Cursor, Write},
    net::SocketAddr,
};

use crate::common::data_dir;
use flate2::{Compression, write::GzEncoder};
use proptest::{collection::vec, prelude::*};
use tickcast_feeds::capture::account::Reason;
use tickcast_feeds::capture::finding::CaptureFinding;
use tickcast_feeds::capture::{Capture, CaptureError, CaptureFormat, CaptureStats, PacketTime};
use tickcast_reliability::types::Nanos;

const ETHERNET: u32 = 1;
const STAMP_NS: u64 = 1_517_060_400_128_208_123;

// Frames.

fn udp(payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x28, 0x89, 0x28, 0x8a];
    bytes.extend((payload.len() as u16 + 8).to_be_bytes());
    bytes.extend([0, 0]);
    bytes.extend(payload);
    bytes
}

fn ipv4(protocol: u8, fragment: u16, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x45, 0];
    bytes.extend((body.len() as u16 + 20).to_be_bytes());
    bytes.extend([0, 1]);
    bytes.extend(fragment.to_be_bytes());
    bytes.extend([64, protocol, 0, 0, 10, 0, 0, 1, 233, 215, 21, 3]);
    bytes.extend(body);
    bytes
}

fn ipv6(next: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x60, 0, 0, 0];
    bytes.extend((body.len() as u16).to_be_bytes());
    bytes.extend([next, 64]);
    bytes.extend([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    bytes.extend([0xff, 0x02, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9]);
    bytes.extend(body);
    bytes
}

fn ethernet(tags: &[u16], ethertype: u16, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![1, 0, 0x5e, 0x57, 0x15, 3, 0, 0x1e, 0x67, 0xf8, 0x82, 0x3a];
    for tag in tags {
        bytes.extend(tag.to_be_bytes());
        bytes.extend([0, 42]);
    }
    bytes.extend(ethertype.to_be_bytes());
    bytes.extend(body);
    bytes
}

fn plain(payload: &[u8]) -> Vec<u8> {
    ethernet(&[], 0x0800, &ipv4(17, 0, &udp(payload)))
}

// Files.

#[derive(Clone, Copy, Debug)]
enum Order {
    Little,
    Big,
}

impl Order {
    fn u16(self, n: u16) -> [u8; 2] {
        match self {
            Self::Little => n.to_le_bytes(),
            Self::Big => n.to_be_bytes(),
        }
    }

    fn u32(self, n: u32) -> [u8; 4] {
        match self {
            Self::Little => n.to_le_bytes(),
            Self::Big => n.to_be_bytes(),
        }
    }
}

fn pcap_record(order: Order, fraction_ns: u64, frame: &[u8], original_len: usize) -> Vec<u8> {
    let (s, ns) = (STAMP_NS / 1_000_000_000, STAMP_NS % 1_000_000_000);
    let lens = [frame.len() as u32, original_len as u32];
    let mut bytes = Vec::new();
    for word in [s as u32, (ns / fraction_ns) as u32, lens[0], lens[1]] {
        bytes.extend(order.u32(word));
    }
    bytes.extend(frame);
    bytes
}

fn pcap_of(order: Order, fraction_ns: u64, link: u32, frames: &[Vec<u8>]) -> Vec<u8> {
    let magic = match fraction_ns {
        1 => 0xa1b2_3c4d,
        _ => 0xa1b2_c3d4,
    };
    let mut bytes = order.u32(magic).to_vec();
    bytes.extend(order.u16(2));
    bytes.extend(order.u16(4));
    for word in [0, 0, 65_535, link] {
        bytes.extend(order.u32(word));
    }
    for frame in frames {
        bytes.extend(pcap_record(order, fraction_ns, frame, frame.len()));
    }
    bytes
}

fn pcap(frames: &[Vec<u8>]) -> Vec<u8> {
    pcap_of(Order::Little, 1_000, ETHERNET, frames)
}

fn block(order: Order, kind: u32, body: &[u8]) -> Vec<u8> {
    let padded = body.len().next_multiple_of(4);
    let len = order.u32(padded as u32 + 12);
    let mut bytes = order.u32(kind).to_vec();
    bytes.extend(len);
    bytes.extend(body);
    bytes.resize(8 + padded, 0);
    bytes.extend(len);
    bytes
}

fn section(order: Order) -> Vec<u8> {
    let mut body = order.u32(0x1a2b_3c4d).to_vec();
    body.extend(order.u16(1));
    body.extend(order.u16(0));
    body.extend([0xff; 8]);
    block(order, 0x0a0d_0d0a, &body)
}

/// Code and value of each option.
type Options<'a> = &'a [(u16, &'a [u8])];

fn interface(order: Order, link: u16, options: Options<'_>) -> Vec<u8> {
    let mut body = order.u16(link).to_vec();
    body.extend(order.u16(0));
    body.extend(order.u32(0));
    for (code, value) in options {
        body.extend(order.u16(*code));
        body.extend(order.u16(value.len() as u16));
        body.extend(*value);
        body.resize(body.len().next_multiple_of(4), 0);
    }
    if !options.is_empty() {
        body.extend([0; 4]);
    }
    block(order, 1, &body)
}

fn enhanced(order: Order, interface: u32, ticks: u64, frame: &[u8], original: usize) -> Vec<u8> {
    let mut body = Vec::new();
    let lens = [frame.len() as u32, original as u32];
    for word in [
        interface,
        (ticks >> 32) as u32,
        ticks as u32,
        lens[0],
        lens[1],
    ] {
        body.extend(order.u32(word));
    }
    body.extend(frame);
    block(order, 6, &body)
}

fn pcapng(order: Order, frames: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = [section(order), interface(order, 1, &[(9, &[9])])].concat();
    for frame in frames {
        bytes.extend(enhanced(order, 0, STAMP_NS, frame, frame.len()));
    }
    bytes
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

// Reading.

#[derive(Debug, PartialEq)]
struct Read {
    received_at: u64,
    ends: (SocketAddr, SocketAddr),
    payload: Vec<u8>,
    original_len: usize,
}

fn open(bytes: &[u8]) -> Result<Capture, CaptureError> {
    Capture::from_reader("test.bin", Cursor::new(bytes.to_vec()))
}

fn drain(capture: &mut Capture) -> (Vec<Read>, Option<CaptureError>) {
    let mut all = Vec::new();
    let error = loop {
        match capture.next() {
            Ok(None) => break None,
            Err(error) => break Some(error),
            Ok(Some(d)) => all.push(Read {
                received_at: d.received_at.0,
                ends: (d.source, d.destination),
                payload: d.payload.to_vec(),
                original_len: d.original_len,
            }),
        }
    };
    let stats = capture.stats();
    assert_eq!(stats.frames, stats.account.total().frames);
    assert_eq!(stats.datagrams, all.len() as u64);
    assert!(matches!(capture.next(), Ok(None)), "the end stays the end");
    (all, error)
}

fn read(bytes: &[u8]) -> (Vec<Read>, CaptureStats) {
    let mut capture = open(bytes).unwrap();
    let (all, error) = drain(&mut capture);
    assert!(error.is_none(), "{error:?}");
    (all, *capture.stats())
}

fn frames_of(stats: &CaptureStats, reason: Reason) -> u64 {
    stats.account.of(reason).frames
}

fn findings(bytes: &[u8]) -> Vec<CaptureFinding> {
    let mut capture = open(bytes).unwrap();
    drain(&mut capture);
    capture.findings().kept().to_vec()
}

fn payloads(bytes: &[u8]) -> Vec<Vec<u8>> {
    read(bytes).0.into_iter().map(|r| r.payload).collect()
}

fn fault(bytes: &[u8]) -> CaptureError {
    match open(bytes) {
        Err(error) => error,
        Ok(mut capture) => drain(&mut capture).1.expect("an error"),
    }
}

#[test]
fn pcap_reads_any_byte_order_resolution_and_gzip() {
    let frames = [plain(b"one"), plain(b"two")];
    for order in [Order::Little, Order::Big] {
        for (fraction_ns, stamp) in [(1, STAMP_NS), (1_000, STAMP_NS / 1_000 * 1_000)] {
            let file = pcap_of(order, fraction_ns, ETHERNET, &frames);
            for bytes in [gzip(&file), file] {
                let (all, stats) = read(&bytes);
                let case = format!("{order:?} {fraction_ns}");
                assert_eq!(all.len(), 2, "{case}");
                assert_eq!(all[0].received_at, stamp, "{case}");
                assert_eq!(all[1].payload, b"two", "{case}");
                let ends = ["10.0.0.1:10377", "233.215.21.3:10378"];
                let ends = ends.map(|a| a.parse().unwrap());
                assert_eq!(all[0].ends, (ends[0], ends[1]), "{case}");
                assert_eq!(stats.truncated, 0, "{case}");
            }
        }
    }
    assert_eq!(open(&pcap(&frames)).unwrap().format(), CaptureFormat::Pcap);
}

#[test]
fn pcapng_is_read_in_both_orders_gzip_or_not() {
    for order in [Order::Little, Order::Big] {
        let file = pcapng(order, &[plain(b"one"), plain(b"three")]);
        for bytes in [gzip(&file), file] {
            let (all, _) = read(&bytes);
            assert_eq!(all.len(), 2, "{order:?}");
            assert_eq!(all[1].payload, b"three");
            assert_eq!(all[1].received_at, STAMP_NS);
            let format = open(&bytes).unwrap().format();
            assert_eq!(format, CaptureFormat::PcapNg);
        }
    }
}

#[test]
fn pcapng_stamps_follow_each_interfaces_resolution_and_offset() {
    for order in [Order::Little, Order::Big] {
        let offset = match order {
            Order::Little => 100_i64.to_le_bytes(),
            Order::Big => 100_i64.to_be_bytes(),
        };
        let frame = plain(b"x");
        let cases: [(Options<'_>, u64, u64); 6] = [
            (&[], 1_500_000, 1_500_000_000),
            (&[(9, &[3])], 1_500, 1_500_000_000),
            (&[(9, &[9])], 1_500, 1_500),
            (&[(9, &[12])], 1_500_000, 1_500),
            // 2^-10 s: 1536 ticks are 1.5 s.
            (&[(9, &[0x8a])], 1_536, 1_500_000_000),
            (&[(9, &[9]), (14, &offset)], 7, 100_000_000_007),
        ];
        let mut bytes = section(order);
        for (options, _, _) in &cases {
            bytes.extend(interface(order, 1, options));
        }
        for (index, (_, ticks, _)) in cases.iter().enumerate() {
            bytes.extend(enhanced(order, index as u32, *ticks, &frame, frame.len()));
        }
        let stamps: Vec<_> = read(&bytes).0.iter().map(|r| r.received_at).collect();
        assert_eq!(stamps, cases.map(|(_, _, expected)| expected), "{order:?}");
    }
}

#[test]
fn nanoseconds_in_a_microsecond_interface_are_taken_as_such() {
    // 1990.
    const FIRST: u64 = 631_152_000_000_000_000;
    let frame = plain(b"x");
    for order in [Order::Little, Order::Big] {
        for (power, ticks, ns, is_taken) in [
            (6, FIRST, FIRST, true),
            (6, STAMP_NS, STAMP_NS, true),
            (6, 1_500_000, 1_500_000_000, false),
            (6, FIRST - 1, u64::MAX, false),
            (9, STAMP_NS, STAMP_NS, false),
        ] {
            let packet = enhanced(order, 0, ticks, &frame, frame.len());
            let head = [section(order), interface(order, 1, &[(9, &[power])])].concat();
            let bytes = [head, packet.clone(), packet].concat();
            let stamps: Vec<_> = read(&bytes).0.iter().map(|r| r.received_at).collect();
            assert_eq!(stamps, [ns; 2], "{power} {ticks}");
            let expected = match (is_taken, ns) {
                (true, _) => Some(CaptureFinding::UnitTaken {
                    stated: 1_000_000,
                    shown: 1_000_000_000,
                }),
                (false, u64::MAX) => {
                    let at = section(order).len() + interface(order, 1, &[(9, &[power])]).len();
                    Some(CaptureFinding::Beyond { at: at as u64 })
                }
                (false, _) => None,
            };
            assert_eq!(
                findings(&bytes),
                Vec::from_iter(expected),
                "{power} {ticks}"
            );
        }
    }
}

#[test]
fn four_zeros_behind_the_last_record_are_padding() {
    let frames = [plain(b"x")];
    for file in [pcap(&frames), pcapng(Order::Little, &frames)] {
        for zeros in 1..12 {
            let stats = read(&[&file[..], &vec![0; zeros]].concat()).1;
            let is_padding = zeros >= 4;
            assert_eq!(stats.truncated, u64::from(!is_padding), "{zeros}");
            let padding = stats.account.of(Reason::Padding).bytes;
            assert_eq!(padding, if is_padding { zeros as u64 } else { 0 });
        }
        let stats = read(&[&file[..], &[0, 0, 0, 0, 1]].concat()).1;
        assert_eq!(stats.truncated, 1);
    }
}

#[test]
fn second_section_has_own_byte_order_and_interfaces() {
    let frame = plain(b"x");
    let mut bytes = pcapng(Order::Little, std::slice::from_ref(&frame));
    bytes.extend(section(Order::Big));
    bytes.extend(enhanced(Order::Big, 0, 1, &frame, frame.len()));
    bytes.extend(interface(Order::Big, 1, &[]));
    bytes.extend(enhanced(Order::Big, 0, 1, &frame, frame.len()));
    let (all, stats) = read(&bytes);
    assert_eq!(all.len(), 2);
    assert_eq!(
        frames_of(&stats, Reason::UnknownInterface),
        1,
        "no interface was described yet"
    );
}

#[test]
fn blocks_that_are_no_packets_are_passed_over_however_long() {
    let order = Order::Little;
    let mut bytes = pcapng(order, &[plain(b"a")]);
    bytes.extend(block(order, 5, &[0; 40]));
    bytes.extend(block(order, 0x0bad, &vec![7; 3 << 20]));
    bytes.extend(enhanced(order, 0, 1, &plain(b"b"), 43));
    let (all, stats) = read(&bytes);
    assert_eq!((all.len(), stats.frames, stats.truncated), (2, 2, 0));
    let structure = stats.account.of(Reason::Structure).bytes;
    assert!(structure > 3 << 20, "{structure}");
    bytes.extend(block(order, 5, &[0; 40]));
    assert_eq!(read(&bytes).1.truncated, 0, "such a block may be the last");
    bytes.truncate(bytes.len() - 4);
    assert_eq!(read(&bytes).1.truncated, 1, "or be cut off");
}

#[test]
fn long_block_of_a_wrong_length_costs_itself_only() {
    for order in [Order::Little, Order::Big] {
        let start = pcapng(order, &[plain(b"one")]);
        let two = enhanced(order, 0, STAMP_NS, &plain(b"two"), 45);
        let mut statistics = block(order, 5, &[0; 40]);
        statistics[4..8].copy_from_slice(&order.u32(8 << 20));
        let mut custom = block(order, 0x0bad, &vec![7; 2 << 20]);
        custom.truncate(custom.len() - 4);
        for wrong in [statistics, custom] {
            let bytes = [&start[..], &wrong, &two].concat();
            assert_eq!(payloads(&bytes), [b"one", b"two"], "{order:?}");
            let from = start.len() as u64;
            assert_eq!(skipped(&bytes), [(from, from + wrong.len() as u64)]);
        }
    }
}

#[test]
fn long_block_that_is_cut_off_is_accounted_for() {
    let start = pcapng(Order::Little, &[plain(b"one")]);
    let long = block(Order::Little, 0x0bad, &vec![7; 2 << 20]);
    for cut in [1, 4, 5, 1 << 20] {
        let bytes = [&start[..], &long[..long.len() - cut]].concat();
        let (_, stats) = read(&bytes);
        let (len, at) = (bytes.len() as u64, start.len() as u64);
        assert_eq!(stats.account.total().bytes, len, "{cut}");
        assert_eq!(stats.account.of(Reason::Truncated).bytes, len - at, "{cut}");
        assert_eq!(
            findings(&bytes),
            [CaptureFinding::Truncated { at }],
            "{cut}"
        );
    }
}

#[test]
fn simple_block_has_no_time_obsolete_block_has() {
    let order = Order::Little;
    let frame = plain(b"simple");
    let simple = [&order.u32(frame.len() as u32)[..], &frame].concat();
    let mut bytes = pcapng(order, &[]);
    bytes.extend(block(order, 3, &simple));
    let obsolete = |captured: u32| {
        let ticks = [(STAMP_NS >> 32) as u32, STAMP_NS as u32];
        let words = [0, ticks[0], ticks[1], captured, frame.len() as u32];
        let words: Vec<_> = words.into_iter().flat_map(|word| order.u32(word)).collect();
        block(order, 2, &[&words[..], &frame].concat())
    };
    bytes.extend(obsolete(frame.len() as u32));
    bytes.extend(obsolete(5_000));
    let (all, stats) = read(&bytes);
    let gave: Vec<_> = all
        .iter()
        .map(|r| (r.received_at, &r.payload[..]))
        .collect();
    assert_eq!(gave, [(0, &b"simple"[..]), (STAMP_NS, &b"simple"[..])]);
    assert_eq!((stats.frames, frames_of(&stats, Reason::Malformed)), (3, 1));
}

#[test]
fn obsolete_block_holds_no_more_than_its_room() {
    for order in [Order::Little, Order::Big] {
        let frame = plain(b"four");
        assert!(frame.len().is_multiple_of(2), "padding follows");
        let room = frame.len().next_multiple_of(4);
        for captured in frame.len()..room + 12 {
            let words = [0, 0, 1_000_000, captured as u32, captured as u32];
            let mut body = order.u16(1).to_vec();
            body.extend(order.u16(0));
            body.extend(words[1..].iter().flat_map(|word| order.u32(*word)));
            body.extend(&frame);
            let second = interface(order, 1, &[(9, &[6])]);
            let bytes = [pcapng(order, &[]), second, block(order, 2, &body)].concat();
            let (all, stats) = read(&bytes);
            let fits = captured <= room;
            assert_eq!(all.len(), usize::from(fits), "{captured} of {room}");
            assert_eq!(frames_of(&stats, Reason::Malformed), u64::from(!fits));
            if fits {
                assert_eq!(all[0].received_at, 1_000_000_000, "of interface 1");
                assert_eq!(stats.snapped, 0);
            }
        }
    }
}

#[test]
fn last_record_is_believed_by_the_end_of_the_file() {
    let order = Order::Little;
    let (one, two) = (plain(b"one"), plain(b"two"));
    // No header of a capture tool: the packet was shorter than its captured part.
    let strange = pcap_record(order, 1_000, &two, two.len() - 1);
    let bytes = [pcap(std::slice::from_ref(&one)), strange].concat();
    let (all, stats) = read(&bytes);
    assert_eq!((all.len(), stats.truncated), (2, 0));
    assert!(skipped(&bytes).is_empty());
    // A header without a packet is believed by its successor only.
    let empty = pcap_record(order, 1_000, &[], 60);
    let start = pcap(&[one]);
    let bytes = [&start[..], &empty].concat();
    let (all, stats) = read(&bytes);
    assert_eq!((all.len(), stats.truncated), (1, 0));
    let (from, to) = (start.len() as u64, bytes.len() as u64);
    assert_eq!(skipped(&bytes), [(from, to)]);
}

#[test]
fn kinds_of_frames_are_counted_up_to_a_bound() {
    let frames = |kinds: std::ops::Range<u16>| kinds.map(|kind| ethernet(&[], kind, &[0; 46]));
    for (kinds, counted) in [(63, 63), (64, 64), (65, 64)] {
        let all: Vec<_> = frames(0x9901..0x9901 + kinds)
            .chain(frames(0x9901..0x9902))
            .collect();
        let bytes = pcap(&all);
        let mut capture = open(&bytes).unwrap();
        while capture.next().unwrap().is_some() {}
        let others: Vec<_> = capture.others().collect();
        assert_eq!(others.len(), counted, "{kinds}");
        assert_eq!(others[0], (Reason::OtherEtherType, 0x9901, 2));
    }
}

#[test]
fn unknown_interface_is_reported_with_its_block() {
    let order = Order::Little;
    let packet = enhanced(order, 7, STAMP_NS, &plain(b"x"), 45);
    let long = block(order, 0x0bad, &vec![7; 2 << 20]);
    let others = [long, block(order, 5, &[0; 40])];
    for (others, block) in [(&others[..0], 3), (&others[..1], 4), (&others, 5)] {
        let bytes = [pcapng(order, &[]), others.concat(), packet.clone()].concat();
        let expected = CaptureFinding::UnknownInterface {
            interface: 7,
            block,
            at: (bytes.len() - packet.len()) as u64,
        };
        assert_eq!(findings(&bytes), [expected]);
    }
}

/// Returns an obsolete packet block of interface 0 with these lengths.
fn obsolete(order: Order, lengths: (usize, usize), frame: &[u8]) -> Vec<u8> {
    let words = [0, 0, 1_000_000, lengths.0 as u32, lengths.1 as u32];
    let words = words.into_iter().flat_map(|word| order.u32(word));
    block(
        order,
        2,
        &words.chain(frame.iter().copied()).collect::<Vec<_>>(),
    )
}

#[test]
fn obsolete_block_without_its_fields_is_malformed() {
    let order = Order::Little;
    let whole = obsolete(order, (0, 100), &[]);
    let body = &whole[8..28];
    for len in (0..=20).step_by(4) {
        let bytes = [pcapng(order, &[]), block(order, 2, &body[..len])].concat();
        let (all, stats) = read(&bytes);
        assert!(all.is_empty());
        let of = |reason| frames_of(&stats, reason);
        let is_whole = u64::from(len == 20);
        let counts = (of(Reason::Malformed), of(Reason::Snapped));
        assert_eq!(counts, (1 - is_whole, is_whole), "{len}");
    }
}

#[test]
fn obsolete_block_is_snapped_if_the_packet_was_longer() {
    let order = Order::Little;
    // The headers claim four bytes more than the frame has.
    let mut frame = plain(b"01234567");
    frame.truncate(frame.len() - 4);
    let captured = frame.len();
    for (original, is_snapped) in [
        (captured - 1, false),
        (captured, false),
        (captured + 1, true),
    ] {
        let packet = obsolete(order, (captured, original), &frame);
        let (all, stats) = read(&[pcapng(order, &[]), packet].concat());
        let of = |reason| frames_of(&stats, reason);
        let counts = (of(Reason::Malformed), of(Reason::Snapped));
        let snapped = u64::from(is_snapped);
        assert_eq!(counts, (1 - snapped, snapped), "{original}");
        assert_eq!((all.len() as u64, stats.snapped), (snapped, snapped));
    }
}

#[test]
fn unknown_interface_is_reported_once_up_to_a_bound() {
    let order = Order::Little;
    let frame = plain(b"x");
    let bytes_of = |interfaces: &[u32]| {
        let packets = interfaces
            .iter()
            .flat_map(|it| enhanced(order, *it, STAMP_NS, &frame, frame.len()));
        [pcapng(order, &[]), packets.collect()].concat()
    };
    let found: Vec<_> = findings(&bytes_of(&[5, 6, 5, 5, 6]))
        .into_iter()
        .map(|it| match it {
            CaptureFinding::UnknownInterface { interface, .. } => interface,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(found, [5, 6]);
    for interfaces in [63, 64, 65, 200] {
        let interfaces: Vec<u32> = (1..=interfaces).collect();
        let bytes = bytes_of(&interfaces);
        let mut capture = open(&bytes).unwrap();
        while capture.next().unwrap().is_some() {}
        let found = capture.findings();
        let all = found.kept().len() as u64 + found.more();
        assert_eq!(all, interfaces.len().min(64) as u64);
        let unknown = frames_of(capture.stats(), Reason::UnknownInterface);
        assert_eq!(unknown, interfaces.len() as u64);
    }
}

#[test]
fn only_a_shortened_packet_is_snapped() {
    let order = Order::Little;
    // The headers claim four bytes more than the frame has.
    let mut frame = plain(b"01234567");
    frame.truncate(frame.len() - 4);
    let file = |original: usize| {
        let mut bytes = pcapng(order, &[]);
        bytes.extend(enhanced(order, 0, 1, &frame, original));
        bytes
    };
    let classic = |original: usize| {
        let mut bytes = pcap(&[]);
        bytes.extend(pcap_record(order, 1_000, &frame, original));
        bytes
    };
    for (whole, snapped) in [
        (file(frame.len()), file(frame.len() + 4)),
        (classic(frame.len()), classic(frame.len() + 4)),
    ] {
        let (_, stats) = read(&whole);
        assert_eq!(frames_of(&stats, Reason::Malformed), 1);
        assert_eq!(frames_of(&stats, Reason::Snapped), 0);
        let (_, stats) = read(&snapped);
        assert_eq!(frames_of(&stats, Reason::Malformed), 0);
        assert_eq!(frames_of(&stats, Reason::Snapped), 1);
    }
}

#[test]
fn zeros_behind_a_gzip_member_are_padding_however_many() {
    for zeros in [1, 65_536, 200_000] {
        let file = [&gzip(&pcap(&[plain(b"one")]))[..], &vec![0; zeros]].concat();
        let (all, stats) = read(&file);
        assert_eq!(all.len(), 1);
        assert_eq!(stats.account.of(Reason::Padding).bytes, zeros as u64);
        let file = [&file[..], b"junk"].concat();
        let trailing = CaptureFinding::Trailing { bytes: 4 };
        assert_eq!(findings(&file), [trailing], "{zeros}");
        assert_eq!(
            read(&file).1.account.of(Reason::Padding).bytes,
            zeros as u64
        );
    }
}

#[test]
fn link_layers_yield_same_datagram() {
    let ip = ipv4(17, 0, &udp(b"x"));
    let ip6 = ipv6(17, &udp(b"x"));
    let sll = [&[0; 14][..], &[8, 0], &ip].concat();
    let sll2 = [&[8, 0][..], &[0; 18], &ip].concat();
    let loopback = [&[2, 0, 0, 0][..], &ip].concat();
    for (link, frame) in [
        (1, ethernet(&[], 0x0800, &ip)),
        (1, ethernet(&[0x8100], 0x0800, &ip)),
        (1, ethernet(&[0x88a8, 0x8100], 0x0800, &ip)),
        (1, ethernet(&[0x9100, 0x8100], 0x86dd, &ip6)),
        // The upper bits give a frame check sequence of 4 bytes at the end of each frame.
        (
            0x2400_0001,
            [ethernet(&[], 0x0800, &ip), vec![9; 4]].concat(),
        ),
        (101, ip.clone()),
        (101, ip6.clone()),
        (228, ip.clone()),
        (229, ip6),
        (113, sll),
        (276, sll2),
        (0, loopback),
    ] {
        let file = pcap_of(Order::Little, 1_000, link, &[frame]);
        assert_eq!(payloads(&file), [b"x"], "link type {link:#x}");
    }
}

/// GRE with the given flags and fields, in an IPv4 frame.
fn gre(flags: u16, kind: u16, fields: &[u8], inner: &[u8]) -> Vec<u8> {
    let head = [&flags.to_be_bytes()[..], &kind.to_be_bytes(), fields, inner].concat();
    ethernet(&[], 0x0800, &ipv4(47, 0, &head))
}

/// UDP with VXLAN of the given flags.
fn vxlan(flags: [u8; 4], inner: &[u8]) -> Vec<u8> {
    let mut bytes = udp(&[&flags[..], &[0, 0, 9, 0], inner].concat());
    bytes[2..4].copy_from_slice(&4789_u16.to_be_bytes());
    bytes
}

#[test]
fn encapsulations_lead_to_the_same_datagram() {
    let ip = ipv4(17, 0, &udp(b"x"));
    let inner = plain(b"x");
    let stamped = |version: u16, len: usize| {
        let stamp = [
            &[0, 1][..],
            &version.to_be_bytes(),
            &vec![7; len],
            &[8, 0],
            &ip,
        ]
        .concat();
        ethernet(&[], 0xd28b, &stamp)
    };
    let label = |bottom: u8| [0, 6, 0x40 | bottom, 0xff];
    let policy = vxlan([0x88, 0, 0, 7], &inner);
    let erspan_3 = |last: u8| [&[0x20; 11][..], &[last]].concat();
    let subheader = [&erspan_3(1)[..], &[0; 8], &inner].concat();
    // The frame type is in bits 1 to 5 of byte 10.
    let erspan_3_of_ip = |last: u8| {
        let header = [&[0x20; 10][..], &[0b1000_1011, last]].concat();
        [&header[..], &vec![0; usize::from(last) * 8], &ip].concat()
    };
    let snap = [&[0xaa, 0xaa, 3, 0, 0, 0, 8, 0][..], &ip].concat();
    for (name, frame) in [
        (
            "802.1ad and 0x9200",
            ethernet(&[0x88a8, 0x9200, 0x9100], 0x0800, &ip),
        ),
        ("GRE of IP", gre(0, 0x0800, &[], &ip)),
        (
            "GRE with key and checksum",
            gre(0xa000, 0x0800, &[0; 8], &ip),
        ),
        ("GRE of Ethernet", gre(0, 0x6558, &[], &inner)),
        ("ERSPAN I", gre(0, 0x88be, &[], &inner)),
        ("ERSPAN II", gre(0x1000, 0x88be, &[0; 12], &inner)),
        (
            "ERSPAN III",
            gre(
                0x1000,
                0x22eb,
                &[0; 4],
                &[&erspan_3(0)[..], &inner].concat(),
            ),
        ),
        (
            "ERSPAN III, longer",
            gre(0x1000, 0x22eb, &[0; 4], &subheader),
        ),
        (
            "ERSPAN III of IP",
            gre(0x1000, 0x22eb, &[0; 4], &erspan_3_of_ip(0)),
        ),
        (
            "ERSPAN III of IP, longer",
            gre(0x1000, 0x22eb, &[0; 4], &erspan_3_of_ip(1)),
        ),
        (
            "MPLS",
            ethernet(&[], 0x8847, &[&label(0)[..], &label(1), &ip].concat()),
        ),
        (
            "Ethernet in MPLS",
            ethernet(&[], 0x8848, &[&label(1)[..], &[0; 4], &inner].concat()),
        ),
        (
            "VXLAN",
            ethernet(&[], 0x0800, &ipv4(17, 0, &vxlan([8, 0, 0, 0], &inner))),
        ),
        (
            "VXLAN with a policy",
            ethernet(&[], 0x0800, &ipv4(17, 0, &policy)),
        ),
        ("Arista, 64 bits", stamped(0x0110, 8)),
        ("Arista, 48 bits", stamped(0x0020, 6)),
        ("Arista, another hardware", stamped(0x0111, 8)),
        ("IP in IP", ethernet(&[], 0x0800, &ipv4(4, 0, &ip))),
        ("SNAP", ethernet(&[], snap.len() as u16, &snap)),
    ] {
        assert_eq!(payloads(&pcap(&[frame])), [b"x"], "{name}");
    }
    for (link, head) in [
        (113, &[&[0; 14][..], &[0x81, 0]].concat()),
        (276, &[&[0x81, 0][..], &[0; 18]].concat()),
    ] {
        let frame = [&head[..], &[0, 42, 8, 0], &ip].concat();
        let file = pcap_of(Order::Little, 1_000, link, &[frame]);
        assert_eq!(payloads(&file), [b"x"], "tagged link type {link}");
    }
    // Headers without end.
    let loop_of_tags = ethernet(&[0x8100; 200], 0x0800, &ip);
    assert_eq!(
        frames_of(&read(&pcap(&[loop_of_tags])).1, Reason::Malformed),
        1
    );
}

/// Arista's header before an IPv4 packet: seconds of the given bytes, and half a second.
fn arista(version: u16, seconds: &[u8], ip: &[u8]) -> Vec<u8> {
    let ns = 500_000_000_u32.to_be_bytes();
    let stamp = [
        &[0, 1][..],
        &version.to_be_bytes(),
        seconds,
        &ns,
        &[8, 0],
        ip,
    ]
    .concat();
    ethernet(&[], 0xd28b, &stamp)
}

/// Metamako's trailer behind some extensions.
fn metamako(extensions: &[u8], seconds: u32, ns: u32) -> Vec<u8> {
    let stamp = [seconds.to_be_bytes(), ns.to_be_bytes()].concat();
    [&[9; 4][..], extensions, &stamp, &[3, 0, 7, 1]].concat()
}

/// Exablaze's trailer; `fraction` is the high 32 of 40 bits.
fn exablaze(seconds: u32, fraction: u32) -> Vec<u8> {
    let stamp = [seconds.to_be_bytes(), fraction.to_be_bytes()].concat();
    [&[9, 9, 9, 9, 1, 2][..], &stamp, &[0, 0]].concat()
}

#[test]
fn stamps_of_devices_are_the_time_when_asked() {
    use PacketTime::{Arista, Exablaze, Metamako};
    const S: u32 = (STAMP_NS / 1_000_000_000) as u32 + 1;
    const NS: u32 = 500_000_000;
    const HALF: u32 = 1 << 31;
    const DAY: u32 = 86_400;
    let (x, ip) = (plain(b"x"), ipv4(17, 0, &udp(b"x")));
    let behind = |parts: &[&[u8]]| [&x[..], &parts.concat()].concat();
    let (utc, tai) = (S.to_be_bytes(), (S + 37).to_be_bytes());
    let check = [7_u8; 4];
    let late = (S + 31 * DAY).to_be_bytes();
    for (name, time, frame, is_stamped) in [
        ("64 bits, UTC", Arista, arista(0x0110, &utc, &ip), true),
        ("64 bits, TAI", Arista, arista(0x0010, &tai, &ip), true),
        ("48 bits, UTC", Arista, arista(0x0120, &utc[2..], &ip), true),
        ("48 bits, TAI", Arista, arista(0x0020, &tai[2..], &ip), true),
        ("another hardware", Arista, arista(0x0111, &utc, &ip), true),
        ("a month away", Arista, arista(0x0110, &late, &ip), false),
        ("no header", Arista, x.clone(), false),
        ("trailer", Metamako, behind(&[&metamako(&[], S, NS)]), true),
        (
            "trailer with extensions",
            Metamako,
            behind(&[&metamako(&[5; 8], S, NS)]),
            true,
        ),
        (
            "trailer, then the check sequence",
            Metamako,
            behind(&[&metamako(&[], S, NS), &check]),
            true,
        ),
        (
            "trailer behind padding",
            Metamako,
            behind(&[&[0; 3], &metamako(&[], S, NS)]),
            true,
        ),
        (
            "more than a second",
            Metamako,
            behind(&[&metamako(&[], S, 1_000_000_000)]),
            false,
        ),
        (
            "a month away",
            Metamako,
            behind(&[&metamako(&[], S - 31 * DAY, NS)]),
            false,
        ),
        (
            "part of the payload",
            Metamako,
            plain(&metamako(&[], S, NS)),
            false,
        ),
        ("trailer", Exablaze, behind(&[&exablaze(S, HALF)]), true),
        (
            "trailer, then the check sequence",
            Exablaze,
            behind(&[&exablaze(S, HALF), &check]),
            true,
        ),
        ("no trailer", Exablaze, x.clone(), false),
    ] {
        let file = pcap(&[frame]);
        let at = |capture: &mut Capture| drain(capture).0[0].received_at;
        let recorded = STAMP_NS / 1_000 * 1_000;
        assert_eq!(at(&mut open(&file).unwrap()), recorded, "not asked");
        let mut capture = open(&file).unwrap();
        capture.set_time(time);
        let stamp = u64::from(S) * 1_000_000_000 + u64::from(NS);
        let expected = if is_stamped { stamp } else { recorded };
        assert_eq!(at(&mut capture), expected, "{time}: {name}");
        assert_eq!(capture.stats().unstamped, u64::from(!is_stamped), "{name}");
        assert_eq!(capture.notes().is_empty(), is_stamped, "{name}");
        assert!(capture.faults().is_empty(), "{name}");
    }
}

#[test]
fn trailer_before_a_check_sequence_has_the_nearer_time() {
    let seconds = (STAMP_NS / 1_000_000_000) as u32 + 1;
    // Without the check sequence, the fraction would be seconds of yesterday.
    let fraction = seconds - 86_400;
    let frame = [&plain(b"x")[..], &exablaze(seconds, fraction), &[7; 4]].concat();
    let mut capture = open(&pcap(&[frame])).unwrap();
    capture.set_time(PacketTime::Exablaze);
    let ns = (u64::from(fraction) * 1_000_000_000) >> 32;
    let expected = u64::from(seconds) * 1_000_000_000 + ns;
    assert_eq!(drain(&mut capture).0[0].received_at, expected);
}

#[test]
fn record_without_time_takes_no_trailer_but_a_long_header() {
    let seconds = (STAMP_NS / 1_000_000_000) as u32;
    let (ip, bytes) = (ipv4(17, 0, &udp(b"x")), seconds.to_be_bytes());
    let stamp = u64::from(seconds) * 1_000_000_000 + 500_000_000;
    let trailer = [plain(b"x"), metamako(&[], seconds, 0)].concat();
    for (time, frame, expected) in [
        (PacketTime::Metamako, trailer, 0),
        (PacketTime::Arista, arista(0x0120, &bytes[2..], &ip), 0),
        (PacketTime::Arista, arista(0x0110, &bytes, &ip), stamp),
    ] {
        let record = enhanced(Order::Little, 0, 0, &frame, frame.len());
        let head = [
            section(Order::Little),
            interface(Order::Little, 1, &[(9, &[9])]),
        ];
        let mut capture = open(&[head.concat(), record].concat()).unwrap();
        capture.set_time(time);
        assert_eq!(drain(&mut capture).0[0].received_at, expected, "{time}");
        let unstamped = u64::from(expected == 0);
        assert_eq!(capture.stats().unstamped, unstamped, "{time}");
    }
}

#[test]
fn fragment_has_the_stamp_behind_it() {
    let whole = udp(b"01234567abcd");
    let (first, last) = whole.split_at(16);
    let stamps = [1_u32, 2].map(|s| metamako(&[], (STAMP_NS / 1_000_000_000) as u32 + s, 0));
    let frames = [
        [
            ethernet(&[], 0x0800, &ipv4(17, 0x2000, first)),
            stamps[0].clone(),
        ]
        .concat(),
        [ethernet(&[], 0x0800, &ipv4(17, 2, last)), stamps[1].clone()].concat(),
    ];
    let mut capture = open(&pcap(&frames)).unwrap();
    capture.set_time(PacketTime::Metamako);
    let (all, _) = drain(&mut capture);
    let expected = (STAMP_NS / 1_000_000_000 + 2) * 1_000_000_000;
    assert_eq!((all.len(), all[0].received_at), (1, expected));
    assert_eq!(capture.stats().unstamped, 0);
}

#[test]
fn fragments_become_one_datagram_in_any_order() {
    let whole = udp(&[7; 100]);
    let part = |from: usize, to: usize| {
        let more = u16::from(to < whole.len()) << 13;
        ethernet(
            &[],
            0x0800,
            &ipv4(17, more | (from / 8) as u16, &whole[from..to]),
        )
    };
    let parts = [part(0, 40), part(40, 80), part(80, 108)];
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
        let frames = order.map(|n: usize| parts[n].clone());
        let (all, stats) = read(&pcap(&frames));
        assert_eq!(all.len(), 1, "{order:?}");
        assert_eq!(
            (&all[0].payload[..], all[0].original_len),
            (&[7; 100][..], 100)
        );
        assert_eq!(all[0].ends.1, "233.215.21.3:10378".parse().unwrap());
        assert_eq!(frames_of(&stats, Reason::Datagram), 3);
    }
    let (all, stats) = read(&pcap(&[
        parts[0].clone(),
        parts[0].clone(),
        parts[2].clone(),
    ]));
    assert_eq!((all.len(), frames_of(&stats, Reason::Fragment)), (0, 3));
}

/// Frames of a packet in fragments of at most 40 bytes.
fn fragments(protocol: u8, body: &[u8]) -> Vec<Vec<u8>> {
    let parts = body.chunks(40).enumerate().map(|(n, part)| {
        let more = u16::from((n + 1) * 40 < body.len()) << 13;
        ethernet(&[], 0x0800, &ipv4(protocol, more | (n * 5) as u16, part))
    });
    parts.collect()
}

#[test]
fn fragments_of_a_tunnel_lead_to_its_datagram() {
    let payload = [7; 60];
    let ip = ipv4(17, 0, &udp(&payload));
    let inner = plain(&payload);
    let gre = |kind: u16, fields: &[u8], inner: &[u8]| {
        let flags: u16 = if fields.is_empty() { 0 } else { 0x1000 };
        [&flags.to_be_bytes()[..], &kind.to_be_bytes(), fields, inner].concat()
    };
    let label = [0, 6, 0x41, 0xff];
    for (name, protocol, body) in [
        ("VXLAN", 17, vxlan([8, 0, 0, 0], &inner)),
        ("VXLAN with a policy", 17, vxlan([0x88, 0, 0, 7], &inner)),
        ("GRE", 47, gre(0x0800, &[], &ip)),
        ("ERSPAN II", 47, gre(0x88be, &[0; 12], &inner)),
        ("ERSPAN III", 47, gre(0x22eb, &[0; 16], &inner)),
        ("IP in IP", 4, ip.clone()),
        ("IPv6 in IP", 41, ipv6(17, &udp(&payload))),
        ("MPLS in IP", 137, [&label[..], &ip].concat()),
    ] {
        let mut frames = fragments(protocol, &body);
        for _ in 0..2 {
            let mut capture = open(&pcap(&frames)).unwrap();
            let (all, error) = drain(&mut capture);
            let all: Vec<_> = all.into_iter().map(|read| read.payload).collect();
            assert_eq!(
                (all, error.is_none()),
                (vec![payload.to_vec()], true),
                "{name}"
            );
            assert!(capture.faults().is_empty(), "{name}");
            let of_feed = frames_of(capture.stats(), Reason::Datagram);
            assert_eq!(of_feed, frames.len() as u64, "{name}");
            frames.reverse();
        }
        frames.pop();
        let (all, stats) = read(&pcap(&frames));
        let waiting = frames_of(&stats, Reason::Fragment);
        assert_eq!((all.len(), waiting), (0, frames.len() as u64), "{name}");
    }
}

/// The fragment header of IPv6 precedes the options of the packet that is divided.
#[test]
fn ipv6_fragments_of_a_tunnel_lead_to_its_datagram() {
    let ip = ipv4(17, 0, &udp(b"payload"));
    for (next, body) in [
        (4, ip.clone()),
        (60, [&[4, 0, 1, 4, 0, 0, 0, 0][..], &ip].concat()),
    ] {
        let part = |from: usize, to: usize| {
            let flags = from as u16 | u16::from(to < body.len());
            let head = [&[next, 0][..], &flags.to_be_bytes(), &[0, 0, 0, 1]].concat();
            ethernet(
                &[],
                0x86dd,
                &ipv6(44, &[&head[..], &body[from..to]].concat()),
            )
        };
        let frames = [part(0, 16), part(16, body.len())];
        let (all, stats) = read(&pcap(&frames));
        assert_eq!(all.len(), 1, "{next}");
        assert_eq!(all[0].payload, b"payload");
        assert_eq!(frames_of(&stats, Reason::Datagram), 2);
    }
}

#[test]
fn fragments_within_fragments_become_one_datagram() {
    let payload = [7; 200];
    let inner: Vec<_> = udp(&payload).chunks(104).map(<[u8]>::to_vec).collect();
    let inner = [ipv4(17, 0x2000, &inner[0]), ipv4(17, 13, &inner[1])];
    // Each of the two has an IP id of its own.
    let mut frames = fragments(4, &inner[0]);
    let mut second = fragments(4, &inner[1]);
    second.iter_mut().for_each(|frame| frame[19] = 2);
    frames.extend(second);
    let (all, stats) = read(&pcap(&frames));
    assert_eq!(all.len(), 1);
    assert_eq!(all[0].payload, payload);
    let row = stats.account.of(Reason::Datagram);
    assert_eq!(row.frames, frames.len() as u64);
    assert_eq!(stats.account.total().bytes, pcap(&frames).len() as u64);
    let (all, stats) = read(&pcap(&frames[..frames.len() - 1]));
    let waiting = frames_of(&stats, Reason::Fragment);
    assert_eq!((all.len(), waiting), (0, frames.len() as u64 - 1));
}

#[test]
fn fragments_of_unread_content_are_named_by_it() {
    let of_gre = |kind: u16| [&[0, 0][..], &kind.to_be_bytes(), &[0; 60]].concat();
    for (protocol, body, name) in [
        (47, of_gre(0x8864), "2 frames of EtherType 0x8864"),
        (50, vec![0; 60], "2 frames of IP protocol 50 (ESP)"),
    ] {
        let mut capture = open(&pcap(&fragments(protocol, &body))).unwrap();
        drain(&mut capture);
        let faults = capture.faults();
        assert_eq!(faults.len(), 1, "{faults:?}");
        assert!(faults[0].starts_with(name), "{faults:?}");
    }
}

#[test]
fn another_file_behind_the_first_is_read_too() {
    let one = pcap(&[plain(b"one")]);
    let two = pcap_of(Order::Big, 1, ETHERNET, &[plain(b"two")]);
    let three = pcapng(Order::Little, &[plain(b"three")]);
    for files in [[&one, &two, &three], [&three, &one, &two]] {
        let bytes = files.map(Vec::as_slice).concat();
        let given = payloads(&bytes);
        assert_eq!(given.len(), 3, "{given:?}");
        let begins: Vec<_> = findings(&bytes);
        let (at, then) = (
            files[0].len() as u64,
            (files[0].len() + files[1].len()) as u64,
        );
        assert_eq!(
            begins,
            [at, then].map(|at| CaptureFinding::AnotherFile { at })
        );
    }
}

/// In 2055, the seconds of a record are the first bytes of a file.
#[test]
fn record_with_the_time_of_a_file_header_is_no_file() {
    for order in [Order::Little, Order::Big] {
        let mut bytes = pcap_of(order, 1_000, ETHERNET, &[]);
        for frame in [plain(b"one"), plain(b"two")] {
            let mut record = pcap_record(order, 1_000, &frame, frame.len());
            record[..4].copy_from_slice(&order.u32(0xa1b2_c3d4));
            bytes.extend(record);
        }
        assert_eq!(payloads(&bytes).len(), 2);
        assert_eq!(findings(&bytes), []);
    }
}

#[test]
fn empty_files_between_others_are_harmless() {
    let big = |frames: &[Vec<u8>]| pcap_of(Order::Big, 1_000, 1, frames);
    let little = |frames: &[Vec<u8>]| pcap_of(Order::Little, 1_000, 1, frames);
    let ng = |frames: &[Vec<u8>]| pcapng(Order::Little, frames);
    let (a, b) = (
        [plain(b"one"), plain(b"two")],
        [plain(b"three"), plain(b"four")],
    );
    let empties = [
        little(&[]),
        big(&[]),
        [big(&[]), little(&[])].concat(),
        ng(&[]),
    ];
    for empty in empties {
        for last in [little(&b), big(&b), ng(&b)] {
            for files in [
                [&little(&a)[..], &empty, &last],
                [&ng(&a), &empty, &last],
                [&empty, &little(&a), &last],
            ] {
                let bytes = files.concat();
                let (packets, stats) = read(&bytes);
                assert_eq!(packets.len(), 4, "{files:02x?}");
                let damaged = stats
                    .account
                    .class(tickcast_feeds::capture::account::Class::Damaged);
                assert_eq!(damaged.bytes, 0, "{files:02x?}");
                assert_eq!(stats.account.total().bytes, bytes.len() as u64);
            }
        }
    }
}

#[test]
fn zeros_between_records_are_no_frames() {
    for zeros in [16, 32, 40] {
        let mut bytes = [pcap(&[plain(b"one")]), vec![0; zeros]].concat();
        for name in [b"two", b"six", b"ten"] {
            let frame = plain(name);
            bytes.extend(pcap_record(Order::Little, 1_000, &frame, frame.len()));
        }
        let (all, stats) = read(&bytes);
        assert_eq!((all.len(), stats.frames), (4, 4), "{zeros}");
    }
}

#[test]
fn zeros_behind_a_capture_are_padding() {
    for file in [
        pcap(&[plain(b"one")]),
        pcapng(Order::Little, &[plain(b"one")]),
    ] {
        let (all, stats) = read(&[&file[..], &[0; 5_000]].concat());
        assert_eq!((all.len(), stats.truncated), (1, 0));
        assert_eq!(stats.account.of(Reason::Padding).bytes, 5_000);
    }
}

#[test]
fn wrong_fractions_and_jumps_are_findings() {
    let record = |s: u32, fraction: u32| {
        let frame = plain(b"x");
        let mut record = pcap_record(Order::Little, 1_000, &frame, frame.len());
        record[..4].copy_from_slice(&s.to_le_bytes());
        record[4..8].copy_from_slice(&fraction.to_le_bytes());
        record
    };
    let start = pcap(&[]);
    let len = record(0, 0).len() as u64;
    let at = |n: u64| start.len() as u64 + n * len;
    let records = [
        record(500, 1),
        record(500, 1_000_001),
        record(600, 0),
        record(500, 0),
    ];
    let found = findings(&[&start[..], &records.concat()].concat());
    let expected = [
        CaptureFinding::Fraction {
            at: at(1),
            ns: 1_000_001_000,
        },
        CaptureFinding::Jump {
            at: at(2),
            by: Nanos(98_999_999_000),
        },
        CaptureFinding::StepBack {
            steps: 1,
            at: at(3),
            by: Nanos::from_secs(100),
        },
    ];
    assert_eq!(found, expected);
}

#[test]
fn frames_without_time_among_others_are_a_finding() {
    let record = |s: u32| {
        let frame = plain(b"x");
        let mut record = pcap_record(Order::Little, 1_000, &frame, frame.len());
        record[..4].copy_from_slice(&s.to_le_bytes());
        record[4..8].fill(0);
        record
    };
    let len = record(0).len() as u64;
    for (stamps, first) in [
        (&[0, 500, 501][..], Some(0)),
        (&[500, 0, 0, 501], Some(1)),
        (&[0, 0, 500, 0], Some(0)),
        (&[0, 0], None),
        (&[500, 501], None),
    ] {
        let records: Vec<_> = stamps.iter().flat_map(|s| record(*s)).collect();
        let file = [pcap(&[]), records].concat();
        let expected = first.map(|n: u64| CaptureFinding::NoTime { at: 24 + n * len });
        assert_eq!(findings(&file), Vec::from_iter(expected), "{stamps:?}");
        let mut capture = open(&file).unwrap();
        drain(&mut capture);
        let lines = (capture.notes().len(), capture.faults().len());
        assert_eq!(lines, (usize::from(first.is_some()), 0));
    }
}

#[test]
fn ipv6_extension_headers_are_skipped() {
    let udp = udp(b"six");
    let options = [&[17, 0, 0, 0, 0, 0, 0, 0][..], &udp].concat();
    let long = [&[60, 1][..], &[0; 14], &options].concat();
    let whole = [&[17, 0, 0, 0, 0, 0, 0, 1][..], &udp].concat();
    let authenticated = [&[17, 1][..], &[0; 10], &udp].concat();
    let part = [&[17, 0, 0, 1, 0, 0, 0, 1][..], &udp].concat();
    let frames = [
        (0, long),
        (44, whole),
        (51, authenticated),
        (44, part),
        (58, udp),
    ];
    let frames = frames.map(|(next, body)| ethernet(&[], 0x86dd, &ipv6(next, &body)));
    let (all, stats) = read(&pcap(&frames));
    assert_eq!(all.len(), 3);
    assert!(all.iter().all(|r| r.payload == b"six"));
    assert_eq!(frames_of(&stats, Reason::Fragment), 1);
    assert_eq!(frames_of(&stats, Reason::GroupControl), 1);
}

#[test]
fn incomplete_or_non_udp_frame_is_counted_by_reason() {
    let datagram = udp(b"x");
    let mut short_udp = datagram.clone();
    short_udp[5] = 7;
    let mut long_udp = datagram.clone();
    long_udp[5] = 200;
    let mut header_len = ipv4(17, 0, &datagram);
    header_len[0] = 0x44;
    let frames = [
        ethernet(&[], 0x0806, &[0; 28]),
        ethernet(&[0x8100], 0x1234, &[0; 28]),
        ethernet(&[], 0x0800, &ipv4(6, 0, &[0; 20])),
        ethernet(&[], 0x0800, &ipv4(17, 0x2000, &datagram)),
        ethernet(&[], 0x0800, &ipv4(17, 7, &datagram)),
        ethernet(&[], 0x0800, &ipv4(17, 0, &short_udp)),
        ethernet(&[], 0x0800, &ipv4(17, 0, &long_udp)),
        ethernet(&[], 0x0800, &header_len),
        ethernet(&[], 0x0800, &[]),
        vec![],
        plain(b"good"),
    ];
    let (all, stats) = read(&pcap(&frames));
    assert_eq!(all.len(), 1);
    let counted: Vec<_> = (stats.account.rows())
        .filter(|(_, row)| row.frames > 0)
        .map(|(reason, row)| (reason, row.frames))
        .collect();
    let expected = [
        (Reason::Datagram, 1),
        (Reason::Arp, 1),
        (Reason::Tcp, 1),
        (Reason::OtherEtherType, 1),
        (Reason::Malformed, 5),
        (Reason::Fragment, 2),
    ];
    assert_eq!(counted, expected);
}

#[test]
fn padding_of_a_short_frame_is_no_payload() {
    let mut frame = plain(b"x");
    frame.resize(60, 0xee);
    assert_eq!(payloads(&pcap(&[frame])), [b"x"]);
}

#[test]
fn dont_fragment_flag_is_not_a_fragment() {
    let frame = ethernet(&[], 0x0800, &ipv4(17, 0x4000, &udp(b"x")));
    assert_eq!(payloads(&pcap(&[frame])), [b"x"]);
}

#[test]
fn snapped_packet_is_delivered_and_flagged() {
    let frame = plain(b"0123456789");
    let snapped = &frame[..frame.len() - 4];
    let order = Order::Little;
    let mut ng = pcapng(order, &[]);
    ng.extend(enhanced(order, 0, 1, snapped, frame.len()));
    let mut classic = pcap(&[]);
    classic.extend(pcap_record(order, 1_000, snapped, frame.len()));
    for bytes in [classic, ng] {
        let (all, stats) = read(&bytes);
        assert_eq!(all[0].payload, b"012345");
        assert_eq!(all[0].original_len, 10);
        assert_eq!((stats.datagrams, stats.snapped), (1, 1));
        let mut capture = open(&bytes).unwrap();
        assert!(capture.next().unwrap().unwrap().is_snapped());
    }
    assert_eq!(read(&pcap(&[frame])).1.snapped, 0);
}

#[test]
fn cut_file_ends_there_and_counts_truncation() {
    let frames = [plain(b"one"), plain(b"two"), plain(b"three")];
    for file in [
        pcap(&frames),
        pcapng(Order::Little, &frames),
        pcapng(Order::Big, &frames),
    ] {
        let mut lens = Vec::new();
        for len in 4..=file.len() {
            let (all, stats) = read(&file[..len]);
            lens.push((all.len(), stats.truncated));
            assert!(stats.truncated <= 1);
        }
        assert!(lens.is_sorted_by_key(|(n, _)| *n), "never less from more");
        let whole = lens.iter().filter(|(_, truncated)| *truncated == 0);
        // pcap: after its header and each record; pcapng: after each of its five blocks.
        let is_pcapng = file.starts_with(&[0x0a]);
        assert_eq!(whole.count(), if is_pcapng { 5 } else { 4 });
        assert_eq!(lens.last(), Some(&(3, 0)));
    }
}

#[test]
fn broken_gzip_gives_content_and_is_truncated() {
    let frames: Vec<_> = (0..200_u32)
        .map(|n| plain(&n.wrapping_mul(0x9e37_79b9).to_le_bytes().repeat(8)))
        .collect();
    let file = gzip(&pcap(&frames));
    let (all, stats) = read(&file[..file.len() / 2]);
    assert!(!all.is_empty() && all.len() < 200, "{}", all.len());
    assert_eq!(stats.truncated, 1);
    let (all, stats) = read(&file[..file.len() - 1]);
    assert_eq!(
        (all.len(), stats.truncated),
        (200, 1),
        "only the trailer is cut"
    );
}

#[test]
fn several_gzip_members_are_one_file() {
    let file = pcap(&[plain(b"one"), plain(b"two")]);
    let (a, b) = file.split_at(30);
    assert_eq!(payloads(&[gzip(a), gzip(b)].concat()), [b"one", b"two"]);
}

#[test]
fn corrupt_gzip_stream_is_reported_as_damaged() {
    let mut file = gzip(&pcap(&[plain(b"one")]));
    let crc = file.len() - 8;
    file[crc] ^= 1;
    let error = fault(&file);
    assert!(matches!(error, CaptureError::Damaged { .. }), "{error:?}");
    assert!(error.to_string().contains("gzip"), "{error}");
}

/// The bytes that the findings say were skipped.
fn skipped(bytes: &[u8]) -> Vec<(u64, u64)> {
    let found = findings(bytes).into_iter();
    let ranges = found.map(|finding| match finding {
        CaptureFinding::Skipped { from, to } => (from, to),
        other => panic!("{other}"),
    });
    ranges.collect()
}

#[test]
fn absurd_length_costs_one_record_and_no_memory() {
    let start = pcap(&[plain(b"one")]);
    let mut record = pcap_record(Order::Little, 1_000, b"", 0);
    record[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
    let end = [plain(b"two"), plain(b"three")]
        .map(|frame| pcap_record(Order::Little, 1_000, &frame, frame.len()));
    let bytes = [&start[..], &record, &end.concat()].concat();
    assert_eq!(payloads(&bytes), [&b"one"[..], b"two", b"three"]);
    let from = start.len() as u64;
    assert_eq!(skipped(&bytes), [(from, from + record.len() as u64)]);

    let start = pcapng(Order::Little, &[plain(b"one")]);
    let mut huge = block(Order::Little, 6, &[0; 20]);
    let two = enhanced(Order::Little, 0, STAMP_NS, &plain(b"two"), 45);
    for len in [0xffff_fff0_u32, 3, 40_000] {
        huge[4..8].copy_from_slice(&len.to_le_bytes());
        let bytes = [&start[..], &huge, &two].concat();
        assert_eq!(payloads(&bytes), [b"one", b"two"], "{len}");
        let from = start.len() as u64;
        assert_eq!(skipped(&bytes), [(from, from + huge.len() as u64)], "{len}");
    }
}

#[test]
fn pcapng_nonsense_costs_its_block_only() {
    let one = [plain(b"one")];
    let mut order = pcapng(Order::Little, &one);
    order[8] = 0;
    assert_eq!(skipped(&order)[0].0, 0, "no byte order mark");
    let mut caplen = pcapng(Order::Little, &one);
    let at = section(Order::Little).len() + interface(Order::Little, 1, &[(9, &[9])]).len() + 20;
    caplen[at..at + 4].copy_from_slice(&5_000_u32.to_le_bytes());
    caplen.extend(enhanced(Order::Little, 0, STAMP_NS, &plain(b"two"), 45));
    let (all, stats) = read(&caplen);
    assert_eq!((all.len(), frames_of(&stats, Reason::Malformed)), (1, 1));
    let many = interface(Order::Little, 1, &[]).repeat(5_000);
    let (_, stats) = read(&[section(Order::Little), many].concat());
    assert_eq!(frames_of(&stats, Reason::Malformed), 5_000 - 4_096);
}

#[test]
fn block_of_no_registered_type_is_named() {
    for order in [Order::Little, Order::Big] {
        let packet = enhanced(order, 0, STAMP_NS, &plain(b"two"), 45);
        let body = &packet[8..packet.len() - 4];
        let start = pcapng(order, &[plain(b"one")]);
        // The last three are registered, but hold the fields of a packet.
        for kind in [
            0,
            0x4006,
            0x8000_0006,
            0x0a0d_0a06,
            0x100,
            0x222,
            4,
            7,
            0x201,
        ] {
            let damaged = block(order, kind, body);
            let bytes = [
                &start[..],
                &damaged,
                &enhanced(order, 0, STAMP_NS, &plain(b"three"), 47),
            ]
            .concat();
            let mut capture = open(&bytes).unwrap();
            let (all, error) = drain(&mut capture);
            assert!(error.is_none());
            assert_eq!(all.len(), 2, "{kind:#x}");
            let skipped = capture.stats().account.of(Reason::Skipped).bytes;
            assert_eq!(skipped, damaged.len() as u64, "{kind:#x}");
            let at = start.len() as u64;
            let finding = CaptureFinding::UnknownBlock { kind, at };
            assert_eq!(capture.findings().kept()[0], finding);
            assert!(capture.faults()[0].contains(&format!("{kind:#x}")));
        }
    }
}

/// Without such an interface, the fields of a packet are something else.
#[test]
fn registered_block_of_no_interface_is_harmless() {
    for order in [Order::Little, Order::Big] {
        for (interface, is_harmless) in [(0, false), (1, true)] {
            let packet = enhanced(order, interface, STAMP_NS, &plain(b"two"), 45);
            let registered = block(order, 7, &packet[8..packet.len() - 4]);
            let bytes = [pcapng(order, &[plain(b"one")]), registered].concat();
            assert_eq!(findings(&bytes).is_empty(), is_harmless, "{interface}");
        }
    }
}

#[test]
fn long_block_of_no_registered_type_is_named() {
    let order = Order::Little;
    let start = pcapng(order, &[plain(b"one")]);
    let long = block(order, 0x4006, &vec![7; 3 << 20]);
    let bytes = [
        &start[..],
        &long,
        &enhanced(order, 0, STAMP_NS, &plain(b"two"), 45),
    ]
    .concat();
    let (all, stats) = read(&bytes);
    let skipped = stats.account.of(Reason::Skipped).bytes;
    assert_eq!((all.len(), skipped), (2, long.len() as u64));
    let (kind, at) = (0x4006, start.len() as u64);
    assert_eq!(
        findings(&bytes),
        [CaptureFinding::UnknownBlock { kind, at }]
    );
}

/// Each has the body that its specification gives it.
#[test]
fn block_of_a_registered_type_is_harmless() {
    for order in [Order::Little, Order::Big] {
        let words = |all: &[u32]| all.iter().flat_map(|n| order.u32(*n)).collect::<Vec<_>>();
        let name = [
            &order.u16(1)[..],
            &order.u16(8),
            b"\x0a\0\0\x01abc\0",
            &[0; 4],
        ]
        .concat();
        let mut statistics = words(&[0, 1, 2]);
        statistics.extend([&order.u16(4)[..], &order.u16(8), &[0; 8], &[0; 4]].concat());
        let secrets = [words(&[0x544c_534b, 8]), b"CLIENT_R".to_vec()].concat();
        let custom = [words(&[32_473]), vec![0; 40]].concat();
        let mut bytes = pcapng(order, &[plain(b"one")]);
        for (kind, body) in [
            (4, name),
            (5, statistics),
            (5, words(&[0, 1, 2])),
            (7, words(&[1, 2, 3])),
            (8, words(&[1, 2, 3])),
            (9, b"__REALTIME_TIMESTAMP=1\n".to_vec()),
            (10, secrets),
            (0x0bad, custom.clone()),
            (0x4000_0bad, custom),
            (0x101, vec![9; 40]),
            (0x102, vec![9; 40]),
            (0x201, vec![9; 40]),
            (0x221, vec![9; 40]),
            (0x8000_0001, vec![9; 40]),
        ] {
            bytes.extend(block(order, kind, &body));
        }
        assert_eq!(findings(&bytes), []);
        assert_eq!(read(&bytes).1.account.of(Reason::Skipped).bytes, 0);
    }
}

#[test]
fn unknown_link_is_counted_and_a_finding() {
    let only = pcap_of(Order::Little, 1_000, 147, &[plain(b"x")]);
    let (all, stats) = read(&only);
    assert_eq!((all.len(), frames_of(&stats, Reason::UnknownLink)), (0, 1));
    let found = findings(&only);
    assert!(matches!(
        found[..],
        [CaptureFinding::UnknownLink { link: 147, .. }]
    ));
    let first = pcap(&[plain(b"one")]);
    let second = pcap_of(Order::Big, 1, 147, &[plain(b"two")]);
    let (all, stats) = read(&[first, second].concat());
    assert_eq!((all.len(), frames_of(&stats, Reason::UnknownLink)), (1, 1));
    let order = Order::Little;
    let mut bytes = [section(order), interface(order, 147, &[])].concat();
    bytes.extend(enhanced(order, 0, 1, &plain(b"x"), 43));
    let (all, stats) = read(&bytes);
    assert_eq!((all.len(), frames_of(&stats, Reason::UnknownLink)), (0, 1));
}

#[test]
fn damaged_record_costs_at_most_itself() {
    let frames: Vec<_> = (0..12_u8)
        .map(|n| plain(&vec![n; 20 + usize::from(n)]))
        .collect();
    let files = [
        pcap(&frames),
        pcap_of(Order::Big, 1, ETHERNET, &frames),
        pcapng(Order::Little, &frames),
        pcapng(Order::Big, &frames),
    ];
    for file in files {
        let whole = payloads(&file);
        let record_len = |n: usize| {
            let frame = frames[n].len();
            let is_pcapng = file.starts_with(&[0x0a]);
            if is_pcapng {
                32 + frame.next_multiple_of(4)
            } else {
                16 + frame
            }
        };
        let all: usize = (0..12).map(record_len).sum();
        let mut at = file.len() - all;
        for n in 0..12 {
            let len = record_len(n);
            for offset in 0..len {
                for damage in [0x00, 0x01, 0x80, 0xff] {
                    let mut bytes = file.clone();
                    bytes[at + offset] = if damage == 1 {
                        bytes[at + offset] ^ 1
                    } else {
                        damage
                    };
                    check_cost(&bytes, &whole, n, &format!("record {n}, byte {offset}"));
                }
            }
            for fill in [0x00, 0xff] {
                let mut bytes = file.clone();
                bytes[at..at + len].fill(fill);
                check_cost(&bytes, &whole, n, &format!("record {n} filled with {fill}"));
            }
            let mut bytes = file.clone();
            bytes.remove(at + len / 2);
            check_cost(&bytes, &whole, n, &format!("record {n} lacks a byte"));
            at += len;
        }
    }
}

/// A payload of small numbers and zeros, which look like the lengths of a record.
fn numbers(n: u32) -> Vec<u8> {
    let words = (0..14).map(|word| [0, n % 7, word + n, 60 + word][word as usize % 4]);
    words.flat_map(u32::to_be_bytes).collect()
}

#[test]
fn damaged_bit_of_a_pcap_header_costs_one_record() {
    let frames: Vec<_> = (0..40).map(|n| plain(&numbers(n))).collect();
    let len = 16 + frames[0].len();
    for order in [Order::Little, Order::Big] {
        let file = pcap_of(order, 1_000, ETHERNET, &frames);
        let whole = payloads(&file);
        for n in 0..frames.len() {
            for bit in 0..16 * 8 {
                let mut bytes = file.clone();
                bytes[24 + n * len + bit / 8] ^= 1 << (bit % 8);
                check_cost(&bytes, &whole, n, &format!("record {n}, bit {bit}"));
            }
        }
    }
}

#[test]
fn shortened_length_is_reported_and_later_times_hold() {
    let frames: Vec<_> = (0..40).map(|n| plain(&numbers(n))).collect();
    let len = 16 + frames[0].len();
    let mut bytes = pcap(&frames);
    let at = 24 + 10 * len;
    bytes[at + 8] = 68;
    // Just behind the true packet's beginning, a header that nothing confirms, of another time.
    let false_header = [1_u32, 2, 20, 20].map(u32::to_le_bytes).concat();
    bytes[at + 16 + 68..at + 32 + 68].copy_from_slice(&false_header);
    let given = payloads(&bytes);
    assert_eq!(given.len(), 39);
    assert_eq!(given[10], numbers(11));
    assert_eq!(skipped(&bytes), [(at as u64, (at + len) as u64)]);
}

#[test]
fn damage_before_two_records_and_a_cut_one_costs_itself() {
    let payload = |n: u8| vec![b'a' + n; 50];
    let frames: Vec<_> = (0..6).map(|n| plain(&payload(n))).collect();
    let len = 16 + frames[0].len();
    let whole = pcap(&frames);
    for cut in [1, 9, 15, 16, 40] {
        let mut bytes = whole[..24 + 5 * len + cut].to_vec();
        bytes[24 + 2 * len..24 + 3 * len].fill(0xff);
        let (all, stats) = read(&bytes);
        let given: Vec<_> = all.into_iter().map(|it| it.payload).collect();
        assert_eq!(given, [0, 1, 3, 4].map(payload), "{cut}");
        assert_eq!(stats.truncated, 1);
    }
}

#[test]
fn damage_before_another_file_costs_itself() {
    let first = pcap(&[plain(b"one"), plain(b"two")]);
    let len = 16 + plain(b"two").len();
    let second = pcap(&[plain(b"three")]);
    let mut bytes = [&first[..], &second].concat();
    bytes[first.len() - len..first.len()].fill(0xff);
    let (all, stats) = read(&bytes);
    let given: Vec<_> = all.into_iter().map(|it| it.payload).collect();
    assert_eq!(given, [&b"one"[..], b"three"]);
    assert_eq!(stats.account.of(Reason::Skipped).bytes, len as u64);
}

#[test]
fn damage_before_a_pause_of_days_costs_one_record() {
    let frames: Vec<_> = (0..40).map(|n| plain(&numbers(n))).collect();
    let len = 16 + frames[0].len();
    let mut file = pcap(&frames);
    for n in 20..40 {
        let at = 24 + n * len;
        let seconds = (STAMP_NS / 1_000_000_000) as u32 + 3 * 86_400;
        file[at..at + 4].copy_from_slice(&seconds.to_le_bytes());
    }
    let whole = payloads(&file);
    assert_eq!(whole.len(), 40);
    for n in 17..24 {
        for length in [8_u8, 68, 255] {
            let mut bytes = file.clone();
            bytes[24 + n * len + 8] = length;
            check_cost(&bytes, &whole, n, &format!("record {n}, length {length}"));
        }
    }
}

/// Asserts that all payloads but the `n`-th are given, in order, and the account is balanced.
fn check_cost(bytes: &[u8], whole: &[Vec<u8>], n: usize, case: &str) {
    let (all, stats) = read(bytes);
    let others = |i: &usize| *i != n;
    let expected: Vec<_> = (0..whole.len()).filter(others).map(|i| &whole[i]).collect();
    let mut gave = all.iter().map(|r| &r.payload).peekable();
    for payload in expected {
        if gave.peek() != Some(&payload) {
            gave.next();
        }
        assert_eq!(gave.next(), Some(payload), "{case}: {stats:?}");
    }
    assert!(gave.count() <= 1, "{case}");
    assert_eq!(stats.account.total().bytes, bytes.len() as u64, "{case}");
}

#[test]
fn unreadable_capture_is_refused_with_specific_error() {
    let dir = std::env::temp_dir().join(format!("tickcast-captures-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let path = dir.join(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    let text = |error: Option<CaptureError>| error.expect("an error").to_string();
    let empty = write("empty.pcap", b"");
    let error = Capture::open(&empty).err();
    assert!(matches!(error, Some(CaptureError::Empty { .. })));
    assert!(text(error).contains("empty.pcap is empty"));

    let error = Capture::open(write("nothing.gz", &gzip(b""))).err();
    assert!(matches!(error, Some(CaptureError::Empty { .. })));

    let error = Capture::open(&dir).err();
    assert!(matches!(error, Some(CaptureError::Directory { .. })));
    assert!(text(error).contains("is a directory"));

    let error = Capture::open(dir.join("missing.pcap")).err();
    assert!(matches!(error, Some(CaptureError::Missing { .. })));
    assert!(text(error).contains("check the path"));

    for (name, bytes) in [
        ("a.pcap", &b"\x00\x0cS\x00\x00\x00"[..]),
        ("b.pcap.gz", &gzip(b"\x00\x0cS\x00\x00\x00")),
        ("c", b"\xd4\xc3"),
    ] {
        let error = Capture::open(write(name, bytes)).err();
        assert!(
            matches!(error, Some(CaptureError::NotACapture { .. })),
            "{name}"
        );
        assert!(text(error).contains("neither pcap nor pcapng"), "{name}");
    }

    let file = pcap(&[plain(b"one")]);
    let mut capture = Capture::open(write("names_do_not_count.txt", &file)).unwrap();
    assert_eq!(capture.size(), Some(file.len() as u64));
    assert_eq!(drain(&mut capture).0.len(), 1);
    assert_eq!(capture.position(), file.len() as u64);
    fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn single_byte_reads_yield_same_capture() {
    struct Slow(Cursor<Vec<u8>>);
    impl std::io::Read for Slow {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            let len = buffer.len().min(1);
            self.0.read(&mut buffer[..len])
        }
    }
    let frames = [plain(b"one"), plain(&[7; 1_400])];
    for file in [
        pcap(&frames),
        pcapng(Order::Big, &frames),
        gzip(&pcap(&frames)),
    ] {
        let mut capture = Capture::from_reader("slow", Slow(Cursor::new(file))).unwrap();
        let (all, error) = drain(&mut capture);
        assert!(error.is_none());
        assert_eq!(all.len(), 2);
        assert_eq!(all[1].payload, [7; 1_400]);
        assert_eq!(capture.stats().truncated, 0);
    }
}

#[test]
fn cme_capture_is_detected_as_pcapng_despite_name() {
    let Some(dir) = data_dir() else { return };
    let mut capture = Capture::open(dir.join("cme-mdp3/Cme.Mdp3.Sbe.v6.1.pcap")).unwrap();
    assert_eq!(capture.format(), CaptureFormat::PcapNg);
    let (all, error) = drain(&mut capture);
    assert!(error.is_none());
    assert_eq!(all.len(), 10_000, "5,000 packets on each of two lines");
    let mut groups: Vec<_> = all.iter().map(|r| r.ends.1).collect();
    groups.sort_unstable();
    groups.dedup();
    assert_eq!(groups.len(), 2);
    assert!(
        all.iter().any(|r| r.received_at % 1_000 != 0),
        "nanosecond stamps"
    );
}

// Any bytes.

fn survives(bytes: &[u8]) {
    if let Ok(mut capture) = open(bytes) {
        drain(&mut capture);
    }
}

proptest! {
    #[test]
    fn arbitrary_capture_bytes_cause_no_panic(bytes in vec(any::<u8>(), 0..300)) {
        survives(&bytes);
        for magic in [&[0xd4, 0xc3, 0xb2, 0xa1][..], &[0xa1, 0xb2, 0x3c, 0x4d]] {
            survives(&[magic, &bytes].concat());
        }
        survives(&[&[0x1f, 0x8b, 8][..], &bytes].concat());
        survives(&[section(Order::Little), bytes.clone()].concat());
        survives(&[section(Order::Big), bytes].concat());
    }

    #[test]
    fn mutated_capture_causes_no_panic(
        form in 0..5_usize,
        edits in vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
        cut in any::<prop::sample::Index>(),
    ) {
        let frames = [
            plain(b"payload"),
            ethernet(&[0x8100], 0x86dd, &ipv6(0, &[&[17, 0, 0, 0, 0, 0, 0, 0][..], &udp(b"v6")].concat())),
            ethernet(&[], 0x0800, &ipv4(17, 0, &udp(&[1; 50]))),
        ];
        let mut bytes = match form {
            0 => pcap(&frames),
            1 => pcap_of(Order::Big, 1, ETHERNET, &frames),
            2 => pcapng(Order::Little, &frames),
            3 => pcapng(Order::Big, &frames),
            _ => gzip(&pcap(&frames)),
        };
        for (at, value) in edits {
            *at.get_mut(&mut bytes[..]) = value;
        }
        survives(&bytes);
        bytes.truncate(cut.index(bytes.len()));
        survives(&bytes);
    }
}
