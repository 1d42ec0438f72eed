//! The publisher: exchange feeds in, numbered and repairable datagrams out, on every channel and
//! fan-out of a config; what a source or the publisher itself lost is told in the stream.
//!
//! ```text
//! input ─ feed thread ─ hop ─┐                       ┌ fan-outs (multicast)
//! input ─ feed thread ─ hop ─┴ publish thread ─ ring ┴ repair thread ─ TCP
//! ```
//!
//! [`Publisher::open`] makes everything that can fail for its config; [`Publisher::run`] publishes
//! until the inputs end or it is told to stop. [`publish::ChannelWriter`] is one channel, without
//! threads.

pub mod admin;
pub mod channels;
pub mod config;
pub mod digest;
pub mod epoch;
pub mod error;
pub mod hop;
mod host;
pub mod input;
pub mod input_config;
pub mod metrics;
pub mod pipeline;
pub mod plan;
pub mod publish;
pub mod repair_service;
pub mod shared;
pub mod summary;

use std::net::{SocketAddr, SocketAddrV4};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tickcast_reliability::publisher_core::PublisherConfig;
use tickcast_reliability::ring::RingWriter;
use tickcast_reliability::ring_layout::RingIdentity;
use tickcast_reliability::units::{Nanos, RecordNumber, Sequence, SourceId};
use tickcast_transport::FanOut;
use tickcast_transport::control::ControlServer;
use tickcast_transport::mapping::SharedMapping;
use tickcast_transport::udp::UdpFanOut;

use crate::admin::Admin;
use crate::channels::{Router, SymbolRules};
use crate::config::{Config, ThreadMode};
use crate::epoch::EpochState;
use crate::error::PublisherError;
use crate::input::{Input, instrument_base};
use crate::pipeline::{Ending, Thread, now, spawn};
use crate::plan::{ChannelPlan, Plan};
use crate::publish::{ChannelWriter, Publishing};
use crate::repair_service::{RepairService, server_config};
use crate::shared::{ChannelShared, Shared, SourceShared};
use crate::summary::Summary;

type FanOuts = Vec<Box<dyn FanOut>>;

/// A publisher that has everything it needs, and has not begun.
pub struct Publisher {
    config: Config,
    rules: SymbolRules,
    epoch: EpochState,
    shared: Arc<Shared>,
    writers: Vec<ChannelWriter>,
    inputs: Vec<Input>,
    server: ControlServer,
    multicast: Vec<FanOuts>,
    control: SocketAddr,
    admin: Option<Admin>,
}

impl Publisher {
    /// Opens sockets, rings, inputs and the next epoch. Nothing is sent yet, but subscribers can
    /// connect from here on. Setting `stop` ends the session.
    ///
    /// # Errors
    /// [`PublisherError`] says what can't be had, and what to do.
    pub fn open(plan: Plan, stop: Arc<AtomicBool>) -> Result<Self, PublisherError> {
        let config = plan.config;
        let opened_at = now();
        let server = ControlServer::bind(config.control, server_config(&config.repair));
        let listen = |error: std::io::Error| PublisherError::Listen {
            what: "control",
            address: config.control,
            reason: error.to_string(),
        };
        let server = server.map_err(listen)?;
        let control = server.local_address().map_err(listen)?;
        let admin = config.admin.map(Admin::bind).transpose()?;
        let sources: Vec<Arc<SourceShared>> = (config.inputs.iter())
            .map(|input| Arc::new(SourceShared::new(input.source())))
            .collect();
        let mut inputs = Vec::new();
        for (index, (input, source)) in config.inputs.iter().zip(&sources).enumerate() {
            let input = Input::open(input, index, &config.interface, source.clone())?;
            for warning in input.warnings() {
                tracing::warn!(source = source.source.0, "{warning}");
            }
            inputs.push(input);
        }
        let epoch = EpochState::open(config.state_dir.as_deref(), &config.name, opened_at.utc)?;
        let (mut channels, mut writers, mut multicast) = (Vec::new(), Vec::new(), Vec::new());
        for channel in plan.channels {
            multicast.push(open_fan_outs(&channel)?);
            let fan_outs = open_fan_outs(&channel)?;
            let ring = create_ring(&channel, &epoch)?;
            let publisher = PublisherConfig {
                heartbeat: config.heartbeat,
                fan_out_margin_slots: channel.fan_out_margin_slots,
            };
            let shared = Arc::new(ChannelShared::new(channel, ring.reader()));
            channels.push(shared.clone());
            writers.push(ChannelWriter::new(
                publisher,
                ring,
                fan_outs,
                config.digest,
                shared,
                opened_at.monotonic,
            ));
        }
        let shared = Shared::new(config.name.clone(), epoch.epoch(), channels, sources, stop);
        Ok(Self {
            config,
            rules: plan.rules,
            epoch,
            shared: Arc::new(shared),
            writers,
            inputs,
            server,
            multicast,
            control,
            admin,
        })
    }

    /// Where subscribers connect.
    #[must_use]
    pub const fn control_address(&self) -> SocketAddr {
        self.control
    }

