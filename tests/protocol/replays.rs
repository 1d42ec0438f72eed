//! A record of a core's inputs is enough to run the core again. The replay gives the same outputs in the
//! same order, to the byte, and ends in the same state.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tickcast_sim::journal::replay::{ReplayCounts, replay_seed};

/// Returns the number of runs. `make` and CI use the default; this variable requests more.
fn runs() -> u64 {
    let runs = std::env::var("TICKCAST_REPLAYS").ok();
    runs.and_then(|it| it.parse().ok()).unwrap_or(60)
}

#[test]
fn recorded_troubles_replay_to_same_state() {
    let (next, runs) = (AtomicU64::new(0), runs());
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let seen: Vec<ReplayCounts> = std::thread::scope(|scope| {
        let work = || {
            let seeds = || Some(next.fetch_add(1, Relaxed)).filter(|seed| *seed < runs);
            let replay = |seed| match replay_seed(seed) {
                Ok(seen) => seen,
                Err(what) => panic!("seed {seed}: {what}"),
            };
            std::iter::from_fn(seeds).map(replay).collect::<Vec<_>>()
        };
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let joined = workers.into_iter().flat_map(|w| w.join().unwrap());
        joined.collect()
    });
    let sum = |of: fn(&ReplayCounts) -> u64| seen.iter().map(of).sum::<u64>();
    let (replayed, overwritten) = (sum(|it| it.replayed), sum(|it| it.overwritten));
    let (inputs, words) = (sum(|it| it.inputs), sum(|it| it.words));
    let standbys = sum(|it| it.standbys);
    println!(
        "{runs} runs: {replayed} records of {inputs} inputs, {words} bytes of outputs the same; \
         {overwritten} without their beginning; {standbys} of standbys, to their mirror"
    );
    let (republished, middle) = (
        sum(|it| it.republished),
        sum(|it| it.overwritten_publishers),
    );
    let given = sum(|it| it.republished_inputs);
    println!(
        "{republished} runs of publishers' records, {middle} from their middle; {given} inputs"
    );
    assert!(sum(|it| it.served) > runs, "hardly anything was asked for");
    assert!(republished > runs && given > 100 * runs);
    assert!(middle > runs / 10, "only {middle} begin in the middle");
    let unsnapped = sum(|it| it.unsnapped);
    // Without these events the test would prove nothing.
    assert!(replayed > runs && inputs > 1_000 * runs && words > 10_000 * runs);
    assert!(unsnapped <= replayed / 20, "{unsnapped} begin nowhere");
    let little = overwritten <= runs / 60;
    assert!(!little, "only {overwritten} lost their beginning");
}
