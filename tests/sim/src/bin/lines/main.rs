//! Runs seeds of the simulation of lines, and prints totals. Exit codes: 0 no violation, 1 a violation,
//! 2 usage.

#[cfg(feature = "planted-bugs")]
mod planted;
mod run;
mod world;

use std::ops::Range;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use clap::Parser;

/// Runs the lines of a source through the shipped arbiter in virtual time, and checks every step.
#[derive(Parser)]
struct Args {
    /// Seeds to run: a range A..B that excludes B, or one seed.
    #[arg(long, default_value = "0..400")]
    seeds: String,
    /// Hunts every deliberate bug of the arbiter instead of running seeds.
    #[cfg(feature = "planted-bugs")]
    #[arg(long)]
    planted: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    #[cfg(feature = "planted-bugs")]
    if args.planted {
        return planted::show();
    }
    let Some(seeds) = tickcast_sim::seeds_of(&args.seeds) else {
        eprintln!(
            "--seeds {} is no range; write A..B, with A below B",
            args.seeds
        );
        return ExitCode::from(2);
    };
    let began = Instant::now();
    let all = seeds.end - seeds.start;
    let violations = run_all(seeds);
    println!(
        "{all} seeds of lines, {violations} violations, {:.1} s",
        began.elapsed().as_secs_f64()
    );
    ExitCode::from(u8::from(violations > 0))
}

/// Runs the seeds on all cores and prints each violation; returns their number.
fn run_all(seeds: Range<u64>) -> u64 {
    let next = AtomicU64::new(seeds.start);
    let violations = AtomicU64::new(0);
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Relaxed);
                    if seed >= seeds.end {
                        break;
                    }
                    if let Err(what) = run::run(seed) {
                        violations.fetch_add(1, Relaxed);
                        eprintln!("VIOLATION in seed {seed}: {what}");
                        eprintln!(
                            "replay: cargo run -p tickcast-sim --release --bin lines -- --seeds {seed}"
                        );
                    }
                }
            });
        }
    });
    violations.into_inner()
}
