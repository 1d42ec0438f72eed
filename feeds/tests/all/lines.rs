//! The lines of a source: real and made captures, thinned and reordered.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use crate::common::data_dir;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tickcast_feeds::arbiter::{
    Arbiter, Blocks, Holding, Lines, Listen, PacketHead, PacketKind, Protocol,
};
use tickcast_feeds::capture::Capture;
use tickcast_feeds::itch::messages::ItchMessage;
use tickcast_feeds::moldudp64::MoldUdp64;
use tickcast_feeds::source::{Incident, Packet, ResumePoint};
use tickcast_feeds::venues::Format;
use tickcast_reliability::types::{Nanos, SourcePosition};

/// CME MDP3: one sequence per packet, so a packet counts as one message.
#[derive(Clone, Copy)]
struct Mdp3;

#[derive(Clone)]
struct WholePacket<'a>(Option<&'a [u8]>);

impl<'a> Iterator for WholePacket<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        self.0.take()
    }
}

impl<'a> Blocks<'a> for WholePacket<'a> {
    fn fault(&self) -> Option<&'static str> {
        None
    }
}

impl Protocol for Mdp3 {
    type Note = ();
    type Blocks<'a> = WholePacket<'a>;

    fn read<'a>(&self, payload: &'a [u8]) -> Result<(PacketHead<()>, WholePacket<'a>), Incident> {
        let Some((sequence, messages)) = payload.split_first_chunk::<4>() else {
            let reason = "an MDP3 packet is shorter than its sequence";
            return Err(Incident::Malformed { reason });
        };
        let head = PacketHead {
            session: 0,
            first: u32::from_le_bytes(*sequence).into(),
            count: 1,
            kind: PacketKind::Data,
            sent_at: 0,
            note: (),
        };
        Ok((head, WholePacket(Some(messages))))
    }

    fn is_known(&self, message: &[u8]) -> bool {
        message.len() > 8
    }
}

/// Everything that an arbiter returned.
#[derive(Default)]
struct Reported {
    messages: Vec<(u64, Vec<u8>)>,
    gaps: Vec<(u64, u64)>,
    incidents: Vec<Incident>,
}

impl<P: Protocol> Listen<P> for Reported {
    fn packet(&mut self, _: Nanos, _: &P::Note) {}

    fn message(&mut self, position: SourcePosition, message: &[u8]) {
        self.messages.push((position.sequence(), message.to_vec()));
    }

    fn incident(&mut self, incident: Incident) {
        if let Incident::Gap { from, missing } = incident {
            self.gaps.push((from.sequence(), missing));
        }
        self.incidents.push(incident);
    }
}

/// A packet of a line, as captured.
#[derive(Clone)]
struct Arrival {
    line: usize,
    at: Nanos,
    payload: Vec<u8>,
}

/// Reads a capture; each destination in order of its first packet is a line.
fn arrivals(path: PathBuf) -> Vec<Arrival> {
    let mut capture = Capture::open(path).expect("a capture");
    let mut destinations: Vec<SocketAddr> = Vec::new();
    let mut all = Vec::new();
    while let Some(datagram) = capture.next().expect("a readable capture") {
        let known = destinations
            .iter()
            .position(|it| *it == datagram.destination);
        let line = known.unwrap_or_else(|| {
            destinations.push(datagram.destination);
            destinations.len() - 1
        });
        all.push(Arrival {
            line,
            at: datagram.received_at,
            payload: datagram.payload.to_vec(),
        });
    }
    all
}

fn arbitrate<P: Protocol>(
    protocol: P,
    lines: Lines,
    arrivals: &[Arrival],
) -> (Arbiter<P>, Reported) {
    let mut arbiter = Arbiter::new(protocol, lines, false);
    let mut reported = Reported::default();
    for arrival in arrivals {
        let packet = Packet {
            received_at: arrival.at,
            payload: &arrival.payload,
        };
        arbiter.packet(arrival.line, arrival.at, packet, &mut reported);
    }
    arbiter.finish(&mut reported);
    (arbiter, reported)
}

const fn itch() -> MoldUdp64 {
    MoldUdp64::new(|message| ItchMessage::read(message).is_ok())
}

fn intake(file: &str) -> Option<Vec<Arrival>> {
    Some(arrivals(data_dir()?.join("intake").join(file)))
}

/// The messages of the base file, which most files of the folder spoil in one way.
fn base() -> Option<Vec<(u64, Vec<u8>)>> {
    let (_, reported) = arbitrate(itch(), Lines::default(), &intake("01_eth_us.pcap")?);
    assert_eq!(reported.messages.len(), 42);
    Some(reported.messages)
}

fn one_line(holding: Holding) -> Lines {
    Lines { count: 1, holding }
}

#[test]
fn swapped_packets_are_delivered_whole() {
    let Some(base) = base() else { return };
    for file in ["36_mold_reorder_one.pcap", "75_first_two_swapped.pcap"] {
        let arrivals = intake(file).unwrap();
        for holding in [Holding::RECORDED, Holding::live(2_000, 10_000)] {
            let (arbiter, reported) = arbitrate(itch(), one_line(holding), &arrivals);
            assert_eq!(reported.messages, base, "{file}");
            assert_eq!(reported.incidents, [Incident::EndOfSession], "{file}");
            assert_eq!(arbiter.line(0).missing, 0, "{file}");
        }
        let (_, reported) = arbitrate(itch(), Lines::default(), &arrivals);
        assert_ne!(reported.messages, base, "{file}: without holding it is not");
    }
}

#[test]
fn lines_of_one_input_complete_each_other() {
    let Some(base) = base() else { return };
    let arrivals = intake("14_ab_lines_B_late_3_packets.pcap").unwrap();
    let holding = Holding::live(2_000, 4_000);
    let (arbiter, reported) = arbitrate(itch(), Lines { count: 2, holding }, &arrivals);
    assert_eq!(reported.messages, base);
    assert_eq!(reported.gaps, []);
    let (a, b) = (arbiter.line(0), arbiter.line(1));
    assert_eq!(a.first + b.first, 42, "each message came first on one line");
    assert_eq!(b.missing, 0);
    assert!(a.missing >= 3, "the messages of three packets");
    assert_eq!(a.missing, b.first, "those that only the other line brought");
    assert_eq!(b.duplicates, a.first);
    // B is 3.5 ms behind: the bucket below 4,096 µs.
    assert_eq!(b.skew[12], b.skew.iter().sum::<u64>());

    let as_one: Vec<Arrival> = arrivals
        .iter()
        .cloned()
        .map(|it| Arrival { line: 0, ..it })
        .collect();
    let (_, reported) = arbitrate(itch(), one_line(Holding::RECORDED), &as_one);
    assert_eq!(reported.messages, base, "both lines in one socket");
    assert_eq!(reported.gaps, []);

    let (_, reported) = arbitrate(
        itch(),
        Lines {
            count: 2,
            holding: Holding::live(100, 100),
        },
        &arrivals,
    );
    assert!(
        !reported.gaps.is_empty(),
        "a skew below 3.5 ms is too short"
    );
    let late = reported
        .incidents
        .iter()
        .filter(|it| matches!(it, Incident::Late { .. }))
        .count();
    assert_eq!(late, 3, "what comes after its gap is late");
}

#[test]
fn missing_messages_are_one_exact_gap() {
    let Some(arrivals) = intake("30_mold_gap.pcap") else {
        return;
    };
    let (_, reported) = arbitrate(itch(), one_line(Holding::RECORDED), &arrivals);
    assert_eq!(reported.gaps.len(), 1);
    assert_eq!(reported.gaps[0].1, 4);
    assert_eq!(reported.messages.len(), 38);
}

#[test]
fn foreign_query_is_reported_and_changes_nothing() {
    let Some(arrivals) = intake("12_dns_then_exec_of_resting_order.pcap") else {
        return;
    };
    let one: Vec<Arrival> = arrivals
        .into_iter()
        .map(|it| Arrival { line: 0, ..it })
        .collect();
    let (_, reported) = arbitrate(itch(), one_line(Holding::RECORDED), &one);
    assert_eq!(reported.gaps, []);
    let is_refused =
        |it: &&Incident| matches!(it, Incident::Foreign { .. } | Incident::Malformed { .. });
    assert_eq!(reported.incidents.iter().filter(is_refused).count(), 1);
}

/// The CME capture: lines A and B, and the sequence of each packet.
fn cme() -> Option<Vec<Arrival>> {
    Some(arrivals(
        data_dir()?.join("cme-mdp3/Cme.Mdp3.Sbe.v6.1.pcap"),
    ))
}

fn sequence(arrival: &Arrival) -> u64 {
    u32::from_le_bytes(arrival.payload[..4].try_into().unwrap()).into()
}

fn delayed(mut arrivals: Vec<Arrival>, rng: &mut ChaCha8Rng) -> Vec<Arrival> {
    for arrival in &mut arrivals {
        arrival.at = arrival.at.after(Nanos(rng.random_range(0..50_000)));
    }
    arrivals.sort_by_key(|arrival| arrival.at);
    arrivals
}

