//! Findings as text.

use std::collections::BTreeMap;
use std::path::Path;

use jiff::Timestamp;
use tickcast_journal::explain::{DelayCause, Explanation, Fate, Finding, How, Origin};
use tickcast_journal::{GapCounts, Journal, JournalSide, Replayed};
use tickcast_reliability::control::RefusalReason;
use tickcast_reliability::delivery::{LineId, LossCause};
use tickcast_reliability::types::Nanos;

use tickcast_tools::support::plain::Plain;
use tickcast_tools::support::table::{span, table, thousands};

/// Returns the description of a journal.
pub(super) fn head(file: &Path, recording: &Journal, explained: &Explanation) -> Vec<String> {
    let origin = recording.origin();
    let lasted = span(explained.to.since(explained.from).0);
    let mut lines = vec![format!(
        "{}: {}, process {}, {} to {} UTC ({lasted}), {}",
        file.display(),
        Plain(&origin.name),
        origin.process,
        full_time(recording, explained.from),
        time(recording, explained.to),
        match recording.side() {
            JournalSide::Publisher =>
                format!("{} datagrams sealed", thousands(explained.totals.sealed)),
            JournalSide::Repair => "repair".into(),
            _ => format!("{} datagrams", thousands(explained.totals.received)),
        },
    )];
    if !recording.is_whole() {
        lines.push(
            "the journal does not cover the start of the process: earlier entries were overwritten"
                .into(),
        );
    }
    if let Some(damaged) = &explained.damaged {
        lines.push(damaged.clone());
    }
    lines
}

/// Returns the losses as text.
pub(super) fn findings(recording: &Journal, explained: &Explanation) -> Vec<String> {
    let mut lines = Vec::new();
    for finding in &explained.findings {
        lines.push(String::new());
        lines.extend(finding_in_words(recording, finding));
    }
    if explained.findings.is_empty() {
        lines.push("nothing was missing".into());
        return lines;
    }
    lines.push(String::new());
    lines.push(sums(&explained.findings));
    lines
}

/// Returns a finding as text: first what was missing, then its place and fate.
pub(crate) fn finding_in_words(recording: &Journal, it: &Finding) -> Vec<String> {
    let what = match it.origin {
        Origin::SourceLine
        | Origin::SourceLineOrInput
        | Origin::InputBuffer
        | Origin::InputStall
        | Origin::FeedQueue
        | Origin::SourceUnreadable
        | Origin::Oversize => match it.source.map_or(0, |(_, messages)| messages) {
            0 => "the open orders of the source".to_owned(),
            u64::MAX => "an unknown number of messages of the source".to_owned(),
            known => format!("{} messages of the source", thousands(known)),
        },
        Origin::LocalRing => format!(
            "{} items of the local ring",
            thousands(it.records.unwrap_or(0))
        ),
        _ if it.sequences.last.0 == u64::MAX => {
            format!("everything from sequence {} on", it.sequences.first)
        }
        _ => format!(
            "{} {} ({})",
            if it.sequences.len() == 1 {
                "sequence"
            } else {
                "sequences"
            },
            it.sequences,
            datagrams(it.sequences.len())
        ),
    };
    let mut lines = vec![format!(
        "gap {}, {}, channel {}, epoch {}: {what}",
        it.gap,
        time(recording, it.found_at),
        it.channel,
        it.epoch,
    )];
    lines.push(match it.origin {
        Origin::Late(line) => format!("  {}", late(it, line)),
        _ => format!("  lost {}", place(it)),
    });
    lines.extend(fate(recording, it).map(|words| format!("  {words}")));
    lines.extend(it.refused.map(|(reason, times)| {
        let times = match times {
            1 => "once".into(),
            many => format!("{many} times"),
        };
        format!(
            "  the publisher refused to send it again {times}: {}",
            refusal(reason)
        )
    }));
    lines
}

pub(super) const fn refusal(reason: RefusalReason) -> &'static str {
    match reason {
        RefusalReason::Window => "its ring no longer held it",
        RefusalReason::Ahead => "it had not been sent yet",
        RefusalReason::Budget => "a budget for repair was used up",
        RefusalReason::TooSlow => "the replay would never have caught up",
        RefusalReason::Epoch => "it was of another epoch",
        RefusalReason::Malformed => "the request was malformed",
    }
}

/// Returns what a publisher sealed and sent, as text.
pub(super) fn sent(it: &Explanation) -> String {
    let [sealed, handed] = [it.totals.sealed, it.totals.handed].map(thousands);
    format!("{sealed} datagrams sealed, {handed} sent to the network")
}

