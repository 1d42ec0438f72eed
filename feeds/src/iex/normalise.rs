//! Normalises IEX messages to DBN records, by fixed rules.
//!
//! | message | record | LAST | notes |
//! |---|---|---|---|
//! | `8` `5` price level | `MboMsg`, MBP | event flag 1 | order id 0; size is the level's new total; Modify, or Cancel with size 0 when the level is gone |
//! | `Q` quote | `Mbp1Msg`, TOB | yes | both sides in `levels[0]`; Modify, side None, no price and size of its own, since a quote may change both sides |
//! | `T` trade | `TradeMsg` | in TOPS | side None: IEX names no aggressor |
//! | `B` trade break | `TradeMsg` | yes | action Cancel: the trade of this size and price is void |
//! | `S` | `StatusMsg` | | instrument 0; `ChangeTradingSession` at start and end of messages |
//! | `H` `O` `P` `E` `I` | `StatusMsg` | | what a message does not say stays `~` |
//! | `D` | `InstrumentDefMsg` | | |
//! | `X` | `StatMsg` | | opening or closing price |
//! | `A` | `ImbalanceMsg` | | |
//!
//! A level update states the level's total, so whether the level is new need not be known, and a
//! book that keeps totals applies Modify and Cancel alike. DEEP puts a trade *before* the level
//! updates of its event and never says on the trade whether any follow (a trade against hidden
//! orders has none), so a DEEP trade never carries LAST: the event's last level update does.
//!
//! Not carried, since DBN has no field: trade id, sale condition, LULD tier, adjusted close, a
//! quote's session flags, the retail indicator, the reference price of a collar.
//!
//! Prices are multiplied from 1e-4 to 1e-9. Absent prices (0 on an empty side, and 0 as an
//! auction or official price) and prices beyond the range become `UNDEF_PRICE`. Source: the
//! `dbn` crate's field and enum documentation.

use std::ffi::c_char;

use dbn::{InstrumentClass, publishers::Publisher};
use tickcast_reliability::record::{
    Action, BidAskPair, FlagSet, ImbalanceMsg, InstrumentDefMsg, MboMsg, Mbp1Msg, RecordBatch,
    RecordHeader, Side, StatMsg, StatType, StatusAction, StatusMsg, StatusReason, TradeMsg,
    TradingEvent, TriState, UNDEF_PRICE, UNDEF_TIMESTAMP, WireRecord, flags,
};

use super::{
    messages::{
        Auction, IexMessage, OfficialPrice, PriceLevel, Quote, SecurityDirectory, Trade,
        TradingStatus,
    },
    transport::IexFeed,
};
use crate::instruments::text;
use crate::source::clamped_difference;

/// DBN's only id for a feed that comes from IEX itself is that of TOPS; DEEP has none of its own.
/// The two are told apart by their source.
pub const PUBLISHER_ID: u16 = Publisher::IexgTopsIexg as u16;

/// Fields that all records of a message share.
#[derive(Clone, Copy, Debug)]
pub struct Stamp {
    instrument: u32,
    ts_event: u64,
    ts_recv: u64,
    ts_in_delta: i32,
    sequence: u32,
    quality: u8,
}

impl Stamp {
    /// The stamp of one message of `instrument`, which the venue dates `ts_event`, sent in a
    /// segment at `sent_at` and that was received at `received_at` (0: unknown; then the venue's
    /// time stands in and records with flags say BAD_TS_RECV). Times are ns since 1970, UTC; of
    /// the venue's sequence the low 32 bits are kept.
    #[inline]
    #[must_use]
    pub fn new(
        instrument: u32,
        ts_event: u64,
        received_at: u64,
        sent_at: u64,
        sequence: u64,
    ) -> Self {
        let is_known = received_at != 0;
        let delta = clamped_difference(received_at, sent_at);
        Self {
            instrument,
            ts_event,
            ts_recv: if is_known { received_at } else { ts_event },
            ts_in_delta: if is_known { delta } else { 0 },
            sequence: sequence as u32,
            quality: if is_known { 0 } else { flags::BAD_TS_RECV },
        }
    }