#[test]
fn cme_lines_thinned_and_reordered_equal_one_line() {
    let Some(all) = cme() else { return };
    let a: Vec<Arrival> = all.iter().filter(|it| it.line == 0).cloned().collect();
    let (_, single) = arbitrate(Mdp3, Lines::default(), &a);
    assert_eq!((single.messages.len(), single.gaps.len()), (5_000, 0));
    let holding = Holding::live(100, 1_000);
    for seed in 0..20 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let lost: BTreeMap<u64, usize> = (5_616..10_614)
            .filter_map(|sequence| {
                let line = rng.random_range(0..10);
                (line < 2).then_some((sequence, line))
            })
            .collect();
        let kept = all
            .iter()
            .filter(|it| lost.get(&sequence(it)) != Some(&it.line));
        let thinned = delayed(kept.cloned().collect(), &mut rng);
        let lines = Lines { count: 2, holding };
        let (arbiter, reported) = arbitrate(Mdp3, lines, &thinned);
        assert_eq!(reported.gaps, [], "seed {seed}");
        assert!(
            reported.messages == single.messages,
            "seed {seed}: message for message"
        );
        for line in 0..2 {
            let left_out = lost.values().filter(|it| **it == line).count() as u64;
            assert_eq!(
                arbiter.line(line).missing,
                left_out,
                "seed {seed}, line {line}"
            );
        }

        let both = rng.random_range(6_000..10_000);
        let kept = thinned.iter().filter(|it| sequence(it) != both).cloned();
        let (_, reported) = arbitrate(Mdp3, lines, &kept.collect::<Vec<_>>());
        assert_eq!(reported.gaps, [(both, 1)], "seed {seed}: one exact event");
        assert_eq!(reported.messages.len(), 4_999, "seed {seed}");
    }
}

/// Returns a MoldUDP64 packet of messages of one byte; without any, a heartbeat.
fn mold(session: u8, first: u64, messages: u16) -> Vec<u8> {
    let mut bytes = [b'S'; 10].to_vec();
    bytes[9] = session;
    bytes.extend(first.to_be_bytes());
    bytes.extend(messages.to_be_bytes());
    bytes.extend([0, 1, b'm'].repeat(messages.into()));
    bytes
}

/// Returns the end of a session behind its messages.
fn mold_end(session: u8, next: u64) -> Vec<u8> {
    let mut bytes = mold(session, next, 0);
    bytes[18..20].copy_from_slice(&u16::MAX.to_be_bytes());
    bytes
}

/// Lines of MoldUDP64 and all that their arbiter returned.
struct Feed {
    arbiter: Arbiter<MoldUdp64>,
    reported: Reported,
}

impl Feed {
    fn new(count: usize, holding: Holding) -> Self {
        let lines = Lines { count, holding };
        Self {
            arbiter: Arbiter::new(MoldUdp64::new(|_| true), lines, false),
            reported: Reported::default(),
        }
    }

    fn packet(&mut self, line: usize, at_us: u64, payload: &[u8]) {
        let received_at = Nanos::from_us(at_us);
        let packet = Packet {
            received_at,
            payload,
        };
        self.arbiter
            .packet(line, received_at, packet, &mut self.reported);
    }

    fn sequences(&self) -> Vec<u64> {
        self.reported.messages.iter().map(|(at, _)| *at).collect()
    }
}

#[test]
fn heartbeat_at_par_ends_a_row_of_heartbeats_behind() {
    let mut feed = Feed::new(1, Holding::NONE);
    feed.packet(0, 0, &mold(1, 99, 1));
    for first in [50, 100, 50, 100, 50, 100, 50, 50] {
        feed.packet(0, 0, &mold(1, first, 0));
        assert_eq!(feed.reported.incidents, [], "{first}");
    }
    feed.packet(0, 0, &mold(1, 50, 0));
    assert_eq!(feed.reported.incidents, [], "no message confirms it");
    feed.packet(0, 0, &mold(1, 50, 1));
    // The new run began at 1, and its messages before the heartbeat's never came.
    let next = SourcePosition::new(1, 1);
    let missing = Incident::Gap {
        from: next,
        missing: 49,
    };
    assert_eq!(
        feed.reported.incidents,
        [Incident::SequenceReset { next }, missing]
    );
}

#[test]
fn heartbeats_of_slower_lines_restart_no_count() {
    let mut feed = Feed::new(5, Holding::live(2_000, 10_000));
    for first in 1..=40 {
        let at = first * 1_000_000;
        for line in 0..5 {
            feed.packet(line, at, &mold(1, first, 0));
        }
        // The first line is ahead by one message when the heartbeats of the others come.
        feed.packet(0, at + 1, &mold(1, first, 1));
        for line in 1..5 {
            feed.packet(line, at + 2, &mold(1, first, 0));
            feed.packet(line, at + 3, &mold(1, first, 1));
        }
    }
    assert_eq!(feed.sequences(), (1..=40).collect::<Vec<_>>());
    assert!(feed.reported.gaps.is_empty(), "{:?}", feed.reported.gaps);
}

/// Nothing remembers messages of 5,000 packets before, so only the line's own place tells.
#[test]
fn line_far_behind_with_heartbeats_restarts_no_count() {
    let mut feed = Feed::new(2, Holding::live(2_000, 10_000));
    for first in 1..=5_000 {
        feed.packet(0, 0, &mold(1, first, 1));
    }
    feed.packet(1, 0, &mold(1, 49, 1));
    for _ in 0..3 {
        feed.packet(1, 0, &mold(1, 50, 0));
    }
    for first in 50..=59 {
        feed.packet(1, 0, &mold(1, first, 1));
        assert_eq!(feed.arbiter.line(1).duplicates, first - 48, "at once");
    }
    feed.packet(0, 1, &mold(1, 5_001, 1));
    assert_eq!(feed.sequences(), (1..=5_001).collect::<Vec<_>>());
    assert_eq!(
        feed.reported.incidents,
        [Incident::Duplicate { messages: 1 }; 11]
    );
}

#[test]
fn heartbeat_of_next_session_is_life_once_the_last_ended() {
    let mut feed = Feed::new(1, Holding::NONE);
    feed.packet(0, 0, &mold(1, 1, 1));
    let before = feed.arbiter.packets();
    feed.packet(0, 0, &mold(9, 1, 0));
    assert_eq!(feed.arbiter.packets(), before, "a stranger's");
    feed.packet(0, 0, &mold_end(1, 2));
    let before = feed.arbiter.packets();
    for heartbeats in 1..=3 {
        feed.packet(0, 0, &mold(2, 1, 0));
        assert_eq!(feed.arbiter.packets(), before + heartbeats);
    }
    let end = [Incident::EndOfSession];
    assert_eq!(feed.reported.incidents, end, "the next one has not begun");
}

#[test]
fn packet_behind_the_end_counts_once_another_follows() {
    let ended = || {
        let mut feed = Feed::new(2, Holding::RECORDED);
        for line in [0, 1] {
            feed.packet(line, 0, &mold(1, 1, 2));
        }
        feed.packet(0, 1, &mold_end(1, 3));
        assert_eq!(
            feed.reported.incidents.last(),
            Some(&Incident::EndOfSession)
        );
        feed
    };
    // Line B's last packet has a damaged number, and comes twice.
    let mut feed = ended();
    for _ in 0..2 {
        feed.packet(1, 2, &mold(1, 3, 2));
    }
    feed.packet(1, 3, &mold_end(1, 3));
    feed.arbiter.finish(&mut feed.reported);
    assert_eq!(feed.sequences(), [1, 2]);
    assert_eq!(losses(&feed), (vec![], 2));
    // The end was a damaged packet: the venue goes on.
    let mut feed = ended();
    feed.packet(0, 2, &mold(1, 3, 1));
    assert_eq!(feed.sequences(), [1, 2], "it waits");
    feed.packet(0, 3, &mold(1, 4, 1));
    assert_eq!(feed.sequences(), [1, 2, 3, 4]);
    feed.packet(0, 4, &mold(1, 5, 1));
    feed.arbiter.finish(&mut feed.reported);
    assert_eq!((feed.sequences().len(), losses(&feed)), (5, (vec![], 0)));
    // Both lines bring it.
    let mut feed = ended();
    for line in [0, 1] {
        feed.packet(line, 2, &mold(1, 3, 1));
    }
    assert_eq!(feed.sequences(), [1, 2, 3]);
    // Another session begins, and the packet is dropped before.
    let mut feed = ended();
    feed.packet(1, 2, &mold(1, 3, 1));
    for first in [1, 2] {
        feed.packet(0, 3, &mold(2, first, 1));
        feed.packet(1, 3, &mold(2, first, 1));
    }
    feed.arbiter.finish(&mut feed.reported);
    assert_eq!(feed.sequences(), [1, 2, 1, 2]);
    assert_eq!(losses(&feed), (vec![], 1));
}

#[test]
fn lone_packet_of_another_session_in_a_lull_is_foreign() {
    for format in Format::ALL {
        let beat_us = format.heartbeat_interval().0 / 1_000;
        // The second case has lost a heartbeat.
        for (holding, silence) in [
            (format.holding(), 1),
            (format.holding(), 2),
            (Holding::RECORDED, 2),
        ] {
            let mut feed = Feed::new(1, holding);
            feed.packet(0, 0, &mold(1, 1, 1));
            feed.packet(0, 10, &mold(2, 1, 1));
            let heartbeat = silence * beat_us + beat_us / 4;
            feed.poll(heartbeat - 1);
            feed.packet(0, heartbeat, &mold(1, 2, 0));
            feed.poll(10 * beat_us);
            feed.packet(0, 10 * beat_us, &mold(1, 2, 1));
            assert_eq!(feed.sequences(), [1, 2], "{format}: {silence} intervals");
            assert!(
                matches!(feed.reported.incidents[..], [Incident::Foreign { .. }]),
                "{format}: {:?}",
                feed.reported.incidents
            );
        }
    }
}

#[test]
fn copy_on_one_line_confirms_no_session() {
    let followed = |then: Vec<u8>| {
        let mut feed = Feed::new(1, Holding::live(2_000, 10_000));
        feed.packet(0, 0, &mold(1, 1, 1));
        feed.packet(0, 10, &mold(2, 5, 1));
        feed.packet(0, 20, &then);
        feed.packet(0, 30, &mold(1, 2, 1));
        feed.arbiter.finish(&mut feed.reported);
        feed.sequences().contains(&5)
    };
    assert!(!followed(mold(2, 5, 1)));
    assert!(followed(mold(2, 6, 1)));
}

