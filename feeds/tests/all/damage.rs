//! Files with one fault each, built here byte by byte: its cost is that fault, and one line names it.

use std::path::PathBuf;

use tickcast_feeds::capture::account::Reason;
use tickcast_feeds::recording::{Inspection, RecordingError, Selection};
use tickcast_feeds::venues::Settings;

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
