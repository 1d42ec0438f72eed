//! Files with one fault each, built here byte by byte: its cost is that fault, and one line names it.

use std::io::{Cursor, Write};
use std::path::PathBuf;

use crate::common::data_dir;
use flate2::{Compression, write::GzEncoder};
use tickcast_feeds::capture::Capture;
use tickcast_feeds::capture::account::Reason;
use tickcast_feeds::recording::{Inspection, RecordingError, Selection};
use tickcast_feeds::venues::Settings;
use tickcast_reliability::types::Nanos;

/// 2023-11-14, in seconds.
const DAY_S: u64 = 1_700_000_000;
const NS: u64 = 1_000_000_000;

/// A file that is removed at the end of its test.
struct Written(PathBuf);

impl Drop for Written {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).unwrap();
    }
}

fn written(name: &str, bytes: &[u8]) -> Written {
    let name = format!("tickcast-damage-{}-{name}", std::process::id());
    let path = std::env::temp_dir().join(name);
    std::fs::write(&path, bytes).unwrap();
    Written(path)
}

fn inspected(
    name: &str,
    bytes: &[u8],
    selection: &Selection,
) -> Result<Inspection, RecordingError> {
    let file = written(name, bytes);
    Inspection::of(&[&file.0], selection, None, &Settings::default())
}

fn inspect(name: &str, bytes: &[u8]) -> Inspection {
    inspected(name, bytes, &Selection::default()).unwrap()
}

/// Returns messages and missing ones of the only feed.
fn counts(inspection: &Inspection) -> (u64, u64) {
    let [feed] = &inspection.feeds[..] else {
        panic!("one feed: {:?}", inspection.feeds);
    };
    (feed.messages, feed.missing)
}

/// Returns the IP packet of a datagram to a group.
fn ip(payload: &[u8]) -> Vec<u8> {
    let udp_len = payload.len() as u16 + 8;
    let mut packet = vec![0x45, 0];
    packet.extend((udp_len + 20).to_be_bytes());
    packet.extend([0, 1, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 239, 1, 1, 1]);
    packet.extend([9_u16, 1, udp_len, 0].map(u16::to_be_bytes).concat());
    packet.extend(payload);
    packet
}

/// Returns a pcap of raw IP with a magic number; each packet has seconds and a fraction.
fn pcap_of(magic: u32, packets: impl IntoIterator<Item = (u64, u64, Vec<u8>)>) -> Vec<u8> {
    let header = [magic, 0x0004_0002, 0, 0, 65_535, 101];
    let mut file = header.map(u32::to_le_bytes).concat();
    for (seconds, fraction, packet) in packets {
        let len = packet.len() as u32;
        let head = [seconds as u32, fraction as u32, len, len];
        file.extend(head.map(u32::to_le_bytes).concat());
        file.extend(packet);
    }
    file
}

/// Returns a pcap of microseconds, of datagrams a millisecond apart.
fn pcap(payloads: impl IntoIterator<Item = Vec<u8>>) -> Vec<u8> {
    let packets = payloads.into_iter().zip(0..);
    pcap_of(
        0xa1b2_c3d4,
        packets.map(|(payload, ms)| (DAY_S, ms * 1_000, ip(&payload))),
    )
}

/// Returns a segment of TOPS 1.6 with this many messages from a sequence on.
fn segment(channel: u32, first: u64, messages: u16) -> Vec<u8> {
    let event = [&b"\x0a\0SO"[..], &(DAY_S * NS).to_le_bytes()].concat();
    let mut packet = vec![1, 0, 0x03, 0x80];
    packet.extend(channel.to_le_bytes());
    packet.extend(77_u32.to_le_bytes());
    packet.extend((messages * event.len() as u16).to_le_bytes());
    packet.extend(messages.to_le_bytes());
    packet.extend(0_u64.to_le_bytes());
    packet.extend(first.to_le_bytes());
    packet.extend((DAY_S * NS).to_le_bytes());
    packet.extend(event.repeat(messages.into()));
    packet
}

