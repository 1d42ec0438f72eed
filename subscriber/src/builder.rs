//! How a subscriber is described before it is built.

use std::net::{Ipv4Addr, SocketAddrV4};

use tickcast_reliability::control::{ChannelName, NAME_LEN_MAX};
use tickcast_reliability::delivery::{Delivery, Start};
use tickcast_reliability::link::LinkTimers;
use tickcast_reliability::receiver_config::ReceiverConfig;
use tickcast_reliability::subscriber_core::{ChannelWanted, SubscriberSettings};
use tickcast_reliability::units::{ChannelId, Nanos};
use tickcast_transport::clock::{Clock, SystemClock};
use tickcast_transport::control::resolve;
use tickcast_transport::faults::FaultConfig;
use tickcast_transport::udp::Interface;

use crate::{SubscribeError, Subscriber};

/// Receive a line from elsewhere than the publisher says: from a relay, say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineOverride {
    /// Group and port.
    pub group: SocketAddrV4,
    /// The address it is sent from.
    pub sender: Ipv4Addr,
}

/// One channel as it will be followed.
#[derive(Clone, Debug)]
pub struct ChannelBuilder {
    pub(crate) channel: ChannelName,
    pub(crate) start: Start,
    pub(crate) config: ReceiverConfig,
    pub(crate) line_overrides: Vec<LineOverride>,
}

impl ChannelBuilder {
    /// A channel by name, or by number where the text is one; live, ordered, repaired.
    pub fn new(channel: impl Into<String>) -> Self {
        let name: String = channel.into();
        let channel = name
            .parse()
            .map_or(ChannelName::Name(name), |id| ChannelName::Id(ChannelId(id)));
        Self {
            channel,
            start: Start::default(),
            config: ReceiverConfig::default(),
            line_overrides: Vec::new(),
        }
    }

    /// Where to begin.
    #[must_use]
    pub const fn start(mut self, start: Start) -> Self {
        self.start = start;
        self
    }

    /// In which order to deliver, and how long to wait.
    #[must_use]
    pub const fn delivery(mut self, delivery: Delivery) -> Self {
        self.config.delivery = delivery;
        self
    }

    /// All settings of the protocol at once; see [`ReceiverConfig`].
    #[must_use]
    pub const fn config(mut self, config: ReceiverConfig) -> Self {
        self.config = config;
        self
    }

    /// Receives line A (first call) or B (second) from elsewhere than the publisher says.
    #[must_use]
    pub fn line_override(mut self, line: LineOverride) -> Self {
        self.line_overrides.push(line);
        self
    }
}

/// Describes a subscriber; see [`Subscriber::builder`].
#[derive(Clone, Debug)]
pub struct SubscriberBuilder {
    pub(crate) publisher: String,
    pub(crate) name: String,
    pub(crate) channels: Vec<ChannelBuilder>,
    pub(crate) interfaces: Vec<Interface>,
    pub(crate) receive_buffer_bytes: Option<usize>,
    pub(crate) source_specific: bool,
    pub(crate) faults: Option<FaultConfig>,
    pub(crate) latency: bool,
    link: LinkTimers,
    seed: Option<u64>,
}

impl SubscriberBuilder {
    pub(crate) fn new(publisher: String) -> Self {
        Self {
            publisher,
            name: format!("subscriber-{}", std::process::id()),
            channels: Vec::new(),
            interfaces: Vec::new(),
            receive_buffer_bytes: Some(4 << 20),
            source_specific: true,
            faults: None,
            latency: true,
            link: LinkTimers::default(),
            seed: None,
        }
    }

    /// The name in the publisher's logs and metrics.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Adds a channel, by name or number or as a [`ChannelBuilder`].
    #[must_use]
    pub fn channel(mut self, channel: impl Into<ChannelBuilder>) -> Self {
        self.channels.push(channel.into());
        self
    }

    /// The interface of line A (first call) and B (second); loopback where it is left out.
    #[must_use]
    pub fn interface(mut self, interface: Interface) -> Self {
        self.interfaces.push(interface);
        self
    }

