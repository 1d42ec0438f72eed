//! Every known ITCH message becomes at least one DBN record, with nothing made up: what the venue
//! did not say, or refers to what we never saw, is undefined in the record and flagged.
//!
//! | type | records |
//! |---|---|
//! | S system event | `StatusMsg` of instrument 0, reason scheduled, event change of session: O none, S pre-open, Q trading, M close, E post-close, C not available |
//! | R directory | `InstrumentDefMsg`: raw_symbol, round lot, currency, exchange; security_type = classification and sub-type; inst_attrib_value = ETP leverage; group = the 12 code bytes in wire order (market category, financial status, round lots only, classification, sub-type ×2, authenticity, short sale threshold, IPO, LULD tier, ETP, inverse) |
//! | H trading action | `StatusMsg`: halt, pause, quoting or trading, with DBN's reason for the venue's code |
//! | h operational halt | `StatusMsg`: halt or trading for market Q; action none for another market; reason operational |
//! | Y Reg SHO | `StatusMsg` SSR change |
//! | W breaker breached | `StatusMsg` of instrument 0: halt, reason level 1, 2 or 3 |
//! | V breaker levels | three `StatMsg` of instrument 0: levels 1, 2, 3 |
//! | J auction collar | three `StatMsg`: reference, upper, lower; quantity = extensions |
//! | K IPO quoting | `StatMsg` venue-specific price: price, ts_ref = release time, quantity = qualifier byte, deleted when cancelled |
//! | L participant | `StatMsg` venue-specific volume: quantity = MPID, primary, mode, state as 7 big-endian ASCII bytes |
//! | N retail interest | `StatMsg` venue-specific volume: quantity = the interest byte |
//! | I imbalance | `ImbalanceMsg`: near price = continuous book, far = auction interest alone; auction_type, significant_imbalance = price variation, auction_status = the direction byte; a price of 0 is undefined |
//! | O direct listing | `ImbalanceMsg` (near price as indicative match, its time, collars, auction_status = eligibility byte, auction_type O) and two `StatMsg` (lower and upper price limit) |
//! | A, F add | `MboMsg` A. The MPID has no field in DBN and is dropped |
//! | E executed | `MboMsg` T (aggressor's side), F (resting order), C (size executed): only C changes a book |
//! | C executed at a price | as E, with T and F at the execution's price; without T when not printable, as a later Q counts it |
//! | X, D cancel | `MboMsg` C of the size taken off |
//! | U replace | `MboMsg` C of the old order, A of the new one with the old one's side |
//! | P trade | `MboMsg` T without side |
//! | Q cross | `MboMsg` T without side, and where shares were crossed a `StatMsg` (opening, closing or uncrossing price; quantity = all shares) |
//! | B broken trade | `MboMsg` without action: order_id = the match number |
//!
//! T records carry the *match number* as order_id, so that B can be related to them; F, C and A
//! the order reference. The last `MboMsg` of a message has the flag LAST. `StatMsg::stat_flags` of
//! venue-specific kinds is the message's type byte.
//!
//! A message about an *unknown order* (late join, loss, a full order table) is counted, and its
//! records have flag PUBLISHER_SPECIFIC, no side and no price. D and U give a C whose size is
//! [`UNDEF_ORDER_SIZE`]: all that remains. The new order of such a U is not added: no side, no
//! place in a book. Where more is taken off than an order has, C has what it had.
//!
//! 64-bit quantities beyond 32 bits become [`SATURATED`], are counted, and `MboMsg`s flagged
//! PUBLISHER_SPECIFIC. Where the receive time is unknown, ts_recv is the venue's time and
//! `MboMsg`s have the flag BAD_TS_RECV. A stock that no R announced is named by a
//! `SymbolMappingMsg` before its first record.

use dbn::{Publisher, StatUpdateAction};
use tickcast_reliability::record::{
    Action, RecordBatch, Side, StatMsg, StatType, StatusAction, StatusMsg, StatusReason,
    TradingEvent, TriState, UNDEF_ORDER_SIZE, UNDEF_PRICE, UNDEF_TIMESTAMP, flags,
};
use tickcast_reliability::types::{Nanos, SourcePosition};

pub use super::records::SATURATED;
use super::{
    clock::SessionClock,
    messages::{self, Head, ItchMessage, OrderReplace, ParseError, Stock},
    orders::{Order, Orders},
    records::{
        Stamp, definition, direct_listing, imbalance, mapping, mbo, participant, price,
        price_from_e8, price_if_any, quantity, side_of, stat, status, system_event, trading_action,
    },
};
use crate::instruments::Symbol;
use crate::source::{Incident, MessageCounts, Sink, clamped_difference};

