//! Requests to the command endpoint of a publisher or a standby, and their answers.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use tickcast_publisher::internal::http::{EndpointAddress, Token, ask};
use tickcast_transport::control::resolve;

use tickcast_tools::exit::ToolError;
use tickcast_tools::support::output::Output;
use tickcast_tools::support::plain::Plain;

/// A request to a command endpoint.
pub(super) struct CommandRequest<'a> {
    /// Path of a command socket, or address of a command port.
    pub(super) endpoint: &'a str,
    /// File with the token of a command port.
    pub(super) token_file: Option<&'a Path>,
    /// Path of the page.
    pub(super) path: &'a str,
    /// JSON, or nothing.
    pub(super) body: &'a str,
    /// Time limit of the answer.
    pub(super) wait: Duration,
}

impl CommandRequest<'_> {
    /// Sends the request, and returns the answer, which has a state. `of`: the kind of its receiver;
    /// `lacks`: the failure of a receiver that answers otherwise.
    ///
    /// # Errors
    /// Returns [`ToolError`] if the token can't be read, nobody answers, or the answer has no state.
    pub(super) fn send(&self, of: &str, lacks: &str) -> Result<Value, ToolError> {
        let address = address_of(self.endpoint)?;
        let token = self.token_file.map(Token::read).transpose();
        let token = token.map_err(|error| ToolError::Usage(error.to_string()))?;
        let asked = ask(
            &address,
            token.as_ref(),
            self.path,
            Some(self.body),
            self.wait,
        );
        let (status, answer) = asked.map_err(|error| {
            let error = Plain(error);
            ToolError::Unreachable(format!(
                "{address} gave no answer: {error}; give the {of}'s command socket or command port"
            ))
        })?;
        let reported: Option<Value> = serde_json::from_str(&answer).ok();
        reported
            .filter(|reported| reported["state"].is_string())
            .ok_or_else(|| {
                let answer = Plain(answer.trim());
                ToolError::Usage(format!("{address} {lacks}: it answered {status} {answer}"))
            })
    }
}

/// Prints the value of an answer unchanged as `json`, or in words, each line of them on one line.
///
/// # Errors
/// Returns [`ToolError`] if standard output can't be written.
pub(super) fn print_answer(
    reported: &Value,
    json: bool,
    in_words: impl FnOnce(&Value) -> Vec<String>,
) -> Result<(), ToolError> {
    let mut output = Output::stdout();
    if json {
        output.json(reported)?;
    } else {
        for line in in_words(reported) {
            output.line(Plain(line))?;
        }
    }
    output.flush()
}

/// Returns the address of a command endpoint.
///
/// # Errors
/// Returns [`ToolError::Address`] if a host is unknown.
fn address_of(text: &str) -> Result<EndpointAddress, ToolError> {
    if text.contains('/') {
        return Ok(EndpointAddress::Socket(text.into()));
    }
    let wrong = |source| ToolError::Address {
        target: text.to_owned(),
        source,
    };
    let found = resolve(text).map_err(wrong)?;
    // A successful lookup gives at least one address.
    let first = found.first().copied().map(EndpointAddress::Port);
    first.ok_or_else(|| wrong(std::io::ErrorKind::NotFound.into()))
}
