//! The timeline of events around a gap.

use tickcast_journal::explain::Finding;
use tickcast_journal::{EntryBody, Journal, JournalEntry, Note, RequestedRanges, header_of};
use tickcast_reliability::control::Message;
use tickcast_reliability::types::{ChannelId, Epoch, Nanos, SequenceRange};
use tickcast_reliability::wire::{CrcVerdict, Datagram, HEADER_LEN};

use super::entries;
use super::words::{of_day, refusal};
use tickcast_tools::support::plain::Plain;
use tickcast_tools::support::table::span;

/// Maximum number of lines shown: more are of no use to a reader.
const LINES_MAX: usize = 120;
/// Time shown before and after a gap.
const MARGIN: Nanos = Nanos::from_us(500);

/// Returns the events from just before the first of these findings to just after the last. The
/// findings are of the `nth` journal. Includes the entries of the other journals about the same
/// datagrams.
pub(super) fn around(recordings: &[Journal], nth: usize, findings: &[Finding]) -> Vec<String> {
    let Some(first) = findings.first() else {
        return Vec::new();
    };
    let own = &recordings[nth];
    let from = Nanos(first.heard_before.0.saturating_sub(MARGIN.0));
    let until = findings.iter().map(|it| it.settled_at).max();
    let until = until.unwrap_or(first.found_at).after(MARGIN);
    let mut lines = vec![String::new(), "events around the gap:".to_owned()];
    let stalled_from = Nanos(first.found_at.0 - first.stalled_for.unwrap_or_default().0);
    let stall = |it: &JournalEntry<'_>| {
        matches!(it.what, EntryBody::Note(Note::Stall(_))) && it.at >= stalled_from
    };
    // Compare by the time of day, because several hosts share only that clock.
    let found_at = own.utc(first.found_at);
    let window = own.utc(from)..=own.utc(until);
    let mut rows: Vec<Row> = Vec::new();
    for (index, recording) in recordings.iter().enumerate() {
        let entries = recording.entries().filter_map(Result::ok);
        let near = entries.filter(|it| {
            let is_near = window.contains(&recording.utc(it.at));
            match index == nth {
                true => is_near || (stall(it) && it.at <= until),
                false => concerns(&it.what, findings, is_near),
            }
        });
        let who = match recordings.len() {
            1 => String::new(),
            _ => format!("{}  ", Plain(&recording.origin().name)),
        };
        rows.extend(near.filter_map(|it| {
            Some(Row {
                at: recording.utc(it.at),
                way: in_words(&it)?,
                who: who.clone(),
                count: 1,
            })
        }));
    }
    rows.sort_by_key(|row| row.at);
    let mut shown: Vec<Row> = Vec::new();
    for row in rows {
        // Merge consecutive datagrams of one path into one row.
        let way = way_of_datagram(&row.way);
        let is_same = |it: &Row| it.who == row.who && way_of_datagram(&it.way) == way;
        let goes_on = way.is_some() && shown.last().is_some_and(is_same);
        match shown.last_mut() {
            Some(last) if goes_on => {
                let count = last.count + 1;
                *last = Row { count, ..row };
            }
            _ => shown.push(row),
        }
    }
    let left_out = shown.len().saturating_sub(LINES_MAX);
    for row in shown.into_iter().take(LINES_MAX) {
        let apart = match row.at >= found_at {
            true => format!("+{}", span(row.at.since(found_at).0)),
            false => format!("-{}", span(found_at.since(row.at).0)),
        };
        let more = match row.count {
            1 => String::new(),
            many => format!(", the last of {many}"),
        };
        let Row { at, who, way, .. } = row;
        lines.push(format!("  {} {apart:>10}  {who}{way}{more}", of_day(at)));
    }
    if left_out > 0 {
        lines.push(format!("  and {left_out} more"));
    }
    lines
}

/// One line of the timeline.
struct Row {
    /// The time of day, UTC.
    at: Nanos,
    who: String,
    way: String,
    count: u64,
}

/// Returns whether an entry of another journal is about one of these datagrams, or about the time
/// around them.
fn concerns(what: &EntryBody<'_>, findings: &[Finding], is_near: bool) -> bool {
    let any = |channel: ChannelId, epoch: Epoch, range: SequenceRange| {
        let of = |it: &&Finding| it.channel == channel && it.epoch == epoch;
        let mut of = findings.iter().filter(of);
        of.any(|it| it.sequences.intersection(range).is_some())
    };
    let header = |kept: &[u8]| {
        let header = kept.first_chunk().and_then(header_of);
        header.is_some_and(|it| any(it.channel, it.epoch, SequenceRange::one(it.sequence)))
    };
    match what {
        EntryBody::Sealed(_, it) | EntryBody::Repaired(_, _, it) => header(&it[..]),
        EntryBody::Datagram { kept, .. } => header(&kept[..]),
        EntryBody::Heard(_, channel, Message::Nack { epoch, ranges, .. }) => {
            ranges.iter().any(|range| any(*channel, *epoch, *range))
        }
        EntryBody::Said(_, channel, Message::Refused(it)) => any(*channel, it.epoch, it.range),
        EntryBody::Posted(_, up_to) => {
            let around = |it: &Finding| it.sequences.contains(*up_to);
            findings.iter().any(around)
        }
        EntryBody::Note(_)
        | EntryBody::Happened(_)
        | EntryBody::Published(_)
        | EntryBody::Served(_) => is_near,
        _ => false,
    }
}