/// Returns the work of a repair service as text.
pub(super) fn served(it: &Explanation) -> String {
    let Some(of) = &it.serving else {
        return "no subscriber connected".into();
    };
    let [joined, vanished, away] = [of.joined, of.vanished, of.turned_away].map(thousands);
    let [asked, given, to_all] = [of.asked, of.given, of.given_to_all].map(thousands);
    let mut words = format!(
        "{joined} joined, {vanished} disappeared without LEAVE, {away} were rejected; {asked} \
         sequences requested, {given} sent to the requesters and {to_all} to all"
    );
    for (reason, count) in &of.refused {
        words += &format!(", refused {} ({})", thousands(*count), refusal(*reason));
    }
    words
}

fn datagrams(count: u64) -> String {
    counted(count, "datagram")
}

/// Returns a count of packets: a socket counts all packets, whoever sent them.
fn packets(count: u64) -> String {
    counted(count, "packet")
}

fn counted(count: u64, what: &str) -> String {
    match count {
        1 => format!("1 {what}"),
        many => format!("{} {what}s", thousands(many)),
    }
}

/// Returns the reason why a datagram arrived late and was not lost.
fn late(it: &Finding, line: LineId) -> String {
    let Some((at, delay)) = it.late else {
        return format!("late on line {line}, not lost");
    };
    let why = match delay {
        DelayCause::Injected => "on purpose: an injected fault held them back in this host".into(),
        DelayCause::Overtaken => "they were reordered: later datagrams arrived first".into(),
        DelayCause::PollStall(it) => format!(
            "in this host: the application had not polled for {}",
            span(it.0)
        ),
        DelayCause::PublisherStall(it) => format!(
            "in the publisher: its publish thread had not run for {}",
            span(it.0)
        ),
        DelayCause::Silence(it) => format!(
            "nothing of the channel had arrived for {}: the publisher or the network was stalled",
            span(it.0)
        ),
        _ => "the line stayed in order, and another path was faster".into(),
    };
    format!(
        "late on line {line}, not lost: they arrived on it {} after the gap was found; {why}",
        span(at.since(it.found_at).0)
    )
}

