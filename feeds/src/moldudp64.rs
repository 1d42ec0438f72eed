//! MoldUDP64 1.0 downstream packets: every message comes out once, in order, with its position,
//! and what is missing, old or unreadable is said.
//!
//! Messages are walked by their length on the wire, never by what a type should measure. Requests
//! for repair are not made here. Rules where the specification leaves a choice:
//!
//! - *Late join*: the first packet may have any sequence; what came before is no gap, unless
//!   `expect_from_one`.
//! - *Session change*: the ordinal goes up and counting starts at 1, so a first packet beyond 1 is
//!   a gap. Packets of the session before it (the slower line, its last end-of-session packets)
//!   are old from then on. Should that one go on with news, [`INSISTING`] packets in a row with
//!   nothing of the new session between them, then the new session was a stray: the old one is
//!   taken up where it was left, and what was passed over is a gap.
//! - *Sequence going back within a session*: sequences of a session are never used twice, so these
//!   are old messages (another line, a repair, a replay), and delivering them again would be
//!   wrong. Only a heartbeat says what the venue will send *next*: [`INSISTING`] of them in a row
//!   below what is expected, with nothing new in between, can't be stragglers (there is one
//!   a second): the venue has started again under the old name, and without a reset the feed would
//!   stay silent for the rest of the day.
//! - *Sequence 0*: the venue counts from 1. A session that begins with 0 comes from a converter
//!   that numbers nothing; its packets are numbered here as they come.

use tickcast_reliability::types::SourcePosition;

use crate::source::Incident;

/// Bytes before the message blocks: session (10), sequence (8), count (2).
pub const HEADER_LEN: usize = 20;

/// A count that says that the session is over.
pub const END_OF_SESSION: u16 = 0xFFFF;

/// Packets in a row that it takes to make the venue's going back the truth rather than a straggler.
pub const INSISTING: u8 = 3;

/// A session's name: 10 ASCII characters.
pub type Session = [u8; 10];

/// Contents of a packet, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// A message that was not seen before. May be empty: such a block only uses up a sequence.
    Message(SourcePosition, &'a [u8]),
    /// Something about the stream itself.
    Incident(Incident),
}

/// Takes what a packet held, in order; a closure of events is one.
pub trait Listen<'a> {
    /// As [`Event::Message`].
    fn message(&mut self, position: SourcePosition, message: &'a [u8]);

    /// As [`Event::Incident`].
    fn incident(&mut self, incident: Incident);
}

impl<'a, F: FnMut(Event<'a>)> Listen<'a> for F {
    #[inline]
    fn message(&mut self, position: SourcePosition, message: &'a [u8]) {
        self(Event::Message(position, message));
    }

    fn incident(&mut self, incident: Incident) {
        self(Event::Incident(incident));
    }
}

/// The header of a downstream packet, as on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The session the sequence belongs to.
    pub session: Session,
    /// Sequence of the first message; without messages, of the next one to come.
    pub sequence: u64,
    /// Message blocks that follow; 0 is a heartbeat, [`END_OF_SESSION`] the end.
    pub count: u16,
}

impl Header {
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

/// Follows the sequence of one stream of packets.
#[derive(Clone, Debug, Default)]
pub struct MoldUdp64 {
    session: Option<Session>,
    /// The session before, and the next sequence there.
    previous: Option<(Session, u64)>,
    ordinal: u16,
    /// The next sequence; 0 until a packet told one.
    expected: u64,
    unnumbered: bool,
    ended: bool,
    heartbeats_behind: u8,
    /// Packets with news of the previous session since the last one of the current session.
    news_of_previous: u8,
    expect_from_one: bool,
}

impl MoldUdp64 {
    /// A follower that has seen nothing yet. With `expect_from_one`, a first packet beyond
    /// sequence 1 is a gap; without, it is a late join.
    #[must_use]
    pub fn new(expect_from_one: bool) -> Self {
        Self {
            expect_from_one,
            ..Self::default()
        }
    }

    /// The session that is being followed.
    #[must_use]
    pub const fn session(&self) -> Option<Session> {
        self.session
    }

