//! The small worlds that are searched.

use tickcast_reliability::control::Start;
use tickcast_reliability::delivery::{Delivery, LossCause};
use tickcast_reliability::types::Nanos;

use super::{Faults, Plan, Publish, Who};

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
        heartbeats_max: 1,
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
    // Before the first heartbeat after it.
    let within = Who {
        delivery: Delivery::OrderedWithin(Nanos::from_us(500)),
        ..ORDERED
    };
    let all = Faults {
        drops: 1,
        overtakes: 1,
        duplicates: 1,
        restarts: 1,
        ..NONE
    };
    let twice = vec![vec![Data(1), Data(2), End], vec![Opened, Data(1), End]];
    let mut worlds = vec![
        plan.clone(),
        Plan {
            // One that was sent before another, and before newer data, arrives after them.
            name: "old heartbeats",
            epochs: match large {
                true => plan.epochs.clone(),
                false => vec![vec![Data(1), Data(2), End]],
            },
            heartbeats_max: 2 + usize::from(one),
            faults: Faults {
                overtakes: 1,
                ticks: 2,
                ..NONE
            },
            ..plan.clone()
        },
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
            epochs: twice.clone(),
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
            // So long that what the old publisher sent comes after the WELCOME of the new one.
            name: "old epoch",
            receivers: vec![ORDERED],
            epochs: vec![vec![Data(1), End], vec![Opened, End]],
            faults: Faults {
                restarts: 1,
                ticks: 2 + one,
                ..NONE
            },
            causes: vec![LossCause::Epoch],
            ..plan.clone()
        },
        Plan {
            name: "restart, overtaking",
            epochs: twice.clone(),
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
            epochs: twice.clone(),
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
            // What does not come in time is lost, to the record.
            name: "deadline",
            receivers: vec![within; 2],
            epochs: vec![vec![Data(1), Data(2), End]],
            faults: Faults {
                drops: 1,
                overtakes: one,
                ticks: 1,
                ..NONE
            },
            causes: vec![LossCause::Deadline],
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
            ..plan.clone()
        },
    ];
    if large {
        worlds.push(Plan {
            name: "all at once",
            epochs: twice,
            faults: Faults { ticks: 1, ..all },
            causes: vec![LossCause::Epoch],
            ..plan
        });
    }
    worlds
}
