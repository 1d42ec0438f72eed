//! A publisher's status, readable from any thread without delaying publishing.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use tickcast_metrics::PageFormat;
use tickcast_reliability::types::{ChannelId, Epoch, RepairCounters, SenderCounters, Sequence};

use crate::admin::metrics::metrics;
use crate::admin::summary::PublisherSummary;
use crate::state::subscribers::SubscriberStatus;
use crate::state::{Shared, SourceShared};

/// Counters and subscribers of a publisher, as they are now. It can be cloned, kept and read from
/// any thread, also after the session. The threads that publish share no lock with it.
///
/// ```no_run
/// # fn watch(publisher: &tickcast_publisher::Publisher) {
/// let monitor = publisher.monitor();
/// std::thread::spawn(move || {
///     for subscriber in monitor.subscribers() {
///         println!("{} is {} behind", subscriber.name, subscriber.lag);
///     }
/// });
/// # }
/// ```
#[derive(Clone)]
pub struct PublisherMonitor {
    shared: Arc<Shared>,
}

/// The state of one channel at one moment.
///
/// ```
/// # fn f(monitor: &tickcast_publisher::PublisherMonitor) {
/// for status in monitor.channels() {
///     let status: tickcast_publisher::ChannelStatus = status;
///     println!("{status:?}");
/// }
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ChannelStatus {
    /// Number of the channel.
    pub id: ChannelId,
    /// Name of the channel.
    pub name: String,
    /// The last sequence sealed.
    pub sealed: Sequence,
    /// The oldest sequence that can still be repaired.
    pub oldest: Sequence,
    /// Subscribers that have joined.
    pub subscribers: u32,
    /// Publishing counters; read them at any time.
    pub sender: Arc<SenderCounters>,
    /// Repair counters.
    pub repair: Arc<RepairCounters>,
}

impl PublisherMonitor {
    pub(crate) const fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Returns the state of all channels, in the order of the config.
    ///
    /// ```
    /// # fn f(monitor: &tickcast_publisher::PublisherMonitor) {
    /// println!("{} channels", monitor.channels().len());
    /// # }
    /// ```
    #[must_use]
    pub fn channels(&self) -> Vec<ChannelStatus> {
        let all = self.shared.channels.iter().map(|channel| ChannelStatus {
            id: channel.plan.id,
            name: channel.plan.name.clone(),
            sealed: channel.ring.sealed(),
            oldest: channel.ring.oldest(),
            subscribers: channel.subscribers.load(Relaxed),
            sender: channel.sender.clone(),
            repair: channel.repair.clone(),
        });
        all.collect()
    }

    /// Returns the last report of every subscriber on each channel: progress and lag in sequences,
    /// and records lost. Subscribers that have left are kept for a while.
    ///
    /// ```
    /// # fn f(monitor: &tickcast_publisher::PublisherMonitor) {
    /// for subscriber in monitor.subscribers() {
    ///     println!("{} is {} sequences behind", subscriber.name, subscriber.lag);
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn subscribers(&self) -> Vec<SubscriberStatus> {
        self.shared.subscribers().all()
    }

    /// Returns the sources and their counters, in the order of the config.
    ///
    /// ```
    /// # fn f(monitor: &tickcast_publisher::PublisherMonitor) {
    /// for source in monitor.sources() {
    ///     println!("{}", source.counters.source_overflow_messages.get());
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn sources(&self) -> &[Arc<SourceShared>] {
        &self.shared.sources
    }

    /// Returns the epoch of all channels.
    ///
    /// ```
    /// # fn f(monitor: &tickcast_publisher::PublisherMonitor) {
    /// println!("epoch {}", monitor.epoch());
    /// # }
    /// ```
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.shared.epoch
    }

    /// Returns whether the session has ended, or the publisher stopped.
    ///
    /// ```
    /// # fn f(monitor: &tickcast_publisher::PublisherMonitor) {
    /// if monitor.is_stopping() {
    ///     println!("the session ends");
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.shared.is_stopping()
    }

    /// Returns the full status as one JSON value, like the admin port's `/status`.
    ///
    /// ```
    /// # fn f(monitor: &tickcast_publisher::PublisherMonitor) {
    /// println!("{}", monitor.summary().json());
    /// # }
    /// ```
    #[must_use]
    pub fn summary(&self) -> PublisherSummary {
        PublisherSummary::of(&self.shared)
    }

    /// Returns all metrics in Prometheus' text format, like the admin port's `/metrics`.
    ///
    /// ```
    /// # fn f(monitor: &tickcast_publisher::PublisherMonitor) {
    /// print!("{}", monitor.metrics());
    /// # }
    /// ```
    #[must_use]
    pub fn metrics(&self) -> String {
        metrics(&self.shared, PageFormat::Prometheus).encode(PageFormat::Prometheus)
    }
}