/// Makes records of messages; knows the open orders and the stocks seen.
#[derive(Clone, Debug)]
pub struct Normaliser {
    publisher_id: u16,
    /// The session's clock.
    pub clock: SessionClock,
    orders: Orders,
    /// Each locate's symbol as told; zeros: not yet.
    symbols: Box<[Stock]>,
    counts: MessageCounts,
    batch: RecordBatch,
}

impl Normaliser {
    /// A normaliser that keeps at most `orders_max` orders.
    #[must_use]
    pub fn new(publisher_id: u16, orders_max: usize) -> Self {
        Self {
            publisher_id,
            clock: SessionClock::default(),
            orders: Orders::new(orders_max),
            symbols: vec![[0; 8]; 1 << 16].into_boxed_slice(),
            counts: MessageCounts::default(),
            batch: RecordBatch::with_capacity(2048),
        }
    }

    /// XNAS.ITCH as the publisher of records.
    pub const XNAS_ITCH: u16 = Publisher::XnasItchXnas as u16;

    /// Messages by type.
    #[must_use]
    pub const fn counts(&self) -> &MessageCounts {
        &self.counts
    }

    /// The orders that are open.
    #[must_use]
    pub const fn orders(&self) -> &Orders {
        &self.orders
    }

    /// Another session: references and locates count anew.
    pub fn begin_session(&mut self, clock: SessionClock) {
        self.clock = clock;
        self.orders.clear();
        self.symbols.fill([0; 8]);
    }

    /// Continues the session of another normaliser, which named these locates.
    pub(super) fn resume(&mut self, named: &[(u32, Symbol)]) {
        for (locate, symbol) in named {
            if let Some(named) = self.symbols.get_mut(*locate as usize) {
                *named = symbol.0;
            }
        }
    }

    /// Hands `sink` the records of one message.
    #[inline]
    pub fn message(
        &mut self,
        position: SourcePosition,
        received_at: Nanos,
        bytes: &[u8],
        sink: &mut dyn Sink,
    ) {
        let Some(&kind) = bytes.first() else {
            return empty(position, sink);
        };
        self.counts.add(kind);
        // The kinds that make up nearly all of a day are told apart once: each has its own copy of
        // what follows, in which the compiler knows what it has.
        macro_rules! often {
            ($($name:ident),+) => {
                match kind {
                    $(messages::$name::KIND => if let Some(chunk) = bytes.first_chunk() {
                        let message = ItchMessage::$name(messages::$name::read(chunk));
                        return self.tell(&message, position, received_at, sink);
                    })+
                    _ => {}
                }
            };
        }
        often!(
            AddOrder,
            OrderDelete,
            OrderExecuted,
            OrderReplace,
            OrderCancel,
            AddOrderMpid,
            OrderExecutedPrice,
            Trade
        );
        self.decode_rare(bytes, position, received_at, sink);
    }

    #[inline(never)]
    fn decode_rare(
        &mut self,
        bytes: &[u8],
        position: SourcePosition,
        received_at: Nanos,
        sink: &mut dyn Sink,
    ) {
        match ItchMessage::read(bytes) {
            Ok(message) => self.tell(&message, position, received_at, sink),
            Err(ParseError::Empty) => empty(position, sink),
            Err(ParseError::Short { .. }) => {
                let reason = "ITCH message shorter than its type";
                sink.incident(Incident::UnreadableMessage { position, reason });
            }
            Err(ParseError::Unknown { kind }) => sink.incident(Incident::UnknownMessage { kind }),
        }
    }

    #[inline(always)]
    fn tell(
        &mut self,
        message: &ItchMessage,
        position: SourcePosition,
        received_at: Nanos,
        sink: &mut dyn Sink,
    ) {
        self.batch.clear();
        let incident = self.records(message, position, received_at);
        sink.message(position, &self.batch);
        if let Some(incident) = incident {
            sink.incident(incident);
        }
    }

    #[inline(always)]
    fn stamp(&self, head: Head, position: SourcePosition, received_at: Nanos) -> Stamp {
        let ts_event = self.clock.utc(head.timestamp);
        let known = received_at != Nanos::ZERO;
        let ts_recv = if known { received_at.0 } else { ts_event };
        let delta = match ts_event {
            UNDEF_TIMESTAMP => 0,
            _ => clamped_difference(ts_recv, ts_event),
        };
        Stamp {
            publisher_id: self.publisher_id,
            locate: head.locate,
            // The low 32 bits: DBN's field is no wider, and the position keeps all 48.
            sequence: position.sequence() as u32,
            ts_event,
            ts_recv,
            ts_in_delta: delta,
            flags: if known { 0 } else { flags::BAD_TS_RECV },
        }
    }

