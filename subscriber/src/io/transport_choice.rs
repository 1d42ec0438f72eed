//! Selects one of the publisher's fan-outs that both the offer and this host support.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use tickcast_reliability::control::{ChannelOffer, FanOutOffer};
use tickcast_reliability::ring::Geometry;
use tickcast_reliability::types::{FanOutId, Sequence};
use tickcast_transport::Receive;
use tickcast_transport::host::host_addresses::HostAddresses;
use tickcast_transport::host::interface::Interface;
use tickcast_transport::shm::{ShmReceiver, ShmReceiverConfig};
use tickcast_transport::udp::{UdpReceiveLine, UdpReceiver, UdpReceiverConfig};
use tickcast_transport::verbs::{
    Device, VerbsError, VerbsReceiveLine, VerbsReceiver, VerbsReceiverConfig, VerbsSender,
};
use tickcast_transport::xdp::{
    XdpGrant, XdpReceiveLine, XdpReceiver, XdpReceiverConfig, memory_default,
};

use crate::config::{ChannelBuilder, SubscriberBuilder, Transport};
use crate::error::SubscribeError;

/// This host as it stands when a connection to the publisher is up.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    addresses: HostAddresses,
    /// This host's address of the connection.
    via: Option<SocketAddr>,
}

impl Host {
    /// Reads this host's addresses. Without them, loopback is the default interface.
    pub(crate) fn current(via: Option<SocketAddr>) -> Self {
        let addresses = HostAddresses::list().unwrap_or_else(|error| {
            tracing::warn!(%error, "lines without a configured interface use loopback");
            HostAddresses::default()
        });
        Self { addresses, via }
    }

    /// Returns the default interface for a line of this sender (docs/decisions/0030). It is the first of:
    /// - the sender's own interface, if the sender is this host, because the kernel loops its datagrams back
    ///   there only;
    /// - the interface whose network contains the sender; of several with the same network, the one that
    ///   carries the connection to the publisher;
    /// - the interface that carries the connection to the publisher;
    /// - loopback, and then repair brings everything.
    fn interface_for(&self, sender: Ipv4Addr) -> Interface {
        let addresses = &self.addresses;
        (addresses.interface_with((sender, 0).into()))
            .or_else(|| addresses.interface_towards(sender, self.via))
            .or_else(|| addresses.interface_with(self.via?))
            .map_or_else(Interface::default, |name| Interface::Name(name.to_owned()))
    }
}

/// The receivable form of an offer, for each transport.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TransportChoice {
    udp: Option<UdpReceiverConfig>,
    verbs: Option<VerbsReceiverConfig>,
    shm: Option<ShmReceiverConfig>,
    /// Whether lines of the offer are overridden. An override applies to UDP only.
    overridden: bool,
}

/// An open receiver, and the reason for its choice.
pub(crate) struct Opened {
    pub(crate) receiver: Box<dyn Receive>,
    /// The addresses from which each line may be sent.
    pub(crate) senders: Vec<Ipv4Addr>,
    /// Group, interface and sender of each line, for messages.
    pub(crate) targets: Vec<String>,
    pub(crate) transport: Transport,
    pub(crate) why: String,
}

