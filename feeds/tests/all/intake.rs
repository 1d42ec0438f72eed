//! The table of small spoilt inputs: each file's right answer, as far as one line decides it.
//! Skipped, loudly, where the data is not there. Further recordings are built here.

use std::io::{self, Cursor, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::{Recorded, data_dir};
use flate2::{Compression, write::GzEncoder};
use tickcast_feeds::arbiter::Holding;
use tickcast_feeds::capture::account::{Account, Class, Reason};
use tickcast_feeds::capture::{Capture, CaptureError, PacketTime, RecordedFile};
use tickcast_feeds::recording::{Inspection, Recording, RecordingError, Selection};
use tickcast_feeds::venues::{Format, Settings};
use tickcast_reliability::record::{InstrumentDefMsg, SymbolMappingMsg};
use tickcast_reliability::types::Nanos;

fn file(name: &str) -> Option<PathBuf> {
    Some(data_dir()?.join("intake").join(name))
}

fn selection(only: &[&str]) -> Selection {
    Selection {
        only: only.iter().map(|only| only.parse().unwrap()).collect(),
        ..Selection::default()
    }
}

fn inspect(name: &str, only: &[&str]) -> Option<Result<Inspection, RecordingError>> {
    let path = file(name)?;
    let inspection = Inspection::of(&[&path], &selection(only), None, &Settings::default());
    if let Ok(inspection) = &inspection {
        check_balance(&inspection.account, &[&path]);
    }
    Some(inspection)
}

/// Asserts that the account has as many frames as a reader of each file counts, and as many bytes
/// as uncompressed files have.
fn check_balance(account: &Account, files: &[&Path]) {
    let (mut frames, mut bytes) = (0, 0);
    for path in files {
        frames += match RecordedFile::open(path).unwrap() {
            RecordedFile::Capture(mut capture) => {
                while capture.next().unwrap().is_some() {}
                capture.stats().frames
            }
            RecordedFile::Messages(mut file) => {
                while file.next().unwrap().is_some() {}
                file.stats().messages
            }
        };
        bytes += std::fs::metadata(path).unwrap().len();
    }
    let total = account.total();
    assert_eq!(total.frames, frames, "{files:?}");
    let is_compressed = |path: &&Path| path.extension().is_some_and(|it| it == "gz" || it == "zst");
    if !files.iter().any(is_compressed) {
        assert_eq!(total.bytes, bytes, "{files:?}");
    }
}

/// File, messages, whether it is whole, and texts of its findings and faults.
type Case = (&'static str, u64, bool, &'static [&'static str]);

const CASES: &[Case] = &[
    ("01_eth_us.pcap", 42, true, &[]),
    ("36_mold_reorder_one.pcap", 42, true, &[]),
    ("75_first_two_swapped.pcap", 42, true, &[]),
    ("14_ab_lines_B_late_3_packets.pcap", 42, true, &[]),
    ("50_iex_tops16.pcap", 40, true, &[]),
    ("12_dns_then_exec_of_resting_order.pcap", 9, true, &[]),
    ("10_fragments.pcap", 42, true, &[]),
    ("21_gro_merged_pairs.pcap", 42, true, &[]),
    ("06_sll_vlan.pcap", 42, true, &[]),
    ("22_erspan2.pcap", 42, true, &[]),
    ("22_mpls.pcap", 42, true, &[]),
    ("17_ng_obsolete_packet_blocks.pcapng", 42, true, &[]),
    (
        "17_ng_missing_idb.pcapng",
        26,
        false,
        &["interface 2", "block 23", "byte 2876"],
    ),
    ("18_pcap.zst", 42, true, &[]),
    (
        "19_cat_two_pcaps.pcap",
        42,
        true,
        &["another file begins at byte"],
    ),
    ("19_gz_trailing_zeros.pcap.gz", 42, true, &[]),
    (
        "04_ns_in_us_magic.pcap",
        42,
        true,
        &["taken as nanoseconds"],
    ),
    (
        "23_one_ts_a_year_ahead.pcap",
        42,
        true,
        &["s ahead of the one before"],
    ),
    ("30_mold_gap.pcap", 38, false, &["4 messages are missing"]),
    ("60_bf.itch", 42, true, &[]),
    (
        "60_bf_two_days_cat.itch",
        84,
        true,
        &["another file begins at byte 1479"],
    ),
    ("61_bf_soupbin_S.bin", 42, true, &[]),
    (
        "65_bf_one_byte_missing.itch",
        336,
        false,
        &["bytes 278 to 315 (37)"],
    ),
    ("15_snaplen96.pcap", 1, false, &["cut off by the capture"]),
];

#[test]
fn spoilt_files_give_their_right_answers() {
    let mut wrong = Vec::new();
    for (name, messages, whole, texts) in CASES {
        let Some(inspection) = inspect(name, &[]) else {
            return;
        };
        let inspection = match inspection {
            Ok(inspection) => inspection,
            Err(error) => {
                wrong.push(format!("{name}: {error}"));
                continue;
            }
        };
        let got: u64 = inspection.feeds.iter().map(|feed| feed.messages).sum();
        let texts_of = [&inspection.notes[..], &inspection.faults].concat();
        let reported = texts_of.join("\n");
        let is_right = got == *messages
            && inspection.is_whole() == *whole
            && texts.iter().all(|text| reported.contains(text));
        if !is_right {
            wrong.push(format!(
                "{name}: {got} messages, {}\n{reported}\n{:?}",
                inspection.is_whole(),
                inspection.feeds
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn account_adds_up_to_the_size_of_each_file() {
    for (name, ..) in CASES {
        let Some(inspection) = inspect(name, &[]) else {
            return;
        };
        if name.contains("zst") || name.contains(".gz") {
            continue;
        }
        let size = std::fs::metadata(file(name).unwrap()).unwrap().len();
        assert_eq!(inspection.unwrap().account.total().bytes, size, "{name}");
    }
}

#[test]
fn two_feeds_in_one_file_are_listed_and_a_choice_is_asked_for() {
    for (name, feeds) in [
        (
            "13_two_groups_same_session_name.pcap",
            [("239.1.2.3:26400", 42), ("239.1.2.4:26401", 42)],
        ),
        (
            "53_iex_two_channel_ids.pcap",
            [("239.1.2.3:26400#1", 40), ("239.1.2.3:26400#2", 20)],
        ),
    ] {
        let Some(asked) = inspect(name, &[]) else {
            return;
        };
        let error = asked.unwrap_err();
        assert!(matches!(error, RecordingError::Choice { .. }), "{error}");
        for (destination, messages) in feeds {
            assert!(error.to_string().contains(destination), "{error}");
            let one = inspect(name, &[destination]).unwrap().unwrap();
            let got: Vec<_> = one.feeds.iter().map(|feed| feed.messages).collect();
            assert_eq!(got, [messages], "{name} {destination}");
            assert!(one.is_whole(), "{:?}", one.faults);
            let foreign = one.account.class(Class::Foreign).frames;
            assert!(foreign > 0, "{name} {destination}");
            let others = one.others.iter();
            let reported: Vec<_> = others.map(|(_, it)| (it.format, it.guess)).collect();
            let format = one.feeds[0].name.split(' ').next().unwrap().parse().ok();
            assert_eq!(reported, [(format, None)], "a known feed needs no guess");
        }
        let all = Selection {
            all_feeds: true,
            ..Selection::default()
        };
        let path = file(name).unwrap();
        let all = Inspection::of(&[path], &all, None, &Settings::default()).unwrap();
        let got: Vec<_> = all.feeds.iter().map(|feed| feed.messages).collect();
        assert_eq!(got, feeds.map(|(_, messages)| messages), "{name}");
        assert!(all.is_whole(), "{:?}", all.faults);
    }
}

#[test]
fn feeds_of_two_formats_may_share_a_destination() {
    let end = [&mold(4, b'S')[..18], &[0xff, 0xff]].concat();
    let payloads = [
        mold(1, b'S'),
        segment(7),
        mold(2, b'S'),
        segment(7),
        mold(3, b'S'),
        segment(7),
        end,
    ];
    let file = pcap(payloads.map(|it| (GROUP, 1, it)));
    let all = Selection {
        all_feeds: true,
        ..Selection::default()
    };
    let inspection = inspect_chosen("shared.pcap", &file, &all, None).unwrap();
    let packets = inspection.feeds.iter();
    let packets: Vec<_> = packets.map(|it| (it.packets, it.malformed)).collect();
    assert_eq!(packets, [(4, 0), (3, 0)]);
    check_classes(&inspection, &file, [7, 0, 0]);
}

#[test]
fn feed_of_another_format_than_asked_for_is_named() {
    let file = pcap((1..=3).map(|n| (GROUP, 1, mold(n, b'S'))));
    let asked = inspect_chosen(
        "other.pcap",
        &file,
        &Selection::default(),
        Some(Format::IexTp),
    );
    let error = asked.unwrap_err().to_string();
    assert!(
        error.contains("3 frames to 239.1.1.1:1 are of the format moldudp64-itch50"),
        "{error}"
    );
}

const LINE_A: &str = "239.1.2.3:26400";
const LINE_B: &str = "239.1.3.3:26400";
/// Line A lacks three packets with four messages; line B has all, 3.5 ms later.
const LINES_AB: &str = "14_ab_lines_B_late_3_packets.pcap";

/// Asserts that the only feed is whole, and has these lines: destination, messages missing.
fn check_union(inspection: &Inspection, lines: &[(&str, u64)]) {
    let [feed] = &inspection.feeds[..] else {
        panic!("one feed: {:?}", inspection.feeds);
    };
    assert!(inspection.is_whole(), "{:?}", inspection.faults);
    assert_eq!((feed.messages, feed.missing, feed.foreign), (42, 0, 0));
    let reports = feed.lines.iter();
    let found: Vec<_> = reports
        .map(|it| (it.line.destination.to_string(), it.stats.missing))
        .collect();
    let lines = lines
        .iter()
        .map(|(to, missing)| ((*to).to_owned(), *missing));
    assert_eq!(found, lines.collect::<Vec<_>>());
    assert_eq!(feed.duplicates, 42 - 4);
}

#[test]
fn lines_with_equal_messages_are_one_feed() {
    let Some(inspection) = inspect(LINES_AB, &[]) else {
        return;
    };
    let inspection = inspection.unwrap();
    check_union(&inspection, &[(LINE_A, 4), (LINE_B, 0)]);
    let name = &inspection.feeds[0].name;
    assert!(name.contains(&format!("{LINE_A} and {LINE_B}")), "{name}");
    assert_eq!(inspection.account.class(Class::Foreign).frames, 0);
}

#[test]
fn named_destinations_are_the_lines_in_their_order() {
    for lines in [[(LINE_A, 4), (LINE_B, 0)], [(LINE_B, 0), (LINE_A, 4)]] {
        let Some(named) = inspect(LINES_AB, &lines.map(|(to, _)| to)) else {
            return;
        };
        check_union(&named.unwrap(), &lines);
    }
}

#[test]
fn named_line_of_two_misses_its_messages() {
    let Some(inspection) = inspect(LINES_AB, &[LINE_A]) else {
        return;
    };
    let inspection = inspection.unwrap();
    assert!(!inspection.is_whole());
    let feed = &inspection.feeds[0];
    assert_eq!((feed.messages, feed.missing, feed.lines.len()), (38, 4, 1));
}

#[test]
fn two_files_of_one_destination_are_its_lines() {
    let (Some(lines), Some(base)) = (file(LINES_AB), file("01_eth_us.pcap")) else {
        return;
    };
    let files = [&lines, &base];
    let only = selection(&[LINE_A]);
    let inspection = Inspection::of(&files, &only, None, &Settings::default()).unwrap();
    check_union(&inspection, &[(LINE_A, 4), (LINE_A, 0)]);
    let of_files = inspection.feeds[0].lines.iter().map(|it| it.line.file);
    assert_eq!(of_files.collect::<Vec<_>>(), [0, 1]);
    check_balance(&inspection.account, &[&lines, &base]);
    assert_eq!(inspection.account.of(Reason::OtherDestination).frames, 33);
}

#[test]
fn symbol_of_a_swapped_first_packet_is_known() {
    let decode = |name: &str| {
        let mut capture = Capture::open(file(name)?).unwrap();
        let mut decoder = Format::MoldUdp64Itch50.decoder(Settings {
            holding: Some(Holding::RECORDED),
            ..Settings::default()
        });
        let mut recorded = Recorded::default();
        while let Some(datagram) = capture.next().unwrap() {
            decoder.packet(datagram.packet(), &mut recorded);
        }
        decoder.finish(&mut recorded);
        Some(recorded)
    };
    let (Some(swapped), Some(base)) = (
        decode("75_first_two_swapped.pcap"),
        decode("01_eth_us.pcap"),
    ) else {
        return;
    };
    assert_eq!(swapped.positions(), base.positions());
    let symbols = |recorded: &Recorded| {
        let definitions = recorded.all::<InstrumentDefMsg>().into_iter();
        definitions.map(|it| it.raw_symbol).collect::<Vec<_>>()
    };
    assert!(!symbols(&base).is_empty());
    assert_eq!(symbols(&swapped), symbols(&base));
    // A mapping would stand for an instrument that was used before its directory message.
    assert!(swapped.all::<SymbolMappingMsg>().is_empty());
}

#[test]
fn dns_query_is_foreign_and_costs_nothing() {
    let name = "12_dns_then_exec_of_resting_order.pcap";
    let Some(inspection) = inspect(name, &[]) else {
        return;
    };
    let inspection = inspection.unwrap();
    assert_eq!(inspection.account.of(Reason::OtherDestination).frames, 1);
    assert_eq!(inspection.others.len(), 1);
    assert_eq!(inspection.feeds[0].unknown_orders, 0);
}

#[test]
fn protocols_without_a_decoder_are_named() {
    for (name, text) in [
        ("intake/42_itch41_in_mold.pcap", "looks like ITCH 4.1"),
        ("intake/52_iex_deep_plus_8005.pcap", "looks like IEX DEEP+"),
        ("cme-mdp3/Cme.Mdp3.Sbe.v6.1.pcap", "looks like CME MDP 3.0"),
        (
            "nyse-xdp/IntegratedFeed.Xdp.v2.1_AddOrderMessage.pcap",
            "looks like NYSE XDP",
        ),
        (
            "cboe-pitch/Futures.DepthOfBook.Pitch.v1.1.6_TimeMessage.pcap",
            "looks like Cboe PITCH",
        ),
    ] {
        let Some(dir) = data_dir() else {
            return;
        };
        let selection = Selection::default();
        let inspection = Inspection::of(&[dir.join(name)], &selection, None, &Settings::default());
        let error = inspection.unwrap_err();
        assert!(matches!(error, RecordingError::Nothing { .. }), "{error}");
        assert!(error.to_string().contains(text), "{name}: {error}");
    }
}

#[test]
fn compressed_files_that_are_not_read_are_named() {
    let error = inspect_bytes("day.pcap.xz", b"\xfd7zXZ\0\0\x04").unwrap_err();
    assert!(matches!(
        error,
        RecordingError::Capture(CaptureError::NotACapture { .. })
    ));
    assert!(error.to_string().contains("unxz"), "{error}");
    let mut tar = vec![b'a'; 512];
    tar[257..262].copy_from_slice(b"ustar");
    // A gzip member of one stored block.
    let within = |bytes: &[u8]| {
        let len = bytes.len() as u16;
        let head = b"\x1f\x8b\x08\0\0\0\0\0\0\xff\x01";
        [
            &head[..],
            &[len, !len].map(u16::to_le_bytes).concat(),
            bytes,
        ]
        .concat()
    };
    for (bytes, remedy) in [
        (tar.clone(), "tar -x"),
        (within(&tar), "tar -x"),
        (within(b"\x1f\x8b\x08\0"), "gunzip"),
        (within(b"\x28\xb5\x2f\xfd"), "unzstd"),
        (b"\x34\xcd\xb2\xa1".to_vec(), "editcap"),
        (b"\xa1\xb2\xcd\x34".to_vec(), "editcap"),
    ] {
        let error = inspect_bytes("day.pcap", &bytes).unwrap_err().to_string();
        assert!(error.contains(remedy), "{remedy}: {error}");
    }
}

#[test]
fn file_of_messages_refuses_settings_of_packets() {
    let event = b"\x00\x0cS\0\0\0\0\0\0\0\0\0\0Q";
    let refusal = |selection: &Selection, format| match inspect_chosen(
        "asked.itch",
        event,
        selection,
        format,
    ) {
        Ok(inspection) => panic!("{:?}", inspection.account),
        Err(error) => error.to_string(),
    };
    let text = refusal(&Selection::default(), Some(Format::IexTp));
    assert!(text.contains("so the format iex-tp does not"), "{text}");
    let text = refusal(&selection(&["239.1.1.1:1"]), None);
    assert!(text.contains("a choice of destinations"), "{text}");
    let stamped = Selection {
        time: PacketTime::Arista,
        ..Selection::default()
    };
    let text = refusal(&stamped, None);
    assert!(text.contains("so the time stamp arista does"), "{text}");
    let none = Selection::default();
    inspect_chosen("unasked.itch", event, &none, Some(Format::MoldUdp64Itch50)).unwrap();
}

// Recordings that are built here.

/// Inspects a file of some bytes.
fn inspect_bytes(name: &str, bytes: &[u8]) -> Result<Inspection, RecordingError> {
    inspect_chosen(name, bytes, &Selection::default(), None)
}

/// Inspects the chosen feeds of a file of some bytes.
fn inspect_chosen(
    name: &str,
    bytes: &[u8],
    selection: &Selection,
    format: Option<Format>,
) -> Result<Inspection, RecordingError> {
    let folder = format!("tickcast-intake-{}-{name}", std::process::id());
    let folder = std::env::temp_dir().join(folder);
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join(name);
    std::fs::write(&path, bytes).unwrap();
    let inspection = Inspection::of(&[&path], selection, format, &Settings::default());
    std::fs::remove_dir_all(&folder).unwrap();
    inspection
}

const GROUP: [u8; 4] = [239, 1, 1, 1];

/// Destination and payload.
type Udp = ([u8; 4], u16, Vec<u8>);

/// Returns a pcap of raw IP, with one datagram a second.
fn pcap(datagrams: impl IntoIterator<Item = Udp>) -> Vec<u8> {
    pcap_at((1_000..).map(|second| (second, 0)).zip(datagrams))
}

/// Returns a pcap of raw IP, with the seconds and microseconds of each datagram.
fn pcap_at(datagrams: impl IntoIterator<Item = ((u32, u32), Udp)>) -> Vec<u8> {
    let packets = datagrams
        .into_iter()
        .map(|(at, datagram)| (at, raw(datagram)));
    pcap_of(101, packets)
}

/// Returns a pcap of a link type, with the seconds and microseconds of each frame.
fn pcap_of(link: u32, frames: impl IntoIterator<Item = ((u32, u32), Vec<u8>)>) -> Vec<u8> {
    let header = [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, link];
    let mut file = header.map(u32::to_le_bytes).concat();
    for ((seconds, micros), frame) in frames {
        let len = frame.len() as u32;
        file.extend([seconds, micros, len, len].map(u32::to_le_bytes).concat());
        file.extend(frame);
    }
    file
}

/// Returns the IP packet of a datagram.
fn raw((group, port, payload): Udp) -> Vec<u8> {
    let udp_len = payload.len() as u16 + 8;
    let mut packet = vec![0x45, 0];
    packet.extend((udp_len + 20).to_be_bytes());
    packet.extend([0, 1, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1]);
    packet.extend(group);
    packet.extend([9_u16, port, udp_len, 0].map(u16::to_be_bytes).concat());
    packet.extend(payload);
    packet
}

/// Returns a packet of MoldUDP64 with one message of a type.
fn mold(sequence: u64, kind: u8) -> Vec<u8> {
    let mut packet = b"SESSION001".to_vec();
    packet.extend(sequence.to_be_bytes());
    packet.extend([0, 1, 0, 12, kind]);
    packet.extend([0; 10]);
    packet.push(b'Q');
    packet
}

/// Returns a heartbeat of DEEP.
fn segment(channel: u32) -> Vec<u8> {
    let mut packet = vec![1, 0, 0x04, 0x80];
    packet.extend(channel.to_le_bytes());
    packet.resize(24, 0);
    packet.extend(1_u64.to_le_bytes());
    packet.resize(40, 0);
    packet
}

fn recording(files: &[Vec<u8>], only: &[&str]) -> Result<Recording, RecordingError> {
    let capture = |bytes: &Vec<u8>| Capture::from_reader("test", Cursor::new(bytes.clone()));
    let captures = files.iter().map(|bytes| capture(bytes).unwrap());
    Recording::new(captures.collect(), &selection(only), None)
}

/// Returns the faults of a recording that was read to its end.
fn faults(mut recording: Recording) -> Vec<String> {
    while recording.next().unwrap().is_some() {}
    recording.faults()
}

#[test]
fn wrong_first_stamp_makes_the_trade_date_doubtful() {
    const DAY: u32 = 86_400;
    const NOON: u32 = 1_692_712_800;
    for (first, is_doubtful) in [
        (NOON + 9 * DAY, true),
        (NOON - 9 * DAY, true),
        (NOON - 120, false),
        (NOON, false),
    ] {
        let seconds = [first, NOON, NOON + 1, NOON + 2];
        let packets = (1..)
            .zip(seconds)
            .map(|(n, s)| ((s, 0), (GROUP, 1, mold(n, b'S'))));
        let mut recording = recording(&[pcap_at(packets)], &[]).unwrap();
        while recording.next().unwrap().is_some() {}
        let notes = recording.notes();
        let found = notes.iter().filter(|note| note.contains("trade date"));
        assert_eq!(found.count(), usize::from(is_doubtful), "{notes:?}");
        assert_eq!(recording.faults(), [""; 0]);
    }
}

#[test]
fn corrupt_file_does_not_end_the_others() {
    let whole = pcap((1..=10).map(|n| (GROUP, 1, mold(n, b'S'))));
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    let short = pcap((1..=3).map(|n| (GROUP, 1, mold(n, b'S'))));
    gzip.write_all(&short).unwrap();
    let mut corrupt = gzip.finish().unwrap();
    let checksum = corrupt.len() - 8;
    corrupt[checksum] ^= 1;
    let mut recording = recording(&[whole, corrupt.clone(), corrupt], &[]).unwrap();
    let mut of_whole = 0;
    let mut errors = 0;
    for _ in 0..10 + 3 + 3 + 2 {
        match recording.next() {
            Ok(Some(packet)) => {
                assert_eq!(errors, 0, "errors come last");
                of_whole += usize::from(packet.line == 0);
            }
            Ok(None) => break,
            Err(error) => {
                assert!(matches!(error, CaptureError::Damaged { .. }), "{error}");
                errors += 1;
            }
        }
    }
    assert_eq!((of_whole, errors), (10, 2));
    assert!(recording.next().unwrap().is_none());
}

#[test]
fn damage_without_a_packet_behind_it_is_known() {
    let one =
        |n: u64, second: u32| pcap_at([((second, 0), (GROUP, 1, mold(n, b'S')))])[24..].to_vec();
    let header = &pcap([])[..];
    let junk = [0xff; 40];
    let [a, b] = [one(1, 1), one(2, 2)];
    let cut = &b[..b.len() - 1];
    for (name, parts, begins, ends) in [
        ("whole", vec![header, &a, &b], false, false),
        (
            "between",
            vec![header, &a, &junk, &b, &one(3, 3)],
            false,
            false,
        ),
        ("before", vec![header, &junk, &a, &b], true, false),
        ("behind", vec![header, &a, &b, &junk], false, true),
        ("cut", vec![header, &a, cut], false, true),
    ] {
        let mut recording = recording(&[parts.concat()], &[]).unwrap();
        let mut damaged = Vec::new();
        while let Some(packet) = recording.next().unwrap() {
            damaged.push(packet.follows_damage);
        }
        assert_eq!(damaged[0], begins, "{name}");
        assert!(!damaged[1..].contains(&true), "{name}");
        assert_eq!(recording.ends_in_damage(), ends, "{name}");
    }
    // The other file of two goes on behind the cut, so its numbers tell.
    let first = [header, &one(1, 5), cut].concat();
    for (seconds, ends) in [([4, 6], false), ([3, 4], true)] {
        let second = [header, &one(1, seconds[0]), &one(2, seconds[1])].concat();
        let mut both = recording(&[first.clone(), second], &[]).unwrap();
        while both.next().unwrap().is_some() {}
        assert_eq!(both.ends_in_damage(), ends, "{seconds:?}");
    }
}

/// Stamps that damage may leave: before 1970 ends, a year behind, a year ahead, the last one.
const WRONG_S: [u32; 4] = [1, 70_000_000, 130_000_000, u32::MAX];

/// Returns a capture of messages one millisecond apart, of which the `wrong`-th has another second.
fn millisecond_feed(numbers: &[u64], (wrong, second): (usize, u32)) -> Vec<u8> {
    pcap_at(numbers.iter().enumerate().map(|(index, number)| {
        let seconds = if index == wrong { second } else { 100_000_000 };
        let micros = *number as u32 * 1_000;
        ((seconds, micros), (GROUP, 1, mold(*number, b'S')))
    }))
}

#[test]
fn wrong_stamp_among_reordered_packets_loses_nothing() {
    let numbers = [1, 2, 4, 5, 3, 6, 8, 9, 7, 10];
    for wrong in 0..numbers.len() {
        for second in WRONG_S {
            let file = millisecond_feed(&numbers, (wrong, second));
            let feed = &inspect_bytes("stamp.pcap", &file).unwrap().feeds[0];
            let counts = (feed.messages, feed.missing);
            assert_eq!(counts, (10, 0), "packet {wrong} at {second} s");
        }
    }
}

#[test]
fn wrong_stamp_behind_the_survey_loses_nothing() {
    let reordered = [20_101, 20_102, 20_104, 20_105, 20_103, 20_106, 20_107];
    let numbers: Vec<u64> = (1..=20_100).chain(reordered).collect();
    for wrong in 20_101..=20_104 {
        for second in WRONG_S {
            let file = pcap_at((0..).zip(&numbers).map(|(index, number)| {
                let ms = *number as u32;
                let seconds = if index == wrong {
                    second
                } else {
                    100_000_000 + ms / 1_000
                };
                (
                    (seconds, ms % 1_000 * 1_000),
                    (GROUP, 1, mold(*number, b'S')),
                )
            }));
            let feed = &inspect_bytes("stamp_behind.pcap", &file).unwrap().feeds[0];
            let counts = (feed.messages, feed.missing);
            assert_eq!(counts, (20_107, 0), "packet {wrong} at {second} s");
        }
    }
}

#[test]
fn wrong_stamp_leaves_the_order_of_two_files() {
    let a: Vec<u64> = (1..20).filter(|n| n % 3 != 0).collect();
    let b: Vec<u64> = (1..20).filter(|n| n % 3 != 1).collect();
    let none = (usize::MAX, 0);
    for wrong in 0..a.len() - 1 {
        for second in WRONG_S {
            let files = [
                millisecond_feed(&a, (wrong, second)),
                millisecond_feed(&b, none),
            ];
            let mut recording = recording(&files, &[]).unwrap();
            let (mut highest, mut clock) = (0, Nanos::ZERO);
            while let Some(packet) = recording.next().unwrap() {
                let number = u64::from(packet.payload[17]);
                assert!(
                    number + 2 >= highest,
                    "{number} behind {highest}, {wrong} at {second} s"
                );
                // A first stamp that is too early can't be told from a pause.
                let is_pause = wrong == 0 && second < 100_000_000;
                let at = packet.at;
                assert!(
                    at >= clock && (is_pause || at < Nanos::from_secs(1)),
                    "{at:?} after {clock:?}, {wrong} at {second} s"
                );
                (highest, clock) = (highest.max(number), packet.at);
            }
            assert_eq!(highest, 19);
        }
    }
}

#[test]
fn stamps_a_little_out_of_order_are_the_times_of_packets() {
    let file = |packets: &[(u32, u64)]| {
        let at = |ms: u32| (100, ms * 1_000);
        let packets = packets.iter();
        pcap_at(packets.map(|(ms, n)| (at(*ms), (GROUP, 1, mold(*n, b'S')))))
    };
    let one = file(&[(10, 1), (30, 3), (20, 4), (40, 5)]);
    let mut recording = recording(&[one, file(&[(25, 2)])], &[]).unwrap();
    for number in 1..=5 {
        let packet = recording.next().unwrap().unwrap();
        assert_eq!(packet.payload[17], number);
    }
}

/// Inspects several files.
fn inspect_files(name: &str, files: &[Vec<u8>]) -> Inspection {
    let folder = format!("tickcast-intake-{}-{name}", std::process::id());
    let folder = std::env::temp_dir().join(folder);
    std::fs::create_dir_all(&folder).unwrap();
    let paths: Vec<_> = (files.iter().enumerate())
        .map(|(index, bytes)| {
            let path = folder.join(format!("{index}.pcap"));
            std::fs::write(&path, bytes).unwrap();
            path
        })
        .collect();
    let selection = Selection::default();
    let inspection = Inspection::of(&paths, &selection, None, &Settings::default()).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    inspection
}

/// Returns a capture of some of the messages, 100 ms apart, by a clock that is ahead.
fn clocked_feed(is_kept: impl Fn(u64) -> bool, ahead_ms: impl Fn(u64) -> i64) -> Vec<u8> {
    let kept = (1..=200).filter(|n| is_kept(*n));
    pcap_at(kept.map(|n| {
        let ms = (1_000_000_000 + n as i64 * 100 + ahead_ms(n)) as u32;
        ((ms / 1_000, ms % 1_000 * 1_000), (GROUP, 1, mold(n, b'S')))
    }))
}

#[test]
fn clocks_of_files_that_differ_lose_nothing() {
    for ahead_s in [5, -5, 59, -59, 3_600, -3_600, 90_000] {
        let files = [
            clocked_feed(|n| n % 3 != 0, |_| 0),
            clocked_feed(|n| n % 3 != 1, |_| ahead_s * 1_000),
        ];
        let inspection = inspect_files("clocks", &files);
        let feed = &inspection.feeds[0];
        assert_eq!((feed.messages, feed.missing), (200, 0), "{ahead_s}");
        assert!(inspection.is_whole(), "{:?}", inspection.faults);
        let way = if ahead_s > 0 { "ahead" } else { "behind" };
        let text = format!("{}.000 s {way}", ahead_s.abs());
        let is_told = |note: &String| note.contains("1.pcap: the clock is") && note.contains(&text);
        assert!(
            inspection.notes.iter().any(is_told),
            "{:?}",
            inspection.notes
        );
    }
    let files = [
        clocked_feed(|n| n % 3 != 0, |_| 0),
        clocked_feed(|n| n % 3 != 1, |_| 40),
    ];
    let inspection = inspect_files("lag", &files);
    assert!(inspection.is_whole() && inspection.notes.is_empty());
}

#[test]
fn stamp_that_is_seconds_off_loses_nothing() {
    for (wrong, row) in [
        (1, 1),
        (2, 1),
        (80, 1),
        (80, 4),
        (81, 3),
        (199, 1),
        (200, 1),
    ] {
        for off_s in [2, -2, 30, -30] {
            let is_wrong = |n: u64| (wrong..wrong + row).contains(&n);
            let off = |n| if is_wrong(n) { off_s * 1_000 } else { 0 };
            let files = [
                clocked_feed(|n| n % 3 != 0 || is_wrong(n), off),
                clocked_feed(|n| n % 3 != 1, |_| 0),
            ];
            let inspection = inspect_files("stamp", &files);
            let feed = &inspection.feeds[0];
            let case = format!("{row} packets from {wrong} on by {off_s} s");
            assert_eq!((feed.messages, feed.missing), (200, 0), "{case}");
        }
    }
}

/// One file lacks message 2 and a heartbeat behind it. The stamp of its message 3, behind three heartbeats,
/// is too early.
#[test]
fn early_stamp_behind_heartbeats_loses_nothing() {
    for early_ms in [2_100, 2_600, 3_000, 3_400] {
        let file = |is_whole: bool| {
            let early = if is_whole { 0 } else { early_ms };
            let beat = |next| heartbeat(b"SESSION001", next);
            let message = |n| mold(n, b'S');
            let mut packets = vec![(0, message(1)), (1_000, beat(2))];
            if is_whole {
                packets.extend([(2_000, beat(2)), (2_600, message(2))]);
            }
            packets.extend([3_600, 4_600, 5_600].map(|ms| (ms, beat(3))));
            packets.push((6_100 - early, message(3)));
            packets.extend([(6_200, message(4)), (6_300, message(5))]);
            pcap_at(packets.into_iter().map(|(ms, payload)| {
                let at = (1_000 + ms / 1_000, ms % 1_000 * 1_000);
                (at, (GROUP, 1, payload))
            }))
        };
        let inspection = inspect_files("early", &[file(false), file(true)]);
        let feed = &inspection.feeds[0];
        let counts = (feed.messages, feed.missing, feed.late, feed.sessions);
        assert_eq!(counts, (5, 0, 0, 1), "{early_ms} ms");
    }
}

#[test]
fn clock_that_was_set_is_named_as_the_cause() {
    let files = [
        clocked_feed(|n| n % 3 != 0, |_| 0),
        clocked_feed(|n| n % 3 != 1, |n| if n > 100 { 5_000 } else { 0 }),
    ];
    let inspection = inspect_files("set", &files);
    let feed = &inspection.feeds[0];
    assert_eq!(feed.messages + feed.missing, 200);
    assert!(feed.late > 0 && feed.late == feed.missing, "{feed:?}");
    let is_told = |fault: &String| fault.contains("a clock was set");
    assert!(inspection.faults.iter().any(is_told));
}

#[test]
fn file_without_frames_beside_another_is_a_fault() {
    let feed = clocked_feed(|_| true, |_| 0);
    let inspection = inspect_files("none", &[feed, pcap([])]);
    assert_eq!(inspection.feeds[0].messages, 200);
    let [fault] = &inspection.faults[..] else {
        panic!("one fault: {:?}", inspection.faults);
    };
    assert!(
        fault.contains("1.pcap: the file holds no frames"),
        "{fault}"
    );
}

#[test]
fn messages_of_unknown_types_are_a_fault() {
    let kinds = [b'S', b'z', b'S'];
    let file = pcap((1..).zip(kinds).map(|(n, kind)| (GROUP, 1, mold(n, kind))));
    let inspection = inspect_bytes("unknown.pcap", &file).unwrap();
    let feed = &inspection.feeds[0];
    assert_eq!((feed.messages, feed.unknown_types), (2, 1));
    let [fault] = &inspection.faults[..] else {
        panic!("one fault: {:?}", inspection.faults);
    };
    assert!(fault.starts_with("1 messages of unknown types"), "{fault}");
}

#[test]
fn feed_beyond_the_counted_destinations_is_a_fault() {
    for (others, is_fault) in [(4_095, false), (4_096, true)] {
        let feed = [(GROUP, 1, mold(1, b'S'))];
        let host = [10, 0, 0, 2];
        let others = (1..=others).map(|port| (host, port, b"other".to_vec()));
        let late = [(host, 5_000, b"other".to_vec())];
        let file = pcap(feed.into_iter().chain(others).chain(late));
        let faults = faults(recording(&[file], &[]).unwrap());
        assert_eq!(!faults.is_empty(), is_fault, "{faults:?}");
        let is_about = |fault: &String| fault.starts_with("1 frames go to more than 4096");
        assert!(faults.iter().all(is_about), "{faults:?}");
    }
}

#[test]
fn chosen_destination_without_its_feed_is_a_fault() {
    let payloads = [segment(1), segment(2), b"short".to_vec()];
    let file = pcap(payloads.map(|payload| (GROUP, 1, payload)));
    for (only, frames) in [("239.1.1.1:1", 2), ("239.1.1.1:1#1", 1)] {
        let faults = faults(recording(std::slice::from_ref(&file), &[only]).unwrap());
        let [fault] = &faults[..] else {
            panic!("one fault: {faults:?}");
        };
        let text = format!("{frames} frames to the chosen destinations");
        assert!(fault.starts_with(&text), "{only}: {fault}");
    }
}

#[test]
fn feed_of_too_many_lines_is_refused() {
    let file = pcap([(GROUP, 1, mold(1, b'S'))]);
    let ports = (1..=257).map(|port| format!("239.1.1.1:{port}"));
    let ports: Vec<_> = ports.collect();
    let only: Vec<_> = ports.iter().map(String::as_str).collect();
    let most = recording(std::slice::from_ref(&file), &only[..256]).unwrap();
    assert_eq!(most.lines(), 256);
    let error = recording(&[file], &only).err().unwrap();
    let is_refused = matches!(error, RecordingError::TooManyLines { lines: 257, .. });
    assert!(is_refused, "{error}");
}

#[test]
fn streams_that_are_not_surveyed_are_a_fault() {
    for (ports, is_fault) in [(256, false), (257, true)] {
        let file = pcap((1..=ports).map(|port| (GROUP, port, mold(1, b'S'))));
        let inspection = inspect_bytes(&format!("{ports}.pcap"), &file).unwrap();
        assert_eq!(inspection.feeds[0].lines.len(), 256);
        let is_about = |fault: &String| fault.starts_with("more than 256 destinations");
        let faults = &inspection.faults;
        assert_eq!(faults.iter().any(is_about), is_fault, "{faults:?}");
        assert_eq!(inspection.is_whole(), !is_fault, "{faults:?}");
    }
}

#[test]
fn late_feed_is_a_fault_where_no_other_recording_reads_it() {
    // More packets than are surveyed precede the third feed, and a third channel of the second one.
    let first = (1..=20_000).map(|n| (GROUP, 1, mold(n, b'S')));
    let second = [(GROUP, 2, segment(1)), (GROUP, 2, segment(2))];
    let late = [(GROUP, 3, mold(1, b'S')), (GROUP, 2, segment(3))];
    let file = pcap(second.into_iter().chain(first).chain(late));
    let late_of = |only: &[&str], all_feeds| {
        let selection = Selection {
            all_feeds,
            ..selection(only)
        };
        let inspection = inspect_chosen("late.pcap", &file, &selection, None).unwrap();
        let late = (inspection.faults.iter()).filter(|fault| fault.contains("begins late"));
        let frames = late.map(|fault| fault.split(" are of another feed").next().unwrap().into());
        frames.collect::<Vec<String>>()
    };
    let late = ["1 frames to 239.1.1.1:2", "1 frames to 239.1.1.1:3"];
    assert_eq!(late_of(&[], true), late);
    for of_one in ["239.1.1.1:1", "239.1.1.1:2#2"] {
        assert_eq!(late_of(&[of_one], true), late, "{of_one}");
    }
    assert!(
        late_of(&["239.1.1.1:1"], false).is_empty(),
        "left out by choice"
    );
}

/// Returns a pcap of Ethernet with one frame a second.
fn ethernet(frames: impl IntoIterator<Item = Vec<u8>>) -> Vec<u8> {
    pcap_of(1, (1_000..).map(|second| (second, 0)).zip(frames))
}

/// Returns an Ethernet frame of a type.
fn frame(kind: u16, body: &[u8]) -> Vec<u8> {
    let mut frame = vec![1, 0, 0x5e, 1, 1, 1, 2, 0, 0, 0, 0, 1];
    frame.extend(kind.to_be_bytes());
    frame.extend(body);
    frame
}

/// Returns an IP packet of a message of the feed, with a protocol.
fn ip(sequence: u64, protocol: u8) -> Vec<u8> {
    let mut packet = raw((GROUP, 1, mold(sequence, b'S')));
    packet[9] = protocol;
    packet
}

#[test]
fn content_that_is_not_read_forbids_the_verdict_whole() {
    let feed = || (1..=3).map(|n| frame(0x0800, &ip(n, 17)));
    let pppoe = [&[0x11, 0, 0, 1, 0, 62, 0, 0x21][..], &ip(4, 17)].concat();
    let cases = [
        (frame(0x8864, &pppoe), "EtherType 0x8864 (PPPoE session)"),
        (frame(0x88e5, &ip(4, 17)), "EtherType 0x88e5 (MACsec)"),
        (frame(0x0000, &ip(4, 17)), "802.2 with the length 0"),
        (frame(0x0800, &ip(4, 136)), "IP protocol 136 (UDP-Lite)"),
    ];
    for (unread, text) in cases {
        let file = ethernet(feed().chain([unread.clone(), unread]));
        let inspection = inspect_bytes("unread.pcap", &file).unwrap();
        let [fault] = &inspection.faults[..] else {
            panic!("one fault: {:?}", inspection.faults);
        };
        assert!(fault.starts_with("2 frames of "), "{fault}");
        assert!(fault.contains(text), "{fault}");
        assert_eq!(inspection.account.class(Class::Damaged).frames, 2);
        assert_eq!(inspection.account.total().bytes, file.len() as u64);
    }
    let geneve = [
        &[0, 0, 0x65, 0x58, 0, 0, 1, 0][..],
        &frame(0x0800, &ip(2, 17)),
    ]
    .concat();
    let host = ([10, 0, 0, 9], 6081, geneve);
    let inspection = inspect_bytes("geneve.pcap", &pcap([(GROUP, 1, mold(1, b'S')), host]));
    let faults = inspection.unwrap().faults;
    assert!(faults[0].contains("Geneve"), "{faults:?}");
}

#[test]
fn ether_types_beyond_the_named_ones_are_one_fault() {
    for (kinds, further) in [(64, 0), (66, 2)] {
        let unread = (0..kinds).map(|kind| frame(0x9a00 + kind, &ip(4, 17)));
        let file = ethernet([frame(0x0800, &ip(1, 17))].into_iter().chain(unread));
        let faults = inspect_bytes("kinds.pcap", &file).unwrap().faults;
        assert_eq!(faults.len(), 64 + usize::from(further > 0));
        let text = format!("{further} frames of further EtherTypes or protocols are not read");
        assert_eq!(faults.contains(&text), further > 0, "{faults:?}");
    }
}

#[test]
fn content_without_a_feed_leaves_the_verdict_whole() {
    let harmless = [0x0806, 0x88cc, 0x8809, 0x88f7, 0x8863].map(|kind| frame(kind, &[0; 46]));
    let protocols = [1, 2, 6, 46, 89, 103].map(|protocol| frame(0x0800, &ip(1, protocol)));
    let tree = [frame(38, &[&[0x42, 0x42, 3][..], &[0; 43]].concat())];
    let dns = [(GROUP, 1, mold(1, b'S')), ([10, 0, 0, 9], 53, vec![0; 40])];
    assert!(inspect_bytes("dns.pcap", &pcap(dns)).unwrap().is_whole());
    let feed = [frame(0x0800, &ip(1, 17))].into_iter();
    let file = ethernet(feed.chain(harmless).chain(protocols).chain(tree));
    let inspection = inspect_bytes("harmless.pcap", &file).unwrap();
    assert!(inspection.is_whole(), "{:?}", inspection.faults);
}

#[test]
fn pseudowire_without_control_word_is_decoded() {
    let label = [0xff, 0xf0, 0x01, 0x40];
    let inner = (1..=3).map(|n| frame(0x0800, &ip(n, 17)));
    let file = ethernet(inner.map(|inner| frame(0x8847, &[&label[..], &inner].concat())));
    let inspection = inspect_bytes("eompls.pcap", &file).unwrap();
    assert!(inspection.is_whole(), "{:?}", inspection.faults);
    assert_eq!(inspection.feeds[0].messages, 3);
}

#[test]
fn another_run_of_a_session_is_no_repetition() {
    let day = |from: u32, code: u8, numbers: std::ops::RangeInclusive<u64>| {
        let packets = numbers.map(move |n| {
            let mut packet = mold(n, b'S');
            *packet.last_mut().unwrap() = code;
            (GROUP, 1, packet)
        });
        (from..).map(|second| (second, 0)).zip(packets)
    };
    // The second run is found beside the first, and when all but its first packet is forgotten.
    for (code, packets, conflicting) in [(b'Q', 5, 0), (b'M', 5, 5), (b'M', 9_000, 1 + 4_096)] {
        let first = day(1_000, b'Q', 1..=packets);
        let second = day(100_000, code, 1..=packets);
        let file = pcap_at(first.chain(second));
        let inspection = inspect_bytes("runs.pcap", &file).unwrap();
        let feed = &inspection.feeds[0];
        assert_eq!(feed.conflicting, conflicting, "{packets} {feed:?}");
        assert_eq!((feed.messages, feed.duplicates), (packets, packets));
        let is_told = |fault: &String| fault.contains("the count of the session began anew");
        assert_eq!(inspection.faults.iter().any(is_told), conflicting > 0);
        assert_eq!(inspection.is_whole(), conflicting == 0);
    }
}

#[test]
fn two_feeds_that_are_named_as_lines_conflict() {
    let other = |n: u64| {
        let mut packet = mold(n, b'S');
        packet[30] = 7;
        packet
    };
    for order in [[1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 3, 2, 4, 6, 5, 7, 9, 8]] {
        let packets = |of: fn(u64) -> Vec<u8>, port: u16| {
            order.into_iter().map(move |n| (GROUP, port, of(n)))
        };
        let pairs = |of: fn(u64) -> Vec<u8>| {
            packets(|n| mold(n, b'S'), 1)
                .zip(packets(of, 2))
                .flat_map(|(a, b)| [a, b])
        };
        let only = selection(&["239.1.1.1:1", "239.1.1.1:2"]);
        let inspect = |file: Vec<u8>| inspect_chosen("two.pcap", &file, &only, None).unwrap();
        let same = inspect(pcap_at(
            (0..).map(|n| (1_000, n)).zip(pairs(|n| mold(n, b'S'))),
        ));
        assert!(same.is_whole(), "{:?}", same.faults);
        let two = inspect(pcap_at((0..).map(|n| (1_000, n)).zip(pairs(other))));
        assert_eq!(two.feeds[0].conflicting, 9, "{:?}", two.feeds);
        let is_told = |fault: &String| fault.starts_with("9 packets differ");
        assert!(two.faults.iter().any(is_told), "{:?}", two.faults);
    }
}

/// Asserts how many frames are used, foreign and damaged, and that the table adds up to the file.
fn check_classes(inspection: &Inspection, file: &[u8], frames: [u64; 3]) {
    let account = &inspection.account;
    let classes = [Class::Used, Class::Foreign, Class::Damaged];
    let found = classes.map(|class| account.class(class).frames);
    assert_eq!(found, frames, "{account:?}\n{:?}", inspection.feeds);
    assert_eq!(account.total().bytes, file.len() as u64);
}

#[test]
fn frames_that_no_decoder_takes_are_not_used() {
    let dns = b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x07example\x03com\0\0\x01\0\x01";
    let other = |n: u64| {
        let mut packet = mold(n, b'S');
        packet[..10].copy_from_slice(b"FOREIGN001");
        packet
    };
    let mut cut = mold(7, b'S');
    cut.pop();
    let heartbeat = [&mold(7, b'S')[..18], &[0, 0]].concat();
    let payloads = [
        mold(1, b'S'),
        dns.to_vec(),
        mold(2, b'S'),
        dns.to_vec(),
        mold(2, b'S'),
        other(9),
        mold(3, b'S'),
        mold(4, b'S'),
        mold(5, b'S'),
        mold(6, b'S'),
        cut,
        heartbeat,
        Vec::new(),
    ];
    let file = pcap_at(
        (0..)
            .map(|n| (1_000, n))
            .zip(payloads.map(|it| (GROUP, 1, it))),
    );
    let inspection = inspect_bytes("dns-at-feed.pcap", &file).unwrap();
    assert!(!inspection.is_whole());
    assert_eq!(inspection.feeds[0].messages, 6);
    check_classes(&inspection, &file, [8, 4, 1]);
    let foreign = inspection.account.of(Reason::OtherFeed).frames;
    assert_eq!((foreign, inspection.feeds[0].duplicates), (4, 1));
}

/// Returns a heartbeat of MoldUDP64 that names the next sequence.
fn heartbeat(session: &[u8; 10], next: u64) -> Vec<u8> {
    [&session[..], &next.to_be_bytes(), &[0, 0]].concat()
}

#[test]
fn other_heartbeats_forbid_the_verdict_whole() {
    for (others, foreign, text) in [
        (vec![heartbeat(b"SESSION001", 10)], 0, ""),
        (vec![heartbeat(b"OTHER00001", 1)], 1, "not of the feed"),
        (vec![heartbeat(b"SESSION002", 41); 5], 5, "not of the feed"),
        // Three packets of one datagram.
        (vec![vec![0; 60]], 1, "3 packets are not of the feed"),
        (vec![Vec::new()], 1, "have no payload"),
    ] {
        let feed = (1..10).map(|n| mold(n, b'S'));
        for is_last in [true, false] {
            let mut payloads: Vec<_> = feed.clone().collect();
            let at = if is_last { 9 } else { 4 };
            if text.is_empty() && !is_last {
                continue;
            }
            payloads.splice(at..at, others.clone());
            let file = pcap(payloads.into_iter().map(|it| (GROUP, 1, it)));
            let inspection = inspect_bytes("heartbeats.pcap", &file).unwrap();
            assert_eq!(inspection.feeds[0].messages, 9, "{text}");
            assert_eq!(inspection.feeds[0].missing, 0, "{text}");
            let faults = inspection.faults.join("\n");
            assert_eq!(inspection.is_whole(), text.is_empty(), "{faults}");
            assert!(faults.contains(text), "{text}: {faults}");
            let used = 9 + u64::from(text.is_empty());
            check_classes(&inspection, &file, [used, foreign, 0]);
        }
    }
}

#[test]
fn session_behind_a_gap_of_a_file_comes_whole() {
    let next = |n: u64| [b"SESSION002", &mold(n, b'S')[10..]].concat();
    let first = [1, 2, 4].map(|n| mold(n, b'S'));
    let payloads = first.into_iter().chain((1..=600).map(next));
    let at = (0..).map(|micros| (1_000, micros));
    let file = pcap_at(at.zip(payloads.map(|it| (GROUP, 1, it))));
    let inspection = inspect_bytes("gap.pcap", &file).unwrap();
    let feed = &inspection.feeds[0];
    assert_eq!((feed.messages, feed.missing, feed.foreign), (603, 1, 0));
    check_classes(&inspection, &file, [603, 0, 0]);
}

#[test]
fn bytes_behind_the_messages_of_a_packet_are_a_fault() {
    let longer = |mut packet: Vec<u8>, rest: &[u8]| {
        packet.extend(rest);
        packet
    };
    let heartbeat = [&mold(4, b'S')[..18], &[0, 0]].concat();
    // The length of the message became 0, so that its bytes are behind it.
    let mut empty = mold(3, b'S');
    empty[21] = 0;
    for (third, missing) in [
        (longer(mold(3, b'S'), b"zz"), 0),
        (longer(heartbeat, b"zz"), 1),
        (empty, 1),
    ] {
        let payloads = [mold(1, b'S'), mold(2, b'S'), third, mold(4, b'S')];
        let file = pcap(payloads.map(|it| (GROUP, 1, it)));
        let inspection = inspect_bytes("longer.pcap", &file).unwrap();
        let feed = &inspection.feeds[0];
        assert_eq!((feed.missing, feed.malformed), (missing, 1), "{feed:?}");
        assert_eq!(feed.messages, 4 - missing);
        assert!(!inspection.is_whole());
    }
}

#[test]
fn empty_message_is_a_fault() {
    // Two messages, the first one of length 0.
    let mut third = mold(3, b'S');
    third.splice(18..20, [0, 2, 0, 0]);
    let payloads = [mold(1, b'S'), mold(2, b'S'), third, mold(5, b'S')];
    let file = pcap(payloads.map(|it| (GROUP, 1, it)));
    let inspection = inspect_bytes("empty.pcap", &file).unwrap();
    let feed = &inspection.feeds[0];
    assert_eq!((feed.messages, feed.missing, feed.malformed), (4, 0, 1));
    assert!(!inspection.is_whole());
}

#[test]
fn packets_of_no_channel_are_not_of_the_feeds() {
    let payloads = [
        segment(1),
        segment(2),
        b"junk".to_vec(),
        Vec::new(),
        Vec::new(),
    ];
    let selection = Selection {
        all_feeds: true,
        ..Selection::default()
    };
    let file = pcap(payloads.map(|it| (GROUP, 1, it)));
    let inspection = inspect_chosen("channels.pcap", &file, &selection, None).unwrap();
    assert_eq!(inspection.feeds.len(), 2);
    assert_eq!(inspection.account.of(Reason::OtherFeed).frames, 3);
    assert_eq!(inspection.account.of(Reason::OtherDestination).frames, 0);
    let text = "2 frames to the feed's destinations have no payload";
    assert!(
        inspection.faults.iter().any(|it| it == text),
        "{:?}",
        inspection.faults
    );
}

#[test]
fn packet_with_a_damaged_destination_makes_no_feed() {
    let packets = (1..=9).map(|n| (GROUP, if n == 5 { 65 } else { 1 }, mold(n, b'S')));
    let file = pcap(packets);
    for all_feeds in [false, true] {
        let selection = Selection {
            all_feeds,
            ..Selection::default()
        };
        let inspection = inspect_chosen("one.pcap", &file, &selection, None).unwrap();
        let [feed] = &inspection.feeds[..] else {
            panic!("one feed: {:?}", inspection.feeds);
        };
        assert_eq!((feed.messages, feed.missing), (8, 1));
        check_classes(&inspection, &file, [8, 1, 0]);
        let is_told = |fault: &String| fault.contains("to 239.1.1.1:65 are of the session");
        assert!(
            inspection.faults.iter().any(is_told),
            "{:?}",
            inspection.faults
        );
    }
    // A feed of few packets has its own session, or enough of them.
    let own = |n: u64| [b"SESSION002", &mold(n, b'S')[10..]].concat();
    let few = [(GROUP, 2, own(1))];
    let feed = (1..=9).map(|n| (GROUP, 1, mold(n, b'S')));
    let three = (20..23).map(|n| (GROUP, 2, mold(n, b'S')));
    for file in [pcap(feed.clone().chain(few)), pcap(feed.chain(three))] {
        let error = inspect_bytes("few.pcap", &file).unwrap_err();
        assert!(matches!(error, RecordingError::Choice { .. }), "{error}");
    }
}

#[test]
fn few_packets_elsewhere_are_named_by_their_destination() {
    for (group, port, cause) in [
        (GROUP, 65, "one bit of their destination differs"),
        ([239, 1, 1, 3], 1, "one bit of their destination differs"),
        ([10, 0, 0, 9], 1, "a retransmission to one host"),
        ([239, 1, 1, 6], 1, "another feed of a few packets"),
        ([239, 1, 1, 1], 6, "another feed of a few packets"),
    ] {
        let feed = (1..=9)
            .filter(|n| *n != 5)
            .map(|n| (GROUP, 1, mold(n, b'S')));
        let file = pcap(feed.chain([(group, port, mold(5, b'S'))]));
        let inspection = inspect_bytes("few.pcap", &file).unwrap();
        let faults = inspection.faults.join("\n");
        assert!(faults.contains(cause), "{cause}: {faults}");
        assert_eq!(
            (inspection.feeds[0].messages, inspection.feeds[0].missing),
            (8, 1)
        );
        check_classes(&inspection, &file, [8, 1, 0]);
    }
    // The remedy that is named there takes the packet.
    let feed = (1..=9)
        .filter(|n| *n != 5)
        .map(|n| (GROUP, 1, mold(n, b'S')));
    let file = pcap(feed.chain([([10, 0, 0, 9], 1, mold(5, b'S'))]));
    let only = selection(&["239.1.1.1:1", "10.0.0.9:1"]);
    let inspection = inspect_chosen("few.pcap", &file, &only, None).unwrap();
    check_classes(&inspection, &file, [9, 0, 0]);
}

#[test]
fn feed_is_found_wherever_it_begins() {
    let other = (0..20_100).map(|_| (GROUP, 9, b"junk".to_vec()));
    let beats = (0..20_100).map(|_| (GROUP, 1, heartbeat(b"SESSION001", 1)));
    let feed = (1..=5).map(|n| (GROUP, 1, mold(n, b'S')));
    for (before, foreign) in [(other.collect::<Vec<_>>(), 20_100), (beats.collect(), 0)] {
        let file = pcap(before.into_iter().chain(feed.clone()));
        let inspection = inspect_bytes("begins.pcap", &file).unwrap();
        let found = &inspection.feeds[0];
        assert_eq!((found.messages, found.missing), (5, 0));
        check_classes(&inspection, &file, [20_105 - foreign, foreign, 0]);
        assert_eq!(inspection.is_whole(), foreign == 0);
        // Files that are no regular ones are read like pipes, which can't be read again.
        let error = recording(&[file], &[]).err().unwrap().to_string();
        let text = "later ones to 239.1.1.1:1 are of one: choose it by its destination";
        assert!(error.contains(text), "{error}");
    }
    let junk = pcap((0..20_100).map(|_| (GROUP, 9, b"junk".to_vec())));
    let error = inspect_bytes("junk.pcap", &junk).unwrap_err();
    assert!(matches!(error, RecordingError::Nothing { .. }), "{error}");
    assert!(error.to_string().contains("junk.pcap"), "{error}");
}

#[test]
fn survey_from_a_late_feed_on_ends_behind_20000_packets() {
    for (first, feeds) in [(19_999, 2), (20_000, 1)] {
        let junk = (0..20_000).map(|_| (GROUP, 9, b"junk".to_vec()));
        let one = (1..=first).map(|n| (GROUP, 1, mold(n, b'S')));
        let other = (1..=5).map(|n| (GROUP, 2, [b"SESSION002", &mold(n, b'S')[10..]].concat()));
        let file = pcap(junk.chain(one).chain(other));
        let found = match inspect_bytes("late_survey.pcap", &file) {
            Ok(inspection) => inspection.feeds.len(),
            Err(RecordingError::Choice { feeds, .. }) => feeds.len(),
            Err(other) => panic!("{other}"),
        };
        assert_eq!(found, feeds, "{first}");
    }
}

#[test]
fn named_feed_may_begin_behind_the_survey() {
    let early = (1..=20_100).map(|n| (GROUP, 1, mold(n, b'S')));
    let junk = [(GROUP, 2, b"junk".to_vec())];
    let late = (1..=5).map(|n| (GROUP, 2, mold(n, b'S')));
    let file = pcap(early.chain(junk).chain(late));
    let named = inspect_chosen("behind.pcap", &file, &selection(&["239.1.1.1:2"]), None);
    let inspection = named.unwrap();
    let feed = &inspection.feeds[0];
    assert_eq!((feed.messages, feed.missing), (5, 0));
    check_classes(&inspection, &file, [5, 20_101, 0]);
    let error = inspect_chosen("behind.pcap", &file, &selection(&["239.1.1.1:3"]), None);
    let error = error.unwrap_err();
    assert!(matches!(error, RecordingError::NotThere { .. }), "{error}");
}

#[test]
fn pipe_is_surveyed_beyond_its_first_packet() {
    let two = |of: fn(u64) -> Vec<u8>, seconds: u32| {
        let one = (1..=5).map(|n| ((1_000, n as u32), (GROUP, 1, mold(n, b'S'))));
        let other = (1..=5).map(move |n| ((1_000 + seconds, 9 + n as u32), (GROUP, 2, of(n))));
        pcap_at(one.chain(other))
    };
    // Files that are no regular ones are read like pipes.
    let lines = recording(&[two(|n| mold(n, b'S'), 0)], &[]).unwrap();
    assert_eq!(lines.lines(), 2);
    let feed = |n: u64| [b"SESSION002", &mold(n, b'S')[10..]].concat();
    let asked = recording(&[two(feed, 0)], &[]).err().unwrap();
    assert!(matches!(asked, RecordingError::Choice { .. }), "{asked}");
    for seconds in [0, 5] {
        let mut named = recording(&[two(feed, seconds)], &["239.1.1.1:2"]).unwrap();
        let mut packets = 0;
        while named.next().unwrap().is_some() {
            packets += 1;
        }
        assert_eq!(packets, 5);
    }
}

#[test]
fn merged_packets_that_were_cut_off_are_not_parted() {
    let merged = [mold(2, b'S'), mold(3, b'S')].concat();
    let first = pcap([(GROUP, 1, mold(1, b'S'))]);
    let file = pcap([(GROUP, 1, mold(1, b'S')), (GROUP, 1, merged)]);
    for (cut, packets) in [(0, 3), (4, 2)] {
        let mut file = file[..file.len() - cut].to_vec();
        let captured = (file.len() - first.len() - 16) as u32;
        file[first.len() + 8..][..4].copy_from_slice(&captured.to_le_bytes());
        let mut recording = recording(&[file], &[]).unwrap();
        let mut found = 0;
        while recording.next().unwrap().is_some() {
            found += 1;
        }
        assert_eq!(found, packets, "{cut} bytes are cut off");
    }
}

/// A reader that counts the bytes that were taken.
struct Metered(Cursor<Vec<u8>>, Arc<AtomicUsize>);

impl Read for Metered {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.0.read(buffer)?;
        self.1.fetch_add(len, Ordering::Relaxed);
        Ok(len)
    }
}

/// The writer of a pipe may pause, and a long file must not be held in memory.
#[test]
fn pipe_is_read_no_further_than_its_survey() {
    let file = pcap((1..=100_000).map(|n| (GROUP, 1, mold(n, b'S'))));
    let (len, taken) = (file.len(), Arc::new(AtomicUsize::new(0)));
    let reader = Metered(Cursor::new(file), Arc::clone(&taken));
    let capture = Capture::from_reader("test", reader).unwrap();
    let mut recording = Recording::new(vec![capture], &Selection::default(), None).unwrap();
    assert!(recording.next().unwrap().is_some());
    let taken = taken.load(Ordering::Relaxed);
    assert!(taken < len / 2, "{taken} of {len} bytes");
}

#[test]
fn recording_reuses_the_memory_of_packets() {
    let file = pcap((1..=3_000).map(|n| (GROUP, 1, mold(n, b'S'))));
    let mut recording = recording(&[file], &[]).unwrap();
    let mut read = |packets: u64| {
        for _ in 0..packets {
            assert!(recording.next().unwrap().is_some());
        }
    };
    // These were surveyed, or are the first ones behind.
    read(1_500);
    let info = allocation_counter::measure(|| read(1_000));
    // A table may grow.
    assert!(info.count_total < 100, "{}", info.count_total);
}

/// Returns a packet of SoupBinTCP.
fn soup(kind: u8, payload: &[u8]) -> Vec<u8> {
    let len = (payload.len() as u16 + 1).to_be_bytes();
    [&len[..], &[kind], payload].concat()
}

#[test]
fn login_that_repeats_and_passes_over_messages_is_exact() {
    let login = |next: u64| soup(b'A', format!("{:10}{next:20}", "ONE").as_bytes());
    let event = |n: u8| soup(b'S', &[&b"S\0\0\0\0\0\0\0\0\0"[..], &[n, b'Q']].concat());
    let file = [
        login(3),
        event(3),
        event(4),
        login(4),
        event(4),
        event(5),
        login(9),
        event(9),
        login(10),
    ];
    let inspection = inspect_bytes("logins.bin", &file.concat()).unwrap();
    let feed = &inspection.feeds[0];
    assert_eq!((feed.messages, feed.duplicates), (4, 1));
    assert_eq!((feed.missing, feed.sessions), (3, 1));
    let [fault] = &inspection.faults[..] else {
        panic!("one fault: {:?}", inspection.faults);
    };
    assert!(
        fault.starts_with("messages 6 to 8 (3) are missing"),
        "{fault}"
    );
    assert_eq!(inspection.account.of(Reason::Repeated).frames, 1);
}

#[test]
fn binary_file_with_a_wrong_first_message_is_read() {
    let event = b"\0\x0cS\0\0\0\0\0\0\0\0\0\0M";
    for wrong in [&b"\0\x0b"[..], b"\0\0", b"\0\x0c?", b"\xff\xff", b"\0\x0cT"] {
        let mut bytes = event.repeat(337);
        bytes[..wrong.len()].copy_from_slice(wrong);
        let inspection = inspect_bytes("wrong-first", &bytes).unwrap();
        let [feed] = &inspection.feeds[..] else {
            panic!("one feed: {:?}", inspection.feeds);
        };
        assert_eq!(feed.name, "BinaryFILE of ITCH 5.0");
        // A type that the decoder does not know costs its message; a wrong frame is skipped.
        let is_unknown = wrong.last() == Some(&b'T');
        let (messages, unknown) = (feed.messages, feed.unknown_types);
        assert_eq!((messages, unknown), (336, u64::from(is_unknown)));
        assert!(!inspection.is_whole());
        let faults = inspection.faults.join("; ");
        let is_skipped = faults.contains("bytes 0 to 14 (14) are no sound record");
        assert_eq!(is_skipped, !is_unknown, "{faults}");
        assert_eq!(inspection.account.total().bytes, bytes.len() as u64);
    }
}

#[test]
fn binary_file_of_no_messages_is_not_whole() {
    let inspection = inspect_bytes("end-mark", &[0, 0]).unwrap();
    let faults = &inspection.faults;
    assert!(faults[0].contains("no messages"), "{faults:?}");
    assert!(!inspection.is_whole());
}

#[test]
fn binary_file_of_itch_41_is_named() {
    let message =
        |kind: u8, len: u8| [&[0, len, kind][..], &vec![0; usize::from(len) - 1]].concat();
    let file = [message(b'T', 5), message(b'S', 6), message(b'A', 30)].concat();
    let error = inspect_bytes("itch-41", &file).unwrap_err().to_string();
    assert!(error.contains("looks like ITCH 4.1"), "{error}");
}

#[test]
fn file_without_a_feed_is_described_by_its_content() {
    let clues = |file: &[u8]| match inspect_bytes("clues.pcap", file) {
        Err(RecordingError::Nothing { clues, .. }) => clues,
        other => panic!("{other:?}"),
    };
    let of = |kind: u16, count: usize| vec![frame(kind, &[0; 46]); count].into_iter();
    let udp = |port| frame(0x0800, &raw(([10, 0, 0, 9], port, b"other".to_vec())));
    let frames = of(0x0806, 1).chain(of(0x8864, 3)).chain(of(0x88cc, 2));
    let frames = frames.chain([udp(53), udp(53), udp(999)]);
    assert_eq!(
        clues(&ethernet(frames)),
        [
            "3 frames of EtherType 0x8864 (PPPoE session)",
            "2 frames: link control (LLDP, LACP, spanning tree)",
            "1 frames: ARP",
            "2 frames to 10.0.0.9:53 (DNS)",
            "1 frames to 10.0.0.9:999",
        ]
    );
    assert_eq!(clues(&ethernet([])), ["it holds no frames"]);
    let mut snapped = pcap([([10, 0, 0, 9], 999, b"other".to_vec())]);
    snapped.truncate(snapped.len() - 2);
    let captured_at = 24 + 8;
    snapped[captured_at] -= 2;
    let snapped = clues(&snapped);
    let expected = [
        "1 datagrams are cut off by the capture",
        "1 frames to 10.0.0.9:999",
    ];
    assert_eq!(snapped, expected);
}

#[test]
fn clues_name_fragments_tunnels_and_streams() {
    let clues = |packets: [Vec<u8>; 2]| {
        let frames = packets.map(|packet| frame(0x0800, &packet));
        match inspect_bytes("clues.pcap", &ethernet(frames)) {
            Err(RecordingError::Nothing { clues, .. }) => clues,
            other => panic!("{other:?}"),
        }
    };
    let to = |port, payload: &[u8]| raw(([10, 0, 0, 9], port, payload.to_vec()));
    let (mut fragment, mut tcp) = (to(1, b"12345678"), to(1, b"12345678"));
    fragment[6] = 0x20;
    tcp[9] = 6;
    let expected = [
        "1 frames: TCP, which is not read (SoupBinTCP: save its stream as a file of its own)",
        "1 frames: fragments of incomplete packets",
    ];
    assert_eq!(clues([fragment, tcp]), expected);
    let soup = soup(b'S', &mold(1, b'S')[22..]);
    let expected = [
        "1 frames to 10.0.0.9:7 looks like SoupBinTCP: record it as a file of its own",
        "1 frames to 10.0.0.9:2152 look like GTP-U, a tunnel that is not read: record behind its end",
    ];
    let gtp = to(2152, &[0x30, 0xff, 0, 0]);
    assert_eq!(clues([to(7, &soup), gtp]), expected);
}

#[test]
fn multicast_of_a_service_leaves_the_verdict_whole() {
    for (port, is_whole) in [(5_353, true), (5_354, false)] {
        let other = ([224, 0, 0, 251], port, b"other".to_vec());
        let file = pcap([(GROUP, 1, mold(1, b'S')), other]);
        let inspection = inspect_bytes("service.pcap", &file).unwrap();
        assert_eq!(inspection.is_whole(), is_whole, "{port}");
    }
}

#[test]
fn survey_ends_at_exactly_32_mib() {
    const LEN: usize = 60_000;
    let first = || (1..=3).map(|n| (GROUP, 1, mold(n, b'S')));
    let rest = (32 << 20) - 3 * mold(1, b'S').len();
    for (short, feeds) in [(1, 2), (0, 1)] {
        let lens = (0..rest / LEN).map(|_| LEN).chain([rest % LEN - short]);
        let others = lens.map(|len| ([10, 0, 0, 9], 9, vec![b'x'; len]));
        let second = [(GROUP, 2, [b"SESSION002", &mold(1, b'S')[10..]].concat())];
        let datagrams = first().chain(others).chain(second);
        let all = (0..)
            .zip(datagrams)
            .map(|(at, datagram)| ((1_000, at), datagram));
        let found = match recording(&[pcap_at(all)], &[]) {
            Ok(recording) => recording.feeds().len(),
            Err(RecordingError::Choice { feeds, .. }) => feeds.len(),
            Err(other) => panic!("{other}"),
        };
        assert_eq!(found, feeds, "{short}");
    }
}

#[test]
fn survey_ends_behind_a_number_of_bytes() {
    const LEN: usize = 60_000;
    let surveyed = (32 << 20) / LEN;
    for (others, feeds) in [(surveyed - 2, 2), (surveyed + 2, 1)] {
        let feed = |port| (1..=3).map(move |n| (GROUP, port, mold(n, b'S')));
        let other = |_| ([10, 0, 0, 9], 9, vec![b'x'; LEN]);
        let second = feed(2).map(|(group, port, mut packet)| {
            packet[9] = b'2';
            (group, port, packet)
        });
        let datagrams = feed(1).chain((0..others).map(other)).chain(second);
        let all = datagrams
            .zip(0..)
            .map(|(datagram, at)| ((1_000, at), datagram));
        let found = match recording(&[pcap_at(all)], &[]) {
            Ok(recording) => recording.feeds().len(),
            Err(RecordingError::Choice { feeds, .. }) => feeds.len(),
            Err(other) => panic!("{other}"),
        };
        assert_eq!(found, feeds, "{others}");
    }
}
