use std::io::{Cursor, Write};

use flate2::{Compression, write::GzEncoder};
use tickcast_reliability::types::SourcePosition;

use super::*;

const EVENT: &[u8] = b"\x00\x0cS\0\0\0\0\0\0\0\0\0\0Q";

fn drain(bytes: &[u8]) -> (Vec<Vec<u8>>, BinaryFile) {
    let mut file = BinaryFile::from_reader("test", Cursor::new(bytes.to_vec())).unwrap();
    let mut messages = Vec::new();
    while let Some(message) = file.next().unwrap() {
        messages.push(message.to_vec());
    }
    assert!(file.next().unwrap().is_none());
    let account = file.stats().account;
    assert_eq!(account.of(Reason::Datagram).frames, messages.len() as u64);
    (messages, file)
}

fn read(bytes: &[u8]) -> (Vec<Vec<u8>>, BinaryFileStats) {
    let (messages, file) = drain(bytes);
    let total = file.stats.account.total().bytes;
    assert_eq!(total, bytes.len() as u64, "each byte is accounted for");
    (messages, file.stats)
}

#[test]
fn message_longer_than_its_type_is_read_and_not_whole() {
    let mut long = [EVENT, &[7]].concat();
    long[1] += 1;
    for (bytes, overlong) in [(EVENT.repeat(3), 0), ([EVENT, &long, EVENT].concat(), 1)] {
        let (messages, file) = drain(&bytes);
        assert_eq!((messages.len(), file.stats.overlong), (3, overlong));
        assert_eq!(file.faults().len() as u64, overlong, "{:?}", file.faults());
    }
}

#[test]
fn messages_behind_a_zero_length_are_another_session() {
    let (messages, stats) = read(&[EVENT, EVENT, &[0, 0]].concat());
    assert_eq!(messages, [&EVENT[2..], &EVENT[2..]]);
    assert_eq!((stats.truncated, stats.end_marks), (0, 1));
    let bytes = [EVENT, EVENT, &[0, 0], EVENT].concat();
    read(&bytes);
    let (messages, file) = drain(&bytes);
    assert!(!file.is_soup());
    assert_eq!((messages.len(), file.session(), file.sequence()), (3, 1, 1));
    let at = 2 * EVENT.len() as u64 + 2;
    assert_eq!(file.findings().kept(), [CaptureFinding::AnotherFile { at }]);
    assert!(!file.findings().is_damage());
    assert_eq!(file.notes(), [format!("another file begins at byte {at}")]);
    assert!(file.faults().is_empty());
}

#[test]
fn start_of_messages_event_begins_another_session() {
    let mut start = EVENT.to_vec();
    start[EVENT.len() - 1] = START_OF_MESSAGES;
    let (messages, file) = drain(&[&start, EVENT, &start, EVENT].concat());
    assert_eq!((messages.len(), file.session(), file.sequence()), (4, 1, 2));
}

#[test]
fn zeros_behind_the_end_mark_are_padding() {
    let (messages, stats) = read(&[EVENT, &[0; 513]].concat());
    assert_eq!((messages.len(), stats.truncated), (1, 0));
    assert_eq!(stats.account.of(Reason::Skipped).bytes, 0);
}

#[test]
fn end_mark_before_any_number_of_zeros_is_one() {
    for zeros in 1..40 {
        let (messages, stats) = read(&[EVENT, &vec![0; zeros]].concat());
        assert_eq!(messages.len(), 1);
        let has_mark = zeros >= 2;
        assert_eq!(stats.end_marks, u64::from(has_mark), "{zeros}");
        let padding = stats.account.of(Reason::Padding).bytes;
        let structure = stats.account.of(Reason::Structure).bytes;
        let expected = if has_mark {
            (2, zeros as u64 - 2)
        } else {
            (0, 0)
        };
        assert_eq!((structure, padding), expected, "{zeros}");
        assert_eq!(stats.truncated, u64::from(!has_mark), "{zeros}");
    }
}

