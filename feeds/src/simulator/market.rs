//! Market events: each function changes a symbol's book and emits the ITCH messages for it, so that a
//! reader of the messages has the same book.

use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{
    book::{Book, RestingOrder, Side, Slot},
    config::{Mix, SimulatorConfig},
    encode::Outbox,
    hawkes::Hawkes,
};
use crate::itch::messages::{
    AddOrder, AddOrderMpid, AuctionCollar, BrokenTrade, CrossTrade, Head, Imbalance,
    OperationalHalt, OrderCancel, OrderDelete, OrderExecuted, OrderExecutedPrice, OrderReplace,
    ParticipantPosition, RegSho, RetailInterest, Stock, StockDirectory, Trade, TradingAction,
};

/// One cent, in the venue's 1e-4.
const TICK: u32 = 100;
/// The highest price of the venue, in its 1e-4: $199,999.99.
const PRICE_MAX: u32 = 1_999_999_900;
/// An order that takes stops after so many resting ones.
const FILLS_MAX: usize = 8;
const PARTICIPANTS: [[u8; 4]; 4] = [*b"NITE", *b"VIRT", *b"CDRG", *b"JANE"];
const BROKEN_PER_MILLION: f64 = 20.0;
const RETAIL_PER_MILLION: f64 = 200.0;
/// Share of fills that are at a better price than the resting order's.
const IMPROVED: f64 = 0.03;

/// At so many times its depth a book gets no further orders, unless there is nothing else to do.
const FULLNESS_MAX: f64 = 2.0;
/// A book begins with room for all that it will hold, so that a long day takes no more memory than its first
/// minute; up to so many orders, as nobody fills 65,535 deep books.
const ROOM_MAX: usize = 256;

/// One symbol.
#[derive(Clone, Debug)]
pub(super) struct Symbol {
    pub(super) stock: Stock,
    pub(super) book: Book,
    hawkes: Hawkes,
    /// Where prices start while the book is empty.
    price: u32,
    /// Paused until then (ns since the beginning); 0 while it trades.
    paused_until: u64,
}

/// All symbols, and what numbers the venue has used up.
#[derive(Clone, Debug)]
pub(super) struct Market {
    rng: ChaCha8Rng,
    pub(super) symbols: Vec<Symbol>,
    mix: Mix,
    depth: f64,
    attributed: f64,
    pause_ns: u64,
    /// Chances per arrival, one band behind the other, of pauses, broken trades, retail interest.
    rare: [f64; 3],
    midnight_ns: u64,
    reference: u64,
    match_number: u64,
}

impl Market {
    pub(super) fn new(config: &SimulatorConfig, seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let names = config.all_names();
        let arrivals = config.arrivals;
        let weight = |n: usize| ((n + 1) as f64).powf(-arrivals.skew);
        let total: f64 = (0..names.len()).map(weight).sum();
        let base_per_s = arrivals.base_per_s * names.len() as f64 / total;
        let room = (FULLNESS_MAX as usize * config.depth as usize).min(ROOM_MAX);
        let symbols = names.into_iter().enumerate().map(|(n, stock)| Symbol {
            stock,
            book: Book::with_capacity(room),
            hawkes: Hawkes::new(
                base_per_s * weight(n),
                arrivals.branching,
                arrivals.decay_per_s,
            ),
            price: rng.random_range(config.price_min_cents..=config.price_max_cents) * TICK,
            paused_until: 0,
        });
        let symbols = symbols.collect();
        let [pause, broken, retail] = [
            config.pauses_per_million,
            BROKEN_PER_MILLION,
            RETAIL_PER_MILLION,
        ]
        .map(|n| n / 1e6);
        Self {
            rng,
            symbols,
            mix: config.mix,
            depth: f64::from(config.depth),
            attributed: config.attributed,
            pause_ns: config.pause_ms.saturating_mul(1_000_000),
            rare: [pause, pause + broken, pause + broken + retail],
            midnight_ns: u64::from(config.begins_at_s) * 1_000_000_000,
            reference: 0,
            match_number: 0,
        }
    }

