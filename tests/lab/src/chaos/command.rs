//! `lab chaos`: kills, stops, cuts off and starves a publisher and subscribers in network namespaces, for
//! as long as you like. The run ends with a check that every record was delivered or declared lost.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::schedule::{Happening, schedule};
use super::stage::{self, Setting, Stage};
use super::verdict::Verdict;
use super::{side, stranger};
use crate::leftovers;
use tickcast_tools::exit::{Exit, ToolError};
use tickcast_tools::report::ReportPage;
use tickcast_tools::support::files::{Folder, check_writable, write_json};
use tickcast_tools::support::output::Output;
use tickcast_tools::support::processes::this_program;
use tickcast_tools::support::progress::ProgressReport;
use tickcast_tools::support::signals::Stop;

/// Length, size and seed of a chaos run.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Length of the part with faults, in minutes.
    #[arg(long, value_name = "N", default_value = "3", value_parser = tickcast_tools::support::args::positive)]
    minutes: f64,
    /// Seed of the schedule of faults.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Number of subscriber processes.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=32))]
    subscribers: u32,
    /// Venue messages a second.
    #[arg(long, value_name = "N", default_value_t = 8_000, value_parser = clap::value_parser!(u64).range(1..))]
    rate: u64,
    /// List the faults that would be injected, and end.
    #[arg(long)]
    list: bool,
    /// If this user may not create network namespaces, say so and end with 0.
    #[arg(long)]
    or_skip: bool,
    /// Write the result to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    summary: Option<PathBuf>,
    /// Write the latency of the first eight subscribers and the verdict to this file, as a page of
    /// `tickcast report`.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// The publisher to run [default: tickcast-publisher beside this program].
    #[arg(long, value_name = "FILE")]
    publisher_bin: Option<PathBuf>,
    /// Keep logs and ledgers of all processes in this folder.
    #[arg(long, value_name = "FOLDER")]
    keep_logs: Option<PathBuf>,
    /// Show no progress.
    #[arg(long)]
    quiet: bool,
}

/// One process of a chaos run; started by `chaos`.
#[derive(Debug, clap::Args)]
pub(crate) struct SideArgs {
    /// The task, as JSON.
    task: String,
}

/// The task of a process.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Task {
    Subscriber(side::Task),
    Stranger(stranger::Task),
}

/// Time to recover after the last fault.
const CONVALESCENCE: Duration = Duration::from_secs(8);
/// How long the processes may take to end.
const END_PATIENCE: Duration = Duration::from_secs(300);

/// Runs a chaos run.
///
/// # Errors
/// [`ToolError`] if the host refuses a step, or if a signal ended the run.
pub(crate) fn run(args: &Args) -> Result<Exit, ToolError> {
    let span = Duration::from_secs_f64(args.minutes * 60.0);
    let happenings = schedule(args.seed, span, args.subscribers as usize);
    let mut output = Output::stdout();
    if args.list {
        happenings.iter().try_for_each(|it| output.line(it))?;
        output.flush()?;
        return Ok(Exit::Whole);
    }
    leftovers::sweep();
    match stage::is_possible() {
        Err(error) if args.or_skip => {
            eprintln!("chaos: SKIPPED, nothing was tested: {error}");
            return Ok(Exit::Whole);
        }
        possible => possible?,
    }
    for file in [&args.summary, &args.report].into_iter().flatten() {
        check_writable(file)?;
    }
    let stop = Stop::on_signals()?;
    let mut folder = Folder::new("chaos", args.keep_logs.as_deref())?;
    let beside = || this_program().map(|program| program.with_file_name("tickcast-publisher"));
    let publisher = args.publisher_bin.clone().map_or_else(beside, Ok)?;
    if !publisher.is_file() {
        return Err(ToolError::Usage(format!(
            "there is no publisher at {}: build tickcast-publisher, or name it with --publisher-bin",
            publisher.display()
        )));
    }
    let setting = Setting {
        publisher,
        folder: folder.path().into(),
        seed: args.seed,
        subscribers: args.subscribers as usize,
        messages_per_s: args.rate,
        interval_logs: args.report.is_some(),
    };
    eprintln!(
        "chaos: seed {}, {} things will happen",
        args.seed,
        happenings.len()
    );
    let mut stage = Stage::new(setting)?;
    play(args, &mut stage, &happenings, span, &stop)?;
    let remains = stage.finish(END_PATIENCE)?;
    let mut verdict = Verdict::new(args.seed, folder.path(), remains)?;
    for it in &happenings {
        *verdict.faults.entry(it.fault.kind()).or_default() += 1;
    }
    output.line(&verdict)?;
    if !verdict.holds() {
        folder.keep();
        output.line(format_args!(
            "Logs and ledgers of all processes are in {}.",
            folder.path().display()
        ))?;
    }
    output.flush()?;
    if let Some(path) = &args.summary {
        write_json(path, &verdict)?;
    }
    if let Some(path) = &args.report {
        write_report(path, folder.path(), &verdict)?;
    }
    Ok(Exit::whole_if(verdict.holds()))
}

/// Writes the page: the interval logs in `folder`, and the verdict.
fn write_report(path: &Path, folder: &Path, verdict: &Verdict) -> Result<(), ToolError> {
    let mut report = ReportPage::default();
    for name in verdict.subscribers.keys() {
        report.add_log(name.clone(), &folder.join(format!("{name}.hlog")))?;
    }
    let lines = verdict.to_string().lines().map(str::to_owned).collect();
    report.add_account("chaos".into(), lines);
    report.write(path)?;
    Ok(())
}

/// Injects all faults of the schedule, and waits until they are over.
fn play(
    args: &Args,
    stage: &mut Stage,
    happenings: &[Happening],
    span: Duration,
    stop: &Stop,
) -> Result<(), ToolError> {
    let began = Instant::now();
    let mut progress = ProgressReport::new("chaos", Some(span.as_secs()), args.quiet);
    let mut to_come = happenings.iter().peekable();
    let mut lasting: Vec<&Happening> = Vec::new();
    while began.elapsed() < span + CONVALESCENCE {
        if stop.asked() {
            return Err(ToolError::Interrupted);
        }
        let now_ms = began.elapsed().as_millis() as u64;
        while let Some(it) = to_come.next_if(|it| it.at_ms <= now_ms) {
            eprintln!("{it}");
            stage.begin(it.fault)?;
            if it.for_ms > 0 {
                lasting.push(it);
            }
        }
        for it in lasting.extract_if(.., |it| it.at_ms + it.for_ms <= now_ms) {
            stage.end(it.fault)?;
        }
        stage.look_after()?;
        progress.show(began.elapsed().as_secs(), || {
            format!("{} still to come", to_come.len())
        });
        std::thread::sleep(Duration::from_millis(10));
    }
    progress.finish();
    Ok(())
}

/// Takes part in a chaos run.
///
/// # Errors
/// [`ToolError`] if the task can't be read or started.
pub(crate) fn side(args: &SideArgs) -> Result<Exit, ToolError> {
    let task = serde_json::from_str(&args.task);
    match task.map_err(|error| ToolError::Usage(format!("the task makes no sense: {error}")))? {
        Task::Subscriber(task) => side::run(&task),
        Task::Stranger(task) => stranger::run(&task),
    }
}
