//! `lab soak`: hours of watching in minutes. A publisher and a subscriber write interval logs, `top` and an
//! open page follow them, and both are scraped. The run ends with a check that no memory grows.

use std::fmt;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::memory::{Growth, Memory};
use tickcast_publisher::internal::http::{EndpointAddress, ask};
use tickcast_tools::exit::{Exit, ToolError};
use tickcast_tools::support::args::positive;
use tickcast_tools::support::files::{Folder, check_writable, read_json, write_json};
use tickcast_tools::support::output::Output;
use tickcast_tools::support::processes::{Process, killed_with_us, this_program};
use tickcast_tools::support::progress::ProgressReport;
use tickcast_tools::support::signals::Stop;
use tickcast_tools::support::table::{table, thousands};

/// Time for a process to start, and for an answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// The shortest interval of an interval log, and between two polls of `top`.
const INTERVAL_MIN_S: f64 = 0.1;

/// Length and speed of a soak.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Hours of watching: a scrape, an interval of each log and a poll of `top` for each second.
    #[arg(long, value_name = "N", default_value = "10", value_parser = positive)]
    hours: f64,
    /// Times as fast as a clock. Logs and `top` follow at most ten times as fast.
    #[arg(long, value_name = "N", default_value = "50", value_parser = positive)]
    speed: f64,
    /// Venue messages a second.
    #[arg(long, value_name = "N", default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(1..))]
    rate: u64,
    /// Write the result to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    summary: Option<PathBuf>,
    /// Folder of the programs tickcast and tickcast-publisher [default: that of this program].
    #[arg(long, value_name = "FOLDER")]
    programs: Option<PathBuf>,
    /// Show no progress.
    #[arg(long)]
    quiet: bool,
}

