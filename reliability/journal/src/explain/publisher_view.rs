//! The evidence in a publisher's journals: the datagrams sealed, sent and not sent on each fan-out, and
//! the NACKs and repairs of its repair service.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::Ranges;
use crate::{Published, Sending, Unread};
use tickcast_reliability::control::{Message, RefusalReason};
use tickcast_reliability::delivery::LineId;
use tickcast_reliability::publish::PublisherEvent;
use tickcast_reliability::serve::PeerId;
use tickcast_reliability::types::{
    ChannelId, Epoch, FanOutId, Nanos, Sequence, SequenceRange, SourceId,
};
use tickcast_reliability::wire::{Header, Kind, StreamEvent};

/// The evidence for one channel's publisher.
#[derive(Debug, Default)]
pub(super) struct Sent {
    /// Channel and epoch, known from the first header.
    of: Option<(ChannelId, Epoch)>,
    sealed: Ranges,
    fan_outs: BTreeMap<FanOutId, FanOut>,
    /// Losses of the source, in the order reported.
    pub(super) sources: Vec<SourceLost>,
    /// A reported loss whose event has no sequence yet.
    pending: Option<SourceLost>,
    /// The drops that explain the next reported loss of a source.
    unread: Option<(SourceId, Unread)>,
    /// When fan-outs were torn down, and the sequences that each never sent.
    pub(super) torn_down: Vec<(Nanos, FanOutId, SequenceRange)>,
    /// The refusals on each line.
    pub(super) refused: Vec<Refusal>,
}

/// A loss of the source.
#[derive(Debug)]
pub(super) struct SourceLost {
    pub(super) at: Nanos,
    /// Sequence of the stream's event that reports it.
    pub(super) sequence: Sequence,
    pub(super) event: StreamEvent,
    /// Whether a message larger than a datagram caused it.
    pub(super) oversize: bool,
    /// Packets that the input's own socket dropped.
    pub(super) unread: Option<Unread>,
}

impl SourceLost {
    const fn of(at: Nanos, event: StreamEvent, oversize: bool, unread: Option<Unread>) -> Self {
        Self {
            at,
            sequence: Sequence::NONE,
            event,
            oversize,
            unread,
        }
    }
}

/// Datagrams that the network refused on a line.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) at: Nanos,
    fan_out: FanOutId,
    pub(super) line: LineId,
    pub(super) count: u64,
    /// The sequences posted at that time: the refused ones are among these.
    pub(super) among: SequenceRange,
}

#[derive(Debug, Default)]
struct FanOut {
    posted: Ranges,
    up_to: Option<Sequence>,
    skipped: Ranges,
    /// The sequences posted last, at one poll.
    lately: Option<(Nanos, SequenceRange)>,
    counted: BTreeMap<LineId, Sending>,
    /// Sequences posted only after the publish thread had stalled, and for how long.
    held_up: Vec<(SequenceRange, Nanos)>,
}

/// The fate of a datagram on the publisher's side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// A fan-out was torn down before it sent the datagram.
    TornDown(FanOutId),
    /// The datagram was sealed but not posted when the journal ends.
    NotYet,
    /// The datagram was posted, and a line refused datagrams at that time.
    Refused(LineId),
    /// The datagram was posted to the network.
    Handed,
}

impl Sent {
    pub(super) fn sealed(&mut self, header: &Header) {
        self.of = Some((header.channel, header.epoch));
        self.sealed.insert(SequenceRange::one(header.sequence));
        if header.kind == Kind::Event
            && let Some(lost) = self.pending.take()
        {
            self.sources.push(SourceLost {
                sequence: header.sequence,
                ..lost
            });
        }
    }

    pub(super) fn published(&mut self, at: Nanos, what: &Published) {
        use tickcast_reliability::wire::SourceLossReason::Overflow;
        let unread = self.unread.take();
        self.pending = match what {
            Published::Event(event @ StreamEvent::SourceLost { source, .. }, _) => {
                let unread = unread.filter(|(of, _)| of == source).map(|(_, it)| it);
                Some(SourceLost::of(at, event.clone(), false, unread))
            }
            Published::TooLarge {
                source,
                position,
                instruments,
                ..
            } => {
                let lost = StreamEvent::SourceLost {
                    source: *source,
                    reason: Overflow,
                    from: *position,
                    messages: 1,
                    instruments: instruments.clone(),
                };
                Some(SourceLost::of(at, lost, true, None))
            }
            _ => None,
        };
    }

    /// Notes that the next loss of a source is due to drops in the publisher's host.
    pub(super) const fn unread(&mut self, source: SourceId, unread: Unread) {
        self.unread = Some((source, unread));
    }

    /// Notes that a fan-out posted everything sealed up to `up_to`, after the publish thread had `stalled`.
    pub(super) fn posted(
        &mut self,
        at: Nanos,
        fan_out: FanOutId,
        up_to: Sequence,
        stalled: Option<Nanos>,
    ) {
        let first = self.sealed.lowest();
        let of = self.fan_outs.entry(fan_out).or_default();
        let from = of.up_to.map(Sequence::next).or(first).unwrap_or(up_to);
        if let Some(range) = SequenceRange::new(from.min(up_to), up_to)
            && of.up_to.is_none_or(|before| up_to > before)
        {
            of.posted.insert(range);
            of.held_up.extend(stalled.map(|span| (range, span)));
            of.up_to = Some(up_to);
            let with = of.lately.filter(|(then, _)| *then == at);
            let first = with.map_or(range.first, |(_, before)| before.first);
            let last = range.last;
            of.lately = Some((at, SequenceRange { first, last }));
        }
    }

