//! Whole records of single messages: each field from the layouts of TotalView-ITCH 5.0, or undefined
//! as in DBN.

use std::ffi::c_char;

use tickcast_feeds::source::Incident;
use tickcast_reliability::record::{
    Action, FlagSet, HasRType, ImbalanceMsg, InstrumentDefMsg, MboMsg, RType, RecordHeader, SType,
    SecurityUpdateAction, Side, StatMsg, StatType, StatusAction, StatusMsg, StatusReason,
    SymbolMappingMsg, TradingEvent, TriState, UNDEF_ORDER_SIZE, UNDEF_PRICE, UNDEF_TIMESTAMP,
    flags,
};
use tickcast_reliability::types::{Nanos, SourcePosition};

use super::{MIDNIGHT, TIME, add, decoder, message};
use crate::common::Recorded;

/// DBN's number of XNAS.ITCH.
const PUBLISHER: u16 = 2;
const LOCATE: u16 = 7;
const STOCK: &[u8] = b"ZVZZT   ";
const EVENT: u64 = MIDNIGHT + TIME;
const DELAY: i32 = 123_456;
const RECEIVED: Nanos = Nanos(EVENT + DELAY as u64);
/// Records hold its low 32 bits.
const SEQUENCE: u64 = 0x0001_8000_0005;
const SEQUENCE_LOW: u32 = 0x8000_0005;

fn decode(message: &[u8]) -> Recorded {
    let (mut decoder, mut reported) = (decoder(), Recorded::default());
    let position = SourcePosition::new(0, SEQUENCE);
    decoder.message(position, RECEIVED, message, &mut reported);
    reported
}

/// Returns the records of one type, of a message about [`LOCATE`].
fn records<R>(kind: u8, body: &[&[u8]]) -> Vec<R>
where
    R: HasRType<Header = RecordHeader> + Clone,
{
    decode(&message(kind, LOCATE, body)).all()
}

fn header<R: HasRType>(rtype: RType) -> RecordHeader {
    RecordHeader::new::<R>(rtype as u8, PUBLISHER, LOCATE.into(), EVENT)
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
        ts_recv: RECEIVED.0,
        action: action as u16,
        reason: reason as u16,
        ..StatusMsg::default()
    }
}

fn stat(kind: StatType, price: i64, quantity: i64) -> StatMsg {
    StatMsg {
        hd: header::<StatMsg>(RType::Statistics),
        ts_recv: RECEIVED.0,
        price,
        quantity,
        sequence: SEQUENCE_LOW,
        ts_in_delta: DELAY,
        stat_type: kind as u16,
        channel_id: 0,
        ..StatMsg::default()
    }
}

/// The quantity of statistics that have none.
const NO_QUANTITY: i64 = i64::MAX;

#[test]
fn mapping_record_is_raw_symbol_from_midnight() {
    let mapping: Vec<SymbolMappingMsg> = records(b'N', &[STOCK, b"N"]);
    let expected = SymbolMappingMsg {
        hd: header::<SymbolMappingMsg>(RType::SymbolMapping),
        stype_in: SType::RawSymbol as u8,
        stype_in_symbol: chars("ZVZZT"),
        stype_out: SType::RawSymbol as u8,
        stype_out_symbol: chars("ZVZZT"),
        start_ts: MIDNIGHT,
        end_ts: UNDEF_TIMESTAMP,
    };
    assert_eq!(mapping, [expected]);
}

#[test]
fn instrument_without_locate_is_not_named() {
    let reported = decode(&message(b'N', 0, &[STOCK, b"N"]));
    assert!(reported.all::<SymbolMappingMsg>().is_empty());
}

#[test]
fn symbol_is_named_again_when_locate_changes_stock() {
    let (mut decoder, mut reported) = (decoder(), Recorded::default());
    for stock in [b"ZVZZT   ", b"ZVZZT   ", b"ZVZZT A "] {
        let message = message(b'N', LOCATE, &[stock, b"N"]);
        decoder.message(SourcePosition::new(0, 1), RECEIVED, &message, &mut reported);
    }
    let mappings = reported.all::<SymbolMappingMsg>();
    let names = mappings.iter().map(|m| m.stype_in_symbol().unwrap());
    assert_eq!(names.collect::<Vec<_>>(), ["ZVZZT", "ZVZZT A"]);
}

