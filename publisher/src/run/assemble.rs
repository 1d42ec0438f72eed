//! Builds channels from rings: their fan-outs, READ shares, and the shared counters. A starting
//! publisher and a promoted standby use the same code.

use std::io::Error;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;

use tickcast_reliability::control::RepairOffer;
use tickcast_reliability::publish::PublisherConfig;
use tickcast_reliability::ring::{RingMemory, RingWriter};
use tickcast_reliability::types::{ChannelId, Now};
use tickcast_reliability::wire::authentication::{ChannelKeys, Key};
use tickcast_transport::FanOut;
use tickcast_transport::control::{BacklogHint, ControlServer, ShareId};
use tickcast_transport::host::mapping::SharedMapping;

use crate::config::Config;
use crate::error::{ConfigError, PublisherError};
use crate::plan::fan_out::Use;
use crate::plan::{ChannelPlan, LinePlace};
use crate::publish::channel::ChannelDriver;
use crate::repair::{RepairService, server_config};
use crate::repair::{audit, random_secret};
use crate::state::journal;
use crate::state::thread::{StopOnFailure, Thread, spawn};
use crate::state::{ChannelShared, Shared, Withheld};

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
    offers: Vec<RepairOffer>,
    /// The rings that may be READ, and the accesses that are not offered.
    shares: Vec<(ChannelId, ShareId)>,
    withheld: Vec<Withheld>,
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
        let mut withheld = Vec::new();
        let mut offers = listen_over_verbs(config, &mut server, &mut withheld)?;
        let (mut channels, mut drivers, mut multicast) = (Vec::new(), Vec::new(), Vec::new());
        let (mut shares, mut keys) = (Vec::new(), Vec::new());
        // Drawn anew at each start: subscribers get the keys that follow from it with their WELCOME.
        let secret = Key::new(random_secret()?);
        for (channel, mut ring) in rings {
            if let Some(datagrams) = channel.datagrams_per_key {
                ring.authenticate(secret.clone(), datagrams);
                keys.extend(ring.keys().map(|of| (channel.id, of.clone())));
            }
            share(
                &mut server,
                &mut offers,
                &mut shares,
                &mut withheld,
                &channel,
                ring.memory(),
            );
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
        for offer in &offers {
            if let RepairOffer::Verbs { address, read, .. } = offer {
                tracing::info!(%address, read, "repair connections are accepted over verbs");
            }
        }
        Ok(Self {
            shared: channels,
            drivers,
            serving: Serving {
                server,
                offers,
                shares,
                withheld,
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
        (counters.read_offered).set(self.offers.iter().any(reads).into());
        let has_cursors = self.server.has_cursors();
        (counters.cursors_offered).set((has_cursors && !self.shares.is_empty()).into());
        // Set once: a session has one service.
        let _ = shared.withheld.set(self.withheld);
        let denied = config.repair_verbs.as_ref();
        let denied = denied.and_then(|verbs| verbs.denied.clone());
        let service = RepairService::new(config, self.server, self.multicast, shared.clone())?
            .offering(self.offers, self.shares)
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
    let (mut shares, mut withheld) = (Vec::new(), Vec::new());
    let mut offers = listen_over_verbs(config, &mut server, &mut withheld)?;
    for channel in channels {
        let memory = SharedMapping::memfd("rehearsed", channel.geometry.bytes());
        let memory = memory.map_err(|error| system("allocate a ring", Error::other(error)))?;
        share(
            &mut server,
            &mut offers,
            &mut shares,
            &mut withheld,
            channel,
            Arc::new(memory),
        );
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

/// Listens for NACK connections over verbs if configured. Returns the offer for new joiners.
fn listen_over_verbs(
    config: &Config,
    server: &mut ControlServer,
    withheld: &mut Vec<Withheld>,
) -> Result<Vec<RepairOffer>, PublisherError> {
    let Some(verbs) = &config.repair_verbs else {
        return Ok(Vec::new());
    };
    let interface = verbs.interface.as_ref().unwrap_or(&config.interface);
    let resolved = interface.resolve().map_err(|error| {
        PublisherError::Config(ConfigError::value(
            "repair_verbs.interface",
            interface,
            error,
        ))
    })?;
    let address = SocketAddrV4::new(resolved.address, verbs.port);
    let listening = server.listen_over_verbs(address);
    let address = listening.map_err(|error| PublisherError::Listen {
        what: "repair_verbs",
        address: address.into(),
        reason: error.to_string(),
    })?;
    if verbs.read && verbs.cursors > 0 {
        share_cursors(server, verbs.cursors, withheld);
    }
    // Any named standby may request WRITEs, so offer them only if the config names one.
    let may_be_mirrored = !config.hand_over_to.is_empty();
    Ok(vec![RepairOffer::Verbs {
        address,
        read: verbs.read,
        mirror: verbs.read && may_be_mirrored,
    }])
}

/// Registers cursors, so that subscribers can report progress without a message. If that fails
/// there are none, which is logged.
fn share_cursors(server: &mut ControlServer, cursors: u16, withheld: &mut Vec<Withheld>) {
    if let Err(error) = server.share_cursors(cursors.into()) {
        refused("cursor_refused", None, &error);
        tracing::warn!(
            cursors,
            "subscribers have no cursors, and report progress by messages: {error}"
        );
        withheld.push(Withheld {
            memory: "cursor",
            channel: None,
            why: error.to_string(),
        });
    }
}

/// Returns whether a connection may READ.
const fn reads(offer: &RepairOffer) -> bool {
    matches!(offer, RepairOffer::Verbs { read: true, .. })
}

/// Audits that a device refused access for every peer.
fn refused(what: &'static str, channel: Option<ChannelId>, error: &Error) {
    let why = error.to_string();
    audit::write_entry(
        what,
        audit::Of {
            channel,
            why: Some(&why),
            ..audit::Of::default()
        },
    );
}

/// Registers the ring of a channel, so that subscribers can READ it. If that fails, or the device does
/// not pass its probe, READ is not offered, which is logged; NACKs are still answered.
fn share(
    server: &mut ControlServer,
    offers: &mut [RepairOffer],
    shares: &mut Vec<(ChannelId, ShareId)>,
    withheld: &mut Vec<Withheld>,
    channel: &ChannelPlan,
    memory: Arc<dyn RingMemory>,
) {
    for offer in offers {
        let RepairOffer::Verbs { read, mirror, .. } = offer else {
            continue;
        };
        if !*read {
            continue;
        }
        match server.share(memory.clone()) {
            Ok(share) => shares.push((channel.id, share)),
            Err(error) => {
                (*read, *mirror) = (false, false);
                refused("ring_refused", Some(channel.id), &error);
                let name = &channel.name;
                tracing::warn!(
                    channel = name,
                    "no ring is offered for READ, and subscribers repair by NACK: {error}"
                );
                withheld.push(Withheld {
                    memory: "ring",
                    channel: Some(channel.id),
                    why: error.to_string(),
                });
            }
        }
    }
}
