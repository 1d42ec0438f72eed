//! The records of wire version 1: all their fields, as `tshark` must show them, and samples of them.

use std::ffi::c_char;

use dbn::enums::{InstrumentClass, MatchAlgorithm, StatUpdateAction, UserDefinedInstrument};
use dbn::v4::types::EnumField;
use jiff::Timestamp;
use tickcast_reliability::record::{
    Action, BidAskPair, FlagSet, ImbalanceMsg, InstrumentDefMsg, MboMsg, Mbp1Msg, Record,
    RecordBatch, RecordHeader, RecordRef, SType, SecurityUpdateAction, Side, StatMsg, StatType,
    StatusAction, StatusMsg, StatusReason, SymbolMappingMsg, TradeMsg, TradingEvent, TriState,
    WireRecord, flags, words_as_bytes, words_as_bytes_mut,
};

use super::shown::{Expected, Names};

/// Lists all fields of records with their meaning. The patterns are exhaustive: a field that is missing here
/// does not compile.
macro_rules! records {
    ($($record:ident as $name:literal { $($field:ident: $show:expr),+ $(,)? })+) => {
        /// Returns the names of the types, by type tag.
        pub(super) fn types() -> Names {
            [$((u64::from($record::RTYPE), $name.to_owned())),+].into()
        }

        /// Expects the fields of a record.
        pub(super) fn expect(record: RecordRef<'_>, expected: &mut Expected) {
            let RecordHeader { rtype, publisher_id, instrument_id, ts_event, .. } = *record.header();
            let len = record.record_size();
            let words = len / RecordHeader::LENGTH_MULTIPLIER;
            expected.noted("tickcast.record.length", words, format_args!("{len} bytes"));
            let shown = format!("{rtype:#04x}");
            expected.named("tickcast.record.rtype", rtype.into(), shown, &types());
            expected.text("tickcast.record.publisher_id", publisher_id);
            expected.text("tickcast.record.instrument_id", instrument_id);
            time("tickcast.record.ts_event", &ts_event, &u64::MAX, expected);
            $(if let Some(record) = record.get::<$record>() {
                let $record { hd: _, $($field),+ } = record;
                let undefined = $record::default();
                $($show(concat!("tickcast.", $name, ".", stringify!($field)), $field, &undefined.$field, expected);)+
                return;
            })+
            panic!("type {rtype:#04x} has no fields here");
        }

        /// Returns records of each type: one without defined values, and some whose bytes all differ.
        pub(super) fn samples() -> Vec<RecordBatch> {
            let mut samples = Vec::new();
            $(for seed in 0..4 {
                samples.push(sample::<$record>(seed));
            })+
            samples
        }
    };
}