impl TransportChoice {
    /// Returns the choice for `offer` on this host.
    pub(crate) fn of(
        builder: &SubscriberBuilder,
        channel: &ChannelBuilder,
        offer: &ChannelOffer,
        host: &Host,
    ) -> Self {
        let slot_len = offer.slot_len as usize;
        let udp = offer.fan_outs.iter().find_map(|fan_out| match fan_out {
            FanOutOffer::Udp { lines } => Some(lines.iter().map(|l| (l.group, l.sender))),
            _ => None,
        });
        let overrides = channel.line_overrides.iter();
        let overrides: Vec<_> = overrides.map(|line| (line.group, line.sender)).collect();
        let overridden = !overrides.is_empty();
        let udp = udp.map(|lines| UdpReceiverConfig {
            lines: (if overridden {
                overrides
            } else {
                lines.collect()
            })
            .into_iter()
            .enumerate()
            .map(|(line, (group, sender))| UdpReceiveLine {
                group,
                interface: interface(builder, line, sender, host),
                senders: vec![sender],
            })
            .collect(),
            datagram_len_max: slot_len,
            receive_buffer_bytes: builder.receive_buffer_bytes,
            source_specific: builder.source_specific,
            batch: 64,
            busy_poll_us: builder.busy_poll_us,
            gro: builder.gro,
        });
        let verbs = offer.fan_outs.iter().find_map(|fan_out| match fan_out {
            FanOutOffer::Verbs { lines, q_key } => Some((lines, *q_key)),
            _ => None,
        });
        let verbs = verbs.map(|(lines, q_key)| VerbsReceiverConfig {
            lines: (lines.iter().enumerate())
                .map(|(line, of)| VerbsReceiveLine {
                    group: of.group,
                    interface: interface(builder, line, of.sender, host),
                    senders: vec![VerbsSender {
                        address: of.sender,
                        gid: of.gid,
                    }],
                })
                .collect(),
            datagram_len_max: slot_len,
            q_key,
            depth: builder.receive_depth,
            batch: 64,
            waitable: true,
        });
        let shm = offer.fan_outs.iter().find_map(|fan_out| match fan_out {
            FanOutOffer::Shm {
                path,
                fan_out,
                boot_id,
            } => Some(ShmReceiverConfig {
                path: path.into(),
                fan_out: FanOutId(*fan_out),
                boot_id: u128::from_str_radix(boot_id, 16).ok()?.to_be_bytes(),
                channel: offer.channel,
                epoch: offer.epoch,
                geometry: Geometry::new(offer.slot_len, offer.slots).ok()?,
            }),
            _ => None,
        });
        Self {
            udp,
            verbs,
            shm,
            overridden,
        }
    }

    /// Returns whether a receiver opened for the choice `before` also serves this one. Only a receiver of a
    /// ring needs to be reopened for another epoch.
    pub(crate) fn fits(&self, before: &Self, taken: Transport) -> bool {
        let mut of_that_epoch = self.clone();
        if let (Some(ours), Some(theirs)) = (&mut of_that_epoch.shm, &before.shm)
            && taken != Transport::Shm
        {
            ours.epoch = theirs.epoch;
        }
        of_that_epoch == *before
    }

    /// Opens the requested transport, or the best that works: shared ring, RDMA multicast, UDP.
    /// The receiver delivers datagrams sent after the sequence `after`.
    ///
    /// # Errors
    /// - [`SubscribeError::NoTransport`] when the offer does not contain the transport.
    /// - Otherwise the reason why the transport can't be opened.
    pub(crate) fn open(
        &self,
        asked: Transport,
        channel: &str,
        after: Sequence,
    ) -> Result<Opened, SubscribeError> {
        let asked_for = || "the application chose it".to_owned();
        match asked {
            Transport::Udp => self.open_udp(channel, asked_for()),
            Transport::Verbs => self.open_verbs(channel, asked_for()),
            Transport::Shm => self.open_shm(channel, after, asked_for()),
            Transport::Xdp => self.open_xdp(channel, asked_for()),
            Transport::Auto => {
                let not_shm = match &self.shm {
                    None => None,
                    Some(_) if self.overridden => Some("its lines are overridden".to_owned()),
                    Some(_) => {
                        let why = "its ring lies in this host".to_owned();
                        match self.open_shm(channel, after, why) {
                            Err(error) if self.udp.is_some() || self.verbs.is_some() => {
                                Some(format!("shm is offered, but {error}"))
                            }
                            // There is no other transport, so report why this one does not work.
                            opened => return opened,
                        }
                    }
                };
                let mut opened = self.open_multicast(channel)?;
                if let Some(not_shm) = not_shm {
                    opened.why = format!("{not_shm}; {}", opened.why);
                }
                Ok(opened)
            }
        }
    }

