//! Builds channels from rings: their fan-outs, READ shares, and the shared counters. A starting
//! publisher and a promoted standby use the same code.

use std::io::Error;
use std::net::Ipv4Addr;
use std::sync::Arc;

use tickcast_reliability::publish::PublisherConfig;
use tickcast_reliability::ring::{RingMemory, RingWriter};
use tickcast_reliability::types::{ChannelId, Now};
use tickcast_reliability::wire::authentication::{ChannelKeys, Key};
use tickcast_transport::FanOut;
use tickcast_transport::control::{BacklogHint, ControlServer};
use tickcast_transport::host::mapping::SharedMapping;

use crate::config::Config;
use crate::error::PublisherError;
use crate::plan::fan_out::Use;
use crate::plan::{ChannelPlan, LinePlace};
use crate::publish::channel::ChannelDriver;
use crate::repair::listeners::RepairListeners;
use crate::repair::random_secret;
use crate::repair::{RepairService, server_config};
use crate::state::journal;
use crate::state::thread::{StopOnFailure, Thread, spawn};
use crate::state::{ChannelShared, Shared};

pub(crate) type FanOuts = Vec<Box<dyn FanOut>>;

/// Channels that are ready to publish, and the parts that serve their subscribers.
pub(crate) struct Channels {
    /// State shared by all threads.
    pub(crate) shared: Vec<Arc<ChannelShared>>,
    /// The channels' drivers.
    pub(crate) drivers: Vec<ChannelDriver>,
    serving: Serving,
}

/// The parts of the repair service.
pub(crate) struct Serving {
    server: ControlServer,
    listeners: RepairListeners,
    multicast: Vec<FanOuts>,
    /// The keys of the authenticated channels.
    keys: Vec<(ChannelId, ChannelKeys)>,
}

impl Channels {
    /// Opens the fan-outs of these rings, which continue at their current position.
    ///
    /// # Errors
    /// Returns [`PublisherError`] with the missing resource and the remedy.
    pub(crate) fn open(
        config: &Config,
        rings: Vec<(ChannelPlan, RingWriter)>,
        mut server: ControlServer,
        now: Now,
    ) -> Result<Self, PublisherError> {
        let mut listeners = RepairListeners::listen(config, &mut server)?;
        let (mut channels, mut drivers, mut multicast) = (Vec::new(), Vec::new(), Vec::new());
        let (mut memories, mut keys) = (Vec::new(), Vec::new());
        // Drawn anew at each start: subscribers get the keys that follow from it with their WELCOME.
        let secret = Key::new(random_secret()?);
        for (channel, mut ring) in rings {
            if let Some(datagrams) = channel.datagrams_per_key {
                ring.authenticate(secret.clone(), datagrams);
                keys.extend(ring.keys().map(|of| (channel.id, of.clone())));
            }
            memories.push(ring.memory());
            multicast.push(open_fan_outs(&channel, Use::Copies(Some(&ring)))?);
            let lines = open_lines(&channel, &ring)?;
            let publisher = PublisherConfig {
                heartbeat: config.heartbeat,
                fan_out_margin_slots: channel.fan_out_margin_slots,
            };
            let journal = journal::of_channel(config, channel.id);
            let shared = Arc::new(ChannelShared::new(channel, ring.reader()));
            channels.push(shared.clone());
            let driver =
                ChannelDriver::new(publisher, ring, lines, config.digest, shared, now.monotonic);
            drivers.push(driver.with_journal(journal));
        }
        // Lines pin the rings first: without the memory for READ, repair still has NACKs.
        for (channel, memory) in channels.iter().zip(&memories) {
            listeners.share(&mut server, &channel.plan, memory);
        }
        Ok(Self {
            shared: channels,
            drivers,
            serving: Serving {
                server,
                listeners,
                multicast,
                keys,
            },
        })
    }

    /// Splits the parts of the two threads.
    pub(crate) fn split(self) -> (Vec<ChannelDriver>, Serving) {
        (self.drivers, self.serving)
    }
}

