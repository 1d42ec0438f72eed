//! The last step to the application: its closure, which may panic. What it was not given then is
//! kept, and comes first at the next poll; the core never sees a panic and stays whole.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tickcast_reliability::delivery::{Deliver, Event, Item, Position};
use tickcast_reliability::record::{RecordBatch, RecordRef, Records};

use super::conflate::{Cell, LatestReader};
use crate::observe::Shared;
use crate::observe::totals::Totals;

/// Where items go after filter and meter.
pub(crate) trait Hand {
    fn record(&mut self, channel: usize, position: &Position, record: RecordRef<'_>);
    /// Records that follow each other, from this position on.
    #[inline]
    fn records(&mut self, channel: usize, first: &Position, records: Records<'_>) {
        first.each(records, |position, record| {
            self.record(channel, position, record);
        });
    }
    fn event(&mut self, channel: usize, position: &Position, event: &Event);
    /// A cell of a `latest` channel has changed.
    fn changed(&mut self, channel: usize, cell: Cell);
}

/// An item that outlives the datagram it came in, and the index of its channel: the number may be
/// another by the time it is handed over.
#[derive(Debug)]
enum Kept {
    Record(usize, Position, RecordBatch),
    Event(usize, Position, Event),
}

/// Items that wait for the next poll; empty unless a closure panicked or a channel was rejoined.
#[derive(Debug, Default)]
pub(crate) struct Backlog(VecDeque<Kept>);

impl Backlog {
    #[cold]
    pub(crate) fn keep(&mut self, channel: usize, item: Item<'_>) {
        self.0.push_back(match item {
            Item::Record(position, record) => {
                let mut batch = RecordBatch::default();
                // invariant: it came from the wire, whose types are those a batch takes.
                let _ = batch.push_bytes(record.as_ref());
                Kept::Record(channel, *position, batch)
            }
            Item::Event(position, event) => Kept::Event(channel, *position, event.clone()),
        });
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes everything out, in order, each with the index of its channel.
    pub(crate) fn drain(&mut self, mut on: impl FnMut(usize, Item<'_>)) {
        for kept in self.0.drain(..) {
            kept.each(&mut on);
        }
    }
}

impl Kept {
    fn each(&self, mut on: impl FnMut(usize, Item<'_>)) {
        match self {
            Self::Record(channel, position, batch) => {
                for record in batch.records() {
                    on(*channel, Item::Record(position, record));
                }
            }
            Self::Event(channel, position, event) => on(*channel, Item::Event(position, event)),
        }
    }
}

/// How an application takes what it is given.
pub(crate) trait Take {
    fn item(&mut self, item: Item<'_>);
    /// Records that follow each other, from this position on; `given` is how many of them it was given, also
    /// where this panics.
    fn records(&mut self, first: &Position, records: Records<'_>, given: &mut u64);
}

/// One item after the other, by a closure.
pub(crate) struct PerItem<F>(pub(crate) F);

impl<F: FnMut(Item<'_>)> Take for PerItem<F> {
    #[inline]
    fn item(&mut self, item: Item<'_>) {
        (self.0)(item);
    }

    #[inline]
    fn records(&mut self, first: &Position, records: Records<'_>, given: &mut u64) {
        let mut position = *first;
        for record in records {
            // Before the call: if it panics, it was given the record all the same.
            *given += 1;
            (self.0)(Item::Record(&position, record));
            position.record = first.record.plus(*given);
        }
    }
}

/// Records by the run.
pub(crate) struct PerBatch<'a, D>(pub(crate) &'a mut D);

impl<D: Deliver> Take for PerBatch<'_, D> {
    #[inline]
    fn item(&mut self, item: Item<'_>) {
        self.0.item(item);
    }

    #[inline]
    fn records(&mut self, first: &Position, records: Records<'_>, given: &mut u64) {
        // It has seen the whole run, wherever in it it panics.
        *given = records.len() as u64;
        self.0.records(first, records);
    }
}

/// Calls the application's code.
pub(crate) struct Caller<'a, T> {
    to: T,
    backlog: &'a mut Backlog,
    /// What it was given of each channel: who reads on from here begins with that.
    told: &'a mut [Totals],
    panic: Option<Box<dyn Any + Send>>,
}

impl<'a, T: Take> Caller<'a, T> {
    pub(crate) const fn new(to: T, backlog: &'a mut Backlog, told: &'a mut [Totals]) -> Self {
        Self {
            to,
            backlog,
            told,
            panic: None,
        }
    }

    #[inline]
    pub(crate) fn call(&mut self, channel: usize, item: Item<'_>) {
        if self.panic.is_some() {
            return self.backlog.keep(channel, item);
        }
        // Before the call: if it panics, it was given the item all the same.
        match item {
            Item::Record(position, _) => self.told[channel].record(position),
            Item::Event(position, event) => self.told[channel].event(position, event),
        }
        // The closure's own state is its owner's to judge, who gets the panic.
        self.panic = catch_unwind(AssertUnwindSafe(|| self.to.item(item))).err();
    }

    /// Gives it these records.
    #[inline]
    pub(crate) fn call_all(&mut self, channel: usize, first: &Position, records: Records<'_>) {
        if self.panic.is_some() {
            return first.each(records, |position, record| {
                (self.backlog).keep(channel, Item::Record(position, record));
            });
        }
        let (to, mut given) = (&mut self.to, 0);
        // As in `call`: its own state is its owner's to judge.
        let called = catch_unwind(AssertUnwindSafe(|| to.records(first, records, &mut given)));
        if let Err(panic) = called {
            self.panic = Some(panic);
            let mut position = *first;
            position.record = first.record.plus(given);
            let left = records.skip(given as usize);
            position.each(left, |position, record| {
                (self.backlog).keep(channel, Item::Record(position, record));
            });
        }
        self.told[channel].records(first, given);
    }

    /// Hands over what was kept; whether all of it could be.
    #[inline]
    pub(crate) fn catch_up(&mut self) -> bool {
        while self.panic.is_none()
            && let Some(kept) = self.backlog.0.pop_front()
        {
            kept.each(|channel, item| self.call(channel, item));
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

/// Hands items to the application, conflating `latest` channels on the way.
pub(crate) struct ToApplication<'a, T> {
    pub(crate) caller: Caller<'a, T>,
    pub(crate) latest: &'a mut [Option<LatestReader>],
    pub(crate) shared: &'a Shared,
}

impl<T: Take> ToApplication<'_, T> {
    /// Hands over what has changed of a `latest` channel.
    #[inline]
    pub(crate) fn flush(&mut self, channel: usize) {
        // A subscriber that was split has given its views away, and may leave all the same.
        if let Some(Some(_)) = self.latest.get(channel) {
            self.flush_latest(channel);
        }
    }

    fn flush_latest(&mut self, channel: usize) {
        if let Some(Some(latest)) = self.latest.get_mut(channel)
            && latest.is_dirty()
        {
            let handed = &self.shared.channels[channel].handed;
            let caller = &mut self.caller;
            latest.flush(|position, record| {
                handed.handed_records.increment();
                handed
                    .conflated_records
                    .add(position.quality.conflated.into());
                caller.call(channel, Item::Record(&position, record));
            });
        }
    }
}

impl<T: Take> Hand for ToApplication<'_, T> {
    #[inline]
    fn record(&mut self, channel: usize, position: &Position, record: RecordRef<'_>) {
        self.flush(channel);
        self.shared.channels[channel]
            .handed
            .handed_records
            .increment();
        self.caller.call(channel, Item::Record(position, record));
    }

    #[inline]
    fn records(&mut self, channel: usize, first: &Position, records: Records<'_>) {
        self.flush(channel);
        self.shared.channels[channel]
            .handed
            .handed_records
            .add(records.len() as u64);
        self.caller.call_all(channel, first, records);
    }

    fn event(&mut self, channel: usize, position: &Position, event: &Event) {
        self.flush(channel);
        self.shared.channels[channel]
            .handed
            .handed_events
            .increment();
        self.caller.call(channel, Item::Event(position, event));
    }

    #[inline]
    fn changed(&mut self, channel: usize, cell: Cell) {
        if let Some(Some(latest)) = self.latest.get_mut(channel) {
            latest.mark(cell);
        }
    }
}

/// Keeps everything for the next poll; what is kept is counted here, and not again.
pub(crate) struct Keeping<'a> {
    pub(crate) backlog: &'a mut Backlog,
    pub(crate) latest: &'a mut [Option<LatestReader>],
    pub(crate) shared: &'a Shared,
}

impl Hand for Keeping<'_> {
    fn record(&mut self, channel: usize, position: &Position, record: RecordRef<'_>) {
        self.shared.channels[channel]
            .handed
            .handed_records
            .increment();
        self.backlog.keep(channel, Item::Record(position, record));
    }