records! {
    TradeMsg as "trade" {
        price: fixed_price,
        size: number,
        action: character::<Action>,
        side: character::<Side>,
        flags: flag_set,
        depth: number,
        ts_recv: time,
        ts_in_delta: number,
        sequence: number,
    }
    Mbp1Msg as "mbp1" {
        price: fixed_price,
        size: number,
        action: character::<Action>,
        side: character::<Side>,
        flags: flag_set,
        depth: number,
        ts_recv: time,
        ts_in_delta: number,
        sequence: number,
        levels: price_levels,
    }
    StatusMsg as "status" {
        ts_recv: time,
        action: code::<StatusAction, _>,
        reason: code::<StatusReason, _>,
        trading_event: code::<TradingEvent, _>,
        is_trading: character::<TriState>,
        is_quoting: character::<TriState>,
        is_short_sell_restricted: character::<TriState>,
        _reserved: reserved,
    }
    InstrumentDefMsg as "instrument_def" {
        ts_recv: time,
        min_price_increment: fixed_price,
        display_factor: fixed_price,
        expiration: time,
        activation: time,
        high_limit_price: fixed_price,
        low_limit_price: fixed_price,
        max_price_variation: fixed_price,
        unit_of_measure_qty: fixed_price,
        min_price_increment_amount: fixed_price,
        price_ratio: fixed_price,
        strike_price: fixed_price,
        raw_instrument_id: number,
        leg_price: fixed_price,
        leg_delta: fixed_price,
        inst_attrib_value: number,
        underlying_id: number,
        market_depth_implied: number,
        market_depth: number,
        market_segment_id: number,
        max_trade_vol: number,
        min_lot_size: number,
        min_lot_size_block: number,
        min_lot_size_round_lot: number,
        min_trade_vol: number,
        contract_multiplier: number,
        decay_quantity: number,
        original_contract_size: number,
        leg_instrument_id: number,
        leg_ratio_price_numerator: number,
        leg_ratio_price_denominator: number,
        leg_ratio_qty_numerator: number,
        leg_ratio_qty_denominator: number,
        leg_underlying_id: number,
        appl_id: number,
        maturity_year: number,
        decay_start_date: number,
        channel_id: number,
        leg_count: number,
        leg_index: number,
        currency: text,
        settl_currency: text,
        secsubtype: text,
        raw_symbol: text,
        group: text,
        exchange: text,
        asset: text,
        cfi: text,
        security_type: text,
        unit_of_measure: text,
        underlying: text,
        strike_price_currency: text,
        leg_raw_symbol: text,
        instrument_class: character::<InstrumentClass>,
        match_algorithm: character::<MatchAlgorithm>,
        main_fraction: number,
        price_display_format: number,
        sub_fraction: number,
        underlying_product: number,
        security_update_action: character::<SecurityUpdateAction>,
        maturity_month: number,
        maturity_day: number,
        maturity_week: number,
        user_defined_instrument: character::<UserDefinedInstrument>,
        contract_multiplier_unit: number,
        flow_schedule_type: number,
        tick_rule: number,
        leg_instrument_class: character::<InstrumentClass>,
        leg_side: character::<Side>,
        _reserved: reserved,
    }
    ImbalanceMsg as "imbalance" {
        ts_recv: time,
        ref_price: fixed_price,
        auction_time: time,
        cont_book_clr_price: fixed_price,
        auct_interest_clr_price: fixed_price,
        ssr_filling_price: fixed_price,
        ind_match_price: fixed_price,
        upper_collar: fixed_price,
        lower_collar: fixed_price,
        paired_qty: number,
        total_imbalance_qty: number,
        market_imbalance_qty: number,
        unpaired_qty: number,
        auction_type: any_character,
        side: character::<Side>,
        auction_status: number,
        freeze_status: number,
        num_extensions: number,
        unpaired_side: character::<Side>,
        significant_imbalance: any_character,
        _reserved: reserved,
    }
    SymbolMappingMsg as "symbol_mapping" {
        stype_in: code::<SType, _>,
        stype_in_symbol: text,
        stype_out: code::<SType, _>,
        stype_out_symbol: text,
        start_ts: time,
        end_ts: time,
    }
    StatMsg as "statistics" {
        ts_recv: time,
        ts_ref: time,
        price: fixed_price,
        quantity: number,
        sequence: number,
        ts_in_delta: number,
        stat_type: code::<StatType, _>,
        channel_id: number,
        update_action: code::<StatUpdateAction, _>,
        stat_flags: hexadecimal,
        _reserved: reserved,
    }
    MboMsg as "mbo" {
        order_id: number,
        price: fixed_price,
        size: number,
        flags: flag_set,
        channel_id: number,
        action: character::<Action>,
        side: character::<Side>,
        ts_recv: time,
        ts_in_delta: number,
        sequence: number,
    }
}

/// A number whose highest value means "undefined" where DBN's default is that value.
trait Number: Copy + PartialEq + std::fmt::Display {
    const HIGHEST: Self;
}

macro_rules! numbers {
    ($($number:ident)+) => {
        $(impl Number for $number {
            const HIGHEST: Self = Self::MAX;
        })+
    };
}

numbers! { u8 u16 u32 u64 i8 i16 i32 i64 }

fn number<T: Number>(name: &str, value: &T, default: &T, expected: &mut Expected) {
    let is_undefined = *value == T::HIGHEST && *default == T::HIGHEST;
    expected.maybe_noted(name, *value, is_undefined.then_some("undefined"));
}

fn hexadecimal(name: &str, value: &u8, _: &u8, expected: &mut Expected) {
    expected.text(name, format_args!("{value:#04x}"));
}

fn fixed_price(name: &str, value: &i64, default: &i64, expected: &mut Expected) {
    assert_eq!(*default, i64::MAX, "{name} is undefined by default");
    let (whole, part) = (
        value.unsigned_abs() / 1_000_000_000,
        value.unsigned_abs() % 1_000_000_000,
    );
    let sign = if *value < 0 { "-" } else { "" };
    match *value {
        i64::MAX => expected.noted(name, value, "undefined"),
        _ => expected.noted(name, value, format_args!("{sign}{whole}.{part:09}")),
    }
}

fn time(name: &str, value: &u64, default: &u64, expected: &mut Expected) {
    match *value {
        u64::MAX if *default == u64::MAX => expected.noted(name, value, "undefined"),
        _ => expected.noted(name, value, date(*value)),
    }
}

/// Returns the date of nanoseconds since the Unix epoch.
pub(super) fn date(nanos: u64) -> String {
    let at = Timestamp::from_nanosecond(nanos.into()).expect("a year below 10,000");
    format!("{at:.9}")
}

