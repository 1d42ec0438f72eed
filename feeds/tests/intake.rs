//! The table of small spoilt inputs: each file's right answer, as far as one line decides it.
//! Skipped, loudly, where the data is not there.

mod common;

use std::path::PathBuf;

use common::{Recorded, data_dir};
use tickcast_feeds::arbiter::Holding;
use tickcast_feeds::capture::account::{Account, Class, Reason};
use tickcast_feeds::capture::{Capture, CaptureError};
use tickcast_feeds::recording::{Inspection, RecordingError, Selection};
use tickcast_feeds::venues::{Format, Settings};
use tickcast_reliability::record::{InstrumentDefMsg, SymbolMappingMsg};

fn file(name: &str) -> Option<PathBuf> {
    Some(data_dir()?.join("intake").join(name))
}

fn inspect(name: &str, only: &[&str]) -> Option<Result<Inspection, RecordingError>> {
    let selection = Selection {
        only: only.iter().map(|only| only.parse().unwrap()).collect(),
        all_feeds: only == ["all"],
    };
    let path = file(name)?;
    let inspection = Inspection::of(&[path], &selection, None, &Settings::default());
    if let Ok(inspection) = &inspection {
        check_balance(&inspection.account);
    }
    Some(inspection)
}

/// Asserts frames = used + harmless + foreign + damaged, and the same of bytes.
fn check_balance(account: &Account) {
    let classes = Class::ALL.map(|class| account.class(class));
    let total = account.total();
    let sum =
        |of: fn(&tickcast_feeds::capture::account::Row) -> u64| classes.iter().map(of).sum::<u64>();
    assert_eq!(
        (sum(|r| r.frames), sum(|r| r.bytes)),
        (total.frames, total.bytes)
    );
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
        let told = texts_of.join("\n");
        let is_right = got == *messages
            && inspection.is_whole() == *whole
            && texts.iter().all(|text| told.contains(text));
        if !is_right {
            wrong.push(format!(
                "{name}: {got} messages, {}\n{told}\n{:?}",
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
    let selection = Selection {
        only: vec![LINE_A.parse().unwrap()],
        all_feeds: false,
    };
    let files = [&lines, &base];
    let inspection = Inspection::of(&files, &selection, None, &Settings::default()).unwrap();
    check_union(&inspection, &[(LINE_A, 4), (LINE_A, 0)]);
    let of_files = inspection.feeds[0].lines.iter().map(|it| it.line.file);
    assert_eq!(of_files.collect::<Vec<_>>(), [0, 1]);
    check_balance(&inspection.account);
    let sizes = files.map(|path| std::fs::metadata(path).unwrap().len());
    let total = inspection.account.total();
    assert_eq!(total.bytes, sizes.iter().sum::<u64>());
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
    let folder = std::env::temp_dir().join(format!("tickcast-intake-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("day.pcap.xz");
    std::fs::write(&path, b"\xfd7zXZ\0\0\x04").unwrap();
    let inspection = Inspection::of(&[&path], &Selection::default(), None, &Settings::default());
    let error = inspection.unwrap_err();
    assert!(matches!(
        error,
        RecordingError::Capture(CaptureError::NotACapture { .. })
    ));
    assert!(error.to_string().contains("unxz"), "{error}");
    std::fs::remove_dir_all(&folder).unwrap();
}
