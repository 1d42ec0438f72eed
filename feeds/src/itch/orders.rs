//! The orders the venue has open, by reference: found in a few cache lines, bounded in memory and
//! in the work of one look-up, whatever references arrive.
//!
//! Open addressing with linear probing; a removed order's successors move up, so there are no
//! tombstones and no rebuild in the middle of a session. The table doubles while the book grows to
//! a size it never had; beyond its bound it refuses, and the caller counts.

/// An order of the book.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// Price, 4 implied decimals.
    pub price: u32,
    /// Shares that remain.
    pub shares: u32,
    /// Index of its stock.
    pub locate: u16,
    /// Whether it buys.
    pub buys: bool,
}

/// Orders by reference.
#[derive(Clone, Debug)]
pub struct Orders {
    /// Reference; price and shares; `USED`, buys and locate. All zero: free.
    slots: Vec<[u64; 3]>,
    shift: u32,
    len: usize,
    max: usize,
    refused: u64,
}

const USED: u64 = 1 << 63;
const BUYS: u64 = 1 << 62;
/// For 16,384 open orders (768 KiB): a small market never has the table built anew while its feed waits, and
/// holds as much memory in its last hour as in its first.
const SLOTS_FIRST: usize = 1 << 15;
/// The furthest an order may stand from its own slot. Far beyond what chance gives at half load.
const PROBES_MAX: usize = 512;

impl Orders {
    /// An empty table that never holds more than `max` orders.
    #[must_use]
    pub fn new(max: usize) -> Self {
        let mut orders = Self {
            slots: Vec::new(),
            shift: 0,
            len: 0,
            max,
            refused: 0,
        };
        orders.resize(SLOTS_FIRST);
        orders
    }

    /// Takes an order in; an order of the same reference is replaced. `false`, and counted, when
    /// the table is full.
    #[inline]
    pub fn insert(&mut self, reference: u64, order: Order) -> bool {
        loop {
            let mut at = self.home(reference);
            for _ in 0..PROBES_MAX {
                let slot = self.slots[at];
                if slot[2] == 0 {
                    if self.len >= self.max || self.len >= self.slots.len() / 2 {
                        break;
                    }
                    self.slots[at] = pack(reference, order);
                    self.len += 1;
                    return true;
                }
                if slot[0] == reference {
                    self.slots[at] = pack(reference, order);
                    return true;
                }
                at = (at + 1) & (self.slots.len() - 1);
            }
            if !self.grow() {
                self.refused += 1;
                return false;
            }
        }
    }

    /// The order with this reference.
    #[inline]
    #[must_use]
    pub fn find(&self, reference: u64) -> Option<Order> {
        self.position(reference).map(|at| unpack(self.slots[at]))
    }

    /// Takes up to `shares` off an order and gives the order as it was before; without shares left
    /// it goes.
    #[inline(always)]
    pub fn reduce(&mut self, reference: u64, shares: u32) -> Option<Order> {
        let at = self.position(reference)?;
        let order = unpack(self.slots[at]);
        if shares >= order.shares {
            self.free(at);
        } else {
            let shares = order.shares - shares;
            self.slots[at] = pack(reference, Order { shares, ..order });
        }
        Some(order)
    }

    /// Takes an order out.
    #[inline(always)]
    pub fn remove(&mut self, reference: u64) -> Option<Order> {
        self.reduce(reference, u32::MAX)
    }

    /// Forgets all orders and keeps the memory.
    pub fn clear(&mut self) {
        self.slots.fill([0; 3]);
        self.len = 0;
    }

    /// How many orders it holds.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many orders were refused because the table was full.
    #[must_use]
    pub const fn refused(&self) -> u64 {
        self.refused
    }

    #[inline(always)]
    fn home(&self, reference: u64) -> usize {
        // Fibonacci hashing: references that follow each other spread evenly.
        (reference.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> self.shift) as usize
    }

    #[inline(always)]
    fn position(&self, reference: u64) -> Option<usize> {
        let mut at = self.home(reference);
        for _ in 0..PROBES_MAX {
            let slot = &self.slots[at];
            if slot[2] == 0 {
                return None;
            }
            if slot[0] == reference {
                return Some(at);
            }
            at = (at + 1) & (self.slots.len() - 1);
        }
        None
    }

    /// Frees a slot and moves up those behind it that stand further from home than they need to.
    #[inline]
    fn free(&mut self, at: usize) {
        let mask = self.slots.len() - 1;
        let (mut hole, mut next) = (at, at);
        // At most half of the slots are used, so a free one ends the run.
        loop {
            next = (next + 1) & mask;
            let slot = self.slots[next];
            if slot[2] == 0 {
                break;
            }
            let from_home = next.wrapping_sub(self.home(slot[0])) & mask;
            if from_home >= (next.wrapping_sub(hole) & mask) {
                self.slots[hole] = slot;
                hole = next;
            }
        }
        self.slots[hole] = [0; 3];
        self.len -= 1;
    }

    /// Doubles the table unless that is more than its bound can need.
    #[cold]
    fn grow(&mut self) -> bool {
        if self.len >= self.max || self.slots.len() / 4 >= self.max {
            return false;
        }
        let old = self.slots.len();
        self.resize(old * 2);
        true
    }

    fn resize(&mut self, slots: usize) {
        let old = std::mem::replace(&mut self.slots, vec![[0; 3]; slots]);
        self.shift = u64::BITS - slots.trailing_zeros();
        for slot in old.into_iter().filter(|slot| slot[2] != 0) {
            // Runs keep their order and only get shorter, so all stay within reach of a look-up.
            let mut at = self.home(slot[0]);
            while self.slots[at][2] != 0 {
                at = (at + 1) & (slots - 1);
            }
            self.slots[at] = slot;
        }
    }
}

