//! `tickcast report`: interval logs, summaries and journals as one self-contained page. It plots each channel
//! and stage, one log beside another, and says whether they differ by more than their intervals do.

use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tickcast_journal::{FILE_HEAD_LEN, segments_len};
use tickcast_tools::exit::{Exit, ToolError};
use tickcast_tools::report::ReportPage;
use tickcast_tools::support::files::{check_writable, open_regular, read_json};
use tickcast_tools::support::plain::Plain;

use super::explain::accounts;

/// Interval logs and summaries of one page, which stand side by side.
const BESIDE_MAX: usize = 2;
/// Bytes at the start of a file that show its kind: the head of a journal.
const START_LEN: u64 = FILE_HEAD_LEN as u64;

/// The files and the page.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Interval logs (HdrHistogram log 1.3), JSON summaries and journals, in any order. Two logs are
    /// compared, and so are two summaries. Journals give an account of each loss.
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Write the page to this file.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

/// A kind of file that a page is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Log,
    Summary,
    Journal,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Log, Self::Summary, Self::Journal];

    /// Returns the kind of a file by its first bytes. A file of another kind counts as a log, whose reader
    /// says what is wrong with it.
    fn of(path: &Path) -> Result<Self, ToolError> {
        let mut start = Vec::new();
        let read = open_regular(path)?.take(START_LEN).read_to_end(&mut start);
        read.map_err(|source| ToolError::Read {
            path: path.into(),
            source,
        })?;
        Ok(match start.trim_ascii_start() {
            [b'{', ..] => Self::Summary,
            start if segments_len(start) > 0 => Self::Journal,
            _ => Self::Log,
        })
    }

    /// Returns a number of files of this kind in words.
    fn counted(self, count: usize) -> String {
        let name = match (self, count) {
            (Self::Log, 1) => "log",
            (Self::Log, _) => "logs",
            (Self::Summary, 1) => "summary",
            (Self::Summary, _) => "summaries",
            (Self::Journal, 1) => "journal",
            (Self::Journal, _) => "journals",
        };
        format!("{count} {name}")
    }
}

/// Writes the page, and says so on standard error.
///
/// # Errors Returns [`ToolError`] if a file can't be read, a log has no interval, there are three logs or
/// summaries, or the page can't be written.
pub(crate) fn run(args: &Args) -> Result<Exit, ToolError> {
    check_writable(&args.out)?;
    let mut of_kind = Kind::ALL.map(|_| Vec::new());
    for path in &args.files {
        of_kind[Kind::of(path)? as usize].push(path.clone());
    }
    let [logs, summaries, journals] = &of_kind;
    for (kind, files) in Kind::ALL.into_iter().zip([logs, summaries]) {
        if files.len() > BESIDE_MAX {
            return Err(ToolError::Usage(format!(
                "{} are too many for one page; give two, which are compared",
                kind.counted(files.len())
            )));
        }
    }
    let mut report = ReportPage::default();
    for path in logs {
        report.add_log(path.display().to_string(), path)?;
    }
    for path in summaries {
        let summary: Value = read_json(path, "a summary")?;
        report.add_summary(path.display().to_string(), &summary);
    }
    for (heading, lines) in accounts(journals)? {
        report.add_account(heading, lines);
    }
    let plots = report.write(&args.out)?;
    let counted = Kind::ALL.into_iter().zip(&of_kind);
    let counted = counted.filter(|(_, files)| !files.is_empty());
    let counted: Vec<_> = counted
        .map(|(kind, files)| kind.counted(files.len()))
        .collect();
    // The page itself may go to stdout.
    eprintln!(
        "wrote {}: {}, {plots} plots",
        Plain(args.out.display()),
        counted.join(", ")
    );
    Ok(Exit::Whole)
}
