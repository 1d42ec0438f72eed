//! Exit codes and errors of a command. Each error names the cause, the place and the remedy.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use signal_hook::consts::SIGXFSZ;
use thiserror::Error;
use tickcast_feeds::capture::CaptureError;
use tickcast_log::PlainLines;
use tickcast_reliability::control::RejectCode;
use tickcast_transport::faults::FaultConfigError;
use tickcast_transport::host::files::FileError;
use tickcast_transport::udp::UdpError;
use tickcast_transport::{FanOutError, ReceiveError};

/// The meaning of an exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Nothing is missing or wrong.
    Whole = 0,
    /// Something was lost or is wrong; the output names it.
    Finding = 1,
    /// The command line, a config or an input file is wrong.
    Usage = 2,
    /// The other side can't be reached.
    Unreachable = 3,
    /// The program or the host failed.
    Internal = 4,
}

impl Exit {
    /// Returns [`Exit::Whole`] if `whole`, else [`Exit::Finding`].
    pub const fn whole_if(whole: bool) -> Self {
        if whole { Self::Whole } else { Self::Finding }
    }
}

/// Runs a program: parses its command line, runs it, and prints the error if it fails.
pub fn run_program<Line: Parser>(
    name: &str,
    run: impl FnOnce(Line) -> Result<Exit, ToolError>,
) -> ExitCode {
    let line = match Line::try_parse() {
        Ok(line) => line,
        Err(error) => {
            // If printing fails too, there is no way left to report it.
            let _ = error.print();
            // Help and version are answers, not errors.
            let is_answer = !error.use_stderr();
            return if is_answer { Exit::Whole } else { Exit::Usage }.into();
        }
    };
    // A write above the limit of file sizes then fails, instead of ending the process. Without the handler
    // only the message is missing.
    let _ = signal_hook::flag::register(SIGXFSZ, Arc::default());
    match run(line) {
        Ok(exit) => exit.into(),
        Err(ToolError::NobodyReads) => Exit::Whole.into(),
        Err(error) => {
            eprintln!("{name}: {}", PlainLines(&error));
            error.exit().into()
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// The reason why a command failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ToolError {
    /// Options that exclude each other, or an invalid value.
    #[error("{0}")]
    Usage(String),
    /// A file is no valid JSON of the expected kind.
    #[error("{} is not {what}: {source}", .path.display())]
    Json {
        /// Path of the file.
        path: PathBuf,
        /// Kind of contents that the file should have.
        what: &'static str,
        /// Cause, with line and column.
        source: serde_json::Error,
    },
    /// An input file can't be read.
    #[error("{} can't be read: {source}; check the path and its permissions", .path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// An output file can't be written.
    #[error("{} can't be written: {source}; check the folder and its permissions", .path.display())]
    Write {
        /// Path of the file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// Another user can change or replace a file of this command, or it is not a file to use.
    #[error(transparent)]
    File(FileError),
    /// The requested faults are invalid.
    #[error(transparent)]
    Faults(#[from] FaultConfigError),
    /// A capture can't be read.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// A recording was found damaged while it was being sent.
    #[error("{source}; {sent} packets were sent before that")]
    Damaged {
        /// The damage.
        source: CaptureError,
        /// Number of packets sent before it.
        sent: u64,
    },
    /// A multicast line can't be opened.
    #[error(transparent)]
    Udp(#[from] UdpError),
    /// An address can't be used.
    #[error(
        "{target} can't be used: {source}; give HOST:PORT or GROUP:PORT that this host reaches"
    )]
    Address {
        /// The address, as given.
        target: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The other side does not answer.
    #[error("{0}")]
    Unreachable(String),
    /// The publisher rejects this subscriber.
    // Debug: a publisher's words stand in quotes, without control characters.
    #[error("the publisher rejected this subscriber: {1:?}")]
    Rejected(RejectCode, String),
    /// The publisher answers, but can't be followed with these options.
    #[error("{0}")]
    Problem(String),
    /// Sending failed and can't continue.
    #[error(transparent)]
    Send(#[from] FanOutError),
    /// Receiving failed and can't continue.
    #[error(transparent)]
    Receive(#[from] ReceiveError),
    /// A program can't be started.
    #[error("{} can't be started: {source}", .path.display())]
    Start {
        /// Path of the program.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A child process failed.
    #[error("{name} {how}; its log ends with:\n  {log}")]
    Process {
        /// Name of the process.
        name: String,
        /// Description of the failure.
        how: String,
        /// Exit code, if it has ended.
        code: Option<i32>,
        /// The last lines of its log.
        log: String,
    },
    /// A signal ended the command early.
    #[error("interrupted before the end")]
    Interrupted,
    /// The host refused an operation that does not depend on the options.
    #[error("can't {what}: {source}")]
    Host {
        /// The operation.
        what: &'static str,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The reader of the output is gone; the command ends quietly.
    #[error("the reader of the output has closed it")]
    NobodyReads,
}

impl ToolError {
    /// Returns the exit code of the error.
    pub const fn exit(&self) -> Exit {
        match self {
            Self::Usage(_)
            | Self::Json { .. }
            | Self::Read { .. }
            | Self::Write { .. }
            | Self::File(_)
            | Self::Faults(_)
            | Self::Udp(_)
            | Self::Address { .. }
            | Self::Process { code: Some(2), .. } => Exit::Usage,
            // The path is right; its content is not whole.
            Self::Capture(CaptureError::Empty { .. }) => Exit::Finding,
            Self::Capture(_) => Exit::Usage,
            // These rejections are the caller's fault; all others may succeed later.
            Self::Rejected(
                RejectCode::UnknownChannel | RejectCode::WireVersion | RejectCode::Authentication,
                _,
            ) => Exit::Usage,
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
