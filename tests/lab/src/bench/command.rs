//! `lab bench`: measures tickcast beside a raw floor and beside peers, in one run that anyone can repeat.
//! Contenders take turns, so the result is the ratio between them, independent of the machine.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::contender::Program;
use super::html;
use super::latency_log::LatencyLog;
use super::marks;
use super::plan::{Measure, Place, Size, all, chosen};
use super::protocol::Task;
use super::quiet::Machine;
use super::report::Results;
use super::results::{Absent, Measured, Row};
use super::sides;
use super::turn::{Setting, take_turn};
use crate::leftovers;
use crate::network::Network;
use tickcast_tools::exit::{Exit, ToolError};
use tickcast_tools::support::files::{check_writable, write_json, write_text};
use tickcast_tools::support::output::Output;
use tickcast_tools::support::progress::ProgressReport;
use tickcast_tools::support::signals::Stop;

/// The measures, the contenders, and the files of the results.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Run only the most important measures, in less than three minutes.
    #[arg(long)]
    quick: bool,
    /// Only check that everything runs: each turn is very short and the figures mean nothing.
    #[arg(long, conflicts_with = "quick")]
    tiny: bool,
    /// Run only measures with this in their name; may be repeated.
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// Run only these contenders; may be repeated.
    #[arg(long, value_name = "NAME")]
    contender: Vec<String>,
    /// Turns of each contender [default: 7; quick 3, and 1 for a measure without a mark].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
    /// List the measures and their contenders, and end.
    #[arg(long)]
    list: bool,
    /// Stay on the loopback device, for users who may not create network namespaces.
    #[arg(long)]
    loopback: bool,
    /// Leave the choice of cores to the system.
    #[arg(long)]
    no_pins: bool,
    /// The program with the peers [default: tickcast-bench-peers beside this program].
    #[arg(long, value_name = "FILE")]
    peers: Option<PathBuf>,
    /// Write all results to this file, as JSON.
    #[arg(long, value_name = "FILE", overrides_with = "summary")]
    summary: Option<PathBuf>,
    /// Write a page with tables and plots to this file.
    #[arg(long, value_name = "FILE", overrides_with = "html")]
    html: Option<PathBuf>,
    /// Append the latency of every turn to this interval log (HdrHistogram log 1.3).
    #[arg(long, value_name = "FILE", overrides_with = "hlog")]
    hlog: Option<PathBuf>,
    /// Show no progress.
    #[arg(long)]
    quiet: bool,
}

/// One process of a measurement; started by the bench.
#[derive(Debug, clap::Args)]
pub(crate) struct SideArgs {
    /// The task, as JSON.
    task: String,
}

