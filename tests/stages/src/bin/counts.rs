//! Counts the instructions of every stage under callgrind and compares them with the committed table.
//!
//! Exit codes:
//! - 0: no exact stage grew, or nothing could be compared here. The run reports the latter, and
//!   `--must-compare` makes it a failure.
//! - 1: a stage grew, or the table is wrong.
//! - 2: usage.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use clap::Parser;
use tickcast_stages::callgrind::{Count, LACKING, NoCount, count, version};
use tickcast_stages::table::{Environment, Table, Verdict};
use tickcast_stages::{STAGES, Stage, measured};

/// Runs before the counted ones, in which memory grows and caches fill.
const WARM_UP_RUNS: usize = 2;
const COUNTED_RUNS: usize = 4;
/// A stage that grew is counted this many times in all, and its lowest count is used.
const TRIES: usize = 3;
/// Number of functions that are shown for a stage.
const FUNCTIONS: usize = 12;
/// Contenders of the bench that are counted too.
const PEERS: [&str; 2] = ["aeron", "aeron-defaults"];

const PINNED: &str = include_str!("../../../../rust-toolchain.toml");

/// Compares the instructions of every stage with the committed table.
#[derive(Parser)]
struct Args {
    /// Writes the table instead of comparing with it.
    #[arg(long)]
    write: bool,
    /// Why stages may take more than before; goes into the rows of stages that grew. For separate
    /// reasons, run `--only` once for each.
    #[arg(long, default_value = "")]
    reason: String,
    /// With `--write` and a reason: drops the counts of a table that was made elsewhere, by another Rust,
    /// glibc or valgrind, and notes that in the new table.
    #[arg(long, requires = "write", conflicts_with = "only")]
    anew: bool,
    /// Fails if a stage could not be compared with its row, whatever the reason.
    #[arg(long, conflicts_with = "write")]
    must_compare: bool,
    /// Only the stages whose names contain this.
    #[arg(long)]
    only: Option<String>,
    /// Shows the most expensive functions.
    #[arg(long)]
    functions: bool,
    /// Counts a peer too, in the program that `make bench-peers` builds, and shows the ratio to the
    /// instructions of `product-udp`.
    #[arg(long, value_name = "PROGRAM")]
    peer: Option<PathBuf>,
    /// Runs this stage and prints its number of operations; started under valgrind.
    #[arg(long, hide = true)]
    stage: Option<String>,
    /// The table.
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../golden/counts.md"))]
    table: PathBuf,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(name) = &args.stage {
        return perform(name);
    }
    let wanted = |stage: &&Stage| {
        args.only
            .as_ref()
            .is_none_or(|only| stage.name.contains(only))
    };
    let stages: Vec<Stage> = STAGES.iter().filter(wanted).copied().collect();
    if stages.is_empty() {
        let only = args.only.as_deref().unwrap_or_default();
        let names: Vec<_> = STAGES.iter().map(|stage| stage.name).collect();
        eprintln!(
            "--only {only}: no stage's name contains that; there are {}",
            names.join(", ")
        );
        return ExitCode::from(2);
    }
    let text = std::fs::read_to_string(&args.table).unwrap_or_default();
    let table = match Table::read(&text) {
        Ok(table) => table,
        Err(what) => return fail(&[format!("{}: {what}", args.table.display())]),
    };
    let mut faults = Vec::new();
    if !args.write {
        faults = table.faults(STAGES);
        faults.extend(of_another_rust(&table));
    }
    let Some(valgrind) = version() else {
        const LACKING: &str =
            "valgrind is not installed (Debian: valgrind): no instruction was counted";
        eprintln!("SKIPPED: {LACKING}");
        faults.extend((args.must_compare || args.write).then(|| LACKING.to_owned()));
        return fail(&faults);
    };
    let environment = environment(&valgrind);
    if args.write {
        faults.extend(not_to_be_written(&args, &table, &environment));
        if !faults.is_empty() {
            return fail(&faults);
        }
    } else {
        say_what_is_compared(&table, &environment);
    }
    let judge = |stage: &Stage, count: &Count| {
        let row = table.row(stage)?;
        table.judge(row, count, &environment)
    };
    let counts = count_all(&stages, &judge, &mut faults);
    show(&stages, &counts, &judge, args.functions);
    if let Some(program) = &args.peer {
        show_peers(
            program,
            counts.get("product-udp"),
            args.functions,
            &mut faults,
        );
    }
    if args.write {
        return write(&args, &table, &counts, &environment, faults);
    }
    let mut uncompared = Vec::new();
    for stage in &stages {
        let (name, count) = (stage.name, counts.get(stage.name));
        match count.and_then(|count| judge(stage, count)) {
            Some(Verdict::Grew(share)) if stage.is_exact => {
                let percent = share * 100.0;
                faults.push(format!(
                    "{name} takes {percent:.1} % more than the table has"
                ));
            }
            Some(_) => {}
            None => uncompared.push(name),
        }
    }
    if !faults.is_empty() {
        faults.push("where that is meant: make counts-write REASON='why'".to_owned());
    }
    if args.must_compare {
        faults.extend(uncompared_all_the_same(&table, &environment, &uncompared));
    }
    fail(&faults)
}