// Channels of IEX-TP.

#[test]
fn segment_with_a_damaged_channel_costs_itself_only() {
    // The damaged segment is the first, one within, or the last; a heartbeat costs nothing.
    for (damaged, messages, lost) in [(0, 2, 0), (4, 2, 2), (9, 2, 0), (4, 0, 0)] {
        let mut next = 1;
        let segments = (0..10).map(|index| {
            let count = if index == damaged { messages } else { 2 };
            let first = next;
            next += u64::from(count);
            segment(if index == damaged { 9 } else { 1 }, first, count)
        });
        let file = pcap(segments);
        for all_feeds in [false, true] {
            let selection = Selection {
                all_feeds,
                ..Selection::default()
            };
            let inspection = inspected("channel", &file, &selection).unwrap();
            assert_eq!(counts(&inspection), (18, lost), "{damaged}");
            let [fault, ..] = &inspection.faults[..] else {
                panic!("no fault: {damaged}");
            };
            assert!(fault.contains("their channel differs"), "{fault}");
            assert_eq!(inspection.account.of(Reason::OtherFeed).frames, 1);
            assert_eq!(inspection.account.total().bytes, file.len() as u64);
        }
    }
}

#[test]
fn channel_of_its_own_numbers_is_a_second_feed() {
    let first = || (0..10).map(|n| segment(1, 1 + 2 * n, 2));
    let mut other = segment(2, 5, 2);
    other[43] = b'S';
    let few = [
        (vec![other], "other messages under the numbers of the first"),
        (vec![segment(2, 1_000, 2)], "numbers of its own"),
        (
            (0..3).map(|n| segment(2, 21 + 2 * n, 2)).collect(),
            "packets enough",
        ),
    ];
    for (second, case) in few {
        let file = pcap(first().chain(second));
        let error = inspected("second", &file, &Selection::default()).unwrap_err();
        assert!(
            matches!(error, RecordingError::Choice { .. }),
            "{case}: {error}"
        );
    }
}

// Units of time stamps.

/// Returns a block of pcapng.
fn block(kind: u32, body: &[u8]) -> Vec<u8> {
    let padded = body.len().next_multiple_of(4);
    let len = (padded as u32 + 12).to_le_bytes();
    let mut block = [&kind.to_le_bytes()[..], &len, body].concat();
    block.resize(8 + padded, 0);
    block.extend(len);
    block
}

/// Returns a pcapng of raw IP whose interface states a resolution, with a packet at each tick.
fn pcapng(power: u8, ticks: impl IntoIterator<Item = u64>) -> Vec<u8> {
    let section = [
        &0x1a2b_3c4d_u32.to_le_bytes()[..],
        &[1, 0, 0, 0],
        &[0xff; 8],
    ]
    .concat();
    let interface = [
        101, 0, 0, 0, 0, 0, 0, 0, 9, 0, 1, 0, power, 0, 0, 0, 0, 0, 0, 0,
    ];
    let mut file = [block(0x0a0d_0d0a, &section), block(1, &interface)].concat();
    for (number, at) in (1..).zip(ticks) {
        let packet = ip(&mold(number));
        let len = packet.len() as u32;
        let words = [0, (at >> 32) as u32, at as u32, len, len];
        let head = words.map(u32::to_le_bytes).concat();
        file.extend(block(6, &[head, packet].concat()));
    }
    file
}

/// Returns a packet of MoldUDP64 with one system event.
fn mold(sequence: u64) -> Vec<u8> {
    let head = [&b"SESSION001"[..], &sequence.to_be_bytes(), &[0, 1, 0, 12]].concat();
    [&head[..], b"S\0\0\0\0\0\0\0\0\0\0Q"].concat()
}

