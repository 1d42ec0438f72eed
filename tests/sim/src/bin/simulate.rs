//! Runs seeds of the simulation, shows progress, and prints totals. Exit codes: 0 no violation, 1 a
//! violation, 2 usage.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::Parser;
use tickcast_sim::faults::plan::Plan;
use tickcast_sim::faults::profiles::PROFILES;
use tickcast_sim::report::{Outcome, Summary};
use tickcast_sim::seeds_of;
use tickcast_sim::trace::Trace;
use tickcast_sim::world::run;

/// Runs the protocol in virtual time: checks every step, and replays any seed byte for byte.
#[derive(Parser)]
struct Args {
    /// Seeds to run: a range A..B that excludes B, or one seed.
    #[arg(long, default_value = "0..350")]
    seeds: String,
    /// Profile of faults; by default the seeds cycle over all profiles.
    #[arg(long)]
    profile: Option<String>,
    /// Number of subscribers; by default the seed decides.
    #[arg(long)]
    receivers: Option<usize>,
    /// Writes the totals to this file as JSON.
    #[arg(long)]
    summary: Option<std::path::PathBuf>,
    /// Writes the event log of the first seed to this file.
    #[arg(long)]
    trace: Option<std::path::PathBuf>,
    /// Number of threads; each runs its own seeds.
    #[arg(long)]
    threads: Option<usize>,
    /// Stops after this many violations.
    #[arg(long, default_value_t = 10)]
    violations_max: u64,
    /// Hunts a deliberate bug by its name, or all of them, instead of running seeds.
    #[cfg(feature = "planted-bugs")]
    #[arg(long)]
    planted: Option<String>,
    /// Tears one in this many repair copies, as the hunt for bugs does: the writer laps the ring
    /// during the copy. 0 tears none.
    #[cfg(feature = "planted-bugs")]
    #[arg(long, default_value_t = 0)]
    tear_every: u32,
}

fn run_seed(seed: u64, args: &Args, profile: Option<&'static str>, trace: Trace) -> Outcome {
    let plan = Plan::of(seed, profile, args.receivers);
    let name = plan.profile;
    #[cfg(feature = "planted-bugs")]
    tickcast_reliability::planted::tear(args.tear_every);
    let result = catch_unwind(AssertUnwindSafe(|| run(plan, trace, None)));
    result.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
        Outcome {
            seed,
            profile: name,
            violation: Some(format!("panic: {}", text.unwrap_or_default())),
            hash: 0,
            lines: 0,
            recent: Vec::new(),
            simulated: tickcast_reliability::types::Nanos::ZERO,
            settled: None,
            faults: Default::default(),
            tally: Default::default(),
        }
    })
}

fn show(outcome: &Outcome, args: &Args, profile: Option<&'static str>) {
    let Some(what) = &outcome.violation else {
        return;
    };
    let seed = outcome.seed;
    eprintln!("\nVIOLATION in seed {seed} ({}): {what}", outcome.profile);
    for line in &outcome.recent {
        eprintln!("    {line}");
    }
    let profile = profile.map_or(String::new(), |p| format!(" --profile {p}"));
    let receivers = args
        .receivers
        .map_or(String::new(), |n| format!(" --receivers {n}"));
    eprintln!(
        "replay: cargo run -p tickcast-sim --release --bin simulate -- --seeds {seed}..{}{profile}{receivers} --trace seed-{seed}.log",
        seed + 1
    );
}

fn main() -> ExitCode {
    let args = Args::parse();
    #[cfg(feature = "planted-bugs")]
    if let Some(which) = &args.planted {
        return tickcast_sim::planted::show(which);
    }
    let Some(seeds) = seeds_of(&args.seeds) else {
        eprintln!(
            "--seeds {} is no range; write A..B, with A below B",
            args.seeds
        );
        return ExitCode::from(2);
    };
    let profile = match &args.profile {
        None => None,
        Some(name) => match PROFILES.iter().find(|p| *p == name) {
            Some(profile) => Some(*profile),
            None => {
                eprintln!(
                    "there is no profile {name}; there are {}",
                    PROFILES.join(", ")
                );
                return ExitCode::from(2);
            }
        },
    };
    if let Some(path) = &args.trace {
        let trace = match std::fs::File::create(path) {
            Ok(file) => Trace::to(Box::new(file)),
            Err(error) => {
                eprintln!("{} can't be written: {error}", path.display());
                return ExitCode::from(2);
            }
        };
        let outcome = run_seed(seeds.start, &args, profile, trace);
        println!(
            "seed {} ({}): {} lines, hash {:016x}, written to {}",
            seeds.start,
            outcome.profile,
            outcome.lines,
            outcome.hash,
            path.display()
        );
    }
    let summary = run_all(&args, seeds, profile);
    println!("{summary}");
    if let Some(path) = &args.summary {
        let json = serde_json::to_string_pretty(&summary).unwrap_or_default();
        if let Err(error) = std::fs::write(path, json + "\n") {
            eprintln!("{} can't be written: {error}", path.display());
            return ExitCode::from(2);
        }
    }
    ExitCode::from(u8::from(summary.violations > 0))
}

fn run_all(args: &Args, seeds: std::ops::Range<u64>, profile: Option<&'static str>) -> Summary {
    let began = Instant::now();
    let next = AtomicU64::new(seeds.start);
    let state = Mutex::new((Summary::default(), Instant::now()));
    let threads = args
        .threads
        .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, std::num::NonZero::get));
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Relaxed);
                    if seed >= seeds.end {
                        break;
                    }
                    let outcome = run_seed(seed, args, profile, Trace::default());
                    let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
                    state.0.add(&outcome);
                    show(&outcome, args, profile);
                    if state.0.violations >= args.violations_max {
                        next.store(seeds.end, Relaxed);
                    }
                    if state.1.elapsed() > Duration::from_secs(5) {
                        state.1 = Instant::now();
                        let (done, bad) = (state.0.seeds, state.0.violations);
                        let all = seeds.end - seeds.start;
                        eprintln!("{done} of {all} seeds, {bad} violations");
                    }
                }
            });
        }
    });
    let mut summary = state.into_inner().unwrap_or_else(PoisonError::into_inner).0;
    summary.failed.sort();
    summary.took(began.elapsed().as_secs_f64());
    summary
}