    #[inline(always)]
    fn records(
        &mut self,
        message: &ItchMessage,
        position: SourcePosition,
        received_at: Nanos,
    ) -> Option<Incident> {
        let stamp = self.stamp(message.head(), position, received_at);
        match message {
            ItchMessage::AddOrder(m) => {
                self.name(stamp, m.stock);
                return self.add(stamp, m.reference, m.side, m.shares, m.price);
            }
            ItchMessage::AddOrderMpid(m) => {
                self.name(stamp, m.stock);
                return self.add(stamp, m.reference, m.side, m.shares, m.price);
            }
            ItchMessage::OrderExecuted(m) => {
                return self.execute(stamp, m.reference, m.shares, None, Some(m.match_number));
            }
            ItchMessage::OrderExecutedPrice(m) => {
                let print = (m.printable == b'Y').then_some(m.match_number);
                return self.execute(stamp, m.reference, m.shares, Some(price(m.price)), print);
            }
            ItchMessage::OrderCancel(m) => {
                return self.take_off(stamp, m.reference, m.shares, m.shares);
            }
            ItchMessage::OrderDelete(m) => {
                return self.take_off(stamp, m.reference, u32::MAX, UNDEF_ORDER_SIZE);
            }
            ItchMessage::OrderReplace(m) => {
                return self.replace(stamp, m);
            }
            ItchMessage::Trade(m) => {
                self.name(stamp, m.stock);
                let (side, last) = (Side::None, flags::LAST);
                let trade = (m.match_number, price(m.price), m.shares);
                self.batch
                    .put_words(&mbo(stamp, Action::Trade, side, trade, last));
            }
            ItchMessage::CrossTrade(m) => {
                self.name(stamp, m.stock);
                let (size, saturated) = quantity(m.shares);
                let at = if m.shares == 0 {
                    price_if_any(m.price)
                } else {
                    price(m.price)
                };
                let last = flags::LAST
                    | if saturated {
                        flags::PUBLISHER_SPECIFIC
                    } else {
                        0
                    };
                let trade = (m.match_number, at, size);
                self.batch
                    .put_words(&mbo(stamp, Action::Trade, Side::None, trade, last));
                if m.shares > 0 {
                    let kind = match m.cross_type {
                        b'O' => StatType::OpeningPrice,
                        b'C' => StatType::ClosePrice,
                        _ => StatType::UncrossingPrice,
                    };
                    let quantity = i64::try_from(m.shares).unwrap_or(i64::MAX);
                    self.batch.put(&StatMsg {
                        price: at,
                        quantity,
                        ..stat(stamp, kind)
                    });
                }
                return saturated.then_some(Incident::Saturated);
            }
            ItchMessage::BrokenTrade(m) => {
                let broken = (m.match_number, UNDEF_PRICE, 0);
                self.batch
                    .put_words(&mbo(stamp, Action::None, Side::None, broken, flags::LAST));
            }
            ItchMessage::Imbalance(m) => {
                self.name(stamp, m.stock);
                return imbalance(&mut self.batch, stamp, m);
            }
            ItchMessage::SystemEvent(m) => {
                let (action, trading) = system_event(m.event);
                self.batch.put(&StatusMsg {
                    action: action as u16,
                    reason: StatusReason::Scheduled as u16,
                    trading_event: TradingEvent::ChangeTradingSession as u16,
                    is_trading: trading as _,
                    is_quoting: trading as _,
                    ..status(stamp)
                });
            }
            ItchMessage::StockDirectory(m) => {
                // Its definition names it; no mapping is needed before.
                self.symbols[usize::from(m.head.locate)] = m.stock;
                definition(&mut self.batch, stamp, m);
            }
            ItchMessage::TradingAction(m) => {
                self.name(stamp, m.stock);
                self.batch.put(&trading_action(stamp, m));
            }
            ItchMessage::OperationalHalt(m) => {
                self.name(stamp, m.stock);
                let (action, trading) = match (m.market, m.action) {
                    (b'Q', b'H') => (StatusAction::Halt, TriState::No),
                    (b'Q', b'T') => (StatusAction::Trading, TriState::Yes),
                    _ => (StatusAction::None, TriState::NotAvailable),
                };
                self.batch.put(&StatusMsg {
                    action: action as u16,
                    reason: StatusReason::Operational as u16,
                    is_trading: trading as _,
                    is_quoting: trading as _,
                    ..status(stamp)
                });
            }
            ItchMessage::RegSho(m) => {
                self.name(stamp, m.stock);
                let restricted = match m.action {
                    b'0' => TriState::No,
                    b'1' | b'2' => TriState::Yes,
                    _ => TriState::NotAvailable,
                };
                self.batch.put(&StatusMsg {
                    action: StatusAction::SsrChange as u16,
                    is_short_sell_restricted: restricted as _,
                    ..status(stamp)
                });
            }
            ItchMessage::DeclineStatus(m) => {
                let reason = match m.level {
                    b'1' => StatusReason::MarketWideHaltLevel1,
                    b'2' => StatusReason::MarketWideHaltLevel2,
                    b'3' => StatusReason::MarketWideHaltLevel3,
                    _ => StatusReason::None,
                };
                self.batch.put(&StatusMsg {
                    action: StatusAction::Halt as u16,
                    reason: reason as u16,
                    is_trading: TriState::No as _,
                    ..status(stamp)
                });
            }
            ItchMessage::DeclineLevels(m) => {
                let kinds = [
                    StatType::MwcbLevel1,
                    StatType::MwcbLevel2,
                    StatType::MwcbLevel3,
                ];
                let levels = [m.level_1, m.level_2, m.level_3];
                let prices = levels.map(price_from_e8);
                for (kind, price) in kinds.into_iter().zip(prices) {
                    let price = price.unwrap_or(UNDEF_PRICE);
                    self.batch.put(&StatMsg {
                        price,
                        ..stat(stamp, kind)
                    });
                }
                return prices.contains(&None).then_some(Incident::Saturated);
            }
            ItchMessage::AuctionCollar(m) => {
                self.name(stamp, m.stock);
                for (kind, at) in [
                    (StatType::AuctionCollarReferencePrice, m.reference),
                    (StatType::AuctionCollarUpperPrice, m.upper),
                    (StatType::AuctionCollarLowerPrice, m.lower),
                ] {
                    let (price, quantity) = (price(at), i64::from(m.extensions));
                    self.batch.put(&StatMsg {
                        price,
                        quantity,
                        ..stat(stamp, kind)
                    });
                }
            }
            ItchMessage::IpoQuoting(m) => {
                self.name(stamp, m.stock);
                let release = u64::from(m.release_time_s) * 1_000_000_000;
                let action = match m.qualifier {
                    b'C' => StatUpdateAction::Delete,
                    _ => StatUpdateAction::New,
                };
                self.batch.put(&StatMsg {
                    price: price_if_any(m.price),
                    quantity: i64::from(m.qualifier),
                    ts_ref: self.time_if_any(release),
                    update_action: action as u8,
                    stat_flags: b'K',
                    ..stat(stamp, StatType::VenueSpecificPrice1)
                });
            }
            ItchMessage::ParticipantPosition(m) => {
                self.name(stamp, m.stock);
                self.batch.put(&StatMsg {
                    quantity: participant(m),
                    stat_flags: b'L',
                    ..stat(stamp, StatType::VenueSpecificVolume1)
                });
            }
            ItchMessage::RetailInterest(m) => {
                self.name(stamp, m.stock);
                self.batch.put(&StatMsg {
                    quantity: i64::from(m.interest),
                    stat_flags: b'N',
                    ..stat(stamp, StatType::VenueSpecificVolume1)
                });
            }
            ItchMessage::DirectListing(m) => {
                self.name(stamp, m.stock);
                let near_at = self.time_if_any(m.near_time);
                direct_listing(&mut self.batch, stamp, m, near_at);
            }
        }
        None
    }

