//! The subscriber process of a chaos run: follows all channels and keeps a ledger, until the session or a
//! signal ends it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tickcast_subscriber::{ChannelBuilder, Idle, Interface, ReceiverConfig, Start, Subscriber};

use super::ledger::Ledger;
use tickcast_tools::exit::{Exit, ToolError};
use tickcast_tools::support::signals::Stop;

/// Size of a journal.
const RECORD_BYTES: usize = 4 << 20;
/// Length of an interval of the log.
const LOG_INTERVAL: Duration = Duration::from_secs(1);
/// Time to go on after the end, so that the publisher receives the last reports.
const AFTER_END: Duration = Duration::from_millis(250);

/// The task of a subscriber process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    pub(crate) name: String,
    pub(crate) publisher: String,
    pub(crate) interface: String,
    pub(crate) channels: Vec<String>,
    pub(crate) ledger: PathBuf,
    /// Path of its journal.
    pub(crate) record: PathBuf,
    /// Path of the interval log of its latency, which its next life continues; `None`: it writes none.
    pub(crate) interval_log: Option<PathBuf>,
    /// Whether to join at the oldest datagram instead of the newest.
    pub(crate) from_oldest: bool,
    /// Size of the socket's receive buffer; `None`: the default.
    pub(crate) receive_buffer_bytes: Option<usize>,
    /// Slots of its reassembly windows; `None`: the default.
    pub(crate) window_slots: Option<u32>,
    /// Whether the kernel filters datagrams by source.
    pub(crate) source_specific: bool,
    pub(crate) seed: u64,
}

/// Follows the channels.
///
/// # Errors
/// [`ToolError`] if the subscriber can't be started.
pub(crate) fn run(task: &Task) -> Result<Exit, ToolError> {
    let stop = Stop::on_signals()?;
    let usage = |error: &dyn std::fmt::Display| ToolError::Usage(error.to_string());
    let interface: Interface = task.interface.parse().map_err(|error| usage(&error))?;
    let mut builder = Subscriber::builder(task.publisher.as_str())
        .name(task.name.as_str())
        .interface(interface.clone())
        .interface(interface)
        .source_specific(task.source_specific)
        .journal(&task.record, RECORD_BYTES)
        .seed(task.seed);
    if let Some(bytes) = task.receive_buffer_bytes {
        builder = builder.receive_buffer_bytes(bytes);
    }
    if let Some(path) = &task.interval_log {
        builder = builder.interval_log(path, LOG_INTERVAL);
    }
    let start = if task.from_oldest {
        Start::Oldest
    } else {
        Start::Live
    };
    let mut config = ReceiverConfig::default();
    config.window_slots = task.window_slots.unwrap_or(config.window_slots);
    for channel in &task.channels {
        builder = builder.channel(ChannelBuilder::new(channel).config(config).start(start));
    }
    let mut subscriber = builder.build().map_err(|error| usage(&error))?;
    let unwritten = |source| ToolError::Write {
        path: task.ledger.clone(),
        source,
    };
    let mut ledger = Ledger::create(&task.ledger).map_err(unwritten)?;
    let (mut idle, mut ended_at) = (Idle::Sleep { us: 200 }, None::<Instant>);
    while !stop.asked() && ended_at.is_none_or(|at| at.elapsed() < AFTER_END) {
        idle.idle(subscriber.poll(|item| ledger.take(&item)).worked());
        if subscriber.ended() {
            ended_at.get_or_insert_with(Instant::now);
        }
    }
    let left = subscriber.leave_with(|item| ledger.take(&item));
    let mut counters = BTreeMap::<String, u64>::new();
    for channel in &left.channels {
        channel.counters.each(|name, _, value| {
            *counters.entry(name.into()).or_default() += value;
        });
    }
    ledger.finish(counters).map_err(unwritten)?;
    Ok(Exit::whole_if(ended_at.is_some()))
}
