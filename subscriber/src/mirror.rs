//! A subscriber for a standby: its core keeps mirrors of the publisher's rings. It follows and repairs
//! like any subscriber. When both sides have RDMA, the publisher also writes to its memory.

use tickcast_journal::Journaled;
use tickcast_reliability::control::ChannelOffer;
use tickcast_reliability::delivery::{Deliver, Event, Item, Position};
use tickcast_reliability::receive::Mirror;
use tickcast_reliability::record::RecordRef;
use tickcast_reliability::session::{SubscriberCore, SubscriberInput};
use tickcast_reliability::types::{ChannelId, Nanos};
use tickcast_transport::host::clock::{Clock, SystemClock};

use crate::config::SubscriberBuilder;
use crate::dispatch::Sink;
use crate::error::SubscribeError;
use crate::io::driver::Driver;
use crate::observe::polled::Polled;

/// Callbacks of a [`MirrorSubscriber`]: provides mirrors and receives records and events.
pub trait MirrorKeeper {
    /// Handles the offer of a publisher, which comes with each WELCOME. `wants_mirror` is set when the
    /// channel has no mirror yet or none that fits. Returns a new mirror, or `None` for no mirror.
    fn offered(&mut self, offer: &ChannelOffer, wants_mirror: bool) -> Option<Mirror>;
    /// Handles a mirrored record.
    fn record(&mut self, position: &Position, record: RecordRef<'_>);
    /// Handles an event of a channel. Events and mirrored records come in stream order.
    fn event(&mut self, position: &Position, event: &Event);
}

/// A subscriber that keeps mirrors of the publisher's rings.
pub struct MirrorSubscriber {
    driver: Driver,
}

impl MirrorSubscriber {
    /// Builds the subscriber as [`SubscriberBuilder::build`] does. Its channels start with the oldest record
    /// and are delivered in order.
    ///
    /// # Errors
    /// [`SubscribeError`] on the conditions of [`SubscriberBuilder::build`].
    pub fn new(builder: SubscriberBuilder) -> Result<Self, SubscribeError> {
        let parts = builder.check()?;
        let now = SystemClock.now();
        let mut driver = Driver::new(builder, parts, now);
        driver.use_inboxes(now);
        Ok(Self { driver })
    }

    /// Receives datagrams and requests missing ones. Never blocks.
    pub fn poll(&mut self, keeper: &mut impl MirrorKeeper) -> Polled {
        self.driver.poll(SystemClock.now(), &mut MirrorSink(keeper))
    }

    /// Returns the core, for inspection.
    #[must_use]
    pub fn core(&self) -> &SubscriberCore {
        &self.driver.core
    }

    /// Removes and returns the mirror of a channel, for its promotion.
    pub fn take_mirror(&mut self, channel: ChannelId) -> Option<Mirror> {
        self.driver.core.take_mirror(channel)
    }

    /// Returns the reason why the subscriber does not work as configured, or `None`.
    #[must_use]
    pub fn problem(&self) -> Option<&SubscribeError> {
        self.driver.problems.first()
    }
}

struct MirrorSink<'a, K>(&'a mut K);

impl<K: MirrorKeeper> Deliver for MirrorSink<'_, K> {
    fn item(&mut self, item: Item<'_>) {
        match item {
            Item::Record(position, record) => self.0.record(position, record),
            Item::Event(position, event) => self.0.event(position, event),
        }
    }
}

impl<K: MirrorKeeper> Sink for MirrorSink<'_, K> {
    fn offered(&mut self, now: Nanos, core: &mut Journaled<SubscriberCore>, offer: &ChannelOffer) {
        let mirror = core.mirror(offer.channel);
        let wants_mirror = !mirror.is_some_and(|mirror| mirror.fits(offer));
        let mut mirror = self.0.offered(offer, wants_mirror);
        if mirror.is_some() {
            let mirror = SubscriberInput::Mirror(offer.channel, &mut mirror);
            core.handle(now, mirror, self);
        }
    }
}