/// Returns the stamps of a capture, and its notes.
fn stamps(file: &[u8]) -> (Vec<Nanos>, Vec<String>) {
    let mut capture = Capture::from_reader("test", Cursor::new(file.to_vec())).unwrap();
    let mut stamps = Vec::new();
    while let Some(datagram) = capture.next().unwrap() {
        stamps.push(datagram.received_at);
    }
    (stamps, capture.notes())
}

/// Stamps 300 ms apart, in ns.
fn even(count: u64) -> impl Iterator<Item = u64> + Clone {
    (0..count).map(|n| DAY_S * NS + n * 300_000_000)
}

const UNITS: [(u64, &str); 3] = [
    (1_000, "milliseconds"),
    (1_000_000, "microseconds"),
    (NS, "nanoseconds"),
];

#[test]
fn interface_of_another_unit_gives_the_right_times() {
    for (power, (_, stated)) in [3, 6, 9].into_iter().zip(UNITS) {
        for (per_second, held) in UNITS {
            let (found, notes) = stamps(&pcapng(power, even(12).map(|at| at / (NS / per_second))));
            assert!(found.iter().map(|at| at.0).eq(even(12)), "{stated} {held}");
            let text = format!("says {stated}, but its stamps hold {held}");
            match stated == held {
                true => assert_eq!(notes, [""; 0]),
                false => assert!(notes.len() == 1 && notes[0].contains(&text), "{notes:?}"),
            }
        }
    }
}

#[test]
fn stamp_that_is_wrong_changes_no_unit() {
    // The second stamp would be of this year in microseconds.
    let wrong = |n: usize, at: u64| if n == 1 { at / 1_000 } else { at };
    let ticks = even(12).enumerate().map(|(n, at)| wrong(n, at));
    let (found, notes) = stamps(&pcapng(9, ticks.clone()));
    assert!(found.iter().map(|at| at.0).eq(ticks));
    assert!(
        notes.iter().all(|note| !note.contains("stamps hold")),
        "{notes:?}"
    );
}

#[test]
fn stamps_that_no_unit_explains_are_a_note() {
    let (found, notes) = stamps(&pcapng(6, [u64::MAX / 2; 4]));
    assert_eq!(found.len(), 4);
    assert!(
        notes.len() == 1 && notes[0].contains("beyond the year 2100"),
        "{notes:?}"
    );
}

const MAGIC_US: u32 = 0xa1b2_c3d4;
const MAGIC_NS: u32 = 0xa1b2_3c4d;

#[test]
fn pcap_of_another_unit_gives_the_right_times() {
    for (magic, stated) in [(MAGIC_US, UNITS[1]), (MAGIC_NS, UNITS[2])] {
        for (per_second, held) in UNITS {
            let packets = (1..)
                .zip(even(40))
                .map(|(number, at)| (at / NS, at % NS / (NS / per_second), ip(&mold(number))));
            let (found, notes) = stamps(&pcap_of(magic, packets));
            assert!(
                found.iter().map(|at| at.0).eq(even(40)),
                "{} {held}",
                stated.1
            );
            let text = format!("says {}, but its stamps hold {held}", stated.1);
            match stated.1 == held {
                true => assert_eq!(notes, [""; 0]),
                false => assert!(notes.len() == 1 && notes[0].contains(&text), "{notes:?}"),
            }
        }
    }
}

#[test]
fn pcap_of_small_fractions_keeps_its_unit() {
    let file = |count: u64, of: &dyn Fn(u64) -> (u64, u64)| {
        let packets = (1..=count).map(|number| {
            let (seconds, fraction) = of(number);
            (DAY_S + seconds, fraction, ip(&mold(number)))
        });
        stamps(&pcap_of(MAGIC_NS, packets))
    };
    for (count, of, case) in [
        (
            40,
            (&|n: u64| (n, 100_000 + n)) as &dyn Fn(u64) -> (u64, u64),
            "a timer of one second",
        ),
        (40, &|n: u64| (n, 0), "whole seconds"),
        (900, &|n: u64| (0, n * 1_000), "within one millisecond"),
        (40, &|n: u64| (n / 4, n % 4 * 250_000_000), "nanoseconds"),
        (4, &|n: u64| (n, n * 200_000), "few packets"),
    ] {
        let (found, notes) = file(count, of);
        assert_eq!(notes, [""; 0], "{case}");
        let expected = (1..=count).map(of).map(|(s, ns)| (DAY_S + s) * NS + ns);
        assert!(found.iter().map(|at| at.0).eq(expected), "{case}");
    }
}