    fn event(&mut self, channel: usize, position: &Position, event: &Event) {
        self.shared.channels[channel]
            .handed
            .handed_events
            .increment();
        self.backlog.keep(channel, Item::Event(position, event));
    }

    fn changed(&mut self, channel: usize, cell: Cell) {
        if let Some(Some(latest)) = self.latest.get_mut(channel) {
            latest.mark(cell);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::totals::position_at;
    use tickcast_reliability::record::MboMsg;
    use tickcast_reliability::types::RecordNumber;

    #[test]
    fn what_a_closure_was_told_is_what_it_was_given_and_nothing_that_waits() {
        let (mut backlog, mut told) = (Backlog::default(), [Totals::default(); 2]);
        let position = position_at(&Totals::default());
        let mut caller = Caller::new(
            PerItem(|item: Item<'_>| {
                assert!(!matches!(item, Item::Event(_, Event::Live)), "planned");
            }),
            &mut backlog,
            &mut told,
        );
        for event in [Event::Stale, Event::Live, Event::Recovered] {
            caller.call(1, Item::Event(&position, &event));
        }
        let panicked = catch_unwind(AssertUnwindSafe(|| caller.outcome().resume()));
        assert!(panicked.is_err());
        assert_eq!(told[0], Totals::default());
        // It panicked at `Live`, which it was given; `Fresh` waits.
        assert!(told[1].state.stale && told[1].state.live);
        assert_eq!(told[1].events, 2);
        let mut waiting = Vec::new();
        backlog.drain(|channel, item| {
            waiting.push((channel, matches!(item, Item::Event(_, Event::Recovered))));
        });
        assert_eq!(waiting, [(1, true)]);
    }

    #[test]
    fn of_a_run_at_which_the_closure_panicked_the_rest_waits_under_its_own_numbers() {
        let mut run = RecordBatch::default();
        for order_id in 0..6 {
            run.put(&MboMsg {
                order_id,
                ..MboMsg::default()
            });
        }
        for panics_at in 0..6 {
            let (mut backlog, mut told) = (Backlog::default(), [Totals::default(); 2]);
            let mut position = position_at(&Totals::default());
            position.record = RecordNumber(10);
            let mut given = Vec::new();
            let on = |item: Item<'_>| {
                let Item::Record(position, record) = item else {
                    return;
                };
                let order_id = record.get::<MboMsg>().unwrap().order_id;
                given.push((position.record.0, order_id));
                assert!(order_id != panics_at, "planned");
            };
            let mut caller = Caller::new(PerItem(on), &mut backlog, &mut told);
            caller.call_all(1, &position, run.records());
            // What comes after it waits as a whole.
            caller.call_all(1, &position, run.records());
            let panicked = catch_unwind(AssertUnwindSafe(|| caller.outcome().resume()));
            assert!(panicked.is_err());
            assert!(
                given
                    .into_iter()
                    .eq((0..=panics_at).map(|id| (10 + id, id)))
            );
            let place = told[1].place.record;
            assert_eq!(
                (told[1].records, place),
                (panics_at + 1, RecordNumber(11 + panics_at))
            );
            let mut waiting = Vec::new();
            backlog.drain(|_, item| {
                if let Item::Record(position, record) = item {
                    waiting.push((position.record.0, record.get::<MboMsg>().unwrap().order_id));
                }
            });
            let expected = (panics_at + 1..6).chain(0..6).map(|id| (10 + id, id));
            assert!(waiting.into_iter().eq(expected));
        }
    }

