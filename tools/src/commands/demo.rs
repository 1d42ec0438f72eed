//! `tickcast demo`: runs a publisher and its subscribers on this host as separate processes, with
//! injected loss. It ends with the proof that every subscriber received every record, or lists the
//! records that are missing.

mod published;
mod setting;
mod verdict;

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde::Deserialize;

use published::published_at;
use tickcast_tools::exit::{Exit, ToolError};
use tickcast_tools::report::ReportPage;
use tickcast_tools::support::args::seconds;
use tickcast_tools::support::faults::FaultArgs;
use tickcast_tools::support::files::{Folder, check_writable, read_json, write_json};
use tickcast_tools::support::output::Output;
use tickcast_tools::support::processes::{Process, this_program};
use tickcast_tools::support::progress::ProgressReport;
use tickcast_tools::support::signals::Stop;
use tickcast_tools::support::table::thousands;
use tickcast_tools::support::watched::Watched;
use verdict::{Published, Verdict};

/// Source and volume of the market data, number of subscribers, and faults to inject.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Publish this recording instead of a simulated market.
    #[arg(long, value_name = "FILE")]
    capture: Option<PathBuf>,
    /// Disable repair: the report lists every missing record as lost.
    #[arg(long)]
    no_repair: bool,
    /// Number of subscriber processes.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=64))]
    subscribers: u32,
    /// Publish at most this many records [default: all of a recording, 500,000 of a simulation].
    #[arg(long, value_name = "N")]
    records: Option<u64>,
    /// Venue messages per second.
    #[arg(long, value_name = "N", default_value_t = 50_000, value_parser = clap::value_parser!(u64).range(1..))]
    rate: u64,
    /// Write the results of the publisher and all subscribers to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    summary: Option<PathBuf>,
    /// Write the latency of the first eight subscribers, and the verdict, to this file, as a page of
    /// `tickcast report`.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// The publisher to run [default: tickcast-publisher beside this program].
    #[arg(long, value_name = "FILE")]
    publisher_bin: Option<PathBuf>,
    /// Keep configs, logs and summaries of all processes in this directory.
    #[arg(long, value_name = "FOLDER")]
    keep_logs: Option<PathBuf>,
    /// Give up after this time.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "300")]
    timeout: Duration,
    /// Show no progress.
    #[arg(long)]
    quiet: bool,
    /// Faults as in `inject`, with a separate seed for each subscriber; by default 1% is dropped, in
    /// bursts of 3.
    #[command(flatten)]
    faults: FaultArgs,
}

const DROP_DEFAULT: f64 = 0.01;
const BURST_DEFAULT: f64 = 3.0;
const RECORDS_DEFAULT: u64 = 500_000;
/// Time limit for a process to become ready, and for a subscriber to end after the publisher.
const START_PATIENCE: Duration = Duration::from_secs(120);
const END_PATIENCE: Duration = Duration::from_secs(120);

/// Runs the demo, and prints its verdict.
///
/// # Errors
/// Returns [`ToolError`] if a process can't be started or fails, with the end of its log. Also
/// returns it if the timeout passes, or if a signal arrives.
pub(crate) fn run(args: &Args) -> Result<Exit, ToolError> {
    let stop = Stop::on_signals()?;
    for file in [&args.summary, &args.report].into_iter().flatten() {
        check_writable(file)?;
    }
    let folder = Folder::new("demo", args.keep_logs.as_deref())?;
    let seed = args.fault_config()?.seed;
    let (mut publisher, ready) = start_publisher(args, folder.path(), &stop)?;
    let mut subscribers = (1..=args.subscribers)
        .map(|n| start_subscriber(args, folder.path(), n, ready.control))
        .collect::<Result<Vec<_>, _>>()?;
    let code = watch(args, &mut publisher, &mut subscribers, &ready, &stop)?;
    let published: Published = read_json(&folder.path().join("publisher.json"), "a summary")?;
    let received = (subscribers.iter())
        .map(|subscriber| read_json(&folder.path().join(subscriber.file("json")), "a summary"))
        .collect::<Result<Vec<_>, _>>()?;
    let verdict = Verdict::new(published, received, seed, !args.no_repair);
    let mut output = Output::stdout();
    output.line(&verdict)?;
    output.flush()?;
    if let Some(path) = &args.summary {
        write_json(path, &verdict)?;
    }
    if let Some(path) = &args.report {
        let mut report = ReportPage::default();
        for subscriber in &subscribers {
            let log = folder.path().join(subscriber.file("hlog"));
            report.add_log(subscriber.process.name.clone(), &log)?;
        }
        let lines = verdict.to_string().lines().map(str::to_owned).collect();
        report.add_account("demo".into(), lines);
        report.write(path)?;
    }
    if code != 0 && !verdict.explains_publisher() {
        let how = format_args!("ended with {code}, and its summary does not give the reason");
        return Err(publisher.failed(how));
    }
    Ok(Exit::whole_if(verdict.whole))
}

