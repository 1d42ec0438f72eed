//! Time stamps that capture devices write into frames: Arista behind the addresses, Metamako and Exablaze
//! behind the packet.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use thiserror::Error;
use tickcast_reliability::types::Nanos;

use super::encapsulation::{ARISTA, ARISTA_VERSION};
use super::{Content, Link, Next, array_at, find, u16_at, u32_at};

/// A stamp that is further from the record's time is none, but other bytes in its place.
const APART_MAX: Nanos = Nanos::from_secs(30 * 86_400);
/// TAI is ahead of UTC by this many seconds since 2017, and these stamps are not older.
const TAI_AHEAD_S: u64 = 37;
/// Length of a trailer without extensions: the original check sequence (4), then the stamp and its origin.
const TRAILER_LEN: usize = 16;
/// Length of the frame check sequence that may follow a trailer.
const CHECK_LEN: usize = 4;

/// Origin of the packets' times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum PacketTime {
    /// The record of the capture.
    #[default]
    Capture,
    /// The header that Arista switches insert.
    Arista,
    /// The trailer of Metamako devices, and of Arista's MetaWatch.
    Metamako,
    /// The trailer of Exablaze devices, and of Cisco's Nexus 3550.
    Exablaze,
}

/// A name that is not in the table. The caller's fault.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("there is no time stamp {name:?}: use one of {}", names())]
pub struct UnknownPacketTime {
    /// The name as given.
    pub name: String,
}

impl PacketTime {
    /// All origins.
    pub const ALL: [Self; 4] = [Self::Capture, Self::Arista, Self::Metamako, Self::Exablaze];

    /// Returns the name in configs and options.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Capture => "capture",
            Self::Arista => "arista",
            Self::Metamako => "metamako",
            Self::Exablaze => "exablaze",
        }
    }

    /// Returns the time of a frame, UTC; `None` if it has no such stamp. `captured_at` is the time of its
    /// record, 0 if unknown. Only a known time tells a trailer from other bytes, and completes a short stamp.
    pub(crate) fn of(self, link: Link, frame: &[u8], captured_at: Nanos) -> Option<Nanos> {
        let read: fn(&[u8], usize) -> Option<Nanos> = match self {
            Self::Capture => return Some(captured_at),
            Self::Arista => return arista(link, frame, captured_at),
            Self::Metamako => metamako,
            Self::Exablaze => exablaze,
        };
        let end = find(link, frame, packet_end)?;
        // Nothing says whether a check sequence follows. Wrong bytes give a time that is hardly ever close.
        let stamps = [0, CHECK_LEN].into_iter().filter_map(|behind| {
            let at = frame.len().checked_sub(behind + TRAILER_LEN);
            read(frame, at.filter(|at| *at >= end)?)
        });
        let nearest = stamps.min_by_key(|stamp| stamp.0.abs_diff(captured_at.0));
        nearest.filter(|stamp| captured_at != Nanos::ZERO && is_near(*stamp, captured_at))
    }
}

impl fmt::Display for PacketTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for PacketTime {
    type Err = UnknownPacketTime;

    fn from_str(name: &str) -> Result<Self, UnknownPacketTime> {
        let found = Self::ALL.into_iter().find(|time| time.name() == name);
        found.ok_or_else(|| UnknownPacketTime { name: name.into() })
    }
}

fn names() -> String {
    PacketTime::ALL.map(PacketTime::name).join(", ")
}

/// Returns the end of the outermost IP packet, behind which trailers stand.
fn packet_end(next: &Next) -> Option<usize> {
    match next {
        Next::Protocol(packet) => Some(packet.end),
        Next::Found(Content::Fragment(fragment)) => Some(fragment.bytes.end),
        _ => None,
    }
}

