//! The last step to the application: passes items to its closure and conflates `latest` channels.

use tickcast_journal::Journaled;
use tickcast_reliability::delivery::{Deliver, Event, Item, Position};
use tickcast_reliability::record::{RecordRef, Records};
use tickcast_reliability::session::SubscriberCore;
use tickcast_reliability::types::Nanos;

use super::conflate::LatestReader;
use super::{Batch, Dispatched, Dispatcher, Verdict};
use crate::observe::totals::Totals;

/// A sink that delivers to the application.
pub(crate) struct ToApplication<'a, D> {
    pub(crate) dispatcher: &'a mut Dispatcher,
    /// The application's view of each `latest` channel.
    pub(crate) latest: &'a mut [Option<LatestReader>],
    /// The counts of items delivered from each channel. A reader of the local ring starts at these counts.
    pub(crate) totals: &'a mut [Totals],
    pub(crate) to: &'a mut D,
}

impl<D: Deliver> Dispatched for ToApplication<'_, D> {
    fn dispatcher(&mut self) -> &mut Dispatcher {
        self.dispatcher
    }

    fn record(&mut self, index: usize, position: &Position, record: RecordRef<'_>) {
        match self.dispatcher.record(index, position, record) {
            Verdict::Passes => {
                self.flush(index);
                self.totals[index].record(position);
                self.to.item(Item::Record(position, record));
            }
            Verdict::Conflated(cell) => {
                if let Some(Some(latest)) = self.latest.get_mut(index) {
                    latest.mark(cell);
                }
            }
            Verdict::LeftOut => {}
        }
    }

    fn event(&mut self, index: usize, position: &Position, event: &Event) {
        self.flush(index);
        self.dispatcher.event(index, position, event);
        self.totals[index].event(position, event);
        self.to.item(Item::Event(position, event));
    }
}

impl<D: Deliver> ToApplication<'_, D> {
    /// Delivers the records of a datagram one by one.
    #[inline(never)]
    fn each(&mut self, index: usize, first: &Position, records: Records<'_>) {
        first.each(records, |position, record| {
            self.record(index, position, record);
        });
    }

    /// Delivers the changed cells of a `latest` channel.
    #[inline]
    fn flush(&mut self, index: usize) {
        // A split subscriber has given its views to a reader, but may still leave.
        if let Some(Some(_)) = self.latest.get(index) {
            self.flush_latest(index);
        }
    }

    fn flush_latest(&mut self, index: usize) {
        let Some(Some(latest)) = self.latest.get_mut(index) else {
            return;
        };
        if !latest.is_dirty() {
            return;
        }
        let (handed, totals) = (self.dispatcher.handed(index), &mut self.totals[index]);
        let to = &mut *self.to;
        latest.flush(|position, record| {
            handed.handed_records.increment();
            (handed.conflated_records).add(position.quality.conflated.into());
            totals.record(&position);
            to.item(Item::Record(&position, record));
        });
    }

    /// Delivers the changed cells of all `latest` channels, and emits the counts of conflated records.
    pub(crate) fn flush_all(&mut self, now: Nanos, core: &Journaled<SubscriberCore>) {
        for (index, receiver) in core.entries().enumerate() {
            self.flush(index);
            let Some(Some(latest)) = self.latest.get_mut(index) else {
                continue;
            };
            let conflated = latest.take_conflated();
            if let Some(event) = self.dispatcher.conflated(index, conflated, now)
                && let Some(receiver) = receiver
            {
                self.event(index, &receiver.position(), &event);
            }
        }
    }
}

impl<D: Deliver> Deliver for ToApplication<'_, D> {
    fn item(&mut self, item: Item<'_>) {
        self.dispatch(item);
    }

    #[inline]
    fn records(&mut self, first: &Position, records: Records<'_>) {
        match self.dispatcher.batch(first, records) {
            Batch::Passes(index) => {
                self.flush(index);
                self.totals[index].records(first, records.len() as u64);
                self.to.records(first, records);
            }
            Batch::Mixed(index) => self.each(index, first, records),
            Batch::LeftOut => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tickcast_reliability::record::{MboMsg, RecordBatch};
    use tickcast_reliability::types::{ChannelId, Epoch, RecordNumber};

    use super::*;
    use crate::config::filter::InstrumentFilter;
    use crate::dispatch::tests::welcome;
    use crate::observe::totals::position_at;
    use crate::observe::{ChannelShared, Shared};

    /// The record numbers of each run, and the number of events.
    #[derive(Default)]
    struct Runs(Vec<Vec<(u64, u64)>>, usize);

    impl Deliver for Runs {
        fn item(&mut self, item: Item<'_>) {
            assert!(matches!(item, Item::Event(..)), "records come by the run");
            self.1 += 1;
        }

        fn records(&mut self, first: &Position, records: Records<'_>) {
            let run = records.all_of::<MboMsg>().unwrap().iter();
            let numbers = (first.record.0..).zip(run.map(|it| it.order_id));
            self.0.push(numbers.collect());
        }
    }

    #[test]
    fn record_run_is_delivered_whole_and_counted() {
        let of = |name: &str| ChannelShared::new(name.into(), Arc::default(), false);
        let shared = Arc::new(Shared {
            channels: [of("a"), of("b")].into(),
            ..Shared::default()
        });
        let channels = [0, 1].map(|_| (InstrumentFilter::all(), None, None));
        let mut dispatcher = Dispatcher::new(channels.into_iter(), Arc::clone(&shared));
        dispatcher.welcome(&welcome(1, [1, 2]));
        dispatcher.welcomed(&welcome(1, [1, 2]));
        let mut run = RecordBatch::default();
        for order_id in 0..6 {
            run.put(&MboMsg {
                order_id,
                ..MboMsg::default()
            });
        }
        let records = || Records::check(run.bytes(), 6).unwrap();
        let (mut runs, mut totals) = (Runs::default(), [Totals::default(); 2]);
        let mut position = position_at(&Totals::default());
        (position.channel, position.epoch) = (ChannelId(2), Epoch(1));
        position.record = RecordNumber(10);
        let mut sink = ToApplication {
            dispatcher: &mut dispatcher,
            latest: &mut [],
            totals: &mut totals,
            to: &mut runs,
        };
        sink.records(&position, records());
        sink.records(&position, records());
        sink.item(Item::Event(&position, &Event::Stale));
        // No channel has this number.
        position.channel = ChannelId(3);
        sink.records(&position, records());
        let expected: Vec<(u64, u64)> = (10..16).zip(0..6).collect();
        assert_eq!((runs.0, runs.1), (vec![expected; 2], 1));
        assert_eq!(totals[0], Totals::default());
        assert_eq!((totals[1].records, totals[1].events), (12, 1));
        assert!(totals[1].state.stale);
        let handed = &shared.channels[1].handed;
        assert_eq!(
            (handed.handed_records.get(), handed.handed_events.get()),
            (12, 1)
        );
    }
}
