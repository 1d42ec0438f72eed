//! Settings for receiving a channel by AF_XDP.

use std::net::{Ipv4Addr, SocketAddrV4};

use serde::{Deserialize, Serialize};
use tickcast_reliability::delivery::LineId;

use crate::error::XdpError;
use tickcast_transport_base::host::interface::Interface;

/// Largest number of datagrams per poll and line.
pub(crate) const BATCH_MAX: usize = 64;
/// Frames of a line without a configured buffer.
const FRAMES_DEFAULT: u32 = 2048;
/// The fewest frames of a line: one batch.
pub(crate) const FRAMES_MIN: u32 = BATCH_MAX as u32;
/// The most frames of a line, and of a queue.
pub(crate) const FRAMES_MAX: u32 = 1 << 19;
/// Length of the longest datagram of any config, in bytes: one page, without headers and headroom.
const DATAGRAM_LEN_MAX: usize = 4096;

/// One line to receive on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct XdpReceiveLine {
    /// Multicast group and port.
    pub group: SocketAddrV4,
    /// Interface to receive on. It must be an Ethernet device.
    pub interface: Interface,
    /// The allowed source addresses. Empty means any.
    #[serde(default)]
    pub senders: Vec<Ipv4Addr>,
}

/// Settings for receiving a channel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct XdpReceiverConfig {
    /// The lines: A, then B if there is one.
    pub lines: Vec<XdpReceiveLine>,
    /// Length of the longest datagram, in bytes: the slot size. Longer datagrams are dropped and counted.
    pub datagram_len_max: usize,
    /// Memory that datagrams may wait in, per line and receive queue, in bytes. A datagram takes a frame of
    /// 2048 or 4096 bytes. The number of frames is rounded up to a power of two. Without it: 2048 frames.
    #[serde(default)]
    pub receive_buffer_bytes: Option<usize>,
    /// Whether to join only the known senders' trees. The network then blocks other senders, and they can't
    /// be counted. Without it, their datagrams arrive, are dropped here and counted.
    #[serde(default = "yes")]
    pub source_specific: bool,
    /// Largest number of datagrams per poll and line.
    #[serde(default = "batch_default")]
    pub batch: usize,
    /// Memory for the frames of all lines of an interface, per receive queue, in bytes. It stays locked. The
    /// line that opens the interface first determines it.
    #[serde(default = "memory_default")]
    pub memory_bytes: usize,
}

/// Serde default of settings that are on unless a config turns them off.
const fn yes() -> bool {
    true
}

const fn batch_default() -> usize {
    BATCH_MAX
}

/// Returns the memory for frames without a configured value, in bytes: 16,384 short frames.
#[must_use]
pub const fn memory_default() -> usize {
    32 << 20
}

impl XdpReceiverConfig {
    /// Checks everything that can be checked without the host.
    ///
    /// # Errors
    /// [`XdpError`] names the field and its range.
    pub fn check(&self) -> Result<(), XdpError> {
        if !(1..=LineId::MAX).contains(&self.lines.len()) {
            return Err(XdpError::Lines {
                lines: self.lines.len(),
            });
        }
        for line in &self.lines {
            if !line.group.ip().is_multicast() || line.group.port() == 0 {
                return Err(XdpError::NotAGroup { group: line.group });
            }
        }
        let len = self.datagram_len_max;
        check_range("datagram_len_max", len, 1, DATAGRAM_LEN_MAX)?;
        check_range("batch", self.batch, 1, BATCH_MAX)?;
        check_range("memory_bytes", self.memory_bytes, 1 << 20, 1 << 30)
    }

    /// Returns the frames that a line asks for, per queue.
    pub(crate) fn frames(&self, frame_len: usize) -> u32 {
        let frames = self.receive_buffer_bytes.map(|bytes| bytes / frame_len);
        let frames = frames.map_or(FRAMES_DEFAULT, |it| u32::try_from(it).unwrap_or(FRAMES_MAX));
        frames.clamp(FRAMES_MIN, FRAMES_MAX).next_power_of_two()
    }
}

fn check_range(field: &'static str, value: usize, min: usize, max: usize) -> Result<(), XdpError> {
    if (min..=max).contains(&value) {
        Ok(())
    } else {
        Err(XdpError::OutOfRange {
            field,
            value,
            min,
            max,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"{"lines": [{"group": "239.255.7.1:7500", "interface": "eth1"}],
        "datagram_len_max": 1472}"#;

    fn config() -> XdpReceiverConfig {
        serde_json::from_str(TEXT).unwrap()
    }

    #[test]
    fn config_has_defaults_and_refuses_unknown_fields() {
        let config = config();
        config.check().unwrap();
        assert!(config.source_specific && config.lines[0].senders.is_empty());
        assert_eq!((config.batch, config.memory_bytes), (64, 32 << 20));
        assert_eq!(config.frames(2048), 2048);
        let unknown = TEXT.replace(
            "\"datagram_len_max\"",
            "\"gro\": true, \"datagram_len_max\"",
        );
        assert!(serde_json::from_str::<XdpReceiverConfig>(&unknown).is_err());
    }

    #[test]
    fn config_values_out_of_range_are_refused() {
        let changes: [fn(&mut XdpReceiverConfig); 6] = [
            |it| it.lines.clear(),
            |it| it.lines[0].group.set_ip([10, 0, 0, 1].into()),
            |it| it.lines[0].group.set_port(0),
            |it| it.datagram_len_max = 0,
            |it| it.batch = 65,
            |it| it.memory_bytes = 4096,
        ];
        for (n, change) in changes.iter().enumerate() {
            let mut wrong = config();
            change(&mut wrong);
            assert!(wrong.check().is_err(), "{n}");
        }
    }

    #[test]
    fn buffer_bytes_become_a_power_of_two_of_frames() {
        for (bytes, frames) in [
            (0, 64),
            (4 << 20, 2048),
            ((4 << 20) + 2048, 4096),
            (usize::MAX, FRAMES_MAX),
        ] {
            let mut config = config();
            config.receive_buffer_bytes = Some(bytes);
            assert_eq!(config.frames(2048), frames, "{bytes}");
        }
    }
}
