//! Delivery by the run: an application that takes the records of a datagram together, as a slice where they
//! are all of one type, pays for a record little more than to read it.

use tickcast_reliability::delivery::{Deliver, Item, Position};
use tickcast_reliability::record::Records;

use crate::Subscriber;
use crate::hand::Take;
use crate::polled::Polled;

/// Records by the run.
pub(crate) struct ByRun<'a, D>(pub(crate) &'a mut D);

impl<D: Deliver> Take for ByRun<'_, D> {
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

impl Subscriber {
    /// As [`poll`](Subscriber::poll), where records are handed over by the run: those of a datagram, as a
    /// slice of their type where they are all of one ([`Records::all_of`]). What is the
    /// same for all of them is then looked at once.
    ///
    /// # How it can fail
    /// As there. Of a run in which it panics it was given all.
    ///
    /// ```
    /// use tickcast_subscriber::record::{MboMsg, Records};
    /// use tickcast_subscriber::{Deliver, Item, Position, Subscriber};
    ///
    /// #[derive(Default)]
    /// struct Volume(u64);
    ///
    /// impl Deliver for Volume {
    ///     fn item(&mut self, item: Item<'_>) {
    ///         match item {
    ///             Item::Record(_, it) => self.0 += it.get::<MboMsg>().map_or(0, |it| it.size.into()),
    ///             Item::Event(position, event) => println!("after {}: {event}", position.sequence),
    ///         }
    ///     }
    ///
    ///     fn records(&mut self, first: &Position, records: Records<'_>) {
    ///         match records.all_of::<MboMsg>() {
    ///             Some(run) => self.0 += run.iter().map(|it| u64::from(it.size)).sum::<u64>(),
    ///             None => self.one_by_one(first, records),
    ///         }
    ///     }
    /// }
    ///
    /// let mut subscriber = Subscriber::builder("127.0.0.1:7400").channel("equities").build()?;
    /// let mut volume = Volume::default();
    /// subscriber.poll_runs(&mut volume);
    /// # Ok::<(), tickcast_subscriber::SubscribeError>(())
    /// ```
    #[inline]
    pub fn poll_runs(&mut self, to: &mut impl Deliver) -> Polled {
        self.poll_to(ByRun(to))
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use tickcast_reliability::record::{MboMsg, RecordBatch};
    use tickcast_reliability::types::RecordNumber;

    use super::*;
    use crate::hand::{Backlog, Caller};
    use crate::local_ring::{Totals, position_at};

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
            let mut caller = Caller::new(ByRun(&mut runs), &mut backlog, &mut told);
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