    /// The head of a message about a symbol, by index; locates count from 1.
    pub(super) const fn head(&self, symbol: usize, now: u64) -> Head {
        Head {
            locate: symbol as u16 + 1,
            tracking: 0,
            timestamp: self.midnight_ns + now,
        }
    }

    /// Nanoseconds to the symbol's next arrival.
    #[inline]
    pub(super) fn next_arrival(&mut self, symbol: usize) -> u64 {
        let after_s = self.symbols[symbol].hawkes.next_after_s(&mut self.rng);
        // A cast from float saturates.
        (after_s * 1e9) as u64
    }

    /// Announces a symbol on a new day: directory, trading state, short sales.
    pub(super) fn announce(&mut self, symbol: usize, now: u64, out: &mut Outbox) {
        let (head, stock) = (self.head(symbol, now), self.symbols[symbol].stock);
        let directory = StockDirectory {
            head,
            stock,
            market_category: b'Q',
            financial_status: b'N',
            round_lot_size: 100,
            round_lots_only: b'N',
            classification: b'C',
            sub_type: *b"Z ",
            authenticity: b'T',
            short_sale_threshold: b'N',
            ipo_flag: b'N',
            luld_tier: b'1',
            etp_flag: b'N',
            etp_leverage: 0,
            inverse: b'N',
        };
        out.push(directory.to_bytes());
    }

    /// The trading state, short sale state and market makers of a symbol. One in a hundred is
    /// halted on the venue for a moment.
    pub(super) fn open_for_orders(&mut self, symbol: usize, now: u64, out: &mut Outbox) {
        let (head, stock) = (self.head(symbol, now), self.symbols[symbol].stock);
        self.trading_action(symbol, now, b'T', *b"    ", out);
        let action = if self.rng.random_bool(0.02) {
            b'2'
        } else {
            b'0'
        };
        out.push(
            RegSho {
                head,
                stock,
                action,
            }
            .to_bytes(),
        );
        let mpid = PARTICIPANTS[symbol % PARTICIPANTS.len()];
        let position = ParticipantPosition {
            head,
            mpid,
            stock,
            primary: b'Y',
            mode: b'N',
            state: b'A',
        };
        out.push(position.to_bytes());
        if symbol.is_multiple_of(100) {
            for action in [b'H', b'T'] {
                let market = b'Q';
                out.push(
                    OperationalHalt {
                        head,
                        stock,
                        market,
                        action,
                    }
                    .to_bytes(),
                );
            }
        }
    }

    /// The first orders of a symbol's book.
    pub(super) fn seed_book(&mut self, symbol: usize, now: u64, out: &mut Outbox) {
        for n in 0..(self.depth as usize / 2).clamp(2, 16) {
            let side = if n % 2 == 0 { Side::Bid } else { Side::Ask };
            self.add(symbol, side, now, out);
        }
    }

    /// Net order imbalance before a cross.
    pub(super) fn imbalance(&mut self, symbol: usize, now: u64, kind: u8, out: &mut Outbox) {
        let Symbol { stock, book, .. } = &self.symbols[symbol];
        let shares = |side| book.front(side).map_or(0, |slot| book.order(slot).shares);
        let (bid, ask) = (shares(Side::Bid), shares(Side::Ask));
        let price = self.crossing_price(symbol).unwrap_or(0);
        let message = Imbalance {
            head: self.head(symbol, now),
            paired: bid.min(ask).into(),
            imbalance: bid.abs_diff(ask).into(),
            direction: match bid.cmp(&ask) {
                std::cmp::Ordering::Less => b'S',
                std::cmp::Ordering::Equal => b'N',
                std::cmp::Ordering::Greater => b'B',
            },
            stock: *stock,
            far_price: price,
            near_price: price,
            reference_price: price,
            cross_type: kind,
            variation: b'L',
        };
        out.push(message.to_bytes());
    }