    /// Where metrics are served.
    #[must_use]
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin.as_ref().map(Admin::address)
    }

    /// Where the live inputs listen.
    #[must_use]
    pub fn listen_addresses(&self) -> Vec<(SourceId, SocketAddrV4)> {
        let of = |input: &Input| Some((input.shared().source, input.listen_address()?));
        self.inputs.iter().filter_map(of).collect()
    }

    /// What its threads share: counters, subscribers, and the way to stop it.
    #[must_use]
    pub const fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Publishes until the inputs have ended (where the config says so) or it is told to stop,
    /// ends the session, and waits for subscribers to reach its end.
    ///
    /// # Errors
    /// [`PublisherError`]: what made it end early. All its threads are gone then.
    pub fn run(self) -> Result<Summary, PublisherError> {
        let (config, shared) = (self.config, self.shared);
        let threads = config.threads.clone();
        let routers = (0..self.inputs.len())
            .map(|index| Router::new(self.rules.clone(), instrument_base(index)));
        let sources = shared.sources.iter().cloned().zip(routers).collect();
        let mut to = Publishing::new(self.writers, sources, shared.clone());
        // Before anyone is served, so that every joiner finds the epoch opened.
        let began = now();
        to.event(|at| self.epoch.opened(shared.channels[at].plan.id), began)?;
        to.drive(began)?;
        let service =
            RepairService::new(config.repair, self.server, self.multicast, shared.clone());
        let guard = StopOnFailure(shared.clone());
        let repair = spawn("repair", threads.repair_core, move || {
            let served = service.run();
            guard.of(served)
        })?;
        let admin = match self.admin {
            None => None,
            Some(admin) => {
                let shared = shared.clone();
                Some(spawn("admin", None, move || {
                    admin.run(&shared);
                    Ok(())
                })?)
            }
        };
        let ending = Ending {
            with_inputs: config.end_when_inputs_end,
            linger: Nanos::from_ms(config.linger_ms),
        };
        let (inputs, idle, also) = (self.inputs, threads.idle, shared.clone());
        let (published, feeds) = match threads.mode {
            ThreadMode::Inline => {
                let run = move || pipeline::inline(inputs, to, &also, idle, ending);
                (spawn("publish", threads.publish_core, run)?, Vec::new())
            }
            ThreadMode::Threaded => {
                let batches = threads.hop_batches;
                let (hops, feeds) =
                    pipeline::start_feeds(inputs, &shared, batches, idle, threads.feed_core)?;
                let run = move || pipeline::publish(&hops, to, &also, idle, ending);
                (spawn("publish", threads.publish_core, run)?, feeds)
            }
        };
        let mut result = join(published, "publish");
        shared.shut_down();
        for feed in feeds {
            result = result.and(join(feed, "feed"));
        }
        result = result.and(join(repair, "repair"));
        if let Some(admin) = admin {
            result = result.and(join(admin, "admin"));
        }
        result?;
        let ended_at = shared.channels.iter().map(|c| (c.plan.id, c.ring.sealed()));
        self.epoch.close(&ended_at.collect::<Vec<_>>())?;
        Ok(Summary::of(&shared))
    }
}

/// Ends the session when the thread that holds it fails, by an error or a panic.
struct StopOnFailure(Arc<Shared>);

impl StopOnFailure {
    fn of<T, E>(self, result: Result<T, E>) -> Result<T, E> {
        if result.is_err() {
            self.0.stop();
        }
        result
    }
}

impl Drop for StopOnFailure {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.stop();
        }
    }
}

fn join<T>(thread: Thread<T>, name: &'static str) -> Result<T, PublisherError> {
    let panicked = |_| Err(PublisherError::Panicked { thread: name });
    thread.join().unwrap_or_else(panicked)
}

fn open_fan_outs(channel: &ChannelPlan) -> Result<FanOuts, PublisherError> {
    let mut all: FanOuts = Vec::new();
    for fan_out in &channel.fan_outs {
        let opened = UdpFanOut::open(&fan_out.udp).map_err(|source| PublisherError::FanOut {
            channel: channel.name.clone(),
            source,
        })?;
        for warning in opened.warnings() {
            tracing::warn!(channel = channel.name, "{warning}");
        }
        all.push(Box::new(opened));
    }
    Ok(all)
}

fn create_ring(channel: &ChannelPlan, epoch: &EpochState) -> Result<RingWriter, PublisherError> {
    let memory = SharedMapping::memfd(
        &format!("tickcast-{}", channel.name),
        channel.geometry.bytes(),
    );
    let memory = memory.map_err(|source| PublisherError::Memory {
        channel: channel.name.clone(),
        source,
    })?;
    let identity = RingIdentity {
        channel: channel.id,
        epoch: epoch.epoch(),
        config_hash: channel.config_hash,
        boot_id: boot_id(),
        fan_outs: channel.fan_outs.len() as u8,
        first_sequence: Sequence::FIRST,
        first_record: RecordNumber::FIRST,
    };
    let ring = RingWriter::create(Arc::new(memory), channel.geometry, identity);
    ring.map_err(|source| PublisherError::Ring {
        channel: channel.name.clone(),
        source,
    })
}

/// The host's boot id; zeros where it has none.
fn boot_id() -> [u8; 16] {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    u128::from_str_radix(&digits, 16).unwrap_or(0).to_be_bytes()
}
