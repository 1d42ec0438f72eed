//! The subscriber: one poll moves everything along, and never blocks.

use std::net::SocketAddr;
use std::sync::Arc;

use tickcast_reliability::counters::ReceiverCounters;
use tickcast_reliability::delivery::{Item, LineId};
use tickcast_reliability::loss::LossCause;
use tickcast_reliability::subscriber_core::SubscriberSettings;
use tickcast_reliability::units::{ChannelId, Epoch, Sequence};
use tickcast_transport::clock::{Clock, SystemClock};
use tickcast_transport::faults::Faulty;
use tickcast_transport::udp::UdpReceiver;

use crate::builder::{SubscriberBuilder, display};
use crate::driver::Driver;
use crate::error::SubscribeError;
use crate::latency::{ChannelLatency, Meter};
use crate::listening::Listening;

/// What a poll did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Polled {
    /// Datagrams taken from the network.
    pub datagrams: usize,
    /// Control messages taken from the publisher.
    pub messages: usize,
}

impl Polled {
    /// Whether there was anything to do.
    #[must_use]
    pub const fn worked(self) -> bool {
        self.datagrams > 0 || self.messages > 0
    }
}

/// One channel as it stands.
#[derive(Clone, Debug)]
pub struct ChannelReport {
    /// As it was asked for.
    pub name: String,
    /// Its number; `None` before the publisher's welcome.
    pub channel: Option<ChannelId>,
    /// The epoch followed.
    pub epoch: Epoch,
    /// The last sequence delivered or declared lost.
    pub delivered: Sequence,
    /// The highest sequence heard of.
    pub heard: Sequence,
    /// Whether END was delivered.
    pub ended: bool,
    /// What was counted; stays readable from any thread.
    pub counters: Arc<ReceiverCounters>,
}

/// Follows channels of a publisher. See the crate's page for an example.
pub struct Subscriber {
    driver: Driver,
    meter: Meter,
}

impl Subscriber {
    /// Describes a subscriber of the publisher at `host:port`.
    pub fn builder(publisher: impl Into<String>) -> SubscriberBuilder {
        SubscriberBuilder::new(publisher.into())
    }

    pub(crate) fn new(
        builder: SubscriberBuilder,
        settings: SubscriberSettings,
        addresses: Vec<SocketAddr>,
    ) -> Self {
        let driver = Driver::new(builder, settings, addresses, SystemClock.now());
        Self {
            driver,
            meter: Meter::new(),
        }
    }

    /// Takes what has come, hands it to `on`, and asks for what is missing. Bounded: at most a
    /// batch of datagrams per line and a bounded read per connection. Never blocks.
    #[inline]
    pub fn poll(&mut self, mut on: impl FnMut(Item<'_>)) -> Polled {
        let Self { driver, meter } = self;
        let now = SystemClock.now();
        if !driver.builder.latency {
            return driver.poll(now, &mut on);
        }
        driver.poll(now, &mut |item: Item<'_>| {
            meter.pass(&item, || SystemClock.utc());
            on(item);
        })
    }

    /// Every channel as it stands, in the order they were asked for.
    #[must_use]
    pub fn channels(&self) -> Vec<ChannelReport> {
        let counters = self.driver.core.counters();
        let channels = self
            .driver
            .builder
            .channels
            .iter()
            .zip(counters)
            .zip(self.driver.core.entries());
        channels
            .map(|((builder, counters), receiver)| {
                let (delivered, heard) =
                    receiver.map_or_else(Default::default, |receiver| receiver.progress());
                ChannelReport {
                    name: display(&builder.channel),
                    channel: receiver.map(|receiver| receiver.channel()),
                    epoch: receiver.map_or(Epoch::NONE, |receiver| receiver.epoch()),
                    delivered,
                    heard,
                    ended: receiver.is_some_and(|receiver| receiver.ended()),
                    counters: Arc::clone(counters),
                }
            })
            .collect()
    }

    /// The latency of a channel; `None` before the publisher's welcome.
    #[must_use]
    pub fn latency(&self, channel: ChannelId) -> Option<&ChannelLatency> {
        self.meter.of(channel)
    }

    /// The faults injected into a channel, where the builder asked for some.
    #[must_use]
    pub fn faults(&self, channel: ChannelId) -> Option<&Faulty<UdpReceiver>> {
        self.driver
            .listening
            .iter()
            .find(|l| l.channel == channel)
            .and_then(Listening::faulty)
    }

    /// Whether the publisher has welcomed us and the repair connection is up.
    #[must_use]
    pub const fn is_joined(&self) -> bool {
        self.driver.core.is_joined()
    }

    /// Whether every channel has delivered the end of its session.
    #[must_use]
    pub fn ended(&self) -> bool {
        self.driver.core.ended()
    }

    /// What keeps the subscriber from working as it was configured, if anything does. It goes on
    /// trying all the same.
    #[must_use]
    pub const fn problem(&self) -> Option<&SubscribeError> {
        self.driver.problem.as_ref()
    }

    /// Drops the membership of one line's group, as a switch that forgets us would: what follows
    /// is the protocol's to find and mend.
    ///
    /// # Errors
    /// When there is no such line, or the system refuses.
    pub fn drop_membership(
        &mut self,
        channel: ChannelId,
        line: LineId,
    ) -> Result<(), SubscribeError> {
        let name = channel.to_string();
        let listening = self
            .driver
            .listening
            .iter_mut()
            .find(|l| l.channel == channel);
        let Some(listening) = listening else {
            return Err(SubscribeError::NoTransport { channel: name });
        };
        listening
            .leave(line)
            .map_err(|source| SubscribeError::Receive {
                channel: name,
                source,
            })
    }

    /// Leaves: what is still open is declared lost, the publisher is told, and the final counters
    /// come back.
    pub fn leave(mut self, mut on: impl FnMut(Item<'_>)) -> Vec<ChannelReport> {
        let now = SystemClock.now();
        self.driver.core.leave(LossCause::Left, &mut on);
        self.driver.transmit(now, &mut on);
        self.channels()
    }
}
