//! Delivery in order: each datagram is handed over when everything before it was delivered or
//! declared lost, and a loss is told exactly where it stands, with the number of records it cost
//! (docs/PROTOCOL.md §7, §8).
//!
//! The in-order datagram goes straight from the receive buffer to the application; only one that
//! is early is copied. In arrival order every datagram goes straight on, and this file keeps track
//! of what lies behind it.

use std::collections::VecDeque;

use crate::counters::ReceiverCounters;
use crate::delivery::{Event, Item, Position, Quality};
use crate::loss::{Loss, LossCause};
use crate::units::{
    ChannelId, Epoch, Nanos, RecordNumber, Sequence, SequenceRange, SourceId, SourcePosition,
};
use crate::window::{Held, Window};
use crate::wire::{Datagram, Kind, StreamEvent};

/// The state of delivery of one channel in one epoch.
#[derive(Debug)]
pub struct Order {
    stream: Stream,
    window: Window,
    /// Declared lost but not yet reached: ascending, apart from each other.
    lost: VecDeque<(SequenceRange, LossCause)>,
    /// A sequence and the number of its first record, as a heartbeat or the publisher told it.
    fact: Option<(Sequence, RecordNumber)>,
    in_arrival_order: bool,
}

/// How far the application has been taken.
#[derive(Debug)]
struct Stream {
    channel: ChannelId,
    epoch: Epoch,
    /// The next sequence to deliver or declare lost.
    next: Sequence,
    /// The number its first record must have, where known.
    next_record: Option<RecordNumber>,
    /// Reached and lost, waiting to learn how many records it cost.
    pending: Option<(SequenceRange, LossCause)>,
    after_loss: bool,
    ended: bool,
}

impl Order {
    /// Delivery of `channel` through `window`, to begin where [`Order::restart`] says.
    #[must_use]
    pub fn new(channel: ChannelId, window: Window, in_arrival_order: bool) -> Self {
        let stream = Stream {
            channel,
            epoch: Epoch::NONE,
            next: Sequence::FIRST,
            next_record: None,
            pending: None,
            after_loss: false,
            ended: false,
        };
        let lost = VecDeque::with_capacity(64);
        Self {
            stream,
            window,
            lost,
            fact: None,
            in_arrival_order,
        }
    }

    /// Starts over in `epoch` with `next`; what was held of another epoch is gone.
    pub fn restart(&mut self, epoch: Epoch, next: Sequence, next_record: Option<RecordNumber>) {
        self.stream = Stream {
            epoch,
            next,
            next_record,
            pending: None,
            ended: false,
            ..self.stream
        };
        self.window.clear();
        self.lost.clear();
        self.fact = None;
    }

    /// Makes room for datagrams of this length; what is held is dropped if there was none.
    pub fn fit_slots(&mut self, slot_len: usize) {
        if slot_len > self.window.slot_len() {
            self.window = Window::new(self.window.span() as usize, slot_len);
        }
    }

    /// The next sequence to deliver or declare lost.
    #[must_use]
    pub const fn next(&self) -> Sequence {
        self.stream.next
    }

    /// The number of the next record, where known.
    #[must_use]
    pub const fn next_record(&self) -> Option<RecordNumber> {
        self.stream.next_record
    }

    /// Whether the session is over, and all of it delivered or declared lost.
    #[must_use]
    pub const fn ended(&self) -> bool {
        self.stream.ended
    }

    /// The window: what is held, and what is remembered.
    #[must_use]
    pub const fn window(&self) -> &Window {
        &self.window
    }

    /// The first sequence that lies beyond the window.
    #[must_use]
    pub const fn beyond(&self) -> Sequence {
        self.stream.next.plus(self.window.span())
    }

    /// Replaces the content of a datagram that still waits (the repair path's copy decides).
    pub fn replace_waiting(&mut self, held: Held, bytes: &[u8]) {
        self.window.hold(held, bytes);
    }