#[test]
fn bytes_behind_the_end_of_a_day_are_no_message() {
    let mut last = EVENT.to_vec();
    last[EVENT.len() - 1] = END_OF_MESSAGES;
    let mark = [0, 0];
    for junk in [&b"x"[..], b"xy", b"xyz", b"some words", &[0xff; 40]] {
        for (end, is_end) in [
            (&mark[..], true),
            (&[&last[..], &mark].concat(), true),
            (&last, true),
            (EVENT, false),
        ] {
            let bytes = [EVENT, end, junk].concat();
            let (messages, file) = drain(&bytes);
            let expected = 1 + usize::from(end.len() >= EVENT.len());
            assert_eq!(messages.len(), expected, "{junk:?} {end:?}");
            assert_eq!(file.follows_damage(), !is_end, "{junk:?} {end:?}");
            let skipped = file.stats.account.of(Reason::Skipped).bytes;
            assert!(!is_end || skipped == junk.len() as u64, "{junk:?} {end:?}");
            assert_eq!(file.faults().len(), 1, "{junk:?} {:?}", file.faults());
        }
    }
    // The length of the last message became 0.
    let (_, file) = drain(&[EVENT, &[0, 0], &EVENT[2..]].concat());
    assert!(file.follows_damage());
}

#[test]
fn beginning_of_a_message_behind_the_end_of_a_day_is_cut_off() {
    let mut last = EVENT.to_vec();
    last[EVENT.len() - 1] = END_OF_MESSAGES;
    for len in 2..EVENT.len() {
        let (messages, file) = drain(&[EVENT, &last, &EVENT[..len]].concat());
        assert_eq!((messages.len(), file.stats.truncated), (2, 1), "{len}");
        let skipped = file.stats.account.of(Reason::Skipped).bytes;
        assert_eq!(skipped, 0, "{len}");
    }
}

#[test]
fn unknown_type_is_believed_by_its_successor_only() {
    let unknown = [b"\x00\x0cZ", &[7; 11][..]].concat();
    let (messages, stats) = read(&[EVENT, &unknown, EVENT, EVENT].concat());
    assert_eq!(
        (messages.len(), stats.account.of(Reason::Skipped).bytes),
        (4, 0)
    );
    let junk = [0xff; 40];
    let (messages, stats) = read(&[EVENT, &unknown, &junk, EVENT, EVENT].concat());
    let skipped = (unknown.len() + junk.len()) as u64;
    assert_eq!(messages, [&EVENT[2..]; 3]);
    assert_eq!(stats.account.of(Reason::Skipped).bytes, skipped);
    // A message of a known type and length needs no successor.
    let (messages, stats) = read(&[EVENT, EVENT, &junk, EVENT, EVENT].concat());
    assert_eq!(messages, [&EVENT[2..]; 4]);
    assert_eq!(stats.account.of(Reason::Skipped).bytes, 40);
}

#[test]
fn wrong_length_is_found_however_long_it_claims_to_be() {
    let longest = [b"\x00\x72I", &[0; 10][..], &[7; 103]].concat();
    for unit in [EVENT, &longest] {
        for claimed in [1_u16, 13, 200, 5_001, 65_535] {
            for rest in [2, 3, 9_000] {
                let mut wrong = [EVENT, EVENT].concat();
                wrong[EVENT.len()..EVENT.len() + 2].copy_from_slice(&claimed.to_be_bytes());
                // An unknown type may have any length.
                wrong[EVENT.len() + 2] = b'Z';
                let bytes = [&wrong[..], &unit.repeat(rest)].concat();
                let (messages, _) = read(&bytes);
                assert_eq!(messages.len(), rest + 1, "{claimed} {rest}");
            }
        }
    }
}

#[test]
fn truncated_binary_file_gives_whole_messages() {
    let bytes = [EVENT, EVENT].concat();
    for len in 1..bytes.len() {
        let (messages, stats) = read(&bytes[..len]);
        assert_eq!(messages.len(), len / EVENT.len(), "{len}");
        assert_eq!(
            stats.truncated,
            u64::from(!len.is_multiple_of(EVENT.len())),
            "{len}"
        );
    }
}

#[test]
fn damage_costs_its_message_only() {
    let event = |n: u8| {
        let mut event = EVENT.to_vec();
        event[12] = n;
        event
    };
    let whole: Vec<u8> = (1..9).flat_map(event).collect();
    let len = EVENT.len();
    for at in len..7 * len {
        for damage in [0, 1, 0x7f, 0xff] {
            let mut bytes = whole.clone();
            bytes[at] = damage;
            check_damage(&bytes, at / len);
        }
        let mut bytes = whole.clone();
        bytes.remove(at);
        check_damage(&bytes, at / len);
    }
}