/// Returns the place of a loss, as the text that follows "lost".
fn place(it: &Finding) -> String {
    if let Some((_, 0)) = it.source {
        return "with a publisher that was killed: the one that continues does not know them"
            .into();
    }
    let stalled = it.stalled_for.map(|span_of| span(span_of.0));
    match it.origin {
        Origin::SourceLine => {
            "before the publisher: the venue's lines had a gap that nothing filled, or \
                               brought these while no publisher ran"
                .into()
        }
        Origin::SourceLineOrInput => "before the publisher, or in its host: the journal of its \
                                      channel (NAME.ID.journal) shows whether the missing messages \
                                      reached its socket"
            .into(),
        Origin::InputBuffer => format!(
            "in the publisher's host, in the socket of its input, or before it: the kernel \
             dropped {} there at that time, which may be these, although the socket was read; a \
             larger receive_buffer_bytes shows which",
            packets(it.buffer_drops)
        ),
        Origin::InputStall => format!(
            "in the publisher's host, in the socket of its input, or before it: the socket had \
             not been read for {}, and the kernel dropped {} there at that time, which may be \
             these",
            stalled.unwrap_or_default(),
            packets(it.buffer_drops)
        ),
        Origin::FeedQueue => format!(
            "in the publisher, between its feed and its publish thread: the queue was full; {}",
            stalled.map_or("see its tickcast_source_* counters".into(), |it| format!(
                "the publish thread had not read it for {it}"
            ))
        ),
        Origin::Oversize => {
            "in the publisher: the message was larger than a datagram; use a larger slot_len".into()
        }
        Origin::TornDown(fan_out) => format!(
            "in the publisher's send queue: fan-out {fan_out} sent nothing until the ring was \
             nearly full, and was reset before it had sent them"
        ),
        Origin::SendRefused(line) => format!(
            "in the publisher's host: the network refused datagrams on line {line} at that time; \
             check the interface, its queue and the route{}",
            match it.buffer_drops {
                0 => String::new(),
                count => format!(" ({} of these)", datagrams(count)),
            }
        ),
        Origin::Unsent => {
            "in the publisher: it had sealed them, but not sent them yet at the end of its journal"
                .into()
        }
        Origin::Uplink => "after the publisher's network stack and before the lines separate: its \
                           interface, its uplink, or the first switch"
            .into(),
        Origin::SourceUnreadable => "before the publisher: it could not read these messages".into(),
        Origin::SendQueue => "before the lines separate: in the publisher's send queue, interface \
                              or uplink, because every line, or every given journal, missed them; \
                              the publisher's skipped_datagrams shows which"
            .into(),
        Origin::Wire(line) => format!(
            "on the wire of line {line}: they arrived on another path, and nothing in this host \
             dropped any"
        ),
        Origin::WireOrUplink => "on the wire, or in the publisher's interface or uplink, after \
                                 its network stack: nothing in this host dropped any. A second \
                                 line, or the journal of another host, shows which"
            .into(),
        Origin::WireOrSendQueue => "on the wire, or in the publisher's send queue: nothing in \
                                    this host dropped any. A second line, or the journal of \
                                    another host, shows which"
            .into(),
        Origin::SocketBuffer => format!(
            "in this host, in the socket's buffer: the kernel or the device dropped {} at that \
             time, although the application polled; use a larger buffer",
            datagrams(it.buffer_drops)
        ),
        Origin::PollStall => format!(
            "in this host: the application had not polled for {}, and the kernel or the device dropped {} \
             meanwhile",
            stalled.unwrap_or_default(),
            datagrams(it.buffer_drops)
        ),
        Origin::Device => {
            "in this host's device: its receive queue failed, or the Q_Key differed".into()
        }
        Origin::Damaged(line) => {
            format!(
                "on the wire of line {line}: they arrived with altered bytes, and the CRC check \
                 dropped them"
            )
        }
        Origin::CutOff(line) => {
            format!("on the wire of line {line}: an incomplete datagram arrived")
        }
        Origin::TooLong => "in this host: they were longer than a slot".into(),
        Origin::Injected(line) => {
            format!("on purpose: an injected fault dropped them on line {line} in this host")
        }
        Origin::RingOverrun => format!(
            "in this host: the publisher's ring was overwritten before they were copied{}",
            stalled.map_or(String::new(), |it| format!(
                "; the application had not polled for {it}"
            ))
        ),
        Origin::WindowFull => "in this host: they arrived, but the window after an earlier gap \
                               was full"
            .into(),
        Origin::LocalRing => {
            "in this host: they were overwritten in the local ring before the application read them"
                .into()
        }
        Origin::Silence => "in the network: no multicast of the channel reached this host for a \
                            while; check its group, the switch and the cable"
            .into(),
        Origin::PublisherGone => {
            "with the publisher: it disappeared, and the journals do not show whether it sent them"
                .into()
        }
        Origin::EpochChange => "with the epoch: the publisher began a new one".into(),
        Origin::BeforeJoining => "before the subscriber joined: the publisher's ring no longer \
                                  held them"
            .into(),
        Origin::Joining => "while the subscriber joined: they were sent between the publisher's \
                            WELCOME and the first datagram that arrived"
            .into(),
        Origin::BeforeWelcome => "in this host: they arrived before the publisher's WELCOME had \
                                  confirmed their epoch, so they were ignored"
            .into(),
        Origin::Unreadable => {
            "in the publisher: it sent records that no wire version defines".into()
        }
        Origin::Impostor => {
            "to another publisher: two publishers sent different data under one sequence, and the \
             wrong one was delivered; give each publisher its own groups"
                .into()
        }
        _ => "before the journal begins".into(),
    }
}

fn fate(recording: &Journal, it: &Finding) -> Option<String> {
    let after = span(it.settled_at.since(it.found_at).0);
    let asked = match (it.asked, it.asked_more) {
        (0, false) => "not requested".to_owned(),
        (0, true) => "requests unknown: the journal does not hold all requests of that time".into(),
        (1, false) => "requested once".into(),
        (1, true) => "requested at least once".into(),
        (times, false) => format!("requested {times} times"),
        (times, true) => format!("requested at least {times} times"),
    };
    let records = it.records.map_or("an unknown number of".into(), thousands);
    Some(match it.fate {
        Fate::Came(how) => format!(
            "arrived {}, {after} after the gap was found, {asked}",
            way(how)
        ),
        Fate::Lost(cause) => format!(
            "declared lost {}, {after} after the gap was found: {}; {records} records, {asked}",
            time(recording, it.settled_at),
            why(cause),
        ),
        Fate::Open => format!("still missing at the end of the journal, {after} later, {asked}"),
        _ => return None,
    })
}