/// Reports a table that was not made with the pinned Rust, because it would never be compared again.
fn of_another_rust(table: &Table) -> Option<String> {
    let pinned = PINNED
        .lines()
        .find_map(|line| line.strip_prefix("channel = "))?;
    let pinned = pinned.trim_matches('"');
    let made = &table.environment.program;
    (!made.ends_with(&format!("Rust {pinned}")))
        .then(|| format!("the table is of {made}, and rust-toolchain.toml has Rust {pinned}"))
}

/// Returns why the table must not be written here.
fn not_to_be_written(args: &Args, table: &Table, here: &Environment) -> Option<String> {
    match (table.made_here(here), args.anew) {
        (Ok(()), false) => None,
        (Ok(()), true) => Some("--anew: the table was made here, and forgets nothing".to_owned()),
        (Err(_), true) if !args.reason.trim().is_empty() => None,
        (Err(what), _) => Some(format!(
            "{what}: its counts can't be compared with those made here, so growth would pass unseen. Count where it was made; or have it forgotten, and told in the table: make counts-write REASON='why' COUNTS_ARGS=--anew"
        )),
    }
}

/// Returns the failure of `--must-compare` for stages that were skipped, wholly or in part.
fn uncompared_all_the_same(table: &Table, here: &Environment, stages: &[&str]) -> Option<String> {
    let what = match table.made_here(here) {
        Err(what) => what,
        Ok(()) if stages.is_empty() => return None,
        Ok(()) => stages.join(", "),
    };
    Some(format!("NOT COMPARED, and --must-compare was said: {what}"))
}

/// Runs a stage, under valgrind or not.
fn perform(name: &str) -> ExitCode {
    let Some(stage) = STAGES.iter().find(|stage| stage.name == name) else {
        eprintln!("there is no stage {name}");
        return ExitCode::from(2);
    };
    let mut work = match (stage.open)() {
        Ok(work) => work,
        Err(lacking) => {
            println!("{LACKING}{lacking}");
            return ExitCode::SUCCESS;
        }
    };
    for _ in 0..WARM_UP_RUNS {
        work.prepare();
        work.run();
    }
    let mut operations = 0;
    for _ in 0..COUNTED_RUNS {
        work.prepare();
        operations += measured(work.as_mut());
    }
    println!("{operations}");
    ExitCode::SUCCESS
}

/// Returns the inputs of counts on this host.
fn environment(valgrind: &str) -> Environment {
    let said = |program: &str, args: &[&str]| {
        let output = Command::new(program).args(args).output().ok();
        let text = output.and_then(|output| String::from_utf8(output.stdout).ok());
        text.map_or_else(|| format!("no {program}"), |text| text.trim().to_owned())
    };
    let flags = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let avx2 = if flags.contains(" avx2") {
        "with"
    } else {
        "without"
    };
    // The compiler that built this program, which may differ from the one in PATH.
    let rust = env!("TICKCAST_BUILT_BY");
    let rust = rust.split(' ').nth(1).unwrap_or(rust);
    let profile = if cfg!(debug_assertions) {
        "debug"
    } else {
        "release"
    };
    Environment {
        program: format!(
            "{} {avx2} AVX2, {profile} build by Rust {rust}",
            std::env::consts::ARCH
        ),
        libc: format!("{}, {valgrind}", said("getconf", &["GNU_LIBC_VERSION"])),
    }
}

fn say_what_is_compared(table: &Table, here: &Environment) {
    let of = &table.environment;
    if of.program != here.program {
        eprintln!(
            "SKIPPED: the table is of {}, this is {}: the counts are shown, and NOT COMPARED",
            of.program, here.program
        );
    } else if of.libc != here.libc {
        eprintln!(
            "the C library's part is NOT COMPARED: the table's is of {}, this is {}",
            of.libc, here.libc
        );
    }
}