/// Asserts that every event but the `n`-th of eight is read.
fn check_damage(bytes: &[u8], n: usize) {
    let (messages, _) = read(bytes);
    let numbers: Vec<_> = messages.iter().map(|m| usize::from(m[10])).collect();
    for number in (1..9).filter(|number| *number != n + 1) {
        assert!(
            numbers.contains(&number),
            "{n}: {numbers:?} in {bytes:02x?}"
        );
    }
    assert!(numbers.len() <= 8);
}

/// Returns the number of each message, with `!` behind damage; and `!` alone for damage at the end.
fn numbers(bytes: &[u8]) -> String {
    let mut file = BinaryFile::from_reader("test", Cursor::new(bytes.to_vec())).unwrap();
    let mut numbers = Vec::new();
    let damage = |file: &BinaryFile| if file.follows_damage() { "!" } else { "" };
    while file.next().unwrap().is_some() {
        numbers.push(format!("{}{}", damage(&file), file.sequence()));
    }
    assert!(file.next().unwrap().is_none());
    numbers.push(damage(&file).to_owned());
    numbers.join(" ")
}

#[test]
fn damage_counts_as_one_message() {
    let len = EVENT.len();
    let mut bytes = EVENT.repeat(6);
    assert_eq!(numbers(&bytes), "1 2 3 4 5 6 ");
    assert_eq!(numbers(&bytes[..6 * len - 1]), "1 2 3 4 5 !");
    bytes[2 * len] = 0xff;
    assert_eq!(numbers(&bytes), "1 2 !4 5 6 ");
    bytes[3 * len] = 0xff;
    assert_eq!(
        numbers(&bytes),
        "1 2 !4 5 ",
        "one loss of an unknown number"
    );
    let junk = [&EVENT.repeat(2)[..], &[0xff; 99]].concat();
    assert_eq!(numbers(&junk), "1 2 !");
}

#[test]
fn login_behind_damage_continues_or_names_the_gap() {
    let event = soup(b'S', &EVENT[2..]);
    let of = |next: u64| {
        let (begin, again) = (login("ONE", 1), login("ONE", next));
        let parts = [
            &begin[..],
            &event,
            &event,
            &[0, 1, b'?'],
            &event,
            &again,
            &event,
        ];
        numbers(&parts.concat())
    };
    // A heartbeat was damaged, and no message.
    assert_eq!(of(4), "1 2 !4 5 ");
    assert_eq!(of(5), "1 2 !4 5 ", "one message was damaged");
    assert_eq!(of(7), "1 2 !4 7 ", "three were");
    assert_eq!(of(2), "1 2 !4 ", "message 2 comes again");
}

fn soup(kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = (payload.len() as u16 + 1).to_be_bytes().to_vec();
    packet.push(kind);
    packet.extend(payload);
    packet
}

fn login(session: &str, next: u64) -> Vec<u8> {
    soup(b'A', format!("{session:10}{next:20}").as_bytes())
}

#[test]
fn login_that_continues_its_session_begins_no_other() {
    let event = soup(b'S', &EVENT[2..]);
    let numbers = |session, next| {
        let again = login(session, next);
        let bytes = [&login("ONE", 7)[..], &event, &again, &event].concat();
        read(&bytes);
        let (_, file) = drain(&bytes);
        (file.session(), file.sequence())
    };
    assert_eq!(numbers("ONE", 8), (0, 8));
    assert_eq!(numbers("ONE", 9), (0, 9), "a message is missing");
    assert_eq!(numbers("ONE", 7), (0, 7), "a message comes again");
    assert_eq!(numbers("ONE", 6), (1, 6), "from before the first login");
    assert_eq!(numbers("TWO", 8), (1, 8));
}

#[test]
fn login_behind_a_gap_names_the_missing_messages() {
    let event = soup(b'S', &EVENT[2..]);
    let again = login("ONE", 11);
    let bytes = [&login("ONE", 7)[..], &event, &again, &event].concat();
    let (messages, stats) = read(&bytes);
    assert_eq!((messages.len(), stats.repeated), (2, 0));
    let (_, file) = drain(&bytes);
    let missing = CaptureFinding::Missing {
        from: 8,
        to: 10,
        at: (login("ONE", 7).len() + event.len()) as u64,
    };
    assert_eq!(file.findings().kept(), [missing]);
    let [fault] = &file.faults()[..] else {
        panic!("one fault: {:?}", file.faults());
    };
    assert!(
        fault.starts_with("messages 8 to 10 (3) are missing"),
        "{fault}"
    );
}