#[test]
fn lone_packet_of_next_session_is_followed_after_silence() {
    let mut feed = Feed::new(1, Format::MoldUdp64Itch50.holding());
    feed.packet(0, 0, &mold(1, 1, 1));
    feed.packet(0, 10, &mold(2, 1, 1));
    feed.packet(0, 1_000_010, &mold(2, 2, 0));
    feed.poll(2_500_009);
    assert_eq!(feed.sequences(), [1], "two heartbeats may still come");
    feed.poll(2_500_010);
    assert_eq!(feed.sequences(), [1, 1]);
    let next = SourcePosition::new(1, 1);
    assert_eq!(feed.reported.incidents, [Incident::SessionChange { next }]);
}

/// Returns the gaps with their ordinals, and the number of foreign packets.
fn losses(feed: &Feed) -> (Vec<(u16, u64, u64)>, usize) {
    let mut foreign = 0;
    let mut gaps = Vec::new();
    for incident in &feed.reported.incidents {
        match incident {
            Incident::Gap { from, missing } => {
                gaps.push((from.ordinal(), from.sequence(), *missing));
            }
            Incident::Foreign { .. } => foreign += 1,
            _ => {}
        }
    }
    (gaps, foreign)
}

/// The next session begins 1 ms behind a gap that stays open for longer.
#[test]
fn session_behind_a_gap_is_delivered_whole() {
    let live = Format::MoldUdp64Itch50.holding();
    for (lines, holding) in [
        (1, Holding::RECORDED),
        (2, Holding::RECORDED),
        (1, live),
        (2, live),
    ] {
        // Fewer packets than are held, and more.
        for packets in [10, 300, 3_900, 9_000] {
            let mut feed = Feed::new(lines, holding);
            let mut all = |at_us, payload: &[u8]| {
                (0..lines).for_each(|line| feed.packet(line, at_us, payload));
            };
            all(0, &mold(1, 1, 2));
            all(10, &mold(1, 6, 1));
            for n in 1..=packets {
                all(1_000 + n, &mold(2, n, 1));
            }
            feed.arbiter.finish(&mut feed.reported);
            let expected: Vec<u64> = [1, 2, 6].into_iter().chain(1..=packets).collect();
            assert!(feed.sequences() == expected, "{lines} {packets}");
            assert_eq!(losses(&feed), (vec![(0, 3, 3)], 0), "{lines} {packets}");
        }
    }
}

#[test]
fn sessions_of_one_packet_each_are_all_followed() {
    for beats in [0, 1, 3] {
        let mut feed = Feed::new(1, Holding::RECORDED);
        for session in 0..4_u8 {
            let at_us = u64::from(session) * 60_000_000;
            feed.packet(0, at_us, &mold(session, 1, 2));
            for beat in 1..=beats {
                feed.packet(0, at_us + beat * 1_000_000, &mold(session, 3, 0));
            }
        }
        feed.arbiter.finish(&mut feed.reported);
        // The last one has nothing behind it that confirms it, without a heartbeat.
        let followed = if beats > 0 { 4 } else { 3 };
        assert_eq!(feed.sequences(), [1, 2].repeat(followed), "{beats}");
        assert_eq!(losses(&feed), (vec![], 4 - followed), "{beats}");
    }
}

/// A session of two packets lasts for less than the wait for the gap before it.
#[test]
fn third_session_ends_the_wait_of_a_confirmed_one() {
    let mut feed = Feed::new(1, Holding::RECORDED);
    feed.packet(0, 0, &mold(1, 1, 1));
    feed.packet(0, 10, &mold(1, 3, 1));
    for session in 2..=4 {
        for n in 1..=2 {
            feed.packet(0, u64::from(session) * 100 + n, &mold(session, n, 1));
        }
    }
    feed.arbiter.finish(&mut feed.reported);
    assert_eq!(feed.sequences(), [1, 3, 1, 2, 1, 2, 1, 2]);
    assert_eq!(losses(&feed), (vec![(0, 2, 1)], 0));
}

/// A packet that begins another session is followed; a damaged one of the current session is not.
#[test]
fn first_packet_of_a_session_in_a_file_is_followed() {
    let other = |mut packet: Vec<u8>| {
        *packet.last_mut().unwrap() = b'n';
        packet
    };
    for (last, is_followed) in [
        (other(mold(2, 1, 1)), true),
        (mold(2, 1, 1), false),
        (other(mold(2, 2, 1)), false),
        (other(mold(2, 3, 1)), false),
    ] {
        let mut feed = Feed::new(1, Holding::RECORDED);
        feed.packet(0, 0, &mold(1, 1, 1));
        feed.packet(0, 1, &mold(1, 2, 1));
        feed.packet(0, 10, &last);
        feed.arbiter.finish(&mut feed.reported);
        let followed = usize::from(is_followed);
        assert_eq!(feed.sequences().len(), 2 + followed, "{last:?}");
        assert_eq!(losses(&feed), (vec![], 1 - followed), "{last:?}");
    }
    // A third session begins behind it.
    let mut feed = Feed::new(1, Holding::RECORDED);
    for session in 1..=5 {
        let mut packet = mold(session, 1, 1);
        *packet.last_mut().unwrap() = session;
        feed.packet(0, session.into(), &packet);
    }
    feed.arbiter.finish(&mut feed.reported);
    assert_eq!((feed.sequences(), losses(&feed)), (vec![1; 5], (vec![], 0)));
    // The current session goes on behind it.
    let mut feed = Feed::new(1, Holding::RECORDED);
    for packet in [mold(1, 1, 1), other(mold(2, 1, 1)), mold(1, 2, 0)] {
        feed.packet(0, 0, &packet);
    }
    feed.arbiter.finish(&mut feed.reported);
    assert_eq!((feed.sequences(), losses(&feed)), (vec![1], (vec![], 1)));
}

#[test]
fn source_begins_with_messages_or_a_second_heartbeat() {
    let begun = |packets: &[Vec<u8>]| {
        let mut feed = Feed::new(1, Holding::RECORDED);
        for (at_us, packet) in (0..).zip(packets) {
            feed.packet(0, at_us, packet);
        }
        let session = feed.arbiter.session().map(|it| it.to_le_bytes()[9]);
        assert_eq!(feed.arbiter.packets(), packets.len() as u64);
        feed.arbiter.finish(&mut feed.reported);
        (session, feed.sequences(), losses(&feed))
    };
    let (stray, beat) = (mold(9, 700, 0), mold(1, 5, 0));
    assert_eq!(
        begun(std::slice::from_ref(&beat)),
        (None, vec![], (vec![], 0))
    );
    let twice = [beat.clone(), beat.clone()];
    assert_eq!(begun(&twice), (Some(1), vec![], (vec![], 0)));
    let strays = [stray, mold(1, 5, 1), mold(1, 6, 1)];
    assert_eq!(begun(&strays), (Some(1), vec![5, 6], (vec![], 1)));
    // The first heartbeat says where the source is joined.
    let later = [beat, mold(1, 7, 1)];
    assert_eq!(begun(&later), (Some(1), vec![7], (vec![(0, 5, 2)], 0)));
}

#[test]
fn own_heartbeat_confirms_a_session_at_the_end_only() {
    let packets = |behind: &[Vec<u8>]| {
        let mut feed = Feed::new(1, Holding::RECORDED);
        feed.packet(0, 0, &mold(1, 1, 1));
        feed.packet(0, 10, &mold(2, 1, 1));
        for (at_us, payload) in (20..).zip(behind) {
            feed.packet(0, at_us, payload);
        }
        assert_eq!(feed.sequences(), [1], "the session before may go on");
        feed.arbiter.finish(&mut feed.reported);
        (feed.sequences().len() - 1, losses(&feed))
    };
    let (fits, ahead) = (mold(2, 2, 0), mold(2, 3, 0));
    assert_eq!(packets(&[]), (0, (vec![], 1)), "it may be damaged");
    assert_eq!(packets(std::slice::from_ref(&fits)), (1, (vec![], 0)));
    assert_eq!(packets(std::slice::from_ref(&ahead)), (0, (vec![], 2)));
    let repeated = [fits.clone(), fits.clone(), ahead];
    assert_eq!(packets(&repeated), (1, (vec![(1, 2, 1)], 0)));
    let refuted = [fits, mold(1, 2, 0)];
    assert_eq!(packets(&refuted), (0, (vec![], 2)), "the other one goes on");
}

#[test]
fn heartbeat_of_a_candidate_announces_its_messages() {
    let mut feed = Feed::new(1, Format::MoldUdp64Itch50.holding());
    feed.packet(0, 0, &mold(1, 1, 1));
    feed.packet(0, 10, &mold(2, 1, 1));
    feed.packet(0, 1_000_010, &mold(2, 4, 0));
    feed.packet(0, 2_000_010, &mold(2, 4, 0));
    assert_eq!(feed.arbiter.packets(), 1, "the open session is silent");
    feed.poll(2_500_010);
    assert_eq!(feed.arbiter.packets(), 1 + 3, "the new one was alive");
    feed.poll(3_000_000);
    assert_eq!(feed.sequences(), [1, 1]);
    assert_eq!(losses(&feed), (vec![(1, 2, 2)], 0));
}

/// The slower line brings the session before while the faster one brings all of the next.
#[test]
fn short_session_beside_a_slower_line_is_followed() {
    let mut feed = Feed::new(2, Holding::RECORDED);
    for n in [1, 2, 4, 6, 7] {
        feed.packet(0, n, &mold(1, n, 1));
    }
    for n in 1..=4 {
        feed.packet(0, 100 + n, &mold(2, n, 1));
        feed.packet(1, 100 + n, &mold(1, n, 1));
    }
    for n in 5..=7 {
        feed.packet(1, 200 + n, &mold(1, n, 1));
    }
    for n in 1..=3 {
        feed.packet(0, 300 + n, &mold(3, n, 1));
        feed.packet(1, 300 + n, &mold(2, n, 1));
    }
    feed.arbiter.finish(&mut feed.reported);
    let all = [1..=7, 1..=4, 1..=3].into_iter().flatten();
    assert_eq!(feed.sequences(), all.collect::<Vec<_>>());
    assert_eq!(losses(&feed), (vec![], 0));
}