    /// Opens the best transport over a network.
    fn open_multicast(&self, channel: &str) -> Result<Opened, SubscribeError> {
        let not_verbs = match &self.verbs {
            None => "the publisher offers no other network".to_owned(),
            Some(_) if self.overridden => "its lines are overridden".to_owned(),
            Some(config) => match usable(config) {
                Ok(device) => {
                    let why = format!("the publisher offers it, and this host has {device}");
                    match self.open_verbs(channel, why) {
                        Err(error) if self.udp.is_some() => {
                            format!("verbs is offered, but {error}")
                        }
                        opened => return opened,
                    }
                }
                Err(error) => format!("verbs is offered, but {error}"),
            },
        };
        if self.udp.is_none() && self.verbs.is_some() {
            // There is no other transport, so report why this one does not work.
            return self.open_verbs(channel, not_verbs);
        }
        self.open_udp(channel, not_verbs)
    }

    fn open_shm(
        &self,
        channel: &str,
        after: Sequence,
        why: String,
    ) -> Result<Opened, SubscribeError> {
        let config = self.shm.as_ref().ok_or_else(|| no_transport(channel))?;
        let receiver = ShmReceiver::open(config, after).map_err(|source| SubscribeError::Shm {
            channel: channel.to_owned(),
            source,
        })?;
        Ok(Opened {
            receiver: Box::new(receiver),
            senders: vec![ShmReceiver::SENDER],
            targets: vec![format!("the ring {}", config.path.display())],
            transport: Transport::Shm,
            why,
        })
    }

    fn open_udp(&self, channel: &str, why: String) -> Result<Opened, SubscribeError> {
        let config = self.udp.as_ref().ok_or_else(|| no_transport(channel))?;
        let mut open = config.clone();
        if !open.source_specific {
            // Accept datagrams of all senders, so that those of unknown senders are received and counted.
            open.lines.iter_mut().for_each(|line| line.senders.clear());
        }
        let receiver = UdpReceiver::open(&open).map_err(|source| SubscribeError::Udp {
            channel: channel.to_owned(),
            source,
        })?;
        for warning in receiver.warnings() {
            tracing::warn!(channel, "{warning}");
        }
        let senders = config.lines.iter().map(|line| line.senders[0]);
        let senders: Vec<_> = senders.collect();
        let targets = receiver.targets().zip(&senders);
        let targets = targets.map(|(target, sender)| format!("{target} from {sender}"));
        Ok(Opened {
            targets: targets.collect(),
            receiver: Box::new(receiver),
            senders,
            transport: Transport::Udp,
            why,
        })
    }

    /// Opens the lines of UDP by AF_XDP.
    fn open_xdp(&self, channel: &str, why: String) -> Result<Opened, SubscribeError> {
        let config = self.udp.as_ref().ok_or_else(|| no_transport(channel))?;
        let receiver =
            XdpReceiver::open(&by_xdp(config)).map_err(|source| SubscribeError::Xdp {
                channel: channel.to_owned(),
                source,
            })?;
        for warning in receiver.warnings() {
            tracing::warn!(channel, "{warning}");
        }
        let senders: Vec<_> = config.lines.iter().map(|line| line.senders[0]).collect();
        let targets = receiver.grants().zip(&senders);
        let targets = targets.map(|(grant, sender)| format!("{} from {sender}", told(&grant)));
        Ok(Opened {
            targets: targets.collect(),
            receiver: Box::new(receiver),
            senders,
            transport: Transport::Xdp,
            why,
        })
    }

    fn open_verbs(&self, channel: &str, why: String) -> Result<Opened, SubscribeError> {
        let config = self.verbs.as_ref().ok_or_else(|| no_transport(channel))?;
        let receiver = VerbsReceiver::open(config).map_err(|source| SubscribeError::Verbs {
            channel: channel.to_owned(),
            source,
        })?;
        let senders = config.lines.iter().map(|line| line.senders[0].address);
        let targets = config.lines.iter().map(|line| {
            let sender = line.senders[0].address;
            format!("{} on {} from {sender}", line.group, line.interface)
        });
        Ok(Opened {
            receiver: Box::new(receiver),
            senders: senders.collect(),
            targets: targets.collect(),
            transport: Transport::Verbs,
            why,
        })
    }
}

