//! Results on stdout. If the reader goes away (`| head`), the command ends quietly.

use std::io::{self, BufWriter, StdoutLock, Write};

use serde_json::Value;
use tickcast_log::PlainJson;

use crate::exit::ToolError;

/// Buffered stdout.
pub struct Output(BufWriter<StdoutLock<'static>>);

impl Output {
    /// Locks stdout for this output.
    pub fn stdout() -> Self {
        Self(BufWriter::with_capacity(1 << 16, io::stdout().lock()))
    }

    /// Writes one line.
    ///
    /// # Errors
    /// Returns [`ToolError::NobodyReads`] if the reader is gone, or the system's error.
    pub fn line(&mut self, line: impl std::fmt::Display) -> Result<(), ToolError> {
        writeln!(self.0, "{line}").map_err(failed)
    }

    /// Writes JSON, with control characters as its escapes.
    ///
    /// # Errors
    /// Returns the errors of [`Output::line`].
    pub fn json(&mut self, json: impl std::fmt::Display) -> Result<(), ToolError> {
        self.line(PlainJson(json))
    }

    /// Writes the buffered lines.
    ///
    /// # Errors
    /// Returns the errors of [`Output::line`].
    pub fn flush(&mut self) -> Result<(), ToolError> {
        self.0.flush().map_err(failed)
    }
}

/// Replaces `u64::MAX` by null. It stands for an unknown number, or for the end of an epoch.
pub fn unknown_to_null(value: &mut Value) {
    match value {
        Value::Number(number) if number.as_u64() == Some(u64::MAX) => *value = Value::Null,
        Value::Array(all) => all.iter_mut().for_each(unknown_to_null),
        Value::Object(all) => all.values_mut().for_each(unknown_to_null),
        _ => {}
    }
}

fn failed(source: io::Error) -> ToolError {
    if source.kind() == io::ErrorKind::BrokenPipe {
        return ToolError::NobodyReads;
    }
    ToolError::Host {
        what: "write to stdout",
        source,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn unknown_numbers_become_null_at_any_depth() {
        let mut value =
            json!({"source": ["gap", u64::MAX], "last": u64::MAX, "first": u64::MAX - 1});
        unknown_to_null(&mut value);
        let expected = json!({"source": ["gap", null], "last": null, "first": u64::MAX - 1});
        assert_eq!(value, expected);
    }
}
