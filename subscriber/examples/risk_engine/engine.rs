//! The engine: it turns a stream and fills into positions, results, exposures and alerts. It does no
//! I/O and reads no clock, so the same stream always gives the same result.
//!
//! Definitions, all in integers of 1e-9. [`super::position`] defines average cost, and [`super::market`]
//! defines marks.
//! - The result (P&L) of a portfolio is its realised plus its unrealised result. Its *gross* is the sum
//!   of the sizes of its exposures. Its *net* is the size of their sum. An instrument's exposure is the
//!   sum over all portfolios.
//! - Limits are checked whenever a mark changes or a fill takes place. The instrument's limit comes first,
//!   then those of the portfolios that trade it, by name: gross, net, loss. A value above its limit is
//!   a breach and gives one alert. A return to the limit or below gives one alert as well.
//! - *Frozen* values can't be trusted: an instrument whose market is suspect, a portfolio that holds
//!   one, and everything while the publisher is silent. Frozen values stay unchanged and fills still
//!   count, but their limits are not checked until they can be trusted again.
//! - The *trail* is a checksum over the result of all portfolios after every step. Two engines with
//!   the same trail had the same result at every tick.

use std::collections::HashMap;
use std::fmt;

use tickcast_subscriber::Epoch;
use tickcast_subscriber::record::{InstrumentDefMsg, RecordRef, SymbolMappingMsg};
use tickcast_subscriber::{Event, Item, Loss, StreamEvent};

use super::input::{Fill, Kind, Limits};
use super::market::Market;
use super::money::decimal;
use super::position::{Position, Value};

/// An alert: a value exceeded its limit, or returned to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Alert {
    /// The number of the record that caused the alert.
    pub(crate) record: u64,
    pub(crate) is_breach: bool,
    pub(crate) kind: Kind,
    /// The symbol of the instrument, or the name of the portfolio.
    pub(crate) name: String,
    pub(crate) value: i128,
    pub(crate) limit: i128,
}

impl fmt::Display for Alert {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.is_breach { "breach" } else { "clear" };
        let subject = if self.kind == Kind::Exposure {
            "instrument"
        } else {
            "portfolio"
        };
        let (value, limit) = (decimal(self.value), decimal(self.limit));
        let Self {
            record, kind, name, ..
        } = self;
        write!(
            f,
            "{record} {what} {subject} {name} {kind} {value} limit {limit}"
        )
    }
}

/// A limit, and whether the last alert was a breach of it.
#[derive(Debug)]
struct Watch {
    kind: Kind,
    limit: Option<i128>,
    is_breached: bool,
}

impl Watch {
    fn new(limits: &Limits, kind: Kind, name: &str) -> Self {
        Self {
            kind,
            limit: limits.of(kind, name),
            is_breached: false,
        }
    }

    fn judge(&mut self, record: u64, name: &str, value: i128) -> Option<Alert> {
        let limit = self.limit?;
        let is_breach = value > limit;
        if is_breach == std::mem::replace(&mut self.is_breached, is_breach) {
            return None;
        }
        Some(Alert {
            record,
            is_breach,
            kind: self.kind,
            name: name.to_owned(),
            value,
            limit,
        })
    }
}

/// The position of one portfolio in an instrument.
#[derive(Debug)]
pub(crate) struct Holding {
    pub(crate) portfolio: usize,
    pub(crate) position: Position,
    pub(crate) value: Value,
}

/// An instrument named by the stream or by a fill.
#[derive(Debug)]
pub(crate) struct Instrument {
    pub(crate) symbol: String,
    pub(crate) market: Market,
    /// The holdings, sorted by portfolio.
    pub(crate) holdings: Vec<Holding>,
    /// The exposure of all portfolios.
    pub(crate) exposure: i128,
    watch: Watch,
}

