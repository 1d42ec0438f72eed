//! `tickcast-publisher`: the publisher as a service. Exit codes: 0 success, 1 loss or a finding, 2
//! usage or config, 3 unreachable, 4 internal.

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use clap::Parser;
use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use tickcast_log::program::LogFormat;
use tickcast_publisher::Config;
use tickcast_publisher::PublisherError;
use tickcast_publisher::internal::{
    AuditFile, AuditFilter, CommandLine, KnownSymbols, ReloadHooks, Service, ServiceManager,
    SetLog, Setting, compare_with_running, find_others, lines_lost, preflight, schema,
};
use tickcast_publisher::summary::EndError;
use tickcast_reliability::types::Epoch;
use tickcast_transport::host::atomic_file;
use tickcast_transport::host::files::FileError;
use tracing::Level;
use tracing_subscriber::filter::{FilterExt, Targets};
use tracing_subscriber::prelude::*;
use tracing_subscriber::{EnvFilter, fmt, reload};

fn main() -> ExitCode {
    let cli = CommandLine::parse();
    // A write above the limit of file sizes then fails, instead of ending the process. Without the handler
    // only the message is missing.
    let _ = signal_hook::flag::register(SIGXFSZ, Arc::default());
    let audit = (cli.audit.as_deref())
        .map(|path| append_to(path, cli.log_format))
        .transpose();
    let (audit, opened) = audit.map_or_else(|error| (None, Err(error)), |file| (file, Ok(())));
    let set_log = match start_log(cli.log_format, audit) {
        Ok(set_log) => set_log,
        Err(error) => {
            eprintln!("ERROR {error}");
            return ExitCode::from(error.exit_code());
        }
    };
    exit_on_panic();
    let file = cli.config.clone().unwrap_or_default();
    let ended = opened.and_then(|()| run(&cli, &file, set_log));
    ended.unwrap_or_else(|error| {
        match error.is_of_config() {
            true => tracing::error!("{}: {error}", file.display()),
            false => tracing::error!("{error}"),
        }
        ExitCode::from(error.exit_code())
    })
}

fn run(
    cli: &CommandLine,
    file: &Path,
    set_log: Option<SetLog>,
) -> Result<ExitCode, PublisherError> {
    if cli.schema {
        print(&format!("{:#}\n", schema()))?;
        return Ok(ExitCode::SUCCESS);
    }
    let config = Config::read(file)?;
    if let Some(address) = cli.diff {
        let settings = compare_with_running(config, address)?;
        let lines = settings.iter().map(|setting| format!("{setting}\n"));
        print(&lines.collect::<String>())?;
        let is_same = settings.iter().all(Setting::is_same);
        return Ok(ExitCode::from(u8::from(!is_same)));
    }
    let plan = preflight(config)?;
    if cli.check {
        let symbols = KnownSymbols::of(&plan.config.inputs)?;
        print(&format!("{plan}{}", symbols.matches(&plan.config.channels)))?;
        if plan.config.standby.is_none() {
            for other in find_others(&plan) {
                print(&format!("warning: {other}\n"))?;
            }
        }
        return Ok(ExitCode::SUCCESS);
    }
    if cli.print_effective {
        print(&format!("{:#}\n", plan.config.to_json()))?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(set_log) = &set_log {
        set_log(plan.config.log());
    }
    for warning in &plan.warnings {
        tracing::warn!("{warning}");
    }
    for path in cli.ready_file.iter().chain(&cli.summary) {
        check_writable(path)?;
    }
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        // The second signal ends the process at once; the first only sets the flag.
        signal_hook::flag::register_conditional_shutdown(signal, 1, stop.clone())
            .and_then(|_| signal_hook::flag::register(signal, stop.clone()))
            .map_err(|source| PublisherError::System {
                what: "receive signals",
                source,
            })?;
    }
    let requested = Arc::new(AtomicBool::new(false));
    on_hang_up(&requested)?;
    // A standby listens to the publisher that it mirrors, and publishes once that one is gone.
    if plan.config.standby.is_none() {
        for other in find_others(&plan) {
            if !cli.force {
                return Err(PublisherError::OtherPublisher(other));
            }
            tracing::warn!("{other}");
        }
    }
    let hooks = ReloadHooks { requested, set_log };
    let publisher = Service::open(plan, stop)?.reloading(hooks);
    let control = publisher.control_address();
    let endpoints = publisher.endpoints();
    let shared = publisher.shared();
    let is_standby = shared.epoch == Epoch::NONE;
    tracing::info!(
        publisher = shared.name,
        epoch = (!is_standby).then_some(shared.epoch.0),
        %control,
        admin = endpoints.admin.map(tracing::field::display),
        command_socket = endpoints.command_socket.as_ref().map(|it| tracing::field::display(it.display())),
        command_port = endpoints.command_port.map(tracing::field::display),
        "{}",
        if is_standby { "standing by" } else { "listening" }
    );
    if let Some(path) = &cli.ready_file {
        let inputs: Vec<_> = (publisher.listen_addresses().into_iter())
            .map(|(source, listen)| json!({ "source": source, "listen": listen }))
            .collect();
        let ready = json!({
            "control": control,
            "admin": endpoints.admin,
            "command_socket": endpoints.command_socket,
            "command_port": endpoints.command_port,
            "inputs": inputs,
        });
        write_whole(path, &ready)?;
    }
    let status = if is_standby {
        "standing by"
    } else {
        "listening"
    };
    let manager = ServiceManager::from_environment();
    manager.ready(status, shared.clone())?;
    let ended = publisher.run();
    manager.stopping();
    let (summary, kept) = match ended {
        Ok(summary) => (summary, Ok(())),
        Err(EndError::NotKept { summary, source }) => (*summary, Err(*source)),
        Err(EndError::Failed(error)) => return Err(error),
    };
    let written = cli.summary.as_ref();
    let written = written.map_or(Ok(()), |path| write_whole(path, summary.json()));
    let lost = lines_lost();
    if lost > 0 {
        tracing::error!("{lost} audit lines could not be written, and are lost");
    }
    tracing::info!(
        records = summary.published_records(),
        loss = summary.has_loss(),
        "done"
    );
    if let (Err(_), Err(kept)) = (&written, &kept) {
        // Log both errors, because the process ends with the first and would hide the second.
        tracing::error!("{kept}");
    }
    written?;
    kept?;
    Ok(if summary.has_loss() {
        ExitCode::from(1)
    } else {
        ExitCode::SUCCESS
    })
}

