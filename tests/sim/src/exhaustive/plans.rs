//! The small worlds that the search covers.

use tickcast_reliability::control::Start;
use tickcast_reliability::delivery::{Delivery, LossCause};
use tickcast_reliability::types::Nanos;
use tickcast_reliability::wire::Kind;

use super::{Faults, ForgedDatagram, Publish, ReceiverPlan, SmallPlan};

const ORDERED: ReceiverPlan = ReceiverPlan {
    delivery: Delivery::Ordered,
    start: Start::Live,
    late: false,
};

/// The deadline is before the first heartbeat after a loss.
const WITHIN: ReceiverPlan = ReceiverPlan {
    delivery: Delivery::OrderedWithin(Nanos::from_us(500)),
    ..ORDERED
};

const NONE: Faults = Faults {
    drops: 0,
    overtakes: 0,
    duplicates: 0,
    cuts: 0,
    restarts: 0,
    forgeries: 0,
    ticks: 0,
};

/// Maximum of `states_min` of a world in a sample. A larger one takes longer than all others, and gigabytes.
const SAMPLED_STATES_MAX: u64 = 2_000_000;

/// Returns all worlds, of which one in five, chosen by the seed, has wider bounds. The largest are left out.
#[must_use]
pub fn sample(seed: u64) -> Vec<SmallPlan> {
    let mut small = worlds(false).into_iter();
    let large = worlds(true).into_iter().zip(seed..);
    // The small world has the same index as the large one; the last large world has no small one.
    let of_each = large.map(|(large, turn)| {
        let is_large = turn.is_multiple_of(5) && large.states_min <= SAMPLED_STATES_MAX;
        (is_large, large, small.next())
    });
    let chosen = of_each.filter_map(|(is_large, large, small)| match is_large {
        true => Some(large),
        false => small,
    });
    chosen.collect()
}