/// The sums of a portfolio.
#[derive(Debug)]
pub(crate) struct Portfolio {
    pub(crate) name: String,
    pub(crate) realised: i128,
    pub(crate) unrealised: i128,
    pub(crate) gross: i128,
    /// The net exposure, signed.
    pub(crate) net: i128,
    watches: [Watch; 3],
    /// The instruments that the portfolio trades.
    instruments: Vec<usize>,
}

/// Counts of everything that occurred.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) records: u64,
    /// Records of unnamed instruments. They have no effect.
    pub(crate) unnamed: u64,
    pub(crate) fills: u64,
    pub(crate) breaches: u64,
    pub(crate) clears: u64,
    /// The number of times an instrument became suspect.
    pub(crate) freezes: u64,
    /// The number of times that silence of the publisher froze everything.
    pub(crate) silences: u64,
    /// Losses, of the channel or at the source.
    pub(crate) losses: u64,
    /// Records lost in this channel, as far as known.
    pub(crate) lost_records: u64,
    /// Datagrams that were missing and arrived after all.
    pub(crate) repaired: u64,
}

/// Computes positions, results, exposures and alerts from a stream and fills.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) instruments: Vec<Instrument>,
    /// The portfolios, sorted by name.
    pub(crate) portfolios: Vec<Portfolio>,
    pub(crate) counts: Counts,
    /// Alerts to output. The caller drains them.
    pub(crate) alerts: Vec<Alert>,
    pub(crate) trail: u64,
    limits: Limits,
    by_symbol: HashMap<String, usize>,
    by_id: HashMap<u32, usize>,
    /// Each fill with its instrument and its place in the instrument's holdings.
    fills: Vec<(Fill, usize, usize)>,
    next_fill: usize,
    /// Fills whose place can't come any more.
    unplaced: usize,
    suspects: usize,
    is_silent: bool,
    /// Whether part of the stream was missed, so that a new instrument starts as suspect.
    is_partial: bool,
    /// The result of all portfolios.
    result: i128,
}

impl Engine {
    /// Creates an engine that applies these fills.
    pub(crate) fn new(fills: Vec<Fill>, limits: Limits) -> Self {
        let mut engine = Self {
            instruments: Vec::new(),
            portfolios: Vec::new(),
            counts: Counts::default(),
            alerts: Vec::new(),
            trail: 0xcbf2_9ce4_8422_2325,
            limits,
            by_symbol: HashMap::new(),
            by_id: HashMap::new(),
            fills: Vec::new(),
            next_fill: 0,
            unplaced: 0,
            suspects: 0,
            is_silent: false,
            is_partial: false,
            result: 0,
        };
        let mut names: Vec<_> = fills.iter().map(|fill| &fill.portfolio).collect();
        names.sort();
        names.dedup();
        engine.portfolios = names
            .into_iter()
            .map(|name| Portfolio {
                name: name.clone(),
                realised: 0,
                unrealised: 0,
                gross: 0,
                net: 0,
                watches: [Kind::Gross, Kind::Net, Kind::Loss]
                    .map(|kind| Watch::new(&engine.limits, kind, name)),
                instruments: Vec::new(),
            })
            .collect();
        let find = |portfolios: &[Portfolio], name: &str| {
            portfolios.partition_point(|portfolio| *portfolio.name < *name)
        };
        for fill in &fills {
            let index = engine.instrument(&fill.symbol);
            let portfolio = find(&engine.portfolios, &fill.portfolio);
            let holdings = &mut engine.instruments[index].holdings;
            let at = holdings.partition_point(|holding| holding.portfolio < portfolio);
            if holdings.get(at).is_none_or(|h| h.portfolio != portfolio) {
                let holding = Holding {
                    portfolio,
                    position: Position::default(),
                    value: Value::default(),
                };
                holdings.insert(at, holding);
                engine.portfolios[portfolio].instruments.push(index);
            }
        }
        // Look up the places only now, when no holding moves any more.
        for fill in fills {
            let index = engine.by_symbol[&fill.symbol];
            let portfolio = find(&engine.portfolios, &fill.portfolio);
            let holdings = &engine.instruments[index].holdings;
            let at = holdings.partition_point(|holding| holding.portfolio < portfolio);
            engine.fills.push((fill, index, at));
        }
        engine
    }

