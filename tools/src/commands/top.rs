//! `tickcast top`: shows publishers and their subscribers live, or prints one sample as JSON.

mod latency;
mod model;
mod screen;
pub(crate) mod status;

use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use serde_json::json;
use tickcast_hlog::each_interval;
use tickcast_publisher::internal::http::{EndpointAddress, ask};
use tickcast_transport::control::resolve;

use self::latency::{LastIntervals, LatencyRow};
use self::model::{Model, Polled, Rows};
use self::screen::Screen;
use self::status::{Losses, Status};
use tickcast_tools::exit::{Exit, ToolError};
use tickcast_tools::support::args::seconds;
use tickcast_tools::support::files::open_regular;
use tickcast_tools::support::output::Output;
use tickcast_tools::support::plain::Plain;
use tickcast_tools::support::signals::Stop;

/// The publishers, and how to show them.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Addresses of admin ports.
    #[arg(value_name = "HOST:PORT", required = true)]
    publishers: Vec<String>,
    /// Interval between two polls of a publisher.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "1")]
    every: Duration,
    /// Maximum time to wait for a page.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "2")]
    wait: Duration,
    /// Show the latency percentiles of an interval log (`listen --hlog`, or a publisher's `latency_log`).
    #[arg(long, value_name = "FILE")]
    hlog: Vec<PathBuf>,
    /// Poll twice, print the second sample, and end.
    #[arg(long, requires = "json")]
    once: bool,
    /// Print JSON.
    #[arg(long, requires = "once")]
    json: bool,
}

/// Interval at which keys and answers are looked for.
const STEP: Duration = Duration::from_millis(50);
/// The shortest interval between polls: a page is rendered ten times a second.
const EVERY_MIN: Duration = Duration::from_millis(200);
/// Maximum length of an interval log that is read again and again.
const LOG_LEN_MAX: u64 = 32 << 20;

/// An answer: index of the publisher, when it arrived, and its contents.
type Answer = (usize, Duration, Polled);

/// Shows the publishers until the user quits, or prints one sample.
///
/// # Errors
/// Returns [`ToolError`] if no publisher answers `--once`, a log is no regular file, or the terminal can't be
/// used.
pub(crate) fn run(args: &Args) -> Result<Exit, ToolError> {
    let began = Instant::now();
    for path in &args.hlog {
        // A log may come later; another kind of file never becomes one.
        if let Err(error @ ToolError::File(_)) = open_regular(path) {
            return Err(error);
        }
    }
    if args.once {
        return once(args, began);
    }
    let stop = Stop::on_signals()?;
    let answers = poll_all(args, began)?;
    let terminal = ratatui::try_init().map_err(|source| ToolError::Host {
        what: "draw on this terminal; use --once --json where there is none",
        source,
    })?;
    let shown = show(args, terminal, &answers, &stop);
    ratatui::restore();
    shown.map_err(|source| ToolError::Host {
        what: "draw on this terminal",
        source,
    })?;
    Ok(Exit::Whole)
}

/// Asks an admin port for a page.
///
/// # Errors
/// Returns a text that names the cause, for a person.
pub(crate) fn page(target: &str, path: &str, wait: Duration) -> Result<String, String> {
    let found = resolve(target).map_err(|error| format!("{error}; give HOST:PORT"))?;
    let address = found.first().copied().map(EndpointAddress::Port);
    let address = address.ok_or("the name has no address")?;
    let (status, body) = ask(&address, None, path, None, wait)
        .map_err(|error| format!("{error}; is this the publisher's admin port?"))?;
    match status {
        200 => Ok(body),
        421 => Err("it refuses this name; add the name to its admin_hosts".into()),
        other => Err(format!(
            "{path} answers {other}; give the admin port of a publisher"
        )),
    }
}

fn poll(target: &str, wait: Duration) -> Polled {
    let status = page(target, "/status", wait)?;
    let status = Status::parse(&status).map_err(|error| error.to_string())?;
    // An older publisher has no such page.
    let losses = page(target, "/losses", wait).map(|text| Losses::parse(&text));
    Ok((status, losses.ok().and_then(Result::ok).unwrap_or_default()))
}

/// Polls every publisher in a thread of its own, so that none waits for another.
fn poll_all(args: &Args, began: Instant) -> Result<Receiver<Answer>, ToolError> {
    let (sender, answers) = sync_channel(2 * args.publishers.len());
    for (at, target) in args.publishers.iter().enumerate() {
        let (sender, target) = (sender.clone(), target.clone());
        let (wait, every) = (args.wait, args.every.max(EVERY_MIN));
        let polls = move || poll_on(&sender, at, &target, wait, every, began);
        let thread = thread::Builder::new().name(format!("poll-{at}"));
        thread.spawn(polls).map_err(|source| ToolError::Host {
            what: "start a thread that polls",
            source,
        })?;
    }
    Ok(answers)
}