impl Serving {
    /// Returns the hint that subscribers wait to be served, if repair has no core of its own.
    ///
    /// # Errors
    /// Returns [`PublisherError::System`] when the process is out of descriptors.
    pub(crate) fn backlog_hint(
        &mut self,
        config: &Config,
    ) -> Result<Option<BacklogHint>, PublisherError> {
        if config.threads.repair_core.is_some() {
            return Ok(None);
        }
        let backlog_hint = self.server.backlog_hint();
        let backlog_hint = backlog_hint.map_err(|source| PublisherError::System {
            what: "poll the control connections",
            source,
        });
        backlog_hint.map(Some)
    }

    /// Returns the repair service.
    ///
    /// # Errors
    /// Returns the errors of [`RepairService::new`].
    pub(crate) fn service(
        self,
        config: &Config,
        shared: &Arc<Shared>,
    ) -> Result<RepairService, PublisherError> {
        let counters = &shared.service;
        (counters.read_offered).set(self.listeners.reads().into());
        (counters.cursors_offered).set(self.listeners.has_cursors().into());
        let (offers, shares, withheld) = self.listeners.finish();
        // Set once: a session has one service.
        let _ = shared.withheld.set(withheld);
        let denied = config.repair_verbs.as_ref();
        let denied = denied.and_then(|verbs| verbs.denied.clone());
        let service = RepairService::new(config, self.server, self.multicast, shared.clone())?
            .offering(offers, shares)
            .banning(config.banned.clone())
            .denying(denied)
            .authenticating(self.keys)
            .mirrored_by(config.hand_over_to.clone())
            .with_journal(journal::of_repair(config));
        Ok(service)
    }

    /// Starts the repair service on its own thread; a failure ends the session.
    ///
    /// # Errors
    /// Returns [`PublisherError::System`] if the thread can't be started.
    pub(crate) fn start(
        self,
        config: &Config,
        shared: &Arc<Shared>,
    ) -> Result<Thread<()>, PublisherError> {
        let service = self.service(config, shared)?;
        let guard = StopOnFailure::new(shared.clone());
        spawn("repair", config.threads.repair_core, move || {
            let served = service.run();
            guard.of(served)
        })
    }
}

/// Opens the network and device resources of the channels, and releases them. A standby thus learns
/// from the start whether they are available.
///
/// # Errors
/// Returns the errors of [`Channels::open`].
pub(crate) fn rehearse(config: &Config, channels: &[ChannelPlan]) -> Result<(), PublisherError> {
    for channel in channels {
        open_fan_outs(channel, Use::Copies(None))?;
    }
    if config.repair_verbs.is_none() {
        return Ok(());
    }
    let system = |what, source| PublisherError::System { what, source };
    let server = ControlServer::bind((Ipv4Addr::LOCALHOST, 0).into(), server_config(config));
    let mut server = server.map_err(|error| system("listen on loopback", error))?;
    let mut listeners = RepairListeners::listen(config, &mut server)?;
    for channel in channels {
        let memory = SharedMapping::memfd("rehearsed", channel.geometry.bytes());
        let memory = memory.map_err(|error| system("allocate a ring", Error::other(error)))?;
        let memory: Arc<dyn RingMemory> = Arc::new(memory);
        listeners.share(&mut server, channel, &memory);
    }
    Ok(())
}

pub(crate) fn open_fan_outs(channel: &ChannelPlan, to: Use<'_>) -> Result<FanOuts, PublisherError> {
    let all = channel.fan_outs.iter();
    all.map(|fan_out| fan_out.open(&channel.name, to)).collect()
}

/// Opens each line of a channel as a fan-out of its own, in the order of [`ChannelPlan::lines`]. So each
/// has its own position in the ring, and none waits for another.
fn open_lines(channel: &ChannelPlan, ring: &RingWriter) -> Result<FanOuts, PublisherError> {
    let lines = channel.lines().into_iter();
    let open = |at: LinePlace| {
        let alone = channel.fan_outs[at.fan_out].alone(at.line);
        alone.open(&channel.name, Use::Ring(ring))
    };
    lines.map(open).collect()
}