    /// Processes the next item of the stream.
    pub(crate) fn take(&mut self, item: &Item<'_>) {
        match item {
            Item::Record(position, record) => {
                self.fill_before(position.record.0);
                self.record(position.record.0, position.source.0, *record);
            }
            Item::Event(position, event) => self.event(position.record.0, event),
        }
    }

    /// Adds the names of a directory to the ids of `epoch`. They are used only if the directory's epoch
    /// `known` is the same, because another epoch may give these ids to other instruments.
    pub(crate) fn learn<'a>(
        &mut self,
        epoch: Epoch,
        names: impl Iterator<Item = (u32, &'a str)>,
        known: Epoch,
    ) {
        if known == epoch {
            names.for_each(|(id, symbol)| self.name(id, symbol));
        }
    }

    /// Names an instrument.
    pub(crate) fn name(&mut self, id: u32, symbol: &str) {
        let index = self.instrument(symbol);
        self.by_id.insert(id, index);
    }

    /// Returns the instrument of a record, if it has been named.
    pub(crate) fn about(&self, record: RecordRef<'_>) -> Option<&Instrument> {
        let index = self.by_id.get(&record.header().instrument_id)?;
        self.instruments.get(*index)
    }

    /// Returns the number of fills whose place in the stream did not come.
    pub(crate) const fn fills_left(&self) -> usize {
        self.fills.len() - self.next_fill + self.unplaced
    }

    /// Returns whether the limits of this portfolio are currently unchecked.
    pub(crate) fn is_frozen(&self, portfolio: usize) -> bool {
        let traded = &self.portfolios[portfolio].instruments;
        self.is_silent || holds_suspect(&self.instruments, traded, portfolio)
    }

    fn instrument(&mut self, symbol: &str) -> usize {
        if let Some(&index) = self.by_symbol.get(symbol) {
            return index;
        }
        let index = self.instruments.len();
        self.by_symbol.insert(symbol.to_owned(), index);
        self.instruments.push(Instrument {
            symbol: symbol.to_owned(),
            market: Market::default(),
            holdings: Vec::new(),
            exposure: 0,
            watch: Watch::new(&self.limits, Kind::Exposure, symbol),
        });
        if self.is_partial {
            self.freeze(|_, at| at == index);
        }
        index
    }

    fn record(&mut self, number: u64, source: u16, record: RecordRef<'_>) {
        self.counts.records += 1;
        let id = record.header().instrument_id;
        if let Some(symbol) = named(record) {
            self.name(id, symbol);
        }
        let Some(&index) = self.by_id.get(&id) else {
            // Id 0 is the venue, not an instrument.
            self.counts.unnamed += u64::from(id != 0);
            return;
        };
        let market = &mut self.instruments[index].market;
        let was_suspect = market.is_suspect;
        market.source = source;
        let is_repriced = market.apply(record);
        let is_suspect = market.is_suspect;
        if is_suspect != was_suspect {
            self.suspects = self.suspects + usize::from(is_suspect) - usize::from(was_suspect);
            self.counts.freezes += u64::from(is_suspect);
        }
        if is_repriced {
            self.revalue(index, number);
        }
        if is_repriced || was_suspect && !is_suspect {
            self.judge(index, number);
        }
    }

