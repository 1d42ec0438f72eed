//! Builds single records from messages that need no order table, each by a pure function.
//! [`super::normalise`] decides which message becomes which record.

use tickcast_reliability::record::{
    Action, FlagSet, ImbalanceMsg, InstrumentDefMsg, MboMsg, RType, RecordBatch, RecordHeader,
    SType, SecurityUpdateAction, Side, StatMsg, StatType, StatusAction, StatusMsg, StatusReason,
    SymbolMappingMsg, TriState, UNDEF_ORDER_SIZE, UNDEF_PRICE,
};

use super::messages::{
    DirectListing, Imbalance, ParticipantPosition, Stock, StockDirectory, TradingAction,
};
use crate::source::Incident;

/// Value of a quantity that is too large for its 32 bits; the value above it means "undefined".
pub const SATURATED: u32 = UNDEF_ORDER_SIZE - 1;

const E4_TO_E9: i64 = 100_000;

/// Fields that all records of one message share.
#[derive(Clone, Copy)]
pub(super) struct Stamp {
    pub(super) publisher_id: u16,
    pub(super) locate: u16,
    pub(super) sequence: u32,
    pub(super) ts_event: u64,
    pub(super) ts_recv: u64,
    pub(super) ts_in_delta: i32,
    pub(super) flags: u8,
}

impl Stamp {
    #[inline]
    const fn header<R: dbn::HasRType>(self, rtype: RType) -> RecordHeader {
        let instrument = self.locate as u32;
        RecordHeader::new::<R>(rtype as u8, self.publisher_id, instrument, self.ts_event)
    }
}

/// A book record of `(order id, price, size)`.
#[inline]
pub(super) fn mbo(
    stamp: Stamp,
    action: Action,
    side: Side,
    (order_id, price, size): (u64, i64, u32),
    mark: u8,
) -> MboMsg {
    MboMsg {
        hd: stamp.header::<MboMsg>(RType::Mbo),
        order_id,
        price,
        size,
        flags: FlagSet::new(stamp.flags | mark),
        channel_id: 0,
        action: action as _,
        side: side as _,
        ts_recv: stamp.ts_recv,
        ts_in_delta: stamp.ts_in_delta,
        sequence: stamp.sequence,
    }
}

/// Names an instrument, as DBN's symbol maps read it.
pub(super) fn mapping(stamp: Stamp, stock: &Stock, start_ts: u64) -> SymbolMappingMsg {
    let mut record = SymbolMappingMsg {
        hd: stamp.header::<SymbolMappingMsg>(RType::SymbolMapping),
        stype_in: SType::RawSymbol as u8,
        stype_out: SType::RawSymbol as u8,
        start_ts,
        ..SymbolMappingMsg::default()
    };
    text(&mut record.stype_in_symbol, stock);
    text(&mut record.stype_out_symbol, stock);
    record
}

pub(super) fn status(stamp: Stamp) -> StatusMsg {
    StatusMsg {
        hd: stamp.header::<StatusMsg>(RType::Status),
        ts_recv: stamp.ts_recv,
        ..StatusMsg::default()
    }
}

pub(super) fn stat(stamp: Stamp, kind: StatType) -> StatMsg {
    StatMsg {
        hd: stamp.header::<StatMsg>(RType::Statistics),
        ts_recv: stamp.ts_recv,
        sequence: stamp.sequence,
        ts_in_delta: stamp.ts_in_delta,
        stat_type: kind as u16,
        channel_id: 0,
        ..StatMsg::default()
    }
}