    /// Numbers of the records of each run; it panics at the run with this one.
    #[derive(Default)]
    struct Runs(Vec<Vec<(u64, u64)>>, Option<u64>);

    impl Deliver for Runs {
        fn item(&mut self, _: Item<'_>) {
            panic!("records come by the run");
        }

        fn records(&mut self, first: &Position, records: Records<'_>) {
            let run = records.all_of::<MboMsg>().unwrap().iter();
            let numbers = run
                .zip(first.record.0..)
                .map(|(it, number)| (number, it.order_id));
            self.0.push(numbers.collect());
            let panics = |(_, id): &(u64, u64)| Some(*id) == self.1;
            assert!(!self.0.last().unwrap().iter().any(panics), "planned");
        }
    }

    #[test]
    fn a_run_comes_as_one_and_what_follows_a_panic_waits_whole() {
        let mut batch = RecordBatch::default();
        for order_id in 0..6 {
            batch.put(&MboMsg {
                order_id,
                ..MboMsg::default()
            });
        }
        let records = || Records::check(batch.bytes(), 6).unwrap();
        let (mut backlog, mut told) = (Backlog::default(), [Totals::default(); 2]);
        let mut position = position_at(&Totals::default());
        position.record = RecordNumber(10);
        for (panics_at, given) in [(None, 12), (Some(3), 6)] {
            let mut runs = Runs(Vec::new(), panics_at);
            told[1] = Totals::default();
            let mut caller = Caller::new(PerBatch(&mut runs), &mut backlog, &mut told);
            caller.call_all(1, &position, records());
            caller.call_all(1, &position, records());
            let outcome = catch_unwind(AssertUnwindSafe(|| caller.outcome().resume()));
            assert_eq!(outcome.is_err(), panics_at.is_some());
            let run: Vec<(u64, u64)> = (10..16).zip(0..6).collect();
            assert_eq!(runs.0, vec![run; given / 6]);
            assert_eq!(
                (told[1].records, told[1].place.record.0),
                (given as u64, 16)
            );
        }
        // The first run was given, up to the panic and beyond; the second waits.
        let mut waiting = Vec::new();
        backlog.drain(|_, item| {
            if let Item::Record(position, record) = item {
                waiting.push((position.record.0, record.get::<MboMsg>().unwrap().order_id));
            }
        });
        assert!(waiting.into_iter().eq((10..16).zip(0..6)));
    }
}
