//! Readers of a split subscriber: each reads the local ring at its own speed while a worker fills it.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tickcast_reliability::delivery::{Event, Item, Overrun, Place, Position};
use tickcast_reliability::types::{ChannelId, Epoch, Nanos};
use tickcast_transport::host::clock::{Clock, SystemClock};

use super::ring::{Cursor, Entry};
use crate::dispatch::conflate::{ANY_EPOCH, LatestReader};
use crate::dispatch::{CONFLATION_REPORT_INTERVAL, lag_event};
use crate::observe::polled::Polled;
use crate::observe::totals::position_at;
use crate::observe::{ChannelShared, Monitor};
use crate::sync::wake::Wake;

/// Counts of one channel, as one reader saw it.
///
/// Once a reader has read everything, its counts add up to the records that the channel gave to the
/// readers: `records + conflated_records + overrun_records` equals `handed_records` of the channel.
///
/// ```no_run
/// # fn f(reader: &tickcast_subscriber::Reader) {
/// for channel in reader.reports() {
///     println!("{}: {} read, {} too late", channel.name, channel.records, channel.overrun_records);
/// }
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReaderReport {
    /// The requested name.
    pub name: String,
    /// The channel's number; `None` before the publisher's welcome.
    pub channel: Option<ChannelId>,
    /// Records that this reader's closure received.
    pub records: u64,
    /// Events of the worker that the closure received, without events about the reader itself.
    pub events: u64,
    /// Records that a newer one of the same kind and instrument replaced (`latest`).
    pub conflated_records: u64,
    /// Overruns of this reader.
    pub overruns: u64,
    /// Records that were overwritten before the reader reached them.
    pub overrun_records: u64,
    /// Events that were overwritten before the reader reached them.
    pub overrun_events: u64,
    /// The number of sequences by which the worker is ahead.
    pub lag: u64,
}

/// Reads the items that a split subscriber receives. It can be moved to another thread. A clone starts at
/// this reader's place and then reads independently.
///
/// Items come as from [`Subscriber::poll`](crate::Subscriber::poll), with events in order. A `latest`
/// channel delivers the newest records. A record delivered before an event may be newer than the event.
/// Its position shows that: its epoch and record number, compared in this order, are not below the event's.
/// Such an event is out of date for the record's instrument, and the record does not come again.
///
/// # How it can fail
/// - A reader that is overtaken gets [`Event::Overrun`], in order, with the exact counts of its loss.
/// - When its closure panics, the panic propagates to the caller and the reader is poisoned. It delivers
///   nothing more, and every later poll reports that ([`Polled::poisoned`]).
/// - When the worker has ended, its remaining items can still be read. Then the reader
///   [is over](Reader::is_over).
/// - A problem that keeps the worker from working as configured sets [`Polled::problem`].
///   [`Monitor::problem`] returns its text.
///
/// The worker owns the subscriber. [`Running::rejoin`](crate::Running::rejoin) and
/// [`Running::set_filter`](crate::Running::set_filter) send commands to it.
///
/// ```no_run
/// # use std::time::Duration;
/// # use tickcast_subscriber::{Core, Event, Idle, Item, Subscriber};
/// # let subscriber = Subscriber::builder("127.0.0.1:7400").channel("equities").build()?;
/// let (running, mut reader) = subscriber.split(Core(2), Idle::Spin, 64 << 20)?;
/// let slow = std::thread::spawn(move || {
///     while !reader.is_over() {
///         reader.wait(Duration::from_millis(100));
///         reader.poll(|item| match item {
///             Item::Record(_, record) => println!("{record:?}"),
///             Item::Event(_, Event::Overrun(overrun)) => println!("too slow: {overrun}"),
///             Item::Event(_, event) => println!("{event}"),
///         });
///     }
/// });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Reader {
    cursor: Cursor,
    channels: Vec<Channel>,
    monitor: Monitor,
    now: Nanos,
    /// Set while a poll runs. It stays set when the closure panics.
    poisoned: bool,
}

