//! A publisher on the thread of its handler, for hosts with few cores.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tickcast_reliability::record::{RecordBatch, WireRecord};
use tickcast_reliability::types::{Nanos, Now, SourcePosition};
use tickcast_transport::host::idle::Idle;

use crate::admin::monitor::PublisherMonitor;
use crate::admin::summary::{EndError, PublisherSummary};
use crate::config::Config;
use crate::error::PublisherError;
use crate::ingest::queue::SourceItem;
use crate::publish::PublishStage;
use crate::publish::direct::InlineChannel;
use crate::run::commands::Commands;
use crate::run::threads::finish;
use crate::run::yield_to_repair::YieldToRepair;
use crate::run::{Opened, Served};
use crate::state::Shared;
use crate::state::thread::now;

/// A publisher that seals and sends on the thread that calls it, without a queue between. It is for
/// hosts with few cores, and for handlers that do nothing but publish. Joining and repair have a thread
/// of their own all the same.
///
/// Call [`drive`](Self::drive) all the while, also when there is nothing to publish, because it sends the
/// heartbeats. A publisher of this kind hands over to no standby, since it cannot stop its handler from
/// publishing; a standby that is promoted by force ends it.
///
/// Dropping it without [`end_session`](Self::end_session) sends no END: subscribers wait for another
/// epoch.
///
/// ```
/// use std::time::Duration;
/// use tickcast_publisher::InlinePublisher;
/// use tickcast_publisher::{Config, SourcePosition, trade};
///
/// let config = Config::parse(
///     r#"{ "name": "mine", "control": "127.0.0.1:0", "inputs": [], "channels": [{
///         "id": 1, "name": "all", "slots": 1024,
///         "fan_out": [{ "transport": "udp", "lines": [{ "group": "239.255.90.2:7591" }] }] }] }"#,
/// )?;
/// let mut publisher = InlinePublisher::open(config)?;
/// publisher.publish(0, &trade(7, 101_500_000_000, 200), SourcePosition::new(0, 1));
/// publisher.drive()?;
/// assert_eq!(publisher.end_session(Duration::ZERO)?.published_records(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct InlinePublisher {
    /// `None` once the end of the session has begun.
    running: Option<(PublishStage, Commands, Served)>,
    shared: Arc<Shared>,
    control: SocketAddr,
    /// The source of the first channel.
    first: usize,
    message: RecordBatch,
    /// Serves repair when there is nothing to send.
    yield_to_repair: YieldToRepair,
    /// Time of the last drive.
    now: Now,
}

impl InlinePublisher {
    /// Opens everything that the config names; subscribers can join. Its inputs may only name sources.
    ///
    /// # Errors
    /// The errors of [`Publisher::open`](crate::Publisher::open).
    ///
    /// ```
    /// # use tickcast_publisher::{InlinePublisher, SourcePosition, trade};
    /// # fn f(config: tickcast_publisher::Config) -> Result<(), Box<dyn std::error::Error>> {
    /// let publisher = InlinePublisher::open(config)?;
    /// println!("subscribers connect to {}", publisher.control_address());
    /// # Ok(())
    /// # }
    /// ```
    pub fn open(config: Config) -> Result<Self, PublisherError> {
        let opened = Opened::for_handlers(config)?;
        let (shared, control) = (opened.shared().clone(), opened.control_address());
        let first = opened.inputs_len();
        let (to, served, commands, backlog_hint) = opened.serve()?;
        Ok(Self {
            running: Some((to, commands, served)),
            shared,
            control,
            first,
            message: RecordBatch::default(),
            yield_to_repair: YieldToRepair::to(backlog_hint),
            now: now(),
        })
    }

    /// Publishes one record, one message of the source, on the channel at this index of the config. The
    /// next [`drive`](Self::drive) seals it, or a full datagram does, which then carries the time of the
    /// last drive (`sent_at`). The next drive returns any error.
    ///
    /// ```
    /// # use tickcast_publisher::{InlinePublisher, SourcePosition, trade};
    /// # fn f(mut publisher: InlinePublisher) -> Result<(), Box<dyn std::error::Error>> {
    /// publisher.publish(0, &trade(7, 101_500_000_000, 200), SourcePosition::new(0, 1));
    /// publisher.drive()?;
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    pub fn publish<R: WireRecord>(&mut self, channel: usize, record: &R, from: SourcePosition) {
        let source = self.first + channel;
        if let Some((to, ..)) = &mut self.running
            && !to.take_record(source, record, from, self.now)
        {
            self.message.clear();
            self.message.put(record);
            to.take(
                source,
                &SourceItem::Message(from, (&self.message).into()),
                self.now,
            );
        }
    }

