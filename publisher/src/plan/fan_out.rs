//! A fan-out: its plan, its offer in a WELCOME, and its opening.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4};
use std::path::PathBuf;

use tickcast_reliability::control::{FanOutOffer, UdpLine, VerbsLine};
use tickcast_reliability::delivery::LineId;
use tickcast_reliability::ring::{FAN_OUTS_MAX, RingWriter};
use tickcast_reliability::types::FanOutId;
use tickcast_transport::FanOut;
use tickcast_transport::host::interface::ResolvedInterface;
use tickcast_transport::host::mapping::SharedMapping;
use tickcast_transport::shm::{self, CopyWriter, ShmError, ShmFanOut};
use tickcast_transport::udp::{UdpError, UdpFanOut, UdpFanOutConfig, UdpSendLine};
use tickcast_transport::verbs::{
    Device, IS_BUILT, VerbsError, VerbsFanOut, VerbsFanOutConfig, VerbsSendLine,
};

use crate::config::{ChannelConfig, Config, ShmConfig, UdpConfig, VerbsConfig};
use crate::error::{ConfigError, PublisherError};
use crate::plan::{ChannelPlan, resolve};

/// One fan-out of a ring.
#[derive(Clone, Debug)]
pub enum FanOutPlan {
    /// By UDP multicast.
    Udp {
        /// Config of the transport.
        config: UdpFanOutConfig,
        /// Interface of each line.
        interfaces: Vec<ResolvedInterface>,
    },
    /// By RDMA multicast.
    Verbs {
        /// Config of the transport.
        config: VerbsFanOutConfig,
        /// Port of each line.
        ports: Vec<PortPlan>,
    },
    /// By shared memory.
    Shm {
        /// The file that the ring lies in.
        path: PathBuf,
        /// Number of the fan-out of the ring.
        fan_out: FanOutId,
    },
}

/// The port of an RDMA device, as it was when the config was checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortPlan {
    /// The device's name.
    pub device: String,
    /// Number of the port.
    pub port: u8,
    /// The address of its interface.
    pub address: Ipv4Addr,
    /// Sender GID of its packets.
    pub gid: Ipv6Addr,
    /// Bytes that one packet carries.
    pub mtu: usize,
}

impl PortPlan {
    /// Keeps a device's properties.
    pub(crate) fn of(device: &Device) -> Self {
        Self {
            device: device.name().to_owned(),
            port: device.port(),
            address: device.address(),
            gid: device.gid(),
            mtu: device.mtu(),
        }
    }
}