    #[inline]
    const fn header<R: WireRecord>(&self) -> RecordHeader {
        RecordHeader::new::<R>(R::RTYPE, PUBLISHER_ID, self.instrument, self.ts_event)
    }

    const fn flags(&self, flags: u8) -> FlagSet {
        FlagSet::new(flags | self.quality)
    }
}

/// Appends the message's records. False when a price did not fit and is undefined.
#[inline(always)]
pub fn push(message: &IexMessage, feed: IexFeed, stamp: &Stamp, batch: &mut RecordBatch) -> bool {
    let mut price = Prices { all_fit: true };
    match message {
        IexMessage::Buy(m) => batch.put_words(&level(m, Side::Bid, stamp, &mut price)),
        IexMessage::Sell(m) => batch.put_words(&level(m, Side::Ask, stamp, &mut price)),
        IexMessage::Quote(m) => batch.put_words(&quote(m, stamp, &mut price)),
        IexMessage::Trade(m) => {
            let last = match feed {
                IexFeed::Tops => flags::LAST,
                IexFeed::Deep => 0,
            };
            batch.put_words(&trade(m, Action::Trade, last, stamp, &mut price));
        }
        IexMessage::TradeBreak(m) => {
            batch.put_words(&trade(m, Action::Cancel, flags::LAST, stamp, &mut price));
        }
        IexMessage::SystemEvent(m) => batch.put(&system_event(m.event, stamp)),
        IexMessage::TradingStatus(m) => batch.put(&trading_status(m, stamp)),
        IexMessage::OperationalHalt(m) => batch.put(&operational_halt(m.status, stamp)),
        IexMessage::ShortSale(m) => batch.put(&short_sale(m.in_effect, m.detail, stamp)),
        IexMessage::SecurityEvent(m) => batch.put(&security_event(m.event, stamp)),
        IexMessage::RetailLiquidity(_) => batch.put(&status(stamp)),
        IexMessage::SecurityDirectory(m) => batch.put(&definition(m, stamp)),
        IexMessage::OfficialPrice(m) => batch.put(&official_price(m, stamp, &mut price)),
        IexMessage::Auction(m) => batch.put(&auction(m, stamp, &mut price)),
    }
    price.all_fit
}

/// From 4 implied decimals to 9.
struct Prices {
    all_fit: bool,
}

impl Prices {
    #[inline]
    fn fixed(&mut self, price: i64) -> i64 {
        match price.checked_mul(100_000) {
            Some(price) => price,
            None => {
                self.all_fit = false;
                UNDEF_PRICE
            }
        }
    }

    /// As [`Prices::fixed`], for fields where 0 means that there is no price.
    #[inline]
    fn fixed_unless_zero(&mut self, price: i64) -> i64 {
        if price == 0 {
            UNDEF_PRICE
        } else {
            self.fixed(price)
        }
    }
}

#[inline]
fn level(m: &PriceLevel, side: Side, stamp: &Stamp, price: &mut Prices) -> MboMsg {
    let last = if m.event_flags & 1 == 1 {
        flags::LAST
    } else {
        0
    };
    let action = if m.size == 0 {
        Action::Cancel
    } else {
        Action::Modify
    };
    MboMsg {
        hd: stamp.header::<MboMsg>(),
        order_id: 0,
        price: price.fixed(m.price),
        size: m.size,
        flags: stamp.flags(flags::MBP | last),
        channel_id: 0,
        action: action as c_char,
        side: side as c_char,
        ts_recv: stamp.ts_recv,
        ts_in_delta: stamp.ts_in_delta,
        sequence: stamp.sequence,
    }
}

#[inline]
fn quote(m: &Quote, stamp: &Stamp, price: &mut Prices) -> Mbp1Msg {
    Mbp1Msg {
        hd: stamp.header::<Mbp1Msg>(),
        price: UNDEF_PRICE,
        size: 0,
        action: Action::Modify as c_char,
        side: Side::None as c_char,
        flags: stamp.flags(flags::LAST | flags::TOB),
        depth: 0,
        ts_recv: stamp.ts_recv,
        ts_in_delta: stamp.ts_in_delta,
        sequence: stamp.sequence,
        // How many orders stand behind a side is not published.
        levels: [BidAskPair {
            bid_px: price.fixed_unless_zero(m.bid_price),
            ask_px: price.fixed_unless_zero(m.ask_price),
            bid_sz: m.bid_size,
            ask_sz: m.ask_size,
            bid_ct: 0,
            ask_ct: 0,
        }],
    }
}

