//! Every interleaving of a small world: one publisher, two receivers, three or four datagrams, on
//! the shipped cores. Whatever the network does within stated bounds, nobody is told anything
//! untrue, and from every state the end is reached.
//!
//! A [`Plan`] says what is published and which faults may happen how often; [`world`] has the
//! cores and what is on its way between them; [`search`] tries every [`world::Step`] in every
//! state, depth first, and re-executes the cores from the start where it goes back, so that
//! nothing of them need be copied. Two states with equal [`fingerprint`]s are one.
//!
//! **Steps**: something is published; the publisher restarts with a new epoch; a receiver joins; a
//! datagram arrives, is dropped, or arrives with a copy of it still on its way; the next message of
//! a connection arrives, in either direction; a connection breaks; time passes until the next
//! timer of any core. Any datagram on its way may be the next, or none: the order is free, and any
//! number of timers (within the bound) may go before it.
//!
//! **Checked** after every step: each record once, in its place, as it was published; each loss
//! where it stands, exact, and of a cause that this world allows; all balances of counters; no
//! core is busy without end. Where nothing is left but to let time pass, faults stop: everything on its
//! way arrives, and within [`Plan::settle_ticks`] timers all receivers reach the end with nothing
//! open. Whatever arrives or fires then is a step of the search as well, so this holds from every
//! state and not just from the last.
//!
//! **Abstracted.** A clock of which only the distance to now counts: cores know no other time.
//! Counters: nothing is decided by them, and each balance is kept by every step, hence on every
//! path. Credit of repair budgets: bursts are larger than all that is repaired here. When
//! a connection was heard from: its limits lie beyond the search. Stamps that only measure. A
//! younger heartbeat takes the place of an older one on its way: heartbeats get lost for free.
//! Random waits are those of one seed, and their number is part of the state. Connecting takes no
//! time, both sides learn at once that a connection is over, and a control message arrives whole.

mod driver;
pub mod fingerprint;
pub mod publisher;
pub mod receiver;
pub mod search;
pub mod world;

use tickcast_reliability::delivery::{Delivery, Start};
use tickcast_reliability::loss::LossCause;

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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Publish {
    /// A datagram with this many records.
    Data(u8),
    /// The event that begins an epoch.
    Opened,
    /// The end of the session.
    End,
}

/// A receiver.
#[derive(Clone, Copy, Debug)]
pub struct Who {
    /// How it wants the stream.
    pub delivery: Delivery,
    /// Where it begins.
    pub start: Start,
    /// Whether it joins while the search goes on, and not before.
    pub late: bool,
}

/// A small world and its bounds.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Its name.
    pub name: &'static str,
    /// Its receivers.
    pub receivers: Vec<Who>,
    /// What is published in each epoch; the last stands for all further ones.
    pub epochs: Vec<Vec<Publish>>,
    /// What may go wrong.
    pub faults: Faults,
    /// Slots of the receivers' windows.
    pub window_slots: u32,
    /// Causes of loss that may be told: all others would be a loss without need.
    pub causes: Vec<LossCause>,
    /// Timers within which everything is at its end once faults have stopped.
    pub settle_ticks: u32,
}

const ORDERED: Who = Who {
    delivery: Delivery::Ordered,
    start: Start::Live,
    late: false,
};

const NONE: Faults = Faults {
    drops: 0,
    overtakes: 0,
    duplicates: 0,
    cuts: 0,
    restarts: 0,
    ticks: 0,
};

/// All worlds; `large` has wider bounds, for a run by hand.
#[must_use]
pub fn worlds(large: bool) -> Vec<Plan> {
    use Publish::{Data, End, Opened};
    // One more of a fault in a run by hand.
    let one = u8::from(large);
    let plan = Plan {
        name: "loss",
        receivers: vec![ORDERED; 2],
        epochs: vec![vec![Data(1), Data(2), Data(1), End]],
        faults: Faults {
            drops: 1 + one,
            overtakes: 1,
            ..NONE
        },
        window_slots: 16,
        causes: Vec::new(),
        settle_ticks: 100,
    };
    let late = Who {
        late: true,
        ..ORDERED
    };
    let oldest = Who {
        start: Start::Oldest,
        ..late
    };
    vec![
        plan.clone(),
        Plan {
            name: "timers",
            faults: Faults {
                drops: one,
                ticks: 1,
                ..NONE
            },
            ..plan.clone()
        },
        Plan {
            // Both ask for the same, are answered by multicast, and that may be lost as well.
            name: "common loss",
            epochs: vec![vec![Data(1), End]],
            faults: Faults {
                drops: 3 + one,
                ..NONE
            },
            ..plan.clone()
        },
        Plan {
            name: "duplicate",
            faults: Faults {
                drops: one,
                duplicates: 1,
                overtakes: 1,
                ..NONE
            },
            ..plan.clone()
        },
        Plan {
            name: "narrow window",
            faults: Faults {
                drops: one,
                overtakes: 1,
                ..NONE
            },
            window_slots: 2,
            ..plan.clone()
        },
        Plan {
            name: "restart",
            epochs: vec![vec![Data(1), Data(2), End], vec![Opened, Data(1), End]],
            faults: Faults {
                drops: one,
                restarts: 1,
                ticks: 1,
                ..NONE
            },
            causes: vec![LossCause::Epoch],
            ..plan.clone()
        },
        Plan {
            name: "restart, overtaking",
            epochs: vec![vec![Data(1), Data(2), End], vec![Opened, Data(1), End]],
            faults: Faults {
                overtakes: 1,
                restarts: 1,
                ticks: one,
                ..NONE
            },
            causes: vec![LossCause::Epoch],
            ..plan.clone()
        },
        Plan {
            name: "restart, duplicate",
            epochs: vec![vec![Data(1), Data(2), End], vec![Opened, Data(1), End]],
            faults: Faults {
                duplicates: 1,
                restarts: 1,
                ticks: one,
                ..NONE
            },
            causes: vec![LossCause::Epoch],
            ..plan.clone()
        },
        Plan {
            name: "late join, oldest",
            receivers: vec![ORDERED, oldest],
            faults: Faults { drops: one, ..NONE },
            ..plan.clone()
        },
        Plan {
            name: "late join, live",
            receivers: vec![ORDERED, late],
            faults: Faults { drops: one, ..NONE },
            ..plan.clone()
        },
        Plan {
            name: "connection cut",
            faults: Faults {
                drops: one,
                cuts: 1,
                ticks: 1,
                ..NONE
            },
            ..plan
        },
    ]
}