/// The use of a fan-out.
#[derive(Clone, Copy)]
pub(crate) enum Use<'a> {
    /// The channel's own datagrams, sent from this ring.
    Ring(&'a RingWriter),
    /// Multicast repairs: bytes that are copied. Without a ring, only checks which resources are available.
    Copies(Option<&'a RingWriter>),
}

impl FanOutPlan {
    /// Returns the number of lines.
    #[must_use]
    pub const fn lines(&self) -> usize {
        match self {
            Self::Udp { config, .. } => config.lines.len(),
            Self::Verbs { config, .. } => config.lines.len(),
            Self::Shm { .. } => 1,
        }
    }

    /// Returns the plan of one of its lines alone.
    pub(crate) fn alone(&self, line: LineId) -> Self {
        let mut alone = self.clone();
        let at = usize::from(line.0);
        match &mut alone {
            Self::Udp { config, interfaces } => {
                config.lines = vec![config.lines[at].clone()];
                *interfaces = vec![interfaces[at].clone()];
            }
            Self::Verbs { config, ports } => {
                config.lines = vec![config.lines[at].clone()];
                *ports = vec![ports[at].clone()];
            }
            Self::Shm { .. } => {}
        }
        alone
    }

    /// Returns the fan-out's offer in a WELCOME.
    #[must_use]
    pub fn offer(&self) -> FanOutOffer {
        match self {
            Self::Udp { config, interfaces } => FanOutOffer::Udp {
                lines: (config.lines.iter().zip(interfaces))
                    .map(|(line, interface)| UdpLine {
                        group: line.group,
                        sender: interface.address,
                    })
                    .collect(),
            },
            Self::Verbs { config, ports } => FanOutOffer::Verbs {
                lines: (config.lines.iter().zip(ports))
                    .map(|(line, port)| VerbsLine {
                        group: line.group,
                        sender: port.address,
                        gid: port.gid,
                    })
                    .collect(),
                q_key: config.q_key,
            },
            Self::Shm { path, fan_out } => FanOutOffer::Shm {
                path: path.to_string_lossy().into_owned(),
                fan_out: fan_out.0,
                boot_id: shm::boot_id_text(shm::boot_id().unwrap_or_default()),
            },
        }
    }

    /// Opens the fan-out for a channel of this name.
    ///
    /// # Errors
    /// Returns [`PublisherError::FanOut`], [`PublisherError::VerbsFanOut`] or
    /// [`PublisherError::ShmFanOut`], by transport, if a resource is not available.
    pub(crate) fn open(
        &self,
        channel: &str,
        to: Use<'_>,
    ) -> Result<Box<dyn FanOut>, PublisherError> {
        let channel = || channel.to_owned();
        match self {
            Self::Udp { config, .. } => {
                let wrong = |source: UdpError| PublisherError::FanOut {
                    channel: channel(),
                    source,
                };
                let opened = UdpFanOut::open(config).map_err(wrong)?;
                for warning in opened.warnings() {
                    tracing::warn!(channel = channel(), "{warning}");
                }
                Ok(Box::new(opened))
            }
            Self::Verbs { config, .. } => {
                let opened = match to {
                    Use::Ring(ring) => VerbsFanOut::open(config, &ring.memory()),
                    Use::Copies(_) => VerbsFanOut::for_copies(config),
                };
                let wrong = |source: VerbsError| PublisherError::VerbsFanOut {
                    channel: channel(),
                    source,
                };
                Ok(Box::new(opened.map_err(wrong)?))
            }
            Self::Shm { .. } => {
                let (ring, side) = match to {
                    Use::Ring(ring) => (Some(ring), CopyWriter::FanOut),
                    Use::Copies(ring) => (ring, CopyWriter::Repairs),
                };
                let opened = ring.ok_or(ShmError::NoTail { tail: 0, needed: 1 });
                let opened =
                    opened.and_then(|ring| ShmFanOut::open(&ring.memory(), ring.geometry(), side));
                let wrong = |source: ShmError| PublisherError::ShmFanOut {
                    channel: channel(),
                    source,
                };
                Ok(Box::new(opened.map_err(wrong)?))
            }
        }
    }
}

impl fmt::Display for FanOutPlan {
    /// Prints one text line for each line of the fan-out, as in `--check`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Udp { config, interfaces } => {
                for (i, (line, interface)) in config.lines.iter().zip(interfaces).enumerate() {
                    writeln!(
                        f,
                        "  udp line {}: {} from {} ({}), ttl {}",
                        LineId(i as u8),
                        line.group,
                        interface.address,
                        interface.name,
                        config.ttl
                    )?;
                }
            }
            Self::Verbs { config, ports } => {
                for (i, (line, port)) in config.lines.iter().zip(ports).enumerate() {
                    writeln!(
                        f,
                        "  verbs line {}: {} from {} ({} port {}), packets of {} bytes, Q_Key {:#010x}",
                        LineId(i as u8),
                        line.group,
                        port.address,
                        port.device,
                        port.port,
                        port.mtu,
                        config.q_key
                    )?;
                }
            }
            Self::Shm { path, .. } => writeln!(f, "  shm: {}", path.display())?,
        }
        Ok(())
    }
}

/// The place of a line among a channel's fan-outs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinePlace {
    /// Number of the fan-out.
    pub fan_out: usize,
    /// The line of that fan-out.
    pub line: LineId,
}

