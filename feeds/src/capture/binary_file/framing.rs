//! The framings of a file of ITCH 5.0 messages, and which units are sound.

use std::ops::Range;

use tickcast_reliability::types::SourcePosition;

use crate::itch::messages::message_len;

pub(super) const PREFIX_LEN: usize = 2;
/// Bytes that decide about the framing.
pub(super) const HEAD_LEN: usize = 4;
/// Bytes from the start of a unit that decide whether it is sound.
pub(super) const SOUND_LEN: usize = PREFIX_LEN + 12;
/// Bytes from the start of a sound message that decide whether its successor is sound too.
pub(super) const PAIR_LEN: usize = 256;
/// Bytes that a venue may append to a message.
const APPENDED_MAX: usize = 64;
const NS_PER_DAY: u64 = 86_400_000_000_000;
const STAMP: Range<usize> = 5..11;
/// Bytes of a SoupBinTCP login: type, session (10), sequence (20).
const LOGIN_LEN: usize = 31;
/// Half of the sequences that a position can express: the messages behind a login need the rest.
const LOGIN_SEQUENCE_MAX: u64 = SourcePosition::SEQUENCE_MAX / 2;

/// How a file frames its messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::capture) enum Framing {
    /// Each message has its length before it.
    Lengths,
    /// All lengths are zero; the types imply them.
    Types,
    /// SoupBinTCP packets.
    SoupBinTcp,
}

/// One framed unit, with its length in the file.
#[derive(Clone, Copy, Debug)]
pub(super) enum Unit {
    /// A message, which begins at `at`.
    Message {
        at: usize,
        len: usize,
        is_known: bool,
    },
    /// The end of a day.
    EndMark { len: usize },
    /// The begin of a SoupBinTCP session, which [`Login`] reads.
    Login { len: usize },
    /// A unit without a message.
    Other { len: usize },
}

impl Unit {
    /// Returns its bytes in the file.
    pub(super) const fn len(self) -> usize {
        match self {
            Self::Message { len, .. }
            | Self::EndMark { len }
            | Self::Login { len }
            | Self::Other { len } => len,
        }
    }

    /// Returns whether its length is the one of its type, so that it needs no sound successor.
    pub(super) const fn is_certain(self) -> bool {
        !matches!(
            self,
            Self::Message {
                is_known: false,
                ..
            } | Self::EndMark { .. }
        )
    }
}

/// The session that a SoupBinTCP login begins or continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Login {
    pub(super) session: [u8; 10],
    /// Sequence of the next message.
    pub(super) next: u64,
}

impl Login {
    /// Reads a whole login; `None` if its sequence is no number that positions can continue.
    pub(super) fn read(unit: &[u8]) -> Option<Self> {
        let (session, digits) = unit.get(PREFIX_LEN + 1..)?.split_first_chunk()?;
        let next = std::str::from_utf8(digits).ok()?.trim().parse().ok()?;
        (next <= LOGIN_SEQUENCE_MAX).then_some(Self {
            session: *session,
            next,
        })
    }
}

impl Framing {
    /// Sound messages in a row that tell a file whose first one is wrong from another format: more than a
    /// packet carries.
    pub(super) const ROW_MIN: usize = 64;
    /// Sound messages in a row that do so up to the end of the file.
    const ROW_TO_END_MIN: usize = 4;

    /// Recognises the framing by a file's first bytes; three are enough for BinaryFILE.
    pub(super) fn of(head: &[u8]) -> Option<Self> {
        let (&[high, low, kind], rest) = head.split_first_chunk::<3>()?;
        let len = usize::from(u16::from_be_bytes([high, low]));
        let of_kind = message_len(kind);
        if len == 0 {
            return of_kind.map(|_| Self::Types);
        }
        if of_kind == Some(len) {
            return Some(Self::Lengths);
        }
        let is_sequenced = kind == b'S' && rest.first().is_some_and(|k| fits(*k, len - 1));
        let is_session = matches!((kind, len), (b'A', LOGIN_LEN) | (b'H', 1) | (b'+', _));
        if is_sequenced || is_session {
            return Some(Self::SoupBinTcp);
        }
        fits(kind, len).then_some(Self::Lengths)
    }

