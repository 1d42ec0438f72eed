//! IEX-TP: segments, and where their messages stand in the source's stream.
//!
//! [`Segment`] walks messages by the lengths on the wire and never past the payload. [`Tracker`]
//! gives every message to be delivered exactly one position, and none twice. No resends are asked
//! for: what is missing is reported.
//! Source: IEX Transport Specification.

use tickcast_reliability::types::SourcePosition;

use crate::source::Incident;

/// Bytes of the segment header.
pub const HEADER_LEN: usize = 40;
const VERSION: u8 = 1;

/// Two lines of a feed are never further apart than this, the interval of a silent venue's
/// heartbeats.
const SKEW_NS: u64 = 1_000_000_000;

/// Which feed a segment belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feed {
    /// Top of book: TOPS 1.5 or 1.6.
    Tops,
    /// Price levels: DEEP 1.0.
    Deep,
}

impl Feed {
    const fn of(protocol: u16) -> Option<Self> {
        match protocol {
            0x8002 | 0x8003 => Some(Self::Tops),
            0x8004 => Some(Self::Deep),
            _ => None,
        }
    }
}

/// One segment: a checked header and the bytes of its messages.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    /// The feed.
    pub feed: Feed,
    /// The venue's session.
    pub session: u32,
    /// How many messages the header announces; 0 in a heartbeat.
    pub count: u16,
    /// Sequence of the first message; in a heartbeat, of the next one. At least 1; with `count`
    /// added, at most [`SourcePosition::SEQUENCE_MAX`].
    pub first: u64,
    /// When the venue sent it, ns since 1970, UTC.
    pub sent_at: u64,
    /// The messages, each after its length; shorter than announced when the packet is cut.
    blocks: &'a [u8],
    /// Whether the packet holds all bytes that the header announces.
    is_whole: bool,
}

impl<'a> Segment<'a> {
    /// Reads a segment's header.
    ///
    /// # Errors
    /// The fault, in one phrase.
    #[inline]
    pub fn read(packet: &'a [u8]) -> Result<Self, &'static str> {
        let Some((header, rest)) = packet.split_first_chunk::<HEADER_LEN>() else {
            return Err("the packet is shorter than an IEX-TP header");
        };
        if header[0] != VERSION {
            return Err("the IEX-TP version is not 1");
        }
        let Some(feed) = Feed::of(u16_at(header, 2)) else {
            return Err("the IEX-TP message protocol is neither TOPS 1.5, TOPS 1.6 nor DEEP 1.0");
        };
        let first = u64_at(header, 24);
        let payload_len = usize::from(u16_at(header, 12));
        let count = u16_at(header, 14);
        // Beyond 48 bits several messages would have one position.
        if !(1..=SourcePosition::SEQUENCE_MAX - u64::from(count)).contains(&first) {
            return Err("the IEX-TP first sequence is out of range");
        }
        if count == 0 && payload_len > 0 {
            return Err("the IEX-TP payload holds more than the announced 0 messages");
        }
        let [_, _, _, _, _, _, _, _, a, b, c, d, ..] = *header;
        Ok(Self {
            feed,
            session: u32::from_le_bytes([a, b, c, d]),
            count,
            first,
            sent_at: u64_at(header, 32),
            // Bytes after the announced payload are padding of the network.
            blocks: rest.get(..payload_len).unwrap_or(rest),
            is_whole: rest.len() >= payload_len,
        })
    }

    /// The messages in order, no more than announced.
    #[must_use]
    pub const fn messages(&self) -> Messages<'a> {
        Messages {
            blocks: self.blocks,
            left: self.count,
            is_whole: self.is_whole,
        }
    }
}

/// Walks the messages of a segment.
#[derive(Clone, Debug)]
pub struct Messages<'a> {
    blocks: &'a [u8],
    left: u16,
    is_whole: bool,
}

impl Messages<'_> {
    /// After the last message: what did not fit the header, in one phrase.
    #[must_use]
    pub const fn fault(&self) -> Option<&'static str> {
        if !self.is_whole {
            Some("the packet ends before the IEX-TP payload does")
        } else if self.left > 0 {
            Some("the IEX-TP payload holds fewer messages than announced")
        } else if !self.blocks.is_empty() {
            Some("the IEX-TP payload goes on after its last message")
        } else {
            None
        }
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        if self.left == 0 {
            return None;
        }
        let (len, rest) = self.blocks.split_first_chunk::<2>()?;
        let (message, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes(*len)))?;
        self.blocks = rest;
        self.left -= 1;
        Some(message)
    }
}

