//! The steps between the core and the application. The dispatcher learns names, filters instruments,
//! measures latency and conflates `latest` channels.

pub(crate) mod application;
pub(crate) mod conflate;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use tickcast_journal::Journaled;
use tickcast_reliability::control::{ChannelOffer, Welcome};
use tickcast_reliability::delivery::{Deliver, Event, Item, Position};
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

/// The driver's destination for items and notifications of the core.
pub(crate) trait Sink: Deliver {
    /// Handles an offer of a publisher. The call comes before any item of the offered channel.
    fn offered(
        &mut self,
        _now: Nanos,
        _core: &mut Journaled<SubscriberCore>,
        _offer: &ChannelOffer,
    ) {
    }
    /// Handles a welcome of a publisher. The call comes before the items that follow from it.
    fn welcome(&mut self, _welcome: &Welcome) {}
    /// Handles the end of a welcome. All items of the previous streams have come, and none of the new ones.
    fn welcomed(&mut self, _welcome: &Welcome) {}
    /// Handles the state of the core after connections and timers were served.
    fn served(&mut self, _core: &Journaled<SubscriberCore>) {}
}

/// A sink behind a dispatcher, which decides on each item.
pub(crate) trait Dispatched: Deliver {
    /// Returns the dispatcher.
    fn dispatcher(&mut self) -> &mut Dispatcher;
    /// Delivers a record of a channel, as the dispatcher decides.
    fn record(&mut self, index: usize, position: &Position, record: RecordRef<'_>);
    /// Delivers an event of a channel.
    fn event(&mut self, index: usize, position: &Position, event: &Event);

    /// Delivers an item of a known channel.
    #[inline]
    fn dispatch(&mut self, item: Item<'_>) {
        let (Item::Record(position, _) | Item::Event(position, _)) = item;
        let Some(index) = self.dispatcher().index_at(position) else {
            return;
        };
        match item {
            Item::Record(position, record) => self.record(index, position, record),
            Item::Event(position, event) => self.event(index, position, event),
        }
    }
}

impl<T: Dispatched> Sink for T {
    fn welcome(&mut self, welcome: &Welcome) {
        self.dispatcher().welcome(welcome);
    }

    fn welcomed(&mut self, welcome: &Welcome) {
        self.dispatcher().welcomed(welcome);
    }

    fn served(&mut self, core: &Journaled<SubscriberCore>) {
        for (index, receiver) in core.entries().enumerate() {
            let Some(receiver) = receiver else { continue };
            for event in self.dispatcher().report(index, receiver).iter().flatten() {
                self.event(index, &receiver.position(), event);
            }
        }
        self.dispatcher().publish(core.is_joined());
    }
}

/// The dispatcher's decision on the records of a datagram.
pub(crate) enum Batch {
    /// The datagram's channel number is unknown, so its records are dropped.
    LeftOut,
    /// All records go to the application: none is filtered, announces a name or is conflated.
    Passes(usize),
    /// Each record needs its own decision.
    Mixed(usize),
}

/// The dispatcher's decision on one record.
pub(crate) enum Verdict {
    /// The filter excludes the record.
    LeftOut,
    /// The record goes to the application.
    Passes,
    /// The record waits in this cell, where a newer one may replace it.
    Conflated(Cell),
}

/// The state of one channel, by its index in the settings.
#[derive(Debug)]
struct Channel {
    id: Option<ChannelId>,
    epoch: Epoch,
    /// The number and epoch before the welcome in progress. Losses during the welcome carry these.
    before: Option<(ChannelId, Epoch)>,
    filter_index: FilterIndex,
    cells: Option<CellWriter>,
    /// Symbols of the filter that the publisher has not announced.
    unknown: Vec<String>,
    /// Whether enough names were announced to treat `unknown` as misspelled. That is so when WELCOME listed
    /// some, when a record was filtered out, or when [`NAMES_MANY`] were announced.
    is_due: bool,
    alarm: Option<u64>,
    alarmed: bool,
    /// The number of conflated records not yet emitted. `report_at` is the earliest time of the next event.
    conflated: u64,
    report_at: Nanos,
    /// Delivery begins after this sequence, as in the last `Joined` event.
    joined_after: Sequence,
    others: OtherPublishers,
}

/// Decides on each item between the core and the application.
#[derive(Debug)]
pub(crate) struct Dispatcher {
    channels: Vec<Channel>,
    /// The index of the last lookup, which is likely to match again.
    last: usize,
    pub(crate) directory: Directory,
    /// Learned names that are not in the shared directory yet.
    unpublished: Vec<(ChannelId, u32, String)>,
    /// Whether the whole shared directory must be replaced.
    replaced: bool,
    /// Whether a welcome is being handled.
    is_welcomed: bool,
    meter: Meter,
    /// Whether the filters must be checked again.
    check_due: bool,
    problem: Option<Unknown>,
    pub(crate) shared: Arc<Shared>,
}

/// A symbol of a filter that the publisher has not announced.
#[derive(Debug)]
struct Unknown {
    index: usize,
    symbol: String,
    /// The number of known names when the error text was made.
    names: usize,
    error: SubscribeError,
}

/// A filter's unknown symbol counts as misspelled after this many announced names.
const NAMES_MANY: usize = 1_000;
/// Conflation events of a channel are at least this far apart.
pub(crate) const CONFLATION_REPORT_INTERVAL: Nanos = Nanos::from_secs(1);

impl Dispatcher {
    /// Creates a dispatcher of channels with these filters, cells and alarms.
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