impl Args {
    /// Returns the maximum number of records to publish; `None`: all of a recording.
    fn records_max(&self) -> Option<u64> {
        let simulated = self.capture.is_none().then_some(RECORDS_DEFAULT);
        self.records.or(simulated)
    }

    /// Returns the faults of the first subscriber, with the demo's own defaults.
    fn fault_config(&self) -> Result<tickcast_transport::faults::FaultConfig, ToolError> {
        let mut faults = self.faults.clone();
        if faults.plan.is_none() && faults.drop.is_none() {
            faults.drop = Some(DROP_DEFAULT);
        }
        if faults.drop.is_some_and(|drop| drop > 0.0) {
            faults.burst.get_or_insert(BURST_DEFAULT);
        }
        faults.config()
    }
}

/// The publisher's ready file.
#[derive(Debug, Deserialize)]
struct Ready {
    control: SocketAddr,
    admin: Option<SocketAddr>,
}

fn start_publisher(args: &Args, folder: &Path, stop: &Stop) -> Result<(Process, Ready), ToolError> {
    let program = match &args.publisher_bin {
        Some(program) => program.clone(),
        None => this_program()?.with_file_name("tickcast-publisher"),
    };
    if !program.exists() {
        return Err(ToolError::Usage(format!(
            "no publisher program at {}; build it (cargo build -p tickcast-publisher), or give \
             its path with --publisher-bin",
            program.display()
        )));
    }
    let config = folder.join("publisher.config.json");
    write_json(&config, &setting::publisher_config(args)?)?;
    let ready_file = folder.join("publisher.ready.json");
    forget(&ready_file)?;
    let summary = folder.join("publisher.json");
    forget(&summary)?;
    let options = [
        ("--config", config.as_path()),
        ("--summary", &summary),
        ("--ready-file", &ready_file),
    ];
    let mut command = Command::new(&program);
    for (option, path) in options {
        command.arg(option).arg(path);
    }
    let mut publisher = Process::start("publisher", command, folder)?;
    let started_at = Instant::now();
    while !ready_file.exists() {
        if let Some(code) = publisher.ended()? {
            return Err(publisher.failed(format_args!("ended with {code} before it was ready")));
        }
        if started_at.elapsed() >= START_PATIENCE || stop.asked() {
            return Err(publisher.failed("was not ready in time"));
        }
        sleep(Duration::from_millis(10));
    }
    Ok((publisher, read_json(&ready_file, "a ready file")?))
}

/// Removes a file that an earlier run left in a kept directory.
fn forget(path: &Path) -> Result<(), ToolError> {
    match std::fs::remove_file(path) {
        Err(source) if source.kind() != ErrorKind::NotFound => Err(ToolError::Write {
            path: path.into(),
            source,
        }),
        _ => Ok(()),
    }
}