    /// Returns the unit at an offset, if its length fits its type.
    pub(super) fn unit(self, bytes: &[u8], at: usize) -> Option<Unit> {
        let bytes = bytes.get(at..)?;
        let (prefix, body) = bytes.split_first_chunk::<PREFIX_LEN>()?;
        let len = usize::from(u16::from_be_bytes(*prefix));
        match self {
            Self::Lengths if len == 0 => Some(Unit::EndMark { len: PREFIX_LEN }),
            Self::Lengths => message(*body.first()?, len, PREFIX_LEN),
            Self::Types if len != 0 => None,
            Self::Types => {
                let len = message_len(*body.first()?)?;
                message(*body.first()?, len, PREFIX_LEN)
            }
            Self::SoupBinTcp => soup(body, len),
        }
    }

    /// Returns whether the last bytes of a file may be the beginning of a unit.
    pub(super) fn may_begin(self, bytes: &[u8]) -> bool {
        match bytes {
            [] | [0] => true,
            [0, _] => self != Self::Types || bytes[1] == 0,
            [_] | [_, _] => self == Self::SoupBinTcp,
            _ => self.unit(bytes, 0).is_some_and(Unit::is_certain),
        }
    }

    /// Returns whether a unit that can be no accident begins at an offset: the type is known, its
    /// length fits, and its stamp lies within a day. At the end of the bytes less is visible.
    pub(super) fn is_sound(self, bytes: &[u8], at: usize) -> bool {
        match self.unit(bytes, at) {
            Some(Unit::Message {
                at: message,
                is_known: true,
                ..
            }) => {
                let stamp = bytes.get(at + message + STAMP.start..at + message + STAMP.end);
                stamp.is_none_or(|stamp| time(stamp) < NS_PER_DAY)
            }
            Some(Unit::Message { .. }) | None => false,
            Some(Unit::EndMark { len }) => {
                // The end, zeros or the next day follow. The look ahead is short: a long one would
                // cost its length at each zero of a padded file.
                let behind = at + len;
                let next = bytes.get(behind..bytes.len().min(at + SOUND_LEN));
                next.is_some_and(|next| next.iter().all(|byte| *byte == 0))
                    || self
                        .unit(bytes, behind)
                        .is_some_and(|unit| matches!(unit, Unit::Message { is_known: true, .. }))
            }
            Some(Unit::Login { .. } | Unit::Other { .. }) => true,
        }
    }

    /// Returns the messages from the start of the bytes on, up to another unit.
    pub(super) fn messages(self, bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
        let mut unit_at = 0;
        std::iter::from_fn(move || match self.unit(bytes, unit_at)? {
            Unit::Message { at, len, .. } => {
                let message = bytes.get(unit_at + at..unit_at + len);
                unit_at += len;
                message
            }
            _ => None,
        })
    }

    /// Returns whether the bytes begin with a row of sound messages. `is_end` says that the file ends with
    /// the bytes; its last message may be cut off.
    pub(super) fn is_row(self, bytes: &[u8], is_end: bool) -> bool {
        let (mut at, mut messages) = (0, 0);
        while messages < Self::ROW_MIN {
            match self.unit(bytes, at) {
                None | Some(Unit::EndMark { .. }) => {
                    let rest = bytes.get(at..).unwrap_or_default();
                    let ends = rest.len() < HEAD_LEN || rest.iter().all(|byte| *byte == 0);
                    return is_end && ends && messages >= Self::ROW_TO_END_MIN;
                }
                Some(_) if !self.is_sound(bytes, at) => return false,
                Some(unit) => {
                    messages += usize::from(matches!(unit, Unit::Message { .. }));
                    at += unit.len();
                }
            }
        }
        true
    }

    /// Returns where in `range` a sound message begins that a sound unit or the end follows.
    pub(super) fn find(self, bytes: &[u8], mut range: Range<usize>, is_end: bool) -> Option<usize> {
        range.find(|&at| {
            let is_message = matches!(self.unit(bytes, at), Some(Unit::Message { .. }));
            if !is_message || !self.is_sound(bytes, at) {
                return false;
            }
            let end = at + self.unit(bytes, at).map_or(0, Unit::len);
            (is_end && end == bytes.len()) || (end < bytes.len() && self.is_sound(bytes, end))
        })
    }
}

/// Returns whether a length is that of a type, or of one with fields appended.
fn fits(kind: u8, len: usize) -> bool {
    message_len(kind).is_some_and(|of_kind| (of_kind..=of_kind + APPENDED_MAX).contains(&len))
}

