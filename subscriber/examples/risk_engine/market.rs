//! The mark of an instrument: its value according to the stream.
//!
//! The mark is the middle of best bid and best ask if both exist, rounded towards zero to 1e-9.
//! Otherwise it is the last trade, or nothing. Bid and ask come from the newest quote (`Mbp1Msg`)
//! or from the book (`MboMsg`). The book counts after the last record of an event, the one with flag
//! LAST. Intermediate states of the book are not a market. A trade is an `MboMsg` or `TradeMsg` with
//! action T, a price and a size. A trade that is broken later stays the last one.
//!
//! A market is *suspect* after a loss of its records. Its mark then stays unchanged until a complete
//! quote arrives or its book is cleared, because a book made of changes can't repair itself.

use tickcast_subscriber::record::{
    Action, MboMsg, Mbp1Msg, RecordRef, TradeMsg, UNDEF_PRICE, flags,
};

use super::book::Book;

/// The market of one instrument.
#[derive(Debug, Default)]
pub(crate) struct Market {
    /// The mark, in 1e-9.
    pub(crate) mark: Option<i64>,
    pub(crate) is_suspect: bool,
    /// The source of its newest record.
    pub(crate) source: u16,
    book: Book,
    bid: Option<i64>,
    ask: Option<i64>,
    last: Option<i64>,
}

impl Market {
    /// Applies a record of this instrument. Returns whether the mark changed.
    pub(crate) fn apply(&mut self, record: RecordRef<'_>) -> bool {
        if let Some(order) = record.get::<MboMsg>() {
            self.order(order);
            // Within an event the book is in an intermediate state, so only the last record gives a price.
            return order.flags.raw() & flags::LAST != 0 && self.price();
        }
        if let Some(quote) = record.get::<Mbp1Msg>() {
            self.quote(quote);
        } else if let Some(trade) = record.get::<TradeMsg>() {
            if trade.action().ok() == Some(Action::Trade) {
                self.trade(trade.price, trade.size);
            }
        } else {
            return false;
        }
        self.price()
    }

    /// Forgets everything, because it belongs to a stream that has ended.
    pub(crate) fn forget(&mut self) {
        self.book.clear();
        (self.bid, self.ask) = (None, None);
        self.is_suspect = true;
    }

    fn order(&mut self, order: &MboMsg) {
        let action = order.action().ok();
        if action == Some(Action::Trade) {
            self.trade(order.price, order.size);
        }
        self.book.apply(order);
        if order.flags.raw() & flags::MAYBE_BAD_BOOK != 0 {
            self.is_suspect = true;
        } else if action == Some(Action::Clear) {
            self.is_suspect = false;
        }
        if order.flags.raw() & flags::LAST != 0 {
            (self.bid, self.ask) = (self.book.bid(), self.book.ask());
        }
    }

    fn quote(&mut self, quote: &Mbp1Msg) {
        let [level] = &quote.levels;
        let side = |price: i64, size: u32| (price != UNDEF_PRICE && size > 0).then_some(price);
        self.bid = side(level.bid_px, level.bid_sz);
        self.ask = side(level.ask_px, level.ask_sz);
        self.is_suspect = quote.flags.raw() & flags::MAYBE_BAD_BOOK != 0;
    }

    const fn trade(&mut self, price: i64, size: u32) {
        if price != UNDEF_PRICE && size > 0 {
            self.last = Some(price);
        }
    }

    /// Updates the mark from the market. Returns whether the mark changed.
    fn price(&mut self) -> bool {
        if self.is_suspect {
            return false;
        }
        let middle = |bid: i64, ask: i64| ((i128::from(bid) + i128::from(ask)) / 2) as i64;
        let mark = match (self.bid, self.ask) {
            (Some(bid), Some(ask)) => Some(middle(bid, ask)),
            _ => self.last,
        };
        mark != std::mem::replace(&mut self.mark, mark)
    }
}

#[cfg(test)]
mod tests {
    use tickcast_subscriber::record::{BidAskPair, FlagSet};

    use super::*;

