//! `tickcast explain`: reports where each missing datagram was lost and what happened to it, from the
//! journals of `tickcast listen --journal`, subscribers and publishers. It can also replay a
//! journal through the core.

mod entries;
mod timeline;
pub(crate) mod words;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use jiff::civil::{DateTime, Time};
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp};
use serde::Serialize;
use tickcast_journal::explain::{Explanation, Fate, Finding, explain};
use tickcast_journal::{
    Journal, JournalOrigin, JournalSide, Replayed, Stopped, replay, replay_publisher,
};
use tickcast_reliability::delivery::Item;
use tickcast_reliability::types::Nanos;
use tickcast_transport::journal_file::read;

use tickcast_tools::exit::{Exit, ToolError};
use tickcast_tools::report::ReportPage;
use tickcast_tools::support::files::check_writable;
use tickcast_tools::support::output::{Output, unknown_to_null};
use tickcast_tools::support::plain::{Plain, listed};

/// The journals, and the part of them to report.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Journals. Those of several hosts separate the losses of one host from those of all; the
    /// publisher's journals show what was sent.
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Report only losses within a second of this time (UTC): 14:30:00.000123 of the first day on
    /// which a journal has that time, or with a date: 2026-01-31T14:30:00.000123Z.
    #[arg(long, value_name = "TIME")]
    at: Option<String>,
    /// Report only this gap, with all events around it.
    #[arg(long, value_name = "N")]
    gap: Option<usize>,
    /// Replay the journal through the core; the outputs must be identical.
    #[arg(long)]
    replay: bool,
    /// Print JSON, one object per journal.
    #[arg(long, conflicts_with = "report")]
    json: bool,
    /// Also write the account of each journal to this file, as a page of `tickcast report`.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

/// Reported time before and after `--at`.
const AROUND: Nanos = Nanos::from_secs(1);

/// One journal's report, as JSON.
#[derive(Serialize)]
struct Report<'a> {
    file: &'a PathBuf,
    origin: &'a JournalOrigin,
    whole: bool,
    explanation: &'a Explanation,
    /// Number of sequences that the findings do not explain; omitted if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    unexplained: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    replay: Option<Verdict>,
}

/// The result of a replay.
#[derive(Serialize)]
struct Verdict {
    first_input: u64,
    inputs: u64,
    identical: bool,
    words: String,
}

/// Returns the account of each journal: the file's name, and the lines that `tickcast explain` prints.
///
/// # Errors
/// Returns [`ToolError`] if a file can't be read or is no journal, or two files hold the same journal.
pub(crate) fn accounts(files: &[PathBuf]) -> Result<Vec<(String, Vec<String>)>, ToolError> {
    let journals: Vec<Journal> = files
        .iter()
        .map(|file| open(file))
        .collect::<Result<_, _>>()?;
    refuse_twice(files, &journals)?;
    let explanations = explain(&journals);
    let each = files.iter().zip(&journals).zip(&explanations);
    let account = |((file, journal), explanation): ((&PathBuf, &Journal), &Explanation)| {
        let mut lines = words::head(file, journal, explanation);
        lines.extend(words::findings(journal, explanation));
        lines.push(replayed(journal, explanation, false).0);
        (Plain(file.display()).to_string(), lines)
    };
    Ok(each.map(account).collect())
}

