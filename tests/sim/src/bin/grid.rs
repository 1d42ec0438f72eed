//! Runs the grid of loss and receivers and compares it with the committed table. Exit codes: 0 they
//! are equal, 1 they differ or a rule is broken, 2 usage.

use std::io::IsTerminal;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use tickcast_sim::grid::{broken, cells, difference, measure, sample, table};

/// Measures the cost of repair for every kind of loss, rate and group size, in virtual time.
#[derive(Parser)]
struct Args {
    /// Writes the table instead of comparing with it.
    #[arg(long)]
    write: bool,
    /// Leaves out three quarters of the largest groups, chosen by this seed.
    #[arg(long, conflicts_with_all = ["write", "receivers_max"])]
    sample: Option<u64>,
    /// Prints only the rows with at most this many receivers, and compares nothing.
    #[arg(long)]
    receivers_max: Option<usize>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../golden/grid.md");
    let began = Instant::now();
    let cells = match args.sample {
        Some(seed) => sample(seed),
        None => cells(args.receivers_max.unwrap_or(usize::MAX)),
    };
    let shows = std::io::stderr().is_terminal();
    let rows = measure(&cells, &|done| {
        if shows {
            eprint!("\r{done} of {} runs", cells.len());
        }
    });
    eprintln!(
        "{} runs in {:.1} s",
        rows.len(),
        began.elapsed().as_secs_f64()
    );
    let broken = broken(&rows);
    for what in &broken {
        eprintln!("{what}");
    }
    let text = table(&rows);
    if args.receivers_max.is_some() {
        println!("{text}");
        return ExitCode::from(u8::from(!broken.is_empty()));
    }
    if !broken.is_empty() && !args.write {
        return ExitCode::from(1);
    }
    if args.write {
        if let Err(error) = std::fs::write(&path, &text) {
            eprintln!("{} can't be written: {error}", path.display());
            return ExitCode::from(2);
        }
        return ExitCode::SUCCESS;
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    match difference(&committed, &text, args.sample.is_some()) {
        None => ExitCode::SUCCESS,
        Some(lines) => {
            println!("{lines}");
            eprintln!("the grid differs; if that is meant, run it again with --write");
            ExitCode::from(1)
        }
    }
}