fn start_subscriber(
    args: &Args,
    folder: &Path,
    n: u32,
    control: SocketAddr,
) -> Result<Watched, ToolError> {
    let name = format!("s{n}");
    let mut faults = args.fault_config()?;
    // Keep the subscribers' seeds far apart, because each channel and line derives its seed by counting
    // up from this one.
    faults.seed = faults
        .seed
        .wrapping_mul(100_000)
        .wrapping_add(u64::from(n) * 1_000);
    let plan = folder.join(format!("{name}.faults.json"));
    write_json(&plan, &faults)?;
    let summary = folder.join(format!("{name}.json"));
    forget(&summary)?;
    let mut command = Command::new(this_program()?);
    command.args([
        "listen",
        "--format",
        "count-json",
        "--every",
        "0.1",
        "--digest",
    ]);
    command.args([
        "--quiet",
        "--until-dead",
        "--join-timeout",
        "20",
        "--name",
        &name,
    ]);
    command.arg("--connect").arg(control.to_string());
    command.arg("--plan").arg(&plan);
    command.arg("--summary").arg(&summary);
    if args.report.is_some() {
        let log = folder.join(format!("{name}.hlog"));
        forget(&log)?;
        command
            .arg("--hlog")
            .arg(&log)
            .args(["--hlog-interval-s", "1"]);
    }
    for (channel, _) in setting::CHANNELS {
        command.arg("--channel").arg(channel);
    }
    if args.no_repair {
        command.arg("--no-repair");
    }
    Watched::start(&name, command, folder)
}

/// Shows progress until all processes have ended by themselves. Returns the publisher's exit code.
fn watch(
    args: &Args,
    publisher: &mut Process,
    subscribers: &mut [Watched],
    ready: &Ready,
    stop: &Stop,
) -> Result<i32, ToolError> {
    let mut progress = ProgressReport::new("demo", args.records_max(), args.quiet);
    let started_at = Instant::now();
    let mut publisher_ended: Option<(i32, Instant)> = None;
    loop {
        if stop.asked() {
            return Err(ToolError::Interrupted);
        }
        if started_at.elapsed() >= args.timeout {
            return Err(publisher.failed(format_args!(
                "and its subscribers did not end within --timeout"
            )));
        }
        if publisher_ended.is_none() {
            match publisher.ended()? {
                // Exit code 1 reports a loss at the source or at a subscriber; the verdict must explain it.
                Some(code @ (0 | 1)) => publisher_ended = Some((code, Instant::now())),
                Some(code) => return Err(publisher.failed(format_args!("failed with {code}"))),
                None => {}
            }
        }
        let mut running = 0;
        for subscriber in subscribers.iter_mut() {
            match subscriber.process.ended()? {
                Some(0 | 1) => {}
                Some(code) => {
                    return Err(subscriber
                        .process
                        .failed(format_args!("failed with {code}")));
                }
                None if publisher_ended.is_some_and(|(_, at)| at.elapsed() >= END_PATIENCE) => {
                    return Err(subscriber
                        .process
                        .failed("did not end after the publisher ended"));
                }
                None => running += 1,
            }
        }
        if let Some((code, _)) = publisher_ended.filter(|_| running == 0) {
            progress.finish();
            return Ok(code);
        }
        let slowest = subscribers
            .iter()
            .map(|s| s.counts().delivered_records)
            .min();
        progress.show(slowest.unwrap_or(0), || {
            let published = ready.admin.and_then(published_at);
            reported(published, subscribers)
        });
        sleep(Duration::from_millis(20));
    }
}

/// Returns one line of progress.
fn reported(published: Option<u64>, subscribers: &[Watched]) -> String {
    let published = published.map(|n| format!("published {}", thousands(n)));
    let each = subscribers.iter().map(|subscriber| {
        let counts = subscriber.counts();
        let (delivered, lost) = (counts.delivered_records, counts.lost_records);
        let (delivered, recovered) = (thousands(delivered), thousands(counts.missing_recovered));
        let name = &subscriber.process.name;
        match lost {
            0 => format!("{name} {delivered} ({recovered} repaired)"),
            _ => format!("{name} {delivered} ({} lost)", thousands(lost)),
        }
    });
    published
        .into_iter()
        .chain(each)
        .collect::<Vec<_>>()
        .join(" | ")
}
