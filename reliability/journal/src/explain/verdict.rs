//! Matches each gap with the other evidence and decides where its datagrams were lost.

use std::collections::BTreeMap;

use super::evidence::{Channel, Evidence, Gap};
use super::publisher_view::{Left, SourceLost};
use super::{DelayCause, Explanation, Fate, Finding, Origin, Ranges, Totals};
use crate::{Dropped, Journal};
use tickcast_reliability::delivery::{LineId, Loss, LossCause};
use tickcast_reliability::types::{ChannelId, Epoch, Nanos, Sequence, SequenceRange};
use tickcast_reliability::wire::{SourceLossReason, StreamEvent};

/// Delay until drops are reported: the socket counts are read at the next poll, up to this much later.
const TOLD_WITHIN: Nanos = Nanos::from_ms(20);

/// Shortest silence that counts: shorter ones occur between any two datagrams.
const SILENCE_MIN: Nanos = Nanos::from_ms(1);

/// Explains each journal. The other journals serve as evidence for losses that several journals share.
#[must_use]
pub fn explain(recordings: &[Journal]) -> Vec<Explanation> {
    let all: Vec<Evidence> = recordings.iter().map(Evidence::of).collect();
    let each = all.iter().enumerate();
    each.map(|(journal, evidence)| explain_one(journal, evidence, &all))
        .collect()
}

fn explain_one(journal: usize, evidence: &Evidence, all: &[Evidence]) -> Explanation {
    let mut findings = Vec::new();
    let mut totals = Totals {
        received: evidence.on_lines.iter().sum(),
        on_lines: evidence.on_lines,
        loss_events: evidence.loss_events,
        ..Totals::default()
    };
    for (&id, channel) in &evidence.channels {
        let judge = Judge {
            journal,
            id,
            channel,
            evidence,
            all,
        };
        let gaps = judge.gaps();
        add_up(&gaps, &mut totals);
        findings.extend(gaps);
        judge.others(&mut findings, &mut totals);
        missed_by_lines(channel, &mut totals);
    }
    of_publisher(journal, evidence, &mut findings);
    [totals.sealed, totals.handed] = evidence.sent.totals();
    findings.sort_by_key(|it| (it.found_at, it.channel, it.sequences.first));
    let mut gaps = BTreeMap::new();
    for finding in &mut findings {
        let next = gaps.len() + 1;
        let key = (finding.channel, finding.epoch, finding.gap);
        finding.gap = *gaps.entry(key).or_insert(next);
    }
    Explanation {
        findings,
        totals,
        from: evidence.from,
        to: evidence.to,
        damaged: evidence.damaged.clone(),
        serving: evidence.serving.clone(),
        timeline: evidence.timeline.clone(),
    }
}

/// Adds the losses and unsent datagrams of a publisher's own journal.
fn of_publisher(journal: usize, evidence: &Evidence, findings: &mut Vec<Finding>) {
    let sent = &evidence.sent;
    let Some((channel, epoch)) = sent.of() else {
        return;
    };
    let mut gap = 0;
    let mut found = |at: Nanos, origin, sequences| {
        gap += 1;
        Finding {
            gap,
            origin,
            ..unrepairable(journal, channel, epoch, at, sequences)
        }
    };
    for lost in &sent.sources {
        let StreamEvent::SourceLost {
            reason, messages, ..
        } = lost.event
        else {
            continue;
        };
        let origin = origin_of_source(reason, Some(lost));
        let stalled = evidence.stalled_before(lost.at);
        let stalled = stalled.filter(|_| origin == Origin::FeedQueue);
        findings.push(Finding {
            source: Some((reason, messages)),
            stalled_for: stalled.or_else(|| paused(lost)),
            buffer_drops: lost.unread.map_or(0, |it| it.packets),
            ..found(lost.at, origin, SequenceRange::one(lost.sequence))
        });
    }
    for (at, fan_out, skipped) in &sent.torn_down {
        findings.push(found(*at, Origin::TornDown(*fan_out), *skipped));
    }
    for refusal in &sent.refused {
        findings.push(Finding {
            buffer_drops: refusal.count,
            ..found(refusal.at, Origin::SendRefused(refusal.line), refusal.among)
        });
    }
}

/// Returns where a source's reported loss happened, according to the publisher's journal if any.
fn origin_of_source(reason: SourceLossReason, known: Option<&SourceLost>) -> Origin {
    match (reason, known) {
        (SourceLossReason::Gap, None) => Origin::SourceLineOrInput,
        (SourceLossReason::Gap, Some(lost)) => match lost.unread {
            None => Origin::SourceLine,
            Some(_) if paused(lost).is_some() => Origin::InputStall,
            Some(_) => Origin::InputBuffer,
        },
        (SourceLossReason::Overflow, Some(lost)) if lost.oversize => Origin::Oversize,
        (SourceLossReason::Overflow, _) => Origin::FeedQueue,
        (SourceLossReason::Malformed, _) => Origin::SourceUnreadable,
    }
}