    /// Takes a datagram that is neither delivered nor held and lies within the window; delivers
    /// what can be.
    #[inline]
    pub fn offer(
        &mut self,
        datagram: &Datagram<'_>,
        held: Held,
        counters: &ReceiverCounters,
        on: &mut impl FnMut(Item<'_>),
    ) {
        let in_turn = held.sequence == self.stream.next;
        if in_turn || self.in_arrival_order {
            if in_turn {
                self.stream
                    .tell_pending(Some(held.first_record), counters, on);
            }
            self.window.delivered(held);
            self.stream.deliver(datagram, &held, !in_turn, counters, on);
            if in_turn {
                self.stream.pass(&held);
                self.advance(counters, on);
            }
        } else {
            self.window.hold(held, datagram.bytes());
        }
    }

    /// Moves the beginning forward, before anything was delivered: what the ring lost meanwhile is
    /// no loss of somebody who begins with the oldest.
    pub fn begin_at(&mut self, oldest: Sequence, record: RecordNumber) {
        self.stream.next = self.stream.next.max(oldest);
        self.stream.next_record = (record != RecordNumber(0)).then_some(record);
    }

    /// Tells that the datagram delivered under this number was not the publisher's: `held` is.
    pub fn tell_fenced(
        &mut self,
        held: &Held,
        counters: &ReceiverCounters,
        on: &mut impl FnMut(Item<'_>),
    ) {
        // Remembered from now on, so that a second copy of it says nothing new.
        self.window.delivered(*held);
        let loss = Loss {
            sequences: SequenceRange::one(held.sequence),
            records: Some(held.count.into()),
            cause: LossCause::Fenced,
        };
        self.stream.tell_loss(loss, counters, on);
    }

    /// Declares what of `range` has not been passed lost.
    pub fn lose(&mut self, range: SequenceRange, cause: LossCause) {
        let Some(range) = SequenceRange::new(range.first.max(self.stream.next), range.last) else {
            return;
        };
        let at = self
            .lost
            .partition_point(|(lost, _)| lost.last < range.first);
        self.lost.insert(at, (range, cause));
    }

    /// The session is over, confirmed by the publisher; tells it once.
    pub fn end(&mut self, on: &mut impl FnMut(Item<'_>)) {
        if !std::mem::replace(&mut self.stream.ended, true) {
            on(Item::Event(&self.stream.position(), &Event::EndOfSession));
        }
    }

    /// Notes that the first record of `sequence` has this number.
    pub fn note_fact(&mut self, sequence: Sequence, record: RecordNumber) {
        let newer = self
            .fact
            .is_none_or(|(of, _)| of < self.stream.next || of < sequence);
        if record != RecordNumber(0) && newer && sequence >= self.stream.next {
            self.fact = Some((sequence, record));
        }
    }

    /// Passes everything that is settled: delivered early, held, or lost.
    pub fn advance(&mut self, counters: &ReceiverCounters, on: &mut impl FnMut(Item<'_>)) {
        loop {
            if let Some(&(range, cause)) = self.lost.front()
                && range.first <= self.stream.next
            {
                self.lost.pop_front();
                if range.last >= self.stream.next {
                    self.stream.reach_lost(range, cause);
                }
            } else if self.in_arrival_order {
                let Some((&held, true)) = self.window.seen(self.stream.next) else {
                    break;
                };
                self.stream
                    .tell_pending(Some(held.first_record), counters, on);
                self.stream.pass(&held);
            } else if !self.deliver_waiting(counters, on) {
                break;
            }
        }
        if self.stream.pending.is_some()
            && let Some((sequence, record)) = self.fact
            && sequence == self.stream.next
        {
            self.stream.tell_pending(Some(record), counters, on);
        }
    }

    /// Tells what is pending although nobody knows how many records it cost: at the end of an
    /// epoch, or when the application leaves.
    pub fn give_up_pending(&mut self, counters: &ReceiverCounters, on: &mut impl FnMut(Item<'_>)) {
        self.stream.tell_pending(None, counters, on);
    }

    /// Where the stream stands now, for events that are no datagram.
    #[must_use]
    pub fn position(&self) -> Position {
        self.stream.position()
    }

    /// Delivers the datagram that waits under `next`, if there is one.
    fn deliver_waiting(
        &mut self,
        counters: &ReceiverCounters,
        on: &mut impl FnMut(Item<'_>),
    ) -> bool {
        let next = self.stream.next;
        let Some((&held, bytes)) = self.window.waiting_at(next) else {
            return false;
        };
        self.stream
            .tell_pending(Some(held.first_record), counters, on);
        // What is held was parsed when it came, and nothing changes it while it waits.
        if let Ok(datagram) = Datagram::parse(bytes) {
            self.stream.deliver(&datagram, &held, false, counters, on);
        }
        self.stream.pass(&held);
        self.window.release(next);
        true
    }
}

impl Stream {
    /// Where the stream stands now, for events that are no datagram.
    fn position(&self) -> Position {
        Position {
            channel: self.channel,
            epoch: self.epoch,
            sequence: self.next.previous(),
            record: self.next_record.unwrap_or(RecordNumber(0)),
            via: crate::delivery::Via::Repair,
            quality: Quality {
                after_loss: self.after_loss,
                ..Quality::default()
            },
            source: SourceId(0),
            source_position: SourcePosition(0),
            sent_at: Nanos::ZERO,
            received_at: Nanos::ZERO,
            missing_for: Nanos::ZERO,
        }
    }

    #[inline]
    fn deliver(
        &mut self,
        datagram: &Datagram<'_>,
        held: &Held,
        out_of_order: bool,
        counters: &ReceiverCounters,
        on: &mut impl FnMut(Item<'_>),
    ) {
        let header = datagram.header();
        let mut position = Position {
            channel: self.channel,
            epoch: self.epoch,
            sequence: held.sequence,
            record: held.first_record,
            via: held.via,
            quality: Quality {
                repaired: held.missing_for != Nanos::ZERO,
                out_of_order,
                after_loss: self.after_loss,
            },
            source: header.source,
            source_position: header.source_position,
            sent_at: header.sent_at,
            received_at: held.received_at,
            missing_for: held.missing_for,
        };
        match header.kind {
            Kind::Data => match datagram.records() {
                Ok(records) => {
                    for record in records {
                        on(Item::Record(&position, record));
                        position.record = position.record.plus(1);
                    }
                    counters.delivered_records.add(held.count.into());
                }
                Err(_) => return self.tell_unreadable(held, counters, on),
            },
            Kind::Event => {
                if let Some(event) = StreamEvent::parse(datagram.payload()) {
                    counters.stream_events.increment();
                    if let StreamEvent::SourceLost { messages, .. } = event {
                        counters.source_messages_lost.add(messages);
                    }
                    on(Item::Event(&position, &Event::Stream(event)));
                }
            }
            // A datagram ends nothing: the end is told when the repair path has confirmed it.
            Kind::End => {}
            Kind::Heartbeat => {}
        }
        counters.delivered_datagrams.increment();
    }

    /// A datagram whose CRC fits but whose records do not: it counts as lost, not as delivered.
    #[cold]
    fn tell_unreadable(
        &mut self,
        held: &Held,
        counters: &ReceiverCounters,
        on: &mut impl FnMut(Item<'_>),
    ) {
        counters.malformed_dropped.increment();
        let loss = Loss {
            sequences: SequenceRange::one(held.sequence),
            records: Some(held.count.into()),
            cause: LossCause::Unreadable,
        };
        self.tell_loss(loss, counters, on);
    }

    /// Moves past a datagram that was delivered.
    #[inline]
    const fn pass(&mut self, held: &Held) {
        self.next = held.sequence.next();
        self.next_record = Some(held.first_record.plus(held.count as u64));
    }

    fn reach_lost(&mut self, range: SequenceRange, cause: LossCause) {
        let first = self.next;
        self.next = range.last.next();
        self.pending = Some(match self.pending {
            // Losses next to each other are told as one, because only their sum is known.
            Some((before, cause)) => (
                SequenceRange {
                    first: before.first,
                    last: range.last,
                },
                cause,
            ),
            None => (
                SequenceRange {
                    first,
                    last: range.last,
                },
                cause,
            ),
        });
    }

    #[inline]
    fn tell_pending(
        &mut self,
        next_record: Option<RecordNumber>,
        counters: &ReceiverCounters,
        on: &mut impl FnMut(Item<'_>),
    ) {
        if let Some((sequences, cause)) = self.pending.take() {
            let records = match (self.next_record, next_record) {
                (Some(expected), Some(found)) => Some(found.since(expected)),
                _ => None,
            };
            // Where nobody knows, the old number is of no use: the next loss would count this one's.
            self.next_record = next_record;
            self.tell_loss(
                Loss {
                    sequences,
                    records,
                    cause,
                },
                counters,
                on,
            );
        }
    }

    #[cold]
    fn tell_loss(
        &mut self,
        loss: Loss,
        counters: &ReceiverCounters,
        on: &mut impl FnMut(Item<'_>),
    ) {
        counters.loss_events.increment();
        match loss.records {
            Some(records) => counters.lost_records.add(records),
            None => counters.losses_of_unknown_size.increment(),
        }
        self.after_loss = true;
        let position = self.position();
        on(Item::Event(&position, &Event::Lost(loss)));
    }
}
