//! The table of feed formats: one name, one decoder and one detector each.

use std::{fmt, ops::Range, str::FromStr};

use thiserror::Error;
use tickcast_reliability::types::Nanos;

use crate::{
    arbiter::{Holding, Lines, PacketFormat},
    iex::{IexDecoder, packets::IexPackets},
    instruments::Instruments,
    itch::{ItchDecoder, ItchSettings, packets::ItchPackets},
    source::Decoder,
};

/// Format of a feed's UDP payloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Format {
    /// IEX-TP with TOPS 1.5, TOPS 1.6 or DEEP 1.0; the segment header distinguishes them.
    IexTp,
    /// MoldUDP64 with ITCH 5.0.
    MoldUdp64Itch50,
}

/// Settings that decoders need beforehand; each decoder takes its own part.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Source of instrument ids for IEX's symbols (ITCH brings its own).
    pub instruments: Instruments,
    /// Facts that ITCH itself does not carry, such as its trade date.
    pub itch: ItchSettings,
    /// Number of lines of the source; 0 counts as 1.
    pub lines: usize,
    /// The limits of the arbiter; `None`: the venue's.
    pub holding: Option<Holding>,
}

/// A name that is not in the table. The caller's fault.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("there is no feed format {name:?}: use one of {}", names())]
pub struct UnknownFormat {
    /// The name as given.
    pub name: String,
}

impl Format {
    /// All formats, in the order in which detection tries them.
    pub const ALL: [Self; 2] = [Self::IexTp, Self::MoldUdp64Itch50];

