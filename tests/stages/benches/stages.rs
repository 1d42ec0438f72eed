//! How long each stage takes, by criterion: `make microbench`, or with some names
//! `make microbench STAGES=window`. The stages are those that `make counts` counts.
//!
//! What comes before a run of a stage is not timed. Times are of an operation, as `counts` has it.

use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use tickcast_stages::{STAGES, measured};

fn stages(criterion: &mut Criterion) {
    for stage in STAGES {
        let mut work = None;
        let id = format!("{} (per {})", stage.name, stage.per);
        criterion.bench_function(&id, |bencher| {
            // Made by the first that is wanted: not every one is always wanted.
            let work = work.get_or_insert_with(|| (stage.open)());
            let work = match work {
                Ok(work) => work,
                Err(lacking) => {
                    eprintln!("SKIPPED: {}: {lacking}", stage.name);
                    return bencher.iter(|| ());
                }
            };
            bencher.iter_custom(|operations| {
                let (mut took, mut done) = (Duration::ZERO, 0);
                while done < operations {
                    work.prepare();
                    let begun = Instant::now();
                    done += measured(work.as_mut());
                    took += begun.elapsed();
                }
                // Runs are whole: more may have been done than was asked for.
                took.mul_f64(operations as f64 / done as f64)
            });
        });
    }
}

criterion_group!(benches, stages);
criterion_main!(benches);
