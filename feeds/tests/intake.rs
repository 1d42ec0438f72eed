//! The table of small spoilt inputs: each file's right answer, as far as one line decides it.
//! Skipped, loudly, where the data is not there.

mod common;

use std::path::PathBuf;

use common::data_dir;
use tickcast_feeds::capture::CaptureError;
use tickcast_feeds::capture::account::{Account, Class, Reason};
use tickcast_feeds::recording::{Inspection, RecordingError, Selection};
use tickcast_feeds::venues::Settings;

fn file(name: &str) -> Option<PathBuf> {
    Some(data_dir()?.join("intake").join(name))
}

fn inspect(name: &str, only: &[&str]) -> Option<Result<Inspection, RecordingError>> {
    let selection = Selection {
        only: only.iter().map(|only| only.parse().unwrap()).collect(),
        all_feeds: only == ["all"],
    };
    let path = file(name)?;
    let inspection = Inspection::of(path, &selection, None, &Settings::default());
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
fn each_spoilt_file_gives_its_right_answer() {
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
        let findings = inspection.findings.kept().iter().map(ToString::to_string);
        let told: Vec<_> = findings.chain(inspection.faults.clone()).collect();
        let told = told.join("\n");
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
        let all = Inspection::of(path, &all, None, &Settings::default()).unwrap();
        let got: Vec<_> = all.feeds.iter().map(|feed| feed.messages).collect();
        assert_eq!(got, feeds.map(|(_, messages)| messages), "{name}");
        assert!(all.is_whole(), "{:?}", all.faults);
    }
}

#[test]
fn lines_with_equal_messages_are_one_feed() {
    let Some(inspection) = inspect("14_ab_lines_B_late_3_packets.pcap", &[]) else {
        return;
    };
    let inspection = inspection.unwrap();
    assert_eq!(inspection.feeds.len(), 1);
    assert!(
        inspection.feeds[0]
            .name
            .contains("239.1.2.3:26400 and 239.1.3.3:26400")
    );
    assert_eq!(inspection.account.class(Class::Foreign).frames, 0);
}

#[test]
fn a_dns_query_is_foreign_and_costs_nothing() {
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
        let inspection = Inspection::of(dir.join(name), &selection, None, &Settings::default());
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
    let inspection = Inspection::of(&path, &Selection::default(), None, &Settings::default());
    let error = inspection.unwrap_err();
    assert!(matches!(
        error,
        RecordingError::Capture(CaptureError::NotACapture { .. })
    ));
    assert!(error.to_string().contains("unxz"), "{error}");
    std::fs::remove_dir_all(&folder).unwrap();
}
