//! What the records of a publisher show: what it sealed and sent on each fan-out, what it could not,
//! and what its repair service was asked for and gave.

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

/// One channel's publisher.
#[derive(Debug, Default)]
pub(super) struct Sent {
    /// Of which channel, in which epoch; known with the first header.
    of: Option<(ChannelId, Epoch)>,
    sealed: Ranges,
    fan_outs: BTreeMap<FanOutId, FanOut>,
    /// What the source lost, in the order told.
    pub(super) sources: Vec<SourceLost>,
    /// What was told of and has no number yet.
    pending: Option<SourceLost>,
    /// What the loss of a source is due to that is told next.
    unread: Option<(SourceId, Unread)>,
    /// When fan-outs were torn down, and what each never sent.
    pub(super) torn_down: Vec<(Nanos, FanOutId, SequenceRange)>,
    /// When a line refused datagrams, how many, and which it may have been.
    pub(super) refused: Vec<Refusal>,
}

/// What was lost of a source.
#[derive(Debug)]
pub(super) struct SourceLost {
    pub(super) at: Nanos,
    /// Under which number the stream tells of it.
    pub(super) sequence: Sequence,
    pub(super) event: StreamEvent,
    /// Whether a message was larger than a datagram.
    pub(super) oversize: bool,
    /// What the input's own socket had dropped of it.
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

/// The network refused datagrams on a line.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) at: Nanos,
    fan_out: FanOutId,
    pub(super) line: LineId,
    pub(super) count: u64,
    /// What was being handed to it then.
    pub(super) among: SequenceRange,
}

#[derive(Debug, Default)]
struct FanOut {
    posted: Ranges,
    up_to: Option<Sequence>,
    skipped: Ranges,
    /// What was handed over last, at one look at the clock.
    lately: Option<(Nanos, SequenceRange)>,
    counted: BTreeMap<LineId, Sending>,
    /// What was handed over only when nobody had come back for so long.
    held_up: Vec<(SequenceRange, Nanos)>,
}

/// What became of a datagram on the publisher's side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// A fan-out was torn down before it sent it.
    TornDown(FanOutId),
    /// It was sealed, and not handed over when the record ends.
    NotYet,
    /// It was handed over, and a line refused datagrams then.
    Refused(LineId),
    /// It was handed to the network.
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

    /// What is lost next of a source was dropped in the publisher's host.
    pub(super) const fn unread(&mut self, source: SourceId, unread: Unread) {
        self.unread = Some((source, unread));
    }

    /// A fan-out was handed what is sealed up to here, once the publish thread had `stalled` for so long.
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
        // What went out at an earlier look was counted at that one. Where nothing was handed over at this
        // one, a line may still wait with what the other was refused.
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

    /// How many datagrams were sealed, and how many handed to some fan-out.
    pub(super) fn totals(&self) -> [u64; 2] {
        let handed = self.fan_outs.values().map(|it| it.posted.len()).max();
        [self.sealed.len(), handed.unwrap_or(0)]
    }

    /// Of which channel and epoch.
    pub(super) const fn of(&self) -> Option<(ChannelId, Epoch)> {
        self.of
    }

    /// What became of a datagram here; `None` where the record does not say.
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

    /// For how long a datagram waited here for a publish thread that did not come back.
    pub(super) fn held_up(&self, id: ChannelId, epoch: Epoch, it: Sequence) -> Option<Nanos> {
        let fan_outs = self.fan_outs.values();
        let held_up = fan_outs.flat_map(|of| of.held_up.iter());
        let of = held_up.filter(|(range, _)| self.of == Some((id, epoch)) && range.contains(it));
        of.map(|(_, span)| *span).max()
    }

    /// What is known here of a loss that the stream tells of.
    pub(super) fn source_lost(
        &self,
        id: ChannelId,
        epoch: Epoch,
        event: &StreamEvent,
    ) -> Option<&SourceLost> {
        let place = |event: &StreamEvent| match event {
            StreamEvent::SourceLost { source, from, .. } => Some((*source, *from)),
            StreamEvent::EpochOpened { .. } => None,
        };
        let sources = (self.of == Some((id, epoch))).then_some(&self.sources);
        let mut sources = sources.into_iter().flatten();
        sources.find(|it| place(&it.event) == place(event))
    }
}

/// What a repair service was asked for, and what it gave, in sequences.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Serving {
    /// Subscribers that joined.
    pub joined: u64,
    /// Subscribers that went without a word.
    pub vanished: u64,
    /// Connections that were turned away or closed with a reason.
    pub turned_away: u64,
    /// Sequences asked for.
    pub asked: u64,
    /// Given to who asked.
    pub given: u64,
    /// Given to all, by multicast.
    pub given_to_all: u64,
    /// Refused, by reason.
    pub refused: BTreeMap<RefusalReason, u64>,
    /// Whose connections were closed here.
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
