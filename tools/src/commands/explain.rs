//! `tickcast explain`: says of every datagram that was missing where it was lost and what became of it,
//! from the records that `tickcast listen --record`, subscribers and publishers keep; and runs a record
//! through the core again.

mod timeline;
mod words;

use std::path::{Path, PathBuf};

use jiff::{Timestamp, civil::Time, tz::TimeZone};
use serde::Serialize;
use tickcast_reliability::delivery::Item;
use tickcast_reliability::explain::{Explanation, Fate, Finding, explain};
use tickcast_reliability::recorder::{
    RecordOrigin, RecordedSide, Recording, Replayed, Stopped, replay, replay_publisher,
};
use tickcast_reliability::units::Nanos;
use tickcast_transport::recording::read;

use crate::exit::{CommandError, Exit};
use crate::output::Output;

/// Which records, and what of them.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Records; those of several hosts tell what all of them missed from what one did, and those of the
    /// publisher what was sent at all.
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Only what was missing within a second of this time (UTC): 14:30:00.000123, or with its date.
    #[arg(long, value_name = "TIME")]
    at: Option<String>,
    /// Only this gap, with everything that happened around it.
    #[arg(long, value_name = "N")]
    gap: Option<usize>,
    /// Run the record through the core again: the same must come out.
    #[arg(long)]
    replay: bool,
    /// Print JSON, an object a record.
    #[arg(long)]
    json: bool,
}

/// How far around `--at`.
const AROUND: Nanos = Nanos::from_secs(1);

/// One record, as JSON has it.
#[derive(Serialize)]
struct Report<'a> {
    file: &'a PathBuf,
    origin: &'a RecordOrigin,
    whole: bool,
    explanation: &'a Explanation,
    #[serde(skip_serializing_if = "Option::is_none")]
    replay: Option<Verdict>,
}

/// What a replay came to.
#[derive(Serialize)]
struct Verdict {
    first_input: u64,
    inputs: u64,
    identical: bool,
    words: String,
}

/// Explains.
///
/// # Errors
/// [`CommandError`] when a file can't be read, or is no record.
pub(crate) fn run(args: &Args) -> Result<Exit, CommandError> {
    let recordings = args.files.iter().map(|file| open(file));
    let recordings: Vec<Recording> = recordings.collect::<Result<_, _>>()?;
    let mut explanations = explain(&recordings);
    let (mut output, mut whole) = (Output::stdout(), true);
    let each = args.files.iter().zip(&recordings).zip(&mut explanations);
    let mut any_gap = false;
    for (nth, ((file, recording), explanation)) in each.enumerate() {
        let (balance, verdict) = replayed(recording, explanation, args.replay);
        if let Some(text) = &args.at {
            let at = time(text, recording)?;
            let near =
                |it: &Finding| it.found_at <= at.after(AROUND) && it.settled_at.after(AROUND) >= at;
            explanation.findings.retain(near);
        }
        if let Some(gap) = args.gap {
            explanation.findings.retain(|it| it.gap == gap);
            any_gap |= !explanation.findings.is_empty();
            if !any_gap && nth + 1 == args.files.len() {
                return Err(CommandError::Usage(format!(
                    "{} has no gap {gap}; without --gap all of them are listed",
                    file.display()
                )));
            }
            if explanation.findings.is_empty() {
                continue;
            }
        }
        let lost = |it: &Finding| matches!(it.fate, Fate::Lost(_) | Fate::Told);
        whole &= !explanation.findings.iter().any(lost) && explanation.damaged.is_none();
        whole &= verdict.as_ref().is_none_or(|it| it.identical);
        if args.json {
            let report = Report {
                file,
                origin: recording.origin(),
                whole: recording.is_whole(),
                explanation,
                replay: verdict,
            };
            let line = serde_json::to_string(&report);
            let line = line.map_err(|error| CommandError::Usage(error.to_string()))?;
            output.line(line)?;
            continue;
        }
        if nth > 0 {
            output.line("")?;
        }
        for line in words::of(file, recording, explanation) {
            output.line(line)?;
        }
        if args.gap.is_some() {
            for line in timeline::around(&recordings, nth, &explanation.findings) {
                output.line(line)?;
            }
        } else {
            output.line(balance)?;
        }
        if let Some(verdict) = verdict {
            output.line(verdict.words)?;
        }
    }
    output.flush()?;
    Ok(Exit::whole_if(whole))
}

