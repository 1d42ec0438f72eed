//! A limit order book with price-time priority: what rests is matched best price first, oldest
//! first, and it never crosses because nothing that would is let in.
//!
//! Orders lie in one vector and are linked within their price level; each side's levels are sorted
//! with the best one last, where almost everything happens. Memory is reused: a book that does not
//! grow does not allocate.

/// Which side of the book an order rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// Buys.
    Bid,
    /// Sells.
    Ask,
}

impl Side {
    /// The other side.
    #[must_use]
    pub const fn opposite(self) -> Self {
        match self {
            Self::Bid => Self::Ask,
            Self::Ask => Self::Bid,
        }
    }
}

/// A resting order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestingOrder {
    /// Its reference, unique in the day.
    pub reference: u64,
    /// Side.
    pub side: Side,
    /// Price, 4 implied decimals.
    pub price: u32,
    /// Shares that remain, never 0.
    pub shares: u32,
}

/// Names an order of a book until it is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot(u32);

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Node {
    order: RestingOrder,
    older: u32,
    younger: u32,
    /// Where `live` names this node.
    live_at: u32,
}

#[derive(Clone, Copy, Debug)]
struct Level {
    price: u32,
    oldest: u32,
    youngest: u32,
}

/// One symbol's book.
#[derive(Clone, Debug, Default)]
pub struct Book {
    nodes: Vec<Node>,
    free: Vec<u32>,
    live: Vec<u32>,
    bids: Vec<Level>,
    asks: Vec<Level>,
}

impl Book {
    /// An empty book that allocates nothing more until so many orders rest in it.
    #[must_use]
    pub fn with_capacity(orders: usize) -> Self {
        Self {
            nodes: Vec::with_capacity(orders),
            free: Vec::with_capacity(orders),
            live: Vec::with_capacity(orders),
            bids: Vec::with_capacity(orders),
            asks: Vec::with_capacity(orders),
        }
    }

