//! The library for a firm's own exchange handlers. Each handler publishes through a channel of its own;
//! heartbeats, repair and metrics continue whatever the handlers do.

use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crossbeam_channel::{Sender, bounded};
use tickcast_reliability::types::Nanos;

use crate::admin::monitor::PublisherMonitor;
use crate::admin::summary::{EndError, PublisherSummary};
use crate::api::channel_writer::ChannelWriter;
use crate::config::Config;
use crate::error::{ChannelClaimError, PublisherError};
use crate::ingest::queue::{BATCH_LEN, ingest_queue};
use crate::plan::routing::CHANNELS_MAX;
use crate::run::threads::NewHandler;
use crate::run::{Opened, Running, own_source};
use crate::state::Shared;

/// A publisher for your own handlers. It serves its channels from [`Publisher::open`] on.
///
/// It has threads of its own: one seals, sends and makes the heartbeats, one repairs, and one serves
/// metrics if the config names an admin port. A handler's thread only queues its messages. So a handler
/// that is slow, or silent for hours, looks alive to every subscriber, and repair continues meanwhile.
///
/// Config inputs of other kinds than `own` run too, beside the handlers.
///
/// # Dropping it
/// A drop without [`end_session`](Self::end_session), as when a panic unwinds, is safe. It sends the
/// published messages, ends and joins the threads (at most half a second for goodbyes), and sends **no**
/// END. Subscribers see the publisher go away and wait for its next epoch.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tickcast_publisher::record::{RType, RecordHeader, TradeMsg};
/// use tickcast_publisher::{Config, Publisher, SourcePosition};
///
/// let config = Config::parse(
///     r#"{ "name": "mine", "control": "127.0.0.1:0", "inputs": [], "channels": [{
///         "id": 1, "name": "all", "slots": 1024,
///         "fan_out": [{ "transport": "udp", "lines": [{ "group": "239.255.90.1:7590" }] }] }] }"#,
/// )?;
/// let mut publisher = Publisher::open(config)?;
/// let mut channel = publisher.channel("all")?;
/// channel.publish(
///     &TradeMsg {
///         hd: RecordHeader::new::<TradeMsg>(RType::Mbp0 as u8, 1, 7, 0),
///         price: 101_500_000_000,
///         size: 200,
///         ..TradeMsg::default()
///     },
///     SourcePosition::new(0, 1),
/// )?;
/// let summary = publisher.end_session(Duration::from_secs(2))?;
/// assert_eq!(summary.published_records(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Publisher {
    /// `None` once the end of the session has begun.
    running: Option<Running>,
    config: Config,
    shared: Arc<Shared>,
    new_handlers: Sender<NewHandler>,
    /// One reference per channel, alive as long as the channel's writer.
    writers: Vec<Weak<()>>,
    control: SocketAddr,
    admin: Option<SocketAddr>,
}

impl Publisher {
    /// Opens everything that the config names and begins: subscribers can join, and every channel
    /// has its heartbeats. The config is the service's ([`Config::read`] for a file,
    /// [`Config::parse`] for text); its inputs may be empty, or name the sources of handlers as
    /// `{"source": 3, "kind": "own"}`, also one for each channel (`"channel": "name"`). Without
    /// any, handlers are source 1.
    ///
    /// # Errors
    /// [`PublisherError`] for an invalid config, with the JSON path and the remedy, and for a port,
    /// memory, multicast interface or state directory that is not available. Nothing runs then.
    ///
    /// ```
    /// # use tickcast_publisher::{Config, Publisher};
    /// # fn f() -> Result<(), Box<dyn std::error::Error>> {
    /// let publisher = Publisher::open(Config::read("configs/mine.json".as_ref())?)?;
    /// println!("subscribers connect to {}", publisher.control_address());
    /// # Ok(())
    /// # }
    /// ```
    pub fn open(config: Config) -> Result<Self, PublisherError> {
        let opened = Opened::for_handlers(config)?;
        // Room is guaranteed: a channel's next writer comes only after the previous one is gone.
        let (new_handlers, arrived) = bounded(2 * CHANNELS_MAX);
        let config = opened.config().clone();
        let shared = opened.shared().clone();
        let (control, admin) = (opened.control_address(), opened.endpoints().admin);
        Ok(Self {
            running: Some(opened.start(Some(arrived))?),
            writers: config.channels.iter().map(|_| Weak::new()).collect(),
            config,
            shared,
            new_handlers,
            control,
            admin,
        })
    }