#[test]
fn unprintable_bytes_of_stock_become_question_marks() {
    let mapping: Vec<SymbolMappingMsg> = records(b'N', &[b"A\x1f~\x7f \xffZ ", b"N"]);
    assert_eq!(mapping[0].stype_in_symbol().unwrap(), "A?~? ?Z");
    let blank: Vec<SymbolMappingMsg> = records(b'N', &[b"        ", b"N"]);
    assert_eq!(blank[0].stype_in_symbol, chars(""));
}

fn mbo(action: Action, side: Side, mark: u8, (order_id, price, size): (u64, i64, u32)) -> MboMsg {
    MboMsg {
        hd: header::<MboMsg>(RType::Mbo),
        order_id,
        price,
        size,
        flags: FlagSet::new(mark),
        channel_id: 0,
        action: action as c_char,
        side: side as c_char,
        ts_recv: RECEIVED.0,
        ts_in_delta: DELAY,
        sequence: SEQUENCE_LOW,
    }
}

#[test]
fn add_record_has_all_fields_of_order() {
    for (side, expected) in [(b'B', Side::Bid), (b'S', Side::Ask)] {
        let reported = decode(&add(0x0102_0304_0506_0708, side, 300, u32::MAX));
        // The highest price of 4 implied decimals, with 9.
        let order = (0x0102_0304_0506_0708, 429_496_729_500_000, 300);
        assert_eq!(
            reported.all::<MboMsg>(),
            [mbo(Action::Add, expected, flags::LAST, order)]
        );
    }
}

#[test]
fn add_of_unknown_side_is_no_order() {
    let (mut decoder, mut reported) = (decoder(), Recorded::default());
    let order = add(9, b'X', 300, 5);
    decoder.message(
        SourcePosition::new(0, SEQUENCE),
        RECEIVED,
        &order,
        &mut reported,
    );
    let expected = mbo(Action::Add, Side::None, flags::LAST, (9, 500_000, 300));
    assert_eq!(reported.all::<MboMsg>(), [expected]);
    assert!(decoder.orders().is_empty());
    assert!(matches!(
        reported.incidents[..],
        [Incident::Malformed { .. }]
    ));
}