    /// Orders resting.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.live.len()
    }

    /// Whether nothing rests.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.live.is_empty()
    }

    /// The best price of a side.
    #[inline]
    #[must_use]
    pub fn best(&self, side: Side) -> Option<u32> {
        self.levels(side).last().map(|level| level.price)
    }

    /// The order that is next to be matched on a side.
    #[inline]
    #[must_use]
    pub fn front(&self, side: Side) -> Option<Slot> {
        self.levels(side).last().map(|level| Slot(level.oldest))
    }

    /// Whether an order at this price would meet the other side.
    #[inline]
    #[must_use]
    pub fn crosses(&self, side: Side, price: u32) -> bool {
        match (side, self.best(side.opposite())) {
            (Side::Bid, Some(ask)) => price >= ask,
            (Side::Ask, Some(bid)) => price <= bid,
            (_, None) => false,
        }
    }

    /// The order in a slot.
    #[inline]
    #[must_use]
    pub fn order(&self, slot: Slot) -> RestingOrder {
        self.nodes[slot.0 as usize].order
    }

    /// The `n`th of all orders in an arbitrary but repeatable order, `n` taken modulo their
    /// number: how one is drawn at random.
    #[inline]
    #[must_use]
    pub fn nth(&self, n: usize) -> Option<Slot> {
        let at = n.checked_rem(self.live.len())?;
        Some(Slot(self.live[at]))
    }

    /// All orders of a side, in the order in which they would be matched.
    pub fn orders(&self, side: Side) -> impl Iterator<Item = RestingOrder> + '_ {
        self.levels(side).iter().rev().flat_map(|level| {
            std::iter::successors(self.node(level.oldest), |node| self.node(node.younger))
                .map(|node| node.order)
        })
    }

    /// Lets an order in, behind those of its price; `None` when it would cross or has no shares.
    #[inline]
    pub fn add(&mut self, order: RestingOrder) -> Option<Slot> {
        if order.shares == 0 || self.crosses(order.side, order.price) {
            return None;
        }
        let node = Node {
            order,
            older: NONE,
            younger: NONE,
            live_at: self.live.len() as u32,
        };
        let at = match self.free.pop() {
            Some(at) => {
                self.nodes[at as usize] = node;
                at
            }
            None => {
                self.nodes.push(node);
                (self.nodes.len() - 1) as u32
            }
        };
        self.live.push(at);
        match self.find(order.side, order.price) {
            Ok(level) => {
                let level = &mut self.levels_mut(order.side)[level];
                let older = std::mem::replace(&mut level.youngest, at);
                self.nodes[older as usize].younger = at;
                self.nodes[at as usize].older = older;
            }
            Err(place) => {
                let level = Level {
                    price: order.price,
                    oldest: at,
                    youngest: at,
                };
                self.levels_mut(order.side).insert(place, level);
            }
        }
        Some(Slot(at))
    }

    /// Takes up to `shares` off an order, which keeps its priority; without shares left it goes.
    /// Gives how many were taken.
    #[inline]
    pub fn reduce(&mut self, slot: Slot, shares: u32) -> u32 {
        let order = &mut self.nodes[slot.0 as usize].order;
        let taken = shares.min(order.shares);
        if taken == order.shares {
            self.remove(slot);
        } else {
            order.shares -= taken;
        }
        taken
    }

    /// Takes an order out.
    #[inline]
    pub fn remove(&mut self, slot: Slot) -> RestingOrder {
        let Node {
            order,
            older,
            younger,
            live_at,
        } = self.nodes[slot.0 as usize];
        if let Some(node) = self.nodes.get_mut(older as usize) {
            node.younger = younger;
        }
        if let Some(node) = self.nodes.get_mut(younger as usize) {
            node.older = older;
        }
        if let Ok(at) = self.find(order.side, order.price) {
            let levels = self.levels_mut(order.side);
            if older == NONE && younger == NONE {
                levels.remove(at);
            } else if older == NONE {
                levels[at].oldest = younger;
            } else if younger == NONE {
                levels[at].youngest = older;
            }
        }
        self.live.swap_remove(live_at as usize);
        if let Some(&moved) = self.live.get(live_at as usize) {
            self.nodes[moved as usize].live_at = live_at;
        }
        self.free.push(slot.0);
        order
    }

    #[inline]
    fn find(&self, side: Side, price: u32) -> Result<usize, usize> {
        let levels = self.levels(side);
        // Most of what happens, happens at the best price.
        if let Some(best) = levels.last()
            && best.price == price
        {
            return Ok(levels.len() - 1);
        }
        match side {
            Side::Bid => levels.binary_search_by(|level| level.price.cmp(&price)),
            Side::Ask => levels.binary_search_by(|level| price.cmp(&level.price)),
        }
    }

    fn node(&self, at: u32) -> Option<&Node> {
        self.nodes.get(at as usize)
    }

    const fn levels(&self, side: Side) -> &Vec<Level> {
        match side {
            Side::Bid => &self.bids,
            Side::Ask => &self.asks,
        }
    }

    const fn levels_mut(&mut self, side: Side) -> &mut Vec<Level> {
        match side {
            Side::Bid => &mut self.bids,
            Side::Ask => &mut self.asks,
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;

    fn order(reference: u64, side: Side, price: u32, shares: u32) -> RestingOrder {
        RestingOrder {
            reference,
            side,
            price,
            shares,
        }
    }

    #[test]
    fn book_orders_follow_price_time_priority() {
        let mut book = Book::default();
        assert!(book.is_empty());
        for (reference, price) in [(1, 100), (2, 102), (3, 101), (4, 102)] {
            book.add(order(reference, Side::Bid, price, 10)).unwrap();
            book.add(order(10 + reference, Side::Ask, 300 - price, 10))
                .unwrap();
        }
        let references = |side| book.orders(side).map(|o| o.reference).collect::<Vec<_>>();
        assert_eq!(references(Side::Bid), [2, 4, 3, 1]);
        assert_eq!(references(Side::Ask), [12, 14, 13, 11]);
        let front = book.front(Side::Bid).unwrap();
        assert_eq!(book.reduce(front, 4), 4);
        assert_eq!(
            book.order(front).shares,
            6,
            "an order that is reduced stays in front"
        );
        assert_eq!(book.reduce(front, 99), 6);
        assert_eq!(book.order(book.front(Side::Bid).unwrap()).reference, 4);
    }

    #[test]
    fn crossing_order_is_refused_by_book() {
        let mut book = Book::default();
        book.add(order(1, Side::Ask, 100, 1)).unwrap();
        assert!(book.add(order(2, Side::Bid, 100, 1)).is_none());
        assert!(book.add(order(2, Side::Bid, 101, 1)).is_none());
        book.add(order(2, Side::Bid, 99, 1)).unwrap();
        assert!(book.add(order(3, Side::Ask, 99, 1)).is_none());
        assert_eq!(
            (book.best(Side::Bid), book.best(Side::Ask)),
            (Some(99), Some(100))
        );
    }

    #[test]
    fn book_agrees_with_sorted_list() {
        let seed = 11;
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut book = Book::default();
        let mut list: Vec<RestingOrder> = Vec::new();
        for reference in 0..20_000 {
            let side = if rng.random() { Side::Bid } else { Side::Ask };
            let price = match side {
                Side::Bid => rng.random_range(80..100),
                Side::Ask => rng.random_range(100..120),
            };
            if rng.random_range(0..100_u32) < 50 {
                let order = order(reference, side, price, rng.random_range(1..9));
                book.add(order).unwrap();
                list.push(order);
            } else if let Some(slot) = book.nth(rng.random::<u32>() as usize) {
                let order = book.order(slot);
                let at = list
                    .iter()
                    .position(|o| o.reference == order.reference)
                    .unwrap();
                assert_eq!(list[at], order, "seed {seed}");
                list[at].shares -= book.reduce(slot, rng.random_range(1..9));
                list.retain(|o| o.shares > 0);
            }
            for side in [Side::Bid, Side::Ask] {
                let mut expected: Vec<_> = list.iter().filter(|o| o.side == side).collect();
                expected.sort_by_key(|o| if side == Side::Bid { !o.price } else { o.price });
                assert!(
                    book.orders(side).eq(expected.into_iter().copied()),
                    "seed {seed}"
                );
            }
            assert_eq!(book.len(), list.len(), "seed {seed}");
        }
    }
}
