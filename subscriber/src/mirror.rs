//! A subscriber whose core keeps mirrors of the publisher's rings, for a standby. It follows, repairs
//! and believes as any subscriber does; where both sides have RDMA, the publisher writes to it as well.

use tickcast_journal::Journaled;
use tickcast_reliability::control::{ChannelOffer, Welcome};
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

/// What whoever keeps mirrors has to do and to know.
pub trait MirrorKeeper {
    /// A publisher offers this, with each WELCOME. Where there is no mirror yet, or none that fits, it
    /// wants one: a new one, unless there shall be none.
    fn offered(&mut self, offer: &ChannelOffer, wants_mirror: bool) -> Option<Mirror>;
    /// A record was mirrored.
    fn record(&mut self, position: &Position, record: RecordRef<'_>);
    /// Something happened to a channel, in order with what is mirrored.
    fn event(&mut self, position: &Position, event: &Event);
}

/// See the module.
pub struct MirrorSubscriber {
    driver: Driver,
}

impl MirrorSubscriber {
    /// Builds it as [`SubscriberBuilder::build`] does. Its channels begin with the oldest, and are
    /// delivered in order.
    ///
    /// # Errors
    /// [`SubscribeError`].
    pub fn new(builder: SubscriberBuilder) -> Result<Self, SubscribeError> {
        let parts = builder.check()?;
        let now = SystemClock.now();
        let mut driver = Driver::new(builder, parts, now);
        driver.use_inboxes(now);
        Ok(Self { driver })
    }

    /// Takes what has come, and asks for what is missing; never blocks.
    pub fn poll(&mut self, keeper: &mut impl MirrorKeeper) -> Polled {
        self.driver.poll(SystemClock.now(), &mut Through(keeper))
    }

    /// The core, to be looked at.
    #[must_use]
    pub fn core(&self) -> &SubscriberCore {
        &self.driver.core
    }

    /// Takes the mirror of a channel out, to promote it.
    pub fn take_mirror(&mut self, channel: ChannelId) -> Option<Mirror> {
        self.driver.core.take_mirror(channel)
    }

    /// What keeps it from working as it was configured.
    #[must_use]
    pub fn problem(&self) -> Option<&SubscribeError> {
        self.driver.problems.first()
    }
}

struct Through<'a, K>(&'a mut K);

impl<K: MirrorKeeper> Deliver for Through<'_, K> {
    fn item(&mut self, item: Item<'_>) {
        match item {
            Item::Record(position, record) => self.0.record(position, record),
            Item::Event(position, event) => self.0.event(position, event),
        }
    }
}

impl<K: MirrorKeeper> Sink for Through<'_, K> {
    fn offered(&mut self, now: Nanos, core: &mut Journaled<SubscriberCore>, offer: &ChannelOffer) {
        let mirror = core.mirror(offer.channel);
        let wants_mirror = !mirror.is_some_and(|mirror| mirror.fits(offer));
        if let Some(mirror) = self.0.offered(offer, wants_mirror) {
            let mirror = SubscriberInput::Mirror(offer.channel, Box::new(mirror));
            core.handle(now, mirror, self);
        }
    }

    fn welcome(&mut self, _: &Welcome) {}

    fn welcomed(&mut self, _: &Welcome) {}
}