/// Reports the losses of each journal.
///
/// # Errors
/// Returns [`ToolError`] in three cases:
/// - a file can't be read or is no journal;
/// - two files hold the same journal;
/// - no journal has the requested time or gap.
pub(crate) fn run(args: &Args) -> Result<Exit, ToolError> {
    args.report.as_deref().map_or(Ok(()), check_writable)?;
    let recordings = args.files.iter().map(|file| open(file));
    let recordings: Vec<Journal> = recordings.collect::<Result<_, _>>()?;
    refuse_twice(&args.files, &recordings)?;
    let at = args.at.as_deref().map(At::parse).transpose()?;
    let mut explanations = explain(&recordings);
    let (mut output, mut whole) = (Output::stdout(), true);
    let each = args.files.iter().zip(&recordings).zip(&mut explanations);
    let (mut any_gap, mut any_inside) = (args.gap.is_none(), at.is_none());
    let (mut gaps, mut page) = (BTreeSet::new(), ReportPage::default());
    for (nth, ((file, recording), explanation)) in each.enumerate() {
        let (balance, unexplained, verdict) = replayed(recording, explanation, args.replay);
        // A single gap is reported without the totals.
        let unexplained = unexplained.filter(|_| args.gap.is_none());
        let outside = at.and_then(|at| only_near(at, recording, explanation));
        any_inside |= outside.is_none();
        if let Some(gap) = args.gap {
            gaps.extend(explanation.findings.iter().map(|it| it.gap));
            explanation.findings.retain(|it| it.gap == gap);
            any_gap |= !explanation.findings.is_empty();
            if explanation.findings.is_empty() && outside.is_none() {
                continue;
            }
        }
        whole &= is_whole(explanation, unexplained) && explanation.damaged.is_none();
        whole &= verdict.as_ref().is_none_or(|it| it.identical);
        if args.json {
            let report = Report {
                file,
                origin: recording.origin(),
                whole: recording.is_whole(),
                explanation,
                unexplained,
                replay: verdict,
            };
            let report = serde_json::to_value(&report);
            let mut report = report.map_err(|error| ToolError::Usage(error.to_string()))?;
            unknown_to_null(&mut report);
            output.json(report)?;
            continue;
        }
        if nth > 0 {
            output.line("")?;
        }
        let mut lines = words::head(file, recording, explanation);
        match outside {
            // The journal does not cover that time, so report neither losses nor their absence.
            Some(outside) => lines.push(outside),
            None => {
                lines.extend(words::findings(recording, explanation));
                match args.gap {
                    Some(_) => {
                        let around = timeline::around(&recordings, nth, &explanation.findings);
                        lines.extend(around);
                    }
                    None => lines.push(balance),
                }
            }
        }
        lines.extend(verdict.map(|verdict| verdict.words));
        for line in &lines {
            output.line(line)?;
        }
        if args.report.is_some() {
            page.add_account(Plain(file.display()).to_string(), lines);
        }
    }
    output.flush()?;
    if let Some(path) = &args.report {
        page.write(path)?;
    }
    if !any_inside {
        let text = args.at.as_deref().unwrap_or_default();
        return Err(ToolError::Usage(format!(
            "no journal covers the time --at {text}; the lines above state the time that each covers"
        )));
    }
    if !any_gap {
        return Err(ToolError::Usage(no_such_gap(args, &gaps)));
    }
    Ok(Exit::whole_if(whole))
}

/// Returns the message for an unknown gap; `gaps` are the known ones within the requested time.
fn no_such_gap(args: &Args, gaps: &BTreeSet<usize>) -> String {
    const LISTED_MAX: usize = 10;
    let gap = args.gap.unwrap_or_default();
    let Some(at) = &args.at else {
        let files: Vec<_> = args
            .files
            .iter()
            .map(|it| it.display().to_string())
            .collect();
        let files = files.join(", ");
        return format!("{files}: no gap {gap}; omit --gap to list all gaps");
    };
    match gaps.is_empty() {
        true => format!("gap {gap} is not at the time --at {at}: nothing was missing then"),
        false => format!(
            "gap {gap} is not among those at the time --at {at}, which are {}",
            listed(gaps.iter().map(ToString::to_string), LISTED_MAX)
        ),
    }
}

/// Returns whether nothing was lost for good, and the findings explain every loss.
fn is_whole(explanation: &Explanation, unexplained: Option<u64>) -> bool {
    let lost = |it: &Finding| matches!(it.fate, Fate::Lost(_) | Fate::Unrepairable);
    !explanation.findings.iter().any(lost) && unexplained.is_none_or(|count| count == 0)
}

/// Reads a journal.
///
/// # Errors
/// Returns [`ToolError`] if the file can't be read, or is no journal.
pub(crate) fn open(path: &Path) -> Result<Journal, ToolError> {
    let bytes = read(path).map_err(|source| ToolError::Read {
        path: path.into(),
        source,
    })?;
    let recording = Journal::read(bytes);
    recording.map_err(|error| ToolError::Usage(format!("{}: {error}", path.display())))
}

/// Returns an error if two files hold the same journal, because it would count as two witnesses.
fn refuse_twice(files: &[PathBuf], recordings: &[Journal]) -> Result<(), ToolError> {
    for (nth, recording) in recordings.iter().enumerate() {
        let mut before = recordings[..nth].iter().zip(files);
        if let Some((_, first)) = before.find(|(it, _)| it.origin() == recording.origin()) {
            let [first, again] = [first, &files[nth]].map(|it| it.display());
            return Err(ToolError::Usage(format!(
                "{again} is the same journal as {first}; give each journal once"
            )));
        }
    }
    Ok(())
}

/// A time as given on the command line.
#[derive(Clone, Copy, Debug)]
enum At {
    /// A time of the first day on which the journal has it.
    Day(Time),
    Moment(Timestamp),
}