/// Runs the bench.
///
/// # Errors
/// [`ToolError`] if there is nothing to measure with, or if a signal ended the run.
pub(crate) fn run(args: &Args) -> Result<Exit, ToolError> {
    let stop = Stop::on_signals()?;
    let (size, mut measures) = args.measures()?;
    if args.list {
        return list(&measures);
    }
    // The capture is not ours to distribute. Without it the run leaves that measure out and says so.
    let no_capture = !sides::has_capture() && measures.iter().any(Measure::needs_capture);
    if no_capture {
        measures.retain(|measure| !measure.needs_capture());
    }
    for file in [&args.summary, &args.html].into_iter().flatten() {
        check_writable(file)?;
    }
    leftovers::sweep();
    let is_loopback = args.loopback;
    if !is_loopback && measures.iter().any(|m| m.place != Place::Host) {
        Network::is_possible().map_err(|error| ToolError::Host {
            what: "make network namespaces",
            source: io::Error::other(format!(
                "{error}\nthey need root, and `ip`; with --loopback it goes without, and then figures \
                 compare with no network's"
            )),
        })?;
    }
    let machine = Machine::look(Duration::from_millis(if args.tiny { 100 } else { 1_000 }));
    let programs = Programs::find(args)?;
    let mut results = Results {
        version: env!("CARGO_PKG_VERSION"),
        size,
        is_loopback,
        is_debug_build: cfg!(debug_assertions),
        machine,
        absent: [
            programs.absent(&measures),
            no_capture.then(sides::no_capture).into_iter().collect(),
        ]
        .concat(),
        is_interrupted: false,
        measures: Vec::new(),
        marks: Vec::new(),
    };
    for absent in &results.absent {
        eprintln!("lab: {} takes no part: {}", absent.contender, absent.why);
    }
    let rounds = |measure: &Measure, contender: &str| {
        let own = || size.rounds(marks::looks_at(measure.id, contender));
        args.rounds.map_or_else(own, |n| n as usize)
    };
    let turns_at = |measure: &Measure| {
        let taking_part = measure.contenders.iter();
        let taking_part = taking_part.filter(|name| programs.of(name).is_some());
        taking_part.map(|name| rounds(measure, name)).sum::<usize>()
    };
    let turns: usize = measures.iter().map(turns_at).sum();
    let mut progress = ProgressReport::new("bench", Some(turns as u64), args.quiet);
    let mut done = 0;
    let latency_log = args.hlog.as_deref().map(LatencyLog::open).transpose()?;
    let mut of = Bench {
        args,
        latency_log,
        programs: &programs,
        cores: if args.no_pins {
            &[]
        } else {
            &results.machine.cores
        },
        stop: &stop,
    };
    // Results from before a failure stay valid, so they are reported.
    let ended = measures.into_iter().try_for_each(|measure| {
        let mut rows = of.rows(&measure, rounds);
        let ended = of.take_turns(&measure, &mut rows, |what| {
            done += 1;
            progress.show(done, || what.to_owned());
        });
        results.measures.push(Measured { measure, rows });
        ended
    });
    progress.finish();
    let unwritten = of.latency_log.map_or(0, |log| log.failures());
    if unwritten > 0 {
        eprintln!("lab: the interval log lacked room {unwritten} times; turns share an interval");
    }
    results.is_interrupted = ended.is_err();
    results.marks = marks::judge(&results.measures);
    // Files come first, because the reader of the table may close the pipe.
    let written = args.write(&results);
    let shown = show(&results);
    written?;
    ended?;
    shown?;
    Ok(Exit::whole_if(results.is_whole()))
}

fn show(results: &Results) -> Result<(), ToolError> {
    let mut output = Output::stdout();
    output.line(results)?;
    output.flush()
}

/// Takes part in a measurement.
///
/// # Errors
/// [`ToolError::Usage`] if the task can't be read.
pub(crate) fn side(args: &SideArgs) -> Result<Exit, ToolError> {
    let task: Task = serde_json::from_str(&args.task)
        .map_err(|error| ToolError::Usage(format!("the task can't be read: {error}")))?;
    if sides::run(&task) {
        return Ok(Exit::Whole);
    }
    Ok(Exit::Internal)
}

impl Args {
    fn measures(&self) -> Result<(Size, Vec<Measure>), ToolError> {
        let size = match (self.quick, self.tiny) {
            (true, _) => Size::Quick,
            (_, true) => Size::Tiny,
            _ => Size::Full,
        };
        let measures = chosen(size, &self.only);
        if measures.is_empty() {
            let known: Vec<_> = all(size).iter().map(|m| m.id).collect();
            return Err(ToolError::Usage(format!(
                "no measure has {:?} in its name; there are {}",
                self.only,
                known.join(", ")
            )));
        }
        let taking_part: BTreeSet<_> = measures
            .iter()
            .flat_map(|m| m.contenders)
            .copied()
            .collect();
        let mut unknown = self.contender.iter();
        if let Some(unknown) = unknown.find(|name| !taking_part.contains(name.as_str())) {
            let known: Vec<_> = taking_part.into_iter().collect();
            return Err(ToolError::Usage(format!(
                "{unknown:?} takes no part in what is to be measured; those who do are {}",
                known.join(", ")
            )));
        }
        Ok((size, measures))
    }

    fn write(&self, results: &Results) -> Result<(), ToolError> {
        if let Some(path) = &self.summary {
            write_json(path, results)?;
        }
        if let Some(path) = &self.html {
            write_text(path, &html::page(results))?;
        }
        Ok(())
    }
}

fn list(measures: &[Measure]) -> Result<Exit, ToolError> {
    let mut output = Output::stdout();
    for measure in measures {
        let (id, title) = (measure.id, measure.title);
        output.line(format_args!(
            "{id}: {title}; {}",
            measure.contenders.join(", ")
        ))?;
    }
    output.flush()?;
    Ok(Exit::Whole)
}

