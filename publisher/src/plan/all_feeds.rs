//! Divides a capture input that takes all feeds: each feed of its files becomes an input.

use std::path::PathBuf;

use tickcast_feeds::recording::{Feed, FeedDestination, Recorded, RecordedLine, Selection};
use tickcast_reliability::ring::CHECKPOINTS_MAX;
use tickcast_reliability::types::SourceId;

use crate::config::{CaptureConfig, Config, InputConfig};
use crate::error::ConfigError;

/// Puts an input for each feed in the place of each capture input with `all_feeds`. The feeds are in
/// the order of their first packets, and their sources have consecutive numbers.
///
/// # Errors
/// Returns [`ConfigError`] when the files are no regular files or hold no feeds, when two feeds share a
/// destination, when a source's number is in use, or when the inputs become too many.
pub(super) fn divide(mut config: Config) -> Result<Config, ConfigError> {
    let mut inputs = Vec::new();
    for (index, input) in config.inputs.iter().enumerate() {
        match input {
            InputConfig::Capture(capture) if capture.all_feeds => {
                let at = format!("inputs[{index}].all_feeds");
                let feeds = inputs_of(capture, &at)?;
                let is_other = |(other, _): &(usize, &InputConfig)| *other != index;
                let others = config.inputs.iter().enumerate().filter(is_other);
                check_sources(&feeds, others.map(|(_, other)| other), &at)?;
                inputs.extend(feeds.into_iter().map(InputConfig::Capture));
            }
            other => inputs.push(other.clone()),
        }
    }
    if inputs.len() > CHECKPOINTS_MAX {
        let count = format!("{} inputs, one for each feed", inputs.len());
        let remedy = format!("a publisher has at most {CHECKPOINTS_MAX}: name some with \"only\"");
        return Err(ConfigError::value("inputs", count, remedy));
    }
    config.inputs = inputs;
    Ok(config)
}

/// Returns the input of each feed.
fn inputs_of(capture: &CaptureConfig, at: &str) -> Result<Vec<CaptureConfig>, ConfigError> {
    let wrong = |remedy: String| ConfigError::value(at, "true", remedy);
    if let Some(file) = capture.files.iter().find(|file| !is_regular(file)) {
        let file = file.display();
        return Err(wrong(format!(
            "{file} can be read only once: name the feed's destination in \"only\" instead"
        )));
    }
    let selection = Selection {
        only: capture.only.clone(),
        all_feeds: true,
        time: capture.time,
    };
    let recorded = Recorded::open(&capture.files, &selection, capture.format.of_packets());
    let Recorded::Packets(recording) = recorded.map_err(|error| wrong(error.to_string()))? else {
        return Err(wrong(
            "a file of messages holds one feed: leave it out".into(),
        ));
    };
    let feeds: Vec<_> = recording.feeds().iter().map(destinations).collect();
    for (index, feed) in feeds.iter().enumerate() {
        let mut before = feeds[..index].iter().flatten();
        if let Some(shared) = before.find(|other| feed.iter().any(|own| meet(own, other))) {
            return Err(wrong(format!(
                "different feeds have packets to {shared}: give each file an input of its own"
            )));
        }
    }
    let first = capture.source.0;
    let numbered = feeds.into_iter().zip(0_u16..).map(|(only, index)| {
        let Some(source) = first.checked_add(index).map(SourceId) else {
            return Err(wrong(format!(
                "the files hold more feeds than there are numbers from {first} to 65535: begin \
                 with a lower source"
            )));
        };
        Ok(CaptureConfig {
            source,
            // The first input reports what is of none of the feeds, unless the others were left out.
            all_feeds: index == 0 && capture.only.is_empty(),
            only,
            ..capture.clone()
        })
    });
    numbered.collect()
}

/// Checks that no other input has the number of a feed.
fn check_sources<'a>(
    feeds: &[CaptureConfig],
    others: impl Iterator<Item = &'a InputConfig>,
    at: &str,
) -> Result<(), ConfigError> {
    let (Some(first), Some(last)) = (feeds.first(), feeds.last()) else {
        return Ok(());
    };
    let numbers = first.source.0..=last.source.0;
    let mut taken = others.map(|other| other.source());
    let Some(taken) = taken.find(|source| numbers.contains(&source.0)) else {
        return Ok(());
    };
    let (first, last) = (first.source, last.source);
    let remedy = format!(
        "the files hold {} feeds, which are the sources {first} to {last}, and another input is \
         source {taken}: give that one another number",
        feeds.len()
    );
    Err(ConfigError::value(at, "true", remedy))
}

fn is_regular(file: &&PathBuf) -> bool {
    file.metadata().is_ok_and(|there| there.is_file())
}

/// Returns the destinations of a feed's lines, each once.
fn destinations(feed: &Feed) -> Vec<FeedDestination> {
    let mut all: Vec<FeedDestination> = Vec::new();
    for RecordedLine { destination, .. } in &feed.lines {
        if !all.contains(destination) {
            all.push(*destination);
        }
    }
    all
}

/// Returns whether a packet could be of both destinations.
fn meet(one: &FeedDestination, other: &FeedDestination) -> bool {
    let is_other_channel = matches!((one.channel, other.channel), (Some(a), Some(b)) if a != b);
    one.address == other.address && !is_other_channel
}