#[test]
fn unreadable_packet_lets_the_hold_time_pass() {
    for unreadable in [b"DNS".to_vec(), [mold(9, 1, 0), b"x".to_vec()].concat()] {
        let mut feed = Feed::new(1, Holding::RECORDED);
        feed.packet(0, 0, &mold(1, 1, 1));
        feed.packet(0, 10, &mold(2, 1, 1));
        feed.packet(0, 60_000_000, &unreadable);
        assert_eq!(feed.sequences(), [1, 1]);
    }
}

/// The current session voids each packet of the candidate, until it goes silent.
#[test]
fn refuted_packets_beyond_the_bound_are_reported() {
    let holding = Format::MoldUdp64Itch50.holding();
    let kept = u64::from(holding.packets_max);
    let mut feed = Feed::new(1, holding);
    feed.packet(0, 0, &mold(1, 1, 1));
    for n in 1..=kept + 100 {
        feed.packet(0, n, &mold(2, n, 1));
        feed.packet(0, n, &mold(1, 2, 0));
    }
    assert_eq!(losses(&feed), (vec![], 100));
    for n in kept + 101..=kept + 102 {
        feed.packet(0, 10_000 + n, &mold(2, n, 1));
    }
    feed.arbiter.finish(&mut feed.reported);
    let (gaps, foreign) = losses(&feed);
    assert_eq!(gaps, [(1, 1, foreign as u64)], "all that was dropped");
    assert_eq!(feed.sequences().len() as u64, 1 + kept + 102 - gaps[0].2);
}

#[test]
fn heartbeats_of_a_session_never_followed_are_foreign() {
    let foreign_after = |end: &[(u64, Vec<u8>)]| {
        let mut feed = Feed::new(1, Holding::RECORDED);
        feed.packet(0, 0, &mold(1, 1, 1));
        feed.packet(0, 10, &mold(2, 1, 0));
        feed.packet(0, 20, &mold(2, 41, 0));
        assert_eq!(losses(&feed).1, 0, "it may yet begin");
        for (at_us, payload) in end {
            feed.packet(0, *at_us, payload);
        }
        let before = losses(&feed).1;
        feed.arbiter.finish(&mut feed.reported);
        (before, losses(&feed).1)
    };
    assert_eq!(foreign_after(&[]), (0, 2));
    let goes_on = |at_us| (at_us, mold(1, 2, 1));
    assert_eq!(foreign_after(&[goes_on(2_000_000)]), (0, 2));
    assert_eq!(
        foreign_after(&[goes_on(2_500_010)]),
        (1, 2),
        "the older one"
    );
    let quiet = (9_000_000, mold(1, 2, 0));
    assert_eq!(foreign_after(&[quiet]), (0, 2));
    let begins = [30, 31].map(|at_us| (at_us, mold(2, at_us + 11, 1)));
    assert_eq!(foreign_after(&begins), (0, 0), "they were of the feed");
}

#[test]
fn heartbeat_of_a_session_under_way_says_so() {
    let mut feed = Feed::new(1, Holding::RECORDED);
    feed.packet(0, 0, &mold(1, 1, 1));
    feed.packet(0, 10, &mold(2, 1, 0));
    feed.packet(0, 20, &mold(3, 2, 0));
    feed.arbiter.finish(&mut feed.reported);
    let reason = |it: &Incident| match it {
        Incident::Foreign { reason, .. } => *reason,
        other => panic!("{other:?}"),
    };
    let reasons: Vec<_> = feed.reported.incidents.iter().map(reason).collect();
    let under_way = "the heartbeat is of a session of which no message was taken";
    assert_eq!(reasons, ["the packet is not of this feed", under_way]);
}

#[test]
fn message_beyond_48_bits_is_malformed() {
    let most = SourcePosition::SEQUENCE_MAX;
    for (first, messages, is_sound) in [
        (most - 1, 1, true),
        (most, 1, false),
        (most - 2, 2, true),
        (most - 1, 2, false),
    ] {
        let mut feed = Feed::new(1, Holding::NONE);
        feed.packet(0, 0, &mold(1, first, messages));
        assert_eq!(feed.malformed(), usize::from(!is_sound), "{first}");
        let sequences = first..first + u64::from(messages);
        let all: Vec<_> = sequences.filter(|_| is_sound).collect();
        assert_eq!(feed.sequences(), all, "{first}");
    }
}

#[test]
fn lost_end_of_burst_is_found_by_heartbeat_and_waits_for_skew() {
    let mut feed = pair(2_000);
    let beat_us = 1_000_000;
    // No line brings message 2 until a heartbeat of one says that it exists.
    feed.poll(beat_us - 1);
    feed.packet(0, beat_us, &mold(1, 3, 0));
    feed.poll(beat_us + 9_999);
    assert_eq!(
        feed.reported.gaps,
        [],
        "the other line may be late by the skew"
    );
    feed.poll(beat_us + 10_000);
    assert_eq!(feed.reported.gaps, [(2, 1)]);
    // The slower line's heartbeat shows earlier that both lines lack message 3.
    feed.packet(0, 2 * beat_us, &mold(1, 4, 0));
    feed.packet(1, 2 * beat_us + 3_000, &mold(1, 4, 0));
    feed.poll(2 * beat_us + 4_999);
    assert_eq!(
        feed.reported.gaps,
        [(2, 1)],
        "the reorder of the slower line"
    );
    feed.poll(2 * beat_us + 5_000);
    assert_eq!(feed.reported.gaps, [(2, 1), (3, 1)]);
}

#[test]
fn slower_lines_copy_in_a_lull_fills_a_loss_without_a_gap() {
    let mut feed = pair(2_000);
    feed.packet(1, 9_000, &mold(1, 2, 1));
    feed.packet(0, 1_000_000, &mold(1, 4, 0));
    feed.packet(1, 1_009_000, &mold(1, 3, 1));
    feed.poll(2_000_000);
    assert_eq!(
        (feed.sequences(), feed.reported.gaps),
        (vec![1, 2, 3], vec![])
    );
}

/// Nothing distinguishes it from a packet behind a loss, so it is taken for one when the wait is over.
#[test]
fn stray_packet_near_the_stream_costs_at_most_255_messages() {
    let holding = Format::MoldUdp64Itch50.holding();
    let mut feed = Feed::new(1, holding);
    feed.packet(0, 0, &mold(1, 1, 1));
    feed.packet(0, 10, &mold(1, 257, 1));
    feed.poll(10 + u64::from(holding.skew_us.max(holding.reorder_us)));
    feed.packet(0, 1_000_000, &mold(1, 2, 300));
    assert_eq!(feed.reported.gaps, [(2, 255)]);
    assert_eq!(
        feed.sequences(),
        [&[1], &(257..=301).collect::<Vec<_>>()[..]].concat()
    );
    let (late, old) = (
        Incident::Late { messages: 255 },
        Incident::Duplicate { messages: 1 },
    );
    assert_eq!(feed.reported.incidents[1..], [late, old]);
}

#[test]
fn far_heartbeat_is_confirmed_by_a_later_one() {
    for (again, gaps) in [(10, vec![]), (11, vec![(2, 998)])] {
        let mut feed = Feed::new(1, Holding::live(2_000, 10_000));
        feed.packet(0, 0, &mold(1, 1, 1));
        feed.packet(0, 10, &mold(1, 1_000, 0));
        feed.packet(0, again, &mold(1, 1_000, 0));
        feed.poll(1_000_000);
        assert_eq!(feed.reported.gaps, gaps, "{again}");
    }
}

#[test]
fn far_packet_that_the_stream_comes_near_to_waits_for_it() {
    let mut feed = Feed::new(2, Holding::live(2_000, 10_000));
    feed.packet(0, 0, &mold(1, 1, 1));
    feed.packet(0, 10, &mold(1, 300, 1));
    feed.packet(1, 20, &mold(1, 1, 60));
    feed.poll(1_000_000);
    assert_eq!(feed.sequences(), (1..=60).chain([300]).collect::<Vec<_>>());
    assert_eq!(feed.reported.gaps, [(61, 239)]);
}

#[test]
fn jump_of_a_line_drops_what_another_has_elsewhere() {
    let mut feed = Feed::new(2, Holding::live(2_000, 10_000));
    feed.packet(0, 0, &mold(1, 1, 1));
    feed.packet(1, 10, &mold(1, 5_000, 3));
    for first in 1_000..=1_001 {
        feed.packet(0, 20, &mold(1, first, 1));
    }
    assert_eq!(losses(&feed).1, 1, "the other line's packet");
    assert_eq!(feed.arbiter.line(1).foreign, 3, "its messages");
    feed.poll(1_000_000);
    assert_eq!(feed.sequences(), [1, 1_000, 1_001]);
}

#[test]
fn message_behind_its_heartbeat_is_not_reordered() {
    let mut feed = Feed::new(1, Holding::live(2_000, 10_000));
    feed.packet(0, 0, &mold(1, 1, 1));
    feed.packet(0, 1, &mold(1, 3, 0));
    assert_eq!(feed.arbiter.line(0).missing, 0, "it may still come");
    feed.packet(0, 2, &mold(1, 2, 1));
    let stats = feed.arbiter.line(0);
    assert_eq!((stats.first, stats.missing, stats.reorder_depth), (2, 0, 0));
}