/// The result of a soak.
#[derive(Debug, Serialize)]
struct Verdict {
    scrapes: u64,
    page_bytes: u64,
    /// Growth of each process.
    growth: Vec<(&'static str, Growth)>,
    /// All violations. Empty: the run passes.
    wrong: Vec<String>,
}

/// Runs a soak.
///
/// # Errors
/// [`ToolError`] if a process can't be started or does not answer, or if a signal ended the run.
pub(crate) fn run(args: &Args) -> Result<Exit, ToolError> {
    args.summary.as_deref().map_or(Ok(()), check_writable)?;
    let stop = Stop::on_signals()?;
    let folder = Folder::new("soak", None)?;
    let mut watched = Watched::start(args, folder.path())?;
    let length = Duration::from_secs_f64(args.hours * 3_600.0 / args.speed);
    let mut progress = ProgressReport::new("soak", Some(length.as_secs()), args.quiet);
    let (began, mut scrapes) = (Instant::now(), 0_u64);
    let mut page = Page::open(watched.admin)?;
    while began.elapsed() < length {
        if stop.asked() {
            return Err(ToolError::Interrupted);
        }
        for at in [watched.admin, watched.metrics] {
            scrape(at)?;
            scrapes += 1;
        }
        page.read()?;
        watched.look_after()?;
        progress.show(began.elapsed().as_secs(), || format!("{scrapes} scrapes"));
        let next = Duration::from_secs_f64(scrapes as f64 / 2.0 / args.speed);
        sleep(next.saturating_sub(began.elapsed()));
    }
    progress.finish();
    let verdict = watched.verdict(scrapes, page.bytes);
    let mut output = Output::stdout();
    output.line(&verdict)?;
    output.flush()?;
    if let Some(path) = &args.summary {
        write_json(path, &verdict)?;
    }
    Ok(Exit::whole_if(verdict.wrong.is_empty()))
}

/// The processes under test, and the addresses that they serve.
struct Watched {
    /// The process whose memory counts, by role.
    actors: Vec<(&'static str, Process, u32, Memory)>,
    admin: SocketAddr,
    metrics: SocketAddr,
}

/// The publisher's ready file.
#[derive(Debug, Deserialize)]
struct Ready {
    control: SocketAddr,
    admin: SocketAddr,
}

impl Watched {
    fn start(args: &Args, folder: &Path) -> Result<Self, ToolError> {
        let own = this_program()?;
        let beside = args
            .programs
            .clone()
            .unwrap_or_else(|| own.with_file_name(""));
        let interval_s = (1.0 / args.speed).max(INTERVAL_MIN_S);
        let file = |name: &str| folder.join(name);
        let config = json!({
            "name": "soak", "control": "127.0.0.1:0", "admin": "127.0.0.1:0", "interface": "127.0.0.1",
            "channels": [{
                "id": 1, "name": "equities", "slots": 4_096,
                "fan_out": [{"transport": "udp", "lines": [{"group": "239.255.83.1:26083"}]}],
            }],
            "inputs": [{
                "source": 1, "kind": "simulator", "seed": 1, "symbols": 200, "messages": u32::MAX,
                "duration_ms": 0, "pace": {"messages_per_s": args.rate},
            }],
            "latency_log": {"path": file("publisher.hlog"), "interval_ms": (interval_s * 1e3) as u64},
        });
        write_json(&file("config.json"), &config)?;
        let mut command = Command::new(beside.join("tickcast-publisher"));
        command
            .arg("--force")
            .arg("--config")
            .arg(file("config.json"));
        command.arg("--ready-file").arg(file("ready.json"));
        let mut publisher = Process::start("publisher", killed_with_us(&command), folder)?;
        let ready: Ready = await_file(&file("ready.json"), &mut publisher, |path| {
            read_json(path, "a ready file").ok()
        })?;

        let mut command = Command::new(beside.join("tickcast"));
        command.args(["listen", "--quiet", "--format", "count", "--every", "60"]);
        // Nothing is dropped on purpose: a list of injected faults is what would grow.
        command.args(["--channel", "equities", "--metrics", "127.0.0.1:0"]);
        command.arg("--connect").arg(ready.control.to_string());
        command.arg("--hlog").arg(file("listen.hlog"));
        command.args(["--hlog-interval-s", &interval_s.to_string()]);
        let mut listen = Process::start("listen", killed_with_us(&command), folder)?;
        let metrics = await_file(&file("listen.log"), &mut listen, |path| {
            let log = fs::read_to_string(path).ok()?;
            let rest = log.split("metrics at http://").nth(1)?;
            rest.split('/').next()?.parse().ok()
        })?;

        // `top` draws on a terminal, which `script` provides.
        let top = format!(
            "stty rows 50 cols 160; exec {} top {} --every {interval_s} --hlog {} --hlog {}",
            beside.join("tickcast").display(),
            ready.admin,
            file("publisher.hlog").display(),
            file("listen.hlog").display(),
        );
        let mut command = Command::new("script");
        command
            .env("TERM", "xterm")
            .args(["-qec", &top, "/dev/null"]);
        let mut terminal = Process::start("top", killed_with_us(&command), folder)?;
        // Nothing reads what it draws, and a full pipe would stop it.
        let mut screen = terminal.take_stdout();
        std::thread::spawn(move || {
            let mut drawn = [0; 64 << 10];
            while screen
                .as_mut()
                .is_some_and(|it| it.read(&mut drawn).is_ok_and(|len| len > 0))
            {}
        });
        let children = format!("/proc/{0}/task/{0}/children", terminal.id());
        let top = await_file(Path::new(&children), &mut terminal, |path| {
            let child = fs::read_to_string(path).ok()?.trim().parse::<u32>().ok()?;
            let name = fs::read_to_string(format!("/proc/{child}/comm")).ok()?;
            (name.trim() == "tickcast").then_some(child)
        })?;
        let of = |name, process: Process, id| (name, process, id, Memory::of_newborn());
        let (publisher_id, listen_id) = (publisher.id(), listen.id());
        Ok(Self {
            actors: vec![
                of("publisher", publisher, publisher_id),
                of("listen", listen, listen_id),
                of("top", terminal, top),
            ],
            admin: ready.admin,
            metrics,
        })
    }