impl At {
    fn parse(text: &str) -> Result<Self, ToolError> {
        // Accept a time of day only: text with a date or an offset must not be read as one.
        if text
            .chars()
            .all(|it| it.is_ascii_digit() || ":.".contains(it))
            && let Ok(time) = text.parse()
        {
            return Ok(Self::Day(time));
        }
        if let Ok(moment) = text.parse() {
            return Ok(Self::Moment(moment));
        }
        let with_date = text.contains('-') && text.contains(':') && !text.contains('+');
        let date_time = text.parse::<DateTime>().ok().filter(|_| with_date);
        let moment = date_time.and_then(|it| it.to_zoned(TimeZone::UTC).ok());
        moment
            .map(|it| Self::Moment(it.timestamp()))
            .ok_or_else(|| {
                ToolError::Usage(format!(
                    "--at {text} is not a time; write 14:30:00.000123, which is UTC, or with the \
                     date, 2026-01-31T14:30:00.000123Z"
                ))
            })
    }

    /// Returns the time in nanoseconds of UTC, for a journal that began at `began`.
    fn utc(self, began: Nanos) -> i128 {
        let moment = match self {
            Self::Moment(moment) => moment,
            Self::Day(time) => {
                let began = Timestamp::from_nanosecond(i128::from(began.0)).unwrap_or_default();
                let of_day = began.to_zoned(TimeZone::UTC).with().time(time).build();
                let moment = of_day.map_or(began, |it| it.timestamp());
                let is_over = moment.as_nanosecond() + i128::from(AROUND.0) < began.as_nanosecond();
                // The journal passes midnight, so the time is of the following day.
                let day = Span::new().hours(24);
                let next = || moment.checked_add(day).unwrap_or(moment);
                if is_over { next() } else { moment }
            }
        };
        moment.as_nanosecond()
    }
}

/// Keeps only the findings within a second of this time. If the journal does not cover it, returns a
/// message with the journal's range.
fn only_near(at: At, recording: &Journal, explanation: &mut Explanation) -> Option<String> {
    let origin = recording.origin();
    let since_began = at.utc(origin.began_utc) - i128::from(origin.began_utc.0);
    let at = i128::from(origin.began.0) + since_began;
    let around = i128::from(AROUND.0);
    let [from, to] = [explanation.from, explanation.to].map(|it| i128::from(it.0));
    let near = |it: &Finding| {
        i128::from(it.found_at.0) <= at + around && i128::from(it.settled_at.0) + around >= at
    };
    explanation.findings.retain(near);
    (at + around < from || at > to + around).then(|| {
        let [from, to] = [explanation.from, explanation.to].map(|it| words::time(recording, it));
        format!("the journal does not cover this time: it runs from {from} to {to}")
    })
}