#[test]
fn unit_of_a_busy_capture_is_found_behind_a_long_second() {
    // More packets a second than are read at once.
    let ats = || (0..8_000).map(|n| DAY_S * NS + n * 500_000);
    let packets = (1..)
        .zip(ats())
        .map(|(number, at)| (at / NS, at % NS / 1_000, ip(&mold(number))));
    let (found, notes) = stamps(&pcap_of(MAGIC_NS, packets));
    assert!(found.iter().map(|at| at.0).eq(ats()), "{notes:?}");
    assert_eq!(notes.len(), 1);
}

// Steps of the clock.

/// Returns the notes of a capture whose stamps are these, in ms.
fn notes_of(stamps_ms: impl IntoIterator<Item = u64>) -> Vec<String> {
    let packets = (1..)
        .zip(stamps_ms)
        .map(|(number, ms)| (DAY_S + ms / 1_000, ms % 1_000 * 1_000, ip(&mold(number))));
    stamps(&pcap_of(MAGIC_US, packets)).1
}

#[test]
fn clock_set_back_is_one_note_with_its_count() {
    for by_ms in [1_100, 5_000, 50_000, 500_000] {
        for steps in [1, 3] {
            let back = |n: u64| (n / 40).min(steps) * by_ms;
            let notes = notes_of((0..200).map(|n| 2_000_000 + n * 10 - back(n)));
            let text = format!("{steps} stamps are more than a second behind");
            assert!(
                notes.len() == 1 && notes[0].contains(&text),
                "{by_ms} {notes:?}"
            );
            let longest = format!("{} ms", by_ms - 10);
            assert!(notes[0].contains(&longest), "{longest}: {notes:?}");
        }
    }
    assert_eq!(
        notes_of((0..200).map(|n| 2_000 + n * 10 - n / 190 * 900)),
        [""; 0],
        "below a second"
    );
}

#[test]
fn descending_stamps_are_one_note() {
    for step_ms in [1, 10, 100] {
        let notes = notes_of((0..33).map(|n| 10_000 - n * step_ms));
        assert!(
            notes.len() == 1 && notes[0].contains("descend"),
            "{step_ms} {notes:?}"
        );
    }
    // A minute each.
    let notes = notes_of((0..33).map(|n| 33 * 60_001 - n * 60_001));
    assert!(
        notes[0].contains("32 stamps are more than a second behind"),
        "{notes:?}"
    );
}

#[test]
fn stamps_far_behind_the_newest_are_one_note() {
    // A half, and a twentieth, of the packets have a clock that is 400 ms behind.
    for (every, is_told) in [(2, true), (5, true), (20, false)] {
        let ms = |n: u64| 10_000 + n - if n.is_multiple_of(every) { 400 } else { 0 };
        let notes = notes_of((0..400).map(ms));
        assert_eq!(notes.len(), usize::from(is_told), "{every} {notes:?}");
        let is_about = |note: &String| note.contains("behind the newest one before");
        assert!(notes.iter().all(is_about), "{notes:?}");
    }
}

#[test]
fn queues_of_one_card_that_are_read_in_turn_are_no_note() {
    // Each of eight queues gives 16 packets of the same 96 ms.
    let turn = |n: u64| 10_000 + n / 128 * 96 + n % 16 * 6 + n / 16 % 8 / 2;
    assert_eq!(notes_of((0..1_280).map(turn)), [""; 0]);
    // Packets of eight queues come in the opposite order.
    assert_eq!(
        notes_of((0..800).map(|n| 10_000 + n / 8 * 80 + (7 - n % 8) * 10)),
        [""; 0]
    );
}