    /// Returns the writer of a channel; move it to the thread that publishes there. After its drop the
    /// channel remains, and another writer can be requested.
    ///
    /// # Errors
    /// [`ChannelClaimError`] for an unknown name, a channel that has a writer, a channel without a source,
    /// and a publisher that has stopped by itself.
    ///
    /// ```
    /// # fn f(mut publisher: tickcast_publisher::Publisher) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut equities = publisher.channel("equities")?;
    /// let handler = std::thread::spawn(move || equities.flush());
    /// # Ok(())
    /// # }
    /// ```
    pub fn channel(&mut self, name: &str) -> Result<ChannelWriter, ChannelClaimError> {
        let name_of = || name.to_owned();
        let channels = &self.config.channels;
        let Some(place) = channels.iter().position(|c| c.name == name) else {
            let known: Vec<&str> = channels.iter().map(|c| c.name.as_str()).collect();
            return Err(ChannelClaimError::Unknown {
                name: name_of(),
                known: known.join(", "),
            });
        };
        if self.writers[place].strong_count() > 0 {
            return Err(ChannelClaimError::Taken { name: name_of() });
        }
        let Some(source) = own_source(&self.config, name) else {
            return Err(ChannelClaimError::NoSource { name: name_of() });
        };
        // Queue messages one by one, so that none waits for the next.
        let (sender, receiver) =
            ingest_queue(self.config.threads.queue_batches * BATCH_LEN, 0, true);
        let arrived = self.new_handlers.send((place, receiver));
        if arrived.is_err() || self.shared.is_stopping() {
            return Err(ChannelClaimError::Stopped);
        }
        let alive = Arc::new(());
        self.writers[place] = Arc::downgrade(&alive);
        let source = self.config.inputs[source].source();
        Ok(ChannelWriter::new(
            sender,
            self.shared.clone(),
            place,
            source,
            alive,
        ))
    }

    /// Returns a monitor of counters and subscribers for other threads.
    ///
    /// ```
    /// # fn f(mut publisher: tickcast_publisher::Publisher) -> Result<(), Box<dyn std::error::Error>> {
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
    /// # fn f(mut publisher: tickcast_publisher::Publisher) -> Result<(), Box<dyn std::error::Error>> {
    /// println!("subscribers connect to {}", publisher.control_address());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub const fn control_address(&self) -> SocketAddr {
        self.control
    }

    /// Returns the address of the metrics, with the port that the system chose.
    ///
    /// ```
    /// # fn f(mut publisher: tickcast_publisher::Publisher) -> Result<(), Box<dyn std::error::Error>> {
    /// if let Some(address) = publisher.admin_address() {
    ///     println!("metrics at http://{address}/metrics");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub const fn admin_address(&self) -> Option<SocketAddr> {
        self.admin
    }

    /// Ends the session: every message whose `publish` has returned goes out, then END on every
    /// channel; heartbeats and repair go on until all joined subscribers have reached END, or
    /// `drain` is over. Writers that are still there get [`WriteError::Ended`] from then on.
    ///
    /// # Errors
    /// [`EndError`]: the fault that stopped a thread, now or before. All threads are gone then.
    ///
    /// [`WriteError::Ended`]: crate::WriteError::Ended
    ///
    /// ```
    /// # fn f(mut publisher: tickcast_publisher::Publisher) -> Result<(), Box<dyn std::error::Error>> {
    /// let summary = publisher.end_session(std::time::Duration::from_secs(5))?;
    /// println!("{} records", summary.published_records());
    /// # Ok(())
    /// # }
    /// ```
    pub fn end_session(mut self, drain: Duration) -> Result<PublisherSummary, EndError> {
        let drain = u64::try_from(drain.as_nanos()).unwrap_or(u64::MAX);
        self.shared.stop_within(Nanos(drain));
        match self.running.take() {
            Some(running) => running.join(),
            // Unreachable: only this and `drop` take the value, and both happen last.
            None => Ok(PublisherSummary::of(&self.shared)),
        }
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            self.shared.abandon();
            if let Err(error) = running.join() {
                tracing::error!("{error}");
            }
        }
    }
}