#[test]
fn messages_that_a_login_repeats_come_once() {
    let event = |n: u8| {
        let mut event = EVENT.to_vec();
        event[12] = n;
        soup(b'S', &event[2..])
    };
    let events = |numbers: std::ops::Range<u8>| numbers.flat_map(event).collect::<Vec<_>>();
    // The second login repeats messages 1 to 3; the third begins behind a gap: 6 is missing.
    let bytes = [
        &login("ONE", 1)[..],
        &events(1..4),
        &login("ONE", 1),
        &events(1..6),
        &login("ONE", 7),
        &events(7..9),
        &soup(b'Z', b""),
    ]
    .concat();
    let (messages, stats) = read(&bytes);
    let numbers: Vec<_> = messages.iter().map(|message| message[10]).collect();
    assert_eq!(numbers, [1, 2, 3, 4, 5, 7, 8]);
    assert_eq!((stats.messages, stats.repeated), (7, 3));
    assert_eq!(stats.account.of(Reason::Repeated).frames, 3);
    let (_, file) = drain(&bytes);
    assert_eq!((file.session(), file.sequence()), (0, 8));
    assert_eq!(file.findings().kept().len(), 1);
}

#[test]
fn session_behind_an_unused_login_is_another() {
    let event = soup(b'S', &EVENT[2..]);
    let bytes = [
        &login("ONE", 1)[..],
        &event,
        &login("ONE", 1),
        &login("TWO", 1),
        &event,
    ]
    .concat();
    let (messages, file) = drain(&bytes);
    assert_eq!((messages.len(), file.session(), file.sequence()), (2, 1, 1));
    assert_eq!(file.stats().repeated, 0);
}

#[test]
fn login_of_an_absurd_sequence_is_skipped() {
    let event = soup(b'S', &EVENT[2..]);
    for next in [u64::MAX, SourcePosition::SEQUENCE_MAX] {
        let login = login("ONE", next);
        let bytes = [&login[..], &event, &event].concat();
        read(&bytes);
        let (messages, file) = drain(&bytes);
        assert_eq!((messages.len(), file.sequence()), (2, 3));
        let to = login.len() as u64;
        let skipped = CaptureFinding::Skipped { from: 0, to };
        assert_eq!(file.findings().kept(), [skipped]);
    }
}

/// Gives one byte at a time.
struct OneByOne(Cursor<Vec<u8>>);

impl Read for OneByOne {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let len = buffer.len().min(1);
        self.0.read(&mut buffer[..len])
    }
}

#[test]
fn single_byte_reads_yield_same_messages() {
    let event = soup(b'S', &EVENT[2..]);
    for bytes in [
        [&login("ONE", 7)[..], &event, &event].concat(),
        [EVENT, &[0; 100], b"junk"].concat(),
        [EVENT, &[0; 99], EVENT, EVENT].concat(),
    ] {
        let (whole, file) = drain(&bytes);
        let reader = OneByOne(Cursor::new(bytes.clone()));
        let mut pieces = BinaryFile::from_reader("test", reader).unwrap();
        let mut messages = Vec::new();
        while let Some(message) = pieces.next().unwrap() {
            messages.push(message.to_vec());
        }
        assert_eq!(messages, whole);
        assert_eq!(pieces.stats(), file.stats(), "{bytes:02x?}");
        assert_eq!(pieces.sequence(), file.sequence());
    }
}

#[test]
fn soup_bin_tcp_gives_its_sequenced_messages() {
    let login = login("SESSION001", 7);
    let event = soup(b'S', &EVENT[2..]);
    let bytes = [
        &login[..],
        &event,
        &soup(b'H', b""),
        &soup(b'+', b"text"),
        &event,
        &soup(b'Z', b""),
    ];
    let (messages, file) = drain(&bytes.concat());
    assert_eq!(messages, [&EVENT[2..], &EVENT[2..]]);
    assert!(file.is_soup() && file.findings().kept().is_empty());
    assert_eq!((file.session(), file.sequence()), (0, 8));
    let (messages, file) = drain(&bytes[1..].concat());
    assert_eq!((messages.len(), file.sequence()), (2, 2), "without a login");
}

