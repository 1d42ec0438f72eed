//! Whole records of single messages: each field from the layouts of TOPS 1.6 and DEEP 1.0, or
//! undefined as in DBN.

use std::ffi::c_char;

use tickcast_feeds::source::Incident;
use tickcast_reliability::record::{
    Action, BidAskPair, FlagSet, HasRType, ImbalanceMsg, InstrumentDefMsg, MboMsg, Mbp1Msg, RType,
    RecordHeader, SType, Side, StatMsg, StatType, StatusAction, StatusMsg, StatusReason,
    SymbolMappingMsg, TradeMsg, TradingEvent, TriState, UNDEF_PRICE, UNDEF_TIMESTAMP, flags,
};

use super::{NOON, SECOND, Seg, level, message, run_segments, trade};
use crate::common::Recorded;

/// DBN's number of IEX's own TOPS.
const PUBLISHER: u16 = 38;
const SYMBOL: &[u8; 8] = b"ZVZZT   ";
/// The first symbol of a source.
const INSTRUMENT: u32 = 1;
/// When the messages happened, when their packet was received, and how long that was after it was sent.
const EVENT: u64 = NOON - 5;
const RECEIVED: u64 = NOON + 1_500;
const DELAY: i32 = 1_500;
/// Records hold the low 32 bits of their sequence.
const FIRST: i64 = 0x0001_8000_0005;
const SEQUENCE: u32 = 0x8000_0005;

fn deep(message: Vec<u8>) -> Recorded {
    run_segments(&[Seg {
        first: FIRST,
        ..Seg::of(vec![message])
    }])
}

fn tops(message: Vec<u8>) -> Recorded {
    run_segments(&[Seg {
        first: FIRST,
        ..Seg::tops(vec![message])
    }])
}

/// Returns a message that has a second byte, a symbol and a rest.
fn with_rest(kind: u8, second: u8, rest: &[u8]) -> Vec<u8> {
    [&message(kind, second, SYMBOL)[..], rest].concat()
}

fn header<R: HasRType>(rtype: RType) -> RecordHeader {
    RecordHeader::new::<R>(rtype as u8, PUBLISHER, INSTRUMENT, EVENT)
}

/// Returns a field of text that ends in zeros.
fn chars<const N: usize>(text: &str) -> [c_char; N] {
    let mut field = [0; N];
    for (to, from) in field.iter_mut().zip(text.bytes()) {
        *to = from as c_char;
    }
    field
}

fn status(action: StatusAction, reason: StatusReason) -> StatusMsg {
    StatusMsg {
        hd: header::<StatusMsg>(RType::Status),
        ts_recv: RECEIVED,
        action: action as u16,
        reason: reason as u16,
        ..StatusMsg::default()
    }
}

#[test]
fn mapping_record_names_symbol_and_decimal_id() {
    let expected = SymbolMappingMsg {
        hd: header::<SymbolMappingMsg>(RType::SymbolMapping),
        stype_in: SType::RawSymbol as u8,
        stype_in_symbol: chars("ZVZZT"),
        stype_out: SType::InstrumentId as u8,
        stype_out_symbol: chars("1"),
        start_ts: EVENT,
        end_ts: UNDEF_TIMESTAMP,
    };
    let reported = deep(level(b'8', 1, SYMBOL, 1, 1));
    assert_eq!(reported.all::<SymbolMappingMsg>(), [expected]);
}

#[test]
fn level_record_has_all_fields_of_message() {
    let (more, last) = (flags::MBP, flags::MBP | flags::LAST);
    for (kind, event, size, side, action, mark) in [
        (b'8', 0, 700, Side::Bid, Action::Modify, more),
        (b'8', 1, 1, Side::Bid, Action::Modify, last),
        (b'5', 1, 700, Side::Ask, Action::Modify, last),
        (b'5', 0, 0, Side::Ask, Action::Cancel, more),
    ] {
        let expected = MboMsg {
            hd: header::<MboMsg>(RType::Mbo),
            order_id: 0,
            price: 12_345_600_000,
            size,
            flags: FlagSet::new(mark),
            channel_id: 0,
            action: action as c_char,
            side: side as c_char,
            ts_recv: RECEIVED,
            ts_in_delta: DELAY,
            sequence: SEQUENCE,
        };
        let reported = deep(level(kind, event, SYMBOL, size, 12_3456));
        assert_eq!(reported.all::<MboMsg>(), [expected]);
    }
}

