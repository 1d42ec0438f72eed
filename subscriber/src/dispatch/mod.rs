//! What happens to every item between the core and the application: names are learned, instruments
//! that nobody wants are left out, latency is measured, `latest` channels are conflated.

pub(crate) mod application;
pub(crate) mod conflate;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use tickcast_journal::Journaled;
use tickcast_reliability::control::{ChannelOffer, Welcome};
use tickcast_reliability::delivery::{Deliver, Event, Position};
use tickcast_reliability::receive::Receiver;
use tickcast_reliability::record::{RecordRef, Records};
use tickcast_reliability::session::SubscriberCore;
use tickcast_reliability::types::{ChannelId, Epoch, Nanos, Sequence};
use tickcast_transport::host::clock::{Clock, SystemClock};

use crate::config::filter::{FilterIndex, InstrumentFilter};
use crate::error::SubscribeError;
use crate::observe::directory::{Directory, announced, announces};
use crate::observe::latency::Meter;
use crate::observe::others::OtherPublishers;
use crate::observe::{HandedCounters, Shared};
use conflate::{Cell, CellWriter};

/// Where the driver puts what comes from the core.
pub(crate) trait Sink: Deliver {
    /// A publisher offers this; comes before anything of it does.
    fn offered(
        &mut self,
        _now: Nanos,
        _core: &mut Journaled<SubscriberCore>,
        _offer: &ChannelOffer,
    ) {
    }
    /// A publisher welcomed us; comes before the items that follow from it.
    fn welcome(&mut self, welcome: &Welcome);
    /// All items that follow from it have come: those of what it ended. None are of what begins.
    fn welcomed(&mut self, welcome: &Welcome);
    /// Connections and timers were served, and the core stands like this.
    fn served(&mut self, _core: &Journaled<SubscriberCore>) {}
}

/// The dispatcher's decision on the records of a datagram.
pub(crate) enum Batch {
    /// No channel of ours has that number.
    LeftOut,
    /// All of them go to the application: nothing is left out, named or conflated.
    Passes(usize),
    /// Each is decided by itself.
    Mixed(usize),
}

/// The dispatcher's decision on one record.
pub(crate) enum Verdict {
    /// The filter leaves it out.
    LeftOut,
    /// It goes to the application.
    Passes,
    /// It waits in this cell, from which a newer one may replace it.
    Conflated(Cell),
}

/// One channel, by its index in the settings.
#[derive(Debug)]
struct Channel {
    id: Option<ChannelId>,
    epoch: Epoch,
    /// What it was before the welcome that is being handled: what is lost then is told of that.
    before: Option<(ChannelId, Epoch)>,
    filter_index: FilterIndex,
    cells: Option<CellWriter>,
    /// Symbols that the filter names and nobody has announced.
    unknown: Vec<String>,
    /// Whether so much was announced that they count as misspelled: WELCOME listed some, or a
    /// record was left out, or [`NAMES_MANY`] came.
    is_due: bool,
    alarm: Option<u64>,
    alarmed: bool,
    /// Conflated records not yet told, and when they may be told next.
    conflated: u64,
    report_at: Nanos,
    /// Delivery begins after this sequence, by the last `Joined` event.
    joined_after: Sequence,
    others: OtherPublishers,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Dispatcher {
    channels: Vec<Channel>,
    /// The index that was looked up last.
    last: usize,
    pub(crate) directory: Directory,
    /// What others have not been shown of it yet.
    unpublished: Vec<(ChannelId, u32, String)>,
    /// Whether all of it is to be shown anew.
    replaced: bool,
    /// Whether a welcome is being handled.
    is_welcomed: bool,
    meter: Meter,
    /// Whether the filters are to be judged anew.
    check_due: bool,
    problem: Option<Unknown>,
    pub(crate) shared: Arc<Shared>,
}

/// A symbol that a filter names and nobody has announced.
#[derive(Debug)]
struct Unknown {
    index: usize,
    symbol: String,
    /// How many names there were when it was put into words.
    names: usize,
    error: SubscribeError,
}

/// So many names without one that a filter names are a reason to say so.
const NAMES_MANY: usize = 1_000;
/// Conflation is told this often at most.
const CONFLATION_REPORT_INTERVAL: Nanos = Nanos::from_secs(1);

impl Dispatcher {
    /// For channels with these filters, cells and alarms.
    pub(crate) fn new(
        channels: impl Iterator<Item = (InstrumentFilter, Option<CellWriter>, Option<u64>)>,
        shared: Arc<Shared>,
    ) -> Self {
        let channels = channels.map(|(filter, cells, alarm)| Channel {
            id: None,
            epoch: Epoch::NONE,
            before: None,
            filter_index: FilterIndex::new(filter, &Default::default()),
            cells,
            unknown: Vec::new(),
            is_due: false,
            alarm,
            alarmed: false,
            conflated: 0,
            report_at: Nanos::ZERO,
            joined_after: Sequence::NONE,
            others: OtherPublishers::default(),
        });
        Self {
            channels: channels.collect(),
            last: 0,
            directory: Directory::default(),
            unpublished: Vec::new(),
            replaced: false,
            is_welcomed: false,
            meter: Meter::new(),
            check_due: false,
            problem: None,
            shared,
        }
    }