    /// Returns the name used in configs and on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::IexTp => "iex-tp",
            Self::MoldUdp64Itch50 => "moldudp64-itch50",
        }
    }

    /// Creates a decoder without state.
    #[must_use]
    pub fn decoder(self, settings: Settings) -> Box<dyn Decoder> {
        let lines = Lines {
            count: settings.lines,
            holding: settings.holding.unwrap_or(self.holding()),
        };
        match self {
            Self::IexTp => Box::new(IexDecoder::new(settings.instruments, lines)),
            Self::MoldUdp64Itch50 => Box::new(ItchDecoder::new(ItchSettings {
                lines,
                ..settings.itch
            })),
        }
    }

    /// Returns the limits for live lines of the venue. Its lines run in one data centre, so they are
    /// milliseconds apart only where a network between them is.
    #[must_use]
    pub const fn holding(self) -> Holding {
        match self {
            // IEX delays its lines alike; members receive them over one network.
            Self::IexTp => Holding::live(2_000, 5_000),
            Self::MoldUdp64Itch50 => Holding::live(2_000, 10_000),
        }
    }

    /// Returns whether messages refer to orders of earlier messages, so that a decoder which begins
    /// within a session gives incomplete records for them.
    #[must_use]
    pub const fn refers_to_orders(self) -> bool {
        match self {
            Self::IexTp => false,
            Self::MoldUdp64Itch50 => true,
        }
    }

    /// Returns the longest time between two packets while the venue's session is open: it sends a heartbeat
    /// when there is nothing else to send.
    #[must_use]
    pub const fn heartbeat_interval(self) -> Nanos {
        match self {
            Self::IexTp | Self::MoldUdp64Itch50 => Nanos::from_secs(1),
        }
    }

    /// Returns the format of a packet's payload if it can be recognised. Try the first few packets
    /// of a feed, because one may be damaged.
    #[must_use]
    pub fn detect(payload: &[u8]) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|format| format.packets().recognises(payload))
    }

    /// Returns whether a datagram is a packet without messages, of any format: a sign that a venue is
    /// there, which shows no format by itself.
    #[must_use]
    pub fn is_heartbeat(datagram: &[u8]) -> bool {
        (Self::ALL.into_iter()).any(|it| it.packets().is_heartbeat(datagram))
    }

    /// Returns the format of the beginning of a packet if it can be recognised.
    #[must_use]
    pub(crate) fn detect_beginning(beginning: &[u8]) -> Option<Self> {
        (Self::ALL.into_iter()).find(|it| it.packets().recognises_beginning(beginning))
    }

    /// Returns the channels that a packet of unknown format may belong to.
    pub(crate) fn channels(packet: &[u8]) -> impl Iterator<Item = u32> {
        (Self::ALL.into_iter()).filter_map(|it| it.packets().channel(packet))
    }

    /// Returns the session of a packet and the sequences of its messages, in formats whose destinations may
    /// carry several channels. A heartbeat has none, before the next one.
    pub(crate) fn numbers(self, packet: &[u8]) -> Option<(u128, Range<u64>)> {
        match self {
            Self::IexTp => IexPackets::numbers(packet),
            Self::MoldUdp64Itch50 => None,
        }
    }

    /// Returns the format's packets, as a recording sees them.
    pub(crate) const fn packets(self) -> &'static dyn PacketFormat {
        match self {
            Self::IexTp => &IexPackets,
            Self::MoldUdp64Itch50 => &ItchPackets,
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Format {
    type Err = UnknownFormat;

    fn from_str(name: &str) -> Result<Self, UnknownFormat> {
        let found = Self::ALL.into_iter().find(|format| format.name() == name);
        found.ok_or_else(|| UnknownFormat { name: name.into() })
    }
}

fn names() -> String {
    Format::ALL.map(Format::name).join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn format_name_round_trips_through_parse() {
        for format in Format::ALL {
            assert_eq!(format.to_string().parse(), Ok(format));
        }
        let error = "itch".parse::<Format>().unwrap_err().to_string();
        assert!(error.contains("\"itch\"") && error.contains("iex-tp"));
    }

    #[test]
    fn heartbeat_of_any_format_is_one() {
        let mut deep = vec![0; 40];
        deep[..4].copy_from_slice(&[1, 0, 0x04, 0x80]);
        deep[24] = 1;
        let mold = b"SESSION001\0\0\0\0\0\0\0\x01\0\0".to_vec();
        assert!(Format::is_heartbeat(&deep) && Format::is_heartbeat(&mold));
        for other in [&b""[..], &mold[..19], &deep[..39], &[b'?'; 20]] {
            assert!(!Format::is_heartbeat(other), "{other:?}");
        }
    }

    #[test]
    fn facts_of_formats_are_those_of_their_venues() {
        let of = |format: Format| {
            let holding = format.holding();
            let (reorder, skew) = (holding.reorder_us, holding.skew_us);
            (format.refers_to_orders(), reorder, skew)
        };
        assert_eq!(of(Format::IexTp), (false, 2_000, 5_000));
        assert_eq!(of(Format::MoldUdp64Itch50), (true, 2_000, 10_000));
        for format in Format::ALL {
            assert_eq!(format.heartbeat_interval(), Nanos::from_secs(1));
        }
    }

    #[test]
    fn format_detection_requires_whole_packet() {
        let mut deep = vec![0; 40];
        deep[..4].copy_from_slice(&[1, 0, 0x04, 0x80]);
        deep[24] = 1;
        assert_eq!(Format::detect(&deep), Some(Format::IexTp));
        deep[14] = 1;
        assert_eq!(Format::detect(&deep), None, "a message is missing");

        let system_event = b"S\0\0\0\0\0\0\0\0\0\0O";
        let mut mold = b"SESSION001\0\0\0\0\0\0\0\x01\0\x01\0\x0c".to_vec();
        mold.extend(system_event);
        assert_eq!(Format::detect(&mold), Some(Format::MoldUdp64Itch50));
        mold[22] = b'z';
        assert_eq!(Format::detect(&mold), None, "no ITCH message");
        assert_eq!(Format::detect(&mold[..20]), None);
        assert_eq!(Format::detect(b""), None);
    }
}
