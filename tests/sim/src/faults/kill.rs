//! Kills at moments of the protocol: the process that is killed, and the moment.

/// The process that is killed. It is restarted afterwards, the publisher first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KillVictim {
    /// The publisher.
    Publisher,
    /// One subscriber, while others are running.
    Subscriber,
    /// The publisher and that subscriber, both at the same moment.
    Both,
}

/// The moment of a kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// The subscriber has sent JOIN, and it has not arrived at the publisher.
    BeforeJoin,
    /// The publisher has sent WELCOME, and it has not arrived at the subscriber.
    DuringJoin,
    /// The subscriber has a gap and has sent a NACK, and it has not arrived at the publisher.
    MidGap,
    /// The publisher is in the middle of writing a slot.
    HalfSlot,
    /// The device has copied the first half of a slot that the subscriber READs, but not the second.
    MidRead,
    /// Everything is sealed and END is sent, and END has not arrived at the subscriber.
    AtEnd,
}

impl KillVictim {
    /// Returns whether the publisher is killed.
    #[must_use]
    pub fn publisher(self) -> bool {
        self != Self::Subscriber
    }

    /// Returns whether the subscriber is killed.
    #[must_use]
    pub fn subscriber(self) -> bool {
        self != Self::Publisher
    }
}

impl Moment {
    /// Returns whether a publisher killed at this moment continues its epoch: it does not when its
    /// session was over.
    #[must_use]
    pub fn goes_on(self) -> bool {
        self != Self::AtEnd
    }
}
