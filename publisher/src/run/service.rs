//! The service: a publisher fed by the inputs of its config. It ends when the inputs end or when a
//! stop is requested.

use std::net::{SocketAddr, SocketAddrV4};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tickcast_reliability::types::SourceId;

use crate::admin::summary::{EndError, PublisherSummary};
use crate::error::PublisherError;
use crate::plan::Plan;
use crate::run::endpoints::EndpointAddresses;
use crate::run::reload::ReloadHooks;
use crate::run::standby::Standby;
use crate::run::{Opened, listen_addresses};
use crate::state::Shared;

/// A service with all its resources, not started yet.
pub struct Service(Kind);

enum Kind {
    Publisher(Box<Opened>),
    Standby(Box<Standby>),
}

impl Service {
    /// Opens sockets, rings, inputs and the next epoch. Nothing is sent yet, but subscribers can
    /// connect from here on. Setting `stop` ends the session. A standby opens no epoch, and
    /// accepts no connections before it is promoted.
    ///
    /// # Errors
    /// Returns [`PublisherError`] with the missing resource and the remedy.
    pub fn open(plan: Plan, stop: Arc<AtomicBool>) -> Result<Self, PublisherError> {
        Ok(Self(match plan.config.standby.clone() {
            None => Kind::Publisher(Box::new(Opened::open(plan, stop)?)),
            Some(of) => Kind::Standby(Box::new(Standby::open(plan, of, stop)?)),
        }))
    }

    /// Reloads the config's file on request from here on. A standby reads its config at its start alone.
    #[must_use]
    pub fn reloading(self, hooks: ReloadHooks) -> Self {
        Self(match self.0 {
            Kind::Publisher(opened) => Kind::Publisher(Box::new(opened.reloading(hooks))),
            standby => standby,
        })
    }

    /// Returns the address for subscribers.
    #[must_use]
    pub const fn control_address(&self) -> SocketAddr {
        match &self.0 {
            Kind::Publisher(opened) => opened.control_address(),
            Kind::Standby(standby) => standby.control_address(),
        }
    }

    /// Returns the addresses of the admin port and the command endpoints.
    #[must_use]
    pub const fn endpoints(&self) -> &EndpointAddresses {
        match &self.0 {
            Kind::Publisher(opened) => opened.endpoints(),
            Kind::Standby(standby) => standby.endpoints(),
        }
    }

    /// Returns the addresses of the live inputs.
    #[must_use]
    pub fn listen_addresses(&self) -> Vec<(SourceId, SocketAddrV4)> {
        match &self.0 {
            Kind::Publisher(opened) => opened.listen_addresses(),
            Kind::Standby(standby) => listen_addresses(&standby.inputs),
        }
    }

    /// Returns the state that its threads share: counters, subscribers, and the stop flag.
    #[must_use]
    pub const fn shared(&self) -> &Arc<Shared> {
        match &self.0 {
            Kind::Publisher(opened) => opened.shared(),
            Kind::Standby(standby) => standby.shared(),
        }
    }

    /// Publishes until the inputs have ended (if configured) or a stop is requested. Then ends the
    /// session, and waits for subscribers to reach its end. A standby does so once it was promoted.
    ///
    /// # Errors
    /// Returns [`EndError`] with the cause of an early end. All its threads are gone then.
    pub fn run(self) -> Result<PublisherSummary, EndError> {
        match self.0 {
            Kind::Publisher(opened) => opened.start(None)?.join(),
            Kind::Standby(standby) => standby.run(),
        }
    }
}