    #[inline]
    pub(crate) fn index_of(&mut self, channel: ChannelId) -> Option<usize> {
        if self.channels.get(self.last)?.id != Some(channel) {
            self.last = self.channels.iter().position(|it| it.id == Some(channel))?;
        }
        Some(self.last)
    }

    /// As [`Dispatcher::index_of`], while a number may have gone from one channel to another.
    #[cold]
    fn index_before(&mut self, position: &Position) -> Option<usize> {
        let at = (position.channel, position.epoch);
        let before = self.channels.iter().position(|it| it.before == Some(at));
        before.or_else(|| self.index_of(position.channel))
    }

    /// The index of the channel that a position is of.
    #[inline]
    pub(crate) fn index_at(&mut self, position: &Position) -> Option<usize> {
        if self.is_welcomed {
            self.index_before(position)
        } else {
            self.index_of(position.channel)
        }
    }

    /// The counters of what a channel handed over.
    #[inline]
    pub(crate) fn handed(&self, index: usize) -> &HandedCounters {
        &self.shared.channels[index].handed
    }

    /// Decides on the records of a datagram; those that pass are measured and counted.
    #[inline]
    pub(crate) fn batch(&mut self, first: &Position, records: Records<'_>) -> Batch {
        let Some(index) = self.index_at(first) else {
            return Batch::LeftOut;
        };
        let channel = &self.channels[index];
        if announces(records) || channel.cells.is_some() || !channel.filter_index.filter().is_all()
        {
            return Batch::Mixed(index);
        }
        let shared = &self.shared.channels[index];
        if let Some(latency) = &shared.latency {
            (self.meter).pass_all(latency, first, records, || SystemClock.utc());
        }
        shared.handed.handed_records.add(records.len() as u64);
        Batch::Passes(index)
    }

    /// Learns the name that a record announces, and decides on it. One that does not wait in a
    /// cell is counted.
    pub(crate) fn record(
        &mut self,
        index: usize,
        position: &Position,
        record: RecordRef<'_>,
    ) -> Verdict {
        let name = announced(&record);
        if let Some((id, symbol)) = name {
            self.learn(index, position.channel, id, symbol);
        }
        let (channel, shared) = (&mut self.channels[index], &self.shared.channels[index]);
        if !(channel.filter_index).passes(record.header().instrument_id) {
            shared.handed.filtered_records.increment();
            if name.is_none() && !channel.is_due && !channel.unknown.is_empty() {
                self.left_out(index, position.channel);
            }
            return Verdict::LeftOut;
        }
        if let Some(latency) = &shared.latency {
            self.meter
                .pass(latency, position, record, || SystemClock.utc());
        }
        let cells = channel.cells.as_mut();
        if let Some(cell) = cells.and_then(|cells| cells.write(position, record)) {
            return Verdict::Conflated(cell);
        }
        shared.handed.handed_records.increment();
        Verdict::Passes
    }