#[derive(Clone, Debug)]
struct Channel {
    latest: Option<LatestReader>,
    alarm: Option<u64>,
    alarmed: bool,
    conflated: u64,
    report_at: Nanos,
    report: ReaderReport,
    ended: bool,
    /// The position of the newest item that the closure received.
    at: Place,
    /// The position of the worker when this reader had read everything. It covers filtered records, which are
    /// not in the ring.
    read: Place,
}

/// The maximum number of entries per poll. An entry holds at most one datagram.
const ENTRIES_MAX: usize = 256;

impl Reader {
    pub(crate) fn new(
        cursor: Cursor,
        latest: Vec<Option<LatestReader>>,
        alarms: Vec<Option<u64>>,
        monitor: Monitor,
    ) -> Self {
        let channels = latest.into_iter().zip(alarms).zip(cursor.totals()).map(
            |((latest, alarm), reported)| Channel {
                latest,
                alarm,
                alarmed: false,
                conflated: 0,
                report_at: Nanos::ZERO,
                report: ReaderReport::default(),
                ended: reported.state.ended,
                at: reported.place,
                read: Place::default(),
            },
        );
        let channels = channels.collect();
        Self {
            channels,
            cursor,
            monitor,
            now: Nanos::ZERO,
            poisoned: false,
        }
    }