fn open(path: &Path) -> Result<Recording, CommandError> {
    let bytes = read(path).map_err(|source| CommandError::Read {
        path: path.into(),
        source,
    })?;
    let recording = Recording::read(bytes);
    recording.map_err(|error| CommandError::Usage(format!("{}: {error}", path.display())))
}

/// The protocol time of a time of day, or of a date and a time.
fn time(text: &str, recording: &Recording) -> Result<Nanos, CommandError> {
    let origin = recording.origin();
    let began = Timestamp::from_nanosecond(i128::from(origin.began_utc.0)).unwrap_or_default();
    let of_day = |time: Time| {
        let zoned = began.to_zoned(TimeZone::UTC).with().time(time).build();
        zoned.map(|it| it.timestamp())
    };
    let parsed = text.parse::<Time>().and_then(of_day);
    let parsed = text.parse::<Timestamp>().or(parsed);
    let wrong = || {
        CommandError::Usage(format!(
            "--at {text} is no time; write 14:30:00.000123, or 2026-01-31T14:30:00.000123Z"
        ))
    };
    let mut utc = parsed.map_err(|_| wrong())?.as_nanosecond();
    if !text.contains('-') && utc + 1_000_000_000 < i128::from(origin.began_utc.0) {
        // Of the day after: the record passes midnight.
        utc += 86_400_000_000_000;
    }
    let since = utc - i128::from(origin.began_utc.0);
    let at = i128::from(origin.began.0) + since;
    u64::try_from(at).map(Nanos).map_err(|_| wrong())
}

/// What the record's sums are held against, and what a replay comes to, where that is asked for.
fn replayed(
    recording: &Recording,
    explanation: &Explanation,
    asked: bool,
) -> (String, Option<Verdict>) {
    match recording.side() {
        RecordedSide::Publisher => {
            let verdict = || verdict(recording, &replay_publisher(recording));
            (words::sent(explanation), asked.then(verdict))
        }
        RecordedSide::Repair => {
            let verdict = || {
                Verdict {
                first_input: 0,
                inputs: 0,
                identical: true,
                words: "replay: the record of a repair service is explained, and not run again: it answers \
                        out of rings that others write"
                    .into(),
            }
            };
            (words::served(explanation), asked.then(verdict))
        }
        _ => {
            let replayed = replay(recording, false, &mut |_: Item<'_>| ());
            let verdict = || verdict(recording, &replayed);
            let balance = words::balance(recording, explanation, &replayed);
            (balance, asked.then(verdict))
        }
    }
}

fn verdict<Core>(recording: &Recording, replayed: &Replayed<Core>) -> Verdict {
    let (first_input, inputs) = (replayed.first_input, replayed.inputs);
    let mut words = match &replayed.difference {
        None => format!(
            "replay: {inputs} inputs from input {first_input} on gave the same outputs as then"
        ),
        Some(it) => format!(
            "replay: the same outputs up to input {}, {}; there {} differed (byte {} of the record, which \
             build {} made; this is build {})",
            it.input,
            words::time(recording, it.at),
            it.what,
            it.offset,
            recording.origin().build,
            env!("CARGO_PKG_VERSION"),
        ),
    };
    match &replayed.stopped {
        None => {}
        Some(Stopped::NoSnapshot) => {
            words = "replay: impossible, because no segment holds the core's state: give the record more \
                     room; a standby's is never held"
                .into();
        }
        Some(Stopped::Unrecorded(at)) => {
            words += &format!(
                "; it ends {}, where something happened that a record does not hold",
                words::time(recording, *at)
            );
        }
        Some(Stopped::Damaged(error)) => words += &format!("; it ends there: {error}"),
    }
    let nothing = matches!(replayed.stopped, Some(Stopped::NoSnapshot));
    Verdict {
        first_input,
        inputs,
        identical: replayed.difference.is_none() && !nothing,
        words,
    }
}
