//! Listening to a channel's groups: which of the publisher's fan-outs to take, and whose
//! datagrams to believe.

use std::net::Ipv4Addr;

use tickcast_reliability::control::{ChannelOffer, FanOutOffer};
use tickcast_reliability::delivery::{Item, LineId};
use tickcast_reliability::subscriber_core::SubscriberCore;
use tickcast_reliability::units::{ChannelId, Nanos};
use tickcast_transport::faults::Faulty;
use tickcast_transport::udp::{UdpReceiveLine, UdpReceiver, UdpReceiverConfig};
use tickcast_transport::{Receive, ReceiveError};

use crate::builder::{ChannelBuilder, SubscriberBuilder, display};
use crate::error::SubscribeError;
use crate::sift::Sink;
use crate::wake::Waker;

/// How datagrams come from the publisher.
///
/// ```
/// # use tickcast_subscriber::{Subscriber, Transport};
/// let builder = Subscriber::builder("127.0.0.1:7400").transport(Transport::Udp);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Transport {
    /// The best that publisher and subscriber have in common; a log line says which, and why.
    #[default]
    Auto,
    /// UDP multicast.
    Udp,
}

/// One channel's groups.
pub(crate) struct Listening {
    pub(crate) channel: ChannelId,
    config: UdpReceiverConfig,
    receiver: Receiver,
}

enum Receiver {
    Plain(UdpReceiver),
    Faulty(Box<Faulty<UdpReceiver>>),
}

impl Listening {
    /// Joins the groups that `offer` names, or those that override them.
    pub(crate) fn open(
        builder: &SubscriberBuilder,
        channel: &ChannelBuilder,
        offer: &ChannelOffer,
    ) -> Result<Self, SubscribeError> {
        let name = || display(&channel.channel);
        let config = receiver_config(builder, channel, offer)
            .ok_or_else(|| SubscribeError::NoTransport { channel: name() })?;
        let mut open = config.clone();
        if !open.source_specific {
            // Everybody's datagrams come here then, so that strangers' are seen and counted.
            open.lines.iter_mut().for_each(|line| line.senders.clear());
        }
        let plain = UdpReceiver::open(&open).map_err(|source| SubscribeError::Udp {
            channel: name(),
            source,
        })?;
        let why = match builder.transport {
            Transport::Auto => "of what is offered it is what this build receives by",
            Transport::Udp => "it was asked for",
        };
        let lines = config.lines.len();
        tracing::info!(channel = %offer.name, lines, "receives by udp multicast: {why}");
        for warning in plain.warnings() {
            tracing::warn!(channel = %offer.name, "{warning}");
        }
        let receiver = match &builder.faults {
            None => Receiver::Plain(plain),
            Some(faults) => {
                let mut faults = faults.clone();
                // Two lines take two seeds; the next channel's follow.
                faults.seed = faults.seed.wrapping_add(u64::from(offer.channel.0) * 2);
                Receiver::Faulty(Box::new(Faulty::new(plain, &faults)?))
            }
        };
        Ok(Self {
            channel: offer.channel,
            config,
            receiver,
        })
    }

    /// Whether `offer` names the groups that are being listened to.
    pub(crate) fn fits(
        &self,
        builder: &SubscriberBuilder,
        channel: &ChannelBuilder,
        offer: &ChannelOffer,
    ) -> bool {
        receiver_config(builder, channel, offer).is_some_and(|config| config == self.config)
    }