    /// Names a stock that no directory message announced, once.
    #[inline(always)]
    fn name(&mut self, stamp: Stamp, stock: Stock) {
        // As whole words: compared in one go.
        let reported = self.symbols[usize::from(stamp.locate)];
        if u64::from_ne_bytes(reported) != u64::from_ne_bytes(stock) && stamp.locate != 0 {
            self.name_anew(stamp, stock);
        }
    }

    #[cold]
    fn name_anew(&mut self, stamp: Stamp, stock: Stock) {
        self.symbols[usize::from(stamp.locate)] = stock;
        self.batch.put(&mapping(stamp, &stock, self.clock.utc(0)));
    }

    #[inline(always)]
    fn add(
        &mut self,
        stamp: Stamp,
        reference: u64,
        side: u8,
        shares: u32,
        at: u32,
    ) -> Option<Incident> {
        let buys = side == b'B';
        let order = Order {
            price: at,
            shares,
            locate: stamp.locate,
            buys,
        };
        let record = (reference, price(at), shares);
        let known = buys || side == b'S';
        let side = if known { side_of(buys) } else { Side::None };
        self.batch
            .put_words(&mbo(stamp, Action::Add, side, record, flags::LAST));
        if !known {
            let reason = "ITCH order whose side is neither B nor S";
            return Some(Incident::Malformed { reason });
        }
        // A refusal is counted by the table, and each later message of the order is an incident.
        self.orders.insert(reference, order);
        None
    }