/// Follows the venue's sequence over gaps, duplicates, resets and sessions.
///
/// The first segment decides where the stream starts: what came before it is not missing. A
/// sequence that starts again is told from an old packet (the other line) by the time the venue
/// sent it: the lines are less than a second apart.
#[derive(Clone, Debug, Default)]
pub struct Tracker {
    current: Option<Run>,
    previous_session: Option<u32>,
    ordinal: u16,
}

/// Between two resets.
#[derive(Clone, Copy, Debug)]
struct Run {
    session: u32,
    expected: u64,
    newest_sent_at: u64,
}

/// The new part of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fresh {
    /// How many messages at the segment's start are to be passed over.
    pub skip: u64,
    /// Resets and session changes before it (saturating at 65,535, from where on positions may
    /// go back).
    pub ordinal: u16,
}

impl Tracker {
    /// Takes a segment's header; reports what it means. `None` when nothing of it is new.
    pub fn segment(
        &mut self,
        segment: &Segment<'_>,
        mut report: impl FnMut(Incident),
    ) -> Option<Fresh> {
        let count = u64::from(segment.count);
        let Some(mut run) = self.current else {
            self.current = Some(Run::starting(segment, segment.first));
            return Some(self.fresh(0));
        };
        let trails =
            segment.sent_at < run.newest_sent_at && run.newest_sent_at - segment.sent_at <= SKEW_NS;
        if segment.session != run.session {
            if self.previous_session == Some(segment.session) && trails {
                report_duplicates(count, &mut report);
                return None;
            }
            self.previous_session = Some(run.session);
            self.ordinal = self.ordinal.saturating_add(1);
            run = Run::starting(segment, 1);
            report(Incident::SessionChange {
                next: SourcePosition::new(self.ordinal, segment.first),
            });
        } else if segment.first < run.expected && run.restarts(segment, trails) {
            self.ordinal = self.ordinal.saturating_add(1);
            run = Run::starting(segment, 1);
            report(Incident::SequenceReset {
                next: SourcePosition::new(self.ordinal, segment.first),
            });
        }
        run.newest_sent_at = run.newest_sent_at.max(segment.sent_at);
        if segment.first > run.expected {
            report(Incident::Gap {
                from: SourcePosition::new(self.ordinal, run.expected),
                missing: segment.first - run.expected,
            });
            run.expected = segment.first;
        }
        self.current = Some(run);
        let skip = (run.expected - segment.first).min(count);
        report_duplicates(skip, &mut report);
        (skip < count).then(|| self.fresh(skip))
    }

    /// Says that the segment's first `walked` messages are done with.
    pub fn walked(&mut self, segment: &Segment<'_>, walked: u64) {
        if let Some(run) = &mut self.current {
            run.expected = run.expected.max(segment.first + walked);
        }
    }

    const fn fresh(&self, skip: u64) -> Fresh {
        Fresh {
            skip,
            ordinal: self.ordinal,
        }
    }
}

impl Run {
    const fn starting(segment: &Segment<'_>, expected: u64) -> Self {
        Self {
            session: segment.session,
            expected,
            newest_sent_at: segment.sent_at,
        }
    }

    /// Whether a segment with an old sequence starts the sequence again. A heartbeat with first
    /// sequence 1 says so, unless it is the other line's from before the first message. Should
    /// that heartbeat be lost, a segment sent long after everything seen so far says it too.
    const fn restarts(&self, segment: &Segment<'_>, trails: bool) -> bool {
        if segment.count == 0 && segment.first == 1 {
            !trails
        } else {
            segment.sent_at > self.newest_sent_at.saturating_add(SKEW_NS)
        }
    }
}

fn report_duplicates(messages: u64, report: &mut impl FnMut(Incident)) {
    if messages > 0 {
        report(Incident::Duplicate { messages });
    }
}

fn u16_at(header: &[u8; HEADER_LEN], at: usize) -> u16 {
    u16::from_le_bytes([header[at], header[at + 1]])
}

fn u64_at(header: &[u8; HEADER_LEN], at: usize) -> u64 {
    let mut field = [0; 8];
    field.copy_from_slice(&header[at..at + 8]);
    u64::from_le_bytes(field)
}