/// Returns the comparison of the journal's totals as text, and the number of unexplained sequences. Adds
/// the result of the replay, if one was requested.
fn replayed(
    recording: &Journal,
    explanation: &Explanation,
    asked: bool,
) -> (String, Option<u64>, Option<Verdict>) {
    match recording.side() {
        JournalSide::Publisher => {
            let verdict = || verdict(recording, &replay_publisher(recording));
            (words::sent(explanation), None, asked.then(verdict))
        }
        JournalSide::Repair => {
            let verdict = || Verdict {
                first_input: 0,
                inputs: 0,
                identical: true,
                words: "replay: a repair service can't be replayed, because it reads rings that \
                        other threads write; its journal is only explained"
                    .into(),
            };
            (words::served(explanation), None, asked.then(verdict))
        }
        _ => {
            let replayed = replay(recording, false, &mut |_: Item<'_>| ());
            let verdict = || verdict(recording, &replayed);
            let (balance, unexplained) = words::balance(recording, explanation, &replayed);
            (balance, unexplained, asked.then(verdict))
        }
    }
}

fn verdict<Core>(recording: &Journal, replayed: &Replayed<Core>) -> Verdict {
    let (first_input, inputs) = (replayed.first_input, replayed.inputs);
    let mut words = match &replayed.difference {
        None => {
            format!("replay: {inputs} inputs from input {first_input} on gave the recorded outputs")
        }
        Some(it) => format!(
            "replay: the same outputs up to input {}, {}; there {} differed (byte {} of the journal, which \
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
            words = "replay: impossible, because no segment holds the core's state: \
                     give the journal more MiB; the journal of a standby never holds it"
                .into();
        }
        Some(Stopped::Unrecorded(at)) => {
            words += &format!(
                "; it ends {}, at an event that a journal does not hold",
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

#[cfg(test)]
mod tests {
    use tickcast_journal::layout::JOURNAL_LEN_MIN;
    use tickcast_journal::{JournalWriter, Journaled, Note};
    use tickcast_reliability::session::{
        LinkTimers, SubscriberCore, SubscriberInput, SubscriberSettings,
    };
    use tickcast_reliability::types::ChannelId;

    use super::*;

    /// 2026-11-24, 14:30 UTC.
    const BEGAN: Nanos = Nanos(1_795_530_600_000_000_000);

    fn seconds_in(text: &str) -> Option<f64> {
        let at = At::parse(text).ok()?;
        Some((at.utc(BEGAN) - i128::from(BEGAN.0)) as f64 / 1e9)
    }

    #[test]
    fn unexplained_missing_is_counted_and_exits_1() {
        let settings = SubscriberSettings {
            name: "idle".into(),
            channels: Vec::new(),
            link: LinkTimers::default(),
            seed: 1,
        };
        let mut core = Journaled::new(SubscriberCore::new(settings, BEGAN));
        let area = Box::new(vec![0; JOURNAL_LEN_MIN]);
        core.keep_journal(JournalWriter::new(area, &JournalOrigin::default()).unwrap());
        core.handle(
            Nanos(BEGAN.0 + 1),
            SubscriberInput::Timeout,
            &mut |_: Item<'_>| (),
        );
        let recording = core.take_journal().unwrap().into_bytes();
        let recording = Journal::read(recording).unwrap();
        let mut explanation = explain(std::slice::from_ref(&recording)).remove(0);
        let (words, unexplained, _) = replayed(&recording, &explanation, false);
        assert!(
            words.ends_with("the findings add up to the same"),
            "{words}"
        );
        assert!(is_whole(&explanation, unexplained));
        // The core counted three more than the findings.
        (explanation.totals.missing, explanation.totals.open) = (3, 2);
        let (words, unexplained, _) = replayed(&recording, &explanation, false);
        assert!(words.ends_with("; 3 are not explained"), "{words}");
        assert!(!is_whole(&explanation, unexplained));
    }

    #[test]
    fn gap_outside_requested_time_has_its_own_error() {
        let settings = SubscriberSettings {
            name: "overrun".into(),
            channels: Vec::new(),
            link: LinkTimers::default(),
            seed: 1,
        };
        let mut core = Journaled::new(SubscriberCore::new(settings, BEGAN));
        let origin = JournalOrigin {
            began: BEGAN,
            began_utc: BEGAN,
            ..JournalOrigin::default()
        };
        let area = Box::new(vec![0; JOURNAL_LEN_MIN]);
        core.keep_journal(JournalWriter::new(area, &origin).unwrap());
        for seconds in [0, 5, 5, 10] {
            let at = BEGAN.after(Nanos::from_secs(seconds));
            core.handle(at, SubscriberInput::Timeout, &mut |_: Item<'_>| ());
            core.note(at, Note::Overrun(ChannelId(7), 1));
        }
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("overrun.journal");
        std::fs::write(&file, core.take_journal().unwrap().into_bytes()).unwrap();
        let of = |gap, at: Option<&str>| {
            run(&Args {
                files: vec![file.clone()],
                at: at.map(Into::into),
                gap: Some(gap),
                replay: false,
                json: false,
                report: None,
            })
        };
        let refused = |gap, at| {
            of(gap, at)
                .map(|_| ())
                .expect_err("no such gap")
                .to_string()
        };
        assert!(of(1, None).is_ok() && of(2, Some("14:30:05")).is_ok());
        let said = refused(1, Some("14:30:05"));
        assert!(said.contains("gap 1 is not among those"), "{said}");
        assert!(said.ends_with("which are 2, 3"), "{said}");
        let said = refused(1, Some("14:30:07"));
        assert!(said.contains("nothing was missing then"), "{said}");
        assert!(refused(1, Some("15:00:00")).contains("no journal covers the time"));
        assert!(refused(9, None).contains("no gap 9"));
    }

    #[test]
    fn time_resolves_to_first_matching_day_or_own_date() {
        for (text, seconds) in [
            ("14:30:00", 0.0),
            ("14:30:01.5", 1.5),
            // Up to a second before the journal begins, a time means this day. An earlier time means the
            // next day.
            ("14:29:59.5", -0.5),
            ("14:29:58", 86_398.0),
            ("00:00:00", 34_200.0),
            ("2026-11-24T14:30:02Z", 2.0),
            ("2026-11-24T14:30:02", 2.0),
            ("2026-11-24 14:30:02", 2.0),
            ("2026-11-24T16:30:02+02:00", 2.0),
            ("2026-11-23T14:30:00Z", -86_400.0),
            ("2020-01-01T14:30:00", -217_641_600.0),
        ] {
            assert_eq!(seconds_in(text), Some(seconds), "{text}");
        }
    }

    #[test]
    fn malformed_time_is_refused_with_an_example() {
        for text in [
            "",
            "yesterday",
            "25:00:00",
            "14:30:00+02:00",
            "14:30:00Z",
            "2026-11-24",
        ] {
            let error = At::parse(text).map(|it| it.utc(BEGAN)).expect_err(text);
            assert!(error.to_string().contains("14:30:00.000123"), "{error}");
        }
    }
}