#[test]
fn level_price_of_zero_is_a_price() {
    let reported = deep(level(b'8', 1, SYMBOL, 1, 0));
    assert_eq!(reported.all::<MboMsg>()[0].price, 0);
}

fn quote(bid: (u32, i64), ask: (u32, i64)) -> Vec<u8> {
    let rest = [
        &bid.0.to_le_bytes()[..],
        &bid.1.to_le_bytes(),
        &ask.1.to_le_bytes(),
        &ask.0.to_le_bytes(),
    ];
    with_rest(b'Q', 0, &rest.concat())
}

#[test]
fn quote_record_has_both_sides() {
    let expected = |levels| Mbp1Msg {
        hd: header::<Mbp1Msg>(RType::Mbp1),
        price: UNDEF_PRICE,
        size: 0,
        action: Action::Modify as c_char,
        side: Side::None as c_char,
        flags: FlagSet::new(flags::LAST | flags::TOB),
        depth: 0,
        ts_recv: RECEIVED,
        ts_in_delta: DELAY,
        sequence: SEQUENCE,
        levels: [levels],
    };
    let reported = tops(quote((11, 22), (33, 44)));
    let both = BidAskPair {
        bid_px: 2_200_000,
        ask_px: 4_400_000,
        bid_sz: 11,
        ask_sz: 33,
        bid_ct: 0,
        ask_ct: 0,
    };
    assert_eq!(reported.all::<Mbp1Msg>(), [expected(both)]);
    let reported = tops(quote((0, 0), (0, 0)));
    let neither = BidAskPair {
        bid_px: UNDEF_PRICE,
        ask_px: UNDEF_PRICE,
        bid_sz: 0,
        ask_sz: 0,
        bid_ct: 0,
        ask_ct: 0,
    };
    assert_eq!(reported.all::<Mbp1Msg>(), [expected(neither)]);
}

#[test]
fn trade_record_is_last_of_its_event_in_tops_only() {
    for (decode, kind, action, mark) in [
        (
            tops as fn(Vec<u8>) -> Recorded,
            b'T',
            Action::Trade,
            flags::LAST,
        ),
        (tops, b'B', Action::Cancel, flags::LAST),
        (deep, b'T', Action::Trade, 0),
        (deep, b'B', Action::Cancel, flags::LAST),
    ] {
        let expected = TradeMsg {
            hd: header::<TradeMsg>(RType::Mbp0),
            price: 5_500_000,
            size: 66,
            action: action as c_char,
            side: Side::None as c_char,
            flags: FlagSet::new(mark),
            depth: 0,
            ts_recv: RECEIVED,
            ts_in_delta: DELAY,
            sequence: SEQUENCE,
        };
        let reported = decode(trade(kind, SYMBOL, 66, 55));
        assert_eq!(reported.all::<TradeMsg>(), [expected]);
    }
}

#[test]
fn system_event_record_is_about_whole_venue() {
    use StatusAction as A;
    use TradingEvent::{ChangeTradingSession, None};
    use TriState::{No, NotAvailable, Yes};
    for (event, action, trading, trading_event) in [
        (b'O', A::NotAvailableForTrading, No, ChangeTradingSession),
        (b'S', A::PreOpen, NotAvailable, None),
        (b'R', A::Trading, Yes, None),
        (b'M', A::PostClose, NotAvailable, None),
        (b'E', A::Close, No, None),
        (b'C', A::NotAvailableForTrading, No, ChangeTradingSession),
        (b'x', A::None, NotAvailable, None),
    ] {
        let mut bytes = message(b'S', event, SYMBOL);
        bytes.truncate(10);
        let reported = tops(bytes);
        let expected = StatusMsg {
            hd: RecordHeader::new::<StatusMsg>(RType::Status as u8, PUBLISHER, 0, EVENT),
            trading_event: trading_event as u16,
            is_trading: trading as c_char,
            ..status(action, StatusReason::Scheduled)
        };
        assert_eq!(reported.all::<StatusMsg>(), [expected]);
        let end = (event == b'C').then_some(Incident::EndOfSession);
        assert_eq!(reported.incidents, Vec::from_iter(end), "the last message");
    }
}