/// Returns how long the input had not been read before the loss.
fn paused(lost: &SourceLost) -> Option<Nanos> {
    let paused = lost.unread.map(|it| it.paused);
    paused.filter(|span| *span > Nanos::ZERO)
}

/// Returns a finding for a reported loss that was not a gap.
const fn unrepairable(
    journal: usize,
    channel: ChannelId,
    epoch: Epoch,
    at: Nanos,
    sequences: SequenceRange,
) -> Finding {
    Finding {
        journal,
        gap: 0,
        channel,
        epoch,
        sequences,
        found_at: at,
        heard_before: at,
        origin: Origin::BeforeJoining,
        fate: Fate::Unrepairable,
        settled_at: at,
        asked: 0,
        asked_more: false,
        stalled_for: None,
        late: None,
        buffer_drops: 0,
        source: None,
        records: None,
        refused: None,
    }
}

/// Adds the gaps to the totals in the same way as the core counts them.
fn add_up(gaps: &[Finding], totals: &mut Totals) {
    for finding in gaps {
        let count = finding.sequences.len();
        totals.missing = totals.missing.saturating_add(count);
        match finding.fate {
            // An unreadable datagram did arrive.
            Fate::Came(_) | Fate::Lost(LossCause::Unreadable) => {
                totals.came = totals.came.saturating_add(count);
            }
            Fate::Lost(_) => totals.lost = totals.lost.saturating_add(count),
            Fate::Open | Fate::Unrepairable => totals.open = totals.open.saturating_add(count),
        }
    }
}

/// Adds, for each line, the sequences between its first and last that only the other line brought.
fn missed_by_lines(channel: &Channel, totals: &mut Totals) {
    for ((epoch, line), received) in &channel.received {
        let other = LineId(1 - line.0);
        let Some(others) = channel.received.get(&(*epoch, other)) else {
            continue;
        };
        let (Some(first), Some(last)) = (received.lowest(), received.highest()) else {
            continue;
        };
        let span = |(from, to): (&u64, &u64)| {
            let range =
                SequenceRange::new(Sequence((*from).max(first.0)), Sequence((*to).min(last.0)));
            range.map_or(0, |range| range.len() - received.count_within(range))
        };
        let missed = &mut totals.missed_by_lines[usize::from(line.0)];
        *missed = others.0.iter().map(span).fold(*missed, u64::saturating_add);
    }
}

struct Judge<'a> {
    journal: usize,
    id: ChannelId,
    channel: &'a Channel,
    evidence: &'a Evidence,
    all: &'a [Evidence],
}

