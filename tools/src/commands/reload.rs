//! `tickcast reload`: lets a running publisher read its config's file again, and prints the outcome.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

use tickcast_tools::exit::{Exit, ToolError};
use tickcast_tools::support::args::seconds;

use crate::commands::command_request::{CommandRequest, print_answer};

/// The publisher.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Path of the publisher's command socket, or address of its command port.
    #[arg(long, value_name = "PATH|HOST:PORT")]
    publisher: String,
    /// File with the token of the publisher's command port.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Maximum time to wait for the outcome; the publisher continues by itself.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "40")]
    wait: Duration,
    /// Print the publisher's answer unchanged, as JSON.
    #[arg(long)]
    json: bool,
}

/// Reloads the config of the publisher.
///
/// # Errors
/// Returns [`ToolError`] if there is no answer, or the answer is not that of a publisher.
pub(crate) fn run(args: &Args) -> Result<Exit, ToolError> {
    let request = CommandRequest {
        endpoint: &args.publisher,
        token_file: args.token_file.as_deref(),
        path: "/reload",
        body: "",
        wait: args.wait,
    };
    let reported = request.send("publisher", "does not reload")?;
    print_answer(&reported, args.json, in_words)?;
    Ok(Exit::whole_if(reported["state"] == "reloaded"))
}

/// Returns the answer as text.
fn in_words(reported: &Value) -> Vec<String> {
    let (list, what) = match reported["state"] == "reloaded" {
        true => (&reported["changed"], "reloaded"),
        false => (&reported["why"], "not reloaded"),
    };
    let lines = match list {
        Value::Array(lines) => &lines[..],
        line => std::slice::from_ref(line),
    };
    if lines.is_empty() {
        return vec!["reloaded: no setting differs".into()];
    }
    let text = |line: &Value| format!("{what}: {}", line.as_str().unwrap_or_default());
    lines.iter().map(text).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn reload_answer_is_printed_line_by_line() {
        let reloaded = json!({ "state": "reloaded", "changed": ["a", "b"] });
        assert_eq!(in_words(&reloaded), ["reloaded: a", "reloaded: b"]);
        let same = json!({ "state": "reloaded", "changed": [] });
        assert_eq!(in_words(&same), ["reloaded: no setting differs"]);
        let refused = json!({ "state": "refused", "why": ["ttl: 0 -> 1: needs a restart"] });
        let expected = ["not reloaded: ttl: 0 -> 1: needs a restart"];
        assert_eq!(in_words(&refused), expected);
        let ending = json!({ "state": "refused", "why": "it ends" });
        assert_eq!(in_words(&ending), ["not reloaded: it ends"]);
    }
}