// Corrupt compressed streams.

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(bytes).unwrap();
    gzip.finish().unwrap()
}

/// Asserts that all messages come, and one line names the compressed stream.
fn check_corrupt(name: &str, file: &[u8], messages: u64, bytes: u64) {
    let inspection = inspect(name, file);
    // Only the numbers of packets show that none is missing at the end.
    let missing = u64::from(!name.contains(".pcap"));
    assert_eq!(counts(&inspection), (messages, missing), "{name}");
    let [fault] = &inspection.faults[..] else {
        panic!("one fault: {name} {:?}", inspection.faults);
    };
    assert!(
        fault.contains("the compressed stream (gzip or zstd) is corrupt"),
        "{fault}"
    );
    assert_eq!(inspection.account.total().bytes, bytes, "{name}");
}

#[test]
fn wrong_checksum_of_gzip_costs_no_message() {
    let event = |n: u64| mold(n)[20..].to_vec();
    let capture = pcap((1..=40).map(mold));
    let messages = (1..=40).flat_map(event).collect::<Vec<u8>>();
    let login = b"\0\x1fASESSION001                   1";
    let sequenced = (1..=40).flat_map(|n| [b"\0\x0dS", &event(n)[2..]].concat());
    let soup = [&login[..], &sequenced.collect::<Vec<u8>>()].concat();
    let ng = pcapng(9, even(40));
    for (name, whole) in [
        ("corrupt.pcap", capture),
        ("corrupt.pcapng", ng),
        ("corrupt.itch", messages),
        ("corrupt.bin", soup),
    ] {
        let mut file = gzip(&whole);
        let checksum = file.len() - 8;
        file[checksum] ^= 1;
        check_corrupt(name, &file, 40, whole.len() as u64);
        // A record that is not whole is damage.
        let cut = &whole[..whole.len() - 3];
        let mut file = gzip(cut);
        let checksum = file.len() - 8;
        file[checksum] ^= 1;
        check_corrupt(name, &file, 39, cut.len() as u64);
        let inspection = inspect(name, &file);
        assert!(inspection.account.of(Reason::Truncated).bytes > 0, "{name}");
    }
}

#[test]
fn corrupt_stream_without_content_is_an_error() {
    let mut file = gzip(b"");
    let checksum = file.len() - 8;
    file[checksum] ^= 1;
    for bytes in [file, gzip(b"no capture").split_off(0)] {
        let mut bytes = bytes;
        let checksum = bytes.len() - 8;
        bytes[checksum] ^= 2;
        let error = inspected("none", &bytes, &Selection::default())
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("the compressed stream (gzip or zstd) is corrupt"),
            "{error}"
        );
    }
}

#[test]
fn corrupt_second_member_keeps_the_first() {
    let whole = pcap((1..=40).map(mold));
    let mut second = gzip(&[0x55; 4_000]);
    second[10] = 0xff;
    let file = [gzip(&whole), second].concat();
    check_corrupt("member.pcap", &file, 40, whole.len() as u64);
}

// Two days in one file.

/// Returns a framed system event at a minute.
fn event(minute: u64, code: u8) -> Vec<u8> {
    let ns = (minute * 60 * NS).to_be_bytes();
    [&b"\0\x0cS\0\0\0\0"[..], &ns[2..], &[code]].concat()
}

/// Returns a framed message of zeros at a minute.
fn message(minute: u64, kind: u8, len: u8) -> Vec<u8> {
    let ns = (minute * 60 * NS).to_be_bytes();
    let mut message = [&[0, len, kind, 0, 0, 0, 0][..], &ns[2..]].concat();
    message.resize(2 + usize::from(len), 0);
    message
}

