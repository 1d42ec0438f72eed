//! `tickcast promote`: promotes a standby in place of its publisher, and reports the result.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

use tickcast_tools::exit::{Exit, ToolError};
use tickcast_tools::support::args::seconds;

use crate::commands::command_request::{CommandRequest, print_answer};

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
    let wanted = serde_json::json!({ "force": args.force }).to_string();
    let request = CommandRequest {
        endpoint: &args.standby,
        token_file: args.token_file.as_deref(),
        path: "/promote",
        body: &wanted,
        wait: args.wait,
    };
    let reported = request.send("standby", "is not a standby")?;
    print_answer(&reported, args.json, in_words)?;
    Ok(Exit::whole_if(reported["state"] == "promoted"))
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
