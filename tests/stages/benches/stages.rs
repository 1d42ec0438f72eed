//! The time of each stage, by criterion: `make microbench`, or `make microbench STAGES=window` for stages
//! with this in their names. `make counts` counts the same stages.
//!
//! The preparation of a run is not timed. Times are per operation, as in `counts`.

use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use tickcast_stages::{STAGES, measured};

fn stages(criterion: &mut Criterion) {
    for stage in STAGES {
        let mut work = None;
        let id = format!("{} (per {})", stage.name, stage.per);
        criterion.bench_function(&id, |bencher| {
            // Created on first use, because a filter may skip this stage.
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
                // Runs are whole, so more operations may have been done than were asked for.
                took.mul_f64(operations as f64 / done as f64)
            });
        });
    }
}

criterion_group!(benches, stages);
criterion_main!(benches);