#[test]
fn slower_line_voids_a_jump_once_the_stragglers_are_over() {
    let jumped = |old_at: u64| {
        let mut feed = Feed::new(2, Holding::live(2_000, 10_000));
        for line in 0..2 {
            feed.packet(line, 0, &mold(1, 1, 1));
        }
        feed.packet(0, 0, &mold(1, 2, 1));
        feed.packet(0, 10, &mold(1, 1_000, 1));
        feed.packet(1, old_at, &mold(1, 2, 1));
        feed.packet(0, old_at, &mold(1, 1_001, 1));
        feed.poll(old_at + 10_000);
        feed.sequences()
    };
    assert_eq!(jumped(100_009), [1, 2, 1_000, 1_001], "it may lag");
    assert_eq!(jumped(100_010), [1, 2]);
}

/// Returns a packet of these messages.
fn of(first: u64, messages: &[&str]) -> Vec<u8> {
    let mut bytes = mold(1, first, 0);
    bytes[18..20].copy_from_slice(&(messages.len() as u16).to_be_bytes());
    for message in messages {
        bytes.extend((message.len() as u16).to_be_bytes());
        bytes.extend(message.as_bytes());
    }
    bytes
}

/// Messages in conflict, by packet.
fn conflicts(feed: &Feed) -> Vec<u64> {
    let of_incident = |it: &Incident| match it {
        Incident::Conflicting { messages } => Some(*messages),
        _ => None,
    };
    feed.reported
        .incidents
        .iter()
        .filter_map(of_incident)
        .collect()
}

#[test]
fn all_messages_are_compared_between_lines() {
    let reported = |lines: usize, packets: &[(usize, Vec<u8>)]| {
        let mut feed = Feed::new(lines, Holding::live(2_000, 10_000));
        for (line, packet) in packets {
            feed.packet(*line, 0, packet);
        }
        feed.arbiter.finish(&mut feed.reported);
        conflicts(&feed)
    };
    let all = (0, of(1, &["a", "b", "c", "d"]));
    let a = |packets: &[(usize, Vec<u8>)]| {
        let lines = [std::slice::from_ref(&all), packets].concat();
        assert!(
            reported(1, &lines).is_empty(),
            "one line may repeat at will"
        );
        reported(2, &lines)
    };
    assert_eq!(a(&[(1, of(1, &["a", "b", "c", "d"]))]), [0; 0]);
    assert_eq!(a(&[(1, of(1, &["a", "b", "c", "x"]))]), [1], "the last");
    assert_eq!(a(&[(1, of(1, &["x", "b", "y", "d"]))]), [2]);
    assert_eq!(
        a(&[(1, of(1, &["a", "b"])), (1, of(3, &["c", "d"]))]),
        [0; 0]
    );
    assert_eq!(
        a(&[(1, of(1, &["a", "x"])), (1, of(3, &["y", "z"]))]),
        [1, 2]
    );
    assert_eq!(a(&[(1, of(3, &["c", "d", "e"]))]), [0; 0], "a part is new");
    assert_eq!(a(&[(1, of(3, &["c", "x", "e"]))]), [1]);
    assert_eq!(a(&[(1, of(3, &["c", "d!", "e"]))]), [1], "another length");
    // Packets of the first line that lie in several.
    let rest = (0, of(5, &["e", "f"]));
    assert_eq!(
        a(&[rest.clone(), (1, of(3, &["c", "d", "e", "f"]))]),
        [0; 0]
    );
    assert_eq!(a(&[rest, (1, of(3, &["x", "d", "e", "y"]))]), [2]);
    // Early packets: within one that waits, and across its end.
    let early = (0, of(7, &["g", "h", "i"]));
    assert_eq!(a(&[early.clone(), (1, of(7, &["g", "h", "x"]))]), [1]);
    assert_eq!(a(&[early.clone(), (1, of(8, &["h", "i"]))]), [0; 0]);
    assert_eq!(a(&[early.clone(), (1, of(8, &["h", "x"]))]), [1]);
    assert_eq!(a(&[early.clone(), (1, of(9, &["x", "j"]))]), [1]);
    assert_eq!(a(&[early, (1, of(5, &["e", "f", "g", "x"]))]), [1]);
}

/// Returns lines on which only messages in lower case are known.
fn in_lower_case(count: usize) -> Feed {
    let holding = Holding::live(2_000, 10_000);
    let known = |message: &[u8]| message.iter().all(u8::is_ascii_lowercase);
    let lines = Lines { count, holding };
    Feed {
        arbiter: Arbiter::new(MoldUdp64::new(known), lines, false),
        reported: Reported::default(),
    }
}

impl Feed {
    fn text(&self) -> String {
        let all = self.reported.messages.iter();
        all.map(|(_, it)| String::from_utf8_lossy(it)).collect()
    }

    fn malformed(&self) -> usize {
        let of_kind = |it: &&Incident| matches!(it, Incident::Malformed { .. });
        self.reported.incidents.iter().filter(of_kind).count()
    }
}

#[test]
fn damaged_copy_yields_to_a_sound_one() {
    let damaged = (0, of(2, &["b", "C", "d"]));
    let early = (0, of(6, &["F", "g"]));
    let begin = [(0, of(1, &["a"])), (1, of(1, &["a"]))];
    let cases: [&[(usize, Vec<u8>)]; 5] = [
        &[damaged.clone(), (1, of(2, &["b", "c", "d", "e", "f", "g"]))],
        &[
            damaged.clone(),
            damaged.clone(),
            (1, of(2, &["b"])),
            (1, of(3, &["c"])),
            (1, of(4, &["d", "e", "f", "g"])),
        ],
        // The other line loses the last one.
        &[
            damaged.clone(),
            (1, of(2, &["b", "c"])),
            (1, of(5, &["e", "f", "g"])),
        ],
        // The rest of the damaged line waits behind it.
        &[
            damaged.clone(),
            (0, of(5, &["e", "f", "g"])),
            (1, of(2, &["b", "c"])),
        ],
        // Both copies are early.
        &[
            early,
            (1, of(6, &["f", "g"])),
            (1, of(2, &["b", "c", "d", "e"])),
        ],
    ];
    for case in cases {
        let mut feed = in_lower_case(2);
        for (line, packet) in begin.iter().chain(case) {
            feed.packet(*line, 1_000, packet);
        }
        let text = feed.text();
        assert_eq!(text, "abcdefg", "{case:?}");
        assert_eq!(feed.malformed(), 1, "{case:?}");
        assert_eq!((feed.reported.gaps.len(), conflicts(&feed).len()), (0, 0));
        let stats = [0, 1].map(|line| feed.arbiter.line(line));
        assert_eq!(stats[0].first + stats[1].first, 7);
        let of_line = |n: usize| begin.iter().chain(case).filter(move |(line, _)| *line == n);
        for (n, of) in stats.iter().enumerate() {
            let brought: u64 = of_line(n).map(|(_, packet)| u64::from(packet[19])).sum();
            assert_eq!(of.first + of.duplicates, brought, "line {n}: {case:?}");
        }
    }
}

#[test]
fn unknown_message_of_all_lines_is_delivered() {
    let unknown = of(2, &["b", "C"]);
    let begun = |lines: usize| {
        let mut feed = in_lower_case(lines);
        for line in 0..lines {
            feed.packet(line, 1_000, &of(1, &["a"]));
        }
        feed.packet(0, 1_000, &unknown);
        feed
    };
    assert_eq!(begun(1).text(), "abC", "no other line may bring it");
    let mut feed = begun(2);
    assert_eq!(feed.text(), "a");
    feed.packet(1, 2_000, &unknown);
    assert_eq!(
        (feed.text(), feed.malformed()),
        ("abC".into(), 0),
        "two are alike"
    );
    let mut feed = begun(2);
    feed.poll(10_999);
    assert_eq!(feed.text(), "a");
    feed.poll(11_000);
    assert_eq!(feed.text(), "abC", "the wait is over");
    let mut feed = begun(2);
    feed.packet(1, 2_000, &of(4, &["d"]));
    feed.poll(3_999);
    assert_eq!(feed.text(), "a");
    feed.poll(4_000);
    assert_eq!(feed.text(), "abCd", "the other line has passed it");
    let mut feed = begun(2);
    feed.arbiter.finish(&mut feed.reported);
    assert_eq!((feed.text(), feed.malformed()), ("abC".into(), 0));
    let mut feed = begun(2);
    feed.packet(1, 2_000, &of(2, &["B", "c"]));
    assert_eq!(feed.text(), "abC", "neither one is better");
    assert_eq!(feed.malformed(), 1);
    let mut feed = begun(2);
    feed.packet(0, 2_000, &of(2, &["b", "C", "d"]));
    feed.arbiter.finish(&mut feed.reported);
    assert_eq!(feed.text(), "abCd", "the second one has more");
}

#[test]
fn early_packet_cut_short_is_malformed_once_it_is_old() {
    let mut early = of(3, &["c", "d"]);
    early[19] = 3;
    for rest in [&["b", "c", "d"][..], &["b", "c", "d", "e"]] {
        let mut feed = Feed::new(2, Holding::live(2_000, 10_000));
        feed.packet(0, 0, &of(1, &["a"]));
        feed.packet(0, 0, &early);
        assert_eq!(feed.malformed(), 0, "it waits");
        feed.packet(1, 0, &of(2, rest));
        assert_eq!(feed.text(), format!("a{}", rest.concat()));
        assert_eq!(feed.malformed(), 1);
    }
}