/// The programs of the available contenders.
struct Programs {
    own: Program,
    peers: Option<Program>,
    /// Path where the peers' program was looked up.
    looked_at: PathBuf,
    /// The contenders that the user asked for; empty: all.
    wanted: Vec<String>,
}

impl Programs {
    fn find(args: &Args) -> Result<Self, ToolError> {
        let own = Program::own()?;
        let beside = || own.path.with_file_name("tickcast-bench-peers");
        let looked_at = args.peers.clone().unwrap_or_else(beside);
        if args.peers.is_some() && !looked_at.is_file() {
            let path = looked_at.display();
            return Err(ToolError::Usage(format!("there is no program at {path}")));
        }
        let peers = looked_at.is_file().then(|| Program::peers(&looked_at));
        Ok(Self {
            own,
            peers,
            looked_at,
            wanted: args.contender.clone(),
        })
    }

    fn of(&self, contender: &str) -> Option<&Program> {
        if !self.wanted.is_empty() && !self.wanted.iter().any(|wanted| wanted == contender) {
            return None;
        }
        if sides::OWN.contains(&contender) {
            return Some(&self.own);
        }
        self.peers.as_ref()
    }

    /// Returns the contenders that take no part in any of these measures, with the reason.
    fn absent(&self, measures: &[Measure]) -> Vec<Absent> {
        let mut all: Vec<&'static str> = measures
            .iter()
            .flat_map(|measure| measure.contenders)
            .copied()
            .filter(|contender| self.of(contender).is_none())
            .collect();
        all.sort_unstable();
        all.dedup();
        let why = |contender| {
            if self.peers.is_some() || sides::OWN.contains(&contender) {
                return "it was not asked for".to_owned();
            }
            let path: &Path = &self.looked_at;
            format!(
                "there is no program of peers at {}; `make bench-peers` builds it, --peers names another",
                path.display()
            )
        };
        let absent = |contender| Absent {
            contender,
            why: why(contender),
        };
        all.into_iter().map(absent).collect()
    }
}

struct Bench<'a> {
    args: &'a Args,
    latency_log: Option<LatencyLog>,
    programs: &'a Programs,
    cores: &'a [usize],
    stop: &'a Stop,
}

impl Bench<'_> {
    /// Returns the rows of the contenders that take part in a measure.
    fn rows(&self, measure: &Measure, rounds: impl Fn(&Measure, &str) -> usize) -> Vec<Row> {
        let taking_part = measure.contenders.iter();
        taking_part
            .filter(|name| self.programs.of(name).is_some())
            .map(|name| Row::new(name, rounds(measure, name)))
            .collect()
    }

    /// Runs the turns of all contenders in alternation: A B C A B C.
    fn take_turns(
        &mut self,
        measure: &Measure,
        rows: &mut [Row],
        mut tell: impl FnMut(&str),
    ) -> Result<(), ToolError> {
        let ends = measure.receivers + 1;
        let network = if self.args.loopback {
            Network::loopback(ends)
        } else {
            match measure.place {
                Place::Host => Network::loopback(ends),
                Place::Veth => Network::pair(measure.mtu)?,
                Place::Bridge => Network::bridge(ends, measure.mtu)?,
            }
        };
        let setting = Setting {
            ends: &network.ends,
            cores: self.cores,
            stop: self.stop,
        };
        let most = rows.iter().map(|row| row.rounds).max();
        for round in 0..most.unwrap_or(0) {
            for row in rows.iter_mut().filter(|row| round < row.rounds) {
                let name = row.contender;
                let Some(program) = self.programs.of(name) else {
                    continue;
                };
                tell(&format!("{} {name}", measure.id));
                match take_turn(measure, name, program, &setting, round as u64 + 1) {
                    // A signal to the whole process group also ends the processes: that is no failure of
                    // theirs.
                    Err(_) if self.stop.asked() => return Err(ToolError::Interrupted),
                    turn => {
                        if let (Some(log), Ok(turn)) = (&mut self.latency_log, &turn) {
                            log.add(measure.id, name, turn);
                        }
                        row.add(turn.map_err(|error| error.to_string()));
                    }
                }
            }
        }
        Ok(())
    }
}
