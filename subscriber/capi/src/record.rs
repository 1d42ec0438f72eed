//! Records for C: the layouts of DBN version 3, byte for byte. The compiler checks them against the `dbn`
//! crate that the wire format freezes (docs/PROTOCOL.md §3.2).
//!
//! The types of `tickcast_subscriber::record` with the same names document the fields.

#![allow(
    missing_docs,
    reason = "the fields are those of the `dbn` crate, and documented there"
)]
#![allow(clippy::pub_underscore_fields, reason = "names are the `dbn` crate's")]

use std::ffi::c_char;
use std::mem::offset_of;

use tickcast_subscriber::record;

/// The types of records, in `rtype` of their header.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub enum RecordType {
    /// [`TradeMsg`].
    Trade = 0x00,
    /// [`Mbp1Msg`].
    Mbp1 = 0x01,
    /// [`StatusMsg`].
    Status = 0x12,
    /// [`InstrumentDefMsg`].
    InstrumentDef = 0x13,
    /// [`ImbalanceMsg`].
    Imbalance = 0x14,
    /// [`SymbolMappingMsg`].
    SymbolMapping = 0x16,
    /// [`StatMsg`].
    Statistics = 0x18,
    /// [`MboMsg`].
    Mbo = 0xa0,
}

/// The beginning of every record.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RecordHeader {
    pub length: u8,
    pub rtype: u8,
    pub publisher_id: u16,
    pub instrument_id: u32,
    pub ts_event: u64,
}

/// One price level of both sides.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct BidAskPair {
    pub bid_px: i64,
    pub ask_px: i64,
    pub bid_sz: u32,
    pub ask_sz: u32,
    pub bid_ct: u32,
    pub ask_ct: u32,
}

/// An order, or a level of a book of prices (flag MBP, order id 0).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct MboMsg {
    pub hd: RecordHeader,
    pub order_id: u64,
    pub price: i64,
    pub size: u32,
    pub flags: u8,
    pub channel_id: u8,
    pub action: c_char,
    pub side: c_char,
    pub ts_recv: u64,
    pub ts_in_delta: i32,
    pub sequence: u32,
}

/// A trade.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct TradeMsg {
    pub hd: RecordHeader,
    pub price: i64,
    pub size: u32,
    pub action: c_char,
    pub side: c_char,
    pub flags: u8,
    pub depth: u8,
    pub ts_recv: u64,
    pub ts_in_delta: i32,
    pub sequence: u32,
}

/// The best bid and offer.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Mbp1Msg {
    pub hd: RecordHeader,
    pub price: i64,
    pub size: u32,
    pub action: c_char,
    pub side: c_char,
    pub flags: u8,
    pub depth: u8,
    pub ts_recv: u64,
    pub ts_in_delta: i32,
    pub sequence: u32,
    pub levels: [BidAskPair; 1],
}

/// A change of an instrument's trading status.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct StatusMsg {
    pub hd: RecordHeader,
    pub ts_recv: u64,
    pub action: u16,
    pub reason: u16,
    pub trading_event: u16,
    pub is_trading: c_char,
    pub is_quoting: c_char,
    pub is_short_sell_restricted: c_char,
    pub _reserved: [u8; 7],
}

/// The definition of an instrument.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct InstrumentDefMsg {
    pub hd: RecordHeader,
    pub ts_recv: u64,
    pub min_price_increment: i64,
    pub display_factor: i64,
    pub expiration: u64,
    pub activation: u64,
    pub high_limit_price: i64,
    pub low_limit_price: i64,
    pub max_price_variation: i64,
    pub unit_of_measure_qty: i64,
    pub min_price_increment_amount: i64,
    pub price_ratio: i64,
    pub strike_price: i64,
    pub raw_instrument_id: u64,
    pub leg_price: i64,
    pub leg_delta: i64,
    pub inst_attrib_value: i32,
    pub underlying_id: u32,
    pub market_depth_implied: i32,
    pub market_depth: i32,
    pub market_segment_id: u32,
    pub max_trade_vol: u32,
    pub min_lot_size: i32,
    pub min_lot_size_block: i32,
    pub min_lot_size_round_lot: i32,
    pub min_trade_vol: u32,
    pub contract_multiplier: i32,
    pub decay_quantity: i32,
    pub original_contract_size: i32,
    pub leg_instrument_id: u32,
    pub leg_ratio_price_numerator: i32,
    pub leg_ratio_price_denominator: i32,
    pub leg_ratio_qty_numerator: i32,
    pub leg_ratio_qty_denominator: i32,
    pub leg_underlying_id: u32,
    pub appl_id: i16,
    pub maturity_year: u16,
    pub decay_start_date: u16,
    pub channel_id: u16,
    pub leg_count: u16,
    pub leg_index: u16,
    pub currency: [c_char; 4],
    pub settl_currency: [c_char; 4],
    pub secsubtype: [c_char; 6],
    pub raw_symbol: [c_char; 71],
    pub group: [c_char; 21],
    pub exchange: [c_char; 5],
    pub asset: [c_char; 11],
    pub cfi: [c_char; 7],
    pub security_type: [c_char; 7],
    pub unit_of_measure: [c_char; 31],
    pub underlying: [c_char; 21],
    pub strike_price_currency: [c_char; 4],
    pub leg_raw_symbol: [c_char; 71],
    pub instrument_class: c_char,
    pub match_algorithm: c_char,
    pub main_fraction: u8,
    pub price_display_format: u8,
    pub sub_fraction: u8,
    pub underlying_product: u8,
    pub security_update_action: c_char,
    pub maturity_month: u8,
    pub maturity_day: u8,
    pub maturity_week: u8,
    pub user_defined_instrument: c_char,
    pub contract_multiplier_unit: i8,
    pub flow_schedule_type: i8,
    pub tick_rule: u8,
    pub leg_instrument_class: c_char,
    pub leg_side: c_char,
    pub _reserved: [u8; 17],
}

