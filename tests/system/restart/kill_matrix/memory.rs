//! A cell in virtual time: the shipped cores, checked after every step as in every simulation, over
//! connections and multicast in memory.

use tickcast_sim::faults::kill::KillVictim;
use tickcast_sim::faults::kill::Moment;
use tickcast_sim::world::kills::{self, KILLED};

/// Seeds of a cell: rings, rates, delays, second channels, lines and rungs of the ladder differ.
const SEEDS: u64 = 20;

pub(crate) fn cell(who: KillVictim, moment: Moment) {
    let mut reached = 0;
    for seed in 0..SEEDS {
        let outcome = kills::run(seed, who, moment);
        let wrong = outcome.violation.as_deref().unwrap_or_default();
        let recent = outcome.recent.join("\n");
        assert!(
            outcome.violation.is_none(),
            "seed {seed}: {wrong}\n{recent}"
        );
        let times = |what| outcome.faults.get(what).copied().unwrap_or(0);
        // Some runs never reach that moment: they had no gap then, or repaired it on another path.
        if times(KILLED) == 0 {
            continue;
        }
        reached += 1;
        let tally = &outcome.tally;
        assert!(
            tally.records > 500,
            "seed {seed}: {} records",
            tally.records
        );
        if who.publisher() && !moment.goes_on() {
            assert_eq!(times("restart"), 1, "seed {seed}");
            continue;
        }
        let lost = (&tally.unrecoverable, tally.losses_of_unknown_size);
        assert!(lost.0.is_empty() && lost.1 == 0, "seed {seed}: {lost:?}");
        let goes_on = times("goes_on_in_its_epoch");
        assert_eq!(goes_on, u64::from(who.publisher()), "seed {seed}");
    }
    assert!(
        reached >= SEEDS / 2,
        "{reached} of {SEEDS} came to that moment"
    );
}
