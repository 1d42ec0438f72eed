//! How a channel is sent and received by verbs: plain values, there with or without RDMA.

use std::net::{Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};
use tickcast_reliability::delivery::LineId;

use crate::error::{VerbsError, check_range};
use tickcast_transport_base::host::interface::Interface;

/// The fewest receive buffers: as many as are taken at a time.
const DEPTH_MIN: u64 = 32;

/// One line to send on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VerbsSendLine {
    /// Multicast group.
    pub group: Ipv4Addr,
    /// The interface of the device to send from.
    pub interface: Interface,
}

/// A rate that is not exceeded, since no device paces datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pace {
    /// Bytes per second, over any second but for the burst.
    pub rate_bytes_per_s: u64,
    /// Bytes that may go at once.
    pub burst_bytes: u64,
}

/// How a channel is sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VerbsFanOutConfig {
    /// A, then B where there is one.
    pub lines: Vec<VerbsSendLine>,
    /// The longest datagram, that is the slot size.
    pub datagram_len_max: usize,
    /// Receivers take only datagrams with this key. No secret, but a wall between systems.
    pub q_key: u32,
    /// Goes into every packet; the upper six bits are the DSCP.
    #[serde(default)]
    pub traffic_class: u8,
    /// Sends that may be on their way at once.
    #[serde(default = "send_depth_default")]
    pub send_depth: u32,
    /// Every how many sends the device tells that it is done.
    #[serde(default = "signal_every_default")]
    pub signal_every: u32,
    /// Datagrams up to this length are handed to the device with the request itself.
    #[serde(default = "inline_default")]
    pub inline_bytes: u32,
    /// No faster than this; as fast as the port where it is left out.
    #[serde(default)]
    pub pace: Option<Pace>,
}

/// `send_depth` where a config leaves it out.
#[must_use]
pub const fn send_depth_default() -> u32 {
    512
}

/// `signal_every` where a config leaves it out.
#[must_use]
pub const fn signal_every_default() -> u32 {
    32
}

/// `inline_bytes` where a config leaves it out.
#[must_use]
pub const fn inline_default() -> u32 {
    220
}

impl VerbsFanOutConfig {
    /// Whether the numbers make sense, on whatever device.
    ///
    /// # Errors
    /// [`VerbsError::Range`] or [`VerbsError::NotMulticast`].
    pub fn check(&self) -> Result<(), VerbsError> {
        check_range(
            "the number of lines",
            self.lines.len() as u64,
            1,
            LineId::MAX as u64,
        )?;
        // Those from 0x80000000 on are for privileged users.
        check_range("q_key", self.q_key.into(), 1, 0x7fff_ffff)?;
        check_range("inline_bytes", self.inline_bytes.into(), 0, 4_096)?;
        check_range("send_depth", self.send_depth.into(), 16, 32_768)?;
        let most = u64::from(self.send_depth / 2);
        check_range("signal_every", self.signal_every.into(), 1, most)?;
        check_range("datagram_len_max", self.datagram_len_max as u64, 64, 65_536)?;
        if let Some(pace) = self.pace {
            let least = self.datagram_len_max as u64;
            check_range("pace.burst_bytes", pace.burst_bytes, least, u64::MAX)?;
            check_range("pace.rate_bytes_per_s", pace.rate_bytes_per_s, 1, u64::MAX)?;
        }
        let foreign = self.lines.iter().find(|line| !line.group.is_multicast());
        foreign.map_or(Ok(()), |line| {
            Err(VerbsError::NotMulticast { group: line.group })
        })
    }
}

/// A sender, under both of its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VerbsSender {
    /// The address of its interface.
    pub address: Ipv4Addr,
    /// The global identifier (GID) of its port, which is what packets carry: over IPv4 the address
    /// itself, mapped.
    pub gid: Ipv6Addr,
}

/// One line to receive on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VerbsReceiveLine {
    /// Multicast group.
    pub group: Ipv4Addr,
    /// The interface of the device to receive on.
    pub interface: Interface,
    /// The allowed senders; empty: anybody.
    #[serde(default)]
    pub senders: Vec<VerbsSender>,
}

/// How a channel is received.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VerbsReceiverConfig {
    /// A, then B where there is one.
    pub lines: Vec<VerbsReceiveLine>,
    /// The longest datagram, that is the slot size; longer ones are dropped and counted.
    pub datagram_len_max: usize,
    /// Datagrams with another key are dropped by the device.
    pub q_key: u32,
    /// Buffers per line: what arrives while nobody polls.
    #[serde(default = "depth_default")]
    pub depth: u32,
    /// Datagrams a poll takes at most, per line.
    #[serde(default = "batch_default")]
    pub batch: usize,
    /// Whether its descriptors tell of arrivals, for those who sleep; who polls all the time does
    /// without.
    #[serde(default = "yes")]
    pub waitable: bool,
}

const fn depth_default() -> u32 {
    2048
}

const fn batch_default() -> usize {
    64
}

const fn yes() -> bool {
    true
}

impl VerbsReceiverConfig {
    /// Whether the numbers make sense, on whatever device.
    ///
    /// # Errors
    /// [`VerbsError::Range`] or [`VerbsError::NotMulticast`].
    pub fn check(&self) -> Result<(), VerbsError> {
        check_range(
            "the number of lines",
            self.lines.len() as u64,
            1,
            LineId::MAX as u64,
        )?;
        // Those from 0x80000000 on are for privileged users.
        check_range("q_key", self.q_key.into(), 1, 0x7fff_ffff)?;
        check_range("depth", self.depth.into(), DEPTH_MIN, 32_768)?;
        check_range("batch", self.batch as u64, 1, 4_096)?;
        let foreign = self.lines.iter().find(|line| !line.group.is_multicast());
        if let Some(line) = foreign {
            return Err(VerbsError::NotMulticast { group: line.group });
        }
        Ok(())
    }
}
