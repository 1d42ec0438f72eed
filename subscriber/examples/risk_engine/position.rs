//! A position at average cost, exact in 1e-9.
//!
//! *Cost* is the cost of the open quantity: signed, negative for a short position. A fill that
//! reduces the position removes its share of the cost, `cost x closed / quantity`, rounded towards
//! zero. The rest stays, so rounding loses nothing. A flat position has no cost, and its realised result
//! is exactly the money received less the money paid. A fill that reverses the position closes it and
//! opens the rest at its own price. There are no fees.
//!
//! With a mark, exposure is `quantity x mark` (signed), and the unrealised result is exposure less
//! cost. Without a mark, the position is valued at its cost, and its unrealised result is 0.

/// The largest quantity, so that no product below exceeds 128 bits.
pub(crate) const QUANTITY_MAX: u64 = 1 << 36;
/// The highest price of a fill, in 1e-9: ten million.
pub(crate) const PRICE_MAX: i64 = 10_000_000_000_000_000;

/// The quantity held and its results. Money is in 1e-9.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Position {
    /// The quantity; negative for a short position.
    pub(crate) quantity: i64,
    pub(crate) cost: i128,
    pub(crate) realised: i128,
}

/// The value of a position at a mark. Money is in 1e-9.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Value {
    /// The exposure; negative for a short position.
    pub(crate) exposure: i128,
    pub(crate) unrealised: i128,
}

impl Position {
    /// Buys (`quantity` > 0) or sells this quantity at `price` (1e-9).
    pub(crate) fn fill(&mut self, quantity: i64, price: i64) {
        let price = i128::from(price);
        let sign = quantity.signum();
        let reduces = self.quantity.signum() == -sign;
        let closed = if reduces {
            quantity.abs().min(self.quantity.abs())
        } else {
            0
        };
        if closed > 0 {
            let share = self.cost * i128::from(closed) / i128::from(self.quantity.abs());
            self.realised += -i128::from(sign * closed) * price - share;
            self.quantity += sign * closed;
            self.cost -= share;
        }
        let opened = quantity - sign * closed;
        self.quantity += opened;
        self.cost += i128::from(opened) * price;
    }

    /// Returns the value at a mark.
    pub(crate) fn value(&self, mark: Option<i64>) -> Value {
        let exposure = mark.map_or(self.cost, |mark| {
            i128::from(self.quantity) * i128::from(mark)
        });
        Value {
            exposure,
            unrealised: exposure - self.cost,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(fills: &[(i64, i64)]) -> Position {
        let mut position = Position::default();
        for &(quantity, price) in fills {
            position.fill(quantity, price);
        }
        position
    }

    fn position(quantity: i64, cost: i128, realised: i128) -> Position {
        Position {
            quantity,
            cost,
            realised,
        }
    }

    #[test]
    fn long_position_sale_realises_against_average_cost() {
        assert_eq!(after(&[(100, 10), (100, 20)]), position(200, 3_000, 0));
        let sold = after(&[(100, 10), (100, 20), (-50, 30)]);
        assert_eq!(sold, position(150, 2_250, 750));
        let flat = after(&[(100, 10), (100, 20), (-50, 30), (-150, 12)]);
        assert_eq!(flat, position(0, 0, 300));
    }

    #[test]
    fn short_position_realises_pnl_on_buyback() {
        assert_eq!(after(&[(-100, 10)]), position(-100, -1_000, 0));
        assert_eq!(after(&[(-100, 10), (40, 8)]), position(-60, -600, 80));
        assert_eq!(after(&[(-100, 10), (100, 13)]), position(0, 0, -300));
    }

    #[test]
    fn fill_through_zero_reopens_at_its_price() {
        assert_eq!(after(&[(10, 100), (-25, 110)]), position(-15, -1_650, 100));
        assert_eq!(after(&[(-10, 100), (25, 110)]), position(15, 1_650, -100));
    }

    #[test]
    fn rounding_goes_towards_zero_and_loses_nothing() {
        let long = after(&[(1, 10), (2, 11), (-1, 0)]);
        assert_eq!(long, position(2, 22, -10), "a third of 32 is 10");
        let short = after(&[(-1, 10), (-2, 11), (1, 0)]);
        assert_eq!(short, position(-2, -22, 10), "and of -32 it is -10");
        let flat = after(&[(1, 10), (2, 11), (-1, 0), (-1, 0), (-1, 0)]);
        assert_eq!(flat, position(0, 0, -32));
    }

    #[test]
    fn flat_position_realises_proceeds_less_costs() {
        let mut seed = 20_261_120_u64;
        let mut next = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        for _ in 0..200 {
            let (mut held, mut cash) = (Position::default(), 0_i128);
            for _ in 0..50 {
                let quantity = next(1_000) as i64 - 500;
                let price = next(1_000_000_007) as i64;
                held.fill(quantity, price);
                cash -= i128::from(quantity) * i128::from(price);
                assert_eq!(cash, held.realised - held.cost, "seed {seed}");
            }
            let (rest, price) = (held.quantity, 7);
            held.fill(-rest, price);
            assert_eq!(held.quantity, 0);
            assert_eq!(held.cost, 0);
            assert_eq!(held.realised, cash + i128::from(rest) * i128::from(price));
        }
    }

    #[test]
    fn position_without_mark_is_valued_at_cost() {
        let held = position(-10, -1_000, 5);
        let marked = Value {
            exposure: -900,
            unrealised: 100,
        };
        assert_eq!(held.value(Some(90)), marked);
        let at_cost = Value {
            exposure: -1_000,
            unrealised: 0,
        };
        assert_eq!(held.value(None), at_cost);
    }

    #[test]
    fn position_at_max_size_and_price_does_not_overflow() {
        let all = QUANTITY_MAX as i64;
        let mut held = after(&[(all, PRICE_MAX), (-all / 2, PRICE_MAX)]);
        held.fill(-all / 2, PRICE_MAX);
        assert_eq!(held, position(0, 0, 0));
        let value = position(all, 0, 0).value(Some(i64::MAX - 1));
        assert_eq!(value.exposure, i128::from(all) * i128::from(i64::MAX - 1));
    }
}