#[inline]
fn trade(m: &Trade, action: Action, last: u8, stamp: &Stamp, price: &mut Prices) -> TradeMsg {
    TradeMsg {
        hd: stamp.header::<TradeMsg>(),
        price: price.fixed(m.price),
        size: m.size,
        action: action as c_char,
        side: Side::None as c_char,
        flags: stamp.flags(last),
        depth: 0,
        ts_recv: stamp.ts_recv,
        ts_in_delta: stamp.ts_in_delta,
        sequence: stamp.sequence,
    }
}

/// A status that says nothing yet: DBN's default.
fn status(stamp: &Stamp) -> StatusMsg {
    StatusMsg {
        hd: stamp.header::<StatusMsg>(),
        ts_recv: stamp.ts_recv,
        ..StatusMsg::default()
    }
}

fn system_event(event: u8, stamp: &Stamp) -> StatusMsg {
    use StatusAction::{Close, None, NotAvailableForTrading, PostClose, PreOpen, Trading};
    let (action, is_trading) = match event {
        b'O' | b'C' => (NotAvailableForTrading, TriState::No),
        b'S' => (PreOpen, TriState::NotAvailable),
        b'R' => (Trading, TriState::Yes),
        b'M' => (PostClose, TriState::NotAvailable),
        b'E' => (Close, TriState::No),
        _ => (None, TriState::NotAvailable),
    };
    let trading_event = match event {
        b'O' | b'C' => TradingEvent::ChangeTradingSession,
        _ => TradingEvent::None,
    };
    StatusMsg {
        action: action as u16,
        reason: StatusReason::Scheduled as u16,
        trading_event: trading_event as u16,
        is_trading: is_trading as c_char,
        ..status(stamp)
    }
}

fn trading_status(m: &TradingStatus, stamp: &Stamp) -> StatusMsg {
    let (action, is_trading, is_quoting) = match m.status {
        b'H' => (StatusAction::Halt, TriState::No, TriState::No),
        // Orders are taken for the auction that ends the halt, but none is quoted or traded.
        b'O' => (StatusAction::PreCross, TriState::No, TriState::No),
        b'P' => (StatusAction::Pause, TriState::No, TriState::No),
        b'T' => (StatusAction::Trading, TriState::Yes, TriState::Yes),
        _ => (
            StatusAction::None,
            TriState::NotAvailable,
            TriState::NotAvailable,
        ),
    };
    let reason = match m.reason.trim_ascii_end() {
        b"T1" => StatusReason::NewsPending,
        b"T2" => StatusReason::NewsReleased,
        b"T3" => StatusReason::NewsAndResumptionTimes,
        b"T5" => StatusReason::LuldPause,
        b"IPO1" | b"IPOD" | b"IPO2" | b"IPO3" => StatusReason::NewSecurityOffering,
        b"MCB1" => StatusReason::MarketWideHaltLevel1,
        b"MCB2" => StatusReason::MarketWideHaltLevel2,
        b"MCB3" => StatusReason::MarketWideHaltLevel3,
        _ => StatusReason::None,
    };
    StatusMsg {
        action: action as u16,
        reason: reason as u16,
        is_trading: is_trading as c_char,
        is_quoting: is_quoting as c_char,
        ..status(stamp)
    }
}

fn operational_halt(halt: u8, stamp: &Stamp) -> StatusMsg {
    match halt {
        b'O' => StatusMsg {
            action: StatusAction::Halt as u16,
            reason: StatusReason::Operational as u16,
            is_trading: TriState::No as c_char,
            is_quoting: TriState::No as c_char,
            ..status(stamp)
        },
        // Not halted by this venue; whether it trades is what the trading status says.
        _ => StatusMsg {
            reason: StatusReason::Operational as u16,
            ..status(stamp)
        },
    }
}