    /// Counts an event of a channel, and notes in the histograms where replayed history ends.
    pub(crate) fn event(&mut self, index: usize, position: &Position, event: &Event) {
        let shared = &self.shared.channels[index];
        shared.handed.handed_events.increment();
        let Some(latency) = &shared.latency else {
            return;
        };
        let channel = &mut self.channels[index];
        match event {
            Event::Joined { after } => {
                channel.joined_after = *after;
                latency.is_joining();
            }
            Event::Live => {
                let is_replayed = position.sequence > channel.joined_after;
                latency.is_live(is_replayed.then(|| SystemClock.utc()));
            }
            _ => {}
        }
    }

    #[inline]
    fn learn(&mut self, index: usize, channel: ChannelId, id: u32, symbol: &str) {
        let filter = self.channels[index].filter_index.filter();
        let instruments = self.directory.channel_mut(channel);
        let names = |symbol: &str| filter.names(symbol);
        let concerns = names(symbol) || instruments.symbol(id).is_some_and(names);
        if instruments.learn(id, symbol) {
            let is_many = instruments.len() >= NAMES_MANY;
            self.unpublished.push((channel, id, symbol.to_owned()));
            if concerns {
                self.resolve(index, channel);
            }
            let it = &mut self.channels[index];
            it.is_due |= is_many;
            self.check_due |= concerns || !it.unknown.is_empty();
        }
    }

    /// A record was left out while symbols of the filter are unknown: that may be why.
    #[cold]
    fn left_out(&mut self, index: usize, channel: ChannelId) {
        let is_due = !self.directory.channel_mut(channel).is_empty();
        self.channels[index].is_due = is_due;
        self.check_due |= is_due;
    }

    fn resolve(&mut self, index: usize, channel: ChannelId) {
        let instruments = self.directory.channel_mut(channel);
        let it = &mut self.channels[index];
        if !it.filter_index.filter().is_all() {
            it.filter_index.resolve(instruments);
            it.unknown = it.filter_index.filter().unknown(instruments);
        }
    }

    /// Takes over channel numbers, before items of them come.
    pub(crate) fn welcome(&mut self, welcome: &Welcome) {
        if welcome.channels.len() != self.channels.len() {
            return;
        }
        for (index, offer) in welcome.channels.iter().enumerate() {
            let it = &mut self.channels[index];
            if it.id == Some(offer.channel) && offer.epoch < it.epoch {
                // Of a publisher that is over; the core turns it down.
                continue;
            }
            it.before = it.id.map(|id| (id, it.epoch));
            (it.id, it.epoch) = (Some(offer.channel), offer.epoch);
            self.shared.channels[index].set_id(offer.channel);
        }
        self.is_welcomed = true;
    }

    /// Takes over directories, once nothing more comes whose instruments were named before.
    pub(crate) fn welcomed(&mut self, welcome: &Welcome) {
        if !std::mem::replace(&mut self.is_welcomed, false) {
            return;
        }
        for (index, offer) in welcome.channels.iter().enumerate() {
            let it = &mut self.channels[index];
            let before = it.before.take();
            if (it.id, it.epoch) != (Some(offer.channel), offer.epoch) {
                continue;
            }
            let anew = before != Some((offer.channel, offer.epoch));
            self.directory
                .welcomed(offer.channel, &offer.directory, anew);
            self.replaced = true;
            self.resolve(index, offer.channel);
            let is_listed = !self.directory.channel_mut(offer.channel).is_empty();
            let it = &mut self.channels[index];
            it.is_due = is_listed || (it.is_due && !anew);
            if anew {
                // In words of another directory.
                self.problem.take_if(|problem| problem.index == index);
            }
        }
        let channels = &self.channels;
        self.directory
            .keep(|id| channels.iter().any(|it| it.id == Some(id)));
        self.check_due = true;
    }