    /// Returns the channel at this index of the config, borrowed once for many records. Returns `None`
    /// without such a channel, and for a channel whose records are inspected (it keeps a digest, or it
    /// continues a mirror). [`publish`](Self::publish) serves those too.
    ///
    /// ```
    /// # use tickcast_publisher::{InlinePublisher, SourcePosition, trade};
    /// # fn f(mut publisher: InlinePublisher) -> Result<(), Box<dyn std::error::Error>> {
    /// if let Some(mut channel) = publisher.channel(0) {
    ///     channel.publish(&trade(7, 101_500_000_000, 200), SourcePosition::new(0, 1));
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    pub fn channel(&mut self, channel: usize) -> Option<InlineChannel<'_>> {
        let (to, ..) = self.running.as_mut()?;
        to.direct(self.first + channel, &mut self.message, self.now)
    }

    /// Publishes the records of one message of the source, as [`publish`](Self::publish) does.
    ///
    /// ```
    /// # use tickcast_publisher::{InlinePublisher, SourcePosition, trade};
    /// # fn f(mut publisher: InlinePublisher) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut message = tickcast_publisher::record::RecordBatch::default();
    /// message.put(&trade(7, 101_500_000_000, 200));
    /// publisher.publish_batch(0, &message, SourcePosition::new(0, 1));
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    pub fn publish_batch(&mut self, channel: usize, message: &RecordBatch, from: SourcePosition) {
        if let Some((to, ..)) = &mut self.running {
            let item = SourceItem::Message(from, message.into());
            to.take(self.first + channel, &item, self.now);
        }
    }

    /// Seals the published messages and sends what is due, as far as the transports accept it. Never
    /// waits. Returns whether anything was sent.
    ///
    /// # Errors
    /// [`PublisherError`]: the first fault since the last drive.
    ///
    /// ```
    /// # use tickcast_publisher::{InlinePublisher, SourcePosition, trade};
    /// # fn f(mut publisher: InlinePublisher) -> Result<(), Box<dyn std::error::Error>> {
    /// while !publisher.monitor().is_stopping() {
    ///     // Publish what there is, then:
    ///     publisher.drive()?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    pub fn drive(&mut self) -> Result<bool, PublisherError> {
        self.now = now();
        let Some((to, commands, _)) = &mut self.running else {
            return Ok(false);
        };
        commands.poll(&self.shared);
        to.flush(self.now);
        let worked = to.drive(self.now)?;
        match worked {
            true => self.yield_to_repair.busy(self.now.monotonic),
            false => self.yield_to_repair.idle(self.now.monotonic),
        };
        Ok(worked)
    }

    /// Returns a monitor of counters and subscribers for other threads.
    ///
    /// ```
    /// # use tickcast_publisher::{InlinePublisher, SourcePosition, trade};
    /// # fn f(mut publisher: InlinePublisher) -> Result<(), Box<dyn std::error::Error>> {
    /// let monitor = publisher.monitor();
    /// std::thread::spawn(move || println!("{} joined", monitor.subscribers().len()));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn monitor(&self) -> PublisherMonitor {
        PublisherMonitor::new(self.shared.clone())
    }

    /// Returns the address where subscribers connect, with the port that the system chose.
    ///
    /// ```
    /// # use tickcast_publisher::{InlinePublisher, SourcePosition, trade};
    /// # fn f(mut publisher: InlinePublisher) -> Result<(), Box<dyn std::error::Error>> {
    /// println!("subscribers connect to {}", publisher.control_address());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub const fn control_address(&self) -> SocketAddr {
        self.control
    }

    /// Ends the session with END on every channel, and waits until all subscribers have reached it or
    /// `drain` is over.
    ///
    /// # Errors
    /// [`EndError`]: the fault, now or before.
    ///
    /// ```
    /// # use tickcast_publisher::{InlinePublisher, SourcePosition, trade};
    /// # fn f(mut publisher: InlinePublisher) -> Result<(), Box<dyn std::error::Error>> {
    /// let summary = publisher.end_session(std::time::Duration::from_secs(5))?;
    /// println!("{} records", summary.published_records());
    /// # Ok(())
    /// # }
    /// ```
    pub fn end_session(mut self, drain: Duration) -> Result<PublisherSummary, EndError> {
        let drain = u64::try_from(drain.as_nanos()).unwrap_or(u64::MAX);
        self.shared.stop_within(Nanos(drain));
        match self.running.take() {
            Some((to, commands, served)) => {
                served.end(finish(to, &self.shared, commands, Idle::Yield))
            }
            // Unreachable: only this and `drop` take the value, and both happen last.
            None => Ok(PublisherSummary::of(&self.shared)),
        }
    }
}

