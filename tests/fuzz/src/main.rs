//! Runs the targets: each file of the corpus once, random inputs made from it, or one target under AFL++.
//! Exit codes: 0 passed, 1 an invariant is broken, 2 usage.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{self, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand};
use tickcast_fuzz::{Mutation, TARGETS, Target, corpus};

/// Interval of progress reports.
const TELL_EVERY: Duration = Duration::from_secs(20);
/// Time after which an execution counts as a hang. It takes well below a second on the slowest machine.
const HANGS_AFTER: Duration = Duration::from_secs(120);

/// Runs one function for each kind of external input; it panics only if an invariant is broken.
#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    what: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Lists the targets.
    List,
    /// Writes the first inputs of the corpus anew.
    Corpus,
    /// Runs a target with these files, in this process.
    Run {
        /// Name of the target.
        target: String,
        /// The input files.
        files: Vec<PathBuf>,
    },
    /// Runs a target with its corpus and with inputs made from it; the same seed gives the same inputs.
    Mutate {
        /// Name of the target.
        target: String,
        /// Duration in seconds.
        #[arg(long, default_value_t = 10)]
        seconds: u64,
        /// Seed of the inputs and their order.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// File that keeps an input that breaks an invariant.
        #[arg(long)]
        keep: PathBuf,
    },
    /// Runs a target under AFL++, which starts this program.
    #[cfg(feature = "afl")]
    Afl {
        /// Name of the target.
        target: String,
    },
}

fn main() -> ExitCode {
    match Args::parse().what {
        Command::List => {
            for target in TARGETS {
                println!("{}", target.name);
            }
            ExitCode::SUCCESS
        }
        Command::Corpus => done(corpus::write()),
        Command::Run { target, files } => with(&target, |target| {
            for file in &files {
                println!("{}: {}", target.name, file.display());
                target.take(&fs::read(file)?);
                println!("it is whole");
            }
            Ok(true)
        }),
        Command::Mutate {
            target,
            seconds,
            seed,
            keep,
        } => with(&target, |target| {
            mutate(target, Duration::from_secs(seconds), seed, &keep)
        }),
        #[cfg(feature = "afl")]
        Command::Afl { target } => with(&target, |target| {
            afl::fuzz!(|bytes: &[u8]| { target.take(bytes) });
            Ok(true)
        }),
    }
}

fn with(target: &str, run: impl FnOnce(Target) -> io::Result<bool>) -> ExitCode {
    let Some(target) = Target::of(target) else {
        eprintln!("there is no target {target}; `list` names them");
        return ExitCode::from(2);
    };
    match run(target) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => done(Err(error)),
    }
}

fn done(result: io::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

/// Runs `target` for `span` and prints the number of executions. Returns `false` if an invariant was
/// broken. Each input is written to the file `keep` before its run, so that it survives any end of the
/// process.
fn mutate(target: Target, span: Duration, seed: u64, keep: &Path) -> io::Result<bool> {
    let inputs: Vec<_> = corpus::inputs(target.name)?
        .into_iter()
        .map(|it| it.1)
        .collect();
    let mut as_they_are = inputs.clone().into_iter();
    let mut mutation = Mutation::new(inputs, seed);
    let file = File::create(keep)?;
    let (mut input, begun) = (Vec::new(), Instant::now());
    let executions = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&executions);
    let keep_of_watch = keep.to_owned();
    thread::spawn(move || watch(target, &count, begun, &keep_of_watch));
    while begun.elapsed() < span || as_they_are.len() > 0 {
        match as_they_are.next() {
            Some(whole) => input = whole,
            None => mutation.next_into(&mut input),
        }
        file.write_all_at(&input, 0)?;
        file.set_len(input.len() as u64)?;
        let nth = executions.fetch_add(1, Ordering::Relaxed) + 1;
        if catch_unwind(AssertUnwindSafe(|| target.take(&input))).is_err() {
            println!(
                "{}: execution {nth} of seed {seed} breaks an invariant",
                target.name
            );
            return Ok(false);
        }
    }
    fs::remove_file(keep)?;
    println!("{}, seed {seed}", reported(target, &executions, begun));
    Ok(true)
}

/// Reports progress now and then, and ends the process when an execution hangs.
fn watch(target: Target, executions: &AtomicU64, begun: Instant, keep: &Path) {
    let (mut last, mut since, mut told_at) = (0, begun, begun);
    loop {
        thread::sleep(Duration::from_secs(1));
        let now = executions.load(Ordering::Relaxed);
        if now != last {
            (last, since) = (now, Instant::now());
        } else if since.elapsed() > HANGS_AFTER {
            println!(
                "{}: execution {now} never ends: {}",
                target.name,
                keep.display()
            );
            process::exit(1);
        }
        if told_at.elapsed() >= TELL_EVERY {
            told_at = Instant::now();
            println!("{} so far", reported(target, executions, begun));
        }
    }
}

fn reported(target: Target, executions: &AtomicU64, begun: Instant) -> String {
    let executions = executions.load(Ordering::Relaxed);
    let rate = executions as f64 / begun.elapsed().as_secs_f64();
    format!(
        "{}: {executions} executions, {rate:.0} a second",
        target.name
    )
}