    /// Samples the memory of all processes, none of which may end.
    fn look_after(&mut self) -> Result<(), ToolError> {
        for (_, process, id, memory) in &mut self.actors {
            if let Some(code) = process.ended()? {
                return Err(process.failed(format_args!("ended with {code}")));
            }
            memory.look(*id);
        }
        Ok(())
    }

    fn verdict(self, scrapes: u64, page_bytes: u64) -> Verdict {
        let growth = self.actors.iter();
        let growth: Vec<_> = growth
            .filter_map(|(name, _, _, memory)| Some((*name, memory.growth()?)))
            .collect();
        let leaks = growth.iter().filter(|(_, growth)| growth.is_a_leak());
        let mut wrong: Vec<_> = leaks
            .map(|(name, _)| format!("{name}: its memory grows"))
            .collect();
        if page_bytes == 0 {
            wrong.push("the open page received no event".into());
        }
        Verdict {
            scrapes,
            page_bytes,
            growth,
            wrong,
        }
    }
}

/// Returns what `read` finds in a file that a process writes, once it is there.
fn await_file<T>(
    path: &Path,
    process: &mut Process,
    read: impl Fn(&Path) -> Option<T>,
) -> Result<T, ToolError> {
    let began = Instant::now();
    loop {
        if let Some(found) = read(path) {
            return Ok(found);
        }
        if process.ended()?.is_some() || began.elapsed() > PATIENCE {
            return Err(process.failed(format_args!("did not write {}", path.display())));
        }
        sleep(Duration::from_millis(20));
    }
}

/// Scrapes the metrics once.
fn scrape(at: SocketAddr) -> Result<(), ToolError> {
    let answer = ask(&EndpointAddress::Port(at), None, "/metrics", None, PATIENCE);
    let (status, text) = answer.map_err(|source| ToolError::Host {
        what: "scrape the metrics",
        source,
    })?;
    match status == 200 && text.contains("tickcast_build_info") {
        true => Ok(()),
        false => Err(ToolError::Usage(format!(
            "no metrics at {at}: {status} {text:.200}"
        ))),
    }
}

/// An open page: the events that a browser receives.
struct Page {
    stream: TcpStream,
    bytes: u64,
}

impl Page {
    fn open(admin: SocketAddr) -> Result<Self, ToolError> {
        let stream = TcpStream::connect(admin).and_then(|mut stream| {
            write!(stream, "GET /events HTTP/1.1\r\nHost: {admin}\r\n\r\n")?;
            stream.set_nonblocking(true)?;
            Ok(stream)
        });
        let opened = stream.map(|stream| Self { stream, bytes: 0 });
        opened.map_err(|source| ToolError::Host {
            what: "open the page",
            source,
        })
    }

    /// Reads what has arrived.
    fn read(&mut self) -> Result<(), ToolError> {
        let mut events = [0; 64 << 10];
        loop {
            let read = self.stream.read(&mut events);
            let source = match read {
                Ok(0) => std::io::ErrorKind::UnexpectedEof.into(),
                Ok(len) => {
                    self.bytes += len as u64;
                    continue;
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => error,
            };
            return Err(ToolError::Host {
                what: "read the events of the page",
                source,
            });
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rows = table(&["", "KiB in its second quarter", "in its last", "at most"]);
        for (name, it) in &self.growth {
            let numbers = [it.early_kib, it.late_kib, it.most_kib].map(thousands);
            rows.add_row(std::iter::once((*name).to_owned()).chain(numbers));
        }
        let (scrapes, bytes) = (thousands(self.scrapes), thousands(self.page_bytes));
        writeln!(
            f,
            "{rows}\n{scrapes} scrapes; the open page received {bytes} bytes"
        )?;
        self.wrong
            .iter()
            .try_for_each(|wrong| writeln!(f, "WRONG: {wrong}"))?;
        f.write_str(
            match (
                self.wrong.is_empty(),
                self.growth.iter().all(|(_, it)| it.is_grown_up()),
            ) {
                (false, _) => "The soak failed.",
                (true, true) => "No memory grows.",
                (true, false) => "Too short to judge memory: a process must live for ten minutes.",
            },
        )
    }
}