    /// A cross: the best orders of both sides meet between their prices, in one bulk print. With
    /// one side empty it is a print of no shares, as the venue sends it.
    pub(super) fn cross(&mut self, symbol: usize, now: u64, kind: u8, out: &mut Outbox) {
        let head = self.head(symbol, now);
        let stock = self.symbols[symbol].stock;
        let book = &self.symbols[symbol].book;
        self.match_number += 1;
        let mut print = CrossTrade {
            head,
            shares: 0,
            stock,
            price: 0,
            match_number: self.match_number,
            cross_type: kind,
        };
        if let (Some(bid), Some(ask), Some(price)) = (
            book.front(Side::Bid),
            book.front(Side::Ask),
            self.crossing_price(symbol),
        ) {
            let shares = book.order(bid).shares.min(book.order(ask).shares);
            print.shares = shares.into();
            print.price = price;
            for slot in [bid, ask] {
                let book = &mut self.symbols[symbol].book;
                let reference = book.order(slot).reference;
                book.reduce(slot, shares);
                let execution = OrderExecutedPrice {
                    head,
                    reference,
                    shares,
                    match_number: self.match_number,
                    printable: b'N',
                    price,
                };
                out.push(execution.to_bytes());
            }
        }
        out.push(print.to_bytes());
    }

    /// Ends a symbol's pause, if it has one: an auction, then trading.
    pub(super) fn resume(&mut self, symbol: usize, now: u64, out: &mut Outbox) {
        if self.symbols[symbol].paused_until > 0 {
            self.symbols[symbol].paused_until = 0;
            self.cross(symbol, now, b'H', out);
            self.trading_action(symbol, now, b'T', *b"    ", out);
        }
    }

    /// One arrival: what it does depends on chance and on how full the book is.
    #[inline]
    pub(super) fn arrival(&mut self, symbol: usize, now: u64, out: &mut Outbox) {
        let mut is_paused = self.symbols[symbol].paused_until > 0;
        if is_paused && now >= self.symbols[symbol].paused_until {
            self.resume(symbol, now, out);
            is_paused = false;
        }
        let chance: f64 = self.rng.random();
        if chance < self.rare[2] && !is_paused {
            return self.rare_event(symbol, now, chance, out);
        }
        let fullness = (self.symbols[symbol].book.len() as f64 / self.depth).min(FULLNESS_MAX);
        let mix = &self.mix;
        let trades = if is_paused { 0.0 } else { 1.0 };
        let weights = [
            mix.add * (FULLNESS_MAX - fullness),
            mix.delete * fullness,
            mix.replace,
            mix.execute * trades,
            mix.cancel,
            mix.hidden * trades,
        ];
        let mut draw = self.rng.random::<f64>() * weights.iter().sum::<f64>();
        let what = weights.iter().position(|weight| {
            draw -= weight;
            draw < 0.0
        });
        let side = if self.rng.random() {
            Side::Bid
        } else {
            Side::Ask
        };
        let done = match what {
            Some(1) => self.delete(symbol, now, out),
            Some(2) => self.replace(symbol, now, out),
            Some(3) => self.execute(symbol, side, now, out),
            Some(4) => self.cancel(symbol, now, out),
            Some(5) => self.hidden(symbol, now, out),
            _ => self.add(symbol, side, now, out),
        };
        // The book may hold nothing to take from; at the edge of the price range, an order can only
        // go. One of the two is always possible.
        if done.is_none() && self.add(symbol, side, now, out).is_none() {
            self.delete(symbol, now, out);
        }
    }