/// A message of a known type whose length fits, or of an unknown type.
fn message(kind: u8, len: usize, at: usize) -> Option<Unit> {
    let is_known = message_len(kind).is_some();
    let is_possible = if is_known {
        fits(kind, len)
    } else {
        kind.is_ascii_alphanumeric() && STAMP.end <= len
    };
    is_possible.then_some(Unit::Message {
        at,
        len: at + len,
        is_known,
    })
}

fn soup(body: &[u8], len: usize) -> Option<Unit> {
    let whole = PREFIX_LEN + len;
    match (*body.first()?, len) {
        (b'S', 2..) => match message(*body.get(1)?, len - 1, PREFIX_LEN + 1)? {
            Unit::Message { at, is_known, .. } => Some(Unit::Message {
                at,
                len: whole,
                is_known,
            }),
            other => Some(other),
        },
        (b'A', LOGIN_LEN) => Some(Unit::Login { len: whole }),
        (b'Z', 1) => Some(Unit::EndMark { len: whole }),
        (b'H' | b'R' | b'O', 1) | (b'J', 2) => Some(Unit::Other { len: whole }),
        (b'+', 1..) => Some(Unit::Other { len: whole }),
        _ => None,
    }
}

/// Returns the stamp of a message, in nanoseconds since midnight.
pub(super) fn stamp(message: &[u8]) -> Option<u64> {
    message.get(STAMP).map(time)
}

/// Nanoseconds since midnight, in 48 bits.
fn time(stamp: &[u8]) -> u64 {
    stamp
        .iter()
        .fold(0, |time, byte| time << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_mark_is_sound_by_its_first_bytes_only() {
        let mut bytes = [0; 100];
        bytes[SOUND_LEN] = 1;
        assert!(Framing::Lengths.is_sound(&bytes, 0));
        bytes[SOUND_LEN - 1] = 1;
        assert!(!Framing::Lengths.is_sound(&bytes, 0));
    }

    /// A system event at a time of the day, framed by its length.
    fn event_at(ns: u64) -> Vec<u8> {
        let mut event = b"\x00\x0cS\0\0\0\0\0\0\0\0\0\0Q".to_vec();
        event[7..13].copy_from_slice(&ns.to_be_bytes()[2..]);
        event
    }

    #[test]
    fn stamp_of_a_sound_message_lies_within_a_day() {
        for framing in [Framing::Lengths, Framing::SoupBinTcp] {
            for (ns, is_sound) in [
                (0, true),
                (NS_PER_DAY - 1, true),
                (NS_PER_DAY, false),
                (NS_PER_DAY + 1, false),
                ((1 << 48) - 1, false),
            ] {
                let mut bytes = event_at(ns);
                if framing == Framing::SoupBinTcp {
                    bytes.splice(1..2, [13, b'S']);
                }
                let junk = [b'~'; 3];
                let behind = [&junk[..], &bytes].concat();
                assert_eq!(framing.is_sound(&behind, 3), is_sound, "{ns}");
                assert_eq!(framing.is_sound(&bytes, 0), is_sound, "{ns}");
            }
        }
        // The end of the bytes hides the stamp.
        assert!(Framing::Lengths.is_sound(&event_at(NS_PER_DAY)[..12], 0));
    }

    #[test]
    fn message_may_have_up_to_64_bytes_appended() {
        for (kind, of_kind) in [(b'S', 12), (b'A', 36), (b'D', 19)] {
            for (len, fits) in [
                (of_kind - 1, false),
                (of_kind, true),
                (of_kind + 1, true),
                (of_kind + 64, true),
                (of_kind + 65, false),
                (of_kind * 64, false),
            ] {
                let [high, low] = (len as u16).to_be_bytes();
                let head = [high, low, kind, 0];
                let framing = fits.then_some(Framing::Lengths);
                assert_eq!(Framing::of(&head), framing, "{len}");
                let unit = Framing::Lengths.unit(&head, 0).map(Unit::len);
                assert_eq!(unit, fits.then_some(PREFIX_LEN + len), "{len}");
                let [high, low] = (len as u16 + 1).to_be_bytes();
                let unit = Framing::SoupBinTcp.unit(&[high, low, b'S', kind], 0);
                let whole = PREFIX_LEN + 1 + len;
                assert_eq!(unit.map(Unit::len), fits.then_some(whole), "{len}");
            }
        }
    }
}
