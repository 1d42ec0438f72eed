//! The final counters of a subscriber.

use std::fmt;

use super::ChannelReport;

/// The final state of every channel, with the counts of delivered and lost records.
///
/// ```
/// # use tickcast_subscriber::Subscriber;
/// let subscriber = Subscriber::builder("127.0.0.1:7400").channel("equities").build()?;
/// let summary = subscriber.leave();
/// assert!(summary.is_whole());
/// assert_eq!(summary.to_string(), "equities: 0 records delivered, 0 lost, 0 events");
/// # Ok::<(), tickcast_subscriber::SubscribeError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Summary {
    /// The channels, in the order of the builder.
    pub channels: Vec<ChannelReport>,
    /// Whether a closure panicked. If so, some records that count as delivered may not have been received.
    pub poisoned: bool,
}

impl Summary {
    /// Returns the number of records that the protocol delivered, including those that a filter excluded or
    /// `latest` conflated.
    ///
    /// ```
    /// # fn f(subscriber: tickcast_subscriber::Subscriber) {
    /// let summary = subscriber.leave();
    /// println!("{} records", summary.delivered_records());
    /// # }
    /// ```
    #[must_use]
    pub fn delivered_records(&self) -> u64 {
        self.sum(|channel| channel.counters.delivered_records.get())
    }

    /// Returns the number of records declared lost. Losses of unknown size are not included.
    ///
    /// ```
    /// # fn f(subscriber: tickcast_subscriber::Subscriber) {
    /// let summary = subscriber.leave();
    /// println!("{} records lost", summary.lost_records());
    /// # }
    /// ```
    #[must_use]
    pub fn lost_records(&self) -> u64 {
        self.sum(|channel| channel.counters.lost_records.get())
    }

    /// Returns the number of events delivered.
    ///
    /// ```
    /// # fn f(subscriber: tickcast_subscriber::Subscriber) {
    /// let summary = subscriber.leave();
    /// println!("{} events", summary.events());
    /// # }
    /// ```
    #[must_use]
    pub fn events(&self) -> u64 {
        self.sum(|channel| channel.handed.handed_events.get())
    }

    /// Returns whether the stream is complete. Completeness means:
    /// - Nothing was lost, neither on the way to us, nor at the source, nor in a closure that panicked.
    /// - No record was delivered that the publisher did not send.
    ///
    /// ```
    /// # fn f(subscriber: tickcast_subscriber::Subscriber) {
    /// let summary = subscriber.leave();
    /// assert!(summary.is_whole(), "{summary}");
    /// # }
    /// ```
    #[must_use]
    pub fn is_whole(&self) -> bool {
        let losses = self.sum(|channel| {
            let counters = &channel.counters;
            counters.loss_events.get()
                + counters.source_messages_lost.get()
                + counters.fencing_violations.get()
        });
        losses == 0 && !self.poisoned
    }

    fn sum(&self, of: impl Fn(&ChannelReport) -> u64) -> u64 {
        self.channels.iter().map(of).fold(0, u64::saturating_add)
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, channel) in self.channels.iter().enumerate() {
            if index > 0 {
                f.write_str("; ")?;
            }
            let (counters, handed) = (&channel.counters, &channel.handed);
            let (delivered, lost) = (&counters.delivered_records, &counters.lost_records);
            write!(
                f,
                "{}: {} records delivered, {} lost, {} events",
                channel.name,
                delivered.get(),
                lost.get(),
                handed.handed_events.get()
            )?;
            let unknown = counters.losses_of_unknown_size.get();
            if unknown > 0 {
                write!(f, ", {unknown} losses of unknown size")?;
            }
        }
        if self.poisoned {
            f.write_str("; the closure panicked, and later items were not delivered")?;
        }
        Ok(())
    }
}