/// Returns a day of 20 messages from a minute on.
fn day(from: u64) -> Vec<u8> {
    let hour = (1..19).flat_map(|n| message(from + n, b'D', 19));
    [event(from, b'O'), hour.collect(), event(from + 30, b'M')].concat()
}

/// Returns messages, missing ones, sessions, and the account of skipped bytes.
fn of_days(name: &str, file: &[u8]) -> (u64, u64, usize, u64) {
    let inspection = inspect(name, file);
    let (messages, missing) = counts(&inspection);
    let sessions = 1 + inspection
        .notes
        .iter()
        .filter(|it| it.contains("another file"))
        .count();
    assert_eq!(
        inspection.account.total().bytes,
        file.len() as u64,
        "{name}"
    );
    (
        messages,
        missing,
        sessions,
        inspection.account.of(Reason::Skipped).bytes,
    )
}

#[test]
fn damage_behind_an_end_mark_begins_the_next_day() {
    let (first, second) = (day(200), day(180));
    for lost in [1, 2, 5] {
        // The first messages of the second day.
        let len = 14 + (lost - 1) * 21;
        let junk = vec![0xff; len];
        let file = [&first[..], &[0, 0], &junk, &second[len..]].concat();
        let expected = (40 - lost as u64, 1, 2, len as u64);
        assert_eq!(of_days("bound", &file), expected, "{lost}");
        // The mark is damaged too; the times fall back.
        let file = [&first[..], &[0xff, 0xff], &junk, &second[len..]].concat();
        let expected = (40 - lost as u64, 1, 2, 2 + len as u64);
        assert_eq!(of_days("mark", &file), expected, "{lost}");
    }
    // A day that begins whole misses nothing.
    let file = [&first[..], &[0, 0], &[0xff; 30], &second].concat();
    assert_eq!(of_days("between", &file), (40, 0, 2, 30));
    // The beginning of the second day is cut off.
    let file = [&first[..], &[0, 0], &second[7..]].concat();
    assert_eq!(of_days("cut", &file), (39, 1, 2, 7));
}

#[test]
fn day_of_later_times_begins_with_its_first_messages() {
    // System event and stock directory begin a day whatever their times are.
    for (kind, len) in [(b'R', 39), (b'S', 12)] {
        let later = [message(300, kind, len), day(301)[14..].to_vec()].concat();
        let file = [&day(200)[..], &[0, 0], &[0xff; 30], &later].concat();
        assert_eq!(of_days("later", &file), (40, 1, 2, 30), "{kind}");
        // Without the mark they may be of the same day.
        let file = [&day(200)[..], &[0xff; 30], &later].concat();
        assert_eq!(of_days("same", &file), (40, 1, 1, 30), "{kind}");
    }
    // A second mark pads the first.
    let file = [&day(200)[..], &[0; 4], &day(300)[14..]].concat();
    assert_eq!(of_days("padded", &file), (39, 0, 2, 0));
}

#[test]
fn damage_within_a_day_begins_no_other() {
    let whole = day(200);
    let at = 14 + 5 * 21;
    for junk in [
        &[0xff; 21][..],
        &[0, 0, 0xff, 0xff, 0xff, 0xff, 0xff],
        &[0xff; 4],
    ] {
        let mut file = whole.clone();
        file[at..at + junk.len()].copy_from_slice(junk);
        let (messages, missing, sessions, _) = of_days("within", &file);
        assert_eq!((messages, missing, sessions), (19, 1, 1), "{junk:02x?}");
    }
    // One stamp before the damage is far too late.
    let mut file = whole.clone();
    file[at - 21 + 7] = 0x40;
    file[at..at + 4].fill(0xff);
    assert_eq!(of_days("late", &file), (19, 1, 1, 21));
}

// Fragments of a reused id.