pub(super) fn imbalance(batch: &mut RecordBatch, stamp: Stamp, m: &Imbalance) -> Option<Incident> {
    let ((paired, a), (unpaired, b)) = (quantity(m.paired), quantity(m.imbalance));
    let side = match m.direction {
        b'B' => Side::Bid,
        b'S' => Side::Ask,
        _ => Side::None,
    };
    batch.put(&ImbalanceMsg {
        hd: stamp.header::<ImbalanceMsg>(RType::Imbalance),
        ts_recv: stamp.ts_recv,
        ref_price: price_if_any(m.reference_price),
        cont_book_clr_price: price_if_any(m.near_price),
        auct_interest_clr_price: price_if_any(m.far_price),
        paired_qty: paired,
        total_imbalance_qty: unpaired,
        auction_type: m.cross_type as _,
        side: side as _,
        auction_status: m.direction,
        significant_imbalance: m.variation as _,
        ..ImbalanceMsg::default()
    });
    (a || b).then_some(Incident::Saturated)
}

pub(super) fn direct_listing(
    batch: &mut RecordBatch,
    stamp: Stamp,
    m: &DirectListing,
    near_at: u64,
) {
    batch.put(&ImbalanceMsg {
        hd: stamp.header::<ImbalanceMsg>(RType::Imbalance),
        ts_recv: stamp.ts_recv,
        auction_time: near_at,
        ind_match_price: price_if_any(m.near_price),
        upper_collar: price_if_any(m.upper),
        lower_collar: price_if_any(m.lower),
        auction_type: b'O' as _,
        auction_status: m.eligible,
        ..ImbalanceMsg::default()
    });
    for (kind, limit) in [
        (StatType::LowerPriceLimit, m.min_price),
        (StatType::UpperPriceLimit, m.max_price),
    ] {
        batch.put(&StatMsg {
            price: price_if_any(limit),
            ..stat(stamp, kind)
        });
    }
}

pub(super) fn definition(batch: &mut RecordBatch, stamp: Stamp, m: &StockDirectory) {
    let lot = i32::try_from(m.round_lot_size).unwrap_or(i32::MAX);
    let mut record = InstrumentDefMsg {
        hd: stamp.header::<InstrumentDefMsg>(RType::InstrumentDef),
        ts_recv: stamp.ts_recv,
        raw_instrument_id: u64::from(stamp.locate),
        min_lot_size_round_lot: lot,
        min_trade_vol: if m.round_lots_only == b'Y' {
            m.round_lot_size
        } else {
            1
        },
        inst_attrib_value: i32::try_from(m.etp_leverage).unwrap_or(i32::MAX),
        channel_id: 0,
        instrument_class: b'K' as _,
        security_update_action: SecurityUpdateAction::Add as _,
        ..InstrumentDefMsg::default()
    };
    let [s0, s1] = m.sub_type;
    let codes = [
        m.market_category,
        m.financial_status,
        m.round_lots_only,
        m.classification,
        s0,
        s1,
        m.authenticity,
        m.short_sale_threshold,
        m.ipo_flag,
        m.luld_tier,
        m.etp_flag,
        m.inverse,
    ];
    text(&mut record.raw_symbol, &m.stock);
    text(&mut record.group, &codes);
    text(&mut record.security_type, &[m.classification, s0, s1]);
    text(&mut record.currency, b"USD");
    text(&mut record.exchange, b"XNAS");
    batch.put(&record);
}

pub(super) fn trading_action(stamp: Stamp, m: &TradingAction) -> StatusMsg {
    use TriState::{No, NotAvailable, Yes};
    let (action, trading, quoting) = match m.state {
        b'H' => (StatusAction::Halt, No, No),
        b'P' => (StatusAction::Pause, No, No),
        b'Q' => (StatusAction::Quoting, No, Yes),
        b'T' => (StatusAction::Trading, Yes, Yes),
        _ => (StatusAction::None, NotAvailable, NotAvailable),
    };
    StatusMsg {
        action: action as u16,
        reason: reason(m.reason) as u16,
        is_trading: trading as _,
        is_quoting: quoting as _,
        ..status(stamp)
    }
}

