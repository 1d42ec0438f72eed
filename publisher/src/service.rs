//! The service: a publisher that is fed by the inputs of its config, and ends when they have or
//! when it is told to.

use std::net::{SocketAddr, SocketAddrV4};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tickcast_reliability::units::SourceId;

use crate::error::PublisherError;
use crate::plan::Plan;
use crate::session::Opened;
use crate::shared::Shared;
use crate::summary::Summary;

/// A service that has everything it needs, and has not begun.
pub struct Service(Opened);

impl Service {
    /// Opens sockets, rings, inputs and the next epoch. Nothing is sent yet, but subscribers can
    /// connect from here on. Setting `stop` ends the session.
    ///
    /// # Errors
    /// [`PublisherError`] says what can't be had, and what to do.
    pub fn open(plan: Plan, stop: Arc<AtomicBool>) -> Result<Self, PublisherError> {
        Opened::open(plan, stop).map(Self)
    }

    /// Where subscribers connect.
    #[must_use]
    pub const fn control_address(&self) -> SocketAddr {
        self.0.control_address()
    }

    /// Where metrics are served.
    #[must_use]
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.0.admin_address()
    }

    /// Where the live inputs listen.
    #[must_use]
    pub fn listen_addresses(&self) -> Vec<(SourceId, SocketAddrV4)> {
        self.0.listen_addresses()
    }

    /// What its threads share: counters, subscribers, and the way to stop it.
    #[must_use]
    pub const fn shared(&self) -> &Arc<Shared> {
        self.0.shared()
    }

    /// Publishes until the inputs have ended (where the config says so) or it is told to stop,
    /// ends the session, and waits for subscribers to reach its end.
    ///
    /// # Errors
    /// [`PublisherError`]: what made it end early. All its threads are gone then.
    pub fn run(self) -> Result<Summary, PublisherError> {
        self.0.start(None)?.join()
    }
}