/// Returns the fragments of a datagram under an id: the first has 24 bytes behind the IP header.
fn fragments(id: u16, payload: &[u8]) -> [Vec<u8>; 2] {
    let whole = &ip(payload)[20..];
    // Without its checksum, a wrong packet would be taken for a right one.
    let mut udp = whole.to_vec();
    let pseudo = [
        &[10, 0, 0, 1, 239, 1, 1, 1, 0, 17][..],
        &(udp.len() as u16).to_be_bytes(),
    ];
    let mut bytes = [pseudo.concat(), udp.clone()].concat();
    bytes.resize(bytes.len().next_multiple_of(2), 0);
    let words = bytes
        .chunks(2)
        .map(|it| u32::from(it[0]) << 8 | u32::from(it[1]));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    udp[6..8].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    [(0x2000_u16, &udp[..24]), (3, &udp[24..])].map(|(flags, part)| {
        let mut packet = ip(part);
        packet.drain(20..28);
        let len = packet.len() as u16;
        packet[2..4].copy_from_slice(&len.to_be_bytes());
        packet[4..6].copy_from_slice(&id.to_be_bytes());
        packet[6..8].copy_from_slice(&flags.to_be_bytes());
        packet
    })
}

#[test]
fn lost_fragment_of_a_reused_id_costs_its_packet_only() {
    for lost in 0..2 {
        for of in [0, 7, 19] {
            let mut packets = Vec::new();
            for number in 1..=20_u64 {
                for (index, part) in fragments(77, &mold(number)).into_iter().enumerate() {
                    if (number - 1, index) != (of, lost) {
                        packets.push((DAY_S, packets.len() as u64 * 1_000, part));
                    }
                }
            }
            let file = pcap_of(MAGIC_US, packets);
            let inspection = inspect("reused", &file);
            let feed = &inspection.feeds[0];
            assert_eq!(feed.messages, 19, "{lost} of {of}: {:?}", inspection.faults);
            assert!(!inspection.is_whole());
            assert_eq!(inspection.account.total().frames, 39);
        }
    }
}

// Guesses.

/// Returns the error of a file that holds no feed.
fn refusal(name: &str, file: &[u8]) -> String {
    let error = inspected(name, file, &Selection::default()).unwrap_err();
    error.to_string()
}

#[test]
fn formats_without_a_message_are_named() {
    let heartbeat = |n: u64| [&mold(n)[..18], &[0, 0]].concat();
    let soup_41 = [
        &b"\0\x1fASESSION001                   1"[..],
        b"\0\x06ST\0\0\0\x01",
        &[&b"\0\x1fSA"[..], &[0; 29]].concat(),
        b"\0\x01H",
        b"\0\x06ST\0\0\0\x02",
    ]
    .concat();
    for (name, file, text) in [
        (
            "beats",
            pcap((1..6).map(|_| heartbeat(1))),
            "heartbeats of MoldUDP64",
        ),
        ("rejected", b"\0\x02JA".to_vec(), "login was rejected"),
        ("closed", b"\0\x02JS".to_vec(), "login was rejected"),
        ("lz4", b"\x02\x21\x4c\x18\x05\0\0\0hello".to_vec(), "unlz4"),
        ("zip", [&b"PK\x05\x06"[..], &[0; 18]].concat(), "unzip"),
        ("parts", [&b"PK\x07\x08"[..], &[0; 18]].concat(), "unzip"),
        ("itch41", soup_41, "ITCH 4.1"),
    ] {
        let error = refusal(name, &file);
        assert!(error.contains(text), "{name}: {error}");
    }
}

#[test]
fn captures_of_nyse_are_named() {
    let Some(dir) = data_dir() else {
        return;
    };
    for entry in std::fs::read_dir(dir.join("nyse-xdp")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|it| it == "pcap") {
            let selection = Selection::default();
            let error = Inspection::of(&[&path], &selection, None, &Settings::default());
            let error = error.unwrap_err().to_string();
            assert!(error.contains("looks like NYSE"), "{error}");
        }
    }
}