    /// Where the next new message will stand.
    #[must_use]
    pub const fn next_position(&self) -> SourcePosition {
        SourcePosition::new(self.ordinal, self.expected)
    }

    /// Takes one UDP payload and tells `on` what is new in it. Never panics, whatever the bytes.
    #[inline]
    pub fn packet<'a>(&mut self, payload: &'a [u8], mut on: impl FnMut(Event<'a>)) {
        self.follow(payload, &mut on);
    }

    /// As [`packet`](Self::packet), for a listener that keeps messages and incidents apart.
    #[inline(always)]
    pub fn follow<'a>(&mut self, payload: &'a [u8], on: &mut impl Listen<'a>) {
        let Some((header, blocks)) = Header::split(payload) else {
            return on.incident(malformed(
                "MoldUDP64 packet shorter than its 20-byte header",
            ));
        };
        let messages = match header.count {
            END_OF_SESSION => 0,
            n => u64::from(n),
        };
        if header.sequence > SourcePosition::SEQUENCE_MAX - messages {
            return on.incident(malformed("MoldUDP64 sequence beyond 48 bits"));
        }
        if self.session == Some(header.session) {
            self.news_of_previous = 0;
        } else if !self.enter(&header, on) {
            return;
        }
        let sequence = if header.sequence == 0 && self.unnumbered {
            self.expected
        } else {
            header.sequence
        };
        if messages == 0 {
            return self.announcement(sequence, header.count == END_OF_SESSION, on);
        }
        let old = self.expected.saturating_sub(sequence).min(messages);
        if old > 0 {
            on.incident(Incident::Duplicate { messages: old });
            if old == messages {
                return;
            }
        }
        self.skip_to(sequence, on);
        self.heartbeats_behind = 0;
        let mut rest = blocks;
        for n in 0..messages {
            let Some((message, after)) = split_block(rest) else {
                return on.incident(malformed("MoldUDP64 packet ends within a message"));
            };
            rest = after;
            if n >= old {
                let position = self.next_position();
                self.expected += 1;
                on.message(position, message);
            }
        }
    }

    /// Takes up the session of a packet; `false` when that is the one before the current one.
    #[cold]
    fn enter<'a>(&mut self, header: &Header, on: &mut impl Listen<'a>) -> bool {
        let left_at = match self.previous {
            Some((session, next)) if session == header.session => {
                if !self.insists(header, next, on) {
                    return false;
                }
                Some(next)
            }
            _ => None,
        };
        self.unnumbered = left_at.is_none() && header.sequence == 0;
        self.ended = false;
        self.heartbeats_behind = 0;
        self.news_of_previous = 0;
        if let Some(session) = self.session.replace(header.session) {
            self.previous = Some((session, self.expected));
            self.ordinal = self.ordinal.saturating_add(1);
            self.expected = left_at.unwrap_or(1);
            let next = self.next_position();
            on.incident(Incident::SessionChange { next });
        } else if self.expect_from_one || self.unnumbered {
            self.expected = 1;
        } else {
            self.expected = header.sequence;
        }
        true
    }

    /// Whether the previous session, where `next` was to come, has gone on for long enough.
    fn insists<'a>(&mut self, header: &Header, next: u64, on: &mut impl Listen<'a>) -> bool {
        if !(1..END_OF_SESSION).contains(&header.count) {
            return false;
        }
        let messages = u64::from(header.count);
        if header.sequence + messages <= next {
            on.incident(Incident::Duplicate { messages });
            return false;
        }
        self.news_of_previous += 1;
        if self.news_of_previous < INSISTING {
            on.incident(malformed("MoldUDP64 messages of a session that was left"));
        }
        self.news_of_previous == INSISTING
    }

    /// A packet without messages: what the venue will send next, or that there is nothing more.
    fn announcement<'a>(&mut self, next: u64, end: bool, on: &mut impl Listen<'a>) {
        if next < self.expected && !end {
            self.heartbeats_behind += 1;
            if self.heartbeats_behind == INSISTING {
                self.heartbeats_behind = 0;
                self.ordinal = self.ordinal.saturating_add(1);
                self.expected = next;
                let next = self.next_position();
                on.incident(Incident::SequenceReset { next });
            }
            return;
        }
        self.heartbeats_behind = 0;
        self.skip_to(next, on);
        if end && !self.ended {
            self.ended = true;
            on.incident(Incident::EndOfSession);
        }
    }

    /// Goes on at `sequence` if that lies ahead, and says what is missing before it.
    fn skip_to<'a>(&mut self, sequence: u64, on: &mut impl Listen<'a>) {
        if sequence > self.expected {
            let from = self.next_position();
            let missing = sequence - self.expected;
            self.expected = sequence;
            on.incident(Incident::Gap { from, missing });
        }
    }
}