    /// Passes the worker's new items to `on`, at most a few hundred datagrams. Never blocks, and never
    /// delays the worker.
    ///
    /// ```
    /// # use tickcast_subscriber::{Item, Reader};
    /// # fn f(reader: &mut Reader) {
    /// reader.poll(|item| match item {
    ///     Item::Record(position, record) => println!("{} {record:?}", position.record),
    ///     Item::Event(_, event) => println!("{event}"),
    /// });
    /// # }
    /// ```
    pub fn poll(&mut self, mut on: impl FnMut(Item<'_>)) -> Polled {
        // Set the flag before the application's code runs, so that a panic leaves it set.
        if std::mem::replace(&mut self.poisoned, true) {
            return Polled::POISONED;
        }
        let polled = self.read(&mut on);
        self.poisoned = false;
        polled
    }

    fn read(&mut self, on: &mut impl FnMut(Item<'_>)) -> Polled {
        let mut polled = Polled {
            problem: self.monitor.shared.has_problem.load(Relaxed),
            ..Polled::default()
        };
        while polled.datagrams < ENTRIES_MAX
            && let Some(entry) = self.cursor.next()
        {
            polled.datagrams += 1;
            self.take(entry, on);
        }
        if self
            .channels
            .iter()
            .any(|it| it.latest.is_some() || it.alarm.is_some())
        {
            self.now = SystemClock.now();
            for index in 0..self.channels.len() {
                self.flush(index, ANY_EPOCH, on);
            }
            self.note_all_read();
            for index in 0..self.channels.len() {
                self.report(index, on);
            }
        } else {
            self.note_all_read();
        }
        polled
    }

    /// Waits at most `timeout` until there is something to read or the worker has left.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # fn f(reader: &mut tickcast_subscriber::Reader) {
    /// reader.wait(Duration::from_millis(100));
    /// reader.poll(|item| println!("{item:?}"));
    /// # }
    /// ```
    pub fn wait(&self, timeout: Duration) -> Wake {
        if self.poisoned || self.channels.iter().any(Channel::is_dirty) {
            return Wake::Ready;
        }
        let (cursor, ring) = (&self.cursor, self.cursor.ring());
        ring.notifier
            .wait(timeout, || cursor.is_ready() || ring.is_closed())
    }

    /// Returns whether no item follows. That is so when the worker has left and everything is read, or when
    /// this reader is poisoned.
    ///
    /// ```
    /// # fn f(reader: &mut tickcast_subscriber::Reader) {
    /// while !reader.is_over() {
    ///     reader.poll(|item| println!("{item:?}"));
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn is_over(&self) -> bool {
        let is_closed = self.cursor.ring().is_closed();
        let is_dirty = self.channels.iter().any(Channel::is_dirty);
        (is_closed && self.is_all_read() && !is_dirty) || self.poisoned
    }

    /// Returns whether this reader has received the end of session of every channel, and no new epoch since.
    /// An [`Event::Overrun`] can carry either.
    ///
    /// ```
    /// # fn f(reader: &mut tickcast_subscriber::Reader) {
    /// if reader.is_over() && !reader.ended() {
    ///     println!("the worker was stopped in the midst of the session");
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn ended(&self) -> bool {
        self.channels.iter().all(|channel| channel.ended)
    }

    /// Returns the counts of each channel, in the order of the builder.
    ///
    /// ```
    /// # fn f(reader: &mut tickcast_subscriber::Reader) {
    /// let missed: u64 = reader.reports().iter().map(|it| it.overrun_records).sum();
    /// # }
    /// ```
    #[must_use]
    pub fn reports(&self) -> Vec<ReaderReport> {
        let is_all_read = self.is_all_read();
        let all = self.channels.iter().zip(&self.monitor.shared.channels);
        all.map(|(channel, shared)| ReaderReport {
            name: shared.name.clone(),
            channel: shared.id(),
            lag: channel.lag(shared, is_all_read).unwrap_or(0),
            ..channel.report.clone()
        })
        .collect()
    }

    /// Returns a monitor of the worker.
    ///
    /// ```
    /// # fn f(reader: &mut tickcast_subscriber::Reader) {
    /// println!("{:?}", reader.monitor().problem());
    /// # }
    /// ```
    #[must_use]
    pub const fn monitor(&self) -> &Monitor {
        &self.monitor
    }

    fn take(&mut self, entry: Entry, on: &mut impl FnMut(Item<'_>)) {
        match entry {
            Entry::Records(index, position, count) => self.records(index, &position, count, on),
            Entry::Changed(index, cell) => {
                if let Some(latest) = &mut self.channels[index].latest {
                    latest.mark(cell);
                }
            }
            Entry::Event(index, position, event) => self.event(index, &position, &event, on),
            Entry::Overrun(index, position, overrun) => self.overrun(index, &position, overrun, on),
            Entry::Lapped => {
                for channel in &mut self.channels {
                    if let Some(latest) = &mut channel.latest {
                        latest.mark_all();
                    }
                }
            }
        }
    }

    /// Delivers consecutive records, after the changed records before them.
    #[inline]
    fn records(
        &mut self,
        index: usize,
        first: &Position,
        count: u16,
        on: &mut impl FnMut(Item<'_>),
    ) {
        self.flush(index, ANY_EPOCH, on);
        let it = &mut self.channels[index];
        it.report.records += u64::from(count);
        it.at = first.place();
        it.at.record = first.record.plus(u64::from(count) - 1);
        (self.cursor.totals_mut(index)).records(first, count.into());
        if let Some(records) = self.cursor.records(count) {
            first.each(records, |position, record| {
                on(Item::Record(position, record));
            });
        }
    }

    fn event(
        &mut self,
        channel: usize,
        position: &Position,
        event: &Event,
        on: &mut impl FnMut(Item<'_>),
    ) {
        self.flush(channel, ANY_EPOCH, on);
        self.cursor.totals_mut(channel).event(position, event);
        let it = &mut self.channels[channel];
        it.report.events += 1;
        it.at = position.place();
        match event {
            Event::EndOfSession => it.ended = true,
            Event::EpochChanged { .. } | Event::EpochContinued { .. } | Event::Joined { .. } => {
                it.ended = false;
            }
            _ => {}
        }
        on(Item::Event(position, event));
    }

    fn overrun(
        &mut self,
        channel: usize,
        position: &Position,
        overrun: Overrun,
        on: &mut impl FnMut(Item<'_>),
    ) {
        // Records of ended epochs come before the event that ends them. The other records are newer than the
        // overrun part, so they come after it.
        let ended = Epoch(overrun.to.epoch.0.saturating_sub(1));
        self.flush(channel, ended, on);
        let it = &mut self.channels[channel];
        it.report.overruns += 1;
        it.report.overrun_records += overrun.records;
        it.report.overrun_events += overrun.events;
        it.at = overrun.to;
        it.ended = overrun.state.ended;
        on(Item::Event(position, &Event::Overrun(overrun)));
    }

    /// Delivers the changed records of a `latest` channel, up to the epoch `last`.
    #[inline]
    fn flush(&mut self, index: usize, last: Epoch, on: &mut impl FnMut(Item<'_>)) {
        let it = &mut self.channels[index];
        if let Some(latest) = &mut it.latest
            && latest.is_dirty()
        {
            let (report, at) = (&mut it.report, &mut it.at);
            latest.flush_to(last, |position, record| {
                report.records += 1;
                *at = position.place().max(*at);
                report.conflated_records += u64::from(position.quality.conflated);
                on(Item::Record(&position, record));
            });
            it.conflated += latest.take_conflated();
        }
    }

    /// Returns whether the ring is fully read.
    fn is_all_read(&self) -> bool {
        !self.cursor.is_ready()
    }

    /// Stores the position of the worker if everything is read.
    fn note_all_read(&mut self) {
        if self.is_all_read() {
            for (it, shared) in self.channels.iter_mut().zip(&self.monitor.shared.channels) {
                it.read.epoch.0 = shared.epoch.get();
                it.read.sequence.0 = shared.delivered.get();
            }
        }
    }

    /// Emits the count of conflated records, and the lag events of this reader.
    fn report(&mut self, index: usize, on: &mut impl FnMut(Item<'_>)) {
        let is_all_read = self.is_all_read();
        let (it, shared) = (
            &mut self.channels[index],
            &self.monitor.shared.channels[index],
        );
        let mut position = position_at(&self.cursor.totals()[index]);
        position.channel = shared.id().unwrap_or_default();
        if it.conflated > 0 && self.now >= it.report_at {
            it.report_at = self.now.after(CONFLATION_REPORT_INTERVAL);
            let records = std::mem::replace(&mut it.conflated, 0);
            on(Item::Event(&position, &Event::Conflated { records }));
        }
        if let Some(alarm) = it.alarm
            && let Some(lag) = it.lag(shared, is_all_read)
            && let Some(event) = lag_event(alarm, &mut it.alarmed, lag)
        {
            on(Item::Event(&position, &event));
        }
    }
}

impl Channel {
    fn is_dirty(&self) -> bool {
        self.latest.as_ref().is_some_and(LatestReader::is_dirty)
    }

    /// Returns the number of sequences by which the worker is ahead. The lag is zero when the ring is fully
    /// read, and unknown (`None`) until a record of the worker's epoch was read.
    fn lag(&self, shared: &ChannelShared, is_all_read: bool) -> Option<u64> {
        if is_all_read && !self.is_dirty() {
            return Some(0);
        }
        let epoch = shared.epoch.get();
        let known = [self.at, self.read].into_iter();
        let known = known.filter(|place| place.epoch.0 == epoch && epoch != 0);
        let read_to = known.map(|place| place.sequence.0).max()?;
        Some(shared.delivered.get().saturating_sub(read_to))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tickcast_reliability::delivery::StreamState;
    use tickcast_reliability::record::{MboMsg, RecordRef, StatusMsg};
    use tickcast_reliability::types::{Epoch, RecordNumber, Sequence};

    use super::super::ring::{SIZE_MIN, Writer};
    use super::*;
    use crate::dispatch::conflate::CellWriter;
    use crate::observe::Shared;
    use crate::observe::totals::Totals;

    /// Returns a reader of the smallest ring with two channels, and the ring's writer.
    fn two_channels() -> (Writer, Reader) {
        let channel = |id: u16| {
            let shared = ChannelShared::new(id.to_string(), Arc::default(), false);
            shared.set_id(ChannelId(id));
            shared
        };
        let shared = Shared {
            channels: [channel(0), channel(1)].into(),
            ..Shared::default()
        };
        let monitor = Monitor {
            shared: Arc::new(shared),
        };
        let (writer, cursor) = Writer::new(SIZE_MIN, [Totals::default(); 2].into());
        let reader = Reader::new(cursor, vec![None, None], vec![None, None], monitor);
        (writer, reader)
    }

    fn at(channel: u16, epoch: u64, record: u64) -> Position {
        let mut position = position_at(&Totals::default());
        position.channel = ChannelId(channel);
        position.epoch = Epoch(epoch);
        position.sequence = Sequence(record);
        position.record = RecordNumber(record);
        position
    }

    fn events(reader: &mut Reader) -> Vec<(ChannelId, Event)> {
        let mut seen = Vec::new();
        while reader
            .poll(|item| {
                if let Item::Event(position, event) = item {
                    seen.push((position.channel, event.clone()));
                }
            })
            .worked()
        {}
        seen
    }

    #[test]
    fn reader_lapped_across_epoch_and_end_recovers() {
        let (mut writer, mut reader) = two_channels();
        for channel in [0, 1] {
            let joined = Event::Joined { after: Sequence(0) };
            writer.event(channel.into(), &at(channel, 1, 1), &joined);
        }
        writer.flush();
        assert_eq!(events(&mut reader).len(), 2);
        assert!(!reader.ended());
        let (from, to) = (Epoch(1), Epoch(2));
        writer.event(0, &at(0, 1, 1), &Event::Stale);
        writer.event(0, &at(0, 1, 1), &Event::EpochChanged { from, to });
        writer.event(1, &at(1, 1, 1), &Event::Stale);
        writer.event(1, &at(1, 1, 1), &Event::Recovered);
        writer.event(1, &at(1, 1, 9), &Event::EndOfSession);
        for number in 1..=40_000 {
            let order = MboMsg::default();
            writer.record(0, &at(0, 2, number), RecordRef::from(&order));
        }
        writer.flush();
        let reported = events(&mut reader);
        let [
            (first, Event::Overrun(of_first)),
            (second, Event::Overrun(of_second)),
        ] = &reported[..]
        else {
            panic!("{reported:?}");
        };
        assert_eq!((*first, *second), (ChannelId(0), ChannelId(1)));
        let joined = StreamState {
            joined: true,
            repair_link_up: true,
            ..StreamState::default()
        };
        let stale = true;
        assert_eq!(of_first.state, StreamState { stale, ..joined });
        assert_eq!((of_first.to.epoch, of_first.epoch_changes), (to, 1));
        let ended = true;
        assert_eq!(of_second.state, StreamState { ended, ..joined });
        assert!(!reader.ended(), "of the first it was told no end");
        writer.event(0, &at(0, 2, 40_001), &Event::EndOfSession);
        writer.flush();
        assert_eq!(events(&mut reader).len(), 1);
        assert!(reader.ended(), "the second's was in its overrun");
    }

    #[test]
    fn final_state_precedes_overrun_of_ended_epoch() {
        let (mut writer, mut reader) = two_channels();
        let mut cells = CellWriter::new();
        reader.channels[0].latest = Some(cells.reader());
        let joined = Event::Joined { after: Sequence(0) };
        writer.event(0, &at(0, 1, 1), &joined);
        writer.flush();
        assert_eq!(events(&mut reader).len(), 1);
        let mut write = |writer: &mut Writer, epoch, number, instrument| {
            let mut status = StatusMsg::default();
            status.hd.instrument_id = instrument;
            let cell = cells.write(&at(0, epoch, number), RecordRef::from(&status));
            writer.changed(0, cell.unwrap());
        };
        write(&mut writer, 1, 1, 7);
        let (from, to) = (Epoch(1), Epoch(2));
        writer.event(0, &at(0, 1, 2), &Event::EpochChanged { from, to });
        // Write far more words than the ring holds.
        (1..=100_000).for_each(|number| write(&mut writer, 2, number, 8));
        writer.flush();
        let mut reported = Vec::new();
        let mut on = |item: Item<'_>| {
            reported.push(match item {
                Item::Record(position, _) => (position.epoch.0, position.record.0),
                Item::Event(_, Event::Overrun(overrun)) => (overrun.epoch_changes, 0),
                Item::Event(..) => (0, 0),
            });
        };
        while reader.poll(&mut on).worked() {}
        assert_eq!(reported[..2], [(1, 1), (1, 0)], "{reported:?}");
        assert_eq!(reported[2].0, 2, "{reported:?}");
        let report = &reader.channels[0].report;
        assert_eq!((report.records, report.overrun_events), (2, 1));
    }
}