fn labels<E: EnumField>() -> Names {
    let each = E::LABELS.iter();
    each.map(|(value, label)| ((*value).into(), (*label).to_owned()))
        .collect()
}

fn character<E: EnumField>(name: &str, value: &c_char, _: &c_char, expected: &mut Expected) {
    let value = *value as u8;
    expected.named(name, value.into(), quoted(value), &labels::<E>());
}

fn any_character(name: &str, value: &c_char, _: &c_char, expected: &mut Expected) {
    expected.text(name, quoted(*value as u8));
}

/// Returns a character as `tshark` shows it.
fn quoted(byte: u8) -> String {
    let escaped = match byte {
        0 => "\\0".into(),
        7 => "\\a".into(),
        8 => "\\b".into(),
        9 => "\\t".into(),
        10 => "\\n".into(),
        11 => "\\v".into(),
        12 => "\\f".into(),
        13 => "\\r".into(),
        b'\'' => "\\'".into(),
        b'\\' => "\\\\".into(),
        b' '..=b'~' => char::from(byte).to_string(),
        _ => format!("\\x{byte:02x}"),
    };
    format!("'{escaped}'")
}

fn code<E: EnumField, T: Copy + Into<u64>>(name: &str, value: &T, _: &T, expected: &mut Expected) {
    let value = (*value).into();
    expected.named(name, value, value, &labels::<E>());
}

fn text<const N: usize>(name: &str, value: &[c_char; N], _: &[c_char; N], expected: &mut Expected) {
    let bytes = value.iter().map(|byte| *byte as u8);
    let shown = bytes.take_while(|byte| *byte != 0).map(|byte| match byte {
        b' '..=b'~' => char::from(byte).to_string(),
        _ => format!("\\x{byte:02x}"),
    });
    expected.text(name, shown.collect::<String>());
}

fn reserved<const N: usize>(name: &str, value: &[u8; N], _: &[u8; N], expected: &mut Expected) {
    expected.bytes(name, value);
}

fn flag_set(name: &str, value: &FlagSet, _: &FlagSet, expected: &mut Expected) {
    let raw = value.raw();
    expected.text(name, format_args!("{raw:#04x}"));
    for (bit, flag) in [
        (flags::LAST, "last"),
        (flags::TOB, "tob"),
        (flags::SNAPSHOT, "snapshot"),
        (flags::MBP, "mbp"),
        (flags::BAD_TS_RECV, "bad_ts_recv"),
        (flags::MAYBE_BAD_BOOK, "maybe_bad_book"),
        (flags::PUBLISHER_SPECIFIC, "publisher_specific"),
    ] {
        expected.flag(&format!("{name}.{flag}"), raw & bit != 0);
    }
}

fn price_levels(name: &str, value: &[BidAskPair; 1], _: &[BidAskPair; 1], expected: &mut Expected) {
    let [
        BidAskPair {
            bid_px,
            ask_px,
            bid_sz,
            ask_sz,
            bid_ct,
            ask_ct,
        },
    ] = value;
    let field = |of: &str| name.replace("levels", of);
    let [undefined] = &Mbp1Msg::default().levels;
    fixed_price(&field("bid_px"), bid_px, &undefined.bid_px, expected);
    fixed_price(&field("ask_px"), ask_px, &undefined.ask_px, expected);
    number(&field("bid_sz"), bid_sz, &undefined.bid_sz, expected);
    number(&field("ask_sz"), ask_sz, &undefined.ask_sz, expected);
    number(&field("bid_ct"), bid_ct, &undefined.bid_ct, expected);
    number(&field("ask_ct"), ask_ct, &undefined.ask_ct, expected);
}

/// Returns a record of defaults for seed 0, else of bytes of which no two neighbours are equal.
fn sample<R: WireRecord + Default>(seed: u8) -> RecordBatch {
    let mut batch = RecordBatch::default();
    if seed == 0 {
        batch.put(&R::default());
        return batch;
    }
    let mut words = vec![0; R::LEN / 8];
    for (at, byte) in words_as_bytes_mut(&mut words).iter_mut().enumerate() {
        *byte = (at as u8)
            .wrapping_mul(37)
            .wrapping_add(seed.wrapping_mul(91));
    }
    let head = [(R::LEN / RecordHeader::LENGTH_MULTIPLIER) as u8, R::RTYPE];
    words_as_bytes_mut(&mut words)[..2].copy_from_slice(&head);
    let pushed = batch.push_bytes(words_as_bytes(&words));
    pushed.expect("it has the length and type of a record");
    batch
}