fn way(how: How) -> String {
    match how {
        How::OtherLine(line) => format!("on line {line}"),
        How::Late(line) => format!("late on the same line {line}: they were overtaken"),
        How::Multicast => "by repair over multicast".into(),
        How::Repair => "over the repair connection".into(),
        How::Replay => "over the replay connection".into(),
        How::Nack => "over the NACK connection".into(),
        _ => "by READ".into(),
    }
}

const fn why(cause: LossCause) -> &'static str {
    match cause {
        LossCause::Window => "the publisher's ring no longer held them",
        LossCause::Deadline => "the delivery deadline passed",
        LossCause::Burst => "the gap was over the burst limit",
        LossCause::Epoch => "their epoch was over",
        LossCause::Refused => "the publisher refused to repair them",
        LossCause::PublisherDead => "the publisher had disappeared, so no repair was available",
        LossCause::Fenced => "two publishers sent different contents",
        LossCause::RepairOff => "repair is switched off here",
        LossCause::Left => "the application left",
        LossCause::Unreadable => "no reader can decode them",
    }
}

/// Returns the table of losses by place and outcome.
fn sums(findings: &[Finding]) -> String {
    let mut sums: BTreeMap<Origin, [u64; 5]> = BTreeMap::new();
    for it in findings {
        let sum = sums.entry(it.origin).or_default();
        let count = match it.source {
            Some(_) => 0,
            None if it.sequences.last.0 == u64::MAX => 0,
            None => it.sequences.len(),
        };
        sum[0] += 1;
        sum[1] += count;
        match it.fate {
            Fate::Came(_) => sum[2] += count,
            Fate::Lost(_) => sum[3] += count,
            Fate::Open => sum[4] += count,
            _ => {}
        }
    }
    let mut table = table(&[
        "lost",
        "findings",
        "datagrams",
        "arrived",
        "lost for good",
        "open",
    ]);
    for (origin, sum) in sums {
        let mut row = vec![name(origin)];
        row.extend(sum.map(thousands));
        table.add_row(row);
    }
    table.to_string()
}

fn name(origin: Origin) -> String {
    let line = |what: &str, line: LineId| format!("{what}, line {line}");
    match origin {
        Origin::SourceLine => "source line".into(),
        Origin::SourceLineOrInput => "source line, or publisher's input".into(),
        Origin::InputBuffer => "publisher's input, socket buffer".into(),
        Origin::InputStall => "publisher's input, not read".into(),
        Origin::FeedQueue => "feed queue".into(),
        Origin::SourceUnreadable => "source, unreadable".into(),
        Origin::Oversize => "larger than a datagram".into(),
        Origin::TornDown(it) => format!("send queue, fan-out {it} reset"),
        Origin::SendRefused(it) => line("refused by the network", it),
        Origin::Unsent => "sealed, not sent".into(),
        Origin::Uplink => "uplink".into(),
        Origin::SendQueue => "send queue or uplink".into(),
        Origin::Wire(it) => line("wire", it),
        Origin::WireOrUplink => "wire or uplink".into(),
        Origin::Late(it) => line("nowhere: late", it),
        Origin::WireOrSendQueue => "wire or send queue".into(),
        Origin::SocketBuffer => "socket buffer".into(),
        Origin::PollStall => "socket buffer, not polled".into(),
        Origin::Device => "RDMA device".into(),
        Origin::Damaged(it) => line("altered bytes", it),
        Origin::CutOff(it) => line("cut off", it),
        Origin::TooLong => "too long".into(),
        Origin::Injected(it) => line("injected fault", it),
        Origin::RingOverrun => "ring overrun".into(),
        Origin::WindowFull => "window full".into(),
        Origin::LocalRing => "local ring overrun".into(),
        Origin::Silence => "no multicast".into(),
        Origin::PublisherGone => "publisher gone".into(),
        Origin::EpochChange => "epoch over".into(),
        Origin::BeforeJoining => "before joining".into(),
        Origin::Joining => "while joining".into(),
        Origin::BeforeWelcome => "before the welcome".into(),
        Origin::Unreadable => "unreadable records".into(),
        Origin::Impostor => "another publisher".into(),
        _ => "before the journal".into(),
    }
}

