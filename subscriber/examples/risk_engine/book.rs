//! A book of one instrument, made of its orders or of its price levels.
//!
//! | record | effect |
//! |---|---|
//! | flag MBP | the level's total becomes the record's size; Cancel, or size 0, removes the level |
//! | A add | a new order; it replaces one of the same id |
//! | M modify | as add: the record has the new price and size |
//! | C cancel | the size is subtracted from the order; an undefined size removes the order |
//! | R clear | removes everything |
//! | T, F, N | none: a C record follows each execution |
//!
//! An order that was never added (a late join) is not in the book, and its later records have no effect.
//! An order without a side or a price is not in the book either.

use std::collections::{BTreeMap, HashMap};

use tickcast_subscriber::record::{Action, MboMsg, Side, UNDEF_PRICE, flags};

/// The orders, and their total size per price.
#[derive(Debug, Default)]
pub(crate) struct Book {
    orders: HashMap<u64, Order>,
    bids: BTreeMap<i64, u64>,
    asks: BTreeMap<i64, u64>,
}

#[derive(Clone, Copy, Debug)]
struct Order {
    buys: bool,
    price: i64,
    size: u32,
}

impl Book {
    /// Returns the highest bid price.
    pub(crate) fn bid(&self) -> Option<i64> {
        self.bids.last_key_value().map(|(&price, _)| price)
    }

    /// Returns the lowest ask price.
    pub(crate) fn ask(&self) -> Option<i64> {
        self.asks.first_key_value().map(|(&price, _)| price)
    }

    /// Removes everything.
    pub(crate) fn clear(&mut self) {
        self.orders.clear();
        self.bids.clear();
        self.asks.clear();
    }

    /// Applies a record.
    pub(crate) fn apply(&mut self, record: &MboMsg) {
        let Ok(action) = record.action() else { return };
        let buys = match record.side() {
            Ok(Side::Bid) => Some(true),
            Ok(Side::Ask) => Some(false),
            _ => None,
        };
        let order = buys
            .filter(|_| record.price != UNDEF_PRICE)
            .map(|buys| Order {
                buys,
                price: record.price,
                size: record.size,
            });
        match action {
            Action::Clear => self.clear(),
            Action::Trade | Action::Fill | Action::None => {}
            _ if record.flags.raw() & flags::MBP != 0 => {
                if let Some(Order { buys, price, size }) = order {
                    let gone = action == Action::Cancel || size == 0;
                    self.set_level(buys, price, if gone { 0 } else { u64::from(size) });
                }
            }
            Action::Cancel => self.take_off(record.order_id, record.size),
            Action::Add | Action::Modify => {
                self.take_off(record.order_id, u32::MAX);
                if let Some(order) = order {
                    self.orders.insert(record.order_id, order);
                    self.add_to_level(order.buys, order.price, i64::from(order.size));
                }
            }
        }
    }

    fn take_off(&mut self, id: u64, size: u32) {
        let Some(order) = self.orders.get_mut(&id) else {
            return;
        };
        let Order { buys, price, .. } = *order;
        // The undefined size is the largest number, so it removes the whole order.
        let taken = size.min(order.size);
        order.size -= taken;
        if order.size == 0 {
            self.orders.remove(&id);
        }
        self.add_to_level(buys, price, -i64::from(taken));
    }

    fn add_to_level(&mut self, buys: bool, price: i64, size: i64) {
        let total = self.side(buys).get(&price).copied().unwrap_or(0);
        self.set_level(buys, price, total.saturating_add_signed(size));
    }

    fn set_level(&mut self, buys: bool, price: i64, total: u64) {
        let levels = self.side(buys);
        if total == 0 {
            levels.remove(&price);
        } else {
            levels.insert(price, total);
        }
    }

    const fn side(&mut self, buys: bool) -> &mut BTreeMap<i64, u64> {
        if buys { &mut self.bids } else { &mut self.asks }
    }
}

#[cfg(test)]
mod tests {
    use tickcast_subscriber::record::{FlagSet, UNDEF_ORDER_SIZE};

    use super::*;

    fn order(action: u8, side: u8, id: u64, price: i64, size: u32) -> MboMsg {
        MboMsg {
            order_id: id,
            price,
            size,
            action: action as _,
            side: side as _,
            ..MboMsg::default()
        }
    }

    fn book(records: &[MboMsg]) -> (Option<i64>, Option<i64>) {
        let mut book = Book::default();
        records.iter().for_each(|record| book.apply(record));
        (book.bid(), book.ask())
    }

    #[test]
    fn best_price_follows_remaining_orders() {
        let both = [
            order(b'A', b'B', 1, 10, 100),
            order(b'A', b'B', 2, 11, 100),
            order(b'A', b'A', 3, 13, 100),
            order(b'A', b'A', 4, 12, 100),
        ];
        assert_eq!(book(&both), (Some(11), Some(12)));
        let with = |more: MboMsg| book(&[&both[..], &[more]].concat());
        assert_eq!(with(order(b'C', b'B', 2, 11, 99)), (Some(11), Some(12)));
        assert_eq!(with(order(b'C', b'B', 2, 11, 100)), (Some(10), Some(12)));
        let all = order(b'C', b'N', 2, UNDEF_PRICE, UNDEF_ORDER_SIZE);
        assert_eq!(with(all), (Some(10), Some(12)));
        assert_eq!(with(order(b'M', b'A', 4, 14, 1)), (Some(11), Some(13)));
        assert_eq!(with(order(b'T', b'B', 2, 11, 100)), (Some(11), Some(12)));
        assert_eq!(with(order(b'F', b'B', 2, 11, 100)), (Some(11), Some(12)));
        assert_eq!(with(order(b'C', b'B', 99, 11, 100)), (Some(11), Some(12)));
        assert_eq!(with(order(b'A', b'N', 5, 99, 100)), (Some(11), Some(12)));
        assert_eq!(with(order(b'R', b'N', 0, UNDEF_PRICE, 0)), (None, None));
    }

    #[test]
    fn price_level_remains_until_last_order_is_removed() {
        let one_left = [
            order(b'A', b'B', 1, 10, 5),
            order(b'A', b'B', 2, 10, 7),
            order(b'C', b'B', 1, 10, 5),
        ];
        assert_eq!(book(&one_left), (Some(10), None));
    }

    #[test]
    fn price_level_is_replaced_by_its_last_update() {
        let level = |action: u8, side: u8, price: i64, size: u32| MboMsg {
            flags: FlagSet::new(flags::MBP),
            ..order(action, side, 0, price, size)
        };
        let both = [
            level(b'M', b'B', 10, 5),
            level(b'M', b'B', 11, 5),
            level(b'M', b'A', 12, 5),
        ];
        assert_eq!(book(&both), (Some(11), Some(12)));
        let gone = [&both[..], &[level(b'C', b'B', 11, 0)]].concat();
        assert_eq!(book(&gone), (Some(10), Some(12)));
    }
}