#[test]
fn lost_and_forgotten_messages_are_not_compared() {
    let mut feed = Feed::new(2, Holding::NONE);
    feed.packet(0, 0, &of(1, &["a"]));
    feed.packet(0, 0, &of(4, &["d"]));
    // 2 and 3 are late, and nobody knows them.
    feed.packet(1, 0, &of(1, &["a", "x", "y", "d"]));
    assert_eq!(conflicts(&feed), [0; 0]);
    let long = "m".repeat(60_000);
    for first in 5..50 {
        feed.packet(0, 0, &of(first, &[&long]));
    }
    feed.packet(1, 0, &of(4, &["x"]));
    assert_eq!(conflicts(&feed), [0; 0], "two MiB of others came since");
    feed.packet(1, 0, &of(49, &["x"]));
    assert_eq!(conflicts(&feed), [1]);
    feed.packet(1, 0, &of(1, &["x"]));
    assert_eq!(conflicts(&feed), [1, 1], "the first packet stays");
}

#[test]
fn restart_of_session_being_left_does_not_hit_the_next() {
    let mut feed = Feed::new(1, Holding::live(2_000, 10_000));
    feed.packet(0, 0, &mold(1, 1, 1));
    feed.packet(0, 10, &mold(1, 4, 1));
    for first in 1..=2 {
        feed.packet(0, 20, &mold(2, first, 1));
    }
    for messages in [0, 0, 0, 1] {
        feed.packet(0, 30, &mold(1, 1, messages));
    }
    feed.packet(0, 40, &mold(2, 3, 1));
    feed.poll(20_000);
    assert_eq!(feed.sequences(), [1, 4, 1, 2, 3]);
    let next = SourcePosition::new(1, 1);
    let change = Incident::SessionChange { next };
    let (from, missing) = (SourcePosition::new(0, 2), 2);
    let gap = Incident::Gap { from, missing };
    let old = Incident::Duplicate { messages: 1 };
    assert_eq!(feed.reported.incidents, [gap, old, change]);
}

#[test]
fn old_heartbeat_repeated_restarts_no_count() {
    for holding in [Holding::RECORDED, Holding::live(2_000, 10_000)] {
        for at in [1, 50, 99] {
            let mut feed = Feed::new(1, holding);
            for first in 1..=99 {
                feed.packet(0, first, &mold(1, first, 1));
            }
            for nth in 0..9 {
                feed.packet(0, 1_000_000 * nth, &mold(1, at, 0));
            }
            feed.packet(0, 9_000_001, &mold(1, at, 1));
            for first in 100..=120 {
                feed.packet(0, 9_000_000 + first, &mold(1, first, 1));
            }
            feed.arbiter.finish(&mut feed.reported);
            assert_eq!(feed.sequences(), (1..=120).collect::<Vec<_>>(), "{at}");
            assert_eq!(feed.reported.gaps, []);
        }
    }
}

/// Returns a live line of 99 messages, and three heartbeats that name message 50.
fn claimed() -> Feed {
    let mut feed = Feed::new(1, Holding::live(2_000, 10_000));
    for first in 1..=99 {
        feed.packet(0, first, &mold(1, first, 1));
    }
    for nth in 0..3 {
        feed.packet(0, 1_000_000 * nth, &mold(1, 50, 0));
    }
    feed
}

#[test]
fn old_packets_of_one_live_line_restart_no_count() {
    for old in 1..=2 {
        let mut feed = claimed();
        for first in 50..50 + old {
            feed.packet(0, 3_000_000, &mold(1, first, 1));
            feed.packet(0, 3_000_000, &mold(1, first, 1));
        }
        assert_eq!(feed.sequences(), (1..=99).collect::<Vec<_>>());
        for first in 100..=120 {
            feed.packet(0, 3_100_000, &mold(1, first, 1));
        }
        feed.arbiter.finish(&mut feed.reported);
        assert_eq!(feed.sequences(), (1..=120).collect::<Vec<_>>());
        let duplicate = Incident::Duplicate { messages: 1 };
        assert_eq!(feed.reported.incidents, vec![duplicate; 2 * old as usize]);
        let stats = feed.arbiter.line(0);
        assert_eq!((stats.first, stats.duplicates), (120, 2 * old));
        assert_eq!(stats.packets, 99 + 3 + 2 * old + 21);
    }
}

#[test]
fn heartbeat_at_the_old_position_voids_a_restart() {
    let mut feed = claimed();
    feed.packet(0, 3_000_000, &mold(1, 50, 1));
    feed.packet(0, 3_500_000, &mold(1, 100, 0));
    feed.poll(9_000_000);
    feed.packet(0, 9_000_000, &mold(1, 51, 1));
    feed.arbiter.finish(&mut feed.reported);
    assert_eq!(feed.sequences(), (1..=99).collect::<Vec<_>>());
    assert_eq!(feed.arbiter.line(0).duplicates, 2);
}

/// Returns a line of 5,000 messages, and three heartbeats that name message 50. Nothing remembers messages
/// below 900.
fn claimed_far_behind(holding: Holding) -> Feed {
    let mut feed = Feed::new(1, holding);
    for first in 1..=5_000 {
        feed.packet(0, 0, &mold(1, first, 1));
    }
    for _ in 0..3 {
        feed.packet(0, 0, &mold(1, 50, 0));
    }
    feed
}

#[test]
fn void_restart_reports_how_its_messages_differ() {
    let mut feed = claimed_far_behind(Holding::RECORDED);
    // Nothing remembers message 850, and message 950 was another one.
    let mut packet = mold(1, 850, 101);
    *packet.last_mut().unwrap() = b'x';
    feed.packet(0, 0, &packet);
    assert_eq!(feed.reported.incidents, [], "further packets decide");
    feed.packet(0, 0, &mold(1, 5_001, 1));
    assert_eq!(feed.sequences(), (1..=5_001).collect::<Vec<_>>());
    let differing = Incident::Conflicting { messages: 1 };
    let old = Incident::Duplicate { messages: 101 };
    assert_eq!(feed.reported.incidents, [differing, old]);
}

#[test]
fn packets_of_a_restart_are_held_up_to_the_bound() {
    let mut feed = claimed_far_behind(Holding::RECORDED);
    // No packet follows another one, so nothing is decided.
    for first in (500..800).rev() {
        feed.packet(0, 0, &mold(1, first, 1));
    }
    assert_eq!(feed.arbiter.line(0).duplicates, 300 - 256);
    feed.packet(0, 0, &mold(1, 5_001, 1));
    assert_eq!(feed.arbiter.line(0).duplicates, 300);
    assert_eq!(feed.sequences(), (1..=5_001).collect::<Vec<_>>());
}

#[test]
fn copies_take_no_room_of_a_restarted_count() {
    let mut feed = claimed();
    for _ in 0..300 {
        feed.packet(0, 3_000_000, &mold(1, 50, 1));
    }
    assert_eq!(feed.arbiter.line(0).duplicates, 299);
    for first in 51..=52 {
        feed.packet(0, 3_000_000, &mold(1, first, 1));
    }
    feed.arbiter.finish(&mut feed.reported);
    assert_eq!(
        feed.sequences(),
        (1..=99).chain(50..=52).collect::<Vec<_>>()
    );
}

/// A header that counts more messages than its packet has must not hide a loss on the line.
#[test]
fn void_restart_counts_the_messages_that_came() {
    let mut feed = claimed();
    let mut packet = mold(1, 50, 1);
    packet[18] = 9;
    feed.packet(0, 3_000_000, &packet);
    assert_eq!(feed.malformed(), 0, "further packets decide");
    feed.packet(0, 3_000_000, &mold(1, 100, 1));
    assert_eq!(feed.malformed(), 1);
    feed.packet(0, 3_000_000, &mold(1, 102, 1));
    feed.arbiter.finish(&mut feed.reported);
    let stats = feed.arbiter.line(0);
    assert_eq!((stats.duplicates, stats.missing), (1, 1));
}

#[test]
fn restarted_count_of_one_live_line_loses_nothing() {
    let restarted = |messages: u64, then: &dyn Fn(&mut Feed)| {
        let mut feed = claimed();
        for first in 50..50 + messages {
            feed.packet(0, 3_000_000, &mold(1, first, 1));
        }
        then(&mut feed);
        let next = SourcePosition::new(1, 1);
        let gap = Incident::Gap {
            from: next,
            missing: 49,
        };
        let reset = Incident::SequenceReset { next };
        let is_found = feed.reported.incidents.contains(&reset);
        if is_found {
            // The first messages of the run are awaited.
            feed.poll(9_000_000);
            assert_eq!(feed.reported.incidents, [reset, gap]);
        }
        let of_run = if is_found { 50..50 + messages } else { 0..0 };
        assert_eq!(feed.sequences(), (1..=99).chain(of_run).collect::<Vec<_>>());
        is_found
    };
    assert!(!restarted(2, &|_| {}));
    assert!(restarted(3, &|_| {}), "three in a row");
    assert!(!restarted(1, &|feed| feed.poll(5_499_999)));
    assert!(restarted(1, &|feed| feed.poll(5_500_000)), "the hold time");
    assert!(restarted(1, &|feed| {
        feed.arbiter.finish(&mut feed.reported);
    }));
}

#[test]
fn messages_behind_an_old_heartbeat_continue_no_restart() {
    let mut feed = Feed::new(1, Holding::NONE);
    feed.packet(0, 0, &mold(1, 99, 1));
    for _ in 0..3 {
        feed.packet(0, 0, &mold(1, 50, 0));
    }
    // One lies before the heartbeats, and one goes on at the old position.
    feed.packet(0, 0, &mold(1, 49, 1));
    feed.packet(0, 0, &mold(1, 99, 2));
    feed.packet(0, 0, &mold(1, 50, 1));
    assert_eq!(feed.sequences(), [99, 100]);
    let mut feed = Feed::new(1, Holding::NONE);
    feed.packet(0, 0, &mold(1, 99, 1));
    for at in [50, 50, 49] {
        feed.packet(0, 0, &mold(1, at, 0));
    }
    feed.packet(0, 0, &mold(1, 50, 1));
    assert_eq!(feed.sequences(), [99], "a count does not go back");
}