    #[inline(always)]
    fn execute(
        &mut self,
        stamp: Stamp,
        reference: u64,
        shares: u32,
        at: Option<i64>,
        print: Option<u64>,
    ) -> Option<Incident> {
        let order = self.orders.reduce(reference, shares);
        let mut incident = None;
        let (side, aggressor, resting, size, mark) = match order {
            Some(order) => {
                let (side, aggressor) = (side_of(order.buys), side_of(!order.buys));
                incident = over(shares, order);
                (
                    side,
                    aggressor,
                    price(order.price),
                    shares.min(order.shares),
                    0,
                )
            }
            None => {
                incident = incident.or(Some(Incident::UnknownOrder));
                (
                    Side::None,
                    Side::None,
                    UNDEF_PRICE,
                    shares,
                    flags::PUBLISHER_SPECIFIC,
                )
            }
        };
        let at = at.unwrap_or(resting);
        if let Some(number) = print {
            let trade = (number, at, shares);
            self.batch
                .put_words(&mbo(stamp, Action::Trade, aggressor, trade, mark));
        }
        let fill = (reference, at, shares);
        self.batch
            .put_words(&mbo(stamp, Action::Fill, side, fill, mark));
        let cancel = (reference, resting, size);
        self.batch.put_words(&mbo(
            stamp,
            Action::Cancel,
            side,
            cancel,
            mark | flags::LAST,
        ));
        incident
    }

    /// A cancel of `shares`; `unknown` is the size to tell when the order is not known.
    #[inline(always)]
    fn take_off(
        &mut self,
        stamp: Stamp,
        reference: u64,
        shares: u32,
        unknown: u32,
    ) -> Option<Incident> {
        let Some(order) = self.orders.reduce(reference, shares) else {
            let cancel = (reference, UNDEF_PRICE, unknown);
            let mark = flags::LAST | flags::PUBLISHER_SPECIFIC;
            self.batch
                .put_words(&mbo(stamp, Action::Cancel, Side::None, cancel, mark));
            return Some(Incident::UnknownOrder);
        };
        let cancel = (reference, price(order.price), shares.min(order.shares));
        let side = side_of(order.buys);
        self.batch
            .put_words(&mbo(stamp, Action::Cancel, side, cancel, flags::LAST));
        // A delete names no size, so it can't be too much.
        if unknown == UNDEF_ORDER_SIZE {
            None
        } else {
            over(shares, order)
        }
    }

    #[inline(always)]
    fn replace(&mut self, stamp: Stamp, m: &OrderReplace) -> Option<Incident> {
        let Some(old) = self.orders.remove(m.reference) else {
            let cancel = (m.reference, UNDEF_PRICE, UNDEF_ORDER_SIZE);
            let mark = flags::LAST | flags::PUBLISHER_SPECIFIC;
            self.batch
                .put_words(&mbo(stamp, Action::Cancel, Side::None, cancel, mark));
            return Some(Incident::UnknownOrder);
        };
        let side = side_of(old.buys);
        let cancel = (m.reference, price(old.price), old.shares);
        self.batch
            .put_words(&mbo(stamp, Action::Cancel, side, cancel, 0));
        let add = (m.new_reference, price(m.price), m.shares);
        self.batch
            .put_words(&mbo(stamp, Action::Add, side, add, flags::LAST));
        let order = Order {
            price: m.price,
            shares: m.shares,
            ..old
        };
        self.orders.insert(m.new_reference, order);
        None
    }

    fn time_if_any(&self, since_midnight: u64) -> u64 {
        match since_midnight {
            0 => UNDEF_TIMESTAMP,
            ns => self.clock.utc(ns),
        }
    }
}

#[cold]
fn empty(position: SourcePosition, sink: &mut dyn Sink) {
    let reason = "an ITCH message is empty";
    sink.incident(Incident::UnreadableMessage { position, reason });
}

#[inline]
const fn over(shares: u32, order: Order) -> Option<Incident> {
    if shares <= order.shares {
        return None;
    }
    let reason = "ITCH message takes more shares off an order than it has";
    Some(Incident::Malformed { reason })
}