/// Returns all worlds; `large` selects wider bounds, for manual runs.
#[must_use]
pub fn worlds(large: bool) -> Vec<SmallPlan> {
    use Publish::{Data, End, Opened};
    // Manual runs allow one more of a fault.
    let one = u8::from(large);
    let plan = SmallPlan {
        name: "loss",
        states_min: 15_000,
        receivers: vec![ORDERED; 2],
        epochs: vec![vec![Data(1), Data(2), Data(1), End]],
        faults: Faults {
            drops: 1 + one,
            overtakes: 1,
            ..NONE
        },
        forged: Vec::new(),
        window_slots: 16,
        heartbeats_max: 1,
        causes: Vec::new(),
        settle_ticks: 100,
    };
    let late = ReceiverPlan {
        late: true,
        ..ORDERED
    };
    let oldest = ReceiverPlan {
        start: Start::Oldest,
        ..late
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
        SmallPlan {
            // A heartbeat arrives after a later heartbeat and after newer data.
            name: "old heartbeats",
            states_min: if large { 5_000_000 } else { 1_000_000 },
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
        SmallPlan {
            name: "timers",
            states_min: 1_300,
            faults: Faults {
                drops: one,
                ticks: 1,
                ..NONE
            },
            ..plan.clone()
        },
        SmallPlan {
            // Both receivers send the same NACK and are repaired by multicast, which may be lost as
            // well.
            name: "common loss",
            states_min: 120,
            epochs: vec![vec![Data(1), End]],
            faults: Faults {
                drops: 3 + one,
                ..NONE
            },
            ..plan.clone()
        },
        SmallPlan {
            name: "duplicate",
            states_min: 12_000,
            faults: Faults {
                drops: one,
                duplicates: 1,
                overtakes: 1,
                ..NONE
            },
            ..plan.clone()
        },
        SmallPlan {
            name: "narrow window",
            states_min: 2_700,
            faults: Faults {
                drops: one,
                overtakes: 1,
                ..NONE
            },
            window_slots: 2,
            ..plan.clone()
        },
        SmallPlan {
            name: "restart",
            states_min: 8_500,
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
        SmallPlan {
            // Enough timers for datagrams of the old publisher to arrive after the WELCOME of the
            // new one.
            name: "old epoch",
            states_min: 14_000,
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
        SmallPlan {
            name: "restart, overtaking",
            states_min: 3_000,
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
        SmallPlan {
            name: "restart, duplicate",
            states_min: 2_800,
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
        SmallPlan {
            name: "late join, oldest",
            states_min: 9_000,
            receivers: vec![ORDERED, oldest],
            faults: Faults { drops: one, ..NONE },
            ..plan.clone()
        },
        SmallPlan {
            name: "late join, live",
            states_min: 2_800,
            receivers: vec![ORDERED, late],
            faults: Faults { drops: one, ..NONE },
            ..plan.clone()
        },
        SmallPlan {
            // A datagram that misses its deadline is lost, to the exact record.
            name: "deadline",
            states_min: 8_500,
            receivers: vec![WITHIN; 2],
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
        SmallPlan {
            name: "connection cut",
            states_min: 5_000,
            faults: Faults {
                drops: one,
                cuts: 1,
                ticks: 1,
                ..NONE
            },
            ..plan.clone()
        },
    ];
    worlds.extend(impostors(&plan, one));
    if large {
        worlds.push(SmallPlan {
            name: "all at once",
            states_min: 20_000_000,
            epochs: twice,
            faults: Faults { ticks: 1, ..all },
            causes: vec![LossCause::Epoch],
            ..plan
        });
    }
    worlds
}

/// Returns the worlds with an impostor, like `plan`; `one` more of a fault is allowed.
fn impostors(plan: &SmallPlan, one: u8) -> [SmallPlan; 5] {
    use Publish::{Data, End};
    let forged = |kinds: &[(Kind, i64)]| {
        let all = kinds.iter();
        all.map(|&(kind, ahead)| ForgedDatagram { kind, ahead })
            .collect()
    };
    let plan = SmallPlan {
        receivers: vec![ORDERED],
        epochs: vec![vec![Data(1), Data(2), End]],
        causes: vec![LossCause::Fenced],
        ..plan.clone()
    };
    let ahead = forged(&[(Kind::Data, 1), (Kind::Data, 2)]);
    [
        SmallPlan {
            // One forged datagram of any kind, behind, in place of the next one, or ahead.
            name: "impostor",
            states_min: 180_000,
            forged: forged(&[
                (Kind::Data, 0),
                (Kind::Data, 1),
                (Kind::Data, 3),
                (Kind::Event, 1),
                (Kind::End, 1),
                (Kind::End, 2),
                (Kind::Heartbeat, 2),
            ]),
            faults: Faults {
                drops: one,
                forgeries: 1,
                ticks: 1,
                ..NONE
            },
            ..plan.clone()
        },
        SmallPlan {
            // Forged datagrams follow each other, or alternate with genuine ones.
            name: "impostor ahead",
            states_min: 48_000,
            forged: ahead.clone(),
            faults: Faults {
                drops: 1,
                forgeries: 2,
                ticks: one,
                ..NONE
            },
            ..plan.clone()
        },
        SmallPlan {
            name: "impostor, arrival",
            states_min: 140_000,
            receivers: vec![ReceiverPlan {
                delivery: Delivery::Arrival,
                ..ORDERED
            }],
            forged: ahead.clone(),
            faults: Faults {
                overtakes: 1,
                forgeries: 2,
                ticks: one,
                ..NONE
            },
            ..plan.clone()
        },
        SmallPlan {
            name: "impostor, cut",
            states_min: 46_000,
            forged: ahead,
            faults: Faults {
                cuts: 1,
                forgeries: 1 + one,
                ticks: 1,
                ..NONE
            },
            ..plan.clone()
        },
        SmallPlan {
            // Multicast claims what follows, and the time of gaps is over before a STATUS comes.
            name: "impostor, deadline",
            states_min: 60_000,
            receivers: vec![WITHIN],
            forged: forged(&[(Kind::Data, 2), (Kind::Heartbeat, 1), (Kind::Heartbeat, 2)]),
            faults: Faults {
                drops: one,
                forgeries: 1,
                ticks: 1,
                ..NONE
            },
            causes: vec![LossCause::Fenced, LossCause::Deadline],
            ..plan
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_days_search_every_world_with_wide_bounds() {
        let is_large = |plan: &SmallPlan| worlds(true).iter().any(|large| large == plan);
        let names = |seed| {
            let chosen = sample(seed).into_iter().filter(|plan| is_large(plan));
            chosen.map(|plan| plan.name).collect::<Vec<_>>()
        };
        let mut large: Vec<_> = (7..12).flat_map(names).collect();
        large.sort_unstable();
        let mut all = worlds(true);
        all.retain(|plan| plan.states_min <= SAMPLED_STATES_MAX);
        let mut all: Vec<_> = all.iter().map(|plan| plan.name).collect();
        all.sort_unstable();
        assert_eq!(large, all);
        assert!(sample(7).len() >= worlds(false).len());
    }
}