pub(super) const fn system_event(code: u8) -> (StatusAction, TriState) {
    match code {
        b'S' => (StatusAction::PreOpen, TriState::NotAvailable),
        b'Q' => (StatusAction::Trading, TriState::Yes),
        b'M' => (StatusAction::Close, TriState::No),
        b'E' => (StatusAction::PostClose, TriState::No),
        b'C' => (StatusAction::NotAvailableForTrading, TriState::No),
        _ => (StatusAction::None, TriState::NotAvailable),
    }
}

/// The venue's reason codes (TotalView-ITCH 5.0, appendix of trading action reasons) in DBN's.
const fn reason(code: [u8; 4]) -> StatusReason {
    match &code {
        b"T1  " => StatusReason::NewsPending,
        b"T2  " => StatusReason::NewsReleased,
        b"T3  " => StatusReason::NewsAndResumptionTimes,
        b"T5  " | b"T7  " | b"LUDP" | b"LUDS" => StatusReason::LuldPause,
        b"T6  " => StatusReason::MarketEvent,
        b"T8  " => StatusReason::Etf,
        b"T12 " => StatusReason::AdditionalInformationRequested,
        b"H4  " => StatusReason::NonCompliance,
        b"H9  " => StatusReason::FilingsNotCurrent,
        b"H10 " => StatusReason::SecTradingSuspension,
        b"H11 " | b"C11 " => StatusReason::Regulatory,
        b"O1  " => StatusReason::Operational,
        b"IPO1" | b"IPOQ" | b"IPOE" => StatusReason::NewIssue,
        b"M1  " => StatusReason::CorporateAction,
        b"M2  " => StatusReason::QuotationNotAvailable,
        b"R1  " => StatusReason::IssueAvailable,
        b"R4  " | b"C4  " => StatusReason::IssuesReviewed,
        b"R9  " | b"C9  " => StatusReason::FilingReqsSatisfied,
        b"C3  " => StatusReason::NewsNotForthcoming,
        b"MWC0" => StatusReason::MarketWideHaltCarryover,
        b"MWC1" => StatusReason::MarketWideHaltLevel1,
        b"MWC2" => StatusReason::MarketWideHaltLevel2,
        b"MWC3" => StatusReason::MarketWideHaltLevel3,
        b"MWCQ" => StatusReason::MarketWideHaltResumption,
        _ => StatusReason::None,
    }
}

pub(super) fn participant(m: &ParticipantPosition) -> i64 {
    let [a, b, c, d] = m.mpid;
    i64::from_be_bytes([0, a, b, c, d, m.primary, m.mode, m.state])
}

pub(super) const fn side_of(buys: bool) -> Side {
    if buys { Side::Bid } else { Side::Ask }
}

#[inline]
pub(super) const fn price(e4: u32) -> i64 {
    e4 as i64 * E4_TO_E9
}

pub(super) const fn price_if_any(e4: u32) -> i64 {
    if e4 == 0 { UNDEF_PRICE } else { price(e4) }
}

/// `None` when the price does not fit.
pub(super) fn price_from_e8(e8: u64) -> Option<i64> {
    i64::try_from(e8)
        .ok()?
        .checked_mul(10)
        .filter(|&price| price != UNDEF_PRICE)
}

/// A quantity in 32 bits, and whether it had to be saturated.
pub(super) fn quantity(shares: u64) -> (u32, bool) {
    match u32::try_from(shares) {
        Ok(size) if size <= SATURATED => (size, false),
        _ => (SATURATED, true),
    }
}

/// Puts space-padded text into a NUL-terminated field; what is not printable becomes `?`.
fn text(field: &mut [std::ffi::c_char], from: &[u8]) {
    let len = from
        .iter()
        .rposition(|&b| b != b' ')
        .map_or(0, |last| last + 1);
    let room = field.len() - 1;
    for (to, &byte) in field[..room].iter_mut().zip(&from[..len]) {
        let printable = byte.is_ascii_graphic() || byte == b' ';
        *to = if printable { byte } else { b'?' } as _;
    }
}
