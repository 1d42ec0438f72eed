//! The two records that most handlers need, in one call each. The module `record` has all others.

use tickcast_reliability::record::{
    Action, BidAskPair, Mbp1Msg, RType, RecordHeader, Side, TradeMsg, WireRecord,
};

/// Returns a trade of `size` at `price`, in units of 1e-9. Time stamps and the venue's number
/// (`hd.publisher_id`) are 0; set those that you know.
///
/// ```
/// use tickcast_publisher::trade;
///
/// let mut trade = trade(7, 101_500_000_000, 200);
/// trade.hd.ts_event = 1_700_000_000_000_000_000;
/// assert_eq!((trade.hd.instrument_id, trade.price, trade.size), (7, 101_500_000_000, 200));
/// ```
#[must_use]
pub fn trade(instrument: u32, price: i64, size: u32) -> TradeMsg {
    TradeMsg {
        hd: header::<TradeMsg>(RType::Mbp0, instrument),
        price,
        size,
        action: Action::Trade as _,
        side: Side::None as _,
        ..TradeMsg::default()
    }
}

/// Returns the best bid and offer, each with price (in units of 1e-9) and size. Stamps are as in [`trade`].
///
/// ```
/// use tickcast_publisher::quote;
///
/// let quote = quote(7, (101_400_000_000, 300), (101_500_000_000, 200));
/// assert_eq!((quote.levels[0].bid_sz, quote.levels[0].ask_sz), (300, 200));
/// ```
#[must_use]
pub fn quote(instrument: u32, bid: (i64, u32), ask: (i64, u32)) -> Mbp1Msg {
    Mbp1Msg {
        hd: header::<Mbp1Msg>(RType::Mbp1, instrument),
        action: Action::Modify as _,
        side: Side::None as _,
        levels: [BidAskPair {
            bid_px: bid.0,
            bid_sz: bid.1,
            ask_px: ask.0,
            ask_sz: ask.1,
            ..BidAskPair::default()
        }],
        ..Mbp1Msg::default()
    }
}

fn header<R: WireRecord>(rtype: RType, instrument: u32) -> RecordHeader {
    RecordHeader::new::<R>(rtype as u8, 0, instrument, 0)
}