    /// Replaces a channel's filter.
    pub(crate) fn set_filter(&mut self, index: usize, filter: InstrumentFilter) {
        let Some(id) = self.channels[index].id else {
            return;
        };
        let instruments = self.directory.channel_mut(id);
        self.channels[index].filter_index = FilterIndex::new(filter, instruments);
        self.channels[index].unknown.clear();
        self.check_due = true;
        self.check_filters();
    }

    /// Publishes the state of a channel to other threads. Returns the events that are due: its lag passes
    /// the alarm, or half of it; another publisher sends to its groups.
    pub(crate) fn report(&mut self, index: usize, receiver: &Receiver) -> [Option<Event>; 2] {
        let shared = &self.shared.channels[index];
        let ((delivered, heard), lag) = (receiver.progress(), receiver.lag());
        shared.epoch.set(receiver.epoch().0);
        shared.delivered.set(delivered.0);
        shared.heard.set(heard.0);
        shared.lag.set(lag);
        shared.ended.store(receiver.ended(), Relaxed);
        let channel = &mut self.channels[index];
        let alarm = channel.alarm.filter(|_| receiver.is_live());
        let lag = alarm.and_then(|alarm| lag_event(alarm, &mut channel.alarmed, lag));
        [lag, self.find_other_publisher(index, receiver)]
    }

    /// Returns the event, and logs it, where another publisher sends to the groups of a channel.
    fn find_other_publisher(&mut self, index: usize, receiver: &Receiver) -> Option<Event> {
        let is_linked = receiver.stream_state().repair_link_up;
        let others = &mut self.channels[index].others;
        let event = others.check(SystemClock.now(), receiver.counters(), is_linked)?;
        let name = &self.shared.channels[index].name;
        tracing::warn!("channel {name}: {event}; only one publisher may send to a group");
        Some(event)
    }

    /// Shows others whether we are joined, and what was learned, unless one of them is looking
    /// just now. Comes after [`report`](Self::report) of all channels, so that nobody takes names
    /// for those of an older epoch.
    #[inline]
    pub(crate) fn publish(&mut self, is_joined: bool) {
        self.shared.joined.store(is_joined, Relaxed);
        if self.replaced || !self.unpublished.is_empty() {
            self.show();
        }
    }

    #[cold]
    fn show(&mut self) {
        // locks: where a name was learned, and waits for nobody.
        let Ok(mut shown) = self.shared.directory.try_lock() else {
            return;
        };
        if std::mem::replace(&mut self.replaced, false) {
            shown.clone_from(&self.directory);
            // What holds of them is among those.
            self.unpublished.clear();
        }
        for (channel, id, symbol) in self.unpublished.drain(..) {
            shown.channel_mut(channel).learn(id, &symbol);
        }
    }

    /// A symbol that a filter names and nobody has announced, as of the last judgement.
    pub(crate) fn problem(&self) -> Option<&SubscribeError> {
        self.problem.as_ref().map(|problem| &problem.error)
    }

    /// Judges what of the filters can't be had, where that may have changed. Once a poll is enough.
    #[inline]
    pub(crate) fn check_filters(&mut self) {
        if std::mem::replace(&mut self.check_due, false) {
            self.find_unknown_symbol();
        }
    }