    /// The socket buffer to ask for, per line and channel; 4 MiB where it is left out.
    #[must_use]
    pub const fn receive_buffer_bytes(mut self, bytes: usize) -> Self {
        self.receive_buffer_bytes = Some(bytes);
        self
    }

    /// Whether to join only the sender's own tree (the default), or anybody's and drop strangers
    /// here, where they are counted.
    #[must_use]
    pub const fn source_specific(mut self, source_specific: bool) -> Self {
        self.source_specific = source_specific;
        self
    }

    /// Puts seeded faults between the network and this subscriber, to see what it does.
    #[must_use]
    pub fn faults(mut self, faults: FaultConfig) -> Self {
        self.faults = Some(faults);
        self
    }

    /// Whether to keep latency histograms; on by default, a few nanoseconds per record.
    #[must_use]
    pub const fn latency(mut self, latency: bool) -> Self {
        self.latency = latency;
        self
    }

    /// How long an attempt to join may take before the next one.
    #[must_use]
    pub const fn join_timeout(mut self, timeout: Nanos) -> Self {
        self.link.join_timeout = timeout;
        self
    }

    /// Decides everything random (jitter of timers); from the clock where it is left out.
    #[must_use]
    pub const fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Builds the subscriber. It connects with the first poll, and goes on trying for as long as
    /// the publisher is not there: either may start first.
    ///
    /// # Errors
    /// [`SubscribeError`] when the description makes no sense, an interface is not there, or the
    /// publisher's host is unknown.
    /// Looking up the host may block.
    pub fn build(self) -> Result<Subscriber, SubscribeError> {
        if self.channels.is_empty() {
            return Err(SubscribeError::NoChannel);
        }
        check_name(&self.name)?;
        for channel in &self.channels {
            let name = display(&channel.channel);
            check_name(&name)?;
            channel
                .config
                .check()
                .map_err(|source| SubscribeError::Config {
                    channel: name,
                    source,
                })?;
        }
        if let Some(faults) = &self.faults {
            faults.check()?;
        }
        for interface in &self.interfaces {
            (interface.resolve()).map_err(|source| SubscribeError::Interface {
                interface: interface.to_string(),
                source,
            })?;
        }
        let addresses = resolve(&self.publisher).map_err(|source| SubscribeError::Endpoint {
            endpoint: self.publisher.clone(),
            source,
        })?;
        let settings = SubscriberSettings {
            name: self.name.clone(),
            channels: self.channels.iter().map(ChannelBuilder::wanted).collect(),
            link: self.link,
            seed: self.seed.unwrap_or_else(|| SystemClock.utc().0),
        };
        Ok(Subscriber::new(self, settings, addresses))
    }
}

impl ChannelBuilder {
    fn wanted(&self) -> ChannelWanted {
        let overrides = self.line_overrides.len();
        ChannelWanted {
            channel: self.channel.clone(),
            start: self.start,
            config: self.config,
            lines: (overrides > 0).then_some(overrides),
        }
    }
}

impl From<&str> for ChannelBuilder {
    fn from(name: &str) -> Self {
        Self::new(name)
    }
}

impl From<String> for ChannelBuilder {
    fn from(name: String) -> Self {
        Self::new(name)
    }
}

impl From<ChannelId> for ChannelBuilder {
    fn from(channel: ChannelId) -> Self {
        Self {
            channel: ChannelName::Id(channel),
            ..Self::new("")
        }
    }
}

/// A channel's name as people write it.
pub(crate) fn display(channel: &ChannelName) -> String {
    match channel {
        ChannelName::Id(id) => id.to_string(),
        ChannelName::Name(name) => name.clone(),
    }
}

fn check_name(name: &str) -> Result<(), SubscribeError> {
    if name.is_empty() || name.len() > NAME_LEN_MAX {
        return Err(SubscribeError::Name {
            name: name.to_owned(),
        });
    }
    Ok(())
}
