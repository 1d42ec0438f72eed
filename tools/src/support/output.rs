//! Results on stdout. A reader that goes away (`| head`) ends the command quietly.

use std::io::{self, BufWriter, StdoutLock, Write};

use crate::exit::CommandError;

/// Buffered stdout.
pub struct Output(BufWriter<StdoutLock<'static>>);

impl Output {
    /// Takes stdout.
    pub fn stdout() -> Self {
        Self(BufWriter::with_capacity(1 << 16, io::stdout().lock()))
    }

    /// Writes one line.
    ///
    /// # Errors
    /// [`CommandError::NobodyReads`], or what the system said.
    pub fn line(&mut self, line: impl std::fmt::Display) -> Result<(), CommandError> {
        writeln!(self.0, "{line}").map_err(failed)
    }

    /// Hands over what is buffered.
    ///
    /// # Errors
    /// As for [`Output::line`].
    pub fn flush(&mut self) -> Result<(), CommandError> {
        self.0.flush().map_err(failed)
    }
}

fn failed(source: io::Error) -> CommandError {
    if source.kind() == io::ErrorKind::BrokenPipe {
        return CommandError::NobodyReads;
    }
    CommandError::Host {
        what: "write to stdout",
        source,
    }
}