impl Judge<'_> {
    /// Returns all gaps, split into parts of one origin and one fate.
    fn gaps(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        for (number, gap) in self.channel.gaps.iter().enumerate() {
            let (around, stalled_for) = self.around(gap);
            let mut last: Option<Finding> = None;
            for sequence in gap.range.iter() {
                let open = (Fate::Open, self.evidence.to);
                let (fate, at) = gap.fates.get(&sequence).copied().unwrap_or(open);
                let origin = self.origin(gap, sequence, fate, (around, stalled_for));
                let late = match origin {
                    Origin::Late(line) => self.delay(gap, sequence, line),
                    _ => None,
                };
                let asked_more = self.evidence.is_cut_between(gap.found_at, at);
                let why = |it: Option<(Nanos, DelayCause)>| it.map(|(_, why)| why);
                if let Some(it) = &mut last
                    && (it.origin, it.fate, why(it.late)) == (origin, fate, why(late))
                {
                    it.sequences.last = sequence;
                    it.settled_at = it.settled_at.max(at);
                    it.late = late.or(it.late);
                    it.asked_more |= asked_more;
                    continue;
                }
                findings.extend(last.take());
                let asked = gap.asked.iter().filter(|it| it.contains(sequence));
                let mut refused = gap.refused.iter().filter(|(it, _)| it.contains(sequence));
                let times = u32::try_from(refused.clone().count()).unwrap_or(u32::MAX);
                let buffered = matches!(origin, Origin::SocketBuffer | Origin::PollStall);
                last = Some(Finding {
                    asked: u32::try_from(asked.count()).unwrap_or(u32::MAX),
                    asked_more,
                    settled_at: at,
                    late,
                    stalled_for: stalled_for.filter(|_| buffered || origin == Origin::RingOverrun),
                    buffer_drops: if buffered { around.buffer } else { 0 },
                    refused: refused.next_back().map(|(_, reason)| (*reason, times)),
                    ..self.finding(number, gap, SequenceRange::one(sequence), origin, fate)
                });
            }
            findings.extend(last);
        }
        findings
    }

    fn finding(
        &self,
        gap: usize,
        of: &Gap,
        sequences: SequenceRange,
        origin: Origin,
        fate: Fate,
    ) -> Finding {
        let lost = self.channel.lost.iter().find(|(_, epoch, loss)| {
            *epoch == of.epoch && loss.sequences.contains(sequences.first)
        });
        Finding {
            gap,
            heard_before: of.heard_before,
            origin,
            fate,
            records: lost.and_then(|(_, _, loss)| loss.records),
            ..unrepairable(self.journal, self.id, of.epoch, of.found_at, sequences)
        }
    }

    /// Returns a datagram's fate on the publisher's side, if a given journal shows it.
    fn left(&self, epoch: Epoch, sequence: Sequence) -> Option<Left> {
        let mut all = self.all.iter();
        all.find_map(|it| it.sent.left(self.id, epoch, sequence))
    }

    /// Returns a source's loss as a given publisher's journal knows it, if any does.
    fn source_lost(&self, epoch: Epoch, event: &StreamEvent) -> Option<&SourceLost> {
        let mut all = self.all.iter();
        all.find_map(|it| it.sent.source_lost(self.id, epoch, event))
    }

    /// Returns the transport's drops between the last datagram before the gap and the moment it was found,
    /// and the longest stall just before.
    fn around(&self, gap: &Gap) -> (Dropped, Option<Nanos>) {
        let until = gap.found_at.after(TOLD_WITHIN);
        let mut sum = Dropped::default();
        let near = |at: Nanos| at >= gap.heard_before && at <= until;
        for (_, dropped) in self.channel.drops.iter().filter(|(at, _)| near(*at)) {
            sum.buffer = sum.buffer.saturating_add(dropped.buffer);
            sum.oversize = sum.oversize.saturating_add(dropped.oversize);
            sum.q_key = sum.q_key.saturating_add(dropped.q_key);
            sum.restarts = sum.restarts.saturating_add(dropped.restarts);
        }
        // Datagrams that waited in the socket during a stall are read faster than they arrived.
        let stalls = self.evidence.stalls.iter();
        let was_read =
            |(at, span): &&(Nanos, Nanos)| *at <= gap.found_at && gap.found_at <= at.after(*span);
        let stalled = stalls.filter(was_read).map(|(_, span)| *span);
        (sum, stalled.max())
    }

    fn origin(
        &self,
        gap: &Gap,
        sequence: Sequence,
        fate: Fate,
        (around, stalled_for): (Dropped, Option<Nanos>),
    ) -> Origin {
        let (channel, epoch) = (self.channel, gap.epoch);
        let has = |of: &BTreeMap<Epoch, Ranges>| of.get(&epoch).is_some_and(|it| it.has(sequence));
        if matches!(fate, Fate::Lost(LossCause::Unreadable)) {
            return Origin::Unreadable;
        }
        if !has(&channel.turned_away)
            && let Some(line) = self.late_on(gap, sequence)
        {
            return Origin::Late(line);
        }
        // A datagram that was never sent was lost at the publisher, regardless of events in this host.
        match self.left(epoch, sequence) {
            Some(Left::TornDown(fan_out)) => return Origin::TornDown(fan_out),
            Some(Left::NotYet) => return Origin::Unsent,
            _ => {}
        }
        if has(&channel.overrun) {
            return Origin::RingOverrun;
        }
        if has(&channel.turned_away) {
            return Origin::WindowFull;
        }
        if has(&channel.early) {
            return Origin::BeforeWelcome;
        }
        let dropped = |line: LineId| {
            let injected = channel.injected.get(&(epoch, line));
            injected.is_some_and(|it| it.has(sequence))
        };
        if let Some(line) = lines().find(|line| dropped(*line)) {
            return Origin::Injected(line);
        }
        let while_open = |at: Nanos| at >= gap.heard_before && at <= gap.found_at;
        let mut damaged = channel.damaged.iter();
        if let Some((_, line, _)) = damaged.find(|(at, _, of)| *of == sequence && while_open(*at)) {
            return Origin::Damaged(*line);
        }
        if around.buffer > 0 {
            return match stalled_for {
                Some(_) => Origin::PollStall,
                None => Origin::SocketBuffer,
            };
        }
        if around.restarts > 0 || around.q_key > 0 {
            return Origin::Device;
        }
        if around.oversize > 0 {
            return Origin::TooLong;
        }
        if let Some((_, line)) = channel.malformed.iter().find(|(at, _)| while_open(*at)) {
            return Origin::CutOff(*line);
        }
        // A damaged datagram may also carry a wrong sequence.
        if let Some((_, line, _)) = channel.damaged.iter().find(|(at, _, _)| while_open(*at)) {
            return Origin::Damaged(*line);
        }
        let silent =
            |(from, until): &(Nanos, Nanos)| *from <= gap.found_at && gap.found_at <= *until;
        if channel.silences.iter().any(silent) {
            return Origin::Silence;
        }
        if gap.heard_before == Nanos::ZERO && self.evidence.channels_begun(self.id) {
            return Origin::Joining;
        }
        match fate {
            // Without a later datagram, nobody knows whether this one ever left the publisher.
            Fate::Lost(LossCause::PublisherDead)
                if self.covering(epoch, sequence) == 0 && self.left(epoch, sequence).is_none() =>
            {
                return Origin::PublisherGone;
            }
            _ => {}
        }
        // The other line brought it and this one never did.
        let mut brought = lines().filter(|line| self.brought(gap, sequence, *line));
        match brought.next() {
            Some(line) => Origin::Wire(LineId(1 - line.0)),
            None => self.way(epoch, sequence),
        }
    }

    /// Returns whether a line itself brought the datagram, after the gap was found or before its epoch was
    /// confirmed.
    fn brought(&self, gap: &Gap, sequence: Sequence, line: LineId) -> bool {
        let received = self.channel.received.get(&(gap.epoch, line));
        received.is_some_and(|it| it.has(sequence))
    }

    /// Returns the line on which the datagram was late, not lost: that line itself brought it. When the
    /// other line skipped it, the datagram was lost there instead, and was late only for that reason.
    fn late_on(&self, gap: &Gap, sequence: Sequence) -> Option<LineId> {
        let brought = |line: &LineId| self.brought(gap, sequence, *line);
        if let Some(line) = gap.found_on.filter(brought) {
            return Some(line);
        }
        let passed_by = |line: LineId| {
            let received = self.channel.received.get(&(gap.epoch, line));
            let later = received.is_some_and(|it| it.highest() > Some(sequence));
            later && !brought(&line)
        };
        let mut first = lines().filter(brought);
        first.find(|line| !passed_by(LineId(1 - line.0)))
    }

    /// Returns when the datagram arrived late on its line, and why.
    fn delay(&self, gap: &Gap, sequence: Sequence, line: LineId) -> Option<(Nanos, DelayCause)> {
        let late = gap.late.get(&(sequence, line))?;
        let injected = self.channel.injected.get(&(gap.epoch, line));
        if injected.is_some_and(|it| it.has(sequence)) {
            return Some((late.at, DelayCause::Injected));
        }
        if late.overtaken || gap.found_on == Some(line) {
            return Some((late.at, DelayCause::Overtaken));
        }
        let meanwhile = |at: Nanos| gap.heard_before <= at && at <= late.at;
        let stalls = self.evidence.stalls.iter();
        let stalled = stalls.filter(|(at, _)| meanwhile(*at));
        if let Some(span) = stalled.map(|(_, span)| *span).max() {
            return Some((late.at, DelayCause::PollStall(span)));
        }
        let mut sent = self.all.iter().map(|it| &it.sent);
        if let Some(span) = sent.find_map(|it| it.held_up(self.id, gap.epoch, sequence)) {
            return Some((late.at, DelayCause::PublisherStall(span)));
        }
        let silence = gap.silence.filter(|span| *span >= SILENCE_MIN);
        Some((
            late.at,
            silence.map_or(DelayCause::Behind, DelayCause::Silence),
        ))
    }

    /// Decides a loss on all lines without evidence in this host, from the journals of other hosts.
    fn way(&self, epoch: Epoch, sequence: Sequence) -> Origin {
        // Another process of this host shares its network path and says nothing about that path.
        let others = self.all.iter().enumerate();
        let others = others
            .filter(|(journal, it)| *journal != self.journal && !it.is_of(&self.evidence.host));
        let (mut had, mut missed) = (None, false);
        for (_, other) in others {
            let Some(channel) = other.channels.get(&self.id) else {
                continue;
            };
            for line in lines() {
                let Some(received) = channel.received.get(&(epoch, line)) else {
                    continue;
                };
                let covers =
                    received.lowest() < Some(sequence) && received.highest() > Some(sequence);
                if had.is_none() && received.has(sequence) {
                    had = Some(line);
                }
                missed |= covers && !received.has(sequence);
            }
        }
        let left = self.left(epoch, sequence);
        let by_all = missed || self.covering(epoch, sequence) > 1;
        match left {
            Some(Left::Refused(line)) if had.is_none() => Origin::SendRefused(line),
            _ if had.is_some() => Origin::Wire(had.unwrap_or(LineId(0))),
            Some(_) if by_all => Origin::Uplink,
            Some(_) => Origin::WireOrUplink,
            None if by_all => Origin::SendQueue,
            None => Origin::WireOrSendQueue,
        }
    }

    /// Returns the number of lines that brought both an earlier and a later datagram.
    fn covering(&self, epoch: Epoch, sequence: Sequence) -> usize {
        let covers = |line: &LineId| {
            let received = self.channel.received.get(&(epoch, *line));
            received.is_some_and(|it| it.lowest() < Some(sequence) && it.highest() > Some(sequence))
        };
        lines().filter(covers).count()
    }

    /// Adds the losses outside gaps: losses that the publisher reported, losses before joining or at the
    /// publisher's death, and items that the application was too slow to take.
    fn others(&self, findings: &mut Vec<Finding>, totals: &mut Totals) {
        let mut number = self.channel.gaps.len();
        let mut base = |at: Nanos, epoch, sequences| {
            number += 1;
            Finding {
                gap: number,
                ..unrepairable(self.journal, self.id, epoch, at, sequences)
            }
        };
        for (at, epoch, sequence, event) in &self.channel.sources {
            let StreamEvent::SourceLost {
                reason, messages, ..
            } = event
            else {
                continue;
            };
            let known = self.source_lost(*epoch, event);
            findings.push(Finding {
                origin: origin_of_source(*reason, known),
                source: Some((*reason, *messages)),
                stalled_for: known.and_then(paused),
                buffer_drops: known.and_then(|it| it.unread).map_or(0, |it| it.packets),
                ..base(*at, *epoch, SequenceRange::one(*sequence))
            });
        }
        for (at, sequence, items) in &self.channel.overwritten {
            findings.push(Finding {
                origin: Origin::LocalRing,
                records: Some(*items),
                ..base(*at, Epoch::NONE, SequenceRange::one(*sequence))
            });
        }
        for (at, epoch, loss) in &self.channel.lost {
            let Some((origin, rest)) = self.loss_of_no_gap(*epoch, loss) else {
                continue;
            };
            if loss.sequences.last != Sequence(u64::MAX) && origin != Origin::Unreadable {
                totals.lost_otherwise = totals.lost_otherwise.saturating_add(rest);
            }
            findings.push(Finding {
                origin,
                fate: Fate::Lost(loss.cause),
                records: loss.records,
                ..base(*at, *epoch, loss.sequences)
            });
        }
    }

    /// Returns the origin of a loss outside the gaps found after joining, and its number of sequences.
    /// Returns `None` when the loss belongs to such a gap.
    fn loss_of_no_gap(&self, epoch: Epoch, loss: &Loss) -> Option<(Origin, u64)> {
        match loss.cause {
            LossCause::Fenced => return Some((Origin::Impostor, 0)),
            LossCause::Unreadable => {
                let known = self.channel.gaps.iter();
                let mut of = known.filter(|gap| gap.epoch == epoch);
                let in_gap = of.any(|gap| gap.range.contains(loss.sequences.first));
                return (!in_gap).then_some((Origin::Unreadable, 0));
            }
            _ => {}
        }
        let gaps = self.channel.gaps.iter().filter(|gap| gap.epoch == epoch);
        let parts = gaps.filter_map(|gap| gap.range.intersection(loss.sequences));
        let known: u64 = parts.map(|part| part.len()).fold(0, u64::saturating_add);
        let rest = loss.sequences.len().saturating_sub(known);
        if rest == 0 {
            return None;
        }
        let history = self.channel.history.get(&epoch);
        let before = history.is_some_and(|it| it.has(loss.sequences.first));
        let origin = match loss.cause {
            _ if before => Origin::BeforeJoining,
            LossCause::PublisherDead => Origin::PublisherGone,
            LossCause::Epoch => Origin::EpochChange,
            LossCause::Window if known == 0 => Origin::BeforeJoining,
            _ if known > 0 => return None,
            _ => Origin::BeforeRecord,
        };
        Some((origin, rest))
    }
}

fn lines() -> impl Iterator<Item = LineId> {
    (0..LineId::MAX).map(|line| LineId(line as u8))
}