#[test]
fn trading_status_record_has_state_and_reason() {
    use StatusAction as A;
    use TriState::{No, NotAvailable, Yes};
    for (state, action, trading) in [
        (b'H', A::Halt, No),
        (b'O', A::PreCross, No),
        (b'P', A::Pause, No),
        (b'T', A::Trading, Yes),
        (b'x', A::None, NotAvailable),
    ] {
        let expected = StatusMsg {
            is_trading: trading as c_char,
            is_quoting: trading as c_char,
            ..status(action, StatusReason::NewsReleased)
        };
        let reported = tops(with_rest(b'H', state, b"T2  "));
        assert_eq!(reported.all::<StatusMsg>(), [expected]);
    }
}

#[test]
fn trading_status_reasons_are_those_of_dbn() {
    use StatusReason as R;
    for (code, reason) in [
        (b"T1  ", R::NewsPending),
        (b"T2  ", R::NewsReleased),
        (b"T3  ", R::NewsAndResumptionTimes),
        (b"T5  ", R::LuldPause),
        (b"IPO1", R::NewSecurityOffering),
        (b"IPOD", R::NewSecurityOffering),
        (b"IPO2", R::NewSecurityOffering),
        (b"IPO3", R::NewSecurityOffering),
        (b"MCB1", R::MarketWideHaltLevel1),
        (b"MCB2", R::MarketWideHaltLevel2),
        (b"MCB3", R::MarketWideHaltLevel3),
        (b"NA  ", R::None),
        (b"    ", R::None),
    ] {
        let reported = tops(with_rest(b'H', b'H', code));
        let name = String::from_utf8_lossy(code);
        assert_eq!(
            reported.all::<StatusMsg>()[0].reason().unwrap(),
            reason,
            "{name}"
        );
    }
}

#[test]
fn operational_halt_record_says_only_that_venue_halts() {
    use TriState::{No, NotAvailable};
    for (state, action, trading) in [
        (b'O', StatusAction::Halt, No),
        (b'N', StatusAction::None, NotAvailable),
    ] {
        let expected = StatusMsg {
            is_trading: trading as c_char,
            is_quoting: trading as c_char,
            ..status(action, StatusReason::Operational)
        };
        let reported = tops(message(b'O', state, SYMBOL));
        assert_eq!(reported.all::<StatusMsg>(), [expected]);
    }
}

#[test]
fn short_sale_record_has_restriction_and_reason() {
    use StatusReason as R;
    for (in_effect, detail, restricted, reason) in [
        (1, b"A", TriState::Yes, R::MarketEvent),
        (1, b"C", TriState::Yes, R::Scheduled),
        (0, b"D", TriState::No, R::Scheduled),
        (0, b" ", TriState::No, R::None),
        (1, b"N", TriState::Yes, R::None),
        (2, b"N", TriState::NotAvailable, R::None),
    ] {
        let expected = StatusMsg {
            is_short_sell_restricted: restricted as c_char,
            ..status(StatusAction::SsrChange, reason)
        };
        let reported = tops(with_rest(b'P', in_effect, detail));
        assert_eq!(reported.all::<StatusMsg>(), [expected]);
    }
}

#[test]
fn security_event_record_has_its_process() {
    for (event, action) in [
        (b'O', StatusAction::Trading),
        (b'C', StatusAction::Close),
        (b'x', StatusAction::None),
    ] {
        let reported = deep(message(b'E', event, SYMBOL));
        let expected = status(action, StatusReason::Scheduled);
        assert_eq!(reported.all::<StatusMsg>(), [expected]);
    }
}

#[test]
fn retail_record_says_nothing_of_trading() {
    let reported = tops(message(b'I', b'A', SYMBOL));
    let expected = status(StatusAction::None, StatusReason::None);
    assert_eq!(reported.all::<StatusMsg>(), [expected]);
}

fn definition(marks: u8, lot: u32) -> InstrumentDefMsg {
    let close = 44_i64.to_le_bytes();
    let rest = [&lot.to_le_bytes()[..], &close, &[1]].concat();
    let reported = tops(with_rest(b'D', marks, &rest));
    let definitions = reported.all::<InstrumentDefMsg>();
    assert_eq!(definitions.len(), 1);
    definitions[0].clone()
}

