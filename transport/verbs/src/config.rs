//! Settings for sending and receiving a channel by verbs: plain values, with or without RDMA.

use std::net::{Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};
use tickcast_reliability::delivery::LineId;

use crate::error::{VerbsError, check_range};
use tickcast_transport_base::host::interface::Interface;

/// The smallest number of receive buffers: one full batch.
const DEPTH_MIN: u64 = 32;

/// One line to send on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VerbsSendLine {
    /// Multicast group.
    pub group: Ipv4Addr,
    /// Interface of the device to send from.
    pub interface: Interface,
}

/// A rate limit. Needed because no device paces datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RateLimit {
    /// Bytes per second, over any second, in addition to the burst.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = i64::MAX)))]
    pub rate_bytes_per_s: u64,
    /// Bytes that may be sent at once.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = i64::MAX)))]
    pub burst_bytes: u64,
}

/// Settings for sending a channel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VerbsFanOutConfig {
    /// The lines: A, then B if there is one.
    pub lines: Vec<VerbsSendLine>,
    /// Length of the longest datagram, in bytes: the slot size.
    pub datagram_len_max: usize,
    /// The Q_Key. Receivers accept only datagrams with this key. It separates systems and is not a secret.
    pub q_key: u32,
    /// Traffic class of every packet; the upper six bits are the DSCP.
    #[serde(default)]
    pub traffic_class: u8,
    /// Service level of every packet, 0 to 15. Without one: on Ethernet the upper three bits of the traffic
    /// class, on InfiniBand the level that the subnet manager gave the group.
    #[serde(default)]
    pub service_level: Option<u8>,
    /// Largest number of sends in flight.
    #[serde(default = "send_depth_default")]
    pub send_depth: u32,
    /// Interval, in sends, at which the device reports a completion; rounded down to a power of two.
    #[serde(default = "signal_every_default")]
    pub signal_every: u32,
    /// Datagrams up to this length, in bytes, are copied into the work request.
    #[serde(default = "inline_default")]
    pub inline_bytes: u32,
    /// The rate limit. Without one, the port's speed is the limit.
    #[serde(default)]
    pub pace: Option<RateLimit>,
}

/// Returns the default of `send_depth`.
#[must_use]
pub const fn send_depth_default() -> u32 {
    512
}

/// Returns the default of `signal_every`.
#[must_use]
pub const fn signal_every_default() -> u32 {
    32
}

/// Returns the default of `inline_bytes`: with a UD header, 188 bytes fill the largest work request that
/// ConnectX cards write to the device whole (320 bytes, BlueFlame).
#[must_use]
pub const fn inline_default() -> u32 {
    188
}

/// Priority of packets on the network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Priority {
    traffic_class: u8,
    service_level: Option<u8>,
}

impl Priority {
    /// Returns the priority of this traffic class and, if given, this service level.
    #[must_use]
    pub const fn new(traffic_class: u8, service_level: Option<u8>) -> Self {
        Self {
            traffic_class,
            service_level,
        }
    }

    /// Returns the traffic class; its upper six bits are the DSCP.
    #[must_use]
    pub const fn traffic_class(self) -> u8 {
        self.traffic_class
    }

    /// Returns the service level of a packet to a group. The first of these that applies:
    ///
    /// - the configured level
    /// - on Ethernet, the upper three bits of the traffic class, because devices derive the VLAN priority
    ///   (PCP) from the level, and switches that trust the PCP would ignore the DSCP
    /// - on InfiniBand, `of_group`: the level that the subnet manager gave the group
    #[must_use]
    pub const fn service_level(self, is_ethernet: bool, of_group: u8) -> u8 {
        match self.service_level {
            Some(level) => level,
            None if is_ethernet => self.traffic_class >> 5,
            None => of_group,
        }
    }
}

impl VerbsFanOutConfig {
    /// Returns the priority of every packet.
    #[must_use]
    pub const fn priority(&self) -> Priority {
        Priority::new(self.traffic_class, self.service_level)
    }

    /// Checks the values, independently of any device.
    ///
    /// # Errors
    /// - [`VerbsError::Range`] if a value is out of range
    /// - [`VerbsError::NotMulticast`] if a group is not a multicast address
    pub fn check(&self) -> Result<(), VerbsError> {
        check_groups(self.lines.iter().map(|line| line.group), self.q_key)?;
        let level = self.service_level.unwrap_or(0);
        check_range("service_level", level.into(), 0, 15)?;
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
        Ok(())
    }
}

/// A sender, by address and by GID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VerbsSender {
    /// Address of the sender's interface.
    pub address: Ipv4Addr,
    /// Global identifier (GID) of the sender's port, which packets carry. Over IPv4 it is the mapped
    /// address.
    pub gid: Ipv6Addr,
}

/// One line to receive on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VerbsReceiveLine {
    /// Multicast group.
    pub group: Ipv4Addr,
    /// Interface of the device to receive on.
    pub interface: Interface,
    /// The allowed senders. Empty means any sender.
    #[serde(default)]
    pub senders: Vec<VerbsSender>,
}

/// Settings for receiving a channel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VerbsReceiverConfig {
    /// The lines: A, then B if there is one.
    pub lines: Vec<VerbsReceiveLine>,
    /// Length of the longest datagram, in bytes: the slot size. Longer datagrams are dropped and counted.
    pub datagram_len_max: usize,
    /// The Q_Key. The device drops datagrams with another key.
    pub q_key: u32,
    /// Receive buffers per line: the datagrams that can arrive between two polls.
    #[serde(default = "depth_default")]
    pub depth: u32,
    /// Largest number of datagrams that one poll takes from a line.
    #[serde(default = "batch_default")]
    pub batch: usize,
    /// Whether the descriptors report arrivals, for a thread that sleeps. A thread that polls all the
    /// time does not need this.
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
    /// Checks the values, independently of any device.
    ///
    /// # Errors
    /// - [`VerbsError::Range`] if a value is out of range
    /// - [`VerbsError::NotMulticast`] if a group is not a multicast address
    pub fn check(&self) -> Result<(), VerbsError> {
        check_groups(self.lines.iter().map(|line| line.group), self.q_key)?;
        check_range("depth", self.depth.into(), DEPTH_MIN, 32_768)?;
        check_range("batch", self.batch as u64, 1, 4_096)
    }
}

/// Checks the groups of the lines, and the key of their datagrams.
fn check_groups(
    mut groups: impl ExactSizeIterator<Item = Ipv4Addr>,
    q_key: u32,
) -> Result<(), VerbsError> {
    let lines = groups.len() as u64;
    check_range("the number of lines", lines, 1, LineId::MAX as u64)?;
    // Q_Keys from 0x80000000 on are reserved for privileged users.
    check_range("q_key", q_key.into(), 1, 0x7fff_ffff)?;
    match groups.find(|group| !group.is_multicast()) {
        Some(group) => Err(VerbsError::NotMulticast { group }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn level_follows_config_then_class_then_subnet_manager() {
        // EF is DSCP 46, and its traffic class 184.
        let (given, derived) = (Priority::new(184, Some(3)), Priority::new(184, None));
        for (priority, is_ethernet, level) in [
            (given, true, 3),
            (given, false, 3),
            (derived, true, 5),
            (derived, false, 2),
            (Priority::default(), true, 0),
        ] {
            assert_eq!(priority.service_level(is_ethernet, 2), level);
        }
        assert_eq!(given.traffic_class(), 184);
    }
}