/// An instrument id and its symbol.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct SymbolMappingMsg {
    pub hd: RecordHeader,
    pub stype_in: u8,
    pub stype_in_symbol: [c_char; 71],
    pub stype_out: u8,
    pub stype_out_symbol: [c_char; 71],
    pub start_ts: u64,
    pub end_ts: u64,
}

/// An auction's imbalance.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ImbalanceMsg {
    pub hd: RecordHeader,
    pub ts_recv: u64,
    pub ref_price: i64,
    pub auction_time: u64,
    pub cont_book_clr_price: i64,
    pub auct_interest_clr_price: i64,
    pub ssr_filling_price: i64,
    pub ind_match_price: i64,
    pub upper_collar: i64,
    pub lower_collar: i64,
    pub paired_qty: u32,
    pub total_imbalance_qty: u32,
    pub market_imbalance_qty: u32,
    pub unpaired_qty: u32,
    pub auction_type: c_char,
    pub side: c_char,
    pub auction_status: u8,
    pub freeze_status: u8,
    pub num_extensions: u8,
    pub unpaired_side: c_char,
    pub significant_imbalance: c_char,
    pub _reserved: [u8; 1],
}

/// A statistic of the venue.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct StatMsg {
    pub hd: RecordHeader,
    pub ts_recv: u64,
    pub ts_ref: u64,
    pub price: i64,
    pub quantity: i64,
    pub sequence: u32,
    pub ts_in_delta: i32,
    pub stat_type: u16,
    pub channel_id: u16,
    pub update_action: u8,
    pub stat_flags: u8,
    pub _reserved: [u8; 18],
}

macro_rules! same {
    ($record:ident: $($field:ident),+) => {
        const _: () = {
            assert!(size_of::<$record>() == size_of::<record::$record>());
            assert!(align_of::<$record>() == align_of::<record::$record>());
            $(assert!(offset_of!($record, $field) == offset_of!(record::$record, $field));)+
        };
    };
}

same!(RecordHeader: rtype, publisher_id, instrument_id, ts_event);
same!(BidAskPair: bid_px, ask_px, bid_sz, ask_sz, bid_ct, ask_ct);
same!(MboMsg:
    hd, order_id, price, size, flags, channel_id, action, side, ts_recv, ts_in_delta,
    sequence);
same!(TradeMsg: hd, price, size, action, side, flags, depth, ts_recv, ts_in_delta, sequence);
same!(Mbp1Msg: hd, price, size, action, side, flags, depth, ts_recv, ts_in_delta, sequence, levels);
same!(StatusMsg:
    hd, ts_recv, action, reason, trading_event, is_trading, is_quoting,
    is_short_sell_restricted, _reserved);
same!(InstrumentDefMsg:
    hd, ts_recv, min_price_increment, display_factor, expiration, activation,
    high_limit_price, low_limit_price, max_price_variation, unit_of_measure_qty,
    min_price_increment_amount, price_ratio, strike_price, raw_instrument_id, leg_price,
    leg_delta, inst_attrib_value, underlying_id, market_depth_implied, market_depth,
    market_segment_id, max_trade_vol, min_lot_size, min_lot_size_block,
    min_lot_size_round_lot, min_trade_vol, contract_multiplier, decay_quantity,
    original_contract_size, leg_instrument_id, leg_ratio_price_numerator,
    leg_ratio_price_denominator, leg_ratio_qty_numerator, leg_ratio_qty_denominator,
    leg_underlying_id, appl_id, maturity_year, decay_start_date, channel_id, leg_count,
    leg_index, currency, settl_currency, secsubtype, raw_symbol, group, exchange, asset,
    cfi, security_type, unit_of_measure, underlying, strike_price_currency, leg_raw_symbol,
    instrument_class, match_algorithm, main_fraction, price_display_format, sub_fraction,
    underlying_product, security_update_action, maturity_month, maturity_day,
    maturity_week, user_defined_instrument, contract_multiplier_unit, flow_schedule_type,
    tick_rule, leg_instrument_class, leg_side, _reserved);
same!(SymbolMappingMsg:
    hd, stype_in, stype_in_symbol, stype_out, stype_out_symbol, start_ts, end_ts);
same!(ImbalanceMsg:
    hd, ts_recv, ref_price, auction_time, cont_book_clr_price, auct_interest_clr_price,
    ssr_filling_price, ind_match_price, upper_collar, lower_collar, paired_qty,
    total_imbalance_qty, market_imbalance_qty, unpaired_qty, auction_type, side,
    auction_status, freeze_status, num_extensions, unpaired_side, significant_imbalance,
    _reserved);
same!(StatMsg:
    hd, ts_recv, ts_ref, price, quantity, sequence, ts_in_delta, stat_type, channel_id,
    update_action, stat_flags, _reserved);

macro_rules! tagged {
    ($($variant:ident $record:ident),+) => {
        const _: () = {
            $(assert!(RecordType::$variant as u8 == <record::$record as record::WireRecord>::RTYPE);)+
        };
    };
}

tagged!(Mbo MboMsg, Trade TradeMsg, Mbp1 Mbp1Msg, Status StatusMsg, Imbalance ImbalanceMsg);
tagged!(InstrumentDef InstrumentDefMsg, SymbolMapping SymbolMappingMsg, Statistics StatMsg);