    fn rare_event(&mut self, symbol: usize, now: u64, chance: f64, out: &mut Outbox) {
        let (head, stock) = (self.head(symbol, now), self.symbols[symbol].stock);
        if chance < self.rare[0] {
            self.symbols[symbol].paused_until = now.saturating_add(self.pause_ns).max(1);
            self.trading_action(symbol, now, b'P', *b"LUDP", out);
            let reference = self
                .crossing_price(symbol)
                .unwrap_or(self.symbols[symbol].price);
            let collar = AuctionCollar {
                head,
                stock,
                reference,
                upper: reference.saturating_add(reference / 20),
                lower: reference - reference / 20,
                extensions: 0,
            };
            out.push(collar.to_bytes());
        } else if chance < self.rare[1] && self.match_number > 0 {
            let match_number = self.match_number;
            out.push(BrokenTrade { head, match_number }.to_bytes());
        } else {
            let interest = [b'B', b'S', b'A', b'N'][self.rng.random_range(0..4)];
            out.push(
                RetailInterest {
                    head,
                    stock,
                    interest,
                }
                .to_bytes(),
            );
        }
    }

    fn trading_action(
        &self,
        symbol: usize,
        now: u64,
        state: u8,
        reason: [u8; 4],
        out: &mut Outbox,
    ) {
        let (head, stock) = (self.head(symbol, now), self.symbols[symbol].stock);
        out.push(
            TradingAction {
                head,
                stock,
                state,
                reason,
            }
            .to_bytes(),
        );
    }

    fn add(&mut self, symbol: usize, side: Side, now: u64, out: &mut Outbox) -> Option<()> {
        let price = self.passive_price(symbol, side)?;
        let shares = self.shares();
        let attributed = self.rng.random::<f64>() < self.attributed;
        let reference = self.reference + 1;
        let order = RestingOrder {
            reference,
            side,
            price,
            shares,
        };
        self.symbols[symbol].book.add(order)?;
        self.reference = reference;
        let (head, stock) = (self.head(symbol, now), self.symbols[symbol].stock);
        let side = match side {
            Side::Bid => b'B',
            Side::Ask => b'S',
        };
        if attributed {
            let mpid = PARTICIPANTS[reference as usize % PARTICIPANTS.len()];
            let add = AddOrderMpid {
                head,
                reference,
                side,
                shares,
                stock,
                price,
                mpid,
            };
            out.push(add.to_bytes());
        } else {
            out.push(
                AddOrder {
                    head,
                    reference,
                    side,
                    shares,
                    stock,
                    price,
                }
                .to_bytes(),
            );
        }
        Some(())
    }

    fn delete(&mut self, symbol: usize, now: u64, out: &mut Outbox) -> Option<()> {
        let slot = self.any_order(symbol)?;
        let reference = self.symbols[symbol].book.remove(slot).reference;
        let head = self.head(symbol, now);
        out.push(OrderDelete { head, reference }.to_bytes());
        Some(())
    }

    fn cancel(&mut self, symbol: usize, now: u64, out: &mut Outbox) -> Option<()> {
        let slot = self.any_order(symbol)?;
        let book = &mut self.symbols[symbol].book;
        let order = book.order(slot);
        if order.shares < 2 {
            return None;
        }
        let shares = self.rng.random_range(1..order.shares);
        book.reduce(slot, shares);
        let head = self.head(symbol, now);
        let reference = order.reference;
        out.push(
            OrderCancel {
                head,
                reference,
                shares,
            }
            .to_bytes(),
        );
        Some(())
    }

    fn replace(&mut self, symbol: usize, now: u64, out: &mut Outbox) -> Option<()> {
        let slot = self.any_order(symbol)?;
        let side = self.symbols[symbol].book.order(slot).side;
        let price = self.passive_price(symbol, side)?;
        let shares = self.shares();
        let book = &mut self.symbols[symbol].book;
        let reference = book.remove(slot).reference;
        self.reference += 1;
        let new_reference = self.reference;
        book.add(RestingOrder {
            reference: new_reference,
            side,
            price,
            shares,
        });
        let head = self.head(symbol, now);
        out.push(
            OrderReplace {
                head,
                reference,
                new_reference,
                shares,
                price,
            }
            .to_bytes(),
        );
        Some(())
    }

