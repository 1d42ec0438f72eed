//! `tickcast inspect`: decodes a recording to its end and says what became of each frame and byte.

use std::path::PathBuf;

use serde_json::{Value, json};
use tickcast_feeds::capture::PacketTime;
use tickcast_feeds::capture::account::{Class, Row};
use tickcast_feeds::recording::{
    FeedDestination, Inspection, LineReport, RecordingError, Selection,
};
use tickcast_feeds::venues::{Format, Settings};

use tickcast_tools::exit::{Exit, ToolError};
use tickcast_tools::support::files::name_pipe;
use tickcast_tools::support::output::Output;
use tickcast_tools::support::table::{table, thousands};

/// The recording, and the choice of its feeds.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The recording: captures, which are merged by time, or one BinaryFILE or SoupBinTCP; gzip, zstd
    /// or neither; - for standard input.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Inspect the feed at these destinations, one for each line: GROUP:PORT, or GROUP:PORT#CHANNEL
    /// for one channel of IEX.
    #[arg(long, value_name = "DESTINATION", value_delimiter = ',')]
    only: Vec<FeedDestination>,
    /// Inspect every feed of the captures.
    #[arg(long, conflicts_with = "only")]
    all_feeds: bool,
    /// Take the packets for this format; otherwise it is recognised.
    #[arg(long, value_name = "FORMAT")]
    format: Option<Format>,
    /// Take the times of captured packets from: capture (its records), arista, metamako or exablaze.
    #[arg(long, value_name = "STAMP", default_value_t)]
    time: PacketTime,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// Inspects the files.
///
/// # Errors
/// Returns [`ToolError`] if a file can't be read, or several feeds are there and none is chosen.
pub(crate) fn run(args: &Args) -> Result<Exit, ToolError> {
    let selection = Selection {
        only: args.only.clone(),
        all_feeds: args.all_feeds,
        time: args.time,
    };
    let settings = Settings::default();
    args.files.iter().for_each(|file| name_pipe(file));
    let inspection = Inspection::of(&args.files, &selection, args.format, &settings);
    let inspection = inspection.map_err(|error| match error {
        RecordingError::Capture(source) => ToolError::Capture(source),
        RecordingError::Choice { .. } => {
            ToolError::Usage(format!("{error}: --only DESTINATION or --all-feeds"))
        }
        RecordingError::NotThere { .. } | RecordingError::NoPackets { .. } => {
            ToolError::Usage(error.to_string())
        }
        other => ToolError::Problem(other.to_string()),
    })?;
    let mut output = Output::stdout();
    if args.json {
        output.json(summary(&inspection))?;
    } else {
        print(&inspection, &mut output)?;
    }
    output.flush()?;
    Ok(Exit::whole_if(inspection.is_whole()))
}

fn print(inspection: &Inspection, output: &mut Output) -> Result<(), ToolError> {
    let mut rows = table(&["class", "reason", "frames", "bytes"]);
    let mut add = |class: &str, reason: &str, row: Row| {
        let [frames, bytes] = [row.frames, row.bytes].map(thousands);
        rows.add_row([class.to_owned(), reason.to_owned(), frames, bytes]);
    };
    for (reason, row) in inspection.account.rows() {
        add(&reason.class().to_string(), reason.text(), row);
    }
    add("", "all", inspection.account.total());
    output.line(rows)?;
    for feed in &inspection.feeds {
        let sessions = match feed.sessions {
            0 | 1 => String::new(),
            more => format!(", {} sessions", thousands(more)),
        };
        output.line(format_args!(
            "{}: {} messages in {} packets, {} missing, {} duplicates{sessions}",
            feed.name,
            thousands(feed.messages),
            thousands(feed.packets),
            thousands(feed.missing),
            thousands(feed.duplicates),
        ))?;
        for LineReport { line, stats } in &feed.lines {
            output.line(format_args!(
                "  line {} of file {}: {} messages first, {} duplicates, {} late, {} missing",
                line.destination,
                line.file + 1,
                thousands(stats.first),
                thousands(stats.duplicates),
                thousands(stats.late),
                thousands(stats.missing),
            ))?;
        }
    }
    for (to, other) in &inspection.others {
        let what = match (other.format, other.guess) {
            (Some(format), _) => format!(": another feed ({format})"),
            (None, Some(guess)) => format!(": {guess}"),
            (None, None) => String::new(),
        };
        let frames = thousands(other.record.frames);
        output.line(format_args!("foreign: {frames} frames to {to}{what}"))?;
    }
    for note in &inspection.notes {
        output.line(format_args!("note: {note}"))?;
    }
    for fault in &inspection.faults {
        output.line(format_args!("not whole: {fault}"))?;
    }
    if inspection.is_whole() {
        output.line("Whole.")?;
    }
    Ok(())
}

fn summary(inspection: &Inspection) -> Value {
    let row = |row: Row| json!({ "frames": row.frames, "bytes": row.bytes });
    let account = &inspection.account;
    let classes = Class::ALL.map(|class| (class.to_string(), row(account.class(class))));
    let reasons = account
        .rows()
        .map(|(reason, of)| (reason.text().to_owned(), row(of)));
    let feeds: Vec<_> = (inspection.feeds.iter())
        .map(|feed| {
            let lines = feed.lines.iter().map(|LineReport { line, stats }| {
                json!({
                    "file": line.file,
                    "destination": line.destination,
                    "packets": stats.packets,
                    "first": stats.first,
                    "duplicates": stats.duplicates,
                    "late": stats.late,
                    "foreign": stats.foreign,
                    "missing": stats.missing,
                    "reorder_depth": stats.reorder_depth,
                    "skew_p50_us": stats.skew_us(0.5),
                    "skew_p99_us": stats.skew_us(0.99),
                })
            });
            json!({
                "name": feed.name,
                "lines": lines.collect::<Vec<_>>(),
                "packets": feed.packets,
                "messages": feed.messages,
                "duplicates": feed.duplicates,
                "conflicting": feed.conflicting,
                "missing": feed.missing,
                "late": feed.late,
                "foreign": feed.foreign,
                "malformed": feed.malformed,
                "unknown_types": feed.unknown_types,
                "unknown_orders": feed.unknown_orders,
                "sessions": feed.sessions,
            })
        })
        .collect();
    let others: Vec<_> = (inspection.others.iter())
        .map(|(to, other)| {
            let guess = other.guess.map(|guess| guess.to_string());
            json!({ "to": to, "frames": other.record.frames, "guess": guess })
        })
        .collect();
    json!({
        "whole": inspection.is_whole(),
        "total": row(account.total()),
        "classes": classes.into_iter().collect::<serde_json::Map<_, _>>(),
        "reasons": reasons.collect::<serde_json::Map<_, _>>(),
        "feeds": feeds,
        "foreign": others,
        "notes": inspection.notes,
        "faults": inspection.faults,
    })
}