/// Starts the log on standard error, and the audit log in its own file. Returns what changes the lines that
/// are logged; nothing if RUST_LOG selects them.
fn start_log(
    format: LogFormat,
    audit: Option<AuditFile>,
) -> Result<Option<SetLog>, PublisherError> {
    let selected = EnvFilter::try_from_default_env().ok();
    let is_selected = selected.is_some();
    let filter = selected.unwrap_or_else(|| EnvFilter::new("info"));
    let (filter, changed) = reload::Layer::new(filter);
    let log = tickcast_log::program::stderr(filter, format);
    let log = log.map_err(|source| PublisherError::System {
        what: "start the thread of the log",
        source,
    })?;
    let audit = audit.map(|file| {
        let lines = fmt::layer()
            .json()
            .flatten_event(true)
            .with_writer(Mutex::new(file));
        let of_audit = Targets::new().with_target("audit", Level::DEBUG);
        lines.with_filter(of_audit.and(AuditFilter))
    });
    tracing_subscriber::registry().with(log).with(audit).init();
    let set_log = move |directives: &str| {
        // The plan has checked them, and the log lasts as long as the process.
        let _ = changed.reload(EnvFilter::new(directives));
    };
    Ok((!is_selected).then(|| Box::new(set_log) as SetLog))
}

/// Sets the flag once the process receives SIGHUP.
fn on_hang_up(flag: &Arc<AtomicBool>) -> Result<(), PublisherError> {
    let registered = signal_hook::flag::register(SIGHUP, flag.clone());
    registered
        .map(drop)
        .map_err(|source| PublisherError::System {
            what: "receive signals",
            source,
        })
}

fn append_to(path: &Path, format: LogFormat) -> Result<AuditFile, PublisherError> {
    let reopen = Arc::new(AtomicBool::new(false));
    on_hang_up(&reopen)?;
    // An error with the audit file occurs within a log line, so report it outside the log.
    let report: fn(&str) = match format {
        LogFormat::Text => |text| eprintln!("ERROR {text}"),
        LogFormat::Json => |text| {
            eprintln!(
                "{}",
                json!({ "level": "ERROR", "fields": { "message": text } })
            );
        },
    };
    let file = AuditFile::append_to(path.to_owned(), reopen, report);
    file.map_err(|error| not_written(path, error))
}

/// A panic in any thread ends the process: a publisher that lost a thread would look alive.
fn exit_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        std::process::exit(4);
    }));
}

fn print(text: &str) -> Result<(), PublisherError> {
    let written = io::stdout().write_all(text.as_bytes());
    written.map_err(|source| PublisherError::System {
        what: "write to standard output",
        source,
    })
}

/// Checks before the session whether a file can be written at its end.
fn check_writable(path: &Path) -> Result<(), PublisherError> {
    let checked = atomic_file::check_writable(path);
    checked.map_err(|error| not_written(path, error))
}

fn write_whole(path: &Path, json: &serde_json::Value) -> Result<(), PublisherError> {
    let text = format!("{json:#}\n");
    let written = atomic_file::write_atomic(path, text.as_bytes());
    written.map_err(|error| not_written(path, error))
}

fn not_written(path: &Path, error: FileError) -> PublisherError {
    match error {
        FileError::Io { source, .. } => PublisherError::Write {
            path: path.to_owned(),
            source,
        },
        error => PublisherError::File(error),
    }
}
