//! Every interleaving of a small world: one publisher, two receivers, three or four datagrams, on
//! the shipped cores. Whatever the network does within stated bounds, nobody is told anything
//! untrue, and from every state the end is reached.
//!
//! A [`Plan`] says what is published and which faults may happen how often; [`world`] has the
//! states of the cores and what is on its way between them; [`search`] tries every [`world::Step`]
//! in every state, depth first. A core runs once for each of its own states and inputs, and what
//! it does is known from there on ([`cores`]): most steps of the search are a look into a table.
//! Two states of a core with equal [`fingerprint`]s are one, and so are two states of a world
//! whose cores and ways are the same.
//!
//! **Steps**: something is published; the publisher restarts with a new epoch; a receiver joins; a
//! datagram arrives, is dropped, or arrives with a copy of it still on its way; the next message of
//! a connection arrives, in either direction; a connection breaks; time passes until the next
//! timer of any core. Any datagram on its way may be the next, or none: the order is free, and any
//! number of timers (within the bound) may go before it. A copy goes behind all that was sent.
//!
//! **Checked** after every step: each record once, in its place, as it was published; each loss
//! where it stands, exact, and of a cause that this world allows; all balances of counters; no
//! core is busy without end. In every state faults are also let stop: everything on its way
//! arrives, in order, the rest is published, and within [`Plan::settle_ticks`] timers all receivers
//! reach the end with nothing open.
//!
//! **Part of a state** is also what the checks know: all that each application was told so far, and the
//! counters of gaps that are held against it.
//!
//! **Abstracted.** A clock of which only the distance to now counts: cores know no other time. The
//! clock of dates stands still: it only measures, as does the publisher's in STATUS. The clock of a
//! PROGRESS is its number while it is on its way and owed: what counts is whether it is the last.
//! What decides nothing, which [`fingerprint`] lists with the reasons. A younger heartbeat takes the
//! place of an older one on its way, where [`Plan::heartbeats_max`] are: heartbeats get lost for free.
//! Random waits are those of one seed, and their number is part of the state. Connecting takes no
//! time, both sides learn at once that a connection is over, and a control message arrives whole.

pub mod cores;
pub mod counter_example;
mod driver;
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

/// When it begins: so late that no span is as long.
pub(crate) const BEGIN: Nanos = Nanos::from_secs(1_000);

/// How often each fault may happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Datagrams dropped.
    pub drops: u8,
    /// Datagrams that arrive before one that was sent earlier.
    pub overtakes: u8,
    /// Datagrams of which a copy stays on its way.
    pub duplicates: u8,
    /// Connections cut.
    pub cuts: u8,
    /// Publishers that come back with a new epoch.
    pub restarts: u8,
    /// Timers that fire while faults can still happen.
    pub ticks: u8,
}

/// What is published next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Publish {
    /// A datagram with this many records.
    Data(u8),
    /// The event that begins an epoch.
    Opened,
    /// The end of the session.
    End,
}

/// A receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Who {
    /// How it wants the stream.
    pub delivery: Delivery,
    /// Where it begins.
    pub start: Start,
    /// Whether it joins while the search goes on, and not before.
    pub late: bool,
}

/// A small world and its bounds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Its name.
    pub name: &'static str,
    /// States that a search finds at least. Fewer would say that the world does less than it did.
    pub states_min: u64,
    /// Its receivers.
    pub receivers: Vec<Who>,
    /// What is published in each epoch; the last stands for all further ones.
    pub epochs: Vec<Vec<Publish>>,
    /// What may go wrong.
    pub faults: Faults,
    /// Slots of the receivers' windows.
    pub window_slots: u32,
    /// Heartbeats of one epoch that can be on their way to a receiver; a further one takes the
    /// place of the oldest.
    pub heartbeats_max: usize,
    /// Causes of loss that may be told: all others would be a loss without need.
    pub causes: Vec<LossCause>,
    /// Timers within which everything is at its end once faults have stopped.
    pub settle_ticks: u32,
}

impl Plan {
    /// What is published in this epoch, of which the first is 1.
    #[must_use]
    pub fn epoch(&self, epoch: u64) -> &[Publish] {
        let nth = usize::try_from(epoch.saturating_sub(1)).unwrap_or(usize::MAX);
        let list = self.epochs.get(nth).or(self.epochs.last());
        list.map_or(&[], Vec::as_slice)
    }
}