#[inline]
fn split_block(blocks: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = blocks.split_first_chunk::<2>()?;
    rest.split_at_checked(usize::from(u16::from_be_bytes(*len)))
}

const fn malformed(reason: &'static str) -> Incident {
    Incident::Malformed { reason }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    fn run(mold: &mut MoldUdp64, bytes: &[u8]) -> Vec<String> {
        let mut seen = Vec::new();
        mold.packet(bytes, |event| {
            seen.push(match event {
                Event::Message(p, m) => format!("{p}={}", String::from_utf8_lossy(m)),
                Event::Incident(Incident::Gap { from, missing }) => format!("gap {from}+{missing}"),
                Event::Incident(Incident::Duplicate { messages }) => format!("old {messages}"),
                Event::Incident(Incident::SessionChange { next }) => format!("session {next}"),
                Event::Incident(Incident::SequenceReset { next }) => format!("reset {next}"),
                Event::Incident(Incident::EndOfSession) => "end".to_owned(),
                Event::Incident(Incident::Malformed { .. }) => "bad".to_owned(),
                Event::Incident(other) => format!("{other:?}"),
            });
        });
        seen
    }

    #[test]
    fn late_mold_join_reports_no_gap_for_earlier_messages() {
        let mut mold = MoldUdp64::new(false);
        assert_eq!(
            run(&mut mold, &packet(S, 70, 2, &[b"a", b""])),
            ["0:70=a", "0:71="]
        );
        assert_eq!(
            run(&mut mold, &packet(S, 75, 1, &[b"b"])),
            ["gap 0:72+3", "0:75=b"]
        );
        let mut mold = MoldUdp64::new(true);
        assert_eq!(
            run(&mut mold, &packet(S, 4, 1, &[b"b"])),
            ["gap 0:1+3", "0:4=b"]
        );
    }

    #[test]
    fn overlapping_mold_packet_emits_only_new_messages() {
        let mut mold = MoldUdp64::new(false);
        run(&mut mold, &packet(S, 1, 2, &[b"a", b"b"]));
        let overlap = packet(S, 2, 3, &[b"b", b"c", b"d"]);
        assert_eq!(run(&mut mold, &overlap), ["old 1", "0:3=c", "0:4=d"]);
        assert_eq!(run(&mut mold, &overlap), ["old 3"]);
    }

    #[test]
    fn mold_heartbeat_reveals_tail_gap_once() {
        let mut mold = MoldUdp64::new(false);
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
    fn new_mold_session_starts_at_one_and_retires_previous() {
        let mut mold = MoldUdp64::new(false);
        run(&mut mold, &packet(S, 9, 1, &[b"a"]));
        let first = packet(T, 3, 1, &[b"b"]);
        assert_eq!(
            run(&mut mold, &first),
            ["session 1:1", "gap 1:1+2", "1:3=b"]
        );
        assert_eq!(run(&mut mold, &packet(S, 9, 1, &[b"a"])), ["old 1"]);
        assert_eq!(
            run(&mut mold, &packet(S, 10, 1, &[b"z"])),
            ["bad"],
            "counted, not delivered"
        );
        assert!(run(&mut mold, &packet(S, 11, 0xFFFF, &[])).is_empty());
        assert_eq!(run(&mut mold, &packet(T, 4, 1, &[b"c"])), ["1:4=c"]);
    }

    #[test]
    fn stray_session_packet_keeps_current_session() {
        let mut mold = MoldUdp64::new(false);
        run(&mut mold, &packet(S, 9, 1, &[b"a"]));
        assert_eq!(
            run(&mut mold, &packet(T, 1, 1, &[b"x"])),
            ["session 1:1", "1:1=x"]
        );
        assert_eq!(run(&mut mold, &packet(S, 10, 1, &[b"b"])), ["bad"]);
        assert_eq!(run(&mut mold, &packet(S, 11, 1, &[b"c"])), ["bad"]);
        let back = ["session 2:10", "gap 2:10+2", "2:12=d"];
        assert_eq!(run(&mut mold, &packet(S, 12, 1, &[b"d"])), back);
        assert_eq!(run(&mut mold, &packet(S, 13, 1, &[b"e"])), ["2:13=e"]);
        assert_eq!(run(&mut mold, &packet(T, 1, 1, &[b"x"])), ["old 1"]);
    }

    #[test]
    fn sequence_restart_is_old_until_heartbeats_repeat_it() {
        let mut mold = MoldUdp64::new(false);
        run(&mut mold, &packet(S, 100, 1, &[b"a"]));
        assert_eq!(run(&mut mold, &packet(S, 1, 1, &[b"x"])), ["old 1"]);
        assert!(run(&mut mold, &packet(S, 2, 0, &[])).is_empty());
        assert!(run(&mut mold, &packet(S, 2, 0, &[])).is_empty());
        assert_eq!(
            run(&mut mold, &packet(S, 101, 1, &[b"b"])),
            ["0:101=b"],
            "alive: starts over"
        );
        assert!(run(&mut mold, &packet(S, 2, 0, &[])).is_empty());
        assert!(run(&mut mold, &packet(S, 2, 0, &[])).is_empty());
        assert_eq!(run(&mut mold, &packet(S, 2, 0, &[])), ["reset 1:2"]);
        assert_eq!(run(&mut mold, &packet(S, 2, 1, &[b"y"])), ["1:2=y"]);
    }

    #[test]
    fn mold_packet_cut_mid_message_emits_prefix_then_gap() {
        let mut mold = MoldUdp64::new(false);
        let mut cut = packet(S, 1, 3, &[b"aa", b"bb", b"cc"]);
        cut.truncate(cut.len() - 1);
        assert_eq!(run(&mut mold, &cut), ["0:1=aa", "0:2=bb", "bad"]);
        assert_eq!(
            run(&mut mold, &packet(S, 4, 1, &[b"d"])),
            ["gap 0:3+1", "0:4=d"]
        );
        assert_eq!(run(&mut mold, &cut[..19]), ["bad"]);
    }

    #[test]
    fn sequence_beyond_position_range_is_refused() {
        let mut mold = MoldUdp64::new(false);
        run(&mut mold, &packet(S, 1, 1, &[b"a"]));
        assert_eq!(
            run(&mut mold, &packet(S, u64::MAX, 2, &[b"x", b"y"])),
            ["bad"]
        );
        assert_eq!(run(&mut mold, &packet(T, 1 << 48, 0, &[])), ["bad"]);
        assert_eq!(run(&mut mold, &packet(S, 2, 1, &[b"b"])), ["0:2=b"]);
    }

    #[test]
    fn packets_that_are_not_numbered_are_numbered_as_they_come() {
        let mut mold = MoldUdp64::new(false);
        let unnumbered = packet(&[0; 10], 0, 1, &[b"a"]);
        assert_eq!(run(&mut mold, &unnumbered), ["0:1=a"]);
        assert_eq!(run(&mut mold, &unnumbered), ["0:2=a"]);
        let mut mold = MoldUdp64::new(false);
        run(&mut mold, &packet(S, 5, 1, &[b"a"]));
        assert_eq!(run(&mut mold, &packet(S, 0, 1, &[b"a"])), ["old 1"]);
    }
}