const fn pack(reference: u64, order: Order) -> [u64; 3] {
    let side = if order.buys { BUYS } else { 0 };
    [
        reference,
        (order.price as u64) << 32 | order.shares as u64,
        USED | side | order.locate as u64,
    ]
}

const fn unpack(slot: [u64; 3]) -> Order {
    Order {
        price: (slot[1] >> 32) as u32,
        shares: slot[1] as u32,
        locate: slot[2] as u16,
        buys: slot[2] & BUYS != 0,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;

    fn order(n: u64) -> Order {
        Order {
            price: n as u32 ^ 0xFFFF,
            shares: (n % 900) as u32 + 1,
            locate: n as u16,
            buys: n.is_multiple_of(3),
        }
    }

    #[test]
    fn order_table_agrees_with_hash_map() {
        let seed = 7;
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut orders = Orders::new(1 << 20);
        let mut map = HashMap::new();
        for n in 0..200_000_u64 {
            let reference = rng.random_range(0..40_000_u64) << rng.random_range(0..3_u32);
            match rng.random_range(0..3_u32) {
                0 => {
                    assert!(orders.insert(reference, order(n)), "seed {seed}");
                    map.insert(reference, order(n));
                }
                1 => assert_eq!(
                    orders.remove(reference),
                    map.remove(&reference),
                    "seed {seed}"
                ),
                _ => {
                    let shares = rng.random_range(0..500);
                    assert_eq!(
                        orders.reduce(reference, shares),
                        map.get(&reference).copied()
                    );
                    if let Some(o) = map.get_mut(&reference) {
                        o.shares = o.shares.saturating_sub(shares);
                        if o.shares == 0 {
                            map.remove(&reference);
                        }
                    }
                }
            }
            assert_eq!(
                orders.find(reference),
                map.get(&reference).copied(),
                "seed {seed}"
            );
            assert_eq!(orders.len(), map.len(), "seed {seed}");
        }
        assert!(
            map.iter().all(|(r, o)| orders.find(*r) == Some(*o)),
            "seed {seed}"
        );
    }

    #[test]
    fn full_order_table_counts_refused_inserts() {
        let mut orders = Orders::new(10_000);
        for n in 0..10_000 {
            assert!(orders.insert(n, order(n)));
        }
        assert!(!orders.insert(10_000, order(1)));
        assert!(orders.insert(3, order(9)), "replacing needs no room");
        assert_eq!((orders.len(), orders.refused()), (10_000, 1));
        orders.remove(0);
        assert!(orders.insert(10_000, order(1)));
        orders.clear();
        assert!(orders.is_empty() && orders.find(10_000).is_none());
    }

    #[test]
    fn order_table_doubles_beyond_half() {
        let mut orders = Orders::new(SLOTS_FIRST);
        for (held, slots) in [
            (SLOTS_FIRST / 2, SLOTS_FIRST),
            (SLOTS_FIRST / 2 + 1, 2 * SLOTS_FIRST),
            (SLOTS_FIRST, 2 * SLOTS_FIRST),
        ] {
            (0..held as u64).for_each(|n| assert!(orders.insert(n, order(n))));
            assert_eq!((orders.len(), orders.slots.len()), (held, slots));
        }
        assert!(!orders.insert(u64::MAX, order(1)));
        assert_eq!(
            orders.slots.len(),
            2 * SLOTS_FIRST,
            "no growth at the bound"
        );
    }

    #[test]
    fn refused_order_does_not_grow_table() {
        let mut orders = Orders::new(SLOTS_FIRST / 4 + 1);
        (0..=SLOTS_FIRST as u64 / 4).for_each(|n| assert!(orders.insert(n, order(n))));
        assert!(!orders.insert(u64::MAX, order(1)));
        assert_eq!(orders.slots.len(), SLOTS_FIRST);
    }

    #[test]
    fn order_of_zeros_is_held() {
        let mut orders = Orders::new(1);
        let zeros = Order {
            price: 0,
            shares: 0,
            locate: 0,
            buys: false,
        };
        assert_eq!(orders.find(0), None);
        assert!(orders.insert(0, zeros) && !orders.is_empty());
        assert_eq!(orders.find(0), Some(zeros));
        assert_eq!(orders.remove(0), Some(zeros));
        assert!(orders.is_empty());
    }

    #[test]
    fn references_made_to_collide_are_refused_before_they_cost_much() {
        let mut orders = Orders::new(1 << 16);
        // The multiplier's inverse turns small numbers into references that all hash to slot 0.
        let mut inverse = 1_u64;
        for _ in 0..6 {
            let product = 0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(inverse);
            inverse = inverse.wrapping_mul(2_u64.wrapping_sub(product));
        }
        for n in 0..PROBES_MAX as u64 {
            assert!(orders.insert(n.wrapping_mul(inverse), order(n)), "{n}");
        }
        assert_eq!(orders.slots.len(), SLOTS_FIRST, "they lie side by side");
        for n in 0..5_000_u64 {
            orders.insert(n.wrapping_mul(inverse), order(n));
        }
        assert!(orders.len() <= PROBES_MAX);
        assert_eq!(orders.refused(), 5_000 - orders.len() as u64);
        assert!(
            orders.slots.len() <= 1 << 18,
            "it does not grow beyond its bound"
        );
    }
}