#[test]
fn gzip_is_seen_by_content_and_may_be_cut_too() {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
    for _ in 0..100 {
        gzip.write_all(EVENT).unwrap();
    }
    let mut bytes = gzip.finish().unwrap();
    assert_eq!(drain(&bytes).0.len(), 100);
    let padded = [&bytes[..], &[0; 99]].concat();
    let (messages, file) = drain(&padded);
    assert_eq!(messages.len(), 100);
    assert_eq!(file.stats().account.of(Reason::Padding).bytes, 99);
    let trailing = [&bytes[..], b"trailing"].concat();
    let (_, file) = drain(&trailing);
    assert_eq!(
        file.findings().kept(),
        [CaptureFinding::Trailing { bytes: 8 }]
    );
    bytes.truncate(bytes.len() - 4);
    assert_eq!(drain(&bytes).1.stats().truncated, 1);
}

#[test]
fn lengths_that_are_all_zero_come_from_the_types() {
    let zero = [&[0, 0], &EVENT[2..]].concat();
    let (messages, stats) = read(&[&zero[..], &zero[..], &zero[..9]].concat());
    assert_eq!(messages, [&EVENT[2..], &EVENT[2..]]);
    assert_eq!((stats.truncated, stats.end_marks), (1, 0));
    let bytes = [&zero[..], b"\0\0~junk"].concat();
    let (messages, file) = drain(&bytes);
    assert_eq!(messages.len(), 1);
    let skipped = CaptureFinding::Skipped { from: 14, to: 21 };
    assert_eq!(file.findings().kept(), [skipped]);
}

#[test]
fn wrong_first_message_costs_itself_only() {
    let plain = [&EVENT[..EVENT.len() - 1], b"M"].concat();
    let zero = [&[0, 0], &plain[2..]].concat();
    for unit in [plain.clone(), soup(b'S', &plain[2..]), zero] {
        for (at, byte) in [(1, 11), (1, 0), (0, 1), (1, 0xff), (2, b'?')] {
            let mut bytes = unit.repeat(99);
            if std::mem::replace(&mut bytes[at], byte) == byte {
                continue;
            }
            let (messages, stats) = read(&bytes);
            assert_eq!(messages, vec![&plain[2..]; 98], "{at} {byte} {unit:02x?}");
            let skipped = stats.account.of(Reason::Skipped).bytes;
            assert_eq!(skipped, unit.len() as u64);
            let (from, to) = (0, unit.len() as u64);
            let (_, file) = drain(&bytes);
            assert_eq!(
                file.findings().kept(),
                [CaptureFinding::Skipped { from, to }]
            );
        }
    }
}

#[test]
fn file_of_its_end_mark_only_holds_no_messages() {
    let (messages, file) = drain(&[0, 0]);
    assert!(messages.is_empty());
    let [fault] = &file.faults()[..] else {
        panic!("one fault: {:?}", file.faults());
    };
    assert!(fault.starts_with("the file holds no messages"), "{fault}");
}

#[test]
fn captures_and_other_files_are_no_binary_file() {
    for head in [
        [0xd4, 0xc3, 0xb2, 0xa1],
        [0xa1, 0xb2, 0xc3, 0xd4],
        [0x4d, 0x3c, 0xb2, 0xa1],
        [0xa1, 0xb2, 0x3c, 0x4d],
        [0x0a, 0x0d, 0x0d, 0x0a],
    ] {
        let file = BinaryFile::from_reader("test", Cursor::new(head.to_vec()));
        assert!(matches!(file, Err(CaptureError::Damaged { offset: 0, .. })));
    }
    let empty = BinaryFile::from_reader("test", Cursor::new(Vec::new()));
    assert!(matches!(empty, Err(CaptureError::Empty { .. })));
}

#[test]
fn position_at_the_end_is_the_size_of_the_file() {
    let events = EVENT.repeat(100);
    let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
    gzip.write_all(&events).unwrap();
    let gzip = gzip.finish().unwrap();
    for bytes in [events, gzip] {
        let (messages, file) = drain(&bytes);
        assert_eq!(messages.len(), 100);
        assert_eq!((file.position(), file.size()), (bytes.len() as u64, None));
    }
}
