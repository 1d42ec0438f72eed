//! Repair over verbs as a publisher offers it to joiners: the addresses that accept connections, and the
//! memory that each lets them access.

use std::net::SocketAddrV4;
use std::sync::Arc;

use tickcast_reliability::control::RepairOffer;
use tickcast_reliability::ring::RingMemory;
use tickcast_reliability::types::ChannelId;
use tickcast_transport::control::{ControlServer, ShareId};
use tickcast_transport::host::interface::Interface;

use crate::config::{Config, RepairVerbsConfig};
use crate::error::{ConfigError, PublisherError};
use crate::plan::ChannelPlan;
use crate::repair::audit;
use crate::state::{RdmaAccess, Withheld};

/// An address that accepts connections.
struct Listening {
    interface: Interface,
    address: SocketAddrV4,
    /// Whether each ring can be READ, and whether there are cursors.
    reads: bool,
    has_cursors: bool,
}

/// The addresses that accept repair connections over verbs, and the rings that are shared there.
#[derive(Default)]
pub(crate) struct RepairListeners {
    listening: Vec<Listening>,
    /// Whether a standby may request WRITEs.
    may_be_mirrored: bool,
    /// The rings that at least one device lets peers READ.
    shares: Vec<(ChannelId, ShareId)>,
    withheld: Vec<Withheld>,
}

impl RepairListeners {
    /// Listens on each of the interfaces, if the config asks for it. Those where that fails are logged, and
    /// repair uses the others.
    ///
    /// # Errors
    /// Returns the first [`PublisherError`] if no interface can be used.
    pub(crate) fn listen(
        config: &Config,
        server: &mut ControlServer,
    ) -> Result<Self, PublisherError> {
        let Some(verbs) = &config.repair_verbs else {
            return Ok(Self::default());
        };
        let mut listeners = Self {
            // Any named standby may request WRITEs, so offer them only if the config names one.
            may_be_mirrored: !config.hand_over_to.is_empty(),
            ..Self::default()
        };
        let mut failed = None;
        for interface in config.repair_interfaces() {
            if let Err(error) = listeners.listen_on(&interface, verbs, server) {
                listeners.withhold(&interface, RdmaAccess::Connection, None, &error);
                failed.get_or_insert(error);
            }
        }
        match failed {
            Some(error) if listeners.listening.is_empty() => Err(error),
            _ => Ok(listeners),
        }
    }

    fn listen_on(
        &mut self,
        interface: &Interface,
        verbs: &RepairVerbsConfig,
        server: &mut ControlServer,
    ) -> Result<(), PublisherError> {
        let resolved = interface.resolve().map_err(|error| {
            PublisherError::Config(ConfigError::value(
                "repair_verbs.interfaces",
                interface,
                error,
            ))
        })?;
        let known = |it: &Listening| *it.address.ip() == resolved.address;
        if self.listening.iter().any(known) {
            return Ok(());
        }
        let address = SocketAddrV4::new(resolved.address, verbs.port);
        let listening = server.listen_over_verbs(address);
        let address = listening.map_err(|error| PublisherError::Listen {
            what: "repair_verbs",
            address: address.into(),
            reason: error.to_string(),
        })?;
        let mut has_cursors = verbs.read && verbs.cursors > 0;
        if has_cursors && let Err(error) = server.share_cursors(verbs.cursors.into(), address) {
            has_cursors = false;
            self.withhold(interface, RdmaAccess::Cursor, None, &error);
        }
        self.listening.push(Listening {
            interface: interface.clone(),
            address,
            reads: verbs.read,
            has_cursors,
        });
        Ok(())
    }

    /// Registers the ring of a channel with each device, so that subscribers can READ it. A device that
    /// refuses it, or fails its probe, offers no READ from then on, which is logged. NACKs are answered.
    pub(crate) fn share(
        &mut self,
        server: &mut ControlServer,
        channel: &ChannelPlan,
        memory: &Arc<dyn RingMemory>,
    ) {
        let ring = server.create_share();
        let (mut is_shared, mut failed) = (false, Vec::new());
        for at in self.listening.iter_mut().filter(|it| it.reads) {
            match server.share(ring, Arc::clone(memory), at.address) {
                Ok(()) => is_shared = true,
                Err(error) => {
                    at.reads = false;
                    failed.push((at.interface.clone(), error));
                }
            }
        }
        for (interface, error) in failed {
            self.withhold(&interface, RdmaAccess::Ring, Some(channel), &error);
        }
        if is_shared {
            self.shares.push((channel.id, ring));
        }
    }

    /// Records that an interface does not offer something, in the audit trail, the log and the status.
    fn withhold(
        &mut self,
        interface: &Interface,
        what: RdmaAccess,
        channel: Option<&ChannelPlan>,
        error: &dyn std::error::Error,
    ) {
        let (entry, name, effect) = match what {
            RdmaAccess::Connection => (
                "listener_refused",
                "connection",
                "repair uses the other interfaces and TCP",
            ),
            RdmaAccess::Cursor => (
                "cursor_refused",
                "cursor",
                "subscribers report progress by messages",
            ),
            RdmaAccess::Ring => ("ring_refused", "ring", "subscribers repair by NACK"),
        };
        let why = format!("{interface}: {error}");
        let id = channel.map(|channel| channel.id);
        audit::write_entry(
            entry,
            audit::Of {
                channel: id,
                why: Some(&why),
                ..audit::Of::default()
            },
        );
        let channel = channel.map(|channel| channel.name.as_str());
        tracing::warn!(channel, %interface, "no {name} is offered over verbs, and {effect}: {error}");
        self.withheld.push(Withheld {
            what,
            channel: id,
            interface: interface.to_string(),
            why: error.to_string(),
        });
    }

    /// Returns whether READ is offered at one address at least.
    pub(crate) fn reads(&self) -> bool {
        self.listening.iter().any(|it| it.reads)
    }

    /// Returns whether cursors are offered at one address at least.
    pub(crate) fn has_cursors(&self) -> bool {
        let mut all = self.listening.iter();
        !self.shares.is_empty() && all.any(|it| it.reads && it.has_cursors)
    }

    /// Logs the addresses. Returns the offers for joiners, the shared rings, and the accesses that are not
    /// offered.
    pub(crate) fn finish(self) -> (Vec<RepairOffer>, Vec<(ChannelId, ShareId)>, Vec<Withheld>) {
        let offer = |at: &Listening| {
            let (address, read) = (at.address, at.reads);
            tracing::info!(%address, read, "repair connections are accepted over verbs");
            RepairOffer::Verbs {
                address,
                read,
                mirror: read && self.may_be_mirrored,
            }
        };
        let offers = self.listening.iter().map(offer).collect();
        (offers, self.shares, self.withheld)
    }
}
