//! `tickcast loss`: prints who lost what, when, why, how it was repaired and how long that took.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::json;
use tickcast_journal::Journal;
use tickcast_journal::explain::{Fate, Finding, explain};

use super::explain::{open, words};
use super::top::page;
use super::top::status::{Loss, Losses};
use tickcast_tools::exit::{Exit, ToolError};
use tickcast_tools::support::args::seconds;
use tickcast_tools::support::output::{Output, unknown_to_null};
use tickcast_tools::support::plain::Plain;
use tickcast_tools::support::table::{span, thousands};

/// The publishers and the journals whose losses are printed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Addresses of admin ports.
    #[arg(value_name = "HOST:PORT", required_unless_present = "journals")]
    publishers: Vec<String>,
    /// Print the losses of these journals, too. They hold the place of each loss, and every repair.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    journals: Vec<PathBuf>,
    /// Print only the losses of this subscriber.
    #[arg(long, value_name = "NAME")]
    subscriber: Option<String>,
    /// Maximum time to wait for a publisher.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "2")]
    wait: Duration,
    /// Print JSON, one object per loss.
    #[arg(long)]
    json: bool,
}

/// Prints the last losses that publishers know of, and those of journals.
///
/// # Errors
/// Returns [`ToolError`] if a publisher does not answer, or a file is no journal.
pub(crate) fn run(args: &Args) -> Result<Exit, ToolError> {
    let mut output = Output::stdout();
    let (mut is_whole, mut count) = (true, 0);
    for target in &args.publishers {
        let text = page(target, "/losses", args.wait);
        let text =
            text.map_err(|why| ToolError::Unreachable(format!("{target}: {}", Plain(why))))?;
        let losses = Losses::parse(&text);
        let losses =
            losses.map_err(|error| ToolError::Problem(format!("{target}: {}", Plain(error))))?;
        for loss in losses.losses.iter().filter(|it| args.wants(&it.subscriber)) {
            is_whole &= loss.outcome != "lost";
            count += 1;
            if args.json {
                output.json(json!({ "publisher": target, "loss": loss }))?;
            } else {
                output.line(in_words(target, loss))?;
            }
        }
    }
    let journals = args.journals.iter().map(|file| open(file));
    let journals: Vec<Journal> = journals.collect::<Result<_, _>>()?;
    for (journal, explanation) in journals.iter().zip(explain(&journals)) {
        let name = &journal.origin().name;
        for finding in explanation.findings.iter().filter(|_| args.wants(name)) {
            is_whole &= !matches!(finding.fate, Fate::Lost(_) | Fate::Unrepairable);
            count += 1;
            if args.json {
                let mut loss = json!({ "journal": name, "finding": finding });
                unknown_to_null(&mut loss);
                output.json(loss)?;
            } else {
                output.line(of_journal(journal, finding))?;
            }
        }
    }
    if count == 0 && !args.json {
        output.line("nothing was missing")?;
    }
    output.flush()?;
    Ok(Exit::whole_if(is_whole))
}

impl Args {
    fn wants(&self, name: &str) -> bool {
        self.subscriber.as_deref().is_none_or(|it| it == name)
    }
}

fn in_words(publisher: &str, loss: &Loss) -> String {
    let datagrams = loss.last.saturating_sub(loss.first).saturating_add(1);
    let took = loss.took_us.map_or_else(String::new, |us| {
        format!(" after {}", span(us.saturating_mul(1_000)))
    });
    let records = match (&loss.outcome[..], loss.lost_records) {
        ("lost", Some(records)) => format!(" {} records", thousands(records)),
        ("lost", None) => " an unknown number of records".into(),
        _ => String::new(),
    };
    format!(
        "{} {} (publisher {}), channel {}, epoch {}, sequences {}-{} ({}): {}{records}{took}, {} requests; {}",
        loss.at(),
        Plain(&loss.subscriber),
        Plain(publisher),
        loss.channel,
        loss.epoch,
        loss.first,
        loss.last,
        thousands(datagrams),
        loss.fate(),
        loss.requests,
        loss.cause(),
    )
}

fn of_journal(journal: &Journal, finding: &Finding) -> String {
    let name = Plain(&journal.origin().name).to_string();
    let lines = words::finding_in_words(journal, finding);
    let mut text = format!("{name}: {}", lines.first().map_or("", |it| it));
    for line in lines.iter().skip(1) {
        text += "; ";
        text += line.trim();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::top::status::tests::loss;
    use super::*;

    fn parsed(first: u64, outcome: &str) -> Loss {
        serde_json::from_value(loss(first, outcome)).unwrap()
    }

    #[test]
    fn losses_are_printed_with_who_what_when_why_and_how() {
        let words = in_words("a:7401", &parsed(40, "repaired"));
        assert_eq!(
            words,
            "2026-11-24T14:30:00.000000Z risk-1 (publisher a:7401), channel 1, epoch 5, sequences 40-42 \
             (3): repaired by NACK after 1.25 ms, 2 requests; missing at the subscriber; its \
             journal has the place"
        );
        let mut lost = parsed(40, "lost");
        (lost.refused, lost.lost_records) = (Some("window".into()), Some(70));
        let words = in_words("a:7401", &lost);
        assert!(words.contains("lost 70 records after 1.25 ms"), "{words}");
        assert!(words.ends_with("the ring no longer held it"), "{words}");
    }

    #[test]
    fn unknown_and_hostile_words_of_a_publisher_are_escaped() {
        let mut hostile = parsed(40, "\u{1b}[2J");
        hostile.first = u64::MAX;
        (hostile.refused, hostile.last) = (Some("\n".into()), 0);
        hostile.subscriber = "a\nb".into();
        let words = in_words("a:7401", &hostile);
        assert!(!words.contains(['\n', '\u{1b}']), "{words}");
        assert!(words.contains(r"a\nb"), "{words}");
    }
}