#[test]
fn line_far_behind_where_the_source_begins_is_used() {
    for order in [[0, 1, 1, 0], [1, 0, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1]] {
        let mut feed = Feed::new(2, Holding::live(2_000, 10_000));
        let mut next = [1_300, 1_000];
        let mut packet = |feed: &mut Feed, line: usize, at| {
            feed.packet(line, at, &mold(1, next[line], 1));
            next[line] += 1;
        };
        for (line, at) in order.into_iter().zip(0..) {
            packet(&mut feed, line, at);
        }
        for nth in 2..600 {
            packet(&mut feed, 0, 10 * nth);
            packet(&mut feed, 1, 10 * nth + 1);
        }
        feed.arbiter.finish(&mut feed.reported);
        assert_eq!(feed.sequences(), (1_000..1_900).collect::<Vec<_>>());
        assert_eq!(
            (feed.reported.gaps.len(), feed.arbiter.line(1).foreign),
            (0, 0)
        );
    }
}

#[test]
fn slower_line_ends_the_session_before_the_next_begins() {
    // Line 0 lacks the last messages of the session; line 1 brings them behind the next one's first.
    for quiet in [false, true] {
        let mut feed = Feed::new(2, Holding::live(2_000, 10_000));
        for first in 1..=96 {
            feed.packet(0, 100 * first, &mold(1, first, 1));
            feed.packet(1, 100 * first + 50, &mold(1, first, 1));
        }
        for first in 1..=5 {
            feed.packet(0, 10_000 + 10 * first, &mold(2, first, 1));
        }
        for first in 97..=99 {
            if !quiet {
                feed.packet(0, 10_000 + 10 * first, &mold(2, first - 91, 1));
            }
            feed.packet(1, 10_001 + 10 * first, &mold(1, first, 1));
        }
        for first in 1..=9 {
            feed.packet(1, 11_100 + 10 * first, &mold(2, first, 1));
        }
        feed.arbiter.finish(&mut feed.reported);
        let all: Vec<_> = (1..=99).chain(1..=9).collect();
        assert_eq!(feed.sequences(), all, "{quiet}");
        let changes = (feed.reported.incidents.iter())
            .filter(|it| matches!(it, Incident::SessionChange { .. }));
        assert_eq!((changes.count(), feed.reported.gaps.len()), (1, 0));
    }
}

#[test]
fn dead_line_delays_the_next_session_by_the_skew_only() {
    let mut feed = Feed::new(2, Holding::live(2_000, 10_000));
    feed.packet(0, 0, &mold(1, 1, 1));
    feed.packet(0, 20, &mold(2, 1, 1));
    feed.packet(0, 30, &mold(2, 2, 1));
    feed.arbiter
        .poll(Nanos::from_us(10_019), &mut feed.reported);
    assert_eq!(feed.sequences(), [1]);
    feed.arbiter
        .poll(Nanos::from_us(10_020), &mut feed.reported);
    assert_eq!(feed.sequences(), [1, 1, 2]);
}

#[test]
fn damaged_bit_of_first_packets_session_delivers_once() {
    // The names of sessions 2 and 3 differ in one bit, those of 1 and 2 in two.
    for (first, lines) in [(1, 1), (1, 2), (500, 1), (500, 2)] {
        let mut feed = Feed::new(lines, Holding::RECORDED);
        feed.packet(0, 0, &mold(2, first, 1));
        for nth in first..first + 20 {
            if nth > first {
                feed.packet(0, 10 * nth, &mold(3, nth, 1));
            }
            if lines == 2 {
                feed.packet(1, 10 * nth + 1, &mold(3, nth, 1));
            }
        }
        feed.arbiter.finish(&mut feed.reported);
        // Within a session, the first packet is dropped, because it is far.
        let begin = first + u64::from(first > 1 && lines == 1);
        let all: Vec<_> = (begin..first + 20).collect();
        assert_eq!(feed.sequences(), all, "{first} {lines}");
        assert_eq!(feed.reported.gaps, []);
        let changes = (feed.reported.incidents.iter())
            .filter(|it| matches!(it, Incident::SessionChange { .. }));
        assert_eq!(changes.count(), 0);
    }
    let mut feed = Feed::new(1, Holding::RECORDED);
    for (session, first) in [(1, 1), (2, 2), (2, 3)] {
        feed.packet(0, 0, &mold(session, first, 1));
    }
    feed.arbiter.finish(&mut feed.reported);
    assert_eq!(feed.reported.gaps, [(1, 1)], "it is another name");
}

#[test]
fn messages_cut_off_are_missing_on_their_line() {
    for whole in 0..3 {
        let mut feed = Feed::new(1, Holding::NONE);
        feed.packet(0, 0, &mold(1, 1, 1));
        let mut cut = mold(1, 2, whole);
        cut[18..20].copy_from_slice(&65_534_u16.to_be_bytes());
        feed.packet(0, 0, &cut);
        feed.packet(0, 0, &mold(1, 10, 1));
        let missing = 8 - u64::from(whole);
        assert_eq!(feed.reported.gaps, [(2 + u64::from(whole), missing)]);
        assert_eq!(feed.arbiter.line(0).missing, missing, "{whole} whole");
    }
}

#[test]
fn packet_around_the_first_leaves_nothing_missing() {
    for first in [&[(10, 5)][..], &[(10, 2), (14, 1)]] {
        let mut feed = Feed::new(1, Holding::live(2_000, 10_000));
        for (first, messages) in first.iter().copied().chain([(8, 12), (20, 1)]) {
            feed.packet(0, 0, &mold(1, first, messages));
        }
        feed.arbiter.finish(&mut feed.reported);
        assert_eq!(feed.sequences(), (8..=20).collect::<Vec<_>>());
        assert_eq!(feed.arbiter.line(0).missing, 0, "{first:?}");
    }
}

#[test]
fn packet_behind_many_holes_waits_no_longer_than_skew() {
    let mut feed = Feed::new(2, Holding::live(0, 1_000));
    for line in 0..2 {
        feed.packet(line, 0, &mold(1, 1, 1));
    }
    for first in [3, 5, 7] {
        feed.packet(0, 100, &mold(1, first, 1));
    }
    feed.arbiter.poll(Nanos::from_us(1_099), &mut feed.reported);
    assert_eq!(feed.sequences(), [1]);
    feed.arbiter.poll(Nanos::from_us(1_100), &mut feed.reported);
    assert_eq!(feed.sequences(), [1, 3, 5, 7]);
    assert_eq!(feed.reported.gaps, [(2, 1), (4, 1), (6, 1)]);
}

/// Two lines that brought message 1, with this reorder and a skew of ten milliseconds.
fn pair(reorder_us: u32) -> Feed {
    let mut feed = Feed::new(2, Holding::live(reorder_us, 10_000));
    for line in 0..2 {
        feed.packet(line, 0, &mold(1, 1, 1));
    }
    feed.reported.incidents.clear();
    feed
}

impl Feed {
    fn poll(&mut self, at_us: u64) {
        self.arbiter.poll(Nanos::from_us(at_us), &mut self.reported);
    }
}

#[test]
fn hole_closes_when_both_lines_passed_it() {
    let mut feed = pair(100);
    feed.packet(0, 0, &mold(1, 3, 1));
    feed.packet(1, 50, &mold(1, 3, 1));
    feed.poll(149);
    assert_eq!(feed.sequences(), [1]);
    feed.poll(150);
    assert_eq!(feed.sequences(), [1, 3]);
    assert_eq!(feed.reported.gaps, [(2, 1)]);
}

#[test]
fn silent_line_is_not_awaited() {
    let mut feed = pair(100);
    feed.packet(0, 100, &mold(1, 2, 1));
    // Line 1 is behind for four times the longest wait.
    feed.packet(0, 40_100, &mold(1, 4, 1));
    feed.poll(40_199);
    assert_eq!(feed.sequences(), [1, 2]);
    feed.poll(40_200);
    assert_eq!(feed.sequences(), [1, 2, 4]);
    assert_eq!(feed.reported.gaps, [(3, 1)]);
}

#[test]
fn line_that_stops_and_returns_is_told_once_each() {
    let mut feed = pair(100);
    let mut reported = Vec::new();
    for (line, at_us) in [(0, 1), (0, 3_500_000), (0, 3_500_001), (0, 3_500_002)] {
        feed.packet(line, at_us, &mold(1, 2, 0));
        reported.push(feed.reported.incidents.len());
    }
    assert_eq!(reported, [0, 0, 1, 1], "after the packet that shows it");
    assert!(feed.arbiter.line(1).is_stopped && !feed.arbiter.line(0).is_stopped);
    feed.packet(1, 3_500_003, &mold(1, 2, 0));
    feed.packet(1, 3_500_004, &mold(1, 2, 0));
    let (stopped, back) = (
        Incident::LineStopped { line: 1 },
        Incident::LineBack { line: 1 },
    );
    assert_eq!(feed.reported.incidents, [stopped, back]);
    assert!(!feed.arbiter.line(1).is_stopped);
}

#[test]
fn queue_beyond_its_bound_closes_the_hole_at_once() {
    let bounds = [(3, u32::MAX), (u32::MAX, 3 * 23)];
    for (packets_max, bytes_max) in bounds {
        let mut feed = Feed::new(
            1,
            Holding {
                packets_max: packets_max.min(8),
                bytes_max,
                ..Holding::RECORDED
            },
        );
        for first in [1, 3, 4, 5] {
            feed.packet(0, 0, &mold(1, first, 1));
        }
        assert_eq!(feed.sequences(), [1], "{bytes_max}");
        assert_eq!(feed.arbiter.held_packets(), 3);
        feed.packet(0, 0, &mold(1, 6, 1));
        assert_eq!(feed.sequences(), [1, 3, 4, 5, 6], "{bytes_max}");
        assert_eq!(feed.reported.gaps, [(2, 1)]);
        assert_eq!(feed.arbiter.held_packets(), 0);
    }
}