#[test]
fn definition_record_has_all_fields_of_directory() {
    for (marks, security_type, subtype) in [
        (0x00, "", ""),
        (0x1f, "", ""),
        (0x20, "ETP", ""),
        (0x40, "", "WI"),
        (0x80, "", "TEST"),
        (0x60, "ETP", "WI"),
        (0xe0, "ETP", "TEST"),
    ] {
        let expected = InstrumentDefMsg {
            hd: header::<InstrumentDefMsg>(RType::InstrumentDef),
            ts_recv: RECEIVED,
            display_factor: 1_000_000_000,
            min_lot_size_round_lot: 40,
            raw_instrument_id: INSTRUMENT.into(),
            currency: chars("USD"),
            raw_symbol: chars("ZVZZT"),
            exchange: chars("IEXG"),
            security_type: chars(security_type),
            secsubtype: chars(subtype),
            instrument_class: b'K' as c_char,
            ..InstrumentDefMsg::default()
        };
        assert_eq!(definition(marks, 40), expected, "{marks:#x}");
    }
}

#[test]
fn round_lot_beyond_31_bits_saturates() {
    assert_eq!(definition(0, 1 << 31).min_lot_size_round_lot, i32::MAX);
}

#[test]
fn official_price_record_has_all_fields_of_message() {
    for (kind, stat_type, price, expected) in [
        (b'Q', StatType::OpeningPrice as u16, 55_i64, 5_500_000),
        (b'M', StatType::ClosePrice as u16, 66, 6_600_000),
        (b'x', 0, 0, UNDEF_PRICE),
    ] {
        let expected = StatMsg {
            hd: header::<StatMsg>(RType::Statistics),
            ts_recv: RECEIVED,
            ts_ref: EVENT,
            price: expected,
            sequence: SEQUENCE,
            ts_in_delta: DELAY,
            stat_type,
            channel_id: 0,
            ..StatMsg::default()
        };
        let reported = tops(with_rest(b'X', kind, &price.to_le_bytes()));
        assert_eq!(reported.all::<StatMsg>(), [expected]);
    }
}

/// An auction's side, scheduled time and prices: reference, indicative, book, collar's three.
fn auction(side: u8, scheduled_s: u32, prices: [i64; 6]) -> Vec<ImbalanceMsg> {
    let [reference, indicative, book, collar, lower, upper] = prices.map(i64::to_le_bytes);
    let rest = [
        &60_u32.to_le_bytes()[..],
        &reference,
        &indicative,
        &70_u32.to_le_bytes(),
        &[side, 3],
        &scheduled_s.to_le_bytes(),
        &book,
        &collar,
        &lower,
        &upper,
    ];
    tops(with_rest(b'A', b'V', &rest.concat())).all()
}

#[test]
fn auction_record_has_all_fields_of_message() {
    for (letter, side) in [(b'B', Side::Bid), (b'S', Side::Ask), (b'N', Side::None)] {
        let expected = ImbalanceMsg {
            hd: header::<ImbalanceMsg>(RType::Imbalance),
            ts_recv: RECEIVED,
            ref_price: 1_100_000,
            auction_time: 0x5a6c_825c * SECOND,
            cont_book_clr_price: 2_200_000,
            auct_interest_clr_price: 3_300_000,
            ind_match_price: 2_200_000,
            upper_collar: 6_600_000,
            lower_collar: 5_500_000,
            paired_qty: 60,
            total_imbalance_qty: 70,
            auction_type: b'V' as c_char,
            side: side as c_char,
            num_extensions: 3,
            ..ImbalanceMsg::default()
        };
        let reported = auction(letter, 0x5a6c_825c, [11, 22, 33, 44, 55, 66]);
        assert_eq!(reported, [expected]);
    }
}

#[test]
fn auction_without_time_or_prices_leaves_them_undefined() {
    let expected = ImbalanceMsg {
        hd: header::<ImbalanceMsg>(RType::Imbalance),
        ts_recv: RECEIVED,
        paired_qty: 60,
        total_imbalance_qty: 70,
        auction_type: b'V' as c_char,
        side: Side::None as c_char,
        num_extensions: 3,
        ..ImbalanceMsg::default()
    };
    assert_eq!(auction(b'N', 0, [0; 6]), [expected]);
}