/// Returns the line or the connection that a datagram arrived on, from the text of its entry.
fn way_of_datagram(words: &str) -> Option<&str> {
    let (way, what) = words.split_once(": ")?;
    let is_datagram = what.starts_with("data ") || what.starts_with("heartbeat ");
    is_datagram.then_some(way)
}

fn in_words(entry: &JournalEntry<'_>) -> Option<String> {
    Some(match &entry.what {
        EntryBody::Datagram {
            line,
            verdict,
            readable,
            kept,
            channel,
        } => {
            let bad = match verdict {
                CrcVerdict::Good if *readable => "",
                CrcVerdict::Good => ", with invalid records",
                CrcVerdict::Bad => ", with a wrong CRC",
                CrcVerdict::Unauthenticated => ", not authenticated",
            };
            format!("channel {channel}, line {line}: {}{bad}", datagram(kept))
        }
        EntryBody::Message(_, path, channel, message) => {
            let what = match message {
                Message::Datagram(bytes) => datagram(bytes),
                Message::Refused(it) => format!("refused {}: {}", it.range, refusal(it.reason)),
                Message::Status(it) => format!("status: sent up to {}", it.newest),
                Message::Welcome(_) => "welcome".into(),
                Message::Rejected(it) => format!("rejected: {}", Plain(&it.text)),
                Message::Grant(_) => "grant".into(),
                _ => "another message".into(),
            };
            format!("channel {channel}, {}: {what}", entries::connection(*path))
        }
        EntryBody::Sent(path, _, frames) => {
            let connection = entries::connection(*path);
            sent(frames).map(|it| format!("{connection}: {it}"))?
        }
        EntryBody::Input(_, input) => entries::input(input)?,
        EntryBody::Unrecorded => "an input that the journal does not hold".into(),
        EntryBody::Event(emitted) => {
            format!("emitted, channel {}: {}", emitted.channel, emitted.event)
        }
        EntryBody::Sealed(_, header) => format!("sealed: {}", datagram(&header[..])),
        EntryBody::Posted(fan_out, up_to) => {
            format!("fan-out {fan_out}: sent to the network up to {up_to}")
        }
        EntryBody::Beat(fan_out, bytes) => {
            format!("fan-out {fan_out}: {}", datagram(&bytes[..]))
        }
        EntryBody::Published(it) => entries::published(it),
        EntryBody::Happened(it) => entries::happened(it),
        EntryBody::Heard(peer, channel, message) => match message {
            Message::Nack { ranges, .. } => {
                let ranges: Vec<_> = ranges.iter().map(ToString::to_string).collect();
                format!(
                    "peer {}: requests {} of channel {channel}",
                    peer.0,
                    ranges.join(", ")
                )
            }
            Message::Join(join) => format!("peer {}: JOIN of {}", peer.0, Plain(&join.name)),
            Message::Leave => format!("peer {}: LEAVE", peer.0),
            _ => return None,
        },
        EntryBody::Said(peer, channel, message) => match message {
            Message::Refused(it) => {
                let (range, reason) = (it.range, refusal(it.reason));
                format!(
                    "peer {}: refused {range} of channel {channel}: {reason}",
                    peer.0
                )
            }
            Message::Rejected(it) => format!("peer {}: rejected: {}", peer.0, Plain(&it.text)),
            Message::Welcome(_) => format!("peer {}: welcome", peer.0),
            _ => return None,
        },
        EntryBody::Repaired(Some(peer), _, header) => {
            format!("repair to peer {}: {}", peer.0, datagram(&header[..]))
        }
        EntryBody::Repaired(None, _, header) => format!("repair to all: {}", datagram(&header[..])),
        EntryBody::Served(it) => entries::served(it),
        EntryBody::Note(Note::Sending(fan_out, line, it)) => format!(
            "fan-out {fan_out}, line {line}: so far {} refused by the network, {} times no space \
             in the queue",
            it.refused, it.stalls
        ),
        EntryBody::Note(Note::Stall(it)) => format!("the thread had not run for {}", span(it.0)),
        EntryBody::Note(Note::Dropped(channel, it)) => format!(
            "channel {channel}: so far {} dropped without a free buffer, {} too long",
            it.buffer, it.oversize
        ),
        EntryBody::Note(Note::Injected(channel, line, _, range)) => {
            format!(
                "channel {channel}, line {line}: an injected fault dropped or held back {range}"
            )
        }
        EntryBody::Note(it) => entries::note(it),
        _ => return None,
    })
}

/// Returns the requested ranges as text; `None` if nothing was requested.
fn sent(frames: &[u8]) -> Option<String> {
    let asked = RequestedRanges::of(frames);
    let nacks = asked.nacks.iter().map(|(channel, _, ranges)| {
        let ranges: Vec<_> = ranges.iter().map(ToString::to_string).collect();
        format!("requested {} of channel {channel}", ranges.join(", "))
    });
    let more = (asked.is_cut).then(|| "more was sent than the journal holds".to_owned());
    let said: Vec<_> = nacks.chain(more).collect();
    (!said.is_empty()).then(|| said.join("; "))
}

fn datagram(kept: &[u8]) -> String {
    // A journal keeps only the header of a data datagram, so fill up the payload.
    let mut bytes = kept.to_vec();
    if let Some(head) = kept.first_chunk::<HEADER_LEN>() {
        let payload = usize::from(u16::from_le_bytes([head[54], head[55]]));
        bytes.resize(kept.len().max(usize::from(head[58]) * 8 + payload), 0);
    }
    match Datagram::parse(&bytes) {
        Ok(it) => format!(
            "{} {}",
            entries::kind(it.header().kind),
            it.header().sequence
        ),
        Err(_) => "bytes that are not a datagram".into(),
    }
}