/// Type, fields and expected records of a message.
type Case<'a> = (u8, &'a [&'a [u8]], Vec<MboMsg>);

#[test]
fn records_of_unknown_order_are_marked_without_price() {
    let (order, other) = (9_u64.to_be_bytes(), 10_u64.to_be_bytes());
    let (shares, price) = (40_u32.to_be_bytes(), 70_u32.to_be_bytes());
    let marked = flags::PUBLISHER_SPECIFIC;
    let last = flags::LAST | flags::PUBLISHER_SPECIFIC;
    let cancel = |size| mbo(Action::Cancel, Side::None, last, (9, UNDEF_PRICE, size));
    let cases: [Case<'_>; 4] = [
        (
            b'E',
            &[&order, &shares, &other],
            vec![
                mbo(Action::Trade, Side::None, marked, (10, UNDEF_PRICE, 40)),
                mbo(Action::Fill, Side::None, marked, (9, UNDEF_PRICE, 40)),
                cancel(40),
            ],
        ),
        (b'X', &[&order, &shares], vec![cancel(40)]),
        (b'D', &[&order], vec![cancel(UNDEF_ORDER_SIZE)]),
        (
            b'U',
            &[&order, &other, &shares, &price],
            vec![cancel(UNDEF_ORDER_SIZE)],
        ),
    ];
    for (kind, body, expected) in cases {
        let reported = decode(&message(kind, LOCATE, body));
        assert_eq!(reported.all::<MboMsg>(), expected, "{}", char::from(kind));
        assert_eq!(reported.incidents, [Incident::UnknownOrder]);
    }
}

#[test]
fn cancel_of_more_than_order_has_is_malformed() {
    let cancel = |shares: u32| message(b'X', 7, &[&9_u64.to_be_bytes(), &shares.to_be_bytes()]);
    for (shares, size, incidents) in [(299, 299, 0), (300, 300, 0), (301, 300, 1)] {
        let reported = super::decode(&[add(9, b'B', 300, 5), cancel(shares)]);
        assert_eq!(reported.all::<MboMsg>()[1].size, size, "{shares}");
        assert_eq!(reported.incidents.len(), incidents, "{shares}");
    }
}

#[test]
fn system_event_record_has_session_state() {
    use StatusAction as A;
    use TriState::{No, NotAvailable, Yes};
    for (event, action, trading) in [
        (b"O", A::None, NotAvailable),
        (b"S", A::PreOpen, NotAvailable),
        (b"Q", A::Trading, Yes),
        (b"M", A::Close, No),
        (b"E", A::PostClose, No),
        (b"C", A::NotAvailableForTrading, No),
        (b"x", A::None, NotAvailable),
    ] {
        let expected = StatusMsg {
            trading_event: TradingEvent::ChangeTradingSession as u16,
            is_trading: trading as c_char,
            is_quoting: trading as c_char,
            ..status(action, StatusReason::Scheduled)
        };
        assert_eq!(records::<StatusMsg>(b'S', &[event]), [expected]);
    }
}

#[test]
fn trading_action_record_has_state_and_reason() {
    use StatusAction as A;
    use TriState::{No, NotAvailable, Yes};
    for (state, action, trading, quoting) in [
        (b"H", A::Halt, No, No),
        (b"P", A::Pause, No, No),
        (b"Q", A::Quoting, No, Yes),
        (b"T", A::Trading, Yes, Yes),
        (b"x", A::None, NotAvailable, NotAvailable),
    ] {
        let expected = StatusMsg {
            is_trading: trading as c_char,
            is_quoting: quoting as c_char,
            ..status(action, StatusReason::SecTradingSuspension)
        };
        let body: [&[u8]; 4] = [STOCK, state, b" ", b"H10 "];
        assert_eq!(records::<StatusMsg>(b'H', &body), [expected]);
    }
}

#[test]
fn trading_action_reasons_are_those_of_dbn() {
    use StatusReason as R;
    for (code, reason) in [
        (b"T1  ", R::NewsPending),
        (b"T2  ", R::NewsReleased),
        (b"T3  ", R::NewsAndResumptionTimes),
        (b"T5  ", R::LuldPause),
        (b"T6  ", R::MarketEvent),
        (b"T7  ", R::LuldPause),
        (b"T8  ", R::Etf),
        (b"T12 ", R::AdditionalInformationRequested),
        (b"H4  ", R::NonCompliance),
        (b"H9  ", R::FilingsNotCurrent),
        (b"H10 ", R::SecTradingSuspension),
        (b"H11 ", R::Regulatory),
        (b"O1  ", R::Operational),
        (b"LUDP", R::LuldPause),
        (b"LUDS", R::LuldPause),
        (b"MWC0", R::MarketWideHaltCarryover),
        (b"MWC1", R::MarketWideHaltLevel1),
        (b"MWC2", R::MarketWideHaltLevel2),
        (b"MWC3", R::MarketWideHaltLevel3),
        (b"MWCQ", R::MarketWideHaltResumption),
        (b"IPO1", R::NewIssue),
        (b"IPOQ", R::NewIssue),
        (b"IPOE", R::NewIssue),
        (b"M1  ", R::CorporateAction),
        (b"M2  ", R::QuotationNotAvailable),
        (b"R1  ", R::IssueAvailable),
        (b"R4  ", R::IssuesReviewed),
        (b"R9  ", R::FilingReqsSatisfied),
        (b"C3  ", R::NewsNotForthcoming),
        (b"C4  ", R::IssuesReviewed),
        (b"C9  ", R::FilingReqsSatisfied),
        (b"C11 ", R::Regulatory),
        (b"    ", R::None),
        (b"T1xx", R::None),
    ] {
        let halt: Vec<StatusMsg> = records(b'H', &[STOCK, b"H", b" ", code]);
        let name = String::from_utf8_lossy(code);
        assert_eq!(halt[0].reason().unwrap(), reason, "{name}");
    }
}

#[test]
fn operational_halt_record_is_about_nasdaq_only() {
    use StatusAction as A;
    use TriState::{No, NotAvailable, Yes};
    for (market_and_action, action, trading) in [
        (b"QH", A::Halt, No),
        (b"QT", A::Trading, Yes),
        (b"BH", A::None, NotAvailable),
        (b"XT", A::None, NotAvailable),
        (b"Qx", A::None, NotAvailable),
    ] {
        let expected = StatusMsg {
            is_trading: trading as c_char,
            is_quoting: trading as c_char,
            ..status(action, StatusReason::Operational)
        };
        let body: [&[u8]; 2] = [STOCK, market_and_action];
        assert_eq!(records::<StatusMsg>(b'h', &body), [expected]);
    }
}

#[test]
fn reg_sho_record_has_restriction() {
    for (action, restricted) in [
        (b"0", TriState::No),
        (b"1", TriState::Yes),
        (b"2", TriState::Yes),
        (b"x", TriState::NotAvailable),
    ] {
        let expected = StatusMsg {
            is_short_sell_restricted: restricted as c_char,
            ..status(StatusAction::SsrChange, StatusReason::None)
        };
        assert_eq!(records::<StatusMsg>(b'Y', &[STOCK, action]), [expected]);
    }
}

#[test]
fn breached_level_record_is_halt_of_its_level() {
    for (level, reason) in [
        (b"1", StatusReason::MarketWideHaltLevel1),
        (b"2", StatusReason::MarketWideHaltLevel2),
        (b"3", StatusReason::MarketWideHaltLevel3),
        (b"x", StatusReason::None),
    ] {
        let expected = StatusMsg {
            is_trading: TriState::No as c_char,
            ..status(StatusAction::Halt, reason)
        };
        assert_eq!(records::<StatusMsg>(b'W', &[level]), [expected]);
    }
}

#[test]
fn breaker_level_prices_saturate_at_edge_of_dbn() {
    // The highest value of 8 implied decimals that 63 bits hold with 9.
    let most = 922_337_203_685_477_580_u64;
    let levels = |level: u64| {
        let bytes = [1, level, 3].map(u64::to_be_bytes);
        let body = [&bytes[0][..], &bytes[1], &bytes[2]];
        decode(&message(b'V', LOCATE, &body))
    };
    let reported = levels(most);
    let expected = [
        stat(StatType::MwcbLevel1, 10, NO_QUANTITY),
        stat(StatType::MwcbLevel2, 9_223_372_036_854_775_800, NO_QUANTITY),
        stat(StatType::MwcbLevel3, 30, NO_QUANTITY),
    ];
    assert_eq!(reported.all::<StatMsg>(), expected);
    assert_eq!(reported.incidents, []);
    let reported = levels(most + 1);
    assert_eq!(reported.all::<StatMsg>()[1].price, UNDEF_PRICE);
    assert_eq!(reported.incidents, [Incident::Saturated]);
}

#[test]
fn collar_records_have_prices_and_extensions() {
    let [reference, upper, lower, extensions] = [11_u32, 22, 33, 4].map(u32::to_be_bytes);
    let body = [STOCK, &reference, &upper, &lower, &extensions];
    let expected = [
        stat(StatType::AuctionCollarReferencePrice, 1_100_000, 4),
        stat(StatType::AuctionCollarUpperPrice, 2_200_000, 4),
        stat(StatType::AuctionCollarLowerPrice, 3_300_000, 4),
    ];
    assert_eq!(records::<StatMsg>(b'J', &body), expected);
}

#[test]
fn ipo_record_has_release_qualifier_and_price() {
    for (qualifier, release_s, price, expected) in [
        (
            b'A',
            36_000,
            22_u32,
            StatMsg {
                ts_ref: MIDNIGHT + 36_000_000_000_000,
                update_action: 1,
                ..stat(StatType::VenueSpecificPrice1, 2_200_000, 65)
            },
        ),
        (
            b'C',
            0_u32,
            0,
            StatMsg {
                ts_ref: UNDEF_TIMESTAMP,
                update_action: 2,
                ..stat(StatType::VenueSpecificPrice1, UNDEF_PRICE, 67)
            },
        ),
    ] {
        let (release, price) = (release_s.to_be_bytes(), price.to_be_bytes());
        let body = [STOCK, &release, &[qualifier], &price];
        let expected = StatMsg {
            stat_flags: b'K',
            ..expected
        };
        assert_eq!(records::<StatMsg>(b'K', &body), [expected]);
    }
}

#[test]
fn participant_record_has_codes_as_quantity() {
    let expected = StatMsg {
        stat_flags: b'L',
        ..stat(
            StatType::VenueSpecificVolume1,
            UNDEF_PRICE,
            i64::from_be_bytes(*b"\0NITEYPW"),
        )
    };
    let body: [&[u8]; 3] = [b"NITE", STOCK, b"YPW"];
    assert_eq!(records::<StatMsg>(b'L', &body), [expected]);
}

#[test]
fn retail_interest_record_has_its_byte_as_quantity() {
    let expected = StatMsg {
        stat_flags: b'N',
        ..stat(StatType::VenueSpecificVolume1, UNDEF_PRICE, 83)
    };
    assert_eq!(records::<StatMsg>(b'N', &[STOCK, b"S"]), [expected]);
}

#[test]
fn cross_records_have_price_of_their_cross() {
    let (price, number) = (55_u32.to_be_bytes(), 777_u64.to_be_bytes());
    for (cross, kind) in [
        (b"O", StatType::OpeningPrice),
        (b"C", StatType::ClosePrice),
        (b"H", StatType::UncrossingPrice),
    ] {
        let body = [&600_u64.to_be_bytes()[..], STOCK, &price, &number, cross];
        let reported = decode(&message(b'Q', LOCATE, &body));
        let trade = (777, 5_500_000, 600);
        assert_eq!(
            reported.all::<MboMsg>(),
            [mbo(Action::Trade, Side::None, flags::LAST, trade)]
        );
        assert_eq!(reported.all::<StatMsg>(), [stat(kind, 5_500_000, 600)]);
    }
}

#[test]
fn cross_without_shares_has_no_statistic() {
    for (price, expected) in [(0_u32, UNDEF_PRICE), (55, 5_500_000)] {
        let (zero, number) = (0_u64.to_be_bytes(), 777_u64.to_be_bytes());
        let body = [&zero[..], STOCK, &price.to_be_bytes(), &number, b"O"];
        let reported = decode(&message(b'Q', LOCATE, &body));
        let trade = (777, expected, 0);
        assert_eq!(
            reported.all::<MboMsg>(),
            [mbo(Action::Trade, Side::None, flags::LAST, trade)]
        );
        assert!(reported.all::<StatMsg>().is_empty());
    }
}

#[test]
fn quantity_saturates_below_undefined_value() {
    let cross = |shares: u64| {
        let (price, number) = (0_u32.to_be_bytes(), 777_u64.to_be_bytes());
        let body = [&shares.to_be_bytes()[..], STOCK, &price, &number, b"O"];
        decode(&message(b'Q', LOCATE, &body))
    };
    let partly = flags::LAST | flags::PUBLISHER_SPECIFIC;
    for (shares, size, mark) in [
        (4_294_967_293, 4_294_967_293, flags::LAST),
        (4_294_967_294, 4_294_967_294, flags::LAST),
        (4_294_967_295, 4_294_967_294, partly),
        (4_294_967_296, 4_294_967_294, partly),
    ] {
        let reported = cross(shares);
        // A price of 0 at which shares crossed is a price.
        let expected = mbo(Action::Trade, Side::None, mark, (777, 0, size));
        assert_eq!(reported.all::<MboMsg>(), [expected], "{shares}");
        assert_eq!(reported.all::<StatMsg>()[0].quantity, shares as i64);
        assert_eq!(
            reported.incidents.contains(&Incident::Saturated),
            mark == partly
        );
    }
    assert_eq!(
        cross(1 << 63).all::<StatMsg>()[0].quantity,
        i64::MAX,
        "beyond 63 bits"
    );
}

fn imbalance(paired: u64, unpaired: u64, direction: &[u8], prices: [u32; 3]) -> Recorded {
    let (paired, unpaired) = (paired.to_be_bytes(), unpaired.to_be_bytes());
    let [far, near, reference] = prices.map(u32::to_be_bytes);
    let body = [
        &paired[..],
        &unpaired,
        direction,
        STOCK,
        &far,
        &near,
        &reference,
        b"A",
        b"9",
    ];
    decode(&message(b'I', LOCATE, &body))
}

#[test]
fn imbalance_record_has_all_fields_of_message() {
    for (direction, side) in [
        (b'B', Side::Bid),
        (b'S', Side::Ask),
        (b'N', Side::None),
        (b'O', Side::None),
        (b'P', Side::None),
    ] {
        let expected = ImbalanceMsg {
            hd: header::<ImbalanceMsg>(RType::Imbalance),
            ts_recv: RECEIVED.0,
            ref_price: 3_300_000,
            cont_book_clr_price: 2_200_000,
            auct_interest_clr_price: 1_100_000,
            paired_qty: 60,
            total_imbalance_qty: 70,
            auction_type: b'A' as c_char,
            side: side as c_char,
            auction_status: direction,
            significant_imbalance: b'9' as c_char,
            ..ImbalanceMsg::default()
        };
        let reported = imbalance(60, 70, &[direction], [11, 22, 33]);
        assert_eq!(reported.all::<ImbalanceMsg>(), [expected]);
        assert_eq!(reported.incidents, []);
    }
}

#[test]
fn imbalance_prices_of_zero_are_undefined() {
    let record = &imbalance(0, 0, b"O", [0; 3]).all::<ImbalanceMsg>()[0];
    let prices = [
        record.ref_price,
        record.cont_book_clr_price,
        record.auct_interest_clr_price,
    ];
    assert_eq!(prices, [UNDEF_PRICE; 3]);
}

#[test]
fn either_saturated_quantity_of_imbalance_is_incident() {
    for (paired, unpaired) in [(1 << 32, 5), (5, 1 << 32)] {
        let reported = imbalance(paired, unpaired, b"N", [11, 22, 33]);
        assert_eq!(reported.incidents, [Incident::Saturated]);
    }
}

#[test]
fn direct_listing_records_have_all_fields_of_message() {
    let [min, max, near, lower, upper] = [11_u32, 22, 33, 44, 55].map(u32::to_be_bytes);
    for (near_time, auction_time) in [
        (36_000_000_000_001_u64, MIDNIGHT + 36_000_000_000_001),
        (0, UNDEF_TIMESTAMP),
    ] {
        let near_time = near_time.to_be_bytes();
        let body = [STOCK, b"N", &min, &max, &near, &near_time, &lower, &upper];
        let reported = decode(&message(b'O', LOCATE, &body));
        let expected = ImbalanceMsg {
            hd: header::<ImbalanceMsg>(RType::Imbalance),
            ts_recv: RECEIVED.0,
            auction_time,
            ind_match_price: 3_300_000,
            upper_collar: 5_500_000,
            lower_collar: 4_400_000,
            auction_type: b'O' as c_char,
            auction_status: b'N',
            ..ImbalanceMsg::default()
        };
        assert_eq!(reported.all::<ImbalanceMsg>(), [expected]);
        let limits = [
            stat(StatType::LowerPriceLimit, 1_100_000, NO_QUANTITY),
            stat(StatType::UpperPriceLimit, 2_200_000, NO_QUANTITY),
        ];
        assert_eq!(reported.all::<StatMsg>(), limits);
    }
}

fn definition(lot: u32, round_lots_only: &[u8], leverage: u32) -> InstrumentDefMsg {
    let (lot, leverage) = (lot.to_be_bytes(), leverage.to_be_bytes());
    let body = [
        STOCK,
        b"GD",
        &lot,
        round_lots_only,
        b"CZyPN 1Y",
        &leverage,
        b"V",
    ];
    let reported = records::<InstrumentDefMsg>(b'R', &body);
    assert_eq!(reported.len(), 1);
    reported[0].clone()
}

#[test]
fn definition_record_has_all_fields_of_directory() {
    let expected = InstrumentDefMsg {
        hd: header::<InstrumentDefMsg>(RType::InstrumentDef),
        ts_recv: RECEIVED.0,
        raw_instrument_id: LOCATE.into(),
        min_lot_size_round_lot: 40,
        min_trade_vol: 40,
        inst_attrib_value: 3,
        channel_id: 0,
        instrument_class: b'K' as c_char,
        security_update_action: SecurityUpdateAction::Add as c_char,
        raw_symbol: chars("ZVZZT"),
        group: chars("GDYCZyPN 1YV"),
        security_type: chars("CZy"),
        currency: chars("USD"),
        exchange: chars("XNAS"),
        ..InstrumentDefMsg::default()
    };
    assert_eq!(definition(40, b"Y", 3), expected);
}

#[test]
fn odd_lots_trade_unless_only_round_lots_do() {
    for (round_lots_only, expected) in [(b"N", 1), (b" ", 1), (b"Y", 40)] {
        assert_eq!(definition(40, round_lots_only, 1).min_trade_vol, expected);
    }
}

#[test]
fn definition_numbers_beyond_31_bits_saturate() {
    let most = definition(1 << 31, b"Y", 1 << 31);
    let numbers = (most.min_lot_size_round_lot, most.inst_attrib_value);
    assert_eq!(numbers, (i32::MAX, i32::MAX));
    assert_eq!(most.min_trade_vol, 1 << 31);
}
