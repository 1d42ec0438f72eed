//! Searches small worlds exhaustively: `exhaustive [--large] [--sample SEED] [--only NAME] [--states-max N]`.
//! Exit codes: 0 every interleaving is correct, 1 one is not or a search stopped early, 2 usage.

use std::process::ExitCode;

use clap::Parser;
use tickcast_sim::exhaustive::{sample, search::search, worlds};

/// Checks every interleaving of one publisher, two receivers and three or four datagrams.
#[derive(Parser)]
struct Options {
    /// Uses wider bounds, which take minutes rather than seconds.
    #[arg(long)]
    large: bool,
    /// Uses wider bounds for one world in five, chosen by this seed.
    #[arg(long, value_name = "SEED", conflicts_with = "large")]
    sample: Option<u64>,
    /// Searches only worlds whose name contains this text.
    #[arg(long, default_value = "")]
    only: String,
    /// Gives up a world after this many states.
    #[arg(long, default_value_t = 100_000_000)]
    states_max: u64,
    /// Maximum number of datagrams dropped; the default is the world's own bound.
    #[arg(long)]
    drops: Option<u8>,
    /// Maximum number of datagrams that overtake another; the default is the world's own bound.
    #[arg(long)]
    overtakes: Option<u8>,
    /// Maximum number of datagrams that arrive twice; the default is the world's own bound.
    #[arg(long)]
    duplicates: Option<u8>,
    /// Maximum number of connections cut; the default is the world's own bound.
    #[arg(long)]
    cuts: Option<u8>,
    /// Maximum number of publisher restarts; the default is the world's own bound.
    #[arg(long)]
    restarts: Option<u8>,
    /// Maximum number of forged datagrams, where an impostor is about; the default is the world's own bound.
    #[arg(long)]
    forgeries: Option<u8>,
    /// Maximum number of timers that fire before the faults stop; the default is the world's own bound.
    #[arg(long)]
    ticks: Option<u8>,
    /// Plants each deliberate bug that a small world can expose, and reports how it is found.
    #[cfg(feature = "planted-bugs")]
    #[arg(long)]
    planted: bool,
    /// Plants this bug for the search.
    #[cfg(feature = "planted-bugs")]
    #[arg(long)]
    bug: Option<String>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    #[cfg(feature = "planted-bugs")]
    if options.planted {
        return tickcast_sim::exhaustive::planted::show();
    }
    #[cfg(feature = "planted-bugs")]
    if let Some(name) = &options.bug {
        let bug = tickcast_sim::planted::bugs().find(|bug| format!("{bug:?}") == *name);
        if bug.is_none() {
            eprintln!("there is no bug {name}");
            return ExitCode::from(2);
        }
        tickcast_reliability::planted::plant(bug);
    }
    let mut wrong = false;
    println!(
        "{:<20} {:>10} {:>12} {:>6} {:>7} {:>11} {:>11} {:>8}",
        "world",
        "states",
        "transitions",
        "depth",
        "timers",
        "core states",
        "core inputs",
        "seconds"
    );
    let plans = match options.sample {
        Some(seed) => sample(seed),
        None => worlds(options.large),
    };
    for mut plan in plans {
        if !plan.name.contains(&options.only) {
            continue;
        }
        let bounds = plan.faults;
        let faults = &mut plan.faults;
        faults.drops = options.drops.unwrap_or(faults.drops);
        faults.overtakes = options.overtakes.unwrap_or(faults.overtakes);
        faults.duplicates = options.duplicates.unwrap_or(faults.duplicates);
        faults.cuts = options.cuts.unwrap_or(faults.cuts);
        faults.restarts = options.restarts.unwrap_or(faults.restarts);
        faults.forgeries = options.forgeries.unwrap_or(faults.forgeries);
        faults.ticks = options.ticks.unwrap_or(faults.ticks);
        let found = search(&plan, options.states_max);
        println!(
            "{:<20} {:>10} {:>12} {:>6} {:>7} {:>11} {:>11} {:>8.1}{}",
            found.name,
            found.states,
            found.transitions,
            found.depth,
            found.ticks_to_end,
            found.core_states,
            found.core_inputs,
            found.seconds,
            if found.exhaustive {
                ""
            } else {
                "  not exhaustive"
            },
        );
        if let Some(found) = found.counter_example {
            println!("{}{}\n", found.story, found.what);
            wrong = true;
        } else if !found.exhaustive {
            wrong = true;
        } else if plan.faults == bounds && found.states < plan.states_min {
            println!(
                "{}: at least {} states are there",
                plan.name, plan.states_min
            );
            wrong = true;
        }
    }
    ExitCode::from(u8::from(wrong))
}
