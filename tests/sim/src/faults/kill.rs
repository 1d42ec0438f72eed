//! Kills at moments of the protocol: whose process, and when.

/// Whose process is killed; it is started again, the publisher first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// The publisher.
    Publisher,
    /// A subscriber; there are others beside it.
    Subscriber,
    /// The publisher and that subscriber, at once.
    Both,
}

/// When.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// The subscriber has said JOIN, and the publisher has not heard it.
    BeforeJoin,
    /// The publisher has said WELCOME, and the subscriber has not heard it.
    DuringJoin,
    /// The subscriber misses something and has asked, and the publisher has not heard it.
    MidGap,
    /// The publisher is in the middle of writing a slot.
    HalfSlot,
    /// The first half of a slot that the subscriber READs was copied, and not the second.
    MidRead,
    /// Everything is sealed and END is sent; the subscriber has not heard yet that it is the end.
    AtEnd,
}

impl Who {
    /// Whether the publisher is killed.
    #[must_use]
    pub fn publisher(self) -> bool {
        self != Self::Subscriber
    }

    /// Whether the subscriber is.
    #[must_use]
    pub fn subscriber(self) -> bool {
        self != Self::Publisher
    }
}

impl Moment {
    /// Whether a publisher that is killed then goes on in its epoch: not if its session was over.
    #[must_use]
    pub fn goes_on(self) -> bool {
        self != Self::AtEnd
    }
}