    pub(super) fn happened(&mut self, at: Nanos, event: &PublisherEvent) {
        if let PublisherEvent::FanOutReset {
            fan_out,
            skipped: Some(range),
        } = event
        {
            let of = self.fan_outs.entry(*fan_out).or_default();
            of.skipped.insert(*range);
            of.up_to = of.up_to.max(Some(range.last));
            self.torn_down.push((at, *fan_out, *range));
        }
    }

    pub(super) fn counted(&mut self, at: Nanos, fan_out: FanOutId, line: LineId, now: Sending) {
        let of = self.fan_outs.entry(fan_out).or_default();
        let before = of.counted.insert(line, now).unwrap_or_default();
        let count = now.refused.saturating_sub(before.refused);
        // Refusals of an earlier poll were counted then. When nothing was posted at this poll, one line may
        // still hold datagrams that the other line was refused.
        let lately = of.lately.filter(|(then, _)| *then == at);
        let waiting = || SequenceRange::new(of.up_to?.next(), self.sealed.highest()?);
        let among = lately.map(|(_, range)| range).or_else(waiting);
        let Some(among) = among.filter(|_| count > 0) else {
            return;
        };
        let mut before = self.refused.iter_mut().rev();
        let before = before.find(|it| (it.fan_out, it.line) == (fan_out, line));
        if let Some(it) = before.filter(|it| it.among.last >= among.first) {
            it.count = it.count.saturating_add(count);
            it.among.first = it.among.first.min(among.first);
            it.among.last = it.among.last.max(among.last);
            return;
        }
        self.refused.push(Refusal {
            at,
            fan_out,
            line,
            count,
            among,
        });
    }

    /// Returns the number of datagrams sealed, and the largest number posted by one fan-out.
    pub(super) fn totals(&self) -> [u64; 2] {
        let handed = self.fan_outs.values().map(|it| it.posted.len()).max();
        [self.sealed.len(), handed.unwrap_or(0)]
    }

    /// Returns the channel and epoch.
    pub(super) const fn of(&self) -> Option<(ChannelId, Epoch)> {
        self.of
    }

    /// Returns the fate of a datagram; `None` when the journal does not show it.
    pub(super) fn left(&self, id: ChannelId, epoch: Epoch, sequence: Sequence) -> Option<Left> {
        if self.of != Some((id, epoch)) || !self.sealed.has(sequence) {
            return None;
        }
        let mut skipped = self
            .fan_outs
            .iter()
            .filter(|(_, it)| it.skipped.has(sequence));
        if let Some((fan_out, _)) = skipped.next() {
            return Some(Left::TornDown(*fan_out));
        }
        let mut handed = self.fan_outs.values();
        if self.fan_outs.is_empty() || handed.any(|it| !it.posted.has(sequence)) {
            return Some(Left::NotYet);
        }
        let mut refused = self.refused.iter();
        let refused = refused.find(|it| it.among.contains(sequence));
        Some(refused.map_or(Left::Handed, |it| Left::Refused(it.line)))
    }

    /// Returns how long a datagram waited because the publish thread stalled.
    pub(super) fn held_up(&self, id: ChannelId, epoch: Epoch, it: Sequence) -> Option<Nanos> {
        let fan_outs = self.fan_outs.values();
        let held_up = fan_outs.flat_map(|of| of.held_up.iter());
        let of = held_up.filter(|(range, _)| self.of == Some((id, epoch)) && range.contains(it));
        of.map(|(_, span)| *span).max()
    }

    /// Returns the loss that a stream event reports, as this journal knows it.
    pub(super) fn source_lost(
        &self,
        id: ChannelId,
        epoch: Epoch,
        event: &StreamEvent,
    ) -> Option<&SourceLost> {
        let place = |event: &StreamEvent| match event {
            StreamEvent::SourceLost { source, from, .. } => Some((*source, *from)),
            StreamEvent::SourceSilent { .. }
            | StreamEvent::SourceBack { .. }
            | StreamEvent::EpochOpened { .. } => None,
        };
        let sources = (self.of == Some((id, epoch))).then_some(&self.sources);
        let mut sources = sources.into_iter().flatten();
        sources.find(|it| place(&it.event) == place(event))
    }
}

/// NACKs and repairs of a repair service, counted in sequences.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Serving {
    /// Subscribers that joined.
    pub joined: u64,
    /// Subscribers that disconnected without a LEAVE.
    pub vanished: u64,
    /// Connections rejected or closed with a reason.
    pub turned_away: u64,
    /// Sequences requested.
    pub asked: u64,
    /// Sequences repaired to one subscriber.
    pub given: u64,
    /// Sequences repaired to all by multicast.
    pub given_to_all: u64,
    /// Sequences refused, by reason.
    pub refused: BTreeMap<RefusalReason, u64>,
    /// Peers whose connections the service closed.
    #[serde(skip)]
    pub(super) closed: BTreeSet<PeerId>,
}

impl Serving {
    pub(super) fn heard(&mut self, message: &Message<'_>) {
        if let Message::Nack { ranges, .. } = message {
            let count = |sum: u64, range: &SequenceRange| sum.saturating_add(range.len());
            self.asked = ranges.iter().fold(self.asked, count);
        }
    }

    pub(super) fn said(&mut self, message: &Message<'_>) {
        if let Message::Refused(refused) = message {
            let sum = self.refused.entry(refused.reason).or_default();
            *sum = sum.saturating_add(refused.range.len());
        }
    }
}