impl ChannelPlan {
    /// Returns the lines of all fan-outs, in the order of their positions in the ring: the first line of
    /// each fan-out, then the second ones. So a first line has the number of its fan-out.
    #[must_use]
    pub fn lines(&self) -> Vec<LinePlace> {
        let mut places = Vec::new();
        for line in 0..LineId::MAX {
            for (fan_out, plan) in self.fan_outs.iter().enumerate() {
                if line < plan.lines() {
                    let line = LineId(line as u8);
                    places.push(LinePlace { fan_out, line });
                }
            }
        }
        places
    }
}

/// Returns an error if the ring has fewer positions than these fan-outs have lines.
pub(crate) fn check_total(channel: &str, fan_outs: &[FanOutPlan]) -> Result<(), ConfigError> {
    let lines: usize = fan_outs.iter().map(FanOutPlan::lines).sum();
    if lines <= FAN_OUTS_MAX {
        return Ok(());
    }
    let (at, count) = (format!("{channel}.fan_out"), format!("{lines} lines"));
    let remedy = format!("the fan-outs of a channel have at most {FAN_OUTS_MAX} lines together");
    Err(ConfigError::value(at, count, remedy))
}

/// The groups in use so far, each with its place in the config.
pub(crate) type Groups = Vec<(SocketAddrV4, String)>;

/// A place in the config.
pub(crate) struct At<'a> {
    /// The channel.
    pub(crate) channel: &'a str,
    /// The fan-out.
    pub(crate) fan_out: String,
}

impl At<'_> {
    /// Returns an error unless there are one or two lines.
    fn check_lines(&self, count: usize) -> Result<(), ConfigError> {
        if (1..=LineId::MAX).contains(&count) {
            return Ok(());
        }
        let (at, count) = (format!("{}.lines", self.fan_out), format!("{count} lines"));
        let remedy = "a fan-out has one line or two";
        Err(ConfigError::value(at, count, remedy))
    }
}

/// Reserves a group. Returns an error if another line has it. A group of verbs has no port, here 0.
fn take_group(groups: &mut Groups, group: SocketAddrV4, at: &str) -> Result<(), ConfigError> {
    if let Some((_, other)) = groups.iter().find(|(known, _)| *known == group) {
        let remedy = format!("{other} has this group and port too; give each line its own");
        return Err(ConfigError::value(format!("{at}.group"), group, remedy));
    }
    groups.push((group, at.to_owned()));
    Ok(())
}

/// Plans a fan-out by UDP.
///
/// # Errors
/// [`ConfigError`] names the JSON path, the value, and what would be right.
pub(crate) fn udp(
    config: &Config,
    channel: &ChannelConfig,
    udp: &UdpConfig,
    at: &At<'_>,
    groups: &mut Groups,
    warnings: &mut Vec<String>,
) -> Result<FanOutPlan, ConfigError> {
    at.check_lines(udp.lines.len())?;
    let (mut lines, mut interfaces) = (Vec::new(), Vec::new());
    for (index, line) in udp.lines.iter().enumerate() {
        let at = format!("{}.lines[{index}]", at.fan_out);
        let group = line.group;
        if !group.ip().is_multicast() || group.port() == 0 {
            let remedy = "it is not a multicast group; choose one within 239.0.0.0/8, with a port";
            return Err(ConfigError::value(format!("{at}.group"), group, remedy));
        }
        take_group(groups, group, &at)?;
        let interface = line.interface.clone().unwrap_or(config.interface.clone());
        interfaces.push(resolve(&interface, &format!("{at}.interface"))?);
        lines.push(UdpSendLine { group, interface });
    }
    for (line, interface) in lines.iter().zip(&interfaces) {
        let packet = channel.slot_len as usize + 28;
        if interface.mtu.is_some_and(|mtu| packet > mtu) {
            warnings.push(format!(
                "channel {}: datagrams of {} bytes exceed the MTU of {} on the path to {} and \
                 will be sent in fragments; use a smaller slot_len",
                channel.name,
                channel.slot_len,
                interface.mtu.unwrap_or_default(),
                line.group
            ));
        }
    }
    let config = UdpFanOutConfig {
        lines,
        ttl: config.ttl,
        send_buffer_bytes: udp.send_buffer_bytes,
        datagram_len_max: channel.slot_len as usize,
        gso: udp.gso,
    };
    Ok(FanOutPlan::Udp { config, interfaces })
}

