//! Every interleaving of a small world: one publisher, two receivers, three or four datagrams, on
//! the shipped cores. Within stated bounds of network faults, no event is untrue, and the end is
//! reachable from every state.
//!
//! A [`SmallPlan`] defines the datagrams to publish and the maximum number of each fault. [`world`]
//! holds the states of the cores and everything in flight between them. [`search`] tries every
//! [`world::Step`] in every state, depth first. Each core runs once for each of its states and
//! inputs, and the result is cached ([`cores`]). Most steps of the search are therefore table
//! lookups. Two states of a core with equal [`fingerprint`]s are one. Two states of a world are one
//! when their cores and everything in flight are equal.
//!
//! **Steps**:
//! - A datagram is published.
//! - The publisher restarts with a new epoch.
//! - A receiver joins.
//! - A datagram arrives, is dropped, or arrives while a copy of it stays in flight. A copy goes
//!   behind all datagrams already sent.
//! - The next message of a connection arrives, in either direction.
//! - A connection breaks.
//! - An impostor multicasts a datagram whose CRC is right.
//! - Time passes until the next timer of any core.
//!
//! Any datagram in flight may be the next one, or none. The order is free, and any number of timers
//! (within the bound) may fire before it.
//!
//! **Checked** after every step:
//! - Each record is delivered once, in order and as it was published.
//! - Each loss is declared at its place, with its exact size and a cause that this world allows.
//! - All relations between counters hold.
//! - No core stays busy without end.
//!
//! With an impostor, each record is delivered as it was published, or is reported as lost, fenced or
//! rolled back, and never both. A forged one may stand only where no genuine copy came and no STATUS
//! proved an impostor.
//!
//! From every state, faults are also stopped. Everything in flight then arrives in order, and the
//! rest is published. Within [`SmallPlan::settle_ticks`] timers all receivers must reach the end without
//! open gaps.
//!
//! **Part of a state** is also the knowledge of the checks: all items that each application
//! received so far, and the counters of gaps that are compared with them.
//!
//! **Abstracted**:
//! - Only the distance of a time to now counts, because cores know no other time.
//! - UTC stands still, because it only measures, as does the publisher's clock in STATUS.
//! - A PROGRESS in flight or without response carries its number instead of its clock, which returns
//!   with its STATUS.
//! - Fields without influence, which [`fingerprint`] lists with the reasons, are left out.
//! - A younger heartbeat replaces an older one in flight, when [`SmallPlan::heartbeats_max`] are in
//!   flight: heartbeats may be lost without counting as a drop.
//! - Random waits are those of one seed, and their number is part of the state.
//! - Connecting takes no time, both sides are notified at once that a connection closed, and a
//!   control message arrives whole.

pub mod core;
pub mod cores;
pub mod counter_example;
mod driver;
pub mod ends;
pub mod fingerprint;
mod plans;
#[cfg(feature = "planted-bugs")]
pub mod planted;
pub mod publisher;
pub mod receiver;
pub mod search;
pub mod transcript;
pub mod world;

pub use plans::{sample, worlds};

use tickcast_reliability::control::Start;
use tickcast_reliability::delivery::{Delivery, LossCause};
use tickcast_reliability::types::Nanos;
use tickcast_reliability::wire::Kind;

/// Start of the clock, late enough that no span is as long.
pub(crate) const BEGIN: Nanos = Nanos::from_secs(1_000);

/// Maximum number of each fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Datagrams dropped.
    pub drops: u8,
    /// Datagrams that overtake an earlier one.
    pub overtakes: u8,
    /// Datagrams of which a copy stays in flight.
    pub duplicates: u8,
    /// Connections cut.
    pub cuts: u8,
    /// Restarts of the publisher with a new epoch.
    pub restarts: u8,
    /// Datagrams that an impostor multicasts.
    pub forgeries: u8,
    /// Timers that fire while faults are still possible.
    pub ticks: u8,
}

/// The next datagram to publish.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Publish {
    /// A datagram with this many records.
    Data(u8),
    /// The event that begins an epoch.
    Opened,
    /// The end of the session.
    End,
}

/// A datagram that an impostor may multicast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForgedDatagram {
    /// Its kind.
    pub kind: Kind,
    /// Its distance from the newest sequence published.
    pub ahead: i64,
}

/// Settings of a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiverPlan {
    /// Delivery mode.
    pub delivery: Delivery,
    /// Start of the stream.
    pub start: Start,
    /// Whether the receiver joins as a step of the search, instead of at the beginning.
    pub late: bool,
}

/// A small world and its bounds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SmallPlan {
    /// Name of the world.
    pub name: &'static str,
    /// Minimum number of states that a search must find. Fewer states indicate that the world
    /// covers less than it did.
    pub states_min: u64,
    /// Receivers of the world.
    pub receivers: Vec<ReceiverPlan>,
    /// Datagrams published in each epoch; the last list also applies to all further epochs.
    pub epochs: Vec<Vec<Publish>>,
    /// Maximum number of each fault.
    pub faults: Faults,
    /// Datagrams of which each forgery is one.
    pub forged: Vec<ForgedDatagram>,
    /// Slots of the receivers' windows.
    pub window_slots: u32,
    /// Maximum number of heartbeats of one epoch in flight to a receiver; a further one replaces
    /// the oldest.
    pub heartbeats_max: usize,
    /// Permitted causes of loss: a loss of any other cause would be unnecessary.
    pub causes: Vec<LossCause>,
    /// Maximum number of timers, once faults have stopped, until everything has reached its end.
    pub settle_ticks: u32,
}

impl SmallPlan {
    /// Returns the datagrams to publish in this epoch; the first epoch is 1.
    #[must_use]
    pub fn epoch(&self, epoch: u64) -> &[Publish] {
        let nth = usize::try_from(epoch.saturating_sub(1)).unwrap_or(usize::MAX);
        let list = self.epochs.get(nth).or(self.epochs.last());
        list.map_or(&[], Vec::as_slice)
    }
}