    #[cold]
    fn find_unknown_symbol(&mut self) {
        let wrong = self.channels.iter().enumerate().find_map(|(index, it)| {
            let symbol = it.unknown.first().filter(|_| it.is_due)?;
            Some((index, symbol, self.directory.channel(it.id?)?))
        });
        let Some((index, symbol, known)) = wrong else {
            self.problem = None;
            return;
        };
        // To look for what is most like it takes long: not for every few names that come.
        let is_told = self.problem.as_ref().is_some_and(|told| {
            told.index == index && told.symbol == *symbol && known.len() < 2 * told.names.max(1)
        });
        if is_told {
            return;
        }
        let error = SubscribeError::UnknownSymbol {
            channel: self.shared.channels[index].name.clone(),
            symbol: symbol.clone(),
            known: known.like(symbol),
        };
        if self.problem.is_none() {
            tracing::warn!("{error}");
        }
        self.problem = Some(Unknown {
            index,
            symbol: symbol.clone(),
            names: known.len(),
            error,
        });
    }

    /// Counts conflated records of a channel; tells them now and then.
    pub(crate) fn conflated(&mut self, index: usize, records: u64, now: Nanos) -> Option<Event> {
        let it = &mut self.channels[index];
        it.conflated += records;
        if it.conflated == 0 || now < it.report_at {
            return None;
        }
        it.report_at = now.after(CONFLATION_REPORT_INTERVAL);
        let records = std::mem::replace(&mut it.conflated, 0);
        Some(Event::Conflated { records })
    }

    /// The cells of a `latest` channel.
    pub(crate) fn cells(&self) -> impl Iterator<Item = Option<&CellWriter>> {
        self.channels.iter().map(|channel| channel.cells.as_ref())
    }

    pub(crate) fn alarms(&self) -> impl Iterator<Item = Option<u64>> {
        self.channels.iter().map(|channel| channel.alarm)
    }
}

/// Raises an alarm once, and takes it back once at half of it.
pub(crate) fn lag_event(alarm: u64, alarmed: &mut bool, lag: u64) -> Option<Event> {
    if !*alarmed && lag > alarm {
        *alarmed = true;
        return Some(Event::Lagging { sequences: lag });
    }
    if *alarmed && lag <= alarm / 2 {
        *alarmed = false;
        return Some(Event::CaughtUp);
    }
    None
}

#[cfg(test)]
mod tests {
    use tickcast_reliability::control::Instrument;
    use tickcast_reliability::record::{SymbolMappingMsg, WireRecord};
    use tickcast_reliability::types::{ConfigHash, Lineage, RecordNumber, Sequence};

    use super::*;
    use crate::observe::ChannelShared;
    use crate::observe::totals::{Totals, position_at};

    pub(super) fn welcome(epoch: u64, channels: [u16; 2]) -> Welcome {
        let offer = |channel: u16| ChannelOffer {
            channel: ChannelId(channel),
            name: String::new(),
            epoch: Epoch(epoch),
            newest: Sequence(0),
            oldest: Sequence(1),
            oldest_record: RecordNumber(1),
            next_record: RecordNumber(1),
            slot_len: 1472,
            slots: 64,
            config_hash: ConfigHash(0),
            ended: false,
            fan_outs: Vec::new(),
            directory: Vec::new(),
            continues: Lineage::default(),
            history: None,
        };
        Welcome {
            wire_version: 1,
            publisher: String::new(),
            session: 1,
            channels: channels.map(offer).into(),
            repairs: Vec::new(),
        }
    }

