//! The last step to the application: its closure, which may panic. What it was not given then is
//! kept, and comes first at the next poll; the core never sees a panic and stays whole.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tickcast_reliability::delivery::{Event, Item, Position};
use tickcast_reliability::record::{RecordBatch, RecordRef};

use crate::latest::{Cell, LatestReader};
use crate::monitor::Shared;

/// Where items go after filter and meter.
pub(crate) trait Hand {
    fn record(&mut self, channel: usize, position: &Position, record: RecordRef<'_>);
    fn event(&mut self, channel: usize, position: &Position, event: &Event);
    /// A cell of a `latest` channel has changed.
    fn changed(&mut self, channel: usize, cell: Cell);
}

/// An item that outlives the datagram it came in.
#[derive(Debug)]
enum Kept {
    Record(Position, RecordBatch),
    Event(Position, Event),
}

/// Items that wait for the next poll; empty unless a closure panicked or a channel was rejoined.
#[derive(Debug, Default)]
pub(crate) struct Backlog(VecDeque<Kept>);

impl Backlog {
    #[cold]
    pub(crate) fn keep(&mut self, item: Item<'_>) {
        self.0.push_back(match item {
            Item::Record(position, record) => {
                let mut batch = RecordBatch::default();
                // invariant: it came from the wire, whose types are those a batch takes.
                let _ = batch.push_ref(record);
                Kept::Record(*position, batch)
            }
            Item::Event(position, event) => Kept::Event(*position, event.clone()),
        });
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes everything out, in order.
    pub(crate) fn drain(&mut self, mut on: impl FnMut(Item<'_>)) {
        for kept in self.0.drain(..) {
            kept.each(&mut on);
        }
    }
}

impl Kept {
    fn each(&self, mut on: impl FnMut(Item<'_>)) {
        match self {
            Self::Record(position, batch) => {
                for record in batch.records() {
                    on(Item::Record(position, record));
                }
            }
            Self::Event(position, event) => on(Item::Event(position, event)),
        }
    }
}

/// Calls the application's closure.
pub(crate) struct Caller<'a, F> {
    on: F,
    backlog: &'a mut Backlog,
    panic: Option<Box<dyn Any + Send>>,
}

impl<'a, F: FnMut(Item<'_>)> Caller<'a, F> {
    pub(crate) const fn new(on: F, backlog: &'a mut Backlog) -> Self {
        Self {
            on,
            backlog,
            panic: None,
        }
    }

    #[inline]
    pub(crate) fn call(&mut self, item: Item<'_>) {
        if self.panic.is_some() {
            return self.backlog.keep(item);
        }
        // The closure's own state is its owner's to judge, who gets the panic.
        self.panic = catch_unwind(AssertUnwindSafe(|| (self.on)(item))).err();
    }

    /// Hands over what was kept; whether all of it could be.
    #[inline]
    pub(crate) fn catch_up(&mut self) -> bool {
        while self.panic.is_none()
            && let Some(kept) = self.backlog.0.pop_front()
        {
            kept.each(|item| self.call(item));
        }
        self.backlog.is_empty() && self.panic.is_none()
    }

    /// Whether it panicked, to be let go on when everything is in its place again.
    #[inline]
    pub(crate) fn outcome(self) -> Outcome {
        Outcome(self.panic)
    }
}

/// How the closure ended.
#[must_use]
pub(crate) struct Outcome(Option<Box<dyn Any + Send>>);

impl Outcome {
    /// Lets the panic go on, if there was one.
    #[inline]
    pub(crate) fn resume(self) {
        if let Some(panic) = self.0 {
            std::panic::resume_unwind(panic);
        }
    }
}

/// Hands items to a closure, conflating `latest` channels on the way.
pub(crate) struct ToClosure<'a, F> {
    pub(crate) caller: Caller<'a, F>,
    pub(crate) latest: &'a mut [Option<LatestReader>],
    pub(crate) shared: &'a Shared,
}

impl<F: FnMut(Item<'_>)> ToClosure<'_, F> {
    /// Hands over what has changed of a `latest` channel.
    pub(crate) fn flush(&mut self, channel: usize) {
        if let Some(latest) = &mut self.latest[channel]
            && latest.is_dirty()
        {
            let handed = &self.shared.channels[channel].handed;
            let caller = &mut self.caller;
            latest.flush(|position, record| {
                handed.handed_records.increment();
                handed
                    .conflated_records
                    .add(position.quality.conflated.into());
                caller.call(Item::Record(&position, record));
            });
        }
    }
}

impl<F: FnMut(Item<'_>)> Hand for ToClosure<'_, F> {
    #[inline]
    fn record(&mut self, channel: usize, position: &Position, record: RecordRef<'_>) {
        self.flush(channel);
        self.shared.channels[channel]
            .handed
            .handed_records
            .increment();
        self.caller.call(Item::Record(position, record));
    }

    fn event(&mut self, channel: usize, position: &Position, event: &Event) {
        self.flush(channel);
        self.shared.channels[channel]
            .handed
            .handed_events
            .increment();
        self.caller.call(Item::Event(position, event));
    }

    #[inline]
    fn changed(&mut self, channel: usize, cell: Cell) {
        if let Some(latest) = &mut self.latest[channel] {
            latest.mark(cell);
        }
    }
}
