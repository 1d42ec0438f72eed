//! The service: a publisher that is fed by the inputs of its config, and ends when they have or
//! when it is told to.

use std::net::{SocketAddr, SocketAddrV4};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tickcast_reliability::types::SourceId;

use crate::admin::summary::{EndError, Summary};
use crate::error::PublisherError;
use crate::plan::Plan;
use crate::run::standby::Standby;
use crate::run::{Opened, listen_addresses};
use crate::state::Shared;

/// A service that has everything it needs, and has not begun.
pub struct Service(Kind);

enum Kind {
    Publisher(Box<Opened>),
    Standby(Box<Standby>),
}

impl Service {
    /// Opens sockets, rings, inputs and the next epoch. Nothing is sent yet, but subscribers can
    /// connect from here on. Setting `stop` ends the session. A standby opens no epoch, and nobody
    /// can connect to it before it is promoted.
    ///
    /// # Errors
    /// [`PublisherError`] says what can't be had, and what to do.
    pub fn open(plan: Plan, stop: Arc<AtomicBool>) -> Result<Self, PublisherError> {
        Ok(Self(match plan.config.standby.clone() {
            None => Kind::Publisher(Box::new(Opened::open(plan, stop)?)),
            Some(of) => Kind::Standby(Box::new(Standby::open(plan, of, stop)?)),
        }))
    }

    /// Where subscribers connect.
    #[must_use]
    pub const fn control_address(&self) -> SocketAddr {
        match &self.0 {
            Kind::Publisher(opened) => opened.control_address(),
            Kind::Standby(standby) => standby.control_address(),
        }
    }

    /// Where metrics are served.
    #[must_use]
    pub fn admin_address(&self) -> Option<SocketAddr> {
        match &self.0 {
            Kind::Publisher(opened) => opened.admin_address(),
            Kind::Standby(standby) => Some(standby.admin_address()),
        }
    }

    /// Where the live inputs listen.
    #[must_use]
    pub fn listen_addresses(&self) -> Vec<(SourceId, SocketAddrV4)> {
        match &self.0 {
            Kind::Publisher(opened) => opened.listen_addresses(),
            Kind::Standby(standby) => listen_addresses(&standby.inputs),
        }
    }

    /// What its threads share: counters, subscribers, and the way to stop it.
    #[must_use]
    pub const fn shared(&self) -> &Arc<Shared> {
        match &self.0 {
            Kind::Publisher(opened) => opened.shared(),
            Kind::Standby(standby) => standby.shared(),
        }
    }

    /// Publishes until the inputs have ended (where the config says so) or it is told to stop,
    /// ends the session, and waits for subscribers to reach its end. A standby does so once it was
    /// promoted.
    ///
    /// # Errors
    /// [`EndError`]: what made it end early. All its threads are gone then.
    pub fn run(self) -> Result<Summary, EndError> {
        match self.0 {
            Kind::Publisher(opened) => opened.start(None)?.join(),
            Kind::Standby(standby) => standby.run(),
        }
    }
}
