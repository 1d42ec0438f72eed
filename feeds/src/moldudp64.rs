//! MoldUDP64 1.0 downstream packets: header and message blocks.
//!
//! Messages are walked by their length on the wire, never by what a type should measure. The
//! sequence is followed by [`crate::arbiter`]; requests for repair are not made here.

use crate::arbiter::{Blocks, MessageBlocks, PacketHead, PacketKind, Protocol};
use crate::source::Incident;

/// Bytes before the message blocks: session (10), sequence (8), count (2).
pub const HEADER_LEN: usize = 20;

/// A count that says that the session is over.
pub const END_OF_SESSION: u16 = 0xFFFF;

/// A session's name: 10 ASCII characters.
pub type Session = [u8; 10];

/// The header of a downstream packet, as on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoldHeader {
    /// The session the sequence belongs to.
    pub session: Session,
    /// Sequence of the first message; without messages, of the next one to come.
    pub sequence: u64,
    /// Message blocks that follow; 0 is a heartbeat, [`END_OF_SESSION`] the end.
    pub count: u16,
}

impl MoldHeader {
    /// Splits a packet into its header and its message blocks; `None` when it is too short.
    #[inline]
    #[must_use]
    pub fn split(packet: &[u8]) -> Option<(Self, &[u8])> {
        let (session, rest) = packet.split_first_chunk::<10>()?;
        let (sequence, rest) = rest.split_first_chunk::<8>()?;
        let (count, blocks) = rest.split_first_chunk::<2>()?;
        let header = Self {
            session: *session,
            sequence: u64::from_be_bytes(*sequence),
            count: u16::from_be_bytes(*count),
        };
        Some((header, blocks))
    }

    /// The header's bytes.
    #[must_use]
    pub fn to_bytes(self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[..10].copy_from_slice(&self.session);
        bytes[10..18].copy_from_slice(&self.sequence.to_be_bytes());
        bytes[18..].copy_from_slice(&self.count.to_be_bytes());
        bytes
    }
}

/// MoldUDP64, with messages of a higher protocol.
#[derive(Clone, Copy, Debug)]
pub struct MoldUdp64 {
    is_known: fn(&[u8]) -> bool,
}

impl MoldUdp64 {
    /// Creates the protocol; `is_known` returns whether a message is of a known type and length.
    #[must_use]
    pub const fn new(is_known: fn(&[u8]) -> bool) -> Self {
        Self { is_known }
    }
}

impl Protocol for MoldUdp64 {
    type Note = ();
    type Blocks<'a> = MoldBlocks<'a>;

    #[inline(always)]
    fn read<'a>(&self, payload: &'a [u8]) -> Result<(PacketHead<()>, MoldBlocks<'a>), Incident> {
        let Some((header, blocks)) = MoldHeader::split(payload) else {
            let reason = "MoldUDP64 packet shorter than its 20-byte header";
            return Err(Incident::foreign(reason));
        };
        let (kind, count) = match header.count {
            END_OF_SESSION => (PacketKind::End, 0),
            count => (PacketKind::Data, count),
        };
        let mut session = [0; 16];
        session[..10].copy_from_slice(&header.session);
        let head = PacketHead {
            session: u128::from_le_bytes(session),
            first: header.sequence,
            count: count.into(),
            kind,
            sent_at: 0,
            note: (),
        };
        Ok((head, MoldBlocks::new(blocks, count)))
    }

    fn is_known(&self, message: &[u8]) -> bool {
        (self.is_known)(message)
    }
}

/// The messages of a packet, each after its length in big-endian order.
pub type MoldBlocks<'a> = MessageBlocks<'a, true>;

