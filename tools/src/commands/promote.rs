//! `tickcast promote`: promotes a standby in place of its publisher, and reports the result.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;
use tickcast_publisher::internal::http::{EndpointAddress, Token, ask};
use tickcast_transport::control::resolve;

use tickcast_tools::exit::{Exit, ToolError};
use tickcast_tools::support::args::seconds;
use tickcast_tools::support::output::Output;

/// The standby, and how to promote it.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Path of the standby's command socket, or address of its command port.
    #[arg(long, value_name = "PATH|HOST:PORT")]
    standby: String,
    /// File with the token of the standby's command port.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Promote it even if its publisher is alive; make sure that the publisher stops.
    #[arg(long)]
    force: bool,
    /// Maximum time to wait for the result; the standby continues by itself.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "90")]
    wait: Duration,
    /// Print the standby's answer unchanged, as JSON.
    #[arg(long)]
    json: bool,
}

/// Promotes the standby.
///
/// # Errors
/// Returns [`ToolError`] if there is no answer, or the answer is not that of a standby.
pub(crate) fn run(args: &Args) -> Result<Exit, ToolError> {
    let address = address_of(&args.standby)?;
    let wanted = serde_json::json!({ "force": args.force }).to_string();
    let token = args.token_file.as_deref().map(Token::read).transpose();
    let token = token.map_err(|error| ToolError::Usage(error.to_string()))?;
    let asked = ask(
        &address,
        token.as_ref(),
        "/promote",
        Some(&wanted),
        args.wait,
    );
    let (status, answer) = asked.map_err(|error| {
        ToolError::Unreachable(format!(
            "{address} gave no answer: {error}; give the standby's command socket or command port"
        ))
    })?;
    let reported: Option<Value> = serde_json::from_str(&answer).ok();
    let Some(reported) = reported.filter(|reported| reported["state"].is_string()) else {
        let answer = answer.trim();
        return Err(ToolError::Usage(format!(
            "{address} is not a standby: it answered {status} {answer}"
        )));
    };
    let mut output = Output::stdout();
    if args.json {
        output.line(&reported)?;
    } else {
        for line in in_words(&reported) {
            output.line(line)?;
        }
    }
    output.flush()?;
    Ok(Exit::whole_if(reported["state"] == "promoted"))
}

/// Returns the address of a command endpoint.
///
/// # Errors
/// Returns [`ToolError::Address`] if a host is unknown.
pub(super) fn address_of(text: &str) -> Result<EndpointAddress, ToolError> {
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

/// Returns the answer as text.
fn in_words(reported: &Value) -> Vec<String> {
    if reported["state"] != "promoted" {
        let why = reported["why"].as_str().unwrap_or_default();
        return vec![format!("not promoted: {why}")];
    }
    let why = match reported["reason"].as_str() {
        Some("handed_over") => "its publisher handed over",
        Some("publisher_dead") => "its publisher is gone",
        _ => "by force",
    };
    let (epoch, before) = (&reported["epoch"], &reported["continues"]);
    let mut lines = vec![format!("promoted, {why}: epoch {epoch} continues {before}")];
    for channel in reported["channels"].as_array().into_iter().flatten() {
        let (id, last) = (&channel["channel"], &channel["last"]);
        lines.push(format!("channel {id}: continues after sequence {last}"));
    }
    lines
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn promotion_answer_is_printed_as_text() {
        let refused = json!({ "state": "refused", "why": "the publisher continues" });
        assert_eq!(
            in_words(&refused),
            ["not promoted: the publisher continues"]
        );
        let promoted = json!({
            "state": "promoted", "epoch": 9, "continues": 5, "reason": "publisher_dead",
            "channels": [{ "channel": 1, "last": 70, "next_record": 900 }],
        });
        let words = [
            "promoted, its publisher is gone: epoch 9 continues 5",
            "channel 1: continues after sequence 70",
        ];
        assert_eq!(in_words(&promoted), words);
    }
}
