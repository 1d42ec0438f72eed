//! Everything that happened around a gap, line by line.

use tickcast_reliability::control::{BODY_LEN_MAX_TO_PUBLISHER, Message};
use tickcast_reliability::explain::Finding;
use tickcast_reliability::recorder::{Entry, Note, Recording, What};
use tickcast_reliability::units::Nanos;
use tickcast_reliability::wire::{CrcVerdict, Datagram, HEADER_LEN};

use super::words::time;
use crate::table::span;

/// More lines help nobody.
const LINES_MAX: usize = 120;
/// So much of what came before and after is shown.
const MARGIN: Nanos = Nanos::from_us(500);

/// What happened from just before the first of these findings to just after the last.
pub(super) fn around(recording: &Recording, findings: &[Finding]) -> Vec<String> {
    let Some(first) = findings.first() else {
        return Vec::new();
    };
    let from = Nanos(first.heard_before.0.saturating_sub(MARGIN.0));
    let until = findings.iter().map(|it| it.settled_at).max();
    let until = until.unwrap_or(first.found_at).after(MARGIN);
    let mut lines = vec![String::new(), "what happened around it:".to_owned()];
    let entries = recording.entries().filter_map(Result::ok);
    let stalled_from = Nanos(first.found_at.0 - first.stalled_for.unwrap_or_default().0);
    let stall =
        |it: &Entry<'_>| matches!(it.what, What::Note(Note::Stall(_))) && it.at >= stalled_from;
    let near = entries.filter(|it| (it.at >= from || stall(it)) && it.at <= until);
    let said = near.filter_map(|it| Some((it.at, in_words(&it)?)));
    let mut rows: Vec<(Nanos, String, u64)> = Vec::new();
    for (at, words) in said {
        // Datagrams that follow each other on one way make one row.
        let way = way_of_datagram(&words);
        let goes_on = way.is_some() && rows.last().and_then(|it| way_of_datagram(&it.1)) == way;
        match rows.last_mut() {
            Some(row) if goes_on => *row = (at, words, row.2 + 1),
            _ => rows.push((at, words, 1)),
        }
    }
    let left_out = rows.len().saturating_sub(LINES_MAX);
    for (at, words, count) in rows.into_iter().take(LINES_MAX) {
        let apart = match at >= first.found_at {
            true => format!("+{}", span(at.since(first.found_at).0)),
            false => format!("-{}", span(first.found_at.since(at).0)),
        };
        let more = match count {
            1 => String::new(),
            many => format!(", the last of {many}"),
        };
        lines.push(format!(
            "  {} {apart:>10}  {words}{more}",
            time(recording, at)
        ));
    }
    if left_out > 0 {
        lines.push(format!("  and {left_out} more"));
    }
    lines
}

/// On which line, or over which connection, a datagram came that these words tell of.
fn way_of_datagram(words: &str) -> Option<&str> {
    let (way, what) = words.split_once(": ")?;
    let is_datagram = what.starts_with("data ") || what.starts_with("heartbeat ");
    is_datagram.then_some(way)
}

fn in_words(entry: &Entry<'_>) -> Option<String> {
    Some(match &entry.what {
        What::Datagram {
            line,
            verdict,
            kept,
            channel,
        } => {
            let bad = match verdict {
                CrcVerdict::Good => "",
                CrcVerdict::Bad => ", its CRC does not fit",
            };
            format!("channel {channel}, line {line}: {}{bad}", datagram(kept))
        }
        What::Message(path, channel, message) => {
            let what = match message {
                Message::Datagram(bytes) => datagram(bytes),
                Message::Refused(it) => format!("refused {}: {:?}", it.range, it.reason),
                Message::Status(it) => format!("status: sent up to {}", it.newest),
                Message::Welcome(_) => "welcome".into(),
                Message::Rejected(it) => format!("rejected: {}", it.text),
                Message::Grant(_) => "grant".into(),
                _ => "another message".into(),
            };
            format!("channel {channel}, {path:?} connection: {what}")
        }
        What::Sent(path, _, frames) => {
            sent(frames).map(|it| format!("{path:?} connection: {it}"))?
        }
        What::Remote(_, bytes) => format!("READ brought {} bytes", bytes.len()),
        What::Input(input) => format!("{input:?}"),
        What::Told(told) => format!("told, channel {}: {}", told.channel, told.event),
        What::Note(Note::Stall(it)) => format!("nobody had polled for {}", span(it.0)),
        What::Note(Note::Dropped(channel, it)) => format!(
            "channel {channel}: dropped so far for want of a buffer {}, too long {}",
            it.buffer, it.oversize
        ),
        What::Note(Note::Injected(channel, line, _, range)) => {
            format!("channel {channel}, line {line}: an injected fault dropped {range}")
        }
        What::Note(it) => format!("{it:?}"),
        _ => return None,
    })
}

/// What was asked for; `None` when nothing was.
fn sent(mut frames: &[u8]) -> Option<String> {
    let mut said = Vec::new();
    while let Ok(Some((channel, message, len))) = Message::read(frames, BODY_LEN_MAX_TO_PUBLISHER) {
        if let Message::Nack { ranges, .. } = &message {
            let ranges: Vec<_> = ranges.iter().map(ToString::to_string).collect();
            said.push(format!(
                "asked for {} of channel {channel}",
                ranges.join(", ")
            ));
        }
        frames = &frames[len..];
    }
    (!said.is_empty()).then(|| said.join("; "))
}

fn datagram(kept: &[u8]) -> String {
    // Of data only the header is there.
    let mut bytes = kept.to_vec();
    if let Some(head) = kept.first_chunk::<HEADER_LEN>() {
        let payload = usize::from(u16::from_le_bytes([head[54], head[55]]));
        bytes.resize(kept.len().max(usize::from(head[58]) * 8 + payload), 0);
    }
    match Datagram::parse(&bytes) {
        Ok(it) => format!("{:?} {}", it.header().kind, it.header().sequence).to_lowercase(),
        Err(_) => "bytes that are no datagram".into(),
    }
}