impl Drop for InlinePublisher {
    fn drop(&mut self) {
        if let Some((to, commands, served)) = self.running.take() {
            self.shared.abandon();
            let published = finish(to, &self.shared, commands, Idle::Yield);
            if let Err(error) = served.end(published) {
                tracing::error!("{error}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trade;

    fn open(digest: bool) -> InlinePublisher {
        open_on(digest, &["239.255.90.3"])
    }

    fn open_on(digest: bool, groups: &[&str]) -> InlinePublisher {
        let probe = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = probe.local_addr().unwrap().port();
        let line = |group: &&str| serde_json::json!({ "group": format!("{group}:{port}") });
        let lines: Vec<_> = groups.iter().map(line).collect();
        let config = serde_json::json!({
            "name": "inline", "control": "127.0.0.1:0", "inputs": [], "digest": digest,
            "channels": [{
                "id": 1, "name": "all", "slots": 1024,
                "fan_out": [{ "transport": "udp", "lines": lines }],
            }],
        });
        InlinePublisher::open(Config::parse(&config.to_string()).unwrap()).unwrap()
    }

    #[test]
    fn borrowed_channel_publishes_and_counts_as_any() {
        let mut publisher = open(false);
        for n in 1..=100 {
            let (record, at) = (trade(1, n, 1), SourcePosition::new(0, n as u64));
            if n % 10 == 0 {
                publisher.publish(0, &record, at);
            } else {
                publisher.channel(0).unwrap().publish(&record, at);
            }
        }
        let mut channel = publisher.channel(0).unwrap();
        for n in 101..=1_000 {
            channel.publish(&trade(1, n, 1), SourcePosition::new(0, n as u64));
        }
        drop(channel);
        let run: Vec<_> = (1_001..=1_500).map(|n| trade(1, n, 1)).collect();
        for (first, run) in [(1_001, &run[..300]), (1_301, &run[300..]), (1_501, &[])] {
            let mut channel = publisher.channel(0).unwrap();
            channel.publish_run(run, SourcePosition::new(0, first));
        }
        assert!(publisher.drive().unwrap());
        let source = &publisher.shared.sources[publisher.first];
        assert_eq!(source.counters.source_messages.get(), 1_500);
        assert_eq!(source.counters.source_records.get(), 1_500);
        assert!(publisher.channel(1).is_none(), "there is one");
        let summary = publisher.end_session(Duration::ZERO).unwrap();
        assert_eq!(summary.published_records(), 1_500);
    }

    #[test]
    fn lines_of_a_fan_out_send_by_themselves() {
        let mut publisher = open_on(false, &["239.255.90.3", "239.255.90.4"]);
        for n in 1..=10 {
            publisher.publish(0, &trade(1, n, 1), SourcePosition::new(0, n as u64));
            publisher.drive().unwrap();
        }
        let channel = &publisher.shared.channels[0];
        let sealed = channel.sender.sealed_datagrams.get();
        assert!(sealed > 0);
        assert_eq!(channel.sender.sent_datagrams.get(), 2 * sealed);
        assert_eq!(channel.ring.identity().fan_outs, 2);
        assert_eq!(channel.lines[0].len(), 2);
        publisher.end_session(Duration::ZERO).unwrap();
    }

    #[test]
    fn digest_channel_is_looked_up_each_time() {
        assert!(open(true).channel(0).is_none());
    }
}