    /// Applies the fills that take place before record `number`.
    fn fill_before(&mut self, number: u64) {
        while let Some((fill, index, at)) = self.fills.get(self.next_fill) {
            if fill.after >= number {
                return;
            }
            let (index, record) = (*index, fill.after);
            let holding = &mut self.instruments[index].holdings[*at];
            let before = holding.position.realised;
            holding.position.fill(fill.quantity, fill.price);
            let realised = holding.position.realised - before;
            self.portfolios[holding.portfolio].realised += realised;
            self.result += realised;
            self.next_fill += 1;
            self.counts.fills += 1;
            self.revalue(index, record);
            self.judge(index, record);
        }
    }

    /// Updates an instrument's values and all sums after a change of its mark or a position.
    fn revalue(&mut self, index: usize, record: u64) {
        let instrument = &mut self.instruments[index];
        if instrument.holdings.is_empty() {
            return;
        }
        for holding in &mut instrument.holdings {
            let new = holding.position.value(instrument.market.mark);
            let old = std::mem::replace(&mut holding.value, new);
            let portfolio = &mut self.portfolios[holding.portfolio];
            portfolio.unrealised += new.unrealised - old.unrealised;
            portfolio.gross += new.exposure.abs() - old.exposure.abs();
            portfolio.net += new.exposure - old.exposure;
            instrument.exposure += new.exposure - old.exposure;
            self.result += new.unrealised - old.unrealised;
        }
        // FNV-1a over words: record, low and high half of the result.
        for word in [record, self.result as u64, (self.result >> 64) as u64] {
            self.trail = (self.trail ^ word).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    /// Checks the limits that a change of an instrument's value can affect.
    fn judge(&mut self, index: usize, record: u64) {
        if self.is_silent {
            return;
        }
        let instrument = &mut self.instruments[index];
        if !instrument.market.is_suspect {
            let size = instrument.exposure.abs();
            let alert = instrument.watch.judge(record, &instrument.symbol, size);
            tell(&mut self.alerts, &mut self.counts, alert);
        }
        for holding in &self.instruments[index].holdings {
            let portfolio = &mut self.portfolios[holding.portfolio];
            let traded = &portfolio.instruments;
            if self.suspects > 0 && holds_suspect(&self.instruments, traded, holding.portfolio) {
                continue;
            }
            let loss = -(portfolio.realised + portfolio.unrealised);
            let values = [portfolio.gross, portfolio.net.abs(), loss];
            for (watch, value) in portfolio.watches.iter_mut().zip(values) {
                let alert = watch.judge(record, &portfolio.name, value);
                tell(&mut self.alerts, &mut self.counts, alert);
            }
        }
    }

    fn event(&mut self, next: u64, event: &Event) {
        match event {
            Event::Joined { after } if after.0 > 0 => self.lose(|_| true),
            Event::Lost(Loss { records, .. }) => {
                self.counts.losses += 1;
                self.counts.lost_records += records.unwrap_or(0);
                self.lose(|_| true);
            }
            // Two publishers send, so the origin of the delivered records is unknown.
            Event::FencingViolation { .. }
            | Event::RolledBack { .. }
            | Event::LossCorrected { .. } => {
                self.counts.losses += 1;
                self.lose(|_| true);
            }
            // This reader was too slow, so apply the counts of the overrun instead of the missed events.
            Event::Overrun(overrun) => {
                self.counts.losses += 1;
                self.counts.lost_records += overrun.records + overrun.lost_records;
                self.lose(|_| true);
                if overrun.epoch_changes > 0 {
                    self.begin_epoch();
                }
                self.hear(!overrun.state.stale, next);
                if overrun.state.ended {
                    self.fill_before(next);
                }
            }
            Event::Stream(StreamEvent::SourceLost {
                source,
                instruments,
                ..
            }) => {
                self.counts.losses += 1;
                let named: Vec<_> = instruments.iter().map(|id| self.by_id.get(id)).collect();
                if instruments.is_empty() || named.contains(&None) {
                    self.lose(|instrument| instrument.market.source == source.0);
                } else {
                    let named: Vec<_> = named.into_iter().flatten().copied().collect();
                    self.freeze(|_, index| named.contains(&index));
                }
            }
            // The prices of a silent source are old, and each is current again with its next record.
            Event::Stream(StreamEvent::SourceSilent { source, .. }) => {
                self.freeze(|instrument, _| instrument.market.source == source.0);
            }
            Event::EpochChanged { .. } => {
                self.lose(|_| true);
                self.begin_epoch();
            }
            Event::GapRecovered { sequences, .. } => self.counts.repaired += sequences,
            Event::Stale | Event::PublisherDead => self.hear(false, next),
            Event::Recovered => self.hear(true, next),
            Event::EndOfSession => self.fill_before(next),
            _ => {}
        }
    }

    /// Starts an epoch. Record numbers and ids begin again, so the remaining fills have no place.
    fn begin_epoch(&mut self) {
        self.unplaced += self.fills.len() - self.next_fill;
        self.fills.truncate(self.next_fill);
        self.by_id.clear();
        let markets = self.instruments.iter_mut().map(|i| &mut i.market);
        markets.for_each(Market::forget);
    }

    /// Sets whether the publisher is heard. The end of a silence checks all limits again.
    fn hear(&mut self, is_heard: bool, next: u64) {
        let was_silent = std::mem::replace(&mut self.is_silent, !is_heard);
        self.counts.silences += u64::from(!was_silent && !is_heard);
        if was_silent && is_heard {
            for index in 0..self.instruments.len() {
                self.judge(index, next.saturating_sub(1));
            }
        }
    }

    /// Marks these instruments as suspect after a loss, and later also instruments not named yet.
    fn lose(&mut self, concerned: impl Fn(&Instrument) -> bool) {
        self.is_partial = true;
        self.freeze(|instrument, _| concerned(instrument));
    }

    fn freeze(&mut self, concerned: impl Fn(&Instrument, usize) -> bool) {
        for index in 0..self.instruments.len() {
            let instrument = &self.instruments[index];
            if concerned(instrument, index) && !instrument.market.is_suspect {
                self.instruments[index].market.is_suspect = true;
                self.suspects += 1;
                self.counts.freezes += 1;
            }
        }
    }
}

/// Returns whether a portfolio, which trades these instruments, holds a suspect one.
fn holds_suspect(instruments: &[Instrument], traded: &[usize], portfolio: usize) -> bool {
    let held = |h: &Holding| h.portfolio == portfolio && h.position.quantity != 0;
    let mut traded = traded.iter().map(|&index| &instruments[index]);
    traded.any(|i| i.market.is_suspect && i.holdings.iter().any(held))
}

fn tell(alerts: &mut Vec<Alert>, counts: &mut Counts, alert: Option<Alert>) {
    let Some(alert) = alert else { return };
    counts.breaches += u64::from(alert.is_breach);
    counts.clears += u64::from(!alert.is_breach);
    alerts.push(alert);
}

/// Returns the symbol that a record gives to its instrument.
fn named(record: RecordRef<'_>) -> Option<&str> {
    let symbol = if let Some(mapping) = record.get::<SymbolMappingMsg>() {
        mapping.stype_in_symbol()
    } else {
        record.get::<InstrumentDefMsg>()?.raw_symbol()
    };
    symbol.ok().filter(|symbol| !symbol.is_empty())
}

#[cfg(test)]
mod tests {
    use tickcast_subscriber::record::{BidAskPair, Mbp1Msg, RType, RecordHeader};
    use tickcast_subscriber::{LossCause, Overrun, Place, StreamEvent, StreamState};
    use tickcast_subscriber::{Sequence, SequenceRange, SourceId, SourcePosition};

    use super::super::input;
    use super::*;

    const LIMITS: &str = "subject,name,limit,value\n\
        instrument,*,exposure,1500\nportfolio,*,gross,2000\nportfolio,*,loss,100\n";

    /// Returns an engine that knows X (id 1) and Y (id 2), both from source 3.
    fn engine(fills: &str) -> Engine {
        let fills = input::fills(&(input::header() + fills)).unwrap();
        let mut engine = Engine::new(fills, Limits::read(LIMITS).unwrap());
        engine.name(1, "X");
        engine.name(2, "Y");
        engine
    }

    impl Engine {
        /// Applies record `number`, a quote around `price` in whole units.
        fn quoted(&mut self, number: u64, id: u32, price: i64) {
            let price = price * 1_000_000_000;
            let level = BidAskPair {
                bid_px: price - 1,
                ask_px: price + 1,
                bid_sz: 1,
                ask_sz: 1,
                ..BidAskPair::default()
            };
            let quote = Mbp1Msg {
                hd: RecordHeader::new::<Mbp1Msg>(RType::Mbp1 as u8, 0, id, 0),
                levels: [level],
                ..Mbp1Msg::default()
            };
            self.fill_before(number);
            self.record(number, 3, (&quote).into());
        }

        /// Returns the alerts so far, without values.
        fn reported(&mut self) -> Vec<String> {
            let alerts = self.alerts.drain(..).map(|alert| alert.to_string());
            let brief = |text: String| text.split(' ').take(5).collect::<Vec<_>>().join(" ");
            alerts.map(brief).collect()
        }
    }

    fn lost() -> Event {
        Event::Lost(Loss {
            sequences: SequenceRange::one(Sequence(5)),
            records: Some(40),
            cause: LossCause::Window,
        })
    }

    #[test]
    fn fill_is_applied_before_next_record() {
        let mut engine = engine("2,a,X,buy,10,90000000000\n");
        engine.quoted(1, 1, 100);
        engine.quoted(2, 1, 110);
        assert_eq!(engine.portfolios[0].gross, 0);
        engine.quoted(3, 2, 7);
        assert_eq!(engine.portfolios[0].gross, 1_100_000_000_000);
        assert_eq!(engine.portfolios[0].unrealised, 200_000_000_000);
        assert_eq!((engine.counts.fills, engine.fills_left()), (1, 0));
    }

    #[test]
    fn fill_after_last_record_counts_one_beyond_is_left() {
        let mut engine = engine("1,a,X,buy,10,1\n2,a,X,buy,10,1\n");
        engine.quoted(1, 1, 100);
        engine.event(2, &Event::EndOfSession);
        assert_eq!((engine.counts.fills, engine.fills_left()), (1, 1));
    }

    #[test]
    fn limit_breach_and_clear_are_each_reported_once() {
        let mut engine = engine("1,a,X,buy,10,100000000000\n");
        for (number, price) in [(1, 100), (2, 100), (3, 151), (4, 160), (5, 150), (6, 89)] {
            engine.quoted(number, 1, price);
        }
        let expected = [
            "3 breach instrument X exposure",
            "5 clear instrument X exposure",
            "6 breach portfolio a loss",
        ];
        assert_eq!(engine.reported(), expected);
    }

    #[test]
    fn long_and_short_positions_net_per_instrument() {
        let mut engine = engine("0,a,X,buy,10,1\n0,b,X,sell,10,1\n");
        engine.quoted(1, 1, 190);
        assert_eq!(engine.instruments[0].exposure, 0);
        let gross: Vec<_> = engine.portfolios.iter().map(|p| p.gross).collect();
        assert_eq!(gross, [1_900_000_000_000; 2]);
        assert_eq!(engine.reported(), ["1 breach portfolio b loss"]);
    }

    #[test]
    fn loss_suspends_judgement_until_next_quote() {
        let mut engine = engine("0,a,X,buy,10,100000000000\n0,a,Y,buy,1,1000000000\n");
        engine.quoted(1, 1, 100);
        engine.quoted(2, 2, 1);
        engine.reported();
        engine.event(43, &lost());
        assert_eq!((engine.counts.freezes, engine.counts.lost_records), (2, 40));
        assert!(engine.is_frozen(0));
        engine.quoted(43, 1, 300);
        let reported = engine.reported();
        assert_eq!(
            reported,
            ["43 breach instrument X exposure"],
            "a still holds Y"
        );
        engine.quoted(44, 2, 1);
        assert_eq!(engine.reported(), ["44 breach portfolio a gross"]);
        assert!(!engine.is_frozen(0));
    }

    #[test]
    fn fencing_violation_freezes_portfolio_until_quote() {
        for wrong_one_delivered in [false, true] {
            let mut engine = engine("0,a,X,buy,10,100000000000\n");
            engine.quoted(1, 1, 100);
            let sequence = Sequence(1);
            engine.event(
                2,
                &Event::FencingViolation {
                    sequence,
                    wrong_one_delivered,
                },
            );
            assert!(engine.is_frozen(0) && engine.counts.losses == 1);
            engine.quoted(2, 1, 160);
            assert!(!engine.is_frozen(0));
        }
    }

    #[test]
    fn portfolio_is_not_frozen_by_closed_position() {
        let mut engine = engine("0,a,X,buy,10,1\n0,a,Y,buy,1,1\n1,a,Y,sell,1,1\n");
        engine.quoted(1, 1, 100);
        engine.event(50, &lost());
        engine.quoted(50, 1, 201);
        let expected = [
            "50 breach instrument X exposure",
            "50 breach portfolio a gross",
        ];
        assert_eq!(engine.reported(), expected);
    }

    #[test]
    fn source_loss_freezes_named_instruments() {
        let source_lost = |source, instruments| {
            Event::Stream(StreamEvent::SourceLost {
                source: SourceId(source),
                reason: tickcast_subscriber::SourceLossReason::Gap,
                from: SourcePosition(1),
                messages: 1,
                instruments,
            })
        };
        let mut engine = engine("0,a,X,buy,1,1\n0,b,Y,buy,1,1\n");
        engine.quoted(1, 1, 100);
        engine.quoted(2, 2, 100);
        engine.event(3, &source_lost(3, vec![2]));
        assert_eq!((engine.is_frozen(0), engine.is_frozen(1)), (false, true));
        engine.event(3, &source_lost(4, vec![]));
        assert!(!engine.is_frozen(0), "another source");
        engine.event(3, &source_lost(3, vec![]));
        assert!(engine.is_frozen(0));
        engine.quoted(3, 1, 100);
        assert!(!engine.is_frozen(0));
    }

    #[test]
    fn silent_source_is_frozen_until_its_next_record() {
        let silent = |source| {
            Event::Stream(StreamEvent::SourceSilent {
                source: SourceId(source),
                since: tickcast_subscriber::Nanos(1),
                instruments: Vec::new(),
            })
        };
        let mut engine = engine("0,a,X,buy,1,1\n0,b,Y,buy,1,1\n");
        engine.quoted(1, 1, 100);
        engine.quoted(2, 2, 100);
        engine.event(3, &silent(4));
        assert!(
            !engine.is_frozen(0) && !engine.is_frozen(1),
            "another source"
        );
        for _ in 0..2 {
            engine.event(3, &silent(3));
        }
        assert!(engine.is_frozen(0) && engine.is_frozen(1));
        engine.quoted(3, 1, 100);
        assert_eq!((engine.is_frozen(0), engine.is_frozen(1)), (false, true));
    }

    #[test]
    fn silence_freezes_everything_and_its_end_judges_everything() {
        let mut engine = engine("0,a,X,buy,10,1\n");
        engine.quoted(1, 1, 100);
        engine.event(2, &Event::Stale);
        engine.quoted(2, 1, 160);
        assert_eq!(engine.reported(), [""; 0]);
        assert!(engine.is_frozen(0));
        engine.event(3, &Event::Recovered);
        assert_eq!(engine.reported(), ["2 breach instrument X exposure"]);
    }

    /// Returns an overrun of a channel with this state.
    fn overrun(epoch_changes: u64, state: StreamState) -> Event {
        Event::Overrun(Overrun {
            from: Place::default(),
            to: Place::default(),
            records: 40,
            events: 1 + epoch_changes,
            lost_records: 2,
            losses_of_unknown_size: 0,
            epoch_changes,
            source_losses: 0,
            fencing_violations: 0,
            state,
        })
    }

    #[test]
    fn overrun_across_silence_freezes_until_recovered() {
        let mut engine = engine("0,a,X,buy,10,1\n");
        engine.quoted(1, 1, 100);
        let heard = StreamState::default();
        let stale = StreamState {
            stale: true,
            ..heard
        };
        engine.event(42, &overrun(0, stale));
        let counts = engine.counts;
        assert_eq!(
            (counts.silences, counts.losses, counts.lost_records),
            (1, 1, 42)
        );
        engine.quoted(42, 1, 160);
        assert_eq!(engine.reported(), [""; 0]);
        assert!(engine.is_frozen(0));
        // The publisher is heard again while this reader is overrun once more.
        engine.event(90, &overrun(0, heard));
        assert!(
            engine.is_frozen(0),
            "its instrument has not been seen since"
        );
        engine.quoted(90, 1, 160);
        assert_eq!(engine.reported(), ["90 breach instrument X exposure"]);
        assert!(!engine.is_frozen(0));
    }

    #[test]
    fn overrun_across_epochs_clears_and_last_fills_all() {
        let mut engine = engine("0,a,X,buy,10,1\n9,a,X,buy,1,1\n");
        engine.quoted(1, 1, 100);
        engine.event(3, &overrun(1, StreamState::default()));
        engine.quoted(3, 1, 500);
        assert_eq!((engine.counts.unnamed, engine.fills_left()), (1, 1));
        let mut engine = self::engine("0,a,X,buy,10,1\n9,a,X,buy,1,1\n");
        engine.quoted(1, 1, 100);
        let ended = StreamState {
            ended: true,
            ..StreamState::default()
        };
        engine.event(10, &overrun(0, ended));
        assert_eq!(engine.fills_left(), 0);
    }

    #[test]
    fn another_epoch_forgets_ids_and_books_but_not_positions() {
        let mut engine = engine("0,a,X,buy,10,1\n1,a,X,buy,1,1\n");
        engine.quoted(1, 1, 100);
        let (from, to) = (Epoch(1), Epoch(2));
        engine.event(2, &Event::EpochChanged { from, to });
        engine.quoted(1, 1, 500);
        assert_eq!(engine.counts.unnamed, 1);
        assert_eq!(engine.instruments[0].market.mark, Some(100_000_000_000));
        // A directory of the previous epoch or of a later one names other instruments.
        for known in [from, Epoch(3)] {
            engine.learn(to, [(1, "X")].into_iter(), known);
        }
        engine.quoted(2, 1, 500);
        assert_eq!(engine.counts.unnamed, 2);
        engine.learn(to, [(7, "X")].into_iter(), to);
        engine.quoted(2, 7, 120);
        assert_eq!(engine.portfolios[0].gross, 1_200_000_000_000);
        assert_eq!(engine.fills_left(), 1, "its record is of another epoch");
    }

    #[test]
    fn late_join_freezes_portfolio_until_quote() {
        let mut engine = engine("0,a,X,buy,10,1\n");
        let after = Sequence(9);
        engine.event(100, &Event::Joined { after });
        engine.fill_before(100);
        assert!(engine.is_frozen(0));
        engine.name(9, "Z");
        assert!(
            engine
                .instruments
                .last()
                .is_some_and(|i| i.market.is_suspect)
        );
        engine.quoted(100, 1, 100);
        assert!(!engine.is_frozen(0));
    }
}