/// Returns the device names if every line has a device that carries this slot size, and one has an active
/// port. Lines whose port is down are joined once it is up.
fn usable(config: &VerbsReceiverConfig) -> Result<String, VerbsError> {
    let devices = (config.lines.iter())
        .map(|line| Device::of(&line.interface, config.datagram_len_max))
        .collect::<Result<Vec<_>, _>>()?;
    if let Some(first) = devices.first()
        && !devices.iter().any(|device| device.is_active())
    {
        first.check_active()?;
    }
    let name = |device: &Arc<Device>| {
        let note = if device.is_active() { "" } else { " (down)" };
        format!("{} port {}{note}", device.name(), device.port())
    };
    Ok(devices.iter().map(name).collect::<Vec<_>>().join(" and "))
}

/// Returns the settings by which AF_XDP receives what UDP would.
fn by_xdp(udp: &UdpReceiverConfig) -> XdpReceiverConfig {
    let line = |line: &UdpReceiveLine| XdpReceiveLine {
        group: line.group,
        interface: line.interface.clone(),
        // As for UDP: without source-specific groups, strangers arrive and are counted above.
        senders: if udp.source_specific {
            line.senders.clone()
        } else {
            Vec::new()
        },
    };
    XdpReceiverConfig {
        lines: udp.lines.iter().map(line).collect(),
        datagram_len_max: udp.datagram_len_max,
        receive_buffer_bytes: udp.receive_buffer_bytes,
        source_specific: udp.source_specific,
        batch: udp.batch,
        memory_bytes: memory_default(),
    }
}

/// Returns a line's target and how it receives, for messages.
fn told(grant: &XdpGrant) -> String {
    let copies = if grant.zero_copy {
        "zero-copy"
    } else {
        "copied"
    };
    let XdpGrant {
        target,
        mode,
        queues,
        ..
    } = grant;
    format!("{target} ({mode} mode, {copies}, receive queues: {queues})")
}

fn no_transport(channel: &str) -> SubscribeError {
    SubscribeError::NoTransport {
        channel: channel.to_owned(),
    }
}

