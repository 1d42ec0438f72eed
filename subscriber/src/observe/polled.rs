//! The result of a poll.

/// The result of a poll.
///
/// ```
/// # use tickcast_subscriber::Subscriber;
/// let mut subscriber = Subscriber::builder("127.0.0.1:7400").channel("equities").build()?;
/// let polled = subscriber.poll(|item| println!("{item:?}"));
/// if polled.problem {
///     println!("{}", subscriber.problem().unwrap());
/// }
/// # Ok::<(), tickcast_subscriber::SubscribeError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Polled {
    /// Datagrams taken from the network. For a [`Reader`](crate::Reader): entries taken from the local ring.
    pub datagrams: usize,
    /// Control messages taken from the publisher.
    pub messages: usize,
    /// Whether a problem keeps the subscriber from working as configured. See
    /// [`Subscriber::problem`](crate::Subscriber::problem), and
    /// [`Monitor::problem`](crate::Monitor::problem) for a [`Reader`](crate::Reader).
    pub problem: bool,
    /// Whether the closure of an earlier poll has panicked. This poll and all later ones do nothing.
    /// `problem` is set as well.
    pub poisoned: bool,
    /// Whether connections and timers were served.
    pub(crate) served: bool,
}

impl Polled {
    /// The result of a poll after a panic of the closure.
    pub(crate) const POISONED: Self = Self {
        datagrams: 0,
        messages: 0,
        problem: true,
        poisoned: true,
        served: false,
    };

    /// Returns whether there was anything to do.
    ///
    /// ```
    /// # fn f(subscriber: &mut tickcast_subscriber::Subscriber) {
    /// while subscriber.poll(|item| println!("{item:?}")).worked() {}
    /// # }
    /// ```
    #[must_use]
    pub const fn worked(self) -> bool {
        self.datagrams > 0 || self.messages > 0
    }
}