/// Compares the findings with the core's counters. Returns the result as text, and the number of
/// sequences that the findings do not explain; `None` if unknown.
pub(super) fn balance(
    recording: &Journal,
    it: &Explanation,
    replayed: &Replayed,
) -> (String, Option<u64>) {
    let unknown = |why: &str| {
        let words = format!("the sums can't be compared with the core's counters: {why}");
        (words, None)
    };
    let (Some(core), Some(before)) = (&replayed.core, replayed.before) else {
        return unknown("the journal does not hold the core's state at its start");
    };
    if replayed.difference.is_some() || replayed.stopped.is_some() {
        return unknown("the replay does not reach its end");
    }
    let counted = GapCounts::of(core);
    let missing = counted.missing.saturating_sub(before.missing);
    // These counts include gaps that were open when the journal began, which no finding covers.
    let fates = [
        counted.came.saturating_sub(before.came),
        counted.lost.saturating_sub(before.lost),
        counted.open,
    ];
    let since = match before.open {
        _ if recording.is_whole() => String::new(),
        0 => " since the journal begins".into(),
        more => format!(" since the journal begins, and {} before", thousands(more)),
    };
    let in_words = |[came, lost, open]: [u64; 3]| {
        let [came, lost, open] = [came, lost, open].map(thousands);
        format!("{came} arrived, {lost} lost, {open} open")
    };
    let counted_words = format!(
        "the core counted {} sequences missing{since}: {}",
        thousands(missing),
        in_words(fates)
    );
    let explained = [it.totals.came, it.totals.lost, it.totals.open];
    let apart = explained.iter().zip(fates).map(|(it, of)| {
        let of_before = of.saturating_sub(*it).min(before.open);
        it.abs_diff(of - of_before)
    });
    let unexplained = apart.fold(it.totals.missing.abs_diff(missing), u64::max);
    let words = if unexplained > 0 {
        format!(
            "{counted_words}; the findings explain {}: {}; {} are not explained",
            thousands(it.totals.missing),
            in_words(explained),
            thousands(unexplained)
        )
    } else if before.open > 0 {
        format!("{counted_words}; the findings add up to the same, without the earlier gaps")
    } else {
        format!("{counted_words}; the findings add up to the same")
    };
    (words, Some(unexplained))
}

/// Returns the time of day, in UTC.
pub(super) fn time(recording: &Journal, at: Nanos) -> String {
    of_day(recording.utc(at))
}

/// Returns the time of day of a UTC time.
pub(super) fn of_day(utc: Nanos) -> String {
    let utc = utc.0;
    let (seconds, nanos) = (utc / 1_000_000_000 % 86_400, utc % 1_000_000_000);
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    format!("{hours:02}:{minutes:02}:{:02}.{nanos:09}", seconds % 60)
}

fn full_time(recording: &Journal, at: Nanos) -> String {
    let utc = Timestamp::from_nanosecond(i128::from(recording.utc(at).0)).unwrap_or_default();
    let date = utc.strftime("%Y-%m-%d");
    format!("{date} {}", time(recording, at))
}

#[cfg(test)]
mod tests {
    use tickcast_reliability::types::{ChannelId, Epoch, Sequence, SequenceRange};
    use tickcast_reliability::wire::SourceLossReason;

    use super::*;

    /// Returns a source loss of 4 messages.
    fn of(origin: Origin, buffer_drops: u64, stalled_for: Option<Nanos>) -> Finding {
        Finding {
            journal: 0,
            gap: 1,
            channel: ChannelId(1),
            epoch: Epoch(1),
            sequences: SequenceRange::one(Sequence(1)),
            found_at: Nanos::ZERO,
            heard_before: Nanos::ZERO,
            origin,
            fate: Fate::Unrepairable,
            settled_at: Nanos::ZERO,
            asked: 0,
            asked_more: false,
            stalled_for,
            late: None,
            buffer_drops,
            source: Some((SourceLossReason::Gap, 4)),
            records: None,
            refused: None,
        }
    }

    #[test]
    fn lost_orders_are_no_messages_of_the_venue() {
        let lost = of(Origin::SourceLine, 0, None);
        assert!(place(&lost).starts_with("before the publisher"));
        let orders = Finding {
            source: Some((SourceLossReason::Gap, 0)),
            ..lost
        };
        assert!(place(&orders).starts_with("with a publisher that was killed"));
    }

    #[test]
    fn input_drops_may_explain_gap_and_claim_no_more() {
        let stall = Some(Nanos::from_ms(30));
        for (found, packets) in [
            (of(Origin::InputBuffer, 9, None), "9 packets"),
            (of(Origin::InputBuffer, 1, None), "1 packet"),
            (of(Origin::InputStall, 9, stall), "9 packets"),
        ] {
            let said = place(&found);
            let claim =
                format!("the kernel dropped {packets} there at that time, which may be these");
            assert!(said.contains(&claim), "{said}");
            assert!(said.contains("or before it"), "{said}");
        }
    }
}
