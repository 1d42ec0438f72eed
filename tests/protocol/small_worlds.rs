//! The search of small worlds memoizes cores without changing them. `make small-worlds` runs the search
//! itself.

use tickcast_sim::exhaustive::cores::Cores;
use tickcast_sim::exhaustive::ends::Ends;
use tickcast_sim::exhaustive::world::SmallWorld;
use tickcast_sim::exhaustive::worlds;

/// The search runs a core once for each of its states and inputs, and memoizes outputs and next state. On
/// any path these must equal those of a core that runs for every input.
#[test]
fn memoized_core_matches_running_core() {
    let mut random = 1_u64;
    for mut plan in worlds(true) {
        plan.faults.ticks += 2;
        let mut remembering = Cores::new(&plan);
        for _ in 0..30 {
            let mut running = Cores::forgetful(&plan);
            let mut reported = SmallWorld::new(&mut remembering).unwrap();
            let mut due = SmallWorld::new(&mut running).unwrap();
            reported.keep_diary();
            due.keep_diary();
            loop {
                let steps = due.steps(&running);
                assert_eq!(reported.steps(&remembering), steps, "{}", plan.name);
                if steps.is_empty() {
                    break;
                }
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                let step = steps[(random >> 33) as usize % steps.len()];
                assert!(reported.apply(&mut remembering, step).unwrap());
                assert!(due.apply(&mut running, step).unwrap());
                assert_eq!(reported.read_diary(), due.read_diary(), "{}", plan.name);
                let of_all = due.core_fingerprints(&running);
                assert_eq!(
                    reported.core_fingerprints(&remembering),
                    of_all,
                    "{}",
                    plan.name
                );
                assert_eq!(reported.unfinished(&remembering), due.unfinished(&running));
            }
            let ticks = Ends::default().settle(&mut running, due).unwrap();
            assert_eq!(
                Ends::default().settle(&mut remembering, reported),
                Ok(ticks)
            );
        }
    }
}