#[test]
fn packet_that_waited_counts_what_came_before_it() {
    let mut feed = Feed::new(1, Holding::RECORDED);
    for (first, messages) in [(1, 1), (4, 3), (5, 4)] {
        feed.packet(0, 0, &mold(1, first, messages));
    }
    assert_eq!(feed.arbiter.line(0).duplicates, 0);
    feed.arbiter.finish(&mut feed.reported);
    assert_eq!(feed.sequences(), [1, 4, 5, 6, 7, 8]);
    assert_eq!(feed.arbiter.line(0).duplicates, 2, "5 and 6");
    assert_eq!(feed.reported.gaps, [(2, 2)]);
}

#[test]
fn source_begins_with_a_known_message_or_an_exact_packet() {
    let whole = mold(1, 1, 2);
    let mut cut = whole.clone();
    cut.truncate(cut.len() - 3);
    for (packet, is_known, begins) in [
        (&whole, true, true),
        (&whole, false, true),
        (&cut, true, true),
        (&cut, false, false),
    ] {
        let known: fn(&[u8]) -> bool = if is_known { |_| true } else { |_| false };
        let lines = Lines::default();
        let mut arbiter = Arbiter::new(MoldUdp64::new(known), lines, false);
        let mut reported = Reported::default();
        let packet = Packet {
            received_at: Nanos(1),
            payload: packet,
        };
        arbiter.packet(0, Nanos(1), packet, &mut reported);
        assert_eq!(arbiter.session().is_some(), begins, "{is_known}");
    }
}

#[test]
fn next_session_is_numbered_or_not_as_its_first_packet() {
    for (numbers, delivered) in [([0, 0, 0], 4), ([1, 2, 0], 2)] {
        let mut feed = Feed::new(1, Holding::live(0, 0));
        feed.packet(0, 0, &mold(1, 1, 2));
        for (at_us, first) in (10..).zip(numbers) {
            feed.packet(0, at_us, &mold(2, first, 1));
        }
        feed.poll(10_000_000);
        feed.packet(0, 10_000_001, &mold(2, 0, 1));
        feed.arbiter.finish(&mut feed.reported);
        let of_next = feed.reported.messages.len() - 2;
        assert_eq!(of_next, delivered, "{numbers:?}");
    }
}

#[test]
fn arbiter_has_the_lines_that_it_was_given() {
    for count in [1, 2, 3] {
        assert_eq!(Feed::new(count, Holding::NONE).arbiter.lines(), count);
    }
}

#[test]
fn packets_of_each_line_are_counted() {
    let mut feed = pair(0);
    feed.packet(0, 0, &mold(1, 2, 2));
    feed.packet(0, 0, &mold(1, 4, 0));
    let of = |line| feed.arbiter.line(line).packets;
    assert_eq!((of(0), of(1), feed.arbiter.packets()), (3, 1, 4));
}

#[test]
fn copies_on_the_only_line_have_no_skew() {
    let mut feed = Feed::new(1, Holding::NONE);
    for at_us in [0, 5] {
        feed.packet(0, at_us, &mold(1, 1, 1));
    }
    let line = feed.arbiter.line(0);
    assert_eq!((line.duplicates, line.skew.iter().sum::<u64>()), (1, 0));
    let mut feed = pair(0);
    feed.packet(0, 5, &mold(1, 2, 1));
    feed.packet(1, 9, &mold(1, 2, 1));
    let skew = feed.arbiter.line(1).skew;
    assert_eq!((skew[0], skew[3]), (1, 1), "none, and below 8 µs");
}

/// A DNS query, text, and bytes that are too short for a header.
#[test]
fn junk_beside_a_feed_is_foreign_with_its_sender() {
    let query = [
        &[0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0][..],
        b"\x07example\x03com\0\0\x01\0\x01",
    ]
    .concat();
    let text = b"hello world this is some junk data";
    let zeros = [0; 40];
    for junk in [&query[..], text, b"short", &zeros[..25], &[0xff; 40]] {
        for before in [false, true] {
            let mut feed = pair(0);
            if before {
                feed.packet(0, 0, &mold(1, 2, 1));
            }
            feed.arbiter.set_sender(1, [10, 0, 0, 9].into());
            feed.packet(1, 1, junk);
            let [Incident::Foreign { origin, .. }] = feed.reported.incidents[..] else {
                panic!("{junk:x?}: {:?}", feed.reported.incidents);
            };
            assert_eq!(
                (origin.line, origin.sender),
                (1, Some([10, 0, 0, 9].into()))
            );
        }
    }
    // The session that is followed is damaged instead.
    let mut feed = pair(0);
    feed.packet(0, 0, &mold(1, 2, 1));
    let mut damaged = mold(1, 2, 3);
    damaged.truncate(21);
    feed.packet(1, 1, &damaged);
    assert!(matches!(
        feed.reported.incidents[..],
        [Incident::Malformed { .. }]
    ));
}

#[test]
fn line_beyond_the_last_counts_as_the_last() {
    let mut feed = pair(0);
    feed.arbiter.set_sender(9, [10, 0, 0, 1].into());
    feed.packet(9, 0, b"short");
    feed.packet(9, 0, &mold(1, 2, 1));
    assert_eq!(feed.arbiter.line(1).first, 1);
    assert!(matches!(
        feed.reported.incidents[..],
        [Incident::Foreign { .. }]
    ));
}

#[test]
fn foreign_packet_names_its_line_and_sender() {
    let mut feed = Feed {
        arbiter: Arbiter::new(
            MoldUdp64::new(|message| message != b"x"),
            Lines {
                count: 2,
                holding: Holding::NONE,
            },
            false,
        ),
        reported: Reported::default(),
    };
    let sender = [10, 0, 0, 1].into();
    feed.arbiter.set_sender(1, sender);
    let mut foreign = mold(2, 1, 2);
    let last = foreign.len() - 1;
    foreign[last] = b'x';
    feed.packet(0, 0, &mold(1, 1, 1));
    feed.packet(1, 0, &foreign);
    let [Incident::Foreign { origin, .. }] = feed.reported.incidents[..] else {
        panic!("{:?}", feed.reported.incidents);
    };
    assert_eq!((origin.line, origin.sender), (1, Some(sender)));
    let foreign = [0, 1].map(|line| feed.arbiter.line(line).foreign);
    assert_eq!(foreign, [0, 2], "messages, by line");
}

#[test]
fn restart_after_resumption_waits_for_stragglers() {
    for (first, messages) in [(5, 3), (7, 3)] {
        let mut feed = Feed::new(1, Holding::live(2_000, 10_000));
        let Ok((head, _)) = MoldUdp64::new(|_| true).read(&mold(1, 1, 1)) else {
            panic!("a packet");
        };
        let at = ResumePoint {
            next: SourcePosition::new(4, 10),
            ..ResumePoint::default()
        };
        feed.arbiter.resume(Some((head.session, ())), &at);
        for at_us in [0, 100_000] {
            feed.packet(0, at_us, &mold(1, first, messages));
        }
        assert!(feed.reported.messages.is_empty(), "the slower line's rest");
        assert_eq!(feed.arbiter.line(0).duplicates, 6);
        feed.packet(0, 100_001, &mold(1, first, messages));
        let next = SourcePosition::new(5, 1);
        let incidents = &feed.reported.incidents;
        let reset = Incident::SequenceReset { next };
        assert!(incidents.contains(&reset), "{first}: {incidents:?}");
        assert_eq!(feed.arbiter.line(0).first, 0, "messages before are awaited");
        feed.arbiter.finish(&mut feed.reported);
        let all: Vec<_> = (first..first + u64::from(messages)).collect();
        assert_eq!(feed.sequences(), all);
        assert_eq!(feed.reported.gaps[1], (1, first - 1));
    }
}

#[test]
fn arbiter_does_not_allocate_after_first_delivery() {
    struct Counted(u64);

    impl Listen<MoldUdp64> for Counted {
        fn packet(&mut self, _: Nanos, (): &()) {}

        fn message(&mut self, _: SourcePosition, _: &[u8]) {
            self.0 += 1;
        }

        fn incident(&mut self, _: Incident) {}
    }

    let packet = |first: u64| {
        let mut bytes = b"SESSION001".to_vec();
        bytes.extend(first.to_be_bytes());
        bytes.extend([0, 2, 0, 1, b'a', 0, 1, b'b']);
        bytes
    };
    // Both lines reorder; each lacks packets, and some are on neither.
    let mut arrivals = Vec::new();
    for n in 0..20_000_u64 {
        let n = n ^ 1;
        for line in 0..2_usize {
            if !(n + 3 * line as u64).is_multiple_of(7) && !n.is_multiple_of(50) {
                arrivals.push((line, Nanos::from_us(n), packet(1 + 2 * n)));
            }
        }
    }
    let holding = Holding::live(50, 100);
    let protocol = MoldUdp64::new(|_| true);
    let mut arbiter = Arbiter::new(protocol, Lines { count: 2, holding }, false);
    let mut counted = Counted(0);
    // The first delivery makes the list of recent packets.
    let (warm, steady) = arrivals.split_at(200);
    let mut run = |part: &[(usize, Nanos, Vec<u8>)]| {
        for (line, at, payload) in part {
            let received_at = *at;
            let packet = Packet {
                received_at,
                payload,
            };
            arbiter.packet(*line, *at, packet, &mut counted);
        }
    };
    run(warm);
    let info = allocation_counter::measure(|| run(steady));
    assert_eq!(info.count_total, 0, "allocations");
    assert!(counted.0 > 30_000);
}