/// Counts stages on all cores, and reports the ones that can't be counted.
fn count_all(
    stages: &[Stage],
    judge: &(dyn Fn(&Stage, &Count) -> Option<Verdict> + Sync),
    faults: &mut Vec<String>,
) -> BTreeMap<&'static str, Count> {
    let program = std::env::current_exe().unwrap_or_default();
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let (next, found) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(stage) = stages.get(next.fetch_add(1, Relaxed)) {
                    let counted = lowest(&program, stage, judge);
                    if let Ok(mut found) = found.lock() {
                        found.push((stage.name, counted));
                    }
                }
            });
        }
    });
    let mut counts = BTreeMap::new();
    for (name, counted) in found.into_inner().unwrap_or_default() {
        match counted {
            Ok(count) => drop(counts.insert(name, count)),
            Err(NoCount::Lacking(what)) => eprintln!("SKIPPED: {name}: {what}"),
            Err(NoCount::Failed(what)) => faults.push(format!("{name} can't be counted: {what}")),
        }
    }
    counts
}

fn lowest(
    program: &Path,
    stage: &Stage,
    judge: &(dyn Fn(&Stage, &Count) -> Option<Verdict> + Sync),
) -> Result<Count, NoCount> {
    let mut best = count(program, stage.name)?;
    for _ in 1..TRIES {
        if !matches!(judge(stage, &best), Some(Verdict::Grew(_))) {
            break;
        }
        let again = count(program, stage.name)?;
        if again.sum() < best.sum() {
            best = again;
        }
    }
    Ok(best)
}

fn show(
    stages: &[Stage],
    counts: &BTreeMap<&str, Count>,
    judge: &dyn Fn(&Stage, &Count) -> Option<Verdict>,
    functions: bool,
) {
    println!(
        "{:<18} {:<16} {:>10} {:>10} {:>10}  to the table",
        "instructions of", "per", "ours", "C library", "sum"
    );
    for stage in stages {
        let Some(count) = counts.get(stage.name) else {
            continue;
        };
        let verdict = judge(stage, count);
        let relation = match verdict {
            Some(Verdict::Within(share)) => format!("{:+.1} %", share * 100.0),
            Some(Verdict::Grew(share)) if stage.is_exact => {
                format!("{:+.1} % GREW", share * 100.0)
            }
            Some(Verdict::Grew(share)) => {
                format!(
                    "{:+.1} %, not gated: this host has a part in it",
                    share * 100.0
                )
            }
            None => "not compared".to_owned(),
        };
        println!(
            "{:<18} {:<16} {:>10.1} {:>10.1} {:>10.1}  {relation}",
            stage.name,
            stage.per,
            count.ours,
            count.libc,
            count.sum()
        );
        if functions || matches!(verdict, Some(Verdict::Grew(_))) {
            show_functions(count);
        }
    }
}

/// Counts a record's instructions for each peer, one after the other.
fn show_peers(program: &Path, own: Option<&Count>, functions: bool, faults: &mut Vec<String>) {
    for peer in PEERS {
        let count = match count(program, peer) {
            Ok(count) => count,
            Err(NoCount::Lacking(what) | NoCount::Failed(what)) => {
                faults.push(format!("{peer} can't be counted: {what}"));
                continue;
            }
        };
        let times = own.map(|own| format!("{:.1} x product-udp", count.sum() / own.sum()));
        println!(
            "{peer:<18} {:<16} {:>10.1} {:>10.1} {:>10.1}  {}",
            "record",
            count.ours,
            count.libc,
            count.sum(),
            times.unwrap_or_default()
        );
        if functions {
            show_functions(&count);
        }
    }
}

fn show_functions(count: &Count) {
    for (name, cost) in count.functions.iter().take(FUNCTIONS) {
        println!("{cost:>18.1} {name}");
    }
}

fn write(
    args: &Args,
    table: &Table,
    counts: &BTreeMap<&str, Count>,
    environment: &Environment,
    mut faults: Vec<String>,
) -> ExitCode {
    if args.only.is_none() && counts.len() < STAGES.len() {
        faults.push("not every stage could be counted: the table is left as it was".to_owned());
    }
    if !faults.is_empty() {
        return fail(&faults);
    }
    let reason = args.reason.trim();
    let renewed = match args.anew {
        true => Ok(table.begun_anew(STAGES, counts, environment, reason)),
        false => table.renewed(STAGES, counts, environment, reason),
    };
    let renewed = match renewed {
        Ok(renewed) => renewed,
        Err(mut grown) => {
            grown.push("say why, and it is written: make counts-write REASON='why'".to_owned());
            return fail(&grown);
        }
    };
    if let Err(error) = std::fs::write(&args.table, renewed.write()) {
        eprintln!("{} can't be written: {error}", args.table.display());
        return ExitCode::from(2);
    }
    ExitCode::SUCCESS
}

/// Prints the faults. Returns the exit code.
fn fail(faults: &[String]) -> ExitCode {
    faults.iter().for_each(|fault| eprintln!("{fault}"));
    ExitCode::from(u8::from(!faults.is_empty()))
}