/// Arista's header: subtype (2), version (2), and the seconds, of which a short stamp holds the low 16 bits,
/// and nanoseconds (4).
fn arista(link: Link, frame: &[u8], captured_at: Nanos) -> Option<Nanos> {
    let at = find(link, frame, |next| match *next {
        Next::EtherType(ARISTA, at) => Some(at),
        _ => None,
    })?;
    let [subtype, version] = [at, at + 2].map(|at| u16_at(frame, at).ok());
    let (is_long, ahead_s) = match (subtype?, version? & ARISTA_VERSION) {
        (1, 0x0010) => (true, TAI_AHEAD_S),
        (1, 0x0110) => (true, 0),
        (1, 0x0020) => (false, TAI_AHEAD_S),
        (1, 0x0120) => (false, 0),
        _ => return None,
    };
    let (seconds, ns_at) = if is_long {
        (u64::from(u32_at(frame, at + 4).ok()?), at + 8)
    } else if captured_at == Nanos::ZERO {
        return None;
    } else {
        let low = u16_at(frame, at + 4).ok()?;
        (
            nearest(captured_at.0 / 1_000_000_000 + ahead_s, low),
            at + 6,
        )
    };
    let ns = u32_at(frame, ns_at).ok()?;
    let stamp = utc(seconds.checked_sub(ahead_s)?, ns)?;
    (captured_at == Nanos::ZERO || is_near(stamp, captured_at)).then_some(stamp)
}

/// Metamako's trailer: original check sequence (4), seconds (4), nanoseconds (4), flags (1), device (2),
/// port (1). Extensions stand before the seconds, and the trailer is read from its end.
fn metamako(frame: &[u8], at: usize) -> Option<Nanos> {
    let seconds = u32_at(frame, at + 4).ok()?;
    utc(seconds.into(), u32_at(frame, at + 8).ok()?)
}

/// Exablaze's trailer: original check sequence (4), device (1), port (1), seconds (4), a fraction of 2^-40
/// seconds (5), reserved (1).
fn exablaze(frame: &[u8], at: usize) -> Option<Nanos> {
    let seconds = u32_at(frame, at + 6).ok()?;
    let [a, b, c, d, e] = array_at(frame, at + 10).ok()?;
    let fraction = u64::from_be_bytes([0, 0, 0, a, b, c, d, e]);
    let ns = (u128::from(fraction) * 1_000_000_000) >> 40;
    utc(seconds.into(), u32::try_from(ns).ok()?)
}

/// Returns the time, unless the nanoseconds exceed a second.
fn utc(seconds: u64, ns: u32) -> Option<Nanos> {
    (ns < 1_000_000_000).then(|| Nanos::from_secs(seconds).after(Nanos(ns.into())))
}

/// Returns the seconds nearest to these that end in the given 16 bits.
fn nearest(to: u64, low: u16) -> u64 {
    const TURN: u64 = 1 << 16;
    let ahead = (u64::from(low) + TURN - to % TURN) % TURN;
    if ahead < TURN / 2 {
        to + ahead
    } else {
        (to + ahead).saturating_sub(TURN)
    }
}

fn is_near(stamp: Nanos, captured_at: Nanos) -> bool {
    stamp.0.abs_diff(captured_at.0) <= APART_MAX.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_of_a_stamp_round_trips_through_parse_and_json() {
        for time in PacketTime::ALL {
            assert_eq!(time.to_string().parse(), Ok(time));
            let json = format!("\"{time}\"");
            assert_eq!(serde_json::from_str::<PacketTime>(&json).unwrap(), time);
        }
        let error = "gps".parse::<PacketTime>().unwrap_err().to_string();
        assert!(error.contains("capture, arista"), "{error}");
    }

    #[test]
    fn short_seconds_are_completed_to_the_nearest() {
        for (to, low, expected) in [
            (0x5a_0010, 0x0010, 0x5a_0010),
            (0x5a_0010, 0x0011, 0x5a_0011),
            (0x5a_0010, 0x000f, 0x5a_000f),
            (0x5a_0010, 0xffff, 0x59_ffff),
            (0x5a_fff0, 0x0001, 0x5b_0001),
            (0x5a_0000, 0x7fff, 0x5a_7fff),
            (0x5a_0000, 0x8000, 0x59_8000),
        ] {
            assert_eq!(nearest(to, low), expected, "{to:#x} {low:#x}");
        }
    }
}
