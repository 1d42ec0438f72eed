//! How a command ends: five exit codes, and an error that says what was wrong, where, and what to
//! do.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use thiserror::Error;
use tickcast_feeds::capture::CaptureError;
use tickcast_reliability::control::RejectCode;
use tickcast_transport::faults::FaultConfigError;
use tickcast_transport::udp::UdpError;
use tickcast_transport::{FanOutError, ReceiveError};

/// What the exit code tells whoever started us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Everything is whole.
    Whole = 0,
    /// Something was lost, or is not as it should be; the output says what.
    Finding = 1,
    /// The command line, a config or an input file is wrong.
    Usage = 2,
    /// The other side can't be reached.
    Unreachable = 3,
    /// We, or the host, failed.
    Internal = 4,
}

impl Exit {
    /// [`Exit::Whole`] where that is true.
    pub const fn whole_if(whole: bool) -> Self {
        if whole { Self::Whole } else { Self::Finding }
    }
}

/// Runs a program: parses its command line, runs it, and prints why it failed.
pub fn run_program<Line: Parser>(
    name: &str,
    run: impl FnOnce(Line) -> Result<Exit, CommandError>,
) -> ExitCode {
    let line = match Line::try_parse() {
        Ok(line) => line,
        Err(error) => {
            // If even this can't be printed, nobody is left to tell.
            let _ = error.print();
            // Help and version are answers, not errors.
            let is_answer = !error.use_stderr();
            return if is_answer { Exit::Whole } else { Exit::Usage }.into();
        }
    };
    match run(line) {
        Ok(exit) => exit.into(),
        Err(CommandError::NobodyReads) => Exit::Whole.into(),
        Err(error) => {
            eprintln!("{name}: {error}");
            error.exit().into()
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Why a command could not do its work.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CommandError {
    /// Options that do not go together, or a value that makes no sense.
    #[error("{0}")]
    Usage(String),
    /// A file of JSON that is no such thing.
    #[error("{} is not {what}: {source}", .path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// What it should be.
        what: &'static str,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// An input file can't be read.
    #[error("{} can't be read: {source}; check the path and its permissions", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// An output file can't be written.
    #[error("{} can't be written: {source}; check the folder and its permissions", .path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The faults that were asked for make no sense.
    #[error(transparent)]
    Faults(#[from] FaultConfigError),
    /// A capture can't be read.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// A recording turned out to be damaged while it was sent.
    #[error("{source}; {sent} packets were sent before that")]
    Damaged {
        /// What is damaged.
        source: CaptureError,
        /// How many packets were sent before.
        sent: u64,
    },
    /// A multicast line can't be opened.
    #[error(transparent)]
    Udp(#[from] UdpError),
    /// An address that can't be used.
    #[error(
        "{target} can't be used: {source}; give HOST:PORT or GROUP:PORT that this host reaches"
    )]
    Address {
        /// The address as it was typed.
        target: String,
        /// The system's reason.
        source: io::Error,
    },
    /// The other side is not there.
    #[error("{0}")]
    Unreachable(String),
    /// The publisher is there and does not want us.
    #[error("the publisher rejected us: {1}")]
    Rejected(RejectCode, String),
    /// The publisher is there, but we can't follow it as it was asked for.
    #[error("{0}")]
    Problem(String),
    /// Sending failed for good.
    #[error(transparent)]
    Send(#[from] FanOutError),
    /// Receiving failed for good.
    #[error(transparent)]
    Receive(#[from] ReceiveError),
    /// A program can't be started.
    #[error("{} can't be started: {source}", .path.display())]
    Start {
        /// The program.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A process that we started went wrong.
    #[error("{name} {how}; its log ends with:\n  {log}")]
    Process {
        /// Its name.
        name: String,
        /// How it went wrong.
        how: String,
        /// Its exit code, if it has ended.
        code: Option<i32>,
        /// The end of its log.
        log: String,
    },
    /// A signal ended it before it was done.
    #[error("interrupted before it was done")]
    Interrupted,
    /// The host refuses something that has nothing to do with what was asked for.
    #[error("can't {what}: {source}")]
    Host {
        /// What it refuses.
        what: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// Whoever read our output went away: a quiet end.
    #[error("nobody reads the output any more")]
    NobodyReads,
}

impl CommandError {
    /// The exit code that goes with it.
    pub const fn exit(&self) -> Exit {
        match self {
            Self::Usage(_)
            | Self::Json { .. }
            | Self::Read { .. }
            | Self::Write { .. }
            | Self::Faults(_)
            | Self::Capture(_)
            | Self::Udp(_)
            | Self::Address { .. }
            | Self::Process { code: Some(2), .. } => Exit::Usage,
            // What we asked for does not exist, or it may well work later.
            Self::Rejected(RejectCode::UnknownChannel | RejectCode::WireVersion, _) => Exit::Usage,
            Self::Unreachable(_) | Self::Rejected(..) | Self::Process { code: Some(3), .. } => {
                Exit::Unreachable
            }
            Self::Interrupted | Self::Problem(_) | Self::Damaged { .. } => Exit::Finding,
            Self::Start { .. } | Self::Process { .. } => Exit::Internal,
            Self::Send(_) | Self::Receive(_) | Self::Host { .. } => Exit::Internal,
            Self::NobodyReads => Exit::Whole,
        }
    }
}