    /// An order of the other side of `resting` takes what rests there, best first.
    fn execute(&mut self, symbol: usize, resting: Side, now: u64, out: &mut Outbox) -> Option<()> {
        let head = self.head(symbol, now);
        let mut wanted = self.shares();
        self.symbols[symbol].book.front(resting)?;
        for _ in 0..FILLS_MAX {
            let book = &mut self.symbols[symbol].book;
            let Some(slot) = book.front(resting).filter(|_| wanted > 0) else {
                break;
            };
            let RestingOrder {
                reference, price, ..
            } = book.order(slot);
            let shares = book.reduce(slot, wanted);
            wanted -= shares;
            self.match_number += 1;
            let match_number = self.match_number;
            if self.rng.random::<f64>() < IMPROVED {
                let price = match resting {
                    Side::Bid => price + TICK / 2,
                    Side::Ask => price - TICK / 2,
                };
                let printable = b'Y';
                let execution = OrderExecutedPrice {
                    head,
                    reference,
                    shares,
                    match_number,
                    printable,
                    price,
                };
                out.push(execution.to_bytes());
            } else {
                out.push(
                    OrderExecuted {
                        head,
                        reference,
                        shares,
                        match_number,
                    }
                    .to_bytes(),
                );
            }
        }
        Some(())
    }

    fn hidden(&mut self, symbol: usize, now: u64, out: &mut Outbox) -> Option<()> {
        let price = self.crossing_price(symbol)?;
        self.match_number += 1;
        let trade = Trade {
            head: self.head(symbol, now),
            reference: 0,
            side: b'B',
            shares: self.shares(),
            stock: self.symbols[symbol].stock,
            price,
            match_number: self.match_number,
        };
        out.push(trade.to_bytes());
        Some(())
    }

    /// Midway between the best prices.
    fn crossing_price(&self, symbol: usize) -> Option<u32> {
        let book = &self.symbols[symbol].book;
        let (bid, ask) = (book.best(Side::Bid)?, book.best(Side::Ask)?);
        Some(bid + (ask - bid) / 2)
    }

    fn any_order(&mut self, symbol: usize) -> Option<Slot> {
        let n = self.rng.next_u32() as usize;
        self.symbols[symbol].book.nth(n)
    }

    /// A price that does not cross: mostly at or near the best one, at times within the spread.
    #[inline]
    fn passive_price(&mut self, symbol: usize, side: Side) -> Option<u32> {
        let Symbol { book, price, .. } = &self.symbols[symbol];
        let draw = self.rng.next_u32();
        // Each further tick away is half as likely.
        let away = (draw | 1 << 15).trailing_zeros() * TICK;
        let improves = draw >> 30 == 0;
        let price = match (book.best(side), book.best(side.opposite()), side) {
            (Some(best), opposite, Side::Bid) => {
                let inside = best + TICK;
                if improves && opposite.is_none_or(|ask| inside < ask) {
                    inside
                } else {
                    best.checked_sub(away)?
                }
            }
            (Some(best), opposite, Side::Ask) => {
                let inside = best - TICK;
                if improves && opposite.is_none_or(|bid| inside > bid) {
                    inside
                } else {
                    best + away
                }
            }
            (None, Some(ask), Side::Bid) => ask.checked_sub(TICK + away)?,
            (None, Some(bid), Side::Ask) => bid + TICK + away,
            (None, None, Side::Bid) => price.checked_sub(away)?,
            (None, None, Side::Ask) => price + away,
        };
        (TICK..=PRICE_MAX).contains(&price).then_some(price)
    }

    /// Round lots mostly, small ones mostly.
    #[inline]
    fn shares(&mut self) -> u32 {
        let draw = self.rng.next_u32();
        if draw >> 28 == 0 {
            1 + draw % 99
        } else {
            100 * (1 + (draw | 1 << 10).trailing_zeros())
        }
    }
}