    #[test]
    fn items_of_an_ended_epoch_belong_to_the_channel_before() {
        let of = |name: &str| ChannelShared::new(name.into(), Arc::default(), false);
        let shared = Shared {
            channels: [of("a"), of("b")].into(),
            ..Shared::default()
        };
        let channels = [0, 1].map(|_| (InstrumentFilter::all(), None, None));
        let mut dispatcher = Dispatcher::new(channels.into_iter(), Arc::new(shared));
        let index_at = |dispatcher: &mut Dispatcher, channel: u16, epoch: u64| {
            let mut position = position_at(&Totals::default());
            (position.channel, position.epoch) = (ChannelId(channel), Epoch(epoch));
            dispatcher.index_at(&position)
        };
        dispatcher.welcome(&welcome(1, [1, 2]));
        dispatcher.welcomed(&welcome(1, [1, 2]));
        assert_eq!(
            [1, 2].map(|id| index_at(&mut dispatcher, id, 1)),
            [Some(0), Some(1)]
        );
        // The first has another number, and the second has that of the first.
        dispatcher.welcome(&welcome(2, [3, 1]));
        assert_eq!(
            [1, 2].map(|id| index_at(&mut dispatcher, id, 1)),
            [Some(0), Some(1)]
        );
        assert_eq!(
            [3, 1].map(|id| index_at(&mut dispatcher, id, 2)),
            [Some(0), Some(1)]
        );
        dispatcher.welcomed(&welcome(2, [3, 1]));
        assert_eq!(
            [3, 1].map(|id| index_at(&mut dispatcher, id, 2)),
            [Some(0), Some(1)]
        );
        assert_eq!(index_at(&mut dispatcher, 2, 1), None);
    }

    #[test]
    fn names_of_an_ended_epoch_end_with_its_welcome() {
        let of = |name: &str| ChannelShared::new(name.into(), Arc::default(), false);
        let shared = Arc::new(Shared {
            channels: [of("a"), of("b")].into(),
            ..Shared::default()
        });
        let only = || InstrumentFilter::symbols(["X"]);
        let channels = [(only(), None, None), (InstrumentFilter::all(), None, None)];
        let mut dispatcher = Dispatcher::new(channels.into_iter(), Arc::clone(&shared));
        let listing = |epoch: u64, channels: [u16; 2], id: u32| {
            let mut welcome = welcome(epoch, channels);
            let symbol = "X".to_owned();
            welcome.channels[0].directory = vec![Instrument { id, symbol }];
            welcome
        };
        let index_of_passed = |dispatcher: &mut Dispatcher, epoch: u64, id: u32, names: &str| {
            let mut record = SymbolMappingMsg::default();
            (record.hd.rtype, record.hd.instrument_id) = (SymbolMappingMsg::RTYPE, id);
            for (to, from) in record.stype_in_symbol.iter_mut().zip(names.bytes()) {
                *to = from as _;
            }
            let mut position = position_at(&Totals::default());
            (position.channel, position.epoch) = (ChannelId(1), Epoch(epoch));
            let index = dispatcher.index_at(&position).unwrap();
            match dispatcher.record(index, &position, RecordRef::from(&record)) {
                Verdict::Passes => Some(index),
                Verdict::LeftOut | Verdict::Conflated(_) => None,
            }
        };
        dispatcher.welcome(&listing(1, [1, 2], 5));
        dispatcher.welcomed(&listing(1, [1, 2], 5));
        dispatcher.publish(true);
        // What was held back comes now: of the first channel, whose number the second has next.
        let next = listing(2, [3, 1], 6);
        dispatcher.welcome(&next);
        assert_eq!(
            index_of_passed(&mut dispatcher, 1, 5, ""),
            Some(0),
            "X as it was"
        );
        assert_eq!(
            index_of_passed(&mut dispatcher, 1, 6, ""),
            None,
            "no X before"
        );
        assert_eq!(index_of_passed(&mut dispatcher, 1, 9, "Y"), None);
        dispatcher.welcomed(&next);
        assert_eq!(index_of_passed(&mut dispatcher, 2, 8, "Z"), Some(1));
        dispatcher.publish(true);
        for directory in [&dispatcher.directory, &*shared.directory.lock().unwrap()] {
            let named = [5, 6, 8].map(|id| directory.symbol(id));
            assert_eq!(named, [None, Some("X"), Some("Z")]);
            assert_eq!((directory.id("X"), directory.id("Y")), (Some(6), None));
        }
    }
}