    fn quote(bid_px: i64, ask_px: i64) -> Mbp1Msg {
        let size = |price| u32::from(price != UNDEF_PRICE);
        Mbp1Msg {
            levels: [BidAskPair {
                bid_px,
                ask_px,
                bid_sz: size(bid_px),
                ask_sz: size(ask_px),
                ..BidAskPair::default()
            }],
            flags: FlagSet::new(flags::LAST),
            ..Mbp1Msg::default()
        }
    }

    fn trade(price: i64) -> TradeMsg {
        TradeMsg {
            price,
            size: 1,
            action: b'T' as _,
            ..TradeMsg::default()
        }
    }

    fn order(action: u8, side: u8, id: u64, price: i64, last: bool) -> MboMsg {
        MboMsg {
            order_id: id,
            price,
            size: 1,
            action: action as _,
            side: side as _,
            flags: FlagSet::new(if last { flags::LAST } else { 0 }),
            ..MboMsg::default()
        }
    }

    #[test]
    fn mark_is_mid_price_or_last_trade() {
        let mut market = Market::default();
        assert_eq!(market.mark, None);
        market.apply((&quote(10, UNDEF_PRICE)).into());
        assert_eq!(market.mark, None, "one side makes no middle");
        market.apply((&trade(7)).into());
        assert_eq!(market.mark, Some(7));
        assert!(market.apply((&quote(10, 13)).into()));
        assert_eq!(market.mark, Some(11));
        assert!(!market.apply((&trade(8)).into()), "the quote goes first");
        assert_eq!(market.mark, Some(11));
        market.apply((&quote(UNDEF_PRICE, 13)).into());
        assert_eq!(market.mark, Some(8));
        market.apply((&quote(-10, 7)).into());
        assert_eq!(market.mark, Some(-1), "rounded towards zero");
    }

    #[test]
    fn trade_cancel_does_not_change_mark() {
        let mut market = Market::default();
        market.apply((&trade(7)).into());
        market.apply(
            (&TradeMsg {
                action: b'C' as _,
                ..trade(9)
            })
                .into(),
        );
        assert_eq!(market.mark, Some(7));
    }

    #[test]
    fn mark_updates_at_last_record_of_book_event() {
        let mut market = Market::default();
        market.apply((&order(b'A', b'B', 1, 10, true)).into());
        market.apply((&order(b'A', b'A', 2, 20, true)).into());
        assert_eq!(market.mark, Some(15));
        assert!(!market.apply((&order(b'C', b'B', 1, 10, false)).into()));
        assert_eq!(market.mark, Some(15));
        market.apply((&order(b'A', b'B', 3, 12, true)).into());
        assert_eq!(market.mark, Some(16));
    }

    #[test]
    fn suspect_market_keeps_mark_until_valid_quote() {
        let mut market = Market::default();
        market.apply((&quote(10, 12)).into());
        market.is_suspect = true;
        market.apply((&trade(50)).into());
        assert_eq!(market.mark, Some(11));
        let bad = Mbp1Msg {
            flags: FlagSet::new(flags::MAYBE_BAD_BOOK),
            ..quote(30, 32)
        };
        assert!(!market.apply((&bad).into()));
        assert!(market.is_suspect);
        assert!(market.apply((&quote(20, 22)).into()));
        assert_eq!((market.is_suspect, market.mark), (false, Some(21)));
    }

    #[test]
    fn suspect_book_is_trusted_after_clear() {
        let mut market = Market::default();
        market.apply((&order(b'A', b'B', 1, 10, true)).into());
        market.apply((&order(b'A', b'A', 2, 20, true)).into());
        market.is_suspect = true;
        market.apply((&order(b'A', b'B', 3, 18, true)).into());
        assert_eq!(market.mark, Some(15));
        market.apply((&order(b'R', b'N', 0, UNDEF_PRICE, true)).into());
        assert_eq!((market.is_suspect, market.mark), (false, None));
        market.apply((&order(b'A', b'B', 4, 30, true)).into());
        market.apply((&order(b'A', b'A', 5, 40, true)).into());
        assert_eq!(market.mark, Some(35));
    }
}