/// Plans a fan-out by verbs. Queries each line's device for its limits.
///
/// # Errors
/// Returns the errors of [`udp`].
pub(crate) fn verbs(
    config: &Config,
    channel: &ChannelConfig,
    verbs: &VerbsConfig,
    at: &At<'_>,
    groups: &mut Groups,
    warnings: &mut Vec<String>,
) -> Result<FanOutPlan, ConfigError> {
    if !IS_BUILT {
        let at = format!("{}.transport", at.fan_out);
        return Err(ConfigError::value(at, "\"verbs\"", VerbsError::NotBuilt));
    }
    at.check_lines(verbs.lines.len())?;
    let slot_len = channel.slot_len as usize;
    let (mut lines, mut ports) = (Vec::new(), Vec::new());
    for (index, line) in verbs.lines.iter().enumerate() {
        let at_line = format!("{}.lines[{index}]", at.fan_out);
        if !line.group.is_multicast() {
            let (at, remedy) = (
                format!("{at_line}.group"),
                "it is not a multicast group; choose one within 239.0.0.0/8",
            );
            return Err(ConfigError::value(at, line.group, remedy));
        }
        take_group(groups, SocketAddrV4::new(line.group, 0), &at_line)?;
        let interface = line.interface.clone().unwrap_or(config.interface.clone());
        let device = Device::of(&interface, slot_len).map_err(|error| match error {
            VerbsError::Mtu { .. } => {
                ConfigError::value(format!("{}.slot_len", at.channel), slot_len, error)
            }
            _ => ConfigError::value(format!("{at_line}.interface"), &interface, error),
        })?;
        if let Err(error) = device.check_active() {
            warnings.push(format!(
                "channel {}, line {index} to {}: {error}; the line sends once the port is up",
                channel.name, line.group
            ));
        }
        ports.push(PortPlan::of(&device));
        lines.push(VerbsSendLine {
            group: line.group,
            interface,
        });
    }
    let config = VerbsFanOutConfig {
        lines,
        datagram_len_max: slot_len,
        q_key: verbs.q_key,
        traffic_class: verbs.traffic_class,
        service_level: verbs.service_level,
        send_depth: verbs.send_depth,
        signal_every: verbs.signal_every,
        inline_bytes: verbs.inline_bytes,
        pace: verbs.pace,
    };
    (config.check()).map_err(|e| ConfigError::value(&at.fan_out, "the verbs fan-out", e))?;
    Ok(FanOutPlan::Verbs { config, ports })
}

/// Plans a fan-out by shared memory, in addition to the channel's other fan-outs.
///
/// # Errors
/// Returns the errors of [`udp`].
pub(crate) fn shm(
    config: &Config,
    shm: &ShmConfig,
    index: usize,
    at: &At<'_>,
    others: &[FanOutPlan],
) -> Result<FanOutPlan, ConfigError> {
    let wrong = |at: String, remedy: &dyn fmt::Display| {
        Err(ConfigError::value(at, shm.path.display(), remedy))
    };
    if others.iter().any(|it| matches!(it, FanOutPlan::Shm { .. })) {
        let remedy = "a ring is one file that all subscribers in this host share; configure one \
                      shm fan-out";
        return wrong(at.fan_out.clone(), &remedy);
    }
    if config.standby.is_some() {
        let remedy = "a standby mirrors into private memory, which subscribers can't map: remove \
                      this fan-out from its config; after a promotion, subscribers use another \
                      fan-out";
        return wrong(at.fan_out.clone(), &remedy);
    }
    let path = format!("{}.path", at.fan_out);
    if !shm.path.is_absolute() || shm.path.to_str().is_none() {
        let remedy = "subscribers receive this path: give an absolute path in UTF-8, for example \
                      /dev/shm/tickcast-NAME";
        return wrong(path, &remedy);
    }
    if let Err(error) = SharedMapping::check(&shm.path) {
        return wrong(path, &error);
    }
    Ok(FanOutPlan::Shm {
        path: shm.path.clone(),
        fan_out: FanOutId(index as u8),
    })
}