    /// Feeds what has arrived to the core. How many datagrams there were.
    #[inline]
    pub(crate) fn poll(
        &mut self,
        now: Nanos,
        core: &mut SubscriberCore,
        sink: &mut impl Sink,
    ) -> Result<usize, ReceiveError> {
        let (channel, lines) = (self.channel, &self.config.lines);
        let mut hand = |received: tickcast_transport::Received<'_>| {
            if is_known(lines, received.line, received.from) {
                let on = &mut |item: Item<'_>| sink.item(item);
                core.handle_received(now, channel, received.line, received.bytes, on);
            } else {
                core.handle_stranger(channel);
            }
        };
        match &mut self.receiver {
            Receiver::Plain(receiver) => receiver.poll(now, &mut hand),
            Receiver::Faulty(receiver) => receiver.poll(now, &mut hand),
        }
    }

    /// Watches its sockets.
    pub(crate) fn watch(&self, waker: &Waker) -> std::io::Result<()> {
        let udp = match &self.receiver {
            Receiver::Plain(receiver) => receiver,
            Receiver::Faulty(faulty) => faulty.inner(),
        };
        udp.fds()
            .try_for_each(|socket| waker.watch(socket, true, false))
    }

    /// When an injected fault lets go of what it holds back.
    pub(crate) fn next_due(&self) -> Option<Nanos> {
        let faulty = self.faulty()?;
        let lines = (0..self.config.lines.len()).map(|line| LineId(line as u8));
        lines.filter_map(|line| faulty.plan(line)?.next_due()).min()
    }

    /// Leaves all groups and joins them anew.
    pub(crate) fn rejoin(&mut self) -> Result<(), ReceiveError> {
        for line in 0..self.config.lines.len() {
            self.receive_mut().rejoin(LineId(line as u8))?;
        }
        Ok(())
    }

    /// Leaves one line's group until [`Listening::rejoin`], as a network that forgets us would.
    pub(crate) fn leave(&mut self, line: LineId) -> Result<(), ReceiveError> {
        self.receive_mut().leave(line)
    }

    /// Datagrams that the kernel dropped for want of buffer, on all lines.
    pub(crate) fn kernel_drops(&self) -> u64 {
        self.receive()
            .stats()
            .iter()
            .map(|stats| stats.buffer_drops)
            .sum()
    }

    /// The injected faults, per line; empty without.
    pub(crate) fn faulty(&self) -> Option<&Faulty<UdpReceiver>> {
        match &self.receiver {
            Receiver::Plain(_) => None,
            Receiver::Faulty(faulty) => Some(faulty),
        }
    }

    fn receive(&self) -> &dyn Receive {
        match &self.receiver {
            Receiver::Plain(receiver) => receiver,
            Receiver::Faulty(receiver) => &**receiver,
        }
    }

    fn receive_mut(&mut self) -> &mut dyn Receive {
        match &mut self.receiver {
            Receiver::Plain(receiver) => receiver,
            Receiver::Faulty(receiver) => &mut **receiver,
        }
    }
}

#[inline]
fn is_known(lines: &[UdpReceiveLine], line: LineId, from: Ipv4Addr) -> bool {
    lines
        .get(usize::from(line.0))
        .is_some_and(|line| line.senders.contains(&from))
}

fn receiver_config(
    builder: &SubscriberBuilder,
    channel: &ChannelBuilder,
    offer: &ChannelOffer,
) -> Option<UdpReceiverConfig> {
    let offered = offer.fan_outs.iter().find_map(|fan_out| match fan_out {
        FanOutOffer::Udp { lines } => Some(lines),
        FanOutOffer::Unknown => None,
    })?;
    let pairs: Vec<_> = if channel.line_overrides.is_empty() {
        offered
            .iter()
            .map(|line| (line.group, line.sender))
            .collect()
    } else {
        channel
            .line_overrides
            .iter()
            .map(|line| (line.group, line.sender))
            .collect()
    };
    let interface = |line: usize| {
        builder
            .interfaces
            .get(line)
            .or(builder.interfaces.last())
            .cloned()
            .unwrap_or_default()
    };
    let lines = pairs
        .into_iter()
        .enumerate()
        .map(|(line, (group, sender))| UdpReceiveLine {
            group,
            interface: interface(line),
            senders: vec![sender],
        });
    Some(UdpReceiverConfig {
        lines: lines.collect(),
        datagram_len_max: offer.slot_len as usize,
        receive_buffer_bytes: builder.receive_buffer_bytes,
        source_specific: builder.source_specific,
        batch: 64,
        busy_poll_us: None,
    })
}