    /// Returns the index of a channel during a welcome, when its number may have passed to another channel.
    #[cold]
    fn index_before(&mut self, position: &Position) -> Option<usize> {
        let at = (position.channel, position.epoch);
        let before = self.channels.iter().position(|it| it.before == Some(at));
        before.or_else(|| self.index_of(position.channel))
    }

    /// Returns the index of the channel to which a position belongs.
    #[inline]
    pub(crate) fn index_at(&mut self, position: &Position) -> Option<usize> {
        if self.is_welcomed {
            self.index_before(position)
        } else {
            self.index_of(position.channel)
        }
    }

    /// Returns the delivery counters of a channel.
    #[inline]
    pub(crate) fn handed(&self, index: usize) -> &HandedCounters {
        &self.shared.channels[index].handed
    }

    /// Decides on the records of a datagram. Records that pass are measured and counted.
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

    /// Learns the name that a record announces, and decides on the record. A record that does not go to a
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

    /// Counts an event of a channel, and sets the end of replayed history in the histograms.
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
                latency.enter_join();
            }
            Event::Live => {
                let is_replayed = position.sequence > channel.joined_after;
                latency.enter_live(is_replayed.then(|| SystemClock.utc()));
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

    /// Requests a filter check, because a record was filtered out while symbols of the filter are unknown.
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

    /// Applies the channel numbers of a welcome, before items with these numbers come.
    pub(crate) fn welcome(&mut self, welcome: &Welcome) {
        if welcome.channels.len() != self.channels.len() {
            return;
        }
        for (index, offer) in welcome.channels.iter().enumerate() {
            let it = &mut self.channels[index];
            if it.id == Some(offer.channel) && offer.epoch < it.epoch {
                // The offer is of a past epoch, and the core rejects it.
                continue;
            }
            it.before = it.id.map(|id| (id, it.epoch));
            (it.id, it.epoch) = (Some(offer.channel), offer.epoch);
            self.shared.channels[index].set_id(offer.channel);
        }
        self.is_welcomed = true;
    }

    /// Replaces the directories, once no more items refer to instruments by their previous names.
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
                // The text of the problem refers to the replaced directory.
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

    /// Publishes the state of a channel to other threads. Returns the events that are due. These are the lag
    /// alarm, its end at half of the alarm, and another publisher that sends to the channel's groups.
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

    /// Returns and logs the event when another publisher sends to the groups of a channel.
    fn find_other_publisher(&mut self, index: usize, receiver: &Receiver) -> Option<Event> {
        let is_linked = receiver.stream_state().repair_link_up;
        let others = &mut self.channels[index].others;
        let event = others.check(SystemClock.now(), receiver.counters(), is_linked)?;
        let name = &self.shared.channels[index].name;
        tracing::warn!("channel {name}: {event}; only one publisher may send to a group");
        Some(event)
    }

    /// Publishes the joined state and the learned names to other threads. Names are skipped while another
    /// thread holds the lock. Call it after [`report`](Self::report) of all channels, so that no thread takes
    /// names for those of an older epoch.
    #[inline]
    pub(crate) fn publish(&mut self, is_joined: bool) {
        self.shared.joined.store(is_joined, Relaxed);
        if self.replaced || !self.unpublished.is_empty() {
            self.show();
        }
    }

    #[cold]
    fn show(&mut self) {
        // locks: taken only after a name was learned; `try_lock` never waits.
        let Ok(mut shown) = self.shared.directory.try_lock() else {
            return;
        };
        if std::mem::replace(&mut self.replaced, false) {
            shown.clone_from(&self.directory);
            // The copied directory already contains the valid ones.
            self.unpublished.clear();
        }
        for (channel, id, symbol) in self.unpublished.drain(..) {
            shown.channel_mut(channel).learn(id, &symbol);
        }
    }

    /// Returns the error for a symbol that a filter names and no publisher has announced. It is as of the
    /// last check.
    pub(crate) fn problem(&self) -> Option<&SubscribeError> {
        self.problem.as_ref().map(|problem| &problem.error)
    }

    /// Checks the filters for unknown symbols, if the result may have changed. One call per poll is enough.
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
        // The search for similar symbols is slow, so do not repeat it for every few new names.
        let is_told = self.problem.as_ref().is_some_and(|reported| {
            reported.index == index
                && reported.symbol == *symbol
                && known.len() < 2 * reported.names.max(1)
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

    /// Counts conflated records of a channel. Returns the event when one is due.
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

    /// Returns the cells of each channel, or `None` for channels that are not `latest`.
    pub(crate) fn cells(&self) -> impl Iterator<Item = Option<&CellWriter>> {
        self.channels.iter().map(|channel| channel.cells.as_ref())
    }

    pub(crate) fn alarms(&self) -> impl Iterator<Item = Option<u64>> {
        self.channels.iter().map(|channel| channel.alarm)
    }
}

/// Returns `Lagging` once above the alarm, and `CaughtUp` once at half of it or below.
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
    use tickcast_reliability::control::HeartbeatLimits;

    pub(super) fn welcome(epoch: u64, channels: [u16; 2]) -> Welcome {
        let offer = |channel: u16| ChannelOffer {
            authentication: None,
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
            heartbeats: HeartbeatLimits::default(),
        };
        Welcome {
            latency: false,
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
        // The first channel has a new number, and the second has the first one's old number.
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
        // Items held back until now arrive. They belong to the first channel, whose number the second
        // takes over.
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