/// Returns the interface of a line. The last configured interface applies to all further lines.
fn interface(builder: &SubscriberBuilder, line: usize, sender: Ipv4Addr, host: &Host) -> Interface {
    let all = &builder.interfaces;
    let configured = all.get(line).or(all.last()).cloned();
    configured.unwrap_or_else(|| host.interface_for(sender))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tickcast_reliability::control::UdpLine;
    use tickcast_reliability::types::{ChannelId, ConfigHash, Epoch, Lineage, RecordNumber};

    use tickcast_transport::host::host_addresses::HostAddress;

    use super::*;
    use crate::Subscriber;
    use tickcast_reliability::control::HeartbeatLimits;

    const LOOPBACK: Ipv4Addr = Ipv4Addr::LOCALHOST;
    /// A sender in none of the host's networks.
    const ROUTED: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 9);

    /// Returns a host with two addresses on `eth1`, one on `eth2`, and this one for its connection.
    fn host(via: [u8; 4]) -> Host {
        let listed = |(interface, address, prefix_len): (&str, [u8; 4], u32)| HostAddress {
            interface: interface.into(),
            address: Some(address.into()),
            prefix_len,
            scope: 0,
            is_up: true,
        };
        let all = [
            ("lo", [127, 0, 0, 1], 8),
            ("eth1", [10, 1, 0, 7], 16),
            ("eth1", [10, 1, 0, 8], 16),
            ("eth2", [10, 2, 0, 7], 16),
        ];
        Host {
            addresses: all.into_iter().map(listed).collect(),
            via: Some((via, 40_000).into()),
        }
    }

    fn named(name: &str) -> Interface {
        Interface::Name(name.into())
    }

    /// Returns the offer of a publisher that sends from this address.
    fn offer(sender: Ipv4Addr) -> ChannelOffer {
        let group = "239.255.7.1:7500".parse().unwrap();
        ChannelOffer {
            authentication: None,
            channel: ChannelId(1),
            name: "all".into(),
            epoch: Epoch(1),
            newest: Sequence(0),
            oldest: Sequence(1),
            oldest_record: RecordNumber(1),
            next_record: RecordNumber(1),
            slot_len: 1472,
            slots: 64,
            config_hash: ConfigHash(0),
            ended: false,
            fan_outs: vec![FanOutOffer::Udp {
                lines: vec![UdpLine { group, sender }; 2],
            }],
            directory: Vec::new(),
            continues: Lineage::default(),
            history: None,
            heartbeats: HeartbeatLimits::default(),
        }
    }

    /// Returns the interfaces of the offer's two lines.
    fn interfaces(choice: &TransportChoice) -> [Interface; 2] {
        let lines = &choice.udp.as_ref().unwrap().lines;
        [0, 1].map(|line| lines[line].interface.clone())
    }

    #[test]
    fn interface_defaults_to_sender_network_then_connection() {
        let (builder, channel) = (Subscriber::builder("md1:7400"), ChannelBuilder::new("all"));
        let of = |sender: Ipv4Addr, via: [u8; 4]| {
            let choice = TransportChoice::of(&builder, &channel, &offer(sender), &host(via));
            let [a, b] = interfaces(&choice);
            assert_eq!(a, b);
            a
        };
        assert_eq!(of(ROUTED, [10, 1, 0, 7]), named("eth1"));
        assert_eq!(of(ROUTED, [10, 2, 0, 7]), named("eth2"));
        let neighbour = Ipv4Addr::new(10, 1, 0, 99);
        assert_eq!(of(neighbour, [10, 2, 0, 7]), named("eth1"));
        // A sender on this host is heard where it sends, whichever address the connection uses.
        assert_eq!(of(LOOPBACK, [10, 1, 0, 7]), named("lo"));
        assert_eq!(
            of(Ipv4Addr::new(10, 2, 0, 7), [127, 0, 0, 1]),
            named("eth2")
        );
        // A connection from an address of no interface leaves loopback.
        assert_eq!(of(ROUTED, [10, 3, 0, 7]), Interface::default());
        assert_eq!(
            Host {
                via: None,
                ..host([0; 4])
            }
            .interface_for(ROUTED),
            Interface::default()
        );
    }

    #[test]
    fn configured_interface_precedes_the_default() {
        let [a, b] = ["eth1", "eth2"].map(named);
        let builder = Subscriber::builder("md1:7400").interface(a.clone());
        let channel = ChannelBuilder::new("all");
        let of = |builder: &SubscriberBuilder| {
            TransportChoice::of(builder, &channel, &offer(ROUTED), &host([10, 2, 0, 7]))
        };
        assert_eq!(interfaces(&of(&builder)), [a.clone(), a.clone()]);
        let builder = builder.interface(b.clone());
        assert_eq!(interfaces(&of(&builder)), [a, b]);
    }

    #[test]
    fn busy_polling_of_the_builder_reaches_the_sockets() {
        let channel = ChannelBuilder::new("all");
        let asked = |builder: &SubscriberBuilder| {
            let host = host([10, 1, 0, 7]);
            let choice = TransportChoice::of(builder, &channel, &offer(ROUTED), &host);
            choice.udp.unwrap().busy_poll_us
        };
        let builder = Subscriber::builder("md1:7400");
        assert_eq!(asked(&builder), None, "the system's default");
        for (time, us) in [(0, 0), (1, 1), (50_000, 50), (50_001, 51)] {
            let builder = builder.clone().busy_poll(Duration::from_nanos(time));
            assert_eq!(asked(&builder), Some(us), "{time} ns");
        }
        let builder = builder.busy_poll(Duration::MAX);
        assert_eq!(asked(&builder), Some(u32::MAX));
    }

    #[test]
    fn connection_over_another_interface_needs_another_receiver() {
        let channel = ChannelBuilder::new("all");
        let offer = offer(ROUTED);
        let by = |builder: &SubscriberBuilder, via: [u8; 4]| {
            TransportChoice::of(builder, &channel, &offer, &host(via))
        };
        let builder = Subscriber::builder("md1:7400,md2:7400");
        let before = by(&builder, [10, 1, 0, 7]);
        let fits = |builder, via| by(builder, via).fits(&before, Transport::Udp);
        assert!(fits(&builder, [10, 1, 0, 7]));
        assert!(fits(&builder, [10, 1, 0, 8]), "the same interface");
        assert!(!fits(&builder, [10, 2, 0, 7]));
        let configured = builder.clone().interface(named("eth1"));
        assert!(fits(&configured, [10, 2, 0, 7]));
    }
}