fn short_sale(in_effect: u8, detail: u8, stamp: &Stamp) -> StatusMsg {
    let is_restricted = match in_effect {
        0 => TriState::No,
        1 => TriState::Yes,
        _ => TriState::NotAvailable,
    };
    let reason = match detail {
        // An intraday price drop set it off.
        b'A' => StatusReason::MarketEvent,
        b'C' | b'D' => StatusReason::Scheduled,
        _ => StatusReason::None,
    };
    StatusMsg {
        action: StatusAction::SsrChange as u16,
        reason: reason as u16,
        is_short_sell_restricted: is_restricted as c_char,
        ..status(stamp)
    }
}

fn security_event(event: u8, stamp: &Stamp) -> StatusMsg {
    let action = match event {
        b'O' => StatusAction::Trading,
        b'C' => StatusAction::Close,
        _ => StatusAction::None,
    };
    StatusMsg {
        action: action as u16,
        reason: StatusReason::Scheduled as u16,
        ..status(stamp)
    }
}

fn definition(m: &SecurityDirectory, stamp: &Stamp) -> InstrumentDefMsg {
    let security_type: &[u8] = if m.flags & 0x20 != 0 { b"ETP" } else { b"" };
    let subtype: &[u8] = match m.flags {
        f if f & 0x80 != 0 => b"TEST",
        f if f & 0x40 != 0 => b"WI",
        _ => b"",
    };
    InstrumentDefMsg {
        hd: stamp.header::<InstrumentDefMsg>(),
        ts_recv: stamp.ts_recv,
        display_factor: dbn::FIXED_PRICE_SCALE,
        min_lot_size_round_lot: i32::try_from(m.round_lot).unwrap_or(i32::MAX),
        raw_instrument_id: u64::from(stamp.instrument),
        currency: text(b"USD"),
        raw_symbol: text(m.symbol.to_string().as_bytes()),
        exchange: text(b"IEXG"),
        security_type: text(security_type),
        secsubtype: text(subtype),
        instrument_class: InstrumentClass::Stock as c_char,
        ..InstrumentDefMsg::default()
    }
}

fn official_price(m: &OfficialPrice, stamp: &Stamp, price: &mut Prices) -> StatMsg {
    let stat_type = match m.kind {
        b'Q' => StatType::OpeningPrice as u16,
        b'M' => StatType::ClosePrice as u16,
        // No statistic that DBN knows.
        _ => 0,
    };
    StatMsg {
        hd: stamp.header::<StatMsg>(),
        ts_recv: stamp.ts_recv,
        ts_ref: stamp.ts_event,
        price: price.fixed_unless_zero(m.price),
        sequence: stamp.sequence,
        ts_in_delta: stamp.ts_in_delta,
        stat_type,
        channel_id: 0,
        ..StatMsg::default()
    }
}

fn auction(m: &Auction, stamp: &Stamp, price: &mut Prices) -> ImbalanceMsg {
    let side = match m.imbalance_side {
        b'B' => Side::Bid,
        b'S' => Side::Ask,
        _ => Side::None,
    };
    let indicative = price.fixed_unless_zero(m.indicative_clearing);
    ImbalanceMsg {
        hd: stamp.header::<ImbalanceMsg>(),
        ts_recv: stamp.ts_recv,
        ref_price: price.fixed_unless_zero(m.reference),
        auction_time: match m.scheduled_s {
            0 => UNDEF_TIMESTAMP,
            s => u64::from(s) * 1_000_000_000,
        },
        // All eligible orders, continuous ones among them, against those on the auction book.
        cont_book_clr_price: indicative,
        auct_interest_clr_price: price.fixed_unless_zero(m.book_clearing),
        ind_match_price: indicative,
        upper_collar: price.fixed_unless_zero(m.collar_upper),
        lower_collar: price.fixed_unless_zero(m.collar_lower),
        paired_qty: m.paired,
        total_imbalance_qty: m.imbalance,
        auction_type: m.kind as c_char,
        side: side as c_char,
        num_extensions: m.extensions,
        ..ImbalanceMsg::default()
    }
}