impl<'a> Blocks<'a> for MoldBlocks<'a> {
    #[inline(always)]
    fn fault(&self) -> Option<&'static str> {
        let fewer = "MoldUDP64 packet ends within a message";
        let more = "MoldUDP64 packet goes on after its last message";
        self.fault_named(fewer, more)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tickcast_reliability::types::{Nanos, SourcePosition};

    use super::*;
    use crate::arbiter::{Arbiter, Holding, Lines, Listen};
    use crate::source::{Packet, PacketOrigin, ResumePoint};

    const S: &Session = b"000010059B";
    const T: &Session = b"000010059C";

    fn packet(session: &Session, sequence: u64, count: u16, messages: &[&[u8]]) -> Vec<u8> {
        let mut bytes = session.to_vec();
        bytes.extend(sequence.to_be_bytes());
        bytes.extend(count.to_be_bytes());
        for m in messages {
            bytes.extend((m.len() as u16).to_be_bytes());
            bytes.extend(*m);
        }
        bytes
    }

    #[derive(Default)]
    struct Reported(Vec<String>);

    impl Listen<MoldUdp64> for Reported {
        fn packet(&mut self, _: Nanos, (): &()) {}

        fn message(&mut self, position: SourcePosition, message: &[u8]) {
            let text = String::from_utf8_lossy(message);
            self.0.push(format!("{position}={text}"));
        }

        fn incident(&mut self, incident: Incident) {
            self.0.push(match incident {
                Incident::Gap { from, missing } => format!("gap {from}+{missing}"),
                Incident::Duplicate { messages } => format!("old {messages}"),
                Incident::Late { messages } => format!("late {messages}"),
                Incident::SessionChange { next } => format!("session {next}"),
                Incident::SequenceReset { next } => format!("reset {next}"),
                Incident::EndOfSession => "end".to_owned(),
                Incident::Malformed { .. } => "bad".to_owned(),
                Incident::Foreign { .. } => "foreign".to_owned(),
                other => format!("{other:?}"),
            });
        }
    }

    type Mold = Arbiter<MoldUdp64>;

    /// One line that holds nothing.
    fn follower(expect_from_one: bool) -> Mold {
        let protocol = MoldUdp64::new(|_| true);
        Arbiter::new(protocol, Lines::default(), expect_from_one)
    }

    fn run(mold: &mut Mold, payload: &[u8]) -> Vec<String> {
        let mut reported = Reported::default();
        let received_at = Nanos::ZERO;
        let packet = Packet {
            received_at,
            payload,
        };
        mold.packet(0, received_at, packet, &mut reported);
        reported.0
    }

    #[test]
    fn late_mold_join_reports_no_gap_for_earlier_messages() {
        let mut mold = follower(false);
        assert_eq!(
            run(&mut mold, &packet(S, 70, 2, &[b"a", b""])),
            ["0:70=a", "0:71="]
        );
        assert_eq!(
            run(&mut mold, &packet(S, 75, 1, &[b"b"])),
            ["gap 0:72+3", "0:75=b"]
        );
        let mut mold = follower(true);
        assert_eq!(
            run(&mut mold, &packet(S, 4, 1, &[b"b"])),
            ["gap 0:1+3", "0:4=b"]
        );
    }

    #[test]
    fn overlapping_mold_packet_emits_only_new_messages() {
        let mut mold = follower(false);
        run(&mut mold, &packet(S, 1, 2, &[b"a", b"b"]));
        let overlap = packet(S, 2, 3, &[b"b", b"c", b"d"]);
        assert_eq!(run(&mut mold, &overlap), ["old 1", "0:3=c", "0:4=d"]);
        assert_eq!(run(&mut mold, &overlap), ["old 3"]);
    }

    #[test]
    fn mold_heartbeat_reveals_tail_gap_once() {
        let mut mold = follower(false);
        run(&mut mold, &packet(S, 1, 1, &[b"a"]));
        assert!(
            run(&mut mold, &packet(S, 2, 0, &[])).is_empty(),
            "it names the next sequence"
        );
        assert_eq!(run(&mut mold, &packet(S, 5, 0, &[])), ["gap 0:2+3"]);
        assert!(run(&mut mold, &packet(S, 5, 0, &[])).is_empty());
        assert_eq!(
            run(&mut mold, &packet(S, 6, 0xFFFF, &[])),
            ["gap 0:5+1", "end"]
        );
        assert!(
            run(&mut mold, &packet(S, 6, 0xFFFF, &[])).is_empty(),
            "the end is told once"
        );
    }

    #[test]
    fn mold_packet_that_goes_on_behind_its_messages_is_malformed() {
        let longer = |mut bytes: Vec<u8>| {
            bytes.extend(b"zz");
            bytes
        };
        let mut mold = follower(false);
        let first = packet(S, 1, 2, &[b"a", b"b"]);
        assert_eq!(
            run(&mut mold, &longer(first.clone())),
            ["0:1=a", "0:2=b", "bad"]
        );
        // A copy is no true one, whether it is longer or shorter.
        assert_eq!(run(&mut mold, &first), ["old 2"]);
        assert_eq!(run(&mut mold, &longer(first.clone())), ["bad", "old 2"]);
        let cut = &first[..first.len() - 1];
        assert_eq!(run(&mut mold, cut), ["bad", "old 1"]);
        // A header without messages, and bytes behind it, says nothing.
        for count in [0, END_OF_SESSION] {
            let heartbeat = longer(packet(S, 9, count, &[]));
            assert_eq!(run(&mut mold, &heartbeat), ["bad"]);
        }
        assert_eq!(run(&mut mold, &packet(S, 3, 1, &[b"c"])), ["0:3=c"]);
    }

    #[test]
    fn message_whose_length_became_0_is_missing() {
        for (messages, delivered) in [(&[&b""[..]][..], 0), (&[b"a", b""], 1)] {
            let mut mold = follower(false);
            run(&mut mold, &packet(S, 1, 1, &[b"x"]));
            let count = messages.len() as u16;
            let mut damaged = packet(S, 2, count, messages);
            damaged.extend(b"bytes of the message");
            let reported = run(&mut mold, &damaged);
            assert_eq!(reported.last().map(String::as_str), Some("bad"));
            let missing = 2 + delivered;
            let next = missing + 1;
            let expected = [format!("gap 0:{missing}+1"), format!("0:{next}=b")];
            assert_eq!(run(&mut mold, &packet(S, next, 1, &[b"b"])), expected);
        }
        // A message that the venue left empty fits its packet.
        let mut mold = follower(false);
        run(&mut mold, &packet(S, 1, 2, &[b"x", b""]));
        assert_eq!(run(&mut mold, &packet(S, 3, 1, &[b"b"])), ["0:3=b"]);
    }

    #[test]
    fn mold_fault_tells_missing_messages_from_a_longer_packet() {
        let fault = |count, messages: &[&[u8]], behind: &[u8]| {
            let bytes = [&packet(S, 1, count, messages), behind].concat();
            let (_, mut blocks) = MoldUdp64::new(|_| true).read(&bytes).unwrap();
            blocks.by_ref().for_each(drop);
            blocks.fault()
        };
        let fewer = Some("MoldUDP64 packet ends within a message");
        let more = Some("MoldUDP64 packet goes on after its last message");
        assert_eq!(fault(2, &[b"a", b""], b""), None);
        assert_eq!(fault(1, &[b"a"], b"z"), more);
        assert_eq!(fault(2, &[b"a", b""], b"z"), more, "no length, but bytes");
        assert_eq!(fault(2, &[b"a"], b""), fewer);
        assert_eq!(fault(2, &[b"a"], b"\0\x02z"), fewer);
    }

    #[test]
    fn damaged_copy_of_a_waiting_packet_is_malformed() {
        let early = packet(S, 3, 1, &[b"c"]);
        let mut longer = early.clone();
        longer.push(0);
        let reported = run_recorded(
            1,
            &[
                (0, 0, packet(S, 1, 1, &[b"a"])),
                (10, 0, early),
                (20, 0, longer),
                (30, 0, packet(S, 2, 1, &[b"b"])),
            ],
        );
        assert_eq!(reported, ["0:1=a", "bad", "old 1", "0:2=b", "0:3=c"]);
    }

    #[test]
    fn new_mold_session_starts_at_one_and_retires_previous() {
        let mut mold = follower(false);
        run(&mut mold, &packet(S, 9, 1, &[b"a"]));
        let first = packet(T, 3, 1, &[b"b"]);
        assert_eq!(
            run(&mut mold, &first),
            ["session 1:1", "gap 1:1+2", "1:3=b"]
        );
        assert_eq!(run(&mut mold, &packet(S, 9, 1, &[b"a"])), ["old 1"]);
        assert_eq!(
            run(&mut mold, &packet(S, 10, 1, &[b"z"])),
            [""; 0],
            "kept until it insists"
        );
        assert!(run(&mut mold, &packet(S, 11, 0xFFFF, &[])).is_empty());
        assert_eq!(
            run(&mut mold, &packet(T, 4, 1, &[b"c"])),
            ["1:4=c", "foreign", "foreign"],
            "the data and the end"
        );
    }

    /// The origins of foreign packets.
    #[derive(Default)]
    struct Origins(Vec<PacketOrigin>);

    impl Listen<MoldUdp64> for Origins {
        fn packet(&mut self, _: Nanos, (): &()) {}

        fn message(&mut self, _: SourcePosition, _: &[u8]) {}

        fn incident(&mut self, incident: Incident) {
            if let Incident::Foreign { origin, .. } = incident {
                self.0.push(origin);
            }
        }
    }

    #[test]
    fn foreign_packet_names_its_own_sender() {
        let [feed, stray, other] = [1, 2, 3].map(|n| Ipv4Addr::new(10, 0, 0, n));
        let (mut mold, mut origins) = (follower(false), Origins::default());
        let mut foreign = |from: Ipv4Addr, payload: &[u8]| {
            mold.set_sender(0, from);
            let received_at = Nanos::ZERO;
            let packet = Packet {
                received_at,
                payload,
            };
            mold.packet(0, received_at, packet, &mut origins);
            std::mem::take(&mut origins.0)
        };
        let by = |sender| {
            let sender = Some(sender);
            vec![PacketOrigin { line: 0, sender }]
        };
        assert!(foreign(feed, &packet(S, 9, 1, &[b"a"])).is_empty());
        assert!(foreign(feed, &packet(T, 3, 1, &[b"b"])).is_empty());
        // The previous session is foreign only once the current one goes on.
        assert!(foreign(stray, &packet(S, 10, 1, &[b"z"])).is_empty());
        assert_eq!(foreign(feed, &packet(T, 4, 1, &[b"c"])), by(stray));
        let mut longer = packet(b"ANOTHER-ID", 1, 1, &[b"x"]);
        longer.push(0);
        assert_eq!(foreign(other, &longer), by(other));
    }

    #[test]
    fn stray_session_packet_keeps_current_session() {
        let mut mold = follower(false);
        run(&mut mold, &packet(S, 9, 1, &[b"a"]));
        assert_eq!(
            run(&mut mold, &packet(T, 1, 1, &[b"x"])),
            ["session 1:1", "1:1=x"]
        );
        assert_eq!(run(&mut mold, &packet(S, 10, 1, &[b"b"])), [""; 0]);
        assert_eq!(run(&mut mold, &packet(S, 11, 1, &[b"c"])), [""; 0]);
        let back = ["session 2:10", "2:10=b", "2:11=c", "2:12=d"];
        assert_eq!(run(&mut mold, &packet(S, 12, 1, &[b"d"])), back);
        assert_eq!(run(&mut mold, &packet(S, 13, 1, &[b"e"])), ["2:13=e"]);
        assert_eq!(run(&mut mold, &packet(T, 1, 1, &[b"x"])), ["old 1"]);
    }

    /// Follows lines with the limits of a recording, as packets arrive: µs, line, bytes.
    fn run_recorded(lines: usize, packets: &[(u64, usize, Vec<u8>)]) -> Vec<String> {
        run_within(Holding::RECORDED, lines, packets)
    }

    fn run_within(
        holding: Holding,
        lines: usize,
        packets: &[(u64, usize, Vec<u8>)],
    ) -> Vec<String> {
        let lines = Lines {
            count: lines,
            holding,
        };
        let mut mold: Mold = Arbiter::new(MoldUdp64::new(|_| true), lines, false);
        let mut reported = Reported::default();
        for (us, line, payload) in packets {
            let received_at = Nanos::from_us(*us);
            let packet = Packet {
                received_at,
                payload,
            };
            mold.packet(*line, received_at, packet, &mut reported);
        }
        mold.finish(&mut reported);
        reported.0
    }

    #[test]
    fn any_packet_of_old_session_refutes_another_session() {
        let heartbeat = || packet(S, 2, 0, &[]);
        let end = || packet(S, 2, 0xFFFF, &[]);
        let copy = || packet(S, 1, 1, &[b"a"]);
        for (us, old) in [(1_000, heartbeat()), (2_000, end()), (900_000, copy())] {
            let reported = run_recorded(
                1,
                &[
                    (0, 0, copy()),
                    (100, 0, packet(T, 2, 1, &[b"x"])),
                    (us, 0, old),
                    (5_000_000, 0, end()),
                ],
            );
            let sessions = reported
                .iter()
                .filter(|it| it.starts_with("session"))
                .count();
            assert_eq!(sessions, 0, "{reported:?}");
            assert!(reported.contains(&"foreign".to_owned()), "{reported:?}");
        }
    }

    #[test]
    fn end_repeated_refutes_a_packet_of_another_session() {
        let end = || packet(S, 2, 0xFFFF, &[]);
        let reported = run_recorded(
            1,
            &[
                (0, 0, packet(S, 1, 1, &[b"a"])),
                (1_000, 0, end()),
                (2_000, 0, packet(T, 1, 1, &[b"x"])),
                (3_000, 0, end()),
            ],
        );
        assert_eq!(reported, ["0:1=a", "end", "foreign"]);
    }

    #[test]
    fn slower_lines_old_packets_do_not_refute_a_session() {
        let reported = run_recorded(
            2,
            &[
                (0, 0, packet(S, 1, 1, &[b"a"])),
                (10, 0, packet(T, 1, 1, &[b"x"])),
                (20, 1, packet(S, 1, 1, &[b"a"])),
                (30, 1, packet(S, 2, 0, &[])),
                (40, 0, packet(T, 2, 1, &[b"y"])),
            ],
        );
        assert_eq!(
            reported,
            ["0:1=a", "old 1", "session 1:1", "1:1=x", "1:2=y"]
        );
    }

    #[test]
    fn old_packet_on_candidates_line_refutes_it_at_once() {
        let reported = run_recorded(
            2,
            &[
                (0, 0, packet(S, 1, 1, &[b"a"])),
                (10, 0, packet(T, 1, 1, &[b"x"])),
                (20, 0, packet(S, 2, 0, &[])),
                (2_000_000, 1, packet(T, 1, 1, &[b"x"])),
            ],
        );
        assert_eq!(reported, ["0:1=a", "foreign", "foreign"]);
    }

    #[test]
    fn slower_line_refutes_a_session_once_the_skew_is_over() {
        let reported = |us| {
            run_within(
                Holding::live(600, 6_000),
                2,
                &[
                    (0, 0, packet(S, 1, 1, &[b"a"])),
                    (1, 1, packet(S, 1, 1, &[b"a"])),
                    (10, 0, packet(T, 1, 1, &[b"x"])),
                    (us, 1, packet(S, 2, 0, &[])),
                    (50_000, 0, packet(T, 2, 1, &[b"y"])),
                ],
            )
        };
        let accepted = ["0:1=a", "old 1", "session 1:1", "1:1=x", "1:2=y"];
        assert_eq!(reported(6_010), accepted, "it may still lag");
        assert_eq!(reported(6_011), ["0:1=a", "old 1", "foreign", "foreign"]);
    }

    #[test]
    fn heartbeat_voids_no_confirmed_session_behind_a_hole() {
        let reported = run_recorded(
            1,
            &[
                (0, 0, packet(S, 1, 1, &[b"a"])),
                (10, 0, packet(S, 3, 1, &[b"c"])),
                (20, 0, packet(T, 1, 1, &[b"x"])),
                (30, 0, packet(T, 2, 1, &[b"y"])),
                (40, 0, packet(S, 4, 0, &[])),
                (2_000_000, 0, packet(T, 3, 1, &[b"z"])),
            ],
        );
        let closed = ["0:1=a", "gap 0:2+1", "0:3=c"];
        let followed = ["session 1:1", "1:1=x", "1:2=y", "1:3=z"];
        assert_eq!(reported, [&closed[..], &followed[..]].concat());
    }

    /// Packets of one message each, `first..end`, `step_us` apart, with one more behind the 50th.
    fn stream_with(
        first: u64,
        end: u64,
        step_us: u64,
        stray: Vec<u8>,
    ) -> Vec<(u64, usize, Vec<u8>)> {
        let mut all: Vec<_> = (first..end)
            .map(|n| (n * step_us, 0, packet(S, n, 1, &[b"m"])))
            .collect();
        let at = all[49].0 + step_us / 2;
        all.insert(50, (at, 0, stray));
        all
    }

    fn delivered(reported: &[String]) -> usize {
        reported.iter().filter(|it| it.contains('=')).count()
    }

    #[test]
    fn stray_packet_far_ahead_costs_itself_only() {
        for step_us in [10, 1_000, 3_000_000] {
            for stray in [packet(S, 1_074, 1, &[b"x"]), packet(S, 5_000, 0, &[])] {
                // The stream goes on beyond the position of the stray packet.
                let reported = run_recorded(1, &stream_with(1, 1_401, step_us, stray));
                assert_eq!(delivered(&reported), 1_400, "{step_us} us");
                assert_eq!(reported.len(), 1_401, "{step_us} us");
                assert!(reported.contains(&"0:1074=m".to_owned()));
                assert!(reported.contains(&"foreign".to_owned()));
            }
        }
    }

    #[test]
    fn first_packet_far_ahead_costs_itself_only() {
        for position in [1, 70_000] {
            let mut all = stream_with(position, position + 300, 1_000, packet(S, 0, 0, &[]));
            all.remove(50);
            all[0].2 = packet(S, position + (1 << 20), 1, &[b"m"]);
            let reported = run_recorded(1, &all);
            assert_eq!(delivered(&reported), 299, "{position}");
            assert!(
                !reported.iter().any(|it| it.starts_with("late")),
                "{position}"
            );
            assert!(reported.contains(&"foreign".to_owned()), "{position}");
        }
    }

    #[test]
    fn second_packet_confirms_a_jump_in_the_session() {
        let reported = run_recorded(
            1,
            &[
                (0, 0, packet(S, 1, 1, &[b"a"])),
                (10, 0, packet(S, 9_000, 1, &[b"b"])),
                (20, 0, packet(S, 9_001, 1, &[b"c"])),
            ],
        );
        let jumped = ["0:1=a", "gap 0:2+8998", "0:9000=b", "0:9001=c"];
        assert_eq!(reported, jumped);
        let beats = [1_000_000, 2_000_000].map(|us| (us, 0, packet(S, 9_000, 0, &[])));
        let reported = run_recorded(1, &beats);
        assert_eq!(reported, [""; 0], "nothing was joined");
    }

    #[test]
    fn strays_on_one_of_two_lines_cost_themselves_only() {
        for step_us in [10, 1_000, 3_000_000] {
            let mut all = Vec::new();
            for (us, _, payload) in stream_with(1, 301, step_us, packet(S, 1_074, 1, &[b"x"])) {
                let is_stray = payload.ends_with(b"x");
                all.push((us, 0, payload.clone()));
                if !is_stray {
                    all.push((us + 1, 1, payload));
                }
            }
            // A second stray right behind the first one, at another place.
            all.insert(101, (all[100].0, 0, packet(S, 9_000, 0, &[])));
            let reported = run_recorded(2, &all);
            assert_eq!(delivered(&reported), 300, "{step_us} us");
            let of = |kind: &str| reported.iter().filter(|it| it.starts_with(kind)).count();
            assert_eq!((of("old"), of("foreign")), (300, 2), "{step_us} us");
            assert_eq!(reported.len(), 602, "{step_us} us");
        }
    }

    #[test]
    fn first_stray_is_no_gap_from_one_or_a_resumption() {
        let reported = |mut mold: Mold, next: u64| {
            let mut reported = Reported::default();
            let stream = (next..next + 20).map(|n| packet(S, n, 1, &[b"m"]));
            let stray = packet(S, next + 5_000, 1, &[b"x"]);
            for (us, payload) in (1..).zip(std::iter::once(stray).chain(stream)) {
                let received_at = Nanos::from_us(us * 1_000);
                let payload = payload.as_slice();
                let packet = Packet {
                    received_at,
                    payload,
                };
                mold.packet(0, received_at, packet, &mut reported);
            }
            mold.finish(&mut reported);
            reported.0
        };
        let lines = Lines {
            count: 1,
            holding: Holding::RECORDED,
        };
        let begin = || Arbiter::new(MoldUdp64::new(|_| true), lines, true);
        let from_one = reported(begin(), 1);
        assert_eq!((delivered(&from_one), from_one.len()), (20, 21));
        let mut resumed = begin();
        let session = told_session(begin());
        resumed.resume(Some((session, ())), &at(0, 50));
        let resumed = reported(resumed, 50);
        assert_eq!((delivered(&resumed), resumed.len()), (20, 21));
    }

    /// Returns a place to continue from.
    fn at(ordinal: u16, sequence: u64) -> ResumePoint {
        ResumePoint {
            next: SourcePosition::new(ordinal, sequence),
            ..ResumePoint::default()
        }
    }

    /// Returns the arbiter's name of the session.
    fn told_session(mut mold: Mold) -> u128 {
        run(&mut mold, &packet(S, 1, 1, &[b"a"]));
        mold.session().expect("it has begun")
    }

    #[test]
    fn unconfirmed_packet_at_the_end_is_reported() {
        let mut all = vec![(0, 0, packet(S, 1, 1, &[b"a"]))];
        all.push((10, 0, packet(S, 2_000, 1, &[b"b"])));
        assert_eq!(run_recorded(1, &all), ["0:1=a", "foreign"]);
        let only = [(0, 0, packet(S, 2_000, 1, &[b"b"]))];
        assert_eq!(run_recorded(1, &only), ["0:2000=b"]);
    }

    #[test]
    fn sequence_restart_is_old_until_messages_confirm_it() {
        let mut mold = follower(false);
        run(&mut mold, &packet(S, 100, 1, &[b"a"]));
        assert_eq!(
            run(&mut mold, &packet(S, 1, 1, &[b"x"])),
            ["late 1"],
            "it was never delivered"
        );
        assert!(run(&mut mold, &packet(S, 2, 0, &[])).is_empty());
        assert!(run(&mut mold, &packet(S, 2, 0, &[])).is_empty());
        assert_eq!(
            run(&mut mold, &packet(S, 101, 1, &[b"b"])),
            ["0:101=b"],
            "alive: starts over"
        );
        assert!(run(&mut mold, &packet(S, 2, 0, &[])).is_empty());
        assert!(run(&mut mold, &packet(S, 2, 0, &[])).is_empty());
        assert!(
            run(&mut mold, &packet(S, 2, 0, &[])).is_empty(),
            "copies of an old one look the same"
        );
        let restarted = ["reset 1:1", "gap 1:1+1", "1:2=y"];
        assert_eq!(run(&mut mold, &packet(S, 2, 1, &[b"y"])), restarted);
    }

    /// Runs packets of these milliseconds, after a resumption at message 100 of a session or without one.
    fn run_resumed(session: Option<&Session>, packets: &[(u64, Vec<u8>)]) -> Vec<String> {
        let holding = Holding::live(1_000, 2_000);
        let protocol = MoldUdp64::new(|_| true);
        let mut mold = Arbiter::new(protocol, Lines { count: 1, holding }, false);
        let id = session.map(|session| {
            let mut id = [0; 16];
            id[..10].copy_from_slice(session);
            (u128::from_le_bytes(id), ())
        });
        mold.resume(id, &at(3, 100));
        let mut reported = Reported::default();
        for (ms, payload) in packets {
            let received_at = Nanos::from_ms(*ms);
            let packet = Packet {
                received_at,
                payload,
            };
            mold.packet(0, received_at, packet, &mut reported);
        }
        reported.0
    }

    #[test]
    fn restarted_count_after_resumption_is_another_run() {
        let old = |ms, sequence| (ms, packet(S, sequence, 1, &[b"x"]));
        let unknown = format!("gap 3:100+{}", u64::MAX);
        let restarted = run_resumed(Some(S), &[old(0, 5), old(100, 6), old(101, 7), old(104, 8)]);
        let swallowed = ["old 1", "old 1", &unknown, "reset 4:1", "gap 4:1+6"];
        assert_eq!(restarted, [&swallowed[..], &["4:7=x", "4:8=x"]].concat());
        let heartbeat = run_resumed(Some(S), &[old(0, 5), (101, packet(S, 6, 0, &[]))]);
        assert_eq!(heartbeat, ["old 1", &unknown, "reset 4:1"]);
    }

    #[test]
    fn slower_line_after_resumption_is_no_restarted_count() {
        let old = |ms, sequence| (ms, packet(S, sequence, 1, &[b"x"]));
        let next = |ms, count, message: &[&[u8]]| (ms, packet(S, 100, count, message));
        let slower = [
            old(0, 98),
            old(100, 99),
            next(101, 1, &[b"a"]),
            old(300, 99),
        ];
        assert_eq!(
            run_resumed(Some(S), &slower),
            ["old 1", "old 1", "3:100=a", "old 1"]
        );
        let quiet = [old(0, 98), next(50, 0, &[]), old(300, 99)];
        assert_eq!(run_resumed(Some(S), &quiet), ["old 1", "old 1"]);
        let ended = [old(0, 98), (300, packet(S, 99, END_OF_SESSION, &[]))];
        assert_eq!(run_resumed(Some(S), &ended), ["old 1", "end"]);
    }

    #[test]
    fn resumption_without_session_begins_another_one() {
        let first = (7, packet(T, 50, 1, &[b"x"]));
        let unknown = format!("gap 3:100+{}", u64::MAX);
        let begun = [&*unknown, "session 4:1", "4:50=x"];
        let heartbeat = (9, packet(T, 51, 0, &[]));
        assert_eq!(
            run_resumed(None, &[first, heartbeat]),
            begun,
            "it is joined there"
        );
    }

    #[test]
    fn mold_packet_cut_mid_message_emits_prefix_then_gap() {
        let mut mold = follower(false);
        let mut cut = packet(S, 1, 3, &[b"aa", b"bb", b"cc"]);
        cut.truncate(cut.len() - 1);
        assert_eq!(run(&mut mold, &cut), ["0:1=aa", "0:2=bb", "bad"]);
        assert_eq!(
            run(&mut mold, &packet(S, 4, 1, &[b"d"])),
            ["gap 0:3+1", "0:4=d"]
        );
        assert_eq!(run(&mut mold, &cut[..19]), ["foreign"]);
    }

    #[test]
    fn sequence_beyond_position_range_is_refused() {
        let mut mold = follower(false);
        run(&mut mold, &packet(S, 1, 1, &[b"a"]));
        assert_eq!(
            run(&mut mold, &packet(S, u64::MAX, 2, &[b"x", b"y"])),
            ["bad"]
        );
        assert_eq!(run(&mut mold, &packet(T, 1 << 48, 0, &[])), ["foreign"]);
        assert_eq!(run(&mut mold, &packet(S, 2, 1, &[b"b"])), ["0:2=b"]);
    }

    #[test]
    fn packets_that_are_not_numbered_are_numbered_as_they_come() {
        let mut mold = follower(false);
        let unnumbered = packet(&[0; 10], 0, 1, &[b"a"]);
        assert_eq!(run(&mut mold, &unnumbered), ["0:1=a"]);
        assert_eq!(run(&mut mold, &unnumbered), ["0:2=a"]);
        let mut mold = follower(false);
        run(&mut mold, &packet(S, 5, 1, &[b"a"]));
        assert_eq!(run(&mut mold, &packet(S, 0, 1, &[b"a"])), ["old 1"]);
    }
}