/// Polls until nobody takes the answers.
fn poll_on(
    sender: &SyncSender<Answer>,
    at: usize,
    target: &str,
    wait: Duration,
    every: Duration,
    began: Instant,
) {
    loop {
        let polled = poll(target, wait);
        match sender.try_send((at, began.elapsed(), polled)) {
            Err(TrySendError::Disconnected(_)) => return,
            // A screen that does not draw needs no answer.
            Ok(()) | Err(TrySendError::Full(_)) => thread::sleep(every),
        }
    }
}

/// Returns the rows of the interval logs that can be read.
fn latencies(args: &Args) -> Vec<LatencyRow> {
    let each = args.hlog.iter().filter_map(|path| rows_of(path));
    each.flatten().collect()
}

/// Returns the rows of an interval log, if it can be read.
fn rows_of(path: &Path) -> Option<Vec<LatencyRow>> {
    let file = open_regular(path).ok()?;
    let is_short = file.metadata().is_ok_and(|it| it.len() <= LOG_LEN_MAX);
    let log = BufReader::new(file).take(LOG_LEN_MAX);
    let mut kept = LastIntervals::default();
    let read = is_short.then(|| each_interval(log, |interval| kept.take(interval)))?;
    read.ok()?;
    Some(kept.rows(&path.display().to_string()))
}

/// Two polls of each publisher, the time of `every` apart.
fn once(args: &Args, began: Instant) -> Result<Exit, ToolError> {
    let mut model = Model::new(&args.publishers);
    for nth in 0..2 {
        if nth > 0 {
            thread::sleep(args.every.max(EVERY_MIN));
        }
        let polls: Vec<Answer> = thread::scope(|scope| {
            let each = args.publishers.iter().enumerate().map(|(at, target)| {
                scope.spawn(move || {
                    let polled = poll(target, args.wait);
                    (at, began.elapsed(), polled)
                })
            });
            let threads: Vec<_> = each.collect();
            threads
                .into_iter()
                .filter_map(|it| it.join().ok())
                .collect()
        });
        for (at, when, polled) in polls {
            model.take(at, when, polled);
        }
    }
    let rows = model.rows();
    let mut output = Output::stdout();
    let mut shown = json!(rows);
    shown["latency"] = json!(latencies(args));
    output.json(shown)?;
    output.flush()?;
    if model.any_answers() {
        return Ok(Exit::Whole);
    }
    Err(ToolError::Unreachable(unanswered(&rows)))
}

fn unanswered(rows: &Rows) -> String {
    let each = rows.publishers.iter().map(|it| {
        let problem = it.problem.as_deref().unwrap_or_default();
        format!("{}: {}", it.target, Plain(problem))
    });
    format!(
        "no publisher answers: {}",
        each.collect::<Vec<_>>().join("; ")
    )
}

fn show(
    args: &Args,
    mut terminal: ratatui::DefaultTerminal,
    answers: &Receiver<Answer>,
    stop: &Stop,
) -> io::Result<()> {
    let mut model = Model::new(&args.publishers);
    let (mut screen, mut rows) = (Screen::default(), model.rows());
    let (mut latency, mut read_at) = (latencies(args), Instant::now());
    let mut is_changed = true;
    while !stop.asked() {
        if is_changed {
            terminal.draw(|frame| screen.draw(frame, &model, &rows, &latency))?;
            is_changed = false;
        }
        while event::poll(Duration::ZERO)? {
            match event::read()? {
                Event::Key(key) if key.kind == KeyEventKind::Press => {
                    let is_interrupt = key.code == KeyCode::Char('c')
                        && key.modifiers.contains(KeyModifiers::CONTROL);
                    if is_interrupt || !screen.press(key.code, &rows) {
                        return Ok(());
                    }
                }
                _ => {}
            }
            is_changed = true;
        }
        match answers.recv_timeout(STEP) {
            Ok((at, when, polled)) => {
                model.take(at, when, polled);
                rows = model.rows();
                is_changed = true;
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
        if !args.hlog.is_empty() && read_at.elapsed() >= args.every.max(EVERY_MIN) {
            (latency, read_at) = (latencies(args), Instant::now());
            is_changed = true;
        }
    }
    Ok(())
}
